//! When another writer keeps changing our fields.
//!
//! Up to two changes of a field within five minutes are put back at once. From the third on the field is contended, and
//! is put back ever more rarely: after 30 s, then 60 s, up to 5 minutes. Counted per App and field, in memory. Pure but
//! for what it remembers: time comes in as an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

/// Changes within this window count.
pub const WINDOW: Duration = Duration::from_secs(300);
/// From this many changes on a field is contended.
pub const LIMIT: usize = 3;
const BACKOFF_FIRST: Duration = Duration::from_secs(30);
const BACKOFF_MAX: Duration = Duration::from_secs(300);

/// What to do about lost fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Put them back now.
    PutBack,
    /// Wait this long, then put them back.
    Wait(Duration),
}

#[derive(Debug, Default)]
struct Field {
    changes: Vec<Instant>,
    lost: bool,
    /// Set by the change that reaches the limit, and cleared by a quiet window.
    contended: bool,
    /// The last change, or the last time it was put back.
    touched: Option<Instant>,
}

/// The memory of one App.
#[derive(Debug, Default)]
pub struct Contention {
    fields: BTreeMap<String, Field>,
    backoff: Option<(Duration, Instant)>,
    writer: Option<String>,
}

impl Contention {
    /// Takes in which fields are lost at the moment and says whether they may be put back.
    pub fn observe<'a>(&mut self, lost: impl IntoIterator<Item = &'a str>, now: Instant) -> Verdict {
        let lost: BTreeSet<&str> = lost.into_iter().collect();
        for path in &lost {
            let field = self.fields.entry((*path).to_owned()).or_default();
            if !field.lost {
                field.lost = true;
                field.changes.push(now);
                field.touched = Some(now);
            }
        }
        for (path, field) in &mut self.fields {
            field.lost = lost.contains(path.as_str());
            field.changes.retain(|at| now.saturating_duration_since(*at) < WINDOW);
            let quiet = field.touched.is_none_or(|at| now.saturating_duration_since(at) >= WINDOW);
            field.contended = field.changes.len() >= LIMIT || (field.contended && (field.lost || !quiet));
        }
        self.fields.retain(|_, field| field.lost || field.contended || !field.changes.is_empty());
        if !self.is_contended() {
            self.backoff = None;
            self.writer = None;
        }
        if !self.fields.values().any(|field| field.contended && field.lost) {
            return Verdict::PutBack;
        }
        let (_, until) = *self.backoff.get_or_insert((BACKOFF_FIRST, now + BACKOFF_FIRST));
        if now >= until { Verdict::PutBack } else { Verdict::Wait(until - now) }
    }

    /// Lost fields were put back.
    pub fn put_back(&mut self, now: Instant) {
        for field in self.fields.values_mut().filter(|field| field.lost) {
            field.lost = false;
            field.touched = Some(now);
        }
        if let Some((delay, until)) = &mut self.backoff
            && now >= *until
        {
            *delay = (*delay * 2).min(BACKOFF_MAX);
            *until = now + *delay;
        }
    }

    /// Whether a field is contended.
    pub fn is_contended(&self) -> bool {
        self.fields.values().any(|field| field.contended)
    }

    /// Who changes which field, for people; `None` while nothing is contended.
    pub fn describe(&self) -> Option<String> {
        let fields: Vec<_> =
            self.fields.iter().filter(|(_, field)| field.contended).map(|(path, _)| path.as_str()).collect();
        if fields.is_empty() {
            return None;
        }
        let who = self.writer.as_deref().unwrap_or("another writer");
        let delay = self.backoff.map_or(BACKOFF_FIRST, |(delay, _)| delay).as_secs();
        Some(format!(
            "{who} keeps changing {} of the Deployment (three times within five minutes); it is put back every {delay} s",
            fields.join(", ")
        ))
    }

    /// Remembers who holds the fields.
    pub fn set_writer(&mut self, writer: Option<String>) {
        self.writer = writer;
    }

    /// Whether the writer is known.
    pub fn has_writer(&self) -> bool {
        self.writer.is_some()
    }

    /// How long until this memory changes by itself.
    pub fn next_change(&self, now: Instant) -> Option<Duration> {
        let calms_down = self
            .fields
            .values()
            .filter(|field| field.contended)
            .filter_map(|field| field.touched)
            .map(|at| (at + WINDOW).saturating_duration_since(now));
        let backoff_ends = self.backoff.map(|(_, until)| until.saturating_duration_since(now));
        calms_down.chain(backoff_ends).filter(|delay| !delay.is_zero()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLICAS: &str = ".spec.replicas";

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// One change of the field, seen, put back if the verdict allows it.
    fn change(contention: &mut Contention, now: Instant) -> Verdict {
        contention.observe([], now);
        let verdict = contention.observe([REPLICAS], now);
        if verdict == Verdict::PutBack {
            contention.put_back(now);
        }
        verdict
    }

    #[test]
    fn two_changes_are_put_back_at_once_and_the_third_waits() {
        let (mut contention, start) = (Contention::default(), Instant::now());
        assert_eq!(change(&mut contention, start), Verdict::PutBack);
        assert_eq!(change(&mut contention, start + s(1)), Verdict::PutBack);
        assert!(!contention.is_contended());
        assert_eq!(change(&mut contention, start + s(2)), Verdict::Wait(s(30)));
        assert!(contention.describe().unwrap().contains(".spec.replicas"));
    }

    #[test]
    fn a_lost_field_that_stays_lost_is_one_change() {
        let (mut contention, start) = (Contention::default(), Instant::now());
        for second in 0..10 {
            assert_eq!(contention.observe([REPLICAS], start + s(second)), Verdict::PutBack);
        }
    }

    #[test]
    fn changes_older_than_the_window_do_not_count() {
        let (mut contention, start) = (Contention::default(), Instant::now());
        for n in 0..10 {
            assert_eq!(change(&mut contention, start + s(n * 151)), Verdict::PutBack, "change {n}");
        }
    }

    #[test]
    fn fields_are_counted_apart() {
        let (mut contention, start) = (Contention::default(), Instant::now());
        for (n, field) in [".a", ".b", ".a", ".b"].into_iter().enumerate() {
            let now = start + s(n as u64);
            contention.observe([], now);
            assert_eq!(contention.observe([field], now), Verdict::PutBack);
            contention.put_back(now);
        }
    }

    #[test]
    fn the_wait_doubles_up_to_five_minutes_and_ends_when_the_other_stops() {
        let (mut contention, start) = (Contention::default(), Instant::now());
        let mut now = start;
        for _ in 0..2 {
            change(&mut contention, now);
        }
        let mut waits = Vec::new();
        for _ in 0..6 {
            let Verdict::Wait(wait) = change(&mut contention, now) else { panic!("not contended") };
            waits.push(wait.as_secs());
            now += wait;
            assert_eq!(contention.observe([REPLICAS], now), Verdict::PutBack);
            contention.put_back(now);
        }
        assert_eq!(waits, [30, 60, 120, 240, 300, 300]);
        now += s(601);
        contention.observe([], now);
        assert!(!contention.is_contended() && contention.next_change(now).is_none());
        assert_eq!(change(&mut contention, now), Verdict::PutBack);
    }
}
