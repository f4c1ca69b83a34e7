//! The CustomResourceDefinition, generated from the types, the rules and the columns of this crate.
//!
//! `kubesentry manifests crd` prints it. It is plain JSON: no type of the apiextensions API is needed to build it.

use serde_json::{Map, Value, json};

use crate::names::{CRD_NAME, GROUP, KIND, PLURAL, VERSION};
use crate::rules::{RULES, Rule};
use crate::schema;

/// The CustomResourceDefinition of the App.
pub fn definition() -> Value {
    let mut root = schema::app().clone();
    for rule in RULES {
        attach(&mut root, rule);
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": CRD_NAME},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": "AppList",
                "plural": PLURAL,
                "singular": "app",
                "shortNames": ["sapp"],
                "categories": ["all", "sentry"],
            },
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": root},
                "subresources": {
                    "status": {},
                    "scale": {
                        "specReplicasPath": ".spec.replicas",
                        "statusReplicasPath": ".status.replicas",
                        "labelSelectorPath": ".status.selector",
                    },
                },
                "selectableFields": [{"jsonPath": ".status.phase"}, {"jsonPath": ".spec.suspend"}],
                "additionalPrinterColumns": columns(),
            }],
        },
    })
}

/// Columns of `kubectl get apps`; those of priority 1 show with `-o wide`.
fn columns() -> Value {
    let column = |name: &str, kind: &str, path: &str, description: &str, wide: bool| {
        let mut column = json!({"name": name, "type": kind, "jsonPath": path, "description": description});
        if wide {
            column["priority"] = json!(1);
        }
        column
    };
    json!([
        column("Phase", "string", ".status.phase", "One word for the whole.", false),
        column(
            "Ready",
            "string",
            r#".status.conditions[?(@.type=="Ready")].status"#,
            "Status of the condition Ready.",
            false
        ),
        column("Replicas", "string", ".status.ready", "Ready Pods of those that should exist.", false),
        column("Age", "date", ".metadata.creationTimestamp", "Time since the App was created.", false),
        column("Min", "integer", ".status.effective.minReplicas", "Lower bound in force.", true),
        column("Max", "integer", ".status.effective.maxReplicas", "Upper bound in force.", true),
        column("Image", "string", ".status.effective.image", "Image of the main container.", true),
        column(
            "Limited-By",
            "string",
            ".status.lastDecision.limitedBy",
            "The bound that shaped the size.",
            true
        ),
        column(
            "Message",
            "string",
            r#".status.conditions[?(@.type=="Ready")].message"#,
            "Why Ready is what it is.",
            true
        ),
    ])
}

fn attach(root: &mut Value, rule: &Rule) {
    let mut at = root;
    for step in rule.at {
        at = if *step == "[]" { &mut at["items"] } else { &mut at["properties"][*step] };
    }
    let Some(object) = at.as_object_mut() else { return };
    let rules = object.entry("x-kubernetes-validations").or_insert_with(|| json!([]));
    if let Some(rules) = rules.as_array_mut() {
        rules.push(rendered(rule));
    }
}

fn rendered(rule: &Rule) -> Value {
    let mut out = Map::new();
    out.insert("rule".to_owned(), Value::from(rule.cel));
    out.insert("message".to_owned(), Value::from(rule.message));
    out.insert("reason".to_owned(), serde_json::to_value(rule.kind).unwrap_or_default());
    for (key, value) in [("messageExpression", rule.message_expression), ("fieldPath", rule.field_path)] {
        if let Some(text) = value {
            out.insert(key.to_owned(), Value::from(text));
        }
    }
    Value::Object(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_stands_in_the_definition() {
        fn count(value: &Value) -> usize {
            match value {
                Value::Object(object) => {
                    let own =
                        object.get("x-kubernetes-validations").and_then(Value::as_array).map_or(0, Vec::len);
                    own + object.values().map(count).sum::<usize>()
                }
                Value::Array(items) => items.iter().map(count).sum(),
                _ => 0,
            }
        }
        assert_eq!(count(&definition()), RULES.len());
    }

    #[test]
    fn the_definition_fits_a_client_side_apply() {
        // kubectl keeps the last applied object in an annotation of at most 262,144 bytes.
        let bytes = definition().to_string().len();
        assert!(bytes < 100_000, "{bytes} bytes");
    }
}
