//! The parser's answer to every case of `cases/app-manifests.yaml`.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may read files, print, and end here"
)]

use std::collections::BTreeSet;

use cases::Wanted;
use kubesentry_api::{ParseOptions, parse};

mod cases;

#[test]
fn the_parser_answers_every_case_as_wanted() {
    let (cases, later) = cases::all();
    println!("left out, on fields of later versions: {later:?}");
    assert!(cases.len() >= 80, "only {} cases are left", cases.len());
    let mut wrong = Vec::new();
    for case in &cases {
        let parsed = parse(&case.object(), &ParseOptions::default());
        let found: BTreeSet<_> = parsed.violations.iter().map(|v| v.path.clone()).collect();
        let paths: BTreeSet<_> = case.paths.iter().cloned().collect();
        let right = match case.wanted {
            Wanted::Accept => parsed.app.is_some() && found.is_empty(),
            Wanted::Refuse => {
                assert!(
                    case.seen_by.iter().any(|v| v == "parse"),
                    "{}: every fault is the parser's",
                    case.id
                );
                parsed.app.is_none() && found.is_superset(&paths)
            }
        };
        if !right {
            wrong.push(format!(
                "{}: wanted {:?} {paths:?}, found {:?}",
                case.id, case.wanted, parsed.violations
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_cases_left_out_are_those_of_later_fields_only() {
    let (_, later) = cases::all();
    let wanted = [
        "healing-bare-Off",
        "pdb-max",
        "pdb-min",
        "pdb-none",
        "pdb-text",
        "service",
        "service-no-port",
        "service-type",
        "signals-path",
        "tolerance",
        "tolerance-number",
        "two-cel-faults",
        "pdb-negative",
        "healing-budget-zero-window",
    ];
    assert_eq!(later, wanted);
}

#[test]
fn a_fault_is_reported_once() {
    let (cases, _) = cases::all();
    for case in cases {
        let violations = parse(&case.object(), &ParseOptions::default()).violations;
        let distinct: BTreeSet<_> = violations.iter().collect();
        assert_eq!(distinct.len(), violations.len(), "{}: {violations:?}", case.id);
    }
}
