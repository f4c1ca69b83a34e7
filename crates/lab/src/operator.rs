//! The operator in a lab: its CRD and roles installed, its process started as its own ServiceAccount's user.
//!
//! Knows the operator as a program and as the files in `config/`, never as a library. Called by tests, benches and the
//! demo, so that all of them run it in the same way: with the rights it has in a cluster, never as an administrator.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::{Child, ChildSpec, Lab, LabError, binary, hold};

/// The namespace of the operator.
pub const NAMESPACE: &str = "kubesentry-system";
/// The operator's user: its ServiceAccount.
pub const USER: &str = "system:serviceaccount:kubesentry-system:kubesentry";
const GROUPS: [&str; 2] = ["system:serviceaccounts", "system:serviceaccounts:kubesentry-system"];

/// What `config/default` installs besides the CRD and the Deployment of the operator.
const MANIFESTS: [&str; 11] = [
    include_str!("../../../config/manager/namespace.yaml"),
    include_str!("../../../config/rbac/service_account.yaml"),
    include_str!("../../../config/rbac/role.yaml"),
    include_str!("../../../config/rbac/role_binding.yaml"),
    include_str!("../../../config/rbac/audit_role.yaml"),
    include_str!("../../../config/rbac/audit_role_binding.yaml"),
    include_str!("../../../config/rbac/leader_election_role.yaml"),
    include_str!("../../../config/rbac/leader_election_role_binding.yaml"),
    include_str!("../../../config/rbac/app_admin_role.yaml"),
    include_str!("../../../config/rbac/app_editor_role.yaml"),
    include_str!("../../../config/rbac/app_viewer_role.yaml"),
];

/// Longest that the operator may take to be ready.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// Installs CRD and roles, and waits until the operator's user can list Apps. May be called again and again.
pub async fn install(lab: &Lab) -> Result<(), LabError> {
    let crd = std::process::Command::new(binary("kubesentry")?)
        .args(["manifests", "crd"])
        .output()
        .map_err(|error| failed("print the CRD", error.to_string()))?;
    let mut text = String::from_utf8_lossy(&crd.stdout).into_owned();
    for manifest in MANIFESTS {
        text.push_str("\n---\n");
        text.push_str(manifest);
    }
    let mut kubectl = lab.kubectl();
    kubectl.args(["apply", "--server-side", "--force-conflicts", "--field-manager=installer", "-f", "-"]);
    let mut child = kubectl
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed("start kubectl", error.to_string()))?;
    if let Some(mut input) = child.stdin.take() {
        // A kubectl that ended early says why below.
        let _ = input.write_all(text.as_bytes());
    }
    let done = child.wait_with_output().map_err(|error| failed("run kubectl", error.to_string()))?;
    if !done.status.success() {
        return Err(failed(
            "install the CRD and the roles",
            String::from_utf8_lossy(&done.stderr).into_owned(),
        ));
    }
    let client = lab.client_for(USER, &GROUPS).await?;
    let deadline = Instant::now() + READY_WITHIN;
    loop {
        let request = http::Request::get("/apis/apps.sentry.io/v1alpha1/apps?limit=1").body(Vec::new());
        let request = request.map_err(|error| failed("list Apps", error.to_string()))?;
        match client.request_text(request).await {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > deadline => return Err(failed("list Apps", error.to_string())),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// A running operator. Dropping it kills it.
#[derive(Debug)]
pub struct Operator {
    child: Child,
    health: SocketAddr,
    metrics: SocketAddr,
}

impl Operator {
    /// Starts the operator as the only one, without an election, and waits until it is ready. `name` names its log file in
    /// the lab's folder.
    pub async fn start(lab: &Lab, name: &str, flags: &[&str]) -> Result<Self, LabError> {
        Self::start_with(lab, name, &[&["--leader-elect=false"], flags].concat(), &[]).await
    }

    /// Starts the operator as one of several replicas, and waits until it is ready, whether it leads or not.
    pub async fn start_replica(lab: &Lab, name: &str, flags: &[&str]) -> Result<Self, LabError> {
        Self::start_with(lab, name, &[&[&*format!("--instance={name}")], flags].concat(), &[]).await
    }

    /// Starts the operator with these flags and variables, and waits until it is ready.
    pub async fn start_with(
        lab: &Lab,
        name: &str,
        flags: &[&str],
        env: &[(&str, &str)],
    ) -> Result<Self, LabError> {
        let ports: Vec<u16> = hold(2)?.into_iter().map(crate::Held::release).collect();
        let (health, metrics) = (address(ports.first()), address(ports.get(1)));
        let kubeconfig = lab.kubeconfig_for(USER, &GROUPS)?;
        let log = lab.dir().join(format!("{name}.log"));
        let spec = ChildSpec::new(binary("kubesentry")?, log)
            .args(["run", "--kubeconfig"])
            .args([kubeconfig])
            .args([format!("--health-address={health}"), format!("--metrics-address={metrics}")])
            .args(flags);
        let spec = env.iter().fold(spec, |spec, (name, value)| spec.env(name, value));
        let mut operator = Self { child: Child::spawn(spec)?, health, metrics };
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            match get(operator.health, "/readyz") {
                Ok((200, _)) => return Ok(operator),
                answer => {
                    if let Some(status) = operator.child.try_wait() {
                        return Err(failed(
                            "start the operator",
                            format!("it ended with {status}; {}", operator.tail()),
                        ));
                    }
                    if Instant::now() > deadline {
                        return Err(failed(
                            "see the operator ready",
                            format!("{answer:?}; {}", operator.tail()),
                        ));
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Its process.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Its log file.
    pub fn log(&self) -> &Path {
        self.child.log()
    }

    /// Asks for a path of its health server: status code and body.
    pub fn health(&self, path: &str) -> Result<(u16, String), LabError> {
        get(self.health, path).map_err(|error| failed("ask the operator's health server", error.to_string()))
    }

    /// The value of a metric, summed over all series whose line begins with `name`; 0 where there is none.
    pub fn metric(&self, name: &str) -> Result<f64, LabError> {
        let (_, text) = get(self.metrics, "/metrics")
            .map_err(|error| failed("read the operator's metrics", error.to_string()))?;
        let lines = text.lines().filter(|line| line.starts_with(name));
        Ok(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }

    /// Whether it leads at the moment; `false` where it doesn't answer.
    pub fn leads(&self) -> bool {
        self.metric("leader_election_master_status").is_ok_and(|leads| leads > 0.0)
    }

    /// Stops it as Kubernetes would (SIGTERM, then SIGKILL) and answers how it ended.
    pub async fn stop(self) -> std::process::ExitStatus {
        self.child.terminate(Duration::from_secs(20)).await
    }

    fn tail(&self) -> String {
        let log = std::fs::read_to_string(self.child.log()).unwrap_or_default();
        let last: Vec<&str> = log.lines().rev().take(5).collect();
        format!(
            "the end of {}: {}",
            self.child.log().display(),
            last.into_iter().rev().collect::<Vec<_>>().join(" | ")
        )
    }
}

fn address(port: Option<&u16>) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port.copied().unwrap_or_default()))
}

fn failed(doing: &'static str, why: String) -> LabError {
    LabError::Operator { doing, why }
}

/// One HTTP GET on loopback: status code and body.
fn get(address: SocketAddr, path: &str) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default();
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned();
    Ok((code, body))
}
