//! Making a backup.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use uuid::Uuid;

use super::clean::{Keep, clean};
use super::directory_target::FileReader;
use super::manifest::{
    self, ContentEntry, FILES, FileEntry, HistoryEntry, KeysEntry, Manifest, SegmentEntry, TreeEntry, name_of,
};
use super::target::{LocalFile, Target};
use super::transfer::{Hashing, SegmentReader, file_fingerprint, file_hash, fingerprint, open_file, range_hash};
use crate::engine::{ActiveTaskKind, Store, StoreExport, key_file};
use crate::log::{Blob, DatabaseId, ExportedHistory, ExportedSegment};
use crate::options::Progress;
use crate::revision::Sequence;
use crate::vfs::Vfs;
use crate::{Error, ErrorKind, Result};

/// Options of a backup.
#[derive(Debug, Clone)]
pub struct BackupOptions {
    keep: Keep,
    supersedes: bool,
    has_tree: bool,
}

impl Default for BackupOptions {
    fn default() -> Self {
        BackupOptions { keep: Keep::All, supersedes: false, has_tree: true }
    }
}

impl BackupOptions {
    /// The default options: all backups are kept.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps the newest `count` backups, at least one, and deletes older ones after the new one is complete.
    #[must_use]
    pub fn keep(mut self, count: usize) -> Self {
        self.keep = Keep::Newest(count);
        self
    }

    /// Keeps the backups with these numbers, and deletes all other ones after the new one is complete: for backups that
    /// belong to those of other databases.
    #[must_use]
    pub fn keep_only(mut self, numbers: impl IntoIterator<Item = u64>) -> Self {
        self.keep = Keep::These(numbers.into_iter().collect());
        self
    }

    /// Sets whether earlier backups are deleted that the new one makes superfluous, because every sequence that they
    /// have can be restored from it; false by default.
    #[must_use]
    pub fn supersede(mut self, supersedes: bool) -> Self {
        self.supersedes = supersedes;
        self
    }

    /// Sets whether the files of the tree are part of the backup where they can be linked; true by default. Then a
    /// restore to the end of the backup copies the tree instead of computing it again. The links take no space at
    /// first, and later that of files that the database has replaced since.
    #[must_use]
    pub fn tree(mut self, has_tree: bool) -> Self {
        self.has_tree = has_tree;
        self
    }
}

/// A backup that was made.
///
/// Returned by [`Maintenance::backup`](crate::handles::Maintenance::backup).
#[derive(Debug)]
#[non_exhaustive]
pub struct BackupReport {
    /// The number of the backup in its target.
    pub number: u64,
    /// The newest sequence that it contains.
    pub sequence: Sequence,
    /// Bytes that were written to the target.
    pub copied_bytes: u64,
    /// Bytes of files that were linked instead.
    pub linked_bytes: u64,
    /// Bytes of all files of the backup, including those that earlier backups had.
    pub byte_count: u64,
    /// Older backups that were deleted.
    pub deleted_count: u64,
    /// Files of the backup before that the target has lost. They were put again, but the target can't be relied upon.
    pub lost_count: u64,
    /// Why files or backups that are not needed any more could not be deleted. The backup itself is complete.
    pub cleanup_error: Option<Error>,
}

/// Makes a backup of an open database.
///
/// # Errors
/// `Locked` or `Conflict` if there is another writer to the target; `Invalid` if it has backups of another database;
/// `Unavailable` if the target can't be read or written; `Corrupt` if the database is damaged.
pub(crate) fn back_up(
    store: &Store,
    target: &dyn Target,
    options: &BackupOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<BackupReport> {
    let _lock = target.lock()?;
    let known = KnownTarget::read(store, target)?;
    let export = store.export(None)?;
    let writer = Uuid::new_v4().simple().to_string();
    let shipped = ship(store, target, &export, &known, &writer, options.has_tree, progress)?;
    let cleaned = clean(target, &shipped.manifest, &options.keep, options.supersedes, &known.files);
    shipped.report(cleaned)
}

/// What a writer knows of its target.
pub(super) struct KnownTarget {
    /// The number of the newest manifest; 0 if there is none.
    pub(super) number: u64,
    /// Who made the newest backup.
    pub(super) writer: Option<String>,
    /// The newest backup of this database with this identity.
    pub(super) newest: Option<Manifest>,
    /// Whether this process wrote it, of the database that it still has open.
    pub(super) is_ours: bool,
    /// The files in the target.
    pub(super) files: Vec<String>,
    /// How many files of the newest backup the target has lost.
    pub(super) lost_count: u64,
}

impl KnownTarget {
    pub(super) fn read(store: &Store, target: &dyn Target) -> Result<Self> {
        let numbers = manifest::numbers(target)?;
        let mut newest = manifest::newest(target, &numbers)?;
        let (database, identity) = ids(store);
        if newest.as_ref().is_some_and(|newest| newest.database != database) {
            return Err(of_another_database(target));
        }
        let files = target.list(&format!("{FILES}/"))?;
        let present: HashSet<&str> = files.iter().map(String::as_str).collect();
        let lost_count = newest.as_mut().map_or(0, |newest| newest.drop_entries_without_files(&present));
        Ok(KnownTarget {
            number: numbers.last().copied().unwrap_or(0),
            writer: newest.as_ref().map(|newest| newest.writer.clone()),
            newest: newest.filter(|newest| newest.identity == identity),
            is_ours: false,
            lost_count,
            files,
        })
    }

    /// What its writer knows after a backup.
    pub(super) fn after(self, newest: Manifest) -> Self {
        let mut files = self.files;
        files.extend(newest.files().map(|file| file.name.clone()));
        files.sort_unstable();
        files.dedup();
        let (number, writer) = (newest.backup, Some(newest.writer.clone()));
        KnownTarget { number, writer, newest: Some(newest), is_ours: true, files, lost_count: 0 }
    }

    /// Whether the newest backup is by this writer.
    pub(super) fn is_written_by(&self, writer: &str) -> bool {
        self.writer.as_deref() == Some(writer)
    }

    /// Whether the newest backup is of this database.
    pub(super) fn is_of(&self, store: &Store) -> bool {
        let (database, identity) = ids(store);
        self.newest.as_ref().is_some_and(|newest| newest.database == database && newest.identity == identity)
    }
}

pub(super) fn of_another_database(target: &dyn Target) -> Error {
    Error::invalid(format!("{} has backups of another database", target.describe()))
        .with_hint("name another target: each database has its own")
}

/// The ids of the log and of the database.
pub(super) fn ids(store: &Store) -> (String, String) {
    let text = |id: DatabaseId| Uuid::from_bytes(id).simple().to_string();
    (text(store.parts.log.database_id()), text(store.parts.identity))
}

/// A backup whose manifest was written.
pub(super) struct Shipped {
    pub(super) manifest: Manifest,
    copied_bytes: u64,
    linked_bytes: u64,
    lost_count: u64,
}

impl Shipped {
    /// The report; the error of a writer that another one has replaced.
    pub(super) fn report(self, cleaned: Result<u64>) -> Result<BackupReport> {
        let (deleted_count, cleanup_error) = match cleaned {
            Ok(count) => (count, None),
            Err(error) if error.kind() == ErrorKind::Conflict => return Err(error),
            Err(error) => (0, Some(error)),
        };
        Ok(BackupReport {
            number: self.manifest.backup,
            sequence: self.manifest.sequence(),
            copied_bytes: self.copied_bytes,
            linked_bytes: self.linked_bytes,
            byte_count: self.manifest.byte_count(),
            deleted_count,
            lost_count: self.lost_count,
            cleanup_error,
        })
    }
}

/// The error of the writer that was second to create a manifest.
pub(super) fn fenced(target: &dyn Target, number: u64) -> Error {
    Error::conflict(format!("another writer has made backup {number} in {}", target.describe()))
        .with_hint("let one process make the backups of a database")
}

/// Writes the files that the target lacks, and then the manifest of a new backup. With `has_tree`, the tree is a
/// part of it, if its files can be linked.
pub(super) fn ship(
    store: &Store,
    target: &dyn Target,
    export: &StoreExport,
    known: &KnownTarget,
    writer: &str,
    has_tree: bool,
    progress: &mut dyn FnMut(Progress),
) -> Result<Shipped> {
    let task = store.list_task(ActiveTaskKind::Backup, &target.describe());
    let progress = &mut task.showing(progress);
    let number = known.number + 1;
    let (database, identity) = ids(store);
    let mut shipment = Shipment {
        target,
        export,
        known,
        prefix: format!("{FILES}/{number:010}-{}", &Uuid::new_v4().simple().to_string()[..8]),
        progress,
        done: Progress { done: 0, total: 0 },
        copied_bytes: 0,
        linked_bytes: 0,
    };
    let mut manifest = Manifest::new(number, database, identity, writer);
    manifest.created_ms = store.parts.options.clock.now_ms();
    (manifest.last_sequence, manifest.last_time_us) = (export.sequence.get(), export.time_us);
    let plans = export.segments.iter().map(|segment| shipment.plan(segment)).collect::<Result<Vec<_>>>()?;
    if let Some(newest) = &known.newest
        && is_continued(newest, export, &plans)
    {
        manifest.chain = newest.chain;
    }
    shipment.done.total = shipment.bytes_to_put(&plans);
    for (segment, plan) in export.segments.iter().zip(plans) {
        manifest.segments.push(shipment.segment(segment, plan)?);
    }
    manifest.history = shipment.history()?;
    manifest.contents = shipment.contents()?;
    if let Some(keys) = shipment.keys()? {
        manifest.set_keys(keys);
    }
    if has_tree {
        manifest.set_tree(shipment.tree()?);
    }
    let Shipment { copied_bytes, linked_bytes, .. } = shipment;
    // A backup is complete once its manifest exists, so everything else has to be durable before.
    target.flush()?;
    if !target.put_new(&name_of(number), &manifest.encode()?)? {
        return Err(fenced(target, number));
    }
    Ok(Shipped { manifest, copied_bytes, linked_bytes, lost_count: known.lost_count })
}

/// What is done with a segment.
enum Plan {
    /// The target has all of it.
    Reuse(SegmentEntry),
    /// The target has its beginning.
    Append(SegmentEntry),
    /// All of it is put.
    Put { replaces_other: bool },
}

/// Whether the log continues that of the newest backup: it has everything of it, unchanged.
fn is_continued(newest: &Manifest, export: &StoreExport, plans: &[Plan]) -> bool {
    newest.sequence() <= export.sequence
        && newest.end() <= export.end
        && !plans.iter().any(|plan| matches!(plan, Plan::Put { replaces_other: true }))
}

/// A backup that is being written.
struct Shipment<'a> {
    target: &'a dyn Target,
    export: &'a StoreExport,
    known: &'a KnownTarget,
    /// Begins the names of its files, which no other writer uses.
    prefix: String,
    progress: &'a mut dyn FnMut(Progress),
    done: Progress,
    copied_bytes: u64,
    linked_bytes: u64,
}

impl Shipment<'_> {
    /// Compares a segment with that of the newest backup. Within one process, the target has what was put there;
    /// otherwise the database may be a copy that went another way, so bytes are compared.
    fn plan(&self, segment: &ExportedSegment) -> Result<Plan> {
        let stored = self.known.newest.as_ref().and_then(|newest| newest.segment(segment.number()));
        let Some(stored) = stored else { return Ok(Plan::Put { replaces_other: false }) };
        if stored.length > segment.byte_count || stored.is_sealed && !segment.is_sealed {
            return Ok(Plan::Put { replaces_other: true });
        }
        let is_same = self.known.is_ours
            || match &stored.fingerprint {
                Some(stored) => *stored == fingerprint(segment)?,
                None => has_same_parts(stored, segment)?,
            };
        Ok(match (is_same, stored.is_sealed || !segment.is_sealed && stored.length == segment.byte_count) {
            (false, _) => Plan::Put { replaces_other: true },
            (true, true) => Plan::Reuse(stored.clone()),
            (true, false) if segment.is_sealed => Plan::Put { replaces_other: false },
            (true, false) => Plan::Append(stored.clone()),
        })
    }

    fn bytes_to_put(&self, plans: &[Plan]) -> u64 {
        let bytes = |(segment, plan): (&ExportedSegment, &Plan)| match plan {
            Plan::Reuse(_) => 0,
            Plan::Append(stored) => segment.byte_count - stored.length,
            Plan::Put { .. } => segment.byte_count,
        };
        self.export.segments.iter().zip(plans).map(bytes).sum()
    }

    fn segment(&mut self, segment: &ExportedSegment, plan: Plan) -> Result<SegmentEntry> {
        let number = segment.number();
        match plan {
            Plan::Reuse(stored) => Ok(stored),
            Plan::Append(mut stored) => {
                let name = format!("{}-log-{number:010}-{:010}", self.prefix, stored.length);
                stored.parts.push(self.copy_range(name, segment, stored.length)?);
                let first = segment.first_moment()?;
                stored.length = segment.byte_count;
                stored.first_sequence = first.map(|first| first.sequence.get());
                stored.first_time_us = first.map(|first| first.time_us);
                Ok(stored)
            }
            Plan::Put { .. } => {
                let name = format!("{}-log-{number:010}", self.prefix);
                let file = match segment.is_sealed {
                    true => self.link(&self.export.vfs, &name, segment.file_name(), segment.byte_count)?,
                    false => None,
                };
                let file = file.map_or_else(|| self.copy_range(name, segment, 0), Ok)?;
                let first = segment.first_moment()?;
                Ok(SegmentEntry {
                    number,
                    length: segment.byte_count,
                    is_sealed: segment.is_sealed,
                    first_sequence: first.map(|first| first.sequence.get()),
                    first_time_us: first.map(|first| first.time_us),
                    fingerprint: if segment.is_sealed { Some(fingerprint(segment)?) } else { None },
                    parts: vec![file],
                })
            }
        }
    }

    /// What is kept of the past.
    fn history(&mut self) -> Result<Vec<HistoryEntry>> {
        let mut entries = Vec::with_capacity(self.export.history.len());
        for ExportedHistory { info, name: file_name, file } in &self.export.history {
            let fingerprint = file_fingerprint(file, file_name)?;
            let stored = self.known.newest.iter().flat_map(|newest| &newest.history);
            // An interrupted retirement may have written another file before.
            let mut stored =
                stored.filter(|stored| stored.segment == info.segment && stored.fingerprint == fingerprint);
            if let Some(stored) = stored.next_back() {
                entries.push(stored.clone());
                continue;
            }
            let name = format!("{}-history-{:010}", self.prefix, info.segment);
            self.done.total += info.bytes;
            let file = match self.link(&self.export.vfs, &name, file_name, info.bytes)? {
                Some(linked) => linked,
                None => {
                    let mut hashing = Hashing::new(FileReader { file: file.clone(), offset: 0 });
                    self.target.put(&name, &mut hashing)?;
                    self.copied(name, hashing, info.bytes)?
                }
            };
            let (until, until_time_us) = (info.until.sequence.get(), info.until.time_us);
            entries.push(HistoryEntry { segment: info.segment, until, until_time_us, fingerprint, file });
        }
        Ok(entries)
    }

    /// The contents of attachments. Those of the newest backup are used as they are: their names are their hashes.
    fn contents(&mut self) -> Result<Vec<ContentEntry>> {
        // After a change of the database key, files with the same names are encrypted otherwise.
        let active = self.active_key();
        let is_same_key = |newest: &&Manifest| newest.keys.as_ref().map(|keys| keys.active) == active;
        let newest = self.known.newest.as_ref().filter(is_same_key);
        let stored: HashMap<&str, &ContentEntry> =
            newest.iter().flat_map(|newest| &newest.contents).map(|content| (&*content.digest, content)).collect();
        let mut entries = Vec::with_capacity(self.export.blobs.len());
        for blob in &self.export.blobs {
            let digest = blob.stored_name().to_string();
            entries.push(match stored.get(&*digest) {
                Some(stored) => (*stored).clone(),
                None => ContentEntry { file: self.content(blob)?, digest },
            });
        }
        entries.sort_by(|left, right| left.digest.cmp(&right.digest));
        Ok(entries)
    }

    fn content(&mut self, blob: &Blob) -> Result<FileEntry> {
        let stored_name = blob.stored_name();
        let file_name = stored_name.file_name();
        let name = format!("{}-content-{stored_name}", self.prefix);
        let file = open_file(&*self.export.vfs, &file_name)?;
        let length = file.file.len().map_err(|error| Error::io(format_args!("examine {file_name}"), error))?;
        self.done.total += length;
        if let Some(linked) = self.link(&self.export.vfs, &name, &file_name, length)? {
            return Ok(linked);
        }
        let mut hashing = Hashing::new(file);
        self.target.put(&name, &mut hashing)?;
        self.copied(name, hashing, length)
    }

    /// The number of the database key that is written with, if the database has keys; 0 if none is.
    fn active_key(&self) -> Option<u32> {
        self.export.vfs.keyring().map(|keyring| keyring.active().unwrap_or(0))
    }

    /// The key file, if the database is encrypted.
    fn keys(&mut self) -> Result<Option<KeysEntry>> {
        let (Some(active), Some(bytes)) = (self.active_key(), key_file::read(&*self.export.vfs)?) else {
            return Ok(None);
        };
        let stored = self.known.newest.as_ref().and_then(|newest| newest.keys.as_ref());
        let mut hashing = Hashing::new(&bytes[..]);
        std::io::copy(&mut hashing, &mut std::io::sink()).map_err(|error| Error::io("hash the key file", error))?;
        let hash = hashing.hash();
        if let Some(stored) = stored.filter(|stored| stored.file.hash.as_ref() == Some(&hash)) {
            return Ok(Some(KeysEntry { active, file: stored.file.clone() }));
        }
        let file = self.put_bytes(format!("{}-keys", self.prefix), &bytes)?;
        Ok(Some(KeysEntry { active, file }))
    }

    /// The files of the tree, if the target can share all of them. Each backup has links of its own: a tree that was
    /// computed again has other files of the same names.
    fn tree(&mut self) -> Result<Vec<TreeEntry>> {
        let (tree, prefix) = (&self.export.tree, self.prefix.clone());
        let name_of = |path: &str| format!("{prefix}-{}", path.replace('/', "-"));
        let mut entries = Vec::new();
        for (path, length) in tree.files() {
            let Some(file) = self.link(tree.vfs(), &name_of(&path), &path, length)? else { return Ok(Vec::new()) };
            entries.push(TreeEntry::new(&path, file));
        }
        if !entries.is_empty() {
            let (path, bytes) = tree.manifest()?;
            let file = self.put_bytes(name_of(&path), &bytes)?;
            entries.push(TreeEntry::new(&path, file));
        }
        Ok(entries)
    }

    /// Puts a file whose bytes are in memory.
    fn put_bytes(&mut self, name: String, bytes: &[u8]) -> Result<FileEntry> {
        let length = bytes.len() as u64;
        self.done.total += length;
        let mut hashing = Hashing::new(bytes);
        self.target.put(&name, &mut hashing)?;
        self.copied(name, hashing, length)
    }

    /// Links a file that never changes; none if that is not possible.
    fn link(&mut self, vfs: &Arc<dyn Vfs>, name: &str, file_name: &str, length: u64) -> Result<Option<FileEntry>> {
        let file = LocalFile { vfs: &**vfs, name: file_name };
        match self.target.put_linked(name, &file) {
            Ok(true) => {
                self.linked_bytes += length;
                self.show(length);
                let hash = vfs.keyring().map(|_| file_hash(&**vfs, file_name)).transpose()?;
                Ok(Some(FileEntry { name: name.to_owned(), length, hash }))
            }
            Ok(false) => Ok(None),
            // A segment that was retired since: its file has another name, or none.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Copies a segment from `offset` on.
    fn copy_range(&mut self, name: String, segment: &ExportedSegment, offset: u64) -> Result<FileEntry> {
        let mut hashing = Hashing::new(SegmentReader::new(segment, offset, segment.byte_count));
        self.target.put(&name, &mut hashing)?;
        self.copied(name, hashing, segment.byte_count - offset)
    }

    fn copied<R: std::io::Read>(&mut self, name: String, hashing: Hashing<R>, length: u64) -> Result<FileEntry> {
        if hashing.length != length {
            let what = format!("{} took {} of the {length} bytes of {name}", self.target.describe(), hashing.length);
            return Err(Error::unavailable(what));
        }
        self.copied_bytes += length;
        self.show(length);
        Ok(FileEntry { name, length, hash: Some(hashing.hash()) })
    }

    fn show(&mut self, byte_count: u64) {
        self.done.done += byte_count;
        (self.progress)(self.done);
    }
}

/// Whether a segment begins with the bytes that a backup has of it.
fn has_same_parts(stored: &SegmentEntry, segment: &ExportedSegment) -> Result<bool> {
    let mut offset = 0;
    for part in &stored.parts {
        if part.hash.as_ref() != Some(&range_hash(segment, offset, part.length)?) {
            return Ok(false);
        }
        offset += part.length;
    }
    Ok(true)
}
