//! Payload of a frame: records, whose checksums or tags hold only where the log puts them.
//!
//! A record begins with a checksum of 4 bytes. [`Log::append`](super::Log::append) combines it with a mask that follows
//! from the database's id and the record's position. So bytes that look like a record, in a document, in an attachment
//! or left over from an earlier use of the file, are not valid where they are.

use super::cipher::PREFIX_BYTES;
use super::position::LogPosition;
use super::segment::DatabaseId;

/// The records of one transaction.
#[derive(Debug, Default)]
pub(crate) struct Payload {
    pub(super) bytes: Vec<u8>,
    /// Where records begin.
    pub(super) starts: Vec<u32>,
    /// Whether the log encrypts it: records then have room for session and tag, of which a checksum is the last part.
    pub(super) is_encrypted: bool,
}

impl Payload {
    pub(crate) fn reserve(&mut self, byte_count: usize, record_count: usize) {
        self.bytes.reserve_exact(byte_count);
        self.starts.reserve_exact(record_count);
    }

    /// An empty payload for an encrypted log.
    pub(super) fn encrypted() -> Self {
        Payload { is_encrypted: true, ..Payload::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Adds the record that `encode` appends to the bytes; returns its length.
    pub(crate) fn add(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> u32 {
        let start = self.bytes.len();
        if self.is_encrypted {
            self.bytes.resize(start + PREFIX_BYTES - CHECKSUM_BYTES, 0);
        }
        encode(&mut self.bytes);
        self.starts.push(start as u32);
        u32::try_from(self.bytes.len() - start).expect("a record is bounded by the document limits")
    }
}

/// Bytes without records. Only tests write them.
impl From<&[u8]> for Payload {
    fn from(bytes: &[u8]) -> Self {
        Payload { bytes: bytes.to_vec(), starts: Vec::new(), is_encrypted: false }
    }
}

/// Length of a record's checksum.
pub(super) const CHECKSUM_BYTES: usize = 4;

/// What the checksums of a database's frames and records depend on, apart from their positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChecksumSeed {
    pub(super) mask: u32,
    /// Whether there are records that were decrypted, and authenticated thereby: they have no checksum.
    pub(crate) is_opened: bool,
}

impl ChecksumSeed {
    pub(crate) fn new(database_id: &DatabaseId) -> Self {
        ChecksumSeed { mask: crc32c::crc32c(database_id), is_opened: false }
    }

    /// The checksum that those of a frame's header at `position` continue, and the mask of those of records.
    pub(crate) fn mask_at(self, position: LogPosition) -> u32 {
        crc32c::crc32c_append(self.mask, &position.to_u64().to_be_bytes())
    }

    /// Makes the checksums of the records that begin at `starts` hold in a payload at `position`, and nowhere else.
    pub(super) fn bind(self, payload: &mut [u8], starts: &[u32], position: LogPosition) {
        for &start in starts {
            let Some(checksum) = payload.get_mut(start as usize..).and_then(|rest| rest.first_chunk_mut::<4>()) else {
                debug_assert!(false, "a record has a checksum");
                continue;
            };
            let mask = self.mask_at(position.advance(start));
            *checksum = (u32::from_be_bytes(*checksum) ^ mask).to_be_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::FrameFormat;
    use super::*;

    #[test]
    fn a_mask_belongs_to_one_database_and_one_position() {
        let seed = ChecksumSeed::new(&[7; 16]);
        let mask = seed.mask_at(LogPosition::new(3, 96));
        assert_ne!(mask, seed.mask_at(LogPosition::new(3, 97)));
        assert_ne!(mask, seed.mask_at(LogPosition::new(4, 96)));
        assert_ne!(mask, ChecksumSeed::new(&[8; 16]).mask_at(LogPosition::new(3, 96)));
        assert_eq!(mask, FrameFormat::current(&[7; 16], None).seed.mask_at(LogPosition::new(3, 96)));
    }

    #[test]
    fn binding_changes_only_the_checksums_of_records() {
        let mut payload = Payload::default();
        for text in [b"0000first", b"0000other"] {
            assert_eq!(payload.add(|bytes| bytes.extend_from_slice(text)), 9);
        }
        let (seed, position) = (ChecksumSeed::new(&[7; 16]), LogPosition::new(1, 96));
        let mut bound = payload.bytes.clone();
        seed.bind(&mut bound, &payload.starts, position);
        assert_eq!((&bound[4..9], &bound[13..]), (&b"first"[..], &b"other"[..]));
        assert_ne!(bound[..4], bound[9..13]);
        assert_ne!(bound[..4], payload.bytes[..4]);
        seed.bind(&mut bound, &payload.starts, position);
        assert_eq!(bound, payload.bytes);
    }
}
