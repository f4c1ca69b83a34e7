//! The work queue: which Apps wait for a pass.
//!
//! The semantics are those of client-go's work queue: a key waits at most once; while a key is being worked on a further
//! `add` makes it wait again afterwards; nobody works on a key twice at the same time; first come, first served, so that
//! no key starves. Keys carry no event, only whether time alone woke them ([`Wake`]).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::key::Key;
use crate::telemetry::Telemetry;

/// Why a key came up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wake {
    /// Something was observed. A pass that would see just what the last one saw may be skipped.
    Observed,
    /// Time passed (a retry, a deadline, the resync): the pass runs in any case.
    Due,
}

struct Waiting {
    wake: Wake,
    since: Instant,
}

/// What a timer is for: each kind has one per key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Timer {
    /// A retry, a deadline, a backoff that ends.
    Wanted,
    /// A cache that doesn't show our own write yet.
    Parked,
}

#[derive(Default)]
struct Inner {
    order: VecDeque<Key>,
    waiting: HashMap<Key, Waiting>,
    working: HashMap<Key, Instant>,
    closed: bool,
    /// The one timer of each kind that counts per key.
    timers: HashMap<(Key, Timer), Instant>,
    failures: HashMap<Key, u32>,
}

/// See the module. Clones share one queue.
#[derive(Clone)]
pub struct Queue {
    inner: Arc<Mutex<Inner>>,
    ready: Arc<Notify>,
    telemetry: Telemetry,
}

/// First delay of a retry; it doubles with every failure in a row (client-go's `ItemExponentialFailureRateLimiter`
/// begins at 5 ms as well).
const RETRY_FIRST: Duration = Duration::from_millis(5);
/// Longest delay of a retry.
const RETRY_MAX: Duration = Duration::from_secs(30);

impl Queue {
    /// An empty queue.
    pub fn new(telemetry: Telemetry) -> Self {
        Self { inner: Arc::default(), ready: Arc::new(Notify::new()), telemetry }
    }

    /// Makes a key wait for a pass.
    pub fn add(&self, key: Key, wake: Wake) {
        let mut inner = self.inner.lock();
        if inner.closed {
            return;
        }
        self.telemetry.queue_added();
        if let Some(waiting) = inner.waiting.get_mut(&key) {
            waiting.wake = waiting.wake.max(wake);
            return;
        }
        inner.waiting.insert(key.clone(), Waiting { wake, since: Instant::now() });
        if !inner.working.contains_key(&key) {
            inner.order.push_back(key);
            self.telemetry.queue_depth(inner.order.len());
            drop(inner);
            self.ready.notify_one();
        }
    }

    /// Makes a key wait for a pass when `delay` is over, whatever was scheduled for it before; `None` cancels that.
    pub fn schedule(&self, key: Key, delay: Option<Duration>) {
        self.set_timer(key, Timer::Wanted, delay);
    }

    /// Looks at a key again after `delay`, unless [`Queue::unpark`] is called before: what it waits for may be lost.
    pub fn park(&self, key: Key, delay: Duration) {
        self.set_timer(key, Timer::Parked, Some(delay));
    }

    /// What a parked key waited for has come.
    pub fn unpark(&self, key: &Key) {
        self.set_timer(key.clone(), Timer::Parked, None);
    }

    fn set_timer(&self, key: Key, kind: Timer, delay: Option<Duration>) {
        let slot = (key, kind);
        let Some(delay) = delay else {
            self.inner.lock().timers.remove(&slot);
            return;
        };
        let at = Instant::now() + delay;
        {
            let mut inner = self.inner.lock();
            if inner.closed {
                return;
            }
            inner.timers.insert(slot.clone(), at);
        }
        let queue = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep_until(at).await;
            let due = {
                let mut inner = queue.inner.lock();
                // A later call may have replaced or cancelled this timer.
                let due = inner.timers.get(&slot) == Some(&at);
                if due {
                    inner.timers.remove(&slot);
                }
                due
            };
            if due {
                queue.add(slot.0, Wake::Due);
            }
        });
    }

    /// Makes a key wait again after a failure, ever longer with every failure in a row; answers how many there were.
    pub fn retry(&self, key: Key) -> u32 {
        let failures = {
            let mut inner = self.inner.lock();
            let failures = inner.failures.entry(key.clone()).or_default();
            *failures += 1;
            *failures
        };
        self.telemetry.queue_retried();
        let delay = RETRY_FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(RETRY_MAX);
        self.schedule(key, Some(delay));
        failures
    }

    /// Forgets the failures of a key.
    pub fn forget(&self, key: &Key) {
        self.inner.lock().failures.remove(key);
    }

    /// The next key, when there is one; `None` once the queue is closed.
    pub async fn next(&self) -> Option<(Key, Wake)> {
        loop {
            let notified = self.ready.notified();
            {
                let mut inner = self.inner.lock();
                if inner.closed {
                    return None;
                }
                if let Some(key) = inner.order.pop_front()
                    && let Some(waiting) = inner.waiting.remove(&key)
                {
                    inner.working.insert(key.clone(), Instant::now());
                    self.telemetry.queue_taken(inner.order.len(), waiting.since.elapsed());
                    if !inner.order.is_empty() {
                        // `notify_one` stores a single permit: pass it on to the next worker.
                        self.ready.notify_one();
                    }
                    return Some((key, waiting.wake));
                }
            }
            notified.await;
        }
    }

    /// A pass over a key ended. A key that was added in the meantime waits again.
    pub fn done(&self, key: &Key) {
        let mut inner = self.inner.lock();
        if let Some(begun) = inner.working.remove(key) {
            self.telemetry.queue_done(begun.elapsed());
        }
        if inner.waiting.contains_key(key) && !inner.closed {
            inner.order.push_back(key.clone());
            self.telemetry.queue_depth(inner.order.len());
            drop(inner);
            self.ready.notify_one();
        }
    }

    /// No key is handed out any more.
    pub fn close(&self) {
        self.inner.lock().closed = true;
        self.telemetry.queue_depth(0);
        self.ready.notify_waiters();
    }

    /// Ages of the passes under way, in seconds: of all together, and of the oldest.
    pub fn unfinished(&self) -> (f64, f64) {
        let inner = self.inner.lock();
        let ages = inner.working.values().map(|begun| begun.elapsed().as_secs_f64());
        ages.fold((0.0, 0.0_f64), |(sum, oldest), age| (sum + age, oldest.max(age)))
    }
}

/// Where keys go: into the queue of the term under way; nowhere while this process doesn't lead. A cache must have taken
/// a change in before its key is dispatched: a new term begins with every key of the caches.
#[derive(Clone, Default)]
pub struct Dispatch {
    queue: Arc<RwLock<Option<Queue>>>,
}

impl Dispatch {
    /// Keys go into this queue from now on; `None`: nowhere.
    pub fn to(&self, queue: Option<Queue>) {
        *self.queue.write() = queue;
    }

    /// Makes a key wait for a pass, if this process leads.
    pub fn add(&self, key: Key, wake: Wake) {
        if let Some(queue) = &*self.queue.read() {
            queue.add(key, wake);
        }
    }

    /// See [`Queue::unfinished`].
    pub fn unfinished(&self) -> (f64, f64) {
        self.queue.read().as_ref().map_or((0.0, 0.0), Queue::unfinished)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> Queue {
        Queue::new(Telemetry::new("test"))
    }

    fn key(name: &str) -> Key {
        Key::new("n", name)
    }

    #[tokio::test]
    async fn a_key_waits_once_and_first_come_is_first_served() {
        let queue = queue();
        for name in ["a", "b", "a", "c", "b"] {
            queue.add(key(name), Wake::Observed);
        }
        let mut order = Vec::new();
        for _ in 0..3 {
            order.push(queue.next().await.unwrap().0.name.to_string());
        }
        assert_eq!(order, ["a", "b", "c"]);
    }

    #[tokio::test]
    async fn a_key_added_during_its_pass_waits_again_and_is_never_worked_on_twice() {
        let queue = queue();
        queue.add(key("a"), Wake::Observed);
        let (taken, _) = queue.next().await.unwrap();
        queue.add(key("a"), Wake::Observed);
        assert!(tokio::time::timeout(Duration::from_millis(20), queue.next()).await.is_err());
        queue.done(&taken);
        assert_eq!(queue.next().await.unwrap().0, key("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_schedule_counts_and_its_pass_is_due() {
        let queue = queue();
        let start = Instant::now();
        for seconds in [5, 60, 30] {
            queue.schedule(key("a"), Some(Duration::from_secs(seconds)));
        }
        let (taken, wake) = queue.next().await.unwrap();
        assert_eq!((start.elapsed().as_secs(), wake), (30, Wake::Due));
        queue.done(&taken);
        queue.schedule(taken.clone(), Some(Duration::from_secs(5)));
        queue.schedule(taken, None);
        let more = tokio::time::timeout(Duration::from_secs(120), queue.next()).await;
        assert!(more.is_err(), "one timer, one pass; a cancelled one, none");
    }

    #[tokio::test(start_paused = true)]
    async fn a_parked_key_comes_up_once_unless_unparked_and_keeps_its_schedule() {
        let queue = queue();
        let start = Instant::now();
        queue.schedule(key("a"), Some(Duration::from_secs(60)));
        queue.park(key("a"), Duration::from_secs(10));
        queue.unpark(&key("a"));
        let (taken, _) = queue.next().await.unwrap();
        assert_eq!(start.elapsed().as_secs(), 60);
        queue.done(&taken);
        queue.park(taken, Duration::from_secs(10));
        queue.next().await.unwrap();
        assert_eq!(start.elapsed().as_secs(), 70);
    }

    #[tokio::test(start_paused = true)]
    async fn retries_come_ever_later_until_forgotten() {
        let queue = queue();
        let mut delays = Vec::new();
        for round in 0..16 {
            let start = Instant::now();
            queue.retry(key("a"));
            let (taken, _) = queue.next().await.unwrap();
            delays.push(start.elapsed());
            queue.done(&taken);
            if round == 14 {
                queue.forget(&taken);
            }
        }
        assert_eq!(delays[0], Duration::from_millis(5));
        assert_eq!(delays[1], Duration::from_millis(10));
        assert_eq!(delays[14], RETRY_MAX);
        assert_eq!(delays[15], RETRY_FIRST);
    }

    #[tokio::test]
    async fn several_workers_share_the_work_and_end_when_the_queue_closes() {
        let queue = queue();
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let queue = queue.clone();
                tokio::spawn(async move {
                    let mut served = 0;
                    while let Some((key, _)) = queue.next().await {
                        served += 1;
                        tokio::task::yield_now().await;
                        queue.done(&key);
                    }
                    served
                })
            })
            .collect();
        for n in 0..1000 {
            queue.add(key(&n.to_string()), Wake::Observed);
        }
        while !queue.inner.lock().order.is_empty() || !queue.inner.lock().working.is_empty() {
            tokio::task::yield_now().await;
        }
        queue.close();
        let mut served = 0;
        for worker in workers {
            served += worker.await.unwrap();
        }
        assert_eq!(served, 1000);
    }
}
