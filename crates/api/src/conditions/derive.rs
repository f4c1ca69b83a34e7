//! From facts to conditions and phase.

use std::fmt;

use kubesentry_engine::size::{Limit, Mode, SizeOwner};

use super::{Condition, ConditionType, Phase, Status};
use crate::reasons::Reason;

/// A fault that keeps everything else from being done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// Why, as one word.
    pub reason: Reason,
    /// Why, as a sentence.
    pub message: String,
}

/// A condition of the Deployment that is passed through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passed {
    /// Its status.
    pub status: Status,
    /// Its reason.
    pub reason: String,
    /// Its message.
    pub message: String,
}

/// What is known of the Deployment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeploymentFacts {
    /// `metadata.generation`.
    pub generation: i64,
    /// `status.observedGeneration`; `None` until its controller has seen it.
    pub observed_generation: Option<i64>,
    /// `spec.replicas`.
    pub wanted: i32,
    /// `status.replicas`.
    pub replicas: i32,
    /// `status.readyReplicas`.
    pub ready: i32,
    /// `status.updatedReplicas`.
    pub updated: i32,
    /// Its condition Available.
    pub available: Option<Passed>,
    /// Its condition Progressing.
    pub progressing: Option<Passed>,
}

impl DeploymentFacts {
    /// Pods of an older version exist.
    fn is_rolling_out(&self) -> bool {
        self.updated < self.replicas
    }

    fn is_resizing(&self) -> bool {
        self.wanted != self.replicas && !self.is_rolling_out()
    }

    fn is_observed(&self) -> bool {
        self.observed_generation.is_some_and(|seen| seen >= self.generation)
    }
}

/// Everything that conditions and phase are derived from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// `metadata.generation` of the App.
    pub generation: i64,
    /// The App has a deletionTimestamp.
    pub deleting: bool,
    /// `spec.suspend`.
    pub suspended: bool,
    /// SpecValid is False: the App's own faults, or the API server refused the Deployment.
    pub invalid: Option<Blocked>,
    /// A Deployment of that name isn't ours.
    pub name_conflict: Option<Blocked>,
    /// A write was refused for a reason that a person must clear.
    pub stalled: Option<Blocked>,
    /// Another writer keeps changing our fields; the message names it.
    pub contended: Option<String>,
    /// The Deployment, if there is one that is ours.
    pub deployment: Option<DeploymentFacts>,
    /// Who owns the size, the mode, and the bound that shaped it; `None` while the spec has faults.
    pub size: Option<(SizeOwner, Mode, Option<Limit>)>,
    /// `status.firstAvailableAt` is set.
    pub was_available: bool,
}

struct Draft {
    kind: ConditionType,
    status: Status,
    reason: String,
    message: String,
}

fn draft(
    kind: ConditionType,
    status: Status,
    reason: impl fmt::Display,
    message: impl Into<String>,
) -> Draft {
    Draft { kind, status, reason: reason.to_string(), message: message.into() }
}

/// The conditions, in order, and the phase. `previous` gives the transition times of what did not change, and the
/// conditions of other writers, which are carried over after ours. `now` is RFC 3339 in whole seconds.
pub fn derive(facts: &Facts, previous: &[Condition], now: &str) -> (Vec<Condition>, Phase) {
    let mut drafts = vec![spec_valid(facts), stalled(facts), available(facts), contended(facts)];
    drafts.extend(progressing(facts));
    drafts.push(reconciling(facts));
    drafts.extend(scaling_active(facts));
    drafts.extend(scaling_limited(facts));
    let ready = ready(facts, &drafts);
    let phase = phase(facts, &ready);
    drafts.insert(0, ready);

    let mut conditions: Vec<Condition> = drafts
        .into_iter()
        .map(|draft| {
            let before = previous.iter().find(|c| c.kind == draft.kind.as_str() && c.status == draft.status);
            Condition {
                kind: draft.kind.as_str().to_owned(),
                status: draft.status,
                observed_generation: Some(facts.generation),
                last_transition_time: before
                    .map_or_else(|| now.to_owned(), |c| c.last_transition_time.clone()),
                reason: draft.reason,
                message: cut(draft.message),
            }
        })
        .collect();
    let foreign = previous.iter().filter(|c| ConditionType::ALL.iter().all(|kind| kind.as_str() != c.kind));
    conditions.extend(foreign.cloned());
    (conditions, phase)
}

/// A message holds words of users and of servers, which may be of any length; the API server refuses more than 32 KiB, and
/// the whole status is to stay below that.
const MESSAGE_MAX: usize = 1500;

fn cut(message: String) -> String {
    match message.char_indices().nth(MESSAGE_MAX) {
        Some((end, _)) => format!("{} ...", &message[..end]),
        None => message,
    }
}

fn spec_valid(facts: &Facts) -> Draft {
    match &facts.invalid {
        Some(blocked) => draft(ConditionType::SpecValid, Status::False, blocked.reason, &blocked.message),
        None => draft(ConditionType::SpecValid, Status::True, Reason::Valid, ""),
    }
}

fn stalled(facts: &Facts) -> Draft {
    let blocked = facts.invalid.as_ref().or(facts.name_conflict.as_ref()).or(facts.stalled.as_ref());
    if let Some(blocked) = blocked {
        return draft(ConditionType::Stalled, Status::True, blocked.reason, &blocked.message);
    }
    let progressing = facts.deployment.as_ref().and_then(|d| d.progressing.as_ref());
    match progressing
        .filter(|p| p.status == Status::False && p.reason == Reason::ProgressDeadlineExceeded.as_str())
    {
        Some(stuck) => draft(ConditionType::Stalled, Status::True, &stuck.reason, &stuck.message),
        None => draft(ConditionType::Stalled, Status::False, Reason::NotStalled, ""),
    }
}

fn available(facts: &Facts) -> Draft {
    match facts.deployment.as_ref().map(|d| d.available.as_ref()) {
        Some(Some(passed)) => draft(ConditionType::Available, passed.status, &passed.reason, &passed.message),
        Some(None) => draft(
            ConditionType::Available,
            Status::Unknown,
            Reason::WaitingForDeployment,
            "the Deployment's controller has not reported on it yet",
        ),
        None => draft(
            ConditionType::Available,
            Status::Unknown,
            Reason::WaitingForDeployment,
            "there is no Deployment yet",
        ),
    }
}

fn contended(facts: &Facts) -> Draft {
    match &facts.contended {
        Some(message) => draft(ConditionType::Contended, Status::True, Reason::ForeignWriter, message),
        None => draft(ConditionType::Contended, Status::False, Reason::NotContended, ""),
    }
}

fn progressing(facts: &Facts) -> Option<Draft> {
    let passed = facts.deployment.as_ref()?.progressing.as_ref()?;
    Some(draft(ConditionType::Progressing, passed.status, &passed.reason, &passed.message))
}

fn reconciling(facts: &Facts) -> Draft {
    let under_way =
        |reason, message: String| draft(ConditionType::Reconciling, Status::True, reason, message);
    let idle = |reason| draft(ConditionType::Reconciling, Status::False, reason, "");
    if facts.suspended {
        return idle(Reason::Suspended);
    }
    if let Some(blocked) = facts.invalid.as_ref().or(facts.name_conflict.as_ref()) {
        return idle(blocked.reason);
    }
    match &facts.deployment {
        None => under_way(Reason::Deploying, "the Deployment is being created".to_owned()),
        Some(d) if !d.is_observed() => under_way(
            Reason::Deploying,
            "the Deployment's controller has not seen its newest version yet".to_owned(),
        ),
        Some(d) if d.is_rolling_out() => under_way(
            Reason::RollingOut,
            format!("{} of {} Pods are of the new version", d.updated, d.replicas),
        ),
        Some(d) if d.is_resizing() => {
            under_way(Reason::Resizing, format!("{} of {} Pods exist", d.replicas, d.wanted))
        }
        Some(_) => idle(Reason::Aligned),
    }
}

fn scaling_active(facts: &Facts) -> Option<Draft> {
    let (owner, mode, _) = facts.size?;
    let (reason, message) = match (owner, mode) {
        (SizeOwner::Suspended, _) => (Reason::Suspended, "the App is suspended"),
        (SizeOwner::OtherScaler, _) => {
            (Reason::AmbiguousScaler, "another scaler targets the Deployment; the size is left to it")
        }
        (SizeOwner::Pinned, _) => (Reason::Pinned, "spec.replicas pins the size"),
        (SizeOwner::Observed, Mode::Disabled) => (Reason::ScalingDisabled, "scaling.mode is Disabled"),
        (SizeOwner::Observed | SizeOwner::Engine, _) => {
            (Reason::SignalsNotImplemented, "this version reads no signals: the size stays as written last")
        }
    };
    Some(draft(ConditionType::ScalingActive, Status::False, reason, message))
}

fn scaling_limited(facts: &Facts) -> Option<Draft> {
    let (_, _, limit) = facts.size?;
    // The other limits shape one decision and are gone with the next one: `status.lastDecision.limitedBy` keeps them.
    Some(match limit {
        Some(Limit::PinnedOutsideLimits) => draft(
            ConditionType::ScalingLimited,
            Status::True,
            Reason::PinnedOutsideLimits,
            "the pinned size lies outside minReplicas and maxReplicas, and wins",
        ),
        _ => draft(ConditionType::ScalingLimited, Status::False, Reason::DesiredWithinRange, ""),
    })
}

fn ready(facts: &Facts, drafts: &[Draft]) -> Draft {
    let find = |kind| drafts.iter().find(|draft| draft.kind == kind);
    let off = |kind, status| find(kind).filter(|draft| draft.status == status);
    let conflict = facts.name_conflict.as_ref();
    let failing = off(ConditionType::SpecValid, Status::False)
        .map(|d| (d.reason.clone(), d.message.clone()))
        .or_else(|| conflict.map(|b| (b.reason.to_string(), b.message.clone())))
        .or_else(|| {
            off(ConditionType::Stalled, Status::True)
                .or_else(|| off(ConditionType::Available, Status::False))
                .or_else(|| off(ConditionType::Contended, Status::True))
                .map(|d| (d.reason.clone(), d.message.clone()))
        });
    let unknown = off(ConditionType::Available, Status::Unknown)
        .or_else(|| off(ConditionType::SpecValid, Status::Unknown));
    let mut ready = match (failing, unknown) {
        (Some((reason, message)), _) => draft(ConditionType::Ready, Status::False, reason, message),
        (None, Some(unknown)) => {
            draft(ConditionType::Ready, Status::Unknown, &unknown.reason, &unknown.message)
        }
        (None, None) => {
            draft(ConditionType::Ready, Status::True, Reason::Aligned, ready_message(facts, drafts))
        }
    };
    if facts.suspended {
        ready.message = match ready.message.as_str() {
            "" => "suspended".to_owned(),
            message => format!("suspended; {message}"),
        };
        ready.reason = Reason::Suspended.to_string();
    }
    ready
}

fn ready_message(facts: &Facts, drafts: &[Draft]) -> String {
    let mut parts: Vec<String> =
        facts.deployment.iter().map(|d| format!("{}/{} ready", d.ready, d.wanted)).collect();
    for draft in drafts {
        let (normal, counted, _) = draft.kind.explanation();
        // Under suspend Ready's reason says it already.
        if !counted && draft.status != normal && draft.reason != Reason::Suspended.as_str() {
            parts.push(format!("{}: {}", draft.kind.remark(), draft.reason));
        }
    }
    parts.join("; ")
}

fn phase(facts: &Facts, ready: &Draft) -> Phase {
    let progress_deadline =
        facts.deployment.as_ref().and_then(|d| d.progressing.as_ref()).is_some_and(|p| {
            p.status == Status::False && p.reason == Reason::ProgressDeadlineExceeded.as_str()
        });
    let blocked = facts.invalid.is_some()
        || facts.name_conflict.is_some()
        || facts.stalled.is_some()
        || progress_deadline;
    if facts.deleting {
        Phase::Terminating
    } else if facts.suspended {
        Phase::Suspended
    } else if !facts.was_available && !blocked {
        Phase::Pending
    } else if ready.status == Status::False {
        Phase::Degraded
    } else {
        match &facts.deployment {
            Some(d) if d.is_resizing() => Phase::Scaling,
            Some(d) if d.is_rolling_out() => Phase::Progressing,
            _ => Phase::Stable,
        }
    }
}

#[cfg(test)]
#[path = "derive_tests.rs"]
mod tests;
