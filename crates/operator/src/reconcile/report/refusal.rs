//! A Deployment that the API server did not take: whose fault it is, and when it is tried again.

use std::time::Duration;

use kubesentry_api::children::app_path;
use kubesentry_api::conditions::Blocked;
use kubesentry_api::reasons::Reason;

use crate::error::{Forbidden, RequestError};
use crate::memory::{Memory, Refused};
use crate::reconcile::Outcome;
use crate::reconcile::judge::Judgement;
use crate::reconcile::observe::Observation;
use crate::reconcile::plan::ChildWrite;

/// A refused Deployment is tried again after this long though nothing changed.
const REJECTED_RETRY: Duration = Duration::from_secs(300);
/// The API server did not take the Deployment. `Some` where the pass ends here.
pub(super) fn refused(
    observation: &Observation,
    judgement: &Judgement,
    error: &RequestError,
    write: &ChildWrite,
    memory: &mut Memory,
) -> Option<Outcome> {
    let sent = write.sent.clone();
    let before = memory.refused.take().filter(|refused| refused.sent == sent);
    let since = before.as_ref().map_or(observation.mono, |refused| refused.since);
    let times = before.map_or(0, |refused| refused.times) + 1;
    let (blocked, is_invalid, delay) = match error {
        RequestError::Invalid { message, causes } => {
            let spec = judgement.understood.valid().map(|(valid, _)| &valid.spec);
            let told: Vec<String> = match spec {
                Some(spec) => causes
                    .iter()
                    .map(|(field, words)| format!("{}: {words}", app_path(field, spec)))
                    .collect(),
                None => Vec::new(),
            };
            let words = if told.is_empty() { message.clone() } else { told.join("; ") };
            let message = format!("the API server refused the Deployment: {words}");
            (Blocked { reason: Reason::DeploymentRejected, message }, true, REJECTED_RETRY)
        }
        RequestError::Forbidden { message, why } => {
            let reason = match why {
                Forbidden::Quota => Reason::QuotaExceeded,
                Forbidden::NamespaceTerminating => Reason::NamespaceTerminating,
                Forbidden::Other => Reason::Forbidden,
            };
            let delay = Duration::from_secs(1 << times.min(8)).min(REJECTED_RETRY);
            (Blocked { reason, message: message.clone() }, false, delay)
        }
        error => return Some(Outcome::Retry(error.to_string())),
    };
    let mut refused = Refused { sent, blocked, is_invalid, retry_at: observation.mono + delay, since, times };
    if refused.is_in_grace(observation.mono) {
        // Remembered, so that the grace ends.
        refused.retry_at = observation.mono;
        memory.refused = Some(refused);
        return Some(Outcome::Retry(error.to_string()));
    }
    let Blocked { reason, message } = &refused.blocked;
    tracing::warn!(app = %observation.app.key, uid = observation.app.uid, %reason, "{message}");
    memory.refused = Some(refused);
    None
}
