//! Step 5: tells what was done: logs, events, metrics, audit records, and the status.
//!
//! The status is derived from what was [`Applied`], never from what was planned, and written only when its content
//! changes. Records of a write that the status couldn't take yet are kept for the next pass.

mod ledger;
mod refusal;
mod status;
mod told;

use std::time::Duration;

use kubesentry_api::conditions::{Condition, Status};
use kubesentry_api::names::{API_VERSION, KIND};
use kubesentry_api::status::AppStatus;
use serde_json::{Value, json};

use super::Outcome;
use super::apply::{Applied, ChildOutcome};
use super::judge::Judgement;
use super::observe::Observation;
use crate::context::Context;
use crate::error::RequestError;
use crate::events::EventType;
use crate::export::Release;
use crate::memory::{Memory, Seen, Unreported};

/// Reports a pass.
pub async fn report(
    context: &Context,
    observation: &Observation,
    judgement: &Judgement,
    applied: &Applied,
    memory: &mut Memory,
    mut wake_after: Option<Duration>,
) -> Outcome {
    match applied.release() {
        Some(Release::Done) => return Outcome::Done { wake_after: None },
        Some(Release::Again(error)) => return Outcome::Retry(error.to_string()),
        Some(Release::Later { wait, why }) => {
            tracing::warn!(app = %observation.app.key, uid = observation.app.uid, %why, "the audit trail is not exported yet");
            wake_after = super::earlier(wake_after, *wait);
        }
        None => {}
    }
    if let Some(error) = applied.failure() {
        return match error {
            RequestError::NotFound(_) => Outcome::Done { wake_after: None },
            error => Outcome::Retry(error.to_string()),
        };
    }
    if let Some(writer) = applied.writer() {
        memory.contention.set_writer(Some(writer.to_owned()));
    }
    let mut child = observation.child.as_deref();
    match applied.child() {
        ChildOutcome::Untouched => {}
        ChildOutcome::Written(after, write) => {
            child = Some(after.as_ref());
            told::written(context, observation, after, write, memory);
        }
        ChildOutcome::Refused(error, write) => {
            if let Some(outcome) = refusal::refused(observation, judgement, error, write, memory) {
                return outcome;
            }
        }
    }
    if let Some(refused) = &memory.refused {
        wake_after = super::earlier(wake_after, refused.retry_at.saturating_duration_since(observation.mono));
    }
    if !matches!(applied.child(), ChildOutcome::Untouched) {
        wake_after = wake_after.or(memory.contention.next_change(observation.mono));
    }

    let status = status::status_of(context, observation, judgement, child, memory).await;
    let version = match put(context, observation, applied, &status).await {
        Ok(version) => version,
        Err(RequestError::NotFound(_)) => return Outcome::Done { wake_after: None },
        Err(error) => return Outcome::Retry(error.to_string()),
    };
    memory.unreported = Unreported::default();
    if let Some(version) = &version {
        memory.app_write.wrote(version, observation.mono);
        tell_transitions(context, observation, &status);
    }
    context.telemetry.reported(&observation.app.key, &status);
    memory.settled = Some(Seen {
        app: version
            .or(applied.app_version().map(str::to_owned))
            .unwrap_or_else(|| observation.app.resource_version.clone()),
        child: child.map(|child| child.resource_version.clone()),
        scaler: observation.scaler.clone(),
    });
    Outcome::Done { wake_after }
}

/// Writes the status if its content changed; answers the new resourceVersion then.
async fn put(
    context: &Context,
    observation: &Observation,
    applied: &Applied,
    status: &AppStatus,
) -> Result<Option<String>, RequestError> {
    let app = &observation.app;
    let status = serde_json::to_value(status).unwrap_or(Value::Null);
    if status == app.raw_status {
        return Ok(None);
    }
    // Whole object, status only: a PUT removes what is left out, and `resourceVersion` is its only guard.
    let body = json!({
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": &*app.key.name,
            "namespace": &*app.key.namespace,
            "resourceVersion": applied.app_version().unwrap_or(&app.resource_version),
        },
        "status": status,
    });
    context.door.put_app_status(&app.key, &body).await.map(Some)
}

/// One event where Ready turned False, or False for another reason.
fn tell_transitions(context: &Context, observation: &Observation, status: &AppStatus) {
    let find =
        |conditions: &[Condition]| conditions.iter().find(|condition| condition.kind == "Ready").cloned();
    let (before, Some(after)) = (find(&observation.app.status.conditions), find(&status.conditions)) else {
        return;
    };
    let same = before.is_some_and(|before| {
        before.status == after.status && before.reason == after.reason && before.message == after.message
    });
    if after.status == Status::False && !same {
        tracing::warn!(app = %observation.app.key, uid = observation.app.uid, reason = after.reason, "not ready: {}", after.message);
        context.tell(&observation.app, EventType::Warning, &after.reason, "Report", &after.message);
    }
}
