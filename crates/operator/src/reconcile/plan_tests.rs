use std::sync::Arc;

use jiff::Timestamp;
use kubesentry_api::ParseOptions;
use tokio::time::Instant;

use super::*;
use crate::memory::Memory;
use crate::objects::{App, DeploymentView};
use crate::reconcile::judge::{judge, understand};

fn app(spec: &Value) -> App {
    let object = json!({
        "apiVersion": "apps.sentry.io/v1alpha1", "kind": "App",
        "metadata": {"name": "shop", "namespace": "n", "uid": "u", "resourceVersion": "5", "generation": 1},
        "spec": spec,
    });
    App::from(serde_json::from_value::<kube::api::DynamicObject>(object).unwrap())
}

fn child(metadata: &Value) -> Deployment {
    let mut all = json!({"name": "shop", "namespace": "n", "uid": "d", "resourceVersion": "7"});
    all.as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    let view: DeploymentView =
        serde_json::from_value(json!({"metadata": all, "spec": {"replicas": 1}})).unwrap();
    Deployment::from(view)
}

fn ours() -> Value {
    let owner = json!({"apiVersion": "apps.sentry.io/v1alpha1", "kind": "App", "name": "shop", "uid": "u", "controller": true});
    json!({"ownerReferences": [owner]})
}

fn planned(spec: &Value, child: Option<Deployment>, memory: &mut Memory) -> (Judgement, Plan) {
    let observation = Observation {
        app: Arc::new(app(spec)),
        child: child.map(Arc::new),
        scaler: None,
        now: Timestamp::UNIX_EPOCH,
        mono: Instant::now(),
    };
    let understood = Arc::new(understand(&observation.app, &ParseOptions::default()));
    let judgement = judge(&observation, understood);
    let plan = plan(&observation, &judgement, memory);
    (judgement, plan)
}

#[test]
fn a_new_app_gets_its_finalizer_before_its_child() {
    let (_, plan) = planned(&json!({"image": "i"}), None, &mut Memory::default());
    assert_eq!(plan.child.unwrap().action, Action::Create);
    let patch = plan.finalizer.unwrap();
    assert_eq!(patch[0], json!({"op": "test", "path": "/metadata/resourceVersion", "value": "5"}));
    assert_eq!(patch[1]["value"], json!(["apps.sentry.io/audit-export"]));
}

#[test]
fn a_fruitless_apply_is_not_repeated_but_another_size_is_sent() {
    let mut memory = Memory::default();
    let spec = json!({"image": "i", "replicas": 2});
    let (_, first) = planned(&spec, Some(child(&ours())), &mut memory);
    memory.fruitless = Some((first.child.unwrap().sent, "7".to_owned()));
    let (_, again) = planned(&spec, Some(child(&ours())), &mut memory);
    assert!(again.child.is_none(), "{again:?}");
    let (_, pinned) = planned(&json!({"image": "i", "replicas": 5}), Some(child(&ours())), &mut memory);
    assert_eq!(pinned.child.unwrap().to(), 5);
}

#[test]
fn whose_a_deployment_is_decides_what_is_done_to_it() {
    let owner = |kind: &str, group: &str, name: &str, uid: &str| json!([{"apiVersion": format!("{group}/v1"), "kind": kind, "name": name, "uid": uid, "controller": true}]);
    let entry = json!([{
        "manager": "kubesentry", "operation": "Apply", "apiVersion": "apps/v1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {}},
    }]);
    let label = json!({"apps.sentry.io/app": "shop"});
    let table = [
        ("our UID", ours(), Whose::Ours),
        (
            "the UID of a vanished App, applied by us",
            json!({"ownerReferences": owner("App", "apps.sentry.io", "shop", "old"), "managedFields": entry}),
            Whose::AVanishedApps,
        ),
        (
            "the UID of a vanished App, never applied by us",
            json!({"ownerReferences": owner("App", "apps.sentry.io", "shop", "old")}),
            Whose::SomebodyElses,
        ),
        (
            "an App of another name",
            json!({"ownerReferences": owner("App", "apps.sentry.io", "cart", "old"), "managedFields": entry}),
            Whose::SomebodyElses,
        ),
        (
            "the kind App of another group",
            json!({"ownerReferences": owner("App", "example.com", "shop", "u"), "managedFields": entry}),
            Whose::SomebodyElses,
        ),
        ("an orphan of ours", json!({"labels": label, "managedFields": entry}), Whose::AVanishedApps),
        ("an orphan without our entry", json!({"labels": label}), Whose::SomebodyElses),
        ("an orphan without our label", json!({"managedFields": entry}), Whose::SomebodyElses),
        ("nobody's", json!({}), Whose::SomebodyElses),
    ];
    for (sentence, metadata, wanted) in table {
        let (judgement, plan) =
            planned(&json!({"image": "i"}), Some(child(&metadata)), &mut Memory::default());
        assert_eq!(judgement.whose, wanted, "{sentence}");
        assert_eq!(plan.child.is_some(), wanted != Whose::SomebodyElses, "{sentence}");
    }
}

#[test]
fn a_deployment_that_is_being_deleted_is_left_to_end() {
    let mut metadata = ours();
    metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let (_, plan) = planned(&json!({"image": "i"}), Some(child(&metadata)), &mut Memory::default());
    assert!(plan.child.is_none());
}
