//! `sentry-lab up`: a control plane that outlives the command, held by a supervisor detached from the terminal.
//!
//! The supervisor is this program again (`supervise`, hidden): it owns the lab, so the lab ends when it does. `up`
//! builds the programs first, where the progress can be seen, then waits until the lab says it is ready.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use kubesentry_lab::{Assets, Lab, LabError, LabOptions, LabState, Program, Running, cache_root, running};
use rustix::process::{Pid, Signal, kill_process, setsid};

use super::output;
use super::signals::{self, Signals};
use super::{DEFAULT_NAME, LayerArg};

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Args {
    /// The lab's name
    #[arg(long, default_value = DEFAULT_NAME)]
    name: String,
    /// How much of a control plane
    #[arg(long, value_enum, default_value = "api-gc")]
    layer: LayerArg,
    /// Let etcd wait for the disk, as in production
    #[arg(long)]
    fsync: bool,
}

impl Args {
    fn log(&self) -> Result<PathBuf, LabError> {
        Ok(cache_root()?.join(format!("up-{}.log", self.name)))
    }

    fn running(&self) -> Result<Option<Running>, LabError> {
        Ok(running()?.into_iter().find(|l| l.dir.ends_with(&self.name)))
    }
}

pub(super) async fn run(args: Args, signals: &mut Signals) -> Result<u8, LabError> {
    if let Some(lab) = args.running()? {
        return match &lab.state {
            Some(state) if state.supervised && state.layer == args.layer.into() => {
                output::tell("already up");
                explain(&args, &lab);
                Ok(0)
            }
            _ => Err(LabError::NameTaken { name: args.name, dir: lab.dir }),
        };
    }
    match signals.or(Assets::ensure(&Program::ALL)).await {
        Ok(assets) => output::tell(&format!("using {}", assets?.describe())),
        Err(code) => return Ok(code),
    }
    let mut supervisor = spawn(&args)?;
    let pid = supervisor.id();
    loop {
        if let Some(lab) = args.running()?
            && lab.state.as_ref().is_some_and(|s| s.owner_pid == pid && s.ready && s.supervised)
        {
            explain(&args, &lab);
            return Ok(0);
        }
        if let Ok(Some(status)) = supervisor.try_wait() {
            let log = args.log()?;
            output::tail(&log, 20);
            let _ = std::fs::remove_file(&log);
            output::complain(&format!("the lab did not start ({status}); see `sentry-lab doctor`"));
            return Ok(3);
        }
        if let Err(code) = signals.or(tokio::time::sleep(Duration::from_millis(50))).await {
            // It stops what it started, then ends.
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::TERM);
            }
            let _ = tokio::task::spawn_blocking(move || supervisor.wait()).await;
            let _ = std::fs::remove_file(args.log()?);
            return Ok(code);
        }
    }
}

fn spawn(args: &Args) -> Result<std::process::Child, LabError> {
    let path = args.log()?;
    let open = || {
        let log = std::fs::File::create(&path)?;
        Ok((log.try_clone()?, log))
    };
    let (out, err) = open().map_err(LabError::io("write the log", &path))?;
    let program = std::env::current_exe().map_err(LabError::io("find the path of", "this program"))?;
    let layer = if args.layer == LayerArg::Api { "api" } else { "api-gc" };
    let mut command = Command::new(&program);
    command.args(["supervise", "--name", &args.name, "--layer", layer]);
    if args.fsync {
        command.arg("--fsync");
    }
    command.stdin(Stdio::null()).stdout(out).stderr(err);
    command.spawn().map_err(|source| LabError::Spawn { program, source })
}

fn explain(args: &Args, lab: &Running) {
    let kubeconfig = lab.dir.join("admin.kubeconfig");
    let url = lab.state.as_ref().map_or("", |s: &LabState| s.api_url.as_str());
    let name = if args.name == DEFAULT_NAME { String::new() } else { format!(" --name {}", args.name) };
    output::tell(&format!("{url} is up; use it with"));
    output::tell(&format!("  export KUBECONFIG={}", kubeconfig.display()));
    output::tell(&format!("  sentry-lab kubectl{name} -- get namespaces"));
    output::tell(&format!("  sentry-lab down{name}"));
    output::print(&kubeconfig.display().to_string());
}

/// Holds a lab until it is told to end.
pub(super) async fn supervise(args: Args, signals: &mut Signals) -> Result<u8, LabError> {
    // Detached from the terminal: closing it or Ctrl-C there doesn't reach the lab.
    let _ = setsid();
    let options = LabOptions { layer: args.layer.into(), name: Some(args.name.clone()), fsync: args.fsync };
    let mut lab = match signals.or(Lab::start(options)).await {
        Ok(lab) => lab?,
        Err(code) => return Ok(code),
    };
    lab.set_supervised()?;
    loop {
        tokio::select! {
            signal = signals.next() => {
                output::tell(&format!("stopping after signal {}", signals::code(signal) - 128));
                lab.stop().await?;
                let _ = std::fs::remove_file(args.log()?);
                return Ok(0);
            }
            () = tokio::time::sleep(Duration::from_secs(1)) => {
                if let Err(error) = lab.check() {
                    lab.keep_logs();
                    lab.stop().await?;
                    return Err(error);
                }
            }
        }
    }
}
