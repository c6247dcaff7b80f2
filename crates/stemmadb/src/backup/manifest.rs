//! Manifest of a backup: a JSON object that lists its files.
//!
//! Its last member is a BLAKE3 hash of the object without that hash, so that damage is found. Later versions may add
//! members only together with a new format number, which this version refuses.

use std::collections::HashSet;
use std::io::Read;

use serde::{Deserialize, Serialize};

use super::target::Target;
use crate::engine::directory::TREE;
use crate::log::{DatabaseId, LogPosition};
use crate::revision::Sequence;
use crate::{Error, ErrorKind, Result, tree};

/// The directory of the files of backups within a target.
pub(super) const FILES: &str = "files";

const PREFIX: &str = "manifest-";
const FORMAT: u32 = 1;
/// That of backups of encrypted databases.
const ENCRYPTED_FORMAT: u32 = 2;
/// That of backups with a tree, encrypted or not.
const TREE_FORMAT: u32 = 3;

/// A longer manifest is damaged.
const BYTES_MAX: u64 = 1 << 30;

/// What one backup consists of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) format: u32,
    pub(super) backup: u64,
    /// The id of the log.
    pub(super) database: String,
    /// The identity of the database, which differs from the log's id in a copy.
    pub(super) identity: String,
    pub(super) log_format: u32,
    /// Marks the backups of one run of a program.
    pub(super) writer: String,
    /// Milliseconds since 1970.
    pub(super) created_ms: i64,
    /// The first backup of those that continue one another up to this one: each was made of the same log, later.
    pub(super) chain: u64,
    pub(super) last_sequence: u64,
    /// The commit time of the last transaction, in microseconds since 1970; 0 if it was not recorded.
    pub(super) last_time_us: u64,
    /// Ascending.
    pub(super) segments: Vec<SegmentEntry>,
    pub(super) history: Vec<HistoryEntry>,
    pub(super) contents: Vec<ContentEntry>,
    /// The keys of an encrypted database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) keys: Option<KeysEntry>,
    /// The files of the tree; its manifest is the last one. Empty if the tree is not part of the backup.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) tree: Vec<TreeEntry>,
    pub(super) checksum: String,
}

/// The key file of an encrypted database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeysEntry {
    /// The number of the database key that was written with; 0 if none was.
    pub(super) active: u32,
    pub(super) file: FileEntry,
}

/// A segment of the log, or its beginning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SegmentEntry {
    pub(super) number: u32,
    pub(super) length: u64,
    pub(super) is_sealed: bool,
    /// The sequence of its first frame, if there is one.
    pub(super) first_sequence: Option<u64>,
    /// The commit time of its first frame, in microseconds since 1970.
    pub(super) first_time_us: Option<u64>,
    /// A hash of the beginning and the end of a sealed segment.
    pub(super) fingerprint: Option<String>,
    /// Its bytes in order.
    pub(super) parts: Vec<FileEntry>,
}

/// What is kept of the past of a retired segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HistoryEntry {
    pub(super) segment: u32,
    /// The sequence that the database had reached when the file was written, and the time.
    pub(super) until: u64,
    pub(super) until_time_us: u64,
    /// A hash of the beginning and the end.
    pub(super) fingerprint: String,
    pub(super) file: FileEntry,
}

/// The content of an attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ContentEntry {
    /// SHA-256 in hexadecimal digits; of an encrypted database the name of the file, which has the same form.
    pub(super) digest: String,
    pub(super) file: FileEntry,
}

/// A file of the tree, which is the state that the log of the backup completes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TreeEntry {
    /// Its name in the directory of the tree.
    pub(super) name: String,
    pub(super) file: FileEntry,
}

impl TreeEntry {
    /// The entry of a file that has this name in the database.
    pub(super) fn new(path: &str, file: FileEntry) -> Self {
        TreeEntry { name: path.rsplit_once('/').map_or(path, |(_, name)| name).to_owned(), file }
    }

    /// Its name in the database.
    pub(super) fn path(&self) -> String {
        format!("{TREE}/{}", self.name)
    }
}

/// A file of the target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileEntry {
    pub(super) name: String,
    pub(super) length: u64,
    /// BLAKE3 of its bytes; none of a file that was linked, and thus not read. Encrypted files always have one: nothing
    /// else verifies them without the key.
    pub(super) hash: Option<String>,
}

impl Manifest {
    /// A manifest without files.
    pub(super) fn new(backup: u64, database: String, identity: String, writer: &str) -> Self {
        Manifest {
            format: FORMAT,
            backup,
            database,
            identity,
            log_format: crate::log::FORMAT_VERSION,
            writer: writer.to_owned(),
            created_ms: 0,
            chain: backup,
            last_sequence: 0,
            last_time_us: 0,
            segments: Vec::new(),
            history: Vec::new(),
            contents: Vec::new(),
            keys: None,
            tree: Vec::new(),
            checksum: String::new(),
        }
    }

    /// Adds the keys of an encrypted database.
    pub(super) fn set_keys(&mut self, keys: KeysEntry) {
        (self.format, self.log_format) = (ENCRYPTED_FORMAT, crate::log::ENCRYPTED_FORMAT_VERSION);
        self.keys = Some(keys);
    }

    /// Adds the files of the tree.
    pub(super) fn set_tree(&mut self, tree: Vec<TreeEntry>) {
        if !tree.is_empty() {
            (self.format, self.tree) = (TREE_FORMAT, tree);
        }
    }

    pub(super) fn encode(&mut self) -> Result<Vec<u8>> {
        self.checksum = self.hash()?;
        self.to_json()
    }

    fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|error| Error::internal(format!("a manifest is not JSON: {error}")))
    }

    /// The hash of the object without a hash.
    fn hash(&self) -> Result<String> {
        let unsigned = Manifest { checksum: String::new(), ..self.clone() };
        Ok(blake3::hash(&unsigned.to_json()?).to_hex().to_string())
    }

    fn decode(number: u64, bytes: &[u8]) -> Result<Self> {
        let damaged = |what: &str| Error::corrupt(format!("{} is damaged: {what}", name_of(number)));
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let Format { format } = serde_json::from_slice(bytes).map_err(|_| damaged("it is not a manifest"))?;
        if !(FORMAT..=TREE_FORMAT).contains(&format) {
            return Err(Error::unavailable(format!(
                "{} has format {format}; this version reads {FORMAT} to {TREE_FORMAT}",
                name_of(number)
            ))
            .with_hint("use a newer version of stemma"));
        }
        let manifest: Manifest = serde_json::from_slice(bytes).map_err(|error| damaged(&error.to_string()))?;
        if manifest.hash()? != manifest.checksum || manifest.backup != number {
            return Err(damaged("its checksum is wrong"));
        }
        if let Some(stranger) = manifest.tree.iter().find(|entry| !tree::is_file_name(&entry.name)) {
            return Err(damaged(&format!("`{}` is not a file of a tree", stranger.name)));
        }
        Ok(manifest)
    }

    pub(super) fn read(target: &dyn Target, number: u64) -> Result<Self> {
        let mut bytes = Vec::new();
        let read = target.get(&name_of(number))?.take(BYTES_MAX).read_to_end(&mut bytes);
        read.map_err(|error| Error::io(format_args!("read {}", name_of(number)), error))?;
        Manifest::decode(number, &bytes)
    }

    pub(super) fn segment(&self, number: u32) -> Option<&SegmentEntry> {
        self.segments.iter().find(|segment| segment.number == number)
    }

    pub(super) fn sequence(&self) -> Sequence {
        Sequence::new(self.last_sequence)
    }

    /// The id of the log as bytes.
    pub(super) fn database_id(&self) -> Result<DatabaseId> {
        let id = uuid::Uuid::try_parse(&self.database);
        id.map(uuid::Uuid::into_bytes)
            .map_err(|_| Error::corrupt(format!("`{}` is not the id of a log", self.database)))
    }

    /// The end of the log.
    pub(super) fn end(&self) -> LogPosition {
        self.segments.last().map_or(LogPosition::START, |last| LogPosition::new(last.number, last.length as u32))
    }

    /// All files, some of them several times.
    pub(super) fn files(&self) -> impl Iterator<Item = &FileEntry> {
        let parts = self.segments.iter().flat_map(|segment| &segment.parts);
        let history = self.history.iter().map(|history| &history.file);
        let contents = self.contents.iter().map(|content| &content.file);
        let keys = self.keys.iter().map(|keys| &keys.file);
        let tree = self.tree.iter().map(|entry| &entry.file);
        parts.chain(history).chain(contents).chain(keys).chain(tree)
    }

    pub(super) fn byte_count(&self) -> u64 {
        self.files().map(|file| file.length).sum()
    }

    /// Drops what the target does not have completely; returns how many of its files are missing.
    pub(super) fn drop_entries_without_files(&mut self, present: &HashSet<&str>) -> u64 {
        let is_present = |file: &FileEntry| present.contains(&*file.name);
        let lost_count = self.files().filter(|file| !is_present(file)).count() as u64;
        self.segments.retain(|segment| segment.parts.iter().all(is_present));
        self.history.retain(|history| is_present(&history.file));
        self.contents.retain(|content| is_present(&content.file));
        if !self.tree.iter().all(|entry| is_present(&entry.file)) {
            self.tree.clear();
        }
        lost_count
    }

    /// Whether all files of an older backup are files of this one.
    pub(super) fn has_all_files_of(&self, older: &Manifest) -> bool {
        let names: HashSet<&str> = self.files().map(|file| &*file.name).collect();
        older.files().all(|file| names.contains(&*file.name))
    }

    /// Whether `newer`, which continues this one, has everything that a restore to any earlier position could need.
    pub(super) fn is_superseded_by(&self, newer: &Manifest) -> bool {
        let contents: HashSet<&str> = newer.contents.iter().map(|content| &*content.digest).collect();
        self.chain == newer.chain
            && self.identity == newer.identity
            && self.segments.iter().all(|segment| newer.segment(segment.number).is_some())
            && self.contents.iter().all(|content| contents.contains(&*content.digest))
    }
}

/// The name of a manifest.
pub(super) fn name_of(number: u64) -> String {
    format!("{PREFIX}{number:010}.json")
}

/// The numbers of all manifests, ascending.
pub(super) fn numbers(target: &dyn Target) -> Result<Vec<u64>> {
    let number_of = |name: String| -> Option<u64> {
        let number = name.strip_prefix(PREFIX)?.strip_suffix(".json")?.parse().ok()?;
        (name_of(number) == name).then_some(number)
    };
    let mut numbers: Vec<u64> = target.list(PREFIX)?.into_iter().filter_map(number_of).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// The newest manifest that is not damaged, if there is one.
pub(super) fn newest(target: &dyn Target, numbers: &[u64]) -> Result<Option<Manifest>> {
    for &number in numbers.iter().rev() {
        match Manifest::read(target, number) {
            Err(error) if error.kind() == ErrorKind::Corrupt => {}
            read => return read.map(Some),
        }
    }
    Ok(None)
}

/// A backup in a target.
///
/// Returned by [`list`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupInfo {
    /// Its number, for [`At::Backup`](super::At::Backup).
    pub number: u64,
    /// The newest sequence that it contains.
    pub sequence: Sequence,
    /// When the newest transaction was committed, in microseconds since 1970; 0 if that was not recorded.
    pub time_us: u64,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: i64,
    /// Bytes of all its files, including those that it shares with other backups.
    pub byte_count: u64,
    /// The number of its files.
    pub file_count: u64,
}

/// Lists the backups in a target, the oldest first. Reads their manifests; damaged ones are left out.
///
/// # Errors
/// `Unavailable` if the target can't be read.
pub fn list(target: &dyn Target) -> Result<Vec<BackupInfo>> {
    let mut backups = Vec::new();
    for number in numbers(target)? {
        match Manifest::read(target, number) {
            Ok(manifest) => backups.push(BackupInfo {
                number,
                sequence: manifest.sequence(),
                time_us: manifest.last_time_us,
                created_ms: manifest.created_ms,
                byte_count: manifest.byte_count(),
                file_count: manifest.files().count() as u64,
            }),
            // Damaged, or deleted by the retention of a running backup.
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(backups)
}
