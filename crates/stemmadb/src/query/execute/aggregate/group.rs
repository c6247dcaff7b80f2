//! Grouping of the matching documents by the value at one path.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

use super::elements::{ValuePath, visit_groups};
use super::scan::{Scan, canonical};
use super::{SUMMARY_BYTES, Summary, SummaryBuilder, VALUE_BYTES};
use crate::Result;
use crate::index::{DocumentNumber, DocumentSet, PathNumber, Presence};
use crate::query::execute::evaluate::READ_COST;
use crate::query::language::document::DocumentView;
use crate::query::language::interval::KeyRange;
use crate::query::plan::request::Query;
use crate::query::source::QuerySource;
use crate::tree::Direction;
use crate::value::collate::key::{self, is_cut};
use crate::value::{Kind, Value};

/// Approximate memory of the entry that maps a document to its group.
const MEMBER_BYTES: usize = 24;

/// What happens to matching documents without a value at the path of the groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::query) enum MissingGroup {
    /// They are in no group.
    Omit,
    /// They are in the group of null.
    Null,
}

/// Groups under construction.
struct Groups<'s, S> {
    source: &'s S,
    missing: MissingGroup,
    by_key: BTreeMap<Vec<u8>, usize>,
    groups: Vec<(Value, SummaryBuilder)>,
    bytes: usize,
}

pub(in crate::query) fn summaries<S: QuerySource>(
    source: S,
    query: &Query,
    group: &str,
    path: &str,
    missing: MissingGroup,
) -> Result<Vec<(Value, Summary)>> {
    let groups = summary_builders(source, query, group, path, missing)?;
    groups.into_iter().map(|(value, builder)| Ok((value, builder.finish(path)?))).collect()
}

/// As [`summaries`], with sums that are not rounded yet.
pub(in crate::query) fn summary_builders<S: QuerySource>(
    source: S,
    query: &Query,
    group: &str,
    path: &str,
    missing: MissingGroup,
) -> Result<Vec<(Value, SummaryBuilder)>> {
    let (group, path) = (ValuePath::parse(group)?, ValuePath::parse(path)?);
    let prepared = query.prepare_unordered()?;
    let by_group = Scan::open(&source, &prepared, &group)?;
    let by_value = Scan::open(&source, &prepared, &path)?;
    let mut groups = Groups::new(&source, missing);
    if !groups.add_from_index(&by_group, &by_value, &group, &path)? {
        groups = Groups::new(&source, missing);
        groups.read(&by_group, &by_group.every()?, &group, &path)?;
    }
    query.limits().allow_rows(groups.groups.len() as u64)?;
    let Groups { by_key, mut groups, .. } = groups;
    Ok(by_key.into_values().map(|at| std::mem::take(&mut groups[at])).collect())
}

impl<'s, S: QuerySource> Groups<'s, S> {
    fn new(source: &'s S, missing: MissingGroup) -> Self {
        Groups { source, missing, by_key: BTreeMap::new(), groups: Vec::new(), bytes: 0 }
    }

    fn group_index(&mut self, value_key: &[u8], value: impl FnOnce() -> Result<Value>) -> Result<usize> {
        if let Some(at) = self.by_key.get(value_key) {
            return Ok(*at);
        }
        self.bytes += 2 * value_key.len() + VALUE_BYTES + SUMMARY_BYTES;
        self.source.check_memory(self.bytes)?;
        self.groups.push((value()?, SummaryBuilder::default()));
        self.by_key.insert(value_key.to_vec(), self.groups.len() - 1);
        Ok(self.groups.len() - 1)
    }

    /// Builds the groups from the index and reads only the documents that the index cannot decide. Returns false if
    /// reading all documents costs less.
    fn add_from_index(
        &mut self,
        by_group: &Scan<&S>,
        by_value: &Scan<&S>,
        group: &ValuePath,
        path: &ValuePath,
    ) -> Result<bool> {
        // The index does not say which elements of a document belong together.
        if matches!(group, ValuePath::Elements(_)) || matches!(path, ValuePath::Elements(_)) {
            return Ok(false);
        }
        let (Some(group_walk), Some(value_walk)) = (by_group.walk(), by_value.walk()) else { return Ok(false) };
        let mut to_read = by_group.undecided();
        let certain = by_group.certain()?;
        let mut group_of: HashMap<DocumentNumber, usize> = HashMap::new();
        if self.missing == MissingGroup::Null {
            self.add_missing(group_walk.path, &certain, &mut group_of)?;
        }
        let mut left = Some(certain.len().saturating_mul(READ_COST));
        if let Some(group_path) = group_walk.path {
            self.add_members(group_path, &certain, &mut left, &mut group_of, &mut to_read)?;
        }
        if let (Some(value_path), Some(_), false) = (value_walk.path, left, group_of.is_empty()) {
            self.add_numbers(value_path, &mut left, &group_of)?;
        }
        if left.is_none() {
            return Ok(false);
        }
        self.read(by_group, &to_read, group, path)?;
        Ok(true)
    }

    /// Assigns the documents without a value at the group's path to the group of null: set operations, no reads.
    fn add_missing(
        &mut self,
        group_path: Option<PathNumber>,
        certain: &DocumentSet,
        group_of: &mut HashMap<DocumentNumber, usize>,
    ) -> Result<()> {
        let mut missing = certain.clone();
        if let Some(path) = group_path {
            let kinds: Vec<Presence> = Kind::ALL.into_iter().map(Presence::from).collect();
            missing.and_not_with(&self.source.presence(path, &kinds)?);
        }
        if missing.is_empty() {
            return Ok(());
        }
        let at = self.group_index(&canonical(&Value::Null)?.0, || Ok(Value::Null))?;
        self.source.check_memory(self.bytes + missing.len() as usize * MEMBER_BYTES)?;
        group_of.extend(missing.iter().map(|number| (number, at)));
        Ok(())
    }

    /// Assigns documents to the groups of their values. Documents whose value the index does not hold are added to
    /// `to_read`.
    fn add_members(
        &mut self,
        group_path: PathNumber,
        certain: &DocumentSet,
        left: &mut Option<u64>,
        group_of: &mut HashMap<DocumentNumber, usize>,
        to_read: &mut DocumentSet,
    ) -> Result<()> {
        self.source.walk(group_path, &KeyRange::of_scalars(), Direction::Ascending, &mut |value_key, posting| {
            *left = left.and_then(|left| left.checked_sub(1));
            if left.is_none() {
                return Ok(ControlFlow::Break(()));
            }
            let members = posting.take()?.and(certain);
            if is_cut(value_key) {
                to_read.or_with(&members);
            } else if !members.is_empty() {
                let at = self.group_index(value_key, || Ok(key::decode(value_key)?.0))?;
                group_of.extend(members.iter().map(|number| (number, at)));
                self.source.check_memory(self.bytes + group_of.len() * MEMBER_BYTES)?;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let containers = self.source.presence(group_path, &[Presence::Array, Presence::Object])?;
        to_read.or_with(&containers.and(certain));
        Ok(())
    }

    /// Adds the numbers at a path to the groups of their documents.
    fn add_numbers(
        &mut self,
        value_path: PathNumber,
        left: &mut Option<u64>,
        group_of: &HashMap<DocumentNumber, usize>,
    ) -> Result<()> {
        let numbers = KeyRange::of_kind(Kind::Number);
        self.source.walk(value_path, &numbers, Direction::Ascending, &mut |value_key, posting| {
            *left = left.and_then(|left| left.checked_sub(1));
            if left.is_none() {
                return Ok(ControlFlow::Break(()));
            }
            let Value::Number(number) = key::decode(value_key)?.0 else { return Ok(ControlFlow::Continue(())) };
            for document in posting.take()?.iter() {
                if let Some(at) = group_of.get(&document) {
                    self.groups[*at].1.add(number, 1);
                }
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    fn read(&mut self, scan: &Scan<&S>, documents: &DocumentSet, group: &ValuePath, path: &ValuePath) -> Result<()> {
        scan.read(documents, |_, document: DocumentView<'_>| {
            visit_groups(group, path, self.missing, document, &mut |group_key, group, values| {
                let at = self.group_index(group_key, || Ok(group))?;
                for value in values.iter().filter(|value| value.kind() == Kind::Number) {
                    if let (_, Value::Number(number)) = canonical(value)? {
                        self.groups[at].1.add(number, 1);
                    }
                }
                Ok(())
            })
        })
    }
}
