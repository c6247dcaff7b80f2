//! Frames: a length, a kind, a request id and a payload; and the buffer that incoming bytes are split into frames in.

use stemmadb::Result;

use crate::reader::malformed;

/// The bytes before a frame's payload: the length of what follows (4, little-endian), the kind (1), the request id (4).
pub const FRAME_HEADER_BYTES: usize = 9;

/// The bytes that the length counts besides the payload.
const COUNTED_BYTES: usize = 5;

/// The smallest space offered for reading.
const READ_BYTES: usize = 8 * 1024;

/// The largest buffer that is kept while no frame is in it.
const KEPT_BYTES: usize = 64 * 1024;

/// The kinds of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Client: the first frame, with version and credentials.
    Hello = 1,
    /// Server: the handshake succeeded.
    Welcome = 2,
    /// Client: an operation.
    Request = 3,
    /// Server: the result of an operation, its last frame.
    Reply = 4,
    /// Server: one item of a stream. Costs one credit.
    Item = 5,
    /// Server: the operation failed, its last frame.
    Error = 6,
    /// Client: stop the operation. Its last frame is still sent.
    Cancel = 7,
    /// The receiver of a stream grants the sender so many items or chunks (4 bytes, little-endian).
    Credit = 8,
    /// Either: answer with `Pong`.
    Ping = 9,
    /// The answer to a `Ping`.
    Pong = 10,
    /// A chunk of a file, in either direction; an empty one ends it. Costs one credit.
    Data = 11,
}

impl FrameKind {
    fn from_code(code: u8) -> Option<Self> {
        use FrameKind::*;
        [Hello, Welcome, Request, Reply, Item, Error, Cancel, Credit, Ping, Pong, Data]
            .into_iter()
            .find(|kind| *kind as u8 == code)
    }
}

/// A frame that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The kind.
    pub kind: FrameKind,
    /// The request that the frame belongs to; chosen by the client, 0 for the connection itself.
    pub request: u32,
    /// What follows the header.
    pub payload: &'a [u8],
}

/// Appends a frame whose payload `payload` writes.
pub fn write_frame(out: &mut Vec<u8>, kind: FrameKind, request: u32, payload: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.push(kind as u8);
    out.extend_from_slice(&request.to_le_bytes());
    payload(out);
    let length = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// A buffer that received bytes are appended to and frames are taken from.
#[derive(Debug)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    /// The unread bytes are `start..end`; those behind are zero or stale.
    start: usize,
    end: usize,
    frame_bytes_max: usize,
}

impl FrameBuffer {
    /// A buffer that refuses frames of more than `frame_bytes_max` bytes.
    pub fn new(frame_bytes_max: usize) -> Self {
        FrameBuffer { bytes: Vec::new(), start: 0, end: 0, frame_bytes_max }
    }

    /// Changes the largest frame.
    pub fn set_frame_bytes_max(&mut self, frame_bytes_max: usize) {
        self.frame_bytes_max = frame_bytes_max;
    }

    /// Space for the next read. Then call [`FrameBuffer::add`].
    pub fn space(&mut self) -> &mut [u8] {
        if self.start > 0 && (self.start == self.end || self.start >= self.bytes.len() / 2) {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == 0 && self.bytes.len() > KEPT_BYTES {
            self.bytes = Vec::new();
        }
        // Doubles what has arrived, so a peer must send bytes before it can occupy memory.
        if self.bytes.len() - self.end < READ_BYTES {
            let length = (self.end + READ_BYTES).max(self.bytes.len() * 2).min(self.end * 2 + READ_BYTES);
            self.bytes.resize(length.max(self.end + READ_BYTES), 0);
        }
        &mut self.bytes[self.end..]
    }

    /// Counts `count` bytes that were read into [`FrameBuffer::space`].
    pub fn add(&mut self, count: usize) {
        self.end = (self.end + count).min(self.bytes.len());
    }

    /// Appends bytes that were received elsewhere.
    pub fn extend(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let space = self.space();
            let count = space.len().min(bytes.len());
            space[..count].copy_from_slice(&bytes[..count]);
            self.add(count);
            bytes = &bytes[count..];
        }
    }

    /// Frees the memory of an empty buffer.
    pub fn release_memory(&mut self) {
        if !self.has_bytes() {
            (self.bytes, self.start, self.end) = (Vec::new(), 0, 0);
        }
    }

    /// Whether bytes of a frame have arrived.
    pub fn has_bytes(&self) -> bool {
        self.start < self.end
    }

    /// The length of the frame whose first bytes have arrived, in bytes.
    pub fn announced_bytes(&self) -> Option<usize> {
        let (length, _) = self.bytes[self.start..self.end].split_first_chunk::<4>()?;
        Some(u32::from_le_bytes(*length) as usize)
    }

    /// The memory that the buffer occupies, in bytes.
    pub fn byte_count(&self) -> usize {
        self.bytes.len()
    }

    /// The payload of the next frame, if that has arrived completely and is a request.
    pub fn waiting_request(&self) -> Option<&[u8]> {
        let (length, frame) = self.bytes[self.start..self.end].split_first_chunk::<4>()?;
        let payload = frame.get(..u32::from_le_bytes(*length) as usize)?.get(COUNTED_BYTES..)?;
        (frame[0] == FrameKind::Request as u8).then_some(payload)
    }

    /// Takes the next frame; `None` if it has not arrived completely.
    ///
    /// # Errors
    /// `Invalid` for a frame that is too long, or of an unknown kind. The connection can't be used any more.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>> {
        let unread = &self.bytes[self.start..self.end];
        let Some((length, _)) = unread.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length < COUNTED_BYTES {
            return Err(malformed("it is shorter than its header"));
        }
        if length > self.frame_bytes_max {
            return Err(malformed("it is longer than the limit"));
        }
        let Some(&code) = unread.get(4) else { return Ok(None) };
        let kind = FrameKind::from_code(code).ok_or_else(|| malformed("its kind is unknown"))?;
        if unread.len() < 4 + length {
            return Ok(None);
        }
        let mut request = [0; 4];
        request.copy_from_slice(&unread[5..9]);
        let from = self.start;
        self.start += 4 + length;
        let payload = &self.bytes[from + FRAME_HEADER_BYTES..self.start];
        Ok(Some(Frame { kind, request: u32::from_le_bytes(request), payload }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(bytes: &[u8], step: usize) -> Vec<(FrameKind, u32, Vec<u8>)> {
        let (mut buffer, mut found) = (FrameBuffer::new(1 << 20), Vec::new());
        for chunk in bytes.chunks(step) {
            buffer.extend(chunk);
            while let Some(frame) = buffer.next_frame().unwrap() {
                found.push((frame.kind, frame.request, frame.payload.to_vec()));
            }
        }
        assert!(!buffer.has_bytes() && buffer.waiting_request().is_none());
        found
    }

    #[test]
    fn frames_are_split_wherever_the_bytes_are_cut() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, FrameKind::Request, 7, |out| out.extend_from_slice(b"abc"));
        write_frame(&mut bytes, FrameKind::Ping, 0, |_| ());
        write_frame(&mut bytes, FrameKind::Data, u32::MAX, |out| out.resize(out.len() + 100_000, 9));
        let mut buffer = FrameBuffer::new(1 << 20);
        buffer.extend(&bytes[..11]);
        assert_eq!(buffer.waiting_request(), None);
        buffer.extend(&bytes[11..]);
        assert_eq!(buffer.waiting_request(), Some(&b"abc"[..]));
        buffer.next_frame().unwrap();
        assert_eq!(buffer.waiting_request(), None, "the next frame is a ping");
        let expected = frames(&bytes, bytes.len());
        assert_eq!(expected.len(), 3);
        assert_eq!(expected[0], (FrameKind::Request, 7, b"abc".to_vec()));
        for step in [1, 2, 3, 5, 8, 13, 8191, 8192, 8193] {
            assert_eq!(frames(&bytes, step), expected);
        }
    }

    #[test]
    fn hostile_headers_are_refused_without_memory() {
        for bytes in [&[0, 0, 0, 0, 1][..], &[4, 0, 0, 0, 1], &[0xff; 9], &[5, 0, 0, 0, 0], &[5, 0, 0, 0, 12]] {
            let mut buffer = FrameBuffer::new(1 << 20);
            buffer.extend(bytes);
            assert!(buffer.next_frame().is_err(), "{bytes:?}");
        }
        // A frame of a mebibyte that never arrives occupies one read.
        let mut buffer = FrameBuffer::new(1 << 20);
        buffer.extend(&[0, 0, 16, 0, 3]);
        assert_eq!(buffer.next_frame().unwrap(), None);
        assert!(buffer.byte_count() <= 2 * READ_BYTES, "{}", buffer.byte_count());
    }
}
