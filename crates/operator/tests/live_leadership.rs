//! Several replicas, one leader: whoever dies, sleeps or stops, two never act in one term.
#![allow(clippy::disallowed_methods, reason = "tests write as others do")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end here")]

mod common;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use common::{World, eventually};
use kubesentry_lab::operator::{self, Operator};
use kubesentry_lab::{Lab, LabOptions, Mark, Signal};
use serde_json::json;

/// Short times, so that a take-over is waited for in seconds.
const SHORT: [&str; 3] = ["--lease-duration=3s", "--renew-deadline=2s", "--retry-period=500ms"];

/// A control plane of the test's own: its Lease and its audit log belong to nobody else.
async fn own_world() -> World {
    let lab = Lab::start(LabOptions::default()).await.unwrap();
    operator::install(&lab).await.unwrap();
    World::on(lab, "leader").await
}

async fn replica(world: &World, name: &str) -> Operator {
    Operator::start_replica(&world.lab, name, &SHORT).await.unwrap()
}

async fn leads(replica: &Operator) {
    eventually("the replica leads", || async { if replica.leads() { Ok(()) } else { Err("it does not") } })
        .await;
}

async fn lease(world: &World) -> serde_json::Value {
    let leases = world.api_in(operator::NAMESPACE, "coordination.k8s.io", "v1", "Lease", "leases");
    common::value(leases.get("kubesentry.sentry.io").await.unwrap())
}

/// The user agent of a replica, as it stands in the audit log.
fn agent(name: &str) -> String {
    format!("kubesentry/{} ({name})", env!("CARGO_PKG_VERSION"))
}

/// By the API server's own log: whoever wrote held the Lease at that time. Answers who wrote.
async fn every_writer_held_the_lease(world: &World, mark: &Mark) -> BTreeSet<String> {
    world.lab.audit_settled().await.unwrap();
    let entries = world.lab.audit().since(mark).unwrap();
    let ours: Vec<_> = entries.iter().filter(|entry| entry.user == operator::USER).collect();
    let claims: Vec<_> = ours
        .iter()
        .filter(|e| e.resource == "leases" && matches!(e.verb.as_str(), "create" | "update") && e.code < 300)
        .collect();
    let mut writers = BTreeSet::new();
    for write in ours.iter().filter(|entry| entry.is_write()) {
        let holder =
            claims.iter().filter(|claim| claim.stage_at <= write.received_at).max_by_key(|c| c.stage_at);
        let holder = holder.map(|claim| claim.user_agent.as_str());
        assert_eq!(holder, Some(write.user_agent.as_str()), "{write:?}");
        writers.insert(write.user_agent.clone());
    }
    writers
}

const APPS: [&str; 4] = ["app-a", "app-b", "app-c", "app-d"];

/// Changes that need an answer: a new image for every App. `n` makes each round another one. (Changes by hand would
/// rightly be contended from the third on.)
async fn disturb(world: &World, n: i32) {
    for name in APPS {
        world.patch_app(name, json!({"spec": {"image": format!("nginx:1.{n}")}})).await;
    }
}

async fn all_aligned(world: &World, n: i32) {
    let wanted = format!("nginx:1.{n}");
    for name in APPS {
        world
            .deployment_where(name, &format!("{wanted} in {name}"), |d| {
                d["spec"]["template"]["spec"]["containers"][0]["image"] == wanted
            })
            .await;
    }
}

async fn lists_by(world: &World, mark: &Mark, name: &str) -> usize {
    world.lab.audit_settled().await.unwrap();
    let entries = world.lab.audit().since(mark).unwrap();
    entries.iter().filter(|e| e.user_agent == agent(name) && e.verb == "list").count()
}

#[tokio::test]
async fn a_killed_leader_is_followed_by_one_that_does_what_is_left() {
    let world = own_world().await;
    let mark = world.lab.audit_settled().await.unwrap();
    let mut first = replica(&world, "first").await;
    leads(&first).await;
    let second = replica(&world, "second").await;
    for name in APPS {
        world.create_app(name, json!({"image": "nginx:1"})).await;
        world.size(name, 1).await;
    }
    assert!(!second.leads());
    let before_second = world.lab.audit_settled().await.unwrap();
    disturb(&world, 1).await;
    first.child().kill();
    disturb(&world, 2).await;
    leads(&second).await;
    all_aligned(&world, 2).await;
    let names = lease(&world).await;
    assert!(names["spec"]["holderIdentity"].as_str().unwrap().starts_with("second_"), "{names}");
    assert_eq!(names["spec"]["leaseTransitions"], 1);
    assert_eq!(lists_by(&world, &before_second, "second").await, 0, "a take-over reads nothing anew");
    world.quiet().await;
    let writers = every_writer_held_the_lease(&world, &mark).await;
    assert_eq!(writers, [agent("first"), agent("second")].into());
    // What a record says of its writer is the truth.
    let app = world.app("app-a").await.unwrap();
    let records = app["status"]["audit"]["unflushed"].as_array().unwrap();
    let told: BTreeSet<_> = records
        .iter()
        .map(|r| {
            (
                r["operator"]["instance"].as_str().unwrap(),
                r["operator"]["leaseTransitions"].as_u64().unwrap_or(0),
            )
        })
        .collect();
    assert_eq!(told, [("first", 0), ("second", 1)].into());
}

#[tokio::test]
async fn a_leader_paused_past_its_lease_writes_nothing_when_it_wakes() {
    let world = own_world().await;
    let mark = world.lab.audit_settled().await.unwrap();
    let mut first = replica(&world, "first").await;
    leads(&first).await;
    let mut second = replica(&world, "second").await;
    for name in APPS {
        world.create_app(name, json!({"image": "nginx:1"})).await;
        world.size(name, 1).await;
    }
    // Several rounds, so that the pause begins at different places of its work.
    for round in 0..5 {
        let (paused, other) = if first.leads() { (&mut first, &second) } else { (&mut second, &first) };
        disturb(&world, 10 + round).await;
        paused.child().signal(Signal::STOP);
        disturb(&world, 20 + round).await;
        leads(other).await;
        all_aligned(&world, 20 + round).await;
        disturb(&world, 30 + round).await;
        paused.child().signal(Signal::CONT);
        disturb(&world, 40 + round).await;
        all_aligned(&world, 40 + round).await;
        eventually("the woken one knows", || async { if paused.leads() { Err("it leads") } else { Ok(()) } })
            .await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    world.quiet().await;
    every_writer_held_the_lease(&world, &mark).await;
    assert_eq!(lease(&world).await["spec"]["leaseTransitions"], 5);
}

#[tokio::test]
async fn a_stopped_leader_hands_over_without_the_wait() {
    let world = own_world().await;
    let mark = world.lab.audit_settled().await.unwrap();
    // The times of production: a lease that had to run out would take 15 s.
    let first = Operator::start_replica(&world.lab, "first", &[]).await.unwrap();
    leads(&first).await;
    let second = Operator::start_replica(&world.lab, "second", &[]).await.unwrap();
    for name in APPS {
        world.create_app(name, json!({"image": "nginx:1"})).await;
        world.size(name, 1).await;
    }
    let before = world.lab.audit_settled().await.unwrap();
    assert!(first.stop().await.success());
    let stopped = Instant::now();
    disturb(&world, 1).await;
    leads(&second).await;
    assert!(stopped.elapsed() < Duration::from_secs(4), "{:?}", stopped.elapsed());
    all_aligned(&world, 1).await;
    assert_eq!(lists_by(&world, &before, "second").await, 0);
    every_writer_held_the_lease(&world, &mark).await;
}

#[tokio::test]
async fn an_api_server_away_for_less_than_the_deadline_costs_no_term_and_for_longer_no_peace() {
    let mut world = own_world().await;
    let mark = world.lab.audit_settled().await.unwrap();
    let first = Operator::start_replica(&world.lab, "first", &[]).await.unwrap();
    leads(&first).await;
    let second = Operator::start_replica(&world.lab, "second", &[]).await.unwrap();
    for name in APPS {
        world.create_app(name, json!({"image": "nginx:1"})).await;
        world.size(name, 1).await;
    }
    for round in 0..3 {
        world.lab.restart_api_server().await.unwrap();
        disturb(&world, round).await;
        all_aligned(&world, round).await;
    }
    assert!(first.leads() && !second.leads(), "a restart takes some seconds, the deadline is ten");
    world.quiet().await;
    assert_eq!(every_writer_held_the_lease(&world, &mark).await, [agent("first")].into());
}
