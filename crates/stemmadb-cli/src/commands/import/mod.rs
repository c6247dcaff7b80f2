//! `stemma import`: reads documents from a file and writes them in batches.
//!
//! One thread reads and parses while another writes the previous batch. At most three batches are in memory. With each
//! batch, the same transaction records how far the import got, so that it can resume.

mod bad_documents;
mod batch_reader;
mod position;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use super::Session;
use crate::arguments::{Import, OnConflict};
use crate::database::{Database, DocumentWrite};
use crate::failure::{self, Exit, Failure, Result};
use crate::input::{InputFormat, InputOptions, Source, TextColumns};
use crate::progress::Progress;
use crate::shell::interrupt;
use bad_documents::BadDocuments;
use batch_reader::{Batch, BatchReader};
use position::{ImportState, StoredPosition};

/// How long an interrupt may wait while no batch arrives.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(50);

/// Imports a file or standard input.
pub(super) fn run(import: &Import, session: Session<'_>) -> Result<()> {
    let options = input_options(import)?;
    // Open the input first, so that a misspelled file name does not create an empty database.
    let mut source = Source::open(&import.file)?;
    let name = source.name.clone();
    // Reading ahead would delay a pipe that is written to slowly.
    let has_identity = import.resume || source.bytes.is_some();
    let position = if has_identity { Some(StoredPosition::of(source.identify()?)) } else { None };
    interrupt::catch();
    session.with_created(&import.database, &import.creation, |db| {
        let state = match &position {
            Some(position) if import.resume => position.read(db)?.unwrap_or_default(),
            _ => ImportState::default(),
        };
        if state.is_finished {
            failure::notice(format!("{name} is imported already; without --resume it is imported again"));
            return Ok(());
        }
        if state.place.bytes > 0 {
            let count = state.document_count;
            failure::notice(format!("resuming {name} after line {}, {count} documents are imported", state.place.line));
        }
        let is_stored = state.place.bytes > 0;
        let bad_documents = import.skip_bad.as_deref().map(|path| BadDocuments::create(path, is_stored)).transpose()?;
        let progress = Progress::for_bytes("import", source.bytes);
        let (bytes, tally) = (source.bytes, Tally::default());
        let importer = Importer { import, name, db, position, state, is_stored, bad_documents, progress, bytes, tally };
        importer.run(source, options)
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
    Ok(InputOptions { format, array_path, delimiter, text_columns: text, skips_bad: import.skip_bad.is_some() })
}

fn parse_path(option: &str, path: &str) -> Result<stemmadb::Path> {
    stemmadb::Path::parse(path).map_err(|error| Failure::from(error).with_context(option))
}

/// A running import.
struct Importer<'a> {
    import: &'a Import,
    name: String,
    db: &'a Database,
    /// `None` if the input can't be recognized later.
    position: Option<StoredPosition>,
    /// How far the import got, including earlier ones that it resumes.
    state: ImportState,
    /// Whether `state` is stored, so that a later import can resume.
    is_stored: bool,
    bad_documents: Option<BadDocuments<'a>>,
    progress: Progress,
    bytes: Option<u64>,
    tally: Tally,
}

/// Counts of the documents processed.
#[derive(Default)]
struct Tally {
    written: u64,
    skipped: u64,
    /// Ids were generated for some documents, so a second import would duplicate them.
    has_generated_ids: bool,
    /// Attachments omitted because their content was not found.
    missing_attachment_count: u64,
}

impl Importer<'_> {
    fn run(mut self, source: Source, options: InputOptions) -> Result<()> {
        let outcome = self.read_and_write(source, options);
        if outcome.is_ok() || self.tally.written > 0 {
            failure::notice(self.summary());
        }
        self.print_bad_count();
        outcome.map_err(|failure| self.explain(failure))
    }

    /// Starts the reader thread and writes its batches on this one. The thread is not waited for: it may be blocked by
    /// an input that does not end.
    fn read_and_write(&mut self, source: Source, options: InputOptions) -> Result<()> {
        let import = self.import;
        let reader = BatchReader {
            batch_len: import.batch as usize,
            on_conflict: import.on_conflict,
            options,
            id_field: import.id_field.as_deref().map(|path| parse_path("--id-field", path)).transpose()?,
            revisions_from: import.revisions.then(|| import.files.clone()),
            start: self.state.place,
        };
        let (sender, receiver) = sync_channel(1);
        let bytes_read = Arc::new(AtomicU64::new(0));
        let read_by_thread = bytes_read.clone();
        std::thread::spawn(move || reader.run(source, &read_by_thread, &sender));
        self.write_all(&receiver, &bytes_read)
    }

    /// Writes batches until the last one.
    fn write_all(&mut self, batches: &Receiver<Result<Batch>>, bytes_read: &AtomicU64) -> Result<()> {
        loop {
            let batch = match batches.recv_timeout(INTERRUPT_INTERVAL) {
                Ok(batch) => batch?,
                Err(RecvTimeoutError::Timeout) if interrupt::happened() => return Err(self.interrupted()),
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::new(Exit::Internal, "the thread that reads the input has stopped"));
                }
            };
            let is_last = batch.is_last;
            self.write(batch)?;
            self.progress.set_position(bytes_read.load(Ordering::Relaxed));
            self.progress.set_document_count(self.tally.written + self.tally.skipped);
            if is_last {
                return Ok(());
            }
            if interrupt::happened() {
                return Err(self.interrupted());
            }
        }
    }

    /// Writes a batch, together with the position after it.
    fn write(&mut self, batch: Batch) -> Result<()> {
        let Batch { writes, positions, starts, end, is_last, texts, bad, header, .. } = batch;
        self.tally.has_generated_ids |= batch.has_generated_ids;
        self.tally.missing_attachment_count += batch.missing_attachment_count;
        // Before the position says that they were read.
        self.keep_bad(header.as_deref(), &bad)?;
        let ids: Vec<String> = writes.iter().map(|write| write.id.clone()).collect();
        let place_after = |count: usize| starts.get(count).copied().unwrap_or(end);
        let before = self.state;
        let state_after = |outcomes: &[Result<()>], is_complete: bool| {
            let written = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
            ImportState {
                place: place_after(if is_complete { ids.len() } else { outcomes.len() - 1 }),
                document_count: before.document_count + written as u64,
                is_finished: is_complete && is_last,
            }
        };
        let outcomes = self.write_documents(writes, &state_after)?;
        let is_complete = outcomes.last().is_none_or(|last| self.goes_on(last));
        self.state = state_after(&outcomes, is_complete);
        let mut refused = Vec::new();
        for (at, (outcome, text)) in
            outcomes.into_iter().zip(texts.into_iter().map(Some).chain(std::iter::repeat_with(|| None))).enumerate()
        {
            let failure = match outcome {
                Ok(()) => {
                    self.tally.written += 1;
                    continue;
                }
                Err(failure) if self.skips(&failure) => {
                    self.tally.skipped += 1;
                    continue;
                }
                Err(failure) if failure.exit() == Exit::NotFound => exists(&ids[at]).with_context(positions[at]),
                Err(failure) => failure.with_context(positions[at]),
            };
            match text.filter(|_| is_bad_document(&failure)) {
                Some(text) => refused.push((text, failure)),
                None => return Err(failure),
            }
        }
        self.keep_bad(header.as_deref(), &refused)
    }

    /// Writes documents until one is refused. The position is stored unless the whole input is one batch.
    fn write_documents(
        &mut self,
        writes: Vec<DocumentWrite>,
        state_after: &dyn Fn(&[Result<()>], bool) -> ImportState,
    ) -> Result<Vec<Result<()>>> {
        let goes_on = |outcome: &Result<()>| self.goes_on(outcome);
        let is_stored = Cell::new(self.is_stored);
        let body = |outcomes: &[Result<()>]| {
            let state = state_after(outcomes, outcomes.last().is_none_or(goes_on));
            let position =
                self.position.as_ref().filter(|_| self.import.resume || is_stored.get() || !state.is_finished)?;
            is_stored.set(true);
            Some(position.body(&state))
        };
        let id = self.position.as_ref().map_or("", StoredPosition::id);
        let outcomes = self.db.bulk(writes, self.import.durability.durability, &goes_on, (id, &body))?;
        self.is_stored = is_stored.get();
        Ok(outcomes)
    }

    fn keep_bad(&mut self, header: Option<&[u8]>, documents: &[(Vec<u8>, Failure)]) -> Result<()> {
        match &mut self.bad_documents {
            Some(file) => file.add(header, documents),
            None => Ok(()),
        }
    }

    /// Whether the import goes on after this outcome.
    fn goes_on(&self, outcome: &Result<()>) -> bool {
        match outcome {
            Ok(()) => true,
            Err(failure) => self.skips(failure) || (self.bad_documents.is_some() && is_bad_document(failure)),
        }
    }

    fn skips(&self, failure: &Failure) -> bool {
        failure.exit() == Exit::NotFound && self.import.on_conflict == OnConflict::Skip
    }

    fn interrupted(&self) -> Failure {
        let at = match self.bytes {
            Some(bytes) => format!("byte {} of {bytes}", self.state.place.bytes),
            None => format!("byte {}", self.state.place.bytes),
        };
        let line = self.state.place.line;
        Failure::new(Exit::Interrupted, format!("interrupted: documents up to line {line} ({at}) are imported"))
    }

    fn summary(&self) -> String {
        let summary = self.progress.summary("imported", self.tally.written);
        match (self.tally.skipped, self.tally.missing_attachment_count) {
            (0, 0) => summary,
            (0, missing) => format!("{summary}, omitted {missing} attachments without content"),
            (skipped, _) => format!("{summary}, skipped {skipped} existing"),
        }
    }

    fn print_bad_count(&self) {
        let (Some(file), Some(path)) = (&self.bad_documents, &self.import.skip_bad) else { return };
        let path = path.display();
        match (file.count, file.unprinted_count()) {
            (0, _) => {}
            (1, _) => failure::hint(format!("1 document could not be imported: it is in {path}")),
            (count, 0) => failure::hint(format!("{count} documents could not be imported: they are in {path}")),
            (count, more) => failure::hint(format!(
                "{count} documents could not be imported: they are in {path}; {more} errors are not shown"
            )),
        }
    }

    /// Adds the name of the input and what to do next.
    fn explain(&self, failure: Failure) -> Failure {
        let is_interrupt = failure.exit() == Exit::Interrupted;
        let failure = failure.with_context(&self.name);
        if self.is_stored && is_interrupt {
            failure.with_hint("run the same command again with --resume to import the rest")
        } else if self.tally.written == 0 {
            failure
        } else if self.is_stored {
            failure.with_hint(
                "documents before it are imported: run again with --resume and --skip-bad FILE to import the rest",
            )
        } else if self.tally.has_generated_ids {
            failure.with_hint("documents imported before the error are kept: import only the rest")
        } else {
            failure.with_hint("documents imported before the error are kept: run again with --on-conflict skip")
        }
    }
}

/// Whether the failure concerns one document, not the import.
fn is_bad_document(failure: &Failure) -> bool {
    matches!(failure.exit(), Exit::NotFound | Exit::Usage)
}

fn exists(id: &str) -> Failure {
    Failure::new(Exit::NotFound, format!("document {id:?} already exists"))
        .with_hint("--on-conflict skip keeps it, --on-conflict replace overwrites it")
}
