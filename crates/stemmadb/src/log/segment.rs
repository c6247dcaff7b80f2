//! Segment file: its name, header, and reads and writes.
//!
//! Header, big-endian, 64 bytes, followed by frames:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | `stemmlog` |
//! | 8 | 4 | format version, 2, or 3 if it is encrypted; version 1 is read, too |
//! | 12 | 4 | segment number, 1 for the first |
//! | 16 | 16 | database id |
//! | 32 | 4 | number of the database key that it is encrypted with; 0 in other versions |
//! | 36 | 24 | zeros |
//! | 60 | 4 | CRC32C of the 60 bytes above |
//!
//! Invariants: a file gets its name `log/NNNNNNNNNN.log` only after its header is flushed, and only after the previous
//! segment was sealed and flushed. A damaged header is therefore always damage, never the result of a crash.

use std::sync::Arc;

use super::cipher::SegmentCipher;
use super::frame::{FrameFormat, Version};
use super::handles::{Handle, Handles};
use super::retire::is_shared;
use super::times::FrameIndex;
use crate::cipher::{keys_missing, not_encrypted};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::vfs::read_exact_at;
use crate::{Error, Result};

pub(super) const DIRECTORY: &str = "log";
pub(super) const SEGMENT_HEADER_BYTES: u32 = 64;
/// Upper bound of segment numbers. At 1 GB/s it is reached after eight years, and the next number still has 10 digits.
const NUMBER_END: u32 = 4_000_000_000;
const MAGIC: &[u8; 8] = b"stemmlog";
/// The format version that is written without encryption.
pub(crate) const FORMAT_VERSION: u32 = Version::CURRENT as u32;
/// The newest format version.
pub(crate) const ENCRYPTED_FORMAT_VERSION: u32 = Version::Encrypted as u32;

/// Identifies the database that a file belongs to.
pub(crate) type DatabaseId = [u8; 16];

/// One segment.
pub(super) struct Segment {
    pub(super) number: u32,
    pub(super) format: FrameFormat,
    pub(super) handle: Handle,
    pub(super) cipher: Option<SegmentCipher>,
    /// End of the frames written so far, not counting the seal.
    used: AtomicU32,
    pub(super) frame_index: Mutex<FrameIndex>,
}

impl Segment {
    /// A segment without frames.
    pub(super) fn new(number: u32, handle: Handle, format: FrameFormat) -> Self {
        let cipher = SegmentCipher::new(handle.keyring(), format, number);
        let used = AtomicU32::new(SEGMENT_HEADER_BYTES);
        Segment { number, format, handle, cipher, used, frame_index: Mutex::default() }
    }

    pub(super) fn name(&self) -> &str {
        self.handle.name()
    }

    pub(super) fn used(&self) -> u32 {
        self.used.load(Ordering::Acquire)
    }

    pub(super) fn set_used(&self, offset: u32) {
        debug_assert!(offset >= self.used(), "frames are only added to a segment: its end never moves back");
        self.used.store(offset, Ordering::Release);
    }

    /// Replaces `out` with the `bytes` bytes at `offset`. Returns an error for a range outside the written frames.
    pub(super) fn read(&self, offset: u32, bytes: u32, out: &mut Vec<u8>) -> Result<()> {
        let inside = offset >= SEGMENT_HEADER_BYTES && offset.checked_add(bytes).is_some_and(|end| end <= self.used());
        if !inside {
            return Err(Error::corrupt(format!("{bytes} bytes at offset {offset} lie outside {}", self.name())));
        }
        out.clear();
        out.resize(bytes as usize, 0);
        let read = self.handle.file().and_then(|file| read_exact_at(&*file, out, u64::from(offset)));
        read.map_err(|error| Error::io(format_args!("read {} at offset {offset}", self.name()), error))
    }

    /// Like [`Segment::read`], and decrypts these records in the range, each given by its start there and its length.
    pub(super) fn read_records(
        &self,
        offset: u32,
        bytes: u32,
        records: &[(usize, usize)],
        out: &mut Vec<u8>,
    ) -> Result<()> {
        self.read(offset, bytes, out)?;
        let damaged = self.cipher.as_ref().and_then(|cipher| cipher.first_damaged(out, offset, records));
        match damaged {
            Some(offset) => Err(self.damaged(offset, "a record is not what was encrypted there")),
            None => Ok(()),
        }
    }

    /// Reads up to `buffer.len()` bytes at `offset` and returns the number of bytes read.
    pub(super) fn read_some(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let read = self.handle.file().and_then(|file| file.read_at(buffer, offset));
        read.map_err(|error| Error::io(format_args!("read {} at offset {offset}", self.name()), error))
    }

    pub(super) fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let written = self.handle.file().and_then(|file| file.write_at(bytes, offset));
        written.map_err(|error| Error::io(format_args!("write {} at offset {offset}", self.name()), error))
    }

    pub(super) fn flush(&self) -> Result<()> {
        let flushed = self.handle.file().and_then(|file| file.sync_data());
        flushed.map_err(|error| Error::io(format_args!("flush {}", self.name()), error))
    }

    pub(super) fn shorten(&self, bytes: u64) -> Result<()> {
        let shortened = self.handle.file().and_then(|file| file.set_len(bytes));
        shortened.map_err(|error| Error::io(format_args!("shorten {}", self.name()), error))
    }

    pub(super) fn length(&self) -> Result<u64> {
        let length = self.handle.file().and_then(|file| file.len());
        length.map_err(|error| Error::io(format_args!("examine {}", self.name()), error))
    }

    /// Whether a backup or a branch shares the file.
    pub(super) fn is_shared(&self) -> bool {
        self.handle.file().map_or(true, |file| is_shared(&*file))
    }

    /// Keeps the file open even if it is renamed or removed.
    pub(super) fn pin(&self) -> Result<()> {
        self.handle.pin().map_err(|error| Error::io(format_args!("open {}", self.name()), error))
    }

    pub(super) fn damaged(&self, offset: u32, what: &str) -> Error {
        damaged(self.name(), offset, what)
    }
}

pub(super) fn no_segment(number: u32) -> Error {
    Error::not_found(format!("the log has no segment {number}"))
}

pub(super) fn damaged(name: &str, offset: u32, what: &str) -> Error {
    Error::corrupt(format!("{name} is damaged at offset {offset}: {what}"))
}

/// The file name of segment `number`.
pub(super) fn segment_name(number: u32) -> String {
    format!("{DIRECTORY}/{number:010}.log")
}

/// The segment number in a file name without its directory.
pub(super) fn parse_segment_name(name: &str) -> Option<u32> {
    parse_numbered(name, ".log")
}

/// The segment number in a file name of ten digits and this suffix.
pub(super) fn parse_numbered(name: &str, suffix: &str) -> Option<u32> {
    let digits = name.strip_suffix(suffix)?;
    if digits.len() != 10 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().filter(|number| (1..NUMBER_END).contains(number))
}

pub(super) fn encode_header(
    format: FrameFormat,
    number: u32,
    database_id: &DatabaseId,
) -> [u8; SEGMENT_HEADER_BYTES as usize] {
    let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&(format.version as u32).to_be_bytes());
    bytes[12..16].copy_from_slice(&number.to_be_bytes());
    bytes[16..32].copy_from_slice(database_id);
    bytes[32..36].copy_from_slice(&format.key.to_be_bytes());
    let checksum = crc32c::crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&checksum.to_be_bytes());
    bytes
}

/// Checks a header and returns the segment's format and the database's id.
pub(super) fn decode_header(
    name: &str,
    number: u32,
    bytes: &[u8; SEGMENT_HEADER_BYTES as usize],
) -> Result<(FrameFormat, DatabaseId)> {
    let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    if &bytes[..8] != MAGIC || word(60) != crc32c::crc32c(&bytes[..60]) {
        return Err(damaged(name, 0, "its header is not one of a log segment, or its checksum is wrong"));
    }
    let Some(version) = Version::from_number(word(8)) else {
        let found = word(8);
        return Err(Error::unavailable(format!(
            "{name} has log format {found}; this version reads {ENCRYPTED_FORMAT_VERSION}"
        ))
        .with_hint("use a newer version of stemma"));
    };
    let key = word(32);
    if bytes[36..60].iter().any(|&byte| byte != 0) || (key != 0) != (version == Version::Encrypted) {
        return Err(Error::unavailable(format!("{name} uses a feature that this version does not know"))
            .with_hint("use a newer version of stemma"));
    }
    if word(12) != number {
        return Err(damaged(name, 12, &format!("its header says it is segment {}", word(12))));
    }
    let mut id = [0; 16];
    id.copy_from_slice(&bytes[16..32]);
    Ok((FrameFormat::new(version, &id, key), id))
}

/// Opens segment `number` and checks its header.
pub(super) fn open_segment(handles: &Arc<Handles>, number: u32) -> Result<(Segment, DatabaseId)> {
    let handle = Handle::closed(handles, segment_name(number));
    let name = handle.name();
    let file = handle.file().map_err(|error| Error::io(format_args!("open {name}"), error))?;
    let mut header = [0; SEGMENT_HEADER_BYTES as usize];
    let read = file.read_at(&mut header, 0).map_err(|error| Error::io(format_args!("read {name}"), error))?;
    if read < header.len() {
        return Err(damaged(name, read as u32, "the file ends within its header"));
    }
    let (format, id) = decode_header(name, number, &header)?;
    match handle.keyring() {
        None if format.is_encrypted() => return Err(keys_missing(name)),
        Some(keyring) if !format.is_encrypted() && !keyring.accepts_plain() => return Err(not_encrypted(name)),
        Some(keyring) if format.is_encrypted() && !keyring.numbers().contains(&format.key) => {
            return Err(damaged(name, 32, &format!("it is encrypted with key {}, which is unknown", format.key)));
        }
        _ => {}
    }
    Ok((Segment::new(number, handle, format), id))
}

/// Information about one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentInfo {
    pub(crate) number: u32,
    /// Bytes of its header and frames.
    pub(crate) used_bytes: u64,
    /// The number of the database key that it is encrypted with; 0 if it is not encrypted.
    pub(crate) key: u32,
    /// Whether frames are being appended to it; the active segment can't be retired.
    pub(crate) is_active: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_names_round_trip_and_other_names_are_ignored() {
        assert_eq!(segment_name(42), "log/0000000042.log");
        assert_eq!(parse_segment_name("0000000042.log"), Some(42));
        for other_name in ["0000000000.log", "42.log", "+000000042.log", "9999999999.log", "free-0000000001", "x.log"] {
            assert_eq!(parse_segment_name(other_name), None, "{other_name}");
        }
    }

    #[test]
    fn header_checksum_detects_every_bit_flip() {
        let id = [9; 16];
        let format = |version, key| FrameFormat::new(version, &id, key);
        let bytes = encode_header(format(Version::Two, 0), 3, &id);
        for format in [format(Version::Two, 0), format(Version::One, 0), format(Version::Encrypted, 5)] {
            assert_eq!(decode_header("f", 3, &encode_header(format, 3, &id)).unwrap(), (format, id));
        }
        assert!(decode_header("f", 4, &bytes).is_err());
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_header("f", 3, &flipped).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn newer_format_version_is_unavailable() {
        for (at, value, message) in [(11, 4, "log format 4"), (40, 1, "does not know"), (35, 1, "does not know")] {
            let mut bytes = encode_header(FrameFormat::current(&[0; 16], None), 1, &[0; 16]);
            bytes[at] = value;
            let checksum = crc32c::crc32c(&bytes[..60]);
            bytes[60..].copy_from_slice(&checksum.to_be_bytes());
            let error = decode_header("log/1", 1, &bytes).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Unavailable);
            assert!(error.message().contains(message));
        }
    }
}
