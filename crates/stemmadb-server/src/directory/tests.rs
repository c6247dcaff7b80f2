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
    // Three databases and the catalog.
    assert_eq!(root.path().read_dir().unwrap().count(), 4);
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
        // The directory of a database is not adopted under its own name.
        directory.create("other").await.unwrap();
        let other = directory.slot("other").unwrap().entry.directory.clone();
        let own_name = other.strip_suffix(".stemma").unwrap();
        assert_eq!(directory.open_database(own_name).await.err().unwrap().status(), StatusCode::NOT_FOUND);
        directory.close();
    });
}

#[test]
fn a_database_that_can_not_be_created_is_not_left_behind() {
    let root = tempfile::tempdir().unwrap();
    block_on(async {
        let mut directory = Directory::open(&Config::new(root.path())).unwrap();
        // No directory can be created in a file.
        directory.path = root.path().join("file");
        std::fs::write(&directory.path, "").unwrap();
        let directory = Arc::new(directory);
        assert!(directory.create("a").await.is_err());
        assert!(directory.names().is_empty() && directory.catalog.entries().unwrap().is_empty());
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
        let full = ServedDatabase::from_database(&slot.entry, database, &directory.updates).without_writes();
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
