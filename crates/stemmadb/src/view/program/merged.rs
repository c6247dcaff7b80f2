//! Queries of one program view in several databases, with the results of a database that has all of their documents.
//!
//! Rows are merged by their encoded keys. These begin with the emitted key and the document's id, so they have the same
//! order in every database. Reductions are merged from partial reductions, never from results, so that the built-in
//! reducers are exact; a custom one combines the databases' reductions in the order of the databases.

use std::collections::VecDeque;
use std::sync::Arc;

use super::adapter::decode_row;
use super::query::group_of;
use super::reduce::CountingReducer;
use super::{ProgramQuery, ProgramRow, ViewProgram, keys};
use crate::Result;
use crate::read::Snapshot;
use crate::revision::Sequence;
use crate::tree::Direction;
use crate::value::Value;
use crate::varint;
use crate::view::layout::damaged;
use crate::view::materialized::ViewReading;
use crate::view::partials;
use crate::view::reduce::{Fold, Reducer};
use crate::view::select::{BATCH_FIRST, RawRow, RawRows, RowOrder, RowRange, Select, group_range, range_after};

/// Whether a row counts: by the index of its database, and the id of its document.
type RowFilter = Arc<dyn Fn(usize, &str) -> bool + Send + Sync>;

/// A query of the same program view in several databases, each of which has some of the documents. Nothing is read
/// before it is run.
///
/// ```
/// # use std::sync::Arc;
/// # use stemmadb::views::{EmittedRows, ProgramReducer, ViewProgram};
/// # use stemmadb::{Document, Result, Value};
/// use stemmadb::Database;
/// use stemmadb::views::MergedQuery;
/// # struct Years;
/// # impl ViewProgram for Years {
/// #     fn name(&self) -> &str { "years" }
/// #     fn map(&self, documents: &[&Document]) -> Result<Vec<Result<EmittedRows>>> {
/// #         let rows = |document: &Document| Ok(document.get("year")?.map(|year| (year, Value::Null)));
/// #         Ok(documents.iter().map(|document| rows(document).map(|row| row.into_iter().collect())).collect())
/// #     }
/// #     fn reducer(&self) -> ProgramReducer { ProgramReducer::Count }
/// # }
/// # fn main() -> Result<()> {
/// let databases = [Database::in_memory(), Database::in_memory()];
/// databases[0].insert("solaris", &serde_json::json!({"year": 1961}))?;
/// databases[1].insert("dune", &serde_json::json!({"year": 1965}))?;
/// let query = || -> Result<MergedQuery> {
///     // `Years` is a view program that emits each document's year, and counts.
///     let opened = databases.iter().map(|db| Ok(db.views().open_program(Arc::new(Years))?.query().descending(true)));
///     Ok(MergedQuery::over(opened.collect::<Result<Vec<_>>>()?))
/// };
/// let ids: Vec<String> = query()?.rows()?.map(|row| Ok(row?.1.id)).collect::<Result<_>>()?;
/// assert_eq!(ids, ["dune", "solaris"]);
/// assert_eq!(query()?.reduce()?, Some(2.into()));
/// # Ok(())
/// # }
/// ```
#[must_use = "a query does nothing until it is run"]
#[derive(Clone)]
pub struct MergedQuery {
    parts: Vec<ProgramQuery>,
    filter: Option<RowFilter>,
}

/// A query that is being run: its readings, and how it selects rows.
struct Run {
    rows: MergedRange,
    reducer: Option<Arc<dyn Reducer>>,
    ranges: VecDeque<RowRange>,
    select: Select,
    partition: Option<keys::PartitionPrefix>,
    /// The numbers of all rows and of those before the first range, in all databases.
    row_counts: (u64, u64),
}

impl MergedQuery {
    /// A query over the databases in which these queries read the view. All of them select the same rows, in the same
    /// order, with the same limit and skip, which then apply to the rows or groups of all databases.
    pub fn over(parts: Vec<ProgramQuery>) -> Self {
        MergedQuery { parts, filter: None }
    }

    /// Leaves out rows that do not count, by the index of their database and the id of their document: while documents
    /// are copied from one database to another, they are in both. Costs reading every row of a reduction or a group.
    pub fn counting(mut self, counts: impl Fn(usize, &str) -> bool + Send + Sync + 'static) -> Self {
        self.filter = Some(Arc::new(counts));
        self
    }

    fn run(self, counts_rows: bool) -> Result<Run> {
        let (mut parts, mut row_counts) = (Vec::with_capacity(self.parts.len()), (0_u64, 0_u64));
        let ranges = self.parts.first().map(ProgramQuery::ranges).unwrap_or_default();
        // All states are read before any row is.
        let readings = self.parts.iter().map(ProgramQuery::reading).collect::<Result<Vec<ViewReading>>>()?;
        let reducer = readings.first().and_then(|reading| reading.reducer.clone());
        for (query, reading) in self.parts.iter().zip(readings) {
            if counts_rows && self.filter.is_none() {
                let (total, before) = query.row_counts(&reading, &ranges)?;
                row_counts = (row_counts.0.saturating_add(total), row_counts.1.saturating_add(before));
            }
            parts.push(Select::default().rows(reading));
        }
        let heads = no_rows(parts.len());
        let (filter, deciding) = (self.filter, Vec::new());
        let rows = MergedRange { parts, heads, order: RowOrder::Ascending, filter, deciding };
        let first = self.parts.into_iter().next();
        let partition = first.as_ref().and_then(|query| query.partition);
        let select = first.map(|query| query.select).unwrap_or_default();
        Ok(Run { rows, reducer, ranges: ranges.into(), select, partition, row_counts })
    }

    /// Streams the rows of all databases in the order of one database. Each comes with the index of its database.
    ///
    /// # Errors
    /// Those of [`ProgramQuery::rows`].
    pub fn rows(self) -> Result<MergedRows> {
        let Run { rows, ranges, select, row_counts: (total, before), .. } = self.run(true)?;
        let counts = match rows.filter {
            Some(_) => None,
            None => Some((total, before.saturating_add(select.skip).min(total))),
        };
        let (order, skip, left) = (select.order(), select.skip, select.limit.unwrap_or(u64::MAX));
        Ok(MergedRows { rows, ranges, order, skip, left, counts, place: RowPlace::default(), has_begun: false })
    }

    /// Reduces the rows of all databases; `None` if there are none. Ignores limit and skip.
    ///
    /// # Errors
    /// Those of [`ProgramQuery::rows`].
    pub fn reduce(self) -> Result<Option<Value>> {
        let Run { mut rows, reducer, ranges, .. } = self.run(false)?;
        let Some(reducer) = reducer.as_deref() else { return Ok(None) };
        let parts: Vec<usize> = (0..rows.parts.len()).collect();
        let (mut fold, mut is_empty) = (reducer.begin(), true);
        for range in ranges {
            let partial = rows.reduce(&parts, reducer, &range)?;
            if !partial.is_empty() {
                fold.part(&partial)?;
                is_empty = false;
            }
        }
        if is_empty { Ok(None) } else { reducer.result(&fold.finish()?).map(Some) }
    }

    /// As [`MergedQuery::reduce`], as a part of a reduction that [`combine_reductions`] makes of those of several
    /// processes; empty if there are no rows.
    ///
    /// # Errors
    /// Those of [`MergedQuery::reduce`].
    pub fn reduce_partially(self) -> Result<Vec<u8>> {
        let Run { mut rows, reducer, ranges, .. } = self.run(false)?;
        let Some(reducer) = reducer.as_deref() else { return Ok(Vec::new()) };
        let parts: Vec<usize> = (0..rows.parts.len()).collect();
        let (mut fold, mut place) = (reducer.begin(), None);
        for (at, range) in ranges.iter().enumerate() {
            let partial = rows.reduce(&parts, reducer, range)?;
            if partial.is_empty() {
                continue;
            }
            fold.part(&partial)?;
            let row = std::mem::take(&mut rows.deciding);
            match reducer.deciding_row() {
                Some(Direction::Ascending) if place.is_some() => {}
                _ => place = Some(RowPlace { range: at, order: row }),
            }
        }
        Ok(placed(reducer, place.unwrap_or_default(), fold.finish()?))
    }

    /// Groups the rows of all databases and reduces each group; see [`ProgramQuery::groups`].
    ///
    /// # Errors
    /// Those of [`ProgramQuery::rows`].
    pub fn groups(self, level: Option<usize>) -> Result<MergedGroups> {
        let Run { rows, reducer, ranges, select, partition, .. } = self.run(false)?;
        // The group of a row is that of all rows of its document with an equal key.
        let order = if select.descending { RowOrder::Descending } else { RowOrder::Ascending };
        let (skip, left) = (select.skip, select.limit.unwrap_or(u64::MAX));
        let place = RowPlace::default();
        Ok(MergedGroups {
            rows,
            reducer,
            current: None,
            ranges,
            order,
            level,
            partition,
            skip,
            left,
            place,
            has_begun: false,
            partial: Vec::new(),
        })
    }
}

/// The place of a row or a group within the result of a query: places compare as rows do, in every database. Of a
/// descending query, the order within a range is the opposite one.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct RowPlace {
    /// The index of the range, or of the key, of the query.
    pub range: usize,
    /// The place within it.
    pub order: Vec<u8>,
}

/// Reduces what the databases of several processes have reduced by [`MergedQuery::reduce_partially`], or as
/// [`MergedGroups::partial`]; `None` if there are no rows. The order of the parts counts only for custom reducers.
///
/// # Errors
/// Those of the program; `Corrupt` if a part is malformed.
pub fn combine_reductions(program: &Arc<dyn ViewProgram>, parts: &[Vec<u8>]) -> Result<Option<Value>> {
    let reducer = CountingReducer::new(program.clone());
    let parts = parts.iter().filter(|part| !part.is_empty());
    if let Some(deciding) = reducer.deciding_row() {
        let placed = parts.map(|part| split_placed(part)).collect::<Result<Vec<_>>>()?;
        let decisive = match deciding {
            Direction::Ascending => placed.into_iter().min_by(|one, other| one.0.cmp(&other.0)),
            Direction::Descending => placed.into_iter().max_by(|one, other| one.0.cmp(&other.0)),
        };
        return decisive.map(|(_, partial)| reducer.result(partial)).transpose();
    }
    let (mut fold, mut is_empty) = (reducer.begin(), true);
    for part in parts {
        fold.part(part)?;
        is_empty = false;
    }
    if is_empty { Ok(None) } else { reducer.result(&fold.finish()?).map(Some) }
}

/// A partial reduction for another process. If one row decides it, the place of that row comes first: its range, the
/// length of its key, and its key.
fn placed(reducer: &dyn Reducer, place: RowPlace, partial: Vec<u8>) -> Vec<u8> {
    if reducer.deciding_row().is_none() || partial.is_empty() {
        return partial;
    }
    let mut placed = Vec::with_capacity(partial.len() + place.order.len() + 8);
    varint::write(place.range as u64, &mut placed);
    varint::write(place.order.len() as u64, &mut placed);
    placed.extend_from_slice(&place.order);
    placed.extend_from_slice(&partial);
    placed
}

/// The range and the key of a row.
type PlaceBytes<'a> = (u64, &'a [u8]);

/// Splits what [`placed`] wrote.
fn split_placed(mut part: &[u8]) -> Result<(PlaceBytes<'_>, &[u8])> {
    let range = varint::read(&mut part)?;
    let len = usize::try_from(varint::read(&mut part)?).unwrap_or(usize::MAX);
    let (order, partial) = part.split_at_checked(len).ok_or_else(|| damaged("a part of a reduction"))?;
    Ok(((range, order), partial))
}

fn no_rows(count: usize) -> Vec<Option<RawRow>> {
    std::iter::repeat_with(|| None).take(count).collect()
}

/// The rows of a range in several databases, merged.
struct MergedRange {
    parts: Vec<RawRows>,
    /// The next row of each part.
    heads: Vec<Option<RawRow>>,
    order: RowOrder,
    filter: Option<RowFilter>,
    /// The key of the row that decided the last reduction, if one row did.
    deciding: Vec<u8>,
}

impl MergedRange {
    /// Starts with the first rows of a range in all parts.
    fn start(&mut self, range: &RowRange, order: RowOrder, batch_count: usize) -> Result<()> {
        self.order = order;
        (0..self.parts.len()).try_for_each(|part| self.start_part(part, range.clone(), batch_count))
    }

    fn start_part(&mut self, part: usize, range: RowRange, batch_count: usize) -> Result<()> {
        self.parts[part].restart(range, self.order, batch_count);
        self.advance(part)
    }

    /// Reads the next row of a part that counts.
    fn advance(&mut self, part: usize) -> Result<()> {
        self.heads[part] = None;
        while let Some(row) = self.parts[part].next()? {
            let is_counted = match &self.filter {
                Some(filter) => filter(part, self.parts[part].reading.snapshot.id(row.document)?.as_str()),
                None => true,
            };
            if is_counted {
                self.heads[part] = Some(row);
                break;
            }
        }
        Ok(())
    }

    /// The part that has the next row.
    fn first(&self) -> Option<usize> {
        let heads = self.heads.iter().enumerate().filter_map(|(part, head)| Some((part, &head.as_ref()?.key)));
        let by_key = |one: &(usize, &Vec<u8>), other: &(usize, &Vec<u8>)| one.1.cmp(other.1);
        let first = if self.order.is_descending() { heads.max_by(by_key) } else { heads.min_by(by_key) };
        first.map(|(part, _)| part)
    }

    /// The next row, and its part.
    fn next(&mut self) -> Result<Option<(usize, RawRow)>> {
        let Some(part) = self.first() else { return Ok(None) };
        let row = self.heads[part].take();
        self.advance(part)?;
        Ok(row.map(|row| (part, row)))
    }

    /// Reduces the rows of a range in some parts; returns empty bytes if there are none. The next rows stay the same.
    fn reduce(&mut self, parts: &[usize], reducer: &dyn Reducer, range: &RowRange) -> Result<Vec<u8>> {
        let (heads, order) = (std::mem::replace(&mut self.heads, no_rows(self.parts.len())), self.order);
        let mut fold = reducer.begin();
        let folded = self.fold(parts, reducer, range, &mut *fold);
        (self.heads, self.order) = (heads, order);
        folded?;
        fold.finish()
    }

    fn fold(&mut self, parts: &[usize], reducer: &dyn Reducer, range: &RowRange, fold: &mut dyn Fold) -> Result<()> {
        let (order, is_decided_by_one) = match reducer.deciding_row() {
            Some(Direction::Descending) => (RowOrder::Descending, true),
            deciding => (RowOrder::Ascending, deciding.is_some()),
        };
        if self.filter.is_none() && !is_decided_by_one {
            return self.fold_partials(parts, reducer, range, fold);
        }
        self.order = order;
        let batch_count = if is_decided_by_one { 1 } else { BATCH_FIRST };
        parts.iter().try_for_each(|part| self.start_part(*part, range.clone(), batch_count))?;
        while let Some((_, row)) = self.next()? {
            fold.row(&row.key, &row.value)?;
            if is_decided_by_one {
                self.deciding = row.key;
                break;
            }
        }
        Ok(())
    }

    /// Folds the stored reductions of the parts, in their order.
    fn fold_partials(
        &self,
        parts: &[usize],
        reducer: &dyn Reducer,
        (from, to): &RowRange,
        fold: &mut dyn Fold,
    ) -> Result<()> {
        for part in parts {
            let rows = &self.parts[*part].reading.rows;
            let partial = partials::reduce_range(rows, reducer, from, to.as_deref())?;
            if !partial.is_empty() {
                fold.part(&partial)?;
            }
        }
        Ok(())
    }

    fn reading(&self, part: usize) -> &ViewReading {
        &self.parts[part].reading
    }
}

/// The rows of a [`MergedQuery`] in order: each with the index of its database. Iteration ends after an error. See
/// [`MergedQuery`] for an example.
pub struct MergedRows {
    rows: MergedRange,
    /// The remaining ranges, the next one first.
    ranges: VecDeque<RowRange>,
    order: RowOrder,
    skip: u64,
    left: u64,
    /// Total and offset.
    counts: Option<(u64, u64)>,
    /// That of the last row.
    place: RowPlace,
    has_begun: bool,
}

impl MergedRows {
    /// The number of rows in the view in all databases; `None` if some rows may not count.
    pub fn total(&self) -> Option<u64> {
        self.counts.map(|(total, _)| total)
    }

    /// The number of rows before the first row of the result; `None` if some rows may not count.
    pub fn offset(&self) -> Option<u64> {
        self.counts.map(|(_, offset)| offset)
    }

    /// The place of the row that was returned last.
    pub fn place(&self) -> &RowPlace {
        &self.place
    }

    /// The sequence of a database up to which changes are included in the rows.
    pub fn sequence(&self, database: usize) -> Sequence {
        self.rows.reading(database).position
    }

    /// The snapshot of a database from which the rows' documents should be read.
    pub fn snapshot(&self, database: usize) -> &Snapshot {
        &self.rows.reading(database).snapshot
    }

    fn read(&mut self) -> Result<Option<(usize, ProgramRow)>> {
        while self.left > 0 {
            let Some((part, RawRow { document, value, key: order })) = self.rows.next()? else {
                let Some(range) = self.ranges.pop_front() else { break };
                self.place.range += usize::from(self.has_begun);
                self.has_begun = true;
                self.rows.start(&range, self.order, BATCH_FIRST)?;
                continue;
            };
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            self.left -= 1;
            self.place.order = order;
            let id = self.snapshot(part).id(document)?;
            let (key, value) = decode_row(&value)?;
            return Ok(Some((part, ProgramRow { id: id.as_str().to_owned(), key, value })));
        }
        Ok(None)
    }
}

impl Iterator for MergedRows {
    type Item = Result<(usize, ProgramRow)>;

    fn next(&mut self) -> Option<Self::Item> {
        let read = self.read();
        if read.is_err() {
            self.left = 0;
        }
        read.transpose()
    }
}

/// The groups of a [`MergedQuery`] in order: key and reduction. Iteration ends after an error. See [`MergedQuery`] for
/// an example.
pub struct MergedGroups {
    rows: MergedRange,
    reducer: Option<Arc<dyn Reducer>>,
    /// What is left of the range that is being read.
    current: Option<RowRange>,
    /// The remaining ranges, the next one first.
    ranges: VecDeque<RowRange>,
    order: RowOrder,
    level: Option<usize>,
    partition: Option<keys::PartitionPrefix>,
    skip: u64,
    left: u64,
    /// The place and the partial reduction of the last group.
    place: RowPlace,
    has_begun: bool,
    partial: Vec<u8>,
}

impl MergedGroups {
    /// The place of the group that was returned last.
    pub fn place(&self) -> &RowPlace {
        &self.place
    }

    /// The reduction of the group that was returned last, for [`combine_reductions`].
    pub fn partial(&self) -> &[u8] {
        &self.partial
    }

    /// The sequence of a database up to which changes are included in the groups.
    pub fn sequence(&self, database: usize) -> Sequence {
        self.rows.reading(database).position
    }

    fn read(&mut self) -> Result<Option<(Value, Value)>> {
        let Some(reducer) = self.reducer.clone() else { return Ok(None) };
        while self.left > 0 {
            let Some((key, prefix, range, parts)) = self.next_group()? else { break };
            let partial = match self.skip {
                0 => Some(self.rows.reduce(&parts, &*reducer, &range)?),
                _ => None,
            };
            self.pass(&range, &parts)?;
            let Some(partial) = partial else {
                self.skip -= 1;
                continue;
            };
            self.left -= 1;
            let result = reducer.result(&partial)?;
            let deciding = RowPlace { range: 0, order: std::mem::take(&mut self.rows.deciding) };
            (self.place.order, self.partial) = (prefix, placed(&*reducer, deciding, partial));
            return Ok(Some((key, result)));
        }
        Ok(None)
    }

    /// The next group.
    fn next_group(&mut self) -> Result<Option<NextGroup>> {
        loop {
            // The group is that of the first row in all parts, as in one database.
            let first = self.rows.first();
            if let (Some(first), Some(current)) = (first, &self.current)
                && let Some(head) = &self.rows.heads[first]
            {
                let (key, prefix) = group_of(&head.value, self.level, self.partition.as_ref())?;
                let is_member = |head: &RawRow| head.key.starts_with(&prefix);
                let heads = self.rows.heads.iter().enumerate();
                let members = heads.filter(|(part, head)| *part == first || head.as_ref().is_some_and(is_member));
                let members = members.map(|(part, _)| part).collect();
                let range = group_range(&prefix, current);
                return Ok(Some((key, prefix, range, members)));
            }
            let Some(range) = self.ranges.pop_front() else { return Ok(None) };
            self.place.range += usize::from(self.has_begun);
            self.has_begun = true;
            self.rows.start(&range, self.order, 1)?;
            self.current = Some(range);
        }
    }

    /// Continues after a group, which some parts have.
    fn pass(&mut self, (from, to): &RowRange, parts: &[usize]) -> Result<()> {
        let current = self.current.take();
        self.current = current.and_then(|current| range_after(current, (from, to), self.order.is_descending()));
        for part in parts {
            match &self.current {
                Some(rest) => self.rows.start_part(*part, rest.clone(), 1)?,
                None => self.rows.heads[*part] = None,
            }
        }
        Ok(())
    }
}

/// The key of a group, the common prefix of its rows, their range, and the parts that have any.
type NextGroup = (Value, Vec<u8>, RowRange, Vec<usize>);

impl Iterator for MergedGroups {
    type Item = Result<(Value, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        let read = self.read();
        if read.is_err() {
            self.left = 0;
        }
        read.transpose()
    }
}
