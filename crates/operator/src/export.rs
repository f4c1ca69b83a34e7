//! Carries audit records out of the status, and lets a deleted App go.
//!
//! Records become immutable ConfigMaps `audit-<uid>-<first number>` in the operator's namespace. On deletion the rest of
//! the trail is exported first, then our finalizer goes; whatever is broken, it goes at the deadline at the latest, and
//! what could not be exported is printed. A put that finds its chunk already there is harmless: the chunk says how far
//! it reaches. Where it holds other records of these numbers, the new ones go beside it, under a name of their own.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use kubesentry_api::names::{ANNOTATION_SKIP_AUDIT_EXPORT, FINALIZER, LABEL_APP, NAME_MAX};
use kubesentry_engine::audit::{
    Action, AppRef, Chunk, Decision, Draft, Ledger, Manifest, Operator, Outcome, Target,
};
use serde_json::{Value, json};

use crate::context::{Context, VERSION};
use crate::error::RequestError;
use crate::events::EventType;
use crate::memory::Memory;
use crate::reconcile::observe::Observation;
use crate::timestamps::whole_seconds;

/// Label of every chunk.
pub const LABEL_AUDIT: &str = "apps.sentry.io/audit";
/// Label with the UID of the App.
pub const LABEL_AUDIT_UID: &str = "apps.sentry.io/audit-uid";

/// Waits between attempts; the last one repeats.
const RETRIES: [u64; 6] = [1, 2, 4, 8, 15, 30];
/// Longest that one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(5);
/// Chunks that one export may find already there and shorter than its own.
const OVERLAPS: usize = 10;

/// Chunks that the last one's manifest looks up: far more than a trail has, and little enough for one attempt.
const LOOKED_UP: usize = 1000;

/// What became of a release.
#[derive(Debug)]
pub enum Release {
    /// Our finalizer is gone.
    Done,
    /// The App changed in between: look again.
    Again(RequestError),
    /// The export has not succeeded yet.
    Later {
        /// When to try again.
        wait: Duration,
        /// Why it has not succeeded.
        why: String,
    },
}

/// A record about an App, to be sealed by its ledger.
pub fn draft(
    context: &Context,
    observation: &Observation,
    action: Action,
    reason: &str,
    message: String,
) -> Draft {
    let app = &observation.app;
    Draft {
        app: AppRef {
            namespace: app.key.namespace.to_string(),
            name: app.key.name.to_string(),
            uid: app.uid.clone(),
            generation: app.generation,
        },
        at: observation.timestamp(),
        operator: Operator {
            instance: context.instance.clone(),
            lease_transitions: context.door.term().0,
            version: VERSION.to_owned(),
        },
        action,
        target: Target {
            kind: "Deployment".to_owned(),
            name: app.key.name.to_string(),
            uid: observation.child.as_ref().map(|child| child.uid.clone()),
        },
        decision: Decision::Execute,
        reason: reason.to_owned(),
        outcome: Outcome::Succeeded,
        message,
    }
}

/// Moves the waiting records of a ledger into a chunk.
pub async fn flush(
    context: &Context,
    observation: &Observation,
    ledger: &mut Ledger,
) -> Result<(), RequestError> {
    put(context, observation, ledger, false).await.inspect_err(|_| context.telemetry.audit_write_failed())
}

/// Prints the waiting records, one line each, and drops them from the ledger: for a sink that stays away.
pub fn dump(ledger: &mut Ledger) {
    for record in &ledger.unflushed {
        let record = serde_json::to_string(record).unwrap_or_default();
        tracing::warn!(record, "an audit record could not be exported and stands here instead");
    }
    ledger.flushed(ledger.seq);
}

/// Exports the trail of a deleted App and removes our finalizer.
pub async fn release(context: &Context, observation: &Observation, memory: &mut Memory) -> Release {
    let begun = *memory.export.begun.get_or_insert(observation.mono);
    let mut ledger = observation.app.status.audit.clone().unwrap_or_default();
    for draft in memory.unreported.drafts.iter().cloned() {
        ledger.append(draft);
    }
    let annotation = observation.app.annotations.get(ANNOTATION_SKIP_AUDIT_EXPORT);
    if annotation.is_some_and(|value| value != "false") {
        let message = format!(
            "the export was skipped by the annotation {ANNOTATION_SKIP_AUDIT_EXPORT}; what was not exported stands in the operator's log"
        );
        announce(context, observation, "AuditExportSkipped", &message);
        ledger.append(last_words(context, observation));
        ledger.append(draft(context, observation, Action::SkipExport, "AuditExportSkipped", message));
        dump(&mut ledger);
        return remove_finalizer(context, observation).await;
    }
    if let Some(next) = memory.export.next_at.filter(|next| *next > observation.mono) {
        return Release::Later {
            wait: next - observation.mono,
            why: "the next attempt is not due yet".to_owned(),
        };
    }
    ledger.append(last_words(context, observation));
    let outcome = match tokio::time::timeout(ATTEMPT, put(context, observation, &mut ledger, true)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(RequestError::timeout(ATTEMPT)),
    };
    let Err(error) = outcome else {
        tracing::info!(app = %observation.app.key, uid = observation.app.uid, records = ledger.seq, "the audit trail is exported");
        return remove_finalizer(context, observation).await;
    };
    context.telemetry.audit_write_failed();
    let since_deletion = observation
        .app
        .deletion
        .and_then(|deletion| Duration::try_from(observation.now.duration_since(deletion)).ok())
        .unwrap_or_default();
    let held = since_deletion.max(observation.mono.saturating_duration_since(begun));
    if held >= context.export_deadline {
        let message = format!(
            "the export was given up after {} s: {error}; the records stand in the operator's log",
            held.as_secs()
        );
        announce(context, observation, "AuditExportAbandoned", &message);
        context.telemetry.audit_abandoned();
        let given_up = draft(context, observation, Action::ExportAbandoned, "AuditExportAbandoned", message);
        ledger.append(Draft { outcome: Outcome::Abandoned, ..given_up });
        dump(&mut ledger);
        return remove_finalizer(context, observation).await;
    }
    let step = RETRIES.get(memory.export.attempts as usize).or(RETRIES.last()).copied().unwrap_or(30);
    // Never past the deadline: the last attempt comes right at it.
    let wait = Duration::from_secs(step)
        .min(context.export_deadline.saturating_sub(held))
        .max(Duration::from_millis(100));
    memory.export.attempts += 1;
    memory.export.next_at = Some(observation.mono + wait);
    Release::Later { wait, why: error.to_string() }
}

/// The record of the deletion itself. Its time is the deletion's, so that each attempt makes the same record.
fn last_words(context: &Context, observation: &Observation) -> Draft {
    let message = "the App was deleted; its Deployment goes by garbage collection".to_owned();
    let at = observation.app.deletion.map_or_else(|| observation.timestamp(), whole_seconds);
    let mut draft = draft(context, observation, Action::Delete, "Deleted", message);
    // What the Deployment is by then changes between attempts.
    draft.target.uid = None;
    Draft { at, ..draft }
}

fn announce(context: &Context, observation: &Observation, reason: &str, message: &str) {
    tracing::warn!(app = %observation.app.key, uid = observation.app.uid, reason, "{message}");
    context.tell(&observation.app, EventType::Warning, reason, "Export", message);
}

async fn put(
    context: &Context,
    observation: &Observation,
    ledger: &mut Ledger,
    is_last: bool,
) -> Result<(), RequestError> {
    for _ in 0..OVERLAPS {
        let Some(chunk) = ledger.chunk() else {
            return Ok(());
        };
        let manifest = if is_last {
            let mut there = chunks_before(context, observation, chunk.first_seq).await?;
            there.push((chunk.first_seq, chunk.last_seq));
            Some(Manifest::over(there, &ledger.chain()))
        } else {
            None
        };
        let create = async |name: &str| {
            let body = config_map(context, observation, name, &chunk, manifest.as_ref());
            context.door.create_config_map(&context.namespace, &body).await
        };
        let name = format!("audit-{}-{}", observation.app.uid, chunk.first_seq);
        match create(&name).await {
            Ok(()) => ledger.flushed(chunk.last_seq),
            Err(RequestError::AlreadyExists(_)) => match chunk_of(context, &name).await? {
                Some(there) if ledger.agrees_with(&there) => ledger.flushed(there.last_seq),
                // Other records have these numbers: the status was wiped or restored, or the name is no chunk's. With
                // its head in the name this chunk gets a place of its own, the same one in every attempt.
                _ => {
                    let head = chunk.head_hash.get(..16).unwrap_or(&chunk.head_hash);
                    match create(&format!("{name}-{head}")).await {
                        Ok(()) | Err(RequestError::AlreadyExists(_)) => ledger.flushed(chunk.last_seq),
                        Err(error) => return Err(error),
                    }
                }
            },
            Err(error) => return Err(error),
        }
    }
    Err(RequestError::Outage("too many chunks stand there already".to_owned()))
}

fn config_map(
    context: &Context,
    observation: &Observation,
    name: &str,
    chunk: &Chunk,
    manifest: Option<&Manifest>,
) -> Value {
    let app = &observation.app;
    let lines: Vec<String> =
        chunk.records.iter().filter_map(|record| serde_json::to_string(record).ok()).collect();
    let mut data = json!({
        "firstSeq": chunk.first_seq.to_string(),
        "lastSeq": chunk.last_seq.to_string(),
        "headHash": chunk.head_hash,
        "records.jsonl": lines.join("\n") + "\n",
    });
    if let Some(manifest) = manifest {
        data["manifest.json"] = json!(serde_json::to_string(manifest).unwrap_or_default());
    }
    let mut labels = json!({
        LABEL_AUDIT: "true",
        "apps.sentry.io/audit-namespace": &*app.key.namespace,
        LABEL_AUDIT_UID: app.uid,
    });
    // A name that an older CRD let through may be no label value; the records name the App in any case.
    if app.key.name.len() <= NAME_MAX {
        labels[LABEL_APP] = json!(&*app.key.name);
    }
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": context.namespace, "labels": labels},
        "immutable": true,
        "data": data,
    })
}

/// First and last number of the chunks that stand before `first_seq`, in one unbroken row from the first record on. Looked
/// up, not remembered: records that a sink would not take for long were printed instead, and stand in no chunk.
async fn chunks_before(
    context: &Context,
    observation: &Observation,
    first_seq: u64,
) -> Result<Vec<(u64, u64)>, RequestError> {
    let mut found = Vec::new();
    let mut next = 1;
    while next < first_seq && found.len() < LOOKED_UP {
        match chunk_of(context, &format!("audit-{}-{next}", observation.app.uid)).await {
            Ok(Some(chunk)) if chunk.last_seq >= next => {
                found.push((chunk.first_seq, chunk.last_seq));
                next = chunk.last_seq + 1;
            }
            Ok(_) | Err(RequestError::NotFound(_)) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// A chunk that is already there; `None` where it can't be read as one.
async fn chunk_of(context: &Context, name: &str) -> Result<Option<Chunk>, RequestError> {
    let api: Api<ConfigMap> = Api::namespaced(context.reader.clone(), &context.namespace);
    let data = api.get(name).await?.data.unwrap_or_default();
    let read = || {
        let lines = data.get("records.jsonl")?.lines();
        Some(Chunk {
            first_seq: data.get("firstSeq")?.parse().ok()?,
            last_seq: data.get("lastSeq")?.parse().ok()?,
            head_hash: data.get("headHash")?.clone(),
            records: lines.map(|line| serde_json::from_str(line).ok()).collect::<Option<_>>()?,
        })
    };
    Ok(read())
}

async fn remove_finalizer(context: &Context, observation: &Observation) -> Release {
    let app = &observation.app;
    let Some(index) = app.finalizer_index() else {
        return Release::Done;
    };
    let path = format!("/metadata/finalizers/{index}");
    let patch = json!([
        {"op": "test", "path": path, "value": FINALIZER},
        {"op": "remove", "path": path},
    ]);
    match context.door.patch_app(&app.key, &patch).await {
        Ok(_) | Err(RequestError::NotFound(_)) => Release::Done,
        // A failed test of a JSON patch is a 422: the list changed in between.
        Err(error @ (RequestError::Conflict(_) | RequestError::Invalid { .. })) => Release::Again(error),
        Err(error) => Release::Later { wait: Duration::from_secs(1), why: error.to_string() },
    }
}
