//! Reader for damaged history files: it passes on every record in a block whose checksum is right. A file whose header
//! or index is damaged is skipped as a whole.

use std::collections::BTreeSet;

use super::super::damaged_log::Skipped;
use super::super::payload::ChecksumSeed;
use super::super::segment::parse_numbered;
use super::super::{DatabaseId, LogPosition};
use super::{BlockRecords, DIRECTORY, HEADER_BYTES, HistoryFile, SUFFIX, history_name};
use crate::vfs::{Vfs, read_exact_at};
use crate::{Error, Result};

type VisitStored<'v> = &'v mut dyn FnMut(LogPosition, ChecksumSeed, &[u8]) -> Result<()>;

/// Passes the records of all history files to `visit`, in the order of their segments; returns the damaged parts.
///
/// # Errors
/// `Unavailable` if the directory can't be read. Errors of `visit` are returned unchanged.
pub(crate) fn surviving_history(vfs: &dyn Vfs, visit: VisitStored<'_>) -> Result<Vec<Skipped>> {
    let names = match vfs.list(DIRECTORY) {
        Ok(names) => names,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(Error::io(format_args!("list {DIRECTORY}"), error)),
    };
    let numbers: BTreeSet<u32> = names.iter().filter_map(|name| parse_numbered(name, SUFFIX)).collect();
    let mut skipped = Vec::new();
    for number in numbers {
        read_file(vfs, number, &mut skipped, visit)?;
    }
    Ok(skipped)
}

fn read_file(vfs: &dyn Vfs, segment: u32, skipped: &mut Vec<Skipped>, visit: VisitStored<'_>) -> Result<()> {
    let file = history_name(segment);
    let mut skip = |start: u64, end: u64, error: &Error| {
        skipped.push(Skipped { file: file.clone(), start, end, what: error.message().to_owned() });
    };
    let opened = database_id(vfs, &file).and_then(|id| {
        let opened = HistoryFile::open(vfs, segment, &id)?;
        Ok((id, opened.index(vfs)?, opened))
    });
    let (id, index, opened) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            skip(0, vfs.open(&file).and_then(|file| file.len()).unwrap_or(0), &error);
            return Ok(());
        }
    };
    // Records that were written while the database was encrypted were decrypted; the block vouches for them.
    let seed = ChecksumSeed { is_opened: true, ..ChecksumSeed::new(&id) };
    for block in &index.blocks {
        let end = block.start + block.compressed_bytes as u64;
        let content = match opened.read_block(vfs, block) {
            Ok(content) => content,
            Err(error) => {
                skip(block.start, end, &error);
                continue;
            }
        };
        let mut records = BlockRecords::new(&content, block);
        loop {
            match records.next() {
                Ok(Some(record)) => visit(LogPosition::new(segment, record.offset), seed, record.bytes)?,
                Ok(None) => break,
                Err(error) => {
                    skip(block.start, end, &error);
                    break;
                }
            }
        }
    }
    Ok(())
}

/// The id in the header of a file.
fn database_id(vfs: &dyn Vfs, name: &str) -> Result<DatabaseId> {
    let mut header = [0; HEADER_BYTES];
    let read = vfs.open(name).and_then(|file| read_exact_at(&*file, &mut header, 0));
    read.map_err(|error| Error::io(format_args!("read {name}"), error))?;
    let mut id = DatabaseId::default();
    id.copy_from_slice(&header[16..32]);
    Ok(id)
}
