//! What the live tests share: the control plane of the run, one operator per test binary, and words to say what is done
//! and expected.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::needless_pass_by_value, reason = "a test may end here")]

use std::future::Future;
use std::time::Duration;

use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kubesentry_lab::operator::{self, Operator};
use kubesentry_lab::{AuditEntry, Lab, Mark};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// The cluster, and a namespace of the test's own.
pub struct World {
    pub lab: Lab,
    pub admin: Client,
    pub namespace: String,
}

/// One operator for all tests of a binary; it dies with the process.
static OPERATOR: OnceCell<Operator> = OnceCell::const_new();

impl World {
    /// A namespace on the shared control plane, CRD and roles installed, no operator.
    pub async fn without_operator(prefix: &str) -> Self {
        let lab = Lab::shared().await.unwrap();
        operator::install(&lab).await.unwrap();
        Self::on(lab, prefix).await
    }

    /// The same with this binary's operator running.
    pub async fn new(prefix: &str) -> Self {
        let world = Self::without_operator(prefix).await;
        world.operator().await;
        world
    }

    pub async fn on(lab: Lab, prefix: &str) -> Self {
        let admin = lab.admin().await.unwrap();
        let namespace = lab.namespace(prefix).await.unwrap();
        Self { lab, admin, namespace }
    }

    pub async fn operator(&self) -> &'static Operator {
        let flags = ["--export-deadline-seconds=6", "--log=info,kubesentry_operator=debug"];
        let name = format!("operator-{}", std::process::id());
        OPERATOR.get_or_init(|| async { Operator::start(&self.lab, &name, &flags).await.unwrap() }).await
    }

    pub fn api(&self, group: &str, version: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
        self.api_in(&self.namespace, group, version, kind, plural)
    }

    pub fn api_in(
        &self,
        namespace: &str,
        group: &str,
        version: &str,
        kind: &str,
        plural: &str,
    ) -> Api<DynamicObject> {
        let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        let resource = ApiResource {
            group: group.into(),
            version: version.into(),
            api_version,
            kind: kind.into(),
            plural: plural.into(),
        };
        Api::namespaced_with(self.admin.clone(), namespace, &resource)
    }

    pub fn apps(&self) -> Api<DynamicObject> {
        self.api("apps.sentry.io", "v1alpha1", "App", "apps")
    }

    pub fn deployments(&self) -> Api<DynamicObject> {
        self.api("apps", "v1", "Deployment", "deployments")
    }

    pub fn config_maps(&self) -> Api<DynamicObject> {
        self.api_in(operator::NAMESPACE, "", "v1", "ConfigMap", "configmaps")
    }

    pub async fn create_app(&self, name: &str, spec: Value) -> Value {
        let app = app(name, spec);
        value(
            self.apps().create(&PostParams::default(), &serde_json::from_value(app).unwrap()).await.unwrap(),
        )
    }

    pub async fn patch_app(&self, name: &str, patch: Value) -> Value {
        value(self.apps().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap())
    }

    /// A merge patch of a Deployment by somebody who isn't the operator.
    pub async fn patch_deployment(&self, name: &str, manager: &str, patch: Value) -> Value {
        let params = PatchParams { field_manager: Some(manager.into()), ..PatchParams::default() };
        value(self.deployments().patch(name, &params, &Patch::Merge(patch)).await.unwrap())
    }

    /// `kubectl scale deployment`.
    pub async fn scale(&self, name: &str, replicas: i32) {
        let params = PatchParams { field_manager: Some("kubectl".into()), ..PatchParams::default() };
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        self.deployments().patch_scale(name, &params, &patch).await.unwrap();
    }

    pub async fn app(&self, name: &str) -> Option<Value> {
        self.apps().get_opt(name).await.unwrap().map(value)
    }

    pub async fn deployment(&self, name: &str) -> Option<Value> {
        self.deployments().get_opt(name).await.unwrap().map(value)
    }

    /// Waits until the App's Deployment satisfies `holds`.
    pub async fn deployment_where(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(what, || async {
            let deployment = self.deployment(name).await;
            deployment.clone().filter(|deployment| holds(deployment)).ok_or(deployment)
        })
        .await
    }

    /// Waits until the App satisfies `holds`.
    pub async fn app_where(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(what, || async {
            let app = self.app(name).await;
            app.clone().filter(|app| holds(app)).ok_or(app)
        })
        .await
    }

    /// Waits until the App has a condition with that status and reason.
    pub async fn condition(&self, name: &str, kind: &str, status: &str, reason: &str) -> Value {
        let what = format!("{kind}={status} reason {reason}");
        let app = self
            .app_where(name, &what, |app| {
                condition(app, kind).is_some_and(|c| c["status"] == status && c["reason"] == reason)
            })
            .await;
        condition(&app, kind).unwrap()
    }

    /// Waits until the Deployment exists with that size.
    pub async fn size(&self, name: &str, replicas: i64) -> Value {
        self.deployment_where(name, &format!("{replicas} replicas"), |d| d["spec"]["replicas"] == replicas)
            .await
    }

    /// Waits until the App's status speaks of its newest generation and of the newest Deployment, and the operator has
    /// nothing to do any more: no write for a second.
    pub async fn quiet(&self) {
        let mut mark = self.lab.audit_settled().await.unwrap();
        for _ in 0..60 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let next = self.lab.audit_settled().await.unwrap();
            if self.writes_since(&mark).is_empty() {
                return;
            }
            mark = next;
        }
        panic!("the operator never came to rest");
    }

    /// Writes of the operator in this test's namespace since a mark; events don't count.
    pub fn writes_since(&self, mark: &Mark) -> Vec<AuditEntry> {
        let own = |entry: &AuditEntry| {
            entry.user == operator::USER
                && entry.is_write()
                && !entry.is_event()
                && entry.namespace == self.namespace
        };
        self.lab.audit().since(mark).unwrap().into_iter().filter(own).collect()
    }

    /// All requests of the operator in this test's namespace since a mark, reads and events too.
    pub fn requests_since(&self, mark: &Mark) -> Vec<AuditEntry> {
        let own = |entry: &AuditEntry| entry.user == operator::USER && entry.namespace == self.namespace;
        self.lab.audit().since(mark).unwrap().into_iter().filter(own).collect()
    }

    /// What the Deployment's own controller would report.
    pub async fn report_deployment(&self, name: &str, ready: i32, available: bool) {
        let live = self.deployment(name).await.unwrap();
        let replicas = live["spec"]["replicas"].as_i64().unwrap();
        let status = json!({"status": {
            "observedGeneration": live["metadata"]["generation"],
            "replicas": replicas,
            "updatedReplicas": replicas,
            "readyReplicas": ready,
            "availableReplicas": ready,
            "conditions": [
                {"type": "Available", "status": if available { "True" } else { "False" }, "reason": if available { "MinimumReplicasAvailable" } else { "MinimumReplicasUnavailable" }, "message": "as tested"},
                {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable", "message": "as tested"},
            ],
        }});
        let params =
            PatchParams { field_manager: Some("deployment-controller".into()), ..PatchParams::default() };
        self.deployments().patch_status(name, &params, &Patch::Merge(status)).await.unwrap();
    }

    pub async fn delete_app(&self, name: &str) {
        self.apps().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Waits until the App is gone.
    pub async fn gone(&self, name: &str) {
        eventually("the App is gone", || async {
            match self.app(name).await {
                None => Ok(()),
                Some(app) => Err(Some(app)),
            }
        })
        .await;
    }

    /// The audit chunks of an App, oldest first.
    pub async fn chunks(&self, uid: &str) -> Vec<Value> {
        let params = kube::api::ListParams::default().labels(&format!("apps.sentry.io/audit-uid={uid}"));
        let mut chunks: Vec<Value> =
            self.config_maps().list(&params).await.unwrap().items.into_iter().map(value).collect();
        chunks.sort_by_key(|chunk| chunk["data"]["firstSeq"].as_str().unwrap().parse::<u64>().unwrap());
        chunks
    }

    /// The records of an App's chunks, parsed.
    pub async fn records(&self, uid: &str) -> Vec<kubesentry_engine::audit::Record> {
        let chunks = self.chunks(uid).await;
        let lines = chunks.iter().flat_map(|chunk| chunk["data"]["records.jsonl"].as_str().unwrap().lines());
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// The audit records of an App that an operator printed because no sink took them.
pub fn printed_records(operator: &Operator, uid: &str) -> Vec<kubesentry_engine::audit::Record> {
    let log = std::fs::read_to_string(operator.log()).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let records = lines.filter_map(|line| serde_json::from_str(line["record"].as_str()?).ok());
    records.filter(|record: &kubesentry_engine::audit::Record| record.app.uid == uid).collect()
}

pub fn app(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "apps.sentry.io/v1alpha1", "kind": "App", "metadata": {"name": name}, "spec": spec})
}

pub fn value(object: DynamicObject) -> Value {
    serde_json::to_value(object).unwrap()
}

pub fn condition(app: &Value, kind: &str) -> Option<Value> {
    app["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == kind).cloned()
}

/// Waits until `look` answers; says what was seen last where it doesn't within 20 s.
pub async fn eventually<T, S, F>(what: &str, mut look: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, S>>,
    S: std::fmt::Debug,
{
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        match look().await {
            Ok(found) => return found,
            Err(seen) if tokio::time::Instant::now() > deadline => {
                panic!("not seen: {what}\nlast seen: {seen:#?}")
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}
