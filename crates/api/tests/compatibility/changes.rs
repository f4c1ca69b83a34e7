//! Every kind of change of a CRD, made on a copy: what is refused, and what is allowed.
#![allow(clippy::unwrap_used, clippy::semicolon_if_nothing_returned, reason = "a table of a test")]

use serde_json::{Value, json};

use super::edit::{add_rule, field, remove};

pub(crate) type Change = fn(&mut Value);

/// Each with the beginning of what must be said of it.
pub(crate) const REFUSED: &[(&str, Change, &str)] = &[
    (
        "a field is removed",
        |c| remove(&mut field(c, "spec.scaling")["properties"], "maxReplicas"),
        "spec.scaling.maxReplicas: removed",
    ),
    (
        "a field of the status is removed",
        |c| remove(&mut field(c, "status.effective")["properties"], "image"),
        "status.effective.image: removed",
    ),
    (
        "a field has another type",
        |c| field(c, "spec.image")["type"] = json!("integer"),
        "spec.image: type was \"string\", is \"integer\"",
    ),
    (
        "a number may be a string too",
        |c| {
            let f = field(c, "spec.scaling.minReplicas");
            remove(f, "type");
            f["x-kubernetes-int-or-string"] = json!(true);
        },
        "spec.scaling.minReplicas: type was",
    ),
    (
        "a number or string becomes a string",
        |c| {
            let f = field(c, "spec.rollout.maxSurge");
            remove(f, "x-kubernetes-int-or-string");
            f["type"] = json!("string");
        },
        "spec.rollout.maxSurge: type was",
    ),
    (
        "a field has another format",
        |c| field(c, "spec.replicas")["format"] = json!("int64"),
        "spec.replicas: format was",
    ),
    ("a format is added", |c| field(c, "spec.image")["format"] = json!("uri"), "spec.image: format was"),
    (
        "a list has another list type",
        |c| field(c, "spec.args")["x-kubernetes-list-type"] = json!("set"),
        "spec.args: x-kubernetes-list-type was",
    ),
    (
        "a list loses its list type",
        |c| {
            let f = field(c, "spec.ports");
            remove(f, "x-kubernetes-list-type");
            remove(f, "x-kubernetes-list-map-keys");
        },
        "spec.ports: x-kubernetes-list-type was",
    ),
    (
        "a list has other keys",
        |c| field(c, "spec.ports")["x-kubernetes-list-map-keys"] = json!(["containerPort"]),
        "spec.ports: x-kubernetes-list-map-keys were",
    ),
    (
        "an object has another map type",
        |c| remove(field(c, "status.lastDecision"), "x-kubernetes-map-type"),
        "status.lastDecision: x-kubernetes-map-type was \"atomic\", is \"granular\"",
    ),
    (
        "an object becomes atomic",
        |c| field(c, "spec.scaling")["x-kubernetes-map-type"] = json!("atomic"),
        "spec.scaling: x-kubernetes-map-type was",
    ),
    (
        "an open object is closed",
        |c| remove(field(c, "spec.template"), "x-kubernetes-preserve-unknown-fields"),
        "spec.template: x-kubernetes-preserve-unknown-fields was taken away",
    ),
    (
        "a field of an open object is declared",
        |c| field(c, "spec.template.spec")["properties"]["volumes"] = json!({"type": "array"}),
        "spec.template.spec.volumes: declared",
    ),
    (
        "the values of a map are no longer declared",
        |c| remove(field(c, "spec.template.metadata.labels"), "additionalProperties"),
        "spec.template.metadata.labels.*: removed",
    ),
    (
        "the values of a map have another type",
        |c| field(c, "spec.template.metadata.labels.*")["type"] = json!("integer"),
        "spec.template.metadata.labels.*: type was",
    ),
    (
        "a field of an existing object becomes required",
        |c| field(c, "spec")["required"] = json!(["image"]),
        "spec: image became required",
    ),
    (
        "a new field of an existing object is required",
        |c| {
            let f = field(c, "spec.rollout");
            f["properties"]["pace"] = json!({"type": "string"});
            f["required"] = json!(["pace"]);
        },
        "spec.rollout: pace became required",
    ),
    (
        "a field of a list's items becomes required",
        |c| field(c, "spec.ports[]")["required"] = json!(["containerPort", "name"]),
        "spec.ports[]: name became required",
    ),
    (
        "an enum value is removed",
        |c| field(c, "spec.scaling.mode")["enum"] = json!(["Auto", "Disabled"]),
        "spec.scaling.mode: enum value \"DryRun\" removed",
    ),
    (
        "an enum is put on a free text",
        |c| field(c, "spec.image")["enum"] = json!(["nginx"]),
        "spec.image: an enum",
    ),
    (
        "a default is changed",
        |c| field(c, "spec.scaling.minReplicas")["default"] = json!(2),
        "spec.scaling.minReplicas: default was 1, is 2",
    ),
    (
        "a default is removed",
        |c| remove(field(c, "spec.suspend"), "default"),
        "spec.suspend: default false removed",
    ),
    (
        "an existing field gets a default",
        |c| field(c, "spec.replicas")["default"] = json!(1),
        "spec.replicas: default 1 where there was none",
    ),
    (
        "the default of an object changes inside",
        |c| field(c, "spec.scaling")["default"]["cooldownSeconds"] = json!(60),
        "spec.scaling: default was",
    ),
    (
        "the default of an object loses a field",
        |c| remove(&mut field(c, "spec.scaling")["default"], "mode"),
        "spec.scaling: default was",
    ),
    (
        "the default of an object sets an existing field",
        |c| field(c, "spec.scaling")["default"]["maxReplicas"] = json!(10),
        "spec.scaling: default was",
    ),
    (
        "a least value is raised",
        |c| field(c, "spec.scaling.minReplicas")["minimum"] = json!(2),
        "spec.scaling.minReplicas: minimum was 1, is 2",
    ),
    (
        "a greatest value is lowered",
        |c| field(c, "spec.scaling.cooldownSeconds")["maximum"] = json!(3600),
        "spec.scaling.cooldownSeconds: maximum was",
    ),
    (
        "a bound is added",
        |c| field(c, "spec.env[].name")["maxLength"] = json!(63),
        "spec.env[].name: maxLength was null, is 63",
    ),
    (
        "a list may have fewer items",
        |c| field(c, "spec.ports")["maxItems"] = json!(8),
        "spec.ports: maxItems was 16, is 8",
    ),
    (
        "a map may have fewer entries",
        |c| field(c, "spec.template.metadata.labels")["maxProperties"] = json!(8),
        "spec.template.metadata.labels: maxProperties was",
    ),
    (
        "a pattern is changed",
        |c| field(c, "spec.ports[].name")["pattern"] = json!("^[a-z]+$"),
        "spec.ports[].name: pattern was",
    ),
    (
        "a pattern is added",
        |c| field(c, "spec.image")["pattern"] = json!("^[a-z]+$"),
        "spec.image: pattern was null",
    ),
    (
        "alternatives are added",
        |c| field(c, "spec.rollout")["oneOf"] = json!([{"required": ["maxSurge"]}]),
        "spec.rollout: oneOf was null",
    ),
    ("a rule is added at the root", |c| add_rule(field(c, "")), "(root): a new rule"),
    ("a rule is added on spec", |c| add_rule(field(c, "spec")), "spec: a new rule"),
    (
        "a rule on spec is changed",
        |c| field(c, "spec")["x-kubernetes-validations"][0]["rule"] = json!("has(self.image)"),
        "spec: a new rule",
    ),
    (
        "a version is no longer served",
        |c| c["spec"]["versions"][0]["served"] = json!(false),
        "(CRD) version v1alpha1: no longer served",
    ),
    (
        "a version is renamed",
        |c| c["spec"]["versions"][0]["name"] = json!("v1beta1"),
        "(CRD) version v1alpha1: no longer served",
    ),
    ("the scope is changed", |c| c["spec"]["scope"] = json!("Cluster"), "(CRD) scope: was"),
    ("the group is changed", |c| c["spec"]["group"] = json!("sentry.io"), "(CRD) group: was"),
    (
        "the plural is changed",
        |c| c["spec"]["names"]["plural"] = json!("applications"),
        "(CRD) names.plural: was",
    ),
    ("the kind is changed", |c| c["spec"]["names"]["kind"] = json!("Application"), "(CRD) names.kind: was"),
    (
        "a short name is removed",
        |c| c["spec"]["names"]["shortNames"] = json!([]),
        "(CRD) names.shortNames: \"sapp\" removed",
    ),
    (
        "a category is removed",
        |c| c["spec"]["names"]["categories"] = json!(["sentry"]),
        "(CRD) names.categories: \"all\" removed",
    ),
    (
        "the status subresource is removed",
        |c| remove(&mut c["spec"]["versions"][0]["subresources"], "status"),
        "(CRD) version v1alpha1: subresource status removed",
    ),
    (
        "the scale subresource is removed",
        |c| remove(&mut c["spec"]["versions"][0]["subresources"], "scale"),
        "(CRD) version v1alpha1: subresource scale.specReplicasPath: was",
    ),
    (
        "a path of the scale subresource is changed",
        |c| c["spec"]["versions"][0]["subresources"]["scale"]["labelSelectorPath"] = json!(".status.labels"),
        "(CRD) version v1alpha1: subresource scale.labelSelectorPath: was",
    ),
    (
        "a selectable field is removed",
        |c| c["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".status.phase"}]),
        "(CRD) version v1alpha1: selectableFields: {\"jsonPath\":\".spec.suspend\"} removed",
    ),
];

pub(crate) const ALLOWED: &[(&str, Change)] = &[
    ("nothing is changed", |_| ()),
    ("an optional field is added", |c| {
        field(c, "spec")["properties"]["healing"] =
            json!({"type": "object", "properties": {"mode": {"type": "string"}}})
    }),
    ("a field with a default is added", |c| {
        field(c, "spec.scaling")["properties"]["blindRise"] = json!({"type": "boolean", "default": false})
    }),
    ("the default of an object grows by a new field", |c| {
        let f = field(c, "spec.scaling");
        f["properties"]["blindRise"] = json!({"type": "boolean", "default": false});
        f["default"]["blindRise"] = json!(false);
    }),
    ("a new object has required fields and rules", |c| {
        let new =
            json!({"type": "object", "required": ["port"], "properties": {"port": {"type": "integer"}}});
        field(c, "spec")["properties"]["service"] = new;
        add_rule(field(c, "spec.service"));
    }),
    ("a field of the status is added", |c| {
        field(c, "status")["properties"]["revision"] = json!({"type": "string"})
    }),
    ("an enum value is added", |c| {
        field(c, "spec.scaling.mode")["enum"].as_array_mut().unwrap().push(json!("Observe"))
    }),
    ("an enum is removed", |c| remove(field(c, "spec.scaling.mode"), "enum")),
    ("a least value is lowered", |c| field(c, "spec.scaling.minReplicas")["minimum"] = json!(0)),
    ("a greatest value is raised", |c| field(c, "spec.scaling.maxReplicas")["maximum"] = json!(20000)),
    ("a bound is removed", |c| remove(field(c, "spec.image"), "maxLength")),
    ("a pattern is removed", |c| remove(field(c, "spec.ports[].name"), "pattern")),
    ("a required field becomes optional", |c| remove(field(c, "spec.scaling.metrics[]"), "required")),
    ("an object is opened", |c| {
        field(c, "spec.rollout")["x-kubernetes-preserve-unknown-fields"] = json!(true)
    }),
    ("the keys of a list stand in another order", |c| {
        field(c, "spec.ports")["x-kubernetes-list-map-keys"] = json!(["protocol", "containerPort"])
    }),
    ("what was the default anyhow is written down", |c| {
        field(c, "spec.scaling")["x-kubernetes-map-type"] = json!("granular")
    }),
    ("a rule is added at a deeper object", |c| add_rule(field(c, "spec.scaling"))),
    ("a rule on spec is removed", |c| remove(field(c, "spec"), "x-kubernetes-validations")),
    ("a rule on spec says it in other words", |c| {
        field(c, "spec")["x-kubernetes-validations"][0]["message"] = json!("set spec.image")
    }),
    ("a description is changed", |c| field(c, "spec.image")["description"] = json!("Other words.")),
    ("a column is removed", |c| c["spec"]["versions"][0]["additionalPrinterColumns"] = json!([])),
    ("a short name is added", |c| c["spec"]["names"]["shortNames"] = json!(["sapp", "sa"])),
    ("a selectable field is added", |c| {
        c["spec"]["versions"][0]["selectableFields"]
            .as_array_mut()
            .unwrap()
            .push(json!({"jsonPath": ".spec.image"}))
    }),
    ("a version is added", |c| {
        let mut next = c["spec"]["versions"][0].clone();
        next["name"] = json!("v1beta1");
        next["storage"] = json!(false);
        c["spec"]["versions"].as_array_mut().unwrap().push(next);
    }),
];
