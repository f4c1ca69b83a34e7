//! The operator as a process: what it serves, what it logs, how it ends, and which rights it uses.
#![allow(clippy::disallowed_methods, reason = "tests write as others do")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end here")]

mod common;

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{World, eventually};
use kube::api::{DeleteParams, ListParams};
use kubesentry_lab::operator::{self, Operator};
use kubesentry_lab::{Child, ChildSpec, Lab, LabOptions, binary, hold};
use serde_json::{Value, json};

#[tokio::test]
async fn health_metrics_events_and_logs_tell_of_the_work() {
    let world = World::without_operator("process").await;
    let operator = Operator::start(&world.lab, "process", &[]).await.unwrap();
    for path in ["/livez", "/readyz"] {
        assert_eq!(operator.health(path).unwrap(), (200, "ok".to_owned()), "{path}");
    }
    world.create_app("shop", json!({"image": "nginx:1"})).await;
    world.size("shop", 1).await;
    world.scale("shop", 5).await;
    world.size("shop", 1).await;
    world.quiet().await;

    let series = format!("namespace=\"{}\",app=\"shop\"", world.namespace);
    for (name, least) in [
        ("controller_runtime_reconcile_total", 2.0),
        ("controller_runtime_max_concurrent_reconciles", 8.0),
        ("workqueue_adds_total", 2.0),
        ("rest_client_requests_total{code=\"201\",method=\"PATCH\"}", 1.0),
        (&format!("kubesentry_app_info{{{series}}}"), 1.0),
        (&format!("kubesentry_decisions_total{{{series},action=\"PutBack\",reason=\"PutBack\"}}"), 1.0),
        (&format!("kubesentry_app_condition{{{series},condition=\"SpecValid\",status=\"True\"}}"), 1.0),
    ] {
        let value = operator.metric(name).unwrap();
        assert!(value >= least, "{name}: {value}");
    }
    eventually("both events", || async {
        let events =
            world.api("events.k8s.io", "v1", "Event", "events").list(&ListParams::default()).await.unwrap();
        let reasons: BTreeSet<_> =
            events.items.iter().map(|event| event.data["reason"].as_str().unwrap().to_owned()).collect();
        if reasons.is_superset(&["Created".to_owned(), "PutBack".to_owned()].into()) {
            Ok(())
        } else {
            Err(reasons)
        }
    })
    .await;
    let mut kubectl = world.lab.kubectl();
    let described = kubectl.args(["-n", &world.namespace, "describe", "app/shop"]).output().unwrap();
    assert!(String::from_utf8_lossy(&described.stdout).contains("created the Deployment with 1 replica"));

    let log = std::fs::read_to_string(operator.log()).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let app = format!("{}/shop", world.namespace);
    let of =
        |action: &str| lines.iter().filter(|line| line["app"] == app && line["action"] == action).count();
    assert_eq!((of("Create"), of("PutBack")), (1, 1), "one line per decision");

    // The series go with the App.
    world.delete_app("shop").await;
    world.gone("shop").await;
    eventually("no series of the App", || async {
        let left = operator.metric(&format!("kubesentry_app_info{{{series}}}")).unwrap();
        if left == 0.0 { Ok(()) } else { Err(left) }
    })
    .await;
    let begun = Instant::now();
    let status = operator.stop().await;
    assert!(status.success() && begun.elapsed() < Duration::from_secs(5), "{status} {:?}", begun.elapsed());
}

#[tokio::test]
async fn sigterm_ends_it_with_success_every_time_also_while_it_works() {
    let world = World::without_operator("sigterm").await;
    for round in 0..8 {
        let operator = Operator::start(&world.lab, &format!("sigterm-{round}"), &[]).await.unwrap();
        for n in 0..round {
            world.create_app(&format!("shop-{round}-{n}"), json!({"image": "nginx:1"})).await;
        }
        let (begun, log) = (Instant::now(), operator.log().to_owned());
        let status = operator.stop().await;
        let text = std::fs::read_to_string(log).unwrap();
        assert!(status.success(), "round {round}: {status}\n{text}");
        assert!(begun.elapsed() < Duration::from_secs(5), "round {round}: {:?}", begun.elapsed());
        assert!(text.lines().last().unwrap().contains("\"message\":\"stopped\""), "round {round}: {text}");
    }
}

/// A kubeconfig of the operator's user for an API server at another address.
fn kubeconfig_at(world: &World, server: &str) -> std::path::PathBuf {
    let real = std::fs::read_to_string(world.lab.kubeconfig_for(operator::USER, &[]).unwrap()).unwrap();
    let path = world.lab.dir().join(format!("elsewhere-{}.kubeconfig", std::process::id()));
    std::fs::write(&path, real.replace(world.lab.api_url(), server)).unwrap();
    path
}

#[tokio::test]
async fn without_an_api_server_it_lives_is_not_ready_and_stops_when_asked() {
    let world = World::without_operator("dark").await;
    // Connections are taken and never answered, as by a server behind a broken network.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let kubeconfig = kubeconfig_at(&world, &format!("https://{}", silent.local_addr().unwrap()));
    let ports: Vec<u16> = hold(2).unwrap().into_iter().map(kubesentry_lab::Held::release).collect();
    let spec = ChildSpec::new(binary("kubesentry").unwrap(), world.lab.dir().join("dark.log"))
        .args(["run", "--kubeconfig"])
        .args([kubeconfig])
        .args([
            format!("--health-address=127.0.0.1:{}", ports[0]),
            format!("--metrics-address=127.0.0.1:{}", ports[1]),
        ]);
    let child = Child::spawn(spec).unwrap();
    eventually("it lives", || async {
        match http(ports[0], "/livez") {
            Ok(answer) if answer.starts_with("HTTP/1.0 200") || answer.starts_with("HTTP/1.1 200") => Ok(()),
            other => Err(other.map_err(|error| error.to_string())),
        }
    })
    .await;
    let readiness = http(ports[0], "/readyz").unwrap();
    assert!(readiness.contains("503") && readiness.contains("no complete list yet of: apps"), "{readiness}");
    let begun = Instant::now();
    let status = child.terminate(Duration::from_secs(20)).await;
    assert!(status.success() && begun.elapsed() < Duration::from_secs(5), "{status} {:?}", begun.elapsed());
}

fn http(port: u16, path: &str) -> std::io::Result<String> {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn refused(args: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(binary("kubesentry").unwrap()).env_clear().args(args).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[tokio::test]
async fn a_wrong_start_says_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let table = [
        (
            vec!["--metrics-address=127.0.0.1:0", "--health-address", &address],
            3,
            "choose another with --health-address",
        ),
        (vec!["--metrics-address=0.0.0.0:0"], 3, "not a loopback address"),
        (
            vec!["--metrics-address=127.0.0.1:0", "--health-address=127.0.0.1:0"],
            3,
            "give it one with --kubeconfig FILE",
        ),
        (
            vec![
                "--metrics-address=127.0.0.1:0",
                "--health-address=127.0.0.1:0",
                "--kubeconfig=/no/such/file",
            ],
            3,
            "/no/such/file",
        ),
        (vec!["--log", "a=b=c"], 2, "is no filter"),
        (vec!["--workers=0"], 2, "0 is not in 1..=256"),
        (vec!["--export-deadline-seconds=601"], 2, "601 is not in 1..=600"),
    ];
    for (args, code, words) in table {
        let (found, text) = refused(&args);
        assert_eq!(found, Some(code), "{args:?}: {text}");
        assert!(text.contains(words), "{args:?}: {text}");
    }
}

/// Verbs that a role grants, as `verb group/resource`.
fn granted(role: &str) -> BTreeSet<String> {
    let role: Value = kubesentry_api::manifest::read(role).unwrap().remove(0);
    let texts = |value: &Value| {
        value.as_array().unwrap().iter().map(|v| v.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let mut out = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    out.insert(format!("{verb} {group}/{resource}"));
                }
            }
        }
    }
    out
}

#[tokio::test]
async fn every_granted_verb_is_used_and_none_is_missing() {
    // Its own control plane: the audit log of the whole run is read.
    let lab = Lab::start(LabOptions::default()).await.unwrap();
    operator::install(&lab).await.unwrap();
    let world = World::on(lab, "rbac").await;
    let mark = world.lab.audit_settled().await.unwrap();
    let operator =
        Operator::start_replica(&world.lab, "rbac", &["--audit-max-chunks=1", "--audit-sweep-seconds=2"])
            .await
            .unwrap();
    world.create_app("shop", json!({"image": "nginx:1"})).await;
    world.size("shop", 1).await;
    world.patch_app("shop", json!({"spec": {"image": "nginx:2", "replicas": 2}})).await;
    world.size("shop", 2).await;
    world.patch_app("shop", json!({"spec": {"replicas": 1}})).await;
    world.size("shop", 1).await;
    // The same event again becomes a series, and a third change asks who the writer is.
    for _ in 0..2 {
        world.scale("shop", 5).await;
        world.size("shop", 1).await;
    }
    world.quiet().await;
    world.scale("shop", 5).await;
    world.condition("shop", "Contended", "True", "ForeignWriter").await;
    // A chunk that is there already is read.
    let app = world.app("shop").await.unwrap();
    let uid = app["metadata"]["uid"].as_str().unwrap();
    let chunk = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("audit-{uid}-1")}, "data": {"lastSeq": "1"}});
    world
        .config_maps()
        .create(&kube::api::PostParams::default(), &serde_json::from_value(chunk).unwrap())
        .await
        .unwrap();
    world.delete_app("shop").await;
    world.gone("shop").await;
    world.deployments().delete("shop", &DeleteParams::background()).await.ok();
    // One chunk more than there may be: the older one goes. Creation times have whole seconds.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    world.create_app("other", json!({"image": "nginx:1"})).await;
    world.size("other", 1).await;
    let other = world.app("other").await.unwrap();
    world.delete_app("other").await;
    world.gone("other").await;
    eventually("the older chunk is swept away", || async {
        let (old, new) =
            (world.chunks(uid).await, world.chunks(other["metadata"]["uid"].as_str().unwrap()).await);
        if old.is_empty() && new.len() == 1 { Ok(()) } else { Err((old, new)) }
    })
    .await;
    drop(operator);

    world.lab.audit_settled().await.unwrap();
    let entries = world.lab.audit().since(&mark).unwrap();
    let ours: Vec<_> = entries.iter().filter(|entry| entry.user == operator::USER).collect();
    assert!(ours.len() > 10);
    let log = std::fs::read_to_string(world.lab.dir().join("audit.log")).unwrap();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let groups: BTreeSet<String> = lines
        .filter(|line| line["user"]["username"] == operator::USER)
        .map(|line| line["user"]["groups"].to_string())
        .collect();
    assert!(
        !groups.is_empty() && groups.iter().all(|groups| !groups.contains("system:masters")),
        "{groups:?}"
    );
    let refused: Vec<_> = ours.iter().filter(|entry| entry.code == 403).collect();
    assert!(refused.is_empty(), "{refused:?}");
    let used: BTreeSet<String> = ours
        .iter()
        .map(|entry| {
            let resource = if entry.subresource.is_empty() {
                entry.resource.clone()
            } else {
                format!("{}/{}", entry.resource, entry.subresource)
            };
            format!("{} {}/{resource}", entry.verb, entry.group)
        })
        .collect();
    let mut unused = granted(include_str!("../../../config/rbac/role.yaml"));
    unused.extend(granted(include_str!("../../../config/rbac/audit_role.yaml")));
    unused.extend(granted(include_str!("../../../config/rbac/leader_election_role.yaml")));
    unused.retain(|verb| !used.contains(verb));
    // A server-side apply that creates shows as a patch that was answered 201.
    let created = ours
        .iter()
        .any(|entry| entry.resource == "deployments" && entry.verb == "patch" && entry.code == 201);
    assert!(created && unused.remove("create apps/deployments"));
    // Asked for only under an admission plugin that is off by default.
    assert!(unused.remove("update apps.sentry.io/apps/finalizers"));
    assert!(unused.is_empty(), "granted and never used: {unused:?}");
}
