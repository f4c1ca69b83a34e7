//! A manifest must be read as kubectl reads it, or `lint` would judge another App than the one that is sent.
#![allow(clippy::unwrap_used)]

use common::Server;
use kubesentry_api::manifest;
use serde_json::Value;

mod cases;
mod common;

fn document(spec: &str) -> String {
    format!("apiVersion: apps.sentry.io/v1alpha1\nkind: App\nmetadata: {{name: a}}\nspec: {spec}\n")
}

#[tokio::test]
async fn every_case_is_read_as_kubectl_reads_it() {
    let server = Server::shared("manifests").await;
    let (cases, _) = cases::all();
    let texts: Vec<_> = cases.iter().map(|case| case.manifest.as_str()).collect();
    let theirs = server.read_by_kubectl(&texts.join("\n---\n"));
    assert_eq!(theirs.len(), cases.len());
    for (case, theirs) in cases.iter().zip(theirs) {
        assert_eq!(case.object().get("spec"), theirs.get("spec"), "{}", case.id);
    }
}

/// Not in the list, since no manifest has them: `08`, `1__0`, `tRue`, and a bare `y` as a key.
#[tokio::test]
async fn scalars_are_read_as_kubectl_reads_them() {
    let server = Server::shared("manifests").await;
    let scalars = [
        "on",
        "Off",
        "yes",
        "NO",
        "y",
        "N",
        "true",
        "False",
        "\"on\"",
        "'n'",
        "~",
        "null",
        "Null",
        "\"\"",
        "",
        "0",
        "-1",
        "+1",
        "1_000",
        "0x10",
        "0o17",
        "017",
        "0b11",
        "07",
        "0644",
        "1e3",
        "1E+2",
        "1.5e1",
        "2.0",
        "-0.0",
        "1.",
        ".5",
        "0.5",
        "1.25",
        "1e6",
        "123456789.0",
        "1e20",
        "12:30",
        "2024-01-01",
        "2024-01-01T00:00:00Z",
        "128Mi",
        "0.5%",
        "1s",
        "=",
        "<<",
        "1e",
        "0x",
        "_1",
        "1.2.3",
        "tru",
        "!!str 1",
        "!!int \"1\"",
        "|\n    a\n     b",
        ">-\n    a\n    b",
        "\"a\\tb\"",
        "'it''s'",
    ];
    let texts: Vec<_> = scalars.iter().map(|scalar| document(&format!("\n  v: {scalar}"))).collect();
    let theirs = server.read_by_kubectl(&texts.join("---\n"));
    let mut wrong = Vec::new();
    for ((scalar, text), theirs) in scalars.iter().zip(&texts).zip(theirs) {
        let ours = manifest::read(text).map(|documents| documents[0]["spec"]["v"].clone());
        let theirs: Value = theirs["spec"]["v"].clone();
        if ours.as_ref().ok() != Some(&theirs) {
            wrong.push(format!("{scalar}: kubectl {theirs}, read as {ours:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn keys_anchors_and_merges_are_read_as_kubectl_reads_them() {
    let server = Server::shared("manifests").await;
    let specs = [
        "{x: 1, 2: two, 1.5: x, true: t}",
        "\n  a: &a {x: 1, y1: 2}\n  b: *a",
        "\n  a: &a {x: 1, w: 2}\n  b: {<<: *a, x: 3}",
        "[a, 1, on, {b: c}]",
        "{a: {b: {c: [1, 2]}}} # a comment",
    ];
    let mut wrong = Vec::new();
    for spec in specs {
        let text = document(spec);
        let theirs = server.read_by_kubectl(&text)[0]["spec"].take();
        let ours = manifest::read(&text).map(|mut documents| documents[0]["spec"].take());
        if ours.as_ref().ok() != Some(&theirs) {
            wrong.push(format!("{spec}: kubectl {theirs}, read as {ours:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
