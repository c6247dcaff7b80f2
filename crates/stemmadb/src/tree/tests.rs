//! Contract tests of the tree, run on every engine.

use std::collections::BTreeMap;
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::ErrorKind;

/// Runs `check` on an empty tree of each engine and verifies the result.
fn on_each_tree(check: impl Fn(&dyn Tree)) {
    let directory = tempfile::tempdir().unwrap();
    let trees: [&dyn Tree; 2] = [&MemoryTree::new(), &open(&directory)];
    for tree in trees {
        check(tree);
        let report = tree.verify(&mut |_, _| {}).unwrap();
        assert_eq!(report.problems, [""; 0]);
        let snapshot = tree.read().unwrap();
        let row_count: u64 = Table::ALL.into_iter().map(|table| snapshot.row_count(table).unwrap()).sum();
        assert_eq!(report.row_count, row_count);
    }
}

fn open(directory: &tempfile::TempDir) -> LmdbTree {
    LmdbTree::open(directory.path(), &LmdbOptions::default()).unwrap()
}

fn put(tree: &dyn Tree, table: Table, rows: &[(&[u8], &[u8])]) {
    let mut transaction = tree.write().unwrap();
    for (key, value) in rows {
        transaction.put(table, key, value).unwrap();
    }
    transaction.commit().unwrap();
}

/// All rows of a scan.
pub(super) fn collect(mut rows: Rows<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    while let Some((key, value)) = rows.next().unwrap() {
        found.push((key.to_vec(), value.to_vec()));
    }
    found
}

fn keys(tree: &dyn TreeSnapshot, lower: Bound<&[u8]>, upper: Bound<&[u8]>, direction: Direction) -> Vec<u8> {
    let rows = tree.scan(Table::Docs, lower, upper, direction).unwrap();
    collect(rows).into_iter().map(|(key, _)| key[0]).collect()
}

#[test]
fn empty_tree_has_no_rows() {
    on_each_tree(|tree| {
        let snapshot = tree.read().unwrap();
        for table in Table::ALL {
            assert_eq!(snapshot.get(table, b"a").unwrap(), None);
            assert_eq!(snapshot.row_count(table).unwrap(), 0);
            for direction in [Direction::Ascending, Direction::Descending] {
                assert_eq!(collect(snapshot.scan(table, Bound::Unbounded, Bound::Unbounded, direction).unwrap()), []);
            }
        }
    });
}

#[test]
fn rows_are_put_replaced_and_deleted() {
    on_each_tree(|tree| {
        put(tree, Table::Ids, &[(b"a", b"1"), (b"b", b""), (b"a", b"2")]);
        let mut transaction = tree.write().unwrap();
        assert!(transaction.delete(Table::Ids, b"b").unwrap());
        assert!(!transaction.delete(Table::Ids, b"b").unwrap());
        assert!(!transaction.delete(Table::Docs, b"a").unwrap());
        assert_eq!(transaction.get(Table::Ids, b"b").unwrap(), None);
        let before = tree.read().unwrap();
        transaction.commit().unwrap();
        assert_eq!(before.get(Table::Ids, b"b").unwrap(), Some(&b""[..]));
        let after = tree.read().unwrap();
        assert_eq!(after.get_many(Table::Ids, &[b"a", b"b"]).unwrap(), [Some(&b"2"[..]), None]);
        assert_eq!(after.row_count(Table::Ids).unwrap(), 1);
    });
}

/// Groups of rows with a common prefix in many blocks; the result is unknown only where a group continues in another
/// block.
#[test]
fn neighbors_of_a_row_are_known_within_its_block() {
    on_each_tree(|tree| {
        let key = |group: u32, row: u8| [&(group * 2).to_be_bytes()[..], &[row]].concat();
        let size = |group: u32| if group.is_multiple_of(10) { 40 } else { group % 4 } as u8;
        let mut transaction = tree.write().unwrap();
        for group in 0..300u32 {
            for row in 0..size(group) {
                transaction.put(Table::Postings, &key(group, row * 2), &[0; 20]).unwrap();
            }
        }
        transaction.commit().unwrap();
        let mut transaction = tree.write().unwrap();
        let mut unknown_count = 0;
        for group in 0..300u32 {
            let prefix = (group * 2).to_be_bytes();
            for row in 0..=size(group) * 2 {
                let asked = key(group, row);
                transaction.get(Table::Postings, &asked).unwrap();
                let others = size(group) - u8::from(row % 2 == 0 && row / 2 < size(group));
                match transaction.has_neighbor_with_prefix(Table::Postings, &asked, &prefix).unwrap() {
                    Some(found) => assert_eq!(found, others > 0, "{group} {row}"),
                    None => unknown_count += 1,
                }
            }
        }
        assert!(unknown_count < 200, "{unknown_count}");
    });
}

#[test]
fn tables_are_independent() {
    on_each_tree(|tree| {
        for (number, table) in Table::ALL.into_iter().enumerate() {
            put(tree, table, &[(b"key", &[number as u8])]);
        }
        let snapshot = tree.read().unwrap();
        for (number, table) in Table::ALL.into_iter().enumerate() {
            assert_eq!(snapshot.get(table, b"key").unwrap(), Some(&[number as u8][..]));
        }
    });
}

#[test]
fn dropped_transaction_is_rolled_back() {
    on_each_tree(|tree| {
        let mut transaction = tree.write().unwrap();
        transaction.put(Table::Docs, b"a", b"1").unwrap();
        drop(transaction);
        assert_eq!(tree.read().unwrap().row_count(Table::Docs).unwrap(), 0);
    });
}

#[test]
fn snapshot_outlives_changes_and_the_tree() {
    let directory = tempfile::tempdir().unwrap();
    let trees: [Box<dyn Tree>; 2] = [Box::new(MemoryTree::new()), Box::new(open(&directory))];
    for tree in trees {
        put(&*tree, Table::Docs, &[(b"a", b"1")]);
        let snapshot = tree.read().unwrap();
        for value in 0..50u8 {
            put(&*tree, Table::Docs, &[(b"a", &[value; 3000])]);
        }
        tree.clear().unwrap();
        assert_eq!(tree.read().unwrap().row_count(Table::Docs).unwrap(), 0);
        drop(tree);
        assert_eq!(snapshot.get(Table::Docs, b"a").unwrap(), Some(&b"1"[..]));
    }
}

#[test]
fn scans_respect_their_bounds() {
    use Bound::{Excluded, Included, Unbounded};
    use Direction::{Ascending, Descending};
    on_each_tree(|tree| {
        put(tree, Table::Docs, &[(b"b", b""), (b"d", b""), (b"f", b"")]);
        let snapshot = tree.read().unwrap();
        type Case = (Bound<&'static [u8]>, Bound<&'static [u8]>, &'static [u8]);
        let cases: [Case; 12] = [
            (Unbounded, Unbounded, b"bdf"),
            (Included(b"b"), Included(b"f"), b"bdf"),
            (Excluded(b"b"), Excluded(b"f"), b"d"),
            (Included(b"a"), Included(b"c"), b"b"),
            (Included(b"d"), Included(b"d"), b"d"),
            (Included(b"c"), Included(b"c"), b""),
            (Excluded(b"d"), Excluded(b"d"), b""),
            (Included(b"d"), Excluded(b"d"), b""),
            (Included(b"e"), Included(b"c"), b""),
            (Included(b"g"), Unbounded, b""),
            (Unbounded, Excluded(b"b"), b""),
            (Unbounded, Included(b"d\0"), b"bd"),
        ];
        for (lower, upper, expected) in cases {
            let mut expected = expected.to_vec();
            assert_eq!(keys(&*snapshot, lower, upper, Ascending), expected, "{lower:?} to {upper:?}");
            expected.reverse();
            assert_eq!(keys(&*snapshot, lower, upper, Descending), expected, "{lower:?} to {upper:?} down");
        }
    });
}

#[test]
fn invalid_keys_are_rejected_and_not_found() {
    on_each_tree(|tree| {
        let long = [7; KEY_BYTES_MAX + 1];
        let mut transaction = tree.write().unwrap();
        for key in [&b""[..], &long[..]] {
            assert_eq!(transaction.put(Table::Ids, key, b"").unwrap_err().kind(), ErrorKind::Internal);
            assert_eq!(transaction.get(Table::Ids, key).unwrap(), None);
            assert!(!transaction.delete(Table::Ids, key).unwrap());
        }
        transaction.put(Table::Ids, &long[1..], b"the longest").unwrap();
        transaction.commit().unwrap();
        let snapshot = tree.read().unwrap();
        assert_eq!(snapshot.get(Table::Ids, &long[1..]).unwrap(), Some(&b"the longest"[..]));
        assert_eq!(snapshot.get(Table::Ids, &long).unwrap(), None);
        assert_eq!(snapshot.get(Table::Ids, b"").unwrap(), None);
        // Bounds may be any bytes.
        let rows =
            snapshot.scan(Table::Ids, Bound::Included(b""), Bound::Included(&long), Direction::Ascending).unwrap();
        assert_eq!(collect(rows).len(), 1);
    });
}

#[test]
fn large_values_round_trip() {
    on_each_tree(|tree| {
        let value: Vec<u8> = (0..3_000_000u32).map(|i| (i / 7) as u8).collect();
        put(tree, Table::Postings, &[(b"large", &value)]);
        assert_eq!(tree.read().unwrap().get(Table::Postings, b"large").unwrap(), Some(&value[..]));
        assert!(tree.size().unwrap().live_bytes > 3_000_000);
    });
}

#[test]
fn clear_empties_every_table() {
    on_each_tree(|tree| {
        for table in Table::ALL {
            put(tree, table, &[(b"a", b"1"), (b"b", b"2")]);
        }
        assert_eq!(tree.verify(&mut |_, _| {}).unwrap().row_count, 2 * Table::ALL.len() as u64);
        tree.clear().unwrap();
        put(tree, Table::Docs, &[(b"a", b"again")]);
        assert_eq!(tree.read().unwrap().get(Table::Docs, b"a").unwrap(), Some(&b"again"[..]));
    });
}

#[test]
fn many_threads_read_one_snapshot_while_one_writes() {
    on_each_tree(|tree| {
        let rows: Vec<[u8; 8]> = (0..2_000u64).map(u64::to_be_bytes).collect();
        let rows: Vec<(&[u8], &[u8])> = rows.iter().map(|row| (&row[..], &row[..])).collect();
        put(tree, Table::Docs, &rows);
        let snapshot = tree.read().unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        let rows = snapshot.scan(Table::Docs, Bound::Unbounded, Bound::Unbounded, Direction::Ascending);
                        let rows = collect(rows.unwrap());
                        assert_eq!(rows.iter().filter(|(key, value)| key == value).count(), 2_000);
                    }
                });
            }
            for round in 0..20u8 {
                put(tree, Table::Docs, &[(&[0; 8], &[round])]);
                assert_eq!(tree.read().unwrap().get(Table::Docs, &[0; 8]).unwrap(), Some(&[round][..]));
            }
        });
    });
}

/// An operation of a generated script.
#[derive(Debug, Clone)]
enum Operation {
    Put(u8, Vec<u8>),
    Delete(u8),
    Clear,
    Commit,
    Abort,
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        8 => (any::<u8>(), prop::collection::vec(any::<u8>(), 0..600))
            .prop_map(|(key, value)| Operation::Put(key, value)),
        4 => any::<u8>().prop_map(Operation::Delete),
        1 => Just(Operation::Clear),
        2 => Just(Operation::Commit),
        1 => Just(Operation::Abort),
    ]
}

/// Keys of very different lengths, so that pages split unevenly.
fn key(number: u8) -> Vec<u8> {
    let mut key = vec![number];
    key.resize(1 + usize::from(number % 16) * 20, number);
    key
}

fn contents(tree: &dyn TreeSnapshot, direction: Direction) -> Vec<(Vec<u8>, Vec<u8>)> {
    collect(tree.scan(Table::Docs, Bound::Unbounded, Bound::Unbounded, direction).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn behaves_as_an_ordered_map(script in prop::collection::vec(operation(), 1..150)) {
        on_each_tree(|tree| {
            let (mut committed, mut changed) = (BTreeMap::new(), BTreeMap::new());
            let mut transaction = tree.write().unwrap();
            for operation in &script {
                match operation {
                    Operation::Put(number, value) => {
                        transaction.put(Table::Docs, &key(*number), value).unwrap();
                        changed.insert(key(*number), value.clone());
                    }
                    Operation::Delete(number) => {
                        let deleted = transaction.delete(Table::Docs, &key(*number)).unwrap();
                        assert_eq!(deleted, changed.remove(&key(*number)).is_some());
                    }
                    Operation::Clear => {
                        transaction.clear_table(Table::Docs).unwrap();
                        changed.clear();
                    }
                    Operation::Commit => {
                        transaction.commit().unwrap();
                        committed = changed.clone();
                        transaction = tree.write().unwrap();
                    }
                    Operation::Abort => {
                        drop(transaction);
                        changed = committed.clone();
                        transaction = tree.write().unwrap();
                    }
                }
                let probe = [0, 17, 128, 255].map(key);
                for key in &probe {
                    assert_eq!(transaction.get(Table::Docs, key).unwrap(), changed.get(key).map(Vec::as_slice));
                }
            }
            drop(transaction);
            let snapshot = tree.read().unwrap();
            let ascending: Vec<_> = committed.clone().into_iter().collect();
            assert_eq!(contents(&*snapshot, Direction::Ascending), ascending);
            let descending: Vec<_> = committed.into_iter().rev().collect();
            assert_eq!(contents(&*snapshot, Direction::Descending), descending);
        });
    }
}
