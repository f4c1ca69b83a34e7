//! Who owns the size of an App, and which size that gives.
//!
//! One function, [`decide`], reads the table "who owns the size" from top to bottom and takes the
//! first line that matches. It knows nothing of Deployments or of the API server: the caller
//! (`operator`'s judge step) hands in what was observed and turns the answer into an apply.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A number of Pods. Never negative; the API bounds it to [`Replicas::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
#[serde(transparent)]
pub struct Replicas(u32);

impl Replicas {
    /// The largest size an App may ask for (`maximum` of `spec.replicas` in the CRD).
    pub const MAX: Replicas = Replicas(10_000);

    /// A size; values above [`Replicas::MAX`] are kept as they are, since a Deployment may have been scaled beyond it
    /// by hand.
    pub const fn new(n: u32) -> Self {
        Self(n)
    }

    /// A size as Kubernetes writes it, an `int32`; `None` where it is negative.
    pub fn from_i64(n: i64) -> Option<Self> {
        u32::try_from(n).ok().filter(|n| i32::try_from(*n).is_ok()).map(Self)
    }

    /// The plain number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `spec.scaling.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// The operator decides the size and writes it.
    Auto,
    /// The operator decides and reports the size, but never writes it.
    DryRun,
    /// The operator neither decides nor writes the size.
    Disabled,
}

/// What an App says about its size, computed defaults already in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizePolicy {
    /// `spec.suspend`: nothing is written at all.
    pub suspend: bool,
    /// `spec.replicas`: a person pinned the size.
    pub pin: Option<Replicas>,
    /// `spec.scaling.mode`.
    pub mode: Mode,
    /// Lower bound, at least 1.
    pub min: Replicas,
    /// Upper bound, at least `min`.
    pub max: Replicas,
}

/// What was observed of the child whose size is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Observed {
    /// `spec.replicas` of the live Deployment; `None` where there is no Deployment yet.
    pub live: Option<Replicas>,
    /// The size this operator wrote last (the annotation `apps.sentry.io/desired-replicas`); `None` where the size
    /// was not ours at the last write.
    pub last_written: Option<Replicas>,
    /// Another scaler (a HorizontalPodAutoscaler, a ScaledObject) targets the same child.
    pub other_scaler: bool,
}

/// Who decides the size, by the first line of the table that matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SizeOwner {
    /// Nobody writes: the App is suspended.
    Suspended,
    /// Another scaler owns it; ours keeps its hands off.
    OtherScaler,
    /// A person pinned it.
    Pinned,
    /// Whoever scales the child by hand: scaling is in DryRun or Disabled.
    Observed,
    /// The operator.
    Engine,
}

/// Which bound changed the outcome, in the vocabulary of the HPA condition `ScalingLimited`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Limit {
    /// The pin lies outside `[minReplicas, maxReplicas]` and wins.
    PinnedOutsideLimits,
    /// The size was raised to `minReplicas`.
    TooFewReplicas,
    /// The size was lowered to `maxReplicas`.
    TooManyReplicas,
}

/// The answer of [`decide`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Who decided.
    pub owner: SizeOwner,
    /// The size to send; `None` only while suspended without a live child.
    pub replicas: Option<Replicas>,
    /// Which bound shaped the answer, if one did.
    pub limit: Option<Limit>,
}

impl Size {
    /// Whether this operator owns the field `spec.replicas`: then the apply writes the annotation beside it and a
    /// hand-scale is put back; otherwise the live value is sent with a resourceVersion and left alone.
    pub fn is_ours(&self) -> bool {
        matches!(self.owner, SizeOwner::Pinned | SizeOwner::Engine)
    }
}

/// Reads the table "who owns the size"; first match wins.
///
/// | state | size | a hand-scale of the child |
/// |---|---|---|
/// | `suspend` | nothing is written | left alone |
/// | another scaler | the live value | left alone |
/// | pinned | the pin, even outside the bounds | put back |
/// | `DryRun`, `Disabled` | the live value as it is; `min` for a new child | left alone |
/// | `Auto` | the last written size within the bounds; `min` for a new child; the live size where nothing was written | put back |
pub fn decide(policy: &SizePolicy, observed: &Observed) -> Size {
    let observed_or_min = observed.live.unwrap_or(policy.min);
    if policy.suspend {
        return Size { owner: SizeOwner::Suspended, replicas: observed.live, limit: None };
    }
    if observed.other_scaler {
        return Size { owner: SizeOwner::OtherScaler, replicas: Some(observed_or_min), limit: None };
    }
    if let Some(pin) = policy.pin {
        let outside = pin < policy.min || pin > policy.max;
        return Size {
            owner: SizeOwner::Pinned,
            replicas: Some(pin),
            limit: outside.then_some(Limit::PinnedOutsideLimits),
        };
    }
    match policy.mode {
        Mode::DryRun | Mode::Disabled => {
            Size { owner: SizeOwner::Observed, replicas: Some(observed_or_min), limit: None }
        }
        Mode::Auto => {
            // A vanished child starts anew at `min`: what was written to the old one died with it.
            let wanted = match observed.live {
                None => policy.min,
                Some(live) => observed.last_written.unwrap_or(live),
            };
            let (replicas, limit) = within(wanted, policy.min, policy.max);
            Size { owner: SizeOwner::Engine, replicas: Some(replicas), limit }
        }
    }
}

fn within(wanted: Replicas, min: Replicas, max: Replicas) -> (Replicas, Option<Limit>) {
    if wanted < min {
        (min, Some(Limit::TooFewReplicas))
    } else if wanted > max {
        (max, Some(Limit::TooManyReplicas))
    } else {
        (wanted, None)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn policy() -> SizePolicy {
        SizePolicy { suspend: false, pin: None, mode: Mode::Auto, min: Replicas(2), max: Replicas(5) }
    }

    fn seen(live: u32, last_written: Option<u32>) -> Observed {
        Observed { live: Some(Replicas(live)), last_written: last_written.map(Replicas), other_scaler: false }
    }

    fn size(policy: &SizePolicy, observed: Observed) -> (SizeOwner, Option<u32>, Option<Limit>) {
        let size = decide(policy, &observed);
        (size.owner, size.replicas.map(Replicas::get), size.limit)
    }

    #[test]
    fn each_line_of_the_table_gives_its_size() {
        let auto = policy();
        let pinned = |n| SizePolicy { pin: Some(Replicas(n)), ..policy() };
        let mode = |mode| SizePolicy { mode, ..policy() };
        let table = [
            (
                "a new child starts at min",
                size(&auto, Observed::default()),
                (SizeOwner::Engine, Some(2), None),
            ),
            ("a hand-scale is put back", size(&auto, seen(10, Some(3))), (SizeOwner::Engine, Some(3), None)),
            (
                "without annotation the live size counts",
                size(&auto, seen(4, None)),
                (SizeOwner::Engine, Some(4), None),
            ),
            (
                "hand-scaled to 0 without annotation goes to min",
                size(&auto, seen(0, None)),
                (SizeOwner::Engine, Some(2), Some(Limit::TooFewReplicas)),
            ),
            (
                "a pin of 0 removed goes to min",
                size(&auto, seen(0, Some(0))),
                (SizeOwner::Engine, Some(2), Some(Limit::TooFewReplicas)),
            ),
            (
                "a lowered max lowers the size",
                size(&auto, seen(9, Some(9))),
                (SizeOwner::Engine, Some(5), Some(Limit::TooManyReplicas)),
            ),
            ("a pin inside wins", size(&pinned(4), seen(3, Some(3))), (SizeOwner::Pinned, Some(4), None)),
            (
                "a pin outside wins too and is told",
                size(&pinned(9), seen(3, Some(3))),
                (SizeOwner::Pinned, Some(9), Some(Limit::PinnedOutsideLimits)),
            ),
            (
                "a pin of 0 is outside",
                size(&pinned(0), seen(3, Some(3))),
                (SizeOwner::Pinned, Some(0), Some(Limit::PinnedOutsideLimits)),
            ),
            (
                "DryRun leaves the live size",
                size(&mode(Mode::DryRun), seen(9, None)),
                (SizeOwner::Observed, Some(9), None),
            ),
            (
                "Disabled leaves even 0",
                size(&mode(Mode::Disabled), seen(0, Some(3))),
                (SizeOwner::Observed, Some(0), None),
            ),
            (
                "Disabled starts a new child at min",
                size(&mode(Mode::Disabled), Observed::default()),
                (SizeOwner::Observed, Some(2), None),
            ),
            (
                "another scaler beats the pin",
                size(&pinned(4), Observed { other_scaler: true, ..seen(7, None) }),
                (SizeOwner::OtherScaler, Some(7), None),
            ),
            (
                "suspend beats everything",
                size(
                    &SizePolicy { suspend: true, ..pinned(4) },
                    Observed { other_scaler: true, ..seen(7, None) },
                ),
                (SizeOwner::Suspended, Some(7), None),
            ),
        ];
        for (sentence, got, wanted) in table {
            assert_eq!(got, wanted, "{sentence}");
        }
    }

    fn any_policy() -> impl Strategy<Value = SizePolicy> {
        let modes = prop_oneof![Just(Mode::Auto), Just(Mode::DryRun), Just(Mode::Disabled)];
        (any::<bool>(), proptest::option::of(0u32..50), modes, 1u32..20, 0u32..20).prop_map(
            |(suspend, pin, mode, min, extra)| SizePolicy {
                suspend,
                pin: pin.map(Replicas),
                mode,
                min: Replicas(min),
                max: Replicas(min + extra),
            },
        )
    }

    fn any_observed() -> impl Strategy<Value = Observed> {
        (proptest::option::of(0u32..60), proptest::option::of(0u32..60), any::<bool>()).prop_map(
            |(live, last, other_scaler)| Observed {
                live: live.map(Replicas),
                last_written: last.map(Replicas),
                other_scaler,
            },
        )
    }

    proptest! {
        #[test]
        fn the_engine_never_leaves_the_bounds(policy in any_policy(), observed in any_observed()) {
            let size = decide(&policy, &observed);
            if size.owner == SizeOwner::Engine {
                let n = size.replicas.expect("the engine always has a size");
                prop_assert!(policy.min <= n && n <= policy.max);
            }
        }

        #[test]
        fn a_size_that_is_not_ours_is_the_live_one(policy in any_policy(), observed in any_observed()) {
            let size = decide(&policy, &observed);
            if !size.is_ours() && observed.live.is_some() {
                prop_assert_eq!(size.replicas, observed.live);
            }
        }

        #[test]
        fn what_was_decided_and_written_is_decided_again(policy in any_policy(), observed in any_observed()) {
            let first = decide(&policy, &observed);
            if first.is_ours() {
                let after = Observed { live: first.replicas, last_written: first.replicas, ..observed };
                prop_assert_eq!(decide(&policy, &after).replicas, first.replicas);
            }
        }
    }
}
