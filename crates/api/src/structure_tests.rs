use serde_json::json;

use super::*;

fn faults(schema: &Value, value: &Value) -> Vec<String> {
    let mut out = Vec::new();
    check(schema, value, "at", &mut out);
    out.iter().map(ToString::to_string).collect()
}

#[test]
fn nulls_are_pruned_or_defaulted_but_stay_in_lists() {
    let schema = json!({"properties": {
        "a": {"type": "integer", "default": 3},
        "b": {"type": "integer"},
        "m": {"type": "object", "additionalProperties": {"type": "string"}},
        "l": {"type": "array", "items": {"type": "object", "properties": {"p": {"default": "TCP"}}}},
    }});
    let mut value = json!({"a": null, "b": null, "m": {"x": null, "y": "1"}, "l": [{}, null]});
    fill_defaults(&schema, &mut value);
    assert_eq!(value, json!({"a": 3, "m": {"y": "1"}, "l": [{"p": "TCP"}, null]}));
}

#[test]
fn a_default_is_filled_in_below_a_default() {
    let schema = json!({"properties": {"s": {"default": {}, "properties": {"n": {"default": 1}}}}});
    let mut value = json!({});
    fill_defaults(&schema, &mut value);
    assert_eq!(value, json!({"s": {"n": 1}}));
}

#[test]
fn each_kind_of_fault_has_its_sentence() {
    let table = [
        (json!({"type": "string"}), json!(100), "at: must be of type string, not integer; quote it: \"100\""),
        (
            json!({"type": "string", "enum": ["Auto", "Disabled"]}),
            json!(false),
            "at: must be of type string, not boolean; a bare on, off, yes, no, y, n, true or false is a boolean in YAML: use one of: Auto, Disabled",
        ),
        (
            json!({"type": "integer"}),
            json!("2"),
            "at: must be of type integer, not string; write it without quotes: 2",
        ),
        (json!({"type": "integer"}), json!(1.5), "at: must be of type integer, not number"),
        (json!({"type": "integer", "minimum": 1}), json!(0), "at: 0 is too small: the least is 1"),
        (
            json!({"type": "integer", "format": "int32"}),
            json!(3_000_000_000_i64),
            "at: 3000000000 is too large: the most is 2147483647",
        ),
        (json!({"type": "integer"}), json!(u64::MAX), "at: 18446744073709551615 is out of range"),
        (json!({"type": "string", "minLength": 1}), json!(""), "at: must not be empty"),
        (
            json!({"x-kubernetes-int-or-string": true}),
            json!(0.5),
            "at: must be a whole number or a string; quote it: \"0.5\"",
        ),
        (
            json!({"type": "object", "properties": {"replicas": {}}}),
            json!({"repicas": 1}),
            "at.repicas: unknown field; did you mean \"replicas\"?",
        ),
        (
            json!({"type": "object", "properties": {"replicas": {}}}),
            json!({"zz": 1}),
            "at.zz: unknown field; remove it",
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "set"}),
            json!(["a", "a"]),
            "at[1]: duplicate of an earlier item: \"a\"",
        ),
    ];
    for (schema, value, wanted) in table {
        assert_eq!(faults(&schema, &value), [wanted], "{schema} {value}");
    }
}

#[test]
fn lengths_count_characters_not_bytes() {
    let schema = json!({"type": "string", "maxLength": 2});
    assert!(faults(&schema, &json!("äö")).is_empty());
    assert_eq!(faults(&schema, &json!("äöü")).len(), 1);
}
