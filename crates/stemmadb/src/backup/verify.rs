//! Verifying backups: every file is read and compared with the manifests, and every frame of the log is checked.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::io::Read;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::manifest::{self, ContentEntry, FileEntry, HistoryEntry, Manifest, SegmentEntry, TreeEntry, name_of};
use super::target::Target;
use super::transfer::{Hashing, write_all};
use crate::log::{Digest, history_name, is_content_of, read_frames, segment_file_name, verify_history};
use crate::options::Progress;
use crate::tree::ListedFiles;
use crate::vfs::{MemoryVfs, Vfs};
use crate::{Error, ErrorKind, Result};

/// The result of verifying the backups in a target.
///
/// Returned by [`verify`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Backups verified.
    pub backup_count: u64,
    /// Files read; a file that several backups share is read once.
    pub file_count: u64,
    /// Bytes read.
    pub byte_count: u64,
    /// The problems found; empty if every backup can be restored.
    pub damages: Vec<BackupDamage>,
}

impl VerifyReport {
    /// Whether no problem was found.
    pub fn is_sound(&self) -> bool {
        self.damages.is_empty()
    }
}

/// A file of a backup that is damaged or missing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupDamage {
    /// The oldest backup that needs the file.
    pub backup: u64,
    /// The name of the file in the target.
    pub file: String,
    /// What is wrong with it.
    pub what: String,
}

/// Reads all backups in a target and reports every damaged or missing file. Those of encrypted databases are verified
/// by the hashes in their manifests, which takes no key.
///
/// # Errors
/// `NotFound` if there are no backups; `Unavailable` if the target can't be read. Damage is not an error: it is listed
/// in the report.
pub fn verify(target: &dyn Target) -> Result<VerifyReport> {
    verify_with_progress(target, |_| ())
}

/// Same as [`verify`]; calls `progress` during it, counting bytes.
///
/// # Errors
/// Those of [`verify`].
pub fn verify_with_progress(target: &dyn Target, mut progress: impl FnMut(Progress)) -> Result<VerifyReport> {
    let numbers = manifest::numbers(target)?;
    if numbers.is_empty() {
        return Err(no_backups(target));
    }
    let mut verifier =
        Verifier { target, report: VerifyReport::default(), known: HashMap::new(), done: 0, progress: &mut progress };
    let mut manifests = Vec::new();
    for number in numbers {
        match Manifest::read(target, number) {
            Ok(manifest) => manifests.push(manifest),
            // Deleted by the retention of a running backup.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) if error.kind() == ErrorKind::Corrupt => verifier.damaged(number, &name_of(number), &error),
            Err(error) => return Err(error),
        }
    }
    let total = total_bytes(&manifests);
    for manifest in &manifests {
        verifier.manifest(manifest, total)?;
    }
    Ok(verifier.report)
}

pub(super) fn no_backups(target: &dyn Target) -> Error {
    Error::not_found(format!("there are no backups at {}", target.describe()))
        .with_hint("`stemma backup DATABASE TARGET` makes one")
}

/// Bytes of all files, each counted once.
fn total_bytes(manifests: &[Manifest]) -> u64 {
    let files: HashMap<&str, u64> =
        manifests.iter().flat_map(Manifest::files).map(|file| (&*file.name, file.length)).collect();
    files.values().sum()
}

struct Verifier<'a> {
    target: &'a dyn Target,
    report: VerifyReport,
    /// The files that were read, and those that are damaged with what is wrong.
    known: HashMap<String, Option<String>>,
    done: u64,
    progress: &'a mut dyn FnMut(Progress),
}

impl Verifier<'_> {
    fn damaged(&mut self, backup: u64, file: &str, error: &Error) {
        let what = error.message().to_owned();
        self.report.damages.push(BackupDamage { backup, file: file.to_owned(), what });
    }

    fn manifest(&mut self, manifest: &Manifest, total: u64) -> Result<()> {
        self.report.backup_count += 1;
        for segment in &manifest.segments {
            let names: Vec<&str> = segment.parts.iter().map(|part| &*part.name).collect();
            self.once(manifest.backup, &names, |target| match manifest.keys {
                None => verify_segment(target, segment),
                Some(_) => segment.parts.iter().try_for_each(|part| verify_hash(target, part)),
            })?;
            self.show(segment.parts.iter().map(|part| part.length).sum(), total);
        }
        for history in &manifest.history {
            self.once(manifest.backup, &[&history.file.name], |target| match manifest.keys {
                None => verify_history_file(target, manifest, history),
                Some(_) => verify_hash(target, &history.file),
            })?;
            self.show(history.file.length, total);
        }
        if let Some(keys) = &manifest.keys {
            self.once(manifest.backup, &[&keys.file.name], |target| verify_hash(target, &keys.file))?;
            self.show(keys.file.length, total);
        }
        for content in &manifest.contents {
            self.once(manifest.backup, &[&content.file.name], |target| verify_content(target, content))?;
            self.show(content.file.length, total);
        }
        self.tree(manifest, total)
    }

    fn tree(&mut self, manifest: &Manifest, total: u64) -> Result<()> {
        // Read for the first file that needs it.
        let listed = OnceCell::new();
        for entry in &manifest.tree {
            self.once(manifest.backup, &[&entry.file.name], |target| match entry.file.hash {
                None => match listed.get_or_init(|| tree_list(target, &manifest.tree)) {
                    Ok(listed) => verify_tree_file(target, listed, entry),
                    Err(error) => Err(error.duplicate()),
                },
                Some(_) => verify_hash(target, &entry.file),
            })?;
            self.show(entry.file.length, total);
        }
        Ok(())
    }

    /// Verifies the bytes of these files, unless that was done before.
    fn once(&mut self, backup: u64, names: &[&str], verify: impl FnOnce(&dyn Target) -> Result<()>) -> Result<()> {
        if names.iter().all(|name| self.known.contains_key(*name)) {
            return Ok(());
        }
        let found = match verify(self.target) {
            Ok(()) => None,
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => Some(error),
            Err(error) => return Err(error),
        };
        for name in names {
            self.report.file_count += u64::from(self.known.insert((*name).to_owned(), None).is_none());
        }
        if let Some(error) = found {
            let named = names.iter().find(|name| error.message().contains(**name)).or(names.last());
            self.damaged(backup, named.map_or("", |name| name), &error);
        }
        Ok(())
    }

    fn show(&mut self, byte_count: u64, total: u64) {
        self.done = (self.done + byte_count).min(total);
        self.report.byte_count = self.done;
        (self.progress)(Progress { done: self.done, total });
    }
}

/// Reads a file to its end and verifies its length and its hash.
pub(super) fn read_verified(
    target: &dyn Target,
    file: &FileEntry,
    read: &mut dyn FnMut(&mut dyn Read) -> Result<()>,
) -> Result<()> {
    let content = target.get(&file.name)?;
    // What was linked has no hash.
    let mut hashing = if file.hash.is_some() { Hashing::new(content) } else { Hashing::counting(content) };
    read(&mut hashing)?;
    if hashing.length != file.length {
        let what = format!("it has {} bytes, should have {}", hashing.length, file.length);
        return Err(damaged_file(&file.name, &what));
    }
    if file.hash.as_ref().is_some_and(|hash| *hash != hashing.hash()) {
        return Err(damaged_file(&file.name, "its bytes do not have the hash in the manifest"));
    }
    Ok(())
}

/// Reads a file into memory and verifies it.
pub(super) fn verified_bytes(target: &dyn Target, file: &FileEntry) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    read_verified(target, file, &mut |content| {
        let read = content.read_to_end(&mut bytes);
        read.map(|_| ()).map_err(|error| Error::io(format_args!("read {}", file.name), error))
    })?;
    Ok(bytes)
}

/// Verifies a file of which nothing can be decrypted here.
fn verify_hash(target: &dyn Target, file: &FileEntry) -> Result<()> {
    if file.hash.is_none() {
        return Err(damaged_file(&file.name, "the manifest has no hash of it"));
    }
    read_verified(target, file, &mut |bytes| write_to_nowhere(bytes, &file.name))
}

fn damaged_file(name: &str, what: &str) -> Error {
    Error::corrupt(format!("{name} is damaged: {what}"))
}

/// Reads a file of a database from its parts into memory and verifies their hashes.
fn in_memory(target: &dyn Target, name: &str, parts: &[FileEntry]) -> Result<Arc<dyn Vfs>> {
    let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
    let file = vfs.create(name).map_err(|error| Error::io(format_args!("create {name}"), error))?;
    let mut offset = 0;
    for part in parts {
        read_verified(target, part, &mut |content| {
            offset = write_all(&file, &part.name, offset, content, &mut |_| ())?;
            Ok(())
        })?;
    }
    Ok(vfs)
}

fn verify_segment(target: &dyn Target, segment: &SegmentEntry) -> Result<()> {
    verify_frames(&in_memory(target, &segment_file_name(segment.number), &segment.parts)?, segment)
}

/// Verifies the frames of a segment that was copied to `vfs`.
pub(super) fn verify_frames(vfs: &Arc<dyn Vfs>, segment: &SegmentEntry) -> Result<()> {
    let parts = segment.parts.iter().map(|part| &*part.name).collect::<Vec<_>>().join(" and ");
    let read = read_frames(vfs, segment.number, &mut |_| Ok(ControlFlow::Continue(())));
    let (end, _) = read.map_err(|error| error.within(parts.clone()))?;
    if u64::from(end) != segment.length {
        return Err(damaged_file(&parts, &format!("its frames end at {end}, should end at {}", segment.length)));
    }
    Ok(())
}

/// Verifies what is kept of the past of a segment.
fn verify_history_file(target: &dyn Target, manifest: &Manifest, history: &HistoryEntry) -> Result<()> {
    let vfs = in_memory(target, &history_name(history.segment), std::slice::from_ref(&history.file))?;
    let id = manifest.database_id()?;
    verify_history(&*vfs, history.segment, &id).map_err(|error| error.within(&history.file.name))
}

/// The list of the tree's files, which is the last of them.
///
/// # Errors
/// `Corrupt` if it is damaged.
pub(super) fn tree_list(target: &dyn Target, tree: &[TreeEntry]) -> Result<ListedFiles> {
    let manifest = tree.last().ok_or_else(|| Error::internal("a backup without a tree has no list of its files"))?;
    ListedFiles::decode(&verified_bytes(target, &manifest.file)?)
}

/// Verifies a file of the tree that was linked, and thus has no hash.
fn verify_tree_file(target: &dyn Target, listed: &ListedFiles, entry: &TreeEntry) -> Result<()> {
    let path = entry.path();
    let vfs = in_memory(target, &path, std::slice::from_ref(&entry.file))?;
    listed.verify(vfs, &path).map_err(|error| error.within(&entry.file.name))
}

/// Verifies the content of an attachment by the hash in the manifest, or else by its digest.
fn verify_content(target: &dyn Target, content: &ContentEntry) -> Result<()> {
    let ContentEntry { digest, file } = content;
    read_verified(target, file, &mut |bytes| {
        if file.hash.is_some() {
            return write_to_nowhere(bytes, &file.name);
        }
        let expected: Digest = digest.parse()?;
        match is_content_of(bytes, file.length, &expected) {
            Ok(true) => Ok(()),
            Ok(false) => Err(damaged_file(&file.name, "the content is not what its name says")),
            Err(error) => Err(Error::io(format_args!("read {}", file.name), error)),
        }
    })
}

fn write_to_nowhere(bytes: &mut dyn Read, name: &str) -> Result<()> {
    std::io::copy(bytes, &mut std::io::sink())
        .map(|_| ())
        .map_err(|error| Error::io(format_args!("read {name}"), error))
}
