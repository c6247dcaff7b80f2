//! Virtual databases: their answers equal those of one database, also while buckets move and after crashes.

mod cases;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use cases::{Random, body, compare, seeds};
use serde_json::json;
use stemmadb::past::Retention;
use stemmadb::replication::{Peer, Replication, ReplicationScope};
use stemmadb::{Database, DocumentId, Edit, ErrorKind, Revision, Selector, Value, field};
use stemmadb_federation::{Grouping, MoveStep, VirtualDatabase};

/// The number of questions; `STEMMA_FEDERATION_CASES` replaces it.
const CASES: u64 = 3_000;
/// The questions about the same documents.
const ROUND: u64 = 30;

fn id(random: &mut Random) -> String {
    format!("d{:02}", random.below(90))
}

/// A random edit that may succeed or fail.
fn edit(random: &mut Random, revisions: &BTreeMap<String, Revision>) -> Edit {
    let id = id(random);
    let known = revisions.get(&id).copied();
    let body = Value::from_serialize(&body(random)).unwrap();
    let document = DocumentId::new(&id).unwrap();
    match (random.below(5), known) {
        (0, Some(revision)) => Edit::Delete { id: document, revision },
        (1, Some(revision)) => Edit::Replace { id: document, revision, body },
        (2, _) => Edit::Insert { id: document, body },
        _ => Edit::Upsert { id: document, body },
    }
}

/// Applies the same random edits to both, and compares their outcomes.
fn write(random: &mut Random, db: &VirtualDatabase, whole: &Database, count: u64) {
    let mut revisions = BTreeMap::new();
    for listed in whole.snapshot().unwrap().list().run() {
        let listed = listed.unwrap();
        revisions.insert(listed.id.to_string(), listed.revision);
    }
    let mut edits: Vec<Edit> = (0..count).map(|_| edit(random, &revisions)).collect();
    let outcome = |result: stemmadb::Result<Revision>| result.map_err(|error| error.kind());
    if random.below(2) == 0 {
        let expected: Vec<_> = whole.bulk(edits.clone()).unwrap().into_iter().map(outcome).collect();
        assert_eq!(db.bulk(edits).unwrap().into_iter().map(outcome).collect::<Vec<_>>(), expected);
    } else {
        for edit in edits.drain(..) {
            assert_eq!(outcome(db.edit(edit.clone())), outcome(whole.edit(edit)));
        }
    }
}

/// Moves some buckets a step further, or begins to.
fn advance(
    random: &mut Random,
    db: &VirtualDatabase,
    running: &mut Option<stemmadb_federation::ShardMove>,
    names: &mut u64,
) {
    if running.is_none() {
        let shards = db.shards();
        let (shard, count) = random.one_of(&shards);
        *names += 1;
        *running = match random.below(3) {
            0 if shards.len() < 16 && count > 1 => {
                Some(db.split(&shard, (format!("new-{names}"), Database::in_memory())).unwrap())
            }
            1 if shards.len() > 1 => {
                let (into, _) = random.one_of(&shards);
                // Buckets that left a shard can't return.
                db.merge(&shard, &into).ok()
            }
            _ => None,
        };
    }
    if random.below(12) == 0
        && let Some(moving) = running.take()
    {
        let is_switched = moving.is_switched();
        *running = match moving.cancel() {
            Ok(back) => Some(back),
            Err(error) => {
                assert!(is_switched, "{error}");
                db.pending_move().unwrap()
            }
        };
    }
    if let Some(moving) = running {
        let is_fence_next = moving.is_fence_next();
        let step = moving.step().unwrap();
        assert_eq!(is_fence_next, matches!(step, MoveStep::Switched | MoveStep::Done));
        if step == MoveStep::Done {
            *running = None;
        }
    }
}

#[test]
fn answers_equal_those_of_one_database() {
    for seed in seeds(CASES, ROUND) {
        let mut random = Random(seed);
        random.below(2);
        let count = 1 + random.below(if seed % 8 == 0 { 16 } else { 5 });
        let shards = (0..count).map(|_| Database::in_memory());
        let db = VirtualDatabase::create(shards, Grouping::ById).unwrap();
        let whole = Database::in_memory();
        println!("seed {seed}: {count} shards");
        let (mut running, mut names) = (None, 0);
        for turn in 0..ROUND {
            if turn % 3 == 0 {
                let writes = if turn == 0 { 80 } else { 8 };
                write(&mut random, &db, &whole, writes);
            }
            compare(&mut random, &db, &whole);
            if seed % 2 == 1 {
                advance(&mut random, &db, &mut running, &mut names);
            }
        }
    }
}

/// The states of all documents, deleted ones included, as their changes tell.
fn states(changes: impl IntoIterator<Item = stemmadb::Result<stemmadb::Change>>) -> BTreeMap<String, (Revision, bool)> {
    let state = |change: stemmadb::Change| (change.id.to_string(), (change.revision, change.deleted));
    changes.into_iter().map(|change| state(change.unwrap())).collect()
}

#[test]
fn changes_miss_nothing_while_buckets_move() {
    for seed in 0..40 {
        let mut random = Random(1000 + seed);
        let shards = (0..1 + random.below(3)).map(|_| Database::in_memory());
        let db = VirtualDatabase::create(shards, Grouping::ById).unwrap();
        let whole = Database::in_memory();
        let (mut running, mut names, mut token) = (None, 0, None::<String>);
        let mut seen = BTreeMap::new();
        let read = |seen: &mut BTreeMap<_, _>, token: &mut Option<String>, count: usize| {
            let changes = db.changes().limit(count);
            let changes = token.iter().fold(changes, |changes, token| changes.after(token.as_str()));
            let mut rows = changes.run().unwrap();
            let found = states(rows.by_ref());
            *token = Some(rows.token());
            let is_end = found.is_empty();
            seen.extend(found);
            is_end
        };
        for _ in 0..40 {
            write(&mut random, &db, &whole, 5);
            if random.below(3) > 0 {
                read(&mut seen, &mut token, 1 + random.below(20) as usize);
            }
            advance(&mut random, &db, &mut running, &mut names);
        }
        // A page may have no row that counts, so two empty ones are read.
        while !read(&mut seen, &mut token, 1_000) || !read(&mut seen, &mut token, 1_000) {}
        assert_eq!(seen, states(whole.changes(stemmadb::Sequence::ZERO).unwrap().run()), "seed {seed}");
    }
}

#[test]
fn position_within_copies_misses_no_document() {
    // The position is after some copies in the target, whose documents it has not reached in the source.
    let db = VirtualDatabase::create([("one", Database::in_memory())], Grouping::ById).unwrap();
    for n in 0..60 {
        db.insert(&format!("d{n:02}"), &json!({"n": n})).unwrap();
    }
    let mut moving = db.split("one", ("two", Database::in_memory())).unwrap();
    assert!(matches!(moving.step().unwrap(), MoveStep::Copied(20..40)));
    let mut rows = db.changes().limit(30).run().unwrap();
    let mut seen = states(rows.by_ref());
    let token = rows.token();
    moving.run().unwrap();
    seen.extend(states(db.changes().after(token).run().unwrap()));
    assert_eq!(seen.len(), 60);
    assert!(seen.values().all(|(_, is_deleted)| !is_deleted));
}

/// The revisions of all branches of all documents.
fn branches(peer: &dyn Peer) -> BTreeMap<String, BTreeSet<Revision>> {
    let page = peer.changes(None, 1_000, &ReplicationScope::All).unwrap();
    assert!(page.is_last);
    page.leaves.into_iter().map(|leaves| (leaves.id.to_string(), leaves.revisions.into_iter().collect())).collect()
}

#[test]
fn replication_is_that_of_one_database() {
    for seed in 0..6 {
        let mut random = Random(seed);
        let shards = ["one", "two", "three"].map(|name| (name, Database::in_memory()));
        let db = VirtualDatabase::create(shards, Grouping::ById).unwrap();
        let (other, mut running, mut names) = (Database::in_memory(), None, 0);
        for _ in 0..15 {
            // Both sides are written on their own, so documents have conflicts.
            for _ in 0..10 {
                let (body, target) = (body(&mut random), id(&mut random));
                match random.below(3) {
                    0 => drop(db.upsert(&target, &body).unwrap()),
                    1 => drop(other.upsert(&target, &body).unwrap()),
                    _ => {
                        if let Some(document) = other.get(&target).unwrap() {
                            let (id, revision) = (document.id().clone(), *document.revision());
                            let content = other.files().store(&b"content"[..]).unwrap();
                            let (name, content_type) = ("file".to_owned(), "text/plain".to_owned());
                            other.edit(Edit::Attach { id, revision, name, content_type, content }).unwrap();
                        }
                    }
                }
            }
            advance(&mut random, &db, &mut running, &mut names);
            let batch = 1 + random.below(20) as usize;
            match random.below(3) {
                0 => drop(Replication::new(&db, &other).batch(batch).run().unwrap()),
                1 => drop(Replication::new(&other, &db).batch(batch).run().unwrap()),
                _ => {}
            }
        }
        other.replicate_from(&db).unwrap();
        other.replicate_to(&db).unwrap();
        assert_eq!(branches(&db), branches(&other));
        for document in other.find(Selector::everything()).documents().unwrap() {
            let found = db.get(document.id().as_str()).unwrap().unwrap();
            assert_eq!((found.revision(), found.value().unwrap()), (document.revision(), document.value().unwrap()));
            assert_eq!(found.attachments().unwrap(), document.attachments().unwrap());
        }
        assert!(branches(&db).values().any(|revisions| revisions.len() > 1), "no document has conflicts");
        // Nothing is left to do, and no further checkpoints are written.
        other.replicate_from(&db).unwrap();
        let positions = |peer: &dyn Peer| peer.changes(None, 1_000, &ReplicationScope::All).unwrap().position;
        let (before, stats) = ((positions(&db), positions(&other)), other.replicate_from(&db).unwrap());
        assert_eq!((stats.written_count, before), (0, (positions(&db), positions(&other))));

        let (chosen, copy) = (["d01", "d02", "d03"], Database::in_memory());
        let some = ReplicationScope::Ids(chosen.map(str::to_owned).into());
        Replication::new(&db, &copy).only(some).run().unwrap();
        let expected = chosen.iter().filter(|id| branches(&db).contains_key(**id)).count();
        assert_eq!(branches(&copy).len(), expected);
        let (matching, copy) = (field("n").gt(2), Database::in_memory());
        Replication::new(&db, &copy).only(ReplicationScope::Selector(matching.to_value().unwrap())).run().unwrap();
        let found = copy.find(Selector::everything()).count().unwrap();
        assert_eq!(found, other.find(matching).count().unwrap());
        let filter = ReplicationScope::Filter("d/f".to_owned(), Vec::new());
        assert_eq!(Peer::changes(&db, None, 1, &filter).unwrap_err().kind(), ErrorKind::Invalid);
        let begin = Instant::now();
        db.wait(&positions(&db), Duration::from_millis(10)).unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(10));
    }
}

#[test]
fn transactions_are_within_one_bucket() {
    let db = VirtualDatabase::create((0..4).map(|_| Database::in_memory()), Grouping::ByPrefix(':')).unwrap();
    let insert = |id: &str| Edit::Insert { id: DocumentId::new(id).unwrap(), body: "{}".parse().unwrap() };
    let revisions = db.transact().edit(insert("a:1")).edit(insert("a:2")).commit().unwrap();
    assert_eq!(db.get("a:2").unwrap().unwrap().revision(), &revisions[1]);
    let conflict = db.transact().check("a:1", None).edit(insert("a:3")).commit().unwrap_err();
    assert_eq!(conflict.kind(), ErrorKind::Conflict);
    db.transact().check("a:1", Some(&revisions[0])).check("a:3", None).edit(insert("a:3")).commit().unwrap();
    // One of the edits fails: none is applied.
    assert!(db.transact().edit(insert("a:4")).edit(insert("a:1")).commit().is_err());
    assert!(db.get("a:4").unwrap().is_none());
    let other = (0..).map(|n| format!("b{n}:1")).find(|id| db.bucket(id) != db.bucket("a:1")).unwrap();
    let refused = db.transact().edit(insert("a:5")).edit(insert(&other)).commit().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.message().contains("different buckets"), "{refused}");
    assert!(db.get("a:5").unwrap().is_none() && db.get(&other).unwrap().is_none());
    assert!(db.transact().commit().is_err());
}

#[test]
fn shards_are_checked() {
    let used = Database::in_memory();
    used.insert("a", &json!({})).unwrap();
    let error = VirtualDatabase::create([used.clone()], Grouping::ById).unwrap_err();
    assert!(error.message().contains("has documents"), "{error}");
    let (one, two) = (Database::in_memory(), Database::in_memory());
    let db = VirtualDatabase::create([("one", one.clone()), ("two", two.clone())], Grouping::ById).unwrap();
    assert_eq!(VirtualDatabase::create([one.clone()], Grouping::ById).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(VirtualDatabase::open([Database::in_memory()]).unwrap_err().kind(), ErrorKind::NotFound);
    let missing = VirtualDatabase::open([("one", one.clone())]).unwrap_err();
    assert!(missing.message().contains("`two` is missing"), "{missing}");
    let three = [("one", one), ("two", two), ("three", Database::in_memory())];
    assert!(VirtualDatabase::open(three).unwrap_err().message().contains("`three` is no shard"));
    assert!(db.add_shard(("one", Database::in_memory())).is_err());
    assert!(db.add_shard(("four", used)).is_err());
    assert_eq!(db.move_buckets([0], "none").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(db.move_buckets([0, 4_095], "one").unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(db.move_buckets([4_096], "one").unwrap_err().kind(), ErrorKind::Invalid);
    // Buckets that left a shard can't return to it.
    db.move_buckets(0..100, "two").unwrap().run().unwrap();
    let error = db.move_buckets(50..60, "one").unwrap_err();
    assert!(error.message().contains("can't come back"), "{error}");
    assert_eq!(db.shards(), [("one".to_owned(), 1_948), ("two".to_owned(), 2_148)]);
}

#[test]
fn target_that_refuses_documents_gets_no_buckets() {
    let (one, two) = (Database::in_memory(), Database::in_memory());
    let db = VirtualDatabase::create([("one", one)], Grouping::ById).unwrap();
    for n in 0..50 {
        db.insert(&format!("a:{n}"), &json!({"n": n})).unwrap();
    }
    let schema = stemmadb::Schema::new(&json!({"required": ["name"]})).unwrap();
    two.schemas().require("a", schema).unwrap();
    let mut moving = db.split("one", ("two", two.clone())).unwrap();
    let error = moving.step().unwrap_err();
    assert!(error.message().contains("refuses"), "{error}");
    assert_eq!(db.find(Selector::everything()).count().unwrap(), 50);
    drop(moving);
    assert!(db.add_shard(("three", Database::in_memory())).is_err(), "the move is not complete");
    two.schemas().remove("a").unwrap();
    db.pending_move().unwrap().unwrap().run().unwrap();
    assert_eq!(db.find(Selector::everything()).count().unwrap(), 50);
    assert_eq!(db.shards()[1], ("two".to_owned(), 2_048));
}

/// The shards of a directory.
fn open_all(directory: &Path, names: &[&str]) -> Vec<(String, Database)> {
    names.iter().map(|name| ((*name).to_owned(), Database::open(directory.join(name)).unwrap())).collect()
}

#[test]
fn interrupted_moves_continue_after_a_restart() {
    // Each kind of move is stopped after each of its steps, and continued by another handle.
    for kind in ["split", "merge", "move"] {
        for stop_after in 0..8 {
            let directory = tempfile::tempdir().unwrap();
            let whole = Database::in_memory();
            let mut random = Random(stop_after * 7 + kind.len() as u64);
            let first: &[&str] = if kind == "split" { &["a"] } else { &["a", "b"] };
            let databases = open_all(directory.path(), first);
            let db = VirtualDatabase::create(databases.clone(), Grouping::ById).unwrap();
            write(&mut random, &db, &whole, 300);
            let mut moving = match kind {
                "split" => db.split("a", ("b", Database::open(directory.path().join("b")).unwrap())).unwrap(),
                "merge" => db.merge("a", "b").unwrap(),
                _ => db.move_buckets(0..700, "b").unwrap(),
            };
            let mut is_done = false;
            for _ in 0..stop_after {
                write(&mut random, &db, &whole, 20);
                is_done = moving.step().unwrap() == MoveStep::Done;
                compare(&mut random, &db, &whole);
            }
            drop((moving, db, databases));
            let names: &[&str] = if kind == "merge" && is_done { &["b"] } else { &["a", "b"] };
            let databases = open_all(directory.path(), names);
            let db = VirtualDatabase::open(databases).unwrap();
            for _ in 0..5 {
                compare(&mut random, &db, &whole);
            }
            write(&mut random, &db, &whole, 20);
            match db.pending_move().unwrap() {
                Some(mut moving) => {
                    while moving.step().unwrap() != MoveStep::Done {
                        write(&mut random, &db, &whole, 20);
                        compare(&mut random, &db, &whole);
                    }
                }
                None => assert!(is_done, "{kind} {stop_after}"),
            }
            let expected: &[(&str, usize)] = match kind {
                "split" => &[("a", 2_048), ("b", 2_048)],
                "merge" => &[("b", 4_096)],
                _ => &[("a", 1_348), ("b", 2_748)],
            };
            let shards = db.shards();
            assert_eq!(shards.iter().map(|(name, count)| (name.as_str(), *count)).collect::<Vec<_>>(), expected);
            for _ in 0..20 {
                compare(&mut random, &db, &whole);
            }
            assert_eq!(
                states(db.changes().run().unwrap()),
                states(whole.changes(stemmadb::Sequence::ZERO).unwrap().run())
            );
        }
    }
}

#[test]
fn placement_of_one_shard_decides() {
    // As after a crash between storing the placement in the target and in the others.
    let (one, two) = (Database::in_memory(), Database::in_memory());
    let shards = || [("one", one.clone()), ("two", two.clone())];
    let db = VirtualDatabase::create(shards(), Grouping::ById).unwrap();
    for n in 0..200 {
        db.insert(&format!("d{n}"), &json!({"n": n})).unwrap();
    }
    let mut moving = db.move_buckets(0..1_000, "two").unwrap();
    let keys = one.keys("stemma.virtual").unwrap();
    let before: Value = keys.get("placement").unwrap().unwrap();
    while moving.step().unwrap() != MoveStep::Switched {}
    keys.set("placement", &before).unwrap();
    drop((moving, db));
    let db = VirtualDatabase::open(shards()).unwrap();
    assert_eq!(db.shards()[1].1, 3_048);
    assert_eq!(db.find(Selector::everything()).count().unwrap(), 200);
    db.pending_move().unwrap().unwrap().run().unwrap();
    let all: BTreeSet<String> =
        db.find(field("n").ge(0)).documents().unwrap().iter().map(|one| one.id().to_string()).collect();
    assert_eq!((all.len(), one.find(Selector::everything()).count().unwrap() < 200), (200, true));
}

#[test]
fn clients_write_and_read_while_shards_split_and_merge() {
    let db = VirtualDatabase::create([("s0", Database::in_memory())], Grouping::ById).unwrap();
    for n in 0..2_000 {
        db.insert(&format!("fixed-{n:04}"), &json!({"kind": "fixed", "n": n})).unwrap();
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..2)
        .map(|writer| {
            let (db, is_over) = (db.clone(), is_over.clone());
            std::thread::spawn(move || {
                let (mut model, mut random) = (BTreeMap::new(), Random(writer));
                while !is_over.load(Ordering::Relaxed) {
                    let id = format!("w{writer}-{:03}", random.below(300));
                    let n = random.below(1_000);
                    match model.get(&id) {
                        Some((_, revision)) if n % 4 == 0 => {
                            db.delete(&id, revision).unwrap();
                            model.remove(&id);
                        }
                        Some((_, revision)) => {
                            let revision = db.replace(&id, revision, &json!({"kind": "written", "n": n})).unwrap();
                            model.insert(id, (n, revision));
                        }
                        None => {
                            let revision = db.insert(&id, &json!({"kind": "written", "n": n})).unwrap();
                            model.insert(id, (n, revision));
                        }
                    }
                }
                model
            })
        })
        .collect();
    let readers: Vec<_> = (0..2)
        .map(|reader| {
            let (db, is_over) = (db.clone(), is_over.clone());
            std::thread::spawn(move || {
                let mut count = 0_u64;
                while !is_over.load(Ordering::Relaxed) {
                    if reader == 0 {
                        assert_eq!(db.find(field("kind").eq("fixed")).count().unwrap(), 2_000);
                        let n = count % 2_000;
                        assert!(db.get(&format!("fixed-{n:04}")).unwrap().is_some());
                    } else {
                        // Pages, during which buckets move.
                        let (mut token, mut found) = (None::<String>, Vec::new());
                        loop {
                            let page = db.find(field("kind").eq("fixed")).sort("n").limit(300);
                            let page = token.iter().fold(page, |page, token| page.after(token.as_str()));
                            let mut page = page.run().unwrap();
                            found.extend(page.by_ref().map(|row| row.unwrap().id().to_string()));
                            token = page.token().unwrap();
                            if token.is_none() {
                                break;
                            }
                        }
                        assert_eq!(found, (0..2_000).map(|n| format!("fixed-{n:04}")).collect::<Vec<_>>());
                    }
                    count += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
            })
        })
        .collect();
    db.split("s0", ("s1", Database::in_memory())).unwrap().run().unwrap();
    db.split("s1", ("s2", Database::in_memory())).unwrap().run().unwrap();
    db.merge("s2", "s0").unwrap_err();
    db.split("s0", ("s3", Database::in_memory())).unwrap().run().unwrap();
    db.merge("s0", "s3").unwrap().run().unwrap();
    db.merge("s2", "s3").unwrap().run().unwrap();
    is_over.store(true, Ordering::Relaxed);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    let mut model = BTreeMap::new();
    writers.into_iter().for_each(|writer| model.extend(writer.join().unwrap()));
    let found = db.find(field("kind").eq("written")).documents().unwrap();
    let number = |document: &stemmadb::Document| document.get("n").unwrap().unwrap().as_u64().unwrap();
    let found: BTreeMap<_, _> =
        found.iter().map(|document| (document.id().to_string(), (number(document), *document.revision()))).collect();
    assert_eq!(found, model);
    let shards = db.shards();
    assert_eq!(shards.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["s1", "s3"]);
}

#[test]
fn replicas_take_the_places_of_shards_also_during_moves() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let whole = Database::in_memory();
        let parts: Vec<Database> = (0..3).map(|_| Database::in_memory()).collect();
        let shards = parts.iter().enumerate().map(|(at, part)| (format!("s{at}"), part.clone()));
        let db = VirtualDatabase::create(shards, Grouping::ById).unwrap();
        write(&mut random, &db, &whole, 80);
        let new = Database::in_memory();
        let mut moving = (seed % 4 > 0).then(|| db.split("s0", ("new", new.clone())).unwrap());
        for _ in 0..seed % 4 {
            if let Some(moving) = &mut moving {
                moving.step().unwrap();
            }
            write(&mut random, &db, &whole, 5);
        }
        let (shard, part) = match random.below(3) {
            0 if moving.is_some() && db.shards().iter().any(|(name, _)| name == "new") => ("new", &new),
            1 => ("s1", &parts[1]),
            _ => ("s0", &parts[0]),
        };
        if let Some(running) = &moving {
            let refused = db.replace_shard(shard, ("replica", Database::in_memory())).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Conflict, "{running:?}");
        }
        drop(moving);
        let replica = Database::in_memory();
        part.replicate_to(&replica).unwrap();
        let token = db.changes().newest_token();
        db.replace_shard(shard, ("replica", replica)).unwrap();
        assert_eq!(db.replace_shard(shard, ("other", Database::in_memory())).unwrap_err().kind(), ErrorKind::NotFound);
        for _ in 0..4 {
            compare(&mut random, &db, &whole);
            write(&mut random, &db, &whole, 5);
        }
        if let Some(moving) = db.pending_move().unwrap() {
            moving.run().unwrap();
        }
        compare(&mut random, &db, &whole);
        assert!(db.shards().iter().any(|(name, _)| name == "replica") || shard == "s0");
        db.upsert("last", &json!({})).unwrap();
        let changed = db.changes().after(token).run().unwrap().map(|change| change.unwrap().id.to_string());
        assert!(changed.collect::<BTreeSet<_>>().contains("last"));
    }
}

/// A database that keeps its past.
fn with_past() -> Database {
    let database = Database::in_memory();
    database.history().keep(Retention::Everything).unwrap();
    database
}

/// The ids and the revisions of documents.
fn revisions(documents: Vec<stemmadb::Document>) -> BTreeMap<String, Revision> {
    documents.iter().map(|document| (document.id().to_string(), *document.revision())).collect()
}

/// What was written, at times between writes and steps of moves.
#[derive(Default)]
struct KnownPast(Vec<(SystemTime, BTreeMap<String, Revision>)>);

impl KnownPast {
    fn note(&mut self, whole: &Database) {
        std::thread::sleep(Duration::from_millis(2));
        let expected = revisions(whole.find(Selector::everything()).documents().unwrap());
        self.0.push((SystemTime::now(), expected));
        std::thread::sleep(Duration::from_millis(2));
    }

    fn check(&self, db: &VirtualDatabase) {
        for (time, expected) in &self.0 {
            let past = db.past(*time).unwrap();
            let find = || db.find(Selector::everything()).as_of(&past);
            assert_eq!(&revisions(find().documents().unwrap()), expected);
            assert_eq!(find().count().unwrap(), expected.len() as u64);
            let sorted = find().sort("n").limit(7).documents().unwrap();
            assert_eq!(sorted.len(), expected.len().min(7));
            let figures = r#"{"figures": {"count": "count"}}"#.parse().unwrap();
            let rows = db.aggregation(&figures).as_of(&past).rows().unwrap();
            assert_eq!(rows[0].1.get("count").and_then(Value::as_u64), Some(expected.len() as u64));
            for id in expected.keys().take(5) {
                let shard = past.map().shard_of(id);
                assert!(past.has_documents(shard));
            }
        }
    }
}

#[test]
fn the_past_is_read_in_the_shards_of_then() {
    for seed in 0..12 {
        let mut random = Random(seed);
        let whole = Database::in_memory();
        let shards = (0..3).map(|at| (format!("s{at}"), with_past()));
        let db = VirtualDatabase::create(shards, Grouping::ById).unwrap();
        let mut known = KnownPast::default();
        for turn in 0..4 {
            write(&mut random, &db, &whole, 40);
            known.note(&whole);
            let mut moving = match turn {
                0 | 3 => db.split(&format!("s{turn}").replace('3', "1"), (format!("new{turn}"), with_past())).unwrap(),
                // To a shard that has documents.
                _ => {
                    let map = db.map();
                    let buckets = map.buckets_of(2);
                    let some = buckets.into_iter().skip(300 * turn).take(200);
                    db.move_buckets(some, "s1").unwrap()
                }
            };
            if turn == 2 {
                // Its copies stay in the past of the target.
                moving.step().unwrap();
                known.note(&whole);
                moving = moving.cancel().unwrap();
            }
            while moving.step().unwrap() != MoveStep::Done {
                write(&mut random, &db, &whole, 3);
                known.note(&whole);
                known.check(&db);
            }
            known.note(&whole);
            known.check(&db);
        }
        let before_merge = known.0.last().unwrap().0;
        db.merge("s0", "new3").unwrap().run().unwrap();
        let lost = db.past(before_merge).unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::NotFound, "{lost}");
        known.0.clear();
        known.note(&whole);
        write(&mut random, &db, &whole, 10);
        known.check(&db);
    }
}

#[test]
fn the_past_of_a_replaced_shard_is_lost() {
    let (one, two, replica) = (with_past(), with_past(), with_past());
    let db = VirtualDatabase::create([("one", one.clone()), ("two", two)], Grouping::ById).unwrap();
    for n in 0..20 {
        db.insert(&format!("d{n}"), &json!({})).unwrap();
    }
    let before = SystemTime::now();
    std::thread::sleep(Duration::from_millis(2));
    one.replicate_to(&replica).unwrap();
    db.replace_shard("one", ("replica", replica)).unwrap();
    let after = SystemTime::now();
    std::thread::sleep(Duration::from_millis(2));
    db.upsert("d3", &json!({"changed": true})).unwrap();
    assert_eq!(db.past(before).unwrap_err().kind(), ErrorKind::NotFound);
    let past = db.past(after).unwrap();
    assert_eq!(db.find(field("changed").eq(true)).as_of(&past).count().unwrap(), 0);
    assert_eq!(db.find(Selector::everything()).as_of(&past).count().unwrap(), 20);
}
