//! Tests of the directory: restarts, interrupted removals, databases copied by hand.

use super::*;

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(work)
}

#[test]
fn databases_are_listed_in_order_and_survive_a_restart() {
    let root = tempfile::tempdir().unwrap();
    let config = Config::new(root.path());
    block_on(async {
        let directory = Arc::new(Directory::open(&config).unwrap());
        for name in ["b", "a/../c", "_users", "a"] {
            let created = directory.create(name).await;
            assert_eq!(created.is_ok(), name != "a/../c", "{name}");
        }
        assert_eq!(directory.names(), ["_users", "a", "b"]);
        assert_eq!(directory.create("a").await.unwrap_err().status(), StatusCode::PRECONDITION_FAILED);
        let database = directory.open_database("a").await.unwrap();
        database.database().insert("x", &serde_json::json!({"n": 1})).unwrap();
        directory.close();
    });
    block_on(async {
        let directory = Arc::new(Directory::open(&config).unwrap());
        assert_eq!(directory.names(), ["_users", "a", "b"]);
        let database = directory.open_database("a").await.unwrap();
        assert!(database.database().get("x").unwrap().is_some());
        directory.delete("a").await.unwrap();
        assert_eq!(directory.names(), ["_users", "b"]);
        assert_eq!(directory.open_database("a").await.err().unwrap().status(), StatusCode::NOT_FOUND);
        // The recreated database is empty.
        directory.create("a").await.unwrap();
        let again = directory.open_database("a").await.unwrap();
        assert!(again.database().get("x").unwrap().is_none());
        directory.close();
    });
    // Three databases, the catalog, and the reserve.
    let mut files: Vec<_> = root.path().read_dir().unwrap().flatten().map(|entry| entry.file_name()).collect();
    files.sort();
    assert_eq!(files, ["_users.stemma", "a.stemma", "b.stemma", "catalogue", "reserve"]);
}

#[test]
fn interrupted_removal_is_completed_at_the_next_start() {
    let root = tempfile::tempdir().unwrap();
    let config = Config::new(root.path());
    let left = block_on(async {
        let directory = Arc::new(Directory::open(&config).unwrap());
        directory.create("a").await.unwrap();
        let held = directory.slot("a").unwrap();
        directory.catalog.remove(&held.entry).unwrap();
        directory.close();
        root.path().join(&held.entry.directory)
    });
    assert!(left.exists());
    let directory = Directory::open(&config).unwrap();
    assert!(!left.exists() && directory.names().is_empty());
    assert!(directory.catalog.removals().unwrap().is_empty());
}

#[test]
fn databases_copied_by_hand_are_added() {
    let root = tempfile::tempdir().unwrap();
    let by_hand = stemmadb::Database::open(root.path().join("library.stemma")).unwrap();
    by_hand.insert("solaris", &serde_json::json!({"year": 1961})).unwrap();
    by_hand.close().unwrap();
    std::fs::create_dir(root.path().join("other.stemma")).unwrap();
    block_on(async {
        let directory = Arc::new(Directory::open(&Config::new(root.path())).unwrap());
        assert_eq!(directory.names(), ["library"]);
        let library = directory.open_database("library").await.unwrap();
        assert!(library.database().get("solaris").unwrap().is_some());
    });
}

#[test]
fn a_database_copied_in_while_the_server_runs_is_served() {
    let root = tempfile::tempdir().unwrap();
    block_on(async {
        let directory = Arc::new(Directory::open(&Config::new(root.path())).unwrap());
        assert_eq!(directory.open_database("library").await.err().unwrap().status(), StatusCode::NOT_FOUND);
        let by_hand = stemmadb::Database::open(root.path().join("library.stemma")).unwrap();
        by_hand.insert("solaris", &serde_json::json!({"year": 1961})).unwrap();
        by_hand.close().unwrap();
        let library = directory.open_database("library").await.unwrap();
        assert!(library.database().get("solaris").unwrap().is_some());
        assert_eq!(directory.names(), ["library"]);
        // A name that needs encoding; and one that is listed before anybody asks for it.
        copy_in(root.path(), "team%2Fwiki.stemma");
        copy_in(root.path(), "notes.stemma");
        assert_eq!(directory.list().await.unwrap(), ["library", "notes", "team/wiki"]);
        let wiki = directory.open_database("team/wiki").await.unwrap();
        assert!(wiki.database().get("solaris").unwrap().is_some());
        // A request that creates it finds an existing database.
        copy_in(root.path(), "late.stemma");
        assert_eq!(directory.create("late").await.unwrap_err().status(), StatusCode::PRECONDITION_FAILED);
        directory.close();
    });
}

/// Copies a database with a document into the directory, as a file manager would.
fn copy_in(root: &std::path::Path, directory: &str) {
    let by_hand = stemmadb::Database::open(root.join(directory)).unwrap();
    by_hand.insert("solaris", &serde_json::json!({"year": 1961})).unwrap();
    by_hand.close().unwrap();
}

/// A directory that is still being removed, or that is in the way, is not given to a new database.
#[test]
fn new_databases_get_directories_of_their_own() {
    let root = tempfile::tempdir().unwrap();
    block_on(async {
        let directory = Arc::new(Directory::open(&Config::new(root.path())).unwrap());
        directory.create("a").await.unwrap();
        let first = directory.slot("a").unwrap();
        assert_eq!(first.entry.directory, "a.stemma");
        // The removal was begun and not completed.
        directory.catalog.remove(&first.entry).unwrap();
        directory.slots.write().remove("a");
        first.opened.lock().take().unwrap().close();
        std::fs::remove_dir_all(root.path().join("a.stemma")).unwrap();
        directory.create("a").await.unwrap();
        let second = directory.slot("a").unwrap();
        assert_ne!(second.entry.directory, "a.stemma");
        assert_ne!(second.entry.instance_id, first.entry.instance_id);
        let served = directory.open_database("a").await.unwrap();
        served.database().insert("x", &serde_json::json!({})).unwrap();
        drop(served);
        directory.close();
    });
    block_on(async {
        let directory = Arc::new(Directory::open(&Config::new(root.path())).unwrap());
        assert!(directory.open_database("a").await.unwrap().database().get("x").unwrap().is_some());
        // A stray directory, without a log, is in the way.
        std::fs::create_dir(root.path().join("b.stemma")).unwrap();
        directory.create("b").await.unwrap();
        assert_ne!(directory.slot("b").unwrap().entry.directory, "b.stemma");
        directory.close();
    });
}

/// Directories of earlier versions have random names; sequences that clients have stay valid.
#[test]
fn databases_of_earlier_versions_keep_directory_and_sequences() {
    let root = tempfile::tempdir().unwrap();
    let earlier = "0123456789abcdef0123456789abcdef.stemma";
    block_on(async {
        let directory = Arc::new(Directory::open(&Config::new(root.path())).unwrap());
        let record = serde_json::json!({"directory": earlier, "created": 1, "security": {}});
        directory.catalog.put_record("database", "old", &record).unwrap();
        directory.close();
        copy_in(root.path(), earlier);
    });
    block_on(async {
        let directory = Arc::new(Directory::open(&Config::new(root.path())).unwrap());
        assert_eq!(directory.names(), ["old"]);
        let old = directory.open_database("old").await.unwrap();
        assert_eq!(old.instance_id(), "01234567");
        assert!(old.database().get("solaris").unwrap().is_some());
        drop(old);
        directory.set_revs_limit("old", 7).await.unwrap();
        let entries = directory.catalog.entries().unwrap();
        assert_eq!((entries[0].directory.as_str(), entries[0].instance_id.as_str()), (earlier, "01234567"));
        directory.close();
    });
}

/// The failed creation is completed in the catalog once that takes writes again.
#[test]
fn a_failed_creation_leaves_nothing_if_the_catalog_fails_too() {
    let root = tempfile::tempdir().unwrap();
    block_on(async {
        let directory = Arc::new(Directory::open(&Config::new(root.path())).unwrap());
        let slot = directory.add("a", NewDatabase::default()).unwrap();
        directory.catalog.fail_writes();
        directory.abandon(&slot);
        assert!(directory.names().is_empty(), "it does not exist");
        assert_eq!(directory.catalog.entries().unwrap().len(), 1, "the catalog could not be written");
        let begin = std::time::Instant::now();
        while directory.create("b").await.is_err() {
            assert!(begin.elapsed() < std::time::Duration::from_secs(30), "the catalog does not recover");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        assert_eq!(directory.catalog.entries().unwrap().len(), 1);
        assert_eq!(directory.names(), ["b"]);
        directory.close();
    });
}

/// Deletions use the reserve; other writes are refused until it is there again.
#[test]
fn a_released_reserve_is_for_deletions() {
    let root = tempfile::tempdir().unwrap();
    block_on(async {
        let directory = Arc::new(Directory::open(&Config::new(root.path())).unwrap());
        directory.create("a").await.unwrap();
        let served = directory.open_database("a").await.unwrap();
        let revision = served.database().insert("x", &serde_json::json!({})).unwrap();
        directory.release_reserve();
        assert!(!root.path().join("reserve").exists());
        let refused = served.database().insert("y", &serde_json::json!({})).unwrap_err();
        assert!(refused.message().contains("only deletions"), "{refused:?}");
        served.database().delete("x", &revision).unwrap();
        let begin = std::time::Instant::now();
        while directory.open_database("a").await.unwrap().database().insert("y", &serde_json::json!({})).is_err() {
            assert!(begin.elapsed() < std::time::Duration::from_secs(30), "writes stay refused");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        assert!(root.path().join("reserve").exists());
        directory.close();
    });
}

#[test]
fn a_database_that_can_not_be_created_is_not_left_behind() {
    let root = tempfile::tempdir().unwrap();
    block_on(async {
        let mut directory = Directory::open(&Config::new(root.path())).unwrap();
        directory.options = Options::new().create(false);
        let directory = Arc::new(directory);
        assert!(directory.create("a").await.is_err());
        assert!(directory.names().is_empty() && directory.catalog.entries().unwrap().is_empty());
        assert!(!root.path().join("a.stemma").exists());
        assert_eq!(directory.open_database("a").await.err().unwrap().status(), StatusCode::NOT_FOUND);
    });
}

#[test]
fn databases_that_were_not_used_for_longest_are_closed() {
    let root = tempfile::tempdir().unwrap();
    block_on(async {
        let mut config = Config::new(root.path());
        config.limits.open_databases = 4;
        let directory = Arc::new(Directory::open(&config).unwrap());
        directory.create("held").await.unwrap();
        let held = directory.open_database("held").await.unwrap();
        for number in 0..20 {
            let name = format!("d{number}");
            directory.create(&name).await.unwrap();
            let served = directory.open_database(&name).await.unwrap();
            served.database().insert("x", &serde_json::json!({"n": number})).unwrap();
        }
        assert!(directory.opened().len() <= 5, "{}", directory.opened().len());
        assert!(!held.is_closed(), "a database in use stays open");
        held.database().insert("x", &serde_json::json!({})).unwrap();
        for number in 0..20 {
            let served = directory.open_database(&format!("d{number}")).await.unwrap();
            let document = served.database().get("x").unwrap().unwrap();
            assert_eq!(document.get("n").unwrap(), Some(stemmadb::Value::from(number)));
        }
        assert!(directory.opened().len() <= 5);
        directory.close();
    });
}

/// A database that was opened for reading only, because the disk was full, takes writes once there is space.
#[test]
fn databases_are_opened_again_once_there_is_space() {
    let root = tempfile::tempdir().unwrap();
    let config = Config::new(root.path());
    block_on(async {
        let directory = Arc::new(Directory::open(&config).unwrap());
        directory.create("a").await.unwrap();
        let writable = directory.open_database("a").await.unwrap();
        writable.database().insert("x", &serde_json::json!({"n": 1})).unwrap();
        writable.close();
        let slot = directory.slot("a").unwrap();
        let path = root.path().join(&slot.entry.directory);
        let database = stemmadb::Database::open_with(path, Options::new().read_only(true)).unwrap();
        let full = ServedDatabase::from_database(&slot.entry, database, &directory.updates);
        *slot.opened.lock() = Some(Arc::new(full));
        let served = directory.open_database("a").await.unwrap();
        assert!(served.database().get("x").unwrap().is_some(), "it can be read");
        assert!(served.database().insert("y", &serde_json::json!({})).is_err());
        let begin = std::time::Instant::now();
        while directory.open_database("a").await.unwrap().database().insert("y", &serde_json::json!({})).is_err() {
            assert!(begin.elapsed() < std::time::Duration::from_secs(30), "it is not opened again");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        assert!(directory.open_database("a").await.unwrap().database().get("x").unwrap().is_some());
    });
}

#[test]
fn shards_without_their_virtual_database_are_removed_at_the_next_start() {
    let root = tempfile::tempdir().unwrap();
    let config = Config::new(root.path());
    let kind = |kind| NewDatabase { kind, ..NewDatabase::default() };
    let shard_of = |name: &str| kind(DatabaseKind::Shard(name.to_owned()));
    block_on(async {
        let directory = Arc::new(Directory::open(&config).unwrap());
        directory.create_with("v", kind(DatabaseKind::Virtual)).await.unwrap();
        directory.create_with("v/shard-1", shard_of("v")).await.unwrap();
        directory.create_with("w/shard-1", shard_of("w")).await.unwrap();
        // A database of this name that is not virtual has no shards.
        directory.create("x").await.unwrap();
        directory.create_with("x/shard-1", shard_of("x")).await.unwrap();
        assert_eq!(directory.names(), ["v", "x"]);
        directory.close();
    });
    block_on(async {
        let directory = Arc::new(Directory::open(&config).unwrap());
        assert_eq!(directory.slots.read().keys().collect::<Vec<_>>(), ["v", "v/shard-1", "x"]);
        assert_eq!((directory.virtual_names(), directory.shards_of("v")), (vec!["v".into()], vec!["v/shard-1".into()]));
        let refused = |outcome: Result<Arc<ServedDatabase>>| outcome.err().unwrap().status();
        assert_eq!(refused(directory.open_database("v/shard-1").await), StatusCode::FORBIDDEN);
        assert_eq!(refused(directory.open_database("v").await), StatusCode::NOT_IMPLEMENTED);
        assert_eq!(directory.delete("v/shard-1").await.unwrap_err().status(), StatusCode::FORBIDDEN);
        assert_eq!(directory.open_part("v/shard-1").await.unwrap().name(), "v");
        assert!(directory.security("v").await.is_ok() && directory.security("v/shard-1").await.is_err());
        directory.close();
    });
}

/// A database that nobody uses is closed; opened again, it has what was set meanwhile.
#[test]
fn settings_of_a_closed_database_are_those_that_were_set() {
    let root = tempfile::tempdir().unwrap();
    block_on(async {
        let directory = Arc::new(Directory::open(&Config::new(root.path())).unwrap());
        directory.create("notes").await.unwrap();
        let security = r#"{"members": {"names": ["ann"]}}"#;
        let security = Security::parse(stemmadb::Value::parse(security.as_bytes()).unwrap()).unwrap();
        directory.set_security("notes", security.clone()).await.unwrap();
        directory.set_revs_limit("notes", 7).await.unwrap();
        assert_eq!(directory.release_descriptors(), 1, "it is closed");
        assert_eq!(*directory.security("notes").await.unwrap(), security);
        let notes = directory.open_database("notes").await.unwrap();
        assert_eq!(notes.database().maintenance().revs_limit(), 7);
    });
}
