//! Which versions the lab runs, from the tool modules themselves.
//!
//! `tools/kubernetes` and `tools/etcd` pin everything that is built; their go.mod and go.sum are compiled in, so that
//! the binary needs no source tree, and the version numbers are written there and nowhere else. Called by assets,
//! build and doctor.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// A Go module that only names tools.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ToolModule {
    /// For messages and folder names.
    pub(crate) name: &'static str,
    pub(crate) go_mod: &'static str,
    pub(crate) go_sum: &'static str,
}

pub(crate) const KUBERNETES: ToolModule = ToolModule {
    name: "kubernetes",
    go_mod: include_str!("../../../tools/kubernetes/go.mod"),
    go_sum: include_str!("../../../tools/kubernetes/go.sum"),
};

pub(crate) const ETCD: ToolModule = ToolModule {
    name: "etcd",
    go_mod: include_str!("../../../tools/etcd/go.mod"),
    go_sum: include_str!("../../../tools/etcd/go.sum"),
};

/// The versions the lab builds, with a leading `v`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versions {
    /// Of the API server, the controller manager, the scheduler and kubectl.
    pub kubernetes: String,
    /// Of etcd.
    pub etcd: String,
    /// The Go toolchain needed to build them, without a `v`.
    pub go: String,
    /// First 12 hexadecimal digits of the SHA-256 over the four module files.
    pub hash: String,
}

impl Versions {
    /// The versions pinned by the tool modules.
    pub fn pinned() -> Self {
        let required =
            |module: &ToolModule, path: &str| required(module.go_mod, path).unwrap_or_default().to_owned();
        let mut hash = Sha256::new();
        for text in [KUBERNETES.go_mod, KUBERNETES.go_sum, ETCD.go_mod, ETCD.go_sum] {
            hash.update(text.len().to_le_bytes());
            hash.update(text);
        }
        Self {
            kubernetes: required(&KUBERNETES, "k8s.io/kubernetes"),
            etcd: required(&ETCD, "go.etcd.io/etcd/server/v3"),
            go: go_directive(KUBERNETES.go_mod).unwrap_or_default().to_owned(),
            hash: hex(&hash.finalize()).chars().take(12).collect(),
        }
    }

    /// The name of the cache folder: changes with any pinned module.
    pub fn folder(&self) -> String {
        format!("k8s-{}-{}", self.kubernetes, self.hash)
    }

    /// Major and minor, as the version package of Kubernetes wants them.
    pub(crate) fn kubernetes_minor(&self) -> (&str, &str) {
        let mut parts = self.kubernetes.trim_start_matches('v').split('.');
        (parts.next().unwrap_or("1"), parts.next().unwrap_or("0"))
    }
}

/// The version a go.mod requires of a module.
fn required<'a>(go_mod: &'a str, path: &str) -> Option<&'a str> {
    go_mod.lines().find_map(|line| {
        let mut words = line.trim().trim_start_matches("require ").split_whitespace();
        (words.next() == Some(path)).then(|| words.next()).flatten().filter(|v| v.starts_with('v'))
    })
}

fn go_directive(go_mod: &str) -> Option<&str> {
    go_mod.lines().find_map(|line| line.strip_prefix("go ")).map(str::trim)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, b| {
        let _ = write!(out, "{b:02x}");
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_versions_come_from_the_tool_modules() {
        let v = Versions::pinned();
        for version in [&v.kubernetes, &v.etcd] {
            assert!(version.starts_with('v') && version.split('.').count() == 3, "{version}");
        }
        assert_eq!(v.kubernetes_minor().0, "1");
        assert!(v.folder().starts_with("k8s-v1."), "{}", v.folder());
        assert_eq!(v.hash.len(), 12);
    }

    #[test]
    fn a_require_line_is_found_in_both_forms_and_a_replace_is_not_one() {
        assert_eq!(required("require a/b v1.2.3\n", "a/b"), Some("v1.2.3"));
        assert_eq!(required("require (\n\ta/b v1.2.3 // indirect\n)\n", "a/b"), Some("v1.2.3"));
        assert_eq!(required("\ta/b => a/b v0.1.0\n", "a/b"), None);
    }
}
