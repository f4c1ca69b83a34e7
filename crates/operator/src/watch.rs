//! Watches feed the caches, and their changes become keys.
//!
//! The only module that knows `kube::runtime`. Every replica watches, whether it leads or not. Nothing behind the work
//! queue knows which event woke it.

use std::fmt::Debug;
use std::sync::Arc;

use futures::StreamExt as _;
use k8s_openapi::NamespaceResourceScope;
use kube::Client;
use kube::api::{Api, DynamicObject};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::cache::{Cache, Change, WatchEvent};
use crate::context::Caches;
use crate::key::Key;
use crate::objects::{App, Cached, Deployment, DeploymentView, Scaler, ScalerView, app_resource};
use crate::queue::{Dispatch, Wake};

/// Starts the watches, one per kind and namespace (one per kind where there is none); each receiver answers when its list
/// is complete for the first time.
pub fn watch_all(
    tasks: &mut JoinSet<()>,
    client: &Client,
    namespaces: &[String],
    caches: &Arc<Caches>,
    dispatch: &Dispatch,
) -> Vec<oneshot::Receiver<()>> {
    let scopes: Vec<Option<&str>> = if namespaces.is_empty() {
        vec![None]
    } else {
        namespaces.iter().map(|namespace| Some(namespace.as_str())).collect()
    };
    let mut lists = Vec::new();
    let mut awaited = || {
        let (done, complete) = oneshot::channel();
        lists.push(complete);
        done
    };
    for (n, namespace) in scopes.into_iter().enumerate() {
        let apps = app_resource();
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &apps),
            None => Api::all_with(client.clone(), &apps),
        };
        let (shared, keys) = (caches.clone(), dispatch.clone());
        tasks.spawn(follow(api, awaited(), "apps", move |event| {
            for change in shared.apps.handle_of(n, event.map(App::from)) {
                keys.add(key_of(&change), Wake::Observed);
            }
        }));

        let (shared, keys) = (caches.clone(), dispatch.clone());
        tasks.spawn(follow(
            scoped::<DeploymentView>(client, namespace),
            awaited(),
            "deployments",
            move |event| {
                for change in shared.deployments.handle_of(n, event.map(Deployment::from)) {
                    // A child has its App's name, whosever it is at the moment.
                    wake_app(&shared.apps, &keys, key_of(&change));
                }
            },
        ));

        let (shared, keys) = (caches.clone(), dispatch.clone());
        let api = scoped::<ScalerView>(client, namespace);
        tasks.spawn(follow(api, awaited(), "horizontalpodautoscalers", move |event| {
            for change in shared.scalers.handle_of(n, event.map(Scaler::from)) {
                for target in retarget(&shared, &change) {
                    wake_app(&shared.apps, &keys, target);
                }
            }
        }));
    }
    lists
}

fn scoped<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// Follows one kind for ever, with a backoff of its own.
async fn follow<K, F>(api: Api<K>, done: oneshot::Sender<()>, kind: &'static str, mut handle: F)
where
    K: kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    F: FnMut(WatchEvent<K>) + Send,
{
    let mut done = Some(done);
    let events = watch(api, watcher::Config::default()).default_backoff();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(Event::Init) => WatchEvent::Restarted,
            Ok(Event::InitApply(object)) => WatchEvent::Listed(object),
            Ok(Event::InitDone) => WatchEvent::Synced,
            Ok(Event::Apply(object)) => WatchEvent::Applied(object),
            Ok(Event::Delete(object)) => WatchEvent::Deleted(object),
            Err(error) => {
                tracing::warn!(kind, %error, "the watch failed and is tried again");
                continue;
            }
        };
        let complete = matches!(event, WatchEvent::Synced);
        handle(event);
        if complete && let Some(done) = done.take() {
            // Nobody waits any more when the operator stops.
            let _ = done.send(());
        }
    }
}

fn key_of<T: Cached>(change: &Change<T>) -> Key {
    let object = change.after.as_ref().or(change.before.as_ref());
    object.map_or_else(|| Key::new("", ""), |object| object.key().clone())
}

fn wake_app(apps: &Cache<App>, dispatch: &Dispatch, key: Key) {
    if apps.get(&key).is_some() {
        dispatch.add(key, Wake::Observed);
    }
}

/// Keeps the index of targets, and answers the Deployments whose scalers changed: the old target and the new one.
fn retarget(caches: &Caches, change: &Change<Scaler>) -> Vec<Key> {
    let mut scaled = caches.scaled.write();
    let mut touched = Vec::new();
    if let Some(before) = &change.before
        && let Some(target) = &before.target
    {
        if let Some(scalers) = scaled.get_mut(target) {
            scalers.remove(&before.key);
            if scalers.is_empty() {
                scaled.remove(target);
            }
        }
        touched.push(target.clone());
    }
    if let Some(after) = &change.after
        && let Some(target) = &after.target
    {
        scaled.entry(target.clone()).or_default().insert(after.key.clone());
        touched.push(target.clone());
    }
    touched
}
