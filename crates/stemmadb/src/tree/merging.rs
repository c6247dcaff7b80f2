//! Merges of runs in the background (compaction): fewer runs for reads, and no rows that newer ones hide.
//!
//! A merge begins when commits have left [`FRESH_RUNS_MAX`] runs. It takes these and each next older run that is not
//! larger than all it has taken so far: the sizes of runs then at least double from each to the next older one, and a
//! row is rewritten a number of times that grows with the logarithm of the size of the tree.
//!
//! A merge runs in steps. Each step replaces the next part of the runs by one file, in one change of the list, so that
//! a merge needs little space and can end at any step: what was merged so far is one run, and what is left of the
//! others begins behind it. A file without a counterpart in the other runs is taken over as it is.

use std::sync::Arc;

use smallvec::smallvec;

use super::batch::{is_tombstone, without_ranges};
use super::block::Kind;
use super::merge::MergeCursor;
use super::run::{Bounds, FileSlice, Run};
use super::run_file::{RunWriter, not_ascending};
use super::version::Version;
use super::{Direction, Tree};
use crate::Result;
use crate::compression::Compression;

/// A merge begins when this many runs were committed since the last one.
const FRESH_RUNS_MAX: usize = 8;

/// A file ends with its table if it has at least this part of the size of a file, so that tables to which rows are
/// appended need not be rewritten.
const TABLE_FILE_PART: u64 = 32;

/// Files of less than this part of their usual size are rewritten even if they could be taken over, so that there are
/// few files.
const TAKEN_OVER_PART: u64 = 32;

/// At rest, the runs besides the oldest may have this share of its size, in percent, and tombstones this share of all
/// entries.
const REST_PERCENT_MAX: u64 = 20;

/// The merge that is going on.
#[derive(Default)]
pub(super) struct MergeState {
    merge: Option<Merge>,
}

struct Merge {
    /// The runs that are merged.
    inputs: Vec<u64>,
    /// The run that it makes.
    output: u64,
    /// Everything below is merged.
    position: Vec<u8>,
    /// Whether files with another compression than new ones are rewritten.
    unifies_compression: bool,
}

/// Which merges are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MergeGoal {
    /// Those that keep the number of runs low while rows are written.
    Pace,
    /// Also those that free space and make reads cheap once nothing is written.
    Rest,
    /// One run without tombstones, compressed as new files are.
    All,
}

/// One step's result.
struct Step {
    /// The next part of the output; none if nothing of it is left.
    slice: Option<FileSlice>,
    /// Everything below is merged; none at the end.
    position: Option<Vec<u8>>,
}

impl Tree {
    /// Does one step of a merge, if one is due for `goal`; returns whether it did. A step writes one file.
    ///
    /// # Errors
    /// `Io`: the tree is as before. `Corrupt` if a file is damaged.
    pub(crate) fn merge_step(&self, goal: MergeGoal) -> Result<bool> {
        if self.is_read_only {
            return Ok(false);
        }
        let mut merging = self.merging.lock();
        let version = self.current.read().clone();
        let merge = match merging.merge.take().filter(|merge| is_possible(merge, &version)) {
            Some(merge) => merge,
            None => {
                let Some(inputs) = due(&version.runs, goal, self.compression()) else { return Ok(false) };
                let mut installer = self.installer.lock();
                installer.next_run += 1;
                let unifies_compression = goal == MergeGoal::All;
                Merge { inputs, output: installer.next_run - 1, position: Vec::new(), unifies_compression }
            }
        };
        drop(version);
        merging.merge = self.step(merge)?;
        Ok(true)
    }

    /// Merges everything that is committed now into one run without tombstones: completes the merge that is going on,
    /// and then does at most one of all runs. Commits that follow don't prolong it.
    ///
    /// # Errors
    /// Those of [`Tree::merge_step`].
    pub(crate) fn merge_all(&self) -> Result<()> {
        for _ in 0..2 {
            while self.merge_step(MergeGoal::All)? && self.merging.lock().merge.is_some() {}
        }
        Ok(())
    }

    /// Does one step of a merge; returns what is left of it.
    fn step(&self, merge: Merge) -> Result<Option<Merge>> {
        #[cfg(test)]
        let _mark = super::trace::mark(super::trace::TreeChange::MergeStep);
        // Whatever is removed from here on must be removed from the result of the step.
        let version = {
            let mut installer = self.installer.lock();
            installer.removed_ranges = Some(Vec::new());
            self.current.read().clone()
        };
        let inputs: Vec<&Arc<Run>> = version.runs.iter().filter(|run| merge.inputs.contains(&run.id)).collect();
        let oldest_kept = version.runs.iter().rev().find(|run| run.id != merge.output).map(|run| run.id);
        let is_bottom = inputs.last().map(|run| run.id) == oldest_kept;
        let merged = match self.take_over(&inputs, &merge, is_bottom) {
            Some(step) => Ok(step),
            None => self.merge_part(&inputs, &merge.position, is_bottom),
        };
        let installed = merged.and_then(|Step { slice, position }| {
            if position.as_ref().is_some_and(|position| *position <= merge.position) {
                return Err(not_ascending());
            }
            self.install_step(&merge, slice, position.as_deref())?;
            Ok(position.map(|position| Merge { position, ..merge }))
        });
        self.installer.lock().removed_ranges = None;
        installed
    }

    /// The file with the lowest keys, if no other run has keys among them.
    fn take_over(&self, inputs: &[&Arc<Run>], merge: &Merge, is_bottom: bool) -> Option<Step> {
        let mut firsts: Vec<FileSlice> = Vec::new();
        for run in inputs {
            firsts.extend(run.slices.iter().find_map(|slice| slice.from(&merge.position)));
        }
        firsts.sort_by(|left, right| left.start().cmp(right.start()));
        let first = firsts.first()?.clone();
        let record = first.file.record();
        let needs_rewrite = is_bottom && record.tombstone_count > 0
            || first.lower.is_some()
            || first.upper.is_some()
            || record.byte_count < self.file_bytes / TAKEN_OVER_PART
            || merge.unifies_compression && first.file.is_stored_otherwise(self.compression());
        if needs_rewrite || firsts.get(1).is_some_and(|second| second.start() <= record.last_key.as_slice()) {
            return None;
        }
        let mut position = record.last_key.clone();
        position.push(0);
        let is_end = inputs.iter().all(|run| run.slices.iter().all(|slice| slice.from(&position).is_none()));
        Some(Step { slice: Some(first), position: (!is_end).then_some(position) })
    }

    /// Merges the entries from `position` on into one file.
    fn merge_part(&self, inputs: &[&Arc<Run>], position: &[u8], is_bottom: bool) -> Result<Step> {
        let bounds =
            Bounds { lower: position.into(), is_after: false, upper: smallvec![u8::MAX], includes_upper: false };
        let runs = inputs.iter().copied();
        let mut entries = MergeCursor::new(runs, bounds, Direction::Ascending, self.operator.clone(), false)?;
        let mut writer: Option<RunWriter> = None;
        let mut last_table = None;
        let mut end = None;
        while let Some(entry) = entries.next_entry()? {
            let table = entry.key.first().copied();
            let is_new_table = last_table.replace(table) != Some(table);
            let written = writer.as_ref().map_or(0, RunWriter::byte_count);
            if written >= self.file_bytes || (is_new_table && written > self.file_bytes / TABLE_FILE_PART) {
                end = Some(entry.key.to_vec());
                break;
            }
            let (kind, value) = match entry.kind {
                Kind::Delete if is_bottom => continue,
                Kind::Merge if is_bottom => match self.operator.finish(entry.value)? {
                    Some(value) => (Kind::Put, value),
                    None => continue,
                },
                kind => (kind, entry.value),
            };
            let writer = match &mut writer {
                Some(writer) => writer,
                none => none.insert(self.create_file()?),
            };
            writer.add(entry.key, kind, value, is_tombstone(self, kind, value))?;
        }
        let file = writer.map(RunWriter::finish).transpose()?;
        if let Some(file) = &file {
            self.sync_directory().inspect_err(|_| self.directory.delete(file.number))?;
        }
        Ok(Step { slice: file.map(|file| FileSlice::whole(self.open_file(file))), position: end })
    }

    /// Replaces the part of the inputs below `position` by the slice.
    fn install_step(&self, merge: &Merge, slice: Option<FileSlice>, position: Option<&[u8]>) -> Result<()> {
        self.install(|installer, before| {
            let removed_ranges = installer.removed_ranges.take().unwrap_or_default();
            let mut runs = Vec::with_capacity(before.runs.len() + 1);
            let mut output: Vec<FileSlice> = Vec::new();
            let mut output_at = 0;
            for run in &before.runs {
                if run.id == merge.output {
                    output.extend_from_slice(&run.slices);
                    output_at = runs.len();
                } else if merge.inputs.contains(&run.id) {
                    let rest = |position: &[u8]| run.slices.iter().filter_map(|slice| slice.from(position)).collect();
                    let slices: Vec<FileSlice> = position.map(rest).unwrap_or_default();
                    if !slices.is_empty() {
                        runs.push(Arc::new(Run { id: run.id, is_merged: run.is_merged, slices }));
                    }
                    output_at = runs.len();
                } else {
                    runs.push(run.clone());
                }
            }
            output.extend(slice);
            if !output.is_empty() {
                let output = Arc::new(Run { id: merge.output, is_merged: true, slices: output });
                let output = without_ranges(&[output], &removed_ranges);
                runs.splice(output_at..output_at, output);
            }
            Version { runs, state: before.state }
        })
    }
}

/// Whether the inputs are still there, next to each other but for the output.
fn is_possible(merge: &Merge, version: &Version) -> bool {
    let mut runs = version.runs.iter().filter(|run| run.id != merge.output);
    let is_input = |run: &&Arc<Run>| merge.inputs.contains(&run.id);
    let first = runs.by_ref().find(is_input);
    first.is_some() && runs.skip_while(is_input).all(|run| !is_input(&run))
}

/// The runs to merge next, if a merge is due.
fn due(runs: &[Arc<Run>], goal: MergeGoal, compression: Compression) -> Option<Vec<u64>> {
    let ids = |runs: &[Arc<Run>]| Some(runs.iter().map(|run| run.id).collect());
    let fresh_count = runs.iter().take_while(|run| !run.is_merged).count();
    if fresh_count >= FRESH_RUNS_MAX {
        let mut count = fresh_count;
        let mut taken_bytes: u64 = runs[..count].iter().map(|run| run.byte_count()).sum();
        while let Some(next) = runs.get(count).filter(|next| next.byte_count() <= taken_bytes) {
            taken_bytes += next.byte_count();
            count += 1;
        }
        return ids(&runs[..count]);
    }
    let oldest = runs.last()?;
    let sum = |runs: &[Arc<Run>], count: fn(&Run) -> u64| runs.iter().map(|run| count(run)).sum::<u64>();
    let is_due = match goal {
        MergeGoal::Pace => false,
        MergeGoal::Rest => {
            let newer_bytes = sum(&runs[..runs.len() - 1], Run::byte_count);
            let (tombstones, entries) = (sum(runs, Run::tombstone_count), sum(runs, Run::entry_count));
            newer_bytes * 100 > oldest.byte_count() * REST_PERCENT_MAX
                || tombstones * 100 > entries * REST_PERCENT_MAX
                || runs.iter().any(|run| run.is_cut())
        }
        MergeGoal::All => {
            runs.len() > 1
                || oldest.tombstone_count() > 0
                || oldest.is_cut()
                || oldest.files().any(|file| file.is_stored_otherwise(compression))
        }
    };
    if is_due { ids(runs) } else { None }
}
