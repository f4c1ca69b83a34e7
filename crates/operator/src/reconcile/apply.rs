//! Step 4: executes a plan.
//!
//! Everything goes through the door, in the plan's order: the finalizer before the first child. What was really done
//! comes out as [`Applied`], which only this module can make: the report can't claim what wasn't done.

use std::time::Duration;

use kube::api::{Api, ApiResource, DynamicObject};
use kubesentry_api::ownership::{self, LostField};
use serde_json::Value;

use super::observe::Observation;
use super::plan::{ChildWrite, Plan};
use crate::context::Context;
use crate::error::RequestError;
use crate::export::{self, Release};
use crate::memory::Memory;
use crate::objects::Deployment;

/// Longest that a read inside a pass may take.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// What was done. Made by [`apply`] alone.
#[derive(Debug)]
pub struct Applied {
    app_version: Option<String>,
    child: ChildOutcome,
    release: Option<Release>,
    writer: Option<String>,
    failure: Option<RequestError>,
}

/// What became of the Deployment.
#[derive(Debug)]
pub enum ChildOutcome {
    /// No write was planned, or it was not reached.
    Untouched,
    /// It was written.
    Written(Box<Deployment>, Box<ChildWrite>),
    /// The API server did not take it.
    Refused(RequestError, Box<ChildWrite>),
}

impl Applied {
    /// The App's resourceVersion after the finalizer was added.
    pub fn app_version(&self) -> Option<&str> {
        self.app_version.as_deref()
    }

    /// What became of the Deployment.
    pub fn child(&self) -> &ChildOutcome {
        &self.child
    }

    /// What became of the release.
    pub fn release(&self) -> Option<&Release> {
        self.release.as_ref()
    }

    /// The writer that holds contended fields, where it was asked for.
    pub fn writer(&self) -> Option<&str> {
        self.writer.as_deref()
    }

    /// What kept the plan from being carried out to its end, besides the Deployment itself.
    pub fn failure(&self) -> Option<&RequestError> {
        self.failure.as_ref()
    }
}

/// Carries a plan out.
pub async fn apply(context: &Context, observation: &Observation, plan: Plan, memory: &mut Memory) -> Applied {
    let mut applied = Applied {
        app_version: None,
        child: ChildOutcome::Untouched,
        release: None,
        writer: None,
        failure: None,
    };
    let Plan { finalizer, child, identify, release, wake_after: _ } = plan;
    if release {
        applied.release = Some(export::release(context, observation, memory).await);
        return applied;
    }
    if let Some(patch) = finalizer {
        match context.door.patch_app(&observation.app.key, &patch).await {
            Ok(version) => {
                memory.app_write.wrote(&version, observation.mono);
                applied.app_version = Some(version);
            }
            // A failed test of a JSON patch is a 422: the App changed in between.
            Err(RequestError::Invalid { message, .. }) => {
                applied.failure = Some(RequestError::Conflict(message));
                return applied;
            }
            Err(error) => {
                applied.failure = Some(error);
                return applied;
            }
        }
    }
    if !identify.is_empty() {
        applied.writer = writer_of(context, observation, &identify).await;
    }
    if let Some(write) = child {
        let write = Box::new(write);
        applied.child = match context.door.apply_deployment(&observation.app.key, &write.body).await {
            Ok(view) => ChildOutcome::Written(Box::new(view.into()), write),
            Err(error) => ChildOutcome::Refused(error, write),
        };
    }
    applied
}

/// Who holds the fields now, read live: the cache keeps only our own entry. An answer that doesn't come costs a name in
/// a message, no more.
async fn writer_of(context: &Context, observation: &Observation, fields: &[LostField]) -> Option<String> {
    let resource = ApiResource::erase::<k8s_openapi::api::apps::v1::Deployment>(&());
    let key = &observation.app.key;
    let api: Api<DynamicObject> = Api::namespaced_with(context.reader.clone(), &key.namespace, &resource);
    let live = tokio::time::timeout(READ_TIMEOUT, api.get(&key.name)).await.ok()?.ok()?;
    let live = serde_json::to_value(live).unwrap_or(Value::Null);
    let writer = fields.iter().find_map(|field| ownership::holders(&live, field).into_iter().next())?;
    let via = writer.subresource.map(|subresource| format!(" on {subresource}")).unwrap_or_default();
    Some(format!("{} ({}{via})", writer.manager, writer.operation))
}
