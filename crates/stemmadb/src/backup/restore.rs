//! Restoring a database from its backups.
//!
//! A backup has the log up to its end. To restore a sequence between two backups, the segments of both are put together
//! and cut at a frame: the older backup has the segments that compaction removed before the newer one was made.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::cut::{CopiedSegment, CutAt, cut};
use super::destination::{Destination, create_directories, flush_directories, open_copy, with_keys};
use super::manifest::{self, ContentEntry, FileEntry, HistoryEntry, KeysEntry, Manifest, SegmentEntry, TreeEntry};
use super::target::Target;
use super::transfer::write_all;
use super::verify::{no_backups, read_verified, tree_list, verified_bytes, verify_frames};
use crate::cipher::{EncryptionKey, Keyring};
use crate::engine::directory::TREE;
use crate::engine::{CheckReport, key_file};
use crate::history::At as PastAt;
use crate::log::{Digest, history_name, segment_file_name};
use crate::options::{Options, Progress};
use crate::revision::Sequence;
use crate::vfs::{DatabaseLock, DiskVfs, Vfs, remove_recursively};
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
    /// That at a time: after all transactions committed until then.
    Time(SystemTime),
}

impl From<PastAt> for At {
    fn from(at: PastAt) -> Self {
        match at {
            PastAt::Sequence(sequence) => At::Sequence(sequence),
            PastAt::Time(time) => At::Time(time),
            PastAt::Ago(ago) => At::Time(SystemTime::now().checked_sub(ago).unwrap_or(UNIX_EPOCH)),
        }
    }
}

/// Options of a restore.
#[derive(Debug, Clone)]
pub struct RestoreOptions {
    at: At,
    force: bool,
    checks: bool,
    encryption: Option<EncryptionKey>,
}

impl Default for RestoreOptions {
    fn default() -> Self {
        RestoreOptions { at: At::Latest, force: false, checks: true, encryption: Options::new().encryption }
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
    /// true by default. Without the check, hashes and checksums are verified; and the tree is computed when the
    /// database is opened, unless it is part of the backup.
    #[must_use]
    pub fn check(mut self, checks: bool) -> Self {
        self.checks = checks;
        self
    }

    /// Sets the key of the database when the backup was made, if it was encrypted. The restored database has it, too.
    #[must_use]
    pub fn encryption(mut self, key: EncryptionKey) -> Self {
        self.encryption = Some(key);
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
/// its own: replications with it start again, and find what is missing. Costs copying, computing the tree from
/// the log, and a check; the tree of the backup is copied instead, if it has one and ends with the state to restore, or
/// before it.
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
    let keyring = source.keyring(target, options.encryption.as_ref())?;
    destination.fill(options.force, |vfs| {
        let keyed = keyring.as_ref().map(|keyring| with_keys(vfs, keyring)).transpose()?;
        let vfs = keyed.as_ref().unwrap_or(vfs);
        source.copy_to(target, vfs, progress)?;
        let (mut sequence, mut check) = (source.sequence, None);
        let mut is_cut = false;
        if let Some(at) = source.cut_at {
            let copied = |segment: &SegmentEntry| CopiedSegment {
                number: segment.number,
                first: segment.first_sequence.zip(segment.first_time_us),
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
    history: Vec<HistoryEntry>,
    contents: Vec<ContentEntry>,
    keys: Option<KeysEntry>,
    /// The files of a tree which the log completes; none if it is computed.
    tree: Vec<TreeEntry>,
    /// The newest sequence, unless the log is cut.
    sequence: Sequence,
    cut_at: Option<CutAt>,
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
            At::Sequence(sequence) => Source::cut_at(target, &numbers, CutAt::Sequence(sequence)),
            At::Time(time) => Source::cut_at(target, &numbers, CutAt::of_time(time)),
        }
    }

    fn of(manifest: Manifest) -> Self {
        Source {
            backup: manifest.backup,
            sequence: manifest.sequence(),
            segments: manifest.segments,
            history: manifest.history,
            contents: manifest.contents,
            keys: manifest.keys,
            tree: manifest.tree,
            cut_at: None,
            older: None,
        }
    }

    /// The files for a state between backups: those of the backup that ends with it, or those of the next backup
    /// together with those of the one before.
    fn cut_at(target: &dyn Target, numbers: &[u64], at: CutAt) -> Result<Self> {
        let mut newer: Option<Manifest> = None;
        for &number in numbers.iter().rev() {
            let manifest = match Manifest::read(target, number) {
                Err(error) if error.kind() == ErrorKind::Corrupt => continue,
                read => read?,
            };
            let order = at.compare(&manifest);
            match &newer {
                // Its log went another way.
                Some(newer) if newer.chain != manifest.chain || newer.identity != manifest.identity => break,
                None if order.is_gt() => match at {
                    CutAt::Time(_) => return Ok(Source::of(manifest)),
                    CutAt::Sequence(_) => {
                        let message =
                            format!("{at} is after the newest backup, which ends at {}", manifest.last_sequence);
                        return Err(Error::not_found(message).with_hint("restore the latest state instead"));
                    }
                },
                _ => {}
            }
            if order.is_eq() {
                return Ok(Source::of(manifest));
            }
            match newer.take() {
                Some(newer) if order.is_gt() => return Ok(Source::of(newer).joined_with(manifest, at)),
                _ => newer = Some(manifest),
            }
        }
        let Some(newer) = newer else { return Err(Error::corrupt("every manifest is damaged")) };
        let mut source = Source { cut_at: Some(at), tree: Vec::new(), ..Source::of(newer) };
        source.drop_later_history(at);
        Ok(source)
    }

    /// Adds what an older backup has and this one does not: what was removed between the two.
    fn joined_with(mut self, older: Manifest, at: CutAt) -> Self {
        self.cut_at = Some(at);
        self.older = Some((older.backup, older.sequence()));
        self.tree = older.tree;
        self.segments = joined(older.segments, self.segments, |segment| segment.number);
        self.history = joined(older.history, self.history, |history| history.segment);
        self.contents = joined(older.contents, self.contents, |content| content.digest.clone());
        self.drop_later_history(at);
        self
    }

    /// Leaves out the history of segments that the cut log has itself.
    fn drop_later_history(&mut self, at: CutAt) {
        self.history.retain(|history| !at.is_before(history.until, history.until_time_us));
    }

    /// The error for a state of which compaction removed segments before they were backed up.
    fn not_kept(&self, at: CutAt, cause: &Error) -> Error {
        let before = self
            .older
            .map_or(String::new(), |(backup, sequence)| format!("backup {backup} at sequence {}, or ", sequence.get()));
        Error::not_found(format!("{at} can't be restored: {}", cause.message())).with_hint(format!(
            "compaction removed a part of the log before it was backed up: restore {before}backup {} at sequence {}",
            self.backup,
            self.sequence.get()
        ))
    }

    /// The keys of an encrypted database.
    ///
    /// # Errors
    /// `KeyRequired` without a key; `WrongKey` if it is another one; `Corrupt` if the key file is damaged.
    fn keyring(&self, target: &dyn Target, key: Option<&EncryptionKey>) -> Result<Option<Arc<Keyring>>> {
        let Some(keys) = &self.keys else { return Ok(None) };
        let bytes = verified_bytes(target, &keys.file).map_err(incomplete)?;
        key_file::open(&bytes, key).map(Some)
    }

    fn files(&self) -> impl Iterator<Item = &FileEntry> {
        let parts = self.segments.iter().flat_map(|segment| &segment.parts);
        let history = self.history.iter().map(|history| &history.file);
        let contents = self.contents.iter().map(|content| &content.file);
        parts.chain(history).chain(contents).chain(self.tree.iter().map(|entry| &entry.file))
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
        for entry in &self.history {
            files.push((history_name(entry.segment), std::slice::from_ref(&entry.file)));
        }
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
        flush_directories(&**vfs, &directories)?;
        match self.copy_tree(target, vfs, &mut show) {
            // The log has everything.
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {
                remove_recursively(&**vfs, TREE).map_err(|error| Error::io(format_args!("remove {TREE}"), error))
            }
            copied => copied,
        }
    }

    fn copy_tree(&self, target: &dyn Target, vfs: &Arc<dyn Vfs>, show: &mut dyn FnMut(u64)) -> Result<()> {
        let paths: Vec<String> = self.tree.iter().map(TreeEntry::path).collect();
        let directories = create_directories(&**vfs, paths.iter().map(String::as_str))?;
        for (path, entry) in paths.iter().zip(&self.tree) {
            copy_file(target, vfs, path, std::slice::from_ref(&entry.file), show)?;
        }
        // What was linked has no hash.
        if self.tree.iter().any(|entry| entry.file.hash.is_none()) {
            let listed = tree_list(target, &self.tree)?;
            for (path, _) in paths.iter().zip(&self.tree).filter(|(_, entry)| entry.file.hash.is_none()) {
                listed.verify(vfs.clone(), path)?;
            }
        }
        flush_directories(&**vfs, &directories)
    }
}

/// The entries of both lists by their keys, ascending; those of `newer` replace those of `older`.
fn joined<T, K: Ord>(older: Vec<T>, newer: Vec<T>, key: impl Fn(&T) -> K) -> Vec<T> {
    let entries: BTreeMap<K, T> = older.into_iter().chain(newer).map(|entry| (key(&entry), entry)).collect();
    entries.into_values().collect()
}

/// The error for a file of a backup that can't be read; one that is missing is damage.
fn incomplete(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => Error::corrupt(format!("a file of the backup is missing: {}", error.message())),
        _ => error,
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
        copied.map_err(incomplete)?;
    }
    file.sync_data().map_err(|error| Error::io(format_args!("flush {name}"), error))
}
