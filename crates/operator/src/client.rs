//! Clients of the API server: one for reads, one for the Lease, one for writes.
//!
//! All count their requests. The reading one retries on its own; the others never do, since only the caller knows whether
//! a write may be repeated. The writing one lets nothing pass that isn't this process' turn.

#[cfg(debug_assertions)]
pub mod faults;
mod fence;
mod gate;

use std::path::Path;
use std::task::{self, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Request, Response};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tower::retry::RetryLayer;
use tower::{BoxError, Service, ServiceBuilder};

use crate::lease::Leadership;
use crate::telemetry::Telemetry;

/// Longest that a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A cluster that can't be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig can't be used.
    #[error("the kubeconfig {path} cannot be used: {source}")]
    Kubeconfig {
        /// Its path.
        path: String,
        /// Why not.
        source: kube::config::KubeconfigError,
    },
    /// No kubeconfig was given, and this is no Pod.
    #[error("this process does not run inside a cluster ({0}); give it one with --kubeconfig FILE")]
    NotInCluster(kube::config::InClusterError),
    /// The client can't be made.
    #[error("no client can be made from the configuration: {0}")]
    Client(kube::Error),
    /// Faults were asked for, and not understood.
    #[cfg(debug_assertions)]
    #[error("{0}")]
    Faults(String),
}

/// Reads the configuration of the cluster.
pub async fn configuration(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Config, ConnectError> {
    let Some(path) = kubeconfig else {
        return Config::incluster().map_err(ConnectError::NotInCluster);
    };
    let wrong = |source| ConnectError::Kubeconfig { path: path.display().to_string(), source };
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let kubeconfig = Kubeconfig::read_from(path).map_err(wrong)?;
    Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(wrong)
}

/// The three clients; each has connections of its own.
pub struct Clients {
    /// Reads; retries on its own.
    pub reader: Client,
    /// The Lease.
    pub lease: Client,
    /// Writes of the leader.
    pub writer: Client,
}

/// Makes the clients.
pub fn clients(
    config: &Config,
    telemetry: &Telemetry,
    leadership: &Leadership,
) -> Result<Clients, ConnectError> {
    #[cfg(debug_assertions)]
    let faults = faults::Faults::from_environment().map_err(ConnectError::Faults)?;
    let make = |retry: bool, fence: Option<&Leadership>| {
        let base = http_client(config, fence)?;
        #[cfg(debug_assertions)]
        let base = faults::Faulty { inner: base, faults: faults.clone() };
        match fence {
            Some(leadership) => {
                client(config, retry, telemetry, fence::Fence { inner: base, leadership: leadership.clone() })
            }
            None => client(config, retry, telemetry, base),
        }
    };
    Ok(Clients {
        reader: make(true, None)?,
        lease: make(false, None)?,
        writer: make(false, Some(leadership))?,
    })
}

type HttpClient = hyper_util::client::legacy::Client<hyper_rustls::HttpsConnector<gate::Gated>, Body>;

/// A client as `kube` makes it, but for `TCP_NODELAY`: without it the kernel holds the last part of a request back until
/// the server has acknowledged the one before, which costs up to 40 ms now and then (RFC 896 meets delayed ACKs).
fn http_client(config: &Config, leadership: Option<&Leadership>) -> Result<HttpClient, ConnectError> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let gated = gate::Gated { tcp, leadership: leadership.cloned() };
    let tls = config.rustls_https_connector_with_connector(gated).map_err(ConnectError::Client)?;
    Ok(hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(tls))
}

fn client<S, B>(config: &Config, retry: bool, telemetry: &Telemetry, http: S) -> Result<Client, ConnectError>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(retry.then(|| RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer().map_err(ConnectError::Client)?)
        .layer(config.extra_headers_layer().map_err(ConnectError::Client)?)
        .layer(tower::layer::layer_fn(|inner| Counted { inner, telemetry: telemetry.clone() }))
        .map_err(Into::<BoxError>::into)
        .service(http);
    Ok(ClientBuilder::new(service, config.default_namespace.clone()).build())
}

/// Counts requests by method and status code.
#[derive(Clone)]
struct Counted<S> {
    inner: S,
    telemetry: Telemetry,
}

impl<S, B> Service<Request<Body>> for Counted<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let method = request.method().to_string();
        let telemetry = self.telemetry.clone();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            telemetry.request(&method, answer.as_ref().ok().map(|answer| answer.status().as_u16()));
            answer
        })
    }
}
