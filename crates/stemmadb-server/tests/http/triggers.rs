//! Webhooks and trigger functions.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use stemmadb_server::{Administrator, Config, Replicator, Server, Triggers};

use crate::client::{TestServer, basic};

const TIMEOUT: Duration = Duration::from_secs(60);
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A request that a receiver got.
struct Received {
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Received {
    fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str()).unwrap_or_else(|| panic!("no header {name}"))
    }

    fn event(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// Receives requests and answers each with the status that `answer` returns.
fn receiver(mut answer: impl FnMut(&Received) -> u16 + Send + 'static) -> (SocketAddr, Receiver<Received>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, received) = channel();
    std::thread::spawn(move || {
        'connections: for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let mut lines = Vec::new();
            loop {
                let mut line = String::new();
                // A server that is killed cuts its request.
                if !matches!(reader.read_line(&mut line), Ok(1..)) {
                    continue 'connections;
                }
                if line == "\r\n" {
                    break;
                }
                lines.push(line.trim_end().to_owned());
            }
            let headers: Vec<(String, String)> = lines
                .iter()
                .filter_map(|line| line.split_once(": "))
                .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
                .collect();
            let length = headers.iter().find(|(name, _)| name == "content-length");
            let mut body = vec![0; length.map_or(0, |(_, length)| length.parse().unwrap())];
            if reader.read_exact(&mut body).is_err() {
                continue;
            }
            let request = Received { headers, body };
            let status = answer(&request);
            // The test may have ended.
            if sender.send(request).is_err() {
                return;
            }
            let head = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            reader.get_mut().write_all(head.as_bytes()).ok();
        }
    });
    (address, received)
}

fn server() -> TestServer {
    let wait = Duration::from_millis(5);
    let triggers = Triggers { retry_wait: wait, retry_wait_max: wait, ..Triggers::default() };
    TestServer::with(|config| Config { triggers, ..config })
}

fn define(server: &TestServer, name: &str, definition: Value) {
    let defined = server.put(&format!("/shop/_triggers/{name}"), &definition);
    assert_eq!(defined.status, 201, "{}", defined.text);
}

fn state(server: &TestServer, name: &str) -> Value {
    server.get(&format!("/shop/_triggers/{name}")).json()
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < TIMEOUT, "waiting for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn put(server: &TestServer, id: &str, mut body: Value) {
    let known = server.get(&format!("/shop/{id}"));
    if known.status == 200 {
        body["_rev"] = known.json()["_rev"].clone();
    }
    assert_eq!(server.put(&format!("/shop/{id}"), &body).status, 201);
}

#[test]
fn webhook_sends_signed_changes_in_order_and_repeats_failed_ones() {
    let server = server();
    server.database("shop", &[json!({"_id": "before", "state": "paid"})]);
    let mut refusals = 2;
    let (address, received) = receiver(move |request| {
        if request.event()["id"] != "b" || refusals == 0 {
            return 204;
        }
        refusals -= 1;
        500
    });
    let url = format!("http://{address}/hook?x=1");
    define(&server, "mailer", json!({"url": url, "secret": SECRET, "selector": {"state": "paid"}}));
    for (id, state) in [("a", "paid"), ("open", "open"), ("b", "paid"), ("c", "paid")] {
        put(&server, id, json!({"state": state, "total": 30}));
    }
    let mut ids = Vec::new();
    for expected in ["a", "b", "b", "b", "c"] {
        let request = received.recv_timeout(TIMEOUT).unwrap();
        let event = request.event();
        assert_eq!((event["id"].as_str(), event["type"].as_str()), (Some(expected), Some("change")));
        assert_eq!(
            (&event["database"], &event["trigger"], &event["deleted"]),
            (&json!("shop"), &json!("mailer"), &json!(false))
        );
        assert_eq!((&event["doc"]["_id"], &event["doc"]["total"]), (&json!(expected), &json!(30)));
        assert_eq!(event["rev"], event["doc"]["_rev"]);
        // The receiver verifies the signature over the id, the time and the body.
        let (id, time) = (request.header("webhook-id"), request.header("webhook-timestamp"));
        let key = BASE64_STANDARD.decode(SECRET.strip_prefix("whsec_").unwrap()).unwrap();
        let mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
        let signed = mac.chain_update(format!("{id}.{time}.")).chain_update(&request.body).finalize().into_bytes();
        assert_eq!(request.header("webhook-signature"), format!("v1,{}", BASE64_STANDARD.encode(signed)));
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert!(time.parse::<u64>().unwrap().abs_diff(now) < 120);
        ids.push(id.to_owned());
    }
    assert!(ids[1] == ids[2] && ids[2] == ids[3], "attempts have one id: {ids:?}");
    assert!(ids[0] != ids[1] && ids[3] != ids[4], "{ids:?}");
    wait_for("the last call", || state(&server, "mailer")["status"]["handled"] == 3);
    let shown = state(&server, "mailer");
    assert_eq!((&shown["status"]["failures"], &shown["status"]["state"]), (&json!(2), &json!("running")));
    assert_eq!((shown.get("secret"), shown["url"].as_str()), (None, Some(url.as_str())));
    assert!(!server.get("/shop/_triggers").text.contains("MfKQ9r8"), "the secret is listed");
    // A deletion is a change as well; it is sent without a document.
    define(&server, "all", json!({"url": url, "secret": SECRET, "paths": ["_id/c"]}));
    let revision = server.get("/shop/c").json()["_rev"].as_str().unwrap().to_owned();
    assert_eq!(server.delete(&format!("/shop/c?rev={revision}")).status, 200);
    let event = received.recv_timeout(TIMEOUT).unwrap().event();
    assert_eq!((&event["id"], &event["deleted"], &event["doc"]), (&json!("c"), &json!(true), &json!(null)));
    // A deleted trigger sends nothing more.
    assert_eq!(server.delete("/shop/_triggers/mailer").status, 200);
    assert_eq!(server.delete("/shop/_triggers/mailer").status, 404);
    put(&server, "d", json!({"state": "paid"}));
    put(&server, "c", json!({"state": "open"}));
    assert_eq!(received.recv_timeout(TIMEOUT).unwrap().event()["id"], "c");
}

#[test]
fn webhook_continues_at_its_position_after_a_restart() {
    let mut server = server();
    server.database("shop", &[]);
    let (address, received) = receiver(|_| 200);
    let definition = json!({"url": format!("http://{address}/"), "secret": SECRET});
    define(&server, "mailer", definition.clone());
    put(&server, "a", json!({}));
    assert_eq!(received.recv_timeout(TIMEOUT).unwrap().event()["id"], "a");
    wait_for("the position", || state(&server, "mailer")["status"]["handled"] == 1);
    server.restart();
    put(&server, "b", json!({}));
    assert_eq!(received.recv_timeout(TIMEOUT).unwrap().event()["id"], "b", "a is not sent again");
    // Defined again, it keeps its position.
    let (other, elsewhere) = receiver(|_| 200);
    define(&server, "mailer", json!({"url": format!("http://{other}/"), "secret": SECRET}));
    put(&server, "c", json!({}));
    let mut id = elsewhere.recv_timeout(TIMEOUT).unwrap().event()["id"].clone();
    if id == "b" {
        // Its position was not stored when the trigger was replaced.
        id = elsewhere.recv_timeout(TIMEOUT).unwrap().event()["id"].clone();
    }
    assert_eq!(id, "c");
    // A new database of the same name does not inherit it.
    assert_eq!(server.delete("/shop").status, 200);
    server.database("shop", &[]);
    server.restart();
    wait_for("the trigger of the deleted database", || server.get("/shop/_triggers").json()["triggers"] == json!({}));
    assert_eq!(server.get("/shop/_triggers/mailer").status, 404);
}

#[test]
fn failed_changes_become_dead_letters_and_are_redelivered() {
    let server = server();
    server.database("shop", &[]);
    server.database("letters", &[]);
    let works = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_repaired = works.clone();
    let (address, received) = receiver(move |request| {
        let fails = request.event()["id"].as_str().unwrap().starts_with("bad");
        if fails && !is_repaired.load(std::sync::atomic::Ordering::SeqCst) { 503 } else { 200 }
    });
    let url = format!("http://{address}/");
    define(&server, "hook", json!({"url": url, "secret": SECRET, "attempts": 3, "dead_letters": "letters"}));
    for id in ["bad-1", "good", "bad-2"] {
        put(&server, id, json!({"n": 1}));
    }
    wait_for("dead letters", || state(&server, "hook")["status"]["dead_letters"] == 2);
    assert_eq!(received.try_iter().count(), 7, "three attempts for each bad one");
    let letter = server.get("/letters/shop%2Fhook%2Fbad-1").json();
    assert_eq!(
        (&letter["document"], &letter["attempts"], &letter["trigger"]),
        (&json!("bad-1"), &json!(3), &json!("hook"))
    );
    assert!(letter["error"].as_str().unwrap().contains("503"), "{letter}");
    let again = server.post("/shop/_triggers/hook/_redeliver", &json!({})).json();
    assert_eq!((&again["ok"], &again["redelivered"], &again["failed"]), (&json!(false), &json!(0), &json!(2)));
    works.store(true, std::sync::atomic::Ordering::SeqCst);
    put(&server, "good", json!({"n": 2}));
    received.try_iter().count();
    let one = server.post("/shop/_triggers/hook/_redeliver", &json!({"id": "bad-2"})).json();
    assert_eq!((&one["ok"], &one["redelivered"]), (&json!(true), &json!(1)));
    assert_eq!(server.get("/letters/shop%2Fhook%2Fbad-2").status, 404);
    assert_eq!(server.send_as_admin("POST", "/shop/_triggers/hook/_redeliver", &[], b"").json()["redelivered"], 1);
    assert_eq!(server.get("/letters").json()["doc_count"], 0);
    // Without its database, a dead letter can't be stored, so the change is not skipped.
    works.store(false, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(server.delete("/letters").status, 200);
    put(&server, "bad-3", json!({}));
    wait_for("more attempts", || state(&server, "hook")["status"]["attempts"].as_u64().unwrap() > 5);
    assert_eq!(state(&server, "hook")["status"]["state"], "failing");
    server.database("letters", &[]);
    wait_for("the dead letter", || server.get("/letters/shop%2Fhook%2Fbad-3").status == 200);
}

#[test]
fn unsuitable_definitions_are_refused() {
    let hosts = vec!["127.0.0.1".to_owned(), "169.254.169.254".to_owned()];
    let server = TestServer::with(|config| Config { replicator: Replicator { hosts, ..config.replicator }, ..config });
    server.database("shop", &[]);
    server.database("letters", &[]);
    let url = "http://127.0.0.1:1/";
    let refuses = |status: u16, reason: &str, definition: Value| {
        let answer = server.put("/shop/_triggers/t", &definition);
        assert_eq!(answer.status, status, "{definition}: {}", answer.text);
        assert!(answer.json()["reason"].as_str().unwrap().contains(reason), "{}", answer.text);
    };
    refuses(400, "`url`", json!({}));
    refuses(400, "`url`", json!({"url": url, "function": "a/b", "secret": SECRET}));
    refuses(400, "`secret`", json!({"url": url}));
    refuses(400, "16 bytes", json!({"url": url, "secret": "short"}));
    refuses(400, "http or https", json!({"url": "ftp://127.0.0.1/", "secret": SECRET}));
    refuses(400, "http or https", json!({"url": "file:///etc/passwd", "secret": SECRET}));
    refuses(400, "http or https", json!({"url": "http://user:pass@127.0.0.1/", "secret": SECRET}));
    refuses(403, "replicator.hosts", json!({"url": "http://example.org/", "secret": SECRET}));
    refuses(403, "no server's address", json!({"url": "http://169.254.169.254/latest", "secret": SECRET}));
    refuses(400, "needs `attempts`", json!({"url": url, "secret": SECRET, "dead_letters": "letters"}));
    refuses(400, "needs `dead_letters`", json!({"url": url, "secret": SECRET, "attempts": 2}));
    refuses(400, "create it first", json!({"url": url, "secret": SECRET, "attempts": 2, "dead_letters": "none"}));
    refuses(400, "another database", json!({"url": url, "secret": SECRET, "attempts": 2, "dead_letters": "shop"}));
    refuses(400, "", json!({"url": url, "secret": SECRET, "selector": {"$no": 1}}));
    refuses(400, "", json!({"url": url, "secret": SECRET, "paths": ["#/a"]}));
    refuses(400, "instances", json!({"url": url, "secret": SECRET, "instances": "x"}));
    let definition = json!({"url": url, "secret": SECRET});
    assert_eq!(server.put("/shop/_triggers/a%20b", &definition).status, 400);
    assert_eq!(server.put("/none/_triggers/t", &definition).status, 404);
    assert_eq!(server.post("/shop/_triggers/t/_redeliver", &json!({})).status, 404);
}

#[test]
fn trigger_function_writes_the_documents_that_it_returns() {
    let mut server = server();
    server.database("shop", &[]);
    server.database("letters", &[]);
    let function = "function (doc, event) {
        if (event.deleted) return {_id: 'log/' + event.id, gone: true};
        if (doc.bad) throw new Error('it is bad');
        return [{_id: 'log/' + event.id, total: doc.total, seen: event.rev}, {_id: 'last', order: event.id}];
    }";
    server.design("shop", "orders", json!({"triggers": {"log": function, "none": "function () { return null; }"}}));
    let definition = json!({
        "function": "orders/log", "paths": ["_id/order/+"], "attempts": 2, "dead_letters": "letters", "since": 0,
    });
    define(&server, "log", definition);
    put(&server, "order%2F1", json!({"total": 30}));
    wait_for("what the function writes", || server.get("/shop/log%2Forder%2F1").status == 200);
    let written = server.get("/shop/log%2Forder%2F1").json();
    assert_eq!((&written["total"], written["seen"].as_str().unwrap().starts_with("1-")), (&json!(30), true));
    assert_eq!(server.get("/shop/last").json()["order"], "order/1");
    put(&server, "order%2F1", json!({"total": 40}));
    wait_for("the newer state", || server.get("/shop/log%2Forder%2F1").json()["total"] == 40);
    put(&server, "order%2F2", json!({"bad": true}));
    wait_for("the dead letter", || server.get("/letters/shop%2Flog%2Forder%2F2").status == 200);
    let letter = server.get("/letters/shop%2Flog%2Forder%2F2").json();
    assert!(letter["error"].as_str().unwrap().contains("it is bad"), "{letter}");
    let revision = server.get("/shop/order%2F1").json()["_rev"].as_str().unwrap().to_owned();
    assert_eq!(server.delete(&format!("/shop/order%2F1?rev={revision}")).status, 200);
    wait_for("the deletion", || server.get("/shop/log%2Forder%2F1").json()["gone"] == true);
    server.restart();
    put(&server, "order%2F3", json!({"total": 7}));
    wait_for("a call after the restart", || server.get("/shop/log%2Forder%2F3").json()["total"] == 7);
    // What is stored already is not written again: a function that handles its own documents comes to an end.
    server.design("shop", "loop", json!({"triggers": {"same": "function (doc) { return {_id: 'same', n: 1}; }"}}));
    define(&server, "loop", json!({"function": "loop/same", "selector": {"n": 1}, "since": 0}));
    put(&server, "x", json!({"n": 1}));
    wait_for("its end", || {
        let status = state(&server, "loop")["status"].clone();
        status["handled"].as_u64() >= Some(2) && server.get("/shop/same").status == 200
    });
    assert!(server.get("/shop/same").json()["_rev"].as_str().unwrap().starts_with("1-"));
}

#[test]
fn only_server_administrators_define_triggers() {
    let server = server();
    server.database("_users", &[]);
    let boss = json!({"name": "boss", "type": "user", "roles": [], "password": "boss's"});
    assert_eq!(server.put("/_users/org.couchdb.user:boss", &boss).status, 201);
    server.database("shop", &[]);
    let security = json!({"admins": {"names": ["boss"], "roles": []}, "members": {"names": ["boss"], "roles": []}});
    assert_eq!(server.put("/shop/_security", &security).status, 200);
    let definition = json!({"url": "http://127.0.0.1:1/", "secret": SECRET});
    let boss = Some(("boss", "boss's"));
    assert_eq!(server.ask_as(boss, "PUT", "/shop/_triggers/t", Some(&definition)).status, 403);
    define(&server, "t", definition);
    assert_eq!(server.ask_as(boss, "GET", "/shop/_triggers/t", None).status, 200);
    assert_eq!(server.ask_as(boss, "DELETE", "/shop/_triggers/t", None).status, 403);
}

/// Starts the server of [`a_webhook_survives_kills`], a process of its own that ends with the test.
#[test]
#[ignore = "it is a process of another test"]
fn server_to_be_killed() {
    let Ok(directory) = std::env::var("STEMMA_TEST_KILLED") else { return };
    let directory = std::path::PathBuf::from(directory);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let wait = Duration::from_millis(5);
    let administrator = Administrator { name: "admin".to_owned(), password: "secret".to_owned() };
    let config = Config {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        administrator: Some(administrator),
        triggers: Triggers { retry_wait: wait, retry_wait_max: wait, ..Triggers::default() },
        ..Config::new(directory.join("databases"))
    };
    let server = runtime.block_on(Server::start(config)).unwrap();
    std::fs::write(directory.join("unfinished"), server.address().to_string()).unwrap();
    std::fs::rename(directory.join("unfinished"), directory.join("address")).unwrap();
    // The pipe is closed when the test ends.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    std::process::exit(0);
}

/// A server in a process of its own.
struct KilledServer {
    process: std::process::Child,
    address: SocketAddr,
}

impl KilledServer {
    fn start(directory: &std::path::Path) -> Self {
        std::fs::remove_file(directory.join("address")).ok();
        let process = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["triggers::server_to_be_killed", "--exact", "--ignored", "--nocapture"])
            .env("STEMMA_TEST_KILLED", directory)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut address = None;
        wait_for("the server's address", || {
            address = std::fs::read_to_string(directory.join("address")).ok();
            address.is_some()
        });
        KilledServer { process, address: address.unwrap().parse().unwrap() }
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for KilledServer {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// The status and body of a response; `None` if the server is gone.
fn request(address: SocketAddr, method: &str, path: &str, body: &Value) -> Option<(u16, String)> {
    let mut stream = std::net::TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    let (body, credentials) = (body.to_string(), basic("admin", "secret"));
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: {credentials}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    Some((head.get(9..12)?.parse().ok()?, body.to_owned()))
}

#[test]
fn a_webhook_survives_kills() {
    const KILLS: u64 = 6;
    let directory = tempfile::tempdir().unwrap();
    // What each document was when it was last delivered.
    let delivered = Arc::new(Mutex::new(BTreeMap::<String, u64>::new()));
    let (noted, mut request_count) = (delivered.clone(), 0);
    let (receiver_address, _received) = receiver(move |received| {
        request_count += 1;
        if request_count % 7 == 0 {
            return 500;
        }
        let event = received.event();
        let (id, number) = (event["id"].as_str().unwrap().to_owned(), event["doc"]["n"].as_u64().unwrap());
        let previous = noted.lock().unwrap().insert(id.clone(), number);
        assert!(previous.is_none_or(|previous| previous <= number), "{id} went back from {previous:?} to {number}");
        200
    });
    let definition = json!({"url": format!("http://{receiver_address}/"), "secret": SECRET});
    let mut acknowledged = BTreeMap::<String, u64>::new();
    for kill in 0..=KILLS {
        let server = KilledServer::start(directory.path());
        let address = server.address;
        if kill == 0 {
            assert_eq!(request(address, "PUT", "/shop", &json!({})).unwrap().0, 201);
            assert_eq!(request(address, "PUT", "/shop/_triggers/hook", &definition).unwrap().0, 201);
        }
        let writer = std::thread::spawn(move || {
            let mut written = Vec::new();
            for number in 0.. {
                let (id, n) = (format!("d{}", number % 5 + kill), kill * 1000 + number);
                // The revision is unknown, so it is written as a replicated one, with a higher generation each time.
                let revision = format!("{}-{:032x}", n + 1, n + 1);
                let body = json!({"new_edits": false, "docs": [{"_id": id, "_rev": revision, "n": n}]});
                match request(address, "POST", "/shop/_bulk_docs", &body) {
                    Some((201, _)) => written.push((id, n)),
                    _ => break,
                }
                if kill == KILLS && number >= 20 {
                    break;
                }
            }
            written
        });
        if kill < KILLS {
            // At different points: before, while and after changes are delivered.
            let count = delivered.lock().unwrap().len();
            let begun = Instant::now();
            while delivered.lock().unwrap().len() <= count && begun.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(2));
            }
            std::thread::sleep(Duration::from_millis(17 * kill));
            server.kill();
            acknowledged.extend(writer.join().unwrap());
            continue;
        }
        acknowledged.extend(writer.join().unwrap());
        assert!(acknowledged.len() > 5, "{acknowledged:?}");
        wait_for("all acknowledged changes", || {
            let delivered = delivered.lock().unwrap();
            acknowledged.iter().all(|(id, n)| delivered.get(id).is_some_and(|known| known >= n))
        });
    }
}
