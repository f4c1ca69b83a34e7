//! What every pass can reach: the caches, the doors, the memories.
//!
//! Built once by `wire`, shared by all workers. It holds no decision.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use kube::Client;
use kubesentry_api::ParseOptions;
use parking_lot::RwLock;

use crate::cache::Cache;
use crate::door::Door;
use crate::events::Events;
use crate::key::Key;
use crate::memory::Memories;
use crate::objects::{App, Deployment, Scaler};
use crate::telemetry::Telemetry;

/// Version of the operator, as it stands in audit records and metrics.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// See the module.
pub struct Context {
    /// Every App.
    pub apps: Cache<App>,
    /// Every Deployment.
    pub deployments: Cache<Deployment>,
    /// Every scaler that isn't ours.
    pub scalers: Cache<Scaler>,
    /// Which scalers target a Deployment.
    pub scaled: RwLock<HashMap<Key, BTreeSet<Key>>>,
    /// The one door for writes.
    pub door: Door,
    /// Reads; retries on its own.
    pub reader: Client,
    /// What is remembered of each App.
    pub memories: Memories,
    /// What the administrator allows.
    pub options: ParseOptions,
    /// Metrics.
    pub telemetry: Telemetry,
    /// Events.
    pub events: Events,
    /// Namespace of the operator: audit chunks go there.
    pub namespace: String,
    /// Name of this process in audit records and events.
    pub instance: String,
    /// Longest that an export may hold a deletion up.
    pub export_deadline: Duration,
}

impl Context {
    /// The first scaler, by name, that targets the Deployment of that key.
    pub fn scaler_of(&self, target: &Key) -> Option<Key> {
        self.scaled.read().get(target).and_then(|scalers| scalers.first().cloned())
    }

    /// Every cache has had a complete list.
    pub fn is_synced(&self) -> bool {
        self.apps.is_synced() && self.deployments.is_synced() && self.scalers.is_synced()
    }
}
