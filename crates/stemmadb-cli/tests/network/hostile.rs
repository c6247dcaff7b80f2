//! The replicator with a peer that means harm: whatever it says, a replication ends with an error or goes on; the server's memory is bounded, it
//! never panics, and its databases are good.

use std::collections::BTreeSet;
use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::client::{PASSWORD, header, read_body, read_head};
use crate::server::{Server, Taken, until};

/// What the peer answers.
enum Reply {
    Json(Value),
    /// The status, more of the head, and the body.
    Raw(u16, String, Vec<u8>),
    /// Chunks of this for ever, after a beginning.
    Endless(Vec<u8>, Vec<u8>),
    /// More is promised than sent.
    Cut(Vec<u8>),
}

/// What a peer does about a request, by method, path and body: where it has nothing to say, it behaves.
type Script = Arc<dyn Fn(&str, &str, &[u8]) -> Option<Reply> + Send + Sync>;

const REVISION: &str = "1-967a00dff5e02add41819138abb3284d";
const REPLACED: &str = "2-7051cbe5c8faecd085a3fa619e6e6337";

/// A server that follows a script. Its threads end with the process.
fn peer(script: Script) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let script = script.clone();
            thread::spawn(move || serve(stream, &script));
        }
    });
    address
}

fn serve(stream: TcpStream, script: &Script) {
    let mut stream = BufReader::new(stream);
    while let Ok(head) = read_head(&mut stream) {
        let body = read_body(&mut stream, &head).unwrap_or_default();
        let mut words = head[0].split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let reply = script(method, path, &body).unwrap_or_else(|| behaved(method, path));
        if !answer(stream.get_mut(), reply) || header(&head, "connection") == Some("close") {
            return;
        }
    }
}

/// Sends it; whether the connection goes on.
fn answer(stream: &mut TcpStream, reply: Reply) -> bool {
    let (status, more, body) = match reply {
        Reply::Json(value) => (200, String::new(), value.to_string().into_bytes()),
        Reply::Raw(status, more, body) => (status, more, body),
        Reply::Cut(body) => {
            let head = format!("HTTP/1.1 200 So\r\nContent-Length: {}\r\n\r\n", body.len() + 1000);
            stream.write_all(&[head.as_bytes(), &body].concat()).ok();
            return false;
        }
        Reply::Endless(first, again) => {
            stream.write_all(b"HTTP/1.1 200 So\r\nTransfer-Encoding: chunked\r\n\r\n").ok();
            let chunk = |bytes: &[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
            let (first, again) = (chunk(&first), chunk(&again));
            // A chunk of nothing would be the end.
            if first.len() <= 5 || stream.write_all(&first).is_ok() {
                while stream.write_all(&again).is_ok() {}
            }
            return false;
        }
    };
    let head = format!("HTTP/1.1 {status} So\r\n{more}Content-Length: {}\r\n\r\n", body.len());
    stream.write_all(&[head.as_bytes(), &body].concat()).is_ok()
}

/// A small database with one document.
fn behaved(method: &str, path: &str) -> Reply {
    match path {
        _ if path.contains("/_local/") && method == "GET" => {
            Reply::Raw(404, String::new(), br#"{"error":"not_found","reason":"missing"}"#.to_vec())
        }
        _ if path.contains("/_local/") => Reply::Json(json!({"ok": true, "id": "_local/x", "rev": "0-1"})),
        _ if path.contains("/_changes") => Reply::Json(changes("doc", REVISION)),
        _ if path.contains("/_bulk_get") => Reply::Json(got(json!({"_id": "doc", "_rev": REVISION}))),
        _ => Reply::Json(json!({"ok": true, "db_name": "db", "instance_start_time": "0", "update_seq": "1"})),
    }
}

fn changes(id: &str, revision: &str) -> Value {
    json!({"results": [{"seq": "1-x", "id": id, "changes": [{"rev": revision}]}], "last_seq": "1-x", "pending": 0})
}

fn got(document: Value) -> Value {
    json!({"results": [{"id": document["_id"], "docs": [{"ok": document}]}]})
}

/// A document that comes instead of the one that was told.
fn document(document: Value) -> Script {
    let reply = got(document);
    Arc::new(move |_, path, _| path.contains("/_bulk_get").then(|| Reply::Json(reply.clone())))
}

/// Something else where a path has this.
fn at(part: &'static str, reply: impl Fn() -> Reply + Send + Sync + 'static) -> Script {
    Arc::new(move |_, path, _| path.contains(part).then(&reply))
}

/// A document with a file, whose stub says this and whose content is that.
fn file(stub: Value, content: impl Fn() -> Reply + Send + Sync + 'static) -> Script {
    let reply = got(json!({"_id": "doc", "_rev": REVISION, "_attachments": {"f": stub}}));
    Arc::new(move |_, path, _| match path {
        _ if path.contains("/_bulk_get") => Some(Reply::Json(reply.clone())),
        _ if path.contains("/doc/f") => Some(content()),
        _ => None,
    })
}

fn raw(bytes: &[u8]) -> Reply {
    Reply::Raw(200, String::new(), bytes.to_vec())
}

/// So many zeros, compressed a thousandfold.
fn bomb(bytes: usize) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let piece = vec![b' '; 1 << 20];
    for _ in 0..bytes >> 20 {
        encoder.write_all(&piece).unwrap();
    }
    encoder.finish().unwrap()
}

fn history(start: i64, ids: Vec<String>) -> Value {
    json!({"_id": "doc", "_rev": format!("{start}-{}", ids[0]), "_revisions": {"start": start, "ids": ids}})
}

/// Instead of the document this.
fn instead(answers: Value) -> Script {
    let reply = json!({"results": [{"id": "doc", "docs": answers}]});
    at("/_bulk_get", move || Reply::Json(reply.clone()))
}

/// Whether what is told is taken, or the replication ends with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Refused,
    Either,
    /// It comes to an end, without it.
    LeftOut,
}
use Expected::{Either, LeftOut, Refused};

fn scripts(elsewhere: SocketAddr) -> Vec<(&'static str, Expected, Script)> {
    let hash = "967a00dff5e02add41819138abb3284d";
    let redirect = move |to: String| Reply::Raw(302, format!("Location: {to}\r\n"), Vec::new());
    let own = format!("http://{elsewhere}/db");
    let own_again = own.clone();
    let stub = |length: u64, digest: &str| json!({"stub": true, "content_type": "text/plain", "revpos": 1, "length": length, "digest": digest});
    let md5 = "md5-XUFAKrxLKna5cZ2REBfFkg==";
    vec![
        ("garbage instead of a feed", Refused, at("/_changes", || raw(b"\xff\xfe{]"))),
        ("a feed of another shape", Refused, at("/_changes", || Reply::Json(json!({"results": {}, "last_seq": []})))),
        (
            "rows of another shape",
            Refused,
            at("/_changes", || Reply::Json(json!({"results": [1, null, {"id": 7}], "last_seq": 1}))),
        ),
        ("an id that can't be", Refused, at("/_changes", || Reply::Json(changes(&"x".repeat(2 << 20), REVISION)))),
        ("an id of the database's own", Refused, at("/_changes", || Reply::Json(changes("_local/x", REVISION)))),
        (
            "a revision that can't be",
            Refused,
            at("/_changes", || Reply::Json(changes("doc", "99999999999999999999-zz"))),
        ),
        ("depth", Refused, at("/_changes", || raw("[".repeat(2_000_000).as_bytes()))),
        (
            "a feed without end",
            Refused,
            at("/_changes", || {
                Reply::Endless(
                    b"{\"results\":[".to_vec(),
                    b"{\"seq\":\"1\",\"id\":\"doc\",\"changes\":[{\"rev\":\"1-a\"}]},".repeat(500),
                )
            }),
        ),
        ("white space without end", Refused, at("/_changes", || Reply::Endless(Vec::new(), vec![b' '; 1 << 16]))),
        ("a feed that is cut", Refused, at("/_changes", || Reply::Cut(b"{\"results\":[".to_vec()))),
        (
            "a compressed bomb",
            Refused,
            at("/_changes", || {
                Reply::Raw(
                    200,
                    "Content-Encoding: gzip\r\nContent-Type: application/json\r\n".to_owned(),
                    bomb(64 << 20),
                )
            }),
        ),
        (
            "a gigantic document",
            Refused,
            at("/_bulk_get", || {
                Reply::Endless(b"{\"results\":[{\"docs\":[{\"ok\":{\"t\":\"".to_vec(), vec![b'x'; 1 << 16])
            }),
        ),
        (
            "a large document of small parts",
            Either,
            document(json!({"_id": "doc", "_rev": REVISION, "a": vec![0; 7_500_000]})),
        ),
        (
            "garbage instead of documents",
            Refused,
            at("/_bulk_get", || raw(b"{\"results\":[{\"docs\":[{\"ok\":{\"_id\":")),
        ),
        (
            "another document than was asked for",
            Either,
            document(json!({"_id": "_design/evil", "_rev": REVISION, "views": {}})),
        ),
        ("a document with fields that are ours", Either, document(json!({"_id": "doc", "_rev": REVISION, "_evil": 1}))),
        (
            "a history of a million",
            Either,
            document(history(1_000_000, (0..1_000_000).map(|n| format!("{n:032x}")).collect())),
        ),
        ("more history than generations", Either, document(history(1, (0..5).map(|n| format!("{n:032x}")).collect()))),
        (
            "a history of another revision",
            Either,
            document(json!({"_id": "doc", "_rev": REVISION, "_revisions": {"start": 7, "ids": ["00", hash]}})),
        ),
        ("a history that begins below zero", Either, document(history(-1, vec![hash.to_owned()]))),
        ("a history beyond all numbers", Either, document(history(i64::MAX, vec![hash.to_owned()]))),
        ("a history that is a circle", Either, document(history(3, vec![hash.to_owned(); 3]))),
        (
            "a revision that is there no longer",
            LeftOut,
            instead(json!([{"error": {"id": "doc", "rev": REVISION, "error": "not_found", "reason": "missing"}}])),
        ),
        (
            "a revision that can't be read now",
            Refused,
            instead(
                json!([{"error": {"id": "doc", "rev": REVISION, "error": "internal_server_error", "reason": "timeout"}}]),
            ),
        ),
        ("nothing of a revision", Refused, instead(json!([]))),
        ("fewer revisions than were asked for", Refused, at("/_bulk_get", || Reply::Json(json!({"results": []})))),
        ("a wrong digest", Refused, file(stub(5, "md5-AAAAAAAAAAAAAAAAAAAAAA=="), || raw(b"hello"))),
        ("a file that is shorter than was told", Refused, file(stub(9, md5), || raw(b"hello"))),
        ("a file that is longer than was told", Refused, file(stub(3, md5), || raw(b"hello"))),
        ("a file without end", Refused, file(stub(5, md5), || Reply::Endless(b"hello".to_vec(), vec![b'x'; 1 << 16]))),
        (
            "a file that is gone, of a revision that is there",
            Refused,
            file(stub(5, md5), || {
                Reply::Raw(404, String::new(), br#"{"error":"not_found","reason":"missing"}"#.to_vec())
            }),
        ),
        ("a file that is cut", Refused, file(stub(5, md5), || Reply::Cut(b"hel".to_vec()))),
        (
            "a name that leads elsewhere",
            Either,
            document(
                json!({"_id": "doc", "_rev": REVISION, "_attachments": {"../../x": {"data": "aGVsbG8=", "content_type": "a/b"}}}),
            ),
        ),
        (
            "a redirection to the machine's secrets",
            Refused,
            at("/_changes", move || redirect("http://169.254.169.254/latest/meta-data/".to_owned())),
        ),
        ("a redirection to another server", Refused, at("/_changes", move || redirect(own.clone()))),
        ("a redirection of documents", Refused, at("/_bulk_get", move || redirect(own_again.clone()))),
        (
            "a refusal of everything",
            Refused,
            Arc::new(|_, _, _| Some(Reply::Raw(500, String::new(), vec![b'x'; 1 << 20]))),
        ),
    ]
}

/// How long one replication may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// What the server may take up: by far more than it does for any message that is within its bounds.
const RESIDENT_BYTES_MAX: u64 = 1 << 30;

#[test]
fn a_peer_that_means_harm_does_none() {
    let asked = Arc::new(AtomicU64::new(0));
    let counted = asked.clone();
    let elsewhere = peer(Arc::new(move |_, _, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        None
    }));
    let place = tempfile::tempdir().unwrap();
    let mut server = Server::start(place.path(), &["--durability", "none"]);
    let mut client = server.client().patience(PATIENCE);
    let before = Taken::of(server.pid()).resident_bytes;
    for (number, (name, expected, script)) in scripts(elsewhere).into_iter().enumerate() {
        let (source, target, begun) = (format!("http://{}/db", peer(script)), format!("t{number}"), Instant::now());
        let wanted = json!({"source": source, "target": target, "create_target": true});
        let answer = client.must("POST", "/_replicate", Some(&wanted));
        let taken = Taken::of(server.pid());
        println!(
            "{name}: {} ms, {} MiB, {}",
            begun.elapsed().as_millis(),
            taken.resident_bytes >> 20,
            answer.shown().chars().take(160).collect::<String>()
        );
        if expected == LeftOut {
            assert!(answer.is_good(), "{name}: {}", answer.shown());
        }
        if expected == Refused {
            assert!(!answer.is_good(), "{name}: {}", answer.shown());
            let reason = answer.json()["reason"].as_str().unwrap_or_default().to_owned();
            assert!(reason.len() > 10, "{name}: {}", answer.shown());
            let info = client.good("GET", &format!("/{target}"), None);
            assert_eq!(info["doc_count"], 0, "{name}: what was refused is there");
        }
        assert!(taken.resident_bytes_most < RESIDENT_BYTES_MAX, "{name}: {taken:?}");
        let listed = client.good("GET", &format!("/{target}/_all_docs?include_docs=true&attachments=true"), None);
        assert!(listed["rows"].as_array().unwrap().iter().all(|row| row["id"] == "doc"), "{name}: {listed}");
        client.good("PUT", &format!("/{target}/after"), Some(&json!({})));
    }
    assert_eq!(asked.load(Ordering::SeqCst), 0, "a redirection was followed");
    let taken = Taken::of(server.pid());
    println!("hostile peer: {} MiB before, {} at most", before >> 20, taken.resident_bytes_most >> 20);
    server.assert_calm();
    server.stop();
    server.check();
}

/// A target that lacks what it is asked about, and answers so where a path has this.
fn target(part: &'static str, status: u16, answer: Value) -> Script {
    Arc::new(move |_, path, asked| match path {
        _ if path.contains(part) => Some(Reply::Raw(status, String::new(), answer.to_string().into_bytes())),
        _ if path.contains("/_revs_diff") => {
            let asked: Value = serde_json::from_slice(asked).unwrap();
            let lacking = asked.as_object().unwrap().iter().map(|(id, known)| (id.clone(), json!({"missing": known})));
            Some(Reply::Json(Value::Object(lacking.collect())))
        }
        _ => None,
    })
}

/// A target that says no word of what became of a document, or that it can't take it now, is tried again: else the document is left out for
/// good. Only what it refuses for the document's sake is counted, and gone on from.
#[test]
fn a_target_that_has_not_written_is_not_believed() {
    let place = tempfile::tempdir().unwrap();
    let mut server = Server::start(place.path(), &["--durability", "none"]);
    let mut client = server.client().patience(PATIENCE);
    let attached = json!({"_attachments": {"f": {"content_type": "a/b", "data": "aGVsbG8="}}});
    for (database, document) in [("plain", json!({})), ("files", attached)] {
        client.good("PUT", &format!("/{database}"), None);
        client.good("PUT", &format!("/{database}/doc"), Some(&document));
    }
    let row = |error: &str| json!([{"id": "doc", "error": error, "reason": "for a reason"}]);
    let refused = |error: &str| json!({"error": error, "reason": "for a reason"});
    let mut wrong = Vec::new();
    for (name, failures, database, script) in [
        ("no answer about revisions", None, "plain", target("/_revs_diff", 200, json!([]))),
        ("wrong revisions", None, "plain", target("/_revs_diff", 200, json!({"doc": {"missing": ["x"]}}))),
        ("no answer about documents", None, "plain", target("/_bulk_docs", 200, json!({"ok": true}))),
        ("a row of no room", None, "plain", target("/_bulk_docs", 201, row("service_unavailable"))),
        ("a row of a fault", None, "plain", target("/_bulk_docs", 201, row("internal_server_error"))),
        (
            "more rows than documents",
            Some(3),
            "plain",
            target("/_bulk_docs", 201, json!([refused("forbidden"), refused("forbidden"), refused("forbidden")])),
        ),
        ("no room for a file", None, "files", target("/doc?", 503, refused("service_unavailable"))),
        ("too much at once", None, "files", target("/doc?", 429, refused("too_many_requests"))),
        ("a file that stood still", None, "files", target("/doc?", 408, refused("timeout"))),
        ("a row that is forbidden", Some(1), "plain", target("/_bulk_docs", 201, row("forbidden"))),
        ("a file that is forbidden", Some(1), "files", target("/doc?", 403, refused("forbidden"))),
    ] {
        let wanted = json!({"source": database, "target": format!("http://{}/db", peer(script))});
        let answer = client.must("POST", "/_replicate", Some(&wanted));
        let told = answer.is_good().then(|| answer.json()["history"][0]["doc_write_failures"].as_u64()).flatten();
        if told != failures {
            wrong.push(format!("{name}: {}", answer.shown()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    server.assert_calm();
    server.stop();
}

/// The two documents `doc` and `next` with a file each; that of `doc` is gone when it is asked for, since `doc` was replaced.
fn replaced_meanwhile() -> Script {
    let stub = json!({"stub": true, "content_type": "text/plain", "revpos": 1, "length": 5, "digest": "md5-XUFAKrxLKna5cZ2REBfFkg=="});
    let with_file = move |id: &str, revision: &str| json!({"_id": id, "_rev": revision, "_attachments": {"f": stub}});
    let was_asked = AtomicBool::new(false);
    Arc::new(move |_, path, asked| {
        let row = |id: &str| json!({"seq": "1-x", "id": id, "changes": [{"rev": REVISION}]});
        match path {
            _ if path.contains("/_changes") => {
                Some(Reply::Json(json!({"results": [row("doc"), row("next")], "last_seq": "2-x", "pending": 0})))
            }
            _ if path.contains("/_bulk_get") => {
                let asked: Value = serde_json::from_slice(asked).unwrap();
                let newest = if was_asked.load(Ordering::SeqCst) { REPLACED } else { REVISION };
                let rows = asked["docs"].as_array().unwrap().iter().map(|row| {
                    let id = row["id"].as_str().unwrap();
                    let revision = if id == "doc" { newest } else { REVISION };
                    json!({"id": id, "docs": [{"ok": with_file(id, revision)}]})
                });
                Some(Reply::Json(json!({"results": rows.collect::<Vec<_>>()})))
            }
            _ if path.contains("/doc/f") => {
                was_asked.store(true, Ordering::SeqCst);
                Some(Reply::Raw(404, String::new(), br#"{"error":"not_found","reason":"missing"}"#.to_vec()))
            }
            _ if path.contains("/next/f") => Some(raw(b"hello")),
            _ => None,
        }
    })
}

/// Found while a server was under load for an hour: a file that is replaced and swept while its document is brought ended all that was on its
/// way with it, again and again.
#[test]
fn what_was_replaced_meanwhile_is_passed_over() {
    let place = tempfile::tempdir().unwrap();
    let mut server = Server::start(place.path(), &["--durability", "none"]);
    let mut client = server.client().patience(PATIENCE);
    client.good("PUT", "/there", None);
    for target in ["here".to_owned(), format!("http://admin:{PASSWORD}@{}/there", server.address())] {
        let source = format!("http://{}/db", peer(replaced_meanwhile()));
        let wanted = json!({"source": source, "target": target, "create_target": target == "here"});
        let told = client.good("POST", "/_replicate", Some(&wanted))["history"][0].clone();
        let counts = ["docs_read", "docs_written", "doc_write_failures"].map(|name| told[name].as_u64().unwrap());
        assert_eq!(counts, [2, 1, 0], "{target}: {told}");
    }
    for database in ["here", "there"] {
        let listed = client.good("GET", &format!("/{database}/_all_docs"), None);
        assert_eq!(listed["rows"].as_array().unwrap().len(), 1, "{listed}");
        assert_eq!(client.must("GET", &format!("/{database}/next/f"), None).bytes, b"hello");
    }
    server.assert_calm();
    server.stop();
    server.check();
}

/// Found in the same hour: a replication that got on a little with each attempt was tried again less and less often.
#[test]
fn what_gets_on_is_tried_again_as_soon_as_at_first() {
    let place = tempfile::tempdir().unwrap();
    let mut server = Server::start(place.path(), &["--durability", "none", "--replicator-retry-wait", "1s"]);
    let mut client = server.client();
    client.good("PUT", "/db", None);
    for number in 0..9 {
        let attached = json!({"_attachments": {"f": {"content_type": "a/b", "data": "aGVsbG8="}}});
        client.good("PUT", &format!("/db/d{number}"), Some(&attached));
    }
    client.good("PUT", "/_replicator", None);
    // It takes one document of each attempt.
    let (taken, takes) = (Mutex::new(BTreeSet::new()), AtomicBool::new(false));
    let slow: Script = Arc::new(move |_, path, asked| match path {
        _ if path.contains("/_revs_diff") => {
            takes.store(true, Ordering::SeqCst);
            let asked: Value = serde_json::from_slice(asked).unwrap();
            let lacking = asked.as_object().unwrap().iter().filter(|(id, _)| !taken.lock().unwrap().contains(*id));
            Some(Reply::Json(Value::Object(
                lacking.map(|(id, known)| (id.clone(), json!({"missing": known}))).collect(),
            )))
        }
        _ if path.contains("/d") && path.contains("new_edits") && takes.swap(false, Ordering::SeqCst) => {
            let id = path.split(['/', '?']).nth(2).unwrap().to_owned();
            taken.lock().unwrap().insert(id);
            None
        }
        _ if path.contains("new_edits") => Some(Reply::Raw(503, String::new(), b"{}".to_vec())),
        _ => None,
    });
    let wanted = json!({"source": "db", "target": format!("http://{}/db", peer(slow)), "continuous": true});
    client.good("PUT", "/_replicator/push", Some(&wanted));
    let mut told = Value::Null;
    until("it failed five times", Duration::from_secs(120), || {
        told = client.good("GET", "/_scheduler/docs/_replicator/push", None);
        told["error_count"].as_u64() >= Some(5) && !told["retry_at"].is_null()
    });
    // What it says of its pause, not how long that takes: it were 16 seconds.
    let second = |time: &Value| time.as_str().unwrap()[17..19].parse::<u64>().unwrap();
    let pause = (60 + second(&told["retry_at"]) - second(&told["history"][0]["timestamp"])) % 60;
    assert_eq!(pause, 1, "{told}");
    server.assert_calm();
    server.stop();
}
