//! Restores to any sequence are equal to naive copies.

use super::*;

/// How many sequences each test restores: `STEMMA_RESTORES`, 40 by default.
fn restore_count() -> u64 {
    std::env::var("STEMMA_RESTORES").ok().and_then(|count| count.parse().ok()).unwrap_or(40)
}

/// With continuous shipping, every sequence can be restored, whatever compaction removed meanwhile.
#[test]
fn every_sequence_can_be_restored_from_shipments() {
    let mut random = Random::new(11);
    let (disk, target_disk) = (FaultVfs::new(1), FaultVfs::new(2));
    let (db, target) = (open(&disk), target(&target_disk));
    let mut shipper = Shipper::new(&target);
    let mut copies: BTreeMap<Sequence, Content> = BTreeMap::new();
    let mut sizes = Vec::new();
    shipper.ship(db.store()).unwrap();
    for round in 0..12 {
        for _ in 0..40 {
            write(&db, &mut random);
            copies.insert(sequence(&db), content(&db));
        }
        if round % 3 == 1 {
            db.maintenance().compact().unwrap();
        }
        if round % 2 == 1 {
            let shipment = shipper.ship(db.store()).unwrap();
            assert_eq!(shipment.sequence, sequence(&db));
            assert!(shipment.cleanup_error.is_none());
        }
        sizes.push(db.info().unwrap().segment_count);
    }
    assert!(!sizes.is_sorted(), "compaction removed segments: {sizes:?}");
    let sequences: Vec<Sequence> = copies.keys().copied().collect();
    for _ in 0..restore_count() {
        let at = sequences[random.below(sequences.len() as u64) as usize];
        let (report, copy) = restored(&target, At::Sequence(at)).unwrap_or_else(|error| panic!("{at:?}: {error}"));
        assert_eq!((report.sequence, sequence(&copy)), (at, at));
        assert!(report.check.unwrap().is_sound());
        // The content of a file that was stored and removed between two shipments is not kept.
        assert_eq!(content(&copy), copies[&at], "at {at:?}");
    }
    assert!(verify(&target).unwrap().is_sound());
}

/// Without compaction between them, backups have every sequence too; compaction may leave gaps, which are reported.
#[test]
fn backups_restore_their_own_sequences_and_those_between_them() {
    let mut random = Random::new(12);
    let (disk, target_disk) = (FaultVfs::new(1), FaultVfs::new(2));
    let (db, target) = (open(&disk), target(&target_disk));
    let mut copies: BTreeMap<Sequence, (Content, bool)> = BTreeMap::new();
    let mut ends = Vec::new();
    for round in 0..8 {
        let is_compacted = round % 4 == 2;
        for _ in 0..40 {
            write(&db, &mut random);
            copies.insert(sequence(&db), (content(&db), is_compacted));
        }
        if is_compacted {
            db.maintenance().compact().unwrap();
        }
        let report = back_up_to(&db, &target).unwrap();
        assert_eq!((report.number, report.sequence), (round + 1, sequence(&db)));
        ends.push((report.number, report.sequence));
    }
    for (number, end) in &ends {
        let (report, copy) = restored(&target, At::Backup(*number)).unwrap();
        assert_eq!((report.backup, report.sequence), (*number, *end));
        assert_eq!(content(&copy), copies[end].0);
        let (_, copy) = restored(&target, At::Sequence(*end)).unwrap();
        assert_eq!(content(&copy), copies[end].0);
    }
    let sequences: Vec<Sequence> = copies.keys().copied().collect();
    let mut lost_count = 0;
    for _ in 0..restore_count() {
        let at = sequences[random.below(sequences.len() as u64) as usize];
        let (expected, may_be_lost) = &copies[&at];
        match restored(&target, At::Sequence(at)) {
            Ok((_, copy)) => assert_eq!(content(&copy), *expected, "at {at:?}"),
            Err(error) => {
                assert!(*may_be_lost && error.kind() == ErrorKind::NotFound, "{at:?}: {error}");
                assert!(error.hint().is_some_and(|hint| hint.contains("restore backup")), "{error}");
                lost_count += 1;
            }
        }
    }
    println!(
        "{} restores equal the copy taken then, {lost_count} sequences were removed by compaction before their backup",
        restore_count() - lost_count
    );
    let later = Sequence::new(sequence(&db).get() + 1);
    assert_eq!(restored(&target, At::Sequence(later)).err().unwrap().kind(), ErrorKind::NotFound);
    assert_eq!(restored(&target, At::Backup(99)).err().unwrap().kind(), ErrorKind::NotFound);
}

/// A restore to a time has the transactions committed until then.
#[test]
fn restore_to_a_time_ends_with_the_last_transaction_before() {
    let (disk, target_disk) = (FaultVfs::new(1), FaultVfs::new(2));
    let clock = testing::Clock::fixed_at(1_000_000);
    let db = open_database(Arc::new(disk.clone()), options().clock(clock.clone())).unwrap();
    let target = target(&target_disk);
    let at_ms = |ms: u64| At::Time(std::time::UNIX_EPOCH + std::time::Duration::from_millis(ms));
    for number in 1..=40 {
        clock.set(1_000_000 + number * 1000);
        db.insert(&format!("d{number}"), &serde_json::json!({})).unwrap();
        if number % 10 == 0 {
            back_up_to(&db, &target).unwrap();
        }
    }
    for (ms, expected) in
        [(1_000_999, 0), (1_001_000, 1), (1_010_000, 10), (1_015_500, 15), (1_040_000, 40), (9_000_000, 40)]
    {
        let (report, copy) = restored(&target, at_ms(ms)).unwrap();
        assert_eq!((report.sequence.get(), content(&copy).len()), (expected, expected as usize), "at {ms} ms");
    }
    assert_eq!(list(&target).unwrap()[1].time_us, 1_020_000_000);
    let branches = FaultVfs::new(3);
    branch::branch_to(db.store(), &Destination::within(Arc::new(branches.clone()), "b"), at_ms(1_007_300)).unwrap();
    assert_eq!(content(&open_below(&branches, "b")).len(), 7);
}

/// What is kept of the past is in backups and branches.
#[test]
fn past_is_restored_too() {
    let mut random = Random::new(15);
    let (disk, target_disk) = (FaultVfs::new(1), FaultVfs::new(2));
    let (db, target) = (open(&disk), target(&target_disk));
    db.history().keep(crate::past::Retention::Everything).unwrap();
    let mut copies = BTreeMap::new();
    for _ in 0..4 {
        for _ in 0..40 {
            write(&db, &mut random);
            copies.insert(sequence(&db), db.info().unwrap().document_count);
        }
        db.maintenance().compact().unwrap();
        back_up_to(&db, &target).unwrap();
    }
    assert!(!disk.list("history").unwrap().is_empty());
    assert!(verify(&target).unwrap().is_sound());
    let branches = FaultVfs::new(3);
    branch::branch_to(db.store(), &Destination::within(Arc::new(branches.clone()), "b"), At::Latest).unwrap();
    let (_, copy) = restored(&target, At::Latest).unwrap();
    // Compaction removed a part of the log before it was backed up, so that few sequences between backups are left.
    let mut between = copies.keys().skip(copies.len() / 2);
    let cut = between.find_map(|&at| restored(&target, At::Sequence(at)).ok());
    let (_, cut) = cut.expect("the sequence of a backup can be restored");
    for (name, db) in [("original", &db), ("branch", &open_below(&branches, "b")), ("copy", &copy), ("cut", &cut)] {
        for (&at, expected) in copies.iter().step_by(23).filter(|(at, _)| **at <= sequence(db)) {
            match db.as_of(at).and_then(|then| then.find(crate::Selector::everything()).count()) {
                Ok(count) => assert_eq!(count, *expected, "{name} as of {at:?}"),
                // What compaction moved after the cut is not in the history.
                Err(error) => assert!(name == "cut" && error.kind() == ErrorKind::NotFound, "{name}, {at:?}: {error}"),
            }
        }
    }
    // Damage is found in it as well.
    let history = target_disk.list("files").unwrap().into_iter().find(|name| name.contains("history")).unwrap();
    target_disk.damage(&format!("files/{history}"), |bytes| bytes[70] ^= 4);
    assert!(verify(&target).unwrap().damages[0].file.contains(&history));
}

/// A transaction is restored completely if one of its sequences is asked for.
#[test]
fn cut_keeps_whole_transactions() {
    let (disk, target_disk) = (FaultVfs::new(1), FaultVfs::new(2));
    let (db, target) = (open(&disk), target(&target_disk));
    for round in 0..5 {
        let insert = |number| crate::Edit::Insert {
            id: crate::DocumentId::new(format!("{round}-{number}")).unwrap(),
            body: crate::Value::from_serialize(&serde_json::json!({})).unwrap(),
        };
        db.bulk((0..10).map(insert).collect()).unwrap();
    }
    back_up_to(&db, &target).unwrap();
    for (at, expected) in [(1, 10), (5, 10), (10, 10), (11, 20), (50, 50)] {
        let (report, copy) = restored(&target, At::Sequence(Sequence::new(at))).unwrap();
        assert_eq!((report.sequence.get(), content(&copy).len()), (expected, expected as usize));
    }
    let (_, copy) = restored(&target, At::Sequence(Sequence::ZERO)).unwrap();
    assert_eq!(content(&copy).len(), 0);
}

/// A restored database continues in the same target: its backups are those of another history.
#[test]
fn restored_database_is_backed_up_to_the_same_target() {
    let mut random = Random::new(13);
    let (disk, target_disk) = (FaultVfs::new(1), FaultVfs::new(2));
    let (db, target) = (open(&disk), target(&target_disk));
    for _ in 0..3 {
        (0..50).for_each(|_| write(&db, &mut random));
        back_up_to(&db, &target).unwrap();
    }
    let (_, copy) = restored(&target, At::Sequence(Sequence::new(70))).unwrap();
    assert_ne!(copy.store().parts.identity, db.store().parts.identity);
    (0..30).for_each(|_| write(&copy, &mut random));
    let report = back_up_to(&copy, &target).unwrap();
    assert_eq!(report.number, 4);
    let (_, again) = restored(&target, At::Latest).unwrap();
    assert_eq!(content(&again), content(&copy));
    let (_, original) = restored(&target, At::Backup(3)).unwrap();
    assert_eq!(content(&original), content(&db));
    // The backups of the original are no older states of the copy.
    let at = Sequence::new(60);
    let (report, _) = restored(&target, At::Sequence(at)).unwrap();
    assert_eq!(report.backup, 4);
}

/// A copy of the files, made without Stemma's knowledge, has the identity of the original. Its backups are complete
/// nevertheless.
#[test]
fn backups_of_a_copy_that_went_another_way_are_complete() {
    let mut random = Random::new(14);
    let (disk, target_disk) = (FaultVfs::new(1), FaultVfs::new(2));
    let db = open(&disk);
    (0..60).for_each(|_| write(&db, &mut random));
    db.close().unwrap();
    let copied = disk.crash_image(1);
    let (db, copy, target) = (open(&disk), open(&copied), target(&target_disk));
    for _ in 0..3 {
        for db in [&db, &copy] {
            (0..40).for_each(|_| write(db, &mut random));
            let report = back_up_to(db, &target).unwrap();
            let (_, restored) = restored(&target, At::Backup(report.number)).unwrap();
            assert_eq!(content(&restored), content(db));
        }
    }
    assert!(verify(&target).unwrap().is_sound());
}

#[test]
fn restore_replaces_nothing_without_force() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let db = Database::open(path("db")).unwrap();
    db.insert("a", &serde_json::json!({})).unwrap();
    db.maintenance().backup(path("backups")).unwrap();
    let target = DirectoryTarget::open(path("backups")).unwrap();
    let forced = || RestoreOptions::new().force(true);

    std::fs::create_dir(path("empty")).unwrap();
    restore(&target, path("empty"), RestoreOptions::new()).unwrap();
    assert_eq!(restore(&target, path("empty"), RestoreOptions::new()).unwrap_err().kind(), ErrorKind::Invalid);
    std::fs::create_dir(path("other")).unwrap();
    std::fs::write(path("other/file"), "x").unwrap();
    assert_eq!(restore(&target, path("other"), forced()).unwrap_err().kind(), ErrorKind::Invalid);
    std::fs::write(path("file"), "x").unwrap();
    assert_eq!(restore(&target, path("file"), forced()).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(restore(&target, path("db"), forced()).unwrap_err().kind(), ErrorKind::Locked);

    db.insert("b", &serde_json::json!({})).unwrap();
    db.close().unwrap();
    restore(&target, path("db"), forced()).unwrap();
    let db = Database::open(path("db")).unwrap();
    assert!(db.get("a").unwrap().is_some() && db.get("b").unwrap().is_none());
    let names = directory.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(names.into_iter().all(|name| !name.starts_with('.')), "nothing is left behind");

    // A directory of backups is not a database, and the other way round.
    assert_eq!(DirectoryTarget::create(path("db")).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(DirectoryTarget::open(path("nothing")).unwrap_err().kind(), ErrorKind::NotFound);
    let error = target.put("x", &mut &b"x"[..]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "a target opened for reading is not written to");
}
