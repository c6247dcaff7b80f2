//! Operations that only a remote database has, and what lost connections, rights and hostile peers do to the others.

mod support;

use std::io::Read;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use stemmadb::{DocumentId, Edit, ErrorKind, Index, Patch, PathEvent, Schema, Selector, Sequence, Value, field};
use stemmadb_client::{Client, ClientOptions, Credentials, RemoteDatabase};
use support::{CuttingProxy, PATIENCE, TestServer, Transport, over_each_transport};

over_each_transport! {
    batches_use_earlier_results
    batches_and_updates_are_applied_once_when_connections_are_lost
    uploads_survive_lost_connections_or_say_so
    uploads_are_limited
    operations_have_the_rights_of_routes
    path_subscriptions_continue_after_lost_connections
}

fn root() -> Credentials {
    Credentials::Password { user: "root".into(), password: "geheim".into() }
}

fn insert(id: &str, body: serde_json::Value) -> Edit {
    Edit::Insert { id: DocumentId::new(id).unwrap(), body: Value::from_serialize(&body).unwrap() }
}

fn take_one(id: &str) -> Edit {
    let patch = Patch::new().increment("count", -1);
    Edit::Update { id: DocumentId::new(id).unwrap(), revision: None, patch }
}

fn batches_use_earlier_results(transport: Transport) {
    let server = TestServer::start(transport);
    let db = server.client().create_database("shop").unwrap();
    db.insert("solaris", &json!({"price": 7, "count": 1, "also": ["eden", "none"]})).unwrap();
    db.insert("eden", &json!({"price": 5, "lines": [{"id": "solaris"}, {}]})).unwrap();
    // Reads that depend on reads.
    let read = db.batch().get("solaris").get_many(["x"]).with("ids", 0, "body.also");
    let read = read.find(field("price").lt(6)).unwrap().get_many(["x"]).with("ids", 2, "[].id");
    let read = read.get_many(["x"]).with("ids", 3, "[].body.lines[].id").count(Selector::everything()).unwrap();
    let refused = read.run();
    // A list of lists is no list of ids.
    assert_eq!(refused.map(drop).unwrap_err().kind(), ErrorKind::Invalid);
    let read = db.batch().get("solaris").get_many(["x"]).with("ids", 0, "body.also");
    let read = read.find(field("price").lt(6)).unwrap().get_many(["x"]).with("ids", 2, "[].id");
    let read = read.get("eden").get_many(["x"]).with("ids", 4, "body.lines[].id");
    let sum = Value::from(json!({"selector": {"_id": {"$in": []}}, "figures": {"total": {"sum": "price"}}}));
    let read = read.count(Selector::everything()).unwrap();
    let read = read.aggregate(&sum).with("aggregation.selector._id.$in", 2, "[].id");
    let results = read.run().unwrap();
    let groups = results.groups(7).unwrap();
    assert_eq!((groups.len(), groups[0].1.get("total")), (1, Some(&Value::from(5))));
    assert_eq!(results.document(0).unwrap().unwrap().id().as_str(), "solaris");
    let ids = |step: usize| {
        let documents = results.documents(step).unwrap();
        documents.iter().map(|document| document.as_ref().map(|document| document.id().to_string())).collect::<Vec<_>>()
    };
    assert_eq!(ids(1), [Some("eden".into()), None]);
    assert_eq!(
        (ids(2), ids(3), ids(5)),
        (vec![Some("eden".into())], vec![Some("eden".into())], vec![Some("solaris".into())])
    );
    assert_eq!(results.count(6).unwrap(), 2);
    assert_eq!(results.count(0).unwrap_err().kind(), ErrorKind::Invalid);
    // A sale in one round trip.
    let sell = |sale: &str| {
        let sale = insert(sale, json!({"book": "solaris"}));
        let batch = db.batch().get("solaris").require(0, field("count").ge(1))?.edit(take_one("solaris"))?;
        batch.edit(sale)?.with("body.price", 0, "body.price").run()
    };
    let results = sell("sale-1").unwrap();
    let sale = db.get("sale-1").unwrap().unwrap();
    assert_eq!((sale.get("price").unwrap(), sale.revision()), (Some(7.into()), &results.revision(3).unwrap()));
    assert_eq!(db.get("solaris").unwrap().unwrap().get("count").unwrap(), Some(0.into()));
    // None is left, so nothing is written.
    let error = sell("sale-2").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.message().contains("step 1"), "{error}");
    assert!(db.get("sale-2").unwrap().is_none());
    // An edit that fails takes the others back.
    let failing = db.batch().edit(insert("new", json!({}))).unwrap().edit(insert("eden", json!({}))).unwrap().run();
    assert_eq!(failing.map(drop).unwrap_err().kind(), ErrorKind::Conflict);
    assert!(db.get("new").unwrap().is_none());
    // Later steps see what earlier ones wrote.
    let seen = db.batch().edit(insert("new", json!({"n": 1}))).unwrap().get("new").check("none", None).run().unwrap();
    assert_eq!(seen.document(1).unwrap().unwrap().revision(), &seen.revision(0).unwrap());
    for (wrong, kind) in [
        (db.batch().get("x").with("id", 0, "id"), ErrorKind::Invalid),
        (db.batch().get("none").get("x").with("id", 0, "id"), ErrorKind::NotFound),
        (db.batch().get("none").require(0, Selector::everything()).unwrap(), ErrorKind::Conflict),
        (db.batch().check("solaris", None), ErrorKind::Conflict),
    ] {
        assert_eq!(wrong.run().map(drop).unwrap_err().kind(), kind);
    }
}

fn batches_and_updates_are_applied_once_when_connections_are_lost(transport: Transport) {
    let server = TestServer::start(transport);
    let direct = server.client().create_database("shop").unwrap();
    direct.insert("counter", &json!({"count": 0})).unwrap();
    let proxy = CuttingProxy::start(server.address());
    let mut expected = 0;
    for byte_count in (150..1500).step_by(11) {
        proxy.budget.store(byte_count, Ordering::SeqCst);
        let options = ClientOptions::new().timeout(PATIENCE).credentials(root());
        let Ok(client) = Client::connect_with(&server.url_at(proxy.address, ""), options) else { continue };
        let db = client.database("shop");
        let sale = insert(&format!("sale-{byte_count}"), json!({}));
        let batch = db.batch().get("counter").edit(take_one("counter")).unwrap();
        let results = batch.edit(sale).unwrap().with("body.left", 0, "body.count").run().unwrap();
        assert_eq!(results.document(0).unwrap().unwrap().get("count").unwrap(), Some(expected.into()));
        expected -= 1;
        let by_one = Patch::new().increment("count", -1);
        assert_eq!(db.update_where(field("_id").eq("counter"), &by_one).unwrap(), 1, "after {byte_count} bytes");
        expected -= 1;
        let counter = db.get("counter").unwrap().unwrap();
        assert_eq!(counter.get("count").unwrap(), Some(expected.into()), "after {byte_count} bytes");
    }
    assert!(expected < -100);
}

fn uploads_survive_lost_connections_or_say_so(transport: Transport) {
    let server = TestServer::start(transport);
    let direct = server.client().create_database("shop").unwrap();
    let proxy = CuttingProxy::start(server.address());
    let connect = || {
        let options = ClientOptions::new().timeout(PATIENCE).credentials(root());
        Client::connect_with(&server.url_at(proxy.address, ""), options).map(|client| client.database("shop"))
    };
    let content: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
    let mut revision = direct.insert("a", &json!({})).unwrap();
    // Short content is sent again, and attached once.
    for byte_count in [200, 500, 1_000, 65_000, 66_000, 150_000, 200_400, 200_500] {
        proxy.budget.store(byte_count, Ordering::SeqCst);
        let Ok(db) = connect() else { continue };
        let next = db.files().attach("a", &revision, "f", "x/y", &content[..]).unwrap();
        assert_eq!(next.generation(), revision.generation() + 1, "after {byte_count} bytes");
        revision = next;
        // Reading continues where the connection was lost.
        proxy.budget.store(byte_count, Ordering::SeqCst);
        let mut read = Vec::new();
        let Ok(db) = connect() else { continue };
        db.files().open("a", "f").unwrap().unwrap().read_to_end(&mut read).unwrap();
        assert!(read == content, "after {byte_count} bytes");
    }
    // Long content can't be.
    proxy.budget.store(usize::MAX, Ordering::SeqCst);
    let long = vec![7; 3 << 20];
    proxy.budget.store(2 << 20, Ordering::SeqCst);
    let db = connect().unwrap();
    let error = db.files().attach("a", &revision, "long", "x/y", &long[..]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(direct.files().open("a", "long").unwrap().is_none());
    direct.files().attach("a", &revision, "long", "x/y", &long[..]).unwrap();
    // A source that fails ends the upload, and the client goes on.
    struct Failing(usize);
    impl Read for Failing {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.0 = self.0.checked_sub(buffer.len()).ok_or(std::io::ErrorKind::Other)?;
            buffer.fill(1);
            Ok(buffer.len())
        }
    }
    let revision = *direct.get("a").unwrap().unwrap().revision();
    let failed = direct.files().attach("a", &revision, "half", "x/y", Failing(2 << 20));
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(direct.files().open("a", "half").unwrap().is_none());
    assert_eq!(direct.get("a").unwrap().unwrap().revision(), &revision);
}

fn uploads_are_limited(transport: Transport) {
    let server = TestServer::start_with(transport, |config| config.limits.attachment_bytes = 100_000);
    let db = server.client().create_database("shop").unwrap();
    let revision = db.insert("a", &json!({})).unwrap();
    let refused = db.files().attach("a", &revision, "f", "x/y", &vec![0; 2_000_000][..]);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
    db.files().attach("a", &revision, "f", "x/y", &vec![0; 100_000][..]).unwrap();
    assert!(db.document_count().is_ok());
}

fn operations_have_the_rights_of_routes(transport: Transport) {
    let server = TestServer::start(transport);
    let admin = server.client();
    let db = admin.create_database("shop").unwrap();
    let revision = db.insert("a", &json!({"n": 1})).unwrap();
    db.views().define("v", &json!({"key": "n", "reduce": "_count"})).unwrap();
    let forbidden = |result: stemmadb::Result<()>| assert_eq!(result.unwrap_err().kind(), ErrorKind::Forbidden);
    let anonymous = Client::connect_with(&server.url(""), server.options()).unwrap();
    let refused_to_all = |db: &RemoteDatabase| {
        forbidden(db.indexes().create(Index::on("n")));
        forbidden(db.indexes().remove("n"));
        forbidden(db.schemas().require("c", Schema::new(&json!({})).unwrap()));
        forbidden(db.schemas().remove("c"));
        forbidden(db.views().define("w", &json!({"key": "n"})).map(drop));
        forbidden(db.views().remove("v"));
        forbidden(db.history().keep(stemmadb::past::Retention::Everything));
        forbidden(db.history().pin("p", Sequence::ZERO).map(drop));
        forbidden(db.history().release("p"));
        forbidden(db.history().undelete("a").map(drop));
        forbidden(db.history().revert(Selector::everything(), Sequence::ZERO).map(drop));
    };
    let refused_to_strangers = |db: &RemoteDatabase| {
        forbidden(db.update_where(Selector::everything(), &Patch::new()).map(drop));
        forbidden(db.delete_where(Selector::everything()).map(drop));
        forbidden(db.batch().get("a").run().map(drop));
        forbidden(db.files().open("a", "f").map(drop));
        forbidden(db.files().attach("a", &revision, "f", "x/y", &b"1"[..]).map(drop));
        forbidden(db.views().open("v").map(drop));
        forbidden(db.views().definitions().map(drop));
        forbidden(db.indexes().list().map(drop));
        forbidden(db.schemas().list().map(drop));
        forbidden(db.history().revisions("a").map(drop));
        forbidden(db.history().document_at("a", Sequence::ZERO).map(drop));
        forbidden(db.history().differences(Sequence::ZERO, Sequence::ZERO, None).map(drop));
        forbidden(db.history().retention().map(drop));
        forbidden(db.find(Selector::everything()).summary("n").map(drop));
        forbidden(db.find(Selector::everything()).max("n").map(drop));
        forbidden(db.find(Selector::everything()).group_by("n").counts().map(drop));
        forbidden(db.subscribe_paths(["#"]).map(drop));
    };
    refused_to_all(&anonymous.database("shop"));
    refused_to_strangers(&anonymous.database("shop"));
    // A member of the database reads and writes documents, and declares nothing.
    let users = admin.database("_users");
    if users.sequence().is_err() {
        admin.create_database("_users").unwrap();
    }
    let user = json!({"name": "ada", "type": "user", "roles": [], "password": "secret"});
    users.insert("org.couchdb.user:ada", &user).unwrap();
    let members = Value::from_serialize(&json!({"members": {"names": ["ada"], "roles": []}})).unwrap();
    server.set_security("shop", &members);
    let ada = Client::connect_with(&server.url("ada:secret@"), server.options()).unwrap().database("shop");
    refused_to_all(&ada);
    assert_eq!(ada.views().open("v").unwrap().query().reduce().unwrap(), Some(1.into()));
    assert_eq!(ada.update_where(field("n").eq(1), &Patch::new().set("n", 2)).unwrap(), 1);
    assert_eq!(ada.history().revisions("a").unwrap().len(), 2);
    // Design documents are an administrator's, by any operation.
    forbidden(ada.batch().edit(insert("_design/x", json!({}))).unwrap().run().map(drop));
    forbidden(ada.delete_where(Selector::everything()).map(drop));
    assert!(ada.get("a").unwrap().is_some());
    assert_eq!(ada.delete_where(field("n").eq(2)).unwrap(), 1);
}

fn path_subscriptions_continue_after_lost_connections(transport: Transport) {
    let mut server = TestServer::start(transport);
    let db = server.client().create_database("shop").unwrap();
    db.insert("a", &json!({"status": "new"})).unwrap();
    let mut feed = db.subscribe_paths(["status"]).unwrap();
    db.update("a", &Patch::new().set("status", "paid")).unwrap();
    let change = feed.next_within(PATIENCE).unwrap().unwrap();
    assert_eq!(change.paths, [PathEvent::Changed("status".into())]);
    server.stop();
    server.restart();
    let again = server.client().database("shop");
    again.insert("b", &json!({"status": "new"})).unwrap();
    // A resumed feed knows where earlier changes were, but not what they were. It may repeat the last transaction.
    loop {
        let change = feed.next_within(PATIENCE).unwrap().expect("the change of b");
        if change.id.as_str() == "b" {
            break;
        }
        assert_eq!(change.id.as_str(), "a");
    }
    again.update("b", &Patch::new().set("status", "sent")).unwrap();
    loop {
        let change = feed.next_within(PATIENCE).unwrap().expect("the second change of b");
        if change.paths == [PathEvent::Changed("status".into())] {
            break;
        }
    }
    assert!(feed.next_within(Duration::from_millis(50)).unwrap().is_none());
}

/// A server may answer requests in any order.
#[test]
fn pipelined_answers_may_arrive_in_any_order() {
    use stemmadb_wire::{Encoding, FrameBuffer, FrameKind, Request, Welcome, write_frame};
    let listener = std::net::TcpListener::bind(support::loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut frames, mut asked) = (FrameBuffer::new(1 << 20), Vec::new());
        loop {
            while let Some(frame) = frames.next_frame().unwrap() {
                let mut bytes = Vec::new();
                match frame.kind {
                    FrameKind::Hello => {
                        let welcome = Welcome { version: 1, frame_bytes_max: 1 << 20, server: "reversed".into() };
                        write_frame(&mut bytes, FrameKind::Welcome, 0, |out| welcome.write(out));
                    }
                    FrameKind::Request => {
                        let request = Request::read(frame.payload).unwrap();
                        let id = request.arguments(Encoding::Json).unwrap().get("id").unwrap().clone();
                        asked.push((frame.request, id));
                    }
                    _ => {}
                }
                // Four answers, the last first.
                for (request, id) in (asked.len() == 4).then(|| std::mem::take(&mut asked)).into_iter().flatten().rev()
                {
                    let rev = "1-0123456789abcdef0123456789abcdef";
                    let answer = format!(r#"{{"id": {}, "rev": "{rev}", "seq": 1, "body": {{}}}}"#, id.to_json());
                    write_frame(&mut bytes, FrameKind::Reply, request, |out| out.extend_from_slice(answer.as_bytes()));
                }
                std::io::Write::write_all(&mut stream, &bytes).unwrap();
            }
            match stream.read(frames.space()) {
                Ok(count @ 1..) => frames.add(count),
                _ => return,
            }
        }
    });
    let options = ClientOptions::new().timeout(PATIENCE).encoding(Encoding::Json);
    let client = Client::connect_with(&format!("stemma://{address}"), options).unwrap();
    let found = client.database("shop").get_pipelined(["a", "b", "c", "d"]).unwrap();
    let ids: Vec<_> = found.iter().map(|found| found.as_ref().unwrap().id().to_string()).collect();
    assert_eq!(ids, ["a", "b", "c", "d"]);
    drop(client);
    server.join().unwrap();
}

#[test]
fn requests_are_counted_in_the_metrics() {
    let server = TestServer::start(Transport::Tcp);
    let db = server.client().create_database("shop").unwrap();
    db.insert("a", &json!({})).unwrap();
    for _ in 0..3 {
        db.get("a").unwrap();
    }
    db.insert("a", &json!({})).unwrap_err();
    let mut feed = db.subscribe(Sequence::ZERO);
    feed.next_within(PATIENCE).unwrap().unwrap();
    drop(feed);
    // A cancelled stream ends a moment later.
    let expected = [
        "stemma_requests_total{route=\"Get\",method=\"WIRE\",status=\"200\"} 3\n",
        "stemma_requests_total{route=\"Edit\",method=\"WIRE\",status=\"200\"} 1\n",
        "stemma_requests_total{route=\"Edit\",method=\"WIRE\",status=\"409\"} 1\n",
        "stemma_requests_total{route=\"Subscribe\",method=\"WIRE\",status=\"408\"} 1\n",
        "stemma_request_seconds_count{route=\"Get\",method=\"WIRE\"} 3\n",
    ];
    let page = || server.http("GET", "/_node/_local/_prometheus", "");
    support::wait_until("the requests are counted", || {
        let page = page();
        expected.iter().all(|line| page.contains(line))
    });
    assert!(!page().contains("stemma_request_seconds_count{route=\"Subscribe\""));
}

/// Many more connections than threads.
#[test]
#[cfg(unix)]
fn idle_connections_hold_no_thread() {
    let limits = |config: &mut stemmadb_server::Config| {
        (config.wire.thread_count, config.wire.connection_count) = (6, 300);
    };
    for transport in [Transport::Tcp, Transport::Tls, Transport::Unix, Transport::WebSocket] {
        let mut server = TestServer::start_with(transport, limits);
        server.client().create_database("shop").unwrap().insert("a", &json!({"n": 1})).unwrap();
        let clients: Vec<_> = (0..100).map(|_| server.client()).collect();
        for round in 0..2 {
            for client in &clients {
                let found = client.database("shop").get("a").unwrap();
                assert_eq!(found.unwrap().get("n").unwrap(), Some(1.into()), "{transport:?} {round}");
            }
        }
        // All of them ask at once; then the server restarts, and all of them reconnect at once.
        for _ in 0..2 {
            std::thread::scope(|scope| {
                for client in &clients {
                    scope.spawn(|| assert!(client.database("shop").get("a").unwrap().is_some()));
                }
            });
            server.stop();
            server.restart();
        }
    }
}

/// What a server that never answers receives.
#[derive(Debug, PartialEq)]
enum Received {
    Request(stemmadb_wire::Operation),
    Cancel,
    End,
}

/// A server that answers nothing but cancelled requests, and reports what it receives.
fn silent_server() -> (std::net::SocketAddr, std::sync::mpsc::Receiver<Received>) {
    use stemmadb_wire::{FrameBuffer, FrameKind, Request, Welcome, write_frame};
    let listener = std::net::TcpListener::bind(support::loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, received) = std::sync::mpsc::channel();
    // Its threads end with the test's process.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, sender) = (stream.unwrap(), sender.clone());
            std::thread::spawn(move || {
                let mut frames = FrameBuffer::new(1 << 20);
                loop {
                    while let Some(frame) = frames.next_frame().unwrap() {
                        let mut bytes = Vec::new();
                        match frame.kind {
                            FrameKind::Hello => {
                                let welcome = Welcome { version: 1, frame_bytes_max: 1 << 20, server: "silent".into() };
                                write_frame(&mut bytes, FrameKind::Welcome, 0, |out| welcome.write(out));
                            }
                            FrameKind::Request => {
                                let operation = Request::read(frame.payload).unwrap().operation;
                                sender.send(Received::Request(operation)).ok();
                            }
                            FrameKind::Cancel => {
                                sender.send(Received::Cancel).ok();
                                let stopped = br#"{"error": "stopped", "message": "it was cancelled"}"#;
                                write_frame(&mut bytes, FrameKind::Error, frame.request, |out| {
                                    out.extend_from_slice(stopped);
                                });
                            }
                            _ => {}
                        }
                        std::io::Write::write_all(&mut stream, &bytes).ok();
                    }
                    match stream.read(frames.space()) {
                        Ok(count @ 1..) => frames.add(count),
                        _ => break sender.send(Received::End).ok(),
                    }
                }
            });
        }
    });
    (address, received)
}

#[test]
fn urls_are_not_taken_for_paths() {
    let server = TestServer::start(Transport::WebSocket);
    server.client().create_database("shop").unwrap();
    let url = server.url("root:geheim@");
    assert!(url.starts_with("http://"), "{url}");
    let opened = stemmadb_client::AnyDatabase::open(&format!("{url}/shop")).unwrap();
    assert!(matches!(opened, stemmadb_client::AnyDatabase::Remote(_)));
    for (wrong, kind) in [(url.as_str(), ErrorKind::Invalid), ("ftp://localhost/shop", ErrorKind::Invalid)] {
        assert_eq!(stemmadb_client::AnyDatabase::open(wrong).map(drop).unwrap_err().kind(), kind, "{wrong}");
    }
}

#[test]
fn dropped_futures_stop_the_server() {
    use stemmadb_client::asynchronous::AsyncClient;
    use stemmadb_wire::Operation;
    let (address, received) = silent_server();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let options = ClientOptions::new().timeout(PATIENCE);
    let client = runtime.block_on(AsyncClient::connect_with(&format!("stemma://{address}"), options)).unwrap();
    let db = client.database("shop");
    let next = || received.recv_timeout(PATIENCE).unwrap();
    for operation in [Operation::Count, Operation::Get, Operation::Find, Operation::Aggregate] {
        let db = db.clone();
        let reading = runtime.spawn(async move {
            match operation {
                Operation::Count => db.count(Selector::everything()).await.map(drop),
                Operation::Get => db.get("a").await.map(drop),
                Operation::Find => db.find(Selector::everything()).await.map(drop),
                _ => {
                    let figures = Value::from(json!({"figures": {"n": "count"}}));
                    db.read(move |db| match db {
                        stemmadb_client::AnyDatabase::Remote(db) => db.aggregate(&figures).map(drop),
                        stemmadb_client::AnyDatabase::Embedded(_) => unreachable!(),
                    })
                    .await
                }
            }
        });
        assert_eq!(next(), Received::Request(operation));
        reading.abort();
        assert_eq!(next(), Received::Cancel, "{operation:?}");
    }
    // A feed has a connection of its own, which is closed.
    let feed = runtime.block_on(db.subscribe(Sequence::ZERO)).unwrap();
    assert_eq!(next(), Received::Request(Operation::Subscribe));
    drop(feed);
    assert_eq!(next(), Received::End);
    let watch = runtime.block_on(db.watch(field("a").eq(1))).unwrap();
    assert_eq!(next(), Received::Request(Operation::Watch));
    drop(watch);
    assert_eq!(next(), Received::End);
    // A write goes on when its future is dropped.
    let writing = runtime.spawn(async move { db.insert("a", &json!({})).await.map(drop) });
    assert_eq!(next(), Received::Request(Operation::Edit));
    writing.abort();
    assert!(received.recv_timeout(Duration::from_millis(100)).is_err());
    runtime.shutdown_background();
}
