//! Block: a sorted part of a run file, the unit that is read, verified and cached.
//!
//! ```text
//! entries     one after another: shared × 4 + kind (varint); lengths of rest and value (4 bits each, 15: the varint
//!             that follows has what exceeds 15; that of the rest first); rest of the key; value
//! restarts    2 bytes each, little-endian: offset of every 16th entry, whose shared part is empty
//! count       2 bytes, little-endian: number of restarts, at least one
//! ```
//!
//! *Shared* is the number of leading bytes that a key has in common with the key before it; *rest* and *value* are the
//! lengths of the rest of the key and of the value.
//!
//! Invariants: the keys of a block are strictly ascending, and a block has at least one entry. No access trusts the
//! bytes: for any input the result is a value or `None`, which the caller reports as damage.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::varint;

/// A block is finished once it has this many bytes, by default. Larger blocks share more of their keys and need a
/// smaller index; a point lookup reads a whole block.
///
/// Every entry begins within these bytes, so two bytes hold its offset.
pub(super) const BLOCK_BYTES: usize = 8 << 10;

const RESTART_INTERVAL: usize = 16;
const OFFSET_BYTES: usize = size_of::<u16>();
/// A length from which on it does not fit into 4 bits.
const LONG: usize = 15;
/// Most keys are shorter.
const KEY_BYTES: usize = 48;

/// What an entry does to the row of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// The row has this value; older entries are hidden.
    Put = 0,
    /// There is no row; older entries are hidden.
    Delete = 1,
    /// The operand is combined with the older entries.
    Merge = 2,
}

impl Kind {
    fn from_code(code: u64) -> Option<Self> {
        match code {
            0 => Some(Kind::Put),
            1 => Some(Kind::Delete),
            2 => Some(Kind::Merge),
            _ => None,
        }
    }
}

/// Builds one block from ascending entries.
#[derive(Default)]
pub(super) struct BlockBuilder {
    bytes: Vec<u8>,
    restarts: Vec<u16>,
    entry_count: usize,
}

impl BlockBuilder {
    pub(super) fn is_empty(&self) -> bool {
        self.entry_count == 0
    }

    /// Its length if it were finished now.
    pub(super) fn byte_count(&self) -> usize {
        self.bytes.len() + OFFSET_BYTES * (self.restarts.len() + 1)
    }

    /// Appends an entry; its key is above all keys before it, and has `shared` leading bytes in common with the last.
    pub(super) fn add(&mut self, key: &[u8], shared: usize, kind: Kind, value: &[u8]) {
        let shared = if self.entry_count.is_multiple_of(RESTART_INTERVAL) {
            self.restarts.push(u16::try_from(self.bytes.len()).expect("a full block takes no further entry"));
            0
        } else {
            shared
        };
        let rest = &key[shared..];
        varint::write((shared as u64) << 2 | kind as u64, &mut self.bytes);
        self.bytes.push((rest.len().min(LONG) << 4 | value.len().min(LONG)) as u8);
        for bytes in [rest, value].into_iter().filter(|bytes| bytes.len() >= LONG) {
            varint::write((bytes.len() - LONG) as u64, &mut self.bytes);
        }
        self.bytes.extend_from_slice(rest);
        self.bytes.extend_from_slice(value);
        self.entry_count += 1;
    }

    /// Completes the block, calls `write` with its bytes, and starts the next one.
    pub(super) fn finish<T>(&mut self, write: impl FnOnce(&[u8]) -> T) -> T {
        debug_assert!(!self.is_empty(), "a block has at least one entry");
        for restart in &self.restarts {
            self.bytes.extend_from_slice(&restart.to_le_bytes());
        }
        self.bytes.extend_from_slice(&(self.restarts.len() as u16).to_le_bytes());
        let written = write(&self.bytes);
        self.bytes.clear();
        self.restarts.clear();
        self.entry_count = 0;
        written
    }
}

/// The number of leading bytes that two keys have in common.
#[inline]
pub(crate) fn common_prefix(left: &[u8], right: &[u8]) -> usize {
    const WORD: usize = size_of::<u64>();
    let (words, _) = left.as_chunks::<WORD>();
    let (other_words, _) = right.as_chunks::<WORD>();
    for (at, (word, other)) in words.iter().zip(other_words).enumerate() {
        let difference = u64::from_le_bytes(*word) ^ u64::from_le_bytes(*other);
        if difference != 0 {
            return WORD * at + difference.trailing_zeros() as usize / 8;
        }
    }
    let start = WORD * words.len().min(other_words.len());
    let is_equal = |(left, right): &(&u8, &u8)| left == right;
    start + left[start..].iter().zip(&right[start..]).take_while(is_equal).count()
}

/// The first 8 bytes of a key as a number in the order of keys; zeros follow a shorter key.
#[inline]
pub(crate) fn key_head(key: &[u8]) -> u64 {
    match key.first_chunk() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => key.iter().enumerate().fold(0, |head, (at, &byte)| head | u64::from(byte) << (56 - 8 * at)),
    }
}

/// A block in memory. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Block {
    bytes: Arc<[u8]>,
    /// Where the entries end and the restarts begin.
    entries_end: u32,
    restart_count: u16,
}

/// One entry as it is encoded.
#[derive(Debug, Clone, Copy)]
struct Entry<'a> {
    shared: usize,
    rest: &'a [u8],
    kind: Kind,
    value_start: usize,
    value_end: usize,
}

impl Block {
    /// Takes over the bytes of a block, which are the first `length`; `None` if their end is malformed.
    pub(super) fn new(bytes: Arc<[u8]>, length: usize) -> Option<Self> {
        let count_start = length.checked_sub(OFFSET_BYTES)?;
        let restart_count = u16::from_le_bytes(bytes.get(count_start..length)?.try_into().ok()?);
        let entries_end = count_start.checked_sub(OFFSET_BYTES * usize::from(restart_count))?;
        if restart_count == 0 || entries_end == 0 {
            return None;
        }
        Some(Block { bytes, entries_end: u32::try_from(entries_end).ok()?, restart_count })
    }

    pub(super) fn byte_count(&self) -> usize {
        self.bytes.len()
    }

    fn restart(&self, index: usize) -> Option<usize> {
        let start = self.entries_end as usize + OFFSET_BYTES * index;
        let bytes = self.bytes.get(start..start + OFFSET_BYTES)?;
        Some(usize::from(u16::from_le_bytes(bytes.try_into().ok()?)))
    }

    #[inline]
    fn entry(&self, offset: usize) -> Option<Entry<'_>> {
        let entries = self.bytes.get(offset..self.entries_end as usize)?;
        let (code, lengths, mut header) = match *entries {
            // Few keys share more than 31 bytes.
            [code, lengths, ..] if code < 0x80 => (u64::from(code), lengths, 2),
            _ => {
                let mut input = entries;
                let code = varint::read(&mut input).ok()?;
                (code, *input.first()?, entries.len() - input.len() + 1)
            }
        };
        let (mut rest_len, mut value_len) = (usize::from(lengths >> 4), usize::from(lengths & 15));
        for length in [&mut rest_len, &mut value_len] {
            if *length == LONG {
                let mut input = entries.get(header..)?;
                let before = input.len();
                *length = LONG.checked_add(usize::try_from(varint::read(&mut input).ok()?).ok()?)?;
                header += before - input.len();
            }
        }
        let rest_end = header.checked_add(rest_len)?;
        let value_end = rest_end.checked_add(value_len)?;
        let rest = entries.get(header..rest_end)?;
        entries.get(rest_end..value_end)?;
        Some(Entry {
            shared: usize::try_from(code >> 2).ok()?,
            rest,
            kind: Kind::from_code(code & 3)?,
            value_start: offset + rest_end,
            value_end: offset + value_end,
        })
    }

    /// The index of the last restart whose key is not above `key`; 0 if all are.
    fn restart_before(&self, key: &[u8]) -> Option<usize> {
        let (mut low, mut high) = (0, usize::from(self.restart_count));
        while low + 1 < high {
            let middle = (low + high) / 2;
            let entry = self.entry(self.restart(middle)?)?;
            if entry.rest <= key {
                low = middle;
            } else {
                high = middle;
            }
        }
        Some(low)
    }
}

/// Position in a block. Holds the block, so that it borrows nothing.
pub(super) struct BlockCursor {
    block: Block,
    /// Offset of the next entry in ascending order.
    next: usize,
    key: Vec<u8>,
    kind: Kind,
    value: (usize, usize),
    /// The entries before the current one in its restart interval: end of the key in `interval_keys`, kind, value.
    /// Filled only while the cursor moves backwards.
    interval: Vec<(usize, Kind, (usize, usize))>,
    interval_keys: Vec<u8>,
    /// The restart interval to load after `interval` is used up, plus one.
    restarts_before: usize,
}

impl BlockCursor {
    pub(super) fn new(block: Block) -> Self {
        BlockCursor {
            block,
            next: 0,
            key: Vec::with_capacity(KEY_BYTES),
            kind: Kind::Put,
            value: (0, 0),
            interval: Vec::new(),
            interval_keys: Vec::new(),
            restarts_before: 0,
        }
    }

    /// Moves to another block, before its first entry; keeps the allocations.
    pub(super) fn enter(&mut self, block: Block) {
        self.block = block;
        self.next = 0;
        self.key.clear();
        self.interval.clear();
    }

    #[inline]
    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    #[inline]
    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    #[inline]
    pub(super) fn value(&self) -> &[u8] {
        &self.block.bytes[self.value.0..self.value.1]
    }

    /// The block's bytes, and where the current value is in them.
    pub(super) fn value_location(&self) -> (&Arc<[u8]>, (usize, usize)) {
        (&self.block.bytes, self.value)
    }

    /// Moves to the next entry in ascending order; returns false at the end of the block, `None` on damage.
    #[inline]
    pub(super) fn advance(&mut self) -> Option<bool> {
        if self.next == self.block.entries_end as usize {
            return Some(false);
        }
        let entry = self.block.entry(self.next)?;
        if entry.shared > self.key.len() {
            return None;
        }
        self.key.truncate(entry.shared);
        self.key.extend_from_slice(entry.rest);
        self.kind = entry.kind;
        self.value = (entry.value_start, entry.value_end);
        self.next = entry.value_end;
        Some(true)
    }

    /// Moves to the first entry whose key is not below `key`, or above it if `after`; returns false if there is none.
    ///
    /// Keys before it are compared without being put together: an entry that shares more with the entry before than
    /// that one shares with `key` is on the same side of `key`, and one that shares less is above it.
    pub(super) fn seek(&mut self, key: &[u8], after: bool) -> Option<bool> {
        let mut offset = self.block.restart(self.block.restart_before(key)?)?;
        // The length of the key before, which is below `key`, and how much it has in common with `key`.
        let (mut length, mut matched) = (0, 0);
        while offset != self.block.entries_end as usize {
            let entry = self.block.entry(offset)?;
            if entry.shared > length {
                return None;
            }
            let is_found = match entry.shared.cmp(&matched) {
                Ordering::Greater => false,
                Ordering::Less => true,
                Ordering::Equal => {
                    let target = key.get(matched..)?;
                    let common = common_prefix(entry.rest, target);
                    matched += common;
                    match (entry.rest.get(common), target.get(common)) {
                        (None, None) => !after,
                        (own, wanted) => own > wanted,
                    }
                }
            };
            if is_found {
                self.key.clear();
                self.key.extend_from_slice(key.get(..entry.shared)?);
                self.key.extend_from_slice(entry.rest);
                self.kind = entry.kind;
                self.value = (entry.value_start, entry.value_end);
                self.next = entry.value_end;
                return Some(true);
            }
            length = entry.shared + entry.rest.len();
            offset = entry.value_end;
        }
        self.next = offset;
        self.key.clear();
        Some(false)
    }

    /// Moves to the last entry of the block.
    pub(super) fn seek_last(&mut self) -> Option<bool> {
        self.interval.clear();
        self.restarts_before = usize::from(self.block.restart_count);
        self.retreat()
    }

    /// Moves to the last entry whose key is below `key`, or not above it if `including`; returns false if there is
    /// none. Use [`BlockCursor::retreat`] afterwards.
    pub(super) fn seek_before(&mut self, key: &[u8], including: bool) -> Option<bool> {
        self.interval.clear();
        self.restarts_before = self.block.restart_before(key)? + 1;
        while self.retreat()? {
            if self.key.as_slice() < key || (including && self.key == key) {
                return Some(true);
            }
        }
        Some(false)
    }

    /// Moves to the entry before the current one, after `seek_last` or `seek_before`; returns false at the start of the
    /// block.
    pub(super) fn retreat(&mut self) -> Option<bool> {
        if self.interval.is_empty() {
            if self.restarts_before == 0 {
                return Some(false);
            }
            self.restarts_before -= 1;
            self.load_interval(self.restarts_before)?;
        }
        let (key_end, kind, value) = self.interval.pop()?;
        let key_start = self.interval.last().map_or(0, |before| before.0);
        self.key.clear();
        self.key.extend_from_slice(self.interval_keys.get(key_start..key_end)?);
        (self.kind, self.value) = (kind, value);
        Some(true)
    }

    /// Decodes the entries of one restart interval.
    fn load_interval(&mut self, restart: usize) -> Option<()> {
        let mut offset = self.block.restart(restart)?;
        let end = match restart + 1 < usize::from(self.block.restart_count) {
            true => self.block.restart(restart + 1)?,
            false => self.block.entries_end as usize,
        };
        self.interval_keys.clear();
        let mut previous = (0, 0);
        while offset < end {
            let entry = self.block.entry(offset)?;
            if entry.shared > previous.1 - previous.0 {
                return None;
            }
            let start = self.interval_keys.len();
            self.interval_keys.extend_from_within(previous.0..previous.0 + entry.shared);
            self.interval_keys.extend_from_slice(entry.rest);
            previous = (start, self.interval_keys.len());
            self.interval.push((previous.1, entry.kind, (entry.value_start, entry.value_end)));
            offset = entry.value_end;
        }
        (offset == end && !self.interval.is_empty()).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn build(rows: &BTreeMap<Vec<u8>, Vec<u8>>) -> Block {
        let mut builder = BlockBuilder::default();
        let mut last: &[u8] = &[];
        for (key, value) in rows {
            builder.add(key, common_prefix(last, key), Kind::Put, value);
            last = key;
        }
        builder.finish(|bytes| Block::new(bytes.into(), bytes.len()).unwrap())
    }

    fn rows() -> impl Strategy<Value = BTreeMap<Vec<u8>, Vec<u8>>> {
        let key = prop_oneof![
            prop::collection::vec(5..8_u8, 1..6),
            (any::<u8>(), 1..512_usize).prop_map(|(byte, length)| vec![byte; length]),
        ];
        prop::collection::btree_map(key, prop::collection::vec(any::<u8>(), 0..200), 1..120)
    }

    fn all(
        cursor: &mut BlockCursor,
        mut step: impl FnMut(&mut BlockCursor) -> Option<bool>,
    ) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut found = Vec::new();
        while step(cursor).unwrap() {
            found.push((cursor.key().to_vec(), cursor.value().to_vec()));
        }
        found
    }

    proptest! {
        #[test]
        fn entries_are_found_in_both_directions(rows in rows(), probes in prop::collection::vec(rows(), 1..3)) {
            let block = build(&rows);
            let expected: Vec<_> = rows.clone().into_iter().collect();
            let mut cursor = BlockCursor::new(block.clone());
            prop_assert_eq!(&all(&mut cursor, BlockCursor::advance), &expected);
            let mut is_first = true;
            let mut backwards = all(&mut cursor, |cursor| {
                if std::mem::take(&mut is_first) { cursor.seek_last() } else { cursor.retreat() }
            });
            backwards.reverse();
            prop_assert_eq!(&backwards, &expected);
            for probe in probes.iter().flat_map(BTreeMap::keys).chain(rows.keys()) {
                for flag in [false, true] {
                    let above = rows.keys().find(|key| *key > probe || (!flag && *key == probe));
                    let found = cursor.seek(probe, flag).unwrap().then(|| cursor.key().to_vec());
                    prop_assert_eq!(found.as_ref(), above);
                    let below = rows.keys().rev().find(|key| *key < probe || (flag && *key == probe));
                    let found = cursor.seek_before(probe, flag).unwrap().then(|| cursor.key().to_vec());
                    prop_assert_eq!(found.as_ref(), below);
                }
            }
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..120), count in 0..4_u16) {
            let mut bytes = bytes;
            bytes.extend_from_slice(&count.to_le_bytes());
            let Some(block) = Block::new(bytes.clone().into(), bytes.len()) else { return Ok(()) };
            let mut cursor = BlockCursor::new(block);
            while cursor.advance() == Some(true) {}
            cursor.seek(&bytes, false);
            cursor.seek_before(&bytes, false);
            cursor.seek_last();
            while cursor.retreat() == Some(true) {}
        }
    }
}
