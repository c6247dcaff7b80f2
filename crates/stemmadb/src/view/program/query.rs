//! Queries of program views.

use std::sync::Arc;

use super::adapter::decode_row;
use super::reduce::row_count_of;
use super::{ProgramRow, keys};
use crate::Result;
use crate::read::Snapshot;
use crate::revision::Sequence;
use crate::value::Value;
use crate::view::layout::prefix_end;
use crate::view::materialized::{MaterializedView, ViewReading};
use crate::view::partials;
use crate::view::query::{Access, ViewInfo};
use crate::view::registry::ViewRegistry;
use crate::view::select::{RawGroups, RawRow, RawRows, RowRange, Select};

/// Maximum number of mapping errors reported by [`ProgramView::info`].
const FAILURES_MAX: usize = 10;

/// A program view of an open database; opened with [`Views::open_program`](crate::handles::Views::open_program). Cheap
/// to clone. See [`ViewProgram`](crate::views::ViewProgram) for an example.
#[derive(Clone)]
pub struct ProgramView {
    views: Arc<ViewRegistry>,
    materialized: Arc<MaterializedView>,
}

/// One end of a range of rows. See [`ViewProgram`](crate::views::ViewProgram) for an example.
#[derive(Debug, Clone, PartialEq)]
pub struct RowBound {
    /// The key.
    pub key: Value,
    /// Id of a document; narrows the bound to its row among the rows with this key.
    pub id: Option<String>,
    /// Whether rows at the bound are included.
    pub is_inclusive: bool,
}

/// Which rows to read. See [`ViewProgram`](crate::views::ViewProgram) for an example.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub enum RowChoice {
    /// All rows.
    #[default]
    All,
    /// The rows between two bounds, the lower one first even in a descending query.
    Range(Option<RowBound>, Option<RowBound>),
    /// The rows with each of these keys, in this order.
    Keys(Vec<Value>),
    /// The rows between each of these pairs of bounds, the lower one first, in this order.
    Ranges(Vec<(RowBound, RowBound)>),
}

impl RowChoice {
    /// Whether this is a range whose lower key is greater than the upper one, so that it is empty.
    pub fn is_reversed(&self) -> bool {
        match self {
            RowChoice::Range(Some(lower), Some(upper)) => keys::key_bytes(&lower.key) > keys::key_bytes(&upper.key),
            _ => false,
        }
    }
}

/// A query of a program view, built step by step. Nothing is read before it is run. See
/// [`ViewProgram`](crate::views::ViewProgram) for an example.
#[must_use = "a query does nothing until it is run"]
#[derive(Clone)]
pub struct ProgramQuery {
    view: ProgramView,
    choice: RowChoice,
    /// The partition, if the view has partitions.
    pub(super) partition: Option<keys::PartitionPrefix>,
    pub(super) select: Select,
    access: Access,
    as_of: Option<Snapshot>,
}

impl ProgramView {
    pub(in crate::view) fn new(views: Arc<ViewRegistry>, materialized: Arc<MaterializedView>) -> Self {
        ProgramView { views, materialized }
    }

    /// Starts a query for all rows.
    pub fn query(&self) -> ProgramQuery {
        let (choice, select) = (RowChoice::default(), Select { keeps_document_order: true, ..Select::default() });
        ProgramQuery { view: self.clone(), choice, partition: None, select, access: Access::default(), as_of: None }
    }

    /// Updates the view to the newest published sequence.
    ///
    /// # Errors
    /// The errors of the program; `Corrupt` if stored bytes are damaged; `Unavailable` if files can't be written.
    pub fn update(&self) -> Result<()> {
        self.views.update(&self.materialized)
    }

    /// Whether everything published is in the rows, so that an update has nothing to do.
    ///
    /// # Errors
    /// `Closed` if the database is closed.
    pub fn is_current(&self) -> Result<bool> {
        Ok(self.materialized.is_current(&*self.materialized.store()?))
    }

    /// Returns row counts, mapping errors and position, without updating the view.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn info(&self) -> Result<ViewInfo> {
        self.views.info(&self.materialized, FAILURES_MAX)
    }
}

impl ProgramQuery {
    /// Selects the rows to read. Default: all.
    pub fn among(mut self, choice: RowChoice) -> Self {
        self.choice = choice;
        self
    }

    /// Selects the rows of one partition of a view with partitions; see
    /// [`ViewProgram::is_partitioned`](crate::views::ViewProgram::is_partitioned). Totals and offsets are then those
    /// within the partition.
    pub fn within(mut self, partition: &str) -> Self {
        self.partition = Some(keys::partition_prefix(partition));
        self
    }

    /// Returns rows from the last key to the first. The rows of one document with equal keys keep their order.
    pub fn descending(mut self, is_descending: bool) -> Self {
        self.select.descending = is_descending;
        self
    }

    /// Returns at most `count` rows or groups.
    pub fn limit(mut self, count: u64) -> Self {
        self.select.limit = Some(count);
        self
    }

    /// Skips the first `count` rows or groups.
    pub fn skip(mut self, count: u64) -> Self {
        self.select.skip = count;
        self
    }

    /// Sets whether the view is updated for this query. Default: [`Access::UpdateBefore`].
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Reads the view as of a snapshot; see [`ViewQuery::as_of`](crate::ViewQuery::as_of).
    pub fn as_of(mut self, snapshot: &Snapshot) -> Self {
        self.as_of = Some(snapshot.clone());
        self
    }

    /// The range of all rows of the view, or of its partition.
    fn whole(&self) -> RowRange {
        match &self.partition {
            None => (Vec::new(), None),
            Some(partition) => {
                let prefix = keys::row_prefix(partition);
                let end = prefix_end(&prefix);
                (prefix, end)
            }
        }
    }

    /// The chosen ranges in the order of the result.
    pub(super) fn ranges(&self) -> Vec<RowRange> {
        let partition = self.partition.as_ref();
        let start = |bound: &RowBound| range_start(partition, bound);
        let end = |bound: &RowBound| range_end(partition, bound);
        match &self.choice {
            RowChoice::All => vec![self.whole()],
            RowChoice::Range(lower, upper) => {
                let (first, last) = self.whole();
                vec![(lower.as_ref().map_or(first, start), upper.as_ref().map_or(last, end))]
            }
            RowChoice::Keys(keys_wanted) => {
                let range = |key: &Value| {
                    let prefix = keys::row_prefix(&keys::key_bytes_within(partition, key));
                    let end = prefix_end(&prefix);
                    (prefix, end)
                };
                keys_wanted.iter().map(range).collect()
            }
            RowChoice::Ranges(ranges) => ranges.iter().map(|(lower, upper)| (start(lower), end(upper))).collect(),
        }
    }

    pub(super) fn reading(&self) -> Result<ViewReading> {
        let ProgramView { views, materialized } = &self.view;
        match &self.as_of {
            Some(snapshot) => views.read_as_of(materialized, self.access, snapshot),
            None => views.read(materialized, self.access),
        }
    }

    /// The number of rows of the view or of its partition, and of those before the first range.
    pub(super) fn row_counts(&self, reading: &ViewReading, ranges: &[RowRange]) -> Result<(u64, u64)> {
        let (first, last) = self.whole();
        let counted =
            |from: &[u8], to: Option<&[u8]>| partials::reduce_range(&reading.rows, reading.reducer()?, from, to);
        let total = row_count_of(&counted(&first, last.as_deref())?)?;
        let before = match ranges.first() {
            Some((_, Some(to))) if self.select.descending => counted(to, last.as_deref())?,
            Some((from, _)) if !self.select.descending && *from != first => counted(&first, Some(from))?,
            _ => Vec::new(),
        };
        Ok((total, row_count_of(&before)?))
    }

    /// Streams the rows in key order, rows with equal keys in the order of their documents' ids, and those of one
    /// document in the order in which the program returned them.
    ///
    /// # Errors
    /// The errors of the program; `Corrupt` if stored bytes are damaged.
    pub fn rows(self) -> Result<ProgramRows> {
        let reading = self.reading()?;
        let ranges = self.ranges();
        let (total, before) = self.row_counts(&reading, &ranges)?;
        let offset = before.saturating_add(self.select.skip).min(total);
        let select = Select { ranges: Some(ranges), ..self.select };
        Ok(ProgramRows { rows: select.rows(reading), total, offset })
    }

    /// Reduces the rows; `None` if there are none. Ignores limit and skip. Costs some tens of lookups, however many
    /// rows there are.
    ///
    /// # Errors
    /// Those of [`ProgramQuery::rows`].
    pub fn reduce(self) -> Result<Option<Value>> {
        let reading = self.reading()?;
        Select { ranges: Some(self.ranges()), ..self.select }.reduce(&reading)
    }

    /// Groups the rows and reduces each group. Array keys are grouped by their first `level` elements, which are the
    /// group's key; other keys, and all keys if `level` is `None`, by the whole key.
    ///
    /// # Errors
    /// Those of [`ProgramQuery::rows`].
    pub fn groups(self, level: Option<usize>) -> Result<ProgramGroups> {
        let reading = self.reading()?;
        let partition = self.partition;
        let select = Select { ranges: Some(self.ranges()), ..self.select };
        Ok(ProgramGroups { groups: select.groups(reading, level), partition })
    }
}

/// The inclusive start of the rows within a lower bound.
fn range_start(partition: Option<&keys::PartitionPrefix>, bound: &RowBound) -> Vec<u8> {
    let key = keys::key_bytes_within(partition, &bound.key);
    match (&bound.id, bound.is_inclusive) {
        (None, true) => keys::row_prefix(&key),
        (None, false) => prefix_end(&keys::row_prefix(&key)).unwrap_or_default(),
        (Some(id), true) => keys::row_prefix_for_document(&key, id),
        (Some(id), false) => keys::after_document(&key, id),
    }
}

/// The exclusive end of the rows within an upper bound.
fn range_end(partition: Option<&keys::PartitionPrefix>, bound: &RowBound) -> Option<Vec<u8>> {
    let key = keys::key_bytes_within(partition, &bound.key);
    match (&bound.id, bound.is_inclusive) {
        (None, true) => prefix_end(&keys::row_prefix(&key)),
        (None, false) => Some(keys::row_prefix(&key)),
        (Some(id), true) => Some(keys::after_document(&key, id)),
        (Some(id), false) => Some(keys::row_prefix_for_document(&key, id)),
    }
}

/// The rows of a query in order. Iteration ends after an error. See [`ViewProgram`](crate::views::ViewProgram) for an
/// example.
pub struct ProgramRows {
    rows: RawRows,
    total: u64,
    offset: u64,
}

impl ProgramRows {
    /// The number of rows in the view.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The number of rows in the view before the first row of the result.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The sequence up to which changes are included in the rows.
    pub fn sequence(&self) -> Sequence {
        self.rows.reading.position
    }

    /// Whether documents changed since.
    pub fn is_stale(&self) -> bool {
        self.rows.reading.is_stale
    }

    /// The snapshot from which the rows' documents should be read.
    pub fn snapshot(&self) -> &Snapshot {
        &self.rows.reading.snapshot
    }

    fn read(&mut self) -> Result<Option<ProgramRow>> {
        let Some(RawRow { document, value, .. }) = self.rows.next()? else { return Ok(None) };
        let id = self.rows.reading.snapshot.id(document)?;
        let (key, value) = decode_row(&value)?;
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

/// The groups of a query in order: key and reduction. Iteration ends after an error. See
/// [`ViewProgram`](crate::views::ViewProgram) for an example.
pub struct ProgramGroups {
    groups: RawGroups,
    partition: Option<keys::PartitionPrefix>,
}

impl ProgramGroups {
    /// The sequence up to which changes are included in the groups.
    pub fn sequence(&self) -> Sequence {
        self.groups.position()
    }
}

/// Returns the group key of a row with this value, and the common prefix of the row keys of its group.
pub(super) fn group_of(
    value: &[u8],
    level: Option<usize>,
    partition: Option<&keys::PartitionPrefix>,
) -> Result<(Value, Vec<u8>)> {
    let (emitted, _) = decode_row(value)?;
    Ok(match (level, emitted) {
        // A key of exactly `level` elements is in the group of longer keys that begin with it.
        (Some(level), Value::Array(mut elements))
            if level < elements.len() || level == elements.len() && keys::is_complete_prefix(&elements) =>
        {
            elements.truncate(level);
            let prefix = keys::row_prefix_for_elements(partition, &elements);
            (elements.into(), prefix)
        }
        (_, emitted) => {
            let prefix = keys::row_prefix(&keys::key_bytes_within(partition, &emitted));
            (emitted, prefix)
        }
    })
}

impl Iterator for ProgramGroups {
    type Item = Result<(Value, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        let partition = self.partition.as_ref();
        let read = self.groups.next_by(|_, value, level| group_of(value, level, partition));
        if read.is_err() {
            self.groups.end();
        }
        read.transpose()
    }
}
