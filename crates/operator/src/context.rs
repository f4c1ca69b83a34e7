//! What every pass can reach: the caches, the doors, the memories.
//!
//! Built by `term`, shared by all workers. It holds no decision.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kubesentry_api::ParseOptions;
use parking_lot::RwLock;

use crate::cache::Cache;
use crate::door::Door;
use crate::events::{Event, EventType, Events};
use crate::key::Key;
use crate::memory::Memories;
use crate::objects::{App, Deployment, Scaler};
use crate::telemetry::Telemetry;

/// Version of the operator, as it stands in audit records and metrics.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The last observed state of everything that is watched. Kept by every replica, so that a new leader begins at once.
#[derive(Default)]
pub struct Caches {
    /// Every App.
    pub apps: Cache<App>,
    /// Every Deployment.
    pub deployments: Cache<Deployment>,
    /// Every scaler that isn't ours.
    pub scalers: Cache<Scaler>,
    /// Which scalers target a Deployment.
    pub scaled: RwLock<HashMap<Key, BTreeSet<Key>>>,
}

/// See the module. Made anew for each term: nothing that was remembered or decided in one is used in another.
pub struct Context {
    /// What is observed.
    pub caches: Arc<Caches>,
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

impl Caches {
    /// Caches of these namespaces; of the whole cluster where there is none.
    pub fn over(namespaces: &[String]) -> Self {
        Self {
            apps: Cache::over(namespaces),
            deployments: Cache::over(namespaces),
            scalers: Cache::over(namespaces),
            scaled: RwLock::default(),
        }
    }

    /// The first scaler, by name, that targets the Deployment of that key.
    pub fn scaler_of(&self, target: &Key) -> Option<Key> {
        self.scaled.read().get(target).and_then(|scalers| scalers.first().cloned())
    }
}

impl Context {
    /// Sends an event about an App; one that finds no room is counted and lost.
    pub fn tell(&self, app: &App, kind: EventType, reason: &str, action: &str, note: &str) {
        let sent = self.events.send(Event {
            key: app.key.clone(),
            uid: app.uid.clone(),
            kind,
            reason: reason.to_owned(),
            action: action.to_owned(),
            note: note.to_owned(),
        });
        if !sent {
            self.telemetry.event_dropped();
        }
    }
}
