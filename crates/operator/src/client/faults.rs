//! Faults on purpose, for tests: the process ends around its n-th write, answers are lost or replaced.
//!
//! Part of builds with debug assertions only; a release build has none of it. The rules come from the environment
//! ([`VARIABLE`]), one per comma: `METHOD PATH-PART @WHICH=FAULT`, all requests of the process counted together per rule.
//!
//! - METHOD: `GET`, `POST`, `PUT`, `PATCH`, `DELETE`, `*`, or `write` for all but GET. PATH-PART: part of path and query,
//!   or `*`; writes of events and of the Lease count only where the rule names `events` or `leases`.
//! - WHICH: `@7` the seventh, `@7+` from the seventh on, `@%3` each third, `@1-5` the first five.
//! - FAULT: a status code, answered without asking the server; `reset` (not sent), `lost` (sent, the answer is lost),
//!   `hang` (sent, no answer), `exit-before`, `exit-after` (the process ends before the request is sent, or after it was
//!   answered).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{self, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{Either, Full};
use kube::client::Body;
use serde_json::json;
use tower::{BoxError, Service};

/// The environment variable with the rules.
pub const VARIABLE: &str = "KUBESENTRY_TEST_FAULTS";
/// How the process ends at an `exit-` rule.
pub const EXIT_CODE: i32 = 86;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Status(u16),
    Reset,
    Lost,
    Hang,
    ExitBefore,
    ExitAfter,
}

#[derive(Debug)]
struct Rule {
    method: String,
    part: String,
    from: u64,
    to: u64,
    each: u64,
    fault: Fault,
    seen: AtomicU64,
}

/// The rules of this process.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    rules: Arc<Vec<Rule>>,
}

impl Faults {
    /// Reads the rules from the environment.
    pub fn from_environment() -> Result<Self, String> {
        Self::parse(&std::env::var(VARIABLE).unwrap_or_default())
    }

    fn parse(text: &str) -> Result<Self, String> {
        let rules: Result<Vec<Rule>, String> = text
            .split(',')
            .map(str::trim)
            .filter(|rule| !rule.is_empty())
            .map(|rule| parse(rule).ok_or_else(|| format!("{VARIABLE}: {rule:?} is no rule")))
            .collect();
        Ok(Self { rules: Arc::new(rules?) })
    }

    fn of(&self, request: &Request<Body>) -> Option<Fault> {
        let uri = request.uri().path_and_query().map_or("", |path| path.as_str());
        let mut hit = None;
        for rule in self.rules.iter().filter(|rule| rule.matches(request.method(), uri)) {
            let n = rule.seen.fetch_add(1, Ordering::SeqCst) + 1;
            if (rule.from..=rule.to).contains(&n) && n.is_multiple_of(rule.each) {
                hit = hit.or(Some(rule.fault));
            }
        }
        hit
    }
}

impl Rule {
    fn matches(&self, method: &Method, uri: &str) -> bool {
        let by_method = match self.method.as_str() {
            "*" => true,
            "write" => method != Method::GET,
            name => method.as_str() == name,
        };
        // By their API groups: an App may be called events.
        let aside = [("events", "/events.k8s.io/"), ("leases", "/coordination.k8s.io/")]
            .iter()
            .any(|(kind, group)| uri.contains(group) && !self.part.contains(kind));
        by_method && (self.part == "*" || uri.contains(&self.part)) && (!aside || method == Method::GET)
    }
}

fn parse(rule: &str) -> Option<Rule> {
    let (what, fault) = rule.rsplit_once('=')?;
    let mut words = what.split_whitespace();
    let (method, part, which) = (words.next()?, words.next()?, words.next()?.strip_prefix('@')?);
    let (from, to, each) = if let Some(each) = which.strip_prefix('%') {
        (1, u64::MAX, each.parse().ok().filter(|n| *n > 0)?)
    } else if let Some(from) = which.strip_suffix('+') {
        (from.parse().ok()?, u64::MAX, 1)
    } else if let Some((from, to)) = which.split_once('-') {
        (from.parse().ok()?, to.parse().ok()?, 1)
    } else {
        let n = which.parse().ok()?;
        (n, n, 1)
    };
    let fault = match fault {
        "reset" => Fault::Reset,
        "lost" => Fault::Lost,
        "hang" => Fault::Hang,
        "exit-before" => Fault::ExitBefore,
        "exit-after" => Fault::ExitAfter,
        code => Fault::Status(code.parse().ok()?),
    };
    let (method, part) = (method.to_owned(), part.to_owned());
    Some(Rule { method, part, from, to, each, fault, seen: AtomicU64::new(0) })
}

/// The layer.
#[derive(Clone)]
pub(super) struct Faulty<S> {
    pub(super) inner: S,
    pub(super) faults: Faults,
}

impl<S, B> Service<Request<Body>> for Faulty<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Either<B, Full<Bytes>>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let fault = self.faults.of(&request);
        if let Some(fault) = fault {
            tracing::warn!(?fault, method = %request.method(), uri = %request.uri(), "a fault on purpose");
        }
        match fault {
            Some(Fault::ExitBefore) => std::process::exit(EXIT_CODE),
            Some(Fault::Reset) => return Box::pin(async { Err("connection reset on purpose".into()) }),
            Some(Fault::Status(code)) => {
                return Box::pin(async move { Ok(refusal(code)?.map(Either::Right)) });
            }
            _ => {}
        }
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await.map_err(Into::into)?;
            match fault {
                Some(Fault::ExitAfter) => std::process::exit(EXIT_CODE),
                Some(Fault::Lost) => Err("connection lost on purpose before the answer".into()),
                Some(Fault::Hang) => std::future::pending().await,
                _ => Ok(answer.map(Either::Left)),
            }
        })
    }
}

/// What an API server answers.
fn refusal(code: u16) -> Result<Response<Full<Bytes>>, BoxError> {
    let reason = match code {
        403 => "Forbidden",
        409 => "Conflict",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "InternalError",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "refused on purpose", "reason": reason, "code": code,
    });
    let mut answer = Response::builder().status(StatusCode::from_u16(code)?);
    if code == 429 {
        answer = answer.header("Retry-After", "1");
    }
    Ok(answer.header("Content-Type", "application/json").body(Full::from(status.to_string()))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, uri: &str) -> Request<Body> {
        Request::builder().method(method).uri(uri).body(Body::empty()).unwrap()
    }

    #[test]
    fn a_rule_hits_the_requests_it_counts() {
        let faults =
            Faults::parse("PATCH /deployments/ @2=reset, write * @3+=503,GET apps @%2=hang").unwrap();
        let patch = || faults.of(&request("PATCH", "/apis/apps/v1/namespaces/n/deployments/x"));
        assert_eq!((patch(), patch()), (None, Some(Fault::Reset)));
        assert_eq!(faults.of(&request("POST", "/apis/events.k8s.io/v1/namespaces/n/events")), None);
        assert_eq!(faults.of(&request("PUT", "/apis/x/status")), Some(Fault::Status(503)));
        let get = || faults.of(&request("GET", "/apis/apps"));
        assert_eq!((get(), get()), (None, Some(Fault::Hang)));
    }

    #[test]
    fn what_is_no_rule_is_told() {
        for text in ["PATCH", "PATCH x @0x=reset", "PATCH x @1=explode", "PATCH x @%0=reset"] {
            assert!(Faults::parse(text).unwrap_err().contains("is no rule"), "{text}");
        }
    }
}
