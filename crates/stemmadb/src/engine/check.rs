//! Consistency check: documents against the index in both directions, the feed against the documents, records against
//! their checksums, and live byte counts against the records.
//!
//! Index and documents are compared as multisets of (path, term, document): both sides are summed as 128-bit hashes,
//! path by path, so memory does not grow with the database.

use std::collections::{BTreeMap, HashSet};
use std::hash::BuildHasher;
use std::ops::Bound;

use crate::document::Document;
use crate::engine::{ActiveTaskKind, Operation, Store};
use crate::index::{DeclaredIndexes, DocumentNumber, Histogram, NumberSum, PathNumber, Presence};
use crate::layout::record::{Record, records};
use crate::layout::{self, FIRST_NUMBER, meta};
use crate::log::{Digest, LogPosition};
use crate::memtable::DocumentState;
use crate::options::Progress;
use crate::read::snapshot::{Located, Snapshot};
use crate::read::statistics;
use crate::revision::Sequence;
use crate::tree::{Direction, Table};
use crate::value::PackedValue;
use crate::{Error, ErrorKind, Result};

/// The result of a consistency check.
///
/// Returned by [`Maintenance::check`](crate::handles::Maintenance::check).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Documents checked, including deleted ones.
    pub document_count: u64,
    /// Index entries compared: one for each term of each document.
    pub term_count: u64,
    /// Log records verified.
    pub record_count: u64,
    /// Feed events checked.
    pub event_count: u64,
    /// Attachment contents read in full.
    pub file_count: u64,
    /// The problems found, at most 100; empty if the database is consistent.
    pub damages: Vec<Damage>,
}

/// One problem found by a [consistency check](CheckReport).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// A description of the problem and its location.
    pub what: String,
    /// Whether the problem is in the tree, so that a rebuild repairs it.
    pub rebuild_helps: bool,
}

impl CheckReport {
    /// Whether no problem was found.
    pub fn is_sound(&self) -> bool {
        self.damages.is_empty()
    }
}

/// The maximum number of problems reported.
const DAMAGE_COUNT_MAX: usize = 100;

impl Store {
    /// Checks a snapshot of everything published, and the log.
    pub(crate) fn check(&self, progress: &mut dyn FnMut(Progress)) -> Result<CheckReport> {
        let _running = self.begin(Operation::Compact)?;
        // Compaction must not move records while their positions are compared.
        let _compaction = self.compaction.lock();
        let task = self.list_task(ActiveTaskKind::Check, "");
        let mut progress = task.showing(progress);
        let number_end = self.parts.publisher.published_numbers();
        let snapshot = self.snapshot()?;
        // The snapshot may hold documents that were inserted after `number_end` was read. If its last number can't be
        // read, the checks below report that.
        let number_end = number_end.max(snapshot.last_number().map_or(number_end, |last| DocumentNumber(last.0 + 1)));
        let segments = self.parts.log.segments();
        let log_bytes: u64 = segments.iter().map(|segment| segment.used_bytes).sum();
        let total = number_end.0 + log_bytes;
        let mut declared = DeclaredIndexes::clone(snapshot.declared());
        declared.indexes.retain(|index| index.is_ready);
        let mut check = Check {
            store: self,
            snapshot: &snapshot,
            declared,
            report: CheckReport::default(),
            sums: Sums::default(),
            contents: HashSet::new(),
            missing_count: 0,
        };
        let mut done = 0;
        for segment in &segments {
            check.segment(segment.number)?;
            done += segment.used_bytes;
            progress(Progress { done, total });
        }
        for number in FIRST_NUMBER.0..number_end.0 {
            // Stop once no more problems would be reported: a damaged number far beyond all others would otherwise be
            // counted up to for years.
            if check.missing_count > DAMAGE_COUNT_MAX {
                break;
            }
            check.document(DocumentNumber(number))?;
            if number % 1024 == 0 {
                progress(Progress { done: done + number, total });
            }
        }
        for file in self.parts.log.history().files() {
            check.history_file(file.segment)?;
        }
        check.contents()?;
        check.index()?;
        check.feed()?;
        check.tree()?;
        progress(Progress { done: total, total });
        Ok(check.report)
    }
}

struct Check<'a> {
    store: &'a Store,
    snapshot: &'a Snapshot,
    /// The declared indexes that are ready. The others hold only a part of their terms.
    declared: DeclaredIndexes,
    report: CheckReport,
    sums: Sums,
    /// Digests of the attachment contents already read.
    contents: HashSet<Digest>,
    /// How many assigned document numbers have no document.
    missing_count: usize,
}

/// For each path, the sum over (term, document) of a hash: documents add to it and the index subtracts from it.
#[derive(Default)]
struct Sums {
    low: hashbrown::DefaultHashBuilder,
    high: hashbrown::DefaultHashBuilder,
    by_path: BTreeMap<PathNumber, u128>,
}

impl Sums {
    fn hash(&self, path: PathNumber, key: &[u8], number: DocumentNumber) -> u128 {
        let entry = (path, key, number);
        u128::from(self.high.hash_one(entry)) << 64 | u128::from(self.low.hash_one(entry))
    }

    fn count_up(&mut self, path: PathNumber, key: &[u8], number: DocumentNumber) {
        let hash = self.hash(path, key, number);
        let sum = self.by_path.entry(path).or_default();
        *sum = sum.wrapping_add(hash);
    }

    fn count_down(&mut self, path: PathNumber, key: &[u8], number: DocumentNumber) {
        let hash = self.hash(path, key, number);
        let sum = self.by_path.entry(path).or_default();
        *sum = sum.wrapping_sub(hash);
    }
}

impl Check<'_> {
    fn damage(&mut self, what: impl Into<String>, rebuild_helps: bool) {
        if self.report.damages.len() < DAMAGE_COUNT_MAX {
            self.report.damages.push(Damage { what: what.into(), rebuild_helps });
        }
    }

    /// Turns a `Corrupt` error into a problem of the report; other errors end the check.
    fn note(&mut self, result: Result<()>, context: impl std::fmt::Display, rebuild_helps: bool) -> Result<()> {
        match result {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.damage(format!("{context}: {error}"), rebuild_helps);
                Ok(())
            }
            other => other,
        }
    }

    fn segment(&mut self, number: u32) -> Result<()> {
        let mut record_count = 0;
        let verified = self.snapshot.parts.log.frames(number, &mut |frame| {
            for record in records(&frame) {
                if let (location, Record::Revision(record)) = record? {
                    let packed = self.snapshot.parts.packed(&record, location.position)?;
                    PackedValue::new(&packed, &self.snapshot.parts.shapes)?.check()?;
                }
                record_count += 1;
            }
            Ok(())
        });
        self.report.record_count += record_count;
        self.note(verified, format_args!("log segment {number}"), false)?;
        if let Some(place) = self.snapshot.parts.log.first_unexpected_byte(number)? {
            self.damage(format!("log {place}: a byte that holds nothing is not zero"), false);
        }
        Ok(())
    }

    /// Reads the records of a retired segment that are kept for the past.
    fn history_file(&mut self, number: u32) -> Result<()> {
        let mut record_count = 0;
        let verified = self.snapshot.parts.log.history().records(number, &mut |position, bytes| {
            let (record, _) = self.snapshot.parts.record(bytes, position)?;
            if let Record::Revision(record) = record {
                let packed = self.snapshot.parts.packed(&record, position)?;
                PackedValue::new(&packed, &self.snapshot.parts.shapes)?.check()?;
            }
            record_count += 1;
            Ok(())
        });
        self.report.record_count += record_count;
        self.note(verified, format_args!("history of segment {number}"), false)
    }

    fn document(&mut self, number: DocumentNumber) -> Result<()> {
        let state = match self.snapshot.state(number) {
            Ok(Some(state)) => state,
            Ok(None) => {
                self.missing_count += 1;
                self.damage(format!("document number {} is missing from the tree", number.0), true);
                return Ok(());
            }
            Err(error) => return self.note(Err(error), format_args!("document number {}", number.0), true),
        };
        self.report.document_count += 1;
        let checked = self.document_state(&state);
        self.note(checked, format_args!("document `{}`", state.id), true)
    }

    fn document_state(&mut self, state: &DocumentState) -> Result<()> {
        let found = match self.snapshot.locate(state.id.as_str())? {
            Some(Located::Memory(found)) => Some((found.number, found.sequence, winner_position(&found))),
            Some(Located::Tree(row)) => Some((row.number, row.sequence, Some(row.position))),
            None => None,
        };
        if found != Some((state.number, state.sequence, winner_position(state))) {
            self.damage(format!("document `{}`: its id refers to another document or state", state.id), true);
        }
        for leaf in state.tree.leaves() {
            self.snapshot.stored_leaf(state, leaf)?;
            if !leaf.deleted {
                self.files(&self.snapshot.leaf_document(state, leaf)?)?;
            }
        }
        self.snapshot.verify_snapshot_record(state)?;
        if state.is_live() {
            let document = self.snapshot.winner(state)?;
            let parts = &self.snapshot.parts;
            let packed = document.packed()?;
            let id = state.id.as_str();
            let terms = crate::index::document_terms(&parts.policy, &self.declared, &parts.paths, id, packed)?;
            for term in terms.terms() {
                self.sums.count_up(term.path, term.key, state.number);
                self.report.term_count += 1;
            }
            for (path, presence) in terms.presence() {
                self.sums.count_up(*path, &presence.key(), state.number);
                self.report.term_count += 1;
            }
        }
        Ok(())
    }

    /// Reads the contents of a document's attachments, each digest once.
    fn files(&mut self, document: &Document) -> Result<()> {
        for file in document.attachments()? {
            if !self.contents.insert(file.digest) {
                continue;
            }
            let mut length = read_to_end(self.snapshot, document, &file.name);
            if length.is_err() {
                // A sweep may have removed it since the snapshot was taken, if no document has it any more. The pin
                // keeps later sweeps from removing it.
                let _pin = self.snapshot.parts.blobs.pin_referenced(file.digest, file.length);
                let newest = self.store.snapshot()?;
                if !newest.references_content(&file.digest)? && !newest.unindexed_digests()?.contains(&file.digest) {
                    continue;
                }
                length = read_to_end(&newest, document, &file.name);
            }
            let what = format!("the file `{}` of `{}`", file.name, document.id());
            match length {
                Ok(length) if length == file.length => self.report.file_count += 1,
                Ok(length) => self.damage(format!("{what} has {length} bytes, not {}", file.length), false),
                Err(error) => self.damage(format!("{what}: {error}"), false),
            }
        }
        Ok(())
    }

    /// Reads the contents in the log that no document refers to.
    fn contents(&mut self) -> Result<()> {
        let snapshot = self.snapshot;
        let visited = snapshot.live_contents(&mut |digest, location| {
            if self.contents.contains(&digest) {
                return Ok(());
            }
            let read = snapshot.read_logged_content(&digest, location).and_then(|mut content| {
                std::io::copy(&mut content, &mut std::io::sink())?;
                Ok(())
            });
            self.note(read, format_args!("the content {digest}"), true)
        });
        self.note(visited, "contents", true)
    }

    fn index(&mut self) -> Result<()> {
        for path in 0..self.snapshot.parts.paths.len() as u32 {
            let path = PathNumber(path);
            if self.is_unfinished(path) {
                continue;
            }
            let counted = self.count_path_down(path);
            self.note(counted, format_args!("index of `{}`", self.path_text(path)), true)?;
        }
        let wrong: Vec<_> = self.sums.by_path.iter().filter(|(_, sum)| **sum != 0).map(|(path, _)| *path).collect();
        for path in wrong {
            let text = self.path_text(path);
            self.damage(format!("index of `{text}`: terms and documents disagree"), true);
        }
        Ok(())
    }

    /// Whether this is the path of a declared index that is not ready, or that was dropped.
    fn is_unfinished(&self, path: PathNumber) -> bool {
        self.snapshot.parts.paths.index_of(path).is_some()
            && self.declared.indexes.iter().all(|index| index.path != path)
    }

    fn path_text(&self, path: PathNumber) -> String {
        if let Some(index) = self.declared.indexes.iter().find(|index| index.path == path) {
            return index.definition.name.clone();
        }
        if path == PathNumber::ROOT {
            return "(collections)".to_owned();
        }
        self.snapshot.parts.paths.text(path).unwrap_or_default()
    }

    fn count_path_down(&mut self, path: PathNumber) -> Result<()> {
        for presence in Presence::ALL {
            for number in self.snapshot.presence(path, &[presence])?.iter() {
                self.sums.count_down(path, &presence.key(), number);
            }
        }
        let mut walk = self.snapshot.walk(path, Bound::Unbounded, Bound::Unbounded, Direction::Ascending)?;
        while let Some(mut term) = walk.next_term()? {
            for number in term.take()?.iter() {
                self.sums.count_down(path, term.key, number);
            }
        }
        Ok(())
    }

    /// Verifies that each document has exactly one event, at its sequence.
    fn feed(&mut self) -> Result<()> {
        let mut position = Sequence::ZERO;
        while position < self.snapshot.at {
            let found = match self.snapshot.events_after(position, 1024) {
                Ok(found) => found,
                Err(error) => return self.note(Err(error), "feed", true),
            };
            for (sequence, number) in found.events {
                self.report.event_count += 1;
                let state = self.snapshot.state(number)?;
                if state.is_none_or(|state| state.sequence != sequence) {
                    self.damage(format!("feed: sequence {sequence} is not that of document number {}", number.0), true);
                }
            }
            position = found.reached;
        }
        if self.report.event_count != self.report.document_count {
            let (events, documents) = (self.report.event_count, self.report.document_count);
            self.damage(format!("feed: {events} events for {documents} documents"), true);
        }
        Ok(())
    }

    /// Verifies the tree's pages and rows, and compares the live byte counts with the records they count.
    fn tree(&mut self) -> Result<()> {
        let report = self.snapshot.parts.tree.verify()?;
        report.problems.into_iter().for_each(|problem| self.damage(problem, true));
        let tree = self.snapshot.tree.clone();
        let rows = [Table::Docs, Table::Ids, Table::Sequences].map(|table| tree.row_count(table));
        let [documents, ids, events] = rows;
        let (documents, ids, events) = (documents?, ids?, events?);
        if documents != ids || documents != events {
            self.damage(format!("tree: {documents} documents, {ids} ids, {events} events"), true);
        }
        self.statistics()?;
        let counted = self.count_live_bytes();
        let recorded = meta::live_bytes(&self.snapshot.tree);
        match (counted, recorded) {
            (Ok(counted), Ok(mut recorded)) => {
                recorded.retain(|_, bytes| *bytes > 0);
                if counted != recorded {
                    self.damage(format!("live bytes by segment are {recorded:?}, should be {counted:?}"), true);
                }
                Ok(())
            }
            (Err(error), _) | (_, Err(error)) => self.note(Err(error), "tree", true),
        }
    }

    /// Compares the stored statistics with the postings they count. No query result depends on them.
    fn statistics(&mut self) -> Result<()> {
        let tree = self.snapshot.tree.clone();
        let stored = match meta::all_statistics(&tree) {
            Ok(stored) => stored,
            Err(error) => return self.note(Err(error), "statistics", true),
        };
        for (number, bytes) in stored {
            let path = PathNumber(u32::try_from(number).unwrap_or(u32::MAX));
            let compared = Histogram::decode(&bytes).and_then(|stored| {
                let counted = statistics::count_histogram(&tree, path)?;
                // The number of distinct values is an estimate.
                same("entries", stored.entry_count(), counted.entry_count())
            });
            let summed = meta::numbers(&tree, path).and_then(|stored| {
                let Some(stored) = stored.map(|stored| NumberSum::decode(&stored)).transpose()? else { return Ok(()) };
                let sums = |numbers: &NumberSum| (numbers.count(), numbers.sum().total());
                same("numbers and their sum", sums(&stored), sums(&statistics::sum_numbers(&tree, path)?))
            });
            let compared = compared.and(summed);
            self.note(compared, format_args!("statistics of `{}`", self.path_text(path)), true)?;
        }
        Ok(())
    }

    fn count_live_bytes(&self) -> Result<BTreeMap<u32, u64>> {
        let tree = &self.snapshot.tree;
        let mut counted: BTreeMap<u32, u64> = BTreeMap::new();
        let mut add =
            |position: LogPosition, length: u32| *counted.entry(position.segment()).or_default() += u64::from(length);
        let mut rows = tree.scan(Table::Docs, Bound::Unbounded, Bound::Unbounded, Direction::Ascending)?;
        while let Some((key, value)) = rows.next()? {
            let number = DocumentNumber(layout::number_of_key(Table::Docs, key)?);
            let state = layout::DocumentRow::decode(value)?.state(number)?;
            state.record_locations().for_each(|place| add(place.position, place.length));
        }
        let mut rows = tree.scan(Table::Local, Bound::Unbounded, Bound::Unbounded, Direction::Ascending)?;
        while let Some((_, value)) = rows.next()? {
            let row = layout::LocalRow::decode(value)?;
            add(row.position, row.length);
        }
        let mut rows = tree.scan(Table::Contents, Bound::Unbounded, Bound::Unbounded, Direction::Ascending)?;
        while let Some((_, value)) = rows.next()? {
            let layout::ContentRow(location) = layout::ContentRow::decode(value)?;
            add(location.position, location.length);
        }
        Ok(counted)
    }
}

/// Reads the content of an attachment; returns its length.
fn read_to_end(snapshot: &Snapshot, document: &Document, name: &str) -> Result<u64, String> {
    match snapshot.open_attachment(document, name) {
        Ok(Some(mut content)) => std::io::copy(&mut content, &mut std::io::sink()).map_err(|error| error.to_string()),
        Ok(None) => Err("it is not there".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn winner_position(state: &DocumentState) -> Option<LogPosition> {
    state.tree.winner().map(|leaf| leaf.payload.position)
}

impl From<Damage> for Error {
    fn from(damage: Damage) -> Self {
        let error = Error::corrupt(damage.what);
        if damage.rebuild_helps { error.with_hint("run `stemma rebuild`") } else { error.with_hint("restore a backup") }
    }
}

/// Returns `Corrupt` if the stored value differs from the counted one.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, stored: T, counted: T) -> Result<()> {
    if stored == counted {
        return Ok(());
    }
    Err(Error::corrupt(format!("{stored:?} {what}, should be {counted:?}")))
}
