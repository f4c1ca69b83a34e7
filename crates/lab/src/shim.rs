//! The few lines between a parent and its child: `sentry-lab --child PPID -- program args...`.
//!
//! A child must die when its parent does, however the parent dies. Linux offers that as PR_SET_PDEATHSIG, which the
//! child sets for itself; between `fork` and `exec` that needs unsafe code, so a program of its own sets it and then
//! becomes the real program (the setting survives `exec`). Called by `main` before anything else.

use std::ffi::OsString;
use std::io::{Error, ErrorKind};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// The first argument that asks for the shim.
pub const FLAG: &str = "--child";

/// Becomes the program named by `args` (`PPID -- program args...`); returns only when that failed.
pub fn run(args: impl IntoIterator<Item = OsString>) -> Error {
    let mut args = args.into_iter();
    let parent = args.next().and_then(|p| p.to_str().and_then(|p| p.parse::<i32>().ok()));
    let separator = args.next();
    let (Some(parent), Some(true), Some(program)) = (parent, separator.map(|s| s == "--"), args.next())
    else {
        return Error::new(ErrorKind::InvalidInput, "usage: sentry-lab --child PPID -- program [args...]");
    };
    if let Err(e) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return e.into();
    }
    // The parent may have died before the line above: then nobody would ever send the signal.
    if getppid().map(|p| p.as_raw_nonzero().get()) != Some(parent) {
        return Error::new(ErrorKind::NotConnected, "the parent process is gone");
    }
    Command::new(program).args(args).exec()
}
