//! [`Lab`]: a control plane this process started, attached to, or was pointed at.
//!
//! Puts together what the other modules know: folder and lock, programs, certificates, servers, readiness. An owned
//! lab ends with its owner, however that ends. Called by tests, by the command `sentry-lab`, by benches and the demo.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::existing::Existing;
use crate::servers::{Plan, Servers};
use crate::workdir::{self, WorkDir};
use crate::{
    Assets, AuditLog, LabError, LabState, Layer, Mark, Program, client, kubeconfig, launch, ready, servers,
    unique,
};

/// Names the folder of the control plane shared by a test run; set by `sentry-lab test`.
pub const SHARED_ENV: &str = "KUBESENTRY_LAB";

/// What to start.
#[derive(Debug, Clone, Default)]
pub struct LabOptions {
    /// How much of a control plane.
    pub layer: Layer,
    /// Its name and its folder's; a unique one where `None`.
    pub name: Option<String>,
    /// Whether etcd waits for the disk. `false` is faster and right for tests; benches want `true`.
    pub fsync: bool,
}

/// A control plane.
#[derive(Debug)]
pub struct Lab {
    kind: Kind,
    dir: PathBuf,
    kubeconfig: PathBuf,
    state: LabState,
}

#[derive(Debug)]
enum Kind {
    /// Servers before the folder: they are dropped in this order.
    Owned {
        servers: Servers,
        plan: Plan,
        work: WorkDir,
    },
    Attached,
    Existing(Existing),
}

impl Lab {
    /// Starts a control plane and waits until it has shown that it works; usually 2.5 s. Builds the programs first
    /// where there are none (minutes, once). Cancel-safe: dropping the future stops everything and removes the folder.
    pub async fn start(o: LabOptions) -> Result<Self, LabError> {
        if !cfg!(target_os = "linux") {
            return Err(LabError::UnsupportedSystem { os: std::env::consts::OS });
        }
        let mut needed = vec![Program::Etcd, Program::KubeApiserver, Program::Kubectl];
        if o.layer == Layer::ApiGc {
            needed.push(Program::KubeControllerManager);
        }
        let assets = Assets::ensure(&needed).await?;
        let mut work = WorkDir::create(o.name.as_deref())?;
        let started = launch::start_in(work.path(), &o, assets).await;
        match started {
            Ok((servers, plan, state)) => {
                let dir = work.path().to_owned();
                let kubeconfig = launch::admin_kubeconfig(&dir);
                Ok(Self { kind: Kind::Owned { servers, plan, work }, dir, kubeconfig, state })
            }
            Err(error) => {
                work.keep_logs();
                Err(error)
            }
        }
    }

    /// Attaches to a control plane another process owns, by its folder.
    pub async fn attach(dir: &Path) -> Result<Self, LabError> {
        let gone = |why: &str| LabError::NotRunning { dir: dir.to_owned(), why: why.to_owned() };
        if !workdir::is_held(dir) {
            return Err(gone("no process owns it"));
        }
        let state = LabState::read(dir).map_err(|e| gone(&e.to_string()))?;
        if !state.ready {
            return Err(gone("it is still starting"));
        }
        let kind = if state.existing { Kind::Existing(Existing::load(dir)?) } else { Kind::Attached };
        let lab = Self { kind, dir: dir.to_owned(), kubeconfig: launch::admin_kubeconfig(dir), state };
        let admin = lab.admin().await?;
        match tokio::time::timeout(Duration::from_secs(10), admin.apiserver_version()).await {
            Ok(answer) => answer.map(|_| lab).map_err(LabError::kube("reach the API server of the lab")),
            Err(_) => Err(gone("its API server doesn't answer within 10 s")),
        }
    }

    /// Attaches to the lab of this name (`sentry-lab up --name NAME`).
    pub async fn attach_named(name: &str) -> Result<Self, LabError> {
        Self::attach(&workdir::dir_of(name)?).await
    }

    /// The control plane shared by a test run, as set up by `sentry-lab test`.
    pub async fn shared() -> Result<Self, LabError> {
        match std::env::var_os(SHARED_ENV).filter(|v| !v.is_empty()) {
            Some(dir) => Self::attach(Path::new(&dir)).await,
            None => Err(LabError::NotShared),
        }
    }

    /// A cluster somebody else runs: `context` of `kubeconfig`. One of the two must be named: without a context the
    /// file's current one is used, without a file the default one is read. Writes nothing to the cluster.
    pub fn existing(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Self, LabError> {
        let work = WorkDir::create(None)?;
        let dir = work.path().to_owned();
        let existing = Existing::open(work, kubeconfig, context)?;
        let users = dir.join("users");
        std::fs::create_dir(&users).map_err(LabError::io("create the folder", &users))?;
        let state = LabState {
            name: launch::name_of(&dir),
            layer: Layer::ApiGc,
            ready: true,
            supervised: false,
            existing: true,
            owner_pid: std::process::id(),
            pids: BTreeMap::new(),
            api_url: existing.server.clone(),
            etcd_url: String::new(),
            assets: Assets::find(&[Program::Kubectl]).map(|l| l.assets).unwrap_or_default(),
            started_at: Timestamp::now(),
        };
        state.write(&dir)?;
        Ok(Self { kubeconfig: launch::admin_kubeconfig(&dir), kind: Kind::Existing(existing), dir, state })
    }

    /// Its folder. An owned lab's goes when the lab stops.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What it says of itself.
    pub fn state(&self) -> &LabState {
        &self.state
    }

    /// `https://127.0.0.1:PORT`.
    pub fn api_url(&self) -> &str {
        &self.state.api_url
    }

    /// `http://127.0.0.1:PORT`; empty for an existing cluster.
    pub fn etcd_url(&self) -> &str {
        &self.state.etcd_url
    }

    /// The administrator's kubeconfig file (`system:masters`: exempt from priority and fairness, and from the 403s
    /// after a restart; measure and test as a plain user).
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A kubeconfig file (0600) for a user with up to two groups: a client certificate of the lab's CA, or
    /// impersonation on an existing cluster. The same file each time; several processes may ask at once.
    pub fn kubeconfig_for(&self, user: &str, groups: &[&str]) -> Result<PathBuf, LabError> {
        let path = kubeconfig::file_for(&self.dir, user, groups);
        if path.exists() {
            return Ok(path);
        }
        match &self.kind {
            Kind::Existing(existing) => existing.write_user(&path, user, groups)?,
            _ => launch::write_kubeconfig(&self.dir, &self.state.api_url, &path, user, groups)?,
        }
        Ok(path)
    }

    /// A client of the administrator, without default retries.
    pub async fn admin(&self) -> Result<Client, LabError> {
        client::client_with(&self.kubeconfig, self.has_audit()).await
    }

    /// A client of a user, without default retries; see [`Lab::kubeconfig_for`].
    pub async fn client_for(&self, user: &str, groups: &[&str]) -> Result<Client, LabError> {
        client::client_with(&self.kubeconfig_for(user, groups)?, self.has_audit()).await
    }

    /// The lab's kubectl as administrator. On an own control plane it inherits nothing that could redirect it, and
    /// writes nothing outside the lab's folder.
    pub fn kubectl(&self) -> Command {
        let mut command =
            Command::new(self.state.assets.path(Program::Kubectl).unwrap_or(Path::new("kubectl")));
        if self.has_audit() {
            command.env_clear();
            let kept = ["PATH", "TERM", "LANG", "LC_ALL", "TZ", "EDITOR", "VISUAL", "PAGER"];
            command.envs(kept.iter().filter_map(|k| std::env::var_os(k).map(|v| (k, v))));
            command.env("HOME", &self.dir);
        }
        command
            .env("KUBECONFIG", &self.kubeconfig)
            .env("KUBECACHEDIR", self.dir.join("kubectl-cache"))
            .env("KUBECTL_KUBERC", "false");
        command
    }

    /// Creates a namespace with a unique name for one test: `<prefix>-<5 letters>`.
    pub async fn namespace(&self, prefix: &str) -> Result<String, LabError> {
        let metadata = ObjectMeta { generate_name: Some(format!("{prefix}-")), ..ObjectMeta::default() };
        let namespaces: Api<Namespace> = Api::all(self.admin().await?);
        let namespace = Namespace { metadata, ..Namespace::default() };
        let made = namespaces.create(&PostParams::default(), &namespace).await;
        Ok(made.map_err(LabError::kube("create a namespace"))?.metadata.name.unwrap_or_default())
    }

    /// Whether the audit log can be read: not on an existing cluster.
    pub fn has_audit(&self) -> bool {
        !matches!(self.kind, Kind::Existing(_))
    }

    /// The audit log. On an existing cluster each of its methods answers [`LabError::NoAudit`].
    pub fn audit(&self) -> AuditLog {
        AuditLog::at(self.has_audit().then(|| servers::audit_log(&self.dir)))
    }

    /// Waits until everything answered so far is in the audit log; gives the position after it. Costs one request
    /// of the administrator.
    pub async fn audit_settled(&self) -> Result<Mark, LabError> {
        const LIMIT: Duration = Duration::from_secs(10);
        let audit = self.audit();
        let before = audit.mark()?;
        let path = format!("/version?lab-mark={}", unique::token());
        let request = http::Request::get(&path).body(Vec::new());
        let request = request.map_err(|e| LabError::kube("make a request")(kube::Error::HttpError(e)))?;
        let admin = self.admin().await?;
        admin.request_text(request).await.map_err(LabError::kube("write a mark into the audit log"))?;
        let deadline = tokio::time::Instant::now() + LIMIT;
        while tokio::time::Instant::now() < deadline {
            if audit.since(&before)?.iter().any(|e| e.uri == path) {
                return audit.mark();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let (last, dir) = ("the mark is not there".to_owned(), self.dir.clone());
        Err(LabError::NotReady { what: "a request appearing in the audit log", waited: LIMIT, last, dir })
    }

    /// Kills the API server (SIGKILL), starts it again on the same port and store, and waits until it is ready.
    pub async fn restart_api_server(&mut self) -> Result<(), LabError> {
        let admin = self.admin().await?;
        let plain = self.client_for(launch::PLAIN_USER, &[]).await?;
        let Kind::Owned { servers, plan, .. } = &mut self.kind else {
            return Err(self.not_owned("restart the API server"));
        };
        plan.restart_api_server(servers).await?;
        self.state.pids = servers.pids().collect();
        self.state.write(&self.dir)?;
        ready::api(servers, &admin, &plain).await
    }

    /// Says in the state file that `sentry-lab up` holds this lab, so that `down` may stop it.
    pub fn set_supervised(&mut self) -> Result<(), LabError> {
        self.state.supervised = true;
        self.state.write(&self.dir)
    }

    /// Fails if one of the servers of an owned lab has ended.
    pub fn check(&mut self) -> Result<(), LabError> {
        match &mut self.kind {
            Kind::Owned { servers, .. } => servers.still_run(),
            _ => Ok(()),
        }
    }

    /// Keeps the logs of an owned lab for a day when it is stopped or dropped: for looking into a failure.
    pub fn keep_logs(&mut self) {
        if let Kind::Owned { work, .. } = &mut self.kind {
            work.keep_logs();
        }
    }

    /// Stops an owned lab in reverse order and removes its folder.
    pub async fn stop(self) -> Result<(), LabError> {
        let Self { kind, dir, .. } = self;
        match kind {
            Kind::Owned { servers, work, .. } => {
                servers.stop().await;
                drop(work);
                Ok(())
            }
            Kind::Existing(_) => Ok(()),
            Kind::Attached => Err(LabError::NotOwned { doing: "stop the control plane", dir }),
        }
    }

    fn not_owned(&self, doing: &'static str) -> LabError {
        LabError::NotOwned { doing, dir: self.dir.clone() }
    }
}
