//! Attachments: list, read, attach and detach.

use std::io::{Read, Seek, SeekFrom};

use stemmadb::{Document, Object};

use super::{Database, document_not_found};
use crate::arguments::ByteRange;
use crate::failure::{Exit, Failure, Result};

/// Reads an attachment, or a byte range of it.
pub(crate) struct AttachmentReader {
    reader: std::io::Take<Box<dyn Content>>,
}

/// Content of an attachment.
pub(super) trait Content: Read + Seek {}

impl<T: Read + Seek> Content for T {}

impl AttachmentReader {
    /// The number of bytes left to read.
    pub(crate) fn byte_count(&self) -> u64 {
        self.reader.limit()
    }

    /// Reads into `buffer`; returns the number of bytes read, 0 at the end.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.reader.read(buffer).map_err(|error| stemmadb::Error::from(error).into())
    }
}

impl Database {
    /// Lists the attachments of a document, one row each.
    pub(crate) fn files(&self, id: &str) -> Result<Vec<Object>> {
        file_rows(self.snapshot()?.get(id)?, id)
    }

    /// Attaches a file to a document; returns the document's new revision.
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

    /// Removes an attachment from a document; returns the document's new revision.
    pub(crate) fn detach(&self, id: &str, revision: Option<&str>, name: &str) -> Result<String> {
        let revision = self.revision_or_current(id, revision)?;
        Ok(self.inner.files().detach(id, &revision, name)?.to_string())
    }

    /// Opens an attachment, or a byte range of it.
    pub(crate) fn fetch(&self, id: &str, name: &str, range: Option<ByteRange>) -> Result<AttachmentReader> {
        let snapshot = self.snapshot()?;
        let document = snapshot.get(id)?.ok_or_else(|| document_not_found(id))?;
        let file = snapshot.open_attachment(&document, name)?.ok_or_else(|| file_not_found(id, name))?;
        let length = file.length();
        read_range(Box::new(file), length, range)
    }
}

/// The attachments of a document as rows.
pub(super) fn file_rows(document: Option<Document>, id: &str) -> Result<Vec<Object>> {
    let document = document.ok_or_else(|| document_not_found(id))?;
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

pub(super) fn file_not_found(id: &str, name: &str) -> Failure {
    Failure::not_found(format!("document {id:?} has no file {name:?}")).with_hint("`stemma files` lists them")
}

pub(super) fn read_range(
    mut reader: Box<dyn Content>,
    length: u64,
    range: Option<ByteRange>,
) -> Result<AttachmentReader> {
    let (from, end) = match range {
        None => (0, length),
        Some(ByteRange::Suffix(count)) => (length.saturating_sub(count), length),
        Some(ByteRange::FromTo(from, _)) if from > 0 && from >= length => {
            return Err(Failure::new(Exit::Usage, format!("the file has {length} bytes")));
        }
        Some(ByteRange::FromTo(from, to)) => (from, to.map_or(length, |last| last.saturating_add(1).min(length))),
    };
    if from > 0 {
        reader.seek(SeekFrom::Start(from)).map_err(stemmadb::Error::from)?;
    }
    Ok(AttachmentReader { reader: reader.take(end - from) })
}
