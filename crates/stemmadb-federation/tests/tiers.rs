//! Tiered databases: their answers equal those of one database, also while documents move, and after crashes at every
//! step of a move.

mod cases;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use cases::{Random, body, compare, seeds};
use parking_lot::Mutex;
use serde_json::json;
use stemmadb::testing::TestStorage;
use stemmadb::{
    Database, DocumentId, Durability, Edit, ErrorKind, Expiry, Options, Revision, Selector, Sequence, Value, field,
};
use stemmadb_federation::{MigrationReport, Tier, TierPolicy, TieredDatabase};

/// The number of questions; `STEMMA_FEDERATION_CASES` replaces it.
const CASES: u64 = 2_000;
/// The questions about the same documents.
const ROUND: u64 = 25;

const DAY: Duration = Duration::from_secs(86_400);

fn two_tiers(policy: TierPolicy) -> (TieredDatabase, Database, Database) {
    let (hot, cold) = (Database::in_memory(), Database::in_memory());
    let db = TieredDatabase::open(&hot, [Tier::new("cold", &cold, policy)]).unwrap();
    (db, hot, cold)
}

fn everything() -> TierPolicy {
    TierPolicy::new().documents_max(0)
}

fn ids(db: &Database) -> Vec<String> {
    db.snapshot().unwrap().list().run().map(|listed| listed.unwrap().id.to_string()).collect()
}

#[test]
fn policies_choose_by_age_size_use_and_capacity() {
    let document = |day: &str, size: usize| json!({"day": day, "fill": "x".repeat(size)});
    let fill = |db: &TieredDatabase| {
        db.insert("a", &document("2020-01-01", 10)).unwrap();
        db.insert("b", &document("2020-03-01", 3_000)).unwrap();
        db.insert("c", &document("2999-01-01", 10)).unwrap();
        db.insert("_design/d", &json!({"day": "2020-01-01"})).unwrap();
    };
    let later = SystemTime::now() + 10 * DAY;
    let dated = TierPolicy::new().older_than(DAY).date_field("day");
    for (policy, now, moved) in [
        (TierPolicy::new(), later, vec![]),
        (dated.clone(), later, vec!["a", "b"]),
        (dated.clone().only(field("day").lt("2020-02-01")), later, vec!["a"]),
        (dated.stub(["day"]), later, vec!["a", "b"]),
        (TierPolicy::new().older_than(20 * DAY), later, vec![]),
        (TierPolicy::new().older_than(5 * DAY), later, vec!["a", "b", "c"]),
        (TierPolicy::new().larger_than(2_000), later, vec!["b"]),
        (TierPolicy::new().unused_for(20 * DAY), later, vec![]),
        (TierPolicy::new().unused_for(5 * DAY), later, vec!["a", "b", "c"]),
        // The design document is one of the two that stay.
        (TierPolicy::new().documents_max(2), later, vec!["a", "b"]),
        (TierPolicy::new().bytes_max(1), later, vec!["a", "b", "c"]),
        (TierPolicy::new().bytes_max(1 << 30), later, vec![]),
    ] {
        let (db, hot, cold) = two_tiers(policy.clone());
        fill(&db);
        let report = db.migrate_at(now, &|| false).unwrap();
        assert_eq!(ids(&cold), moved, "{policy:?}");
        assert_eq!(report.moved_count, moved.len() as u64, "{policy:?}");
        let left = if policy.to_value().unwrap().get("stub").is_some() { 4 } else { 4 - moved.len() };
        assert_eq!(ids(&hot).len(), left, "{policy:?}");
        assert_eq!(db.find(Selector::everything()).count().unwrap(), 4, "{policy:?}");
        let status = db.status().unwrap();
        let counts: Vec<u64> = status.iter().map(|tier| tier.document_count).collect();
        assert_eq!(counts, [4 - moved.len() as u64, moved.len() as u64], "{policy:?}");
        assert_eq!(db.migrate_at(now, &|| false).unwrap(), MigrationReport::default());
    }
}

#[test]
fn documents_that_are_read_stay() {
    let (db, hot, cold) = two_tiers(TierPolicy::new().unused_for(5 * DAY));
    for id in ["a", "b"] {
        db.insert(id, &json!({})).unwrap();
    }
    db.get("b").unwrap();
    db.migrate_at(SystemTime::now() + 5 * DAY, &|| false).unwrap();
    assert_eq!((ids(&hot), ids(&cold)), (vec!["b".to_owned()], vec!["a".to_owned()]));
    // The times survive a restart, and are forgotten once they do not count any more.
    drop(db);
    let db = TieredDatabase::open(&hot, [Tier::new("cold", &cold, TierPolicy::new().unused_for(5 * DAY))]).unwrap();
    db.migrate_at(SystemTime::now() + 5 * DAY, &|| false).unwrap();
    assert_eq!(ids(&hot), ["b"]);
    db.migrate_at(SystemTime::now() + 6 * DAY, &|| false).unwrap();
    assert!(ids(&hot).is_empty());
    assert!(hot.keys("stemma.tiers").unwrap().all::<Value>().unwrap().iter().all(|(key, _)| !key.starts_with("read/")));
}

#[test]
fn documents_return_when_they_are_written() {
    for policy in [everything(), everything().stub(["n"])] {
        let (db, hot, cold) = two_tiers(policy);
        let first = db.insert("a", &json!({"n": 1})).unwrap();
        let blob = hot.files().store(&b"content"[..]).unwrap();
        let attach = Edit::Attach {
            id: DocumentId::new("a").unwrap(),
            revision: first,
            name: "file".into(),
            content_type: "text/plain".into(),
            content: blob,
        };
        let first = db.edit(attach).unwrap();
        db.migrate().unwrap();
        assert_eq!(db.tier_of("a").unwrap(), Some("cold"));
        assert_eq!(db.get("a").unwrap().unwrap().revision(), &first);
        assert!(db.open_file("a", "file").unwrap().is_some());
        assert_eq!(db.insert("a", &json!({})).unwrap_err().kind(), ErrorKind::Conflict);

        // The revision that the reader knows is current although the document returned.
        let second = db.replace("a", &first, &json!({"n": 2})).unwrap();
        assert_eq!(db.tier_of("a").unwrap(), Some("hot"));
        assert_eq!(db.replace("a", &first, &json!({"n": 3})).unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(hot.get("a").unwrap().unwrap().attachments().unwrap().len(), 1);
        assert_eq!(db.find(Selector::everything()).count().unwrap(), 1);
        let live = hot.snapshot().unwrap().revisions("a").unwrap();
        assert_eq!(live.len(), 1, "the history is one line: {live:?}");

        // It moves again, is deleted there, and is created again.
        assert_eq!(db.migrate().unwrap().moved_count, 1);
        assert_eq!(db.get("a").unwrap().unwrap().revision(), &second);
        db.delete("a", &second).unwrap();
        assert!(db.get("a").unwrap().is_none());
        assert_eq!(db.find(Selector::everything()).count().unwrap(), 0);
        assert_eq!(db.migrate().unwrap().deleted_count, 1);
        assert!(cold.get("a").unwrap().is_none() && db.get("a").unwrap().is_none());
        db.insert("a", &json!({"n": 9})).unwrap();
        assert_eq!(db.migrate().unwrap().moved_count, 1);
        assert_eq!(db.find(field("n").eq(9)).count().unwrap(), 1);
        for tier in [&hot, &cold] {
            assert_eq!(tier.snapshot().unwrap().revisions("a").unwrap().len(), 1);
        }
    }
}

#[test]
fn conflicts_stay_and_direct_writes_win() {
    let (db, hot, cold) = two_tiers(everything());
    let foreign = |id: &str, revision: &str| Edit::Foreign {
        id: DocumentId::new(id).unwrap(),
        revisions: vec![revision.parse().unwrap()],
        deleted: false,
        body: Value::from_serialize(&json!({"of": revision})).unwrap(),
        files: Vec::new(),
    };
    hot.edit(foreign("a", "1-a")).unwrap();
    hot.edit(foreign("a", "1-b")).unwrap();
    db.insert("b", &json!({})).unwrap();
    let report = db.migrate().unwrap();
    assert_eq!((report.moved_count, report.refused_count), (1, 1));
    assert_eq!(db.tier_of("a").unwrap(), Some("hot"));
    // A write that does not go through the tiered database begins a new document.
    hot.insert("b", &json!({"new": true})).unwrap();
    assert_eq!(db.find(Selector::everything()).count().unwrap(), 2);
    assert!(db.get("b").unwrap().unwrap().get("new").unwrap().is_some());
    db.migrate().unwrap();
    assert_eq!(db.find(Selector::everything()).count().unwrap(), 2);
    assert!(cold.get("b").unwrap().unwrap().get("new").unwrap().is_some());
}

#[test]
fn documents_expire_in_their_tier() {
    let (hot, cold) = (Database::in_memory(), Database::in_memory());
    hot.expiration().add_rule(Expiry::at("end")).unwrap();
    let db = TieredDatabase::open(&hot, [Tier::new("cold", &cold, everything())]).unwrap();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    db.insert("a", &json!({"end": now + 0.3})).unwrap();
    db.insert("b", &json!({})).unwrap();
    db.migrate().unwrap();
    assert_eq!(ids(&cold), ["a", "b"]);
    std::thread::sleep(Duration::from_millis(400));
    assert!(db.get("a").unwrap().is_none());
    assert_eq!(db.find(Selector::everything()).count().unwrap(), 1);
}

#[test]
fn wrong_databases_are_refused() {
    let (hot, cold, other) = (Database::in_memory(), Database::in_memory(), Database::in_memory());
    other.insert("x", &json!({})).unwrap();
    let open = |name: &str, cold: &Database| TieredDatabase::open(&hot, [Tier::new(name, cold, everything())]);
    assert_eq!(TieredDatabase::open(&hot, []).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(open("cold", &other).unwrap_err().kind(), ErrorKind::Invalid);
    open("cold", &cold).unwrap();
    assert_eq!(open("warm", &cold).unwrap_err().kind(), ErrorKind::Conflict);
    open("cold", &cold).unwrap();
}

#[test]
fn an_older_hot_tier_is_compared() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hot");
    let cold = Database::in_memory();
    let open = |hot: &Database| TieredDatabase::open(hot, [Tier::new("cold", &cold, everything())]).unwrap();
    {
        let hot = Database::open(&path).unwrap();
        open(&hot).insert("a", &json!({})).unwrap();
    }
    stemmadb::testing::copy_directory(&path, &directory.path().join("older")).unwrap();
    {
        let hot = Database::open(&path).unwrap();
        let db = open(&hot);
        db.insert("b", &json!({})).unwrap();
        assert_eq!(db.migrate().unwrap().moved_count, 2);
    }
    let hot = Database::open(directory.path().join("older")).unwrap();
    let db = open(&hot);
    assert_eq!(db.find(Selector::everything()).count().unwrap(), 2);
    assert_eq!(db.tier_of("a").unwrap(), Some("hot"));
    assert_eq!(db.tier_of("b").unwrap(), Some("cold"));
    db.migrate().unwrap();
    db.migrate().unwrap();
    assert_eq!(db.find(Selector::everything()).count().unwrap(), 2);
    assert_eq!(db.tier_of("a").unwrap(), Some("cold"));
}

/// Writes the state of a document, with its history, into the database that is compared.
fn mirror(hot: &Database, whole: &Database, id: &str) {
    let snapshot = hot.snapshot().unwrap();
    for branch in snapshot.revisions(id).unwrap().into_iter().take(1) {
        let leaf = snapshot.get_leaf(id, &branch.revisions[0]).unwrap().unwrap();
        let body = if branch.deleted { Value::Object(stemmadb::Object::new()) } else { leaf.value().unwrap() };
        let (id, revisions, deleted) = (DocumentId::new(id).unwrap(), branch.revisions, branch.deleted);
        whole.edit(Edit::Foreign { id, revisions, deleted, body, files: Vec::new() }).unwrap();
    }
}

/// Writes random documents through the tiered database.
fn write(random: &mut Random, db: &TieredDatabase, hot: &Database, whole: &Database, count: u64) {
    for _ in 0..count {
        let id = format!("d{:02}", random.below(90));
        let known = db.get(&id).unwrap().map(|document| *document.revision());
        let body = body(random);
        match (random.below(6), known) {
            (0, Some(revision)) => drop(db.delete(&id, &revision).unwrap()),
            (1, Some(revision)) => drop(db.replace(&id, &revision, &body).unwrap()),
            (2, Some(_)) => assert_eq!(db.insert(&id, &body).unwrap_err().kind(), ErrorKind::Conflict),
            (3, Some(_)) => assert!(db.bring_back(&id).is_ok()),
            _ => drop(db.upsert(&id, &body).unwrap()),
        }
        if db.tier_of(&id).unwrap() != Some("cold") && db.tier_of(&id).unwrap() != Some("warm") {
            mirror(hot, whole, &id);
        }
    }
}

fn states(changes: impl IntoIterator<Item = stemmadb::Result<stemmadb::Change>>) -> BTreeMap<String, (Revision, bool)> {
    let state = |change: stemmadb::Change| (change.id.to_string(), (change.revision, change.deleted));
    changes.into_iter().map(|change| state(change.unwrap())).collect()
}

#[test]
fn answers_equal_those_of_one_database() {
    for seed in seeds(CASES, ROUND) {
        let mut random = Random(seed);
        random.below(2);
        let (hot, warm, cold) = (Database::in_memory(), Database::in_memory(), Database::in_memory());
        let policy = |random: &mut Random| {
            let policy = match random.below(4) {
                0 => TierPolicy::new().documents_max(random.below(40)),
                1 => TierPolicy::new().older_than(Duration::ZERO).only(field("kind").eq("novel")),
                2 => TierPolicy::new().larger_than(60),
                _ => everything(),
            };
            if random.below(2) == 0 { policy.stub(["n", "kind", "tags"]) } else { policy }
        };
        let policies = [policy(&mut random), policy(&mut random)];
        println!("seed {seed}: {policies:?}");
        let open = || {
            let [first, second] = policies.clone();
            match seed % 3 {
                0 => TieredDatabase::open(&hot, [Tier::new("cold", &cold, first)]).unwrap(),
                _ => TieredDatabase::open(&hot, [Tier::new("warm", &warm, first), Tier::new("cold", &cold, second)])
                    .unwrap(),
            }
        };
        let mut db = open();
        let whole = Database::in_memory();
        let (mut seen, mut since) = (BTreeMap::new(), Sequence::ZERO);
        for turn in 0..ROUND {
            if turn % 2 == 0 {
                write(&mut random, &db, &hot, &whole, if turn == 0 { 80 } else { 10 });
            }
            compare(&mut random, &db, &whole);
            if turn % 3 == 1 {
                // Questions are also asked between the steps of a move.
                let (asked, whole, mut random) = (db.clone(), whole.clone(), Random(seed * 1_000 + turn));
                db.on_step(move |_| compare(&mut random, &asked, &whole));
                db.migrate().unwrap();
                db.on_step(|_| ());
            }
            if turn == 13 {
                db = open();
            }
            for change in db.changes(since).limit(30).run().unwrap() {
                let change = change.unwrap();
                since = change.sequence;
                seen.insert(change.id.to_string(), (change.revision, change.deleted));
            }
        }
        seen.extend(states(db.changes(since).run().unwrap()));
        assert_eq!(seen, states(whole.changes(Sequence::ZERO).unwrap().run()));
        assert_eq!(states(db.changes(Sequence::ZERO).run().unwrap()), seen);
    }
}

/// The bodies of all documents, by id; each is found once.
fn bodies(db: &TieredDatabase) -> BTreeMap<String, String> {
    let mut bodies = BTreeMap::new();
    for document in db.find(Selector::everything()).run().unwrap() {
        let document = document.unwrap();
        let got = db.get(document.id().as_str()).unwrap().unwrap();
        assert_eq!(got.revision(), document.revision());
        let is_new = bodies.insert(document.id().to_string(), document.value().unwrap().to_json()).is_none();
        assert!(is_new, "{} was found twice", document.id());
    }
    assert_eq!(db.find(Selector::everything()).count().unwrap(), bodies.len() as u64);
    bodies
}

/// The databases as a power loss left them at a step, and the documents that there must be.
type Image = (String, Vec<TestStorage>, BTreeMap<String, String>);

#[test]
fn a_crash_at_any_step_loses_nothing_and_repeats_nothing() {
    let options = || Options::new().background(false);
    let mut image_count = 0;
    for seed in 0..6_u64 {
        let mut random = Random(seed);
        let disks: Vec<TestStorage> = (0..3).map(|at| TestStorage::new(seed * 10 + at)).collect();
        let policies = [TierPolicy::new().documents_max(15), TierPolicy::new().documents_max(10)];
        let policies = if seed % 2 == 0 { policies.map(|policy| policy.stub(["n"])) } else { policies };
        let open = |databases: &[Database]| {
            let [first, second] = policies.clone();
            let tiers = [Tier::new("warm", &databases[1], first), Tier::new("cold", &databases[2], second)];
            TieredDatabase::open(&databases[0], tiers).unwrap()
        };
        let databases: Vec<Database> = disks.iter().map(|disk| disk.open(options()).unwrap()).collect();
        let db = open(&databases);
        let images: Arc<Mutex<Vec<Image>>> = Arc::default();
        let crash_count = Arc::new(AtomicUsize::new(0));
        for round in 0..4 {
            for _ in 0..30 {
                db.upsert(&format!("d{:02}", random.below(60)), &body(&mut random)).unwrap();
            }
            let id = format!("d{:02}", random.below(60));
            if let Some(document) = db.get(&id).unwrap() {
                db.delete(&id, document.revision()).unwrap();
            }
            let (taken, expected, disks) = (images.clone(), bodies(&db), disks.clone());
            let crash_count = crash_count.clone();
            db.on_step(move |step| {
                let at = crash_count.fetch_add(1, Ordering::Relaxed) as u64;
                let crashed = disks.iter().map(|disk| disk.crash_image(seed * 1_000 + at)).collect();
                taken.lock().push((format!("seed {seed}, round {round}, {step}"), crashed, expected.clone()));
            });
            db.migrate().unwrap();
            // Documents return without being changed.
            for number in 0..60 {
                if random.below(4) == 0 {
                    db.bring_back(&format!("d{number:02}")).unwrap();
                }
            }
            db.on_step(|_| ());
            assert_eq!(db.status().unwrap().len(), 3);
        }
        for (name, disks, expected) in std::mem::take(&mut *images.lock()) {
            image_count += 1;
            let databases: Vec<Database> = disks.iter().map(|disk| disk.open(options()).unwrap()).collect();
            let db = open(&databases);
            assert_eq!(bodies(&db), expected, "{name}");
            let taken = Arc::new(Mutex::new(None));
            if image_count % 3 == 0 {
                // The completion crashes, too.
                let (taken, disks) = (taken.clone(), disks.clone());
                db.on_step(move |_| {
                    let mut taken = taken.lock();
                    if taken.is_none() {
                        *taken = Some(disks.iter().map(|disk| disk.crash_image(9)).collect::<Vec<_>>());
                    }
                });
            }
            db.migrate().unwrap();
            assert_eq!(bodies(&db), expected, "{name}, completed");
            db.migrate().unwrap();
            let status = db.status().unwrap();
            let stored: u64 =
                databases.iter().map(|database| database.find(Selector::everything()).count().unwrap()).sum();
            assert_eq!(stored, expected.len() as u64 + status[0].stub_count, "{name}: copies are left");
            let again = taken.lock().take();
            if let Some(disks) = again {
                let databases: Vec<Database> = disks.iter().map(|disk| disk.open(options()).unwrap()).collect();
                let db = open(&databases);
                assert_eq!(bodies(&db), expected, "{name}, crashed twice");
                db.migrate().unwrap();
                assert_eq!(bodies(&db), expected, "{name}, crashed twice and completed");
            }
        }
    }
    assert!(image_count > 200, "{image_count} crashes");
}

/// The directory of the databases of [`child`], the number of its first write, the step at which it waits to be killed,
/// and how often it passes that before.
const CHILD: [&str; 4] = ["STEMMA_TIERS_CHILD", "STEMMA_TIERS_FIRST", "STEMMA_TIERS_STEP", "STEMMA_TIERS_PASSES"];

/// The steps of moves.
const STEPS: [&str; 7] = ["ids stored", "copied", "flushed", "marked", "batch cleaned", "copies deleted", "returned"];

/// The tiers of the databases below a directory.
fn open_tiers(path: &Path) -> TieredDatabase {
    let open = |name: &str| Database::open_with(path.join(name), Options::new().durability(Durability::None)).unwrap();
    let (hot, warm, cold) = (open("hot"), open("warm"), open("cold"));
    let warm = Tier::new("warm", &warm, TierPolicy::new().documents_max(15).stub(["n"]));
    let cold = Tier::new("cold", &cold, TierPolicy::new().documents_max(10));
    TieredDatabase::open(&hot, [warm, cold]).unwrap()
}

/// The document of a write, and its body; none if it is deleted.
fn numbered_write(number: u64) -> (String, Option<serde_json::Value>) {
    let id = format!("d{:02}", number * 7 % 60);
    (id, (!number.is_multiple_of(11)).then(|| json!({"n": number, "fill": "x".repeat((number * 37 % 900) as usize)})))
}

/// Writes and moves documents until it is killed.
#[test]
fn child() {
    let [Ok(path), Ok(first), Ok(step), Ok(passes)] = CHILD.map(std::env::var) else { return };
    let (first, pass_count): (u64, usize) = (first.parse().unwrap(), passes.parse().unwrap());
    let db = open_tiers(Path::new(&path));
    // One call, so that lines of two threads are not mixed.
    let say = |line: String| std::io::stdout().write_all(format!("{line}\n").as_bytes()).unwrap();
    let reached_count = AtomicUsize::new(0);
    db.on_step(move |name| {
        if name == step && reached_count.fetch_add(1, Ordering::Relaxed) == pass_count {
            say("kill me".to_owned());
            loop {
                std::thread::park();
            }
        }
    });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in first.. {
                match numbered_write(number) {
                    (id, Some(body)) => drop(db.upsert(&id, &body).unwrap()),
                    (id, None) => {
                        if let Some(document) = db.get(&id).unwrap() {
                            db.delete(&id, document.revision()).unwrap();
                        }
                    }
                }
                say(format!("written {number}"));
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        for round in 0_u64.. {
            db.migrate().unwrap();
            db.bring_back(&format!("d{:02}", round % 60)).unwrap();
        }
    });
}

/// Starts [`child`] and kills it at a step; returns the last write that was acknowledged.
fn kill_at(path: &Path, first: u64, step: &str, pass_count: usize) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD[0], path)
        .env(CHILD[1], first.to_string())
        .env(CHILD[2], step)
        .env(CHILD[3], pass_count.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut written = first - 1;
    for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
        // The first line may follow output of the test runner.
        if let Some((_, number)) = line.split_once("written ") {
            written = number.parse().unwrap();
        }
        if line.ends_with("kill me") {
            child.kill().unwrap();
        }
    }
    let ended = child.wait().unwrap();
    assert!(ended.code().is_none(), "it ended by itself: {ended}");
    written
}

#[test]
fn a_killed_process_loses_nothing_at_any_step() {
    let kills: usize = std::env::var("STEMMA_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(21);
    let directory = tempfile::tempdir().unwrap();
    let (mut expected, mut first) = (BTreeMap::new(), 1);
    let apply = |documents: &mut BTreeMap<String, String>, number: u64| match numbered_write(number) {
        (id, Some(body)) => drop(documents.insert(id, Value::from_serialize(&body).unwrap().to_json())),
        (id, None) => drop(documents.remove(&id)),
    };
    for kill in 0..kills {
        let step = STEPS[kill % STEPS.len()];
        let written = kill_at(directory.path(), first, step, kill / STEPS.len());
        (first..=written).for_each(|number| apply(&mut expected, number));
        // The write that was under way may have been applied.
        let mut with_next = expected.clone();
        apply(&mut with_next, written + 1);
        let db = open_tiers(directory.path());
        let found = bodies(&db);
        assert!(found == expected || found == with_next, "kill {kill} at {step}: {found:#?}\nis not {expected:#?}");
        (first, expected) = if found == expected { (written + 1, expected) } else { (written + 2, with_next) };
        db.migrate().unwrap();
        assert_eq!(bodies(&db), expected, "kill {kill} at {step}, completed");
    }
}
