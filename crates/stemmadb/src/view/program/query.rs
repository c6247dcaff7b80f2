//! A question to a program's view.

use std::sync::Arc;

use super::mapping::read;
use super::reduce::count_of;
use super::{ProgramRow, keys};
use crate::Result;
use crate::read::Snapshot;
use crate::revision::Sequence;
use crate::value::Value;
use crate::view::cell::{Cell, Reading};
use crate::view::layout::end_of;
use crate::view::partials;
use crate::view::query::{Access, ViewInfo};
use crate::view::registry::ViewRegistry;
use crate::view::select::{RawGroups, RawRow, RawRows, RowRange, Select};

/// Failures that are told.
const FAILURES_MAX: usize = 10;

/// A program's view of an open database. Cheap to clone.
#[derive(Clone)]
pub struct ProgramView {
    views: Arc<ViewRegistry>,
    cell: Arc<Cell>,
}

/// One end of a range of rows.
#[derive(Debug, Clone, PartialEq)]
pub struct RowBound {
    /// The key.
    pub key: Value,
    /// Of the rows with this key, those from or up to the one of this document.
    pub id: Option<String>,
    /// Whether rows at the bound are within.
    pub is_inclusive: bool,
}

/// Which rows are asked for.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub enum RowChoice {
    /// All.
    #[default]
    All,
    /// Those between two bounds, the lower one first, whatever the order of the answer.
    Range(Option<RowBound>, Option<RowBound>),
    /// Those with each of these keys, in this order.
    Keys(Vec<Value>),
}

impl RowChoice {
    /// Whether it is a range whose lower key comes after the upper one, so that no row can be in it.
    pub fn is_reversed(&self) -> bool {
        match self {
            RowChoice::Range(Some(lower), Some(upper)) => keys::key_bytes(&lower.key) > keys::key_bytes(&upper.key),
            _ => false,
        }
    }
}

/// A question to a program's view. Nothing is read before it is asked.
#[must_use = "a query does nothing until it is run"]
#[derive(Clone)]
pub struct ProgramQuery {
    view: ProgramView,
    choice: RowChoice,
    select: Select,
    access: Access,
}

impl ProgramView {
    pub(in crate::view) fn new(views: Arc<ViewRegistry>, cell: Arc<Cell>) -> Self {
        ProgramView { views, cell }
    }

    /// A query for all of its rows.
    pub fn query(&self) -> ProgramQuery {
        let (choice, select) = (RowChoice::default(), Select::default());
        ProgramQuery { view: self.clone(), choice, select, access: Access::default() }
    }

    /// Brings it up to date.
    ///
    /// # Errors
    /// Those of the program; `Corrupt` if stored bytes are damaged; `Unavailable` if files can't be written.
    pub fn update(&self) -> Result<()> {
        self.views.update(&self.cell)
    }

    /// What is known of it, without bringing it up to date.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn info(&self) -> Result<ViewInfo> {
        self.views.info(&self.cell, FAILURES_MAX)
    }
}

impl ProgramQuery {
    /// Only these rows.
    pub fn among(mut self, choice: RowChoice) -> Self {
        self.choice = choice;
        self
    }

    /// From the last key to the first.
    pub fn descending(mut self, is_descending: bool) -> Self {
        self.select.descending = is_descending;
        self
    }

    /// At most `count` rows or groups.
    pub fn limit(mut self, count: u64) -> Self {
        self.select.limit = Some(count);
        self
    }

    /// Leaves out the first `count` rows or groups.
    pub fn skip(mut self, count: u64) -> Self {
        self.select.skip = count;
        self
    }

    /// Whether the view is brought up to date for this.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    fn ranges(&self) -> Vec<RowRange> {
        match &self.choice {
            RowChoice::All => vec![(Vec::new(), None)],
            RowChoice::Range(lower, upper) => {
                vec![(lower.as_ref().map(from).unwrap_or_default(), upper.as_ref().and_then(to))]
            }
            RowChoice::Keys(wanted) => {
                let range = |key: &Value| {
                    let beginning = keys::beginning(&keys::key_bytes(key));
                    let end = end_of(&beginning);
                    (beginning, end)
                };
                wanted.iter().map(range).collect()
            }
        }
    }

    fn reading(&self) -> Result<Reading> {
        self.view.views.read(&self.view.cell, self.access)
    }

    /// The rows, in the order of their keys, those of one key in that of their documents' ids; streamed.
    ///
    /// # Errors
    /// Those of the program; `Corrupt` if stored bytes are damaged.
    pub fn rows(self) -> Result<ProgramRows> {
        let reading = self.reading()?;
        let ranges = self.ranges();
        let total = count_of(&partials::reduce_range(&reading.rows, reading.reducer()?, &[], None)?)?;
        let before = match ranges.first() {
            Some((_, Some(to))) if self.select.descending => {
                partials::reduce_range(&reading.rows, reading.reducer()?, to, None)?
            }
            Some((from, _)) if !self.select.descending && !from.is_empty() => {
                partials::reduce_range(&reading.rows, reading.reducer()?, &[], Some(from))?
            }
            _ => Vec::new(),
        };
        let offset = count_of(&before)?.saturating_add(self.select.skip).min(total);
        let select = Select { ranges: Some(ranges), ..self.select };
        Ok(ProgramRows { rows: select.rows(reading), total, offset })
    }

    /// What the rows come to; none if there are none. Limit and skip play no part. However many rows there are, this costs some tens of
    /// look-ups.
    ///
    /// # Errors
    /// As [`ProgramQuery::rows`].
    pub fn reduce(self) -> Result<Option<Value>> {
        let reading = self.reading()?;
        Select { ranges: Some(self.ranges()), ..self.select }.reduce(&reading)
    }

    /// The rows in groups: keys that are arrays by their first `level` elements, which are the group's key; others, and all where
    /// there is no level, whole.
    ///
    /// # Errors
    /// As [`ProgramQuery::rows`].
    pub fn groups(self, level: Option<usize>) -> Result<ProgramGroups> {
        let reading = self.reading()?;
        let select = Select { ranges: Some(self.ranges()), ..self.select };
        Ok(ProgramGroups(select.groups(reading, level)))
    }
}

/// Where rows within a lower bound begin.
fn from(bound: &RowBound) -> Vec<u8> {
    let key = keys::key_bytes(&bound.key);
    match (&bound.id, bound.is_inclusive) {
        (None, true) => keys::beginning(&key),
        (None, false) => end_of(&keys::beginning(&key)).unwrap_or_default(),
        (Some(id), true) => keys::beginning_of(&key, id),
        (Some(id), false) => keys::after_document(&key, id),
    }
}

/// Where rows within an upper bound have ended.
fn to(bound: &RowBound) -> Option<Vec<u8>> {
    let key = keys::key_bytes(&bound.key);
    match (&bound.id, bound.is_inclusive) {
        (None, true) => end_of(&keys::beginning(&key)),
        (None, false) => Some(keys::beginning(&key)),
        (Some(id), true) => Some(keys::after_document(&key, id)),
        (Some(id), false) => Some(keys::beginning_of(&key, id)),
    }
}

/// The rows of an answer, in order. After an error there are no further rows.
pub struct ProgramRows {
    rows: RawRows,
    total: u64,
    offset: u64,
}

impl ProgramRows {
    /// How many rows the view has.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// How many rows of the view come before the first one of the answer.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Everything written up to here is in the rows.
    pub fn sequence(&self) -> Sequence {
        self.rows.reading.position
    }

    /// Whether documents were changed since.
    pub fn is_stale(&self) -> bool {
        self.rows.reading.is_stale
    }

    /// The state in which the documents of the rows are to be read.
    pub fn snapshot(&self) -> &Snapshot {
        &self.rows.reading.snapshot
    }

    fn read(&mut self) -> Result<Option<ProgramRow>> {
        let Some(RawRow { document, value, .. }) = self.rows.next()? else { return Ok(None) };
        let id = self.rows.reading.snapshot.id(document)?;
        let (key, value) = read(&value)?;
        Ok(Some(ProgramRow { id: id.as_str().to_owned(), key, value }))
    }
}

impl Iterator for ProgramRows {
    type Item = Result<ProgramRow>;

    fn next(&mut self) -> Option<Self::Item> {
        let read = self.read();
        if read.is_err() {
            self.rows.end();
        }
        read.transpose()
    }
}

/// The groups of an answer, in order: key and reduction. After an error there are no further groups.
pub struct ProgramGroups(RawGroups);

impl ProgramGroups {
    /// Everything written up to here is in the groups.
    pub fn sequence(&self) -> Sequence {
        self.0.position()
    }
}

/// The key of the group of a row with this value, and what the keys of its rows begin with.
fn group_of(value: &[u8], level: Option<usize>) -> Result<(Value, Vec<u8>)> {
    let (emitted, _) = read(value)?;
    Ok(match (level, emitted) {
        (Some(level), Value::Array(mut elements)) if level < elements.len() => {
            elements.truncate(level);
            let beginning = keys::beginning_with(&elements);
            (elements.into(), beginning)
        }
        (_, emitted) => {
            let beginning = keys::beginning(&keys::key_bytes(&emitted));
            (emitted, beginning)
        }
    })
}

impl Iterator for ProgramGroups {
    type Item = Result<(Value, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        let read = self.0.next_by(|_, value, level| group_of(value, level));
        if read.is_err() {
            self.0.end();
        }
        read.transpose()
    }
}
