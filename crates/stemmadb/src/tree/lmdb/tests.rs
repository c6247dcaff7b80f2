//! Tests of the tree on disk: reopening, errors, damage.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::ops::Bound;
use std::os::unix::fs::FileExt;

use super::*;
use crate::ErrorKind;
use crate::tree::Direction;
use crate::tree::tests::collect;

type Model = BTreeMap<(Table, Vec<u8>), Vec<u8>>;

/// A small random number generator, so that a seed reproduces a run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB) % below
    }
}

fn open(directory: &Path) -> Result<LmdbTree> {
    LmdbTree::open(directory, &LmdbOptions { map_bytes: 1 << 30, ..LmdbOptions::default() })
}

/// Fills the tree as a store does: numbers appended and rewritten, random keys of varying length, a few large values.
fn fill(tree: &LmdbTree, row_count: u64, commit_count: u64, dice: &mut Dice) -> Model {
    let mut model = Model::new();
    fill_more(tree, &mut model, row_count, commit_count, dice);
    model
}

fn fill_more(tree: &LmdbTree, model: &mut Model, row_count: u64, commit_count: u64, dice: &mut Dice) {
    for commit in 0..commit_count {
        let mut transaction = tree.write().unwrap();
        for row in 0..row_count / commit_count {
            let number = commit * (row_count / commit_count) + row;
            let mut rows = vec![(Table::Docs, number.to_be_bytes().to_vec(), 60)];
            rows.push((Table::Docs, dice.roll(number + 1).to_be_bytes().to_vec(), 70));
            let path = vec![dice.roll(15) as u8; 1 + dice.roll(60) as usize];
            let large = if dice.roll(200) == 0 { 2000 + dice.roll(9000) as usize } else { dice.roll(90) as usize };
            rows.push((Table::Postings, [path, dice.roll(row_count).to_be_bytes().to_vec()].concat(), large));
            for (table, key, len) in rows {
                let value: Vec<u8> = (0..len).map(|_| dice.roll(256) as u8).collect();
                transaction.put(table, &key, &value).unwrap();
                model.insert((table, key), value);
            }
            if dice.roll(4) == 0 {
                let key = dice.roll(number + 1).to_be_bytes().to_vec();
                assert_eq!(transaction.delete(Table::Docs, &key).unwrap(), model.remove(&(Table::Docs, key)).is_some());
            }
        }
        transaction.commit().unwrap();
    }
}

fn rows_of(model: &Model, table: Table) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> {
    let rows = model.iter().filter(move |((of, _), _)| *of == table);
    rows.map(|((_, key), value)| (key.as_slice(), value.as_slice()))
}

fn assert_equals(tree: &LmdbTree, model: &Model) {
    let snapshot = tree.read().unwrap();
    let mut transaction = tree.write().unwrap();
    for table in Table::ALL {
        let all = |direction| (Bound::Unbounded, Bound::Unbounded, direction);
        let mut expected: Vec<_> = rows_of(model, table).collect();
        let owned = |rows: &[(&[u8], &[u8])]| {
            rows.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect::<Vec<_>>()
        };
        let (lower, upper, direction) = all(Direction::Ascending);
        assert_eq!(collect(snapshot.scan(table, lower, upper, direction).unwrap()), owned(&expected), "table {table}");
        expected.reverse();
        let (lower, upper, direction) = all(Direction::Descending);
        let down = collect(snapshot.scan(table, lower, upper, direction).unwrap());
        assert_eq!(down, owned(&expected), "table {table} down");
        let keys: Vec<_> = expected.iter().map(|(key, _)| *key).collect();
        let values: Vec<_> = expected.iter().map(|(_, value)| Some(*value)).collect();
        assert_eq!(snapshot.get_many(table, &keys).unwrap(), values);
        for (key, value) in expected {
            assert_eq!(snapshot.get(table, key).unwrap(), Some(value));
            assert_eq!(transaction.get(table, key).unwrap(), Some(value));
            let absent = [key, b"\0"].concat();
            if !model.contains_key(&(table, absent.clone())) {
                assert_eq!(snapshot.get_many(table, &[key, &absent, key]).unwrap(), [Some(value), None, Some(value)]);
            }
        }
    }
    let report = tree.verify(&mut |_, _| {}).unwrap();
    assert_eq!(report.problems, [""; 0]);
    assert_eq!(report.row_count, model.len() as u64);
}

#[test]
fn deep_tree_reads_back_before_and_after_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let tree = open(directory.path()).unwrap();
    let model = fill(&tree, 30_000, 12, &mut Dice(1));
    assert!(tree.current.read().root(Table::Postings).depth >= 3);
    assert_equals(&tree, &model);
    drop(tree);
    assert_equals(&open(directory.path()).unwrap(), &model);
    let options = LmdbOptions { read_only: true, ..LmdbOptions::default() };
    let tree = LmdbTree::open(directory.path(), &options).unwrap();
    assert_eq!(tree.read().unwrap().row_count(Table::Docs).unwrap(), rows_of(&model, Table::Docs).count() as u64);
    assert_eq!(tree.write().err().unwrap().kind(), ErrorKind::Unavailable);
}

#[test]
fn bounded_scans_match_the_model() {
    let directory = tempfile::tempdir().unwrap();
    let tree = open(directory.path()).unwrap();
    let mut dice = Dice(2);
    let model = fill(&tree, 4_000, 4, &mut dice);
    let snapshot = tree.read().unwrap();
    let rows: Vec<_> = rows_of(&model, Table::Postings).collect();
    for _ in 0..2_000 {
        let bound = |dice: &mut Dice| {
            let mut key = rows[dice.roll(rows.len() as u64) as usize].0.to_vec();
            match dice.roll(5) {
                0 => return Bound::Unbounded,
                1 => key.truncate(1 + dice.roll(3) as usize),
                2 => key.push(0),
                _ => {}
            }
            if dice.roll(2) == 0 { Bound::Included(key) } else { Bound::Excluded(key) }
        };
        let (lower, upper) = (bound(&mut dice), bound(&mut dice));
        let bounds = (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice));
        let within = |key: &[u8]| std::ops::RangeBounds::<[u8]>::contains(&bounds, key);
        let expected: Vec<_> = rows.iter().copied().filter(|(key, _)| within(key)).collect();
        let mut expected: Vec<_> = expected.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
        let up = collect(snapshot.scan(Table::Postings, bounds.0, bounds.1, Direction::Ascending).unwrap());
        assert_eq!(up, expected, "{bounds:?}");
        expected.reverse();
        let down = collect(snapshot.scan(Table::Postings, bounds.0, bounds.1, Direction::Descending).unwrap());
        assert_eq!(down, expected, "{bounds:?}");
    }
}

#[test]
fn rows_put_in_order_fill_their_pages() {
    let directory = tempfile::tempdir().unwrap();
    let tree = open(directory.path()).unwrap();
    for commit in 0..10u64 {
        let mut transaction = tree.write().unwrap();
        for number in commit * 2_000..(commit + 1) * 2_000 {
            transaction.put(Table::Docs, &number.to_be_bytes(), &[7; 88]).unwrap();
        }
        transaction.commit().unwrap();
    }
    // Blocks of 10 rows, four of them per page.
    let root = *tree.current.read().root(Table::Docs);
    assert!(root.leaf_pages <= 20_000 / 40 + 12, "{} leaves", root.leaf_pages);
}

#[test]
fn copy_is_compact_and_equal() {
    let directory = tempfile::tempdir().unwrap();
    let tree = open(directory.path()).unwrap();
    let model = fill(&tree, 3_000, 10, &mut Dice(3));
    let copy = tempfile::tempdir().unwrap();
    tree.copy(&copy.path().join("data.mdb")).unwrap();
    let copied = open(copy.path()).unwrap();
    assert_equals(&copied, &model);
    let (size, copied) = (tree.size().unwrap(), copied.size().unwrap());
    assert!(copied.file_bytes < size.file_bytes && size.live_bytes <= size.file_bytes);
}

#[test]
fn second_open_is_refused_and_removed_tree_is_recreated_empty() {
    let directory = tempfile::tempdir().unwrap();
    let tree = open(directory.path()).unwrap();
    fill(&tree, 100, 1, &mut Dice(4));
    assert_eq!(open(directory.path()).unwrap_err().kind(), ErrorKind::Unavailable);
    drop(tree);
    for file in LmdbTree::files(directory.path()) {
        fs::remove_file(file).unwrap();
    }
    assert_eq!(open(directory.path()).unwrap().verify(&mut |_, _| {}).unwrap().row_count, 0);
    assert_eq!(open(&directory.path().join("nowhere")).unwrap_err().kind(), ErrorKind::Unavailable);
}

#[test]
fn full_map_is_a_recoverable_error() {
    let directory = tempfile::tempdir().unwrap();
    let options = LmdbOptions { map_bytes: 1 << 20, ..LmdbOptions::default() };
    let tree = LmdbTree::open(directory.path(), &options).unwrap();
    let mut transaction = tree.write().unwrap();
    let mut put = |number: u64| transaction.put(Table::Docs, &number.to_be_bytes(), &[1; 3_000]);
    let error = (0..1_000).find_map(|number| put(number).err()).unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.hint().is_some());
    drop(transaction);
    let mut transaction = tree.write().unwrap();
    transaction.put(Table::Docs, b"small", b"fits").unwrap();
    transaction.commit().unwrap();
    assert_eq!(tree.read().unwrap().row_count(Table::Docs).unwrap(), 1);
}

#[test]
fn truncated_and_foreign_files_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data.mdb");
    fill(&open(directory.path()).unwrap(), 1_000, 2, &mut Dice(5));
    let whole = fs::read(&path).unwrap();
    for len in [1, 100, 4096, 5000, 8192, 8193, 20_000, whole.len() / 2, whole.len() - 4096] {
        fs::write(&path, &whole[..len]).unwrap();
        let error = open(directory.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{len} bytes: {error}");
    }
    let mut other = whole.clone();
    other[20] = 2;
    other[4096 + 20] = 2;
    fs::write(&path, &other).unwrap();
    assert!(open(directory.path()).unwrap_err().message().contains("another version"));
    fs::write(&path, vec![b'x'; 100_000]).unwrap();
    assert_eq!(open(directory.path()).unwrap_err().kind(), ErrorKind::Corrupt);
    fs::write(&path, whole).unwrap();
    assert!(open(directory.path()).is_ok());
}

/// Results of reading everything from a damaged tree.
#[derive(Debug, Default, PartialEq, Eq)]
struct Findings {
    wrong: u64,
    missing: u64,
    errors: u64,
}

fn read_everything(tree: &LmdbTree, model: &Model) -> Findings {
    let mut findings = Findings::default();
    let snapshot = tree.read().unwrap();
    for table in [Table::Docs, Table::Postings] {
        for direction in [Direction::Ascending, Direction::Descending] {
            let mut seen = 0;
            let Ok(mut rows) = snapshot.scan(table, Bound::Unbounded, Bound::Unbounded, direction) else {
                findings.errors += 1;
                continue;
            };
            loop {
                match rows.next() {
                    Ok(None) => break,
                    Ok(Some((key, value))) if model.get(&(table, key.to_vec())).is_some_and(|right| right == value) => {
                        seen += 1
                    }
                    Ok(Some(_)) => findings.wrong += 1,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                        findings.errors += 1;
                        seen = usize::MAX;
                        break;
                    }
                }
            }
            findings.missing += u64::from(seen < rows_of(model, table).count());
        }
        for (key, value) in rows_of(model, table) {
            match snapshot.get(table, key) {
                Ok(Some(found)) => findings.wrong += u64::from(found != value),
                Ok(None) => findings.missing += 1,
                Err(_) => findings.errors += 1,
            }
        }
    }
    findings
}

/// Writes throughout a damaged tree, as a checkpoint would. Errors are fine, crashes are not.
fn write_everywhere(tree: &LmdbTree, model: &mut Model, dice: &mut Dice) -> Result<()> {
    let mut changed = model.clone();
    let mut transaction = tree.write()?;
    for ((table, key), value) in model.iter() {
        match dice.roll(6) {
            0 => drop(transaction.get(*table, key)?),
            1 => {
                transaction.put(*table, key, &[9; 40])?;
                changed.insert((*table, key.clone()), vec![9; 40]);
            }
            2 if transaction.delete(*table, key)? => {
                changed.remove(&(*table, key.clone()));
            }
            2 => {}
            3 => {
                let key = [key.as_slice(), b"+"].concat();
                transaction.put(*table, &key, value)?;
                changed.insert((*table, key), value.clone());
            }
            _ => {}
        }
    }
    transaction.commit()?;
    *model = changed;
    Ok(())
}

/// LMDB creates a table that does not exist: one of 5,000 flipped bits changed the name of the postings table, and
/// queries found nothing.
#[test]
fn table_with_a_damaged_name_is_not_recreated() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data.mdb");
    let tree = open(directory.path()).unwrap();
    fill(&tree, 100, 1, &mut Dice(8));
    let main = tree.current.read().pages().meta().main.page as usize;
    drop(tree);
    let mut bytes = fs::read(&path).unwrap();
    let name = Table::Postings.name().as_bytes();
    let page = &mut bytes[main * 4096..][..4096];
    let at = page.windows(name.len()).position(|word| word == name).unwrap();
    page[at + name.len() - 1] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert_eq!(open(directory.path()).unwrap_err().kind(), ErrorKind::Corrupt);
}

/// The previous root of a table is a valid page with valid checksums: only the free list shows that it is outdated.
#[test]
fn outdated_page_is_not_read_as_current() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data.mdb");
    let mut dice = Dice(7);
    let tree = open(directory.path()).unwrap();
    let mut model = fill(&tree, 1_250, 5, &mut dice);
    let root_of = |tree: &LmdbTree| *tree.current.read().root(Table::Docs);
    let old = root_of(&tree);
    fill_more(&tree, &mut model, 250, 1, &mut dice);
    let (new, main) = (root_of(&tree), tree.current.read().pages().meta().main.page as usize);
    assert!(old.page != new.page && old.depth == new.depth);
    drop(tree);
    let mut bytes = fs::read(&path).unwrap();
    let record = &mut bytes[main * 4096..][..4096];
    let at = record.windows(8).position(|word| word == new.page.to_le_bytes()).unwrap();
    record[at..at + 8].copy_from_slice(&old.page.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let tree = open(directory.path()).unwrap();
    let key = rows_of(&model, Table::Docs).next().unwrap().0;
    let error = tree.read().unwrap().get(Table::Docs, key).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.message().contains("free"), "{error}");
    assert!(tree.verify(&mut |_, _| {}).unwrap().problem_count > 0);
}

#[test]
fn flipped_bit_gives_no_wrong_row_and_is_detected() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data.mdb");
    let mut dice = Dice(6);
    let tree = open(directory.path()).unwrap();
    let older = fill(&tree, 1_250, 5, &mut dice);
    let mut model = older.clone();
    fill_more(&tree, &mut model, 250, 1, &mut dice);
    drop(tree);
    let whole = fs::read(&path).unwrap();
    let flips = std::env::var("STEMMA_TREE_FLIPS").map_or(400, |flips| flips.parse().unwrap());
    let (mut refused, mut failed, mut harmless, mut rolled_back) = (0, 0, 0, 0);
    for _ in 0..flips {
        // A tenth of them in the first pages of the file, where most can go wrong.
        let within = if dice.roll(10) == 0 { 5 * 4096 } else { whole.len() as u64 };
        let (at, bit) = (dice.roll(within), dice.roll(8));
        fs::write(&path, &whole).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[whole[at as usize] ^ 1 << bit], at).unwrap();
        let context = format!("bit {bit} of byte {} of page {}", at % 4096, at / 4096);
        let tree = match open(directory.path()) {
            Ok(tree) => tree,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{context}: {error}");
                refused += 1;
                continue;
            }
        };
        let findings = read_everything(&tree, &model);
        if findings != Findings::default() && read_everything(&tree, &older) == Findings::default() {
            // A bit of the newest commit's number: the previous commit becomes the newest one, as after a crash.
            assert!(at / 4096 < META_PAGES, "{context}");
            rolled_back += 1;
            continue;
        }
        let report = tree.verify(&mut |_, _| {}).unwrap();
        assert_eq!(findings.wrong, 0, "{context}: {findings:?}");
        assert!(findings == Findings::default() || report.problem_count > 0, "{context}: {findings:?} was not found");
        assert_eq!(findings.missing, 0, "{context}: {findings:?} was hidden");
        if findings.errors == 0 {
            harmless += 1
        } else {
            failed += 1
        }
        let mut changed = model.clone();
        match write_everywhere(&tree, &mut changed, &mut dice) {
            Ok(()) => assert_eq!(read_everything(&tree, &changed).wrong, 0, "{context}, then written"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{context}, when writing: {error}"),
        }
    }
    println!(
        "{flips} flips: {refused} refused at open, {failed} reported to readers, \
         {rolled_back} fell back to the previous commit, {harmless} harmless"
    );
}
