//! Where the control plane's programs come from.
//!
//! In this order: `TEST_ASSET_<PROGRAM>` (one file), `KUBEBUILDER_ASSETS` (a folder), the cache under its stamp, and
//! else a build into that cache. The lookup is a plain function of the environment; it knows nothing of how programs
//! are built or started. Called by control_plane and the commands `assets` and `doctor`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::paths::{cache_root, is_executable};
use crate::{LabError, Versions, build};

/// The file in a cache folder that says that the folder is complete.
pub(crate) const STAMP: &str = "stamp.json";

/// A program of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Program {
    /// The store.
    Etcd,
    /// The API server.
    KubeApiserver,
    /// The controllers.
    KubeControllerManager,
    /// The scheduler.
    KubeScheduler,
    /// The command-line client.
    Kubectl,
}

impl Program {
    /// All of them.
    pub const ALL: [Program; 5] =
        [Self::Etcd, Self::KubeApiserver, Self::KubeControllerManager, Self::KubeScheduler, Self::Kubectl];

    /// The name of its file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::KubeApiserver => "kube-apiserver",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::KubeScheduler => "kube-scheduler",
            Self::Kubectl => "kubectl",
        }
    }

    /// The variable that names its file, as in controller-runtime's envtest.
    fn variable(self) -> String {
        format!("TEST_ASSET_{}", self.name().to_uppercase().replace('-', "_"))
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a program was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// By this environment variable.
    Environment(String),
    /// In the cache, built from the pinned modules.
    Cache,
}

/// A program and where it was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Its file.
    pub path: PathBuf,
    /// Why this one.
    pub source: Source,
}

/// The programs of a control plane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Assets {
    programs: BTreeMap<Program, Found>,
}

impl Assets {
    /// Finds the needed programs, building them once where nobody has. Progress goes to stderr. Cancel-safe: dropping
    /// the future stops the build and leaves nothing but a log.
    pub async fn ensure(needed: &[Program]) -> Result<Self, LabError> {
        let lookup = Self::find(needed)?;
        if lookup.missing.is_empty() {
            return Ok(lookup.assets);
        }
        let versions = Versions::pinned();
        build::into_cache(&versions, &cache_root()?).await?;
        let again = Self::find(needed)?;
        match again.missing.first() {
            None => Ok(again.assets),
            Some(program) => Err(LabError::AssetMissing {
                variable: "the cache's stamp".to_owned(),
                program: program.name(),
                path: cache_root()?.join(versions.folder()).join(program.name()),
            }),
        }
    }

    /// Finds what is there without building anything.
    pub fn find(needed: &[Program]) -> Result<Lookup, LabError> {
        let cache = cache_root()?.join(Versions::pinned().folder());
        find_in(&|name| std::env::var_os(name), &cache, needed)
    }

    /// A program's file, where it was looked for.
    pub fn path(&self, program: Program) -> Option<&Path> {
        self.programs.get(&program).map(|f| f.path.as_path())
    }

    /// All programs found.
    pub fn iter(&self) -> impl Iterator<Item = (Program, &Found)> {
        self.programs.iter().map(|(p, f)| (*p, f))
    }

    /// One phrase that says where the programs come from.
    pub fn describe(&self) -> String {
        let mut by_source: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (program, found) in &self.programs {
            let folder = found.path.parent().unwrap_or(Path::new("/")).display();
            let source = match &found.source {
                Source::Environment(variable) => format!("{variable} ({folder})"),
                Source::Cache => format!("Kubernetes {} from {folder}", Versions::pinned().kubernetes),
            };
            by_source.entry(source).or_default().push(program.name());
        }
        if by_source.len() == 1 {
            return by_source.into_keys().next().unwrap_or_default();
        }
        let parts: Vec<_> = by_source.into_iter().map(|(s, p)| format!("{}: {s}", p.join(", "))).collect();
        parts.join("; ")
    }
}

/// What a look found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookup {
    /// The programs that are there.
    pub assets: Assets,
    /// Those that must be built.
    pub missing: Vec<Program>,
}

fn find_in(
    env: &dyn Fn(&str) -> Option<OsString>,
    cache: &Path,
    needed: &[Program],
) -> Result<Lookup, LabError> {
    let env = |name: &str| env(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let folder = env("KUBEBUILDER_ASSETS");
    let mut lookup = Lookup { assets: Assets::default(), missing: Vec::new() };
    for &program in needed {
        let variable = program.variable();
        let given = match (env(&variable), &folder) {
            (Some(path), _) => Some((variable, path)),
            (None, Some(folder)) => Some(("KUBEBUILDER_ASSETS".to_owned(), folder.join(program.name()))),
            (None, None) => None,
        };
        let found = match given {
            // Never a silent fall-back: whoever names a version wants that one.
            Some((variable, path)) if !is_executable(&path) => {
                return Err(LabError::AssetMissing { variable, program: program.name(), path });
            }
            Some((variable, path)) => Found { path, source: Source::Environment(variable) },
            None if cache.join(STAMP).is_file() && is_executable(&cache.join(program.name())) => {
                Found { path: cache.join(program.name()), source: Source::Cache }
            }
            None => {
                lookup.missing.push(program);
                continue;
            }
        };
        lookup.assets.programs.insert(program, found);
    }
    Ok(lookup)
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test fails by panicking")]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::unique;

    /// A folder with fake programs that goes away.
    struct Folder(PathBuf);

    impl Folder {
        fn with(files: &[&str]) -> Self {
            let folder = std::env::temp_dir().join(format!("lab-assets-{}", unique::token()));
            std::fs::create_dir(&folder).expect("a folder");
            for file in files {
                std::fs::write(folder.join(file), "").expect("a file");
                std::fs::set_permissions(folder.join(file), PermissionsExt::from_mode(0o755))
                    .expect("a mode");
            }
            Self(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const BOTH: [Program; 2] = [Program::Etcd, Program::Kubectl];

    fn look(env: &[(&str, PathBuf)], cache: &Folder) -> Result<Lookup, LabError> {
        let env: BTreeMap<_, _> = env.iter().cloned().collect();
        find_in(&|name| env.get(name).map(|p| p.clone().into_os_string()), &cache.0, &BOTH)
    }

    #[test]
    fn a_single_asset_beats_the_folder_which_beats_the_cache() {
        let cache = Folder::with(&["etcd", "kubectl", STAMP]);
        let given = Folder::with(&["etcd", "kubectl"]);
        let own = Folder::with(&["my-etcd"]);
        let from_cache = look(&[], &cache).expect("a lookup").assets;
        assert_eq!(from_cache.path(Program::Etcd), Some(cache.0.join("etcd").as_path()));

        let env = [("KUBEBUILDER_ASSETS", given.0.clone()), ("TEST_ASSET_ETCD", own.0.join("my-etcd"))];
        let assets = look(&env, &cache).expect("a lookup").assets;
        assert_eq!(assets.path(Program::Etcd), Some(own.0.join("my-etcd").as_path()));
        assert_eq!(assets.path(Program::Kubectl), Some(given.0.join("kubectl").as_path()));
        assert!(assets.describe().contains("etcd: TEST_ASSET_ETCD"), "{}", assets.describe());
    }

    #[test]
    fn a_cache_without_its_stamp_is_not_used() {
        let cache = Folder::with(&["etcd", "kubectl"]);
        assert_eq!(look(&[], &cache).expect("a lookup").missing, BOTH);
    }

    #[test]
    fn a_given_folder_that_lacks_a_program_is_an_error_not_a_fall_back() {
        let cache = Folder::with(&["etcd", "kubectl", STAMP]);
        let given = Folder::with(&["etcd"]);
        let error = look(&[("KUBEBUILDER_ASSETS", given.0.clone())], &cache).expect_err("kubectl is missing");
        assert!(error.to_string().contains("KUBEBUILDER_ASSETS"), "{error}");
        assert!(error.to_string().contains("kubectl"), "{error}");
    }
}
