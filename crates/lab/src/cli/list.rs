//! `sentry-lab list`: the control planes somebody holds.

use kubesentry_lab::{LabError, Layer, running};

use super::output;

pub(super) fn run() -> Result<u8, LabError> {
    let labs = running()?;
    if labs.is_empty() {
        output::tell("no control plane runs; start one with `sentry-lab up`");
        return Ok(0);
    }
    output::print(&format!(
        "{:<28} {:<8} {:<8} {:<8} {:<26} {}",
        "NAME", "LAYER", "OWNER", "STATE", "API", "FOLDER"
    ));
    for lab in labs {
        let dir = lab.dir.display();
        let name = lab.dir.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        let line = match lab.state {
            None => format!("{name:<28} {:<8} {:<8} {:<8} {:<26} {dir}", "-", "-", "starting", "-"),
            Some(s) => {
                let layer = match s.layer {
                    _ if s.existing => "existing",
                    Layer::Api => "api",
                    Layer::ApiGc => "api-gc",
                };
                let state = if !s.ready {
                    "starting"
                } else if s.supervised {
                    "up"
                } else {
                    "in use"
                };
                format!("{name:<28} {layer:<8} {:<8} {state:<8} {:<26} {dir}", s.owner_pid, s.api_url)
            }
        };
        output::print(&line);
    }
    Ok(0)
}
