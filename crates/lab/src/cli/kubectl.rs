//! `sentry-lab kubectl -- args...`: becomes the lab's kubectl.
//!
//! Without `--name` it means the control plane of the surrounding `sentry-lab test`, if there is one, else `default`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;

use kubesentry_lab::{Lab, LabError, SHARED_ENV};

use super::signals::Signals;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The lab's name
    #[arg(long)]
    name: Option<String>,
    /// Arguments of kubectl
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

pub(super) async fn run(args: Args, signals: &mut Signals) -> Result<u8, LabError> {
    let shared = std::env::var_os(SHARED_ENV).is_some_and(|v| !v.is_empty());
    let attach = async {
        match args.name.as_deref() {
            None if shared => Lab::shared().await,
            name => Lab::attach_named(name.unwrap_or(super::DEFAULT_NAME)).await,
        }
    };
    let lab = match signals.or(attach).await {
        Ok(lab) => lab?,
        Err(code) => return Ok(code),
    };
    let mut kubectl = lab.kubectl();
    let program = kubectl.get_program().into();
    Err(LabError::Spawn { program, source: kubectl.args(args.args).exec() })
}
