//! Shows, lists and rewrites.

use serde_json::{Value, json};

use crate::client::{ADMIN, TestServer, basic};

fn server() -> TestServer {
    let server = TestServer::new();
    let docs: Vec<_> = (0..4).map(|n| json!({"_id": format!("d{n}"), "n": n})).collect();
    server.database("db", &docs);
    server.design(
        "db",
        "d",
        json!({
            "views": {
                "n": {"map": "function(doc) { emit(doc.n, doc._id) }"},
                "count": {"map": "function(doc) { emit(doc.n, 1) }", "reduce": "_count"},
            },
            "shows": {
                "plain": "function(doc, req) { return (doc ? doc.n : 'none') + ' ' + req.id }",
                "object": "function(doc, req) { return {code: 203, headers: {'X-Mine': 'a', 'Set-Cookie': 'b=c'}, \
                    json: {query: req.query, body: req.body}} }",
                "sent": "function(doc, req) { start({code: 404, headers: {'X-Mine': 'b'}}); send('a'); send(1); \
                    return 'c' }",
                "typed": "function(doc, req) { registerType('pink', 'text/pink'); \
                    provides('html', function() { return '<b>' + doc.n + '</b>' }); \
                    provides('json', function() { return {json: {n: doc.n}} }); \
                    provides('pink', function() { send('p'); return 'ink' }) }",
                "number": "function(doc, req) { return 5 }",
                "broken": "function(doc, req) { return doc.x.y }",
                "rows": "function(doc, req) { getRow() }",
            },
            "lists": {
                "keys": "function(head, req) { start({headers: {'Content-Type': 'text/plain'}}); send('head '); \
                    var row; while (row = getRow()) { send(row.key + '=' + row.value + ';') } return ' tail' }",
                "head": "function(head, req) { return toJSON([head, req.query, getRow(), getRow()]) }",
                "late": "function(head, req) { getRow(); start({code: 202}); send('x'); getRow(); start({code: 500}) }",
                "stops": "function(head, req) { send(getRow().id) }",
                "typed": "function(head, req) { provides('html', function() { return '<p>' + getRow().id }); \
                    provides('json', function() { return toJSON(getRow()) }) }",
                "broken": "function(head, req) { send('head'); fooBar() }",
            },
            "rewrites": [
                {"from": "/", "to": "/_show/plain"},
                {"from": "/doc/:id", "to": "../../:id", "method": "GET"},
                {"from": "/doc/:id", "to": "../../:id", "method": "PUT"},
                {"from": "/show/*", "to": "_show/plain/*"},
                {"from": "/from/:n", "to": "_view/n", "query": {"startkey": ":n", "limit": "1"},
                    "formats": {"n": "int"}},
                {"from": "/loop", "to": "_rewrite/loop"},
                {"from": "/out", "to": "../../../_users"},
            ],
        }),
    );
    server
}

fn error_of(server: &TestServer, path: &str) -> (u16, Value) {
    let answer = server.get(path);
    (answer.status, answer.json()["error"].clone())
}

#[test]
fn shows_render_documents() {
    let server = server();
    let show = |path: &str| server.get(&format!("/db/_design/d/_show/{path}"));
    let shown = show("plain/d1");
    assert_eq!((shown.status, shown.text.as_str()), (200, "1 d1"));
    assert_eq!(shown.header("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(shown.header("content-security-policy"), Some("sandbox"));
    assert_eq!(show("plain").text, "none null");
    assert_eq!(show("plain/not/there").text, "none not/there");
    let object = server.post("/db/_design/d/_show/object?a=b", &json!({"x": 1}));
    assert_eq!((object.status, object.json()), (203, json!({"query": {"a": "b"}, "body": "{\"x\":1}"})));
    assert_eq!((object.header("x-mine"), object.header("set-cookie")), (Some("a"), None));
    let sent = show("sent/d1");
    assert_eq!((sent.status, sent.text.as_str(), sent.header("x-mine")), (404, "a1c", Some("b")));
    for (name, error) in [("number/d1", "render_error"), ("broken/d1", "render_error"), ("rows/d1", "render_error")] {
        assert_eq!(error_of(&server, &format!("/db/_design/d/_show/{name}")), (500, json!(error)), "{name}");
    }
    assert_eq!(error_of(&server, "/db/_design/d/_show/broken/nothing"), (404, json!("not_found")));
    assert_eq!(show("missing").status, 404);
    // A response depends on the functions, the document and the request.
    let tag = shown.header("etag").unwrap().to_owned();
    let again = |path: &str| server.send_as_admin("GET", path, &[("If-None-Match", &tag)], b"").status;
    assert_eq!(again("/db/_design/d/_show/plain/d1"), 304);
    assert_eq!(again("/db/_design/d/_show/plain/d1?x=1"), 200);
    let revision = server.get("/db/d1").json()["_rev"].clone();
    server.put("/db/d1", &json!({"_rev": revision, "n": 7}));
    assert_eq!(again("/db/_design/d/_show/plain/d1"), 200);
}

#[test]
fn content_types_are_negotiated() {
    let server = server();
    for (accept, kind, text) in [
        ("text/html", "text/html; charset=utf-8", "<b>1</b>"),
        ("application/json", "application/json", r#"{"n":1}"#),
        ("text/html;q=0.5, application/json", "application/json", r#"{"n":1}"#),
        ("text/pink, */*;q=0.1", "text/pink", "pink"),
        ("*/*", "text/html; charset=utf-8", "<b>1</b>"),
    ] {
        let shown = server.send_as_admin("GET", "/db/_design/d/_show/typed/d1", &[("Accept", accept)], b"");
        let found = (shown.status, shown.header("content-type"), shown.text.as_str());
        assert_eq!(found, (200, Some(kind), text), "{accept}");
    }
    let format = server.get("/db/_design/d/_show/typed/d1?format=pink");
    assert_eq!((format.header("content-type"), format.text.as_str()), (Some("text/pink"), "pink"));
    let refused = server.send_as_admin("GET", "/db/_design/d/_show/typed/d1", &[("Accept", "image/png")], b"");
    assert_eq!((refused.status, &refused.json()["error"]), (406, &json!("not_acceptable")));
    let list = server.send_as_admin("GET", "/db/_design/d/_list/typed/n", &[("Accept", "text/html")], b"");
    assert_eq!((list.header("content-type"), list.text.as_str()), (Some("text/html; charset=utf-8"), "<p>d0"));
}

#[test]
fn lists_render_views() {
    let server = server();
    let list = |path: &str| server.get(&format!("/db/_design/d/_list/{path}"));
    let listed = list("keys/n");
    assert_eq!((listed.status, listed.text.as_str()), (200, "head 0=d0;1=d1;2=d2;3=d3; tail"));
    assert_eq!(listed.header("content-type"), Some("text/plain"));
    assert_eq!(list("keys/n?startkey=2&descending=true").text, "head 2=d2;1=d1;0=d0; tail");
    assert_eq!(list("keys/n?startkey=9").text, "head  tail");
    assert_eq!(list("keys/count").text, "head null=4; tail");
    assert_eq!(list("keys/count?group=true&limit=2").text, "head 0=1;1=1; tail");
    let posted = server.post("/db/_design/d/_list/keys/n", &json!({"keys": [3, 1]}));
    assert_eq!(posted.text, "head 3=d3;1=d1; tail");
    let head: Value = list("head/n?include_docs=true&limit=1&x=y").json();
    assert_eq!(head[0], json!({"total_rows": 4, "offset": 0}));
    assert_eq!((&head[1]["x"], &head[2]["doc"]["n"], &head[3]), (&json!("y"), &json!(0), &Value::Null));
    assert_eq!(list("late/n").status, 202);
    assert_eq!(list("stops/n").text, "d0");
    assert_eq!(list("stops/_all_docs?startkey=%22d2%22").text, "d2");
    server.design("db", "other", json!({"views": {"m": {"map": "function(doc) { emit(-doc.n, 'm') }"}}}));
    assert_eq!(list("keys/other/m?limit=1").text, "head -3=m; tail");
    assert_eq!(error_of(&server, "/db/_design/d/_list/broken/n"), (500, json!("render_error")));
    assert_eq!(error_of(&server, "/db/_design/d/_list/keys/missing"), (404, json!("not_found")));
    assert_eq!(error_of(&server, "/db/_design/d/_list/missing/n"), (404, json!("not_found")));
    let tag = list("keys/n").header("etag").unwrap().to_owned();
    let again = || server.send_as_admin("GET", "/db/_design/d/_list/keys/n", &[("If-None-Match", &tag)], b"").status;
    assert_eq!(again(), 304);
    server.put("/db/new", &json!({"n": 9}));
    assert_eq!(again(), 200);
}

#[test]
fn rewrite_rules_name_other_requests() {
    let server = server();
    let get = |path: &str| server.get(&format!("/db/_design/d/_rewrite{path}"));
    assert_eq!(get("/").text, "none null");
    assert_eq!(get("").text, "none null");
    assert_eq!(get("/doc/d2").json()["n"], 2);
    assert_eq!(get("/show/d3").text, "3 d3");
    assert_eq!(get("/from/2").json()["rows"], json!([{"id": "d2", "key": 2, "value": "d2"}]));
    let written = server.put("/db/_design/d/_rewrite/doc/new", &json!({"n": 5}));
    assert_eq!(written.status, 201, "{written:?}");
    assert_eq!(server.get("/db/new").json()["n"], 5);
    assert_eq!(server.delete("/db/_design/d/_rewrite/doc/new").status, 404, "no rule has this method");
    assert_eq!(error_of(&server, "/db/_design/d/_rewrite/nothing"), (404, json!("not_found")));
    assert_eq!(error_of(&server, "/db/_design/d/_rewrite/loop"), (400, json!("bad_request")));
    assert_eq!(error_of(&server, "/db/_design/d/_rewrite/out"), (500, json!("insecure_rewrite_rule")));
    assert_eq!(server.get("/db/_design/d/_rewrite/show/..%2f..%2f..%2f_users").status, 200, "an encoded slash");
    server.design("db", "none", json!({}));
    assert_eq!(error_of(&server, "/db/_design/none/_rewrite/a"), (404, json!("rewrite_error")));
}

#[test]
fn rewrite_functions_name_other_requests() {
    let server = server();
    let rewrites = "function(req) {
        switch (req.path[4]) {
            case 'path': return '../../d1';
            case 'write': return {path: '../../w', method: 'PUT', body: toJSON({got: JSON.parse(req.body)}),
                headers: {'X-A': 'b', 'Authorization': 'Basic ' + 'bm9ib2R5Og==', 'Content-Type': 'application/json'}};
            case 'view': return {path: '../d/_view/n', query: {key: '3'}};
            case 'answer': return {code: 418, body: 'tea', headers: {'X-A': 'b', 'Set-Cookie': 'a=b'}};
            case 'users': return {path: '../../../_users'};
            case 'all': return {path: '../../../_all_dbs'};
            case 'odd': return 7;
            case 'throws': throw {forbidden: 'no'};
        }
    }";
    server.design("db", "f", json!({ "rewrites": rewrites }));
    let path = |name: &str| format!("/db/_design/f/_rewrite/{name}");
    assert_eq!(server.get(&path("path")).json()["n"], 1);
    let written = server.post(&path("write"), &json!({"x": 1}));
    assert_eq!(written.status, 201, "{written:?}");
    assert_eq!(server.get("/db/w").json()["got"], json!({"x": 1}));
    assert_eq!(server.get(&path("view")).json()["rows"][0]["id"], "d3");
    let answer = server.get(&path("answer"));
    assert_eq!((answer.status, answer.text.as_str(), answer.header("x-a")), (418, "tea", Some("b")));
    assert_eq!(answer.header("set-cookie"), None);
    for (name, status, error) in [
        ("users", 500, "insecure_rewrite_rule"),
        ("all", 500, "insecure_rewrite_rule"),
        ("odd", 500, "rewrite_error"),
        ("throws", 403, "forbidden"),
        ("nothing", 404, "rewrite_error"),
    ] {
        assert_eq!(error_of(&server, &path(name)), (status, json!(error)), "{name}");
    }
}

#[test]
fn rewritten_requests_need_the_same_rights() {
    let server = server();
    let security = json!({"admins": {"names": [], "roles": []}, "members": {"names": ["ann"], "roles": []}});
    assert_eq!(server.put("/db/_security", &security).status, 200);
    server.database("_users", &[]);
    let user = json!({"name": "ann", "password": "pw", "type": "user", "roles": []});
    assert_eq!(server.put("/_users/org.couchdb.user:ann", &user).status, 201);
    server.design(
        "db",
        "s",
        json!({"rewrites": [{"from": "/security", "to": "../../_security"}, {"from": "/doc", "to": "../../d1"}]}),
    );
    let ann = Some(("ann", "pw"));
    assert_eq!(server.ask_as(ann, "GET", "/db/_design/s/_rewrite/doc", None).status, 200);
    assert_eq!(server.ask_as(None, "GET", "/db/_design/s/_rewrite/doc", None).status, 401);
    let put = |user| server.ask_as(user, "PUT", "/db/_design/s/_rewrite/security", Some(&security)).status;
    assert_eq!((put(ann), put(ADMIN)), (403, 200), "only administrators of the database set its security");
    // Neither can a rewritten body be sent as another content type.
    let headers = [("Authorization", &*basic("ann", "pw")), ("Content-Type", "text/plain")];
    assert_eq!(server.send("PUT", "/db/_design/s/_rewrite/doc", &headers, b"{}").status, 415);
}
