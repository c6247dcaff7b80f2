//! Updates by selector and prepared queries of virtual databases: answers are those of one database.

use serde_json::{Value, json};

use crate::client::{ADMIN, Response, TestServer};
use crate::spread::Servers;
use crate::virtual_database::{create, start_move, until_moved, write, write_twins};

/// Sends a request to `v` and to `plain`; returns both answers.
fn both(server: &TestServer, route: &str, body: &Value) -> [Response; 2] {
    ["v", "plain"].map(|database| server.post(&format!("/{database}/{route}"), body))
}

/// Sends an update to both databases, and compares the answers.
fn assert_updates(server: &TestServer, body: &Value, expected: &Value) {
    let [ours, theirs] = both(server, "_update_where", body);
    assert_eq!((ours.status, ours.json()), (theirs.status, theirs.json()), "{body}");
    assert_eq!(&ours.json()["changed"], expected, "{body}: {ours:?}");
}

/// The documents of a database that match, without their revisions.
fn matching(server: &TestServer, database: &str, selector: &Value) -> Vec<Value> {
    let query = json!({"selector": selector, "sort": ["_id"], "limit": 500});
    let found = server.post(&format!("/{database}/_find"), &query);
    assert_eq!(found.status, 200, "{found:?}");
    let mut docs = found.json()["docs"].as_array().unwrap().clone();
    docs.iter_mut().for_each(|doc| drop(doc.as_object_mut().unwrap().remove("_rev")));
    docs
}

fn compare_updates(server: &TestServer) {
    assert_updates(server, &json!({"selector": {"n": {"$lt": 30}}, "patch": {"m": 1}}), &json!(30));
    assert_updates(server, &json!({"selector": {"n": {"$gte": 60}}, "patch": {"$inc": {"n": 100}}}), &json!(40));
    assert_updates(server, &json!({"selector": {"n": {"$gte": 180}}, "delete": true}), &json!(20));
    assert_updates(server, &json!({"selector": {"nothing": 1}, "delete": true}), &json!(0));
    let everything = json!({"_id": {"$gt": null}});
    assert_eq!(matching(server, "v", &everything), matching(server, "plain", &everything));
    // Which documents are within the limit is open.
    assert_updates(server, &json!({"selector": {"even": true}, "patch": {"some": true}, "limit": 17}), &json!(17));
    assert_eq!(matching(server, "v", &json!({"some": true})).len(), 17);
    for wrong in [
        json!({}),
        json!([]),
        json!({"selector": {"n": {"$unknown": 1}}, "delete": true}),
        json!({"selector": {}, "delete": true, "patch": {"a": 1}}),
        json!({"selector": {}, "delete": true, "limit": "many"}),
        json!({"selector": {}, "delete": true, "other": 1}),
    ] {
        let [ours, theirs] = both(server, "_update_where", &wrong);
        assert_eq!((ours.status, ours.json()), (theirs.status, theirs.json()), "{wrong}");
        assert_eq!(ours.status, 400, "{wrong}");
    }
    while_documents_move(server);
    // A shard changes all of its documents or none, and the answer says that others have changed theirs.
    let refuse = "function (doc) { if (doc.refused && doc._id === 'd010') throw {forbidden: 'not this one'}; }";
    for database in ["v", "plain"] {
        server.design(database, "rules", json!({"validate_doc_update": refuse}));
    }
    let [ours, theirs] =
        both(server, "_update_where", &json!({"selector": {"n": {"$lt": 30}}, "patch": {"refused": true}}));
    assert_eq!((ours.status, theirs.status), (403, 403), "{ours:?}");
    let changed = matching(server, "v", &json!({"refused": true})).len();
    assert!(changed < 30, "{changed}");
    assert_eq!(ours.json()["error"], if changed == 0 { "forbidden" } else { "partly_changed" }, "{ours:?}");
    assert!(ours.text.contains("not this one"), "{ours:?}");
    assert!(changed == 0 || ours.text.contains(&format!("{changed} documents")), "{ours:?}");
}

/// Copies of documents that move are not changed.
fn while_documents_move(server: &TestServer) {
    let docs: Vec<Value> = (0..2_000).map(|n| json!({"_id": format!("m{n:05}"), "moved": n})).collect();
    write(server, "v", &docs);
    write(server, "plain", &docs);
    start_move(server, "v", &json!({"split": "shard-2"}));
    for turn in 0..5 {
        let patch = json!({"selector": {"moved": {"$gte": 1_500}}, "patch": {"$inc": {"turn": 1}}});
        assert_updates(server, &patch, &json!(500));
        let delete = json!({"selector": {"moved": {"$lt": 100 * (turn + 1)}}, "delete": true});
        assert_updates(server, &delete, &json!(100));
    }
    until_moved(server, "v");
    let selector = json!({"moved": {"$gte": 0}});
    assert_eq!(matching(server, "v", &json!({"turn": 5})).len(), 500);
    assert_eq!(matching(server, "v", &selector), matching(server, "plain", &selector));
    for id in matching(server, "v", &selector).iter().step_by(100).map(|doc| doc["_id"].as_str().unwrap()) {
        let leaves = server.get(&format!("/v/{id}?conflicts=true")).json();
        assert!(leaves["_conflicts"].is_null(), "{leaves}");
    }
}

fn compare_prepared(server: &TestServer) {
    let query = json!({"selector": {"n": {"$gte": {"$param": "from"}}}, "sort": ["n"], "limit": 5, "fields": ["n"]});
    let handles = both(server, "_prepare", &query).map(|prepared| {
        assert_eq!(prepared.status, 201, "{prepared:?}");
        assert_eq!(prepared.json()["parameters"], json!(["from"]));
        prepared.json()["handle"].as_str().unwrap().to_owned()
    });
    let run = |body: &Value| {
        let [ours, theirs] = ["v", "plain"].map(|database| {
            let handle = &handles[usize::from(database == "plain")];
            server.post(&format!("/{database}/_prepared/{handle}"), body)
        });
        assert_eq!((ours.status, &ours.json()["docs"]), (theirs.status, &theirs.json()["docs"]), "{body}");
        ours
    };
    let page = run(&json!({"parameters": {"from": 40}}));
    assert_eq!(page.json()["docs"], json!([{"n": 40}, {"n": 41}, {"n": 42}, {"n": 43}, {"n": 44}]));
    assert_eq!(
        run(&json!({"parameters": {"from": 50}, "limit": 2, "skip": 1})).json()["docs"],
        json!([{"n": 51}, {"n": 52}])
    );
    let next = json!({"parameters": {"from": 40}, "bookmark": page.json()["bookmark"]});
    let next = server.post(&format!("/v/_prepared/{}", handles[0]), &next).json();
    assert_eq!(next["docs"][0], json!({"n": 45}), "{next}");
    for wrong in [json!({}), json!({"parameters": {"other": 1}}), json!({"parameters": {"from": 1}, "other": 1})] {
        assert_eq!(run(&wrong).status, 400, "{wrong}");
    }
    let path = format!("/v/_prepared/{}", handles[0]);
    assert_eq!(server.ask_as(ADMIN, "DELETE", &path, None).status, 200);
    assert_eq!(server.post(&path, &json!({"parameters": {"from": 1}})).json()["error"], "unknown_query");
}

#[test]
fn documents_of_all_shards_are_updated() {
    let server = TestServer::new();
    create(&server, "/v?shards=3");
    write_twins(&server);
    compare_prepared(&server);
    compare_updates(&server);
}

#[test]
fn documents_of_all_servers_are_updated() {
    let servers = Servers::start();
    create(&servers.home, "/v?shards=4&servers=here,b,c");
    write_twins(&servers.home);
    compare_prepared(&servers.home);
    compare_updates(&servers.home);
}
