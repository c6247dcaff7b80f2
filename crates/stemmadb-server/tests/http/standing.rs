//! Feeds last for days: they end soon after whoever asked for them may not read them any more.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::auth::prepare;
use crate::client::{Started, basic};

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
