//! Is it still this process' turn, in the very term in which the write was decided?
//!
//! A layer of the writing client, inside everything that could wait, so that no write gets past it: a request that names
//! no term is refused like one whose term is over. What comes after it, up to the socket, is [`super::gate`]'s.

use std::task::{self, Poll};

use futures::future::BoxFuture;
use http::Request;
use kube::client::Body;
use tower::{BoxError, Service};

use crate::lease::{Leadership, NotLeading, Term};

/// See the module.
#[derive(Clone)]
pub(super) struct Fence<S> {
    pub(super) inner: S,
    pub(super) leadership: Leadership,
}

impl<S, R> Service<Request<Body>> for Fence<S>
where
    S: Service<Request<Body>, Response = R>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    R: Send + 'static,
{
    type Response = R;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<R, BoxError>>;

    fn poll_ready(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let turn = request.extensions().get::<Term>().copied().ok_or(NotLeading);
        if let Err(error) = turn.and_then(|term| self.leadership.check(term)) {
            return Box::pin(async move { Err(error.into()) });
        }
        let answer = self.inner.call(request);
        Box::pin(async move { answer.await.map_err(Into::into) })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn fence(
        leadership: &Leadership,
    ) -> (Arc<AtomicUsize>, impl Service<Request<Body>, Response = (), Error = BoxError>) {
        let sent = Arc::new(AtomicUsize::new(0));
        let inner = tower::service_fn({
            let sent = sent.clone();
            move |_: Request<Body>| {
                sent.fetch_add(1, Ordering::SeqCst);
                async { Ok::<(), Infallible>(()) }
            }
        });
        (sent, Fence { inner, leadership: leadership.clone() })
    }

    fn write(term: Option<Term>) -> Request<Body> {
        let mut request = Request::new(Body::empty());
        if let Some(term) = term {
            request.extensions_mut().insert(term);
        }
        request
    }

    #[tokio::test]
    async fn no_write_leaves_without_a_term_or_in_another_one() {
        let leadership = Leadership::always();
        let (sent, mut fence) = fence(&leadership);
        for term in [None, Some(Term(1))] {
            let error = fence.call(write(term)).await.unwrap_err();
            assert!(error.is::<NotLeading>());
        }
        assert_eq!(sent.load(Ordering::SeqCst), 0);
        fence.call(write(Some(Term(0)))).await.unwrap();
        assert_eq!(sent.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_process_that_leads_nothing_writes_nothing() {
        let leadership = Leadership::default();
        let (sent, mut fence) = fence(&leadership);
        assert!(fence.call(write(Some(Term(0)))).await.unwrap_err().is::<NotLeading>());
        assert_eq!(sent.load(Ordering::SeqCst), 0);
    }
}
