//! Scan of the values at one path of the matching documents, each value with its number of documents.
//!
//! The scan uses the index as far as it can decide, and reads documents where it cannot or where so few match that
//! reading them costs less.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::elements::{ValuePath, element_walk};
use crate::Result;
use crate::index::{DocumentNumber, DocumentSet, NumberSum, PathNumber, Presence, Probe};
use crate::query::execute::collect;
use crate::query::execute::cursor::{FilterState, Filtered, Hit};
use crate::query::execute::evaluate::READ_COST;
use crate::query::language::document::{DocumentView, value_at};
use crate::query::language::interval::KeyRange;
use crate::query::language::sort::Sort;
use crate::query::plan::catalog::Catalog;
use crate::query::plan::planner;
use crate::query::plan::request::Prepared;
use crate::query::plan::{Node, Order, Walk};
use crate::query::source::QuerySource;
use crate::tree::Direction;
use crate::value::collate::key::{self, is_cut};
use crate::value::{Kind, Number, Value};

/// At most this many documents are read instead of walking the index: reading them is faster.
const FEW_DOCUMENTS: u64 = if cfg!(test) { 1 } else { 16 };

/// Accumulates the values of a scan.
pub(super) trait Fold {
    /// Adds a value that `count` documents have. The same value may be added several times.
    fn add(&mut self, key: &[u8], value: &Value, count: u64) -> Result<()>;

    /// Discards everything added so far: the scan starts again by another method.
    fn restart(&mut self);

    /// Whether a value counts once for a document that has it several times. Otherwise every value counts.
    fn counts_documents(&self) -> bool;
}

/// The matching documents, and how the index covers one path.
pub(super) struct Scan<S> {
    pub(super) filtered: Filtered<S>,
    /// How to walk the path in the index, or `None` if documents must be read.
    walk: Option<Walk>,
    path: ValuePath,
}

impl<S: QuerySource> Scan<S> {
    /// Evaluates the filter.
    pub(super) fn open(source: S, prepared: &Prepared, path: &ValuePath) -> Result<Self> {
        let mut sort = Sort::default();
        if let ValuePath::Single(path) = path {
            sort.push(&path.to_string(), false, None)?;
        }
        let catalog = Catalog::of(&source);
        let plan = Arc::new(planner::plan(&prepared.normal, &sort, false, catalog));
        let walk = match (&plan.order, path) {
            (_, ValuePath::Elements(path)) => element_walk(catalog, path),
            (Order::Sorted { walk, .. }, _) => walk.clone(),
            (Order::Insertion, _) => None,
        };
        let mut filtered = Filtered::new(source, plan)?;
        if filtered.plan.filter == Node::All {
            filtered.filter_state = FilterState::MatchesAll;
        } else {
            filtered.filter(None)?;
        }
        Ok(Scan { filtered, walk, path: path.clone() })
    }

    /// Adds every value of these kinds to `fold`.
    pub(super) fn fold(&self, kinds: &[Kind], fold: &mut impl Fold) -> Result<()> {
        let ValuePath::Single(path_to_read) = &self.path else { return self.fold_elements(kinds, fold) };
        let mut to_read = self.undecided();
        let certain = self.evaluated();
        let few = certain.filter(|certain| certain.len() <= FEW_DOCUMENTS);
        match (&self.walk, few) {
            (Some(Walk { path: None }), _) => {}
            (_, Some(few)) => to_read.or_with(few),
            (Some(Walk { path: Some(path) }), None) => match certain {
                Some(certain) => self.fold_certain(*path, kinds, certain, fold, &mut to_read)?,
                None => {
                    let range = KeyRange::of_kinds(kinds);
                    self.scalars(*path, &range, None, u64::MAX, fold, &mut to_read)?;
                    self.containers(*path, kinds, None, &mut to_read)?;
                }
            },
            (None, None) => match certain {
                Some(certain) => to_read.or_with(certain),
                None => to_read = self.filtered.source.presence(PathNumber::ROOT, &[Presence::Object])?,
            },
        }
        self.read(&to_read, |_, document| {
            let Some(value) = value_at(path_to_read, document)? else { return Ok(()) };
            let (key, value) = canonical(&value)?;
            if kinds.contains(&value.kind()) { fold.add(&key, &value, 1) } else { Ok(()) }
        })
    }

    /// Returns the stored aggregates of the numbers at the path, and the path's number, if every document matches and
    /// the index has them.
    pub(super) fn all_numbers(&self) -> Result<Option<(PathNumber, NumberSum)>> {
        if matches!(self.path, ValuePath::Elements(_)) {
            return Ok(None);
        }
        let is_everything =
            matches!(self.filtered.filter_state, FilterState::MatchesAll) && self.filtered.overflow().is_empty();
        let Some(Walk { path: Some(path) }) = self.walk.as_ref().filter(|_| is_everything) else { return Ok(None) };
        Ok(self.filtered.source.numbers(*path)?.map(|numbers| (*path, numbers)))
    }

    /// Returns the first number at a path in this direction: its minimum or maximum.
    pub(super) fn extreme(&self, path: PathNumber, direction: Direction) -> Result<Option<Number>> {
        let mut extreme = None;
        self.filtered.source.walk(path, &KeyRange::of_kind(Kind::Number), direction, &mut |value_key, _| {
            if let Value::Number(number) = key::decode(value_key)?.0 {
                extreme = Some(number);
            }
            Ok(ControlFlow::Break(()))
        })?;
        Ok(extreme)
    }

    /// Reads documents and visits those that match.
    pub(super) fn read(
        &self,
        documents: &DocumentSet,
        mut visit: impl FnMut(DocumentNumber, DocumentView<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut numbers = documents.iter();
        loop {
            let hits: Vec<Hit> =
                numbers.by_ref().take(collect::BATCH_LEN).map(|number| self.filtered.hit(number)).collect();
            if hits.is_empty() {
                return Ok(());
            }
            self.filtered.load(&hits, |at, document| visit(hits[at].number, DocumentView::of(&document)?))?;
        }
    }

    /// The path whose values are scanned.
    pub(super) fn path(&self) -> &ValuePath {
        &self.path
    }

    /// The documents that certainly match, if the filter was evaluated; `None` if every document matches.
    pub(super) fn evaluated(&self) -> Option<&DocumentSet> {
        match &self.filtered.filter_state {
            FilterState::Evaluated(match_set) => Some(&match_set.certain),
            _ => None,
        }
    }

    /// How many values a walk may cost until reading the documents in `certain` costs less; `None` if there are so few
    /// documents that they are read in any case.
    pub(super) fn walked_values_max(&self, certain: Option<&DocumentSet>) -> Option<u64> {
        match certain {
            None => Some(u64::MAX),
            Some(certain) if certain.len() <= FEW_DOCUMENTS => None,
            Some(certain) => Some(certain.len().saturating_mul(READ_COST)),
        }
    }

    /// Returns how to walk the path in the index, or `None` if documents must be read.
    pub(super) fn walk(&self) -> Option<&Walk> {
        self.walk.as_ref()
    }

    /// The documents that certainly match and whose terms are complete.
    pub(super) fn certain(&self) -> Result<DocumentSet> {
        match &self.filtered.filter_state {
            FilterState::Evaluated(match_set) => Ok(match_set.certain.clone()),
            _ => {
                let live = self.filtered.source.presence(PathNumber::ROOT, &[Presence::Object])?;
                Ok(live.and_not(self.filtered.overflow()))
            }
        }
    }

    /// Every document that may match.
    pub(super) fn every(&self) -> Result<DocumentSet> {
        let mut every = self.certain()?;
        every.or_with(&self.undecided());
        Ok(every)
    }

    /// The documents that must be read to decide whether they match.
    pub(super) fn undecided(&self) -> DocumentSet {
        let mut undecided = self.filtered.overflow().clone();
        if let FilterState::Evaluated(match_set) = &self.filtered.filter_state {
            undecided.or_with(&match_set.maybe);
        }
        undecided
    }

    /// Adds the values at the path of the documents that certainly match, by the method that costs least: their ranks
    /// in the path's column, a walk over the values, or, by adding them to `to_read`, reading the documents.
    fn fold_certain(
        &self,
        path: PathNumber,
        kinds: &[Kind],
        certain: &DocumentSet,
        fold: &mut impl Fold,
        to_read: &mut DocumentSet,
    ) -> Result<()> {
        let (source, kinds_range) = (&self.filtered.source, KeyRange::of_kinds(kinds));
        let range = match source.paths().enters_array(path) {
            true => None,
            false => range_at(&self.filtered.plan.filter, path).map(|range| range.intersection(&kinds_range)),
        };
        let read_rows = certain.len().saturating_mul(READ_COST);
        let walked_rows = self.row_estimate(path, range.as_ref().unwrap_or(&kinds_range), certain);
        if range.is_none() {
            // A column pays for itself sooner if what this query is about to read counts.
            source.record_scan(path, walked_rows.map_or(0, |rows| rows.min(read_rows)));
            if self.by_rank(path, kinds, certain, fold)? {
                return self.containers(path, kinds, Some(certain), to_read);
            }
        }
        let range = range.unwrap_or(kinds_range);
        if range.is_empty() {
            return self.containers(path, kinds, Some(certain), to_read);
        }
        let is_walk_cheaper = walked_rows.is_none_or(|rows| rows <= read_rows);
        if is_walk_cheaper && self.scalars(path, &range, Some(certain), read_rows, fold, to_read)? {
            return self.containers(path, kinds, Some(certain), to_read);
        }
        fold.restart();
        to_read.or_with(certain);
        Ok(())
    }

    /// The estimated number of rows of the tree in a range of values: one for each value and chunk. `None` without
    /// statistics.
    fn row_estimate(&self, path: PathNumber, range: &KeyRange, documents: &DocumentSet) -> Option<u64> {
        let amount = self.filtered.source.histogram(path)?.estimate(&range.lower, &range.upper);
        let chunk_count = documents.chunks().next_back().map_or(0, |(chunk, _)| chunk + 1);
        Some(amount.entries.min(amount.values * chunk_count as f64) as u64)
    }

    /// Adds the scalars at the path of the documents that certainly match, if its column is in memory and holds them
    /// completely; returns whether it does. Costs some nanoseconds for each document, however many values there are.
    fn by_rank(&self, path: PathNumber, kinds: &[Kind], certain: &DocumentSet, fold: &mut impl Fold) -> Result<bool> {
        if self.filtered.source.paths().enters_array(path) {
            return Ok(false);
        }
        let Some(column) = self.filtered.source.column(path)?.filter(|column| column.is_whole(usize::MAX)) else {
            return Ok(false);
        };
        let mut ranks: Vec<u32> = certain.iter().filter_map(|number| column.rank(number)).collect();
        ranks.sort_unstable();
        for same in ranks.chunk_by(|left, right| left == right) {
            let value_key = column.key(same[0] as usize);
            let value = key::decode(value_key)?.0;
            if kinds.contains(&value.kind()) {
                fold.add(value_key, &value, same.len() as u64)?;
            }
        }
        Ok(true)
    }

    /// Walks the scalars in a range at the path. Returns false once that costs more than reading `values_max` values,
    /// each in one chunk of documents.
    pub(super) fn scalars(
        &self,
        path: PathNumber,
        range: &KeyRange,
        certain: Option<&DocumentSet>,
        values_max: u64,
        fold: &mut impl Fold,
        to_read: &mut DocumentSet,
    ) -> Result<bool> {
        let overflow = self.filtered.overflow();
        let certain_probe = certain.map(Probe::new);
        let mut left = Some(values_max);
        self.filtered.source.walk(path, range, Direction::Ascending, &mut |value_key, posting| {
            left = left.and_then(|left| left.checked_sub(1));
            if left.is_none() {
                return Ok(ControlFlow::Break(()));
            }
            // Each further chunk of a value is read as another value.
            let mut spend =
                |chunk_count: u64| left = left.map(|left| left.saturating_sub(chunk_count.saturating_sub(1)));
            if is_cut(value_key) {
                let mut members = posting.take()?;
                spend(members.chunks().len() as u64);
                narrow(&mut members, certain, overflow);
                to_read.or_with(&members);
                return Ok(ControlFlow::Continue(()));
            }
            let count = match &certain_probe {
                Some(certain) => {
                    let count = posting.count_in(certain)?;
                    spend(count.chunks);
                    count.documents
                }
                None if overflow.is_empty() => posting.len()?,
                None => {
                    let members = posting.take()?;
                    members.len() - members.and_len(overflow)
                }
            };
            if count > 0 {
                fold.add(value_key, &key::decode(value_key)?.0, count)?;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(left.is_some())
    }

    fn containers(
        &self,
        path: PathNumber,
        kinds: &[Kind],
        certain: Option<&DocumentSet>,
        to_read: &mut DocumentSet,
    ) -> Result<()> {
        for kind in [Kind::Array, Kind::Object] {
            if kinds.contains(&kind) {
                let mut members = self.filtered.source.presence(path, &[kind.into()])?;
                narrow(&mut members, certain, self.filtered.overflow());
                to_read.or_with(&members);
            }
        }
        Ok(())
    }
}

/// The range of the values at a path that every document of a filter has, if the filter says so.
fn range_at(filter: &Node, path: PathNumber) -> Option<KeyRange> {
    match filter {
        Node::Range { path: at, range } if *at == path => Some(range.clone()),
        Node::Intersection(nodes) => {
            let ranges = nodes.iter().filter_map(|node| range_at(node, path));
            ranges.reduce(|left, right| left.intersection(&right))
        }
        _ => None,
    }
}

fn narrow(members: &mut DocumentSet, certain: Option<&DocumentSet>, overflow: &DocumentSet) {
    match certain {
        Some(certain) => members.and_with(certain),
        None => members.and_not_with(overflow),
    }
}

/// Returns a value's key, and the canonical form of all values that are equal to it: whole numbers as integers.
pub(in crate::query) fn canonical(value: &Value) -> Result<(Vec<u8>, Value)> {
    let mut encoded = Vec::new();
    key::encode(value, &mut encoded);
    let value = key::decode(&encoded)?.0;
    Ok((encoded, value))
}
