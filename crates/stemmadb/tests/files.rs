//! Attachments: stored once, shared, swept, and never partially present, even after a crash.
//!
//! `STEMMA_FILE_CRASHES` sets the number of power losses (`just nightly-files`).

use std::collections::BTreeSet;
use std::io::{Read, Seek, SeekFrom};

use serde_json::json;
use stemmadb::salvage::Salvaged;
use stemmadb::testing::{self, Random, TestStorage, content_digests, with_small_limits};
use stemmadb::{Database, Document, Durability, Edit, ErrorKind, File, FileContent, Options, Revision, Value, field};

fn read(db: &Database, id: &str, name: &str) -> Vec<u8> {
    let mut content = Vec::new();
    db.files().open(id, name).unwrap().unwrap().read_to_end(&mut content).unwrap();
    content
}

fn names(document: &Document) -> Vec<String> {
    document.attachments().unwrap().into_iter().map(|file| file.name).collect()
}

/// Content of up to this many bytes goes into the log.
const LOGGED_BYTES_MAX: usize = 64 << 10;

/// Number of contents that have a file.
fn file_count(directory: &std::path::Path) -> usize {
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
    for length in [4, LOGGED_BYTES_MAX + 1] {
        let is_logged = length <= LOGGED_BYTES_MAX;
        let (same, other) = (vec![1; length], vec![2; length]);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("files.stemma");
        let db = Database::open_with(&path, Options::new().background(false)).unwrap();
        let mut revisions: Vec<Revision> = Vec::new();
        for id in ["a", "b"] {
            let revision = db.insert(id, &json!({})).unwrap();
            revisions.push(db.files().attach(id, &revision, "f", "", &same[..]).unwrap());
        }
        assert_eq!(content_digests(&db).unwrap().len(), 1);
        assert_eq!(file_count(&path), usize::from(!is_logged));
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
        assert_eq!(read(&db, "b", "f"), same);
        let held = db.files().store(&other[..]).unwrap();
        db.delete("b", &revisions[1]).unwrap();
        let swept = db.files().sweep().unwrap();
        assert!(swept.blob_count == 1 && swept.freed_bytes > length as u64, "{swept:?}");
        // Until a transaction refers to it, small content is only in the handle.
        let left_count = u64::from(!is_logged);
        assert_eq!(content_digests(&db).unwrap().len() as u64, left_count);
        drop(held);
        assert_eq!(db.files().sweep().unwrap().blob_count, left_count);
        assert_eq!((content_digests(&db).unwrap().len(), file_count(&path)), (0, 0));
        assert!(db.maintenance().check().unwrap().is_sound());
    }
}

#[test]
fn unreferenced_blobs_are_swept_and_lost_blobs_reported() {
    let (content, more) = (vec![1; LOGGED_BYTES_MAX + 1], vec![2; LOGGED_BYTES_MAX + 1]);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("files.stemma");
    let db = Database::open(&path).unwrap();
    let first = db.insert("a", &json!({})).unwrap();
    let second = db.files().attach("a", &first, "f", "", &content[..]).unwrap();
    let third = db.files().attach("a", &second, "gone", "", &more[..]).unwrap();
    let fourth = db.files().attach("a", &third, "small", "", &b"small"[..]).unwrap();
    let fifth = db.files().detach("a", &fourth, "gone").unwrap();
    db.files().detach("a", &fifth, "small").unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while content_digests(&db).unwrap().len() > 1 {
        assert!(std::time::Instant::now() < until, "nothing was swept");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(db.maintenance().check().unwrap().file_count, 1);
    db.close().unwrap();
    let db = Database::rebuild(&path, Options::new(), |_| ()).unwrap();
    assert_eq!(read(&db, "a", "f"), content);
    std::fs::remove_dir_all(path.join("blobs")).unwrap();
    let error = db.files().open("a", "f").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(!db.maintenance().check().unwrap().is_sound());
}

#[test]
fn content_of_up_to_64_kib_needs_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("files.stemma");
    let db = Database::open_with(&path, Options::new().background(false)).unwrap();
    for (at, length) in [0, 1, LOGGED_BYTES_MAX - 1, LOGGED_BYTES_MAX, LOGGED_BYTES_MAX + 1].into_iter().enumerate() {
        let content: Vec<u8> = (0..length).map(|at| ((at * at) >> 7) as u8).collect();
        let id = format!("d{at}");
        let revision = db.insert(&id, &json!({})).unwrap();
        db.files().attach(&id, &revision, "f", "", &content[..]).unwrap();
        assert_eq!(file_count(&path), usize::from(length > LOGGED_BYTES_MAX), "{length}");
        assert_eq!(read(&db, &id, "f"), content, "{length}");
        // Any range.
        let mut reader = db.files().open(&id, "f").unwrap().unwrap();
        reader.seek(SeekFrom::Start(length as u64 / 2)).unwrap();
        let mut half = Vec::new();
        reader.read_to_end(&mut half).unwrap();
        assert_eq!((reader.length(), &half[..]), (length as u64, &content[length / 2..]), "{length}");
    }
    db.maintenance().checkpoint().unwrap();
    let report = db.maintenance().check().unwrap();
    assert!(report.is_sound() && report.file_count == 5, "{report:?}");
}

/// The bytes of small content in the log are read after a checkpoint, after reopening, after a rebuild of the tree, and
/// after a compaction; and by a snapshot from before the compaction.
#[test]
fn small_content_moves_with_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("files.stemma");
    let options = || with_small_limits(Options::new(), 256 << 10, 64 << 10, 40).background(false);
    let content = |number: u64| vec![number as u8; 2_000 + 7 * number as usize];
    let mut db = Database::open_with(&path, options()).unwrap();
    for number in 0..120 {
        let id = format!("d{number}");
        let revision = db.insert(&id, &json!({"number": number})).unwrap();
        let revision = db.files().attach(&id, &revision, "f", "", &content(number)[..]).unwrap();
        if number % 3 != 0 {
            db.delete(&id, &revision).unwrap();
        }
    }
    let verify = |db: &Database, when: &str| {
        for number in (0..120).step_by(3) {
            assert_eq!(read(db, &format!("d{number}"), "f"), content(number), "{when}: {number}");
        }
        let report = db.maintenance().check().unwrap();
        assert!(report.is_sound() && report.file_count == 40, "{when}: {report:?}");
        assert_eq!(file_count(&path), 0);
    };
    verify(&db, "in memory");
    db.maintenance().checkpoint().unwrap();
    verify(&db, "after a checkpoint");
    assert_eq!(db.files().sweep().unwrap().blob_count, 80);
    let snapshot = db.snapshot().unwrap();
    let log_bytes = db.info().unwrap().log_bytes;
    db.maintenance().compact().unwrap();
    assert!(db.info().unwrap().log_bytes < log_bytes / 2, "the bytes of removed contents are reclaimed");
    verify(&db, "after a compaction");
    for number in (0..120).step_by(3) {
        let document = snapshot.get(&format!("d{number}")).unwrap().unwrap();
        let mut bytes = Vec::new();
        snapshot.open_attachment(&document, "f").unwrap().unwrap().read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, content(number), "in a snapshot from before the compaction");
    }
    drop(snapshot);
    db.close().unwrap();
    db = Database::open_with(&path, options()).unwrap();
    verify(&db, "after reopening");
    db.close().unwrap();
    std::fs::remove_dir_all(path.join("tree")).unwrap();
    db = Database::open_with(&path, options()).unwrap();
    verify(&db, "after a rebuild");
    assert_eq!(content_digests(&db).unwrap().len(), 40);
    db.close().unwrap();
}

#[test]
fn snapshot_reads_content_that_was_swept_since() {
    let db = Database::in_memory_with(Options::new().background(false)).unwrap();
    let revision = db.insert("a", &json!({})).unwrap();
    let revision = db.files().attach("a", &revision, "f", "", &b"content"[..]).unwrap();
    for is_checkpointed in [false, true] {
        if is_checkpointed {
            db.maintenance().checkpoint().unwrap();
        }
        let snapshot = db.snapshot().unwrap();
        let document = snapshot.get("a").unwrap().unwrap();
        let current = db.get("a").unwrap().unwrap();
        db.files().detach("a", current.revision(), "f").unwrap();
        assert_eq!(db.files().sweep().unwrap().blob_count, 1);
        db.maintenance().compact().unwrap();
        assert_eq!(content_digests(&db).unwrap().len(), 0);
        let mut bytes = Vec::new();
        snapshot.open_attachment(&document, "f").unwrap().unwrap().read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"content");
        let current = db.get("a").unwrap().unwrap();
        db.files().attach("a", current.revision(), "f", "", &b"content"[..]).unwrap();
        assert_eq!(read(&db, "a", "f"), b"content", "stored again after it was swept");
    }
    assert_eq!(revision.generation(), 2);
}

/// Content of a handle is kept: whether the log has it or not, the handle can be attached.
#[test]
fn pinned_small_content_is_not_swept() {
    let db = Database::in_memory_with(Options::new().background(false)).unwrap();
    let attach = |content: &std::sync::Arc<stemmadb::Blob>| {
        let edit = Edit::Attach {
            id: "a".parse().unwrap(),
            revision: *db.get("a").unwrap().unwrap().revision(),
            name: "f".to_owned(),
            content_type: String::new(),
            content: content.clone(),
        };
        db.edit(edit).unwrap()
    };
    db.insert("a", &json!({})).unwrap();
    let content = db.files().store(&b"content"[..]).unwrap();
    for _ in 0..2 {
        let revision = attach(&content);
        assert_eq!(content_digests(&db).unwrap().len(), 1);
        db.files().detach("a", &revision, "f").unwrap();
        assert_eq!(db.files().sweep().unwrap().blob_count, 0, "it is pinned");
    }
    drop(content);
    let again = db.files().store(&b"content"[..]).unwrap();
    assert_eq!(db.files().sweep().unwrap().blob_count, 0, "it is pinned again");
    drop(again);
    assert_eq!(db.files().sweep().unwrap().blob_count, 1);
}

/// Contents that come and go in several threads beside sweeps, checkpoints and compactions stay readable as long as a
/// document refers to them.
#[test]
fn concurrent_sweeps_remove_no_referenced_content() {
    let options = with_small_limits(Options::new().durability(Durability::None), 64 << 10, 64 << 10, 40);
    let db = Database::in_memory_with(options.background(false)).unwrap();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3_u64)
            .map(|thread| {
                let db = &db;
                scope.spawn(move || {
                    let id = format!("d{thread}");
                    let mut random = Random::new(thread);
                    for _ in 0..400 {
                        let current = db.upsert(&id, &json!({})).unwrap();
                        let bytes = vec![random.below(3) as u8; 900];
                        let revision = db.files().attach(&id, &current, "f", "", &bytes[..]).unwrap();
                        assert_eq!(read(db, &id, "f"), bytes);
                        if random.below(2) == 0 {
                            db.files().detach(&id, &revision, "f").unwrap();
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            for round in 0.. {
                db.files().sweep().unwrap();
                match round % 8 {
                    3 => db.maintenance().checkpoint().unwrap(),
                    7 => drop(db.maintenance().compact().unwrap()),
                    _ => {}
                }
                if is_done.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
            }
        });
        let joined: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        joined.into_iter().for_each(|joined| joined.unwrap());
    });
    assert!(db.maintenance().check().unwrap().is_sound());
}

#[test]
fn equal_content_is_logged_once() {
    let db = Database::in_memory_with(Options::new().background(false)).unwrap();
    let content = vec![7; 50_000];
    let bytes_before = db.info().unwrap().log_bytes;
    db.write(|tx| {
        for number in 0..20 {
            let blob = db.files().store(&content[..])?;
            let revision = tx.insert(&format!("d{number}"), &json!({}))?;
            tx.attach(&format!("d{number}"), &revision, "f", "", &blob)?;
        }
        Ok(())
    })
    .unwrap();
    let revision = db.insert("later", &json!({})).unwrap();
    db.files().attach("later", &revision, "f", "", &content[..]).unwrap();
    db.maintenance().checkpoint().unwrap();
    let revision = db.insert("latest", &json!({})).unwrap();
    db.files().attach("latest", &revision, "f", "", &content[..]).unwrap();
    let added = db.info().unwrap().log_bytes - bytes_before;
    assert!(added < 2 * content.len() as u64, "{added} bytes");
    assert_eq!(content_digests(&db).unwrap().len(), 1);
}

/// A transaction reads the attachments that it wrote. If it is aborted, they leave nothing behind.
#[test]
fn transaction_reads_its_own_small_content() {
    let db = Database::in_memory_with(Options::new().background(false)).unwrap();
    let aborted = db.write(|tx| {
        let content = db.files().store(&b"content"[..])?;
        let revision = tx.insert("a", &json!({}))?;
        tx.attach("a", &revision, "f", "", &content)?;
        drop(content);
        let snapshot = tx.snapshot()?;
        let mut bytes = Vec::new();
        snapshot.open_attachment(&tx.get("a")?.unwrap(), "f")?.unwrap().read_to_end(&mut bytes)?;
        assert_eq!(bytes, b"content");
        Err::<(), _>(stemmadb::Error::invalid("no"))
    });
    assert_eq!(aborted.unwrap_err().message(), "no");
    assert_eq!(content_digests(&db).unwrap().len(), 0);
}

/// Databases of older versions have small contents in files. They are read there, found by equal content, and swept.
#[test]
fn small_content_in_files_stays_readable() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("files.stemma");
    let db = Database::open_with(&path, Options::new().background(false)).unwrap();
    let blob = testing::store_in_file(&db, b"content").unwrap();
    let attach = |id: &str, blob| {
        db.write(|tx| {
            let revision = tx.insert(id, &json!({}))?;
            tx.attach(id, &revision, "f", "", &blob)
        })
        .unwrap()
    };
    let first = attach("a", blob);
    assert_eq!(file_count(&path), 1);
    let second = attach("b", db.files().store(&b"content"[..]).unwrap());
    assert_eq!((content_digests(&db).unwrap().len(), file_count(&path)), (1, 1), "the log does not have it as well");
    db.maintenance().checkpoint().unwrap();
    for id in ["a", "b"] {
        assert_eq!(read(&db, id, "f"), b"content");
    }
    assert!(db.maintenance().check().unwrap().is_sound());
    db.delete("a", &first).unwrap();
    assert_eq!(db.files().sweep().unwrap().blob_count, 0);
    db.delete("b", &second).unwrap();
    assert_eq!(db.files().sweep().unwrap().blob_count, 1);
    assert_eq!(file_count(&path), 0);
    attach("c", db.files().store(&b"content"[..]).unwrap());
    assert_eq!((content_digests(&db).unwrap().len(), file_count(&path)), (1, 0), "now the log has it");
}

#[test]
fn small_content_is_salvaged_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("files.stemma");
    let db = Database::open_with(&path, Options::new().background(false)).unwrap();
    for (id, content) in [("a", vec![1; 100]), ("b", vec![2; LOGGED_BYTES_MAX + 1]), ("c", vec![3; 100])] {
        let revision = db.insert(id, &json!({})).unwrap();
        let revision = db.files().attach(id, &revision, "f", "", &content[..]).unwrap();
        if id == "a" {
            // Swept, and stored again.
            db.files().detach(id, &revision, "f").unwrap();
            assert_eq!(db.files().sweep().unwrap().blob_count, 1);
            let revision = *db.get(id).unwrap().unwrap().revision();
            db.files().attach(id, &revision, "f", "", &content[..]).unwrap();
        }
    }
    db.close().unwrap();
    let mut lengths = Vec::new();
    let report = stemmadb::salvage::salvage_database(&path, |item| {
        if let Salvaged::Content { mut content, .. } = item {
            lengths.push(std::io::copy(&mut content, &mut std::io::sink())?);
        }
        Ok(())
    });
    let report = report.unwrap();
    assert_eq!((report.content_count, report.skipped.len()), (3, 0), "{report:?}");
    assert_eq!(lengths, [100, 100, LOGGED_BYTES_MAX as u64 + 1]);
}

/// Handles hold 32 MiB. Small content beyond that is stored in files.
#[test]
fn handles_hold_a_bounded_number_of_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("files.stemma");
    let db = Database::open_with(&path, Options::new().background(false).durability(Durability::None)).unwrap();
    let store = |number: u32| {
        let mut content = vec![0; LOGGED_BYTES_MAX];
        content[..4].copy_from_slice(&number.to_be_bytes());
        db.files().store(&content[..]).unwrap()
    };
    let mut held: Vec<_> = (0..520).map(store).collect();
    assert_eq!(file_count(&path), 8);
    assert_eq!(store(0).digest(), held[0].digest(), "held content needs no further memory");
    assert_eq!(file_count(&path), 8);
    held.truncate(511);
    let files: Vec<_> = [511, 999].map(store).into_iter().collect();
    assert_eq!(file_count(&path), 9);
    drop((held, files));
    store(1000);
    assert_eq!(file_count(&path), 9);
}

/// Any changed bit of a content record is noticed by whoever reads it, and by a check.
#[test]
fn damaged_small_content_is_never_returned() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("files.stemma");
    let content: Vec<u8> = (0..5_000_u32).flat_map(|number| number.to_be_bytes()).collect();
    let db = Database::open_with(&path, Options::new().background(false)).unwrap();
    let revision = db.insert("a", &json!({})).unwrap();
    db.files().attach("a", &revision, "f", "", &content[..]).unwrap();
    db.close().unwrap();
    let segment = path.join("log/0000000001.log");
    let whole = std::fs::read(&segment).unwrap();
    let start = whole.windows(64).position(|window| window == &content[..64]).unwrap();
    for offset in [start - 32, start - 1, start, start + 7_777, start + content.len() - 1] {
        let mut bytes = whole.clone();
        bytes[offset] ^= 4;
        std::fs::write(&segment, bytes).unwrap();
        let db = Database::open_with(&path, Options::new().background(false)).unwrap();
        let error = db.files().open("a", "f").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {offset}: {error}");
        let report = db.maintenance().check().unwrap();
        assert!(report.damages.iter().any(|damage| damage.what.contains("file `f` of `a`")), "{report:?}");
        drop(db);
    }
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
                    let length = random.below(3000) as usize + [0, 0, 0, LOGGED_BYTES_MAX][random.below(4) as usize];
                    let bytes = vec![random.below(9) as u8; length];
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
        assert_eq!(
            content_digests(&db).unwrap(),
            digests.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "seed {seed}"
        );
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

#[test]
fn content_types_are_limited() {
    let db = Database::in_memory();
    let first = db.insert("a", &serde_json::json!({})).unwrap();
    let refused = db.files().attach("a", &first, "f", &"x".repeat(1025), &b"content"[..]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.message().contains("1025 bytes") && refused.hint().unwrap().contains("1024"), "{refused:?}");
    db.files().attach("a", &first, "f", &"x".repeat(1024), &b"content"[..]).unwrap();
}
