//! The one door through which the operator writes to the API server.
//!
//! Nothing else in this crate may call a write method of the client (`clippy.toml` says so). Every write passes the
//! budget, carries the field manager and the term of leadership in which it was decided, has a timeout and is never
//! retried here: what to do after a failure is the caller's judgement. It knows bodies and answers, no Apps.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request};
use kube::Client;
use kubesentry_api::names::{API_VERSION, FIELD_MANAGER, PLURAL};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::error::RequestError;
use crate::key::Key;
use crate::lease::{Leadership, Term};
use crate::objects::DeploymentView;

/// Longest a write may take.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// See the module.
pub struct Door {
    client: Client,
    leadership: Leadership,
    term: Term,
    budgets: Arc<Budgets>,
}

/// How many writes may be sent; outlives terms.
pub struct Budgets {
    writes: Mutex<Budget>,
    /// Events have a budget of their own: nothing that matters waits behind them.
    events: Mutex<Budget>,
}

impl Budgets {
    /// `per_second` writes in the long run, `burst` at once; for events a quarter of it.
    pub fn new(per_second: f64, burst: f64) -> Self {
        let budget = |per_second: f64, burst: f64| {
            Mutex::new(Budget { per_second, burst, tokens: burst, at: Instant::now() })
        };
        Self { writes: budget(per_second, burst), events: budget(per_second / 4.0, (burst / 4.0).max(1.0)) }
    }
}

impl Door {
    /// A door for one term, over a client that doesn't retry.
    pub fn new(client: Client, leadership: Leadership, term: Term, budgets: Arc<Budgets>) -> Self {
        Self { client, leadership, term, budgets }
    }

    /// The term in which this door writes.
    pub fn term(&self) -> Term {
        self.term
    }

    /// Server-side apply of a Deployment, taking the fields over where others hold them.
    pub async fn apply_deployment(&self, key: &Key, body: &Value) -> Result<DeploymentView, RequestError> {
        let path = format!(
            "/apis/apps/v1/namespaces/{}/deployments/{}?fieldManager={FIELD_MANAGER}&force=true",
            key.namespace, key.name
        );
        self.send(Method::PATCH, &path, "application/apply-patch+yaml", body).await
    }

    /// JSON patch of an App's metadata; answers its new resourceVersion.
    pub async fn patch_app(&self, key: &Key, patch: &Value) -> Result<String, RequestError> {
        let path = format!(
            "/apis/{API_VERSION}/namespaces/{}/{PLURAL}/{}?fieldManager={FIELD_MANAGER}",
            key.namespace, key.name
        );
        let answer: Value = self.send(Method::PATCH, &path, "application/json-patch+json", patch).await?;
        Ok(resource_version(&answer))
    }

    /// PUT of an App's status; answers its new resourceVersion.
    pub async fn put_app_status(&self, key: &Key, body: &Value) -> Result<String, RequestError> {
        let path = format!(
            "/apis/{API_VERSION}/namespaces/{}/{PLURAL}/{}/status?fieldManager={FIELD_MANAGER}",
            key.namespace, key.name
        );
        let answer: Value = self.send(Method::PUT, &path, "application/json", body).await?;
        Ok(resource_version(&answer))
    }

    /// Creates a ConfigMap.
    pub async fn create_config_map(&self, namespace: &str, body: &Value) -> Result<(), RequestError> {
        let path = format!("/api/v1/namespaces/{namespace}/configmaps?fieldManager={FIELD_MANAGER}");
        self.send::<Value>(Method::POST, &path, "application/json", body).await.map(drop)
    }

    /// Deletes a ConfigMap, if it is still the one of that UID.
    pub async fn delete_config_map(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Result<(), RequestError> {
        let path = format!("/api/v1/namespaces/{namespace}/configmaps/{name}");
        let body = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}});
        self.send::<Value>(Method::DELETE, &path, "application/json", &body).await.map(drop)
    }

    /// Creates an event.
    pub async fn create_event(&self, namespace: &str, body: &Value) -> Result<(), RequestError> {
        let path =
            format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events?fieldManager={FIELD_MANAGER}");
        let events = &self.budgets.events;
        self.send_within::<Value>(events, Method::POST, &path, "application/json", body).await.map(drop)
    }

    /// Updates the series of an event: the only part of an event that may change.
    pub async fn patch_event(&self, namespace: &str, name: &str, body: &Value) -> Result<(), RequestError> {
        let path = format!(
            "/apis/events.k8s.io/v1/namespaces/{namespace}/events/{name}?fieldManager={FIELD_MANAGER}"
        );
        let (events, kind) = (&self.budgets.events, "application/merge-patch+json");
        self.send_within::<Value>(events, Method::PATCH, &path, kind, body).await.map(drop)
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: &Value,
    ) -> Result<T, RequestError> {
        self.send_within(&self.budgets.writes, method, path, content_type, body).await
    }

    #[allow(clippy::disallowed_methods, reason = "this is the door")]
    async fn send_within<T: DeserializeOwned>(
        &self,
        budget: &Mutex<Budget>,
        method: Method,
        path: &str,
        content_type: &str,
        body: &Value,
    ) -> Result<T, RequestError> {
        let wait = budget.lock().take(Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        // What is under way must have ended before another process may lead.
        let limit = WRITE_TIMEOUT.min(self.leadership.check(self.term)?);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .extension(self.term)
            .header(http::header::CONTENT_TYPE, content_type)
            .body(body.to_string().into_bytes())
            .map_err(|error| RequestError::Outage(format!("the request can't be built: {error}")))?;
        match tokio::time::timeout(limit, self.client.request::<T>(request)).await {
            Ok(answer) => answer.map_err(RequestError::from),
            Err(_) => Err(RequestError::timeout(limit)),
        }
    }
}

fn resource_version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
}

/// A token bucket.
struct Budget {
    per_second: f64,
    burst: f64,
    tokens: f64,
    at: Instant,
}

impl Budget {
    /// Takes one token and says how long to wait before using it.
    fn take(&mut self, now: Instant) -> Duration {
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * self.per_second;
        self.tokens = (self.tokens + earned).min(self.burst) - 1.0;
        self.at = now;
        if self.tokens >= 0.0 {
            Duration::ZERO
        } else {
            Duration::from_secs_f64(-self.tokens / self.per_second)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_the_rest_waits_its_turn() {
        let start = Instant::now();
        let mut budget = Budget { per_second: 10.0, burst: 3.0, tokens: 3.0, at: start };
        let waits: Vec<_> = (0..5).map(|_| budget.take(start).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200]);
        assert_eq!(budget.take(start + Duration::from_secs(60)), Duration::ZERO);
    }
}
