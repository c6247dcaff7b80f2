//! Settings of databases and queries: databases in memory, index policies, time limits, `batch=ok`, and query metrics.

use std::time::Duration;

use serde_json::{Value, json};
use stemmadb_server::{Config, Limits};

use crate::client::TestServer;

#[test]
fn a_copied_database_appears_without_a_restart() {
    needs_one_server!("it copies the directory of a database");
    let mut server = TestServer::new();
    server.database("shop", &[json!({"_id": "tea", "price": 4})]);
    // Closes it. Nothing opens it again before it is copied.
    server.restart();
    let (from, to) = ("shop.stemma", "copy.stemma");
    assert!(server.directory().join(from).is_dir(), "directories have readable names");
    stemmadb::testing::copy_directory(&server.directory().join(from), &server.directory().join(to)).unwrap();
    assert_eq!(server.get("/_all_dbs").json(), json!(["copy", "shop"]));
    assert_eq!(server.get("/copy/tea").json()["price"], 4);
    assert_eq!(server.put("/copy/cup", &json!({"price": 9})).status, 201);
    assert_eq!(server.get("/shop").json()["doc_count"], 1);
}

#[test]
fn databases_in_memory_are_gone_after_a_restart() {
    needs_one_server!("a cluster has no databases in memory");
    let mut server = TestServer::new();
    assert_eq!(server.put("/kept", &json!(null)).status, 201);
    assert_eq!(server.put("/cache?memory=true", &json!(null)).status, 201);
    assert_eq!(server.put("/cache?memory=true", &json!(null)).status, 412);
    assert_eq!(server.put("/other?memory=x", &json!(null)).status, 400);
    for name in ["kept", "cache"] {
        assert_eq!(server.put(&format!("/{name}/a"), &json!({"n": 1})).status, 201);
        let is_in_memory = server.get(&format!("/{name}/_statistics")).json()["in_memory"].clone();
        assert_eq!(is_in_memory, json!(name == "cache"));
    }
    let security = json!({"admins": {"names": ["boss"], "roles": []}, "members": {"names": [], "roles": []}});
    assert_eq!(server.put("/cache/_security", &security).status, 200);
    assert_eq!(server.get("/cache/_security").json()["admins"], security["admins"]);
    assert_eq!(server.put("/cache/_revs_limit", &json!(7)).status, 200);
    assert_eq!(server.post("/cache/_find", &json!({"selector": {"n": 1}})).json()["docs"][0]["_id"], "a");
    // Deleted and created again, it is empty.
    assert_eq!((server.delete("/cache").status, server.get("/cache").status), (200, 404));
    assert_eq!(server.put("/cache?memory=true", &json!(null)).status, 201);
    assert_eq!(server.get("/cache").json()["doc_count"], 0);
    server.restart();
    assert_eq!((server.get("/cache").status, server.get("/kept/a").status), (404, 200));
}

#[test]
fn databases_in_memory_stay_open() {
    needs_one_server!("a cluster has no databases in memory");
    let server = TestServer::with(|config| Config { limits: Limits { open_databases: 1, ..config.limits }, ..config });
    assert_eq!(server.put("/cache?memory=true", &json!(null)).status, 201);
    assert_eq!(server.put("/cache/a", &json!({"n": 1})).status, 201);
    for n in 0..5 {
        server.database(&format!("other{n}"), &[json!({"n": n})]);
    }
    assert_eq!(server.get("/cache/a").status, 200);
}

#[test]
fn databases_are_created_with_an_index_policy() {
    let mut server = TestServer::new();
    assert_eq!(server.put("/raw?index=%7B%22exclude%22:%5B%22raw%22%5D%7D", &json!(null)).status, 201);
    assert_eq!(server.put("/raw/a", &json!({"raw": {"x": 1}, "kind": "k"})).status, 201);
    server.restart();
    assert_eq!(server.put("/raw/b", &json!({"raw": {"x": 2}, "kind": "k"})).status, 201);
    let rows = server.get("/raw/_paths").json()["rows"].clone();
    let paths: Vec<&str> = rows.as_array().unwrap().iter().map(|row| row["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["kind"]);
    // Queries on other paths read documents, and return the same.
    assert_eq!(server.post("/raw/_find", &json!({"selector": {"raw.x": 2}})).json()["docs"][0]["_id"], "b");
    for policy in ["7", "%7B%22exclude%22:7%7D", "%7B%22excluded%22:%5B%5D%7D", "x"] {
        assert_eq!(server.put(&format!("/bad?index={policy}"), &json!(null)).status, 400, "{policy}");
        assert_eq!(server.get("/bad").status, 404);
    }
}

#[test]
fn queries_stop_at_their_time_limit() {
    // A limit that has passed before the first step.
    let query_time = Some(Duration::from_nanos(1));
    let server = TestServer::with(|config| Config { limits: Limits { query_time, ..config.limits }, ..config });
    let documents: Vec<Value> = (0..100).map(|n| json!({"_id": n.to_string(), "text": format!("t{n}")})).collect();
    server.database("slow", &documents);
    let selector = json!({"text": {"$regex": "t.*9"}});
    let found = server.post("/slow/_find", &json!({"selector": selector}));
    assert_eq!((found.status, found.json()["error"].clone()), (408, json!("timeout")), "{}", found.text);
    assert!(found.json()["reason"].as_str().unwrap().contains("took longer than its"), "{}", found.text);
    let prepared = server.post("/slow/_prepare", &json!({"selector": selector})).json()["handle"].clone();
    let prepared = server.post(&format!("/slow/_prepared/{}", prepared.as_str().unwrap()), &json!({}));
    assert_eq!(prepared.status, 408, "{}", prepared.text);
    for mut request in [json!({}), json!({"group_by": "text"}), json!({"group_by": ["text", "n"]})] {
        request["selector"] = selector.clone();
        request["figures"] = json!({"n": "count"});
        let answer = server.post("/slow/_aggregate", &request);
        assert_eq!(answer.status, 408, "{}", answer.text);
    }
    let answer = server.post("/slow/_aggregate", &json!({"pipeline": [{"$match": selector}]}));
    assert_eq!(answer.status, 408, "{}", answer.text);
    let map = "function (doc) { emit(doc.text, 1); }";
    let list = "function (head, request) { while (getRow()) {} return 'done'; }";
    let views = json!({"v": {"map": map, "reduce": "_sum"}});
    server.design("slow", "d", json!({"views": views, "lists": {"l": list}}));
    for path in ["_view/v", "_view/v?reduce=false", "_view/v?group=true", "_view/v?update=false", "_list/l/v"] {
        let answer = server.get(&format!("/slow/_design/d/{path}"));
        assert_eq!((answer.status, answer.json()["error"].clone()), (408, json!("timeout")), "{path}: {}", answer.text);
        assert!(answer.json()["reason"].as_str().unwrap().contains("took longer than its"), "{}", answer.text);
    }
    let answer = server.post("/slow/_design/d/_view/v/queries", &json!({"queries": [{}, {"reduce": false}]}));
    assert_eq!(answer.status, 408, "{}", answer.text);
    // Reading one document is no query.
    assert_eq!(server.get("/slow/1").status, 200);
}

#[test]
fn bulk_writes_can_precede_durability() {
    let server = TestServer::new();
    server.database("db", &[]);
    let docs = json!({"docs": [{"_id": "a"}, {"_id": "b"}]});
    let answer = server.post("/db/_bulk_docs?batch=ok", &docs);
    assert_eq!((answer.status, answer.json()[1]["ok"].clone()), (202, json!(true)));
    assert_eq!(server.get("/db/b").status, 200);
    assert_eq!(server.post("/db/_bulk_docs", &json!({"docs": [{"_id": "c"}]})).status, 201);
    assert_eq!(server.post("/db?batch=ok", &json!({"_id": "d"})).status, 202);
}

#[test]
fn queries_are_counted_by_database_and_kind() {
    needs_one_server!("metrics are those of one process");
    let server = TestServer::new();
    server.database("shop", &[json!({"_id": "a", "n": 1}), json!({"_id": "b", "n": 2})]);
    server.database("quiet", &[]);
    server.design("shop", "d", json!({"views": {"v": {"map": "function (doc) { emit(doc.n, null); }"}}}));
    for _ in 0..2 {
        assert_eq!(server.post("/shop/_find", &json!({"selector": {"n": {"$gt": 0}}})).status, 200);
    }
    server.post("/shop/_aggregate", &json!({"group_by": "n", "figures": {"n": "count"}}));
    assert_eq!(server.get("/shop/_design/d/_view/v").json()["rows"].as_array().unwrap().len(), 2);
    let counters = server.get("/shop/_statistics").json()["queries"].clone();
    for (kind, count, rows_read) in [("find", 2, 4), ("aggregate", 1, 2), ("view", 1, 2)] {
        assert_eq!(counters[kind]["count"], count, "{counters}");
        assert_eq!(counters[kind]["rows_read"], rows_read, "{counters}");
        assert!(counters[kind]["seconds"].as_f64() > Some(0.0), "{counters}");
    }
    assert_eq!(server.get("/quiet/_statistics").json()["queries"], json!({}));
    assert_eq!(server.get("/_node/_local/_stats/stemma/queries/shop").json(), counters);
    let text = server.get("/_node/_local/_prometheus").text;
    assert!(text.contains("stemma_queries_total{database=\"shop\",kind=\"find\"} 2\n"), "{text}");
    assert!(text.contains("stemma_query_rows_read_total{database=\"shop\",kind=\"view\"} 2\n"), "{text}");
    // A database of the same name starts at zero.
    server.delete("/shop");
    server.database("shop", &[]);
    assert_eq!(server.get("/shop/_statistics").json()["queries"], json!({}));
}
