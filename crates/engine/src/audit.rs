//! The audit trail of an App: what was done to it, why, and how it ended.
//!
//! A [`Record`] is written once and never changed; records form a [`Chain`] by hash, so that a record
//! left out, added, moved or altered is found by [`verify`]. The [`Ledger`] is the part of the trail
//! that lives in the App's status; older records leave it in [`Chunk`]s, and the [`Manifest`] sums an
//! export up. Nothing here knows the clock, where chunks are kept or when the status is written:
//! `operator`'s report step brings the time and the drafts, and carries the chunks away.

mod chain;
mod ledger;
mod record;

#[cfg(test)]
mod properties;

pub use chain::{BrokenLink, Chain, WhyBroken, verify};
pub use ledger::{
    Chunk, DIGEST_MAX_BYTES, Digest, FLUSH_BYTES, FLUSH_RECORDS, Gap, Ledger, Manifest, RECENT_MAX,
};
pub use record::{
    Action, AppRef, Decision, Draft, FORMAT, MESSAGE_MAX_BYTES, Operator, Outcome, REASON_MAX_BYTES, Record,
    Target,
};
