//! Attachments: stored once, shared, swept, and never partially present, even after a crash.
//!
//! `STEMMA_FILE_CRASHES` sets the number of power losses (`just nightly-files`).

use std::collections::BTreeSet;
use std::io::Read;

use serde_json::json;
use stemmadb::testing::{Random, TestStorage, blob_digests, with_small_limits};
use stemmadb::{Database, Document, Durability, Edit, ErrorKind, File, FileContent, Options, Revision, Value, field};

fn read(db: &Database, id: &str, name: &str) -> Vec<u8> {
    let mut content = Vec::new();
    db.files().open(id, name).unwrap().unwrap().read_to_end(&mut content).unwrap();
    content
}

fn names(document: &Document) -> Vec<String> {
    document.attachments().unwrap().into_iter().map(|file| file.name).collect()
}

/// Number of blobs on the disk.
fn content_count(directory: &std::path::Path) -> usize {
    let below = |path: &std::path::Path| path.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    below(&directory.join("blobs")).map(|first| below(&first).count().max(usize::from(first.is_file()))).sum()
}

#[test]
fn attachment_stays_until_it_is_removed() {
    let db = Database::in_memory();
    let first = db.insert("a", &json!({"n": 1})).unwrap();
    let second = db.files().attach("a", &first, "x.txt", "text/plain", &b"one"[..]).unwrap();
    assert_eq!(
        db.files().attach("a", &first, "y.txt", "text/plain", &b"two"[..]).unwrap_err().kind(),
        ErrorKind::Conflict
    );
    let third = db.files().attach("a", &second, "y.txt", "text/plain", &b"two"[..]).unwrap();
    let fourth = db.replace("a", &third, &json!({"n": 2})).unwrap();
    db.upsert("a", &json!({"n": 3})).unwrap();
    let document = db.get("a").unwrap().unwrap();
    assert_eq!(names(&document), ["x.txt", "y.txt"]);
    assert_eq!(document.attachments().unwrap()[0].generation, 2);
    assert_eq!(read(&db, "a", "x.txt"), b"one");
    // The body is as written; in CouchDB's form it lists the attachments.
    assert_eq!(document.to_json().unwrap(), r#"{"n":3}"#);
    assert_eq!(document.to::<serde_json::Value>().unwrap(), json!({"n": 3}));
    let shown = serde_json::to_value(&document).unwrap();
    assert_eq!(shown["_attachments"]["x.txt"]["length"], 3);
    assert_eq!(shown["_attachments"]["x.txt"]["stub"], true);
    // Different content under the same name.
    let fifth = db.files().attach("a", document.revision(), "x.txt", "text/html", &b"<p>"[..]).unwrap();
    assert_eq!(read(&db, "a", "x.txt"), b"<p>");
    let last = db.files().detach("a", &fifth, "y.txt").unwrap();
    assert_eq!(db.files().detach("a", &last, "y.txt").unwrap_err().kind(), ErrorKind::NotFound);
    assert!(db.files().open("a", "y.txt").unwrap().is_none() && db.files().open("b", "x.txt").unwrap().is_none());
    assert_eq!(db.files().detach("a", &fourth, "x.txt").unwrap_err().kind(), ErrorKind::Conflict);
    for name in ["", "_x", &"n".repeat(1025)] {
        assert_eq!(db.files().attach("a", &last, name, "", &b""[..]).unwrap_err().kind(), ErrorKind::Invalid, "{name}");
    }
    assert!(db.maintenance().check().unwrap().is_sound());
}

#[test]
fn documents_are_found_by_attachments_under_any_policy() {
    let policy = stemmadb::IndexPolicy::new(["n"], ["_attachments"]).unwrap();
    let db = Database::in_memory_with(Options::new().index(policy)).unwrap();
    for n in 0..5 {
        let revision = db.insert(&format!("d{n}"), &json!({"n": n})).unwrap();
        if n % 2 == 0 {
            db.files().attach(&format!("d{n}"), &revision, "p.png", "image/png", &[n][..]).unwrap();
        }
    }
    let images = field("_attachments").elem_match(field("content_type").begins_with("image/"));
    assert_eq!(db.find(images).count().unwrap(), 3);
    assert_eq!(db.files().sweep().unwrap().blob_count, 0);
}

#[test]
fn transaction_attaches_all_or_nothing() {
    let db = Database::in_memory();
    let content = db.files().store(&b"content"[..]).unwrap();
    let aborted = db.write(|tx| {
        let revision = tx.insert("a", &json!({}))?;
        tx.attach("a", &revision, "f", "", &content)?;
        assert_eq!(names(&tx.get("a")?.unwrap()), ["f"]);
        Err::<(), _>(stemmadb::Error::invalid("no"))
    });
    assert!(aborted.is_err() && db.get("a").unwrap().is_none());
    db.write(|tx| {
        let revision = tx.insert("a", &json!({}))?;
        let revision = tx.attach("a", &revision, "f", "", &content)?;
        tx.replace("a", &revision, &json!({"n": 1}))
    })
    .unwrap();
    db.optimistic(|tx| {
        let document = tx.get("a")?.unwrap();
        let (id, name) = (document.id().clone(), "g".to_owned());
        let (revision, content) = (*document.revision(), content.clone());
        tx.edit(Edit::Attach { id, revision, name, content_type: String::new(), content })
    })
    .unwrap();
    assert_eq!(names(&db.get("a").unwrap().unwrap()), ["f", "g"]);
    assert_eq!(read(&db, "a", "g"), b"content");
}

#[test]
fn content_is_stored_once_and_swept_when_unreferenced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("files.stemma");
    let db = Database::open_with(&path, Options::new().background(false)).unwrap();
    let mut revisions: Vec<Revision> = Vec::new();
    for id in ["a", "b"] {
        let revision = db.insert(id, &json!({})).unwrap();
        revisions.push(db.files().attach(id, &revision, "f", "", &b"same"[..]).unwrap());
    }
    assert_eq!(content_count(&path), 1);
    db.delete("a", &revisions[0]).unwrap();
    assert_eq!(db.files().sweep().unwrap().blob_count, 0);
    // A replicated branch wins; the losing branch keeps its attachment.
    let id: stemmadb::DocumentId = "b".parse().unwrap();
    let body = stemmadb::Value::parse(b"{}").unwrap();
    let foreign = ["9-ffffffffffffffffffffffffffffffff", "8-ffffffffffffffffffffffffffffffff"];
    let revisions_of_it: Vec<Revision> = foreign.iter().map(|text| text.parse().unwrap()).collect();
    let winner = revisions_of_it[0];
    db.edit(Edit::Foreign { id, revisions: revisions_of_it, deleted: false, body, files: Vec::new() }).unwrap();
    assert!(names(&db.get("b").unwrap().unwrap()).is_empty());
    for checkpointed in [false, true] {
        if checkpointed {
            db.maintenance().checkpoint().unwrap();
        }
        assert_eq!(db.files().sweep().unwrap().blob_count, 0);
    }
    db.delete("b", &winner).unwrap();
    assert_eq!(read(&db, "b", "f"), b"same");
    let held = db.files().store(&b"held"[..]).unwrap();
    db.delete("b", &revisions[1]).unwrap();
    let swept = db.files().sweep().unwrap();
    assert!(swept.blob_count == 1 && swept.freed_bytes > 4, "{swept:?}");
    assert_eq!(content_count(&path), 1);
    drop(held);
    assert_eq!(db.files().sweep().unwrap().blob_count, 1);
    assert_eq!(content_count(&path), 0);
}

#[test]
fn unreferenced_blobs_are_swept_and_lost_blobs_reported() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("files.stemma");
    let db = Database::open(&path).unwrap();
    let first = db.insert("a", &json!({})).unwrap();
    let second = db.files().attach("a", &first, "f", "", &b"content"[..]).unwrap();
    let third = db.files().attach("a", &second, "gone", "", &b"more"[..]).unwrap();
    db.files().detach("a", &third, "gone").unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while content_count(&path) > 1 {
        assert!(std::time::Instant::now() < until, "nothing was swept");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(db.maintenance().check().unwrap().file_count, 1);
    db.close().unwrap();
    let db = Database::rebuild(&path, Options::new(), |_| ()).unwrap();
    assert_eq!(read(&db, "a", "f"), b"content");
    std::fs::remove_dir_all(path.join("blobs")).unwrap();
    let error = db.files().open("a", "f").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(!db.maintenance().check().unwrap().is_sound());
}

/// After a power loss at any time, every attachment has its content, and a sweep removes all other blobs.
#[test]
fn crash_preserves_referenced_content_only() {
    let rounds = std::env::var("STEMMA_FILE_CRASHES").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    for seed in 0..rounds {
        let storage = TestStorage::new(seed);
        let mut random = Random::new(seed);
        let options = || with_small_limits(Options::new(), 64 << 10, 1 << 20, 10).background(false);
        let db = storage.open(options()).unwrap();
        for _ in 0..random.below(60) {
            let id = format!("d{}", random.below(6));
            let durability = [Durability::Sync, Durability::None][random.below(2) as usize];
            let name = format!("f{}", random.below(3));
            let Some(document) = db.get(&id).unwrap() else {
                let body = stemmadb::Value::parse(b"{}").unwrap();
                db.with_durability(durability).edit(Edit::Insert { id: id.parse().unwrap(), body }).unwrap();
                continue;
            };
            let (id, revision) = (document.id().clone(), *document.revision());
            let edit = match random.below(8) {
                0 => Edit::Delete { id, revision },
                1 | 2 if names(&document).contains(&name) => Edit::Detach { id, revision, name },
                3 => {
                    db.files().sweep().unwrap();
                    continue;
                }
                4 => {
                    db.maintenance().checkpoint().unwrap();
                    continue;
                }
                _ => {
                    let bytes = vec![random.below(9) as u8; random.below(3000) as usize];
                    let content = db.files().store(&bytes[..]).unwrap();
                    Edit::Attach { id, revision, name, content_type: String::new(), content }
                }
            };
            db.with_durability(durability).edit(edit).unwrap();
        }
        let after = storage.crash_image(seed);
        drop(db);
        let db = after.open(options()).unwrap();
        let mut digests = BTreeSet::new();
        for document in db.find(stemmadb::Selector::everything()).documents().unwrap() {
            for file in document.attachments().unwrap() {
                assert_eq!(read(&db, document.id().as_str(), &file.name).len() as u64, file.length, "seed {seed}");
                digests.insert(file.digest);
            }
        }
        db.files().sweep().unwrap();
        assert_eq!(blob_digests(&after), digests.iter().map(ToString::to_string).collect::<Vec<_>>(), "seed {seed}");
        assert!(db.maintenance().check().unwrap().is_sound(), "seed {seed}");
    }
}

/// An edit as made by a client of the CouchDB protocol.
fn put(id: &str, parent: Option<Revision>, body: serde_json::Value, files: Vec<File>) -> Edit {
    let body = Value::from_serialize(&body).unwrap();
    Edit::Put { id: id.parse().unwrap(), parent, deleted: false, body, files }
}

fn kept_file(name: &str) -> File {
    File { name: name.to_owned(), content: FileContent::Existing }
}

fn stored_file(db: &Database, name: &str, content: &[u8], generation: Option<u32>) -> File {
    let blob = db.files().store(content).unwrap();
    let content = FileContent::Stored { content_type: "text/plain".to_owned(), blob, md5: Some([7; 16]), generation };
    File { name: name.to_owned(), content }
}

#[test]
fn put_determines_the_attachments() {
    let db = Database::in_memory();
    let files = vec![stored_file(&db, "x", b"one", None), stored_file(&db, "y", b"two", None)];
    let first = db.edit(put("a", None, json!({"n": 1}), files)).unwrap();
    assert_eq!(db.edit(put("a", None, json!({}), vec![])).unwrap_err().kind(), ErrorKind::Conflict);
    let second = db
        .edit(put("a", Some(first), json!({"n": 2}), vec![kept_file("y"), stored_file(&db, "z", b"new", None)]))
        .unwrap();
    let document = db.get("a").unwrap().unwrap();
    let files = document.attachments().unwrap();
    assert_eq!(
        files.iter().map(|file| (file.name.as_str(), file.generation)).collect::<Vec<_>>(),
        [("y", 1), ("z", 2)]
    );
    assert_eq!(files[0].md5, Some([7; 16]));
    let mut fields = b"{".to_vec();
    assert!(document.write_json_fields(&mut fields).unwrap());
    assert_eq!(fields, br#"{"n":2"#);
    assert_eq!(
        db.edit(put("a", Some(first), json!({}), vec![kept_file("y")])).unwrap_err().kind(),
        ErrorKind::Conflict
    );
    assert_eq!(
        db.edit(put("a", Some(second), json!({}), vec![kept_file("x")])).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    // A deletion can have a body, and can be succeeded with or without naming it as the parent.
    let id: stemmadb::DocumentId = "a".parse().unwrap();
    let body = Value::from_serialize(&json!({"why": "done"})).unwrap();
    let deletion = Edit::Put { id, parent: Some(second), deleted: true, body, files: vec![] };
    let third = db.edit(deletion.clone()).unwrap();
    assert_eq!(db.get_revision("a", &third).unwrap().unwrap().to_json().unwrap(), r#"{"why":"done"}"#);
    assert_eq!(db.edit(deletion).unwrap_err().kind(), ErrorKind::Conflict);
    let fourth = db.edit(put("a", None, json!({}), vec![])).unwrap();
    assert_eq!((fourth.generation(), names(&db.get("a").unwrap().unwrap())), (4, vec![]));
    let swept = db.files().sweep().unwrap();
    assert_eq!(swept.blob_count, 3);
    assert!(db.maintenance().check().unwrap().is_sound());
}

#[test]
fn replicated_revision_brings_or_keeps_attachments() {
    let db = Database::in_memory();
    let foreign = |revisions: &[&str], files| Edit::Foreign {
        id: "a".parse().unwrap(),
        revisions: revisions.iter().map(|text| text.parse().unwrap()).collect(),
        deleted: false,
        body: Value::parse(b"{}").unwrap(),
        files,
    };
    db.edit(foreign(&["2-b", "1-a"], vec![stored_file(&db, "x", b"one", Some(1))])).unwrap();
    let third =
        db.edit(foreign(&["3-c", "2-b", "1-a"], vec![kept_file("x"), stored_file(&db, "y", b"two", None)])).unwrap();
    let files = db.get_revision("a", &third).unwrap().unwrap().attachments().unwrap();
    assert_eq!(
        files.iter().map(|file| (file.name.as_str(), file.generation)).collect::<Vec<_>>(),
        [("x", 1), ("y", 3)]
    );
    let error = db.edit(foreign(&["3-d", "2-x"], vec![kept_file("x")])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let missing = db.snapshot().unwrap().missing("a", &["3-c".parse().unwrap(), "4-z".parse().unwrap()]).unwrap();
    assert_eq!((missing.missing.len(), missing.possible_ancestors), (1, vec![third]));
}
