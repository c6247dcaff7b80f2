//! The same behavior embedded, over TCP with two encodings, over TLS, and over a Unix socket with the third.

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;
use stemmadb::{
    DeltaEvent, DocumentId, Edit, ErrorKind, Patch, PathEvent, Result, Revision, Selector, Sequence, Value, field,
};
use stemmadb_client::AnyDatabase;
use stemmadb_client::asynchronous::AsyncDatabase;
use support::{PATIENCE, conformance};

conformance! {
    documents_are_written_and_read
    errors_have_the_same_kinds
    patches_change_parts
    bulk_edits_are_independent
    queries_return_rows_pages_and_counts
    many_rows_are_streamed
    changes_are_returned_in_order
    subscriptions_follow_writes
    changes_that_exist_are_returned_without_waiting
    live_queries_return_differences
    values_keep_their_types
    asynchronous_operations_are_the_same
}

// Not those that name a sequence as a position of the feed (`changes_are_returned_in_order`,
// `changes_that_exist_are_returned_without_waiting`), which shards don't have in common; that expect changes in order
// (`subscriptions_follow_writes`); and that subscribe to paths (`asynchronous_operations_are_the_same`).
conformance! {
    virtual_database:
    documents_are_written_and_read
    errors_have_the_same_kinds
    patches_change_parts
    bulk_edits_are_independent
    queries_return_rows_pages_and_counts
    many_rows_are_streamed
    live_queries_return_differences
    values_keep_their_types
}

fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

fn documents_are_written_and_read(db: &AnyDatabase) {
    let first = db.insert("solaris", &json!({"title": "Solaris", "year": 1961})).unwrap();
    let read = db.get("solaris").unwrap().unwrap();
    assert_eq!((read.id().as_str(), read.revision()), ("solaris", &first));
    assert_eq!(read.to_json().unwrap(), r#"{"title":"Solaris","year":1961}"#);
    assert_eq!(read.get("year").unwrap(), Some(1961.into()));
    // The record of a write's key takes a sequence, too.
    assert!(read.sequence() > Sequence::ZERO && read.sequence() <= db.sequence().unwrap());
    let second = db.replace("solaris", &first, &json!({"title": "Solaris"})).unwrap();
    assert_eq!(second.generation(), 2);
    assert_eq!(db.get_revision("solaris", &second).unwrap().unwrap().revision(), &second);
    let third = db.upsert("solaris", &json!({"n": 3})).unwrap();
    let deleted = db.delete("solaris", &third).unwrap();
    assert_eq!(deleted.generation(), 4);
    assert!(db.get("solaris").unwrap().is_none());
    assert!(db.get_revision("solaris", &deleted).unwrap().unwrap().is_deleted());
    db.insert("a/ö %", &json!({})).unwrap();
    let found = db.get_many(["a/ö %", "solaris", "a/ö %"]).unwrap();
    let ids: Vec<_> = found.iter().map(|found| found.as_ref().map(|found| found.id().as_str())).collect();
    assert_eq!(ids, [Some("a/ö %"), None, Some("a/ö %")]);
    db.flush().unwrap();
}

fn errors_have_the_same_kinds(db: &AnyDatabase) {
    let revision = db.insert("a", &json!({})).unwrap();
    assert_eq!(kind(db.insert("a", &json!({}))), ErrorKind::Conflict);
    let other: Revision = "1-0123456789abcdef0123456789abcdef".parse().unwrap();
    assert_eq!(kind(db.replace("a", &other, &json!({}))), ErrorKind::Conflict);
    assert_eq!(kind(db.replace("b", &revision, &json!({}))), ErrorKind::NotFound);
    assert_eq!(kind(db.delete("b", &revision)), ErrorKind::NotFound);
    assert_eq!(kind(db.insert("b", &json!([1]))), ErrorKind::Invalid);
    assert_eq!(kind(db.insert("", &json!({}))), ErrorKind::Invalid);
    assert_eq!(kind(db.insert("b", &json!({"_x": 1}))), ErrorKind::Invalid);
    assert_eq!(kind(db.update("b", &Patch::new().set("x", 1))), ErrorKind::NotFound);
    assert_eq!(kind(db.update("a", &Patch::new().set("..", 1))), ErrorKind::Invalid);
    assert_eq!(kind(db.find(field("..").eq(1)).count()), ErrorKind::Invalid);
    assert_eq!(kind(db.find(Selector::everything()).after("nonsense").ids().map(|_| ())), ErrorKind::Invalid);
    db.insert("b", &json!({})).unwrap();
    let too_many = db.find(Selector::everything()).rows_max(1).ids();
    let too_many = too_many.and_then(|ids| ids.collect::<Result<Vec<_>>>());
    assert_eq!(kind(too_many), ErrorKind::Stopped);
}

fn patches_change_parts(db: &AnyDatabase) {
    db.insert("a", &json!({"n": 1, "tags": ["x"], "old": 1, "o": {"a": 1, "b": 2}})).unwrap();
    let patch = Patch::new().increment("n", 2).push("tags", "y").unset("old").rename("o.a", "o.c").set("s", "t");
    db.update("a", &patch).unwrap();
    assert_eq!(
        db.get("a").unwrap().unwrap().to_json().unwrap(),
        r#"{"n":3,"o":{"b":2,"c":1},"tags":["x","y"],"s":"t"}"#
    );
    let merge: Value = r#"{"o": {"b": null}, "$odd": 1}"#.parse().unwrap();
    let patch = Patch::new().merge(merge.as_object().unwrap().clone()).multiply("n", 2).minimum("n2", 1);
    db.update("a", &patch).unwrap();
    let body = db.get("a").unwrap().unwrap().value().unwrap();
    assert_eq!(body.get("n"), Some(&6.into()));
    assert_eq!(body.get("$odd"), Some(&1.into()));
    assert_eq!(body.get("o").unwrap().to_json(), r#"{"c":1}"#);
    let unchanged = db.update("a", &Patch::new().set("s", "t")).unwrap();
    assert_eq!(unchanged.generation(), 3);
}

fn body(json: serde_json::Value) -> Value {
    Value::from_serialize(&json).unwrap()
}

fn insert(id: &str, json: serde_json::Value) -> Edit {
    Edit::Insert { id: DocumentId::new(id).unwrap(), body: body(json) }
}

fn bulk_edits_are_independent(db: &AnyDatabase) {
    let first = db.insert("a", &json!({"n": 1})).unwrap();
    let a = || DocumentId::new("a").unwrap();
    let results = db
        .bulk(vec![
            insert("a", json!({})),
            insert("b", json!({"n": 2})),
            Edit::Replace { id: a(), revision: first, body: body(json!({"n": 3})) },
            Edit::Upsert { id: DocumentId::new("c").unwrap(), body: body(json!({"n": 4})) },
            Edit::Update { id: DocumentId::new("d").unwrap(), revision: None, patch: Patch::new().set("n", 1) },
        ])
        .unwrap();
    let kinds: Vec<_> = results.iter().map(|result| result.as_ref().map_err(|error| error.kind()).err()).collect();
    assert_eq!(kinds, [Some(ErrorKind::Conflict), None, None, None, Some(ErrorKind::NotFound)]);
    assert_eq!(db.get("a").unwrap().unwrap().revision(), results[2].as_ref().unwrap());
    assert_eq!(db.find(field("n").ge(2)).count().unwrap(), 3);
    assert!(db.bulk(Vec::new()).unwrap().is_empty());
}

fn queries_return_rows_pages_and_counts(db: &AnyDatabase) {
    let edits = (0..100).map(|n| insert(&format!("d{n:02}"), json!({"n": n, "even": n % 2 == 0, "o": {"k": n % 3}})));
    assert!(db.bulk(edits.collect()).unwrap().iter().all(Result::is_ok));
    let even = || db.find(field("even").eq(true));
    assert_eq!(even().count().unwrap(), 50);
    let first = even().sort_descending("n").first().unwrap().unwrap();
    assert_eq!(first.id().as_str(), "d98");
    let ids: Vec<_> = even().sort("n").skip(1).limit(3).ids().unwrap().map(|id| id.unwrap().to_string()).collect();
    assert_eq!(ids, ["d02", "d04", "d06"]);
    let values = db.find(field("n").lt(2)).sort("n").fields(["o.k", "_id"]).values().unwrap();
    let values: Vec<_> = values.map(|value| value.unwrap().to_json()).collect();
    assert_eq!(values, [r#"{"o":{"k":0},"_id":"d00"}"#, r#"{"o":{"k":1},"_id":"d01"}"#]);
    assert_eq!(even().distinct("o.k").unwrap(), [0, 1, 2].map(Value::from));
    assert_eq!(db.find(Selector::everything()).sum("n").unwrap().as_i64(), Some(4950));
    // Pages continue where the last one ended.
    let (mut seen, mut token) = (Vec::new(), None);
    loop {
        let page = even().sort("n").limit(7);
        let page = if let Some(token) = token { page.after(token) } else { page };
        let mut rows = page.ids().unwrap();
        let before = seen.len();
        seen.extend(rows.by_ref().map(|id| id.unwrap().to_string()));
        token = rows.token().unwrap();
        if token.is_none() || seen.len() == before {
            break;
        }
    }
    assert_eq!(seen.len(), 50);
    assert!(seen.is_sorted());
    assert!(db.find(Selector::nothing()).first().unwrap().is_none());
}

fn many_rows_are_streamed(db: &AnyDatabase) {
    let text = "x".repeat(1000);
    for part in 0..6 {
        let edits = (0..500).map(|n| insert(&format!("{:04}", part * 500 + n), json!({"n": n, "text": text})));
        assert!(db.bulk(edits.collect()).unwrap().iter().all(Result::is_ok));
    }
    let all: BTreeSet<String> =
        db.find(Selector::everything()).run().unwrap().map(|row| row.unwrap().id().to_string()).collect();
    assert_eq!(all.len(), 3000);
    // A stream that is given up does not disturb later requests.
    for _ in 0..3 {
        let mut rows = db.find(Selector::everything()).run().unwrap();
        assert!(rows.next().unwrap().is_ok());
        drop(rows);
        assert_eq!(db.find(field("n").eq(7)).count().unwrap(), 6);
    }
}

fn changes_are_returned_in_order(db: &AnyDatabase) {
    for id in ["a", "b", "c"] {
        db.insert(id, &json!({"id": id})).unwrap();
    }
    let since = db.sequence().unwrap();
    let revision = db.upsert("a", &json!({"id": "A"})).unwrap();
    let deleted = db.delete("b", db.get("b").unwrap().unwrap().revision()).unwrap();
    let all = db.changes(Sequence::ZERO, false).unwrap();
    let ids: Vec<_> = all.iter().map(|change| (change.id.as_str(), change.deleted)).collect();
    assert_eq!(ids, [("c", false), ("a", false), ("b", true)]);
    assert!(all.is_sorted_by_key(|change| change.sequence) && all[0].document.is_none());
    let new = db.changes(since, true).unwrap();
    assert_eq!(new.len(), 2);
    assert_eq!((new[0].revision, new[1].revision, &new[1].leaves[..]), (revision, deleted, &[deleted][..]));
    assert_eq!(new[0].document.as_ref().unwrap().to_json().unwrap(), r#"{"id":"A"}"#);
    assert!(db.changes(db.sequence().unwrap(), false).unwrap().is_empty());
}

fn subscriptions_follow_writes(db: &AnyDatabase) {
    db.insert("before", &json!({})).unwrap();
    let mut feed = db.subscribe(Sequence::ZERO);
    let next = |feed: &mut stemmadb_client::AnySubscription| {
        feed.next_within(PATIENCE).unwrap().expect("a change").id.to_string()
    };
    assert_eq!(next(&mut feed), "before");
    assert!(feed.next_within(Duration::from_millis(20)).unwrap().is_none());
    for n in 0..50 {
        db.insert(&format!("{n:02}"), &json!({})).unwrap();
    }
    let seen: Vec<_> = (0..50).map(|_| next(&mut feed)).collect();
    assert_eq!(seen.first().map(String::as_str), Some("00"));
    assert!(seen.is_sorted() && seen.len() == 50);
}

fn changes_that_exist_are_returned_without_waiting(db: &AnyDatabase) {
    let edits = (0..1500).map(|n| insert(&format!("{n:04}"), json!({"n": n}))).collect();
    assert!(db.bulk(edits).unwrap().iter().all(Result::is_ok));
    let count = |mut feed: stemmadb_client::AnySubscription| {
        let mut count = 0;
        while feed.next_within(Duration::ZERO).unwrap().is_some() {
            count += 1;
        }
        (count, feed.reached())
    };
    let newest = db.sequence().unwrap();
    assert_eq!(count(db.subscribe(Sequence::ZERO)), (1500, newest));
    // Changes that do not match are skipped.
    assert_eq!(count(db.subscribe(Sequence::ZERO).selector(&field("n").eq(3)).unwrap()), (1, newest));
    assert_eq!(count(db.subscribe(newest)), (0, newest));
}

fn live_queries_return_differences(db: &AnyDatabase) {
    db.insert("a", &json!({"state": "open"})).unwrap();
    let mut open = db.watch(field("state").eq("open")).unwrap();
    let next = |watch: &mut stemmadb_client::AnyWatch| watch.next_within(PATIENCE).unwrap().expect("a delta");
    let first = next(&mut open);
    assert!(first.is_first());
    let events: Vec<_> = first.events().map(Result::unwrap).collect();
    assert!(matches!(&events[..], [DeltaEvent::Added(added)] if added.id().as_str() == "a"));
    db.insert("b", &json!({"state": "open"})).unwrap();
    let events: Vec<_> = next(&mut open).events().map(Result::unwrap).collect();
    assert!(matches!(&events[..], [DeltaEvent::Added(added)] if added.id().as_str() == "b"), "{events:?}");
    db.upsert("a", &json!({"state": "open", "n": 1})).unwrap();
    let events: Vec<_> = next(&mut open).events().map(Result::unwrap).collect();
    assert!(matches!(&events[..], [DeltaEvent::Changed(changed)] if changed.id().as_str() == "a"));
    db.upsert("b", &json!({"state": "closed"})).unwrap();
    let delta = next(&mut open);
    let events: Vec<_> = delta.events().map(Result::unwrap).collect();
    assert!(matches!(&events[..], [DeltaEvent::Removed { id, deleted: false }] if id.as_str() == "b"));
    assert_eq!(delta.sequence(), db.sequence().unwrap());
    let refused = db.watch(stemmadb::Query::new(Selector::everything()).limit(1));
    let refused = refused.and_then(|mut watch| watch.next_within(PATIENCE).map(|_| ()));
    assert_eq!(kind(refused), ErrorKind::Invalid);
}

fn values_keep_their_types(db: &AnyDatabase) {
    let text =
        r#"{"i":9007199254740993,"u":18446744073709551615,"n":-5,"f":1.0,"s":"\u0000\"ä€😀","e":[],"o":{},"z":null}"#;
    let value: Value = text.parse().unwrap();
    db.insert("all", &value).unwrap();
    assert_eq!(db.get("all").unwrap().unwrap().value().unwrap(), value);
}

fn asynchronous_operations_are_the_same(db: &AnyDatabase) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let db = AsyncDatabase::from(db.clone());
    runtime.block_on(async {
        let (mut changes, mut open) =
            (db.subscribe(Sequence::ZERO).await.unwrap(), db.watch(field("state").eq("open")).await.unwrap());
        let first = db.insert("a", &json!({"state": "open", "n": 1})).await.unwrap();
        assert_eq!(kind(db.insert("a", &json!({})).await), ErrorKind::Conflict);
        assert_eq!(changes.next().await.unwrap().unwrap().revision, first);
        // The live query began before or after the write.
        loop {
            let delta = open.next().await.unwrap().unwrap();
            let events: Vec<_> = delta.events().map(Result::unwrap).collect();
            match &events[..] {
                [DeltaEvent::Added(added)] => break assert_eq!(added.revision(), &first),
                events => assert!(delta.is_first() && events.is_empty(), "{events:?}"),
            }
        }
        let (mut paths, mut messages) =
            (db.subscribe_paths(["n"]).await.unwrap(), db.subscribe_topic(["a/#"]).await.unwrap());
        let second = db.replace("a", &first, &json!({"state": "open", "n": 2})).await.unwrap();
        assert_eq!(paths.next().await.unwrap().unwrap().paths, [PathEvent::Changed("n".into())]);
        assert_eq!(db.publish("a/b", &second.to_string()).await.unwrap(), 1);
        assert_eq!(messages.next().await.unwrap().unwrap().payload, second.to_string().into());
        db.update("a", &Patch::new().increment("n", 1)).await.unwrap();
        assert_eq!(kind(db.delete("a", &second).await), ErrorKind::Conflict);
        assert_eq!(db.get("a").await.unwrap().unwrap().get("n").unwrap(), Some(3.into()));
        let edits = (0..500).map(|n| insert(&format!("b{n:03}"), json!({"n": n}))).collect();
        assert!(db.bulk(edits).await.unwrap().iter().all(Result::is_ok));
        // More rows than are read ahead.
        let mut rows = db.find(stemmadb::Query::new(field("n").ge(0)).sort_descending("n")).await.unwrap();
        let mut seen = Vec::new();
        while let Some(row) = rows.next().await {
            seen.push(row.unwrap().get("n").unwrap().unwrap().as_u64().unwrap());
        }
        assert!(seen.len() == 501 && seen.is_sorted_by(|a, b| a >= b));
        let mut given_up = db.find(Selector::everything()).await.unwrap();
        assert!(given_up.next().await.unwrap().is_ok());
        drop(given_up);
        assert_eq!(db.count(field("n").lt(10)).await.unwrap(), 11);
        assert_eq!(db.documents(field("state").eq("open")).await.unwrap().len(), 1);
        assert_eq!(db.query(field("n").ge(0), |find| find.max("n")).await.unwrap(), Some(499.into()));
        let found = db.get_many(["b001", "none"]).await.unwrap();
        assert!(found[0].is_some() && found[1].is_none());
        assert_eq!(db.update_where(field("n").ge(490), &Patch::new().set("top", true)).await.unwrap(), 10);
        assert_eq!(db.delete_where(field("top").eq(true)).await.unwrap(), 10);
        assert_eq!(kind(db.find(field("..").eq(1)).await), ErrorKind::Invalid);
        let refused = match db.watch(stemmadb::Query::new(Selector::everything()).limit(1)).await {
            Ok(mut watch) => watch.next().await.unwrap().map(|_| ()),
            Err(error) => Err(error),
        };
        assert_eq!(kind(refused), ErrorKind::Invalid);
        let mut listed = db.changes(Sequence::ZERO).await.unwrap();
        let (mut count, mut newest) = (0, Sequence::ZERO);
        while let Some(change) = listed.next().await {
            let change = change.unwrap();
            count += u32::from(!change.deleted);
            newest = change.sequence;
        }
        assert_eq!(count, 491);
        assert_eq!(db.run(|db| db.find(Selector::everything()).count()).await.unwrap(), 491);
        assert!(newest <= db.sequence().await.unwrap());
        db.flush().await.unwrap();
        // The feed goes on to the newest change.
        while changes.next().await.unwrap().unwrap().sequence < newest {}
    });
    // Waits for the threads of the streams, which have ended.
    drop(runtime);
}
