//! The files of the installation agree with each other and with the program.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may read files, and end here"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{CommandFactory as _, Parser as _};
use kubesentry_operator::config::Cli;
use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn object(path: &str) -> Value {
    kubesentry_api::manifest::read(&text(path)).unwrap().remove(0)
}

/// What follows the first place where `before` stands, up to the end of the line.
fn after(text: &str, before: &str) -> String {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("no {before:?}"));
    rest.lines().next().unwrap_or_default().trim().trim_matches('"').to_owned()
}

#[test]
fn in_a_watched_namespace_the_operator_may_do_what_it_may_everywhere() {
    let rules = |path: &str| text(path).split_once("\nrules:\n").unwrap().1.to_owned();
    let (everywhere, watched) = ("config/rbac/role.yaml", "config/namespaced/watched/role.yaml");
    assert!(rules(everywhere).len() > 500);
    assert!(rules(everywhere) == rules(watched), "the rules of {watched} are to be those of {everywhere}");
    assert_eq!(object(watched)["kind"], "Role");
    // Nothing in the Role but what a Role can grant: it would have no effect.
    for rule in object(everywhere)["rules"].as_array().unwrap() {
        assert!(rule.get("nonResourceURLs").is_none() && rule["resources"] != json!(["nodes"]), "{rule}");
    }
}

#[test]
fn the_deployment_starts_the_program_with_flags_and_variables_that_it_knows() {
    let deployment = object("config/manager/manager.yaml");
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let args = container["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap());
    let parsed = Cli::try_parse_from(std::iter::once("kubesentry").chain(args));
    assert!(parsed.is_ok(), "{}", parsed.unwrap_err());

    let command = Cli::command();
    let known: Vec<_> = command.get_arguments().filter_map(|argument| argument.get_env()?.to_str()).collect();
    let patch = object("config/namespaced/watch_patch.yaml");
    let patched = &patch["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(patched["name"], container["name"], "the patch reaches the container");
    for variable in [container, patched].iter().flat_map(|c| c["env"].as_array().unwrap()) {
        let name = variable["name"].as_str().unwrap();
        assert!(known.contains(&name), "{name} is no variable of `kubesentry run`: {known:?}");
    }
}

#[test]
fn what_selects_the_operators_pods_selects_all_of_them() {
    let deployment = object("config/manager/manager.yaml");
    let template = &deployment["spec"]["template"];
    let labels = &template["metadata"]["labels"];
    assert_eq!(&deployment["spec"]["selector"]["matchLabels"], labels);
    let spread = &template["spec"]["topologySpreadConstraints"][0];
    assert_eq!(&spread["labelSelector"]["matchLabels"], labels);
    let budget = object("config/manager/pod_disruption_budget.yaml");
    assert_eq!(&budget["spec"]["selector"]["matchLabels"], labels);
    assert_eq!(budget["metadata"]["namespace"], deployment["metadata"]["namespace"]);
}

#[test]
fn the_image_is_built_by_this_toolchain_for_the_user_and_under_the_name_of_the_deployment() {
    let (dockerfile, deployment) = (text("Dockerfile"), object("config/manager/manager.yaml"));
    let version = env!("CARGO_PKG_VERSION");
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(after(&dockerfile, "ARG RUST_VERSION="), after(&text("rust-toolchain.toml"), "channel = "));
    assert_eq!(after(&dockerfile, "ARG VERSION="), version);
    assert_eq!(pod["containers"][0]["image"], format!("kubesentry:{version}"));
    let user = &pod["securityContext"];
    assert_eq!(after(&dockerfile, "USER "), format!("{}:{}", user["runAsUser"], user["runAsGroup"]));
}

#[test]
fn make_touches_no_cluster_that_the_command_line_does_not_name() {
    for target in ["install", "run", "uninstall", "deploy", "undeploy"] {
        for named in [None, Some("KUBECONFIG=")] {
            let mut make = Command::new("make");
            make.args(["--dry-run", target]).args(named).current_dir(root());
            // As in a shell where somebody works with a cluster, and not as a part of a surrounding make.
            make.env("KUBECONFIG", "/of/the/shell").env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
            let made = make.output().unwrap();
            let said = String::from_utf8_lossy(&made.stderr).into_owned();
            assert!(
                !made.status.success() && said.contains("name the cluster"),
                "{target} {named:?}: {said}"
            );
        }
    }
}
