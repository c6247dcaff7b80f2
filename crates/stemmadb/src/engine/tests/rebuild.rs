//! Rebuilding the tree from the log: it has the same rows as the tree that writes and checkpoints have made. Paths may
//! have other numbers, so postings are verified by `check`.

use std::ops::Bound;

use super::{assert_sound, book, value};
use crate::revision::DocumentId;
use crate::testing::{self, Failure, Random, TestStorage};
use crate::tree::{Direction, Table};
use crate::vfs::Vfs;
use crate::{Database, Edit, Index, Options};

/// The rows that documents lead to, besides postings.
type Rows = Vec<(Table, Vec<u8>, Vec<u8>)>;

/// So little memory that a rebuild writes many bulk tables and memtables.
fn options() -> Options {
    testing::with_small_limits(Options::new().background(false).cache_bytes(0), 6 << 10, 8 << 10, 40)
}

/// Writes documents of all kinds: with one record and with several, deleted, with branches, moved by compaction.
fn write(db: &Database, seed: u64) {
    let mut random = Random::new(seed);
    db.indexes().create(Index::on("year").then_descending("title")).unwrap();
    for step in 0..260_u64 {
        let id = match random.below(3) {
            0 => format!("book-{}", random.below(30)),
            _ => format!("once-{step}"),
        };
        match random.below(20) {
            0 => db.maintenance().checkpoint().unwrap(),
            1 => drop(db.maintenance().compact().unwrap()),
            2 => drop(db.local_documents().put("_local/a", None, &value(&format!("{{\"at\":{step}}}"))).unwrap()),
            3 => {
                let revisions = vec!["2-elsewhere".parse().unwrap(), format!("1-{step}").parse().unwrap()];
                let (id, body) = (DocumentId::new(id).unwrap(), book(step as usize));
                let deleted = random.chance(300);
                db.edit(Edit::Foreign { id, revisions, deleted, body, files: Vec::new() }).unwrap();
            }
            4 => {
                if let Some(found) = db.get(&id).unwrap() {
                    db.delete(&id, found.revision()).unwrap();
                }
            }
            _ => drop(db.upsert(&id, &book(step as usize)).unwrap()),
        }
    }
    db.maintenance().checkpoint().unwrap();
}

fn rows(db: &Database) -> Rows {
    let tree = db.store().parts.tree.read();
    let mut found = Vec::new();
    for table in [Table::Ids, Table::Docs, Table::Sequences, Table::Local] {
        let mut rows = tree.scan(table, Bound::Unbounded, Bound::Unbounded, Direction::Ascending).unwrap();
        while let Some((key, row)) = rows.next().unwrap() {
            found.push((table, key.to_vec(), row.to_vec()));
        }
    }
    found
}

fn remove_tree(storage: &TestStorage) {
    for name in storage.disk().list("tree").unwrap() {
        storage.disk().remove(&format!("tree/{name}")).unwrap();
    }
    storage.disk().sync_dir("tree").unwrap();
}

#[test]
fn rebuilt_tree_has_the_same_rows() {
    for seed in 0..12 {
        let storage = TestStorage::new(seed);
        let db = storage.open(options()).unwrap();
        write(&db, seed);
        let expected = rows(&db);
        db.close().unwrap();
        for options in [options(), options().background(true)] {
            remove_tree(&storage);
            let db = storage.open(options).unwrap();
            assert!(rows(&db) == expected, "seed {seed}");
            assert_sound(&db);
            db.close().unwrap();
        }
    }
}

#[test]
fn interrupted_rebuild_begins_anew() {
    let storage = TestStorage::new(1);
    let db = storage.open(options()).unwrap();
    write(&db, 1);
    let expected = rows(&db);
    db.close().unwrap();
    remove_tree(&storage);
    let mut interrupted_count = 0;
    for nth in 1.. {
        storage.fail_commit(nth, Failure::Broken, true);
        let opened = storage.open(options());
        let crashed = storage.crash_image(nth);
        storage.heal();
        let is_complete = opened.is_ok();
        drop(opened);
        let db = crashed.open(options()).unwrap();
        assert!(rows(&db) == expected, "interrupted at change {nth} of the tree");
        assert_sound(&db);
        if is_complete {
            break;
        }
        interrupted_count += 1;
        remove_tree(&storage);
    }
    assert!(interrupted_count > 5, "{interrupted_count}");
}
