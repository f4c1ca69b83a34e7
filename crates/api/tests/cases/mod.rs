//! The cases of `app-manifests.yaml`, for the pure and the live test.
#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Deserialize)]
pub(crate) struct Case {
    pub(crate) id: String,
    pub(crate) wanted: Wanted,
    #[serde(default)]
    pub(crate) seen_by: Vec<String>,
    #[serde(default)]
    pub(crate) paths: Vec<String>,
    pub(crate) manifest: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Wanted {
    Accept,
    Refuse,
}

/// Fields that arrive with the part that acts on them. A case that uses one is left out until then.
const LATER: [&str; 8] = [
    "/spec/healing",
    "/spec/service",
    "/spec/disruptionBudget",
    "/spec/signals",
    "/spec/audit",
    "/spec/scaling/behavior",
    "/spec/scaling/blindRise",
    "/spec/scaling/metrics/0/query",
];

impl Case {
    pub(crate) fn object(&self) -> Value {
        let mut documents = kubesentry_api::manifest::read(&self.manifest).unwrap();
        assert_eq!(documents.len(), 1, "{}", self.id);
        documents.remove(0)
    }

    fn is_later(&self) -> bool {
        let object = self.object();
        LATER.iter().any(|field| object.pointer(field).is_some())
    }
}

/// The cases on fields of this version, and the ids of those left out.
pub(crate) fn all() -> (Vec<Case>, Vec<String>) {
    let text = include_str!("app-manifests.yaml");
    let cases: Vec<Case> = serde_saphyr::from_str(text).unwrap();
    let (later, now): (Vec<_>, Vec<_>) = cases.into_iter().partition(Case::is_later);
    (now, later.into_iter().map(|case| case.id).collect())
}
