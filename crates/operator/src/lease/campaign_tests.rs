use std::sync::Arc;

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::*;

/// How the API server answers at the moment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mood {
    Well,
    /// 403, 429, 503: an answer that is none.
    Refuses,
    Hangs,
}

#[derive(Clone)]
struct Fake {
    state: Arc<Mutex<(Mood, u64, Option<LeaseRecord>)>>,
}

impl Fake {
    fn new() -> Self {
        Self { state: Arc::new(Mutex::new((Mood::Well, 0, None))) }
    }

    fn mood(&self, mood: Mood) {
        self.state.lock().0 = mood;
    }

    fn holder(&self) -> String {
        self.state.lock().2.clone().unwrap_or_default().holder
    }

    async fn answers(&self) -> Result<(), StoreError> {
        sleep(Duration::from_millis(3)).await;
        let mood = self.state.lock().0;
        match mood {
            Mood::Well => Ok(()),
            Mood::Refuses => Err(StoreError::Failed("403 forbidden".to_owned())),
            Mood::Hangs => std::future::pending().await,
        }
    }

    fn write(&self, record: &LeaseRecord) -> Seen {
        let mut state = self.state.lock();
        state.1 += 1;
        state.2 = Some(record.clone());
        Seen { version: state.1.to_string(), record: record.clone() }
    }
}

impl LeaseStore for Fake {
    async fn get(&self) -> Result<Option<Seen>, StoreError> {
        self.answers().await?;
        let state = self.state.lock();
        Ok(state.2.clone().map(|record| Seen { version: state.1.to_string(), record }))
    }

    async fn create(&self, record: &LeaseRecord) -> Result<Seen, StoreError> {
        self.answers().await?;
        if self.state.lock().2.is_some() { Err(StoreError::Conflict) } else { Ok(self.write(record)) }
    }

    async fn update(&self, record: &LeaseRecord, version: &str) -> Result<Seen, StoreError> {
        self.answers().await?;
        let current = self.state.lock().1.to_string();
        if current == version { Ok(self.write(record)) } else { Err(StoreError::Conflict) }
    }
}

struct Replica {
    leadership: Leadership,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

fn start(store: &Fake, identity: &str) -> Replica {
    let (leadership, stop) = (Leadership::default(), CancellationToken::new());
    let candidate = Candidate::new(identity.to_owned(), Timing::default());
    let task = tokio::spawn(campaign(store.clone(), candidate, leadership.clone(), stop.clone()));
    Replica { leadership, stop, task }
}

#[tokio::test(start_paused = true)]
async fn a_stopped_leader_gives_the_lease_back_and_the_other_one_needs_no_lease_duration() {
    let store = Fake::new();
    let a = start(&store, "a");
    a.leadership.acquired().await;
    let b = start(&store, "b");
    sleep(Duration::from_secs(30)).await;
    assert!(a.leadership.permit().is_some() && b.leadership.permit().is_none());
    let stopped = Instant::now();
    a.stop.cancel();
    a.task.await.unwrap();
    assert!(a.leadership.permit().is_none());
    b.leadership.acquired().await;
    assert!(stopped.elapsed() < Duration::from_secs(3), "{:?}", stopped.elapsed());
    assert_eq!(store.holder(), "b");
}

#[tokio::test(start_paused = true)]
async fn an_outage_shorter_than_the_deadline_costs_no_term_and_a_longer_one_does() {
    for (mood, seconds, keeps) in [
        (Mood::Refuses, 7, true),
        (Mood::Hangs, 4, true),
        (Mood::Refuses, 13, false),
        (Mood::Hangs, 13, false),
    ] {
        let store = Fake::new();
        let a = start(&store, "a");
        let term = a.leadership.acquired().await;
        sleep(Duration::from_secs(10)).await;
        store.mood(mood);
        let lost = tokio::spawn({
            let leadership = a.leadership.clone();
            async move { leadership.lost(term).await }
        });
        sleep(Duration::from_secs(seconds)).await;
        store.mood(Mood::Well);
        assert_eq!(a.leadership.permit().is_some(), keeps, "{seconds} s");
        // Alone it leads again, soon after the outage.
        tokio::time::timeout(Duration::from_secs(8), a.leadership.acquired()).await.unwrap();
        assert_eq!(lost.is_finished(), !keeps, "{seconds} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_at_the_start_is_an_outage_and_not_the_end() {
    let store = Fake::new();
    store.mood(Mood::Refuses);
    let a = start(&store, "a");
    sleep(Duration::from_secs(60)).await;
    assert!(a.leadership.permit().is_none() && !a.task.is_finished());
    store.mood(Mood::Well);
    tokio::time::timeout(Duration::from_secs(3), a.leadership.acquired()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn of_two_claimants_at_once_one_leads() {
    for _ in 0..50 {
        let store = Fake::new();
        let (a, b) = (start(&store, "a"), start(&store, "b"));
        sleep(Duration::from_secs(1)).await;
        assert_eq!([&a, &b].iter().filter(|replica| replica.leadership.permit().is_some()).count(), 1);
    }
}

#[test]
fn times_that_cannot_work_together_say_which_flag_and_why() {
    let timing = |lease, renew, retry| {
        let [lease_duration, renew_deadline, retry_period] = [lease, renew, retry].map(Duration::from_millis);
        Timing { lease_duration, renew_deadline, retry_period }.checked().map_err(|error| error.to_string())
    };
    assert!(timing(15_000, 10_000, 2_000).is_ok() && timing(1_000, 600, 200).is_ok());
    for (times, flag) in [
        ((1_500, 1_000, 100), "--lease-duration 1.5s is not a whole number of seconds"),
        ((0, 0, 0), "--lease-duration 0ns is not"),
        ((10_000, 10_000, 2_000), "--renew-deadline 10s must be shorter than --lease-duration 10s"),
        ((15_000, 10_000, 5_000), "--retry-period 5s must be above zero, and twice"),
        ((15_000, 10_000, 0), "--retry-period 0ns must be above zero"),
    ] {
        let error = timing(times.0, times.1, times.2).unwrap_err();
        assert!(error.starts_with(flag), "{error}");
    }
}
