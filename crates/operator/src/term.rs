//! The work of a leader, from the moment it leads until it doesn't: workers take keys through passes.
//!
//! Each term has a queue, a door and memories of its own, so that nothing decided in one is carried out in another. It
//! begins with every App of the caches, and ends at once when leadership is lost: what is under way is dropped.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use kube::Client;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::RunArgs;
use crate::context::{Caches, Context};
use crate::door::{Budgets, Door};
use crate::events;
use crate::lease::{Leadership, Term};
use crate::memory::Memories;
use crate::queue::{Dispatch, Queue, Wake};
use crate::reconcile::{Outcome, reconcile};
use crate::retention::{self, Limits};
use crate::telemetry::{PassResult, Telemetry};

/// Longest that passes under way may take at the end; a write times out before that.
const GRACE: Duration = Duration::from_secs(12);

/// An App whose last write no cache shows is looked at again after this long, should the event be lost.
const PARKED: Duration = Duration::from_secs(11);

/// From this many failures in a row on (about 2.5 s) a failing pass is told at level warn.
const NEWS: u32 = 10;

/// What outlives terms.
pub struct Office {
    /// The flags.
    pub args: RunArgs,
    /// Name of this process in audit records and events.
    pub instance: String,
    /// What is observed.
    pub caches: Arc<Caches>,
    /// Reads.
    pub reader: Client,
    /// Writes.
    pub writer: Client,
    /// How many writes may be sent.
    pub budgets: Arc<Budgets>,
    /// Whether this process leads.
    pub leadership: Leadership,
    /// Where keys go.
    pub dispatch: Dispatch,
    /// Metrics.
    pub telemetry: Telemetry,
}

/// Works until the term is over or `stop`; then nothing of it is under way any more.
pub async fn work(office: &Office, term: Term, stop: &CancellationToken) {
    let (events, event_queue) = events::channel();
    let context = Arc::new(context(office, term, events));
    let queue = Queue::new(office.telemetry.clone());
    let mut aside = JoinSet::new();
    let mut workers = JoinSet::new();
    aside.spawn(events::run(event_queue, context.clone()));
    aside.spawn(resync(context.clone(), queue.clone(), office.args.resync()));
    let limits = Limits {
        keep_deleted: office.args.audit_keep_deleted,
        max_chunks: usize::try_from(office.args.audit_max_chunks).unwrap_or(usize::MAX),
    };
    let every = Duration::from_secs(office.args.audit_sweep_seconds);
    aside.spawn(retention::run(context.clone(), limits, every));
    for _ in 0..office.args.workers {
        workers.spawn(worker(context.clone(), queue.clone()));
    }
    office.telemetry.leads(true);
    // First the way for changes, then everything that is there: a change in between comes up twice, and is never missed.
    office.dispatch.to(Some(queue.clone()));
    let keys = office.caches.apps.keys();
    tracing::info!(
        term = term.0,
        apps = keys.len(),
        instance = office.instance,
        "leading: every App is looked at"
    );
    for key in keys {
        queue.add(key, Wake::Observed);
    }
    tokio::select! {
        () = office.leadership.lost(term) => {
            tracing::warn!(term = term.0, "no longer leading: work under way is dropped");
        }
        () = stop.cancelled() => {
            tracing::info!("stopping: no App is taken up any more");
            queue.close();
            let finished = async { while workers.join_next().await.is_some() {} };
            tokio::select! {
                ended = tokio::time::timeout(GRACE, finished) => if ended.is_err() {
                    tracing::warn!("passes under way were abandoned; they begin anew at the next start");
                },
                () = office.leadership.lost(term) => {}
            }
        }
    }
    office.dispatch.to(None);
    queue.close();
    workers.shutdown().await;
    aside.shutdown().await;
    office.telemetry.leads(false);
    office.telemetry.forget_all();
}

fn context(office: &Office, term: Term, events: events::Events) -> Context {
    let args = &office.args;
    Context {
        caches: office.caches.clone(),
        door: Door::new(office.writer.clone(), office.leadership.clone(), term, office.budgets.clone()),
        reader: office.reader.clone(),
        memories: Memories::default(),
        options: kubesentry_api::ParseOptions {
            allow_privileged_templates: args.allow_privileged_templates,
            allow_service_account_names: args.allow_service_account_names,
        },
        telemetry: office.telemetry.clone(),
        events,
        namespace: args.namespace.clone(),
        export_deadline: Duration::from_secs(args.export_deadline_seconds),
        instance: office.instance.clone(),
    }
}

/// Every App comes up once in a while though nothing happens.
async fn resync(context: Arc<Context>, queue: Queue, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        for key in context.caches.apps.keys() {
            queue.add(key, Wake::Due);
        }
    }
}

/// A worker: takes keys through passes until the queue is closed.
async fn worker(context: Arc<Context>, queue: Queue) {
    while let Some((key, wake)) = queue.next().await {
        let begun = Instant::now();
        context.telemetry.worker_busy();
        let pass = AssertUnwindSafe(reconcile(&context, &key, wake)).catch_unwind();
        // A panic is a bug, and costs the pass of one App: its memory is gone, and it begins anew later.
        let outcome = pass.await.unwrap_or_else(|_| {
            tracing::error!(app = %key, "the pass panicked");
            Outcome::Retry("the pass panicked".to_owned())
        });
        context.telemetry.worker_idle();
        let result = match outcome {
            Outcome::Skipped => {
                queue.unpark(&key);
                None
            }
            Outcome::Parked => {
                queue.park(key.clone(), PARKED);
                None
            }
            Outcome::Done { wake_after } => {
                queue.forget(&key);
                queue.unpark(&key);
                queue.schedule(key.clone(), wake_after);
                Some(if wake_after.is_some() { PassResult::RequeueAfter } else { PassResult::Success })
            }
            Outcome::Retry(error) => {
                let failures = queue.retry(key.clone());
                // A lost race is no news; what fails again and again is.
                if failures < NEWS {
                    tracing::debug!(app = %key, error, failures, "the pass begins anew");
                } else {
                    tracing::warn!(app = %key, error, failures, "the pass fails again and again");
                }
                Some(PassResult::Error)
            }
        };
        if let Some(result) = result {
            context.telemetry.pass_ended(result, begun.elapsed());
        }
        queue.done(&key);
    }
}
