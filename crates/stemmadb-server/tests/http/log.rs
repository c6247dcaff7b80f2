//! `_log`: the last lines of the log, new ones as they are written, and who may read them.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stemmadb_server::{Log, Logging};

use crate::client::{Response, TestServer, basic};

/// A server whose process has a log. Tests of this process share the log, and other tests write lines, too.
fn logging_server() -> TestServer {
    static LOGGING: OnceLock<Logging> = OnceLock::new();
    LOGGING.get_or_init(|| Log::default().install(std::io::sink()).unwrap());
    TestServer::new()
}

fn lines(answer: &Response) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
}

/// The number of the newest line.
fn newest(server: &TestServer) -> u64 {
    server.get("/_up");
    let started = Instant::now();
    loop {
        if let Some(line) = lines(&server.get("/_log?limit=1")).first() {
            return line["seq"].as_u64().unwrap();
        }
        assert!(started.elapsed() < Duration::from_secs(60), "nothing is logged");
    }
}

/// The line about a request, which is written after the response was sent.
fn line_about(server: &TestServer, query: &str, answer: &Response) -> Value {
    let (id, started) = (answer.header("x-couch-request-id").unwrap(), Instant::now());
    loop {
        let lines = lines(&server.get(&format!("/_log?{query}")));
        if let Some(line) = lines.into_iter().find(|line| line["fields"]["id"] == id) {
            return line;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "the request is not logged");
    }
}

#[test]
fn last_lines_are_returned_by_number_level_and_limit() {
    let server = logging_server();
    server.database("db", &[]);
    let since = newest(&server);
    let asked = server.get("/db/none?rev=1-hush&attachments=hush");
    assert_eq!(asked.status, 400, "{asked:?}");
    let line = line_about(&server, &format!("since={since}&limit=100000"), &asked);
    let fields = &line["fields"];
    assert_eq!(
        (&line["level"], &line["target"], &line["message"], &fields["method"], &fields["route"], &fields["status"]),
        (&json!("INFO"), &json!("stemma::request"), &json!(""), &json!("GET"), &json!("/{db}/{doc}"), &json!(400))
    );
    assert!(line["time"].as_str().unwrap().ends_with('Z') && fields["ms"].as_f64().unwrap() > 0.0, "{line}");
    assert!(fields.get("reason").is_none() && !line.to_string().contains("hush"), "{line}");
    assert!(line["seq"].as_u64().unwrap() > since);

    let two = lines(&server.get("/_log?limit=2"));
    let numbers: Vec<_> = two.iter().map(|line| line["seq"].as_u64().unwrap()).collect();
    assert!(numbers.len() == 2 && numbers[0] < numbers[1], "{numbers:?}");
    assert!(lines(&server.get("/_log?since=now")).is_empty());
    assert!(lines(&server.get("/_log?limit=0")).is_empty());
    for line in lines(&server.get("/_log?level=warn")) {
        assert!(["WARN", "ERROR"].contains(&line["level"].as_str().unwrap()), "{line}");
    }
    let answer = server.get("/_log");
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
    assert!((2..=1000).contains(&lines(&answer).len()));
}

#[test]
fn malformed_requests_for_the_log_are_refused_with_a_reason() {
    let server = TestServer::new();
    for (query, reason) in [
        ("lines=3", "GET /_log has no parameter `lines`; it has `level`, `limit`, `since`, `feed`, `heartbeat`"),
        ("level=off", "`level` must be error, warn, info, or debug"),
        ("level=INFO", "`level` must be error, warn, info, or debug"),
        ("feed=longpoll", "`feed` must be normal, continuous, or eventsource"),
        ("feed=", "`feed` must be normal, continuous, or eventsource"),
        ("since=yesterday", "`since` must be the `seq` of a line"),
        ("limit=-1", "limit"),
        ("feed=continuous&heartbeat=often", "heartbeat"),
    ] {
        let answer = server.get(&format!("/_log?{query}"));
        assert_eq!(answer.status, 400, "{query}: {answer:?}");
        assert!(answer.json()["reason"].as_str().unwrap().contains(reason), "{query}: {}", answer.text);
    }
    assert_eq!(server.post("/_log", &json!({})).status, 405);
}

/// An open feed of the log.
struct LogFeed(BufReader<TcpStream>);

impl LogFeed {
    fn open(server: &TestServer, query: &str, headers: &str) -> Self {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let head = format!("GET /_log?{query} HTTP/1.0\r\n{headers}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut feed = LogFeed(BufReader::new(stream));
        let status = feed.line().unwrap();
        assert!(status.contains(" 200"), "{query}: {status}");
        while feed.line().is_some_and(|line| !line.is_empty()) {}
        feed
    }

    /// The next line without its end; `None` once the response has ended.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        // A feed whose client loses its rights is cut off.
        let length = self.0.read_line(&mut line).unwrap_or(0);
        (length > 0).then(|| line.trim_end().to_owned())
    }

    /// The next line about a request, and its id as an event, if it has one.
    fn line_about(&mut self, answer: &Response) -> (Value, Option<String>) {
        let (id, mut event) = (answer.header("x-couch-request-id").unwrap(), None);
        loop {
            let line = self.line().expect("the feed goes on");
            match line.strip_prefix("id: ") {
                Some(id) => event = Some(id.to_owned()),
                None if line.contains(id) => {
                    return (serde_json::from_str(line.trim_start_matches("data: ")).unwrap(), event);
                }
                None => {}
            }
        }
    }
}

#[test]
fn new_lines_are_streamed_with_heartbeats_and_feeds_resume() {
    let server = logging_server();
    let authorization = format!("Authorization: {}", basic("admin", "secret"));
    let mut feed = LogFeed::open(&server, "feed=continuous&since=now&heartbeat=50", &authorization);
    let first = server.get("/_up");
    let (line, _) = feed.line_about(&first);
    assert_eq!(line["fields"]["route"], "/_up");
    // Other tests write lines, so that heartbeats are seen with a level of which there are none.
    let mut quiet = LogFeed::open(&server, "feed=continuous&since=now&level=error&heartbeat=50", &authorization);
    assert_eq!((quiet.line().as_deref(), quiet.line().as_deref()), (Some(""), Some("")));

    let mut events = LogFeed::open(&server, "feed=eventsource&since=now", &authorization);
    let second = server.get("/_up");
    let (line, id) = events.line_about(&second);
    assert_eq!(line["seq"].to_string(), id.unwrap());
    drop(events);
    // A client that reconnects gets the lines in between.
    let third = server.get("/_session");
    let resuming = format!("{authorization}\r\nLast-Event-ID: {}", line["seq"]);
    let mut events = LogFeed::open(&server, "feed=eventsource&since=now&limit=100000", &resuming);
    let (resumed, _) = events.line_about(&third);
    assert!(resumed["seq"].as_u64() > line["seq"].as_u64());
    assert_eq!(feed.line_about(&third).0, resumed);
}

#[test]
fn feed_of_the_log_ends_with_the_rights_of_its_client() {
    let server = logging_server();
    let made = server.post("/_tokens", &json!({"name": "watcher", "roles": ["_admin"]})).json();
    let authorization = format!("Authorization: Bearer {}", made["token"].as_str().unwrap());
    let mut feed = LogFeed::open(&server, "feed=continuous&heartbeat=50", &authorization);
    assert!(feed.line().is_some());
    assert_eq!(server.delete("/_tokens/watcher").status, 200);
    let started = Instant::now();
    while feed.line().is_some() {
        assert!(started.elapsed() < Duration::from_secs(60), "the feed goes on");
    }
}
