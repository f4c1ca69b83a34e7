//! The CRD may follow every released one: what users have stored, written down or own stays valid.
//!
//! `config/crd/released/README.md` says how a release adds its file. The check itself is tried on a copy of today's CRD
//! per kind of change.
#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, reason = "a test reads files")]

use std::fs;
use std::path::PathBuf;

use compatibility::changes::{ALLOWED, REFUSED};
use compatibility::edit::field;
use compatibility::losses;
use kubesentry_api::crd::definition;
use kubesentry_api::manifest;
use serde_json::{Value, json};

mod compatibility;

fn released() -> Vec<(String, Value)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../config/crd/released");
    let mut out = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let text = fs::read_to_string(&path).unwrap();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            out.push((name, manifest::read(&text).unwrap().remove(0)));
        }
    }
    out
}

#[test]
fn nothing_that_a_released_crd_offers_is_taken_away() {
    let released = released();
    assert!(!released.is_empty(), "there is no released CRD to compare with");
    let mut wrong = Vec::new();
    for (file, old) in &released {
        assert_eq!(old["kind"], "CustomResourceDefinition", "{file}");
        let losses = losses(old, &definition());
        wrong.extend(losses.into_iter().map(|loss| format!("since {file}: {loss}")));
    }
    assert!(
        wrong.is_empty(),
        "this change of the CRD would break stored Apps or their owners:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn each_kind_of_loss_is_refused_with_its_path() {
    for (sentence, change, wanted) in REFUSED {
        let mut changed = definition();
        change(&mut changed);
        let found = losses(&definition(), &changed);
        assert!(
            found.iter().any(|loss| loss.starts_with(wanted)),
            "{sentence}: wanted {wanted:?}, found {found:?}"
        );
    }
}

#[test]
fn each_change_that_takes_nothing_away_is_allowed() {
    for (sentence, change) in ALLOWED {
        let mut changed = definition();
        change(&mut changed);
        assert_eq!(losses(&definition(), &changed), Vec::<String>::new(), "{sentence}");
    }
}

#[test]
fn nullable_and_a_version_that_was_never_served_are_compared_with_care() {
    let (mut old, new) = (definition(), definition());
    field(&mut old, "spec.image")["nullable"] = json!(true);
    assert_eq!(losses(&old, &new), ["spec.image: nullable was taken away"]);
    assert_eq!(losses(&new, &old), Vec::<String>::new(), "nullable may be added");

    let mut old = definition();
    let mut unserved = old["spec"]["versions"][0].clone();
    unserved["name"] = json!("v1alpha0");
    unserved["served"] = json!(false);
    old["spec"]["versions"].as_array_mut().unwrap().push(unserved);
    assert_eq!(losses(&old, &new), Vec::<String>::new());
}
