//! Documents and streams of rows in frames.

use std::time::Duration;

use stemmadb::remote::RecordWriter;
use stemmadb::{Attachment, Change, Document, Object, Revision, Value};
use stemmadb_wire::{Encoding, FrameKind, write_frame};

use super::call::{Call, object};
use super::failure::Result;

/// The bytes of rows that are sent in one frame; the last row may exceed them.
const CHUNK_BYTES: usize = 32 * 1024;

/// Appends a document: `id`, `rev`, `seq`, `body`; `deleted` if it is; `files` if it has any.
fn write_document(document: &Document, encoding: Encoding, out: &mut Vec<u8>) -> Result<()> {
    let files = document.attachments()?;
    if encoding != Encoding::Json || !files.is_empty() || document.is_deleted() {
        encoding.write(&document_value(document, &files)?, out);
        return Ok(());
    }
    // The common case is printed without decoding the body.
    out.extend_from_slice(b"{\"id\":");
    Value::from(document.id().as_str()).write_json(out);
    out.extend_from_slice(b",\"rev\":\"");
    out.extend_from_slice(document.revision().to_string().as_bytes());
    out.extend_from_slice(b"\",\"seq\":");
    out.extend_from_slice(document.sequence().to_string().as_bytes());
    out.extend_from_slice(b",\"body\":{");
    document.write_json_fields(out)?;
    out.extend_from_slice(b"}}");
    Ok(())
}

/// Writes the documents of one answer.
pub(super) struct DocumentWriter {
    encoding: Encoding,
    /// Writes them as records, if the client reads these.
    records: Option<RecordWriter>,
}

impl DocumentWriter {
    pub(super) fn new(call: &Call<'_>) -> Self {
        let encoding = call.encoding();
        let records = (encoding == Encoding::Records).then(RecordWriter::new);
        DocumentWriter { encoding, records }
    }

    /// Appends a document, or null.
    pub(super) fn write(&mut self, document: Option<&Document>, out: &mut Vec<u8>) -> Result<()> {
        match (document, &mut self.records) {
            (None, _) => self.encoding.write(&Value::Null, out),
            (Some(document), None) => write_document(document, self.encoding, out)?,
            (Some(document), Some(records)) => {
                Encoding::write_record_head(out);
                records.write(document, out)?;
            }
        }
        Ok(())
    }
}

/// A document as a value.
pub(super) fn document_value(document: &Document, files: &[Attachment]) -> Result<Value> {
    let mut object = Object::new();
    object.insert("id", document.id().as_str());
    object.insert("rev", document.revision().to_string());
    object.insert("seq", document.sequence().get());
    object.insert("body", document.value()?);
    if document.is_deleted() {
        object.insert("deleted", true);
    }
    if !files.is_empty() {
        object.insert("files", files.iter().map(file_value).collect::<Vec<_>>());
    }
    Ok(Value::Object(object))
}

/// A group of an aggregation.
pub(super) fn group_value((key, figures): (Value, Object)) -> Value {
    object([("key", key), ("figures", Value::Object(figures))])
}

fn file_value(file: &Attachment) -> Value {
    let mut object = Object::new();
    object.insert("name", file.name.as_str());
    object.insert("content_type", file.content_type.as_str());
    object.insert("length", file.length);
    object.insert("digest", file.digest.to_string());
    object.insert("generation", u64::from(file.generation));
    Value::Object(object)
}

/// A change as a row, with those of its leaves that the user may read.
pub(super) fn change_row(change: &Change, leaves: &[Revision]) -> Result<Value> {
    let mut row = Object::new();
    row.insert("seq", change.sequence.get());
    row.insert("id", change.id.as_str());
    row.insert("rev", change.revision.to_string());
    if change.deleted {
        row.insert("deleted", true);
    }
    if change.leaves.len() > 1 {
        row.insert("leaves", leaves.iter().map(|leaf| Value::from(leaf.to_string())).collect::<Vec<_>>());
    }
    if let Some(document) = &change.document {
        row.insert("document", document_value(document, &document.attachments()?)?);
    }
    Ok(Value::Object(row))
}

/// Collects rows into frames, and sends a frame whenever it is full and the client has granted credit.
pub(super) struct RowStream<'a> {
    call: &'a Call<'a>,
    /// The encoded rows of the next frame.
    rows: Vec<u8>,
    count: u64,
}

impl<'a> RowStream<'a> {
    pub(super) fn new(call: &'a Call<'a>) -> Self {
        RowStream { call, rows: Vec::new(), count: 0 }
    }

    /// Adds a row that `write` encodes.
    ///
    /// # Errors
    /// Those of `write`; `Stopped` if the request is cancelled, or the client stops reading.
    pub(super) fn add(&mut self, write: impl FnOnce(Encoding, &mut Vec<u8>) -> Result<()>) -> Result<()> {
        self.append(write)?;
        if self.is_full() { self.send() } else { Ok(()) }
    }

    /// Appends a row to those that are sent together.
    fn append(&mut self, write: impl FnOnce(Encoding, &mut Vec<u8>) -> Result<()>) -> Result<()> {
        let encoding = self.call.encoding();
        if encoding == Encoding::Json && self.count > 0 {
            self.rows.push(b',');
        }
        write(encoding, &mut self.rows)?;
        self.count += 1;
        Ok(())
    }

    /// Appends a row, which is sent together with those so far when [`RowStream::send`] is called.
    ///
    /// # Errors
    /// None at present.
    pub(super) fn append_value(&mut self, row: &Value) -> Result<()> {
        self.append(|encoding, out| {
            encoding.write(row, out);
            Ok(())
        })
    }

    /// Whether there are enough rows for a frame.
    pub(super) fn is_full(&self) -> bool {
        self.rows.len() >= CHUNK_BYTES
    }

    /// Whether there are rows that were not sent.
    pub(super) fn has_unsent(&self) -> bool {
        self.count > 0
    }

    /// Adds a row.
    ///
    /// # Errors
    /// As [`RowStream::add`].
    pub(super) fn add_value(&mut self, row: &Value) -> Result<()> {
        self.add(|encoding, out| {
            encoding.write(row, out);
            Ok(())
        })
    }

    /// Sends the rows so far, if there are any.
    ///
    /// # Errors
    /// As [`RowStream::add`].
    pub(super) fn send(&mut self) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        self.call.take_credit()?;
        let mut bytes = Vec::with_capacity(self.rows.len() + 32);
        write_frame(&mut bytes, FrameKind::Item, self.call.id, |out| self.write_array(out));
        (self.rows, self.count) = (Vec::new(), 0);
        self.call.connection.send(&bytes)
    }

    fn write_array(&self, out: &mut Vec<u8>) {
        match self.call.encoding() {
            Encoding::Json => {
                out.push(b'[');
                out.extend_from_slice(&self.rows);
                out.push(b']');
            }
            Encoding::Packed | Encoding::Records => {
                Encoding::write_packed_array_head(self.count, out);
                out.extend_from_slice(&self.rows);
            }
        }
    }

    /// The last frame: the remaining rows, and other fields of the result.
    pub(super) fn finish(self, fields: &[(&str, Value)]) -> Vec<u8> {
        self.call.reply_with(|out| {
            let encoding = self.call.encoding();
            match encoding {
                Encoding::Json => {
                    out.extend_from_slice(b"{\"rows\":");
                    self.write_array(out);
                    for (name, value) in fields {
                        out.push(b',');
                        Value::from(*name).write_json(out);
                        out.push(b':');
                        value.write_json(out);
                    }
                    out.push(b'}');
                }
                Encoding::Packed | Encoding::Records => {
                    Encoding::write_packed_object_head(fields.len() as u64 + 1, out);
                    Encoding::write_packed_name("rows", out);
                    self.write_array(out);
                    for (name, value) in fields {
                        Encoding::write_packed_name(name, out);
                        encoding.write(value, out);
                    }
                }
            }
        })
    }
}

/// How often a stream that waits for changes looks whether it may go on.
pub(super) const STREAM_CHECK: Duration = Duration::from_secs(1);
