//! The four pitfalls that every operator meets, each with the test that keeps this one out of it.
//!
//! These tests start and stop operators of their own, so they run one after the other.
#![allow(clippy::disallowed_methods, reason = "tests write as others do")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end here")]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use common::{World, value};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kubesentry_lab::operator::{self, Operator};
use kubesentry_operator::cache::WatchEvent;
use kubesentry_operator::context::Context;
use kubesentry_operator::door::{Budgets, Door};
use kubesentry_operator::key::Key;
use kubesentry_operator::lease::{Leadership, Term};
use kubesentry_operator::memory::Memories;
use kubesentry_operator::objects::{App, Deployment, DeploymentView};
use kubesentry_operator::queue::Wake;
use kubesentry_operator::reconcile::{Outcome, reconcile};
use kubesentry_operator::telemetry::Telemetry;
use serde_json::{Value, json};
use tokio::sync::Mutex;

static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

const PASSES: &str = "controller_runtime_reconcile_total";

#[tokio::test]
async fn a_pass_after_any_missed_events_aligns_everything() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let world = World::without_operator("missed").await;
    let operator = Operator::start(&world.lab, "missed-first", &[]).await.unwrap();
    for name in ["scaled", "deleted", "changed", "released", "relabelled", "pinned"] {
        world.create_app(name, json!({"image": "nginx:1", "scaling": {"minReplicas": 2}})).await;
        world.size(name, 2).await;
    }
    world.quiet().await;
    drop(operator);

    world.scale("scaled", 9).await;
    world.deployments().delete("deleted", &DeleteParams::background()).await.unwrap();
    world.patch_app("changed", json!({"spec": {"image": "nginx:2"}})).await;
    world.delete_app("released").await;
    world
        .patch_deployment(
            "relabelled",
            "kubectl-label",
            json!({"metadata": {"labels": {"apps.sentry.io/app": "x"}}}),
        )
        .await;
    world.patch_app("pinned", json!({"spec": {"replicas": 7}})).await;
    world.create_app("born", json!({"image": "nginx:1"})).await;

    let _operator = Operator::start(&world.lab, "missed-second", &[]).await.unwrap();
    world.size("scaled", 2).await;
    world.size("deleted", 2).await;
    world
        .deployment_where("changed", "the new image", |d| {
            d["spec"]["template"]["spec"]["containers"][0]["image"] == "nginx:2"
        })
        .await;
    world.gone("released").await;
    world
        .deployment_where("relabelled", "the label is back", |d| {
            d["metadata"]["labels"]["apps.sentry.io/app"] == "relabelled"
        })
        .await;
    world.size("pinned", 7).await;
    world.size("born", 1).await;
}

/// A context as `wire` makes it, fed by hand.
async fn context(world: &World) -> Context {
    let telemetry = Telemetry::new("test");
    let client = world.lab.client_for(operator::USER, &["system:serviceaccounts"]).await.unwrap();
    let (events, _) = kubesentry_operator::events::channel();
    let budgets = Arc::new(Budgets::new(200.0, 400.0));
    let leadership = Leadership::always();
    Context {
        caches: Arc::default(),
        door: Door::new(client.clone(), leadership, Term(0), budgets),
        reader: client,
        memories: Memories::default(),
        options: kubesentry_api::ParseOptions::default(),
        telemetry,
        events,
        namespace: operator::NAMESPACE.to_owned(),
        instance: "test".to_owned(),
        export_deadline: Duration::from_secs(5),
    }
}

#[tokio::test]
async fn a_pass_changes_no_shared_object_in_place() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let world = World::without_operator("shared").await;
    let context = context(&world).await;
    let key = Key::new(&world.namespace, "shop");
    world.create_app("shop", json!({"image": "nginx:1"})).await;
    let mut writes = 0;
    // Create, resize by pin, put back, suspend, release: every kind of pass.
    let steps = [
        json!({}),
        json!({"spec": {"replicas": 4}}),
        json!({"spec": {"suspend": true}}),
        json!({"spec": {"suspend": false}}),
    ];
    for step in steps {
        world.patch_app("shop", step).await;
        if world.deployment("shop").await.is_some() {
            world.scale("shop", 9).await;
        }
        for _ in 0..3 {
            let live = world.apps().get("shop").await.unwrap();
            context.caches.apps.handle(WatchEvent::Applied(App::from(live)));
            if let Some(live) = world.deployments().get_opt("shop").await.unwrap() {
                let view: DeploymentView = serde_json::from_value(value(live)).unwrap();
                context.caches.deployments.handle(WatchEvent::Applied(Deployment::from(view)));
            }
            let (app, child) = (context.caches.apps.get(&key).unwrap(), context.caches.deployments.get(&key));
            let before = (format!("{app:?}"), format!("{child:?}"));
            if matches!(reconcile(&context, &key, Wake::Due).await, Outcome::Done { .. }) {
                writes += 1;
            }
            assert_eq!(
                (format!("{app:?}"), format!("{child:?}")),
                before,
                "a snapshot changed under a reader"
            );
            assert!(
                Arc::ptr_eq(&app, &context.caches.apps.get(&key).unwrap()),
                "only a watch replaces an object"
            );
        }
    }
    assert!(writes >= 6, "the passes did nothing");
    assert_eq!(world.deployment("shop").await.unwrap()["spec"]["replicas"], 4);
    // No operator watches here: let the App go by hand.
    world.patch_app("shop", json!({"metadata": {"finalizers": null}})).await;
}

/// One App of every kind of rest that there is.
async fn all_cases(world: &World) -> BTreeSet<&'static str> {
    let spec = |extra: Value| {
        let mut spec = json!({"image": "nginx:1", "scaling": {"minReplicas": 2, "maxReplicas": 5}});
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        spec
    };
    world.create_app("plain", spec(json!({}))).await;
    world.create_app("available", spec(json!({}))).await;
    world.create_app("unavailable", spec(json!({}))).await;
    world.create_app("pinned", spec(json!({"replicas": 9}))).await;
    world.create_app("zero", spec(json!({"replicas": 0}))).await;
    world.create_app("disabled", spec(json!({"scaling": {"mode": "Disabled"}}))).await;
    world.create_app("dry-run", spec(json!({"scaling": {"mode": "DryRun"}}))).await;
    world.create_app("suspended", spec(json!({}))).await;
    world.create_app("born-suspended", spec(json!({"suspend": true}))).await;
    world
        .create_app(
            "quantities",
            spec(
                json!({"resources": {"requests": {"cpu": "0.5", "memory": "1000Mi"}, "limits": {"cpu": 1}}}),
            ),
        )
        .await;
    world.create_app("injected", spec(json!({}))).await;
    world.create_app("scaled", spec(json!({}))).await;
    world.create_app("put-back", spec(json!({}))).await;
    world.create_app("invalid", spec(json!({"template": {"spec": {"hostNetwork": true}}}))).await;
    let missing = json!({"spec": {"containers": [{"name": "app", "volumeMounts": [{"name": "nowhere", "mountPath": "/x"}]}]}});
    world.create_app("rejected", spec(json!({"template": missing}))).await;
    let theirs = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "conflict"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "old:1"}]},
        }},
    });
    world
        .deployments()
        .create(&PostParams::default(), &serde_json::from_value(theirs).unwrap())
        .await
        .unwrap();
    world.create_app("conflict", spec(json!({}))).await;
    let scaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "other"},
        "spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "scaled"}},
    });
    let scalers = world.api("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers");
    scalers.create(&PostParams::default(), &serde_json::from_value(scaler).unwrap()).await.unwrap();

    for name in ["available", "unavailable", "injected", "scaled", "put-back", "suspended", "disabled"] {
        world.size(name, if name == "disabled" { 1 } else { 2 }).await;
    }
    world.report_deployment("available", 2, true).await;
    world.report_deployment("unavailable", 0, false).await;
    world.patch_app("suspended", json!({"spec": {"suspend": true}})).await;
    world.scale("put-back", 8).await;
    world.scale("disabled", 8).await;
    let env = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "injected"}, "spec": {"template": {"spec": {
        "containers": [{"name": "app", "env": [{"name": "INJECTED", "value": "x"}]}],
    }}}});
    world.deployments().patch("injected", &PatchParams::apply("injector"), &Patch::Apply(env)).await.unwrap();
    [
        "available",
        "born-suspended",
        "conflict",
        "disabled",
        "dry-run",
        "injected",
        "invalid",
        "pinned",
        "plain",
        "put-back",
        "quantities",
        "rejected",
        "scaled",
        "suspended",
        "unavailable",
        "zero",
    ]
    .into()
}

#[tokio::test]
async fn a_steady_app_costs_zero_writes_in_120_seconds_and_not_even_a_pass() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let world = World::without_operator("steady").await;
    let operator = Operator::start(&world.lab, "steady", &[]).await.unwrap();
    let names = all_cases(&world).await;
    let apps = world.apps().list(&kube::api::ListParams::default()).await.unwrap();
    let seen: BTreeSet<_> = apps.items.iter().map(|app| app.metadata.name.as_deref().unwrap()).collect();
    assert_eq!(seen, names);
    world.quiet().await;
    for name in names {
        let app = world.app(name).await.unwrap();
        assert_eq!(app["status"]["observedGeneration"], app["metadata"]["generation"], "{name} was seen");
    }
    let passes = operator.metric(PASSES).unwrap();
    let mark = world.lab.audit_settled().await.unwrap();
    tokio::time::sleep(Duration::from_secs(120)).await;
    world.lab.audit_settled().await.unwrap();
    // Events count here, unlike elsewhere; and the whole cluster does.
    let entries = world.lab.audit().since(&mark).unwrap();
    let writes: Vec<_> =
        entries.iter().filter(|entry| entry.user == operator::USER && entry.is_write()).collect();
    assert!(writes.is_empty(), "{writes:#?}");
    assert!((operator.metric(PASSES).unwrap() - passes).abs() < f64::EPSILON, "no pass without a cause");
}

#[tokio::test]
async fn a_status_of_its_own_never_wakes_an_app() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let world = World::without_operator("retrigger").await;
    let operator = Operator::start(&world.lab, "retrigger", &[]).await.unwrap();
    world.create_app("shop", json!({"image": "nginx:1", "scaling": {"minReplicas": 2}})).await;
    world.size("shop", 2).await;
    world.quiet().await;
    for (ready, available) in [(1, false), (2, true), (1, false)] {
        let passes = operator.metric(PASSES).unwrap();
        let mark = world.lab.audit_settled().await.unwrap();
        world.report_deployment("shop", ready, available).await;
        world.app_where("shop", "the report", |app| app["status"]["readyReplicas"] == ready).await;
        world.quiet().await;
        let writes = world.writes_since(&mark);
        assert_eq!(writes.len(), 1, "one status for one cause: {writes:?}");
        let more = operator.metric(PASSES).unwrap() - passes;
        assert!((more - 1.0).abs() < f64::EPSILON, "{more} passes for one cause");
    }
}

#[tokio::test]
async fn the_finalizer_is_never_stuck() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let world = World::without_operator("stuck").await;
    let operator = Operator::start(&world.lab, "stuck", &["--export-deadline-seconds=4"]).await.unwrap();
    world.create_app("shop", json!({"image": "nginx:1"})).await;
    world.size("shop", 1).await;
    world.quiet().await;
    // Nobody may take the audit trail any more.
    let bindings =
        world.api_in(operator::NAMESPACE, "rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings");
    bindings.delete("kubesentry-audit", &DeleteParams::default()).await.unwrap();
    world.delete_app("shop").await;
    world.app_where("shop", "phase Terminating", |app| app["status"]["phase"] == "Terminating").await;
    world.gone("shop").await;
    assert!((operator.metric("kubesentry_audit_export_abandoned_total").unwrap() - 1.0).abs() < f64::EPSILON);
    let log = std::fs::read_to_string(operator.log()).unwrap();
    assert!(
        log.contains("an audit record could not be exported") && log.contains("created the Deployment"),
        "{log}"
    );
    operator::install(&world.lab).await.unwrap();
}
