//! Run file: sorted entries in blocks, written once and never changed.
//!
//! ```text
//! blocks        one after another
//! filter        see `filter`
//! index         per block: shared, rest (varints), rest of its fence, length of the block (varint)
//! properties    lengths of filter and index, entries, tombstones, blocks (varints); first and last key, each with its
//!               length (varint)
//! footer        length of the properties (4 bytes), format version (4 bytes), little-endian; `STEMMRUN`
//! ```
//!
//! In an encrypted file, the footer begins with a random number (16 bytes), from which the data key is derived, and the
//! number of the database key (4 bytes); it ends with `STEMMENC`.
//!
//! Every block, the filter, the index and the properties are each followed by a byte that names their encoding and by a
//! 16-byte checksum: XXH3-128 of the bytes and the encoding, seeded with the number of the file and the offset of the
//! bytes in it. In an encrypted file, an authentication tag takes the same place: it covers the encoding and, as part
//! of key and nonce, the number and the offset. The manifest repeats the checksum of the properties, so that a file
//! can't be replaced by another with the same number.
//!
//! The encoding of a block is 0 (as it is) or a method of `compression`. Filter and index are stored as they are, and
//! so are the properties, whose encoding is the compression that the file was written with.
//!
//! A *fence* is the shortest key that separates a block from the one before it: block `n` has the keys from its fence
//! up to the next block's fence. Fences share bytes as keys do in a block.
//!
//! Invariants: the keys of a file are strictly ascending. Nothing read is used before its checksum was verified.

#[cfg(any(test, fuzzing))]
pub(super) mod sections;

use std::sync::{Arc, OnceLock};
use std::{cmp, io};

use twox_hash::XxHash3_128;

use super::block::{Block, BlockBuilder, Kind, common_prefix, key_head};
use super::directory::TreeDirectory;
use super::{FORMAT_VERSION, KEY_BYTES_MAX, REBUILD, TABLE_BYTES, Table, filter};
use crate::cipher::{DataKey, Place, Purpose, SALT_BYTES, keys_missing, not_encrypted};
use crate::compression::{Compression, Method, compress, decompress};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::vfs::{CachedFile, Vfs, VfsFile, create_anew, read_exact_at};
use crate::{Error, Result, varint};

const MAGIC: &[u8; 8] = b"STEMMRUN";
const ENCRYPTED_MAGIC: &[u8; 8] = b"STEMMENC";
const FOOTER_BYTES: usize = 16;
/// Random number and number of the key, which precede the footer of an encrypted file.
const CIPHER_BYTES: usize = SALT_BYTES + 4;
/// The kind of the places in a run file.
const SECTION: u8 = 1;
const CHECKSUM_BYTES: usize = 16;
/// Encoding and checksum.
pub(super) const TRAILER_BYTES: usize = 1 + CHECKSUM_BYTES;
/// The bytes are stored as they are.
const PLAIN: u8 = 0;
/// Written at once.
const WRITE_BYTES: usize = 256 << 10;
/// The properties and the footer are nearly always within the last bytes of this number.
const TAIL_BYTES: u64 = 2 << 10;

/// What the manifest knows about a run file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileRecord {
    pub(super) number: u64,
    pub(super) byte_count: u64,
    /// The checksum of its properties.
    pub(super) checksum: u128,
    pub(super) entry_count: u64,
    /// Entries that only hide or remove older ones.
    pub(super) tombstone_count: u64,
    pub(super) first_key: Vec<u8>,
    pub(super) last_key: Vec<u8>,
}

/// The file name of a run within the tree's directory.
pub(super) fn file_name(number: u64) -> String {
    format!("{number:010}.run")
}

/// The number in the name of a run file.
pub(super) fn number_of(name: &str) -> Option<u64> {
    name.strip_suffix(".run")?.parse().ok()
}

/// How an encrypted file is encrypted.
struct RunCipher {
    key: DataKey,
    /// The number of the database key.
    key_number: u32,
    salt: [u8; SALT_BYTES],
}

impl RunCipher {
    /// For a new file; none if new files are not encrypted.
    fn for_new_file(vfs: &dyn Vfs, number: u64) -> Result<Option<Self>> {
        let Some(keyring) = vfs.keyring() else { return Ok(None) };
        let Some(key_number) = keyring.active() else { return Ok(None) };
        let salt = keyring.new_salt()?;
        let key = keyring.data_key(key_number, Purpose::Run, [number, 0], &salt)?;
        Ok(Some(RunCipher { key, key_number, salt }))
    }

    fn seal(&self, offset: u64, encoding: u8, bytes: &mut [u8]) -> u128 {
        u128::from_le_bytes(self.key.seal(Place { kind: SECTION, position: offset }, &[encoding], bytes))
    }

    fn opens(&self, offset: u64, encoding: u8, tag: u128, bytes: &mut [u8]) -> bool {
        self.key.open(Place { kind: SECTION, position: offset }, &[encoding], &tag.to_le_bytes(), bytes)
    }
}

fn checksum(number: u64, offset: u64, bytes: &[u8], encoding: u8) -> u128 {
    let seed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ offset << 8 ^ u64::from(encoding);
    XxHash3_128::oneshot_with_seed(seed, bytes)
}

#[cold]
fn damaged(number: u64, what: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("tree/{} is damaged: {what}", file_name(number))).with_hint(REBUILD)
}

/// The error for a listed file that does not exist.
#[cold]
pub(super) fn missing(path: &str) -> Error {
    Error::corrupt(format!("{path} is missing")).with_hint(REBUILD)
}

/// The error for rows to merge that are not in the order of their keys.
#[cold]
pub(super) fn not_ascending() -> Error {
    Error::corrupt("a file of the tree is malformed: its rows are not in order").with_hint(REBUILD)
}

/// Whether the filter of a file contains a key: scans, which filters don't help, read the other tables.
fn is_filtered(key: &[u8]) -> bool {
    key.first() != Some(&(Table::Postings as u8))
}

/// Writes one run file from ascending entries. Deletes the file if it is dropped before it is finished.
pub(super) struct RunWriter {
    directory: Arc<TreeDirectory>,
    is_finished: bool,
    path: String,
    file: Arc<dyn VfsFile>,
    number: u64,
    /// A block is finished once it has this many bytes.
    block_bytes: usize,
    compression: Compression,
    cipher: Option<RunCipher>,
    buffer: Vec<u8>,
    /// Bytes written before the buffer.
    written: u64,
    block: BlockBuilder,
    index: Vec<u8>,
    block_count: u64,
    fence: Vec<u8>,
    /// The fence of the block being built.
    next_fence: Vec<u8>,
    hashes: Vec<u64>,
    entry_count: u64,
    tombstone_count: u64,
    first_key: Vec<u8>,
    last_key: Vec<u8>,
}

impl RunWriter {
    /// Creates the file `number` in `directory`. A file that a crash left under this name is replaced.
    pub(super) fn create(
        directory: Arc<TreeDirectory>,
        number: u64,
        block_bytes: usize,
        compression: Compression,
    ) -> Result<Self> {
        let (vfs, path) = (&directory.vfs, directory.file_path(number));
        let cipher = RunCipher::for_new_file(&**vfs, number)?;
        let file = create_anew(&**vfs, &path).map_err(|error| Error::io(format_args!("create {path}"), error))?;
        Ok(RunWriter {
            directory,
            is_finished: false,
            path,
            file,
            number,
            block_bytes,
            compression,
            cipher,
            buffer: Vec::new(),
            written: 0,
            block: BlockBuilder::default(),
            index: Vec::new(),
            block_count: 0,
            fence: Vec::new(),
            next_fence: Vec::new(),
            hashes: Vec::new(),
            entry_count: 0,
            tombstone_count: 0,
            first_key: Vec::new(),
            last_key: Vec::new(),
        })
    }

    /// Appends an entry; its key is above all keys before it. `is_tombstone`: whether it only hides or removes.
    ///
    /// # Errors
    /// `Io`; `Corrupt` if the keys don't ascend, as those of a malformed file that is merged.
    pub(super) fn add(&mut self, key: &[u8], kind: Kind, value: &[u8], is_tombstone: bool) -> Result<()> {
        let shared = common_prefix(&self.last_key, key);
        if self.entry_count > 0 && self.last_key[shared..] >= key[shared..] {
            return Err(not_ascending());
        }
        if self.block.byte_count() >= self.block_bytes && !self.block.is_empty() {
            self.finish_block()?;
        }
        if self.block.is_empty() {
            // The shortest prefix of the key that is above the last key.
            let fence_bytes = (shared + 1).min(key.len());
            self.next_fence.clear();
            self.next_fence.extend_from_slice(&key[..fence_bytes]);
        }
        if self.entry_count == 0 {
            self.first_key = key.to_vec();
        }
        self.block.add(key, shared, kind, value);
        if is_filtered(key) {
            self.hashes.push(filter::hash(key));
        }
        self.last_key.truncate(shared);
        self.last_key.extend_from_slice(&key[shared..]);
        self.entry_count += 1;
        self.tombstone_count += u64::from(is_tombstone);
        Ok(())
    }

    /// The bytes written so far, not counting the block being built.
    pub(super) fn byte_count(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    fn finish_block(&mut self) -> Result<()> {
        let start = self.buffer.len();
        let offset = self.byte_count();
        let (compression, buffer) = (self.compression, &mut self.buffer);
        let encoding = self.block.finish(|bytes| {
            compress(compression, bytes, None, |compressed| {
                buffer.extend_from_slice(compressed.map_or(bytes, |(_, compressed)| compressed));
                compressed.map_or(PLAIN, |(method, _)| method as u8)
            })
        });
        let content_bytes = self.buffer.len() - start;
        self.seal(start, offset, encoding);
        let shared = common_prefix(&self.fence, &self.next_fence);
        varint::write(shared as u64, &mut self.index);
        varint::write((self.next_fence.len() - shared) as u64, &mut self.index);
        self.index.extend_from_slice(&self.next_fence[shared..]);
        varint::write(content_bytes as u64, &mut self.index);
        std::mem::swap(&mut self.fence, &mut self.next_fence);
        self.block_count += 1;
        if self.buffer.len() >= WRITE_BYTES { self.write_buffer() } else { Ok(()) }
    }

    /// Appends encoding and checksum, or tag, to the bytes from `start` of the buffer on, which are at `offset` of the
    /// file.
    fn seal(&mut self, start: usize, offset: u64, encoding: u8) -> u128 {
        let bytes = &mut self.buffer[start..];
        let sum = match &self.cipher {
            Some(cipher) => cipher.seal(offset, encoding, bytes),
            None => checksum(self.number, offset, bytes, encoding),
        };
        self.buffer.push(encoding);
        self.buffer.extend_from_slice(&sum.to_le_bytes());
        sum
    }

    fn write_buffer(&mut self) -> Result<()> {
        let written = self.file.write_at(&self.buffer, self.written);
        written.map_err(|error| Error::io(format_args!("write {}", self.path), error))?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn append_section(&mut self, bytes: &[u8], encoding: u8) -> u128 {
        let (start, offset) = (self.buffer.len(), self.byte_count());
        self.buffer.extend_from_slice(bytes);
        self.seal(start, offset, encoding)
    }

    /// Writes what remains and flushes the file; its name must be flushed afterwards. There is at least one entry.
    pub(super) fn finish(mut self) -> Result<FileRecord> {
        assert!(self.entry_count > 0, "a run has at least one entry");
        self.finish_block()?;
        let filter = filter::build(&std::mem::take(&mut self.hashes));
        self.append_section(&filter, PLAIN);
        let index = std::mem::take(&mut self.index);
        self.append_section(&index, PLAIN);
        let mut properties = Vec::new();
        let lengths = [filter.len() as u64, index.len() as u64];
        for number in lengths.into_iter().chain([self.entry_count, self.tombstone_count, self.block_count]) {
            varint::write(number, &mut properties);
        }
        for key in [&self.first_key, &self.last_key] {
            varint::write(key.len() as u64, &mut properties);
            properties.extend_from_slice(key);
        }
        let checksum = self.append_section(&properties, self.compression.code());
        if let Some(cipher) = &self.cipher {
            self.buffer.extend_from_slice(&cipher.salt);
            self.buffer.extend_from_slice(&cipher.key_number.to_le_bytes());
        }
        self.buffer.extend_from_slice(&(properties.len() as u32).to_le_bytes());
        self.buffer.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        self.buffer.extend_from_slice(if self.cipher.is_some() { ENCRYPTED_MAGIC } else { MAGIC });
        self.write_buffer()?;
        self.file.sync_data().map_err(|error| Error::io(format_args!("flush {}", self.path), error))?;
        self.is_finished = true;
        Ok(FileRecord {
            number: self.number,
            byte_count: self.written,
            checksum,
            entry_count: self.entry_count,
            tombstone_count: self.tombstone_count,
            first_key: std::mem::take(&mut self.first_key),
            last_key: std::mem::take(&mut self.last_key),
        })
    }
}

impl Drop for RunWriter {
    fn drop(&mut self) {
        if !self.is_finished {
            self.directory.delete(self.number);
        }
    }
}

/// The index of a run file: the fence, offset and length of each block.
#[derive(Debug)]
pub(super) struct BlockIndex {
    fences: Vec<u8>,
    blocks: Vec<BlockLocation>,
}

#[derive(Debug, Clone, Copy)]
struct BlockLocation {
    /// The first bytes of the fence, in which most fences differ.
    head: u64,
    fence_end: u32,
    byte_count: u32,
    offset: u64,
}

impl BlockIndex {
    /// Decodes the index of `block_count` blocks that end at `blocks_end`. `None` unless the fences ascend and the
    /// blocks fill the file up to there: so no block read later is larger than the file.
    fn decode(mut input: &[u8], block_count: u64, blocks_end: u64) -> Option<Self> {
        let mut index = BlockIndex { fences: Vec::new(), blocks: Vec::new() };
        let (mut previous, mut offset) = (0..0, 0u64);
        while !input.is_empty() {
            let shared = usize::try_from(varint::read(&mut input).ok()?).ok()?;
            let rest = usize::try_from(varint::read(&mut input).ok()?).ok()?;
            let (rest, remaining) = input.split_at_checked(rest)?;
            input = remaining;
            let byte_count = u32::try_from(varint::read(&mut input).ok()?).ok()?;
            let is_above = index.fences.get(previous.start + shared..previous.end).is_some_and(|last| last < rest);
            if !is_above || shared + rest.len() > TABLE_BYTES + KEY_BYTES_MAX {
                return None;
            }
            let start = index.fences.len();
            index.fences.extend_from_within(previous.start..previous.start + shared);
            index.fences.extend_from_slice(rest);
            previous = start..index.fences.len();
            let fence_end = u32::try_from(index.fences.len()).ok()?;
            let head = key_head(&index.fences[previous.clone()]);
            index.blocks.push(BlockLocation { head, fence_end, byte_count, offset });
            offset = offset.checked_add(u64::from(byte_count) + TRAILER_BYTES as u64)?;
        }
        let is_complete = index.blocks.len() as u64 == block_count && block_count > 0 && offset == blocks_end;
        is_complete.then_some(index)
    }

    pub(super) fn block_count(&self) -> usize {
        self.blocks.len()
    }

    fn fence(&self, block: usize) -> &[u8] {
        let start = if block == 0 { 0 } else { self.blocks[block - 1].fence_end as usize };
        &self.fences[start..self.blocks[block].fence_end as usize]
    }

    /// The block that has `key`, if the file does.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.blocks.len());
        let head = key_head(key);
        while low + 1 < high {
            let middle = (low + high) / 2;
            let is_not_above = match self.blocks[middle].head.cmp(&head) {
                cmp::Ordering::Equal => self.fence(middle) <= key,
                order => order.is_lt(),
            };
            if is_not_above {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Memory used, in bytes.
    fn byte_count(&self) -> usize {
        self.fences.len() + size_of_val(&*self.blocks)
    }
}

/// A run file, opened when it is first read. It is deleted once it is obsolete and nothing reads it any more.
pub(super) struct RunFile {
    directory: Arc<TreeDirectory>,
    path: String,
    record: FileRecord,
    opened: OnceLock<OpenedRun>,
    /// The open file; closed while the database is idle.
    file: CachedFile,
    is_obsolete: AtomicBool,
}

/// What is kept of an opened file.
struct OpenedRun {
    index: BlockIndex,
    filter: Vec<u8>,
    compression: Compression,
    cipher: Option<RunCipher>,
}

impl OpenedRun {
    /// Memory used by index and filter, in bytes.
    fn byte_count(&self) -> u64 {
        (self.index.byte_count() + self.filter.len()) as u64
    }
}

impl std::fmt::Debug for RunFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.path)
    }
}

impl Drop for RunFile {
    fn drop(&mut self) {
        self.directory.cache.remove_resident(self.opened.get().map_or(0, OpenedRun::byte_count));
        if self.is_obsolete.load(Ordering::Acquire) {
            self.close();
            self.directory.delete(self.record.number);
        }
    }
}

impl RunFile {
    pub(super) fn new(directory: Arc<TreeDirectory>, record: FileRecord) -> Self {
        let path = directory.file_path(record.number);
        let (opened, file, is_obsolete) = Default::default();
        RunFile { directory, path, record, opened, file, is_obsolete }
    }

    /// Its name, relative to the database directory.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn record(&self) -> &FileRecord {
        &self.record
    }

    /// Has the file deleted once its last reader is gone.
    pub(super) fn set_obsolete(&self) {
        self.directory.retire(&self.record);
        self.is_obsolete.store(true, Ordering::Release);
    }

    fn opened(&self) -> Result<&OpenedRun> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let opened = self.open()?;
        let byte_count = opened.byte_count();
        // Another thread may have been faster.
        if self.opened.set(opened).is_ok() {
            self.directory.cache.add_resident(byte_count);
        }
        Ok(self.opened.get().expect("it was just set"))
    }

    #[cold]
    fn open(&self) -> Result<OpenedRun> {
        let FileRecord { number, byte_count, .. } = self.record;
        let file = self.file()?;
        let file_bytes = file.len().map_err(|error| self.read_error(error))?;
        if file_bytes != byte_count {
            return Err(damaged(number, format_args!("it has {file_bytes} bytes, should have {byte_count}")));
        }
        let tail_bytes = byte_count.min(TAIL_BYTES);
        let mut tail = vec![0; tail_bytes as usize];
        read_exact_at(&*file, &mut tail, byte_count - tail_bytes).map_err(|error| self.read_error(error))?;
        let cipher = self.cipher(&tail)?;
        let properties = self.properties(&tail, cipher.as_ref());
        let properties = properties.ok_or_else(|| damaged(number, "its footer is malformed"))?;
        let index_start = properties.offset - TRAILER_BYTES as u64 - properties.index_bytes;
        let filter_start = index_start - TRAILER_BYTES as u64 - properties.filter_bytes;
        let section = |start, byte_count, what| self.read_verified(&*file, cipher.as_ref(), start, byte_count, what);
        let index = section(index_start, properties.index_bytes as usize, "its index")?;
        let filter = section(filter_start, properties.filter_bytes as usize, "its filter")?;
        let index = BlockIndex::decode(&index, properties.block_count, filter_start);
        let index = index.ok_or_else(|| damaged(number, "its index is malformed"))?;
        Ok(OpenedRun { index, filter, compression: properties.compression, cipher })
    }

    /// The file, opened if necessary.
    fn file(&self) -> Result<Arc<dyn VfsFile>> {
        let open = || self.directory.vfs.open(&self.path);
        self.file.get_or_open(open).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => missing(&self.path),
            _ => Error::io(format_args!("open {}", self.path), error),
        })
    }

    /// Closes the file; the next read opens it again. Its block index and its filter stay in memory.
    pub(super) fn close(&self) {
        self.file.close();
    }

    /// How the file is encrypted, according to its last bytes; none if it is not.
    ///
    /// # Errors
    /// `Corrupt` if it is not encrypted and should be, or if the keys are missing.
    fn cipher(&self, tail: &[u8]) -> Result<Option<RunCipher>> {
        let keyring = self.directory.vfs.keyring();
        let Some(rest) = tail.strip_suffix(ENCRYPTED_MAGIC) else {
            return match keyring {
                Some(keyring) if !keyring.accepts_plain() => Err(not_encrypted(&self.path).with_hint(REBUILD)),
                _ => Ok(None),
            };
        };
        let keyring = keyring.ok_or_else(|| keys_missing(&self.path))?;
        let at = rest.len().checked_sub(CIPHER_BYTES + FOOTER_BYTES - ENCRYPTED_MAGIC.len());
        let parts = at.and_then(|at| rest[at..].split_first_chunk::<SALT_BYTES>());
        let parts = parts.and_then(|(salt, rest)| Some((*salt, u32::from_le_bytes(*rest.first_chunk()?))));
        let (salt, key_number) = parts.ok_or_else(|| damaged(self.record.number, "its footer is malformed"))?;
        let key = keyring.data_key(key_number, Purpose::Run, [self.record.number, 0], &salt);
        let key = key.map_err(|error| damaged(self.record.number, error.message()))?;
        Ok(Some(RunCipher { key, key_number, salt }))
    }

    /// Decodes the properties in the last bytes of the file; `None` if they are not those the manifest names.
    fn properties(&self, tail: &[u8], cipher: Option<&RunCipher>) -> Option<Properties> {
        let (rest, footer) = tail.split_at_checked(tail.len().checked_sub(FOOTER_BYTES)?)?;
        let property_bytes = u32::from_le_bytes(footer[..4].try_into().ok()?) as usize;
        let (magic, cipher_bytes) = if cipher.is_some() { (ENCRYPTED_MAGIC, CIPHER_BYTES) } else { (MAGIC, 0) };
        if footer[8..] != magic[..] || footer[4..8] != FORMAT_VERSION.to_le_bytes() {
            return None;
        }
        let rest = &rest[..rest.len().checked_sub(cipher_bytes)?];
        let start = rest.len().checked_sub(property_bytes + TRAILER_BYTES)?;
        let (bytes, trailer) = rest[start..].split_at(property_bytes);
        let offset = self.record.byte_count - (FOOTER_BYTES + cipher_bytes + TRAILER_BYTES + property_bytes) as u64;
        let mut bytes = bytes.to_vec();
        let sum = u128::from_le_bytes(*trailer[1..].first_chunk()?);
        let is_valid = match cipher {
            Some(cipher) => cipher.opens(offset, trailer[0], sum, &mut bytes),
            None => sum == checksum(self.record.number, offset, &bytes, trailer[0]),
        };
        if !is_valid || sum != self.record.checksum {
            return None;
        }
        let compression = Compression::from_code(trailer[0])?;
        let mut input = &bytes[..];
        let filter_bytes = varint::read(&mut input).ok()?;
        let index_bytes = varint::read(&mut input).ok()?;
        let (entry_count, tombstone_count) = (varint::read(&mut input).ok()?, varint::read(&mut input).ok()?);
        let block_count = varint::read(&mut input).ok()?;
        let (first_key, last_key) = (take_key(&mut input)?, take_key(&mut input)?);
        let FileRecord { first_key: first, last_key: last, .. } = &self.record;
        let is_as_listed = (entry_count, tombstone_count) == (self.record.entry_count, self.record.tombstone_count)
            && (first_key, last_key) == (first.as_slice(), last.as_slice());
        if !is_as_listed || !input.is_empty() {
            return None;
        }
        let sections = filter_bytes.checked_add(index_bytes)?.checked_add(2 * TRAILER_BYTES as u64)?;
        (sections <= offset).then_some(Properties { offset, filter_bytes, index_bytes, block_count, compression })
    }

    fn read_verified(
        &self,
        file: &dyn VfsFile,
        cipher: Option<&RunCipher>,
        offset: u64,
        byte_count: usize,
        what: &str,
    ) -> Result<Vec<u8>> {
        let mut bytes = vec![0; byte_count + TRAILER_BYTES];
        if self.read_section(file, cipher, offset, &mut bytes, what)? != PLAIN {
            return Err(damaged(self.record.number, format_args!("{what} has an unknown encoding")));
        }
        bytes.truncate(byte_count);
        Ok(bytes)
    }

    /// Reads a part of the file with its trailer, verifies and decrypts it; returns its encoding.
    fn read_section(
        &self,
        file: &dyn VfsFile,
        cipher: Option<&RunCipher>,
        offset: u64,
        bytes: &mut [u8],
        what: &str,
    ) -> Result<u8> {
        read_exact_at(file, bytes, offset).map_err(|error| self.read_error(error))?;
        let (content, trailer) = bytes.split_at_mut(bytes.len() - TRAILER_BYTES);
        let sum = trailer[1..].first_chunk().map_or(0, |sum| u128::from_le_bytes(*sum));
        let is_valid = match cipher {
            Some(cipher) => cipher.opens(offset, trailer[0], sum, content),
            None => sum == checksum(self.record.number, offset, content, trailer[0]),
        };
        if !is_valid {
            return Err(damaged(self.record.number, format_args!("{what} (at {offset}) does not match its checksum")));
        }
        Ok(trailer[0])
    }

    fn read_error(&self, error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => damaged(self.record.number, "it is too short"),
            _ => Error::io(format_args!("read {}", self.path), error),
        }
    }

    /// Whether the file was written with another compression, or is encrypted otherwise than new files. False if it
    /// can't be read.
    pub(super) fn is_stored_otherwise(&self, compression: Compression) -> bool {
        let active = self.directory.vfs.keyring().and_then(|keyring| keyring.active());
        self.opened().is_ok_and(|opened| {
            opened.compression != compression || opened.cipher.as_ref().map(|cipher| cipher.key_number) != active
        })
    }

    pub(super) fn index(&self) -> Result<&BlockIndex> {
        Ok(&self.opened()?.index)
    }

    /// Whether the file may have an entry with this key, whose hash is `hash`. Reads no block.
    #[inline]
    pub(super) fn may_contain(&self, key: &[u8], hash: u64) -> Result<bool> {
        if key < self.record.first_key.as_slice() || key > self.record.last_key.as_slice() {
            return Ok(false);
        }
        Ok(!is_filtered(key) || filter::may_contain(&self.opened()?.filter, hash))
    }

    /// A block, from the cache or the file.
    #[inline]
    pub(super) fn block(&self, number: usize) -> Result<Block> {
        match self.directory.cache.get(self.record.number, number as u32) {
            Some(block) => Ok(block),
            None => {
                let block = self.read_block(number)?;
                self.directory.cache.insert(self.record.number, number as u32, block.clone());
                Ok(block)
            }
        }
    }

    /// A block, from the cache if it is there; not kept otherwise: a merge reads each block once.
    pub(super) fn block_once(&self, number: usize) -> Result<Block> {
        self.directory.cache.get(self.record.number, number as u32).map_or_else(|| self.read_block(number), Ok)
    }

    /// Reads a block from the file.
    #[cold]
    pub(super) fn read_block(&self, number: usize) -> Result<Block> {
        let opened = self.opened()?;
        let Some(location) = opened.index.blocks.get(number) else {
            return Err(damaged(self.record.number, format_args!("it has no block {number}")));
        };
        let length = location.byte_count as usize;
        // Read where it stays: a copy would cost as much as the checksum.
        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, length + TRAILER_BYTES).collect();
        let unshared = Arc::get_mut(&mut bytes).expect("nothing else refers to new bytes");
        let encoding =
            self.read_section(&*self.file()?, opened.cipher.as_ref(), location.offset, unshared, "a block")?;
        let block = match Method::from_code(encoding) {
            None if encoding == PLAIN => Block::new(bytes, length),
            None => None,
            Some(method) => decompress(method, &bytes[..length], |_| None).and_then(|decompressed| {
                let length = decompressed.len();
                Block::new(decompressed, length)
            }),
        };
        block.ok_or_else(|| self.malformed(number))
    }

    /// The error for a block whose checksum is right but whose content is malformed.
    #[cold]
    pub(super) fn malformed(&self, number: usize) -> Error {
        damaged(self.record.number, format_args!("block {number} is malformed"))
    }

    /// The fence of a block.
    pub(super) fn fence(&self, number: usize) -> Result<&[u8]> {
        Ok(self.index()?.fence(number))
    }
}

fn take_key<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(varint::read(input).ok()?).ok()?;
    let (key, rest) = input.split_at_checked(length)?;
    *input = rest;
    Some(key)
}

/// What is needed of the properties to open a file.
struct Properties {
    offset: u64,
    filter_bytes: u64,
    index_bytes: u64,
    block_count: u64,
    compression: Compression,
}
