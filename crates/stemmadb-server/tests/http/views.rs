//! Views of design documents: every parameter, CouchDB's order, reductions, and faulty functions.

use serde_json::{Value, json};

use crate::client::{ADMIN, Response, TestServer};

const BOOKS: &str = "function(doc) { if (doc.author) emit([doc.author, doc.year], doc.sold); }";

fn library() -> TestServer {
    let server = TestServer::new();
    let books = [
        json!({"_id": "c", "author": "Lem", "year": 1961, "sold": 5}),
        json!({"_id": "a", "author": "Lem", "year": 1986, "sold": 2}),
        json!({"_id": "b", "author": "lem", "year": 1961, "sold": 1}),
        json!({"_id": "d", "author": "Strugatsky", "year": 1972, "sold": 9}),
        json!({"_id": "e", "author": "Lem", "year": 1961, "sold": 4}),
        json!({"_id": "x", "title": "nobody's"}),
    ];
    server.database("db", &books);
    server.design(
        "db",
        "d",
        json!({"views": {
            "books": {"map": BOOKS, "reduce": "_sum"},
            "plain": {"map": "function(doc) { emit(doc._id, null) }"},
            "stats": {"map": BOOKS, "reduce": "_stats"},
            "count": {"map": BOOKS, "reduce": "_count"},
            "own": {"map": BOOKS, "reduce": "function(keys, values, rereduce) { return rereduce ? Math.max.apply(null, \
            values) : Math.max.apply(null, values) }"},
            "links": {"map": "function(doc) { emit(doc._id, {_id: doc._id === 'a' ? 'd' : 'nothing'}) }"},
        }}),
    );
    server
}

fn encoded(json: &Value) -> String {
    json.to_string().bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn view(server: &TestServer, view: &str, query: &[(&str, Value)]) -> Response {
    let query: Vec<String> = query
        .iter()
        .map(|(name, value)| {
            format!(
                "{name}={}",
                match value {
                    Value::String(text) if !name.contains("key") || name.contains("doc") => text.clone(),
                    value => encoded(value),
                }
            )
        })
        .collect();
    server.get(&format!("/db/_design/d/_view/{view}?{}", query.join("&")))
}

fn ids(answer: &Response) -> String {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["id"].as_str().unwrap())
        .collect::<Vec<_>>()
        .join(" ")
}

fn rows(answer: &Response) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["rows"].as_array().unwrap().iter().map(|row| json!([row["key"], row["value"]])).collect()
}

#[test]
fn view_rows_follow_couchdb_order_and_parameters() {
    let server = library();
    let plain = view(&server, "books", &[("reduce", json!(false))]);
    assert_eq!(ids(&plain), "b c e a d", "lower case before upper, then ids");
    let reported = plain.json();
    assert_eq!((&reported["total_rows"], &reported["offset"]), (&json!(5), &json!(0)));
    assert_eq!(reported["rows"][0], json!({"id": "b", "key": ["lem", 1961], "value": 1}));
    let no_reduce = ("reduce", json!(false));
    let ask = |query: &[(&str, Value)]| {
        let query: Vec<_> = [no_reduce.clone()].into_iter().chain(query.iter().cloned()).collect();
        ids(&view(&server, "books", &query))
    };
    assert_eq!(ask(&[("key", json!(["Lem", 1961]))]), "c e");
    assert_eq!(ask(&[("keys", json!([["Strugatsky", 1972], ["nobody"], ["Lem", 1961]]))]), "d c e");
    assert_eq!(ask(&[("startkey", json!(["Lem", 1961])), ("endkey", json!(["Lem", {}]))]), "c e a");
    assert_eq!(
        ask(&[("start_key", json!(["Lem", 1961])), ("end_key", json!(["Lem", 1986])), ("inclusive_end", json!(false))]),
        "c e"
    );
    assert_eq!(ask(&[("startkey", json!(["Lem", 1961])), ("startkey_docid", json!("d"))]), "e a d");
    assert_eq!(ask(&[("endkey", json!(["Lem", 1961])), ("end_key_doc_id", json!("c"))]), "b c");
    assert_eq!(ask(&[("descending", json!(true))]), "d a e c b");
    assert_eq!(
        ask(&[("descending", json!(true)), ("startkey", json!(["Lem", 1986])), ("endkey", json!(["Lem", 1961]))]),
        "a e c"
    );
    assert_eq!(ask(&[("limit", json!(2)), ("skip", json!(1))]), "c e");
    assert_eq!(ask(&[("limit", json!(0))]), "");
    let skipped =
        view(&server, "books", &[no_reduce.clone(), ("startkey", json!(["Lem", 1961])), ("skip", json!(1))]).json();
    assert_eq!((&skipped["total_rows"], &skipped["offset"]), (&json!(5), &json!(2)));
    // The same parameters in a body.
    let posted =
        server.post("/db/_design/d/_view/books?reduce=false", &json!({"keys": [["Lem", 1986], ["lem", 1961]]}));
    assert_eq!(ids(&posted), "a b");
    let posted = server.post(
        "/db/_design/d/_view/books",
        &json!({"reduce": false, "start_key": ["Lem", 1986], "limit": 1, "descending": true}),
    );
    assert_eq!(ids(&posted), "a");
}

#[test]
fn view_rows_include_documents() {
    let server = library();
    let with = view(&server, "plain", &[("include_docs", json!(true)), ("key", json!("a"))]).json();
    assert_eq!((&with["rows"][0]["doc"]["year"], &with["rows"][0]["doc"]["_id"]), (&json!(1986), &json!("a")));
    assert!(with["rows"][0]["doc"]["_rev"].as_str().unwrap().starts_with("1-"));
    let linked = view(&server, "links", &[("include_docs", json!(true)), ("limit", json!(2))]).json();
    assert_eq!((&linked["rows"][0]["doc"]["_id"], &linked["rows"][1]["doc"]), (&json!("d"), &Value::Null));
    let sequence = view(&server, "plain", &[("update_seq", json!(true)), ("sorted", json!(false))]).json();
    assert!(sequence["update_seq"].is_string() && sequence["total_rows"].is_null());
}

#[test]
fn reductions_and_groups() {
    let server = library();
    assert_eq!(rows(&view(&server, "books", &[])), [json!([null, 21])]);
    assert_eq!(server.get("/db/_design/d/_view/books").json(), json!({"rows": [{"key": null, "value": 21}]}));
    assert_eq!(rows(&view(&server, "count", &[("startkey", json!(["Lem"]))])), [json!([null, 4])]);
    assert_eq!(
        rows(&view(&server, "stats", &[("key", json!(["Lem", 1961]))])),
        [json!([null, {"sum": 9, "count": 2, "min": 4, "max": 5, "sumsqr": 41}])]
    );
    assert_eq!(rows(&view(&server, "own", &[])), [json!([null, 9])]);
    assert_eq!(
        rows(&view(&server, "own", &[("group_level", json!(1))])),
        [json!([["lem"], 1]), json!([["Lem"], 5]), json!([["Strugatsky"], 9])]
    );
    assert_eq!(
        rows(&view(&server, "books", &[("group", json!(true))])),
        [
            json!([["lem", 1961], 1]),
            json!([["Lem", 1961], 9]),
            json!([["Lem", 1986], 2]),
            json!([["Strugatsky", 1972], 9])
        ]
    );
    assert_eq!(
        rows(&view(&server, "books", &[("group_level", json!(1)), ("descending", json!(true)), ("limit", json!(2))])),
        [json!([["Strugatsky"], 9]), json!([["Lem"], 11])]
    );
    assert_eq!(
        rows(&view(&server, "books", &[("group", json!(true)), ("keys", json!([["Lem", 1986], ["Lem", 1961]]))])),
        [json!([["Lem", 1986], 2]), json!([["Lem", 1961], 9])]
    );
    assert_eq!(rows(&view(&server, "books", &[("key", json!("nobody"))])), Vec::<Value>::new());
}

#[test]
fn multiple_view_queries_in_one_request() {
    let server = library();
    let answer = server.post(
        "/db/_design/d/_view/books/queries",
        &json!({"queries": [
            {"reduce": false, "limit": 1}, {"group_level": 1, "key": ["Strugatsky", 1972]}, {},
        ]}),
    );
    let results = answer.json()["results"].clone();
    assert_eq!(results[0]["rows"][0]["id"], "b");
    assert_eq!(results[1]["rows"], json!([{"key": ["Strugatsky"], "value": 9}]));
    assert_eq!(results[2]["rows"], json!([{"key": null, "value": 21}]));
}

#[test]
fn invalid_parameter_combinations_are_rejected() {
    let server = library();
    let refused = |view_name: &str, query: &[(&str, Value)], reason: &str| {
        let answer = view(&server, view_name, query);
        assert_eq!((answer.status, &answer.json()["error"]), (400, &json!("query_parse_error")), "{answer:?}");
        assert!(answer.json()["reason"].as_str().unwrap().contains(reason), "{answer:?}");
    };
    refused("plain", &[("reduce", json!(true))], "Reduce is invalid for map-only views.");
    refused("plain", &[("group", json!(true))], "Invalid use of grouping on a map view.");
    refused("books", &[("include_docs", json!(true))], "`include_docs` is invalid for reduce");
    refused("books", &[("keys", json!([1, 2]))], "Multi-key fetches for reduce views must use `group=true`");
    refused("plain", &[("keys", json!([1])), ("key", json!(1))], "incompatible");
    refused("plain", &[("keys", json!(["a", "b"])), ("start_key", json!("a"))], "incompatible");
    refused("plain", &[("startkey", json!("b")), ("endkey", json!("a"))], "No rows can match your key range");
    refused("plain", &[("limit", json!(-1))], "limit");
    refused("plain", &[("descending", json!("perhaps"))], "boolean");
    refused("plain", &[("update", json!("never"))], "update");
    assert_eq!(view(&server, "nothing", &[]).status, 404);
    assert_eq!(view(&server, "nothing", &[]).json()["reason"], "missing_named_view");
    assert_eq!(server.get("/db/_design/nothing/_view/v").status, 404);
    assert_eq!(server.get("/nothing/_design/d/_view/v").status, 404);
}

#[test]
fn view_follows_changes_of_documents_and_functions() {
    let server = library();
    assert_eq!(ids(&view(&server, "plain", &[])), "a b c d e x");
    server.put("/db/aa", &json!({"author": "Lem", "year": 2000, "sold": 3}));
    let revision = server.get("/db/b").json()["_rev"].as_str().unwrap().to_owned();
    server.ask_as(ADMIN, "DELETE", &format!("/db/b?rev={revision}"), None);
    assert_eq!(ids(&view(&server, "plain", &[("update", json!("false"))])), "a b c d e x");
    assert_eq!(ids(&view(&server, "plain", &[("stale", json!("ok"))])), "a b c d e x");
    assert_eq!(ids(&view(&server, "plain", &[])), "a aa c d e x");
    assert_eq!(rows(&view(&server, "books", &[])), [json!([null, 23])]);
    let info = server.get("/db/_design/d/_info").json();
    assert_eq!((&info["name"], &info["view_index"]["language"]), (&json!("d"), &json!("javascript")));
    server.design("db", "d", json!({"views": {"plain": {"map": "function(doc) { emit(doc._id + '!') }"}}}));
    assert_eq!(rows(&view(&server, "plain", &[("limit", json!(1))])), [json!(["a!", null])]);
    assert_eq!(server.post("/db/_view_cleanup", &json!({})).status, 202);
    assert_eq!(rows(&view(&server, "plain", &[("limit", json!(1))])), [json!(["a!", null])]);
}

#[test]
fn faulty_functions_are_reported() {
    let server = library();
    let revision = server.get("/db/_design/d").json()["_rev"].as_str().unwrap().to_owned();
    // Only replication stores functions that can't be compiled.
    let replicated = json!({"_id": "_design/d", "_revisions": {"start": 2, "ids": ["0", &revision[2..]]},
    "views": {
        "broken": {"map": "function(doc) { emit(1"},
        "nofunction": {"map": "17"},
        "nomap": {"reduce": "_count"},
        "unknown": {"map": "function(doc) {}", "reduce": "_nothing"},
        "throws": {"map": "function(doc) { if (doc._id == 'a') throw 'x'; emit(doc._id) }"},
        "badsum": {"map": "function(doc) { emit(1, 'text') }", "reduce": "_sum"},
        "throwing": {"map": "function(doc) { emit(1) }", "reduce": "function() { throw 1 }"},
    }});
    let written = server.post("/db/_bulk_docs", &json!({"docs": [replicated], "new_edits": false}));
    assert_eq!(written.json(), json!([]), "{written:?}");
    for name in ["broken", "nofunction"] {
        let answer = view(&server, name, &[]);
        assert_eq!((answer.status, &answer.json()["error"]), (500, &json!("compilation_error")), "{answer:?}");
    }
    assert_eq!(view(&server, "nomap", &[]).status, 404);
    assert_eq!(view(&server, "unknown", &[]).status, 400);
    assert_eq!(ids(&view(&server, "throws", &[])), "b c d e x");
    let answer = view(&server, "badsum", &[]).json();
    assert_eq!(answer["rows"][0]["value"]["error"], "builtin_reduce_error", "{answer}");
    assert_eq!(rows(&view(&server, "throwing", &[])), [json!([null, null])]);
}

#[test]
fn endless_view_function_affects_nobody_else() {
    let server = TestServer::with(|mut config| {
        config.script_limits.time = std::time::Duration::from_secs(1);
        config
    });
    server.database("db", &[json!({"_id": "a"})]);
    server.design(
        "db",
        "d",
        json!({"views": {
            "loop": {"map": "function(doc) { while (true); }"},
            "bomb": {"map": "function(doc) { var a = []; while (true) a.push(new Array(10000).fill(1)) }"},
            "good": {"map": "function(doc) { emit(doc._id) }"},
        }}),
    );
    let answer = view(&server, "loop", &[]);
    assert_eq!((answer.status, &answer.json()["error"]), (500, &json!("os_process_timeout")), "{answer:?}");
    let answer = view(&server, "bomb", &[]);
    assert_eq!(answer.status, 500, "{answer:?}");
    assert_eq!(ids(&view(&server, "good", &[])), "a");
}

#[test]
fn modules_and_design_document_rows() {
    let server = library();
    server.design(
        "db",
        "d",
        json!({"views": {
            "lib": {"names": "exports.upper = function(text) { return text.toUpperCase() }"},
            "upper": {"map": "function(doc) { if (doc.author) emit(require('views/lib/names').upper(doc.author)) }",
                "reduce": "_count"},
        }}),
    );
    assert_eq!(rows(&view(&server, "upper", &[("group", json!(true))])), [json!(["LEM", 4]), json!(["STRUGATSKY", 1])]);
    assert_eq!(view(&server, "lib", &[]).status, 404);
}

#[test]
fn view_responses_have_etags() {
    let server = library();
    let path = "/db/_design/d/_view/books";
    let tag = |path: &str| server.get(path).header("etag").unwrap().to_owned();
    let ask = |path: &str, tag: &str| {
        let answer = server.send_as_admin("GET", path, &[("If-None-Match", tag)], b"");
        assert_eq!(answer.header("etag").is_some(), answer.status == 200 || answer.status == 304);
        (answer.status, answer.text.is_empty())
    };
    for query in ["", "?reduce=false", "?group=true", "?reduce=false&include_docs=true"] {
        let path = format!("{path}{query}");
        let before = tag(&path);
        assert_eq!(tag(&path), before);
        assert_eq!(ask(&path, &before), (304, true));
        assert_eq!(ask(&path, &format!("\"x\", {before}")), (304, true));
        assert_eq!(ask(&path, "\"x\""), (200, false));
        server.put(&format!("/db/new{}", query.len()), &json!({"author": "Lem", "year": 1, "sold": 1}));
        assert_eq!(ask(&path, &before), (200, false));
        assert_ne!(tag(&path), before);
    }
    // Other parameters, and other functions, have other ETags.
    assert_ne!(tag(&format!("{path}?group=true")), tag(path));
    let before = tag(path);
    server.design("db", "d", json!({"views": {"books": {"map": BOOKS, "reduce": "_count"}}}));
    assert_eq!(ask(path, &before), (200, false));
}

#[test]
fn first_last_top_and_bottom_reducers() {
    let server = library();
    server.design(
        "db",
        "d",
        json!({"views": {
            "first": {"map": BOOKS, "reduce": "_first"},
            "last": {"map": BOOKS, "reduce": "_last"},
            "top": {"map": BOOKS, "reduce": "_top_2"},
            "bottom": {"map": BOOKS, "reduce": "_bottom_3"},
        }}),
    );
    let grouped = |name: &str| rows(&view(&server, name, &[("group_level", json!(1))]));
    // By ["lem", 1961]: 1; ["Lem", 1961]: 5 and 4, 1986: 2; ["Strugatsky", 1972]: 9.
    assert_eq!(grouped("first"), [json!([["lem"], 1]), json!([["Lem"], 5]), json!([["Strugatsky"], 9])]);
    assert_eq!(grouped("last"), [json!([["lem"], 1]), json!([["Lem"], 2]), json!([["Strugatsky"], 9])]);
    assert_eq!(grouped("top"), [json!([["lem"], [1]]), json!([["Lem"], [5, 4]]), json!([["Strugatsky"], [9]])]);
    assert_eq!(rows(&view(&server, "bottom", &[])), [json!([null, [1, 2, 4]])]);
    assert_eq!(rows(&view(&server, "last", &[("endkey", json!(["Lem", {}]))])), [json!([null, 2])]);
    for name in ["_top_0", "_bottom_101"] {
        let refused = server.put("/db/_design/e", &json!({"views": {"v": {"map": BOOKS, "reduce": name}}}));
        assert_eq!((refused.status, &refused.json()["error"]), (400, &json!("invalid_design_doc")), "{refused:?}");
    }
}

#[test]
fn growing_reductions_are_rejected() {
    let server = TestServer::new();
    let docs: Vec<_> = (0..40).map(|n| json!({"_id": format!("d{n:02}"), "text": "x".repeat(400)})).collect();
    server.database("db", &docs);
    let all = "function(keys, values, rereduce) { return rereduce ? [].concat.apply([], values) : values }";
    server.design(
        "db",
        "d",
        json!({"views": {"all": {"map": "function(doc) { emit(doc._id, doc.text) }", "reduce": all}}}),
    );
    let few = rows(&view(&server, "all", &[("startkey", json!("d00")), ("endkey", json!("d04"))]));
    assert_eq!(few, [json!([null, vec!["x".repeat(400); 5]])]);
    let many = view(&server, "all", &[]).json()["rows"][0].clone();
    assert_eq!((&many["key"], &many["error"]), (&Value::Null, &json!("reduce_overflow_error")), "{many}");
    assert!(many["reason"].as_str().unwrap().contains("must shrink more rapidly"), "{many}");
    assert_eq!(view(&server, "all", &[("reduce", json!(false))]).json()["rows"].as_array().unwrap().len(), 40);
}

#[test]
fn options_of_design_documents() {
    let server = library();
    let map = "function(doc) { emit(doc._id, doc._local_seq === undefined ? null : doc._local_seq) }";
    server.design(
        "db",
        "o",
        json!({"views": {"v": {"map": map}}, "options": {"include_design": true, "local_seq": true}}),
    );
    let rows = server.get("/db/_design/o/_view/v").json()["rows"].clone();
    let ids: Vec<_> = rows.as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["_design/d", "_design/o", "a", "b", "c", "d", "e", "x"]);
    let changes = server.get("/db/_changes").json();
    for row in rows.as_array().unwrap() {
        let changed = changes["results"].as_array().unwrap().iter().find(|change| change["id"] == row["id"]).unwrap();
        let sequence: u64 = changed["seq"].as_str().unwrap().split('-').next().unwrap().parse().unwrap();
        assert_eq!(row["value"], sequence, "{row}");
    }
    server.design("db", "o", json!({"views": {"v": {"map": map}}}));
    let rows = self::rows(&server.get("/db/_design/o/_view/v?limit=1"));
    assert_eq!(rows, [json!(["a", null])]);
}

#[test]
fn included_documents_with_conflicts_and_attachments() {
    let server = library();
    let files = json!({"note": {"content_type": "text/plain", "data": "aGVsbG8="}});
    server.put("/db/files", &json!({"author": "Lem", "year": 0, "sold": 0, "_attachments": files}));
    let foreign = json!({"_id": "a", "_rev": "1-other", "author": "Nobody"});
    server.post("/db/_bulk_docs", &json!({"docs": [foreign], "new_edits": false}));
    let winner = server.get("/db/a?conflicts=true").json();
    let with = |name: &str, id: &str| {
        let query = [("include_docs", json!(true)), ("key", json!(id)), (name, json!(true))];
        view(&server, "plain", &query).json()["rows"][0]["doc"].clone()
    };
    assert_eq!(with("conflicts", "a"), winner);
    assert_eq!(winner["_conflicts"].as_array().unwrap().len(), 1);
    assert!(with("stable", "a")["_conflicts"].is_null());
    assert_eq!(with("attachments", "files")["_attachments"]["note"]["data"], "aGVsbG8=");
    assert_eq!(with("conflicts", "files")["_attachments"]["note"]["stub"], true);
}

#[test]
fn view_update_modes() {
    let server = library();
    let ask = |update: &str| ids(&view(&server, "plain", &[("update", json!(update))]));
    assert_eq!(ask("true"), "a b c d e x");
    server.put("/db/aa", &json!({}));
    assert_eq!(ask("false"), "a b c d e x");
    // The current rows are returned, and the update runs in the background.
    assert_eq!(ask("lazy"), "a b c d e x");
    let begun = std::time::Instant::now();
    while ask("false") != "a aa b c d e x" {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "it was not brought up to date");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    server.put("/db/ab", &json!({}));
    assert_eq!(ids(&view(&server, "plain", &[("stale", json!("update_after"))])), "a aa b c d e x");
    assert_eq!(ids(&view(&server, "plain", &[("stable", json!(true))])), "a aa ab b c d e x");
}

#[test]
fn declared_views_need_no_functions() {
    // These views answer even if no function can be called.
    let server = TestServer::with(|mut config| {
        config.scripts =
            Some(stemmadb_server::script::WorkerCommand { program: "nothing-here".into(), arguments: Vec::new() });
        config
    });
    server.database("db", &[
        json!({"_id": "1", "paid": true, "lines": [{"product": "tea", "price": 4}, {"product": "Cup", "price": 9}]}),
        json!({"_id": "2", "paid": true, "lines": [{"product": "cup", "price": 1}, {"product": "tea", "price": 5}]}),
        json!({"_id": "3", "paid": false, "lines": [{"product": "tea", "price": 100}]}),
    ]);
    let sales = json!({"where": {"paid": true}, "unnest": "lines", "key": ["@.product", "_id"], "value": "@.price",
        "reduce": "_sum"});
    let mut views = json!({"sales": sales, "wrong": {"value": "x"}, "dearest": sales, "average": sales,
        "prices": {"key": "lines.price", "reduce": "_count"}});
    views["dearest"]["reduce"] = json!("_max");
    views["average"]["reduce"] = json!("_avg");
    server.design("db", "d", json!({"language": "stemma", "views": views}));
    // CouchDB's order and parameters.
    assert_eq!(
        rows(&view(&server, "sales", &[("reduce", json!(false))])),
        [json!([["cup", "2"], 1]), json!([["Cup", "1"], 9]), json!([["tea", "1"], 4]), json!([["tea", "2"], 5])]
    );
    assert_eq!(
        rows(&view(&server, "sales", &[("group_level", json!(1))])),
        [json!([["cup"], 1]), json!([["Cup"], 9]), json!([["tea"], 9])]
    );
    assert_eq!(rows(&view(&server, "sales", &[("startkey", json!(["tea"]))])), [json!([null, 9])]);
    assert_eq!(rows(&view(&server, "dearest", &[])), [json!([null, 9])]);
    assert_eq!(rows(&view(&server, "average", &[("key", json!(["tea", "2"]))])), [json!([null, 5.0])]);
    let with = view(&server, "sales", &[("reduce", json!(false)), ("include_docs", json!(true)), ("limit", json!(1))]);
    assert_eq!(with.json()["rows"][0]["doc"]["lines"][0]["product"], "cup");
    server.put("/db/4", &json!({"paid": true, "lines": [{"product": "tea", "price": 1}]}));
    assert_eq!(rows(&view(&server, "sales", &[("startkey", json!(["tea"]))])), [json!([null, 10])]);
    // A path that leads through an array; the warning comes only without rows.
    let hint = "no document has a field `lines.price`, but some have `lines[].price`: \
                name the array with `unnest`, and a field of its elements as `@.field`";
    assert_eq!(view(&server, "prices", &[]).json(), json!({"rows": [], "warning": hint}));
    for query in [("reduce", json!(false)), ("group", json!(true))] {
        assert_eq!(view(&server, "prices", &[query]).json()["warning"], hint);
    }
    assert_eq!(view(&server, "sales", &[("key", json!("none"))]).json()["warning"], json!(null));
    let wrong = view(&server, "wrong", &[]);
    assert_eq!((wrong.status, wrong.json()["reason"].as_str().unwrap().contains("there is no `key`")), (400, true));
    assert_eq!(server.get("/db/_design/d/_info").json()["view_index"]["language"], "stemma");
    server.design("db", "d", json!({"language": "erlang", "views": {"sales": {"map": "fun({Doc}) -> ok end."}}}));
    assert_eq!(view(&server, "sales", &[]).status, 400);
}

#[test]
fn group_level_merges_keys_of_that_length_with_longer_ones() {
    let server = TestServer::new();
    let keys = [json!(["a"]), json!(["a", "b"]), json!(["a", "c", 1]), json!(["ab"]), json!("a"), json!([])];
    let docs: Vec<_> = keys.iter().map(|key| json!({ "key": key })).collect();
    server.database("db", &docs);
    let map = "function(doc) { emit(doc.key, 1) }";
    server.design("db", "d", json!({"views": {"v": {"map": map, "reduce": "_sum"}}}));
    let at = |level: u64, descending: bool| {
        let query = [("group_level", json!(level)), ("descending", json!(descending))];
        let mut rows = rows(&view(&server, "v", &query));
        if descending {
            rows.reverse();
        }
        rows
    };
    let others = [json!(["a", 1]), json!([[], 1])];
    for descending in [false, true] {
        let one = [&others[..], &[json!([["a"], 3]), json!([["ab"], 1])]].concat();
        assert_eq!(at(1, descending), one);
        let two = [json!([["a"], 1]), json!([["a", "b"], 1]), json!([["a", "c"], 1]), json!([["ab"], 1])];
        assert_eq!(at(2, descending), [&others[..], &two].concat());
    }
}

#[test]
fn rows_of_equal_keys_are_ordered_by_value() {
    let server = TestServer::new();
    server
        .database("db", &[json!({"_id": "b", "v": ["z", 2, {"a": 1}, null, 10, [1], true, "a"]}), json!({"_id": "a"})]);
    let map = "function(doc) { emit('k', 'one'); (doc.v || []).forEach(function(v) { emit('k', v) }); emit('j', 0) }";
    server.design("db", "d", json!({"views": {"v": {"map": map}}}));
    let values = |query: &str| {
        let found = server.get(&format!("/db/_design/d/_view/v?key=%22k%22{query}")).json();
        found["rows"].as_array().unwrap().iter().map(|row| row["value"].clone()).collect::<Vec<_>>()
    };
    let of_b = [
        json!(2),
        json!(10),
        json!(null),
        json!(true),
        json!({"a": 1}),
        json!([1]),
        json!("a"),
        json!("one"),
        json!("z"),
    ];
    let ascending = [&[json!("one")], &of_b[..]].concat();
    assert_eq!(values(""), ascending, "documents by id, then numbers, atoms, objects, arrays and strings");
    // As in CouchDB, the rows of one document keep their order.
    let descending = [&of_b[..], &[json!("one")]].concat();
    assert_eq!(values("&descending=true"), descending);
    assert_eq!(values("&descending=true&skip=2&limit=3"), descending[2..5]);
}

/// A batch of rows must not end within the rows of one document with equal keys.
#[test]
fn many_rows_of_equal_keys_keep_their_order_when_descending() {
    let server = TestServer::new();
    server.database("db", &[json!({"_id": "a", "n": 50}), json!({"_id": "b", "n": 3000}), json!({"_id": "c", "n": 7})]);
    let map = "function(doc) { for (var i = 0; i < doc.n; i++) emit('k', i) }";
    server.design("db", "d", json!({"views": {"v": {"map": map}}}));
    let found = server.get("/db/_design/d/_view/v?descending=true").json();
    let values: Vec<i64> = found["rows"].as_array().unwrap().iter().map(|row| row["value"].as_i64().unwrap()).collect();
    assert_eq!(values, (0..7).chain(0..3000).chain(0..50).collect::<Vec<_>>());
}

#[test]
fn map_functions_see_conflicts() {
    let server = TestServer::new();
    server.database("db", &[json!({"_id": "a"}), json!({"_id": "b"})]);
    let map = "function(doc) { if (doc._conflicts) emit(doc._id, doc._conflicts) }";
    server.design("db", "d", json!({"views": {"v": {"map": map}}}));
    assert_eq!(rows(&view(&server, "v", &[])), Vec::<Value>::new());
    let foreign = json!({"docs": [{"_id": "b", "_rev": "1-0"}], "new_edits": false});
    assert_eq!(server.post("/db/_bulk_docs", &foreign).json(), json!([]));
    let conflicts = server.get("/db/b?conflicts=true").json()["_conflicts"].clone();
    assert_eq!(rows(&view(&server, "v", &[])), [json!(["b", conflicts])]);
    // The conflict is resolved.
    let revision = conflicts[0].as_str().unwrap();
    assert_eq!(server.delete(&format!("/db/b?rev={revision}")).status, 200);
    assert_eq!(rows(&view(&server, "v", &[])), Vec::<Value>::new());
}

#[test]
fn requested_keys_can_be_bounded_by_document_ids() {
    let server = library();
    let ask = |query: &[(&str, Value)]| {
        let keys = ("keys", json!([["Lem", 1961], ["Lem", 1986]]));
        let query: Vec<_> = [("reduce", json!(false)), keys].into_iter().chain(query.iter().cloned()).collect();
        ids(&view(&server, "books", &query))
    };
    assert_eq!(ask(&[]), "c e a");
    assert_eq!(ask(&[("startkey_docid", json!("d"))]), "e");
    assert_eq!(ask(&[("endkey_docid", json!("d"))]), "c a");
    assert_eq!(ask(&[("start_key_doc_id", json!("b")), ("end_key_doc_id", json!("d"))]), "c");
    assert_eq!(ask(&[("descending", json!(true)), ("startkey_docid", json!("d"))]), "a c");
}

#[test]
fn parameters_of_the_url_take_precedence_over_the_body() {
    let server = library();
    let ask = |query: &str, body: Value| server.post(&format!("/db/_design/d/_view/books?reduce=false{query}"), &body);
    assert_eq!(ids(&ask("&limit=1", json!({"limit": 3}))), "b");
    assert_eq!(ids(&ask("&key=[\"Lem\",1986]", json!({"key": ["Lem", 1961]}))), "a");
    assert_eq!(ids(&ask("&descending=false", json!({"descending": true, "limit": 1}))), "b");
    // A query of several takes precedence over the URL.
    let several = json!({"queries": [{"limit": 2}, {}]});
    let answer = server.post("/db/_design/d/_view/books/queries?reduce=false&limit=1", &several).json();
    let counts = |at: usize| answer["results"][at]["rows"].as_array().unwrap().len();
    assert_eq!((counts(0), counts(1)), (2, 1));
    assert_eq!(ask("", json!([])).status, 400);
    let listed = server.post("/db/_all_docs?limit=1", &json!({"limit": 3})).json();
    assert_eq!(listed["rows"].as_array().unwrap().len(), 1);
}

#[test]
fn design_documents_with_invalid_functions_are_rejected() {
    let server = library();
    for (view, error) in [
        (json!({"map": "function(doc) { emit(1"}), "compilation_error"),
        (json!({"map": "17"}), "compilation_error"),
        (json!({"map": "function(doc) {}", "reduce": "function(keys {"}), "compilation_error"),
        (json!({"map": "function(doc) {}", "reduce": "_nothing"}), "invalid_design_doc"),
    ] {
        let design = json!({"_id": "_design/bad", "views": {"v": view}});
        let answer = server.put("/db/_design/bad", &design);
        assert_eq!((answer.status, &answer.json()["error"]), (400, &json!(error)), "{answer:?}");
        let several = server.post("/db/_bulk_docs", &json!({"docs": [design, {"_id": "_design/good", "x": 1}]}));
        assert_eq!((several.status, &several.json()[0]["error"]), (201, &json!(error)), "{several:?}");
        assert_eq!(several.json()[1]["id"], "_design/good");
    }
    assert_eq!(server.get("/db/_design/bad").status, 404);
    let good =
        json!({"views": {"lib": {"x": "exports.x = 1"}, "v": {"map": "function(doc) { require('views/lib/x') }"}}});
    assert_eq!(server.put("/db/_design/other", &good).status, 201);
}
