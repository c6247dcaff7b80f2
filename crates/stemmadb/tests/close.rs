//! Closing a database: it is closed for all clones, snapshots and iterators, and can be opened again at once.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use serde_json::json;
use stemmadb::{Database, Document, Emitter, ErrorKind, Index, Options, Reduction, Result, Sequence, View, field};

const TIMEOUT: Duration = Duration::from_secs(30);

fn open(path: &Path) -> Database {
    Database::open_with(path, Options::new()).unwrap()
}

fn fill(db: &Database, count: u64) {
    db.write(|tx| {
        for number in 0..count {
            tx.insert(&format!("{number:05}"), &json!({"number": number, "text": "x".repeat(500)}))?;
        }
        Ok(())
    })
    .unwrap();
}

#[track_caller]
fn assert_closed<T>(what: &str, result: Result<T>) {
    match result {
        Ok(_) => panic!("{what} succeeds after the database was closed"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Closed, "{what}: {error:?}"),
    }
}

struct Numbers;

impl View for Numbers {
    type Key = u64;
    type Value = ();
    type Reduced = u64;

    fn name(&self) -> &str {
        "numbers"
    }

    fn map(&self, document: &Document, rows: &mut Emitter<'_, u64, ()>) -> Result<()> {
        document.get("number")?.and_then(|number| number.as_u64()).into_iter().for_each(|number| rows.emit(number, ()));
        Ok(())
    }

    fn reduction(&self) -> Reduction {
        Reduction::Count
    }
}

/// Everything that is left of a database fails once one clone closed it, whether its documents are in memory or not.
#[test]
fn every_clone_is_closed() {
    for is_merged in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("db");
        let db = open(&path);
        fill(&db, 1_000);
        if is_merged {
            db.maintenance().checkpoint().unwrap();
        }
        let other = db.clone();
        let snapshot = db.snapshot().unwrap();
        let cached = db.get("00001").unwrap().unwrap();
        let prepared = db.prepare(field("number").eq(7)).unwrap();
        assert_eq!(db.find(&prepared).documents().unwrap().len(), 1);
        assert_eq!(db.find(&prepared).documents().unwrap().len(), 1);
        let view = db.view(Numbers).unwrap();
        assert_eq!(view.query().reduce().unwrap(), Some(1_000));
        let mut rows = db.find(field("number").ge(0)).run().unwrap();
        rows.next().unwrap().unwrap();
        let mut listed = snapshot.list().documents(true).run();
        listed.next().unwrap().unwrap();
        let mut changes = db.changes(Sequence::ZERO).unwrap().documents(true).run();
        changes.next().unwrap().unwrap();
        let mut subscription = db.subscribe(db.sequence());
        let mut watch = db.watch(field("number").eq(7)).unwrap();
        watch.next_delta().unwrap();

        db.close().unwrap();

        assert_closed("get", other.get("00001"));
        assert_closed("get another", other.get("00900"));
        assert_closed("insert", other.insert("new", &json!({})));
        assert_closed("write", other.write(|_| Ok(())));
        assert_closed("optimistic", other.optimistic(|tx| tx.insert("new", &json!({}))));
        assert_closed("find", other.find(field("number").eq(7)).documents());
        assert_closed("prepared find", other.find(&prepared).documents());
        assert_closed("count", other.find(field("number").ge(0)).count());
        assert_closed("take a snapshot", other.snapshot());
        assert_closed("read the feed", other.changes(Sequence::ZERO));
        assert_closed("info", other.info());
        assert_closed("flush", other.flush());
        assert_closed("check", other.maintenance().check());
        assert_closed("checkpoint", other.maintenance().checkpoint());
        assert_closed("compact", other.maintenance().compact());
        assert_closed("create an index", other.indexes().create(Index::on("number").unique()));
        assert_closed("sweep", other.files().sweep());
        assert_closed("store a file", other.files().store(&b"content"[..]));
        assert_closed("open a view", view.query().reduce());
        assert_closed("start a live query", other.watch(field("number").eq(7)).unwrap().next_delta());
        assert_closed("get of a snapshot", snapshot.get("00001"));
        assert_closed("find of a snapshot", snapshot.find(field("number").eq(7)).documents());
        assert_closed("count of a snapshot", snapshot.find(field("number").eq(7)).count());
        assert_closed("revisions of a snapshot", snapshot.revisions("00001"));
        // What was read before it was closed may still be returned.
        assert_closed("rows", rows.find(Result::is_err).unwrap());
        assert_closed("a listing", listed.find(Result::is_err).unwrap());
        assert_closed("changes", changes.find(Result::is_err).unwrap());
        assert_eq!(subscription.next_change().unwrap(), None);
        assert!(watch.next_delta().unwrap().is_none());
        assert_eq!(other.subscribe(Sequence::ZERO).next_change().unwrap(), None);
        assert_eq!(cached.get("number").unwrap().unwrap().as_u64(), Some(1));
        other.clone().close().unwrap();

        let reopened = open(&path);
        assert_eq!(reopened.find(field("number").ge(0)).count().unwrap(), 1_000);
        reopened.insert("new", &json!({})).unwrap();
        assert_closed("insert by the old handle", other.insert("newer", &json!({})));
        assert!(reopened.maintenance().check().unwrap().is_sound());
        drop((other, snapshot, rows, listed, changes));
        assert!(reopened.get("new").unwrap().is_some());
    }
}

#[test]
fn a_database_in_memory_is_closed_for_its_clones() {
    let db = Database::in_memory();
    fill(&db, 10);
    let (other, snapshot) = (db.clone(), db.snapshot().unwrap());
    db.close().unwrap();
    assert_closed("get", other.get("00001"));
    assert_closed("get of a snapshot", snapshot.get("00001"));
    assert_closed("insert", other.insert("new", &json!({})));
}

/// Threads that use the database while it is closed end with `Closed`. Every write that was acknowledged is stored.
#[test]
fn closing_during_use_loses_nothing() {
    for round in 0..5 {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("db");
        let db = open(&path);
        fill(&db, 200);
        let (started, is_running) = mpsc::channel();
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let (db, started) = (db.clone(), started.clone());
                std::thread::spawn(move || {
                    for number in 0.. {
                        let id = format!("{writer}-{number}");
                        if let Err(error) = db.insert(&id, &json!({"number": number})) {
                            assert_eq!(error.kind(), ErrorKind::Closed, "{error:?}");
                            return number;
                        }
                        started.send(()).ok();
                    }
                    unreachable!()
                })
            })
            .collect();
        let reader = {
            let db = db.clone();
            std::thread::spawn(move || {
                loop {
                    let found = db.find(field("number").ge(0)).documents();
                    match found.and_then(|_| db.maintenance().compact()) {
                        Ok(_) => {}
                        Err(error) => break assert_eq!(error.kind(), ErrorKind::Closed, "{error:?}"),
                    }
                }
            })
        };
        (0..10 * (round + 1)).for_each(|_| is_running.recv_timeout(TIMEOUT).unwrap());
        db.close().unwrap();
        let reopened = open(&path);
        let counts: Vec<u64> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        reader.join().unwrap();
        for (writer, count) in counts.into_iter().enumerate() {
            for number in 0..count {
                assert!(reopened.get(&format!("{writer}-{number}")).unwrap().is_some(), "{writer}-{number} of {count}");
            }
        }
        assert!(reopened.maintenance().check().unwrap().is_sound());
    }
}

thread_local! {
    static KEPT: std::cell::RefCell<Option<Database>> = const { std::cell::RefCell::new(None) };
}

/// A thread drops what it keeps after values of the library that it used later, which closing can do without.
#[test]
fn database_kept_by_a_thread_is_closed_when_the_thread_ends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kept.stemma");
    let thread_path = path.clone();
    let thread = std::thread::spawn(move || {
        // Registered before the values that writes use, and so dropped after them.
        KEPT.with_borrow_mut(|kept| *kept = None);
        let db = open(&thread_path);
        fill(&db, 3_000);
        KEPT.replace(Some(db));
    });
    thread.join().unwrap();
    let db = open(&path);
    assert_eq!(db.find(field("number").ge(0)).count().unwrap(), 3_000);
    assert!(db.maintenance().check().unwrap().is_sound());
}
