//! The parser stands in for the API server: on both sides of every bound of the schema it must answer as the server does.
//!
//! The probes are made from the schema itself, so that a new field is tried without a new test.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use common::{PARALLEL, Server, app};
use futures::{StreamExt, stream};
use kubesentry_api::{ParseOptions, parse};
use probes::Probe;

mod common;
mod probes;

/// The rules of Pod Security and of ServiceAccounts are the parser's alone.
const OPEN: ParseOptions =
    ParseOptions { allow_privileged_templates: true, allow_service_account_names: true };

/// Values within the bounds of their own field that a rule over several fields refuses.
const REFUSED_BY_A_RULE: [&str; 6] = [
    "spec.rollout.minReadySeconds: the most, 86400",
    "spec.scaling.fallbackReplicas: the most, 10000",
    "spec.scaling.metrics: 3 items",
    "spec.scaling.metrics[0].target: 64 characters",
    "spec.scaling.metrics[0].target: 64 wide characters",
    "spec.scaling.metrics[0].type: P99Latency",
];

#[tokio::test]
async fn server_and_parser_agree_on_both_sides_of_every_bound_of_the_schema() {
    let server = Server::shared("schema").await;
    let probes = probes::all();
    assert!(probes.len() > 800, "only {} probes", probes.len());
    let asked = stream::iter(probes)
        .map(async |probe| {
            let answer = server.try_app(&app(&probe.spec)).await;
            (probe, answer)
        })
        .buffered(PARALLEL);
    let answers: Vec<_> = asked.collect().await;
    let (mut wrong, mut by_rule) = (Vec::new(), BTreeSet::new());
    for (Probe { path, what, spec, fault }, answer) in answers {
        let theirs = answer.paths();
        let parsed = parse(&app(&spec), &OPEN);
        let ours: BTreeSet<_> = parsed.violations.iter().map(|v| v.path.clone()).collect();
        let complete = answer.is_partial() || ours == theirs;
        let named = fault.iter().all(|fault| theirs.contains(fault) && ours.contains(fault));
        if answer.is_success() != parsed.app.is_some() || !ours.is_superset(&theirs) || !complete || !named {
            wrong.push(format!(
                "{path}, {what}: wanted {fault:?}; server {} {:?}; parser {:?}",
                answer.code,
                answer.message(),
                parsed.violations
            ));
        } else if fault.is_none() && what != "null" && !answer.is_success() {
            by_rule.insert(format!("{path}: {what}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(by_rule, REFUSED_BY_A_RULE.map(str::to_owned).into());
}
