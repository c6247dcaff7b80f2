//! Signed requests (RFC 9421): by registered keys only, each once, and with the body that was signed.

use std::sync::Arc;

use hyper::Request;
use hyper::http::request::Parts;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use stemmadb::Database;
use stemmadb_http::{HttpOptions, HttpPeer, SigningKey};

use crate::client::{Response, TestServer};

/// Only members with this role may use the database.
const ROLE: &str = "peers";

fn prepare(server: &TestServer, database: &str) {
    server.database(database, &[]);
    let security = json!({"members": {"names": [], "roles": [ROLE]}, "admins": {"names": [], "roles": []}});
    assert_eq!(server.put(&format!("/{database}/_security"), &security).status, 200);
}

fn register(server: &TestServer, name: &str, public_key: &Value) {
    let token = json!({"name": name, "roles": [ROLE], "public_key": public_key});
    let made = server.post("/_tokens", &token);
    assert_eq!(made.status, 201, "{made:?}");
    assert!(made.json().get("token").is_none(), "there is no secret: {made:?}");
    assert_eq!(made.json()["info"]["public_key"], *public_key);
}

fn now() -> u64 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()
}

/// The head of a signed request.
fn signed(key: &SigningKey, method: &str, path: &str, body: Option<&[u8]>, created: u64, nonce: &str) -> Parts {
    let request = Request::builder().method(method).uri(path).header("host", "localhost").body(()).unwrap();
    let mut parts = request.into_parts().0;
    key.sign(&mut parts, body.map(|body| Sha256::digest(body).into()), created, nonce).unwrap();
    parts
}

/// Sends a signed head with a body, which may be another one than the signed.
fn send(server: &TestServer, parts: &Parts, content_type: &str, body: &[u8]) -> Response {
    let mut headers: Vec<(&str, &str)> =
        parts.headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    headers.push(("Content-Type", content_type));
    server.send(parts.method.as_str(), &parts.uri.to_string(), &headers, body)
}

#[test]
fn replication_is_signed_by_a_registered_server() {
    let (from, to) = (TestServer::new(), TestServer::new());
    from.database("outbox", &[json!({"_id": "a", "n": 1}), json!({"_id": "b", "n": 2})]);
    // Longer than what is signed in memory.
    let long = vec![7; 3 << 20];
    let revision = from.get("/outbox/a").json()["_rev"].as_str().unwrap().to_owned();
    let stored = from.send_as_admin("PUT", &format!("/outbox/a/long.bin?rev={revision}"), &[], &long);
    assert_eq!(stored.status, 201, "{stored:?}");
    prepare(&to, "inbox");
    let url = format!("http://{}/inbox", to.address());
    let push = json!({"source": "outbox", "target": {"url": url, "auth": {"signature": true}}});

    let refused = from.post("/_replicate", &push);
    assert!(refused.status >= 400 && refused.text.contains("No token has the key"), "{refused:?}");
    let key = from.get("/_signing_key").json();
    assert_eq!(key["algorithm"], "ed25519");
    register(&to, "branch-7", &key["public_key"]);
    let done = from.post("/_replicate", &push);
    assert_eq!((done.status, &done.json()["ok"]), (200, &json!(true)), "{done:?}");
    let arrived = to.get("/inbox/a?attachments=false").json();
    assert_eq!(arrived["_attachments"]["long.bin"]["length"], long.len(), "{arrived}");
    assert_eq!(to.get("/inbox/b").json()["n"], 2);

    // In the other direction, and not without the signature.
    let pull = json!({"source": {"url": url, "auth": {"signature": true}}, "target": "back", "create_target": true});
    assert_eq!(from.post("/_replicate", &pull).status, 200);
    assert_eq!(from.get("/back/b").json()["n"], 2);
    let plain = from.post("/_replicate", &json!({"source": url, "target": "back"}));
    assert!(plain.status >= 400, "{plain:?}");

    assert_eq!(to.delete("/_tokens/branch-7").status, 200);
    // The key is no longer registered.
    from.until_status(500, || from.post("/_replicate", &push));
}

#[test]
fn key_of_a_server_stays_and_belongs_to_one_token() {
    needs_one_server!("each server has a key of its own");
    let mut server = TestServer::new();
    let key = server.get("/_signing_key").json();
    server.restart();
    assert_eq!(server.get("/_signing_key").json(), key);
    register(&server, "one", &key["public_key"]);
    let second = server.post("/_tokens", &json!({"name": "two", "roles": [], "public_key": key["public_key"]}));
    assert_eq!(second.status, 409, "{second:?}");
    let malformed = server.post("/_tokens", &json!({"name": "three", "roles": [], "public_key": "x"}));
    assert_eq!(malformed.status, 400, "{malformed:?}");
    server.restart();
    assert_eq!(server.get("/_tokens").json()["tokens"][0]["public_key"], key["public_key"]);
}

#[test]
fn program_replicates_with_its_key() {
    let server = TestServer::new();
    prepare(&server, "inbox");
    let key = SigningKey::generate().unwrap();
    register(&server, "device", &json!(key.public_key()));
    let db = Database::in_memory();
    db.insert("a", &json!({"n": 1})).unwrap();
    let peer = HttpPeer::with(&format!("http://{}/inbox", server.address()), HttpOptions::new().signed_by(key));
    assert_eq!(db.replicate_to(&*Arc::new(peer.unwrap())).unwrap().written_count, 1);
    assert_eq!(server.get("/inbox/a").json()["n"], 1);
}

#[test]
fn signature_is_valid_once_for_one_request_and_one_body() {
    let server = TestServer::new();
    prepare(&server, "inbox");
    let key = SigningKey::generate().unwrap();
    register(&server, "peer", &json!(key.public_key()));
    let json_type = "application/json";
    let body = br#"{"n": 1}"#;
    let head = signed(&key, "PUT", "/inbox/a", Some(body), now(), "1");
    assert_eq!(send(&server, &head, json_type, body).status, 201);
    let again = send(&server, &head, json_type, body);
    assert!(again.status == 401 && again.text.contains("used before"), "{again:?}");

    let other = signed(&SigningKey::generate().unwrap(), "PUT", "/inbox/b", Some(body), now(), "2");
    assert_eq!(send(&server, &other, json_type, body).status, 401, "the key is not registered");
    let old = send(&server, &signed(&key, "PUT", "/inbox/b", Some(body), now() - 3600, "3"), json_type, body);
    assert!(old.status == 401 && old.text.contains("clocks"), "{old:?}");
    let mut moved = signed(&key, "PUT", "/inbox/b", Some(body), now(), "4");
    moved.uri = "/inbox/c".parse().unwrap();
    assert_eq!(send(&server, &moved, json_type, body).status, 401, "the path is another one");

    let changed = signed(&key, "PUT", "/inbox/b", Some(body), now(), "5");
    let changed = send(&server, &changed, json_type, br#"{"n": 2}"#);
    assert!(changed.status == 400 && changed.text.contains("the one that was signed"), "{changed:?}");
    let undigested = signed(&key, "PUT", "/inbox/b", None, now(), "6");
    assert_eq!(send(&server, &undigested, json_type, body).status, 400, "the body was not signed");
    let bulk = signed(&key, "POST", "/inbox/_bulk_docs", Some(br#"{"docs": []}"#), now(), "7");
    assert_eq!(send(&server, &bulk, json_type, br#"{"docs": [{"_id": "b"}]}"#).status, 400);
    for path in ["/inbox/b", "/inbox/c"] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
}

#[test]
fn streamed_bodies_are_those_that_were_signed() {
    let server = TestServer::new();
    prepare(&server, "inbox");
    let key = SigningKey::generate().unwrap();
    register(&server, "peer", &json!(key.public_key()));
    let document = |text: &str| {
        let json = json!({"_attachments": {"f": {"content_type": "text/plain", "length": 3, "follows": true}}});
        format!("--x\r\nContent-Type: application/json\r\n\r\n{json}\r\n--x\r\n\r\n{text}\r\n--x--").into_bytes()
    };
    let kind = "multipart/related; boundary=\"x\"";
    let (first, second) = (document("abc"), document("xyz"));
    // What follows the last part arrives after everything else was read.
    let with_rest = [&*second, &[b' '; 2 << 20]].concat();
    let unsigned = [&*first, &[b' '; 2 << 20]].concat();
    for (number, sent) in [&second, &with_rest, &unsigned].into_iter().enumerate() {
        let head = signed(&key, "PUT", "/inbox/a", Some(&first), now(), &number.to_string());
        assert_eq!(send(&server, &head, kind, sent).status, 400, "{number}");
        assert_eq!(server.get("/inbox/a").status, 404, "{number}");
    }
    let head = signed(&key, "PUT", "/inbox/a", Some(&first), now(), "9");
    assert_eq!(send(&server, &head, kind, &first).status, 201);
    assert_eq!(server.get("/inbox/a/f").text, "abc");

    let head = signed(&key, "PUT", "/inbox/files/f", Some(b"abc"), now(), "10");
    assert_eq!(send(&server, &head, "text/plain", b"xyz").status, 400);
    assert_eq!(server.get("/inbox/files").status, 404);
    let head = signed(&key, "PUT", "/inbox/files/f", Some(b"abc"), now(), "11");
    assert_eq!(send(&server, &head, "text/plain", b"abc").status, 201);
}
