//! The changes feed with filter functions, selectors and ids.

use serde_json::json;

use crate::client::{Response, TestServer};

fn ids(answer: &Response) -> Vec<String> {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["results"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn filters_and_views_select_changes() {
    let server = TestServer::new();
    let docs: Vec<_> = (0..600).map(|n| json!({"_id": format!("d{n:03}"), "n": n})).collect();
    server.database("db", &docs);
    server.design(
        "db",
        "f",
        json!({
            "filters": {
                "least": "function(doc, req) { return doc.n >= req.query.least && req.userCtx.name === 'admin' && \
                !('Authorization' in req.headers) }",
                "deleted": "function(doc, req) { return doc._deleted === true }",
                "throws": "function(doc, req) { throw {forbidden: 'no'} }",
                "broken": "function(doc {",
            },
            "views": {"even": {"map": "function(doc) { if (doc.n % 2 === 0 && doc.n < 10) emit(1) }"}},
        }),
    );
    assert_eq!(ids(&server.get("/db/_changes?filter=f/least&least=597")), ["d597", "d598", "d599"]);
    assert_eq!(ids(&server.get("/db/_changes?filter=f/least&least=100&limit=2")), ["d100", "d101"]);
    assert_eq!(ids(&server.get("/db/_changes?filter=f/least&least=100&limit=2&descending=true")), ["d599", "d598"]);
    assert_eq!(ids(&server.get("/db/_changes?filter=_view&view=f/even")), ["d000", "d002", "d004", "d006", "d008"]);
    let first = server.get("/db/_changes?filter=f/least&least=100&limit=2").json();
    let next = server
        .get(&format!("/db/_changes?filter=f/least&least=100&limit=2&since={}", first["last_seq"].as_str().unwrap()));
    assert_eq!(ids(&next), ["d102", "d103"]);
    let revision = server.get("/db/d005").json()["_rev"].as_str().unwrap().to_owned();
    server.ask_as(crate::client::ADMIN, "DELETE", &format!("/db/d005?rev={revision}"), None);
    assert_eq!(ids(&server.get("/db/_changes?filter=f/deleted")), ["d005"]);
    for (path, status) in [
        ("filter=f/nothing", 404),
        ("filter=nothing/f", 404),
        ("filter=_view&view=f/nothing", 404),
        ("filter=f/broken", 500),
        ("filter=f/throws", 403),
        ("filter=none", 400),
        ("filter=_view&view=x", 400),
    ] {
        let answer = server.get(&format!("/db/_changes?{path}"));
        assert_eq!(answer.status, status, "{path}: {answer:?}");
    }
}

#[test]
fn indexed_feed_equals_a_scan_of_every_change() {
    let server = TestServer::new();
    let docs: Vec<_> = (0..1600).map(|n| json!({"_id": format!("d{n:04}"), "kind": n % 80, "n": n})).collect();
    server.database("db", &docs);
    for n in [17, 97, 500] {
        let revision = server.get(&format!("/db/d{n:04}")).json()["_rev"].clone();
        // A deletion with a body, another without one, and a change.
        let body = match n {
            17 => json!({"_rev": revision, "_deleted": true, "kind": 17}),
            97 => json!({"_rev": revision, "_deleted": true}),
            _ => json!({"_rev": revision, "kind": 17, "n": n}),
        };
        assert_eq!(server.put(&format!("/db/d{n:04}"), &body).status, 201);
    }
    let rows = |answer: &serde_json::Value| answer["results"].as_array().unwrap().clone();
    let all = rows(&server.get("/db/_changes?include_docs=true").json());
    let expected: Vec<_> = all.into_iter().filter(|row| row["doc"]["kind"] == 17).collect();
    assert_eq!(expected.len(), 20);
    let ask = |query: &str| {
        server
            .post(
                &format!("/db/_changes?filter=_selector&include_docs=true{query}"),
                &json!({"selector": {"kind": 17}}),
            )
            .json()
    };
    assert_eq!(rows(&ask("")), expected);
    let mut backwards = rows(&ask("&descending=true"));
    backwards.reverse();
    assert_eq!(backwards, expected);
    // Page by page, as PouchDB requests it.
    let (mut pages, mut since) = (Vec::new(), "0".to_owned());
    loop {
        let page = ask(&format!("&limit=6&since={since}"));
        since = page["last_seq"].as_str().unwrap().to_owned();
        let found = rows(&page);
        if found.is_empty() {
            break;
        }
        pages.extend(found);
    }
    assert_eq!(pages, expected);
    let ids = json!({"doc_ids": ["d0500", "d0003", "nothing", "d0017"]});
    let named = rows(&server.post("/db/_changes?filter=_doc_ids", &ids).json());
    let named: Vec<_> = named.iter().map(|row| (row["id"].as_str().unwrap(), row["deleted"] == true)).collect();
    assert_eq!(named, [("d0003", false), ("d0017", true), ("d0500", false)]);
}
