//! The very last step before a write leaves the process: nothing goes into the socket of the writing client while this
//! process doesn't lead.
//!
//! [`super::fence`] refuses a request before it is handed over; from there to the socket it is still queued, encoded and
//! encrypted. A process that is stopped in between, and woken after its lease ran out, is stopped here: between this look
//! at the clock and the system call nothing is done.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::{BoxError, Service};

use crate::lease::{Leadership, NotLeading};

/// Makes connections that are gated; plain ones without a leadership.
#[derive(Clone)]
pub(super) struct Gated {
    pub(super) tcp: HttpConnector,
    pub(super) leadership: Option<Leadership>,
}

impl Service<Uri> for Gated {
    type Response = Gate<TokioIo<TcpStream>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.tcp.call(uri);
        let leadership = self.leadership.clone();
        Box::pin(async move { Ok(Gate { inner: connecting.await?, leadership }) })
    }
}

/// A connection that takes nothing to be sent while this process doesn't lead.
pub(super) struct Gate<S> {
    inner: S,
    leadership: Option<Leadership>,
}

impl<S> Gate<S> {
    fn open(&self) -> io::Result<()> {
        match &self.leadership {
            Some(leadership) if leadership.permit().is_none() => Err(io::Error::other(NotLeading)),
            _ => Ok(()),
        }
    }
}

impl<S: Read + Unpin> Read for Gate<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<S: Write + Unpin> Write for Gate<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.open()?;
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.open()?;
        Pin::new(&mut self.inner).poll_write_vectored(cx, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

impl<S: Connection> Connection for Gate<S> {
    fn connected(&self) -> Connected {
        self.inner.connected()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};

    use super::*;
    use crate::lease::tests_support::leads_for;

    async fn write(gate: &mut Gate<TokioIo<DuplexStream>>, bytes: &[u8]) -> io::Result<usize> {
        std::future::poll_fn(|cx| Pin::new(&mut *gate).poll_write(cx, bytes)).await
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_reaches_the_socket_once_the_term_is_over() {
        let (near, mut far) = duplex(64);
        let leadership = leads_for(std::time::Duration::from_secs(10));
        let mut gate = Gate { inner: TokioIo::new(near), leadership: Some(leadership) };
        assert_eq!(write(&mut gate, b"first").await.unwrap(), 5);
        tokio::time::advance(std::time::Duration::from_secs(11)).await;
        let error = write(&mut gate, b"second").await.unwrap_err();
        assert!(error.get_ref().and_then(|inner| inner.downcast_ref::<NotLeading>()).is_some());
        drop(gate);
        let mut arrived = Vec::new();
        far.read_to_end(&mut arrived).await.unwrap();
        assert_eq!(arrived, b"first");
    }
}
