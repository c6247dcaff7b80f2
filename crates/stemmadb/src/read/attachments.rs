//! Attachments as a snapshot sees them.

use std::collections::HashSet;

use crate::document::attachment::{DIGEST, FIELD};
use crate::document::{Attachment, Document};
use crate::index::{PathNumber, Presence, Step};
use crate::log::{Blob, BlobReader, Digest};
use crate::read::snapshot::Snapshot;
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
        match self.parts.blobs.read(&found.digest) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let message = format!("the file `{name}` of `{}` is lost: {error}", document.id());
                Err(Error::corrupt(message).with_hint("put it back from a backup, or attach it again"))
            }
            opened => opened.map(Some),
        }
    }

    /// Pins an attachment's content, so that it is kept while the result is held even if the document is replaced; none
    /// if the content is gone.
    pub(crate) fn pin_content(&self, file: &Attachment) -> Option<Blob> {
        self.parts.blobs.pin_existing(file.digest, file.length)
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
