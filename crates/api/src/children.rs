//! The objects that belong to an App, built as intents for a server-side apply.
//!
//! [`Workload`] is what an App wants to run; [`deployment`] turns it into the Deployment's [`Intent`]: only fields that
//! KubeSentry owns, no nulls, no empty metadata. The intent's hash decides whether a write is due
//! ([`crate::ownership`] decides the rest), so a changed intent for an unchanged App would roll every Pod at an upgrade
//! of the operator: golden intents are committed, and a change to one needs a decision record.

use kubesentry_engine::canonical;
use serde_json::{Map, Value, json};

use crate::merge::merge;
use crate::names::{
    ANNOTATION_APPLIED_HASH, ANNOTATION_DESIRED_REPLICAS, API_VERSION, FIELD_MANAGER, KIND, LABEL_APP,
    LABEL_INSTANCE, LABEL_MANAGED_BY, LABEL_NAME, MAIN_CONTAINER,
};
use crate::spec::{AppSpec, Rollout};

/// What an App wants to run: its Pod template, merged, and how a new version replaces the old one.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// `{metadata?, spec}` of the Pods, before the operator's own labels.
    template: Value,
    rollout: Rollout,
    image: String,
}

impl Workload {
    /// Merges `spec.template` over the fields of the main container.
    pub fn new(spec: &AppSpec) -> Self {
        let base = json!({"spec": {"containers": [main_container(spec)]}});
        let template = match &spec.template {
            Some(over) => merge(base, &Value::Object(over.clone())),
            None => base,
        };
        let image = main(&template)
            .and_then(|container| container.get("image"))
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        Self { template, rollout: spec.rollout.clone(), image }
    }

    /// Image of the main container.
    pub fn image(&self) -> &str {
        &self.image
    }

    /// Whether the main container says when it is ready.
    pub fn has_readiness_probe(&self) -> bool {
        main(&self.template).is_some_and(|container| container.get("readinessProbe").is_some())
    }
}

fn main(template: &Value) -> Option<&Value> {
    let containers = template.pointer("/spec/containers")?.as_array()?;
    containers.iter().find(|container| container["name"] == MAIN_CONTAINER)
}

fn main_container(spec: &AppSpec) -> Value {
    let mut container = Map::new();
    let mut put = |name: &str, value: Value| {
        let empty = match &value {
            Value::Null => true,
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            _ => false,
        };
        if !empty {
            container.insert(name.to_owned(), value);
        }
    };
    put("name", MAIN_CONTAINER.into());
    put("image", json!(spec.image));
    put("ports", Value::Array(spec.ports.iter().map(port).collect()));
    put("env", json!(spec.env));
    put("resources", json!(spec.resources));
    put("command", json!(spec.command));
    put("args", json!(spec.args));
    put("livenessProbe", json!(spec.liveness_probe));
    put("readinessProbe", json!(spec.readiness_probe));
    put("startupProbe", json!(spec.startup_probe));
    Value::Object(container)
}

fn port(port: &crate::spec::Port) -> Value {
    let mut out = json!({"containerPort": port.container_port, "protocol": port.protocol});
    if let Some(name) = &port.name {
        out["name"] = json!(name);
    }
    out
}

/// Whose children are built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Name of the App, and of its children.
    pub name: String,
    /// Namespace of both.
    pub namespace: String,
    /// UID of the App, for the owner reference.
    pub uid: String,
}

/// What a child should be: the body of its apply without the size, and the hash over it.
#[derive(Debug, Clone, PartialEq)]
pub struct Intent {
    body: Value,
    hash: String,
}

/// The size part of an apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sized {
    /// The size is ours: written with the annotation that remembers it.
    Ours(u32),
    /// The size is somebody else's: the live value is sent, with the resourceVersion it was read at, so that a lost race
    /// is a conflict and not a reversal; without one for a child that doesn't exist yet.
    Theirs {
        /// The live size.
        replicas: u32,
        /// `metadata.resourceVersion` of the object it was read from.
        resource_version: Option<String>,
    },
}

impl Intent {
    /// SHA-256 over the canonical JSON of the intent without the size and the two annotations of the apply.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The intent without size and annotations: what the ownership check looks for.
    pub fn body(&self) -> &Value {
        &self.body
    }

    /// The whole body of the apply.
    pub fn with_size(&self, size: &Sized) -> Value {
        let mut body = self.body.clone();
        body["metadata"]["annotations"][ANNOTATION_APPLIED_HASH] = json!(self.hash);
        match size {
            Sized::Ours(replicas) => {
                body["spec"]["replicas"] = json!(replicas);
                body["metadata"]["annotations"][ANNOTATION_DESIRED_REPLICAS] = json!(replicas.to_string());
            }
            Sized::Theirs { replicas, resource_version } => {
                body["spec"]["replicas"] = json!(replicas);
                if let Some(version) = resource_version {
                    body["metadata"]["resourceVersion"] = json!(version);
                }
            }
        }
        body
    }
}

/// The Deployment of an App.
///
/// # Errors
/// The intent holds a number that canonical JSON can't represent (a fraction, or more than 2^53); the message names it.
pub fn deployment(workload: &Workload, identity: &Identity) -> Result<Intent, canonical::CanonicalError> {
    let labels = labels(identity);
    let mut template = workload.template.clone();
    let user_labels =
        template.pointer("/metadata/labels").and_then(Value::as_object).cloned().unwrap_or_default();
    let mut pod_labels = user_labels;
    pod_labels.extend(labels.clone());
    template["metadata"]["labels"] = Value::Object(pod_labels);
    // An empty map owns nothing, and a manager that owns nothing of it would look for it forever.
    if template.pointer("/metadata/annotations").and_then(Value::as_object).is_some_and(Map::is_empty)
        && let Some(metadata) = template["metadata"].as_object_mut()
    {
        metadata.remove("annotations");
    }

    let rollout = &workload.rollout;
    // `strategy.type: Recreate` is not offered: it would drop all Pods at once.
    let body = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": identity.name,
            "namespace": identity.namespace,
            "labels": labels,
            "ownerReferences": [{
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": identity.name,
                "uid": identity.uid,
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "selector": {"matchLabels": {LABEL_APP: identity.name}},
            "minReadySeconds": rollout.min_ready_seconds,
            "progressDeadlineSeconds": rollout.progress_deadline_seconds,
            "revisionHistoryLimit": rollout.revision_history_limit,
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable},
            },
            "template": template,
        },
    });
    let hash = canonical::hash(&body)?;
    Ok(Intent { body, hash })
}

/// The App's field behind a field of its Deployment, for the API server's words about the Deployment.
pub fn app_path(path: &str, spec: &AppSpec) -> String {
    for (prefix, ours) in [
        ("spec.strategy.rollingUpdate.", "spec.rollout."),
        ("spec.minReadySeconds", "spec.rollout.minReadySeconds"),
        ("spec.progressDeadlineSeconds", "spec.rollout.progressDeadlineSeconds"),
        ("spec.revisionHistoryLimit", "spec.rollout.revisionHistoryLimit"),
    ] {
        if let Some(rest) = path.strip_prefix(prefix) {
            return format!("{ours}{rest}");
        }
    }
    // The main container is the first of the merged list, see `Workload::new`.
    let Some(field) = path.strip_prefix("spec.template.spec.containers[0].") else {
        return path.to_owned();
    };
    let name = field.split(['.', '[']).next().unwrap_or_default();
    let own = main_container(spec).get(name).is_some();
    let in_template = spec
        .template
        .as_ref()
        .and_then(|template| template.get("spec")?.get("containers")?.as_array())
        .and_then(|containers| containers.iter().find(|container| container["name"] == MAIN_CONTAINER))
        .is_some_and(|container| container.get(name).is_some());
    if own && !in_template { format!("spec.{field}") } else { path.to_owned() }
}

fn labels(identity: &Identity) -> Map<String, Value> {
    [
        (LABEL_APP, identity.name.as_str()),
        (LABEL_NAME, identity.name.as_str()),
        (LABEL_INSTANCE, identity.name.as_str()),
        (LABEL_MANAGED_BY, FIELD_MANAGER),
    ]
    .into_iter()
    .map(|(label, value)| (label.to_owned(), Value::from(value)))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_words_about_the_deployment_point_at_the_app() {
        let spec: AppSpec = serde_json::from_value(json!({
            "image": "i",
            "env": [{"name": "A"}],
            "template": {"spec": {"containers": [{"name": "app", "env": [{"name": "B"}]}]}},
        }))
        .unwrap();
        for (path, wanted) in [
            ("spec.template.spec.containers[0].image", "spec.image"),
            ("spec.template.spec.containers[0].env[0].name", "spec.template.spec.containers[0].env[0].name"),
            ("spec.template.spec.containers[0].workingDir", "spec.template.spec.containers[0].workingDir"),
            ("spec.template.spec.containers[1].image", "spec.template.spec.containers[1].image"),
            ("spec.strategy.rollingUpdate.maxSurge", "spec.rollout.maxSurge"),
            ("spec.minReadySeconds", "spec.rollout.minReadySeconds"),
            ("spec.template.spec.volumes[0].name", "spec.template.spec.volumes[0].name"),
        ] {
            assert_eq!(app_path(path, &spec), wanted);
        }
    }
}
