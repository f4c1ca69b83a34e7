//! What can go wrong in the lab, each with what, where, why and what to do next.
//!
//! Every message is one line, so that a test's failure and the command's stderr read the same. The module knows no
//! exit codes: `cli` maps errors to them. Used by every module of this crate.

use std::path::PathBuf;
use std::time::Duration;

/// An error of the lab.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// This machine isn't Linux.
    #[error(
        "the lab needs Linux (death signals, flock), this is {os}; run it in a Linux machine or container, or pass --kubeconfig to use an existing cluster"
    )]
    UnsupportedSystem {
        /// The system's name.
        os: &'static str,
    },
    /// Neither `XDG_CACHE_HOME` nor `HOME` is an absolute path.
    #[error(
        "no folder for the lab's cache: neither XDG_CACHE_HOME nor HOME is an absolute path; set XDG_CACHE_HOME"
    )]
    NoCacheFolder,
    /// A file operation failed.
    #[error("can't {doing} {}: {source}; check the permissions and the free space there", path.display())]
    Io {
        /// What was tried, in the infinitive.
        doing: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A binary of this workspace isn't there.
    #[error("the binary {name} is not in {}; build it with `make build` (or `cargo build --bin {name}`), or name its folder in {env}", looked.display(), env = crate::paths::BIN_DIR_ENV)]
    BinaryMissing {
        /// Its name.
        name: String,
        /// The folder that was looked at.
        looked: PathBuf,
    },
    /// `Lab::shared` was called outside of a test run.
    #[error("no shared control plane: {env} is not set; run `make test`, or `sentry-lab test -- cargo test -p <crate>`", env = crate::control_plane::SHARED_ENV)]
    NotShared,
    /// The operator could not be installed or run in the lab.
    #[error("can't {doing}: {why}")]
    Operator {
        /// What was tried, in the infinitive.
        doing: &'static str,
        /// Why not.
        why: String,
    },
    /// No lab runs in this folder.
    #[error("no lab runs in {}: {why}; see `sentry-lab list`, start one with `sentry-lab up`", dir.display())]
    NotRunning {
        /// The folder.
        dir: PathBuf,
        /// Why it is thought so.
        why: String,
    },
    /// A lab of this name runs already.
    #[error("a lab named {name} is already running in {}; pick another name, or stop it with `sentry-lab down --name {name}`", dir.display())]
    NameTaken {
        /// The name.
        name: String,
        /// Its folder.
        dir: PathBuf,
    },
    /// A lab's name can't be one.
    #[error("{name:?} can't be a lab's name: use 1 to 40 of a-z, 0-9 and -, starting with a letter")]
    BadName {
        /// The name.
        name: String,
    },
    /// A program given by the environment isn't there.
    #[error("{variable} is set but {} is not an executable file; put {program} there, or unset {variable} to let the lab build its own", path.display())]
    AssetMissing {
        /// The environment variable.
        variable: String,
        /// The program.
        program: &'static str,
        /// Where it was expected.
        path: PathBuf,
    },
    /// Go is needed and isn't there.
    #[error(
        "can't build the control plane: the `go` command was not found in PATH ({why}); install Go {needed} or newer, or set KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver, kube-controller-manager and kubectl"
    )]
    GoMissing {
        /// What starting it answered.
        why: std::io::Error,
        /// The version the tool modules ask for.
        needed: String,
    },
    /// Building a program failed.
    #[error("building {what} failed ({status}): {last_line}; the whole output is in {}", log.display())]
    BuildFailed {
        /// What was built.
        what: &'static str,
        /// How the compiler ended.
        status: std::process::ExitStatus,
        /// The last line it said.
        last_line: String,
        /// Where everything it said is.
        log: PathBuf,
    },
    /// A child process couldn't be started.
    #[error("can't start {}: {source}; is it an executable for this machine?", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A server ended although it should run.
    #[error("{server} ended unexpectedly ({status}): {last_line}; its log is {}", log.display())]
    ServerExited {
        /// Which.
        server: String,
        /// How it ended.
        status: std::process::ExitStatus,
        /// The most telling of its last lines.
        last_line: String,
        /// Its log file.
        log: PathBuf,
    },
    /// Something expected didn't happen in time.
    #[error("{what} did not happen within {} s (last answer: {last}); look at the logs in {}, and whether the machine is overloaded", waited.as_secs(), dir.display())]
    NotReady {
        /// What was waited for.
        what: &'static str,
        /// For how long.
        waited: Duration,
        /// The last answer seen.
        last: String,
        /// The lab's folder.
        dir: PathBuf,
    },
    /// No free ports.
    #[error("no {wanted} free ports on 127.0.0.1 between {} and {}: {why}; stop some labs (`sentry-lab list`)", range.0, range.1)]
    NoPorts {
        /// How many were wanted.
        wanted: usize,
        /// Where they were looked for.
        range: (u16, u16),
        /// What the last try answered.
        why: String,
    },
    /// A certificate couldn't be made.
    #[error("can't make a certificate for {subject}: {why}")]
    Certificate {
        /// Its subject.
        subject: String,
        /// Why.
        why: String,
    },
    /// A kubeconfig can't be used.
    #[error("can't use the kubeconfig {}: {why}; check the file and the context's name", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// A request to the API server failed.
    #[error("can't {doing}: {source}; is the lab still running? (`sentry-lab list`)")]
    Kube {
        /// What was tried, in the infinitive.
        doing: &'static str,
        /// Why.
        source: Box<kube::Error>,
    },
    /// The audit log of an existing cluster can't be read.
    #[error(
        "this cluster was not started by the lab, so its audit log can't be read; run without --kubeconfig to check claims about writes"
    )]
    NoAudit,
    /// A line of the audit log can't be read.
    #[error("the audit log {} has an unreadable entry at byte {position}: {why}; is another program writing to it?", path.display())]
    AuditLine {
        /// The file.
        path: PathBuf,
        /// Where the line starts.
        position: u64,
        /// Why.
        why: String,
    },
    /// Only the process that started a lab can do this.
    #[error("can't {doing}: this process attached to the lab in {}, another one owns it; start an own one with Lab::start", dir.display())]
    NotOwned {
        /// What was tried, in the infinitive.
        doing: &'static str,
        /// The lab's folder.
        dir: PathBuf,
    },
    /// A lab's state file can't be read.
    #[error("the state file {} can't be read: {why}; it was written by another version: stop that lab and start a new one", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
}

impl LabError {
    /// An input or output error with what was tried (in the infinitive) and where.
    pub fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { doing, path, source }
    }

    /// A failed request with what it was for.
    pub(crate) fn kube(doing: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Kube { doing, source: Box::new(source) }
    }

    /// The log file that tells more about this error.
    pub fn log(&self) -> Option<&std::path::Path> {
        match self {
            Self::BuildFailed { log, .. } | Self::ServerExited { log, .. } => Some(log),
            _ => None,
        }
    }
}
