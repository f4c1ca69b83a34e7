//! A real Kubernetes control plane on one machine, for tests, benches and the demo.
//!
//! [`Lab`] starts etcd and kube-apiserver (and, at [`Layer::ApiGc`], the garbage collector) as child processes that
//! die with their owner, hands out clients for any user, and reads the API server's audit log, which is the oracle of
//! all claims about writes. The command `sentry-lab` is the same thing for people.
//!
//! This crate knows nothing of the operator: it is a development dependency of the others and never part of what runs
//! in a cluster.

mod assets;
mod audit;
mod build;
mod client;
mod control_plane;
pub mod drift;
mod error;
mod existing;
mod kubeconfig;
mod launch;
pub mod operator;
mod paths;
mod pki;
mod ports;
mod process;
mod ready;
mod servers;
pub mod shim;
mod state;
mod unique;
mod versions;
mod workdir;

pub use assets::{Assets, Found, Program, Source};
pub use audit::{AuditEntry, AuditLog, Mark};
pub use client::{client_from, install_crypto_provider};
pub use control_plane::{Lab, LabOptions, SHARED_ENV};
pub use error::LabError;
pub use paths::{BIN_DIR_ENV, binary, cache_root};
pub use ports::{Held, hold};
pub use process::{Child, ChildSpec, Signal};
pub use state::{LabState, Layer};
pub use versions::Versions;
pub use workdir::{Running, running};
