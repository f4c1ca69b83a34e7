//! The status that the operator writes must come back from the API server as it was: what the schema doesn't declare is
//! pruned without a word.
#![allow(clippy::unwrap_used)]

use common::{Server, app};
use kubesentry_api::conditions::{Condition, ConditionType, Phase, Status};
use kubesentry_api::schema;
use kubesentry_api::status::{AppStatus, Effective, LastDecision};
use kubesentry_engine::audit::{Action, AppRef, Decision, Draft, Ledger, Operator, Outcome, Target};
use serde_json::{Value, json};

mod common;

const NOW: &str = "2026-01-02T03:04:05Z";

fn draft(action: Action, outcome: Outcome) -> Draft {
    Draft {
        app: AppRef {
            namespace: "shop".to_owned(),
            name: "a".to_owned(),
            uid: "6a8f0c9e-6d3b-4b1e-9c55-0d1f6f0f7a11".to_owned(),
            generation: 3,
        },
        at: NOW.to_owned(),
        operator: Operator {
            instance: "kubesentry-0".to_owned(),
            lease_transitions: 4,
            version: "0.1.0".to_owned(),
        },
        action,
        target: Target {
            kind: "Deployment".to_owned(),
            name: "a".to_owned(),
            uid: Some("0d1f6f0f-6d3b-4b1e-9c55-6a8f0c9e7a11".to_owned()),
        },
        decision: Decision::Execute,
        reason: "NotThere".to_owned(),
        outcome,
        message: "created with 3 replicas".to_owned(),
    }
}

/// A status in which every field says something.
fn full() -> AppStatus {
    let mut audit = Ledger::default();
    audit.append(draft(Action::Create, Outcome::Pending));
    audit.append(draft(Action::Create, Outcome::Succeeded));
    audit.flushed_seq = 0;
    let condition = |kind: ConditionType| Condition {
        kind: kind.as_str().to_owned(),
        status: Status::True,
        observed_generation: Some(3),
        last_transition_time: NOW.to_owned(),
        reason: "Aligned".to_owned(),
        message: "4/4 ready; \"quoted\", ä".to_owned(),
    };
    AppStatus {
        observed_generation: Some(3),
        phase: Some(Phase::Stable),
        conditions: ConditionType::ALL.map(condition).to_vec(),
        effective: Some(Effective {
            min_replicas: 1,
            max_replicas: 10,
            image: "registry.example/shop:1.0".to_owned(),
        }),
        replicas: Some(4),
        ready_replicas: Some(4),
        updated_replicas: Some(4),
        desired_replicas: Some(4),
        ready: Some("4/4".to_owned()),
        selector: Some("apps.sentry.io/app=a".to_owned()),
        first_available_at: Some(NOW.to_owned()),
        last_decision: Some(LastDecision {
            at: NOW.to_owned(),
            from: Some(3),
            to: 4,
            action: "ScaleUp".to_owned(),
            reason: "Pinned".to_owned(),
            message: "the pin is 4".to_owned(),
            limited_by: Some("MaxReplicas".to_owned()),
        }),
        audit: Some(audit),
    }
}

/// Fields that the schema declares and the value doesn't have.
fn unset(schema: &Value, value: &Value, path: &str, out: &mut Vec<String>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        match value.get(name) {
            Some(inner) => unset(property, inner, &path, out),
            None => out.push(path),
        }
    }
    if let Some(items) = schema.get("items") {
        for item in value.as_array().into_iter().flatten() {
            unset(items, item, &format!("{path}[]"), out);
        }
    }
}

async fn create(server: &Server) -> Value {
    let body = app(&json!({"image": "i"}));
    server.post(&server.apps(""), &body).await.accepted("create the App")
}

/// Writes the status as the operator does; gives the whole App as it is then, and removes it.
async fn put_status(server: &Server, created: &Value, status: &Value) -> Value {
    let body = json!({
        "apiVersion": created["apiVersion"],
        "kind": created["kind"],
        "metadata": {
            "name": created["metadata"]["name"],
            "namespace": created["metadata"]["namespace"],
            "resourceVersion": created["metadata"]["resourceVersion"],
        },
        "status": status,
    });
    let answer = server.put(&server.apps("/a/status?fieldValidation=Strict"), &body).await;
    answer.accepted("put the status");
    let stored = server.get(&server.apps("/a")).await.accepted("get the App");
    server.delete(&server.apps("/a")).await.accepted("delete the App");
    stored
}

#[tokio::test]
async fn a_status_with_every_field_comes_back_as_it_was_written() {
    let server = Server::shared("status").await;
    let created = create(&server).await;
    let status = serde_json::to_value(full()).unwrap();

    let mut missing = Vec::new();
    unset(&schema::app()["properties"]["status"], &status, "status", &mut missing);
    assert!(missing.is_empty(), "the test leaves fields out: {missing:?}");

    let stored = put_status(&server, &created, &status).await["status"].take();
    assert_eq!(stored, status);
    let read: AppStatus = serde_json::from_value(stored).unwrap();
    assert_eq!(read, full());
    assert!(read.audit.unwrap().verify().is_ok(), "the chain of the audit trail holds");
}

#[tokio::test]
async fn a_status_with_nothing_in_it_stays_empty() {
    let server = Server::shared("status").await;
    let created = create(&server).await;
    let empty = serde_json::to_value(AppStatus::default()).unwrap();
    assert_eq!(put_status(&server, &created, &empty).await["status"], empty);
}

#[tokio::test]
async fn a_new_ledger_without_records_is_a_valid_status() {
    let server = Server::shared("status").await;
    let created = create(&server).await;
    let status = AppStatus { audit: Some(Ledger::default()), ..AppStatus::default() };
    let status = serde_json::to_value(status).unwrap();
    assert_eq!(put_status(&server, &created, &status).await["status"], status);
}

#[tokio::test]
async fn a_write_of_the_status_leaves_spec_and_generation_alone() {
    let server = Server::shared("status").await;
    let created = create(&server).await;
    let after = put_status(&server, &created, &serde_json::to_value(full()).unwrap()).await;
    assert_eq!(after["spec"], created["spec"]);
    assert_eq!(after["metadata"]["generation"], created["metadata"]["generation"]);
}
