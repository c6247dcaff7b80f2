//! Document numbers and path numbers, and an order-preserving encoding of integers.

use smallvec::SmallVec;

use crate::{Error, Result};

/// The number of a document, assigned at its first insert and never reused. Postings are sets of document numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DocumentNumber(pub(crate) u64);

impl DocumentNumber {
    pub(crate) const MIN: DocumentNumber = DocumentNumber(0);
    pub(crate) const MAX: DocumentNumber = DocumentNumber(u64::MAX);

    pub(crate) const fn from_parts(chunk: u64, low: u16) -> Self {
        DocumentNumber(chunk << 16 | low as u64)
    }

    /// The chunk of 65,536 numbers that contains this one.
    pub(crate) const fn chunk(self) -> u64 {
        self.0 >> 16
    }

    /// The position in its chunk.
    pub(crate) const fn low(self) -> u16 {
        self.0 as u16
    }
}

/// The number of chunks in the second window of a search.
const WINDOW_GROWTH: u64 = 8;

/// Consecutive chunks of document numbers: from `start` up to `end`, excluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Window {
    /// The number of document numbers in a chunk.
    pub(crate) const CHUNK_LENGTH: u64 = 1 << 16;

    pub(crate) const ALL: Window = Window { start: 0, end: u64::MAX };

    /// The window of one chunk.
    pub(crate) const fn of(chunk: u64) -> Self {
        Window { start: chunk, end: chunk + 1 }
    }

    /// The next, larger window of a search; `None` after the last.
    pub(crate) const fn following(self) -> Option<Self> {
        let length = self.end - self.start;
        match self.end {
            u64::MAX => None,
            start if length == 1 => Some(Window { start, end: start + WINDOW_GROWTH }),
            start => Some(Window { start, end: u64::MAX }),
        }
    }

    pub(crate) const fn has(self, chunk: u64) -> bool {
        self.start <= chunk && chunk < self.end
    }
}

/// The number of a path, assigned at its first use; see [`Paths`](super::Paths).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PathNumber(pub(crate) u32);

impl PathNumber {
    /// The empty path: the document itself.
    pub(crate) const ROOT: PathNumber = PathNumber(0);
}

/// The maximum length of the encoding of [`put_ordered`].
const ORDERED_BYTES_MAX: usize = 9;

/// Appends the order-preserving, self-delimiting encoding of an integer in 1 to 9 bytes. The length is the number of
/// leading ones of the first byte, plus one.
pub(crate) fn put_ordered(value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&ordered_bytes(value));
}

/// The encoding of [`put_ordered`].
pub(crate) fn ordered_bytes(value: u64) -> SmallVec<[u8; ORDERED_BYTES_MAX]> {
    if value < 0x80 {
        return SmallVec::from_slice(&[value as u8]);
    }
    let bits = (u64::BITS - value.leading_zeros()) as usize;
    let length = bits.div_ceil(7).min(ORDERED_BYTES_MAX);
    let mut bytes = [0; ORDERED_BYTES_MAX];
    bytes[1..].copy_from_slice(&value.to_be_bytes());
    let bytes = &mut bytes[ORDERED_BYTES_MAX - length..];
    bytes[0] |= !(0xff_u8.checked_shr(length as u32 - 1).unwrap_or(0));
    debug_assert_eq!(ordered_length(bytes[0]), length, "the first byte of an ordered integer gives its length");
    SmallVec::from_slice(bytes)
}

/// The length of an encoded integer with this first byte.
fn ordered_length(first: u8) -> usize {
    first.leading_ones() as usize + 1
}

/// Decodes an integer from the front of `input` and advances it.
///
/// # Errors
/// `Corrupt` if the bytes end early or the encoding is not the shortest.
pub(crate) fn take_ordered(input: &mut &[u8]) -> Result<u64> {
    let damaged = || Error::corrupt("an index key is damaged");
    let &first = input.first().ok_or_else(damaged)?;
    let length = ordered_length(first);
    let (bytes, rest) = input.split_at_checked(length).ok_or_else(damaged)?;
    *input = rest;
    let first = first & 0x7f_u8.checked_shr(length as u32 - 1).unwrap_or(0);
    let value = bytes[1..].iter().fold(u64::from(first), |value, &byte| value << 8 | u64::from(byte));
    // Each integer has one encoding only, so that a key is found by its bytes.
    let is_shortest = length == 1 || value >> (7 * (length - 1)) != 0;
    if is_shortest { Ok(value) } else { Err(damaged()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ordered_integers_have_the_documented_lengths() {
        for (value, length) in [(0, 1), (127, 1), (128, 2), (16_383, 2), (16_384, 3), (1 << 55, 8), (u64::MAX >> 8, 8)]
        {
            assert_eq!(ordered_bytes(value).len(), length, "{value}");
        }
        assert_eq!(ordered_bytes(128).as_slice(), [0x80, 0x80]);
        assert_eq!(ordered_bytes(u64::MAX).as_slice(), [0xff; 9]);
        assert_eq!(ordered_bytes(1 << 56).as_slice(), [0xff, 1, 0, 0, 0, 0, 0, 0, 0]);
        for bad in [&[][..], &[0x80], &[0x80, 0x7f], &[0xff; 8], &[0xff, 0, 1, 1, 1, 1, 1, 1, 1]] {
            assert!(take_ordered(&mut &bad[..]).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn ordered_integers_round_trip_and_sort(a: u64, b: u64, cut in 0..64u32) {
            let (a, b) = (a >> cut, b >> cut.saturating_sub(3));
            prop_assert_eq!(a.cmp(&b), ordered_bytes(a).cmp(&ordered_bytes(b)));
            let mut input = &ordered_bytes(a)[..];
            prop_assert_eq!(take_ordered(&mut input).unwrap(), a);
            prop_assert!(input.is_empty());
        }

        #[test]
        fn random_bytes_are_rejected_or_canonical(bytes in prop::collection::vec(any::<u8>(), 0..12)) {
            let mut input = &bytes[..];
            if let Ok(value) = take_ordered(&mut input) {
                prop_assert_eq!(&bytes[..bytes.len() - input.len()], &ordered_bytes(value)[..]);
            }
        }
    }

    #[test]
    fn a_document_number_is_its_chunk_and_position() {
        let number = DocumentNumber(0x1_2345);
        assert_eq!((number.chunk(), number.low()), (1, 0x2345));
        assert_eq!(DocumentNumber::from_parts(1, 0x2345), number);
    }
}
