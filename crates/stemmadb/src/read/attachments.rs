//! Attachments as a snapshot sees them.

use std::collections::{HashMap, HashSet};
use std::ops::Bound;

use crate::document::attachment::{DIGEST, FIELD};
use crate::document::{Attachment, Document};
use crate::index::{PathNumber, Presence, Step};
use crate::layout::ContentRow;
use crate::layout::record::Record;
use crate::log::{Blob, BlobReader, Digest};
use crate::memtable::RecordLocation;
use crate::read::snapshot::Snapshot;
use crate::tree::{Direction, Table};
use crate::value::collate;
use crate::{Error, ErrorKind, Result};

impl Snapshot {
    /// Opens an attachment of a document for reading; none if the document has no attachment of this name.
    ///
    /// [`Files::open`](crate::handles::Files::open) does the same without a snapshot.
    ///
    /// # Errors
    /// `Corrupt` if the content is damaged or lost; `Unavailable` if it can't be read.
    pub fn open_attachment(&self, document: &Document, name: &str) -> Result<Option<BlobReader>> {
        let attachments = document.attachments()?;
        let Some(found) = attachments.iter().find(|attachment| attachment.name == name) else { return Ok(None) };
        match self.read_content(&found.digest) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let message = format!("the file `{name}` of `{}` is lost: {error}", document.id());
                Err(Error::corrupt(message).with_hint("put it back from a backup, or attach it again"))
            }
            opened => opened.map(Some),
        }
    }

    /// Opens content from the log or from its file; or from a handle, if a transaction that is not committed yet refers
    /// to it.
    fn read_content(&self, digest: &Digest) -> Result<BlobReader> {
        if let Some(location) = self.content_location(digest)? {
            return self.read_logged_content(digest, location);
        }
        match self.parts.blobs.read(digest) {
            Err(error) if error.kind() == ErrorKind::NotFound => self.parts.blobs.held_content(digest).ok_or(error),
            opened => opened,
        }
    }

    /// Opens the content in the record at `location`. The record is verified by its checksum.
    pub(crate) fn read_logged_content(&self, digest: &Digest, location: RecordLocation) -> Result<BlobReader> {
        let RecordLocation { position, length } = location;
        let bytes = self.read_bytes(position, length)?;
        match self.parts.record(&bytes, position)? {
            (Record::Content { removed: false, digest: found, bytes: content, .. }, end) if found == *digest => {
                let within = end - content.len()..end;
                Ok(BlobReader::in_memory(format!("log {position}"), found, bytes, within))
            }
            _ => Err(self.misplaced(position, &format!("the content {digest}"))),
        }
    }

    /// The location of a record that has the content: the newest one, or if that was swept, one that this snapshot
    /// keeps readable.
    fn content_location(&self, digest: &Digest) -> Result<Option<RecordLocation>> {
        let in_memory = || self.memtables.iter().rev().find_map(|memtable| memtable.content(digest)?.location);
        match in_memory() {
            None => self.content_row(digest),
            location => Ok(location),
        }
    }

    /// The location of the record that has the content and must be kept; none if the content was removed or is not in
    /// the log. Exact if the caller holds the writer lock.
    pub(crate) fn live_content(&self, digest: &Digest) -> Result<Option<RecordLocation>> {
        match self.memtables.iter().rev().find_map(|memtable| memtable.content(digest)) {
            Some(content) => Ok(content.live()),
            None => self.content_row(digest),
        }
    }

    fn content_row(&self, digest: &Digest) -> Result<Option<RecordLocation>> {
        let row = self.tree.get(Table::Contents, digest.as_bytes())?;
        Ok(row.map(|row| ContentRow::decode(&row)).transpose()?.map(|ContentRow(location)| location))
    }

    /// Calls `visit` with every content in the log that must be kept, in no particular order.
    pub(crate) fn live_contents(&self, visit: &mut dyn FnMut(Digest, RecordLocation) -> Result<()>) -> Result<()> {
        let mut recent = HashMap::new();
        self.memtables.iter().for_each(|memtable| recent.extend(memtable.contents()));
        for (digest, content) in &recent {
            content.live().map_or(Ok(()), |location| visit(*digest, location))?;
        }
        let mut rows = self.tree.scan(Table::Contents, Bound::Unbounded, Bound::Unbounded, Direction::Ascending)?;
        while let Some((key, value)) = rows.next()? {
            let digest = ContentRow::digest(key)?;
            if !recent.contains_key(&digest) {
                let ContentRow(location) = ContentRow::decode(value)?;
                visit(digest, location)?;
            }
        }
        Ok(())
    }

    /// Pins an attachment's content, so that it is kept while the result is held even if the document is replaced; none
    /// if the content is gone.
    pub(crate) fn pin_content(&self, file: &Attachment) -> Result<Option<Blob>> {
        // Pinned before the lookup, so that no sweep can remove it in between.
        let blob = self.parts.blobs.pin_referenced(file.digest, file.length);
        let is_stored = self.content_location(&file.digest)?.is_some() || self.parts.blobs.has_file(&file.digest);
        Ok(is_stored.then_some(blob))
    }

    /// Whether the index shows that some winner references the blob. Documents with incomplete terms are not covered.
    pub(crate) fn references_content(&self, digest: &Digest) -> Result<bool> {
        let Some(path) = self.digest_path() else { return Ok(false) };
        let mut key = Vec::new();
        collate::key::encode_string_bounded(&digest.to_string(), self.policy().text_bytes_max(), &mut key);
        Ok(self.postings_count(path, &key)? > 0)
    }

    fn digest_path(&self) -> Option<PathNumber> {
        let list = self.parts.paths.child(PathNumber::ROOT, Step::Field(FIELD))?;
        self.parts.paths.child(self.parts.paths.child(list, Step::Element)?, Step::Field(DIGEST))
    }

    /// The contents that the index does not cover: those of losing branches, and of documents with incomplete terms.
    /// Reads every document.
    pub(crate) fn unindexed_digests(&self) -> Result<HashSet<Digest>> {
        let mut found = HashSet::new();
        let mut add = |document: &Document| {
            found.extend(document.attachments()?.into_iter().map(|attachment| attachment.digest));
            Ok::<_, Error>(())
        };
        for state in self.branched_states()? {
            for leaf in state.tree.leaves().filter(|leaf| !leaf.deleted) {
                add(&self.leaf_document(&state, leaf)?)?;
            }
        }
        for number in self.presence(PathNumber::ROOT, &[Presence::Overflow])?.iter() {
            if let Some(state) = self.state(number)? {
                add(&self.winner(&state)?)?;
            }
        }
        Ok(found)
    }
}
