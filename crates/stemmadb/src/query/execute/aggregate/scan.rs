//! The values at a path of the documents that match, with how many documents have each: from the index as far as it can tell,
//! from documents where it can't, or where there are so few that reading them costs less.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::Result;
use crate::index::{DocumentNumber, DocumentSet, NumberSum, PathNumber, Presence};
use crate::query::execute::collect;
use crate::query::execute::cursor::{Filtered, Hit, Known};
use crate::query::execute::evaluate::READ_COST;
use crate::query::language::document::{Document, value_at};
use crate::query::language::interval::KeyRange;
use crate::query::language::sort::Sort;
use crate::query::plan::facts::Facts;
use crate::query::plan::planner;
use crate::query::plan::request::Prepared;
use crate::query::plan::{Node, Order, Walk};
use crate::query::source::Source;
use crate::tree::Direction;
use crate::value::collate::key::{self, is_cut};
use crate::value::{Kind, Number, Path, Value};

/// So few documents are read at once: their values are found sooner than the index is asked for any.
const FEW_DOCUMENTS: u64 = if cfg!(test) { 1 } else { 16 };

/// What is made of the values.
pub(super) trait Fold {
    /// So many documents have this value; a value may come several times.
    fn add(&mut self, key: &[u8], value: &Value, count: u64) -> Result<()>;

    /// Forgets everything: the values come again, another way.
    fn restart(&mut self);
}

/// The documents that match, and what the index knows of one path.
pub(super) struct Scan<S> {
    pub(super) filtered: Filtered<S>,
    /// What the index can be asked about the path; none if documents must be read.
    walk: Option<Walk>,
    path: Path,
}

impl<S: Source> Scan<S> {
    /// Evaluates the filter.
    pub(super) fn open(source: S, prepared: &Prepared, path: &Path) -> Result<Self> {
        let mut sort = Sort::default();
        sort.push(&path.to_string(), false, None)?;
        let facts = Facts::of(&source);
        let plan = Arc::new(planner::plan(&prepared.normal, &sort, false, facts));
        let walk = match &plan.order {
            Order::Sorted { walk, .. } => walk.clone(),
            Order::Insertion => None,
        };
        let mut filtered = Filtered::new(source, plan)?;
        if filtered.plan.filter == Node::All {
            filtered.known = Known::Everything;
        } else {
            filtered.filter(None)?;
        }
        Ok(Scan { filtered, walk, path: path.clone() })
    }

    /// Gives the fold every value of these kinds.
    pub(super) fn fold(&self, kinds: &[Kind], fold: &mut impl Fold) -> Result<()> {
        let mut to_read = self.undecided();
        let certain = match &self.filtered.known {
            Known::Answer(answer) => Some(&answer.certain),
            _ => None,
        };
        let few = certain.filter(|certain| certain.len() <= FEW_DOCUMENTS);
        match (&self.walk, few) {
            (Some(Walk { path: None }), _) => {}
            (_, Some(few)) => to_read.or_with(few),
            (Some(Walk { path: Some(path) }), None) => {
                let values_max = certain.map_or(u64::MAX, |certain| certain.len().saturating_mul(READ_COST));
                if self.scalars(*path, kinds, certain, values_max, fold, &mut to_read)? {
                    self.containers(*path, kinds, certain, &mut to_read)?;
                } else {
                    fold.restart();
                    to_read.or_with(certain.unwrap_or(&DocumentSet::new()));
                }
            }
            (None, None) => match certain {
                Some(certain) => to_read.or_with(certain),
                None => to_read = self.filtered.source.presence(PathNumber::ROOT, &[Presence::Object])?,
            },
        }
        self.read(&to_read, |_, document| {
            let Some(value) = value_at(&self.path, document)? else { return Ok(()) };
            let (key, value) = canonical(&value)?;
            if kinds.contains(&value.kind()) { fold.add(&key, &value, 1) } else { Ok(()) }
        })
    }

    /// What the numbers at the path come to, if everything matches and the index keeps that; and where they are.
    pub(super) fn all_numbers(&self) -> Result<Option<(PathNumber, NumberSum)>> {
        let is_everything = matches!(self.filtered.known, Known::Everything) && self.filtered.overflow().is_empty();
        let Some(Walk { path: Some(path) }) = self.walk.as_ref().filter(|_| is_everything) else { return Ok(None) };
        Ok(self.filtered.source.numbers(*path)?.map(|numbers| (*path, numbers)))
    }

    /// The first number at a path, from one end or the other.
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
        mut visit: impl FnMut(DocumentNumber, Document<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut numbers = documents.iter();
        loop {
            let hits: Vec<Hit> =
                numbers.by_ref().take(collect::BATCH).map(|number| self.filtered.hit(number)).collect();
            if hits.is_empty() {
                return Ok(());
            }
            self.filtered.load(&hits, |at, document| visit(hits[at].number, Document::of(&document)?))?;
        }
    }

    /// What the index can be asked about the path; none if documents must be read.
    pub(super) fn walk(&self) -> Option<&Walk> {
        self.walk.as_ref()
    }

    /// The documents that certainly match and whose terms are complete.
    pub(super) fn certain(&self) -> Result<DocumentSet> {
        match &self.filtered.known {
            Known::Answer(answer) => Ok(answer.certain.clone()),
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

    /// What must be read to know whether it matches.
    pub(super) fn undecided(&self) -> DocumentSet {
        let mut undecided = self.filtered.overflow().clone();
        if let Known::Answer(answer) = &self.filtered.known {
            undecided.or_with(&answer.maybe);
        }
        undecided
    }

    /// Walks the scalars; false if there are too many.
    fn scalars(
        &self,
        path: PathNumber,
        kinds: &[Kind],
        certain: Option<&DocumentSet>,
        values_max: u64,
        fold: &mut impl Fold,
        to_read: &mut DocumentSet,
    ) -> Result<bool> {
        let overflow = self.filtered.overflow();
        let range = match kinds {
            [only] => KeyRange::of_kind(*only),
            _ => KeyRange::of_scalars(),
        };
        let mut left = Some(values_max);
        self.filtered.source.walk(path, &range, Direction::Ascending, &mut |value_key, posting| {
            left = left.and_then(|left| left.checked_sub(1));
            if left.is_none() {
                return Ok(ControlFlow::Break(()));
            }
            if certain.is_none() && overflow.is_empty() && !is_cut(value_key) {
                fold.add(value_key, &key::decode(value_key)?.0, posting.len()?)?;
                return Ok(ControlFlow::Continue(()));
            }
            let mut members = posting.take()?;
            if is_cut(value_key) {
                narrow(&mut members, certain, overflow);
                to_read.or_with(&members);
                return Ok(ControlFlow::Continue(()));
            }
            let count = match certain {
                Some(certain) => members.and_len(certain),
                None => members.len() - members.and_len(overflow),
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

fn narrow(members: &mut DocumentSet, certain: Option<&DocumentSet>, overflow: &DocumentSet) {
    match certain {
        Some(certain) => members.and_with(certain),
        None => members.and_not_with(overflow),
    }
}

/// A value's key, and the value as all that are equal to it are shown: whole numbers as integers.
pub(in crate::query) fn canonical(value: &Value) -> Result<(Vec<u8>, Value)> {
    let mut encoded = Vec::new();
    key::encode(value, &mut encoded);
    let value = key::decode(&encoded)?.0;
    Ok((encoded, value))
}
