//! `sentry-lab doctor`: what a lab needs, what of it is there, and how to get the rest.
//!
//! Starts nothing. Exit code 1 where a lab could not be started.

use std::process::Command;

use kubesentry_lab::{Assets, LabError, Program, Source, Versions, binary, cache_root, hold, running};

use super::output;

pub(super) fn run() -> Result<u8, LabError> {
    let mut all_well = true;
    let mut say = |what: &str, found: Result<String, String>| {
        let (mark, text) = match &found {
            Ok(text) => ("ok", text),
            Err(text) => ("MISSING", text),
        };
        all_well &= found.is_ok();
        output::print(&format!("{mark:<8} {what:<24} {text}"));
    };
    let versions = Versions::pinned();
    let os = std::env::consts::OS;
    say("system", if os == "linux" { Ok(os.to_owned()) } else { Err(format!("{os}: the lab needs Linux")) });
    say("sentry-lab", binary("sentry-lab").map(|p| p.display().to_string()).map_err(|e| e.to_string()));
    let cache = cache_root()?;
    let writable = std::fs::create_dir_all(&cache);
    say(
        "cache",
        writable.map(|()| cache.display().to_string()).map_err(|e| format!("{}: {e}", cache.display())),
    );
    let mut to_build = false;
    match Assets::find(&Program::ALL) {
        Err(error) => say("programs", Err(error.to_string())),
        Ok(lookup) => {
            for (program, found) in lookup.assets.iter() {
                let source = match &found.source {
                    Source::Environment(variable) => format!("by {variable}"),
                    Source::Cache if program == Program::Etcd => versions.etcd.clone(),
                    Source::Cache => versions.kubernetes.clone(),
                };
                say(program.name(), Ok(format!("{} ({source})", found.path.display())));
            }
            for program in lookup.missing {
                to_build = true;
                let note =
                    format!("not built yet: `sentry-lab assets` does that once ({})", versions.kubernetes);
                say(program.name(), Ok(note));
            }
        }
    }
    match Command::new("go").arg("version").output() {
        Ok(out) => say("go", Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())),
        Err(_) if !to_build => say("go", Ok("not there, and not needed: all programs are".to_owned())),
        Err(e) => {
            let help = "install Go, or set KUBEBUILDER_ASSETS to a folder with the programs";
            say(
                "go",
                Err(format!("{e}; needed to build the programs: {help} (Go {} or newer)", versions.go)),
            );
        }
    }
    say("free ports", hold(3).map(|_| "yes".to_owned()).map_err(|e| e.to_string()));
    let labs = running()?.len();
    say("labs", Ok(format!("{labs} running")));
    Ok(u8::from(!all_well))
}
