//! Golden intents: an App that didn't change must give the same Deployment after an upgrade of the operator, or every
//! Pod would roll. A change to a golden file needs a record in docs/decisions/ and a line in CHANGELOG.md.
//!
//! `UPDATE_GOLDEN=1 cargo test -p kubesentry-api --test pure_children` writes them anew.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may read files, print, and end here"
)]

use std::path::Path;

use kubesentry_api::children::{Identity, Sized, deployment};
use kubesentry_api::{ParseOptions, parse};
use serde_json::{Value, json};

fn intent_of(manifest: &str) -> kubesentry_api::children::Intent {
    let raw = kubesentry_api::manifest::read(manifest).unwrap().remove(0);
    let app = parse(&raw, &ParseOptions::default());
    let app = app.app.unwrap_or_else(|| panic!("{:?}", app.violations));
    let identity = Identity { name: "shop".into(), namespace: "demo".into(), uid: "0b1e5a3c-uid".into() };
    deployment(&app.workload, &identity).unwrap()
}

#[test]
fn an_unchanged_app_gives_the_same_intent() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut seen = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "yaml") {
            continue;
        }
        seen += 1;
        let intent = intent_of(&std::fs::read_to_string(&path).unwrap());
        let found = serde_json::to_string_pretty(&json!({"hash": intent.hash(), "intent": intent.body()}))
            .unwrap()
            + "\n";
        let golden = path.with_extension("json");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&golden, &found).unwrap();
        }
        let wanted = std::fs::read_to_string(&golden).unwrap_or_default();
        assert_eq!(found, wanted, "{} changed", golden.display());
    }
    assert!(seen >= 3);
}

fn no_null_or_empty_metadata(value: &Value, path: &str) {
    match value {
        Value::Null => panic!("null at {path}"),
        Value::Object(object) => {
            for (key, inner) in object {
                let empty = inner.as_object().is_some_and(serde_json::Map::is_empty);
                assert!(
                    !(empty && ["metadata", "labels", "annotations"].contains(&key.as_str())),
                    "empty {path}.{key}"
                );
                no_null_or_empty_metadata(inner, &format!("{path}.{key}"));
            }
        }
        Value::Array(items) => items.iter().for_each(|inner| no_null_or_empty_metadata(inner, path)),
        _ => {}
    }
}

#[test]
fn an_intent_holds_no_null_and_no_empty_metadata() {
    let manifest = "
apiVersion: apps.sentry.io/v1alpha1
kind: App
metadata: {name: shop}
spec:
  image: nginx:1
  template: {metadata: {annotations: {}, labels: {}}, spec: {nodeSelector: null, containers: [{name: app, args: null}]}}
";
    no_null_or_empty_metadata(intent_of(manifest).body(), "");
}

#[test]
fn the_size_and_its_annotation_are_one_write_and_not_part_of_the_hash() {
    let intent = intent_of(
        "{apiVersion: apps.sentry.io/v1alpha1, kind: App, metadata: {name: shop}, spec: {image: i}}",
    );
    let ours = intent.with_size(&Sized::Ours(3));
    assert_eq!(ours["spec"]["replicas"], 3);
    assert_eq!(ours["metadata"]["annotations"]["apps.sentry.io/desired-replicas"], "3");
    assert_eq!(ours["metadata"]["annotations"]["apps.sentry.io/applied-hash"], intent.hash());
    assert!(ours["metadata"].get("resourceVersion").is_none());

    let theirs = intent.with_size(&Sized::Theirs { replicas: 7, resource_version: Some("42".into()) });
    assert_eq!(theirs["spec"]["replicas"], 7);
    assert_eq!(theirs["metadata"]["resourceVersion"], "42");
    assert!(theirs["metadata"]["annotations"].get("apps.sentry.io/desired-replicas").is_none());
    assert_eq!(theirs["metadata"]["annotations"]["apps.sentry.io/applied-hash"], intent.hash());
}

#[test]
fn the_operators_labels_win_and_the_selector_holds_only_its_own() {
    let intent = intent_of(
        "{apiVersion: apps.sentry.io/v1alpha1, kind: App, metadata: {name: shop}, spec: {image: i, template: {metadata: {labels: {team: x}}}}}",
    );
    let labels = &intent.body()["spec"]["template"]["metadata"]["labels"];
    assert_eq!(labels["team"], "x");
    assert_eq!(labels["app.kubernetes.io/managed-by"], "kubesentry");
    assert_eq!(intent.body()["spec"]["selector"]["matchLabels"], json!({"apps.sentry.io/app": "shop"}));
}
