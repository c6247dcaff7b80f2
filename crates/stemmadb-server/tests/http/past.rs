//! Reading the past over HTTP: `as_of` on the routes that read, and `_history`.

use serde_json::{Value, json};

use crate::client::TestServer;

#[test]
fn routes_read_as_of_a_sequence() {
    let server = TestServer::new();
    server.database("library", &[]);
    let sequence = || server.get("/library").json()["update_seq"].as_str().unwrap().to_owned();
    let emma = server.put("/library/emma", &json!({"year": 1816})).json()["rev"].as_str().unwrap().to_owned();
    let first = sequence();
    server.put("/library/dune", &json!({"year": 1965}));
    let second = sequence();
    server.put(&format!("/library/emma?rev={emma}"), &json!({"year": 1815}));

    let year = |query: &str| server.get(&format!("/library/emma{query}")).json()["year"].clone();
    assert_eq!((year(""), year(&format!("?as_of={first}"))), (json!(1815), json!(1816)));
    assert_eq!(year("?as_of=-0s"), 1815);
    assert_eq!(server.get(&format!("/library/dune?as_of={first}")).status, 404);
    let listed = |as_of: &str| server.get(&format!("/library/_all_docs?as_of={as_of}")).json();
    assert_eq!((listed(&first)["total_rows"].clone(), listed(&second)["total_rows"].clone()), (json!(1), json!(2)));
    assert_eq!(listed(&first)["rows"][0]["value"]["rev"], json!(emma));
    let found = |as_of: &str| {
        let query = json!({"selector": {"year": {"$gt": 1815}}});
        server.post(&format!("/library/_find?as_of={as_of}"), &query).json()["docs"].as_array().unwrap().len()
    };
    assert_eq!((found(&first), found(&second)), (1, 2));
    let figures = json!({"figures": {"years": {"sum": "year"}}});
    let sum = server.post(&format!("/library/_aggregate?as_of={second}"), &figures);
    assert_eq!(sum.json()["rows"][0]["value"]["years"], 1816 + 1965);
    let changes = server.get(&format!("/library/_changes?as_of={first}")).json();
    assert_eq!((changes["results"].as_array().unwrap().len(), changes["last_seq"].clone()), (1, json!(first)));
    assert_eq!(server.get("/library/_changes?feed=longpoll&as_of=1").status, 400);

    let history = server.get("/library/_history/emma?include_docs=true").json();
    let years: Vec<&Value> =
        history["stored"].as_array().unwrap().iter().map(|stored| &stored["doc"]["year"]).collect();
    assert_eq!(years, [1815, 1816]);
    assert!(history["stored"][0]["time_us"].as_u64() > history["stored"][1]["time_us"].as_u64());
    let authors: Vec<_> = history["stored"].as_array().unwrap().iter().map(|stored| &stored["author"]).collect();
    assert_eq!(authors, [&Value::Null, &Value::Null], "no history is kept");
    for (as_of, status) in [("yesterday", 400), ("999", 400), ("2026-11-24", 400)] {
        assert_eq!(server.get(&format!("/library/emma?as_of={as_of}")).status, status, "{as_of}");
    }
}

#[test]
fn views_are_read_as_of_a_sequence() {
    let server = TestServer::new();
    server.database("library", &[]);
    let sequence = || server.get("/library").json()["update_seq"].as_str().unwrap().to_owned();
    let views = json!({"views": {"years": {"map": "function (doc) { emit(doc.year, 1); }", "reduce": "_sum"}}});
    server.design("library", "d", views);
    let emma = server.put("/library/emma", &json!({"year": 1816})).json()["rev"].as_str().unwrap().to_owned();
    server.put("/library/dune", &json!({"year": 1965}));
    let then = sequence();
    server.put(&format!("/library/emma?rev={emma}"), &json!({"year": 1815}));
    server.put("/library/eden", &json!({"year": 1959}));

    let rows = |query: &str| server.get(&format!("/library/_design/d/_view/years?{query}")).json();
    let keys = |query: &str| {
        let answer = rows(&format!("reduce=false&{query}"));
        answer["rows"].as_array().unwrap().iter().map(|row| row["key"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let past = format!("as_of={then}");
    assert_eq!((keys(""), keys(&past)), (vec![1815, 1959, 1965], vec![1816, 1965]));
    assert_eq!((rows("")["rows"][0]["value"].clone(), rows(&past)["rows"][0]["value"].clone()), (json!(3), json!(2)));
    assert_eq!(rows(&format!("group=true&{past}"))["rows"].as_array().unwrap().len(), 2);
    let answer = rows(&format!("reduce=false&include_docs=true&update_seq=true&{past}"));
    assert_eq!((&answer["rows"][0]["doc"]["_rev"], &answer["update_seq"]), (&json!(emma), &json!(then)));
    assert_eq!(server.get("/library/_design/d/_view/years?as_of=yesterday").status, 400);
    let queries = json!({"queries": [{"key": 1816}, {"key": 1815}]});
    let answers = server.post(&format!("/library/_design/d/_view/years/queries?{past}"), &queries).json();
    let counts: Vec<_> =
        answers["results"].as_array().unwrap().iter().map(|result| result["rows"].as_array().unwrap().len()).collect();
    assert_eq!(counts, [1, 0]);
}

#[test]
fn retention_is_read_and_set() {
    let server = TestServer::new();
    server.database("library", &[json!({"_id": "emma"})]);
    let get = || server.get("/library/_retention").json();
    assert_eq!((&get()["retention"], &get()["prefixes"], &get()["bytes"]), (&json!({}), &json!({}), &json!(0)));
    let body = json!({"retention": {"revisions": 5}, "prefixes": {"session:": {}, "order:": {"everything": true}}});
    assert_eq!(server.put("/library/_retention", &body).status, 200);
    assert_eq!((&get()["retention"], &get()["prefixes"]), (&body["retention"], &body["prefixes"]));
    // What the body does not have stays; null takes a prefix back.
    assert_eq!(server.put("/library/_retention", &json!({"prefixes": {"order:": null}})).status, 200);
    assert_eq!((&get()["retention"], &get()["prefixes"]), (&json!({"revisions": 5}), &json!({"session:": {}})));
    for (body, reason) in [
        (json!({"retention": {"years": 1}}), "malformed retention"),
        (json!({"retention": 5}), "malformed retention"),
        (json!({"prefixes": []}), "`prefixes` must be an object"),
        (json!({"prefix": "a"}), "not `prefix`"),
        (json!({"prefixes": {"": {}}}), "prefix"),
    ] {
        let refused = server.put("/library/_retention", &body);
        assert_eq!(refused.status, 400, "{body}: {refused:?}");
        assert!(refused.json()["reason"].as_str().unwrap().contains(reason), "{refused:?}");
    }
    assert_eq!(get()["retention"], json!({"revisions": 5}));
}
