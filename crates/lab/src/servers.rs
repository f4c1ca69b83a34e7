//! The command lines of the servers, and starting them in order.
//!
//! The flags are those of a single-node control plane on 127.0.0.1 with RBAC, audit log on. A server that dies at its
//! start because somebody took its port is started again with other ports. Knows nothing of clients or of what
//! "ready" means. Called by control_plane.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::pki::Pki;
use crate::{Assets, Child, ChildSpec, LabError, Program, ports};

/// All requests, without bodies, once when answered.
const AUDIT_POLICY: &str = r#"{"apiVersion":"audit.k8s.io/v1","kind":"Policy","omitStages":["RequestReceived"],"rules":[{"level":"Metadata"}]}
"#;

/// How long a server gets between SIGTERM and SIGKILL. The API server drains for some seconds.
const GRACE: Duration = Duration::from_secs(8);

/// What a lab is made of, before and while it runs.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) dir: PathBuf,
    pub(crate) assets: Assets,
    pub(crate) fsync: bool,
    pub(crate) pki: Pki,
}

/// The ports of one control plane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ports {
    pub(crate) etcd: u16,
    pub(crate) peer: u16,
    pub(crate) api: u16,
}

/// The servers that run. Fields in the order they must be stopped in, which is also the order they are dropped in.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) controllers: Option<Child>,
    pub(crate) api: Child,
    pub(crate) etcd: Child,
    pub(crate) ports: Ports,
}

impl Plan {
    pub(crate) fn audit_log(&self) -> PathBuf {
        audit_log(&self.dir)
    }

    fn program(&self, program: Program) -> Result<&Path, LabError> {
        self.assets.path(program).ok_or_else(|| LabError::AssetMissing {
            variable: "the lab's layer".to_owned(),
            program: program.name(),
            path: self.dir.join(program.name()),
        })
    }

    fn spec(&self, program: Program) -> Result<ChildSpec, LabError> {
        let log = self.dir.join(format!("{}.log", program.name()));
        let spec = ChildSpec { clean_env: true, ..ChildSpec::new(self.program(program)?, log) };
        Ok(spec.env("HOME", &self.dir))
    }

    fn etcd(&self, ports: Ports) -> Result<ChildSpec, LabError> {
        let (client, peer) = (etcd_url(ports), format!("http://127.0.0.1:{}", ports.peer));
        let mut args = vec![
            "--name=lab".to_owned(),
            format!("--data-dir={}", self.dir.join("etcd").display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=lab={peer}"),
        ];
        if !self.fsync {
            args.push("--unsafe-no-fsync".to_owned());
        }
        Ok(self.spec(Program::Etcd)?.args(args))
    }

    fn api_server(&self, ports: Ports) -> Result<ChildSpec, LabError> {
        let policy = self.dir.join("audit-policy.json");
        std::fs::write(&policy, AUDIT_POLICY).map_err(LabError::io("write", &policy))?;
        let file = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
        let pki = &self.pki;
        Ok(self.spec(Program::KubeApiserver)?.args([
            format!("--etcd-servers={}", etcd_url(ports)),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", ports.api),
            file("tls-cert-file", &pki.server()),
            file("tls-private-key-file", &pki.server_key()),
            file("client-ca-file", &pki.ca()),
            "--authorization-mode=RBAC".to_owned(),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            file("service-account-key-file", &pki.token_public_key()),
            file("service-account-signing-key-file", &pki.token_key()),
            file("cert-dir", &self.dir.join("apiserver-certs")),
            "--allow-privileged=true".to_owned(),
            // Pods need no service account here, and no controller makes the default one.
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            // Loopback addresses are refused in Endpoints: it would fail and log every ten seconds.
            "--endpoint-reconciler-type=none".to_owned(),
            file("audit-policy-file", &policy),
            file("audit-log-path", &self.audit_log()),
            "--audit-log-format=json".to_owned(),
            // MiB; high, because positions in the log must stay valid.
            "--audit-log-maxsize=4096".to_owned(),
        ]))
    }

    fn controller_manager(&self, kubeconfig: &Path) -> Result<ChildSpec, LabError> {
        let file = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
        Ok(self.spec(Program::KubeControllerManager)?.args([
            file("kubeconfig", kubeconfig),
            file("authentication-kubeconfig", kubeconfig),
            file("authorization-kubeconfig", kubeconfig),
            file("service-account-private-key-file", &self.pki.token_key()),
            file("root-ca-file", &self.pki.ca()),
            "--use-service-account-credentials=true".to_owned(),
            "--leader-elect=false".to_owned(),
            // Nobody asks it anything: it needs no port.
            "--secure-port=0".to_owned(),
            file("cert-dir", &self.dir.join("controller-manager-certs")),
            "--controllers=garbage-collector-controller,namespace-controller".to_owned(),
            // Its own limit of 20 requests/s would make a mass deletion take minutes.
            "--kube-api-qps=1000".to_owned(),
            "--kube-api-burst=2000".to_owned(),
        ]))
    }

    /// Starts etcd and then the API server on ports of their own, and waits until etcd listens.
    pub(crate) async fn start(&self) -> Result<Servers, LabError> {
        const ATTEMPTS: u32 = 5;
        let mut attempt = 1;
        loop {
            match self.start_on(ports::hold(3)?).await {
                Err(error) if attempt < ATTEMPTS && is_port_clash(&error) => {
                    attempt += 1;
                    let data = self.dir.join("etcd");
                    if data.exists() {
                        std::fs::remove_dir_all(&data).map_err(LabError::io("remove", &data))?;
                    }
                }
                other => return other,
            }
        }
    }

    async fn start_on(&self, mut held: Vec<ports::Held>) -> Result<Servers, LabError> {
        let mut next = || held.pop().ok_or_else(ports::none_left);
        let (etcd, peer, api) = (next()?, next()?, next()?);
        let ports = Ports { etcd: etcd.release(), peer: peer.release(), api: api.port() };
        let mut etcd = Child::spawn(self.etcd(ports)?)?;
        self.wait_for_port(&mut etcd, ports.etcd, "etcd listening").await?;
        let command = self.api_server(ports)?;
        api.release();
        let api = Child::spawn(command)?;
        let mut servers = Servers { controllers: None, api, etcd, ports };
        self.wait_for_port(&mut servers.api, ports.api, "kube-apiserver listening").await?;
        Ok(servers)
    }

    async fn wait_for_port(&self, child: &mut Child, port: u16, what: &'static str) -> Result<(), LabError> {
        const LIMIT: Duration = Duration::from_mins(1);
        let deadline = tokio::time::Instant::now() + LIMIT;
        while !ports::is_listening(child.pid(), port) {
            still_runs(child)?;
            if tokio::time::Instant::now() >= deadline {
                let (last, dir) = (format!("it does not listen on port {port}"), self.dir.clone());
                return Err(LabError::NotReady { what, waited: LIMIT, last, dir });
            }
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
        Ok(())
    }

    pub(crate) fn start_controllers(&self, servers: &mut Servers, kubeconfig: &Path) -> Result<(), LabError> {
        servers.controllers = Some(Child::spawn(self.controller_manager(kubeconfig)?)?);
        Ok(())
    }

    /// Kills the API server (SIGKILL) and starts it again on the same port, with the same store.
    pub(crate) async fn restart_api_server(&self, servers: &mut Servers) -> Result<(), LabError> {
        servers.api.kill();
        servers.api = Child::spawn(self.api_server(servers.ports)?)?;
        self.wait_for_port(&mut servers.api, servers.ports.api, "kube-apiserver listening again").await
    }
}

impl Servers {
    /// Fails if one of them has ended.
    pub(crate) fn still_run(&mut self) -> Result<(), LabError> {
        still_runs(&mut self.etcd)?;
        still_runs(&mut self.api)?;
        self.controllers.as_mut().map_or(Ok(()), still_runs)
    }

    /// Process ids by program name.
    pub(crate) fn pids(&self) -> impl Iterator<Item = (String, u32)> {
        let all = [Some(&self.etcd), Some(&self.api), self.controllers.as_ref()];
        all.into_iter().flatten().map(|c| (name(c), c.pid()))
    }

    /// Stops them in reverse order: the API server doesn't end on SIGTERM once etcd is gone.
    pub(crate) async fn stop(mut self) {
        if let Some(controllers) = &mut self.controllers {
            controllers.terminate_in_place(GRACE).await;
        }
        self.api.terminate_in_place(GRACE).await;
        self.etcd.terminate_in_place(GRACE).await;
    }
}

pub(crate) fn audit_log(dir: &Path) -> PathBuf {
    dir.join("audit.log")
}

pub(crate) fn api_url(ports: Ports) -> String {
    format!("https://127.0.0.1:{}", ports.api)
}

pub(crate) fn etcd_url(ports: Ports) -> String {
    format!("http://127.0.0.1:{}", ports.etcd)
}

fn name(child: &Child) -> String {
    child.program().file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
}

fn still_runs(child: &mut Child) -> Result<(), LabError> {
    let Some(status) = child.try_wait() else {
        return Ok(());
    };
    let text = std::fs::read(child.log()).unwrap_or_default();
    Err(LabError::ServerExited {
        server: name(child),
        status,
        last_line: telling_line(&String::from_utf8_lossy(&text)).to_owned(),
        log: child.log().to_owned(),
    })
}

/// The line that says why a server ended: the last that looks like an error, else the last.
fn telling_line(log: &str) -> &str {
    let mut lines = log.lines().rev().filter(|l| !l.trim().is_empty()).take(40);
    let last = lines.clone().next().unwrap_or("it said nothing");
    let error = |l: &&str| {
        l.starts_with("Error:")
            || l.starts_with("error:")
            || l.starts_with('F')
            || l.contains("\"level\":\"fatal\"")
    };
    lines.find(error).unwrap_or(last)
}

fn is_port_clash(error: &LabError) -> bool {
    let text = error.log().and_then(|log| std::fs::read(log).ok()).unwrap_or_default();
    tells_of_a_taken_port(&String::from_utf8_lossy(&text))
}

fn tells_of_a_taken_port(log: &str) -> bool {
    log.lines().rev().take(40).any(|l| l.contains("address already in use"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_telling_line_is_the_error_not_the_usage_after_it() {
        assert_eq!(
            telling_line("I0101 hello\nError: unknown flag: --x\nUsage: y\n"),
            "Error: unknown flag: --x"
        );
        assert_eq!(telling_line("one\ntwo\n\n"), "two");
        assert_eq!(telling_line(""), "it said nothing");
    }

    #[test]
    fn a_taken_port_is_told_from_other_deaths() {
        let etcd = r#"{"level":"fatal","msg":"discovery failed","error":"listen tcp 127.0.0.1:1: bind: address already in use"}"#;
        let api = "E1 \"command failed\" err=\"failed to create listener: failed to listen on 127.0.0.1:1: listen tcp 127.0.0.1:1: bind: address already in use\"";
        assert!(tells_of_a_taken_port(etcd) && tells_of_a_taken_port(api));
        assert!(!tells_of_a_taken_port("Error: unknown flag: --x"));
    }
}
