//! Where the command's words go: results to stdout, everything else to stderr with the program's name.
//!
//! A closed pipe is no error. Called by all commands.

use std::io::Write as _;
use std::path::Path;

/// A line of the result.
pub(crate) fn print(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// A line about what is going on.
pub(crate) fn tell(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "sentry-lab: {line}");
}

/// One line about what went wrong.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "sentry-lab: error: {line}");
}

/// The last lines of a log file, indented, to stderr.
pub(crate) fn tail(log: &Path, lines: usize) {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<_> = text.lines().collect();
    let mut err = std::io::stderr().lock();
    for line in all.iter().skip(all.len().saturating_sub(lines)) {
        let _ = writeln!(err, "  {line}");
    }
}
