//! Wrong clocks: the clock jumps by decades in both directions, between two openings and while a database is open.
//! Contents, order, revisions, feeds and replication must not depend on it, and a document that expires is either gone
//! or present, never both, and never expires twice.
//!
//! Every database takes its time from `store::clock`, which these tests set; waiting uses a monotonic clock.
//! `STEMMA_CLOCK_STEPS` sets the number of random steps (default 600), `STEMMA_CLOCK_SEED` the seed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stemmadb::testing::{self, Clock, Random, TestStorage};
use stemmadb::{
    Database, DeltaEvent, DocumentId, Durability, Edit, Emitter, ErrorKind, Expiry, Index, Options, Reduction, Refresh,
    Result, Revision, Sequence, View, field,
};

/// The initial time: a second in 2001.
const BEGINNING: i64 = 1_000_000_000_000;
const TEN_YEARS_MS: i64 = 10 * 365 * 86_400_000;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn small(clock: &Clock) -> Options {
    let options = Options::new().durability(Durability::Sync).background(false).clock(clock.clone());
    testing::with_small_limits(options, 48 << 10, 16 << 10, 40)
}

fn in_memory_with_clock() -> (Database, Clock) {
    let clock = Clock::fixed_at(BEGINNING);
    (Database::in_memory_with(small(&clock)).unwrap(), clock)
}

/// A time in seconds after the initial one.
fn at(seconds: i64) -> i64 {
    BEGINNING / 1000 + seconds
}

fn assert_sound(db: &Database) {
    let report = db.maintenance().check().unwrap();
    assert!(report.is_sound(), "{:#?}", report.damages);
}

/// A wrong time: years ahead or back, before 1970, or slightly off.
fn wrong_time(random: &mut Random) -> i64 {
    match random.below(6) {
        0 => BEGINNING + TEN_YEARS_MS,
        1 => BEGINNING - TEN_YEARS_MS,
        2 => 0,
        3 => -TEN_YEARS_MS,
        4 => 253_402_300_799_000,
        _ => BEGINNING + random.below(2_000) as i64 - 1_000,
    }
}

type FeedEntry = (Sequence, String, Revision, bool);

/// The changes since a sequence.
fn feed(db: &Database, since: Sequence) -> Vec<FeedEntry> {
    let changes = db.changes(since).unwrap().run().map(|change| change.unwrap());
    changes.map(|change| (change.sequence, change.id.to_string(), change.revision, change.deleted)).collect()
}

/// Every document ever written, with all its branches and its current body.
fn contents(db: &Database) -> Vec<String> {
    let ids = feed(db, Sequence::ZERO).into_iter().map(|(_, id, ..)| id);
    let describe = |id: String| {
        let body = db.get(&id).unwrap().map(|found| found.to_json().unwrap());
        format!("{id} {:?} {body:?}", db.revisions(&id).unwrap())
    };
    let mut contents: Vec<String> = ids.map(describe).collect();
    contents.sort();
    contents
}

/// One of two databases that go through the same steps under different clocks.
struct Replica {
    storage: TestStorage,
    clock: Clock,
    db: Database,
    replica: Database,
    /// Sequences at which a reader of the feed stopped.
    marks: Vec<Sequence>,
}

impl Replica {
    fn new(seed: u64) -> Self {
        let (storage, clock) = (TestStorage::new(seed), Clock::fixed_at(BEGINNING));
        let db = storage.open(small(&clock)).unwrap();
        let replica = Database::in_memory_with(small(&clock)).unwrap();
        Replica { storage, clock, db, replica, marks: vec![Sequence::ZERO] }
    }

    /// Performs a random step and returns its result as text.
    fn step(&mut self, mut random: Random) -> String {
        let db = &self.db;
        let id = format!("document-{}", random.below(25));
        let body = json!({"n": random.below(5), "fill": "x".repeat(random.below(300) as usize)});
        match random.below(14) {
            0..=5 => format!("{:?}", db.upsert(&id, &body).unwrap()),
            6 => {
                let found = db.get(&id).unwrap();
                format!("{:?}", found.map(|found| db.delete(&id, found.revision()).unwrap()))
            }
            7 => format!("{:?}", db.local_documents().put("_local/place", None, &body).is_ok()),
            8 => {
                let at = db.upsert(&id, &body).unwrap();
                format!("{:?}", db.files().attach(&id, &at, "file", "text/plain", body.to_string().as_bytes()).unwrap())
            }
            9 => {
                self.marks.push(db.sequence());
                let done = db.replicate_to(&self.replica).unwrap();
                format!("{} {} {}", done.checked_count, done.written_count, done.failed_count)
            }
            10 => {
                let written = |tx: &mut stemmadb::Attempt<'_>| {
                    let count = tx.find(field("n").eq(1))?.count()?;
                    tx.upsert(&id, &json!({ "n": count }))
                };
                format!("{:?}", db.optimistic(written).unwrap())
            }
            11 => format!("{:?}", db.maintenance().checkpoint().map_err(|error| error.kind())),
            12 => format!("{:?}", db.maintenance().compact().is_ok()),
            _ => {
                self.db.clone().close().unwrap();
                self.db = self.storage.open(small(&self.clock)).unwrap();
                format!("{:?}", self.db.sequence())
            }
        }
    }
}

/// Negative control: fails if a sequence or revision depends on the clock.
#[test]
fn writes_do_not_depend_on_the_clock() {
    let seed = setting("STEMMA_CLOCK_SEED", 1);
    let mut random = Random::new(seed);
    let (mut steady, mut jumping) = (Replica::new(seed), Replica::new(seed));
    for step in 0..setting("STEMMA_CLOCK_STEPS", 600) {
        jumping.clock.set(wrong_time(&mut random));
        let dice = random.number();
        let results = [&mut steady, &mut jumping].map(|replica| replica.step(Random::new(dice)));
        assert_eq!(results[0], results[1], "step {step}");
    }
    let replicas = [&steady, &jumping];
    // The rest of the feed continues where a reader stopped.
    for mark in &steady.marks {
        let changes = replicas.map(|replica| feed(&replica.db, *mark));
        assert!(changes[0].iter().all(|(sequence, ..)| sequence > mark) && changes[0].is_sorted());
        assert_eq!(changes[0], changes[1], "since {mark}");
    }
    assert_eq!(steady.marks, jumping.marks);
    for replica in replicas {
        replica.db.replicate_to(&replica.replica).unwrap();
        assert_eq!(contents(&replica.db), contents(&replica.replica));
        assert_sound(&replica.db);
    }
    assert_eq!(contents(&steady.db), contents(&jumping.db));
}

#[test]
fn expired_documents_reappear_with_the_clock_unless_swept() {
    let (db, clock) = in_memory_with_clock();
    db.expiration().add_rule(Expiry::at("ends")).unwrap();
    db.insert("ends", &json!({"n": 1, "ends": at(60)})).unwrap();
    clock.set(BEGINNING + TEN_YEARS_MS);
    assert!(db.get("ends").unwrap().is_none(), "it has expired by this clock");
    clock.set(BEGINNING - TEN_YEARS_MS);
    assert!(db.get("ends").unwrap().is_some(), "it is visible again unless it was swept");
    assert_eq!(db.expiration().delete_expired().unwrap(), 0);
    clock.set(BEGINNING + TEN_YEARS_MS);
    assert_eq!(db.expiration().delete_expired().unwrap(), 1);
    clock.set(BEGINNING - TEN_YEARS_MS);
    assert!(db.get("ends").unwrap().is_none(), "a swept document stays deleted");
    assert_sound(&db);
}

/// A view with one row per document.
struct Numbers;

impl View for Numbers {
    type Key = u64;
    type Value = ();
    type Reduced = u64;

    fn name(&self) -> &str {
        "numbers"
    }

    fn map(&self, document: &stemmadb::Document, rows: &mut Emitter<'_, u64, ()>) -> Result<()> {
        if let Some(n) = document.get("n")?.and_then(|n| n.as_u64()) {
            rows.emit(n, ());
        }
        Ok(())
    }

    fn reduction(&self) -> Reduction {
        Reduction::Count
    }

    fn refresh(&self) -> Refresh {
        Refresh::Unique
    }
}

/// An expired document held no unique value, so another one took it; the clock was set back before the sweep, and both
/// appeared with it. A write that takes a unique value or view key from an expired document now deletes that document,
/// as a write that takes its id does.
#[test]
fn reappearing_documents_share_no_unique_value() {
    let (db, clock) = in_memory_with_clock();
    db.expiration().add_rule(Expiry::at("ends")).unwrap();
    db.indexes().create(Index::on("email").unique()).unwrap();
    let numbers = db.view(Numbers).unwrap();
    for (id, body) in [("by value", json!({"email": "x", "ends": at(10)})), ("by key", json!({"n": 1, "ends": at(10)}))]
    {
        db.insert(id, &body).unwrap();
    }
    let edit = |id: &str, body: Value| Edit::Insert {
        id: DocumentId::new(id).unwrap(),
        body: stemmadb::Value::from_serialize(&body).unwrap(),
    };
    clock.set(BEGINNING + TEN_YEARS_MS);
    db.insert("new value", &json!({"email": "x"})).unwrap();
    let both = [edit("new key", json!({"n": 1})), edit("one too many", json!({"email": "x"}))];
    let done = db.bulk(both.to_vec()).unwrap();
    assert!(done[0].is_ok());
    assert_eq!(done[1].as_ref().unwrap_err().kind(), ErrorKind::Duplicate);
    clock.set(BEGINNING);
    let visible = |id: &str| db.get(id).unwrap().is_some();
    assert_eq!(["by value", "by key", "new value", "new key"].map(visible), [false, false, true, true]);
    assert!(db.indexes().duplicates("email").unwrap().is_empty());
    assert_eq!(numbers.query().rows().unwrap().count(), 1);
    assert_eq!(db.insert("another", &json!({"n": 1})).unwrap_err().kind(), ErrorKind::Conflict);
    assert_sound(&db);
}

/// No conflict was detected for a document that reappeared when the clock was set back: an optimistic transaction that
/// had seen it as missing was committed.
#[test]
fn optimistic_transaction_is_retried_when_a_missing_document_reappears() {
    for by_query in [false, true] {
        let (db, clock) = in_memory_with_clock();
        db.expiration().add_rule(Expiry::at("ends")).unwrap();
        db.insert("lock", &json!({"n": 1, "ends": at(10)})).unwrap();
        clock.set(BEGINNING + TEN_YEARS_MS);
        let was_free = db.optimistic(|tx| {
            let is_free = if by_query { !tx.find(field("n").eq(1))?.exists()? } else { tx.get("lock")?.is_none() };
            clock.set(BEGINNING);
            tx.upsert("holder", &json!({"free": is_free}))?;
            Ok(is_free)
        });
        assert!(!was_free.unwrap(), "the lock is visible again");
    }
}

/// A live query whose result lost a document to a clock, or missed one that reappeared, is correct for each document
/// written afterwards.
#[test]
fn live_query_is_correct_for_writes_under_any_clock() {
    let (db, clock) = in_memory_with_clock();
    db.expiration().add_rule(Expiry::at("ends")).unwrap();
    for id in ["replaced", "deleted", "moved"] {
        db.insert(id, &json!({"n": 1, "ends": at(10)})).unwrap();
    }
    clock.set(BEGINNING + TEN_YEARS_MS);
    let mut watch = db.watch(field("n").eq(1)).unwrap();
    assert_eq!(watch.next_delta().unwrap().unwrap().events().count(), 0);
    clock.set(BEGINNING);
    let revision = |id: &str| *db.get(id).unwrap().unwrap().revision();
    db.replace("replaced", &revision("replaced"), &json!({"n": 1, "new": true})).unwrap();
    let delta = watch.next_delta().unwrap().unwrap();
    assert!(matches!(delta.events().next(), Some(Ok(DeltaEvent::Added(_)))), "it was not in the result");
    db.delete("deleted", &revision("deleted")).unwrap();
    db.replace("moved", &revision("moved"), &json!({"n": 2})).unwrap();
    db.insert("last", &json!({"n": 1})).unwrap();
    let delta = watch.next_delta().unwrap().unwrap();
    let ids: Vec<String> = delta.events().map(|event| event.unwrap().id().to_string()).collect();
    assert_eq!(ids, ["last"], "documents never in the result are not removed from it");
}

/// A key that had expired when a write started, but no longer when it was made because the clock was set back in
/// between, was forgotten: it stayed as long as the database was open.
#[test]
fn expired_keys_are_removed_despite_a_jumping_clock() {
    let (db, clock) = in_memory_with_clock();
    let keys = db.keys("cache").unwrap().durability(Durability::None);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                clock.set(BEGINNING + TEN_YEARS_MS);
                clock.set(BEGINNING);
            }
        });
        for n in 0..2_000 {
            keys.set_for(&n.to_string(), &n, Duration::from_secs(60)).unwrap();
            // A visible key has the right value.
            assert!(keys.get::<u64>(&n.to_string()).unwrap().is_none_or(|found| found == n));
        }
        is_done.store(true, Ordering::Relaxed);
    });
    clock.set(BEGINNING + 3 * TEN_YEARS_MS);
    assert!(keys.all::<u64>().unwrap().is_empty());
    (0..1_100).for_each(|n| keys.set("last", &n).unwrap());
    let kept =
        (0..2_000).filter(|n| db.local_documents().get(&format!("_local/keys/cache/{n}")).unwrap().is_some()).count();
    assert_eq!(kept, 0, "all expired keys are removed");
}

/// The sweeping thread follows the clock: an expired document is swept soon after the clock reaches its time, wherever
/// the clock was before, even across openings.
#[test]
fn sweep_follows_a_jumping_clock() {
    let (storage, clock) = (TestStorage::new(1), Clock::fixed_at(BEGINNING));
    let options = || Options::new().durability(Durability::None).clock(clock.clone());
    let mut db = storage.open(options()).unwrap();
    db.expiration().add_rule(Expiry::at("ends")).unwrap();
    for (number, jump_ms) in
        [0, TEN_YEARS_MS, -TEN_YEARS_MS, 0, -3 * TEN_YEARS_MS, TEN_YEARS_MS].into_iter().enumerate()
    {
        let id = format!("document-{number}");
        let now_ms = BEGINNING + jump_ms;
        clock.set(now_ms);
        let since = db.sequence();
        db.insert(&id, &json!({"ends": now_ms / 1000 + 10})).unwrap();
        db.insert(&format!("stays-{number}"), &json!({"ends": 100 * (TEN_YEARS_MS / 1000)})).unwrap();
        assert!(db.get(&id).unwrap().is_some());
        if number % 2 == 1 {
            db.close().unwrap();
            db = storage.open(options()).unwrap();
        }
        clock.set(now_ms + 10_000);
        assert!(db.get(&id).unwrap().is_none());
        let deadline = Instant::now() + Duration::from_secs(60);
        let is_swept =
            |db: &Database| feed(db, since).iter().any(|(_, changed_id, _, deleted)| *deleted && *changed_id == id);
        while !is_swept(&db) {
            assert!(Instant::now() < deadline, "{id} is not swept");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    clock.set(BEGINNING - 3 * TEN_YEARS_MS);
    assert_eq!(db.info().unwrap().document_count, 6, "swept documents stay deleted, and no others are");
    db.close().unwrap();
}
