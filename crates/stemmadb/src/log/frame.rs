//! Frame format: one transaction, made atomic by its checksums.
//!
//! Layout, big-endian, at an offset divisible by 8:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | kind in the upper 2 bits, payload length in the lower 30 |
//! | 4 | 4 | durable: everything in this segment before this offset was flushed when the frame was written |
//! | 8 | 8 | sequence of the first change in the frame |
//! | 16 | 8 | commit time: microseconds since 1970, below 2^56; absent in segments of version 1 |
//! | 24 | 4 | CRC32C of the payload |
//! | 28 | 4 | CRC32C of database id, segment number, offset and the 28 bytes above |
//! | 32 | | payload, then zeros to the next multiple of 8 |
//!
//! In encrypted segments, session (8) and authentication tag (16) of the header precede the two checksums. The tag
//! covers the fields above it and the checksum of the payload, whose records have tags of their own
//! ([`cipher`](super::cipher)).
//!
//! Invariants:
//! - A frame is valid only at the position it was written for, so bytes from a recycled file's previous use are never
//!   valid frames.
//! - Without knowing the database's id, nobody can craft a payload that contains a valid frame.
//! - Zeros are not a valid frame.
//! - Everything in an earlier segment was flushed before the first frame of a later segment was written.
//! - Commit times ascend strictly with the log, whatever the clock does.
//!
//! The header has its own checksum so that searching arbitrary bytes for frames costs a checksum of 28 bytes per
//! offset, regardless of the frame length those bytes seem to announce.

use smallvec::SmallVec;

use super::cipher::Session;
use super::payload::ChecksumSeed;
use super::position::LogPosition;
use super::segment::DatabaseId;
use crate::cipher::TAG_BYTES;
use crate::revision::Sequence;

/// Length of the frame header that is written to segments that are not encrypted, in bytes.
#[cfg(test)]
pub(super) const FRAME_HEADER_BYTES: u32 = Version::CURRENT.header_bytes();

/// Frames start at multiples of this.
pub(super) const ALIGNMENT: u32 = 8;

/// The longest payload of one frame.
pub(super) const PAYLOAD_BYTES_MAX: usize = (1 << 30) - 1;

/// Commit times are below this: then the encoding of a frame has a byte left for a later use.
pub(super) const TIME_END: u64 = 1 << 56;

/// The longest frame header of all versions.
const HEADER_BYTES_MAX: usize = 56;

pub(super) type HeaderBytes = SmallVec<[u8; 64]>;

/// The version of a segment's format. Segments of older versions are read, and not continued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// Frames without commit times.
    One = 1,
    Two = 2,
    /// As version 2, encrypted.
    Encrypted = 3,
}

impl Version {
    /// The version that is written without encryption.
    pub(super) const CURRENT: Version = Version::Two;

    const ALL: [Version; 3] = [Version::One, Version::Two, Version::Encrypted];

    pub(super) fn from_number(number: u32) -> Option<Self> {
        Version::ALL.into_iter().find(|version| *version as u32 == number)
    }

    /// Length of a frame's header, in bytes.
    pub(super) const fn header_bytes(self) -> u32 {
        match self {
            Version::One => 24,
            Version::Two => 32,
            Version::Encrypted => HEADER_BYTES_MAX as u32,
        }
    }

    /// Length of a frame with a payload of `payload_bytes`, in bytes.
    pub(super) fn frame_bytes(self, payload_bytes: usize) -> u32 {
        debug_assert!(payload_bytes <= PAYLOAD_BYTES_MAX, "the payload length fits its 30 bits");
        (self.header_bytes() + payload_bytes as u32).next_multiple_of(ALIGNMENT)
    }

    /// Where the two checksums are: they are the last fields.
    const fn checksums_at(self) -> usize {
        self.header_bytes() as usize - 8
    }
}

/// How the frames of a segment are encoded: its version, the seed that makes its frames invalid in any other database,
/// and the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameFormat {
    pub(super) version: Version,
    pub(super) seed: ChecksumSeed,
    /// The number of the database key; 0 if the segment is not encrypted.
    pub(super) key: u32,
}

impl FrameFormat {
    pub(super) fn new(version: Version, database_id: &DatabaseId, key: u32) -> Self {
        debug_assert_eq!(version == Version::Encrypted, key != 0, "encrypted segments have a key");
        let seed = ChecksumSeed { is_opened: key != 0, ..ChecksumSeed::new(database_id) };
        FrameFormat { version, seed, key }
    }

    /// The format of the segments that this database writes with this database key.
    pub(super) fn current(database_id: &DatabaseId, key: Option<u32>) -> Self {
        match key {
            Some(key) => FrameFormat::new(Version::Encrypted, database_id, key),
            None => FrameFormat::new(Version::CURRENT, database_id, 0),
        }
    }

    /// The same database's format of another version, or with another key.
    pub(super) fn of_version(self, version: Version, key: u32) -> Self {
        let seed = ChecksumSeed { is_opened: key != 0, ..self.seed };
        FrameFormat { version, seed, key }
    }

    pub(super) fn is_encrypted(self) -> bool {
        self.key != 0
    }

    pub(super) fn header_bytes(self) -> u32 {
        self.version.header_bytes()
    }

    pub(super) fn encode(self, header: &FrameHeader, position: LogPosition) -> HeaderBytes {
        debug_assert!(position.offset().is_multiple_of(ALIGNMENT), "frames start at multiples of {ALIGNMENT}");
        debug_assert!(header.payload_bytes as usize <= PAYLOAD_BYTES_MAX, "the payload length fits its 30 bits");
        debug_assert!(header.durable <= position.offset(), "a frame can't claim that bytes after itself are durable");
        let mut bytes = HeaderBytes::new();
        bytes.extend_from_slice(&((header.kind as u32) << 30 | header.payload_bytes).to_be_bytes());
        bytes.extend_from_slice(&header.durable.to_be_bytes());
        bytes.extend_from_slice(&header.first_sequence.get().to_be_bytes());
        if self.version != Version::One {
            debug_assert!(header.time_us < TIME_END, "a commit time fits its 56 bits");
            bytes.extend_from_slice(&header.time_us.to_be_bytes());
        }
        if self.is_encrypted() {
            bytes.extend_from_slice(&header.session.to_be_bytes());
            bytes.extend_from_slice(&header.tag);
        }
        bytes.extend_from_slice(&header.payload_checksum.to_be_bytes());
        let checksum = self.header_checksum(position, &bytes);
        bytes.extend_from_slice(&checksum.to_be_bytes());
        bytes
    }

    /// The header at `position`, at the start of `bytes`; `None` if they are not a valid header, or one written for
    /// another position.
    pub(super) fn decode(self, position: LogPosition, bytes: &[u8]) -> Option<FrameHeader> {
        let bytes = bytes.get(..self.header_bytes() as usize)?;
        let kind = match bytes[0] >> 6 {
            1 => FrameKind::Data,
            2 => FrameKind::Mark,
            3 => FrameKind::Seal,
            _ => return None,
        };
        let time_us = if self.version == Version::One { 0 } else { read_u64(bytes, 16) };
        let (session, tag) = match self.version {
            Version::Encrypted => (read_u64(bytes, 24), *bytes[32..].first_chunk()?),
            Version::One | Version::Two => (0, [0; TAG_BYTES]),
        };
        let header = FrameHeader {
            version: self.version,
            kind,
            session,
            tag,
            payload_bytes: read_u32(bytes, 0) & PAYLOAD_BYTES_MAX as u32,
            durable: read_u32(bytes, 4),
            first_sequence: Sequence::new(read_u64(bytes, 8)),
            time_us,
            payload_checksum: read_u32(bytes, self.version.checksums_at()),
        };
        let plausible = header.durable <= position.offset() && time_us < TIME_END;
        let covered = self.version.checksums_at() + 4;
        (plausible && read_u32(bytes, covered) == self.header_checksum(position, &bytes[..covered])).then_some(header)
    }

    /// What the tag of a header covers.
    pub(super) fn authenticated(self, header: &FrameHeader) -> SmallVec<[u8; 64]> {
        let mut bytes = SmallVec::new();
        bytes.extend_from_slice(&((header.kind as u32) << 30 | header.payload_bytes).to_be_bytes());
        bytes.extend_from_slice(&header.durable.to_be_bytes());
        bytes.extend_from_slice(&header.first_sequence.get().to_be_bytes());
        bytes.extend_from_slice(&header.time_us.to_be_bytes());
        bytes.extend_from_slice(&header.session.to_be_bytes());
        bytes.extend_from_slice(&header.payload_checksum.to_be_bytes());
        bytes
    }

    /// The only format of this version, with this key, with which these bytes are a valid header at `position`:
    /// computes the checksum backwards.
    pub(super) fn of_header(version: Version, key: u32, position: LogPosition, bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..version.header_bytes() as usize)?;
        let covered = version.checksums_at() + 4;
        let mut remainder = !read_u32(bytes, covered);
        for &byte in position.to_u64().to_be_bytes().iter().chain(&bytes[..covered]).rev() {
            for _ in 0..8 {
                let carried = remainder >> 31;
                remainder = (remainder ^ (carried * POLYNOMIAL)) << 1 | carried;
            }
            remainder ^= u32::from(byte);
        }
        Some(FrameFormat { version, seed: ChecksumSeed { mask: !remainder, is_opened: key != 0 }, key })
    }

    fn header_checksum(self, position: LogPosition, covered: &[u8]) -> u32 {
        crc32c::crc32c_append(self.seed.mask_at(position), covered)
    }
}

/// The CRC32C polynomial, bit-reversed as in the checksum.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Kind of a frame. 0 is unused, so that zeros are not a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameKind {
    /// A transaction.
    Data = 1,
    /// Records what is durable and which segments exist.
    Mark = 2,
    /// The last frame of a segment that another one follows.
    Seal = 3,
}

/// A frame header whose checksum matches its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) version: Version,
    pub(super) kind: FrameKind,
    pub(super) payload_bytes: u32,
    /// Offset in the same segment.
    pub(super) durable: u32,
    pub(super) first_sequence: Sequence,
    /// Commit time, in microseconds since 1970; 0 in segments of version 1.
    pub(super) time_us: u64,
    pub(super) payload_checksum: u32,
    /// In encrypted segments: the opening of the log that wrote the frame.
    pub(super) session: Session,
    pub(super) tag: [u8; TAG_BYTES],
}

impl FrameHeader {
    /// Length of the whole frame including padding, in bytes.
    pub(super) fn frame_bytes(&self) -> u32 {
        self.version.frame_bytes(self.payload_bytes as usize)
    }

    /// The checksum that the header of a frame claims for its payload, and the payload's length, whether or not the
    /// header is valid; `None` if the bytes can't be a header.
    pub(super) fn claims(version: Version, bytes: &[u8]) -> Option<(u32, usize)> {
        let bytes = bytes.get(..version.header_bytes() as usize)?;
        let word = read_u32(bytes, 0);
        let checksum = read_u32(bytes, version.checksums_at());
        (word >> 30 != 0).then_some((checksum, word as usize & PAYLOAD_BYTES_MAX))
    }
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn read_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from(read_u32(bytes, at)) << 32 | u64::from(read_u32(bytes, at + 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMATS: [FrameFormat; 3] = [
        FrameFormat { version: Version::One, seed: seed(77), key: 0 },
        FrameFormat { version: Version::Two, seed: seed(77), key: 0 },
        FrameFormat { version: Version::Encrypted, seed: ChecksumSeed { mask: 77, is_opened: true }, key: 5 },
    ];

    const fn seed(mask: u32) -> ChecksumSeed {
        ChecksumSeed { mask, is_opened: false }
    }

    fn sample(version: Version) -> FrameHeader {
        FrameHeader {
            version,
            kind: FrameKind::Data,
            payload_bytes: 300,
            durable: 64,
            first_sequence: Sequence::new(u64::MAX - 5),
            time_us: if version == Version::One { 0 } else { TIME_END - 1 },
            payload_checksum: 0xdead_beef,
            session: if version == Version::Encrypted { 99 } else { 0 },
            tag: if version == Version::Encrypted { [7; TAG_BYTES] } else { [0; TAG_BYTES] },
        }
    }

    #[test]
    fn header_is_valid_only_at_its_position() {
        let position = LogPosition::new(7, 4096);
        for format in FORMATS {
            let header = sample(format.version);
            let bytes = format.encode(&header, position);
            assert_eq!(format.decode(position, &bytes), Some(header));
            assert_eq!(format.decode(LogPosition::new(8, 4096), &bytes), None);
            assert_eq!(format.decode(LogPosition::new(7, 4104), &bytes), None);
            assert_eq!(FrameFormat { seed: seed(78), ..format }.decode(position, &bytes), None);
            assert_eq!(format.decode(position, &bytes[1..]), None);
        }
    }

    #[test]
    fn header_checksum_detects_every_bit_flip() {
        let position = LogPosition::new(1, 64);
        for format in FORMATS {
            let bytes = format.encode(&sample(format.version), position);
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(format.decode(position, &flipped), None, "bit {bit}");
            }
        }
    }

    #[test]
    fn format_is_recovered_from_a_header() {
        for (segment, offset) in [(1, 64), (7, 4096), (3_000_000_000, 0xffff_fff0)] {
            let position = LogPosition::new(segment, offset);
            for mask in [77, 0, u32::MAX, crc32c::crc32c(b"a database's id!")] {
                for format in FORMATS {
                    let format = FrameFormat { seed: ChecksumSeed { mask, ..format.seed }, ..format };
                    let bytes = format.encode(&sample(format.version), position);
                    assert_eq!(FrameFormat::of_header(format.version, format.key, position, &bytes), Some(format));
                }
            }
        }
    }

    #[test]
    fn zeros_are_not_a_frame() {
        for format in FORMATS {
            assert_eq!(format.decode(LogPosition::START, &[0; HEADER_BYTES_MAX]), None);
        }
    }

    #[test]
    fn frame_lengths_are_multiples_of_eight() {
        assert_eq!(Version::One.frame_bytes(0), 24);
        assert_eq!(Version::Two.frame_bytes(0), 32);
        assert_eq!(Version::Two.frame_bytes(1), 40);
        assert_eq!(Version::Two.frame_bytes(8), 40);
        assert_eq!(Version::Two.frame_bytes(PAYLOAD_BYTES_MAX) % ALIGNMENT, 0);
    }
}
