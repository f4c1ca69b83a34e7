//! Child processes that die with this process.
//!
//! Every child is started through the shim and from one thread that lives as long as the process, because the death
//! signal follows the *thread* that forked, not the process. Children have a process group of their own: Ctrl-C on a
//! terminal doesn't reach them, so that they can be stopped in order. Knows nothing of what the programs do. Called
//! by servers and build, and by tests that start the operator.

use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rustix::process::{Pid, kill_process, kill_process_group};

pub use rustix::process::Signal;

use crate::{LabError, binary, shim};

/// How a child is to be started.
#[derive(Debug, Clone, Default)]
pub struct ChildSpec {
    /// The program, by path or to be found in `PATH`.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Variables to set.
    pub env: Vec<(OsString, OsString)>,
    /// Start with an empty environment but for `PATH`, so that no proxy or CA setting of the caller leaks in.
    pub clean_env: bool,
    /// The file its standard output and error are appended to.
    pub log: PathBuf,
    /// The folder to start in; the caller's where `None`.
    pub cwd: Option<PathBuf>,
}

impl ChildSpec {
    /// A program that logs to a file.
    pub fn new(program: impl Into<PathBuf>, log: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), log: log.into(), ..Self::default() }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets a variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }
}

/// A running child. Dropping it kills it (SIGKILL to its process group).
#[derive(Debug)]
pub struct Child {
    inner: std::process::Child,
    program: PathBuf,
    log: PathBuf,
    own_group: bool,
    exited: Option<ExitStatus>,
}

impl Child {
    /// Starts a child in a process group of its own, its input closed and its output appended to `spec.log`.
    pub fn spawn(spec: ChildSpec) -> Result<Self, LabError> {
        let open = || {
            let log = std::fs::OpenOptions::new().create(true).append(true).open(&spec.log)?;
            Ok((log.try_clone()?, log))
        };
        let (out, err) = open().map_err(LabError::io("open the log file", &spec.log))?;
        let mut command = through_shim(&spec)?;
        command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        Self::start(command, spec, true)
    }

    /// Starts a child that shares this process's terminal and process group: the command a person waits for.
    /// `spec.log` is not used.
    pub fn spawn_foreground(spec: ChildSpec) -> Result<Self, LabError> {
        let command = through_shim(&spec)?;
        Self::start(command, spec, false)
    }

    fn start(command: Command, spec: ChildSpec, own_group: bool) -> Result<Self, LabError> {
        match spawn_on_thread(command) {
            Ok(inner) => Ok(Self { inner, program: spec.program, log: spec.log, own_group, exited: None }),
            Err(source) => Err(LabError::Spawn { program: spec.program, source }),
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.inner.id()
    }

    /// The program it runs.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Its log file.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// How it ended, or `None` while it runs.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        if self.exited.is_none() {
            self.exited = match self.inner.try_wait() {
                Ok(status) => status,
                // Somebody else reaped it: it is gone, how is unknown.
                Err(_) => Some(ExitStatus::from_raw(Signal::KILL.as_raw())),
            };
        }
        self.exited
    }

    /// Waits for its end, looking each 20 ms.
    pub async fn wait(&mut self) -> ExitStatus {
        loop {
            if let Some(status) = self.try_wait() {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Sends a signal to it alone (`Signal::STOP` pauses, `Signal::CONT` wakes); nothing where it has ended.
    pub fn signal(&mut self, signal: Signal) {
        if self.try_wait().is_none()
            && let Some(pid) = self.raw_pid()
        {
            // ESRCH can't happen before it is reaped, EPERM not for an own child.
            let _ = kill_process(pid, signal);
        }
    }

    /// Kills it at once (with its process group, where it has its own) and reaps it.
    pub fn kill(&mut self) {
        if self.try_wait().is_some() {
            return;
        }
        if let Some(pid) = self.raw_pid() {
            let _ = if self.own_group {
                kill_process_group(pid, Signal::KILL)
            } else {
                kill_process(pid, Signal::KILL)
            };
            // Between `fork` and `setpgid` there is no such group yet.
            let _ = kill_process(pid, Signal::KILL);
        }
        self.exited = Some(self.inner.wait().unwrap_or(ExitStatus::from_raw(Signal::KILL.as_raw())));
    }

    /// Asks it to end (SIGTERM), kills it after the grace.
    pub async fn terminate(mut self, grace: Duration) -> ExitStatus {
        self.terminate_in_place(grace).await
    }

    pub(crate) async fn terminate_in_place(&mut self, grace: Duration) -> ExitStatus {
        self.signal(Signal::TERM);
        let deadline = Instant::now() + grace;
        while Instant::now() < deadline {
            if let Some(status) = self.try_wait() {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.kill();
        self.exited.unwrap_or(ExitStatus::from_raw(Signal::KILL.as_raw()))
    }

    fn raw_pid(&self) -> Option<Pid> {
        i32::try_from(self.inner.id()).ok().and_then(Pid::from_raw)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

fn through_shim(spec: &ChildSpec) -> Result<Command, LabError> {
    let mut command = Command::new(binary("sentry-lab")?);
    command.arg(shim::FLAG).arg(std::process::id().to_string()).arg("--");
    command.arg(&spec.program).args(&spec.args);
    if spec.clean_env {
        command.env_clear();
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
    }
    command.envs(spec.env.iter().map(|(k, v)| (k, v)));
    if let Some(cwd) = &spec.cwd {
        command.current_dir(cwd);
    }
    Ok(command)
}

struct Request {
    command: Command,
    reply: mpsc::SyncSender<std::io::Result<std::process::Child>>,
}

/// The thread all children are forked from. It never ends, so the death signal means the end of the process.
static SPAWNER: Mutex<Option<mpsc::Sender<Request>>> = Mutex::new(None);

fn spawn_on_thread(command: Command) -> std::io::Result<std::process::Child> {
    let (reply, answer) = mpsc::sync_channel(1);
    {
        let mut spawner = SPAWNER.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = if let Some(sender) = spawner.as_ref() {
            sender
        } else {
            let (sender, requests) = mpsc::channel::<Request>();
            std::thread::Builder::new().name("lab-children".to_owned()).spawn(move || {
                for Request { mut command, reply } in requests {
                    let _ = reply.send(command.spawn());
                }
            })?;
            spawner.insert(sender)
        };
        sender.send(Request { command, reply }).map_err(std::io::Error::other)?;
    }
    answer.recv().map_err(std::io::Error::other)?
}
