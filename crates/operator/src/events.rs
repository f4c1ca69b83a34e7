//! Events of an App (`events.k8s.io/v1`), for people who `kubectl describe`.
//!
//! Sending never holds a pass up: events go through a bounded queue to one background task, and are dropped, counted,
//! when it is full. The same event again within ten minutes becomes a series of the first one. Events are no audit
//! trail: they may be lost.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kubesentry_api::names::{API_VERSION, KIND};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::context::Context;
use crate::error::RequestError;
use crate::key::Key;
use crate::timestamps::micro_time;

/// Name of the controller in events: a qualified name, as the API asks.
const CONTROLLER: &str = "apps.sentry.io/kubesentry";
/// Events that may wait to be sent.
const WAITING: usize = 1024;
/// Events that are remembered, to count repetitions.
const REMEMBERED: usize = 4096;
/// The API server refuses a longer note.
const NOTE_MAX: usize = 1024;
/// The same event within this time becomes a series (client-go's `refreshTime` is 30 min, its `finishTime` 6 min).
const SERIES: Duration = Duration::from_secs(600);

/// Whether something is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    /// As it should be.
    Normal,
    /// Somebody should look.
    Warning,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Event {
    /// The App.
    pub key: Key,
    /// Its UID.
    pub uid: String,
    /// Whether something is wrong.
    pub kind: EventType,
    /// Why, as one word; stable.
    pub reason: String,
    /// What was done, as one word; stable.
    pub action: String,
    /// Why, as a sentence.
    pub note: String,
}

/// The sending end.
#[derive(Clone)]
pub struct Events {
    sender: mpsc::Sender<Event>,
}

/// The receiving end, to be driven by [`run`].
pub struct EventQueue {
    receiver: mpsc::Receiver<Event>,
}

/// A queue for events.
pub fn channel() -> (Events, EventQueue) {
    let (sender, receiver) = mpsc::channel(WAITING);
    (Events { sender }, EventQueue { receiver })
}

impl Events {
    /// Sends an event, or says `false` where too many wait.
    pub fn send(&self, event: Event) -> bool {
        self.sender.try_send(event).is_ok()
    }
}

struct Sent {
    name: String,
    count: u32,
    at: Instant,
}

/// Sends events until the other end is gone.
pub async fn run(mut queue: EventQueue, context: Arc<Context>) {
    let mut sent: HashMap<Event, Sent> = HashMap::new();
    let mut number: u64 = 0;
    while let Some(event) = queue.receiver.recv().await {
        let now = Instant::now();
        sent.retain(|_, before| now.saturating_duration_since(before.at) < SERIES);
        if sent.len() >= REMEMBERED {
            // A repeated event then begins a new series; nothing else.
            sent.clear();
        }
        let namespace = event.key.namespace.to_string();
        let outcome = if let Some(before) = sent.get_mut(&event) {
            before.count += 1;
            before.at = now;
            let series =
                json!({"series": {"count": before.count, "lastObservedTime": micro_time(Timestamp::now())}});
            context.door.patch_event(&namespace, &before.name, &series).await
        } else {
            number += 1;
            let name = format!("{}.{:x}{number:x}", event.key.name, Timestamp::now().as_microsecond());
            let body = body(&event, &name, &context.instance, Timestamp::now());
            let outcome = context.door.create_event(&namespace, &body).await;
            sent.insert(event, Sent { name, count: 1, at: now });
            outcome
        };
        if let Err(error) = outcome {
            context.telemetry.event_dropped();
            // The namespace of a deleted App takes no new events, and that is as it should be.
            if !matches!(error, RequestError::Forbidden { .. } | RequestError::NotFound(_)) {
                tracing::warn!(%error, "an event was not sent");
            }
        }
    }
}

fn body(event: &Event, name: &str, instance: &str, now: Timestamp) -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": &*event.key.namespace},
        "eventTime": micro_time(now),
        "reportingController": CONTROLLER,
        "reportingInstance": instance,
        "action": event.action,
        "reason": event.reason,
        "regarding": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": &*event.key.namespace,
            "name": &*event.key.name,
            "uid": event.uid,
        },
        "note": cut(&event.note, NOTE_MAX),
        "type": match event.kind {
            EventType::Normal => "Normal",
            EventType::Warning => "Warning",
        },
    })
}

/// At most `max` bytes of a text, cut between characters.
fn cut(text: &str, max: usize) -> &str {
    let mut end = max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_cut_between_characters() {
        assert_eq!(cut("äöü", 3), "ä");
        assert_eq!(cut("abc", 1024), "abc");
    }
}
