//! Conflict rules of databases, and of topologies.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::TestServer;

/// Waits for a condition.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(60), "timed out: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Adds a branch to a document.
fn branch(server: &TestServer, database: &str, generation: u32, hash: &str, mut document: Value) {
    let text = |letter: &str| letter.repeat(32);
    let ids: Vec<String> = if generation == 1 { vec![text(hash)] } else { vec![text(hash), text("a")] };
    document["_rev"] = format!("{generation}-{}", ids[0]).into();
    document["_revisions"] = json!({"start": generation, "ids": ids});
    let written = server.post(&format!("/{database}/_bulk_docs"), &json!({"docs": [document], "new_edits": false}));
    assert_eq!(written.status, 201, "{written:?}");
}

fn document(server: &TestServer, path: &str) -> Value {
    server.get(&format!("{path}?conflicts=true")).json()
}

#[test]
fn conflict_rules_resolve_alike_on_all_servers() {
    let (hub, other) = (TestServer::new(), TestServer::new());
    for server in [&hub, &other] {
        server.database("db", &[]);
        branch(server, "db", 1, "a", json!({"_id": "x", "title": "Solaris", "year": 1960}));
    }
    branch(&hub, "db", 2, "b", json!({"_id": "x", "title": "Solaris", "year": 1961}));
    branch(&other, "db", 2, "c", json!({"_id": "x", "title": "Solaris", "year": 1960, "shelf": 4}));
    let nodes = json!([{"name": "hub", "database": "db"}, {"name": "other", "database": other.url("db")}]);
    let topology = json!({"nodes": nodes, "shape": "group", "conflicts": {"rule": "merge"}});
    assert_eq!(hub.put("/_topology/all", &topology).status, 201);
    let merged = |server: &TestServer| {
        let found = document(server, "/db/x");
        found["year"] == 1961 && found["shelf"] == 4 && found["_conflicts"].is_null()
    };
    until("both are merged", || merged(&hub) && merged(&other));
    until("both agree", || document(&hub, "/db/x") == document(&other, "/db/x"));
    assert_eq!(other.get("/db/_conflict_rule").json()["rule"], "merge");

    // Nothing is written when all agree.
    std::thread::sleep(Duration::from_millis(500));
    let rows = |server: &TestServer| server.get("/db/_changes").json()["results"].clone();
    let before = (rows(&hub), rows(&other));
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!((rows(&hub), rows(&other)), before);

    let shown = hub.get("/_topology/all").json();
    assert_eq!(shown["conflicts"], json!({"rule": "merge"}), "{shown}");
    assert_eq!(hub.delete("/db/_conflict_rule").status, 200);
    assert_eq!(hub.get("/db/_conflict_rule").status, 404);
}

#[test]
fn conflict_function_of_a_design_document() {
    let mut server = TestServer::new();
    let function = "function (versions, ancestor) { \
        return {tags: versions.map((version) => version.tag).sort(), had: ancestor ? ancestor.tag : null}; }";
    server.database("db", &[]);
    branch(&server, "db", 1, "a", json!({"_id": "old", "tag": "o"}));
    branch(&server, "db", 2, "b", json!({"_id": "old", "tag": "p"}));
    branch(&server, "db", 2, "c", json!({"_id": "old", "tag": "q"}));
    let rule = json!({"rule": "function", "function": "rules/tags"});
    assert_eq!(server.put("/db/_conflict_rule", &rule).status, 201);
    // The function may arrive after the conflicts.
    until("it fails", || server.get("/db/_conflict_rule").json()["status"]["failed"] == 1);
    server.put("/db/_design/rules", &json!({"conflicts": {"tags": function}}));
    until("it is resolved", || document(&server, "/db/old")["tags"] == json!(["p", "q"]));
    assert_eq!(document(&server, "/db/old")["had"], "o");

    // The rule applies again after a restart, and to later conflicts.
    server.restart();
    branch(&server, "db", 1, "d", json!({"_id": "new", "tag": "y"}));
    branch(&server, "db", 1, "e", json!({"_id": "new", "tag": "x"}));
    until("it is resolved", || document(&server, "/db/new")["tags"] == json!(["x", "y"]));
    let status = server.get("/db/_conflict_rule").json();
    assert_eq!((&status["status"]["failed"], &status["status"]["error"]), (&json!(0), &Value::Null), "{status}");

    // Another rule, and another database of the name.
    let later = json!({"rule": "last-writer", "field": "at"});
    assert_eq!(server.put("/db/_conflict_rule", &later).status, 201);
    branch(&server, "db", 1, "d", json!({"_id": "time", "at": 2}));
    branch(&server, "db", 1, "e", json!({"_id": "time", "at": 1}));
    until("it is resolved", || {
        let found = document(&server, "/db/time");
        found["at"] == 2 && found["_conflicts"].is_null()
    });
    assert_eq!(server.delete("/db").status, 200);
    server.database("db", &[]);
    until("the rule is gone", || server.get("/db/_conflict_rule").status == 404);
}

#[test]
fn malformed_conflict_rules_are_refused() {
    let server = TestServer::new();
    server.database("db", &[]);
    for (body, reason) in [
        (json!({}), "missing field `rule`"),
        (json!({"rule": "coin"}), "unknown variant `coin`"),
        (json!({"rule": "last-writer"}), "needs `field`"),
        (json!({"rule": "merge", "function": "a/b"}), "has no `function`"),
        (json!({"rule": "function"}), "needs `function`"),
        (json!({"rule": "function", "function": "a"}), "design document/name"),
    ] {
        let refused = server.put("/db/_conflict_rule", &body);
        assert_eq!(refused.status, 400, "{body}");
        assert!(refused.text.contains(reason), "{body}: {refused:?}");
    }
    let nodes = json!([{"name": "a", "database": "db"}, {"name": "b", "database": "other"}]);
    let topology = json!({"nodes": nodes, "shape": "chain", "conflicts": {"rule": "last-writer"}});
    assert_eq!(server.put("/_topology/t", &topology).status, 400);
}
