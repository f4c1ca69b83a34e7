//! What the acts do to the cluster: kubectl as a person runs it, and looks at objects as the API server has them.

use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kubesentry_lab::operator::{self, Operator};
use kubesentry_lab::{AuditEntry, Lab, LabError, Mark};
use serde_json::Value;

/// The namespace of the demo.
pub(super) const NAMESPACE: &str = "demo";

pub(super) struct Cluster<'a> {
    pub(super) lab: &'a Lab,
    pub(super) client: Client,
    pub(super) operator: Operator,
}

/// What kubectl printed, and whether it was content.
pub(super) struct Said {
    pub(super) ok: bool,
    pub(super) text: String,
}

impl<'a> Cluster<'a> {
    pub(super) async fn new(lab: &'a Lab, operator: Operator) -> Result<Self, LabError> {
        let cluster = Self { lab, client: lab.admin().await?, operator };
        cluster.kubectl(&["create", "namespace", NAMESPACE], None)?;
        Ok(cluster)
    }

    /// Runs kubectl in the demo's namespace.
    pub(super) fn kubectl(&self, args: &[&str], input: Option<&str>) -> Result<Said, LabError> {
        let failed =
            |error: std::io::Error| LabError::Operator { doing: "run kubectl", why: error.to_string() };
        let mut command = self.lab.kubectl();
        command.args(["--namespace", NAMESPACE]).args(args);
        let mut child = command
            .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        if let (Some(input), Some(mut pipe)) = (input, child.stdin.take()) {
            pipe.write_all(input.as_bytes()).map_err(failed)?;
        }
        let done = child.wait_with_output().map_err(failed)?;
        let mut text = String::from_utf8_lossy(&done.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&done.stderr));
        Ok(Said { ok: done.status.success(), text })
    }

    fn api(&self, namespace: &str, api_version: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = ApiResource {
            group: group.into(),
            version: version.into(),
            api_version: api_version.into(),
            kind: kind.into(),
            plural: plural.into(),
        };
        Api::namespaced_with(self.client.clone(), namespace, &resource)
    }

    async fn get(&self, api: Api<DynamicObject>, name: &str) -> Result<Option<Value>, LabError> {
        let failed =
            |error: kube::Error| LabError::Operator { doing: "read an object", why: error.to_string() };
        let object = api.get_opt(name).await.map_err(failed)?;
        Ok(object.and_then(|object| serde_json::to_value(object).ok()))
    }

    pub(super) async fn app(&self, name: &str) -> Result<Option<Value>, LabError> {
        self.get(self.api(NAMESPACE, "apps.sentry.io/v1alpha1", "App", "apps"), name).await
    }

    pub(super) async fn deployment(&self, name: &str) -> Result<Option<Value>, LabError> {
        self.get(kubesentry_lab::drift::deployments(self.client.clone(), NAMESPACE), name).await
    }

    /// The audit chunks of an App.
    pub(super) async fn chunks(&self, uid: &str) -> Result<Vec<Value>, LabError> {
        let failed = |error: kube::Error| LabError::Operator {
            doing: "list the audit chunks",
            why: error.to_string(),
        };
        let api = self.api(operator::NAMESPACE, "v1", "ConfigMap", "configmaps");
        let params = ListParams::default().labels(&format!("apps.sentry.io/audit-uid={uid}"));
        let list = api.list(&params).await.map_err(failed)?;
        Ok(list.items.into_iter().filter_map(|chunk| serde_json::to_value(chunk).ok()).collect())
    }

    /// Writes of the operator since a mark, events included.
    pub(super) async fn writes_since(&self, mark: &Mark) -> Result<Vec<AuditEntry>, LabError> {
        self.lab.audit_settled().await?;
        let entries = self.lab.audit().since(mark)?;
        Ok(entries.into_iter().filter(|entry| entry.user == operator::USER && entry.is_write()).collect())
    }

    /// Waits until the operator has written nothing for a second.
    pub(super) async fn rest(&self) -> Result<(), LabError> {
        let deadline = Instant::now() + super::PATIENCE;
        loop {
            let mark = self.lab.audit_settled().await?;
            tokio::time::sleep(Duration::from_secs(1)).await;
            if self.writes_since(&mark).await?.is_empty() || Instant::now() > deadline {
                return Ok(());
            }
        }
    }
}
