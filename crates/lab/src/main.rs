//! The command `sentry-lab`: a control plane on this machine, for people and for test runs.

mod cli;

use std::process::ExitCode;

use kubesentry_lab::shim;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    // First of all, before any thread or handler: this process is about to become another program.
    if args.next().is_some_and(|a| a == shim::FLAG) {
        let error = shim::run(args);
        cli::output::complain(&format!("can't start the program: {error}; check its name and PATH"));
        return ExitCode::from(127);
    }
    cli::main()
}
