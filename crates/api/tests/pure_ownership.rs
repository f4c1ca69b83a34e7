//! The 22 kinds of foreign change, as a real API server recorded them.
//!
//! Each row of `fixtures/ownership/changes.json` is one change, the Deployment that kube-apiserver returned after it, and
//! what the ownership check must say. `fixtures/ownership/README.md` says how the rows are recorded and replayed.
#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, reason = "the fixtures are files")]

use std::fs;
use std::path::PathBuf;

use kubesentry_api::ownership::{entry_hash, has_entry, holders, lost, lost_except, our_entry};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Row {
    /// File name without `.json`.
    fixture: String,
    /// What the row proves, as a sentence.
    name: String,
    /// Why this is the right answer.
    why: String,
    /// Paths that are lost.
    lost: Vec<String>,
    /// Who holds the first lost path now; nobody where it was removed.
    holder: Option<Holder>,
}

#[derive(Deserialize)]
struct Holder {
    manager: String,
    operation: String,
    subresource: Option<String>,
}

fn read(name: &str) -> Value {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/ownership");
    serde_json::from_slice(&fs::read(folder.join(name)).unwrap()).unwrap()
}

fn rows() -> Vec<Row> {
    serde_json::from_value(read("changes.json")).unwrap()
}

fn live(row: &Row) -> Value {
    read(&format!("{}.json", row.fixture))
}

#[test]
fn there_are_22_kinds_and_each_says_what_it_proves() {
    let rows = rows();
    assert_eq!(rows.len(), 22);
    for row in &rows {
        assert!(row.name.contains(' ') && row.why.contains(' '), "{}", row.fixture);
    }
}

#[test]
fn exactly_the_fields_that_a_change_takes_from_us_are_lost() {
    let intent = read("intent.json");
    for row in rows() {
        let mut found: Vec<String> = lost(&intent, &live(&row)).into_iter().map(|field| field.path).collect();
        let mut wanted = row.lost.clone();
        found.sort();
        wanted.sort();
        assert_eq!(found, wanted, "{}: {} ({})", row.fixture, row.name, row.why);
    }
}

#[test]
fn the_writer_who_holds_a_lost_field_is_named() {
    let intent = read("intent.json");
    for row in rows() {
        let live = live(&row);
        let lost = lost(&intent, &live);
        let Some(first) = row.lost.first() else { continue };
        let field = lost.iter().find(|field| field.path == *first).unwrap();
        let found = holders(&live, field).into_iter().next();
        let found = found.map(|writer| (writer.manager, writer.operation, writer.subresource));
        let wanted = row.holder.map(|holder| (holder.manager, holder.operation, holder.subresource));
        assert_eq!(found, wanted, "{}: {}", row.fixture, row.name);
    }
}

#[test]
fn a_projection_with_nothing_but_managed_fields_gives_the_same_answer() {
    let intent = read("intent.json");
    for row in rows() {
        let live = live(&row);
        let projection = json!({"metadata": {"managedFields": live["metadata"].get("managedFields")}});
        assert_eq!(lost(&intent, &projection), lost(&intent, &live), "{}", row.fixture);
    }
}

#[test]
fn the_entry_hash_changes_exactly_with_a_loss() {
    let rows = rows();
    let untouched = rows.iter().find(|row| row.fixture == "02-scale-to-the-same").unwrap();
    let untouched = entry_hash(&live(untouched)).unwrap();
    for row in rows {
        let live = live(&row);
        assert_eq!(entry_hash(&live).as_ref() == Some(&untouched), row.lost.is_empty(), "{}", row.fixture);
        assert_eq!(has_entry(&live), our_entry(&live).is_some());
    }
}

#[test]
fn where_the_size_is_not_ours_a_hand_scale_is_no_loss() {
    let intent = read("intent.json");
    let except = [".spec.replicas", ".metadata.annotations.apps.sentry.io/desired-replicas"];
    for row in rows() {
        let found = lost_except(&intent, &live(&row), &except);
        let wanted = row.lost.iter().filter(|path| *path != ".spec.replicas").count();
        assert_eq!(found.len(), wanted, "{}: {}", row.fixture, row.name);
    }
}
