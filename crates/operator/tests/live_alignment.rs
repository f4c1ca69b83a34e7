//! An App becomes a Deployment, and stays one, whatever others do to it.

#![allow(clippy::disallowed_methods, reason = "tests write as others do")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end here")]

mod common;

use common::World;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, PropagationPolicy};
use serde_json::json;

fn container(deployment: &serde_json::Value) -> &serde_json::Value {
    &deployment["spec"]["template"]["spec"]["containers"][0]
}

#[tokio::test]
async fn an_app_becomes_a_deployment_that_it_owns() {
    let world = World::new("align").await;
    let app = world.create_app("shop", json!({"image": "nginx:1", "scaling": {"minReplicas": 3}})).await;
    let deployment = world.size("shop", 3).await;
    let owner = &deployment["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["uid"], &owner["controller"]), (&app["metadata"]["uid"], &json!(true)));
    assert_eq!(container(&deployment)["image"], "nginx:1");
    assert_eq!(deployment["metadata"]["annotations"]["apps.sentry.io/desired-replicas"], "3");
    let app = world.app_where("shop", "a status", |app| app["status"]["observedGeneration"] == 1).await;
    assert_eq!(app["metadata"]["finalizers"], json!(["apps.sentry.io/audit-export"]));
    assert_eq!(app["status"]["effective"], json!({"image": "nginx:1", "minReplicas": 3, "maxReplicas": 10}));
    assert_eq!(app["status"]["selector"], "apps.sentry.io/app=shop");
    assert_eq!(app["status"]["lastDecision"]["action"], "Create");
}

#[tokio::test]
async fn a_changed_app_changes_its_deployment_and_keeps_the_size() {
    let world = World::new("change").await;
    world.create_app("shop", json!({"image": "nginx:1", "scaling": {"minReplicas": 2}})).await;
    world.size("shop", 2).await;
    world.patch_app("shop", json!({"spec": {"image": "nginx:2", "scaling": {"minReplicas": 1}}})).await;
    let deployment =
        world.deployment_where("shop", "the new image", |d| container(d)["image"] == "nginx:2").await;
    assert_eq!(deployment["spec"]["replicas"], 2, "Auto keeps the last written size within its bounds");
    world.patch_app("shop", json!({"spec": {"scaling": {"minReplicas": 4}}})).await;
    world.size("shop", 4).await;
}

#[tokio::test]
async fn hand_made_changes_of_our_fields_are_put_back() {
    let world = World::new("drift").await;
    world.create_app("shop", json!({"image": "nginx:1", "scaling": {"minReplicas": 2}})).await;
    world.size("shop", 2).await;
    world.scale("shop", 10).await;
    world.size("shop", 2).await;
    world
        .patch_deployment(
            "shop",
            "kubectl-edit",
            json!({"metadata": {"labels": {"apps.sentry.io/app": null}}}),
        )
        .await;
    world
        .deployment_where("shop", "the label is back", |d| {
            d["metadata"]["labels"]["apps.sentry.io/app"] == "shop"
        })
        .await;
    let image =
        json!([{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "evil:1"}]);
    let patch: json_patch::Patch = serde_json::from_value(image).unwrap();
    world.deployments().patch("shop", &PatchParams::default(), &Patch::Json::<()>(patch)).await.unwrap();
    world.deployment_where("shop", "the image is back", |d| container(d)["image"] == "nginx:1").await;
    world.patch_deployment("shop", "kubectl-edit", json!({"metadata": {"ownerReferences": []}})).await;
    world
        .deployment_where("shop", "the owner is back", |d| {
            d["metadata"]["ownerReferences"][0]["kind"] == "App"
        })
        .await;
    let app =
        world.app_where("shop", "all four are on record", |app| app["status"]["audit"]["seq"] == 5).await;
    let recent = app["status"]["audit"]["recent"].as_array().unwrap();
    let actions: Vec<_> = recent.iter().map(|digest| digest["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["Create", "PutBack", "PutBack", "PutBack", "PutBack"]);
}

#[tokio::test]
async fn a_deleted_deployment_comes_back() {
    let world = World::new("deleted").await;
    world.create_app("shop", json!({"image": "nginx:1"})).await;
    let first = world.size("shop", 1).await;
    world.deployments().delete("shop", &DeleteParams::background()).await.unwrap();
    world
        .deployment_where("shop", "another Deployment", |d| d["metadata"]["uid"] != first["metadata"]["uid"])
        .await;
}

#[tokio::test]
async fn fields_of_other_managers_are_left_alone_and_cost_no_write() {
    let world = World::new("others").await;
    world.create_app("shop", json!({"image": "nginx:1", "env": [{"name": "A", "value": "1"}]})).await;
    world.size("shop", 1).await;
    world.quiet().await;
    let mark = world.lab.audit_settled().await.unwrap();
    let theirs = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "shop", "annotations": {"team": "x"}},
        "spec": {"template": {
            "metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}},
            "spec": {
                "nodeSelector": {"disk": "ssd"},
                "containers": [{"name": "app", "env": [{"name": "INJECTED", "value": "y"}]}],
            },
        }},
    });
    let params = PatchParams::apply("injector");
    world.deployments().patch("shop", &params, &Patch::Apply(theirs)).await.unwrap();
    world.quiet().await;
    let writes = world.writes_since(&mark);
    assert!(writes.is_empty(), "{writes:?}");
    // They survive a write of ours too.
    world.patch_app("shop", json!({"spec": {"image": "nginx:2"}})).await;
    let deployment =
        world.deployment_where("shop", "the new image", |d| container(d)["image"] == "nginx:2").await;
    assert_eq!(deployment["spec"]["template"]["spec"]["nodeSelector"]["disk"], "ssd");
    assert_eq!(deployment["metadata"]["annotations"]["team"], "x");
    let env: Vec<_> = container(&deployment)["env"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["name"].as_str().unwrap())
        .collect();
    assert!(env.contains(&"A") && env.contains(&"INJECTED"), "{env:?}");
}

#[tokio::test]
async fn a_pin_wins_and_its_removal_goes_back_to_automatic() {
    let world = World::new("pin").await;
    world
        .create_app("shop", json!({"image": "nginx:1", "scaling": {"minReplicas": 2, "maxReplicas": 5}}))
        .await;
    world.size("shop", 2).await;
    let mut kubectl = world.lab.kubectl();
    kubectl.args(["-n", &world.namespace, "scale", "apps.apps.sentry.io/shop", "--replicas=9"]);
    assert!(kubectl.status().unwrap().success());
    world.size("shop", 9).await;
    world.condition("shop", "ScalingLimited", "True", "PinnedOutsideLimits").await;
    world.condition("shop", "ScalingActive", "False", "Pinned").await;
    world.scale("shop", 1).await;
    world.size("shop", 9).await;
    world.patch_app("shop", json!({"spec": {"replicas": null}})).await;
    world.size("shop", 5).await;
    world.condition("shop", "ScalingLimited", "False", "DesiredWithinRange").await;
    // Pinned to nothing, and back.
    world.patch_app("shop", json!({"spec": {"replicas": 0}})).await;
    world.size("shop", 0).await;
    world.patch_app("shop", json!({"spec": {"replicas": null}})).await;
    world.size("shop", 2).await;
}

#[tokio::test]
async fn a_suspended_app_is_observed_and_left_alone() {
    let world = World::new("suspend").await;
    world.create_app("shop", json!({"image": "nginx:1"})).await;
    world.size("shop", 1).await;
    world.patch_app("shop", json!({"spec": {"suspend": true}})).await;
    world.app_where("shop", "phase Suspended", |app| app["status"]["phase"] == "Suspended").await;
    world.scale("shop", 7).await;
    world.patch_app("shop", json!({"spec": {"image": "nginx:2"}})).await;
    world.app_where("shop", "the newest generation", |app| app["status"]["observedGeneration"] == 3).await;
    world.quiet().await;
    let deployment = world.deployment("shop").await.unwrap();
    assert_eq!(
        (&deployment["spec"]["replicas"], &container(&deployment)["image"]),
        (&json!(7), &json!("nginx:1"))
    );
    world.patch_app("shop", json!({"spec": {"suspend": false}})).await;
    world
        .deployment_where("shop", "all aligned", |d| {
            d["spec"]["replicas"] == 1 && container(d)["image"] == "nginx:2"
        })
        .await;
}

#[tokio::test]
async fn an_app_born_suspended_gets_no_child_and_no_finalizer() {
    let world = World::new("born").await;
    world.create_app("shop", json!({"image": "nginx:1", "suspend": true})).await;
    let app = world.app_where("shop", "phase Suspended", |app| app["status"]["phase"] == "Suspended").await;
    assert!(app["metadata"].get("finalizers").is_none(), "{app}");
    world.quiet().await;
    assert!(world.deployment("shop").await.is_none());
    world.delete_app("shop").await;
    world.gone("shop").await;
}

#[tokio::test]
async fn where_scaling_is_disabled_the_size_is_whoevers_who_sets_it() {
    let world = World::new("disabled").await;
    world
        .create_app("shop", json!({"image": "nginx:1", "scaling": {"mode": "Disabled", "minReplicas": 2}}))
        .await;
    let deployment = world.size("shop", 2).await;
    assert!(deployment["metadata"]["annotations"].get("apps.sentry.io/desired-replicas").is_none());
    world.scale("shop", 8).await;
    world.patch_app("shop", json!({"spec": {"image": "nginx:2"}})).await;
    let deployment =
        world.deployment_where("shop", "the new image", |d| container(d)["image"] == "nginx:2").await;
    assert_eq!(deployment["spec"]["replicas"], 8, "an apply of other fields leaves the size alone");
    // Auto takes over at the live size.
    world.patch_app("shop", json!({"spec": {"scaling": {"mode": "Auto"}}})).await;
    world
        .deployment_where("shop", "the size is ours", |d| {
            d["metadata"]["annotations"]["apps.sentry.io/desired-replicas"] == "8"
        })
        .await;
    world.scale("shop", 3).await;
    world.size("shop", 8).await;
}

#[tokio::test]
async fn the_size_is_left_to_another_scaler_while_there_is_one() {
    let world = World::new("hpa").await;
    world.create_app("shop", json!({"image": "nginx:1", "scaling": {"minReplicas": 2}})).await;
    world.size("shop", 2).await;
    let scaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "other"},
        "spec": {"minReplicas": 1, "maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "shop"}},
    });
    let scalers = world.api("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers");
    scalers.create(&PostParams::default(), &serde_json::from_value(scaler).unwrap()).await.unwrap();
    world.condition("shop", "ScalingActive", "False", "AmbiguousScaler").await;
    world
        .deployment_where("shop", "the annotation is gone", |d| {
            d["metadata"]["annotations"].get("apps.sentry.io/desired-replicas").is_none()
        })
        .await;
    world.scale("shop", 6).await;
    world.quiet().await;
    assert_eq!(world.deployment("shop").await.unwrap()["spec"]["replicas"], 6);
    scalers.delete("other", &DeleteParams::default()).await.unwrap();
    world.condition("shop", "ScalingActive", "False", "SignalsNotImplemented").await;
    world.scale("shop", 4).await;
    world.size("shop", 6).await;
}

#[tokio::test]
async fn a_deployment_that_is_not_ours_is_left_alone_until_it_is_gone() {
    let world = World::new("conflict").await;
    let theirs = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "shop"},
        "spec": {"replicas": 4, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "old:1"}]},
        }},
    });
    let theirs =
        world.deployments().create(&PostParams::default(), &serde_json::from_value(theirs).unwrap()).await;
    let uid = theirs.unwrap().metadata.uid;
    world.create_app("shop", json!({"image": "nginx:1"})).await;
    let ready = world.condition("shop", "Ready", "False", "NameConflict").await;
    assert!(ready["message"].as_str().unwrap().contains("rename the App"), "{ready}");
    let app = world.app("shop").await.unwrap();
    assert_eq!(app["status"]["phase"], "Degraded");
    assert!(app["metadata"].get("finalizers").is_none(), "nothing was created, nothing is to be kept");
    let deployment = world.deployment("shop").await.unwrap();
    assert_eq!(
        (&deployment["spec"]["replicas"], &container(&deployment)["name"]),
        (&json!(4), &json!("web"))
    );
    world.deployments().delete("shop", &DeleteParams::background()).await.unwrap();
    let deployment = world.size("shop", 1).await;
    assert_ne!(deployment["metadata"]["uid"].as_str(), uid.as_deref());
    world.condition("shop", "Ready", "Unknown", "WaitingForDeployment").await;
}

#[tokio::test]
async fn an_app_recreated_at_once_takes_its_deployment_over() {
    let world = World::new("takeover").await;
    world.create_app("shop", json!({"image": "nginx:1", "scaling": {"minReplicas": 3}})).await;
    let first = world.size("shop", 3).await;
    let orphan =
        DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    world.apps().delete("shop", &orphan).await.unwrap();
    world.gone("shop").await;
    let app = world.create_app("shop", json!({"image": "nginx:2"})).await;
    let deployment = world
        .deployment_where("shop", "owned by the new App", |d| {
            d["metadata"]["ownerReferences"][0]["uid"] == app["metadata"]["uid"]
        })
        .await;
    assert_eq!(deployment["metadata"]["uid"], first["metadata"]["uid"], "the same Deployment lives on");
    assert_eq!(
        (&deployment["spec"]["replicas"], &container(&deployment)["image"]),
        (&json!(3), &json!("nginx:2"))
    );
}

#[tokio::test]
async fn a_third_change_of_a_field_is_contended_and_names_the_writer() {
    let world = World::new("contended").await;
    world.create_app("shop", json!({"image": "nginx:1"})).await;
    world.size("shop", 1).await;
    for replicas in [5, 6] {
        world.scale("shop", replicas).await;
        world.size("shop", 1).await;
    }
    world.quiet().await;
    world.scale("shop", 7).await;
    let contended = world.condition("shop", "Contended", "True", "ForeignWriter").await;
    let message = contended["message"].as_str().unwrap();
    assert!(message.contains("kubectl (Update on scale)") && message.contains(".spec.replicas"), "{message}");
    world.condition("shop", "Ready", "False", "ForeignWriter").await;
    assert_eq!(
        world.deployment("shop").await.unwrap()["spec"]["replicas"],
        7,
        "not put back before 30 s are over"
    );
    let app = world.app("shop").await.unwrap();
    let recent = app["status"]["audit"]["recent"].as_array().unwrap();
    assert_eq!(recent.last().unwrap()["action"], "Contended");
    // A change of the App is carried out all the same, and brings the field back with it.
    world.patch_app("shop", json!({"spec": {"image": "nginx:2"}})).await;
    world
        .deployment_where("shop", "aligned", |d| {
            container(d)["image"] == "nginx:2" && d["spec"]["replicas"] == 1
        })
        .await;
}

#[tokio::test]
async fn a_size_written_into_our_annotation_by_hand_is_no_decision() {
    let world = World::new("annotation").await;
    world.create_app("shop", json!({"image": "nginx:1", "scaling": {"minReplicas": 2}})).await;
    world.size("shop", 2).await;
    world
        .patch_deployment(
            "shop",
            "kubectl-annotate",
            json!({"metadata": {"annotations": {"apps.sentry.io/desired-replicas": "9"}}}),
        )
        .await;
    world
        .deployment_where("shop", "the annotation is back", |d| {
            d["metadata"]["annotations"]["apps.sentry.io/desired-replicas"] == "2"
        })
        .await;
    assert_eq!(world.deployment("shop").await.unwrap()["spec"]["replicas"], 2);
}
