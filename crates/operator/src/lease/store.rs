//! The door to the Lease: reads and writes of one object, each guarded by its resourceVersion.
//!
//! No retry and no budget: the candidate knows when to try again, and a leader's renewal must not wait behind anything.

use std::future::Future;

use http::{Method, Request};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::Client;
use serde_json::{Value, json};

use super::LEASE;
use super::candidate::{LeaseRecord, Seen};
use crate::error::RequestError;
use crate::timestamps::micro_time;

/// A request about the Lease that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Somebody else was faster.
    #[error("somebody else changed the lease")]
    Conflict,
    /// There is no Lease.
    #[error("there is no lease")]
    NotFound,
    /// Anything else; a 403 too, which an API server gives for a moment when it starts.
    #[error("{0}")]
    Failed(String),
}

impl From<RequestError> for StoreError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Conflict(_) | RequestError::AlreadyExists(_) => Self::Conflict,
            RequestError::NotFound(_) => Self::NotFound,
            other => Self::Failed(other.to_string()),
        }
    }
}

/// Where the Lease is kept.
pub trait LeaseStore: Send + Sync {
    /// Reads it.
    fn get(&self) -> impl Future<Output = Result<Option<Seen>, StoreError>> + Send;
    /// Creates it.
    fn create(&self, record: &LeaseRecord) -> impl Future<Output = Result<Seen, StoreError>> + Send;
    /// Replaces it, if it still has that version.
    fn update(
        &self,
        record: &LeaseRecord,
        version: &str,
    ) -> impl Future<Output = Result<Seen, StoreError>> + Send;
}

/// The Lease of the operator in a cluster.
#[derive(Clone)]
pub struct KubeLeaseStore {
    client: Client,
    namespace: String,
}

impl KubeLeaseStore {
    /// The Lease in that namespace, over a client that doesn't retry.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.to_owned() }
    }

    #[allow(clippy::disallowed_methods, reason = "this is the door to the lease")]
    async fn send(&self, method: Method, name: &str, body: Option<Value>) -> Result<Seen, StoreError> {
        let uri = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases{name}", self.namespace);
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body.map(|body| body.to_string().into_bytes()).unwrap_or_default())
            .map_err(|error| StoreError::Failed(error.to_string()))?;
        let lease: Lease = self.client.request(request).await.map_err(RequestError::from)?;
        Ok(seen(lease))
    }

    fn body(&self, record: &LeaseRecord, version: Option<&str>) -> Value {
        // A time that isn't there is left out; an empty one would be refused.
        let time = |time: &str| if time.is_empty() { Value::Null } else { json!(time) };
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": LEASE, "namespace": self.namespace, "resourceVersion": version},
            "spec": {
                "holderIdentity": record.holder,
                "leaseDurationSeconds": record.seconds,
                "leaseTransitions": i32::try_from(record.transitions).unwrap_or(i32::MAX),
                "acquireTime": time(&record.acquire_time),
                "renewTime": time(&record.renew_time),
            },
        })
    }
}

impl LeaseStore for KubeLeaseStore {
    async fn get(&self) -> Result<Option<Seen>, StoreError> {
        match self.send(Method::GET, &format!("/{LEASE}"), None).await {
            Ok(seen) => Ok(Some(seen)),
            Err(StoreError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn create(&self, record: &LeaseRecord) -> Result<Seen, StoreError> {
        match self.send(Method::POST, "", Some(self.body(record, None))).await {
            // The namespace is missing: the same answer would come again at once.
            Err(StoreError::NotFound) => {
                Err(StoreError::Failed(format!("the namespace {:?} does not exist", self.namespace)))
            }
            other => other,
        }
    }

    async fn update(&self, record: &LeaseRecord, version: &str) -> Result<Seen, StoreError> {
        self.send(Method::PUT, &format!("/{LEASE}"), Some(self.body(record, Some(version)))).await
    }
}

fn seen(lease: Lease) -> Seen {
    let LeaseSpec {
        holder_identity,
        lease_duration_seconds,
        lease_transitions,
        acquire_time,
        renew_time,
        ..
    } = lease.spec.unwrap_or_default();
    let time = |time: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime>| {
        time.map(|time| micro_time(time.0)).unwrap_or_default()
    };
    Seen {
        version: lease.metadata.resource_version.unwrap_or_default(),
        record: LeaseRecord {
            holder: holder_identity.unwrap_or_default(),
            seconds: lease_duration_seconds.unwrap_or_default().into(),
            transitions: lease_transitions.and_then(|n| u64::try_from(n).ok()).unwrap_or_default(),
            acquire_time: time(acquire_time),
            renew_time: time(renew_time),
        },
    }
}
