#![allow(
    clippy::too_many_lines,
    clippy::items_after_statements,
    clippy::unnecessary_wraps,
    reason = "tables are long"
)]
use super::*;

fn passed(status: Status, reason: &str) -> Option<Passed> {
    Some(Passed { status, reason: reason.to_owned(), message: format!("{reason}.") })
}

fn settled() -> DeploymentFacts {
    DeploymentFacts {
        generation: 1,
        observed_generation: Some(1),
        wanted: 3,
        replicas: 3,
        ready: 3,
        updated: 3,
        available: passed(Status::True, "MinimumReplicasAvailable"),
        progressing: passed(Status::True, "NewReplicaSetAvailable"),
    }
}

fn facts() -> Facts {
    Facts {
        generation: 4,
        deleting: false,
        suspended: false,
        invalid: None,
        name_conflict: None,
        stalled: None,
        contended: None,
        deployment: Some(settled()),
        size: Some((SizeOwner::Engine, Mode::Auto, None)),
        was_available: true,
    }
}

fn blocked(reason: Reason) -> Option<Blocked> {
    Some(Blocked { reason, message: format!("{reason}!") })
}

const NOW: &str = "2026-01-01T00:00:00Z";

fn summary(facts: &Facts) -> (Status, String, Phase) {
    let (conditions, phase) = derive(facts, &[], NOW);
    (conditions[0].status, conditions[0].reason.clone(), phase)
}

#[test]
fn ready_and_phase_follow_the_facts() {
    let with = |change: fn(&mut Facts)| {
        let mut facts = facts();
        change(&mut facts);
        summary(&facts)
    };
    fn dep(facts: &mut Facts) -> &mut DeploymentFacts {
        facts.deployment.as_mut().unwrap()
    }
    use Status::{False, True, Unknown};
    let table = [
        ("all is well", with(|_| {}), (True, "Aligned", Phase::Stable)),
        ("deleting", with(|f| f.deleting = true), (True, "Aligned", Phase::Terminating)),
        (
            "suspended keeps Ready's value",
            with(|f| f.suspended = true),
            (True, "Suspended", Phase::Suspended),
        ),
        (
            "suspended and unavailable stays False",
            with(|f| {
                f.suspended = true;
                dep(f).available = passed(False, "MinimumReplicasUnavailable");
            }),
            (False, "Suspended", Phase::Suspended),
        ),
        (
            "never available and nothing wrong",
            with(|f| {
                f.was_available = false;
                f.deployment = None;
            }),
            (Unknown, "WaitingForDeployment", Phase::Pending),
        ),
        (
            "never available and invalid is not pending",
            with(|f| {
                f.was_available = false;
                f.deployment = None;
                f.invalid = blocked(Reason::InvalidSpec);
            }),
            (False, "InvalidSpec", Phase::Degraded),
        ),
        (
            "a rejected Deployment",
            with(|f| f.invalid = blocked(Reason::DeploymentRejected)),
            (False, "DeploymentRejected", Phase::Degraded),
        ),
        (
            "a name conflict",
            with(|f| f.name_conflict = blocked(Reason::NameConflict)),
            (False, "NameConflict", Phase::Degraded),
        ),
        (
            "the spec comes before the name",
            with(|f| {
                f.invalid = blocked(Reason::InvalidSpec);
                f.name_conflict = blocked(Reason::NameConflict);
            }),
            (False, "InvalidSpec", Phase::Degraded),
        ),
        (
            "a quota",
            with(|f| f.stalled = blocked(Reason::QuotaExceeded)),
            (False, "QuotaExceeded", Phase::Degraded),
        ),
        (
            "a stuck roll-out is stalled",
            with(|f| dep(f).progressing = passed(False, "ProgressDeadlineExceeded")),
            (False, "ProgressDeadlineExceeded", Phase::Degraded),
        ),
        (
            "stalled comes before unavailable",
            with(|f| {
                f.stalled = blocked(Reason::Forbidden);
                dep(f).available = passed(False, "MinimumReplicasUnavailable");
            }),
            (False, "Forbidden", Phase::Degraded),
        ),
        (
            "unavailable comes before contended",
            with(|f| {
                f.contended = Some("x".into());
                dep(f).available = passed(False, "MinimumReplicasUnavailable");
            }),
            (False, "MinimumReplicasUnavailable", Phase::Degraded),
        ),
        (
            "contended",
            with(|f| f.contended = Some("kubectl".into())),
            (False, "ForeignWriter", Phase::Degraded),
        ),
        ("resizing", with(|f| dep(f).wanted = 5), (True, "Aligned", Phase::Scaling)),
        ("rolling out", with(|f| dep(f).updated = 1), (True, "Aligned", Phase::Progressing)),
        (
            "a roll-out that also resizes is a roll-out",
            with(|f| {
                dep(f).updated = 1;
                dep(f).wanted = 5;
            }),
            (True, "Aligned", Phase::Progressing),
        ),
        (
            "no report from the Deployment",
            with(|f| dep(f).available = None),
            (Unknown, "WaitingForDeployment", Phase::Stable),
        ),
    ];
    for (sentence, got, (status, reason, phase)) in table {
        assert_eq!(got, (status, reason.to_owned(), phase), "{sentence}");
    }
}

#[test]
fn ready_never_says_true_while_a_counted_condition_is_off() {
    // Every combination of the facts that conditions are derived from.
    for bits in 0..1u32 << 7 {
        let on = |bit: u32| bits & (1 << bit) != 0;
        let mut facts = facts();
        facts.invalid = if on(0) { blocked(Reason::InvalidSpec) } else { None };
        facts.name_conflict = if on(1) { blocked(Reason::NameConflict) } else { None };
        facts.stalled = if on(2) { blocked(Reason::Forbidden) } else { None };
        facts.contended = on(3).then(|| "x".to_owned());
        facts.suspended = on(4);
        if on(5) {
            facts.deployment = None;
        } else if on(6) {
            facts.deployment.as_mut().unwrap().available = passed(Status::False, "No");
        }
        let (conditions, _) = derive(&facts, &[], NOW);
        let off = ConditionType::ALL.iter().any(|kind| {
            let (normal, counted, _) = kind.explanation();
            counted && conditions.iter().any(|c| c.kind == kind.as_str() && c.status != normal)
        });
        if conditions[0].status == Status::True {
            assert!(!off && !on(1), "{facts:?}");
        } else {
            assert!(off || on(1), "Ready is off without a cause: {facts:?}");
        }
    }
}

#[test]
fn conditions_stand_in_order_and_foreign_ones_follow() {
    let foreign = Condition {
        kind: "example.com/Checked".into(),
        status: Status::True,
        observed_generation: None,
        last_transition_time: "2020-01-01T00:00:00Z".into(),
        reason: "X".into(),
        message: String::new(),
    };
    let (conditions, _) = derive(&facts(), std::slice::from_ref(&foreign), NOW);
    let kinds: Vec<_> = conditions.iter().map(|c| c.kind.as_str()).collect();
    let mut wanted: Vec<_> = ConditionType::ALL.iter().map(|kind| kind.as_str()).collect();
    wanted.push("example.com/Checked");
    assert_eq!(kinds, wanted);
    assert_eq!(conditions.last(), Some(&foreign));
}

#[test]
fn a_transition_time_moves_with_the_status_only() {
    let (before, _) = derive(&facts(), &[], "2026-01-01T00:00:00Z");
    let mut changed = facts();
    changed.deployment.as_mut().unwrap().available = passed(Status::True, "OtherReason");
    let (after, _) = derive(&changed, &before, "2026-01-01T00:00:09Z");
    assert!(after.iter().all(|c| c.last_transition_time == "2026-01-01T00:00:00Z"));
    changed.contended = Some("x".into());
    let (after, _) = derive(&changed, &before, "2026-01-01T00:00:09Z");
    let moved: Vec<_> =
        after.iter().filter(|c| c.last_transition_time.ends_with("09Z")).map(|c| c.kind.as_str()).collect();
    assert_eq!(moved, ["Ready", "Contended"]);
}

#[test]
fn readys_message_tells_what_is_off_though_it_is_not_counted() {
    let (conditions, _) = derive(&facts(), &[], NOW);
    assert_eq!(conditions[0].message, "3/3 ready; scaling inactive: SignalsNotImplemented");
    let pinned =
        Facts { size: Some((SizeOwner::Pinned, Mode::Auto, Some(Limit::PinnedOutsideLimits))), ..facts() };
    let (conditions, _) = derive(&pinned, &[], NOW);
    assert_eq!(
        conditions[0].message,
        "3/3 ready; scaling inactive: Pinned; scaling limited: PinnedOutsideLimits"
    );
}

#[test]
fn every_reason_fits_the_api_servers_pattern() {
    for reason in Reason::ALL {
        assert!(crate::structure::matches("^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", reason.as_str()));
    }
}

#[test]
fn a_message_of_any_length_fits_a_condition() {
    let long = Facts {
        invalid: Some(Blocked { reason: Reason::InvalidSpec, message: "ä".repeat(100_000) }),
        ..facts()
    };
    let (conditions, _) = derive(&long, &[], NOW);
    assert!(conditions.iter().all(|c| c.message.chars().count() <= MESSAGE_MAX + 4));
    assert!(conditions[0].message.ends_with("ä ..."));
}
