//! One pass over one App: observe, judge, plan, apply, report.
//!
//! Every pass reads the latest state from scratch and aligns everything; none depends on which event woke it. `observe`,
//! `judge` and `plan` write nothing, `apply` is the only step that does, and `report` tells what was really done.

pub mod apply;
pub mod judge;
pub mod observe;
pub mod plan;
pub mod report;

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Duration;

use crate::context::Context;
use crate::key::Key;
use crate::memory::Memory;
use crate::queue::Wake;
use observe::Observation;

/// How a pass ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing more to do until something changes, or until this much time has passed.
    Done {
        /// When to come back though nothing happens.
        wake_after: Option<Duration>,
    },
    /// The last pass saw all of this: there was nothing to do.
    Skipped,
    /// A cache doesn't show our own last write yet; its event will wake us.
    Parked,
    /// It failed, or lost a race, and begins anew.
    Retry(String),
}

/// The earlier of two times to come back.
fn earlier(delay: Option<Duration>, other: impl Into<Option<Duration>>) -> Option<Duration> {
    [delay, other.into()].into_iter().flatten().min()
}

/// One pass.
pub async fn reconcile(context: &Context, key: &Key, wake: Wake) -> Outcome {
    let Some(observation) = observe::observe(context, key) else {
        context.memories.forget(key);
        context.telemetry.forget(key);
        return Outcome::Done { wake_after: None };
    };
    let mut memory = context.memories.take(key, &observation.app.uid);
    let outcome = pass(context, &observation, &mut memory, wake).await;
    context.memories.put(key, memory);
    outcome
}

async fn pass(context: &Context, observation: &Observation, memory: &mut Memory, wake: Wake) -> Outcome {
    if wake == Wake::Observed && memory.settled.as_ref() == Some(&observation.seen()) {
        return Outcome::Skipped;
    }
    if is_behind(context, observation, memory) {
        return Outcome::Parked;
    }
    let understood = understood(context, observation, memory);
    let judgement = judge::judge(observation, understood);
    if judgement.verdict == judge::Verdict::Leave {
        return Outcome::Done { wake_after: None };
    }
    let plan = plan::plan(observation, &judgement, memory);
    let wake_after = plan.wake_after;
    let applied = apply::apply(context, observation, plan, memory).await;
    report::report(context, observation, &judgement, &applied, memory, wake_after).await
}

/// Whether a cache doesn't show our own last write yet: a pass on it would do things twice.
fn is_behind(context: &Context, observation: &Observation, memory: &mut Memory) -> bool {
    let (caches, namespace) = (&context.caches, &observation.app.key.namespace);
    let app = memory.app_write.is_pending(caches.apps.reached(namespace), observation.mono);
    let child = memory.child_write.is_pending(caches.deployments.reached(namespace), observation.mono);
    app || child
}

/// The parsed App; parsing is done once per content. The generation can't stand for it: where the schema changes, the API
/// server serves the same generation with other defaults, and without the fields that are none any more.
fn understood(
    context: &Context,
    observation: &Observation,
    memory: &mut Memory,
) -> Arc<crate::memory::Understood> {
    let content = BuildHasherDefault::<DefaultHasher>::default().hash_one(&observation.app.raw);
    if let Some((of, understood)) = &memory.parsed
        && *of == content
    {
        return understood.clone();
    }
    let understood = Arc::new(judge::understand(&observation.app, &context.options));
    memory.parsed = Some((content, understood.clone()));
    understood
}
