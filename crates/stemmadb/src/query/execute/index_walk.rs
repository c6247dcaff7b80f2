//! Sorted order by walking a declared index.
//!
//! A key of the index is the sort key of its documents, after the values that equalities fix. Documents with the same
//! key tie and are ordered by id. Documents whose keys were cut at the same bytes are read and sorted.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::collect::Collector;
use super::cursor::{Filtered, Hit, HitPosition, Recheck};
use crate::Result;
use crate::index::{DocumentNumber, DocumentSet};
use crate::query::language::interval::{KeyRange, cut_region, successor};
use crate::query::language::sort::{SortPath, SortedPosition};
use crate::query::plan::DeclaredWalk;
use crate::query::source::QuerySource;
use crate::tree::Direction;
use crate::value::collate::key;

/// State of the walk.
pub(in crate::query) struct IndexWalk {
    walk: DeclaredWalk,
    keys: Vec<SortPath>,
    /// Rows up to this one were already returned.
    after: Option<SortedPosition>,
    /// The documents that may match; `None` for every document in the walk.
    documents: Option<DocumentSet>,
    /// The keys still to be walked.
    left: KeyRange,
    ready: VecDeque<Hit>,
    is_finished: bool,
}

/// Documents that are adjacent in the order.
struct KeyGroup {
    keys: KeyRange,
    /// Their common sort key, or `None` if the keys were cut.
    sort_key: Option<Arc<[u8]>>,
    members: DocumentSet,
}

impl IndexWalk {
    /// Prepares the walk; reads nothing.
    pub(in crate::query) fn start(
        filtered: &Filtered<impl QuerySource>,
        walk: DeclaredWalk,
        keys: &[SortPath],
        after: Option<SortedPosition>,
    ) -> Self {
        let documents = filtered.documents().map(|mut documents| {
            documents.or_with(filtered.overflow());
            documents
        });
        let mut left = walk.range.clone();
        if let Some(after) = &after {
            // The beginning of the key suffices to start near the row.
            let beginning = key::composite_prefix(&[&walk.lead, &*inverted(&after.key, walk.is_reversed)].concat());
            match walk.is_reversed {
                false => left.lower = left.lower.max(beginning),
                true => left.upper = left.upper.min(successor(&beginning)),
            }
        }
        let keys = keys.to_vec();
        IndexWalk { walk, keys, after, documents, left, ready: VecDeque::new(), is_finished: false }
    }

    /// Returns at most `want` further hits; none at the end.
    pub(in crate::query) fn next_hits(
        &mut self,
        filtered: &Filtered<impl QuerySource>,
        want: usize,
    ) -> Result<Vec<Hit>> {
        while self.ready.len() < want && !self.is_finished {
            for group in self.groups(filtered, want)? {
                self.add_group(filtered, group)?;
            }
        }
        Ok(self.ready.drain(..want.min(self.ready.len())).collect())
    }

    /// The walked index.
    pub(in crate::query) fn walk(&self) -> &DeclaredWalk {
        &self.walk
    }

    /// Walks on until about `want` documents are found, or to the last key.
    fn groups(&mut self, filtered: &Filtered<impl QuerySource>, want: usize) -> Result<Vec<KeyGroup>> {
        let mut is_finished = true;
        let mut groups: Vec<KeyGroup> = Vec::new();
        if self.left.is_empty() {
            self.is_finished = true;
            return Ok(groups);
        }
        let direction = if self.walk.is_reversed { Direction::Descending } else { Direction::Ascending };
        let (mut found_count, mut walked_count) = (0, 0);
        let mut last_key = Vec::new();
        filtered.source.walk(self.walk.path, &self.left, direction, &mut |key, posting| {
            let cut_before = groups.last_mut().filter(|group| group.sort_key.is_none() && group.keys.holds(key));
            if cut_before.is_none() && found_count >= want {
                is_finished = false;
                return Ok(ControlFlow::Break(()));
            }
            walked_count += 1;
            last_key.clear();
            last_key.extend_from_slice(key);
            let mut members = posting.take()?;
            if let Some(documents) = &self.documents {
                members.and_with(documents);
            }
            found_count += members.len() as usize;
            match cut_before {
                Some(group) => group.members.or_with(&members),
                None if members.is_empty() => {}
                None => groups.push(self.group_of(key, members)?),
            }
            Ok(ControlFlow::Continue(()))
        })?;
        filtered.walked(walked_count);
        self.is_finished = is_finished;
        match direction {
            Direction::Ascending => self.left.lower = successor(&last_key),
            Direction::Descending => self.left.upper = last_key,
        }
        Ok(groups)
    }

    fn group_of(&self, index_key: &[u8], members: DocumentSet) -> Result<KeyGroup> {
        let text = key::decode_composite(index_key)?;
        if text.cut {
            return Ok(KeyGroup { keys: cut_region(index_key), sort_key: None, members });
        }
        let keys = KeyRange { lower: index_key.to_vec(), upper: successor(index_key) };
        let sort_key = text.bytes.get(self.walk.lead.len()..).unwrap_or_default();
        let sort_key = inverted(sort_key, self.walk.is_reversed).into();
        Ok(KeyGroup { keys, sort_key: Some(sort_key), members })
    }

    fn add_group(&mut self, filtered: &Filtered<impl QuerySource>, group: KeyGroup) -> Result<()> {
        let Some(sort_key) = group.sort_key else {
            let mut collector = Collector::new(&self.keys, self.after.as_ref(), None);
            collector.add_each(filtered, &group.members, Recheck::None)?;
            self.ready.extend(collector.finish());
            return Ok(());
        };
        let numbers: Vec<DocumentNumber> = group.members.iter().collect();
        let ids = filtered.source.ids(&numbers)?;
        let sorted = ids.into_iter().map(|id| SortedPosition { key: sort_key.clone(), id });
        let mut hits: Vec<(SortedPosition, DocumentNumber)> = sorted.zip(numbers).collect();
        if let Some(after) = &self.after {
            hits.retain(|(sorted, _)| sorted > after);
        }
        hits.sort_unstable();
        self.ready.extend(hits.into_iter().map(|(sorted, number)| {
            let hit = filtered.hit(number);
            Hit { position: HitPosition::Sorted(sorted), ..hit }
        }));
        Ok(())
    }
}

/// Returns the bytes, with all bits inverted if the order is reversed.
fn inverted(bytes: &[u8], is_reversed: bool) -> Vec<u8> {
    bytes.iter().map(|byte| if is_reversed { !byte } else { *byte }).collect()
}
