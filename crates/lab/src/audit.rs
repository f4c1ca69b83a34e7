//! The API server's audit log: who asked for what, and what was answered.
//!
//! It is the oracle for claims such as "no writes in two minutes": it is written by the API server, not by the program
//! under test. Each request counts once: watches when they start, everything else when it is complete (a watch is
//! logged at both stages). The server writes an entry before it ends a small answer; a large answer may be read a
//! moment before its entry is there, so [`crate::Lab::audit_settled`] exists. Called by tests, benches and the demo.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use jiff::Timestamp;
use serde::Deserialize;

use crate::LabError;

/// The audit log of a lab.
#[derive(Debug, Clone)]
pub struct AuditLog {
    path: Option<PathBuf>,
}

/// A position in the audit log, in bytes from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

/// A request that the API server answered (or, for a watch, began to answer). What a request has no such part of is
/// an empty string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// The authenticated user.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; an HTTP method for paths
    /// outside the resource API.
    pub verb: String,
    /// The API group; empty for the core group.
    pub group: String,
    /// The API version.
    pub version: String,
    /// The resource, plural.
    pub resource: String,
    /// The subresource.
    pub subresource: String,
    /// The namespace.
    pub namespace: String,
    /// The object's name; empty for lists, watches and creates with a generated name.
    pub name: String,
    /// Path and query, as asked.
    pub uri: String,
    /// The query, without `?`.
    pub query: String,
    /// The HTTP status; 0 where none was sent.
    pub code: u16,
    /// When the request arrived, by the server's clock, in microseconds.
    pub received_at: Timestamp,
    /// When this stage was reached, by the server's clock, in microseconds.
    pub stage_at: Timestamp,
    /// `ResponseStarted`, `ResponseComplete` or `Panic`.
    pub stage: String,
    /// The client's User-Agent.
    pub user_agent: String,
}

impl AuditEntry {
    /// Whether the request was a write: create, update, patch, delete or deletecollection, other than of the virtual
    /// review resources and of Leases. No-op applies, dry runs and refused writes count; so do Events
    /// ([`AuditEntry::is_event`] tells them apart).
    pub fn is_write(&self) -> bool {
        let writes =
            matches!(self.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection");
        let lease = self.group == "coordination.k8s.io" && self.resource == "leases";
        // tokenreviews, subjectaccessreviews, selfsubjectaccessreviews, selfsubjectrulesreviews, selfsubjectreviews...
        let review = matches!(self.group.as_str(), "authentication.k8s.io" | "authorization.k8s.io")
            && self.resource.ends_with("reviews");
        writes && !lease && !review
    }

    /// Whether the request was about Events, of either group.
    pub fn is_event(&self) -> bool {
        self.resource == "events" && matches!(self.group.as_str(), "" | "events.k8s.io")
    }

    /// Whether a write had no effect by request (`dryRun=All`).
    pub fn is_dry_run(&self) -> bool {
        self.query.split('&').any(|p| p.starts_with("dryRun="))
    }
}

impl AuditLog {
    pub(crate) fn at(path: Option<PathBuf>) -> Self {
        Self { path }
    }

    /// The position after the last complete entry.
    pub fn mark(&self) -> Result<Mark, LabError> {
        /// Longer than any entry, so that the common case is one read.
        const STEP: u64 = 256 * 1024;
        let path = self.path.as_ref().ok_or(LabError::NoAudit)?;
        let size = match std::fs::metadata(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => 0,
            other => other.map_err(LabError::io("read the audit log", path))?.len(),
        };
        let mut from = size.saturating_sub(STEP);
        loop {
            let (_, complete) = self.read_from(from)?;
            if complete > from || from == 0 {
                return Ok(Mark(complete));
            }
            from = from.saturating_sub(STEP);
        }
    }

    /// The requests counted after a mark, in the order they were logged; complete lines only.
    pub fn since(&self, mark: &Mark) -> Result<Vec<AuditEntry>, LabError> {
        let path = self.path.as_ref().ok_or(LabError::NoAudit)?;
        let (text, _) = self.read_from(mark.0)?;
        let mut entries = Vec::new();
        let mut position = mark.0;
        for line in text.split_inclusive(|b| *b == b'\n') {
            let parsed =
                parse(line).map_err(|why| LabError::AuditLine { path: path.clone(), position, why })?;
            entries.extend(parsed.filter(counts));
            position += line.len() as u64;
        }
        Ok(entries)
    }

    /// The bytes from a position to the last line end, and where that is.
    fn read_from(&self, position: u64) -> Result<(Vec<u8>, u64), LabError> {
        let path = self.path.as_ref().ok_or(LabError::NoAudit)?;
        let mut file = match File::open(path) {
            // The server makes it with its first entry.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok((Vec::new(), position)),
            other => other.map_err(LabError::io("open the audit log", path))?,
        };
        let mut text = Vec::new();
        file.seek(SeekFrom::Start(position))
            .and_then(|_| file.read_to_end(&mut text))
            .map_err(LabError::io("read the audit log", path))?;
        let complete = text.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
        text.truncate(complete);
        Ok((text, position + complete as u64))
    }
}

fn counts(entry: &AuditEntry) -> bool {
    match entry.stage.as_str() {
        "ResponseComplete" | "Panic" => entry.verb != "watch",
        "ResponseStarted" => entry.verb == "watch",
        _ => false,
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    stage: String,
    verb: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    #[serde(default)]
    user: User,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: ObjectRef,
    #[serde(default)]
    response_status: ResponseStatus,
    request_received_timestamp: Timestamp,
    stage_timestamp: Timestamp,
}

#[derive(Deserialize, Default)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ObjectRef {
    resource: String,
    namespace: String,
    name: String,
    api_group: String,
    api_version: String,
    subresource: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ResponseStatus {
    code: u16,
}

/// One line; nothing for an empty one.
fn parse(line: &[u8]) -> Result<Option<AuditEntry>, String> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let event: Event = serde_json::from_slice(line).map_err(|e| e.to_string())?;
    let query = event.request_uri.split_once('?').map_or("", |(_, q)| q).to_owned();
    let object = event.object_ref;
    Ok(Some(AuditEntry {
        user: event.user.username,
        verb: event.verb,
        group: object.api_group,
        version: object.api_version,
        resource: object.resource,
        subresource: object.subresource,
        namespace: object.namespace,
        name: object.name,
        uri: event.request_uri,
        query,
        code: event.response_status.code,
        received_at: event.request_received_timestamp,
        stage_at: event.stage_timestamp,
        stage: event.stage,
        user_agent: event.user_agent,
    }))
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::unique;

    fn line(stage: &str, verb: &str, group: &str, resource: &str) -> String {
        serde_json::json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "auditID": "x",
            "stage": stage, "verb": verb, "requestURI": format!("/apis/{group}/v1/namespaces/n/{resource}/o?dryRun=All&force=true"),
            "user": {"username": "u", "groups": ["g"]}, "sourceIPs": ["127.0.0.1"], "userAgent": "t/1",
            "objectRef": {"resource": resource, "namespace": "n", "name": "o", "apiGroup": group, "apiVersion": "v1"},
            "responseStatus": {"metadata": {}, "code": 200},
            "requestReceivedTimestamp": "2026-01-02T03:04:05.000006Z",
            "stageTimestamp": "2026-01-02T03:04:05.001006Z",
            "annotations": {"authorization.k8s.io/decision": "allow"}
        })
        .to_string()
            + "\n"
    }

    fn log(text: &str) -> AuditLog {
        let path = std::env::temp_dir().join(format!("lab-audit-{}", unique::token()));
        std::fs::write(&path, text).expect("a file");
        AuditLog::at(Some(path))
    }

    fn remove(log: &AuditLog) {
        let _ = std::fs::remove_file(log.path.as_ref().expect("a path"));
    }

    #[test]
    fn every_field_is_read() {
        let log = log(&line("ResponseComplete", "patch", "apps", "deployments"));
        let entries = log.since(&Mark(0)).expect("entries");
        remove(&log);
        let e = entries.first().expect("one");
        assert_eq!((e.user.as_str(), e.verb.as_str(), e.code), ("u", "patch", 200));
        assert_eq!(
            (e.group.as_str(), e.version.as_str(), e.resource.as_str()),
            ("apps", "v1", "deployments")
        );
        assert_eq!((e.namespace.as_str(), e.name.as_str(), e.user_agent.as_str()), ("n", "o", "t/1"));
        assert_eq!(e.query, "dryRun=All&force=true");
        assert_eq!(e.stage_at.as_microsecond() - e.received_at.as_microsecond(), 1_000);
        assert!(e.is_write() && e.is_dry_run() && !e.is_event());
    }

    #[test]
    fn a_watch_counts_when_it_starts_and_all_else_when_it_is_complete() {
        let stages = ["ResponseStarted", "ResponseComplete"];
        let text: String =
            ["watch", "get"].iter().flat_map(|v| stages.map(|s| line(s, v, "", "pods"))).collect();
        let log = log(&text);
        let counted = log.since(&Mark(0)).expect("entries");
        remove(&log);
        let counted: Vec<_> = counted.iter().map(|e| (e.verb.as_str(), e.stage.as_str())).collect();
        assert_eq!(counted, [("watch", "ResponseStarted"), ("get", "ResponseComplete")]);
    }

    #[test]
    fn only_complete_lines_after_the_mark_are_read() {
        let whole = line("ResponseComplete", "get", "", "pods");
        let half = line("ResponseComplete", "create", "", "pods");
        let (start, rest) = half.split_at(40);
        let log = log(&format!("{whole}{start}"));
        let mark = log.mark().expect("a mark");
        assert_eq!(mark, Mark(whole.len() as u64));
        assert_eq!(log.since(&mark).expect("entries"), []);
        std::fs::write(log.path.as_ref().expect("a path"), format!("{whole}{start}{rest}")).expect("a file");
        let entries = log.since(&mark).expect("entries");
        remove(&log);
        assert_eq!(entries.iter().map(|e| e.verb.as_str()).collect::<Vec<_>>(), ["create"]);
    }

    #[test]
    fn leases_and_reviews_are_no_writes_but_events_are() {
        let write = |verb: &str, group: &str, resource: &str| {
            let text = line("ResponseComplete", verb, group, resource);
            parse(text.as_bytes()).expect("a line").is_some_and(|e| e.is_write())
        };
        assert!(!write("update", "coordination.k8s.io", "leases"));
        assert!(!write("create", "authentication.k8s.io", "tokenreviews"));
        assert!(!write("create", "authorization.k8s.io", "selfsubjectaccessreviews"));
        assert!(!write("get", "apps", "deployments"));
        assert!(write("create", "events.k8s.io", "events"));
        assert!(write("deletecollection", "apps", "deployments"));
    }

    #[test]
    fn an_existing_cluster_has_no_audit_log_and_a_missing_file_is_an_empty_one() {
        assert!(matches!(AuditLog::at(None).mark(), Err(LabError::NoAudit)));
        let none = AuditLog::at(Some("/nonexistent/audit.log".into()));
        assert_eq!(none.mark().expect("a mark"), Mark(0));
        assert_eq!(none.since(&Mark(0)).expect("entries"), []);
    }
}
