//! Logs in a store in memory: what an owner that was deposed may still do, calls that fail or arrive late, merging, and
//! databases whose directory is lost.
//!
//! `STEMMA_FAULT_STRIDE` tests only every n-th call (default 23; 1 for all).

mod faulty_store;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::Duration;

use object_store::ObjectStoreExt;
use serde_json::json;
use stemmadb::replica::Replica;
use stemmadb::testing::{self, Random};
use stemmadb::{Database, DocumentId, Edit, ErrorKind, Options, Value, field};
use tempfile::TempDir;
use uuid::Uuid;

use super::*;
use faulty_store::{Fault, FaultyStore};

fn log_in(store: &FaultyStore) -> Arc<ObjectLog> {
    let bucket = Bucket::of_store(Arc::new(store.clone()), "memory://", "archive".into(), Duration::from_millis(30));
    ObjectLog::of_bucket(bucket.unwrap())
}

fn now<T: Send + 'static>(log: &ObjectLog, future: impl Future<Output = T> + Send + 'static) -> T {
    log.requests.bucket.wait(async move { Ok(future.await) }).unwrap()
}

/// The names and sizes of all objects.
fn objects(log: &ObjectLog, store: &FaultyStore) -> Vec<(String, u64)> {
    let store = store.clone();
    now(log, async move { store.all().await })
}

fn new_file(name: &str, state: FileState) -> StoredFile {
    StoredFile { name: name.to_owned(), id: FileId(Uuid::new_v4()), bytes: 0, state }
}

fn name(log: &ObjectLog, file: &StoredFile) -> io::Result<()> {
    log.change_names(&[NameChange::Set(file.clone())], &[])
}

fn read(log: &ObjectLog, file: &StoredFile, offset: u64, length: usize) -> Vec<u8> {
    let mut buffer = vec![0; length];
    let count = log.read(file.id, offset, &mut buffer).unwrap();
    buffer.truncate(count);
    buffer
}

fn is_deposed<T: std::fmt::Debug>(result: io::Result<T>) -> bool {
    result.unwrap_err().get_ref().is_some_and(|cause| cause.is::<Deposed>())
}

/// A file with name that has `abc`.
fn open_file(log: &ObjectLog) -> StoredFile {
    let file = new_file("log/1.log", FileState::Open);
    name(log, &file).unwrap();
    log.append(file.id, 0, b"ab").unwrap();
    log.append(file.id, 2, b"c").unwrap();
    file
}

#[test]
fn an_owner_that_was_deposed_appends_nothing_and_changes_no_names() {
    let store = FaultyStore::new();
    let (first, second) = (log_in(&store), log_in(&store));
    assert_eq!(first.look().unwrap_err().kind(), io::ErrorKind::NotFound);
    let created = first.take_over().unwrap();
    let file = open_file(&first);
    let empty = new_file("log/2.log", FileState::Open);
    name(&first, &empty).unwrap();
    let found = second.take_over().unwrap();
    assert_eq!((found.id, found.files.len(), found.files[0].bytes), (created.id, 2, 3));
    assert!(is_deposed(first.append(file.id, 3, b"x")));
    assert!(is_deposed(first.append(empty.id, 0, b"x")));
    assert!(is_deposed(name(&first, &new_file("other", FileState::Whole))));
    assert!(first.append(FileId(Uuid::new_v4()), 0, b"x").is_err(), "it has no name");
    second.append(file.id, 3, b"d").unwrap();
    second.append(empty.id, 0, b"e").unwrap();
    assert_eq!(read(&second, &file, 1, 10), b"bcd");
    let third = log_in(&store);
    let lengths: Vec<_> = third.take_over().unwrap().files.iter().map(|file| file.bytes).collect();
    assert_eq!(lengths, [4, 1]);
    assert!(is_deposed(second.append(file.id, 4, b"x")));
    // Also one that has not noticed yet that the one after it took over.
    assert!(is_deposed(first.append(empty.id, 0, b"x")) || first.append(empty.id, 0, b"x").is_err());
}

#[test]
fn a_deposed_owner_collides_also_with_what_was_deleted() {
    let store = FaultyStore::new();
    let (first, second) = (log_in(&store), log_in(&store));
    first.take_over().unwrap();
    let file = open_file(&first);
    second.take_over().unwrap();
    second.change_names(&[NameChange::Remove(file.name.clone())], std::slice::from_ref(&file)).unwrap();
    second.delete(&file).unwrap();
    assert_eq!(second.length(file.id).unwrap(), None);
    for _ in 0..10 {
        name(&second, &new_file("other", FileState::Whole)).unwrap();
    }
    let numbers = || objects(&second, &store).iter().filter(|(name, _)| name.contains("/names/")).count();
    assert_eq!(numbers(), 3, "older names are deleted");
    // The numbers that it goes on with exist no more.
    assert!(is_deposed(name(&first, &new_file("mine", FileState::Whole))));
    assert!(is_deposed(first.append(file.id, 3, b"x")));
    let names: Vec<_> = second.look().unwrap().files.into_iter().map(|file| file.name).collect();
    assert_eq!(names, ["other"]);
    name(&second, &new_file("another", FileState::Whole)).unwrap();
    assert_eq!(log_in(&store).look().unwrap().files.len(), 2);
}

#[test]
fn calls_of_an_earlier_owner_that_arrive_late_have_no_effect() {
    let (store, other) = {
        let store = FaultyStore::new();
        (store.clone(), store.another())
    };
    let (first, second) = (log_in(&store), log_in(&other));
    first.take_over().unwrap();
    let file = open_file(&first);
    store.hold("log/");
    assert!(first.append(file.id, 3, b"late").is_err());
    assert!(name(&first, &new_file("late", FileState::Whole)).is_err());
    store.hold("nothing");
    assert!(first.append(file.id, 3, b"other").is_err(), "the outcome of the first one is unknown");
    let before = second.take_over().unwrap();
    let arriving = store.clone();
    assert_eq!(now(&first, async move { arriving.arrive().await }), 0);
    assert_eq!(second.look().unwrap(), before);
    second.append(file.id, 3, b"d").unwrap();
    assert_eq!(read(&second, &file, 0, 9), b"abcd");
}

#[test]
fn calls_that_arrive_late_before_the_next_owner_count_completely() {
    let store = FaultyStore::new();
    let first = log_in(&store);
    first.take_over().unwrap();
    let file = open_file(&first);
    store.hold("log/");
    assert!(first.append(file.id, 3, b"late").is_err());
    assert!(name(&first, &new_file("late", FileState::Open)).is_err());
    let arriving = store.clone();
    now(&first, async move { arriving.arrive().await });
    let second = log_in(&store.another());
    let files = second.take_over().unwrap().files;
    assert_eq!(files.iter().map(|file| (&*file.name, file.bytes)).collect::<Vec<_>>(), [("late", 0), ("log/1.log", 7)]);
    assert_eq!(read(&second, &file, 0, 9), b"abclate");
}

#[test]
fn an_owner_goes_on_after_a_change_of_names_whose_answer_was_lost() {
    let store = FaultyStore::new();
    let first = log_in(&store);
    first.take_over().unwrap();
    store.hold("log/names");
    assert!(name(&first, &new_file("a", FileState::Open)).is_err());
    let arriving = store.clone();
    assert_eq!(now(&first, async move { arriving.arrive().await }), 1, "only the first of the attempts has an effect");
    let again = log_in(&store.another());
    assert_eq!(again.look().unwrap().files.len(), 1);
    store.hold("nothing");
    name(&first, &new_file("b", FileState::Open)).unwrap();
    assert_eq!(again.look().unwrap().files.len(), 2);
}

#[test]
fn answers_that_are_lost_are_found() {
    let store = FaultyStore::new();
    let log = log_in(&store);
    log.take_over().unwrap();
    let file = new_file("log/1.log", FileState::Open);
    store.lose_answers(1);
    name(&log, &file).unwrap();
    store.lose_answers(1);
    log.append(file.id, 0, b"ab").unwrap();
    // Of the names, and of the fence.
    store.lose_answers(2);
    let taken = log.take_over().unwrap();
    assert_eq!(taken.files[0].bytes, 2);
    assert_eq!(log_in(&store).look().unwrap(), taken);
}

/// A file that many appends have written, sealed. Its bytes are the numbers of the appends.
fn sealed_file(log: &ObjectLog, appends: u8, bytes: usize) -> StoredFile {
    let file = new_file("log/1.log", FileState::Open);
    name(log, &file).unwrap();
    for number in 0..appends {
        log.append(file.id, u64::from(number) * bytes as u64, &vec![number; bytes]).unwrap();
    }
    let file = StoredFile { bytes: u64::from(appends) * bytes as u64, state: FileState::Sealed, ..file };
    name(log, &file).unwrap();
    file
}

fn segment_objects(log: &ObjectLog, store: &FaultyStore) -> Vec<String> {
    let names = objects(log, store).into_iter().map(|(name, _)| name);
    names.filter(|name| name.contains("/segments/")).map(|name| name.rsplit('/').next().unwrap().to_owned()).collect()
}

#[test]
fn finished_segments_are_merged() {
    for (appends, bytes) in [(30, 3), (40, 1 << 20)] {
        let store = FaultyStore::new();
        let (owner, replica) = (log_in(&store), log_in(&store));
        owner.take_over().unwrap();
        let file = new_file("log/1.log", FileState::Open);
        name(&owner, &file).unwrap();
        owner.append(file.id, 0, &vec![0; bytes]).unwrap();
        assert_eq!(replica.look().unwrap().files[0].bytes, bytes as u64);
        for number in 1..appends {
            owner.append(file.id, number * bytes as u64, &vec![number as u8; bytes]).unwrap();
            assert_eq!(replica.length(file.id).unwrap(), Some((number + 1) * bytes as u64));
        }
        let length = appends * bytes as u64;
        let sealed = StoredFile { bytes: length, state: FileState::Sealed, ..file.clone() };
        name(&owner, &sealed).unwrap();
        owner.wait_for_merges();
        assert_eq!(segment_objects(&owner, &store), ["merged"]);
        // The replica knows only what there was before.
        assert_eq!(read(&replica, &file, 0, bytes + 1)[bytes - 1..], [0, 1]);
        for log in [&replica, &owner, &log_in(&store)] {
            assert_eq!(log.length(file.id).unwrap(), Some(length));
            let (from, count) = (2 * bytes as u64 - 1, 2 * bytes + 2);
            let found = read(log, &file, from, count);
            assert_eq!(found.len(), count);
            assert_eq!((found[0], found[1], found[count - 1]), (1, 2, 4));
            assert_eq!(read(log, &file, length - 1, 100), [appends as u8 - 1]);
        }
        owner.change_names(&[NameChange::Remove(file.name.clone())], std::slice::from_ref(&sealed)).unwrap();
        owner.delete(&sealed).unwrap();
        assert_eq!(replica.length(file.id).unwrap(), None);
        assert!(segment_objects(&owner, &store).is_empty());
    }
}

#[test]
fn a_segment_that_was_not_merged_is_read_and_merged_by_the_next_owner() {
    // After no, or some, requests of the merge.
    for deleted in [None, Some(0), Some(2)] {
        let store = FaultyStore::new();
        let first = log_in(&store);
        first.take_over().unwrap();
        store.refuse("merged");
        let file = sealed_file(&first, 9, 4);
        first.wait_for_merges();
        drop(first);
        if let Some(deleted) = deleted {
            let (objects, id) = (store.objects.clone(), names::id_text(file.id));
            let path = move |name: &str| format!("archive/log/segments/{id}/{name}").into();
            let bytes: Vec<u8> = (0..9).flat_map(|number| [number; 4]).collect();
            let reader = log_in(&store);
            now(&reader, async move {
                objects.put(&path("merged"), bytes.into()).await.unwrap();
                for number in 0..deleted {
                    objects.delete(&path(&format!("{number:010}"))).await.unwrap();
                }
            });
        }
        let another = store.another();
        let second = log_in(&another);
        another.refuse(if deleted.is_none() { "merged" } else { "nothing" });
        let found = second.take_over().unwrap();
        assert_eq!(found.files, std::slice::from_ref(&file));
        assert_eq!(read(&second, &file, 3, 6), [0, 1, 1, 1, 1, 2], "{deleted:?}");
        second.wait_for_merges();
        drop(second);
        let third = log_in(&store.another());
        third.take_over().unwrap();
        third.wait_for_merges();
        assert_eq!(segment_objects(&third, &store), ["merged"], "{deleted:?}");
        assert_eq!(read(&third, &file, 35, 6), [8]);
    }
}

#[test]
fn fences_stay_behind_merged_and_deleted_segments() {
    let store = FaultyStore::new();
    let first = log_in(&store);
    first.take_over().unwrap();
    let file = open_file(&first);
    let second = log_in(&store);
    second.take_over().unwrap();
    second.append(file.id, 3, b"d").unwrap();
    let sealed = StoredFile { bytes: 4, state: FileState::Sealed, ..file.clone() };
    name(&second, &sealed).unwrap();
    second.wait_for_merges();
    assert_eq!(segment_objects(&second, &store), ["0000000002", "merged"]);
    assert_eq!(read(&second, &file, 0, 9), b"abcd");
    assert_eq!(log_in(&store).look().unwrap().files, std::slice::from_ref(&sealed));
    assert!(is_deposed(first.append(file.id, 3, b"x")));
    second.change_names(&[NameChange::Remove(file.name.clone())], std::slice::from_ref(&sealed)).unwrap();
    // The next owner deletes what this one has not.
    let third = log_in(&store);
    assert!(third.take_over().unwrap().files.is_empty());
    assert_eq!(segment_objects(&third, &store), ["0000000002"]);
    assert!(is_deposed(log_in(&store).append(file.id, 3, b"x")) || log_in(&store).append(file.id, 3, b"x").is_err());
    assert_eq!(third.length(file.id).unwrap(), None);
}

#[test]
fn files_that_are_written_once_are_read_by_everybody_and_deleted() {
    let store = FaultyStore::new();
    let (owner, replica) = (log_in(&store), log_in(&store));
    owner.take_over().unwrap();
    let file = new_file("blobs/a", FileState::Whole);
    name(&owner, &file).unwrap();
    // Longer than two objects.
    let part = |number: u64| vec![number as u8; 1 << 20];
    for number in 0..33 {
        owner.write(file.id, number << 20, &part(number)).unwrap();
    }
    owner.write(file.id, 33 << 20, b"end").unwrap();
    let whole = StoredFile { bytes: (33 << 20) + 3, ..file.clone() };
    name(&owner, &whole).unwrap();
    let contents = || objects(&owner, &store).iter().filter(|(name, _)| name.contains("/contents/")).count();
    assert_eq!(contents(), 3);
    assert_eq!(replica.look().unwrap().files, std::slice::from_ref(&whole));
    for log in [&owner, &replica] {
        let found = read(log, &file, (16 << 20) - 1, (17 << 20) + 9);
        assert_eq!((found.len(), found[0], found[1]), ((17 << 20) + 4, 15, 16));
        assert!(found.ends_with(b"end"));
    }
    // An owner that was deposed changes none that has a name.
    let next = log_in(&store);
    next.take_over().unwrap();
    owner.write(file.id, 0, b"other").ok();
    assert!(is_deposed(name(&owner, &StoredFile { bytes: 5, ..file.clone() })));
    assert_eq!(read(&next, &file, 0, 2), [0, 0]);
    next.change_names(&[NameChange::Set(StoredFile { name: "blobs/b".into(), ..whole.clone() })], &[]).unwrap();
    next.change_names(&[NameChange::Remove("blobs/a".into())], &[]).unwrap();
    assert!(next.delete(&whole).is_err(), "it has another name");
    assert_eq!(read(&next, &file, 0, 2), [0, 0]);
    next.change_names(&[NameChange::Remove("blobs/b".into())], std::slice::from_ref(&whole)).unwrap();
    next.delete(&whole).unwrap();
    assert_eq!(contents(), 0);
}

#[test]
fn a_log_that_was_deleted_is_another_one_afterwards() {
    let store = FaultyStore::new();
    let first = log_in(&store);
    let created = first.take_over().unwrap();
    let file = open_file(&first);
    let content = new_file("blobs/a", FileState::Whole);
    first.write(content.id, 0, b"content").unwrap();
    name(&first, &StoredFile { bytes: 7, ..content }).unwrap();
    log_in(&store).delete_all().unwrap();
    let left = objects(&first, &store);
    assert!(left.iter().all(|(_, bytes)| *bytes < 200) && left.len() == 2, "the names and a fence: {left:?}");
    assert_eq!(log_in(&store).look().unwrap_err().kind(), io::ErrorKind::NotFound);
    assert!(is_deposed(first.append(file.id, 3, b"x")));
    assert!(is_deposed(name(&first, &new_file("x", FileState::Open))));
    let second = log_in(&store);
    let found = second.take_over().unwrap();
    assert!(found.id != created.id && found.files.is_empty());
    assert!(is_deposed(name(&first, &new_file("x", FileState::Open))));
    open_file(&second);
}

#[test]
fn a_store_that_ignores_conditions_is_refused() {
    let store = FaultyStore::new();
    store.ignore_conditions();
    let error = log_in(&store).take_over().unwrap_err();
    assert!(error.to_string().contains("If-None-Match"), "{error}");
}

fn options(log: &Arc<ObjectLog>) -> Options {
    testing::with_small_limits(Options::new().background(false), 10 << 10, 4 << 10, 30).log_storage(log.clone())
}

fn open(directory: &TempDir, log: &Arc<ObjectLog>) -> Database {
    Database::open_with(directory.path(), options(log)).unwrap()
}

/// The documents, each with the length of its attachment.
type Content = BTreeMap<String, (u64, Option<u64>)>;

fn content(db: &Database) -> Content {
    let documents = db.find(field("n").exists()).documents().unwrap();
    let with_length = |id: &str| {
        db.files().open(id, "file").unwrap().map(|mut file| {
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
            assert!(bytes.iter().all(|&byte| byte == 7), "a file has other bytes");
            bytes.len() as u64
        })
    };
    let row = |document: &stemmadb::Document| {
        let body: serde_json::Value = document.to().unwrap();
        (document.id().as_str().to_owned(), (body["n"].as_u64().unwrap(), with_length(document.id().as_str())))
    };
    documents.iter().map(row).collect()
}

/// Performs step `number` of a script: always the same.
fn step(db: &Database, number: u64) -> Result<()> {
    let mut random = Random::new(number);
    let id = format!("d{}", random.below(8));
    let body = json!({"n": number, "text": "x".repeat(random.below(400) as usize)});
    match random.below(10) {
        0..=5 => {
            let body = Value::from_serialize(&body)?;
            db.edit(Edit::Upsert { id: DocumentId::new(id)?, body }).map(drop)
        }
        6 => match db.get(&id)? {
            Some(document) => {
                let bytes = vec![7; random.below(200_000) as usize];
                db.files().attach(&id, document.revision(), "file", "text/plain", &bytes[..]).map(drop)
            }
            None => Ok(()),
        },
        7 => match db.get(&id)? {
            Some(document) => db.delete(&id, document.revision()).map(drop),
            None => Ok(()),
        },
        8 => db.maintenance().checkpoint(),
        _ => db.maintenance().compact().map(drop),
    }
}

const STEPS: u64 = 60;

#[test]
fn nothing_acknowledged_is_lost_when_any_request_fails() {
    let stride = std::env::var("STEMMA_FAULT_STRIDE").ok().and_then(|text| text.parse().ok()).unwrap_or(23);
    let (store, directory) = (FaultyStore::new(), TempDir::new().unwrap());
    let log = log_in(&store);
    let db = open(&directory, &log);
    let mut contents = vec![content(&db)];
    for number in 0..STEPS {
        step(&db, number).unwrap();
        contents.push(content(&db));
    }
    drop(db);
    log.wait_for_merges();
    assert!(contents.last().unwrap().values().any(|(_, file)| file.is_some_and(|bytes| bytes > 64 << 10)));
    for after in (0..store.change_count()).step_by(stride) {
        for (takes_effect, hides_objects) in [(false, false), (false, true), (true, false), (true, true)] {
            fail_at(Fault { after, takes_effect, hides_objects }, &contents);
        }
    }
}

fn fail_at(fault: Fault, contents: &[Content]) {
    let (store, directory) = (FaultyStore::new(), TempDir::new().unwrap());
    store.fail(fault);
    let log = log_in(&store);
    let mut acknowledged = 0;
    if let Ok(db) = Database::open_with(directory.path(), options(&log)) {
        for number in 0..STEPS {
            if step(&db, number).is_err() {
                break;
            }
            acknowledged = number as usize + 1;
        }
    }
    log.wait_for_merges();
    drop(log);
    let allowed = &contents[acknowledged..=(acknowledged + 1).min(contents.len() - 1)];
    let lost = TempDir::new().unwrap();
    // In the same directory, and in one that has nothing.
    for directory in [&directory, &lost] {
        let log = log_in(&store.another());
        let db = open(directory, &log);
        let found = content(&db);
        assert!(allowed.contains(&found), "{fault:?}, after {acknowledged} steps: {found:#?}");
        assert!(db.maintenance().check().unwrap().damages.is_empty());
        db.insert("afterwards", &json!({})).unwrap();
        db.delete("afterwards", db.get("afterwards").unwrap().unwrap().revision()).unwrap();
        db.maintenance().compact().unwrap();
        assert_eq!(content(&db), found);
        drop(db);
        log.wait_for_merges();
        let log = log_in(&store.another());
        drop(open(directory, &log));
        log.wait_for_merges();
        let named: BTreeSet<_> = log.look().unwrap().files.iter().map(|file| names::id_text(file.id)).collect();
        let unnamed = objects(&log, &store).into_iter().filter(|(name, bytes)| {
            let is_of_named = name.split('/').any(|part| named.contains(part));
            !is_of_named && *bytes > 0 && name.contains("/log/") && !name.contains("/names/")
        });
        assert_eq!(unnamed.collect::<Vec<_>>(), [], "files without a name are deleted: {fault:?}");
    }
}

#[test]
fn replicas_follow_an_owner_and_the_next_one() {
    let store = FaultyStore::new();
    let directories = [(); 3].map(|()| TempDir::new().unwrap());
    let first = log_in(&store);
    let owner = open(&directories[0], &first);
    owner.insert("a", &json!({"n": 1})).unwrap();
    let replica_log = log_in(&store);
    let replica = Replica::open(directories[1].path(), options(&replica_log), Duration::from_secs(3_600)).unwrap();
    let is_same = |owner: &Database| {
        replica.refresh().unwrap();
        assert_eq!(content(&replica.database()), content(owner));
    };
    for number in 0..90 {
        step(&owner, number).unwrap();
        first.wait_for_merges();
        is_same(&owner);
    }
    let second = log_in(&store);
    let next = open(&directories[2], &second);
    let error = owner.insert("late", &json!({"n": 2})).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("another process has taken over the log"), "{error}");
    for number in 90..150 {
        step(&next, number).unwrap();
        is_same(&next);
    }
}
