//! The `spec` of an App as users write it: fields, defaults, bounds and descriptions.
//!
//! These types are the single source of the CRD's schema ([`crate::crd`]) and so of the defaults
//! and structural checks of [`crate::parse`](mod@crate::parse). They know no rule that spans
//! several fields: those stand in [`crate::rules`]. Parts of core/v1 are kept as raw JSON: they go
//! into the Deployment as they are.

use k8s_openapi::api::core::v1::{EnvVar, Probe, ResourceRequirements};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What you want to run, at what size, and how it is kept healthy.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppSpec {
    /// Image of the main container, such as "nginx:1.29". Needed unless template.spec.containers has an entry named
    /// "app" with an image.
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,

    /// Ports of the main container. Name the one that serves traffic; others may refer to it by that name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["containerPort", "protocol"]))]
    pub ports: Vec<Port>,

    /// Environment of the main container, as in a Pod. Values are strings: quote numbers and booleans.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<EnvVar>", length(max = 256), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<Value>,

    /// CPU and memory of the main container, as in a Pod. Quote fractions: cpu: "0.5".
    #[schemars(with = "Option<ResourceRequirements>")]
    pub resources: Option<Map<String, Value>>,

    /// Entrypoint of the main container; the image's own when left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub command: Vec<String>,

    /// Arguments of the main container; the image's own when left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "atomic"))]
    pub args: Vec<String>,

    /// Restarts the main container when it fails, as in a Pod.
    #[schemars(with = "Option<Probe>")]
    pub liveness_probe: Option<Map<String, Value>>,

    /// Decides whether a Pod gets traffic, as in a Pod. Without one a Pod counts as ready as soon as its process runs.
    #[schemars(with = "Option<Probe>")]
    pub readiness_probe: Option<Map<String, Value>>,

    /// Holds the other two probes back until the main container has started, as in a Pod.
    #[schemars(with = "Option<Probe>")]
    pub startup_probe: Option<Map<String, Value>>,

    /// Anything else of the Pod, as a core/v1 PodTemplateSpec: volumes, sidecars, scheduling, annotations. It is merged
    /// over the fields above; the main container is the entry named "app". Unknown fields in here are reported in the
    /// App's conditions, not by kubectl.
    #[schemars(with = "Option<template::Template>")]
    pub template: Option<Map<String, Value>>,

    /// How a new version replaces the old one.
    #[serde(default)]
    pub rollout: Rollout,

    /// Stop acting on this App: it is observed and reported, but nothing is created, changed or put back. A deletion is
    /// carried out as usual.
    #[serde(default)]
    pub suspend: bool,

    /// Pins the size, even outside minReplicas and maxReplicas; scaling is off while it is set. Set it by hand with
    /// "kubectl scale", and remove it to go back to automatic scaling:
    /// kubectl patch apps.apps.sentry.io NAME --type=merge -p '{"spec":{"replicas":null}}'
    #[schemars(range(min = 0, max = 10000))]
    pub replicas: Option<i32>,

    /// How the App is sized. This version reads no signals yet: in mode Auto the size stays as it was written last,
    /// within its bounds.
    #[serde(default)]
    pub scaling: Scaling,

    /// The audit trail: what the operator did for this App, and why.
    #[serde(default)]
    pub audit: AuditPolicy,
}

/// A port of the main container.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// Name of the port, unique within the App. Services and probes may refer to it.
    #[schemars(length(max = 15), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: Option<String>,
    /// Number of the port inside the Pod.
    #[schemars(range(min = 1, max = 65535))]
    pub container_port: i32,
    /// Protocol of the port.
    #[serde(default)]
    pub protocol: Protocol,
}

/// Transport protocol of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs)]
pub enum Protocol {
    #[default]
    Tcp,
    Udp,
    Sctp,
}

/// The audit trail: what the operator did for this App, and why.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuditPolicy {
    /// How many records are kept, counted over all chunks; chunks that hold none of them are removed.
    #[serde(default = "retention")]
    #[schemars(range(min = 1, max = 100_000))]
    pub retention: i32,
}

/// About 13 chunks, a few hundred KiB.
fn retention() -> i32 {
    200
}

impl Default for AuditPolicy {
    fn default() -> Self {
        Self { retention: retention() }
    }
}

/// How a new version replaces the old one: the Deployment's rolling update.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    /// How many Pods may exist above the wanted size during a roll-out: a number, or a percentage of the size.
    #[serde(default = "quarter")]
    #[schemars(with = "int_or_percent::IntOrPercent")]
    pub max_surge: Value,
    /// How many Pods may be missing during a roll-out: a number, or a percentage of the size.
    #[serde(default = "quarter")]
    #[schemars(with = "int_or_percent::IntOrPercent")]
    pub max_unavailable: Value,
    /// Seconds without progress after which a roll-out counts as stuck. Must be greater than minReadySeconds.
    #[serde(default = "progress_deadline")]
    #[schemars(range(min = 1, max = 86400))]
    pub progress_deadline_seconds: i32,
    /// Seconds a new Pod must stay ready before it counts as available.
    #[serde(default)]
    #[schemars(range(min = 0, max = 86400))]
    pub min_ready_seconds: i32,
    /// How many old versions are kept for a roll-back.
    #[serde(default = "revision_history")]
    #[schemars(range(min = 0, max = 100))]
    pub revision_history_limit: i32,
}

fn quarter() -> Value {
    Value::from("25%")
}

/// The Deployment's own default (600 s, `apps/v1`).
fn progress_deadline() -> i32 {
    600
}

/// The Deployment's own default (10, `apps/v1`).
fn revision_history() -> i32 {
    10
}

impl Default for Rollout {
    fn default() -> Self {
        Self {
            max_surge: quarter(),
            max_unavailable: quarter(),
            progress_deadline_seconds: progress_deadline(),
            min_ready_seconds: 0,
            revision_history_limit: revision_history(),
        }
    }
}

/// How the App is sized. This version reads no signals yet: in mode Auto the size stays as it was written last, within
/// its bounds.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Scaling {
    /// Auto sizes the App; DryRun decides and reports, but leaves the size to whoever sets it; Disabled does not even
    /// decide.
    #[serde(default)]
    pub mode: ScalingMode,
    /// Lower bound of the size.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 10000))]
    pub min_replicas: i32,
    /// Upper bound of the size. Left out, it is 10, or minReplicas where that is more; status.effective shows it.
    #[schemars(range(min = 1, max = 10000))]
    pub max_replicas: Option<i32>,
    /// Seconds after a scaling action before the next scale-down.
    #[serde(default = "cooldown")]
    #[schemars(range(min = 0, max = 86400))]
    pub cooldown_seconds: i32,
    /// The signals that decide the size, one of each type. May be empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub metrics: Vec<Metric>,
    /// A size for times without signals: used only after every signal has been missing for a while, and never below the
    /// current size. Must lie within minReplicas and maxReplicas.
    #[schemars(range(min = 1, max = 10000))]
    pub fallback_replicas: Option<i32>,
}

fn one() -> i32 {
    1
}

/// Two minutes: long enough for a new Pod's first samples to count, short enough to follow a falling load.
fn cooldown() -> i32 {
    120
}

impl Default for Scaling {
    fn default() -> Self {
        Self {
            mode: ScalingMode::Auto,
            min_replicas: one(),
            max_replicas: None,
            cooldown_seconds: cooldown(),
            metrics: Vec::new(),
            fallback_replicas: None,
        }
    }
}

impl Scaling {
    /// The upper bound in force: `maxReplicas`, else `max(10, minReplicas)`.
    pub fn effective_max(&self) -> i32 {
        self.max_replicas.unwrap_or_else(|| self.min_replicas.max(10))
    }
}

/// Who sizes the App.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[allow(missing_docs)]
pub enum ScalingMode {
    #[default]
    Auto,
    DryRun,
    Disabled,
}

/// One signal and what it should be.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Metric {
    /// QPS is requests per second and replica, P99Latency the 99th percentile of the response time, ErrorRate the share
    /// of failed requests.
    #[serde(rename = "type")]
    pub kind: MetricType,
    /// The value to keep, as a string: "100" requests per second and replica, "200ms" or "1.5s" of latency, "0.01" or
    /// "1%" of errors.
    #[schemars(length(min = 1, max = 64))]
    pub target: String,
}

/// Type of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[allow(missing_docs)]
pub enum MetricType {
    #[serde(rename = "QPS")]
    Qps,
    P99Latency,
    ErrorRate,
}

mod int_or_percent {
    //! A whole number or a percentage from 0 % to 100 %.
    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    pub(super) struct IntOrPercent;

    impl JsonSchema for IntOrPercent {
        fn schema_name() -> std::borrow::Cow<'static, str> {
            "IntOrPercent".into()
        }

        fn inline_schema() -> bool {
            true
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({
                "x-kubernetes-int-or-string": true,
                "anyOf": [{"type": "integer"}, {"type": "string"}],
                "maxLength": 8,
                "pattern": "^([0-9]|[1-9][0-9]|100)%$",
            })
        }
    }
}

mod template {
    //! The declared parts of `spec.template`. Typed as a whole it would make the CRD ten times as large, too large for
    //! a client-side apply; what is declared here is what the rules of the CRD look at.
    use std::collections::BTreeMap;

    use schemars::JsonSchema;
    use serde::Serialize;

    #[derive(Serialize, JsonSchema)]
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    pub(super) struct Template {
        /// Labels and annotations of the Pods.
        metadata: Option<Metadata>,
        /// The Pod, as in core/v1.
        spec: Option<PodSpec>,
    }

    #[derive(Serialize, JsonSchema)]
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    struct Metadata {
        /// Labels of the Pods. Those of the operator are refused: apps.sentry.io/app and
        /// app.kubernetes.io/{name,instance,managed-by}.
        #[schemars(extend("maxProperties" = 64), inner(length(max = 63)))]
        labels: Option<BTreeMap<String, String>>,
        /// Annotations of the Pods.
        #[schemars(extend("maxProperties" = 64))]
        annotations: Option<BTreeMap<String, String>>,
    }

    #[derive(Serialize, JsonSchema)]
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    struct PodSpec {
        /// The Pod's containers, merged by name. The one named "app" is the main container.
        #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
        containers: Option<Vec<Container>>,
    }

    #[derive(Serialize, JsonSchema)]
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    struct Container {
        /// Name of the container.
        #[schemars(length(min = 1, max = 63))]
        name: String,
        /// Image of the container; the main container may take it from spec.image.
        #[schemars(length(max = 512))]
        image: Option<String>,
    }
}
