//! A request's body, whose unread rest is discarded before the response, so that the connection can be used again.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use stemmadb_http::foundation::{BodyTimeout, next_frame};
use stemmadb_http::signature::ContentHash;
use tokio::time::timeout;

/// The unread bytes that are discarded before the response. The connection stays open if there are no more.
const DISCARDED_BYTES_MAX: usize = 256 << 10;
/// How long to wait for them.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);
/// The unread bytes that are discarded while the response is sent and the connection closes. A client that is still
/// sending when its connection is closed may not read the response.
const LINGERING_BYTES_MAX: usize = 4 << 20;
/// How long to wait for them.
const LINGERING_TIMEOUT: Duration = Duration::from_secs(5);

/// An error of reading a body.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A body as it arrives from a client: hyper's, or that of a program's own HTTP server.
pub(crate) enum ClientBody {
    Incoming(hyper::body::Incoming),
    /// The lock is never contended: it makes the body `Sync`, as hyper's is.
    Boxed(Mutex<UnsyncBoxBody<Bytes, BodyError>>),
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut *self {
            ClientBody::Incoming(body) => Pin::new(body).poll_frame(context).map_err(Into::into),
            ClientBody::Boxed(body) => Pin::new(body.get_mut()).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ClientBody::Incoming(body) => body.is_end_stream(),
            ClientBody::Boxed(body) => body.lock().is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ClientBody::Incoming(body) => body.size_hint(),
            ClientBody::Boxed(body) => body.lock().size_hint(),
        }
    }
}

/// The body of a request. If it is dropped before its end, its rest goes to [`UnreadBody`].
pub(crate) struct RequestBody {
    /// Content that replaces the client's, which was read before.
    replacement: Option<Bytes>,
    incoming: Option<ClientBody>,
    /// What the body must be, until it was read. Few requests have that, and all are moved often.
    signed: Option<Box<SignedContent>>,
    unread: Arc<UnreadBody>,
}

/// The hash that a body must have, and that of what was read.
struct SignedContent {
    expected: ContentHash,
    read: Sha256,
}

/// The unread part of a body.
pub(crate) struct UnreadBody {
    rest: Mutex<Option<ClientBody>>,
    /// Becomes true when the body was read to its end, so that the connection's next bytes are the head of a request.
    has_ended: Arc<AtomicBool>,
}

impl RequestBody {
    /// Wraps a body. `has_ended` becomes true when it was read to its end.
    pub(crate) fn new(incoming: ClientBody, has_ended: Arc<AtomicBool>) -> (Self, Arc<UnreadBody>) {
        if incoming.is_end_stream() {
            has_ended.store(true, Ordering::SeqCst);
        }
        let unread = Arc::new(UnreadBody { rest: Mutex::new(None), has_ended });
        (RequestBody { replacement: None, incoming: Some(incoming), signed: None, unread: unread.clone() }, unread)
    }

    /// A body with this content instead of the client's.
    pub(crate) fn replaced(content: Bytes) -> Self {
        let unread = Arc::new(UnreadBody { rest: Mutex::new(None), has_ended: Arc::default() });
        let replacement = Some(content).filter(|content| !content.is_empty());
        RequestBody { replacement, incoming: None, signed: None, unread }
    }

    /// Fails at the end of the body unless it has this hash.
    pub(crate) fn require_hash(&mut self, expected: ContentHash) {
        if !self.is_end_stream() {
            self.signed = Some(Box::new(SignedContent { expected, read: Sha256::new() }));
        }
    }

    /// Reads and discards the rest. A body that must have a hash is thereby verified.
    ///
    /// # Errors
    /// 400 if it must have a hash, and has another one or can't be read.
    pub(crate) async fn finish(&mut self, timeouts: &mut BodyTimeout) -> crate::error::Result<()> {
        loop {
            match next_frame(self, timeouts).await {
                Ok(Some(_)) => {}
                Err(failure) if self.signed.is_some() => return Err(failure),
                Ok(None) | Err(_) => return Ok(()),
            }
        }
    }

    /// Verifies a body that has ended.
    fn verify(&mut self) -> Result<(), BodyError> {
        let is_other = |signed: &SignedContent| signed.expected != *signed.read.clone().finalize();
        if self.signed.as_deref().is_some_and(is_other) {
            // It stays unverified, however often it is read.
            return Err("its hash is not the one that was signed".into());
        }
        self.signed = None;
        Ok(())
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(replacement) = self.replacement.take() {
            if let Some(signed) = &mut self.signed {
                signed.read.update(&replacement);
            }
            return Poll::Ready(Some(self.verify().map(|()| Frame::data(replacement))));
        }
        let Some(incoming) = &mut self.incoming else {
            return Poll::Ready(self.verify().err().map(Err));
        };
        let frame = Pin::new(&mut *incoming).poll_frame(context);
        let has_ended = matches!(frame, Poll::Ready(None)) || incoming.is_end_stream();
        if has_ended || matches!(frame, Poll::Ready(Some(Err(_)))) {
            self.incoming = None;
        }
        if has_ended {
            self.unread.has_ended.store(true, Ordering::SeqCst);
        }
        if let (Some(signed), Poll::Ready(Some(Ok(frame)))) = (&mut self.signed, &frame)
            && let Some(data) = frame.data_ref()
        {
            signed.read.update(data);
        }
        if has_ended && let Err(error) = self.verify() {
            return Poll::Ready(Some(Err(error)));
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.replacement.is_none() && self.incoming.as_ref().is_none_or(ClientBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let replaced_bytes = self.replacement.as_ref().map_or(0, |content| content.len() as u64);
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(replaced_bytes), ClientBody::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        *self.unread.rest.lock() = self.incoming.take().filter(|incoming| !incoming.is_end_stream());
    }
}

impl UnreadBody {
    /// Discards what was left unread. Returns whether the connection can be used again: not if there is too much, or if
    /// the client waits for permission to send it (`expects_continue`).
    pub(crate) async fn discard(&self, expects_continue: bool) -> bool {
        let Some(mut rest) = self.rest.lock().take() else { return true };
        if expects_continue {
            return false;
        }
        let is_short = rest.size_hint().lower() <= DISCARDED_BYTES_MAX as u64;
        if is_short && timeout(DISCARD_TIMEOUT, discard_up_to(&mut rest, DISCARDED_BYTES_MAX)).await == Ok(true) {
            self.has_ended.store(true, Ordering::SeqCst);
            return true;
        }
        tokio::spawn(async move { timeout(LINGERING_TIMEOUT, discard_up_to(&mut rest, LINGERING_BYTES_MAX)).await });
        false
    }
}

/// Reads and discards a body. Returns whether it ended within `bytes_max` bytes.
async fn discard_up_to(body: &mut ClientBody, bytes_max: usize) -> bool {
    let mut left = bytes_max;
    while let Some(frame) = body.frame().await {
        let length = frame.as_ref().ok().map(|frame| frame.data_ref().map_or(0, Bytes::len));
        match length.and_then(|length| left.checked_sub(length)) {
            Some(less) => left = less,
            None => return false,
        }
    }
    true
}
