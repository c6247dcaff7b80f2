//! Databases whose log is in a real cluster. These tests need one: `STEMMA_CASSANDRA` names a node, and without it they
//! do nothing. `just cluster` runs them.

use std::time::{Duration, Instant};

use serde_json::json;
use stemmadb::backup::At;
use stemmadb::replica::Replica;
use stemmadb::{Database, DocumentId, Durability, Edit, ErrorKind, Options, Value, field};
use stemmadb_cassandra::{Claim, Cluster, ClusterOptions, Member, Ownership};
use tempfile::TempDir;

/// The cluster to test with, if there is one.
fn cluster() -> Option<Cluster> {
    let node = std::env::var("STEMMA_CASSANDRA").ok()?;
    Some(Cluster::connect(ClusterOptions::new([node], "stemma_test")).expect("a cluster"))
}

/// A name that no other log has.
fn unused_name() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

#[test]
fn documents_are_in_the_cluster_and_directories_can_be_lost() {
    let Some(cluster) = cluster() else { return };
    let name = unused_name();
    let open = |directory: &TempDir| {
        let options = Options::new().log_storage(cluster.log(&name)).segment_bytes(64 << 10);
        Database::open_with(directory.path(), options).unwrap()
    };
    let first = TempDir::new().unwrap();
    let db = open(&first);
    for number in 0..500 {
        db.insert(&format!("d{number:03}"), &json!({"n": number, "text": "x".repeat(500)})).unwrap();
    }
    let many = (0..2_000).map(|number| {
        let id = DocumentId::new(format!("b{number:04}")).unwrap();
        Edit::Insert { id, body: Value::from_serialize(&json!({"n": number})).unwrap() }
    });
    assert!(db.bulk(many.collect()).unwrap().iter().all(Result::is_ok));
    drop(db);

    let second = TempDir::new().unwrap();
    let db = open(&second);
    assert_eq!(db.find(field("text").exists()).count().unwrap(), 500);
    assert!(db.maintenance().check().unwrap().damages.is_empty());
    db.insert("later", &json!({"n": -1})).unwrap();

    // The first directory is an old state of the same log.
    let again = open(&first);
    assert!(db.insert("too late", &json!({})).is_err(), "the log was taken over");
    assert!(again.get("later").unwrap().is_some());
    assert!(again.get("too late").unwrap().is_none());
}

#[test]
fn branches_are_copied_with_segments_of_any_length() {
    let Some(cluster) = cluster() else { return };
    let (own, directory, name) = (TempDir::new().unwrap(), TempDir::new().unwrap(), unused_name());
    let db = Database::open_with(own.path(), Options::new().durability(Durability::None)).unwrap();
    let text = "x".repeat(4_000);
    for batch in 0..4 {
        let edit = |number| {
            let id = DocumentId::new(format!("d{batch}-{number:04}")).unwrap();
            Edit::Insert { id, body: Value::from_serialize(&json!({"n": number, "text": text})).unwrap() }
        };
        assert!(db.bulk((0..1_000).map(edit).collect()).unwrap().iter().all(Result::is_ok));
    }
    let log = cluster.log(&name);
    db.maintenance().branch_to_store(directory.path(), At::Latest, log.clone()).unwrap();
    drop(directory);
    let directory = TempDir::new().unwrap();
    let branch = Database::open_with(directory.path(), Options::new().log_storage(log)).unwrap();
    assert_eq!(branch.find(field("n").exists()).count().unwrap(), 4_000);
    assert!(branch.maintenance().check().unwrap().damages.is_empty());
}

#[test]
fn many_may_connect_to_a_new_keyspace_at_once() {
    let Ok(node) = std::env::var("STEMMA_CASSANDRA") else { return };
    let (_, port) = node.rsplit_once(':').expect("a port");
    let keyspace = format!("stemma_{}", &unused_name()[..8]);
    let connect = |number: usize| {
        let node = format!("127.0.0.{}:{port}", number % 3 + 1);
        Cluster::connect(ClusterOptions::new([node], &keyspace)).expect("a cluster")
    };
    std::thread::scope(|scope| {
        let connecting: Vec<_> = (0..6).map(|number| scope.spawn(move || connect(number))).collect();
        for (number, cluster) in connecting.into_iter().enumerate() {
            let (cluster, directory) = (cluster.join().unwrap(), TempDir::new().unwrap());
            let options = Options::new().log_storage(cluster.log(&number.to_string()));
            Database::open_with(directory.path(), options).unwrap().insert("a", &json!({})).unwrap();
        }
    });
    assert_eq!(connect(0).logs().unwrap().len(), 6, "all of them use the same tables");
}

#[test]
fn logs_are_listed_and_deleted() {
    let Some(cluster) = cluster() else { return };
    let (name, directory) = (unused_name(), TempDir::new().unwrap());
    let open = || Database::open_with(directory.path(), Options::new().log_storage(cluster.log(&name))).unwrap();
    let db = open();
    let revision = db.insert("a", &json!({"n": 1})).unwrap();
    db.files().attach("a", &revision, "file", "text/plain", &vec![7; 200_000][..]).unwrap();
    assert!(cluster.logs().unwrap().contains(&name));
    cluster.delete_log(&name).unwrap();
    cluster.delete_log(&name).unwrap();
    assert!(!cluster.logs().unwrap().contains(&name));
    assert!(db.insert("b", &json!({})).is_err(), "its log was taken over");
    drop(db);
    // A log of the same name is another one.
    assert!(open().get("a").unwrap().is_none());
    cluster.delete_log(&name).unwrap();
}

const LEASE: Duration = Duration::from_secs(2);

fn owned(member: &Member, database: &str) -> Option<Ownership> {
    match member.claim(database).unwrap() {
        Claim::Owned(ownership) => Some(ownership),
        Claim::Elsewhere(_) => None,
    }
}

#[test]
fn databases_have_one_owner_until_it_leaves_or_is_silent() {
    let Some(cluster) = cluster() else { return };
    let name = unused_name();
    let first = cluster.join("first:5984", LEASE).unwrap();
    let second = cluster.join("second:5984", LEASE).unwrap();
    let addresses = first.addresses().unwrap();
    assert!(["first:5984", "second:5984"].iter().all(|joined| addresses.iter().any(|known| known == joined)));
    let ownership = owned(&first, &name).unwrap();
    assert!(ownership.is_current() && owned(&first, &name).is_some(), "claiming again is no error");
    assert!(matches!(second.claim(&name).unwrap(), Claim::Elsewhere(address) if address == "first:5984"));

    // Given up, and claimed by another one.
    first.release(&ownership).unwrap();
    let ownership = owned(&second, &name).unwrap();
    assert!(owned(&first, &name).is_none());

    // Leaving gives everything up.
    second.leave().unwrap();
    assert!(!ownership.is_current());
    assert!(owned(&first, &name).is_some());

    // A member that ends without leaving: others wait for its lease.
    let begun = Instant::now();
    std::mem::forget(first);
    let third = cluster.join("third:5984", LEASE).unwrap();
    assert!(owned(&third, &name).is_none());
    std::thread::sleep(LEASE * 2);
    assert!(owned(&third, &name).is_none(), "the first member still beats: {:?}", begun.elapsed());
}

#[test]
fn replica_sees_what_the_owner_was_acknowledged() {
    let Some(cluster) = cluster() else { return };
    let name = unused_name();
    let directories = [TempDir::new().unwrap(), TempDir::new().unwrap(), TempDir::new().unwrap()];
    let owner = |directory: &TempDir| {
        let options = Options::new().log_storage(cluster.log(&name)).segment_bytes(64 << 10);
        Database::open_with(directory.path(), options).unwrap()
    };
    let options = || Options::new().log_storage(cluster.log(&name));
    let missing = Replica::open(directories[1].path(), options(), Duration::from_secs(1)).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");

    let mut db = owner(&directories[0]);
    db.insert("first", &json!({"n": -1})).unwrap();
    let replica = Replica::open(directories[1].path(), options(), Duration::from_millis(50)).unwrap();
    assert!(replica.database().get("first").unwrap().is_some());
    for number in 0..300 {
        let id = format!("d{}", number % 50);
        let revision = db.upsert(&id, &json!({"n": number, "text": "x".repeat(900)})).unwrap();
        if number % 10 == 0 {
            assert!(replica.wait_for(db.sequence(), Duration::from_secs(20)).unwrap(), "{:?}", replica.status());
            let document = replica.database().get(&id).unwrap().unwrap();
            assert_eq!(document.revision(), &revision);
        }
        match number {
            100 => _ = db.maintenance().compact().unwrap(),
            150 => db.files().attach(&id, &revision, "file", "text/plain", &vec![7; 200_000][..]).map(drop).unwrap(),
            // Another process takes the log over.
            200 => db = owner(&directories[2]),
            _ => {}
        }
    }
    replica.refresh().unwrap();
    let status = replica.status();
    assert!(status.failure.is_none() && status.staleness < Duration::from_secs(20), "{status:?}");
    let all = |db: &Database| {
        let documents = db.find(field("n").exists()).sort("n").documents().unwrap().into_iter();
        documents.map(|document| document.to_json().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(all(&replica.database()), all(&db));
    assert!(replica.database().insert("a", &json!({})).unwrap_err().to_string().contains("owner"));
    assert!(replica.database().maintenance().check().unwrap().is_sound());
    db.insert("last", &json!({"n": 1_000})).unwrap();
    let begun = Instant::now();
    while replica.database().get("last").unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", replica.status());
        std::thread::sleep(Duration::from_millis(10));
    }
    replica.close().unwrap();
    drop(db);
    cluster.delete_log(&name).unwrap();
}
