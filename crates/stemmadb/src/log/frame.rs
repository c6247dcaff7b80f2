//! The bytes of one frame: a transaction, atomic by its checksums.
//!
//! Layout, big-endian, at an offset divisible by 8:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | kind in the upper 2 bits, payload length in the lower 30 |
//! | 4 | 4 | durable: everything in this segment before this offset was flushed when the frame was written |
//! | 8 | 8 | sequence of the first change in it |
//! | 16 | 4 | CRC32C of the payload |
//! | 20 | 4 | CRC32C of database id, segment number, offset and the 20 bytes above |
//! | 24 | | payload, then zeros to the next multiple of 8 |
//!
//! Invariants: a frame is valid only at the place it was written for, so bytes of a recycled file's former life never are;
//! and whoever does not know the database's id can't make a payload that holds one; zeros are no frame; whatever lies in an earlier segment was flushed before the first frame of a later one was written.
//! The header has a checksum of its own so that looking for frames in arbitrary bytes costs 20 bytes of checksum a place,
//! however long a frame those bytes seem to announce.

use super::position::LogPosition;
use super::segment::DatabaseId;
use crate::revision::Sequence;

pub(super) const FRAME_HEADER_BYTES: u32 = 24;

/// Frames begin at multiples of this.
pub(super) const ALIGNMENT: u32 = 8;

/// The longest payload of one frame.
pub(super) const PAYLOAD_BYTES_MAX: usize = (1 << 30) - 1;

/// What frames of one database have in their checksums and no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seed(u32);

impl Seed {
    pub(super) fn of(database_id: &DatabaseId) -> Self {
        Seed(crc32c::crc32c(database_id))
    }

    /// The one seed by which these bytes are a header at `place`: the checksum, calculated backwards.
    pub(super) fn of_header(place: LogPosition, bytes: &[u8; FRAME_HEADER_BYTES as usize]) -> Self {
        let mut remainder = !read_u32(bytes, 20);
        for &byte in seeded_bytes(place, bytes).iter().rev() {
            for _ in 0..8 {
                let carried = remainder >> 31;
                remainder = (remainder ^ (carried * POLYNOMIAL)) << 1 | carried;
            }
            remainder ^= u32::from(byte);
        }
        Seed(!remainder)
    }
}

/// CRC32C's, with its bits reversed as the checksum's are.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// What a frame is for. 0 is none, so that zeros are no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameKind {
    /// A transaction.
    Data = 1,
    /// Says what is durable, and which segments there are.
    Mark = 2,
    /// The last frame of a segment that another one follows.
    Seal = 3,
}

/// A frame's header, believed: its checksum fits its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) kind: FrameKind,
    pub(super) payload_bytes: u32,
    /// Offset in the same segment.
    pub(super) durable: u32,
    pub(super) first_sequence: Sequence,
    pub(super) payload_checksum: u32,
}

impl FrameHeader {
    pub(super) fn encode(&self, seed: Seed, place: LogPosition) -> [u8; FRAME_HEADER_BYTES as usize] {
        debug_assert!(place.offset().is_multiple_of(ALIGNMENT) && self.payload_bytes as usize <= PAYLOAD_BYTES_MAX);
        debug_assert!(self.durable <= place.offset());
        let mut bytes = [0; FRAME_HEADER_BYTES as usize];
        bytes[0..4].copy_from_slice(&((self.kind as u32) << 30 | self.payload_bytes).to_be_bytes());
        bytes[4..8].copy_from_slice(&self.durable.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.first_sequence.get().to_be_bytes());
        bytes[16..20].copy_from_slice(&self.payload_checksum.to_be_bytes());
        let checksum = header_checksum(seed, place, &bytes);
        bytes[20..24].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    /// The header at `place`, or none if these bytes are no frame's or another place's.
    pub(super) fn decode(seed: Seed, place: LogPosition, bytes: &[u8; FRAME_HEADER_BYTES as usize]) -> Option<Self> {
        let kind = match bytes[0] >> 6 {
            1 => FrameKind::Data,
            2 => FrameKind::Mark,
            3 => FrameKind::Seal,
            _ => return None,
        };
        let header = FrameHeader {
            kind,
            payload_bytes: read_u32(bytes, 0) & PAYLOAD_BYTES_MAX as u32,
            durable: read_u32(bytes, 4),
            first_sequence: Sequence::new(u64::from(read_u32(bytes, 8)) << 32 | u64::from(read_u32(bytes, 12))),
            payload_checksum: read_u32(bytes, 16),
        };
        let plausible = header.durable <= place.offset();
        (plausible && read_u32(bytes, 20) == header_checksum(seed, place, bytes)).then_some(header)
    }

    /// The whole frame with its padding, in bytes.
    pub(super) fn frame_bytes(&self) -> u32 {
        frame_bytes(self.payload_bytes as usize)
    }
}

/// The bytes a frame of `payload_bytes` takes.
pub(super) fn frame_bytes(payload_bytes: usize) -> u32 {
    debug_assert!(payload_bytes <= PAYLOAD_BYTES_MAX);
    (FRAME_HEADER_BYTES + payload_bytes as u32).next_multiple_of(ALIGNMENT)
}

fn header_checksum(seed: Seed, place: LogPosition, bytes: &[u8; FRAME_HEADER_BYTES as usize]) -> u32 {
    crc32c::crc32c_append(seed.0, &seeded_bytes(place, bytes))
}

/// What the checksum of a header is of, beside the database's id.
fn seeded_bytes(place: LogPosition, bytes: &[u8; FRAME_HEADER_BYTES as usize]) -> [u8; 28] {
    let mut seeded = [0; 28];
    seeded[..8].copy_from_slice(&place.to_u64().to_be_bytes());
    seeded[8..].copy_from_slice(&bytes[..20]);
    seeded
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: Seed = Seed(77);

    fn sample() -> FrameHeader {
        FrameHeader {
            kind: FrameKind::Data,
            payload_bytes: 300,
            durable: 64,
            first_sequence: Sequence::new(u64::MAX - 5),
            payload_checksum: 0xdead_beef,
        }
    }

    #[test]
    fn a_header_is_valid_at_its_place_only() {
        let place = LogPosition::new(7, 4096);
        let bytes = sample().encode(SEED, place);
        assert_eq!(FrameHeader::decode(SEED, place, &bytes), Some(sample()));
        assert_eq!(FrameHeader::decode(SEED, LogPosition::new(8, 4096), &bytes), None);
        assert_eq!(FrameHeader::decode(SEED, LogPosition::new(7, 4104), &bytes), None);
        assert_eq!(FrameHeader::decode(Seed(78), place, &bytes), None);
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let place = LogPosition::new(1, 64);
        let bytes = sample().encode(SEED, place);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(FrameHeader::decode(SEED, place, &flipped), None, "bit {bit}");
        }
    }

    #[test]
    fn a_header_tells_its_seed() {
        for (segment, offset) in [(1, 64), (7, 4096), (3_000_000_000, 0xffff_fff0)] {
            let place = LogPosition::new(segment, offset);
            for seed in [SEED, Seed(0), Seed(u32::MAX), Seed::of(b"a database's id!")] {
                let bytes = sample().encode(seed, place);
                assert_eq!(Seed::of_header(place, &bytes), seed);
            }
        }
    }

    #[test]
    fn zeros_are_no_frame() {
        assert_eq!(FrameHeader::decode(SEED, LogPosition::START, &[0; 24]), None);
    }

    #[test]
    fn frames_take_multiples_of_eight() {
        assert_eq!(frame_bytes(0), 24);
        assert_eq!(frame_bytes(1), 32);
        assert_eq!(frame_bytes(8), 32);
        assert_eq!(frame_bytes(PAYLOAD_BYTES_MAX) % ALIGNMENT, 0);
    }
}
