//! A clock that is wrong: it jumps by decades, to and fro, between two openings and while a database is open. What is written, its order,
//! its revisions, feeds and replication don't come from it; what ends by it is gone or there, never both, and never twice.
//!
//! Every database takes its time from `options::clock`, whose clock stands here and is set; waiting is by the clock that only goes forward.
//! `STEMMA_CLOCK_STEPS` says how many random steps there are (default 600), `STEMMA_CLOCK_SEED` where to begin.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stemmadb::testing::{self, Clock, Place, Random};
use stemmadb::{
    Database, DocumentId, Durability, Edit, Emitter, ErrorKind, Event, Expiry, Index, Options, Reduction, Refresh,
    Result, Revision, Sequence, View, field,
};

/// Where the clock stands at first: a second in 2001.
const BEGINNING: i64 = 1_000_000_000_000;
const TEN_YEARS_MS: i64 = 10 * 365 * 86_400_000;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn small(clock: &Clock) -> Options {
    let options = Options::new().durability(Durability::Sync).background(false).clock(clock.clone());
    testing::small(options, 48 << 10, 16 << 10, 40)
}

fn standing() -> (Database, Clock) {
    let clock = Clock::standing_at(BEGINNING);
    (Database::in_memory_with(small(&clock)).unwrap(), clock)
}

/// A time so many seconds after the beginning.
fn at(seconds: i64) -> i64 {
    BEGINNING / 1000 + seconds
}

fn assert_sound(db: &Database) {
    let report = db.maintenance().check().unwrap();
    assert!(report.is_sound(), "{:#?}", report.damages);
}

/// Somewhere a clock may be: years ahead or back, before 1970, or a moment away.
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

type Told = (Sequence, String, Revision, bool);

/// What the feed tells from somewhere on.
fn feed(db: &Database, since: Sequence) -> Vec<Told> {
    let changes = db.changes(since).unwrap().run().map(|change| change.unwrap());
    changes.map(|change| (change.sequence, change.id.to_string(), change.revision, change.deleted)).collect()
}

/// Each document that there ever was, with all of its branches and what it is now.
fn contents(db: &Database) -> Vec<String> {
    let ids = feed(db, Sequence::ZERO).into_iter().map(|(_, id, ..)| id);
    let shown = |id: String| {
        let body = db.get(&id).unwrap().map(|found| found.to_json().unwrap());
        format!("{id} {:?} {body:?}", db.revisions(&id).unwrap())
    };
    let mut contents: Vec<String> = ids.map(shown).collect();
    contents.sort();
    contents
}

/// One of the same two lives: what happens to it does not depend on its clock.
struct Life {
    place: Place,
    clock: Clock,
    db: Database,
    replica: Database,
    /// Where a reader of the feed stopped.
    marks: Vec<Sequence>,
}

impl Life {
    fn new(seed: u64) -> Self {
        let (place, clock) = (Place::new(seed), Clock::standing_at(BEGINNING));
        let db = place.open(small(&clock)).unwrap();
        let replica = Database::in_memory_with(small(&clock)).unwrap();
        Life { place, clock, db, replica, marks: vec![Sequence::ZERO] }
    }

    /// Does something; says what became of it.
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
                self.db = self.place.open(small(&self.clock)).unwrap();
                format!("{:?}", self.db.sequence())
            }
        }
    }
}

/// Seen to fail with a sequence, or a revision, that takes anything from the clock.
#[test]
fn nothing_that_is_written_comes_from_the_clock() {
    let seed = setting("STEMMA_CLOCK_SEED", 1);
    let mut random = Random::new(seed);
    let (mut steady, mut jumping) = (Life::new(seed), Life::new(seed));
    for step in 0..setting("STEMMA_CLOCK_STEPS", 600) {
        jumping.clock.set(wrong_time(&mut random));
        let dice = random.number();
        let said = [&mut steady, &mut jumping].map(|life| life.step(Random::new(dice)));
        assert_eq!(said[0], said[1], "step {step}");
    }
    let lives = [&steady, &jumping];
    // What a reader of the feed has not seen follows from where it stopped.
    for mark in &steady.marks {
        let told = lives.map(|life| feed(&life.db, *mark));
        assert!(told[0].iter().all(|(sequence, ..)| sequence > mark) && told[0].is_sorted());
        assert_eq!(told[0], told[1], "since {mark}");
    }
    assert_eq!(steady.marks, jumping.marks);
    for life in lives {
        life.db.replicate_to(&life.replica).unwrap();
        assert_eq!(contents(&life.db), contents(&life.replica));
        assert_sound(&life.db);
    }
    assert_eq!(contents(&steady.db), contents(&jumping.db));
}

#[test]
fn what_ended_by_a_clock_that_was_set_back_is_there_unless_it_was_swept() {
    let (db, clock) = standing();
    db.expiration().add_rule(Expiry::at("ends")).unwrap();
    db.insert("ends", &json!({"n": 1, "ends": at(60)})).unwrap();
    clock.set(BEGINNING + TEN_YEARS_MS);
    assert!(db.get("ends").unwrap().is_none(), "it has ended by this clock");
    clock.set(BEGINNING - TEN_YEARS_MS);
    assert!(db.get("ends").unwrap().is_some(), "it is there again as long as nobody swept it");
    assert_eq!(db.expiration().delete_expired().unwrap(), 0);
    clock.set(BEGINNING + TEN_YEARS_MS);
    assert_eq!(db.expiration().delete_expired().unwrap(), 1);
    clock.set(BEGINNING - TEN_YEARS_MS);
    assert!(db.get("ends").unwrap().is_none(), "what was swept stays so");
    assert_sound(&db);
}

/// Numbers, each one document's.
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

/// A document that had ended held no value, so another one took it; the clock was set back before the sweep, and both were shown with it.
/// Now whoever takes a value or a key from what has ended deletes that, as one does who takes its id.
#[test]
fn what_a_clock_set_back_shows_again_shares_no_unique_value() {
    let (db, clock) = standing();
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
    let shown = |id: &str| db.get(id).unwrap().is_some();
    assert_eq!(["by value", "by key", "new value", "new key"].map(shown), [false, false, true, true]);
    assert!(db.indexes().duplicates("email").unwrap().is_empty());
    assert_eq!(numbers.query().rows().unwrap().count(), 1);
    assert_eq!(db.insert("another", &json!({"n": 1})).unwrap_err().kind(), ErrorKind::Conflict);
    assert_sound(&db);
}

/// Nobody was told of what came back as the clock was set back: an optimistic transaction that had seen that there is none was committed.
#[test]
fn an_optimistic_transaction_is_run_again_when_what_it_missed_is_there_again() {
    for by_query in [false, true] {
        let (db, clock) = standing();
        db.expiration().add_rule(Expiry::at("ends")).unwrap();
        db.insert("lock", &json!({"n": 1, "ends": at(10)})).unwrap();
        clock.set(BEGINNING + TEN_YEARS_MS);
        let was_free = db.optimistic(|tx| {
            let is_free = if by_query { !tx.find(field("n").eq(1))?.exists()? } else { tx.get("lock")?.is_none() };
            clock.set(BEGINNING);
            tx.upsert("holder", &json!({"free": is_free}))?;
            Ok(is_free)
        });
        assert!(!was_free.unwrap(), "there is a lock again");
    }
}

/// A live query whose answer lost a document to a clock, or missed one that came back, is right about each document that is written then.
#[test]
fn a_live_query_is_right_about_what_is_written_whatever_the_clock_said() {
    let (db, clock) = standing();
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
    assert!(matches!(delta.events().next(), Some(Ok(Event::Added(_)))), "it was not in the answer");
    db.delete("deleted", &revision("deleted")).unwrap();
    db.replace("moved", &revision("moved"), &json!({"n": 2})).unwrap();
    db.insert("last", &json!({"n": 1})).unwrap();
    let delta = watch.next_delta().unwrap().unwrap();
    let ids: Vec<String> = delta.events().map(|event| event.unwrap().id().to_string()).collect();
    assert_eq!(ids, ["last"], "those that it never had don't leave it");
}

/// A key that was due as a write began, but not any more as it was made, since the clock was set back in between, was forgotten: it stayed
/// for as long as the database was open.
#[test]
fn keys_that_end_by_a_clock_that_runs_to_and_fro_are_removed_in_the_end() {
    let (db, clock) = standing();
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
            // One that is there has the right value.
            assert!(keys.get::<u64>(&n.to_string()).unwrap().is_none_or(|found| found == n));
        }
        is_done.store(true, Ordering::Relaxed);
    });
    clock.set(BEGINNING + 3 * TEN_YEARS_MS);
    assert!(keys.all::<u64>().unwrap().is_empty());
    (0..1_100).for_each(|n| keys.set("last", &n).unwrap());
    let kept =
        (0..2_000).filter(|n| db.local_documents().get(&format!("_local/keys/cache/{n}")).unwrap().is_some()).count();
    assert_eq!(kept, 0, "keys that nobody removes");
}

/// The thread that sweeps is not led astray: what ends is swept soon after the clock says so, wherever it was before, also across openings.
#[test]
fn the_sweep_follows_a_clock_that_jumps() {
    let (place, clock) = (Place::new(1), Clock::standing_at(BEGINNING));
    let options = || Options::new().durability(Durability::None).clock(clock.clone());
    let mut db = place.open(options()).unwrap();
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
            db = place.open(options()).unwrap();
        }
        clock.set(now_ms + 10_000);
        assert!(db.get(&id).unwrap().is_none());
        let deadline = Instant::now() + Duration::from_secs(60);
        let is_swept = |db: &Database| feed(db, since).iter().any(|(_, told, _, deleted)| *deleted && *told == id);
        while !is_swept(&db) {
            assert!(Instant::now() < deadline, "{id} is not swept");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    clock.set(BEGINNING - 3 * TEN_YEARS_MS);
    assert_eq!(db.info().unwrap().document_count, 6, "what was swept stays so, and nothing else was");
    db.close().unwrap();
}
