//! A directory that is only read. What would be written is kept in memory and forgotten at the end, so whoever writes to put things
//! right after a crash may do so, on a disk that takes no writes too.
//!
//! Invariant: nothing on the disk is changed, and every name and byte is as if it had been.
//!
//! The lock is shared: any number of processes may read a database, as long as none writes it.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use super::disk::DiskFile;
use super::memory::child_of;
use super::{Vfs, VfsFile, VfsLock};
use crate::sync::{Mutex, RwLock};

/// What is written is kept in blocks of this size.
const BLOCK_BYTES: usize = 4096;

/// A directory of the disk, never written to.
pub(crate) struct ReadingVfs {
    directory: PathBuf,
    names: Arc<Mutex<Names>>,
}

/// What is not as on the disk: files with another content, and none where there should be none.
type Names = BTreeMap<String, Option<Arc<ReadingFile>>>;

impl ReadingVfs {
    /// Reads `directory`.
    pub(crate) fn new(directory: &Path) -> io::Result<Self> {
        Ok(ReadingVfs { directory: std::path::absolute(directory)?, names: Arc::default() })
    }

    fn file(&self, name: &str) -> io::Result<Arc<ReadingFile>> {
        match self.names.lock().get(name) {
            Some(Some(file)) => return Ok(Arc::clone(file)),
            Some(None) => return Err(io::ErrorKind::NotFound.into()),
            None => {}
        }
        let file = DiskFile::new(File::open(self.directory.join(name))?);
        let bytes = file.len()?;
        Ok(self.make(name, Some(file), bytes))
    }

    fn make(&self, name: &str, below: Option<DiskFile>, bytes: u64) -> Arc<ReadingFile> {
        let content = Content { blocks: BTreeMap::new(), bytes, below_bytes: bytes };
        Arc::new_cyclic(|me| ReadingFile {
            names: Arc::downgrade(&self.names),
            name: name.to_owned(),
            me: me.clone(),
            below,
            content: RwLock::new(content),
        })
    }
}

impl Vfs for ReadingVfs {
    fn open(&self, name: &str) -> io::Result<Arc<dyn VfsFile>> {
        self.file(name).map(|file| file as Arc<dyn VfsFile>)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn VfsFile>> {
        if self.file(name).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = self.make(name, None, 0);
        self.names.lock().insert(name.to_owned(), Some(Arc::clone(&file)));
        Ok(file)
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        let mut found = Vec::new();
        match std::fs::read_dir(self.directory.join(directory)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(entries) => {
                for entry in entries {
                    found.extend(entry?.file_name().into_string());
                }
            }
        }
        for (name, file) in self.names.lock().iter() {
            if let Some(child) = child_of(directory, name) {
                found.retain(|known| known != child);
                found.extend(file.as_ref().map(|_| child.to_owned()));
            }
        }
        Ok(found)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let file = self.file(from)?;
        let mut names = self.names.lock();
        names.insert(from.to_owned(), None);
        names.insert(to.to_owned(), Some(file));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.file(name)?;
        self.names.lock().insert(name.to_owned(), None);
        Ok(())
    }

    fn sync_dir(&self, _directory: &str) -> io::Result<()> {
        Ok(())
    }

    fn create_dir_all(&self, _directory: &str) -> io::Result<()> {
        Ok(())
    }

    /// Without a lock file nobody has ever written here with one, or it is a copy: nobody can be kept out, and nobody need be.
    fn lock(&self, name: &str) -> io::Result<Box<dyn VfsLock>> {
        let file = match File::open(self.directory.join(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Box::new(ReadingLock { _file: None })),
            Err(error) => return Err(error),
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(Box::new(ReadingLock { _file: Some(file) })),
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn is_persistent(&self) -> bool {
        false
    }
}

struct ReadingLock {
    _file: Option<File>,
}

impl VfsLock for ReadingLock {}

/// A file of the disk, with what was written over it.
struct ReadingFile {
    names: Weak<Mutex<Names>>,
    name: String,
    me: Weak<ReadingFile>,
    /// None if there is no such file on the disk.
    below: Option<DiskFile>,
    content: RwLock<Content>,
}

struct Content {
    /// What is not as on the disk, by number.
    blocks: BTreeMap<u64, Box<[u8]>>,
    bytes: u64,
    /// So much of the file on the disk still shows.
    below_bytes: u64,
}

impl ReadingFile {
    /// Keeps the file, now that it is not as on the disk.
    fn keep(&self) {
        if let Some(names) = self.names.upgrade() {
            names.lock().entry(self.name.clone()).or_insert_with(|| self.me.upgrade());
        }
    }

    /// Reads what is on the disk, zeros where nothing is or shows any more.
    fn read_below(&self, content: &Content, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        buffer.fill(0);
        let count = content.below_bytes.saturating_sub(offset).min(buffer.len() as u64) as usize;
        match &self.below {
            Some(file) if count > 0 => file.read_at(&mut buffer[..count], offset).map(|_| ()),
            _ => Ok(()),
        }
    }

    /// The block, as it is to be changed.
    fn block<'a>(&self, content: &'a mut Content, number: u64) -> io::Result<&'a mut [u8]> {
        if !content.blocks.contains_key(&number) {
            let mut block = vec![0; BLOCK_BYTES].into_boxed_slice();
            self.read_below(content, &mut block, number * BLOCK_BYTES as u64)?;
            content.blocks.insert(number, block);
        }
        Ok(content.blocks.get_mut(&number).expect("it was put there"))
    }
}

/// The blocks that `count` bytes from `offset` lie in: number, where in the block, where in the bytes, and how many.
fn pieces(offset: u64, count: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let start = (at % BLOCK_BYTES as u64) as usize;
        let step = (BLOCK_BYTES - start).min(count - done);
        let piece = (at / BLOCK_BYTES as u64, start, done, step);
        done += step;
        (step > 0).then_some(piece)
    })
}

impl VfsFile for ReadingFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let content = self.content.read();
        let count = content.bytes.saturating_sub(offset).min(buffer.len() as u64) as usize;
        self.read_below(&content, &mut buffer[..count], offset)?;
        if !content.blocks.is_empty() {
            for (number, start, done, step) in pieces(offset, count) {
                if let Some(block) = content.blocks.get(&number) {
                    buffer[done..done + step].copy_from_slice(&block[start..start + step]);
                }
            }
        }
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.keep();
        let mut content = self.content.write();
        for (number, start, done, step) in pieces(offset, bytes.len()) {
            let block = self.block(&mut content, number)?;
            block[start..start + step].copy_from_slice(&bytes[done..done + step]);
        }
        content.bytes = content.bytes.max(offset + bytes.len() as u64);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.keep();
        let mut content = self.content.write();
        if bytes < content.bytes {
            let (last, start) = (bytes / BLOCK_BYTES as u64, (bytes % BLOCK_BYTES as u64) as usize);
            content.blocks.retain(|number, _| *number <= last);
            if let Some(block) = content.blocks.get_mut(&last) {
                block[start..].fill(0);
            }
            content.below_bytes = content.below_bytes.min(bytes);
        }
        content.bytes = bytes;
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.content.read().bytes)
    }
}
