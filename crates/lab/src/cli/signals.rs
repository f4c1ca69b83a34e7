//! SIGINT, SIGTERM and SIGHUP as values to wait for.
//!
//! Once installed, none of them ends the process by itself, so that whatever was started can be stopped in order.
//! Called by all commands that start something.

use kubesentry_lab::{LabError, Signal};
use tokio::signal::unix::{SignalKind, signal};

pub(crate) struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl Signals {
    pub(crate) fn install() -> Result<Self, LabError> {
        let failed =
            |source| LabError::Io { doing: "handle the signals of", path: "this process".into(), source };
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
            hangup: signal(SignalKind::hangup()).map_err(failed)?,
        })
    }

    /// The next signal that asks this process to end.
    pub(crate) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.hangup.recv() => Signal::HUP,
        }
    }

    /// Runs work that cleans up when dropped; `Err` with the exit code where a signal came first.
    pub(crate) async fn or<T>(&mut self, work: impl Future<Output = T>) -> Result<T, u8> {
        tokio::select! {
            done = work => Ok(done),
            signal = self.next() => Err(code(signal)),
        }
    }
}

/// The exit code of a process that ended because of a signal, as shells count.
pub(crate) fn code(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(1)
}
