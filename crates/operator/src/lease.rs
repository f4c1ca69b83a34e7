//! Leader election: of several replicas, one acts.
//!
//! [`Candidate`] decides, without a clock and without I/O; [`LeaseStore`] reads and writes the Lease; [`Leadership`] is
//! what the door for writes asks before each of them. [`campaign`] moves the three along. Nothing in here knows an App.
//!
//! The rules are client-go's (`tools/leaderelection`), and two more. A leader counts from the moment at which it *sent*
//! the last renewal that succeeded, and stops acting [`Timing::renew_deadline`] later; another one takes over when it has
//! seen the Lease unchanged for the whole [`Timing::lease_duration`], which begins later still. Both measure on a
//! clock of their own that no one can set: wall clocks are written into the Lease for people, and never compared.

mod candidate;
mod leadership;
mod store;

use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub use candidate::{Act, Answer, Candidate, LeaseRecord, Seen};
pub use leadership::{Clock, Leadership, Moment, NotLeading, Permit, Term};
pub use store::{KubeLeaseStore, LeaseStore, StoreError};

/// Name of the Lease.
pub const LEASE: &str = "kubesentry.sentry.io";

/// How long things take. The defaults are client-go's: 15, 10 and 2 s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// A Lease that doesn't change for this long is free. Whole seconds: the Lease has no finer unit.
    pub lease_duration: Duration,
    /// A leader that could not renew for this long stops acting.
    pub renew_deadline: Duration,
    /// Time between two attempts.
    pub retry_period: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// Times that can't work together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// The unit of a Lease is the second.
    #[error(
        "--lease-duration {0:?} is not a whole number of seconds from 1 on, which is what a Lease can hold"
    )]
    NotWholeSeconds(Duration),
    /// A leader must stop before another may begin.
    #[error(
        "--renew-deadline {0:?} must be shorter than --lease-duration {1:?}: a leader has to stop before another may begin"
    )]
    DeadlineTooLong(Duration, Duration),
    /// One lost request must not end a term.
    #[error(
        "--retry-period {0:?} must be above zero, and twice of it shorter than --renew-deadline {1:?}: one lost request must not end a term"
    )]
    RetryTooLong(Duration, Duration),
}

impl Timing {
    /// The times, if they can work together.
    pub fn checked(self) -> Result<Self, TimingError> {
        let Self { lease_duration, renew_deadline, retry_period } = self;
        if lease_duration.subsec_nanos() != 0 || lease_duration.is_zero() {
            Err(TimingError::NotWholeSeconds(lease_duration))
        } else if renew_deadline >= lease_duration {
            Err(TimingError::DeadlineTooLong(renew_deadline, lease_duration))
        } else if retry_period.is_zero() || retry_period * 2 >= renew_deadline {
            Err(TimingError::RetryTooLong(retry_period, renew_deadline))
        } else {
            Ok(self)
        }
    }

    /// Longest that one request about the Lease may take: a second attempt fits into the deadline.
    fn request_timeout(&self) -> Duration {
        self.renew_deadline / 2
    }
}

/// Runs for leader until `stop`, then gives the Lease back. `leadership` says at any time how it stands.
pub async fn campaign<S: LeaseStore>(
    store: S,
    mut candidate: Candidate,
    leadership: Leadership,
    stop: CancellationToken,
) {
    let limit = candidate.timing().request_timeout();
    let mut trouble = Trouble::default();
    loop {
        let act = candidate.next(leadership.now(), jiff::Timestamp::now());
        leadership.set(candidate.term(leadership.now()));
        let request = match act {
            Act::Wait(time) => {
                tokio::select! {
                    () = tokio::time::sleep(time) => continue,
                    () = stop.cancelled() => break,
                }
            }
            request => send(&store, request),
        };
        let answer = tokio::select! {
            answer = tokio::time::timeout(limit, request) => {
                answer.unwrap_or_else(|_| Err(StoreError::Failed(format!("no answer within {limit:?}"))))
            }
            () = stop.cancelled() => break,
        };
        trouble.note(&answer);
        candidate.answered(answer.unwrap_or(Answer::Failed), leadership.now());
        leadership.set(candidate.term(leadership.now()));
    }
    // Whatever is still under way is refused from here on; only then may another one begin.
    leadership.set(None);
    if tokio::time::timeout(limit, give_back(&store, &mut candidate, &leadership)).await.is_err() {
        tracing::warn!("the lease could not be given back in time; it runs out by itself");
    }
}

/// Gives the Lease back, so that another one need not wait for it to run out.
async fn give_back<S: LeaseStore>(store: &S, candidate: &mut Candidate, leadership: &Leadership) {
    while let Some(act) = candidate.release(jiff::Timestamp::now()) {
        match send(store, act).await {
            Ok(Answer::Written(_)) => {
                tracing::info!("the lease is given back");
                return;
            }
            // A renewal was under way when the stop came: it is its version that counts.
            Ok(Answer::Conflict) => match send(store, Act::Get).await {
                Ok(answer) => candidate.answered(answer, leadership.now()),
                Err(error) => return tracing::warn!(%error, "the lease could not be given back"),
            },
            Ok(_) => return,
            Err(error) => {
                tracing::warn!(%error, "the lease could not be given back; it runs out by itself");
                return;
            }
        }
    }
}

async fn send<S: LeaseStore>(store: &S, act: Act) -> Result<Answer, StoreError> {
    match act {
        Act::Get => store.get().await.map(|seen| seen.map_or(Answer::NotFound, Answer::Found)),
        Act::Create(record) => store.create(&record).await.map(Answer::Written),
        Act::Update(record, version) => store.update(&record, &version).await.map(Answer::Written),
        Act::Wait(_) => Ok(Answer::Failed),
    }
    .or_else(|error| match error {
        StoreError::Conflict => Ok(Answer::Conflict),
        StoreError::NotFound => Ok(Answer::NotFound),
        error @ StoreError::Failed(_) => Err(error),
    })
}

/// Tells of a Lease that can't be reached: once when it begins, then now and then, and when it is over.
#[derive(Default)]
struct Trouble {
    failures: u32,
}

impl Trouble {
    fn note(&mut self, answer: &Result<Answer, StoreError>) {
        match answer {
            Ok(_) => {
                if self.failures > 1 {
                    tracing::info!(failures = self.failures, "the lease can be reached again");
                }
                self.failures = 0;
            }
            Err(error) => {
                self.failures += 1;
                if self.failures == 2 || self.failures.is_multiple_of(30) {
                    tracing::warn!(failures = self.failures, %error, "the lease cannot be read or written; tried again");
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "lease/campaign_tests.rs"]
mod tests;

/// What tests of other rooms need.
#[cfg(test)]
pub(crate) mod tests_support {
    use super::{Duration, Leadership, Moment, Permit, Term};

    /// A leadership, in term 0, that is not renewed.
    pub(crate) fn leads_for(time: Duration) -> Leadership {
        let leadership = Leadership::default();
        let until = Moment(leadership.now().0 + time);
        leadership.set(Some(Permit { term: Term(0), acts_until: until, lease_until: until }));
        leadership
    }
}
