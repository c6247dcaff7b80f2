//! Documents and paths as small integers, and integers as bytes that sort as they do.

use smallvec::SmallVec;

use crate::{Error, Result};

/// A document, counted from its first insert; never reused. Postings are sets of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DocumentNumber(pub(crate) u64);

impl DocumentNumber {
    pub(crate) const MIN: DocumentNumber = DocumentNumber(0);
    pub(crate) const MAX: DocumentNumber = DocumentNumber(u64::MAX);

    pub(crate) const fn from_parts(chunk: u64, low: u16) -> Self {
        DocumentNumber(chunk << 16 | low as u64)
    }

    /// Which 65,536 documents it is among.
    pub(crate) const fn chunk(self) -> u64 {
        self.0 >> 16
    }

    /// Which of them it is.
    pub(crate) const fn low(self) -> u16 {
        self.0 as u16
    }
}

/// How many chunks the second window of a search has.
const WINDOW_GROWTH: u64 = 8;

/// Consecutive chunks of document numbers: from `start` up to `end`, without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Window {
    /// How many numbers a chunk has.
    pub(crate) const CHUNK_LENGTH: u64 = 1 << 16;

    pub(crate) const ALL: Window = Window { start: 0, end: u64::MAX };

    /// One chunk alone.
    pub(crate) const fn of(chunk: u64) -> Self {
        Window { start: chunk, end: chunk + 1 }
    }

    /// The window after this one, larger, if the search must go on; none after the last.
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

/// A path that some document has, counted from its first use; see [`Paths`](super::Paths).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PathNumber(pub(crate) u32);

impl PathNumber {
    /// The document itself.
    pub(crate) const ROOT: PathNumber = PathNumber(0);
}

/// The longest form that [`put_ordered`] writes.
const ORDERED_BYTES_MAX: usize = 9;

/// Appends an integer in 1 to 9 bytes that sort as the integers do and say how many they are: as many as the first byte
/// has leading ones, plus one.
pub(crate) fn put_ordered(value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&ordered(value));
}

/// What [`put_ordered`] writes.
pub(crate) fn ordered(value: u64) -> SmallVec<[u8; ORDERED_BYTES_MAX]> {
    if value < 0x80 {
        return SmallVec::from_slice(&[value as u8]);
    }
    let bits = (u64::BITS - value.leading_zeros()) as usize;
    let length = bits.div_ceil(7).min(ORDERED_BYTES_MAX);
    let mut bytes = [0; ORDERED_BYTES_MAX];
    bytes[1..].copy_from_slice(&value.to_be_bytes());
    let bytes = &mut bytes[ORDERED_BYTES_MAX - length..];
    bytes[0] |= !(0xff_u8.checked_shr(length as u32 - 1).unwrap_or(0));
    SmallVec::from_slice(bytes)
}

/// How many bytes an integer takes that begins with this byte.
fn ordered_length(first: u8) -> usize {
    first.leading_ones() as usize + 1
}

/// Takes an integer off the front of `input`.
pub(crate) fn take_ordered(input: &mut &[u8]) -> Result<u64> {
    let damaged = || Error::corrupt("an index key is damaged");
    let &first = input.first().ok_or_else(damaged)?;
    let length = ordered_length(first);
    let (bytes, rest) = input.split_at_checked(length).ok_or_else(damaged)?;
    *input = rest;
    let first = first & 0x7f_u8.checked_shr(length as u32 - 1).unwrap_or(0);
    let value = bytes[1..].iter().fold(u64::from(first), |value, &byte| value << 8 | u64::from(byte));
    // One form for each integer, so that a key is found by its bytes.
    let is_shortest = length == 1 || value >> (7 * (length - 1)) != 0;
    if is_shortest { Ok(value) } else { Err(damaged()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ordered_integers_have_the_stated_lengths() {
        for (value, length) in [(0, 1), (127, 1), (128, 2), (16_383, 2), (16_384, 3), (1 << 55, 8), (u64::MAX >> 8, 8)]
        {
            assert_eq!(ordered(value).len(), length, "{value}");
        }
        assert_eq!(ordered(128).as_slice(), [0x80, 0x80]);
        assert_eq!(ordered(u64::MAX).as_slice(), [0xff; 9]);
        assert_eq!(ordered(1 << 56).as_slice(), [0xff, 1, 0, 0, 0, 0, 0, 0, 0]);
        for bad in [&[][..], &[0x80], &[0x80, 0x7f], &[0xff; 8], &[0xff, 0, 1, 1, 1, 1, 1, 1, 1]] {
            assert!(take_ordered(&mut &bad[..]).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn ordered_integers_come_back_and_sort(a: u64, b: u64, cut in 0..64u32) {
            let (a, b) = (a >> cut, b >> cut.saturating_sub(3));
            prop_assert_eq!(a.cmp(&b), ordered(a).cmp(&ordered(b)));
            let mut input = &ordered(a)[..];
            prop_assert_eq!(take_ordered(&mut input).unwrap(), a);
            prop_assert!(input.is_empty());
        }

        #[test]
        fn random_bytes_are_refused_or_the_one_form(bytes in prop::collection::vec(any::<u8>(), 0..12)) {
            let mut input = &bytes[..];
            if let Ok(value) = take_ordered(&mut input) {
                prop_assert_eq!(&bytes[..bytes.len() - input.len()], &ordered(value)[..]);
            }
        }
    }

    #[test]
    fn a_document_number_is_its_chunk_and_its_place_there() {
        let number = DocumentNumber(0x1_2345);
        assert_eq!((number.chunk(), number.low()), (1, 0x2345));
        assert_eq!(DocumentNumber::from_parts(1, 0x2345), number);
    }
}
