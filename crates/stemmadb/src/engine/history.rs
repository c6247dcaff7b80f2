//! Keeping the past: what compaction does with replaced revisions, and when they are removed after all.
//!
//! The *floor* is the lowest sequence as of which the database can be read. It rises when a replaced revision is
//! removed: to the sequence up to which it may have been current. It is stored in the tree and in each history file, so
//! that a rebuilt tree has it again.
//!
//! Invariants:
//! - Everything that was current at or after the floor is in the log or in a history file.
//! - The floor rises in the tree before what it excludes is removed.
//! - The floor never rises above a pinned sequence, nor above that of a past snapshot in use.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::engine::Store;
use crate::layout::meta;
use crate::log::{HistoryInfo, HistoryWriter, Level, Log, LogPosition, Moment};
use crate::retention::{HistoryRules, Retention};
use crate::revision::Sequence;
use crate::sync::Mutex;
use crate::{Error, Result};

/// Past snapshots in use: the sequence of each.
#[derive(Default)]
pub(super) struct PastReaders(Mutex<Vec<Weak<Sequence>>>);

impl PastReaders {
    /// Keeps what is readable as of `at` until the returned value is dropped.
    pub(super) fn hold(&self, at: Sequence) -> Arc<Sequence> {
        let held = Arc::new(at);
        let mut readers = self.0.lock();
        readers.retain(|reader| reader.strong_count() > 0);
        readers.push(Arc::downgrade(&held));
        held
    }

    fn lowest(&self) -> Option<Sequence> {
        self.0.lock().iter().filter_map(|reader| reader.upgrade().map(|at| *at)).min()
    }
}

/// What becomes of the replaced revisions of one segment that is being compacted.
pub(super) struct PastKeeper<'s> {
    store: &'s Store,
    /// `None` if they are not kept.
    writer: Option<HistoryWriter<'s>>,
    has_removed: bool,
}

impl<'s> PastKeeper<'s> {
    pub(super) fn begin(store: &'s Store, segment: u32) -> Result<Self> {
        let keeps = store.parts.declared().history.keeps_past();
        let writer = keeps.then(|| store.parts.log.history().writer(segment)).transpose()?;
        Ok(PastKeeper { store, writer, has_removed: false })
    }

    /// Takes note of a transaction of the segment.
    pub(super) fn transaction(&mut self, first_sequence: Sequence, time_us: u64) {
        if let Some(writer) = &mut self.writer {
            writer.add_time(first_sequence, time_us);
        }
    }

    /// Keeps a record of the segment that no leaf needs, or takes note that it is removed.
    pub(super) fn replaced(&mut self, position: LogPosition, time_us: u64, record: &[u8]) -> Result<()> {
        match &mut self.writer {
            Some(writer) => writer.add(position, time_us, record),
            None => {
                self.has_removed = true;
                Ok(())
            }
        }
    }

    /// Completes the history file, or raises the floor. Only then may the segment be retired.
    pub(super) fn finish(self) -> Result<()> {
        let PastKeeper { store, writer, has_removed } = self;
        let until = store.newest_moment();
        match writer {
            Some(writer) => {
                let segment = writer.segment();
                writer.finish(until, store.parts.history_floor())?;
                let mut tree = store.parts.tree.write()?;
                meta::put_history_file(&mut tree, segment)?;
                tree.commit()
            }
            None if has_removed => store.raise_floor(until.sequence),
            None => Ok(()),
        }
    }
}

impl Store {
    /// The newest sequence that was assigned.
    pub(super) fn newest_sequence(&self) -> Sequence {
        Sequence(self.writer.lock().next_sequence.0.saturating_sub(1))
    }

    fn newest_moment(&self) -> Moment {
        Moment { sequence: self.newest_sequence(), time_us: self.parts.options.clock.now_us() }
    }

    /// Raises the floor, in the tree first.
    pub(super) fn raise_floor(&self, floor: Sequence) -> Result<()> {
        self.raise_floor_above(floor, &[])
    }

    /// Raises the floor, unless it is as high already, and forgets the history files of these segments, which have
    /// nothing that is read as of the floor. Both in the tree, and the floor there first.
    fn raise_floor_above(&self, floor: Sequence, forgotten: &[u32]) -> Result<()> {
        let known = self.parts.history_floor();
        if floor <= known && forgotten.is_empty() {
            return Ok(());
        }
        let floor = floor.max(known);
        let mut tree = self.parts.tree.write()?;
        meta::put_history_floor(&mut tree, floor)?;
        forgotten.iter().try_for_each(|segment| meta::forget_history_file(&mut tree, *segment))?;
        tree.commit()?;
        self.parts.set_history_floor(floor);
        // Only what is not read any more referred to some of them.
        self.parts.blobs.mark_unreferenced();
        Ok(())
    }

    /// Determines the floor of a database that was opened, whose tree has `stored` and lists the history files
    /// `files`. If the tree has none, it follows from the history files and the numbers of the segments: each segment
    /// must be there, or a file with its replaced revisions.
    pub(super) fn restore_floor(&self, stored: Option<Sequence>, files: &[u32]) -> Result<()> {
        let log = &self.parts.log;
        let published = self.parts.publisher.published();
        // A crash may have ended a compaction before its segment was retired: the segment still has everything.
        let segments = log.segments_snapshot();
        let is_lost = |segment: &u32| !segments.contains(*segment);
        let lost: Vec<u32> = files.iter().copied().filter(is_lost).collect();
        // If someone removed a file, nothing shows how far back the others reach without it.
        let stored = if lost.is_empty() { stored } else { Some(published) };
        let is_stored = stored.is_some() && lost.is_empty();
        let floor = stored.unwrap_or_else(|| {
            let in_files = log.history().files().iter().map(|file| file.floor).max().unwrap_or(Sequence::ZERO);
            if has_whole_past(log) { in_files } else { published }
        });
        if !is_stored && !self.parts.options.read_only {
            // Otherwise the next opening would find another one.
            return self.raise_floor_above(floor, &lost);
        }
        self.parts.set_history_floor(floor);
        Ok(())
    }

    /// The rules in force.
    pub(crate) fn history_rules(&self) -> HistoryRules {
        self.parts.declared().history.clone()
    }

    /// Sets how much of the past is kept.
    pub(crate) fn set_retention(&self, retention: Retention) -> Result<()> {
        self.change_history_rules(|rules| {
            rules.retention = retention;
            Ok(())
        })?;
        self.remove_old_history()
    }

    /// Keeps the database readable as of a sequence until the pin is removed.
    pub(crate) fn pin_history(&self, name: &str, at: Sequence) -> Result<()> {
        if name.is_empty() || name.len() > 200 {
            return Err(Error::invalid("the name of a pin has 1 to 200 bytes"));
        }
        // Held until the pin is in force, so that nothing is removed in between.
        let _held = self.past_readers.hold(at);
        self.refuse_beyond_history(at, self.parts.publisher.published())?;
        self.change_history_rules(|rules| match rules.pins.contains_key(name) {
            true => Err(Error::conflict(format!("there is a pin `{name}` already")).with_hint("release it first")),
            false => {
                rules.pins.insert(name.to_owned(), at.get());
                Ok(())
            }
        })
    }

    /// Removes a pin.
    pub(crate) fn release_pin(&self, name: &str) -> Result<()> {
        self.change_history_rules(|rules| match rules.pins.remove(name) {
            Some(_) => Ok(()),
            None => Err(Error::not_found(format!("there is no pin `{name}`"))),
        })?;
        self.remove_old_history()
    }

    fn change_history_rules(&self, change: impl FnOnce(&mut HistoryRules) -> Result<()>) -> Result<()> {
        self.refuse_reentry(crate::engine::Operation::Write)?;
        // Waits for a running compaction, which follows the rules that it began with.
        let _compaction = self.compaction.lock();
        let mut writer = self.writer.lock();
        self.refuse_if_closed()?;
        let mut declared = crate::index::DeclaredIndexes::clone(&self.parts.declared());
        change(&mut declared.history)?;
        self.set_definitions(&mut writer, declared)?;
        drop(writer);
        self.parts.log.commit(self.parts.log.end(), Level::Flushed)
    }

    /// Returns an error unless the database can be read as of `at`; `newest` is its newest sequence.
    pub(super) fn refuse_beyond_history(&self, at: Sequence, newest: Sequence) -> Result<()> {
        if at > newest {
            return Err(Error::invalid(format!("sequence {at} is in the future: the newest is {newest}")));
        }
        let floor = self.parts.history_floor();
        if at >= floor {
            return Ok(());
        }
        Err(Error::not_found(format!(
            "the database can't be read as of sequence {at}: it can from sequence {floor} on"
        ))
        .with_hint("what was replaced before that is removed; `History::keep` sets how much is kept"))
    }

    /// Removes the history files that the retention does not cover any more.
    pub(crate) fn remove_old_history(&self) -> Result<()> {
        let history = self.parts.log.history();
        let mut files = history.files();
        if files.is_empty() {
            return Ok(());
        }
        files.sort_unstable_by_key(|file| file.until.sequence);
        let rules = self.history_rules();
        let needed = rules.pins.values().map(|at| Sequence(*at)).chain(self.past_readers.lowest()).min();
        let mut bytes: u64 = files.iter().map(|file| file.bytes).sum();
        let is_removed = |file: &&HistoryInfo| {
            let is_needed = needed.is_some_and(|at| at < file.until.sequence);
            let is_removed = self.is_out_of_retention(&rules, file, bytes) && !is_needed;
            bytes -= file.bytes;
            is_removed
        };
        let count = files.iter().take_while(is_removed).count();
        let Some(newest) = files[..count].last() else { return Ok(()) };
        let removed: Vec<u32> = files[..count].iter().map(|file| file.segment).collect();
        self.raise_floor_above(newest.until.sequence, &removed)?;
        removed.into_iter().try_for_each(|segment| history.remove(segment))
    }

    fn is_out_of_retention(&self, rules: &HistoryRules, file: &HistoryInfo, bytes: u64) -> bool {
        match rules.retention {
            Retention::Nothing => true,
            Retention::Everything => false,
            Retention::Bytes(bytes_max) => bytes > bytes_max,
            Retention::For(time) => {
                // A second more, as times may be a fraction of one older than they say.
                let kept_us = time.saturating_add(Duration::from_secs(1)).as_micros();
                u128::from(file.until.time_us) + kept_us < u128::from(self.parts.options.clock.now_us())
            }
        }
    }
}

/// Whether each segment of the log is there, or was kept as history.
fn has_whole_past(log: &Log) -> bool {
    let segments = log.segments();
    let newest = segments.last().map_or(0, |segment| segment.number);
    let mut numbers: Vec<u32> = segments.iter().map(|segment| segment.number).collect();
    numbers.extend(log.history().files().iter().map(|file| file.segment));
    numbers.sort_unstable();
    numbers.dedup();
    numbers.len() == newest as usize && log.has_times()
}
