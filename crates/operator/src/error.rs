//! What can go wrong with a request to the API server, sorted by what to do about it.

use std::time::Duration;

use kube::core::Status;

use crate::lease::NotLeading;

/// A request that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The object changed in between: begin anew from the latest state.
    #[error("conflict: {0}")]
    Conflict(String),
    /// The object is gone.
    #[error("not found: {0}")]
    NotFound(String),
    /// The object exists already.
    #[error("already exists: {0}")]
    AlreadyExists(String),
    /// The API server refuses the content; the same content will be refused again.
    #[error("invalid: {message}")]
    Invalid {
        /// The server's words.
        message: String,
        /// Field and message of each cause.
        causes: Vec<(String, String)>,
    },
    /// The API server forbids it: permissions, a quota, a terminating namespace.
    #[error("forbidden: {message}")]
    Forbidden {
        /// The server's words.
        message: String,
        /// Why, as far as the server says so.
        why: Forbidden,
    },
    /// This process doesn't lead (any more); nothing was sent.
    #[error(transparent)]
    NotLeading(#[from] NotLeading),
    /// The API server is not there, overloaded, or answered nothing sensible.
    #[error("the API server does not answer as it should: {0}")]
    Outage(String),
}

/// Why something is forbidden.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forbidden {
    /// A quota of the namespace.
    Quota,
    /// The namespace is being deleted.
    NamespaceTerminating,
    /// Permissions or policy.
    Other,
}

impl RequestError {
    /// The kind of error, for logs and metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Conflict(_) => "conflict",
            Self::NotFound(_) => "notfound",
            Self::AlreadyExists(_) => "exists",
            Self::Invalid { .. } => "invalid",
            Self::Forbidden { .. } => "forbidden",
            Self::NotLeading(_) => "notleading",
            Self::Outage(_) => "outage",
        }
    }

    /// No answer within the time allowed.
    pub(crate) fn timeout(limit: Duration) -> Self {
        Self::Outage(format!("no answer within {} s", limit.as_secs()))
    }
}

impl From<kube::Error> for RequestError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => from_status(*status),
            kube::Error::Service(error) if error.is::<NotLeading>() => Self::NotLeading(NotLeading),
            other => Self::Outage(other.to_string()),
        }
    }
}

fn from_status(status: Status) -> RequestError {
    let causes: Vec<(String, String)> = status
        .details
        .iter()
        .flat_map(|details| &details.causes)
        .map(|cause| (cause.field.clone(), cause.message.clone()))
        .collect();
    let cause =
        |reason: &str| status.details.iter().flat_map(|d| &d.causes).any(|cause| cause.reason == reason);
    match (status.code, status.reason.as_str()) {
        (409, "AlreadyExists") => RequestError::AlreadyExists(status.message),
        (409, _) => RequestError::Conflict(status.message),
        (404 | 410, _) => RequestError::NotFound(status.message),
        (422 | 400 | 413 | 415, _) => RequestError::Invalid { message: status.message, causes },
        (403, _) => {
            let why = if cause("NamespaceTerminating") {
                Forbidden::NamespaceTerminating
            } else if status.message.contains("exceeded quota") {
                // `plugin/pkg/admission/resourcequota/controller.go`: it gives no cause, only these words.
                Forbidden::Quota
            } else {
                Forbidden::Other
            };
            RequestError::Forbidden { message: status.message, why }
        }
        _ => RequestError::Outage(format!("{} {}", status.code, status.message)),
    }
}
