//! Requests that are meant to take far more memory than they are long. What a server takes for each is read from `/proc`, from outside.
//!
//! `STEMMA_BOMB_BYTES` says how long they are (7,900,000: just what one document may be), `STEMMA_BOMB_TABLE` where to write the table.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Instant;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::random::setting;
use crate::server::{Server, Taken};

/// So many times its length a request may take.
const FACTOR_MAX: f64 = 8.0;
/// What a database takes of all that is written to it, before it is merged, however it comes: the setting `memory_bytes`.
const WRITTEN_BYTES_MAX: f64 = (24 << 20) as f64;

/// So long one document may be.
const DOCUMENT_BYTES_MAX: usize = 8_000_000;

const JSON: &str = "application/json";

/// A request, and whether it is one that has to be taken.
struct Bomb {
    name: &'static str,
    path: &'static str,
    kind: &'static str,
    body: Vec<u8>,
    /// How long it is, uncompressed.
    byte_count: usize,
    is_ordinary: bool,
}

impl Bomb {
    fn new(name: &'static str, path: &'static str, body: Vec<u8>) -> Self {
        Bomb { name, path, kind: JSON, byte_count: body.len(), body, is_ordinary: false }
    }

    /// What people send: it must be taken, unless it is one document that is too long to be one.
    fn ordinary(self) -> Self {
        Bomb { is_ordinary: self.path != "/db/new" || self.byte_count <= DOCUMENT_BYTES_MAX, ..self }
    }

    fn method(&self) -> &'static str {
        if self.path == "/db/new" { "PUT" } else { "POST" }
    }

    fn writes(&self) -> bool {
        matches!(self.path, "/db/new" | "/db/_bulk_docs")
    }
}

/// `before`, what `unit` makes of ascending numbers until it is long enough, `after`.
fn counted(before: &str, unit: impl Fn(usize) -> String, after: &str, bytes: usize) -> Vec<u8> {
    let mut text = before.to_owned();
    let mut number = 0;
    while text.len() + after.len() < bytes {
        text.push_str(&unit(number));
        number += 1;
    }
    text.push_str(after);
    text.into_bytes()
}

/// The same with one unit over and over.
fn repeated(before: &str, unit: &str, after: &str, bytes: usize) -> Vec<u8> {
    counted(before, |_| unit.to_owned(), after, bytes)
}

fn in_documents(bytes: usize) -> Vec<Bomb> {
    let list = |unit: &str| repeated(r#"{"x":["#, unit, "0]}", bytes);
    let put = |name, body| Bomb::new(name, "/db/new", body);
    let file = |n| format!(r#""{n:x}":{{"data":""}},"#);
    let row = |n| format!(r#"{{"time":"2024-05-01T10:00:{n}Z","value":{n}.5,"sensor":"kitchen"}},"#);
    vec![
        put("one long text", repeated(r#"{"x":""#, &"a".repeat(1000), r#""}"#, bytes)).ordinary(),
        put("text of escapes", repeated(r#"{"x":""#, r"\u0001", r#""}"#, bytes)).ordinary(),
        put("rows of three fields", counted(r#"{"x":["#, row, "0]}", bytes)).ordinary(),
        put("numbers", list("0,")),
        // As dense as may just be.
        put("numbers of five digits", list("12345,")),
        put("names of nine letters", counted("{", |n| format!(r#""{n:09x}":0,"#), r#""last":0}"#, bytes)),
        put("texts of three letters", list(r#""abc","#)),
        put("lists of one", list("[1234567890],")),
        put("empty objects", list("{},")),
        put("small objects", list(r#"{"":0},"#)),
        put("arrays within arrays", list(&format!("{}{},", "[".repeat(90), "]".repeat(90)))),
        put("objects within objects", list(&format!("{}0{},", r#"{"a":"#.repeat(90), "}".repeat(90)))),
        put("names", counted("{", |n| format!(r#""{n:x}":0,"#), r#""last":0}"#, bytes)),
        put("a name twice at the end", counted("{", |n| format!(r#""{n:020}":"{n:060}","#), r#""x":0,"x":0}"#, bytes)),
        put("files without content", counted(r#"{"_attachments":{"#, file, r#""z":{"data":""}}}"#, bytes)),
    ]
}

/// 103 bytes, with the comma: hardly longer than each of so many in one request has to be.
fn small_document(number: usize) -> String {
    let value = 10_000 + number % 90_000;
    format!(
        r#"{{"_id":"reading-{number:016}","value":{value:05},"unit":"kelvin (K)","sensor":"kitchen-1","floor":{}.25}},"#,
        number % 9
    )
}

fn in_lists(bytes: usize) -> Vec<Bomb> {
    let bulk = |name, unit: &dyn Fn(usize) -> String| {
        Bomb::new(name, "/db/_bulk_docs", counted(r#"{"docs":["#, unit, "{}]}", bytes))
    };
    let ids = counted("", |n| format!(r#","{n:x}""#), "]}}]}", bytes);
    let history =
        br#"{"new_edits":false,"docs":[{"_id":"x","_rev":"9999999-a","_revisions":{"start":9999999,"ids":["a""#;
    vec![
        bulk("documents of 103 bytes", &small_document).ordinary(),
        bulk("documents of 70 bytes", &|n| {
            format!(r#"{{"_id":"doc-{n:08}","kind":"reading","n":{n},"text":"a few words"}},"#)
        }),
        bulk("documents of 24 bytes", &|n| format!(r#"{{"_id":"{n:06}","n":{}}},"#, n % 1000)),
        bulk("documents without fields", &|_| "{},".to_owned()),
        bulk("documents of numbers", &|_| format!(r#"{{"x":[{}0]}},"#, "0,".repeat(1000))),
        Bomb::new("revisions", "/db/_bulk_docs", [&history[..], &ids].concat()),
    ]
}

fn in_questions(bytes: usize) -> Vec<Bomb> {
    let id = |n| format!(r#""0123456789abcdef{n:020}","#);
    let asked = |n| format!(r#"{{"id":"0123456789abcdef{n:020}","rev":"1-967a00dff5e02add41819138abb3284d"}},"#);
    vec![
        Bomb::new("ids", "/db/_all_docs", counted(r#"{"keys":["#, id, r#""a"]}"#, bytes)).ordinary(),
        Bomb::new("keys", "/db/_all_docs", repeated(r#"{"keys":["#, r#""","#, r#"""]}"#, bytes)),
        Bomb::new("values of a selector", "/db/_find", repeated(r#"{"selector":{"x":{"$in":["#, "0,", "0]}}}", bytes)),
        Bomb::new(
            "conditions",
            "/db/_find",
            repeated(r#"{"selector":{"$or":["#, r#"{"x":0},"#, r#"{"x":0}]}}"#, bytes),
        ),
        Bomb::new("ids of a feed", "/db/_changes?filter=_doc_ids", counted(r#"{"doc_ids":["#, id, r#""a"]}"#, bytes))
            .ordinary(),
        Bomb::new(
            "revisions asked for",
            "/db/_revs_diff",
            counted("{", |n| format!(r#""{n:x}":["1-a"],"#), r#""z":["1-a"]}"#, bytes),
        ),
        Bomb::new("documents asked for", "/db/_bulk_get", counted(r#"{"docs":["#, asked, r#"{"id":"a"}]}"#, bytes))
            .ordinary(),
        Bomb::new(
            "short documents asked for",
            "/db/_bulk_get",
            repeated(r#"{"docs":["#, r#"{"id":"a"},"#, r#"{"id":"a"}]}"#, bytes),
        ),
    ]
}

fn in_messages(bytes: usize) -> Vec<Bomb> {
    let first = "--b\r\nContent-Type: application/json\r\n\r\n{}\r\n";
    let parts = Bomb::new("parts", "/db/new", repeated(first, "--b\r\n\r\n\r\n", "--b--", bytes));
    let zipped = |name, text: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).expect("memory takes all");
        let body = encoder.finish().expect("memory takes all");
        Bomb {
            kind: "application/json\r\nContent-Encoding: gzip",
            byte_count: text.len(),
            ..Bomb::new(name, "/db/new", body)
        }
    };
    vec![
        Bomb { kind: "multipart/related; boundary=b", ..parts },
        zipped("compressed blanks", &repeated("{", &" ".repeat(1000), "}", bytes)),
        zipped("compressed numbers", &repeated(r#"{"x":["#, "0,", "0]}", bytes)),
    ]
}

/// What a fresh server takes for it above what it took before, as a row of the table, and how often that is its length.
fn explode(bomb: &Bomb) -> (String, f64) {
    let place = tempfile::tempdir().unwrap();
    let mut server = Server::start(place.path(), &["--log-level", "warn", "--durability", "none"]);
    let mut client = server.client();
    client.good("PUT", "/db", None);
    client.good("PUT", "/db/a", Some(&serde_json::json!({"n": 1})));
    let before = Taken::afresh(server.pid()).resident_bytes;
    let begun = Instant::now();
    let answer = client.send(bomb.method(), bomb.path, Some(bomb.kind), &bomb.body);
    let answer = answer.unwrap_or_else(|broken| panic!("{}: {broken:?}", bomb.name));
    let seconds = begun.elapsed().as_secs_f64();
    let taken = Taken::of(server.pid()).resident_bytes_most.saturating_sub(before) as f64;
    match bomb.is_ordinary {
        true => assert!(answer.is_good(), "{}: {}", bomb.name, answer.shown()),
        false => assert!(answer.is_good() || matches!(answer.status, 400 | 413), "{}: {}", bomb.name, answer.shown()),
    }
    client.good("GET", "/db/a", None);
    server.assert_calm();
    server.stop();
    let (megabytes, taken_megabytes) = (bomb.byte_count as f64 / 1e6, taken / 1e6);
    let factor = taken / bomb.byte_count as f64;
    let free = if bomb.writes() && answer.is_good() { WRITTEN_BYTES_MAX } else { 0.0 };
    let row = format!(
        "| {} | {megabytes:.1} | {} | {seconds:.1} | {taken_megabytes:.0} | {factor:.1} |",
        bomb.name, answer.status
    );
    (row, (taken - free) / bomb.byte_count as f64)
}

#[test]
fn hostile_requests_take_a_bounded_multiple_of_their_length() {
    let bytes = setting("STEMMA_BOMB_BYTES", 7_900_000) as usize;
    let mut table = "| request | MB | status | s | MB taken | times |\n|---|--:|--:|--:|--:|--:|\n".to_owned();
    let mut above = Vec::new();
    let kinds = [in_documents(bytes), in_lists(bytes), in_questions(bytes), in_messages(bytes)];
    for bomb in kinds.iter().flatten() {
        let (row, factor) = explode(bomb);
        println!("{row}");
        writeln!(table, "{row}").expect("text takes all");
        if factor > FACTOR_MAX {
            above.push(bomb.name);
        }
    }
    if let Ok(path) = std::env::var("STEMMA_BOMB_TABLE") {
        std::fs::write(path, &table).unwrap();
    }
    assert!(above.is_empty(), "more than {FACTOR_MAX} times their length: {above:?}\n{table}");
}

/// What a database takes of what is written, it takes once: the second request finds it taken. Pages of files are the system's, which takes
/// them back when it needs them.
#[test]
fn small_documents_request_after_request_take_no_more_than_one_does() {
    let bytes = setting("STEMMA_BOMB_BYTES", 7_900_000) as usize;
    let place = tempfile::tempdir().unwrap();
    let mut server = Server::start(place.path(), &["--log-level", "warn", "--durability", "none"]);
    let mut client = server.client();
    client.good("PUT", "/db", None);
    let before = Taken::of(server.pid()).anonymous_bytes;
    let mut taken = Vec::new();
    for request in 0..4 {
        let unit = |n: usize| small_document(request * 1_000_000 + n);
        let body = counted(r#"{"docs":["#, unit, "{}]}", bytes);
        let answer = client.send("POST", "/db/_bulk_docs", Some(JSON), &body).unwrap();
        assert!(answer.is_good(), "{}", answer.shown());
        taken.push(Taken::of(server.pid()).anonymous_bytes.saturating_sub(before));
    }
    println!("small documents, {bytes} bytes a request: {taken:?} bytes taken");
    let most = WRITTEN_BYTES_MAX + bytes as f64 * FACTOR_MAX;
    assert!(taken.iter().all(|taken| (*taken as f64) < most), "more than {most}: {taken:?}");
    server.assert_calm();
    server.stop();
}
