//! Values on both sides of every bound in the schema of `spec`, made by walking the schema.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use kubesentry_api::schema;
use serde_json::{Map, Value, json};

/// One value tried at one field.
pub(crate) struct Probe {
    /// The field, such as `spec.ports[0].name`.
    pub(crate) path: String,
    /// What is tried there.
    pub(crate) what: String,
    /// A spec with the value at the field and nothing else that isn't needed.
    pub(crate) spec: Value,
    /// Where the fault must be named; `None` where the schema has nothing against the value, though a rule may.
    pub(crate) fault: Option<String>,
}

/// Puts the value of a field into a whole spec.
type Embed<'a> = &'a dyn Fn(Value) -> Value;

/// A pattern with values that it takes and values that it doesn't.
struct Sample {
    pattern: &'static str,
    right: &'static [&'static str],
    wrong: &'static [&'static str],
}

const SAMPLES: [Sample; 3] = [
    Sample {
        pattern: "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        right: &["a", "0", "a-b", "http-2"],
        wrong: &["", "A", "-a", "a-", "a_b", "a.b", "ä", "a b", "a\n", "\na"],
    },
    Sample {
        pattern: "^([0-9]|[1-9][0-9]|100)%$",
        right: &["0%", "9%", "10%", "99%", "100%"],
        wrong: &["", "%", "1", "00%", "01%", "101%", "-1%", "1.5%", " 1%", "1%%", "1 %", "1%\n"],
    },
    Sample {
        pattern: r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
        right: &["0", "0.5", ".5", "1.", "500m", "128Mi", "1e3", "-1", "+1", "1E", "2Ei"],
        wrong: &["", "half", "1 Gi", "1Ki2", "1mi", "1e", "0x1", "1,5", "1g", "1\n"],
    },
];

/// Every probe of the App's `spec`.
pub(crate) fn all() -> Vec<Probe> {
    let mut out = Vec::new();
    let properties = schema::app()["properties"]["spec"]["properties"].as_object().unwrap();
    for (name, property) in properties {
        let embed = |value: Value| {
            let mut spec = json!({"image": "i"});
            spec[name.as_str()] = value;
            spec
        };
        walk(property, &format!("spec.{name}"), &embed, &mut out);
    }
    out
}

fn walk(schema: &Value, path: &str, embed: Embed<'_>, out: &mut Vec<Probe>) {
    let mut add = |what: &str, value: Value, fault: Option<String>| {
        out.push(Probe { path: path.to_owned(), what: what.to_owned(), spec: embed(value), fault });
    };
    let here = Some(path.to_owned());
    add("null", Value::Null, None);
    for (what, value, fits) in typed(schema) {
        add(what, value, if fits { None } else { here.clone() });
    }
    for (what, value, fits) in bounded(schema) {
        add(&what, value, if fits { None } else { here.clone() });
    }
    if let Some(items) = schema.get("items") {
        lists(schema, items, path, &mut add);
        let embed = |value: Value| embed(json!([value]));
        walk(items, &format!("{path}[0]"), &embed, out);
        return;
    }
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        if let Some(values) = schema.get("additionalProperties") {
            let embed = |value: Value| embed(json!({"k": value}));
            walk(values, &format!("{path}.k"), &embed, out);
        }
        return;
    };
    if schema.get("x-kubernetes-preserve-unknown-fields").is_none() {
        let mut object = minimal(schema, 0);
        object["zz"] = json!(1);
        add("an unknown field", object, Some(format!("{path}.zz")));
    }
    for name in required(schema) {
        let mut object = minimal(schema, 0);
        object.as_object_mut().unwrap().remove(name);
        let what = format!("without {name}");
        add(&what, object, Some(format!("{path}.{name}")));
    }
    for (name, property) in properties {
        let embed = |value: Value| {
            let mut object = minimal(schema, 0);
            object[name.as_str()] = value;
            embed(object)
        };
        walk(property, &format!("{path}.{name}"), &embed, out);
    }
}

/// One value of each JSON type, and whether the field takes that type.
fn typed(schema: &Value) -> Vec<(&'static str, Value, bool)> {
    let kind = kind(schema);
    let number = kind == "integer" || kind == "int-or-string";
    let mut out = vec![("a boolean", json!(true), kind == "boolean"), ("a fraction", json!(1.5), false)];
    // With a field in it, the server's decoder would name that field.
    if kind != "object" {
        out.push(("an object", json!({}), false));
    }
    if kind != "array" {
        out.push(("a list", json!([1]), false));
    }
    if !number {
        out.push(("a number", json!(1), false));
    }
    match kind {
        "integer" => out.extend([("a quoted number", json!("1"), false), ("a word", json!("x"), false)]),
        "object" | "array" | "boolean" => out.push(("a word", json!("true"), false)),
        _ => {}
    }
    out
}

/// Values at and beyond each bound, enum and pattern, and whether the field takes them.
fn bounded(schema: &Value) -> Vec<(String, Value, bool)> {
    let mut out = Vec::new();
    let limit = |key: &str| schema.get(key).and_then(Value::as_i64);
    let length = |n: i64| usize::try_from(n).unwrap();
    match kind(schema) {
        "integer" => {
            let (least, most) = match schema["format"].as_str() {
                Some("int64") => (i64::MIN, i64::MAX),
                _ => (i64::from(i32::MIN), i64::from(i32::MAX)),
            };
            let (least, most) = (limit("minimum").unwrap_or(least), limit("maximum").unwrap_or(most));
            out.push((format!("the least, {least}"), json!(least), true));
            out.push((format!("the most, {most}"), json!(most), true));
            for n in [least.checked_sub(1), most.checked_add(1)].into_iter().flatten() {
                out.push((n.to_string(), json!(n), false));
            }
            out.push(("beyond 64 bits".to_owned(), json!(u64::MAX), false));
        }
        "string" | "int-or-string" => {
            for value in schema.get("enum").and_then(Value::as_array).into_iter().flatten() {
                let text = value.as_str().unwrap();
                out.push((text.to_owned(), value.clone(), true));
                out.push((text.to_lowercase(), json!(text.to_lowercase()), false));
                out.push(("a word beside the enum".to_owned(), json!(format!("{text}x")), false));
            }
            if let Some(pattern) = schema.get("pattern").and_then(Value::as_str) {
                let sample = SAMPLES.iter().find(|sample| sample.pattern == pattern);
                let sample = sample.unwrap_or_else(|| panic!("add samples for the pattern {pattern}"));
                out.extend(sample.right.iter().map(|text| (format!("{text:?}"), json!(text), true)));
                out.extend(sample.wrong.iter().map(|text| (format!("{text:?}"), json!(text), false)));
            }
            let filled = schema.get("pattern").is_none() || kind(schema) == "string";
            if let Some(max) = limit("maxLength").filter(|_| filled) {
                out.push((format!("{max} characters"), json!("a".repeat(length(max))), true));
                out.push((format!("{} characters", max + 1), json!("a".repeat(length(max + 1))), false));
                if schema.get("pattern").is_none() {
                    out.push((format!("{max} wide characters"), json!("ä".repeat(length(max))), true));
                }
            }
            if limit("minLength").is_some_and(|min| min > 0) {
                out.push(("an empty text".to_owned(), json!(""), false));
            }
        }
        "object" => {
            if let Some(max) = limit("maxProperties") {
                let object = |n: i64| -> Value {
                    let entries = (0..n).map(|i| (format!("k{i}"), json!("v")));
                    Value::Object(entries.collect::<Map<_, _>>())
                };
                out.push((format!("{max} entries"), object(max), true));
                out.push((format!("{} entries", max + 1), object(max + 1), false));
            }
        }
        _ => {}
    }
    out
}

fn lists(schema: &Value, items: &Value, path: &str, add: &mut impl FnMut(&str, Value, Option<String>)) {
    let list = |n: i64| -> Value { (0..n).map(|index| minimal(items, index)).collect() };
    if let Some(max) = schema.get("maxItems").and_then(Value::as_i64) {
        add(&format!("{max} items"), list(max), None);
        add(&format!("{} items", max + 1), list(max + 1), Some(path.to_owned()));
    }
    add("no item", json!([]), None);
    let twice = json!([minimal(items, 0), minimal(items, 0)]);
    if schema["x-kubernetes-list-type"] == "atomic" {
        add("an item twice", twice, None);
    } else {
        add("an item twice", twice, Some(format!("{path}[1]")));
    }
}

/// A smallest value of a schema; those of different indexes differ, as far as the schema allows.
fn minimal(schema: &Value, index: i64) -> Value {
    match kind(schema) {
        "object" => required(schema)
            .map(|name| (name.to_owned(), minimal(&schema["properties"][name], index)))
            .collect::<Map<_, _>>()
            .into(),
        "array" => json!([]),
        "boolean" => json!(true),
        "string" => match schema.get("enum").and_then(Value::as_array) {
            Some(values) => values[usize::try_from(index).unwrap() % values.len()].clone(),
            None => json!((index + 1).to_string()),
        },
        _ => json!(schema.get("minimum").and_then(Value::as_i64).unwrap_or(1) + index),
    }
}

fn required(schema: &Value) -> impl Iterator<Item = &str> {
    let names = schema.get("required").and_then(Value::as_array);
    names.into_iter().flatten().filter_map(Value::as_str)
}

fn kind(schema: &Value) -> &str {
    if schema["x-kubernetes-int-or-string"] == true {
        "int-or-string"
    } else {
        schema["type"].as_str().unwrap()
    }
}
