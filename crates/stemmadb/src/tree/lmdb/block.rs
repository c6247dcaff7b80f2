//! Block format: consecutive rows stored as one LMDB row.
//!
//! Stored individually, a short row takes more space in LMDB's headers and half-filled pages than in its own bytes. A
//! block also stores the common prefix of its keys only once. The LMDB key of a block is its *fence*.
//!
//! ```text
//! 1 byte     prefix: length of the part of the fence that all keys start with
//! 1 byte     number of rows
//! upper      length, bytes: the fence of the next block; empty in the last block of a table
//! ends       2 bytes each, big-endian: end of each row but the last, relative to the start of the rows
//! rows       length of the rest of the key, the rest, the value
//! ```
//!
//! A length takes one byte up to 127, otherwise two, the first of them with its high bit set.
//!
//! Invariants:
//! - The first fence of a table is [`FIRST_FENCE`], and each block names the next: blocks cover the key space without
//!   gaps, so a reader detects a missing one.
//! - A block's keys are sorted, not below its fence, and below its upper fence.
//! - A block of more than one row is no longer than [`capacity`].

/// Not greater than any key.
pub(super) const FIRST_FENCE: &[u8] = &[0];
/// Maximum length of fence and block together, so that LMDB can store four on a page: a quarter of 4,080 bytes, less
/// LMDB's 10 bytes per row, the 4-byte checksum, and one for even alignment.
const BLOCK_BYTES_MAX: usize = 1_005;
const ROWS_MAX: usize = 255;
const PREFIX_MAX: usize = 255;
const HEADER_BYTES: usize = 2;
const END_BYTES: usize = 2;
const SHORT_MAX: usize = 0x7f;

/// Maximum length of a block of several rows under this fence.
pub(super) fn capacity(fence: &[u8]) -> usize {
    BLOCK_BYTES_MAX - fence.len()
}

/// A stored block, read without trusting its bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block<'a> {
    fence: &'a [u8],
    upper: &'a [u8],
    prefix_bytes: usize,
    count: usize,
    ends: &'a [[u8; END_BYTES]],
    rows: &'a [u8],
}

impl<'a> Block<'a> {
    /// Parses the header of a block; `None` if it is damaged.
    #[inline]
    pub(super) fn parse(fence: &'a [u8], stored: &'a [u8]) -> Option<Self> {
        let (&[prefix_bytes, count], mut rest) = stored.split_first_chunk::<HEADER_BYTES>()?;
        let (prefix_bytes, count) = (usize::from(prefix_bytes), usize::from(count));
        let upper = take_short(&mut rest)?;
        let (ends, rows) = rest.split_at_checked(END_BYTES * count.saturating_sub(1))?;
        (prefix_bytes <= fence.len()).then_some(Block {
            fence,
            upper,
            prefix_bytes,
            count,
            ends: ends.as_chunks().0,
            rows,
        })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Approximate stored length: the length of its rows.
    pub(super) fn byte_count(&self) -> usize {
        1 + self.rows.len()
    }

    pub(super) fn fence(&self) -> &'a [u8] {
        self.fence
    }

    /// The fence of the next block; empty if this is the last one.
    pub(super) fn upper(&self) -> &'a [u8] {
        self.upper
    }

    /// The common prefix of all keys.
    pub(super) fn prefix(&self) -> &'a [u8] {
        &self.fence[..self.prefix_bytes]
    }

    /// Whether `key` belongs to this block.
    #[inline]
    pub(super) fn covers(&self, key: &[u8]) -> bool {
        covers(self.fence, self.upper, key)
    }

    /// The rest of the key of row `index` after the prefix, and its value.
    #[inline]
    pub(super) fn row(&self, index: usize) -> Option<(&'a [u8], &'a [u8])> {
        let end_of = |index: usize| self.ends.get(index).map(|end| usize::from(u16::from_be_bytes(*end)));
        let start = if index == 0 { 0 } else { end_of(index - 1)? };
        let end = if index + 1 == self.count { self.rows.len() } else { end_of(index)? };
        let mut row = self.rows.get(start..end)?;
        let rest = take_short(&mut row)?;
        Some((rest, row))
    }

    /// The number of rows with keys below `key`, or not above it if `after`.
    #[inline]
    pub(super) fn search(&self, key: &[u8], after: bool) -> Option<usize> {
        let prefix = self.prefix();
        let Some(rest) = key.strip_prefix(prefix) else {
            return Some(if key < prefix { 0 } else { self.count });
        };
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = (low + high) / 2;
            let (found, _) = self.row(middle)?;
            if found < rest || (after && found == rest) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Some(low)
    }

    /// The value of `key`, if it exists; `None` if the block is damaged.
    #[inline]
    pub(super) fn get(&self, key: &[u8]) -> Option<Option<&'a [u8]>> {
        let index = self.search(key, false)?;
        if index == self.count {
            return Some(None);
        }
        let (rest, value) = self.row(index)?;
        let prefix = self.prefix();
        let is_match = key.len() == prefix.len() + rest.len() && key.ends_with(rest) && key.starts_with(prefix);
        Some(is_match.then_some(value))
    }

    /// Whether the rows are sorted and between the fences.
    pub(super) fn is_sound(&self) -> bool {
        let mut previous: Option<&[u8]> = None;
        for index in 0..self.count {
            let Some((rest, _)) = self.row(index) else { return false };
            let in_order = match previous {
                None => rest >= &self.fence[self.prefix_bytes..],
                Some(previous) => previous < rest,
            };
            if !in_order {
                return false;
            }
            previous = Some(rest);
        }
        let last = previous.map(|rest| [self.prefix(), rest].concat());
        self.upper.is_empty() || (self.fence < self.upper && last.is_none_or(|last| last.as_slice() < self.upper))
    }
}

/// Whether a block between these fences covers `key`.
#[inline]
pub(super) fn covers(fence: &[u8], upper: &[u8], key: &[u8]) -> bool {
    fence <= key && (upper.is_empty() || key < upper)
}

/// Rows of a block that is being modified: whole keys, in order.
pub(super) trait Rows {
    fn len(&self) -> usize;
    fn key(&self, index: usize) -> &[u8];
    fn value(&self, index: usize) -> &[u8];
}

/// Appends the block with the rows in `range`, all of which are between the fences.
pub(super) fn encode(fence: &[u8], upper: &[u8], rows: &impl Rows, range: std::ops::Range<usize>, out: &mut Vec<u8>) {
    debug_assert!(range.len() <= ROWS_MAX, "the number of rows fits its byte");
    debug_assert!(
        range.clone().all(|index| covers(fence, upper, rows.key(index))),
        "the keys of a block are between its fences"
    );
    debug_assert!(
        range.clone().skip(1).all(|index| rows.key(index - 1) < rows.key(index)),
        "the keys of a block are sorted and distinct"
    );
    let block_start = out.len();
    let prefix_bytes = range.clone().next_back().map_or(0, |last| common(fence, rows.key(last)));
    out.extend([prefix_bytes as u8, range.len() as u8]);
    put_short(upper, out);
    let ends = out.len();
    out.resize(ends + END_BYTES * range.len().saturating_sub(1), 0);
    let start = out.len();
    for (at, index) in range.clone().enumerate() {
        put_short(&rows.key(index)[prefix_bytes..], out);
        out.extend_from_slice(rows.value(index));
        if at + 1 < range.len() {
            let end = (out.len() - start) as u16;
            out[ends + END_BYTES * at..][..END_BYTES].copy_from_slice(&end.to_be_bytes());
        }
    }
    debug_assert!(
        range.len() <= 1 || out.len() - block_start <= capacity(fence),
        "a block of several rows fits its capacity"
    );
}

/// The fences and row range of one block to be encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BlockRange {
    pub(super) fence: Vec<u8>,
    pub(super) upper: Vec<u8>,
    pub(super) range: std::ops::Range<usize>,
}

/// Splits rows between two fences into the smallest number of blocks of about equal length. At the end of a table,
/// where rows are appended, all blocks but the last are full.
pub(super) fn split_into_blocks(fence: &[u8], upper: &[u8], rows: &impl Rows) -> Vec<BlockRange> {
    let block_range =
        |fence: &[u8], upper: &[u8], range| BlockRange { fence: fence.to_vec(), upper: upper.to_vec(), range };
    let Some(last) = rows.len().checked_sub(1) else { return vec![block_range(fence, upper, 0..0)] };
    // A block may share a longer prefix than this and be shorter than computed.
    let prefix_bytes = common(fence, rows.key(last));
    let row_bytes =
        |index: usize| END_BYTES + short_bytes(rows.key(index).len() - prefix_bytes) + rows.value(index).len();
    let head_bytes = |upper: &[u8]| HEADER_BYTES + short_bytes(upper.len());
    let total_bytes: usize = head_bytes(upper) + (0..=last).map(row_bytes).sum::<usize>();
    let target_bytes = match upper {
        [] => usize::MAX,
        _ => total_bytes.div_ceil(total_bytes.div_ceil(capacity(fence))),
    };
    let mut block_ranges: Vec<BlockRange> = Vec::new();
    let (mut start, mut fence) = (0, fence);
    let mut bytes = 0;
    for index in 0..=last {
        let end = if index == last { upper } else { separator(rows.key(index), rows.key(index + 1)) };
        let fits = head_bytes(end) + bytes + row_bytes(index) <= capacity(fence) && index - start < ROWS_MAX;
        if index > start && (!fits || bytes + row_bytes(index) / 2 >= target_bytes) {
            let separator = separator(rows.key(index - 1), rows.key(index));
            block_ranges.push(block_range(fence, separator, start..index));
            (start, fence, bytes) = (index, separator, 0);
        }
        bytes += row_bytes(index);
    }
    block_ranges.push(block_range(fence, upper, start..last + 1));
    block_ranges
}

/// Encoded length of `length` bytes by [`put_short`].
fn short_bytes(length: usize) -> usize {
    length + if length > SHORT_MAX { 2 } else { 1 }
}

/// The shortest prefix of `key` that is above `previous`, which must be below `key`.
fn separator<'k>(previous: &[u8], key: &'k [u8]) -> &'k [u8] {
    debug_assert!(previous < key, "rows are sorted");
    let shared = previous.iter().zip(key).take_while(|(a, b)| a == b).count();
    &key[..(shared + 1).min(key.len())]
}

/// The length of the common prefix, as far as a block can store it.
fn common(fence: &[u8], key: &[u8]) -> usize {
    fence.iter().zip(key).take(PREFIX_MAX).take_while(|(a, b)| a == b).count()
}

/// Appends a length and the bytes. Keys are at most 511 bytes long.
fn put_short(bytes: &[u8], out: &mut Vec<u8>) {
    debug_assert!(bytes.len() <= super::super::KEY_BYTES_MAX, "a length takes at most two bytes");
    if bytes.len() > SHORT_MAX {
        out.push(0x80 | (bytes.len() >> 8) as u8);
    }
    out.push(bytes.len() as u8);
    out.extend_from_slice(bytes);
}

#[inline]
fn take_short<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (&first, rest) = input.split_first()?;
    let (length, rest) = if usize::from(first) <= SHORT_MAX {
        (usize::from(first), rest)
    } else {
        let (&second, rest) = rest.split_first()?;
        (usize::from(first & 0x7f) << 8 | usize::from(second), rest)
    };
    let (bytes, rest) = rest.split_at_checked(length)?;
    *input = rest;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    struct RowList(Vec<(Vec<u8>, Vec<u8>)>);

    impl Rows for RowList {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn key(&self, index: usize) -> &[u8] {
            &self.0[index].0
        }

        fn value(&self, index: usize) -> &[u8] {
            &self.0[index].1
        }
    }

    fn rows() -> impl Strategy<Value = BTreeMap<Vec<u8>, Vec<u8>>> {
        let key = prop_oneof![
            prop::collection::vec(5..8_u8, 1..6),
            (any::<u8>(), 1..511_usize).prop_map(|(byte, length)| vec![byte.max(1); length]),
        ];
        let value = prop_oneof![
            9 => prop::collection::vec(any::<u8>(), 0..30),
            1 => (0..4_000_usize).prop_map(|length| vec![1; length]),
        ];
        prop::collection::btree_map(key, value, 0..300)
    }

    proptest! {
        #[test]
        fn rows_round_trip_through_blocks(rows in rows(), has_upper: bool) {
            let upper: &[u8] = if has_upper { &[0xff; 511] } else { b"" };
            let is_below = |key: &[u8]| upper.is_empty() || key < upper;
            let row_list = RowList(rows.clone().into_iter().filter(|(key, _)| is_below(key)).collect());
            let block_ranges = split_into_blocks(FIRST_FENCE, upper, &row_list);
            let mut fence = FIRST_FENCE.to_vec();
            let mut seen = 0;
            for block_range in &block_ranges {
                prop_assert_eq!(&block_range.fence, &fence);
                prop_assert_eq!(block_range.range.start, seen);
                let mut stored = Vec::new();
                encode(&block_range.fence, &block_range.upper, &row_list, block_range.range.clone(), &mut stored);
                let block = Block::parse(&block_range.fence, &stored).unwrap();
                prop_assert!(block.is_sound());
                let fits = block.count() <= 1 || stored.len() <= capacity(&block_range.fence);
                prop_assert!(fits, "{} bytes", stored.len());
                for (at, (key, value)) in row_list.0.iter().enumerate() {
                    let expected = block_range.range.contains(&at).then_some(value.as_slice());
                    prop_assert_eq!(block.covers(key), expected.is_some());
                    prop_assert_eq!(block.get(key).unwrap(), expected);
                    let below = at.clamp(block_range.range.start, block_range.range.end) - block_range.range.start;
                    prop_assert_eq!(block.search(key, false).unwrap(), below);
                    prop_assert_eq!(block.search(key, true).unwrap(), below + usize::from(expected.is_some()));
                    prop_assert_eq!(block.get(&[&key[..], b"\0"].concat()).unwrap().is_some(), false);
                }
                seen = block_range.range.end;
                fence = block_range.upper.clone();
            }
            prop_assert_eq!((seen, &*fence), (row_list.len(), upper));
        }

        #[test]
        fn random_bytes_never_panic(
            fence in prop::collection::vec(any::<u8>(), 1..9),
            bytes in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            if let Some(block) = Block::parse(&fence, &bytes) {
                block.is_sound();
                block.get(&bytes);
                let _ = (0..300).filter_map(|index| block.row(index)).count();
            }
        }
    }

    #[test]
    fn appended_rows_fill_blocks_and_inserted_rows_are_balanced() {
        let rows = RowList((0..100_u8).map(|number| (vec![1, number], vec![0; 30])).collect());
        let lengths = |upper| {
            split_into_blocks(FIRST_FENCE, upper, &rows)
                .iter()
                .map(|block_range| block_range.range.len())
                .collect::<Vec<_>>()
        };
        assert_eq!(lengths(b""), [28, 28, 28, 16]);
        assert_eq!(lengths(&[2]), [25, 25, 25, 25]);
    }
}
