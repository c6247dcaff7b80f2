//! Blob store: attachment contents, named by their SHA-256.
//!
//! Large content has a file of its own, written and flushed before the log refers to it. Content of at most
//! [`LOGGED_BYTES_MAX`] bytes stays in memory, in its handle, until the transaction that refers to it logs it; the
//! engine finds it in the log from then on. If handles already hold [`HELD_BYTES_MAX`] bytes, or if a file has the
//! content, which is the case in databases of older versions, small content is stored like large content.
//!
//! ```text
//! blobs/ab/cdef…   content │ checksums or tags, see `footer`
//! blobs/new-7      a blob that is being written
//! ```
//!
//! In an encrypted database, the name of a file is the encrypted digest, and the content is encrypted.
//!
//! Invariants:
//! - A file named by a digest is complete and flushed: it gets its name last.
//! - All bytes returned were verified: each 64 KiB by its checksum, so that any range can be verified, and the whole
//!   content by its digest if it is read from start to end. Content in the log is covered by its record's checksum.
//! - A *pinned* blob is not swept. The thread that stores a blob holds the pin until the log refers to it. A blob that
//!   was pinned at any time since the sweep started is not swept either: a record that the sweep did not see may refer
//!   to it.
//!
//! Concurrency: every method may be called from any thread at any time; only one sweep runs at a time. The caller of
//! [`Sweep::remove`] guarantees that nothing referred to the blob after the sweep started.

mod footer;

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use self::footer::{BlobCipher, FOOTER_BYTES, Sums};
use super::content_hash::ContentHasher;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::vfs::{Vfs, VfsFile, read_exact_at};
use crate::{Error, Result};

/// Content of up to this many bytes goes into the log.
pub(crate) const LOGGED_BYTES_MAX: usize = 64 << 10;
/// How many bytes of content all handles together hold in memory. It also bounds the contents that one transaction can
/// add to its frame.
const HELD_BYTES_MAX: usize = 32 << 20;
/// Bytes covered by one checksum.
const CHUNK_BYTES: usize = 64 << 10;
/// Content is flushed in steps of this size, so that the last flush of a large blob takes no longer than that of a
/// small one.
const FLUSH_BYTES: u64 = 32 << 20;
const DIRECTORY: &str = "blobs";
const NEW: &str = "new-";

/// SHA-256 digest of a blob's content, which is also its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub(super) [u8; 32]);

impl Digest {
    /// A digest that was computed before.
    pub(crate) fn from_stored(bytes: [u8; 32]) -> Self {
        Digest(bytes)
    }

    /// Returns the bytes of the digest.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The name of the file of a content with this name, relative to the database directory.
    pub(crate) fn file_name(&self) -> String {
        let hex = self.to_string();
        format!("{DIRECTORY}/{}/{}", &hex[..2], &hex[2..])
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::invalid("a digest is 64 hexadecimal digits");
        if text.len() != 64 || !text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = str::from_utf8(digits).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
        }
        Ok(Digest(bytes))
    }
}

/// The name of new files with this content: the digest, encrypted if the database is.
fn content_name(vfs: &dyn Vfs, digest: &Digest) -> Digest {
    match vfs.keyring().filter(|keyring| keyring.active().is_some()) {
        Some(keyring) => Digest(keyring.seal_name(&digest.0)),
        None => *digest,
    }
}

/// All blobs of a database.
pub(crate) struct Blobs {
    vfs: Arc<dyn Vfs>,
    pins: Mutex<Pins>,
    sweeping: Mutex<()>,
    next_new: AtomicU64,
    /// Whether there may be unreferenced blobs.
    may_have_unreferenced: AtomicBool,
}

#[derive(Default)]
struct Pins {
    pinned: HashMap<Digest, Pinned>,
    /// Bytes of all contents that are held in memory.
    held_bytes: usize,
    /// Blobs pinned at any time since the running sweep started; `None` if no sweep is running.
    since_sweep: Option<HashSet<Digest>>,
}

/// A blob with at least one handle.
#[derive(Default)]
struct Pinned {
    handle_count: usize,
    /// The content, if it goes into the log.
    content: Option<Arc<[u8]>>,
}

/// A running sweep, from before the references are collected to its end.
pub(crate) struct Sweep<'a> {
    blobs: &'a Blobs,
    _only: MutexGuard<'a, ()>,
}

/// A stored blob, kept from being swept as long as this handle exists.
pub struct Blob {
    blobs: Arc<Blobs>,
    digest: Digest,
    length: u64,
    /// The content, if it goes into the log. A transaction that refers to the blob logs it, unless the log has it.
    content: Option<Arc<[u8]>>,
    is_referenced: AtomicBool,
}

impl Blob {
    /// Returns the digest of the content.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Returns the length of the content in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The name of its file.
    pub(crate) fn stored_name(&self) -> Digest {
        self.blobs.stored_name(&self.digest)
    }

    /// The content, if a transaction that refers to the blob has to ensure that the log has it.
    pub(crate) fn content_to_log(&self) -> Option<&[u8]> {
        self.content.as_deref()
    }

    /// Records that a document revision is about to refer to the blob.
    pub(crate) fn mark_referenced(&self) {
        self.is_referenced.store(true, Ordering::Release);
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob {} of {} bytes", self.digest, self.length)
    }
}

impl Drop for Blob {
    fn drop(&mut self) {
        if !self.is_referenced.load(Ordering::Acquire) {
            self.blobs.mark_unreferenced();
        }
        let mut pins = self.blobs.pins.lock();
        debug_assert!(pins.pinned.contains_key(&self.digest), "a blob stays pinned while a handle to it exists");
        if let Some(pinned) = pins.pinned.get_mut(&self.digest) {
            pinned.handle_count -= 1;
            if pinned.handle_count == 0 {
                let held_bytes = pinned.content.as_ref().map_or(0, |content| content.len());
                pins.pinned.remove(&self.digest);
                pins.held_bytes -= held_bytes;
            }
        }
    }
}

impl Pins {
    fn add(&mut self, digest: Digest) -> &mut Pinned {
        if let Some(since_sweep) = &mut self.since_sweep {
            since_sweep.insert(digest);
        }
        let pinned = self.pinned.entry(digest).or_default();
        pinned.handle_count += 1;
        pinned
    }
}

impl Blobs {
    /// The blobs in `vfs`. Does no I/O.
    pub(crate) fn new(vfs: Arc<dyn Vfs>) -> Self {
        Blobs {
            vfs,
            pins: Mutex::default(),
            sweeping: Mutex::default(),
            next_new: AtomicU64::new(0),
            may_have_unreferenced: AtomicBool::new(true),
        }
    }

    /// Stores `content` in constant memory. Existing content is not stored twice. Returns once the content is flushed
    /// to a file of its own, or, without writing anything, once the handle holds it.
    ///
    /// # Errors
    /// Errors of reading `content`; `Unavailable` if the disk is full or can't be written.
    pub(crate) fn store(self: &Arc<Self>, content: &mut dyn Read) -> Result<Blob> {
        let mut start = Vec::new();
        let limit = LOGGED_BYTES_MAX as u64 + 1;
        content.take(limit).read_to_end(&mut start).map_err(|error| Error::io("read the content", error))?;
        if start.len() <= LOGGED_BYTES_MAX
            && let Some(blob) = self.hold(&start)?
        {
            return Ok(blob);
        }
        self.store_in_file(&mut start.chain(content))
    }

    /// Returns a handle that holds this content; none if handles hold too much, or if a file has it.
    fn hold(self: &Arc<Self>, content: &[u8]) -> Result<Option<Blob>> {
        let mut hasher = content_hasher()?;
        hasher.update(content);
        let digest = hasher.finish();
        let mut pins = self.pins.lock();
        let is_held = pins.pinned.get(&digest).is_some_and(|pinned| pinned.content.is_some());
        if !is_held {
            if pins.held_bytes + content.len() > HELD_BYTES_MAX {
                return Ok(None);
            }
            pins.held_bytes += content.len();
        }
        let held = pins.add(digest).content.get_or_insert_with(|| content.into()).clone();
        drop(pins);
        let is_referenced = AtomicBool::new(false);
        let blob =
            Blob { blobs: self.clone(), digest, length: content.len() as u64, content: Some(held), is_referenced };
        if self.has_file(&digest) {
            blob.mark_referenced();
            return Ok(None);
        }
        Ok(Some(blob))
    }

    /// The content of a blob that a handle holds in memory.
    pub(crate) fn held_content(&self, digest: &Digest) -> Option<BlobReader> {
        let content = self.pins.lock().pinned.get(digest)?.content.clone()?;
        let within = 0..content.len();
        Some(BlobReader::in_memory(format!("the content {digest}"), *digest, content, within))
    }

    /// As [`Blobs::store`], always in a file.
    pub(crate) fn store_in_file(self: &Arc<Self>, content: &mut dyn Read) -> Result<Blob> {
        self.store_in_new_file(content, false)
    }

    fn store_in_new_file(self: &Arc<Self>, content: &mut dyn Read, replaces: bool) -> Result<Blob> {
        let name = format!("{DIRECTORY}/{NEW}{}", self.next_new.fetch_add(1, Ordering::Relaxed));
        self.vfs.create_dir_all(DIRECTORY).map_err(|error| Error::io(format!("create {DIRECTORY}"), error))?;
        let stored = self.write(&name, content, replaces);
        if stored.is_err() {
            // If this fails as well, the remains are removed when the database is opened next.
            self.vfs.remove(&name).ok();
        }
        stored
    }

    /// `replaces`: whether the file of this content is replaced, if there is one.
    fn write(self: &Arc<Self>, name: &str, content: &mut dyn Read, replaces: bool) -> Result<Blob> {
        let failed = |error| Error::io(format!("write {name}"), error);
        let hasher = content_hasher()?;
        let sums = Sums::new(BlobCipher::for_new_file(&*self.vfs)?);
        let file = self.vfs.create(name).map_err(failed)?;
        let mut writer = BlobWriter { file: &*file, sums, hasher, length: 0 };
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let count = fill_buffer(content, &mut chunk).map_err(|error| Error::io("read the content", error))?;
            writer.chunk(&mut chunk[..count]).map_err(failed)?;
            if count < CHUNK_BYTES {
                break;
            }
        }
        let (digest, length) = writer.finish().map_err(failed)?;
        let blob = self.pin(digest, length);
        let file_name = content_name(&*self.vfs, &digest).file_name();
        let (directory, _) = file_name.rsplit_once('/').unwrap_or((DIRECTORY, ""));
        if !replaces && self.vfs.open(&file_name).is_ok() {
            self.vfs.remove(name).map_err(|error| Error::io(format!("remove {name}"), error))?;
        } else {
            self.vfs.create_dir_all(directory).map_err(|error| Error::io(format!("create {directory}"), error))?;
            self.vfs
                .rename(name, &file_name)
                .map_err(|error| Error::io(format!("rename {name} to {file_name}"), error))?;
        }
        // Needed for existing content, too: the thread that stored it may not have flushed the name yet. The directory
        // of the temporary name comes first: the disk must know the file there before it learns that the file moved.
        for directory in [DIRECTORY, directory] {
            self.vfs.sync_dir(directory).map_err(|error| Error::io(format!("flush {directory}"), error))?;
        }
        Ok(blob)
    }

    fn pin(self: &Arc<Self>, digest: Digest, length: u64) -> Blob {
        self.pins.lock().add(digest);
        Blob { blobs: self.clone(), digest, length, content: None, is_referenced: AtomicBool::new(false) }
    }

    /// Pins a blob that a document refers to, so that no sweep removes it from now on. It may be gone already.
    pub(crate) fn pin_referenced(self: &Arc<Self>, digest: Digest, length: u64) -> Blob {
        let blob = self.pin(digest, length);
        blob.mark_referenced();
        blob
    }

    /// Whether a file has this content.
    pub(crate) fn has_file(&self, digest: &Digest) -> bool {
        self.stored_names(digest).iter().any(|name| self.vfs.open(&name.file_name()).is_ok())
    }

    /// The names of the file with this content: one, or two while the database is being encrypted or decrypted.
    fn stored_names(&self, digest: &Digest) -> Vec<Digest> {
        match self.vfs.keyring() {
            None => vec![*digest],
            Some(keyring) => {
                let mut names = vec![Digest(keyring.seal_name(&digest.0))];
                names.extend(keyring.accepts_plain().then_some(*digest));
                names
            }
        }
    }

    fn stored_name(&self, digest: &Digest) -> Digest {
        let mut names = self.stored_names(digest);
        let at = names.iter().position(|name| self.vfs.open(&name.file_name()).is_ok());
        names.swap_remove(at.unwrap_or(0))
    }

    /// The name of the file with this content; that of a new one, if there is none.
    pub(crate) fn file_name(&self, digest: &Digest) -> String {
        self.stored_name(digest).file_name()
    }

    /// Writes all contents again that are stored otherwise than new ones, encrypted or not.
    pub(crate) fn reencrypt(self: &Arc<Self>) -> Result<()> {
        let active = self.vfs.keyring().and_then(|keyring| keyring.active()).unwrap_or(0);
        for digest in self.list()? {
            let mut reader = self.read(&digest)?;
            if reader.key_number() == active {
                continue;
            }
            let stored = self.store_in_new_file(&mut reader, true)?;
            stored.mark_referenced();
            let new_name = content_name(&*self.vfs, &digest);
            for name in self.stored_names(&digest).into_iter().filter(|name| *name != new_name) {
                let name = name.file_name();
                match self.vfs.remove(&name) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(Error::io(format!("remove {name}"), error));
                    }
                    _ => {}
                }
                let directory = name.rsplit_once('/').map_or(DIRECTORY, |(directory, _)| directory);
                self.vfs.sync_dir(directory).map_err(|error| Error::io(format!("flush {directory}"), error))?;
            }
        }
        Ok(())
    }

    /// Records that a reference to a blob was removed, or that a blob was stored that may never be referred to.
    pub(crate) fn mark_unreferenced(&self) {
        self.may_have_unreferenced.store(true, Ordering::Release);
    }

    /// Returns whether a sweep may find unreferenced blobs, and resets that flag.
    pub(crate) fn take_unreferenced(&self) -> bool {
        self.may_have_unreferenced.swap(false, Ordering::AcqRel)
    }

    /// Opens the file of a blob for reading.
    ///
    /// # Errors
    /// `NotFound` if it does not exist; `Corrupt` if its footer is damaged; `Unavailable` if it can't be read.
    pub(crate) fn read(&self, digest: &Digest) -> Result<BlobReader> {
        let name = self.file_name(digest);
        let file = match self.vfs.open(&name) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::not_found(format!("there is no {name}")));
            }
            Err(error) => return Err(Error::io(format!("open {name}"), error)),
        };
        let (length, sums) = footer::read(&*self.vfs, &*file, digest).map_err(|error| damaged(&name, error))?;
        Ok(BlobReader::new(name, *digest, length, Source::File { file, sums, chunk: None }))
    }

    /// All blobs that have a file, in no particular order.
    pub(crate) fn list(&self) -> Result<Vec<Digest>> {
        let list = |name: &str| self.vfs.list(name).map_err(|error| Error::io(format!("read {name}"), error));
        let mut found = Vec::new();
        for first in list(DIRECTORY)? {
            if first.len() == 2 {
                let names = list(&format!("{DIRECTORY}/{first}"))?;
                found.extend(names.iter().filter_map(|rest| format!("{first}{rest}").parse::<Digest>().ok()));
            }
        }
        if let Some(keyring) = self.vfs.keyring() {
            for name in &mut found {
                // A name that is not encrypted can't be told from one that is.
                let is_plain = || self.vfs.open(&name.file_name()).and_then(|file| Ok(!footer::is_encrypted(&*file)?));
                if !keyring.accepts_plain() || !is_plain().unwrap_or(false) {
                    *name = Digest(keyring.open_name(&name.0));
                }
            }
            // A crash may have left a content in both forms.
            found.sort_unstable();
            found.dedup();
        }
        Ok(found)
    }

    /// Pins all blobs that have a file. The caller holds a sweep, so that none is removed meanwhile.
    pub(crate) fn pin_all(self: &Arc<Self>) -> Result<Vec<Blob>> {
        let pin = |digest| Ok(self.pin_referenced(digest, 0));
        self.list()?.into_iter().map(pin).collect()
    }

    /// Starts a sweep after waiting for a running one to end. Collect the references after this call.
    pub(crate) fn begin_sweep(&self) -> Sweep<'_> {
        let only = self.sweeping.lock();
        let mut pins = self.pins.lock();
        pins.since_sweep = Some(pins.pinned.keys().copied().collect());
        Sweep { blobs: self, _only: only }
    }

    /// Removes blobs left incomplete by a crash. Called when a database is opened, before anything is stored.
    pub(crate) fn remove_unfinished(&self) -> Result<()> {
        let names = self.vfs.list(DIRECTORY).map_err(|error| Error::io(format!("read {DIRECTORY}"), error))?;
        for name in names.iter().filter(|name| name.starts_with(NEW)) {
            let name = format!("{DIRECTORY}/{name}");
            self.vfs.remove(&name).map_err(|error| Error::io(format!("remove {name}"), error))?;
        }
        Ok(())
    }
}

impl Sweep<'_> {
    /// Whether a blob was pinned at any time since the sweep started, and must therefore be kept.
    pub(crate) fn is_pinned(&self, digest: &Digest) -> bool {
        self.is_pinned_in(&self.blobs.pins.lock(), digest)
    }

    fn is_pinned_in(&self, pins: &Pins, digest: &Digest) -> bool {
        debug_assert!(pins.since_sweep.is_some(), "a running sweep records every pin");
        let is_pinned = pins.since_sweep.as_ref().is_none_or(|since_sweep| since_sweep.contains(digest));
        if is_pinned {
            // It may be unreferenced later: the next sweep checks again.
            self.blobs.mark_unreferenced();
        }
        is_pinned
    }

    /// Removes a blob's file unless the blob was pinned since the sweep started, and returns the number of bytes freed.
    /// The caller guarantees that nothing referred to it after the sweep started.
    pub(crate) fn remove(&self, digest: &Digest) -> Result<u64> {
        let (name, vfs) = (self.blobs.file_name(digest), &self.blobs.vfs);
        // The lock keeps other threads from pinning the blob.
        let pins = self.blobs.pins.lock();
        if self.is_pinned_in(&pins, digest) {
            return Ok(0);
        }
        let length = vfs.open(&name).and_then(|file| file.len()).unwrap_or(0);
        match vfs.remove(&name) {
            Ok(()) => Ok(length),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(Error::io(format!("remove {name}"), error)),
        }
    }
}

impl Drop for Sweep<'_> {
    fn drop(&mut self) {
        self.blobs.pins.lock().since_sweep = None;
    }
}

/// Writes one blob to its file.
struct BlobWriter<'a> {
    file: &'a dyn VfsFile,
    sums: Sums,
    hasher: ContentHasher,
    length: u64,
}

impl BlobWriter<'_> {
    fn chunk(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.hasher.update(bytes);
        self.sums.add(bytes);
        self.file.write_at(bytes, self.length)?;
        let before = self.length;
        self.length += bytes.len() as u64;
        if before / FLUSH_BYTES != self.length / FLUSH_BYTES { self.file.sync_data() } else { Ok(()) }
    }

    fn finish(self) -> io::Result<(Digest, u64)> {
        let digest = self.hasher.finish();
        self.file.write_at(&self.sums.encode(self.length, &digest), self.length)?;
        self.file.sync_data()?;
        Ok((digest, self.length))
    }
}

fn content_hasher() -> Result<ContentHasher> {
    ContentHasher::new().ok_or_else(|| {
        Error::unavailable("this build of Stemma can't store files")
            .with_hint("build it with the cargo feature `files`")
    })
}

/// Fills the buffer, less only at the end of the content.
fn fill_buffer(content: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut count = 0;
    while count < buffer.len() {
        match content.read(&mut buffer[count..]) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

/// Reads a blob's file of `byte_count` bytes; returns whether its content has this digest. Without a hash function,
/// only its length is verified.
pub(crate) fn is_content_of(file: &mut dyn Read, byte_count: u64, digest: &Digest) -> io::Result<bool> {
    let without_footer = byte_count.saturating_sub(FOOTER_BYTES as u64);
    // Each chunk, of which the last may be shorter, has four bytes of checksum.
    let chunk_count = without_footer.div_ceil(CHUNK_BYTES as u64 + 4);
    let length = without_footer.saturating_sub(4 * chunk_count);
    let mut hasher = ContentHasher::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut rest = length;
    while rest > 0 {
        let count = fill_buffer(&mut (&mut *file).take(rest.min(CHUNK_BYTES as u64)), &mut chunk)?;
        if count == 0 {
            return Ok(false);
        }
        if let Some(hasher) = &mut hasher {
            hasher.update(&chunk[..count]);
        }
        rest -= count as u64;
    }
    io::copy(file, &mut io::sink())?;
    Ok(hasher.is_none_or(|hasher| hasher.finish() == *digest))
}

fn damaged(name: &str, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => Error::corrupt(format!("{name}: {error}"))
            .with_hint("put the file back from a backup, or attach the content again"),
        _ => Error::io(format!("read {name}"), error),
    }
}

/// Reader of a blob with seek support, in constant memory.
///
/// Each 64 KiB chunk is verified before any of it is returned. Content read from start to end is also verified against
/// its digest.
pub struct BlobReader {
    /// Where the content is stored, for errors.
    name: String,
    digest: Digest,
    source: Source,
    length: u64,
    position: u64,
    /// Present as long as all bytes up to the position were read in sequence.
    hasher: Option<ContentHasher>,
}

/// Where a reader gets its bytes.
enum Source {
    File {
        file: Arc<dyn VfsFile>,
        sums: Sums,
        /// The chunk read last: its number and its bytes.
        chunk: Option<(usize, Vec<u8>)>,
    },
    /// A range of these bytes, which were verified.
    Memory(Arc<[u8]>, Range<usize>),
}

impl BlobReader {
    fn new(name: String, digest: Digest, length: u64, source: Source) -> Self {
        BlobReader { name, digest, source, length, position: 0, hasher: ContentHasher::new() }
    }

    /// A reader of content that was read and verified as a part of these bytes.
    pub(crate) fn in_memory(name: String, digest: Digest, bytes: Arc<[u8]>, within: Range<usize>) -> Self {
        let length = within.len() as u64;
        Self::new(name, digest, length, Source::Memory(bytes, within))
    }

    /// Returns the length of the content in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The number of the database key that the file is encrypted with; 0 if it is not encrypted.
    fn key_number(&self) -> u32 {
        match &self.source {
            Source::File { sums, .. } => sums.key_number(),
            Source::Memory(..) => 0,
        }
    }

    /// The bytes of chunk `index`. A file's chunk is read unless it is the one read last.
    fn load(&mut self, index: usize) -> io::Result<&[u8]> {
        let start = index * CHUNK_BYTES;
        let count = (self.length - start as u64).min(CHUNK_BYTES as u64) as usize;
        let (file, sums, chunk) = match &mut self.source {
            Source::Memory(bytes, within) => {
                let start = within.start + start;
                return Ok(&bytes[start..start + count]);
            }
            Source::File { file, sums, chunk } => (file, sums, chunk),
        };
        let is_there = chunk.as_ref().is_some_and(|(read, _)| *read == index);
        if !is_there {
            let mut bytes = chunk.take().map_or_else(Vec::new, |(_, bytes)| bytes);
            bytes.resize(count, 0);
            read_exact_at(&**file, &mut bytes, start as u64)?;
            if !sums.verify(index, &mut bytes) {
                return Err(Self::wrong(&self.name, &format!("the bytes from {start} on fail their checksum")));
            }
            *chunk = Some((index, bytes));
        }
        Ok(chunk.as_ref().map_or(&[][..], |(_, bytes)| bytes))
    }

    fn wrong(name: &str, what: &str) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, format!("{name}: {what}"))
    }
}

impl Read for BlobReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.position >= self.length || buffer.is_empty() {
            return Ok(0);
        }
        let within = (self.position % CHUNK_BYTES as u64) as usize;
        let rest = &self.load((self.position / CHUNK_BYTES as u64) as usize)?[within..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.position += count as u64;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&buffer[..count]);
            if self.position == self.length
                && let Some(hasher) = self.hasher.take()
                && hasher.finish() != self.digest
            {
                return Err(Self::wrong(&self.name, "the content is not what its name says"));
            }
        }
        Ok(count)
    }
}

impl Seek for BlobReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (base, offset) = match to {
            SeekFrom::Start(position) => (position, 0),
            SeekFrom::End(offset) => (self.length, offset),
            SeekFrom::Current(offset) => (self.position, offset),
        };
        let position = base.checked_add_signed(offset).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "there is nothing before the beginning of a blob")
        })?;
        if position == 0 {
            self.hasher = ContentHasher::new();
        } else if position != self.position {
            self.hasher = None;
        }
        self.position = position;
        Ok(position)
    }
}

impl fmt::Debug for BlobReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlobReader at {} of {}", self.position, self.digest)
    }
}

#[cfg(test)]
mod tests;
