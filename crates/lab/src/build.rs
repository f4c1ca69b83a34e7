//! Builds the control plane from the official Go modules, once, into the cache.
//!
//! Two builders wait for each other on a file lock (`flock`, so that a dead one never blocks); the result is built
//! beside the cache folder and renamed into place with a stamp. The compiler is a child of this process and dies with
//! it. Knows the Go commands, nothing of how the programs are used. Called by assets.

use std::fs::{File, TryLockError};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::assets::{Program, STAMP};
use crate::versions::{self, ToolModule};
use crate::{Child, ChildSpec, LabError, Versions};

/// How often a line tells how far it is.
const PROGRESS: Duration = Duration::from_secs(10);

/// Builds all programs into `<root>/<versions.folder()>` unless somebody has.
pub(crate) async fn into_cache(versions: &Versions, root: &Path) -> Result<(), LabError> {
    std::fs::create_dir_all(root).map_err(LabError::io("create the folder", root))?;
    let target = root.join(versions.folder());
    let _lock = lock(&root.join(format!("{}.lock", versions.folder()))).await?;
    if target.join(STAMP).is_file() {
        return Ok(());
    }
    let started = Instant::now();
    let work = Scratch::new(root.join(format!("{}.building", versions.folder())))?;
    let bin = work.0.join("bin");
    std::fs::create_dir(&bin).map_err(LabError::io("create the folder", &bin))?;
    let log = root.join("build.log");
    remove_file(&log)?;
    say(&format!(
        "building Kubernetes {} and etcd {} from source into {} (once; 4 to 8 minutes on two cores, log in {})",
        versions.kubernetes,
        versions.etcd,
        target.display(),
        log.display()
    ));
    run("etcd", etcd(versions, &work.0, &bin, &log)?, started).await?;
    run("Kubernetes", kubernetes(versions, &work.0, &bin, &log)?, started).await?;

    let stamp = serde_json::json!({
        "kubernetes": versions.kubernetes,
        "etcd": versions.etcd,
        "modules": versions.hash,
    });
    let stamp_file = bin.join(STAMP);
    std::fs::write(&stamp_file, format!("{stamp:#}\n")).map_err(LabError::io("write", &stamp_file))?;
    remove_dir(&target)?;
    std::fs::rename(&bin, &target).map_err(LabError::io("rename the finished build to", &target))?;
    remove_file(&log)?;
    say(&format!("built in {} s: {}", started.elapsed().as_secs(), target.display()));
    Ok(())
}

fn etcd(versions: &Versions, work: &Path, bin: &Path, log: &Path) -> Result<ChildSpec, LabError> {
    let source = unpack(&versions::ETCD, work)?;
    Ok(go(source, log)
        .args(["build", "-v", "-trimpath", "-ldflags", "-s -w", "-o"])
        .args([bin.join(Program::Etcd.name())])
        // The package is named `server`, hence `-o`.
        .args([format!("go.etcd.io/etcd/server/{}", major(&versions.etcd))]))
}

fn kubernetes(versions: &Versions, work: &Path, bin: &Path, log: &Path) -> Result<ChildSpec, LabError> {
    let source = unpack(&versions::KUBERNETES, work)?;
    let version = &versions.kubernetes;
    let (major, minor) = versions.kubernetes_minor();
    // Without these the API server says it is v0.0.0-master and refuses a version of its own.
    let flags = format!(
        "-s -w -X k8s.io/component-base/version.gitVersion={version} \
         -X k8s.io/component-base/version.gitMajor={major} -X k8s.io/component-base/version.gitMinor={minor} \
         -X k8s.io/client-go/pkg/version.gitVersion={version}"
    );
    Ok(go(source, log)
        .args(["install", "-v", "-trimpath", "-tags", "selinux,notest,grpcnotrace", "-ldflags"])
        .args([flags, "tool".to_owned()])
        .env("GOBIN", bin))
}

fn major(version: &str) -> &str {
    version.split('.').next().unwrap_or(version)
}

fn go(source: PathBuf, log: &Path) -> ChildSpec {
    // The compiler's own temporary files go with the scratch folder, even if it is killed.
    let temporary = source.clone();
    let spec = ChildSpec { cwd: Some(source), ..ChildSpec::new("go", log) };
    spec.env("CGO_ENABLED", "0").env("GOWORK", "off").env("GOTMPDIR", temporary)
}

fn unpack(module: &ToolModule, work: &Path) -> Result<PathBuf, LabError> {
    let folder = work.join(module.name);
    std::fs::create_dir(&folder).map_err(LabError::io("create the folder", &folder))?;
    for (name, text) in [("go.mod", module.go_mod), ("go.sum", module.go_sum)] {
        let file = folder.join(name);
        std::fs::write(&file, text).map_err(LabError::io("write", &file))?;
    }
    Ok(folder)
}

/// Runs one compiler to its end, telling every ten seconds which package is being compiled.
async fn run(what: &'static str, spec: ChildSpec, started: Instant) -> Result<(), LabError> {
    if let Err(why) = std::process::Command::new("go").arg("version").output() {
        return Err(LabError::GoMissing { why, needed: Versions::pinned().go });
    }
    let log = spec.log.clone();
    let mut child = Child::spawn(spec)?;
    let mut next = Instant::now() + PROGRESS;
    let status = loop {
        if let Some(status) = child.try_wait() {
            break status;
        }
        if Instant::now() >= next {
            next += PROGRESS;
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            say(&format!(
                "{what}: {} s, {} packages, now {}",
                started.elapsed().as_secs(),
                text.lines().count(),
                text.lines().next_back().unwrap_or("nothing compiled yet")
            ));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    if status.success() {
        return Ok(());
    }
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    let last_line = text.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("no output").to_owned();
    Err(LabError::BuildFailed { what, status, last_line, log })
}

/// Waits for the lock; it goes with the returned file, or with this process.
async fn lock(path: &Path) -> Result<File, LabError> {
    let file = File::options().create(true).truncate(false).write(true).open(path);
    let file = file.map_err(LabError::io("open the lock file", path))?;
    let mut told = None::<Instant>;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {
                if told.is_none_or(|t| t.elapsed() >= PROGRESS) {
                    say("another process is building the control plane; waiting for it");
                    told = Some(Instant::now());
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Err(TryLockError::Error(e)) => return Err(LabError::io("lock", path)(e)),
        }
    }
}

/// A folder that goes away, whether the build ends well, badly or not at all.
struct Scratch(PathBuf);

impl Scratch {
    /// Called under the lock: what is there was left by a builder that was killed.
    fn new(path: PathBuf) -> Result<Self, LabError> {
        remove_dir(&path)?;
        std::fs::create_dir(&path).map_err(LabError::io("create the folder", &path))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn remove_dir(path: &Path) -> Result<(), LabError> {
    match std::fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(LabError::io("remove", path)(e)),
        _ => Ok(()),
    }
}

fn remove_file(path: &Path) -> Result<(), LabError> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(LabError::io("remove", path)(e)),
        _ => Ok(()),
    }
}

/// A line of progress. A build of minutes must be visible wherever it is started from, tests included.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "sentry-lab: {line}");
}
