//! Virtual databases over HTTP: they answer as one database does, also while their shards split and merge.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{ADMIN, Response, TestServer};

/// Waits for a condition.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(120), "timed out: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn create(server: &TestServer, path: &str) {
    let created = server.ask_as(ADMIN, "PUT", path, None);
    assert_eq!(created.status, 201, "{created:?}");
}

pub(crate) fn write(server: &TestServer, database: &str, docs: &[Value]) {
    let written = server.post(&format!("/{database}/_bulk_docs"), &json!({ "docs": docs }));
    assert_eq!(written.status, 201, "{written:?}");
    assert!(written.json().as_array().unwrap().iter().all(|row| row["ok"] == true), "{}", written.text);
}

pub(crate) fn numbered(range: std::ops::Range<u64>) -> Vec<Value> {
    range.map(|n| json!({"_id": format!("d{n:03}"), "n": n, "even": n % 2 == 0})).collect()
}

/// Waits for the end of the move.
pub(crate) fn until_moved(server: &TestServer, database: &str) {
    until("the move ends", || {
        let moving = server.get(&format!("/{database}/_shards")).json()["move"].clone();
        assert_ne!(moving["state"], "stopped", "{moving}");
        moving.is_null()
    });
}

pub(crate) fn start_move(server: &TestServer, database: &str, request: &Value) {
    let started = server.post(&format!("/{database}/_shards"), request);
    assert_eq!(started.status, 202, "{started:?}");
}

/// The ids of rows.
fn ids(listed: &Response) -> Vec<String> {
    let rows = listed.json()["rows"].as_array().unwrap_or_else(|| panic!("{listed:?}")).clone();
    rows.iter().map(|row| row["id"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Writes the same documents to the virtual database `v` and to `plain`.
pub(crate) fn write_twins(server: &TestServer) {
    create(server, "/plain");
    let mut docs = numbered(0..100);
    docs.push(json!({"_id": "_design/x", "language": "query"}));
    write(server, "v", &docs);
    write(server, "plain", &docs);
}

/// Ends the clients of a test when it is dropped, also if a check fails.
pub(crate) struct Ending<'a>(pub(crate) &'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A virtual database and a plain one with the same documents.
fn twins() -> TestServer {
    let server = TestServer::new();
    create(&server, "/v?shards=3");
    write_twins(&server);
    server
}

/// Compares the answers of the virtual database `v` with those of `plain`, which has the same documents.
pub(crate) fn compare_answers(server: &TestServer) {
    for path in [
        "_all_docs",
        "_all_docs?include_docs=true&limit=7",
        "_all_docs?descending=true&skip=3&limit=9",
        "_all_docs?startkey=%22d050%22&limit=5",
        "_all_docs?startkey=%22d050%22&endkey=%22d055%22&inclusive_end=false",
        "_all_docs?startkey=%22d055%22&endkey=%22d050%22&descending=true",
        "_all_docs?key=%22d042%22",
        "_all_docs?limit=0",
        "_design_docs",
        "d042",
        "d042?revs=true&revs_info=true",
        "d042?open_revs=all",
        "missing",
        "_design/x",
    ] {
        let (ours, theirs) = (server.get(&format!("/v/{path}")), server.get(&format!("/plain/{path}")));
        assert_eq!(ours.status, theirs.status, "{path}: {ours:?}");
        let (mut ours, mut theirs) = (ours.json(), theirs.json());
        for answer in [&mut ours, &mut theirs] {
            answer.as_object_mut().into_iter().for_each(|answer| drop(answer.remove("offset")));
        }
        assert_eq!(ours, theirs, "{path}");
    }
    let keys = json!({"keys": ["d003", "nothing", "d001", 5, "d003"]});
    for (route, body) in [
        ("_all_docs", keys.clone()),
        ("_all_docs/queries", json!({"queries": [{"limit": 2}, keys]})),
        ("_find", json!({"selector": {"even": true}, "sort": [{"n": "desc"}], "limit": 6, "fields": ["_id"]})),
        ("_find", json!({"selector": {"n": {"$lt": 4}}, "sort": [{"n": "asc"}]})),
        ("_aggregate", json!({"group_by": "even", "figures": {"sum": {"sum": "n"}, "count": {"count": "n"}}})),
        ("_bulk_get", json!({"docs": [{"id": "d001"}, {"id": "nothing"}, {"id": "d099"}]})),
        ("_revs_diff", json!({"d001": ["1-00000000000000000000000000000001"], "d500": ["2-b0"]})),
        ("_missing_revs", json!({"d001": ["1-00000000000000000000000000000001"]})),
    ] {
        let path = |database: &str| format!("/{database}/{route}");
        let (ours, theirs) = (server.post(&path("v"), &body), server.post(&path("plain"), &body));
        assert_eq!(ours.status, theirs.status, "{route}: {ours:?}");
        let (mut ours, mut theirs) = (ours.json(), theirs.json());
        for answer in [&mut ours, &mut theirs] {
            if let Some(answer) = answer.as_object_mut() {
                ["offset", "bookmark", "warning"].iter().for_each(|name| drop(answer.remove(*name)));
                for listed in answer.get_mut("results").and_then(Value::as_array_mut).into_iter().flatten() {
                    listed.as_object_mut().into_iter().for_each(|listed| drop(listed.remove("offset")));
                }
            }
        }
        assert_eq!(ours, theirs, "{route} {body}");
    }
}

#[test]
fn answers_equal_those_of_one_database() {
    let mut server = twins();
    for turn in 0..4 {
        compare_answers(&server);
        let info = server.get("/v").json();
        assert_eq!((&info["doc_count"], &info["props"]["virtual"]), (&json!(101), &json!(true)), "{info}");
        match turn {
            0 => server.restart(),
            1 => {
                start_move(&server, "v", &json!({"split": "shard-1"}));
                until_moved(&server, "v");
                assert_eq!(server.get("/v").json()["shards"]["shard-4"], 683);
            }
            _ => {
                start_move(&server, "v", &json!({"merge": "shard-2", "into": "shard-3"}));
                until_moved(&server, "v");
                server.restart();
                assert_eq!(server.get("/v").json()["shards"].as_object().unwrap().len(), 3);
                break;
            }
        }
    }
    // A page after another, also while the shards change.
    let mut find = json!({"selector": {"even": true}, "limit": 7, "fields": ["_id"]});
    let mut found = Vec::new();
    for page in 0.. {
        let answer = server.post("/v/_find", &find).json();
        let docs = answer["docs"].as_array().unwrap().clone();
        if docs.is_empty() {
            break;
        }
        found.extend(docs.iter().map(|doc| doc["_id"].as_str().unwrap().to_owned()));
        find["bookmark"] = answer["bookmark"].clone();
        if page == 2 {
            start_move(&server, "v", &json!({"split": "shard-3"}));
            until_moved(&server, "v");
        }
    }
    assert_eq!(found, (0..50).map(|n| format!("d{:03}", n * 2)).collect::<Vec<_>>());
}

#[test]
fn documents_are_written_in_their_shards() {
    let server = TestServer::new();
    create(&server, "/v?shards=4");
    let made = server.post("/v", &json!({"n": 1})).json();
    let id = made["id"].as_str().unwrap();
    assert_eq!(server.get(&format!("/v/{id}")).json()["n"], 1);
    let written = server.put("/v/a", &json!({"n": 1}));
    assert!(written.header("location").unwrap().ends_with("/v/a"), "{written:?}");
    assert_eq!(server.put("/v/a", &json!({"n": 2})).status, 409);
    let rev = written.json()["rev"].as_str().unwrap().to_owned();
    let patched = server.ask_as(ADMIN, "PATCH", &format!("/v/a?rev={rev}"), Some(&json!({"$set": {"m": 7}})));
    assert_eq!(patched.status, 201, "{patched:?}");
    let rev = patched.json()["rev"].as_str().unwrap().to_owned();
    let stored =
        server.send_as_admin("PUT", &format!("/v/a/f.txt?rev={rev}"), &[("Content-Type", "text/plain")], b"hi");
    assert_eq!(stored.status, 201, "{stored:?}");
    assert_eq!(server.get("/v/a/f.txt").text, "hi");
    let rev = stored.json()["rev"].as_str().unwrap().to_owned();
    assert_eq!(server.delete(&format!("/v/a/f.txt?rev={rev}")).status, 200);
    let rev = server.get("/v/a").json()["_rev"].as_str().unwrap().to_owned();
    assert_eq!(server.delete(&format!("/v/a?rev={rev}")).status, 200);
    assert_eq!(server.get("/v/a").json()["reason"], "deleted");
    // Local documents are its own, and are not moved.
    assert_eq!(server.put("/v/_local/checkpoint", &json!({"at": 5})).status, 201);
    let bulk = json!({"docs": [{"_id": "_local/other", "at": 6}, {"_id": "b"}, {"n": 3}]});
    assert_eq!(server.post("/v/_bulk_docs", &bulk).json()[1]["id"], "b");
    assert_eq!(ids(&server.get("/v/_local_docs")), ["_local/checkpoint", "_local/other"]);
    assert_eq!(server.get("/v/_local/other").json()["at"], 6);
    assert_eq!(server.put("/v/_keys/settings/color", &json!("blue")).status, 201);
    start_move(&server, "v", &json!({"split": "shard-1"}));
    until_moved(&server, "v");
    assert_eq!(server.get("/v/_keys/settings/color").json()["value"], "blue");
    assert_eq!(server.get("/v/_local/checkpoint").json()["at"], 5);
    let flushed = server.post("/v/_ensure_full_commit", &json!({}));
    assert_eq!(flushed.status, 201);
    assert_eq!(flushed.json()["instance_start_time"], server.get("/v").json()["instance_start_time"]);
    assert_eq!(server.post("/v/_compact", &json!({})).status, 202);
    // Where a document is.
    let place = server.get("/v/_shards/b").json();
    assert!(place["shard"].as_str().unwrap().starts_with("shard-") && place["bucket"].is_u64(), "{place}");
}

#[test]
fn prefixes_stay_together() {
    let server = TestServer::new();
    create(&server, "/v?shards=8&prefix=:");
    let shard = |id: &str| server.get(&format!("/v/_shards/{id}")).json()["shard"].clone();
    assert_eq!(shard("order-7:a"), shard("order-7:b"));
    let shards: BTreeSet<String> = (0..50).map(|n| shard(&format!("order-{n}:a")).to_string()).collect();
    assert!(shards.len() > 4, "{shards:?}");
    assert_eq!(server.get("/v/_shards").json()["grouping"], json!({"prefix": ":"}));
}

/// Checks transactions of a virtual database with the prefix `:`.
pub(crate) fn check_transactions(server: &TestServer, prefixes: &[String]) {
    for prefix in prefixes {
        let id = |name: &str| format!("{prefix}:{name}");
        let docs = json!([{"_id": id("head"), "n": 1}, {"_id": id("line"), "n": 2}]);
        let written =
            server.post("/v/_transact", &json!({"docs": docs, "checks": [{"id": id("x"), "if_absent": true}]}));
        assert_eq!(written.status, 201, "{written:?}");
        let rows = written.json()["docs"].clone();
        assert_eq!((&rows[0]["id"], rows.as_array().unwrap().len()), (&json!(id("head")), 2));
        // All or nothing.
        let docs = json!([{"_id": id("new")}, {"_id": id("line"), "n": 3}]);
        let refused = server.post("/v/_transact", &json!({"docs": docs}));
        assert_eq!(refused.status, 409, "{refused:?}");
        assert_eq!(refused.json()["refused"][0]["rev"], rows[1]["rev"], "{refused:?}");
        assert_eq!(server.get(&format!("/v/{}", id("new"))).status, 404);
        assert_eq!(server.get(&format!("/v/{}", id("line"))).json()["n"], 2);
    }
    for body in [
        json!({"docs": [{"_id": "one:a"}, {"_id": "two:a"}]}),
        json!({"docs": [{"_id": "one:a"}], "checks": [{"id": "two:a", "if_absent": true}]}),
        json!({"docs": [{"_id": "one:a"}], "checks": [{"selector": {}, "count": 0}]}),
        json!({"docs": [{"n": 1}]}),
    ] {
        let refused = server.post("/v/_transact", &body);
        assert_eq!(refused.status, 400, "{body}: {refused:?}");
        assert!(refused.text.contains("virtual database"), "{refused:?}");
    }
    assert_eq!(server.get("/v/one:a").status, 404);
}

#[test]
fn transactions_are_within_one_bucket() {
    let server = TestServer::new();
    create(&server, "/v?shards=3&prefix=:");
    check_transactions(&server, &["a".to_owned(), "b".to_owned(), "order-7".to_owned()]);
}

#[test]
fn shards_are_reached_only_through_their_database() {
    let mut server = TestServer::new();
    create(&server, "/v?shards=2");
    write(&server, "v", &numbered(0..10));
    for _ in 0..2 {
        assert_eq!(server.get("/_all_dbs").json(), json!(["v"]));
        for (method, path) in [
            ("GET", "/v%2Fshard-1"),
            ("GET", "/v%2Fshard-1/d001"),
            ("PUT", "/v%2Fshard-1/d001"),
            ("POST", "/v%2Fshard-1/_bulk_docs"),
            ("DELETE", "/v%2Fshard-1"),
            ("POST", "/v%2Fshard-2/_compact"),
            ("PUT", "/v%2Fshard-2/_security"),
        ] {
            let refused = server.ask_as(ADMIN, method, path, Some(&json!({"docs": []})));
            assert_eq!(refused.status, 403, "{method} {path}: {refused:?}");
            assert!(refused.text.contains("is a shard of the virtual database `v`"), "{refused:?}");
        }
        assert_eq!(server.ask_as(ADMIN, "PUT", "/v%2Fshard-1", None).status, 412);
        server.restart();
    }
    let infos = server.post("/_dbs_info", &json!({"keys": ["v", "v/shard-1"]})).json();
    assert_eq!((&infos[0]["info"]["doc_count"], &infos[1]["error"]), (&json!(10), &json!("forbidden")), "{infos}");
    assert_eq!(server.ask_as(ADMIN, "PUT", "/v", None).status, 412);
    assert_eq!(server.ask_as(ADMIN, "PUT", "/v?shards=2", None).status, 412);
    assert_eq!(server.delete("/v").status, 200);
    assert_eq!(server.get("/v").status, 404);
    assert_eq!(server.get("/v%2Fshard-1").status, 404);
    create(&server, "/v?shards=1");
    assert_eq!(server.get("/v").json()["doc_count"], 0);
}

#[test]
fn what_is_not_supported_is_refused() {
    let server = TestServer::new();
    create(&server, "/v?shards=2");
    create(&server, "/plain");
    for (method, path) in [
        ("PUT", "/w?shards=0"),
        ("PUT", "/w?shards=65"),
        ("PUT", "/w?shards=2&partitioned=true"),
        ("PUT", "/w?shards=2&prefix=ab"),
        ("PUT", "/_users?shards=2"),
    ] {
        let refused = server.ask_as(ADMIN, method, path, Some(&json!({"split": "shard-1"})));
        assert_eq!(refused.status, 400, "{method} {path}: {refused:?}");
    }
    assert_eq!(server.get("/_all_dbs").json(), json!(["plain", "v"]));
    for (method, path, body) in [
        ("GET", "/plain/_shards", json!({})),
        ("GET", "/plain/_shards/a", json!({})),
        ("POST", "/plain/_shards", json!({"split": "shard-1"})),
        ("DELETE", "/plain/_shards", json!({})),
        ("GET", "/v/_statistics", json!({})),
        ("GET", "/v/_watch?selector=%7B%7D&limit=3", json!({})),
        ("PUT", "/v/_revs_limit", json!(5)),
        ("POST", "/v/_find", json!({"selector": {}, "execution_stats": true})),
        ("POST", "/v/_aggregate", json!({"pipeline": []})),
    ] {
        let refused = server.ask_as(ADMIN, method, path, Some(&body));
        assert_eq!(refused.status, 501, "{method} {path}: {refused:?}");
    }
    for request in [
        json!({"split": "nothing"}),
        json!({"split": "shard-1", "merge": "shard-2"}),
        json!({"merge": "shard-1"}),
        json!({"move": [[0, 5000]]}),
        json!({"move": [[0, 4095]]}),
        json!({"unknown": 1}),
        json!({"resume": true}),
    ] {
        let refused = server.post("/v/_shards", &request);
        assert!(matches!(refused.status, 400 | 404), "{request}: {refused:?}");
    }
    assert_eq!(server.delete("/v/_shards").status, 404);
    assert_eq!(server.get("/v/_shards").json()["shards"].as_array().unwrap().len(), 2);
}

#[test]
fn rights_are_those_of_a_database() {
    let server = TestServer::new();
    server.database("_users", &[]);
    for name in ["ada", "bob"] {
        let user = json!({"name": name, "type": "user", "roles": [], "password": name});
        assert_eq!(server.put(&format!("/_users/org.couchdb.user:{name}"), &user).status, 201);
    }
    create(&server, "/v?shards=2");
    let security = json!({"members": {"names": ["ada"], "roles": []}, "admins": {"names": [], "roles": []}});
    assert_eq!(server.put("/v/_security", &security).status, 200);
    assert_eq!(server.get("/v/_security").json()["members"]["names"], json!(["ada"]));
    let (ada, bob) = (Some(("ada", "ada")), Some(("bob", "bob")));
    let document = json!({"n": 1});
    assert_eq!(server.ask_as(ada, "PUT", "/v/a", Some(&document)).status, 201);
    for (method, path) in [("GET", "/v/a"), ("GET", "/v"), ("GET", "/v/_all_docs"), ("GET", "/v/_changes")] {
        assert_eq!(server.ask_as(ada, method, path, None).status, 200, "{method} {path}");
        assert_eq!(server.ask_as(bob, method, path, None).status, 403, "{method} {path}");
        assert_eq!(server.ask_as(None, method, path, None).status, 401, "{method} {path}");
    }
    assert_eq!(server.ask_as(bob, "PUT", "/v/b", Some(&document)).status, 403);
    let split = json!({"split": "shard-1"});
    assert_eq!(server.ask_as(ada, "POST", "/v/_shards", Some(&split)).status, 403);
    assert_eq!(server.ask_as(ada, "PUT", "/v/_design/x", Some(&json!({}))).status, 403);
    assert_eq!(server.ask_as(ada, "GET", "/v%2Fshard-1/a", None).status, 403);
}

#[test]
fn changes_resume_and_wait() {
    let server = TestServer::new();
    create(&server, "/v?shards=3");
    write(&server, "v", &numbered(0..50));
    let (mut since, mut seen) = ("0".to_owned(), Vec::new());
    loop {
        let page = server.get(&format!("/v/_changes?limit=7&since={since}&include_docs=true")).json();
        let rows = page["results"].as_array().unwrap().clone();
        if rows.is_empty() {
            break;
        }
        assert_eq!((rows.last().unwrap()["seq"].clone(), rows.len() <= 7), (page["last_seq"].clone(), true));
        assert_eq!(page["pending"], json!(50 - seen.len() - rows.len()));
        for row in rows {
            assert_eq!(row["doc"]["_rev"], row["changes"][0]["rev"]);
            seen.push(row["id"].as_str().unwrap().to_owned());
        }
        since = page["last_seq"].as_str().unwrap().to_owned();
    }
    assert_eq!((seen.len(), seen.into_iter().collect::<BTreeSet<_>>().len()), (50, 50));
    let now = server.get("/v/_changes?since=now").json();
    assert_eq!(
        (now["results"].clone(), now["last_seq"].clone()),
        (json!([]), server.get("/v").json()["update_seq"].clone())
    );
    assert_eq!(server.get("/v/_changes?since=nonsense").status, 400);
    let some = server.post("/v/_changes?filter=_doc_ids", &json!({"doc_ids": ["d003", "d030"]})).json();
    let found: BTreeSet<_> = some["results"].as_array().unwrap().iter().map(|row| row["id"].to_string()).collect();
    assert_eq!(found.len(), 2);

    // A waiting request gets what is written in any shard, also in one that did not exist when it began to wait.
    for n in 0..6 {
        let (path, id) = (format!("/v/_changes?feed=longpoll&since={since}"), format!("new-{n}"));
        let row = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| server.get(&path).json());
            std::thread::sleep(Duration::from_millis(50));
            if n == 3 {
                start_move(&server, "v", &json!({"split": "shard-2"}));
                until_moved(&server, "v");
            }
            server.put(&format!("/v/{id}"), &json!({}));
            waiting.join().unwrap()
        });
        since = row["last_seq"].as_str().unwrap().to_owned();
        let mut rows = row["results"].as_array().unwrap().clone();
        // Documents that moved may be reported again.
        while n >= 3 && !rows.iter().any(|row| row["id"] == id.as_str()) {
            let more = server.get(&format!("/v/_changes?feed=longpoll&timeout=5000&since={since}")).json();
            since = more["last_seq"].as_str().unwrap().to_owned();
            rows = more["results"].as_array().unwrap().clone();
            assert!(!rows.is_empty(), "{id} is missing");
        }
        assert!(rows.iter().any(|row| row["id"] == id.as_str()), "{rows:?}");
    }
    let stream = server.get("/v/_changes?feed=continuous&timeout=200&seq_interval=10").text;
    let lines: Vec<Value> = stream.lines().filter(|line| !line.is_empty()).map(|line| line.parse().unwrap()).collect();
    assert!(lines.len() >= 57 && lines.last().unwrap()["last_seq"].is_string(), "{}", lines.len());
    let events = server.get("/v/_changes?feed=eventsource&timeout=200&limit=3").text;
    assert_eq!(events.matches("\nid: ").count(), 3, "{events}");
}

#[test]
fn shards_split_and_merge_while_clients_write() {
    let server = TestServer::new();
    create(&server, "/v?shards=1");
    write(&server, "v", &numbered(0..500));
    let (is_done, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (server, is_done, count) = (&server, &is_done, &count);
            scope.spawn(move || {
                let mut revisions: BTreeMap<String, String> = BTreeMap::new();
                for turn in 0.. {
                    if is_done.load(Ordering::Relaxed) {
                        break;
                    }
                    let id = format!("t{thread}-{}", turn % 40);
                    let mut body = json!({"turn": turn, "of": thread});
                    if let Some(revision) = revisions.get(&id) {
                        body["_rev"] = json!(revision);
                    }
                    let written = server.put(&format!("/v/{id}"), &body);
                    assert_eq!(written.status, 201, "{written:?}");
                    revisions.insert(id.clone(), written.json()["rev"].as_str().unwrap().to_owned());
                    let read = server.get(&format!("/v/{id}"));
                    assert_eq!((read.status, &read.json()["turn"]), (200, &json!(turn)), "{read:?}");
                    let listed = server.get("/v/_all_docs?startkey=%22d%22&endkey=%22e%22");
                    assert_eq!(ids(&listed), (0..500).map(|n| format!("d{n:03}")).collect::<Vec<_>>());
                    let found = server.post("/v/_find", &json!({"selector": {"even": true}, "limit": 1000}));
                    let docs = found.json()["docs"].as_array().unwrap_or_else(|| panic!("{found:?}")).len();
                    assert_eq!(docs, 250);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _ending = Ending(&is_done);
        for request in [
            json!({"split": "shard-1"}),
            json!({"split": "shard-2"}),
            json!({"split": "shard-1"}),
            json!({"merge": "shard-2", "into": "shard-3"}),
            json!({"merge": "shard-1", "into": "shard-4"}),
        ] {
            let estimate = server.post("/v/_shards", &{
                let mut request = request.clone();
                request["estimate"] = json!(true);
                request
            });
            assert!(estimate.json()["documents"].as_u64().unwrap() > 20, "{estimate:?}");
            assert!(estimate.json()["bytes"].as_u64().unwrap() > 500, "{estimate:?}");
            start_move(&server, "v", &request);
            until_moved(&server, "v");
        }
    });
    assert!(count.load(Ordering::Relaxed) > 5);
    let shards = server.get("/v").json()["shards"].clone();
    assert_eq!(shards.as_object().unwrap().len(), 2, "{shards}");
    assert_eq!(server.get("/v%2Fshard-1").status, 404, "a shard that was merged away is deleted");
    let total = server.get("/v/_all_docs?limit=0").json()["total_rows"].clone();
    assert_eq!(total, server.get("/v").json()["doc_count"]);
    // Buckets that left a shard do not come back.
    let moved = server.post("/v/_shards", &json!({"merge": "shard-3", "into": "shard-4"}));
    assert_eq!(moved.status, 202, "{moved:?}");
    until_moved(&server, "v");
    assert_eq!(server.get("/v/_all_docs?limit=0").json()["total_rows"], total);
}

#[test]
fn move_is_taken_back() {
    let mut server = TestServer::new();
    create(&server, "/v?shards=2");
    let text = "x".repeat(2_000);
    for part in 0..8 {
        let docs: Vec<Value> = (0..500).map(|n| json!({"_id": format!("p{part}-{n}"), "text": text})).collect();
        write(&server, "v", &docs);
    }
    let mut canceled = 0;
    for _ in 0..3 {
        start_move(&server, "v", &json!({"split": "shard-1"}));
        let answer = server.delete("/v/_shards");
        assert!(matches!(answer.status, 202 | 404 | 409), "{answer:?}");
        canceled += usize::from(answer.status == 202);
        until_moved(&server, "v");
        let listed = server.get("/v/_all_docs?limit=0").json();
        assert_eq!(listed["total_rows"], 4_000);
    }
    assert!(canceled > 0);
    server.restart();
    assert_eq!(ids(&server.get("/v/_all_docs")).len(), 4_000);
    // It can be moved after all.
    start_move(&server, "v", &json!({"split": "shard-2"}));
    server.restart();
    until_moved(&server, "v");
    assert_eq!(ids(&server.get("/v/_all_docs")).len(), 4_000);
}

/// Replicates between a virtual database and others of its server, by their names.
pub(crate) fn check_replication_by_name(server: &TestServer, parameters: &str) {
    create(server, &format!("/v?{parameters}"));
    let file = json!({"f.txt": {"content_type": "text/plain", "data": "aGVsbG8="}});
    server.database("source", &numbered(0..60));
    server.put("/source/with-file", &json!({"_attachments": file}));
    let validate = "function (doc) { if (doc.n === 7) throw({forbidden: 'no sevens'}) }";
    assert_eq!(server.put("/v/_design/rules", &json!({"validate_doc_update": validate})).status, 201);
    for revision in ["2-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "2-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"] {
        let body = json!({"docs": [{"_id": "d001", "_rev": revision, "side": revision}], "new_edits": false});
        assert_eq!(server.post("/source/_bulk_docs", &body).status, 201);
    }
    let run = |source: &str, target: &str| {
        let answer = server.post("/_replicate", &json!({"source": source, "target": target, "create_target": true}));
        assert_eq!((answer.status, &answer.json()["ok"]), (200, &json!(true)), "{answer:?}");
        answer.json()["history"][0].clone()
    };
    let rows = |database: &str, parameters: &str| {
        let rows = server.get(&format!("/{database}/_all_docs?include_docs=true&conflicts=true&{parameters}"));
        let rows = rows.json()["rows"].as_array().unwrap_or_else(|| panic!("{rows:?}")).clone();
        rows.into_iter().filter(|row| row["id"] != "_design/rules" && row["id"] != "d007").collect::<Vec<_>>()
    };
    // The validation function of one shard counts in all.
    assert_eq!(run("source", "v")["doc_write_failures"], 1);
    assert_eq!(rows("v", "attachments=true"), rows("source", "attachments=true"));
    assert_eq!(server.get("/v/d007").status, 404);
    assert_eq!(run("source", "v")["docs_written"], 0);
    // It is the source while its shards change, too, once and continuously.
    start_move(server, "v", &json!({"split": "shard-1"}));
    run("v", "copy");
    let follow = json!({"source": "v", "target": "follower", "continuous": true, "create_target": true});
    assert_eq!(server.post("/_replicate", &follow).status, 202);
    until_moved(server, "v");
    let rev = server.get("/v/d002").json()["_rev"].as_str().unwrap().to_owned();
    assert_eq!(server.delete(&format!("/v/d002?rev={rev}")).status, 200);
    assert_eq!(server.put("/v/later", &json!({"n": 1})).status, 201);
    run("v", "copy");
    assert_eq!(rows("copy", "attachments=true"), rows("v", "attachments=true"));
    assert_eq!(run("v", "copy")["docs_written"], 0);
    until("the follower has everything", || rows("follower", "") == rows("v", ""));
    assert_eq!(server.put("/v/last", &json!({"n": 2})).status, 201);
    until("the follower has the last write", || server.get("/follower/last").status == 200);
    // A design document that arrives by a replication counts at once.
    let validate = "function (doc) { if (doc.n === 9) throw({forbidden: 'no nines'}) }";
    assert_eq!(server.put("/source/_design/more", &json!({"validate_doc_update": validate})).status, 201);
    run("source", "v");
    for number in 0..4 {
        let refused = server.put(&format!("/v/nine-{number}"), &json!({"n": 9}));
        assert_eq!((refused.status, &refused.json()["reason"]), (403, &json!("no nines")), "{refused:?}");
    }
    // Two virtual databases.
    create(server, "/w?shards=2");
    run("v", "w");
    assert_eq!(rows("w", "attachments=true"), rows("v", "attachments=true"));
}

#[test]
fn databases_of_its_server_replicate_by_their_names() {
    check_replication_by_name(&TestServer::new(), "shards=3");
}

#[test]
fn databases_replicate_to_and_from_it() {
    let (server, other) = (TestServer::new(), TestServer::new());
    create(&server, "/v?shards=3");
    other.database("source", &numbered(0..60));
    let file = json!({"f.txt": {"content_type": "text/plain", "data": "aGVsbG8="}});
    other.put("/source/with-file", &json!({"_attachments": file}));
    for (id, revision) in
        [("d001", "2-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"), ("d001", "2-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb")]
    {
        let body = json!({"docs": [{"_id": id, "_rev": revision, "side": revision}], "new_edits": false});
        assert_eq!(other.post("/source/_bulk_docs", &body).status, 201);
    }
    let run = |source: String, target: String| {
        let answer = other.post("/_replicate", &json!({"source": source, "target": target}));
        assert_eq!((answer.status, &answer.json()["ok"]), (200, &json!(true)), "{answer:?}");
        answer.json()["history"][0].clone()
    };
    let first = run("source".into(), server.url("v"));
    assert_eq!(first["doc_write_failures"], 0, "{first}");
    let state = |server: &TestServer, database: &str| {
        server.get(&format!("/{database}/_all_docs?include_docs=true&conflicts=true&attachments=true")).json()["rows"]
            .clone()
    };
    assert_eq!(state(&server, "v"), state(&other, "source"));
    assert_eq!(run("source".into(), server.url("v"))["docs_written"], 0);
    // It is the source while its shards change, too.
    start_move(&server, "v", &json!({"split": "shard-1"}));
    create(&other, "/copy");
    run(server.url("v"), "copy".into());
    until_moved(&server, "v");
    let rev = server.get("/v/d002").json()["_rev"].as_str().unwrap().to_owned();
    assert_eq!(server.delete(&format!("/v/d002?rev={rev}")).status, 200);
    assert_eq!(server.put("/v/later", &json!({"n": 1})).status, 201);
    run(server.url("v"), "copy".into());
    assert_eq!(state(&other, "copy"), state(&server, "v"));
    assert_eq!(other.get("/copy/d002").json()["reason"], "deleted");
    assert_eq!(run(server.url("v"), "copy".into())["docs_written"], 0);
}
