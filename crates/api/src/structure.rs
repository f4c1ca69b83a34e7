//! A structural OpenAPI schema, applied to JSON as the API server applies it: nulls pruned, defaults filled in, then
//! types, bounds, patterns, list keys and unknown fields checked.
//!
//! It stands in for the server where no server is asked (the operator's parser, `lint`), and knows just the part of the
//! language that structural schemas use. It knows nothing of Apps: the schema is an argument. CEL rules are not its
//! business either; see [`crate::rules`].

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use regex::Regex;
use serde_json::{Map, Value};

use crate::violation::{FaultKind, Violation};

/// Prunes nulls and fills defaults in, as the API server does before it validates and stores an object.
///
/// A null where the field isn't nullable counts as absent: a default takes its place, without one it goes. Nulls in
/// lists stay, and are refused by [`check`].
pub(crate) fn fill_defaults(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(object) => {
            if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
                for (name, property) in properties {
                    let absent = object.get(name).is_none_or(Value::is_null);
                    match property.get("default") {
                        Some(default) if absent => {
                            object.insert(name.clone(), default.clone());
                        }
                        None if absent => {
                            object.remove(name);
                        }
                        _ => {}
                    }
                    if let Some(inner) = object.get_mut(name) {
                        fill_defaults(property, inner);
                    }
                }
            }
            if let Some(inner_schema) = schema.get("additionalProperties").filter(|s| s.is_object()) {
                let declared = schema.get("properties").and_then(Value::as_object);
                object
                    .retain(|name, inner| !inner.is_null() || declared.is_some_and(|d| d.contains_key(name)));
                for (_, inner) in
                    object.iter_mut().filter(|(name, _)| !declared.is_some_and(|d| d.contains_key(*name)))
                {
                    fill_defaults(inner_schema, inner);
                }
            }
        }
        Value::Array(items) => {
            if let Some(item_schema) = schema.get("items") {
                for item in items {
                    fill_defaults(item_schema, item);
                }
            }
        }
        _ => {}
    }
}

/// Removes the fields that are null, at any depth. Nulls that are items of a list stay.
pub(crate) fn prune_nulls(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|_, inner| !inner.is_null());
            object.values_mut().for_each(prune_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(prune_nulls),
        _ => {}
    }
}

/// Checks `value` against `schema` and adds every fault to `out`. `path` is the value's own path.
pub(crate) fn check(schema: &Value, value: &Value, path: &str, out: &mut Vec<Violation>) {
    if schema.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
        return check_int_or_string(schema, value, path, out);
    }
    if let Some(wanted) = schema.get("type").and_then(Value::as_str)
        && !has_type(value, wanted)
    {
        return out.push(wrong_type(schema, value, wanted, path));
    }
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
        && !allowed.contains(value)
    {
        let names = allowed.iter().map(plain).collect::<Vec<_>>().join(", ");
        out.push(Violation::new(
            path,
            FaultKind::NotSupported,
            format!("unsupported value {value}; use one of: {names}"),
        ));
    }
    match value {
        Value::Object(object) => check_object(schema, object, path, out),
        Value::Array(items) => check_list(schema, items, path, out),
        Value::String(text) => check_string(schema, text, path, out),
        Value::Number(_) => check_number(schema, value, path, out),
        Value::Null | Value::Bool(_) => {}
    }
}

fn check_object(schema: &Value, object: &Map<String, Value>, path: &str, out: &mut Vec<Violation>) {
    let properties = schema.get("properties").and_then(Value::as_object);
    let additional = schema.get("additionalProperties").filter(|s| s.is_object());
    let open = schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
    for name in
        schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
    {
        if !object.contains_key(name) {
            out.push(Violation::new(join(path, name), FaultKind::Required, "a value is required"));
        }
    }
    for (name, inner) in object {
        let inner_path = join(path, name);
        match (properties.and_then(|p| p.get(name)), additional) {
            (Some(inner_schema), _) | (None, Some(inner_schema)) => {
                check(inner_schema, inner, &inner_path, out);
            }
            (None, None) if open || properties.is_none() => {}
            (None, None) => out.push(unknown_field(name, properties, inner_path)),
        }
    }
    if let Some(max) = schema.get("maxProperties").and_then(Value::as_u64)
        && object.len() as u64 > max
    {
        out.push(Violation::new(path, FaultKind::Invalid, format!("must have at most {max} entries")));
    }
}

/// A field that the schema doesn't have, with the nearest name that it has.
pub(crate) fn unknown_field(name: &str, known: Option<&Map<String, Value>>, path: String) -> Violation {
    let nearest = known
        .into_iter()
        .flat_map(Map::keys)
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 4)
        .min();
    let message = match nearest {
        Some((_, candidate)) => format!("unknown field; did you mean {candidate:?}?"),
        None => "unknown field; remove it".to_owned(),
    };
    Violation::new(path, FaultKind::Unknown, message)
}

fn check_list(schema: &Value, items: &[Value], path: &str, out: &mut Vec<Violation>) {
    if let Some(max) = schema.get("maxItems").and_then(Value::as_u64)
        && items.len() as u64 > max
    {
        out.push(Violation::new(path, FaultKind::Invalid, format!("must have at most {max} items")));
    }
    if let Some(item_schema) = schema.get("items") {
        for (index, item) in items.iter().enumerate() {
            check(item_schema, item, &format!("{path}[{index}]"), out);
        }
    }
    let keys = schema
        .get("x-kubernetes-list-map-keys")
        .and_then(Value::as_array)
        .map(|keys| keys.iter().filter_map(Value::as_str).collect::<Vec<_>>());
    let identity = |item: &Value| -> Option<Value> {
        match &keys {
            Some(keys) => item.as_object().map(|object| {
                let default = |key: &str| schema.get("items")?.get("properties")?.get(key)?.get("default");
                keys.iter()
                    .filter_map(|key| {
                        Some(((*key).to_owned(), object.get(*key).or_else(|| default(key))?.clone()))
                    })
                    .collect()
            }),
            None if schema.get("x-kubernetes-list-type") == Some(&Value::from("set")) => Some(item.clone()),
            None => None,
        }
    };
    let mut seen: Vec<Value> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let Some(identity) = identity(item) else { continue };
        if seen.contains(&identity) {
            out.push(Violation::new(
                format!("{path}[{index}]"),
                FaultKind::Duplicate,
                format!("duplicate of an earlier item: {identity}"),
            ));
        } else {
            seen.push(identity);
        }
    }
}

fn check_string(schema: &Value, text: &str, path: &str, out: &mut Vec<Violation>) {
    let length = text.chars().count() as u64;
    if let Some(min) = schema.get("minLength").and_then(Value::as_u64)
        && length < min
    {
        let message = if min == 1 {
            "must not be empty".to_owned()
        } else {
            format!("needs at least {min} characters")
        };
        out.push(Violation::new(path, FaultKind::Invalid, message));
    }
    if let Some(max) = schema.get("maxLength").and_then(Value::as_u64)
        && length > max
    {
        out.push(Violation::new(
            path,
            FaultKind::Invalid,
            format!("may have at most {max} characters, has {length}"),
        ));
    }
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
        && !matches(pattern, text)
    {
        let message = match pattern {
            QUANTITY_PATTERN => format!("{text:?} is not a quantity such as \"500m\", \"0.5\" or \"128Mi\""),
            _ => format!("{text:?} does not match the pattern {pattern}"),
        };
        out.push(Violation::new(path, FaultKind::Invalid, message));
    }
}

fn check_number(schema: &Value, value: &Value, path: &str, out: &mut Vec<Violation>) {
    let Some(number) = value.as_i64() else {
        if schema.get("type").and_then(Value::as_str) == Some("integer") {
            out.push(Violation::new(path, FaultKind::Invalid, format!("{value} is out of range")));
        }
        return;
    };
    let bounds = match schema.get("format").and_then(Value::as_str) {
        Some("int32") => (i64::from(i32::MIN), i64::from(i32::MAX)),
        _ => (i64::MIN, i64::MAX),
    };
    let min = schema.get("minimum").and_then(Value::as_i64).unwrap_or(bounds.0);
    let max = schema.get("maximum").and_then(Value::as_i64).unwrap_or(bounds.1);
    if number < min {
        out.push(Violation::new(
            path,
            FaultKind::Invalid,
            format!("{number} is too small: the least is {min}"),
        ));
    } else if number > max {
        out.push(Violation::new(
            path,
            FaultKind::Invalid,
            format!("{number} is too large: the most is {max}"),
        ));
    }
}

fn check_int_or_string(schema: &Value, value: &Value, path: &str, out: &mut Vec<Violation>) {
    match value {
        Value::String(text) => check_string(schema, text, path, out),
        _ if has_type(value, "integer") => check_number(schema, value, path, out),
        Value::Number(_) => {
            let message = format!("must be a whole number or a string; quote it: \"{value}\"");
            out.push(Violation::new(path, FaultKind::TypeInvalid, message));
        }
        _ => {
            let message = format!("must be a whole number or a string, not {}", type_name(value));
            out.push(Violation::new(path, FaultKind::TypeInvalid, message));
        }
    }
}

fn wrong_type(schema: &Value, value: &Value, wanted: &str, path: &str) -> Violation {
    let mut message = format!("must be of type {wanted}, not {}", type_name(value));
    match (wanted, value) {
        ("string", Value::Number(_)) => message.push_str(&format!("; quote it: \"{value}\"")),
        ("string", Value::Bool(_)) => {
            message.push_str("; a bare on, off, yes, no, y, n, true or false is a boolean in YAML");
            match schema.get("enum").and_then(Value::as_array) {
                Some(allowed) => {
                    let names = allowed.iter().map(plain).collect::<Vec<_>>().join(", ");
                    message.push_str(&format!(": use one of: {names}"));
                }
                None => message.push_str(": quote it"),
            }
        }
        ("integer", Value::String(text)) if text.parse::<i64>().is_ok() => {
            message.push_str(&format!("; write it without quotes: {text}"));
        }
        _ => {}
    }
    Violation::new(path, FaultKind::TypeInvalid, message)
}

fn has_type(value: &Value, wanted: &str) -> bool {
    match wanted {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        _ => true,
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// `parent.name`, or `name` at the root.
pub(crate) fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") }
}

/// The pattern of `resource.Quantity` in the API server's own CRD generator (controller-tools, `markers`).
pub(crate) const QUANTITY_PATTERN: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// Whether `text` matches `pattern`. A pattern that is no regular expression matches everything: the schemas are our
/// own, and a test compiles every pattern in them.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    static COMPILED: LazyLock<Mutex<HashMap<String, Option<Regex>>>> = LazyLock::new(Mutex::default);
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if !compiled.contains_key(pattern) {
        compiled.insert(pattern.to_owned(), Regex::new(pattern).ok());
    }
    compiled.get(pattern).and_then(Option::as_ref).is_none_or(|regex| regex.is_match(text))
}

#[cfg(test)]
#[path = "structure_tests.rs"]
mod tests;
