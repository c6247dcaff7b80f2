//! Queries: order, pages, statistics, warnings, and what `use_index` has to do with them.

use serde_json::{Value, json};

use crate::client::TestServer;

/// Documents whose ids are not in the order of their creation.
fn server() -> TestServer {
    let server = TestServer::new();
    let docs: Vec<_> = (0..60)
        .map(|n| {
            json!({"_id": format!("d{:02}", n * 37 % 60), "n": n, "kind": n % 3, "text": "x".repeat(n % 7),
            "long": format!("{}{n}", "y".repeat(1000))})
        })
        .collect();
    server.database("db", &docs);
    server
}

fn find(server: &TestServer, query: &Value) -> Value {
    let answer = server.post("/db/_find", query);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

fn ids(found: &Value) -> Vec<String> {
    found["docs"].as_array().unwrap().iter().map(|doc| doc["_id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn unsorted_pages_continue_the_order_of_creation() {
    let server = server();
    for selector in [json!({}), json!({"kind": 1}), json!({"n": {"$gte": 7}}), json!({"text": {"$regex": "x$"}})] {
        let all = find(&server, &json!({"selector": selector, "limit": 100}));
        let numbers: Vec<_> = all["docs"].as_array().unwrap().iter().map(|doc| doc["n"].as_u64().unwrap()).collect();
        assert!(numbers.is_sorted() || selector["text"].is_object(), "{selector}: {numbers:?}");
        let mut pages = Vec::new();
        let mut query = json!({"selector": selector, "limit": 7});
        loop {
            let page = find(&server, &query);
            if page["docs"].as_array().unwrap().is_empty() {
                break;
            }
            pages.extend(ids(&page));
            query["bookmark"] = page["bookmark"].clone();
        }
        assert_eq!(pages, ids(&all), "{selector}");
    }
}

#[test]
fn directions_of_a_sort_can_be_mixed() {
    let server = server();
    let sort = json!([{"kind": "asc"}, {"n": "desc"}]);
    let found = find(&server, &json!({"selector": {"n": {"$lt": 6}}, "sort": sort, "fields": ["kind", "n"]}));
    let rows: Vec<_> =
        found["docs"].as_array().unwrap().iter().map(|row| (row["kind"].clone(), row["n"].clone())).collect();
    let expected = [(0, 3), (0, 0), (1, 4), (1, 1), (2, 5), (2, 2)].map(|(kind, n)| (json!(kind), json!(n)));
    assert_eq!(rows, expected);
}

#[test]
fn statistics_count_read_documents() {
    let server = server();
    let stats = |query: Value| {
        let mut query = query;
        query["execution_stats"] = json!(true);
        let found = find(&server, &query)["execution_stats"].clone();
        let number = |name: &str| found[name].as_u64().unwrap();
        (number("total_keys_examined"), number("total_docs_examined"), number("results_returned"))
    };
    // The index decides, and only the results are read.
    assert_eq!(stats(json!({"selector": {"kind": 1, "n": {"$lt": 30}}})), (10, 10, 10));
    assert_eq!(stats(json!({"selector": {"nothing": 1}})), (0, 0, 0));
    // The index has only the beginning of long texts, so each document is read.
    assert_eq!(stats(json!({"selector": {"long": {"$regex": "y3$"}}, "limit": 100})), (60, 60, 1));
    assert!(find(&server, &json!({"selector": {}}))["execution_stats"].is_null());
}

#[test]
fn warnings_are_those_of_couchdb_where_they_apply() {
    let server = server();
    let warning = |query: Value| find(&server, &query)["warning"].clone();
    // Every path is indexed, so there is no query without an index.
    assert_eq!(warning(json!({"selector": {"kind": 1}})), Value::Null);
    assert_eq!(warning(json!({"selector": {}, "sort": [{"n": "desc"}]})), Value::Null);
    let examined = "The number of documents examined is high in proportion to the number of results returned. Consider \
                    adding a more specific index to improve this.";
    assert_eq!(warning(json!({"selector": {"long": {"$regex": "y3$"}}})), examined);
    let declared = json!({"index": {"fields": ["kind"]}, "ddoc": "k", "name": "k"});
    assert_eq!(server.post("/db/_index", &declared).json()["result"], "created");
    let unused = "_design/k was not used because it does not contain a valid index for this query.";
    assert_eq!(warning(json!({"selector": {"kind": 1}, "use_index": "k"})), Value::Null);
    assert_eq!(warning(json!({"selector": {"n": 1}, "use_index": "_design/k"})), unused);
    let named = "_design/k, x was not used because it is not a valid index for this query.";
    assert_eq!(warning(json!({"selector": {"kind": 1}, "use_index": ["k", "x"]})), named);
    let both = json!({"selector": {"long": {"$regex": "y3$"}}, "use_index": "k"});
    assert_eq!(warning(both), format!("{unused}\n{examined}"));
    for path in ["/db/_find", "/db/_explain"] {
        let query = json!({"selector": {"n": 1}, "use_index": "k", "allow_fallback": false});
        let refused = server.post(path, &query);
        assert_eq!((refused.status, &refused.json()["error"]), (400, &json!("invalid_index")), "{path}");
        let usable = json!({"selector": {"kind": 1}, "use_index": "k", "allow_fallback": false});
        assert_eq!(server.post(path, &usable).status, 200, "{path}");
    }
    let without = json!({"selector": {"n": 1}, "allow_fallback": false});
    assert_eq!(server.post("/db/_find", &without).status, 200, "every path has an index");
}

#[test]
fn document_ids_have_at_most_1024_bytes() {
    let server = TestServer::new();
    server.database("db", &[]);
    let longest = "i".repeat(1024);
    assert_eq!(server.put(&format!("/db/{longest}"), &json!({"n": 1})).status, 201);
    assert_eq!(server.get(&format!("/db/{longest}")).json()["n"], 1);
    let refused = server.put(&format!("/db/{longest}i"), &json!({}));
    assert_eq!((refused.status, &refused.json()["error"]), (400, &json!("illegal_docid")));
    let rows = server.post("/db/_bulk_docs", &json!({"docs": [{"_id": format!("{longest}i")}]}));
    assert_eq!((rows.status, &rows.json()["error"]), (400, &json!("illegal_docid")));
}
