//! Salvage from damaged backups: what is left of the newest one is put together and read like a damaged database.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use super::destination::{Destination, create_directories};
use super::manifest::{self, FileEntry, Manifest};
use super::target::Target;
use super::transfer::write_all;
use super::verify::no_backups;
use crate::cipher::{EncryptionKey, KEY_FILE};
use crate::engine::{self, SalvageReport, Salvaged, key_file};
use crate::log::{Digest, history_name, segment_file_name};
use crate::vfs::Vfs;
use crate::{Error, ErrorKind, Result};

/// Reads everything that is readable of the newest backup with an intact manifest, or of backup `number`, although
/// files of it are damaged or missing, and passes it to `visit` as
/// [`salvage_database`](crate::salvage::salvage_database) does.
///
/// `key` is that of an encrypted database, whose key file must be intact.
///
/// The files are copied to a directory of their own below `directory`, and removed afterwards. Restore an older backup
/// instead, if that is enough: [`restore`](super::restore()) never returns anything damaged.
///
/// # Errors
/// `NotFound` if there is no such backup; `Corrupt` if every manifest is damaged; `KeyRequired` or `WrongKey` if the
/// database is encrypted; `Unavailable` if `directory` can't be written; errors of `visit`. Damage is not an error: it
/// is listed in the report.
pub fn salvage(
    target: &dyn Target,
    number: Option<u64>,
    directory: impl AsRef<Path>,
    key: Option<&EncryptionKey>,
    mut visit: impl FnMut(Salvaged) -> Result<()>,
) -> Result<SalvageReport> {
    let manifest = match number {
        Some(number) => Manifest::read(target, number)?,
        None => newest(target)?,
    };
    let name = format!("stemma-salvage-{}", uuid::Uuid::new_v4().simple());
    let destination = Destination::on_disk(&directory.as_ref().join(name))?;
    destination.fill(false, |vfs| copy_surviving(target, &manifest, vfs))?;
    let unlocked = key_file::unlock(destination.open_filled(), key, true);
    let report = unlocked.and_then(|vfs| engine::salvage(vfs, &mut visit));
    let removed = destination.remove_filled();
    let report = report?;
    removed?;
    Ok(report)
}

fn newest(target: &dyn Target) -> Result<Manifest> {
    let numbers = manifest::numbers(target)?;
    if numbers.is_empty() {
        return Err(no_backups(target));
    }
    let newest = manifest::newest(target, &numbers)?;
    newest.ok_or_else(|| Error::corrupt(format!("every manifest in {} is damaged", target.describe())))
}

/// Copies what can be read. Missing bytes become zeros, so that all others stay in their places.
fn copy_surviving(target: &dyn Target, manifest: &Manifest, vfs: &Arc<dyn Vfs>) -> Result<()> {
    let segments = manifest.segments.iter().map(|segment| (segment_file_name(segment.number), &segment.parts[..]));
    let mut files: Vec<(String, &[FileEntry])> = segments.collect();
    for entry in &manifest.history {
        files.push((history_name(entry.segment), std::slice::from_ref(&entry.file)));
    }
    for entry in &manifest.contents {
        files.push((entry.digest.parse::<Digest>()?.file_name(), std::slice::from_ref(&entry.file)));
    }
    for entry in &manifest.tree {
        files.push((entry.path(), std::slice::from_ref(&entry.file)));
    }
    if let Some(keys) = &manifest.keys {
        files.push((KEY_FILE.to_owned(), std::slice::from_ref(&keys.file)));
    }
    create_directories(&**vfs, files.iter().map(|(name, _)| &**name))?;
    for (name, parts) in &files {
        let file = vfs.create(name).map_err(|error| Error::io(format_args!("create {name}"), error))?;
        let mut offset = 0;
        for part in *parts {
            let end = offset + part.length;
            match target.get(&part.name) {
                Ok(content) => {
                    let mut content = UntilFailure(Some(content)).take(part.length);
                    offset = write_all(&file, name, offset, &mut content, &mut |_| ())?;
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            let mut zeros = std::io::repeat(0).take(end - offset);
            offset = write_all(&file, name, offset, &mut zeros, &mut |_| ())?;
        }
    }
    Ok(())
}

/// Reads up to the first byte that can't be read.
struct UntilFailure(Option<Box<dyn Read + Send>>);

impl Read for UntilFailure {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let Some(reader) = &mut self.0 else { return Ok(0) };
        match reader.read(buffer) {
            Err(error) if error.kind() != std::io::ErrorKind::Interrupted => {
                self.0 = None;
                Ok(0)
            }
            read => read,
        }
    }
}
