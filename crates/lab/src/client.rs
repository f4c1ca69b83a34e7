//! Clients of kube-rs from kubeconfig files.
//!
//! Installs rustls' ring provider once, since without a process default kube-rs panics, and keeps proxy settings of
//! the environment away from a control plane on this machine. Called by control_plane and existing.

use std::path::Path;

use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{ClientBuilder, ConfigExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig};
use tower::{BoxError, ServiceBuilder};

use crate::LabError;

/// Makes ring the process's TLS provider. Idempotent; another provider installed before stays.
pub fn install_crypto_provider() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// A client for the current context of a kubeconfig file, default retries off: a test wants to see each answer.
pub async fn client_from(kubeconfig: &Path) -> Result<kube::Client, LabError> {
    client_with(kubeconfig, true).await
}

pub(crate) async fn client_with(kubeconfig: &Path, on_this_machine: bool) -> Result<kube::Client, LabError> {
    install_crypto_provider();
    let refused =
        |e: &dyn std::fmt::Display| LabError::Kubeconfig { path: kubeconfig.to_owned(), why: e.to_string() };
    let file = Kubeconfig::read_from(kubeconfig).map_err(|e| refused(&e))?;
    let options = KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(file, &options).await.map_err(|e| refused(&e))?;
    if on_this_machine {
        config.proxy_url = None;
    }
    without_delay(&config).map_err(|e| refused(&e))
}

/// A client without retries and with `TCP_NODELAY`, which `kube` leaves off: a bench would measure the kernel's wait for
/// acknowledgements now and then.
fn without_delay(config: &kube::Config) -> Result<kube::Client, kube::Error> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let tls = config.rustls_https_connector_with_connector(tcp)?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(tls));
    Ok(ClientBuilder::new(service, config.default_namespace.clone()).build())
}
