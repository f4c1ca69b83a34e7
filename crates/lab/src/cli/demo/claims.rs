//! What an act claims: that kubectl is content, that an object becomes as expected, that a number is what it should be.

use std::time::{Duration, Instant};

use kubesentry_lab::LabError;
use serde_json::Value;

use super::PATIENCE;
use super::cluster::{Cluster, Said};
use super::stage::{Failed, Stage};

/// An act: an error of the lab, or how its claims came out.
pub(super) type Act = Result<Result<(), Failed>, LabError>;

pub(super) fn show(stage: &Stage, cluster: &Cluster<'_>, args: &[&str]) -> Result<(), LabError> {
    stage.command(&format!("kubectl {}", args.join(" ")));
    stage.output(&cluster.kubectl(args, None)?.text);
    Ok(())
}

pub(super) fn ran(stage: &mut Stage, sentence: &str, said: &Said) -> Result<(), Failed> {
    claim(stage, sentence, "kubectl ends without an error", said.ok, said.text.trim())
}

pub(super) fn claim(
    stage: &mut Stage,
    sentence: &str,
    expected: &str,
    holds: bool,
    seen: &str,
) -> Result<(), Failed> {
    if holds {
        stage.holds(sentence, None);
        Ok(())
    } else {
        Err(stage.fails(sentence, expected, seen))
    }
}

/// Waits until the demo's Deployment is as claimed.
pub(super) async fn deployment(
    stage: &mut Stage,
    cluster: &Cluster<'_>,
    sentence: &str,
    expected: &str,
    holds: impl Fn(&Value) -> bool,
) -> Act {
    becomes(stage, sentence, expected, "spec", || cluster.deployment("shop"), holds).await
}

/// Waits until an App is as claimed.
pub(super) async fn app(
    stage: &mut Stage,
    cluster: &Cluster<'_>,
    name: &str,
    sentence: &str,
    expected: &str,
    holds: impl Fn(&Value) -> bool,
) -> Act {
    becomes(stage, sentence, expected, "status", || cluster.app(name), holds).await
}

/// Looks until the claim holds; `part` of the object is shown where it never does.
async fn becomes<F: Future<Output = Result<Option<Value>, LabError>>>(
    stage: &mut Stage,
    sentence: &str,
    expected: &str,
    part: &str,
    look: impl Fn() -> F,
    holds: impl Fn(&Value) -> bool,
) -> Act {
    let begun = Instant::now();
    loop {
        let seen = look().await?;
        if seen.as_ref().is_some_and(&holds) {
            stage.holds(sentence, None);
            return Ok(Ok(()));
        }
        if begun.elapsed() > PATIENCE {
            return Ok(Err(stage.fails(sentence, expected, &seen.unwrap_or_default()[part].to_string())));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(super) fn condition<'a>(app: &'a Value, kind: &str) -> Option<&'a Value> {
    app["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}
