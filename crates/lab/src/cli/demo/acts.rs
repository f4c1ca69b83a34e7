//! The acts of the demo, in order. Each does something as a person would, and claims what must follow.

use std::time::{Duration, Instant};

use kubesentry_lab::drift::{self, Change};
use kubesentry_lab::operator::Operator;
use serde_json::{Value, json};

use super::claims::{Act, app, claim, condition, deployment, ran, show};
use super::cluster::{Cluster, NAMESPACE};
use super::stage::{Stage, time};

/// Ends an act where a claim does not hold.
macro_rules! hold {
    ($claim:expr) => {
        if let Err(failed) = $claim {
            return Ok(Err(failed));
        }
    };
}

const SHOP: &str = "\
apiVersion: apps.sentry.io/v1alpha1
kind: App
metadata:
  name: shop
spec:
  image: nginx:1.29
  ports:
  - {name: http, containerPort: 8080}
  env:
  - {name: GREETING, value: hello}
  readinessProbe:
    httpGet: {path: /ready, port: http}
  scaling:
    minReplicas: 2
    maxReplicas: 6
    metrics:
    - {type: QPS, target: \"100\"}
    - {type: P99Latency, target: 200ms}
";

const WRONG: &str = "\
apiVersion: apps.sentry.io/v1alpha1
kind: App
metadata:
  name: wrong
spec:
  scaling:
    minReplicas: 5
    maxReplicas: 3
    metrics:
    - {type: P99Latency, target: \"200\"}
";

const TYPO: &str = "\
apiVersion: apps.sentry.io/v1alpha1
kind: App
metadata:
  name: typo
spec:
  image: nginx:1.29
  template:
    spec:
      hostNetwork: true
      contaners: []
";

pub(super) async fn play(stage: &mut Stage, cluster: &mut Cluster<'_>) -> Act {
    hold!(birth(stage, cluster).await?);
    hold!(hand_made_changes(stage, cluster).await?);
    hold!(a_neighbour(stage, cluster).await?);
    hold!(wrong_apps(stage, cluster).await?);
    hold!(pin(stage, cluster).await?);
    hold!(suspend(stage, cluster).await?);
    hold!(quiet(stage, cluster).await?);
    hold!(restart(stage, cluster).await?);
    farewell(stage, cluster).await
}

async fn birth(stage: &mut Stage, cluster: &Cluster<'_>) -> Act {
    stage.chapter("An App becomes a Deployment");
    stage.output(SHOP);
    stage.command("kubectl apply -f shop.yaml");
    hold!(ran(stage, "the App is accepted", &cluster.kubectl(&["apply", "-f", "-"], Some(SHOP))?));
    let begun = Instant::now();
    hold!(
        deployment(
            stage,
            cluster,
            "the Deployment exists, with 2 replicas, owned by the App",
            "replicas 2 and an owner of kind App",
            |d| { d["spec"]["replicas"] == 2 && d["metadata"]["ownerReferences"][0]["kind"] == "App" }
        )
        .await?
    );
    let took = time(begun.elapsed());
    hold!(
        app(
            stage,
            cluster,
            "shop",
            &format!("the App's status speaks of it, {took} after kubectl ended"),
            "observedGeneration 1",
            |a| { a["status"]["observedGeneration"] == 1 }
        )
        .await?
    );
    show(stage, cluster, &["get", "apps.apps.sentry.io,deployments"])?;
    stage.say("Pending, since no Pod can become ready at this layer.");
    Ok(Ok(()))
}

/// What is typed, what is claimed, what is sent, and how the right object looks.
type HandMade = (&'static str, &'static str, Change, fn(&Value) -> bool);

async fn hand_made_changes(stage: &mut Stage, cluster: &Cluster<'_>) -> Act {
    stage.chapter("A hand-made change is put back");
    let strategic =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "app", "image": "nginx:evil"}]}}}});
    let label = json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}});
    let changes: [HandMade; 3] = [
        ("kubectl scale deployment shop --replicas=10", "the size is 2 again", Change::Scale(10), |d| {
            d["spec"]["replicas"] == 2
        }),
        (
            "kubectl set image deployment/shop app=nginx:evil",
            "the image is nginx:1.29 again",
            Change::Strategic(strategic),
            |d| d["spec"]["template"]["spec"]["containers"][0]["image"] == "nginx:1.29",
        ),
        (
            "kubectl label deployment shop app.kubernetes.io/managed-by-",
            "the label is there again",
            Change::Merge(label),
            |d| d["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "kubesentry",
        ),
    ];
    let api = drift::deployments(cluster.client.clone(), NAMESPACE);
    for (command, claim, change, is_right) in changes {
        stage.command(command);
        match drift::put_back(&api, "shop", &change, is_right).await {
            Ok(took) => stage.holds(claim, Some(&format!("{} after the API server answered", time(took)))),
            Err(error) => {
                return Ok(Err(stage.fails(claim, "the change is put back", &error.to_string())));
            }
        }
    }
    Ok(Ok(()))
}

async fn a_neighbour(stage: &mut Stage, cluster: &Cluster<'_>) -> Act {
    stage.chapter("What others own is left alone");
    stage.say("Another manager adds fields of its own: an annotation, and an environment variable.");
    cluster.rest().await?;
    let mark = cluster.lab.audit_settled().await?;
    let theirs = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "shop", "annotations": {"team.example.com/owner": "checkout"}},
        "spec": {"template": {"spec": {"containers": [{"name": "app", "env": [{"name": "INJECTED", "value": "yes"}]}]}}},
    });
    stage.command("kubectl apply --server-side --field-manager=team -f theirs.yaml");
    let said = cluster
        .kubectl(&["apply", "--server-side", "--field-manager=team", "-f", "-"], Some(&theirs.to_string()))?;
    hold!(ran(stage, "their apply is accepted", &said));
    tokio::time::sleep(Duration::from_millis(500)).await;
    let writes = cluster.writes_since(&mark).await?;
    hold!(claim(
        stage,
        "the operator wrote nothing",
        "0 writes",
        writes.is_empty(),
        &format!("{} writes", writes.len())
    ));
    deployment(stage, cluster, "their fields are still there", "their annotation and INJECTED", |d| {
        let env = d["spec"]["template"]["spec"]["containers"][0]["env"].as_array();
        d["metadata"]["annotations"]["team.example.com/owner"] == "checkout"
            && env.is_some_and(|env| env.iter().any(|e| e["name"] == "INJECTED"))
    })
    .await
}

async fn wrong_apps(stage: &mut Stage, cluster: &Cluster<'_>) -> Act {
    stage.chapter("A wrong App is refused with its reasons");
    stage.output(WRONG);
    stage.command("kubectl apply -f wrong.yaml");
    let said = cluster.kubectl(&["apply", "-f", "-"], Some(WRONG))?;
    stage.output(&said.text);
    let named = ["spec.image", "spec.scaling.minReplicas", "spec.scaling.metrics[0].target"];
    let all = !said.ok && named.iter().all(|path| said.text.contains(path));
    hold!(claim(stage, "all three faults are named at once", &named.join(", "), all, &said.text));
    stage.say("What a CRD cannot see, a fault inside the Pod template, is found by the operator:");
    stage.output(TYPO);
    stage.command("kubectl apply -f typo.yaml");
    hold!(ran(stage, "the API server takes it", &cluster.kubectl(&["apply", "-f", "-"], Some(TYPO))?));
    hold!(
        app(
            stage,
            cluster,
            "typo",
            "the App says what is wrong, and nothing is created",
            "Ready=False, reason InvalidSpec",
            |a| {
                condition(a, "Ready").is_some_and(|c| c["status"] == "False" && c["reason"] == "InvalidSpec")
            }
        )
        .await?
    );
    let typo = cluster.app("typo").await?.unwrap_or_default();
    stage.say(condition(&typo, "Ready").and_then(|c| c["message"].as_str()).unwrap_or_default());
    cluster.kubectl(&["delete", "apps.apps.sentry.io", "typo"], None)?;
    Ok(Ok(()))
}

async fn pin(stage: &mut Stage, cluster: &Cluster<'_>) -> Act {
    stage.chapter("A person pins the size, and lets go again");
    stage.command("kubectl scale app/shop --replicas=8");
    hold!(ran(
        stage,
        "the App takes the pin",
        &cluster.kubectl(&["scale", "app/shop", "--replicas=8"], None)?
    ));
    hold!(
        deployment(
            stage,
            cluster,
            "8 replicas, though maxReplicas is 6: a pin wins",
            "replicas 8",
            |d| d["spec"]["replicas"] == 8
        )
        .await?
    );
    hold!(
        app(
            stage,
            cluster,
            "shop",
            "the App says so",
            "ScalingLimited=True, reason PinnedOutsideLimits",
            |a| { condition(a, "ScalingLimited").is_some_and(|c| c["reason"] == "PinnedOutsideLimits") }
        )
        .await?
    );
    let unpin = r#"{"spec":{"replicas":null}}"#;
    stage.command(&format!("kubectl patch app/shop --type=merge -p '{unpin}'"));
    let said = cluster.kubectl(&["patch", "app/shop", "--type=merge", "-p", unpin], None)?;
    hold!(ran(stage, "the pin is gone", &said));
    deployment(stage, cluster, "back within the bounds: 6 replicas", "replicas 6", |d| {
        d["spec"]["replicas"] == 6
    })
    .await
}

async fn suspend(stage: &mut Stage, cluster: &Cluster<'_>) -> Act {
    stage.chapter("A suspended App is observed, and nothing else");
    let patch = |suspend: bool| format!(r#"{{"spec":{{"suspend":{suspend}}}}}"#);
    stage.command(&format!("kubectl patch app/shop --type=merge -p '{}'", patch(true)));
    cluster.kubectl(&["patch", "app/shop", "--type=merge", "-p", &patch(true)], None)?;
    hold!(
        app(stage, cluster, "shop", "the App is suspended", "phase Suspended", |a| a["status"]["phase"]
            == "Suspended")
        .await?
    );
    stage.command("kubectl scale deployment shop --replicas=1");
    hold!(ran(
        stage,
        "somebody scales by hand",
        &cluster.kubectl(&["scale", "deployment/shop", "--replicas=1"], None)?
    ));
    tokio::time::sleep(Duration::from_secs(1)).await;
    hold!(
        deployment(
            stage,
            cluster,
            "a second later it is left alone",
            "replicas 1",
            |d| d["spec"]["replicas"] == 1
        )
        .await?
    );
    stage.command(&format!("kubectl patch app/shop --type=merge -p '{}'", patch(false)));
    cluster.kubectl(&["patch", "app/shop", "--type=merge", "-p", &patch(false)], None)?;
    deployment(stage, cluster, "resumed, the size is put back", "replicas 6", |d| d["spec"]["replicas"] == 6)
        .await
}

/// Long enough to see a loop, short enough to watch.
const WINDOW: Duration = Duration::from_secs(10);

async fn quiet(stage: &mut Stage, cluster: &Cluster<'_>) -> Act {
    stage.chapter("A steady App costs nothing");
    cluster.rest().await?;
    let mark = cluster.lab.audit_settled().await?;
    stage.say(&format!(
        "Counting the operator's writes in the API server's audit log for {} s ...",
        WINDOW.as_secs()
    ));
    tokio::time::sleep(WINDOW).await;
    let writes = cluster.writes_since(&mark).await?;
    Ok(claim(stage, "zero writes", "0 writes", writes.is_empty(), &format!("{} writes", writes.len())))
}

async fn restart(stage: &mut Stage, cluster: &mut Cluster<'_>) -> Act {
    stage.chapter("The operator is killed and started again");
    let mark = cluster.lab.audit_settled().await?;
    stage.command("kill -9 $(pidof kubesentry)");
    cluster.operator.child().kill();
    cluster.operator.child().wait().await;
    let begun = Instant::now();
    cluster.operator = Operator::start(cluster.lab, "operator-2", &["--instance=demo"]).await?;
    stage.say(&format!("It is ready again after {}.", time(begun.elapsed())));
    tokio::time::sleep(Duration::from_secs(3)).await;
    let writes = cluster.writes_since(&mark).await?;
    hold!(claim(
        stage,
        "it found everything aligned: zero writes",
        "0 writes",
        writes.is_empty(),
        &format!("{writes:?}")
    ));
    let api = drift::deployments(cluster.client.clone(), NAMESPACE);
    let change = Change::Merge(json!({"spec": {"revisionHistoryLimit": 3}}));
    match drift::put_back(&api, "shop", &change, |d| d["spec"]["revisionHistoryLimit"] == 10).await {
        Ok(took) => stage.holds("and it is on watch: another change is put back", Some(&time(took))),
        Err(error) => {
            return Ok(Err(stage.fails("it is on watch", "a change is put back", &error.to_string())));
        }
    }
    Ok(Ok(()))
}

async fn farewell(stage: &mut Stage, cluster: &Cluster<'_>) -> Act {
    stage.chapter("A deleted App leaves its record, and nothing else");
    cluster.rest().await?;
    let uid =
        cluster.app("shop").await?.map(|app| app["metadata"]["uid"].as_str().unwrap_or_default().to_owned());
    let uid = uid.unwrap_or_default();
    stage.command("kubectl delete app/shop");
    hold!(ran(
        stage,
        "the App is gone: its record was exported first",
        &cluster.kubectl(&["delete", "app/shop"], None)?
    ));
    let chunks = cluster.chunks(&uid).await?;
    let records: Vec<Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["data"]["records.jsonl"].as_str())
        .flat_map(str::lines)
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    stage.command(&format!("kubectl -n kubesentry-system get configmaps -l apps.sentry.io/audit-uid={uid}"));
    for record in &records {
        let text = |field: &str| record[field].as_str().unwrap_or_default().to_owned();
        stage.output(&format!(
            "{:>2}  {}  {:<8}  {}",
            record["seq"],
            text("at"),
            text("action"),
            text("message")
        ));
    }
    let last = records.last().map(|record| record["action"].clone()).unwrap_or_default();
    hold!(claim(
        stage,
        "the record ends with the deletion",
        "a last record with action Delete",
        last == "Delete",
        &last.to_string()
    ));
    // The collector learns of a new kind within 30 s.
    let begun = Instant::now();
    let gone = loop {
        let left = cluster.deployment("shop").await?;
        if left.is_none() || begun.elapsed() > Duration::from_secs(40) {
            break left.is_none();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    Ok(claim(
        stage,
        "the garbage collector took the Deployment: nothing is left",
        "no Deployment",
        gone,
        "the Deployment is still there",
    ))
}
