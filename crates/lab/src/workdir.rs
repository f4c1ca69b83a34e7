//! A lab's folder: `${XDG_CACHE_HOME:-~/.cache}/kubesentry/labs/<name>`, owned by a lock on the file `lock` in it.
//!
//! The lock is `flock`, so it goes with the process that holds it: a folder nobody locks belongs to a dead owner and
//! is swept when the next lab starts. Folders of labs that failed to start keep their logs for a day. Making, locking
//! and sweeping happen under one short lock of the parent folder. Knows nothing of what is in the folder but its
//! state file. Called by control_plane and the commands `list` and `down`.

use std::fs::{File, TryLockError};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{LabError, LabState, cache_root, unique};

const LOCK: &str = "lock";
const FAILED: &str = "failed";

/// How long the logs of a failed start are kept.
const KEEP_FAILED: Duration = Duration::from_hours(24);

/// A folder this process owns; removed when dropped, unless it is to be kept.
#[derive(Debug)]
pub(crate) struct WorkDir {
    path: PathBuf,
    keep: bool,
    _lock: File,
}

/// A lab somebody holds.
#[derive(Debug, Clone)]
pub struct Running {
    /// Its folder.
    pub dir: PathBuf,
    /// What it says of itself; `None` in its first moments.
    pub state: Option<LabState>,
}

impl WorkDir {
    /// Makes and locks a folder; sweeps those of dead owners.
    pub(crate) fn create(name: Option<&str>) -> Result<Self, LabError> {
        let unique = || format!("lab-{}-{}", std::process::id(), unique::token());
        let name = name.map_or_else(unique, str::to_owned);
        check(&name)?;
        let root = root()?;
        std::fs::create_dir_all(&root).map_err(LabError::io("create the folder", &root))?;
        let all = open_lock(&root.join(".lock"))?;
        all.lock().map_err(LabError::io("lock", &root))?;
        sweep(&root, &name);
        let path = root.join(&name);
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(LabError::NameTaken { name, dir: path });
            }
            other => other.map_err(LabError::io("create the folder", &path))?,
        }
        let lock = open_lock(&path.join(LOCK))?;
        lock.lock().map_err(LabError::io("lock", &path))?;
        Ok(Self { path, keep: false, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the logs when this is dropped, but neither data nor keys.
    pub(crate) fn keep_logs(&mut self) {
        self.keep = std::fs::write(self.path.join(FAILED), "").is_ok();
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if !self.keep {
            // Out of the way first: the name may be taken again while the files are being removed.
            let gone = self.path.with_file_name(format!(".gone-{}", unique::token()));
            let path = if std::fs::rename(&self.path, &gone).is_ok() { &gone } else { &self.path };
            let _ = std::fs::remove_dir_all(path);
            return;
        }
        for folder in ["etcd", "pki", "users"] {
            let _ = std::fs::remove_dir_all(self.path.join(folder));
        }
    }
}

/// The folder of a lab by its name.
pub(crate) fn dir_of(name: &str) -> Result<PathBuf, LabError> {
    check(name)?;
    Ok(root()?.join(name))
}

/// All labs somebody holds, by name.
pub fn running() -> Result<Vec<Running>, LabError> {
    let root = root()?;
    let Ok(entries) = std::fs::read_dir(&root) else {
        return Ok(Vec::new());
    };
    let mut found: Vec<_> = entries
        .flatten()
        .map(|e| e.path())
        .filter(|dir| is_held(dir) && !is_hidden(dir))
        .map(|dir| Running { state: LabState::read(&dir).ok(), dir })
        .collect();
    found.sort_by(|a, b| a.dir.cmp(&b.dir));
    Ok(found)
}

fn is_hidden(dir: &Path) -> bool {
    dir.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'))
}

/// Whether an owner lives.
pub(crate) fn is_held(dir: &Path) -> bool {
    let Ok(lock) = File::open(dir.join(LOCK)) else {
        return false;
    };
    matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock))
}

fn root() -> Result<PathBuf, LabError> {
    Ok(cache_root()?.join("labs"))
}

fn check(name: &str) -> Result<(), LabError> {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.len() <= 40 && name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(good) {
        Ok(())
    } else {
        Err(LabError::BadName { name: name.to_owned() })
    }
}

fn open_lock(path: &Path) -> Result<File, LabError> {
    let file = File::options().create(true).truncate(false).write(true).open(path);
    file.map_err(LabError::io("open the lock file", path))
}

/// Removes folders without an owner. Under the parent's lock, so none is just being made.
fn sweep(root: &Path, wanted: &str) {
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let dir = entry.path();
        if !dir.is_dir() || is_held(&dir) {
            continue;
        }
        let failed = std::fs::metadata(dir.join(FAILED)).and_then(|m| m.modified()).ok();
        let fresh = failed.and_then(|t| t.elapsed().ok()).is_some_and(|age| age < KEEP_FAILED);
        if !fresh || dir.ends_with(wanted) {
            let _ = std::fs::remove_dir_all(&dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_plain_word() {
        for good in ["a", "default", "lab-1-0f"] {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in ["", "A", "-a", "1a", "a/b", "..", "a.b", &"a".repeat(41)] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
