//! Step 2: what should be, decided on the snapshot alone.
//!
//! Pure: parses the App, asks whose the Deployment is and who owns the size. It writes nothing and plans nothing; while
//! the spec has faults, or the Deployment is somebody else's, the answer is to hold still and report.

use std::sync::Arc;

use kubesentry_api::children::{self, Identity};
use kubesentry_api::conditions::Blocked;
use kubesentry_api::names::{ANNOTATION_DESIRED_REPLICAS, GROUP, KIND};
use kubesentry_api::reasons::Reason;
use kubesentry_api::violation::{FaultKind, Violation, summarize};
use kubesentry_api::{ParseOptions, ownership, parse};
use kubesentry_engine::size::{self, Observed, Replicas, Size};
use serde_json::json;

use super::observe::Observation;
use crate::memory::Understood;
use crate::objects::{App, Deployment};

/// Violations told in a condition's message; the rest is counted.
const VIOLATIONS_TOLD: usize = 10;

/// What should be.
#[derive(Debug, Clone)]
pub struct Judgement {
    /// The App as it was understood.
    pub understood: Arc<Understood>,
    /// Whose the Deployment is.
    pub whose: Whose,
    /// The size and who owns it; `None` while the spec has faults.
    pub size: Option<Size>,
    /// What follows.
    pub verdict: Verdict,
}

/// What follows from a judgement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The App is being deleted and waits for us.
    Release,
    /// The App is being deleted and doesn't wait for us: nothing to do.
    Leave,
    /// Nothing is written to children.
    Hold(Hold),
    /// The Deployment is kept aligned.
    Align,
}

/// Why nothing is written to children.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hold {
    /// The spec has faults.
    Invalid(Blocked),
    /// The Deployment is somebody else's.
    Conflict(Blocked),
    /// `spec.suspend`.
    Suspended,
}

/// Whose the Deployment of the App's name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// There is none.
    Nobodys,
    /// The App's.
    Ours,
    /// It was applied by this operator for an App of this name that is gone.
    AVanishedApps,
    /// Anybody else's.
    SomebodyElses,
}

/// Parses an App and builds the intent of its Deployment. Called once per content.
pub fn understand(app: &App, options: &ParseOptions) -> Understood {
    let mut parsed = parse(&app.raw, options);
    let identity = Identity {
        name: app.key.name.to_string(),
        namespace: app.key.namespace.to_string(),
        uid: app.uid.clone(),
    };
    let intent = match parsed.app.as_ref().map(|valid| children::deployment(&valid.workload, &identity)) {
        Some(Ok(intent)) => Some(intent),
        Some(Err(error)) => {
            parsed.app = None;
            parsed.violations.push(Violation::new("spec.template", FaultKind::Invalid, error.to_string()));
            None
        }
        None => None,
    };
    Understood { parsed, intent }
}

/// Judges a snapshot.
pub fn judge(observation: &Observation, understood: Arc<Understood>) -> Judgement {
    let app = &observation.app;
    let whose = whose(app, observation.child.as_deref());
    let size =
        understood.valid().map(|(valid, _)| size::decide(&valid.policy, &observed_size(observation, whose)));
    let verdict = if app.deletion.is_some() {
        if app.finalizer_index().is_some() { Verdict::Release } else { Verdict::Leave }
    } else if let Some((valid, _)) = understood.valid() {
        if valid.policy.suspend {
            Verdict::Hold(Hold::Suspended)
        } else if whose == Whose::SomebodyElses {
            Verdict::Hold(Hold::Conflict(conflict(app, observation.child.as_deref())))
        } else {
            Verdict::Align
        }
    } else {
        Verdict::Hold(Hold::Invalid(Blocked {
            reason: Reason::InvalidSpec,
            message: summarize(&understood.parsed.violations, VIOLATIONS_TOLD),
        }))
    };
    Judgement { understood, whose, size, verdict }
}

fn observed_size(observation: &Observation, whose: Whose) -> Observed {
    let other_scaler = observation.scaler.is_some();
    let child = observation.child.as_deref().filter(|_| matches!(whose, Whose::Ours | Whose::AVanishedApps));
    let Some(child) = child else {
        return Observed { other_scaler, ..Observed::default() };
    };
    // The annotation speaks for us only while it is ours: somebody may have written another number there.
    let annotation = json!({"metadata": {"annotations": {ANNOTATION_DESIRED_REPLICAS: ""}}});
    let is_our_word = ownership::lost(&annotation, &child.owned).is_empty();
    Observed {
        live: Replicas::from_i64(i64::from(child.replicas)),
        last_written: child.desired_replicas.filter(|_| is_our_word).map(Replicas::new),
        other_scaler,
    }
}

fn whose(app: &App, child: Option<&Deployment>) -> Whose {
    let Some(child) = child else { return Whose::Nobodys };
    let applied_by_us = ownership::our_entry(&child.owned).is_some();
    match &child.controller {
        Some(owner) => {
            let is_app = owner.kind == KIND && owner.api_version.split('/').next() == Some(GROUP);
            if is_app && owner.uid == app.uid {
                Whose::Ours
            } else if is_app && owner.name == *app.key.name && applied_by_us {
                Whose::AVanishedApps
            } else {
                Whose::SomebodyElses
            }
        }
        // Deleted with --cascade=orphan, or somebody removed the owner reference.
        None if applied_by_us && child.label_app.as_deref() == Some(&*app.key.name) => Whose::AVanishedApps,
        None => Whose::SomebodyElses,
    }
}

fn conflict(app: &App, child: Option<&Deployment>) -> Blocked {
    let owner = child.and_then(|child| child.controller.as_ref()).map_or_else(
        || "it was not created by KubeSentry".to_owned(),
        |owner| format!("it belongs to {} {:?}", owner.kind, owner.name),
    );
    Blocked {
        reason: Reason::NameConflict,
        message: format!(
            "the Deployment {:?} exists and is left alone: {owner}; rename the App, or delete the Deployment and the manifest that creates it",
            &*app.key.name
        ),
    }
}
