//! The feed through functions of design documents.

use serde_json::json;

use crate::client::{Answer, Started};

fn ids(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["results"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn filters_and_views_keep_what_they_keep() {
    let server = Started::new();
    let docs: Vec<_> = (0..600).map(|n| json!({"_id": format!("d{n:03}"), "n": n})).collect();
    server.database("db", &docs);
    server.design("db", "f", json!({
        "filters": {
            "least": "function(doc, req) { return doc.n >= req.query.least && req.userCtx.name === 'admin' && !('Authorization' in req.headers) }",
            "deleted": "function(doc, req) { return doc._deleted === true }",
            "throws": "function(doc, req) { throw {forbidden: 'no'} }",
            "broken": "function(doc {",
        },
        "views": {"even": {"map": "function(doc) { if (doc.n % 2 === 0 && doc.n < 10) emit(1) }"}},
    }));
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
