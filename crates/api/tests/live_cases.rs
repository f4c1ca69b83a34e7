//! The API server's answer to every case, rule and status, with the generated CRD alone.
//!
//! `pure_cases.rs` runs the same cases against the parser. Where both see a fault, they must name the same path, and say
//! the same where a rule of the App's own gives the words. Run with `sentry-lab test -- cargo test -p kubesentry-api`.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use cases::{Case, Wanted};
use common::{Answer, PARALLEL, Server, app};
use futures::{StreamExt, stream};
use kubesentry_api::rules::RULES;
use kubesentry_api::{ParseOptions, parse};
use serde_json::{Value, json};

mod cases;
mod common;

async fn answers(server: &Server, cases: Vec<Case>) -> Vec<(Case, Answer)> {
    stream::iter(cases)
        .map(|case| async {
            let answer = server.try_app(&case.object()).await;
            (case, answer)
        })
        .buffered(PARALLEL)
        .collect()
        .await
}

fn is_seen_by_server(case: &Case) -> bool {
    case.seen_by.iter().any(|validator| ["decoder", "schema", "cel"].contains(&validator.as_str()))
}

#[tokio::test]
async fn the_server_answers_every_case_as_wanted() {
    let server = Server::shared("cases").await;
    let (cases, _) = cases::all();
    assert!(cases.len() >= 80, "only {} cases are left", cases.len());
    let mut wrong = Vec::new();
    for (case, answer) in answers(&server, cases).await {
        let wanted: BTreeSet<_> = if case.wanted == Wanted::Refuse && is_seen_by_server(&case) {
            case.paths.iter().cloned().collect()
        } else {
            BTreeSet::new()
        };
        if answer.is_success() != wanted.is_empty() || answer.paths() != wanted {
            wrong.push(format!("{}: wanted {wanted:?}, got {} {:?}", case.id, answer.code, answer.message()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn what_the_server_sees_the_parser_sees_at_the_same_path() {
    let server = Server::shared("cases").await;
    let mut wrong = Vec::new();
    for (case, answer) in answers(&server, cases::all().0).await {
        let parsed = parse(&case.object(), &ParseOptions::default());
        let parsed: BTreeSet<_> = parsed.violations.into_iter().map(|v| v.path).collect();
        if !parsed.is_superset(&answer.paths()) {
            wrong.push(format!("{}: server {:?}, parser {parsed:?}", case.id, answer.paths()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn where_only_rules_see_a_fault_server_and_parser_say_the_same() {
    let server = Server::shared("cases").await;
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for (case, answer) in answers(&server, cases::all().0).await {
        // A fault of the schema is said in the server's own words.
        if case.seen_by != ["cel", "parse"] {
            continue;
        }
        let violations = parse(&case.object(), &ParseOptions::default()).violations;
        let ours: BTreeSet<_> = violations.into_iter().map(|v| (v.path, v.message)).collect();
        let theirs = answer.faults().into_iter().map(|(path, _, message)| (path, message));
        let theirs: BTreeSet<_> = theirs.collect();
        compared += theirs.len();
        if ours != theirs {
            wrong.push(format!("{}: parser {ours:?}, server {theirs:?}", case.id));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared >= 35, "only {compared} messages were compared");
}

/// One App per rule: the rule's message, the name and spec of an App that breaks it alone, and what must be said where.
fn broken_rules() -> Vec<(&'static str, Value, &'static str, &'static str)> {
    let named = |name: &str| {
        let mut app = app(&json!({"image": "i"}));
        app["metadata"]["name"] = json!(name);
        app
    };
    let spec = |fields: Value| {
        let mut app = app(&json!({"image": "i"}));
        let all = app["spec"].as_object_mut().unwrap();
        all.extend(fields.as_object().unwrap().clone());
        app
    };
    let metric = |kind: &str| spec(json!({"scaling": {"metrics": [{"type": kind, "target": "none"}]}}));
    let own = |rule: &'static str, app, path| (rule, app, path, rule);
    vec![
        own(message_of("at most 52"), named(&"n".repeat(53)), "metadata.name"),
        own(message_of("must begin with"), named("1a"), "metadata.name"),
        own(message_of("an image is needed"), app(&json!({})), "spec.image"),
        (
            message_of("port names"),
            spec(json!({"ports": [
                {"containerPort": 80, "name": "z"},
                {"containerPort": 81, "name": "z"},
                {"containerPort": 82, "name": "a"},
                {"containerPort": 83, "name": "a"},
            ]})),
            "spec.ports",
            "port names must be unique: \"z\" is used more than once",
        ),
        own(
            message_of("these labels"),
            spec(json!({"template": {"metadata": {"labels": {"apps.sentry.io/app": "x"}}}})),
            "spec.template.metadata.labels",
        ),
        own(
            message_of("must not both be 0"),
            spec(json!({"rollout": {"maxSurge": "0%", "maxUnavailable": 0}})),
            "spec.rollout.maxUnavailable",
        ),
        own(
            message_of("maxSurge must not be negative"),
            spec(json!({"rollout": {"maxSurge": -1}})),
            "spec.rollout.maxSurge",
        ),
        own(
            message_of("maxUnavailable must not be negative"),
            spec(json!({"rollout": {"maxUnavailable": -1}})),
            "spec.rollout.maxUnavailable",
        ),
        (
            message_of("progressDeadlineSeconds must be"),
            spec(json!({"rollout": {"progressDeadlineSeconds": 30, "minReadySeconds": 30}})),
            "spec.rollout.progressDeadlineSeconds",
            "progressDeadlineSeconds (30) must be greater than minReadySeconds (30); raise the one or lower the other",
        ),
        (
            message_of("minReplicas must not exceed"),
            spec(json!({"scaling": {"minReplicas": 10000, "maxReplicas": 9999}})),
            "spec.scaling.minReplicas",
            "minReplicas (10000) must not exceed maxReplicas (9999); raise maxReplicas or lower minReplicas",
        ),
        (
            message_of("fallbackReplicas must lie"),
            spec(json!({"scaling": {"minReplicas": 12, "fallbackReplicas": 13}})),
            "spec.scaling.fallbackReplicas",
            "fallbackReplicas (13) must lie within minReplicas (12) and maxReplicas (12)",
        ),
        own(message_of("a QPS target"), metric("QPS"), "spec.scaling.metrics[0].target"),
        own(message_of("a P99Latency"), metric("P99Latency"), "spec.scaling.metrics[0].target"),
        own(message_of("an ErrorRate"), metric("ErrorRate"), "spec.scaling.metrics[0].target"),
    ]
}

/// The message of the one rule whose message holds these words.
fn message_of(words: &str) -> &'static str {
    let mut found = RULES.iter().filter(|rule| rule.message.contains(words));
    let rule = found.next().unwrap();
    assert!(found.next().is_none(), "two rules say {words:?}");
    rule.message
}

#[tokio::test]
async fn every_rule_fires_on_the_server_and_in_the_parser_with_its_path_kind_and_message() {
    let server = Server::shared("rules").await;
    let broken = broken_rules();
    let tried: BTreeSet<_> = broken.iter().map(|(rule, ..)| *rule).collect();
    let all: BTreeSet<_> = RULES.iter().map(|rule| rule.message).collect();
    assert_eq!(tried, all, "each rule is broken by one App");
    assert_eq!(all.len(), RULES.len(), "each rule has a message of its own");
    let mut wrong = Vec::new();
    for (rule, app, path, message) in broken {
        let kind = RULES.iter().find(|r| r.message == rule).unwrap().kind;
        let reason = json!(kind).as_str().unwrap().to_owned();
        let wanted = vec![(path.to_owned(), reason, message.to_owned())];
        let answer = server.try_app(&app).await.faults();
        if answer != wanted {
            wrong.push(format!("server: wanted {wanted:?}, got {answer:?}"));
        }
        let parsed: Vec<_> = parse(&app, &ParseOptions::default())
            .violations
            .into_iter()
            .map(|v| (v.path, json!(v.kind).as_str().unwrap().to_owned(), v.message))
            .collect();
        if parsed != wanted {
            wrong.push(format!("parser: wanted {wanted:?}, got {parsed:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Without nulls, and without empty lists on the first two levels: a spec of Rust leaves them out.
fn plain(value: &mut Value, depth: usize) {
    if let Value::Object(object) = value {
        object.retain(|_, inner| !inner.is_null() && (depth > 1 || inner != &json!([])));
        object.values_mut().for_each(|inner| plain(inner, depth + 1));
    }
}

#[tokio::test]
async fn the_server_fills_in_the_defaults_that_the_parser_fills_in() {
    let server = Server::shared("defaults").await;
    let mut tried = 0;
    for (case, answer) in answers(&server, cases::all().0).await {
        let Some(parsed) = parse(&case.object(), &ParseOptions::default()).app else {
            continue;
        };
        let mut ours = serde_json::to_value(&parsed.spec).unwrap();
        let mut theirs = answer.accepted(&case.id)["spec"].take();
        plain(&mut ours, 0);
        plain(&mut theirs, 0);
        assert_eq!(ours, theirs, "{}", case.id);
        tried += 1;
    }
    assert!(tried >= 25, "only {tried} Apps were accepted");
}
