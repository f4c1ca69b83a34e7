//! What the operator keeps of the objects it watches.
//!
//! An App is kept as metadata plus raw spec and status, so that one App that doesn't decode stops nothing. Of a
//! Deployment only what a pass reads is kept: of `managedFields` just our own entry, of the Pod template nothing. Whole
//! objects would cost ten times the memory.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ApiResource, DynamicObject, ObjectMeta};
use kubesentry_api::conditions::{DeploymentFacts, Passed, Status};
use kubesentry_api::names::{self, ANNOTATION_APPLIED_HASH, ANNOTATION_DESIRED_REPLICAS, LABEL_APP};
use kubesentry_api::status::AppStatus;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::key::Key;

/// The App resource for kube's dynamic API.
pub fn app_resource() -> ApiResource {
    ApiResource {
        group: names::GROUP.to_owned(),
        version: names::VERSION.to_owned(),
        api_version: names::API_VERSION.to_owned(),
        kind: names::KIND.to_owned(),
        plural: names::PLURAL.to_owned(),
    }
}

/// An App as it was observed.
#[derive(Debug, Clone)]
pub struct App {
    /// Namespace and name.
    pub key: Key,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// `metadata.deletionTimestamp`.
    pub deletion: Option<jiff::Timestamp>,
    /// `metadata.finalizers`.
    pub finalizers: Vec<String>,
    /// `metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
    /// The object without metadata beyond its name, for the parser.
    pub raw: Value,
    /// The status as it stands on the server.
    pub raw_status: Value,
    /// The status as far as it decodes.
    pub status: AppStatus,
}

impl App {
    /// Position of our finalizer.
    pub fn finalizer_index(&self) -> Option<usize> {
        self.finalizers.iter().position(|finalizer| finalizer == names::FINALIZER)
    }
}

impl From<DynamicObject> for App {
    fn from(object: DynamicObject) -> Self {
        let metadata = object.metadata;
        let mut raw = Map::new();
        raw.insert("apiVersion".to_owned(), names::API_VERSION.into());
        raw.insert("kind".to_owned(), names::KIND.into());
        raw.insert("metadata".to_owned(), json!({"name": metadata.name}));
        let mut raw_status = Value::Null;
        if let Value::Object(data) = object.data {
            for (field, value) in data {
                if field == "status" {
                    raw_status = value;
                } else {
                    raw.insert(field, value);
                }
            }
        }
        Self {
            key: key_of(&metadata),
            uid: metadata.uid.unwrap_or_default(),
            resource_version: metadata.resource_version.unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            deletion: metadata.deletion_timestamp.map(|time| time.0),
            finalizers: metadata.finalizers.unwrap_or_default(),
            annotations: metadata.annotations.unwrap_or_default(),
            raw: Value::Object(raw),
            status: status_of(&raw_status),
            raw_status,
        }
    }
}

/// Reads a status field by field where it doesn't decode as a whole: what another version wrote into one field must not
/// cost the others.
fn status_of(raw: &Value) -> AppStatus {
    if let Ok(status) = serde_json::from_value(raw.clone()) {
        return status;
    }
    let mut kept = Map::new();
    for (field, value) in raw.as_object().into_iter().flatten() {
        let alone: Map<String, Value> = [(field.clone(), value.clone())].into_iter().collect();
        if serde_json::from_value::<AppStatus>(Value::Object(alone)).is_ok() {
            kept.insert(field.clone(), value.clone());
        } else if field == "audit" {
            kept.insert(field.clone(), end_of_trail(value));
        }
    }
    serde_json::from_value(Value::Object(kept)).unwrap_or_default()
}

/// The end of an audit trail whose records another version wrote: numbers must not begin anew, or two records of one App
/// would share one.
fn end_of_trail(audit: &Value) -> Value {
    let seq = audit["seq"].as_u64().unwrap_or_default();
    match audit["headHash"].as_str() {
        Some(head) => json!({"seq": seq, "headHash": head, "flushedSeq": seq}),
        None => json!({"seq": seq, "flushedSeq": seq}),
    }
}

/// A Deployment as the API server sends it, as far as the operator reads it.
#[derive(Debug, Clone, Deserialize)]
pub struct DeploymentView {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: SpecView,
    #[serde(default)]
    status: StatusView,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct SpecView {
    replicas: Option<i32>,
    selector: Option<SelectorView>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SelectorView {
    #[serde(default)]
    match_labels: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StatusView {
    observed_generation: Option<i64>,
    replicas: i32,
    ready_replicas: i32,
    updated_replicas: i32,
    conditions: Vec<ConditionView>,
}

#[derive(Debug, Clone, Deserialize)]
struct ConditionView {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    status: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
}

macro_rules! namespaced_resource {
    ($view:ty, $kind:literal, $group:literal, $version:literal, $plural:literal) => {
        impl kube::Resource for $view {
            type DynamicType = ();
            type Scope = NamespaceResourceScope;

            fn kind((): &()) -> Cow<'_, str> {
                $kind.into()
            }

            fn group((): &()) -> Cow<'_, str> {
                $group.into()
            }

            fn version((): &()) -> Cow<'_, str> {
                $version.into()
            }

            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

namespaced_resource!(DeploymentView, "Deployment", "apps", "v1", "deployments");
namespaced_resource!(ScalerView, "HorizontalPodAutoscaler", "autoscaling", "v2", "horizontalpodautoscalers");

/// A Deployment as it was observed.
#[derive(Debug, Clone)]
pub struct Deployment {
    /// Namespace and name.
    pub key: Key,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// It has a deletionTimestamp.
    pub deleting: bool,
    /// The annotation with the hash of the intent that was applied.
    pub applied_hash: Option<String>,
    /// The annotation with the size written last.
    pub desired_replicas: Option<u32>,
    /// The annotation with the size is there at all.
    pub has_desired_replicas: bool,
    /// The label with the App's name.
    pub label_app: Option<String>,
    /// The owner reference with `controller: true`.
    pub controller: Option<OwnerReference>,
    /// `{metadata: {managedFields: [our entry]}}`, for the ownership check.
    pub owned: Value,
    /// `spec.replicas`.
    pub replicas: i32,
    /// The selector in the form of the scale subresource: `k=v,k=v`.
    pub selector: String,
    /// What conditions are derived from.
    pub facts: DeploymentFacts,
}

impl From<DeploymentView> for Deployment {
    fn from(view: DeploymentView) -> Self {
        let key = key_of(&view.metadata);
        let DeploymentView { metadata, spec, status } = view;
        let annotations = metadata.annotations.unwrap_or_default();
        let desired = annotations.get(ANNOTATION_DESIRED_REPLICAS);
        let ours: Vec<Value> = metadata
            .managed_fields
            .unwrap_or_default()
            .into_iter()
            .filter(|entry| {
                entry.manager.as_deref() == Some(names::FIELD_MANAGER)
                    && entry.operation.as_deref() == Some("Apply")
                    && entry.subresource.as_deref().unwrap_or_default().is_empty()
            })
            .filter_map(|entry| serde_json::to_value(entry).ok())
            .collect();
        let owned = json!({"metadata": {"managedFields": ours}});
        let selector = spec.selector.unwrap_or_default().match_labels;
        let passed = |kind: &str| {
            status.conditions.iter().find(|condition| condition.kind == kind).map(|condition| Passed {
                status: match condition.status.as_str() {
                    "True" => Status::True,
                    "False" => Status::False,
                    _ => Status::Unknown,
                },
                // A reason may be empty on a Deployment, but not in `metav1.Condition`.
                reason: if condition.reason.is_empty() { kind.to_owned() } else { condition.reason.clone() },
                message: condition.message.clone(),
            })
        };
        // The API server fills replicas in; 1 is its default.
        let replicas = spec.replicas.unwrap_or(1);
        Self {
            key,
            uid: metadata.uid.unwrap_or_default(),
            resource_version: metadata.resource_version.unwrap_or_default(),
            deleting: metadata.deletion_timestamp.is_some(),
            applied_hash: annotations.get(ANNOTATION_APPLIED_HASH).cloned(),
            desired_replicas: desired.and_then(|text| text.parse().ok()),
            has_desired_replicas: desired.is_some(),
            label_app: metadata.labels.unwrap_or_default().remove(LABEL_APP),
            controller: metadata
                .owner_references
                .unwrap_or_default()
                .into_iter()
                .find(|reference| reference.controller == Some(true)),
            owned,
            replicas,
            selector: selector.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(","),
            facts: DeploymentFacts {
                generation: metadata.generation.unwrap_or_default(),
                observed_generation: status.observed_generation,
                wanted: replicas,
                replicas: status.replicas,
                ready: status.ready_replicas,
                updated: status.updated_replicas,
                available: passed("Available"),
                progressing: passed("Progressing"),
            },
        }
    }
}

/// A HorizontalPodAutoscaler as the API server sends it, as far as the operator reads it.
#[derive(Debug, Clone, Deserialize)]
pub struct ScalerView {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: ScalerSpecView,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScalerSpecView {
    scale_target_ref: Option<TargetView>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TargetView {
    api_version: String,
    kind: String,
    name: String,
}

/// A scaler that isn't ours.
#[derive(Debug, Clone)]
pub struct Scaler {
    /// Its own namespace and name.
    pub key: Key,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// The Deployment it scales, if it scales one.
    pub target: Option<Key>,
}

impl From<ScalerView> for Scaler {
    fn from(view: ScalerView) -> Self {
        let key = key_of(&view.metadata);
        let target = view
            .spec
            .scale_target_ref
            .filter(|target| target.kind == "Deployment" && target.api_version.starts_with("apps/"))
            .map(|target| Key::new(&key.namespace, &target.name));
        Self { key, resource_version: view.metadata.resource_version.unwrap_or_default(), target }
    }
}

/// What a cache must know of an object.
pub trait Cached {
    /// Namespace and name.
    fn key(&self) -> &Key;

    /// `metadata.resourceVersion` as a number. Opaque by the book, but a number that grows on etcd ever since, and by
    /// the book as well since Kubernetes 1.35 (KEP-5504); 0 where it is none.
    fn version(&self) -> u64;
}

impl Cached for App {
    fn key(&self) -> &Key {
        &self.key
    }

    fn version(&self) -> u64 {
        self.resource_version.parse().unwrap_or_default()
    }
}

impl Cached for Deployment {
    fn key(&self) -> &Key {
        &self.key
    }

    fn version(&self) -> u64 {
        self.resource_version.parse().unwrap_or_default()
    }
}

impl Cached for Scaler {
    fn key(&self) -> &Key {
        &self.key
    }

    fn version(&self) -> u64 {
        self.resource_version.parse().unwrap_or_default()
    }
}

fn key_of(metadata: &ObjectMeta) -> Key {
    Key::new(metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_field_that_does_not_decode_costs_no_other() {
        let status = status_of(
            &json!({"observedGeneration": 7, "phase": "NoSuchPhase", "ready": "3/4", "replicas": "x"}),
        );
        assert_eq!(status.observed_generation, Some(7));
        assert_eq!(status.ready.as_deref(), Some("3/4"));
        assert_eq!((status.phase, status.replicas), (None, None));
    }

    #[test]
    fn the_numbers_of_an_audit_trail_go_on_though_its_records_do_not_decode() {
        let head = "a".repeat(64);
        let audit = json!({"seq": 7, "headHash": head, "flushedSeq": 3, "recent": [{"level": "unheard-of"}]});
        let ledger = status_of(&json!({"audit": audit})).audit.unwrap();
        assert_eq!((ledger.seq, ledger.head_hash, ledger.flushed_seq), (7, head, 7));
    }

    #[test]
    fn a_scaler_of_something_else_than_a_deployment_has_no_target() {
        let scaler = |kind: &str, api_version: &str| {
            let view: ScalerView = serde_json::from_value(json!({
                "metadata": {"name": "h", "namespace": "n"},
                "spec": {"scaleTargetRef": {"apiVersion": api_version, "kind": kind, "name": "shop"}},
            }))
            .unwrap();
            Scaler::from(view).target
        };
        assert_eq!(scaler("Deployment", "apps/v1"), Some(Key::new("n", "shop")));
        assert_eq!(scaler("StatefulSet", "apps/v1"), None);
        assert_eq!(scaler("Deployment", "example.com/v1"), None);
    }
}
