//! Replication between two databases: every leaf and every attachment converges in either direction, despite
//! interruptions.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use stemmadb::replication::{
    ChangesPage, DocumentLeaves, MissingRevisions, Peer, ReplicationScope, Transfer, WriteOutcome,
};
use stemmadb::testing::Random;
use stemmadb::{Cancellation, Database, Edit, ErrorKind, Replication, Result, Schema, Sequence, Value};

/// Every leaf of every document, with its ancestry, body and attachments.
fn state(db: &Database) -> BTreeMap<String, Vec<String>> {
    let mut state = BTreeMap::new();
    for change in db.changes(Sequence::ZERO).unwrap().run() {
        let id = change.unwrap().id.as_str().to_owned();
        let leaves = db.revisions(&id).unwrap().into_iter().map(|branch| {
            let document = db.get_revision(&id, &branch.revisions[0]).unwrap().unwrap();
            let files = document.attachments().unwrap();
            format!("{:?} {} {files:?}", branch, document.to_json().unwrap())
        });
        state.insert(id.clone(), leaves.collect());
    }
    state
}

fn write_at_random(db: &Database, random: &mut Random, count: usize) {
    for _ in 0..count {
        let id = format!("d{}", random.below(60));
        let current = db.get(&id).unwrap();
        match (current, random.below(10)) {
            (Some(document), 0) => drop(db.delete(&id, document.revision()).unwrap()),
            (Some(document), 1 | 2) => {
                let content = format!("content {}", random.below(5));
                db.files().attach(&id, document.revision(), "file", "text/plain", content.as_bytes()).unwrap();
            }
            _ => drop(db.upsert(&id, &json!({"n": random.below(1000)})).unwrap()),
        }
    }
}

#[test]
fn replicas_converge_under_concurrent_writes() {
    let mut random = Random::new(3);
    let databases = [Database::in_memory(), Database::in_memory(), Database::in_memory()];
    for _ in 0..8 {
        for db in &databases {
            write_at_random(db, &mut random, 40);
        }
        // Twice around a closed chain.
        for _ in 0..2 {
            for (from, to) in [(0, 1), (1, 2), (2, 0)] {
                databases[from].replicate_to(&databases[to]).unwrap();
            }
        }
        let states = databases.each_ref().map(state);
        assert_eq!(states[0], states[1]);
        assert_eq!(states[1], states[2]);
        assert!(states[0].values().any(|leaves| leaves.len() > 1), "there are conflicts");
    }
    for db in &databases {
        assert!(db.maintenance().check().unwrap().is_sound());
    }
    let mut content = String::new();
    let with_file = state(&databases[0]).into_keys().find_map(|id| databases[2].files().open(&id, "file").unwrap());
    with_file.unwrap().read_to_string(&mut content).unwrap();
    assert!(content.starts_with("content "));
}

#[test]
fn later_replications_transfer_only_new_changes() {
    let (source, target) = (Database::in_memory(), Database::in_memory());
    for n in 0..1200 {
        source.insert(&format!("{n}"), &json!({"n": n})).unwrap();
    }
    let first = source.replicate_to(&target).unwrap();
    assert_eq!((first.written_count, first.failed_count, first.checked_count), (1200, 0, 1200));
    let second = source.replicate_to(&target).unwrap();
    assert_eq!((second.checked_count, second.read_count), (0, 0));
    source.upsert("7", &json!({"n": -7})).unwrap();
    let third = target.replicate_from(&source).unwrap();
    assert_eq!((third.checked_count, third.written_count), (1, 1));
    // A different selection has its own checkpoint.
    let ids = ReplicationScope::Ids(["1", "2"].map(str::to_owned).into());
    let narrowed = Replication::new(&source, &Database::in_memory()).only(ids).run().unwrap();
    assert_eq!(narrowed.written_count, 2);
    let other = Database::in_memory();
    let selector = ReplicationScope::Selector(Value::parse(r#"{"n": {"$lt": 10}}"#).unwrap());
    let selected = Replication::new(&source, &other).only(selector).batch(3).run().unwrap();
    assert_eq!((selected.written_count, other.get("7").unwrap().is_some()), (10, true));
}

/// A peer that runs a callback before each write.
struct InterruptedPeer<'a> {
    inner: &'a Database,
    before_write: &'a (dyn Fn() -> Result<()> + Sync),
}

impl Peer for InterruptedPeer<'_> {
    fn identity(&self) -> Result<String> {
        self.inner.identity()
    }
    fn get_checkpoint(&self, id: &str) -> Result<Option<Value>> {
        self.inner.get_checkpoint(id)
    }
    fn put_checkpoint(&self, id: &str, body: &Value) -> Result<()> {
        self.inner.put_checkpoint(id, body)
    }
    fn changes(&self, since: Option<&Value>, count: usize, selection: &ReplicationScope) -> Result<ChangesPage> {
        Peer::changes(self.inner, since, count, selection)
    }
    fn missing_revisions(&self, leaves: &[DocumentLeaves]) -> Result<Vec<MissingRevisions>> {
        self.inner.missing_revisions(leaves)
    }
    fn read(&self, wanted: &[MissingRevisions], take: &mut dyn FnMut(Transfer) -> Result<()>) -> Result<()> {
        self.inner.read(wanted, take)
    }
    fn write(&self, transfers: Vec<Transfer>, written: &mut WriteOutcome) -> Result<()> {
        (self.before_write)()?;
        Peer::write(self.inner, transfers, written)
    }
    fn wait(&self, since: &Value, timeout: Duration) -> Result<()> {
        self.inner.wait(since, timeout)
    }
}

#[test]
fn interrupted_replication_resumes_at_its_checkpoint() {
    let (source, target) = (Database::in_memory(), Database::in_memory());
    for n in 0..1000 {
        source.insert(&format!("{n}"), &json!({"n": n})).unwrap();
    }
    let left = AtomicUsize::new(3);
    let count_down = || match left.load(Ordering::Relaxed) {
        0 => Err(stemmadb::Error::unavailable("the connection broke")),
        count => {
            left.store(count - 1, Ordering::Relaxed);
            Ok(())
        }
    };
    let breaking = InterruptedPeer { inner: &target, before_write: &count_down };
    let error = Replication::new(&source, &breaking).batch(100).run().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let rest = Replication::new(&source, &target).batch(100).run().unwrap();
    assert_eq!((rest.checked_count, rest.written_count), (700, 700));
    assert_eq!(state(&source), state(&target));
}

#[test]
fn pending_changes_are_reported_page_by_page() {
    let (from, to) = (Database::in_memory(), Database::in_memory());
    for n in 0..6 {
        from.insert(&format!("d{n}"), &json!({"n": n})).unwrap();
    }
    let mut running = Replication::new(&from, &to).batch(2).begin().unwrap();
    let mut pending = Vec::new();
    running.catch_up_showing(|stats| pending.push(stats.pending_count)).unwrap();
    // Upper bounds: the checkpoints of the replication are counted, too.
    let at_least = [4, 2, 0, 0];
    assert!(pending.iter().zip(at_least).all(|(pending, least)| *pending >= Some(least)), "{pending:?}");
    assert!(pending.windows(2).all(|pair| pair[0] > pair[1]), "{pending:?}");
    assert_eq!((pending[0], pending[3]), (Some(4), Some(0)));
    from.insert("late", &json!({})).unwrap();
    assert_eq!(running.catch_up().unwrap().pending_count, Some(0));
}

#[test]
fn continuous_replication_follows_the_source_and_can_be_canceled() {
    let (source, target) = (Database::in_memory(), Database::in_memory());
    let cancellation = Cancellation::new();
    let (from, to, given) = (source.clone(), target.clone(), cancellation.clone());
    let running = std::thread::spawn(move || {
        let mut running = Replication::new(&from, &to).cancelled_by(&given).begin().unwrap();
        loop {
            match running.catch_up() {
                Ok(_) => running.wait(Duration::from_secs(30)).unwrap(),
                Err(error) => return error.kind(),
            }
        }
    });
    for n in 0..20 {
        source.insert(&format!("{n}"), &json!({})).unwrap();
        let mut arrived = target.subscribe(Sequence::ZERO).ids([format!("{n}")]);
        assert!(arrived.next_within(Duration::from_secs(30)).unwrap().is_some());
    }
    cancellation.cancel();
    source.insert("last", &json!({})).unwrap();
    assert_eq!(running.join().unwrap(), ErrorKind::Stopped);
    assert!(target.get("last").unwrap().is_none());
}

#[test]
fn schema_violations_are_counted_and_do_not_stop_the_rest() {
    let (source, target) = (Database::in_memory(), Database::in_memory());
    target.schemas().require("books", Schema::new(&json!({"required": ["title"]})).unwrap()).unwrap();
    source.insert("books:1", &json!({"title": "Solaris"})).unwrap();
    source.insert("books:2", &json!({})).unwrap();
    source.insert("other", &json!({})).unwrap();
    let done = source.replicate_to(&target).unwrap();
    assert_eq!((done.written_count, done.failed_count), (2, 1));
}

#[test]
fn local_documents_are_not_replicated_and_deletions_are() {
    let (source, target) = (Database::in_memory(), Database::in_memory());
    source.local_documents().put("_local/own", None, &json!({})).unwrap();
    let body = Value::parse(r#"{"why": "moved"}"#).unwrap();
    let first = source.insert("a", &json!({"n": 1})).unwrap();
    let deletion = Edit::Put { id: "a".parse().unwrap(), parent: Some(first), deleted: true, body, files: vec![] };
    let second = source.edit(deletion).unwrap();
    source.replicate_to(&target).unwrap();
    let found = target.get_revision("a", &second).unwrap().unwrap();
    assert!(found.is_deleted() && found.to_json().unwrap() == r#"{"why":"moved"}"#);
    assert!(target.local_documents().get("_local/own").unwrap().is_none());
}

/// Replaces a document's attachment and removes the old content.
fn replace_file(db: &Database, id: &str, content: &str) {
    let current = *db.get(id).unwrap().expect("it is there").revision();
    db.files().attach(id, &current, "file", "text/plain", content.as_bytes()).unwrap();
    db.files().sweep().unwrap();
}

#[test]
fn attachments_replaced_during_replication_are_harmless() {
    let (source, target) = (Database::in_memory(), Database::in_memory());
    for id in ["a", "b"] {
        let revision = source.insert(id, &json!({})).unwrap();
        source.files().attach(id, &revision, "file", "text/plain", format!("first of {id}").as_bytes()).unwrap();
    }
    let replace = || {
        replace_file(&source, "a", "second of a");
        Ok(())
    };
    let late = InterruptedPeer { inner: &target, before_write: &replace };
    let done = Replication::new(&source, &late).run().unwrap();
    assert!(done.written_count >= 2, "{done:?}");
    Replication::new(&source, &target).run().unwrap();
    assert_eq!(state(&source), state(&target));
}

/// If their contents were swept. A snapshot keeps contents of up to 64 KiB.
#[test]
fn revisions_replaced_before_they_are_read_are_skipped() {
    assert_eq!(revisions_read_beside_writes(70_000), ["a"]);
    assert_eq!(revisions_read_beside_writes(64 << 10), ["a", "b"]);
}

/// Reads two revisions, with attachments of this length, of which the second is replaced in between.
fn revisions_read_beside_writes(length: usize) -> Vec<String> {
    let source = Database::in_memory();
    let leaves = ["a", "b"].map(|id| {
        let revision = source.insert(id, &json!({})).unwrap();
        let revision =
            source.files().attach(id, &revision, "file", "text/plain", id.repeat(length).as_bytes()).unwrap();
        MissingRevisions { id: id.parse().unwrap(), revisions: vec![revision], possible_ancestors: Vec::new() }
    });
    let mut read = Vec::new();
    let outcome = source.read(&leaves, &mut |transfer| {
        replace_file(&source, "b", "another");
        read.push(transfer.id.to_string());
        for file in transfer.files {
            let mut content = Vec::new();
            (file.open)().unwrap().unwrap().read_to_end(&mut content).unwrap();
            assert_eq!(content, transfer.id.as_str().repeat(length).as_bytes());
        }
        Ok(())
    });
    outcome.unwrap();
    read
}
