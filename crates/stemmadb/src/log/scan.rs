//! Scanner that reads and verifies the frames of one segment file in order.

use super::cipher;
use super::frame::{ALIGNMENT, FrameHeader, Version};
use super::payload::ChecksumSeed;
use super::position::LogPosition;
use super::segment::Segment;
use crate::Result;

/// Bytes read at a time.
const WINDOW_BYTES: usize = 256 * 1024;

/// A valid frame as read from its file.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScannedFrame<'a> {
    pub(super) position: LogPosition,
    pub(super) header: FrameHeader,
    pub(super) seed: ChecksumSeed,
    pub(super) payload: &'a [u8],
}

impl ScannedFrame<'_> {
    pub(super) fn payload_position(&self) -> LogPosition {
        self.position.advance(self.header.version.header_bytes())
    }

    pub(super) fn end(&self) -> LogPosition {
        self.position.advance(self.header.frame_bytes())
    }

    /// The payload of a mark, which is not made of records.
    pub(super) fn mark_payload(&self) -> &[u8] {
        match self.header.version {
            Version::Encrypted => cipher::opened_content(self.payload).unwrap_or(&[0]),
            Version::One | Version::Two => self.payload,
        }
    }
}

/// Reads a segment's frames through a window of its file.
pub(super) struct Scanner<'a> {
    segment: &'a Segment,
    /// The scanner reads nothing at or after this offset.
    limit: u64,
    window: Vec<u8>,
    window_start: u64,
    /// The payload of the frame that was read last, decrypted.
    opened: Vec<u8>,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(segment: &'a Segment, limit: u64) -> Self {
        Scanner {
            segment,
            limit: limit.min(u64::from(u32::MAX)),
            window: Vec::new(),
            window_start: 0,
            opened: Vec::new(),
        }
    }

    /// The frame at `offset` if it is valid.
    pub(super) fn frame_at(&mut self, offset: u32) -> Result<Option<ScannedFrame<'_>>> {
        let Some(header) = self.header_at(offset)? else { return Ok(None) };
        let position = LogPosition::new(self.segment.number, offset);
        let seed = self.segment.format.seed;
        let start = u64::from(offset + header.version.header_bytes());
        let payload = self.bytes(start, header.payload_bytes as usize)?;
        if payload.len() < header.payload_bytes as usize || crc32c::crc32c(payload) != header.payload_checksum {
            return Ok(None);
        }
        let Some(cipher) = &self.segment.cipher else {
            return Ok(Some(ScannedFrame { position, header, seed, payload: self.kept(start, &header) }));
        };
        let mut opened = std::mem::take(&mut self.opened);
        opened.clear();
        opened.extend_from_slice(self.kept(start, &header));
        let is_open = cipher.open_payload(&mut opened, start as u32, header.session);
        self.opened = opened;
        Ok(is_open.then_some(ScannedFrame { position, header, seed, payload: &self.opened }))
    }

    /// The frame header at `offset`, if it is valid and its frame ends within the limit.
    pub(super) fn header_at(&mut self, offset: u32) -> Result<Option<FrameHeader>> {
        debug_assert!(offset.is_multiple_of(ALIGNMENT), "frames start at multiples of {ALIGNMENT}");
        let (number, format, limit) = (self.segment.number, self.segment.format, self.limit);
        let bytes = self.bytes(u64::from(offset), format.header_bytes() as usize)?;
        let header = format.decode(LogPosition::new(number, offset), bytes);
        let cipher = self.segment.cipher.as_ref();
        let header = header.filter(|header| cipher.is_none_or(|cipher| cipher.verifies(header, format, offset)));
        Ok(header.filter(|header| u64::from(offset) + u64::from(header.frame_bytes()) <= limit))
    }

    /// The `count` bytes at `offset`, fewer where the limit or the file ends.
    pub(super) fn bytes(&mut self, offset: u64, count: usize) -> Result<&[u8]> {
        let available = usize::try_from(self.limit.saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = count.min(available);
        let window_end = self.window_start + self.window.len() as u64;
        if offset < self.window_start || offset + count as u64 > window_end {
            self.fill(offset, count.max(WINDOW_BYTES.min(available)))?;
        }
        let start = (offset - self.window_start) as usize;
        let end = (start + count).min(self.window.len());
        Ok(&self.window[start.min(end)..end])
    }

    /// The payload of a frame that is in the window.
    fn kept(&self, start: u64, header: &FrameHeader) -> &[u8] {
        let at = (start - self.window_start) as usize;
        &self.window[at..at + header.payload_bytes as usize]
    }

    fn fill(&mut self, offset: u64, count: usize) -> Result<()> {
        self.window.resize(count, 0);
        self.window_start = offset;
        let read = self.segment.read_some(&mut self.window, offset);
        self.window.truncate(*read.as_ref().unwrap_or(&0));
        read.map(|_| ())
    }
}
