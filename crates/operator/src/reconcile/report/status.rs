//! The status of an App, derived from what was observed, judged and done.

use kubesentry_api::conditions::{self, Facts, Status};
use kubesentry_api::status::{AppStatus, Effective};
use kubesentry_engine::size::Replicas;

use super::ledger::ledger_of;
use crate::context::Context;
use crate::memory::Memory;
use crate::objects::Deployment;
use crate::reconcile::judge::{Hold, Judgement, Verdict, Whose};
use crate::reconcile::observe::Observation;

/// The whole status, to be compared with what stands on the server.
pub(super) async fn status_of(
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
    let first_available_at =
        before.first_available_at.clone().or_else(|| is_available.then(|| observation.timestamp()));
    let facts = facts(observation, judgement, ours, memory, first_available_at.is_some());
    let (conditions, phase) = conditions::derive(&facts, &before.conditions, &observation.timestamp());
    let desired =
        judgement.size.and_then(|size| size.replicas).map(number).or(ours.map(|child| child.replicas));
    let mut status = AppStatus {
        observed_generation: Some(app.generation),
        phase: Some(phase),
        effective: match judgement.understood.valid() {
            Some((valid, _)) => Some(Effective {
                min_replicas: number(valid.policy.min),
                max_replicas: number(valid.policy.max),
                image: valid.workload.image().to_owned(),
            }),
            None => before.effective.clone(),
        },
        replicas: Some(ours.map_or(0, |child| child.facts.replicas)),
        ready_replicas: Some(ours.map_or(0, |child| child.facts.ready)),
        updated_replicas: Some(ours.map_or(0, |child| child.facts.updated)),
        desired_replicas: desired,
        ready: desired.map(|desired| format!("{}/{desired}", ours.map_or(0, |child| child.facts.ready))),
        selector: ours.map(|child| child.selector.clone()),
        first_available_at,
        last_decision: memory.unreported.decision.clone().or_else(|| before.last_decision.clone()),
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
    let refused = memory.refused.as_ref().filter(|refused| !refused.is_in_grace(observation.mono));
    let refused_as = |is_invalid: bool| {
        refused.filter(|refused| refused.is_invalid == is_invalid).map(|refused| refused.blocked.clone())
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
        size: policy.zip(judgement.size).map(|(policy, size)| (size.owner, policy.mode, size.limit)),
        was_available,
    }
}

fn number(replicas: Replicas) -> i32 {
    i32::try_from(replicas.get()).unwrap_or(i32::MAX)
}
