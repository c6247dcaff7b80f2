//! The files of a mirror: applies changed documents to `documents/`, `by/` and `files/`.
//!
//! A changed document is applied in three steps: remove the old document's links, replace its file, create the new
//! document's links.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::MirrorStats;
use super::disk::Disk;
use super::link::LinkPath;
use super::name;
use crate::replicate::{DocumentLeaves, MissingRevisions, Peer, Transfer, TransferFile};
use crate::revision::Revision;
use crate::value::{Object, Value};
use crate::{Error, Result};

const DOCUMENTS: &str = "documents";
const BY: &str = "by";
const FILES: &str = "files";

/// The mirror's directory tree, without its recorded position.
pub(super) struct FileTree {
    disk: Disk,
    paths: Vec<LinkPath>,
    with_files: bool,
}

/// The target state of one document.
struct TargetDocument {
    object: Object,
    /// The winning revision and its ancestors.
    revisions: Vec<Revision>,
    files: Vec<TransferFile>,
}

impl FileTree {
    pub(super) fn new(disk: Disk, paths: Vec<LinkPath>, with_files: bool) -> Self {
        FileTree { disk, paths, with_files }
    }

    pub(super) fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Creates the fixed directories, and removes `files/` if files are not mirrored.
    pub(super) fn prepare(&self) -> Result<()> {
        self.disk.create_directory(DOCUMENTS.as_ref())?;
        for path in &self.paths {
            self.disk.create_directory(&Path::new(BY).join(path.directory()))?;
        }
        if self.with_files { Ok(()) } else { self.disk.remove_all(FILES.as_ref()) }
    }

    /// Removes the whole tree.
    pub(super) fn clear(&self) -> Result<()> {
        [BY, FILES, DOCUMENTS].iter().try_for_each(|directory| self.disk.remove_all(directory.as_ref()))
    }

    /// Rebuilds all links from the mirrored documents.
    pub(super) fn rebuild_links(&self) -> Result<()> {
        self.disk.remove_all(BY.as_ref())?;
        for name in self.disk.list(DOCUMENTS.as_ref())? {
            let Some(name) = name.to_str() else { continue };
            if let Some((_, document)) = self.read(name)? {
                self.link(name, &document)?;
            }
        }
        Ok(())
    }

    /// Applies the source's current state of these documents. Returns `Stopped` early once `should_continue` returns
    /// false.
    pub(super) fn apply_changes(
        &self,
        source: &dyn Peer,
        leaves: Vec<DocumentLeaves>,
        stats: &mut MirrorStats,
        should_continue: &mut dyn FnMut(&MirrorStats) -> bool,
    ) -> Result<()> {
        let counts: BTreeMap<_, _> = leaves.iter().map(|leaves| (leaves.id.clone(), leaves.revisions.len())).collect();
        let revisions: Vec<_> = leaves
            .into_iter()
            .map(|DocumentLeaves { id, revisions }| MissingRevisions { id, revisions, possible_ancestors: Vec::new() })
            .collect();
        let mut leaves_of_one: Vec<Transfer> = Vec::new();
        let mut apply = |leaves_of_one: Vec<Transfer>| {
            // A leaf that no longer exists has a successor, which the feed lists later.
            let is_whole =
                leaves_of_one.first().is_some_and(|first| counts.get(&first.id) <= Some(&leaves_of_one.len()));
            if is_whole {
                self.apply(leaves_of_one, stats)?;
            }
            if should_continue(stats) { Ok(()) } else { Err(Error::stopped("the mirror was stopped")) }
        };
        source.read(&revisions, &mut |transfer| {
            if leaves_of_one.first().is_some_and(|first| first.id != transfer.id) {
                apply(std::mem::take(&mut leaves_of_one))?;
            }
            leaves_of_one.push(transfer);
            Ok(())
        })?;
        if leaves_of_one.is_empty() { Ok(()) } else { apply(leaves_of_one) }
    }

    /// Applies the leaves of one document.
    fn apply(&self, mut leaves: Vec<Transfer>, stats: &mut MirrorStats) -> Result<()> {
        leaves.sort_by_key(|leaf| std::cmp::Reverse((!leaf.deleted, leaf.revisions.first().copied())));
        let mut leaves = leaves.into_iter();
        let Some(winner) = leaves.next() else { return Ok(()) };
        let name = name::encode_text(winner.id.as_str());
        if winner.deleted {
            stats.removed_count += 1;
            return self.remove(&name);
        }
        let conflicts =
            leaves.filter(|leaf| !leaf.deleted).filter_map(|leaf| leaf.revisions.first().copied()).collect();
        stats.written_count += 1;
        self.put(&name, target_document(winner, conflicts))
    }

    fn put(&self, name: &str, target_document: TargetDocument) -> Result<()> {
        let file = format!("{name}.json");
        let text = format!("{}\n", Value::Object(target_document.object.clone()).to_json_pretty());
        let old = self.read(&file)?;
        let is_changed = old.as_ref().is_none_or(|(old, _)| *old != text);
        let old = old.map(|(_, old)| old);
        if let Some(old) = old.as_ref().filter(|_| is_changed) {
            self.unlink(&file, old)?;
        }
        if self.with_files {
            self.copy_files(name, target_document.files, &target_document.revisions, old.as_ref())?;
        }
        if is_changed {
            self.disk.write(&Path::new(DOCUMENTS).join(&file), text.as_bytes())?;
        }
        if self.with_files {
            self.sweep_files(name, &target_document.object)?;
        }
        self.link(&file, &target_document.object)
    }

    fn remove(&self, name: &str) -> Result<()> {
        let file = format!("{name}.json");
        if let Some((_, old)) = self.read(&file)? {
            self.unlink(&file, &old)?;
            self.disk.remove(&Path::new(DOCUMENTS).join(&file))?;
        }
        if self.with_files { self.disk.remove_all(&Path::new(FILES).join(name)) } else { Ok(()) }
    }

    /// Reads a mirrored document, as text and parsed.
    fn read(&self, file: &str) -> Result<Option<(String, Object)>> {
        let path = Path::new(DOCUMENTS).join(file);
        let Some(bytes) = self.disk.read(&path)? else { return Ok(None) };
        let damaged = || {
            Error::corrupt(format!("{} is not what the mirror wrote", self.disk.root().join(&path).display()))
                .with_hint("rebuild the mirror")
        };
        let text = String::from_utf8(bytes).map_err(|_| damaged())?;
        match Value::parse(text.as_bytes()) {
            Ok(Value::Object(object)) => Ok(Some((text, object))),
            _ => Err(damaged()),
        }
    }

    /// The directories that contain links to a document.
    fn link_directories(&self, document: &Object) -> impl Iterator<Item = PathBuf> {
        self.paths.iter().flat_map(|path| {
            let directory = Path::new(BY).join(path.directory());
            path.names(document).into_iter().map(move |value| directory.join(value))
        })
    }

    fn link(&self, file: &str, document: &Object) -> Result<()> {
        for directory_path in self.link_directories(document) {
            self.disk.create_directory(&directory_path)?;
            self.disk.link(&directory_path.join(file), &Path::new("../../..").join(DOCUMENTS).join(file))?;
        }
        Ok(())
    }

    fn unlink(&self, file: &str, document: &Object) -> Result<()> {
        for directory_path in self.link_directories(document) {
            self.disk.remove(&directory_path.join(file))?;
            self.disk.remove_if_empty(&directory_path)?;
        }
        Ok(())
    }

    /// Copies the files that `old`, the document mirrored so far, did not have.
    fn copy_files(
        &self,
        name: &str,
        files: Vec<TransferFile>,
        branch: &[Revision],
        old: Option<&Object>,
    ) -> Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        let directory = Path::new(FILES).join(name);
        self.disk.create_directory(&directory)?;
        let before = old.and_then(|old| old.get("_rev")?.as_str()?.parse::<Revision>().ok());
        // On another branch, a file of the same name and generation may have other content.
        let before = before.filter(|before| branch.contains(before)).map_or(0, |before| before.generation());
        for file in files {
            let path = directory.join(name::encode_text(&file.name));
            if file.generation > before || !self.disk.exists(&path) {
                // The content no longer exists because the revision was replaced; the feed lists its successor later.
                let Some(content) = (file.open)()? else { continue };
                self.disk.write(&path, content)?;
            }
        }
        Ok(())
    }

    /// Removes files that the document no longer has.
    fn sweep_files(&self, name: &str, document: &Object) -> Result<()> {
        let directory = Path::new(FILES).join(name);
        let files = document.get("_attachments").and_then(Value::as_object);
        let names: Vec<String> = files.into_iter().flat_map(Object::names).map(name::encode_text).collect();
        for file in self.disk.list(&directory)? {
            if !names.iter().any(|name| file == **name) {
                self.disk.remove(&directory.join(file))?;
            }
        }
        if names.is_empty() { self.disk.remove_if_empty(&directory) } else { Ok(()) }
    }
}

/// Builds a document's target state: the document as HTTP returns it, with attachment stubs and conflicting revisions.
fn target_document(winner: Transfer, conflicts: Vec<Revision>) -> TargetDocument {
    let Transfer { id, revisions, body, files, .. } = winner;
    let mut object = Object::new();
    object.insert("_id", id.as_str());
    object.insert("_rev", revisions.first().map(ToString::to_string).unwrap_or_default());
    if !conflicts.is_empty() {
        object.insert("_conflicts", conflicts.iter().map(ToString::to_string).map(Value::from).collect::<Vec<_>>());
    }
    if !files.is_empty() {
        let stub = |file: &TransferFile| {
            let mut stub = Object::new();
            stub.insert("content_type", file.content_type.as_str());
            stub.insert("length", file.length);
            stub.insert("revpos", file.generation);
            (file.name.clone(), Value::Object(stub))
        };
        object.insert("_attachments", Value::Object(files.iter().map(stub).collect()));
    }
    if let Value::Object(body) = body {
        object.extend(body);
    }
    TargetDocument { object, revisions, files }
}
