//! Bodies of messages that are sent: whole, streamed, or compressed while they are streamed.

use std::io::Write;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::{Frame, SizeHint};
use tokio::sync::mpsc;

/// The body of a request or a response.
#[derive(Debug)]
pub enum Body {
    /// A body that is complete.
    Full(Option<Bytes>),
    /// A streamed body. An error closes the connection, which tells the client that the body is incomplete.
    Chunks {
        /// The receiver of the chunks.
        from: mpsc::Receiver<std::io::Result<Bytes>>,
        /// The total length in bytes, if known.
        length: Option<u64>,
    },
    /// A streamed body that is compressed while it is sent. The encoder is `None` at the end.
    Compressed {
        /// The receiver of the uncompressed chunks.
        from: mpsc::Receiver<std::io::Result<Bytes>>,
        encoder: Option<GzEncoder<Vec<u8>>>,
    },
}

/// An encoder for one body.
pub fn gzip_encoder() -> GzEncoder<Vec<u8>> {
    GzEncoder::new(Vec::new(), Compression::fast())
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        match self.get_mut() {
            Body::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Body::Chunks { from, .. } => from.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data))),
            Body::Compressed { from, encoder } => poll_compressed(from, encoder, context),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Body::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Body::Chunks { length: Some(length), .. } => SizeHint::with_exact(*length),
            Body::Chunks { length: None, .. } | Body::Compressed { .. } => SizeHint::new(),
        }
    }
}

/// Compresses chunks until there is output, or to the end.
fn poll_compressed(
    from: &mut mpsc::Receiver<std::io::Result<Bytes>>,
    encoder: &mut Option<GzEncoder<Vec<u8>>>,
    context: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
    loop {
        let Some(mut running) = encoder.take() else { return Poll::Ready(None) };
        let output = match from.poll_recv(context) {
            Poll::Pending => {
                *encoder = Some(running);
                return Poll::Pending;
            }
            Poll::Ready(None) => running.finish(),
            Poll::Ready(Some(chunk)) => chunk.and_then(|chunk| running.write_all(&chunk)).map(|()| {
                let output = std::mem::take(running.get_mut());
                *encoder = Some(running);
                output
            }),
        };
        match output {
            Ok(output) if output.is_empty() => {}
            output => return Poll::Ready(Some(output.map(|output| Frame::data(output.into())))),
        }
    }
}
