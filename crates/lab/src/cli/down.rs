//! `sentry-lab down`: ends the supervisor of a lab, which stops its servers in order and removes its folder.
//!
//! Only labs started by `up` are touched: others belong to a test run that ends them itself.

use std::time::Duration;

use kubesentry_lab::{LabError, Running, Signal, running};
use rustix::process::{Pid, kill_process};

use super::output;
use super::signals::Signals;

/// Longer than the servers' own graces together.
const PATIENCE: Duration = Duration::from_secs(40);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The lab's name
    #[arg(long, default_value = super::DEFAULT_NAME)]
    name: String,
    /// All labs started by `up`
    #[arg(long, conflicts_with = "name")]
    all: bool,
}

pub(super) async fn run(args: Args, signals: &mut Signals) -> Result<u8, LabError> {
    let wanted = |lab: &Running| args.all || lab.dir.ends_with(&args.name);
    let labs: Vec<_> = running()?.into_iter().filter(wanted).collect();
    let supervised = |lab: &Running| lab.state.as_ref().is_some_and(|s| s.supervised);
    if !labs.iter().any(supervised) {
        match labs.first() {
            Some(lab) if !args.all => output::complain(&format!(
                "the lab in {} was not started by `sentry-lab up` (or is still starting); end the process that owns it",
                lab.dir.display()
            )),
            _ if args.all => {
                output::tell("no lab started by `sentry-lab up` runs");
                return Ok(0);
            }
            _ => output::complain(&format!("no lab named {} runs; see `sentry-lab list`", args.name)),
        }
        return Ok(1);
    }
    for lab in labs.iter().filter(|l| supervised(l)) {
        match signals.or(stop(lab)).await {
            Ok(done) => done?,
            Err(code) => return Ok(code),
        }
        output::tell(&format!("stopped {}", lab.dir.display()));
    }
    Ok(0)
}

async fn stop(lab: &Running) -> Result<(), LabError> {
    let owner = lab.state.as_ref().map_or(0, |s| s.owner_pid);
    let owner = i32::try_from(owner).ok().and_then(Pid::from_raw);
    let Some(owner) = owner else { return Ok(()) };
    let still_held = || running().map(|all| all.iter().any(|l| l.dir == lab.dir));
    for signal in [Signal::TERM, Signal::KILL] {
        // Held means that the owner lives, so the number is still its.
        if !still_held()? {
            return Ok(());
        }
        let _ = kill_process(owner, signal);
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while tokio::time::Instant::now() < deadline {
            if !still_held()? {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    Err(LabError::NotReady {
        what: "the lab's owner ending",
        waited: PATIENCE * 2,
        last: "its folder is still locked".to_owned(),
        dir: lab.dir.clone(),
    })
}
