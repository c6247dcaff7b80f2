//! Failures and power loss at every step of a backup, a restore, a branch and a shipment.

use super::*;
use crate::testing::{Call, Failure};

/// Calls `attempt` with a disk that fails from its first, second, … change on, until it succeeds; then `examine` with
/// what a power loss at that point may leave of the disk. Returns the number of steps.
///
/// Beyond the first ones, only some steps are taken, unless `STEMMA_ALL_STEPS` is set.
fn at_each_step(disk: &FaultVfs, mut attempt: impl FnMut(&FaultVfs) -> Result<()>, examine: impl Fn(&FaultVfs)) -> u64 {
    let takes_all = std::env::var_os("STEMMA_ALL_STEPS").is_some();
    let mut step = 0;
    loop {
        step += if takes_all { 1 } else { 1 + step / 12 };
        let failing = disk.crash_image(0);
        failing.fail(Call::AnyChange, step, Failure::Broken, true);
        let outcome = attempt(&failing);
        for seed in 0..2 {
            examine(&failing.crash_image(step * 10 + seed));
        }
        if outcome.is_ok() {
            return step - 1;
        }
        // The same disk, as it is if only the process was killed.
        failing.heal();
        examine(&failing);
        // Once more, with a single failure.
        let failing = disk.crash_image(0);
        failing.fail(Call::AnyChange, step, Failure::Full, false);
        attempt(&failing).ok();
        examine(&failing);
    }
}

/// A database with several segments and contents, after a first backup, which shares its files if `links`.
fn backed_up(seed: u64, links: bool) -> (Database, FaultVfs, Content) {
    let mut random = Random::new(seed);
    let target_disk = FaultVfs::new(2);
    if links {
        target_disk.allow_links();
    }
    let db = open(&FaultVfs::new(1));
    (0..60).for_each(|_| write(&db, &mut random));
    back_up_to(&db, &target(&target_disk)).unwrap();
    let first = content(&db);
    (0..30).for_each(|_| write(&db, &mut random));
    // The names of a directory are durable, so that each attempt begins with the same disk.
    (db, target_disk, first)
}

#[test]
fn earlier_backups_survive_a_backup_that_is_interrupted() {
    [false, true].into_iter().for_each(interrupted_backup);
}

fn interrupted_backup(links: bool) {
    let (db, target_disk, first) = backed_up(31, links);
    let second = content(&db);
    let attempt = |disk: &FaultVfs| back_up_to(&db, &target(disk)).map(|_| ());
    let step_count = at_each_step(&target_disk, attempt, |disk| {
        let target = target(&disk.crash_image(1));
        assert_eq!(content(&restored(&target, At::Backup(1)).unwrap().1), first);
        assert!(verify(&target).unwrap().is_sound());
        let newest = content(&restored(&target, At::Latest).unwrap().1);
        assert!(newest == first || newest == second);
        // The next backup succeeds, and deletes what the interrupted one left.
        back_up_to(&db, &target).unwrap();
        assert_eq!(content(&restored(&target, At::Latest).unwrap().1), second);
        back_up_to(&db, &target).unwrap();
        let numbers = manifest::numbers(&target).unwrap();
        let listed: std::collections::BTreeSet<String> = numbers
            .iter()
            .flat_map(|&number| manifest::Manifest::read(&target, number).unwrap().files().cloned().collect::<Vec<_>>())
            .map(|file| file.name)
            .collect();
        let present: std::collections::BTreeSet<String> = target.list("files/").unwrap().into_iter().collect();
        assert_eq!(present, listed);
    });
    assert!(step_count > 10, "{step_count} steps");
}

#[test]
fn retention_that_is_interrupted_deletes_no_file_that_is_needed() {
    let (db, target_disk, _) = backed_up(32, true);
    db.maintenance().compact().unwrap();
    back_up_to(&db, &target(&target_disk)).unwrap();
    let second = content(&db);
    let attempt = |disk: &FaultVfs| {
        let report = db.maintenance().backup_with(&target(disk), &BackupOptions::new().keep(1), |_| ())?;
        report.cleanup_error.map_or(Ok(()), Err)
    };
    at_each_step(&target_disk, attempt, |disk| {
        let target = target(disk);
        assert!(verify(&target).unwrap().is_sound(), "{:?}", verify(&target).unwrap());
        assert_eq!(content(&restored(&target, At::Latest).unwrap().1), second);
    });
}

#[test]
fn restore_that_is_interrupted_leaves_no_database_or_a_complete_one() {
    [false, true].into_iter().for_each(interrupted_restore);
}

fn interrupted_restore(links: bool) {
    let (db, target_disk, _) = backed_up(33, links);
    let target = target(&target_disk);
    back_up_to(&db, &target).unwrap();
    let (expected, middle) = (content(&db), Sequence::new(sequence(&db).get() - 10));
    for at in [At::Latest, At::Sequence(middle)] {
        let expected = match at {
            At::Latest => expected.clone(),
            _ => content(&restored(&target, at).unwrap().1),
        };
        let options = RestoreOptions::new().at(at);
        let attempt = |disk: &FaultVfs| {
            let destination = Destination::within(Arc::new(disk.clone()), "db");
            restore_to(&target, &destination, &options, &mut |_| ()).map(|_| ())
        };
        let step_count = at_each_step(&FaultVfs::new(5), attempt, |disk| {
            if !disk.list("db").unwrap().is_empty() {
                assert_eq!(content(&open_below(disk, "db")), expected);
                return;
            }
            attempt(disk).unwrap();
            assert_eq!(content(&open_below(disk, "db")), expected);
            assert_eq!(disk.list("").unwrap(), ["db"], "nothing is left behind");
        });
        assert!(step_count > 20, "{step_count} steps");
    }
}

#[test]
fn replacement_that_is_interrupted_loses_nothing() {
    let (db, target_disk, _) = backed_up(34, true);
    let target = target(&target_disk);
    back_up_to(&db, &target).unwrap();
    let new = content(&db);
    let disk = FaultVfs::new(5);
    let old_db = open_below(&disk, "db");
    old_db.insert("old", &serde_json::json!({})).unwrap();
    old_db.close().unwrap();
    let options = RestoreOptions::new().force(true).check(false);
    let attempt = |disk: &FaultVfs| {
        let destination = Destination::within(Arc::new(disk.clone()), "db");
        restore_to(&target, &destination, &options, &mut |_| ()).map(|_| ())
    };
    at_each_step(&disk.crash_image(1), attempt, |disk| {
        let is_new = |content: &Content| !content.contains_key("old");
        if !disk.list("db").unwrap().is_empty() {
            let found = content(&open_below(disk, "db"));
            assert!(!is_new(&found) || found == new);
        }
        // The old database is back if the new one was not complete: a restore without force refuses to replace it.
        let destination = Destination::within(Arc::new(disk.clone()), "db");
        let refused = restore_to(&target, &destination, &RestoreOptions::new(), &mut |_| ());
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
        let found = content(&open_below(disk, "db"));
        assert!(!is_new(&found) || found == new);
        attempt(disk).unwrap();
        assert_eq!(content(&open_below(disk, "db")), new);
        assert_eq!(disk.list("").unwrap(), ["db"], "nothing is left behind");
    });
}

#[test]
fn branch_that_is_interrupted_leaves_no_database_or_a_complete_one() {
    let (db, ..) = backed_up(35, false);
    let (expected, middle) = (content(&db), Sequence::new(sequence(&db).get() - 10));
    for at in [At::Latest, At::Sequence(middle)] {
        let attempt =
            |disk: &FaultVfs| branch::branch_to(db.store(), &Destination::within(Arc::new(disk.clone()), "b"), at);
        let step_count = at_each_step(&FaultVfs::new(5), attempt, |disk| {
            if disk.list("b").unwrap().is_empty() {
                attempt(disk).unwrap();
            }
            let branch = open_below(disk, "b");
            assert_sound(&branch);
            match at {
                At::Latest => assert_eq!(content(&branch), expected),
                _ => assert_eq!(sequence(&branch), middle),
            }
            drop(branch);
            assert_eq!(disk.list("").unwrap(), ["b"], "nothing is left behind");
        });
        assert!(step_count > 20, "{step_count} steps");
    }
}

#[test]
fn shipments_that_are_interrupted_go_on_with_the_next() {
    let mut random = Random::new(36);
    let takes_all = std::env::var_os("STEMMA_ALL_STEPS").is_some();
    let mut step = 0;
    loop {
        step += if takes_all { 1 } else { 1 + step / 12 };
        let (target_disk, db) = (FaultVfs::new(2), open(&FaultVfs::new(1)));
        let target = target(&target_disk);
        let mut shipper = Shipper::new(&target);
        let (mut copies, mut failure_count) = (BTreeMap::new(), 0);
        target_disk.fail(Call::AnyChange, step, [Failure::Broken, Failure::Full][step as usize % 2], false);
        for round in 0..4 {
            for _ in 0..15 {
                write(&db, &mut random);
                copies.insert(sequence(&db), content(&db));
            }
            if round == 2 {
                db.maintenance().compact().unwrap();
            }
            match shipper.ship(db.store()) {
                Ok(shipment) => failure_count += u64::from(shipment.cleanup_error.is_some()),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                    failure_count += 1;
                    // What a power loss leaves can be restored as far as it was shipped.
                    let image = super::target(&target_disk.crash_image(step));
                    if let Some(newest) = list(&image).unwrap().last() {
                        let (_, copy) = restored(&image, At::Latest).unwrap();
                        assert_eq!(content(&copy), copies[&newest.sequence]);
                    }
                }
            }
        }
        target_disk.heal();
        shipper.ship(db.store()).unwrap();
        let at = *copies.keys().nth(random.below(copies.len() as u64) as usize).unwrap();
        assert_eq!(content(&restored(&target, At::Sequence(at)).unwrap().1), copies[&at], "step {step}, {at:?}");
        assert_eq!(content(&restored(&target, At::Latest).unwrap().1), content(&db));
        if failure_count == 0 {
            assert!(step > 20, "{step} steps");
            return;
        }
    }
}
