//! Restoring a database from its backups.
//!
//! A backup has the log up to its end. To restore a sequence between two backups, the segments of both are put together
//! and cut at a frame: the older backup has the segments that compaction removed before the newer one was made.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::cut::{CopiedSegment, cut};
use super::destination::{Destination, create_directories, flush_directories, open_copy};
use super::manifest::{self, ContentEntry, FileEntry, Manifest, SegmentEntry};
use super::target::Target;
use super::transfer::write_all;
use super::verify::{no_backups, read_verified, verify_frames};
use crate::engine::CheckReport;
use crate::log::{Digest, segment_file_name};
use crate::options::Progress;
use crate::revision::Sequence;
use crate::vfs::{DatabaseLock, DiskVfs, Vfs};
use crate::{Error, ErrorKind, Result};

/// The state of a database to restore or to branch from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum At {
    /// The newest one.
    #[default]
    Latest,
    /// That of a backup, by its number.
    Backup(u64),
    /// That after the transaction with this sequence.
    Sequence(Sequence),
}

/// Options of a restore.
#[derive(Debug, Clone)]
pub struct RestoreOptions {
    at: At,
    force: bool,
    checks: bool,
}

impl Default for RestoreOptions {
    fn default() -> Self {
        RestoreOptions { at: At::Latest, force: false, checks: true }
    }
}

impl RestoreOptions {
    /// The default options: the newest state, checked, into a directory that does not exist yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the state to restore; [`At::Latest`] by default.
    #[must_use]
    pub fn at(mut self, at: At) -> Self {
        self.at = at;
        self
    }

    /// Sets whether a database that exists in the directory is replaced, once the restored one is complete; false by
    /// default.
    #[must_use]
    pub fn force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }

    /// Sets whether the restored database is checked as by [`Maintenance::check`](crate::handles::Maintenance::check),
    /// true by default. Without the check, hashes and checksums are verified, and the tree is rebuilt when the database
    /// is opened.
    #[must_use]
    pub fn check(mut self, checks: bool) -> Self {
        self.checks = checks;
        self
    }
}

/// A database that was restored.
///
/// Returned by [`restore`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreReport {
    /// The backup that the newest files are from.
    pub backup: u64,
    /// The newest sequence of the database.
    pub sequence: Sequence,
    /// Bytes that were copied.
    pub byte_count: u64,
    /// The result of the check, unless it was disabled. It found no damage.
    pub check: Option<CheckReport>,
}

/// Restores a database from its backups in a target to `directory`.
///
/// The directory gets its name when the database in it is complete, flushed and checked: if the process is killed
/// before, there is no database, and the next restore removes the remains. The database is a copy with an identity of
/// its own: replications with it start anew, and find what is missing. Costs copying, rebuilding the tree, and a check.
///
/// # Errors
/// `NotFound` if there is no such backup, or the sequence can't be restored; `Invalid` if the directory exists, unless
/// `force` is set; `Locked` if the database to replace is open; `Corrupt`, naming the file, if a backup is damaged;
/// `Unavailable` if files can't be read or written.
pub fn restore(target: &dyn Target, directory: impl AsRef<Path>, options: RestoreOptions) -> Result<RestoreReport> {
    restore_with_progress(target, directory, options, |_| ())
}

/// Same as [`restore`]; calls `progress` during it: for the bytes that are copied, then for rebuilding, then for the
/// check.
///
/// # Errors
/// Those of [`restore`].
pub fn restore_with_progress(
    target: &dyn Target,
    directory: impl AsRef<Path>,
    options: RestoreOptions,
    mut progress: impl FnMut(Progress),
) -> Result<RestoreReport> {
    let directory = directory.as_ref();
    let destination = Destination::on_disk(directory)?;
    // A database that is replaced must not be open.
    let _lock = match options.force && directory.join("log").is_dir() {
        true => {
            let vfs = DiskVfs::new(directory);
            let vfs = vfs.map_err(|error| Error::io(format_args!("open {}", directory.display()), error))?;
            Some(DatabaseLock::acquire(&vfs)?)
        }
        false => None,
    };
    restore_to(target, &destination, &options, &mut progress)
}

pub(super) fn restore_to(
    target: &dyn Target,
    destination: &Destination,
    options: &RestoreOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<RestoreReport> {
    let source = Source::choose(target, options.at)?;
    destination.fill(options.force, |vfs| {
        source.copy_to(target, vfs, progress)?;
        let (mut sequence, mut check) = (source.sequence, None);
        let mut is_cut = false;
        if let Some(at) = source.cut_at {
            let copied = |segment: &SegmentEntry| CopiedSegment {
                number: segment.number,
                first_sequence: segment.first_sequence,
            };
            let segments: Vec<_> = source.segments.iter().map(copied).collect();
            is_cut = cut(vfs, &segments, at)?;
        }
        if is_cut || options.checks {
            // A log with a cut may lack segments, which opening it finds.
            let opened = open_copy(vfs, options.checks, progress);
            (sequence, check) = opened.map_err(|error| match source.cut_at {
                Some(at) if error.kind() == ErrorKind::Corrupt => source.not_kept(at, &error),
                _ => error,
            })?;
        }
        Ok(RestoreReport { backup: source.backup, sequence, byte_count: source.byte_count(), check })
    })
}

/// The files that a database is restored from.
struct Source {
    backup: u64,
    segments: Vec<SegmentEntry>,
    contents: Vec<ContentEntry>,
    /// The newest sequence, unless the log is cut.
    sequence: Sequence,
    cut_at: Option<Sequence>,
    /// The newest backup before the cut.
    older: Option<(u64, Sequence)>,
}

impl Source {
    fn choose(target: &dyn Target, at: At) -> Result<Self> {
        let numbers = manifest::numbers(target)?;
        let Some(&newest) = numbers.last() else { return Err(no_backups(target)) };
        match at {
            At::Latest => {
                Manifest::read(target, newest).map(Source::of).map_err(|error| match numbers.iter().nth_back(1) {
                    Some(older) if error.kind() == ErrorKind::Corrupt => {
                        error.with_hint(format!("restore backup {older} by its number"))
                    }
                    _ => error,
                })
            }
            At::Backup(number) if numbers.binary_search(&number).is_ok() => {
                Manifest::read(target, number).map(Source::of)
            }
            At::Backup(number) => Err(Error::not_found(format!("{} has no backup {number}", target.describe()))
                .with_hint(format!("its backups are {} to {newest}", numbers[0]))),
            At::Sequence(sequence) => Source::at_sequence(target, &numbers, sequence),
        }
    }

    fn of(manifest: Manifest) -> Self {
        Source {
            backup: manifest.backup,
            sequence: manifest.sequence(),
            segments: manifest.segments,
            contents: manifest.contents,
            cut_at: None,
            older: None,
        }
    }

    /// The files for a sequence: those of the backup that ends with it, or those of the next backup together with those
    /// of the one before.
    fn at_sequence(target: &dyn Target, numbers: &[u64], sequence: Sequence) -> Result<Self> {
        let mut newer: Option<Manifest> = None;
        for &number in numbers.iter().rev() {
            let manifest = match Manifest::read(target, number) {
                Err(error) if error.kind() == ErrorKind::Corrupt => continue,
                read => read?,
            };
            match &newer {
                // Its log went another way.
                Some(newer) if newer.chain != manifest.chain || newer.identity != manifest.identity => break,
                None if manifest.sequence() < sequence => {
                    let message = format!(
                        "sequence {} is after the newest backup, which ends at {}",
                        sequence.get(),
                        manifest.last_sequence
                    );
                    return Err(Error::not_found(message).with_hint("restore the latest state instead"));
                }
                _ => {}
            }
            if manifest.sequence() == sequence {
                return Ok(Source::of(manifest));
            }
            match newer.take() {
                Some(newer) if manifest.sequence() < sequence => {
                    return Ok(Source::of(newer).joined_with(manifest, sequence));
                }
                _ => newer = Some(manifest),
            }
        }
        let Some(newer) = newer else { return Err(Error::corrupt("every manifest is damaged")) };
        Ok(Source { cut_at: Some(sequence), ..Source::of(newer) })
    }

    /// Adds what an older backup has and this one does not: what was removed between the two.
    fn joined_with(mut self, older: Manifest, sequence: Sequence) -> Self {
        self.cut_at = Some(sequence);
        self.older = Some((older.backup, older.sequence()));
        let mut segments: BTreeMap<u32, SegmentEntry> =
            older.segments.into_iter().map(|segment| (segment.number, segment)).collect();
        segments.extend(self.segments.into_iter().map(|segment| (segment.number, segment)));
        self.segments = segments.into_values().collect();
        let mut contents: BTreeMap<String, ContentEntry> =
            older.contents.into_iter().map(|content| (content.digest.clone(), content)).collect();
        contents.extend(self.contents.into_iter().map(|content| (content.digest.clone(), content)));
        self.contents = contents.into_values().collect();
        self
    }

    /// The error for a sequence of which compaction removed segments before they were backed up.
    fn not_kept(&self, sequence: Sequence, cause: &Error) -> Error {
        let before = self
            .older
            .map_or(String::new(), |(backup, sequence)| format!("backup {backup} at sequence {}, or ", sequence.get()));
        let message = format!("sequence {} can't be restored: {}", sequence.get(), cause.message());
        Error::not_found(message).with_hint(format!(
            "compaction removed a part of the log before it was backed up: restore {before}backup {} at sequence {}",
            self.backup,
            self.sequence.get()
        ))
    }

    fn files(&self) -> impl Iterator<Item = &FileEntry> {
        let parts = self.segments.iter().flat_map(|segment| &segment.parts);
        parts.chain(self.contents.iter().map(|content| &content.file))
    }

    fn byte_count(&self) -> u64 {
        self.files().map(|file| file.length).sum()
    }

    fn copy_to(&self, target: &dyn Target, vfs: &Arc<dyn Vfs>, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let mut done = Progress { done: 0, total: self.byte_count() };
        let mut show = |byte_count: u64| {
            done.done += byte_count;
            progress(done);
        };
        let segments = self.segments.iter().map(|segment| (segment_file_name(segment.number), &segment.parts[..]));
        let content =
            |content: &'_ ContentEntry| -> Result<String> { Ok(content.digest.parse::<Digest>()?.file_name()) };
        let mut files: Vec<(String, &[FileEntry])> = segments.collect();
        for entry in &self.contents {
            files.push((content(entry)?, std::slice::from_ref(&entry.file)));
        }
        let directories = create_directories(&**vfs, files.iter().map(|(name, _)| &**name))?;
        for (name, parts) in &files {
            copy_file(target, vfs, name, parts, &mut show)?;
        }
        for segment in &self.segments {
            // What was linked has no hash.
            if segment.parts.iter().any(|part| part.hash.is_none()) {
                verify_frames(vfs, segment)?;
            }
        }
        flush_directories(&**vfs, &directories)
    }
}

/// Writes a file from its parts and flushes it.
fn copy_file(
    target: &dyn Target,
    vfs: &Arc<dyn Vfs>,
    name: &str,
    parts: &[FileEntry],
    show: &mut dyn FnMut(u64),
) -> Result<()> {
    let file = vfs.create(name).map_err(|error| Error::io(format_args!("create {name}"), error))?;
    let mut offset = 0;
    for part in parts {
        let copied = read_verified(target, part, &mut |content| {
            offset = write_all(&file, name, offset, content, show)?;
            Ok(())
        });
        copied.map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::corrupt(format!("a file of the backup is missing: {}", error.message())),
            _ => error,
        })?;
    }
    file.sync_data().map_err(|error| Error::io(format_args!("flush {name}"), error))
}
