//! The key-value store over HTTP.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::TestServer;

fn server() -> TestServer {
    let server = TestServer::new();
    server.database("shop", &[]);
    server
}

#[test]
fn keys_are_set_read_listed_and_removed() {
    let server = server();
    let path = "/shop/_keys/sessions/user/1";
    assert_eq!(server.get(path).status, 404);
    let set = server.put(path, &json!({"name": "ada"}));
    assert_eq!((set.status, set.json()), (201, json!({"ok": true})));
    assert_eq!(server.get(path).json(), json!({"value": {"name": "ada"}}));
    let set = server.put(&format!("{path}?previous=true"), &json!(7));
    assert_eq!(set.json(), json!({"ok": true, "previous": {"name": "ada"}}));
    assert_eq!(server.put("/shop/_keys/sessions/x?previous=true", &json!(1)).json()["previous"], Value::Null);
    let listed = |query: &str| server.get(&format!("/shop/_keys/sessions{query}")).json();
    assert_eq!(listed(""), json!({"rows": [{"key": "user/1", "value": 7}, {"key": "x", "value": 1}]}));
    assert_eq!(listed("?prefix=user"), json!({"rows": [{"key": "user/1", "value": 7}]}));
    assert_eq!(listed("?limit=0"), json!({"rows": []}));
    assert_eq!(server.get("/shop/_keys/other").json(), json!({"rows": []}));
    assert_eq!(server.delete(path).json(), json!({"ok": true}));
    assert_eq!((server.delete(path).status, server.get(path).status), (404, 404));
    // Keys are no documents.
    assert_eq!(server.get("/shop").json()["doc_count"], 0);
    // The response to `batch=ok` may precede durability; the value is there.
    assert_eq!(server.put("/shop/_keys/sessions/y?batch=ok", &json!(2)).status, 201);
    assert_eq!(server.get("/shop/_keys/sessions/y").json()["value"], 2);
}

#[test]
fn keys_are_set_on_conditions_and_expire() {
    let server = server();
    let set = |query: &str, value: &str| server.put(&format!("/shop/_keys/locks/k{query}"), &json!(value));
    assert_eq!(set("?if=present", "a").status, 412);
    assert_eq!(set("?if=absent", "a").status, 201);
    let refused = set("?if=absent", "b");
    assert_eq!((refused.status, refused.json()["error"].clone()), (412, json!("precondition_failed")));
    assert_eq!(set("?expected=%22b%22", "c").status, 412);
    assert_eq!(set("?expected=%22a%22&ttl=1", "c").status, 201);
    let until = Instant::now() + Duration::from_secs(60);
    while server.get("/shop/_keys/locks/k").status != 404 {
        assert!(Instant::now() < until, "the key does not expire");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(set("?if=absent", "d").status, 201);
    for query in ["?if=x", "?if=absent&expected=1", "?expected=x", "?ttl=0", "?ttl=x"] {
        assert_eq!(set(query, "e").status, 400, "{query}");
    }
    assert_eq!(server.put(&format!("/shop/_keys/locks/{}", "k".repeat(251)), &json!(1)).status, 400);
}

#[test]
fn numbers_are_counted() {
    let server = server();
    let add = |key: &str, by: Value| server.post(&format!("/shop/_keys/n/{key}"), &json!({"increment": by}));
    assert_eq!(add("visits", json!(2)).json(), json!({"value": 2}));
    assert_eq!(add("visits", json!(-3)).json(), json!({"value": -1}));
    assert_eq!(add("spent", json!(0.5)).json(), json!({"value": 0.5}));
    assert_eq!(add("spent", json!(0.25)).json(), json!({"value": 0.75}));
    assert_eq!(add("spent", json!(1)).status, 400);
    assert_eq!(add("spent", json!("x")).status, 400);
    assert_eq!(server.post("/shop/_keys/n/x", &json!({"increment": 1, "by": 2})).status, 400);
}
