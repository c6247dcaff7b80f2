//! Row selection: key ranges in bytes, and iteration over the selected rows and groups.

use std::collections::VecDeque;
use std::ops::Bound;

use serde::Serialize;

use super::layout::{self, RowKey, prefix_end};
use super::materialized::ViewReading;
use super::partials;
use crate::index::DocumentNumber;
use crate::revision::Sequence;
use crate::sync::refuse_if_cancelled;
use crate::tree::Direction;
use crate::value::collate::key;
use crate::value::{Kind, Value};
use crate::{Error, Result};

/// Row keys from the first, inclusive, to the second, exclusive; `None`: the end.
pub(super) type RowRange = (Vec<u8>, Option<Vec<u8>>);

/// Which rows to return, and in which order.
#[derive(Clone, Default)]
pub(super) struct Select {
    /// `None` for all rows.
    pub(super) ranges: Option<Vec<RowRange>>,
    pub(super) descending: bool,
    /// Whether the rows of one document with equal keys keep their order in a descending query.
    pub(super) keeps_document_order: bool,
    pub(super) limit: Option<u64>,
    pub(super) skip: u64,
}

fn encode_key<Q: Serialize + ?Sized>(key_or_prefix: &Q) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    key::encode(&Value::from_serialize(key_or_prefix)?, &mut bytes);
    Ok(bytes)
}

/// The rows with a key.
pub(super) fn range_for_key<Q: Serialize + ?Sized>(key_or_prefix: &Q) -> Result<RowRange> {
    let key = encode_key(key_or_prefix)?;
    let end = prefix_end(&key);
    Ok((key, end))
}

/// The rows between two keys.
pub(super) fn range_for_bounds<Q: Serialize>(lower: Bound<&Q>, upper: Bound<&Q>) -> Result<RowRange> {
    // A row key is always longer than the emitted key that it begins with.
    let from = match lower {
        Bound::Unbounded => Vec::new(),
        Bound::Included(lower) => encode_key(lower)?,
        Bound::Excluded(lower) => prefix_end(&encode_key(lower)?).unwrap_or_default(),
    };
    let to = match upper {
        Bound::Unbounded => None,
        Bound::Included(upper) => prefix_end(&encode_key(upper)?),
        Bound::Excluded(upper) => Some(encode_key(upper)?),
    };
    Ok((from, to))
}

/// The rows whose key begins with a string, or is an array that begins with these elements.
pub(super) fn range_for_prefix<Q: Serialize + ?Sized>(key_or_prefix: &Q) -> Result<RowRange> {
    let prefix = Value::from_serialize(key_or_prefix)?;
    let from = match prefix.kind() {
        Kind::String => key::prefix_range(prefix.as_str().unwrap_or_default()).0,
        Kind::Array => {
            let mut bytes = Vec::new();
            key::encode(&prefix, &mut bytes);
            // Remove the array's terminator.
            bytes.pop();
            bytes
        }
        kind => {
            return Err(Error::invalid(format!("{kind} is no prefix of a key"))
                .with_hint("a prefix is the beginning of a text, or the first elements of a list"));
        }
    };
    let to = prefix_end(&from);
    Ok((from, to))
}

/// The common prefix of the keys in the group of `key_bytes`: the first `level` elements of an array, otherwise the
/// whole key.
fn group_prefix(key_bytes: &[u8], level: Option<usize>) -> Result<Vec<u8>> {
    let (Some(level), Some(Kind::Array)) = (level, key::kind_of(key_bytes)) else { return Ok(key_bytes.to_vec()) };
    let mut end = 1;
    for _ in 0..level {
        let rest = &key_bytes[end..];
        // The array's terminator: a key shorter than the level is a group of its own.
        if rest.first() == Some(&0) {
            return Ok(key_bytes.to_vec());
        }
        end += key::length(rest)?;
    }
    Ok(key_bytes[..end].to_vec())
}

/// The group key for the key of one of its rows.
fn group_key(key_bytes: &[u8], level: Option<usize>) -> Result<Value> {
    let (value, _) = key::decode(key_bytes)?;
    Ok(match (value, level) {
        (Value::Array(mut elements), Some(level)) => {
            elements.truncate(level);
            Value::Array(elements)
        }
        (value, _) => value,
    })
}

/// The rows of a range whose keys begin with the prefix of a group.
pub(super) fn group_range(prefix: &[u8], (from, to): &RowRange) -> RowRange {
    let group_to = match (prefix_end(prefix), to) {
        (Some(end), Some(to)) => Some(end.min(to.clone())),
        (end, to) => end.or(to.clone()),
    };
    (prefix.max(from).to_vec(), group_to)
}

/// What is left of a range after its first group, in the order of the result.
pub(super) fn range_after(
    (from, to): RowRange,
    (group_from, group_to): (&[u8], &Option<Vec<u8>>),
    descending: bool,
) -> Option<RowRange> {
    match (descending, group_to) {
        (true, _) => Some((from, Some(group_from.to_vec()))),
        (false, Some(group_to)) => Some((group_to.clone(), to)),
        (false, None) => None,
    }
}

/// A row in encoded form.
pub(super) struct RawRow {
    pub(super) key: Vec<u8>,
    pub(super) document: DocumentNumber,
    pub(super) value: Vec<u8>,
}

/// Rows read per batch: few at first, because often few are needed.
pub(super) const BATCH_FIRST: usize = 32;
const BATCH_MAX: usize = 1024;

/// The order of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowOrder {
    Ascending,
    Descending,
    /// Descending, but the rows of one document with equal keys keep their order.
    DescendingByDocument,
}

impl RowOrder {
    pub(super) fn is_descending(self) -> bool {
        self != RowOrder::Ascending
    }
}

/// Iterates over the selected rows.
pub(super) struct RawRows {
    pub(super) reading: ViewReading,
    order: RowOrder,
    /// The remaining ranges, the next one first.
    ranges: VecDeque<RowRange>,
    skip: u64,
    left: u64,
    batch: VecDeque<RawRow>,
    batch_count: usize,
}

impl Select {
    pub(super) fn order(&self) -> RowOrder {
        match (self.descending, self.keeps_document_order) {
            (false, _) => RowOrder::Ascending,
            (true, false) => RowOrder::Descending,
            (true, true) => RowOrder::DescendingByDocument,
        }
    }

    /// The ranges in the order of the result.
    fn ordered_ranges(&self) -> VecDeque<RowRange> {
        self.ranges.clone().unwrap_or_else(|| vec![(Vec::new(), None)]).into()
    }

    pub(super) fn rows(&self, reading: ViewReading) -> RawRows {
        RawRows {
            reading,
            order: self.order(),
            ranges: self.ordered_ranges(),
            skip: self.skip,
            left: self.limit.unwrap_or(u64::MAX),
            batch: VecDeque::new(),
            batch_count: BATCH_FIRST,
        }
    }

    /// Reduces the rows, or returns `None` if there are none; ignores limit, skip and order.
    pub(super) fn reduce(&self, reading: &ViewReading) -> Result<Option<Value>> {
        let reducer = reading.reducer()?;
        let mut fold = reducer.begin();
        let mut is_empty = true;
        for (from, to) in self.ordered_ranges() {
            refuse_if_cancelled()?;
            let partial = partials::reduce_range(&reading.rows, reducer, &from, to.as_deref())?;
            if !partial.is_empty() {
                fold.part(&partial)?;
                is_empty = false;
            }
        }
        if is_empty { Ok(None) } else { reducer.result(&fold.finish()?).map(Some) }
    }

    /// Counts the rows; ignores limit and skip.
    pub(super) fn count(&self, reading: &ViewReading) -> Result<u64> {
        let mut count = 0;
        for (from, to) in self.ordered_ranges() {
            count += match reading.reducer.as_deref().filter(|reducer| reducer.name() == "_count") {
                Some(reducer) => {
                    let partial = partials::reduce_range(&reading.rows, reducer, &from, to.as_deref())?;
                    if partial.is_empty() { 0 } else { reducer.result(&partial)?.as_u64().unwrap_or_default() }
                }
                None => partials::count_rows(&reading.rows, &from, to.as_deref())?,
            };
        }
        Ok(count)
    }

    pub(super) fn groups(&self, reading: ViewReading, level: Option<usize>) -> RawGroups {
        RawGroups {
            reading,
            descending: self.descending,
            ranges: self.ordered_ranges(),
            skip: self.skip,
            left: self.limit.unwrap_or(u64::MAX),
            level,
        }
    }
}

impl RawRows {
    pub(super) fn next(&mut self) -> Result<Option<RawRow>> {
        while self.left > 0 {
            if let Some(row) = self.batch.pop_front() {
                if self.skip > 0 {
                    self.skip -= 1;
                    continue;
                }
                self.left -= 1;
                return Ok(Some(row));
            }
            if !self.fill()? {
                break;
            }
        }
        Ok(None)
    }

    /// Starts again with all rows of a range. The first batch has `batch_count` rows.
    pub(super) fn restart(&mut self, range: RowRange, order: RowOrder, batch_count: usize) {
        self.order = order;
        self.ranges = VecDeque::from([range]);
        (self.skip, self.left) = (0, u64::MAX);
        self.batch.clear();
        self.batch_count = batch_count;
    }

    /// Ends the iteration.
    pub(super) fn end(&mut self) {
        self.left = 0;
    }

    /// Reads the next batch; returns false at the end.
    fn fill(&mut self) -> Result<bool> {
        let Some((from, to)) = self.ranges.pop_front() else { return Ok(false) };
        refuse_if_cancelled()?;
        let (lower, upper) =
            (layout::local_row_key(&from), to.as_ref().map_or_else(layout::rows_end, |to| layout::local_row_key(to)));
        let direction = if self.order.is_descending() { Direction::Descending } else { Direction::Ascending };
        let keeps_document_order = self.order == RowOrder::DescendingByDocument;
        let mut scan = self.reading.rows.scan(Bound::Included(&lower), Bound::Excluded(&upper), direction)?;
        // The first row of the next batch.
        let mut next = None;
        while let Some((local_key, value)) = scan.next()? {
            let row = layout::row_of_local_key(local_key).unwrap_or_default();
            let RowKey { key, document } = RowKey::decode(row)?;
            let is_same = |last: &RawRow| keeps_document_order && last.document == document && last.key == key;
            if self.batch.len() >= self.batch_count && !self.batch.back().is_some_and(is_same) {
                next = Some(row.to_vec());
                break;
            }
            self.batch.push_back(RawRow { key: key.to_vec(), document, value: value.to_vec() });
        }
        if keeps_document_order {
            let rows = self.batch.make_contiguous();
            rows.chunk_by_mut(|a, b| a.document == b.document && a.key == b.key).for_each(<[RawRow]>::reverse);
        }
        if let Some(mut next) = next {
            self.ranges.push_front(if self.order.is_descending() {
                // The end is exclusive, and the next possible key is this one with one more byte.
                next.push(0);
                (from, Some(next))
            } else {
                (next, to)
            });
            self.batch_count = (self.batch_count * 4).min(BATCH_MAX);
        }
        Ok(true)
    }
}

/// Iterates over groups of rows, reducing each.
pub(super) struct RawGroups {
    reading: ViewReading,
    descending: bool,
    ranges: VecDeque<RowRange>,
    skip: u64,
    left: u64,
    /// Number of array elements that form the group key; `None`: the whole key.
    level: Option<usize>,
}

impl RawGroups {
    /// Returns the next group: its key and the reduction of its rows.
    pub(super) fn next(&mut self) -> Result<Option<(Value, Value)>> {
        self.next_by(|first, _, level| Ok((group_key(first, level)?, group_prefix(first, level)?)))
    }

    /// Like [`RawGroups::next`]; `group_of` computes, from a row's key and value and the level, the group key and the
    /// common prefix of the row keys of the group.
    pub(super) fn next_by(
        &mut self,
        group_of: impl Fn(&[u8], &[u8], Option<usize>) -> Result<(Value, Vec<u8>)>,
    ) -> Result<Option<(Value, Value)>> {
        while self.left > 0 {
            let Some((from, to)) = self.ranges.pop_front() else { break };
            refuse_if_cancelled()?;
            let of_row = |key: &[u8], value: &[u8]| group_of(key, value, self.level);
            let Some((key, prefix)) = self.first(&from, to.as_deref(), of_row)? else { continue };
            let range = (from, to);
            let (group_from, group_to) = group_range(&prefix, &range);
            if let Some(rest) = range_after(range, (&group_from, &group_to), self.descending) {
                self.ranges.push_front(rest);
            }
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            self.left -= 1;
            let reducer = self.reading.reducer()?;
            let partial = partials::reduce_range(&self.reading.rows, reducer, &group_from, group_to.as_deref())?;
            return Ok(Some((key, reducer.result(&partial)?)));
        }
        Ok(None)
    }

    /// The sequence up to which changes are included in the groups.
    pub(super) fn position(&self) -> Sequence {
        self.reading.position
    }

    /// Ends the iteration.
    pub(super) fn end(&mut self) {
        self.left = 0;
    }

    /// Applies `of_row` to the first row of the range, in the order of the result.
    fn first<T>(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        of_row: impl Fn(&[u8], &[u8]) -> Result<T>,
    ) -> Result<Option<T>> {
        if to.is_some_and(|to| from >= to) {
            return Ok(None);
        }
        let (lower, upper) = (layout::local_row_key(from), to.map_or_else(layout::rows_end, layout::local_row_key));
        let direction = if self.descending { Direction::Descending } else { Direction::Ascending };
        let mut scan = self.reading.rows.scan(Bound::Included(&lower), Bound::Excluded(&upper), direction)?;
        match scan.next()? {
            Some((local_key, value)) => {
                let row = layout::row_of_local_key(local_key).unwrap_or_default();
                of_row(RowKey::decode(row)?.key, value).map(Some)
            }
            None => Ok(None),
        }
    }
}
