//! Databases whose documents move to other ones.

use serde_json::{Value, json};

use crate::client::TestServer;

/// Two databases: documents with a day before 2021 move from one to the other.
fn tiered(policy: &Value) -> TestServer {
    let server = TestServer::new();
    let documents: Vec<Value> =
        (0..10).map(|n| json!({"_id": format!("d{n}"), "n": n, "day": format!("{}-01-01", 2016 + n * 2)})).collect();
    server.database("orders", &documents);
    server.database("orders-cold", &[]);
    let two = server.get("/orders/d2").json()["_rev"].as_str().unwrap().to_owned();
    let note = format!("/orders/d2/note?rev={two}");
    assert_eq!(server.send_as_admin("PUT", &note, &[("content-type", "text/plain")], b"a note").status, 201);
    let tiers = json!([{"name": "cold", "database": "orders-cold", "policy": policy}]);
    let defined = server.put("/orders/_tiers", &json!({"tiers": tiers, "paused": true}));
    assert_eq!(defined.status, 201, "{defined:?}");
    server
}

fn dated() -> Value {
    json!({"older_than": "1d", "date_field": "day", "only": {"day": {"$lt": "2021"}}})
}

fn ids(server: &TestServer, database: &str) -> Vec<String> {
    let rows = server.get(&format!("/{database}/_all_docs")).json();
    rows["rows"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

fn count(server: &TestServer) -> Value {
    server.post("/orders/_tiers/_count", &json!({"selector": {}})).json()["count"].clone()
}

#[test]
fn documents_move_and_return() {
    for stub in [false, true] {
        let mut policy = dated();
        if stub {
            policy["stub"] = json!(["n"]);
        }
        let server = tiered(&policy);
        let before = server.get("/orders/d1").json();
        let run = server.post("/orders/_tiers", &json!({"run": true}));
        assert_eq!(run.json()["result"], json!({"moved": 3, "deleted": 0, "refused": 0}), "{run:?}");
        assert_eq!(ids(&server, "orders-cold"), ["d0", "d1", "d2"]);
        assert_eq!(ids(&server, "orders").len(), if stub { 10 } else { 7 });
        let status = server.get("/orders/_tiers").json();
        assert_eq!(status["tiers"][0]["documents"], 7, "{status}");
        assert_eq!(status["tiers"][1]["documents"], 3, "{status}");
        assert_eq!(status["tiers"][0]["stubs"], if stub { 3 } else { 0 }, "{status}");
        assert_eq!(status["paused"], true);

        // Reads find them.
        assert_eq!(server.get("/orders/d1").json(), before);
        assert_eq!(server.get("/orders/d2/note").text, "a note");
        assert_eq!(count(&server), 10);
        let find = json!({"selector": {"n": {"$lt": 5}}, "sort": [{"n": "desc"}], "limit": 3, "fields": ["n"]});
        let found = server.post("/orders/_tiers/_find", &find).json();
        assert_eq!(found["docs"], json!([{"n": 4}, {"n": 3}, {"n": 2}]));
        let rest = json!({"selector": find["selector"], "sort": find["sort"], "limit": 3, "fields": ["n"],
            "bookmark": found["bookmark"]});
        assert_eq!(server.post("/orders/_tiers/_find", &rest).json()["docs"], json!([{"n": 1}, {"n": 0}]));
        let sums = server.post("/orders/_tiers/_aggregate", &json!({"figures": {"sum": {"sum": "n"}}})).json();
        assert_eq!(sums["rows"][0]["value"]["sum"], 45);
        let changes = server.get("/orders/_tiers/_changes?include_docs=true").json();
        let changes = changes["results"].as_array().unwrap();
        assert_eq!(changes.len(), 10);
        assert!(changes.iter().all(|change| change["deleted"].is_null() && change["doc"]["day"].is_string()));

        // Writes bring them back, with the revision that was read.
        let mut changed = before.clone();
        changed["n"] = json!(100);
        let written = server.put("/orders/d1", &changed);
        assert_eq!(written.status, 201, "{written:?}");
        assert_eq!(server.put("/orders/d1", &changed).status, 409);
        assert_eq!(server.put("/orders/d0", &json!({})).status, 409, "it exists");
        let two = server.get("/orders/d2").json()["_rev"].as_str().unwrap().to_owned();
        assert_eq!(server.delete(&format!("/orders/d2?rev={two}")).status, 200);
        assert_eq!(server.get("/orders/d2").status, 404);
        assert_eq!(count(&server), 9);
        let one = server.get("/orders/d1").json();
        let bulk = server.post("/orders/_bulk_docs", &json!({"docs": [{"_id": "d1", "_rev": one["_rev"], "n": 7}]}));
        assert_eq!(bulk.json()[0]["ok"], true, "{bulk:?}");
        // What was written just now does not move, and old copies are deleted.
        let run = server.post("/orders/_tiers", &json!({"run": true})).json();
        assert_eq!(run["result"]["moved"], 0, "{run}");
        assert!(ids(&server, "orders-cold").is_empty());
        assert_eq!(count(&server), 9);
    }
}

#[test]
fn tiers_go_on_after_a_restart() {
    let mut server = tiered(&dated());
    assert_eq!(server.post("/orders/_tiers", &json!({"run": true})).status, 200);
    server.restart();
    assert_eq!(server.get("/orders/d0").json()["n"], 0);
    assert_eq!(count(&server), 10);
    server.put("/orders/new", &json!({"day": "2020-01-01"}));
    // It is moved in the background, once that is not paused any more.
    assert_eq!(server.post("/orders/_tiers", &json!({"paused": false})).status, 200);
    let begun = std::time::Instant::now();
    while server.get("/orders/_tiers").json()["last_run_ms"].is_null() {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60));
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(count(&server), 11);
    assert_eq!(server.delete("/orders/_tiers").status, 200);
    assert_eq!(server.get("/orders/_tiers").status, 404);
    assert_eq!(server.get("/orders/d0").status, 404);
    assert_eq!(server.get("/orders-cold/d0").status, 200);
}

#[test]
fn malformed_tiers_are_refused_with_a_reason() {
    let server = tiered(&json!({}));
    server.database("other", &[json!({"_id": "x"})]);
    server.database("empty", &[]);
    let tier =
        |database: &str, policy: Value| json!({"tiers": [{"name": "cold", "database": database, "policy": policy}]});
    for (path, body, status) in [
        ("/other/_tiers", json!({"tiers": []}), 400),
        ("/other/_tiers", json!({"tiers": 5}), 400),
        ("/other/_tiers", tier("other", json!({})), 400),
        ("/other/_tiers", tier("empty", json!({"older": "1d"})), 400),
        ("/other/_tiers", tier("empty", json!({"older_than": 1})), 400),
        ("/other/_tiers", tier("none", json!({})), 404),
        ("/other/_tiers", tier("orders-cold", json!({})), 409),
        ("/other/_tiers", tier("orders", json!({})), 409),
        ("/orders-cold/_tiers", tier("empty", json!({})), 409),
        ("/empty/_tiers", tier("other", json!({})), 400),
        ("/none/_tiers", tier("empty", json!({})), 404),
    ] {
        let refused = server.put(path, &body);
        assert_eq!(refused.status, status, "{path} {body}: {refused:?}");
    }
    assert_eq!(server.post("/orders/_tiers", &json!({"walk": true})).status, 400);
    assert_eq!(server.post("/other/_tiers", &json!({"run": true})).status, 404);
    assert_eq!(server.get("/other/_tiers").status, 404);
}
