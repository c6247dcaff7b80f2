//! A connection that is polled for its next request before its task sleeps.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::{RecvFlags, recv};
use stemmadb_wire::SharedPolling;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::app::ServerState;
use crate::connections::Activity;

/// The open connections up to which they are polled: with more, a thread has other requests to serve.
pub(super) const CONNECTIONS_MAX: usize = 8;
/// The bytes read at once while polling.
const READ_BYTES: usize = 8 * 1024;

/// A stream whose reads poll, unless a request is under way, for a short time, as the wire protocol's
/// do: waking a thread on another processor takes longer than answering a small request.
pub(super) struct PolledStream {
    stream: TcpStream,
    state: Arc<ServerState>,
    activity: Arc<Activity>,
    polling: SharedPolling,
}

impl PolledStream {
    pub(super) fn new(stream: TcpStream, state: Arc<ServerState>, activity: Arc<Activity>) -> Self {
        let polling = SharedPolling::new(Duration::from_micros(state.config.poll_us as u64));
        PolledStream { stream, state, activity, polling }
    }
}

impl Drop for PolledStream {
    fn drop(&mut self) {
        self.activity.note_sent();
    }
}

impl AsyncRead for PolledStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // The answers written before are sent.
        this.activity.note_sent();
        let read = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if read.is_ready() {
            this.polling.note_received();
        }
        let is_polled = read.is_pending() && this.activity.is_idle();
        if !is_polled || this.state.connections.count() > CONNECTIONS_MAX {
            return read;
        }
        let mut bytes = [0; READ_BYTES];
        let length = buffer.remaining().min(READ_BYTES);
        let stream = &this.stream;
        let receive = || Ok(recv(stream, &mut bytes[..length], RecvFlags::DONTWAIT)?.0);
        match this.polling.poll(receive) {
            None => Poll::Pending,
            Some(result) => {
                buffer.put_slice(&bytes[..result?]);
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl AsyncWrite for PolledStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
