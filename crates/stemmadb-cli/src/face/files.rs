//! Files of documents.

use std::io::{Read, Seek, SeekFrom};

use stemmadb::{BlobReader, Object};

use super::{Database, no_document};
use crate::arguments::Range;
use crate::failure::{Exit, Failure, Result};

/// A part of a file, or all of it.
pub(crate) struct Content {
    reader: std::io::Take<BlobReader>,
}

impl Content {
    /// How many bytes it has.
    pub(crate) fn byte_count(&self) -> u64 {
        self.reader.limit()
    }

    /// Fills `buffer` with what comes next and says how much that is; nothing at the end.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.reader.read(buffer).map_err(|error| stemmadb::Error::from(error).into())
    }
}

impl Database {
    /// The files of a document, one row each.
    pub(crate) fn files(&self, id: &str) -> Result<Vec<Object>> {
        let document = self.inner.get(id)?.ok_or_else(|| no_document(id))?;
        let row = |file: stemmadb::Attachment| {
            let mut row = Object::new();
            row.insert("name", file.name);
            row.insert("content_type", file.content_type);
            row.insert("length", file.length);
            row.insert("digest", file.digest.to_string());
            row
        };
        Ok(document.attachments()?.into_iter().map(row).collect())
    }

    /// Gives a document a file; returns its new revision.
    pub(crate) fn attach(
        &self,
        id: &str,
        revision: Option<&str>,
        name: &str,
        content_type: &str,
        content: impl Read,
    ) -> Result<String> {
        let revision = self.revision_or_current(id, revision)?;
        Ok(self.inner.files().attach(id, &revision, name, content_type, content)?.to_string())
    }

    /// Takes a file away from a document; returns its new revision.
    pub(crate) fn detach(&self, id: &str, revision: Option<&str>, name: &str) -> Result<String> {
        let revision = self.revision_or_current(id, revision)?;
        Ok(self.inner.files().detach(id, &revision, name)?.to_string())
    }

    /// A file's content, or a part of it.
    pub(crate) fn fetch(&self, id: &str, name: &str, range: Option<Range>) -> Result<Content> {
        let snapshot = self.inner.snapshot()?;
        let document = snapshot.get(id)?.ok_or_else(|| no_document(id))?;
        let file = snapshot.open_attachment(&document, name)?.ok_or_else(|| {
            Failure::not_found(format!("document {id:?} has no file {name:?}")).with_hint("`stemma files` lists them")
        })?;
        content(file, range)
    }
}

fn content(mut reader: BlobReader, range: Option<Range>) -> Result<Content> {
    let length = reader.length();
    let (from, end) = match range {
        None => (0, length),
        Some(Range::Last(count)) => (length.saturating_sub(count), length),
        Some(Range::From(from, _)) if from > 0 && from >= length => {
            return Err(Failure::new(Exit::Usage, format!("the file has {length} bytes")));
        }
        Some(Range::From(from, to)) => (from, to.map_or(length, |last| last.saturating_add(1).min(length))),
    };
    if from > 0 {
        reader.seek(SeekFrom::Start(from)).map_err(stemmadb::Error::from)?;
    }
    Ok(Content { reader: reader.take(end - from) })
}
