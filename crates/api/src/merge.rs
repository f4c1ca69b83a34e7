//! Merges a Pod template over the fields that an App declares for its main container.
//!
//! On the same path the template wins. Lists merge by the keys of core/v1, lists without keys are replaced, maps merge.
//! A null in the template takes a field away. It knows no App, only two JSON values and the keys of core/v1.

use serde_json::{Map, Value};

use crate::structure::prune_nulls;

/// A key of a list's items, and its default where it may be left out.
type ListKey = (&'static str, Option<&'static str>);

/// Lists of core/v1 that merge by key (`patchMergeKey` in `k8s.io/api/core/v1/types.go`).
const KEYED: [(&str, &[ListKey]); 7] = [
    ("containers", &[("name", None)]),
    ("initContainers", &[("name", None)]),
    ("volumes", &[("name", None)]),
    ("env", &[("name", None)]),
    ("ports", &[("containerPort", None), ("protocol", Some("TCP"))]),
    ("volumeMounts", &[("mountPath", None)]),
    ("imagePullSecrets", &[("name", None)]),
];

/// Fields of which a value may hold only one: when `over` brings one, the others go from `base`.
const UNIONS: [&[&str]; 2] = [&["value", "valueFrom"], &["exec", "httpGet", "tcpSocket", "grpc"]];

/// `over` merged over `base`.
pub(crate) fn merge(base: Value, over: &Value) -> Value {
    merge_at("", base, over)
}

fn merge_at(name: &str, base: Value, over: &Value) -> Value {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => Value::Object(merge_objects(base, over)),
        (Value::Array(base), Value::Array(over)) => match KEYED.iter().find(|(list, _)| *list == name) {
            Some((_, keys)) => Value::Array(merge_lists(base, over, keys)),
            None => Value::Array(over.clone()),
        },
        (_, over) => without_nulls(over.clone()),
    }
}

fn merge_objects(mut base: Map<String, Value>, over: &Map<String, Value>) -> Map<String, Value> {
    for union in UNIONS {
        if over.iter().any(|(name, value)| union.contains(&name.as_str()) && !value.is_null()) {
            base.retain(|name, _| !union.contains(&name.as_str()) || over.contains_key(name));
        }
    }
    for (name, value) in over {
        if value.is_null() {
            base.remove(name);
            continue;
        }
        let merged = match base.remove(name) {
            Some(inner) => merge_at(name, inner, value),
            None => without_nulls(value.clone()),
        };
        base.insert(name.clone(), merged);
    }
    base
}

fn merge_lists(base: Vec<Value>, over: &[Value], keys: &[ListKey]) -> Vec<Value> {
    let mut out = base;
    for item in over {
        match out.iter().position(|candidate| same(candidate, item, keys)) {
            Some(index) => out[index] = merge_at("", out[index].take(), item),
            None => out.push(without_nulls(item.clone())),
        }
    }
    out
}

fn same(a: &Value, b: &Value, keys: &[ListKey]) -> bool {
    keys.iter().all(|(key, default)| {
        let value = |item: &Value| item.get(*key).cloned().or_else(|| default.map(Value::from));
        value(a).is_some() && value(a) == value(b)
    })
}

/// Server-side apply takes a null for a value, and an intent must hold only what is wanted.
fn without_nulls(mut value: Value) -> Value {
    prune_nulls(&mut value);
    value
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_way_to_merge_has_its_result() {
        let table = [
            ("the template wins", json!({"a": 1, "b": 2}), json!({"a": 3}), json!({"a": 3, "b": 2})),
            (
                "maps merge",
                json!({"m": {"x": "1"}}),
                json!({"m": {"y": "2"}}),
                json!({"m": {"x": "1", "y": "2"}}),
            ),
            ("a null takes away", json!({"a": 1}), json!({"a": null, "m": {"n": null}}), json!({"m": {}})),
            (
                "containers merge by name",
                json!({"containers": [{"name": "app", "image": "i"}]}),
                json!({"containers": [{"name": "side", "image": "s"}, {"name": "app", "tty": true}]}),
                json!({"containers": [{"name": "app", "image": "i", "tty": true}, {"name": "side", "image": "s"}]}),
            ),
            (
                "ports merge by number and protocol, TCP being the default",
                json!({"ports": [{"containerPort": 80, "protocol": "TCP", "name": "http"}]}),
                json!({"ports": [{"containerPort": 80, "name": "web"}, {"containerPort": 80, "protocol": "UDP"}]}),
                json!({"ports": [{"containerPort": 80, "protocol": "TCP", "name": "web"}, {"containerPort": 80, "protocol": "UDP"}]}),
            ),
            (
                "an env item is a value or a reference, never both",
                json!({"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}),
                json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}),
                json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}, {"name": "B", "value": "2"}]}),
            ),
            (
                "a probe has one handler",
                json!({"readinessProbe": {"httpGet": {"port": 80}, "periodSeconds": 5}}),
                json!({"readinessProbe": {"exec": {"command": ["true"]}}}),
                json!({"readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 5}}),
            ),
            (
                "lists without keys are replaced",
                json!({"args": ["a", "b"]}),
                json!({"args": ["c"]}),
                json!({"args": ["c"]}),
            ),
            (
                "volume mounts merge by path",
                json!({"volumeMounts": [{"mountPath": "/a", "name": "v"}]}),
                json!({"volumeMounts": [{"mountPath": "/a", "readOnly": true}]}),
                json!({"volumeMounts": [{"mountPath": "/a", "name": "v", "readOnly": true}]}),
            ),
        ];
        for (sentence, base, over, wanted) in table {
            assert_eq!(merge(base, &over), wanted, "{sentence}");
        }
    }
}
