//! Databases that are read as one over HTTP.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde_json::{Value, json};
use stemmadb_server::{Config, Wire};

use crate::client::{ADMIN, Response, TestServer};

/// A server that also has the wire protocol, over TCP.
fn with_wire() -> TestServer {
    let wire = Wire { address: Some(SocketAddr::from(([127, 0, 0, 1], 0))), ..Wire::default() };
    TestServer::with(|config| Config { wire, ..config })
}

fn numbered(range: std::ops::Range<u64>) -> Vec<Value> {
    range.map(|n| json!({"_id": format!("d{n:02}"), "n": n, "even": n % 2 == 0})).collect()
}

fn ids(found: &Response) -> Vec<String> {
    let docs = found.json()["docs"].as_array().unwrap_or_else(|| panic!("{found:?}")).clone();
    docs.iter().map(|doc| doc["_id"].as_str().unwrap().to_owned()).collect()
}

/// A federation of two databases of the server and one of another, with thirty documents.
fn three_members(server: &TestServer, other: &TestServer) {
    server.database("a", &numbered(0..10));
    server.database("b", &numbered(10..20));
    other.database("far", &numbered(20..30));
    let wire = format!("stemma://admin:secret@{}/far", other.wire_address());
    let members = json!([
        {"name": "a", "database": "a", "tags": ["near"]},
        {"name": "b", "database": "b", "tags": ["near", "second"]},
        {"name": "far", "database": wire},
    ]);
    let defined = server.put("/_federation/all", &json!({"members": members, "disjoint": true}));
    assert_eq!(defined.status, 201, "{defined:?}");
}

#[test]
fn members_are_read_as_one() {
    let (mut server, other) = (TestServer::new(), with_wire());
    three_members(&server, &other);
    // Design documents are no rows.
    server.put("/b/_design/x", &json!({"n": 100}));
    for _ in 0..2 {
        let find = json!({"selector": {"even": true}, "sort": [{"n": "desc"}], "limit": 6, "fields": ["_id", "n"]});
        let first = server.post("/_federation/all/_find", &find);
        assert_eq!(first.status, 200, "{first:?}");
        assert_eq!(ids(&first), ["d28", "d26", "d24", "d22", "d20", "d18"]);
        assert_eq!(first.json()["docs"][0], json!({"_id": "d28", "n": 28}));
        let mut next = find.clone();
        next["bookmark"] = first.json()["bookmark"].clone();
        assert_eq!(ids(&server.post("/_federation/all/_find", &next))[..2], ["d16", "d14"]);
        let whole = server.post("/_federation/all/_find", &json!({"selector": {"n": 25}})).json();
        assert_eq!(whole["docs"][0]["_rev"], other.get("/far/d25").json()["_rev"]);
        assert_eq!(whole["docs"][0]["even"], false);
        let all = server.post("/_federation/all/_find", &json!({"selector": {}, "limit": 100}));
        assert_eq!(ids(&all).into_iter().collect::<BTreeSet<_>>().len(), 30);
        assert!(all.json().get("missing").is_none());
        let count = server.post("/_federation/all/_count", &json!({"selector": {"n": {"$gte": 5}}}));
        assert_eq!(count.json(), json!({"count": 25}));
        let near = server.post("/_federation/all/_count?tag=near", &json!({"selector": {}}));
        assert_eq!(near.json(), json!({"count": 20}));
        assert_eq!(server.post("/_federation/all/_count?tag=none", &json!({"selector": {}})).status, 404);
        let request = json!({"group_by": "even", "figures": {"sum": {"sum": "n"}, "mean": {"average": "n"}}});
        let rows = server.post("/_federation/all/_aggregate", &request).json()["rows"].clone();
        assert_eq!(rows[1], json!({"key": true, "value": {"sum": 210, "mean": 14.0}}), "{rows}");
        let pipeline = server.post("/_federation/all/_aggregate", &json!({"pipeline": []}));
        assert_eq!(pipeline.status, 501);
        server.restart();
    }
}

#[test]
fn common_documents_are_one() {
    let server = TestServer::new();
    server.database("a", &numbered(0..4));
    server.database("b", &numbered(2..6));
    let members = json!([{"name": "a", "database": "a"}, {"name": "b", "database": "b"}]);
    assert_eq!(server.put("/_federation/both", &json!({ "members": members })).status, 201);
    let count = |selector: Value| {
        server.post("/_federation/both/_count", &json!({ "selector": selector })).json()["count"].clone()
    };
    assert_eq!(count(json!({})), 6);
    let known = server.get("/a/d02").json();
    server.put("/a/d02", &json!({"_rev": known["_rev"], "n": 20}));
    assert_eq!((count(json!({"n": 20})), count(json!({"n": 2})), count(json!({}))), (json!(1), json!(0), json!(6)));
    // A database that is created again is another one.
    assert_eq!(server.delete("/b").status, 200);
    server.database("b", &numbered(50..52));
    assert_eq!(count(json!({})), 6);
}

#[test]
fn changes_of_all_members_resume() {
    let (server, other) = (TestServer::new(), with_wire());
    three_members(&server, &other);
    let (mut since, mut seen) = ("0".to_owned(), BTreeSet::new());
    loop {
        let page = server.get(&format!("/_federation/all/_changes?limit=7&since={since}&include_docs=true")).json();
        let rows = page["results"].as_array().unwrap().clone();
        if rows.is_empty() {
            break;
        }
        assert!(rows.len() <= 7);
        assert_eq!(rows.last().unwrap()["seq"], page["last_seq"]);
        for row in rows {
            assert_eq!(row["doc"]["_rev"], row["changes"][0]["rev"]);
            assert!(seen.insert((row["member"].to_string(), row["id"].to_string())), "{row}");
        }
        since = page["last_seq"].as_str().unwrap().to_owned();
    }
    assert_eq!(seen.len(), 30);
    server.put("/a/new", &json!({}));
    other.delete(&format!("/far/d20?rev={}", other.get("/far/d20").json()["_rev"].as_str().unwrap()));
    let rows = server.get(&format!("/_federation/all/_changes?since={since}")).json()["results"].clone();
    assert_eq!((rows[0]["id"].as_str(), rows[1]["id"].as_str()), (Some("new"), Some("d20")));
    assert_eq!(rows[1]["deleted"], true);
    assert_eq!(server.get("/_federation/all/_changes?since=nonsense").status, 400);
    assert_eq!(server.get("/_federation/all/_changes?feed=continuous").status, 400);
    needs_one_server!("another database in the place of a member is recognized on the same server only");
    // Another database in the place of a member is read from its beginning.
    assert_eq!(server.delete("/a").status, 200);
    server.database("a", &numbered(40..42));
    let rows = server.get(&format!("/_federation/all/_changes?since={since}&tag=near")).json()["results"].clone();
    assert_eq!(rows.as_array().unwrap().len(), 2, "{rows}");
}

#[test]
fn failing_member_is_named_or_missing() {
    let server = TestServer::new();
    server.database("a", &numbered(0..10));
    let members = json!([
        {"name": "a", "database": "a"},
        {"name": "gone", "database": "nowhere"},
        {"name": "far", "database": "stemma://admin:hidden@127.0.0.1:1/db"},
    ]);
    assert_eq!(server.put("/_federation/some", &json!({"members": members, "disjoint": true})).status, 201);
    let selector = json!({"selector": {}});
    let aggregate = json!({"figures": {"n": "count"}});
    for (route, body) in [("_find", &selector), ("_count", &selector), ("_aggregate", &aggregate)] {
        let refused = server.post(&format!("/_federation/some/{route}?timeout=300"), body);
        assert_eq!(refused.status, 404, "{refused:?}");
        assert!(refused.text.contains("member `gone`"), "{refused:?}");
        let partial = server.post(&format!("/_federation/some/{route}?timeout=300&partial=true"), body);
        assert_eq!(partial.status, 200, "{partial:?}");
        let missing = partial.json()["missing"].clone();
        assert_eq!((&missing[0]["member"], &missing[1]["member"]), (&json!("gone"), &json!("far")), "{partial:?}");
        assert!(missing[1]["reason"].as_str().unwrap().contains("member `far`"), "{partial:?}");
        assert!(!partial.text.contains("hidden"), "{partial:?}");
    }
    let find = server.post("/_federation/some/_find?timeout=300&partial=true", &selector);
    assert_eq!(ids(&find).len(), 10);
    server.database("nowhere", &numbered(10..12));
    let refused = server.post("/_federation/some/_count?timeout=300", &selector);
    assert!(matches!(refused.status, 408 | 503) && refused.text.contains("member `far`"), "{refused:?}");
    let count = server.post("/_federation/some/_count?timeout=300&partial=true", &selector).json();
    assert_eq!((&count["count"], count["missing"].as_array().unwrap().len()), (&json!(12), 1));
    // A malformed question is an error in any case.
    let malformed = json!({"selector": {"$no": 1}});
    assert_eq!(server.post("/_federation/some/_find?partial=true", &malformed).status, 400);
    assert_eq!(server.post("/_federation/some/_find", &json!({"selector": {}, "conflicts": true})).status, 400);
}

#[test]
fn questions_need_rights_in_each_member() {
    let server = TestServer::new();
    server.database("_users", &[]);
    for name in ["ada", "bob", "eve"] {
        let user = json!({"name": name, "type": "user", "roles": [], "password": "x"});
        assert_eq!(server.put(&format!("/_users/org.couchdb.user:{name}"), &user).status, 201);
    }
    for name in ["a", "b"] {
        server.database(name, &numbered(0..3));
        let members: &[&str] = if name == "a" { &["ada", "bob", "eve"] } else { &["ada", "eve"] };
        let mut security = json!({"members": {"names": members, "roles": []}, "admins": {"names": [], "roles": []}});
        if name == "b" {
            security["access_rule"] = json!({"selector": {"owner": {"$user": "name"}}});
        }
        let set = server.put(&format!("/{name}/_security"), &security);
        assert_eq!(set.status, 200, "{set:?}");
    }
    let members = json!([{"name": "a", "database": "a", "tags": ["first"]}, {"name": "b", "database": "b"}]);
    assert_eq!(server.put("/_federation/both", &json!({ "members": members })).status, 201);
    let ask =
        |user: &str, path: &str| server.ask_as(Some((user, "x")), "POST", path, Some(&json!({"selector": {}}))).status;
    assert_eq!(ask("bob", "/_federation/both/_count"), 403);
    assert_eq!(ask("bob", "/_federation/both/_count?partial=true"), 403);
    assert_eq!(ask("bob", "/_federation/both/_count?tag=first"), 200);
    assert_eq!(ask("eve", "/_federation/both/_count"), 403, "an access rule limits eve");
    assert_eq!(server.ask_as(Some(("bob", "x")), "GET", "/_federation/both/_changes", None).status, 403);
    assert_eq!(server.ask_as(Some(("ada", "x")), "GET", "/_federation/both", None).status, 403);
    assert_eq!(server.ask_as(None, "POST", "/_federation/both/_count", Some(&json!({"selector": {}}))).status, 401);
    assert_eq!(server.ask_as(ADMIN, "POST", "/_federation/both/_count", Some(&json!({"selector": {}}))).status, 200);

    // The URL's credentials are those of whoever defined it.
    let other = with_wire();
    other.database("far", &numbered(0..3));
    let wire = format!("stemma://admin:secret@{}/far", other.wire_address());
    let members = json!([{"name": "far", "database": wire}]);
    let mut definition = json!({ "members": members });
    assert_eq!(server.put("/_federation/remote", &definition).status, 201);
    assert_eq!(ask("ada", "/_federation/remote/_count"), 403);
    definition["readers"] = json!({"names": ["ada"]});
    assert_eq!(server.put("/_federation/remote", &definition).status, 201);
    assert_eq!((ask("ada", "/_federation/remote/_count"), ask("bob", "/_federation/remote/_count")), (200, 403));
}

#[test]
fn definitions_are_kept_and_shown_without_credentials() {
    let mut server = TestServer::new();
    let members = json!([
        {"name": "a", "database": "a"},
        {"name": "far", "database": "http://ada:hidden@db.example:5984/far?token=hidden", "tags": ["old"]},
    ]);
    let definition = json!({"members": members, "readers": {"names": [], "roles": ["staff"]}});
    assert_eq!(server.put("/_federation/all", &definition).status, 201);
    for _ in 0..2 {
        let shown = server.get("/_federation/all");
        assert!(!shown.text.contains("hidden"), "{shown:?}");
        assert_eq!(shown.json()["members"][1]["database"], "http://db.example:5984/far");
        assert_eq!(shown.json()["members"][1]["tags"], json!(["old"]));
        assert_eq!(server.get("/_federation").json()["federations"]["all"], shown.json());
        server.restart();
    }
    assert_eq!(server.delete("/_federation/all").status, 200);
    server.restart();
    assert_eq!(server.get("/_federation").json(), json!({"federations": {}}));
    for missing in [server.get("/_federation/all"), server.delete("/_federation/all")] {
        assert_eq!(missing.status, 404);
    }
    assert_eq!(server.post("/_federation/all/_find", &json!({"selector": {}})).status, 404);
}

#[test]
fn malformed_federations_are_refused_with_a_reason() {
    let server = TestServer::new();
    let (a, b) = (json!({"name": "a", "database": "a"}), json!({"name": "b", "database": "b"}));
    let far = |url: &str| json!({"members": [{"name": "far", "database": url}]});
    for (body, status, reason) in [
        (json!({}), 400, "missing field `members`"),
        (json!({"members": []}), 400, "has 1 to 256 members"),
        (json!({"members": [a, b], "colour": 1}), 400, "unknown field `colour`"),
        (json!({"members": [a, a]}), 400, "two members are named"),
        (json!({"members": [a, {"name": "b", "database": "a"}]}), 400, "are the same database"),
        (json!({"members": [{"name": "a b", "database": "a"}]}), 400, "a member's name"),
        (far("ftp://host/db"), 400, "scheme"),
        (far("stemma://host"), 400, "names no database"),
        (far("stemma+unix:///run/socket?database=x"), 400, "names no host"),
        (far("stemma://169.254.169.254/x"), 403, "169.254.169.254"),
    ] {
        let refused = server.put("/_federation/x", &body);
        assert_eq!(refused.status, status, "{body}: {refused:?}");
        assert!(refused.json()["reason"].as_str().unwrap().contains(reason), "{reason}: {refused:?}");
    }
    assert_eq!(server.put("/_federation/a%20b", &json!({"members": [a, b]})).status, 400);
    let strict = TestServer::with(|mut config| {
        config.replicator.hosts = vec!["db.example".to_owned()];
        config
    });
    assert_eq!(strict.put("/_federation/x", &far("stemma://other.example/db")).status, 403);
    assert_eq!(strict.put("/_federation/x", &far("stemma://db.example/db")).status, 201);
}
