//! A file of documents goes in, in batches.
//!
//! One thread reads and parses, the other writes: while one batch is on its way to the disk the next is being read. At
//! most three batches are in memory.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use stemmadb::Value;

use super::Session;
use crate::arguments::{Import, OnConflict};
use crate::face::{self, Database, Over, Write};
use crate::failure::{self, Exit, Failure, Result};
use crate::progress::Progress;
use crate::read::{self, Documents, Found, Place, Reading, Source, Text};
use crate::shell::interrupt;

/// A batch ends at this much text, however few documents that are.
const BATCH_BYTES_MAX: usize = 8 << 20;

/// Imports a file or standard input.
pub(super) fn run(import: &Import, session: Session<'_>) -> Result<()> {
    let reading = reading(import)?;
    // Before the database, so that a misspelt file name does not leave an empty database behind.
    let source = Source::open(&import.file)?;
    let (name, bytes) = (source.name.clone(), source.bytes);
    session.with_new(&import.database, |db| {
        let progress = Progress::of_bytes("import", bytes);
        let mut tally = Tally::default();
        let outcome = pump(import, source, &reading, db, &progress, &mut tally);
        let summary = tally.summary(&progress);
        drop(progress);
        if outcome.is_ok() || tally.written > 0 {
            failure::remark(summary);
        }
        outcome.map_err(|failure| match failure.exit() {
            Exit::Done => failure,
            _ if tally.written == 0 => failure.within(&name),
            _ if tally.made_ids => {
                failure.within(&name).with_hint("what was imported before stays: import only the rest next time")
            }
            _ => failure
                .within(&name)
                .with_hint("what was imported before stays: --on-conflict skip passes over it next time"),
        })
    })
}

fn reading(import: &Import) -> Result<Reading> {
    let delimiter = match import.delimiter.map(u8::try_from) {
        None => None,
        Some(Ok(byte)) if byte.is_ascii() && !matches!(byte, b'"' | b'\n' | b'\r') => Some(byte),
        Some(_) => {
            return Err(Failure::usage("the delimiter is one ASCII character, neither a quote nor the end of a line"));
        }
    };
    let inside = match &import.at {
        None => Vec::new(),
        Some(path) => path_of("--at", path)?.segments().map(str::to_owned).collect(),
    };
    let format = import.format.or(delimiter.map(|_| read::Format::Csv));
    let text = match &import.text {
        None => Text::AsNeeded,
        Some(names) if names.is_empty() => Text::All,
        Some(names) => Text::Fields(names.clone()),
    };
    Ok(Reading { format, inside, delimiter, text })
}

fn path_of(option: &str, path: &str) -> Result<stemmadb::Path> {
    stemmadb::Path::parse(path).map_err(|error| Failure::from(error).within(option))
}

/// What became of the documents.
#[derive(Default)]
struct Tally {
    written: u64,
    skipped: u64,
    /// Some documents came without an id, so that nobody could tell them from new ones.
    made_ids: bool,
    /// Files left out, because their content was not given.
    lost_files: u64,
}

impl Tally {
    fn summary(&self, progress: &Progress) -> String {
        let summary = progress.summary("imported", self.written);
        match (self.skipped, self.lost_files) {
            (0, 0) => summary,
            (0, lost) => format!("{summary}, left out {lost} files whose content was not given"),
            (skipped, _) => format!("{summary}, skipped {skipped} that were there"),
        }
    }
}

/// Documents that are written together.
struct Batch {
    writes: Vec<Write>,
    places: Vec<Place>,
    made_ids: bool,
    lost_files: u64,
}

/// Lets one thread read and this one write.
fn pump(
    import: &Import,
    source: Source,
    reading: &Reading,
    db: &Database,
    progress: &Progress,
    tally: &mut Tally,
) -> Result<()> {
    let passed = AtomicU64::new(0);
    let id_field = import.id_field.as_deref().map(|path| path_of("--id-field", path)).transpose()?;
    let as_is = import.revisions.then_some(import.files.as_deref());
    let reader = Reader { batch_count: import.batch as usize, over: import.on_conflict, reading, id_field, as_is };
    let (sender, receiver) = sync_channel(1);
    std::thread::scope(|scope| {
        let passed = &passed;
        scope.spawn(move || reader.run(source, passed, &sender));
        write_all(import, receiver, passed, db, progress, tally)
    })
}

/// Writes batches until there are no more. The receiver goes with it: a reader with nobody left to read for stops.
fn write_all(
    import: &Import,
    batches: Receiver<Result<Batch>>,
    passed: &AtomicU64,
    db: &Database,
    progress: &Progress,
    tally: &mut Tally,
) -> Result<()> {
    for batch in batches {
        let Batch { writes, places, made_ids, lost_files } = batch?;
        tally.made_ids |= made_ids;
        tally.lost_files += lost_files;
        let ids: Vec<String> = writes.iter().map(|write| write.id.clone()).collect();
        let mut refusal = None;
        for ((outcome, place), id) in db.bulk(writes, import.durability.durability)?.into_iter().zip(places).zip(ids) {
            match outcome {
                Ok(_) => tally.written += 1,
                Err(failure) if failure.exit() == Exit::NotFound && import.on_conflict == OnConflict::Skip => {
                    tally.skipped += 1;
                }
                Err(failure) if failure.exit() == Exit::NotFound => {
                    refusal = refusal.or_else(|| {
                        let failure =
                            Failure::new(Exit::NotFound, format!("{place}: document {id:?} is there already"));
                        Some(failure.with_hint("--on-conflict skip keeps it, --on-conflict replace overwrites it"))
                    });
                }
                Err(failure) => refusal = refusal.or_else(|| Some(failure.within(place))),
            }
        }
        progress.reached(passed.load(Ordering::Relaxed));
        progress.documents(tally.written + tally.skipped);
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        interrupt::check()?;
    }
    Ok(())
}

/// The reading side.
struct Reader<'a> {
    batch_count: usize,
    over: OnConflict,
    reading: &'a Reading,
    id_field: Option<stemmadb::Path>,
    /// Revisions are taken as they are, and their files from here.
    as_is: Option<Option<&'a Path>>,
}

impl Reader<'_> {
    /// Sends batches until the input ends or is refused; whoever writes may have stopped before.
    fn run(&self, source: Source, passed: &AtomicU64, batches: &SyncSender<Result<Batch>>) {
        let mut documents = match source.documents(self.reading) {
            Ok(documents) => documents,
            Err(failure) => return drop(batches.send(Err(failure))),
        };
        loop {
            let mut batch = Batch { writes: Vec::new(), places: Vec::new(), made_ids: false, lost_files: 0 };
            let outcome = self.fill(documents.as_mut(), &mut batch);
            passed.store(documents.bytes(), Ordering::Relaxed);
            if !batch.writes.is_empty() && batches.send(Ok(batch)).is_err() {
                return;
            }
            match outcome {
                Ok(true) => {}
                Ok(false) => return,
                Err(failure) => return drop(batches.send(Err(failure))),
            }
        }
    }

    /// Reads documents into the batch; says whether there may be more.
    fn fill(&self, documents: &mut dyn Documents, batch: &mut Batch) -> Result<bool> {
        let (mut text, mut bytes) = (Vec::new(), 0);
        while batch.writes.len() < self.batch_count && bytes < BATCH_BYTES_MAX {
            text.clear();
            let Some(found) = documents.next(&mut text)? else { return Ok(false) };
            let write = self.write(&text, found, batch)?;
            bytes += text.len();
            if let Some(write) = write {
                batch.writes.push(write);
                batch.places.push(found.place);
            }
        }
        Ok(true)
    }

    /// What one document's text asks to write, if anything.
    fn write(&self, text: &[u8], found: Found, batch: &mut Batch) -> Result<Option<Write>> {
        let document = read::parse(text, found)?;
        if let (Some(files), Value::Object(object)) = (self.as_is, &document) {
            let write = face::write_of(object.clone(), files, &mut batch.lost_files);
            return write.map_err(|failure| failure.within(found.place));
        }
        let own = document.get("_id").map(|id| id_of(id, "_id", found.place));
        let id = match (own, &self.id_field) {
            (Some(own), _) => own?,
            (None, Some(field)) => match field.get(&document) {
                Some(id) => id_of(id, &field.to_string(), found.place)?,
                None => return Err(found.place.failure(format!("the document has no `{field}` to take its id from"))),
            },
            (None, None) => {
                batch.made_ids = true;
                uuid::Uuid::now_v7().to_string()
            }
        };
        let Value::Object(mut body) = document else {
            return Err(found.place.failure("a document is a JSON object"));
        };
        body.remove("_id");
        for name in ["_rev", "_revisions", "_conflicts"] {
            body.remove(name);
        }
        let over = if self.over == OnConflict::Replace { Over::Anything } else { Over::Nothing };
        Ok(Some(Write { id, body, over }))
    }
}

/// The id that stands in `field`.
fn id_of(value: &Value, field: &str, place: Place) -> Result<String> {
    match value {
        Value::String(id) => Ok(id.clone()),
        Value::Number(number) if number.is_integer() => Ok(value.to_json()),
        other => {
            let kind = other.kind().name();
            Err(place.failure(format!("`{field}` is of type {kind}; an id is a string or an integer")))
        }
    }
}
