//! Lost connections, hostile peers, rights, and limits.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::json;
use stemmadb::{DocumentId, Edit, ErrorKind, Patch, Selector, Sequence, Value, field};
use stemmadb_client::{Client, ClientOptions, Credentials};
use support::{CuttingProxy, PATIENCE, TestServer, Transport, loopback, over_each_transport, wait_until};

over_each_transport! {
    connection_cut_at_every_byte_loses_and_repeats_nothing
    client_goes_on_when_the_server_restarts
    call_ends_at_its_timeout_if_no_server_answers
    rights_are_those_of_http
    running_query_is_cancelled_on_the_server
    pipelined_reads_return_in_order
    connections_beyond_the_limit_are_refused
    interactive_transactions_are_serializable
}

// A connection that is lost shows only after seconds of silence, so these are those that end in other ways.
#[cfg(unix)]
over_each_transport! {
    @ quic Quic
    client_goes_on_when_the_server_restarts
    rights_are_those_of_http
    running_query_is_cancelled_on_the_server
    pipelined_reads_return_in_order
    connections_beyond_the_limit_are_refused
}

fn root() -> Credentials {
    Credentials::Password { user: "root".into(), password: "geheim".into() }
}

/// A connection is cut after each number of bytes of a conversation. The client goes on, and each write is applied
/// once.
fn connection_cut_at_every_byte_loses_and_repeats_nothing(transport: Transport) {
    let server = TestServer::start(transport);
    server.client().create_database("shop").unwrap();
    let proxy = CuttingProxy::start(server.address());
    let url = server.url_at(proxy.address, "");
    // The handshake of a WebSocket adds hundreds of bytes.
    let step = if transport == Transport::Tcp { 1 } else { 5 };
    let mut expected = 0;
    let mut byte_count = 1;
    loop {
        let cuts = proxy.cut_count.load(Ordering::SeqCst);
        proxy.budget.store(byte_count, Ordering::SeqCst);
        let client = Client::connect_with(&url, ClientOptions::new().timeout(PATIENCE).credentials(root()));
        let client = match client {
            Ok(client) => client,
            // The first connection of a client is not repeated.
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
                byte_count += step;
                continue;
            }
        };
        let db = client.database("shop");
        db.upsert("counter", &json!({"n": expected})).unwrap();
        db.update("counter", &Patch::new().increment("n", 1)).unwrap();
        expected += 1;
        let id = format!("d{byte_count}");
        db.insert(&id, &json!({"n": byte_count})).unwrap();
        let counter = db.get("counter").unwrap().unwrap();
        assert_eq!(counter.get("n").unwrap(), Some(expected.into()), "after {byte_count} bytes");
        // Each write made one revision.
        assert_eq!(u64::from(counter.revision().generation()), 2 * expected, "after {byte_count} bytes");
        drop(client);
        proxy.budget.store(usize::MAX, Ordering::SeqCst);
        if proxy.cut_count.load(Ordering::SeqCst) == cuts {
            // The conversation has fewer bytes.
            break;
        }
        byte_count += step;
    }
    assert!(byte_count > 300, "{byte_count}");
}

fn client_goes_on_when_the_server_restarts(transport: Transport) {
    let mut server = TestServer::start(transport);
    let client = server.client();
    let db = client.create_database("shop").unwrap();
    let mut feed = db.subscribe(Sequence::ZERO);
    db.insert("0", &json!({})).unwrap();
    assert_eq!(feed.next_within(PATIENCE).unwrap().unwrap().id.as_str(), "0");
    for round in 1..=5 {
        server.stop();
        let (id, writer) = (round.to_string(), db.clone());
        let written = id.clone();
        let writing = std::thread::spawn(move || writer.insert(&written, &json!({"round": round})));
        server.restart();
        writing.join().unwrap().unwrap();
        assert!(db.get(&id).unwrap().is_some());
        // The feed resumes after the last change: nothing is missing, nothing is repeated.
        assert_eq!(feed.next_within(PATIENCE).unwrap().unwrap().id.as_str(), id);
    }
    assert_eq!(db.find(Selector::everything()).count().unwrap(), 6);
}

fn call_ends_at_its_timeout_if_no_server_answers(transport: Transport) {
    let mut server = TestServer::start(transport);
    let db = server.client_with(server.options().timeout(Duration::from_secs(5))).create_database("shop").unwrap();
    server.stop();
    let begun = Instant::now();
    assert_eq!(db.get("a").unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(begun.elapsed() < PATIENCE);
    assert_eq!(Client::connect(&server.url("")).map(|_| ()).unwrap_err().kind(), ErrorKind::Unavailable);
}

/// Sends bytes; returns whether the server closed the connection.
fn is_closed_after(server: &TestServer, bytes: &[u8]) -> bool {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(bytes).ok();
    stream.shutdown(std::net::Shutdown::Write).ok();
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

fn hello() -> Vec<u8> {
    let hello = stemmadb_wire::Hello { versions: (1, 1), encoding: stemmadb_wire::Encoding::Json, credentials: root() };
    let mut bytes = Vec::new();
    stemmadb_wire::write_frame(&mut bytes, stemmadb_wire::FrameKind::Hello, 0, |out| hello.write(out));
    bytes
}

#[test]
fn hostile_bytes_close_only_their_own_connection() {
    let server = TestServer::start(Transport::Tcp);
    let client = server.client();
    let db = client.create_database("shop").unwrap();
    db.insert("a", &json!({})).unwrap();
    let frame = |kind: u8, payload: &[u8]| {
        let mut bytes = u32::try_from(payload.len() + 5).unwrap().to_le_bytes().to_vec();
        bytes.push(kind);
        bytes.extend_from_slice(&1u32.to_le_bytes());
        bytes.extend_from_slice(payload);
        bytes
    };
    let mut cases = vec![
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        vec![0xff; 100],
        vec![0; 100],
        frame(1, b"stemma\r\n"),
        frame(3, &[16, 0, 0]),
        hello()[..20].to_vec(),
    ];
    for tail in
        [vec![0xff; 64], frame(1, b""), frame(2, b""), frame(4, b"{}"), frame(11, b"x"), frame(8, b"x"), frame(99, b"")]
    {
        cases.push([hello(), tail].concat());
    }
    for case in &cases {
        assert!(is_closed_after(&server, case), "{case:?}");
        assert!(db.get("a").unwrap().is_some());
    }
    // Malformed requests are answered; the connection goes on.
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&hello()).unwrap();
    let mut frames = stemmadb_wire::FrameBuffer::new(1 << 20);
    let mut next_kind = |stream: &mut TcpStream| loop {
        if let Some(frame) = frames.next_frame().unwrap() {
            return frame.kind;
        }
        let mut buffer = [0; 1024];
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "the connection was closed");
        frames.extend(&buffer[..count]);
    };
    assert_eq!(next_kind(&mut stream), stemmadb_wire::FrameKind::Welcome);
    for payload in [&b""[..], &[255, 0, 0], &[16, 9, 0], &[16, 0, 200], b"\x10\0\x04shop{", b"\x10\0\x04shop{\"id\":1}"]
    {
        stream.write_all(&frame(3, payload)).unwrap();
        assert_eq!(next_kind(&mut stream), stemmadb_wire::FrameKind::Error, "{payload:?}");
    }
    stream.write_all(&frame(3, b"\x10\0\x04shop{\"id\":\"a\"}")).unwrap();
    assert_eq!(next_kind(&mut stream), stemmadb_wire::FrameKind::Reply);
}

/// A generator of numbers that always returns the same ones.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn random_frames_do_no_harm() {
    let server = TestServer::start(Transport::Tcp);
    let client = server.client();
    let db = client.create_database("shop").unwrap();
    db.insert("a", &json!({"n": 1})).unwrap();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for case in 0..300 {
        let mut bytes = hello();
        for _ in 0..random.next() % 8 {
            let operation = stemmadb_wire::Operation::ALL[random.next() as usize % stemmadb_wire::Operation::ALL.len()];
            let arguments: Value = [
                r#"{"id":"a"}"#,
                r#"{"query":{"selector":{}}}"#,
                r#"{"since":0}"#,
                r#"{"edits":[{"op":"upsert","id":"r","body":{}}]}"#,
                "null",
            ][random.next() as usize % 5]
                .parse()
                .unwrap();
            let kind = match random.next() % 4 {
                0 => stemmadb_wire::FrameKind::Cancel,
                _ => stemmadb_wire::FrameKind::Request,
            };
            // Databases are neither created nor deleted.
            let name = if operation == stemmadb_wire::Operation::DeleteDatabase { "none" } else { "shop" };
            stemmadb_wire::write_frame(&mut bytes, kind, random.next() as u32 % 4, |out| {
                stemmadb_wire::Request::write(operation, name, None, &arguments, stemmadb_wire::Encoding::Json, out);
            });
        }
        // Some bytes behind the handshake change.
        let start = hello().len();
        for _ in 0..random.next() % 4 {
            if bytes.len() > start {
                let at = start + random.next() as usize % (bytes.len() - start);
                bytes[at] = random.next() as u8;
            }
        }
        // A changed byte may have made a request to delete the database: then it is created again.
        is_closed_after(&server, &bytes);
        if case % 50 == 0 {
            wait_until("the server answers", || client.ping().is_ok());
        }
    }
    client.ping().unwrap();
}

fn rights_are_those_of_http(transport: Transport) {
    let server = TestServer::start(transport);
    let root = server.client();
    let db = root.create_database("shop").unwrap();
    db.insert("a", &json!({})).unwrap();
    let forbidden = |result: Result<(), stemmadb::Error>| assert_eq!(result.unwrap_err().kind(), ErrorKind::Forbidden);
    // By default nobody but administrators may do anything.
    let anonymous = Client::connect_with(&server.url(""), server.options()).unwrap();
    let shop = anonymous.database("shop");
    forbidden(shop.get("a").map(drop));
    forbidden(shop.find(Selector::everything()).count().map(drop));
    forbidden(shop.insert("b", &json!({})).map(drop));
    forbidden(shop.bulk(vec![]).map(drop));
    forbidden(shop.changes(Sequence::ZERO).run().map(drop));
    forbidden(shop.subscribe(Sequence::ZERO).next_within(PATIENCE).map(drop));
    forbidden(shop.watch(field("a").eq(1)).and_then(|mut watch| watch.next_within(PATIENCE).map(drop)));
    forbidden(shop.sequence().map(drop));
    forbidden(shop.transact().commit().map(drop));
    forbidden(anonymous.databases().map(drop));
    forbidden(anonymous.create_database("mine").map(drop));
    forbidden(anonymous.delete_database("shop"));
    // A user may read their own document, and nothing else.
    let users = root.database("_users");
    if users.sequence().is_err() {
        root.create_database("_users").unwrap();
    }
    for name in ["ada", "bob"] {
        let user = json!({"name": name, "type": "user", "roles": [], "password": "secret"});
        users.insert(&format!("org.couchdb.user:{name}"), &user).unwrap();
    }
    let stored = users.get("org.couchdb.user:ada").unwrap().unwrap();
    assert_eq!(stored.get("password").unwrap(), None, "passwords are hashed");
    let ada = Client::connect_with(&server.url("ada:secret@"), server.options()).unwrap();
    assert!(ada.database("_users").get("org.couchdb.user:ada").unwrap().is_some());
    assert_eq!(ada.database("_users").get("org.couchdb.user:bob").unwrap_err().kind(), ErrorKind::NotFound);
    forbidden(ada.database("_users").find(Selector::everything()).count().map(drop));
    forbidden(ada.database("shop").get("a").map(drop));
    for credentials in ["ada:wrong@", "nobody:secret@"] {
        let refused = Client::connect_with(&server.url(credentials), server.options());
        assert_eq!(refused.map(|_| ()).unwrap_err().kind(), ErrorKind::Forbidden, "{credentials}");
    }
    let token = server.options().credentials(Credentials::Token("stemma_a_b".into()));
    assert_eq!(Client::connect_with(&server.url(""), token).map(|_| ()).unwrap_err().kind(), ErrorKind::Forbidden);
}

fn running_query_is_cancelled_on_the_server(transport: Transport) {
    let server = TestServer::start(transport);
    let db = server.client().create_database("shop").unwrap();
    let text = "x".repeat(10_000);
    let edits = (0..400).map(|n| Edit::Insert {
        id: DocumentId::new(format!("{n}")).unwrap(),
        body: Value::from_serialize(&json!({"text": text})).unwrap(),
    });
    db.bulk(edits.collect()).unwrap();
    let cancellation = stemmadb::Cancellation::new();
    let mut rows = db.find(Selector::everything()).cancelled_by(&cancellation).run().unwrap();
    assert!(rows.next().unwrap().is_ok());
    cancellation.cancel();
    let failed = rows.find_map(Result::err);
    assert_eq!(failed.map(|error| error.kind()), Some(ErrorKind::Stopped));
}

#[test]
fn transactions_in_one_round_trip_are_atomic() {
    let server = TestServer::start(Transport::Tcp);
    let db = server.client().create_database("shop").unwrap();
    let first = db.insert("stock", &json!({"n": 5})).unwrap();
    let order = |id: &str| Edit::Insert {
        id: DocumentId::new(id).unwrap(),
        body: Value::from_serialize(&json!({"kind": "order"})).unwrap(),
    };
    let take = || Edit::Update {
        id: DocumentId::new("stock").unwrap(),
        revision: None,
        patch: Patch::new().increment("n", -1),
    };
    let sell = |id: &str, revision| {
        let transaction = db.transact().check("stock", Some(revision)).check(id, None);
        transaction
            .check_count(field("kind").eq("order"), 0)
            .unwrap()
            .edit(take())
            .unwrap()
            .edit(order(id))
            .unwrap()
            .commit()
    };
    let revisions = sell("o1", &first).unwrap();
    assert_eq!(revisions.len(), 2);
    assert_eq!(sell("o2", &first).unwrap_err().kind(), ErrorKind::Conflict);
    assert!(db.get("o2").unwrap().is_none());
    assert_eq!(db.get("stock").unwrap().unwrap().get("n").unwrap(), Some(4.into()));
}

fn pipelined_reads_return_in_order(transport: Transport) {
    let server = TestServer::start(transport);
    let db = server.client().create_database("shop").unwrap();
    for n in 0..10 {
        db.insert(&n.to_string(), &json!({"n": n})).unwrap();
    }
    let ids: Vec<_> = (0..500).map(|n| (n % 11).to_string()).collect();
    let found = db.get_pipelined(&ids).unwrap();
    for (id, found) in ids.iter().zip(found) {
        assert_eq!(found.map(|found| found.id().to_string()), (id != "10").then(|| id.clone()));
    }
}

fn connections_beyond_the_limit_are_refused(transport: Transport) {
    let server = TestServer::start_with(transport, |config| config.wire.connection_count = 2);
    let first = server.client();
    let second = server.client();
    let refused = Client::connect_with(&server.url(""), server.options().timeout(Duration::from_secs(1)));
    let refused = refused.map(|_| ()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert!(refused.hint().unwrap().contains("wire.connection_count"), "{refused:?}");
    drop(first);
    second.ping().unwrap();
    let again = || Client::connect_with(&server.url(""), server.options().credentials(root())).is_ok();
    wait_until("a connection is free", again);
}

#[test]
fn silent_and_slow_peers_are_cut_off() {
    let server = TestServer::start_with(Transport::Tcp, |config| {
        config.limits.handshake_timeout = Duration::from_millis(100);
        config.limits.stall_timeout = Duration::from_millis(100);
        config.wire.idle_timeout = Duration::from_millis(200);
    });
    for bytes in [Vec::new(), hello()[..10].to_vec(), hello(), [hello(), vec![50, 0, 0, 0, 3, 1]].concat()] {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&bytes).unwrap();
        let mut answer = Vec::new();
        let ended = stream.read_to_end(&mut answer);
        assert!(ended.is_ok() || ended.unwrap_err().kind() == std::io::ErrorKind::ConnectionReset);
    }
}

fn interactive_transactions_are_serializable(transport: Transport) {
    let server = TestServer::start(transport);
    let db = server.client().create_database("shop").unwrap();
    for account in ["a", "b"] {
        db.insert(account, &json!({"kind": "account", "balance": 100})).unwrap();
    }
    std::thread::scope(|scope| {
        for (from, to) in [("a", "b"), ("b", "a"), ("a", "b")] {
            let db = &db;
            scope.spawn(move || {
                for _ in 0..10 {
                    db.optimistic(|tx| {
                        let balance =
                            |found: Option<stemmadb::Document>| found.unwrap().get("balance").unwrap().unwrap();
                        let (have, other) = (balance(tx.get(from)?), balance(tx.get(to)?));
                        tx.upsert(from, &json!({"kind": "account", "balance": have.as_i64().unwrap() - 1}))?;
                        tx.upsert(to, &json!({"kind": "account", "balance": other.as_i64().unwrap() + 1}))
                    })
                    .unwrap();
                }
            });
        }
    });
    let balance = |id: &str| db.get(id).unwrap().unwrap().get("balance").unwrap().unwrap().as_i64().unwrap();
    assert_eq!((balance("a"), balance("b")), (90, 110));
    // A transaction sees one state, and depends on what it read.
    let mut attempts = 0;
    let count = db
        .optimistic(|tx| {
            attempts += 1;
            let count = tx.count(field("kind").eq("account"))?;
            if attempts == 1 {
                db.insert("c", &json!({"kind": "account", "balance": 0}))?;
                assert!(tx.get("c")?.is_none(), "the snapshot does not change");
                assert_eq!(tx.find(field("kind").eq("account"))?.len(), 2);
            }
            tx.upsert("count", &json!({"n": count}))?;
            Ok(count)
        })
        .unwrap();
    assert_eq!((attempts, count), (2, 3));
}

#[test]
fn transactions_end_at_their_deadline() {
    let server = TestServer::start_with(Transport::Tcp, |config| config.wire.snapshot_time = Duration::ZERO);
    let db = server.client().create_database("shop").unwrap();
    let late = db.optimistic(|tx| tx.get("a").map(drop));
    let error = late.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stopped);
    assert!(error.hint().unwrap().contains("wire.snapshot_time"));
    let server = TestServer::start_with(Transport::Tcp, |config| config.wire.snapshot_count = 1);
    let db = server.client().create_database("shop").unwrap();
    let nested = db.optimistic(|_| db.optimistic(|_| Ok(())));
    assert_eq!(nested.unwrap_err().kind(), ErrorKind::Unavailable);
    db.optimistic(|_| Ok(())).unwrap();
}

#[test]
fn keys_are_set_counted_and_applied_once() {
    use stemmadb::handles::KeyCondition;
    let server = TestServer::start(Transport::Tcp);
    server.client().create_database("shop").unwrap();
    let proxy = CuttingProxy::start(server.address());
    let mut expected = 0;
    for byte_count in (200..700).step_by(7) {
        proxy.budget.store(byte_count, Ordering::SeqCst);
        let options = ClientOptions::new().timeout(PATIENCE).credentials(root());
        let Ok(client) = Client::connect_with(&format!("stemma://{}", proxy.address), options) else { continue };
        let visits = client.database("shop").keys("visits").unwrap();
        for _ in 0..3 {
            expected += 1;
            assert_eq!(visits.increment("ada", 1).unwrap(), expected, "after {byte_count} bytes");
        }
    }
    assert!(expected > 100);
    let db = server.client().database("shop");
    let keys = db.keys("leases").unwrap();
    assert_eq!(keys.get::<String>("a").unwrap(), None);
    assert!(keys.set_if("a", &"me", &KeyCondition::Absent, Some(PATIENCE)).unwrap().was_set);
    let second = keys.set_if("a", &"you", &KeyCondition::Absent, None).unwrap();
    assert_eq!((second.was_set, second.previous), (false, Some("me".into())));
    keys.set("b", &json!({"n": [1, null]})).unwrap();
    let all = keys.all::<serde_json::Value>().unwrap();
    assert_eq!(all, [("a".to_owned(), json!("me")), ("b".to_owned(), json!({"n": [1, null]}))]);
    assert_eq!(db.keys("a/b").unwrap_err().kind(), ErrorKind::Invalid);
    assert!(keys.remove("a").unwrap() && !keys.remove("a").unwrap());
    assert_eq!(keys.increment("b", 1).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn past_states_are_read() {
    let server = TestServer::start(Transport::Tcp);
    let db = server.client().create_database("shop").unwrap();
    db.insert("a", &json!({"n": 1})).unwrap();
    let then = db.sequence().unwrap();
    db.upsert("a", &json!({"n": 2})).unwrap();
    db.insert("b", &json!({"n": 1})).unwrap();
    match db.as_of(then).get("a") {
        Ok(found) => {
            assert_eq!(found.unwrap().get("n").unwrap(), Some(1.into()));
            assert_eq!(db.as_of(then).find(field("n").eq(1)).count().unwrap(), 1);
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound),
    }
    let future = stemmadb::Sequence::new(db.sequence().unwrap().get() + 100);
    assert_eq!(db.as_of(future).get("a").unwrap_err().kind(), ErrorKind::Invalid);
}

/// Sends the head of a request for the route of WebSockets; returns the connection and the head of the answer.
#[cfg(unix)]
fn request_websocket(server: &TestServer, fields: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("GET /_wire HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n").as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    (stream, String::from_utf8(head).unwrap())
}

#[cfg(unix)]
const WEBSOCKET: &str = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// What a server sends over a WebSocket until it ends: the frames' bytes, and whether it closes the WebSocket.
#[cfg(unix)]
fn read_websocket(socket: &mut tungstenite::WebSocket<TcpStream>) -> (Vec<u8>, bool) {
    use tungstenite::{Error, Message};
    let (mut received, mut is_closed) = (Vec::new(), false);
    loop {
        match socket.read() {
            Ok(Message::Binary(bytes)) => received.extend_from_slice(&bytes),
            Ok(message) => is_closed |= message.is_close(),
            Err(Error::Io(error)) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("it is not closed"),
            Err(_) => return (received, is_closed),
        }
    }
}

#[cfg(unix)]
#[test]
fn hostile_websockets_close_only_their_own_connection() {
    use tungstenite::protocol::Role;
    use tungstenite::{Bytes, Message, WebSocket};
    let mut server = TestServer::start_with(Transport::WebSocket, |config| {
        config.limits.handshake_timeout = Duration::from_millis(500);
    });
    let client = server.client();
    let open = || {
        let (stream, head) = request_websocket(&server, WEBSOCKET);
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        WebSocket::from_raw_socket(stream, Role::Client, None)
    };
    for (message, is_clean) in [
        (None, true),
        (Some(Message::Text("hello".into())), true),
        (Some(Message::Binary(Bytes::from_static(b"GET / HTTP/1.1\r\n\r\n"))), true),
        (Some(Message::Binary(Bytes::copy_from_slice(&hello()[..12]))), true),
        // Too long: what was sent of it can't be read.
        (Some(Message::Binary(vec![0; 300 << 10].into())), false),
    ] {
        let mut socket = open();
        if let Some(message) = message {
            socket.send(message).ok();
        }
        let (_, is_closed) = read_websocket(&mut socket);
        assert!(is_closed || !is_clean);
        client.ping().unwrap();
    }
    // A frame that is not masked, and half of a frame.
    for bytes in [&[0x82, 3, 1, 2, 3][..], &[0x82, 0xfe, 0xff]] {
        let mut socket = open();
        socket.get_mut().write_all(bytes).unwrap();
        read_websocket(&mut socket);
    }
    // The frames may be cut anywhere.
    let mut socket = open();
    for bytes in hello().chunks(7) {
        socket.send(Message::Binary(Bytes::copy_from_slice(bytes))).unwrap();
    }
    let welcome = socket.read().unwrap().into_data();
    assert_eq!(welcome[4], stemmadb_wire::FrameKind::Welcome as u8);
    // The client closes, or the server stops.
    socket.close(None).unwrap();
    assert_eq!(read_websocket(&mut socket), (vec![], true));
    let mut socket = open();
    socket.send(Message::Binary(hello().into())).unwrap();
    assert!(socket.read().unwrap().is_binary());
    let reading = std::thread::spawn(move || read_websocket(&mut socket).1);
    server.stop();
    assert!(reading.join().unwrap());
}

#[cfg(unix)]
#[test]
fn websockets_are_for_the_servers_own_pages() {
    let server = TestServer::start(Transport::WebSocket);
    let status = |fields: &str| request_websocket(&server, fields).1[9..12].to_owned();
    assert_eq!(status(&format!("{WEBSOCKET}Origin: http://localhost\r\n")), "101");
    assert_eq!(status(&format!("{WEBSOCKET}Origin: https://evil.example\r\n")), "403");
    assert_eq!(status(&WEBSOCKET.replace("13", "8")), "400");
    assert_eq!(status(""), "426");
    let server = TestServer::start_with(Transport::WebSocket, |config| config.wire.websocket = false);
    assert_eq!(&request_websocket(&server, WEBSOCKET).1[9..12], "501");
    let refused = Client::connect_with(&server.url(""), server.options()).map(|_| ()).unwrap_err();
    assert!(refused.message().contains("501 Not Implemented"), "{refused}");
}

#[cfg(unix)]
#[test]
fn websockets_are_encrypted() {
    let server = TestServer::start(Transport::SecureWebSocket);
    let db = server.client().create_database("shop").unwrap();
    let text = "x".repeat(1_000_000);
    db.insert("a", &json!({"text": text})).unwrap();
    assert_eq!(db.get("a").unwrap().unwrap().get("text").unwrap(), Some(text.as_str().into()));
    let untrusting = Client::connect_with(&server.url(""), ClientOptions::new()).map(|_| ()).unwrap_err();
    assert_eq!(untrusting.kind(), ErrorKind::Unavailable);
}

#[cfg(unix)]
#[test]
fn quic_connections_are_encrypted_and_shared() {
    let server = TestServer::start(Transport::Quic);
    let client = server.client();
    let db = client.create_database("shop").unwrap();
    let text = "x".repeat(1_000_000);
    db.insert("a", &json!({"text": text})).unwrap();
    // Calls of several threads, each on a stream of its own.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..5 {
                    assert_eq!(db.get("a").unwrap().unwrap().get("text").unwrap(), Some(text.as_str().into()));
                }
            });
        }
    });
    let untrusting = Client::connect_with(&server.url(""), ClientOptions::new()).map(|_| ()).unwrap_err();
    assert_eq!(untrusting.kind(), ErrorKind::Unavailable);
    assert!(untrusting.message().contains("certificate"), "{untrusting}");
    // Within a runtime, dropping a client does not block.
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async { drop((db, client)) });
    let config = stemmadb_server::Config { tls: None, ..server.config.clone() };
    let config = stemmadb_server::Config { directory: server.path().join("other"), address: loopback(), ..config };
    let refused = tokio::runtime::Runtime::new().unwrap().block_on(stemmadb_server::Server::start(config));
    assert!(refused.map(|_| ()).unwrap_err().to_string().contains("tls.certificate"));
}
