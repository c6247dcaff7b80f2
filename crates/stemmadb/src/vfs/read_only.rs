//! Read-only view of a directory. Writes are kept in memory and discarded at the end, so that crash recovery can run
//! even on a disk that can't be written to.
//!
//! Invariant: nothing on the disk changes, and every name and byte reads as if it had been written.
//!
//! The lock is shared: any number of processes may read a database as long as none writes it.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};

use super::directory::{Access, Directory, LockMode};
use super::disk::DiskFile;
use super::memory::child_of;
use super::{Vfs, VfsFile, VfsLock};
use crate::sync::{Mutex, RwLock};

/// Size of the blocks in which written bytes are kept.
const BLOCK_BYTES: usize = 4096;

/// A directory of the disk that is never written to.
pub(crate) struct ReadOnlyVfs {
    directory: Arc<Directory>,
    names: Arc<Mutex<OverlayNames>>,
}

/// Files that differ from the disk: `Some` with the new content, `None` for a removed file.
type OverlayNames = BTreeMap<String, Option<Arc<OverlayFile>>>;

impl ReadOnlyVfs {
    /// Reads the directory at `path`.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        Ok(ReadOnlyVfs { directory: Arc::new(Directory::open(path)?), names: Arc::default() })
    }

    fn file(&self, name: &str) -> io::Result<Arc<OverlayFile>> {
        match self.names.lock().get(name) {
            Some(Some(file)) => return Ok(Arc::clone(file)),
            Some(None) => return Err(io::ErrorKind::NotFound.into()),
            None => {}
        }
        let file = DiskFile::new(self.directory.handle().open_file(name, Access::Read)?);
        let bytes = file.len()?;
        Ok(self.new_file(name, Some(file), bytes))
    }

    fn new_file(&self, name: &str, disk_file: Option<DiskFile>, bytes: u64) -> Arc<OverlayFile> {
        let content = OverlayContent { blocks: BTreeMap::new(), bytes, visible_disk_bytes: bytes };
        Arc::new_cyclic(|me| OverlayFile {
            names: Arc::downgrade(&self.names),
            name: name.to_owned(),
            me: me.clone(),
            disk_file,
            content: RwLock::new(content),
        })
    }
}

impl Vfs for ReadOnlyVfs {
    fn open(&self, name: &str) -> io::Result<Arc<dyn VfsFile>> {
        self.file(name).map(|file| file as Arc<dyn VfsFile>)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn VfsFile>> {
        if self.file(name).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = self.new_file(name, None, 0);
        self.names.lock().insert(name.to_owned(), Some(Arc::clone(&file)));
        Ok(file)
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        let mut found = self.directory.handle().list(directory)?;
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

    fn lock(&self, name: &str) -> io::Result<Box<dyn VfsLock>> {
        self.directory.lock(name, LockMode::Shared)
    }

    fn remove_dir(&self, _name: &str) -> io::Result<()> {
        Ok(())
    }

    fn is_persistent(&self) -> bool {
        false
    }
}

/// A file of the disk with the bytes written over it.
struct OverlayFile {
    names: Weak<Mutex<OverlayNames>>,
    name: String,
    me: Weak<OverlayFile>,
    /// `None` if the file does not exist on the disk.
    disk_file: Option<DiskFile>,
    content: RwLock<OverlayContent>,
}

struct OverlayContent {
    /// Blocks that differ from the disk, by number.
    blocks: BTreeMap<u64, Box<[u8]>>,
    bytes: u64,
    /// Length of the part of the disk's file that is still visible.
    visible_disk_bytes: u64,
}

impl OverlayFile {
    /// Registers the file as changed, so that later opens see the changes.
    fn register_change(&self) {
        if let Some(names) = self.names.upgrade() {
            names.lock().entry(self.name.clone()).or_insert_with(|| self.me.upgrade());
        }
    }

    /// Reads from the disk; zeros where the file ends or was truncated.
    fn read_from_disk(&self, content: &OverlayContent, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        buffer.fill(0);
        let count = content.visible_disk_bytes.saturating_sub(offset).min(buffer.len() as u64) as usize;
        match &self.disk_file {
            Some(file) if count > 0 => file.read_at(&mut buffer[..count], offset).map(|_| ()),
            _ => Ok(()),
        }
    }

    /// The block `number` for writing, copied from the disk on first use.
    fn block_mut<'a>(&self, content: &'a mut OverlayContent, number: u64) -> io::Result<&'a mut [u8]> {
        if !content.blocks.contains_key(&number) {
            let mut block = vec![0; BLOCK_BYTES].into_boxed_slice();
            self.read_from_disk(content, &mut block, number * BLOCK_BYTES as u64)?;
            content.blocks.insert(number, block);
        }
        Ok(content.blocks.get_mut(&number).expect("the block was just inserted"))
    }
}

/// Splits `count` bytes from `offset` at block boundaries: block number, offset in the block, offset in the bytes, and
/// length.
fn block_spans(offset: u64, count: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let start = (at % BLOCK_BYTES as u64) as usize;
        let step = (BLOCK_BYTES - start).min(count - done);
        let span = (at / BLOCK_BYTES as u64, start, done, step);
        done += step;
        (step > 0).then_some(span)
    })
}

impl VfsFile for OverlayFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let content = self.content.read();
        let count = content.bytes.saturating_sub(offset).min(buffer.len() as u64) as usize;
        self.read_from_disk(&content, &mut buffer[..count], offset)?;
        if !content.blocks.is_empty() {
            for (number, start, done, step) in block_spans(offset, count) {
                if let Some(block) = content.blocks.get(&number) {
                    buffer[done..done + step].copy_from_slice(&block[start..start + step]);
                }
            }
        }
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.register_change();
        let mut content = self.content.write();
        for (number, start, done, step) in block_spans(offset, bytes.len()) {
            let block = self.block_mut(&mut content, number)?;
            block[start..start + step].copy_from_slice(&bytes[done..done + step]);
        }
        content.bytes = content.bytes.max(offset + bytes.len() as u64);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.register_change();
        let mut content = self.content.write();
        if bytes < content.bytes {
            let (last, start) = (bytes / BLOCK_BYTES as u64, (bytes % BLOCK_BYTES as u64) as usize);
            content.blocks.retain(|number, _| *number <= last);
            if let Some(block) = content.blocks.get_mut(&last) {
                block[start..].fill(0);
            }
            content.visible_disk_bytes = content.visible_disk_bytes.min(bytes);
        }
        content.bytes = bytes;
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.content.read().bytes)
    }
}
