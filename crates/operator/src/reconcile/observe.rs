//! Step 1: a snapshot of everything that a pass reads.
//!
//! Reads the caches, never the API server, and changes nothing. What comes after sees only this snapshot.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::context::Context;
use crate::key::Key;
use crate::memory::Seen;
use crate::objects::{App, Deployment};
use crate::timestamps::whole_seconds;

/// See the module.
#[derive(Debug, Clone)]
pub struct Observation {
    /// The App.
    pub app: Arc<App>,
    /// The Deployment of the App's name, whosever it is.
    pub child: Option<Arc<Deployment>>,
    /// Another scaler that targets it.
    pub scaler: Option<Key>,
    /// The wall clock.
    pub now: Timestamp,
    /// The monotonic clock.
    pub mono: Instant,
}

/// The snapshot of one App; `None` where there is no such App any more.
pub fn observe(context: &Context, key: &Key) -> Option<Observation> {
    Some(Observation {
        app: context.caches.apps.get(key)?,
        child: context.caches.deployments.get(key),
        scaler: context.caches.scaler_of(key),
        now: Timestamp::now(),
        mono: Instant::now(),
    })
}

impl Observation {
    /// The versions that this snapshot shows.
    pub fn seen(&self) -> Seen {
        Seen {
            app: self.app.resource_version.clone(),
            child: self.child.as_ref().map(|child| child.resource_version.clone()),
            scaler: self.scaler.clone(),
        }
    }

    /// The wall clock as statuses and records write it: RFC 3339 in whole seconds, UTC.
    pub fn timestamp(&self) -> String {
        whole_seconds(self.now)
    }
}
