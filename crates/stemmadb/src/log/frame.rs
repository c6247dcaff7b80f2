//! Frame format: one transaction, made atomic by its checksums.
//!
//! Layout, big-endian, at an offset divisible by 8:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | kind in the upper 2 bits, payload length in the lower 30 |
//! | 4 | 4 | durable: everything in this segment before this offset was flushed when the frame was written |
//! | 8 | 8 | sequence of the first change in the frame |
//! | 16 | 4 | CRC32C of the payload |
//! | 20 | 4 | CRC32C of database id, segment number, offset and the 20 bytes above |
//! | 24 | | payload, then zeros to the next multiple of 8 |
//!
//! Invariants:
//! - A frame is valid only at the position it was written for, so bytes from a recycled file's previous use are never
//!   valid frames.
//! - Without knowing the database's id, nobody can craft a payload that contains a valid frame.
//! - Zeros are not a valid frame.
//! - Everything in an earlier segment was flushed before the first frame of a later segment was written.
//!
//! The header has its own checksum so that searching arbitrary bytes for frames costs a checksum of 20 bytes per
//! offset, regardless of the frame length those bytes seem to announce.

use super::position::LogPosition;
use super::segment::DatabaseId;
use crate::revision::Sequence;

pub(super) const FRAME_HEADER_BYTES: u32 = 24;

/// Frames start at multiples of this.
pub(super) const ALIGNMENT: u32 = 8;

/// The longest payload of one frame.
pub(super) const PAYLOAD_BYTES_MAX: usize = (1 << 30) - 1;

/// Checksum seed of a database: makes its frames invalid in any other database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seed(u32);

impl Seed {
    pub(super) fn of(database_id: &DatabaseId) -> Self {
        Seed(crc32c::crc32c(database_id))
    }

    /// The only seed with which these bytes are a valid header at `position`: computes the checksum backwards.
    pub(super) fn of_header(position: LogPosition, bytes: &[u8; FRAME_HEADER_BYTES as usize]) -> Self {
        let mut remainder = !read_u32(bytes, 20);
        for &byte in seeded_bytes(position, bytes).iter().rev() {
            for _ in 0..8 {
                let carried = remainder >> 31;
                remainder = (remainder ^ (carried * POLYNOMIAL)) << 1 | carried;
            }
            remainder ^= u32::from(byte);
        }
        Seed(!remainder)
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
    pub(super) kind: FrameKind,
    pub(super) payload_bytes: u32,
    /// Offset in the same segment.
    pub(super) durable: u32,
    pub(super) first_sequence: Sequence,
    pub(super) payload_checksum: u32,
}

impl FrameHeader {
    pub(super) fn encode(&self, seed: Seed, position: LogPosition) -> [u8; FRAME_HEADER_BYTES as usize] {
        debug_assert!(position.offset().is_multiple_of(ALIGNMENT), "frames start at multiples of {ALIGNMENT}");
        debug_assert!(self.payload_bytes as usize <= PAYLOAD_BYTES_MAX, "the payload length fits its 30 bits");
        debug_assert!(self.durable <= position.offset(), "a frame can't claim that bytes after itself are durable");
        let mut bytes = [0; FRAME_HEADER_BYTES as usize];
        bytes[0..4].copy_from_slice(&((self.kind as u32) << 30 | self.payload_bytes).to_be_bytes());
        bytes[4..8].copy_from_slice(&self.durable.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.first_sequence.get().to_be_bytes());
        bytes[16..20].copy_from_slice(&self.payload_checksum.to_be_bytes());
        let checksum = header_checksum(seed, position, &bytes);
        bytes[20..24].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    /// The header at `position`; `None` if the bytes are not a valid header, or one written for another position.
    pub(super) fn decode(seed: Seed, position: LogPosition, bytes: &[u8; FRAME_HEADER_BYTES as usize]) -> Option<Self> {
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
        let plausible = header.durable <= position.offset();
        (plausible && read_u32(bytes, 20) == header_checksum(seed, position, bytes)).then_some(header)
    }

    /// Length of the whole frame including padding, in bytes.
    pub(super) fn frame_bytes(&self) -> u32 {
        frame_bytes(self.payload_bytes as usize)
    }
}

/// Length of a frame with a payload of `payload_bytes`, in bytes.
pub(super) fn frame_bytes(payload_bytes: usize) -> u32 {
    debug_assert!(payload_bytes <= PAYLOAD_BYTES_MAX, "the payload length fits its 30 bits");
    (FRAME_HEADER_BYTES + payload_bytes as u32).next_multiple_of(ALIGNMENT)
}

fn header_checksum(seed: Seed, position: LogPosition, bytes: &[u8; FRAME_HEADER_BYTES as usize]) -> u32 {
    crc32c::crc32c_append(seed.0, &seeded_bytes(position, bytes))
}

/// The bytes covered by the header checksum, apart from the database id.
fn seeded_bytes(position: LogPosition, bytes: &[u8; FRAME_HEADER_BYTES as usize]) -> [u8; 28] {
    let mut seeded = [0; 28];
    seeded[..8].copy_from_slice(&position.to_u64().to_be_bytes());
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
    fn header_is_valid_only_at_its_position() {
        let position = LogPosition::new(7, 4096);
        let bytes = sample().encode(SEED, position);
        assert_eq!(FrameHeader::decode(SEED, position, &bytes), Some(sample()));
        assert_eq!(FrameHeader::decode(SEED, LogPosition::new(8, 4096), &bytes), None);
        assert_eq!(FrameHeader::decode(SEED, LogPosition::new(7, 4104), &bytes), None);
        assert_eq!(FrameHeader::decode(Seed(78), position, &bytes), None);
    }

    #[test]
    fn header_checksum_detects_every_bit_flip() {
        let position = LogPosition::new(1, 64);
        let bytes = sample().encode(SEED, position);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(FrameHeader::decode(SEED, position, &flipped), None, "bit {bit}");
        }
    }

    #[test]
    fn seed_is_recovered_from_a_header() {
        for (segment, offset) in [(1, 64), (7, 4096), (3_000_000_000, 0xffff_fff0)] {
            let position = LogPosition::new(segment, offset);
            for seed in [SEED, Seed(0), Seed(u32::MAX), Seed::of(b"a database's id!")] {
                let bytes = sample().encode(seed, position);
                assert_eq!(Seed::of_header(position, &bytes), seed);
            }
        }
    }

    #[test]
    fn zeros_are_not_a_frame() {
        assert_eq!(FrameHeader::decode(SEED, LogPosition::START, &[0; 24]), None);
    }

    #[test]
    fn frame_lengths_are_multiples_of_eight() {
        assert_eq!(frame_bytes(0), 24);
        assert_eq!(frame_bytes(1), 32);
        assert_eq!(frame_bytes(8), 32);
        assert_eq!(frame_bytes(PAYLOAD_BYTES_MAX) % ALIGNMENT, 0);
    }
}
