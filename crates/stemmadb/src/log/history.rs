//! History files: the records of retired segments that only the past needs.
//!
//! `history/NNNNNNNNNN.history` has records of segment N that no leaf needed when the segment was retired. They keep
//! their positions, so whatever refers to one finds it, in the segment or here. Integers are big-endian, numbers are
//! varints unless a length is given:
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `stemmhis` |
//! | 4 | version, 1; 2 if it is encrypted |
//! | 4 | segment number |
//! | 16 | database id |
//! | 8 | sequence that the database had reached: each record had been replaced by then |
//! | 8 | commit time then, in microseconds since 1970 |
//! | 8 | the lowest sequence as of which the database could be read then |
//! | 4 | number of the database key; 0 in version 1 |
//! | 4 | CRC32C of the 60 bytes above |
//! | 16, 16 | in version 2: random number from which the data key is derived; tag of the 64 bytes above |
//! | | blocks of records, each compressed with zstd |
//! | | index, see docs/format.md |
//! | 4 | length of the index |
//! | 4 | CRC32C of the index |
//! | 8 | `stemmhis` |
//!
//! In version 2, each block and the index are encrypted and followed by their tag, which counts as a part of them.
//!
//! A record in a block: distance of its offset and of its commit time from those of the record before, length, bytes.
//!
//! Invariants: a file is flushed before it gets its name, and never changes. A segment is retired only after its file
//! has its name. A file whose segment still exists is the rest of an interrupted retirement, and is replaced.

mod damaged;
mod file_cipher;
mod followed;

use std::collections::BTreeMap;
use std::sync::Arc;

use self::file_cipher::{FileCipher, open_cipher};
use super::LogPosition;
use super::segment::{DatabaseId, damaged, parse_numbered};
use crate::cipher::{DataKey, Place, SALT_BYTES, TAG_BYTES};
use crate::revision::Sequence;
use crate::sync::{Mutex, RwLock};
use crate::vfs::{Vfs, VfsFile, create_anew, read_exact_at};
use crate::{Error, Result, varint};

pub(crate) use damaged::surviving_history;

const DIRECTORY: &str = "history";
const SUFFIX: &str = ".history";
const UNFINISHED: &str = "history/unfinished";
const MAGIC: &[u8; 8] = b"stemmhis";
const VERSION: u32 = 1;
const ENCRYPTED_VERSION: u32 = 2;
const HEADER_BYTES: usize = 64;
/// Random number and tag, after the header of an encrypted file.
const CIPHER_BYTES: usize = SALT_BYTES + TAG_BYTES;
/// Kinds of places in a history file.
const HEADER: u8 = 1;
const BLOCK: u8 = 2;
const INDEX: u8 = 3;
const FOOTER_BYTES: usize = 16;

/// Records are compressed together up to this size, in bytes.
const BLOCK_BYTES: usize = if cfg!(test) { 2048 } else { 128 * 1024 };

/// A block has at most this size, in bytes: a record can have 1 GiB.
const BLOCK_BYTES_MAX: usize = (1 << 30) + BLOCK_BYTES;

/// Fast, and its speed of decompression is that of higher levels.
const ZSTD_LEVEL: i32 = 3;

/// Times of transactions are kept with this precision, in microseconds.
const TIME_STEP_US: u64 = 1000;

/// Decompressed blocks that are kept.
const CACHED_BLOCKS_MAX: usize = 8;

/// What is known of a history file without reading its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HistoryInfo {
    pub(crate) segment: u32,
    /// Bytes on disk.
    pub(crate) bytes: u64,
    /// All of its records had been replaced when the database reached this sequence, at this time.
    pub(crate) until: Moment,
    /// The lowest sequence as of which the database could be read when the file was written.
    pub(crate) floor: Sequence,
    /// The number of the database key that it is encrypted with; 0 if it is not encrypted.
    pub(crate) key: u32,
}

/// A file of an export.
pub(crate) struct ExportedHistory {
    pub(crate) info: HistoryInfo,
    pub(crate) name: String,
    pub(crate) file: Arc<dyn VfsFile>,
}

/// Reads a history file and verifies all checksums in it.
///
/// # Errors
/// `Corrupt` if one is wrong.
pub(crate) fn verify_history(vfs: &dyn Vfs, segment: u32, database_id: &DatabaseId) -> Result<()> {
    let file = HistoryFile::open(vfs, segment, database_id)?;
    let index = file.index(vfs)?;
    index.blocks.iter().try_for_each(|block| file.read_block(vfs, block).map(|_| ()))
}

/// A sequence with its commit time, in microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) sequence: Sequence,
    pub(crate) time_us: u64,
}

/// The history files of one database.
pub(crate) struct History {
    vfs: Arc<dyn Vfs>,
    database_id: DatabaseId,
    files: RwLock<BTreeMap<u32, Arc<HistoryFile>>>,
    /// The blocks that were read last, the newest last.
    blocks: Mutex<Vec<CachedBlock>>,
}

struct CachedBlock {
    segment: u32,
    start: u64,
    content: Arc<Vec<u8>>,
}

struct HistoryFile {
    info: HistoryInfo,
    name: String,
    cipher: Option<DataKey>,
    /// Read when it is first needed.
    index: Mutex<Option<Arc<FileIndex>>>,
}

#[derive(Debug, Default)]
struct FileIndex {
    blocks: Vec<Block>,
    times: Vec<Moment>,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    /// Offset in the segment of its first record.
    first_offset: u32,
    /// Where it is in the file.
    start: u64,
    compressed_bytes: usize,
    bytes: usize,
    checksum: u32,
}

/// A record of a history file.
struct StoredRecord<'b> {
    offset: u32,
    time_us: u64,
    bytes: &'b [u8],
}

/// The records of a decompressed block, in order.
struct BlockRecords<'b> {
    rest: &'b [u8],
    offset: u32,
    time_us: u64,
}

impl<'b> BlockRecords<'b> {
    fn new(content: &'b [u8], block: &Block) -> Self {
        BlockRecords { rest: content, offset: block.first_offset, time_us: 0 }
    }

    fn next(&mut self) -> Result<Option<StoredRecord<'b>>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let no_meaning = || Error::corrupt("a block of records has no meaning");
        let distance = u32::try_from(varint::read(&mut self.rest)?).map_err(|_| no_meaning())?;
        self.offset = self.offset.checked_add(distance).ok_or_else(no_meaning)?;
        self.time_us = self.time_us.checked_add(varint::read(&mut self.rest)?).ok_or_else(no_meaning)?;
        let length = usize::try_from(varint::read(&mut self.rest)?).map_err(|_| no_meaning())?;
        let (bytes, after) = self.rest.split_at_checked(length).ok_or_else(no_meaning)?;
        self.rest = after;
        Ok(Some(StoredRecord { offset: self.offset, time_us: self.time_us, bytes }))
    }
}

impl History {
    /// Finds the history files of a database.
    ///
    /// # Errors
    /// `Corrupt` if the header of one is damaged or it belongs to another database.
    pub(super) fn open(vfs: &Arc<dyn Vfs>, database_id: DatabaseId) -> Result<Self> {
        let names = match vfs.list(DIRECTORY) {
            Ok(names) => names,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(Error::io(format_args!("list {DIRECTORY}"), error)),
        };
        let mut files = BTreeMap::new();
        for number in names.iter().filter_map(|name| parse_numbered(name, SUFFIX)) {
            files.insert(number, Arc::new(HistoryFile::open(&**vfs, number, &database_id)?));
        }
        Ok(History { vfs: Arc::clone(vfs), database_id, files: RwLock::new(files), blocks: Mutex::default() })
    }

    /// Begins the file of a segment.
    pub(crate) fn writer(&self, segment: u32) -> Result<HistoryWriter<'_>> {
        let made = self.vfs.create_dir_all(DIRECTORY).and_then(|()| create_anew(&*self.vfs, UNFINISHED));
        let file = made.map_err(|error| Error::io(format_args!("create {UNFINISHED}"), error))?;
        let cipher = FileCipher::for_new_file(&*self.vfs, segment)?;
        Ok(HistoryWriter {
            history: self,
            segment,
            file,
            end: first_block(cipher.is_some()),
            cipher,
            index: FileIndex::default(),
            block: Vec::new(),
            block_first: 0,
            last: (0, 0),
        })
    }

    /// What is known of each file, in the order of their segments.
    pub(crate) fn files(&self) -> Vec<HistoryInfo> {
        self.files.read().values().map(|file| file.info).collect()
    }

    /// All files, opened, so that none is lost if it is removed.
    ///
    /// # Errors
    /// `Unavailable` if one can't be opened.
    pub(crate) fn export(&self) -> Result<Vec<ExportedHistory>> {
        let files = self.files.read();
        let export = |file: &Arc<HistoryFile>| {
            let name = file.name.clone();
            let opened = self.vfs.open(&name).map_err(|error| Error::io(format_args!("open {name}"), error))?;
            Ok(ExportedHistory { info: file.info, name, file: opened })
        };
        files.values().map(export).collect()
    }

    /// Whether the records of a segment are kept here.
    pub(crate) fn contains(&self, segment: u32) -> bool {
        self.files.read().contains_key(&segment)
    }

    /// Removes the file of a segment.
    pub(crate) fn remove(&self, segment: u32) -> Result<()> {
        let Some(file) = self.files.write().remove(&segment) else { return Ok(()) };
        self.blocks.lock().retain(|block| block.segment != segment);
        let name = &file.name;
        self.vfs.remove(name).map_err(|error| Error::io(format_args!("remove {name}"), error))?;
        self.vfs.sync_dir(DIRECTORY).map_err(|error| Error::io(format_args!("flush directory {DIRECTORY}"), error))
    }

    /// Replaces `out` with the record at `position`, if the file of its segment has it.
    ///
    /// # Errors
    /// `Corrupt` if the file is damaged, or has another record there.
    pub(super) fn read(&self, position: LogPosition, bytes: usize, out: &mut Vec<u8>) -> Result<bool> {
        let found = self.find(position, |record| {
            (record.bytes.len() == bytes).then(|| {
                out.clear();
                out.extend_from_slice(record.bytes);
            })
        })?;
        match found {
            Some(None) => Err(Error::corrupt(format!("history has no record of {bytes} bytes at {position}"))),
            found => Ok(found.is_some()),
        }
    }

    /// The commit time of the record at `position`, if the file of its segment has it.
    pub(super) fn time_at(&self, position: LogPosition) -> Result<Option<u64>> {
        self.find(position, |record| record.time_us)
    }

    /// The first sequence of the first transaction after `time_us` in these files, up to their precision.
    pub(super) fn first_sequence_after(&self, time_us: u64) -> Result<Option<Sequence>> {
        let indexes = self.indexes()?;
        let firsts = indexes.iter().filter_map(|index| {
            let at = index.times.partition_point(|moment| moment.time_us <= time_us);
            index.times.get(at).map(|moment| moment.sequence)
        });
        Ok(firsts.min())
    }

    /// The last transaction in these files that begins at or before `sequence`, up to their precision.
    pub(super) fn last_up_to(&self, sequence: Sequence) -> Result<Option<Moment>> {
        let indexes = self.indexes()?;
        let lasts = indexes.iter().filter_map(|index| {
            let after = index.times.partition_point(|moment| moment.sequence <= sequence);
            after.checked_sub(1).map(|at| index.times[at])
        });
        Ok(lasts.max_by_key(|moment| moment.sequence))
    }

    /// The indexes of all files, in the order of their segments.
    fn indexes(&self) -> Result<Vec<Arc<FileIndex>>> {
        self.files.read().values().map(|file| file.index(&*self.vfs)).collect()
    }

    /// Reads the whole file of a segment, and passes each record with its position to `visit`, which must not read
    /// history itself.
    ///
    /// # Errors
    /// `Corrupt` if it is damaged. Errors of `visit` are returned unchanged.
    pub(crate) fn records(&self, segment: u32, visit: &mut dyn FnMut(LogPosition, &[u8]) -> Result<()>) -> Result<()> {
        let files = self.files.read();
        let Some(file) = files.get(&segment) else { return Ok(()) };
        file.records(&*self.vfs, &mut |record| visit(LogPosition::new(segment, record.offset), record.bytes))
    }

    /// Replaces the file of a segment by one that has only the records for which `keeps` returns true.
    pub(crate) fn rewrite(&self, segment: u32, floor: Sequence, keeps: &dyn Fn(LogPosition) -> bool) -> Result<()> {
        let Some(file) = self.files.read().get(&segment).cloned() else { return Ok(()) };
        let mut writer = self.writer(segment)?;
        writer.index.times.clone_from(&file.index(&*self.vfs)?.times);
        file.records(&*self.vfs, &mut |record| {
            let position = LogPosition::new(segment, record.offset);
            if keeps(position) { writer.add(position, record.time_us, record.bytes) } else { Ok(()) }
        })?;
        writer.finish(file.info.until, floor)
    }

    /// Whether the file of its segment has the record at `position`.
    pub(super) fn has(&self, position: LogPosition) -> Result<bool> {
        Ok(self.find(position, |_| ())?.is_some())
    }

    /// Writes all files again that are not encrypted with database key `key`, 0 for none.
    pub(crate) fn reencrypt(&self, key: u32) -> Result<()> {
        let mut old = self.files().into_iter().filter(|info| info.key != key);
        old.try_for_each(|info| self.rewrite(info.segment, info.floor, &|_| true))
    }

    fn find<T>(&self, position: LogPosition, take: impl FnOnce(StoredRecord<'_>) -> T) -> Result<Option<T>> {
        // The file must not be replaced while it is read.
        let files = self.files.read();
        let Some(file) = files.get(&position.segment()) else { return Ok(None) };
        let index = file.index(&*self.vfs)?;
        let after = index.blocks.partition_point(|block| block.first_offset <= position.offset());
        let Some(block) = after.checked_sub(1).map(|at| index.blocks[at]) else { return Ok(None) };
        let content = self.block(file, &block)?;
        let mut records = BlockRecords::new(&content, &block);
        while let Some(record) = records.next().map_err(|error| error.within(&file.name))? {
            if record.offset == position.offset() {
                return Ok(Some(take(record)));
            }
        }
        Ok(None)
    }

    fn block(&self, file: &HistoryFile, block: &Block) -> Result<Arc<Vec<u8>>> {
        let segment = file.info.segment;
        let is_wanted = |cached: &CachedBlock| cached.segment == segment && cached.start == block.start;
        if let Some(cached) = self.blocks.lock().iter().find(|cached| is_wanted(cached)) {
            return Ok(Arc::clone(&cached.content));
        }
        let content = Arc::new(file.read_block(&*self.vfs, block)?);
        let mut blocks = self.blocks.lock();
        if blocks.len() == CACHED_BLOCKS_MAX {
            blocks.remove(0);
        }
        blocks.push(CachedBlock { segment, start: block.start, content: Arc::clone(&content) });
        Ok(content)
    }
}

impl HistoryFile {
    fn open(vfs: &dyn Vfs, segment: u32, database_id: &DatabaseId) -> Result<Self> {
        let name = history_name(segment);
        let mut header = [0; HEADER_BYTES];
        let mut cipher_bytes = [0; CIPHER_BYTES];
        let read = vfs.open(&name).and_then(|file| {
            read_exact_at(&*file, &mut header, 0)?;
            if version(&header) == ENCRYPTED_VERSION {
                read_exact_at(&*file, &mut cipher_bytes, HEADER_BYTES as u64)?;
            }
            file.len()
        });
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                return Err(damaged(&name, 0, "the file ends within its header"));
            }
            Err(error) => return Err(Error::io(format_args!("read {name}"), error)),
        };
        let (until, floor, key) = decode_header(&name, segment, database_id, &header)?;
        let cipher = open_cipher(vfs, &name, (segment, key), &header, &cipher_bytes)?;
        let info = HistoryInfo { segment, bytes, until, floor, key };
        Ok(HistoryFile { info, name, cipher, index: Mutex::default() })
    }

    fn read(&self, vfs: &dyn Vfs, start: u64, out: &mut [u8]) -> Result<()> {
        let name = &self.name;
        let read = vfs.open(name).and_then(|file| read_exact_at(&*file, out, start));
        read.map_err(|error| Error::io(format_args!("read {name} at offset {start}"), error))
    }

    /// Decrypts what was read at `offset`, and removes its tag; `None` if it is not what was written there.
    fn opened(&self, kind: u8, offset: u64, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        let Some(cipher) = &self.cipher else { return Some(bytes) };
        let end = bytes.len().checked_sub(TAG_BYTES)?;
        let tag = *bytes[end..].first_chunk()?;
        bytes.truncate(end);
        cipher.open(Place { kind, position: offset }, &[], &tag, &mut bytes).then_some(bytes)
    }

    fn index(&self, vfs: &dyn Vfs) -> Result<Arc<FileIndex>> {
        let mut known = self.index.lock();
        if let Some(index) = &*known {
            return Ok(Arc::clone(index));
        }
        let index = Arc::new(self.read_index(vfs)?);
        *known = Some(Arc::clone(&index));
        Ok(index)
    }

    fn read_index(&self, vfs: &dyn Vfs) -> Result<FileIndex> {
        let wrong = |what: &str| damaged(&self.name, 0, what);
        let first_block = first_block(self.cipher.is_some());
        let content = self.info.bytes.checked_sub(first_block + FOOTER_BYTES as u64);
        let content = content.ok_or_else(|| wrong("the file is too short"))?;
        let mut footer = [0; FOOTER_BYTES];
        self.read(vfs, self.info.bytes - FOOTER_BYTES as u64, &mut footer)?;
        let word = |at: usize| u32::from_be_bytes([footer[at], footer[at + 1], footer[at + 2], footer[at + 3]]);
        if &footer[8..] != MAGIC || u64::from(word(0)) > content {
            return Err(wrong("its end is not one of a history file"));
        }
        let mut bytes = vec![0; word(0) as usize];
        let start = self.info.bytes - (FOOTER_BYTES + bytes.len()) as u64;
        self.read(vfs, start, &mut bytes)?;
        if crc32c::crc32c(&bytes) != word(4) {
            return Err(wrong("the checksum of its index is wrong"));
        }
        let blocks_bytes = content - bytes.len() as u64;
        let bytes = self.opened(INDEX, start, bytes).ok_or_else(|| wrong("its index is not what was encrypted"))?;
        FileIndex::decode(&bytes, first_block, blocks_bytes).ok_or_else(|| wrong("its index has no meaning"))
    }

    /// Reads the whole file, and passes each record to `visit`.
    fn records(&self, vfs: &dyn Vfs, visit: &mut dyn FnMut(StoredRecord<'_>) -> Result<()>) -> Result<()> {
        for block in &self.index(vfs)?.blocks {
            let content = self.read_block(vfs, block)?;
            let mut records = BlockRecords::new(&content, block);
            while let Some(record) = records.next().map_err(|error| error.within(&self.name))? {
                visit(record)?;
            }
        }
        Ok(())
    }

    fn read_block(&self, vfs: &dyn Vfs, block: &Block) -> Result<Vec<u8>> {
        let mut compressed = vec![0; block.compressed_bytes];
        self.read(vfs, block.start, &mut compressed)?;
        if crc32c::crc32c(&compressed) != block.checksum {
            return Err(damaged(&self.name, block.start as u32, "the checksum of a block is wrong"));
        }
        let compressed = self.opened(BLOCK, block.start, compressed);
        let compressed = compressed
            .ok_or_else(|| damaged(&self.name, block.start as u32, "a block is not what was encrypted there"))?;
        zstd::bulk::decompress(&compressed, block.bytes)
            .ok()
            .filter(|content| content.len() == block.bytes)
            .ok_or_else(|| damaged(&self.name, block.start as u32, "a block can't be decompressed"))
    }
}

impl FileIndex {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        varint::write(self.blocks.len() as u64, &mut bytes);
        let mut before = 0;
        for block in &self.blocks {
            varint::write(u64::from(block.first_offset - before), &mut bytes);
            varint::write(block.compressed_bytes as u64, &mut bytes);
            varint::write(block.bytes as u64, &mut bytes);
            bytes.extend_from_slice(&block.checksum.to_be_bytes());
            before = block.first_offset;
        }
        varint::write(self.times.len() as u64, &mut bytes);
        let mut before = Moment { sequence: Sequence::ZERO, time_us: 0 };
        for moment in &self.times {
            varint::write(moment.sequence.get() - before.sequence.get(), &mut bytes);
            varint::write(moment.time_us - before.time_us, &mut bytes);
            before = *moment;
        }
        bytes
    }

    /// Decodes an index of blocks that begin at `first_block` and have `blocks_bytes` bytes in all.
    fn decode(mut bytes: &[u8], first_block: u64, blocks_bytes: u64) -> Option<Self> {
        let next = |bytes: &mut &[u8]| varint::read(bytes).ok();
        let mut index = FileIndex::default();
        let (mut first_offset, mut start) = (0_u32, first_block);
        for _ in 0..next(&mut bytes)? {
            first_offset = first_offset.checked_add(u32::try_from(next(&mut bytes)?).ok()?)?;
            let compressed_bytes = usize::try_from(next(&mut bytes)?).ok()?;
            let length = usize::try_from(next(&mut bytes)?).ok().filter(|&length| length <= BLOCK_BYTES_MAX)?;
            let (checksum, rest) = bytes.split_first_chunk()?;
            bytes = rest;
            let checksum = u32::from_be_bytes(*checksum);
            index.blocks.push(Block { first_offset, start, compressed_bytes, bytes: length, checksum });
            start = start.checked_add(compressed_bytes as u64)?;
        }
        let mut moment = Moment { sequence: Sequence::ZERO, time_us: 0 };
        for _ in 0..next(&mut bytes)? {
            moment.sequence = Sequence::new(moment.sequence.get().checked_add(next(&mut bytes)?)?);
            moment.time_us = moment.time_us.checked_add(next(&mut bytes)?)?;
            index.times.push(moment);
        }
        (bytes.is_empty() && start == first_block + blocks_bytes).then_some(index)
    }
}

/// Writes the file of one segment. Dropping it without [`HistoryWriter::finish`] leaves nothing that is read.
pub(crate) struct HistoryWriter<'h> {
    history: &'h History,
    segment: u32,
    file: Arc<dyn VfsFile>,
    cipher: Option<FileCipher>,
    end: u64,
    index: FileIndex,
    block: Vec<u8>,
    /// Offset of the first record in `block`.
    block_first: u32,
    /// Offset and time of the last record in `block`.
    last: (u32, u64),
}

impl HistoryWriter<'_> {
    pub(crate) fn segment(&self) -> u32 {
        self.segment
    }

    /// Takes note of a transaction of the segment, in order.
    pub(crate) fn add_time(&mut self, first_sequence: Sequence, time_us: u64) {
        let is_far = |last: &Moment| time_us >= last.time_us + TIME_STEP_US && first_sequence >= last.sequence;
        if time_us > 0 && self.index.times.last().is_none_or(is_far) {
            self.index.times.push(Moment { sequence: first_sequence, time_us });
        }
    }

    /// Adds a record, in the order of the segment. `time_us` is the commit time of its frame.
    pub(crate) fn add(&mut self, position: LogPosition, time_us: u64, record: &[u8]) -> Result<()> {
        debug_assert_eq!(position.segment(), self.segment, "a history file has the records of one segment");
        if self.block.is_empty() {
            (self.block_first, self.last) = (position.offset(), (position.offset(), 0));
        }
        debug_assert!(position.offset() >= self.last.0 && time_us >= self.last.1, "records ascend");
        varint::write(u64::from(position.offset() - self.last.0), &mut self.block);
        varint::write(time_us.saturating_sub(self.last.1), &mut self.block);
        varint::write(record.len() as u64, &mut self.block);
        self.block.extend_from_slice(record);
        self.last = (position.offset(), time_us.max(self.last.1));
        if self.block.len() >= BLOCK_BYTES { self.end_block() } else { Ok(()) }
    }

    fn end_block(&mut self) -> Result<()> {
        let block = std::mem::take(&mut self.block);
        let compressed = zstd::bulk::compress(&block, ZSTD_LEVEL)
            .map_err(|error| Error::io("compress a block of history", error))?;
        let compressed = self.sealed(BLOCK, compressed);
        self.write(&compressed)?;
        self.index.blocks.push(Block {
            first_offset: self.block_first,
            start: self.end - compressed.len() as u64,
            compressed_bytes: compressed.len(),
            bytes: block.len(),
            checksum: crc32c::crc32c(&compressed),
        });
        Ok(())
    }

    /// Encrypts what is written next, and appends its tag.
    fn sealed(&self, kind: u8, mut bytes: Vec<u8>) -> Vec<u8> {
        if let Some(cipher) = &self.cipher {
            let tag = cipher.key.seal(Place { kind, position: self.end }, &[], &mut bytes);
            bytes.extend_from_slice(&tag);
        }
        bytes
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_at(bytes, self.end);
        written.map_err(|error| Error::io(format_args!("write {UNFINISHED}"), error))?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Completes the file: flushes it and gives it its name, in place of an earlier one.
    pub(crate) fn finish(mut self, until: Moment, floor: Sequence) -> Result<()> {
        if !self.block.is_empty() {
            self.end_block()?;
        }
        let index = self.sealed(INDEX, self.index.encode());
        let mut bytes = index.clone();
        bytes.extend_from_slice(&(index.len() as u32).to_be_bytes());
        bytes.extend_from_slice(&crc32c::crc32c(&index).to_be_bytes());
        bytes.extend_from_slice(MAGIC);
        self.write(&bytes)?;
        let HistoryWriter { history, segment, file, cipher, end, .. } = self;
        let (vfs, name) = (&*history.vfs, history_name(segment));
        let key = cipher.as_ref().map_or(0, |cipher| cipher.key_number);
        let mut header = encode_header(segment, &history.database_id, (until, floor), key).to_vec();
        if let Some(cipher) = &cipher {
            header.extend_from_slice(&cipher.salt);
            let tag = cipher.key.seal(Place { kind: HEADER, position: 0 }, &header[..HEADER_BYTES], &mut []);
            header.extend_from_slice(&tag);
        }
        let finished = file.write_at(&header, 0).and_then(|()| file.set_len(end)).and_then(|()| file.sync_data());
        finished.map_err(|error| Error::io(format_args!("write {UNFINISHED}"), error))?;
        let info = HistoryInfo { segment, bytes: end, until, floor, key };
        // Nobody reads the earlier file by the name of the new one.
        let mut files = history.files.write();
        vfs.rename(UNFINISHED, &name)
            .map_err(|error| Error::io(format_args!("rename {UNFINISHED} to {name}"), error))?;
        let cipher = cipher.map(|cipher| cipher.key);
        history.blocks.lock().retain(|block| block.segment != segment);
        files.insert(segment, Arc::new(HistoryFile { info, name, cipher, index: Mutex::default() }));
        drop(files);
        let synced = vfs.sync_dir(DIRECTORY).and_then(|()| vfs.sync_dir(""));
        synced.map_err(|error| Error::io(format_args!("flush directory {DIRECTORY}"), error))
    }
}

pub(crate) fn history_name(segment: u32) -> String {
    format!("{DIRECTORY}/{segment:010}{SUFFIX}")
}

/// Where the first block is.
fn first_block(is_encrypted: bool) -> u64 {
    (if is_encrypted { HEADER_BYTES + CIPHER_BYTES } else { HEADER_BYTES }) as u64
}

fn version(header: &[u8; HEADER_BYTES]) -> u32 {
    u32::from_be_bytes([header[8], header[9], header[10], header[11]])
}

/// `key`: the number of the database key, 0 if the file is not encrypted.
fn encode_header(
    segment: u32,
    database_id: &DatabaseId,
    (until, floor): (Moment, Sequence),
    key: u32,
) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    let version = if key != 0 { ENCRYPTED_VERSION } else { VERSION };
    bytes[8..12].copy_from_slice(&version.to_be_bytes());
    bytes[56..60].copy_from_slice(&key.to_be_bytes());
    bytes[12..16].copy_from_slice(&segment.to_be_bytes());
    bytes[16..32].copy_from_slice(database_id);
    bytes[32..40].copy_from_slice(&until.sequence.get().to_be_bytes());
    bytes[40..48].copy_from_slice(&until.time_us.to_be_bytes());
    bytes[48..56].copy_from_slice(&floor.get().to_be_bytes());
    let checksum = crc32c::crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&checksum.to_be_bytes());
    bytes
}

fn decode_header(
    name: &str,
    segment: u32,
    database_id: &DatabaseId,
    bytes: &[u8; HEADER_BYTES],
) -> Result<(Moment, Sequence, u32)> {
    let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
    if &bytes[..8] != MAGIC || word(60) != crc32c::crc32c(&bytes[..60]) {
        return Err(damaged(name, 0, "its header is not one of a history file, or its checksum is wrong"));
    }
    if !matches!((word(8), word(56)), (VERSION, 0) | (ENCRYPTED_VERSION, 1..)) {
        return Err(Error::unavailable(format!("{name} has version {} of history files", word(8)))
            .with_hint("use a newer version of stemma"));
    }
    if word(12) != segment || bytes[16..32] != database_id[..] {
        return Err(damaged(name, 12, "it is the history of another segment or database"));
    }
    Ok((Moment { sequence: Sequence::new(long(32)), time_us: long(40) }, Sequence::new(long(48)), word(56)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::MemoryVfs;

    const ID: DatabaseId = [7; 16];

    fn record(number: u32) -> Vec<u8> {
        format!("record {number} ").repeat(1 + number as usize % 7).into_bytes()
    }

    fn offset(number: u32) -> u32 {
        64 + number * 96
    }

    fn write(history: &History, segment: u32, count: u32) {
        let mut writer = history.writer(segment).unwrap();
        for number in 0..count {
            let time_us = u64::from(segment * 1_000_000 + number * 400);
            writer.add_time(Sequence::new(u64::from(segment * 1000 + number)), time_us);
            writer.add(LogPosition::new(segment, offset(number)), time_us, &record(number)).unwrap();
        }
        let until = Moment { sequence: Sequence::new(77), time_us: 9 };
        writer.finish(until, Sequence::new(3)).unwrap();
    }

    fn check(history: &History, segment: u32, count: u32) {
        let mut out = Vec::new();
        for number in 0..count {
            let position = LogPosition::new(segment, offset(number));
            assert!(history.read(position, record(number).len(), &mut out).unwrap());
            assert_eq!(out, record(number));
            assert_eq!(history.time_at(position).unwrap(), Some(u64::from(segment * 1_000_000 + number * 400)));
            assert!(history.read(position, record(number).len() + 1, &mut out).is_err());
            assert!(!history.read(position.advance(8), 5, &mut out).unwrap());
        }
        assert!(!history.read(LogPosition::new(segment + 1, 64), 5, &mut out).unwrap());
    }

    #[test]
    fn records_are_found_by_position_also_after_reopening() {
        let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
        let history = History::open(&vfs, ID).unwrap();
        write(&history, 4, 300);
        check(&history, 4, 300);
        write(&history, 9, 0);
        let reopened = History::open(&vfs, ID).unwrap();
        check(&reopened, 4, 300);
        assert_eq!(reopened.files(), history.files());
        assert_eq!(reopened.files()[0].until, Moment { sequence: Sequence::new(77), time_us: 9 });
        assert_eq!(reopened.files()[0].floor, Sequence::new(3));
        write(&reopened, 4, 20);
        check(&reopened, 4, 20);
        reopened.remove(4).unwrap();
        assert!(!reopened.contains(4));
        assert_eq!(History::open(&vfs, ID).unwrap().files().len(), 1);
        assert_eq!(History::open(&vfs, [8; 16]).err().unwrap().kind(), crate::ErrorKind::Corrupt);
    }

    #[test]
    fn times_are_found_with_the_precision_of_a_millisecond() {
        let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
        let history = History::open(&vfs, ID).unwrap();
        write(&history, 1, 100);
        write(&history, 2, 100);
        let after = |time_us| history.first_sequence_after(time_us).unwrap().map(Sequence::get);
        assert_eq!(after(0), Some(1000));
        assert_eq!(after(1_000_000), Some(1003));
        assert_eq!(after(1_500_000), Some(2000));
        assert_eq!(after(3_000_000), None);
    }

    #[test]
    fn every_flipped_bit_is_reported() {
        let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
        write(&History::open(&vfs, ID).unwrap(), 1, 40);
        let file = vfs.open("history/0000000001.history").unwrap();
        let length = file.len().unwrap();
        for at in 0..length {
            let mut byte = [0];
            file.read_at(&mut byte, at).unwrap();
            file.write_at(&[byte[0] ^ 1 << (at % 8)], at).unwrap();
            let is_reported = History::open(&vfs, ID).and_then(|history| {
                (0..40).try_for_each(|number| {
                    let mut out = Vec::new();
                    let position = LogPosition::new(1, offset(number));
                    let found = history.read(position, record(number).len(), &mut out)?;
                    assert!(found && out == record(number), "a flip at {at} is silent");
                    Ok(())
                })
            });
            assert_eq!(is_reported.err().map(|error| error.kind()), Some(crate::ErrorKind::Corrupt), "byte {at}");
            file.write_at(&byte, at).unwrap();
        }
    }
}
