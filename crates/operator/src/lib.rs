//! The KubeSentry operator.
//!
//! The only crate with effects. `wire` feeds caches from watches and turns changes into keys; a worker takes a key
//! through one pass of [`reconcile`]: observe, judge, plan, apply, report. What should happen is decided in
//! `kubesentry-engine` and `kubesentry-api`; what is written goes through [`door`].

pub mod cache;
pub mod client;
pub mod config;
pub mod contention;
pub mod context;
pub mod door;
pub mod error;
pub mod events;
pub mod export;
pub mod key;
pub mod lease;
pub mod memory;
pub mod objects;
pub mod queue;
pub mod reconcile;
pub mod retention;
pub mod serve;
pub mod telemetry;
pub mod term;
pub mod timestamps;
pub mod watch;
pub mod wire;
