//! Tests of the tree's files: on a full disk, after a reopening without power loss, and while snapshots hold them.

use super::*;

const FILE_BYTES: u64 = 700;

fn names(disk: &FaultVfs) -> Vec<String> {
    let mut names = disk.list("tree").unwrap();
    names.sort();
    names
}

/// The names that the directory has if nothing but the listed files is there.
fn listed_names(tree: &Tree) -> Vec<String> {
    let mut names: Vec<_> = tree.current.read().file_numbers().into_iter().map(run_file::file_name).collect();
    names.push(manifest::NAME.to_owned());
    names.sort();
    names
}

fn rows(tree: &Tree) -> (Rows, Rows) {
    let snapshot = tree.read();
    (all(&snapshot, Table::Docs).unwrap(), all(&snapshot, Table::Postings).unwrap())
}

/// A tree of generations, with runs left to merge.
fn unmerged(disk: &FaultVfs, generations: u32) -> Tree {
    let tree = open(Arc::new(disk.clone()), FILE_BYTES).unwrap();
    (1..=generations).for_each(|generation| write_generation(&tree, generation).unwrap());
    tree
}

/// Merges fail at each call on a full disk: reads go on, nothing is reported as damaged, and once there is space the
/// merge goes on without reopening and leaves nothing behind.
#[test]
fn full_disk_during_a_merge_leaves_nothing_behind() {
    let calls = [Call::Create, Call::Write, Call::Sync, Call::SyncDir, Call::WriteManifest, Call::Rename, Call::Remove];
    let expected = &expected_generations(10)[10];
    let mut failed_count = 0;
    for (round, call) in calls.into_iter().enumerate() {
        for nth in 1..12 {
            for is_sticky in [false, true] {
                let disk = FaultVfs::new(round as u64 * 100 + nth);
                let tree = unmerged(&disk, 10);
                disk.fail(call, nth, Failure::Full, is_sticky);
                let context = format!("{call:?} {nth}, sticky: {is_sticky}");
                for _ in 0..40 {
                    match tree.merge_step(MergeGoal::All) {
                        Ok(true) => {}
                        Ok(false) => break,
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Unavailable, "{context}");
                            failed_count += 1;
                        }
                    }
                    assert_eq!(&rows(&tree), expected, "{context}");
                    assert_eq!(tree.verify().unwrap().problems, [""; 0], "{context}");
                }
                disk.heal();
                while tree.merge_step(MergeGoal::All).unwrap() {}
                write_generation(&tree, 10).unwrap();
                assert_eq!(&rows(&tree), expected, "{context}");
                assert_eq!(tree.verify().unwrap().problems, [""; 0], "{context}");
                assert_eq!(names(&disk), listed_names(&tree), "{context}");
                assert_eq!(tree.size().file_bytes, tree.size().live_bytes, "{context}");
            }
        }
    }
    assert!(failed_count > 300, "only {failed_count} steps failed");
}

/// The same for commits, some of which remove ranges. A failed commit can be repeated.
#[test]
fn full_disk_during_a_commit_leaves_nothing_behind() {
    let commit = |tree: &Tree, generation: u32| {
        let mut transaction = tree.write()?;
        transaction.remove_range(Table::Docs, &[0, 0, 0, 50], &[0, 0, 0, 90]);
        transaction.put(Table::Meta, b"generation", &generation.to_be_bytes())?;
        (0..50_u32).try_for_each(|row| transaction.put(Table::Docs, &row.to_be_bytes(), &[7; 30]))?;
        transaction.commit()
    };
    let expected = {
        let tree = unmerged(&FaultVfs::new(0), 4);
        commit(&tree, 5).unwrap();
        rows(&tree)
    };
    for nth in 1..30 {
        for is_sticky in [false, true] {
            let disk = FaultVfs::new(nth);
            let tree = unmerged(&disk, 4);
            let before = rows(&tree);
            disk.fail(Call::AnyChange, nth, Failure::Full, is_sticky);
            let committed = commit(&tree, 5);
            let context = format!("call {nth}, sticky: {is_sticky}: {committed:?}");
            assert_eq!(rows(&tree), if committed.is_ok() { expected.clone() } else { before }, "{context}");
            assert_eq!(tree.verify().unwrap().problems, [""; 0], "{context}");
            disk.heal();
            commit(&tree, 5).unwrap();
            assert_eq!(rows(&tree), expected, "{context}");
            assert_eq!(tree.verify().unwrap().problems, [""; 0], "{context}");
            assert_eq!(names(&disk), listed_names(&tree), "{context}");
        }
    }
}

/// A process is killed at any call, or ends after a failed flush. Another one opens the tree without a power loss
/// between; what it finds must survive one, although the process before did not flush it.
#[test]
fn reopened_tree_survives_a_power_loss() {
    for call in [Call::AnyChange, Call::Sync, Call::SyncDir] {
        for nth in 1..250 {
            let disk = FaultVfs::new(nth);
            disk.fail(call, nth, Failure::Broken, true);
            if let Ok(tree) = open(Arc::new(disk.clone()), FILE_BYTES) {
                for generation in 1..=12 {
                    let written = write_generation(&tree, generation);
                    let merged = (0..9).try_for_each(|_| tree.merge_step(MergeGoal::All).map(|_| ()));
                    if written.and(merged).is_err() {
                        break;
                    }
                }
            }
            disk.heal();
            let tree = open(Arc::new(disk.clone()), FILE_BYTES).unwrap();
            let (found, expected) = (generation(&tree).unwrap(), rows(&tree));
            for seed in 0..8 {
                let image = Arc::new(disk.crash_image(nth << 8 | seed));
                let tree = open(image, FILE_BYTES).unwrap_or_else(|error| panic!("{call:?} {nth} {seed}: {error}"));
                if generation(&tree).unwrap() == found {
                    assert_eq!(rows(&tree), expected, "{call:?} {nth} {seed}");
                }
                assert_eq!(tree.verify().unwrap().problems, [""; 0], "{call:?} {nth} {seed}");
            }
        }
    }
}

/// Snapshots read the same rows through a hundred merges; each keeps its files, and the last one deletes them.
#[test]
fn snapshot_is_held_through_a_hundred_merges() {
    let disk = FaultVfs::new(1);
    let tree = unmerged(&disk, 3);
    assert!(tree.oldest_past().is_none());
    let (first, second) = (tree.read(), tree.read());
    let held = listed_names(&tree);
    let expected = (all(&first, Table::Docs).unwrap(), all(&first, Table::Postings).unwrap());
    let mut merge_count = 0;
    for generation in 4.. {
        write_generation(&tree, generation).unwrap();
        while tree.merge_step(MergeGoal::All).unwrap() {}
        merge_count += 1;
        if merge_count % 10 == 0 {
            let found = (all(&first, Table::Docs).unwrap(), all(&first, Table::Postings).unwrap());
            assert_eq!(found, expected, "after {merge_count} merges");
            let names = names(&disk);
            assert!(held.iter().all(|name| names.contains(name)), "after {merge_count} merges: {names:?}");
            assert_eq!(tree.verify().unwrap().problems, [""; 0]);
        }
        if merge_count == 100 {
            break;
        }
    }
    let (oldest, _age) = tree.oldest_past().unwrap();
    assert_eq!(oldest.state(), first.state());
    drop(oldest);
    assert!(tree.size().file_bytes > tree.size().live_bytes);
    drop(first);
    assert!(held.iter().all(|name| names(&disk).contains(name)), "the second snapshot still reads them");
    assert_eq!((all(&second, Table::Docs).unwrap(), all(&second, Table::Postings).unwrap()), expected);
    drop(second);
    assert!(tree.oldest_past().is_none());
    assert_eq!(names(&disk), listed_names(&tree));
    assert_eq!(tree.size().file_bytes, tree.size().live_bytes);
}

#[test]
fn file_that_is_cut_in_the_middle_counts_once() {
    let disk = FaultVfs::new(1);
    let tree = open(Arc::new(disk.clone()), 1 << 20).unwrap();
    let keys: Vec<_> = (0..200_u32).map(u32::to_be_bytes).collect();
    put(&tree, Table::Docs, &keys.iter().map(|key| (&key[..], &[1; 40][..])).collect::<Vec<_>>());
    let size = tree.size();
    let mut transaction = tree.write().unwrap();
    (0..20).for_each(|cut| transaction.remove_range(Table::Docs, &keys[cut * 10 + 3], &keys[cut * 10 + 5]));
    transaction.commit().unwrap();
    assert_eq!((tree.size().live_bytes, tree.size().file_bytes), (size.live_bytes, size.file_bytes));
    drop(tree);
    let tree = open(Arc::new(disk.clone()), 1 << 20).unwrap();
    let snapshot = tree.read();
    tree.clear().unwrap();
    assert_eq!(snapshot.row_count(Table::Docs).unwrap(), 160);
    let removed = disk.count(Call::Remove);
    drop(snapshot);
    assert_eq!((disk.count(Call::Remove) - removed, tree.size().file_bytes), (1, 0));
}

#[test]
fn missing_file_is_reported_even_while_it_can_be_read() {
    let disk = FaultVfs::new(1);
    let tree = unmerged(&disk, 2);
    assert_eq!(tree.read().row_count(Table::Meta).unwrap(), 1);
    disk.remove("tree/0000000001.run").unwrap();
    assert_eq!(tree.verify().unwrap().problems, ["tree/0000000001.run is missing"]);
}
