//! Edits of a copy of the CRD.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};

/// A field's schema, by a path as the check writes it.
pub(crate) fn field<'a>(crd: &'a mut Value, path: &str) -> &'a mut Value {
    let mut at = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    for name in path.split('.').filter(|name| !name.is_empty()) {
        let (name, items) = match name.strip_suffix("[]") {
            Some(name) => (name, true),
            None => (name, false),
        };
        at = match name {
            "*" => &mut at["additionalProperties"],
            name => &mut at["properties"][name],
        };
        if items {
            at = &mut at["items"];
        }
    }
    assert!(at.is_object(), "no field {path}");
    at
}

pub(crate) fn remove(object: &mut Value, key: &str) {
    assert!(object.as_object_mut().unwrap().remove(key).is_some(), "no {key}");
}

pub(crate) fn add_rule(object: &mut Value) {
    let rule = json!({"rule": "self == self", "message": "new"});
    match object.get_mut("x-kubernetes-validations").and_then(Value::as_array_mut) {
        Some(rules) => rules.push(rule),
        None => object["x-kubernetes-validations"] = json!([rule]),
    }
}
