//! Every reason that a condition of an App may carry, with what it means and what to do.
//!
//! Reasons are API: people search for them and machines match them, so that none is renamed or reused. The reference
//! page is generated from this table ([`reference`]). Reasons of `Available` and `Progressing` come from the Deployment
//! and are passed through.

use std::fmt::{self, Write as _};

macro_rules! reasons {
    ($($variant:ident on $condition:literal: $meaning:literal; $action:literal.)+) => {
        /// A reason of a condition.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Reason {
            $(#[doc = $meaning] $variant,)+
        }

        impl Reason {
            /// Every reason, in the order of the reference page.
            pub const ALL: &[Reason] = &[$(Reason::$variant,)+];

            /// The reason as it stands in a condition.
            pub const fn as_str(self) -> &'static str {
                match self { $(Reason::$variant => stringify!($variant),)+ }
            }

            /// The conditions that may carry it, what it means, and what to do.
            pub const fn explanation(self) -> (&'static str, &'static str, &'static str) {
                match self { $(Reason::$variant => ($condition, $meaning, $action),)+ }
            }
        }
    };
}

reasons! {
    Aligned on "Ready, Reconciling": "The Deployment is as the App wants it."; "Nothing.".
    Suspended on "Ready, Reconciling, ScalingActive": "`spec.suspend` is true: KubeSentry observes and reports, but changes nothing."; "Set `spec.suspend` to false to go on.".
    WaitingForDeployment on "Ready, Available": "The Deployment does not exist yet, or its controller has not reported on it yet."; "Wait; if it stays, look whether the cluster's controller manager runs.".
    Valid on "SpecValid": "The App has no fault."; "Nothing.".
    InvalidSpec on "SpecValid, Ready, Stalled": "The App has faults, listed in the message; nothing is created, changed or put back until they are gone."; "Correct the fields that the message names.".
    DeploymentRejected on "SpecValid, Ready, Stalled": "The API server refused the Deployment that the App asks for; the message carries its words."; "Correct the fields that the message names; it is tried again on a change, and every 5 minutes.".
    NameConflict on "Ready, Stalled": "A Deployment of the App's name exists and is not the App's; it is left alone."; "Rename the App, or delete the Deployment and the manifest that creates it.".
    NotStalled on "Stalled": "Nothing waits for a person."; "Nothing.".
    ProgressDeadlineExceeded on "Stalled, Ready": "The roll-out made no progress within `rollout.progressDeadlineSeconds`."; "Look at the new Pods: `kubectl get pods -l apps.sentry.io/app=NAME`, and describe those that are not ready.".
    QuotaExceeded on "Stalled, Ready": "A quota of the namespace forbids the write; it is tried again."; "Raise the quota or lower what the App asks for.".
    NamespaceTerminating on "Stalled, Ready": "The namespace is being deleted; nothing can be created in it."; "Nothing, or create the App in another namespace.".
    Forbidden on "Stalled, Ready": "The API server forbids the write; it is tried again."; "Grant the operator's ServiceAccount the verb in the message, or change the policy that refuses it.".
    NotContended on "Contended": "No other writer keeps changing fields of ours."; "Nothing.".
    ForeignWriter on "Contended, Ready": "Another writer changed the same field three times within five minutes; it is put back ever more rarely. The message names writer and field."; "Stop the other writer, or take the field out of its manifest. To own the size yourself, pin it with `spec.replicas`.".
    RollingOut on "Reconciling": "Pods of an older version are being replaced."; "Wait.".
    Resizing on "Reconciling": "The number of Pods is on its way to the wanted size."; "Wait.".
    Deploying on "Reconciling": "The Deployment is being created, or its controller has not seen the newest version yet."; "Wait.".
    SignalsNotImplemented on "ScalingActive": "This version of KubeSentry reads no signals yet: the size stays as written last, within its bounds."; "Pin the size with `spec.replicas`, or set both bounds.".
    Pinned on "ScalingActive": "`spec.replicas` pins the size."; "Remove the pin to go back: `kubectl patch apps.apps.sentry.io NAME --type=merge -p '{\"spec\":{\"replicas\":null}}'`.".
    ScalingDisabled on "ScalingActive": "`scaling.mode` is Disabled: the size is whoever's who sets it."; "Set `scaling.mode` to Auto.".
    AmbiguousScaler on "ScalingActive": "Another scaler, such as a HorizontalPodAutoscaler, targets the Deployment; the size is left to it."; "Delete the other scaler, or set `scaling.mode` to Disabled.".
    DesiredWithinRange on "ScalingLimited": "No bound shaped the size."; "Nothing.".
    PinnedOutsideLimits on "ScalingLimited": "The pinned size lies outside minReplicas and maxReplicas, and wins."; "Nothing if it is meant; else change the pin or the bounds.".
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The reference page of conditions and reasons, in Markdown: docs/reference/conditions.md.
pub fn reference() -> String {
    let mut page = String::from(
        "# Conditions and reasons\n\n\
         Generated by `kubesentry manifests conditions`; a test refuses any difference.\n\n\
         | condition | normal | counted in Ready | says |\n|---|---|---|---|\n",
    );
    for kind in crate::conditions::ConditionType::ALL {
        let (normal, counted, says) = kind.explanation();
        let counted = if counted { "yes" } else { "no" };
        let _ = writeln!(page, "| `{}` | {normal} | {counted} | {says} |", kind.as_str());
    }
    page.push_str(
        "\nReasons of `Available` and `Progressing` are the Deployment's own. All others:\n\n\
         | reason | on | meaning | what to do |\n|---|---|---|---|\n",
    );
    for reason in Reason::ALL {
        let (on, meaning, action) = reason.explanation();
        let _ = writeln!(page, "| `{reason}` | {on} | {meaning} | {action} |");
    }
    page
}
