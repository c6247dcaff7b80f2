//! File access to the real disk: a directory of files, read and written at offsets and flushed with `fdatasync` or the
//! platform's equivalent.
//!
//! `File::sync_data` and `sync_all` reach the medium on every platform (`F_FULLFSYNC` on Apple systems); a raw `fsync`
//! does not.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::directory::{Access, Directory, LockMode};
use super::open_files::{CountedFile, open_with_retry};
use super::{Vfs, VfsFile, VfsLock};

/// A directory on the real disk.
pub(crate) struct DiskVfs {
    directory: Arc<Directory>,
}

impl DiskVfs {
    /// Uses the directory at `path`, creating it if it does not exist and flushing its name.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        create_and_sync(&path)?;
        Ok(DiskVfs { directory: Arc::new(Directory::open(&path)?) })
    }

    fn open_file(&self, name: &str, access: Access) -> io::Result<Arc<dyn VfsFile>> {
        debug_assert!(name.split('/').all(|part| part != ".."), "names never leave the directory: {name}");
        Ok(Arc::new(DiskFile::new(self.directory.handle().open_file(name, access)?)))
    }
}

impl Vfs for DiskVfs {
    fn open(&self, name: &str) -> io::Result<Arc<dyn VfsFile>> {
        self.open_file(name, Access::ReadWrite)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn VfsFile>> {
        self.open_file(name, Access::CreateNew)
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        self.directory.handle().list(directory)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.directory.handle().rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.directory.handle().remove(name)
    }

    fn sync_dir(&self, directory: &str) -> io::Result<()> {
        self.directory.handle().sync(directory)
    }

    fn create_dir_all(&self, directory: &str) -> io::Result<()> {
        let handle = self.directory.handle();
        let ends = directory.match_indices('/').map(|(end, _)| end).chain([directory.len()]);
        for name in ends.map(|end| &directory[..end]) {
            let is_last = name.len() == directory.len();
            // A process that created it may have been killed before it flushed the name.
            if handle.create(name)? || is_last {
                handle.sync(name.rsplit_once('/').map_or("", |(parent, _)| parent))?;
            }
        }
        Ok(())
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn VfsLock>> {
        self.directory.lock(name, LockMode::Exclusive)
    }

    fn remove_dir(&self, name: &str) -> io::Result<()> {
        self.directory.handle().remove_directory(name)
    }

    fn link_from(&self, source: &dyn Vfs, from: &str, to: &str) -> io::Result<bool> {
        match source.linkable_directory() {
            Some(source) => self.directory.handle().link_from(source.handle(), from, to),
            None => Ok(false),
        }
    }

    fn linkable_directory(&self) -> Option<&Directory> {
        Some(&self.directory)
    }

    fn is_persistent(&self) -> bool {
        true
    }
}

pub(super) struct DiskFile {
    file: File,
    _counted: CountedFile,
}

impl DiskFile {
    pub(super) fn new(file: File) -> Self {
        DiskFile { file, _counted: CountedFile::new() }
    }
}

impl VfsFile for DiskFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match positioned::read(&self.file, &mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match positioned::write(&self.file, &bytes[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    #[cfg(unix)]
    fn is_shared(&self) -> io::Result<bool> {
        Ok(std::os::unix::fs::MetadataExt::nlink(&self.file.metadata()?) > 1)
    }
}

/// Creates the missing part of `directory` from the top down, flushing the name of each directory in its parent.
fn create_and_sync(directory: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = directory.ancestors().take_while(|path| !path.is_dir()).collect();
    if missing.is_empty() {
        // A process that created it may have been killed before it flushed the name. The parent may be unreadable for
        // this user.
        return match directory.parent().map(sync_directory) {
            Some(Err(error)) if error.kind() != io::ErrorKind::PermissionDenied => Err(error),
            _ => Ok(()),
        };
    }
    for path in missing.into_iter().rev() {
        match std::fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
            result => result?,
        }
        if let Some(parent) = path.parent() {
            sync_directory(parent)?;
        }
    }
    Ok(())
}

#[cfg(unix)]
fn sync_directory(directory: &Path) -> io::Result<()> {
    open_with_retry(|| File::open(directory))?.sync_all()
}

/// On other platforms a directory can't be opened for flushing; the file system journals its names.
#[cfg(not(unix))]
fn sync_directory(_directory: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(unix)]
mod positioned {
    use std::fs::File;
    use std::io;
    use std::os::unix::fs::FileExt;

    pub(super) fn read(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        file.read_at(buffer, offset)
    }

    pub(super) fn write(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
        file.write_at(bytes, offset)
    }
}

#[cfg(windows)]
mod positioned {
    use std::fs::File;
    use std::io;
    use std::os::windows::fs::FileExt;

    pub(super) fn read(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        file.seek_read(buffer, offset)
    }

    pub(super) fn write(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
        file.seek_write(bytes, offset)
    }
}
