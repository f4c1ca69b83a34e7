//! `sentry-lab demo`: the operator at work on a real control plane, narrated; each claim is checked.
//!
//! Starts a lab and the operator, plays the acts, stops both. Exit code 1 where a claim does not hold.

mod acts;
mod claims;
mod cluster;
mod stage;

use std::time::Duration;

use kubesentry_lab::operator::{self, Operator};
use kubesentry_lab::{Lab, LabError, LabOptions, Versions};

use super::signals::Signals;
use cluster::Cluster;
use stage::Stage;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Leave everything running at the end, until Ctrl-C
    #[arg(long)]
    keep: bool,
}

pub(super) async fn run(args: Args, signals: &mut Signals) -> Result<u8, LabError> {
    let lab = match signals.or(Lab::start(LabOptions::default())).await {
        Ok(lab) => lab?,
        Err(code) => return Ok(code),
    };
    let outcome = signals.or(play(&lab)).await;
    let code = match outcome {
        Err(code) => Ok(code),
        Ok(Err(error)) => Err(error),
        Ok(Ok((operator, code))) => {
            if args.keep {
                let stage = Stage::new();
                stage.line(&format!(
                    "\nEverything runs on until Ctrl-C:\n  export KUBECONFIG={}",
                    lab.kubeconfig().display()
                ));
                signals.next().await;
            }
            operator.stop().await;
            Ok(code)
        }
    };
    lab.stop().await?;
    code
}

async fn play(lab: &Lab) -> Result<(Operator, u8), LabError> {
    let mut stage = Stage::new();
    stage.title("KubeSentry: an App becomes an aligned Deployment, and stays one");
    stage.line("");
    let versions = Versions::pinned();
    stage.say(&format!(
        "A real etcd and kube-apiserver {} run on this machine now, with the garbage collector. There is no kubelet at \
         this layer: no Pod runs, and nobody reports on Deployments. What you see is what the API server says.",
        versions.kubernetes
    ));
    operator::install(lab).await?;
    let operator = Operator::start(lab, "operator", &["--instance=demo"]).await?;
    stage.say("The operator runs as its own ServiceAccount, with the rights that config/rbac gives it.");
    let mut cluster = Cluster::new(lab, operator).await?;
    let code = match acts::play(&mut stage, &mut cluster).await? {
        Ok(()) => {
            stage.end();
            0
        }
        Err(stage::Failed) => 1,
    };
    Ok((cluster.operator, code))
}

/// Longest to wait for a claim to become true.
const PATIENCE: Duration = Duration::from_secs(10);
