//! The 22 kinds of foreign change, made on a real API server: what the ownership check says of each.
//!
//! `fixtures/ownership/changes.json` holds the changes, `pure_ownership.rs` compares what a server once answered.
//! Each change has a namespace of its own, so that all run at once.
#![allow(clippy::unwrap_used, clippy::panic)]

use common::{Answer, Server, app};
use futures::future::join_all;
use kubesentry_api::ownership::{entry_hash, holders, lost};
use serde::Deserialize;
use serde_json::{Value, json};

mod common;

#[derive(Deserialize)]
struct Row {
    fixture: String,
    name: String,
    why: String,
    steps: Vec<Step>,
    lost: Vec<String>,
    holder: Option<Value>,
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Step {
    Patch { r#type: String, manager: String, body: Value, subresource: Option<String> },
    Apply { manager: String, force: bool, body: Value },
    Replace { manager: String, edit: Value },
    Create { path: String, body: Value },
    Intent { until: Option<Until> },
}

#[derive(Deserialize)]
struct Until {
    pointer: String,
    value: Value,
}

/// One change on one Deployment in one namespace.
struct Replay {
    server: Server,
    intent: Value,
    made: Vec<String>,
}

impl Replay {
    /// With an App that owns the Deployment: a garbage collector would delete it otherwise.
    async fn start() -> Self {
        let server = Server::shared("ownership").await;
        let mut owner = app(&json!({"image": "i"}));
        owner["metadata"]["name"] = json!("shop");
        let owner = server.post(&server.apps(""), &owner).await.accepted("create the App");
        let mut intent: Value = serde_json::from_str(include_str!("fixtures/ownership/intent.json")).unwrap();
        intent["metadata"]["namespace"] = json!(server.namespace);
        intent["metadata"]["ownerReferences"][0]["uid"] = owner["metadata"]["uid"].clone();
        Self { server, intent, made: Vec::new() }
    }

    fn path(&self, rest: &str) -> String {
        format!("/apis/apps/v1/namespaces/{}/deployments/shop{rest}", self.server.namespace)
    }

    async fn live(&self) -> Value {
        self.server.get(&self.path("")).await.accepted("get the Deployment")
    }

    async fn apply_intent(&self) -> Value {
        let path = self.path("?fieldManager=kubesentry&force=true");
        self.server.apply(&path, &self.intent).await.accepted("apply the intent")
    }

    fn lost(&self, live: &Value) -> Vec<String> {
        let mut paths: Vec<_> = lost(&self.intent, live).into_iter().map(|field| field.path).collect();
        paths.sort();
        paths
    }

    async fn run(&mut self, step: &Step) {
        let done = |answer: Answer| answer.accepted("a step");
        match step {
            Step::Patch { r#type, manager, body, subresource } => {
                let content = match r#type.as_str() {
                    "json" => "application/json-patch+json".to_owned(),
                    "strategic" => "application/strategic-merge-patch+json".to_owned(),
                    kind => format!("application/{kind}-patch+json"),
                };
                let below = subresource.as_ref().map_or_else(String::new, |name| format!("/{name}"));
                let path = self.path(&format!("{below}?fieldManager={manager}"));
                done(self.server.send("PATCH", &path, &content, body).await);
            }
            Step::Apply { manager, force, body } => {
                let mut body = body.clone();
                body["metadata"]["namespace"] = json!(self.server.namespace);
                let path = self.path(&format!("?fieldManager={manager}&force={force}"));
                done(self.server.apply(&path, &body).await);
            }
            Step::Replace { manager, edit } => {
                let mut object = self.live().await;
                merge(&mut object, edit);
                let path = self.path(&format!("?fieldManager={manager}"));
                done(self.server.put(&path, &object).await);
            }
            Step::Create { path, body } => {
                let body = self.confined(body);
                done(self.server.post(path, &body).await);
                self.made.push(format!("{path}/{}", body["metadata"]["name"].as_str().unwrap()));
            }
            Step::Intent { until: None } => {
                self.apply_intent().await;
            }
            Step::Intent { until: Some(until) } => {
                self.server
                    .eventually("the policy acts", async || {
                        self.apply_intent().await.pointer(&until.pointer) == Some(&until.value)
                    })
                    .await;
            }
        }
    }

    /// Leaves nothing that a later test could meet.
    async fn end(&self) {
        let own = [self.path(""), self.server.apps("/shop")];
        for path in self.made.iter().rev().chain(&own) {
            self.server.delete(path).await.accepted("clean up");
        }
    }

    /// A policy of the cluster, with a name of this test and for its namespace only.
    fn confined(&self, policy: &Value) -> Value {
        let name = json!(format!("mirror-{}", self.server.namespace));
        let mut policy = policy.clone();
        policy["metadata"]["name"] = name.clone();
        if policy["spec"].get("policyName").is_some() {
            policy["spec"]["policyName"] = name;
        }
        if policy["spec"].get("matchConstraints").is_some() {
            policy["spec"]["matchConstraints"]["namespaceSelector"] =
                json!({"matchLabels": {"kubernetes.io/metadata.name": self.server.namespace}});
        }
        policy
    }
}

/// As a merge patch does.
fn merge(object: &mut Value, edit: &Value) {
    for (name, value) in edit.as_object().into_iter().flatten() {
        match value {
            Value::Null => drop(object.as_object_mut().unwrap().remove(name)),
            Value::Object(_) if object[name].is_object() => merge(&mut object[name], value),
            _ => object[name] = value.clone(),
        }
    }
}

/// What differs from the row.
async fn replay(row: Row) -> Vec<String> {
    let mut replay = Replay::start().await;
    let mut wrong = Vec::new();
    let untouched = replay.apply_intent().await;
    let at_first = replay.lost(&untouched);
    if !at_first.is_empty() {
        wrong.push(format!("lost before the change: {at_first:?}"));
    }
    for step in &row.steps {
        replay.run(step).await;
    }
    let live = replay.live().await;

    let found = replay.lost(&live);
    let mut wanted = row.lost.clone();
    wanted.sort();
    if found != wanted {
        wrong.push(format!("wanted {wanted:?} lost ({}), found {found:?}", row.why));
    }
    let first = lost(&replay.intent, &live).into_iter().find(|field| Some(&field.path) == row.lost.first());
    let holder = first.and_then(|field| holders(&live, &field).into_iter().next());
    let holder = holder.map(|writer| {
        let mut holder = json!({"manager": writer.manager, "operation": writer.operation});
        if let Some(subresource) = writer.subresource {
            holder["subresource"] = json!(subresource);
        }
        holder
    });
    if holder != row.holder {
        wrong.push(format!("wanted the holder {:?}, found {holder:?}", row.holder));
    }

    let repaired = replay.apply_intent().await;
    let still = replay.lost(&repaired);
    if !still.is_empty() {
        wrong.push(format!("lost after a forced apply: {still:?}"));
    }
    if entry_hash(&repaired) != entry_hash(&untouched) {
        wrong.push("our entry is not the one from before the change".to_owned());
    }
    replay.end().await;
    let of_row = |fault| format!("{}: {}: {fault}", row.fixture, row.name);
    wrong.into_iter().map(of_row).collect()
}

#[tokio::test]
async fn exactly_the_fields_that_a_change_takes_are_lost_and_a_forced_apply_takes_them_back() {
    let rows: Vec<Row> = serde_json::from_str(include_str!("fixtures/ownership/changes.json")).unwrap();
    assert_eq!(rows.len(), 22);
    let wrong = join_all(rows.into_iter().map(replay)).await.concat();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
