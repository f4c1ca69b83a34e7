//! Kubeconfig files, written so that only their owner can read them and nobody ever sees half of one.
//!
//! They carry everything inside (no paths), so that a copy works anywhere on this machine. JSON is YAML, so no YAML
//! writer is needed. Knows nothing of how identities are made. Called by control_plane, servers and existing.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use k8s_openapi::ByteString;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::pki::Identity;
use crate::{LabError, unique, versions};

/// A kubeconfig with one cluster, one user and one context named `lab`.
pub(crate) fn render(api_url: &str, ca_pem: &str, user: &str, identity: &Identity) -> String {
    let data = |text: &str| json!(ByteString(text.as_bytes().to_vec()));
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "clusters": [{"name": "lab", "cluster": {
            "server": api_url,
            "certificate-authority-data": data(ca_pem),
        }}],
        "users": [{"name": user, "user": {
            "client-certificate-data": data(&identity.certificate),
            "client-key-data": data(&identity.key),
        }}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user}}],
    });
    format!("{config:#}\n")
}

/// The file of a user's kubeconfig: readable, and different for different users and groups.
pub(crate) fn file_for(lab: &Path, user: &str, groups: &[&str]) -> PathBuf {
    let mut hash = Sha256::new();
    for part in std::iter::once(&user).chain(groups) {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    let digest: String = versions::hex(&hash.finalize()).chars().take(8).collect();
    let readable: String =
        user.chars().take(60).map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    lab.join("users").join(format!("{readable}-{digest}.kubeconfig"))
}

/// Writes a file that only this user can read, all at once: others see the old content or the new.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<(), LabError> {
    let temporary = path.with_extension(format!("{}.tmp", unique::token()));
    let write = || {
        let mut file =
            std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        std::fs::rename(&temporary, path)
    };
    write().map_err(|e| {
        let _ = std::fs::remove_file(&temporary);
        LabError::io("write", path)(e)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_that_read_alike_have_files_of_their_own() {
        let lab = Path::new("/lab");
        let all = [
            file_for(lab, "system:a", &[]),
            file_for(lab, "system-a", &[]),
            file_for(lab, "system:a", &["g"]),
            file_for(lab, "system:a", &["g", "h"]),
            file_for(lab, "system:a", &["gh"]),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all.iter().skip(i + 1).all(|b| a != b), "{}", a.display());
            assert!(a.starts_with("/lab/users"), "{}", a.display());
        }
    }
}
