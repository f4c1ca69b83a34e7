//! When a control plane is ready: shown by an effect, not by a health path alone.
//!
//! `/healthz` of the controller manager is fine two seconds before it works, and a plain user gets 403 on everything
//! for half a second after the API server says it is ready (RBAC's caches). So: an object is written and listed, a
//! plain user may discover the API, and at `ApiGc` an object without its owner is collected. Called by control_plane.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::Instant;

use crate::servers::Servers;
use crate::{LabError, unique};

/// For a machine that is busy compiling; 2.5 s is usual.
const LIMIT: Duration = Duration::from_mins(2);

/// No single request may hang the start.
const REQUEST: Duration = Duration::from_secs(5);

/// The namespace the probes are written to. The API server makes it.
const NAMESPACE: &str = "default";

/// Repeats a step until it succeeds, a server ends or the time is up.
async fn until<F>(
    what: &'static str,
    servers: &mut Servers,
    mut step: impl FnMut() -> F,
) -> Result<(), LabError>
where
    F: Future<Output = Result<(), String>>,
{
    let deadline = Instant::now() + LIMIT;
    loop {
        servers.still_run()?;
        let last = match tokio::time::timeout(REQUEST, step()).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(why)) => why,
            Err(_) => format!("no answer within {} s", REQUEST.as_secs()),
        };
        if Instant::now() >= deadline {
            let dir = servers.api.log().parent().unwrap_or(std::path::Path::new(".")).to_owned();
            return Err(LabError::NotReady { what, waited: LIMIT, last, dir });
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

/// The API server stores, lists, and lets a plain user in.
pub(crate) async fn api(servers: &mut Servers, admin: &Client, plain: &Client) -> Result<(), LabError> {
    until("the API server being ready", servers, || get(admin, "/readyz")).await?;
    until("a write and a list", servers, || write_and_list(admin)).await?;
    until("RBAC letting a plain user discover the API", servers, || get(plain, "/api")).await
}

async fn get(client: &Client, path: &str) -> Result<(), String> {
    let request = http_get(path)?;
    client.request_text(request).await.map(drop).map_err(|e| e.to_string())
}

fn http_get(path: &str) -> Result<http::Request<Vec<u8>>, String> {
    http::Request::get(path).body(Vec::new()).map_err(|e| e.to_string())
}

async fn write_and_list(admin: &Client) -> Result<(), String> {
    let says = |e: kube::Error| e.to_string();
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    namespaces.get(NAMESPACE).await.map_err(says)?;
    let maps: Api<ConfigMap> = Api::namespaced(admin.clone(), NAMESPACE);
    let name = format!("lab-probe-{}", unique::token());
    maps.create(&PostParams::default(), &config_map(&name, None)?).await.map_err(says)?;
    let seen = maps.list(&ListParams::default()).await.map_err(says)?;
    let found = seen.items.iter().any(|m| m.metadata.name.as_deref() == Some(&name));
    maps.delete(&name, &DeleteParams::default()).await.map_err(says)?;
    if found { Ok(()) } else { Err(format!("ConfigMap {name} was written but not listed")) }
}

/// The garbage collector has done its first sync: an object whose owner doesn't exist goes away.
pub(crate) async fn collector(servers: &mut Servers, admin: &Client) -> Result<(), LabError> {
    let maps: Api<ConfigMap> = Api::namespaced(admin.clone(), NAMESPACE);
    let name = format!("lab-orphan-{}", unique::token());
    let orphan = config_map(&name, Some("lab-owner-that-never-was"));
    let orphan = orphan.map_err(|why| LabError::State { path: name.clone().into(), why })?;
    maps.create(&PostParams::default(), &orphan)
        .await
        .map_err(LabError::kube("write the collector's probe"))?;
    until("the garbage collector collecting an object without owner", servers, || async {
        match maps.get_opt(&name).await {
            Ok(None) => Ok(()),
            Ok(Some(_)) => Err("it is still there".to_owned()),
            Err(e) => Err(e.to_string()),
        }
    })
    .await
}

fn config_map(name: &str, owner: Option<&str>) -> Result<ConfigMap, String> {
    let owners = owner.map(|owner| {
        let uid = format!("{:08x}-0000-4000-8000-000000000000", unique::bits() >> 32);
        vec![json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid})]
    });
    let map = json!({"metadata": {"name": name, "ownerReferences": owners}});
    serde_json::from_value(map).map_err(|e| e.to_string())
}
