//! The identity of a database, by which replication, mirrors and backups recognize it.
//!
//! The id in the log's segments belongs to the log: frames are valid only with it, so a copy that shares segments has
//! the same one. A copy that goes its own way, restored or branched, therefore has an identity of its own in a file,
//! `IDENTITY`: 32 hexadecimal digits and a line end. Without the file, the identity is the id of the log.
//!
//! Invariant: the file is written only while a copy is made, before it becomes a database.

use std::io;
use std::sync::Arc;

use uuid::Uuid;

use crate::log::DatabaseId;
use crate::vfs::{Vfs, read_exact_at};
use crate::{Error, Result};

const FILE: &str = "IDENTITY";

/// The length of the file in bytes.
const FILE_BYTES: usize = 33;

/// The identity in the database directory `vfs`; none if it is that of the log.
pub(super) fn read(vfs: &dyn Vfs) -> Result<Option<DatabaseId>> {
    let file = match vfs.open(FILE) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(format_args!("open {FILE}"), error)),
    };
    let mut text = [0; FILE_BYTES];
    match read_exact_at(&*file, &mut text, 0) {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
            return Err(Error::io(format_args!("read {FILE}"), error));
        }
        _ => {}
    }
    let id = str::from_utf8(&text).ok().and_then(|text| Uuid::try_parse(text.strip_suffix('\n')?).ok());
    match id {
        Some(id) => Ok(Some(*id.as_bytes())),
        None => Err(Error::corrupt(format!("{FILE} is damaged: it is not 32 hexadecimal digits"))
            .with_hint("delete the file: the database then counts as the one it was copied from")),
    }
}

/// Gives the copy in `vfs` an identity of its own, flushed but for its name.
pub(crate) fn write_new(vfs: &Arc<dyn Vfs>) -> Result<()> {
    let text = format!("{}\n", Uuid::new_v4().simple());
    let written = vfs.create(FILE).and_then(|file| {
        file.write_at(text.as_bytes(), 0)?;
        file.sync_data()
    });
    written.map_err(|error| Error::io(format_args!("write {FILE}"), error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::MemoryVfs;

    #[test]
    fn identity_is_read_back_and_damage_is_reported() {
        let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
        assert_eq!(read(&*vfs).unwrap(), None);
        write_new(&vfs).unwrap();
        let first = read(&*vfs).unwrap().unwrap();
        assert_eq!(read(&*vfs).unwrap(), Some(first));
        vfs.open(FILE).unwrap().write_at(b"x", 5).unwrap();
        assert_eq!(read(&*vfs).unwrap_err().kind(), crate::ErrorKind::Corrupt);
        vfs.remove(FILE).unwrap();
        write_new(&vfs).unwrap();
        assert_ne!(read(&*vfs).unwrap(), Some(first), "each copy has its own identity");
    }
}
