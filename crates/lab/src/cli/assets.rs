//! `sentry-lab assets`: makes sure the programs are there and prints their folder (or folders).

use std::collections::BTreeSet;

use kubesentry_lab::{Assets, LabError, Program};

use super::output;
use super::signals::Signals;

pub(super) async fn run(signals: &mut Signals) -> Result<u8, LabError> {
    let assets = match signals.or(Assets::ensure(&Program::ALL)).await {
        Ok(assets) => assets?,
        Err(code) => return Ok(code),
    };
    output::tell(&format!("using {}", assets.describe()));
    let folders: BTreeSet<_> = assets.iter().filter_map(|(_, found)| found.path.parent()).collect();
    for folder in folders {
        output::print(&folder.display().to_string());
    }
    Ok(0)
}
