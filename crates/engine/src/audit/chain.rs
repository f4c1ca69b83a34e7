//! The hash chain that holds the records of a trail together.
//!
//! [`Chain::append`] numbers a draft, cuts what is too long and seals it; [`verify`] walks sealed
//! records. This module does not know where records are kept: [`super::Ledger`] keeps them in the
//! status and calls both.

use std::fmt;

use super::record::{Draft, FORMAT, MESSAGE_MAX_BYTES, REASON_MAX_BYTES, Record};
use crate::canonical::{MAX_SAFE_INTEGER, sha256_hex};

/// The end of a trail: all that the next record needs to know of those before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Number of the last record; 0 before the first.
    pub seq: u64,
    /// Hash of the last record; 64 zeros before the first.
    pub head_hash: String,
}

impl Chain {
    /// Before the first record.
    pub fn start() -> Self {
        Self { seq: 0, head_hash: "0".repeat(64) }
    }

    /// Numbers, cuts and seals a draft, and moves the end of the chain to it.
    pub fn append(&mut self, draft: Draft) -> Record {
        let Draft { mut app, at, operator, action, target, decision, mut reason, outcome, mut message } =
            draft;
        cut(&mut reason, REASON_MAX_BYTES);
        cut(&mut message, MESSAGE_MAX_BYTES);
        // Canonical JSON ends at 2^53 - 1, and so do both numbers: a seal can't fail.
        app.generation = app.generation.clamp(0, MAX_SAFE_INTEGER.cast_signed());
        let seq = self.seq.saturating_add(1).min(MAX_SAFE_INTEGER);
        let mut record = Record {
            v: FORMAT,
            id: id(&app.uid, seq),
            seq,
            prev_hash: std::mem::take(&mut self.head_hash),
            hash: String::new(),
            app,
            at,
            operator,
            action,
            target,
            decision,
            reason,
            outcome,
            message,
        };
        // Were it to fail all the same, the record would never pass as verified.
        record.hash = record.seal().unwrap_or_default();
        self.seq = seq;
        self.head_hash.clone_from(&record.hash);
        record
    }
}

fn id(app_uid: &str, seq: u64) -> String {
    let mut id = sha256_hex(format!("{app_uid}/{seq}").as_bytes());
    id.truncate(16);
    id
}

/// Shortens a text to at most `max` bytes, at a character boundary.
fn cut(text: &mut String, max: usize) {
    text.truncate(text.floor_char_boundary(max));
}

/// Where a trail stops to be one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenLink {
    /// The number that the record at this place should have.
    pub seq: u64,
    /// What is wrong with it.
    pub why: WhyBroken,
}

/// What is wrong with a record of a trail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhyBroken {
    /// A format that this version doesn't know.
    Format,
    /// Another number than the one after the record before: left out, repeated or moved.
    Sequence,
    /// It follows another record than the one before.
    Previous,
    /// Its id isn't the one of its App and number.
    Id,
    /// Its content isn't what was sealed.
    Content,
}

impl fmt::Display for BrokenLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.why {
            WhyBroken::Format => "has an unknown format",
            WhyBroken::Sequence => "is missing: another number stands in its place",
            WhyBroken::Previous => "does not follow the record before it",
            WhyBroken::Id => "has an id that is not its own",
            WhyBroken::Content => "was changed after it was sealed",
        };
        write!(f, "audit record {} {why}", self.seq)
    }
}

impl std::error::Error for BrokenLink {}

/// Walks records in order from where a chain stood before them, and gives where it stands after them.
///
/// A chain can't tell whether its *last* records are missing, or were written anew as a whole: compare
/// the answer with a head that is known from elsewhere (`status.audit`, an exported manifest).
pub fn verify(records: &[Record], start: &Chain) -> Result<Chain, BrokenLink> {
    records.iter().try_fold(start.clone(), |chain, record| {
        let seq = chain.seq.saturating_add(1);
        let why = if record.v != FORMAT {
            WhyBroken::Format
        } else if record.seq != seq {
            WhyBroken::Sequence
        } else if record.prev_hash != chain.head_hash {
            WhyBroken::Previous
        } else if record.id != id(&record.app.uid, record.seq) {
            WhyBroken::Id
        } else if record.seal().as_ref() != Some(&record.hash) {
            WhyBroken::Content
        } else {
            return Ok(Chain { seq, head_hash: record.hash.clone() });
        };
        Err(BrokenLink { seq, why })
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::properties::draft;
    use super::*;

    #[test]
    fn the_first_record_has_the_form_that_was_agreed() {
        let record = Chain::start().append(draft());
        let wanted = concat!(
            r#"{"v":1,"id":"ID","seq":1,"prevHash":"ZEROS","hash":"HASH","#,
            r#""app":{"namespace":"default","name":"shop","uid":"6a8f0c9e","generation":2},"#,
            r#""at":"2026-01-01T00:00:00Z","operator":{"instance":"kubesentry-0","leaseTransitions":4,"version":"0.1.0"},"#,
            r#""action":"PutBack","target":{"kind":"Deployment","name":"shop"},"#,
            r#""decision":"Execute","reason":"FieldsTaken","outcome":"Succeeded","message":".spec.replicas"}"#
        )
        .replace("ID", &record.id)
        .replace("ZEROS", &"0".repeat(64))
        .replace("HASH", &record.hash);
        assert_eq!(serde_json::to_string(&record).unwrap(), wanted);
        assert_eq!(record.id, sha256_hex(b"6a8f0c9e/1")[..16]);
    }

    #[test]
    fn the_hash_can_be_computed_with_a_text_editor_and_sha256sum() {
        let record = Chain::start().append(draft());
        let text = format!(
            concat!(
                r#"{zeros}{{"action":"PutBack","app":{{"generation":2,"name":"shop","namespace":"default","#,
                r#""uid":"6a8f0c9e"}},"at":"2026-01-01T00:00:00Z","decision":"Execute","id":"{id}","#,
                r#""message":".spec.replicas","operator":{{"instance":"kubesentry-0","leaseTransitions":4,"#,
                r#""version":"0.1.0"}},"outcome":"Succeeded","prevHash":"{zeros}","reason":"FieldsTaken","#,
                r#""seq":1,"target":{{"kind":"Deployment","name":"shop"}},"v":1}}"#
            ),
            zeros = "0".repeat(64),
            id = record.id,
        );
        assert_eq!(record.hash, sha256_hex(text.as_bytes()));
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let record =
            Chain::start().append(Draft { message: "ä".repeat(400), reason: "x".repeat(99), ..draft() });
        assert_eq!(record.message, "ä".repeat(256));
        let record = Chain::start().append(Draft { message: format!("a{}", "ä".repeat(400)), ..draft() });
        assert_eq!(record.message.len(), 511);
    }

    #[test]
    fn a_record_left_out_or_moved_is_found_with_its_number() {
        let mut chain = Chain::start();
        let mut records: Vec<Record> = (0..4).map(|_| chain.append(draft())).collect();
        records.swap(1, 2);
        let broken = verify(&records, &Chain::start()).unwrap_err();
        assert_eq!(broken, BrokenLink { seq: 2, why: WhyBroken::Sequence });
        records.swap(1, 2);
        records.remove(0);
        assert_eq!(verify(&records, &Chain::start()).unwrap_err().why, WhyBroken::Sequence);
        let other = Chain { seq: 1, head_hash: "f".repeat(64) };
        assert_eq!(verify(&records, &other).unwrap_err(), BrokenLink { seq: 2, why: WhyBroken::Previous });
    }
}
