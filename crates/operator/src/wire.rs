//! Connects the rooms: watches feed caches, an election says who leads, a leader works.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use http::HeaderValue;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::client::{self, Clients, ConnectError};
use crate::config::RunArgs;
use crate::context::{Caches, VERSION};
use crate::door::Budgets;
use crate::lease::{Candidate, KubeLeaseStore, Leadership, TimingError, campaign};
use crate::queue::Dispatch;
use crate::serve::{self, ServeError};
use crate::telemetry::Telemetry;
use crate::term::{self, Office};
use crate::watch;

/// What keeps the operator from starting.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No cluster.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// No listening address.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Times that can't work together.
    #[error(transparent)]
    Timing(#[from] TimingError),
    /// A watch or a server ended though nobody asked for it.
    #[error("a part of the operator ended by itself; its log says which")]
    Ended,
    /// No signal handler.
    #[error("signals cannot be handled: {0}")]
    Signals(std::io::Error),
}

/// Runs the operator until SIGTERM or SIGINT.
pub async fn run(args: &RunArgs) -> Result<(), RunError> {
    let timing = args.timing()?;
    let stop = CancellationToken::new();
    stop_on_signal(stop.clone())?;
    let listeners = serve::bind(args.health_address, args.metrics_address).await?;
    let telemetry = Telemetry::new(VERSION).with_max_workers(usize::from(args.workers));
    let mut config = client::configuration(args.kubeconfig.as_deref(), args.context.as_deref()).await?;
    let namespaces = args.namespaces();
    let instance = args.instance.clone().unwrap_or_else(|| format!("kubesentry-{}", std::process::id()));
    // Tells replicas apart in the API server's audit log.
    if let Ok(agent) = HeaderValue::from_str(&format!("kubesentry/{VERSION} ({instance})")) {
        config.headers.push((http::header::USER_AGENT, agent));
    }
    tracing::info!(
        version = VERSION,
        server = %config.cluster_url,
        namespace = args.namespace,
        watched = if namespaces.is_empty() { "every namespace".to_owned() } else { namespaces.join(", ") },
        "starting"
    );
    let leadership = if args.leader_elect { Leadership::default() } else { Leadership::always() };
    let Clients { reader, lease, writer } = client::clients(&config, &telemetry, &leadership)?;
    let office = Office {
        args: args.clone(),
        instance: instance.clone(),
        caches: Arc::new(Caches::over(&namespaces)),
        reader,
        writer,
        budgets: Arc::new(Budgets::new(f64::from(args.writes_per_second), f64::from(args.write_burst))),
        leadership: leadership.clone(),
        dispatch: Dispatch::default(),
        telemetry: telemetry.clone(),
    };

    let mut tasks = JoinSet::new();
    let (caches, dispatch) = (office.caches.clone(), office.dispatch.clone());
    tasks.spawn(serve::serve(listeners, caches.clone(), telemetry.clone(), dispatch.clone(), stop.clone()));
    let lists = watch::watch_all(&mut tasks, &office.reader, &namespaces, &caches, &dispatch);
    // Without a complete list a Deployment that exists would look as if it didn't; and a leader that can't begin would
    // keep another one from it.
    let complete = async {
        for list in lists {
            // A watch ends only with the process.
            let _ = list.await;
        }
    };
    tokio::select! {
        () = complete => tracing::info!(apps = caches.apps.keys().len(), "all caches are complete"),
        () = stop.cancelled() => {}
    }

    telemetry.leads(false);
    let resign = CancellationToken::new();
    let election = (args.leader_elect && !stop.is_cancelled()).then(|| {
        let candidate = Candidate::new(identity(&instance), timing);
        let store = KubeLeaseStore::new(lease, &args.namespace);
        tokio::spawn(campaign(store, candidate, leadership.clone(), resign.clone()))
    });
    let mut outcome = Ok(());
    {
        let terms = async {
            while !stop.is_cancelled() {
                tokio::select! {
                    term = leadership.acquired() => term::work(&office, term, &stop).await,
                    () = stop.cancelled() => {}
                }
            }
        };
        let mut terms = std::pin::pin!(terms);
        tokio::select! {
            () = &mut terms => {}
            // A watch or a server that ended leaves an operator that looks alive and isn't: better none at all. The
            // servers end with `stop` too, and which of the two shows first is chance: only an end that nobody asked for
            // is a fault.
            _ = tasks.join_next() => {
                if !stop.is_cancelled() {
                    tracing::error!("a part of the operator ended by itself");
                    outcome = Err(RunError::Ended);
                    stop.cancel();
                }
                terms.await;
            }
        }
    }
    // Last of all, when nothing of ours is under way any more.
    resign.cancel();
    if let Some(election) = election {
        // It can only have panicked; the lease then runs out by itself.
        let _ = election.await;
    }
    tasks.shutdown().await;
    tracing::info!("stopped");
    outcome
}

/// The name of this process in the Lease. No other process ever has it, a restarted container of the same Pod included:
/// who finds his own name in the Lease may go on.
fn identity(instance: &str) -> String {
    // Each `RandomState` is seeded by the system.
    format!("{instance}_{:016x}", RandomState::new().hash_one(instance))
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
