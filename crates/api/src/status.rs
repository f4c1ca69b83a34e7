//! The `status` of an App: what the operator reports.
//!
//! The types give the schema of the CRD and the object of the PUT on `/status`. They know nothing of how a value comes
//! about: conditions and phase are derived in [`crate::conditions`], the audit part is
//! [`kubesentry_engine::audit::Ledger`].

use kubesentry_engine::audit::Ledger;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::{Condition, Phase};

/// What the operator observed and did. Written whole, by PUT, and only when its content changes.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AppStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// One word for the whole, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// What is true of the App, in a fixed order, Ready first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The values in force, computed defaults included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effective: Option<Effective>,
    /// Pods that exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// Pods that are ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ready_replicas: Option<i32>,
    /// Pods of the newest version.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub updated_replicas: Option<i32>,
    /// Pods that should exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub desired_replicas: Option<i32>,
    /// readyReplicas/desiredReplicas for people, such as 3/4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// The Deployment's selector, for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// When the App was available for the first time. Set once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub first_available_at: Option<String>,
    /// The last decision about the size, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_decision: Option<LastDecision>,
    /// The audit trail: its head, the latest records in short, and the full records that are not exported yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::Audit>")]
    pub audit: Option<Ledger>,
}

/// The values in force, computed defaults included.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct Effective {
    /// Lower bound of the size.
    #[schemars(range(min = 0))]
    pub min_replicas: i32,
    /// Upper bound of the size.
    #[schemars(range(min = 0))]
    pub max_replicas: i32,
    /// Image of the main container.
    pub image: String,
}

/// The last decision about the size.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct LastDecision {
    /// When it was made.
    #[schemars(extend("format" = "date-time"))]
    pub at: String,
    /// The size before; absent for a new Deployment.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub from: Option<i32>,
    /// The size decided.
    #[schemars(range(min = 0))]
    pub to: i32,
    /// What it means: Create, ScaleUp, ScaleDown, PutBack.
    pub action: String,
    /// Why, as one word.
    pub reason: String,
    /// Why, as a sentence.
    pub message: String,
    /// The bound that shaped the size, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limited_by: Option<String>,
}

mod schema {
    //! The part of the audit ledger that the CRD declares: its records stay open, since they grow fields.
    use schemars::JsonSchema;
    use serde::Serialize;

    #[derive(Serialize, JsonSchema)]
    #[serde(rename_all = "camelCase")]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub(super) struct Audit {
        /// Number of the last record.
        seq: Option<i64>,
        /// Hash of the last record; the next one is chained to it.
        head_hash: Option<String>,
        /// Number of the last record that stands in an exported chunk.
        flushed_seq: Option<i64>,
        /// The latest records in short.
        #[schemars(length(max = 20))]
        recent: Option<Vec<Open>>,
        /// Full records that stand in no chunk yet.
        #[schemars(length(max = 64))]
        unflushed: Option<Vec<Open>>,
    }

    #[derive(Serialize, JsonSchema)]
    #[schemars(inline, extend("x-kubernetes-preserve-unknown-fields" = true))]
    pub(super) struct Open {}
}
