//! What should happen to an App, and why.
//!
//! Everything here is a pure function of its arguments: no Kubernetes client, no runtime, no
//! clock, no randomness, no I/O. Time, sizes and memory come in as values, decisions go out as
//! values. `api` turns a manifest into the types of this crate, `operator` executes what it
//! decides, and a simulator may run it in virtual time.
#![warn(missing_docs)]

pub mod audit;
pub mod canonical;
pub mod size;
