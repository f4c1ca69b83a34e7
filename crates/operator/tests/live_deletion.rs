//! A deleted App leaves its record and nothing else, whatever is broken.
//!
//! The tests that break the sink, or stop the operator, run on a control plane of their own.
#![allow(clippy::disallowed_methods, reason = "tests write as others do")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end here")]

mod common;

use std::time::{Duration, Instant};

use common::{World, eventually};
use kube::api::{DeleteParams, ListParams};
use kubesentry_engine::audit::{Action, Chain, verify};
use kubesentry_lab::operator::{self, Operator};
use kubesentry_lab::{Lab, LabOptions};
use serde_json::{Value, json};

fn uid(app: &Value) -> String {
    app["metadata"]["uid"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_whole_trail_is_exported_before_the_app_goes_and_nothing_is_left() {
    let world = World::new("export").await;
    let app = world.create_app("shop", json!({"image": "nginx:1"})).await;
    world.size("shop", 1).await;
    world.scale("shop", 4).await;
    world.size("shop", 1).await;
    world.quiet().await;
    world.delete_app("shop").await;
    world.gone("shop").await;
    let chunks = world.chunks(&uid(&app)).await;
    assert_eq!(chunks.len(), 1);
    assert_eq!(chunks[0]["metadata"]["name"], json!(format!("audit-{}-1", uid(&app))));
    assert_eq!(chunks[0]["immutable"], true);
    let records = world.records(&uid(&app)).await;
    let actions: Vec<_> = records.iter().map(|record| record.action).collect();
    assert_eq!(actions, [Action::Create, Action::PutBack, Action::Delete]);
    let end = verify(&records, &Chain::start()).unwrap();
    let manifest: Value = serde_json::from_str(chunks[0]["data"]["manifest.json"].as_str().unwrap()).unwrap();
    assert_eq!(
        manifest,
        json!({"count": 3, "firstSeq": 1, "lastSeq": 3, "headHash": end.head_hash, "gaps": []})
    );
    // The collector learns of a new kind within 30 s.
    let deadline = Instant::now() + Duration::from_secs(45);
    while world.deployment("shop").await.is_some() {
        assert!(Instant::now() < deadline, "the Deployment stays");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn a_long_trail_leaves_the_status_in_chunks_that_form_one_chain() {
    let world = World::new("chunks").await;
    let app = world.create_app("shop", json!({"image": "nginx:0"})).await;
    world.size("shop", 1).await;
    for n in 1..=20 {
        let image = format!("nginx:{n}");
        world.patch_app("shop", json!({"spec": {"image": image}})).await;
        let container = "/spec/template/spec/containers/0/image";
        world.deployment_where("shop", &image, |d| d.pointer(container) == Some(&json!(image))).await;
        world.app_where("shop", "the record", |app| app["status"]["audit"]["seq"] == n + 1).await;
    }
    let live = world.app("shop").await.unwrap();
    assert!(
        live["status"]["audit"]["flushedSeq"].as_u64().unwrap() >= 16,
        "{}",
        live["status"]["audit"]["flushedSeq"]
    );
    assert!(live["status"]["audit"]["unflushed"].as_array().unwrap().len() <= 16);
    assert!(live["status"]["audit"]["recent"].as_array().unwrap().len() == 20);
    assert!(live["status"].to_string().len() < 32 * 1024);
    world.delete_app("shop").await;
    world.gone("shop").await;
    let chunks = world.chunks(&uid(&app)).await;
    assert!(chunks.len() >= 2);
    let records = world.records(&uid(&app)).await;
    let end = verify(&records, &Chain::start()).unwrap();
    assert_eq!(end.seq, 22, "create, 20 updates, delete");
    for (n, chunk) in chunks.iter().enumerate() {
        assert_eq!(chunk["immutable"], true);
        assert_eq!(
            chunk["data"].get("manifest.json").is_some(),
            n + 1 == chunks.len(),
            "in the last chunk only"
        );
    }
    let manifest: Value =
        serde_json::from_str(chunks.last().unwrap()["data"]["manifest.json"].as_str().unwrap()).unwrap();
    assert_eq!(
        manifest,
        json!({"count": 22, "firstSeq": 1, "lastSeq": 22, "headHash": end.head_hash, "gaps": []})
    );
}

#[tokio::test]
async fn our_finalizer_goes_from_any_place_in_the_list_and_those_of_others_stay() {
    const OURS: &str = "apps.sentry.io/audit-export";
    let (one, two) = ("example.com/one", "example.com/two");
    let world = World::new("places").await;
    let places = [("first", [OURS, one, two]), ("middle", [one, OURS, two]), ("last", [one, two, OURS])];
    for (name, finalizers) in places {
        world.create_app(name, json!({"image": "nginx:1"})).await;
        world.size(name, 1).await;
        world.patch_app(name, json!({"metadata": {"finalizers": finalizers}})).await;
        world.delete_app(name).await;
    }
    for (name, _) in places {
        world.app_where(name, "ours is gone", |app| app["metadata"]["finalizers"] == json!([one, two])).await;
    }
    world.quiet().await;
    for (name, _) in places {
        assert_eq!(world.app(name).await.unwrap()["metadata"]["finalizers"], json!([one, two]), "{name}");
        world.patch_app(name, json!({"metadata": {"finalizers": null}})).await;
        world.gone(name).await;
    }
}

#[tokio::test]
async fn an_app_that_is_being_deleted_never_gets_a_deployment_again() {
    let world = World::new("going").await;
    world.create_app("shop", json!({"image": "nginx:1"})).await;
    world.size("shop", 1).await;
    let both = ["example.com/theirs", "apps.sentry.io/audit-export"];
    world.patch_app("shop", json!({"metadata": {"finalizers": both}})).await;
    world.delete_app("shop").await;
    world.app_where("shop", "released", |app| app["metadata"]["finalizers"] == json!([both[0]])).await;
    world.deployments().delete("shop", &DeleteParams::background()).await.unwrap();
    world.patch_app("shop", json!({"spec": {"image": "nginx:2"}})).await;
    let mark = world.lab.audit_settled().await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.lab.audit_settled().await.unwrap();
    assert!(world.deployment("shop").await.is_none());
    let writes = world.writes_since(&mark);
    assert!(writes.is_empty(), "{writes:?}");
    world.patch_app("shop", json!({"metadata": {"finalizers": null}})).await;
    world.gone("shop").await;
}

#[tokio::test]
async fn a_trail_that_begins_anew_over_chunks_that_are_there_loses_no_record() {
    let world = World::new("anew").await;
    let app = world.create_app("shop", json!({"image": "nginx:0"})).await;
    world.size("shop", 1).await;
    for n in 1..=17 {
        world.patch_app("shop", json!({"spec": {"image": format!("nginx:{n}")}})).await;
        world.app_where("shop", "the record", |app| app["status"]["audit"]["seq"] == n + 1).await;
    }
    assert_eq!(world.chunks(&uid(&app)).await.len(), 1);
    // Somebody wipes the status, and with it how far the trail is.
    world.quiet().await;
    let params = kube::api::PatchParams::default();
    let wipe = kube::api::Patch::Merge(json!({"status": {"audit": null}}));
    world.apps().patch_status("shop", &params, &wipe).await.unwrap();
    world.patch_app("shop", json!({"spec": {"image": "nginx:again"}})).await;
    world.app_where("shop", "a record", |app| app["status"]["audit"]["seq"] == 1).await;
    world.quiet().await;
    world.delete_app("shop").await;
    world.gone("shop").await;
    let mut records = world.records(&uid(&app)).await;
    records.extend(common::printed_records(world.operator().await, &uid(&app)));
    let last: Vec<_> = records.iter().rev().take(2).map(|record| (record.seq, record.action)).collect();
    assert_eq!(last, [(2, Action::Delete), (1, Action::Update)], "what was done since stands somewhere");
}

#[tokio::test]
async fn a_finalizer_that_somebody_removed_is_set_again() {
    let world = World::new("again").await;
    world.create_app("shop", json!({"image": "nginx:1"})).await;
    world.size("shop", 1).await;
    world.quiet().await;
    world.patch_app("shop", json!({"metadata": {"finalizers": null}})).await;
    world
        .app_where("shop", "the finalizer", |app| {
            app["metadata"]["finalizers"] == json!(["apps.sentry.io/audit-export"])
        })
        .await;
}

#[tokio::test]
async fn an_invalid_app_is_deletable_and_exports_its_trail() {
    let world = World::new("invalid").await;
    for (name, template) in
        [("typo", json!({"spec": {"contaners": []}})), ("refused", json!({"spec": {"hostPID": true}}))]
    {
        let app = world.create_app(name, json!({"image": "nginx:1"})).await;
        world.size(name, 1).await;
        world.patch_app(name, json!({"spec": {"template": template}})).await;
        world.condition(name, "SpecValid", "False", "InvalidSpec").await;
        world.delete_app(name).await;
        world.gone(name).await;
        let actions: Vec<_> = world.records(&uid(&app)).await.iter().map(|record| record.action).collect();
        assert_eq!(actions, [Action::Create, Action::Delete], "{name}");
    }
}

#[tokio::test]
async fn a_suspended_app_is_deleted_as_any_other() {
    let world = World::new("suspended").await;
    let app = world.create_app("shop", json!({"image": "nginx:1"})).await;
    world.size("shop", 1).await;
    world.patch_app("shop", json!({"spec": {"suspend": true}})).await;
    world.app_where("shop", "phase Suspended", |app| app["status"]["phase"] == "Suspended").await;
    world.delete_app("shop").await;
    world.gone("shop").await;
    assert_eq!(world.records(&uid(&app)).await.last().unwrap().action, Action::Delete);
}

#[tokio::test]
async fn foreground_deletion_ends_and_takes_the_deployment_first() {
    let world = World::new("foreground").await;
    world.create_app("shop", json!({"image": "nginx:1"})).await;
    world.size("shop", 1).await;
    // The collector must know the kind before (30 s), or it finds no dependents.
    let mut kubectl = world.lab.kubectl();
    kubectl.args(["-n", &world.namespace, "delete", "app/shop", "--cascade=foreground", "--timeout=60s"]);
    assert!(kubectl.status().unwrap().success());
    assert!(world.deployment("shop").await.is_none());
}

#[tokio::test]
async fn a_namespace_with_apps_in_it_can_be_deleted_and_their_trails_stay() {
    let world = World::new("namespace").await;
    let mut uids = Vec::new();
    for name in ["a", "b"] {
        uids.push(uid(&world.create_app(name, json!({"image": "nginx:1"})).await));
        world.size(name, 1).await;
    }
    // One that never had a child, and so no finalizer.
    world.create_app("c", json!({"image": "nginx:1", "template": {"spec": {"nope": 1}}})).await;
    world.condition("c", "SpecValid", "False", "InvalidSpec").await;
    let mut kubectl = world.lab.kubectl();
    kubectl.args(["delete", "namespace", &world.namespace, "--timeout=60s"]);
    assert!(kubectl.status().unwrap().success());
    for uid in uids {
        let records = world.records(&uid).await;
        assert_eq!(records.last().unwrap().action, Action::Delete);
        verify(&records, &Chain::start()).unwrap();
    }
}

/// A control plane whose sink may be broken, and whose operator may be stopped.
async fn own_world(prefix: &str) -> World {
    let lab = Lab::start(LabOptions::default()).await.unwrap();
    operator::install(&lab).await.unwrap();
    World::on(lab, prefix).await
}

async fn break_the_sink(world: &World) {
    let bindings =
        world.api_in(operator::NAMESPACE, "rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings");
    bindings.delete("kubesentry-audit", &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn a_broken_sink_delays_a_deletion_and_never_more() {
    let world = own_world("sink").await;
    let operator = Operator::start(&world.lab, "sink", &["--export-deadline-seconds=8"]).await.unwrap();
    for name in ["skipped", "restored"] {
        world.create_app(name, json!({"image": "nginx:1"})).await;
        world.size(name, 1).await;
    }
    world.quiet().await;
    let skipped = world.app("skipped").await.unwrap();
    break_the_sink(&world).await;

    // The annotation ends the wait at once, also one that has begun.
    world.delete_app("skipped").await;
    world.app_where("skipped", "it waits", |app| app["status"]["phase"] == "Terminating").await;
    let begun = Instant::now();
    world
        .patch_app(
            "skipped",
            json!({"metadata": {"annotations": {"apps.sentry.io/skip-audit-export": "true"}}}),
        )
        .await;
    world.gone("skipped").await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    let printed = common::printed_records(&operator, &uid(&skipped));
    verify(&printed, &Chain::start()).unwrap();
    let actions: Vec<_> = printed.iter().map(|record| record.action).collect();
    assert_eq!(
        actions,
        [Action::Create, Action::Delete, Action::SkipExport],
        "the skip is on record as well"
    );

    // A sink that comes back in time gets everything.
    let restored = world.app("restored").await.unwrap();
    world.delete_app("restored").await;
    world.app_where("restored", "it waits", |app| app["status"]["phase"] == "Terminating").await;
    operator::install(&world.lab).await.unwrap();
    world.gone("restored").await;
    let records = world.records(&uid(&restored)).await;
    assert_eq!(records.last().unwrap().action, Action::Delete);
    verify(&records, &Chain::start()).unwrap();
    let abandoned = operator.metric("kubesentry_audit_export_abandoned_total").unwrap();
    assert!(abandoned.abs() < f64::EPSILON, "{abandoned}");
}

#[tokio::test]
async fn the_manifest_counts_no_record_that_stands_in_the_log_only() {
    let world = own_world("printed").await;
    let operator = Operator::start(&world.lab, "printed", &[]).await.unwrap();
    let app = world.create_app("shop", json!({"image": "nginx:0"})).await;
    world.size("shop", 1).await;
    break_the_sink(&world).await;
    // More than may wait in the status: the oldest ones are printed.
    for n in 1..=52_u64 {
        world.patch_app("shop", json!({"spec": {"image": format!("nginx:{n}")}})).await;
        world.app_where("shop", "the record", |app| app["status"]["audit"]["seq"] == n + 1).await;
    }
    operator::install(&world.lab).await.unwrap();
    world.delete_app("shop").await;
    world.gone("shop").await;
    let uid = uid(&app);
    let (exported, printed) = (world.records(&uid).await, common::printed_records(&operator, &uid));
    assert!(
        !printed.is_empty() && exported.len() + printed.len() == 54,
        "{} and {}",
        exported.len(),
        printed.len()
    );
    let chunks = world.chunks(&uid).await;
    let manifest = chunks.last().unwrap()["data"]["manifest.json"].as_str().unwrap();
    let manifest: Value = serde_json::from_str(manifest).unwrap();
    assert_eq!(manifest["count"], exported.len(), "{manifest}");
    assert_eq!(manifest["firstSeq"], exported[0].seq, "{manifest}");
}

#[tokio::test]
async fn neither_a_restart_nor_a_missing_operator_keeps_an_app_for_ever() {
    let world = own_world("restart").await;
    let operator = Operator::start(&world.lab, "first", &["--export-deadline-seconds=10"]).await.unwrap();
    let mut uids = Vec::new();
    for name in ["waiting", "later"] {
        uids.push(uid(&world.create_app(name, json!({"image": "nginx:1"})).await));
        world.size(name, 1).await;
    }
    world.quiet().await;
    break_the_sink(&world).await;
    let begun = Instant::now();
    world.delete_app("waiting").await;
    world.app_where("waiting", "it waits", |app| app["status"]["phase"] == "Terminating").await;
    drop(operator);
    // Nobody acts now: an App that is deleted stays.
    world.delete_app("later").await;
    // Created and deleted before any operator saw it; somebody else's finalizer keeps it.
    world.create_app("unseen", json!({"image": "nginx:1"})).await;
    world.patch_app("unseen", json!({"metadata": {"finalizers": ["example.com/theirs"]}})).await;
    world.delete_app("unseen").await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(world.app("later").await.is_some());
    let second = Operator::start(&world.lab, "second", &["--export-deadline-seconds=10"]).await.unwrap();
    world.gone("waiting").await;
    assert!(begun.elapsed() < Duration::from_secs(14), "the deadline began anew: {:?}", begun.elapsed());
    world.gone("later").await;
    // Not a second too early either: the sink had its time.
    assert!(begun.elapsed() >= Duration::from_secs(9), "{:?}", begun.elapsed());
    for uid in &uids {
        let printed = common::printed_records(&second, uid);
        verify(&printed, &Chain::start()).unwrap();
        let actions: Vec<_> = printed.iter().map(|record| record.action).collect();
        assert_eq!(actions, [Action::Create, Action::Delete, Action::ExportAbandoned]);
        assert!(world.chunks(uid).await.is_empty());
    }
    let abandoned = second.metric("kubesentry_audit_export_abandoned_total").unwrap();
    assert!((abandoned - 2.0).abs() < f64::EPSILON, "{abandoned}");
    let unseen = world.app("unseen").await.unwrap();
    assert_eq!(unseen["metadata"]["finalizers"], json!(["example.com/theirs"]));
    assert!(world.deployment("unseen").await.is_none());
    world.patch_app("unseen", json!({"metadata": {"finalizers": null}})).await;
    world.gone("unseen").await;
    let left = world.apps().list(&ListParams::default()).await.unwrap();
    assert!(left.items.is_empty());
    eventually("an event for each says so", || async {
        let events =
            world.api("events.k8s.io", "v1", "Event", "events").list(&ListParams::default()).await.unwrap();
        let reasons: Vec<_> = events.items.iter().map(|event| event.data["reason"].clone()).collect();
        let told = reasons.iter().filter(|reason| **reason == "AuditExportAbandoned").count();
        if told == 2 { Ok(()) } else { Err(reasons) }
    })
    .await;
}
