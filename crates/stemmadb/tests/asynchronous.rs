//! The asynchronous interface: the same results, bounded streams, and cancellation.

use std::time::Duration;

use serde_json::json;
use stemmadb::asynchronous::AsyncDatabase;
use stemmadb::{Database, Edit, ErrorKind, Patch, Query, Selector, Sequence, Value, field};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).max_blocking_threads(8).enable_all().build().unwrap()
}

fn filled(count: usize) -> AsyncDatabase {
    let db = Database::in_memory();
    let edit = |n: usize| Edit::Insert {
        id: stemmadb::DocumentId::new(format!("d{n:05}")).unwrap(),
        body: Value::from_serialize(&json!({"n": n})).unwrap(),
    };
    db.bulk((0..count).map(edit).collect()).unwrap();
    AsyncDatabase::from(db)
}

/// Fails instead of waiting for ever.
async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("the future ends")
}

#[test]
fn documents_are_written_read_and_found() {
    runtime().block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let db = AsyncDatabase::open(directory.path().join("db")).await.unwrap();
        let revision = db.insert("a", &json!({"n": 1})).await.unwrap();
        assert_eq!(db.insert("a", &json!({"n": 1})).await.unwrap_err().kind(), ErrorKind::Conflict);
        let revision = db.replace("a", &revision, &json!({"n": 2})).await.unwrap();
        db.update("a", &Patch::new().set("m", 3)).await.unwrap();
        assert_eq!(db.delete("a", &revision).await.unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(db.get("a").await.unwrap().unwrap().get("m").unwrap(), Some(3.into()));
        db.upsert("b", &json!({"n": 5})).await.unwrap();
        let count = db.write(|tx| tx.snapshot()?.find(field("n").gt(1)).count()).await.unwrap();
        assert_eq!((count, db.count(field("n").gt(2)).await.unwrap()), (2, 1));
        assert_eq!(db.update_where(field("n").exists(), &Patch::new().set("seen", true)).await.unwrap(), 2);
        assert_eq!(db.documents(Query::new(field("n").gt(0)).sort_descending("n").limit(1)).await.unwrap().len(), 1);
        assert_eq!(db.delete_where(field("n").eq(5)).await.unwrap(), 1);
        assert_eq!(db.info().await.unwrap().document_count, 1);
        assert_eq!(db.run(|db| db.indexes().paths()).await.unwrap().len(), 3);
        db.flush().await.unwrap();
        db.clone().close().await.unwrap();
        assert_eq!(db.get("a").await.unwrap_err().kind(), ErrorKind::Closed);
    });
}

#[test]
fn queries_are_streamed_and_their_errors_reported_first() {
    runtime().block_on(async {
        let db = filled(1_000);
        let mut rows = db.find(Query::new(field("n").ge(100)).sort("n")).await.unwrap();
        for n in 100..1_000 {
            let document = within(rows.next()).await.unwrap().unwrap();
            assert_eq!(document.get("n").unwrap(), Some(n.into()));
        }
        assert!(within(rows.next()).await.is_none());
        assert_eq!(db.find(field("n").matches_regex("(")).await.unwrap_err().kind(), ErrorKind::Invalid);
        let mut changes = db.changes(Sequence::new(998)).await.unwrap();
        assert_eq!(within(changes.next()).await.unwrap().unwrap().id.as_str(), "d00998");
        assert!(within(changes.next()).await.unwrap().is_ok() && within(changes.next()).await.is_none());
    });
}

#[test]
fn dropped_streams_free_their_threads() {
    // Two blocking threads: streams that kept theirs would block the last query.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).max_blocking_threads(2).enable_all().build();
    runtime.unwrap().block_on(async {
        let db = filled(5_000);
        for _ in 0..10 {
            // The reader stops after one row, while the thread waits for room in the channel.
            let mut rows = within(db.find(Selector::everything())).await.unwrap();
            assert!(within(rows.next()).await.is_some());
        }
        assert_eq!(within(db.count(Selector::everything())).await.unwrap(), 5_000);
    });
}

#[test]
fn subscriptions_wait_without_threads_and_end_with_the_database() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).max_blocking_threads(2).enable_all().build();
    runtime.unwrap().block_on(async {
        let db = filled(3);
        // More waiting streams than threads.
        let mut subscriptions = Vec::new();
        let mut watches = Vec::new();
        for _ in 0..20 {
            subscriptions.push(db.subscribe(Sequence::new(3)).await.unwrap());
            watches.push(db.watch(field("n").ge(100)).await.unwrap());
        }
        for watch in &mut watches {
            assert!(within(watch.next()).await.unwrap().unwrap().is_first());
        }
        for round in 0..3 {
            let id = format!("new{round}");
            within(db.insert(&id, &json!({"n": 100 + round}))).await.unwrap();
            for subscription in &mut subscriptions {
                assert_eq!(within(subscription.next()).await.unwrap().unwrap().id.as_str(), id);
            }
            for watch in &mut watches {
                let delta = within(watch.next()).await.unwrap().unwrap();
                let ids: Vec<_> = delta.events().map(|event| event.unwrap().id().as_str().to_owned()).collect();
                assert_eq!(ids, std::slice::from_ref(&id));
            }
        }
        within(db.close()).await.unwrap();
        for subscription in &mut subscriptions {
            assert!(within(subscription.next()).await.is_none());
        }
        for watch in &mut watches {
            assert!(within(watch.next()).await.is_none());
        }
    });
}

#[test]
fn a_slow_reader_of_changes_misses_nothing() {
    runtime().block_on(async {
        let db = filled(0);
        let mut changes = db.subscribe(Sequence::ZERO).await.unwrap();
        for n in 0..500 {
            db.insert(&format!("d{n}"), &json!({"n": n})).await.unwrap();
        }
        for n in 0..500 {
            assert_eq!(within(changes.next()).await.unwrap().unwrap().id.as_str(), format!("d{n}"));
        }
    });
}
