//! The commands of `sentry-lab`, one module each: its arguments and a `run` that answers the exit code.
//!
//! This module parses, sets up the runtime and the signal handlers, and turns errors into exit codes: 0 fine, 1 a
//! negative finding, 2 wrong usage, 3 trouble with the cluster; 128 + n after signal n. It knows nothing of what the
//! commands do. Called by `main`.

mod assets;
mod bench;
mod demo;
mod doctor;
mod down;
mod kubectl;
mod list;
pub(crate) mod output;
mod processes;
mod signals;
mod test;
mod up;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use kubesentry_lab::{LabError, Layer};

use signals::Signals;

/// The name of the lab that `up`, `down` and `kubectl` mean when none is given.
const DEFAULT_NAME: &str = "default";

/// A real Kubernetes control plane on this machine.
#[derive(Debug, Parser)]
#[command(name = "sentry-lab", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say what is there, what is missing and how to get it
    Doctor,
    /// Find or build the control plane's programs and print where they are
    Assets,
    /// Start a control plane that runs until `down`
    Up(up::Args),
    /// Stop control planes started by `up`
    Down(down::Args),
    /// List the control planes that run
    List,
    /// Run kubectl against a control plane
    Kubectl(kubectl::Args),
    /// Run a command with a control plane of its own, then stop it
    Test(test::Args),
    /// Watch the operator at work on a control plane of its own; each claim is checked
    Demo(demo::Args),
    /// Measure the operator
    #[command(subcommand)]
    Bench(bench::Bench),
    #[command(hide = true)]
    Supervise(up::Args),
}

/// `--layer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LayerArg {
    /// etcd and kube-apiserver
    Api,
    /// and the garbage collector
    ApiGc,
}

impl From<LayerArg> for Layer {
    fn from(layer: LayerArg) -> Self {
        match layer {
            LayerArg::Api => Self::Api,
            LayerArg::ApiGc => Self::ApiGc,
        }
    }
}

/// Parses the command line and runs it.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version are no errors: clap knows where each goes and which code it has.
            let _ = e.print();
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            output::complain(&format!("can't start: {e}; are there too many processes?"));
            return ExitCode::from(3);
        }
    };
    let code = runtime.block_on(run(cli.command));
    runtime.shutdown_background();
    match code {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            output::complain(&error.to_string());
            ExitCode::from(code_of(&error))
        }
    }
}

async fn run(command: Command) -> Result<u8, LabError> {
    // Before anything is started: from here on no signal ends this process by itself.
    let mut signals = Signals::install()?;
    match command {
        Command::Doctor => doctor::run(),
        Command::Assets => assets::run(&mut signals).await,
        Command::Up(args) => up::run(args, &mut signals).await,
        Command::Supervise(args) => up::supervise(args, &mut signals).await,
        Command::Down(args) => down::run(args, &mut signals).await,
        Command::List => list::run(),
        Command::Kubectl(args) => kubectl::run(args, &mut signals).await,
        Command::Test(args) => test::run(args, &mut signals).await,
        Command::Demo(args) => demo::run(args, &mut signals).await,
        Command::Bench(what) => bench::run(what, &mut signals).await,
    }
}

fn code_of(error: &LabError) -> u8 {
    match error {
        LabError::UnsupportedSystem { .. }
        | LabError::NoCacheFolder
        | LabError::BadName { .. }
        | LabError::NameTaken { .. }
        | LabError::NotShared
        | LabError::AssetMissing { .. }
        | LabError::BinaryMissing { .. }
        | LabError::Kubeconfig { .. } => 2,
        LabError::NotRunning { .. } => 1,
        _ => 3,
    }
}
