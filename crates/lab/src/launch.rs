//! Starting an owned control plane in its folder, step by step, until it is ready.
//!
//! Certificates, servers, then the effects that show that they work; `lab.json` is written after each step, so that a
//! killed owner leaves a folder that says what it had started. Knows the order, leaves each step to its module. Called
//! by control_plane.

use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::pki::Pki;
use crate::servers::{Plan, Servers};
use crate::{Assets, LabError, LabOptions, LabState, Layer, client, kubeconfig, ready, servers};

/// The user the readiness check asks as: nobody binds anything to it.
pub(crate) const PLAIN_USER: &str = "lab:nobody";

/// The user kube-controller-manager is; bootstrap roles are bound to it.
const CONTROLLERS: &str = "system:kube-controller-manager";

/// Starts the servers of a new folder and waits until they have shown that they work.
pub(crate) async fn start_in(
    dir: &Path,
    o: &LabOptions,
    assets: Assets,
) -> Result<(Servers, Plan, LabState), LabError> {
    let pki = Pki::create(dir)?;
    let users = dir.join("users");
    std::fs::create_dir(&users).map_err(LabError::io("create the folder", &users))?;
    let plan = Plan { dir: dir.to_owned(), assets, fsync: o.fsync, pki };
    let mut servers = plan.start().await?;
    let mut state = LabState {
        name: name_of(dir),
        layer: o.layer,
        ready: false,
        supervised: false,
        existing: false,
        owner_pid: std::process::id(),
        pids: servers.pids().collect(),
        api_url: servers::api_url(servers.ports),
        etcd_url: servers::etcd_url(servers.ports),
        assets: plan.assets.clone(),
        started_at: Timestamp::now(),
    };
    state.write(dir)?;

    let file = admin_kubeconfig(dir);
    write_kubeconfig(dir, &state.api_url, &file, "lab:admin", &["system:masters"])?;
    let admin = client::client_with(&file, true).await?;
    let file = kubeconfig::file_for(dir, PLAIN_USER, &[]);
    write_kubeconfig(dir, &state.api_url, &file, PLAIN_USER, &[])?;
    ready::api(&mut servers, &admin, &client::client_with(&file, true).await?).await?;
    if o.layer == Layer::ApiGc {
        let file = kubeconfig::file_for(dir, CONTROLLERS, &[]);
        write_kubeconfig(dir, &state.api_url, &file, CONTROLLERS, &[])?;
        plan.start_controllers(&mut servers, &file)?;
        state.pids = servers.pids().collect();
        state.write(dir)?;
        ready::collector(&mut servers, &admin).await?;
    }
    state.ready = true;
    state.write(dir)?;
    Ok((servers, plan, state))
}

/// A lab's name is its folder's.
pub(crate) fn name_of(dir: &Path) -> String {
    dir.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
}

pub(crate) fn admin_kubeconfig(dir: &Path) -> PathBuf {
    dir.join("admin.kubeconfig")
}

/// Signs a certificate for a user and writes a kubeconfig with it.
pub(crate) fn write_kubeconfig(
    dir: &Path,
    url: &str,
    path: &Path,
    user: &str,
    groups: &[&str],
) -> Result<(), LabError> {
    let pki = Pki::at(dir);
    let ca = std::fs::read_to_string(pki.ca()).map_err(LabError::io("read", pki.ca()))?;
    let identity = pki.client(user, groups)?;
    kubeconfig::write_private(path, &kubeconfig::render(url, &ca, user, &identity))
}
