//! `stemma import`: reads documents from a file and writes them in batches.
//!
//! One thread reads and parses while another writes the previous batch. At most three batches are in memory.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use stemmadb::Value;

use super::Session;
use crate::arguments::{Import, OnConflict};
use crate::database::{self, Database, DocumentWrite, WriteMode};
use crate::failure::{self, Exit, Failure, Result};
use crate::input::{
    self, DocumentOrigin, DocumentReader, InputFormat, InputOptions, Source, TextColumns, TextPosition,
};
use crate::progress::Progress;
use crate::shell::interrupt;

/// A batch is written once it has this much text, even if it has few documents.
const BATCH_BYTES_MAX: usize = 8 << 20;

/// Imports a file or standard input.
pub(super) fn run(import: &Import, session: Session<'_>) -> Result<()> {
    let options = input_options(import)?;
    // Open the input first, so that a misspelled file name does not create an empty database.
    let source = Source::open(&import.file)?;
    let (name, bytes) = (source.name.clone(), source.bytes);
    session.with_new(&import.database, |db| {
        let progress = Progress::for_bytes("import", bytes);
        let mut tally = Tally::default();
        let bad_documents = import.skip_bad.as_deref().map(BadDocuments::create).transpose()?;
        let outcome = read_and_write(import, source, &options, db, &progress, &mut tally, bad_documents);
        let summary = tally.summary(&progress);
        drop(progress);
        if outcome.is_ok() || tally.written > 0 {
            failure::notice(summary);
        }
        if let (Some(file), 1..) = (&import.skip_bad, tally.bad) {
            failure::hint(format!("{} documents could not be imported: they are in {}", tally.bad, file.display()));
        }
        outcome.map_err(|failure| match failure.exit() {
            Exit::Done => failure,
            _ if tally.written == 0 => failure.with_context(&name),
            _ if tally.has_generated_ids => failure
                .with_context(&name)
                .with_hint("documents imported before the error are kept: import only the rest"),
            _ => failure
                .with_context(&name)
                .with_hint("documents imported before the error are kept: run again with --on-conflict skip"),
        })
    })
}

fn input_options(import: &Import) -> Result<InputOptions> {
    let delimiter = match import.delimiter.map(u8::try_from) {
        None => None,
        Some(Ok(byte)) if byte.is_ascii() && !matches!(byte, b'"' | b'\n' | b'\r') => Some(byte),
        Some(_) => {
            return Err(Failure::usage("the delimiter is one ASCII character, neither a quote nor the end of a line"));
        }
    };
    let array_path = match &import.at {
        None => Vec::new(),
        Some(path) => parse_path("--at", path)?.segments().map(str::to_owned).collect(),
    };
    let format = import.format.or(delimiter.map(|_| InputFormat::Csv));
    let text = match &import.text {
        None => TextColumns::Inferred,
        Some(names) if names.is_empty() => TextColumns::All,
        Some(names) => TextColumns::Named(names.clone()),
    };
    Ok(InputOptions { format, array_path, delimiter, text_columns: text, by_line: import.skip_bad.is_some() })
}

fn parse_path(option: &str, path: &str) -> Result<stemmadb::Path> {
    stemmadb::Path::parse(path).map_err(|error| Failure::from(error).with_context(option))
}

/// Counts of the documents processed.
#[derive(Default)]
struct Tally {
    written: u64,
    skipped: u64,
    /// Documents that could not be imported, with `--skip-bad`.
    bad: u64,
    /// Ids were generated for some documents, so a second import would duplicate them.
    has_generated_ids: bool,
    /// Attachments omitted because their content was not found.
    missing_attachment_count: u64,
}

impl Tally {
    fn summary(&self, progress: &Progress) -> String {
        let summary = progress.summary("imported", self.written);
        match (self.skipped, self.missing_attachment_count) {
            (0, 0) => summary,
            (0, missing) => format!("{summary}, omitted {missing} attachments without content"),
            (skipped, _) => format!("{summary}, skipped {skipped} existing"),
        }
    }
}

/// Documents written with one acknowledgment.
struct Batch {
    writes: Vec<DocumentWrite>,
    positions: Vec<TextPosition>,
    /// The texts of the documents, with `--skip-bad`.
    texts: Vec<Vec<u8>>,
    /// Documents that could not be parsed, with `--skip-bad`.
    bad: Vec<(Vec<u8>, Failure)>,
    has_generated_ids: bool,
    missing_attachment_count: u64,
}

/// The file of `--skip-bad`: the texts of documents that could not be imported, one on a line.
struct BadDocuments<'a> {
    path: &'a Path,
    file: BufWriter<File>,
}

impl<'a> BadDocuments<'a> {
    /// Creates the file, which must not exist, so that no documents of an earlier import are lost.
    fn create(path: &'a Path) -> Result<Self> {
        let file = File::create_new(path).map_err(|error| {
            Failure::new(Exit::Unavailable, format!("cannot create {}: {error}", path.display()))
                .with_hint("give --skip-bad the name of a new file")
        })?;
        Ok(BadDocuments { path, file: BufWriter::new(file) })
    }

    /// Prints why a document could not be imported, and keeps its text.
    fn add(&mut self, text: &[u8], failure: &Failure) -> Result<()> {
        failure.print();
        let written = self.file.write_all(text.trim_ascii()).and_then(|()| self.file.write_all(b"\n"));
        written
            .and_then(|()| self.file.flush())
            .map_err(|error| Failure::new(Exit::Unavailable, format!("cannot write {}: {error}", self.path.display())))
    }
}

/// Spawns the reader thread and writes its batches on this one.
fn read_and_write(
    import: &Import,
    source: Source,
    options: &InputOptions,
    db: &Database,
    progress: &Progress,
    tally: &mut Tally,
    bad_documents: Option<BadDocuments<'_>>,
) -> Result<()> {
    let bytes_read = AtomicU64::new(0);
    let id_field = import.id_field.as_deref().map(|path| parse_path("--id-field", path)).transpose()?;
    let revisions_from = import.revisions.then_some(import.files.as_deref());
    let reader = BatchReader {
        batch_len: import.batch as usize,
        on_conflict: import.on_conflict,
        options,
        id_field,
        revisions_from,
        keeps_texts: bad_documents.is_some(),
    };
    let (sender, receiver) = sync_channel(1);
    std::thread::scope(|scope| {
        let bytes_read = &bytes_read;
        scope.spawn(move || reader.run(source, bytes_read, &sender));
        write_all(import, receiver, bytes_read, db, progress, tally, bad_documents)
    })
}

/// Writes batches until the channel closes. Takes the receiver by value: dropping it on an error stops the reader.
fn write_all(
    import: &Import,
    batches: Receiver<Result<Batch>>,
    bytes_read: &AtomicU64,
    db: &Database,
    progress: &Progress,
    tally: &mut Tally,
    mut bad_documents: Option<BadDocuments<'_>>,
) -> Result<()> {
    for batch in batches {
        let Batch { writes, positions, texts, bad, has_generated_ids, missing_attachment_count } = batch?;
        let mut refused = bad;
        let mut texts = texts.into_iter();
        tally.has_generated_ids |= has_generated_ids;
        tally.missing_attachment_count += missing_attachment_count;
        let ids: Vec<String> = writes.iter().map(|write| write.id.clone()).collect();
        let mut refusal = None;
        for ((outcome, position), id) in
            db.bulk(writes, import.durability.durability)?.into_iter().zip(positions).zip(ids)
        {
            let text = texts.next();
            match outcome {
                Ok(_) => tally.written += 1,
                Err(failure) if failure.exit() == Exit::NotFound && import.on_conflict == OnConflict::Skip => {
                    tally.skipped += 1;
                }
                Err(failure) => {
                    let failure = match failure.exit() {
                        Exit::NotFound => {
                            Failure::new(Exit::NotFound, format!("{position}: document {id:?} already exists"))
                                .with_hint("--on-conflict skip keeps it, --on-conflict replace overwrites it")
                        }
                        _ => failure.with_context(position),
                    };
                    match text {
                        Some(text) if matches!(failure.exit(), Exit::NotFound | Exit::Usage) => {
                            refused.push((text, failure));
                        }
                        _ => refusal = refusal.or(Some(failure)),
                    }
                }
            }
        }
        if let Some(bad_documents) = &mut bad_documents {
            tally.bad += refused.len() as u64;
            refused.iter().try_for_each(|(text, failure)| bad_documents.add(text, failure))?;
        }
        progress.set_position(bytes_read.load(Ordering::Relaxed));
        progress.set_document_count(tally.written + tally.skipped);
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        interrupt::check()?;
    }
    Ok(())
}

/// Reads documents and groups them into batches.
struct BatchReader<'a> {
    batch_len: usize,
    on_conflict: OnConflict,
    options: &'a InputOptions,
    id_field: Option<stemmadb::Path>,
    /// Set if revisions are imported with their histories: the directory of the attachments' content, if given.
    revisions_from: Option<Option<&'a Path>>,
    /// Whether documents that can't be imported are skipped and their texts kept.
    keeps_texts: bool,
}

impl BatchReader<'_> {
    /// Sends batches until the input ends, a document is refused, or the writer has stopped.
    fn run(&self, source: Source, bytes_read: &AtomicU64, batches: &SyncSender<Result<Batch>>) {
        let mut documents = match source.documents(self.options) {
            Ok(documents) => documents,
            Err(failure) => return drop(batches.send(Err(failure))),
        };
        loop {
            let mut batch = Batch {
                writes: Vec::new(),
                positions: Vec::new(),
                texts: Vec::new(),
                bad: Vec::new(),
                has_generated_ids: false,
                missing_attachment_count: 0,
            };
            let outcome = self.fill(documents.as_mut(), &mut batch);
            bytes_read.store(documents.bytes_read(), Ordering::Relaxed);
            if !(batch.writes.is_empty() && batch.bad.is_empty()) && batches.send(Ok(batch)).is_err() {
                return;
            }
            match outcome {
                Ok(true) => {}
                Ok(false) => return,
                Err(failure) => return drop(batches.send(Err(failure))),
            }
        }
    }

    /// Reads documents into the batch; returns false at the end of the input.
    fn fill(&self, documents: &mut dyn DocumentReader, batch: &mut Batch) -> Result<bool> {
        let (mut text, mut bytes) = (Vec::new(), 0);
        while batch.writes.len() + batch.bad.len() < self.batch_len && bytes < BATCH_BYTES_MAX {
            text.clear();
            let Some(origin) = documents.next(&mut text)? else { return Ok(false) };
            let write = self.parse_write(&text, origin, batch);
            bytes += text.len();
            match write {
                Ok(Some(write)) => {
                    batch.writes.push(write);
                    batch.positions.push(origin.position);
                    if self.keeps_texts {
                        batch.texts.push(text.clone());
                    }
                }
                Ok(None) => {}
                Err(failure) if self.keeps_texts => batch.bad.push((text.clone(), failure)),
                Err(failure) => return Err(failure),
            }
        }
        Ok(true)
    }

    /// Parses one document to a write; `None` if nothing needs to be written.
    fn parse_write(&self, text: &[u8], origin: DocumentOrigin, batch: &mut Batch) -> Result<Option<DocumentWrite>> {
        let document = input::parse(text, origin)?;
        if let (Some(files), Value::Object(object)) = (self.revisions_from, &document) {
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
