//! A cluster somebody else runs (kind, k3d, a real one), used only when it is named.
//!
//! The chosen context is copied into a folder of the lab with nothing else in it, so that nothing done later can hit
//! another context. Users are impersonated, since the cluster's CA is out of reach. There is no audit log to read.
//! Called by control_plane.

use std::path::{Path, PathBuf};

use kube::config::{AuthInfo, Kubeconfig, NamedAuthInfo};

use crate::LabError;
use crate::kubeconfig::write_private;
use crate::launch::admin_kubeconfig;
use crate::workdir::WorkDir;

/// The one context of an existing cluster.
#[derive(Debug)]
pub(crate) struct Existing {
    config: Kubeconfig,
    pub(crate) server: String,
    /// Only in the process that opened it.
    _work: Option<WorkDir>,
}

impl Existing {
    /// Reads a file (else the default one) and keeps one context: the named one, or the current one of a file that
    /// was named.
    pub(crate) fn open(work: WorkDir, file: Option<&Path>, context: Option<&str>) -> Result<Self, LabError> {
        let path = file.map_or_else(|| PathBuf::from("the default kubeconfig"), Path::to_owned);
        let refused = |why: String| LabError::Kubeconfig { path: path.clone(), why };
        let read = match file {
            Some(file) => Kubeconfig::read_from(file),
            None if context.is_none() => {
                return Err(refused("neither a file nor a context was named".to_owned()));
            }
            None => Kubeconfig::read(),
        };
        let mut config = read.map_err(|e| refused(e.to_string()))?;
        let context = context.map(str::to_owned).or_else(|| config.current_context.clone());
        let context = context.ok_or_else(|| refused("it has no current context".to_owned()))?;
        config.contexts.retain(|c| c.name == context);
        let chosen = config.contexts.first().and_then(|c| c.context.clone());
        let chosen = chosen.ok_or_else(|| refused(format!("it has no context {context:?}")))?;
        config.clusters.retain(|c| c.name == chosen.cluster);
        config.auth_infos.retain(|a| Some(&a.name) == chosen.user.as_ref());
        config.current_context = Some(context);
        let server = server_of(&config).ok_or_else(|| refused("its cluster has no server".to_owned()))?;
        write(&admin_kubeconfig(work.path()), &config)?;
        Ok(Self { config, server, _work: Some(work) })
    }

    /// What another process opened in this folder.
    pub(crate) fn load(dir: &Path) -> Result<Self, LabError> {
        let path = admin_kubeconfig(dir);
        let config = Kubeconfig::read_from(&path)
            .map_err(|e| LabError::Kubeconfig { path: path.clone(), why: e.to_string() })?;
        let server = server_of(&config).unwrap_or_default();
        Ok(Self { config, server, _work: None })
    }

    /// The same context, acting as somebody else. The cluster must allow impersonation.
    pub(crate) fn write_user(&self, path: &Path, user: &str, groups: &[&str]) -> Result<(), LabError> {
        let mut config = self.config.clone();
        for NamedAuthInfo { auth_info, .. } in &mut config.auth_infos {
            let info = auth_info.get_or_insert_with(AuthInfo::default);
            info.impersonate = Some(user.to_owned());
            info.impersonate_groups = Some(groups.iter().map(|g| (*g).to_owned()).collect());
        }
        write(path, &config)
    }
}

fn server_of(config: &Kubeconfig) -> Option<String> {
    config.clusters.first()?.cluster.as_ref()?.server.clone()
}

fn write(path: &Path, config: &Kubeconfig) -> Result<(), LabError> {
    let text = serde_json::to_string(config)
        .map_err(|e| LabError::Kubeconfig { path: path.to_owned(), why: e.to_string() })?;
    write_private(path, &text)
}
