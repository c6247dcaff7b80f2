//! The log has a line for each request, with the id of its response, and never contains a secret.

#[path = "http/client.rs"]
#[expect(dead_code, reason = "the other tests' client, of which this needs a part")]
mod client;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stemmadb_server::{Config, Format, JwtAlgorithm, JwtKey, Level, Log, route_descriptions};

use client::{TestServer, basic};

/// Captured log output.
#[derive(Clone, Default)]
struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl CapturedLog {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// The lines about requests, by request id.
    fn requests(&self) -> BTreeMap<String, Value> {
        let text = self.text();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|_| panic!("{line}")));
        let requests = lines.filter(|line| line["target"] == "stemma::request");
        requests.map(|line| (line["id"].as_str().unwrap().to_owned(), line)).collect()
    }

    /// The line about the request with this id. It is written after the response was sent, so possibly after it was
    /// read.
    fn request(&self, id: &str) -> Value {
        let started = Instant::now();
        loop {
            if let Some(line) = self.requests().remove(id) {
                return line;
            }
            assert!(started.elapsed() < Duration::from_secs(60), "{id} is never logged:\n{}", self.text());
            std::thread::yield_now();
        }
    }
}

/// A single test, because a process has one log.
#[test]
fn log_has_every_request_and_no_secret() {
    let written = CapturedLog::default();
    let logging = Log { level: Level::Debug, format: Format::Json }.install(written.clone()).unwrap();
    let jwt =
        JwtKey { id: None, algorithm: JwtAlgorithm::Hs256, key: b"hush-key of at least thirty-two bytes".to_vec() };
    let server = TestServer::with(|config| Config { jwt_keys: vec![jwt.clone()], ..config });
    server.database("_users", &[]);
    server.database("db", &[json!({"_id": "d"})]);
    let user = json!({"name": "ann", "type": "user", "roles": [], "password": "hush-ann"});
    assert_eq!(server.put("/_users/org.couchdb.user:ann", &user).status, 201);

    // A line contains the request, the user, and the outcome.
    let answer = server.ask_as(client::ADMIN, "GET", "/db/d?revs=true", None);
    let line = written.request(answer.header("x-couch-request-id").unwrap());
    assert_eq!(
        (&line["method"], &line["route"], &line["status"], &line["user"], &line["bytes"], &line["level"]),
        (&json!("GET"), &json!("/{db}/{doc}"), &json!(200), &json!("admin"), &json!(answer.text.len()), &json!("INFO"))
    );
    assert!(line["ms"].as_f64().unwrap() > 0.0 && line["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    let refused = server.ask_as(Some(("ann-hush", "hush")), "GET", "/db/d", None);
    let line = written.request(refused.header("x-couch-request-id").unwrap());
    assert_eq!((&line["status"], &line["user"], &line["error"]), (&json!(401), &Value::Null, &json!("unauthorized")));

    // Secrets in every possible position, at every route.
    let log_in = json!({"name": "ann", "password": "hush-ann"}).to_string();
    let session = server.send("POST", "/_session", &[("Content-Type", "application/json")], log_in.as_bytes());
    let cookie = session.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let made = server.post("/_tokens", &json!({"name": "t", "roles": ["_admin"]})).json();
    let token = made["token"].as_str().unwrap().to_owned();
    let claims = json!({"sub": "ann", "exp": 4_000_000_000_u64});
    let signed = jsonwebtoken::encode(&Default::default(), &claims, &jsonwebtoken::EncodingKey::from_secret(&jwt.key));
    let signed = signed.unwrap();
    let right =
        [basic("ann", "hush-ann"), basic("admin", "secret"), format!("Bearer {token}"), format!("Bearer {signed}")];
    let wrong = [
        basic("hush-name", "hush-wrong"),
        "Bearer stemma_hush_hush".to_owned(),
        "Bearer hush.hush.hush".to_owned(),
        "hush".to_owned(),
    ];
    let mut ids = Vec::new();
    for route in route_descriptions() {
        if route.path.ends_with("_updates") || (route.method == "DELETE" && route.path == "/_tokens/{token}") {
            continue;
        }
        let path = route.path.replace("{db}", "hush-db").replace(['{', '}', '*'], "");
        let path = format!("{path}?password=hush-query&token=hush-query&since=hush&limit=hush-number");
        for credentials in right.iter().chain(&wrong) {
            let headers = [
                ("Authorization", credentials.as_str()),
                ("Cookie", &cookie),
                ("Content-Type", "application/json"),
                ("X-Hush", "hush-header"),
                ("Referer", "http://localhost/?hush-referer"),
            ];
            let answer = server.send(route.method, &path, &headers, b"{\"password\": \"hush-body\", \"x\": hush}");
            ids.push(answer.header("x-couch-request-id").unwrap_or_default().to_owned());
        }
    }
    // Background work of the server: a replication with a password to an address that can't be reached.
    let unreachable = "http://hush-user:hush-remote@127.0.0.1:1/db?hush-query";
    let replication = json!({"source": "db", "target": unreachable});
    assert_eq!(server.post("/_replicate", &replication).status, 400);
    let unreachable = "http://hush-user:hush-remote@127.0.0.1:1/db";
    assert_eq!(server.post("/_replicate", &json!({"source": "db", "target": unreachable})).status, 500);
    let remote = json!({"source": {"url": "http://127.0.0.1:1/db", "headers": {"Authorization": "hush-header"}},
        "target": "db"});
    assert_ne!(server.post("/_replicate", &remote).status, 200);
    let admin = json!("hush-admin");
    assert_eq!(server.put("/_node/_local/_config/admins/ada", &admin).status, 200);

    assert!(ids.len() > 500);
    for id in &ids {
        written.request(id);
    }
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "ids are unique");
    let kept_text = server.get("/_log?limit=1000000").text;
    drop((server, logging));
    let text = written.text();
    let secrets = ["hush", "secret", cookie.split('=').nth(1).unwrap(), &token, &signed];
    let reported: Vec<_> = text.lines().filter(|line| secrets.iter().any(|secret| line.contains(secret))).collect();
    assert!(reported.is_empty(), "{} lines with secrets: {:#?}", reported.len(), &reported[..reported.len().min(5)]);
    assert!(!text.contains(&basic("admin", "secret")["Basic ".len()..]));

    // `_log` has the last of the same lines.
    let identity = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let fields = if line["fields"].is_object() { &line["fields"] } else { &line };
        json!([line["level"], line["target"], fields["id"], fields["status"], fields["ms"], fields["bytes"]])
            .to_string()
    };
    let written: BTreeSet<_> = text.lines().map(identity).collect();
    let kept: Vec<_> = kept_text.lines().map(identity).collect();
    assert!(kept.len() > 500, "{} lines", kept.len());
    let others: Vec<_> = kept.iter().filter(|line| !written.contains(*line)).collect();
    assert!(others.is_empty(), "lines that only `_log` has: {others:#?}");
    for secret in &secrets {
        assert!(!kept_text.contains(secret), "{secret} is in `_log`");
    }
}
