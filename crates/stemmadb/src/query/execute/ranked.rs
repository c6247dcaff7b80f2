//! A sorted order from a column: its path's values lie in memory in order, so a document's place is a number.
//!
//! Only where that says everything: one path, every value whole, no arrays or objects there, no document whose terms are incomplete,
//! nothing in memtables. Documents of one value stand by id.
//!
//! Two ways: the documents that match are known and brought into order, or the column is walked in order and its documents are tested,
//! whichever costs less. A walk tests ranges against other columns, and terms chunk by chunk, so that a short result needs no set of them.

use std::collections::VecDeque;
use std::ops::{Bound, Range};
use std::sync::Arc;

use super::cursor::{Filtered, Known};
use super::evaluate::{Trace, evaluate, is_of_terms};
use super::stream::ByChunk;
use crate::cache::Column;
use crate::index::{DocumentNumber, DocumentSet, PathNumber, Presence};
use crate::query::language::page_token::Position;
use crate::query::language::sort::{self, MISSING, SortPath, Sorted, VALUE_BYTES_MAX};
use crate::query::plan::Node;
use crate::query::source::Source;
use crate::{Error, Result};

/// A limit above this many rows is none, as far as testing documents goes; and how many are tested before the documents that match
/// are looked up after all; few in tests, so that small results meet both.
const TESTED_ROWS_MAX: u64 = 256;
const TESTED_MAX: usize = if cfg!(test) { 3 } else { 4_096 };
/// Bringing a document into its order takes as long as testing so many on a walk.
const TESTS_A_SORT: u64 = 8;

/// Rows in order.
pub(in crate::query) struct Ranked {
    places: Places,
    /// Rows up to this one were returned before.
    after: Option<After>,
    wanted: Option<u64>,
    way: Way,
    ready: VecDeque<DocumentNumber>,
}

/// Where documents stand, by their value at the path: first those without one if the order ascends, last if it descends.
struct Places {
    column: Arc<Column>,
    path: PathNumber,
    is_descending: bool,
}

/// The row that was returned last.
struct After {
    /// Its place, or that of the first value beyond it.
    place: u32,
    /// Whose documents of this place were returned, as far as this one; none if no document stands there that was.
    id: Option<crate::revision::DocumentId>,
}

enum Way {
    /// In order already.
    Listed(std::vec::IntoIter<DocumentNumber>),
    /// From this place on.
    Walk { members: Members, next: u32, tested_count: usize },
}

/// The documents that match.
enum Members {
    All,
    Set(DocumentSet),
    /// Those that pass all tests.
    Tested(Vec<Test>),
    /// Those that meet the filter, which is evaluated for the chunks of those that are met.
    ByChunk(ByChunk),
}

enum Test {
    Ranks(Arc<Column>, Range<u32>),
    Set(DocumentSet),
    Any(Vec<Test>),
}

impl Ranked {
    /// The rows in the order of a path; none if its column does not say everything. What is known of the filter afterwards is what
    /// had to be evaluated.
    pub(in crate::query) fn start(
        filtered: &mut Filtered<impl Source>,
        path: PathNumber,
        by: &SortPath,
        after: Option<&Sorted>,
        wanted: Option<u64>,
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
        let places = Places { column, path, is_descending: by.descending };
        let after = after.map(|after| places.after(after));
        let next = after.as_ref().map_or(0, |after| after.place);
        let walk = |members| Way::Walk { members, next, tested_count: 0 };
        let mut ranked = Ranked { places, after, wanted, way: walk(Members::All), ready: VecDeque::new() };
        let is_short = wanted.is_some_and(|wanted| wanted <= TESTED_ROWS_MAX) && trace.is_none();
        if filtered.plan.filter == Node::All {
            filtered.known = Known::Everything;
        } else if let Some(members) = if is_short { ranked.testable(filtered)? } else { None } {
            filtered.known = Known::Everything;
            ranked.way = walk(members);
        } else {
            filtered.filter(trace)?;
            let Some(matching) = filtered.exact() else { return Ok(None) };
            ranked.look_up(filtered, matching, next)?;
        }
        Ok(Some(ranked))
    }

    /// The next rows, at most `want`; none at the end.
    pub(in crate::query) fn next_numbers(
        &mut self,
        filtered: &Filtered<impl Source>,
        want: usize,
    ) -> Result<Vec<DocumentNumber>> {
        while self.ready.len() < want {
            if let Way::Walk {
                members: Members::Tested(_) | Members::ByChunk(_),
                next,
                tested_count: tested_count @ TESTED_MAX..,
            } = &mut self.way
            {
                let next = *next;
                *tested_count = 0;
                let answer = evaluate(&filtered.plan.filter, &filtered.source, None)?;
                // Where few documents are left, the index leaves them to be read; testing goes on then.
                if answer.maybe.is_empty() {
                    self.look_up(filtered, answer.certain, next)?;
                }
            }
            if !self.step(filtered)? {
                break;
            }
        }
        Ok(self.ready.drain(..want.min(self.ready.len())).collect())
    }

    /// Where a row stands, for a later page.
    pub(in crate::query) fn position(&self, source: &impl Source, number: DocumentNumber) -> Result<Position> {
        let place = self.places.of(number);
        let mut key = Vec::new();
        sort::append_encoded(&mut key, self.places.key(place), self.places.is_descending);
        let id = source.ids(&[number])?.pop().ok_or_else(|| Error::internal("a row without an id"))?;
        Ok(Position::Sorted(Sorted { key: key.into(), id }))
    }

    /// How documents are tested on the walk; none if that would cost more than it spares.
    fn testable(&self, filtered: &Filtered<impl Source>) -> Result<Option<Members>> {
        let filter = &filtered.plan.filter;
        if !is_of_terms(filter) || !filter.is_exact() {
            return Ok(tests(filtered)?.map(Members::Tested));
        }
        let by_chunk = ByChunk::default();
        let matching = by_chunk.estimate(filter, &filtered.source)?;
        let wanted = self.wanted.unwrap_or(u64::MAX);
        let tested = self.places.column.document_count().saturating_mul(wanted) / matching.max(1);
        Ok((tested <= TESTED_MAX as u64 / 4).then_some(Members::ByChunk(by_chunk)))
    }

    /// Goes on with documents that are known to match, from a place on.
    fn look_up(&mut self, filtered: &Filtered<impl Source>, matching: DocumentSet, from: u32) -> Result<()> {
        let (all, count) = (self.places.column.document_count(), matching.len().max(1));
        let is_walk_cheaper = match self.wanted {
            Some(wanted) => all.saturating_mul(wanted) / count <= count.saturating_mul(TESTS_A_SORT),
            None => all <= count.saturating_mul(TESTS_A_SORT),
        };
        self.way = if is_walk_cheaper {
            Way::Walk { members: Members::Set(matching), next: from, tested_count: 0 }
        } else {
            Way::Listed(self.in_order(filtered, &matching, from)?.into_iter())
        };
        Ok(())
    }

    /// Documents from a place on, in order; no more than are wanted.
    fn in_order(
        &self,
        filtered: &Filtered<impl Source>,
        matching: &DocumentSet,
        from: u32,
    ) -> Result<Vec<DocumentNumber>> {
        // Place and number in one, which sorts fastest.
        let standing = |number: DocumentNumber| u64::from(self.places.of(number)) << 32 | number.0;
        let place_of = |row: u64| (row >> 32) as u32;
        let mut rows: Vec<u64> = matching.iter().map(standing).filter(|row| place_of(*row) >= from).collect();
        let is_returned =
            |place: u32| self.after.as_ref().is_some_and(|after| after.place == place && after.id.is_some());
        let returned_count = rows.iter().filter(|row| is_returned(place_of(**row))).count();
        let wanted = self.wanted.map_or(usize::MAX, |wanted| usize::try_from(wanted).unwrap_or(usize::MAX));
        let wanted = wanted.saturating_add(returned_count);
        if wanted > 0 && wanted < rows.len() {
            let last = place_of(*rows.select_nth_unstable(wanted - 1).1);
            // Documents of its place tie, so all of them may be wanted.
            rows.retain(|row| place_of(*row) <= last);
        }
        rows.sort_unstable();
        let number_of = |row: &u64| DocumentNumber(row & u64::from(u32::MAX));
        let mut numbers = Vec::with_capacity(rows.len());
        for tied in rows.chunk_by(|a, b| place_of(*a) == place_of(*b)) {
            match tied {
                [only] if !is_returned(place_of(*only)) => numbers.push(number_of(only)),
                tied => {
                    self.add_tied(filtered, place_of(tied[0]), tied.iter().map(number_of).collect(), &mut numbers)?
                }
            }
        }
        Ok(numbers)
    }

    /// Makes further rows ready; false if there are none.
    fn step(&mut self, filtered: &Filtered<impl Source>) -> Result<bool> {
        let (members, place) = match &mut self.way {
            Way::Listed(numbers) => {
                let before = self.ready.len();
                self.ready.extend(numbers);
                return Ok(self.ready.len() > before);
            }
            Way::Walk { members, next, tested_count } => {
                let place = *next;
                if place > self.places.last() {
                    return Ok(false);
                }
                *next += 1;
                *tested_count += 1;
                (members, place)
            }
        };
        let numbers: Vec<DocumentNumber> = match self.places.rank(place) {
            Some(rank) => match self.places.column.documents(rank) {
                [only] => {
                    let only = DocumentNumber(u64::from(*only));
                    if !members.has(filtered, only)? {
                        return Ok(true);
                    }
                    if self.after.as_ref().is_none_or(|after| after.place != place) {
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
            None => members.missing(filtered, self.places.path)?,
        };
        if let Way::Walk { tested_count, .. } = &mut self.way {
            *tested_count += numbers.len();
        }
        let mut ready = Vec::with_capacity(numbers.len());
        self.add_tied(filtered, place, numbers, &mut ready)?;
        self.ready.extend(ready);
        Ok(true)
    }

    /// Adds documents of one place by id, as far as they were not returned before.
    fn add_tied(
        &self,
        filtered: &Filtered<impl Source>,
        place: u32,
        numbers: Vec<DocumentNumber>,
        out: &mut Vec<DocumentNumber>,
    ) -> Result<()> {
        let after = self.after.as_ref().filter(|after| after.place == place).and_then(|after| after.id.as_ref());
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

impl Places {
    fn value_count(&self) -> u32 {
        self.column.len() as u32
    }

    /// The place of documents without a value.
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

    /// The rank of the value at a place; none for documents without one.
    fn rank(&self, place: u32) -> Option<usize> {
        let rank = if self.is_descending { self.value_count().checked_sub(place + 1) } else { place.checked_sub(1) };
        rank.map(|rank| rank as usize)
    }

    fn key(&self, place: u32) -> &[u8] {
        self.rank(place).map_or(&[MISSING], |rank| self.column.key(rank))
    }

    fn after(&self, after: &Sorted) -> After {
        let key: Vec<u8> = after.key.iter().map(|byte| if self.is_descending { !byte } else { *byte }).collect();
        if *key == [MISSING] {
            return After { place: self.missing(), id: Some(after.id.clone()) };
        }
        match (self.column.find(&key), self.is_descending) {
            (Ok(rank), _) => After { place: self.of_rank(rank as u32), id: Some(after.id.clone()) },
            // The first place whose value is above it, or below it.
            (Err(below_count), false) => After { place: below_count as u32 + 1, id: None },
            (Err(below_count), true) => After { place: self.value_count() - below_count as u32, id: None },
        }
    }
}

impl Members {
    #[inline]
    fn has(&self, filtered: &Filtered<impl Source>, number: DocumentNumber) -> Result<bool> {
        Ok(match self {
            Members::All => true,
            Members::Set(set) => set.contains(number),
            Members::Tested(tests) => tests.iter().all(|test| test.passes(number)),
            Members::ByChunk(by_chunk) => by_chunk.has(number, &filtered.plan.filter, &filtered.source)?,
        })
    }

    fn among(
        &self,
        filtered: &Filtered<impl Source>,
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

    /// Those that have nothing at a path.
    fn missing(&self, filtered: &Filtered<impl Source>, path: PathNumber) -> Result<Vec<DocumentNumber>> {
        let mut missing = match self {
            Members::Set(set) => set.clone(),
            Members::All | Members::Tested(_) | Members::ByChunk(_) => {
                filtered.source.presence(PathNumber::ROOT, &[Presence::Object])?
            }
        };
        missing.and_not_with(&filtered.source.presence(path, &Presence::ALL)?);
        self.among(filtered, missing.iter())
    }
}

/// Tests that a document passes exactly if it matches; none if they would cost more than what they spare.
fn tests(filtered: &Filtered<impl Source>) -> Result<Option<Vec<Test>>> {
    // Sets alone are as well intersected.
    if !has_range(&filtered.plan.filter) {
        return Ok(None);
    }
    let nodes = match &filtered.plan.filter {
        Node::Intersection(nodes) => nodes.as_slice(),
        node => std::slice::from_ref(node),
    };
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

fn test(node: &Node, source: &impl Source) -> Result<Option<Test>> {
    Ok(match node {
        // A document has one value at most where no array is entered.
        Node::Range { path, range } if !source.paths().enters_array(*path) => source.column(*path)?.map(|column| {
            let span = column.span(Bound::Included(&range.lower), Bound::Excluded(&range.upper));
            Test::Ranks(column, span.start as u32..span.end as u32)
        }),
        Node::Equal { path, key } => Some(Test::Set(source.equal(*path, key)?)),
        Node::Presence { path, kinds } => Some(Test::Set(source.presence(*path, kinds)?)),
        Node::Union(nodes) => {
            let mut any = Vec::with_capacity(nodes.len());
            for node in nodes {
                match test(node, source)? {
                    Some(Test::Set(set)) if set.is_empty() => {}
                    Some(test) => any.push(test),
                    None => return Ok(None),
                }
            }
            Some(Test::Any(any))
        }
        _ => None,
    })
}

impl Test {
    #[inline]
    fn passes(&self, number: DocumentNumber) -> bool {
        match self {
            Test::Ranks(column, ranks) => column.rank(number).is_some_and(|rank| ranks.contains(&rank)),
            Test::Set(set) => set.contains(number),
            Test::Any(any) => any.iter().any(|test| test.passes(number)),
        }
    }
}
