//! What the live tests share.
#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use kubesentry_lab::{LabOptions, Layer};
use tokio::time::{Instant, sleep};

pub(crate) const API: LabOptions = LabOptions { layer: Layer::Api, name: None, fsync: false };

/// Repeats until it answers true.
pub(crate) async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !check().await {
        assert!(Instant::now() < deadline, "not within 60 s: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Whether a process is there and no zombie.
pub(crate) fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}
