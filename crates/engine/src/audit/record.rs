//! What one record of the audit trail says, and the hash over it.
//!
//! A caller describes what happened in a [`Draft`]; [`super::Chain::append`] makes it a [`Record`]. This
//! module does not know which records come before or after, nor where they are kept.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical::{sha256_hex, to_canonical_json};

/// The format of a record, its `v`. A field added later must be absent while it says nothing, so that
/// older records keep their hashes.
pub const FORMAT: u32 = 1;
/// Longest message of a record, in bytes of UTF-8. 16 such records fit into a status beside the rest.
pub const MESSAGE_MAX_BYTES: usize = 512;
/// Longest reason of a record, in bytes: reasons are single CamelCase words.
pub const REASON_MAX_BYTES: usize = 64;

/// What was done, or was about to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Action {
    /// A child was made.
    Create,
    /// The size was changed by a decision.
    Resize,
    /// Fields that another writer took were restored.
    PutBack,
    /// The App's own change was carried into a child.
    Update,
    /// A child of another owner became ours: adopted, or left over from a deleted App.
    TakeOver,
    /// Another writer keeps changing our fields; restoring them is slowed down.
    Contended,
    /// The App's deletion was carried out.
    Delete,
    /// The export of the trail was given up at its deadline.
    ExportAbandoned,
    /// The export of the trail was skipped on a person's word.
    SkipExport,
}

/// What was decided about the action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Decision {
    /// Do it.
    Execute,
    /// Not now; it will be looked at again.
    Hold,
    /// Not at all.
    Skip,
    /// It must not be done until something outside changes.
    Block,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// Not known yet: another record will tell.
    Pending,
    /// As decided.
    Succeeded,
    /// It was tried and refused, or had no effect.
    Failed,
    /// Given up before it was done.
    Abandoned,
}

/// The App that a record belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AppRef {
    /// Namespace of the App.
    pub namespace: String,
    /// Name of the App.
    pub name: String,
    /// UID of the App: a recreated App has a trail of its own.
    pub uid: String,
    /// `metadata.generation` that was acted on; kept within 0..=2^53 - 1.
    pub generation: i64,
}

/// The process that acted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Operator {
    /// Name of the instance, as its name in the Lease begins.
    pub instance: String,
    /// `leaseTransitions` of the Lease in whose term it acted; 0 too where there is no election.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lease_transitions: u64,
    /// Version of the program.
    pub version: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for this signature")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// The object that was acted on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// Its kind, such as `Deployment`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its UID, where the object was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// What a caller says; [`super::Chain::append`] makes it a [`Record`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// Whose trail.
    pub app: AppRef,
    /// When, as RFC 3339 in UTC with whole seconds (`2026-01-01T00:00:00Z`).
    pub at: String,
    /// Who.
    pub operator: Operator,
    /// What.
    pub action: Action,
    /// On what.
    pub target: Target,
    /// What was decided.
    pub decision: Decision,
    /// Why: one CamelCase word, cut to [`REASON_MAX_BYTES`].
    pub reason: String,
    /// How it ended.
    pub outcome: Outcome,
    /// For people, cut to [`MESSAGE_MAX_BYTES`]. No values of environment variables, no log text.
    pub message: String,
}

/// One entry of the audit trail. Immutable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Format, [`FORMAT`].
    pub v: u32,
    /// 16 hex digits: the start of SHA-256 over `<app uid>/<seq>`. The same record has the same id
    /// wherever and however often it is delivered, so a receiver can drop what it has.
    pub id: String,
    /// Number within the App's trail, from 1 without gaps.
    pub seq: u64,
    /// `hash` of the record before; 64 zeros for the first.
    pub prev_hash: String,
    /// SHA-256 (64 hex digits) over the 64 characters of `prevHash` followed by the canonical JSON
    /// ([`crate::canonical`]) of this record without `hash`.
    pub hash: String,
    /// Whose trail.
    pub app: AppRef,
    /// When, RFC 3339 in whole seconds.
    pub at: String,
    /// Who.
    pub operator: Operator,
    /// What.
    pub action: Action,
    /// On what.
    pub target: Target,
    /// What was decided.
    pub decision: Decision,
    /// Why: one CamelCase word.
    pub reason: String,
    /// How it ended.
    pub outcome: Outcome,
    /// For people.
    pub message: String,
}

impl Record {
    /// The hash that this content should carry; `None` where it has no canonical form, which no record
    /// of [`super::Chain::append`] comes to.
    pub(super) fn seal(&self) -> Option<String> {
        let mut value = serde_json::to_value(self).ok()?;
        if let Value::Object(fields) = &mut value {
            fields.remove("hash");
        }
        let text = to_canonical_json(&value).ok()?;
        Some(sha256_hex(format!("{}{text}", self.prev_hash).as_bytes()))
    }
}
