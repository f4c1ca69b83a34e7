//! From a raw App to what the operator works with, or to everything that is wrong with it.
//!
//! [`parse`] reads JSON, not a typed App: a typed one would stop at its first fault, and one App that doesn't decode
//! must never stop the others. Defaults and structure come from the generated schema, then the rules of
//! [`crate::rules`], then what no CRD can say: the Pod template is checked strictly, what Pod Security *baseline*
//! refuses is refused. The operator, `lint` and the admission webhook all call this one function.

use kubesentry_engine::size::{Mode, Replicas, SizePolicy};
use serde_json::{Map, Value};

use crate::children::Workload;
use crate::rules::RULES;
use crate::spec::{AppSpec, ScalingMode};
use crate::structure::{check, fill_defaults, prune_nulls, unknown_field};
use crate::violation::{FaultKind, Violation, Warning};
use crate::{pod_security, schema};

/// What the administrator of the operator allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ParseOptions {
    /// `--allow-privileged-templates`: templates beyond Pod Security *baseline* are accepted.
    pub allow_privileged_templates: bool,
    /// `--allow-service-account-names`: a template may name another ServiceAccount than `default`.
    pub allow_service_account_names: bool,
}

/// What [`parse`] found.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    /// The App, if nothing is wrong with it.
    pub app: Option<ValidApp>,
    /// Every fault, in the order of schema, rules, template.
    pub violations: Vec<Violation>,
    /// Remarks on what is accepted all the same.
    pub warnings: Vec<Warning>,
}

/// An App without a fault: nothing downstream reads the raw object again.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidApp {
    /// What it says about its size, computed defaults in force.
    pub policy: SizePolicy,
    /// What it wants to run.
    pub workload: Workload,
    /// The spec with its defaults.
    pub spec: AppSpec,
}

/// Names at the root of an object.
const ROOT_FIELDS: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];

/// Parses a raw App. Never fails: what can't be read is a violation.
pub fn parse(raw: &Value, options: &ParseOptions) -> Parsed {
    let mut app = raw.clone();
    let mut violations = Vec::new();
    let mut warnings = Vec::new();

    if let Some(root) = app.as_object_mut() {
        check_root(root, &mut violations);
        // The status is the operator's own; what an older version wrote there is no fault of the App.
        root.remove("status");
    }
    let root_schema = schema::app();
    fill_defaults(root_schema, &mut app);
    match app.get("spec") {
        Some(spec) => check(&root_schema["properties"]["spec"], spec, "spec", &mut violations),
        None => violations.push(Violation::new("spec", FaultKind::Required, "a value is required")),
    }
    check_rules(&app, &mut violations);
    check_template(&app, options, &mut violations, &mut warnings);

    violations.dedup();
    let app = if violations.is_empty() { assemble(&app, &mut violations, &mut warnings) } else { None };
    Parsed { app, violations, warnings }
}

fn check_root(root: &Map<String, Value>, out: &mut Vec<Violation>) {
    let known: Map<String, Value> =
        ROOT_FIELDS.iter().map(|name| ((*name).to_owned(), Value::Null)).collect();
    for name in root.keys().filter(|name| !known.contains_key(*name)) {
        out.push(unknown_field(name, Some(&known), name.clone()));
    }
}

fn check_rules(app: &Value, out: &mut Vec<Violation>) {
    for rule in RULES {
        visit(app, rule.at, "", &mut |value, path| {
            if let Some(message) = (rule.fails)(value) {
                let path = format!("{path}{}", rule.field_path.unwrap_or_default());
                out.push(Violation::new(path.trim_start_matches('.'), rule.kind, message));
            }
        });
    }
}

/// Calls `found` with every value at `at` below `value`, and with its path.
fn visit(value: &Value, at: &[&str], path: &str, found: &mut impl FnMut(&Value, &str)) {
    match at.split_first() {
        None => found(value, path),
        Some((&"[]", rest)) => {
            for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                visit(item, rest, &format!("{path}[{index}]"), found);
            }
        }
        Some((name, rest)) => {
            // A rule on an object is asked only where there is an object, as on the server.
            if let Some(inner) = value.get(*name).filter(|inner| inner.is_object() || inner.is_array()) {
                visit(inner, rest, &crate::structure::join(path, name), found);
            }
        }
    }
}

const TEMPLATE: &str = "spec.template";

fn check_template(
    app: &Value,
    options: &ParseOptions,
    out: &mut Vec<Violation>,
    warnings: &mut Vec<Warning>,
) {
    let Some(spec) = app.get("spec").filter(|spec| spec.is_object()) else {
        return;
    };
    if !options.allow_privileged_templates {
        pod_security::check_probes(spec, "spec", out);
    }
    let Some(template) = spec.get("template").filter(|template| template.is_object()) else {
        return;
    };
    let mut strict = Vec::new();
    // The API server prunes nulls of declared fields only; below the open template they take a field away.
    let mut pruned = template.clone();
    prune_nulls(&mut pruned);
    check(schema::pod_template(), &pruned, TEMPLATE, &mut strict);
    for violation in strict {
        if violation.kind == FaultKind::Unknown && is_newer(&violation.path) {
            let message = "a field of a newer Kubernetes than this operator knows; it is passed on unchecked";
            warnings.push(Warning::new(violation.path, message));
        } else if !out.iter().any(|known| known.path == violation.path && known.kind == violation.kind) {
            out.push(violation);
        }
    }
    if !options.allow_privileged_templates {
        pod_security::check_template(&pruned, TEMPLATE, out);
    }
    if !options.allow_service_account_names {
        for field in ["serviceAccountName", "serviceAccount"] {
            let name = pruned.pointer(&format!("/spec/{field}")).and_then(Value::as_str);
            if name.is_some_and(|name| !["", "default"].contains(&name)) {
                out.push(Violation::new(
                    format!("{TEMPLATE}.spec.{field}"),
                    FaultKind::Forbidden,
                    "only the ServiceAccount \"default\" may be used: the operator cannot know whether you may use another; ask its administrator for --allow-service-account-names",
                ));
            }
        }
    }
}

/// Fields of a Pod template that Kubernetes knows after 1.33, the version this crate's types come from, by the field
/// that holds them (`staging/src/k8s.io/api/core/v1/types.go`, 1.33 against 1.37).
const NEWER_FIELDS: [(&str, &str); 19] = [
    ("spec", "evictionResponders"),
    ("spec", "hostnameOverride"),
    ("spec", "schedulingGroup"),
    ("containers", "restartPolicyRules"),
    ("initContainers", "restartPolicyRules"),
    ("valueFrom", "fileKeyRef"),
    ("volumeMounts", "bindMountOptions"),
    ("sources", "podCertificate"),
    ("httpGet", "protocol"),
    ("grpc", "mode"),
    ("emptyDir", "mode"),
    ("configMap", "defaultUser"),
    ("secret", "defaultUser"),
    ("downwardAPI", "defaultUser"),
    ("projected", "defaultUser"),
    ("items", "user"),
    ("clusterTrustBundle", "user"),
    ("serviceAccountToken", "user"),
    ("ephemeralContainers", "restartPolicyRules"),
];

fn is_newer(path: &str) -> bool {
    let mut segments = path.rsplit('.');
    let (Some(field), Some(holder)) = (segments.next(), segments.next()) else {
        return false;
    };
    let holder = holder.split('[').next().unwrap_or_default();
    NEWER_FIELDS.contains(&(holder, field))
}

fn assemble(app: &Value, violations: &mut Vec<Violation>, warnings: &mut Vec<Warning>) -> Option<ValidApp> {
    let spec: AppSpec = match serde_json::from_value(app["spec"].clone()) {
        Ok(spec) => spec,
        Err(error) => {
            // The schema is generated from the type, so that it can't let through what the type refuses.
            violations.push(Violation::new("spec", FaultKind::Invalid, format!("cannot be read: {error}")));
            return None;
        }
    };
    let size = |n: i32| Replicas::from_i64(i64::from(n)).unwrap_or_default();
    let policy = SizePolicy {
        suspend: spec.suspend,
        pin: spec.replicas.map(size),
        mode: match spec.scaling.mode {
            ScalingMode::Auto => Mode::Auto,
            ScalingMode::DryRun => Mode::DryRun,
            ScalingMode::Disabled => Mode::Disabled,
        },
        min: size(spec.scaling.min_replicas),
        max: size(spec.scaling.effective_max()),
    };
    let workload = Workload::new(&spec);
    warnings.extend(remarks(&policy, &workload));
    Some(ValidApp { policy, workload, spec })
}

fn remarks(policy: &SizePolicy, workload: &Workload) -> Vec<Warning> {
    let mut out = Vec::new();
    if !workload.has_readiness_probe() {
        let message = "no readinessProbe: a Pod counts as ready as soon as its process runs";
        out.push(Warning::new("spec.readinessProbe", message));
    }
    if policy.min == policy.max && policy.mode == Mode::Auto && policy.pin.is_none() {
        let message =
            format!("minReplicas and maxReplicas are both {}: there is nothing to scale", policy.min);
        out.push(Warning::new("spec.scaling", message));
    }
    if let Some(pin) = policy.pin.filter(|pin| *pin < policy.min || *pin > policy.max) {
        let message = format!("the pin {pin} lies outside {}..{} and wins", policy.min, policy.max);
        out.push(Warning::new("spec.replicas", message));
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "json!(...) reads better without a reference")]
    fn app(spec: Value) -> Value {
        json!({"apiVersion": "apps.sentry.io/v1alpha1", "kind": "App", "metadata": {"name": "a"}, "spec": spec})
    }

    fn paths(spec: Value) -> Vec<String> {
        parse(&app(spec), &ParseOptions::default()).violations.into_iter().map(|v| v.path).collect()
    }

    #[test]
    fn all_faults_are_reported_at_once() {
        let found = paths(json!({
            "repicas": 3,
            "scaling": {"minReplicas": 5, "maxReplicas": 3, "mode": false, "metrics": [{"type": "QPS", "target": "x"}]},
            "template": {"spec": {"contaners": [], "hostNetwork": true, "serviceAccountName": "admin"}},
        }));
        for path in [
            "spec.repicas",
            "spec.image",
            "spec.scaling.minReplicas",
            "spec.scaling.mode",
            "spec.scaling.metrics[0].target",
            "spec.template.spec.contaners",
            "spec.template.spec.hostNetwork",
            "spec.template.spec.serviceAccountName",
        ] {
            assert!(found.iter().any(|p| p == path), "{path} is missing in {found:?}");
        }
    }

    #[test]
    fn what_is_no_app_at_all_is_a_violation_not_a_panic() {
        for odd in [
            json!(null),
            json!([]),
            json!("x"),
            json!({}),
            json!({"spec": []}),
            json!({"spec": {"template": 7}}),
        ] {
            let parsed = parse(&odd, &ParseOptions::default());
            assert!(parsed.app.is_none() && !parsed.violations.is_empty(), "{odd}");
        }
    }

    #[test]
    fn options_open_what_they_name_and_nothing_else() {
        let spec =
            json!({"image": "i", "template": {"spec": {"hostNetwork": true, "serviceAccountName": "x"}}});
        let with = |a, s| ParseOptions { allow_privileged_templates: a, allow_service_account_names: s };
        let faults =
            |o| parse(&app(spec.clone()), &o).violations.into_iter().map(|v| v.path).collect::<Vec<_>>();
        assert_eq!(faults(with(true, false)), ["spec.template.spec.serviceAccountName"]);
        assert_eq!(faults(with(false, true)), ["spec.template.spec.hostNetwork"]);
        assert!(faults(with(true, true)).is_empty());
    }

    #[test]
    fn a_field_of_a_newer_kubernetes_is_a_warning() {
        let parsed = parse(
            &app(
                json!({"image": "i", "template": {"spec": {"hostnameOverride": "x", "schedulingGroup": {}}}}),
            ),
            &ParseOptions::default(),
        );
        assert!(parsed.violations.is_empty(), "{:?}", parsed.violations);
        let paths: Vec<_> = parsed.warnings.iter().map(|w| w.path.as_str()).collect();
        assert!(paths.contains(&"spec.template.spec.hostnameOverride"), "{paths:?}");
        assert!(paths.contains(&"spec.template.spec.schedulingGroup"), "{paths:?}");
    }

    #[test]
    fn items_that_an_apply_could_not_tell_apart_are_refused() {
        let container = |fields: Value| {
            let mut container = json!({"name": "app"});
            container.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            paths(json!({"image": "i", "template": {"spec": {"containers": [container]}}}))
        };
        let at = "spec.template.spec.containers[0]";
        assert_eq!(
            container(json!({"ports": [{"containerPort": 80}, {"containerPort": 80, "protocol": "TCP"}]})),
            [format!("{at}.ports[1]")]
        );
        assert_eq!(container(json!({"env": [{"name": "A"}, {"name": "A"}]})), [format!("{at}.env[1]")]);
        assert!(
            container(json!({"ports": [{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}]}))
                .is_empty()
        );
    }

    #[test]
    fn computed_defaults_are_in_force_in_the_policy() {
        let policy = |spec| parse(&app(spec), &ParseOptions::default()).app.unwrap().policy;
        assert_eq!(policy(json!({"image": "i"})).max.get(), 10);
        assert_eq!(policy(json!({"image": "i", "scaling": {"minReplicas": 12}})).max.get(), 12);
        assert_eq!(policy(json!({"image": "i", "scaling": null, "replicas": null})).pin, None);
    }

    #[test]
    fn remarks_do_not_refuse() {
        let parsed = parse(
            &app(json!({"image": "i", "replicas": 50, "scaling": {"maxReplicas": 5}})),
            &ParseOptions::default(),
        );
        assert!(parsed.app.is_some());
        let text: Vec<_> = parsed.warnings.iter().map(ToString::to_string).collect();
        assert!(
            text.contains(&"spec.replicas: the pin 50 lies outside 1..5 and wins".to_owned()),
            "{text:?}"
        );
    }
}
