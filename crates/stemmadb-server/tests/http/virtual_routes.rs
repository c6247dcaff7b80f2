//! Routes of virtual databases whose requests need several shards: copies, indexes, functions that render documents,
//! access rules, and the past.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::access_rules::{BOB, MARK, fill, ids, rule, security, users};
use crate::client::{ADMIN, Response, TestServer, basic};
use crate::spread::Servers;
use crate::virtual_database::{create, start_move, until, until_moved, write_twins};
use crate::watch::Events;

/// What both databases answer to requests that are made of their names.
fn both(ask: impl Fn(&str) -> Response) -> [Response; 2] {
    ["v", "plain"].map(ask)
}

fn check_copies(server: &TestServer, ids: &[String]) {
    let send = |path: &str, to: &str| server.send_as_admin("COPY", path, &[("Destination", to)], b"");
    for from in ids {
        let stored = server.put(&format!("/v/{from}"), &json!({"from": from, "n": 1})).json();
        let path = format!("/v/{from}/f.txt?rev={}", stored["rev"].as_str().unwrap());
        assert_eq!(server.send_as_admin("PUT", &path, &[("Content-Type", "text/x-a")], b"content").status, 201);
        for (n, to) in ids.iter().enumerate() {
            let to = format!("{to}-{n}-of-{from}");
            let copied = send(&format!("/v/{from}"), &to);
            assert_eq!((copied.status, &copied.json()["id"]), (201, &json!(to)), "{copied:?}");
            let location = copied.header("location").unwrap();
            assert!(location.ends_with(&format!("/v/{to}")), "{location}");
            let document = server.get(&format!("/v/{to}")).json();
            assert_eq!((&document["from"], &document["_rev"]), (&json!(from), &copied.json()["rev"]));
            let file = server.get(&format!("/v/{to}/f.txt"));
            assert_eq!((file.text.as_str(), file.header("content-type")), ("content", Some("text/x-a")));
            assert_eq!(send(&format!("/v/{from}"), &to).status, 409);
            let replaced = send(&format!("/v/{from}"), &format!("{to}?rev={}", copied.json()["rev"].as_str().unwrap()));
            assert_eq!(replaced.status, 201, "{replaced:?}");
            let first = stored["rev"].as_str().unwrap();
            let of_first = send(&format!("/v/{from}?rev={first}"), &format!("{to}-first"));
            assert_eq!(of_first.status, 201, "{of_first:?}");
            assert_eq!(server.get(&format!("/v/{to}-first/f.txt")).status, 404);
        }
        assert_eq!(send(&format!("/v/{from}"), &format!("_local/of-{from}")).status, 201);
        assert_eq!(server.get(&format!("/v/_local/of-{from}")).json()["from"], json!(from));
    }
    assert_eq!(send("/v/missing", "x").status, 404);
    assert_eq!(server.send_as_admin("COPY", "/v/missing", &[], b"").status, 400);
    let design = json!({"validate_doc_update": "function (doc) { if (doc.no) throw({forbidden: 'no'}); }"});
    assert_eq!(server.put("/v/_design/one", &design).status, 201);
    for name in ["two", "three", "four"] {
        assert_eq!(send("/v/_design/one", &format!("_design/{name}")).status, 201);
        assert_eq!(
            server.get(&format!("/v/_design/{name}")).json()["validate_doc_update"],
            design["validate_doc_update"]
        );
    }
    let rev = server.get("/v/_design/one").json()["_rev"].as_str().unwrap().to_owned();
    assert_eq!(server.delete(&format!("/v/_design/one?rev={rev}")).status, 200);
    assert_eq!(server.put("/v/refused", &json!({"no": true})).status, 403);
    // A copy is validated, too.
    for name in ["two", "three", "four"] {
        let rev = server.get(&format!("/v/_design/{name}")).json()["_rev"].as_str().unwrap().to_owned();
        assert_eq!(server.delete(&format!("/v/_design/{name}?rev={rev}")).status, 200);
    }
}

#[test]
fn documents_are_copied_between_shards() {
    let server = TestServer::new();
    create(&server, "/v?shards=3");
    check_copies(&server, &["a", "b", "c", "d", "e"].map(str::to_owned));
}

#[test]
fn documents_are_copied_between_servers() {
    needs_one_server!("the shards of a cluster are on its servers by their URLs, not `here`");
    let servers = Servers::start();
    create(&servers.home, "/v?shards=3&servers=here,b,c");
    check_copies(&servers.home, &["here", "b", "c"].map(|server| servers.id_on(server)));
}

/// Compares indexes and queries that name them.
fn compare_indexes(server: &TestServer) {
    let compare = |method: &str, route: &str, body: Option<Value>| {
        let [ours, theirs] =
            both(|database| server.ask_as(ADMIN, method, &format!("/{database}/{route}"), body.as_ref()));
        assert_eq!((ours.status, ours.json()), (theirs.status, theirs.json()), "{method} {route}");
        ours.json()
    };
    for (name, index) in [
        ("one", json!({"index": {"fields": ["even", "n"]}, "name": "one", "ddoc": "i1"})),
        ("two", json!({"index": {"fields": ["n"]}, "name": "two", "ddoc": "i1"})),
        (
            "some",
            json!({"index": {"fields": ["n"], "partial_filter_selector": {"even": true}}, "name": "some",
            "ddoc": "i2"}),
        ),
        ("", json!({"index": {"fields": [{"n": "desc"}, "even"]}})),
    ] {
        let created = compare("POST", "_index", Some(index.clone()));
        assert_eq!(created["result"], "created", "{name}");
        assert_eq!(compare("POST", "_index", Some(index))["result"], "exists");
    }
    compare("POST", "_index", Some(json!({"index": {"fields": []}})));
    compare("POST", "_index", Some(json!({"index": {"fields": ["n"]}, "type": "text"})));
    compare("GET", "_index", None);
    compare("GET", "_index?limit=2&skip=1", None);
    for use_index in [json!("i1"), json!(["i1", "two"]), json!("i2"), json!("none"), json!("i2/some")] {
        let query = json!({"selector": {"n": {"$lt": 30}}, "sort": ["n"], "use_index": use_index, "fields": ["_id"]});
        let [ours, theirs] = both(|database| server.post(&format!("/{database}/_find"), &query));
        let (ours, theirs) = (ours.json(), theirs.json());
        assert_eq!((&ours["docs"], &ours["warning"]), (&theirs["docs"], &theirs["warning"]), "{use_index}");
        let strict = json!({"selector": {"n": 1}, "use_index": use_index, "allow_fallback": false});
        let [ours, theirs] = both(|database| server.post(&format!("/{database}/_find"), &strict));
        assert_eq!(ours.status, theirs.status, "{use_index}");
    }
    let query = json!({"selector": {"n": {"$lt": 30}}, "use_index": "i1"});
    let [ours, theirs] = both(|database| server.post(&format!("/{database}/_explain"), &query));
    let (ours, theirs) = (ours.json(), theirs.json());
    assert_eq!((&ours["dbname"], &ours["index"], &ours["opts"]), (&json!("v"), &theirs["index"], &theirs["opts"]));
    let shards = server.get("/v/_shards").json()["shards"].as_array().unwrap().len();
    assert_eq!(ours["shards"].as_object().unwrap().len(), shards, "{ours}");
    assert!(ours["shards"].as_object().unwrap().values().all(|plan| plan.is_object()), "{ours}");
}

fn remove_indexes(server: &TestServer) {
    let remove = |path: &str| {
        let [ours, theirs] = both(|database| server.delete(&format!("/{database}/_index/{path}")));
        assert_eq!((ours.status, ours.json()), (theirs.status, theirs.json()), "{path}");
        ours.status
    };
    assert_eq!(remove("i1/json/one"), 200);
    assert_eq!(remove("_design/i1/json/two"), 200);
    assert_eq!(remove("i1/json/two"), 404);
    let body = json!({"docids": ["_design/i2", "nothing"]});
    let [ours, theirs] = both(|database| server.post(&format!("/{database}/_index/_bulk_delete"), &body));
    assert_eq!(ours.json(), theirs.json());
    let [ours, theirs] = both(|database| server.get(&format!("/{database}/_index")));
    assert_eq!((ours.json()["total_rows"].clone(), ours.json()), (json!(2), theirs.json()));
}

/// The indexes that the library has in a shard on another server.
fn built(server: &TestServer, shard: &str) -> usize {
    let statistics = server.get(&format!("/{shard}/_index")).json();
    statistics["total_rows"].as_u64().unwrap_or_default() as usize
}

#[test]
fn indexes_are_those_of_all_shards() {
    let mut server = TestServer::new();
    create(&server, "/v?shards=3");
    write_twins(&server);
    compare_indexes(&server);
    server.restart();
    start_move(&server, "v", &json!({"split": "shard-1"}));
    until_moved(&server, "v");
    let [ours, theirs] = both(|database| server.get(&format!("/{database}/_index")));
    assert_eq!(ours.json(), theirs.json());
    remove_indexes(&server);
}

#[test]
fn indexes_are_those_of_all_servers() {
    let mut servers = Servers::start();
    create(&servers.home, "/v?shards=3&servers=here,b,c");
    write_twins(&servers.home);
    compare_indexes(&servers.home);
    until("the shard on b has the indexes", || built(&servers.b, "v%2Fshard-2") == 5);
    start_move(&servers.home, "v", &json!({"merge": "shard-1", "server": "b"}));
    until_moved(&servers.home, "v");
    until("a new shard has the indexes", || built(&servers.b, "v%2Fshard-4") == 5);
    remove_indexes(&servers.home);
    // The fields of an index keep their order, whichever server has the shard of its design document.
    for number in 0..8 {
        let index = json!({"index": {"fields": [{"n": "desc"}, {"even": "desc"}]}, "ddoc": format!("order-{number}")});
        let created = both(|database| servers.home.post(&format!("/{database}/_index"), &index));
        assert!(created.iter().all(|created| created.status == 200), "{created:?}");
    }
    servers.home.restart();
    let [ours, theirs] = both(|database| servers.home.get(&format!("/{database}/_index")));
    assert_eq!(ours.json(), theirs.json());
}

fn compare_functions(server: &TestServer) {
    for database in ["v", "plain"] {
        server.design(
            database,
            "r",
            json!({
                "views": {"n": {"map": "function (doc) { if (doc.n < 9) emit(doc.n, doc._id); }", "reduce": "_sum"}},
                "shows": {
                    "one": "function (doc, req) { return (doc ? doc.n : 'none') + ' ' + req.id + ' ' + \
                        req.userCtx.name; }",
                },
                "lists": {
                    "rows": "function (head, req) { var row, all = [head.total_rows]; while (row = getRow()) { \
                        all.push(row.id + ':' + row.key + ':' + row.value + (row.doc ? row.doc.n : '')); } \
                        return all.join(' '); }",
                },
                "updates": {
                    "count": "function (doc, req) { if (!doc) return [{_id: req.id, n: 1000}, 'made']; \
                        doc.n = doc.n + 1000; return [doc, {json: {n: doc.n}, code: 201}]; }",
                    "nothing": "function () { return [null, 'nothing']; }",
                    "new": "function (doc, req) { return [{_id: 'made-' + req.query.id}, 'new']; }",
                },
                "rewrites": [
                    {"from": "doc/:id", "to": "../../:id", "method": "GET"},
                    {"from": "shown/:id", "to": "_show/one/:id"},
                ],
            }),
        );
    }
    for (method, path) in [
        ("GET", "_show/one/d001"),
        ("GET", "_show/one/missing"),
        ("GET", "_show/one"),
        ("POST", "_show/one/d042"),
        ("GET", "_show/missing/d001"),
        ("GET", "_list/rows/n?reduce=false"),
        ("GET", "_list/rows/n?reduce=false&include_docs=true&descending=true&limit=4"),
        ("GET", "_list/rows/n?group=true"),
        ("GET", "_list/rows/r/n?reduce=false&startkey=3&endkey=5"),
        ("POST", "_list/rows/_all_docs?limit=5"),
        ("GET", "_list/missing/n"),
        ("GET", "_list/rows/missing"),
        ("PUT", "_update/count/d001"),
        ("PUT", "_update/count/d001"),
        ("POST", "_update/count/d002"),
        ("PUT", "_update/count/new-one"),
        ("POST", "_update/nothing"),
        ("POST", "_update/new?id=x"),
        ("POST", "_update/new?id=y"),
        ("PUT", "_update/missing/d001"),
        ("GET", "_rewrite/doc/d005"),
        ("GET", "_rewrite/shown/d005"),
        ("GET", "_rewrite/missing"),
    ] {
        let [ours, theirs] = both(|database| {
            server.ask_as(
                ADMIN,
                method,
                &format!("/{database}/_design/r/{path}"),
                (method != "GET").then_some(&json!({})),
            )
        });
        let text = |answer: &Response| answer.text.replace("\"plain\"", "\"v\"");
        assert_eq!((ours.status, text(&ours)), (theirs.status, text(&theirs)), "{method} {path}");
        assert_eq!(ours.header("x-couch-id"), theirs.header("x-couch-id"), "{method} {path}");
    }
    for id in ["d001", "d002", "new-one", "made-x"] {
        let [ours, theirs] = both(|database| server.get(&format!("/{database}/{id}")));
        assert_eq!((ours.status, &ours.json()["n"]), (200, &theirs.json()["n"]), "{id}");
    }
    let shown = server.get("/v/_design/r/_show/one/d003");
    let tag = shown.header("etag").unwrap().to_owned();
    let again = server.send_as_admin("GET", "/v/_design/r/_show/one/d003", &[("If-None-Match", &tag)], b"");
    assert_eq!(again.status, 304);
    server.post("/v/_design/r/_update/count/d003", &json!({}));
    let again = server.send_as_admin("GET", "/v/_design/r/_show/one/d003", &[("If-None-Match", &tag)], b"");
    assert_eq!(again.status, 200);
}

#[test]
fn functions_render_documents_of_all_shards() {
    let server = TestServer::new();
    create(&server, "/v?shards=3");
    write_twins(&server);
    compare_functions(&server);
}

#[test]
fn functions_render_documents_of_all_servers() {
    let servers = Servers::start();
    create(&servers.home, "/v?shards=4&servers=here,b,c");
    write_twins(&servers.home);
    compare_functions(&servers.home);
}

/// Fills the ordinary database `notes`, and a virtual one with the same documents, and gives both an access rule.
fn with_rule(server: &TestServer, parameters: &str) {
    users(server);
    fill(server);
    create(server, &format!("/v?{parameters}"));
    let copied = server.post("/_replicate", &json!({"source": "notes", "target": server.url("v")}));
    assert_eq!(copied.status, 200, "{copied:?}");
    for database in ["notes", "v"] {
        assert_eq!(server.put(&format!("/{database}/_security"), &security(rule())).status, 200);
    }
}

/// Removes what differs between two databases.
fn comparable(mut answer: Value) -> Value {
    if let Some(object) = answer.as_object_mut() {
        for name in ["offset", "bookmark", "update_seq", "last_seq", "total_rows"] {
            object.remove(name);
        }
        for list in ["results", "rows", "docs"] {
            let Some(rows) = object.get_mut(list).and_then(Value::as_array_mut) else { continue };
            for row in rows.iter_mut() {
                if let Some(row) = row.as_object_mut() {
                    ["seq", "offset", "total_rows"].iter().for_each(|name| drop(row.remove(*name)));
                }
            }
            if list == "results" {
                rows.sort_by_key(|row| row["id"].as_str().unwrap_or_default().to_owned());
                // A document that has moved may be reported again.
                rows.dedup();
            }
        }
    }
    answer
}

fn compare_restricted(server: &TestServer) {
    let queries = json!({"queries": [{"keys": ["a1", "hidden-1"]}, {"limit": 2}]});
    let keys = json!({"keys": ["a1", "hidden-1", "missing", "public"]});
    for (method, path, body) in [
        ("GET", "a1", None),
        ("GET", "hidden-1", None),
        ("GET", "hidden-1/file", None),
        ("GET", "missing", None),
        ("GET", "_all_docs", None),
        ("GET", "_all_docs?include_docs=true&descending=true&limit=2&skip=1", None),
        ("POST", "_all_docs", Some(keys)),
        ("POST", "_all_docs/queries", Some(queries)),
        ("POST", "_bulk_get", Some(json!({"docs": [{"id": "a1"}, {"id": "hidden-1"}, {"id": "public"}]}))),
        ("POST", "_revs_diff", Some(json!({"hidden-1": ["1-00000000000000000000000000000001"]}))),
        ("GET", "_changes", None),
        ("GET", "_changes?include_docs=true&style=all_docs", None),
        ("GET", "_changes?descending=true", None),
        ("GET", "_changes?filter=views/all", None),
        ("POST", "_changes?filter=_selector", Some(json!({"selector": {"n": {"$gt": 1}}}))),
        ("POST", "_find", Some(json!({"selector": {"n": {"$gt": 0}}, "sort": ["n"]}))),
        ("POST", "_aggregate", Some(json!({"figures": {"sum": {"sum": "n"}, "count": {"count": "n"}}}))),
        ("GET", "_design/views/_view/all?reduce=false", None),
        ("GET", "_design/views/_view/all?reduce=false&include_docs=true&limit=2&skip=1", None),
        ("GET", "_design/views/_view/all?reduce=false&key=%22hidden-1%22", None),
        ("GET", "_design/views/_view/all", None),
        ("POST", "_design/views/_view/all/queries", Some(json!({"queries": [{"reduce": false, "limit": 3}]}))),
        ("GET", "_design/views/_show/one/hidden-1", None),
        ("GET", "_design/views", None),
        ("PUT", "hidden-1", Some(json!({"owner": "alice"}))),
        ("PUT", "new", Some(json!({"owner": "bob"}))),
        ("POST", "_bulk_docs", Some(json!({"docs": [{"_id": "hidden-2"}, {"_id": "n1", "owner": "bob"}]}))),
        ("POST", "_transact", Some(json!({"docs": [{"_id": "hidden-2", "owner": "alice"}]}))),
        ("PATCH", "hidden-1", Some(json!({"$set": {"owner": "alice"}}))),
        ("DELETE", "hidden-1?rev=1-00000000000000000000000000000001", None),
        ("GET", "_design/views/_info", None),
        ("GET", "_design_docs", None),
        ("GET", "_index", None),
    ] {
        let [ours, theirs] =
            ["v", "notes"].map(|database| server.alice(method, &format!("/{database}/{path}"), body.clone()));
        assert_eq!(ours.status, theirs.status, "{method} {path}: {ours:?} {theirs:?}");
        assert!(!ours.text.contains(MARK), "{method} {path}: {ours:?}");
        if ours.status < 300 && !path.ends_with("/file") {
            assert_eq!(comparable(ours.json()), comparable(theirs.json()), "{method} {path}");
        }
    }
    assert_eq!(server.alice("GET", "/v", None).json()["doc_count"], 4);
    assert_eq!(ids(&server.ask_as(BOB, "GET", "/v/_all_docs", None).json()["rows"], "id").len(), 4);
    let all = server.get("/v/_all_docs").json();
    assert_eq!(all["rows"].as_array().unwrap().len(), 9, "administrators read everything: {all}");
    let rows = server.alice("GET", "/v/_changes?limit=1", None).json();
    assert!(rows["pending"].as_u64().unwrap() >= 3, "{rows}");
}

/// What a user can't read any more is reported as deleted.
fn departures_are_reported(server: &TestServer, ids: &[String]) {
    for id in ids {
        let path = format!("/v/{id}");
        let written = server.alice("PUT", &path, Some(json!({"owner": "alice", "text": "mine"}))).json();
        let since = server.alice("GET", "/v/_changes", None).json()["last_seq"].as_str().unwrap().to_owned();
        let body = json!({"_rev": written["rev"], "owner": "bob", "text": MARK});
        assert_eq!(server.alice("PUT", &path, Some(body.clone())).status, 403);
        assert_eq!(server.put(&path, &body).status, 201);
        let feed = format!("/v/_changes?since={since}&include_docs=true");
        let answer = server.alice("GET", &feed, None);
        assert!(!answer.text.contains(MARK), "{answer:?}");
        let rows = answer.json()["results"].clone();
        assert_eq!((&rows[0]["id"], &rows[0]["deleted"]), (&json!(id), &json!(true)), "{rows}");
        assert_eq!(server.alice("GET", &path, None).status, 404);
        assert_eq!(server.ask_as(BOB, "GET", &path, None).json()["text"], MARK);
        // A deletion is reported to those who could read the document.
        let rev = server.get(&path).json()["_rev"].as_str().unwrap().to_owned();
        assert_eq!(server.delete(&format!("{path}?rev={rev}")).status, 200);
        let rows = server.ask_as(BOB, "GET", &feed, None).json()["results"].clone();
        assert_eq!((&rows[0]["id"], &rows[0]["deleted"]), (&json!(id), &json!(true)), "{rows}");
    }
    // A live query has only what the user may read.
    let mut events = Events::get(server, &basic("alice", "alice's"), "/v/_watch?selector=%7B%7D");
    let mut seen = Vec::new();
    loop {
        let (kind, _, data) = events.next().unwrap();
        assert!(!data.to_string().contains(MARK), "{data}");
        match kind.as_str() {
            "state" => break,
            _ => seen.extend(data["id"].as_str().map(str::to_owned)),
        }
    }
    seen.sort();
    assert_eq!(seen, ["a1", "a2", "a3", "public"]);
}

#[test]
fn access_rules_hold_in_all_shards() {
    let mut server = TestServer::new();
    with_rule(&server, "shards=3");
    compare_restricted(&server);
    server.restart();
    compare_restricted(&server);
    start_move(&server, "v", &json!({"split": "shard-1"}));
    until_moved(&server, "v");
    compare_restricted(&server);
    departures_are_reported(&server, &["x1", "x2", "x3", "x4"].map(str::to_owned));
}

#[test]
fn access_rules_hold_on_all_servers() {
    needs_one_server!("the shards of a cluster are on its servers by their URLs, not `here`");
    let mut servers = Servers::start();
    with_rule(&servers.home, "shards=4&servers=here,b,c");
    compare_restricted(&servers.home);
    servers.home.restart();
    compare_restricted(&servers.home);
    start_move(&servers.home, "v", &json!({"merge": "shard-1", "server": "c"}));
    until_moved(&servers.home, "v");
    compare_restricted(&servers.home);
    let ids: Vec<String> = ["here", "b", "c"].iter().map(|server| servers.id_on(server)).collect();
    departures_are_reported(&servers.home, &ids);
}

/// The past of documents that have not moved, at a time.
fn check_past(server: &TestServer) {
    let keep = json!({"retention": {"seconds": 3600}});
    assert_eq!(server.put("/v/_retention", &keep).status, 200);
    for n in 0..20 {
        assert_eq!(server.put(&format!("/v/d{n:02}"), &json!({"n": n})).status, 201);
    }
    std::thread::sleep(Duration::from_millis(20));
    let us = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
    let then = stemmadb_server::format_rfc3339_us(us as u64);
    std::thread::sleep(Duration::from_millis(20));
    for n in 0..20 {
        let rev = server.get(&format!("/v/d{n:02}")).json()["_rev"].as_str().unwrap().to_owned();
        match n % 2 {
            0 => assert_eq!(server.put(&format!("/v/d{n:02}"), &json!({"_rev": rev, "n": -1})).status, 201),
            _ => assert_eq!(server.delete(&format!("/v/d{n:02}?rev={rev}")).status, 200),
        }
        assert_eq!(server.put(&format!("/v/new-{n}"), &json!({})).status, 201);
    }
    let before = server.get(&format!("/v/_all_docs?include_docs=true&as_of={then}")).json();
    assert_eq!((&before["total_rows"], before["rows"].as_array().unwrap().len()), (&json!(20), 20), "{before}");
    for (n, row) in before["rows"].as_array().unwrap().iter().enumerate() {
        assert_eq!(row["doc"]["n"], n, "{row}");
        let id = row["id"].as_str().unwrap();
        assert_eq!(server.get(&format!("/v/{id}?as_of={then}")).json()["n"], n);
    }
    assert_eq!(server.get("/v/_all_docs?as_of=-0s").json()["total_rows"], 30);
    assert_eq!(server.get(&format!("/v/new-1?as_of={then}")).status, 404);
    let keys = server.post(&format!("/v/_all_docs?as_of={then}"), &json!({"keys": ["d01", "new-1"]})).json();
    assert_eq!((&keys["rows"][0]["id"], &keys["rows"][1]["error"]), (&json!("d01"), &json!("not_found")), "{keys}");
    let history = server.get("/v/_history/d00").json();
    assert_eq!(history["stored"].as_array().map(Vec::len), Some(2), "{history}");
    assert_eq!(server.get("/v/_all_docs?as_of=5").status, 400);
    assert_eq!(server.get("/v/_all_docs?as_of=yesterday").status, 400);
    assert_eq!(server.get(&format!("/v/_changes?as_of={then}")).status, 501);
    assert_eq!(server.get(&format!("/v/_all_docs?update_seq=true&as_of={then}")).status, 501);
    compare_past(server, &then);
}

/// Compares answers as of a time with what they were, before and after documents move between shards.
fn compare_past(server: &TestServer, then: &str) {
    let views = json!({
        "n": {"map": "function (doc) { emit(doc.n, doc._id) }", "reduce": "_sum"},
        "last": {"map": "function (doc) { emit(doc.n % 3, doc.n) }", "reduce": "_last"},
    });
    server.design("v", "past", json!({"views": views}));
    let answers = |then: &str| -> Vec<(String, Value)> {
        let get = |path: &str| {
            let separator = if path.contains('?') { '&' } else { '?' };
            server.get(&format!("/v/{path}{separator}as_of={then}"))
        };
        let post = |path: &str, body: Value| server.post(&format!("/v/{path}?as_of={then}"), &body);
        let selector = json!({"n": {"$gte": 5}});
        let figures = json!({"selector": selector, "figures": {"n": {"sum": "n"}, "count": "count"}});
        let mut answers = vec![
            ("all", get("_all_docs?include_docs=true")),
            ("keys", post("_all_docs", json!({"keys": ["d01", "d02", "new-1"]}))),
            ("one", get("d03")),
            ("find", post("_find", json!({"selector": selector}))),
            ("sorted", post("_find", json!({"selector": selector, "sort": [{"n": "desc"}], "limit": 4, "skip": 3}))),
            ("figures", post("_aggregate", figures)),
            ("rows", get("_design/past/_view/n?reduce=false&include_docs=true&descending=true&limit=7&skip=2")),
            ("sum", get("_design/past/_view/n")),
            ("groups", get("_design/past/_view/last?group=true")),
            ("queries", post("_design/past/_view/n/queries", json!({"queries": [{"key": 7, "reduce": false}]}))),
        ];
        answers.push(("missing", get("new-1")));
        assert_eq!(post("_explain", json!({"selector": selector})).status, 200);
        let shown = |(name, answer): (&str, Response)| {
            assert_eq!(answer.status, if name == "missing" { 404 } else { 200 }, "{name}: {answer:?}");
            let mut answer = answer.json();
            // A view's number of rows is not counted where rows may be copies.
            answer.as_object_mut().unwrap().retain(|member, _| name == "all" || member != "total_rows");
            answer.as_object_mut().unwrap().retain(|member, _| !["offset", "bookmark"].contains(&member.as_str()));
            if name == "queries" {
                answer = answer["results"][0]["rows"].clone();
            }
            (name.to_owned(), answer)
        };
        answers.into_iter().map(shown).collect()
    };
    let now = || {
        std::thread::sleep(Duration::from_millis(20));
        let us = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
        std::thread::sleep(Duration::from_millis(20));
        stemmadb_server::format_rfc3339_us(us as u64)
    };
    let before = answers(then);
    let member = |name: &str, path: &str| {
        let found = before.iter().find(|(known, _)| known == name);
        found.unwrap_or_else(|| panic!("{name}")).1.pointer(path).cloned().unwrap_or_default()
    };
    assert_eq!(member("find", "/docs").as_array().map(Vec::len), Some(15));
    assert_eq!(member("figures", "/rows/0/value"), json!({"n": 180, "count": 15}), "{before:?}");
    assert_eq!(member("sorted", "/docs/0/n"), 16);
    assert_eq!(member("groups", "/rows").as_array().map(Vec::len), Some(3), "{before:?}");
    assert_eq!(member("queries", "/0/id"), "d07", "{before:?}");
    let later = now();
    let at_later = answers_of_changed(server, &later);
    start_move(server, "v", &json!({"split": "shard-1"}));
    until_moved(server, "v");
    let split = now();
    for n in 0..20 {
        let rev = server.get(&format!("/v/new-{n}")).json()["_rev"].as_str().unwrap().to_owned();
        assert_eq!(server.delete(&format!("/v/new-{n}?rev={rev}")).status, 200);
    }
    assert_eq!(answers(then), before);
    assert_eq!(answers_of_changed(server, &later), at_later);
    assert_eq!(answers_of_changed(server, &split), at_later);
    // Into a shard that has documents.
    let shards = server.get("/v/_shards").json();
    start_move(server, "v", &json!({"move": [[2_800, 3_500]], "to": shards["shards"][1]["name"]}));
    until_moved(server, "v");
    assert_eq!(answers(then), before);
    assert_eq!(answers_of_changed(server, &split), at_later);
    assert_eq!(server.get(&format!("/v/_all_docs?as_of={}", now())).json()["total_rows"], 11);
    // The past of a shard that is merged into another one is lost.
    start_move(server, "v", &json!({"merge": "shard-2", "into": "shard-4"}));
    until_moved(server, "v");
    let refused = server.get(&format!("/v/_all_docs?as_of={then}"));
    assert_eq!(refused.status, 404, "{refused:?}");
    assert!(refused.text.contains("merged"), "{refused:?}");
    assert_eq!(server.get(&format!("/v/_all_docs?as_of={}", now())).json()["total_rows"], 11);
}

/// The ids and the revisions of all documents as of a time.
fn answers_of_changed(server: &TestServer, then: &str) -> Value {
    let listed = server.get(&format!("/v/_all_docs?as_of={then}"));
    assert_eq!(listed.status, 200, "{listed:?}");
    let found =
        server.post(&format!("/v/_find?as_of={then}"), &json!({"selector": {"_id": {"$gt": "e"}}, "limit": 50}));
    json!([listed.json()["rows"], listed.json()["total_rows"], found.json()["docs"]])
}

#[test]
fn the_past_of_all_shards_is_read_at_a_time() {
    let server = TestServer::new();
    create(&server, "/v?shards=3");
    check_past(&server);
}

#[test]
fn the_past_of_all_servers_is_read_at_a_time() {
    let servers = Servers::start();
    create(&servers.home, "/v?shards=3&servers=here,b,c");
    check_past(&servers.home);
}
