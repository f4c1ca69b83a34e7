//! What the operator remembers of an App between two passes.
//!
//! Nothing in here is needed for a right decision: everything can be lost in a restart, at the cost of one no-op write or
//! of a count that begins anew. A pass takes the memory of its App out and puts it back; the work queue sees to it that
//! no two passes over one App run at the same time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kubesentry_api::children::Intent;
use kubesentry_api::conditions::Blocked;
use kubesentry_api::reasons::Reason;
use kubesentry_api::status::LastDecision;
use kubesentry_api::{Parsed, ValidApp};
use kubesentry_engine::audit::Draft;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::contention::Contention;
use crate::key::Key;

/// A write of ours that the cache doesn't show yet is waited for this long; a lost watch event then costs a no-op, not
/// the App.
const AWAIT_MAX: Duration = Duration::from_secs(10);

/// An API server that starts forbids everything for a moment (0.3 to 0.7 s were seen): no fault before this.
const FORBIDDEN_GRACE: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Default)]
pub struct Memory {
    /// The App that this speaks of: a recreated one begins anew.
    pub uid: String,
    /// The parsed App, and a hash of what was parsed.
    pub parsed: Option<(u64, Arc<Understood>)>,
    /// What the last pass saw or wrote: an event that shows just this needs no pass.
    pub settled: Option<Seen>,
    /// Our last write to the App.
    pub app_write: Awaited,
    /// Our last write to the Deployment.
    pub child_write: Awaited,
    /// Who keeps changing our fields.
    pub contention: Contention,
    /// The API server refused this intent.
    pub refused: Option<Refused>,
    /// An apply changed nothing though something was missing: what was sent isn't sent again on this resourceVersion.
    pub fruitless: Option<(Sent, String)>,
    /// Done, but not yet in the status.
    pub unreported: Unreported,
    /// The export on deletion.
    pub export: Export,
}

/// A parsed App with what it becomes.
#[derive(Debug)]
pub struct Understood {
    /// Violations and warnings, and the App if it has none.
    pub parsed: Parsed,
    /// The intent of its Deployment.
    pub intent: Option<Intent>,
}

impl Understood {
    /// The App with its intent, if nothing is wrong with it.
    pub fn valid(&self) -> Option<(&ValidApp, &Intent)> {
        Some((self.parsed.app.as_ref()?, self.intent.as_ref()?))
    }
}

/// The versions of everything that a pass reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// resourceVersion of the App.
    pub app: String,
    /// resourceVersion of the Deployment.
    pub child: Option<String>,
    /// Another scaler targets the Deployment.
    pub scaler: Option<Key>,
}

/// A resourceVersion that a cache must show before the next write.
#[derive(Debug, Default)]
pub struct Awaited {
    version: Option<(u64, Instant)>,
}

impl Awaited {
    /// Remembers a write.
    pub fn wrote(&mut self, resource_version: &str, now: Instant) {
        self.version = resource_version.parse().ok().map(|version| (version, now));
    }

    /// Whether a cache that shows everything up to version `reached` is still behind.
    pub fn is_pending(&mut self, reached: u64, now: Instant) -> bool {
        let Some((version, since)) = self.version else {
            return false;
        };
        if reached >= version || now.saturating_duration_since(since) > AWAIT_MAX {
            self.version = None;
            return false;
        }
        true
    }
}

/// What an apply sent: hash of the intent, and the size where it is ours (the hash leaves it out).
pub type Sent = (String, Option<u32>);

/// An intent that the API server refused.
#[derive(Debug, Clone)]
pub struct Refused {
    /// What was sent.
    pub sent: Sent,
    /// What to report.
    pub blocked: Blocked,
    /// The spec is to blame (`SpecValid`), not the cluster (`Stalled`).
    pub is_invalid: bool,
    /// When it is tried again.
    pub retry_at: Instant,
    /// When it was refused for the first time.
    pub since: Instant,
    /// Refusals in a row.
    pub times: u32,
}

impl Refused {
    /// Whether it may be no more than an API server that starts: it forbids everything for a moment. Tried again, and not
    /// told yet.
    pub fn is_in_grace(&self, now: Instant) -> bool {
        self.blocked.reason == Reason::Forbidden
            && now.saturating_duration_since(self.since) < FORBIDDEN_GRACE
    }
}

/// Records and decision of writes that the status doesn't show yet.
#[derive(Debug, Default, Clone)]
pub struct Unreported {
    /// Audit records to be.
    pub drafts: Vec<Draft>,
    /// The last decision about the size.
    pub decision: Option<LastDecision>,
}

/// How far the export on deletion is.
#[derive(Debug, Default)]
pub struct Export {
    /// When it began, by the monotonic clock.
    pub begun: Option<Instant>,
    /// Attempts so far.
    pub attempts: u32,
    /// When it may be tried again.
    pub next_at: Option<Instant>,
}

/// The memories of all Apps.
#[derive(Default)]
pub struct Memories {
    by_key: Mutex<HashMap<Key, Memory>>,
}

impl Memories {
    /// Takes the memory of an App out for a pass; a new one for a new UID.
    pub fn take(&self, key: &Key, uid: &str) -> Memory {
        match self.by_key.lock().remove(key) {
            Some(memory) if memory.uid == uid => memory,
            _ => Memory { uid: uid.to_owned(), ..Memory::default() },
        }
    }

    /// Puts it back after the pass.
    pub fn put(&self, key: &Key, memory: Memory) {
        self.by_key.lock().insert(key.clone(), memory);
    }

    /// Forgets an App.
    pub fn forget(&self, key: &Key) {
        self.by_key.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_awaited_until_the_cache_shows_it_or_a_later_version() {
        let now = Instant::now();
        for (reached, pending) in [(0, true), (99, true), (100, false), (101, false), (1000, false)] {
            let mut awaited = Awaited::default();
            awaited.wrote("100", now);
            assert_eq!(awaited.is_pending(reached, now), pending, "{reached}");
        }
    }

    #[test]
    fn a_lost_event_is_not_awaited_for_ever() {
        let (mut awaited, now) = (Awaited::default(), Instant::now());
        awaited.wrote("100", now);
        assert!(awaited.is_pending(99, now + Duration::from_secs(10)));
        assert!(!awaited.is_pending(99, now + Duration::from_secs(11)));
    }

    #[test]
    fn a_recreated_app_begins_anew() {
        let (memories, key) = (Memories::default(), Key::new("n", "a"));
        let mut memory = memories.take(&key, "old");
        memory.fruitless = Some(((String::new(), None), String::new()));
        memories.put(&key, memory);
        assert!(memories.take(&key, "new").fruitless.is_none());
    }
}
