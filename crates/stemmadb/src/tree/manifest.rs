//! Manifest: the list of runs, as records that are appended to one file. The last valid record counts.
//!
//! ```text
//! header    `STEMMANI`, format version (4 bytes, little-endian)
//! records   length of the list (4 bytes), checksum (16 bytes), little-endian; list
//! list      number of the state, next file number, next run number, number of runs (varints); runs, the newest first
//! run       number, 1 if a merge wrote it, number of slices (varints); slices in order
//! slice     number and length of the file, entries, tombstones (varints); checksum of its properties (16 bytes);
//!           first key, last key, lower bound, upper bound, each with its length + 1 (varint; 0: there is no bound)
//! ```
//!
//! A checksum is XXH3-128 of the list, seeded with the offset of the record.
//!
//! If the tree is encrypted, the uppermost bit of the version is set. The list is encrypted, its authentication tag
//! takes the place of the checksum, and between them are the number of the database key (4 bytes) and a random number
//! (16 bytes): each record has a data key of its own.
//!
//! Each record has the whole list, so a damaged record among others does no harm.
//!
//! Invariants: a file is flushed before the record that names it is written, and deleted only after a record that does
//! not name it was flushed. A crash at any point therefore leaves the old list or the new one, with all of its files.
//! The first record after opening begins a new file, in which nothing is left of records that a crash cut off or that
//! were not flushed.

use std::io;
use std::sync::Arc;

use twox_hash::XxHash3_128;

use super::run_file::FileRecord;
use super::{FORMAT_VERSION, REBUILD};
use crate::cipher::{DataKey, Keyring, Place, Purpose, SALT_BYTES, keys_missing, not_encrypted};
use crate::vfs::{Vfs, VfsFile, read_whole};
use crate::{Error, Result, varint};

/// The name of the manifest within the tree's directory.
pub(super) const NAME: &str = "MANIFEST";
/// The name under which a shorter manifest is written before it replaces the old one.
pub(super) const NEW_NAME: &str = "MANIFEST.new";
const MAGIC: &[u8; 8] = b"STEMMANI";
/// The formats that are no longer read.
const OLDER_VERSIONS: std::ops::Range<u32> = 1..FORMAT_VERSION;
const HEADER_BYTES: usize = 12;
/// Set in the version of an encrypted manifest.
const ENCRYPTED: u32 = 1 << 31;
const RECORD_HEADER_BYTES: usize = 20;
/// Number of the database key and random number, after the header of an encrypted record.
const CIPHER_BYTES: usize = 4 + SALT_BYTES;
/// The kind of the places in a manifest.
const LIST: u8 = 1;
/// The bounds of the length from which a manifest is replaced by one with a single record.
const BYTES_MIN: u64 = 4 << 10;
const BYTES_MAX: u64 = 1 << 20;
const LIST_BYTES_MAX: usize = 256 << 20;

/// The list of runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RunList {
    /// Counts the commits.
    pub(super) state: u64,
    pub(super) next_file: u64,
    pub(super) next_run: u64,
    /// The newest first.
    pub(super) runs: Vec<RunRecord>,
}

/// One run of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunRecord {
    pub(super) id: u64,
    pub(super) is_merged: bool,
    pub(super) slices: Vec<SliceRecord>,
}

/// One slice of a run: a file, and the bounds within which it counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SliceRecord {
    pub(super) file: FileRecord,
    pub(super) lower: Option<Vec<u8>>,
    pub(super) upper: Option<Vec<u8>>,
}

impl RunList {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for number in [self.state, self.next_file, self.next_run, self.runs.len() as u64] {
            varint::write(number, out);
        }
        for run in &self.runs {
            for number in [run.id, u64::from(run.is_merged), run.slices.len() as u64] {
                varint::write(number, out);
            }
            for SliceRecord { file, lower, upper } in &run.slices {
                for number in [file.number, file.byte_count, file.entry_count, file.tombstone_count] {
                    varint::write(number, out);
                }
                out.extend_from_slice(&file.checksum.to_le_bytes());
                for key in [Some(&file.first_key), Some(&file.last_key), lower.as_ref(), upper.as_ref()] {
                    varint::write(key.map_or(0, |key| key.len() as u64 + 1), out);
                    out.extend_from_slice(key.map_or(&[], Vec::as_slice));
                }
            }
        }
    }

    pub(super) fn decode(mut input: &[u8]) -> Option<Self> {
        let input = &mut input;
        let [state, next_file, next_run, run_count] = take_numbers(input)?;
        let mut runs = Vec::new();
        for _ in 0..run_count {
            let [id, is_merged, slice_count] = take_numbers(input)?;
            let mut slices = Vec::new();
            for _ in 0..slice_count {
                slices.push(SliceRecord::take(input)?);
            }
            if is_merged > 1 {
                return None;
            }
            runs.push(RunRecord { id, is_merged: is_merged == 1, slices });
        }
        let list = RunList { state, next_file, next_run, runs };
        (input.is_empty() && list.is_valid()).then_some(list)
    }

    /// Whether the list is one that a tree could have: each run has slices, which are sorted and disjoint.
    fn is_valid(&self) -> bool {
        let has_slices = |run: &RunRecord| {
            let is_valid = |slice: &SliceRecord| slice.file.number < self.next_file && slice.is_valid();
            !run.slices.is_empty() && run.slices.iter().all(is_valid)
        };
        let is_sorted = |run: &RunRecord| run.slices.is_sorted_by(|left, right| left.is_before(right));
        self.runs.iter().all(|run| run.id < self.next_run && has_slices(run) && is_sorted(run))
    }
}

impl SliceRecord {
    fn start(&self) -> &[u8] {
        self.lower.as_ref().map_or(&self.file.first_key, |lower| lower.max(&self.file.first_key))
    }

    /// Whether there may be a key in it.
    fn is_valid(&self) -> bool {
        let start = self.start();
        !self.file.first_key.is_empty()
            && start <= self.file.last_key.as_slice()
            && self.upper.as_deref().is_none_or(|upper| start < upper)
    }

    fn is_before(&self, next: &SliceRecord) -> bool {
        self.file.last_key.as_slice() < next.start() || self.upper.as_deref().is_some_and(|upper| upper <= next.start())
    }

    fn take(input: &mut &[u8]) -> Option<Self> {
        let [number, byte_count, entry_count, tombstone_count] = take_numbers(input)?;
        let (checksum, rest) = input.split_first_chunk::<16>()?;
        *input = rest;
        let checksum = u128::from_le_bytes(*checksum);
        let (first_key, last_key) = (take_key(input)??, take_key(input)??);
        let (lower, upper) = (take_key(input)?, take_key(input)?);
        let file = FileRecord { number, byte_count, checksum, entry_count, tombstone_count, first_key, last_key };
        Some(SliceRecord { file, lower, upper })
    }
}

fn take_numbers<const COUNT: usize>(input: &mut &[u8]) -> Option<[u64; COUNT]> {
    let mut numbers = [0; COUNT];
    for number in &mut numbers {
        *number = varint::read(input).ok()?;
    }
    Some(numbers)
}

fn take_key(input: &mut &[u8]) -> Option<Option<Vec<u8>>> {
    let Some(length) = varint::read(input).ok()?.checked_sub(1) else { return Some(None) };
    let (key, rest) = input.split_at_checked(usize::try_from(length).ok()?)?;
    *input = rest;
    Some(Some(key.to_vec()))
}

fn checksum(offset: u64, list: &[u8]) -> u128 {
    XxHash3_128::oneshot_with_seed(offset, list)
}

/// A record of this list, for the offset in a manifest that is encrypted with database key `key`.
fn encrypted_record(keyring: &Keyring, key: u32, offset: u64, list: &[u8]) -> io::Result<Vec<u8>> {
    let made = keyring.new_salt().and_then(|salt| Ok((salt, data_key(keyring, key, &salt)?)));
    let (salt, data_key) = made.map_err(io::Error::other)?;
    let mut list = list.to_vec();
    let tag = data_key.seal(Place { kind: LIST, position: offset }, &[], &mut list);
    let mut record = (list.len() as u32).to_le_bytes().to_vec();
    record.extend_from_slice(&tag);
    record.extend_from_slice(&key.to_le_bytes());
    record.extend_from_slice(&salt);
    record.extend_from_slice(&list);
    Ok(record)
}

fn data_key(keyring: &Keyring, key: u32, salt: &[u8; SALT_BYTES]) -> Result<DataKey> {
    keyring.data_key(key, Purpose::RunList, [0, 0], salt)
}

/// A record of this list, for the offset in the manifest.
fn record(offset: u64, list: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(RECORD_HEADER_BYTES + list.len());
    record.extend_from_slice(&(list.len() as u32).to_le_bytes());
    record.extend_from_slice(&checksum(offset, list).to_le_bytes());
    record.extend_from_slice(list);
    record
}

/// The manifest of a tree. Its file is open only while a record is written.
pub(super) struct Manifest {
    vfs: Arc<dyn Vfs>,
    directory: String,
    /// Whether the next record may be appended to the file; otherwise it begins a new one.
    appends: bool,
    /// Where the next record goes.
    end: u64,
    /// A longer manifest is replaced by one with a single record.
    bytes_max: u64,
    /// Where a damaged record begins, if there is one.
    damage: Option<usize>,
    /// Whether the newest list is known to be flushed. One that was read may have been written just before a crash.
    is_durable: bool,
}

impl Manifest {
    /// The manifest of `directory` and its newest list, if there is a manifest that is not in an older format. Changes
    /// nothing.
    ///
    /// # Errors
    /// `Corrupt` if there is a manifest without a valid record, or in a newer format.
    pub(super) fn open(vfs: Arc<dyn Vfs>, directory: &str, bytes_max: u64) -> Result<(Self, Option<RunList>)> {
        let path = format!("{directory}/{NAME}");
        let directory = directory.to_owned();
        let bytes_max = bytes_max.clamp(BYTES_MIN, BYTES_MAX);
        let mut manifest =
            Manifest { vfs, directory, appends: false, end: 0, bytes_max, damage: None, is_durable: false };
        let file = match manifest.vfs.open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((manifest, None)),
            Err(error) => return Err(Error::io(format_args!("open {path}"), error)),
        };
        let bytes = read_whole(&*file).map_err(|error| Error::io(format_args!("read {path}"), error))?;
        // The tree is derived: one in an older format is computed again.
        if format_version(&bytes).is_some_and(|version| OLDER_VERSIONS.contains(&version)) {
            return Ok((manifest, None));
        }
        let keyring = manifest.vfs.keyring();
        match (keyring, is_encrypted(&bytes)) {
            (None, true) => return Err(keys_missing(path)),
            (Some(keyring), false) if !keyring.accepts_plain() => return Err(not_encrypted(path).with_hint(REBUILD)),
            _ => {}
        }
        let Some(newest) = newest_list(&bytes, keyring.map(|keyring| &**keyring)) else {
            return Err(Error::corrupt(format!("{path} is damaged: it has no valid list of runs")).with_hint(REBUILD));
        };
        manifest.end = newest.end as u64;
        manifest.damage = newest.damage;
        manifest.appends = true;
        Ok((manifest, Some(newest.list)))
    }

    /// Describes a damaged record that was skipped when the manifest was opened. The newest list is not affected.
    pub(super) fn problem(&self) -> Option<String> {
        self.damage.map(|offset| format!("{}/{NAME} is damaged: the record at {offset}", self.directory))
    }

    /// Makes `list` the newest one, durably.
    ///
    /// # Errors
    /// `Io`. Either list may be the newest after a crash then; the next call settles it.
    pub(super) fn install(&mut self, list: &RunList) -> Result<()> {
        let mut payload = Vec::new();
        list.encode(&mut payload);
        // After an error, the next record goes to a new file: what the old one holds is uncertain. So does the first
        // record after opening: a flush that failed before is not made up for by a later one of the same file.
        let appends = std::mem::take(&mut self.appends) && self.is_durable && self.end < self.bytes_max;
        let path = format!("{}/{NAME}", self.directory);
        let installed = if appends {
            self.vfs.open(&path).and_then(|file| self.append(&*file, &payload))
        } else {
            self.replace(&payload)
        };
        self.is_durable = installed.is_ok();
        installed.map_err(|error| Error::io(format_args!("write {path}"), error))?;
        self.appends = true;
        Ok(())
    }

    /// Makes `list` the newest one in a new file, without the older ones.
    ///
    /// # Errors
    /// Those of [`Manifest::install`].
    pub(super) fn install_anew(&mut self, list: &RunList) -> Result<()> {
        self.appends = false;
        self.install(list)
    }

    /// Makes sure that `list`, the newest one, is durable, before something is deleted that only older lists need. A
    /// process that was killed, or whose flush failed, may have left a list that a power loss would still undo.
    ///
    /// # Errors
    /// Those of [`Manifest::install`].
    pub(super) fn settle(&mut self, list: &RunList) -> Result<()> {
        if self.is_durable {
            return Ok(());
        }
        self.install(list)
    }

    /// Whether no list was ever written.
    pub(super) fn is_absent(&self) -> bool {
        self.end == 0
    }

    /// Whether the next list begins a new file, under another name at first.
    pub(super) fn is_new_file_pending(&self) -> bool {
        !self.appends
    }

    fn append(&mut self, file: &dyn VfsFile, payload: &[u8]) -> io::Result<()> {
        let key = self.vfs.keyring().and_then(|keyring| Some((keyring, keyring.active()?)));
        let record = match key {
            Some((keyring, key)) => encrypted_record(keyring, key, self.end, payload)?,
            None => record(self.end, payload),
        };
        file.write_at(&record, self.end)?;
        file.sync_data()?;
        self.end += record.len() as u64;
        Ok(())
    }

    fn replace(&mut self, payload: &[u8]) -> io::Result<()> {
        #[cfg(test)]
        let _mark = super::trace::mark(super::trace::TreeChange::ManifestRewrite);
        let (path, new_path) = (format!("{}/{NAME}", self.directory), format!("{}/{NEW_NAME}", self.directory));
        match self.vfs.remove(&new_path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = self.vfs.create(&new_path)?;
        let mut header = MAGIC.to_vec();
        let is_encrypted = self.vfs.keyring().is_some_and(|keyring| keyring.active().is_some());
        let version = if is_encrypted { FORMAT_VERSION | ENCRYPTED } else { FORMAT_VERSION };
        header.extend_from_slice(&version.to_le_bytes());
        file.write_at(&header, 0)?;
        self.end = HEADER_BYTES as u64;
        self.damage = None;
        self.append(&*file, payload)?;
        self.vfs.rename(&new_path, &path)?;
        self.vfs.sync_dir(&self.directory)
    }
}

/// The newest list of a manifest.
pub(super) struct NewestList {
    pub(super) list: RunList,
    /// Where its record ends.
    pub(super) end: usize,
    /// Where a damaged record begins before it, if there is one. A crash damages only the last record.
    pub(super) damage: Option<usize>,
}

/// The format version in the header of a manifest; none if it has none.
fn format_version(bytes: &[u8]) -> Option<u32> {
    Some(stored_version(bytes)? & !ENCRYPTED)
}

fn stored_version(bytes: &[u8]) -> Option<u32> {
    let version = bytes.strip_prefix(MAGIC)?.first_chunk()?;
    Some(u32::from_le_bytes(*version))
}

fn is_encrypted(bytes: &[u8]) -> bool {
    stored_version(bytes).is_some_and(|version| version & ENCRYPTED != 0)
}

/// The last valid list of a manifest; none if there is no valid one. Damaged records are skipped: each record has the
/// whole list.
pub(super) fn newest_list(bytes: &[u8], keyring: Option<&Keyring>) -> Option<NewestList> {
    if format_version(bytes)? != FORMAT_VERSION {
        return None;
    }
    let keyring = keyring.filter(|_| is_encrypted(bytes));
    let (mut newest, mut damage): (Option<NewestList>, _) = (None, None);
    let mut offset = HEADER_BYTES;
    while offset < bytes.len() {
        match list_at(bytes, offset, keyring) {
            Some((list, end)) => {
                newest = Some(NewestList { list, end, damage });
                offset = end;
            }
            // The length may be damaged too, so the next record may begin anywhere.
            None => {
                damage.get_or_insert(offset);
                offset += 1;
            }
        }
    }
    newest
}

fn list_at(bytes: &[u8], offset: usize, keyring: Option<&Keyring>) -> Option<(RunList, usize)> {
    let (header, rest) = bytes.get(offset..)?.split_at_checked(RECORD_HEADER_BYTES)?;
    let length = u32::from_le_bytes(header[..4].try_into().ok()?) as usize;
    if let Some(keyring) = keyring {
        let (cipher, rest) = rest.split_at_checked(CIPHER_BYTES)?;
        let mut list = rest.get(..length).filter(|_| length <= LIST_BYTES_MAX)?.to_vec();
        let key = u32::from_le_bytes(*cipher.first_chunk()?);
        let key = data_key(keyring, key, cipher[4..].first_chunk()?).ok()?;
        let place = Place { kind: LIST, position: offset as u64 };
        let is_valid = key.open(place, &[], header[4..].first_chunk()?, &mut list);
        return is_valid
            .then(|| Some((RunList::decode(&list)?, offset + RECORD_HEADER_BYTES + CIPHER_BYTES + length)))?;
    }
    let payload = rest.get(..length).filter(|_| length <= LIST_BYTES_MAX)?;
    if header[4..] != checksum(offset as u64, payload).to_le_bytes() {
        return None;
    }
    Some((RunList::decode(payload)?, offset + RECORD_HEADER_BYTES + length))
}

/// A manifest of these lists, whatever bytes they are.
#[cfg(any(test, fuzzing))]
pub(super) fn sealed(lists: &[&[u8]]) -> Vec<u8> {
    let mut bytes = [&MAGIC[..], &FORMAT_VERSION.to_le_bytes()].concat();
    for list in lists {
        let record = record(bytes.len() as u64, list);
        bytes.extend_from_slice(&record);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::vfs::{Call, Failure, FaultVfs, MemoryVfs};

    fn list(state: u64) -> RunList {
        let file = FileRecord {
            number: state,
            byte_count: 1 << 20,
            checksum: u128::MAX / 3,
            entry_count: 7,
            tombstone_count: 1,
            first_key: b"a".to_vec(),
            last_key: b"z".to_vec(),
        };
        let slice = SliceRecord { file, lower: Some(Vec::new()), upper: None };
        let run = RunRecord { id: state, is_merged: true, slices: vec![slice] };
        RunList { state, next_file: state + 1, next_run: state + 1, runs: vec![run] }
    }

    fn memory() -> Arc<dyn Vfs> {
        let vfs = MemoryVfs::new();
        vfs.create_dir_all("tree").unwrap();
        Arc::new(vfs)
    }

    #[test]
    fn newest_list_is_read_and_a_long_manifest_is_replaced() {
        let vfs = memory();
        let (mut manifest, none) = Manifest::open(vfs.clone(), "tree", BYTES_MAX).unwrap();
        assert_eq!(none, None);
        let mut longest = 0;
        for state in 1..40_000 {
            manifest.install(&list(state)).unwrap();
            longest = longest.max(manifest.end);
            if state % 1_000 == 0 {
                let (reopened, newest) = Manifest::open(vfs.clone(), "tree", BYTES_MAX).unwrap();
                assert_eq!((newest, reopened.end), (Some(list(state)), manifest.end));
            }
        }
        assert!((BYTES_MAX..BYTES_MAX + 1_000).contains(&longest), "{longest}");
    }

    #[test]
    fn record_that_was_cut_off_is_ignored_and_replaced() {
        let vfs = memory();
        let (mut manifest, _) = Manifest::open(vfs.clone(), "tree", BYTES_MAX).unwrap();
        manifest.install(&list(1)).unwrap();
        let end = manifest.end;
        manifest.install(&list(2)).unwrap();
        vfs.open("tree/MANIFEST").unwrap().set_len(manifest.end - 1).unwrap();
        let (mut manifest, newest) = Manifest::open(vfs.clone(), "tree", BYTES_MAX).unwrap();
        assert_eq!((newest, manifest.end), (Some(list(1)), end));
        manifest.install(&list(3)).unwrap();
        assert_eq!(Manifest::open(vfs, "tree", BYTES_MAX).unwrap().1, Some(list(3)));
    }

    /// A flush fails, and the process ends. A later flush of the same file does not save what that one should have
    /// saved, so the next list must not be written behind it.
    #[test]
    fn record_whose_flush_failed_is_not_left_before_others() {
        // Of several sectors.
        let long_list = |state| {
            let mut list = list(state);
            list.runs[0].slices[0].file.last_key = vec![b'z'; 2_000];
            list
        };
        for seed in 0..40 {
            let disk = FaultVfs::new(seed);
            let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
            vfs.create_dir_all("tree").unwrap();
            let (mut manifest, _) = Manifest::open(vfs.clone(), "tree", BYTES_MAX).unwrap();
            manifest.install(&long_list(1)).unwrap();
            disk.fail(Call::Sync, 1, Failure::Broken, false);
            manifest.install(&long_list(2)).unwrap_err();
            let (mut manifest, newest) = Manifest::open(vfs, "tree", BYTES_MAX).unwrap();
            assert_eq!(newest, Some(long_list(2)));
            manifest.install(&long_list(3)).unwrap();
            let (manifest, newest) = Manifest::open(Arc::new(disk.crash_image(seed)), "tree", BYTES_MAX).unwrap();
            assert_eq!((newest, manifest.problem()), (Some(long_list(3)), None), "seed {seed}");
        }
    }

    #[test]
    fn damaged_record_before_the_last_one_is_skipped_and_reported() {
        for byte in 0..4 * RECORD_HEADER_BYTES as u64 {
            let vfs = memory();
            let (mut manifest, _) = Manifest::open(vfs.clone(), "tree", BYTES_MAX).unwrap();
            (1..4).for_each(|state| manifest.install(&list(state)).unwrap());
            let file = vfs.open("tree/MANIFEST").unwrap();
            let end = manifest.end;
            let mut flipped = [0];
            file.read_at(&mut flipped, HEADER_BYTES as u64 + byte).unwrap();
            file.write_at(&[flipped[0] ^ 4], HEADER_BYTES as u64 + byte).unwrap();
            let (manifest, newest) = Manifest::open(vfs, "tree", BYTES_MAX).unwrap();
            assert_eq!((newest, manifest.end), (Some(list(3)), end), "byte {byte}");
            assert!(manifest.problem().is_some());
        }
    }

    #[test]
    fn manifest_without_a_valid_record_is_corrupt() {
        let vfs = memory();
        vfs.create("tree/MANIFEST").unwrap().write_at(b"STEMMANI", 0).unwrap();
        let error = Manifest::open(vfs, "tree", BYTES_MAX).err().unwrap();
        assert_eq!(error.kind(), crate::ErrorKind::Corrupt);
    }

    #[test]
    fn manifest_in_an_older_format_counts_as_none_and_a_newer_one_is_refused() {
        let vfs = memory();
        let (mut manifest, _) = Manifest::open(vfs.clone(), "tree", BYTES_MAX).unwrap();
        manifest.install(&list(7)).unwrap();
        let file = vfs.open("tree/MANIFEST").unwrap();
        let open_as = |version: u32| {
            file.write_at(&version.to_le_bytes(), MAGIC.len() as u64).unwrap();
            Manifest::open(vfs.clone(), "tree", BYTES_MAX)
        };
        assert_eq!(open_as(FORMAT_VERSION + 1).err().unwrap().kind(), crate::ErrorKind::Corrupt);
        let (mut manifest, older) = open_as(1).unwrap();
        assert!(older.is_none() && manifest.is_absent());
        manifest.install(&list(1)).unwrap();
        assert_eq!(Manifest::open(vfs, "tree", BYTES_MAX).unwrap().1, Some(list(1)));
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), keep in 0..13_usize) {
            let mut manifest = [&MAGIC[..], &FORMAT_VERSION.to_le_bytes()].concat();
            manifest.truncate(keep);
            manifest.extend_from_slice(&bytes);
            newest_list(&manifest, None);
            RunList::decode(&bytes);
        }
    }
}
