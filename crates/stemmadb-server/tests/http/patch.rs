//! Updates by patches: of one document, and of all that match.

use serde_json::{Value, json};

use crate::client::{Response, TestServer};

fn server() -> TestServer {
    let server = TestServer::new();
    let documents = [
        json!({"_id": "a", "n": 1, "kind": "x", "owner": "ann"}),
        json!({"_id": "b", "n": 2, "kind": "x", "owner": "ann"}),
        json!({"_id": "c", "n": "text", "kind": "y", "owner": "eve"}),
    ];
    server.database("db", &documents);
    server
}

fn patch(server: &TestServer, path: &str, body: &Value) -> Response {
    let headers = [("Content-Type", "application/json")];
    server.send_as_admin("PATCH", path, &headers, body.to_string().as_bytes())
}

fn without_rev(server: &TestServer, path: &str) -> Value {
    let mut document = server.get(path).json();
    document.as_object_mut().unwrap().remove("_rev");
    document
}

#[test]
fn patches_change_fields_and_keep_the_rest() {
    let server = server();
    let answer = patch(&server, "/db/a", &json!({"$inc": {"n": 4}, "$push": {"tags": "t"}}));
    assert_eq!(answer.status, 201);
    let revision = answer.json()["rev"].as_str().unwrap().to_owned();
    assert!(revision.starts_with("2-"), "{revision}");
    assert_eq!(answer.header("etag"), Some(format!("\"{revision}\"").as_str()));
    let changed = json!({"_id": "a", "n": 5, "kind": "x", "owner": "ann", "tags": ["t"]});
    assert_eq!(without_rev(&server, "/db/a"), changed);
    // A merge patch, with the id and the revision that were read.
    let merged = json!({"_id": "a", "_rev": revision, "tags": null, "kind": "z"});
    assert_eq!(patch(&server, "/db/a", &merged).status, 201);
    assert_eq!(without_rev(&server, "/db/a"), json!({"_id": "a", "n": 5, "kind": "z", "owner": "ann"}));
    // That revision is no longer current.
    assert_eq!(patch(&server, "/db/a", &merged).status, 409);
    assert_eq!(patch(&server, &format!("/db/a?rev={revision}"), &json!({"n": 1})).status, 409);
    // A patch that changes nothing keeps the revision.
    let current = server.get("/db/a").json()["_rev"].clone();
    assert_eq!(patch(&server, "/db/a", &json!({"n": 5})).json()["rev"], current);
    for (path, body, status) in [
        ("/db/none", json!({"n": 1}), 404),
        ("/none/a", json!({"n": 1}), 404),
        ("/db/a", json!([]), 400),
        ("/db/a", json!({"$jump": {"n": 1}}), 400),
        ("/db/a", json!({"$inc": {"kind": 1}}), 400),
        ("/db/a", json!({"_id": "b", "n": 1}), 400),
        ("/db/a", json!({"_deleted": true}), 400),
        ("/db/a?new_edits=false", json!({"n": 1}), 400),
        ("/db/_local/x", json!({"n": 1}), 405),
    ] {
        assert_eq!(patch(&server, path, &body).status, status, "{path} {body}");
    }
    assert_eq!(server.get("/db/a").json()["_rev"], current);
}

#[test]
fn patches_keep_attachments() {
    let server = server();
    let revision = server.get("/db/a").json()["_rev"].as_str().unwrap().to_owned();
    let headers = [("Content-Type", "text/plain")];
    let attached = server.send_as_admin("PUT", &format!("/db/a/note.txt?rev={revision}"), &headers, b"hello");
    assert_eq!(attached.status, 201);
    assert_eq!(patch(&server, "/db/a", &json!({"n": 9})).status, 201);
    let document = server.get("/db/a").json();
    assert_eq!((&document["n"], &document["_attachments"]["note.txt"]["length"]), (&json!(9), &json!(5)));
    assert_eq!(server.send_as_admin("GET", "/db/a/note.txt", &[], b"").text, "hello");
}

#[test]
fn matching_documents_change_together() {
    let server = server();
    let update = |body: Value| server.post("/db/_update_where", &body);
    let answer = update(json!({"selector": {"kind": "x"}, "patch": {"$inc": {"n": 10}}}));
    assert_eq!((answer.status, answer.json()), (200, json!({"ok": true, "changed": 2})));
    assert_eq!(server.get("/db/b").json()["n"], 12);
    // One document doesn't fit, so none changes.
    let answer = update(json!({"selector": {}, "patch": {"$inc": {"n": 10}}}));
    assert_eq!(answer.status, 400);
    assert!(answer.json()["reason"].as_str().unwrap().starts_with("c: "), "{answer:?}");
    assert_eq!(server.get("/db/b").json()["n"], 12);
    assert_eq!(update(json!({"selector": {"n": {"$gt": 0}}, "patch": {"n": 0}, "limit": 1})).json()["changed"], 1);
    assert_eq!(update(json!({"selector": {"kind": "x"}, "delete": true})).json()["changed"], 2);
    assert_eq!(server.get("/db/a").status, 404);
    assert_eq!(update(json!({"selector": {"kind": "x"}, "delete": true})).json()["changed"], 0);
    for bad in [
        json!({}),
        json!([]),
        json!({"selector": {}}),
        json!({"patch": {"n": 1}}),
        json!({"selector": {}, "patch": {"n": 1}, "delete": true}),
        json!({"selector": {}, "delete": false}),
        json!({"selector": {}, "patch": {"$jump": {}}, "limit": 0, "x": 1}),
        json!({"selector": {"$jump": 1}, "patch": {}}),
        json!({"selector": {}, "patch": {}, "limit": -1}),
    ] {
        assert_eq!(update(bad.clone()).status, 400, "{bad}");
    }
}

#[test]
fn validation_functions_see_patched_documents() {
    let server = server();
    let guard = "function(newDoc, oldDoc) { if (oldDoc && oldDoc.owner == 'eve') throw({forbidden: 'of eve'}); }";
    server.design("db", "guard", json!({"validate_doc_update": guard}));
    assert_eq!(patch(&server, "/db/a", &json!({"n": 7})).status, 201);
    let answer = patch(&server, "/db/c", &json!({"n": 7}));
    assert_eq!((answer.status, &answer.json()["reason"]), (403, &json!("of eve")));
    // All or none, and design documents are left alone.
    let answer = server.post("/db/_update_where", &json!({"selector": {}, "patch": {"m": 1}}));
    assert_eq!((answer.status, &answer.json()["reason"]), (403, &json!("c: of eve")));
    assert_eq!(server.get("/db/a").json().get("m"), None);
    let answer = server.post("/db/_update_where", &json!({"selector": {"owner": {"$ne": "eve"}}, "patch": {"m": 1}}));
    assert_eq!(answer.json(), json!({"ok": true, "changed": 2}));
}

#[test]
fn concurrent_patches_are_all_applied() {
    let server = server();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    assert_eq!(patch(&server, "/db/a", &json!({"$inc": {"n": 1}})).status, 201);
                }
            });
        }
    });
    assert_eq!(server.get("/db/a").json()["n"], 41);
}
