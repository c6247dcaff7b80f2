//! Salvage: every document whose frames were not damaged is recovered into a new database byte for byte, and nothing is
//! recovered that was never written.
//!
//! The test locates each document's frames by the documented log format alone (docs/format.md). `STEMMA_SALVAGES` sets
//! the number of damaged copies (default 40; the long run does 2,000), `STEMMA_SALVAGE_SEED` the seed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use damage::{Damage, KINDS, segments};
use stemmadb::salvage::{SalvageReport, Salvaged};
use stemmadb::{Database, DocumentId, Durability, Edit, File, FileContent, Options, Value, testing};

mod damage;

const DOCUMENTS: u64 = 500;
const SHAPES: u64 = 12;

fn number_from(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn options() -> Options {
    testing::with_small_limits(Options::new().durability(Durability::None).background(false), 64 << 10, 24 << 10, 40)
}

fn id(number: u64) -> String {
    format!("document-{number}-end")
}

/// Field names that identify the frame that introduced them, and a text that differs in every revision.
fn body(number: u64, edit: u64) -> Value {
    let (shape, fill) = (number % SHAPES, "x".repeat((number * 131 % 300) as usize));
    let json =
        format!(r#"{{"only_in_shape_{shape}_":{number},"edit":{edit},"nested":[1,{{"a":2.5}}],"fill":"{fill}"}}"#);
    Value::parse(json.as_bytes()).unwrap()
}

type Contents = BTreeMap<String, Option<Value>>;

/// Creates and closes a database of several segments; returns the newest state of each document, `None` for a deletion.
fn original(path: &Path) -> Contents {
    let db = Database::open_with(path, options()).unwrap();
    let mut contents = Contents::new();
    for number in 0..DOCUMENTS {
        let mut revision = db.insert(&id(number), &body(number, 1)).unwrap();
        contents.insert(id(number), Some(body(number, 1)));
        if number % 3 == 0 {
            revision = db.replace(&id(number), &revision, &body(number, 2)).unwrap();
            contents.insert(id(number), Some(body(number, 2)));
        }
        if number % 10 == 4 {
            db.delete(&id(number), &revision).unwrap();
            contents.insert(id(number), None);
        }
        if number % 50 == 20 {
            db.local_documents().put(&format!("_local/{number}-end"), None, &body(number, 7)).unwrap();
        }
        if number == 200 {
            db.maintenance().compact().unwrap();
        }
    }
    db.upsert("_design/words-end", &serde_json::json!({"views": {}})).unwrap();
    contents.insert("_design/words-end".into(), Some(Value::parse(br#"{"views":{}}"#).unwrap()));
    db.close().unwrap();
    contents
}

/// Location of a frame: segment index and byte range.
type Frame = (usize, Range<usize>);

/// The frames of an undamaged log according to its format: a header of 64 bytes, then frames of 32 bytes and a payload,
/// padded to multiples of 8.
fn frames(log: &[Vec<u8>]) -> Vec<Frame> {
    let mut found = Vec::new();
    for (segment, bytes) in log.iter().enumerate() {
        let mut offset = 64;
        while offset + 32 <= bytes.len() {
            let word = u32::from_be_bytes(bytes[offset..offset + 4].try_into().unwrap());
            if word >> 30 == 0 {
                break;
            }
            let end = (offset + 32 + (word & 0x3fff_ffff) as usize).next_multiple_of(8);
            found.push((segment, offset..end));
            offset = end;
        }
    }
    found
}

/// The frames needed to recover a document.
struct RequiredFrames {
    /// The last frame that contains its id.
    newest: Frame,
    /// The frames that contain its field names; any one suffices.
    names: Vec<Frame>,
}

/// Required frames by id.
struct RequiredByDocument {
    documents: BTreeMap<String, RequiredFrames>,
    locals: BTreeMap<String, RequiredFrames>,
}

fn map(log: &[Vec<u8>], contents: &Contents) -> RequiredByDocument {
    let frames = frames(log);
    let holding = |text: &str| {
        let holds = |(segment, range): &&Frame| contains_bytes(&log[*segment][range.clone()], text.as_bytes());
        frames.iter().filter(holds).cloned().collect::<Vec<_>>()
    };
    let names: Vec<Vec<Frame>> = (0..SHAPES).map(|shape| holding(&format!("only_in_shape_{shape}_"))).collect();
    let required = |name: String| {
        let newest = holding(&name).last().cloned().unwrap_or_else(|| panic!("{name} is not in the log"));
        let number = name.trim_start_matches(|other: char| !other.is_ascii_digit()).trim_end_matches("-end");
        let shape = number.parse::<u64>().ok().map(|number| (number % SHAPES) as usize);
        (name, RequiredFrames { newest, names: shape.map_or(Vec::new(), |shape| names[shape].clone()) })
    };
    let locals = (0..DOCUMENTS).filter(|number| number % 50 == 20).map(|number| format!("_local/{number}-end"));
    RequiredByDocument {
        documents: contents.keys().cloned().map(required).collect(),
        locals: locals.map(required).collect(),
    }
}

fn contains_bytes(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

fn read_log(database: &Path) -> Vec<Vec<u8>> {
    segments(database).iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// Whether the required frames are unchanged in the damaged log.
fn is_untouched(required: &RequiredFrames, sound: &[Vec<u8>], damaged: &[Option<Vec<u8>>]) -> bool {
    let is_whole = |(segment, range): &Frame| {
        let there = damaged[*segment].as_ref().and_then(|bytes| bytes.get(range.clone()));
        there == Some(&sound[*segment][range.clone()])
    };
    is_whole(&required.newest) && (required.names.is_empty() || required.names.iter().any(is_whole))
}

/// Whether this is a version of a document, or `_local` document, written by [`original`].
fn was_written(id: &str, deleted: bool, found: &Value) -> bool {
    let number = |name: &str| name.strip_suffix("-end")?.parse().ok().filter(|number| *number < DOCUMENTS);
    match (id.strip_prefix("document-").and_then(number), id.strip_prefix("_local/").and_then(number)) {
        (Some(number), _) if deleted => number % 10 == 4,
        (Some(number), _) => [1, 2].iter().any(|edit| *found == body(number, *edit)),
        (_, Some(number)) => number % 50 == 20 && *found == body(number, 7),
        _ => id == "_design/words-end",
    }
}

/// Salvages a database into a new one; `is_right` must accept each version found.
fn salvage(from: &Path, is_right: impl Fn(&str, bool, &Value) -> bool) -> (Database, SalvageReport) {
    let db = Database::in_memory();
    let mut edits = Vec::new();
    let report = stemmadb::salvage::salvage_database(from, |found| {
        match found {
            Salvaged::Revision(found) => {
                assert!(is_right(found.id.as_str(), found.deleted, &found.body), "never written: {found:?}");
                let edit = Edit::Foreign {
                    id: found.id,
                    revisions: found.revisions,
                    deleted: found.deleted,
                    body: found.body,
                    files: Vec::new(),
                };
                edits.push(edit);
            }
            Salvaged::Local { id, deleted: false, body } => {
                assert!(is_right(id.as_str(), false, &body), "never written: {id} {body:?}");
                db.local_documents().put(id.as_str(), None, &body)?;
            }
            _ => {}
        }
        Ok(())
    });
    db.bulk(edits).unwrap().into_iter().for_each(|taken| assert!(taken.is_ok(), "{taken:?}"));
    (db, report.unwrap())
}

fn state(path: &Path) -> BTreeSet<(PathBuf, Vec<u8>)> {
    let mut found = BTreeSet::new();
    for entry in path.read_dir().unwrap().flatten() {
        match entry.path().is_dir() {
            true => found.extend(state(&entry.path())),
            false => drop(found.insert((entry.path(), std::fs::read(entry.path()).unwrap()))),
        }
    }
    found
}

#[test]
fn undamaged_documents_are_salvaged_byte_for_byte() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("original.stemma");
    let contents = original(&path);
    let sound = read_log(&path);
    assert!(sound.len() > 3, "several segments");
    let map = map(&sound, &contents);
    let copy = directory.path().join("copy.stemma");
    let mut random = testing::Random::new(number_from("STEMMA_SALVAGE_SEED", 1));
    let (mut saved, mut lost, mut skipped) = (0, 0, 0);
    let rounds = number_from("STEMMA_SALVAGES", 40);
    for round in 0..rounds {
        std::fs::remove_dir_all(&copy).ok();
        testing::copy_directory(&path, &copy).unwrap();
        // Salvage must not need the tree.
        std::fs::remove_dir_all(copy.join("tree")).unwrap();
        let mut damages = Vec::new();
        for _ in 0..random.below(4) {
            let kind = random.below(KINDS);
            damages.extend(Damage::of_kind(kind, &mut random, &copy));
        }
        let context = format!("round {round}: {damages:?}");
        let files = segments(&path);
        let damaged: Vec<_> =
            files.iter().map(|file| std::fs::read(copy.join("log").join(file.file_name().unwrap())).ok()).collect();
        let before = state(&copy);
        let (db, report) = salvage(&copy, was_written);
        assert!(state(&copy) == before, "{context}: something was changed");
        for (name, required) in &map.documents {
            let found =
                db.get(name).unwrap_or_else(|error| panic!("{context}: {error}")).map(|found| found.value().unwrap());
            if is_untouched(required, &sound, &damaged) {
                assert_eq!(&found, &contents[name], "{context}: `{name}` is not as it was, {:#?}", report.skipped);
                saved += 1;
            } else {
                lost += u64::from(found != contents[name]);
            }
        }
        for (name, required) in &map.locals {
            if is_untouched(required, &sound, &damaged) {
                let number = name.trim_start_matches("_local/").trim_end_matches("-end").parse().unwrap();
                assert_eq!(
                    db.local_documents().get(name).unwrap().map(|found| found.1),
                    Some(body(number, 7)),
                    "{context}: {name}"
                );
            }
        }
        // A truncated end of the log leaves no trace in the log itself; only the tree, and so `check`, reveals it.
        assert!(report.skipped.is_empty() || !damages.is_empty(), "{context}: {report:#?}");
        skipped += report.skipped.len();
        assert!(db.maintenance().check().unwrap().is_sound(), "{context}");
    }
    println!("{rounds} salvages: {saved} documents saved, {lost} damaged themselves, {skipped} places told, 0 wrong");
    assert!(lost > 0, "no document was ever damaged: the test has no effect");
}

/// The most common case of a small database that loses a page: the only segment loses its first one.
#[test]
fn frames_are_recognized_without_any_segment_header() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("small.stemma");
    let db = Database::open_with(&path, options()).unwrap();
    for number in 0..40 {
        db.insert(&id(number), &serde_json::json!({"number": number, "fill": "y".repeat(300)})).unwrap();
        if number == 30 {
            // Records rewritten by compaction include their field names.
            db.delete(&id(1), db.get(&id(1)).unwrap().unwrap().revision()).unwrap();
        }
    }
    db.insert("last", &serde_json::json!({"another": "shape"})).unwrap();
    db.close().unwrap();
    let file = &segments(&path)[0];
    let mut bytes = std::fs::read(file).unwrap();
    bytes[..4096].fill(0);
    std::fs::write(file, bytes).unwrap();
    assert!(Database::open_with(&path, options()).is_err());
    // The first page had the names of fields; the tree has them, too.
    let (_, report) = salvage(&path, |_, _, _| true);
    assert!(report.revision_count > 20 && report.undecodable_count == 0, "{report:#?}");
    std::fs::remove_dir_all(path.join("tree")).unwrap();
    let (db, report) = salvage(&path, |_, _, _| true);
    assert!(report.revision_count >= 1 && report.undecodable_count > 20, "{report:#?}");
    assert_eq!(db.get("last").unwrap().unwrap().get("another").unwrap(), Some("shape".into()));
    let id = DocumentId::new("nothing").unwrap();
    assert!(db.get(id.as_str()).unwrap().is_none());
}

/// A record of a log's only segment.
struct LogRecord {
    range: Range<usize>,
    /// 3: names of fields.
    kind: u8,
    /// The id of the document, if it is a revision.
    id: Option<String>,
}

/// The records of a log by its format: a checksum of 4 bytes, a length, and what it counts.
fn log_records(log: &[Vec<u8>]) -> Vec<LogRecord> {
    let mut found = Vec::new();
    for (segment, frame) in frames(log) {
        let bytes = &log[segment];
        let word = u32::from_be_bytes(bytes[frame.start..frame.start + 4].try_into().unwrap());
        let (mut at, end) = (frame.start + 32, frame.start + 32 + (word & 0x3fff_ffff) as usize);
        while word >> 30 == 1 && at < end {
            let (mut length, mut shift, mut fields) = (0, 0, at + 4);
            loop {
                length |= usize::from(bytes[fields] & 0x7f) << shift;
                shift += 7;
                fields += 1;
                if bytes[fields - 1] < 0x80 {
                    break;
                }
            }
            let record = at..fields + length;
            let kind = bytes[fields] & 0x7f;
            let id = (kind == 1).then(|| {
                let text = String::from_utf8_lossy(&bytes[record.clone()]);
                text[text.find("document-").unwrap()..text.find("-end").unwrap() + 4].to_owned()
            });
            at = record.end;
            found.push(LogRecord { range: record, kind, id });
        }
    }
    found
}

/// A closed database whose documents arrived in three transactions; their attachments are copies of parts of another
/// log, and of its own.
fn documents_in_few_frames(directory: &Path) -> PathBuf {
    let other = directory.join("other.stemma");
    let db = Database::open_with(&other, options()).unwrap();
    for number in 1_000..1_500 {
        db.insert(&id(number), &body(number, 1)).unwrap();
    }
    db.close().unwrap();
    let parts = read_log(&other).split_off(1);
    let path = directory.join("few.stemma");
    for transaction in 0..3 {
        let own = if transaction == 0 { parts.clone() } else { read_log(&path) };
        let db = Database::open_with(&path, Options::new().durability(Durability::None).background(false)).unwrap();
        let put = |number: u64| {
            let sources = if number.is_multiple_of(2) { &own } else { &parts };
            let log = &sources[number as usize % sources.len()];
            let start = (number as usize * 977) % (log.len() - 3_000);
            let file = || {
                let blob = db.files().store(&log[start..start + 3_000]).unwrap();
                let content_type = "application/octet-stream".to_owned();
                let content = FileContent::Stored { content_type, blob, md5: None, generation: None };
                File { name: "log".to_owned(), content }
            };
            let files = if number.is_multiple_of(7) { vec![file()] } else { Vec::new() };
            Edit::Put { id: id(number).parse().unwrap(), parent: None, deleted: false, body: body(number, 1), files }
        };
        let edits: Vec<Edit> = (transaction * 40..(transaction + 1) * 40).map(put).collect();
        db.write(|tx| edits.into_iter().try_for_each(|edit| tx.edit(edit).map(|_| ()))).unwrap();
        db.maintenance().checkpoint().unwrap();
        db.close().unwrap();
    }
    path
}

/// One flipped bit in a record's length lost all later records of its transaction, up to 340 documents.
#[test]
fn a_smear_loses_only_the_records_that_it_touches() {
    let directory = tempfile::tempdir().unwrap();
    let path = documents_in_few_frames(directory.path());
    let sound = read_log(&path);
    assert_eq!(sound.len(), 1);
    let records = log_records(&sound);
    let file = &segments(&path)[0];
    // After some 650 smears by this seed, records within an attachment once passed for records of the log; other seeds
    // once skipped intact records after a few of 10,000 smears.
    let mut random = testing::Random::new(number_from("STEMMA_SALVAGE_SEED", 2_116));
    let (rounds, mut lost, mut names_lost) = (number_from("STEMMA_SALVAGES", 140) * 5, 0, 0);
    for round in 0..rounds {
        // Record starts are the weak places; the first frame follows the header of the segment.
        let record = &records[random.below(records.len() as u64) as usize].range;
        let start = match round % 2 {
            0 => record.start + random.below(8) as usize,
            _ => 64 + random.below(record.end as u64 - 64) as usize,
        };
        let length = [1, 1, 5, 50, 500][random.below(5) as usize];
        let mut damaged = sound[0].clone();
        let smear = start..(start + length).min(damaged.len());
        match length {
            1 => damaged[start] ^= 1 << random.below(8),
            _ => damaged[smear.clone()].fill_with(|| random.number() as u8),
        }
        std::fs::write(file, &damaged).unwrap();
        let touched = |range: &Range<usize>| damaged[range.clone()] != sound[0][range.clone()];
        // Damaged names of fields are in the tree.
        names_lost += u32::from(records.iter().any(|record| record.kind == 3 && touched(&record.range)));
        let mut found = BTreeSet::new();
        let report = stemmadb::salvage::salvage_database(&path, |item| {
            if let Salvaged::Revision(revision) = item {
                let number = revision.id.as_str().trim_start_matches("document-").trim_end_matches("-end");
                let number = number.parse().unwrap();
                assert!(number < 120, "round {round}: {smear:?} gives {number}, from an attachment");
                assert_eq!(revision.body, body(number, 1), "never written");
                found.insert(revision.id.to_string());
            }
            Ok(())
        });
        report.unwrap();
        for (range, id) in records.iter().filter_map(|record| Some((&record.range, record.id.as_ref()?))) {
            assert!(found.contains(id) || touched(range), "round {round}: {smear:?} lost {id} at {range:?}");
            lost += u32::from(!found.contains(id));
        }
    }
    println!("{rounds} smears lost {lost} records, all of them touched");
    assert!(lost > 0 && names_lost > 0, "no record was ever lost: the test has no effect");
}

/// Of a document whose newest revision is damaged, the last one in a history file is saved; a damaged history file
/// costs only what is in the damaged block.
#[test]
fn replaced_revisions_are_salvaged_from_history_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let db = Database::open_with(&path, options()).unwrap();
    db.history().keep(stemmadb::past::Retention::Everything).unwrap();
    for number in 0..300 {
        db.insert(&id(number), &body(number, 1)).unwrap();
    }
    for number in 0..300 {
        db.upsert(&id(number), &body(number, 2)).unwrap();
    }
    db.maintenance().compact().unwrap();
    db.close().unwrap();
    let salvaged = || {
        let mut found = BTreeSet::new();
        let report = stemmadb::salvage::salvage_database(&path, |item| {
            if let Salvaged::Revision(revision) = item {
                found.insert((revision.id.as_str().to_owned(), revision.body.to_json()));
            }
            Ok(())
        });
        (found, report.unwrap())
    };
    let (all, report) = salvaged();
    assert!(report.skipped.is_empty(), "{:?}", report.skipped);
    let newest = |number: u64| (id(number), body(number, 2).to_json());
    let replaced = |number: u64| (id(number), body(number, 1).to_json());
    let in_history = (0..300).filter(|&number| all.contains(&replaced(number))).count();
    assert!(in_history > 200 && (0..300).all(|number| all.contains(&newest(number))), "{in_history}");

    // The newest revisions are damaged.
    let mut history: Vec<PathBuf> =
        path.join("history").read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    history.sort_by_key(|file| std::cmp::Reverse(file.metadata().unwrap().len()));
    for segment in path.join("log").read_dir().unwrap().map(|entry| entry.unwrap().path()) {
        let mut bytes = std::fs::read(&segment).unwrap();
        let starts: Vec<usize> =
            bytes.windows(9).enumerate().filter(|(_, nine)| *nine == b"document-").map(|(at, _)| at).collect();
        starts.into_iter().for_each(|at| bytes[at] ^= 1);
        std::fs::write(&segment, bytes).unwrap();
    }
    let (rest, report) = salvaged();
    assert!(!report.skipped.is_empty() && rest.is_subset(&all));
    assert_eq!((0..300).filter(|&number| rest.contains(&replaced(number))).count(), in_history);

    let mut bytes = std::fs::read(&history[0]).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&history[0], bytes).unwrap();
    let (rest, report) = salvaged();
    let name = history[0].file_name().unwrap().to_string_lossy().into_owned();
    assert!(report.skipped.iter().any(|skipped| skipped.file.ends_with(&name)), "{:?}", report.skipped);
    assert!(rest.is_subset(&all));
    let left = (0..300).filter(|&number| rest.contains(&replaced(number))).count();
    assert!(left < in_history, "{left} of {in_history}");
}
