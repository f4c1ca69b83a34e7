//! What a running lab tells others: the file `lab.json` in its folder.
//!
//! Written by the owner, atomically, after each server it starts, so that whoever finds the folder of a killed owner
//! can tell which processes to look for. Read by attach, list and down. Holds no secrets.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::kubeconfig::write_private;
use crate::{Assets, LabError};

/// The file's name.
pub(crate) const FILE: &str = "lab.json";

/// How much of a control plane runs.
///
/// At either layer the roles `view`, `edit` and `admin` are empty, since nothing aggregates ClusterRoles: bind
/// `system:aggregate-to-view` and so on, or roles of your own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// etcd and kube-apiserver. Nothing acts by itself: no garbage collection, no namespace deletion.
    Api,
    /// `Api` and kube-controller-manager with the garbage collector and the namespace controller.
    #[default]
    ApiGc,
}

/// What `lab.json` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LabState {
    /// The lab's name.
    pub name: String,
    /// What runs.
    pub layer: Layer,
    /// Whether it has shown that it works.
    pub ready: bool,
    /// Whether `sentry-lab up` holds it (and `down` may stop it).
    pub supervised: bool,
    /// Whether it stands for a cluster that somebody else runs.
    pub existing: bool,
    /// The process that owns it.
    pub owner_pid: u32,
    /// Process ids by program name.
    pub pids: BTreeMap<String, u32>,
    /// `https://127.0.0.1:PORT`.
    pub api_url: String,
    /// `http://127.0.0.1:PORT`.
    pub etcd_url: String,
    /// The programs it runs.
    pub assets: Assets,
    /// When it was started.
    pub started_at: Timestamp,
}

impl LabState {
    /// Reads the state of the lab in `dir`.
    pub fn read(dir: &Path) -> Result<Self, LabError> {
        let path = dir.join(FILE);
        let text = std::fs::read_to_string(&path).map_err(LabError::io("read", &path))?;
        serde_json::from_str(&text).map_err(|e| LabError::State { path, why: e.to_string() })
    }

    pub(crate) fn write(&self, dir: &Path) -> Result<(), LabError> {
        let path = dir.join(FILE);
        let text = serde_json::to_string_pretty(self)
            .map_err(|e| LabError::State { path: path.clone(), why: e.to_string() })?;
        write_private(&path, &text)
    }
}
