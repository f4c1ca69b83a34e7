//! Step 5: tells what was done: logs, events, metrics, audit records, and the status.
//!
//! The status is derived from what was [`Applied`], never from what was planned, and written only when its content
//! changes. Records of a write that the status couldn't take yet are kept for the next pass.

use std::time::Duration;

use kubesentry_api::children::app_path;
use kubesentry_api::conditions::{self, Blocked, Condition, Facts, Status};
use kubesentry_api::names::{API_VERSION, KIND};
use kubesentry_api::reasons::Reason;
use kubesentry_api::status::{AppStatus, Effective, LastDecision};
use kubesentry_engine::audit::{self, FLUSH_BYTES, Ledger};
use kubesentry_engine::size::{Replicas, SizeOwner};
use serde_json::{Value, json};

use super::Outcome;
use super::apply::{Applied, ChildOutcome};
use super::judge::{Hold, Judgement, Verdict, Whose};
use super::observe::Observation;
use super::plan::{Action, ChildWrite};
use crate::context::Context;
use crate::error::{Forbidden, RequestError};
use crate::events::{Event, EventType};
use crate::export::{self, Release};
use crate::memory::{Memory, Refused, Seen};
use crate::objects::Deployment;

/// The whole status stays below this, whatever happens.
const STATUS_MAX: usize = 32 * 1024;
/// Records that may wait for a sink that stays away; then they are printed (the CRD allows 64).
const UNFLUSHED_MAX: usize = 48;
/// A refused Deployment is tried again after this long though nothing changed.
const REJECTED_RETRY: Duration = Duration::from_secs(300);
/// An API server that starts forbids everything for a moment (0.3 to 0.7 s were seen): no fault before this.
const FORBIDDEN_GRACE: Duration = Duration::from_secs(5);

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
            wake_after = earlier(wake_after, *wait);
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
            written(context, observation, after, write, memory);
        }
        ChildOutcome::Refused(error, write) => {
            if let Some(outcome) = refused(observation, judgement, error, write, memory) {
                return outcome;
            }
        }
    }
    if let Some(refused) = &memory.refused {
        wake_after = earlier(
            wake_after,
            refused.retry_at.saturating_duration_since(observation.mono),
        );
    }
    if !matches!(applied.child(), ChildOutcome::Untouched) {
        wake_after = wake_after.or(memory.contention.next_change(observation.mono));
    }

    let status = status_of(context, observation, judgement, child, memory).await;
    let version = match put(context, observation, applied, &status).await {
        Ok(version) => version,
        Err(RequestError::NotFound(_)) => return Outcome::Done { wake_after: None },
        Err(error) => return Outcome::Retry(error.to_string()),
    };
    memory.unreported = crate::memory::Unreported::default();
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

/// A write of the Deployment: one line, one event, one record.
fn written(
    context: &Context,
    observation: &Observation,
    after: &Deployment,
    write: &ChildWrite,
    memory: &mut Memory,
) {
    let key = &observation.app.key;
    if write.seen.as_deref() == Some(after.resource_version.as_str()) {
        // Nothing changed by it: a no-op after a crash, or a field that can't be had. Not again on the same state.
        memory.fruitless = Some((write.hash.clone(), after.resource_version.clone()));
        tracing::debug!(app = %key, action = write.action.as_str(), "the apply changed nothing");
        return;
    }
    memory
        .child_write
        .wrote(&after.resource_version, observation.mono);
    memory.fruitless = None;
    memory.refused = None;
    if !write.fields.is_empty() {
        memory.contention.put_back(observation.mono);
    }
    let (reason, message) = told(write);
    tracing::info!(
        app = %key,
        uid = observation.app.uid,
        generation = observation.app.generation,
        action = write.action.as_str(),
        reason,
        from = write.from,
        to = write.to(),
        limited_by = write.limited_by(),
        "{message}"
    );
    context.telemetry.decided(key, write.action.as_str(), reason);
    send(
        context,
        observation,
        EventType::Normal,
        reason,
        write.action.as_str(),
        &message,
    );
    let action = match write.action {
        Action::Create => audit::Action::Create,
        Action::TakeOver => audit::Action::TakeOver,
        Action::Update => audit::Action::Update,
        Action::Resize => audit::Action::Resize,
        Action::PutBack => audit::Action::PutBack,
    };
    let mut draft = export::draft(context, observation, action, reason, message.clone());
    draft.target.uid = Some(after.uid.clone());
    memory.unreported.drafts.push(draft);
    if let Some(action) = size_action(write) {
        memory.unreported.decision = Some(LastDecision {
            at: observation.timestamp(),
            from: write.from,
            to: i32::try_from(write.to()).unwrap_or(i32::MAX),
            action: action.to_owned(),
            reason: reason.to_owned(),
            message,
            limited_by: write.limited_by().map(str::to_owned),
        });
    }
}

/// Reason and sentence of a write.
fn told(write: &ChildWrite) -> (&'static str, String) {
    let to = write.to();
    match write.action {
        Action::Create => ("Created", format!("created the Deployment with {}", replicas(to))),
        Action::TakeOver => (
            "TakenOver",
            "took the Deployment over from a deleted App of the same name".to_owned(),
        ),
        Action::Update => ("Updated", "applied the changed App to the Deployment".to_owned()),
        Action::Resize => {
            let reason = match write.size.owner {
                SizeOwner::Pinned => "Pinned",
                _ => "Resized",
            };
            let why = match (write.size.owner, write.limited_by()) {
                (SizeOwner::Pinned, _) => ": spec.replicas pins it".to_owned(),
                (_, Some(limit)) => format!(": {limit}"),
                _ => String::new(),
            };
            let from = write.from.map(|from| format!(" from {from}")).unwrap_or_default();
            (
                reason,
                format!("resized the Deployment{from} to {}{why}", replicas(to)),
            )
        }
        Action::PutBack => {
            let fields: Vec<String> = write.fields.iter().take(5).map(ToString::to_string).collect();
            let more = write.fields.len().saturating_sub(fields.len());
            let more = if more > 0 {
                format!(" and {more} more")
            } else {
                String::new()
            };
            let size = match write.from {
                Some(from) if i64::from(from) != i64::from(to) => format!("; replicas {from} -> {to}"),
                _ => String::new(),
            };
            (
                "PutBack",
                format!(
                    "put back what another writer changed: {}{more}{size}",
                    fields.join(", ")
                ),
            )
        }
    }
}

fn replicas(n: u32) -> String {
    if n == 1 {
        "1 replica".to_owned()
    } else {
        format!("{n} replicas")
    }
}

/// What a write means for the size; `None` where it left the size alone.
fn size_action(write: &ChildWrite) -> Option<&'static str> {
    let to = i64::from(write.to());
    match (write.action, write.from.map(i64::from)) {
        (_, None) => Some("Create"),
        (_, Some(from)) if from == to => None,
        (Action::PutBack, _) => Some("PutBack"),
        (_, Some(from)) if from < to => Some("ScaleUp"),
        _ => Some("ScaleDown"),
    }
}

/// The API server did not take the Deployment. `Some` where the pass ends here.
fn refused(
    observation: &Observation,
    judgement: &Judgement,
    error: &RequestError,
    write: &ChildWrite,
    memory: &mut Memory,
) -> Option<Outcome> {
    let intent = (write.hash.clone(), write.size.is_ours().then(|| write.to()));
    let before = memory.refused.take().filter(|refused| refused.intent == intent);
    let since = before.as_ref().map_or(observation.mono, |refused| refused.since);
    let times = before.map_or(0, |refused| refused.times) + 1;
    let (blocked, is_invalid, delay) = match error {
        RequestError::Invalid { message, causes } => {
            let spec = judgement.understood.valid().map(|(valid, _)| &valid.spec);
            let told: Vec<String> = match spec {
                Some(spec) => causes
                    .iter()
                    .map(|(field, words)| format!("{}: {words}", app_path(field, spec)))
                    .collect(),
                None => Vec::new(),
            };
            let words = if told.is_empty() {
                message.clone()
            } else {
                told.join("; ")
            };
            let message = format!("the API server refused the Deployment: {words}");
            (
                Blocked {
                    reason: Reason::DeploymentRejected,
                    message,
                },
                true,
                REJECTED_RETRY,
            )
        }
        RequestError::Forbidden { message, why } => {
            let reason = match why {
                Forbidden::Quota => Reason::QuotaExceeded,
                Forbidden::NamespaceTerminating => Reason::NamespaceTerminating,
                Forbidden::Other => Reason::Forbidden,
            };
            let young = observation.mono.saturating_duration_since(since) < FORBIDDEN_GRACE;
            let delay = Duration::from_secs(1 << times.min(8)).min(REJECTED_RETRY);
            if *why == Forbidden::Other && young {
                // Remembered, so that the grace ends, but not told yet.
                memory.refused = Some(Refused {
                    intent,
                    blocked: Blocked {
                        reason,
                        message: message.clone(),
                    },
                    is_invalid: false,
                    retry_at: observation.mono,
                    since,
                    times,
                });
                return Some(Outcome::Retry(error.to_string()));
            }
            (
                Blocked {
                    reason,
                    message: message.clone(),
                },
                false,
                delay,
            )
        }
        error => return Some(Outcome::Retry(error.to_string())),
    };
    tracing::warn!(app = %observation.app.key, uid = observation.app.uid, reason = %blocked.reason, "{}", blocked.message);
    let retry_at = observation.mono + delay;
    memory.refused = Some(Refused {
        intent,
        blocked,
        is_invalid,
        retry_at,
        since,
        times,
    });
    None
}

async fn status_of(
    context: &Context,
    observation: &Observation,
    judgement: &Judgement,
    child: Option<&Deployment>,
    memory: &Memory,
) -> AppStatus {
    let app = &observation.app;
    let before = &app.status;
    let ours = match judgement.whose {
        Whose::SomebodyElses => None,
        _ => child,
    };
    let is_available = ours
        .and_then(|child| child.facts.available.as_ref())
        .is_some_and(|available| available.status == Status::True);
    let first_available_at = before
        .first_available_at
        .clone()
        .or_else(|| is_available.then(|| observation.timestamp()));
    let facts = facts(observation, judgement, ours, memory, first_available_at.is_some());
    let (conditions, phase) = conditions::derive(&facts, &before.conditions, &observation.timestamp());
    let policy = judgement.understood.valid().map(|(valid, _)| &valid.policy);
    let desired = judgement
        .size
        .and_then(|size| size.replicas)
        .map(number)
        .or(ours.map(|child| child.replicas));
    let mut status = AppStatus {
        observed_generation: Some(app.generation),
        phase: Some(phase),
        effective: match (policy, judgement.understood.valid()) {
            (Some(policy), Some((valid, _))) => Some(Effective {
                min_replicas: number(policy.min),
                max_replicas: number(policy.max),
                image: valid.workload.image().to_owned(),
            }),
            _ => before.effective.clone(),
        },
        replicas: Some(ours.map_or(0, |child| child.facts.replicas)),
        ready_replicas: Some(ours.map_or(0, |child| child.facts.ready)),
        updated_replicas: Some(ours.map_or(0, |child| child.facts.updated)),
        desired_replicas: desired,
        ready: desired.map(|desired| format!("{}/{desired}", ours.map_or(0, |child| child.facts.ready))),
        selector: ours.map(|child| child.selector.clone()),
        first_available_at,
        last_decision: memory
            .unreported
            .decision
            .clone()
            .or_else(|| before.last_decision.clone()),
        audit: before.audit.clone(),
        conditions,
    };
    status.audit = ledger_of(context, observation, &status, memory).await;
    status
}

fn facts(
    observation: &Observation,
    judgement: &Judgement,
    ours: Option<&Deployment>,
    memory: &Memory,
    was_available: bool,
) -> Facts {
    let young = |refused: &&Refused| {
        refused.blocked.reason != Reason::Forbidden
            || observation.mono.saturating_duration_since(refused.since) >= FORBIDDEN_GRACE
    };
    let refused = memory.refused.as_ref().filter(young);
    let refused_as = |is_invalid: bool| {
        refused
            .filter(|refused| refused.is_invalid == is_invalid)
            .map(|refused| refused.blocked.clone())
    };
    let (invalid, name_conflict) = match &judgement.verdict {
        Verdict::Hold(Hold::Invalid(blocked)) => (Some(blocked.clone()), None),
        Verdict::Hold(Hold::Conflict(blocked)) => (None, Some(blocked.clone())),
        Verdict::Hold(Hold::Suspended) | Verdict::Align | Verdict::Release | Verdict::Leave => {
            (refused_as(true), None)
        }
    };
    let policy = judgement.understood.valid().map(|(valid, _)| &valid.policy);
    Facts {
        generation: observation.app.generation,
        deleting: observation.app.deletion.is_some(),
        suspended: matches!(judgement.verdict, Verdict::Hold(Hold::Suspended)),
        invalid,
        name_conflict,
        stalled: refused_as(false),
        contended: memory.contention.describe(),
        deployment: ours.map(|child| child.facts.clone()),
        size: policy
            .zip(judgement.size)
            .map(|(policy, size)| (size.owner, policy.mode, size.limit)),
        was_available,
    }
}

/// The ledger with this pass's records in it.
///
/// Records are carried away once a written status holds them, never before: a crash between chunk and status would give
/// the same numbers to other records.
async fn ledger_of(
    context: &Context,
    observation: &Observation,
    status: &AppStatus,
    memory: &Memory,
) -> Option<Ledger> {
    let mut ledger = status.audit.clone();
    if let Some(ledger) = &mut ledger {
        make_room(context, observation, status, ledger).await;
    }
    for draft in memory.unreported.drafts.clone() {
        ledger.get_or_insert_default().append(draft);
    }
    if became(
        &observation.app.status.conditions,
        &status.conditions,
        "Contended",
        Status::True,
    ) {
        let message = memory.contention.describe().unwrap_or_default();
        let draft = export::draft(
            context,
            observation,
            audit::Action::Contended,
            "ForeignWriter",
            message,
        );
        ledger.get_or_insert_default().append(draft);
    }
    ledger
}

/// Carries the waiting records away where there are too many; prints them where the sink stays away.
async fn make_room(context: &Context, observation: &Observation, status: &AppStatus, ledger: &mut Ledger) {
    let rest = AppStatus {
        audit: Some(Ledger {
            unflushed: Vec::new(),
            ..ledger.clone()
        }),
        ..status.clone()
    };
    // Half of what the rest leaves free: a pass adds records after this.
    let room = STATUS_MAX.saturating_sub(serde_json::to_vec(&rest).map_or(0, |json| json.len())) / 2;
    if !ledger.needs_flush(FLUSH_BYTES.min(room)) {
        return;
    }
    if let Err(error) = export::flush(context, observation, ledger).await {
        tracing::warn!(app = %observation.app.key, %error, "audit records could not be exported and stay in the status");
        if ledger.unflushed.len() >= UNFLUSHED_MAX || ledger.unflushed_bytes() > room {
            export::dump(ledger);
        }
    }
}

fn number(replicas: Replicas) -> i32 {
    i32::try_from(replicas.get()).unwrap_or(i32::MAX)
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
    let find = |conditions: &[Condition]| {
        conditions
            .iter()
            .find(|condition| condition.kind == "Ready")
            .cloned()
    };
    let (before, Some(after)) = (find(&observation.app.status.conditions), find(&status.conditions)) else {
        return;
    };
    let same = before.is_some_and(|before| {
        before.status == after.status && before.reason == after.reason && before.message == after.message
    });
    if after.status == Status::False && !same {
        tracing::warn!(app = %observation.app.key, uid = observation.app.uid, reason = after.reason, "not ready: {}", after.message);
        send(
            context,
            observation,
            EventType::Warning,
            &after.reason,
            "Report",
            &after.message,
        );
    }
}

fn became(before: &[Condition], after: &[Condition], kind: &str, status: Status) -> bool {
    let has = |conditions: &[Condition]| conditions.iter().any(|c| c.kind == kind && c.status == status);
    !has(before) && has(after)
}

fn send(
    context: &Context,
    observation: &Observation,
    kind: EventType,
    reason: &str,
    action: &str,
    note: &str,
) {
    let sent = context.events.send(Event {
        key: observation.app.key.clone(),
        uid: observation.app.uid.clone(),
        kind,
        reason: reason.to_owned(),
        action: action.to_owned(),
        note: note.to_owned(),
    });
    if !sent {
        context.telemetry.event_dropped();
    }
}

fn earlier(delay: Option<Duration>, other: Duration) -> Option<Duration> {
    Some(delay.map_or(other, |delay| delay.min(other)))
}
