//! A write of the Deployment, told to everybody: one log line, one event, one metric, one audit record.

use kubesentry_api::status::LastDecision;
use kubesentry_engine::audit;
use kubesentry_engine::size::SizeOwner;

use crate::context::Context;
use crate::events::EventType;
use crate::export;
use crate::memory::Memory;
use crate::objects::Deployment;
use crate::reconcile::observe::Observation;
use crate::reconcile::plan::{Action, ChildWrite};

/// A write of the Deployment: one line, one event, one record.
pub(super) fn written(
    context: &Context,
    observation: &Observation,
    after: &Deployment,
    write: &ChildWrite,
    memory: &mut Memory,
) {
    let key = &observation.app.key;
    if write.seen.as_deref() == Some(after.resource_version.as_str()) {
        // Nothing changed by it: a no-op after a crash, or a field that can't be had. Not again on the same state.
        memory.fruitless = Some((write.sent.clone(), after.resource_version.clone()));
        tracing::debug!(app = %key, action = write.action.as_str(), "the apply changed nothing");
        return;
    }
    memory.child_write.wrote(&after.resource_version, observation.mono);
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
    context.tell(&observation.app, EventType::Normal, reason, write.action.as_str(), &message);
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
        Action::TakeOver => {
            ("TakenOver", "took the Deployment over from a deleted App of the same name".to_owned())
        }
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
            (reason, format!("resized the Deployment{from} to {}{why}", replicas(to)))
        }
        Action::PutBack => {
            let fields: Vec<String> = write.fields.iter().take(5).map(ToString::to_string).collect();
            let more = write.fields.len().saturating_sub(fields.len());
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let size = match write.from {
                Some(from) if i64::from(from) != i64::from(to) => format!("; replicas {from} -> {to}"),
                _ => String::new(),
            };
            ("PutBack", format!("put back what another writer changed: {}{more}{size}", fields.join(", ")))
        }
    }
}

fn replicas(n: u32) -> String {
    if n == 1 { "1 replica".to_owned() } else { format!("{n} replicas") }
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
