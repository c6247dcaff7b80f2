//! Calls that would wait for their own thread: maintenance and closing within a transaction, and a view within its own
//! map function. They are refused at once; none hangs.

use std::sync::OnceLock;
use std::sync::mpsc;
use std::time::Duration;

use stemmadb::{Database, Document, Emitter, ErrorKind, Expiry, Index, Options, Reduction, Result, Schema, View};

/// A call that takes longer than this hangs.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Runs `work` on another thread, and fails if it does not end.
fn within_timeout(what: &str, work: impl FnOnce() + Send + 'static) {
    let (sender, ended) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        work();
        sender.send(()).ok();
    });
    if let Err(mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(TIMEOUT) {
        panic!("{what} hangs");
    }
    thread.join().unwrap();
}

fn opened(background: bool) -> Database {
    let db = Database::in_memory_with(Options::new().background(background)).unwrap();
    db.insert("note:1", &serde_json::json!({"text": "one", "ends": "2100-01-01T00:00:00Z"})).unwrap();
    db.indexes().create(Index::on("text").unique()).unwrap();
    db.expiration().add_rule(Expiry::at("ends")).unwrap();
    db.schemas().require("note", schema()).unwrap();
    db
}

fn schema() -> Schema {
    Schema::new(&serde_json::json!({"type": "object"})).unwrap()
}

type Call = (&'static str, fn(&Database) -> Result<()>);

/// Calls that wait for the writer lock, directly or not.
const CALLS: &[Call] = &[
    ("compact", |db| db.maintenance().compact().map(drop)),
    ("checkpoint", |db| db.maintenance().checkpoint()),
    ("check", |db| db.maintenance().check().map(drop)),
    ("create an index", |db| db.indexes().create(Index::on("other").unique())),
    ("remove an index", |db| db.indexes().remove("text")),
    ("sweep", |db| db.files().sweep().map(drop)),
    ("add a rule", |db| db.expiration().add_rule(Expiry::at("other"))),
    ("remove a rule", |db| db.expiration().remove_rule(&Expiry::at("ends"))),
    ("delete expired documents", |db| db.expiration().delete_expired().map(drop)),
    ("require a schema", |db| db.schemas().require("other", schema())),
    ("remove a schema", |db| db.schemas().remove("note")),
    ("insert", |db| db.insert("other", &serde_json::json!({})).map(drop)),
    ("write", |db| db.write(|tx| tx.insert("other", &serde_json::json!({})).map(drop))),
    ("close", |db| db.clone().close()),
];

#[test]
fn maintenance_within_a_transaction_is_refused() {
    for background in [true, false] {
        for (name, call) in CALLS {
            within_timeout(name, move || {
                let db = opened(background);
                let inside = db.write(|tx| {
                    tx.insert("note:2", &serde_json::json!({"text": "two"}))?;
                    Ok(call(&db))
                });
                let error = inside.unwrap().expect_err(name);
                assert_eq!(error.kind(), ErrorKind::Invalid, "{name}: {error:?}");
                assert!(error.message().contains("transaction of the same thread"), "{name}: {error:?}");
                assert!(error.hint().is_some(), "{name}: {error:?}");
                assert!(db.get("note:2").unwrap().is_some(), "{name}: the transaction itself commits");
                // Nothing is left behind: outside the transaction the same call succeeds.
                call(&db).unwrap_or_else(|error| panic!("{name} after the transaction: {error:?}"));
            });
        }
    }
}

/// A call that waits for what its own progress function holds up.
#[test]
fn maintenance_within_its_own_progress_function_is_refused() {
    within_timeout("compact", || {
        let db = opened(true);
        let mut results = Vec::new();
        db.maintenance().check_with_progress(|_| results.push(db.maintenance().compact())).unwrap();
        assert!(results.iter().all(|result| result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Invalid)));
        assert!(!results.is_empty());
        let mut inserted = 0;
        db.maintenance()
            .check_with_progress(|_| {
                inserted += u32::from(
                    db.upsert("a", &[("b", 1)].into_iter().collect::<std::collections::BTreeMap<_, _>>()).is_ok(),
                )
            })
            .unwrap();
        assert!(inserted > 0, "a check does not keep writers out");
    });
    within_timeout("create an index", || {
        let db = opened(true);
        let mut results = Vec::new();
        db.indexes().create_with_progress(Index::on("more").unique(), |_| results.push(db.clone().close())).unwrap();
        assert!(results.iter().all(|result| result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Invalid)));
        assert!(!results.is_empty());
    });
}

/// A view whose map function calls the database that it belongs to.
struct Curious(fn(&Database) -> Result<()>);

static DATABASE: OnceLock<Database> = OnceLock::new();

impl View for Curious {
    type Key = String;
    type Value = ();
    type Reduced = u64;

    fn name(&self) -> &str {
        "curious"
    }

    fn map(&self, document: &Document, rows: &mut Emitter<'_, String, ()>) -> Result<()> {
        let asked = (self.0)(DATABASE.get().unwrap());
        rows.emit(asked.err().map_or_else(|| "nothing refused".to_owned(), |error| format!("{:?}", error.kind())), ());
        rows.emit(document.id().to_string(), ());
        Ok(())
    }

    fn reduction(&self) -> Reduction {
        Reduction::Count
    }
}

#[test]
fn a_view_within_its_own_map_function_is_refused() {
    let db = DATABASE.get_or_init(|| opened(true));
    let ask: fn(&Database) -> Result<()> = |db| db.view(Curious(|_| Ok(())))?.query().reduce().map(drop);
    let calls = [
        ("ask the view", ask),
        ("insert", |db| db.insert("x", &serde_json::json!({})).map(drop)),
        ("close", |db| db.clone().close()),
    ];
    for (name, call) in calls {
        within_timeout(name, move || {
            let view = db.view(Curious(call)).unwrap();
            let rows: Vec<String> = view.query().rows().unwrap().map(|row| row.unwrap().key).collect();
            assert_eq!(rows, ["Invalid", "note:1"], "{name}");
            db.views().remove("curious").unwrap();
        });
    }
}
