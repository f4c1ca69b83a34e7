//! Flags of the operator. Every flag has a twin in the environment, `KUBESENTRY_...`.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

use crate::lease::{Timing, TimingError};

/// The KubeSentry operator: keeps a Deployment aligned with each App.
#[derive(Debug, Parser)]
#[command(name = "kubesentry", version, about, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// What to do; `run` when left out.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Flags of `run`.
    #[command(flatten)]
    pub run: RunArgs,
}

/// What to do.
#[allow(clippy::large_enum_variant, reason = "made once")]
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the operator (the default).
    Run(RunArgs),
    /// Print the CustomResourceDefinition; short for `manifests crd`.
    Crd,
    /// Print generated files.
    Manifests {
        /// Which one.
        what: Manifest,
    },
    /// Print the version.
    Version,
}

/// A generated file.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Manifest {
    /// The CustomResourceDefinition of the App.
    Crd,
    /// The reference page of conditions and reasons, in Markdown.
    Conditions,
}

/// Flags of `run`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Kubeconfig of the cluster. Left out, the operator must run inside one.
    #[arg(long, env = "KUBESENTRY_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Context in the kubeconfig; its current one when left out.
    #[arg(long, env = "KUBESENTRY_CONTEXT", requires = "kubeconfig")]
    pub context: Option<String>,

    /// Namespace of the operator: the audit records of Apps are exported there.
    #[arg(long, env = "KUBESENTRY_NAMESPACE", default_value = "kubesentry-system")]
    pub namespace: String,

    /// Namespaces whose Apps are looked after, with commas between them; every one when left out. Roles in these
    /// namespaces are then enough.
    #[arg(long, env = "KUBESENTRY_WATCH_NAMESPACES", value_delimiter = ',', value_name = "NAMESPACE,...", value_parser = namespace)]
    pub watch_namespaces: Vec<String>,

    /// Of several replicas, let one act at a time. Without it this process must be the only one.
    #[arg(long, env = "KUBESENTRY_LEADER_ELECT", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_value_t = true, default_missing_value = "true")]
    pub leader_elect: bool,

    /// A lease that its holder doesn't renew for this long is free: whole seconds.
    #[arg(long, env = "KUBESENTRY_LEASE_DURATION", default_value = "15s", value_parser = duration)]
    pub lease_duration: Duration,

    /// A leader that could not renew its lease for this long stops acting.
    #[arg(long, env = "KUBESENTRY_RENEW_DEADLINE", default_value = "10s", value_parser = duration)]
    pub renew_deadline: Duration,

    /// Time between two attempts to get or to renew the lease.
    #[arg(long, env = "KUBESENTRY_RETRY_PERIOD", default_value = "2s", value_parser = duration)]
    pub retry_period: Duration,

    /// Name of this process in audit records and events, and the beginning of its name in the lease.
    #[arg(long, env = "KUBESENTRY_INSTANCE")]
    pub instance: Option<String>,

    /// Apps that are worked on at the same time.
    #[arg(long, env = "KUBESENTRY_WORKERS", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub workers: u16,

    /// Seconds between two passes over every App though nothing happens.
    #[arg(long, env = "KUBESENTRY_RESYNC_SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(10..))]
    pub resync_seconds: u64,

    /// Seconds that the export of the audit trail may hold the deletion of an App up.
    #[arg(long, env = "KUBESENTRY_EXPORT_DEADLINE_SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub export_deadline_seconds: u64,

    /// How long the audit records of a deleted App are kept, as in 30d or 12h.
    #[arg(long, env = "KUBESENTRY_AUDIT_KEEP_DELETED", default_value = "30d", value_parser = duration)]
    pub audit_keep_deleted: Duration,

    /// Audit chunks (up to 16 records each) that are kept in all; the oldest go first.
    #[arg(long, env = "KUBESENTRY_AUDIT_MAX_CHUNKS", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    pub audit_max_chunks: u32,

    /// Seconds between two looks for audit chunks beyond the limits.
    #[arg(long, env = "KUBESENTRY_AUDIT_SWEEP_SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    pub audit_sweep_seconds: u64,

    /// Writes per second, in the long run. client-go's 20 would need 200 s for 1,000 new Apps.
    #[arg(long, env = "KUBESENTRY_WRITES_PER_SECOND", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pub writes_per_second: u32,

    /// Writes that may come at once.
    #[arg(long, env = "KUBESENTRY_WRITE_BURST", default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..))]
    pub write_burst: u32,

    /// Address of /livez and /readyz.
    #[arg(long, env = "KUBESENTRY_HEALTH_ADDRESS", default_value = "127.0.0.1:8081")]
    pub health_address: SocketAddr,

    /// Address of /metrics; loopback only, since it is served without authentication.
    #[arg(long, env = "KUBESENTRY_METRICS_ADDRESS", default_value = "127.0.0.1:8443")]
    pub metrics_address: SocketAddr,

    /// Accept Pod templates beyond the Pod Security Standard "baseline".
    #[arg(long, env = "KUBESENTRY_ALLOW_PRIVILEGED_TEMPLATES")]
    pub allow_privileged_templates: bool,

    /// Accept other ServiceAccounts than "default" in Pod templates.
    #[arg(long, env = "KUBESENTRY_ALLOW_SERVICE_ACCOUNT_NAMES")]
    pub allow_service_account_names: bool,

    /// Form of the log lines.
    #[arg(long, env = "KUBESENTRY_LOG_FORMAT", default_value = "json")]
    pub log_format: LogFormat,

    /// Which lines are logged, as in `info` or `kubesentry_operator=debug,warn`.
    #[arg(long, env = "KUBESENTRY_LOG", default_value = "info")]
    pub log: String,
}

/// Form of the log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object per line.
    Json,
    /// For people.
    Text,
}

impl RunArgs {
    /// Time between two passes over every App though nothing happens.
    pub fn resync(&self) -> Duration {
        Duration::from_secs(self.resync_seconds)
    }

    /// The times of the leader election.
    pub fn timing(&self) -> Result<Timing, TimingError> {
        let Self { lease_duration, renew_deadline, retry_period, .. } = *self;
        Timing { lease_duration, renew_deadline, retry_period }.checked()
    }

    /// The namespaces that are watched, each once; none for the whole cluster.
    pub fn namespaces(&self) -> Vec<String> {
        self.watch_namespaces.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// A time as in `15s`, `250ms`, `1m30s`, `30d`.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = |why: String| format!("{text:?} is no time such as 15s, 250ms or 30d: {why}");
    let span: jiff::Span = text.parse().map_err(|error: jiff::Error| wrong(error.to_string()))?;
    let time = span
        .to_duration(jiff::SpanRelativeTo::days_are_24_hours())
        .map_err(|error| wrong(error.to_string()))?;
    Duration::try_from(time).map_err(|_| wrong("it is negative".to_owned()))
}

/// The name of a namespace (RFC 1123 label).
fn namespace(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if text.is_empty()
        || text.len() > 63
        || !text.chars().all(fits)
        || text.starts_with('-')
        || text.ends_with('-')
    {
        return Err(format!("{text:?} is no name of a namespace; name them with commas between, as in a,b"));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_flags_are_consistent_and_every_one_has_a_twin_in_the_environment() {
        let command = Cli::command();
        command.clone().debug_assert();
        for argument in command
            .get_arguments()
            .filter(|argument| !["help", "version"].contains(&argument.get_id().as_str()))
        {
            let twin = argument.get_env().map(|name| name.to_string_lossy().into_owned());
            assert!(twin.is_some_and(|name| name.starts_with("KUBESENTRY_")), "{}", argument.get_id());
        }
    }

    #[test]
    fn times_and_namespaces_are_read_or_refused_with_a_reason() {
        let run = |flags: &[&str]| Cli::try_parse_from([&["kubesentry"], flags].concat()).map(|cli| cli.run);
        let args =
            run(&["--lease-duration=1m30s", "--watch-namespaces=b,a,b", "--leader-elect=false"]).unwrap();
        assert_eq!(args.lease_duration, Duration::from_secs(90));
        assert_eq!((args.namespaces(), args.leader_elect), (vec!["a".to_owned(), "b".to_owned()], false));
        assert!(run(&["--leader-elect"]).unwrap().leader_elect && run(&[]).unwrap().leader_elect);
        for (flag, why) in [
            ("--lease-duration=15", "is no time such as 15s"),
            ("--lease-duration=-5s", "it is negative"),
            ("--watch-namespaces=a,,b", "is no name of a namespace"),
            ("--watch-namespaces=A", "is no name of a namespace"),
        ] {
            let error = run(&[flag]).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn run_is_what_happens_without_a_command() {
        let cli = Cli::parse_from(["kubesentry", "--workers", "3"]);
        assert!(cli.command.is_none() && cli.run.workers == 3);
        assert!(matches!(Cli::parse_from(["kubesentry", "run"]).command, Some(Command::Run(_))));
    }
}
