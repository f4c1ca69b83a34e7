//! What `sentry-lab` promises: nothing survives it, however it ends.
#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use common::{API, eventually, lives};
use kubesentry_lab::{Lab, LabError, LabState, Signal, binary, cache_root, running};
use tokio::time::sleep;

/// The command, outside of any surrounding test run.
fn sentry_lab(args: &[&str]) -> Command {
    let mut command = Command::new(binary("sentry-lab").expect("the command"));
    command.args(args).env_remove(kubesentry_lab::SHARED_ENV).stdin(Stdio::null());
    command
}

/// Kills it should the test fail.
struct Guard(std::process::Child);

impl Guard {
    fn spawn(args: &[&str]) -> Self {
        Self(sentry_lab(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a process"))
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.0.id()).ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
        rustix::process::kill_process(pid, signal).expect("a signal");
    }

    async fn end(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the process ending", async || {
            status = self.0.try_wait().expect("a status");
            status.is_some()
        })
        .await;
        status.expect("a status")
    }

    /// The lab it holds, once ready.
    async fn lab(&self) -> (PathBuf, LabState) {
        let mut found = None;
        eventually("a lab", async || {
            found = running().expect("labs").into_iter().find_map(|l| {
                let state = l.state.filter(|s| s.owner_pid == self.0.id() && s.ready)?;
                Some((l.dir, state))
            });
            found.is_some()
        })
        .await;
        found.expect("a lab")
    }

    /// Folders and processes of labs with a unique name that it started.
    fn left(&self) -> Vec<String> {
        let prefix = cache_root().expect("a cache").join("labs").join(format!("lab-{}-", self.0.id()));
        let prefix = prefix.to_string_lossy().into_owned();
        let names = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
        let folders =
            names(Path::new(&prefix).parent().expect("a folder")).map(|p| p.to_string_lossy().into_owned());
        let commands = names(Path::new("/proc"))
            .filter_map(|p| std::fs::read(p.join("cmdline")).ok())
            .map(|c| String::from_utf8_lossy(&c).replace('\0', " "));
        folders.chain(commands).filter(|line| line.contains(&prefix)).collect()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_killed_owner_takes_servers_and_command_with_it_and_its_folder_is_swept() {
    let mut owner = Guard::spawn(&["test", "--layer", "api-gc", "--", "sleep", "61.25"]);
    let (dir, state) = owner.lab().await;
    assert_eq!(state.pids.values().filter(|p| lives(**p)).count(), 3);
    owner.signal(Signal::KILL);
    owner.end().await;
    eventually("the servers gone", async || !state.pids.values().any(|p| lives(*p))).await;
    assert!(dir.exists(), "nobody was left to remove it");
    Lab::start(API).await.expect("a lab").stop().await.expect("a stop");
    assert!(!dir.exists(), "the next start sweeps it");
}

#[tokio::test]
async fn an_interrupt_at_any_moment_of_the_start_leaves_nothing() {
    for milliseconds in [0, 60, 250, 900, 2_000] {
        let mut owner = Guard::spawn(&["test", "--layer", "api", "--", "sleep", "30"]);
        // The handlers are installed first of all; before that there is nothing to clean up.
        sleep(Duration::from_millis(milliseconds)).await;
        owner.signal(Signal::INT);
        let status = owner.end().await;
        assert!(!status.success(), "after {milliseconds} ms: {status}");
        assert_eq!(owner.left(), Vec::<String>::new(), "after {milliseconds} ms");
    }
    let status = sentry_lab(&["test", "--layer", "api", "--", "true"]).status().expect("a status");
    assert!(status.success());
}

#[tokio::test]
async fn a_command_gives_its_exit_code_and_leaves_no_process() {
    let script = "sleep 62.25 & trap '' TERM; (sleep 62.25 & exit 0); exit 7";
    let out = sentry_lab(&["test", "--layer", "api", "--", "sh", "-c", script]).output().expect("an output");
    assert_eq!(out.status.code(), Some(7), "{}", String::from_utf8_lossy(&out.stderr));
    let sleeping = std::fs::read_dir("/proc")
        .expect("/proc")
        .flatten()
        .any(|e| std::fs::read(e.path().join("cmdline")).is_ok_and(|c| c == b"sleep\x0062.25\0"));
    assert!(!sleeping);
    let out = sentry_lab(&["test", "--layer", "api", "--", "no-such-program"]).output().expect("an output");
    assert_eq!(out.status.code(), Some(127));
    assert!(String::from_utf8_lossy(&out.stderr).contains("can't start the program"));
}

#[tokio::test]
async fn a_terminated_run_ends_its_command_first() {
    let mut owner = Guard::spawn(&["test", "--layer", "api", "--", "sleep", "30"]);
    let (_, state) = owner.lab().await;
    owner.signal(Signal::TERM);
    assert_eq!(owner.end().await.code(), Some(143));
    assert!(!state.pids.values().any(|p| lives(*p)));
    assert_eq!(owner.left(), Vec::<String>::new());
}

#[tokio::test]
async fn up_outlives_its_command_until_down() {
    let name = format!("t-{}", std::process::id());
    let said = |args: &[&str]| {
        let out = sentry_lab(args).output().expect("an output");
        (
            out.status.code(),
            String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr),
        )
    };
    let (code, text) = said(&["up", "--name", &name, "--layer", "api"]);
    assert_eq!(code, Some(0), "{text}");
    let again = said(&["up", "--name", &name, "--layer", "api"]);
    assert!(again.0 == Some(0) && again.1.contains("already up"), "{again:?}");
    assert!(said(&["list"]).1.contains(&name));
    let namespaces = said(&["kubectl", "--name", &name, "--", "get", "namespaces"]);
    assert!(namespaces.0 == Some(0) && namespaces.1.contains("kube-system"), "{namespaces:?}");
    let lab = Lab::attach_named(&name).await.expect("an attached lab");
    let down = said(&["down", "--name", &name]);
    assert_eq!(down.0, Some(0), "{}", down.1);
    assert!(!lab.dir().exists());
    assert!(!lab.state().pids.values().any(|p| lives(*p)));
    assert_eq!(said(&["down", "--name", &name]).0, Some(1));
    assert!(matches!(Lab::attach_named(&name).await, Err(LabError::NotRunning { .. })));
}
