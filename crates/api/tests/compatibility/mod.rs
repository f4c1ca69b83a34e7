//! May one CRD follow another? Says what a newer one takes from those who use the older one.
//!
//! What is compared: everything that a stored object, a manifest under version control or another manager's entry in
//! managedFields relies on. Columns, descriptions and rules below `spec` are free: a rule that sits at the deepest object
//! is skipped for an object that doesn't change.

use std::collections::BTreeSet;

use serde_json::Value;

pub(crate) mod changes;
pub(crate) mod edit;

/// A path and what is wrong there, one line for each thing that the older CRD's users would miss.
pub(crate) fn losses(old: &Value, new: &Value) -> Vec<String> {
    let mut out = Vec::new();
    let (old, new) = (&old["spec"], &new["spec"]);
    for field in ["group", "scope"] {
        same(&old[field], &new[field], &format!("(CRD) {field}"), &mut out);
    }
    for field in ["kind", "listKind", "plural", "singular"] {
        let path = format!("(CRD) names.{field}");
        same(&old["names"][field], &new["names"][field], &path, &mut out);
    }
    for field in ["shortNames", "categories"] {
        let path = format!("(CRD) names.{field}");
        kept(&old["names"][field], &new["names"][field], &path, &mut out);
    }
    for version in list(&old["versions"]).filter(|version| version["served"] == true) {
        let name = version["name"].as_str().unwrap_or_default();
        let follower = list(&new["versions"]).find(|other| other["name"] == name && other["served"] == true);
        match follower {
            Some(follower) => compare_versions(name, version, follower, &mut out),
            None => out.push(format!("(CRD) version {name}: no longer served")),
        }
    }
    out
}

fn compare_versions(name: &str, old: &Value, new: &Value, out: &mut Vec<String>) {
    let (before, after) = (&old["subresources"], &new["subresources"]);
    if before.get("status").is_some() && after.get("status").is_none() {
        out.push(format!("(CRD) version {name}: subresource status removed"));
    }
    let scale = format!("(CRD) version {name}: subresource scale");
    for path in ["specReplicasPath", "statusReplicasPath", "labelSelectorPath"] {
        same(&before["scale"][path], &after["scale"][path], &format!("{scale}.{path}"), out);
    }
    let fields = format!("(CRD) version {name}: selectableFields");
    kept(&old["selectableFields"], &new["selectableFields"], &fields, out);
    let schema = |version: &Value| version["schema"]["openAPIV3Schema"].clone();
    compare(&schema(old), &schema(new), "", out);
}

/// Keywords whose value may not change at all, with the value that stands for none.
const FIXED: [(&str, &str); 6] = [
    ("type", ""),
    ("format", ""),
    ("x-kubernetes-list-type", "atomic"),
    ("x-kubernetes-map-type", "granular"),
    ("x-kubernetes-int-or-string", "false"),
    ("x-kubernetes-embedded-resource", "false"),
];

/// Bounds, and whether a greater number is narrower.
const BOUNDS: [(&str, bool); 8] = [
    ("minimum", true),
    ("minLength", true),
    ("minItems", true),
    ("minProperties", true),
    ("maximum", false),
    ("maxLength", false),
    ("maxItems", false),
    ("maxProperties", false),
];

/// Keywords that can't be compared: adding or changing one may refuse what was allowed.
const OPAQUE: [&str; 9] = [
    "pattern",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "uniqueItems",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
];

fn compare(old: &Value, new: &Value, path: &str, out: &mut Vec<String>) {
    let at = if path.is_empty() { "(root)" } else { path };
    let mut say = |what: String| out.push(format!("{at}: {what}"));
    for (key, none) in FIXED {
        let read = |schema: &Value| schema.get(key).map_or_else(|| none.to_owned(), plain);
        let (before, after) = (read(old), read(new));
        if before != after {
            say(format!("{key} was {before:?}, is {after:?}"));
        }
    }
    // The order of the keys has no meaning.
    let keys = |schema: &Value| -> BTreeSet<String> {
        list(&schema["x-kubernetes-list-map-keys"]).map(plain).collect()
    };
    if keys(old) != keys(new) {
        say(format!("x-kubernetes-list-map-keys were {:?}, are {:?}", keys(old), keys(new)));
    }
    for key in ["x-kubernetes-preserve-unknown-fields", "nullable"] {
        if old[key] == true && new[key] != true {
            say(format!("{key} was taken away"));
        }
    }
    for (key, greater_is_narrower) in BOUNDS {
        let Some(after) = new[key].as_f64() else { continue };
        let is_narrower = old[key]
            .as_f64()
            .is_none_or(|before| if greater_is_narrower { after > before } else { after < before });
        if is_narrower {
            say(format!("{key} was {}, is {}: narrower", old[key], new[key]));
        }
    }
    for key in OPAQUE {
        if new.get(key).is_some() && new.get(key) != old.get(key) {
            say(format!("{key} was {}, is {}", old[key], new[key]));
        }
    }
    if new.get("enum").is_some() {
        if old.get("enum").is_none() {
            say("an enum where every value was allowed".to_owned());
        }
        for value in list(&old["enum"]).filter(|value| !list(&new["enum"]).any(|v| v == *value)) {
            say(format!("enum value {value} removed"));
        }
    }
    for name in list(&new["required"]).filter(|name| !list(&old["required"]).any(|n| n == *name)) {
        say(format!("{} became required", plain(name)));
    }
    defaults(old, new, at, out);
    rules(old, new, path, at, out);
    descend(old, new, path, out);
}

/// A default may only grow by fields that are new themselves: `default` of an object repeats those of its fields.
fn defaults(old: &Value, new: &Value, at: &str, out: &mut Vec<String>) {
    fn grown(before: &Value, after: &Value, old: &Value) -> bool {
        match (before.as_object(), after.as_object()) {
            (Some(before), Some(after)) => {
                let known = &old["properties"];
                before
                    .iter()
                    .all(|(name, value)| after.get(name).is_some_and(|a| grown(value, a, &known[name])))
                    && after.keys().all(|name| before.contains_key(name) || known.get(name).is_none())
            }
            _ => before == after,
        }
    }
    match (old.get("default"), new.get("default")) {
        (None, Some(after)) => out.push(format!("{at}: default {after} where there was none")),
        (Some(before), None) => out.push(format!("{at}: default {before} removed")),
        (Some(before), Some(after)) if !grown(before, after, old) => {
            out.push(format!("{at}: default was {before}, is {after}"));
        }
        _ => {}
    }
}

/// Every update changes `spec` or the root, so that a rule there is never skipped: an App that breaks it could be
/// neither suspended nor scaled.
fn rules(old: &Value, new: &Value, path: &str, at: &str, out: &mut Vec<String>) {
    if !["", "spec"].contains(&path) {
        return;
    }
    let key = "x-kubernetes-validations";
    for rule in list(&new[key]).map(|rule| &rule["rule"]) {
        if !list(&old[key]).any(|known| &known["rule"] == rule) {
            out.push(format!("{at}: a new rule sits here, not at the deepest object: {rule}"));
        }
    }
}

fn descend(old: &Value, new: &Value, path: &str, out: &mut Vec<String>) {
    let properties = |schema: &'_ Value| schema["properties"].as_object().cloned().unwrap_or_default();
    let (before, after) = (properties(old), properties(new));
    let join = |name: &str| [path, name].join(if path.is_empty() { "" } else { "." });
    for (name, property) in &before {
        match after.get(name) {
            Some(follower) => compare(property, follower, &join(name), out),
            None => out.push(format!("{}: removed", join(name))),
        }
    }
    // In an open object every field existed already, in any shape.
    let was_open =
        old["x-kubernetes-preserve-unknown-fields"] == true || old["additionalProperties"].is_object();
    for name in after.keys().filter(|name| was_open && !before.contains_key(*name)) {
        out.push(format!("{}: declared in an object that was open", join(name)));
    }
    for (key, below) in [("items", format!("{path}[]")), ("additionalProperties", format!("{path}.*"))] {
        match (old.get(key), new.get(key)) {
            (Some(before), Some(after)) => compare(before, after, &below, out),
            (Some(_), None) => out.push(format!("{below}: removed")),
            _ => {}
        }
    }
}

fn same(old: &Value, new: &Value, path: &str, out: &mut Vec<String>) {
    if old != new {
        out.push(format!("{path}: was {old}, is {new}"));
    }
}

/// Every item of a list is still in it.
fn kept(old: &Value, new: &Value, path: &str, out: &mut Vec<String>) {
    for item in list(old).filter(|item| !list(new).any(|other| other == *item)) {
        out.push(format!("{path}: {item} removed"));
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
