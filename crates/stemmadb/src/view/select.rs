//! Which rows, in which order: a question to a view in bytes, and the walk over what answers it.

use std::collections::VecDeque;
use std::ops::Bound;

use serde::Serialize;

use super::cell::Reading;
use super::layout::{self, RowKey, end_of};
use super::partials;
use crate::index::DocumentNumber;
use crate::revision::Sequence;
use crate::tree::Direction;
use crate::value::collate::key;
use crate::value::{Kind, Value};
use crate::{Error, Result};

/// Rows whose own keys lie from the first, inclusive, to the second, exclusive; none: to the end.
pub(super) type RowRange = (Vec<u8>, Option<Vec<u8>>);

/// Which rows, in which order.
#[derive(Clone, Default)]
pub(super) struct Select {
    /// None for all.
    pub(super) ranges: Option<Vec<RowRange>>,
    pub(super) descending: bool,
    pub(super) limit: Option<u64>,
    pub(super) skip: u64,
}

fn encoded<Q: Serialize + ?Sized>(wanted: &Q) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    key::encode(&Value::from_serialize(wanted)?, &mut bytes);
    Ok(bytes)
}

/// The rows with a key.
pub(super) fn of_key<Q: Serialize + ?Sized>(wanted: &Q) -> Result<RowRange> {
    let key = encoded(wanted)?;
    let end = end_of(&key);
    Ok((key, end))
}

/// The rows between two keys.
pub(super) fn of_range<Q: Serialize>(lower: Bound<&Q>, upper: Bound<&Q>) -> Result<RowRange> {
    // Every row's own key is longer than the key it begins with.
    let from = match lower {
        Bound::Unbounded => Vec::new(),
        Bound::Included(lower) => encoded(lower)?,
        Bound::Excluded(lower) => end_of(&encoded(lower)?).unwrap_or_default(),
    };
    let to = match upper {
        Bound::Unbounded => None,
        Bound::Included(upper) => end_of(&encoded(upper)?),
        Bound::Excluded(upper) => Some(encoded(upper)?),
    };
    Ok((from, to))
}

/// The rows whose key begins with a text, or is a list that begins with these elements.
pub(super) fn of_prefix<Q: Serialize + ?Sized>(wanted: &Q) -> Result<RowRange> {
    let prefix = Value::from_serialize(wanted)?;
    let from = match prefix.kind() {
        Kind::String => key::prefix_range(prefix.as_str().unwrap_or_default()).0,
        Kind::Array => {
            let mut bytes = Vec::new();
            key::encode(&prefix, &mut bytes);
            // Without its end.
            bytes.pop();
            bytes
        }
        kind => {
            return Err(Error::invalid(format!("{kind} is no prefix of a key"))
                .with_hint("a prefix is the beginning of a text, or the first elements of a list"));
        }
    };
    let to = end_of(&from);
    Ok((from, to))
}

/// What all keys of the group of `key` begin with: the first `level` elements of a list, else the whole key.
fn group_prefix(key_bytes: &[u8], level: Option<usize>) -> Result<Vec<u8>> {
    let (Some(level), Some(Kind::Array)) = (level, key::kind_of(key_bytes)) else { return Ok(key_bytes.to_vec()) };
    let mut end = 1;
    for _ in 0..level {
        let rest = &key_bytes[end..];
        // The end of the list.
        if rest.first() == Some(&0) {
            break;
        }
        end += key::length(rest)?;
    }
    Ok(key_bytes[..end].to_vec())
}

/// The key of a group, from the key of one of its rows.
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

/// A row in bytes.
pub(super) struct RawRow {
    pub(super) key: Vec<u8>,
    pub(super) document: DocumentNumber,
    pub(super) value: Vec<u8>,
}

/// Rows read at once: few at first, since often few are wanted.
const BATCH_FIRST: usize = 32;
const BATCH_MAX: usize = 1024;

/// Walks over the rows that answer.
pub(super) struct RawRows {
    pub(super) reading: Reading,
    descending: bool,
    /// Still to be walked, the next one first.
    ranges: VecDeque<RowRange>,
    skip: u64,
    left: u64,
    batch: VecDeque<RawRow>,
    batch_count: usize,
}

impl Select {
    /// The ranges in the order of the answer.
    fn ordered_ranges(&self) -> VecDeque<RowRange> {
        self.ranges.clone().unwrap_or_else(|| vec![(Vec::new(), None)]).into()
    }

    pub(super) fn rows(&self, reading: Reading) -> RawRows {
        RawRows {
            reading,
            descending: self.descending,
            ranges: self.ordered_ranges(),
            skip: self.skip,
            left: self.limit.unwrap_or(u64::MAX),
            batch: VecDeque::new(),
            batch_count: BATCH_FIRST,
        }
    }

    /// What the rows come to, or none if there are none; limit, skip and order play no part.
    pub(super) fn reduce(&self, reading: &Reading) -> Result<Option<Value>> {
        let reducer = reading.reducer()?;
        let mut fold = reducer.begin();
        let mut is_empty = true;
        for (from, to) in self.ordered_ranges() {
            let partial = partials::reduce_range(&reading.rows, reducer, &from, to.as_deref())?;
            if !partial.is_empty() {
                fold.part(&partial)?;
                is_empty = false;
            }
        }
        if is_empty { Ok(None) } else { reducer.result(&fold.finish()?).map(Some) }
    }

    /// How many rows there are; limit and skip play no part.
    pub(super) fn count(&self, reading: &Reading) -> Result<u64> {
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

    pub(super) fn groups(&self, reading: Reading, level: Option<usize>) -> RawGroups {
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

    /// There are to be no further rows.
    pub(super) fn end(&mut self) {
        self.left = 0;
    }

    /// Reads on; false at the end.
    fn fill(&mut self) -> Result<bool> {
        let Some((from, to)) = self.ranges.pop_front() else { return Ok(false) };
        let (lower, upper) =
            (layout::row_place(&from), to.as_ref().map_or_else(layout::rows_end, |to| layout::row_place(to)));
        let direction = if self.descending { Direction::Descending } else { Direction::Ascending };
        let mut scan = self.reading.rows.scan(Bound::Included(&lower), Bound::Excluded(&upper), direction)?;
        let mut last = None;
        while let Some((place, value)) = scan.next()? {
            let row = layout::row_of_place(place).unwrap_or_default();
            let RowKey { key, document } = RowKey::decode(row)?;
            self.batch.push_back(RawRow { key: key.to_vec(), document, value: value.to_vec() });
            if self.batch.len() >= self.batch_count {
                last = Some(row.to_vec());
                break;
            }
        }
        if let Some(mut last) = last {
            // After it comes, at the earliest, the same with one more byte.
            self.ranges.push_front(if self.descending {
                (from, Some(last))
            } else {
                last.push(0);
                (last, to)
            });
            self.batch_count = (self.batch_count * 4).min(BATCH_MAX);
        }
        Ok(true)
    }
}

/// Walks over groups of rows, reducing each.
pub(super) struct RawGroups {
    reading: Reading,
    descending: bool,
    ranges: VecDeque<RowRange>,
    skip: u64,
    left: u64,
    /// Elements of a list that make a group; none: the whole key.
    level: Option<usize>,
}

impl RawGroups {
    /// The next group: its key and what its rows come to.
    pub(super) fn next(&mut self) -> Result<Option<(Value, Value)>> {
        self.next_by(|first, _, level| Ok((group_key(first, level)?, group_prefix(first, level)?)))
    }

    /// As [`RawGroups::next`], where `group_of` tells from a row's key and value, and the level, its group's key, and what the keys of all
    /// rows of that group begin with.
    pub(super) fn next_by(
        &mut self,
        group_of: impl Fn(&[u8], &[u8], Option<usize>) -> Result<(Value, Vec<u8>)>,
    ) -> Result<Option<(Value, Value)>> {
        while self.left > 0 {
            let Some((from, to)) = self.ranges.pop_front() else { break };
            let of_row = |key: &[u8], value: &[u8]| group_of(key, value, self.level);
            let Some((key, prefix)) = self.first(&from, to.as_deref(), of_row)? else { continue };
            let end = end_of(&prefix);
            let group_from = prefix.max(from.clone());
            let group_to = match (end, &to) {
                (Some(end), Some(to)) => Some(end.min(to.clone())),
                (end, to) => end.or(to.clone()),
            };
            if self.descending {
                self.ranges.push_front((from, Some(group_from.clone())));
            } else if group_to.is_some() {
                self.ranges.push_front((group_to.clone().unwrap_or_default(), to));
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

    /// Everything written up to here is in the groups.
    pub(super) fn position(&self) -> Sequence {
        self.reading.position
    }

    /// There are to be no further groups.
    pub(super) fn end(&mut self) {
        self.left = 0;
    }

    /// What `of_row` says of the first row of the range, in the order of the answer.
    fn first<T>(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        of_row: impl Fn(&[u8], &[u8]) -> Result<T>,
    ) -> Result<Option<T>> {
        if to.is_some_and(|to| from >= to) {
            return Ok(None);
        }
        let (lower, upper) = (layout::row_place(from), to.map_or_else(layout::rows_end, layout::row_place));
        let direction = if self.descending { Direction::Descending } else { Direction::Ascending };
        let mut scan = self.reading.rows.scan(Bound::Included(&lower), Bound::Excluded(&upper), direction)?;
        match scan.next()? {
            Some((place, value)) => {
                let row = layout::row_of_place(place).unwrap_or_default();
                of_row(RowKey::decode(row)?.key, value).map(Some)
            }
            None => Ok(None),
        }
    }
}
