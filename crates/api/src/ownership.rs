//! Does a live object still hold what was applied? Answered by managedFields, free of any schema.
//!
//! [`lost`] lists the parts of an intent that are missing in our own entry of `metadata.managedFields`. Values are never
//! compared: a foreign write that changes or removes a field of ours takes it out of our entry, while a default filled
//! in, `0.5` stored as `500m` or an image rewritten by an admission policy stays in it. fieldsV1 itself says where a
//! list is a map (`k:`), a set (`v:`) or atomic (`{}`).
//!
//! It does not know the hash of an intent or when to write; `operator`'s plan step asks it before each apply, and its
//! report step asks [`holders`] who took a field.

use std::fmt;

use kubesentry_engine::canonical;
use serde_json::{Map, Value};

pub use crate::names::FIELD_MANAGER;

/// Metadata that managedFields never tracks (`stripMeta` in k8s.io/apimachinery/pkg/util/managedfields/internal).
const UNTRACKED_METADATA: [&str; 8] = [
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "generation",
    "managedFields",
    "resourceVersion",
];

/// Keys of list items that the server fills in before it tracks them (`protocol` of ports, core/v1).
const DEFAULTED_KEYS: [(&str, &str); 1] = [("protocol", "TCP")];

/// One step of a path into an object, as fieldsV1 has them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Segment {
    /// A field of an object, or a key of a map: `f:<name>`. One segment however many dots it has.
    Field(String),
    /// An item of a list with keys, by the values of its keys: `k:{"name":"app"}`.
    Key(Value),
    /// An item of a set: `v:"apps.sentry.io/audit-export"`.
    Value(Value),
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(value) | Self::Value(value) => write!(f, "[{value}]"),
        }
    }
}

/// A part of an intent that our entry doesn't hold: a leaf, or the topmost missing field with all below it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LostField {
    /// For people and as a key: `.spec.template.spec.containers[{"name":"app"}].image`; a fixed sentence where the whole
    /// entry is missing.
    pub path: String,
    /// The same without ambiguity; empty where the whole entry is missing.
    pub segments: Vec<Segment>,
}

impl LostField {
    fn at(segments: &[Segment]) -> Self {
        Self { path: path_text(segments), segments: segments.to_vec() }
    }
}

impl fmt::Display for LostField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

fn path_text(segments: &[Segment]) -> String {
    if segments.is_empty() {
        return format!("(no entry of {FIELD_MANAGER})");
    }
    segments.iter().map(Segment::to_string).collect()
}

/// Somebody who holds a field, by his entry in managedFields.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Writer {
    /// `manager`: the name the client gave itself.
    pub manager: String,
    /// `operation`: `Apply` or `Update`.
    pub operation: String,
    /// `subresource`, such as `scale`.
    pub subresource: Option<String>,
    /// `time` of the entry's last change, RFC 3339 in UTC.
    pub time: Option<String>,
}

/// Our entry of managedFields: its fieldsV1.
///
/// The server keeps one entry per manager for applies to the object itself, whatever the apiVersion.
pub fn our_entry(live: &Value) -> Option<&Value> {
    entries(live).iter().find(|entry| is_ours(entry)).and_then(|entry| entry.get("fieldsV1"))
}

/// Whether we ever applied this object and nobody wiped the trace.
pub fn has_entry(live: &Value) -> bool {
    our_entry(live).is_some()
}

/// SHA-256 over our entry. The server writes the same entry for the same holdings, so an unchanged hash means that
/// nothing was lost since.
pub fn entry_hash(live: &Value) -> Option<String> {
    // Field sets hold no numbers; an entry that does is as good as none.
    our_entry(live).and_then(|fields| canonical::hash(fields).ok())
}

/// The parts of `intent` that our entry doesn't hold; none: no write is needed for them.
///
/// `intent` is the whole body of an apply. `live` is the object, or a projection that has only
/// `metadata.managedFields`.
pub fn lost(intent: &Value, live: &Value) -> Vec<LostField> {
    lost_except(intent, live, &[])
}

/// [`lost`], without looking at these paths (as [`LostField::path`] writes them) and what is below them.
pub fn lost_except(intent: &Value, live: &Value, except: &[&str]) -> Vec<LostField> {
    let Some(fields) = our_entry(live) else {
        return vec![LostField::at(&[])];
    };
    let mut walk = Walk { except, path: Vec::new(), lost: Vec::new() };
    walk.value(intent, fields);
    walk.lost
}

/// Who else holds a lost field now, newest first. Nobody does when it was removed, or when our whole entry is missing.
pub fn holders(live: &Value, field: &LostField) -> Vec<Writer> {
    if field.segments.is_empty() {
        return Vec::new();
    }
    let mut writers: Vec<Writer> = entries(live)
        .iter()
        .filter(|entry| !is_ours(entry))
        .filter(|entry| entry.get("fieldsV1").is_some_and(|fields| holds(fields, &field.segments)))
        .map(|entry| Writer {
            manager: text(entry, "manager").unwrap_or_default(),
            operation: text(entry, "operation").unwrap_or_default(),
            subresource: text(entry, "subresource"),
            time: text(entry, "time"),
        })
        .collect();
    // All times are UTC with whole seconds: their order is that of their text.
    writers.sort_by(|a, b| b.time.cmp(&a.time));
    writers
}

fn entries(live: &Value) -> &[Value] {
    live.pointer("/metadata/managedFields").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn is_ours(entry: &Value) -> bool {
    entry.get("manager").is_some_and(|manager| manager == FIELD_MANAGER)
        && entry.get("operation").is_some_and(|operation| operation == "Apply")
        && entry.get("subresource").is_none_or(|subresource| subresource == "")
}

fn text(entry: &Value, name: &str) -> Option<String> {
    entry.get(name).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
}

fn holds(fields: &Value, path: &[Segment]) -> bool {
    let Some((first, rest)) = path.split_first() else {
        return true;
    };
    let below = match first {
        Segment::Field(name) => fields.get(format!("f:{name}")),
        Segment::Key(key) => item(fields, "k:", |listed| listed == key).map(|(_, owned)| owned),
        Segment::Value(value) => item(fields, "v:", |listed| listed == value).map(|(_, owned)| owned),
    };
    below.is_some_and(|below| holds(below, rest))
}

/// The first item of a list in a field set that passes, with its JSON after the prefix `k:` or `v:`.
fn item<'a>(fields: &'a Value, prefix: &str, pass: impl Fn(&Value) -> bool) -> Option<(Value, &'a Value)> {
    fields.as_object()?.iter().find_map(|(name, owned)| {
        let listed: Value = serde_json::from_str(name.strip_prefix(prefix)?).ok()?;
        pass(&listed).then_some((listed, owned))
    })
}

struct Walk<'a> {
    except: &'a [&'a str],
    path: Vec<Segment>,
    lost: Vec<LostField>,
}

impl Walk<'_> {
    fn value(&mut self, intent: &Value, owned: &Value) {
        // A leaf, or an atomic list or map: held as a whole.
        let Some(fields) = owned.as_object().filter(|fields| !fields.is_empty()) else {
            return;
        };
        match intent {
            Value::Object(intent) => self.object(intent, fields),
            Value::Array(items) => self.list(items, owned),
            _ => {}
        }
    }

    fn object(&mut self, intent: &Map<String, Value>, fields: &Map<String, Value>) {
        for (name, value) in intent {
            if self.is_identity(name) {
                continue;
            }
            self.step(Segment::Field(name.clone()), value, fields.get(&format!("f:{name}")));
        }
    }

    fn list(&mut self, items: &[Value], fields: &Value) {
        for intent in items {
            let found = item(fields, "k:", |keys| key_of(intent, keys).as_ref() == Some(keys))
                .map(|(keys, owned)| (Segment::Key(keys), owned))
                .or_else(|| {
                    item(fields, "v:", |listed| listed == intent)
                        .map(|(listed, owned)| (Segment::Value(listed), owned))
                });
            match found {
                Some((segment, owned)) => self.step(segment, intent, Some(owned)),
                None => self.step(missing_item(intent, fields), intent, None),
            }
        }
    }

    fn step(&mut self, segment: Segment, intent: &Value, owned: Option<&Value>) {
        self.path.push(segment);
        if !self.is_excepted() {
            match owned {
                Some(owned) => self.value(intent, owned),
                None if self.claims(intent) => self.lost.push(LostField::at(&self.path)),
                None => {}
            }
        }
        self.path.pop();
    }

    /// Whether there is anything below the current path that an entry should hold.
    fn claims(&mut self, intent: &Value) -> bool {
        match intent {
            Value::Object(fields) if !fields.is_empty() => fields.iter().any(|(name, value)| {
                if self.is_identity(name) {
                    return false;
                }
                self.path.push(Segment::Field(name.clone()));
                let claims = !self.is_excepted() && self.claims(value);
                self.path.pop();
                claims
            }),
            // An empty list with keys is in no entry (seen on 1.36): asking for it would never end.
            Value::Array(items) => !items.is_empty(),
            _ => true,
        }
    }

    fn is_identity(&self, name: &str) -> bool {
        match self.path.as_slice() {
            [] => matches!(name, "apiVersion" | "kind"),
            [Segment::Field(parent)] => parent == "metadata" && UNTRACKED_METADATA.contains(&name),
            _ => false,
        }
    }

    fn is_excepted(&self) -> bool {
        !self.except.is_empty() && self.except.contains(&path_text(&self.path).as_str())
    }
}

/// The values that an item has for the keys of a listed one; `None` where it lacks one.
fn key_of(intent: &Value, like: &Value) -> Option<Value> {
    let keys = like.as_object()?.keys().map(|key| {
        let default =
            || DEFAULTED_KEYS.iter().find(|(name, _)| name == key).map(|(_, value)| Value::from(*value));
        Some((key.clone(), intent.get(key).cloned().or_else(default)?))
    });
    keys.collect::<Option<Map<_, _>>>().map(Value::Object)
}

/// How to name an item that is not in the entry: by the keys that its siblings there have.
fn missing_item(intent: &Value, fields: &Value) -> Segment {
    let by_keys =
        item(fields, "k:", |keys| key_of(intent, keys).is_some()).and_then(|(keys, _)| key_of(intent, &keys));
    match by_keys {
        Some(keys) => Segment::Key(keys),
        None if intent.is_object() => Segment::Key(intent.clone()),
        None => Segment::Value(intent.clone()),
    }
}

#[cfg(test)]
#[path = "ownership_tests.rs"]
mod tests;
