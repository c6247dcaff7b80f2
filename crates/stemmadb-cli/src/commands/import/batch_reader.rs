//! Reading and parsing: a thread that groups the documents of an input into batches.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;

use stemmadb::Value;

use super::position::InputPlace;
use crate::arguments::OnConflict;
use crate::database::{self, DocumentWrite, WriteMode};
use crate::failure::{Exit, Failure, Result};
use crate::input::{self, DocumentOrigin, DocumentReader, InputOptions, Source, TextPosition};

/// A batch is written once it has this much text, even if it has few documents.
const BATCH_BYTES_MAX: usize = 8 << 20;

/// Documents written with one acknowledgment.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) writes: Vec<DocumentWrite>,
    /// The position of each document.
    pub(super) positions: Vec<TextPosition>,
    /// The place before each document.
    pub(super) starts: Vec<InputPlace>,
    /// The place after the last document.
    pub(super) end: InputPlace,
    /// Whether the input ends with this batch.
    pub(super) is_last: bool,
    /// The texts of the documents, with `--skip-bad`.
    pub(super) texts: Vec<Vec<u8>>,
    /// Documents that could not be parsed, with `--skip-bad`.
    pub(super) bad: Vec<(Vec<u8>, Failure)>,
    /// The line without which the texts can't be read again, with `--skip-bad`.
    pub(super) header: Option<Vec<u8>>,
    pub(super) has_generated_ids: bool,
    pub(super) missing_attachment_count: u64,
}

/// Reads documents and groups them into batches.
pub(super) struct BatchReader {
    pub(super) batch_len: usize,
    pub(super) on_conflict: OnConflict,
    pub(super) options: InputOptions,
    pub(super) id_field: Option<stemmadb::Path>,
    /// Set if revisions are imported with their histories: the directory of the attachments' content, if given.
    pub(super) revisions_from: Option<Option<PathBuf>>,
    /// Where an earlier import of the input stopped.
    pub(super) start: InputPlace,
}

impl BatchReader {
    /// Sends batches until the input ends, a document is refused, or the writer has stopped.
    pub(super) fn run(&self, source: Source, bytes_read: &AtomicU64, batches: &SyncSender<Result<Batch>>) {
        // If the writer has stopped, nobody waits for the failure.
        if let Err(failure) = self.send_all(source, bytes_read, batches) {
            batches.send(Err(failure)).ok();
        }
    }

    fn send_all(&self, source: Source, bytes_read: &AtomicU64, batches: &SyncSender<Result<Batch>>) -> Result<()> {
        let mut documents = source.documents(&self.options)?;
        let mut line = self.skip_imported(documents.as_mut())?;
        loop {
            let header = documents.header().filter(|_| self.options.skips_bad).map(<[u8]>::to_vec);
            let mut batch = Batch { header, ..Batch::default() };
            let outcome = self.fill(documents.as_mut(), &mut batch, &mut line);
            bytes_read.store(documents.bytes_read(), Ordering::Relaxed);
            batch.is_last = matches!(outcome, Ok(false));
            let is_empty = batch.writes.is_empty() && batch.bad.is_empty();
            if (batch.is_last || !is_empty) && batches.send(Ok(batch)).is_err() {
                return Ok(());
            }
            if !outcome? {
                return Ok(());
            }
        }
    }

    /// Skips what an earlier import has written; returns the line of the last document skipped.
    fn skip_imported(&self, documents: &mut dyn DocumentReader) -> Result<u64> {
        let mut text = Vec::new();
        while documents.bytes_read() < self.start.bytes {
            text.clear();
            match self.next(documents, &mut text)? {
                Next::End => break,
                Next::Document(origin) if self.options.skips_bad && input::parse(&text, origin).is_err() => {
                    documents.refuse(&mut text);
                }
                Next::Document(_) | Next::Bad(_) => {}
            }
        }
        if self.start.bytes > 0 && documents.bytes_read() != self.start.bytes {
            return Err(Failure::usage("the documents are not divided as in the interrupted import")
                .with_hint("resume with the options of that import, or import everything again without --resume"));
        }
        Ok(self.start.line)
    }

    fn next(&self, documents: &mut dyn DocumentReader, text: &mut Vec<u8>) -> Result<Next> {
        match documents.next(text) {
            Ok(None) => Ok(Next::End),
            Ok(Some(origin)) => Ok(Next::Document(origin)),
            Err(failure) => {
                let skips = self.options.skips_bad && failure.exit() == Exit::Usage;
                if skips && documents.recover(text)? { Ok(Next::Bad(failure)) } else { Err(failure) }
            }
        }
    }

    /// Reads documents into the batch; returns false at the end of the input.
    fn fill(&self, documents: &mut dyn DocumentReader, batch: &mut Batch, line: &mut u64) -> Result<bool> {
        let (mut text, mut bytes) = (Vec::new(), 0);
        loop {
            batch.end = InputPlace { bytes: documents.bytes_read(), line: *line };
            if batch.writes.len() + batch.bad.len() >= self.batch_len || bytes >= BATCH_BYTES_MAX {
                return Ok(true);
            }
            text.clear();
            let origin = match self.next(documents, &mut text)? {
                Next::End => return Ok(false),
                Next::Document(origin) => origin,
                // Without a text, only punctuation is wrong: no document is lost.
                Next::Bad(_) if text.is_empty() => continue,
                Next::Bad(failure) => {
                    batch.bad.push((text.clone(), failure));
                    continue;
                }
            };
            bytes += text.len();
            match self.parse_write(&text, origin, batch) {
                Ok(Some(write)) => {
                    batch.writes.push(write);
                    batch.positions.push(origin.position);
                    batch.starts.push(batch.end);
                    if self.options.skips_bad {
                        batch.texts.push(documents.original().unwrap_or(&text).to_vec());
                    }
                }
                Ok(None) => {}
                Err(failure) if self.options.skips_bad => {
                    let mut bad = documents.original().unwrap_or(&text).to_vec();
                    documents.refuse(&mut bad);
                    batch.bad.push((bad, failure));
                }
                Err(failure) => return Err(failure),
            }
            *line = origin.position.line;
        }
    }

    /// Parses one document to a write; `None` if nothing needs to be written.
    fn parse_write(&self, text: &[u8], origin: DocumentOrigin, batch: &mut Batch) -> Result<Option<DocumentWrite>> {
        let document = input::parse(text, origin)?;
        if let (Some(files), Value::Object(object)) = (&self.revisions_from, &document) {
            let files = files.as_deref();
            let write = database::parse_salvaged_line(object.clone(), files, &mut batch.missing_attachment_count);
            return write.map_err(|failure| failure.with_context(origin.position));
        }
        let own = document.get("_id").map(|id| id_of(id, "_id", origin.position));
        let id = match (own, &self.id_field) {
            (Some(own), _) => own?,
            (None, Some(field)) => match field.get(&document) {
                Some(id) => id_of(id, &field.to_string(), origin.position)?,
                None => {
                    return Err(origin.position.failure(format!("the document has no `{field}` to take its id from")));
                }
            },
            (None, None) => {
                batch.has_generated_ids = true;
                uuid::Uuid::now_v7().to_string()
            }
        };
        let Value::Object(mut body) = document else {
            return Err(origin.position.failure("a document is a JSON object"));
        };
        body.remove("_id");
        for name in ["_rev", "_revisions", "_conflicts"] {
            body.remove(name);
        }
        let mode = if self.on_conflict == OnConflict::Replace { WriteMode::Upsert } else { WriteMode::Insert };
        Ok(Some(DocumentWrite { id, body, mode }))
    }
}

/// Converts the value of `field` to a document id.
fn id_of(value: &Value, field: &str, position: TextPosition) -> Result<String> {
    match value {
        Value::String(id) => Ok(id.clone()),
        Value::Number(number) if number.is_integer() => Ok(value.to_json()),
        other => {
            let kind = other.kind().name();
            Err(position.failure(format!("`{field}` is of type {kind}; an id is a string or an integer")))
        }
    }
}

/// What a reader returned.
enum Next {
    Document(DocumentOrigin),
    /// A malformed document, which is skipped.
    Bad(Failure),
    End,
}
