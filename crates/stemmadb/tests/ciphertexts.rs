//! Tampering with encrypted files: a ciphertext that is changed, cut, moved, exchanged, or replayed from an older
//! state, a branch or another database with the same key is detected: reads return the correct result or an error.
//!
//! `STEMMA_CIPHERTEXTS` sets the number of images (default 300; the long run makes 100,000), `STEMMA_CIPHERTEXT_SEED`
//! the seed (default 1).
//!
//! What can't be detected is a state that once was there: all files, or all that differ, replaced by older ones. Each
//! image changes one file, or exchanges two.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use stemmadb::backup::At;
use stemmadb::encryption::EncryptionKey;
use stemmadb::past::Retention;
use stemmadb::testing::{self, Random};
use stemmadb::{Database, Durability, ErrorKind, Options, Result, Sequence, Value, field};

fn number_from(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn options() -> Options {
    let options = Options::new().durability(Durability::None).background(false);
    let options = testing::with_small_limits(options, 16 << 10, 16 << 10, 200);
    options.encryption(EncryptionKey::from_callback(|| Ok([7; 32])))
}

fn body(number: u64, edit: u64) -> Value {
    // The same length, so that records of different states may be at the same place.
    let text = format!(r#"{{"number":{},"edit":{edit},"text":"{:030}"}}"#, 1000 + number, number * 7 + edit);
    Value::parse(text.as_bytes()).unwrap()
}

/// The files of a database, by name.
type Files = BTreeMap<PathBuf, Vec<u8>>;

fn files_of(directory: &Path) -> Files {
    fn visit(directory: &Path, root: &Path, files: &mut Files) {
        for entry in directory.read_dir().unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => visit(&entry.path(), root, files),
                false => {
                    let name = entry.path().strip_prefix(root).unwrap().to_owned();
                    files.insert(name, std::fs::read(entry.path()).unwrap());
                }
            }
        }
    }
    let mut files = Files::new();
    visit(directory, directory, &mut files);
    files
}

fn write_files(files: &Files, directory: &Path) {
    for (name, bytes) in files {
        let path = directory.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}

/// What a database must contain.
#[derive(Default)]
struct Expected {
    documents: BTreeMap<String, Value>,
    file: Vec<u8>,
}

/// The current files, those of earlier states, of a branch and of another database, and what is in the current ones.
fn states(directory: &Path) -> (Files, Vec<Files>, Expected) {
    let path = directory.join("library.stemma");
    let mut expected = Expected { file: (0..150_000_u32).map(|at| (at / 7) as u8).collect(), ..Expected::default() };
    let mut older = Vec::new();
    let db = Database::open_with(&path, options()).unwrap();
    db.history().keep(Retention::Everything).unwrap();
    for edit in 0..4 {
        for number in (edit % 2..60).step_by(1 + (edit % 2) as usize) {
            let id = format!("document-{number}");
            db.upsert(&id, &body(number, edit)).unwrap();
            expected.documents.insert(id, body(number, edit));
        }
        if edit == 0 {
            let revision = *db.get("document-3").unwrap().unwrap().revision();
            db.files().attach("document-3", &revision, "file", "text/plain", &expected.file[..]).unwrap();
        }
        if edit == 2 {
            db.maintenance().compact().unwrap();
        }
        db.maintenance().checkpoint().unwrap();
        db.flush().unwrap();
        older.push(files_of(&path));
    }
    // The last edit replaces the document with the attachment, so it is attached again.
    let revision = *db.get("document-3").unwrap().unwrap().revision();
    db.files().attach("document-3", &revision, "file", "text/plain", &expected.file[..]).unwrap();
    expected.documents.insert("document-3".into(), db.get("document-3").unwrap().unwrap().value().unwrap());
    let branch = directory.join("branch.stemma");
    db.maintenance().branch(&branch, At::Latest).unwrap();
    db.upsert("document-1", &body(1, 8)).unwrap();
    expected.documents.insert("document-1".into(), body(1, 8));
    db.maintenance().checkpoint().unwrap();
    db.close().unwrap();
    let db = Database::open_with(&branch, options()).unwrap();
    db.upsert("document-1", &body(1, 9)).unwrap();
    db.close().unwrap();
    older.push(files_of(&branch));
    let other = directory.join("other.stemma");
    let db = Database::open_with(&other, options()).unwrap();
    for number in 0..60 {
        db.upsert(&format!("document-{number}"), &body(number, 5)).unwrap();
    }
    db.close().unwrap();
    older.push(files_of(&other));
    (files_of(&path), older, expected)
}

/// Changes the files; returns what was done. Empty if nothing was changed.
fn tamper(files: &mut Files, older: &[Files], random: &mut Random) -> String {
    let names: Vec<PathBuf> = files.keys().filter(|name| !files[*name].is_empty()).cloned().collect();
    let pick = |random: &mut Random| names[random.below(names.len() as u64) as usize].clone();
    let name = pick(random);
    let before = files[&name].clone();
    let length = before.len() as u64;
    let count = if random.chance(500) { 1 + random.below(64) } else { 1 + random.below(4096) }.min(length) as usize;
    let at = random.below(length - count as u64 + 1) as usize;
    let shown = name.display().to_string();
    let bytes = files.get_mut(&name).unwrap();
    let what = match random.below(8) {
        0 => {
            bytes[at] ^= 1 << random.below(8);
            format!("{shown}: a bit at {at}")
        }
        1 => {
            bytes.truncate(at);
            format!("{shown}: cut at {at}")
        }
        2 => {
            let to = random.below(length - count as u64 + 1) as usize;
            bytes.copy_within(at..at + count, to);
            format!("{shown}: {count} bytes moved from {at} to {to}")
        }
        3 => {
            let to = random.below(length - count as u64 + 1) as usize;
            let (first, second) = (before[at..at + count].to_vec(), before[to..to + count].to_vec());
            bytes[to..to + count].copy_from_slice(&first);
            if at + count <= to || to + count <= at {
                bytes[at..at + count].copy_from_slice(&second);
            }
            format!("{shown}: {count} bytes exchanged between {at} and {to}")
        }
        4 => {
            let other = pick(random);
            let swapped = files[&other].clone();
            files.insert(other.clone(), before.clone());
            files.insert(name.clone(), swapped);
            format!("{shown} exchanged with {}", other.display())
        }
        5 => {
            let source = &older[random.below(older.len() as u64) as usize];
            let Some(old) = source.get(&name) else { return String::new() };
            let end = (at + count).min(old.len());
            if at >= end {
                return String::new();
            }
            bytes[at..end].copy_from_slice(&old[at..end]);
            format!("{shown}: bytes {at} to {end} of another state")
        }
        6 => {
            let source = &older[random.below(older.len() as u64) as usize];
            let Some(old) = source.get(&name) else { return String::new() };
            // The keys of another state of the same database open its files.
            *bytes = old.clone();
            format!("{shown} of another state")
        }
        _ => {
            let source = &older[random.below(older.len() as u64) as usize];
            let index = random.below(source.len() as u64) as usize;
            let (other, old) = source.iter().nth(index).unwrap();
            let count = count.min(old.len());
            let from = random.below((old.len() - count) as u64 + 1) as usize;
            bytes[at..at + count].copy_from_slice(&old[from..from + count]);
            format!("{shown}: {count} bytes at {at} from {} at {from}", other.display())
        }
    };
    // What was not written yet has no meaning.
    if files[&name] == before { String::new() } else { what }
}

/// Reads everything; panics if something is wrong without an error. Returns whether an error was reported.
fn read_everything(db: &Database, expected: &Expected, context: &str) -> bool {
    let mut is_reported = false;
    let mut report = |error: stemmadb::Error| {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{context}: {error:?}");
        is_reported = true;
    };
    for (id, value) in &expected.documents {
        match db.get(id) {
            Ok(Some(found)) => assert_eq!(&found.value().unwrap(), value, "{context}: `{id}` is wrong"),
            Ok(None) => panic!("{context}: `{id}` is missing"),
            Err(error) => report(error),
        }
    }
    let changes =
        db.changes(Sequence::ZERO).and_then(|changes| changes.documents(true).run().collect::<Result<Vec<_>>>());
    match changes {
        Ok(changes) => assert_eq!(changes.len(), expected.documents.len(), "{context}: the feed"),
        Err(error) => report(error),
    }
    match db.find(field("number").ge(0)).count() {
        Ok(count) => assert_eq!(count, expected.documents.len() as u64, "{context}: a count"),
        Err(error) => report(error),
    }
    let mut content = Vec::new();
    match db.files().open("document-3", "file") {
        Ok(Some(mut file)) => match file.read_to_end(&mut content) {
            Ok(_) => assert!(content == expected.file, "{context}: an attachment is wrong"),
            Err(error) => report(error.into()),
        },
        Ok(None) => panic!("{context}: an attachment is missing"),
        Err(error) => report(error),
    }
    for revision in db.history().revisions("document-1").unwrap_or_default() {
        let value = revision.document.value().unwrap();
        assert!((0..9).any(|edit| value == body(1, edit)), "{context}: a revision of the past is wrong: {value:?}");
    }
    is_reported
}

#[test]
fn tampering_is_detected() {
    let directory = tempfile::tempdir().unwrap();
    let (original, older, expected) = states(directory.path());
    let kinds = ["log/", "tree/MANIFEST", ".run", ".history", "blobs/", "KEYS"];
    let has = |kind: &str| original.keys().any(|name| name.to_string_lossy().contains(kind));
    assert!(kinds.iter().all(|kind| has(kind)), "{:?}", original.keys());
    let mut random = Random::new(number_from("STEMMA_CIPHERTEXT_SEED", 1));
    let count = number_from("STEMMA_CIPHERTEXTS", 300);
    let (mut images, mut refused, mut reported) = (0, 0, 0);
    while images < count {
        let mut files = original.clone();
        let what = tamper(&mut files, &older, &mut random);
        if what.is_empty() {
            continue;
        }
        images += 1;
        let image = directory.path().join("image.stemma");
        write_files(&files, &image);
        let context = format!("image {images}: {what}");
        match Database::open_with(&image, options()) {
            Ok(db) => {
                let is_reported = read_everything(&db, &expected, &context);
                reported += u64::from(is_reported);
                drop(db);
            }
            Err(error) => {
                let is_clear =
                    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::WrongKey | ErrorKind::Unavailable);
                assert!(is_clear, "{context}: {error:?}");
                refused += 1;
            }
        }
        std::fs::remove_dir_all(&image).unwrap();
    }
    println!("{images} images: {refused} refused, {reported} reported by a read, the others harmless");
    assert!(refused > count / 10 && reported > count / 50, "{refused} refused, {reported} reported");
}
