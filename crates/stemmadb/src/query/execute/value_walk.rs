//! A sorted order met on a walk over the values of its first path, which stops as soon as enough rows are found.
//!
//! The walk goes through *groups* of documents, in order: those without the path, the scalars value by value, the arrays,
//! the objects (the other way round when descending). Documents of one value tie on the first path; the others of a group
//! (arrays, objects, strings that the index cut) are brought into order by reading them. Documents whose terms are
//! incomplete are read and sorted before the walk, and join it where they belong.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::collect::Collector;
use super::cursor::{Filtered, Hit, Need, Place};
use super::evaluate::evaluate;
use super::values;
use crate::Result;
use crate::index::{DocumentNumber, DocumentSet, PathNumber, Presence};
use crate::query::language::document::{Document, value_at};
use crate::query::language::interval::{KeyRange, cut_region, successor};
use crate::query::language::sort::{self, MISSING, SortPath, Sorted};
use crate::query::plan::{Drive, Node, Values};
use crate::query::source::{Posting, Source};
use crate::tree::Direction;
use crate::value::collate::key::{self, is_cut};
use crate::value::{Kind, Path, Value};

/// A walk under way.
pub(in crate::query) struct ValueWalk {
    path: Option<PathNumber>,
    keys: Vec<SortPath>,
    /// Rows up to this one were returned before.
    after: Option<Sorted>,
    wanted: Option<u64>,
    /// What the index found; none for everything.
    documents: Option<DocumentSet>,
    /// The only values to walk, if a condition says so.
    drive: Option<Drive>,
    /// What is still to be walked.
    stages: VecDeque<Stage>,
    /// The scalars still to be walked.
    scalars: KeyRange,
    /// Documents whose terms are incomplete, in order.
    strays: VecDeque<Stray>,
    ready: VecDeque<Hit>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Missing,
    Scalars,
    Arrays,
    Objects,
}

/// A document whose terms are incomplete.
struct Stray {
    /// The key of its value at the first path.
    first: Vec<u8>,
    hit: Hit,
}

/// Documents which stand together in the order of the first path.
struct Group {
    /// The keys of their values.
    keys: KeyRange,
    /// Whether they all have one value.
    is_one_value: bool,
    members: DocumentSet,
    /// What is to be checked on each, at least.
    need: Need,
}

impl ValueWalk {
    /// Gets ready to walk: reads the documents whose terms are incomplete, and nothing else.
    pub(in crate::query) fn start(
        filtered: &Filtered<impl Source>,
        path: Option<PathNumber>,
        drive: Option<Drive>,
        keys: &[SortPath],
        after: Option<Sorted>,
        wanted: Option<u64>,
    ) -> Result<Self> {
        let mut walk = ValueWalk {
            path,
            keys: keys.to_vec(),
            after,
            wanted,
            documents: filtered.documents(),
            drive,
            stages: VecDeque::from([Stage::Missing, Stage::Scalars, Stage::Arrays, Stage::Objects]),
            scalars: KeyRange::of_scalars(),
            strays: VecDeque::new(),
            ready: VecDeque::new(),
        };
        match walk.drive.as_ref().map(|drive| &drive.others) {
            None => {}
            // Every value that meets the condition is a scalar.
            Some(Node::Empty) => walk.stages.retain(|stage| *stage == Stage::Scalars),
            Some(_) => walk.stages.retain(|stage| *stage != Stage::Missing),
        }
        if walk.direction() == Direction::Descending {
            walk.stages.make_contiguous().reverse();
        }
        walk.pass_over(filtered.source.policy().text_bytes_max());
        walk.collect_strays(filtered)?;
        Ok(walk)
    }

    /// The next hits, at most `want`; none at the end.
    pub(in crate::query) fn next_hits(&mut self, filtered: &Filtered<impl Source>, want: usize) -> Result<Vec<Hit>> {
        while self.ready.len() < want {
            let Some(stage) = self.stages.front() else {
                self.ready.extend(self.strays.drain(..).map(|stray| stray.hit));
                break;
            };
            match stage {
                Stage::Missing => self.missing(filtered)?,
                Stage::Scalars => self.scalars(filtered, want)?,
                Stage::Arrays => self.containers(filtered, Kind::Array)?,
                Stage::Objects => self.containers(filtered, Kind::Object)?,
            }
        }
        Ok(self.ready.drain(..want.min(self.ready.len())).collect())
    }

    /// Takes over what has become known of the documents still to be met.
    pub(in crate::query) fn know(&mut self, filtered: &Filtered<impl Source>) {
        self.documents = filtered.documents();
    }

    pub(in crate::query) fn drive(&self) -> Option<&Drive> {
        self.drive.as_ref()
    }

    fn direction(&self) -> Direction {
        match self.keys.first() {
            Some(SortPath { descending: true, .. }) => Direction::Descending,
            _ => Direction::Ascending,
        }
    }

    /// Leaves out what stands before the row that was returned last, as far as that is easily told.
    fn pass_over(&mut self, text_bytes_max: usize) {
        let Some(after) = &self.after else { return };
        let mut first: Vec<u8> = after.key.iter().copied().take(1 + text_bytes_max).collect();
        if self.direction() == Direction::Descending {
            first.iter_mut().for_each(|byte| *byte = !*byte);
        }
        let stage = match key::kind_of(&first) {
            None => Stage::Missing,
            Some(Kind::Array) => Stage::Arrays,
            Some(Kind::Object) => Stage::Objects,
            Some(_) => Stage::Scalars,
        };
        let direction = self.direction();
        let is_before = |a: Stage, b: Stage| match direction {
            Direction::Ascending => a < b,
            Direction::Descending => a > b,
        };
        while self.stages.front().is_some_and(|front| is_before(*front, stage)) {
            self.stages.pop_front();
        }
        if stage != Stage::Scalars {
            return;
        }
        // Further values of the sort key may follow the first; its beginning is enough to start near it.
        let first = &first[..key::length(&first).unwrap_or(first.len()).min(first.len())];
        match self.direction() {
            Direction::Ascending => self.scalars.lower = first.to_vec(),
            Direction::Descending => self.scalars.upper = successor(first),
        }
    }

    fn collect_strays(&mut self, filtered: &Filtered<impl Source>) -> Result<()> {
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
        self.strays = hits.into_iter().zip(firsts).map(|(hit, first)| Stray { first, hit }).collect();
        Ok(())
    }

    fn missing(&mut self, filtered: &Filtered<impl Source>) -> Result<()> {
        let mut members = match &self.documents {
            Some(documents) => documents.clone(),
            None => filtered.source.presence(PathNumber::ROOT, &[Presence::Object])?.and_not(filtered.overflow()),
        };
        if let Some(path) = self.path {
            members.and_not_with(&filtered.source.presence(path, &Presence::ALL)?);
        }
        let keys = KeyRange { lower: vec![MISSING], upper: vec![MISSING + 1] };
        self.add_group(filtered, Group { keys, is_one_value: true, members, need: Need::Nothing })?;
        self.stages.pop_front();
        Ok(())
    }

    fn containers(&mut self, filtered: &Filtered<impl Source>, kind: Kind) -> Result<()> {
        let (mut members, mut unsure) = (DocumentSet::new(), DocumentSet::new());
        if let Some(path) = self.path {
            members = filtered.source.presence(path, &[kind.into()])?;
            self.narrow(filtered, &mut members);
            if let Some(drive) = &self.drive {
                let others = evaluate(&drive.others, &filtered.source, None)?;
                unsure = members.and(&others.maybe);
                members.and_with(&others.certain);
            }
        }
        let keys = KeyRange::of_kind(kind);
        // Two groups of one kind would not be in one order.
        let need = if unsure.is_empty() { Need::Nothing } else { Need::Whole };
        members.or_with(&unsure);
        self.add_group(filtered, Group { keys, is_one_value: false, members, need })?;
        self.stages.pop_front();
        Ok(())
    }

    /// Keeps the documents that may match and whose terms are complete.
    fn narrow(&self, filtered: &Filtered<impl Source>, members: &mut DocumentSet) {
        match &self.documents {
            Some(documents) => members.and_with(documents),
            None => members.and_not_with(filtered.overflow()),
        }
    }

    /// Walks on until about `want` documents are met, or the last scalar.
    fn scalars(&mut self, filtered: &Filtered<impl Source>, want: usize) -> Result<()> {
        let mut groups: Vec<Group> = Vec::new();
        let mut met_count = 0;
        let mut last_key = Vec::new();
        let mut is_finished = true;
        if let (Some(path), false) = (self.path, self.scalars.is_empty()) {
            let every = Values::Range(KeyRange::of_scalars());
            let walked = self.drive.as_ref().map_or(&every, |drive| &drive.values);
            let visit = &mut |value_key: &[u8], posting: &mut dyn Posting, is_sure: bool| {
                let group = groups.last_mut().filter(|group| !group.is_one_value && group.keys.holds(value_key));
                if group.is_none() && met_count >= want {
                    is_finished = false;
                    return Ok(ControlFlow::Break(()));
                }
                last_key.clear();
                last_key.extend_from_slice(value_key);
                let mut members = posting.take()?;
                self.narrow(filtered, &mut members);
                met_count += members.len() as usize;
                let need = if is_sure { Need::Nothing } else { Need::Whole };
                match group {
                    Some(group) => {
                        group.members.or_with(&members);
                        group.need = group.need.max(need);
                    }
                    None if members.is_empty() => {}
                    None => groups.push(Group::of_value(value_key, members, need)),
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

    /// Brings a group's documents into order, with the strays that stand before or within it.
    fn add_group(&mut self, filtered: &Filtered<impl Source>, group: Group) -> Result<()> {
        let is_before = |stray: &Stray| match self.direction() {
            Direction::Ascending => stray.first < group.keys.lower,
            Direction::Descending => stray.first >= group.keys.upper,
        };
        let before = self.strays.partition_point(is_before);
        self.ready.extend(self.strays.drain(..before).map(|stray| stray.hit));
        let within = self.strays.partition_point(|stray| group.keys.holds(&stray.first));
        let within: Vec<Stray> = self.strays.drain(..within).collect();
        if group.is_one_value && within.is_empty() && self.keys.len() == 1 && group.need == Need::Nothing {
            return self.add_by_id(filtered, &group);
        }
        let mut collector = Collector::new(&self.keys, self.after.as_ref(), None);
        collector.add_each(filtered, &group.members, group.need)?;
        for stray in within {
            collector.add_hit(stray.hit);
        }
        self.ready.extend(collector.finish());
        Ok(())
    }

    /// Adds the documents of one value, which tie on all there is to compare but the id.
    fn add_by_id(&mut self, filtered: &Filtered<impl Source>, group: &Group) -> Result<()> {
        let numbers: Vec<DocumentNumber> = group.members.iter().collect();
        if numbers.is_empty() {
            return Ok(());
        }
        let mut key = Vec::new();
        sort::append_encoded(&mut key, &group.keys.lower, self.direction() == Direction::Descending);
        let key: Arc<[u8]> = key.into();
        let ids = filtered.source.ids(&numbers)?;
        let sorted = ids.into_iter().map(|id| Sorted { key: key.clone(), id });
        let mut hits: Vec<(Sorted, DocumentNumber)> = sorted.zip(numbers).collect();
        if let Some(after) = &self.after {
            hits.retain(|(sorted, _)| sorted > after);
        }
        if let (Some(wanted), true) = (self.wanted, filtered.is_exact()) {
            let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
            if wanted > 0 && wanted < hits.len() {
                hits.select_nth_unstable(wanted - 1);
                hits.truncate(wanted);
            }
        }
        hits.sort_unstable();
        self.ready.extend(hits.into_iter().map(|(sorted, number)| {
            let hit = filtered.hit(number);
            Hit { place: Place::Sorted(sorted), ..hit }
        }));
        Ok(())
    }
}

impl Group {
    fn of_value(value_key: &[u8], members: DocumentSet, need: Need) -> Self {
        if is_cut(value_key) {
            return Group { keys: cut_region(value_key), is_one_value: false, members, need };
        }
        let keys = KeyRange { lower: value_key.to_vec(), upper: successor(value_key) };
        Group { keys, is_one_value: true, members, need }
    }
}

/// The key of a hit's value at the first path as the index would have it, strings cut like those of the groups: a full key lies
/// elsewhere than the cut keys it belongs with.
fn first_key(filtered: &Filtered<impl Source>, hit: &Hit, path: &Path) -> Result<Vec<u8>> {
    let mut first = Vec::new();
    filtered.load(std::slice::from_ref(hit), |_, document| {
        let value = value_at(path, Document::of(&document)?)?;
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
