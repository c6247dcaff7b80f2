//! Long-lived feeds end soon after their client loses the right to read them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stemmadb::testing::Clock;
use stemmadb_server::{Config, JwtAlgorithm, JwtKey};

use crate::auth::prepare;
use crate::client::{TestServer, basic};
use crate::jwt;

/// Much longer than a feed may continue.
const TIMEOUT: Duration = Duration::from_secs(180);

const FEEDS: [&str; 4] = [
    "/db/_changes?feed=continuous&since=now&heartbeat=100",
    "/db/_changes?feed=longpoll&since=now&heartbeat=100",
    "/db/_changes?feed=eventsource&since=now&heartbeat=100",
    "/db/_watch?selector=%7B%22x%22%3A%22none%22%7D&heartbeat=1000",
];

/// A feed that has started and sends heartbeats.
struct Feed {
    name: String,
    stream: TcpStream,
}

impl Feed {
    fn begin(server: &TestServer, who: &str, header: &str, path: &str) -> Self {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
            .write_all(
                format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}\r\n\r\n").as_bytes(),
            )
            .unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 200", "{who} {path}");
        let mut feed = Feed { name: format!("{who} {path}"), stream };
        assert!(feed.continues(), "{} ended at once", feed.name);
        feed
    }

    /// Whether more data arrives.
    fn continues(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 4096]), Ok(1..))
    }

    fn ends(&mut self) {
        let begun = Instant::now();
        while self.continues() {
            assert!(begun.elapsed() < TIMEOUT, "{} goes on", self.name);
        }
    }
}

fn token(server: &TestServer, wanted: &Value) -> String {
    let made = server.post("/_tokens", wanted);
    assert_eq!(made.status, 201, "{made:?}");
    format!("Authorization: Bearer {}", made.json()["token"].as_str().unwrap())
}

/// Creates a user; returns a header with their session.
fn user(server: &TestServer, name: &str) -> String {
    let document = json!({"name": name, "type": "user", "roles": ["staff"], "password": name});
    assert_eq!(server.put(&format!("/_users/org.couchdb.user:{name}"), &document).status, 201);
    let log_in = json!({"name": name, "password": name}).to_string();
    let session = server.send("POST", "/_session", &[("Content-Type", "application/json")], log_in.as_bytes());
    format!("Cookie: {}", session.header("set-cookie").unwrap().split(';').next().unwrap())
}

/// Changes a user's document.
fn change(server: &TestServer, name: &str, how: impl FnOnce(&mut Value)) {
    let path = format!("/_users/org.couchdb.user:{name}");
    let mut document = server.get(&path).json();
    how(&mut document);
    assert_eq!(server.put(&path, &document).status, 201, "{name}");
}

#[test]
fn feeds_end_soon_after_rights_are_revoked() {
    let server = TestServer::new();
    prepare(&server);
    let security = json!({"members": {"names": [], "roles": ["staff"]}, "admins": {"names": [], "roles": []}});
    assert_eq!(server.put("/db/_security", &security).status, 200);
    let taken_back = token(&server, &json!({"name": "back", "roles": ["staff"]}));
    let for_gone = token(&server, &json!({"name": "for-gone", "user": "gone"}));
    let kept = token(&server, &json!({"name": "kept", "roles": ["staff"]}));
    let (deleted, renewed, reduced) = (user(&server, "gone"), user(&server, "renewed"), user(&server, "reduced"));
    user(&server, "by-password");
    let by_password = format!("Authorization: {}", basic("by-password", "by-password"));
    let all_clients = [
        ("a token that is taken back", taken_back),
        ("a token of a deleted user", for_gone),
        ("a deleted user", deleted),
        ("another password", renewed),
        ("fewer roles", reduced),
        ("another password, given each time", by_password),
    ];
    let begin = |(who, header): &(&str, String)| {
        FEEDS.iter().map(|path| Feed::begin(&server, who, header, path)).collect::<Vec<_>>()
    };
    let mut feeds: Vec<Feed> = all_clients.iter().flat_map(begin).collect();
    let mut of_others = begin(&("a token that is kept", kept));
    assert_eq!(server.delete("/_tokens/back").status, 200);
    change(&server, "gone", |document| document["_deleted"] = true.into());
    change(&server, "renewed", |document| document["password"] = "another".into());
    change(&server, "reduced", |document| document["roles"] = json!([]));
    change(&server, "by-password", |document| document["password"] = "another".into());
    feeds.iter_mut().for_each(Feed::ends);
    for feed in &mut of_others {
        assert!(feed.continues(), "{} was ended with the others", feed.name);
    }
    // Changing the database's members ends the remaining feeds.
    let security = json!({"members": {"names": [], "roles": ["others"]}, "admins": {"names": [], "roles": []}});
    assert_eq!(server.put("/db/_security", &security).status, 200);
    of_others.iter_mut().for_each(Feed::ends);
}

/// A server with a manual clock, and a database for members with the role staff, which ann has.
fn with_clock() -> (TestServer, Clock) {
    let clock = Clock::fixed_at(START_MS);
    let key = JwtKey { id: None, algorithm: JwtAlgorithm::Hs256, key: jwt::SECRET.to_vec() };
    let server = TestServer::with(|config| Config { clock: clock.clone(), jwt_keys: vec![key], ..config });
    prepare(&server);
    let security = json!({"members": {"names": [], "roles": ["staff"]}, "admins": {"names": [], "roles": []}});
    assert_eq!(server.put("/db/_security", &security).status, 200);
    (server, clock)
}

/// The initial time of the clock, in milliseconds since 1970.
const START_MS: i64 = 2_000_000_000_000;
const SESSION_MS: i64 = 600_000;
/// Sessions begin later than the clock's start by the real time that passed since then: more than any test takes.
const LATE_MS: i64 = 600_000;

#[test]
fn feeds_end_when_their_session_or_jwt_expires() {
    let (server, clock) = with_clock();
    let session = user(&server, "late");
    let signed = |seconds: i64| {
        let claims = json!({"sub": "robot", "_couchdb.roles": ["staff"], "exp": START_MS / 1000 + seconds});
        format!("Authorization: Bearer {}", jwt::token(&claims, jsonwebtoken::Algorithm::HS256, None, jwt::SECRET))
    };
    let begin = |who: &str, header: &str| FEEDS.map(|path| Feed::begin(&server, who, header, path));
    let mut over = [begin("a session", &session), begin("a signed token", &signed(300))].into_iter().flatten();
    let password = format!("Authorization: {}", basic("late", "late"));
    let mut continues = [begin("a password", &password), begin("a longer token", &signed(10_000))];
    clock.set(START_MS + SESSION_MS + LATE_MS);
    over.by_ref().for_each(|mut feed| feed.ends());
    for feed in continues.iter_mut().flatten() {
        assert!(feed.continues(), "{} was ended with the others", feed.name);
    }
}

#[test]
fn expired_session_stays_expired_when_the_clock_goes_back() {
    needs_one_server!("only one of the servers starts again");
    let (mut server, clock) = with_clock();
    let status = |server: &TestServer, session: &str| {
        server.send("GET", "/db/d", &[("Cookie", session.strip_prefix("Cookie: ").unwrap())], b"").status
    };
    let session = user(&server, "back");
    clock.set(START_MS + SESSION_MS - 1000);
    assert_eq!(status(&server, &session), 200);
    clock.set(START_MS + SESSION_MS + LATE_MS);
    assert_eq!(status(&server, &session), 401, "the session expired");
    clock.set(START_MS);
    assert_eq!(status(&server, &session), 401, "it stays expired after the clock went back");
    // A new process knows only the clock: a session from its future is invalid.
    clock.set(START_MS + 10 * SESSION_MS);
    let later = user(&server, "later");
    clock.set(START_MS + 10 * SESSION_MS - 30_000);
    server.restart();
    assert_eq!(status(&server, &later), 200, "the clock was corrected by half a minute");
    clock.set(START_MS);
    server.restart();
    assert_eq!(status(&server, &later), 401, "the session starts in the future");
}
