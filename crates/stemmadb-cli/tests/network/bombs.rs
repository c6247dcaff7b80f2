//! Requests constructed to use far more memory than their length. The server's memory is read from `/proc`.
//!
//! `STEMMA_BOMB_BYTES` sets the length of the requests (default 7,900,000, just below the limit of one document),
//! `STEMMA_BOMB_TABLE` the file for the result table.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Instant;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::random::env_u64;
use crate::server::{ResourceUsage, Server};

/// Maximum memory of a request, as a multiple of its length.
const FACTOR_MAX: f64 = 8.0;
/// Maximum memory of written data before it is merged into the tree: the setting `memory_bytes`.
const WRITTEN_BYTES_MAX: f64 = (64 << 20) as f64;

/// Maximum length of one document.
const DOCUMENT_BYTES_MAX: usize = 8_000_000;

const JSON: &str = "application/json";

/// A request, and whether it must be accepted.
struct Bomb {
    name: &'static str,
    path: &'static str,
    content_type: &'static str,
    body: Vec<u8>,
    /// The uncompressed length.
    byte_count: usize,
    /// Whether the request is a legitimate one.
    is_ordinary: bool,
}

impl Bomb {
    fn new(name: &'static str, path: &'static str, body: Vec<u8>) -> Self {
        Bomb { name, path, content_type: JSON, byte_count: body.len(), body, is_ordinary: false }
    }

    /// Marks a legitimate request: it must be accepted, unless it is one document above the maximum length.
    fn ordinary(self) -> Self {
        Bomb { is_ordinary: self.path != "/db/new" || self.byte_count <= DOCUMENT_BYTES_MAX, ..self }
    }

    fn method(&self) -> &'static str {
        if self.path == "/db/new" { "PUT" } else { "POST" }
    }

    fn is_write(&self) -> bool {
        matches!(self.path, "/db/new" | "/db/_bulk_docs")
    }
}

/// Concatenates `before`, the results of `unit` for ascending numbers up to the requested length, and `after`.
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

/// Like [`counted`], with one repeated unit.
fn repeated(before: &str, unit: &str, after: &str, bytes: usize) -> Vec<u8> {
    counted(before, |_| unit.to_owned(), after, bytes)
}

fn document_bombs(bytes: usize) -> Vec<Bomb> {
    let list = |unit: &str| repeated(r#"{"x":["#, unit, "0]}", bytes);
    let put = |name, body| Bomb::new(name, "/db/new", body);
    let file = |n| format!(r#""{n:x}":{{"data":""}},"#);
    let row = |n| format!(r#"{{"time":"2024-05-01T10:00:{n}Z","value":{n}.5,"sensor":"kitchen"}},"#);
    vec![
        put("one long string", repeated(r#"{"x":""#, &"a".repeat(1000), r#""}"#, bytes)).ordinary(),
        put("string of escapes", repeated(r#"{"x":""#, r"\u0001", r#""}"#, bytes)).ordinary(),
        put("rows of three fields", counted(r#"{"x":["#, row, "0]}", bytes)).ordinary(),
        put("numbers", list("0,")),
        // Just below the density limit.
        put("numbers of five digits", list("12345,")),
        put("field names of nine characters", counted("{", |n| format!(r#""{n:09x}":0,"#), r#""last":0}"#, bytes)),
        put("strings of three letters", list(r#""abc","#)),
        put("arrays of one element", list("[1234567890],")),
        put("empty objects", list("{},")),
        put("small objects", list(r#"{"":0},"#)),
        put("arrays within arrays", list(&format!("{}{},", "[".repeat(90), "]".repeat(90)))),
        put("objects within objects", list(&format!("{}0{},", r#"{"a":"#.repeat(90), "}".repeat(90)))),
        put("field names", counted("{", |n| format!(r#""{n:x}":0,"#), r#""last":0}"#, bytes)),
        put(
            "a duplicate field name at the end",
            counted("{", |n| format!(r#""{n:020}":"{n:060}","#), r#""x":0,"x":0}"#, bytes),
        ),
        put("attachments without content", counted(r#"{"_attachments":{"#, file, r#""z":{"data":""}}}"#, bytes)),
    ]
}

/// A document of 103 bytes with its comma, just above the minimum average size in a bulk request.
fn small_document(number: usize) -> String {
    let (id, value) = (format!("reading-{number:016}"), 10_000 + number % 90_000);
    format!(
        r#"{{"_id":"{id}","value":{value:05},"unit":"kelvin (K)","sensor":"kitchen-1","floor":{}.25}},"#,
        number % 9
    )
}

fn bulk_bombs(bytes: usize) -> Vec<Bomb> {
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

fn query_bombs(bytes: usize) -> Vec<Bomb> {
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
        Bomb::new(
            "ids of a changes feed",
            "/db/_changes?filter=_doc_ids",
            counted(r#"{"doc_ids":["#, id, r#""a"]}"#, bytes),
        )
        .ordinary(),
        Bomb::new(
            "requested revisions",
            "/db/_revs_diff",
            counted("{", |n| format!(r#""{n:x}":["1-a"],"#), r#""z":["1-a"]}"#, bytes),
        ),
        Bomb::new("requested documents", "/db/_bulk_get", counted(r#"{"docs":["#, asked, r#"{"id":"a"}]}"#, bytes))
            .ordinary(),
        Bomb::new(
            "requested documents with short ids",
            "/db/_bulk_get",
            repeated(r#"{"docs":["#, r#"{"id":"a"},"#, r#"{"id":"a"}]}"#, bytes),
        ),
    ]
}

fn encoding_bombs(bytes: usize) -> Vec<Bomb> {
    let first = "--b\r\nContent-Type: application/json\r\n\r\n{}\r\n";
    let parts = Bomb::new("multipart parts", "/db/new", repeated(first, "--b\r\n\r\n\r\n", "--b--", bytes));
    let zipped = |name, text: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).expect("writing to memory succeeds");
        let body = encoder.finish().expect("writing to memory succeeds");
        Bomb {
            content_type: "application/json\r\nContent-Encoding: gzip",
            byte_count: text.len(),
            ..Bomb::new(name, "/db/new", body)
        }
    };
    vec![
        Bomb { content_type: "multipart/related; boundary=b", ..parts },
        zipped("compressed spaces", &repeated("{", &" ".repeat(1000), "}", bytes)),
        zipped("compressed numbers", &repeated(r#"{"x":["#, "0,", "0]}", bytes)),
    ]
}

/// Sends the request to a new server. Returns a table row, and the memory it used as a multiple of its length.
fn measure(bomb: &Bomb) -> (String, f64) {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start(directory.path(), &["--log-level", "warn", "--durability", "none"]);
    let mut client = server.client();
    client.expect_success("PUT", "/db", None);
    client.expect_success("PUT", "/db/a", Some(&serde_json::json!({"n": 1})));
    let before = ResourceUsage::after_reset(server.pid()).resident_bytes;
    let started = Instant::now();
    let answer = client.send(bomb.method(), bomb.path, Some(bomb.content_type), &bomb.body);
    let answer = answer.unwrap_or_else(|error| panic!("{}: {error:?}", bomb.name));
    let seconds = started.elapsed().as_secs_f64();
    let used = ResourceUsage::of(server.pid()).peak_resident_bytes.saturating_sub(before) as f64;
    match bomb.is_ordinary {
        true => assert!(answer.is_success(), "{}: {}", bomb.name, answer.summary()),
        false => {
            assert!(answer.is_success() || matches!(answer.status, 400 | 413), "{}: {}", bomb.name, answer.summary())
        }
    }
    client.expect_success("GET", "/db/a", None);
    server.assert_no_panic();
    server.stop();
    let (megabytes, used_megabytes) = (bomb.byte_count as f64 / 1e6, used / 1e6);
    let factor = used / bomb.byte_count as f64;
    let written = if bomb.is_write() && answer.is_success() { WRITTEN_BYTES_MAX } else { 0.0 };
    let row = format!(
        "| {} | {megabytes:.1} | {} | {seconds:.1} | {used_megabytes:.0} | {factor:.1} |",
        bomb.name, answer.status
    );
    (row, (used - written) / bomb.byte_count as f64)
}

#[test]
fn hostile_requests_use_a_bounded_multiple_of_their_length() {
    let bytes = env_u64("STEMMA_BOMB_BYTES", 7_900_000) as usize;
    let mut table = "| request | MB | status | s | MB used | multiple |\n|---|--:|--:|--:|--:|--:|\n".to_owned();
    let mut above = Vec::new();
    let kinds = [document_bombs(bytes), bulk_bombs(bytes), query_bombs(bytes), encoding_bombs(bytes)];
    for bomb in kinds.iter().flatten() {
        let (row, factor) = measure(bomb);
        println!("{row}");
        writeln!(table, "{row}").expect("writing to a string succeeds");
        if factor > FACTOR_MAX {
            above.push(bomb.name);
        }
    }
    if let Ok(path) = std::env::var("STEMMA_BOMB_TABLE") {
        std::fs::write(path, &table).unwrap();
    }
    assert!(above.is_empty(), "more than {FACTOR_MAX} times their length: {above:?}\n{table}");
}

/// The memory of written data is bounded per database, not per request. File pages are not counted: the system can
/// reclaim them.
#[test]
fn repeated_bulk_requests_use_no_more_memory_than_one() {
    let bytes = env_u64("STEMMA_BOMB_BYTES", 7_900_000) as usize;
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start(directory.path(), &["--log-level", "warn", "--durability", "none"]);
    let mut client = server.client();
    client.expect_success("PUT", "/db", None);
    let before = ResourceUsage::of(server.pid()).anonymous_bytes;
    let mut used = Vec::new();
    for request in 0..4 {
        let unit = |n: usize| small_document(request * 1_000_000 + n);
        let body = counted(r#"{"docs":["#, unit, "{}]}", bytes);
        let answer = client.send("POST", "/db/_bulk_docs", Some(JSON), &body).unwrap();
        assert!(answer.is_success(), "{}", answer.summary());
        used.push(ResourceUsage::of(server.pid()).anonymous_bytes.saturating_sub(before));
    }
    println!("small documents, {bytes} bytes per request: {used:?} bytes used");
    let max = WRITTEN_BYTES_MAX + bytes as f64 * FACTOR_MAX;
    assert!(used.iter().all(|used| (*used as f64) < max), "more than {max}: {used:?}");
    server.assert_no_panic();
    server.stop();
}
