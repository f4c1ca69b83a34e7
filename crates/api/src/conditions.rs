//! Conditions and phase of an App, derived from facts.
//!
//! Pure: the caller (`operator`'s judge and report steps) hands in what it observed and when, and gets the whole list in
//! its fixed order. `Ready` is computed from the other conditions, so that it can't say True while a counted part is
//! broken or unknown. The shape is `metav1.Condition`; a condition that can't have a meaning yet is absent.

mod derive;

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use derive::{Blocked, DeploymentFacts, Facts, Passed, derive};

/// Types of conditions, in the order in which they stand in the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum ConditionType {
    Ready,
    SpecValid,
    Stalled,
    Available,
    Contended,
    Progressing,
    Reconciling,
    ScalingActive,
    ScalingLimited,
}

impl ConditionType {
    /// Every type, in order.
    pub const ALL: [ConditionType; 9] = [
        ConditionType::Ready,
        ConditionType::SpecValid,
        ConditionType::Stalled,
        ConditionType::Available,
        ConditionType::Contended,
        ConditionType::Progressing,
        ConditionType::Reconciling,
        ConditionType::ScalingActive,
        ConditionType::ScalingLimited,
    ];

    /// The type as it stands in a condition.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::SpecValid => "SpecValid",
            Self::Stalled => "Stalled",
            Self::Available => "Available",
            Self::Contended => "Contended",
            Self::Progressing => "Progressing",
            Self::Reconciling => "Reconciling",
            Self::ScalingActive => "ScalingActive",
            Self::ScalingLimited => "ScalingLimited",
        }
    }

    /// Its normal status, whether it counts in Ready, and what it says.
    pub const fn explanation(self) -> (Status, bool, &'static str) {
        match self {
            Self::Ready => {
                (Status::True, false, "The summary. `kubectl wait --for=condition=Ready` waits for it.")
            }
            Self::SpecValid => {
                (Status::True, true, "The App has no fault; otherwise the message lists them.")
            }
            Self::Stalled => (Status::False, true, "No progress without a person (kstatus)."),
            Self::Available => (Status::True, true, "As the Deployment's: enough Pods are available."),
            Self::Contended => (Status::False, true, "Another writer keeps changing fields of ours."),
            Self::Progressing => {
                (Status::True, false, "As the Deployment's: the roll-out advances or is done.")
            }
            Self::Reconciling => (Status::False, false, "Work is under way (kstatus)."),
            Self::ScalingActive => (Status::True, false, "KubeSentry sizes the App by its signals."),
            Self::ScalingLimited => (Status::False, false, "A bound or a pin shapes the size."),
        }
    }

    /// What Ready's message says when this condition is off its normal status though it isn't counted.
    const fn remark(self) -> &'static str {
        match self {
            Self::Progressing => "not progressing",
            Self::Reconciling => "reconciling",
            Self::ScalingActive => "scaling inactive",
            Self::ScalingLimited => "scaling limited",
            _ => "",
        }
    }
}

/// Status of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[allow(missing_docs)]
pub enum Status {
    True,
    False,
    Unknown,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        })
    }
}

/// A condition, in the shape of `metav1.Condition`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What the condition is about.
    #[serde(rename = "type")]
    #[schemars(
        length(max = 316),
        regex(
            pattern = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
        )
    )]
    pub kind: String,
    /// Whether it holds.
    pub status: Status,
    /// The generation of the spec that it speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// When the status changed last.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    /// Why, as one word; stable.
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"))]
    pub reason: String,
    /// Why, as a sentence.
    #[schemars(length(max = 32768))]
    pub message: String,
}

/// One word for the whole App.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[allow(missing_docs)]
pub enum Phase {
    Pending,
    Progressing,
    Stable,
    Scaling,
    Healing,
    Degraded,
    Suspended,
    Terminating,
}
