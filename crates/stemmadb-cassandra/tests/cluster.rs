//! Databases whose log is in a real cluster. These tests need one: `STEMMA_CASSANDRA` names a node, and without it they
//! do nothing. `just cluster` runs them.

use serde_json::json;
use stemmadb::{Database, DocumentId, Edit, Options, Value, field};
use stemmadb_cassandra::{Cluster, ClusterOptions};
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
