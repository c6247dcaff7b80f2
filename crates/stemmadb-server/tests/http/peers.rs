//! Databases of programs that replicate with the server: authentication, TLS, filters, and connections that are cut at
//! any point.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use stemmadb::replication::{BackgroundReplication, Replication, ReplicationScope, ReplicationState, Retry};
use stemmadb::{Cancellation, Database, Edit, ErrorKind, Revision, Sequence, Value};
use stemmadb_http::{HttpOptions, HttpPeer};
use stemmadb_server::{Config, Tls};

use crate::client::TestServer;

/// Much longer than anything takes.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Attempts in quick succession.
const SOON: Retry = Retry { first: Duration::from_millis(5), max: Duration::from_millis(20), attempts: u32::MAX };

/// Forwards connections to a server, and can cut them.
struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    server: SocketAddr,
    /// Whether new connections are accepted.
    is_open: AtomicBool,
    /// The bytes that may still pass, in both directions together.
    left: AtomicI64,
    connections: Mutex<Vec<TcpStream>>,
    is_ended: AtomicBool,
}

impl Proxy {
    fn new(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            server,
            is_open: AtomicBool::new(true),
            left: AtomicI64::new(i64::MAX),
            connections: Mutex::default(),
            is_ended: AtomicBool::new(false),
        });
        let accepting = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if accepting.is_ended.load(Ordering::SeqCst) {
                    return;
                }
                if accepting.is_open.load(Ordering::SeqCst)
                    && let Ok(server) = TcpStream::connect(accepting.server)
                {
                    accepting.forward(&client, &server);
                }
            }
        });
        Proxy { address, shared }
    }

    fn url(&self, database: &str) -> String {
        format!("http://admin:secret@{}/{database}", self.address)
    }

    fn peer(&self, database: &str) -> HttpPeer {
        HttpPeer::with(&self.url(database), HttpOptions::new().timeout(TIMEOUT)).unwrap()
    }

    /// Lets this many bytes pass, and then cuts all connections.
    fn allow(&self, bytes: i64) {
        self.shared.left.store(bytes, Ordering::SeqCst);
    }

    fn close(&self) {
        self.shared.is_open.store(false, Ordering::SeqCst);
        self.shared.cut();
    }

    fn open(&self) {
        self.allow(i64::MAX);
        self.shared.is_open.store(true, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_ended.store(true, Ordering::SeqCst);
        self.shared.cut();
        drop(TcpStream::connect(self.address));
    }
}

impl Shared {
    fn cut(&self) {
        for connection in self.connections.lock().unwrap().drain(..) {
            connection.shutdown(Shutdown::Both).ok();
        }
    }

    fn forward(self: &Arc<Self>, client: &TcpStream, server: &TcpStream) {
        let clone = |stream: &TcpStream| stream.try_clone().unwrap();
        self.connections.lock().unwrap().extend([clone(client), clone(server)]);
        for (mut from, mut to) in [(clone(client), clone(server)), (clone(server), clone(client))] {
            let shared = self.clone();
            std::thread::spawn(move || {
                let mut bytes = [0; 1024];
                while let Ok(count @ 1..) = from.read(&mut bytes) {
                    let left = shared.left.fetch_sub(count as i64, Ordering::SeqCst);
                    let passing = usize::try_from(left.max(0)).unwrap().min(count);
                    if to.write_all(&bytes[..passing]).is_err() || passing < count {
                        shared.cut();
                        break;
                    }
                }
                to.shutdown(Shutdown::Both).ok();
                from.shutdown(Shutdown::Both).ok();
            });
        }
    }
}

/// Every leaf of every document, with its ancestry, body and attachments.
fn state(db: &Database) -> BTreeMap<String, Vec<String>> {
    let mut state = BTreeMap::new();
    for change in db.changes(Sequence::ZERO).unwrap().run() {
        let id = change.unwrap().id.as_str().to_owned();
        let leaves = db.revisions(&id).unwrap().into_iter().map(|branch| {
            let document = db.get_revision(&id, &branch.revisions[0]).unwrap().unwrap();
            let files = document.attachments().unwrap().into_iter();
            let files: Vec<_> = files.map(|file| (file.name, file.content_type, file.length, file.digest)).collect();
            format!("{:?} {} {files:?}", branch, document.to_json().unwrap())
        });
        state.insert(id.clone(), leaves.collect());
    }
    state
}

fn assert_same(one: &Database, other: &Database) {
    let (one, other) = (state(one), state(other));
    assert!(one.keys().eq(other.keys()));
    for (id, leaves) in &one {
        assert_eq!(Some(leaves), other.get(id), "{id}");
    }
}

/// Documents with conflicts, deletions and attachments.
fn library() -> Database {
    let db = Database::in_memory();
    for number in 0..240 {
        let id = format!("book {number}/ä");
        let revision = db.insert(&id, &json!({"number": number, "kind": number % 3, "text": "x".repeat(300)})).unwrap();
        match number % 12 {
            0 => {
                let content = vec![number as u8; 20_000];
                db.files().attach(&id, &revision, "a file.bin", "application/octet-stream", &content[..]).unwrap();
            }
            1 => drop(db.delete(&id, &revision).unwrap()),
            2 => {
                db.replace(&id, &revision, &json!({"number": number, "changed": true})).unwrap();
            }
            3 => {
                let other: Revision = format!("1-{:032x}", number + 7).parse().unwrap();
                let body = Value::parse(json!({"number": number, "other": true}).to_string().as_bytes()).unwrap();
                let (id, revisions) = (id.parse().unwrap(), vec![other]);
                let edit = Edit::Foreign { id, revisions, deleted: false, body, files: Vec::new() };
                db.bulk(vec![edit]).unwrap().remove(0).unwrap();
            }
            _ => {}
        }
    }
    db
}

#[test]
fn cut_connections_lose_nothing_and_finished_work_is_not_repeated() {
    let (server, original, copy) = (TestServer::new(), library(), Database::in_memory());
    let proxy = Proxy::new(server.address());
    proxy.peer("shop").create().unwrap();
    let mut cut_count = 0;
    for is_push in [true, false] {
        let run = |peer: &HttpPeer| match is_push {
            true => Replication::new(&original, peer).batch(20).run(),
            false => Replication::new(peer, &copy).batch(20).run(),
        };
        let (mut bytes, mut checked_counts) = (100, Vec::new());
        loop {
            proxy.open();
            proxy.allow(bytes);
            // A new peer each time: as after a restart of the program.
            match run(&proxy.peer("shop")) {
                Ok(done) => {
                    checked_counts.push(done.checked_count);
                    break;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                    cut_count += 1;
                }
            }
            bytes += bytes / 3;
        }
        // The last run began at the checkpoint of a run that was cut.
        assert!(checked_counts[0] < 200, "{checked_counts:?}");
        proxy.open();
        let again = run(&proxy.peer("shop")).unwrap();
        assert_eq!((again.checked_count, again.written_count), (0, 0));
    }
    assert!(cut_count > 20, "{cut_count}");
    assert_same(&copy, &original);
    let conflicts = state(&copy).values().filter(|leaves| leaves.len() == 2).count();
    assert_eq!(conflicts, 20);
}

#[test]
fn background_replication_continues_when_the_server_is_back() {
    let (server, db) = (TestServer::new(), library());
    server.database("shop", &[json!({"_id": "from the server"})]);
    let proxy = Proxy::new(server.address());
    proxy.close();
    let start = |is_push: bool| {
        let (local, remote) = (Arc::new(db.clone()), Arc::new(proxy.peer("shop")));
        match is_push {
            true => BackgroundReplication::start(local, remote, |replication| replication.batch(20).retry(SOON)),
            false => BackgroundReplication::start(remote, local, |replication| replication.batch(20).retry(SOON)),
        }
    };
    let (push, pull) = (start(true).unwrap(), start(false).unwrap());
    for sync in [&push, &pull] {
        assert!(sync.wait_until(TIMEOUT, |status| matches!(status.state, ReplicationState::Waiting { .. })));
    }
    db.insert("written offline", &json!({})).unwrap();
    proxy.open();
    let has = |path: &str| server.get(&format!("/shop/{path}")).status == 200;
    wait_for("the push", || has("written%20offline") && has("book%20239%2F%C3%A4"));
    wait_for("the pull", || db.get("from the server").unwrap().is_some());

    // Cut while both wait for changes, and in the middle of a transfer.
    for round in 0..6 {
        proxy.close();
        assert_eq!(server.put(&format!("/shop/there-{round}"), &json!({"text": "x".repeat(30_000)})).status, 201);
        db.insert(&format!("here-{round}"), &json!({"text": "y".repeat(30_000)})).unwrap();
        proxy.open();
        proxy.allow(20_000);
        std::thread::sleep(Duration::from_millis(50));
        proxy.open();
        wait_for("the push", || has(&format!("here-{round}")));
        wait_for("the pull", || db.get(&format!("there-{round}")).unwrap().is_some());
    }

    // It stops at once although it waits for changes, or for a server.
    let begun = Instant::now();
    let status = push.stop();
    assert!(matches!(status.state, ReplicationState::Stopped), "{status:?}");
    // All revisions once: 240 documents with 20 conflicts, and those of this test in both directions.
    // A write whose answer was cut off is not counted: at most two documents in each round.
    assert!(status.stats.written_count >= 260 + 7 - 2 * 6, "{status:?}");
    proxy.close();
    let status = pull.stop();
    assert!(matches!(status.state, ReplicationState::Stopped), "{status:?}");
    assert!(begun.elapsed() < Duration::from_secs(25), "a long poll takes 30 seconds");

    let copy = Database::in_memory();
    copy.replicate_from(&HttpPeer::new(&server.url("shop")).unwrap()).unwrap();
    assert_same(&copy, &db);
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < TIMEOUT, "timeout waiting for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn credentials_scopes_and_errors_of_peers() {
    let (server, db) = (TestServer::new(), library());
    server.database("shop", &[]);
    let made = server.post("/_tokens", &json!({"name": "sync", "user": "admin", "databases": ["shop"]}));
    let token = made.json()["token"].as_str().unwrap_or_else(|| panic!("{made:?}")).to_owned();
    let bare = format!("http://{}/shop", server.address());
    let by_token = HttpPeer::with(&bare, HttpOptions::new().bearer_token(&token)).unwrap();
    let by_name = HttpPeer::with(&bare, HttpOptions::new().user("admin", "secret")).unwrap();

    let ids = ["book 0/ä", "book 3/ä", "nothing"].map(str::to_owned).into();
    let done = Replication::new(&db, &by_token).only(ReplicationScope::Ids(ids)).run().unwrap();
    assert_eq!(done.written_count, 3, "one has a conflict");
    let selector = Value::parse(br#"{"kind": 1}"#).unwrap();
    let some = Database::in_memory();
    db.replicate_to(&by_name).unwrap();
    Replication::new(&by_name, &some).only(ReplicationScope::Selector(selector)).run().unwrap();
    let kinds: Vec<_> = state(&some).into_values().flatten().collect();
    assert!(kinds.len() > 50 && kinds.iter().all(|leaf| leaf.contains("\"kind\":1")), "{kinds:?}");

    let refused = |url: &str, options: HttpOptions| {
        let peer = HttpPeer::with(url, options).unwrap();
        // Failures that do not pass are not repeated, even by a continuous replication.
        let error = Replication::new(&db, &peer).retry(SOON).follow(|_| ()).unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
        error.kind()
    };
    assert_eq!(refused(&bare, HttpOptions::new()), ErrorKind::Invalid);
    assert_eq!(refused(&bare, HttpOptions::new().user("admin", "secret2")), ErrorKind::Invalid);
    assert_eq!(refused(&bare, HttpOptions::new().bearer_token("stemma_x")), ErrorKind::Invalid);
    let missing = server.url("missing");
    assert_eq!(refused(&missing, HttpOptions::new()), ErrorKind::NotFound);
    for url in ["shop", "ftp://host/shop", "http://host/shop?x=1"] {
        assert_eq!(HttpPeer::new(url).err().map(|error| error.kind()), Some(ErrorKind::Invalid), "{url}");
    }

    // A cancelled replication ends although its server is silent.
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let peer = HttpPeer::new(&format!("http://{}/shop", silent.local_addr().unwrap())).unwrap();
    let cancellation = Cancellation::new();
    let cancelled = cancellation.clone();
    let begun = Instant::now();
    let thread = std::thread::spawn(move || {
        drop(silent.accept());
        cancelled.cancel();
    });
    let error = Replication::new(&db, &peer).cancelled_by(&cancellation).run().unwrap_err();
    thread.join().unwrap();
    assert!(matches!(error.kind(), ErrorKind::Stopped | ErrorKind::Unavailable), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(50), "the timeout of a response is 60 seconds");
    let limited = HttpOptions::new().timeout(Duration::from_millis(50));
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let peer = HttpPeer::with(&format!("http://{}/shop", silent.local_addr().unwrap()), limited).unwrap();
    let error = Replication::new(&db, &peer).run().unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.message().contains("in time"), "{error}");
}

#[test]
fn peers_verify_certificates() {
    needs_one_server!("servers of the tests' clusters have no TLS");
    let directory = tempfile::tempdir().unwrap();
    let [certificate, key] = ["certificate.pem", "key.pem"].map(|name| directory.path().join(name));
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    let tls = Some(Tls { certificate: certificate.clone(), key });
    let server = TestServer::with(|config| Config { tls, ..config });
    let url = format!("https://admin:secret@localhost:{}/shop", server.address().port());
    let db = library();
    let peer = HttpPeer::with(&url, HttpOptions::new().certificates(&certificate)).unwrap();
    peer.create().unwrap();
    peer.create().unwrap();
    db.replicate_to(&peer).unwrap();
    let copy = Database::in_memory();
    copy.replicate_from(&peer).unwrap();
    assert_same(&copy, &db);
    let error = db.replicate_to(&HttpPeer::new(&url).unwrap()).unwrap_err();
    assert!(error.message().contains("ertificate"), "{error}");
    assert!(HttpPeer::with(&url, HttpOptions::new().certificates("missing.pem")).is_err());
}
