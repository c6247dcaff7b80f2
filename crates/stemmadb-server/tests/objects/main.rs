//! Backups and logs in a real S3 server, also behind a proxy that does requests wrong. Without Go, which builds the
//! server, the tests say so and pass.

mod gateway;
#[path = "../support/go.rs"]
mod go;
mod logs;
mod proxy;

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use gateway::{Gateway, Metadata, variables};
use proxy::{Fault, Proxy};
use serde_json::json;
use stemmadb::backup::{self, At, BackupOptions, FollowOptions, FollowStatus, RestoreOptions, Shipper, Target};
use stemmadb::{Database, ErrorKind, Sequence};
use stemmadb_server::ObjectTarget;

const URL: &str = "s3://backups/library";

fn target(port: u16) -> ObjectTarget {
    ObjectTarget::open_with(URL, variables(port)).unwrap()
}

fn insert(db: &Database, id: &str) {
    db.insert(id, &json!({"id": id})).unwrap();
}

/// What a database has: the JSON of each document, and the hashes of its files.
fn content(db: &Database) -> BTreeMap<String, String> {
    let mut content = BTreeMap::new();
    for change in db.changes(Sequence::ZERO).unwrap().run() {
        let id = change.unwrap().id.as_str().to_owned();
        let Some(document) = db.get(&id).unwrap() else { continue };
        for file in document.attachments().unwrap() {
            let mut bytes = Vec::new();
            db.files().open(&id, &file.name).unwrap().unwrap().read_to_end(&mut bytes).unwrap();
            content.insert(format!("{id}/{}", file.name), format!("{} bytes", bytes.len()));
        }
        content.insert(id, format!("{} {}", document.revision(), document.to_json().unwrap()));
    }
    content
}

fn back_up(db: &Database, target: &dyn Target) -> stemmadb::Result<backup::BackupReport> {
    db.maintenance().backup_with(target, &BackupOptions::new(), |_| ())
}

fn restored(target: &dyn Target, at: At) -> BTreeMap<String, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("restored");
    backup::restore(target, &path, RestoreOptions::new().at(at)).unwrap();
    content(&Database::open(path).unwrap())
}

#[test]
fn backups_are_made_verified_and_restored() {
    let Some(gateway) = Gateway::start(Metadata::Kept) else { return };
    let proxy = Proxy::start(gateway.port);
    let (target, db) = (target(proxy.port), Database::in_memory());
    assert_eq!(backup::verify(&target).unwrap_err().kind(), ErrorKind::NotFound);
    let revision = db.insert("solaris", &json!({"year": 1961})).unwrap();
    // Longer than two parts of an upload.
    let long = vec![7; 33 << 20];
    db.files().attach("solaris", &revision, "long", "text/plain", &long[..]).unwrap();
    let first = back_up(&db, &target).unwrap();
    assert_eq!(first.number, 1);
    let (then, at) = (content(&db), db.sequence());
    let parts = proxy.requests().iter().filter(|request| request.contains("partNumber=")).count();
    assert_eq!(parts, 3, "a large object is put in parts");

    let before = proxy.requests().len();
    insert(&db, "emma");
    let second = back_up(&db, &target).unwrap();
    assert!(second.copied_bytes < 1000 && second.byte_count > 33 << 20, "{second:?}");
    let requests = proxy.requests().split_off(before);
    let puts: Vec<_> = requests.iter().filter(|request| request.starts_with("PUT")).collect();
    assert_eq!(puts.len(), 2, "one file and the manifest: {puts:?}");

    let report = backup::verify(&target).unwrap();
    assert_eq!((report.is_sound(), report.backup_count), (true, 2), "{report:?}");
    assert_eq!(backup::list(&target).unwrap().len(), 2);
    assert_eq!(restored(&target, At::Latest), content(&db));
    assert_eq!(restored(&target, At::Sequence(at)), then);
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(backup::check_restore(&target, directory.path(), None).unwrap().sequence, db.sequence());
    assert_eq!(directory.path().read_dir().unwrap().count(), 0, "nothing is left of the check");

    // Only what the newest backup needs is left.
    db.delete("solaris", db.get("solaris").unwrap().unwrap().revision()).unwrap();
    db.maintenance().backup_with(&target, &BackupOptions::new().keep(1), |_| ()).unwrap();
    assert_eq!(backup::list(&target).unwrap().len(), 1);
    assert_eq!(gateway.files("library").len(), 1, "{:?}", gateway.files("library"));
    assert_eq!(restored(&target, At::Latest), content(&db));
}

#[test]
fn following_costs_nothing_at_rest_and_a_second_writer_is_fenced() {
    let Some(gateway) = Gateway::start(Metadata::Kept) else { return };
    let proxy = Proxy::start(gateway.port);
    let db = Database::in_memory();
    insert(&db, "first");
    let options = FollowOptions::new().interval(Duration::from_millis(20));
    let follower = db.maintenance().follow(Arc::new(target(proxy.port)), options).unwrap();
    let wait_until = |condition: &dyn Fn(&FollowStatus) -> bool| loop {
        let status = follower.status();
        if condition(&status) {
            return status;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    wait_until(&|status| status.sequence == db.sequence() && status.lag.is_zero());
    insert(&db, "second");
    let status = wait_until(&|status| status.sequence == db.sequence() && status.lag.is_zero());
    assert_eq!((status.lag_sequences, &*status.target), (0, URL));
    assert_eq!(db.maintenance().followers(), [follower.status()]);
    // Several intervals.
    let at_rest = proxy.requests();
    std::thread::sleep(Duration::from_millis(120));
    assert_eq!(proxy.requests(), at_rest, "nothing is requested at rest");
    insert(&db, "third");
    wait_until(&|status| status.sequence == db.sequence() && status.lag.is_zero());
    let requests = proxy.requests().split_off(at_rest.len());
    // A file, the manifest, and a look at both; the superseded manifest is deleted.
    let methods: Vec<_> = requests.iter().map(|request| request.split(' ').next().unwrap()).collect();
    assert_eq!(methods, ["PUT", "HEAD", "PUT", "GET", "DELETE"], "{requests:?}");

    // Another writer, as after a restart that left this one running.
    let other = target(gateway.port);
    let mut shipper = Shipper::new(&other);
    db.maintenance().ship(&mut shipper).unwrap();
    insert(&db, "fourth");
    let status = wait_until(&|status| !status.is_running);
    assert!(status.error.unwrap().contains("another writer"));
    db.maintenance().ship(&mut shipper).unwrap();
    assert_eq!(restored(&other, At::Latest), content(&db));
}

#[test]
fn store_that_ignores_conditions_is_refused() {
    let Some(gateway) = Gateway::start(Metadata::None) else { return };
    let (target, db) = (target(gateway.port), Database::in_memory());
    let error = back_up(&db, &target).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("If-None-Match"), "{error}");
    assert!(gateway.files("library").is_empty());
}

#[test]
fn answers_are_not_trusted() {
    let Some(gateway) = Gateway::start(Metadata::Kept) else { return };
    let proxy = Proxy::start(gateway.port);
    let (target, db) = (target(proxy.port), Database::in_memory());
    insert(&db, "first");
    back_up(&db, &target).unwrap();
    // 200 for a file, or for a manifest, that was not stored.
    for (count, path) in (1..).zip(["/files/", "/manifest-"]) {
        insert(&db, path);
        proxy.add("PUT", path, Fault::Swallow, 1);
        let error = back_up(&db, &target).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains("did not store it"), "{error}");
        assert_eq!(backup::list(&target).unwrap().len(), count);
        back_up(&db, &target).unwrap();
    }
    // Nor for an answer that is lost: the request is repeated, and finds what it stored itself.
    for path in ["/files/", "/manifest-"] {
        insert(&db, &format!("lost {path}"));
        proxy.add("PUT", path, Fault::LoseAnswer, 1);
        // A request that creates is not repeated: what is stored is asked for.
        assert_eq!(back_up(&db, &target).unwrap().sequence, db.sequence());
    }
    // An answer that comes late, and one that does not come in time.
    insert(&db, "late");
    proxy.add("PUT", "/files/", Fault::Late(Duration::from_millis(300)), 1);
    back_up(&db, &target).unwrap();
    insert(&db, "too late");
    proxy.add("PUT", "/manifest-", Fault::Late(Duration::from_millis(2500)), 1);
    assert_eq!(back_up(&db, &target).unwrap().sequence, db.sequence(), "the manifest was stored");
    // An answer that ends too early.
    proxy.add("GET", "/files/", Fault::Truncate, 100);
    let directory = tempfile::tempdir().unwrap();
    let error = backup::restore(&target, directory.path().join("db"), RestoreOptions::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    proxy.heal();
    assert!(backup::verify(&target).unwrap().is_sound());
    assert_eq!(restored(&target, At::Latest), content(&db));
}

#[test]
fn lost_objects_are_found_and_put_again() {
    let Some(gateway) = Gateway::start(Metadata::Kept) else { return };
    let (target, db) = (target(gateway.port), Database::in_memory());
    insert(&db, "first");
    back_up(&db, &target).unwrap();
    insert(&db, "second");
    back_up(&db, &target).unwrap();
    let lost = gateway.files("library/files").remove(0);
    std::fs::remove_file(&lost).unwrap();
    let report = backup::verify(&target).unwrap();
    assert!(!report.is_sound() && lost.ends_with(&report.damages[0].file), "{report:?}");
    let directory = tempfile::tempdir().unwrap();
    let error = backup::check_restore(&target, directory.path(), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    insert(&db, "third");
    let report = back_up(&db, &target).unwrap();
    assert!(report.lost_count >= 1, "{report:?}");
    assert_eq!(restored(&target, At::Latest), content(&db));
    assert_eq!(back_up(&db, &target).unwrap().lost_count, 0);
}

#[test]
fn what_is_wrong_with_the_settings_is_reported() {
    let Some(gateway) = Gateway::start(Metadata::Kept) else { return };
    let db = Database::in_memory();
    let missing = ObjectTarget::open_with("s3://nothing/library", variables(gateway.port)).unwrap();
    let error = back_up(&db, &missing).unwrap_err();
    assert!(error.message().contains("s3://nothing/library"), "{error}");
    let mut wrong = variables(gateway.port);
    wrong[3].1 = "another secret".to_owned();
    let error = back_up(&db, &ObjectTarget::open_with(URL, wrong).unwrap()).unwrap_err();
    assert!(error.hint().is_some_and(|hint| hint.contains("AWS_SECRET_ACCESS_KEY")), "{error:?}");
    // Nobody listens there.
    let error = back_up(&db, &target(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

/// Every request of a backup may be the last one that arrives: earlier backups stay, and the next backup is complete.
/// `STEMMA_ALL_STEPS` takes each step, otherwise only some are taken.
#[test]
fn connection_may_be_lost_at_each_request() {
    let Some(gateway) = Gateway::start(Metadata::Kept) else { return };
    let proxy = Proxy::start(gateway.port);
    let db = Database::in_memory();
    let takes_all = std::env::var_os("STEMMA_ALL_STEPS").is_some();
    insert(&db, "first");
    back_up(&db, &target(gateway.port)).unwrap();
    let mut step = 0;
    loop {
        let before = (content(&db), db.sequence());
        let revision = db.insert(&format!("step {step}"), &json!({})).unwrap();
        db.files()
            .attach(&format!("step {step}"), &revision, "file", "text/plain", &vec![step as u8; 70_000][..])
            .unwrap();
        proxy.fail_after(step);
        let outcome = back_up(&db, &target(proxy.port));
        proxy.heal();
        let direct = target(gateway.port);
        assert!(backup::verify(&direct).unwrap().is_sound());
        let found = restored(&direct, At::Latest);
        assert!(found == content(&db) || outcome.is_err() && found == before.0, "at request {step}");
        assert_eq!(restored(&direct, At::Sequence(before.1)), before.0);
        back_up(&db, &target(gateway.port)).unwrap();
        assert_eq!(restored(&direct, At::Latest), content(&db));
        if outcome.is_ok_and(|report| report.cleanup_error.is_none()) {
            break;
        }
        step += if takes_all { 1 } else { 7 };
    }
    assert!(step > 5, "{step} requests");
}
