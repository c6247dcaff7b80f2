//! Feeds last for days: they end soon after whoever asked for them may not read them any more.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stemmadb::testing::Clock;
use stemmadb_server::{Config, JwtAlgorithm, JwtKey};

use crate::auth::prepare;
use crate::client::{Started, basic};
use crate::jwt;

/// By far longer than feeds go on.
const PATIENCE: Duration = Duration::from_secs(180);

const FEEDS: [&str; 4] = [
    "/db/_changes?feed=continuous&since=now&heartbeat=100",
    "/db/_changes?feed=longpoll&since=now&heartbeat=100",
    "/db/_changes?feed=eventsource&since=now&heartbeat=100",
    "/db/_watch?selector=%7B%22x%22%3A%22none%22%7D&heartbeat=1000",
];

/// A feed that has begun, and beats.
struct Feed {
    name: String,
    stream: TcpStream,
}

impl Feed {
    fn begin(server: &Started, who: &str, header: &str, path: &str) -> Self {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
            .write_all(
                format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}\r\n\r\n").as_bytes(),
            )
            .unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 200", "{who} {path}");
        let mut feed = Feed { name: format!("{who} {path}"), stream };
        assert!(feed.goes_on(), "{} ended at once", feed.name);
        feed
    }

    /// Whether more comes.
    fn goes_on(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 4096]), Ok(1..))
    }

    fn ends(&mut self) {
        let begun = Instant::now();
        while self.goes_on() {
            assert!(begun.elapsed() < PATIENCE, "{} goes on", self.name);
        }
    }
}

fn token(server: &Started, wanted: &Value) -> String {
    let made = server.post("/_tokens", wanted);
    assert_eq!(made.status, 201, "{made:?}");
    format!("Authorization: Bearer {}", made.json()["token"].as_str().unwrap())
}

/// Makes a user; returns a header with their session.
fn user(server: &Started, name: &str) -> String {
    let document = json!({"name": name, "type": "user", "roles": ["staff"], "password": name});
    assert_eq!(server.put(&format!("/_users/org.couchdb.user:{name}"), &document).status, 201);
    let log_in = json!({"name": name, "password": name}).to_string();
    let session = server.send("POST", "/_session", &[("Content-Type", "application/json")], log_in.as_bytes());
    format!("Cookie: {}", session.header("set-cookie").unwrap().split(';').next().unwrap())
}

/// What a user's document becomes.
fn change(server: &Started, name: &str, how: impl FnOnce(&mut Value)) {
    let path = format!("/_users/org.couchdb.user:{name}");
    let mut document = server.get(&path).json();
    how(&mut document);
    assert_eq!(server.put(&path, &document).status, 201, "{name}");
}

#[test]
fn feeds_end_soon_after_who_asked_for_them_may_not_read_them_any_more() {
    let server = Started::new();
    prepare(&server);
    let security = json!({"members": {"names": [], "roles": ["staff"]}, "admins": {"names": [], "roles": []}});
    assert_eq!(server.put("/db/_security", &security).status, 200);
    let taken_back = token(&server, &json!({"name": "back", "roles": ["staff"]}));
    let for_gone = token(&server, &json!({"name": "for-gone", "user": "gone"}));
    let kept = token(&server, &json!({"name": "kept", "roles": ["staff"]}));
    let (deleted, renewed, reduced) = (user(&server, "gone"), user(&server, "renewed"), user(&server, "reduced"));
    user(&server, "by-password");
    let by_password = format!("Authorization: {}", basic("by-password", "by-password"));
    let everybody = [
        ("a token that is taken back", taken_back),
        ("a token of a user who is gone", for_gone),
        ("a user who is gone", deleted),
        ("another password", renewed),
        ("fewer roles", reduced),
        ("another password, given each time", by_password),
    ];
    let begin = |(who, header): &(&str, String)| {
        FEEDS.iter().map(|path| Feed::begin(&server, who, header, path)).collect::<Vec<_>>()
    };
    let mut feeds: Vec<Feed> = everybody.iter().flat_map(begin).collect();
    let mut of_others = begin(&("a token that is kept", kept));
    assert_eq!(server.delete("/_tokens/back").status, 200);
    change(&server, "gone", |document| document["_deleted"] = true.into());
    change(&server, "renewed", |document| document["password"] = "another".into());
    change(&server, "reduced", |document| document["roles"] = json!([]));
    change(&server, "by-password", |document| document["password"] = "another".into());
    feeds.iter_mut().for_each(Feed::ends);
    for feed in &mut of_others {
        assert!(feed.goes_on(), "{} was ended with the others", feed.name);
    }
    // A database that becomes others' ends the rest.
    let security = json!({"members": {"names": [], "roles": ["others"]}, "admins": {"names": [], "roles": []}});
    assert_eq!(server.put("/db/_security", &security).status, 200);
    of_others.iter_mut().for_each(Feed::ends);
}

/// A server whose clock stands, with a database for those of its staff, of whom ann is one.
fn with_clock() -> (Started, Clock) {
    let clock = Clock::standing_at(BEGINNING);
    let key = JwtKey { id: None, algorithm: JwtAlgorithm::Hs256, key: jwt::SECRET.to_vec() };
    let server = Started::with(|config| Config { clock: clock.clone(), jwt_keys: vec![key], ..config });
    prepare(&server);
    let security = json!({"members": {"names": [], "roles": ["staff"]}, "admins": {"names": [], "roles": []}});
    assert_eq!(server.put("/db/_security", &security).status, 200);
    (server, clock)
}

/// Where the clock stands at first, in milliseconds since 1970.
const BEGINNING: i64 = 2_000_000_000_000;
const SESSION_MS: i64 = 600_000;

#[test]
fn feeds_end_with_the_session_or_the_signed_token_that_they_were_begun_with() {
    let (server, clock) = with_clock();
    let session = user(&server, "late");
    let signed = |seconds: i64| {
        let claims = json!({"sub": "robot", "_couchdb.roles": ["staff"], "exp": BEGINNING / 1000 + seconds});
        format!("Authorization: Bearer {}", jwt::token(&claims, jsonwebtoken::Algorithm::HS256, None, jwt::SECRET))
    };
    let begin = |who: &str, header: &str| FEEDS.map(|path| Feed::begin(&server, who, header, path));
    let mut over = [begin("a session", &session), begin("a signed token", &signed(300))].into_iter().flatten();
    let password = format!("Authorization: {}", basic("late", "late"));
    let mut goes_on = [begin("a password", &password), begin("a longer token", &signed(10_000))];
    clock.set(BEGINNING + SESSION_MS);
    over.by_ref().for_each(|mut feed| feed.ends());
    for feed in goes_on.iter_mut().flatten() {
        assert!(feed.goes_on(), "{} was ended with the others", feed.name);
    }
}

#[test]
fn a_session_that_was_over_is_not_back_when_the_clock_is_set_back() {
    let (mut server, clock) = with_clock();
    let status = |server: &Started, session: &str| {
        server.send("GET", "/db/d", &[("Cookie", session.strip_prefix("Cookie: ").unwrap())], b"").status
    };
    let session = user(&server, "back");
    clock.set(BEGINNING + SESSION_MS - 1000);
    assert_eq!(status(&server, &session), 200);
    clock.set(BEGINNING + SESSION_MS);
    assert_eq!(status(&server, &session), 401, "it is over");
    clock.set(BEGINNING);
    assert_eq!(status(&server, &session), 401, "it is over, whatever the clock says now");
    // A new process knows only what the clock says: one that is of its future is none.
    clock.set(BEGINNING + 10 * SESSION_MS);
    let later = user(&server, "later");
    clock.set(BEGINNING + 10 * SESSION_MS - 30_000);
    server.restart();
    assert_eq!(status(&server, &later), 200, "the clock was corrected by half a minute");
    clock.set(BEGINNING);
    server.restart();
    assert_eq!(status(&server, &later), 401, "it is not begun yet");
}
