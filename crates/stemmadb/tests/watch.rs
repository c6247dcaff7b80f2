//! Live queries against the same query asked afresh: whatever is written, by whom, and however late the reader looks.
//!
//! `STEMMA_WATCH_CASES` sets the number of cases (default 40, each of about 150 operations), `STEMMA_WATCH_SEED` the first seed.

mod oracle;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oracle::bodies::{Random, body};
use stemmadb::testing::{Place, small};
use stemmadb::{
    Database, DocumentId, Durability, Edit, ErrorKind, Event, IndexPolicy, Options, PathEvent, Query, Revision,
    Selector, Value, Watch, field,
};

const NOW: Duration = Duration::ZERO;
const SOON: Duration = Duration::from_secs(60);

/// Selectors of every kind, over the fields that [`body`] makes.
const SELECTORS: [&str; 40] = [
    r#"{}"#,
    r#"{"year": 1}"#,
    r#"{"year": 1.0, "title": {"$exists": true}}"#,
    r#"{"year": {"$in": [0, "sol", null]}}"#,
    r#"{"year": {"$gt": 0}}"#,
    r#"{"year": {"$ne": 1}}"#,
    r#"{"year": {"$nin": [1, 2]}}"#,
    r#"{"year": {"$exists": false}}"#,
    r#"{"year": {"$type": "array"}}"#,
    r#"{"year": {"$mod": [2, 1]}}"#,
    r#"{"title": {"$beginsWith": "sol"}}"#,
    r#"{"title": {"$regex": "l.r"}}"#,
    r#"{"title": ""}"#,
    r#"{"title": null}"#,
    r#"{"title": true}"#,
    r#"{"title": "\u0000"}"#,
    r#"{"tags": {"$all": [1, 2]}}"#,
    r#"{"tags": {"$all": ["solaris"]}}"#,
    r#"{"tags": {"$elemMatch": {"$eq": "sol"}}}"#,
    r#"{"tags": {"$elemMatch": {"$gt": 0}}}"#,
    r#"{"tags": {"$elemMatch": {"year": {"$exists": true}}}}"#,
    r#"{"tags": {"$allMatch": {"$type": "number"}}}"#,
    r#"{"tags": {"$size": 2}}"#,
    r#"{"tags": []}"#,
    r#"{"tags.0": 1}"#,
    r#"{"tags.0.year": {"$exists": true}}"#,
    r#"{"many": 7}"#,
    r#"{"many": {"$in": [250]}}"#,
    r#"{"many.250": 250}"#,
    r#"{"large": {"$exists": true}}"#,
    r#"{"large": {"$gt": "0123456789abcdef0123456789abcdef"}}"#,
    r#"{"deep.year": {"$lt": 9007199254740993}}"#,
    r#"{"deep.deep": {"$keyMapMatch": {"$eq": "year"}}}"#,
    r#"{"a\\.b": {"$gte": 9007199254740992}}"#,
    r#"{"$or": [{"year": 1}, {"title": "sol"}, {"_id": "d3"}]}"#,
    r#"{"$or": [{"year": 1, "price": {"$gt": 0}}, {"note": null}, {"tags": {"$in": [1, [1]]}}]}"#,
    r#"{"$nor": [{"year": {"$lt": 1}}, {"title": {"$exists": true}}]}"#,
    r#"{"_id": {"$in": ["d1", "d2", "d5"]}, "price": {"$exists": true}}"#,
    r#"{"_id": {"$gt": "d4"}, "$not": {"price": null}}"#,
    r#"{"_rev": {"$gt": "2"}}"#,
];

fn selector(text: &str) -> Selector {
    Selector::parse(&Value::parse(text.as_bytes()).unwrap()).unwrap()
}

fn any_selector(random: &mut Random) -> &'static str {
    SELECTORS[random.below(SELECTORS.len() as u64) as usize]
}

type Answer = BTreeMap<String, Revision>;

/// The answer as a fresh query gives it.
fn answer(db: &Database, selector: &Selector) -> Answer {
    let documents = db.find(selector.clone()).run().unwrap();
    documents.map(|found| found.unwrap()).map(|found| (found.id().to_string(), *found.revision())).collect()
}

/// One watch, and what its reader knows.
struct Reader {
    selector: Selector,
    text: &'static str,
    watch: Option<Watch>,
    known: Answer,
    /// The answer after each write since it began.
    history: BTreeMap<u64, Answer>,
}

impl Reader {
    fn new(db: &Database, text: &'static str) -> Self {
        let selector = selector(text);
        let watch = db.watch(selector.clone()).unwrap();
        let history = BTreeMap::from([(db.sequence().get(), answer(db, &selector))]);
        Reader { selector, text, watch: Some(watch), known: Answer::new(), history }
    }

    fn note(&mut self, db: &Database) {
        self.history.insert(db.sequence().get(), answer(db, &self.selector));
    }

    /// Reads up to `count` deltas, each of which must lead to the answer of its sequence.
    fn read(&mut self, count: usize) {
        let watch = self.watch.as_mut().unwrap();
        for _ in 0..count {
            let Some(delta) = watch.next_within(NOW).unwrap() else { break };
            assert_eq!(delta.sequence(), watch.reached());
            apply(&mut self.known, &delta, self.text);
            let (_, expected) = self.history.range(..=delta.sequence().get()).next_back().unwrap();
            assert_eq!(&self.known, expected, "{} at {}", self.text, delta.sequence());
        }
    }

    fn read_all(&mut self) {
        self.read(usize::MAX);
        assert_eq!(&self.known, self.history.values().next_back().unwrap(), "{} after everything", self.text);
    }
}

fn apply(known: &mut Answer, delta: &stemmadb::Delta, text: &str) {
    assert!(delta.is_first() || !delta.is_empty(), "{text}: an empty delta");
    let mut count = 0;
    for event in delta.events() {
        count += 1;
        match event.unwrap() {
            Event::Added(document) => {
                let before = known.insert(document.id().to_string(), *document.revision());
                assert_eq!(before, None, "{text}: {} added twice", document.id());
            }
            Event::Changed(document) => {
                let before = known.insert(document.id().to_string(), *document.revision());
                assert!(before.is_some(), "{text}: {} changed but was not there", document.id());
            }
            Event::Removed { id, .. } => {
                assert!(known.remove(id.as_str()).is_some(), "{text}: {id} removed but was not there");
            }
        }
    }
    assert_eq!(count, delta.len());
}

fn options(random: &mut Random) -> Options {
    let mut options = Options::new().durability(Durability::None).background(false);
    if random.below(2) == 0 {
        let excluded = ["year", "tags", "deep.year"][random.below(3) as usize];
        let policy = IndexPolicy::new([], [excluded]).unwrap().with_document_terms_max(6).unwrap();
        options = options.index(policy);
    }
    small(options, 20 << 10, 16 << 10, 64)
}

fn edit(db: &Database, random: &mut Random) -> Edit {
    let id = DocumentId::new(format!("d{}", random.below(12))).unwrap();
    let value = body(random.below(400));
    let branches = db.revisions(id.as_str()).unwrap();
    let living: Vec<Revision> =
        branches.iter().filter(|branch| !branch.deleted).map(|branch| branch.revisions[0]).collect();
    match random.below(10) {
        0..=3 => Edit::Upsert { id, body: value },
        4..=6 if !living.is_empty() => Edit::Delete { id, revision: *random.pick(&living) },
        7 if !living.is_empty() => Edit::Replace { id, revision: *random.pick(&living), body: value },
        _ => {
            let mut revisions = branches.first().map(|branch| branch.revisions.clone()).unwrap_or_default();
            revisions.drain(..(random.below(3) as usize).min(revisions.len()));
            let generation = revisions.first().map_or(1, |parent| parent.generation() + 1);
            let made: Revision = format!("{generation}-{:032x}", random.below(1000)).parse().unwrap();
            revisions.insert(0, made);
            Edit::Foreign { id, revisions, deleted: random.below(4) == 0, body: value, files: Vec::new() }
        }
    }
}

/// Writes in one of the ways there are.
fn write(db: &Database, random: &mut Random) {
    match random.below(4) {
        0 => {
            let edits = (0..random.below(20)).map(|_| edit(db, random)).collect();
            db.bulk(edits).unwrap();
        }
        1 => {
            let edits: Vec<Edit> = (0..random.below(6)).map(|_| edit(db, random)).collect();
            db.write(|transaction| {
                edits.into_iter().for_each(|edit| drop(transaction.edit(edit)));
                Ok(())
            })
            .unwrap();
        }
        2 if random.below(8) == 0 => {
            db.local_documents().put("_local/note", None, &body(1)).unwrap();
        }
        _ => drop(db.edit(edit(db, random))),
    }
}

fn run_case(seed: u64) {
    let mut random = Random(seed);
    let place = Place::new(seed);
    let options = options(&mut random);
    let mut db = place.open(options.clone()).unwrap();
    let mut readers: Vec<Reader> = Vec::new();
    for _ in 0..150 {
        match random.below(24) {
            0 | 1 if readers.len() < 12 => readers.push(Reader::new(&db, any_selector(&mut random))),
            2 if readers.len() > 6 => drop(readers.swap_remove(0)),
            3..=5 if !readers.is_empty() => {
                let at = random.below(readers.len() as u64) as usize;
                let count = random.below(3) as usize;
                readers[at].read(count);
            }
            6 if !readers.is_empty() => {
                let at = random.below(readers.len() as u64) as usize;
                readers[at].read_all();
            }
            7 => db.maintenance().checkpoint().unwrap(),
            8 => drop(db.maintenance().compact().unwrap()),
            9 => {
                // More than an inbox holds.
                let large = |number: u64| format!("{number}").repeat(100_000);
                for number in 0..4 {
                    let id = DocumentId::new(format!("d{number}")).unwrap();
                    let value = Value::parse(format!(r#"{{"large": "{}", "year": 1}}"#, large(number)).as_bytes());
                    db.edit(Edit::Upsert { id, body: value.unwrap() }).unwrap();
                    readers.iter_mut().for_each(|reader| reader.note(&db));
                }
            }
            10 => {
                let suspended: Vec<_> = readers
                    .iter_mut()
                    .map(|reader| {
                        reader.read(1);
                        reader.watch.take().unwrap().suspend().unwrap()
                    })
                    .collect();
                db.close().unwrap();
                db = place.open(options.clone()).unwrap();
                write(&db, &mut random);
                for (reader, suspended) in readers.iter_mut().zip(suspended) {
                    reader.note(&db);
                    reader.watch = Some(db.resume(suspended).unwrap());
                }
            }
            _ => {
                write(&db, &mut random);
                readers.iter_mut().for_each(|reader| reader.note(&db));
            }
        }
    }
    readers.iter_mut().for_each(Reader::read_all);
    db.close().unwrap();
    for mut reader in readers {
        assert!(reader.watch.as_mut().unwrap().next_delta().unwrap().is_none(), "an end");
    }
}

fn number_from(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn what_a_watch_tells_adds_up_to_the_answer() {
    let first = number_from("STEMMA_WATCH_SEED", 1);
    for seed in first..first + number_from("STEMMA_WATCH_CASES", 40) {
        println!("seed {seed}");
        run_case(seed);
    }
}

/// Writers, readers of different patience, and threads of the database's own.
#[test]
fn readers_of_any_patience_come_to_the_same_answer() {
    let db =
        Database::in_memory_with(small(Options::new().durability(Durability::None), 200 << 10, 64 << 10, 64)).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|writer| {
                let db = &db;
                scope.spawn(move || {
                    let mut random = Random(writer);
                    (0..100).for_each(|_| write(db, &mut random));
                })
            })
            .collect();
        for reader in 0..6 {
            let (db, is_over) = (&db, &is_over);
            scope.spawn(move || {
                let mut random = Random(100 + reader);
                let text = any_selector(&mut random);
                let mut watch = db.watch(selector(text)).unwrap();
                let (mut known, mut last) = (Answer::new(), 0);
                loop {
                    let is_last = is_over.load(Ordering::Acquire);
                    match watch.next_within(Duration::from_millis(50)).unwrap() {
                        Some(delta) => {
                            assert!(delta.is_first() || delta.sequence().get() > last, "sequences ascend");
                            last = delta.sequence().get();
                            apply(&mut known, &delta, text);
                        }
                        None if is_last => break,
                        None => {}
                    }
                    if reader % 2 == 0 {
                        std::thread::sleep(Duration::from_millis(random.below(20)));
                    }
                }
                assert_eq!(known, answer(db, &selector(text)), "{text}");
            });
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        is_over.store(true, Ordering::Release);
    });
}

#[test]
fn a_transaction_is_one_delta() {
    let db = Database::in_memory();
    let mut watch = db.watch(field("kind").eq("order")).unwrap();
    assert!(watch.next_within(NOW).unwrap().unwrap().is_first());
    let order = |state: &str| serde_json::json!({"kind": "order", "state": state});
    db.write(|tx| {
        for number in 0..50 {
            tx.insert(&format!("order-{number}"), &order("new"))?;
            tx.upsert("summary", &serde_json::json!({"count": number}))?;
        }
        tx.upsert("order-0", &order("paid"))?;
        let gone = tx.insert("gone", &order("new"))?;
        tx.delete("gone", &gone).map(|_| ())
    })
    .unwrap();
    let delta = watch.next_within(SOON).unwrap().unwrap();
    assert_eq!((delta.len(), delta.sequence()), (50, db.sequence()));
    let paid = delta.events().map(|event| event.unwrap()).find(|event| event.id().as_str() == "order-0").unwrap();
    let Event::Added(paid) = paid else { panic!("{paid:?}") };
    assert_eq!(paid.get("state").unwrap(), Some("paid".into()));
    assert!(watch.next_within(NOW).unwrap().is_none());
}

#[test]
fn a_removed_document_was_deleted_or_no_longer_matches() {
    let db = Database::in_memory();
    let first = db.insert("a", &serde_json::json!({"open": true})).unwrap();
    db.insert("b", &serde_json::json!({"open": true})).unwrap();
    let mut watch = db.watch(field("open").eq(true)).unwrap();
    assert_eq!(watch.next_within(NOW).unwrap().unwrap().len(), 2);
    let removed = |watch: &mut Watch| {
        let delta = watch.next_within(SOON).unwrap().unwrap();
        let Event::Removed { id, deleted } = delta.events().next().unwrap().unwrap() else { panic!("{delta:?}") };
        (id.to_string(), deleted)
    };
    db.delete("a", &first).unwrap();
    assert_eq!(removed(&mut watch), ("a".to_owned(), true));
    db.upsert("b", &serde_json::json!({"open": false})).unwrap();
    assert_eq!(removed(&mut watch), ("b".to_owned(), false));
}

#[test]
fn a_live_query_is_a_set() {
    let db = Database::in_memory();
    let all = || Query::new(Selector::everything());
    for query in [all().sort("a"), all().limit(3), all().skip(1), all().fields(["a"])] {
        assert_eq!(db.watch(query).err().map(|error| error.kind()), Some(ErrorKind::Invalid));
    }
    assert_eq!(db.watch(field("").eq(1)).err().map(|error| error.kind()), Some(ErrorKind::Invalid));
}

#[test]
fn a_watch_goes_on_only_where_it_was() {
    let (one, other) = (Database::in_memory(), Database::in_memory());
    let watch = one.watch(Selector::everything()).unwrap();
    assert_eq!(watch.suspend().unwrap_err().kind(), ErrorKind::Invalid, "nothing was told yet");
    let mut watch = one.watch(Selector::everything()).unwrap();
    watch.next_delta().unwrap();
    let suspended = watch.suspend().unwrap();
    assert_eq!(other.resume(suspended.clone()).err().unwrap().kind(), ErrorKind::Invalid);
    assert!(one.resume(suspended).unwrap().next_within(NOW).unwrap().is_none());
}

#[test]
fn a_watch_outlives_its_database_and_ends() {
    let db = Database::in_memory();
    let mut watch = db.watch(Selector::everything()).unwrap();
    watch.next_delta().unwrap();
    let waiting = std::thread::spawn(move || {
        let told: Vec<_> = watch.by_ref().map(|delta| delta.unwrap().len()).collect();
        (told, watch.next_within(NOW).unwrap().is_none())
    });
    db.insert("a", &serde_json::json!({})).unwrap();
    drop(db);
    assert_eq!(waiting.join().unwrap(), (vec![1], true));
}

/// What a subscription has told so far, as text.
fn told(subscription: &mut stemmadb::PathSubscription) -> Vec<String> {
    let mut told = Vec::new();
    while let Some(change) = subscription.next_within(NOW).unwrap() {
        let paths = change.paths.iter().map(|event| match event {
            PathEvent::Added(path) => format!("+{path}"),
            PathEvent::Changed(path) => format!("~{path}"),
            PathEvent::Removed(path) => format!("-{path}"),
        });
        let deleted = if change.document.is_none() { " (deleted)" } else { "" };
        told.push(format!("{} {}{deleted}", change.id, paths.collect::<Vec<_>>().join(" ")));
    }
    told
}

#[test]
fn a_subscription_to_paths_tells_what_changed_there() {
    let db = Database::in_memory();
    let mut status = db.subscribe_paths(["orders/+/status"]).unwrap();
    let mut shops = db.subscribe_paths(["_id/shops/+", "name"]).unwrap();
    let body = |status: &str| serde_json::json!({"orders": {"1": {"status": status}, "2": {"note": "x"}}});
    db.insert("a", &body("new")).unwrap();
    db.upsert("a", &body("new")).unwrap();
    db.upsert("a", &body("paid")).unwrap();
    db.upsert("a", &serde_json::json!({"orders": {}})).unwrap();
    let last = db.upsert("shops/1", &body("new")).unwrap();
    db.insert("b", &serde_json::json!({"name": "B"})).unwrap();
    db.delete("shops/1", &last).unwrap();
    assert_eq!(
        told(&mut status),
        [
            "a +orders/1/status",
            "a ~orders/1/status",
            "a -orders/1/status",
            "shops/1 +orders/1/status",
            "shops/1 -orders/1/status (deleted)"
        ]
    );
    assert_eq!(told(&mut shops), ["shops/1 +_id", "b +name", "shops/1 -_id (deleted)"]);
    assert!(db.subscribe_paths(["#/a"]).is_err());
}

#[test]
fn a_slow_subscription_to_paths_hears_of_every_document_that_changed() {
    let db = Database::in_memory();
    let mut all = db.subscribe_paths(["n"]).unwrap();
    let mut ids = db.subscribe_paths(["_id/d/#"]).unwrap();
    let large = "x".repeat(100_000);
    for number in 0..600 {
        let id = format!("{}/{}", if number % 2 == 0 { "d" } else { "e" }, number % 300);
        let text = if number < 30 { large.as_str() } else { "" };
        db.upsert(&id, &serde_json::json!({"n": number, "large": text})).unwrap();
    }
    let mut known = BTreeMap::new();
    for subscription in [&mut all, &mut ids] {
        known.clear();
        while let Some(change) = subscription.next_within(NOW).unwrap() {
            known.insert(change.id.to_string(), change.document.unwrap().get("n").unwrap());
        }
        for (id, number) in &known {
            assert_eq!(number, &db.get(id).unwrap().unwrap().get("n").unwrap());
        }
        if known.len() == 150 {
            assert!(known.keys().all(|id| id.starts_with("d/")));
        } else {
            assert_eq!(known.len(), 300);
        }
    }
    assert_eq!(known.len(), 150);
}
