//! Protocol details that CouchDB clients and replicators rely on and that the client suites don't cover.

use serde_json::{Value, json};

use crate::client::{ADMIN, Response, TestServer, gzip};

fn revision(answer: &Response) -> String {
    answer.json()["rev"].as_str().unwrap_or_else(|| panic!("{answer:?}")).to_owned()
}

/// Status and error name of a refused request.
fn refusal(answer: &Response) -> (u16, String) {
    (answer.status, answer.json()["error"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn database_routes_return_couchdb_statuses() {
    let server = TestServer::new();
    let put = |path: &str| server.ask_as(ADMIN, "PUT", path, None);
    assert_eq!(put("/db/").status, 201);
    assert_eq!(refusal(&put("/db")), (412, "file_exists".to_owned()));
    assert_eq!(refusal(&put("/Upper")), (400, "illegal_database_name".to_owned()));
    assert_eq!(put("/a%2Fb").header("location"), Some("http://localhost/a%2Fb"));
    assert_eq!(server.get("/_all_dbs").json(), json!(["a/b", "db"]));
    assert_eq!(server.get("/_all_dbs?descending=true&limit=1").json(), json!(["db"]));
    let info = server.get("/db").json();
    assert_eq!(info["db_name"], "db");
    let infos = server.post("/_dbs_info", &json!({"keys": ["db", "nothing"]})).json();
    assert_eq!((&infos[0]["info"], &infos[1]["error"]), (&info, &json!("not_found")));
    let committed = server.post("/db/_ensure_full_commit", &json!({}));
    assert_eq!((committed.status, &committed.json()["instance_start_time"]), (201, &info["instance_start_time"]));
    assert_eq!(server.ask_as(ADMIN, "HEAD", "/db", None).status, 200);
    assert_eq!(server.ask_as(ADMIN, "HEAD", "/nothing", None).status, 404);
    assert_eq!(refusal(&server.ask_as(ADMIN, "PATCH", "/db", None)).0, 405);
    assert_eq!(server.get("/db/_revs_limit").json(), 1000);
    assert_eq!(server.send_as_admin("PUT", "/db/_revs_limit", &[], b"5").status, 200);
    assert_eq!(server.get("/db/_revs_limit").json(), 5);
    for path in ["/db?rev=1-a", "/db/?rev=1-a"] {
        let refused = server.delete(path);
        assert_eq!(refusal(&refused), (400, "bad_request".to_owned()));
        assert!(refused.json()["reason"].as_str().unwrap().contains("Did you mean to DELETE a document"));
        assert_eq!(server.get("/db").status, 200);
    }
    assert_eq!(server.delete("/db/").json(), json!({"ok": true}));
    assert_eq!(refusal(&server.delete("/db")), (404, "not_found".to_owned()));
}

#[test]
fn document_routes_return_couchdb_statuses_and_etags() {
    let server = TestServer::new();
    server.database("db", &[]);
    let first = server.put("/db/a", &json!({"n": 1}));
    assert_eq!(first.status, 201);
    let tag = format!("\"{}\"", revision(&first));
    assert_eq!(first.header("etag"), Some(tag.as_str()));
    let read = server.get("/db/a");
    assert_eq!(read.header("etag"), Some(tag.as_str()));
    let unchanged = server.send_as_admin("GET", "/db/a", &[("If-None-Match", &tag)], b"");
    assert_eq!((unchanged.status, unchanged.text.as_str()), (304, ""));
    assert_eq!(refusal(&server.put("/db/a", &json!({"n": 2}))), (409, "conflict".to_owned()));
    let json_type = ("Content-Type", "application/json");
    let second = server.send_as_admin("PUT", "/db/a", &[json_type, ("If-Match", &revision(&first))], b"{\"n\":2}");
    assert_eq!(second.status, 201, "{second:?}");
    let both = format!("/db/a?rev={}", revision(&first));
    let differ = server.put(&both, &json!({"_rev": revision(&second)}));
    assert_eq!(refusal(&differ), (400, "bad_request".to_owned()));
    for (path, body, expected) in [
        ("/db/_x", json!({}), (400, "illegal_docid")),
        ("/db/b", json!({"_bad": 1}), (400, "doc_validation")),
        ("/db/b", json!([]), (400, "bad_request")),
        ("/db/b", json!({"_rev": "1-a"}), (409, "conflict")),
        ("/db/b", json!({"_rev": "wrong"}), (400, "bad_request")),
        ("/db/b", json!({"_attachments": {"x": {"stub": true}}}), (412, "missing_stub")),
    ] {
        assert_eq!(refusal(&server.put(path, &body)), (expected.0, expected.1.to_owned()), "{path} {body}");
    }
    let wrong_type = server.send_as_admin("PUT", "/db/b", &[("Content-Type", "text/plain")], b"{}");
    assert_eq!(wrong_type.status, 415);
    assert_eq!(server.send_as_admin("PUT", "/db/b", &[json_type], b"{broken").status, 400);
    assert_eq!(server.put("/db/b?batch=ok", &json!({})).status, 202);
    assert_eq!(refusal(&server.delete("/db/a")), (409, "conflict".to_owned()));
    assert_eq!(refusal(&server.delete("/db/nothing?rev=1-a")), (404, "not_found".to_owned()));
    let gone = server.delete(&format!("/db/a?rev={}", revision(&second)));
    assert_eq!(gone.status, 200);
    assert_eq!(server.get("/db/a").json()["reason"], "deleted");
    let tombstone = server.get(&format!("/db/a?rev={}", revision(&gone))).json();
    assert_eq!(tombstone["_deleted"], true);
}

#[test]
fn listings_support_every_parameter() {
    let server = TestServer::new();
    server.database("db", &["a", "b", "c", "_design/x"].map(|id| json!({ "_id": id })));
    let ids = |path: &str| {
        let rows = server.get(path).json()["rows"].as_array().unwrap().clone();
        rows.iter().map(|row| row["id"].as_str().unwrap_or("?").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids("/db/_all_docs"), ["_design/x", "a", "b", "c"]);
    assert_eq!(ids("/db/_design_docs"), ["_design/x"]);
    assert_eq!(ids("/db/_all_docs?start_key=%22b%22&end_key=%22c%22&inclusive_end=false"), ["b"]);
    assert_eq!(ids("/db/_all_docs?key=%22b%22"), ["b"]);
    assert_eq!(ids("/db/_all_docs?keys=%5B%22c%22,%22z%22%5D"), ["c", "?"]);
    assert_eq!(ids("/db/_all_docs?descending=true&skip=1&limit=1"), ["b"]);
    let several = server.post("/db/_all_docs/queries", &json!({"queries": [{"keys": ["a"]}, {"limit": 1, "skip": 2}]}));
    let results = several.json();
    assert_eq!(
        (&results["results"][0]["rows"][0]["id"], &results["results"][1]["rows"][0]["id"]),
        (&json!("a"), &json!("b"))
    );
    let sequence = server.get("/db/_all_docs?update_seq=true").json()["update_seq"].clone();
    assert_eq!(sequence, server.get("/db").json()["update_seq"]);
    server.put("/db/_local/x", &json!({"n": 1}));
    assert_eq!(ids("/db/_local_docs"), ["_local/x"]);
    for (id, n) in [("y", 2), ("z", 3)] {
        server.put(&format!("/db/_local/{id}"), &json!({ "n": n }));
    }
    assert_eq!(ids("/db/_local_docs?descending=true&skip=1"), ["_local/y", "_local/x"]);
    assert_eq!(ids("/db/_local_docs?startkey=%22_local/y%22&limit=1"), ["_local/y"]);
    assert_eq!(ids("/db/_local_docs?endkey=%22_local/y%22&inclusive_end=false"), ["_local/x"]);
    let named = json!({"keys": ["_local/z", "_local/nothing"], "include_docs": true});
    let rows = server.post("/db/_local_docs", &named).json()["rows"].clone();
    assert_eq!((&rows[0]["doc"]["n"], &rows[1]), (&json!(3), &json!({"key": "_local/nothing", "error": "not_found"})));
    let several = json!({"queries": [{"limit": 1}, {"key": "_local/z"}]});
    let reported = server.post("/db/_local_docs/queries", &several).json();
    let first = |at: usize| reported["results"][at]["rows"][0]["id"].clone();
    assert_eq!((first(0), first(1)), (json!("_local/x"), json!("_local/z")));
    let several = json!({"queries": [{}, {"startkey": "_design/y"}]});
    let reported = server.post("/db/_design_docs/queries", &several).json();
    let counts: Vec<_> = (0..2).map(|at| reported["results"][at]["rows"].as_array().unwrap().len()).collect();
    assert_eq!((reported["results"][0]["rows"][0]["id"].as_str(), counts), (Some("_design/x"), vec![1, 0]));
    for (destination, path) in [("copied", "/db/copied"), ("_local/w", "/db/_local/w")] {
        let copied = server.send_as_admin("COPY", "/db/_local/z", &[("Destination", destination)], b"");
        assert_eq!((copied.status, &server.get(path).json()["n"]), (201, &json!(3)), "{copied:?}");
    }
    assert_eq!(server.send_as_admin("COPY", "/db/_local/nothing", &[("Destination", "x")], b"").status, 404);
    server.delete(&format!("/db/copied?rev={}", server.get("/db/copied").json()["_rev"].as_str().unwrap()));
}

#[test]
fn attachment_ranges_and_etags() {
    let server = TestServer::new();
    server.database("db", &[]);
    let content: Vec<u8> = (b'a'..=b'z').collect();
    let put = server.send_as_admin("PUT", "/db/doc/file", &[("Content-Type", "text/plain")], &content);
    assert_eq!(put.status, 201, "{put:?}");
    let whole = server.get("/db/doc/file");
    assert_eq!((whole.header("accept-ranges"), whole.header("content-length")), (Some("bytes"), Some("26")));
    let tag = whole.header("etag").unwrap().to_owned();
    assert_eq!(whole.header("content-md5").map(|md5| format!("\"{md5}\"")), Some(tag.clone()));
    assert_eq!(server.send_as_admin("GET", "/db/doc/file", &[("If-None-Match", &tag)], b"").status, 304);
    for (range, status, text, shown) in [
        ("bytes=0-2", 206, "abc", Some("bytes 0-2/26")),
        ("bytes=23-", 206, "xyz", Some("bytes 23-25/26")),
        ("bytes=-2", 206, "yz", Some("bytes 24-25/26")),
        ("bytes=24-99", 206, "yz", Some("bytes 24-25/26")),
        ("bytes=0-1,4-5", 200, "abcdefghijklmnopqrstuvwxyz", None),
        ("lines=1-2", 200, "abcdefghijklmnopqrstuvwxyz", None),
    ] {
        let answer = server.send_as_admin("GET", "/db/doc/file", &[("Range", range)], b"");
        let found = (answer.status, answer.text.as_str(), answer.header("content-range"));
        assert_eq!(found, (status, text, shown), "{range}");
    }
    let beyond = server.send_as_admin("GET", "/db/doc/file", &[("Range", "bytes=26-")], b"");
    assert_eq!((beyond.status, beyond.header("content-range")), (416, Some("bytes */26")));
    let head = server.ask_as(ADMIN, "HEAD", "/db/doc/file", None);
    assert_eq!((head.status, head.header("content-length"), head.text.as_str()), (200, Some("26"), ""));
    let corrupt = [("Content-MD5", "AAAAAAAAAAAAAAAAAAAAAA==")];
    assert_eq!(server.send_as_admin("PUT", "/db/other/file", &corrupt, &content).status, 400);
    assert_eq!(server.get("/db/doc/nothing").status, 404);
}

#[test]
fn replicator_reads_and_writes_multipart_documents() {
    let server = TestServer::new();
    server.database("db", &[]);
    let body = concat!(
        "--x\r\nContent-Type: application/json\r\n\r\n",
        r#"{"_id":"d","_rev":"2-b","_revisions":{"start":2,"ids":["b","a"]},"n":1,"_attachments":{"#,
        r#""one":{"content_type":"text/plain","revpos":1,"length":3,"follows":true},"#,
        r#""two":{"content_type":"text/css","revpos":2,"length":4,"follows":true}}}"#,
        "\r\n--x\r\n\r\n\r\n-\r\n--x\r\nContent-Disposition: attachment; filename=\"two\"\r\n\r\ntwo!\r\n--x--",
    );
    let headers = [("Content-Type", "multipart/related; boundary=\"x\"")];
    let put = server.send_as_admin("PUT", "/db/d?new_edits=false", &headers, body.as_bytes());
    assert_eq!((put.status, revision(&put).as_str()), (201, "2-b"), "{put:?}");
    assert_eq!(server.get("/db/d/one").text, "\r\n-");
    // The same request, compressed.
    server.database("zipped", &[]);
    let compressed = [headers[0], ("Content-Encoding", "gzip")];
    let put = server.send_as_admin("PUT", "/zipped/d?new_edits=false", &compressed, &gzip(body.as_bytes()));
    assert_eq!((put.status, revision(&put).as_str()), (201, "2-b"), "{put:?}");
    assert_eq!(server.get("/zipped/d/one").text, "\r\n-");
    let stubs = server.get("/db/d").json()["_attachments"].clone();
    assert_eq!((&stubs["one"]["revpos"], &stubs["two"]["revpos"]), (&json!(1), &json!(2)));
    // Reading it back: leaves as parts, those with files as nested multiparts, missing ones marked as errors.
    let path = "/db/d?revs=true&latest=true&open_revs=%5B%222-b%22,%225-z%22%5D";
    let mixed = server.send_as_admin("GET", path, &[("Accept", "multipart/mixed")], b"");
    let kind = mixed.header("content-type").unwrap().to_owned();
    assert!(kind.starts_with("multipart/mixed; boundary="), "{kind}");
    assert!(mixed.text.contains("Content-Type: multipart/related; boundary=\""), "{}", mixed.text);
    assert!(mixed.text.contains("\r\n\r\ntwo!\r\n--"), "{}", mixed.text);
    assert!(mixed.text.contains("application/json; error=\"true\"\r\n\r\n{\"missing\":\"5-z\"}"), "{}", mixed.text);
    // Files that the peer already has are omitted.
    let since = server.send_as_admin(
        "GET",
        &format!("{path}&atts_since=%5B%221-a%22%5D"),
        &[("Accept", "multipart/mixed")],
        b"",
    );
    assert!(since.text.contains("two!") && !since.text.contains("\r\n\r\n\r\n-\r\n"), "{}", since.text);
    let json = server.get(path).json();
    assert_eq!((&json[0]["ok"]["_rev"], &json[1]["missing"]), (&json!("2-b"), &json!("5-z")));
    let short = server.send_as_admin(
        "PUT",
        "/db/e",
        &headers,
        b"--x\r\n\r\n{\"_attachments\":{\"y\":{\"follows\":true}}}\r\n--x--",
    );
    assert_eq!(short.status, 400, "{short:?}");
    // A truncated file is not stored.
    for (length, status) in [(3, 400), (4, 201), (5, 400)] {
        let message = format!(
            "--x\r\n\r\n{{\"_attachments\":{{\"y\":{{\"follows\":true,\"length\":{length}}}}}}}\r\n\
            --x\r\n\r\ntwo!\r\n--x--"
        );
        let put = server.send_as_admin("PUT", &format!("/db/length-{length}"), &headers, message.as_bytes());
        assert_eq!((put.status, length), (status, length), "{put:?}");
        assert_eq!(server.get(&format!("/db/length-{length}")).status, if status == 201 { 200 } else { 404 });
    }
}

#[test]
fn bulk_get_returns_rows_in_request_order() {
    let server = TestServer::new();
    server.database("db", &[]);
    let doc =
        |rev: &str, ids: &[&str]| json!({"_id": "d", "_rev": rev, "_revisions": {"start": ids.len(), "ids": ids}});
    let docs = [doc("2-b", &["b", "a"]), doc("2-c", &["c", "a"])];
    assert_eq!(server.post("/db/_bulk_docs", &json!({"docs": docs, "new_edits": false})).json(), json!([]));
    let asked = json!({"docs": [{"id": "d", "rev": "2-c"}, {"id": "x"}, {"id": "d", "rev": "2-b"},
        {"id": "d", "rev": "1-a"}, {"id": "d", "rev": "?"}]});
    let plain = server.post("/db/_bulk_get?revs=true", &asked).json();
    assert_eq!(plain.as_object().unwrap().keys().collect::<Vec<_>>(), ["results"]);
    let rows: Vec<&Value> = plain["results"].as_array().unwrap().iter().collect();
    assert_eq!(rows.iter().map(|row| row["id"].as_str().unwrap()).collect::<Vec<_>>(), ["d", "x", "d", "d", "d"]);
    assert_eq!(rows[0]["docs"][0]["ok"]["_revisions"], json!({"start": 2, "ids": ["c", "a"]}));
    assert_eq!(rows[1]["docs"][0]["error"]["error"], "not_found");
    assert_eq!(rows[3]["docs"][0]["error"]["rev"], "1-a");
    assert_eq!(rows[4]["docs"][0]["error"]["error"], "bad_request");
    let latest = server.post("/db/_bulk_get?latest=true", &json!({"docs": [{"id": "d", "rev": "1-a"}]})).json();
    let found: Vec<_> =
        latest["results"][0]["docs"].as_array().unwrap().iter().map(|doc| doc["ok"]["_rev"].clone()).collect();
    assert_eq!(found, [json!("2-c"), json!("2-b")]);
    let missing = server.post("/db/_missing_revs", &json!({"d": ["2-b", "3-x"]})).json();
    assert_eq!(missing, json!({"missing_revs": {"d": ["3-x"]}}));
    for (body, status) in [(json!({}), 400), (json!({"docs": 1}), 400), (json!({"docs": [1]}), 400)] {
        assert_eq!(server.post("/db/_bulk_docs", &body).status, status, "{body}");
    }
}

/// The parts of a multipart message: head and body of each.
fn parts<'a>(answer: &Response, text: &'a str) -> Vec<(&'a str, &'a str)> {
    let kind = answer.header("content-type").unwrap();
    let boundary = kind.strip_prefix("multipart/mixed; boundary=\"").and_then(|rest| rest.strip_suffix('"')).unwrap();
    let delimiter = format!("\r\n--{boundary}");
    let (first, rest) = text.split_once(&delimiter).unwrap();
    assert_eq!(first, "");
    let all: Vec<&str> = rest.split(&delimiter).collect();
    assert_eq!(all.last(), Some(&"--"));
    all[..all.len() - 1].iter().map(|part| part.strip_prefix("\r\n").unwrap().split_once("\r\n\r\n").unwrap()).collect()
}

#[test]
fn bulk_get_supports_multipart() {
    let server = TestServer::new();
    server.database("db", &[json!({"_id": "plain", "n": 1})]);
    let files = json!({"one": {"data": "b25l", "content_type": "text/plain"},
        "two": {"data": "dHdv", "content_type": "text/css"}});
    let first = server.put("/db/d", &json!({"n": 2, "_attachments": files}));
    let mut stubs = server.get("/db/d").json()["_attachments"].clone();
    stubs["two"] = json!({"data": "dHdvIQ==", "content_type": "text/css"});
    let second = server.put("/db/d", &json!({"_rev": revision(&first), "n": 3, "_attachments": stubs}));
    let asked = json!({"docs": [
        {"id": "d"}, {"id": "nothing"}, {"id": "plain"}, {"id": "d", "rev": "7-x"},
        {"id": "d", "rev": revision(&second), "atts_since": [revision(&first)]},
    ]});
    let ask = |accept: &str| {
        let headers = [("Accept", accept), ("Content-Type", "application/json")];
        server.send_as_admin("POST", "/db/_bulk_get?revs=true", &headers, asked.to_string().as_bytes())
    };
    let mixed = ask("multipart/mixed, multipart/related");
    let parts = parts(&mixed, &mixed.text);
    let heads: Vec<Vec<&str>> = parts.iter().map(|(head, _)| head.split("\r\n").collect()).collect();
    assert_eq!(heads[0][..2], ["X-Doc-Id: d", &format!("X-Rev-Id: {}", revision(&second))]);
    assert!(heads[0][2].starts_with("Content-Type: multipart/related; boundary=\""), "{heads:?}");
    let json = |body: &str| {
        let from = body.find('{').unwrap();
        let mut values = serde_json::Deserializer::from_str(&body[from..]).into_iter::<Value>();
        values.next().unwrap().unwrap()
    };
    let whole = json(parts[0].1);
    assert_eq!((&whole["n"], &whole["_revisions"]["start"]), (&json!(3), &json!(2)));
    assert_eq!(
        (&whole["_attachments"]["one"]["follows"], &whole["_attachments"]["two"]["length"]),
        (&json!(true), &json!(4))
    );
    assert!(parts[0].1.contains("\r\n\r\none\r\n--") && parts[0].1.contains("\r\n\r\ntwo!\r\n--"), "{}", parts[0].1);
    assert_eq!(heads[1], ["X-Doc-Id: nothing", "Content-Type: application/json; error=\"true\""]);
    assert_eq!(json(parts[1].1)["error"], "not_found");
    assert_eq!(heads[2][2], "Content-Type: application/json");
    assert_eq!(json(parts[2].1), server.get("/db/plain?revs=true").json());
    assert_eq!((heads[3][1], &json(parts[3].1)["rev"]), ("X-Rev-Id: 7-x", &json!("7-x")));
    // A file that the peer already has is omitted.
    assert!(parts[4].1.contains("two!") && !parts[4].1.contains("\r\n\r\none\r\n--"), "{}", parts[4].1);
    assert_eq!((parts.len(), &json(parts[4].1)["_attachments"]["one"]["stub"]), (5, &json!(true)));
    // A client that accepts only JSON gets JSON.
    for accept in ["application/json", "*/*", "multipart/mixed, application/json"] {
        assert_eq!(ask(accept).json()["results"].as_array().unwrap().len(), 5, "{accept}");
    }
    // The parameter about compressed files has no effect.
    let reported = server.get("/db/d?att_encoding_info=true").json();
    assert_eq!(reported, server.get("/db/d").json());
    // A method override header is ignored.
    let headers = [("X-HTTP-Method-Override", "DELETE"), ("Content-Type", "application/json")];
    assert_eq!(server.send_as_admin("POST", "/db", &headers, b"{\"_id\":\"over\"}").status, 201);
    assert_eq!(server.get("/db/over").status, 200);
}

#[test]
fn changes_feed_reports_pending_and_sends_heartbeats() {
    let server = TestServer::new();
    let docs: Vec<_> = (0..20).map(|n| json!({"_id": format!("{n:02}")})).collect();
    server.database("db", &docs);
    let part = server.get("/db/_changes?limit=5").json();
    assert_eq!((part["results"].as_array().unwrap().len(), &part["pending"]), (5, &json!(15)));
    let nothing = server.get("/db/_changes?limit=0&since=0").json();
    assert_eq!((nothing["results"].as_array().unwrap().len(), &nothing["pending"]), (0, &json!(20)));
    let with_sequence = |path: &str| {
        let rows = server.get(path).json()["results"].as_array().unwrap().clone();
        (0..rows.len()).filter(|at| !rows[*at]["seq"].is_null()).collect::<Vec<_>>()
    };
    assert_eq!(with_sequence("/db/_changes?seq_interval=10"), [0, 10]);
    assert_eq!(with_sequence("/db/_changes?seq_interval=3&limit=7"), [1, 4]);
    let waited = server.get("/db/_changes?feed=longpoll&since=now&timeout=50").json();
    assert_eq!(waited["results"], json!([]));
    let lines = server.get("/db/_changes?feed=continuous&limit=3&heartbeat=20").text;
    assert_eq!(lines.lines().filter(|line| line.contains("\"id\"")).count(), 3);
    assert_eq!(server.get("/db/_changes?feed=live&limit=3&timeout=50").text.lines().count(), 4);
    let unknown = server.get("/db/_changes?feed=sometimes");
    assert_eq!(refusal(&unknown), (400, "bad_request".to_owned()));
    assert_eq!(server.get("/_db_updates?feed=sometimes").status, 400);
    let ended = server.get("/db/_changes?feed=continuous&since=now&timeout=50").text;
    assert!(ended.trim().starts_with("{\"last_seq\":"), "{ended}");
    let events = server.get("/db/_changes?feed=eventsource&limit=2&timeout=50");
    assert_eq!(events.header("content-type"), Some("text/event-stream"));
    assert_eq!(events.text.matches("\nid: ").count(), 2, "{}", events.text);
    // A position of another database of that name is treated as the beginning.
    let before = server.get("/db").json()["update_seq"].as_str().unwrap().to_owned();
    server.delete("/db");
    server.database("db", &docs[..1]);
    assert_eq!(server.get(&format!("/db/_changes?since={before}")).json()["results"].as_array().unwrap().len(), 1);
    assert_eq!(server.get("/db/_changes?since=x").status, 400);
    assert_eq!(server.get("/db/_changes?heartbeat=x").status, 400);
}

#[test]
fn bodies_and_heads_are_limited() {
    let server = TestServer::with(|mut config| {
        config.limits.body_bytes = 1000;
        config.limits.attachment_bytes = 2000;
        config
    });
    server.database("db", &[]);
    assert_eq!(server.put("/db/a", &json!({"text": "x".repeat(2000)})).status, 413);
    assert_eq!(server.send_as_admin("PUT", "/db/a/f", &[], &[b'x'; 3000]).status, 413);
    assert_eq!(server.send_as_admin("PUT", "/db/a/f", &[], &[b'x'; 2000]).status, 201);
    assert!(!server.response_to_head_of(300_000).contains("200 OK"));
}

#[test]
fn unsupported_routes_are_rejected_by_name() {
    let server = TestServer::new();
    server.database("db", &[]);
    let refused =
        stemmadb_server::route_descriptions().into_iter().filter(|route| route.summary.starts_with("Not supported:"));
    let mut count = 0;
    for route in refused {
        let path = route.path.replace("{db}", "db").replace(['{', '}', '*'], "");
        let answer = server.ask_as(ADMIN, route.method, &path, None);
        assert_eq!(refusal(&answer), (501, "not_implemented".to_owned()), "{} {path}", route.method);
        count += 1;
    }
    assert!(count > 10, "the refused routes were not found");
    assert_eq!(refusal(&server.post("/db/_temp_view", &json!({}))), (410, "gone".to_owned()));
}

#[test]
fn console_is_served_with_its_policy_and_cached() {
    let server = TestServer::new();
    let moved = server.ask_as(None, "GET", "/_console", None);
    assert_eq!((moved.status, moved.header("location")), (301, Some("/_console/")));
    let page = server.ask_as(None, "GET", "/_console/", None);
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(page.text.contains("<script type=\"module\" src=\"app.js\">"), "{page:?}");
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && policy.contains("script-src 'self';"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    let script = server.ask_as(None, "GET", "/_console/lib/api.js", None);
    assert_eq!((script.status, script.header("content-type")), (200, Some("text/javascript; charset=utf-8")));
    let tag = script.header("etag").unwrap().to_owned();
    let known = server.send("GET", "/_console/lib/api.js", &[("If-None-Match", &tag)], b"");
    assert_eq!((known.status, known.text.as_str()), (304, ""));
    for wrong in ["/_console/mod.rs", "/_console/..%2Fserver.rs", "/_console/%2e%2e/server.rs", "/_console/lib"] {
        assert_eq!(server.ask_as(None, "GET", wrong, None).status, 404, "{wrong}");
    }
}

#[test]
fn explain_analyzes_a_query_and_statistics_show_how_far_the_past_reaches() {
    let server = TestServer::new();
    server.database("db", &[]);
    let docs: Vec<_> = (0..20).map(|n| json!({"_id": format!("d{n}"), "n": n, "text": "x".repeat(60)})).collect();
    assert_eq!(server.post("/db/_bulk_docs", &json!({"docs": docs})).status, 201);
    let query = json!({"selector": {"n": {"$gte": 15}}});
    let estimated = server.post("/db/_explain", &query).json();
    assert!(estimated["plan"].get("rows").is_none() && estimated["plan"]["estimated_rows"].is_u64(), "{estimated}");
    let analyzed = server.post("/db/_explain?analyze=true", &query).json();
    assert_eq!(analyzed["plan"]["rows"], 5, "{analyzed}");
    assert!(analyzed["plan"]["time_us"].is_u64(), "{analyzed}");
    assert_eq!(server.post("/db/_explain?analyze=maybe", &query).status, 400);
    let history = server.get("/db/_statistics").json()["history"].clone();
    assert_eq!((&history["retention"], &history["pins"]), (&json!({}), &json!({})), "{history}");
    let newest = history["newest_time_us"].as_u64().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros() as u64;
    assert!(newest > 1_700_000_000_000_000 && newest <= now + 60_000_000, "{history}");
}

#[test]
fn administrator_and_dashboard_routes_respond() {
    needs_one_server!("the state of the setup is that of a single node");
    let server = TestServer::new();
    server.database("db", &[]);
    assert_eq!(server.get("/_active_tasks").json(), json!([]));
    assert_eq!(server.get("/_membership").json()["all_nodes"], server.get("/_membership").json()["cluster_nodes"]);
    // Fauxton sends two slashes.
    assert_eq!(server.get("//_cluster_setup").json(), json!({"state": "single_node_enabled"}));
    assert_eq!(server.get("/_utils").header("location"), Some("/_utils/"));
    let without = server.send("GET", "/_utils/", &[], b"");
    assert_eq!((without.status, without.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(without.text.contains("--dashboard"), "{without:?}");
    assert_eq!(server.get("/_utils/../_all_dbs").status, 404);
    assert_eq!(server.post("/db/_compact/x", &json!({})).status, 202);
    let design = server.send_as_admin("PUT", "/db/_design/x/a%2Fb.css", &[("Content-Type", "text/css")], b"p {}");
    assert_eq!(design.status, 201, "{design:?}");
    let read = server.get("/db/_design/x/a/b.css");
    assert_eq!((read.text.as_str(), read.header("content-type")), ("p {}", Some("text/css")));
    let gone = server.delete(&format!("/db/_design%2Fx/a/b.css?rev={}", revision(&design)));
    assert_eq!(gone.status, 200, "{gone:?}");
    for name in ["one", "two"] {
        let made = server.post("/db/_index", &json!({"index": {"fields": [name]}, "ddoc": name, "name": name}));
        assert_eq!(made.json()["result"], "created");
    }
    let reported =
        server.post("/db/_index/_bulk_delete", &json!({"docids": ["_design/one", "_design/nothing"]})).json();
    assert_eq!(
        (&reported["success"][0]["id"], &reported["fail"][0]["error"]),
        (&json!("_design/one"), &json!("not_found"))
    );
    assert_eq!(server.get("/db/_index").json()["total_rows"], 2);
    server.database("copy", &[]);
    let wanted = json!({"source": "db", "target": "copy", "continuous": true});
    let job = server.post("/_replicate", &wanted).json()["_local_id"].as_str().unwrap().to_owned();
    let reported = server.get(&format!("/_scheduler/jobs/{}", job.replace('+', "%2B"))).json();
    assert_eq!(
        (&reported["id"], &reported["source"], &reported["target"]),
        (&json!(job), &json!("db"), &json!("copy"))
    );
    assert_eq!(server.get("/_scheduler/jobs/nothing").status, 404);
}

#[test]
fn database_updates_feed_reports_changes() {
    needs_one_server!("sequences of `_db_updates` are those of one process");
    let server = TestServer::new();
    server.database("a", &[]);
    server.database("b", &[]);
    let reported = |path: &str| {
        let answer = server.get(path).json();
        let rows = answer["results"].as_array().unwrap().iter();
        let rows = rows.map(|row| format!("{} {}", row["db_name"].as_str().unwrap(), row["type"].as_str().unwrap()));
        (rows.collect::<Vec<_>>(), answer["last_seq"].as_str().unwrap().to_owned())
    };
    let (rows, last) = reported("/_db_updates");
    assert_eq!(rows, ["a created", "b created"]);
    server.delete("/b");
    assert_eq!(reported(&format!("/_db_updates?since={last}")).0, ["b deleted"]);
    let (_, last) = reported("/_db_updates?since=now");
    std::thread::scope(|threads| {
        let waiting = threads.spawn(|| reported(&format!("/_db_updates?feed=longpoll&since={last}&timeout=30000")));
        server.database("c", &[]);
        assert_eq!(waiting.join().unwrap().0, ["c created"]);
    });
    let lines = server.get("/_db_updates?feed=continuous&limit=1&heartbeat=20").text;
    assert!(lines.contains("\"db_name\":\"a\"") && lines.contains("\"last_seq\""), "{lines}");
    assert!(server.get("/_db_updates?feed=eventsource&limit=1").text.starts_with("data: {"));
}

#[test]
fn mango_index_of_several_fields_becomes_a_declared_index() {
    let server = TestServer::new();
    let docs: Vec<_> =
        (0..400).map(|n| json!({"_id": format!("d{n:03}"), "kind": n % 3, "at": (n * 37) % 101, "who": "x"})).collect();
    server.database("db", &docs);
    let query = json!({"selector": {"kind": 1}, "sort": [{"kind": "desc"}, {"at": "desc"}], "limit": 12,
        "fields": ["_id", "at"]});
    let plan = || server.post("/db/_explain", &query).json()["plan"].to_string();
    let found = || server.post("/db/_find", &query).json()["docs"].clone();
    let before = found();
    assert!(!plan().contains("mango:kind,at"), "{}", plan());
    let declare = |ddoc: &str, fields: serde_json::Value| {
        let made = server.post("/db/_index", &json!({"index": {"fields": fields}, "ddoc": ddoc, "name": ddoc}));
        assert_eq!(made.json()["result"], "created", "{made:?}");
    };
    declare("one", json!(["kind", "at"]));
    declare("same", json!([{"kind": "asc"}, {"at": "asc"}]));
    declare("single", json!(["who"]));
    declare("special", json!(["_id", "who"]));
    assert!(plan().contains("mango:kind,at"), "{}", plan());
    assert_eq!(found(), before);
    // The index exists as long as one of the definitions with its fields does.
    assert_eq!(server.delete("/db/_index/one/json/one").status, 200);
    assert!(plan().contains("mango:kind,at"), "{}", plan());
    let same = server.get("/db/_design/same").json()["_rev"].as_str().unwrap().to_owned();
    assert_eq!(server.delete(&format!("/db/_design/same?rev={same}")).status, 200);
    assert_eq!(server.post("/db/_view_cleanup", &json!({})).status, 202);
    assert!(!plan().contains("mango:kind,at"), "{}", plan());
    assert_eq!(found(), before);
}

#[test]
fn partial_indexes_contain_only_their_documents() {
    let server = TestServer::new();
    let docs: Vec<_> = (0..20)
        .map(|n| json!({"_id": format!("d{n:02}"), "n": n, "kind": if n < 5 { "few" } else { "many" }}))
        .collect();
    server.database("db", &docs);
    let index =
        json!({"index": {"fields": ["n"], "partial_filter_selector": {"kind": "few"}}, "ddoc": "p", "name": "i"});
    assert_eq!(server.post("/db/_index", &index).json()["result"], "created");
    let find = |more: Value| {
        let mut query = json!({"selector": {"n": {"$gte": 3}}, "execution_stats": true});
        query.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        (server.post("/db/_find", &query).json(), server.post("/db/_explain", &query).json())
    };
    let (found, plan) = find(json!({}));
    assert_eq!((found["docs"].as_array().unwrap().len(), &plan["index"]["name"]), (17, &json!("_all_docs")));
    let candidate = &plan["index_candidates"][0];
    assert_eq!((&candidate["index"]["name"], &candidate["analysis"]["usable"]), (&json!("i"), &json!(false)));
    for name in [json!("p"), json!("_design/p"), json!("p/i"), json!(["p", "i"]), json!(["_design/p"])] {
        let (found, plan) = find(json!({ "use_index": name }));
        assert_eq!((found["docs"].as_array().unwrap().len(), &plan["index"]["name"]), (2, &json!("i")), "{name}");
        assert_eq!(plan["index_candidates"][0]["analysis"]["reasons"], json!([{"name": "unfavored_type"}]));
        assert_eq!(found["execution_stats"]["results_returned"], 2);
        assert!(found["execution_stats"]["total_docs_examined"].as_u64().unwrap() >= 2, "{found}");
        assert!(found["execution_stats"]["total_keys_examined"].as_u64().unwrap() >= 2, "{found}");
    }
    // An index whose fields the query does not use can't be used.
    let other = json!({"selector": {"kind": "many"}, "use_index": "p"});
    assert_eq!(server.post("/db/_find", &other).json()["docs"].as_array().unwrap().len(), 15);
}

#[test]
fn characters_that_a_url_should_encode_are_accepted() {
    let server = TestServer::new();
    server.database("db", &[json!({"_id": "a\"b<c>"}), json!({"_id": "x"})]);
    let rows = |path: &str| {
        let answer = server.get(path);
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.json()["rows"].as_array().unwrap().len()
    };
    assert_eq!(rows("/db/_all_docs?key=\"x\""), 1);
    assert_eq!(rows("/db/_all_docs?keys=[\"x\",\"a\\\"b<c>\"]&include_docs=true"), 2);
    assert_eq!(rows("/db/_all_docs?endkey=\"{|}^`\""), 2);
    assert_eq!(rows("/db/_all_docs?limit=1;skip=1"), 1);
    assert_eq!(server.get("/db/a\"b<c>").status, 200);
    assert_eq!(server.get("/db/_index?limit=2;").status, 200);
    // Also in a later request of a connection, and after a body.
    let authorization = crate::client::basic("admin", "secret");
    let head = |request: &str, more: &str| {
        format!("{request} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {authorization}\r\n{more}\r\n")
    };
    let body = "{\"keys\": [\"x\"], \"a\": \"GET /\\\"<\"}";
    let json_type = format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
    let mut stream = std::net::TcpStream::connect(server.address()).unwrap();
    for request in [
        head("GET /db/_all_docs?key=\"x\"", ""),
        head("POST /db/_all_docs?include_docs=\"", &json_type) + body,
        head("POST /db/_all_docs", &json_type) + body,
        head("GET /db/_all_docs?key=\"x\"", "If-None-Match: \"x\"\r\nConnection: close\r\n"),
    ] {
        use std::io::{Read, Write};
        stream.write_all(request.as_bytes()).unwrap();
        let mut received = Vec::new();
        while !received.ends_with(b"}\n") {
            let mut piece = [0; 1024];
            let count = stream.read(&mut piece).unwrap();
            assert!(count > 0, "{request}: the connection is closed");
            received.extend_from_slice(&piece[..count]);
        }
        let received = String::from_utf8(received).unwrap();
        let expected = if request.contains("include_docs") { "HTTP/1.1 400" } else { "HTTP/1.1 200" };
        assert!(received.starts_with(expected), "{request}: {received}");
        assert!(
            received.contains(if expected.ends_with("200") { "\"id\":\"x\"" } else { "Invalid boolean" }),
            "{received}"
        );
    }
}

#[test]
fn invalid_revisions_concern_only_their_document() {
    let server = TestServer::new();
    server.database("db", &[]);
    let long = "1-a revision id that is too long";
    let docs = json!([{"_id": "a"}, {"_id": "b", "_rev": long}, {"_id": "c", "_rev": "x"},
        {"_id": "d", "_revisions": {"start": 1, "ids": ["a revision id that is too long"]}}, {"_id": "e"}]);
    for new_edits in [true, false] {
        let answer = server.post("/db/_bulk_docs", &json!({"docs": docs, "new_edits": new_edits}));
        assert_eq!(answer.status, 201, "{answer:?}");
        let rows = answer.json();
        let failed: Vec<_> = rows.as_array().unwrap().iter().filter(|row| row["error"] == "bad_request").collect();
        let names: Vec<_> = failed.iter().map(|row| row["id"].as_str().unwrap()).collect();
        assert_eq!(names, if new_edits { vec!["b", "c", "d"] } else { vec!["a", "b", "c", "d", "e"] }, "{rows}");
    }
    assert_eq!((server.get("/db/a").status, server.get("/db/b").status, server.get("/db/e").status), (200, 404, 200));
    let refused = server.put("/db/f?new_edits=false", &json!({}));
    assert_eq!(refusal(&refused), (400, "bad_request".to_owned()));
    assert!(refused.json()["reason"].as_str().unwrap().contains("`new_edits: false`"), "{refused:?}");
}

#[test]
fn local_documents_accept_any_revision() {
    let server = TestServer::new();
    server.database("db", &[]);
    let body = json!({"n": 1, "_rev": "0-7", "_revisions": {"start": 0, "ids": ["7"]}});
    assert_eq!(server.put("/db/_local/a", &body).status, 201);
    let several = json!({"docs": [{"_id": "_local/b", "_revisions": {"start": 0, "ids": ["1"]}}], "new_edits": false});
    assert_eq!(server.post("/db/_bulk_docs", &several).json(), json!([]));
    assert_eq!((server.get("/db/_local/a").json()["n"].clone(), server.get("/db/_local/b").status), (json!(1), 200));
    let deleted = server.delete("/db/_local/a");
    assert_eq!((deleted.status, deleted.header("etag")), (200, Some("\"0-0\"")));
}

#[test]
fn conflicting_listing_parameters_are_rejected() {
    let server = TestServer::new();
    server.database("db", &[json!({"_id": "a"})]);
    for path in ["/db/_all_docs", "/db/_design_docs", "/db/_local_docs"] {
        assert_eq!(refusal(&server.post(path, &json!([]))), (400, "bad_request".to_owned()), "{path}");
        for more in ["key=%22a%22", "startkey=%22a%22", "end_key=%22a%22"] {
            let refused = server.get(&format!("{path}?keys=%5B%22a%22,%22b%22%5D&{more}"));
            assert_eq!(refusal(&refused), (400, "query_parse_error".to_owned()), "{path} {more}");
        }
    }
}

#[test]
fn design_document_listing_counts_design_documents() {
    let server = TestServer::new();
    server.database("db", &["0", "_design/x", "_design/y", "a", "b"].map(|id| json!({ "_id": id })));
    let listed = |query: &str| {
        let listed = server.get(&format!("/db/_design_docs{query}")).json();
        (listed["total_rows"].clone(), listed["offset"].clone(), listed["rows"].as_array().unwrap().len())
    };
    assert_eq!(listed(""), (json!(2), json!(0), 2));
    assert_eq!(listed("?startkey=%22_design/y%22"), (json!(2), json!(1), 1));
    assert_eq!(listed("?descending=true&limit=1"), (json!(2), json!(0), 1));
    assert_eq!(listed("?skip=1"), (json!(2), json!(1), 1));
}

#[test]
fn location_is_the_url_that_the_client_sees() {
    let server = TestServer::new();
    server.database("db", &[]);
    let put = |path: &str, headers: &[(&str, &str)]| {
        let headers = [&[("Content-Type", "application/json")], headers].concat();
        let answer = server.send_as_admin("PUT", path, &headers, b"{}");
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.header("location").unwrap().to_owned()
    };
    assert_eq!(put("/db/a", &[]), "http://localhost/db/a");
    assert_eq!(put("/db/b%2Fc/d/e%20f", &[]), "http://localhost/db/b%2Fc/d/e%20f");
    let forwarded = ("X-Forwarded-Host", "db.example");
    assert_eq!(put("/db/c", &[forwarded]), "http://db.example/db/c");
    assert_eq!(put("/db/d", &[forwarded, ("X-Forwarded-Proto", "https")]), "https://db.example/db/d");
    assert_eq!(put("/new", &[forwarded, ("X-Forwarded-Ssl", "on")]), "https://db.example/new");
}

#[test]
fn content_types_of_attachments_are_limited() {
    let server = TestServer::new();
    server.database("db", &[]);
    let (long, short) = (format!("text/{}", "x".repeat(1020)), format!("text/{}", "x".repeat(1019)));
    let put = |name: &str, kind: &str| {
        server.send_as_admin("PUT", &format!("/db/{name}/file"), &[("Content-Type", kind)], b"x").status
    };
    assert_eq!((put("a", &long), put("b", &short)), (400, 201));
    let file = |kind: &str| json!({"_attachments": {"file": {"data": "", "content_type": kind}}});
    assert_eq!((server.put("/db/c", &file(&long)).status, server.put("/db/d", &file(&short)).status), (400, 201));
    assert_eq!(server.get("/db/a").status, 404);
}

#[test]
fn pruned_revisions_are_not_listed() {
    let server = TestServer::new();
    server.database("db", &[]);
    assert_eq!(server.send_as_admin("PUT", "/db/_revs_limit", &[], b"2").status, 200);
    let mut body = json!({});
    for _ in 0..5 {
        body = json!({ "_rev": server.put("/db/a", &body).json()["rev"] });
    }
    assert_eq!(server.get("/db/a?revs=true").json()["_revisions"]["ids"].as_array().unwrap().len(), 2);
}

#[test]
fn responses_are_compressed_for_clients_that_accept_it() {
    use std::io::{Read, Write};
    let server = TestServer::new();
    let docs: Vec<_> = (0..3000).map(|n| json!({"_id": format!("d{n:04}"), "text": "some text ".repeat(5)})).collect();
    server.database("db", &docs);
    let authorization = crate::client::basic("admin", "secret");
    let get = |path: &str, accepted: &str| {
        let mut stream = std::net::TcpStream::connect(server.address()).unwrap();
        let head =
            format!("GET {path} HTTP/1.0\r\nAuthorization: {authorization}\r\nAccept-Encoding: {accepted}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        let end = received.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let (head, body) =
            (String::from_utf8_lossy(&received[..end]).to_ascii_lowercase(), received[end + 4..].to_vec());
        (head.contains("content-encoding: gzip"), body)
    };
    // A large response is streamed, a middling one is complete.
    for path in ["/db/_all_docs?include_docs=true", "/db/_all_docs?limit=100"] {
        let (is_compressed, plain) = get(path, "identity");
        assert!(!is_compressed, "{path}");
        for accepted in ["gzip", "deflate, gzip;q=0.5, br"] {
            let (is_compressed, body) = get(path, accepted);
            assert!(is_compressed && body.len() * 3 < plain.len(), "{path}: {} of {}", body.len(), plain.len());
            let mut unpacked = Vec::new();
            flate2::read::MultiGzDecoder::new(&body[..]).read_to_end(&mut unpacked).unwrap();
            assert!(unpacked == plain, "{path}");
        }
        assert!(!get(path, "gzip;q=0").0 && !get(path, "br").0, "{path}");
    }
    assert!(!get("/", "gzip").0, "a small response");
    assert!(!get("/db/_changes", "gzip").0, "a feed");
    let text = vec![b'x'; 5000];
    assert_eq!(server.send_as_admin("PUT", "/db/a/f", &[("Content-Type", "text/plain")], &text).status, 201);
    assert_eq!(get("/db/a/f", "gzip"), (false, text), "an attachment");
}

#[test]
fn unsorted_queries_return_documents_in_order_of_creation() {
    let server = TestServer::new();
    server.database("db", &["c", "a", "b"].map(|id| json!({"_id": id, "n": 1})));
    let found = server.post("/db/_find", &json!({"selector": {"n": 1}, "fields": ["_id"]})).json();
    assert_eq!(found["docs"], json!([{"_id": "c"}, {"_id": "a"}, {"_id": "b"}]));
}
