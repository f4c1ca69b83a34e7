//! Step 3: which writes a judgement needs, if any.
//!
//! Pure but for the memory it is handed. A Deployment is written if and only if the hash of the intent differs, the size
//! does, or a field of the intent is no longer in our own entry of `managedFields`. Values are never compared: what the
//! server defaults, rewrites or formats otherwise is no difference.

use std::time::Duration;

use kubesentry_api::children::Sized;
use kubesentry_api::names::{ANNOTATION_APPLIED_HASH, ANNOTATION_DESIRED_REPLICAS, FINALIZER};
use kubesentry_api::ownership::{self, LostField};
use kubesentry_engine::size::{Limit, Replicas, Size};
use serde_json::{Value, json};

use super::judge::{Judgement, Verdict, Whose};
use super::observe::Observation;
use crate::contention;
use crate::memory::{Memory, Sent};
use crate::objects::Deployment;

/// The writes of a pass, in their order.
#[derive(Debug, Default)]
pub struct Plan {
    /// JSON patch that adds our finalizer.
    pub finalizer: Option<Value>,
    /// The apply of the Deployment.
    pub child: Option<ChildWrite>,
    /// Fields that another writer holds, if that writer's name is asked for.
    pub identify: Vec<LostField>,
    /// The App is released: export, then remove the finalizer.
    pub release: bool,
    /// When to come back though nothing happens.
    pub wake_after: Option<Duration>,
}

/// Why a Deployment is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// There was none.
    Create,
    /// It belonged to an App of this name that is gone.
    TakeOver,
    /// The App, or the operator's way to build it, changed.
    Update,
    /// The size changed.
    Resize,
    /// Somebody else changed or removed fields of ours.
    PutBack,
}

impl Action {
    /// The action as one word, for events, metrics and records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "Create",
            Self::TakeOver => "TakeOver",
            Self::Update => "Update",
            Self::Resize => "Resize",
            Self::PutBack => "PutBack",
        }
    }
}

/// An apply of the Deployment.
#[derive(Debug, Clone)]
pub struct ChildWrite {
    /// Why.
    pub action: Action,
    /// What is sent.
    pub body: Value,
    /// What identifies it.
    pub sent: Sent,
    /// The size that is sent, and who owns it.
    pub size: Size,
    /// The size that was seen.
    pub from: Option<i32>,
    /// Fields to put back.
    pub fields: Vec<LostField>,
    /// The resourceVersion on which this was planned; `None` for a new Deployment.
    pub seen: Option<String>,
}

impl ChildWrite {
    /// The size that is sent.
    pub fn to(&self) -> u32 {
        self.size.replicas.unwrap_or_default().get()
    }

    /// Which bound shaped the size.
    pub fn limited_by(&self) -> Option<&'static str> {
        self.size.limit.map(|limit| match limit {
            Limit::PinnedOutsideLimits => "PinnedOutsideLimits",
            Limit::TooFewReplicas => "TooFewReplicas",
            Limit::TooManyReplicas => "TooManyReplicas",
        })
    }
}

/// Plans the writes.
pub fn plan(observation: &Observation, judgement: &Judgement, memory: &mut Memory) -> Plan {
    match judgement.verdict {
        Verdict::Release => Plan { release: true, ..Plan::default() },
        Verdict::Leave | Verdict::Hold(_) => Plan::default(),
        Verdict::Align => {
            let mut plan = align(observation, judgement, memory);
            // Before the first child, and again where somebody took it away.
            let guarded = plan.child.is_some() || judgement.whose == Whose::Ours;
            if guarded && observation.app.finalizer_index().is_none() {
                plan.finalizer = Some(add_finalizer(observation));
            }
            plan
        }
    }
}

fn align(observation: &Observation, judgement: &Judgement, memory: &mut Memory) -> Plan {
    let mut plan = Plan::default();
    let (Some((_, intent)), Some(size)) = (judgement.understood.valid(), judgement.size) else {
        return plan;
    };
    let child = observation.child.as_deref();
    // While a Deployment is being deleted nothing can be aligned; its end wakes us.
    if child.is_some_and(|child| child.deleting) {
        return plan;
    }
    let replicas = size.replicas.unwrap_or_default().get();
    let sized = if size.is_ours() {
        Sized::Ours(replicas)
    } else {
        Sized::Theirs { replicas, resource_version: child.map(|child| child.resource_version.clone()) }
    };
    let body = intent.with_size(&sized);
    let Some((action, fields)) = need(&body, intent.hash(), size, child, judgement.whose) else {
        memory.contention.observe([], observation.mono);
        memory.refused = None;
        plan.wake_after = memory.contention.next_change(observation.mono);
        return plan;
    };

    let paths: Vec<String> = fields.iter().map(ToString::to_string).collect();
    let verdict = memory.contention.observe(paths.iter().map(String::as_str), observation.mono);
    plan.wake_after = memory.contention.next_change(observation.mono);
    if memory.contention.is_contended() && !memory.contention.has_writer() {
        plan.identify.clone_from(&fields);
    }
    if let (Action::PutBack, contention::Verdict::Wait(wait)) = (action, verdict) {
        plan.wake_after = super::earlier(plan.wake_after, wait);
        return plan;
    }

    let sent = (intent.hash().to_owned(), size.is_ours().then_some(replicas));
    match &memory.refused {
        Some(refused) if refused.sent != sent => memory.refused = None,
        Some(refused) if observation.mono < refused.retry_at => {
            plan.wake_after = super::earlier(plan.wake_after, refused.retry_at - observation.mono);
            return plan;
        }
        _ => {}
    }
    let seen = child.map(|child| child.resource_version.clone());
    if let (Some((fruitless, version)), Some(seen)) = (&memory.fruitless, &seen)
        && (fruitless, version) == (&sent, seen)
    {
        return plan;
    }
    plan.child =
        Some(ChildWrite { action, body, sent, size, from: child.map(|child| child.replicas), fields, seen });
    plan
}

/// Whether a write is needed, and why; see the module.
fn need(
    body: &Value,
    hash: &str,
    size: Size,
    child: Option<&Deployment>,
    whose: Whose,
) -> Option<(Action, Vec<LostField>)> {
    let Some(child) = child else {
        return Some((Action::Create, Vec::new()));
    };
    // Where the size isn't ours, its field may be anybody's; the resourceVersion beside it is never owned.
    let except: &[&str] = if size.is_ours() { &[] } else { &[".spec.replicas", ".metadata.resourceVersion"] };
    let lost = ownership::lost_except(body, &child.owned, except);
    let same_hash = child.applied_hash.as_deref() == Some(hash);
    if whose == Whose::AVanishedApps && !same_hash {
        return Some((Action::TakeOver, Vec::new()));
    }
    // The annotation of a size that is ours no longer must go.
    let left_over = !size.is_ours() && child.has_desired_replicas;
    let same_size = !size.is_ours() || child.desired_replicas == size.replicas.map(Replicas::get);
    let is_lost = |annotation: &str| lost.iter().any(|field| field.to_string().contains(annotation));
    if left_over || (!same_hash && !is_lost(ANNOTATION_APPLIED_HASH)) {
        Some((Action::Update, lost))
    } else if !same_size && !is_lost(ANNOTATION_DESIRED_REPLICAS) {
        Some((Action::Resize, lost))
    } else if !lost.is_empty() {
        Some((Action::PutBack, lost))
    } else {
        None
    }
}

fn add_finalizer(observation: &Observation) -> Value {
    let app = &observation.app;
    let add = if app.finalizers.is_empty() {
        json!({"op": "add", "path": "/metadata/finalizers", "value": [FINALIZER]})
    } else {
        json!({"op": "add", "path": "/metadata/finalizers/-", "value": FINALIZER})
    };
    json!([{"op": "test", "path": "/metadata/resourceVersion", "value": app.resource_version}, add])
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
