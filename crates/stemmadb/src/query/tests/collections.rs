//! Tests of collection terms: an id prefix that names a collection is planned as one term with unchanged results, and
//! trees without these terms are rebuilt or read without them.

use crate::options::Options;
use crate::testing::TestStorage;
use crate::tree::Table;
use crate::{Database, field, index};

const COUNT: u64 = 300;

fn filled(db: &Database) {
    let long = "l".repeat(150);
    for n in 0..COUNT {
        let collection = ["books:", "films:", "books", "bookshelf:x:", ":", &long][n as usize % 6];
        let between = if collection == long { ":" } else { "" };
        db.insert(&format!("{collection}{between}{n}"), &serde_json::json!({"n": n})).unwrap();
    }
}

fn assert_queries(db: &Database, has_terms: bool) {
    let long = format!("{}:", "l".repeat(150));
    for (prefix, count, is_term) in [
        ("books:", 50, true),
        ("films:", 50, true),
        ("none:", 0, true),
        ("books", 100 + 50, false),
        ("book", 150, false),
        ("bookshelf:", 50, true),
        ("bookshelf:x:", 50, false),
        (":", 50, false),
        ("", 300, false),
        (&long, 50, false),
    ] {
        let members = || db.find(field("_id").begins_with(prefix));
        assert_eq!(members().count().unwrap(), count, "{prefix}");
        assert_eq!(members().ids().unwrap().count() as u64, count, "{prefix}");
        assert_eq!(members().sort("n").limit(3).ids().unwrap().count() as u64, count.min(3), "{prefix}");
        let plan = members().explain().unwrap().to_string();
        assert_eq!(plan.contains("collection"), is_term && has_terms, "{prefix}: {plan}");
        let others = db.find(crate::not(field("_id").begins_with(prefix)));
        assert_eq!(others.count().unwrap(), COUNT - count, "{prefix}");
        let some = db.find(field("n").lt(60).and(field("_id").begins_with(prefix)));
        assert_eq!(some.count().unwrap(), count / 5, "{prefix}");
    }
    let report = db.maintenance().check().unwrap();
    assert!(report.is_sound(), "{:#?}", report.damages);
}

/// Removes from the tree what older versions did not write.
fn remove_collection_terms(db: &Database) {
    db.maintenance().checkpoint().unwrap();
    let parts = &db.store().parts;
    let (from, to) =
        (index::first_posting(index::PathNumber::ROOT, &[2]), index::after_postings(index::PathNumber::ROOT, &[]));
    let mut tree = parts.tree.write().unwrap();
    tree.remove_range(Table::Postings, &from, &to);
    tree.delete(Table::Meta, b"terms").unwrap();
    tree.delete(Table::Meta, &[b"statistics/".as_slice(), &[0]].concat()).ok();
    tree.commit().unwrap();
}

#[test]
fn collection_prefix_is_planned_as_one_term() {
    let db = Database::in_memory_with(Options::new().background(false)).unwrap();
    filled(&db);
    assert_queries(&db, true);
    db.maintenance().checkpoint().unwrap();
    assert_queries(&db, true);
}

#[test]
fn tree_without_collection_terms_is_rebuilt() {
    let place = TestStorage::new(1);
    let db = place.open(Options::new().background(false)).unwrap();
    filled(&db);
    remove_collection_terms(&db);
    drop(db);
    let db = place.open(Options::new().background(false)).unwrap();
    assert_queries(&db, true);
}

#[test]
fn read_only_tree_without_collection_terms_is_readable() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("old.stemma");
    let db = Database::open_with(&path, Options::new().background(false)).unwrap();
    filled(&db);
    remove_collection_terms(&db);
    db.close().unwrap();
    assert_queries(&Database::open_with(&path, Options::new().read_only(true)).unwrap(), false);
    assert_queries(&Database::open(&path).unwrap(), true);
    assert_queries(&Database::open_with(&path, Options::new().read_only(true)).unwrap(), true);
}
