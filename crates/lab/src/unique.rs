//! Random numbers for names and ports.
//!
//! The standard library seeds every [`RandomState`] from the system's random source; that is enough for names that
//! must not collide and spares a dependency. Not for secrets: keys come from rcgen. Called by ports, workdir and
//! kubeconfig.

use std::hash::{BuildHasher, Hasher, RandomState};

/// 64 random bits.
pub(crate) fn bits() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Eight random hexadecimal digits.
pub(crate) fn token() -> String {
    format!("{:08x}", bits() >> 32)
}
