//! Properties of the audit trail that hold for every input, and the drafts that tests share.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use serde_json::Value;

use super::*;

/// A plain draft.
pub(super) fn draft() -> Draft {
    Draft {
        app: AppRef {
            namespace: "default".to_owned(),
            name: "shop".to_owned(),
            uid: "6a8f0c9e".to_owned(),
            generation: 2,
        },
        at: "2026-01-01T00:00:00Z".to_owned(),
        operator: Operator {
            instance: "kubesentry-0".to_owned(),
            lease_transitions: 4,
            version: "0.1.0".to_owned(),
        },
        action: Action::PutBack,
        target: Target { kind: "Deployment".to_owned(), name: "shop".to_owned(), uid: None },
        decision: Decision::Execute,
        reason: "FieldsTaken".to_owned(),
        outcome: Outcome::Succeeded,
        message: ".spec.replicas".to_owned(),
    }
}

/// Texts that grow when escaped, and plain ones, up to far beyond every bound.
fn text() -> impl Strategy<Value = String> {
    let chars = prop_oneof![any::<char>(), Just('"'), Just('\u{1}'), Just('ä'), Just('\u{1f600}'), Just('x')];
    prop_oneof![
        prop::collection::vec(chars, 0..40).prop_map(String::from_iter),
        (any::<char>(), 100..700_usize).prop_map(|(c, n)| c.to_string().repeat(n)),
    ]
}

fn any_draft() -> impl Strategy<Value = Draft> {
    let action = prop::sample::select(vec![
        Action::Create,
        Action::Resize,
        Action::PutBack,
        Action::Update,
        Action::TakeOver,
        Action::Contended,
        Action::Delete,
        Action::ExportAbandoned,
        Action::SkipExport,
    ]);
    let outcome =
        prop::sample::select(vec![Outcome::Pending, Outcome::Succeeded, Outcome::Failed, Outcome::Abandoned]);
    let decision =
        prop::sample::select(vec![Decision::Execute, Decision::Hold, Decision::Skip, Decision::Block]);
    let target = (text(), text(), prop::option::of(text()));
    let texts = (text(), text(), text(), text());
    (action, outcome, decision, target, texts, any::<i64>()).prop_map(
        |(action, outcome, decision, (kind, name, uid), (at, reason, message, app), generation)| Draft {
            app: AppRef { namespace: app.clone(), name: app.clone(), uid: app, generation },
            at,
            action,
            target: Target { kind, name, uid },
            decision,
            reason,
            outcome,
            message,
            ..draft()
        },
    )
}

fn sealed(drafts: Vec<Draft>) -> (Vec<Record>, Chain) {
    let mut chain = Chain::start();
    let records = drafts.into_iter().map(|draft| chain.append(draft)).collect();
    (records, chain)
}

/// Pointers of all leaves.
fn leaves(value: &Value, at: &str, out: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(key, inner)| leaves(inner, &format!("{at}/{key}"), out));
        }
        _ => out.push(at.to_owned()),
    }
}

/// Other values for a leaf that the record's type may still take.
fn others(value: &Value) -> Vec<Value> {
    match value {
        Value::Number(n) => {
            let n = n.as_u64().unwrap();
            vec![(n + 1).into(), n.saturating_sub(1).into(), (u64::MAX / 2).into()]
        }
        Value::String(text) => {
            let words = ["Create", "Update", "Hold", "Skip", "Failed", "Pending", ""].map(Value::from);
            words.into_iter().chain([format!("{text} ").into(), text.to_uppercase().into()]).collect()
        }
        _ => vec![],
    }
}

proptest! {
    #[test]
    fn what_was_appended_verifies_and_survives_json(drafts in prop::collection::vec(any_draft(), 0..6)) {
        let (records, chain) = sealed(drafts);
        prop_assert_eq!(verify(&records, &Chain::start()), Ok(chain));
        let json = serde_json::to_string(&records).unwrap();
        prop_assert_eq!(serde_json::from_str::<Vec<Record>>(&json).unwrap(), records);
    }

    #[test]
    fn one_record_removed_or_doubled_is_noticed(
        drafts in prop::collection::vec(any_draft(), 2..5), which in any::<prop::sample::Index>(),
    ) {
        let (records, chain) = sealed(drafts);
        let which = which.index(records.len());
        let mut fewer = records.clone();
        fewer.remove(which);
        // Without its last record a chain is whole, but ends elsewhere.
        prop_assert_ne!(verify(&fewer, &Chain::start()), Ok(chain));
        let mut more = records.clone();
        more.insert(which, records[which].clone());
        prop_assert!(verify(&more, &Chain::start()).is_err());
    }

    #[test]
    fn texts_are_bounded_whatever_the_input(draft in any_draft(), seq in any::<u64>()) {
        let mut record = Chain::start().append(draft);
        prop_assert!(record.message.len() <= MESSAGE_MAX_BYTES);
        prop_assert!(record.reason.len() <= REASON_MAX_BYTES);
        record.seq = seq;
        let digest = serde_json::to_string(&Digest::from(&record)).unwrap();
        prop_assert!(digest.len() <= DIGEST_MAX_BYTES, "{} bytes: {digest}", digest.len());
    }

    #[test]
    fn a_ledger_never_loses_a_record(
        steps in prop::collection::vec((0..4_u8, 0..6_u64, any::<bool>()), 1..60), hostile in any_draft(),
    ) {
        let mut ledger = Ledger::default();
        // What the sinks hold, by number; a chunk is put before the ledger hears of it.
        let mut kept = std::collections::BTreeMap::new();
        let mut appended = Vec::new();
        for (step, back, lost_write) in steps {
            let before = ledger.clone();
            match step {
                0 | 1 => appended.push(ledger.append(if step == 0 { draft() } else { hostile.clone() })),
                _ => {
                    if let Some(chunk) = ledger.chunk() {
                        let up_to = chunk.last_seq.saturating_sub(if step == 2 { 0 } else { back });
                        let part = chunk.records.into_iter().filter(|record| record.seq <= up_to);
                        kept.extend(part.map(|record| (record.seq, record)));
                        ledger.flushed(up_to.max(before.flushed_seq));
                        if lost_write {
                            ledger = before;
                        }
                    }
                }
            }
            prop_assert!(ledger.verify().is_ok());
            for record in &appended {
                let waits = ledger.unflushed.contains(record);
                prop_assert!(waits || kept.get(&record.seq) == Some(record), "record {} is lost", record.seq);
                prop_assert_eq!(waits, record.seq > ledger.flushed_seq);
            }
            let read: Ledger = serde_json::from_value(serde_json::to_value(&ledger).unwrap()).unwrap();
            prop_assert_eq!(read, ledger.clone());
        }
        let all: Vec<Record> = kept.into_values().filter(|record| record.seq <= ledger.flushed_seq)
            .chain(ledger.unflushed.iter().cloned()).collect();
        prop_assert_eq!(verify(&all, &Chain::start()), Ok(ledger.chain()));
    }

    #[test]
    fn a_manifest_counts_each_record_once_as_there_or_missing(
        chunks in prop::collection::vec((0..40_u64, 0..40_u64), 0..8), seq in 0..30_u64,
    ) {
        let head = Chain { seq, head_hash: "0".repeat(64) };
        let sum = Manifest::over(chunks.iter().copied(), &head);
        let has = |n: u64| chunks.iter().any(|(first, last)| (*first..=*last).contains(&n));
        let there = (1..=seq).filter(|n| has(*n)).count() as u64;
        prop_assert_eq!(sum.count, there);
        let missing = (sum.first_seq.max(1)..=seq).filter(|n| !has(*n));
        let gaps = sum.gaps.iter().flat_map(|gap| gap.first_seq..=gap.last_seq);
        prop_assert!(missing.eq(gaps), "{:?}", sum);
    }
}

proptest! {
    // Each case tries several values for every field of a record.
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn one_changed_field_of_one_record_breaks_the_chain(
        drafts in prop::collection::vec(any_draft(), 1..4), which in any::<prop::sample::Index>(),
    ) {
        let (records, _) = sealed(drafts);
        let which = which.index(records.len());
        let original = serde_json::to_value(&records[which]).unwrap();
        let mut pointers = Vec::new();
        leaves(&original, "", &mut pointers);
        for pointer in pointers {
            for other in others(original.pointer(&pointer).unwrap()) {
                let mut changed = original.clone();
                *changed.pointer_mut(&pointer).unwrap() = other;
                let Ok(record) = serde_json::from_value::<Record>(changed) else { continue };
                if record == records[which] {
                    continue;
                }
                let mut tampered = records.clone();
                tampered[which] = record;
                prop_assert!(verify(&tampered, &Chain::start()).is_err(), "{} went unnoticed", pointer);
            }
        }
    }
}
