//! `validate_doc_update` before every write through any route; and update functions.

use serde_json::{Value, json};

use crate::client::{ADMIN, TestServer};

fn server_with_validation() -> TestServer {
    let server = TestServer::new();
    server.database("db", &[json!({"_id": "old", "type": "book", "owner": "ann"})]);
    server.design(
        "db",
        "guard",
        json!({
            "validate_doc_update": "function(newDoc, oldDoc, userCtx, secObj) {
            if (newDoc._deleted) { if (oldDoc.keep) throw({forbidden: 'it is kept'}); return; }
            if (!newDoc.type) throw({forbidden: 'no type'});
            if (newDoc.type == 'secret') throw({unauthorized: 'not you, ' + userCtx.name + ' of ' + userCtx.db});
            if (oldDoc && oldDoc.owner != newDoc.owner) throw({forbidden: 'the owner stays'});
            if (newDoc.type == 'odd') null.x;
        }",
            "updates": {
                "count": "function(doc, req) {
                if (!doc) return [{_id: req.id || req.uuid, type: 'counter', n: 1}, 'made'];
                doc.n = (doc.n || 0) + Number(req.query.by || 1); return [doc, {json: {n: doc.n}, headers: \
                {'X-Mine': 'yes', 'Set-Cookie': 'a=b'}}];
            }",
                "nothing": "function(doc, req) { return [null, {code: 418, body: req.method + req.body + \
                ('Authorization' in req.headers)}] }",
                "typeless": "function(doc, req) { return [{_id: 'typeless'}, ''] }",
                "broken": "function(doc, req) { return 5 }",
            },
        }),
    );
    server
}

#[test]
fn every_write_route_is_validated() {
    let server = server_with_validation();
    let refused = |answer: crate::client::Response, status: u16, reason: &str| {
        assert_eq!((answer.status, answer.json()["reason"].as_str()), (status, Some(reason)), "{answer:?}");
    };
    refused(server.put("/db/x", &json!({})), 403, "no type");
    refused(server.post("/db", &json!({})), 403, "no type");
    refused(server.put("/db/x", &json!({"type": "secret"})), 401, "not you, admin of db");
    assert_eq!(server.put("/db/x", &json!({"type": "odd"})).status, 500);
    assert_eq!(server.put("/db/x", &json!({"type": "book"})).status, 201);
    let revision = server.get("/db/old").json()["_rev"].clone();
    refused(server.put("/db/old", &json!({"_rev": revision, "type": "book", "owner": "eve"})), 403, "the owner stays");
    let rows = server
        .post(
            "/db/_bulk_docs",
            &json!({"docs": [{"_id": "1", "type": "a"}, {"_id": "2"}, {"_id": "3", "type": "secret"}]}),
        )
        .json();
    assert_eq!(
        (&rows[0]["ok"], &rows[1]["error"], &rows[2]["error"]),
        (&json!(true), &json!("forbidden"), &json!("unauthorized"))
    );
    let foreign = json!({"new_edits": false, "docs": [
        {"_id": "4", "_rev": "1-aa", "_revisions": {"start": 1, "ids": ["00000000000000000000000000000001"]},
            "type": "a"},
    ]});
    assert_ne!(server.post("/db/_bulk_docs", &foreign).status, 500);
    let foreign = json!({"new_edits": false, "docs": [
        {"_id": "4", "_rev": "1-00000000000000000000000000000001", "type": "a"},
        {"_id": "5", "_rev": "1-00000000000000000000000000000001"},
        {"_id": "old", "_rev": "2-00000000000000000000000000000002",
            "_revisions": {"start": 2, "ids": ["00000000000000000000000000000002",
                &revision.as_str().unwrap()[2..]]}, "type": "book"},
    ]});
    let rows = server.post("/db/_bulk_docs", &foreign).json();
    let reported: Vec<&Value> = rows.as_array().unwrap().iter().map(|row| &row["reason"]).collect();
    assert_eq!(reported, ["no type", "the owner stays"]);
    assert_eq!((server.get("/db/4").status, server.get("/db/5").status), (200, 404));
    // Local documents and design documents are not validated.
    assert_eq!(server.put("/db/_local/x", &json!({})).status, 201);
    server.design("db", "another", json!({"x": 1}));
}

#[test]
fn deletions_and_attachments_are_validated() {
    let server = server_with_validation();
    let kept = server.put("/db/kept", &json!({"type": "a", "keep": true})).json()["rev"].as_str().unwrap().to_owned();
    let answer = server.ask_as(ADMIN, "DELETE", &format!("/db/kept?rev={kept}"), None);
    assert_eq!((answer.status, answer.json()["reason"].as_str()), (403, Some("it is kept")));
    let file = server.send(
        "PUT",
        "/db/new/file.txt",
        &[("Authorization", &crate::client::basic("admin", "secret")), ("Content-Type", "text/plain")],
        b"x",
    );
    assert_eq!(file.status, 403, "{file:?}");
    assert_eq!(server.get("/db/new").status, 404);
    let copied = server.send(
        "COPY",
        "/db/kept",
        &[("Authorization", &crate::client::basic("admin", "secret")), ("Destination", "copy")],
        b"",
    );
    assert_eq!(copied.status, 201, "{copied:?}");
}

#[test]
fn validation_applies_from_write_until_deletion() {
    let server = TestServer::new();
    server.database("db", &[]);
    assert_eq!(server.put("/db/1", &json!({})).status, 201);
    server.design("db", "no", json!({"validate_doc_update": "function() { throw {forbidden: 'closed'} }"}));
    assert_eq!(server.put("/db/2", &json!({})).status, 403);
    server.design("db", "no", json!({"validate_doc_update": "function(doc) { if (doc.n) throw {forbidden: 'n'} }"}));
    assert_eq!((server.put("/db/2", &json!({})).status, server.put("/db/3", &json!({"n": 1})).status), (201, 403));
    let revision = server.get("/db/_design/no").json()["_rev"].as_str().unwrap().to_owned();
    assert_eq!(server.ask_as(ADMIN, "DELETE", &format!("/db/_design/no?rev={revision}"), None).status, 200);
    assert_eq!(server.put("/db/3", &json!({"n": 1})).status, 201);
    // A function that can't be compiled refuses every write.
    server.design("db", "no", json!({"validate_doc_update": "function( {"}));
    assert_eq!(server.put("/db/4", &json!({})).status, 500);
    assert_eq!(server.get("/db/4").status, 404);
}

#[test]
fn update_functions_write_and_respond() {
    let server = server_with_validation();
    let path = "/db/_design/guard/_update";
    let made = server.put(&format!("{path}/count/c"), &json!({}));
    assert_eq!((made.status, made.text.as_str()), (201, "made"));
    assert!(made.header("X-Couch-Update-NewRev").unwrap().starts_with("1-"));
    let counted = server.put(&format!("{path}/count/c?by=5"), &json!({}));
    assert_eq!((counted.status, counted.json()), (201, json!({"n": 6})));
    assert_eq!((counted.header("X-Mine"), counted.header("Set-Cookie")), (Some("yes"), None));
    assert_eq!(server.get("/db/c").json()["n"], 6);
    assert_eq!(server.post(&format!("{path}/count/c"), &json!({})).status, 201);
    assert_ne!(server.get("/db/c").json()["n"], 6);
    assert_eq!(server.post(&format!("{path}/count"), &json!({})).status, 201);
    assert_eq!(server.put(&format!("{path}/count"), &json!({})).status, 201);
    assert_eq!(server.put(&format!("{path}/count/with/slashes"), &json!({})).status, 201);
    assert_eq!(server.get("/db/with%2Fslashes").json()["n"], 1);
    let nothing = server.post(&format!("{path}/nothing"), &json!({"a": 1}));
    assert_eq!((nothing.status, nothing.text.as_str()), (418, "POST{\"a\":1}false"));
    assert_eq!(server.post(&format!("{path}/typeless"), &json!({})).status, 403, "its document is validated");
    assert_eq!(server.post(&format!("{path}/broken"), &json!({})).status, 500);
    assert_eq!(server.post(&format!("{path}/missing"), &json!({})).status, 404);
}
