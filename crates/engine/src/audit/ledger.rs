//! The part of an App's audit trail that lives in its status, and how records leave it.
//!
//! The [`Ledger`] has the exact shape of `status.audit`. It does not know where chunks are kept nor
//! how large the rest of the status is; `operator`'s report step asks it and carries chunks away.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::chain::{BrokenLink, Chain, WhyBroken, verify};
use super::record::{Action, Draft, Outcome, Record};
use crate::canonical::escaped_len;

/// Digests kept in `recent`.
pub const RECENT_MAX: usize = 20;
/// Records that may wait in the status before they go into a chunk.
pub const FLUSH_RECORDS: usize = 16;
/// Bytes of JSON that waiting records may take in the status: half of the 32 KiB that a status may have.
pub const FLUSH_BYTES: usize = 16 * 1024;
/// Longest JSON of a [`Digest`], in bytes.
pub const DIGEST_MAX_BYTES: usize = 300;

// Bytes of JSON. A digest without these three takes at most 125: names, quotes, 20 digits, the longest action and
// outcome. They add 160, which leaves room for a level and longer outcomes to come.
const AT_MAX: usize = 32;
const TARGET_MAX: usize = 84;
const DIGEST_REASON_MAX: usize = 44;

/// A record in short, for people who read the status. At most [`DIGEST_MAX_BYTES`] as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Digest {
    /// Number of the record.
    pub seq: u64,
    /// When, RFC 3339 in whole seconds.
    pub at: String,
    /// What.
    pub action: Action,
    /// On what, as `Kind/name`.
    pub target: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Why: one CamelCase word.
    pub reason: String,
}

impl From<&Record> for Digest {
    fn from(record: &Record) -> Self {
        Self {
            seq: record.seq,
            at: cut_json(&record.at, AT_MAX),
            action: record.action,
            target: cut_json(&format!("{}/{}", record.target.kind, record.target.name), TARGET_MAX),
            outcome: record.outcome,
            reason: cut_json(&record.reason, DIGEST_REASON_MAX),
        }
    }
}

/// The longest start of a text that takes at most `max` bytes inside a JSON string.
fn cut_json(text: &str, max: usize) -> String {
    let mut left = max;
    text.chars()
        .take_while(|c| {
            let fits = escaped_len(*c) <= left;
            left = left.saturating_sub(escaped_len(*c));
            fits
        })
        .collect()
}

/// `status.audit`: the end of the chain, the latest records in short, and the full records that stand in
/// no chunk yet.
///
/// A record leaves only by [`Ledger::flushed`], so none is lost as long as its chunk is kept before that is
/// called, and the chunk is taken from a ledger that a written status holds. Then a status write that fails
/// afterwards, or a restart, only writes the same chunk again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ledger {
    /// Number of the last record.
    pub seq: u64,
    /// Hash of the last record.
    pub head_hash: String,
    /// Number of the last record that stands in a chunk.
    pub flushed_seq: u64,
    /// At most [`RECENT_MAX`] digests, oldest first.
    pub recent: Vec<Digest>,
    /// The records after `flushedSeq`, oldest first.
    pub unflushed: Vec<Record>,
}

impl Default for Ledger {
    fn default() -> Self {
        let Chain { seq, head_hash } = Chain::start();
        Self { seq, head_hash, flushed_seq: 0, recent: Vec::new(), unflushed: Vec::new() }
    }
}

impl Ledger {
    /// The end of the chain.
    pub fn chain(&self) -> Chain {
        Chain { seq: self.seq, head_hash: self.head_hash.clone() }
    }

    /// Seals a draft and keeps the record; returned for the mirrors of the trail (events, logs).
    pub fn append(&mut self, draft: Draft) -> Record {
        let mut chain = self.chain();
        let record = chain.append(draft);
        self.seq = chain.seq;
        self.head_hash = chain.head_hash;
        self.recent.push(Digest::from(&record));
        let surplus = self.recent.len().saturating_sub(RECENT_MAX);
        self.recent.drain(..surplus);
        self.unflushed.push(record.clone());
        record
    }

    /// Bytes of JSON that the waiting records take.
    pub fn unflushed_bytes(&self) -> usize {
        // What can't be serialised can't be put into a status either.
        serde_json::to_vec(&self.unflushed).map_or(usize::MAX, |json| json.len())
    }

    /// Whether records should leave the status now: [`FLUSH_RECORDS`] wait, or they take more than
    /// `max_bytes` of JSON ([`FLUSH_BYTES`], or less where the rest of the status is large).
    pub fn needs_flush(&self, max_bytes: usize) -> bool {
        self.unflushed.len() >= FLUSH_RECORDS
            || (!self.unflushed.is_empty() && self.unflushed_bytes() > max_bytes)
    }

    /// All waiting records as a chunk; `None` when none waits. Nothing leaves before [`Ledger::flushed`].
    ///
    /// Taken twice it is the same chunk, or one with the same first record and more after it: a chunk
    /// that is found already there may be shorter. If [`Ledger::agrees_with`] it, `flushed` gets *its* last
    /// number.
    pub fn chunk(&self) -> Option<Chunk> {
        let first = self.unflushed.first()?;
        let last = self.unflushed.last()?;
        Some(Chunk {
            first_seq: first.seq,
            last_seq: last.seq,
            head_hash: last.hash.clone(),
            records: self.unflushed.clone(),
        })
    }

    /// Whether a chunk that is found already there holds the very records that wait here, up to its end. If
    /// not, two processes continued the trail from the same record, and nothing may leave on its account.
    pub fn agrees_with(&self, chunk: &Chunk) -> bool {
        chunk.last_seq <= self.seq
            && self
                .unflushed
                .iter()
                .filter(|record| record.seq <= chunk.last_seq)
                .all(|record| chunk.records.contains(record))
    }

    /// The records up to this number stand in a chunk that is safely kept.
    pub fn flushed(&mut self, up_to_seq: u64) {
        let up_to_seq = up_to_seq.min(self.seq);
        self.flushed_seq = self.flushed_seq.max(up_to_seq);
        self.unflushed.retain(|record| record.seq > up_to_seq);
    }

    /// Whether the waiting records lead to the head, as they do unless the status was written by others.
    pub fn verify(&self) -> Result<(), BrokenLink> {
        let start = match self.unflushed.first() {
            Some(first) => Chain { seq: first.seq.saturating_sub(1), head_hash: first.prev_hash.clone() },
            None => return Ok(()),
        };
        let end = verify(&self.unflushed, &start)?;
        if end == self.chain() {
            Ok(())
        } else {
            Err(BrokenLink { seq: end.seq.saturating_add(1), why: WhyBroken::Sequence })
        }
    }
}

/// Records that leave the status together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Chunk {
    /// Number of the first record. With the App's UID it names the chunk.
    pub first_seq: u64,
    /// Number of the last record.
    pub last_seq: u64,
    /// Hash of the last record.
    pub head_hash: String,
    /// The records, oldest first.
    pub records: Vec<Record>,
}

/// Numbers of records that stand in no chunk, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gap {
    /// First missing number.
    pub first_seq: u64,
    /// Last missing number.
    pub last_seq: u64,
}

/// The sum of an export: what should be there, so that a reader can tell whether it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Records in the export.
    pub count: u64,
    /// Number of the oldest record; 0 when there is none. What is older went by retention and is no gap.
    pub first_seq: u64,
    /// Number of the trail's last record.
    pub last_seq: u64,
    /// Hash of the trail's last record.
    pub head_hash: String,
    /// What is missing between the oldest record and the trail's end.
    pub gaps: Vec<Gap>,
}

impl Manifest {
    /// Sums up chunks, given as (first, last) number in any order, overlapping or not, of the trail that
    /// ends at `head`. Numbers that the trail doesn't have are left out.
    pub fn over(chunks: impl IntoIterator<Item = (u64, u64)>, head: &Chain) -> Self {
        // First number -> the farthest last number of a chunk that begins there.
        let mut by_first = BTreeMap::<u64, u64>::new();
        for (first, last) in chunks {
            let (first, last) = (first.max(1), last.min(head.seq));
            if first <= last {
                by_first.entry(first).and_modify(|known| *known = last.max(*known)).or_insert(last);
            }
        }
        let first_seq = by_first.first_key_value().map_or(0, |(first, _)| *first);
        let (mut count, mut gaps) = (0, Vec::new());
        // The last number looked at; a trail without any chunk is one gap from its first record on.
        let mut end = first_seq.saturating_sub(1);
        for (first, last) in by_first {
            if first > end + 1 {
                gaps.push(Gap { first_seq: end + 1, last_seq: first - 1 });
            }
            count += last.saturating_sub(end.max(first - 1));
            end = end.max(last);
        }
        if end < head.seq {
            gaps.push(Gap { first_seq: end + 1, last_seq: head.seq });
        }
        Self { count, first_seq, last_seq: head.seq, head_hash: head.head_hash.clone(), gaps }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::super::properties::draft;
    use super::*;

    fn ledger(records: usize) -> Ledger {
        let mut ledger = Ledger::default();
        for _ in 0..records {
            ledger.append(draft());
        }
        ledger
    }

    #[test]
    fn a_new_ledger_is_what_an_empty_status_reads_as() {
        let read: Ledger = serde_json::from_value(json!({})).unwrap();
        assert_eq!(read, Ledger::default());
        let zeros = "0".repeat(64);
        let wanted = json!({"seq": 0, "headHash": zeros, "flushedSeq": 0, "recent": [], "unflushed": []});
        assert_eq!(serde_json::to_value(read).unwrap(), wanted);
    }

    #[test]
    fn the_digest_says_the_target_as_kind_and_name() {
        let digest = ledger(1).recent.remove(0);
        let wanted = json!({
            "seq": 1, "at": "2026-01-01T00:00:00Z", "action": "PutBack",
            "target": "Deployment/shop", "outcome": "Succeeded", "reason": "FieldsTaken",
        });
        assert_eq!(serde_json::to_value(digest).unwrap(), wanted);
    }

    #[test]
    fn sixteen_records_or_too_many_bytes_ask_for_a_flush() {
        assert!(!ledger(15).needs_flush(FLUSH_BYTES));
        assert!(ledger(16).needs_flush(FLUSH_BYTES));
        assert!(ledger(2).needs_flush(ledger(2).unflushed_bytes() - 1));
        assert!(!ledger(2).needs_flush(ledger(2).unflushed_bytes()));
        assert!(!ledger(0).needs_flush(0));
    }

    #[test]
    fn only_the_last_twenty_digests_are_kept() {
        let recent = ledger(25).recent;
        assert_eq!((recent.len(), recent[0].seq, recent[19].seq), (20, 6, 25));
    }

    #[test]
    fn a_shorter_chunk_that_is_already_there_frees_only_its_own_records() {
        let mut ledger = ledger(5);
        ledger.flushed(3);
        let chunk = ledger.chunk().unwrap();
        assert_eq!((ledger.flushed_seq, chunk.first_seq, chunk.last_seq), (3, 4, 5));
        ledger.flushed(99);
        assert_eq!((ledger.flushed_seq, ledger.chunk()), (5, None));
        ledger.flushed(2);
        assert_eq!(ledger.flushed_seq, 5);
    }

    #[test]
    fn a_chunk_of_another_continuation_frees_nothing() {
        let mut ours = ledger(2);
        let mut theirs = ours.clone();
        let shorter = ours.chunk().unwrap();
        ours.append(draft());
        assert!(ours.agrees_with(&shorter));
        theirs.append(Draft { message: "another".to_owned(), ..draft() });
        assert!(!ours.agrees_with(&theirs.chunk().unwrap()));
        theirs.append(draft());
        assert!(!ours.agrees_with(&theirs.chunk().unwrap()));
    }

    #[test]
    fn a_manifest_names_what_is_missing() {
        let head = Chain { seq: 20, head_hash: "f".repeat(64) };
        let sum = |chunks: &[(u64, u64)]| {
            let sum = Manifest::over(chunks.iter().copied(), &head);
            let gaps: Vec<_> = sum.gaps.iter().map(|gap| (gap.first_seq, gap.last_seq)).collect();
            (sum.count, sum.first_seq, sum.last_seq, gaps)
        };
        assert_eq!(sum(&[(1, 16), (17, 20)]), (20, 1, 20, vec![]));
        assert_eq!(sum(&[(17, 20), (5, 12), (5, 6), (10, 12)]), (12, 5, 20, vec![(13, 16)]));
        assert_eq!(sum(&[(3, 4), (9, 8)]), (2, 3, 20, vec![(5, 20)]));
        assert_eq!(sum(&[]), (0, 0, 20, vec![(1, 20)]));
        assert_eq!(Manifest::over([], &Chain::start()).gaps, vec![]);
    }
}
