//! Topologies of databases on several servers.

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

/// The ids, winners and conflicts of a database.
fn state(server: &TestServer, database: &str) -> Value {
    let all = server.get(&format!("/{database}/_all_docs?include_docs=true&conflicts=true")).json();
    all["rows"].clone()
}

fn replications(server: &TestServer, name: &str) -> Vec<Value> {
    server.get(&format!("/_topology/{name}")).json()["replications"].as_array().unwrap().clone()
}

fn are_all(server: &TestServer, name: &str, state: &str) -> bool {
    replications(server, name).iter().all(|replication| replication["state"] == state)
}

#[test]
fn three_servers_in_a_group_converge_with_conflicts() {
    let (mut hub, one, two) = (TestServer::new(), TestServer::new(), TestServer::new());
    for (server, n) in [(&hub, 0), (&one, 1), (&two, 2)] {
        server.database("db", &[json!({"_id": "same", "n": n}), json!({"_id": format!("own-{n}")})]);
    }
    let nodes = json!([
        {"name": "hub", "database": "db"},
        {"name": "one", "database": one.url("db")},
        {"name": "two", "database": {"url": two.url("db")}},
    ]);
    let group = json!({"nodes": nodes, "shape": "group"});
    assert_eq!(hub.put("/_topology/all", &group).status, 201);
    let agree = |hub: &TestServer| {
        let expected = state(hub, "db");
        state(&one, "db") == expected && state(&two, "db") == expected && expected.as_array().unwrap().len() >= 4
    };
    until("all agree", || agree(&hub));
    let conflicts = hub.get("/db/same?conflicts=true").json();
    assert_eq!(conflicts["_conflicts"].as_array().unwrap().len(), 2, "{conflicts}");
    until("all have caught up", || are_all(&hub, "all", "caught_up"));
    let shown = hub.get("/_topology/all");
    assert!(!shown.text.contains("secret") && shown.text.contains(&one.address().port().to_string()), "{shown:?}");
    let states = replications(&hub, "all");
    assert_eq!(states.len(), 6);
    assert!(states.iter().all(|state| state["lag_s"] == 0 && state["pending"] == 0 && state["error"].is_null()));

    // It runs again with the server.
    hub.restart();
    one.put("/db/late", &json!({"n": 1}));
    until("it arrives", || two.get("/db/late").status == 200 && hub.get("/db/late").status == 200);
    until("all agree", || agree(&hub));

    assert_eq!(hub.post("/_topology/all/_pause", &json!({})).status, 200);
    assert!(are_all(&hub, "all", "paused"));
    assert_eq!(hub.get("/_scheduler/jobs").json()["total_rows"], 0);
    one.put("/db/paused", &json!({"n": 1}));
    hub.restart();
    assert!(are_all(&hub, "all", "paused"), "it stays paused");
    assert_eq!(two.get("/db/paused").status, 404);
    assert_eq!(hub.post("/_topology/all/_resume", &json!({})).status, 200);
    until("it arrives", || two.get("/db/paused").status == 200);

    assert_eq!(hub.delete("/_topology/all").status, 200);
    assert_eq!(hub.get("/_topology/all").status, 404);
    assert_eq!(hub.get("/_scheduler/jobs").json()["total_rows"], 0);
    assert_eq!(hub.get("/_topology").json(), json!({"topologies": {}}));
}

#[test]
fn changed_topology_keeps_what_it_shares() {
    let server = TestServer::new();
    server.database("a", &[json!({"_id": "x", "kind": "novel"}), json!({"_id": "y", "kind": "essay"})]);
    let node = |name: &str| json!({"name": name, "database": name});
    let chain = |names: &[&str]| {
        let nodes: Vec<Value> = names.iter().map(|name| node(name)).collect();
        json!({"nodes": nodes, "shape": "chain", "create": true})
    };
    assert_eq!(server.put("/_topology/copies", &chain(&["a", "b"])).status, 201);
    until("it is copied", || server.get("/b/x").status == 200 && are_all(&server, "copies", "caught_up"));
    let job = |target: &str| {
        let jobs = server.get("/_scheduler/jobs").json()["jobs"].as_array().unwrap().clone();
        jobs.into_iter().find(|job| job["target"] == target).unwrap_or_default()
    };
    let before = job("b");
    let sleep_until_next_second = || std::thread::sleep(Duration::from_millis(1100));
    sleep_until_next_second();
    assert_eq!(server.put("/_topology/copies", &chain(&["a", "b", "c"])).status, 201);
    until("it is copied on", || server.get("/c/y").status == 200);
    assert_eq!(before["start_time"], job("b")["start_time"], "it was not restarted");

    // A selector for one of them replaces that replication.
    let mut filtered = chain(&["a", "b", "d"]);
    filtered["edges"] = json!([{"source": "b", "target": "d", "selector": {"kind": "novel"}}]);
    assert_eq!(server.put("/_topology/copies", &filtered).status, 201);
    until("it has caught up", || are_all(&server, "copies", "caught_up"));
    assert_eq!((server.get("/d/x").status, server.get("/d/y").status), (200, 404));
    assert!(job("c").is_null(), "the node has left");
    server.put("/a/z", &json!({"kind": "novel"}));
    until("it is copied", || server.get("/d/z").status == 200);
    assert_eq!(server.get("/c/z").status, 404);
}

#[test]
fn unreachable_node_is_named_and_others_go_on() {
    let server = TestServer::new();
    server.database("a", &[json!({"_id": "x"})]);
    let nodes = json!([
        {"name": "a", "database": "a"},
        {"name": "gone", "database": "http://admin:hidden@127.0.0.1:1/db"},
        {"name": "b", "database": "b"},
    ]);
    let body = json!({"nodes": nodes, "shape": "fan-out", "create": true});
    assert_eq!(server.put("/_topology/some", &body).status, 201);
    until("it is copied", || server.get("/b/x").status == 200);
    let crashing = || replications(&server, "some").into_iter().find(|edge| edge["target"] == "gone").unwrap();
    until("it fails", || crashing()["state"] == "crashing");
    let crashing = crashing();
    assert!(crashing["error"].as_str().unwrap().contains("127.0.0.1:1"), "{crashing}");
    assert!(crashing["retry_at"].is_string() && !crashing.to_string().contains("hidden"), "{crashing}");
}

#[test]
fn malformed_topologies_are_refused_with_a_reason() {
    let server = TestServer::new();
    server.database("a", &[]);
    let (a, b) = (json!({"name": "a", "database": "a"}), json!({"name": "b", "database": "b"}));
    let with = |nodes: Value, more: Value| {
        let mut body = json!({ "nodes": nodes });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let chain = json!({"shape": "chain"});
    for (body, status, reason) in [
        (json!({}), 400, "missing field `nodes`"),
        (with(json!([a, b]), json!({})), 400, "give a `shape` or `edges`"),
        (with(json!([a, b]), json!({"shape": "star"})), 400, "unknown variant `star`"),
        (with(json!([a, b]), json!({"shape": "chain", "colour": 1})), 400, "unknown field `colour`"),
        (with(json!([a]), chain.clone()), 400, "needs 2 databases"),
        (with(json!([a, a]), chain.clone()), 400, "two databases named"),
        (with(json!([a, {"name": "c", "database": "a"}]), chain.clone()), 400, "are the same database"),
        (with(json!([a, {"name": "c", "database": 1}]), chain.clone()), 400, "`database` is a database's name"),
        (with(json!([a, {"name": "b", "database": "b", "tier": 1}]), chain.clone()), 400, "which only the shape"),
        (with(json!([a, b]), json!({"shape": "tiered"})), 400, "needs a `tier`"),
        (with(json!([a, b]), json!({"edges": [{"source": "a", "target": "c"}]})), 400, "no database named"),
        (with(json!([a, b]), json!({"shape": "chain", "selector": {"$no": 1}})), 400, "$no"),
        (
            with(json!([a, {"name": "m", "database": "http://169.254.169.254/x"}]), chain.clone()),
            403,
            "169.254.169.254",
        ),
    ] {
        let refused = server.put("/_topology/x", &body);
        assert_eq!(refused.status, status, "{body}: {refused:?}");
        assert!(refused.json()["reason"].as_str().unwrap().contains(reason), "{reason}: {refused:?}");
    }
    assert_eq!(server.put("/_topology/a%20b", &with(json!([a, b]), chain)).status, 400);
    for refused in
        [server.get("/_topology/x"), server.delete("/_topology/x"), server.post("/_topology/x/_pause", &json!({}))]
    {
        assert_eq!(refused.status, 404, "{refused:?}");
    }
    assert_eq!(server.get("/_topology").json(), json!({"topologies": {}}));
}
