//! Connects the rooms: watches feed caches, changes become keys, workers take keys through a pass.
//!
//! The only module that knows `kube::runtime`. Nothing behind the work queue knows which event woke it.

use std::fmt::Debug;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use kube::api::{Api, DynamicObject};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cache::{Cache, Change, WatchEvent};
use crate::client::{self, ConnectError};
use crate::config::RunArgs;
use crate::context::{Context, VERSION};
use crate::door::Door;
use crate::key::Key;
use crate::memory::Memories;
use crate::objects::{App, Cached, Deployment, DeploymentView, Scaler, ScalerView, app_resource};
use crate::queue::{Queue, Wake};
use crate::reconcile::{Outcome, reconcile};
use crate::serve::{self, ServeError};
use crate::telemetry::{PassResult, Telemetry};
use crate::{events, objects};

/// What keeps the operator from starting.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No cluster.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// No listening address.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// A watch or a server ended though nobody asked for it.
    #[error("a part of the operator ended by itself; its log says which")]
    Ended,
    /// No signal handler.
    #[error("signals cannot be handled: {0}")]
    Signals(std::io::Error),
}

/// Longest that passes under way may take at the end; a write times out before that.
const GRACE: Duration = Duration::from_secs(12);

/// An App whose last write no cache shows is looked at again after this long, should the event be lost.
const PARKED: Duration = Duration::from_secs(11);

/// From this many failures in a row on (about 2.5 s) a failing pass is told at level warn.
const NEWS: u32 = 10;

/// Runs the operator until SIGTERM or SIGINT.
pub async fn run(args: &RunArgs) -> Result<(), RunError> {
    let stop = CancellationToken::new();
    stop_on_signal(stop.clone())?;
    let listeners = serve::bind(args.health_address, args.metrics_address).await?;
    let telemetry = Telemetry::new(VERSION).with_max_workers(usize::from(args.workers));
    let config = client::configuration(args.kubeconfig.as_deref(), args.context.as_deref()).await?;
    tracing::info!(version = VERSION, server = %config.cluster_url, namespace = args.namespace, "starting");
    let (reader, writer) = client::clients(&config, &telemetry)?;
    let (events, event_queue) = events::channel();
    let queue = Queue::new(telemetry.clone());
    let context = Arc::new(Context {
        apps: Cache::default(),
        deployments: Cache::default(),
        scalers: Cache::default(),
        scaled: parking_lot::RwLock::default(),
        door: Door::new(writer, f64::from(args.writes_per_second), f64::from(args.write_burst)),
        reader,
        memories: Memories::default(),
        options: kubesentry_api::ParseOptions {
            allow_privileged_templates: args.allow_privileged_templates,
            allow_service_account_names: args.allow_service_account_names,
        },
        telemetry,
        events,
        namespace: args.namespace.clone(),
        export_deadline: Duration::from_secs(args.export_deadline_seconds),
        instance: args.instance.clone().unwrap_or_else(|| format!("kubesentry-{}", std::process::id())),
    });

    let mut tasks = JoinSet::new();
    tasks.spawn(serve::serve(listeners, context.clone(), queue.clone(), stop.clone()));
    let synced = watch_all(&mut tasks, &context, &queue);
    // Without a complete list a Deployment that exists would look as if it didn't.
    let ready = async {
        for list in synced {
            // A watch ends only with the process.
            let _ = list.await;
        }
    };
    tokio::select! {
        () = ready => tracing::info!(apps = context.apps.keys().len(), "all caches are complete; working"),
        () = stop.cancelled() => {}
    }

    let sender = tokio::spawn(events::run(event_queue, context.clone()));
    let mut workers = JoinSet::new();
    if !stop.is_cancelled() {
        for _ in 0..args.workers {
            workers.spawn(work(context.clone(), queue.clone()));
        }
        tasks.spawn(resync(context.clone(), queue.clone(), args.resync()));
    }
    let mut outcome = Ok(());
    tokio::select! {
        () = stop.cancelled() => {}
        // A watch or a server that ended leaves an operator that looks alive and isn't: better none at all. The servers
        // end with `stop` too, and which of the two shows first is chance: only an end that nobody asked for is a fault.
        _ = tasks.join_next() => if !stop.is_cancelled() {
            tracing::error!("a part of the operator ended by itself");
            outcome = Err(RunError::Ended);
            stop.cancel();
        }
    }
    tracing::info!("stopping: no App is taken up any more");
    queue.close();
    let finished = tokio::time::timeout(GRACE, async { while workers.join_next().await.is_some() {} }).await;
    if finished.is_err() {
        tracing::warn!("passes under way were abandoned; they begin anew at the next start");
    }
    tasks.shutdown().await;
    sender.abort();
    tracing::info!("stopped");
    outcome
}

fn stop_on_signal(stop: CancellationToken) -> Result<(), RunError> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).map_err(RunError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(RunError::Signals)?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
    });
    Ok(())
}

/// Starts the three watches; each receiver answers when its cache is complete for the first time.
fn watch_all(tasks: &mut JoinSet<()>, context: &Arc<Context>, queue: &Queue) -> Vec<oneshot::Receiver<()>> {
    let (apps_done, apps) = oneshot::channel();
    let (deployments_done, deployments) = oneshot::channel();
    let (scalers_done, scalers) = oneshot::channel();

    let api: Api<DynamicObject> = Api::all_with(context.reader.clone(), &app_resource());
    let (shared, keys) = (context.clone(), queue.clone());
    tasks.spawn(follow(api, apps_done, "apps", move |event| {
        for change in shared.apps.handle(event.map(App::from)) {
            keys.add(key_of(&change), Wake::Observed);
        }
        shared.apps.is_synced()
    }));

    let api: Api<DeploymentView> = Api::all(context.reader.clone());
    let (shared, keys) = (context.clone(), queue.clone());
    tasks.spawn(follow(api, deployments_done, "deployments", move |event| {
        for change in shared.deployments.handle(event.map(Deployment::from)) {
            // A child has its App's name, whosever it is at the moment.
            wake_app(&shared, &keys, key_of(&change));
        }
        shared.deployments.is_synced()
    }));

    let api: Api<ScalerView> = Api::all(context.reader.clone());
    let (shared, keys) = (context.clone(), queue.clone());
    tasks.spawn(follow(api, scalers_done, "horizontalpodautoscalers", move |event| {
        for change in shared.scalers.handle(event.map(Scaler::from)) {
            for target in retarget(&shared, &change) {
                wake_app(&shared, &keys, target);
            }
        }
        shared.scalers.is_synced()
    }));
    vec![apps, deployments, scalers]
}

/// Follows one kind for ever, with a backoff of its own.
async fn follow<K, F>(api: Api<K>, done: oneshot::Sender<()>, kind: &'static str, mut handle: F)
where
    K: kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    F: FnMut(WatchEvent<K>) -> bool + Send,
{
    let mut done = Some(done);
    let events = watch(api, watcher::Config::default()).default_backoff();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(Event::Init) => WatchEvent::Restarted,
            Ok(Event::InitApply(object)) => WatchEvent::Listed(object),
            Ok(Event::InitDone) => WatchEvent::Synced,
            Ok(Event::Apply(object)) => WatchEvent::Applied(object),
            Ok(Event::Delete(object)) => WatchEvent::Deleted(object),
            Err(error) => {
                tracing::warn!(kind, %error, "the watch failed and is tried again");
                continue;
            }
        };
        if handle(event)
            && let Some(done) = done.take()
        {
            // Nobody waits any more when the operator stops.
            let _ = done.send(());
        }
    }
}

fn key_of<T: Cached>(change: &Change<T>) -> Key {
    let object = change.after.as_ref().or(change.before.as_ref());
    object.map_or_else(|| Key::new("", ""), |object| object.key().clone())
}

fn wake_app(context: &Context, queue: &Queue, key: Key) {
    if context.apps.get(&key).is_some() {
        queue.add(key, Wake::Observed);
    }
}

/// Keeps the index of targets, and answers the Deployments whose scalers changed: the old target and the new one.
fn retarget(context: &Context, change: &Change<objects::Scaler>) -> Vec<Key> {
    let mut scaled = context.scaled.write();
    let mut touched = Vec::new();
    if let Some(before) = &change.before
        && let Some(target) = &before.target
    {
        if let Some(scalers) = scaled.get_mut(target) {
            scalers.remove(&before.key);
            if scalers.is_empty() {
                scaled.remove(target);
            }
        }
        touched.push(target.clone());
    }
    if let Some(after) = &change.after
        && let Some(target) = &after.target
    {
        scaled.entry(target.clone()).or_default().insert(after.key.clone());
        touched.push(target.clone());
    }
    touched
}

/// Every App comes up once in a while though nothing happens.
async fn resync(context: Arc<Context>, queue: Queue, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        for key in context.apps.keys() {
            queue.add(key, Wake::Due);
        }
    }
}

/// A worker: takes keys through passes until the queue is closed.
async fn work(context: Arc<Context>, queue: Queue) {
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
