//! How does a change come into the copy? Links of the old document go, the new one takes its place, its links are made.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Mirrored;
use super::disk::Disk;
use super::link::LinkPath;
use super::name;
use crate::replicate::{Leaves, Peer, Transfer, TransferFile, Wanted};
use crate::revision::Revision;
use crate::value::{Object, Value};
use crate::{Error, Result};

const DOCUMENTS: &str = "documents";
const BY: &str = "by";
const FILES: &str = "files";

/// The copy on the disk, without its position.
pub(super) struct Copy {
    disk: Disk,
    paths: Vec<LinkPath>,
    with_files: bool,
}

/// What a document is to be.
struct Wished {
    object: Object,
    /// Its revision, and those it descends from.
    revisions: Vec<Revision>,
    files: Vec<TransferFile>,
}

impl Copy {
    pub(super) fn new(disk: Disk, paths: Vec<LinkPath>, with_files: bool) -> Self {
        Copy { disk, paths, with_files }
    }

    pub(super) fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Makes the directories that are always there, and removes files that are not wanted.
    pub(super) fn prepare(&self) -> Result<()> {
        self.disk.create_directory(DOCUMENTS.as_ref())?;
        for path in &self.paths {
            self.disk.create_directory(&Path::new(BY).join(path.directory()))?;
        }
        if self.with_files { Ok(()) } else { self.disk.remove_all(FILES.as_ref()) }
    }

    /// Removes everything.
    pub(super) fn clear(&self) -> Result<()> {
        [BY, FILES, DOCUMENTS].iter().try_for_each(|directory| self.disk.remove_all(directory.as_ref()))
    }

    /// Makes all links anew from the documents that are here.
    pub(super) fn link_anew(&self) -> Result<()> {
        self.disk.remove_all(BY.as_ref())?;
        for name in self.disk.list(DOCUMENTS.as_ref())? {
            let Some(name) = name.to_str() else { continue };
            if let Some((_, document)) = self.read(name)? {
                self.link(name, &document)?;
            }
        }
        Ok(())
    }

    /// Brings documents to what they are at the source. Ends early, with `Stopped`, when `go_on` says no.
    pub(super) fn take(
        &self,
        source: &dyn Peer,
        leaves: Vec<Leaves>,
        done: &mut Mirrored,
        go_on: &mut dyn FnMut(&Mirrored) -> bool,
    ) -> Result<()> {
        let counts: BTreeMap<_, _> = leaves.iter().map(|leaves| (leaves.id.clone(), leaves.revisions.len())).collect();
        let wanted: Vec<_> =
            leaves.into_iter().map(|Leaves { id, revisions }| Wanted { id, revisions, known: Vec::new() }).collect();
        let mut gathered: Vec<Transfer> = Vec::new();
        let mut apply = |gathered: Vec<Transfer>| {
            // A leaf that is there no longer has a successor, of which the feed tells later.
            let is_whole = gathered.first().is_some_and(|first| counts.get(&first.id) <= Some(&gathered.len()));
            if is_whole {
                self.apply(gathered, done)?;
            }
            if go_on(done) { Ok(()) } else { Err(Error::stopped("the mirror was told to stop")) }
        };
        source.read(&wanted, &mut |transfer| {
            if gathered.first().is_some_and(|first| first.id != transfer.id) {
                apply(std::mem::take(&mut gathered))?;
            }
            gathered.push(transfer);
            Ok(())
        })?;
        if gathered.is_empty() { Ok(()) } else { apply(gathered) }
    }

    /// Makes of the leaves of one document what it is to be here.
    fn apply(&self, mut leaves: Vec<Transfer>, done: &mut Mirrored) -> Result<()> {
        leaves.sort_by_key(|leaf| std::cmp::Reverse((!leaf.deleted, leaf.revisions.first().copied())));
        let mut leaves = leaves.into_iter();
        let Some(winner) = leaves.next() else { return Ok(()) };
        let name = name::of_text(winner.id.as_str());
        if winner.deleted {
            done.removed_count += 1;
            return self.remove(&name);
        }
        let conflicts =
            leaves.filter(|leaf| !leaf.deleted).filter_map(|leaf| leaf.revisions.first().copied()).collect();
        done.written_count += 1;
        self.put(&name, wished(winner, conflicts))
    }

    fn put(&self, name: &str, wished: Wished) -> Result<()> {
        let file = format!("{name}.json");
        let text = format!("{}\n", Value::Object(wished.object.clone()).to_json_pretty());
        let old = self.read(&file)?;
        let is_new = old.as_ref().is_none_or(|(old, _)| *old != text);
        let old = old.map(|(_, old)| old);
        if let Some(old) = old.as_ref().filter(|_| is_new) {
            self.unlink(&file, old)?;
        }
        if self.with_files {
            self.copy_files(name, wished.files, &wished.revisions, old.as_ref())?;
        }
        if is_new {
            self.disk.write(&Path::new(DOCUMENTS).join(&file), text.as_bytes())?;
        }
        if self.with_files {
            self.sweep_files(name, &wished.object)?;
        }
        self.link(&file, &wished.object)
    }

    fn remove(&self, name: &str) -> Result<()> {
        let file = format!("{name}.json");
        if let Some((_, old)) = self.read(&file)? {
            self.unlink(&file, &old)?;
            self.disk.remove(&Path::new(DOCUMENTS).join(&file))?;
        }
        if self.with_files { self.disk.remove_all(&Path::new(FILES).join(name)) } else { Ok(()) }
    }

    /// The document in a file, as text and taken apart.
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

    /// The directories in which a document has links.
    fn places(&self, document: &Object) -> impl Iterator<Item = PathBuf> {
        self.paths.iter().flat_map(|path| {
            let directory = Path::new(BY).join(path.directory());
            path.names(document).into_iter().map(move |value| directory.join(value))
        })
    }

    fn link(&self, file: &str, document: &Object) -> Result<()> {
        for place in self.places(document) {
            self.disk.create_directory(&place)?;
            self.disk.link(&place.join(file), &Path::new("../../..").join(DOCUMENTS).join(file))?;
        }
        Ok(())
    }

    fn unlink(&self, file: &str, document: &Object) -> Result<()> {
        for place in self.places(document) {
            self.disk.remove(&place.join(file))?;
            self.disk.remove_if_empty(&place)?;
        }
        Ok(())
    }

    /// Copies the files that `old`, the document that is here, did not have yet.
    fn copy_files(&self, name: &str, files: Vec<TransferFile>, line: &[Revision], old: Option<&Object>) -> Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        let directory = Path::new(FILES).join(name);
        self.disk.create_directory(&directory)?;
        let before = old.and_then(|old| old.get("_rev")?.as_str()?.parse::<Revision>().ok());
        // On another branch a file may be another one, whatever it looks like.
        let before = before.filter(|before| line.contains(before)).map_or(0, |before| before.generation());
        for file in files {
            let path = directory.join(name::of_text(&file.name));
            if file.generation > before || !self.disk.exists(&path) {
                // What took the place of a document whose content is gone is told by the feed.
                let Some(content) = (file.open)()? else { continue };
                self.disk.write(&path, content)?;
            }
        }
        Ok(())
    }

    /// Removes files that the document does not have any more.
    fn sweep_files(&self, name: &str, document: &Object) -> Result<()> {
        let directory = Path::new(FILES).join(name);
        let files = document.get("_attachments").and_then(Value::as_object);
        let kept: Vec<String> = files.into_iter().flat_map(Object::names).map(name::of_text).collect();
        for file in self.disk.list(&directory)? {
            if !kept.iter().any(|kept| file == **kept) {
                self.disk.remove(&directory.join(file))?;
            }
        }
        if kept.is_empty() { self.disk.remove_if_empty(&directory) } else { Ok(()) }
    }
}

/// What a document is to be: as it is read over HTTP, with stubs of its files and the revisions it is in conflict with.
fn wished(winner: Transfer, conflicts: Vec<Revision>) -> Wished {
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
    Wished { object, revisions, files }
}
