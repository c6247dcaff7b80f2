//! Branches are databases of their own that share files.

use super::*;

fn branch_below(db: &Database, disk: &FaultVfs, name: &str, at: At) -> Result<Database> {
    branch::branch_to(db.store(), &Destination::within(Arc::new(disk.clone()), name), at)?;
    Ok(open_below(disk, name))
}

#[test]
fn branch_is_equal_and_independent() {
    let mut random = Random::new(41);
    let (db, disk) = (open(&FaultVfs::new(1)), FaultVfs::new(2));
    for round in 0..4 {
        (0..60).for_each(|_| write(&db, &mut random));
        if round % 2 == 1 {
            db.maintenance().compact().unwrap();
        }
        let branch = branch_below(&db, &disk, &round.to_string(), At::Latest).unwrap();
        assert_eq!((content(&branch), sequence(&branch)), (content(&db), sequence(&db)));
        let before = content(&db);
        (0..40).for_each(|_| write(&branch, &mut random));
        branch.maintenance().compact().unwrap();
        assert_eq!(content(&db), before);
        assert_sound(&branch);
        assert_sound(&db);
    }
}

#[test]
fn branch_of_an_older_sequence_has_the_state_of_that_time() {
    let mut random = Random::new(42);
    let (db, disk) = (open(&FaultVfs::new(1)), FaultVfs::new(2));
    let mut copies: BTreeMap<Sequence, Content> = BTreeMap::new();
    for _ in 0..120 {
        write(&db, &mut random);
        copies.insert(sequence(&db), content(&db));
    }
    for (number, (&at, expected)) in copies.iter().step_by(17).enumerate() {
        let branch = branch_below(&db, &disk, &number.to_string(), At::Sequence(at)).unwrap();
        assert_eq!((sequence(&branch), &content(&branch)), (at, expected));
        assert_sound(&branch);
    }
    let old = *copies.keys().next().unwrap();
    (0..200).for_each(|_| write(&db, &mut random));
    db.maintenance().compact().unwrap();
    let refused = branch_below(&db, &disk, "old", At::Sequence(old)).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::NotFound, "{refused}");
    let later = Sequence::new(sequence(&db).get() + 1);
    assert_eq!(branch_below(&db, &disk, "later", At::Sequence(later)).err().unwrap().kind(), ErrorKind::NotFound);
    assert_eq!(branch_below(&db, &disk, "backup", At::Backup(1)).err().unwrap().kind(), ErrorKind::Invalid);
    assert_eq!(branch_below(&db, &disk, "0", At::Latest).err().unwrap().kind(), ErrorKind::Invalid, "it exists");
}

/// Checkpoints are named after the identities of both sides. If a branch had that of its origin, the checkpoints of
/// both directions would be one document, and the second direction would skip what it takes for replicated.
#[test]
fn branch_replicates_with_its_origin_in_both_directions() {
    let (db, disk) = (open(&FaultVfs::new(1)), FaultVfs::new(2));
    let other = Database::in_memory();
    db.insert("common", &serde_json::json!({})).unwrap();
    db.replicate_to(&other).unwrap();
    let branch = branch_below(&db, &disk, "b", At::Latest).unwrap();
    for number in 0..30 {
        db.insert(&format!("original-{number}"), &serde_json::json!({})).unwrap();
    }
    branch.insert("branched-1", &serde_json::json!({})).unwrap();
    for round in 2..5 {
        db.replicate_to(&branch).unwrap();
        branch.insert(&format!("branched-{round}"), &serde_json::json!({})).unwrap();
        branch.replicate_to(&db).unwrap();
        assert_eq!(content(&db), content(&branch));
    }
    // A third database takes both for what they are.
    branch.insert("last", &serde_json::json!({})).unwrap();
    db.insert("first", &serde_json::json!({})).unwrap();
    branch.replicate_to(&other).unwrap();
    db.replicate_to(&other).unwrap();
    assert!(other.get("last").unwrap().is_some() && other.get("first").unwrap().is_some());
}

/// On disk, a branch and a backup share the files that do not change, and neither side ever writes to them.
#[cfg(unix)]
#[test]
fn shared_files_keep_their_bytes() {
    use std::os::unix::fs::MetadataExt;
    let mut random = Random::new(43);
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let db = Database::open_with(path("db"), options()).unwrap();
    (0..300).for_each(|_| write(&db, &mut random));
    db.maintenance().checkpoint().unwrap();
    let report = db.maintenance().backup(path("backups")).unwrap();
    assert!(report.linked_bytes > 5 * report.copied_bytes, "{report:?}");
    db.maintenance().branch(path("branch"), At::Latest).unwrap();
    let hashes = |name: &str| -> BTreeMap<std::path::PathBuf, (blake3::Hash, u64)> {
        let mut found = BTreeMap::new();
        let mut directories = vec![path(name)];
        while let Some(directory) = directories.pop() {
            for entry in directory.read_dir().unwrap().map(|entry| entry.unwrap().path()) {
                if entry.is_dir() {
                    directories.push(entry);
                } else {
                    let bytes = std::fs::read(&entry).unwrap();
                    found.insert(entry.clone(), (blake3::hash(&bytes), entry.metadata().unwrap().nlink()));
                }
            }
        }
        found
    };
    let branched = hashes("branch");
    let is_shared =
        |kind: &str| branched.iter().any(|(name, (_, count))| name.to_string_lossy().contains(kind) && *count > 1);
    assert!(is_shared(".log") && is_shared(".run") && is_shared("blobs"), "{branched:?}");
    // A branch of the past shares files as well, and ends its log in a copy.
    let bytes_of =
        |name: &str| -> BTreeMap<_, _> { hashes(name).into_iter().map(|(name, (hash, _))| (name, hash)).collect() };
    let original = bytes_of("db");
    db.maintenance().branch(path("older"), At::Sequence(Sequence::new(sequence(&db).get() / 2))).unwrap();
    assert!(hashes("older").values().any(|(_, count)| *count > 1));
    for (name, hash) in original {
        assert!(std::fs::read(&name).is_ok_and(|bytes| blake3::hash(&bytes) == hash), "{name:?}");
    }
    let (backed_up, expected) = (hashes("backups"), content(&db));
    let branch = Database::open_with(path("branch"), options()).unwrap();
    assert_eq!(content(&branch), expected);

    // Both replace nearly everything, and reuse the files of their logs.
    for _ in 0..4 {
        for db in [&db, &branch] {
            (0..200).for_each(|_| write(db, &mut random));
            db.maintenance().compact().unwrap();
        }
        assert!(db.files().sweep().is_ok() && branch.files().sweep().is_ok());
    }
    assert_sound(&db);
    assert_sound(&branch);
    let after = hashes("backups");
    for (name, (hash, _)) in backed_up {
        assert!(after[&name].0 == hash, "{} was written to", name.display());
    }
    let target = DirectoryTarget::open(path("backups")).unwrap();
    assert!(verify(&target).unwrap().is_sound());
    restore(&target, path("restored"), RestoreOptions::new()).unwrap();
    assert_eq!(content(&Database::open(path("restored")).unwrap()), expected);
}
