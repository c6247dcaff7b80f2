//! Tests of the tree against a model, in memory and on a disk that fails.

mod faults;

use std::collections::BTreeMap;
use std::thread;

use proptest::prelude::*;

use super::verify::TreeReport;
use super::*;
use crate::ErrorKind;
use crate::compression::Compression;
use crate::vfs::{Call, Failure, FaultVfs, MemoryVfs, Random};

/// Operands are lists of `+` or `-` and a letter; a value is the letters that were added.
struct Letters;

fn letters(operand: &[u8]) -> BTreeMap<u8, bool> {
    operand.chunks_exact(2).map(|change| (change[1], change[0] == b'+')).collect()
}

impl MergeOperator for Letters {
    fn combine(&self, older: &[u8], newer: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let mut combined = letters(older);
        combined.extend(letters(newer));
        // What was added comes first, so that it is a part of the operand.
        for sign in [true, false] {
            let of_sign = combined.iter().filter(|(_, added)| **added == sign);
            of_sign.for_each(|(letter, _)| out.extend([if sign { b'+' } else { b'-' }, *letter]));
        }
        Ok(())
    }

    fn finish<'a>(&self, operand: &'a [u8]) -> Result<Option<&'a [u8]>> {
        let count = operand.chunks_exact(2).take_while(|change| change[0] == b'+').count();
        Ok((count > 0).then(|| &operand[..2 * count]))
    }

    fn removes(&self, operand: &[u8]) -> bool {
        operand.chunks_exact(2).any(|change| change[0] == b'-')
    }
}

fn open(vfs: Arc<dyn Vfs>, file_bytes: u64) -> Result<Tree> {
    let options = TreeOptions { cache_bytes: 64 << 10, file_bytes, read_only: false, operator: Arc::new(Letters) };
    Tree::open(vfs, "tree", options)
}

fn memory() -> Tree {
    open(Arc::new(MemoryVfs::new()), 4 << 10).unwrap()
}

fn put(tree: &Tree, table: Table, rows: &[(&[u8], &[u8])]) {
    let mut transaction = tree.write().unwrap();
    for (key, value) in rows {
        transaction.put(table, key, value).unwrap();
    }
    transaction.commit().unwrap();
}

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn collect(mut rows: Scan) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut found = Vec::new();
    while let Some((key, value)) = rows.next()? {
        found.push((key.to_vec(), value.to_vec()));
    }
    Ok(found)
}

fn all(snapshot: &TreeSnapshot, table: Table) -> Result<Rows> {
    let rows = snapshot.scan(table, Bound::Unbounded, Bound::Unbounded, Direction::Ascending)?;
    Ok(collect(rows)?.into_iter().collect())
}

fn value(snapshot: &TreeSnapshot, table: Table, key: &[u8]) -> Option<Vec<u8>> {
    snapshot.get(table, key).unwrap().map(|value| value.to_vec())
}

#[test]
fn empty_tree_has_no_rows() {
    let tree = memory();
    let snapshot = tree.read();
    for table in Table::ALL {
        assert_eq!(value(&snapshot, table, b"a"), None);
        assert_eq!(snapshot.row_count(table).unwrap(), 0);
    }
    assert_eq!(tree.verify().unwrap(), TreeReport::default());
}

#[test]
fn rows_are_put_replaced_and_deleted() {
    let tree = memory();
    put(&tree, Table::Ids, &[(b"a", b"1"), (b"b", b""), (b"a", b"2")]);
    let before = tree.read();
    let mut transaction = tree.write().unwrap();
    transaction.delete(Table::Ids, b"b").unwrap();
    transaction.delete(Table::Docs, b"a").unwrap();
    assert_eq!(value(&tree.read(), Table::Ids, b"b"), Some(Vec::new()));
    transaction.commit().unwrap();
    assert_eq!(value(&before, Table::Ids, b"b"), Some(Vec::new()));
    let after = tree.read();
    let mut values = Vec::new();
    let keys: [&[u8]; 2] = [b"a", b"b"];
    let visit = |_, value: Option<&[u8]>| {
        values.push(value.map(<[u8]>::to_vec));
        Ok(())
    };
    after.get_many(Table::Ids, keys.into_iter(), visit).unwrap();
    assert_eq!(values, [Some(b"2".to_vec()), None]);
    assert_eq!(after.row_count(Table::Ids).unwrap(), 1);
}

#[test]
fn dropped_transaction_is_rolled_back() {
    let tree = memory();
    let mut transaction = tree.write().unwrap();
    transaction.put(Table::Docs, b"a", b"1").unwrap();
    drop(transaction);
    assert_eq!(tree.read().row_count(Table::Docs).unwrap(), 0);
}

#[test]
fn key_that_is_too_long_or_empty_is_refused() {
    let tree = memory();
    let mut transaction = tree.write().unwrap();
    for key in [&[][..], &[1; KEY_BYTES_MAX + 1]] {
        let error = transaction.put(Table::Docs, key, b"").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
    }
    transaction.put(Table::Docs, &[1; KEY_BYTES_MAX], b"").unwrap();
}

#[test]
fn scans_respect_their_bounds_in_both_directions() {
    let tree = memory();
    for start in 0..4_u8 {
        let rows: Vec<_> = (0..50).map(|row| [start + 4 * row]).collect();
        let rows: Vec<(&[u8], &[u8])> = rows.iter().map(|key| (&key[..], &key[..])).collect();
        put(&tree, Table::Docs, &rows);
    }
    let snapshot = tree.read();
    let bounds = |key: &'static [u8]| [Bound::Included(key), Bound::Excluded(key), Bound::Unbounded];
    for lower in bounds(&[70]).into_iter().chain(bounds(&[71])) {
        for upper in bounds(&[70]).into_iter().chain(bounds(&[90])) {
            let expected: Vec<u8> = (0..200)
                .filter(|key| {
                    let is_above = match lower {
                        Bound::Included(lower) => *key >= lower[0],
                        Bound::Excluded(lower) => *key > lower[0],
                        Bound::Unbounded => true,
                    };
                    let is_below = match upper {
                        Bound::Included(upper) => *key <= upper[0],
                        Bound::Excluded(upper) => *key < upper[0],
                        Bound::Unbounded => true,
                    };
                    is_above && is_below
                })
                .collect();
            let scan = |direction| -> Vec<u8> {
                let rows = snapshot.scan(Table::Docs, lower, upper, direction).unwrap();
                collect(rows).unwrap().into_iter().map(|(key, _)| key[0]).collect()
            };
            assert_eq!(scan(Direction::Ascending), expected);
            assert_eq!(scan(Direction::Descending).into_iter().rev().collect::<Vec<_>>(), expected);
        }
    }
}

#[test]
fn snapshot_outlives_merges_and_the_tree() {
    let vfs = Arc::new(MemoryVfs::new());
    let tree = open(vfs.clone(), 4 << 10).unwrap();
    put(&tree, Table::Docs, &[(b"a", b"1")]);
    let snapshot = tree.read();
    for value in 0..50_u8 {
        put(&tree, Table::Docs, &[(b"a", &[value; 3000])]);
        while tree.merge_step(MergeGoal::All).unwrap() {}
    }
    tree.clear().unwrap();
    assert_eq!(tree.read().row_count(Table::Docs).unwrap(), 0);
    assert_eq!(tree.verify().unwrap(), TreeReport::default());
    drop(tree);
    assert_eq!(value(&snapshot, Table::Docs, b"a"), Some(b"1".to_vec()));
    drop(snapshot);
    assert_eq!(vfs.list("tree").unwrap(), [manifest::NAME]);
}

/// A change of one row or range in a test.
#[derive(Debug, Clone)]
enum Change {
    Put(u16, u8),
    Delete(u16),
    Merge(u16, u8, bool),
    RemoveRange(u16, u16),
}

fn change() -> impl Strategy<Value = Change> {
    let key = 0..300_u16;
    prop_oneof![
        8 => (key.clone(), any::<u8>()).prop_map(|(key, value)| Change::Put(key, value)),
        3 => key.clone().prop_map(Change::Delete),
        8 => (key.clone(), b'a'..b'f', any::<bool>())
            .prop_map(|(key, letter, added)| Change::Merge(key, letter, added)),
        1 => (key.clone(), 0..40_u16).prop_map(|(key, count)| Change::RemoveRange(key, key + count)),
    ]
}

/// What happens after the changes of one transaction.
#[derive(Debug, Clone)]
enum Then {
    Nothing,
    Step(MergeGoal),
    Reopen,
    Hold,
}

fn then() -> impl Strategy<Value = Then> {
    prop_oneof![
        4 => Just(Then::Nothing),
        3 => Just(Then::Step(MergeGoal::Pace)),
        2 => Just(Then::Step(MergeGoal::Rest)),
        1 => Just(Then::Step(MergeGoal::All)),
        1 => Just(Then::Reopen),
        1 => Just(Then::Hold),
    ]
}

/// The rows of a table of values and of one with operands.
#[derive(Debug, Clone, Default, PartialEq)]
struct Model {
    values: Rows,
    sets: BTreeMap<Vec<u8>, BTreeMap<u8, ()>>,
}

impl Model {
    /// Applies the changes of a transaction to the model and to `transaction`. Ranges are removed before.
    fn apply(&mut self, changes: &[Change], transaction: &mut TreeTransaction<'_>) {
        for change in changes {
            if let Change::RemoveRange(from, to) = change {
                let (from, to) = (from.to_be_bytes().to_vec(), to.to_be_bytes().to_vec());
                self.values.retain(|key, _| *key < from || *key >= to);
                self.sets.retain(|key, _| *key < from || *key >= to);
                transaction.remove_range(Table::Docs, &from, &to);
                transaction.remove_range(Table::Postings, &from, &to);
            }
        }
        let mut merged = std::collections::BTreeSet::new();
        for change in changes {
            match change {
                Change::Put(key, value) => {
                    let (key, value) = (key.to_be_bytes(), vec![*value; usize::from(*value)]);
                    transaction.put(Table::Docs, &key, &value).unwrap();
                    self.values.insert(key.to_vec(), value);
                }
                Change::Delete(key) => {
                    transaction.delete(Table::Docs, &key.to_be_bytes()).unwrap();
                    self.values.remove(&key.to_be_bytes()[..]);
                }
                Change::Merge(key, letter, added) if merged.insert(*key) => {
                    let operand = [if *added { b'+' } else { b'-' }, *letter];
                    transaction.merge(Table::Postings, &key.to_be_bytes(), &operand).unwrap();
                    let set = self.sets.entry(key.to_be_bytes().to_vec()).or_default();
                    if *added {
                        set.insert(*letter, ())
                    } else {
                        set.remove(letter)
                    };
                }
                Change::Merge(..) | Change::RemoveRange(..) => {}
            }
        }
        self.sets.retain(|_, set| !set.is_empty());
    }

    fn compare(&self, snapshot: &TreeSnapshot) {
        assert_eq!(all(snapshot, Table::Docs).unwrap(), self.values);
        let sets = all(snapshot, Table::Postings).unwrap();
        let sets: BTreeMap<_, _> = sets
            .into_iter()
            .map(|(key, value)| (key, letters(&value).into_keys().map(|letter| (letter, ())).collect()))
            .collect();
        assert_eq!(sets, self.sets);
        for key in (0..300_u16).step_by(7).map(u16::to_be_bytes) {
            assert_eq!(value(snapshot, Table::Docs, &key), self.values.get(&key[..]).cloned());
            let set = value(snapshot, Table::Postings, &key);
            let set = set.map(|set| letters(&set).into_keys().map(|letter| (letter, ())).collect());
            assert_eq!(set, self.sets.get(&key[..]).cloned());
        }
        let rows = snapshot.scan(Table::Docs, Bound::Unbounded, Bound::Unbounded, Direction::Descending).unwrap();
        let descending: Vec<_> = collect(rows).unwrap();
        assert!(descending.iter().map(|(key, _)| key).eq(self.values.keys().rev()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn tree_equals_an_ordered_map(
        steps in prop::collection::vec((prop::collection::vec(change(), 0..60), then()), 1..60),
        file_bytes in prop_oneof![Just(600_u64), Just(4 << 10), Just(1 << 20)],
    ) {
        let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
        let mut tree = open(vfs.clone(), file_bytes).unwrap();
        let mut model = Model::default();
        let mut held = Vec::new();
        for (changes, then) in steps {
            let mut transaction = tree.write().unwrap();
            model.apply(&changes, &mut transaction);
            transaction.commit().unwrap();
            match then {
                Then::Nothing => {}
                Then::Step(goal) => _ = tree.merge_step(goal).unwrap(),
                Then::Reopen => {
                    held.clear();
                    drop(tree);
                    tree = open(vfs.clone(), file_bytes).unwrap();
                }
                Then::Hold => held.push((tree.read(), model.clone())),
            }
            model.compare(&tree.read());
        }
        held.iter().for_each(|(snapshot, model)| model.compare(snapshot));
        while tree.merge_step(MergeGoal::All).unwrap() {}
        model.compare(&tree.read());
        prop_assert!(tree.run_count() <= 1);
        let report = tree.verify().unwrap();
        prop_assert_eq!(report.problems, [""; 0]);
        prop_assert_eq!(report.row_count as usize, model.values.len() + model.sets.len());
        held.clear();
        let size = tree.size();
        prop_assert_eq!(size.file_bytes, size.live_bytes);
    }
}

/// Rows that change in each transaction, and a marker with the number of the transaction.
fn write_generation(tree: &Tree, generation: u32) -> Result<()> {
    let mut transaction = tree.write()?;
    transaction.put(Table::Meta, b"generation", &generation.to_be_bytes())?;
    for row in 0..40_u32 {
        let key = (row * 7 + generation % 5).to_be_bytes();
        if (row + generation).is_multiple_of(3) {
            transaction.delete(Table::Docs, &key)?;
        } else {
            transaction.put(Table::Docs, &key, &generation.to_be_bytes())?;
        }
        transaction.merge(Table::Postings, &key, &[if generation.is_multiple_of(2) { b'+' } else { b'-' }, b'a'])?;
    }
    transaction.commit()
}

fn generation(tree: &Tree) -> Result<u32> {
    let stored = tree.read().get(Table::Meta, b"generation")?;
    Ok(stored.map_or(0, |stored| u32::from_be_bytes(stored[..].try_into().unwrap())))
}

/// All rows after each generation.
fn expected_generations(count: u32) -> Vec<(Rows, Rows)> {
    let tree = memory();
    let state = |tree: &Tree| (all(&tree.read(), Table::Docs).unwrap(), all(&tree.read(), Table::Postings).unwrap());
    let mut states = vec![state(&tree)];
    for generation in 1..=count {
        write_generation(&tree, generation).unwrap();
        states.push(state(&tree));
    }
    states
}

/// Whatever a power loss keeps, the tree is as one of the commits left it, not before the last acknowledged one.
#[test]
fn power_loss_leaves_a_committed_state() {
    let expected = expected_generations(30);
    for seed in 0..30 {
        let vfs = FaultVfs::new(seed);
        let mut random = Random::new(seed);
        let mut images = Vec::new();
        let tree = open(Arc::new(vfs.clone()), 700).unwrap();
        for generation in 1..=30_u32 {
            write_generation(&tree, generation).unwrap();
            images.push((generation, vfs.crash_image(random.number())));
            let goal = if random.chance(100) { MergeGoal::All } else { MergeGoal::Pace };
            while random.chance(700) && tree.merge_step(goal).unwrap() {
                images.push((generation, vfs.crash_image(random.number())));
            }
        }
        for (acknowledged, image) in images {
            let tree = open(Arc::new(image), 700).unwrap();
            let found = generation(&tree).unwrap();
            assert_eq!(found, acknowledged);
            let (rows, sets) = &expected[found as usize];
            assert_eq!(&all(&tree.read(), Table::Docs).unwrap(), rows);
            assert_eq!(&all(&tree.read(), Table::Postings).unwrap(), sets);
            assert_eq!(tree.verify().unwrap().problems, [""; 0]);
        }
    }
}

/// An I/O error at any call leaves a committed state, in this process, after reopening and after a power loss; and the
/// tree goes on once the disk works again.
#[test]
fn io_error_at_any_call_leaves_a_committed_state() {
    let expected = expected_generations(20);
    for nth in 1..400 {
        let vfs = FaultVfs::new(nth);
        vfs.fail(Call::AnyChange, nth, Failure::Full, nth % 2 == 0);
        let Ok(tree) = open(Arc::new(vfs.clone()), 700) else { continue };
        let mut acknowledged = 0;
        let mut begun = 0;
        for generation in 1..=12 {
            begun = generation;
            if write_generation(&tree, generation).is_err() {
                break;
            }
            acknowledged = generation;
            while tree.merge_step(MergeGoal::Pace).is_ok_and(|did| did) {}
        }
        let check = |tree: &Tree| {
            let found = generation(tree).unwrap();
            assert!((acknowledged..=begun).contains(&found), "{found} of {acknowledged} to {begun}");
            assert_eq!(all(&tree.read(), Table::Docs).unwrap(), expected[found as usize].0);
            assert_eq!(all(&tree.read(), Table::Postings).unwrap(), expected[found as usize].1);
            found
        };
        check(&tree);
        vfs.heal();
        let image = vfs.crash_image(nth);
        for generation in check(&tree) + 1..=20 {
            write_generation(&tree, generation).unwrap();
            while tree.merge_step(MergeGoal::Pace).unwrap() {}
        }
        assert_eq!(all(&tree.read(), Table::Docs).unwrap(), expected[20].0);
        drop(tree);
        for disk in [image, vfs] {
            let tree = open(Arc::new(disk), 700).unwrap();
            assert_eq!(tree.verify().unwrap().problems, [""; 0]);
            if generation(&tree).unwrap() != 20 {
                check(&tree);
            }
        }
    }
}

/// Every flipped bit of a run file or the manifest is an error, a problem that `verify` reports, or an older commit;
/// rows are never altered.
#[test]
fn flipped_bits_are_never_silent() {
    let expected = expected_generations(12);
    let vfs = FaultVfs::new(1);
    let tree = open(Arc::new(vfs.clone()), 700).unwrap();
    for generation in 1..=12 {
        write_generation(&tree, generation).unwrap();
        if generation == 11 {
            while tree.merge_step(MergeGoal::Pace).unwrap() {}
        }
    }
    drop(tree);
    let mut random = Random::new(7);
    let names: Vec<String> = vfs.list("tree").unwrap();
    let mut older_count = 0;
    for round in 0..1_500 {
        let name = &names[round % names.len()];
        let disk = vfs.crash_image(round as u64);
        let path = format!("tree/{name}");
        let mut at = 0;
        disk.damage(&path, |bytes| {
            at = random.below(bytes.len() as u64 * 8) as usize;
            bytes[at / 8] ^= 1 << (at % 8);
        });
        let found = open(Arc::new(disk), 700).and_then(|tree| {
            let found = generation(&tree)?;
            let state = (all(&tree.read(), Table::Docs)?, all(&tree.read(), Table::Postings)?);
            assert_eq!(state, expected[found as usize], "{path} bit {at}");
            let problems = tree.verify()?.problems;
            assert!(found < 12 || !problems.is_empty(), "{path} bit {at} is silent");
            Ok(found)
        });
        match found {
            Ok(12) => {}
            Ok(_) => {
                assert_eq!(name, manifest::NAME);
                older_count += 1;
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
        }
    }
    assert!(older_count > 0, "a damaged record of the manifest hides the newest commits");
}

#[test]
fn missing_file_is_reported_when_the_tree_is_opened() {
    let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
    let tree = open(vfs.clone(), 4 << 10).unwrap();
    put(&tree, Table::Docs, &[(b"a", b"1")]);
    drop(tree);
    vfs.remove("tree/0000000001.run").unwrap();
    let error = open(vfs, 4 << 10).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(error.message(), "tree/0000000001.run is missing");
}

#[test]
fn files_that_are_not_listed_are_deleted_when_the_tree_is_opened() {
    let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
    let tree = open(vfs.clone(), 4 << 10).unwrap();
    put(&tree, Table::Docs, &[(b"a", b"1")]);
    for name in ["0000000099.run", "data.mdb", "lock.mdb", "MANIFEST.new"] {
        vfs.create(&format!("tree/{name}")).unwrap();
    }
    assert_eq!(tree.verify().unwrap().problem_count, 4);
    drop(tree);
    let tree = open(vfs.clone(), 4 << 10).unwrap();
    assert_eq!(tree.verify().unwrap(), TreeReport { row_count: 1, ..TreeReport::default() });
    let mut names = vfs.list("tree").unwrap();
    names.sort();
    assert_eq!(names, ["0000000001.run", "MANIFEST"]);
}

#[test]
fn merges_keep_few_runs_and_free_what_is_hidden() {
    let tree = open(Arc::new(MemoryVfs::new()), 64 << 10).unwrap();
    let mut most = 0;
    for round in 0..200_u32 {
        let mut transaction = tree.write().unwrap();
        for row in 0..100_u32 {
            transaction.put(Table::Ids, &(row * 31 + round % 7).to_be_bytes(), &[round as u8; 40]).unwrap();
            transaction.put(Table::Docs, &(round * 100 + row).to_be_bytes(), &[1; 40]).unwrap();
        }
        transaction.commit().unwrap();
        while tree.merge_step(MergeGoal::Pace).unwrap() {}
        most = most.max(tree.run_count());
    }
    assert!(most <= 16, "{most} runs");
    while tree.merge_step(MergeGoal::Rest).unwrap() {}
    let live_bytes = 20_000 * 46 + 700 * 46;
    assert!(tree.size().live_bytes < live_bytes * 5 / 4, "{:?}", tree.size());
    let mut transaction = tree.write().unwrap();
    (0..20_000_u32).for_each(|row| transaction.delete(Table::Docs, &row.to_be_bytes()).unwrap());
    transaction.commit().unwrap();
    while tree.merge_step(MergeGoal::Rest).unwrap() {}
    assert!(tree.size().file_bytes < 60_000, "{:?}", tree.size());
}

#[test]
fn readers_beside_commits_and_merges_see_whole_commits() {
    let tree = open(Arc::new(MemoryVfs::new()), 2 << 10).unwrap();
    let expected = expected_generations(60);
    write_generation(&tree, 1).unwrap();
    thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut last = 0;
                    while last < 60 {
                        let snapshot = tree.read();
                        let found = value(&snapshot, Table::Meta, b"generation").unwrap();
                        last = u32::from_be_bytes(found.try_into().unwrap());
                        assert_eq!(all(&snapshot, Table::Docs).unwrap(), expected[last as usize].0);
                    }
                })
            })
            .collect();
        let merger = scope.spawn(|| {
            while generation(&tree).unwrap() < 60 {
                _ = tree.merge_step(MergeGoal::All).unwrap();
            }
        });
        (2..=60).for_each(|generation| write_generation(&tree, generation).unwrap());
        readers.into_iter().chain([merger]).for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn batched_lookup_finds_what_single_lookups_find() {
    let tree = memory();
    let mut random = Random::new(7);
    let key = |number: u64| (3 * number).to_be_bytes();
    for round in 0..6_u64 {
        let mut transaction = tree.write().unwrap();
        for number in 0..400 {
            match random.below(6) {
                0 | 1 => transaction.put(Table::Docs, &key(number), &[round as u8; 40]).unwrap(),
                2 => transaction.merge(Table::Docs, &key(number), &[b'+', b'a' + round as u8]).unwrap(),
                3 => transaction.delete(Table::Docs, &key(number)).unwrap(),
                _ => {}
            }
        }
        transaction.commit().unwrap();
        if round == 2 {
            while tree.merge_step(MergeGoal::All).unwrap() {}
        }
        let snapshot = tree.read();
        for _ in 0..20 {
            // Also keys of no row, and keys in any order.
            let mut keys: Vec<_> = (0..random.below(60)).map(|_| (random.below(1_210)).to_be_bytes()).collect();
            if random.below(2) == 0 {
                keys.sort_unstable();
            }
            let mut found = Vec::new();
            let visit = |index, value: Option<&[u8]>| {
                found.push((index, value.map(<[u8]>::to_vec)));
                Ok(())
            };
            snapshot.get_many(Table::Docs, keys.iter().map(|key| key.as_slice()), visit).unwrap();
            let expected: Vec<_> = keys.iter().map(|key| value(&snapshot, Table::Docs, key)).enumerate().collect();
            assert_eq!(found, expected);
        }
    }
}

/// A scan passes slices without rows one after the other: their number does not grow the stack.
#[test]
fn thousands_of_removed_ranges_are_passed_with_a_small_stack() {
    const COUNT: u32 = 3_000;
    let tree = Arc::new(open(Arc::new(MemoryVfs::new()), 1 << 20).unwrap());
    let mut transaction = tree.write().unwrap();
    (0..=COUNT).for_each(|number| transaction.put(Table::Docs, &number.to_be_bytes(), &[1]).unwrap());
    transaction.commit().unwrap();
    let mut transaction = tree.write().unwrap();
    for number in (0..COUNT).map(u32::to_be_bytes) {
        transaction.remove_range(Table::Docs, &number, &[&number[..], &[0]].concat());
    }
    transaction.commit().unwrap();
    let scan = move || {
        for direction in [Direction::Ascending, Direction::Descending] {
            let snapshot = tree.read();
            let rows = snapshot.scan(Table::Docs, Bound::Unbounded, Bound::Unbounded, direction).unwrap();
            assert_eq!(collect(rows).unwrap().len(), 1);
        }
    };
    thread::Builder::new().stack_size(64 << 10).spawn(scan).unwrap().join().unwrap();
}

/// Rows that repeat each other, and some that don't.
fn compressible_rows(round: u16) -> Rows {
    let row = |number: u16| {
        let key = (number * 3 + round).to_be_bytes().to_vec();
        let value = match number % 7 {
            0 => blake3::hash(&key).as_bytes().to_vec(),
            _ => format!("kind:payment country:portugal number:{number}").into_bytes(),
        };
        (key, value)
    };
    (0..400).map(row).collect()
}

fn put_all(tree: &Tree, rows: &Rows) {
    let rows: Vec<(&[u8], &[u8])> = rows.iter().map(|(key, value)| (&key[..], &value[..])).collect();
    put(tree, Table::Docs, &rows);
}

#[test]
fn compressed_blocks_are_mixed_with_others() {
    let vfs = Arc::new(MemoryVfs::new());
    let tree = open(vfs.clone(), 4 << 10).unwrap();
    let (mut expected, mut sizes) = (Rows::new(), Vec::new());
    for (round, compression) in
        [Compression::None, Compression::Lz4, Compression::Zstd].into_iter().cycle().take(7).enumerate()
    {
        tree.set_compression(compression);
        let rows = compressible_rows(round as u16);
        put_all(&tree, &rows);
        sizes.push(tree.size().live_bytes - sizes.iter().sum::<u64>());
        expected.extend(rows);
        assert!(all(&tree.read(), Table::Docs).unwrap() == expected, "round {round}");
    }
    assert!(sizes[1] * 10 < sizes[0] * 8 && sizes[2] * 10 < sizes[0] * 8, "{sizes:?}");
    assert_eq!(tree.verify().unwrap().problem_count, 0);
    let check = |tree: &Tree| {
        let snapshot = tree.read();
        assert!(all(&snapshot, Table::Docs).unwrap() == expected);
        expected.iter().for_each(|(key, found)| assert_eq!(value(&snapshot, Table::Docs, key).as_ref(), Some(found)));
    };
    let mut merged = Vec::new();
    for compression in [Compression::Lz4, Compression::Zstd, Compression::None] {
        tree.set_compression(compression);
        tree.merge_all().unwrap();
        merged.push(tree.size().live_bytes);
        check(&tree);
        assert_eq!(tree.verify().unwrap().problem_count, 0);
        assert!(!tree.merge_step(MergeGoal::All).unwrap(), "everything is compressed as it is to be");
    }
    assert!(merged[0] < merged[2] && merged[1] < merged[2], "{merged:?}");
    drop(tree);
    check(&open(vfs, 4 << 10).unwrap());
}

#[test]
fn damaged_compressed_block_is_reported() {
    for compression in [Compression::Lz4, Compression::Zstd] {
        let vfs = Arc::new(MemoryVfs::new());
        let tree = open(vfs.clone(), 1 << 20).unwrap();
        tree.set_compression(compression);
        put_all(&tree, &compressible_rows(0));
        let file = vfs.open("tree/0000000001.run").unwrap();
        file.write_at(&[0xff; 3], 20).unwrap();
        let error = all(&tree.read(), Table::Docs).unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupt && error.message().contains("checksum"), "{error:?}");
        assert!(tree.verify().unwrap().problem_count > 0);
    }
}
