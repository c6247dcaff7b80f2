//! In-memory files, for databases that exist only as long as their process.
//!
//! A file is a list of chunks allocated when written, so holes take no memory. The memory of a removed file is freed as
//! soon as its last reader drops it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use super::{Vfs, VfsFile, VfsLock};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, RwLock};

const CHUNK_BYTES: usize = 64 * 1024;

/// A directory in memory.
#[derive(Default)]
pub(crate) struct MemoryVfs {
    names: Mutex<Names>,
    locked: Arc<AtomicBool>,
}

#[derive(Default)]
struct Names {
    files: BTreeMap<String, Arc<MemoryFile>>,
    directories: BTreeSet<String>,
}

impl MemoryVfs {
    pub(crate) fn new() -> Self {
        Self::default()
    }
}

impl Vfs for MemoryVfs {
    fn open(&self, name: &str) -> io::Result<Arc<dyn VfsFile>> {
        match self.names.lock().files.get(name) {
            Some(file) => Ok(Arc::clone(file) as Arc<dyn VfsFile>),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn VfsFile>> {
        let mut names = self.names.lock();
        if names.files.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = Arc::new(MemoryFile::default());
        names.files.insert(name.to_owned(), Arc::clone(&file));
        Ok(file)
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        let names = self.names.lock();
        let all = names.files.keys().chain(names.directories.iter());
        Ok(all.filter_map(|name| child_of(directory, name)).map(str::to_owned).collect())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut names = self.names.lock();
        let file = names.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        names.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match self.names.lock().files.remove(name) {
            Some(_) => Ok(()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn sync_dir(&self, _directory: &str) -> io::Result<()> {
        Ok(())
    }

    fn create_dir_all(&self, directory: &str) -> io::Result<()> {
        let mut names = self.names.lock();
        for (end, _) in directory.match_indices('/') {
            names.directories.insert(directory[..end].to_owned());
        }
        names.directories.insert(directory.to_owned());
        Ok(())
    }

    fn lock(&self, _name: &str) -> io::Result<Box<dyn VfsLock>> {
        if self.locked.swap(true, Ordering::AcqRel) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(MemoryLock(Arc::clone(&self.locked))))
    }

    fn remove_dir(&self, name: &str) -> io::Result<()> {
        match self.names.lock().directories.remove(name) {
            true => Ok(()),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn is_persistent(&self) -> bool {
        false
    }
}

/// The last component of `name` if it is directly in `directory`.
pub(super) fn child_of<'a>(directory: &str, name: &'a str) -> Option<&'a str> {
    let child = match directory {
        "" => name,
        _ => name.strip_prefix(directory)?.strip_prefix('/')?,
    };
    (!child.is_empty() && !child.contains('/')).then_some(child)
}

/// A lock implemented as a flag.
pub(super) struct MemoryLock(pub(super) Arc<AtomicBool>);

impl VfsLock for MemoryLock {}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[derive(Default)]
struct MemoryFile {
    content: RwLock<MemoryContent>,
}

#[derive(Default)]
struct MemoryContent {
    chunks: Vec<Option<Box<[u8]>>>,
    bytes: u64,
}

impl VfsFile for MemoryFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let content = self.content.read();
        let count = content.bytes.saturating_sub(offset).min(buffer.len() as u64) as usize;
        let mut done = 0;
        while done < count {
            let (chunk, start) = chunk_position(offset + done as u64)?;
            let step = (CHUNK_BYTES - start).min(count - done);
            let target = &mut buffer[done..done + step];
            match content.chunks.get(chunk).and_then(Option::as_ref) {
                Some(bytes) => target.copy_from_slice(&bytes[start..start + step]),
                None => target.fill(0),
            }
            done += step;
        }
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut content = self.content.write();
        let mut done = 0;
        while done < bytes.len() {
            let (chunk, start) = chunk_position(offset + done as u64)?;
            let step = (CHUNK_BYTES - start).min(bytes.len() - done);
            if content.chunks.len() <= chunk {
                content.chunks.resize_with(chunk + 1, || None);
            }
            let target = content.chunks[chunk].get_or_insert_with(|| vec![0; CHUNK_BYTES].into_boxed_slice());
            target[start..start + step].copy_from_slice(&bytes[done..done + step]);
            done += step;
        }
        content.bytes = content.bytes.max(offset + bytes.len() as u64);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let mut content = self.content.write();
        if bytes < content.bytes {
            let (chunk, start) = chunk_position(bytes)?;
            if let Some(Some(last)) = content.chunks.get_mut(chunk) {
                last[start..].fill(0);
            }
            content.chunks.truncate(chunk + usize::from(start > 0));
        }
        content.bytes = bytes;
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.content.read().bytes)
    }
}

/// The chunk number and the offset in the chunk.
fn chunk_position(offset: u64) -> io::Result<(usize, usize)> {
    let chunk = usize::try_from(offset / CHUNK_BYTES as u64).map_err(|_| io::ErrorKind::FileTooLarge)?;
    Ok((chunk, (offset % CHUNK_BYTES as u64) as usize))
}
