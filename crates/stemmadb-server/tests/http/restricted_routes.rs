//! Routes that answer users whom an access rule restricts from more than documents: views, histories, partitions,
//! prepared queries, transactions.

use serde_json::{Value, json};

use crate::access_rules::{BOB, MARK, ids, revision, rule, security, server, users};
use crate::client::TestServer;

#[test]
fn views_have_the_rows_of_visible_documents() {
    let server = server();
    let view = |query: &str| {
        let answer = server.alice("GET", &format!("/notes/_design/views/_view/all?reduce=false{query}"), None);
        assert!(!answer.text.contains(MARK), "{query}: {}", answer.text);
        answer.json()
    };
    let all = view("");
    assert_eq!(ids(&all["rows"], "id"), ["a1", "a2", "a3", "public"]);
    assert_eq!((all.get("total_rows"), all.get("offset")), (None, None), "they count hidden rows");
    assert_eq!(all["rows"][1]["value"]["n"], 2);
    assert_eq!(ids(&view("&skip=1&limit=2")["rows"], "id"), ["a2", "a3"]);
    assert_eq!(ids(&view("&descending=true&limit=1")["rows"], "id"), ["public"]);
    assert_eq!(ids(&view("&startkey=%22a2%22&endkey=%22hidden-2%22&include_docs=true")["rows"], "id"), ["a2", "a3"]);
    assert_eq!(view("&key=%22hidden-1%22")["rows"], json!([]));
    let queries = json!({"queries": [{"reduce": false, "limit": 1}, {"reduce": false, "key": "hidden-1"}]});
    let both = server.alice("POST", "/notes/_design/views/_view/all/queries", Some(queries)).json();
    assert_eq!(ids(&both["results"][0]["rows"], "id"), ["a1"]);
    assert_eq!(both["results"][1]["rows"], json!([]));
    // A row may link to a document that the user may not read.
    let links = json!({"views": {"refs": {"map": "function (doc) { if (doc.ref) emit(doc.ref, {_id: doc.ref}); }"}}});
    server.design("notes", "links", links);
    let linked = server.alice("GET", "/notes/_design/links/_view/refs?include_docs=true", None);
    let expected = json!({"id": "a1", "key": "hidden-1", "value": {"_id": "hidden-1"}, "doc": null});
    assert_eq!(linked.json()["rows"], json!([expected]));
    let of_bob = server.ask_as(BOB, "GET", "/notes/_design/views/_view/all?reduce=false&include_docs=true", None);
    assert_eq!(ids(&of_bob.json()["rows"], "id"), ["hidden-1", "hidden-2", "hidden-3", "public"]);
    // A view is updated before: a document that was given away has no row.
    let mut given: Value = server.get("/notes/a2").json();
    given["owner"] = json!("bob");
    assert_eq!(server.put("/notes/a2", &given).status, 201);
    assert_eq!(ids(&view("")["rows"], "id"), ["a1", "a3", "public"]);
    // Whoever may read all documents gets totals and reductions.
    let boss = Some(("boss", "boss's"));
    let all = server.ask_as(boss, "GET", "/notes/_design/views/_view/all?reduce=false", None).json();
    assert_eq!(all["total_rows"], 8);
    assert_eq!(server.ask_as(boss, "GET", "/notes/_design/views/_view/all", None).json()["rows"][0]["value"], 8);
}

#[test]
fn histories_have_the_visible_revisions() {
    let server = server();
    let write = |mut body: Value| {
        body["_rev"] = revision(&server, "a1").into();
        assert_eq!(server.put("/notes/a1", &body).status, 201);
    };
    write(json!({"owner": "bob", "text": MARK}));
    let hidden = revision(&server, "a1");
    assert_eq!(server.alice("GET", "/notes/_history/a1", None).status, 404);
    write(json!({"owner": "alice", "n": 9}));
    let history = server.alice("GET", "/notes/_history/a1?include_docs=true", None);
    assert!(!history.text.contains(MARK), "{}", history.text);
    let stored = history.json()["stored"].clone();
    assert!(!ids(&stored, "rev").contains(&hidden) && ids(&stored, "rev").len() >= 2, "{stored}");
    assert_eq!(stored[0]["doc"]["n"], 9);
    assert!(server.get("/notes/_history/a1?include_docs=true").text.contains(MARK));
    let missing = server.alice("GET", "/notes/_history/none", None);
    let answer = server.alice("GET", "/notes/_history/hidden-1", None);
    assert_eq!((answer.status, answer.text), (404, missing.text));
}

#[test]
fn prepared_queries_and_transactions_see_the_visible_documents() {
    let server = server();
    let query = json!({"selector": {"n": {"$gte": {"$param": "n"}}}, "fields": ["_id"]});
    let prepared = server.alice("POST", "/notes/_prepare", Some(query.clone()));
    assert_eq!(prepared.status, 201, "{}", prepared.text);
    let path = format!("/notes/_prepared/{}", prepared.json()["handle"].as_str().unwrap());
    for _ in 0..3 {
        let found = server.alice("POST", &path, Some(json!({"parameters": {"n": 3}})));
        let mut found = ids(&found.json()["docs"], "_id");
        found.sort();
        assert_eq!(found, ["a3", "public"]);
    }
    let of_bob = server.ask_as(BOB, "POST", "/notes/_prepare", Some(&query)).json();
    let of_bob = format!("/notes/_prepared/{}", of_bob["handle"].as_str().unwrap());
    let found = server.ask_as(BOB, "POST", &of_bob, Some(&json!({"parameters": {"n": 3}}))).json();
    let mut found = ids(&found["docs"], "_id");
    found.sort();
    assert_eq!(found, ["hidden-1", "hidden-2", "hidden-3", "public"]);
    assert_eq!(server.alice("POST", &of_bob, Some(json!({"parameters": {"n": 3}}))).status, 404);
    assert_eq!(server.alice("DELETE", &path, None).status, 200);

    let transact = |body: Value| {
        let answer = server.alice("POST", "/notes/_transact", Some(body));
        assert!(!answer.text.contains(MARK), "{}", answer.text);
        (answer.status, answer.json())
    };
    let hidden = revision(&server, "hidden-1");
    let new = json!([{"_id": "new", "owner": "alice"}]);
    let checks = json!([{"id": "hidden-1", "if_absent": true}, {"selector": {"n": {"$gt": 0}}, "count": 4}]);
    assert_eq!(transact(json!({"docs": new, "checks": checks})).0, 201);
    let checks = json!([{"id": "hidden-1", "rev": hidden}, {"selector": {"text": MARK}, "count": 1}]);
    let (status, refused) = transact(json!({"docs": [], "checks": checks}));
    assert_eq!((status, &refused["refused"][0]["rev"]), (409, &Value::Null), "{refused}");
    assert!(refused["refused"][1]["reason"].as_str().unwrap().starts_with("0 documents match"), "{refused}");
    for docs in [
        json!([{"_id": "other", "owner": "alice"}, {"_id": "hidden-1", "_rev": hidden, "owner": "alice"}]),
        json!([{"_id": "other", "owner": "alice"}, {"_id": "x", "owner": "bob"}]),
    ] {
        assert_eq!(transact(json!({"docs": docs})).0, 403);
        assert_eq!(server.get("/notes/other").status, 404);
    }
}

#[test]
fn partitions_have_the_visible_documents() {
    let server = TestServer::new();
    users(&server);
    let created = server.ask_as(crate::client::ADMIN, "PUT", "/parts?partitioned=true", None);
    assert_eq!(created.status, 201);
    let docs: Vec<Value> = (0..8)
        .map(|n| {
            let owner = if n % 2 == 0 { "alice" } else { "bob" };
            json!({"_id": format!("p{}:{n}", n / 4), "owner": owner, "text": MARK.repeat(n % 2)})
        })
        .collect();
    assert_eq!(server.post("/parts/_bulk_docs", &json!({"docs": docs})).status, 201);
    assert_eq!(server.put("/parts/_security", &security(rule())).status, 200);
    let ask = |method: &str, path: &str, body: Option<Value>| {
        let answer = server.alice(method, path, body);
        assert!(answer.status == 200 && !answer.text.contains(MARK), "{path}: {}", answer.text);
        answer.json()
    };
    let info = ask("GET", "/parts/_partition/p0", None);
    assert_eq!((&info["doc_count"], &info["sizes"]["active"]), (&json!(2), &json!(0)));
    let listed = ask("GET", "/parts/_partition/p0/_all_docs?include_docs=true", None);
    assert_eq!((&listed["total_rows"], ids(&listed["rows"], "id")), (&json!(2), vec!["p0:0".into(), "p0:2".into()]));
    let found = ask("POST", "/parts/_partition/p1/_find", Some(json!({"selector": {}})));
    assert_eq!(ids(&found["docs"], "_id"), ["p1:4", "p1:6"]);
}
