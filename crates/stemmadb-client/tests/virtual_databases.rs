//! Virtual databases of a server: feeds that continue where they were, and writes whose answers are lost.

mod support;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::json;
use stemmadb::{DocumentId, Edit, ErrorKind, Patch, Selector, Sequence, field};
use stemmadb_client::{RemoteDatabase, RemoteSubscription};
use support::{CuttingProxy, PATIENCE, TestServer, Transport, wait_until};

/// A server with the virtual database `shop`.
fn server() -> (TestServer, RemoteDatabase) {
    let server = TestServer::start(Transport::Tcp);
    server.http("PUT", "/shop?shards=2", "");
    let database = server.client().database("shop");
    (server, database)
}

/// Divides a shard, and waits for that.
fn split(server: &TestServer, shard: &str) {
    server.http("POST", "/shop/_shards", &json!({ "split": shard }).to_string());
    wait_until("the shard is divided", || server.http("GET", "/shop/_shards", "").contains("\"move\":null"));
}

/// The ids that a feed returns until it has these.
fn until_seen(feed: &mut RemoteSubscription, wanted: &[String]) {
    let (mut seen, end) = (BTreeSet::new(), Instant::now() + PATIENCE);
    while !wanted.iter().all(|id| seen.contains(id)) {
        assert!(Instant::now() < end, "{wanted:?} are not in {seen:?}");
        seen.extend(feed.next_within(Duration::from_millis(100)).unwrap().map(|change| change.id.to_string()));
    }
}

fn insert(db: &RemoteDatabase, prefix: &str) -> Vec<String> {
    let ids: Vec<String> = (0..30).map(|n| format!("{prefix}{n:02}")).collect();
    let edit = |id: &String| Edit::Insert { id: DocumentId::new(id.as_str()).unwrap(), body: "{}".parse().unwrap() };
    assert!(db.bulk(ids.iter().map(edit).collect()).unwrap().iter().all(Result::is_ok));
    ids
}

#[test]
fn subscriptions_continue_after_moves_and_restarts() {
    let (mut server, db) = server();
    let first = insert(&db, "a");
    let mut feed = db.subscribe(Sequence::ZERO);
    until_seen(&mut feed, &first);
    assert!(feed.next_within(Duration::ZERO).unwrap().is_none());
    // Sequences are no positions.
    assert_eq!(feed.reached(), Sequence::ZERO);
    let position = feed.token().expect("a position").to_owned();
    split(&server, "shard-1");
    let second = insert(&db, "b");
    until_seen(&mut feed, &second);
    server.stop();
    server.restart();
    let third = insert(&db, "c");
    until_seen(&mut feed, &third);
    // Another subscription continues after the position, without what was before.
    let mut later = db.subscribe(Sequence::ZERO).after(position.clone());
    until_seen(&mut later, &[second, third].concat());
    let (changes, end) = db.changes(Sequence::ZERO).after(position).run_to_token().unwrap();
    assert!(changes.map(|change| change.unwrap().id.to_string()).any(|id| id == "c00"));
    let end = end.expect("a position");
    assert_eq!(db.changes(Sequence::ZERO).after(end).run().unwrap().count(), 0);
    let newest = db.token().unwrap().expect("a position");
    assert_eq!(db.changes(Sequence::ZERO).after(newest).run().unwrap().count(), 0);
    let by_sequence = db.changes(db.sequence().unwrap()).run().map(drop);
    assert_eq!(by_sequence.unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn live_queries_follow_documents_that_move() {
    let (server, db) = server();
    let ids = insert(&db, "a");
    let mut watch = db.watch(Selector::everything()).unwrap();
    let first = watch.next_within(PATIENCE).unwrap().unwrap();
    assert!(first.is_first() && first.len() == ids.len() as u64);
    split(&server, "shard-1");
    db.update("a00", &Patch::new().set("n", 1)).unwrap();
    // The move itself changes nothing.
    let delta = watch.next_within(PATIENCE).unwrap().unwrap();
    assert_eq!(delta.len(), 1);
}

#[test]
fn lost_answers_of_bulk_writes_are_asked_for_again() {
    let (server, db) = server();
    let ids = insert(&db, "a");
    let proxy = CuttingProxy::start(server.address());
    let credentials = stemmadb_client::Credentials::Password { user: "root".into(), password: "geheim".into() };
    let options = server.options().credentials(credentials);
    let client = stemmadb_client::Client::connect_with(&server.url_at(proxy.address, ""), options).unwrap();
    let through = client.database("shop");
    let mut cut_count = 0;
    // At different places of the request and of the answer.
    for (round, budget) in (1..).zip([200, 900, 2_000, 3_000, 3_500, 4_000, 4_500]) {
        proxy.budget.store(budget, std::sync::atomic::Ordering::SeqCst);
        let edit = |id: &String| Edit::Update {
            id: DocumentId::new(id.as_str()).unwrap(),
            revision: None,
            patch: Patch::new().increment("n", 1),
        };
        let fresh = client_of(&server, &proxy);
        assert!(fresh.database("shop").bulk(ids.iter().map(edit).collect()).unwrap().iter().all(Result::is_ok));
        assert_eq!(through.find(field("n").eq(round)).count().unwrap(), 30, "{budget}");
        cut_count = proxy.cut_count.load(std::sync::atomic::Ordering::SeqCst);
    }
    assert!(cut_count > 0, "no connection was cut");
}

/// A client without connections.
fn client_of(server: &TestServer, proxy: &CuttingProxy) -> stemmadb_client::Client {
    let credentials = stemmadb_client::Credentials::Password { user: "root".into(), password: "geheim".into() };
    let options = server.options().credentials(credentials);
    stemmadb_client::Client::connect_with(&server.url_at(proxy.address, ""), options).unwrap()
}
