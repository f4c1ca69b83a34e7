//! Which audit chunks have had their time.
//!
//! Now and then the leader looks at the names of all chunks in the operator's namespace, never at their content, and
//! removes what is beyond the limits: of an App that lives, records beyond its `spec.audit.retention`; of one that is gone,
//! everything after [`Limits::keep_deleted`]; and the oldest of all where there are more than [`Limits::max_chunks`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ListParams};

use crate::context::Context;
use crate::error::RequestError;
use crate::export::{LABEL_AUDIT, LABEL_AUDIT_UID};

/// Records kept of an App whose manifest doesn't say how many.
const RETENTION: u64 = 200;
/// Chunks per request when they are listed.
const PAGE: u32 = 500;

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How long the chunks of a deleted App are kept.
    pub keep_deleted: Duration,
    /// How many chunks there may be in all.
    pub max_chunks: usize,
}

/// A chunk, by its name and labels.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stored {
    name: String,
    /// Of the ConfigMap, so that no successor of the same name is removed.
    uid: String,
    app_uid: String,
    first_seq: u64,
    created: Timestamp,
}

/// What a living App says of its own trail.
#[derive(Debug, Clone, Copy)]
struct Alive {
    flushed_seq: u64,
    retention: u64,
}

/// Sweeps for ever, each `every`.
pub async fn run(context: Arc<Context>, limits: Limits, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        match sweep(&context, &limits).await {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "removed audit chunks beyond the limits"),
            // What is not removed now is removed next time.
            Err(error) => tracing::warn!(%error, "audit chunks beyond the limits could not be removed"),
        }
    }
}

async fn sweep(context: &Context, limits: &Limits) -> Result<usize, RequestError> {
    let stored = stored(context).await?;
    let apps = context.caches.apps.keys();
    let alive: HashMap<String, Alive> = apps
        .iter()
        .filter_map(|key| context.caches.apps.get(key))
        .map(|app| {
            let retention = app.raw["spec"]["audit"]["retention"].as_u64().unwrap_or(RETENTION);
            let flushed_seq = app.status.audit.as_ref().map_or(0, |ledger| ledger.flushed_seq);
            (app.uid.clone(), Alive { flushed_seq, retention })
        })
        .collect();
    let doomed = doomed(stored, &alive, limits, Timestamp::now());
    for chunk in &doomed {
        match context.door.delete_config_map(&context.namespace, &chunk.name, &chunk.uid).await {
            Ok(()) | Err(RequestError::NotFound(_) | RequestError::Conflict(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(doomed.len())
}

async fn stored(context: &Context) -> Result<Vec<Stored>, RequestError> {
    let api: Api<ConfigMap> = Api::namespaced(context.reader.clone(), &context.namespace);
    let mut params = ListParams::default().labels(&format!("{LABEL_AUDIT}=true")).limit(PAGE);
    let mut found = Vec::new();
    loop {
        let page = api.list_metadata(&params).await?;
        found.extend(page.items.into_iter().filter_map(|item| read(item.metadata)));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(found),
        }
    }
}

/// A chunk from its metadata; `None` where somebody else's ConfigMap carries our label: it is left alone.
fn read(metadata: ObjectMeta) -> Option<Stored> {
    let name = metadata.name?;
    let app_uid = metadata.labels?.remove(LABEL_AUDIT_UID)?;
    let rest = name.strip_prefix("audit-")?.strip_prefix(&app_uid)?.strip_prefix('-')?;
    let first_seq = rest.split('-').next()?.parse().ok()?;
    Some(Stored { uid: metadata.uid?, created: metadata.creation_timestamp?.0, name, app_uid, first_seq })
}

/// The chunks to remove.
fn doomed(
    mut stored: Vec<Stored>,
    alive: &HashMap<String, Alive>,
    limits: &Limits,
    now: Timestamp,
) -> Vec<Stored> {
    stored.sort_by(|a, b| (a.created, &a.app_uid, a.first_seq).cmp(&(b.created, &b.app_uid, b.first_seq)));
    let mut trails: BTreeMap<&str, Vec<&Stored>> = BTreeMap::new();
    for chunk in &stored {
        trails.entry(&chunk.app_uid).or_default().push(chunk);
    }
    let mut names: BTreeSet<String> = BTreeSet::new();
    for (app, mut chunks) in trails {
        chunks.sort_by_key(|chunk| chunk.first_seq);
        if let Some(Alive { flushed_seq, retention }) = alive.get(app) {
            // A chunk ends where the next one begins. What stands in the status counts as kept too.
            let oldest_kept = flushed_seq.saturating_sub(*retention) + 1;
            let ends = chunks.iter().skip(1).map(|next| next.first_seq);
            let over = chunks.iter().zip(ends).filter(|(_, end)| *end <= oldest_kept);
            names.extend(over.map(|(chunk, _)| chunk.name.clone()));
        } else {
            let last = chunks.iter().map(|chunk| chunk.created).max().unwrap_or(now);
            // The clock may have been set back: what lies in the future is young.
            if Duration::try_from(now.duration_since(last)).is_ok_and(|age| age > limits.keep_deleted) {
                names.extend(chunks.iter().map(|chunk| chunk.name.clone()));
            }
        }
    }
    let mut left = stored.len() - names.len();
    for chunk in &stored {
        if left <= limits.max_chunks {
            break;
        }
        left -= usize::from(names.insert(chunk.name.clone()));
    }
    stored.retain(|chunk| names.contains(&chunk.name));
    stored
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;
    const DAY: i64 = 86_400;
    const LIMITS: Limits = Limits { keep_deleted: Duration::from_secs(30 * 86_400), max_chunks: 10 };

    fn chunk(app: &str, first_seq: u64, days_ago: i64) -> Stored {
        Stored {
            name: format!("audit-{app}-{first_seq}"),
            uid: "x".to_owned(),
            app_uid: app.to_owned(),
            first_seq,
            created: Timestamp::from_second(NOW - days_ago * DAY).unwrap(),
        }
    }

    fn removed(stored: Vec<Stored>, alive: &[(&str, u64, u64)]) -> Vec<String> {
        let alive = alive
            .iter()
            .map(|(app, flushed_seq, retention)| {
                ((*app).to_owned(), Alive { flushed_seq: *flushed_seq, retention: *retention })
            })
            .collect();
        let doomed = doomed(stored, &alive, &LIMITS, Timestamp::from_second(NOW).unwrap());
        doomed.into_iter().map(|chunk| chunk.name).collect()
    }

    #[test]
    fn of_a_living_app_only_chunks_wholly_beyond_its_retention_go() {
        let trail = || vec![chunk("a", 1, 90), chunk("a", 17, 80), chunk("a", 33, 70)];
        assert_eq!(removed(trail(), &[("a", 48, 200)]), Vec::<String>::new());
        assert_eq!(removed(trail(), &[("a", 48, 31)]), ["audit-a-1"]);
        assert_eq!(removed(trail(), &[("a", 48, 32)]), ["audit-a-1"], "16 records left in each of two");
        assert_eq!(removed(trail(), &[("a", 48, 33)]), Vec::<String>::new(), "record 16 is still wanted");
        assert_eq!(removed(trail(), &[("a", 48, 1)]), ["audit-a-1", "audit-a-17"], "never the last");
    }

    #[test]
    fn of_a_deleted_app_all_go_together_when_the_last_is_old_enough() {
        assert_eq!(removed(vec![chunk("b", 1, 40), chunk("b", 17, 29)], &[]), Vec::<String>::new());
        assert_eq!(removed(vec![chunk("b", 1, 60), chunk("b", 17, 31)], &[]), ["audit-b-1", "audit-b-17"]);
        assert_eq!(removed(vec![chunk("b", 1, -5)], &[]), Vec::<String>::new(), "a clock that was set back");
    }

    #[test]
    fn beyond_the_number_in_all_the_oldest_go_whosever_they_are() {
        let stored: Vec<Stored> = (0..13_u8).map(|n| chunk(&format!("app{n}"), 1, i64::from(n))).collect();
        assert_eq!(
            removed(stored, &[("app12", 16, 200)]),
            ["audit-app12-1", "audit-app11-1", "audit-app10-1"]
        );
    }

    #[test]
    fn what_only_looks_like_a_chunk_is_left_alone() {
        let metadata = |name: &str, uid: Option<&str>| ObjectMeta {
            name: Some(name.to_owned()),
            uid: Some("u".to_owned()),
            labels: uid.map(|uid| [(LABEL_AUDIT_UID.to_owned(), uid.to_owned())].into()),
            creation_timestamp: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                Timestamp::UNIX_EPOCH,
            )),
            ..ObjectMeta::default()
        };
        assert_eq!(read(metadata("audit-a-b-17", Some("a-b"))).map(|chunk| chunk.first_seq), Some(17));
        assert_eq!(read(metadata("audit-a-b-17-0123", Some("a-b"))).map(|chunk| chunk.first_seq), Some(17));
        for (name, uid) in [("audit-a-x", Some("a")), ("settings", Some("a")), ("audit-a-1", None)] {
            assert_eq!(read(metadata(name, uid)), None, "{name}");
        }
    }
}
