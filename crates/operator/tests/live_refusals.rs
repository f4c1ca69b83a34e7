//! What is wrong with an App, or with what the API server says to it, is told and harms no other.
#![allow(clippy::disallowed_methods, reason = "tests write as others do")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end here")]

mod common;

use std::time::Duration;

use common::{World, condition};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kubesentry_lab::operator;
use serde_json::{Value, json};

fn image(deployment: &Value) -> &Value {
    &deployment["spec"]["template"]["spec"]["containers"][0]["image"]
}

#[tokio::test]
async fn a_fault_in_the_template_is_told_with_its_path_and_nothing_is_created() {
    let world = World::new("typo").await;
    world.create_app("shop", json!({"image": "nginx:1", "template": {"spec": {"contaners": []}}})).await;
    let invalid = world.condition("shop", "SpecValid", "False", "InvalidSpec").await;
    assert_eq!(
        invalid["message"],
        "spec.template.spec.contaners: unknown field; did you mean \"containers\"?"
    );
    let app = world.condition("shop", "Ready", "False", "InvalidSpec").await;
    assert_eq!(app["message"], invalid["message"]);
    world.quiet().await;
    assert!(world.deployment("shop").await.is_none());
    world.patch_app("shop", json!({"spec": {"template": null}})).await;
    world.size("shop", 1).await;
    world.condition("shop", "SpecValid", "True", "Valid").await;
}

#[tokio::test]
async fn while_the_spec_is_invalid_nothing_is_put_back_and_after_it_everything_is() {
    let world = World::new("frozen").await;
    world.create_app("shop", json!({"image": "nginx:1"})).await;
    world.size("shop", 1).await;
    world.patch_app("shop", json!({"spec": {"template": {"spec": {"hostIPC": true}}}})).await;
    world.condition("shop", "SpecValid", "False", "InvalidSpec").await;
    world.scale("shop", 6).await;
    world.quiet().await;
    assert_eq!(world.deployment("shop").await.unwrap()["spec"]["replicas"], 6);
    world.patch_app("shop", json!({"spec": {"template": null}})).await;
    world.size("shop", 1).await;
}

#[tokio::test]
async fn a_deployment_that_the_api_server_refuses_is_told_in_the_apps_words_and_not_tried_in_a_loop() {
    let world = World::new("rejected").await;
    let mount = json!({"spec": {"containers": [{"name": "app", "volumeMounts": [{"name": "nowhere", "mountPath": "/x"}]}]}});
    let table = [
        (
            "value-twice",
            json!({"image": "nginx:1", "env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}),
            "spec.env[0].valueFrom",
        ),
        (
            "env-name",
            json!({"image": "nginx:1", "env": [{"name": "A", "value": "1"}, {"name": "B=C", "value": "1"}]}),
            "spec.env[1].name",
        ),
        (
            "no-volume",
            json!({"image": "nginx:1", "template": mount}),
            "spec.template.spec.containers[0].volumeMounts[0].name",
        ),
        (
            "too-much",
            json!({"image": "nginx:1", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}),
            "spec.resources.requests",
        ),
    ];
    for (name, spec, _) in &table {
        world.create_app(name, spec.clone()).await;
    }
    for (name, _, path) in &table {
        let rejected = world.condition(name, "SpecValid", "False", "DeploymentRejected").await;
        let message = rejected["message"].as_str().unwrap();
        assert!(message.contains(&format!(": {path}: ")), "{name}: {message}");
        let ready = world.condition(name, "Ready", "False", "DeploymentRejected").await;
        assert_eq!(ready["message"], rejected["message"], "{name}");
    }
    // Their events may come a moment later.
    world.quiet().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mark = world.lab.audit_settled().await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    world.lab.audit_settled().await.unwrap();
    let requests = world.requests_since(&mark);
    assert!(requests.is_empty(), "{requests:?}");
    let right = json!({"spec": {"env": null, "template": null, "resources": null}});
    for (name, _, _) in &table {
        world.patch_app(name, right.clone()).await;
        world.size(name, 1).await;
        world.condition(name, "SpecValid", "True", "Valid").await;
    }
}

#[tokio::test]
async fn a_change_that_the_api_server_refuses_leaves_the_deployment_as_it_is() {
    let world = World::new("later").await;
    world.create_app("shop", json!({"image": "nginx:1"})).await;
    world.size("shop", 1).await;
    world
        .patch_app("shop", json!({"spec": {"image": "nginx:2", "env": [{"name": "B=C", "value": "1"}]}}))
        .await;
    world.condition("shop", "SpecValid", "False", "DeploymentRejected").await;
    let deployment = world.deployment("shop").await.unwrap();
    assert_eq!((image(&deployment), &deployment["spec"]["replicas"]), (&json!("nginx:1"), &json!(1)));
    // A status of the Deployment is seen all the same.
    world.report_deployment("shop", 1, true).await;
    world.app_where("shop", "1/1 ready", |app| app["status"]["ready"] == "1/1").await;
    world.condition("shop", "Ready", "False", "DeploymentRejected").await;
    world.patch_app("shop", json!({"spec": {"env": null}})).await;
    world.deployment_where("shop", "the new image", |d| image(d) == "nginx:2").await;
    world.condition("shop", "SpecValid", "True", "Valid").await;
}

#[tokio::test]
async fn a_quota_stalls_an_app_until_there_is_room() {
    let world = World::new("quota").await;
    let quotas = world.api("", "v1", "ResourceQuota", "resourcequotas");
    let hard = json!({"count/deployments.apps": "0"});
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": hard}});
    quotas.create(&PostParams::default(), &serde_json::from_value(quota).unwrap()).await.unwrap();
    // What the quota controller would report: no controller of it runs here.
    let status = json!({"status": {"hard": hard, "used": hard}});
    quotas.patch_status("none", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    world.create_app("shop", json!({"image": "nginx:1"})).await;
    let stalled = world.condition("shop", "Stalled", "True", "QuotaExceeded").await;
    assert!(stalled["message"].as_str().unwrap().contains("exceeded quota"), "{stalled}");
    world.condition("shop", "Ready", "False", "QuotaExceeded").await;
    quotas.delete("none", &DeleteParams::default()).await.unwrap();
    world.size("shop", 1).await;
    world.condition("shop", "Stalled", "False", "NotStalled").await;
}

#[tokio::test]
async fn ready_follows_the_deployment_and_says_what_is_off() {
    let world = World::new("ready").await;
    world.create_app("shop", json!({"image": "nginx:1", "scaling": {"minReplicas": 2}})).await;
    world.size("shop", 2).await;
    let app = world.app_where("shop", "a status", |app| app["status"]["phase"] == "Pending").await;
    assert_eq!(
        (&app["status"]["ready"], condition(&app, "Ready").unwrap()["status"].as_str()),
        (&json!("0/2"), Some("Unknown"))
    );

    world.report_deployment("shop", 2, true).await;
    let ready = world.condition("shop", "Ready", "True", "Aligned").await;
    assert_eq!(ready["message"], "2/2 ready; scaling inactive: SignalsNotImplemented");
    let app = world.app("shop").await.unwrap();
    assert_eq!((&app["status"]["phase"], &app["status"]["ready"]), (&json!("Stable"), &json!("2/2")));
    let first = app["status"]["firstAvailableAt"].clone();
    assert!(first.is_string());
    let mut kubectl = world.lab.kubectl();
    kubectl.args(["-n", &world.namespace, "wait", "--for=condition=Ready", "app/shop", "--timeout=5s"]);
    assert!(kubectl.status().unwrap().success());

    world.report_deployment("shop", 0, false).await;
    world.condition("shop", "Ready", "False", "MinimumReplicasUnavailable").await;
    let app = world.app("shop").await.unwrap();
    assert_eq!((&app["status"]["phase"], &app["status"]["firstAvailableAt"]), (&json!("Degraded"), &first));
}

#[tokio::test]
async fn a_status_that_somebody_overwrote_is_restored_and_foreign_conditions_are_kept() {
    let world = World::new("status").await;
    world.create_app("shop", json!({"image": "nginx:1"})).await;
    world.size("shop", 1).await;
    world.quiet().await;
    let foreign = json!({"type": "example.com/Checked", "status": "True", "reason": "Seen", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let mut conditions = world.app("shop").await.unwrap()["status"]["conditions"].as_array().unwrap().clone();
    conditions.insert(0, foreign.clone());
    let status = json!({"status": {"phase": "Stable", "ready": "9/9", "conditions": conditions}});
    world.apps().patch_status("shop", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    let app = world.app_where("shop", "the truth", |app| app["status"]["ready"] == "0/1").await;
    assert_eq!(app["status"]["phase"], "Pending");
    assert_eq!(app["status"]["conditions"].as_array().unwrap().last().unwrap(), &foreign, "after ours");
    assert_eq!(app["status"]["conditions"][0]["type"], "Ready");
}

/// Writes a whole status by PUT, as an administrator may.
async fn put_status(world: &World, name: &str, status: Value) {
    for _ in 0..50 {
        let mut app = world.app(name).await.unwrap();
        app["status"] = status.clone();
        let app = serde_json::from_value(app).unwrap();
        match world.apps().replace_status(name, &PostParams::default(), &app).await {
            Ok(_) => return,
            Err(kube::Error::Api(error)) if error.code == 409 => {}
            Err(error) => panic!("{name}: {error}"),
        }
    }
    panic!("{name}: never written");
}

#[tokio::test]
async fn garbage_in_a_status_is_replaced_by_the_truth_and_harms_no_other() {
    let world = World::new("garbage").await;
    let garbage = [
        ("empty", json!({})),
        ("records", json!({"audit": {"seq": 3, "unflushed": [{}], "recent": [{"level": 7}]}})),
        ("negative", json!({"audit": {"seq": -5, "flushedSeq": -1, "headHash": ""}})),
        ("endless", json!({"audit": {"seq": i64::MAX, "flushedSeq": i64::MAX, "headHash": "../ ä"}})),
        ("behind", json!({"audit": {"seq": 1, "flushedSeq": 9, "headHash": "x"}})),
        (
            "lies",
            json!({"phase": "Healing", "observedGeneration": 99, "replicas": 7, "ready": "7/7", "effective": {}}),
        ),
    ];
    for (name, _) in &garbage {
        world.create_app(name, json!({"image": "nginx:1"})).await;
        world.size(name, 1).await;
    }
    world.create_app("beside", json!({"image": "nginx:1"})).await;
    world.size("beside", 1).await;
    world.quiet().await;
    for (name, status) in &garbage {
        put_status(&world, name, status.clone()).await;
    }
    for (name, _) in &garbage {
        let app = world
            .app_where(name, "the truth", |app| {
                app["status"]["ready"] == "0/1"
                    && app["status"]["phase"] == "Pending"
                    && app["status"]["observedGeneration"] == 1
            })
            .await;
        assert_eq!(condition(&app, "SpecValid").unwrap()["status"], "True", "{name}");
        assert_eq!(
            app["status"]["effective"],
            json!({"image": "nginx:1", "minReplicas": 1, "maxReplicas": 10}),
            "{name}"
        );
    }
    world.scale("beside", 4).await;
    world.size("beside", 1).await;
    for (name, _) in &garbage {
        world.patch_app(name, json!({"spec": {"image": "nginx:2"}})).await;
        world.deployment_where(name, "the new image", |d| image(d) == "nginx:2").await;
        world.app_where(name, "its status", |app| app["status"]["observedGeneration"] == 2).await;
    }
    world.quiet().await;
    for (name, _) in &garbage {
        let uid = world.app(name).await.unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
        world.delete_app(name).await;
        world.gone(name).await;
        let chunks = world.chunks(&uid).await;
        let text =
            chunks.iter().map(|chunk| chunk["data"]["records.jsonl"].as_str().unwrap()).collect::<String>();
        assert!(text.contains("\"Update\"") && text.contains("\"Delete\""), "{name}: {text}");
    }
}

#[tokio::test]
async fn a_wrong_app_stops_no_other() {
    let world = World::new("beside").await;
    for n in 0..5 {
        world
            .create_app(
                &format!("wrong-{n}"),
                json!({"image": "nginx:1", "template": {"spec": {"hostNetwork": true, "nope": n}}}),
            )
            .await;
        world.create_app(&format!("right-{n}"), json!({"image": "nginx:1"})).await;
    }
    for n in 0..5 {
        world.size(&format!("right-{n}"), 1).await;
        world.condition(&format!("wrong-{n}"), "Ready", "False", "InvalidSpec").await;
    }
    world.patch_app("right-0", json!({"spec": {"image": "nginx:2"}})).await;
    world.deployment_where("right-0", "the new image", |d| image(d) == "nginx:2").await;
    let user = operator::USER;
    assert!(user.starts_with("system:serviceaccount:"), "{user}");
}
