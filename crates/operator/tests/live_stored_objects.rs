//! Apps that are stored already when the schema grows stricter: each still gets a status, each can be deleted, and none
//! harms another.
//!
//! Changes the CRD, so it runs on a control plane of its own.
#![allow(clippy::disallowed_methods, reason = "tests write as others do")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end here")]

mod common;

use common::{World, eventually};
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kubesentry_lab::operator::{self, Operator};
use kubesentry_lab::{Lab, LabOptions};
use serde_json::{Value, json};

/// The CRD of a time when less was asked for: no rules, bounds, patterns or required fields, one field more, and items of
/// `command` of another type.
fn older_crd() -> Value {
    fn relax(value: &mut Value) {
        match value {
            Value::Object(object) => {
                for strict in [
                    "x-kubernetes-validations",
                    "minimum",
                    "maximum",
                    "pattern",
                    "minLength",
                    "maxLength",
                    "enum",
                    "maxItems",
                ] {
                    // A property may be named like a keyword.
                    if object.get(strict).is_some_and(|inner| !inner.is_object()) {
                        object.remove(strict);
                    }
                }
                object.values_mut().for_each(relax);
            }
            Value::Array(items) => items.iter_mut().for_each(relax),
            _ => {}
        }
    }
    let mut crd = kubesentry_api::crd::definition();
    relax(&mut crd);
    let spec = crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec").unwrap();
    spec["properties"]["retired"] = json!({"type": "string"});
    spec["properties"]["command"]["items"] = json!({"type": "integer"});
    spec["properties"]["scaling"]["properties"]["metrics"]["items"]["required"] = json!(["type"]);
    crd
}

async fn install(world: &World, crd: &Value) {
    let resource = ApiResource {
        group: "apiextensions.k8s.io".into(),
        version: "v1".into(),
        api_version: "apiextensions.k8s.io/v1".into(),
        kind: "CustomResourceDefinition".into(),
        plural: "customresourcedefinitions".into(),
    };
    let api: Api<DynamicObject> = Api::all_with(world.admin.clone(), &resource);
    let params = PatchParams::apply("installer").force();
    api.patch("apps.apps.sentry.io", &params, &Patch::Apply(crd)).await.unwrap();
    eventually("the CRD is served", || async { world.apps().list(&ListParams::default()).await.map(drop) })
        .await;
}

/// Waits until the API server refuses what today's schema refuses.
async fn todays_schema(world: &World) {
    let wrong = common::app("probe", json!({"image": "i", "scaling": {"minReplicas": -1}}));
    let wrong: DynamicObject = serde_json::from_value(wrong).unwrap();
    let params = kube::api::PostParams { dry_run: true, ..Default::default() };
    eventually("the new schema is in force", || async {
        match world.apps().create(&params, &wrong).await {
            Err(_) => Ok(()),
            Ok(_) => Err("accepted"),
        }
    })
    .await;
}

#[tokio::test]
async fn an_app_that_todays_schema_refuses_gets_a_status_and_is_deletable_and_harms_no_other() {
    let lab = Lab::start(LabOptions::default()).await.unwrap();
    // CRD and roles; then the older CRD over it.
    operator::install(&lab).await.unwrap();
    let world = World::on(lab, "stored").await;
    install(&world, &older_crd()).await;
    eventually("the older schema is in force", || async {
        let params = kube::api::PostParams { dry_run: true, ..Default::default() };
        let odd = common::app("probe", json!({"retired": "x", "scaling": {"minReplicas": -1}}));
        world.apps().create(&params, &serde_json::from_value(odd).unwrap()).await.map(drop)
    })
    .await;
    let stored = [
        ("bound", json!({"image": "i", "scaling": {"minReplicas": 0}}), "spec.scaling.minReplicas"),
        ("enum", json!({"image": "i", "scaling": {"mode": "Off"}}), "spec.scaling.mode"),
        (
            "rule",
            json!({"image": "i", "scaling": {"minReplicas": 5, "maxReplicas": 3}}),
            "spec.scaling.minReplicas",
        ),
        ("no-image", json!({}), "spec.image"),
        (
            "required",
            json!({"image": "i", "scaling": {"metrics": [{"type": "QPS"}]}}),
            "spec.scaling.metrics[0].target",
        ),
        ("item-type", json!({"image": "i", "command": [1, 2]}), "spec.command[0]"),
    ];
    for (name, spec, _) in &stored {
        world.create_app(name, spec.clone()).await;
    }
    world.create_app("removed-field", json!({"image": "nginx:1", "retired": "x"})).await;
    world.create_app("healthy", json!({"image": "nginx:1", "scaling": {"minReplicas": 2}})).await;
    install(&world, &kubesentry_api::crd::definition()).await;
    todays_schema(&world).await;

    let _operator = Operator::start(&world.lab, "stored", &[]).await.unwrap();
    for (name, _, path) in &stored {
        let invalid = world.condition(name, "SpecValid", "False", "InvalidSpec").await;
        assert!(invalid["message"].as_str().unwrap().contains(path), "{name}: {invalid}");
        assert!(world.deployment(name).await.is_none(), "{name}: nothing is created for it");
    }
    world.size("healthy", 2).await;
    // What is no field any more is not served any more either.
    world.size("removed-field", 1).await;
    world.scale("healthy", 9).await;
    world.size("healthy", 2).await;

    for name in stored.iter().map(|(name, _, _)| *name).chain(["removed-field"]) {
        world.delete_app(name).await;
        world.gone(name).await;
    }
    world.scale("healthy", 7).await;
    world.size("healthy", 2).await;
    world.delete_app("healthy").await;
    world.gone("healthy").await;
}

#[tokio::test]
async fn a_schema_that_grows_stricter_under_a_running_operator_keeps_no_app_and_stops_none() {
    let lab = Lab::start(LabOptions::default()).await.unwrap();
    operator::install(&lab).await.unwrap();
    let world = World::on(lab, "finalizer").await;
    install(&world, &older_crd()).await;
    eventually("the older schema is in force", || async {
        let mut odd = common::app(
            "old",
            json!({"image": "i", "command": [1], "scaling": {"minReplicas": 0, "mode": "Off"}}),
        );
        odd["metadata"]["finalizers"] = json!(["apps.sentry.io/audit-export"]);
        world
            .apps()
            .create(&kube::api::PostParams::default(), &serde_json::from_value(odd).unwrap())
            .await
            .map(drop)
    })
    .await;
    let operator = Operator::start(&world.lab, "finalizer", &[]).await.unwrap();
    let mark = world.lab.audit_settled().await.unwrap();
    world.create_app("healthy", json!({"image": "nginx:1"})).await;
    world.size("healthy", 1).await;
    world.create_app("retired", json!({"image": "nginx:1", "retired": "x"})).await;
    world.condition("retired", "SpecValid", "False", "InvalidSpec").await;
    world.condition("old", "SpecValid", "False", "InvalidSpec").await;

    install(&world, &kubesentry_api::crd::definition()).await;
    todays_schema(&world).await;
    world.scale("healthy", 3).await;
    world.size("healthy", 1).await;
    world.create_app("new", json!({"image": "nginx:1"})).await;
    world.size("new", 1).await;
    // The API server serves the App without the field now, under the same generation.
    let touched = world.patch_app("retired", json!({"metadata": {"labels": {"touched": "true"}}})).await;
    assert_eq!((touched["spec"].get("retired"), &touched["metadata"]["generation"]), (None, &json!(1)));
    world.size("retired", 1).await;
    world.condition("retired", "SpecValid", "True", "Valid").await;
    // The spec is as wrong as before; what else changes is seen, and told by PUT.
    world.patch_app("old", json!({"spec": {"suspend": true}})).await;
    world.app_where("old", "the newest generation", |app| app["status"]["observedGeneration"] == 2).await;
    world.condition("old", "SpecValid", "False", "InvalidSpec").await;
    assert_eq!(operator.health("/readyz").unwrap().0, 200);
    for name in ["old", "healthy", "new", "retired"] {
        world.delete_app(name).await;
        world.gone(name).await;
    }

    world.lab.audit_settled().await.unwrap();
    let writes = world.writes_since(&mark);
    let refused: Vec<_> = writes.iter().filter(|entry| entry.code >= 400 && entry.code != 409).collect();
    assert!(refused.is_empty(), "{refused:?}");
    assert!(writes.iter().all(|entry| entry.subresource != "status" || entry.verb == "update"), "{writes:?}");
}
