//! Sorted order by a column: the values of the sort path are in memory in order, so a document's position is a number.
//!
//! Used only if the column is complete for the sort: one sort path, no cut values, no arrays or objects at the path, no
//! document with incomplete terms, and nothing in memtables. Documents with the same value are ordered by id.
//!
//! Rows are found by the cheaper of two strategies: sort the set of matching documents by position, or walk the column
//! in order and test each document. A walk tests ranges against other columns and evaluates terms chunk by chunk, so a
//! short result does not need their whole sets.

use std::collections::VecDeque;
use std::ops::{Bound, Range};
use std::sync::Arc;

use super::cursor::{FilterState, Filtered};
use super::evaluate::{Trace, evaluate, is_of_terms};
use super::stream::ChunkedFilter;
use crate::cache::Column;
use crate::index::{DocumentNumber, DocumentSet, PathNumber, Presence};
use crate::query::language::page_token::Position;
use crate::query::language::sort::{self, MISSING, SortPath, SortedPosition, VALUE_BYTES_MAX};
use crate::query::plan::Node;
use crate::query::source::{IndexReader, QuerySource};
use crate::{Error, Result};

/// With a limit above this many rows, documents are not tested one by one. After `TESTED_MAX` tests the set of matching
/// documents is computed after all; few in tests, so that small results exercise both strategies.
const TESTED_ROWS_MAX: u64 = 256;
const TESTED_MAX: usize = if cfg!(test) { 3 } else { 4_096 };
/// The cost of sorting a document, in tests on a walk.
const TESTS_A_SORT: u64 = 8;

/// Iterates over the rows in order.
pub(in crate::query) struct Ranked {
    order: ColumnOrder,
    /// Rows up to this one were already returned.
    after: Option<LastReturned>,
    rows_needed: Option<u64>,
    strategy: Strategy,
    ready: VecDeque<DocumentNumber>,
}

/// The position of documents by their value at the path. Documents without a value come first if the order is
/// ascending, last if it is descending.
struct ColumnOrder {
    column: Arc<Column>,
    path: PathNumber,
    is_descending: bool,
}

/// The row that was returned last.
struct LastReturned {
    /// Its position, or that of the first value after it.
    position: u32,
    /// The documents at this position up to this id were returned. `None` if none of them was.
    id: Option<crate::revision::DocumentId>,
}

enum Strategy {
    /// Already in order.
    Listed(std::vec::IntoIter<DocumentNumber>),
    /// Walks the column from this position on.
    Walk { members: Members, next: u32, tested_count: usize },
}

/// The matching documents.
enum Members {
    All,
    Set(DocumentSet),
    /// Those that pass all tests.
    Tested(Vec<MemberTest>),
    /// Those that match the filter, which is evaluated chunk by chunk as documents are visited.
    Chunked(ChunkedFilter),
}

enum MemberTest {
    Ranks(Arc<Column>, Range<u32>),
    Set(DocumentSet),
    Any(Vec<MemberTest>),
}

impl Ranked {
    /// Returns the rows in the order of a path, or `None` if its column is not complete. Evaluates as much of the
    /// filter as the strategy needs.
    pub(in crate::query) fn start(
        filtered: &mut Filtered<impl QuerySource>,
        path: PathNumber,
        by: &SortPath,
        after: Option<&SortedPosition>,
        rows_needed: Option<u64>,
        trace: Option<&mut Trace>,
    ) -> Result<Option<Self>> {
        if !filtered.overflow().is_empty() {
            return Ok(None);
        }
        let Some(column) = filtered.source.column(path)? else { return Ok(None) };
        if !column.is_whole(VALUE_BYTES_MAX)
            || filtered.source.presence_len(path, &[Presence::Array, Presence::Object])? > 0
        {
            return Ok(None);
        }
        let order = ColumnOrder { column, path, is_descending: by.descending };
        let after = after.map(|after| order.after(after));
        let next = after.as_ref().map_or(0, |after| after.position);
        let walk = |members| Strategy::Walk { members, next, tested_count: 0 };
        let mut ranked = Ranked { order, after, rows_needed, strategy: walk(Members::All), ready: VecDeque::new() };
        let is_short = rows_needed.is_some_and(|rows_needed| rows_needed <= TESTED_ROWS_MAX) && trace.is_none();
        if filtered.plan.filter == Node::All {
            filtered.filter_state = FilterState::MatchesAll;
        } else if let Some(members) = if is_short { ranked.testable(filtered)? } else { None } {
            filtered.filter_state = FilterState::MatchesAll;
            ranked.strategy = walk(members);
        } else {
            filtered.filter(trace)?;
            let Some(matching) = filtered.exact() else { return Ok(None) };
            ranked.order_matching(filtered, matching, next)?;
        }
        Ok(Some(ranked))
    }

    /// Returns at most `want` further rows; none at the end.
    pub(in crate::query) fn next_numbers(
        &mut self,
        filtered: &Filtered<impl QuerySource>,
        want: usize,
    ) -> Result<Vec<DocumentNumber>> {
        while self.ready.len() < want {
            if let Strategy::Walk {
                members: Members::Tested(_) | Members::Chunked(_),
                next,
                tested_count: tested_count @ TESTED_MAX..,
            } = &mut self.strategy
            {
                let next = *next;
                *tested_count = 0;
                let match_set = evaluate(&filtered.plan.filter, &filtered.source, None)?;
                // If few documents are left, the evaluation leaves them to be read; testing continues then.
                if match_set.maybe.is_empty() {
                    self.order_matching(filtered, match_set.certain, next)?;
                }
            }
            if !self.step(filtered)? {
                break;
            }
        }
        Ok(self.ready.drain(..want.min(self.ready.len())).collect())
    }

    /// The position of a row, for a continuation token.
    pub(in crate::query) fn position(&self, source: &impl IndexReader, number: DocumentNumber) -> Result<Position> {
        let position = self.positions(source, &[number])?.pop();
        position.map(Position::Sorted).ok_or_else(|| Error::internal("a row without an id"))
    }

    /// The positions of rows in the sorted order.
    pub(in crate::query) fn positions(
        &self,
        source: &impl IndexReader,
        numbers: &[DocumentNumber],
    ) -> Result<Vec<SortedPosition>> {
        let position = |(number, id): (&DocumentNumber, _)| {
            let mut key = Vec::new();
            sort::append_encoded(&mut key, self.order.key(self.order.of(*number)), self.order.is_descending);
            SortedPosition { key: key.into(), id }
        };
        Ok(numbers.iter().zip(source.ids(numbers)?).map(position).collect())
    }

    /// Chooses how documents are tested on the walk, or `None` if testing would cost more than computing the set.
    fn testable(&self, filtered: &Filtered<impl QuerySource>) -> Result<Option<Members>> {
        let filter = &filtered.plan.filter;
        if !is_of_terms(filter) || !filter.is_exact() {
            return Ok(tests(filtered)?.map(Members::Tested));
        }
        let chunked = ChunkedFilter::default();
        let matching = chunked.estimate(filter, &filtered.source)?;
        let rows_needed = self.rows_needed.unwrap_or(u64::MAX);
        let tested = self.order.column.document_count().saturating_mul(rows_needed) / matching.max(1);
        Ok((tested <= TESTED_MAX as u64 / 4).then_some(Members::Chunked(chunked)))
    }

    /// Continues with the set of matching documents from a position on.
    fn order_matching(
        &mut self,
        filtered: &Filtered<impl QuerySource>,
        matching: DocumentSet,
        from: u32,
    ) -> Result<()> {
        let (all, count) = (self.order.column.document_count(), matching.len().max(1));
        let is_walk_cheaper = match self.rows_needed {
            Some(rows_needed) => all.saturating_mul(rows_needed) / count <= count.saturating_mul(TESTS_A_SORT),
            None => all <= count.saturating_mul(TESTS_A_SORT),
        };
        self.strategy = if is_walk_cheaper {
            Strategy::Walk { members: Members::Set(matching), next: from, tested_count: 0 }
        } else {
            Strategy::Listed(self.in_order(filtered, &matching, from)?.into_iter())
        };
        Ok(())
    }

    /// Returns the documents from a position on, in order, and no more than are wanted.
    fn in_order(
        &self,
        filtered: &Filtered<impl QuerySource>,
        matching: &DocumentSet,
        from: u32,
    ) -> Result<Vec<DocumentNumber>> {
        // Position and number in one integer, which sorts fastest.
        let row_of = |number: DocumentNumber| u64::from(self.order.of(number)) << 32 | number.0;
        let position_of = |row: u64| (row >> 32) as u32;
        let mut rows: Vec<u64> = matching.iter().map(row_of).filter(|row| position_of(*row) >= from).collect();
        let is_returned =
            |position: u32| self.after.as_ref().is_some_and(|after| after.position == position && after.id.is_some());
        let returned_count = rows.iter().filter(|row| is_returned(position_of(**row))).count();
        let rows_needed =
            self.rows_needed.map_or(usize::MAX, |rows_needed| usize::try_from(rows_needed).unwrap_or(usize::MAX));
        let rows_needed = rows_needed.saturating_add(returned_count);
        if rows_needed > 0 && rows_needed < rows.len() {
            let last = position_of(*rows.select_nth_unstable(rows_needed - 1).1);
            // Documents at this position tie, so all of them may be wanted.
            rows.retain(|row| position_of(*row) <= last);
        }
        rows.sort_unstable();
        let number_of = |row: &u64| DocumentNumber(row & u64::from(u32::MAX));
        let mut numbers = Vec::with_capacity(rows.len());
        for tied in rows.chunk_by(|a, b| position_of(*a) == position_of(*b)) {
            match tied {
                [only] if !is_returned(position_of(*only)) => numbers.push(number_of(only)),
                tied => {
                    self.add_tied(filtered, position_of(tied[0]), tied.iter().map(number_of).collect(), &mut numbers)?
                }
            }
        }
        Ok(numbers)
    }

    /// Finds further rows; false if there are none.
    fn step(&mut self, filtered: &Filtered<impl QuerySource>) -> Result<bool> {
        let (members, position) = match &mut self.strategy {
            Strategy::Listed(numbers) => {
                let before = self.ready.len();
                self.ready.extend(numbers);
                return Ok(self.ready.len() > before);
            }
            Strategy::Walk { members, next, tested_count } => {
                let position = *next;
                if position > self.order.last() {
                    return Ok(false);
                }
                *next += 1;
                *tested_count += 1;
                (members, position)
            }
        };
        let numbers: Vec<DocumentNumber> = match self.order.rank(position) {
            Some(rank) => match self.order.column.documents(rank) {
                [only] => {
                    let only = DocumentNumber(u64::from(*only));
                    if !members.has(filtered, only)? {
                        return Ok(true);
                    }
                    if self.after.as_ref().is_none_or(|after| after.position != position) {
                        self.ready.push_back(only);
                        return Ok(true);
                    }
                    vec![only]
                }
                several => {
                    let numbers = several.iter().map(|number| DocumentNumber(u64::from(*number)));
                    members.among(filtered, numbers)?
                }
            },
            None => members.missing(filtered, self.order.path)?,
        };
        if let Strategy::Walk { tested_count, .. } = &mut self.strategy {
            *tested_count += numbers.len();
        }
        let mut ready = Vec::with_capacity(numbers.len());
        self.add_tied(filtered, position, numbers, &mut ready)?;
        self.ready.extend(ready);
        Ok(true)
    }

    /// Adds the documents of one position in order of their ids, except those already returned.
    fn add_tied(
        &self,
        filtered: &Filtered<impl QuerySource>,
        position: u32,
        numbers: Vec<DocumentNumber>,
        out: &mut Vec<DocumentNumber>,
    ) -> Result<()> {
        let after = self.after.as_ref().filter(|after| after.position == position).and_then(|after| after.id.as_ref());
        if numbers.len() < 2 && after.is_none() {
            out.extend(numbers);
            return Ok(());
        }
        let ids = filtered.source.ids(&numbers)?;
        let mut tied: Vec<_> = ids.into_iter().zip(numbers).collect();
        tied.retain(|(id, _)| after.is_none_or(|after| id > after));
        tied.sort_unstable();
        out.extend(tied.into_iter().map(|(_, number)| number));
        Ok(())
    }
}

impl ColumnOrder {
    fn value_count(&self) -> u32 {
        self.column.len() as u32
    }

    /// The position of documents without a value.
    fn missing(&self) -> u32 {
        if self.is_descending { self.value_count() } else { 0 }
    }

    fn last(&self) -> u32 {
        self.value_count()
    }

    fn of_rank(&self, rank: u32) -> u32 {
        if self.is_descending { self.value_count() - 1 - rank } else { rank + 1 }
    }

    #[inline]
    fn of(&self, number: DocumentNumber) -> u32 {
        self.column.rank(number).map_or(self.missing(), |rank| self.of_rank(rank))
    }

    /// The rank of the value at a position; `None` for documents without a value.
    fn rank(&self, position: u32) -> Option<usize> {
        let rank =
            if self.is_descending { self.value_count().checked_sub(position + 1) } else { position.checked_sub(1) };
        rank.map(|rank| rank as usize)
    }

    fn key(&self, position: u32) -> &[u8] {
        self.rank(position).map_or(&[MISSING], |rank| self.column.key(rank))
    }

    fn after(&self, after: &SortedPosition) -> LastReturned {
        let key: Vec<u8> = after.key.iter().map(|byte| if self.is_descending { !byte } else { *byte }).collect();
        if *key == [MISSING] {
            return LastReturned { position: self.missing(), id: Some(after.id.clone()) };
        }
        match (self.column.find(&key), self.is_descending) {
            (Ok(rank), _) => LastReturned { position: self.of_rank(rank as u32), id: Some(after.id.clone()) },
            // The first position whose value is above it (ascending) or below it (descending).
            (Err(below_count), false) => LastReturned { position: below_count as u32 + 1, id: None },
            (Err(below_count), true) => LastReturned { position: self.value_count() - below_count as u32, id: None },
        }
    }
}

impl Members {
    #[inline]
    fn has(&self, filtered: &Filtered<impl QuerySource>, number: DocumentNumber) -> Result<bool> {
        Ok(match self {
            Members::All => true,
            Members::Set(set) => set.contains(number),
            Members::Tested(tests) => tests.iter().all(|test| test.passes(number)),
            Members::Chunked(chunked) => chunked.has(number, &filtered.plan.filter, &filtered.source)?,
        })
    }

    fn among(
        &self,
        filtered: &Filtered<impl QuerySource>,
        numbers: impl Iterator<Item = DocumentNumber>,
    ) -> Result<Vec<DocumentNumber>> {
        let mut members = Vec::new();
        for number in numbers {
            if self.has(filtered, number)? {
                members.push(number);
            }
        }
        Ok(members)
    }

    /// The matching documents without a value at the path.
    fn missing(&self, filtered: &Filtered<impl QuerySource>, path: PathNumber) -> Result<Vec<DocumentNumber>> {
        let mut missing = match self {
            Members::Set(set) => set.clone(),
            Members::All | Members::Tested(_) | Members::Chunked(_) => {
                filtered.source.presence(PathNumber::ROOT, &[Presence::Object])?
            }
        };
        missing.and_not_with(&filtered.source.presence(path, &Presence::ALL)?);
        self.among(filtered, missing.iter())
    }
}

/// Returns tests that a document passes if and only if it matches, or `None` if they would cost more than they save.
fn tests(filtered: &Filtered<impl QuerySource>) -> Result<Option<Vec<MemberTest>>> {
    // Without a range, intersecting the sets is as cheap.
    if !has_range(&filtered.plan.filter) {
        return Ok(None);
    }
    let nodes = filtered.plan.filter.conjuncts();
    let mut tests = Vec::with_capacity(nodes.len());
    for node in nodes {
        match test(node, &filtered.source)? {
            Some(test) => tests.push(test),
            None => return Ok(None),
        }
    }
    Ok(Some(tests))
}

fn has_range(node: &Node) -> bool {
    match node {
        Node::Range { .. } => true,
        Node::Union(nodes) | Node::Intersection(nodes) => nodes.iter().any(has_range),
        _ => false,
    }
}

fn test(node: &Node, source: &impl IndexReader) -> Result<Option<MemberTest>> {
    Ok(match node {
        // A document has at most one value at a path that enters no array.
        Node::Range { path, range } if !source.paths().enters_array(*path) => source.column(*path)?.map(|column| {
            let span = column.span(Bound::Included(&range.lower), Bound::Excluded(&range.upper));
            MemberTest::Ranks(column, span.start as u32..span.end as u32)
        }),
        Node::Equal { path, key } => Some(MemberTest::Set(source.equal(*path, key)?)),
        Node::Presence { path, kinds } => Some(MemberTest::Set(source.presence(*path, kinds)?)),
        Node::Union(nodes) => {
            let mut any = Vec::with_capacity(nodes.len());
            for node in nodes {
                match test(node, source)? {
                    Some(MemberTest::Set(set)) if set.is_empty() => {}
                    Some(test) => any.push(test),
                    None => return Ok(None),
                }
            }
            Some(MemberTest::Any(any))
        }
        _ => None,
    })
}

impl MemberTest {
    #[inline]
    fn passes(&self, number: DocumentNumber) -> bool {
        match self {
            MemberTest::Ranks(column, ranks) => column.rank(number).is_some_and(|rank| ranks.contains(&rank)),
            MemberTest::Set(set) => set.contains(number),
            MemberTest::Any(any) => any.iter().any(|test| test.passes(number)),
        }
    }
}
