//! Tests of declared indexes: unique values in every kind of write, builds during writes, drops and reopening.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::revision::DocumentId;
use crate::value::Value;
use crate::vfs::Random;
use crate::{Database, Durability, Edit, ErrorKind, Index, IndexState, Options, Result, testing};

fn value(json: &str) -> Value {
    Value::parse(json.as_bytes()).unwrap()
}

fn email(address: &str) -> Value {
    value(&format!(r#"{{"email":"{address}"}}"#))
}

fn options() -> Options {
    Options::new().durability(Durability::None).segment_bytes(64 << 10)
}

fn id(text: &str) -> DocumentId {
    DocumentId::new(text).unwrap()
}

fn assert_sound(db: &Database) {
    let report = db.maintenance().check().unwrap();
    assert!(report.is_sound(), "{:#?}", report.damages);
}

fn kind<T>(result: Result<T>) -> ErrorKind {
    result.err().expect("an error").kind()
}

#[test]
fn a_unique_value_belongs_to_one_document() {
    let db = Database::in_memory_with(options()).unwrap();
    db.indexes().create(Index::on("email").unique()).unwrap();
    let first = db.insert("a", &email("x")).unwrap();
    let refused = db.insert("b", &email("x")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Duplicate);
    assert_eq!(refused.message(), "index `email` is unique, and document `a` has \"x\" already");
    let second = db.insert("b", &email("y")).unwrap();
    assert_eq!(kind(db.upsert("b", &email("x"))), ErrorKind::Duplicate);
    assert_eq!(kind(db.replace("b", &second, &email("x"))), ErrorKind::Duplicate);
    db.replace("a", &first, &value(r#"{"email":"x","name":"still mine"}"#)).unwrap();
    let moved = db.upsert("a", &email("z")).unwrap();
    db.upsert("b", &email("x")).unwrap();
    db.delete("a", &moved).unwrap();
    db.insert("c", &email("z")).unwrap();
    assert_sound(&db);
}

#[test]
fn missing_and_null_values_are_not_unique_values() {
    let db = Database::in_memory_with(options()).unwrap();
    db.indexes().create(Index::on("a").then("b").unique().named("pair")).unwrap();
    for (at, body) in [r#"{}"#, r#"{"a":1}"#, r#"{"a":1,"b":null}"#, r#"{"a":null,"b":2}"#].iter().enumerate() {
        db.insert(&format!("{at}"), &value(body)).unwrap();
        db.insert(&format!("{at} again"), &value(body)).unwrap();
    }
    db.insert("pair", &value(r#"{"a":1,"b":[2]}"#)).unwrap();
    let refused = db.insert("same", &value(r#"{"a":1.0,"b":[2]}"#)).unwrap_err();
    assert_eq!(refused.message(), "index `pair` is unique, and document `pair` has 1.0, [2] already");
    db.insert("other", &value(r#"{"a":1,"b":[3]}"#)).unwrap();
    assert_eq!(db.indexes().duplicates("pair").unwrap(), []);
    assert_sound(&db);
}

#[test]
fn long_values_are_distinguished() {
    let db = Database::in_memory_with(options()).unwrap();
    db.indexes().create(Index::on("email").unique()).unwrap();
    let long = "e".repeat(5000);
    db.insert("a", &email(&long)).unwrap();
    db.insert("b", &email(&format!("{long}!"))).unwrap();
    assert_eq!(kind(db.insert("c", &email(&long))), ErrorKind::Duplicate);
    let zeros = "\\u0000".repeat(300);
    db.insert("d", &email(&zeros)).unwrap();
    assert_eq!(kind(db.insert("e", &email(&zeros))), ErrorKind::Duplicate);
    assert_sound(&db);
}

#[test]
fn a_transaction_is_checked_in_its_final_state() {
    let db = Database::in_memory_with(options()).unwrap();
    db.indexes().create(Index::on("email").unique()).unwrap();
    db.insert("a", &email("x")).unwrap();
    db.insert("b", &email("y")).unwrap();
    db.write(|tx| {
        tx.upsert("a", &email("y"))?;
        tx.upsert("b", &email("x"))
    })
    .unwrap();
    let swapped = |id: &str| db.get(id).unwrap().unwrap().get("email").unwrap();
    assert_eq!((swapped("a"), swapped("b")), (Some("y".into()), Some("x".into())));
    let failed = db.write(|tx| {
        tx.upsert("c", &email("new"))?;
        tx.upsert("d", &email("new"))
    });
    assert_eq!(kind(failed), ErrorKind::Duplicate);
    assert_eq!(db.get("c").unwrap(), None, "all or nothing");
    let taken_back = db.write(|tx| {
        tx.upsert("c", &email("x"))?;
        tx.upsert("c", &email("free"))?;
        let b = tx.get("b")?.unwrap();
        tx.delete("b", b.revision())?;
        tx.insert("e", &email("x"))
    });
    taken_back.unwrap();
    let twice = db.write(|tx| {
        tx.upsert("f", &email("x"))?;
        tx.upsert("f", &value(r#"{"email":"x","more":1}"#))
    });
    assert_eq!(kind(twice), ErrorKind::Duplicate);
    assert_sound(&db);
}

#[test]
fn each_edit_of_a_bulk_is_checked_independently() {
    let db = Database::in_memory_with(options()).unwrap();
    db.indexes().create(Index::on("email").unique()).unwrap();
    let insert = |name: &str, address: &str| Edit::Insert { id: id(name), body: email(address) };
    let results = db.bulk(vec![insert("a", "x"), insert("b", "x"), insert("c", "y"), insert("d", "y")]).unwrap();
    let failed: Vec<bool> = results.iter().map(Result::is_err).collect();
    assert_eq!(failed, [false, true, false, true]);
    assert_eq!(db.info().unwrap().document_count, 2);
    assert_sound(&db);
}

#[test]
fn replicated_revisions_are_accepted_and_listed_as_duplicates() {
    let (here, there) = (Database::in_memory_with(options()).unwrap(), Database::in_memory_with(options()).unwrap());
    here.indexes().create(Index::on("email").unique()).unwrap();
    here.insert("a", &email("x")).unwrap();
    let revision = there.insert("b", &email("x")).unwrap();
    let foreign =
        Edit::Foreign { id: id("b"), revisions: vec![revision], deleted: false, body: email("x"), files: Vec::new() };
    here.edit(foreign).unwrap();
    let duplicates = here.indexes().duplicates("email").unwrap();
    assert_eq!(duplicates.len(), 1);
    assert_eq!(duplicates[0].ids, [id("a"), id("b")]);
    here.upsert("a", &value(r#"{"email":"x","kept":true}"#)).unwrap();
    assert_eq!(kind(here.insert("c", &email("x"))), ErrorKind::Duplicate);
    here.upsert("a", &email("y")).unwrap();
    assert_eq!(here.indexes().duplicates("email").unwrap(), []);
    assert_sound(&here);
}

#[test]
fn one_of_many_concurrent_writers_gets_the_value() {
    let db = Database::in_memory_with(options()).unwrap();
    db.indexes().create(Index::on("email").unique()).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let db = &db;
            scope.spawn(move || {
                let mut random = Random::new(writer);
                for round in 0..300 {
                    let address = format!("{}", random.below(150));
                    if let Err(error) = db.insert(&format!("{writer}-{round}"), &email(&address)) {
                        assert_eq!(error.kind(), ErrorKind::Duplicate);
                    }
                }
            });
        }
    });
    assert_eq!(db.indexes().duplicates("email").unwrap(), []);
    assert!(db.info().unwrap().document_count <= 150);
    assert_sound(&db);
}

#[test]
fn an_index_is_built_during_writes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let small = testing::with_small_limits(options(), 64 << 10, 64 << 10, 500);
    let db = Database::open_with(&path, small).unwrap();
    for number in 0..3000 {
        db.insert(&format!("{number}"), &value(&format!(r#"{{"email":"{number}","a":{},"b":{number}}}"#, number % 7)))
            .unwrap();
    }
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::new(7);
            let mut round = 0;
            while !is_done.load(Ordering::Acquire) {
                let number = random.below(3000);
                round += 1;
                let body = value(&format!(r#"{{"email":"{number}-{round}","a":{},"b":{round}}}"#, round % 5));
                db.upsert(&format!("{number}"), &body).unwrap();
                if round % 9 == 0 {
                    let gone = db.get(&format!("{number}")).unwrap().unwrap();
                    db.delete(&format!("{number}"), gone.revision()).unwrap();
                }
            }
        });
        let mut shown = Vec::new();
        let unique = db.indexes().create_with_progress(Index::on("email").unique(), |progress| shown.push(progress));
        let sorted = db.indexes().create(Index::on("a").then_descending("b"));
        is_done.store(true, Ordering::Release);
        unique.unwrap();
        sorted.unwrap();
        assert!(shown.len() > 5 && shown.last().unwrap().done == shown.last().unwrap().total);
    });
    assert!(db.indexes().list().iter().all(|index| index.state == IndexState::Ready));
    assert_sound(&db);
    db.close().unwrap();
    for round in 0..2 {
        let db = Database::open_with(&path, options()).unwrap();
        let names: Vec<_> = db.indexes().list().into_iter().map(|index| index.name).collect();
        assert_eq!(names, ["email", "a,-b"]);
        assert!(db.indexes().list().iter().all(|index| index.state == IndexState::Ready), "round {round}");
        assert_sound(&db);
        db.insert(&format!("new {round}"), &email(&format!("mine {round}"))).unwrap();
        assert_eq!(kind(db.insert("newer", &email(&format!("mine {round}")))), ErrorKind::Duplicate);
        drop(db);
        std::fs::remove_dir_all(path.join("tree")).unwrap();
    }
}

#[test]
fn a_unique_index_over_duplicates_is_not_declared() {
    let db = Database::in_memory_with(options()).unwrap();
    for number in 0..600 {
        db.insert(&format!("{number}"), &email(&format!("{}", number % 599))).unwrap();
    }
    let refused = db.indexes().create(Index::on("email").unique()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Duplicate);
    assert_eq!(refused.message(), "document `599`: index `email` is unique, and document `0` has \"0\" already");
    assert_eq!(db.indexes().list(), []);
    db.insert("again", &email("0")).unwrap();
    for gone in ["599", "again"] {
        let document = db.get(gone).unwrap().unwrap();
        db.delete(gone, document.revision()).unwrap();
    }
    db.indexes().create(Index::on("email").unique()).unwrap();
    assert_eq!(kind(db.insert("again", &email("0"))), ErrorKind::Duplicate);
    assert_sound(&db);
}

#[test]
fn dropping_an_index_removes_its_rows_and_frees_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    for background in [true, false] {
        let db = Database::open_with(&path, options().background(background)).unwrap();
        for number in 0..500 {
            db.upsert(&format!("{number}"), &email(&format!("{number}"))).unwrap();
        }
        db.indexes().create(Index::on("email").unique()).unwrap();
        db.indexes().remove("email").unwrap();
        assert_eq!(kind(db.indexes().remove("email")), ErrorKind::NotFound);
        let copy = db.insert("copy", &email("1")).unwrap();
        assert_eq!(kind(db.indexes().create(Index::on("email").unique())), ErrorKind::Duplicate);
        db.delete("copy", &copy).unwrap();
        db.indexes().create(Index::on("email").unique()).unwrap();
        assert_eq!(kind(db.insert("copy", &email("1"))), ErrorKind::Duplicate);
        db.indexes().remove("email").unwrap();
        assert_sound(&db);
        db.close().unwrap();
        let db = Database::open_with(&path, options().background(false)).unwrap();
        assert_eq!(db.indexes().list(), []);
        let snapshot = db.snapshot().unwrap();
        for entry in snapshot.paths().entries_since(1) {
            if let crate::index::OwnedStep::Index(_) = entry.step {
                let all = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
                let mut walk = snapshot.walk(entry.number, all.0, all.1, crate::tree::Direction::Ascending).unwrap();
                assert!(walk.next_term().unwrap().is_none(), "rows of a dropped index are left");
            }
        }
        assert_sound(&db);
    }
}

#[test]
fn a_definition_is_checked() {
    let db = Database::in_memory_with(options()).unwrap();
    for wrong in [
        Index::on("a"),
        Index::on_descending("a"),
        Index::on("a..b").unique(),
        Index::on("_id").unique(),
        Index::on("a").then("a"),
        Index::on("a").collated("no language"),
        Index::on("a").unique().named(""),
    ] {
        assert_eq!(kind(db.indexes().create(wrong)), ErrorKind::Invalid);
    }
    db.indexes().create(Index::on("a").unique()).unwrap();
    db.indexes().create(Index::on("a").unique()).unwrap();
    assert_eq!(kind(db.indexes().create(Index::on("b").unique().named("a"))), ErrorKind::Invalid);
    assert_eq!(db.indexes().list().len(), 1);
}

/// A crash at any step of a build or drop leaves the index either complete or not declared.
#[test]
fn a_crash_during_a_build_or_drop_only_delays_it() {
    for seed in 0..8 {
        let place = testing::TestStorage::new(seed);
        let small = || testing::with_small_limits(Options::new().background(false), 24 << 10, 64 << 10, 40);
        let db = place.open(small()).unwrap();
        for number in 0..700 {
            db.with_durability(Durability::None)
                .edit(Edit::Insert { id: id(&format!("{number}")), body: email(&format!("{number}")) })
                .unwrap();
        }
        let mut images = Vec::new();
        let mut random = Random::new(seed);
        let mut round = 0;
        let mut meddle = |images: &mut Vec<testing::TestStorage>| {
            for _ in 0..20 {
                round += 1;
                let changed = format!("{}", random.below(700));
                db.upsert(&changed, &value(&format!(r#"{{"email":"{changed}-{round}","b":{}}}"#, round % 7))).unwrap();
            }
            images.push(place.crash_image(random.number()));
        };
        db.indexes().create_with_progress(Index::on("email").unique(), |_| meddle(&mut images)).unwrap();
        db.indexes().create_with_progress(Index::on("b").then("email"), |_| meddle(&mut images)).unwrap();
        meddle(&mut images);
        // The sweep stops halfway, as it would on a full disk.
        place.fail_commit(2 + seed, testing::Failure::Full, true);
        db.indexes().remove("email").ok();
        images.push(place.crash_image(seed));
        drop(db);
        for image in images {
            image.heal();
            let db = image.open(small()).unwrap();
            assert_sound(&db);
            assert!(db.indexes().list().iter().all(|index| index.state == IndexState::Ready));
            let is_declared = db.indexes().list().iter().any(|index| index.name == "email");
            let held = db.get("1").unwrap().unwrap().get("email").unwrap().unwrap();
            let body = value(&format!(r#"{{"email":{}}}"#, held.to_json()));
            assert_eq!(db.insert("another", &body).is_err(), is_declared);
            assert_sound(&db);
        }
    }
}

/// An interrupted build that can't be completed is reported, and resumes once the documents are corrected.
#[test]
fn a_resumed_build_reports_duplicates_in_a_unique_index() {
    let place = testing::TestStorage::new(5);
    let db = place.open(options().background(false)).unwrap();
    for n in 0..600 {
        db.insert(&format!("{n}"), &email(&format!("{}", n % 599))).unwrap();
    }
    db.maintenance().checkpoint().unwrap();
    let mut image = None;
    let refused = db.indexes().create_with_progress(Index::on("email").unique(), |_| {
        image.get_or_insert_with(|| place.crash_image(1));
    });
    assert_eq!(kind(refused), ErrorKind::Duplicate);
    assert!(db.indexes().list().is_empty());
    let image = image.unwrap();
    let db = image.open(options().background(false)).unwrap();
    let IndexState::Failed { why } = &db.indexes().list()[0].state else { panic!("{:?}", db.indexes().list()) };
    assert_eq!(why, "document `599`: index `email` is unique, and document `0` has \"0\" already");
    assert_eq!(db.find(crate::field("email").eq("0")).count().unwrap(), 2);
    assert_eq!(kind(db.insert("more", &email("7"))), ErrorKind::Duplicate);
    db.upsert("599", &email("another")).unwrap();
    db.indexes().create(Index::on("email").unique()).unwrap();
    assert_eq!(db.indexes().list()[0].state, IndexState::Ready);
    assert_sound(&db);
}
