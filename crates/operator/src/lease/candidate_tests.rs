//! Candidates against a Lease with a server's semantics, in time that the test makes: pauses of any length at any point,
//! requests that arrive late, answers that are lost, clocks that jump.

use proptest::prelude::*;

use super::super::Timing;
use super::*;

const TICK: u64 = 50;

fn at(millis: u64) -> Moment {
    Moment(Duration::from_millis(millis))
}

fn wall(micros: i64) -> Timestamp {
    Timestamp::from_microsecond(micros).unwrap()
}

/// The API server's side: one object, writes guarded by its version.
#[derive(Default)]
struct Server {
    version: u64,
    lease: Option<LeaseRecord>,
}

impl Server {
    fn seen(&self) -> Option<Seen> {
        Some(Seen { version: self.version.to_string(), record: self.lease.clone()? })
    }

    fn carry_out(&mut self, act: &Act) -> Answer {
        match (act, self.seen()) {
            (Act::Get, Some(seen)) => Answer::Found(seen),
            (Act::Get | Act::Update(..), None) => Answer::NotFound,
            (Act::Create(record), None) => self.write(record),
            (Act::Update(record, version), Some(seen)) if *version == seen.version => self.write(record),
            (Act::Create(_) | Act::Update(..), Some(_)) => Answer::Conflict,
            (Act::Wait(_), _) => Answer::Failed,
        }
    }

    fn write(&mut self, record: &LeaseRecord) -> Answer {
        self.version += 1;
        self.lease = Some(record.clone());
        self.seen().map_or(Answer::Failed, Answer::Written)
    }
}

/// Runs requests of one candidate at once until it waits.
fn settle(candidate: &mut Candidate, server: &mut Server, now: u64) {
    for _ in 0..10 {
        match candidate.next(at(now), wall(i64::try_from(now * 1000).unwrap())) {
            Act::Wait(_) => return,
            act => {
                let answer = server.carry_out(&act);
                candidate.answered(answer, at(now));
            }
        }
    }
    panic!("the candidate never waits");
}

fn pair() -> (Candidate, Candidate, Server) {
    let (mut a, b) =
        (Candidate::new("a".into(), Timing::default()), Candidate::new("b".into(), Timing::default()));
    let mut server = Server::default();
    settle(&mut a, &mut server, 0);
    (a, b, server)
}

fn leads(candidate: &Candidate, now: u64) -> bool {
    candidate.term(at(now)).is_some()
}

#[test]
fn the_first_one_leads_and_the_second_waits_for_as_long_as_it_renews() {
    let (mut a, mut b, mut server) = pair();
    for now in (0..600_000).step_by(500) {
        settle(&mut a, &mut server, now);
        settle(&mut b, &mut server, now);
        assert!(leads(&a, now) && !leads(&b, now), "{now}");
    }
    assert_eq!(server.lease.unwrap().transitions, 0);
}

#[test]
fn a_dead_leader_is_followed_after_the_lease_duration_and_the_term_has_a_new_number() {
    let (_, mut b, mut server) = pair();
    for now in (0..=15_000).step_by(50) {
        settle(&mut b, &mut server, now);
        assert_eq!(leads(&b, now), now >= 15_000, "{now}");
    }
    assert_eq!(b.term(at(15_000)).unwrap().term, Term(1));
}

#[test]
fn a_leader_paused_past_its_lease_wakes_up_without_it() {
    let (mut a, mut b, mut server) = pair();
    for now in (0..30_000).step_by(50) {
        settle(&mut b, &mut server, now);
    }
    assert!(!leads(&a, 30_000), "by the clock alone, before anything is asked");
    settle(&mut a, &mut server, 30_000);
    assert!(!leads(&a, 30_000) && leads(&b, 30_000));
}

#[test]
fn a_leader_counts_from_the_moment_it_sent_a_renewal_not_from_its_answer() {
    let (mut a, _, mut server) = pair();
    let act = a.next(at(2_000), wall(1));
    assert!(matches!(act, Act::Update(..)), "{act:?}");
    let answer = server.carry_out(&act);
    a.answered(answer, at(6_000));
    let permit = a.term(at(6_000)).unwrap();
    assert_eq!((permit.acts_until, permit.lease_until), (at(12_000), at(17_000)));
}

#[test]
fn a_released_lease_is_taken_at_once() {
    let (a, mut b, mut server) = pair();
    settle(&mut b, &mut server, 0);
    let act = a.release(wall(7)).unwrap();
    assert!(matches!(server.carry_out(&act), Answer::Written(_)));
    settle(&mut b, &mut server, 2_400);
    assert!(leads(&b, 2_400));
    assert_eq!(b.term(at(2_400)).unwrap().term, Term(1));
}

#[test]
fn a_renewal_whose_answer_was_lost_costs_a_look_and_no_term() {
    let (mut a, _, mut server) = pair();
    let act = a.next(at(2_000), wall(1));
    server.carry_out(&act);
    a.answered(Answer::Failed, at(7_000));
    settle(&mut a, &mut server, 9_000);
    assert!(leads(&a, 12_500), "renewed at 9 s");
    assert_eq!(server.lease.unwrap().transitions, 0);
}

#[test]
fn a_claim_whose_answer_was_lost_is_found_to_be_ours() {
    let (mut a, mut server) = (Candidate::new("a".into(), Timing::default()), Server::default());
    let answer = server.carry_out(&a.next(at(0), wall(0)));
    a.answered(answer, at(0));
    server.carry_out(&a.next(at(0), wall(0)));
    a.answered(Answer::Failed, at(5_000));
    assert!(!leads(&a, 5_000), "nobody leads on a guess");
    settle(&mut a, &mut server, 8_000);
    assert!(leads(&a, 8_000));
}

#[test]
fn clocks_that_jump_or_stand_still_change_nothing() {
    for jump in [-86_400_000_000_i64, 0, 86_400_000_000] {
        let (mut a, mut b, mut server) = pair();
        for step in 0..60_u64 {
            let now = step * 1_000;
            let clock = wall(1_000_000_000_000 + if step > 30 { jump } else { 0 });
            for candidate in [&mut a, &mut b] {
                loop {
                    match candidate.next(at(now), clock) {
                        Act::Wait(_) => break,
                        act => {
                            let answer = server.carry_out(&act);
                            candidate.answered(answer, at(now));
                        }
                    }
                }
            }
            assert!(leads(&a, now) && !leads(&b, now), "jump {jump}, second {step}");
        }
    }
}

#[test]
fn a_lease_removed_by_hand_is_no_invitation_while_its_holder_may_act() {
    let (mut a, mut b, mut server) = pair();
    settle(&mut b, &mut server, 1_000);
    server.lease = None;
    settle(&mut b, &mut server, 3_500);
    assert!(server.lease.is_none() && leads(&a, 3_500) && !leads(&b, 3_500));
    settle(&mut a, &mut server, 4_000);
    settle(&mut b, &mut server, 6_500);
    assert!(leads(&a, 6_500) && !leads(&b, 6_500), "its holder makes it again");
}

#[test]
fn labels_on_the_lease_are_no_sign_of_life() {
    let (_, mut b, mut server) = pair();
    for now in (0..=15_000).step_by(500) {
        server.version += 1;
        settle(&mut b, &mut server, now);
    }
    assert!(leads(&b, 15_000));
}

#[test]
fn a_lease_with_nonsense_in_it_is_given_our_own_time() {
    for seconds in [0, -5] {
        let record =
            LeaseRecord { holder: "x".into(), seconds, transitions: u64::MAX, ..LeaseRecord::default() };
        let mut server = Server { version: 4, lease: Some(record) };
        let mut a = Candidate::new("a".into(), Timing::default());
        for now in (0..15_000).step_by(500) {
            settle(&mut a, &mut server, now);
            assert!(!leads(&a, now));
        }
        settle(&mut a, &mut server, 15_000);
        assert!(leads(&a, 15_000));
    }
}

/// What may happen to a candidate or to one of its requests.
#[derive(Debug, Clone)]
struct Schedule {
    /// (from, length) in ticks, per candidate: it does nothing and reads no answer.
    pauses: Vec<Vec<(u64, u64)>>,
    /// Per request, in the order in which they are sent: ticks until it arrives, ticks until its answer is there (`None`:
    /// never), and whether it arrives at all.
    fates: Vec<(u64, Option<u64>, bool)>,
    /// The wall clock jumps by this many seconds at each request.
    jumps: Vec<i64>,
    /// Ticks at which a candidate is replaced by a new process.
    restarts: Vec<(u64, usize)>,
}

const CANDIDATES: usize = 3;
const TICKS: u64 = 3_000;

fn schedules() -> impl Strategy<Value = Schedule> {
    let pause = (0..TICKS, 0..900_u64);
    let fate = (0..160_u64, proptest::option::weighted(0.8, 0..60_u64), proptest::bool::weighted(0.85));
    (
        proptest::collection::vec(proptest::collection::vec(pause, 0..4), CANDIDATES),
        proptest::collection::vec(fate, 60),
        proptest::collection::vec(-100_000..100_000_i64, 20),
        proptest::collection::vec((0..TICKS, 0..CANDIDATES), 0..3),
    )
        .prop_map(|(pauses, fates, jumps, restarts)| Schedule { pauses, fates, jumps, restarts })
}

struct UnderWay {
    act: Act,
    arrives: Option<u64>,
    answered: Option<(u64, Answer)>,
    answer_after: Option<u64>,
    gives_up: u64,
}

/// Plays a schedule, then 60 s without faults; answers how many led at each tick, at most, and at the end.
fn play(schedule: &Schedule) -> (usize, usize) {
    let timing = Timing::default();
    let name = |n: usize, life: u64| format!("{n}-{life}");
    let mut server = Server::default();
    let mut candidates: Vec<Candidate> =
        (0..CANDIDATES).map(|n| Candidate::new(name(n, 0), timing)).collect();
    let mut under_way: Vec<Option<UnderWay>> = (0..CANDIDATES).map(|_| None).collect();
    // Requests whose sender gave up: they may still arrive.
    let mut adrift: Vec<(u64, Act)> = Vec::new();
    let (mut sent, mut most) = (0_usize, 0);
    let end = TICKS + 60_000 / TICK;
    for tick in 0..end {
        let now = at(tick * TICK);
        let calm = tick >= TICKS;
        adrift.retain(|(arrives, act)| {
            let due = *arrives <= tick;
            if due {
                server.carry_out(act);
            }
            !due
        });
        for n in 0..CANDIDATES {
            if schedule.restarts.contains(&(tick, n)) {
                candidates[n] = Candidate::new(name(n, tick + 1), timing);
                if let Some(UnderWay { act, arrives: Some(arrives), answered: None, .. }) =
                    under_way[n].take()
                {
                    adrift.push((arrives, act));
                }
            }
            if let Some(request) = &mut under_way[n]
                && request.answered.is_none()
                && request.arrives.is_some_and(|arrives| arrives <= tick)
            {
                let answer = server.carry_out(&request.act);
                request.answered = Some((tick + request.answer_after.unwrap_or(u64::MAX / 2), answer));
            }
            let paused = schedule.pauses[n].iter().any(|(from, ticks)| (*from..from + ticks).contains(&tick));
            if paused && !calm {
                continue;
            }
            for _ in 0..4 {
                match under_way[n].take() {
                    Some(UnderWay { answered: Some((due, answer)), .. }) if due <= tick => {
                        candidates[n].answered(answer, now);
                    }
                    Some(request) if request.gives_up <= tick => {
                        candidates[n].answered(Answer::Failed, now);
                        if let (Some(arrives), None) = (request.arrives, &request.answered) {
                            adrift.push((arrives, request.act));
                        }
                    }
                    Some(request) => {
                        under_way[n] = Some(request);
                        break;
                    }
                    None => {
                        let jump = schedule.jumps[sent % schedule.jumps.len()];
                        let act = candidates[n].next(now, wall(2_000_000_000_000_000 + jump * 1_000_000));
                        if matches!(act, Act::Wait(_)) {
                            break;
                        }
                        let (travel, answer_after, arrives) = if calm {
                            (0, Some(0), true)
                        } else {
                            schedule.fates[sent % schedule.fates.len()]
                        };
                        sent += 1;
                        under_way[n] = Some(UnderWay {
                            act,
                            arrives: arrives.then_some(tick + travel),
                            answered: None,
                            answer_after,
                            gives_up: tick
                                + u64::try_from(timing.request_timeout().as_millis()).unwrap() / TICK,
                        });
                        break;
                    }
                }
            }
        }
        // Paused or not: whoever is woken now would act.
        most = most.max(candidates.iter().filter(|candidate| candidate.term(now).is_some()).count());
    }
    let last = at((end - 1) * TICK);
    (most, candidates.iter().filter(|candidate| candidate.term(last).is_some()).count())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn never_two_lead_and_after_all_faults_one_does(schedule in schedules()) {
        prop_assert_eq!(play(&schedule), (1, 1));
    }
}
