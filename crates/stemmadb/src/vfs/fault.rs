//! Fault-injecting disk for tests: I/O errors, lost flushes and power loss.
//!
//! Files are held in memory together with their *durable* state: the content and names saved by the last successful
//! flush. Every 512-byte sector, file length and name changed since then is unsaved. [`FaultVfs::crash_image`] builds
//! the state that a power loss may leave behind: any subset of the unsaved changes survives, in any order. A sector is
//! either old or new, never mixed; a name is either changed or not.
//!
//! A failed flush behaves as on Linux: the data it should have saved counts as clean from then on, and no later flush
//! saves it unless it is written again.
//!
//! All decisions derive from seeds: the same calls always see the same faults.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::memory::{MemoryLock, child_of};
use super::{Vfs, VfsFile, VfsLock, read_exact_at};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

const SECTOR_BYTES: usize = 512;

/// Maximum number of versions remembered per unsaved sector.
const VERSION_COUNT_MAX: usize = 4;

/// A small random number generator (SplitMix64): the same seed gives the same numbers on every platform.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Creates the generator for `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// The next number, uniform over all 64-bit values.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    /// Returns true with a probability of `per_mille` / 1,000.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1000) < u64::from(per_mille)
    }
}

/// A kind of file system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// A read from a file.
    Read,
    /// A write. Any part of it may be done before it fails.
    Write,
    /// A flush of a file.
    Sync,
    /// A change of a file's length.
    SetLen,
    /// Creation of a file or directory.
    Create,
    /// A rename.
    Rename,
    /// Removal of a file.
    Remove,
    /// A flush of a directory's names.
    SyncDir,
    /// A write to the manifest of the tree, which is counted as a write too.
    WriteManifest,
    /// A write to a run file of the tree, which is counted as a write too.
    WriteRun,
    /// Any call that changes or flushes something.
    AnyChange,
}

/// The error of an injected failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// `EIO`.
    Broken,
    /// `ENOSPC`.
    Full,
    /// `EMFILE`.
    NoDescriptor,
}

impl Failure {
    pub(crate) fn error(self) -> io::Error {
        match self {
            Failure::Broken => io::Error::other("the disk is broken"),
            Failure::Full => io::Error::new(io::ErrorKind::StorageFull, "no space is left on the disk"),
            Failure::NoDescriptor => io::Error::from_raw_os_error(super::open_files::EXHAUSTED[0]),
        }
    }
}

/// An in-memory disk with planned failures. Clones share the same disk.
#[derive(Clone)]
pub struct FaultVfs {
    disk: Arc<Mutex<SimulatedDisk>>,
    locked: Arc<AtomicBool>,
}

struct SimulatedDisk {
    files: BTreeMap<u64, FileState>,
    next_file: u64,
    names: Names,
    durable_names: Names,
    /// Name changes since the last directory flush, in order.
    unsaved_names: Vec<NameChange>,
    counts: BTreeMap<Call, u64>,
    planned: Vec<PlannedFailure>,
    dropped_per_mille: u32,
    sync_takes: Duration,
    random: Random,
    missed_remove_count: u64,
    has_links: bool,
}

#[derive(Clone, Default)]
struct Names {
    files: BTreeMap<String, u64>,
    directories: BTreeSet<String>,
}

/// One atomic change of names, made durable by a flush of its directory.
#[derive(Clone)]
struct NameChange {
    directory: String,
    removed: Option<String>,
    added: Option<(String, AddedName)>,
}

#[derive(Clone, Copy)]
enum AddedName {
    File(u64),
    Directory,
}

impl NameChange {
    /// The renaming of a directory, with everything in it.
    fn is_move(&self) -> Option<(&str, &str)> {
        match (&self.removed, &self.added) {
            (Some(from), Some((to, AddedName::Directory))) => Some((from, to)),
            _ => None,
        }
    }
}

struct PlannedFailure {
    call: Call,
    at: u64,
    is_sticky: bool,
    failure: Failure,
}

type Sector = [u8; SECTOR_BYTES];

#[derive(Default)]
struct FileState {
    content: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors written since the last flush, oldest version first.
    unsaved: BTreeMap<usize, Vec<Sector>>,
    /// Sectors of the flushes in progress.
    saving: Vec<BTreeMap<usize, Vec<Sector>>>,
    /// Sectors written before a failed flush: no later flush saves them.
    forgotten: BTreeMap<usize, Vec<Sector>>,
    unsaved_lengths: Vec<usize>,
}

impl FaultVfs {
    /// Creates an empty disk. The seed determines how much of a failing write is done and which flushes are lost.
    pub fn new(seed: u64) -> Self {
        Self::from_disk(SimulatedDisk {
            files: BTreeMap::new(),
            next_file: 1,
            names: Names::default(),
            durable_names: Names::default(),
            unsaved_names: Vec::new(),
            counts: BTreeMap::new(),
            planned: Vec::new(),
            dropped_per_mille: 0,
            sync_takes: Duration::ZERO,
            random: Random::new(seed),
            missed_remove_count: 0,
            has_links: false,
        })
    }

    fn from_disk(disk: SimulatedDisk) -> Self {
        FaultVfs { disk: Arc::new(Mutex::new(disk)), locked: Arc::default() }
    }

    fn file(&self, name: &str, number: u64) -> Arc<dyn VfsFile> {
        let also = match name.strip_prefix("tree/") {
            Some(name) if name.starts_with("MANIFEST") => Some(Call::WriteManifest),
            Some(_) => Some(Call::WriteRun),
            None => None,
        };
        Arc::new(FaultFile { disk: Arc::clone(&self.disk), number, also })
    }

    /// Makes the `nth` (from 1) such call from now on fail; with `is_sticky`, every later one as well.
    pub fn fail(&self, call: Call, nth: u64, failure: Failure, is_sticky: bool) {
        let mut disk = self.disk.lock();
        let at = disk.count(call) + nth;
        disk.planned.push(PlannedFailure { call, at, is_sticky, failure });
    }

    /// Makes `per_mille` of 1,000 flushes, of files and directories, silently do nothing.
    pub fn drop_syncs(&self, per_mille: u32) {
        self.disk.lock().dropped_per_mille = per_mille;
    }

    /// Makes every flush of a file take this long before it has an effect.
    pub fn slow_syncs(&self, takes: Duration) {
        self.disk.lock().sync_takes = takes;
    }

    /// Allows hard links to files of other disks. A link is a copy that is durable at once, as if the file had been
    /// flushed before.
    pub fn allow_links(&self) {
        self.disk.lock().has_links = true;
    }

    /// Cancels all planned failures. Damage that already happened remains.
    pub fn heal(&self) {
        let mut disk = self.disk.lock();
        disk.planned.clear();
        disk.dropped_per_mille = 0;
    }

    /// The number of calls of a kind so far, including failed ones.
    pub fn count(&self, call: Call) -> u64 {
        self.disk.lock().count(call)
    }

    /// The number of removals of run files that did not exist.
    pub fn missed_remove_count(&self) -> u64 {
        self.disk.lock().missed_remove_count
    }

    /// Returns the disk as a power loss at this point may leave it.
    pub fn crash_image(&self, seed: u64) -> FaultVfs {
        let disk = self.disk.lock();
        let mut random = Random::new(seed);
        let names = disk.names_after_crash(&mut random);
        let keep_rates = [0, 100, 500, 900, 980, 1000];
        let keep = keep_rates[random.below(keep_rates.len() as u64) as usize];
        let mut files = BTreeMap::new();
        for &number in names.files.values() {
            if let Some(file) = disk.files.get(&number) {
                let content = file.after_crash(&mut random, keep);
                files.insert(number, FileState { durable: content.clone(), content, ..FileState::default() });
            }
        }
        FaultVfs::from_disk(SimulatedDisk {
            files,
            next_file: disk.next_file,
            durable_names: names.clone(),
            names,
            unsaved_names: Vec::new(),
            counts: BTreeMap::new(),
            planned: Vec::new(),
            dropped_per_mille: 0,
            sync_takes: Duration::ZERO,
            random,
            missed_remove_count: 0,
            has_links: disk.has_links,
        })
    }

    /// Corrupts a file's bytes silently and durably, as bit rot would.
    pub fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut disk = self.disk.lock();
        let number = *disk.names.files.get(name).expect("a test damages an existing file");
        let file = disk.files.get_mut(&number).expect("every name has a file");
        change(&mut file.content);
        file.durable = file.content.clone();
        file.unsaved.clear();
        file.saving.clear();
        file.forgotten.clear();
        file.unsaved_lengths.clear();
    }

    /// The current content of a file.
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        let disk = self.disk.lock();
        let number = disk.names.files.get(name)?;
        disk.files.get(number).map(|file| file.content.clone())
    }
}

impl SimulatedDisk {
    fn count(&self, call: Call) -> u64 {
        self.counts.get(&call).copied().unwrap_or(0)
    }

    /// Counts a call and returns an error if it is planned to fail.
    fn record_call(&mut self, call: Call) -> io::Result<()> {
        if call != Call::Read {
            *self.counts.entry(Call::AnyChange).or_insert(0) += 1;
        }
        self.count_call(call)
    }

    fn count_call(&mut self, call: Call) -> io::Result<()> {
        *self.counts.entry(call).or_insert(0) += 1;
        for planned in &self.planned {
            if planned.call != call && (planned.call != Call::AnyChange || call == Call::Read) {
                continue;
            }
            let count = self.count(planned.call);
            if count == planned.at || planned.is_sticky && count > planned.at {
                return Err(planned.failure.error());
            }
        }
        Ok(())
    }

    fn is_dropped(&mut self) -> bool {
        self.dropped_per_mille > 0 && self.random.chance(self.dropped_per_mille)
    }

    fn file(&mut self, number: u64) -> &mut FileState {
        self.files.entry(number).or_default()
    }

    /// Adds a file; returns its number.
    fn create(&mut self, name: &str, file: FileState) -> io::Result<u64> {
        self.record_call(Call::Create)?;
        if self.names.files.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let number = self.next_file;
        self.next_file += 1;
        self.files.insert(number, file);
        let added = Some((name.to_owned(), AddedName::File(number)));
        self.change_names(NameChange { directory: parent(name).to_owned(), removed: None, added });
        Ok(number)
    }

    fn change_names(&mut self, change: NameChange) {
        self.names.apply(&change);
        self.unsaved_names.push(change);
    }

    fn names_after_crash(&self, random: &mut Random) -> Names {
        let keep_rates = [0, 500, 1000];
        let keep = keep_rates[random.below(3) as usize];
        let mut names = self.durable_names.clone();
        for change in &self.unsaved_names {
            if random.chance(keep) {
                names.apply(change);
            }
        }
        let directories = names.directories.clone();
        names.files.retain(|name, _| parent(name).is_empty() || directories.contains(parent(name)));
        names
    }
}

impl Names {
    fn apply(&mut self, change: &NameChange) {
        if let Some((from, to)) = change.is_move() {
            return self.move_directory(from, to);
        }
        if let Some(removed) = &change.removed {
            self.files.remove(removed);
            self.directories.remove(removed);
        }
        match &change.added {
            Some((name, AddedName::File(number))) => {
                self.files.retain(|_, other| other != number);
                self.files.insert(name.clone(), *number);
            }
            Some((name, AddedName::Directory)) => {
                self.directories.insert(name.clone());
            }
            None => {}
        }
    }
}

impl Names {
    fn move_directory(&mut self, from: &str, to: &str) {
        // A crash may have preserved this change without those that emptied the new name.
        self.files.retain(|name, _| !is_in(name, to));
        let moved = |name: &String| match is_in(name, from) {
            true => format!("{to}{}", &name[from.len()..]),
            false => name.clone(),
        };
        self.files = self.files.iter().map(|(name, number)| (moved(name), *number)).collect();
        self.directories = self.directories.iter().map(moved).collect();
    }
}

/// Whether `name` is the directory, or is in it.
fn is_in(name: &str, directory: &str) -> bool {
    name.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl FileState {
    fn write(&mut self, bytes: &[u8], offset: usize) {
        let end = offset + bytes.len();
        if end > self.content.len() {
            self.content.resize(end, 0);
            self.unsaved_lengths.push(end);
        }
        self.content[offset..end].copy_from_slice(bytes);
        if !bytes.is_empty() {
            for sector in offset / SECTOR_BYTES..=(end - 1) / SECTOR_BYTES {
                self.mark_unsaved(sector);
            }
        }
    }

    /// Records the current content of a sector as unsaved.
    fn mark_unsaved(&mut self, sector: usize) {
        let content = sector_of(&self.content, sector);
        self.forgotten.remove(&sector);
        let versions = self.unsaved.entry(sector).or_default();
        if versions.len() == VERSION_COUNT_MAX {
            versions.remove(1);
        }
        versions.push(content);
    }

    fn set_len(&mut self, bytes: usize) {
        let last = bytes.min(self.content.len()) / SECTOR_BYTES;
        let cuts = bytes < self.content.len();
        self.content.resize(bytes, 0);
        self.unsaved_lengths.push(bytes);
        if cuts {
            self.unsaved.retain(|&sector, _| sector <= last);
            self.saving.iter_mut().for_each(|saving| saving.retain(|&sector, _| sector <= last));
            self.forgotten.retain(|&sector, _| sector <= last);
            self.mark_unsaved(last);
        }
    }

    /// Starts a flush, which saves the sectors written so far, but not those written while it runs.
    fn begin_save(&mut self) {
        self.saving.push(std::mem::take(&mut self.unsaved));
    }

    fn end_save(&mut self) {
        change_length(&mut self.durable, &self.unsaved_lengths);
        self.unsaved_lengths.clear();
        for (sector, versions) in self.saving.remove(0) {
            if let Some(version) = versions.last() {
                put_sector(&mut self.durable, sector, version);
            }
        }
    }

    /// Fails a flush: its sectors count as clean from now on and may or may not be on the disk.
    fn fail_save(&mut self) {
        for (sector, versions) in self.saving.remove(0) {
            if !self.unsaved.contains_key(&sector) {
                self.forgotten.insert(sector, versions);
            }
        }
    }

    /// Loses a flush silently: its sectors stay unsaved.
    fn lose_save(&mut self) {
        for (sector, mut versions) in self.saving.remove(0) {
            versions.append(self.unsaved.entry(sector).or_default());
            self.unsaved.insert(sector, versions);
        }
    }

    fn after_crash(&self, random: &mut Random, keep: u32) -> Vec<u8> {
        let mut content = self.durable.clone();
        if !self.unsaved_lengths.is_empty() {
            // None of the changes, all of them, or a prefix.
            let count = self.unsaved_lengths.len();
            let kept = random.below(count as u64 + 3) as usize;
            change_length(&mut content, &self.unsaved_lengths[..kept.min(count)]);
        }
        for (&sector, versions) in self.forgotten.iter().chain(self.saving.iter().flatten()).chain(&self.unsaved) {
            if !random.chance(keep) {
                continue;
            }
            let oldest = random.chance(200);
            let version = if oldest {
                &versions[random.below(versions.len() as u64) as usize]
            } else {
                &versions[versions.len() - 1]
            };
            put_sector(&mut content, sector, version);
        }
        content
    }
}

/// Applies every change of length in order, so that bytes cut off and restored read as zeros.
fn change_length(content: &mut Vec<u8>, lengths: &[usize]) {
    for &bytes in lengths {
        content.resize(bytes, 0);
    }
}

fn sector_of(content: &[u8], sector: usize) -> Sector {
    let mut bytes = [0; SECTOR_BYTES];
    let start = (sector * SECTOR_BYTES).min(content.len());
    let end = (start + SECTOR_BYTES).min(content.len());
    bytes[..end - start].copy_from_slice(&content[start..end]);
    bytes
}

/// Writes a sector into a file, up to the file's end.
fn put_sector(content: &mut [u8], sector: usize, version: &Sector) {
    let start = (sector * SECTOR_BYTES).min(content.len());
    let end = (start + SECTOR_BYTES).min(content.len());
    content[start..end].copy_from_slice(&version[..end - start]);
}

fn parent(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(directory, _)| directory)
}

impl Vfs for FaultVfs {
    fn open(&self, name: &str) -> io::Result<Arc<dyn VfsFile>> {
        match self.disk.lock().names.files.get(name) {
            Some(&number) => Ok(self.file(name, number)),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn VfsFile>> {
        let number = self.disk.lock().create(name, FileState::default())?;
        Ok(self.file(name, number))
    }

    fn link_from(&self, source: &dyn Vfs, from: &str, to: &str) -> io::Result<bool> {
        if !self.disk.lock().has_links {
            return Ok(false);
        }
        let file = source.open(from)?;
        let mut content = vec![0; file.len()? as usize];
        read_exact_at(&*file, &mut content, 0)?;
        let linked = FileState { durable: content.clone(), content, ..FileState::default() };
        self.disk.lock().create(to, linked).map(|_| true)
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        let disk = self.disk.lock();
        let all = disk.names.files.keys().chain(&disk.names.directories);
        Ok(all.filter_map(|name| child_of(directory, name)).map(str::to_owned).collect())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.record_call(Call::Rename)?;
        if disk.names.directories.contains(from) {
            if disk.names.files.keys().any(|name| is_in(name, to)) {
                return Err(io::ErrorKind::DirectoryNotEmpty.into());
            }
            let added = Some((to.to_owned(), AddedName::Directory));
            disk.change_names(NameChange { directory: parent(to).to_owned(), removed: Some(from.to_owned()), added });
            return Ok(());
        }
        let number = *disk.names.files.get(from).ok_or(io::ErrorKind::NotFound)?;
        let added = Some((to.to_owned(), AddedName::File(number)));
        disk.change_names(NameChange { directory: parent(to).to_owned(), removed: Some(from.to_owned()), added });
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.record_call(Call::Remove)?;
        if !disk.names.files.contains_key(name) {
            disk.missed_remove_count += u64::from(name.ends_with(".run"));
            return Err(io::ErrorKind::NotFound.into());
        }
        let removed = Some(name.to_owned());
        disk.change_names(NameChange { directory: parent(name).to_owned(), removed, added: None });
        Ok(())
    }

    fn remove_dir(&self, name: &str) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.record_call(Call::Remove)?;
        if disk.names.files.contains_key(name) {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        if !disk.names.directories.contains(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        if disk.names.files.keys().chain(&disk.names.directories).any(|other| other != name && is_in(other, name)) {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        let removed = Some(name.to_owned());
        disk.change_names(NameChange { directory: parent(name).to_owned(), removed, added: None });
        Ok(())
    }

    fn sync_dir(&self, directory: &str) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.record_call(Call::SyncDir)?;
        if disk.is_dropped() {
            return Ok(());
        }
        let unsaved = std::mem::take(&mut disk.unsaved_names);
        for change in unsaved {
            if change.directory == directory {
                disk.durable_names.apply(&change);
            } else {
                disk.unsaved_names.push(change);
            }
        }
        Ok(())
    }

    fn create_dir_all(&self, directory: &str) -> io::Result<()> {
        let ends = directory.match_indices('/').map(|(end, _)| end).chain([directory.len()]);
        for end in ends {
            let name = &directory[..end];
            let mut disk = self.disk.lock();
            if !disk.names.directories.contains(name) {
                disk.record_call(Call::Create)?;
                let added = Some((name.to_owned(), AddedName::Directory));
                disk.change_names(NameChange { directory: parent(name).to_owned(), removed: None, added });
                drop(disk);
                self.sync_dir(parent(name))?;
            }
        }
        Ok(())
    }

    fn lock(&self, _name: &str) -> io::Result<Box<dyn VfsLock>> {
        if self.locked.swap(true, Ordering::AcqRel) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(MemoryLock(Arc::clone(&self.locked))))
    }

    fn is_persistent(&self) -> bool {
        true
    }
}

struct FaultFile {
    disk: Arc<Mutex<SimulatedDisk>>,
    number: u64,
    /// A second call that each write counts as.
    also: Option<Call>,
}

impl VfsFile for FaultFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut disk = self.disk.lock();
        disk.record_call(Call::Read)?;
        let content = &disk.file(self.number).content;
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
        let count = buffer.len().min(content.len() - start);
        buffer[..count].copy_from_slice(&content[start..start + count]);
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let offset = usize::try_from(offset).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut disk = self.disk.lock();
        let also = self.also.map_or(Ok(()), |call| disk.count_call(call));
        match disk.record_call(Call::Write).and(also) {
            Ok(()) => {
                disk.file(self.number).write(bytes, offset);
                Ok(())
            }
            Err(error) => {
                let done = disk.random.below(bytes.len() as u64 + 1) as usize;
                disk.file(self.number).write(&bytes[..done], offset);
                Err(error)
            }
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.file(self.number).begin_save();
        let takes = disk.sync_takes;
        if !takes.is_zero() {
            drop(disk);
            std::thread::sleep(takes);
            disk = self.disk.lock();
        }
        match disk.record_call(Call::Sync) {
            Ok(()) if disk.is_dropped() => disk.file(self.number).lose_save(),
            Ok(()) => disk.file(self.number).end_save(),
            Err(error) => {
                disk.file(self.number).fail_save();
                return Err(error);
            }
        }
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut disk = self.disk.lock();
        disk.record_call(Call::SetLen)?;
        disk.file(self.number).set_len(bytes);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.lock().file(self.number).content.len() as u64)
    }
}
