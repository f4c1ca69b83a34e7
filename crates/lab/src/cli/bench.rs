//! `sentry-lab bench drift`: how fast hand-made changes are put back, against the floor of a bare loop in the same run.
//!
//! Prints one JSON document on stdout and what it means on stderr. A ratio in one run says more than milliseconds of one
//! machine: the floor is a watch that answers every change with one patch, on the same server.

use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _};
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams, WatchEvent, WatchParams};
use kubesentry_lab::drift::{self, Change, percentile};
use kubesentry_lab::operator::{self, Operator};
use kubesentry_lab::{AuditEntry, Lab, LabError, LabOptions};
use serde_json::{Value, json};

use super::output;
use super::signals::Signals;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Bench {
    /// Hand-scales over many Apps: from the API server's answer to the corrected object seen on a watch
    Drift(DriftArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct DriftArgs {
    /// Apps; each is scaled twice, since a third change of the same field would rightly be contended
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    apps: u32,
    /// Let etcd wait for the disk, as in production: on a shared disk that is most of what is measured then
    #[arg(long)]
    fsync: bool,
}

const NAMESPACE: &str = "bench";
/// Between two samples, so that what follows a correction (status, event) is not measured with the next one.
const PAUSE: Duration = Duration::from_millis(25);

pub(super) async fn run(what: Bench, signals: &mut Signals) -> Result<u8, LabError> {
    let Bench::Drift(args) = what;
    let options = LabOptions { fsync: args.fsync, ..LabOptions::default() };
    let lab = match signals.or(Lab::start(options)).await {
        Ok(lab) => lab?,
        Err(code) => return Ok(code),
    };
    let outcome = signals.or(measure(&lab, args.apps, args.fsync)).await;
    lab.stop().await?;
    match outcome {
        Ok(Ok(result)) => {
            output::print(&serde_json::to_string_pretty(&result).unwrap_or_default());
            Ok(u8::from(result["lost"] != 0))
        }
        Ok(Err(error)) => Err(error),
        Err(code) => Ok(code),
    }
}

async fn measure(lab: &Lab, apps: u32, fsync: bool) -> Result<Value, LabError> {
    operator::install(lab).await?;
    // A plain user: an administrator is exempt from priority and fairness.
    let person = person(lab).await?;
    let api = drift::deployments(person.clone(), NAMESPACE);
    let floor = floor(&person, &api, apps).await?;

    let operator = Operator::start(lab, "operator", &[]).await?;
    let names: Vec<String> = (0..apps).map(|n| format!("app-{n}")).collect();
    output::tell(&format!("creating {apps} Apps"));
    let begun = Instant::now();
    create_apps(&person, &names).await?;
    for name in &names {
        wait_for(&api, name).await?;
    }
    output::tell(&format!(
        "all Deployments exist after {:.1} s; scaling each twice",
        begun.elapsed().as_secs_f64()
    ));
    tokio::time::sleep(Duration::from_secs(3)).await;

    let mark = lab.audit_settled().await?;
    let mut samples = Vec::new();
    let mut lost = 0;
    for round in 0..2 {
        for name in &names {
            tokio::time::sleep(PAUSE).await;
            match drift::put_back(&api, name, &Change::Scale(5 + round), |d| d["spec"]["replicas"] == 2).await
            {
                Ok(took) => samples.push(took),
                Err(error) => {
                    output::tell(&format!("{name}: {error}"));
                    lost += 1;
                }
            }
        }
    }
    lab.audit_settled().await?;
    let own = own_share(&lab.audit().since(&mark)?);
    operator.stop().await;
    samples.sort_unstable();
    Ok(json!({
        "bench": "drift",
        "apps": apps,
        "fsync": fsync,
        "samples": samples.len(),
        "lost": lost,
        "putBackMs": summary(&samples),
        "ownShareMs": summary(&own),
        "floorMs": summary(&floor),
        "ratioToFloorP50": ratio(percentile(&samples, 50), percentile(&floor, 50)),
    }))
}

async fn person(lab: &Lab) -> Result<Client, LabError> {
    let admin = lab.admin().await?;
    let objects = [
        (
            "/api/v1/namespaces",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "bench"}, "rules": [
                {"apiGroups": ["apps", "apps.sentry.io"], "resources": ["*"], "verbs": ["*"]},
            ]}),
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "bench"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "bench"},
                "subjects": [{"kind": "User", "name": "bench", "apiGroup": "rbac.authorization.k8s.io"}]}),
        ),
    ];
    for (path, object) in objects {
        post(&admin, path, &object).await?;
    }
    lab.client_for("bench", &[]).await
}

async fn post(client: &Client, path: &str, object: &Value) -> Result<(), LabError> {
    let failed = |why: String| LabError::Operator { doing: "create an object for the bench", why };
    let request = http::Request::post(path)
        .header("content-type", "application/json")
        .body(object.to_string().into_bytes())
        .map_err(|error| failed(error.to_string()))?;
    client.request::<Value>(request).await.map(drop).map_err(|error| failed(error.to_string()))
}

async fn create_apps(client: &Client, names: &[String]) -> Result<(), LabError> {
    let path = format!("/apis/apps.sentry.io/v1alpha1/namespaces/{NAMESPACE}/apps");
    let all = futures::stream::iter(names.iter().map(|name| {
        let app = json!({
            "apiVersion": "apps.sentry.io/v1alpha1", "kind": "App", "metadata": {"name": name},
            "spec": {"image": "nginx:1.29", "ports": [{"name": "http", "containerPort": 80}], "scaling": {"minReplicas": 2}},
        });
        let path = path.clone();
        async move { post(client, &path, &app).await }
    }));
    all.buffer_unordered(4).try_collect::<Vec<()>>().await.map(drop)
}

async fn wait_for(api: &Api<DynamicObject>, name: &str) -> Result<(), LabError> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        if matches!(api.get_opt(name).await, Ok(Some(_))) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err(LabError::Operator {
        doing: "see all Deployments",
        why: format!("{name} did not appear within 60 s"),
    })
}

/// The floor: a watch that answers every wrong size with one patch, nothing else.
async fn floor(client: &Client, api: &Api<DynamicObject>, samples: u32) -> Result<Vec<Duration>, LabError> {
    let failed =
        |error: kube::Error| LabError::Operator { doing: "measure the floor", why: error.to_string() };
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "floor"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "floor"}}, "template": {
            "metadata": {"labels": {"app": "floor"}}, "spec": {"containers": [{"name": "app", "image": "nginx:1.29"}]},
        }},
    });
    post(client, &format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments"), &deployment).await?;
    let live = api.get("floor").await.map_err(failed)?;
    let params = WatchParams::default().fields("metadata.name=floor");
    let watch =
        api.watch(&params, &live.metadata.resource_version.unwrap_or_default()).await.map_err(failed)?;
    let writer = api.clone();
    let task = tokio::spawn(async move {
        let mut watch = watch.boxed();
        while let Ok(Some(event)) = watch.try_next().await {
            let WatchEvent::Modified(object) = event else {
                continue;
            };
            if object.data["spec"]["replicas"] != 2 {
                let patch = Patch::Merge(json!({"spec": {"replicas": 2}}));
                // A patch that fails shows as a lost sample.
                let _ = writer.patch("floor", &PatchParams::default(), &patch).await;
            }
        }
    });
    let mut took = Vec::new();
    for n in 0..samples.max(50) {
        tokio::time::sleep(PAUSE).await;
        let change = Change::Scale(5 + i32::from(n % 2 == 0));
        took.push(drift::put_back(api, "floor", &change, |d| d["spec"]["replicas"] == 2).await?);
    }
    task.abort();
    took.sort_unstable();
    Ok(took)
}

/// From the hand-made change being answered to the operator's write being received, both by the server's clock.
fn own_share(entries: &[AuditEntry]) -> Vec<Duration> {
    let mut shares = Vec::new();
    for scale in entries.iter().filter(|e| e.subresource == "scale" && e.verb == "patch") {
        let answer = entries.iter().filter(|e| {
            e.user == operator::USER
                && e.resource == "deployments"
                && e.name == scale.name
                && e.received_at > scale.received_at
        });
        if let Some(first) = answer.min_by_key(|e| e.received_at) {
            let share = first.received_at.duration_since(scale.stage_at);
            shares.push(Duration::try_from(share).unwrap_or_default());
        }
    }
    shares.sort_unstable();
    shares
}

fn summary(sorted: &[Duration]) -> Value {
    let millis = |p: usize| (percentile(sorted, p).as_secs_f64() * 100_000.0).round() / 100.0;
    json!({"n": sorted.len(), "p50": millis(50), "p90": millis(90), "p99": millis(99), "max": millis(100)})
}

fn ratio(a: Duration, b: Duration) -> Value {
    if b.is_zero() { Value::Null } else { json!((a.as_secs_f64() / b.as_secs_f64() * 100.0).round() / 100.0) }
}
