//! What the live tests share: a shared control plane with the generated CRD, and its answers as plain JSON.
//!
//! Requests are raw: an answer is looked at as the server sent it, and an object that no type could hold can be sent.
#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use kube::Client;
use kube::client::Body;
use kubesentry_api::names::CRD_NAME;
use kubesentry_lab::Lab;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

/// Requests under way at once.
pub(crate) const PARALLEL: usize = 8;

const WAIT: Duration = Duration::from_secs(30);

/// A control plane with the CRD, and a namespace of the test.
pub(crate) struct Server {
    lab: Lab,
    client: Client,
    pub(crate) namespace: String,
}

/// What the API server answered.
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) body: Value,
}

impl Server {
    /// Attaches to the shared control plane and installs the CRD there. Several test binaries may do so at once.
    pub(crate) async fn shared(prefix: &str) -> Self {
        let lab = Lab::shared().await.unwrap_or_else(|error| panic!("{error}"));
        let client = lab.admin().await.unwrap();
        let namespace = lab.namespace(prefix).await.unwrap();
        let server = Self { lab, client, namespace };
        server.install(&kubesentry_api::crd::definition()).await;
        server
    }

    async fn install(&self, definition: &Value) {
        let path = format!(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD_NAME}?fieldManager=crd-installer&force=true"
        );
        self.eventually("the CRD is there", async || {
            let answer = self.apply(&path, definition).await;
            // Two installers of a CRD that isn't there yet: one of them is told to try again.
            assert!(answer.is_success() || answer.code == 409, "the CRD is refused: {}", answer.body);
            answer.is_success()
        })
        .await;
        self.eventually("Apps are served", async || {
            self.get("/apis/apps.sentry.io/v1alpha1/apps?limit=1").await.is_success()
        })
        .await;
    }

    /// What `kubectl create --dry-run=client` would send for a manifest of one or more documents.
    pub(crate) fn read_by_kubectl(&self, manifest: &str) -> Vec<Value> {
        let mut kubectl = self.lab.kubectl();
        kubectl.args(["create", "--dry-run=client", "--validate=false", "-o", "json", "-f", "-"]);
        let mut child =
            kubectl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let manifest = manifest.to_owned();
        let writer = thread::spawn(move || input.write_all(manifest.as_bytes()));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl: {errors}");
        let documents = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
        documents.collect::<Result<_, _>>().unwrap()
    }

    /// Path of the Apps of the namespace, or of what `rest` names below it.
    pub(crate) fn apps(&self, rest: &str) -> String {
        format!("/apis/apps.sentry.io/v1alpha1/namespaces/{}/apps{rest}", self.namespace)
    }

    /// What the server says to a new App. Nothing is stored.
    pub(crate) async fn try_app(&self, app: &Value) -> Answer {
        self.post(&self.apps("?dryRun=All&fieldValidation=Strict"), app).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "application/json", &Value::Null).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, "application/json", &Value::Null).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, "application/json", body).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send("PUT", path, "application/json", body).await
    }

    pub(crate) async fn apply(&self, path: &str, body: &Value) -> Answer {
        self.send("PATCH", path, "application/apply-patch+yaml", body).await
    }

    pub(crate) async fn send(&self, method: &str, path: &str, content: &str, body: &Value) -> Answer {
        let bytes = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() };
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("Content-Type", content)
            .body(Body::from(bytes))
            .unwrap();
        let answer = self.client.send(request).await.unwrap();
        let code = answer.status().as_u16();
        let bytes = answer.into_body().collect_bytes().await.unwrap();
        let text = || json!(String::from_utf8_lossy(&bytes));
        let body = serde_json::from_slice(&bytes).unwrap_or_else(|_| text());
        Answer { code, body }
    }

    /// Repeats until it answers true.
    pub(crate) async fn eventually(&self, what: &str, mut check: impl AsyncFnMut() -> bool) {
        let deadline = Instant::now() + WAIT;
        while !check().await {
            assert!(Instant::now() < deadline, "not within {WAIT:?}: {what}");
            sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Answer {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// The answer, or a failure of the test where it is a refusal.
    pub(crate) fn accepted(self, what: &str) -> Value {
        assert!(self.is_success(), "{what}: {} {}", self.code, self.body);
        self.body
    }

    fn causes(&self) -> &[Value] {
        self.body.pointer("/details/causes").and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// What is wrong, as the parser writes it: path, reason, message without the words that the reason stands for.
    ///
    /// Lines without a path are left out: they repeat a fault, or say that rules were skipped.
    pub(crate) fn faults(&self) -> Vec<(String, String, String)> {
        let text = |cause: &Value, key: &str| cause[key].as_str().unwrap_or_default().to_owned();
        self.causes()
            .iter()
            .filter(|cause| cause["field"] != "<nil>")
            .map(|cause| {
                let message = text(cause, "message");
                let message =
                    REASON_WORDS.iter().find_map(|words| message.strip_prefix(words)).unwrap_or(&message);
                // The check of the scale subresource writes its path with a leading dot.
                let path = text(cause, "field").trim_start_matches('.').to_owned();
                (path, text(cause, "reason"), message.to_owned())
            })
            .collect()
    }

    /// The paths that the answer names. The strict decoder names them in its message only.
    pub(crate) fn paths(&self) -> BTreeSet<String> {
        let mut paths: BTreeSet<String> = self.faults().into_iter().map(|(path, ..)| path).collect();
        // Beyond the format of an integer there is no path, only these words.
        let of_format = self
            .causes()
            .iter()
            .filter_map(|cause| cause["message"].as_str()?.split_once(" with format ")?.1.split_once(" in "));
        paths.extend(of_format.map(|(_, path)| path.to_owned()));
        if let Some((_, decoder)) = self.message().split_once("strict decoding error: ") {
            paths.extend(
                decoder
                    .split("unknown field \"")
                    .skip(1)
                    .filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())),
            );
        }
        paths
    }

    /// Whether there may be more faults than the server looked for.
    pub(crate) fn is_partial(&self) -> bool {
        self.message().contains("strict decoding error")
            || self.message().contains("some validation rules were not checked")
    }

    pub(crate) fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }
}

/// What a message begins with, by the cause's reason (`field.Error.ErrorBody`).
const REASON_WORDS: [&str; 4] = ["Invalid value: ", "Required value: ", "Duplicate value: ", "Forbidden: "];

/// A smallest App with this spec.
pub(crate) fn app(spec: &Value) -> Value {
    json!({
        "apiVersion": "apps.sentry.io/v1alpha1",
        "kind": "App",
        "metadata": {"name": "a"},
        "spec": spec,
    })
}
