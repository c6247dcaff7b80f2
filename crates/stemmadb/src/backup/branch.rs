//! Branches: writable copies of an open database that share its files.
//!
//! Invariant: a file that a branch shares is never written to, by neither side. The last segment of a branch, to which
//! it appends, is therefore a copy; and so is the manifest of the tree.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use super::cut::{CopiedSegment, CutAt, cut};
use super::destination::{
    Destination, create_directories, fill as fill_files, flush_directories, open_copy, with_keys,
};
use super::directory_target::FileReader;
use super::restore::At;
use super::transfer::{SegmentReader, open_file, write_all};
use crate::engine::directory::create_stored;
use crate::engine::{Store, StoreExport};
use crate::log::{ExportedHistory, segment_file_name};
use crate::vfs::{LogStorage, Vfs};
use crate::{Error, ErrorKind, Result};

/// A longer active segment is sealed first, so that it is linked instead of copied.
const COPIED_BYTES_MAX: u64 = 4 << 20;

/// Creates a branch of an open database in `directory`.
///
/// # Errors
/// `Invalid` if the directory exists or the state is a backup; `NotFound` if the log does not have the state any more;
/// `Unavailable` if files can't be written.
pub(crate) fn branch(store: &Store, directory: &Path, at: At) -> Result<()> {
    branch_to(store, &Destination::on_disk(directory)?, at)
}

/// Creates a branch of an open database whose log is in `storage`, and what is derived from it in `directory`.
///
/// # Errors
/// `Invalid` if the store has the log; those of [`branch`].
pub(crate) fn branch_to_store(store: &Store, directory: &Path, at: At, storage: Arc<dyn LogStorage>) -> Result<()> {
    let (vfs, _lock) = create_stored(directory, storage)?;
    branch_by(store, at, |work| fill_files(&vfs, work))
}

pub(super) fn branch_to(store: &Store, destination: &Destination, at: At) -> Result<()> {
    branch_by(store, at, |work| destination.fill(false, work))
}

/// Creates a branch by `fill`, which passes on the files to be filled.
fn branch_by(
    store: &Store,
    at: At,
    fill: impl FnOnce(&dyn Fn(&Arc<dyn Vfs>) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let at = match at {
        At::Latest => None,
        At::Sequence(sequence) => Some(CutAt::Sequence(sequence)),
        At::Time(time) => Some(CutAt::of_time(time)),
        At::Backup(_) => {
            return Err(
                Error::invalid("a branch begins at a sequence, not at a backup").with_hint("restore the backup")
            );
        }
    };
    store.seal_segment_longer_than(COPIED_BYTES_MAX)?;
    let export = store.export(None)?;
    if let Some(CutAt::Sequence(at)) = at
        && at > export.sequence
    {
        let message = format!("sequence {} does not exist yet: the newest is {}", at.get(), export.sequence.get());
        return Err(Error::not_found(message));
    }
    let older = at.filter(|at| match *at {
        CutAt::Sequence(sequence) => sequence < export.sequence,
        CutAt::Time(time_us) => time_us < export.time_us,
    });
    fill(&|vfs| match export.vfs.keyring() {
        Some(keyring) => copy_files(&with_keys(vfs, keyring)?, &export, older),
        None => copy_files(vfs, &export, older),
    })
}

fn copy_files(vfs: &Arc<dyn Vfs>, export: &StoreExport, older: Option<CutAt>) -> Result<()> {
    let contents: Vec<String> = export.blobs.iter().map(|blob| blob.stored_name().file_name()).collect();
    let files = if older.is_none() { export.tree.files() } else { Vec::new() };
    let segment = segment_file_name(1);
    let history = export.history.iter().filter(|file| older.is_none_or(|at| !at.is_before_history(&file.info)));
    let history: Vec<_> = history.collect();
    let names = contents.iter().chain(files.iter().map(|(name, _)| name)).chain([&segment]);
    let names = names.chain(history.iter().map(|file| &file.name));
    let directories = create_directories(&**vfs, names.map(String::as_str))?;
    copy_log(vfs, export)?;
    for name in &contents {
        link_or_copy(vfs, &export.vfs, name, &mut || Ok(Box::new(open_file(&*export.vfs, name)?)))?;
    }
    for ExportedHistory { name, file, .. } in history {
        let mut content =
            || -> Result<Box<dyn Read + '_>> { Ok(Box::new(FileReader { file: file.clone(), offset: 0 })) };
        link_or_copy(vfs, &export.vfs, name, &mut content)?;
    }
    for (name, _) in &files {
        let source = export.tree.vfs();
        link_or_copy(vfs, source, name, &mut || Ok(Box::new(open_file(&**source, name)?)))?;
    }
    flush_directories(&**vfs, &directories)?;
    match older {
        None if files.is_empty() => Ok(()),
        None => export.tree.write_manifest(vfs.clone()),
        Some(at) => cut_at(vfs, export, at),
    }
}

fn copy_log(vfs: &Arc<dyn Vfs>, export: &StoreExport) -> Result<()> {
    let last = export.segments.len().saturating_sub(1);
    for (index, segment) in export.segments.iter().enumerate() {
        let name = segment_file_name(segment.number());
        let mut content =
            || -> Result<Box<dyn Read + '_>> { Ok(Box::new(SegmentReader::new(segment, 0, segment.byte_count))) };
        if index == last || !segment.is_sealed {
            copy(vfs, &name, &mut *content()?)?;
        } else {
            link_or_copy(vfs, &export.vfs, &name, &mut content)?;
        }
    }
    Ok(())
}

/// Ends the log of the branch at a sequence. Its tree is rebuilt, since that of the database is newer.
fn cut_at(vfs: &Arc<dyn Vfs>, export: &StoreExport, at: CutAt) -> Result<()> {
    let mut segments = Vec::with_capacity(export.segments.len());
    for segment in &export.segments {
        let first = segment.first_moment()?.map(|first| (first.sequence.get(), first.time_us));
        segments.push(CopiedSegment { number: segment.number(), first });
    }
    cut(vfs, &segments, at)?;
    match open_copy(vfs, false, &mut |_| ()) {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            let message = format!("the log does not reach back to {at} any more: {}", error.message());
            Err(Error::not_found(message).with_hint("restore a backup from that time, or branch at a later sequence"))
        }
        opened => opened.map(|_| ()),
    }
}

/// The content of a file, opened when it is copied.
type Content<'a> = dyn FnMut() -> Result<Box<dyn Read + 'a>> + 'a;

/// Gives the file `name` of `source` the same name in `vfs`, or copies it if links are not possible.
fn link_or_copy(vfs: &Arc<dyn Vfs>, source: &Arc<dyn Vfs>, name: &str, content: &mut Content<'_>) -> Result<()> {
    match vfs.link_from(&**source, name, name) {
        Ok(true) => Ok(()),
        // A segment that was retired since has another name, or none.
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(format_args!("link {name}"), error))
        }
        _ => copy(vfs, name, &mut *content()?),
    }
}

fn copy(vfs: &Arc<dyn Vfs>, name: &str, content: &mut dyn Read) -> Result<()> {
    let file = vfs.create(name).map_err(|error| Error::io(format_args!("create {name}"), error))?;
    write_all(&file, name, 0, content, &mut |_| ())?;
    file.sync_data().map_err(|error| Error::io(format_args!("flush {name}"), error))
}
