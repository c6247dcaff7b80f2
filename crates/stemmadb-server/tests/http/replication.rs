//! The server as a replicator: between servers, once and continuously, through restarts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::Started;

/// Every leaf of every document of a database: with its history, its body and its files.
fn state(server: &Started, database: &str) -> BTreeMap<String, Value> {
    let changes = server.get(&format!("/{database}/_changes?style=all_docs")).json();
    let rows = changes["results"].as_array().unwrap().iter().map(|row| {
        let id = row["id"].as_str().unwrap().to_owned();
        let leaves = server.get(&format!("/{database}/{id}?open_revs=all&revs=true&attachments=true")).json();
        let mut leaves = leaves.as_array().unwrap().clone();
        leaves.sort_by_key(|leaf| leaf["ok"]["_rev"].to_string());
        (id, Value::Array(leaves))
    });
    rows.collect()
}

/// Waits for a condition.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn fill(server: &Started, database: &str) {
    let docs: Vec<_> = (0..150).map(|n| json!({"_id": format!("d{n:03}"), "n": n, "text": "größe"})).collect();
    server.database(database, &docs);
    let revision = server.get(&format!("/{database}/d001")).json()["_rev"].as_str().unwrap().to_owned();
    server.delete(&format!("/{database}/d001?rev={revision}"));
    // A conflict, and files.
    let foreign = json!({"_id": "d002", "_rev": "1-other", "n": "other"});
    server.post(&format!("/{database}/_bulk_docs"), &json!({"docs": [foreign], "new_edits": false}));
    let files = json!({"a/b": {"data": "aGVsbG8=", "content_type": "text/plain"}, "empty": {"data": "", "content_type": "x/y"}});
    assert_eq!(server.put(&format!("/{database}/files"), &json!({"n": 1, "_attachments": files})).status, 201);
    server.design(database, "d", json!({"filters": {"few": "function(doc, req) { return doc.n < req.query.most }"}}));
}

#[test]
fn a_database_is_pushed_and_pulled_and_what_was_done_is_not_done_again() {
    let (one, two) = (Started::new(), Started::new());
    fill(&one, "db");
    let push = json!({"source": "db", "target": two.url("db"), "create_target": true});
    let first = one.post("/_replicate", &push);
    assert_eq!(first.status, 200, "{first:?}");
    assert_eq!(first.json()["history"][0]["docs_written"], 153, "{first:?}");
    assert_eq!(state(&one, "db"), state(&two, "db"));
    let again = one.post("/_replicate", &push).json();
    assert_eq!((&again["no_changes"], &again["history"][0]["docs_read"]), (&json!(true), &json!(0)));
    one.put("/db/late", &json!({"n": 1}));
    assert_eq!(one.post("/_replicate", &push).json()["history"][0]["docs_written"], 1);
    // And back, into another database of the first.
    let pull = json!({"source": two.url("db"), "target": "copy", "create_target": true});
    let pulled = one.post("/_replicate", &pull);
    assert_eq!(pulled.status, 200, "{pulled:?}");
    assert_eq!(state(&one, "copy"), state(&two, "db"));
}

#[test]
fn a_replication_is_narrowed() {
    let server = Started::new();
    fill(&server, "db");
    let of = |name: &str, more: Value| {
        let mut body = json!({"source": "db", "target": name, "create_target": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let done = server.post("/_replicate", &body);
        assert_eq!(done.status, 200, "{done:?}");
        state(&server, name).into_keys().collect::<Vec<_>>()
    };
    assert_eq!(of("ids", json!({"doc_ids": ["d003", "files", "nothing"]})), ["d003", "files"]);
    assert_eq!(of("selected", json!({"selector": {"n": {"$in": [7, 8]}}})), ["d007", "d008"]);
    let filtered = json!({"source": server.url("db"), "filter": "d/few", "query_params": {"most": "2"}});
    // The deleted one has no number, and `undefined < 2` is false.
    assert_eq!(of("filtered", filtered), ["d000", "files"]);
}

#[test]
fn what_cant_be_replicated_is_told() {
    let server = Started::new();
    server.database("db", &[]);
    for (body, status) in [
        (json!({"source": "db"}), 400),
        (json!({"source": "nothing", "target": "db"}), 500),
        (json!({"source": "http://127.0.0.1:1/x", "target": "db"}), 500),
        (json!({"source": server.url("db").replace("secret", "wrong"), "target": "db"}), 500),
        (json!({"source": "https://127.0.0.1/x", "target": "db"}), 501),
        (json!({"cancel": true, "source": "a", "target": "db"}), 404),
    ] {
        assert_eq!(server.post("/_replicate", &body).status, status, "{body}");
    }
}

#[test]
fn a_continuous_replication_goes_on_until_it_is_cancelled() {
    let server = Started::new();
    server.database("a", &[]);
    server.database("b", &[]);
    let wanted = json!({"source": "a", "target": "b", "continuous": true});
    let begun = server.post("/_replicate", &wanted);
    assert_eq!(begun.status, 202, "{begun:?}");
    for n in 0..3 {
        server.put(&format!("/a/{n}"), &json!({}));
        until("it arrives", || server.get(&format!("/b/{n}")).status == 200);
    }
    let jobs = server.get("/_scheduler/jobs").json();
    assert_eq!((&jobs["total_rows"], &jobs["jobs"][0]["id"]), (&json!(1), &begun.json()["_local_id"]));
    let cancelled =
        server.post("/_replicate", &json!({"source": "a", "target": "b", "continuous": true, "cancel": true}));
    assert_eq!(cancelled.status, 200, "{cancelled:?}");
    assert_eq!(server.get("/_scheduler/jobs").json()["total_rows"], 0);
}

#[test]
fn two_servers_agree_through_restarts_of_either() {
    let (mut one, mut two) = (Started::new(), Started::new());
    fill(&one, "db");
    two.database("db", &[json!({"_id": "own", "n": 2})]);
    one.database("_replicator", &[]);
    let there = two.url("db");
    one.put("/_replicator/push", &json!({"source": one.url("db"), "target": there, "continuous": true}));
    one.put("/_replicator/pull", &json!({"source": there, "target": "db", "continuous": true}));
    let agree = |one: &Started, two: &Started| until("both agree", || state(one, "db") == state(two, "db"));
    agree(&one, &two);
    assert!(state(&one, "db").contains_key("own"));
    two.restart();
    two.put("/db/after", &json!({"restart": "of two"}));
    one.put("/db/meanwhile", &json!({"n": 3}));
    until("what was written arrives", || one.get("/db/after").status == 200 && two.get("/db/meanwhile").status == 200);
    one.restart();
    two.put("/db/later", &json!({"restart": "of one"}));
    one.put("/db/last", &json!({"n": 4}));
    until("what was written arrives", || one.get("/db/later").status == 200 && two.get("/db/last").status == 200);
    agree(&one, &two);
    let docs = one.get("/_scheduler/docs").json();
    let told: Vec<_> = docs["docs"].as_array().unwrap().iter().map(|doc| (&doc["doc_id"], &doc["state"])).collect();
    assert_eq!(told.len(), 2, "{docs}");
    // Taken away, it ends.
    let revision = one.get("/_replicator/pull").json()["_rev"].as_str().unwrap().to_owned();
    one.delete(&format!("/_replicator/pull?rev={revision}"));
    until("the job is gone", || one.get("/_scheduler/jobs").json()["total_rows"] == 1);
}

#[test]
fn a_document_that_asks_for_one_run_is_done_once() {
    let mut server = Started::new();
    fill(&server, "db");
    server.database("_replicator", &[json!({"_id": "once", "source": "db", "target": "copy", "create_target": true})]);
    server.put("/_replicator/wrong", &json!({"source": "db"}));
    let state_of =
        |server: &Started, id: &str| server.get(&format!("/_scheduler/docs/_replicator/{id}")).json()["state"].clone();
    until("it is done", || state_of(&server, "once") == "completed");
    until("it is refused", || state_of(&server, "wrong") == "failed");
    assert_eq!(state(&server, "copy"), state(&server, "db"));
    server.delete("/copy");
    server.restart();
    until("it is known", || state_of(&server, "once") == "completed");
    assert_eq!(server.get("/copy").status, 404);
}
