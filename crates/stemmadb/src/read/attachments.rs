//! The files of documents as a snapshot sees them.

use std::collections::HashSet;

use crate::document::attachment::{DIGEST, FIELD};
use crate::document::{Attachment, Document};
use crate::index::{PathNumber, Presence, Step};
use crate::log::{Blob, BlobReader, Digest};
use crate::read::snapshot::Snapshot;
use crate::value::collate;
use crate::{Error, ErrorKind, Result};

impl Snapshot {
    /// Opens a file of a document for reading; none if it has none of this name.
    ///
    /// # Errors
    /// `Corrupt` if the file is damaged or lost; `Unavailable` if it can't be read.
    pub fn open_attachment(&self, document: &Document, name: &str) -> Result<Option<BlobReader>> {
        let attachments = document.attachments()?;
        let Some(found) = attachments.iter().find(|attachment| attachment.name == name) else { return Ok(None) };
        match self.parts.blobs.read(&found.digest) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let message = format!("the file `{name}` of `{}` is lost: {error}", document.id());
                Err(Error::corrupt(message).with_hint("put it back from a backup, or attach it anew"))
            }
            opened => opened.map(Some),
        }
    }

    /// Sees to it that a file's content stays for as long as this is held, also when its document is replaced; none if it is gone.
    pub(crate) fn hold_content(&self, file: &Attachment) -> Option<Blob> {
        self.parts.blobs.pin_existing(file.digest, file.length)
    }

    /// Whether some winner names the blob, or may: of documents whose terms are incomplete it is not known.
    pub(crate) fn names(&self, digest: &Digest) -> Result<bool> {
        let Some(path) = self.digest_path() else { return Ok(false) };
        let mut key = Vec::new();
        collate::key::encode_string_bounded(&digest.to_string(), self.policy().text_bytes_max(), &mut key);
        Ok(self.postings_count(path, &key)? > 0)
    }

    fn digest_path(&self) -> Option<PathNumber> {
        let list = self.parts.paths.child(PathNumber::ROOT, Step::Field(FIELD))?;
        self.parts.paths.child(self.parts.paths.child(list, Step::Element)?, Step::Field(DIGEST))
    }

    /// What the index does not tell: the files of losing branches, and of documents whose terms are incomplete. Costs a look at every
    /// document.
    pub(crate) fn hidden_digests(&self) -> Result<HashSet<Digest>> {
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
