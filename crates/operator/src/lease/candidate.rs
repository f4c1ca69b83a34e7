//! What one candidate does next, and whether it leads.
//!
//! Pure: time comes in, requests go out as [`Act`]s, their answers come back. Reading the Lease, a lost answer, a
//! conflict or a pause of any length at any point all end in a look at the Lease before anything is claimed.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use jiff::Timestamp;

use super::Timing;
use super::leadership::{Moment, Permit, Term};
use crate::timestamps::micro_time;

/// The `spec` of a Lease, as it is stored. What isn't there is empty or zero.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseRecord {
    /// `holderIdentity`; empty where nobody holds it.
    pub holder: String,
    /// `leaseDurationSeconds`.
    pub seconds: i64,
    /// `leaseTransitions`.
    pub transitions: u64,
    /// `acquireTime`.
    pub acquire_time: String,
    /// `renewTime`.
    pub renew_time: String,
}

/// A Lease as the API server shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// `metadata.resourceVersion`: every update names the one it was decided on.
    pub version: String,
    /// Its content.
    pub record: LeaseRecord,
}

/// What a candidate wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Nothing for this long.
    Wait(Duration),
    /// Read the Lease.
    Get,
    /// Create it.
    Create(LeaseRecord),
    /// Replace it, if it still has this resourceVersion.
    Update(LeaseRecord, String),
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The Lease was read.
    Found(Seen),
    /// There is none.
    NotFound,
    /// The Lease was written and now looks so.
    Written(Seen),
    /// Somebody else was faster.
    Conflict,
    /// No answer, or none that says whether it was done.
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Look,
    Claim,
    Create,
    Renew,
}

#[derive(Debug)]
struct Held {
    term: Term,
    renewed_at: Moment,
    acquire_time: String,
}

/// See the module.
#[derive(Debug)]
pub struct Candidate {
    identity: String,
    timing: Timing,
    phase: Phase,
    /// The Lease as it was seen last, and since when it has looked so.
    observed: Option<(Seen, Moment)>,
    held: Option<Held>,
    next_at: Moment,
    sent_at: Moment,
    attempts: u64,
    conflicts: u32,
    last_written: Timestamp,
}

impl Candidate {
    /// A candidate with an identity that no other process ever has, a restarted self included.
    pub fn new(identity: String, timing: Timing) -> Self {
        let start = Moment(Duration::ZERO);
        Self {
            identity,
            timing,
            phase: Phase::Look,
            observed: None,
            held: None,
            next_at: start,
            sent_at: start,
            attempts: 0,
            conflicts: 0,
            last_written: Timestamp::MIN,
        }
    }

    /// Its times.
    pub fn timing(&self) -> &Timing {
        &self.timing
    }

    /// What to do now. `wall` is written for people and never compared.
    pub fn next(&mut self, now: Moment, wall: Timestamp) -> Act {
        if self.held.is_some() && self.term(now).is_none() {
            tracing::warn!(
                identity = self.identity,
                "the lease could not be renewed in time: this process no longer leads"
            );
            self.held = None;
            self.phase = Phase::Look;
            self.next_at = now;
        }
        if now < self.next_at {
            // A leader comes back at its deadline at the latest, to see that it is over.
            let deadline = self.term(now).map(|permit| permit.acts_until.since(now));
            let wait = self.next_at.since(now);
            return Act::Wait(deadline.map_or(wait, |deadline| deadline.min(wait)));
        }
        self.sent_at = now;
        let version = self.observed.as_ref().map(|(seen, _)| seen.version.clone());
        match (self.phase, version) {
            (Phase::Create, _) => Act::Create(self.record(wall)),
            (Phase::Claim | Phase::Renew, Some(version)) => Act::Update(self.record(wall), version),
            _ => Act::Get,
        }
    }

    /// Takes an answer in.
    pub fn answered(&mut self, answer: Answer, now: Moment) {
        match answer {
            Answer::Found(seen) => self.found(seen, now),
            Answer::NotFound => self.not_found(now),
            Answer::Written(seen) => self.written(seen, now),
            Answer::Conflict => {
                // Right away the first time: it is mostly our own write whose answer was lost.
                self.conflicts += 1;
                self.phase = Phase::Look;
                self.next_at = Moment(
                    now.0 + if self.conflicts > 1 { self.timing.retry_period / 4 } else { Duration::ZERO },
                );
            }
            Answer::Failed => {
                if self.phase != Phase::Renew {
                    self.phase = Phase::Look;
                }
                self.wait(now);
            }
        }
    }

    /// The right to act, if this candidate has it now.
    pub fn term(&self, now: Moment) -> Option<Permit> {
        let held = self.held.as_ref()?;
        let acts_until = Moment(held.renewed_at.0 + self.timing.renew_deadline);
        let lease_until = Moment(held.renewed_at.0 + self.timing.lease_duration);
        (now < acts_until).then_some(Permit { term: held.term, acts_until, lease_until })
    }

    /// The write that gives the Lease back; `None` where this candidate doesn't hold it. Nothing may be under way.
    pub fn release(&self, wall: Timestamp) -> Option<Act> {
        let held = self.held.as_ref()?;
        let (seen, _) = self.observed.as_ref()?;
        let record = LeaseRecord {
            holder: String::new(),
            // 0 is refused by the API server.
            seconds: 1,
            transitions: held.term.0,
            acquire_time: held.acquire_time.clone(),
            renew_time: micro_time(wall),
        };
        Some(Act::Update(record, seen.version.clone()))
    }

    fn found(&mut self, seen: Seen, now: Moment) {
        let is_ours = seen.record.holder == self.identity;
        self.observe(seen, now);
        if self.held.is_some() {
            if is_ours {
                self.phase = Phase::Renew;
                self.next_at = now;
                return;
            }
            tracing::warn!(
                identity = self.identity,
                "another process holds the lease: this one no longer leads"
            );
            self.held = None;
        }
        self.take_or_wait(Phase::Claim, self.left(now), now);
    }

    fn not_found(&mut self, now: Moment) {
        // Somebody removed a Lease that another one holds: that one may still act.
        let left = if self.held.is_some() { Duration::ZERO } else { self.left(now) };
        self.take_or_wait(Phase::Create, left, now);
    }

    /// Takes the Lease in this way, or looks again while it is still another one's, at its end at the latest.
    fn take_or_wait(&mut self, way: Phase, left: Duration, now: Moment) {
        if left.is_zero() {
            self.phase = way;
            self.next_at = now;
        } else {
            self.phase = Phase::Look;
            self.wait(now);
            self.next_at = self.next_at.min(Moment(now.0 + left));
        }
    }

    fn written(&mut self, seen: Seen, now: Moment) {
        let renewed_at = self.sent_at;
        self.conflicts = 0;
        self.phase = Phase::Renew;
        self.next_at = Moment(renewed_at.0 + self.timing.retry_period);
        let acquire_time = seen.record.acquire_time.clone();
        let term = Term(seen.record.transitions);
        self.observe(seen, now);
        if self.held.is_none() {
            tracing::info!(identity = self.identity, term = term.0, "this process leads");
        }
        self.held = Some(Held { term, renewed_at, acquire_time });
    }

    fn observe(&mut self, seen: Seen, now: Moment) {
        match &mut self.observed {
            // A change of labels or annotations is no sign of life.
            Some((known, _)) if known.record == seen.record => known.version = seen.version,
            _ => self.observed = Some((seen, now)),
        }
    }

    /// How long the Lease that was seen last is still another one's.
    fn left(&self, now: Moment) -> Duration {
        let Some((Seen { record, .. }, since)) = &self.observed else {
            return Duration::ZERO;
        };
        if record.holder.is_empty() || record.holder == self.identity {
            return Duration::ZERO;
        }
        // The holder said how long it counts on it; a Lease without that is given our own time.
        let lasts = match u64::try_from(record.seconds) {
            Ok(seconds) if seconds > 0 => Duration::from_secs(seconds),
            _ => self.timing.lease_duration,
        };
        lasts.saturating_sub(now.since(*since))
    }

    fn record(&mut self, wall: Timestamp) -> LeaseRecord {
        // Others watch for a change: a clock that stands still, or that comes back to a time it had before, must not make
        // this process look as if it did nothing.
        let step = Timestamp::from_microsecond(self.last_written.as_microsecond().saturating_add(1));
        let wall = wall.max(step.unwrap_or(wall));
        self.last_written = wall;
        let before = self.observed.as_ref().map(|(seen, _)| &seen.record);
        let (transitions, acquire_time) = match (&self.held, before) {
            (Some(held), _) => (held.term.0, held.acquire_time.clone()),
            (None, Some(record)) if record.holder == self.identity => {
                (record.transitions, record.acquire_time.clone())
            }
            (None, Some(record)) => (record.transitions.saturating_add(1), micro_time(wall)),
            (None, None) => (0, micro_time(wall)),
        };
        LeaseRecord {
            holder: self.identity.clone(),
            seconds: i64::try_from(self.timing.lease_duration.as_secs()).unwrap_or(i64::MAX),
            transitions,
            acquire_time,
            renew_time: micro_time(wall),
        }
    }

    /// Comes back after the retry period, and up to a fifth later (client-go's `JitterFactor`), so that candidates that
    /// began together don't go on together.
    fn wait(&mut self, now: Moment) {
        self.attempts += 1;
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one((&self.identity, self.attempts));
        let jitter = if self.held.is_some() { 0 } else { u32::try_from(hash % 200).unwrap_or_default() };
        self.next_at = Moment(now.0 + self.timing.retry_period + self.timing.retry_period * jitter / 1000);
    }
}

#[cfg(test)]
#[path = "candidate_tests.rs"]
mod tests;
