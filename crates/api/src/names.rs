//! The names that KubeSentry writes into a cluster: group, labels, annotations, finalizer.
//!
//! They are API: users select by them, other tools read them. None may change within `v1alpha1`.

/// API group of the `App` resource.
pub const GROUP: &str = "apps.sentry.io";
/// The version served and stored.
pub const VERSION: &str = "v1alpha1";
/// `apiVersion` of an App.
pub const API_VERSION: &str = "apps.sentry.io/v1alpha1";
/// `kind` of an App.
pub const KIND: &str = "App";
/// Plural resource name.
pub const PLURAL: &str = "apps";
/// Name of the CustomResourceDefinition.
pub const CRD_NAME: &str = "apps.apps.sentry.io";

/// Field manager of every server-side apply.
pub const FIELD_MANAGER: &str = "kubesentry";
/// Finalizer that guards the export of the audit trail.
pub const FINALIZER: &str = "apps.sentry.io/audit-export";

/// The one label in a Deployment's selector; its value is the App's name.
pub const LABEL_APP: &str = "apps.sentry.io/app";
/// Recommended label: the application's name.
pub const LABEL_NAME: &str = "app.kubernetes.io/name";
/// Recommended label: the instance's name.
pub const LABEL_INSTANCE: &str = "app.kubernetes.io/instance";
/// Recommended label: who manages the object.
pub const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Labels that belong to the operator: `template.metadata.labels` may hold none of them.
pub const OWNED_LABELS: [&str; 4] = [LABEL_APP, LABEL_NAME, LABEL_INSTANCE, LABEL_MANAGED_BY];

/// On the Deployment: the size this operator wrote last, present only where the size is ours.
pub const ANNOTATION_DESIRED_REPLICAS: &str = "apps.sentry.io/desired-replicas";
/// On the Deployment: SHA-256 over the intent that was applied.
pub const ANNOTATION_APPLIED_HASH: &str = "apps.sentry.io/applied-hash";
/// On the App: ends the wait for the audit export of a deleted App at once.
pub const ANNOTATION_SKIP_AUDIT_EXPORT: &str = "apps.sentry.io/skip-audit-export";

/// Name of the main container: `image`, `ports`, `env` and their like go to it.
pub const MAIN_CONTAINER: &str = "app";
/// Longest name of an App: it becomes a label value and part of Pod names.
pub const NAME_MAX: usize = 52;
