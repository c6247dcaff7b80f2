//! Partitioned databases: ids, listings, queries and views within a partition, and what CouchDB refuses.

use serde_json::{Value, json};

use crate::client::{ADMIN, Response, TestServer};

/// A partitioned database with the partitions `a` and `b`, which have three documents each, and one deleted document.
fn partitioned() -> TestServer {
    let server = TestServer::new();
    assert_eq!(server.ask_as(ADMIN, "PUT", "/db?partitioned=true", None).status, 201);
    let docs = ["a:1", "a:2", "a:3", "b:1", "b:2", "b:3", "a9:1"];
    let docs: Vec<_> =
        docs.iter().map(|id| json!({"_id": id, "n": id[id.len() - 1..].parse::<u32>().unwrap(), "t": id})).collect();
    let written = server.post("/db/_bulk_docs", &json!({ "docs": docs }));
    assert_eq!(written.status, 201, "{written:?}");
    let gone = server.put("/db/a:gone", &json!({})).json();
    assert_eq!(server.delete(&format!("/db/a:gone?rev={}", gone["rev"].as_str().unwrap())).status, 200);
    server
}

fn refusal(answer: &Response) -> (u16, String, String) {
    let body = answer.json();
    let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    (answer.status, text("error"), text("reason"))
}

fn ids(answer: &Response) -> Vec<String> {
    assert_eq!(answer.status, 200, "{answer:?}");
    let body = answer.json();
    let rows = if body["rows"].is_array() { &body["rows"] } else { &body["docs"] };
    let id = |row: &Value| row["id"].as_str().or(row["_id"].as_str()).unwrap().to_owned();
    rows.as_array().unwrap().iter().map(id).collect()
}

#[test]
fn ids_of_partitioned_databases_name_a_partition() {
    let mut server = partitioned();
    assert_eq!(server.get("/db").json()["props"], json!({"partitioned": true}));
    server.restart();
    assert_eq!(server.get("/db").json()["props"], json!({"partitioned": true}));
    server.database("plain", &[json!({"_id": "a:1"})]);
    assert_eq!(server.get("/plain").json()["props"], json!({}));
    let form = "Doc id must be of form partition:id";
    for (id, error, reason) in [
        ("1", "illegal_docid", form),
        (":1", "illegal_partition", "Partition must not be empty"),
        ("a:", "illegal_docid", "Document id must not be empty"),
        ("a:_1", "illegal_docid", "Only reserved document ids may start with underscore."),
    ] {
        let expected = (400, error.to_owned(), reason.to_owned());
        assert_eq!(refusal(&server.put(&format!("/db/{id}"), &json!({}))), expected, "{id}");
        let all = json!({"docs": [{"_id": "a:new"}, {"_id": id}]});
        assert_eq!(refusal(&server.post("/db/_bulk_docs", &all)), expected, "{id}");
    }
    assert_eq!(server.get("/db/a:new").status, 404, "the whole request was refused");
    assert_eq!(refusal(&server.post("/db", &json!({}))), (400, "illegal_docid".to_owned(), form.to_owned()));
    let file = server.send_as_admin("PUT", "/db/1/f", &[("Content-Type", "text/plain")], b"x");
    assert_eq!(refusal(&file), (400, "illegal_docid".to_owned(), form.to_owned()));
    for path in ["/db/_design/d", "/db/_local/l"] {
        assert_eq!(server.put(path, &json!({})).status, 201, "{path}");
    }
    let create = |path: &str| refusal(&server.ask_as(ADMIN, "PUT", path, None));
    assert_eq!(create("/other?partitioned=1").2, "Invalid `partitioned` parameter");
    assert_eq!(create("/_replicator?partitioned=true").2, "Cannot partition a system database");
    assert_eq!(server.ask_as(ADMIN, "PUT", "/other?partitioned=false", None).status, 201);
}

#[test]
fn listings_within_a_partition() {
    let server = partitioned();
    let info = server.get("/db/_partition/a").json();
    assert_eq!(
        (&info["db_name"], &info["partition"], &info["doc_count"], &info["doc_del_count"]),
        (&json!("db"), &json!("a"), &json!(3), &json!(1))
    );
    assert!(info["sizes"]["external"].as_u64().unwrap() > 30, "{info}");
    assert_eq!(server.get("/db/_partition/nothing").json()["doc_count"], 0);
    let list = |query: &str| server.get(&format!("/db/_partition/a/_all_docs{query}"));
    assert_eq!(ids(&list("")), ["a:1", "a:2", "a:3"]);
    let listed = list("?skip=1").json();
    assert_eq!((&listed["total_rows"], &listed["offset"]), (&json!(3), &json!(1)));
    assert_eq!(ids(&list("?descending=true&limit=2")), ["a:3", "a:2"]);
    assert_eq!(ids(&list("?startkey=%22a:2%22&endkey=%22b:2%22")), ["a:2", "a:3"]);
    assert_eq!(ids(&list("?key=%22b:1%22")), [""; 0]);
    assert_eq!(list("?include_docs=true").json()["rows"][0]["doc"]["n"], 1);
    let keys = server.post("/db/_partition/a/_all_docs", &json!({"keys": ["a:2", "b:2"]})).json();
    assert_eq!((&keys["rows"][0]["id"], &keys["rows"][1]["error"]), (&json!("a:2"), &json!("not_found")));
    assert_eq!(ids(&server.get("/db/_all_docs?partition=b")), ["b:1", "b:2", "b:3"]);
    assert_eq!(server.get("/db/_all_docs").json()["total_rows"], 7);
}

#[test]
fn queries_within_a_partition() {
    let server = partitioned();
    let find = |path: &str, body: Value| server.post(&format!("/db/{path}"), &body);
    assert_eq!(ids(&find("_partition/a/_find", json!({"selector": {"n": {"$gte": 2}}}))), ["a:2", "a:3"]);
    let sorted = json!({"selector": {}, "sort": [{"n": "desc"}], "limit": 2});
    let page = find("_partition/b/_find", sorted.clone());
    assert_eq!(ids(&page), ["b:3", "b:2"]);
    let mut next = sorted;
    next["bookmark"] = page.json()["bookmark"].clone();
    assert_eq!(ids(&find("_partition/b/_find", next)), ["b:1"]);
    assert_eq!(ids(&find("_find", json!({"selector": {"n": 1}, "partition": "b"}))), ["b:1"]);
    assert_eq!(ids(&find("_find", json!({"selector": {"n": 1}}))).len(), 3);
    // Only the documents of the partition are candidates.
    let stats =
        find("_partition/a/_find", json!({"selector": {"n": {"$mod": [2, 1]}}, "execution_stats": true})).json();
    assert!(stats["execution_stats"]["total_docs_examined"].as_u64().unwrap() <= 3, "{stats}");
    let declared = find("_index", json!({"index": {"fields": ["n"]}, "ddoc": "p", "name": "p"}));
    assert_eq!(declared.json()["result"], "created", "{declared:?}");
    let global = json!({"index": {"fields": ["n"]}, "ddoc": "g", "name": "g", "partitioned": false});
    assert_eq!(find("_index", global).json()["result"], "created");
    let listed = server.get("/db/_index").json();
    let partitioned: Vec<_> = listed["indexes"].as_array().unwrap()[1..].iter().map(|i| &i["partitioned"]).collect();
    assert_eq!(partitioned, [&json!(false), &json!(true)], "{listed}");
    let plan = find("_partition/a/_explain", json!({"selector": {"n": 1}})).json();
    assert_eq!((&plan["index"]["name"], &plan["mrargs"]["partition"]), (&json!("p"), &json!("a")), "{plan}");
    let plan = find("_explain", json!({"selector": {"n": 1}})).json();
    assert_eq!((&plan["index"]["name"], &plan["mrargs"]["partition"]), (&json!("g"), &Value::Null), "{plan}");
    let mixed = json!({"index": {"fields": ["t"]}, "ddoc": "p", "name": "q", "partitioned": false});
    assert_eq!(refusal(&find("_index", mixed)).1, "invalid_partitioned_option");
}

#[test]
fn views_within_a_partition() {
    let server = partitioned();
    let views = json!({"v": {"map": "function(doc) { emit([doc.n, doc.t], doc.n) }", "reduce": "_sum"}});
    server.design("db", "p", json!({ "views": views }));
    server.design("db", "g", json!({"views": views, "options": {"partitioned": false}}));
    let view =
        |partition: &str, query: &str| server.get(&format!("/db/_partition/{partition}/_design/p/_view/v{query}"));
    assert_eq!(ids(&view("a", "?reduce=false")), ["a:1", "a:2", "a:3"]);
    let rows = view("b", "?reduce=false&descending=true&skip=1").json();
    assert_eq!(
        (&rows["total_rows"], &rows["offset"], &rows["rows"][0]["key"]),
        (&json!(3), &json!(1), &json!([2, "b:2"]))
    );
    assert_eq!(ids(&view("a", "?reduce=false&startkey=[2]&endkey=[2,{}]")), ["a:2"]);
    assert_eq!(view("a", "").json()["rows"], json!([{"key": null, "value": 6}]));
    assert_eq!(view("a9", "?group_level=1").json()["rows"], json!([{"key": [1], "value": 1}]));
    assert_eq!(view("nothing", "?reduce=false").json()["rows"], json!([]));
    let posted =
        server.post("/db/_partition/a/_design/p/_view/v?reduce=false", &json!({"keys": [[3, "a:3"], [1, "b:1"]]}));
    assert_eq!(ids(&posted), ["a:3"]);
    server.put("/db/a:0", &json!({"n": 0, "t": "new"}));
    assert_eq!(ids(&view("a", "?reduce=false&limit=1")), ["a:0"]);
    let global = server.get("/db/_design/g/_view/v");
    assert_eq!(global.json()["rows"][0]["value"], 13, "{global:?}");
    let error = |path: &str| {
        let (status, error, reason) = refusal(&server.get(path));
        assert_eq!((status, error.as_str()), (400, "query_parse_error"), "{path}");
        reason
    };
    assert_eq!(error("/db/_design/p/_view/v"), "`partition` parameter is mandatory for queries to this view.");
    let unsupported = "`partition` parameter is not supported in this design doc";
    assert_eq!(error("/db/_partition/a/_design/g/_view/v"), unsupported);
}

#[test]
fn partition_routes_refuse_what_couchdb_refuses() {
    let server = partitioned();
    server.database("plain", &[json!({"_id": "a:1"})]);
    let get = |path: &str| refusal(&server.get(path));
    for path in ["/plain/_partition/a", "/plain/_partition/a/_all_docs", "/plain/_partition/a/_design/d/_view/v"] {
        assert_eq!(get(path), (400, "bad_request".to_owned(), "database is not partitioned".to_owned()), "{path}");
    }
    let query = json!({"selector": {}});
    assert_eq!(refusal(&server.post("/plain/_partition/a/_find", &query)).2, "database is not partitioned");
    assert_eq!(get("/plain/_all_docs?partition=a").2, "`partition` parameter is not supported on this db");
    let design = json!({"views": {}, "options": {"partitioned": true}});
    let refused = refusal(&server.put("/plain/_design/d", &design));
    let reason = "partitioned option cannot be true in a non-partitioned database.";
    assert_eq!(refused, (400, "invalid_design_doc".to_owned(), reason.to_owned()));
    assert_eq!(get("/db/_partition/_a").2, "Partition must not start with an underscore");
    assert_eq!(get("/db/_partition/a:b/_all_docs").2, "Partition must not contain a colon");
    let conflict = "Conflicting value for `partition` in query string";
    assert_eq!(get("/db/_partition/a/_all_docs?partition=b").2, conflict);
    assert_eq!(server.get("/db/_partition/a/unknown").status, 404);
}
