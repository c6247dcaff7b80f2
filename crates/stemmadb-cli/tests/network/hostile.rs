//! Replication with hostile peers: for any response, it fails with an error or continues; the server's memory stays
//! bounded, it never panics, and its databases stay intact.

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
use crate::server::{ResourceUsage, Server, wait_until};

/// A response of the peer.
enum Reply {
    Json(Value),
    /// The status, additional header lines, and the body.
    Raw(u16, String, Vec<u8>),
    /// A first chunk, then another one repeated endlessly.
    Endless(Vec<u8>, Vec<u8>),
    /// A body shorter than its content length.
    Cut(Vec<u8>),
}

/// Maps the method, path and body of a request to a response; `None` for a regular response.
type Script = Arc<dyn Fn(&str, &str, &[u8]) -> Option<Reply> + Send + Sync>;

const REVISION: &str = "1-967a00dff5e02add41819138abb3284d";
const REPLACED: &str = "2-7051cbe5c8faecd085a3fa619e6e6337";

/// Starts a server that follows a script. Its threads end with the process.
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
        let reply = script(method, path, &body).unwrap_or_else(|| regular_reply(method, path));
        if !send_reply(stream.get_mut(), reply) || header(&head, "connection") == Some("close") {
            return;
        }
    }
}

/// Sends a response; returns whether the connection stays open.
fn send_reply(stream: &mut TcpStream, reply: Reply) -> bool {
    let (status, more, body) = match reply {
        Reply::Json(value) => (200, String::new(), value.to_string().into_bytes()),
        Reply::Raw(status, more, body) => (status, more, body),
        Reply::Cut(body) => {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len() + 1000);
            stream.write_all(&[head.as_bytes(), &body].concat()).ok();
            return false;
        }
        Reply::Endless(first, again) => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").ok();
            let chunk = |bytes: &[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
            let (first, again) = (chunk(&first), chunk(&again));
            // An empty chunk would end the response.
            if first.len() <= 5 || stream.write_all(&first).is_ok() {
                while stream.write_all(&again).is_ok() {}
            }
            return false;
        }
    };
    let head = format!("HTTP/1.1 {status} Reply\r\n{more}Content-Length: {}\r\n\r\n", body.len());
    stream.write_all(&[head.as_bytes(), &body].concat()).is_ok()
}

/// The response of a small database with one document.
fn regular_reply(method: &str, path: &str) -> Reply {
    match path {
        _ if path.contains("/_local/") && method == "GET" => {
            Reply::Raw(404, String::new(), br#"{"error":"not_found","reason":"missing"}"#.to_vec())
        }
        _ if path.contains("/_local/") => Reply::Json(json!({"ok": true, "id": "_local/x", "rev": "0-1"})),
        _ if path.contains("/_changes") => Reply::Json(changes("doc", REVISION)),
        _ if path.contains("/_bulk_get") => Reply::Json(bulk_get(json!({"_id": "doc", "_rev": REVISION}))),
        _ => Reply::Json(json!({"ok": true, "db_name": "db", "instance_start_time": "0", "update_seq": "1"})),
    }
}

fn changes(id: &str, revision: &str) -> Value {
    json!({"results": [{"seq": "1-x", "id": id, "changes": [{"rev": revision}]}], "last_seq": "1-x", "pending": 0})
}

fn bulk_get(document: Value) -> Value {
    json!({"results": [{"id": document["_id"], "docs": [{"ok": document}]}]})
}

/// Returns this document instead of the one in the feed.
fn document(document: Value) -> Script {
    let reply = bulk_get(document);
    Arc::new(move |_, path, _| path.contains("/_bulk_get").then(|| Reply::Json(reply.clone())))
}

/// Returns this reply if the path contains `part`.
fn at(part: &'static str, reply: impl Fn() -> Reply + Send + Sync + 'static) -> Script {
    Arc::new(move |_, path, _| path.contains(part).then(&reply))
}

/// Returns a document with an attachment that has this stub and content.
fn file(stub: Value, content: impl Fn() -> Reply + Send + Sync + 'static) -> Script {
    let reply = bulk_get(json!({"_id": "doc", "_rev": REVISION, "_attachments": {"f": stub}}));
    Arc::new(move |_, path, _| match path {
        _ if path.contains("/_bulk_get") => Some(Reply::Json(reply.clone())),
        _ if path.contains("/doc/f") => Some(content()),
        _ => None,
    })
}

fn raw(bytes: &[u8]) -> Reply {
    Reply::Raw(200, String::new(), bytes.to_vec())
}

/// Compressed spaces: a gzip stream that expands a thousandfold to `bytes`.
fn gzip_bomb(bytes: usize) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let block = vec![b' '; 1 << 20];
    for _ in 0..bytes >> 20 {
        encoder.write_all(&block).unwrap();
    }
    encoder.finish().unwrap()
}

fn history(start: i64, ids: Vec<String>) -> Value {
    json!({"_id": "doc", "_rev": format!("{start}-{}", ids[0]), "_revisions": {"start": start, "ids": ids}})
}

/// Returns these entries instead of the document.
fn bulk_get_entries(entries: Value) -> Script {
    let reply = json!({"results": [{"id": "doc", "docs": entries}]});
    at("/_bulk_get", move || Reply::Json(reply.clone()))
}

/// Expected result of a replication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// It fails with an error.
    Fails,
    Either,
    /// It completes without the document.
    Skips,
}
use Expected::{Either, Fails, Skips};

fn scripts(elsewhere: SocketAddr) -> Vec<(&'static str, Expected, Script)> {
    let hash = "967a00dff5e02add41819138abb3284d";
    let redirect = move |to: String| Reply::Raw(302, format!("Location: {to}\r\n"), Vec::new());
    let own = format!("http://{elsewhere}/db");
    let own_again = own.clone();
    let stub = |length: u64, digest: &str| {
        let content_type = "text/plain";
        json!({"stub": true, "content_type": content_type, "revpos": 1, "length": length, "digest": digest})
    };
    let md5 = "md5-XUFAKrxLKna5cZ2REBfFkg==";
    vec![
        ("garbage instead of a feed", Fails, at("/_changes", || raw(b"\xff\xfe{]"))),
        ("a feed with wrong types", Fails, at("/_changes", || Reply::Json(json!({"results": {}, "last_seq": []})))),
        (
            "rows with wrong types",
            Fails,
            at("/_changes", || Reply::Json(json!({"results": [1, null, {"id": 7}], "last_seq": 1}))),
        ),
        ("an invalid id", Fails, at("/_changes", || Reply::Json(changes(&"x".repeat(2 << 20), REVISION)))),
        ("a reserved id", Fails, at("/_changes", || Reply::Json(changes("_local/x", REVISION)))),
        ("an invalid revision", Fails, at("/_changes", || Reply::Json(changes("doc", "99999999999999999999-zz")))),
        ("deep nesting", Fails, at("/_changes", || raw("[".repeat(2_000_000).as_bytes()))),
        (
            "an endless feed",
            Fails,
            at("/_changes", || {
                Reply::Endless(
                    b"{\"results\":[".to_vec(),
                    b"{\"seq\":\"1\",\"id\":\"doc\",\"changes\":[{\"rev\":\"1-a\"}]},".repeat(500),
                )
            }),
        ),
        ("endless whitespace", Fails, at("/_changes", || Reply::Endless(Vec::new(), vec![b' '; 1 << 16]))),
        ("a truncated feed", Fails, at("/_changes", || Reply::Cut(b"{\"results\":[".to_vec()))),
        (
            "a gzip bomb",
            Fails,
            at("/_changes", || {
                Reply::Raw(
                    200,
                    "Content-Encoding: gzip\r\nContent-Type: application/json\r\n".to_owned(),
                    gzip_bomb(64 << 20),
                )
            }),
        ),
        (
            "a gigantic document",
            Fails,
            at("/_bulk_get", || {
                Reply::Endless(b"{\"results\":[{\"docs\":[{\"ok\":{\"t\":\"".to_vec(), vec![b'x'; 1 << 16])
            }),
        ),
        (
            "a large document of small values",
            Either,
            document(json!({"_id": "doc", "_rev": REVISION, "a": vec![0; 7_500_000]})),
        ),
        (
            "garbage instead of documents",
            Fails,
            at("/_bulk_get", || raw(b"{\"results\":[{\"docs\":[{\"ok\":{\"_id\":")),
        ),
        (
            "another document than requested",
            Either,
            document(json!({"_id": "_design/evil", "_rev": REVISION, "views": {}})),
        ),
        ("a document with reserved fields", Either, document(json!({"_id": "doc", "_rev": REVISION, "_evil": 1}))),
        (
            "a history of a million revisions",
            Either,
            document(history(1_000_000, (0..1_000_000).map(|n| format!("{n:032x}")).collect())),
        ),
        (
            "more ancestors than generations",
            Either,
            document(history(1, (0..5).map(|n| format!("{n:032x}")).collect())),
        ),
        (
            "a history of another revision",
            Either,
            document(json!({"_id": "doc", "_rev": REVISION, "_revisions": {"start": 7, "ids": ["00", hash]}})),
        ),
        ("a negative generation", Either, document(history(-1, vec![hash.to_owned()]))),
        ("the largest generation", Either, document(history(i64::MAX, vec![hash.to_owned()]))),
        ("a cyclic history", Either, document(history(3, vec![hash.to_owned(); 3]))),
        (
            "a missing revision",
            Skips,
            bulk_get_entries(
                json!([{"error": {"id": "doc", "rev": REVISION, "error": "not_found", "reason": "missing"}}]),
            ),
        ),
        (
            "a revision with a temporary error",
            Fails,
            bulk_get_entries(json!([{"error":
                    {"id": "doc", "rev": REVISION, "error": "internal_server_error", "reason": "timeout"}}])),
        ),
        ("no entry for a revision", Fails, bulk_get_entries(json!([]))),
        ("fewer revisions than requested", Fails, at("/_bulk_get", || Reply::Json(json!({"results": []})))),
        ("a wrong digest", Fails, file(stub(5, "md5-AAAAAAAAAAAAAAAAAAAAAA=="), || raw(b"hello"))),
        ("an attachment shorter than its stub", Fails, file(stub(9, md5), || raw(b"hello"))),
        ("an attachment longer than its stub", Fails, file(stub(3, md5), || raw(b"hello"))),
        ("an endless attachment", Fails, file(stub(5, md5), || Reply::Endless(b"hello".to_vec(), vec![b'x'; 1 << 16]))),
        (
            "a missing attachment of an existing revision",
            Fails,
            file(stub(5, md5), || {
                Reply::Raw(404, String::new(), br#"{"error":"not_found","reason":"missing"}"#.to_vec())
            }),
        ),
        ("a truncated attachment", Fails, file(stub(5, md5), || Reply::Cut(b"hel".to_vec()))),
        (
            "an attachment name with a path",
            Either,
            document(json!({"_id": "doc", "_rev": REVISION,
                    "_attachments": {"../../x": {"data": "aGVsbG8=", "content_type": "a/b"}}})),
        ),
        (
            "a redirect to the metadata service",
            Fails,
            at("/_changes", move || redirect("http://169.254.169.254/latest/meta-data/".to_owned())),
        ),
        ("a redirect to another server", Fails, at("/_changes", move || redirect(own.clone()))),
        ("a redirect of documents", Fails, at("/_bulk_get", move || redirect(own_again.clone()))),
        (
            "errors for every request",
            Fails,
            Arc::new(|_, _, _| Some(Reply::Raw(500, String::new(), vec![b'x'; 1 << 20]))),
        ),
    ]
}

/// Time limit of one replication.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum memory of the server: far more than it uses for any response within its limits.
const RESIDENT_BYTES_MAX: u64 = 1 << 30;

#[test]
fn hostile_peer_does_no_harm() {
    let request_count = Arc::new(AtomicU64::new(0));
    let counted = request_count.clone();
    let elsewhere = peer(Arc::new(move |_, _, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        None
    }));
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start(directory.path(), &["--durability", "none"]);
    let mut client = server.client().timeout(TIMEOUT);
    let before = ResourceUsage::of(server.pid()).resident_bytes;
    for (number, (name, expected, script)) in scripts(elsewhere).into_iter().enumerate() {
        let (source, target, started) = (format!("http://{}/db", peer(script)), format!("t{number}"), Instant::now());
        let wanted = json!({"source": source, "target": target, "create_target": true});
        let answer = client.expect_response("POST", "/_replicate", Some(&wanted));
        let usage = ResourceUsage::of(server.pid());
        println!(
            "{name}: {} ms, {} MiB, {}",
            started.elapsed().as_millis(),
            usage.resident_bytes >> 20,
            answer.summary().chars().take(160).collect::<String>()
        );
        if expected == Skips {
            assert!(answer.is_success(), "{name}: {}", answer.summary());
        }
        if expected == Fails {
            assert!(!answer.is_success(), "{name}: {}", answer.summary());
            let reason = answer.json()["reason"].as_str().unwrap_or_default().to_owned();
            assert!(reason.len() > 10, "{name}: {}", answer.summary());
            let info = client.expect_success("GET", &format!("/{target}"), None);
            assert_eq!(info["doc_count"], 0, "{name}: a refused document was stored");
        }
        assert!(usage.peak_resident_bytes < RESIDENT_BYTES_MAX, "{name}: {usage:?}");
        let listed =
            client.expect_success("GET", &format!("/{target}/_all_docs?include_docs=true&attachments=true"), None);
        assert!(listed["rows"].as_array().unwrap().iter().all(|row| row["id"] == "doc"), "{name}: {listed}");
        client.expect_success("PUT", &format!("/{target}/after"), Some(&json!({})));
    }
    assert_eq!(request_count.load(Ordering::SeqCst), 0, "a redirect was followed");
    let usage = ResourceUsage::of(server.pid());
    println!("hostile peer: {} MiB before, {} at most", before >> 20, usage.peak_resident_bytes >> 20);
    server.assert_no_panic();
    server.stop();
    server.check();
}

/// A target that lacks all revisions, and returns this reply if the path contains `part`.
fn target(part: &'static str, status: u16, reply: Value) -> Script {
    Arc::new(move |_, path, body| match path {
        _ if path.contains(part) => Some(Reply::Raw(status, String::new(), reply.to_string().into_bytes())),
        _ if path.contains("/_revs_diff") => {
            let request: Value = serde_json::from_slice(body).unwrap();
            let lacking =
                request.as_object().unwrap().iter().map(|(id, known)| (id.clone(), json!({"missing": known})));
            Some(Reply::Json(Value::Object(lacking.collect())))
        }
        _ => None,
    })
}

/// If a target does not report what happened to a document, or cannot accept it at present, the replication fails and
/// is retried: otherwise the document would be skipped for good. Only documents that the target rejects are counted as
/// failures and skipped.
#[test]
fn target_without_write_confirmation_is_retried() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start(directory.path(), &["--durability", "none"]);
    let mut client = server.client().timeout(TIMEOUT);
    let attached = json!({"_attachments": {"f": {"content_type": "a/b", "data": "aGVsbG8="}}});
    for (database, document) in [("plain", json!({})), ("files", attached)] {
        client.expect_success("PUT", &format!("/{database}"), None);
        client.expect_success("PUT", &format!("/{database}/doc"), Some(&document));
    }
    let row = |error: &str| json!([{"id": "doc", "error": error, "reason": "some reason"}]);
    let refused = |error: &str| json!({"error": error, "reason": "some reason"});
    let mut wrong = Vec::new();
    for (name, failures, database, script) in [
        ("no result for revisions", None, "plain", target("/_revs_diff", 200, json!([]))),
        ("wrong revisions", None, "plain", target("/_revs_diff", 200, json!({"doc": {"missing": ["x"]}}))),
        ("no result for documents", None, "plain", target("/_bulk_docs", 200, json!({"ok": true}))),
        ("a row with service_unavailable", None, "plain", target("/_bulk_docs", 201, row("service_unavailable"))),
        ("a row with internal_server_error", None, "plain", target("/_bulk_docs", 201, row("internal_server_error"))),
        (
            "more rows than documents",
            Some(3),
            "plain",
            target("/_bulk_docs", 201, json!([refused("forbidden"), refused("forbidden"), refused("forbidden")])),
        ),
        ("503 for an attachment", None, "files", target("/doc?", 503, refused("service_unavailable"))),
        ("429 for an attachment", None, "files", target("/doc?", 429, refused("too_many_requests"))),
        ("408 for an attachment", None, "files", target("/doc?", 408, refused("timeout"))),
        ("a row with forbidden", Some(1), "plain", target("/_bulk_docs", 201, row("forbidden"))),
        ("403 for an attachment", Some(1), "files", target("/doc?", 403, refused("forbidden"))),
    ] {
        let wanted = json!({"source": database, "target": format!("http://{}/db", peer(script))});
        let answer = client.expect_response("POST", "/_replicate", Some(&wanted));
        let reported =
            answer.is_success().then(|| answer.json()["history"][0]["doc_write_failures"].as_u64()).flatten();
        if reported != failures {
            wrong.push(format!("{name}: {}", answer.summary()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    server.assert_no_panic();
    server.stop();
}

/// Two documents, `doc` and `next`, with an attachment each; that of `doc` is missing when it is fetched, since `doc`
/// was replaced.
fn concurrently_replaced() -> Script {
    let digest = "md5-XUFAKrxLKna5cZ2REBfFkg==";
    let stub = json!({"stub": true, "content_type": "text/plain", "revpos": 1, "length": 5, "digest": digest});
    let with_file = move |id: &str, revision: &str| json!({"_id": id, "_rev": revision, "_attachments": {"f": stub}});
    let was_fetched = AtomicBool::new(false);
    Arc::new(move |_, path, body| {
        let row = |id: &str| json!({"seq": "1-x", "id": id, "changes": [{"rev": REVISION}]});
        match path {
            _ if path.contains("/_changes") => {
                Some(Reply::Json(json!({"results": [row("doc"), row("next")], "last_seq": "2-x", "pending": 0})))
            }
            _ if path.contains("/_bulk_get") => {
                let request: Value = serde_json::from_slice(body).unwrap();
                let newest = if was_fetched.load(Ordering::SeqCst) { REPLACED } else { REVISION };
                let rows = request["docs"].as_array().unwrap().iter().map(|row| {
                    let id = row["id"].as_str().unwrap();
                    let revision = if id == "doc" { newest } else { REVISION };
                    json!({"id": id, "docs": [{"ok": with_file(id, revision)}]})
                });
                Some(Reply::Json(json!({"results": rows.collect::<Vec<_>>()})))
            }
            _ if path.contains("/doc/f") => {
                was_fetched.store(true, Ordering::SeqCst);
                Some(Reply::Raw(404, String::new(), br#"{"error":"not_found","reason":"missing"}"#.to_vec()))
            }
            _ if path.contains("/next/f") => Some(raw(b"hello")),
            _ => None,
        }
    })
}

/// Found by the soak test: an attachment that was replaced and deleted while its document was replicated made the whole
/// batch fail repeatedly.
#[test]
fn concurrently_replaced_document_is_skipped() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start(directory.path(), &["--durability", "none"]);
    let mut client = server.client().timeout(TIMEOUT);
    client.expect_success("PUT", "/there", None);
    for target in ["here".to_owned(), format!("http://admin:{PASSWORD}@{}/there", server.address())] {
        let source = format!("http://{}/db", peer(concurrently_replaced()));
        let wanted = json!({"source": source, "target": target, "create_target": target == "here"});
        let reported = client.expect_success("POST", "/_replicate", Some(&wanted))["history"][0].clone();
        let counts = ["docs_read", "docs_written", "doc_write_failures"].map(|name| reported[name].as_u64().unwrap());
        assert_eq!(counts, [2, 1, 0], "{target}: {reported}");
    }
    for database in ["here", "there"] {
        let listed = client.expect_success("GET", &format!("/{database}/_all_docs"), None);
        assert_eq!(listed["rows"].as_array().unwrap().len(), 1, "{listed}");
        assert_eq!(client.expect_response("GET", &format!("/{database}/next/f"), None).bytes, b"hello");
    }
    server.assert_no_panic();
    server.stop();
    server.check();
}

/// Found by the same test: a replication that made progress with each attempt was retried at growing intervals.
#[test]
fn progress_resets_the_retry_interval() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start(directory.path(), &["--durability", "none", "--replicator-retry-wait", "1s"]);
    let mut client = server.client();
    client.expect_success("PUT", "/db", None);
    for number in 0..9 {
        let attached = json!({"_attachments": {"f": {"content_type": "a/b", "data": "aGVsbG8="}}});
        client.expect_success("PUT", &format!("/db/d{number}"), Some(&attached));
    }
    client.expect_success("PUT", "/_replicator", None);
    // The target accepts one document per attempt.
    let (accepted, accepts) = (Mutex::new(BTreeSet::new()), AtomicBool::new(false));
    let slow: Script = Arc::new(move |_, path, body| match path {
        _ if path.contains("/_revs_diff") => {
            accepts.store(true, Ordering::SeqCst);
            let request: Value = serde_json::from_slice(body).unwrap();
            let lacking = request.as_object().unwrap().iter().filter(|(id, _)| !accepted.lock().unwrap().contains(*id));
            Some(Reply::Json(Value::Object(
                lacking.map(|(id, known)| (id.clone(), json!({"missing": known}))).collect(),
            )))
        }
        _ if path.contains("/d") && path.contains("new_edits") && accepts.swap(false, Ordering::SeqCst) => {
            let id = path.split(['/', '?']).nth(2).unwrap().to_owned();
            accepted.lock().unwrap().insert(id);
            None
        }
        _ if path.contains("new_edits") => Some(Reply::Raw(503, String::new(), b"{}".to_vec())),
        _ => None,
    });
    let wanted = json!({"source": "db", "target": format!("http://{}/db", peer(slow)), "continuous": true});
    client.expect_success("PUT", "/_replicator/push", Some(&wanted));
    let mut reported = Value::Null;
    wait_until("five failures", Duration::from_secs(120), || {
        reported = client.expect_success("GET", "/_scheduler/docs/_replicator/push", None);
        reported["error_count"].as_u64() >= Some(5) && !reported["retry_at"].is_null()
    });
    // Check the reported pause instead of waiting for it; without the reset it would be 16 seconds.
    let second = |time: &Value| time.as_str().unwrap()[17..19].parse::<u64>().unwrap();
    let pause = (60 + second(&reported["retry_at"]) - second(&reported["history"][0]["timestamp"])) % 60;
    assert_eq!(pause, 1, "{reported}");
    server.assert_no_panic();
    server.stop();
}

/// The lag of a replication is what its target has not taken yet, and it is shown while the target waits.
#[test]
fn lag_is_shown_while_the_target_takes_its_time() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start(directory.path(), &["--durability", "none"]);
    let mut client = server.client();
    client.expect_success("PUT", "/db", None);
    for number in 0..9 {
        client.expect_success("PUT", &format!("/db/d{number}"), Some(&json!({})));
    }
    // The target answers for one batch, then waits. It keeps the checkpoint.
    let (asked, is_open) = (AtomicBool::new(false), Arc::new(AtomicBool::new(false)));
    let (gate, checkpoint) = (is_open.clone(), Mutex::new(None::<Vec<u8>>));
    let waiting: Script = Arc::new(move |method, path, body| {
        if path.contains("/_local/") {
            let mut checkpoint = checkpoint.lock().unwrap();
            return match method {
                "PUT" => {
                    *checkpoint = Some(body.to_vec());
                    None
                }
                _ => checkpoint.as_deref().map(raw),
            };
        }
        path.contains("/_revs_diff").then(|| {
            if asked.swap(true, Ordering::SeqCst) {
                wait_until("the gate opens", TIMEOUT, || gate.load(Ordering::SeqCst));
            }
            Reply::Json(json!({}))
        })
    });
    let target = format!("http://{}/db", peer(waiting));
    let wanted = json!({"source": "db", "target": target, "continuous": true, "worker_batch_size": 2});
    let id = client.expect_success("POST", "/_replicate", Some(&wanted))["_local_id"].clone();
    let mut expect_lag = |count: u64| {
        wait_until(&format!("{count} changes are pending"), TIMEOUT, || {
            client.expect_success("GET", "/_scheduler/jobs", None)["jobs"][0]["info"]["changes_pending"] == count
        });
        let line = format!("stemma_replication_changes_pending{{job={id}}} {count}\n");
        let page = client.expect_response("GET", "/_node/_local/_prometheus", None);
        assert!(String::from_utf8_lossy(&page.bytes).contains(&line), "{line}");
    };
    expect_lag(7);
    is_open.store(true, Ordering::SeqCst);
    expect_lag(0);
    server.stop();
}
