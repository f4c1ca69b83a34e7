//! Ownership on made-up entries: the walk itself. What a real server records stands in `tests/pure_ownership.rs`.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn live(fields: &Value) -> Value {
    json!({"metadata": {"managedFields": [
        {"manager": FIELD_MANAGER, "operation": "Update", "subresource": "status", "fieldsV1": {"f:status": {}}},
        {"manager": FIELD_MANAGER, "operation": "Apply", "apiVersion": "apps/v1", "fieldsV1": fields},
    ]}})
}

fn paths(lost: &[LostField]) -> Vec<&str> {
    lost.iter().map(|field| field.path.as_str()).collect()
}

#[test]
fn an_object_without_our_apply_entry_has_lost_everything() {
    let mut foreign = live(&json!({}));
    foreign["metadata"]["managedFields"][1]["manager"] = json!("helm");
    for live in [foreign, json!({}), json!({"metadata": {"managedFields": [{}]}})] {
        assert!(!has_entry(&live));
        assert_eq!(entry_hash(&live), None);
        let lost = lost(&json!({"spec": {"replicas": 1}}), &live);
        assert_eq!(paths(&lost), ["(no entry of kubesentry)"]);
        assert_eq!(holders(&live, &lost[0]), []);
    }
}

#[test]
fn identity_is_not_part_of_managed_fields() {
    let intent = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "a", "namespace": "b", "resourceVersion": "7", "uid": "u"},
        "spec": {"template": {"metadata": {"name": "not identity"}}},
    });
    assert_eq!(paths(&lost(&intent, &live(&json!({"f:spec": {"f:other": {}}})))), [".spec.template"]);
    let below = json!({"f:spec": {"f:template": {"f:metadata": {"f:labels": {}}}}});
    assert_eq!(paths(&lost(&intent, &live(&below))), [".spec.template.metadata.name"]);
}

#[test]
fn a_key_with_dots_is_one_segment() {
    let intent = json!({"metadata": {"labels": {"app.kubernetes.io/name": "x"}}});
    let lost = lost(&intent, &live(&json!({"f:metadata": {"f:labels": {"f:other": {}}}})));
    let wanted = ["metadata", "labels", "app.kubernetes.io/name"].map(|name| Segment::Field(name.to_owned()));
    assert_eq!(lost[0].segments, wanted);
    assert_eq!(lost[0].to_string(), ".metadata.labels.app.kubernetes.io/name");
}

#[test]
fn the_callers_exceptions_are_skipped_with_all_below_them() {
    let intent = json!({
        "metadata": {"annotations": {"apps.sentry.io/desired-replicas": "3"}},
        "spec": {"replicas": 3, "minReadySeconds": 0},
    });
    let live = live(&json!({"f:spec": {"f:other": {}}}));
    let except = [".spec.replicas", ".metadata.annotations.apps.sentry.io/desired-replicas"];
    assert_eq!(paths(&lost_except(&intent, &live, &except)), [".spec.minReadySeconds"]);
    assert_eq!(paths(&lost_except(&intent, &live, &[".spec"])), [".metadata"]);
    assert_eq!(paths(&lost(&intent, &live)), [".metadata", ".spec.minReadySeconds", ".spec.replicas"]);
}

#[test]
fn an_item_is_found_by_keys_that_the_server_filled_in() {
    let intent = json!({"ports": [{"containerPort": 80}, {"containerPort": 53, "protocol": "UDP"}]});
    let key =
        |number: u16, protocol: &str| format!(r#"k:{{"containerPort":{number},"protocol":"{protocol}"}}"#);
    let both = json!({"f:ports": {key(80, "TCP"): {}, key(53, "UDP"): {}}});
    assert_eq!(lost(&intent, &live(&both)), []);
    let other = json!({"f:ports": {key(80, "TCP"): {}, key(53, "TCP"): {}}});
    assert_eq!(paths(&lost(&intent, &live(&other))), [r#".ports[{"containerPort":53,"protocol":"UDP"}]"#]);
}

#[test]
fn an_item_of_a_set_is_found_by_its_value() {
    let intent = json!({"metadata": {"finalizers": ["a/x", "a/y"]}});
    let live = live(&json!({"f:metadata": {"f:finalizers": {".": {}, "v:\"a/x\"": {}}}}));
    assert_eq!(paths(&lost(&intent, &live)), [r#".metadata.finalizers["a/y"]"#]);
}

#[test]
fn an_empty_list_asks_for_nothing() {
    let intent = json!({"spec": {"volumeMounts": [], "claims": {"list": []}, "emptyDir": {}}});
    assert_eq!(paths(&lost(&intent, &live(&json!({"f:spec": {"f:other": {}}})))), [".spec.emptyDir"]);
}

#[test]
fn holders_are_named_newest_first() {
    let entry = |manager: &str, time: &str, fields: Value| json!({"manager": manager, "operation": "Update", "time": time, "fieldsV1": fields});
    let mut live = live(&json!({"f:other": {}}));
    let entries = live["metadata"]["managedFields"].as_array_mut().unwrap();
    let key = "k:{\"name\":\"app\"}";
    entries.push(entry("old", "2026-01-01T00:00:00Z", json!({"f:c": {key: {"f:image": {}}}})));
    entries.push(entry("none", "2026-01-01T00:00:03Z", json!({"f:c": {key: {"f:args": {}}}})));
    entries.push(entry("new", "2026-01-01T00:00:02Z", json!({"f:c": {key: {"f:image": {}}}})));
    let segments =
        [Segment::Field("c".into()), Segment::Key(json!({"name": "app"})), Segment::Field("image".into())];
    let holders = holders(&live, &LostField::at(&segments));
    assert_eq!(holders.iter().map(|writer| writer.manager.as_str()).collect::<Vec<_>>(), ["new", "old"]);
}

/// Intents: objects with fields, lists keyed by name, atomic lists, leaves.
fn intent() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![any::<i32>().prop_map(Value::from), "[a-z.]{0,4}".prop_map(Value::from)];
    let value = leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::btree_map("[a-z./]{1,4}", inner.clone(), 1..4).prop_map(|fields| json!(fields)),
            prop::collection::btree_map("[a-z]{1,3}", inner, 1..4).prop_map(|items| {
                items.into_iter().map(|(name, value)| json!({"name": name, "value": value})).collect()
            }),
            prop::collection::vec("[a-z]{1,3}", 1..4).prop_map(|items| json!(items)),
        ]
    });
    prop::collection::btree_map("[a-z]{1,4}", value, 1..4).prop_map(|spec| json!({"spec": spec}))
}

/// The entry that a server would write for an intent.
fn owned(intent: &Value) -> Value {
    match intent {
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (format!("f:{name}"), owned(value))).collect()
        }
        Value::Array(items) if items.iter().all(Value::is_object) => items
            .iter()
            .map(|item| {
                let mut below = owned(item);
                below["."] = json!({});
                (format!("k:{}", json!({"name": item["name"]})), below)
            })
            .collect(),
        _ => json!({}),
    }
}

/// Removes the n-th node of a field set, counted in depth, and what then holds nothing; gives its path as text.
fn remove(fields: &mut Map<String, Value>, n: &mut usize, path: &str) -> Option<String> {
    for name in fields.keys().filter(|name| *name != ".").cloned().collect::<Vec<_>>() {
        let here = match name.strip_prefix("f:") {
            Some(field) => format!("{path}.{field}"),
            None => format!("{path}[{}]", &name[2..]),
        };
        if *n == 0 {
            fields.remove(&name);
            return Some(here);
        }
        *n -= 1;
        let below = fields.get_mut(&name).unwrap().as_object_mut().unwrap();
        if let Some(removed) = remove(below, n, &here) {
            if below.is_empty() {
                fields.remove(&name);
                return Some(here);
            }
            return Some(removed);
        }
    }
    None
}

proptest! {
    #[test]
    fn what_the_entry_holds_is_not_lost_and_what_is_taken_out_of_it_is(intent in intent(), n in any::<prop::sample::Index>()) {
        let mut fields = owned(&intent);
        prop_assert_eq!(lost(&intent, &live(&fields)), vec![]);
        let size = fields.to_string().matches(['f', 'k']).count();
        let Some(taken) = remove(fields.as_object_mut().unwrap(), &mut n.index(size.max(1)), "") else {
            return Ok(());
        };
        prop_assume!(!fields.as_object().unwrap().is_empty());
        let found = lost(&intent, &live(&fields));
        prop_assert_eq!(paths(&found), [taken.as_str()]);
        prop_assert_eq!(lost_except(&intent, &live(&fields), &[taken.as_str()]), vec![]);
        // Whoever holds all of the intent holds that field.
        let mut with_taker = live(&fields);
        let taker = json!({"manager": "taker", "operation": "Update", "fieldsV1": owned(&intent)});
        with_taker["metadata"]["managedFields"].as_array_mut().unwrap().push(taker);
        let holders = holders(&with_taker, &found[0]);
        prop_assert_eq!(holders.len(), 1);
        prop_assert_eq!(&holders[0].manager, "taker");
    }
}
