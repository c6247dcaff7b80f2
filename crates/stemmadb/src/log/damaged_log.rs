//! Reader for a damaged log: finds every frame that is valid at its position, and the byte ranges between valid frames.
//!
//! Read-only. It accepts only frames that recovery would accept, with one exception: a segment without a valid header
//! is read with the format that the checksums of its own frames agree on.
//!
//! In an encrypted log, everything returned is decrypted, and authenticated thereby. Records are found without their
//! frames, too, if a frame of the same session has a valid header anywhere.
//!
//! Cost: one read of the log; one segment is in memory at a time.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::cipher::{self, SegmentCipher, Session};
use super::frame::{ALIGNMENT, FrameFormat, FrameHeader, FrameKind, Version};
use super::mark::ExpectedSegments;
use super::payload::ChecksumSeed;
use super::position::LogPosition;
use super::segment::{DIRECTORY, SEGMENT_HEADER_BYTES, decode_header, encode_header, parse_segment_name, segment_name};
use crate::cipher::keys_missing;
use crate::vfs::{Vfs, VfsFile};
use crate::{Error, Result};

/// A file that can't be read as a whole is read in blocks of this size.
const PIECE_BYTES: usize = 4096;

/// A part of a damaged database that could not be read or understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// The file, relative to the database's directory.
    pub file: String,
    /// Start of the part in the file, in bytes.
    pub start: u64,
    /// End of the part: the first byte after it. Equal to `start` if the file is missing.
    pub end: u64,
    /// What is wrong with it.
    pub what: String,
}

/// Bytes of the log that may hold records.
#[derive(Debug, Clone)]
pub(crate) struct SurvivingPayload<'a> {
    pub(crate) position: LogPosition,
    pub(crate) bytes: &'a [u8],
    /// Whether the bytes are the payload of a valid frame. Otherwise they may contain records, from the first byte on.
    pub(crate) is_whole: bool,
    /// Whether a frame shows that the bytes were written for this place. Others may be left from an earlier use of the
    /// file.
    pub(crate) is_of_this_use: bool,
    /// Whether the records are valid only at their positions.
    pub(crate) has_bound_records: bool,
    pub(crate) seed: ChecksumSeed,
}

/// A damaged log, opened for reading only.
pub(crate) struct DamagedLog<'a> {
    vfs: &'a dyn Vfs,
    segments: Vec<Segment>,
    skipped: Vec<Skipped>,
    /// The sessions that frames of an encrypted log are of.
    sessions: BTreeSet<Session>,
}

/// A segment with the format needed to recognize its frames.
struct Segment {
    number: u32,
    format: FrameFormat,
    cipher: Option<SegmentCipher>,
}

impl<'a> DamagedLog<'a> {
    /// Finds all segments and the format in which each can be read.
    pub(crate) fn find(vfs: &'a dyn Vfs) -> Result<Self> {
        let names = vfs.list(DIRECTORY).map_err(|error| Error::io(format_args!("list {DIRECTORY}"), error))?;
        let numbers: BTreeSet<u32> = names.iter().filter_map(|name| parse_segment_name(name)).collect();
        let headers: Vec<_> = numbers.iter().map(|&number| (number, header_of(vfs, number))).collect();
        let known = headers.iter().find_map(|(_, format)| *format);
        let mut damaged_log = DamagedLog { vfs, segments: Vec::new(), skipped: Vec::new(), sessions: BTreeSet::new() };
        for (number, header) in headers {
            if header.is_none() {
                let what = "its header is damaged; its frames are recognized without it";
                damaged_log.skip(number, 0, u64::from(SEGMENT_HEADER_BYTES), what);
            }
            match header.or_else(|| format_of(vfs, &read(vfs, number).bytes, number, known)) {
                Some(format) => damaged_log.add(Segment::new(vfs, number, format))?,
                None => {
                    let bytes = read(vfs, number).bytes.len() as u64;
                    damaged_log.skip(number, u64::from(SEGMENT_HEADER_BYTES), bytes, "no frame is recognized in it");
                }
            }
        }
        Ok(damaged_log)
    }

    /// Passes every byte range that may contain records to `visit`, in log order. Can be called repeatedly.
    ///
    /// # Errors
    /// Errors of `visit` are returned unchanged.
    pub(crate) fn payloads(&self, visit: &mut dyn FnMut(SurvivingPayload<'_>) -> Result<()>) -> Result<()> {
        self.segments.iter().try_for_each(|segment| {
            let stored = read(self.vfs, segment.number).bytes;
            let bytes = segment.opened(&stored, &self.sessions);
            segment.walk(&stored, &bytes, &mut |found| match found {
                ScanItem::Data(payload) => visit(payload),
                ScanItem::Gap { start, end, is_of_this_use } => {
                    // If only a frame's header is damaged, its records are still intact.
                    let start = start + segment.header_bytes();
                    let Some(bytes) = bytes.get(start..end) else { return Ok(()) };
                    visit(SurvivingPayload { is_of_this_use, ..segment.payload(start, bytes, false) })
                }
                ScanItem::Mark(_) => Ok(()),
            })
        })
    }

    /// The parts of the log that can't be read or decoded as frames; damage within records is not included.
    pub(crate) fn into_skipped(mut self) -> Vec<Skipped> {
        let mut expected = None;
        for segment in std::mem::take(&mut self.segments) {
            let content = read(self.vfs, segment.number);
            for (start, end) in content.unreadable {
                self.skip(segment.number, start, end, "the disk can't read it");
            }
            let mut gaps = Vec::new();
            // The visitor never returns an error.
            let bytes = segment.opened(&content.bytes, &self.sessions);
            let walked = segment.walk(&content.bytes, &bytes, &mut |found| {
                match found {
                    ScanItem::Gap { start, .. } => gaps.push(start),
                    ScanItem::Mark(payload) => {
                        expected = ExpectedSegments::decode(segment.number, payload).ok().or(expected.take())
                    }
                    ScanItem::Data(_) => {}
                }
                Ok(())
            });
            debug_assert!(walked.is_ok());
            for start in gaps {
                let end = (start + segment.header_bytes()).min(content.bytes.len());
                self.skip(segment.number, start as u64, end as u64, "there should be the header of a frame");
            }
            self.segments.push(segment);
        }
        let present: BTreeSet<u32> = self.segments.iter().map(|segment| segment.number).collect();
        let marked = expected.unwrap_or(ExpectedSegments::starting_at(present.first().copied().unwrap_or(1)));
        for number in marked.lost(&present) {
            self.skip(number, 0, 0, "the file is missing");
        }
        self.skipped
    }

    /// Adds a segment that can be read.
    ///
    /// # Errors
    /// `Corrupt` if it is encrypted and there are no keys, or if it is not and should be.
    fn add(&mut self, segment: Segment) -> Result<()> {
        let name = segment_name(segment.number);
        match (self.vfs.keyring(), segment.format.is_encrypted()) {
            (None, true) => return Err(keys_missing(name)),
            (Some(keyring), false) if !keyring.accepts_plain() => {
                self.skip(segment.number, 0, 0, "it is not encrypted, but the database is");
                return Ok(());
            }
            (Some(_), true) => {
                let bytes = read(self.vfs, segment.number).bytes;
                let mut offset = SEGMENT_HEADER_BYTES as usize;
                while let Some(at) = segment.next_frame(&bytes, offset) {
                    let Some(header) = segment.header_at(&bytes, at) else { break };
                    self.sessions.insert(header.session);
                    offset = at + header.frame_bytes() as usize;
                }
            }
            (_, false) => {}
        }
        self.segments.push(segment);
        Ok(())
    }

    fn skip(&mut self, segment: u32, start: u64, end: u64, what: &str) {
        self.skipped.push(Skipped { file: segment_name(segment), start, end, what: what.to_owned() });
    }
}

/// What the scan of a segment finds at an offset.
enum ScanItem<'a> {
    Data(SurvivingPayload<'a>),
    Mark(&'a [u8]),
    /// No valid frame between `start` and `end`; the next one starts at `end`.
    Gap {
        start: usize,
        end: usize,
        is_of_this_use: bool,
    },
}

impl Segment {
    fn new(vfs: &dyn Vfs, number: u32, format: FrameFormat) -> Self {
        Segment { number, format, cipher: SegmentCipher::new(vfs.keyring(), format, number) }
    }

    /// The bytes with all records decrypted that are of one of these sessions. Nothing else in them passes for a
    /// decrypted record.
    fn opened<'b>(&self, stored: &'b [u8], sessions: &BTreeSet<Session>) -> Cow<'b, [u8]> {
        let Some(cipher) = &self.cipher else { return Cow::Borrowed(stored) };
        let mut bytes = stored.to_vec();
        let mut offset = SEGMENT_HEADER_BYTES as usize;
        while offset < bytes.len() {
            if offset.is_multiple_of(ALIGNMENT as usize) && self.header_at(stored, offset).is_some() {
                offset += self.header_bytes();
                continue;
            }
            let rest = &mut bytes[offset..];
            let is_of_session = cipher::session_of(rest).is_some_and(|session| sessions.contains(&session));
            let length = (if is_of_session { cipher::length_of(rest) } else { None }).filter(|&length| {
                // A record that is not what was written there leaves its bytes undefined.
                let mut record = rest[..length].to_vec();
                let is_open = cipher.opens(&mut record, offset as u32);
                if is_open {
                    rest[..length].copy_from_slice(&record);
                }
                is_open
            });
            if length.is_none() && rest[0] == cipher::OPENED[0] {
                rest[0] = !cipher::OPENED[0];
            }
            offset += length.unwrap_or(1);
        }
        Cow::Owned(bytes)
    }

    fn header_bytes(&self) -> usize {
        self.format.header_bytes() as usize
    }

    /// Bytes that were written for this place, at offset `start`.
    fn payload<'b>(&self, start: usize, bytes: &'b [u8], is_whole: bool) -> SurvivingPayload<'b> {
        SurvivingPayload {
            position: LogPosition::new(self.number, start as u32),
            bytes,
            is_whole,
            is_of_this_use: true,
            has_bound_records: self.format.version != Version::One,
            seed: self.format.seed,
        }
    }

    /// Passes what is found in these bytes to `visit`. `opened`: the same bytes, decrypted.
    fn walk<'b>(
        &self,
        bytes: &[u8],
        opened: &'b [u8],
        visit: &mut dyn FnMut(ScanItem<'b>) -> Result<()>,
    ) -> Result<()> {
        let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let mut offset = SEGMENT_HEADER_BYTES as usize;
        while offset < used {
            let Some(header) = self.header_at(bytes, offset) else {
                let next = self.next_frame(bytes, offset);
                let (start, end) = (offset, next.unwrap_or(used));
                visit(ScanItem::Gap { start, end, is_of_this_use: next.is_some() })?;
                offset = end;
                continue;
            };
            let start = offset + self.header_bytes();
            let end = start + header.payload_bytes as usize;
            let is_whole = crc32c::crc32c(&bytes[start..end]) == header.payload_checksum;
            let payload = &opened[start..end];
            offset += header.frame_bytes() as usize;
            match header.kind {
                FrameKind::Data => visit(ScanItem::Data(self.payload(start, payload, is_whole)))?,
                FrameKind::Mark if is_whole && self.cipher.is_none() => visit(ScanItem::Mark(payload))?,
                FrameKind::Mark if is_whole => {
                    cipher::opened_content(payload).map_or(Ok(()), |payload| visit(ScanItem::Mark(payload)))?;
                }
                FrameKind::Mark | FrameKind::Seal => {}
            }
        }
        Ok(())
    }

    /// The offset of the first valid frame from `offset` on.
    fn next_frame(&self, bytes: &[u8], offset: usize) -> Option<usize> {
        (offset..bytes.len()).step_by(ALIGNMENT as usize).find(|&place| self.header_at(bytes, place).is_some())
    }

    /// The header at `offset` if its frame ends within `bytes`.
    fn header_at(&self, bytes: &[u8], offset: usize) -> Option<FrameHeader> {
        let position = LogPosition::new(self.number, offset as u32);
        let header = self.format.decode(position, bytes.get(offset..)?)?;
        let cipher = self.cipher.as_ref();
        if cipher.is_some_and(|cipher| !cipher.verifies(&header, self.format, offset as u32)) {
            return None;
        }
        let end = offset + self.header_bytes() + header.payload_bytes as usize;
        (end <= bytes.len()).then_some(header)
    }
}

/// The format of a segment's frames: `known`, in the version of which the segment has frames; otherwise one that two
/// consecutive frames agree on, or that of the last frame if its payload is valid.
fn format_of(vfs: &dyn Vfs, bytes: &[u8], number: u32, known: Option<FrameFormat>) -> Option<FrameFormat> {
    let keys = vfs.keyring().map_or_else(Vec::new, |keyring| keyring.numbers());
    let encrypted = keys.into_iter().map(|key| (Version::Encrypted, key));
    let mut versions = encrypted.chain([(Version::Two, 0), (Version::One, 0)]);
    let has_frames = |format: &FrameFormat| {
        let segment = Segment::new(vfs, number, *format);
        segment.next_frame(bytes, SEGMENT_HEADER_BYTES as usize).is_some()
    };
    match known {
        Some(known) => versions.map(|(version, key)| known.of_version(version, key)).find(has_frames).or(Some(known)),
        None => versions.find_map(|version| agreed_format(bytes, number, version).filter(has_frames)),
    }
}

fn agreed_format(bytes: &[u8], number: u32, (version, key): (Version, u32)) -> Option<FrameFormat> {
    let claims = |offset: usize| {
        let header = bytes.get(offset..)?;
        let (checksum, payload_bytes) = FrameHeader::claims(version, header)?;
        let start = offset + version.header_bytes() as usize;
        let payload = bytes.get(start..start + payload_bytes)?;
        let format = FrameFormat::of_header(version, key, LogPosition::new(number, offset as u32), header)?;
        Some((format, offset + version.frame_bytes(payload_bytes) as usize, payload, checksum))
    };
    (SEGMENT_HEADER_BYTES as usize..bytes.len()).step_by(ALIGNMENT as usize).find_map(|offset| {
        let (format, next, payload, checksum) = claims(offset)?;
        let is_agreed = match claims(next) {
            Some((follower, ..)) => follower == format,
            None => !payload.is_empty() && crc32c::crc32c(payload) == checksum,
        };
        is_agreed.then_some(format)
    })
}

/// The format that a segment's header states, if the header is valid.
fn header_of(vfs: &dyn Vfs, number: u32) -> Option<FrameFormat> {
    let name = segment_name(number);
    let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
    let read = vfs.open(&name).and_then(|file| file.read_at(&mut bytes, 0)).unwrap_or(0);
    let (format, id) = decode_header(&name, number, &bytes).ok().filter(|_| read == bytes.len())?;
    // Any byte that differs from what was written counts as damage, even if it has no meaning.
    (encode_header(format, number, &id) == bytes).then_some(format)
}

/// The readable content of a file, with zeros where reading failed.
#[derive(Default)]
struct Content {
    bytes: Vec<u8>,
    unreadable: Vec<(u64, u64)>,
}

fn read(vfs: &dyn Vfs, number: u32) -> Content {
    let Ok(file) = vfs.open(&segment_name(number)) else { return Content::default() };
    let length = file.len().unwrap_or(0).min(u64::from(u32::MAX)) as usize;
    let mut content = Content { bytes: vec![0; length], unreadable: Vec::new() };
    if file.read_at(&mut content.bytes, 0).is_err() {
        content.read_pieces(&*file);
    }
    content
}

impl Content {
    fn read_pieces(&mut self, file: &dyn VfsFile) {
        let mut start = 0;
        for piece in self.bytes.chunks_mut(PIECE_BYTES) {
            let end = start + piece.len() as u64;
            if file.read_at(piece, start).is_err() {
                piece.fill(0);
                match self.unreadable.last_mut() {
                    Some((_, last)) if *last == start => *last = end,
                    _ => self.unreadable.push((start, end)),
                }
            }
            start = end;
        }
    }
}
