//! The protocol between the server and a worker: frames on the worker's pipes.
//!
//! A frame is its length (four bytes, little-endian), then its kind (one byte) and its parts. A text is its length
//! (four bytes) and its bytes.
//!
//! | from | frame | parts |
//! |---|---|---|
//! | server | `O`, open a context | the design document, as JSON |
//! | server | `X`, call | kind of call, path of the function (JSON), number of arguments of a call, then the arguments
//! of all calls |
//! | worker | `A`, results of the next calls | texts |
//! | worker | `L`, a logged line | a text |
//! | worker | `C`, the function can't be called at all | error and reason, as JSON |
//! | worker | `F`, the worker fails | reason |
//! | worker | `E`, end of the response | |

use std::io::{self, Read, Write};

/// The maximum length of a frame, in bytes: enough for the largest documents.
pub(super) const FRAME_BYTES_MAX: usize = 48 << 20;

pub(super) const OPEN: u8 = b'O';
pub(super) const CALL: u8 = b'X';
pub(super) const RESULTS: u8 = b'A';
pub(super) const LOG: u8 = b'L';
pub(super) const UNCALLABLE: u8 = b'C';
pub(super) const FATAL: u8 = b'F';
pub(super) const END: u8 = b'E';

/// A frame being written.
pub(super) struct Frame(Vec<u8>);

impl Frame {
    pub(super) fn new(kind: u8) -> Self {
        Frame(vec![0, 0, 0, 0, kind])
    }

    pub(super) fn text(mut self, text: &str) -> Self {
        self.push(text);
        self
    }

    pub(super) fn push(&mut self, text: &str) {
        self.number(text.len());
        self.0.extend_from_slice(text.as_bytes());
    }

    pub(super) fn number(&mut self, number: usize) {
        // A frame that is too long is refused when it is sent.
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub(super) fn byte_count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn send(mut self, out: &mut impl Write) -> io::Result<()> {
        let length = self.0.len() - 4;
        if length > FRAME_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "more than fits a frame"));
        }
        self.0[..4].copy_from_slice(&(length as u32).to_le_bytes());
        out.write_all(&self.0)?;
        out.flush()
    }
}

/// A frame that was read.
pub(super) struct ReceivedFrame {
    pub(super) kind: u8,
    bytes: Vec<u8>,
    at: usize,
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a malformed frame")
}

impl ReceivedFrame {
    /// Reads the next frame. Returns `None` at the end of the stream.
    pub(super) fn read(input: &mut impl Read) -> io::Result<Option<Self>> {
        let mut length = [0; 4];
        match input.read_exact(&mut length) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let length = u32::from_le_bytes(length) as usize;
        if length == 0 || length > FRAME_BYTES_MAX {
            return Err(malformed());
        }
        let mut bytes = vec![0; length];
        input.read_exact(&mut bytes)?;
        Ok(Some(ReceivedFrame { kind: bytes[0], bytes, at: 1 }))
    }

    pub(super) fn number(&mut self) -> io::Result<usize> {
        let number = self.bytes.get(self.at..self.at + 4).ok_or_else(malformed)?;
        self.at += 4;
        Ok(u32::from_le_bytes(number.try_into().map_err(|_| malformed())?) as usize)
    }

    /// Reads all remaining texts.
    pub(super) fn rest(&mut self) -> io::Result<Vec<&str>> {
        let mut texts = Vec::new();
        let mut left = self.bytes.get(self.at..).ok_or_else(malformed)?;
        self.at = self.bytes.len();
        while let Some((length, after)) = left.split_first_chunk::<4>() {
            let text = after.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(malformed)?;
            texts.push(std::str::from_utf8(text.0).map_err(|_| malformed())?);
            left = text.1;
        }
        if left.is_empty() { Ok(texts) } else { Err(malformed()) }
    }

    pub(super) fn text(&mut self) -> io::Result<&str> {
        let length = self.number()?;
        let end = self.at.checked_add(length).ok_or_else(malformed)?;
        let text = self.bytes.get(self.at..end).ok_or_else(malformed)?;
        self.at = end;
        std::str::from_utf8(text).map_err(|_| malformed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_trip() {
        let mut pipe = Vec::new();
        let mut frame = Frame::new(CALL).text("map");
        frame.number(7);
        frame.push("");
        frame.push("é");
        frame.send(&mut pipe).unwrap();
        Frame::new(END).send(&mut pipe).unwrap();
        let mut input = pipe.as_slice();
        let mut received = ReceivedFrame::read(&mut input).unwrap().unwrap();
        assert_eq!((received.kind, received.text().unwrap()), (CALL, "map"));
        assert_eq!(received.number().unwrap(), 7);
        assert_eq!(received.text().unwrap(), "");
        assert_eq!(received.text().unwrap(), "é");
        assert!(received.text().is_err());
        assert_eq!(ReceivedFrame::read(&mut input).unwrap().unwrap().kind, END);
        assert!(ReceivedFrame::read(&mut input).unwrap().is_none());
    }

    #[test]
    fn malformed_frames_are_rejected() {
        let too_long = (FRAME_BYTES_MAX as u32 + 1).to_le_bytes();
        assert!(ReceivedFrame::read(&mut &too_long[..]).is_err());
        assert!(ReceivedFrame::read(&mut &[0u8; 4][..]).is_err());
        let mut text = ReceivedFrame::read(&mut &[5, 0, 0, 0, b'A', 255, 255, 255, 255][..]).unwrap().unwrap();
        assert!(text.rest().is_err() && text.text().is_err());
    }
}
