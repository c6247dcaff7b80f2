//! Expiration (TTL): exact at read time in every kind of read, swept later, and never affecting the wrong document.
//!
//! `STEMMA_EXPIRY_STEPS` sets the number of random steps (default 1,500), `STEMMA_EXPIRY_SEED` the seed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stemmadb::testing::{self, Clock, Random, TestStorage};
use stemmadb::{
    Database, DeltaEvent, DocumentId, Durability, Edit, Emitter, ErrorKind, Expiry, Index, Options, Reduction, Refresh,
    Result, Sequence, View, field,
};

/// The initial time: a second in 2001.
const BEGINNING: i64 = 1_000_000_000_000;

fn in_memory_with_clock() -> (Database, Clock) {
    let clock = Clock::fixed_at(BEGINNING);
    let options = Options::new().durability(Durability::None).background(false).clock(clock.clone());
    (Database::in_memory_with(options).unwrap(), clock)
}

/// A time in seconds after the initial one.
fn at(seconds: i64) -> i64 {
    BEGINNING / 1000 + seconds
}

fn assert_sound(db: &Database) {
    let report = db.maintenance().check().unwrap();
    assert!(report.is_sound(), "{:#?}", report.damages);
}

fn ids(db: &Database) -> Vec<String> {
    db.find(field("n").exists()).sort("_id").ids().unwrap().map(|id| id.unwrap().to_string()).collect()
}

struct Sum(Refresh);

impl View for Sum {
    type Key = String;
    type Value = u64;
    type Reduced = u64;

    fn name(&self) -> &str {
        "sum"
    }

    fn map(&self, document: &stemmadb::Document, rows: &mut Emitter<'_, String, u64>) -> Result<()> {
        if let Some(n) = document.get("n")?.and_then(|n| n.as_u64()) {
            rows.emit(if self.0 == Refresh::Unique { n.to_string() } else { document.id().to_string() }, n);
        }
        Ok(())
    }

    fn reduction(&self) -> Reduction {
        Reduction::Sum
    }

    fn refresh(&self) -> Refresh {
        self.0
    }
}

#[test]
fn expired_documents_are_invisible_to_every_read() {
    let (db, clock) = in_memory_with_clock();
    let rev = db.insert("a", &json!({"n": 1, "tags": ["x"], "ends": at(10)})).unwrap();
    let rev = db.files().attach("a", &rev, "cover", "text/plain", &b"an ocean"[..]).unwrap();
    db.insert("b", &json!({"n": 2, "tags": ["x"], "ends": "2001-09-09T01:46:51Z"})).unwrap();
    db.insert("c", &json!({"n": 4, "tags": ["x", "y"]})).unwrap();
    db.expiration().add_rule(Expiry::at("ends")).unwrap();
    db.maintenance().checkpoint().unwrap();
    let prepared = db.prepare(field("n").ge(1)).unwrap();
    let sum = db.view(Sum(Refresh::Lazy)).unwrap();
    let seen = |expected: &[&str]| {
        let total = expected.iter().map(|id| 1 << (id.as_bytes()[0] - b'a')).sum::<u64>();
        let count = expected.len() as u64;
        assert_eq!(ids(&db), expected);
        for id in ["a", "b", "c"] {
            assert_eq!(db.get(id).unwrap().is_some(), expected.contains(&id), "{id}");
            assert_eq!(db.write(|tx| Ok(tx.get(id)?.is_some())).unwrap(), expected.contains(&id), "{id}");
            assert_eq!(db.find(field("_id").eq(id)).exists().unwrap(), expected.contains(&id));
        }
        assert_eq!(db.info().unwrap().document_count, count);
        assert_eq!(db.find(&prepared).count().unwrap(), count);
        assert_eq!(db.find(&prepared).limit(9).ids().unwrap().count() as u64, count);
        assert_eq!(db.find(field("tags").contains("x")).count().unwrap(), count);
        assert_eq!(db.find(field("_id").begins_with("")).count().unwrap(), count);
        assert_eq!(db.find(field("n").exists()).sum("n").unwrap().as_u64(), Some(total));
        assert_eq!(db.find(field("n").exists()).distinct("n").unwrap().len() as u64, count);
        assert_eq!(sum.query().reduce().unwrap().unwrap_or_default(), total);
        assert_eq!(sum.query().rows().unwrap().count() as u64, count);
    };
    let before = db.snapshot().unwrap();
    seen(&["a", "b", "c"]);
    clock.set(BEGINNING + 9_999);
    seen(&["a", "b", "c"]);
    clock.set(BEGINNING + 10_000);
    seen(&["b", "c"]);
    assert!(db.files().open("a", "cover").unwrap().is_none());
    for refused in [db.replace("a", &rev, &json!({})).unwrap_err(), db.delete("a", &rev).unwrap_err()] {
        assert_eq!(refused.kind(), ErrorKind::NotFound);
    }
    clock.set(BEGINNING + 11_000);
    seen(&["c"]);
    // A snapshot does not change.
    assert!(before.get("a").unwrap().is_some() && before.find(field("n").ge(1)).count().unwrap() == 3);
    let since = db.sequence();
    assert_eq!(db.expiration().delete_expired().unwrap(), 2);
    assert_eq!(db.expiration().delete_expired().unwrap(), 0);
    seen(&["c"]);
    let swept: Vec<_> = db.changes(since).unwrap().run().map(|change| change.unwrap()).collect();
    assert_eq!(
        swept.iter().map(|change| (change.id.as_str(), change.deleted)).collect::<Vec<_>>(),
        [("a", true), ("b", true)]
    );
    // Setting the clock back does not restore swept documents.
    clock.set(BEGINNING);
    seen(&["c"]);
    assert_sound(&db);
}

#[test]
fn ids_and_unique_values_of_expired_documents_can_be_reused() {
    let (db, clock) = in_memory_with_clock();
    db.expiration().add_rule(Expiry::at("ends")).unwrap();
    db.indexes().create(Index::on("email").unique()).unwrap();
    let unique = db.view(Sum(Refresh::Unique)).unwrap();
    let first = db.insert("a", &json!({"n": 1, "email": "x", "ends": at(1)})).unwrap();
    db.files().attach("a", &first, "cover", "text/plain", &b"an ocean"[..]).unwrap();
    assert_eq!(db.insert("b", &json!({"n": 2, "email": "x"})).unwrap_err().kind(), ErrorKind::Duplicate);
    assert_eq!(db.insert("b", &json!({"n": 1, "email": "y"})).unwrap_err().kind(), ErrorKind::Conflict);
    clock.set(BEGINNING + 1000);
    // Its unique value, its view key and its id can be reused.
    db.insert("b", &json!({"n": 1, "email": "x"})).unwrap();
    assert!(db.indexes().duplicates("email").unwrap().is_empty());
    let again = db.insert("a", &json!({"n": 3, "ends": at(2)})).unwrap();
    assert!(again.generation() > first.generation());
    assert!(db.files().open("a", "cover").unwrap().is_none(), "an attachment of the expired document is visible");
    assert_eq!(unique.query().reduce().unwrap(), Some(4));
    // A document that is already expired when written is never visible.
    db.insert("late", &json!({"n": 9, "email": "z", "ends": at(0)})).unwrap();
    db.insert("other", &json!({"email": "z"})).unwrap();
    assert!(db.get("late").unwrap().is_none());
    db.upsert("late", &json!({"n": 5})).unwrap();
    assert_eq!(ids(&db), ["a", "b", "late"]);
    assert_sound(&db);
}

#[test]
fn changed_expiration_times_take_effect() {
    let (db, clock) = in_memory_with_clock();
    db.expiration().add_rule(Expiry::at("session.ends").of_collection("s")).unwrap();
    assert_eq!(db.expiration().rules().len(), 1);
    for id in ["s:later", "s:never", "s:ends", "other"] {
        db.insert(id, &json!({"n": 1, "session": {"ends": at(5)}})).unwrap();
    }
    clock.set(BEGINNING + 1_500);
    assert_eq!(db.expiration().expire("other", None).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(db.expiration().expire("s:none", None).unwrap(), None);
    db.expiration().expire("s:later", Some(Duration::from_secs(60))).unwrap().unwrap();
    db.expiration().expire("s:never", None).unwrap().unwrap();
    assert_eq!(db.get("s:later").unwrap().unwrap().get("session.ends").unwrap(), Some(1_000_000_061.5.into()));
    clock.set(BEGINNING + 5_000);
    assert_eq!(ids(&db), ["other", "s:later", "s:never"]);
    assert_eq!(db.expiration().delete_expired().unwrap(), 1);
    clock.set(BEGINNING + 61_500);
    assert_eq!(ids(&db), ["other", "s:never"]);
    // Dropping a rule restores documents that were not swept.
    db.expiration().remove_rule(&Expiry::at("session.ends").of_collection("s")).unwrap();
    assert_eq!(ids(&db), ["other", "s:later", "s:never"]);
    assert!(db.expiration().rules().is_empty() && db.indexes().list().is_empty());
    assert_eq!(db.expiration().delete_expired().unwrap(), 0);
    assert_eq!(db.expiration().remove_rule(&Expiry::at("x")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(db.expiration().add_rule(Expiry::at("_id")).unwrap_err().kind(), ErrorKind::Invalid);
    assert_sound(&db);
}

#[test]
fn replicas_sweep_alike_and_unexpired_branches_stay() {
    let (one, clock) = in_memory_with_clock();
    let options = Options::new().durability(Durability::None).background(false).clock(clock.clone());
    let other = Database::in_memory_with(options).unwrap();
    for db in [&one, &other] {
        db.expiration().add_rule(Expiry::at("ends")).unwrap();
        db.insert("a", &json!({"n": 1, "ends": at(1)})).unwrap();
    }
    clock.set(BEGINNING + 2_000);
    assert_eq!((one.expiration().delete_expired().unwrap(), other.expiration().delete_expired().unwrap()), (1, 1));
    assert_eq!(one.revisions("a").unwrap(), other.revisions("a").unwrap());
    // Two branches, of which the winner expires.
    let [loser, winner] = ["1-0", "2-f"].map(|text| {
        let (generation, digit) = text.split_once('-').unwrap();
        format!("{generation}-{}", digit.repeat(32)).parse().unwrap()
    });
    let foreign = |revision, body: Value| Edit::Foreign {
        id: DocumentId::new("b").unwrap(),
        revisions: vec![revision],
        deleted: false,
        body: stemmadb::Value::from_serialize(&body).unwrap(),
        files: Vec::new(),
    };
    one.edit(foreign(loser, json!({"n": 1}))).unwrap();
    one.edit(foreign(winner, json!({"n": 2, "ends": at(1)}))).unwrap();
    assert!(one.get("b").unwrap().is_none());
    assert_eq!(one.expiration().delete_expired().unwrap(), 1);
    assert_eq!(one.get("b").unwrap().unwrap().revision(), &loser);
    assert_sound(&one);
}

#[test]
fn watch_reports_swept_documents() {
    let (db, clock) = in_memory_with_clock();
    db.expiration().add_rule(Expiry::at("ends")).unwrap();
    db.insert("gone", &json!({"n": 1, "ends": at(-1)})).unwrap();
    db.insert("ends", &json!({"n": 1, "ends": at(1)})).unwrap();
    let mut watch = db.watch(field("n").eq(1)).unwrap();
    let delta_ids =
        |delta: stemmadb::Delta| delta.events().map(|event| event.unwrap().id().to_string()).collect::<Vec<_>>();
    assert_eq!(delta_ids(watch.next_delta().unwrap().unwrap()), ["ends"]);
    db.insert("late", &json!({"n": 1, "ends": at(0)})).unwrap();
    clock.set(BEGINNING + 1_000);
    assert!(watch.next_within(Duration::ZERO).unwrap().is_none());
    assert_eq!(db.expiration().delete_expired().unwrap(), 3);
    let delta = watch.next_delta().unwrap().unwrap();
    assert!(matches!(delta.events().next(), Some(Ok(DeltaEvent::Removed { deleted: true, .. }))));
    assert_eq!(delta_ids(delta), ["ends"]);
}

#[test]
fn optimistic_transactions_are_retried_when_their_reads_expire() {
    let (db, clock) = in_memory_with_clock();
    db.expiration().add_rule(Expiry::at("ends")).unwrap();
    for by_query in [false, true] {
        db.upsert("a", &json!({"n": 1, "ends": clock.now_ms() / 1000 + 1})).unwrap();
        let mut runs = 0;
        let was_there = db
            .optimistic(|tx| {
                runs += 1;
                let is_there = if by_query { tx.find(field("n").eq(1))?.exists()? } else { tx.get("a")?.is_some() };
                clock.set(clock.now_ms() + 1_000);
                tx.upsert("seen", &json!({"there": is_there}))?;
                Ok(is_there)
            })
            .unwrap();
        assert_eq!((was_there, runs > 1), (false, true));
    }
}

#[test]
fn background_thread_sweeps_also_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sessions.stemma");
    let open = || Database::open_with(&path, Options::new().durability(Durability::None)).unwrap();
    let wait = |db: &Database, id: &str| {
        let until = Instant::now() + Duration::from_secs(60);
        while !db.revisions(id).unwrap()[0].deleted {
            assert!(Instant::now() < until, "`{id}` was never swept");
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let db = open();
    db.insert("before", &json!({"ends": 5})).unwrap();
    db.expiration().add_rule(Expiry::at("ends")).unwrap();
    wait(&db, "before");
    db.insert("stays", &json!({"ends": null})).unwrap();
    db.insert("soon", &json!({})).unwrap();
    db.expiration().expire("soon", Some(Duration::from_millis(30))).unwrap();
    wait(&db, "soon");
    db.insert("while closed", &json!({})).unwrap();
    db.expiration().expire("while closed", Some(Duration::from_millis(200))).unwrap();
    db.close().unwrap();
    // A read-only database writes nothing.
    std::thread::sleep(Duration::from_millis(210));
    let reading = Database::open_with(&path, Options::new().read_only(true)).unwrap();
    assert!(reading.get("while closed").unwrap().is_none() && reading.get("stays").unwrap().is_some());
    drop(reading);
    let db = open();
    wait(&db, "while closed");
    assert!(db.get("stays").unwrap().is_some());
    assert_sound(&db);
}

/// The expected documents and expiration rules: `s:` documents expire at `ends`, all documents at `meta.until`.
#[derive(Default, Clone)]
struct Model {
    documents: BTreeMap<String, Value>,
}

impl Model {
    fn end(id: &str, body: &Value) -> Option<i64> {
        let by_collection = body["ends"].as_i64().filter(|_| id.starts_with("s:"));
        let by_all = body["meta"]["until"].as_i64();
        [by_collection, by_all].into_iter().flatten().min().map(|seconds| seconds * 1000)
    }

    fn living(&self, now_ms: i64) -> BTreeMap<&str, &Value> {
        let is_there = |id: &str, body: &Value| Self::end(id, body).is_none_or(|end| end > now_ms);
        self.documents.iter().filter(|(id, body)| is_there(id, body)).map(|(id, body)| (id.as_str(), body)).collect()
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn declare_rules(db: &Database) {
    db.expiration().add_rule(Expiry::at("ends").of_collection("s")).unwrap();
    db.expiration().add_rule(Expiry::at("meta.until")).unwrap();
}

fn compare(db: &Database, model: &Model, now_ms: i64) {
    let living = model.living(now_ms);
    let expected: Vec<String> = living.keys().map(|id| (*id).to_owned()).collect();
    assert_eq!(ids(db), expected);
    assert_eq!(db.info().unwrap().document_count, living.len() as u64);
    for id in model.documents.keys() {
        assert_eq!(db.get(id).unwrap().is_some(), living.contains_key(id.as_str()), "{id}");
    }
    for n in 0..4 {
        let expected = living.values().filter(|body| body["n"] == n).count();
        assert_eq!(db.find(field("n").eq(n)).count().unwrap(), expected as u64);
        assert_eq!(db.find(field("n").eq(n)).limit(100).ids().unwrap().count(), expected);
        let expected = living.iter().filter(|(id, body)| id.starts_with("s:") && body["n"].as_i64() >= Some(n));
        let found = db.find(field("n").ge(n).and(field("_id").begins_with("s:"))).sort_descending("n").documents();
        assert_eq!(found.unwrap().len(), expected.count());
    }
    let total: u64 = living.values().filter_map(|body| body["n"].as_u64()).sum();
    assert_eq!(db.find(field("n").exists()).sum("n").unwrap().as_u64(), Some(total));
    let sum = db.view(Sum(Refresh::Lazy)).unwrap();
    assert_eq!(sum.query().reduce().unwrap().unwrap_or_default(), total);
    let sum_of_s: u64 =
        living.iter().filter(|(id, _)| id.starts_with("s:")).filter_map(|(_, body)| body["n"].as_u64()).sum();
    assert_eq!(sum.query().prefix("s:").reduce().unwrap().unwrap_or_default(), sum_of_s);
}

#[test]
fn random_steps_match_the_model() {
    let seed = setting("STEMMA_EXPIRY_SEED", 1);
    let mut random = Random::new(seed);
    let mut storage = TestStorage::new(seed);
    let clock = Clock::fixed_at(BEGINNING);
    let options = || {
        let options = Options::new().durability(Durability::Sync).background(false).clock(clock.clone());
        testing::with_small_limits(options, 96 << 10, 16 << 10, 40)
    };
    let mut db = storage.open(options()).unwrap();
    let mut model = Model::default();
    let mut has_rules = false;
    for step in 0..setting("STEMMA_EXPIRY_STEPS", 1_500) {
        let now_ms = clock.now_ms();
        let collection = if random.chance(500) { "s" } else { "x" };
        let id = format!("{collection}:{:02}", random.below(30));
        let is_living = model.living(if has_rules { now_ms } else { i64::MIN }).contains_key(id.as_str());
        let mut body = json!({"n": random.below(4)});
        if random.chance(600) {
            body["ends"] = json!(now_ms / 1000 - 3 + random.below(20) as i64);
        }
        if random.chance(300) {
            body["meta"] = json!({"until": now_ms / 1000 - 3 + random.below(40) as i64});
        }
        match random.below(20) {
            0..=6 => {
                db.upsert(&id, &body).unwrap();
                model.documents.insert(id, body);
            }
            7..=9 => {
                assert_eq!(db.insert(&id, &body).is_ok(), !is_living, "step {step}");
                if !is_living {
                    model.documents.insert(id, body);
                }
            }
            10..=12 => {
                let Some(leaf) = db.revisions(&id).unwrap().first().filter(|branch| !branch.deleted).cloned() else {
                    continue;
                };
                let is_deletion = random.chance(300);
                let done = match is_deletion {
                    true => db.delete(&id, &leaf.revisions[0]),
                    false => db.replace(&id, &leaf.revisions[0], &body),
                };
                assert_eq!(done.is_ok(), is_living, "step {step}");
                if is_living && is_deletion {
                    model.documents.remove(&id);
                } else if is_living {
                    model.documents.insert(id, body);
                }
            }
            13 => {
                // A transaction's own writes expire, too.
                let living = db
                    .write(|tx| {
                        tx.upsert(&id, &body)?;
                        tx.find(field("_id").eq(id.as_str()))?.exists()
                    })
                    .unwrap();
                let ends = Model::end(&id, &body).is_some_and(|end| end <= now_ms);
                assert_eq!(living, !(has_rules && ends), "step {step}");
                model.documents.insert(id, body);
            }
            // The clock is also set back, and by years for a short time.
            14 | 15 => clock.set(now_ms + random.below(6_000) as i64 - 2_000),
            18 if random.chance(100) => {
                clock.set(now_ms + 10 * 365 * 86_400_000);
                compare(&db, &model, if has_rules { clock.now_ms() } else { i64::MIN });
                clock.set(now_ms);
            }
            16 if has_rules => {
                let gone = model.documents.len() - model.living(now_ms).len();
                assert_eq!(db.expiration().delete_expired().unwrap(), gone as u64, "step {step}");
                let living = model.living(now_ms).into_iter().map(|(id, body)| (id.to_owned(), body.clone())).collect();
                model.documents = living;
            }
            17 => db.maintenance().checkpoint().unwrap(),
            18 if random.chance(300) => {
                // Everything was flushed, so only sweeps, which are not awaited, can be lost.
                db.flush().unwrap();
                let crashed = storage.crash_image(random.number());
                drop(db);
                storage = crashed;
                db = storage.open(options()).unwrap();
                db.maintenance().compact().unwrap();
            }
            19 if !has_rules && step > 100 => {
                declare_rules(&db);
                has_rules = true;
            }
            _ => {}
        }
        if random.chance(200) {
            compare(&db, &model, if has_rules { clock.now_ms() } else { i64::MIN });
        }
    }
    assert!(has_rules);
    assert_sound(&db);
}

/// A crash at any time during the declaration of a rule or a sweep leaves a database in which the rule holds when it is
/// declared again.
#[test]
fn crash_during_declaration_or_sweep_is_recoverable() {
    for seed in 0..setting("STEMMA_EXPIRY_CRASHES", 25) {
        let storage = TestStorage::new(seed);
        let clock = Clock::fixed_at(BEGINNING);
        let options = || {
            let options = Options::new().durability(Durability::Sync).background(false).clock(clock.clone());
            testing::with_small_limits(options, 96 << 10, 16 << 10, 40)
        };
        let db = storage.open(options()).unwrap();
        for n in 0..600 {
            let body = json!({"n": n, "ends": at(if n % 3 == 0 { -1 } else { 100 })});
            db.with_durability(Durability::None)
                .edit(Edit::Insert {
                    id: DocumentId::new(format!("{n:03}")).unwrap(),
                    body: stemmadb::Value::from_serialize(&body).unwrap(),
                })
                .unwrap();
        }
        db.flush().unwrap();
        let mut image = None;
        let mut steps = 0;
        db.expiration()
            .add_rule_with_progress(Expiry::at("ends"), |_| {
                steps += 1;
                if steps == seed % 4 {
                    image = Some(storage.crash_image(seed));
                }
            })
            .unwrap();
        if seed % 2 == 0 {
            assert_eq!(db.expiration().delete_expired().unwrap(), 200);
        }
        let image = image.unwrap_or_else(|| storage.crash_image(seed));
        let db = image.open(options()).unwrap();
        db.expiration().add_rule(Expiry::at("ends")).unwrap();
        assert_eq!(db.find(field("n").exists()).count().unwrap(), 400, "seed {seed}");
        db.expiration().delete_expired().unwrap();
        assert_eq!(
            db.changes(Sequence::ZERO).unwrap().run().filter(|change| change.as_ref().unwrap().deleted).count(),
            200
        );
        assert_sound(&db);
    }
}
