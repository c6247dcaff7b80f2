//! Attachment changes: computes the attachments of a document after an edit.

use std::sync::Arc;

use crate::document::Document;
use crate::document::attachment::{self, Attachment, File, FileContent};
use crate::engine::edit::Edit;
use crate::engine::write::{PreparedBody, Transaction};
use crate::index::{PathNumber, Step};
use crate::log::Blob;
use crate::memtable::DocumentState;
use crate::revision::Revision;
use crate::{Error, Result};

impl Transaction<'_> {
    /// The body with the attachments that the edit leaves, if there are any.
    pub(super) fn with_files(&self, edit: &Edit, current: Option<&DocumentState>) -> Result<Option<PreparedBody>> {
        let parts = &self.store.parts;
        let brings_files = match edit {
            Edit::Attach { .. } | Edit::Detach { .. } => true,
            Edit::Put { files, .. } | Edit::Foreign { files, .. } => !files.is_empty(),
            _ => false,
        };
        if !brings_files && parts.paths.child(PathNumber::ROOT, Step::Field(attachment::FIELD)).is_none() {
            return Ok(None);
        }
        match edit {
            Edit::Depart { .. } => Ok(None),
            Edit::Insert { .. } | Edit::Delete { .. } => {
                self.mark_lost_content(current, &[])?;
                Ok(None)
            }
            Edit::Put { parent, deleted, files, .. } => {
                self.with_listed_files(edit, current, parent.as_slice(), files.as_slice(), *deleted)
            }
            Edit::Foreign { revisions, deleted, files, .. } => {
                self.with_listed_files(edit, current, revisions, files, *deleted)
            }
            _ => self.with_existing_files(edit, current),
        }
    }

    /// The body with the listed attachments, some of which are taken over from a known ancestor.
    fn with_listed_files(
        &self,
        edit: &Edit,
        current: Option<&DocumentState>,
        ancestors: &[Revision],
        files: &[File],
        deleted: bool,
    ) -> Result<Option<PreparedBody>> {
        let mut listed = Vec::with_capacity(files.len());
        if !deleted && !files.is_empty() {
            let known = self.known_files(current, ancestors)?;
            let generation = match edit {
                Edit::Foreign { revisions, .. } => revisions.first().map_or(1, Revision::generation),
                _ => self.next_generation(current, ancestors),
            };
            for file in files {
                listed.push(stored_attachment(file, &known, generation, edit)?);
            }
        }
        self.mark_lost_content(current, &listed)?;
        let Some(body) = edit.body().filter(|_| !listed.is_empty()) else { return Ok(None) };
        let body = attachment::body_with_attachments(body, &listed)?;
        self.store.parts.pack_body(&self.base.declared, edit.id().as_str(), &body).map(Some)
    }

    /// The generation of the revision that this edit creates.
    fn next_generation(&self, current: Option<&DocumentState>, parent: &[Revision]) -> u32 {
        let winner = current.and_then(|state| state.tree.winner()).map(|leaf| leaf.revision);
        parent.first().copied().or(winner).map_or(1, |parent| parent.generation() + 1)
    }

    /// The attachments of the newest of these revisions that is a leaf: only leaves have their bodies stored.
    fn known_files(&self, current: Option<&DocumentState>, revisions: &[Revision]) -> Result<Vec<Attachment>> {
        let Some(state) = current else { return Ok(Vec::new()) };
        match revisions.iter().find_map(|revision| state.tree.leaf(revision)) {
            Some(leaf) => self.leaf(state, leaf)?.attachments(),
            None => Ok(Vec::new()),
        }
    }

    /// Marks content as unreferenced if the winner has an attachment that is not among `kept`, so that a sweep removes
    /// it.
    fn mark_lost_content(&self, current: Option<&DocumentState>, kept: &[Attachment]) -> Result<()> {
        let Some(state) = current.filter(|state| state.is_live()) else { return Ok(()) };
        let had = self.winner(state)?.attachments()?;
        if had.iter().any(|had| !kept.iter().any(|kept| kept.digest == had.digest)) {
            self.store.parts.blobs.mark_unreferenced();
        }
        Ok(())
    }

    /// The body with the document's existing attachments, changed by the edit.
    fn with_existing_files(&self, edit: &Edit, current: Option<&DocumentState>) -> Result<Option<PreparedBody>> {
        let parts = &self.store.parts;
        let Some(state) = current.filter(|state| state.is_live()) else { return Ok(None) };
        let read = match edit {
            Edit::Replace { revision, .. } | Edit::Attach { revision, .. } | Edit::Detach { revision, .. } => {
                state.tree.leaf(revision)
            }
            _ => state.tree.winner(),
        };
        let Some(leaf) = read.filter(|leaf| !leaf.deleted) else { return Ok(None) };
        let document = self.leaf(state, leaf)?;
        let files = self.edited_files(edit, &document)?;
        if files.is_empty() && !matches!(edit, Edit::Attach { .. } | Edit::Detach { .. }) {
            return Ok(None);
        }
        let body = match edit.body() {
            Some(body) => attachment::body_with_attachments(body, &files)?,
            None => attachment::body_with_attachments(&document.value()?, &files)?,
        };
        parts.pack_body(&self.base.declared, edit.id().as_str(), &body).map(Some)
    }

    /// The attachments of `document` after the edit.
    fn edited_files(&self, edit: &Edit, document: &Document) -> Result<Vec<Attachment>> {
        let blobs = &self.store.parts.blobs;
        let mut files = document.attachments()?;
        match edit {
            Edit::Attach { name, content_type, content, .. } => {
                let file = Attachment::new(name, content_type, content, document.revision().generation() + 1)?;
                content.mark_referenced();
                if files.iter().any(|file| file.name == *name) {
                    blobs.mark_unreferenced();
                    files.retain(|file| file.name != *name);
                }
                files.push(file);
            }
            Edit::Detach { id, name, .. } => {
                if !files.iter().any(|file| file.name == *name) {
                    return Err(Error::not_found(format!("document `{id}` has no file `{name}`")));
                }
                blobs.mark_unreferenced();
                files.retain(|file| file.name != *name);
            }
            _ => {}
        }
        Ok(files)
    }
}

/// The contents that the edit's revision refers to and that the log may lack.
pub(super) fn contents_to_log(edit: &Edit) -> impl Iterator<Item = &Arc<Blob>> {
    let (attached, files) = match edit {
        Edit::Attach { content, .. } => (Some(content), &[][..]),
        Edit::Put { deleted: false, files, .. } | Edit::Foreign { deleted: false, files, .. } => (None, &files[..]),
        _ => (None, &[][..]),
    };
    let stored = files.iter().filter_map(|file| match &file.content {
        FileContent::Stored { blob, .. } => Some(blob),
        FileContent::Existing => None,
    });
    attached.into_iter().chain(stored).filter(|blob| blob.content_to_log().is_some())
}

/// The attachment to store for `file`.
fn stored_attachment(file: &File, known: &[Attachment], generation: u32, edit: &Edit) -> Result<Attachment> {
    match &file.content {
        FileContent::Stored { content_type, blob, md5, generation: given } => {
            let attachment = Attachment::new(&file.name, content_type, blob, given.unwrap_or(generation))?;
            blob.mark_referenced();
            Ok(Attachment { md5: *md5, ..attachment })
        }
        FileContent::Existing => known.iter().find(|known| known.name == file.name).cloned().ok_or_else(|| {
            Error::not_found(format!("document `{}` has no file `{}` that could be kept", edit.id(), file.name))
                .with_hint("send its content")
        }),
    }
}
