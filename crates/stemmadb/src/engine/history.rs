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
//!
//! Documents whose ids have a prefix with a retention of its own have no part in the floor: what their retention
//! removes is missing from the states of before.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::engine::Store;
use crate::layout::meta;
use crate::layout::record::{Record, RevisionRecord};
use crate::log::{HistoryInfo, HistoryWriter, Level, Log, LogPosition, Moment};
use crate::retention::{HistoryRules, Retention};
use crate::revision::Sequence;
use crate::sync::Mutex;
use crate::{Error, Result};

/// Times may be a fraction of a second older than they say.
const TIME_PRECISION: Duration = Duration::from_secs(1);

/// The length of a prefix with its own retention, and the number of prefixes.
const PREFIX_BYTES_MAX: usize = 200;
const PREFIXES_MAX: usize = 1000;

/// How many history files are examined after the compaction of a segment in the background.
pub(super) const TRIMMED_FILES: usize = 2;

/// A history file is rewritten if at least this part of it, one in so many bytes, is not kept any more.
const TRIMMED_PART_MIN: usize = 4;

/// Past snapshots in use: the sequence of each.
#[derive(Default)]
pub(super) struct PastReaders {
    sequences: Mutex<Vec<Weak<Sequence>>>,
    /// The segment whose history file was examined last.
    last_trimmed: Mutex<u32>,
}

impl PastReaders {
    /// Keeps what is readable as of `at` until the returned value is dropped.
    pub(super) fn hold(&self, at: Sequence) -> Arc<Sequence> {
        let held = Arc::new(at);
        let mut readers = self.sequences.lock();
        readers.retain(|reader| reader.strong_count() > 0);
        readers.push(Arc::downgrade(&held));
        held
    }

    fn lowest(&self) -> Option<Sequence> {
        self.sequences.lock().iter().filter_map(|reader| reader.upgrade().map(|at| *at)).min()
    }
}

/// What becomes of the replaced revisions of one segment that is being compacted.
pub(super) struct PastKeeper<'s> {
    store: &'s Store,
    rules: HistoryRules,
    /// `None` if none of them is kept.
    writer: Option<HistoryWriter<'s>>,
    has_lowered_reach: bool,
}

impl<'s> PastKeeper<'s> {
    pub(super) fn begin(store: &'s Store, segment: u32) -> Result<Self> {
        let rules = store.history_rules();
        let writer = rules.keeps_past().then(|| store.parts.log.history().writer(segment)).transpose()?;
        Ok(PastKeeper { store, rules, writer, has_lowered_reach: false })
    }

    /// Takes note of a transaction of the segment.
    pub(super) fn transaction(&mut self, first_sequence: Sequence, time_us: u64) {
        if let Some(writer) = &mut self.writer {
            writer.add_time(first_sequence, time_us);
        }
    }

    /// Keeps a record of the segment that no leaf needs, or takes note that it is removed. `newest_generation` is that
    /// of its document.
    pub(super) fn replaced(
        &mut self,
        position: LogPosition,
        time_us: u64,
        record: &[u8],
        newest_generation: u32,
    ) -> Result<()> {
        let Some(writer) = &mut self.writer else {
            self.has_lowered_reach = true;
            return Ok(());
        };
        let fate = match self.store.parts.record(record, position)?.0 {
            // A pin may need it.
            Record::Revision(record) if self.rules.pins.is_empty() => self.rules.fate(&record, newest_generation, None),
            _ => Fate::Kept,
        };
        match fate {
            Fate::Kept => writer.add(position, time_us, record),
            Fate::Removed { lowers_reach } => {
                self.has_lowered_reach |= lowers_reach;
                Ok(())
            }
        }
    }

    /// Raises the floor if something was removed, and completes the history file. Only then may the segment be retired.
    pub(super) fn finish(self) -> Result<()> {
        let PastKeeper { store, writer, has_lowered_reach, .. } = self;
        let until = store.newest_moment();
        if has_lowered_reach {
            store.raise_floor(until.sequence)?;
        }
        let Some(writer) = writer else { return Ok(()) };
        let segment = writer.segment();
        writer.finish(until, store.parts.history_floor())?;
        let mut tree = store.parts.tree.write()?;
        meta::put_history_file(&mut tree, segment)?;
        tree.commit()
    }
}

/// What the rules say of a replaced revision.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Kept,
    Removed {
        /// Whether the database as a whole can't be read any more as of when the revision was current.
        lowers_reach: bool,
    },
}

impl HistoryRules {
    /// Whether the record of a replaced revision is kept. `age` is how long ago at least it was replaced, if that is
    /// known.
    fn fate(&self, record: &RevisionRecord<'_>, newest_generation: u32, age: Option<Duration>) -> Fate {
        let of_prefix = self.of_prefix(record.id);
        let is_kept = match of_prefix.unwrap_or(self.retention) {
            Retention::Nothing => false,
            Retention::For(time) => age.is_none_or(|age| age <= time.saturating_add(TIME_PRECISION)),
            Retention::Revisions(count) => newest_generation.saturating_sub(record.path[0].generation()) <= count,
            Retention::Bytes(_) | Retention::Everything => true,
        };
        if is_kept { Fate::Kept } else { Fate::Removed { lowers_reach: of_prefix.is_none() } }
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
        })
    }

    /// Sets how much of the past is kept of documents whose ids begin with `prefix`: `None` for as much as of others.
    pub(crate) fn set_prefix_retention(&self, prefix: &str, retention: Option<Retention>) -> Result<()> {
        if prefix.is_empty() || prefix.len() > PREFIX_BYTES_MAX {
            return Err(Error::invalid(format!("a prefix with its own retention has 1 to {PREFIX_BYTES_MAX} bytes"))
                .with_hint("the retention of all documents is set without a prefix"));
        }
        if let Some(Retention::Bytes(_)) = retention {
            return Err(Error::invalid("a number of bytes is a retention of the whole database")
                .with_hint("a prefix can have a time, a number of revisions, everything or nothing"));
        }
        self.change_history_rules(|rules| {
            match retention {
                Some(retention) => _ = rules.prefixes.insert(prefix.to_owned(), retention),
                None => _ = rules.prefixes.remove(prefix),
            }
            if rules.prefixes.len() <= PREFIXES_MAX {
                return Ok(());
            }
            Err(Error::invalid(format!("at most {PREFIXES_MAX} prefixes can have retentions of their own")))
        })
    }

    /// Keeps the database readable as of a sequence until the pin is removed.
    pub(crate) fn pin_history(&self, name: &str, at: Sequence) -> Result<()> {
        if name.is_empty() || name.len() > 200 {
            return Err(Error::invalid("the name of a pin has 1 to 200 bytes"));
        }
        self.change_history_rules(|rules| {
            // Only now: the compaction that was waited for may have raised the floor.
            self.refuse_beyond_history(at, self.parts.publisher.published())?;
            if rules.pins.contains_key(name) {
                return Err(Error::conflict(format!("there is a pin `{name}` already")).with_hint("release it first"));
            }
            rules.pins.insert(name.to_owned(), at.get());
            Ok(())
        })
    }

    /// Removes a pin.
    pub(crate) fn release_pin(&self, name: &str) -> Result<()> {
        self.change_history_rules(|rules| match rules.pins.remove(name) {
            Some(_) => Ok(()),
            None => Err(Error::not_found(format!("there is no pin `{name}`"))),
        })
    }

    /// Changes the rules, and reclaims what they do not cover any more.
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
        self.parts.log.commit(self.parts.log.end(), Level::Flushed)?;
        self.reclaim_history(usize::MAX)
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

    /// Reclaims history that the retention does not cover any more. Of the files that may have some of it beside what
    /// is kept, at most `file_count` are examined: they take turns. Call with `compaction` locked.
    pub(super) fn reclaim_history(&self, file_count: usize) -> Result<()> {
        self.remove_old_history()?;
        if !self.history_rules().is_mixed() {
            return Ok(());
        }
        let mut files = self.parts.log.history().files();
        let mut last = self.past_readers.last_trimmed.lock();
        let next = files.partition_point(|file| file.segment <= *last) % files.len().max(1);
        files.rotate_left(next);
        files.iter().take(file_count).try_for_each(|file| {
            *last = file.segment;
            self.trim_history_file(file)
        })
    }

    /// Rewrites a history file without what the retention does not cover any more, if that is a good part of it.
    fn trim_history_file(&self, file: &HistoryInfo) -> Result<()> {
        let rules = self.history_rules();
        let is_needed = self.lowest_needed(&rules).is_some_and(|at| at < file.until.sequence);
        if !rules.is_mixed() || is_needed {
            return Ok(());
        }
        let age = self.age_of(file);
        let snapshot = self.snapshot()?;
        let (mut removed, mut removed_bytes, mut bytes, mut lowers_reach) = (HashSet::new(), 0, 0, false);
        let history = self.parts.log.history();
        history.records(file.segment, &mut |position, record_bytes| {
            bytes += record_bytes.len();
            let Record::Revision(record) = self.parts.record(record_bytes, position)?.0 else { return Ok(()) };
            let Some(state) = snapshot.state(record.number)? else { return Ok(()) };
            if let Fate::Removed { lowers_reach: lowers } = rules.fate(&record, state.newest_generation(), Some(age)) {
                lowers_reach |= lowers;
                removed_bytes += record_bytes.len();
                removed.insert(position);
            }
            Ok(())
        })?;
        if removed_bytes * TRIMMED_PART_MIN < bytes {
            return Ok(());
        }
        if lowers_reach && !self.ends_past(&rules, file.until.sequence)? {
            return Ok(());
        }
        let floor = self.parts.history_floor();
        if removed_bytes == bytes && floor >= file.until.sequence {
            self.raise_floor_above(floor, &[file.segment])?;
            return history.remove(file.segment);
        }
        if removed.is_empty() {
            return Ok(());
        }
        history.rewrite(file.segment, floor, &|position| !removed.contains(&position))?;
        self.parts.blobs.mark_unreferenced();
        Ok(())
    }

    /// Raises the floor, and returns whether nothing before it is in use. A past snapshot holds its sequence before it
    /// looks at the floor: if it was begun before the floor rose, it is seen here.
    fn ends_past(&self, rules: &HistoryRules, floor: Sequence) -> Result<bool> {
        self.raise_floor(floor)?;
        Ok(self.lowest_needed(rules).is_none_or(|at| at >= floor))
    }

    /// The lowest sequence that a pin or a past snapshot in use needs.
    fn lowest_needed(&self, rules: &HistoryRules) -> Option<Sequence> {
        rules.pins.values().map(|at| Sequence(*at)).chain(self.past_readers.lowest()).min()
    }

    /// How long ago at least everything in a history file was replaced.
    fn age_of(&self, file: &HistoryInfo) -> Duration {
        Duration::from_micros(self.parts.options.clock.now_us().saturating_sub(file.until.time_us))
    }

    /// Removes the history files that the retention does not cover any more.
    fn remove_old_history(&self) -> Result<()> {
        let history = self.parts.log.history();
        let mut files = history.files();
        if files.is_empty() {
            return Ok(());
        }
        files.sort_unstable_by_key(|file| file.until.sequence);
        let rules = self.history_rules();
        let needed = self.lowest_needed(&rules);
        let mut bytes: u64 = files.iter().map(|file| file.bytes).sum();
        let is_removed = |file: &&HistoryInfo| {
            let is_needed = needed.is_some_and(|at| at < file.until.sequence);
            let is_removed = self.is_out_of_retention(&rules, file, bytes) && !is_needed;
            bytes -= file.bytes;
            is_removed
        };
        let count = files.iter().take_while(is_removed).count();
        let Some(newest) = files[..count].last() else { return Ok(()) };
        if !self.ends_past(&rules, newest.until.sequence)? {
            return Ok(());
        }
        let removed: Vec<u32> = files[..count].iter().map(|file| file.segment).collect();
        self.raise_floor_above(newest.until.sequence, &removed)?;
        removed.into_iter().try_for_each(|segment| history.remove(segment))
    }

    /// Whether no rule keeps anything of a file; `bytes` are those of it and all newer ones.
    fn is_out_of_retention(&self, rules: &HistoryRules, file: &HistoryInfo, bytes: u64) -> bool {
        rules.retentions().all(|retention| match retention {
            Retention::Nothing => true,
            Retention::Revisions(_) | Retention::Everything => false,
            Retention::Bytes(bytes_max) => bytes > bytes_max,
            Retention::For(time) => self.age_of(file) > time.saturating_add(TIME_PRECISION),
        })
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
