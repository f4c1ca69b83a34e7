//! The installation: what `kubectl apply -k` makes of the folders in `config/`, that the operator works in it, and that
//! `make undeploy` leaves nothing of it. Each test has a control plane of its own, since it installs and removes what is
//! there once per cluster.
#![allow(clippy::disallowed_methods, reason = "tests write as others do")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end here")]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{World, app, eventually};
use kube::api::{DeleteParams, PostParams};
use kubesentry_lab::operator::{NAMESPACE, Operator, USER};
use kubesentry_lab::{Lab, LabOptions};
use serde_json::{Value, json};

const DEFAULT: &str = "config/default";
const NAMESPACED: &str = "config/namespaced";
const DIST: &str = "dist/install.yaml";
const CRD: &str = "customresourcedefinitions/apps.apps.sentry.io";
const FINALIZER: &str = "apps.sentry.io/audit-export";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A cluster in which nothing is installed.
async fn cluster() -> Lab {
    Lab::start(LabOptions::default()).await.unwrap()
}

fn try_kubectl(lab: &Lab, args: &[&str]) -> Output {
    lab.kubectl().args(args).current_dir(root()).output().unwrap()
}

/// What kubectl prints, run in the repository's root.
fn kubectl(lab: &Lab, args: &[&str]) -> String {
    let output = try_kubectl(lab, args);
    assert!(output.status.success(), "kubectl {args:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Installs, and waits until Apps are served.
async fn install(lab: &Lab, args: &[&str]) -> String {
    let said = kubectl(lab, args);
    kubectl(lab, &["wait", "--for=condition=Established", CRD]);
    eventually("Apps are served", || async {
        let listed = try_kubectl(lab, &["get", "apps.apps.sentry.io", "-A"]);
        if listed.status.success() { Ok(()) } else { Err(stderr(&listed)) }
    })
    .await;
    said
}

/// `make undeploy`, as somebody types it.
fn undeploy(lab: &Lab, config: &str, flags: &str) -> Output {
    make(lab, "undeploy", &[&format!("CONFIG={config}"), &format!("FLAGS={flags}")])
}

fn make(lab: &Lab, target: &str, variables: &[&str]) -> Output {
    let kubectl = lab.kubectl();
    let mut make = Command::new("make");
    make.arg(target)
        .arg(format!("KUBECONFIG={}", lab.kubeconfig().display()))
        .arg(format!("KUBECTL={}", kubectl.get_program().to_str().unwrap()))
        .args(variables)
        .current_dir(root());
    // Not a part of a make that runs these tests, and nothing written outside of the lab's folder.
    for inherited in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "GNUMAKEFLAGS"] {
        make.env_remove(inherited);
    }
    make.envs(kubectl.get_envs().filter_map(|(name, value)| Some((name, value?))));
    make.output().unwrap()
}

/// The version of every object of an installation.
fn versions(lab: &Lab, config: &str) -> BTreeMap<String, String> {
    let template = r#"{range .items[*]}{.kind}/{.metadata.name}{" "}{.metadata.resourceVersion}{"\n"}{end}"#;
    let lines = kubectl(lab, &["get", "-k", config, "-o", &format!("jsonpath={template}")]);
    lines
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
}

/// Whatever carries the operator's label, and the CRD.
fn left(lab: &Lab) -> String {
    let kinds = "namespaces,clusterroles,clusterrolebindings";
    let everywhere = "roles,rolebindings,deployments,serviceaccounts,poddisruptionbudgets,leases";
    let label = "app.kubernetes.io/name=kubesentry";
    kubectl(lab, &["get", kinds, "-l", label, "-o", "name"])
        + &kubectl(lab, &["get", everywhere, "-A", "-l", label, "-o", "name"])
        + &kubectl(lab, &["get", CRD, "--ignore-not-found", "-o", "name"])
}

/// Whether the operator's user may do that.
fn may(lab: &Lab, verb: &str, resource: &str, namespace: Option<&str>) -> bool {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let mut args = vec!["auth", "can-i", verb, resource, "--as", USER];
    let subresource = format!("--subresource={subresource}");
    args.push(&subresource);
    args.extend(namespace.map_or(["--all-namespaces", ""], |namespace| ["--namespace", namespace]));
    args.retain(|arg| !arg.is_empty());
    let answer = try_kubectl(lab, &args);
    match String::from_utf8_lossy(&answer.stdout).trim() {
        "yes" => true,
        "no" => false,
        other => panic!("{args:?}: {other} {}", stderr(&answer)),
    }
}

/// The Pod that the Deployment's controller would make.
fn pod(deployment: &Value, name: &str) -> Value {
    let template = &deployment["spec"]["template"];
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": template["metadata"]["labels"]},
        "spec": template["spec"],
    })
}

#[tokio::test]
async fn config_default_installs_what_the_operator_needs_and_undeploy_leaves_nothing_of_it() {
    let lab = cluster().await;
    let rendered = kubectl(&lab, &["kustomize", DEFAULT]);
    let dist = std::fs::read_to_string(root().join(DIST)).unwrap();
    let (_generated, dist) = dist.split_once('\n').unwrap();
    assert!(dist == rendered, "{DIST} differs from {DEFAULT}: run `make build-installer`");

    let first = install(&lab, &["apply", "-k", DEFAULT]).await;
    let objects = first.lines().count();
    assert!(objects > 12 && first.lines().all(|line| line.ends_with(" created")), "{first}");
    let before = versions(&lab, DEFAULT);
    assert_eq!(before.len(), objects, "{before:?}");
    for again in [["-k", DEFAULT], ["-f", DIST]] {
        let said = kubectl(&lab, &[&["apply"], again.as_slice()].concat());
        // kubectl sends a budget's selector each time, since its type says that it is replaced as a whole; the API server
        // finds nothing to change in it.
        let changed = said.lines().filter(|line| !line.ends_with(" unchanged"));
        let changed: Vec<_> = changed.filter(|line| !line.starts_with("poddisruptionbudget")).collect();
        assert!(changed.is_empty(), "{again:?}: {changed:?}");
        assert_eq!(versions(&lab, DEFAULT), before, "{again:?}");
    }

    // The Pods are what their own namespace takes; another one isn't.
    let world = World::on(lab, "install").await;
    let deployment: Value = serde_json::from_str(&kubectl(
        &world.lab,
        &["-n", NAMESPACE, "get", "deployment/kubesentry", "-o", "json"],
    ))
    .unwrap();
    let pods = world.api_in(NAMESPACE, "", "v1", "Pod", "pods");
    let made = pods.create(&PostParams::default(), &object(pod(&deployment, "kubesentry-0"))).await;
    assert!(made.is_ok(), "{made:?}");
    let mut loose = pod(&deployment, "kubesentry-1");
    loose["spec"]["securityContext"] = json!({});
    let refused = pods.create(&PostParams::default(), &object(loose)).await.unwrap_err().to_string();
    assert!(refused.contains("violates PodSecurity \"restricted"), "{refused}");
    pods.delete("kubesentry-0", &DeleteParams::default().grace_period(0)).await.unwrap();

    // With these rights and no others the operator works.
    let mark = world.lab.audit_settled().await.unwrap();
    let operator = Operator::start(&world.lab, "install", &[]).await.unwrap();
    world.create_app("shop", json!({"image": "nginx:1"})).await;
    world.create_app("cart", json!({"image": "nginx:1"})).await;
    world.size("shop", 1).await;
    world.size("cart", 1).await;
    world.quiet().await;
    let requests = world.lab.audit().since(&mark).unwrap();
    let refused: Vec<_> = requests.iter().filter(|e| e.user == USER && e.code == 403).collect();
    assert!(refused.is_empty(), "{refused:?}");

    // In the right order all of it goes, and the records of the Apps are kept where they were asked for.
    let saved = world.lab.dir().join("audit.yaml");
    let gone = undeploy(&world.lab, DEFAULT, &format!("--save-audit {}", saved.display()));
    let said = stderr(&gone);
    assert!(gone.status.success() && !said.contains("removing its finalizer"), "{said}");
    assert_eq!(left(&world.lab), "", "{said}");
    let saved = std::fs::read_to_string(saved).unwrap();
    for app in ["shop", "cart"] {
        assert!(saved.contains(&format!("apps.sentry.io/app: {app}")), "{saved}");
    }
    for app in ["shop", "cart"] {
        eventually("the Deployment follows its App", || async {
            world.deployment(app).await.map_or(Ok(()), Err)
        })
        .await;
    }
    drop(operator);
    let again = undeploy(&world.lab, DEFAULT, "");
    assert!(again.status.success(), "nothing to do is fine: {}", stderr(&again));
    world.lab.stop().await.unwrap();
}

fn object(value: Value) -> kube::api::DynamicObject {
    serde_json::from_value(value).unwrap()
}

#[tokio::test]
async fn undeploy_ends_what_was_begun_in_the_wrong_order_and_touches_no_finalizer_of_others() {
    let lab = cluster().await;
    install(&lab, &["apply", "--server-side", "-f", DIST]).await;
    let world = World::on(lab, "order").await;
    for (name, finalizers) in [("shop", vec![FINALIZER]), ("cart", vec!["example.com/other", FINALIZER])] {
        let mut app = app(name, json!({"image": "nginx:1"}));
        app["metadata"]["finalizers"] = json!(finalizers);
        world.apps().create(&PostParams::default(), &object(app)).await.unwrap();
    }
    // The operator goes first, and nobody is left to release the Apps.
    kubectl(&world.lab, &["delete", "-k", DEFAULT, "--wait=false"]);
    eventually("the CRD waits for its Apps", || async {
        let app = world.app("shop").await.unwrap();
        if app["metadata"]["deletionTimestamp"].is_string() { Ok(()) } else { Err(app) }
    })
    .await;

    let stuck = undeploy(&world.lab, DEFAULT, "--wait 1");
    let said = stderr(&stuck);
    assert!(!stuck.status.success(), "{said}");
    assert!(said.contains("shop: removing its finalizer; records not exported yet are lost"), "{said}");
    assert!(said.contains("|cart|[\"example.com/other\"]|"), "{said}");
    assert!(world.app("shop").await.is_none(), "{said}");
    assert!(left(&world.lab).contains("customresourcedefinition"), "{said}");

    world.patch_app("cart", json!({"metadata": {"finalizers": null}})).await;
    let done = undeploy(&world.lab, DEFAULT, "--wait 1");
    assert!(done.status.success(), "{}", stderr(&done));
    assert_eq!(left(&world.lab), "");
    world.lab.stop().await.unwrap();
}

#[tokio::test]
async fn after_the_wrong_order_an_operator_that_runs_again_saves_the_records_and_releases_the_apps() {
    let lab = cluster().await;
    install(&lab, &["apply", "-k", DEFAULT]).await;
    let world = World::on(lab, "again").await;
    let operator = Operator::start(&world.lab, "again-1", &[]).await.unwrap();
    let shop = world.create_app("shop", json!({"image": "nginx:1"})).await;
    world.size("shop", 1).await;
    drop(operator);
    kubectl(&world.lab, &["delete", "-k", DEFAULT, "--wait=false"]);
    kubectl(&world.lab, &["wait", "--for=delete", "namespace/kubesentry-system", "--timeout=60s"]);
    let stuck = world.app("shop").await.unwrap();
    assert!(stuck["metadata"]["deletionTimestamp"].is_string(), "{stuck}");

    // As the documentation says it: the namespace first.
    kubectl(&world.lab, &["apply", "-k", "config/manager"]);
    kubectl(&world.lab, &["apply", "-k", "config/rbac"]);
    let operator = Operator::start(&world.lab, "again-2", &[]).await.unwrap();
    kubectl(&world.lab, &["wait", "--for=delete", CRD, "--timeout=60s"]);
    let uid = shop["metadata"]["uid"].as_str().unwrap();
    assert!(!world.records(uid).await.is_empty(), "the records are saved");
    let done = undeploy(&world.lab, DEFAULT, "");
    assert!(done.status.success(), "{}", stderr(&done));
    assert_eq!(left(&world.lab), "");
    drop(operator);
    world.lab.stop().await.unwrap();
}

#[tokio::test]
async fn deploy_names_the_image_and_undeploy_leaves_the_apps_running_where_it_is_told_to() {
    const IMAGE: &str = "registry.example.com/kubesentry:test";
    let lab = cluster().await;
    for _again in 0..2 {
        let deployed = make(&lab, "deploy", &[&format!("IMG={IMAGE}")]);
        assert!(deployed.status.success(), "{}", stderr(&deployed));
    }
    let image = "jsonpath={.spec.template.spec.containers[*].image}";
    assert_eq!(kubectl(&lab, &["-n", NAMESPACE, "get", "deployment/kubesentry", "-o", image]), IMAGE);
    // Whoever begins with this and goes on with that has no conflict.
    install(&lab, &["apply", "-k", DEFAULT]).await;
    let world = World::on(lab, "keep").await;
    let operator = Operator::start(&world.lab, "keep", &[]).await.unwrap();
    world.create_app("shop", json!({"image": "nginx:1"})).await;
    let before = world.size("shop", 1).await;
    let gone = undeploy(&world.lab, DEFAULT, "--keep-pods");
    assert!(gone.status.success(), "{}", stderr(&gone));
    assert_eq!(left(&world.lab), "");
    let after = world.deployment("shop").await.unwrap();
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["metadata"]["ownerReferences"], Value::Null);
    assert_eq!(after["spec"], before["spec"]);
    drop(operator);
    world.lab.stop().await.unwrap();
}

/// What a role allows, as verb and resource.
fn granted(path: &str) -> Vec<(String, String)> {
    let role = kubesentry_api::manifest::read(&std::fs::read_to_string(root().join(path)).unwrap()).unwrap();
    let texts = |value: &Value| -> Vec<String> { serde_json::from_value(value.clone()).unwrap() };
    let mut out = Vec::new();
    for rule in role[0]["rules"].as_array().unwrap() {
        let group = texts(&rule["apiGroups"]).remove(0);
        for resource in texts(&rule["resources"]) {
            let (plural, rest) =
                resource.split_once('/').map_or((&*resource, String::new()), |(p, s)| (p, format!("/{s}")));
            let name = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
            out.extend(texts(&rule["verbs"]).into_iter().map(|verb| (verb, format!("{name}{rest}"))));
        }
    }
    out
}

#[tokio::test]
async fn in_namespaced_mode_the_operator_has_rights_in_the_watched_namespaces_only() {
    let lab = cluster().await;
    install(&lab, &["apply", "-k", NAMESPACED]).await;
    let bindings = kubectl(&lab, &["get", "clusterrolebindings", "-o", "yaml"]);
    assert!(!bindings.contains("kubesentry"), "{bindings}");
    let roles =
        kubectl(&lab, &["get", "clusterroles", "-l", "app.kubernetes.io/name=kubesentry", "-o", "json"]);
    let roles: Value = serde_json::from_str(&roles).unwrap();
    for role in roles["items"].as_array().unwrap() {
        let labels = role["metadata"]["labels"].as_object().unwrap();
        let for_people =
            labels.keys().any(|label| label.starts_with("rbac.authorization.k8s.io/aggregate-to-"));
        assert!(for_people, "{role}");
    }
    let everywhere = granted("config/rbac/role.yaml");
    assert!(everywhere.len() > 12, "{everywhere:?}");
    for (verb, resource) in &everywhere {
        assert!(may(&lab, verb, resource, Some("default")), "{verb} {resource}");
        for elsewhere in [Some("kube-system"), Some(NAMESPACE), None] {
            assert!(!may(&lab, verb, resource, elsewhere), "{verb} {resource} in {elsewhere:?}");
        }
    }
    for (verb, resource) in granted("config/rbac/audit_role.yaml") {
        assert!(may(&lab, &verb, &resource, Some(NAMESPACE)), "{verb} {resource}");
        assert!(!may(&lab, &verb, &resource, Some("default")), "{verb} {resource}");
    }

    // The overlay of the documentation, beside a copy of config/.
    let gone = undeploy(&lab, NAMESPACED, "");
    assert!(gone.status.success(), "{}", stderr(&gone));
    assert_eq!(left(&lab), "");
    for team in ["team-a", "team-b", "team-c"] {
        kubectl(&lab, &["create", "namespace", team]);
    }
    let overlay = documented_overlay(&lab.dir().join("overlay"));
    let overlay = overlay.to_str().unwrap();
    install(&lab, &["apply", "-k", overlay]).await;
    for (namespace, watched) in [("team-a", true), ("team-b", true), ("team-c", false), ("default", false)] {
        assert_eq!(may(&lab, "patch", "deployments.apps", Some(namespace)), watched, "{namespace}");
    }
    let variables = "jsonpath={.spec.template.spec.containers[0].env[*].value}";
    let watched = kubectl(&lab, &["-n", NAMESPACE, "get", "deployment/kubesentry", "-o", variables]);
    assert_eq!(watched, "team-a,team-b");
    let gone = undeploy(&lab, overlay, "");
    assert!(gone.status.success(), "{}", stderr(&gone));
    assert_eq!(left(&lab), "");
    lab.stop().await.unwrap();
}

/// Writes what docs/how-to/install.md shows: YAML blocks whose first line names their file.
fn documented_overlay(folder: &Path) -> PathBuf {
    let page = std::fs::read_to_string(root().join("docs/how-to/install.md")).unwrap();
    std::fs::create_dir(folder).unwrap();
    let copied = Command::new("cp").arg("-r").arg(root().join("config")).arg(folder).status().unwrap();
    assert!(copied.success());
    let mut files = 0;
    for block in page.split("```yaml\n").skip(1) {
        let block = block.split("```").next().unwrap();
        if let Some(name) = block.lines().next().and_then(|line| line.strip_prefix("# ")) {
            let file = folder.join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, block).unwrap();
            files += 1;
        }
    }
    assert_eq!(files, 3, "the overlay's files");
    folder.join("kubesentry")
}
