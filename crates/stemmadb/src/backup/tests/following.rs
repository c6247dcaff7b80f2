//! Continuous shipping: what it costs at rest, its status, failures, other writers.

use std::io::Read;
use std::time::Duration;

use super::*;
use crate::sync::Mutex;
use crate::testing::{Call, Failure};

/// A target that counts its calls.
struct Counted {
    inner: DirectoryTarget,
    calls: Mutex<BTreeMap<&'static str, u64>>,
}

impl Counted {
    fn new(disk: &FaultVfs) -> Arc<Self> {
        Arc::new(Counted { inner: target(disk), calls: Mutex::default() })
    }

    fn count(&self, call: &'static str) {
        *self.calls.lock().entry(call).or_default() += 1;
    }

    fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.calls.lock().clone()
    }
}

impl Target for Counted {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        self.count("put_new");
        self.inner.put_new(name, bytes)
    }

    fn put(&self, name: &str, content: &mut dyn Read) -> Result<()> {
        self.count("put");
        self.inner.put(name, content)
    }

    fn get(&self, name: &str) -> Result<Box<dyn Read + Send>> {
        self.count("get");
        self.inner.get(name)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        self.count("list");
        self.inner.list(prefix)
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.count("delete");
        self.inner.delete(name)
    }
}

fn follow(db: &Database, target: Arc<dyn Target>, options: FollowOptions) -> Follower {
    db.maintenance().follow(target, options.interval(Duration::from_millis(1))).unwrap()
}

fn wait_until(follower: &Follower, condition: impl Fn(&FollowStatus) -> bool) -> FollowStatus {
    loop {
        let status = follower.status();
        if condition(&status) {
            return status;
        }
        assert!(status.is_running, "{status:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn insert(db: &Database, id: &str) {
    db.insert(id, &serde_json::json!({})).unwrap();
}

#[test]
fn changes_are_shipped_and_nothing_is_done_at_rest() {
    let (db, target_disk) = (open(&FaultVfs::new(1)), FaultVfs::new(2));
    let target = Counted::new(&target_disk);
    let follower = follow(&db, target.clone(), FollowOptions::new());
    insert(&db, "first");
    let status = wait_until(&follower, |status| status.sequence == db.sequence() && status.lag.is_zero());
    assert!(status.error.is_none() && status.backup > 0);
    let at_rest = target.calls();
    // Several intervals pass.
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(target.calls(), at_rest, "nothing is written to the database, so nothing is done at the target");

    insert(&db, "second");
    wait_until(&follower, |status| status.sequence == db.sequence() && status.lag.is_zero());
    insert(&db, "third");
    wait_until(&follower, |status| status.sequence == db.sequence() && status.lag.is_zero());
    assert_eq!(target.calls()["list"], at_rest["list"], "the steady state lists nothing");
    assert_eq!(list(&*target).unwrap().len(), 1, "superseded backups are deleted");
    insert(&db, "fourth");
    let status = follower.stop().unwrap();
    assert_eq!((status.sequence, status.is_running), (db.sequence(), false), "the rest is shipped at the end");
    assert_eq!(content(&restored(&*target, At::Latest).unwrap().1), content(&db));
}

#[test]
fn failing_target_is_reported_and_tried_again() {
    let (db, target_disk) = (open(&FaultVfs::new(1)), FaultVfs::new(2));
    let seen: Arc<Mutex<Vec<FollowStatus>>> = Arc::default();
    let seen_by_follower = seen.clone();
    let options = FollowOptions::new().on_status(move |status| seen_by_follower.lock().push(status.clone()));
    let follower = follow(&db, Counted::new(&target_disk), options);
    insert(&db, "first");
    wait_until(&follower, |status| status.sequence == db.sequence());
    target_disk.fail(Call::Write, 1, Failure::Full, true);
    insert(&db, "second");
    let status = wait_until(&follower, |status| status.failure_count >= 2);
    assert!(status.error.unwrap().contains("the target") && !status.lag.is_zero());
    assert!(status.sequence < db.sequence());
    target_disk.heal();
    let status = wait_until(&follower, |status| status.sequence == db.sequence());
    assert_eq!((status.error, status.failure_count), (None, 0));
    follower.stop().unwrap();
    let seen = seen.lock();
    assert!(seen.iter().any(|status| status.failure_count >= 2) && seen.last().unwrap().error.is_none());
}

#[test]
fn follower_that_another_writer_replaced_stops() {
    let (db, target_disk) = (open(&FaultVfs::new(1)), FaultVfs::new(2));
    let target = Counted::new(&target_disk);
    let follower = follow(&db, target.clone(), FollowOptions::new());
    wait_until(&follower, |status| status.shipment_count == 1 && status.lag.is_zero());
    back_up_to(&db, &*target).unwrap();
    insert(&db, "more");
    let status = loop {
        let status = follower.status();
        if !status.is_running {
            break status;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(status.error.unwrap().contains("another writer"));
    assert!(follower.stop().is_err());
    // After a failure too, when the target is read again.
    let second = Counted::new(&FaultVfs::new(3));
    let mut shipper = Shipper::new(&*second);
    shipper.ship(db.store()).unwrap();
    back_up_to(&db, &*second).unwrap();
    insert(&db, "again");
    for _ in 0..2 {
        assert_eq!(shipper.ship(db.store()).err().unwrap().kind(), ErrorKind::Conflict);
    }
}

#[test]
fn follower_ends_with_its_database() {
    let (db, target_disk) = (open(&FaultVfs::new(1)), FaultVfs::new(2));
    let follower = follow(&db, Counted::new(&target_disk), FollowOptions::new());
    wait_until(&follower, |status| status.shipment_count == 1);
    db.close().unwrap();
    while follower.status().is_running {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(follower.status().error.unwrap().contains("closed"));
}

/// Backups, compaction and writers at the same time: each backup has exactly the writes up to its sequence.
#[test]
fn backups_during_writes_and_compaction_are_consistent() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let options = options().background(true);
    let db = Database::open_with(path("db"), options).unwrap();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let count = std::thread::scope(|scope| {
        // The only writer: sequence n sets counter n % 50 to n.
        scope.spawn(|| {
            let mut number: u64 = 0;
            while !is_done.load(std::sync::atomic::Ordering::Acquire) {
                number += 1;
                let body = serde_json::json!({"n": number, "text": "x".repeat(300)});
                db.upsert(&format!("{}", number % 50), &body).unwrap();
            }
        });
        scope.spawn(|| {
            while !is_done.load(std::sync::atomic::Ordering::Acquire) {
                db.maintenance().compact().unwrap();
            }
        });
        let mut sequences = Vec::new();
        while sequences.len() < 8 {
            let before = db.sequence();
            let report = db.maintenance().backup(path("backups")).unwrap();
            assert!(report.sequence >= before, "what was published before is in the backup");
            sequences.push(report.sequence);
            db.maintenance().branch(path(&format!("branch-{}", sequences.len())), At::Latest).unwrap();
        }
        is_done.store(true, std::sync::atomic::Ordering::Release);
        sequences
    });
    let check = |copy: &Database, sequence: Sequence| {
        assert_eq!(copy.sequence(), sequence);
        for counter in 0..50 {
            let newest = (0..=sequence.get()).rev().take(50).find(|number| number % 50 == counter && *number > 0);
            let found = copy.get(&counter.to_string()).unwrap();
            let found = found.map(|document| document.get("n").unwrap().unwrap().as_u64().unwrap());
            assert_eq!(found, newest, "at {sequence:?}");
        }
        assert_sound(copy);
    };
    let target = DirectoryTarget::open(path("backups")).unwrap();
    assert!(verify(&target).unwrap().is_sound());
    for (number, sequence) in (1..).zip(count) {
        let name = path(&format!("restored-{number}"));
        restore(&target, &name, RestoreOptions::new().at(At::Backup(number))).unwrap();
        check(&Database::open(&name).unwrap(), sequence);
        let branch = Database::open(path(&format!("branch-{number}"))).unwrap();
        check(&branch, branch.sequence());
    }
}

/// A program that opens the database for each shipment lists nothing either, and finds out that it is another database.
#[test]
fn shipper_remembers_its_target_across_openings() {
    let mut random = Random::new(41);
    let (disk, target_disk) = (FaultVfs::new(1), FaultVfs::new(2));
    let target = Counted::new(&target_disk);
    let mut shipper = Shipper::new(&*target);
    let mut copies = BTreeMap::new();
    for round in 0..6 {
        let db = open(&disk);
        for _ in 0..3 {
            write(&db, &mut random);
            copies.insert(sequence(&db), content(&db));
        }
        assert_eq!(db.maintenance().ship(&mut shipper).unwrap().sequence, sequence(&db));
        db.close().unwrap();
        if round == 1 {
            let known = target.calls();
            assert_eq!(known["list"], 3, "at the start, and to delete what is superfluous");
            target.calls.lock().clear();
        }
    }
    let calls = target.calls();
    assert!(!calls.contains_key("list") && !calls.contains_key("get"), "{calls:?}");
    assert_eq!(list(&*target).unwrap().len(), 1);
    for (at, copy) in &copies {
        assert_eq!(content(&restored(&*target, At::Sequence(*at)).unwrap().1), *copy, "{at:?}");
    }
    // A copy of the database, restored to an earlier state, is in its place.
    let (_, copy) = restored(&*target, At::Sequence(Sequence::new(5))).unwrap();
    write(&copy, &mut random);
    copy.maintenance().ship(&mut shipper).unwrap();
    assert_eq!(content(&restored(&*target, At::Latest).unwrap().1), content(&copy));
    // Another database.
    let other = open(&FaultVfs::new(3));
    insert(&other, "x");
    assert_eq!(other.maintenance().ship(&mut shipper).unwrap_err().kind(), ErrorKind::Invalid);
    // Another writer.
    let mut late = Shipper::new(&*target);
    copy.maintenance().ship(&mut late).unwrap();
    back_up_to(&copy, &*target).unwrap();
    write(&copy, &mut random);
    assert_eq!(copy.maintenance().ship(&mut late).unwrap_err().kind(), ErrorKind::Conflict);
}

#[test]
fn scheduled_checks_restore_the_newest_backup() {
    let directory = tempfile::tempdir().unwrap();
    let (db, target_disk) = (open(&FaultVfs::new(1)), FaultVfs::new(2));
    check_on_schedule(&db, &target_disk, directory.path());
}

/// A process may be killed while it removes the database that it has checked.
#[test]
fn remains_of_an_interrupted_check_do_not_fail_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let (db, target) = (open(&FaultVfs::new(1)), target(&FaultVfs::new(2)));
    insert(&db, "first");
    back_up_to(&db, &target).unwrap();
    let remains = directory.path().join(rehearse::directory_name(&target));
    for name in ["tree", "log", ""] {
        std::fs::create_dir_all(remains.join(name)).unwrap();
        std::fs::write(remains.join(name).join("rest"), "x").unwrap();
        let report = check_restore(&target, directory.path(), Options::new().encryption.as_ref()).unwrap();
        assert_eq!(report.sequence, sequence(&db));
        assert_eq!(directory.path().read_dir().unwrap().count(), 0, "nothing is left behind");
    }
}

/// A check restores an encrypted database with the key of the open one.
#[test]
#[cfg(feature = "encryption")]
fn scheduled_checks_restore_backups_of_encrypted_databases() {
    let directory = tempfile::tempdir().unwrap();
    let key = crate::encryption::EncryptionKey::from_callback(|| Ok([7; 32]));
    let db = open_database(Arc::new(FaultVfs::new(1)), options().encryption(key)).unwrap();
    check_on_schedule(&db, &FaultVfs::new(2), directory.path());
}

/// Backups made before have the old key, the next ones the new key.
#[test]
#[cfg(feature = "encryption")]
fn scheduled_checks_know_a_replaced_key() {
    let directory = tempfile::tempdir().unwrap();
    let key = |byte: u8| crate::encryption::EncryptionKey::from_callback(move || Ok([byte; 32]));
    let db = open_database(Arc::new(FaultVfs::new(1)), options().encryption(key(7))).unwrap();
    let start = |disk| {
        let options = FollowOptions::new().check(Duration::from_millis(5), directory.path());
        follow(&db, Counted::new(&FaultVfs::new(disk)), options)
    };
    let check_again = |follower: &Follower| {
        let seen = follower.status().check.map(|check| check.time);
        let is_new = |check: &RestoreCheck| Some(check.time) != seen && check.sequence == db.sequence();
        let is_done = |check: &RestoreCheck| check.error.is_some() || is_new(check);
        let status = wait_until(follower, |status| status.check.as_ref().is_some_and(is_done));
        assert_eq!(status.check.unwrap().error, None);
    };
    insert(&db, "first");
    let follower = start(2);
    check_again(&follower);
    db.maintenance().rekey(&key(8)).unwrap();
    check_again(&follower);
    insert(&db, "second");
    check_again(&follower);
    drop(follower);
    check_again(&start(3));
}

fn check_on_schedule(db: &Database, target_disk: &FaultVfs, directory: &std::path::Path) {
    let target = Counted::new(target_disk);
    let options = FollowOptions::new().check(Duration::from_millis(5), directory);
    let follower = follow(db, target.clone(), options);
    insert(db, "first");
    let is_checked = |status: &FollowStatus| status.check.as_ref().is_some_and(|check| check.sequence == db.sequence());
    let status = wait_until(&follower, is_checked);
    assert_eq!(status.check.unwrap().error, None);
    assert_eq!(db.maintenance().followers().len(), 1);
    let lag = db.maintenance().backup_lag(&*target).unwrap();
    assert_eq!((lag.sequence, lag.lag_sequences, lag.lag), (db.sequence(), 0, Duration::ZERO));
    // A target that loses what it has.
    for name in target_disk.list("files").unwrap() {
        target_disk.remove(&format!("files/{name}")).unwrap();
    }
    let status = wait_until(&follower, |status| status.check.as_ref().is_some_and(|check| check.error.is_some()));
    assert!(status.check.unwrap().error.unwrap().contains("missing"));
    drop(follower);
    assert!(db.maintenance().followers().is_empty());
    insert(db, "second");
    assert_eq!(db.maintenance().backup_lag(&*target).unwrap().lag_sequences, 1);
}
