//! A disk that fails, lies and loses power, for tests.
//!
//! Files live in RAM together with what of them is *durable*: the content and the names that the last honest flush saved. Since then
//! every 512-byte sector written, every change of length and every change of a name is unsaved, and [`FaultVfs::crash_image`]
//! makes the world as a loss of power may leave it: of what is unsaved any part survives, in any order. A sector is either
//! old or new, never mixed; a name is either changed or not.
//!
//! A flush that fails behaves as on Linux: what it should have saved counts as clean from then on, so that no later flush saves
//! it unless it is written again.
//!
//! Everything is decided by seeds: the same calls meet the same faults.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::memory::{MemoryLock, child_of};
use super::{Vfs, VfsFile, VfsLock};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

const SECTOR_BYTES: usize = 512;

/// So many versions of one unsaved sector are remembered.
const VERSION_COUNT_MAX: usize = 4;

/// A small generator of random numbers (SplitMix64): the same seed gives the same numbers, everywhere.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The generator that begins at `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// The next number, any of the 2^64.
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

    /// True in `per_mille` of a thousand cases.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1000) < u64::from(per_mille)
    }
}

/// What a caller asks of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// A read of a file's bytes.
    Read,
    /// A write: any part of it may be done before it fails.
    Write,
    /// A flush of a file.
    Sync,
    /// A change of a file's length.
    SetLen,
    /// The creation of a file or directory.
    Create,
    /// A change of name.
    Rename,
    /// The removal of a name.
    Remove,
    /// A flush of a directory's names.
    SyncDir,
    /// Every call that changes or saves something.
    AnyChange,
}

/// How it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// `EIO`.
    Broken,
    /// `ENOSPC`.
    Full,
}

impl Failure {
    pub(crate) fn error(self) -> io::Error {
        match self {
            Failure::Broken => io::Error::other("the disk is broken"),
            Failure::Full => io::Error::new(io::ErrorKind::StorageFull, "no space is left on the disk"),
        }
    }
}

/// A disk in RAM whose failures are planned. Clones are the same disk.
#[derive(Clone)]
pub struct FaultVfs {
    world: Arc<Mutex<World>>,
    locked: Arc<AtomicBool>,
}

struct World {
    files: BTreeMap<u64, FileState>,
    next_file: u64,
    names: Names,
    durable_names: Names,
    /// Since they were last saved, in order.
    unsaved_names: Vec<NameChange>,
    counts: BTreeMap<Call, u64>,
    planned: Vec<Planned>,
    dropped_per_mille: u32,
    sync_takes: Duration,
    random: Random,
}

#[derive(Clone, Default)]
struct Names {
    files: BTreeMap<String, u64>,
    directories: BTreeSet<String>,
}

/// One atomic change of names, saved by a flush of its directory.
#[derive(Clone)]
struct NameChange {
    directory: String,
    removed: Option<String>,
    added: Option<(String, Added)>,
}

#[derive(Clone, Copy)]
enum Added {
    File(u64),
    Directory,
}

struct Planned {
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
    /// Written since the last flush, oldest version first.
    unsaved: BTreeMap<usize, Vec<Sector>>,
    /// Of these a flush is being made.
    saving: Vec<BTreeMap<usize, Vec<Sector>>>,
    /// Written before a flush that failed: no flush will save them.
    forgotten: BTreeMap<usize, Vec<Sector>>,
    unsaved_lengths: Vec<usize>,
}

impl FaultVfs {
    /// An empty disk. The seed decides what part of a failing write is done, and which flushes are dropped.
    pub fn new(seed: u64) -> Self {
        Self::from_world(World {
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
        })
    }

    fn from_world(world: World) -> Self {
        FaultVfs { world: Arc::new(Mutex::new(world)), locked: Arc::default() }
    }

    /// Lets the `nth` (from 1) such call from now on fail, and with `is_sticky` every one after it.
    pub fn fail(&self, call: Call, nth: u64, failure: Failure, is_sticky: bool) {
        let mut world = self.world.lock();
        let at = world.count(call) + nth;
        world.planned.push(Planned { call, at, is_sticky, failure });
    }

    /// Lets so many of a thousand flushes, of files and of names, do nothing and say nothing.
    pub fn drop_syncs(&self, per_mille: u32) {
        self.world.lock().dropped_per_mille = per_mille;
    }

    /// Lets every flush of a file take so long, before it does what it does.
    pub fn slow_syncs(&self, takes: Duration) {
        self.world.lock().sync_takes = takes;
    }

    /// Nothing fails any more. What failed stays as it is.
    pub fn heal(&self) {
        let mut world = self.world.lock();
        world.planned.clear();
        world.dropped_per_mille = 0;
    }

    /// How often a call was made, failed ones included.
    pub fn count(&self, call: Call) -> u64 {
        self.world.lock().count(call)
    }

    /// The disk as a loss of power at this moment may leave it.
    pub fn crash_image(&self, seed: u64) -> FaultVfs {
        let world = self.world.lock();
        let mut random = Random::new(seed);
        let names = world.names_after_crash(&mut random);
        let keep_rates = [0, 100, 500, 900, 980, 1000];
        let keep = keep_rates[random.below(keep_rates.len() as u64) as usize];
        let mut files = BTreeMap::new();
        for &number in names.files.values() {
            if let Some(file) = world.files.get(&number) {
                let content = file.after_crash(&mut random, keep);
                files.insert(number, FileState { durable: content.clone(), content, ..FileState::default() });
            }
        }
        FaultVfs::from_world(World {
            files,
            next_file: world.next_file,
            durable_names: names.clone(),
            names,
            unsaved_names: Vec::new(),
            counts: BTreeMap::new(),
            planned: Vec::new(),
            dropped_per_mille: 0,
            sync_takes: Duration::ZERO,
            random,
        })
    }

    /// Changes a file's bytes as rot would: unseen, and durable.
    pub fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut world = self.world.lock();
        let number = *world.names.files.get(name).expect("a test damages a file that is there");
        let file = world.files.get_mut(&number).expect("a name has its file");
        change(&mut file.content);
        file.durable = file.content.clone();
        file.unsaved.clear();
        file.saving.clear();
        file.forgotten.clear();
        file.unsaved_lengths.clear();
    }

    /// A file's bytes as a reader sees them.
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        let world = self.world.lock();
        let number = world.names.files.get(name)?;
        world.files.get(number).map(|file| file.content.clone())
    }
}

impl World {
    fn count(&self, call: Call) -> u64 {
        self.counts.get(&call).copied().unwrap_or(0)
    }

    /// Counts a call and says whether it is to fail.
    fn meet(&mut self, call: Call) -> io::Result<()> {
        *self.counts.entry(call).or_insert(0) += 1;
        if call != Call::Read {
            *self.counts.entry(Call::AnyChange).or_insert(0) += 1;
        }
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
        if let Some(removed) = &change.removed {
            self.files.remove(removed);
        }
        match &change.added {
            Some((name, Added::File(number))) => {
                self.files.retain(|_, other| other != number);
                self.files.insert(name.clone(), *number);
            }
            Some((name, Added::Directory)) => {
                self.directories.insert(name.clone());
            }
            None => {}
        }
    }
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
                self.remember(sector);
            }
        }
    }

    /// Notes a sector as written, with all it holds now.
    fn remember(&mut self, sector: usize) {
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
            self.remember(last);
        }
    }

    /// A flush begins: it saves what was written until now, and not what is written while it runs.
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

    /// A flush failed: its sectors are clean now, and on the disk or not.
    fn forget(&mut self) {
        for (sector, versions) in self.saving.remove(0) {
            if !self.unsaved.contains_key(&sector) {
                self.forgotten.insert(sector, versions);
            }
        }
    }

    /// A flush did nothing and said nothing.
    fn drop_save(&mut self) {
        for (sector, mut versions) in self.saving.remove(0) {
            versions.append(self.unsaved.entry(sector).or_default());
            self.unsaved.insert(sector, versions);
        }
    }

    fn after_crash(&self, random: &mut Random, keep: u32) -> Vec<u8> {
        let mut content = self.durable.clone();
        if !self.unsaved_lengths.is_empty() {
            // None of the changes, all, or those up to some moment.
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

/// Cuts and extends as often as was asked, so that what was cut comes back as zeros.
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

/// Writes a sector into a file, as far as the file goes.
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
        match self.world.lock().names.files.get(name) {
            Some(&number) => Ok(Arc::new(FaultFile { world: Arc::clone(&self.world), number })),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn VfsFile>> {
        let mut world = self.world.lock();
        world.meet(Call::Create)?;
        if world.names.files.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let number = world.next_file;
        world.next_file += 1;
        world.files.insert(number, FileState::default());
        let added = Some((name.to_owned(), Added::File(number)));
        world.change_names(NameChange { directory: parent(name).to_owned(), removed: None, added });
        Ok(Arc::new(FaultFile { world: Arc::clone(&self.world), number }))
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        let world = self.world.lock();
        let all = world.names.files.keys().chain(&world.names.directories);
        Ok(all.filter_map(|name| child_of(directory, name)).map(str::to_owned).collect())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut world = self.world.lock();
        world.meet(Call::Rename)?;
        let number = *world.names.files.get(from).ok_or(io::ErrorKind::NotFound)?;
        let added = Some((to.to_owned(), Added::File(number)));
        world.change_names(NameChange { directory: parent(to).to_owned(), removed: Some(from.to_owned()), added });
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut world = self.world.lock();
        world.meet(Call::Remove)?;
        if !world.names.files.contains_key(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let removed = Some(name.to_owned());
        world.change_names(NameChange { directory: parent(name).to_owned(), removed, added: None });
        Ok(())
    }

    fn sync_dir(&self, directory: &str) -> io::Result<()> {
        let mut world = self.world.lock();
        world.meet(Call::SyncDir)?;
        if world.is_dropped() {
            return Ok(());
        }
        let unsaved = std::mem::take(&mut world.unsaved_names);
        for change in unsaved {
            if change.directory == directory {
                world.durable_names.apply(&change);
            } else {
                world.unsaved_names.push(change);
            }
        }
        Ok(())
    }

    fn create_dir_all(&self, directory: &str) -> io::Result<()> {
        let ends = directory.match_indices('/').map(|(end, _)| end).chain([directory.len()]);
        for end in ends {
            let name = &directory[..end];
            let mut world = self.world.lock();
            if !world.names.directories.contains(name) {
                world.meet(Call::Create)?;
                let added = Some((name.to_owned(), Added::Directory));
                world.change_names(NameChange { directory: parent(name).to_owned(), removed: None, added });
                drop(world);
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
    world: Arc<Mutex<World>>,
    number: u64,
}

impl VfsFile for FaultFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut world = self.world.lock();
        world.meet(Call::Read)?;
        let content = &world.file(self.number).content;
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
        let count = buffer.len().min(content.len() - start);
        buffer[..count].copy_from_slice(&content[start..start + count]);
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let offset = usize::try_from(offset).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut world = self.world.lock();
        match world.meet(Call::Write) {
            Ok(()) => {
                world.file(self.number).write(bytes, offset);
                Ok(())
            }
            Err(error) => {
                let done = world.random.below(bytes.len() as u64 + 1) as usize;
                world.file(self.number).write(&bytes[..done], offset);
                Err(error)
            }
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut world = self.world.lock();
        world.file(self.number).begin_save();
        let takes = world.sync_takes;
        if !takes.is_zero() {
            drop(world);
            std::thread::sleep(takes);
            world = self.world.lock();
        }
        match world.meet(Call::Sync) {
            Ok(()) if world.is_dropped() => world.file(self.number).drop_save(),
            Ok(()) => world.file(self.number).end_save(),
            Err(error) => {
                world.file(self.number).forget();
                return Err(error);
            }
        }
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut world = self.world.lock();
        world.meet(Call::SetLen)?;
        world.file(self.number).set_len(bytes);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.world.lock().file(self.number).content.len() as u64)
    }
}
