//! Copies of the tree in the store of the log: the next owner of the log begins with the newest one, and replays only
//! what follows it.
//!
//! The files of a tree never change. A copy has a name for each of them, which says what it contains, and a manifest
//! with the position of the checkpoint in its name. The names of a copy replace those of the one before all at once.
//! Files are fetched when they are read.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use super::Store;
use super::directory::TREE;
use crate::layout::meta;
use crate::log::LogPosition;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::tree::{IdentifiedFile, Tree, TreeExport, manifest_path, run_path};
use crate::vfs::{StoredVfs, Vfs, create_anew, read_exact_at, read_whole};
use crate::{Error, Result};

/// The directory of the copy.
const DIRECTORY: &str = "shipped";
const UNFINISHED: &str = "shipped/unfinished";
const MANIFEST: &str = ".manifest";
const RUN: &str = ".run";

/// A new copy is made after this many bytes of log.
const SHIP_BYTES: u64 = if cfg!(any(test, feature = "testing")) { 256 << 10 } else { 32 << 20 };

/// What a store knows of the copy of its tree.
#[derive(Default)]
pub(super) struct Shipping {
    /// Bytes that were written to the log when the last copy was made.
    shipped_at: Mutex<u64>,
    /// Whether the last copy may be of no use any more.
    is_outdated: AtomicBool,
}

impl Store {
    /// Whether a copy of the tree is due.
    pub(super) fn must_ship_tree(&self) -> bool {
        self.parts.vfs.keeps_tree_copies()
            && (self.shipping.is_outdated.load(Ordering::Relaxed)
                || self.parts.log.statistics().written_bytes >= *self.shipping.shipped_at.lock() + SHIP_BYTES)
    }

    /// A segment was retired, which the copy may refer to.
    pub(super) fn note_outdated_copy(&self) {
        self.shipping.is_outdated.store(true, Ordering::Relaxed);
    }

    /// Copies the tree into the store of the log, if that is due.
    pub(super) fn ship_tree(&self) -> Result<()> {
        if !self.must_ship_tree() {
            return Ok(());
        }
        let written_bytes = self.parts.log.statistics().written_bytes;
        self.shipping.is_outdated.store(false, Ordering::Relaxed);
        ship(&self.parts.tree.export(), &*self.parts.vfs).inspect_err(|_| self.note_outdated_copy())?;
        *self.shipping.shipped_at.lock() = written_bytes;
        Ok(())
    }
}

/// Copies a tree, unless it has no checkpoint.
fn ship(export: &TreeExport, vfs: &dyn Vfs) -> Result<()> {
    let Some(checkpoint) = meta::checkpoint(export.snapshot())? else { return Ok(()) };
    let (_, manifest) = export.manifest()?;
    let failed = |error| Error::io("copy the tree to the store of the log", error);
    let manifest_name = format!("{DIRECTORY}/{:016x}{MANIFEST}", checkpoint.replay_from.to_u64());
    let mut names = BTreeSet::from([manifest_name.clone()]);
    for file in export.identified_files() {
        let name = copy_name(&file);
        copy_file(vfs, &file, &name).map_err(failed)?;
        names.insert(name);
    }
    let replaced = create_anew(vfs, UNFINISHED).and_then(|unfinished| {
        unfinished.write_at(&manifest, 0)?;
        unfinished.sync_data()?;
        vfs.rename(UNFINISHED, &manifest_name)?;
        for name in copied_names(vfs)?.iter().filter(|name| !names.contains(*name)) {
            vfs.remove(name)?;
        }
        vfs.sync_dir(DIRECTORY)
    });
    replaced.map_err(failed)
}

/// Copies a file, unless the copy before has it.
fn copy_file(vfs: &dyn Vfs, file: &IdentifiedFile, name: &str) -> io::Result<()> {
    match vfs.open(name) {
        Ok(known) if known.len()? == file.byte_count => return Ok(()),
        Ok(_) => vfs.remove(name)?,
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Err(_) => {}
    }
    if vfs.link_from(vfs, &file.path, name)? {
        return vfs.open(name)?.sync_data();
    }
    let (source, copy) = (vfs.open(&file.path)?, vfs.create(name)?);
    let mut buffer = vec![0; (1 << 20).min(file.byte_count) as usize];
    let mut offset = 0;
    while offset < file.byte_count {
        let count = (file.byte_count - offset).min(buffer.len() as u64) as usize;
        read_exact_at(&*source, &mut buffer[..count], offset)?;
        copy.write_at(&buffer[..count], offset)?;
        offset += count as u64;
    }
    copy.sync_data()
}

fn copied_names(vfs: &dyn Vfs) -> io::Result<Vec<String>> {
    Ok(vfs.list(DIRECTORY)?.into_iter().map(|name| format!("{DIRECTORY}/{name}")).collect())
}

fn copy_name(file: &IdentifiedFile) -> String {
    format!("{DIRECTORY}/{:010}-{:032x}{RUN}", file.number, file.checksum)
}

/// The position of the checkpoint of the copy in a store; none if there is no copy.
pub(super) fn position(vfs: &dyn Vfs) -> Result<Option<LogPosition>> {
    let names = copied_names(vfs).map_err(|error| Error::io(format_args!("list {DIRECTORY}"), error))?;
    let position = |name: &String| {
        let digits = name.strip_prefix(DIRECTORY)?.strip_prefix('/')?.strip_suffix(MANIFEST)?;
        u64::from_str_radix(digits, 16).ok().map(LogPosition::from_u64)
    };
    Ok(names.iter().filter_map(position).max())
}

/// Lets the tree read files of the copy that it does not have itself.
pub(super) fn lend(vfs: &StoredVfs) -> io::Result<()> {
    for name in copied_names(vfs)? {
        let number = name.strip_suffix(RUN).and_then(|name| name[DIRECTORY.len() + 1..].get(..10)?.parse().ok());
        if let Some(number) = number {
            vfs.lend(&run_path(TREE, number), &name)?;
        }
    }
    Ok(())
}

/// Whether the tree has all of its files, or the copy has them.
pub(super) fn has_all_files(tree: &Tree, vfs: &StoredVfs) -> bool {
    tree.export().identified_files().iter().all(|file| vfs.is_lent_or_local(&file.path, &copy_name(file)))
}

/// Makes the copy at this position the tree, in place of one that was removed.
pub(super) fn adopt(vfs: &Arc<dyn Vfs>, position: LogPosition) -> io::Result<()> {
    let copy = vfs.open(&format!("{DIRECTORY}/{:016x}{MANIFEST}", position.to_u64()))?;
    let manifest = read_whole(&*copy)?;
    vfs.create_dir_all(TREE)?;
    let file = create_anew(&**vfs, &manifest_path(TREE))?;
    file.write_at(&manifest, 0)?;
    file.sync_data()?;
    vfs.sync_dir(TREE)
}
