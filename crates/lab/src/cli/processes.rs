//! What a command left running.
//!
//! `sentry-lab test` promises that nothing survives it. It is a "subreaper": processes whose parent ended become its
//! children instead of init's, so whoever is left over can be found by walking `/proc`. Knows nothing of labs but the
//! process ids to spare. Called by test.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kubesentry_lab::Signal;
use rustix::process::{Pid, WaitOptions, getpid, kill_process, set_child_subreaper, wait};

/// Makes orphaned descendants children of this process.
pub(crate) fn adopt_orphans() {
    // Refused by no Linux since 3.4; without it some left-overs would not be found, nothing else.
    let _ = set_child_subreaper(Some(getpid()));
}

/// Ends all descendants of this process but the spared ones (and theirs): SIGTERM, after the grace SIGKILL.
/// Answers how many there were.
pub(crate) async fn end_descendants(spare: &BTreeSet<u32>, grace: Duration) -> usize {
    let first = descendants(spare);
    let deadline = tokio::time::Instant::now() + grace;
    let mut asked = BTreeSet::new();
    loop {
        let left = descendants(spare);
        if left.is_empty() {
            return first.len();
        }
        let hard = tokio::time::Instant::now() >= deadline;
        for pid in left {
            if hard {
                send(pid, Signal::KILL);
            } else if asked.insert(pid) {
                send(pid, Signal::TERM);
            }
        }
        // Killed processes are gone at once; a process in an uninterruptible wait is nobody's to end.
        if tokio::time::Instant::now() >= deadline + Duration::from_secs(3) {
            return first.len();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Buries adopted processes that have ended. Only when no own child is waited for any more.
pub(crate) fn reap() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

fn descendants(spare: &BTreeSet<u32>) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if let Some((state, parent)) = state_and_parent(&stat)
            && state != 'Z'
        {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut ask = vec![std::process::id()];
    while let Some(parent) = ask.pop() {
        for &child in children.get(&parent).into_iter().flatten().filter(|c| !spare.contains(c)) {
            found.push(child);
            ask.push(child);
        }
    }
    found
}

/// From `/proc/PID/stat`: the name in parentheses may contain anything, so it is read from the last `)`.
fn state_and_parent(stat: &str) -> Option<(char, u32)> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_may_look_like_fields() {
        assert_eq!(state_and_parent("12 (a) S 1) R 34 5 6"), Some(('R', 34)));
        assert_eq!(state_and_parent(""), None);
    }
}
