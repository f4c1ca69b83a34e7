//! The audit part of the status: new records in, old ones carried away.

use kubesentry_api::conditions::{Condition, Status};
use kubesentry_api::status::AppStatus;
use kubesentry_engine::audit::{self, FLUSH_BYTES, Ledger};

use crate::context::Context;
use crate::export;
use crate::memory::Memory;
use crate::reconcile::observe::Observation;

/// The whole status stays below this, whatever happens.
const STATUS_MAX: usize = 32 * 1024;
/// Records that may wait for a sink that stays away; then they are printed (the CRD allows 64).
const UNFLUSHED_MAX: usize = 48;

/// The ledger with this pass's records in it.
///
/// Records are carried away once a written status holds them, never before: a crash between chunk and status would give
/// the same numbers to other records.
pub(super) async fn ledger_of(
    context: &Context,
    observation: &Observation,
    status: &AppStatus,
    memory: &Memory,
) -> Option<Ledger> {
    let mut ledger = status.audit.clone();
    if let Some(ledger) = &mut ledger {
        make_room(context, observation, status, ledger).await;
    }
    for draft in memory.unreported.drafts.clone() {
        ledger.get_or_insert_default().append(draft);
    }
    if became(&observation.app.status.conditions, &status.conditions, "Contended", Status::True) {
        let message = memory.contention.describe().unwrap_or_default();
        let draft = export::draft(context, observation, audit::Action::Contended, "ForeignWriter", message);
        ledger.get_or_insert_default().append(draft);
    }
    ledger
}

/// Carries the waiting records away where there are too many; prints them where the sink stays away.
async fn make_room(context: &Context, observation: &Observation, status: &AppStatus, ledger: &mut Ledger) {
    let rest =
        AppStatus { audit: Some(Ledger { unflushed: Vec::new(), ..ledger.clone() }), ..status.clone() };
    // Half of what the rest leaves free: a pass adds records after this.
    let room = STATUS_MAX.saturating_sub(serde_json::to_vec(&rest).map_or(0, |json| json.len())) / 2;
    if !ledger.needs_flush(FLUSH_BYTES.min(room)) {
        return;
    }
    if let Err(error) = export::flush(context, observation, ledger).await {
        tracing::warn!(app = %observation.app.key, %error, "audit records could not be exported and stay in the status");
        if ledger.unflushed.len() >= UNFLUSHED_MAX || ledger.unflushed_bytes() > room {
            export::dump(ledger);
        }
    }
}

fn became(before: &[Condition], after: &[Condition], kind: &str, status: Status) -> bool {
    let has = |conditions: &[Condition]| conditions.iter().any(|c| c.kind == kind && c.status == status);
    !has(before) && has(after)
}
