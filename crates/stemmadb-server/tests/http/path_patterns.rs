//! Patterns of paths in `_changes` and `_watch`, and parameters that Stemma's own routes do not have.

use serde_json::{Value, json};

use crate::client::TestServer;
use crate::feeds::Feed;
use crate::watch::Events;

fn garage(name: &str) -> TestServer {
    let server = TestServer::new();
    server.database(
        name,
        &[
            json!({"_id": "cars/1", "color": {"roof": "red", "doors": {"left": "blue"}}}),
            json!({"_id": "cars/2", "color": "white"}),
            json!({"_id": "bike", "gears": 7}),
        ],
    );
    server
}

fn ids(server: &TestServer, query: &str) -> Vec<String> {
    let answer = server.get(&format!("/live/_changes?{query}"));
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = answer.json();
    let rows = answer["results"].as_array().unwrap().iter();
    rows.map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

fn put(server: &TestServer, database: &str, id: &str, mut body: Value) {
    let path = format!("/{database}/{}", id.replace('/', "%2F"));
    let known = server.get(&path);
    if known.status == 200 {
        body["_rev"] = known.json()["_rev"].clone();
    }
    assert_eq!(server.put(&path, &body).status, 201);
}

#[test]
fn a_changes_feed_has_the_documents_with_a_value_at_a_matching_path() {
    let server = garage("live");
    for (query, expected) in [
        ("path=color/+", &["cars/1"][..]),
        ("path=color%2F%2B", &["cars/1"]),
        ("path=color", &["cars/1", "cars/2"]),
        ("path=color/%23", &["cars/1", "cars/2"]),
        ("path=color/+/left", &["cars/1"]),
        ("path=_id/cars/+", &["cars/1", "cars/2"]),
        ("path=gears&path=color/roof", &["cars/1", "bike"]),
        ("path=nothing", &[]),
        ("path=color/+&since=1", &[]),
        ("path=color&limit=1&descending=true", &["cars/2"]),
        ("path=color&filter=_doc_ids&doc_ids=%5B%22cars/2%22,%22bike%22%5D", &["cars/2"]),
        ("path=color&filter=_design", &[]),
    ] {
        assert_eq!(ids(&server, query), expected, "{query}");
    }
    let body = json!({"selector": {"color": "white"}, "paths": ["_id/cars/#", "gears"]});
    let answer = server.post("/live/_changes?filter=_selector", &body).json();
    assert_eq!(answer["results"].as_array().unwrap().len(), 1, "{answer}");
    for (query, reason) in [("path=a/%23/b", "goes on after #"), ("path=color/", "%23"), ("path=x%5C", "backslash")] {
        let refused = server.get(&format!("/live/_changes?{query}"));
        assert_eq!(refused.status, 400, "{query}");
        assert!(refused.json()["reason"].as_str().unwrap().contains(reason), "{refused:?}");
    }
    for paths in [json!([]), json!("color"), json!([1])] {
        assert_eq!(server.post("/live/_changes", &json!({"paths": paths})).status, 400, "{paths}");
    }
}

#[test]
fn open_feeds_of_paths_receive_what_matches() {
    let server = garage("db");
    let open = |query: &str| Feed::open(&server, &format!("feed=continuous&heartbeat=1000&{query}"), &json!({}));
    let mut feeds = [open("path=color/+"), open("path=color/+"), open("path=color/%23")];
    let mut by_id = open("path=color/+&filter=_doc_ids&doc_ids=%5B%22cars/4%22%5D");
    let mut design = open("path=views/%23&filter=_design");
    assert_eq!((feeds[0].ids(1), feeds[1].ids(1)), (vec!["cars/1".to_owned()], vec!["cars/1".to_owned()]));
    assert_eq!(feeds[2].ids(2), ["cars/1", "cars/2"]);
    put(&server, "db", "bike", json!({"gears": 8}));
    put(&server, "db", "views", json!({"views": {"n": 1}}));
    server.design("db", "x", json!({"views": {"a": {"map": "function (doc) {}"}}}));
    put(&server, "db", "cars/2", json!({"color": {"hood": "green"}}));
    put(&server, "db", "cars/3", json!({"color": "black"}));
    put(&server, "db", "cars/4", json!({"color": {"roof": "gray"}}));
    for feed in &mut feeds[..2] {
        assert_eq!(feed.ids(2), ["cars/2", "cars/4"]);
    }
    assert_eq!(feeds[2].ids(3), ["cars/2", "cars/3", "cars/4"]);
    assert_eq!((by_id.ids(1), design.ids(1)), (vec!["cars/4".to_owned()], vec!["_design/x".to_owned()]));
}

/// The messages up to the next state, as `id path…`, and the sequence of that state.
fn step(events: &mut Events) -> (Vec<String>, String) {
    let mut seen = Vec::new();
    loop {
        let (kind, id, data) = events.next().expect("the live query continues");
        match kind.as_str() {
            "state" => return (seen, id.expect("a state has an id")),
            "reset" => seen.push("reset".to_owned()),
            "change" => {
                let mut text = data["id"].as_str().unwrap().to_owned();
                for path in data["paths"].as_array().into_iter().flatten() {
                    let sign = match path["type"].as_str().unwrap() {
                        "added" => '+',
                        "changed" => '~',
                        "removed" => '-',
                        other => panic!("{other}"),
                    };
                    text.push_str(&format!(" {sign}{}", path["path"].as_str().unwrap()));
                }
                assert_eq!(data["deleted"] == true, data.get("doc").is_none(), "{data}");
                seen.push(text);
            }
            other => panic!("{other}: {data}"),
        }
    }
}

#[test]
fn a_live_query_of_paths_sends_each_change_and_continues_after_a_cut() {
    let server = garage("live");
    let query = json!({"paths": ["color/#", "_id/shops/+"], "fields": ["color"], "heartbeat": 20});
    let mut events = Events::of(&server, &query, None);
    let (seen, start) = step(&mut events);
    assert_eq!(seen, [""; 0], "only what changes from now on");
    put(&server, "live", "bike", json!({"gears": 8}));
    put(&server, "live", "cars/2", json!({"color": {"hood": "green"}}));
    assert_eq!(step(&mut events).0, ["cars/2 +color/hood ~color"]);
    put(&server, "live", "cars/2", json!({"color": {"hood": "gray"}}));
    assert_eq!(step(&mut events).0, ["cars/2 ~color/hood"]);
    put(&server, "live", "shops/oslo", json!({"open": true}));
    assert_eq!(step(&mut events).0, ["shops/oslo +_id"]);
    // One transaction is one step.
    let revision = |id: &str| server.get(&format!("/live/{}", id.replace('/', "%2F"))).json()["_rev"].clone();
    let docs = json!([
        {"_id": "cars/1", "_rev": revision("cars/1"), "color": {"roof": "red"}},
        {"_id": "shops/oslo", "_rev": revision("shops/oslo"), "_deleted": true},
        {"_id": "boat", "sails": 2},
    ]);
    assert_eq!(server.post("/live/_transact", &json!({ "docs": docs })).status, 201);
    let (seen, reached) = step(&mut events);
    assert_eq!(seen, ["cars/1 -color/doors/left", "shops/oslo -_id"]);
    drop(events);

    // After a cut, documents that were written meanwhile are sent without their changed paths.
    put(&server, "live", "cars/1", json!({"color": {"roof": "blue"}}));
    let mut events = Events::of(&server, &query, Some(&reached));
    assert_eq!(step(&mut events), (vec![], reached));
    assert_eq!(step(&mut events).0, ["cars/1"]);
    put(&server, "live", "cars/1", json!({"color": {"roof": "black"}}));
    assert_eq!(step(&mut events).0, ["cars/1 ~color/roof"]);

    // A position of another database starts from the beginning.
    let foreign = start.split_once('-').map(|(number, _)| format!("{number}-00000000")).unwrap();
    let mut events = Events::of(&server, &query, Some(&foreign));
    assert_eq!(step(&mut events).0, ["reset"]);
}

#[test]
fn many_changes_of_paths_arrive_in_order_and_complete() {
    let server = garage("live");
    let mut events = Events::of(&server, &json!({"paths": ["n/+"]}), None);
    step(&mut events);
    let (count, text) = (2_000, "x".repeat(2_000));
    for part in 0..10 {
        let ids = (0..count / 10).map(|n| part * (count / 10) + n);
        let docs: Vec<_> = ids.map(|n| json!({"_id": format!("d{n:05}"), "n": {"of": n}, "text": text})).collect();
        assert_eq!(server.post("/live/_transact", &json!({ "docs": docs })).status, 201);
    }
    let mut seen = Vec::new();
    while seen.len() < count {
        seen.extend(step(&mut events).0);
    }
    let ids: Vec<_> = seen.iter().map(|text| text.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(ids, (0..count).map(|n| format!("d{n:05}")).collect::<Vec<_>>());
}

#[test]
fn unknown_parameters_of_own_routes_are_errors() {
    let server = garage("live");
    let nothing = json!({});
    for (method, path, unknown, known) in [
        ("GET", "/live/_paths?limt=3", "limt", "it has none"),
        ("GET", "/live/_statistics?paths=true", "paths", "it has none"),
        ("GET", "/live/_watch?selector={}&filter=x", "filter", "`selector`, `path`"),
        ("GET", "/live/_watch?paths=%5B%22a%22%5D", "paths", "`path`"),
        ("POST", "/live/_watch?since=3", "since", "it has none"),
        ("POST", "/live/_transact?new=1", "new", "`batch`, `new_edits`"),
        ("POST", "/live/_aggregate?asof=1", "asof", "`as_of`"),
        ("GET", "/live/_keys/n?prefx=a", "prefx", "`prefix`, `limit`"),
        ("GET", "/live/_history/bike?rev=1", "rev", "`include_docs`"),
        ("GET", "/_tokens?limit=1", "limit", "it has none"),
        ("GET", "/_metrics?format=x", "format", "it has none"),
        ("PATCH", "/live/bike?revision=1", "revision", "`rev`"),
    ] {
        let body = (method != "GET").then_some(&nothing);
        let refused = server.ask_as(crate::client::ADMIN, method, path, body);
        assert_eq!(refused.status, 400, "{method} {path}: {refused:?}");
        let reason = refused.json()["reason"].as_str().unwrap().to_owned();
        assert!(reason.contains(&format!("no parameter `{unknown}`")) && reason.contains(known), "{reason}");
    }
    // Whoever may not use a route does not learn its parameters.
    assert_eq!(server.ask_as(None, "GET", "/live/_paths?limt=3", None).status, 401);
    // CouchDB ignores unknown parameters.
    for path in ["/live/_changes?paths=3", "/live/_all_docs?limt=3", "/live?x", "/_up?y=1", "/live/bike?revision=1"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    for body in [json!({"paths": ["a"], "selector": {}}), json!({"paths": ["a"], "path": "b"})] {
        let refused = server.post("/live/_watch", &body);
        assert_eq!(refused.status, 400, "{body}: {refused:?}");
        assert!(refused.json()["reason"].as_str().unwrap().contains("`paths`, `fields`"), "{refused:?}");
    }
}
