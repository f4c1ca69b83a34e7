//! What the operator serves over HTTP: `/livez`, `/readyz` and `/metrics`.
//!
//! Health answers on every address it is told (probes come from the kubelet); metrics answer on loopback only, since
//! they are served without a check of who asks. It reads flags that others set, and decides nothing.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::context::Caches;
use crate::queue::Dispatch;
use crate::telemetry::Telemetry;

#[derive(Clone)]
struct Served {
    caches: Arc<Caches>,
    telemetry: Telemetry,
    dispatch: Dispatch,
}

/// An address that can't be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Somebody else listens there, or it isn't ours.
    #[error("cannot listen on {address}: {source}; choose another with --{flag}")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// The flag that sets it.
        flag: &'static str,
        /// Why not.
        source: std::io::Error,
    },
    /// Metrics carry no check of who asks.
    #[error(
        "--metrics-address {0} is not a loopback address: metrics are served without authentication, on loopback only"
    )]
    NotLoopback(SocketAddr),
}

/// Binds both servers, so that a taken port is an error at the start and not later.
pub async fn bind(health: SocketAddr, metrics: SocketAddr) -> Result<(TcpListener, TcpListener), ServeError> {
    if !metrics.ip().is_loopback() {
        return Err(ServeError::NotLoopback(metrics));
    }
    let listen = async |address: SocketAddr, flag: &'static str| {
        TcpListener::bind(address).await.map_err(|source| ServeError::Listen { address, flag, source })
    };
    Ok((listen(health, "health-address").await?, listen(metrics, "metrics-address").await?))
}

/// Serves until `stop`.
pub async fn serve(
    listeners: (TcpListener, TcpListener),
    caches: Arc<Caches>,
    telemetry: Telemetry,
    dispatch: Dispatch,
    stop: CancellationToken,
) {
    let served = Served { caches, telemetry, dispatch };
    let health = Router::new()
        .route("/livez", get(|| async { "ok" }))
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(readyz))
        .with_state(served.clone());
    let metrics = Router::new().route("/metrics", get(metrics)).with_state(served);
    let run = |listener: TcpListener, router: Router, stop: CancellationToken| async move {
        let server = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
        if let Err(error) = server.await {
            tracing::error!(%error, "a server ended");
        }
    };
    tokio::join!(run(listeners.0, health, stop.clone()), run(listeners.1, metrics, stop));
}

async fn readyz(State(served): State<Served>) -> impl IntoResponse {
    let caches = &served.caches;
    let caches = [
        ("apps", caches.apps.is_synced()),
        ("deployments", caches.deployments.is_synced()),
        ("horizontalpodautoscalers", caches.scalers.is_synced()),
    ];
    let missing: Vec<_> = caches.iter().filter(|(_, synced)| !synced).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        (StatusCode::OK, "ok".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("no complete list yet of: {}", missing.join(", ")))
    }
}

async fn metrics(State(served): State<Served>) -> impl IntoResponse {
    let (unfinished, longest) = served.dispatch.unfinished();
    let text = served.telemetry.encode(unfinished, longest);
    ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
}
