//! What the lab promises, shown with real servers.
//!
//! Inside `sentry-lab test` the shared control plane is used where one is enough; outside each test starts its own.
#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{API, eventually, lives};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{DeleteParams, ListParams, PostParams, WatchParams};
use kube::{Api, Client};
use kubesentry_lab::{Lab, LabError, LabOptions};
use serde_json::json;
use tokio::time::sleep;

async fn shared_or_own() -> Lab {
    match Lab::shared().await {
        Err(LabError::NotShared) => Lab::start(LabOptions::default()).await,
        other => other,
    }
    .expect("a control plane")
}

async fn done(lab: Lab) {
    match lab.stop().await {
        Ok(()) | Err(LabError::NotOwned { .. }) => {}
        Err(e) => panic!("{e}"),
    }
}

fn object<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
    serde_json::from_value(value).expect("an object")
}

fn maps(client: &Client, namespace: &str) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), namespace)
}

/// The HTTP status of an answer.
fn code<T>(answer: kube::Result<T>) -> u16 {
    match answer {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(e) => panic!("{e}"),
    }
}

#[tokio::test]
async fn two_labs_run_side_by_side_and_leave_nothing() {
    let (one, two) = tokio::join!(Lab::start(API), Lab::start(API));
    let (one, two) = (one.expect("a lab"), two.expect("a lab"));
    let namespace = one.namespace("only-here").await.expect("a namespace");
    let seen = async |lab: &Lab| {
        let all: Api<Namespace> = Api::all(lab.admin().await.expect("a client"));
        all.get_opt(&namespace).await.expect("an answer").is_some()
    };
    assert!(seen(&one).await);
    assert!(!seen(&two).await);

    let pids: Vec<u32> = [&one, &two].iter().flat_map(|l| l.state().pids.values().copied()).collect();
    assert_eq!(pids.iter().filter(|p| lives(**p)).count(), 4);
    let dirs = [one.dir().to_owned(), two.dir().to_owned()];
    one.stop().await.expect("a stop");
    two.stop().await.expect("a stop");
    assert_eq!(pids.iter().filter(|p| lives(**p)).count(), 0);
    assert!(dirs.iter().all(|d| !d.exists()));
}

#[tokio::test]
async fn a_plain_user_is_refused_until_user_or_group_is_bound() {
    let lab = shared_or_own().await;
    let admin = lab.admin().await.expect("a client");
    let namespace = lab.namespace("users").await.expect("a namespace");
    let by_name = lab.client_for("lab:ann", &[]).await.expect("a client");
    let by_group = lab.client_for("lab:ben", &["lab:other", &namespace]).await.expect("a client");
    let list = async |c: &Client| code(maps(c, &namespace).list(&ListParams::default()).await);
    assert_eq!((list(&admin).await, list(&by_name).await, list(&by_group).await), (200, 403, 403));

    let bindings: Api<RoleBinding> = Api::namespaced(admin.clone(), &namespace);
    for (kind, subject) in [("User", "lab:ann"), ("Group", &namespace)] {
        let binding = object(json!({
            "metadata": {"name": kind.to_lowercase()},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:aggregate-to-view"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": subject}],
        }));
        bindings.create(&PostParams::default(), &binding).await.expect("a binding");
    }
    eventually("the bindings in force", async || list(&by_name).await == 200 && list(&by_group).await == 200)
        .await;
    done(lab).await;
}

#[tokio::test]
async fn kubeconfigs_are_private_and_the_same_for_everybody_who_asks() {
    use std::os::unix::fs::PermissionsExt;
    let lab = shared_or_own().await;
    let other = Lab::attach(lab.dir()).await.expect("an attached lab");
    let (a, b) = (lab.kubeconfig_for("lab:cleo", &["g"]), other.kubeconfig_for("lab:cleo", &["g"]));
    let (a, b) = (a.expect("a file"), b.expect("a file"));
    assert_eq!(a, b);
    for file in [a.as_path(), lab.kubeconfig()] {
        let mode = std::fs::metadata(file).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }
    assert!(matches!(lab.kubeconfig_for("x", &["1", "2", "3"]), Err(LabError::Certificate { .. })));
    assert!(matches!(other.stop().await, Err(LabError::NotOwned { .. })));
    done(lab).await;
}

#[tokio::test]
async fn each_request_is_in_the_audit_log_once() {
    let lab = shared_or_own().await;
    let namespace = lab.namespace("audit").await.expect("a namespace");
    let user = format!("lab:{namespace}");
    let client = lab.client_for(&user, &["system:masters"]).await.expect("a client");
    let before = lab.audit_settled().await.expect("a mark");
    let made: ConfigMap = object(json!({"metadata": {"name": "one"}}));
    maps(&client, &namespace).create(&PostParams::default(), &made).await.expect("a write");
    maps(&client, &namespace).list(&ListParams::default()).await.expect("a list");
    drop(maps(&client, &namespace).watch(&WatchParams::default().timeout(1), "0").await.expect("a watch"));
    sleep(Duration::from_millis(1_500)).await;
    lab.audit_settled().await.expect("a mark");

    let mut mine = lab.audit().since(&before).expect("entries");
    mine.retain(|e| e.user == user);
    let got: Vec<_> =
        mine.iter().map(|e| (e.verb.as_str(), e.resource.as_str(), e.code, e.is_write())).collect();
    let expected = [
        ("create", "configmaps", 201, true),
        ("list", "configmaps", 200, false),
        ("watch", "configmaps", 200, false),
    ];
    assert_eq!(got, expected);
    assert!(mine.iter().all(|e| e.namespace == namespace && e.received_at <= e.stage_at));
    assert_eq!(mine.first().map(|e| e.name.as_str()), Some("one"));
    done(lab).await;
}

#[tokio::test]
async fn an_object_without_its_owner_is_collected_and_a_namespace_can_be_deleted() {
    let lab = shared_or_own().await;
    let admin = lab.admin().await.expect("a client");
    let namespace = lab.namespace("orphans").await.expect("a namespace");
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "no-such-uid"}]);
    let orphan: ConfigMap = object(json!({"metadata": {"name": "orphan", "ownerReferences": owner}}));
    let kept: ConfigMap = object(json!({"metadata": {"name": "kept"}}));
    for map in [&orphan, &kept] {
        maps(&admin, &namespace).create(&PostParams::default(), map).await.expect("a write");
    }
    let there = async |name: &str| maps(&admin, &namespace).get_opt(name).await.expect("an answer").is_some();
    eventually("the orphan collected", async || !there("orphan").await).await;
    assert!(there("kept").await);

    let all: Api<Namespace> = Api::all(admin.clone());
    all.delete(&namespace, &DeleteParams::default()).await.expect("a deletion");
    eventually("the namespace gone", async || all.get_opt(&namespace).await.expect("an answer").is_none())
        .await;
    done(lab).await;
}

#[tokio::test]
async fn a_restarted_api_server_has_the_same_objects_address_and_audit_log() {
    let mut lab = Lab::start(API).await.expect("a lab");
    let namespace = lab.namespace("stays").await.expect("a namespace");
    let (url, mark) = (lab.api_url().to_owned(), lab.audit_settled().await.expect("a mark"));
    let old = lab.state().pids.clone();
    lab.restart_api_server().await.expect("a restart");
    assert_ne!(lab.state().pids.get("kube-apiserver"), old.get("kube-apiserver"));
    assert_eq!(lab.api_url(), url);
    let all: Api<Namespace> = Api::all(lab.admin().await.expect("a client"));
    assert!(all.get_opt(&namespace).await.expect("an answer").is_some());
    lab.audit_settled().await.expect("a mark");
    let entries = lab.audit().since(&mark).expect("entries");
    assert!(entries.iter().any(|e| e.resource == "namespaces" && e.name == namespace));
    lab.stop().await.expect("a stop");
}

#[tokio::test]
async fn kubectl_takes_nothing_from_the_environment() {
    let lab = shared_or_own().await;
    let out = lab.kubectl().args(["get", "namespaces", "-o", "name"]).output().expect("kubectl");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(String::from_utf8_lossy(&out.stdout).contains("namespace/kube-system"));
    let env: BTreeMap<_, _> =
        lab.kubectl().get_envs().map(|(k, v)| (k.to_owned(), v.map(Path::new).map(PathBuf::from))).collect();
    let value = |k: &str| env.get(std::ffi::OsStr::new(k)).cloned().flatten();
    assert_eq!(value("KUBECONFIG").as_deref(), Some(lab.kubeconfig()));
    assert_eq!(value("HOME").as_deref(), Some(lab.dir()));
    done(lab).await;
}

#[tokio::test]
async fn an_existing_cluster_is_used_by_its_kubeconfig_and_impersonation() {
    let lab = Lab::start(API).await.expect("a lab");
    let existing = Lab::existing(Some(lab.kubeconfig()), Some("lab")).expect("a cluster");
    assert!(!existing.has_audit());
    assert!(matches!(existing.audit().mark(), Err(LabError::NoAudit)));
    let namespace = existing.namespace("elsewhere").await.expect("a namespace");
    let user = existing.client_for("lab:dora", &["g"]).await.expect("a client");
    assert_eq!(code(maps(&user, &namespace).list(&ListParams::default()).await), 403);
    let attached = Lab::attach(existing.dir()).await.expect("an attached cluster");
    assert!(!attached.has_audit());
    assert!(Lab::existing(Some(lab.kubeconfig()), Some("no-such")).is_err());
    assert!(Lab::existing(None, None).is_err());
    existing.stop().await.expect("a stop");
    lab.stop().await.expect("a stop");
}
