//! Free TCP ports on 127.0.0.1.
//!
//! A port found by binding port 0 can be taken by an outgoing connection before the server binds it, so ports are
//! picked below the range Linux gives to those (32768 and up), at random, and all wanted ones are held at the same
//! time. Whoever starts a server drops the [`Held`] right before; should somebody be faster, the caller retries.

use std::net::{Ipv4Addr, TcpListener};

use crate::{LabError, unique};

/// Above the registered services people run, below the NodePorts (30000) of a cluster on this machine.
pub(crate) const RANGE: (u16, u16) = (20_000, 29_999);

/// Random tries per wanted port before giving up.
const TRIES: usize = 200;

/// A port that nobody else can bind while this lives.
#[derive(Debug)]
pub struct Held {
    port: u16,
    _listener: TcpListener,
}

impl Held {
    /// The port's number.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Lets go of the port so that a server can bind it.
    pub fn release(self) -> u16 {
        self.port
    }
}

/// Holds `wanted` different free ports.
pub fn hold(wanted: usize) -> Result<Vec<Held>, LabError> {
    hold_with(wanted, RANGE, unique::bits)
}

fn hold_with(
    wanted: usize,
    range: (u16, u16),
    mut random: impl FnMut() -> u64,
) -> Result<Vec<Held>, LabError> {
    let width = u64::from(range.1.saturating_sub(range.0)) + 1;
    let mut held = Vec::with_capacity(wanted);
    let mut why = String::from("none tried");
    for _ in 0..TRIES * wanted {
        if held.len() == wanted {
            break;
        }
        let port = range.0 + u16::try_from(random() % width).unwrap_or(0);
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(listener) => held.push(Held { port, _listener: listener }),
            Err(e) => why = e.to_string(),
        }
    }
    if held.len() == wanted { Ok(held) } else { Err(LabError::NoPorts { wanted, range, why }) }
}

/// The error for asking more ports of a set than it has.
pub(crate) fn none_left() -> LabError {
    LabError::NoPorts { wanted: 1, range: RANGE, why: "all held ones are in use".to_owned() }
}

/// Whether this process listens on this port of 127.0.0.1, by `/proc`. A successful connection would not tell: the
/// port may be somebody else's, and the process about to end because of that.
pub(crate) fn is_listening(pid: u32, port: u16) -> bool {
    /// `TCP_LISTEN`, include/net/tcp_states.h of Linux.
    const LISTEN: &str = "0A";
    let address = format!("0100007F:{port:04X}");
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let sockets: Vec<String> = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|f| f.get(1) == Some(&address.as_str()) && f.get(3) == Some(&LISTEN))
        .filter_map(|f| f.get(9).map(|inode| format!("socket:[{inode}]")))
        .collect();
    !sockets.is_empty()
        && std::fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|fd| std::fs::read_link(fd.path()).ok())
            .any(|to| sockets.iter().any(|s| to.as_os_str() == s.as_str()))
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn held_ports_are_distinct_and_below_the_ephemeral_range() {
        let held = hold(8).expect("ports");
        let mut ports: Vec<_> = held.iter().map(Held::port).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 8);
        assert!(ports.iter().all(|p| (RANGE.0..=RANGE.1).contains(p) && *p < 32_768), "{ports:?}");
    }

    #[test]
    fn a_held_port_cannot_be_bound_and_a_released_one_can() {
        let held = hold(1).expect("a port").pop().expect("one");
        let port = held.port();
        assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_err());
        assert_eq!(held.release(), port);
        assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok());
    }

    #[test]
    fn a_listener_is_known_by_its_process() {
        let held = hold(1).expect("a port").pop().expect("one");
        assert!(is_listening(std::process::id(), held.port()));
        assert!(!is_listening(1, held.port()));
        let port = held.release();
        assert!(!is_listening(std::process::id(), port));
    }

    #[test]
    fn a_taken_port_is_skipped_and_a_full_range_is_an_error() {
        let held = hold(1).expect("a port").pop().expect("one");
        let port = held.port();
        let error = hold_with(1, (port, port), || 0).expect_err("the only port is taken");
        assert!(error.to_string().contains("no 1 free ports"), "{error}");
    }
}
