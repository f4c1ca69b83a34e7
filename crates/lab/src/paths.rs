//! Where things are: the cache folder and the binaries of this workspace.
//!
//! Knows the environment variables and the layout of cargo's target folder, nothing else. Called by workdir, assets,
//! process and by tests that start the operator.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::LabError;

/// Names the folder with the binaries of this workspace.
pub const BIN_DIR_ENV: &str = "KUBESENTRY_BIN_DIR";

/// The lab's cache folder: `${XDG_CACHE_HOME:-~/.cache}/kubesentry`. Not created.
pub fn cache_root() -> Result<PathBuf, LabError> {
    cache_root_from(std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME"))
}

fn cache_root_from(xdg: Option<OsString>, home: Option<OsString>) -> Result<PathBuf, LabError> {
    let absolute = |v: OsString| Some(PathBuf::from(v)).filter(|p| p.is_absolute());
    xdg.and_then(absolute)
        .or_else(|| home.and_then(absolute).map(|h| h.join(".cache")))
        .map(|c| c.join("kubesentry"))
        .ok_or(LabError::NoCacheFolder)
}

/// The path of a binary this workspace builds (`kubesentry`, `sentry-lab`): in the folder named by
/// [`BIN_DIR_ENV`], else beside the current executable, or above it where that is a test in `target/*/deps`.
pub fn binary(name: &str) -> Result<PathBuf, LabError> {
    let folder = match std::env::var_os(BIN_DIR_ENV).filter(|v| !v.is_empty()) {
        Some(v) => PathBuf::from(v),
        None => beside(&std::env::current_exe().map_err(LabError::io("find the path of", "this program"))?),
    };
    let path = folder.join(name);
    if is_executable(&path) {
        Ok(path)
    } else {
        Err(LabError::BinaryMissing { name: name.to_owned(), looked: folder })
    }
}

/// The folder binaries are in, given a binary or a test executable.
fn beside(executable: &Path) -> PathBuf {
    let folder = executable.parent().unwrap_or(Path::new("."));
    match folder.parent() {
        Some(up) if folder.ends_with("deps") || folder.ends_with("examples") => up.to_owned(),
        _ => folder.to_owned(),
    }
}

/// Whether this is a file somebody may execute.
pub(crate) fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_follows_xdg_then_home() {
        let path =
            |x: Option<&str>, h: Option<&str>| cache_root_from(x.map(Into::into), h.map(Into::into)).ok();
        assert_eq!(path(Some("/x"), Some("/h")), Some("/x/kubesentry".into()));
        assert_eq!(path(None, Some("/h")), Some("/h/.cache/kubesentry".into()));
        assert_eq!(path(Some("relative"), Some("/h")), Some("/h/.cache/kubesentry".into()));
        assert_eq!(path(None, Some("")), None);
    }

    #[test]
    fn binaries_are_beside_a_program_and_above_a_test() {
        assert_eq!(beside(Path::new("/t/debug/sentry-lab")), Path::new("/t/debug"));
        assert_eq!(beside(Path::new("/t/debug/deps/test-1f")), Path::new("/t/debug"));
        assert_eq!(beside(Path::new("/usr/bin/sentry-lab")), Path::new("/usr/bin"));
    }
}
