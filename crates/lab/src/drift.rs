//! How fast a hand-made change of a Deployment is put back.
//!
//! The clock starts when the API server has answered the hand-made change, and stops when a watch shows the corrected
//! object: what a person with two terminals would see. Knows Deployments, not Apps. Called by the demo and by
//! `bench drift`.

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, WatchEvent, WatchParams};
use serde_json::{Value, json};

use crate::LabError;

/// Longest to wait for a correction.
const LIMIT: Duration = Duration::from_secs(10);

/// A hand-made change.
#[derive(Debug, Clone)]
pub enum Change {
    /// `kubectl scale deployment --replicas=N`.
    Scale(i32),
    /// A merge patch, as `kubectl edit` or `kubectl label` send one.
    Merge(Value),
    /// A strategic merge patch, as `kubectl set image` sends one.
    Strategic(Value),
}

/// Deployments of a namespace, by raw JSON.
pub fn deployments(client: Client, namespace: &str) -> Api<DynamicObject> {
    let resource = ApiResource {
        group: "apps".into(),
        version: "v1".into(),
        api_version: "apps/v1".into(),
        kind: "Deployment".into(),
        plural: "deployments".into(),
    };
    Api::namespaced_with(client, namespace, &resource)
}

/// Makes a change and answers how long it took until the Deployment was right again. `is_right` looks at the object.
///
/// # Errors
/// The change was refused, or was not put back within 10 s; the message shows the object as it was seen last.
pub async fn put_back(
    api: &Api<DynamicObject>,
    name: &str,
    change: &Change,
    is_right: impl Fn(&Value) -> bool,
) -> Result<Duration, LabError> {
    let failed = |why: String| LabError::Operator { doing: "see a change put back", why };
    let kube = |error: kube::Error| failed(error.to_string());
    let before = api.get(name).await.map_err(kube)?;
    let from = before.metadata.resource_version.unwrap_or_default();
    let params = WatchParams::default().fields(&format!("metadata.name={name}"));
    let watch = api.watch(&params, &from).await.map_err(kube)?;
    let mut watch = watch.boxed();

    let by = PatchParams { field_manager: Some("kubectl".into()), ..PatchParams::default() };
    match change {
        Change::Scale(replicas) => {
            let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
            api.patch_scale(name, &by, &patch).await.map_err(kube)?;
        }
        Change::Merge(patch) => {
            api.patch(name, &by, &Patch::Merge(patch)).await.map_err(kube)?;
        }
        Change::Strategic(patch) => {
            api.patch(name, &by, &Patch::Strategic(patch)).await.map_err(kube)?;
        }
    }
    let changed = Instant::now();

    let mut was_wrong = false;
    let mut last = Value::Null;
    let corrected = tokio::time::timeout(LIMIT, async {
        while let Some(event) = watch.try_next().await.map_err(kube)? {
            let (WatchEvent::Added(object) | WatchEvent::Modified(object)) = event else {
                continue;
            };
            last = serde_json::to_value(object).unwrap_or_default();
            if !is_right(&last) {
                was_wrong = true;
            } else if was_wrong {
                return Ok(());
            }
        }
        Err(failed("the watch ended".into()))
    })
    .await;
    match corrected {
        // The correction may be seen before the answer to the change is read.
        Ok(Ok(())) => Ok(changed.elapsed()),
        Ok(Err(error)) => Err(error),
        Err(_) => {
            Err(failed(format!("it was not within {} s; last seen: {}", LIMIT.as_secs(), last["spec"])))
        }
    }
}

/// The p-th percentile (0 to 100) of sorted samples, by the nearest rank; zero where there is none.
pub fn percentile(sorted: &[Duration], p: usize) -> Duration {
    let rank = (sorted.len() * p).div_ceil(100).saturating_sub(1);
    sorted.get(rank).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_the_nearest_rank() {
        let samples: Vec<_> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentile(&samples, 50), Duration::from_millis(100));
        assert_eq!(percentile(&samples, 99), Duration::from_millis(198));
        assert_eq!(percentile(&samples[..1], 99), Duration::from_millis(1));
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }
}
