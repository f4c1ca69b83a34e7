//! The rules that no type, bound or pattern can say: one table for the CRD and for the parser.
//!
//! Each [`Rule`] holds its CEL text for the API server and the same check in Rust for [`crate::parse`](mod@crate::parse),
//! with one message for both. A rule sits at the deepest object that holds its fields: the server skips a rule on an
//! update only while its own object is unchanged, so that a rule on `spec` would block `suspend: true` on a stored App
//! that it refuses. And a rule guards every field that it reads with `has()` unless that field has a default: on a stored
//! object without it the rule would not fail but err, and an error is never skipped, so that neither a status nor the
//! removal of a finalizer would pass. `tests/live_cases.rs` shows that both sides agree on the real server.

use std::time::Duration;

use serde_json::Value;

use crate::names::{MAIN_CONTAINER, NAME_MAX, OWNED_LABELS};
use crate::structure::matches;
use crate::violation::FaultKind;

/// A rule of the App's schema.
pub struct Rule {
    /// Where the rule sits: property names from the root, `[]` for the items of a list; empty for the root itself.
    pub at: &'static [&'static str],
    /// The rule in CEL, true where all is well.
    pub cel: &'static str,
    /// What is wrong and what to do, without values.
    pub message: &'static str,
    /// CEL for the same message with the values in it.
    pub message_expression: Option<&'static str>,
    /// Kind of the fault: one of the four that a CRD may give. Not `Duplicate`: the server then prints no message.
    pub kind: FaultKind,
    /// The field to blame, as the CRD wants it (`.minReplicas`), relative to `at`.
    pub field_path: Option<&'static str>,
    /// The rule in Rust, on the value at `at` with defaults filled in: `Some(message)` where it fails. A value of a type
    /// that the rule can't judge passes: that fault is the schema's.
    pub fails: fn(&Value) -> Option<String>,
}

const NAME_PATTERN: &str = "^[a-z]([-a-z0-9]*[a-z0-9])?$";
const QPS_PATTERN: &str = "^[0-9]{1,9}([.][0-9]{1,9})?$";
const LATENCY_PATTERN: &str = "^([0-9]{1,9}([.][0-9]{1,9})?(us|ms|s|m|h))+$";
const ERROR_RATE_PATTERN: &str = "^[0-9]{1,9}([.][0-9]{1,9})?%?$";

const NAME_LONG: &str =
    "the name must be at most 52 characters: it becomes a label value and part of Pod names";
const NAME_FORM: &str = "the name must begin with a lower-case letter, end with a letter or digit, and hold only lower-case letters, digits and '-': it is also the name of a Service";
const IMAGE: &str = "an image is needed: set spec.image, or give template.spec.containers an entry named \"app\" with an image";
const QPS: &str = "a QPS target is requests per second and replica, a decimal number above 0 without unit, such as \"100\" or \"0.5\"";
const LATENCY: &str =
    "a P99Latency target is a duration above 0 and at most 1h, with its unit, such as \"200ms\" or \"1.5s\"";
const ERROR_RATE: &str = "an ErrorRate target is a share above 0 and at most 1 such as \"0.01\", or a percentage above 0% and at most 100% such as \"1%\"";
const OWNED: &str = "these labels belong to the operator: apps.sentry.io/app, app.kubernetes.io/name, app.kubernetes.io/instance, app.kubernetes.io/managed-by; remove them from template.metadata.labels";
const BOTH_ZERO: &str = "maxSurge and maxUnavailable must not both be 0: nothing could ever be replaced";
const DEADLINE: &str =
    "progressDeadlineSeconds must be greater than minReadySeconds; raise the one or lower the other";

/// Every rule, in the order in which faults are reported.
pub const RULES: &[Rule] = &[
    Rule {
        at: &[],
        cel: "self.metadata.name.size() <= 52",
        message: NAME_LONG,
        message_expression: None,
        kind: FaultKind::Invalid,
        field_path: Some(".metadata.name"),
        fails: |app| (name(app)?.chars().count() > NAME_MAX).then(|| NAME_LONG.to_owned()),
    },
    Rule {
        at: &[],
        cel: "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        message: NAME_FORM,
        message_expression: None,
        kind: FaultKind::Invalid,
        field_path: Some(".metadata.name"),
        fails: |app| (!matches(NAME_PATTERN, name(app)?)).then(|| NAME_FORM.to_owned()),
    },
    Rule {
        at: &["spec"],
        cel: "has(self.image) || (has(self.template) && has(self.template.spec) && has(self.template.spec.containers) && self.template.spec.containers.exists(c, c.name == 'app' && has(c.image)))",
        message: IMAGE,
        message_expression: None,
        kind: FaultKind::Required,
        field_path: Some(".image"),
        fails: |spec| {
            let containers = spec.pointer("/template/spec/containers").and_then(Value::as_array);
            let in_template = containers.is_some_and(|containers| {
                containers.iter().any(|c| c["name"] == MAIN_CONTAINER && c.get("image").is_some())
            });
            (spec.get("image").is_none() && !in_template).then(|| IMAGE.to_owned())
        },
    },
    Rule {
        at: &["spec", "ports"],
        cel: "self.all(p, !has(p.name) || self.exists_one(q, has(q.name) && q.name == p.name))",
        message: "port names must be unique",
        message_expression: Some(
            r#"'port names must be unique: "%s" is used more than once'.format([self.filter(p, has(p.name) && !self.exists_one(q, has(q.name) && q.name == p.name))[0].name])"#,
        ),
        kind: FaultKind::Invalid,
        field_path: None,
        fails: |ports| {
            let names: Vec<&str> = ports.as_array()?.iter().filter_map(|p| p.get("name")?.as_str()).collect();
            let twice = names.iter().enumerate().find(|(index, name)| names[index + 1..].contains(name));
            twice.map(|(_, name)| format!("port names must be unique: {name:?} is used more than once"))
        },
    },
    Rule {
        at: &["spec", "template"],
        cel: "!has(self.metadata) || !has(self.metadata.labels) || !['apps.sentry.io/app', 'app.kubernetes.io/name', 'app.kubernetes.io/instance', 'app.kubernetes.io/managed-by'].exists(k, k in self.metadata.labels)",
        message: OWNED,
        // Naming the label would be kinder, but `join` on a filtered list is over the server's cost budget.
        message_expression: None,
        kind: FaultKind::Forbidden,
        field_path: Some(".metadata.labels"),
        fails: |template| {
            let labels = template.pointer("/metadata/labels")?.as_object()?;
            OWNED_LABELS.iter().any(|owned| labels.contains_key(*owned)).then(|| OWNED.to_owned())
        },
    },
    Rule {
        at: &["spec", "rollout"],
        cel: "!(string(self.maxSurge) in ['0', '0%'] && string(self.maxUnavailable) in ['0', '0%'])",
        message: BOTH_ZERO,
        message_expression: None,
        kind: FaultKind::Invalid,
        field_path: Some(".maxUnavailable"),
        fails: |rollout| {
            let zero = |field: &str| rollout[field] == 0 || rollout[field] == "0%" || rollout[field] == "0";
            (zero("maxSurge") && zero("maxUnavailable")).then(|| BOTH_ZERO.to_owned())
        },
    },
    Rule {
        at: &["spec", "rollout"],
        cel: "type(self.maxSurge) != int || int(self.maxSurge) >= 0",
        message: "maxSurge must not be negative",
        message_expression: None,
        kind: FaultKind::Invalid,
        field_path: Some(".maxSurge"),
        fails: |rollout| negative(rollout, "maxSurge"),
    },
    Rule {
        at: &["spec", "rollout"],
        cel: "type(self.maxUnavailable) != int || int(self.maxUnavailable) >= 0",
        message: "maxUnavailable must not be negative",
        message_expression: None,
        kind: FaultKind::Invalid,
        field_path: Some(".maxUnavailable"),
        fails: |rollout| negative(rollout, "maxUnavailable"),
    },
    Rule {
        at: &["spec", "rollout"],
        cel: "self.progressDeadlineSeconds > self.minReadySeconds",
        message: DEADLINE,
        message_expression: Some(
            "'progressDeadlineSeconds (%d) must be greater than minReadySeconds (%d); raise the one or lower the other'.format([self.progressDeadlineSeconds, self.minReadySeconds])",
        ),
        kind: FaultKind::Invalid,
        field_path: Some(".progressDeadlineSeconds"),
        fails: |rollout| {
            let deadline = rollout["progressDeadlineSeconds"].as_i64()?;
            let ready = rollout["minReadySeconds"].as_i64()?;
            (deadline <= ready).then(|| {
                format!("progressDeadlineSeconds ({deadline}) must be greater than minReadySeconds ({ready}); raise the one or lower the other")
            })
        },
    },
    Rule {
        at: &["spec", "scaling"],
        cel: "!has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
        message: "minReplicas must not exceed maxReplicas; raise maxReplicas or lower minReplicas",
        message_expression: Some(
            "'minReplicas (%d) must not exceed maxReplicas (%d); raise maxReplicas or lower minReplicas'.format([self.minReplicas, self.maxReplicas])",
        ),
        kind: FaultKind::Invalid,
        field_path: Some(".minReplicas"),
        fails: |scaling| {
            let (min, max) = (scaling["minReplicas"].as_i64()?, scaling.get("maxReplicas")?.as_i64()?);
            (min > max).then(|| {
                format!("minReplicas ({min}) must not exceed maxReplicas ({max}); raise maxReplicas or lower minReplicas")
            })
        },
    },
    Rule {
        at: &["spec", "scaling"],
        cel: "!has(self.fallbackReplicas) || (self.fallbackReplicas >= self.minReplicas && self.fallbackReplicas <= (has(self.maxReplicas) ? self.maxReplicas : (self.minReplicas > 10 ? self.minReplicas : 10)))",
        message: "fallbackReplicas must lie within minReplicas and maxReplicas",
        message_expression: Some(
            "'fallbackReplicas (%d) must lie within minReplicas (%d) and maxReplicas (%d)'.format([self.fallbackReplicas, self.minReplicas, (has(self.maxReplicas) ? self.maxReplicas : (self.minReplicas > 10 ? self.minReplicas : 10))])",
        ),
        kind: FaultKind::Invalid,
        field_path: Some(".fallbackReplicas"),
        fails: |scaling| {
            let (min, fallback) =
                (scaling["minReplicas"].as_i64()?, scaling.get("fallbackReplicas")?.as_i64()?);
            let max = match scaling.get("maxReplicas") {
                Some(max) => max.as_i64()?,
                None => min.max(10),
            };
            (fallback < min || fallback > max).then(|| {
                format!("fallbackReplicas ({fallback}) must lie within minReplicas ({min}) and maxReplicas ({max})")
            })
        },
    },
    Rule {
        at: &["spec", "scaling", "metrics", "[]"],
        cel: "!has(self.target) || self.type != 'QPS' || (self.target.matches('^[0-9]{1,9}([.][0-9]{1,9})?$') && double(self.target) > 0.0)",
        message: QPS,
        message_expression: None,
        kind: FaultKind::Invalid,
        field_path: Some(".target"),
        fails: |metric| {
            let target = target_of(metric, "QPS")?;
            let holds = matches(QPS_PATTERN, target) && target.parse::<f64>().is_ok_and(|qps| qps > 0.0);
            (!holds).then(|| QPS.to_owned())
        },
    },
    Rule {
        at: &["spec", "scaling", "metrics", "[]"],
        cel: "!has(self.target) || self.type != 'P99Latency' || (self.target.matches('^([0-9]{1,9}([.][0-9]{1,9})?(us|ms|s|m|h))+$') && duration(self.target) > duration('0s') && duration(self.target) <= duration('1h'))",
        message: LATENCY,
        message_expression: None,
        kind: FaultKind::Invalid,
        field_path: Some(".target"),
        fails: |metric| {
            let target = target_of(metric, "P99Latency")?;
            let holds = latency(target).is_some_and(|d| !d.is_zero() && d <= Duration::from_secs(3600));
            (!holds).then(|| LATENCY.to_owned())
        },
    },
    Rule {
        at: &["spec", "scaling", "metrics", "[]"],
        cel: "!has(self.target) || self.type != 'ErrorRate' || (self.target.matches('^[0-9]{1,9}([.][0-9]{1,9})?%?$') && (self.target.endsWith('%') ? double(self.target.substring(0, self.target.size() - 1)) > 0.0 && double(self.target.substring(0, self.target.size() - 1)) <= 100.0 : double(self.target) > 0.0 && double(self.target) <= 1.0))",
        message: ERROR_RATE,
        message_expression: None,
        kind: FaultKind::Invalid,
        field_path: Some(".target"),
        fails: |metric| {
            let target = target_of(metric, "ErrorRate")?;
            let (number, top) = match target.strip_suffix('%') {
                Some(number) => (number, 100.0),
                None => (target, 1.0),
            };
            let holds = matches(ERROR_RATE_PATTERN, target)
                && number.parse::<f64>().is_ok_and(|share| share > 0.0 && share <= top);
            (!holds).then(|| ERROR_RATE.to_owned())
        },
    },
];

fn name(app: &Value) -> Option<&str> {
    app.pointer("/metadata/name")?.as_str()
}

fn negative(object: &Value, field: &str) -> Option<String> {
    (object.get(field)?.as_i64()? < 0).then(|| format!("{field} must not be negative"))
}

fn target_of<'a>(metric: &'a Value, kind: &str) -> Option<&'a str> {
    (metric.get("type")? == kind).then(|| metric.get("target")?.as_str())?
}

/// A latency as the rule's grammar writes it, `1s500ms` or `1.5s`; `None` where it isn't one. Fractions below one
/// nanosecond are cut, as `duration()` of CEL cuts them (Go's `time.ParseDuration`).
pub fn latency(text: &str) -> Option<Duration> {
    if !matches(LATENCY_PATTERN, text) {
        return None;
    }
    let mut total: u128 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| c.is_ascii_alphabetic())?;
        let (number, tail) = rest.split_at(end);
        let unit_end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let nanos: u128 = match unit {
            "us" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        total += whole.parse::<u128>().ok()? * nanos;
        if !fraction.is_empty() {
            let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
            total += fraction.parse::<u128>().ok()? * nanos / scale;
        }
        rest = tail;
    }
    u64::try_from(total).ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn latencies_are_read_as_the_server_reads_them() {
        for (text, nanos) in
            [("250us", 250_000), ("1.5s", 1_500_000_000), ("1s500ms", 1_500_000_000), ("0.1us", 100)]
        {
            assert_eq!(latency(text), Some(Duration::from_nanos(nanos)), "{text}");
        }
        for text in ["", "1", "ms", "1d", "-1s", "1 s", "1e3s", "1.s", ".5s", "0000000001s"] {
            assert_eq!(latency(text), None, "{text}");
        }
    }

    #[test]
    fn the_largest_latency_of_the_grammar_does_not_overflow() {
        let long = "999999999h".repeat(7);
        assert!(latency(&long).is_none_or(|d| d > Duration::from_secs(3600)));
    }

    #[test]
    fn a_rule_passes_what_only_the_schema_can_judge() {
        for rule in RULES {
            for odd in [
                json!(null),
                json!(7),
                json!("x"),
                json!([]),
                json!([null, 1]),
                json!({"metadata": 1, "target": 5}),
            ] {
                let wants_image = rule.message == IMAGE || rule.message == NAME_FORM;
                assert!((rule.fails)(&odd).is_none() || wants_image, "{} on {odd}", rule.cel);
            }
        }
    }

    #[test]
    fn a_message_has_one_line_and_the_cel_text_too() {
        for rule in RULES {
            assert!(!rule.message.contains('\n') && !rule.cel.contains('\n'), "{}", rule.cel);
        }
    }
}
