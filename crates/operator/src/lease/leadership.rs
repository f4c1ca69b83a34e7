//! Whether this process may act right now.
//!
//! Asked by the door before every write, so that the answer must not depend on anybody having run in the meantime: a
//! process that was stopped and woken finds its term over by the clock alone.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

/// A time on the clock of this process: since it began, suspension of the machine included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub Duration);

impl Moment {
    /// The time from an earlier moment to this one.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// A clock that nobody can set.
#[derive(Debug, Clone)]
pub struct Clock {
    mono: Instant,
    boot: Duration,
}

impl Default for Clock {
    fn default() -> Self {
        Self { mono: Instant::now(), boot: boot_time() }
    }
}

impl Clock {
    /// Now. The later of two clocks: Linux' `CLOCK_MONOTONIC` stands still while the machine sleeps, `CLOCK_BOOTTIME`
    /// doesn't.
    pub fn now(&self) -> Moment {
        Moment(self.mono.elapsed().max(boot_time().saturating_sub(self.boot)))
    }
}

#[cfg(target_os = "linux")]
fn boot_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(not(target_os = "linux"))]
fn boot_time() -> Duration {
    Duration::ZERO
}

/// A stretch of time in which one process leads. Every take-over has a higher number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Term(pub u64);

/// A leader's right to act, as it stands now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permit {
    /// The term.
    pub term: Term,
    /// The right to begin anything ends here, unless it is renewed.
    pub acts_until: Moment,
    /// Nobody else acts before this: what is under way must have ended.
    pub lease_until: Moment,
}

/// A write that this process may not make: it doesn't lead, or not in the term in which the write was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this process does not lead (any more): the write was not sent")]
pub struct NotLeading;

/// See the module. Clones share one state.
#[derive(Debug, Clone)]
pub struct Leadership {
    clock: Clock,
    permit: Arc<Mutex<Option<Permit>>>,
    changed: watch::Sender<Option<Term>>,
}

impl Default for Leadership {
    fn default() -> Self {
        Self { clock: Clock::default(), permit: Arc::default(), changed: watch::channel(None).0 }
    }
}

impl Leadership {
    /// Without an election this process acts at any time.
    pub fn always() -> Self {
        let leadership = Self::default();
        let forever = Moment(Duration::MAX);
        leadership.set(Some(Permit { term: Term(0), acts_until: forever, lease_until: forever }));
        leadership
    }

    /// The time on this process' clock.
    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Sets what the election came to.
    pub(super) fn set(&self, permit: Option<Permit>) {
        *self.permit.lock() = permit;
        let term = permit.map(|permit| permit.term);
        self.changed.send_if_modified(|known| std::mem::replace(known, term) != term);
    }

    /// The right to act, if there is one at this moment.
    pub fn permit(&self) -> Option<Permit> {
        let now = self.now();
        (*self.permit.lock()).filter(|permit| now < permit.acts_until)
    }

    /// Whether something that was decided in this term may be sent now, and how long it may take at most.
    pub fn check(&self, term: Term) -> Result<Duration, NotLeading> {
        let permit = self.permit().filter(|permit| permit.term == term).ok_or(NotLeading)?;
        Ok(permit.lease_until.since(self.now()))
    }

    /// Waits for a term.
    pub async fn acquired(&self) -> Term {
        let mut changes = self.changed.subscribe();
        loop {
            // Before the look, so that no change falls between the two.
            changes.mark_unchanged();
            if let Some(permit) = self.permit() {
                return permit.term;
            }
            // The sender lives as long as `self`.
            let _ = changes.changed().await;
        }
    }

    /// Waits for the end of a term: by the election, or by the clock where that doesn't come to it.
    pub async fn lost(&self, term: Term) {
        let mut changes = self.changed.subscribe();
        loop {
            changes.mark_unchanged();
            let Some(permit) = self.permit().filter(|permit| permit.term == term) else {
                return;
            };
            let left = permit.acts_until.since(self.now());
            tokio::select! {
                () = tokio::time::sleep(left) => {}
                _ = changes.changed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permit(term: u64, acts: u64, lease: u64) -> Permit {
        let at = |seconds| Moment(Duration::from_secs(seconds));
        Permit { term: Term(term), acts_until: at(acts), lease_until: at(lease) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_term_ends_by_the_clock_though_nobody_says_so() {
        let leadership = Leadership::default();
        leadership.set(Some(permit(3, 10, 15)));
        tokio::time::advance(Duration::from_millis(9_900)).await;
        let left = leadership.check(Term(3)).unwrap();
        assert!(left <= Duration::from_millis(5_100) && left > Duration::from_secs(5), "{left:?}");
        tokio::time::advance(Duration::from_millis(100)).await;
        assert_eq!(leadership.check(Term(3)), Err(NotLeading));
        leadership.lost(Term(3)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_decided_in_one_term_is_not_sent_in_another() {
        let leadership = Leadership::default();
        leadership.set(Some(permit(4, 10, 15)));
        assert_eq!(leadership.check(Term(3)), Err(NotLeading));
        assert!(leadership.check(Term(4)).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_keeps_the_term_and_its_loss_is_told() {
        let leadership = Leadership::default();
        let waiting = tokio::spawn({
            let leadership = leadership.clone();
            async move { leadership.acquired().await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        leadership.set(Some(permit(1, 11, 16)));
        assert_eq!(waiting.await.unwrap(), Term(1));
        let lost = tokio::spawn({
            let leadership = leadership.clone();
            async move { leadership.lost(Term(1)).await }
        });
        for second in 2..30 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            leadership.set(Some(permit(1, second + 10, second + 15)));
            assert!(!lost.is_finished());
        }
        leadership.set(None);
        lost.await.unwrap();
    }

    #[tokio::test]
    async fn without_an_election_a_process_acts_at_any_time() {
        let leadership = Leadership::always();
        assert_eq!(leadership.acquired().await, Term(0));
        assert!(leadership.check(Term(0)).is_ok_and(|left| left > Duration::from_secs(1 << 40)));
    }
}
