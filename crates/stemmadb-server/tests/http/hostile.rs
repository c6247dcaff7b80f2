//! Hostile input over HTTP: too deep, too large, duplicated, almost valid. The server responds and keeps working.
//!
//! Related tests: functions of design documents (loops, memory, recursion, patterns, prototypes) in `tests/scripts.rs`
//! and `views::endless_view_function_affects_nobody_else`; slow clients in `slow`; request smuggling in `smuggling`;
//! secrets in logs in `tests/log.rs`; DNS rebinding and cross-site requests in `auth`.

use serde_json::{Value, json};

use crate::client::{Response, TestServer, gzip};

fn server() -> TestServer {
    let server = TestServer::new();
    server.database("db", &[json!({"_id": "a", "n": 1, "text": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaab"})]);
    server
}

fn send(server: &TestServer, method: &str, path: &str, body: &[u8]) -> Response {
    server.send_as_admin(method, path, &[("Content-Type", "application/json")], body)
}

/// Checks that the server still works.
fn assert_responsive(server: &TestServer) {
    assert_eq!(server.get("/db/a").json()["n"], 1);
}

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

/// Every route that reads JSON, with a body that contains `value`.
fn bodies(value: &str) -> Vec<(&'static str, &'static str, String)> {
    vec![
        ("PUT", "/db/new", format!(r#"{{"x":{value}}}"#)),
        ("POST", "/db", format!(r#"{{"x":{value}}}"#)),
        ("POST", "/db/_bulk_docs", format!(r#"{{"docs":[{{"x":{value}}}]}}"#)),
        ("PUT", "/db/_local/x", format!(r#"{{"x":{value}}}"#)),
        ("POST", "/db/_find", format!(r#"{{"selector":{{"x":{{"$eq":{value}}}}}}}"#)),
        ("POST", "/db/_all_docs", format!(r#"{{"keys":[{value}]}}"#)),
        ("POST", "/db/_changes?filter=_selector", format!(r#"{{"selector":{{"x":{value}}}}}"#)),
        ("POST", "/db/_index", format!(r#"{{"index":{{"fields":["x"],"partial_filter_selector":{{"x":{value}}}}}}}"#)),
        ("POST", "/db/_aggregate", format!(r#"{{"selector":{{"x":{value}}}}}"#)),
        ("POST", "/db/_revs_diff", format!(r#"{{"x":{value}}}"#)),
        ("POST", "/_replicate", format!(r#"{{"source":{value}}}"#)),
        ("POST", "/_session", format!(r#"{{"name":{value}}}"#)),
    ]
}

#[test]
fn excessive_depth_is_rejected_everywhere() {
    let server = server();
    for depth in [200, 100_000] {
        for (method, path, body) in bodies(&nested(depth)) {
            let answer = send(&server, method, path, body.as_bytes());
            // A login body has a small size limit.
            let refused = if path == "/_session" && depth > 10_000 { 413 } else { 400 };
            assert_eq!(answer.status, refused, "{method} {path} {depth}: {answer:?}");
        }
    }
    // Selectors and the bounds of listings have their own depth limits.
    for join in ["$and", "$or", "$nor"] {
        let selector = (0..60).fold("{}".to_owned(), |inner, _| format!(r#"{{"{join}":[{inner}]}}"#));
        let answer = send(&server, "POST", "/db/_find", format!(r#"{{"selector":{selector}}}"#).as_bytes());
        assert!(matches!(answer.status, 200 | 400), "{join}: {answer:?}");
    }
    for join in ["$not", "$elemMatch", "$allMatch"] {
        let selector = (0..120).fold("{}".to_owned(), |inner, _| format!(r#"{{"{join}":{inner}}}"#));
        let body = format!(r#"{{"selector":{{"x":{selector}}}}}"#);
        let answer = send(&server, "POST", "/db/_find", body.as_bytes());
        assert!(matches!(answer.status, 200 | 400), "{join}: {answer:?}");
    }
    let key = nested(5_000).replace('[', "%5B").replace(']', "%5D");
    assert_eq!(server.get(&format!("/db/_all_docs?startkey={key}")).status, 400);
    server.design("db", "d", json!({"views": {"v": {"map": "function(doc) { emit([doc.n]) }"}}}));
    assert_eq!(server.get(&format!("/db/_design/d/_view/v?startkey={key}")).status, 400);
    let body = format!(r#"{{"keys":[{}]}}"#, nested(5_000));
    assert_eq!(send(&server, "POST", "/db/_design/d/_view/v", body.as_bytes()).status, 400);
    assert_responsive(&server);
}

#[test]
fn a_million_small_items_are_handled_in_time() {
    let server = server();
    let objects = format!("[{}0]", r#"{"":0},"#.repeat(1_100_000));
    assert_eq!(send(&server, "PUT", "/db/objects", format!(r#"{{"x":{objects}}}"#).as_bytes()).status, 413);
    let mut keys = String::from("{");
    (0..1_000_000).for_each(|n| keys.push_str(&format!(r#""k{n:x}":0,"#)));
    keys.push_str(r#""last":0}"#);
    let answer = send(&server, "PUT", "/db/keys", keys.as_bytes());
    assert!(matches!(answer.status, 400 | 413), "{}", answer.text);
    let answer = send(&server, "POST", "/db/_find", format!(r#"{{"selector":{keys}}}"#).as_bytes());
    assert_eq!(answer.status, 413, "{}", answer.text.len());
    let answer = send(&server, "POST", "/db/_revs_diff", objects.as_bytes());
    assert_eq!(answer.status, 413, "{}", answer.text.len());
    assert_responsive(&server);
}

#[test]
fn duplicate_names_are_rejected() {
    let server = server();
    for twice in [
        r#"{"x":1,"x":2}"#,
        r#"{"x":1,"\u0078":2}"#,
        r#"{"a":{"b":{"x":1,"\u0078":1}}}"#,
        r#"{"x":[{"y":1,"y":1}]}"#,
        "{\"\u{e9}\":1,\"\\u00e9\":2}",
    ] {
        for (method, path, body) in bodies(twice) {
            assert_eq!(send(&server, method, path, body.as_bytes()).status, 400, "{method} {path} {twice}");
        }
    }
    let edited = r#"{"new_edits":false,"docs":[{"_id":"x","_rev":"1-a","_rev":"2-b"}]}"#;
    assert_eq!(send(&server, "POST", "/db/_bulk_docs", edited.as_bytes()).status, 400);
    // Names that only look alike are different names.
    let pair = "{\"\u{e9}\":1,\"e\u{301}\":2}";
    assert_eq!(send(&server, "PUT", "/db/pair", pair.as_bytes()).status, 201);
    let read = server.get("/db/pair").json();
    assert_eq!((&read["\u{e9}"], &read["e\u{301}"]), (&json!(1), &json!(2)));
    assert_responsive(&server);
}

#[test]
fn numbers_are_kept_exactly_or_rejected() {
    let server = server();
    for (number, printed) in [
        ("9007199254740993", Some("9007199254740993")),
        ("18446744073709551615", Some("18446744073709551615")),
        ("-9223372036854775808", Some("-9223372036854775808")),
        ("-0", Some("-0.0")),
        ("0.1", Some("0.1")),
        ("1e308", Some("1e308")),
        ("1e-400", Some("0.0")),
        ("5e-324", Some("5e-324")),
        ("1e400", None),
        ("-1e400", None),
        ("1234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890", None),
        ("9223372036854775808000000000000001", None),
        ("NaN", None),
        ("Infinity", None),
        ("01", None),
        ("+1", None),
        (".5", None),
        ("1.", None),
        ("0x10", None),
        ("1e", None),
    ] {
        let path = format!("/db/number-{}", number.replace('+', "plus"));
        let answer = send(&server, "PUT", &path, format!(r#"{{"n":{number}}}"#).as_bytes());
        match printed {
            None => assert_eq!(answer.status, 400, "{number}: {answer:?}"),
            Some(printed) => {
                assert_eq!(answer.status, 201, "{number}: {answer:?}");
                let read = server.get(&path).text;
                let same = |text: &str| text.parse::<f64>().ok() == printed.parse::<f64>().ok();
                let kept = read.split("\"n\":").nth(1).unwrap().trim_end().trim_end_matches('}');
                assert!(
                    kept == printed || !printed.bytes().all(|byte| byte.is_ascii_digit()) && same(kept),
                    "{number} is {kept}"
                );
            }
        }
    }
    // Two integers that are equal as doubles are different.
    assert_eq!(send(&server, "PUT", "/db/two53", br#"{"big":9007199254740992}"#).status, 201);
    assert_eq!(send(&server, "PUT", "/db/two53-1", br#"{"big":9007199254740993}"#).status, 201);
    let found = send(&server, "POST", "/db/_find", br#"{"selector":{"big":9007199254740993}}"#).json();
    assert_eq!(found["docs"].as_array().unwrap().iter().map(|doc| &doc["_id"]).collect::<Vec<_>>(), ["two53-1"]);
    assert_responsive(&server);
}

#[test]
fn invalid_unicode_is_rejected() {
    let server = server();
    let wrong: [&[u8]; 10] = [
        b"\"\xff\"",
        b"\"\xc0\xaf\"",
        b"\"\xed\xa0\x80\"",
        b"\"\xf4\x90\x80\x80\"",
        b"\"\xe2\x82\"",
        br#""\ud800""#,
        br#""\udc00\ud800""#,
        br#""\u12""#,
        b"\"\x00\"",
        b"\"a\nb\"",
    ];
    for text in wrong {
        for (method, path, body) in bodies("@") {
            let (before, after) = body.split_once('@').unwrap();
            let body = [before.as_bytes(), text, after.as_bytes()].concat();
            assert_eq!(send(&server, method, path, &body).status, 400, "{method} {path} {text:?}");
        }
    }
    assert_eq!(send(&server, "PUT", "/db/bom", b"\xef\xbb\xbf{}").status, 400);
    assert_eq!(send(&server, "PUT", "/db/utf16", b"\xff\xfe{\x00}\x00").status, 400);
    // NUL is allowed and kept.
    assert_eq!(send(&server, "PUT", "/db/nul", br#"{"x":"a\u0000b"}"#).status, 201);
    assert_eq!(server.get("/db/nul").json()["x"], "a\u{0}b");
    // Two Unicode forms of a letter are two documents, two files, and two keys.
    for (id, n) in [("%C3%A9", 1), ("e%CC%81", 2)] {
        assert_eq!(send(&server, "PUT", &format!("/db/{id}"), format!(r#"{{"n":{n}}}"#).as_bytes()).status, 201);
        assert_eq!(server.send_as_admin("PUT", &format!("/db/files-{n}/{id}"), &[], b"x").status, 201);
    }
    assert_eq!(
        (server.get("/db/%C3%A9").json()["n"].clone(), server.get("/db/e%CC%81").json()["n"].clone()),
        (json!(1), json!(2))
    );
    assert_eq!(server.get("/db/files-1/e%CC%81").status, 404);
    for path in [
        "/db/%",
        "/db/%f",
        "/db/%zz",
        "/db/%ff",
        "/db/%c0%af",
        "/db/%ed%a0%80",
        "/d%",
        "/db/_all_docs?startkey=%22%ff%22",
        "/db/a/%fe",
    ] {
        assert_eq!(server.get(path).status, 400, "{path}");
    }
    assert_responsive(&server);
}

#[test]
fn regular_expressions_are_limited() {
    let server = server();
    let long = "a?".repeat(2_000) + &"a".repeat(2_000);
    for pattern in [
        "((a{0,99}){0,99}){0,99}",
        r"\w{1000}{1000}",
        "(?i)[a-z]{999999999}",
        "(",
        "a{1000000}",
        r"(\pL{500}){500}",
        &long,
        "(a+)+$",
        r"(.*)*(.*)*(.*)*x",
        r"(a)\1",
    ] {
        let begun = std::time::Instant::now();
        let body = json!({"selector": {"text": {"$regex": pattern}}});
        let answer = server.post("/db/_find", &body);
        assert!(matches!(answer.status, 200 | 400), "{pattern}: {answer:?}");
        assert!(begun.elapsed().as_secs() < 10, "{pattern} took {:?}", begun.elapsed());
    }
    assert_eq!(
        server.post("/db/_find", &json!({"selector": {"text": {"$regex": "((a{0,99}){0,99}){0,99}"}}})).status,
        400
    );
    assert_responsive(&server);
}

#[test]
fn compressed_bodies_are_limited_by_decompressed_size() {
    let server = TestServer::with(|mut config| {
        config.limits.body_bytes = 1 << 20;
        config.limits.attachment_bytes = 1 << 20;
        config
    });
    server.database("db", &[json!({"_id": "a", "n": 1})]);
    let headers = [("Content-Type", "application/json"), ("Content-Encoding", "gzip")];
    let spaces = |count: usize| gzip(&[b"{}", vec![b' '; count].as_slice()].concat());
    let bomb = spaces(64 << 20);
    assert!(bomb.len() < 100_000);
    for (method, path) in
        [("PUT", "/db/x"), ("POST", "/db/_bulk_docs"), ("POST", "/db/_find"), ("POST", "/db/_revs_diff")]
    {
        assert_eq!(server.send_as_admin(method, path, &headers, &bomb).status, 413, "{path}");
    }
    assert_eq!(server.send_as_admin("PUT", "/db/small", &headers, &spaces(1000)).status, 201);
    // A body that was compressed twice is not JSON; a gzip body with several members is accepted.
    assert_eq!(server.send_as_admin("PUT", "/db/x", &headers, &gzip(&spaces(1000))).status, 400);
    assert_eq!(server.send_as_admin("PUT", "/db/x", &headers, &bomb[..bomb.len() / 2]).status, 413);
    assert_eq!(server.send_as_admin("PUT", "/db/x", &headers, &gzip(b"{").repeat(10_000)).status, 400);
    let many: Vec<u8> = (0..100).flat_map(|_| gzip(&vec![b' '; 1 << 20])).collect();
    assert_eq!(server.send_as_admin("PUT", "/db/x", &headers, &many).status, 413);
    // A multipart message, and data after its last part.
    let parts = [("Content-Type", "multipart/related; boundary=\"x\""), ("Content-Encoding", "gzip")];
    let message = b"--x\r\nContent-Type: application/json\r\n\r\n{\"n\":1}\r\n--x--";
    for (id, behind) in [("m", 0), ("n", 16 << 20)] {
        let message = gzip(&[message, vec![b' '; behind].as_slice()].concat());
        assert_eq!(server.send_as_admin("PUT", &format!("/db/{id}"), &parts, &message).status, 201, "{behind}");
        assert_eq!(server.get(&format!("/db/{id}")).json()["n"], 1);
    }
    let long = [b"--x\r\n\r\n{\"s\":\"", vec![b's'; 64 << 20].as_slice(), b"\"}\r\n--x--"].concat();
    assert_eq!(server.send_as_admin("PUT", "/db/o", &parts, &gzip(&long)).status, 413);
    assert_eq!(server.send_as_admin("PUT", "/db/o", &parts, &gzip(message)[..40]).status, 400);
    assert_eq!(server.send_as_admin("PUT", "/db/o", &parts, b"no gzip").status, 400);
    // A file that was compressed in transfer is stored with its original content.
    assert_eq!(server.send_as_admin("PUT", "/db/f/file", &[("Content-Encoding", "gzip")], &bomb).status, 413);
    assert_responsive(&server);
}

#[test]
fn parameter_counts_are_limited() {
    let server = server();
    for path in [
        "/db/_all_docs?limit=18446744073709551615",
        "/db/_all_docs?skip=18446744073709551615",
        "/db/_all_docs?skip=18446744073709551615&limit=18446744073709551615&descending=true",
        "/db/_changes?limit=18446744073709551615",
        "/db/_changes?since=18446744073709551615",
        "/db/_changes?feed=longpoll&timeout=0",
        "/db/_changes?heartbeat=1&limit=1",
        "/db/_changes?seq_interval=18446744073709551615",
    ] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    for path in [
        "/db/_all_docs?limit=18446744073709551616",
        "/db/_all_docs?limit=-1",
        "/db/_all_docs?skip=1e9",
        "/db/_all_docs?limit=0x1",
        "/db/_changes?limit=-1",
    ] {
        assert_eq!(server.get(path).status, 400, "{path}");
    }
    let find = |limit: &str, skip: &str| {
        send(&server, "POST", "/db/_find", format!(r#"{{"selector":{{}},"limit":{limit},"skip":{skip}}}"#).as_bytes())
    };
    assert_eq!(find("18446744073709551615", "0").json()["docs"].as_array().unwrap().len(), 1);
    assert_eq!(find("18446744073709551615", "18446744073709551615").json()["docs"], json!([]));
    assert_eq!(find("-1", "0").status, 400);
    assert_eq!(find("1e300", "0").status, 400);
    // Every key within the limit returns a row; the response is streamed.
    let keys: Vec<String> = (0..200_000).map(|n| n.to_string()).collect();
    let rows = server.post("/db/_all_docs", &json!({ "keys": keys }));
    assert_eq!(rows.json()["rows"].as_array().unwrap().len(), 200_000);
    // Very many conditions, each of them small.
    let either = |count: i32| {
        let or: Vec<Value> = (0..count).map(|n| json!({"n": {"$gt": n, "$ne": n}})).collect();
        server.post("/db/_find", &json!({"selector": {"$or": or}}))
    };
    let answer = either(20_000);
    assert!(matches!(answer.status, 200 | 400), "{answer:?}");
    assert_eq!(either(50_000).status, 413);
    let alternatives: Vec<Value> = (0..40).map(|n| json!({"$or": [{"n": n}, {"text": {"$gt": n}}]})).collect();
    let answer = server.post("/db/_find", &json!({"selector": {"$and": alternatives}}));
    assert!(matches!(answer.status, 200 | 400), "{answer:?}");
    assert_responsive(&server);
}

#[test]
fn names_never_become_file_paths() {
    let server = server();
    let long = "x".repeat(4096);
    for name in [
        "..",
        ".",
        "%2e%2e",
        "..%2f..%2fetc",
        "..%5c..%5cetc",
        "CON",
        "con.",
        "nul",
        "a%00b",
        "a.b",
        "A",
        "_x",
        "%20",
        "a%5cb",
        &long,
    ] {
        let answer = server.send_as_admin("PUT", &format!("/{name}"), &[], b"");
        let is_fine = matches!(name, "nul");
        assert!(
            if is_fine { answer.status == 201 } else { matches!(answer.status, 400 | 404 | 405) },
            "{name}: {answer:?}"
        );
    }
    // Ids and file names may be any text, and never become file system paths.
    for name in ["%2e%2e", "..%2f..%2fetc%2fpasswd", "..%5cx", "CON", "a%00b", "a%2F", "%7F", "\u{7f}", &long] {
        if !name.is_ascii() || name == "\u{7f}" {
            continue;
        }
        let path = format!("/db/{name}");
        let written = send(&server, "PUT", &path, br#"{"kept":true}"#);
        assert_eq!(written.status, if name == long { 400 } else { 201 }, "{path}: {written:?}");
        if written.status == 201 {
            assert_eq!(server.get(&path).json()["kept"], true, "{path}");
        }
        let file = server.send_as_admin(
            "PUT",
            &format!("/db/files/{name}?rev={}", revision(&server, "files")),
            &[],
            b"content",
        );
        assert!(matches!(file.status, 201 | 400 | 413), "{path}: {file:?}");
        if file.status == 201 {
            assert_eq!(server.get(&format!("/db/files/{name}")).text, "content", "{path}");
        }
    }
    assert_responsive(&server);
}

/// The revision of a document, or an empty string.
fn revision(server: &TestServer, id: &str) -> String {
    let found = server.get(&format!("/db/{id}"));
    if found.status == 200 { found.json()["_rev"].as_str().unwrap().to_owned() } else { String::new() }
}

#[test]
fn request_heads_are_limited() {
    let server = server();
    for count in [101, 2_000] {
        let names: Vec<String> = (0..count).map(|n| format!("X-{n}")).collect();
        let headers: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "x")).collect();
        assert_eq!(server.send("GET", "/", &headers, b"").status, 431, "{count} headers");
    }
    let long = "x".repeat(200_000);
    for answer in [
        server.response_to_head_of(200_000),
        server.raw_response(format!("GET /{long} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()),
        server.raw_response(format!("{long} / HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()),
        server.raw_response(format!("GET / HTTP/1.1\r\nHost: localhost\r\n{long}: x\r\n\r\n").as_bytes()),
    ] {
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{}", &answer[..answer.len().min(200)]);
    }
    // Parameters count towards the head's limit.
    let parameters = "a=1&".repeat(10_000);
    assert!(server.get(&format!("/db/a?{parameters}")).status < 500);
    assert_responsive(&server);
}
