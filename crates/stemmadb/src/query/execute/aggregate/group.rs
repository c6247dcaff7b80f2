//! Grouping of the matching documents by the value at one path.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

use super::elements::{ValuePath, visit_groups};
use super::scan::{Scan, canonical};
use super::{SUMMARY_BYTES, Summary, SummaryBuilder, VALUE_BYTES};
use crate::Result;
use crate::index::{DocumentNumber, DocumentSet, Presence};
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

/// Groups under construction.
struct Groups<'s, S> {
    source: &'s S,
    by_key: BTreeMap<Vec<u8>, usize>,
    groups: Vec<(Value, SummaryBuilder)>,
    bytes: usize,
}

pub(in crate::query) fn summaries<S: QuerySource>(
    source: S,
    query: &Query,
    group: &str,
    path: &str,
) -> Result<Vec<(Value, Summary)>> {
    let (path_text, group, path) = (path, ValuePath::parse(group)?, ValuePath::parse(path)?);
    let prepared = query.prepare_unordered()?;
    let by_group = Scan::open(&source, &prepared, &group)?;
    let by_value = Scan::open(&source, &prepared, &path)?;
    let mut groups = Groups { source: &source, by_key: BTreeMap::new(), groups: Vec::new(), bytes: 0 };
    if !groups.add_from_index(&by_group, &by_value, &group, &path)? {
        groups = Groups { source: &source, by_key: BTreeMap::new(), groups: Vec::new(), bytes: 0 };
        groups.read(&by_group, &by_group.every()?, &group, &path)?;
    }
    query.limits().allow_rows(groups.groups.len() as u64)?;
    let Groups { by_key, mut groups, .. } = groups;
    by_key
        .into_values()
        .map(|at| {
            let (value, builder) = &mut groups[at];
            Ok((std::mem::take(value), builder.finish(path_text)?))
        })
        .collect()
}

impl<S: QuerySource> Groups<'_, S> {
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
        let Some(group_path) = group_walk.path else {
            self.read(by_group, &to_read, group, path)?;
            return Ok(true);
        };
        let certain = by_group.certain()?;
        let mut left = Some(certain.len().saturating_mul(READ_COST));
        let mut group_of: HashMap<DocumentNumber, usize> = HashMap::new();
        self.source.walk(group_path, &KeyRange::of_scalars(), Direction::Ascending, &mut |value_key, posting| {
            left = left.and_then(|left| left.checked_sub(1));
            if left.is_none() {
                return Ok(ControlFlow::Break(()));
            }
            let members = posting.take()?.and(&certain);
            if is_cut(value_key) {
                to_read.or_with(&members);
            } else if !members.is_empty() {
                let at = self.group_index(value_key, || Ok(key::decode(value_key)?.0))?;
                group_of.extend(members.iter().map(|number| (number, at)));
                self.source.check_memory(self.bytes + group_of.len() * MEMBER_BYTES)?;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let containers = self.source.presence(group_path, &[Presence::Array, Presence::Object])?.and(&certain);
        to_read.or_with(&containers);
        if let (Some(value_path), Some(_)) = (value_walk.path, left) {
            let numbers = KeyRange::of_kind(Kind::Number);
            self.source.walk(value_path, &numbers, Direction::Ascending, &mut |value_key, posting| {
                left = left.and_then(|left| left.checked_sub(1));
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
            })?;
        }
        if left.is_none() {
            return Ok(false);
        }
        self.read(by_group, &to_read, group, path)?;
        Ok(true)
    }

    fn read(&mut self, scan: &Scan<&S>, documents: &DocumentSet, group: &ValuePath, path: &ValuePath) -> Result<()> {
        scan.read(documents, |_, document: DocumentView<'_>| {
            visit_groups(group, path, document, &mut |group_key, group, values| {
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
