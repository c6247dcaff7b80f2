//! `_aggregate` and prepared queries.

use serde_json::{Value, json};

use crate::client::{ADMIN, TestServer};

fn shop() -> TestServer {
    let server = TestServer::new();
    let order = |id: &str, city: &str, price: Value| json!({"_id": id, "city": city, "price": price});
    let docs = [
        order("1", "Lviv", json!(12)),
        order("2", "Warsaw", json!(2.5)),
        order("3", "Lviv", json!(5)),
        order("4", "Oslo", json!("free")),
        json!({"_id": "5", "price": 100}),
    ];
    server.database("shop", &docs);
    server.design("shop", "x", json!({"city": "Lviv", "price": 1000, "language": "query"}));
    server
}

fn rows(server: &TestServer, body: &Value) -> Value {
    let answer = server.post("/shop/_aggregate", body);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["rows"].clone()
}

#[test]
fn aggregates_over_all_matches() {
    let server = shop();
    let numbers = json!({
        "n": "count", "total": {"sum": "price"}, "mean": {"average": "price"}, "least": {"min": "price"},
        "most": {"max": "price"}, "cities": {"distinct": "city"}, "city_count": {"count_distinct": "city"},
    });
    let lviv = rows(&server, &json!({"selector": {"city": "Lviv"}, "figures": numbers}));
    let expected =
        json!({"n": 2, "total": 17, "mean": 8.5, "least": 5, "most": 12, "cities": ["Lviv"], "city_count": 1});
    assert_eq!(lviv, json!([{"key": null, "value": expected}]));
    let all = rows(&server, &json!({"figures": numbers}));
    assert_eq!(all[0]["value"]["n"], 5, "design documents are not counted");
    assert_eq!((&all[0]["value"]["total"], &all[0]["value"]["most"]), (&json!(119.5), &json!("free")));
    assert_eq!(all[0]["value"]["cities"], json!(["Lviv", "Oslo", "Warsaw"]));
    let none = rows(&server, &json!({"selector": {"city": "Rome"}, "figures": numbers}));
    assert_eq!((&none[0]["value"]["n"], &none[0]["value"]["mean"]), (&json!(0), &Value::Null));
}

#[test]
fn aggregates_over_sorted_groups() {
    let server = shop();
    let numbers = json!({"n": "count", "total": {"sum": "price"}, "most": {"max": "price"}});
    let grouped = rows(&server, &json!({"group_by": "city", "figures": numbers}));
    let expected = json!([
        {"key": "Lviv", "value": {"n": 2, "total": 17, "most": 12}},
        {"key": "Oslo", "value": {"n": 1, "total": 0, "most": null}},
        {"key": "Warsaw", "value": {"n": 1, "total": 2.5, "most": 2.5}},
    ]);
    assert_eq!(grouped, expected);
    let distinct = json!({"group_by": ["city"], "figures": {"prices": {"distinct": "price"}}, "limit": 1});
    assert_eq!(rows(&server, &distinct), json!([{"key": "Lviv", "value": {"prices": [5, 12]}}]));
    let top = json!({"group_by": "city", "figures": numbers, "order_by": "total", "descending": true, "limit": 2});
    let top = rows(&server, &top);
    let keys: Vec<_> = top.as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["Lviv", "Warsaw"]);
    for wrong in [
        json!({}),
        json!({"figures": {}}),
        json!({"figures": {"x": "sum"}}),
        json!({"figures": {"x": {"median": "price"}}}),
        json!({"figures": {"x": {"sum": 1}}}),
        json!({"figures": {"x": "count"}, "order_by": "y"}),
        json!({"figures": {"x": {"distinct": "tags[]x"}}, "group_by": "tags[].."}),
        json!({"pipeline": {}}),
        json!({"pipeline": [{"$grup": {}}]}),
        json!({"pipeline": [], "figures": {"x": "count"}}),
        json!({"pipeline": [], "explain": 1}),
        json!({"pipeline": [{"$set": {"x": {"$add": ["$city", 1]}}}]}),
        json!({"figures": {"x": "count"}, "group_by": []}),
        json!({"figures": {"x": "count"}, "group_by": ["a", 1]}),
        json!({"figures": {"x": "count"}, "selector": {"a": {"$huh": 1}}}),
        json!({"figures": {"x": "count"}, "sort": []}),
        json!({"figures": (0..101).map(|n| (n.to_string(), json!("count"))).collect::<serde_json::Map<_, _>>()}),
    ] {
        assert_eq!(server.post("/shop/_aggregate", &wrong).status, 400, "{wrong}");
    }
}

#[test]
fn aggregates_over_groups_by_several_paths() {
    let server = TestServer::new();
    let line = |product: &str, price: i64| json!({"product": product, "price": price});
    let docs = [
        json!({"_id": "1", "city": "Lviv", "tags": ["x", "y", "x"], "lines": [line("tea", 3), line("cup", 9)]}),
        json!({"_id": "2", "city": "Lviv", "tags": ["y"], "lines": [line("tea", 4), line("tea", 4)]}),
        json!({"_id": "3", "tags": ["y"]}),
    ];
    server.database("shop", &docs);
    let row = |key: Value, value: Value| json!({"key": key, "value": value});
    let figures = json!({"n": "count", "prices": {"distinct": "lines[].price"}, "sum": {"sum": "lines[].price"}});
    assert_eq!(
        rows(&server, &json!({"group_by": ["city", "tags[]"], "figures": figures})),
        json!([
            row(json!(["Lviv", "x"]), json!({"n": 1, "prices": [3, 9], "sum": 12})),
            row(json!(["Lviv", "y"]), json!({"n": 2, "prices": [3, 4, 9], "sum": 20})),
        ])
    );
    // Paths into the same array are paired by element.
    assert_eq!(
        rows(&server, &json!({"group_by": ["city", "lines[].product"], "figures": figures})),
        json!([
            row(json!(["Lviv", "cup"]), json!({"n": 1, "prices": [9], "sum": 9})),
            row(json!(["Lviv", "tea"]), json!({"n": 2, "prices": [3, 4], "sum": 11})),
        ])
    );
    let counted = json!({"group_by": "city", "figures": {"products": {"count_distinct": "lines[].product"}}});
    assert_eq!(rows(&server, &counted), json!([row(json!("Lviv"), json!({"products": 2}))]));
    // A path that lacks brackets finds nothing, and the answer says so.
    let answer = server.post("/shop/_aggregate", &json!({"group_by": "lines.product", "figures": {"n": "count"}}));
    assert_eq!(answer.json()["rows"], json!([]));
    assert!(answer.json()["warning"].as_str().unwrap().contains("`lines[].product`"), "{answer:?}");
    let answer = server.post("/shop/_aggregate", &json!({"figures": {"n": {"sum": "lines[].price"}}}));
    assert_eq!(answer.json()["warning"], Value::Null);
}

#[test]
fn pipelines_stream_their_rows() {
    let server = shop();
    let stages = json!([{"$match": {"city": {"$ne": "Oslo"}}}, {"$sort": {"price": -1}},
        {"$project": {"_id": 0, "city": {"$toUpper": "$city"}, "price": 1}}]);
    let expected = json!([
        {"price": 12, "city": "LVIV"}, {"price": 5, "city": "LVIV"}, {"price": 2.5, "city": "WARSAW"},
    ]);
    assert_eq!(rows(&server, &json!({"pipeline": stages})), expected);
    let grouped = json!([{"$group": {"_id": "$city", "n": {"$sum": 1}}}]);
    let expected = json!([
        {"_id": null, "n": 1}, {"_id": "Lviv", "n": 2}, {"_id": "Oslo", "n": 1}, {"_id": "Warsaw", "n": 1},
    ]);
    assert_eq!(rows(&server, &json!({"pipeline": grouped})), expected, "design documents are not counted");
    let looked_up = json!([{"$match": {"_id": "5"}}, {"$lookup": {"localField": "price", "foreignField": "price",
        "as": "same"}}, {"$project": {"ids": "$same[]._id"}}]);
    assert_eq!(rows(&server, &json!({"pipeline": looked_up})), json!([{"_id": "5", "ids": ["5"]}]));
    let explained = server.post("/shop/_aggregate", &json!({"pipeline": grouped, "explain": true}));
    let execution = &explained.json()["stages"][0]["execution"];
    assert!(execution.as_str().unwrap().starts_with("from the index"), "{explained:?}");
    let answer = server.post("/shop/_aggregate", &json!({"pipeline": [{"$limit": 1}, {"$nope": 1}]}));
    assert!(answer.json()["reason"].as_str().unwrap().contains("stage 2 ($nope)"), "{answer:?}");
}

#[test]
fn arrays_in_fields_stay_arrays() {
    let server = TestServer::new();
    server.database("shop", &[json!({"_id": "1", "files": [{"path": "a", "size": 1}, {"path": "b"}]})]);
    let fields = |fields: Value| {
        let answer = server.post("/shop/_find", &json!({"selector": {}, "fields": fields}));
        answer.json()["docs"].clone()
    };
    assert_eq!(fields(json!(["files.0.path"])), json!([{"files": [{"path": "a"}]}]));
    assert_eq!(fields(json!(["files[].path"])), json!([{"files": [{"path": "a"}, {"path": "b"}]}]));
    let missing = server.post("/shop/_find", &json!({"selector": {"files.2": {"$exists": false}}}));
    assert_eq!(missing.json()["docs"].as_array().unwrap().len(), 1);
}

#[test]
fn prepared_query_runs_with_different_parameters() {
    needs_one_server!("a prepared query is lost with the server that has its database");
    let mut server = shop();
    let query = json!({
        "selector": {"city": {"$param": "city"}, "price": {"$gte": {"$param": "least"}}},
        "sort": [{"price": "asc"}], "fields": ["_id"],
    });
    let prepared = server.post("/shop/_prepare", &query);
    assert_eq!(prepared.status, 201, "{prepared:?}");
    assert_eq!(prepared.json()["parameters"], json!(["city", "least"]));
    let path = format!("/shop/_prepared/{}", prepared.json()["handle"].as_str().unwrap());
    let ids = |body: Value| {
        let answer = server.post(&path, &body);
        assert_eq!(answer.status, 200, "{answer:?}");
        let docs = answer.json()["docs"].as_array().unwrap().clone();
        docs.iter().map(|doc| doc["_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids(json!({"parameters": {"city": "Lviv", "least": 0}})), ["3", "1"]);
    assert_eq!(ids(json!({"parameters": {"city": "Lviv", "least": 6}})), ["1"]);
    assert_eq!(ids(json!({"parameters": {"city": "Warsaw", "least": 0}})), ["2"]);
    // A parameter is a value, even if it looks like an operator.
    assert_eq!(ids(json!({"parameters": {"city": {"$gt": null}, "least": 0}})), [""; 0]);
    // It includes later writes, and paging works.
    assert_eq!(server.put("/shop/6", &json!({"city": "Lviv", "price": 7})).status, 201);
    let page = json!({"parameters": {"city": "Lviv", "least": 0}, "limit": 2});
    assert_eq!(ids(page.clone()), ["3", "6"]);
    let mut next = page.clone();
    next["bookmark"] = server.post(&path, &page).json()["bookmark"].clone();
    assert_eq!(ids(next), ["1"]);
    for wrong in [
        json!({}),
        json!({"parameters": {"city": "Lviv"}}),
        json!({"parameters": {"city": "Lviv", "least": 0, "most": 1}}),
        json!({"parameters": []}),
        json!({"parameters": {"city": "Lviv", "least": 0}, "selector": {}}),
        json!([]),
    ] {
        assert_eq!(server.post(&path, &wrong).status, 400, "{wrong}");
    }
    // It belongs to its creator, and is lost when the server restarts.
    assert_eq!(server.post("/shop/_prepared/x", &page).json()["error"], "unknown_query");
    server.restart();
    let unknown = server.post(&path, &page);
    assert_eq!((unknown.status, unknown.json()["error"].as_str()), (404, Some("unknown_query")));
}

#[test]
fn prepared_query_is_validated_and_private() {
    let server = shop();
    for wrong in [
        json!({}),
        json!({"selector": {"$param": "all"}}),
        json!({"selector": {"a": {"$huh": {"$param": "x"}}}}),
        json!({"selector": {"$and": {"$param": "parts"}}}),
        json!({"selector": {}, "sort": [{"a": "up"}]}),
    ] {
        assert_eq!(server.post("/shop/_prepare", &wrong).status, 400, "{wrong}");
    }
    let long = json!({"selector": {"a": "x".repeat(70_000)}});
    assert_eq!(server.post("/shop/_prepare", &long).status, 413);
    server.put("/shop/_security", &json!({"members": {"names": [], "roles": []}}));
    let prepared = server.ask_as(None, "POST", "/shop/_prepare", Some(&json!({"selector": {"city": "Oslo"}})));
    let path = format!("/shop/_prepared/{}", prepared.json()["handle"].as_str().unwrap());
    let found = server.ask_as(None, "POST", &path, Some(&json!({})));
    assert_eq!(found.json()["docs"][0]["_id"], "4");
    assert_eq!(server.ask_as(ADMIN, "POST", &path, Some(&json!({}))).status, 404);
    assert_eq!(server.ask_as(None, "DELETE", &path, None).status, 200);
    assert_eq!(server.ask_as(None, "POST", &path, Some(&json!({}))).status, 404);
}

/// A query prepared before there was a design document is run after one was added and removed.
#[test]
fn prepared_query_ignores_later_design_documents() {
    let server = TestServer::new();
    server.database("shop", &[json!({"_id": "1", "city": "Lviv", "price": 12})]);
    let query = json!({"selector": {"city": {"$param": "city"}}, "fields": ["_id"]});
    let handle = server.post("/shop/_prepare", &query).json()["handle"].as_str().unwrap().to_owned();
    let asked = || {
        let parameters = json!({"parameters": {"city": "Lviv"}});
        let prepared = server.post(&format!("/shop/_prepared/{handle}"), &parameters).json()["docs"].clone();
        let selector = json!({"city": "Lviv"});
        let found =
            server.post("/shop/_find", &json!({"selector": selector, "fields": ["_id"]})).json()["docs"].clone();
        let totals = rows(&server, &json!({"selector": selector, "figures": {"total": {"sum": "price"}}}));
        (prepared, found, totals[0]["value"]["total"].clone())
    };
    let plain = (json!([{"_id": "1"}]), json!([{"_id": "1"}]), json!(12));
    assert_eq!(asked(), plain);
    let design = json!({"city": "Lviv", "price": 1000, "language": "query"});
    server.design("shop", "x", design);
    assert_eq!(asked(), plain);
    let rev = server.get("/shop/_design/x").json()["_rev"].as_str().unwrap().to_owned();
    assert_eq!(server.delete(&format!("/shop/_design/x?rev={rev}")).status, 200);
    assert_eq!(asked(), plain);
}

#[test]
fn paths_through_arrays_need_brackets() {
    let server = TestServer::new();
    server.database("db", &[json!({"_id": "a", "lines": [{"p": "tea", "n": 1}, {"p": "cup", "n": 2}]})]);
    let find = |selector: Value| server.post("/db/_find", &json!({"selector": selector})).json();
    let found = find(json!({"lines.p": "tea"}));
    assert_eq!(found["docs"], json!([]));
    assert!(found["warning"].as_str().unwrap().contains("`lines[].p`"), "{found}");
    for (selector, count) in [
        (json!({"lines[].p": "tea"}), 1),
        (json!({"lines[]": {"p": "tea", "n": 1}}), 1),
        (json!({"lines[]": {"p": "tea", "n": 2}}), 0),
        (json!({"lines.0.p": "tea"}), 1),
        (json!({"lines[].p": "milk"}), 0),
    ] {
        let found = find(selector.clone());
        assert_eq!(found["docs"].as_array().unwrap().len(), count, "{selector}");
        assert_eq!(found.get("warning"), None, "{selector}");
    }
}
