//! The files of a document: named content beside its body.
//!
//! What a document says of its files is a field of its packed body, the last one, `_attachments`: an array of objects. So it is part of
//! the revision, of the log's record and of the index, where `_attachments[].digest` tells whether anything names a blob. Readers of
//! the body don't see it.

use std::collections::HashSet;
use std::io::Read;
use std::sync::Arc;

use serde::Serialize;

use crate::index::{PathNumber, Presence, Step};
use crate::log::{Blob, BlobReader, Digest};
use crate::store::Store;
use crate::store::document::Document;
use crate::store::snapshot::Snapshot;
use crate::value::{Object, PackedValue, Value, collate};
use crate::{Error, ErrorKind, Result};

/// The field of a packed body that has them.
pub(crate) const FIELD: &str = "_attachments";
const NAME: &str = "name";
const TYPE: &str = "content_type";
const DIGEST: &str = "digest";
const LENGTH: &str = "length";
const GENERATION: &str = "revpos";
const MD5: &str = "md5";

const NAME_BYTES_MAX: usize = 1024;
const COUNT_MAX: usize = 10_000;

/// A file of a document, without its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Attachment {
    /// Its name, unique in the document.
    pub name: String,
    /// What it is, such as `image/png`.
    pub content_type: String,
    /// How many bytes it has.
    pub length: u64,
    /// The SHA-256 of its content.
    #[serde(serialize_with = "as_text")]
    pub digest: Digest,
    /// The generation of the revision that brought it.
    pub generation: u32,
    /// The MD5 of its content, by which CouchDB's protocol tells files from each other, if whoever brought it said so.
    #[serde(skip)]
    pub md5: Option<[u8; 16]>,
}

/// A file that a revision is to have: see [`Edit::Put`](crate::Edit::Put).
#[derive(Debug, Clone)]
pub struct File {
    /// Its name, unique in the document.
    pub name: String,
    /// Where its content comes from.
    pub content: FileContent,
}

/// Where the content of a file comes from.
#[derive(Debug, Clone)]
pub enum FileContent {
    /// It was stored already.
    Stored {
        /// What it is, such as `image/png`.
        content_type: String,
        /// The content.
        blob: Arc<Blob>,
        /// The MD5 of it, if that is known.
        md5: Option<[u8; 16]>,
        /// The generation of the revision that brought it; none for the one that is written.
        generation: Option<u32>,
    },
    /// It stays as a leaf has it: the one that is succeeded, or, of a revision from elsewhere, any that is its ancestor.
    Kept,
}

fn as_text<S: serde::Serializer>(digest: &Digest, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(digest)
}

impl Attachment {
    /// A file made of stored content.
    pub(crate) fn new(name: &str, content_type: &str, blob: &Blob, generation: u32) -> Result<Self> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.starts_with('_') {
            return Err(Error::invalid(format!("`{}` can't be the name of a file", name.escape_debug()))
                .with_hint("1 to 1024 bytes, not beginning with `_`"));
        }
        let (name, content_type) = (name.to_owned(), content_type.to_owned());
        Ok(Attachment { name, content_type, length: blob.length(), digest: blob.digest(), generation, md5: None })
    }

    fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert(NAME, Value::String(self.name.clone()));
        object.insert(TYPE, Value::String(self.content_type.clone()));
        object.insert(DIGEST, Value::String(self.digest.to_string()));
        object.insert(LENGTH, Value::from(self.length));
        object.insert(GENERATION, Value::from(u64::from(self.generation)));
        if let Some(md5) = &self.md5 {
            object.insert(MD5, Value::String(md5.iter().map(|byte| format!("{byte:02x}")).collect()));
        }
        Value::Object(object)
    }

    fn of_value(value: &Value) -> Option<Self> {
        let object = value.as_object()?;
        Some(Attachment {
            name: object.get(NAME)?.as_str()?.to_owned(),
            content_type: object.get(TYPE)?.as_str()?.to_owned(),
            digest: object.get(DIGEST)?.as_str()?.parse().ok()?,
            length: object.get(LENGTH)?.as_u64()?,
            generation: u32::try_from(object.get(GENERATION)?.as_u64()?).ok()?,
            md5: object.get(MD5).and_then(|md5| parse_md5(md5.as_str()?)),
        })
    }
}

fn parse_md5(text: &str) -> Option<[u8; 16]> {
    let mut md5 = [0; 16];
    let digits = text.as_bytes().as_chunks::<2>().0;
    for (byte, pair) in md5.iter_mut().zip(digits) {
        *byte = u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()?;
    }
    (text.len() == 32).then_some(md5)
}

/// The files that a packed body names.
pub(super) fn of_packed(body: PackedValue<'_>) -> Result<Vec<Attachment>> {
    let Some(list) = body.child(FIELD)? else { return Ok(Vec::new()) };
    let damaged = || Error::corrupt("the files of a document are damaged");
    let list = list.to_value()?;
    let list = list.as_array().ok_or_else(damaged)?;
    list.iter().map(|value| Attachment::of_value(value).ok_or_else(damaged)).collect()
}

/// The body with its files, as it is packed. Empty lists leave no trace.
pub(super) fn joined(body: &Value, attachments: &[Attachment]) -> Result<Value> {
    if attachments.len() > COUNT_MAX {
        return Err(Error::invalid(format!("a document has {COUNT_MAX} files at most")));
    }
    let mut body = body.clone();
    if let (Some(object), false) = (body.as_object_mut(), attachments.is_empty()) {
        object.insert(FIELD, Value::Array(attachments.iter().map(Attachment::to_value).collect()));
    }
    Ok(body)
}

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
        self.parts.blobs.hold(file.digest, file.length)
    }

    /// Whether some winner names the blob, or may: of documents whose terms are incomplete it is not known.
    fn names(&self, digest: &Digest) -> Result<bool> {
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
    fn hidden_digests(&self) -> Result<HashSet<Digest>> {
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

/// What a sweep found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Contents that no document names any more, and that are gone now.
    pub blob_count: u64,
    /// The bytes that were freed.
    pub freed_bytes: u64,
}

impl Store {
    /// Stores content that a document is to name.
    pub(crate) fn store_content(&self, content: &mut dyn Read) -> Result<Arc<Blob>> {
        self.refuse_if_closed()?;
        self.parts.blobs.store(content).map(Arc::new)
    }

    /// Sweeps if something may have become superfluous.
    pub(super) fn sweep_content_if_wanted(&self) -> Result<()> {
        if self.parts.blobs.take_unnamed() { self.sweep_content().map(|_| ()) } else { Ok(()) }
    }

    /// Removes the content that no leaf of any document names. Costs a look at every document if there is such content.
    pub(crate) fn sweep_content(&self) -> Result<Swept> {
        self.refuse_if_closed()?;
        let sweep = self.parts.blobs.begin_sweep();
        let mut swept = Swept::default();
        for digest in self.unnamed_content()? {
            let freed_bytes = sweep.remove(&digest)?;
            swept.blob_count += u64::from(freed_bytes > 0);
            swept.freed_bytes += freed_bytes;
        }
        Ok(swept)
    }

    /// The content that no leaf of any document names, and none did since this began, but for what is held meanwhile.
    fn unnamed_content(&self) -> Result<Vec<Digest>> {
        let stored = self.parts.blobs.list()?;
        // Whoever named content that they held before the sweep has appended that, and it is seen.
        drop(self.writer.lock());
        self.flush()?;
        // What is no longer named must be so after a crash too: seen first, flushed then, removed at last.
        let snapshot = self.snapshot()?;
        self.flush()?;
        let mut unnamed = Vec::new();
        for digest in stored {
            if !snapshot.names(&digest)? {
                unnamed.push(digest);
            }
        }
        if !unnamed.is_empty() {
            let hidden = snapshot.hidden_digests()?;
            unnamed.retain(|digest| !hidden.contains(digest));
        }
        Ok(unnamed)
    }
}
