//! From Rust types to structural OpenAPI schemas, as the API server wants them.
//!
//! [`app`] is the schema of the whole object without its CEL rules, [`pod_template`] that of core/v1's PodTemplateSpec,
//! which the CRD leaves open and the parser checks strictly. What schemars and k8s-openapi leave out or put in too much
//! is put right in one pass, `normalize`.

use std::sync::LazyLock;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::spec::AppSpec;
use crate::status::AppStatus;
use crate::structure::{QUANTITY_PATTERN, prune_nulls};

/// Schema of an App, without rules: `openAPIV3Schema` of the CRD.
pub fn app() -> &'static Value {
    static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
        json!({
            "type": "object",
            "description": "App is an application that scales and heals itself: KubeSentry keeps a Deployment aligned with it.",
            "required": ["spec"],
            "properties": {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                // The length makes the rules on the name affordable for the server (CEL cost estimation).
                "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}},
                "spec": of::<AppSpec>(),
                "status": without_defaults(of::<AppStatus>()),
            },
        })
    });
    &SCHEMA
}

/// Schema of `spec.template`: core/v1's PodTemplateSpec with every required list of Pods made optional, since the main
/// container may come from the App's own fields.
pub fn pod_template() -> &'static Value {
    static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
        let mut schema = of::<PodTemplateSpec>();
        if let Some(spec) = schema.pointer_mut("/properties/spec").and_then(Value::as_object_mut) {
            spec.remove("required");
        }
        schema
    });
    &SCHEMA
}

fn of<T: JsonSchema>() -> Value {
    let generator = SchemaSettings::openapi3().into_generator();
    let mut root = Value::from(generator.into_root_schema_for::<T>());
    let definitions = root
        .as_object_mut()
        .and_then(|root| root.remove("components"))
        .and_then(|mut components| components.get_mut("schemas").map(Value::take))
        .unwrap_or_default();
    let mut schema = normalize(root, definitions.as_object().unwrap_or(&Map::new()));
    if let Some(object) = schema.as_object_mut() {
        object.remove("$schema");
    }
    schema
}

/// A status holds what was observed: nothing in it has a default.
fn without_defaults(mut schema: Value) -> Value {
    match &mut schema {
        Value::Object(object) => {
            object.remove("default");
            object.values_mut().for_each(|inner| *inner = without_defaults(inner.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|inner| *inner = without_defaults(inner.take())),
        _ => {}
    }
    schema
}

/// One pass over a generated schema:
/// - references are resolved (a structural schema has none);
/// - `nullable`, also in the form of a second type, goes, because a null would then be stored instead of pruned and defaulted;
/// - quantities get the pattern that k8s-openapi leaves out, and ints-or-strings the `anyOf` that shows them in docs;
/// - lists and maps of core/v1 get their list types and keys;
/// - line breaks inside a description's paragraph go.
fn normalize(schema: Value, definitions: &Map<String, Value>) -> Value {
    let Value::Object(mut object) = schema else {
        return schema;
    };
    if let Some(target) = reference(&mut object) {
        let name = target.rsplit('/').next().unwrap_or_default();
        if name.ends_with("resource.Quantity") {
            return quantity(object.remove("description"));
        }
        let mut resolved = definitions.get(name).and_then(Value::as_object).cloned().unwrap_or_default();
        resolved.extend(object);
        object = resolved;
    }
    for key in ["nullable", "title", "format"] {
        let known = matches!(object.get(key).and_then(Value::as_str), Some("int32" | "int64" | "date-time"));
        if key != "format" || !known {
            object.remove(key);
        }
    }
    if let Some(Value::Array(types)) = object.get("type") {
        let first = types.iter().find(|kind| *kind != "null").cloned().unwrap_or_default();
        object.insert("type".to_owned(), first);
    }
    if let Some(Value::String(text)) = object.get_mut("description") {
        *text = unwrap_lines(text);
    }
    if let Some(default) = object.get_mut("default") {
        prune_nulls(default);
    }
    if object.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
        object.entry("anyOf").or_insert_with(|| json!([{"type": "integer"}, {"type": "string"}]));
        return Value::Object(object);
    }
    for (key, inner) in &mut object {
        match (key.as_str(), inner) {
            ("properties", Value::Object(properties)) => {
                for (name, property) in properties {
                    *property = normalize(property.take(), definitions);
                    core_list_type(name, property);
                }
            }
            ("items" | "additionalProperties", inner) => *inner = normalize(inner.take(), definitions),
            _ => {}
        }
    }
    Value::Object(object)
}

/// The target of `$ref`, also where it is wrapped in a one-item `allOf` or `anyOf` to carry siblings.
fn reference(object: &mut Map<String, Value>) -> Option<String> {
    if let Some(Value::String(target)) = object.remove("$ref") {
        return Some(target);
    }
    for wrapper in ["allOf", "anyOf", "oneOf"] {
        let target = object
            .get(wrapper)
            .and_then(Value::as_array)
            .and_then(|items| items.iter().find_map(|item| item.get("$ref")?.as_str()))
            .map(str::to_owned);
        if target.is_some() {
            object.remove(wrapper);
            return target;
        }
    }
    None
}

fn quantity(description: Option<Value>) -> Value {
    let mut schema = json!({
        "x-kubernetes-int-or-string": true,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": QUANTITY_PATTERN,
    });
    if let (Some(description), Some(object)) = (description, schema.as_object_mut()) {
        object.insert("description".to_owned(), description);
    }
    schema
}

/// List types and keys of core/v1 (`x-kubernetes-list-*` of `k8s.io/api/core/v1/types.go`) for the lists that an App
/// declares or a Pod template holds; k8s-openapi drops them.
const CORE_LIST_KEYS: [(&str, &[&str]); 12] = [
    ("claims", &["name"]),
    ("containers", &["name"]),
    ("initContainers", &["name"]),
    ("ephemeralContainers", &["name"]),
    ("env", &["name"]),
    ("volumes", &["name"]),
    ("volumeMounts", &["mountPath"]),
    ("volumeDevices", &["devicePath"]),
    ("imagePullSecrets", &["name"]),
    ("hostAliases", &["ip"]),
    ("resourceClaims", &["name"]),
    ("topologySpreadConstraints", &["topologyKey", "whenUnsatisfiable"]),
];

fn core_list_type(name: &str, property: &mut Value) {
    // Ports of a container: the second key has a default, and so has the list item's identity.
    if name == "ports" && property.pointer("/items/properties/containerPort").is_some() {
        if let Some(protocol) =
            property.pointer_mut("/items/properties/protocol").and_then(Value::as_object_mut)
        {
            protocol.insert("default".to_owned(), Value::from("TCP"));
        }
        if let Some(ports) = property.as_object_mut() {
            ports.insert("x-kubernetes-list-type".to_owned(), Value::from("map"));
            ports.insert("x-kubernetes-list-map-keys".to_owned(), json!(["containerPort", "protocol"]));
        }
    }
    let Some(object) = property.as_object_mut() else {
        return;
    };
    let is_list = object.get("type").and_then(Value::as_str) == Some("array");
    if is_list && !object.contains_key("x-kubernetes-list-type") {
        match CORE_LIST_KEYS.iter().find(|(list, _)| *list == name) {
            Some((_, keys)) => {
                object.insert("x-kubernetes-list-type".to_owned(), Value::from("map"));
                object.insert("x-kubernetes-list-map-keys".to_owned(), json!(keys));
            }
            None => {
                object.insert("x-kubernetes-list-type".to_owned(), Value::from("atomic"));
            }
        }
    }
    // ConfigMapKeySelector, SecretKeySelector, ObjectFieldSelector, ResourceFieldSelector, FileKeySelector.
    if name.ends_with("KeyRef") || name == "fieldRef" || name == "resourceFieldRef" {
        object.insert("x-kubernetes-map-type".to_owned(), Value::from("atomic"));
    }
}

fn unwrap_lines(text: &str) -> String {
    text.split("\n\n").map(|paragraph| paragraph.replace('\n', " ")).collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every(schema: &Value, visit: &mut impl FnMut(&Map<String, Value>)) {
        match schema {
            Value::Object(object) => {
                visit(object);
                object.values().for_each(|inner| every(inner, visit));
            }
            Value::Array(items) => items.iter().for_each(|inner| every(inner, visit)),
            _ => {}
        }
    }

    #[test]
    fn no_schema_holds_a_reference_a_nullable_or_a_title() {
        for schema in [app(), pod_template()] {
            every(schema, &mut |object| {
                for key in ["$ref", "nullable", "$schema", "allOf", "oneOf"] {
                    assert!(!object.contains_key(key), "{key} in {object:?}");
                }
                assert!(!object.get("type").is_some_and(Value::is_array), "two types in {object:?}");
            });
        }
    }

    #[test]
    fn every_pattern_is_a_regular_expression() {
        for schema in [app(), pod_template()] {
            every(schema, &mut |object| {
                if let Some(Value::String(pattern)) = object.get("pattern") {
                    regex::Regex::new(pattern).unwrap();
                }
            });
        }
    }

    #[test]
    fn no_enum_value_is_a_yaml_1_1_boolean() {
        let booleans = ["on", "off", "yes", "no", "y", "n", "true", "false"];
        let mut seen = 0;
        every(app(), &mut |object| {
            for value in object.get("enum").and_then(Value::as_array).into_iter().flatten() {
                let Some(text) = value.as_str() else { continue };
                seen += 1;
                // A condition's status is a string everywhere in Kubernetes, and is never written by hand.
                let of_conditions = ["True", "False", "Unknown"].contains(&text);
                assert!(of_conditions || !booleans.contains(&text.to_lowercase().as_str()), "{text}");
            }
        });
        assert!(seen > 10);
    }

    #[test]
    fn every_list_has_a_list_type() {
        every(app(), &mut |object| {
            for (name, property) in object.get("properties").and_then(Value::as_object).into_iter().flatten()
            {
                if property.get("type").and_then(Value::as_str) == Some("array") {
                    assert!(property.get("x-kubernetes-list-type").is_some(), "{name}: {property}");
                }
            }
        });
    }

    #[test]
    fn the_status_has_no_defaults() {
        every(&app()["properties"]["status"], &mut |object| {
            assert!(!object.contains_key("default"), "{object:?}");
        });
    }

    #[test]
    fn quantities_have_a_pattern_and_defaults_hold_no_null() {
        let spec = &app()["properties"]["spec"]["properties"];
        assert_eq!(
            spec["resources"]["properties"]["limits"]["additionalProperties"]["pattern"],
            Value::from(QUANTITY_PATTERN)
        );
        assert_eq!(spec["scaling"]["default"]["minReplicas"], 1);
        assert!(spec["scaling"]["default"].get("maxReplicas").is_none());
    }
}
