//! The App resource: what it looks like, what is wrong with one, what it becomes.
//!
//! Everything here is a pure function: no client, no runtime, no clock. The operator, `lint` and the admission webhook
//! share it, so that they can't disagree.
//!
//! | module | answers |
//! |---|---|
//! | [`spec`], [`status`] | which fields there are |
//! | [`mod@crd`], [`mod@schema`], [`rules`] | how the API server knows them |
//! | [`mod@parse`], [`manifest`] | what is wrong with a manifest |
//! | [`children`] | which objects an App becomes |
//! | [`ownership`] | which of our fields somebody else took |
//! | [`conditions`], [`reasons`] | what is reported, and what it means |

pub mod children;
pub mod conditions;
pub mod crd;
pub mod manifest;
mod merge;
pub mod names;
pub mod ownership;
pub mod parse;
mod pod_security;
pub mod reasons;
pub mod rules;
pub mod schema;
pub mod spec;
pub mod status;
mod structure;
pub mod violation;

pub use parse::{ParseOptions, Parsed, ValidApp, parse};
pub use violation::{FaultKind, Violation, Warning};
