//! The last observed state of every object of one kind.
//!
//! Objects are shared and never changed in place: a change replaces the `Arc`. A relist is a diff, so that an object
//! that vanished while nobody watched is told as deleted. It knows no App and no work queue; `wire` feeds it and turns
//! its [`Change`]s into keys.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::key::Key;
use crate::objects::Cached;

/// What a watch tells.
#[derive(Debug)]
pub enum WatchEvent<T> {
    /// A new list begins.
    Restarted,
    /// An object of that list.
    Listed(T),
    /// The list is complete: what isn't in it is gone.
    Synced,
    /// An object was added or changed.
    Applied(T),
    /// An object was deleted.
    Deleted(T),
}

impl<T> WatchEvent<T> {
    /// The same event with another form of its object.
    pub fn map<U>(self, form: impl FnOnce(T) -> U) -> WatchEvent<U> {
        match self {
            Self::Restarted => WatchEvent::Restarted,
            Self::Listed(object) => WatchEvent::Listed(form(object)),
            Self::Synced => WatchEvent::Synced,
            Self::Applied(object) => WatchEvent::Applied(form(object)),
            Self::Deleted(object) => WatchEvent::Deleted(form(object)),
        }
    }
}

/// An object before and after.
#[derive(Debug)]
pub struct Change<T> {
    /// What the cache held before.
    pub before: Option<Arc<T>>,
    /// What it holds now; `None` after a deletion.
    pub after: Option<Arc<T>>,
}

/// What one watch covers, and how far it is.
#[derive(Debug)]
struct Scope<T> {
    /// A namespace; `None` for the whole cluster.
    namespace: Option<String>,
    /// The list under way.
    listing: RwLock<Option<HashMap<Key, Arc<T>>>>,
    synced: AtomicBool,
    reached: AtomicU64,
}

impl<T> Scope<T> {
    /// Everything up to this version is shown now: to be called after the objects changed, never before.
    fn reach(&self, version: u64) {
        self.reached.fetch_max(version, Ordering::AcqRel);
    }
}

/// See the module.
#[derive(Debug)]
pub struct Cache<T> {
    objects: RwLock<HashMap<Key, Arc<T>>>,
    scopes: Vec<Scope<T>>,
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self::over(&[])
    }
}

impl<T> Cache<T> {
    /// A cache fed by one watch per namespace, in that order; by a single one over the whole cluster where there is none.
    pub fn over(namespaces: &[String]) -> Self {
        let scope = |namespace| Scope {
            namespace,
            listing: RwLock::default(),
            synced: AtomicBool::new(false),
            reached: AtomicU64::new(0),
        };
        let scopes = if namespaces.is_empty() {
            vec![scope(None)]
        } else {
            namespaces.iter().map(|namespace| scope(Some(namespace.clone()))).collect()
        };
        Self { objects: RwLock::default(), scopes }
    }
}

impl<T: Cached> Cache<T> {
    /// The object of that key.
    pub fn get(&self, key: &Key) -> Option<Arc<T>> {
        self.objects.read().get(key).cloned()
    }

    /// Every key.
    pub fn keys(&self) -> Vec<Key> {
        self.objects.read().keys().cloned().collect()
    }

    /// A first list of every scope is complete.
    pub fn is_synced(&self) -> bool {
        self.scopes.iter().all(|scope| scope.synced.load(Ordering::Acquire))
    }

    /// The highest version that was observed in a namespace, deletions included. A watch tells the changes of one kind in
    /// their order, so that every write up to this version is shown, and so is what became of it since.
    pub fn reached(&self, namespace: &str) -> u64 {
        let covers =
            |scope: &&Scope<T>| scope.namespace.as_deref().is_none_or(|covered| covered == namespace);
        self.scopes.iter().find(covers).map_or(0, |scope| scope.reached.load(Ordering::Acquire))
    }

    /// Takes an event of the watch over the whole cluster in, or over the first namespace, and tells what changed by it.
    pub fn handle(&self, event: WatchEvent<T>) -> Vec<Change<T>> {
        self.handle_of(0, event)
    }

    /// Takes an event of the n-th watch in and tells what changed by it; nothing where there is no such watch.
    pub fn handle_of(&self, n: usize, event: WatchEvent<T>) -> Vec<Change<T>> {
        let Some(scope) = self.scopes.get(n) else {
            return Vec::new();
        };
        match event {
            WatchEvent::Restarted => {
                *scope.listing.write() = Some(HashMap::new());
                Vec::new()
            }
            WatchEvent::Listed(object) => {
                if let Some(listing) = scope.listing.write().as_mut() {
                    listing.insert(object.key().clone(), Arc::new(object));
                }
                Vec::new()
            }
            WatchEvent::Synced => {
                let listed = scope.listing.write().take().unwrap_or_default();
                let highest = listed.values().map(|object| object.version()).max().unwrap_or_default();
                let changes = self.replace(scope.namespace.as_deref(), listed);
                scope.reach(highest);
                scope.synced.store(true, Ordering::Release);
                changes
            }
            WatchEvent::Applied(object) => {
                let after = Arc::new(object);
                let before = self.objects.write().insert(after.key().clone(), after.clone());
                scope.reach(after.version());
                vec![Change { before, after: Some(after) }]
            }
            WatchEvent::Deleted(object) => {
                let version = object.version();
                let before = self.objects.write().remove(object.key()).unwrap_or_else(|| Arc::new(object));
                scope.reach(version);
                vec![Change { before: Some(before), after: None }]
            }
        }
    }

    /// Puts a list in the place of everything in that namespace, or of all there is.
    fn replace(&self, namespace: Option<&str>, listed: HashMap<Key, Arc<T>>) -> Vec<Change<T>> {
        let mut objects = self.objects.write();
        let gone: Vec<Key> = objects
            .keys()
            .filter(|key| namespace.is_none_or(|covered| *key.namespace == *covered))
            .filter(|key| !listed.contains_key(*key))
            .cloned()
            .collect();
        let mut changes: Vec<Change<T>> = gone
            .iter()
            .filter_map(|key| objects.remove(key))
            .map(|before| Change { before: Some(before), after: None })
            .collect();
        for (key, object) in listed {
            let before = objects.insert(key, object.clone());
            changes.push(Change { before, after: Some(object) });
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Scaler;

    fn object(name: &str) -> Scaler {
        Scaler { key: Key::new("n", name), resource_version: "1".to_owned(), target: None }
    }

    #[test]
    fn what_vanished_between_two_lists_is_told_as_deleted() {
        let cache = Cache::default();
        for event in [
            WatchEvent::Restarted,
            WatchEvent::Listed(object("a")),
            WatchEvent::Listed(object("b")),
            WatchEvent::Synced,
        ] {
            cache.handle(event);
        }
        cache.handle(WatchEvent::Restarted);
        cache.handle(WatchEvent::Listed(object("b")));
        assert!(cache.get(&Key::new("n", "a")).is_some(), "a list under way changes nothing yet");
        let changes = cache.handle(WatchEvent::Synced);
        let gone: Vec<_> = changes
            .iter()
            .filter(|c| c.after.is_none())
            .map(|c| &*c.before.as_ref().unwrap().key.name)
            .collect();
        assert_eq!(gone, ["a"]);
        assert!(cache.get(&Key::new("n", "a")).is_none());
    }

    #[test]
    fn a_deletion_counts_as_shown() {
        let cache = Cache::default();
        let at = |version: &str| Scaler { resource_version: version.to_owned(), ..object("a") };
        cache.handle(WatchEvent::Applied(at("7")));
        cache.handle(WatchEvent::Deleted(at("9")));
        assert_eq!(cache.reached("n"), 9);
    }

    #[test]
    fn a_list_of_one_namespace_says_nothing_of_another() {
        let cache: Cache<Scaler> = Cache::over(&["a".to_owned(), "b".to_owned()]);
        let in_a = Scaler { key: Key::new("a", "x"), resource_version: "5".to_owned(), target: None };
        let in_b = Scaler { key: Key::new("b", "x"), resource_version: "9".to_owned(), target: None };
        for (n, object) in [(0, in_a), (1, in_b)] {
            assert!(!cache.is_synced());
            for event in [WatchEvent::Restarted, WatchEvent::Listed(object), WatchEvent::Synced] {
                cache.handle_of(n, event);
            }
        }
        assert!(cache.is_synced());
        assert_eq!((cache.reached("a"), cache.reached("b"), cache.reached("c")), (5, 9, 0));
        cache.handle_of(0, WatchEvent::Restarted);
        let changes = cache.handle_of(0, WatchEvent::Synced);
        assert_eq!(changes.len(), 1);
        assert!(cache.get(&Key::new("a", "x")).is_none() && cache.get(&Key::new("b", "x")).is_some());
    }

    #[test]
    fn a_snapshot_taken_before_a_change_stays_as_it_was() {
        let cache = Cache::default();
        cache.handle(WatchEvent::Applied(object("a")));
        let snapshot = cache.get(&Key::new("n", "a")).unwrap();
        let changed = Scaler { target: Some(Key::new("n", "shop")), ..object("a") };
        cache.handle(WatchEvent::Applied(changed));
        assert!(snapshot.target.is_none());
        assert!(cache.get(&Key::new("n", "a")).unwrap().target.is_some());
    }
}
