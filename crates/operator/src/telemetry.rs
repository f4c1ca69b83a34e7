//! Metrics, in the names of controller-runtime and client-go, so that dashboards made for those work.
//!
//! One registry for the process; every room gets a clone of [`Telemetry`] and calls a method that says what happened.
//! Label values that users choose are namespace and App only, and a series goes with its App.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use kubesentry_api::conditions::ConditionType;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::key::Key;

type Labels = Vec<(&'static str, String)>;
type GaugeF64 = Gauge<f64, AtomicU64>;

/// `controller="app"`, as controller-runtime names a controller after its kind in lower case.
const CONTROLLER: &str = "app";

/// Buckets of `controller_runtime_reconcile_time_seconds` (controller-runtime, `pkg/internal/controller/metrics`).
const RECONCILE_BUCKETS: [f64; 32] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25,
    1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0,
];

/// Buckets of `workqueue_*_duration_seconds` (controller-runtime, `pkg/metrics/workqueue.go`): 10 ns to 1000 s.
const QUEUE_BUCKETS: [f64; 12] = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0];

/// Every (action, reason) that is told, so that their series can go with the App.
const DECISIONS: [(&str, &str); 6] = [
    ("Create", "Created"),
    ("TakeOver", "TakenOver"),
    ("Update", "Updated"),
    ("Resize", "Resized"),
    ("Resize", "Pinned"),
    ("PutBack", "PutBack"),
];

/// How a pass ended, in the vocabulary of `controller_runtime_reconcile_total{result}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassResult {
    /// Nothing more to do until something changes.
    Success,
    /// Comes up again at a time of its own.
    RequeueAfter,
    /// Failed, and is tried again.
    Error,
}

impl PassResult {
    const ALL: [Self; 3] = [Self::Success, Self::RequeueAfter, Self::Error];

    const fn label(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::RequeueAfter => "requeue_after",
            Self::Error => "error",
        }
    }
}

struct Metrics {
    reconcile_total: Family<Labels, Counter>,
    reconcile_errors: Family<Labels, Counter>,
    reconcile_time: Histogram,
    active_workers: Gauge,
    depth: Gauge,
    adds: Counter,
    queue_duration: Histogram,
    work_duration: Histogram,
    unfinished: GaugeF64,
    longest: GaugeF64,
    retries: Counter,
    requests: Family<Labels, Counter>,
    app_info: Family<Labels, Gauge>,
    app_condition: Family<Labels, Gauge>,
    desired: Family<Labels, Gauge>,
    current: Family<Labels, Gauge>,
    decisions: Family<Labels, Counter>,
    leads: Family<Labels, Gauge>,
    audit_write_errors: Counter,
    audit_abandoned: Counter,
    events_dropped: Counter,
}

/// See the module. Clones share one registry.
#[derive(Clone)]
pub struct Telemetry {
    metrics: Arc<Metrics>,
    registry: Arc<Registry>,
}

impl Telemetry {
    /// A registry with every metric of the operator in it.
    #[allow(clippy::too_many_lines, reason = "one line per metric")]
    pub fn new(version: &str) -> Self {
        let mut registry = Registry::default();
        let controller = || vec![("controller".into(), CONTROLLER.into())];
        let named = || vec![("name".into(), CONTROLLER.into()), ("controller".into(), CONTROLLER.into())];
        let metrics = Metrics {
            reconcile_total: Family::default(),
            reconcile_errors: Family::default(),
            reconcile_time: Histogram::new(RECONCILE_BUCKETS),
            active_workers: Gauge::default(),
            depth: Gauge::default(),
            adds: Counter::default(),
            queue_duration: Histogram::new(QUEUE_BUCKETS),
            work_duration: Histogram::new(QUEUE_BUCKETS),
            unfinished: GaugeF64::default(),
            longest: GaugeF64::default(),
            retries: Counter::default(),
            requests: Family::default(),
            app_info: Family::default(),
            app_condition: Family::default(),
            desired: Family::default(),
            current: Family::default(),
            decisions: Family::default(),
            leads: Family::default(),
            audit_write_errors: Counter::default(),
            audit_abandoned: Counter::default(),
            events_dropped: Counter::default(),
        };
        registry.register(
            "controller_runtime_reconcile",
            "Passes, by their result",
            metrics.reconcile_total.clone(),
        );
        registry.register(
            "controller_runtime_reconcile_errors",
            "Passes that failed",
            metrics.reconcile_errors.clone(),
        );
        for result in PassResult::ALL {
            drop(metrics.reconcile_total.get_or_create(&result_labels(result)));
        }
        drop(metrics.reconcile_errors.get_or_create(&vec![("controller", CONTROLLER.to_owned())]));
        {
            let sub = registry.sub_registry_with_labels(controller().into_iter());
            sub.register(
                "controller_runtime_reconcile_time_seconds",
                "Duration of a pass",
                metrics.reconcile_time.clone(),
            );
            sub.register(
                "controller_runtime_active_workers",
                "Workers in a pass",
                metrics.active_workers.clone(),
            );
        }
        {
            let sub = registry.sub_registry_with_labels(named().into_iter());
            sub.register("workqueue_depth", "Keys that wait", metrics.depth.clone());
            sub.register("workqueue_adds", "Keys added", metrics.adds.clone());
            sub.register(
                "workqueue_queue_duration_seconds",
                "Time a key waits",
                metrics.queue_duration.clone(),
            );
            sub.register(
                "workqueue_work_duration_seconds",
                "Time a key is worked on",
                metrics.work_duration.clone(),
            );
            sub.register(
                "workqueue_unfinished_work_seconds",
                "Age of all passes under way",
                metrics.unfinished.clone(),
            );
            sub.register(
                "workqueue_longest_running_processor_seconds",
                "Age of the oldest pass under way",
                metrics.longest.clone(),
            );
            sub.register("workqueue_retries", "Retries", metrics.retries.clone());
        }
        registry.register("rest_client_requests", "Requests to the API server", metrics.requests.clone());
        registry.register("kubesentry_app_info", "One series per App", metrics.app_info.clone());
        registry.register(
            "kubesentry_app_condition",
            "1 for the status that a condition has",
            metrics.app_condition.clone(),
        );
        registry.register("kubesentry_desired_replicas", "Pods that should exist", metrics.desired.clone());
        registry.register("kubesentry_current_replicas", "Pods that exist", metrics.current.clone());
        registry.register("kubesentry_decisions", "What was done to children", metrics.decisions.clone());
        registry.register(
            "leader_election_master_status",
            "1 while this process leads",
            metrics.leads.clone(),
        );
        registry.register(
            "kubesentry_audit_write_errors",
            "Attempts to export audit records that failed",
            metrics.audit_write_errors.clone(),
        );
        registry.register(
            "kubesentry_audit_export_abandoned",
            "Exports on deletion given up at the deadline",
            metrics.audit_abandoned.clone(),
        );
        registry.register("kubesentry_events_dropped", "Events not sent", metrics.events_dropped.clone());
        let build: Family<Labels, Gauge> = Family::default();
        build.get_or_create(&vec![("version", version.to_owned())]).set(1);
        registry.register("kubesentry_build_info", "Version of the operator", build);
        Self { metrics: Arc::new(metrics), registry: Arc::new(registry) }
    }

    /// Sets the number of workers, known once flags are read.
    #[must_use]
    pub fn with_max_workers(mut self, workers: usize) -> Self {
        if let Some(registry) = Arc::get_mut(&mut self.registry) {
            let gauge = Gauge::<i64>::default();
            gauge.set(i64::try_from(workers).unwrap_or(i64::MAX));
            let labels = [("controller".into(), CONTROLLER.into())];
            registry.sub_registry_with_labels(labels.into_iter()).register(
                "controller_runtime_max_concurrent_reconciles",
                "Workers",
                gauge,
            );
        }
        self
    }

    /// The metrics as OpenMetrics text.
    pub fn encode(&self, unfinished_seconds: f64, longest_seconds: f64) -> String {
        self.metrics.unfinished.set(unfinished_seconds);
        self.metrics.longest.set(longest_seconds);
        let mut text = String::new();
        // Writing into a String can't fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    /// A pass ended.
    pub fn pass_ended(&self, result: PassResult, took: Duration) {
        self.metrics.reconcile_total.get_or_create(&result_labels(result)).inc();
        if result == PassResult::Error {
            self.metrics.reconcile_errors.get_or_create(&vec![("controller", CONTROLLER.to_owned())]).inc();
        }
        self.metrics.reconcile_time.observe(took.as_secs_f64());
    }

    /// A worker begins a pass.
    pub fn worker_busy(&self) {
        self.metrics.active_workers.inc();
    }

    /// A worker ended a pass.
    pub fn worker_idle(&self) {
        self.metrics.active_workers.dec();
    }

    pub(crate) fn queue_added(&self) {
        self.metrics.adds.inc();
    }

    pub(crate) fn queue_depth(&self, depth: usize) {
        self.metrics.depth.set(i64::try_from(depth).unwrap_or(i64::MAX));
    }

    pub(crate) fn queue_taken(&self, depth: usize, waited: Duration) {
        self.queue_depth(depth);
        self.metrics.queue_duration.observe(waited.as_secs_f64());
    }

    pub(crate) fn queue_done(&self, worked: Duration) {
        self.metrics.work_duration.observe(worked.as_secs_f64());
    }

    pub(crate) fn queue_retried(&self) {
        self.metrics.retries.inc();
    }

    /// The API server answered, or didn't (`<error>`, as client-go says).
    pub fn request(&self, method: &str, code: Option<u16>) {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        self.metrics.requests.get_or_create(&vec![("code", code), ("method", method.to_owned())]).inc();
    }

    /// Something was done to a child.
    pub fn decided(&self, key: &Key, action: &str, reason: &str) {
        debug_assert!(DECISIONS.contains(&(action, reason)), "{action} {reason}");
        self.metrics.decisions.get_or_create(&decision_labels(key, action, reason)).inc();
    }

    /// What the status of an App says, as gauges.
    pub fn reported(&self, key: &Key, status: &kubesentry_api::status::AppStatus) {
        let labels = app_labels(key);
        self.metrics.app_info.get_or_create(&labels).set(1);
        self.metrics.desired.get_or_create(&labels).set(status.desired_replicas.unwrap_or_default().into());
        self.metrics.current.get_or_create(&labels).set(status.replicas.unwrap_or_default().into());
        // Only ours: theirs would stay when the App goes.
        let is_ours = |kind: &str| ConditionType::ALL.iter().any(|ours| ours.as_str() == kind);
        for condition in status.conditions.iter().filter(|condition| is_ours(&condition.kind)) {
            for value in ["True", "False", "Unknown"] {
                let is = i64::from(condition.status.to_string() == value);
                self.metrics
                    .app_condition
                    .get_or_create(&condition_labels(key, &condition.kind, value))
                    .set(is);
            }
        }
    }

    /// An App is gone, and its series with it.
    pub fn forget(&self, key: &Key) {
        let labels = app_labels(key);
        for family in [&self.metrics.app_info, &self.metrics.desired, &self.metrics.current] {
            family.remove(&labels);
        }
        for kind in ConditionType::ALL {
            for value in ["True", "False", "Unknown"] {
                self.metrics.app_condition.remove(&condition_labels(key, kind.as_str(), value));
            }
        }
        for (action, reason) in DECISIONS {
            self.metrics.decisions.remove(&decision_labels(key, action, reason));
        }
    }

    /// This process leads, or does no longer.
    pub fn leads(&self, leads: bool) {
        self.metrics.leads.get_or_create(&vec![("name", crate::lease::LEASE.to_owned())]).set(leads.into());
    }

    /// The series of all Apps go: what a standby knew of them is no longer true.
    pub fn forget_all(&self) {
        for family in [
            &self.metrics.app_info,
            &self.metrics.desired,
            &self.metrics.current,
            &self.metrics.app_condition,
        ] {
            family.clear();
        }
    }

    /// An attempt to export audit records failed.
    pub fn audit_write_failed(&self) {
        self.metrics.audit_write_errors.inc();
    }

    /// An export was given up at its deadline.
    pub fn audit_abandoned(&self) {
        self.metrics.audit_abandoned.inc();
    }

    /// An event was not sent.
    pub fn event_dropped(&self) {
        self.metrics.events_dropped.inc();
    }
}

fn result_labels(result: PassResult) -> Labels {
    vec![("controller", CONTROLLER.to_owned()), ("result", result.label().to_owned())]
}

fn app_labels(key: &Key) -> Labels {
    vec![("namespace", key.namespace.to_string()), ("app", key.name.to_string())]
}

fn decision_labels(key: &Key, action: &str, reason: &str) -> Labels {
    let mut labels = app_labels(key);
    labels.push(("action", action.to_owned()));
    labels.push(("reason", reason.to_owned()));
    labels
}

fn condition_labels(key: &Key, kind: &str, status: &str) -> Labels {
    let mut labels = app_labels(key);
    labels.push(("condition", kind.to_owned()));
    labels.push(("status", status.to_owned()));
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_of_controller_runtime_and_client_go() {
        let telemetry = Telemetry::new("1").with_max_workers(8);
        telemetry.request("PATCH", Some(200));
        telemetry.request("GET", None);
        let text = telemetry.encode(0.5, 0.25);
        for line in [
            "controller_runtime_reconcile_total{controller=\"app\",result=\"success\"} 0",
            "controller_runtime_reconcile_errors_total{controller=\"app\"} 0",
            "controller_runtime_active_workers{controller=\"app\"} 0",
            "controller_runtime_max_concurrent_reconciles{controller=\"app\"} 8",
            "workqueue_depth{name=\"app\",controller=\"app\"} 0",
            "workqueue_adds_total{name=\"app\",controller=\"app\"} 0",
            "workqueue_retries_total{name=\"app\",controller=\"app\"} 0",
            "workqueue_unfinished_work_seconds{name=\"app\",controller=\"app\"} 0.5",
            "workqueue_longest_running_processor_seconds{name=\"app\",controller=\"app\"} 0.25",
            "rest_client_requests_total{code=\"200\",method=\"PATCH\"} 1",
            "rest_client_requests_total{code=\"<error>\",method=\"GET\"} 1",
            "kubesentry_build_info{version=\"1\"} 1",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
        assert!(text.contains("workqueue_queue_duration_seconds_bucket") && text.ends_with("# EOF\n"));
    }

    #[test]
    fn the_series_of_an_app_go_with_it() {
        let telemetry = Telemetry::new("1");
        let (shop, other) = (Key::new("n", "shop"), Key::new("n", "other"));
        for key in [&shop, &other] {
            telemetry.reported(key, &kubesentry_api::status::AppStatus::default());
            telemetry.decided(key, "Create", "Created");
        }
        telemetry.forget(&shop);
        let text = telemetry.encode(0.0, 0.0);
        assert!(!text.contains("app=\"shop\""), "{text}");
        assert!(text.contains("kubesentry_decisions_total{namespace=\"n\",app=\"other\""), "{text}");
    }
}
