//! Logs of databases in a real S3 server: of programs, and of servers, as a cold tier.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use stemmadb::{Database, ErrorKind, Options};
use stemmadb_server::{Administrator, Config, ObjectLog, Server};
use tempfile::TempDir;

use crate::gateway::{Gateway, Metadata, variables};
use crate::proxy::{Fault, Proxy};
use crate::{content, insert};

const URL: &str = "s3://backups/archive/orders";

fn log(port: u16) -> Arc<ObjectLog> {
    ObjectLog::open_with(URL, variables(port)).unwrap()
}

fn open(directory: &TempDir, port: u16) -> stemmadb::Result<Database> {
    Database::open_with(directory.path().join("db"), Options::new().log_storage(log(port)))
}

fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn a_log_outlives_its_directory_and_answers_that_are_lost() {
    let Some(gateway) = Gateway::start(Metadata::Kept) else { return };
    let proxy = Proxy::start(gateway.port);
    let first = directory();
    let db = open(&first, proxy.port).unwrap();
    let revision = db.insert("solaris", &json!({"year": 1961})).unwrap();
    // Longer than one object.
    db.files().attach("solaris", &revision, "long", "text/plain", &vec![7; 17 << 20][..]).unwrap();
    for (number, path) in ["/log/segments/", "/log/names/", "/log/contents/"].into_iter().enumerate() {
        proxy.add("PUT", path, Fault::LoseAnswer, 1);
        insert(&db, &format!("lost {number}"));
        let id = format!("lost {number}");
        let revision = *db.get(&id).unwrap().unwrap().revision();
        db.files().attach(&id, &revision, "file", "text/plain", &vec![number as u8; 100_000][..]).unwrap();
    }
    proxy.add("PUT", "/log/segments/", Fault::Late(Duration::from_millis(2500)), 1);
    insert(&db, "too late");
    let before = content(&db);
    let second = directory();
    let next = open(&second, gateway.port).unwrap();
    assert_eq!(content(&next), before);
    let error = db.insert("b", &json!({})).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.message().contains("another process has taken over the log"), "{error}");
    drop(db);
    insert(&next, "after");
    next.maintenance().compact().unwrap();
    assert!(next.maintenance().check().unwrap().is_sound());
    let before = content(&next);
    next.close().unwrap();
    assert_eq!(content(&open(&directory(), gateway.port).unwrap()), before);
    log(gateway.port).delete_all().unwrap();
    assert_eq!(content(&open(&directory(), gateway.port).unwrap()).len(), 0);
}

/// Every request may be the last one that arrives: nothing that was acknowledged is lost. `STEMMA_ALL_STEPS` takes each
/// step, otherwise only some are taken.
#[test]
fn the_connection_to_a_log_may_be_lost_at_each_request() {
    let Some(gateway) = Gateway::start(Metadata::Kept) else { return };
    let proxy = Proxy::start(gateway.port);
    let stride = if std::env::var_os("STEMMA_ALL_STEPS").is_some() { 1 } else { 9 };
    let mut acknowledged = Vec::new();
    for step in (1..).step_by(stride) {
        proxy.fail_after(step);
        let mut is_complete = false;
        if let Ok(db) = open(&directory(), proxy.port) {
            is_complete = (0..8).all(|number| {
                let id = format!("{step}-{number}");
                let is_inserted = db.insert(&id, &json!({})).is_ok();
                acknowledged.extend(is_inserted.then_some(id));
                is_inserted
            });
        }
        proxy.heal();
        let found = content(&open(&directory(), gateway.port).unwrap());
        let lost: Vec<_> = acknowledged.iter().filter(|id| !found.contains_key(*id)).collect();
        assert!(lost.is_empty() && found.len() <= acknowledged.len() + step, "at request {step}: {lost:?}");
        if is_complete {
            assert!(step > 9, "{step} requests");
            break;
        }
    }
}

#[test]
fn a_store_that_ignores_conditions_gets_no_log() {
    let Some(gateway) = Gateway::start(Metadata::None) else { return };
    let error = open(&directory(), gateway.port).err().unwrap();
    assert!(error.message().contains("If-None-Match"), "{error}");
}

/// A server in another process, which has the variables of the store.
struct Served {
    process: Child,
    address: SocketAddr,
    /// Open as long as the process may write to it.
    _output: Lines<BufReader<ChildStdout>>,
}

/// Names the directory of the server that this process is to be.
const SERVED: &str = "STEMMA_TEST_SERVED";

impl Served {
    fn start(directory: &Path, port: u16) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "logs::serves_in_another_process", "--nocapture"]).env(SERVED, directory);
        command.envs(variables(port)).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap()).lines();
        let lines = output.by_ref().map_while(Result::ok);
        let mut addresses = lines.filter_map(|line| Some(line.split_once("ADDRESS ")?.1.to_owned()));
        let address = addresses.next().expect("a server").parse().unwrap();
        drop(addresses);
        Served { process, address, _output: output }
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut stream = TcpStream::connect(self.address).unwrap();
        // admin:secret
        let head = "Host: localhost\r\nConnection: close\r\nAuthorization: Basic YWRtaW46c2VjcmV0\r\n\
                    Content-Type: application/json\r\n";
        write!(stream, "{method} {path} HTTP/1.1\r\n{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        (status, serde_json::from_str(body.trim()).unwrap_or(json!(body)))
    }

    fn get(&self, path: &str) -> Value {
        self.send("GET", path, &Value::Null).1
    }

    fn put(&self, path: &str, body: &Value) {
        let (status, answer) = self.send("PUT", path, body);
        assert_eq!(status, 201, "{path}: {answer}");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        self.process.wait().unwrap();
    }
}

/// Not a test of its own: [`Served`] runs it.
#[test]
fn serves_in_another_process() {
    let Some(directory) = std::env::var_os(SERVED) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let server = runtime.block_on(Server::start(Config {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        administrator: Some(Administrator { name: "admin".to_owned(), password: "secret".to_owned() }),
        ..Config::new(directory)
    }));
    let server = server.unwrap();
    println!("\nADDRESS {}", server.address());
    // The other process closes it.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    runtime.block_on(server.stop());
}

#[test]
fn a_bucket_is_the_cold_tier_of_a_database() {
    let Some(gateway) = Gateway::start(Metadata::Kept) else { return };
    let data = directory();
    let server = Served::start(data.path(), gateway.port);
    for (query, reason) in [
        ("log=orders", "s3://"),
        ("log=s3://", "no valid name"),
        ("log=s3://backups/x&memory=true", "memory"),
        ("log=s3://backups/x&shards=2", "shards"),
    ] {
        let (status, answer) = server.send("PUT", &format!("/cold?{query}"), &Value::Null);
        assert!(status == 400 && answer["reason"].as_str().unwrap().contains(reason), "{query}: {answer}");
    }
    let (status, answer) = server.send("PUT", "/cold?log=s3://nothing/x", &Value::Null);
    assert!(status == 503 && server.get("/cold")["error"] == "not_found", "{status} {answer}");
    server.put("/orders", &Value::Null);
    server.put("/cold?log=s3://backups/cold/", &Value::Null);
    let (status, answer) = server.send("PUT", "/other?log=s3://backups/cold", &Value::Null);
    assert!(status == 400 && answer["reason"].as_str().unwrap().contains("cold"), "{answer}");
    assert_eq!(server.get("/cold")["log"], "s3://backups/cold");
    assert_eq!(server.get("/orders")["log"], Value::Null);
    for number in 0..10 {
        let text = "cold ".repeat(1000);
        server.put(&format!("/orders/d{number}"), &json!({"day": format!("{}-01-01", 2016 + number), "text": text}));
    }
    let policy = json!({"older_than": "1d", "date_field": "day", "only": {"day": {"$lt": "2021"}}});
    let tiers = json!({"paused": true, "tiers": [{"name": "cold", "database": "cold", "policy": policy}]});
    server.put("/orders/_tiers", &tiers);
    let moved = server.send("POST", "/orders/_tiers", &json!({"run": true})).1;
    assert_eq!(moved["result"]["moved"], 5, "{moved}");
    let before = server.get("/orders/d1");
    assert_eq!(before["day"], "2017-01-01");
    drop(server);

    let segments = gateway.directory.path().join("objects/backups/cold/log/segments");
    let files = segments.read_dir().unwrap().flat_map(|file| file.unwrap().path().read_dir().unwrap());
    let bytes: Vec<u8> = files.flat_map(|object| std::fs::read(object.unwrap().path()).unwrap()).collect();
    assert!(bytes.len() > 100, "the bucket has the documents");
    std::fs::remove_dir_all(data.path().join("cold.stemma")).unwrap();
    let server = Served::start(data.path(), gateway.port);
    assert_eq!(server.get("/orders/d1"), before);
    assert_eq!(server.get("/cold")["doc_count"], 5);
    drop(server);

    // Another server, in place of one that is lost.
    let data = directory();
    let server = Served::start(data.path(), gateway.port);
    server.put("/cold?log=s3://backups/cold", &Value::Null);
    assert_eq!(server.get("/cold/d1")["text"], before["text"]);
    assert_eq!(server.send("DELETE", "/cold", &Value::Null).0, 200);
    assert!(segments.read_dir().into_iter().flatten().flatten().all(|file| {
        let objects = file.path().read_dir().unwrap();
        objects.flatten().all(|object| object.metadata().unwrap().len() < 100)
    }));
    server.put("/cold?log=s3://backups/cold", &Value::Null);
    assert_eq!(server.get("/cold")["doc_count"], 0);
}
