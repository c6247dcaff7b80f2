//! Sorted order by walking the values of the first sort path; stops as soon as enough rows are found.
//!
//! The walk visits *groups* of documents in order: documents without the path, scalars value by value, arrays, objects
//! (in reverse if descending). Documents with the same value tie on the first path. Within other groups (arrays,
//! objects, strings with cut keys) documents are read and sorted. Documents whose terms are incomplete are read and
//! sorted before the walk, and merged at their positions.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::collect::Collector;
use super::cursor::{Filtered, Hit, HitPosition, Recheck};
use super::evaluate::evaluate;
use super::values;
use crate::Result;
use crate::index::{DocumentNumber, DocumentSet, PathNumber, Presence};
use crate::query::language::document::{DocumentView, value_at};
use crate::query::language::interval::{KeyRange, cut_region, successor};
use crate::query::language::sort::{self, MISSING, SortPath, SortedPosition};
use crate::query::plan::{DrivingCondition, Node, Values};
use crate::query::source::{Posting, QuerySource};
use crate::tree::Direction;
use crate::value::collate::key::{self, is_cut};
use crate::value::{Kind, Path, Value};

/// State of the walk.
pub(in crate::query) struct ValueWalk {
    path: Option<PathNumber>,
    keys: Vec<SortPath>,
    /// Rows up to this one were already returned.
    after: Option<SortedPosition>,
    rows_needed: Option<u64>,
    /// The documents that may match; `None` for every document.
    documents: Option<DocumentSet>,
    /// The condition whose values alone are walked, if there is one.
    driving: Option<DrivingCondition>,
    /// The stages still to be walked.
    stages: VecDeque<WalkStage>,
    /// The range of scalars still to be walked.
    scalars: KeyRange,
    /// Documents whose terms are incomplete, in order.
    overflow_hits: VecDeque<OverflowHit>,
    ready: VecDeque<Hit>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum WalkStage {
    Missing,
    Scalars,
    Arrays,
    Objects,
}

/// A document whose terms are incomplete.
struct OverflowHit {
    /// The key of its value at the first path.
    first: Vec<u8>,
    hit: Hit,
}

/// Documents that are adjacent in the order of the first path.
struct ValueGroup {
    /// The keys of their values.
    keys: KeyRange,
    /// Whether they all have the same value.
    is_one_value: bool,
    members: DocumentSet,
    /// The check that each of them needs at least.
    recheck: Recheck,
}

impl ValueWalk {
    /// Prepares the walk; reads only the documents whose terms are incomplete.
    pub(in crate::query) fn start(
        filtered: &Filtered<impl QuerySource>,
        path: Option<PathNumber>,
        driving: Option<DrivingCondition>,
        keys: &[SortPath],
        after: Option<SortedPosition>,
        rows_needed: Option<u64>,
    ) -> Result<Self> {
        let mut walk = ValueWalk {
            path,
            keys: keys.to_vec(),
            after,
            rows_needed,
            documents: filtered.documents(),
            driving,
            stages: VecDeque::from([WalkStage::Missing, WalkStage::Scalars, WalkStage::Arrays, WalkStage::Objects]),
            scalars: KeyRange::of_scalars(),
            overflow_hits: VecDeque::new(),
            ready: VecDeque::new(),
        };
        match walk.driving.as_ref().map(|driving| &driving.others) {
            None => {}
            // Only scalars meet the condition.
            Some(Node::Empty) => walk.stages.retain(|stage| *stage == WalkStage::Scalars),
            Some(_) => walk.stages.retain(|stage| *stage != WalkStage::Missing),
        }
        if walk.direction() == Direction::Descending {
            walk.stages.make_contiguous().reverse();
        }
        walk.skip_returned(filtered.source.policy().text_bytes_max());
        walk.collect_overflow(filtered)?;
        Ok(walk)
    }

    /// Returns at most `want` further hits; none at the end.
    pub(in crate::query) fn next_hits(
        &mut self,
        filtered: &Filtered<impl QuerySource>,
        want: usize,
    ) -> Result<Vec<Hit>> {
        while self.ready.len() < want {
            let Some(stage) = self.stages.front() else {
                self.ready.extend(self.overflow_hits.drain(..).map(|overflow_hit| overflow_hit.hit));
                break;
            };
            match stage {
                WalkStage::Missing => self.missing(filtered)?,
                WalkStage::Scalars => self.scalars(filtered, want)?,
                WalkStage::Arrays => self.containers(filtered, Kind::Array)?,
                WalkStage::Objects => self.containers(filtered, Kind::Object)?,
            }
        }
        Ok(self.ready.drain(..want.min(self.ready.len())).collect())
    }

    /// Uses the evaluated filter for the documents still to be visited.
    pub(in crate::query) fn refresh_documents(&mut self, filtered: &Filtered<impl QuerySource>) {
        self.documents = filtered.documents();
    }

    pub(in crate::query) fn driving(&self) -> Option<&DrivingCondition> {
        self.driving.as_ref()
    }

    fn direction(&self) -> Direction {
        match self.keys.first() {
            Some(SortPath { descending: true, .. }) => Direction::Descending,
            _ => Direction::Ascending,
        }
    }

    /// Skips stages and values before the last returned row, as far as its sort key shows them.
    fn skip_returned(&mut self, text_bytes_max: usize) {
        let Some(after) = &self.after else { return };
        let mut first: Vec<u8> = after.key.iter().copied().take(1 + text_bytes_max).collect();
        if self.direction() == Direction::Descending {
            first.iter_mut().for_each(|byte| *byte = !*byte);
        }
        let stage = match key::kind_of(&first) {
            None => WalkStage::Missing,
            Some(Kind::Array) => WalkStage::Arrays,
            Some(Kind::Object) => WalkStage::Objects,
            Some(_) => WalkStage::Scalars,
        };
        let direction = self.direction();
        let is_before = |a: WalkStage, b: WalkStage| match direction {
            Direction::Ascending => a < b,
            Direction::Descending => a > b,
        };
        while self.stages.front().is_some_and(|front| is_before(*front, stage)) {
            self.stages.pop_front();
        }
        if stage != WalkStage::Scalars {
            return;
        }
        // The sort key may continue with further values; the first one suffices to start near the row.
        let first = &first[..key::length(&first).unwrap_or(first.len()).min(first.len())];
        match self.direction() {
            Direction::Ascending => self.scalars.lower = first.to_vec(),
            Direction::Descending => self.scalars.upper = successor(first),
        }
    }

    fn collect_overflow(&mut self, filtered: &Filtered<impl QuerySource>) -> Result<()> {
        if filtered.overflow().is_empty() {
            return Ok(());
        }
        let Some(first) = self.keys.first().map(|key| key.path.clone()) else { return Ok(()) };
        let mut firsts = Vec::new();
        let mut collector = Collector::new(&self.keys, self.after.as_ref(), None);
        collector.add_all(filtered, filtered.overflow())?;
        let hits = collector.finish();
        for hit in &hits {
            firsts.push(first_key(filtered, hit, &first)?);
        }
        self.overflow_hits = hits.into_iter().zip(firsts).map(|(hit, first)| OverflowHit { first, hit }).collect();
        Ok(())
    }

    fn missing(&mut self, filtered: &Filtered<impl QuerySource>) -> Result<()> {
        let mut members = match &self.documents {
            Some(documents) => documents.clone(),
            None => filtered.source.presence(PathNumber::ROOT, &[Presence::Object])?.and_not(filtered.overflow()),
        };
        if let Some(path) = self.path {
            members.and_not_with(&filtered.source.presence(path, &Presence::ALL)?);
        }
        let keys = KeyRange { lower: vec![MISSING], upper: vec![MISSING + 1] };
        self.add_group(filtered, ValueGroup { keys, is_one_value: true, members, recheck: Recheck::None })?;
        self.stages.pop_front();
        Ok(())
    }

    fn containers(&mut self, filtered: &Filtered<impl QuerySource>, kind: Kind) -> Result<()> {
        let (mut members, mut unsure) = (DocumentSet::new(), DocumentSet::new());
        if let Some(path) = self.path {
            members = filtered.source.presence(path, &[kind.into()])?;
            self.narrow(filtered, &mut members);
            if let Some(driving) = &self.driving {
                let others = evaluate(&driving.others, &filtered.source, None)?;
                unsure = members.and(&others.maybe);
                members.and_with(&others.certain);
            }
        }
        let keys = KeyRange::of_kind(kind);
        // The documents are one group: two groups of one kind would not be in a common order.
        let recheck = if unsure.is_empty() { Recheck::None } else { Recheck::Whole };
        members.or_with(&unsure);
        self.add_group(filtered, ValueGroup { keys, is_one_value: false, members, recheck })?;
        self.stages.pop_front();
        Ok(())
    }

    /// Keeps the documents that may match and whose terms are complete.
    fn narrow(&self, filtered: &Filtered<impl QuerySource>, members: &mut DocumentSet) {
        match &self.documents {
            Some(documents) => members.and_with(documents),
            None => members.and_not_with(filtered.overflow()),
        }
    }

    /// Walks on until about `want` documents are found, or to the last scalar.
    fn scalars(&mut self, filtered: &Filtered<impl QuerySource>, want: usize) -> Result<()> {
        let mut groups: Vec<ValueGroup> = Vec::new();
        let mut found_count = 0;
        let mut last_key = Vec::new();
        let mut is_finished = true;
        if let (Some(path), false) = (self.path, self.scalars.is_empty()) {
            let every = Values::Range(KeyRange::of_scalars());
            let walked = self.driving.as_ref().map_or(&every, |driving| &driving.values);
            let visit = &mut |value_key: &[u8], posting: &mut dyn Posting, is_certain: bool| {
                let group = groups.last_mut().filter(|group| !group.is_one_value && group.keys.holds(value_key));
                if group.is_none() && found_count >= want {
                    is_finished = false;
                    return Ok(ControlFlow::Break(()));
                }
                last_key.clear();
                last_key.extend_from_slice(value_key);
                let mut members = posting.take()?;
                self.narrow(filtered, &mut members);
                found_count += members.len() as usize;
                let recheck = if is_certain { Recheck::None } else { Recheck::Whole };
                match group {
                    Some(group) => {
                        group.members.or_with(&members);
                        group.recheck = group.recheck.max(recheck);
                    }
                    None if members.is_empty() => {}
                    None => groups.push(ValueGroup::of_value(value_key, members, recheck)),
                }
                Ok(ControlFlow::Continue(()))
            };
            filtered.walked(values::walk(&filtered.source, path, walked, &self.scalars, self.direction(), visit)?);
        }
        for group in groups {
            self.add_group(filtered, group)?;
        }
        if is_finished {
            self.stages.pop_front();
        } else if self.direction() == Direction::Ascending {
            self.scalars.lower = successor(&last_key);
        } else {
            self.scalars.upper = last_key;
        }
        Ok(())
    }

    /// Sorts a group's documents, merged with the overflow documents before or within the group.
    fn add_group(&mut self, filtered: &Filtered<impl QuerySource>, group: ValueGroup) -> Result<()> {
        let is_before = |overflow_hit: &OverflowHit| match self.direction() {
            Direction::Ascending => overflow_hit.first < group.keys.lower,
            Direction::Descending => overflow_hit.first >= group.keys.upper,
        };
        let before = self.overflow_hits.partition_point(is_before);
        self.ready.extend(self.overflow_hits.drain(..before).map(|overflow_hit| overflow_hit.hit));
        let within = self.overflow_hits.partition_point(|overflow_hit| group.keys.holds(&overflow_hit.first));
        let within: Vec<OverflowHit> = self.overflow_hits.drain(..within).collect();
        if group.is_one_value && within.is_empty() && self.keys.len() == 1 && group.recheck == Recheck::None {
            return self.add_by_id(filtered, &group);
        }
        let mut collector = Collector::new(&self.keys, self.after.as_ref(), None);
        collector.add_each(filtered, &group.members, group.recheck)?;
        for overflow_hit in within {
            collector.add_hit(overflow_hit.hit);
        }
        self.ready.extend(collector.finish());
        Ok(())
    }

    /// Adds the documents with one value, which are ordered by id.
    fn add_by_id(&mut self, filtered: &Filtered<impl QuerySource>, group: &ValueGroup) -> Result<()> {
        let numbers: Vec<DocumentNumber> = group.members.iter().collect();
        if numbers.is_empty() {
            return Ok(());
        }
        let mut key = Vec::new();
        sort::append_encoded(&mut key, &group.keys.lower, self.direction() == Direction::Descending);
        let key: Arc<[u8]> = key.into();
        let ids = filtered.source.ids(&numbers)?;
        let sorted = ids.into_iter().map(|id| SortedPosition { key: key.clone(), id });
        let mut hits: Vec<(SortedPosition, DocumentNumber)> = sorted.zip(numbers).collect();
        if let Some(after) = &self.after {
            hits.retain(|(sorted, _)| sorted > after);
        }
        if let (Some(rows_needed), true) = (self.rows_needed, filtered.is_exact()) {
            let rows_needed = usize::try_from(rows_needed).unwrap_or(usize::MAX);
            if rows_needed > 0 && rows_needed < hits.len() {
                hits.select_nth_unstable(rows_needed - 1);
                hits.truncate(rows_needed);
            }
        }
        hits.sort_unstable();
        self.ready.extend(hits.into_iter().map(|(sorted, number)| {
            let hit = filtered.hit(number);
            Hit { position: HitPosition::Sorted(sorted), ..hit }
        }));
        Ok(())
    }
}

impl ValueGroup {
    fn of_value(value_key: &[u8], members: DocumentSet, recheck: Recheck) -> Self {
        if is_cut(value_key) {
            return ValueGroup { keys: cut_region(value_key), is_one_value: false, members, recheck };
        }
        let keys = KeyRange { lower: value_key.to_vec(), upper: successor(value_key) };
        ValueGroup { keys, is_one_value: true, members, recheck }
    }
}

/// Returns the key of a hit's value at the first path as the index has it. Long strings are cut as in the groups: an
/// uncut key would sort elsewhere than the cut keys of its group.
fn first_key(filtered: &Filtered<impl QuerySource>, hit: &Hit, path: &Path) -> Result<Vec<u8>> {
    let mut first = Vec::new();
    filtered.load(std::slice::from_ref(hit), |_, document| {
        let value = value_at(path, DocumentView::of(&document)?)?;
        match &value {
            Some(Value::String(text)) => {
                let bytes_max = filtered.source.policy().text_bytes_max();
                key::encode_string_bounded(text, bytes_max, &mut first);
            }
            Some(other) => key::encode(other, &mut first),
            None => first.push(MISSING),
        }
        Ok(())
    })?;
    Ok(first)
}
