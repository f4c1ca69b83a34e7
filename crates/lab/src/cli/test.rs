//! `sentry-lab test -- command...`: a control plane for one command, which finds it by `KUBESENTRY_LAB`.
//!
//! The command runs in the foreground with this terminal; signals are passed on; whatever it leaves behind is ended;
//! the lab is stopped; the exit code is the command's. `KUBECONFIG` is the lab's too, so that nothing in the command
//! can reach another cluster by accident. If this process is killed, the kernel kills the command and the servers (not
//! what the command started itself).

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kubesentry_lab::{BIN_DIR_ENV, Child, ChildSpec, Lab, LabError, LabOptions, SHARED_ENV, Signal};

use super::signals::{self, Signals};
use super::{LayerArg, output, processes};

/// How long the command may take to end after a signal.
const GRACE: Duration = Duration::from_secs(15);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// How much of a control plane
    #[arg(long, value_enum, default_value = "api-gc")]
    layer: LayerArg,
    /// Let etcd wait for the disk, as in production
    #[arg(long)]
    fsync: bool,
    /// Use an existing cluster: this kubeconfig's current context, or --context
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Use an existing cluster: this context
    #[arg(long)]
    context: Option<String>,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

pub(super) async fn run(args: Args, signals: &mut Signals) -> Result<u8, LabError> {
    let started = Instant::now();
    let mut lab = if args.kubeconfig.is_some() || args.context.is_some() {
        Lab::existing(args.kubeconfig.as_deref(), args.context.as_deref())?
    } else {
        let options = LabOptions { layer: args.layer.into(), name: None, fsync: args.fsync };
        match signals.or(Lab::start(options)).await {
            Ok(lab) => lab?,
            Err(code) => return Ok(code),
        }
    };
    output::tell(&format!(
        "{} ready in {:.1} s ({})",
        lab.api_url(),
        started.elapsed().as_secs_f64(),
        if lab.has_audit() { lab.state().assets.describe() } else { "an existing cluster".to_owned() }
    ));
    processes::adopt_orphans();
    let code = command(&args.command, &mut lab, signals).await;
    if code.is_err() {
        lab.keep_logs();
    }
    let stopped = lab.stop().await;
    processes::reap();
    stopped?;
    code
}

/// Runs the command to its end, and ends what it leaves.
async fn command(words: &[OsString], lab: &mut Lab, signals: &mut Signals) -> Result<u8, LabError> {
    let Some((program, args)) = words.split_first() else {
        return Ok(2);
    };
    let mut spec = ChildSpec::new(program, "")
        .args(args.iter().cloned())
        .env(SHARED_ENV, lab.dir())
        .env("KUBECONFIG", lab.kubeconfig());
    if std::env::var_os(BIN_DIR_ENV).is_none()
        && let Some(folder) = std::env::current_exe().ok().as_deref().and_then(Path::parent)
    {
        spec = spec.env(BIN_DIR_ENV, folder);
    }
    let mut child = Child::spawn_foreground(spec)?;
    let ended = wait(&mut child, lab, signals).await;
    child.kill();
    let servers: BTreeSet<u32> = lab.state().pids.values().copied().collect();
    let left = processes::end_descendants(&servers, Duration::from_secs(3)).await;
    if left > 0 {
        output::tell(&format!("ended {left} processes the command left behind"));
    }
    ended
}

async fn wait(child: &mut Child, lab: &mut Lab, signals: &mut Signals) -> Result<u8, LabError> {
    let mut deadline = None;
    loop {
        tokio::select! {
            status = child.wait() => {
                let by_signal = status.signal().map(|s| 128 + s);
                return Ok(status.code().or(by_signal).and_then(|c| u8::try_from(c).ok()).unwrap_or(1));
            }
            signal = signals.next() => {
                if deadline.is_some() {
                    return Ok(signals::code(signal));
                }
                deadline = Some((Instant::now() + GRACE, signal));
                // On a terminal the kernel has sent Ctrl-C to the command as well.
                if signal != Signal::INT || !std::io::stdin().is_terminal() {
                    child.signal(signal);
                }
            }
            () = tokio::time::sleep(Duration::from_millis(500)) => {
                lab.check()?;
                if let Some((_, signal)) = deadline.filter(|(at, _)| Instant::now() >= *at) {
                    output::tell("the command did not end in time; ending it");
                    return Ok(signals::code(signal));
                }
            }
        }
    }
}
