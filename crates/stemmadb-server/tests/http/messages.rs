//! Messages in memory over HTTP: `_publish` and `_subscribe`.

use serde_json::json;

use crate::client::{TestServer, basic};
use crate::watch::Events;

fn subscribed(server: &TestServer, query: &str) -> Events {
    let mut events = Events::get(server, &basic("admin", "secret"), &format!("/shop/_subscribe?{query}"));
    assert_eq!(events.next().unwrap().2, json!({"type": "subscribed"}));
    events
}

#[test]
fn messages_reach_the_subscribers_of_matching_topics() {
    let server = TestServer::new();
    server.database("shop", &[]);
    server.database("other", &[]);
    let nobody = server.post("/shop/_publish/orders/17/paid", &json!({"total": 30}));
    assert_eq!((nobody.status, nobody.json()), (200, json!({"ok": true, "subscribers": 0})));
    let mut paid = subscribed(&server, "topic=orders/%2B/paid&topic=alarms/%23&heartbeat=10");
    let mut all = subscribed(&server, "topic=%23");
    let publish = |topic: &str, payload: serde_json::Value, count: usize| {
        let published = server.post(&format!("/shop/_publish/{topic}"), &payload);
        assert_eq!((published.status, published.json()["subscribers"].as_u64()), (200, Some(count as u64)), "{topic}");
    };
    assert_eq!(server.post("/other/_publish/orders/1/paid", &json!(1)).json()["subscribers"], 0);
    publish("orders/17/shipped", json!({}), 1);
    publish("orders/17/paid", json!({"total": 30}), 2);
    publish("alarms", json!([1, "two"]), 2);
    publish("alarms/%C3%A4%20b", json!(null), 2);
    let topics = [("orders/17/paid", json!({"total": 30})), ("alarms", json!([1, "two"])), ("alarms/ä b", json!(null))];
    for (topic, payload) in &topics {
        let (kind, id, message) = paid.next().unwrap();
        assert_eq!((kind.as_str(), id), ("message", None));
        assert_eq!(message, json!({"type": "message", "topic": topic, "payload": payload}));
    }
    assert_eq!(all.next().unwrap().2["topic"], "orders/17/shipped");
    assert_eq!(all.next().unwrap().2["topic"], "orders/17/paid");
    // A deleted database ends its subscriptions.
    assert_eq!(server.delete("/shop").status, 200);
    while all.next().is_some() {}
    assert!(paid.next().is_none());
}

#[test]
fn malformed_topics_and_messages_are_refused() {
    let server = TestServer::new();
    server.database("shop", &[]);
    let refused = |answer: crate::client::Response, status: u16, reason: &str| {
        assert_eq!(answer.status, status, "{}", answer.text);
        assert!(answer.json()["reason"].as_str().unwrap().contains(reason), "{}", answer.text);
    };
    refused(server.get("/shop/_subscribe"), 400, "needs a `topic`");
    refused(server.get("/shop/_subscribe?topic=a/"), 400, "write %23 for #");
    refused(server.get("/shop/_subscribe?topic=%23/a"), 400, "#");
    refused(server.get("/shop/_subscribe?topic=a&since=1"), 400, "no parameter `since`");
    refused(server.get("/shop/_subscribe?topic=a&heartbeat=0"), 400, "heartbeat");
    refused(server.post("/shop/_publish/a/%2B", &json!(1)), 400, "wildcard");
    refused(server.post("/shop/_publish/a?x=1", &json!(1)), 400, "no parameter `x`");
    refused(server.post("/shop/_publish/a", &json!("x".repeat(70_000))), 413, "store a document");
    refused(server.send_as_admin("POST", "/shop/_publish/a", &[("Content-Type", "application/json")], b"{"), 400, "");
    refused(server.send_as_admin("POST", "/shop/_publish/a", &[("Content-Type", "text/plain")], b"1"), 415, "");
}

#[test]
fn a_reading_token_subscribes_and_does_not_publish() {
    let server = TestServer::new();
    server.database("shop", &[]);
    let made = server.post("/_tokens", &json!({"name": "reader", "roles": ["_admin"], "read_only": true}));
    let bearer = format!("Bearer {}", made.json()["token"].as_str().unwrap());
    let mut events = Events::get(&server, &bearer, "/shop/_subscribe?topic=a");
    assert_eq!(events.next().unwrap().2["type"], "subscribed");
    let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
    assert_eq!(server.send("POST", "/shop/_publish/a", &headers, b"1").status, 403);
    server.post("/shop/_publish/a", &json!(2));
    assert_eq!(events.next().unwrap().2["payload"], 2);
}
