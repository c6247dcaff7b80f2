//! Backups with the tree: restores take it over, and do without it.

use super::*;
use crate::vfs::MemoryVfs;

/// A disk with a database and a target on another one, which can share its files.
fn linked(seed: u64) -> (Database, FaultVfs, DirectoryTarget, Random) {
    let target_disk = FaultVfs::new(2);
    target_disk.allow_links();
    let target = target(&target_disk);
    (open(&FaultVfs::new(1)), target_disk, target, Random::new(seed))
}

/// Restores without a check, which does not open the database; returns the names of its tree's files, too.
fn copied(target: &dyn Target, at: At) -> (Vec<String>, Database) {
    let disk = FaultVfs::new(1);
    let destination = Destination::within(Arc::new(disk.clone()), "db");
    restore_to(target, &destination, &RestoreOptions::new().at(at).check(false), &mut |_| ()).unwrap();
    let mut names = disk.list("db/tree").unwrap();
    names.sort();
    (names, open_below(&disk, "db"))
}

fn tree_files(target: &dyn Target, number: u64) -> Vec<String> {
    let manifest = manifest::Manifest::read(target, number).unwrap();
    manifest.tree.into_iter().map(|entry| entry.file.name).collect()
}

#[test]
fn tree_is_a_part_of_backups_that_share_files() {
    let (db, _, target, mut random) = linked(41);
    for number in 1..=6 {
        (0..50).for_each(|_| write(&db, &mut random));
        // In some backups, the log goes on after the newest state of the tree.
        if number % 2 == 0 {
            db.maintenance().checkpoint().unwrap();
        }
        let report = back_up_to(&db, &target).unwrap();
        assert_eq!(report.number, number);
        let files = tree_files(&target, number);
        assert!(files.len() > 1, "{files:?}");
        let (names, copy) = copied(&target, At::Latest);
        assert_eq!(names.len(), files.len(), "{names:?}");
        assert_eq!(content(&copy), content(&db));
        assert_sound(&copy);
        write(&copy, &mut random);
        assert_sound(&copy);
    }
    assert!(verify(&target).unwrap().is_sound());
    // A target that can't share files, and backups without the tree.
    let apart = super::target(&FaultVfs::new(3));
    back_up_to(&db, &apart).unwrap();
    assert!(tree_files(&apart, 1).is_empty());
    db.maintenance().backup_with(&target, &BackupOptions::new().tree(false), |_| ()).unwrap();
    assert!(tree_files(&target, 7).is_empty());
    assert_eq!(content(&restored(&target, At::Latest).unwrap().1), content(&db));
}

/// A state between two backups is computed from the tree of the older one.
#[test]
fn tree_of_the_backup_before_is_taken_for_states_between_backups() {
    let (db, _, target, mut random) = linked(42);
    let mut copies = BTreeMap::new();
    for round in 0..6 {
        for _ in 0..40 {
            write(&db, &mut random);
            copies.insert(sequence(&db), (content(&db), round));
        }
        if round == 3 {
            db.maintenance().compact().unwrap();
        }
        db.maintenance().checkpoint().unwrap();
        back_up_to(&db, &target).unwrap();
    }
    let mut taken_count = 0;
    for (at, (expected, round)) in copies.iter().step_by(7) {
        match restored(&target, At::Sequence(*at)) {
            Ok((report, copy)) => {
                assert_eq!((report.sequence, &content(&copy)), (*at, expected));
                assert_sound(&copy);
                taken_count += 1;
            }
            Err(error) => assert!(*round == 3 && error.kind() == ErrorKind::NotFound, "{at:?}: {error}"),
        }
    }
    assert!(taken_count > 25, "{taken_count}");
}

/// A verification reports a damaged tree, and a restore computes the tree from the log.
#[test]
fn damaged_tree_of_a_backup_is_found_and_not_needed() {
    let (db, target_disk, target, mut random) = linked(43);
    (0..200).for_each(|_| write(&db, &mut random));
    db.maintenance().checkpoint().unwrap();
    back_up_to(&db, &target).unwrap();
    let files = tree_files(&target, 1);
    assert!(files.len() > 1, "{files:?}");
    for name in &files {
        let original = target_disk.content(name).unwrap();
        let at = random.below(original.len() as u64) as usize;
        target_disk.damage(name, |bytes| bytes[at] ^= 1 << random.below(8));
        let named: Vec<_> = verify(&target).unwrap().damages.into_iter().map(|damage| damage.file).collect();
        // With the list, the files in it can't be verified either.
        assert!(named.contains(name), "{named:?} at {at} of {name}");
        let (names, copy) = copied(&target, At::Latest);
        assert!(names.is_empty(), "{names:?}");
        assert_eq!(content(&copy), content(&db));
        assert_sound(&copy);
        target_disk.damage(name, |bytes| *bytes = original);
        assert!(verify(&target).unwrap().is_sound());
    }
    target_disk.remove(&files[0]).unwrap();
    assert!(!verify(&target).unwrap().is_sound());
    assert_eq!(content(&restored(&target, At::Latest).unwrap().1), content(&db));
    assert_eq!(back_up_to(&db, &target).unwrap().lost_count, 1);
    assert!(!tree_files(&target, 2).is_empty());
}

/// The names of a manifest are used as names of files.
#[test]
fn tree_of_a_backup_has_no_other_files() {
    let (db, _, target, mut random) = linked(44);
    (0..50).for_each(|_| write(&db, &mut random));
    db.maintenance().checkpoint().unwrap();
    back_up_to(&db, &target).unwrap();
    let memory = DirectoryTarget::of(Arc::new(MemoryVfs::new()), "the target".to_owned());
    for name in ["../../stranger", "..", "stranger.run", "1.run", ""] {
        let mut manifest = manifest::Manifest::read(&target, 1).unwrap();
        manifest.tree[0].name = name.to_owned();
        memory.put(&manifest::name_of(1), &mut &manifest.encode().unwrap()[..]).unwrap();
        let error = manifest::Manifest::read(&memory, 1).unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupt && error.message().contains("not a file of a tree"), "{error}");
    }
}
