//! Writes that wait until targets of replications have them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::TestServer;

/// A server whose database replicates to `near`, on the same server, to `far`, on another one, and to `gone`, which
/// does not exist.
fn servers() -> (TestServer, TestServer) {
    let (hub, far) = (TestServer::new(), TestServer::new());
    hub.database("db", &[]);
    let nodes = json!([
        {"name": "hub", "database": "db"},
        {"name": "near", "database": "copy"},
        {"name": "far", "database": far.url("db")},
        {"name": "gone", "database": "http://127.0.0.1:1/db"},
    ]);
    let topology = json!({"nodes": nodes, "shape": "fan-out", "create": true});
    assert_eq!(hub.put("/_topology/all", &topology).status, 201);
    (hub, far)
}

#[test]
fn writes_wait_for_targets_that_have_them() {
    let (hub, far) = servers();
    let written = hub.put("/db/a?wait_for=near,far&wait_timeout=60000", &json!({"n": 1}));
    assert_eq!(
        (written.status, &written.json()["waited"]),
        (201, &json!({"confirmed": ["far", "near"], "missing": []}))
    );
    assert_eq!((far.get("/db/a").status, hub.get("/copy/a").status), (200, 200));
    let written = hub.post("/db?wait_for=2&wait_timeout=60000", &json!({"_id": "b"}));
    assert_eq!((written.status, &written.json()["waited"]["missing"]), (201, &json!([])), "{written:?}");
    let rev = hub.get("/db/a").json()["_rev"].as_str().unwrap().to_owned();
    let deleted = hub.delete(&format!("/db/a?rev={rev}&wait_for=far&wait_timeout=60000"));
    assert_eq!((deleted.status, far.get("/db/a").status), (200, 404), "{deleted:?}");
    let docs = json!({"docs": [{"_id": "c"}, {"_id": "d"}]});
    let written = hub.post("/db/_bulk_docs?wait_for=far&wait_timeout=60000", &docs);
    assert_eq!((written.status, far.get("/db/d").status), (201, 200), "{written:?}");
    let waited: Value = serde_json::from_str(written.header("x-stemma-waited").unwrap()).unwrap();
    assert_eq!(waited, json!({"confirmed": ["far"], "missing": []}));
}

#[test]
fn late_targets_are_named_and_the_write_stays() {
    let (hub, _far) = servers();
    let begun = Instant::now();
    let written = hub.put("/db/a?wait_for=near,gone&wait_timeout=3000", &json!({"n": 1}));
    assert_eq!(
        (written.status, &written.json()["waited"]),
        (202, &json!({"confirmed": ["near"], "missing": ["gone"]}))
    );
    assert!((Duration::from_millis(2900)..Duration::from_secs(30)).contains(&begun.elapsed()));
    assert_eq!(hub.get("/db/a").status, 200, "it is written");
    let written = hub.put("/db/b?wait_for=3&wait_timeout=2000", &json!({}));
    assert_eq!((written.status, &written.json()["waited"]["missing"]), (202, &json!(["gone"])), "{written:?}");
    let written = hub.post("/db/_bulk_docs?wait_for=gone&wait_timeout=100", &json!({"docs": [{"_id": "c"}]}));
    assert_eq!((written.status, hub.get("/db/c").status), (202, 200));
    assert!(written.header("x-stemma-waited").unwrap().contains("\"missing\":[\"gone\"]"));
}

#[test]
fn unknown_targets_are_refused_before_the_write() {
    let (hub, _far) = servers();
    for (wait_for, reason) in
        [("moon", "near"), ("4", "3 replications"), ("0", "a number of targets"), ("near,,far", "their names")]
    {
        let refused = hub.put(&format!("/db/x?wait_for={wait_for}"), &json!({}));
        assert_eq!(refused.status, 400, "{wait_for}");
        assert!(refused.text.contains(reason), "{wait_for}: {refused:?}");
    }
    assert_eq!(hub.get("/db/x").status, 404);
}
