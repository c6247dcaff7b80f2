//! Format compatibility: a stored database of each format version is opened by the current code, with and without its
//! tree, and must return its recorded content. A newer format is refused and left unchanged.
//!
//! `STEMMA_BLESS=1` creates the database of the current version if it does not exist. Existing ones are never
//! rewritten.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::json;
use stemmadb::{Database, DocumentId, Edit, ErrorKind, Index, Options, Result, Sequence, Value, field, testing};

/// The current version.
const VERSION: u32 = 2;

fn golden(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/format-{version}"))
}

/// A copy that may be written to.
fn copy_of(version: u32, directory: &tempfile::TempDir) -> PathBuf {
    let copy = directory.path().join("copy.stemma");
    testing::copy_directory(&golden(version).join("library"), &copy).unwrap();
    copy
}

fn options() -> Options {
    testing::with_small_limits(Options::new().background(false), 64 << 10, 16 << 10, 1000)
}

/// Writes at least one of everything the format supports.
fn write(path: &Path) -> Result<()> {
    let db = Database::open_with(path, options())?;
    db.indexes().create(Index::on("year").then_descending("title"))?;
    for number in 0..20_u64 {
        let id = format!("book-{number}");
        let tags = json!(["a", null, 1.5, true, -7]);
        let revision =
            db.insert(&id, &json!({"title": format!("Title {number}"), "year": 1900 + number, "tags": tags}))?;
        match number % 8 {
            1 => drop(db.replace(&id, &revision, &json!({"title": "new", "nested": {"deep": [number]}}))?),
            2 => drop(db.delete(&id, &revision)?),
            3 => drop(db.files().attach(&id, &revision, "cover", "image/png", &vec![number as u8; 2000][..])?),
            _ => {}
        }
        if number == 12 {
            db.maintenance().checkpoint()?;
        }
    }
    let revisions = vec!["2-elsewhere".parse()?, "1-other".parse()?];
    let body = Value::parse(br#"{"title": "a branch", "text": "\u0000\ud83d\ude00"}"#)?;
    db.edit(Edit::Foreign { id: DocumentId::new("book-5")?, revisions, deleted: false, body, files: Vec::new() })?;
    db.local_documents().put("_local/checkpoint", None, &json!({"at": 12}))?;
    db.upsert("_design/shelf", &json!({"views": {"by_year": {"map": "function(doc) { emit(doc.year) }"}}}))?;
    db.close()
}

/// The whole content of the database, one line of JSON each.
fn content(db: &Database) -> Result<String> {
    let mut lines = vec![json!({"sequence": db.sequence().get(), "indexes": names(db)})];
    for change in db.changes(Sequence::ZERO)?.documents(true).run() {
        let change = change?;
        let id = change.id.as_str();
        let document = change.document.expect("documents were asked for");
        let leaves: Vec<_> = (db.revisions(id)?.iter())
            .map(|leaf| {
                let revisions: Vec<_> = leaf.revisions.iter().map(ToString::to_string).collect();
                json!({"deleted": leaf.deleted, "revisions": revisions})
            })
            .collect();
        let files: Vec<_> =
            document.attachments()?.iter().map(|file| json!([file.name, file.digest.to_string()])).collect();
        let body: serde_json::Value = serde_json::from_str(&document.to_json()?).expect("JSON");
        lines.push(json!({"at": change.sequence.get(), "id": id, "body": body, "leaves": leaves, "files": files}));
    }
    let local =
        db.local_documents().get("_local/checkpoint")?.map(|(revision, body)| json!([revision, body.to_json()]));
    let found = db.find(field("year").ge(1910)).sort("year").ids()?;
    let found = found.map(|id| Ok(id?.to_string())).collect::<Result<Vec<_>>>()?;
    lines.push(json!({"local": local, "found": found}));
    Ok(lines.iter().map(|line| format!("{line}\n")).collect())
}

fn names(db: &Database) -> Vec<String> {
    db.indexes().list().iter().map(|index| index.name.to_string()).collect()
}

fn bless() {
    let path = golden(VERSION).join("library");
    std::fs::create_dir_all(golden(VERSION)).unwrap();
    write(&path).unwrap();
    // Files that only a running process needs.
    std::fs::remove_file(path.join("LOCK")).ok();
    let directory = tempfile::tempdir().unwrap();
    let db = Database::open_with(copy_of(VERSION, &directory), options()).unwrap();
    std::fs::write(golden(VERSION).join("content.jsonl"), content(&db).unwrap()).unwrap();
}

/// Opening a database without a usable tree takes long, so it says how far it is.
#[test]
fn opening_reports_the_progress_of_a_rebuild() {
    let directory = tempfile::tempdir().unwrap();
    let copy = copy_of(1, &directory);
    std::fs::remove_dir_all(copy.join("tree")).unwrap();
    let steps = Arc::new(Mutex::new(Vec::new()));
    let observed = Arc::clone(&steps);
    let options = || {
        let observed = observed.clone();
        options().on_rebuild(move |step| observed.lock().unwrap().push((step.done, step.total)))
    };
    Database::open_with(&copy, options()).unwrap().close().unwrap();
    let reported = std::mem::take(&mut *steps.lock().unwrap());
    let (done, total) = *reported.last().expect("the rebuild is reported");
    assert!(reported.is_sorted() && total > 0 && done == total, "{reported:?}");
    Database::open_with(&copy, options()).unwrap().close().unwrap();
    assert_eq!(*steps.lock().unwrap(), [], "nothing is rebuilt");
}

#[test]
fn databases_of_every_format_keep_their_content() {
    if std::env::var_os("STEMMA_BLESS").is_some() && !golden(VERSION).exists() {
        bless();
    }
    for version in 1..=VERSION {
        let expected = std::fs::read_to_string(golden(version).join("content.jsonl")).unwrap();
        for without_tree in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let copy = copy_of(version, &directory);
            if without_tree {
                std::fs::remove_dir_all(copy.join("tree")).unwrap();
            }
            let db = Database::open_with(&copy, options()).unwrap();
            assert_eq!(content(&db).unwrap(), expected, "format {version}, without tree: {without_tree}");
            assert!(db.maintenance().check().unwrap().is_sound());
            let mut cover = Vec::new();
            std::io::copy(&mut db.files().open("book-3", "cover").unwrap().unwrap(), &mut cover).unwrap();
            assert_eq!(cover, [3; 2000]);
            db.insert("afterwards", &json!({})).unwrap();
            db.close().unwrap();
        }
    }
}

/// The version that a segment's header states.
fn segment_version(file: &Path) -> u8 {
    std::fs::read(file).unwrap()[11]
}

#[test]
fn an_older_log_continues_in_the_current_format() {
    let directory = tempfile::tempdir().unwrap();
    let copy = copy_of(1, &directory);
    Database::open_with(&copy, options().read_only(true)).unwrap().close().unwrap();
    assert_eq!(segments(&copy).iter().map(|file| segment_version(file)).collect::<Vec<_>>(), [1]);
    for _ in 0..2 {
        Database::open_with(&copy, options()).unwrap().close().unwrap();
        assert_eq!(segments(&copy).iter().map(|file| segment_version(file)).collect::<Vec<_>>(), [1, 2]);
    }
    let db = Database::open_with(&copy, options()).unwrap();
    db.insert("afterwards", &json!({})).unwrap();
    let time = |id: &str| db.history().revisions(id).unwrap()[0].time;
    assert!(time("afterwards").is_some() && time("book-1").is_none());
    // Format 1 did not record the revisions that were replaced before.
    let oldest = db.history().oldest();
    assert!(oldest > Sequence::ZERO && db.as_of(Sequence::ZERO).is_err());
    assert!(db.as_of(oldest).unwrap().get("afterwards").unwrap().is_none());
}

fn segments(database: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = database.join("log").read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "log"));
    files.sort();
    files
}

fn contents(database: &Path) -> Vec<Vec<u8>> {
    segments(database).iter().map(|file| std::fs::read(file).unwrap()).collect()
}

#[test]
fn newer_format_is_refused_and_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let copy = copy_of(VERSION, &directory);
    for file in segments(&copy) {
        let mut bytes = std::fs::read(&file).unwrap();
        // The next version is that of encrypted segments.
        bytes[8..12].copy_from_slice(&(VERSION + 2).to_be_bytes());
        let checksum = crc32c::crc32c(&bytes[..60]);
        bytes[60..64].copy_from_slice(&checksum.to_be_bytes());
        std::fs::write(&file, bytes).unwrap();
    }
    let before = contents(&copy);
    for without_tree in [false, true] {
        if without_tree {
            std::fs::remove_dir_all(copy.join("tree")).unwrap();
        }
        let error = Database::open_with(&copy, options()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert!(error.to_string().contains("format") && error.hint().is_some(), "{error:?}");
        assert!(Database::rebuild(&copy, options(), |_| ()).is_err());
    }
    assert!(before == contents(&copy), "the log was changed");
}
