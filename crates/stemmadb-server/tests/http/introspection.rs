//! Database statistics and document histories.

use serde_json::json;

use crate::client::TestServer;

#[test]
fn document_history_lists_every_branch() {
    let server = TestServer::new();
    server.database("known", &[json!({"_id": "a/b", "n": 1})]);
    let foreign = |rev: &str, start: u64, ids: &[&str]| {
        let doc = json!({"_id": "a/b", "_rev": rev, "n": 2, "_revisions": {"start": start, "ids": ids}});
        server.post("/known/_bulk_docs", &json!({"docs": [doc], "new_edits": false}))
    };
    let first = server.get("/known/a%2Fb").json()["_rev"].as_str().unwrap().to_owned();
    let root = first.trim_start_matches("1-");
    foreign(&format!("2-{}", "a".repeat(32)), 2, &[&"a".repeat(32), root]);
    foreign(&format!("2-{}", "b".repeat(32)), 2, &[&"b".repeat(32), root]);
    let known = server.get("/known/_history/a%2Fb").json();
    let (a, b) = (format!("2-{}", "a".repeat(32)), format!("2-{}", "b".repeat(32)));
    assert_eq!((&known["rev"], &known["deleted"]), (&json!(b), &json!(false)));
    assert_eq!(known["seq"], server.get("/known").json()["update_seq"]);
    let expected = json!([
        {"rev": b, "deleted": false, "revisions": [b, first]},
        {"rev": a, "deleted": false, "revisions": [a, first]},
    ]);
    assert_eq!(known["branches"], expected);
    server.delete(&format!("/known/a%2Fb?rev={a}"));
    server.delete(&format!("/known/a%2Fb?rev={b}"));
    let known = server.get("/known/_history/a%2Fb").json();
    assert_eq!((&known["deleted"], known["branches"].as_array().unwrap().len()), (&json!(true), 2));
    assert_eq!(server.get("/known/_history/nothing").status, 404);
    server.design("known", "x", json!({"views": {}}));
    assert_eq!(server.get("/known/_history/_design%2Fx").json()["branches"].as_array().unwrap().len(), 1);
}

#[test]
fn database_statistics_and_paths_are_reported() {
    needs_one_server!("servers of a cluster have another durability");
    let server = TestServer::new();
    server.database("known", &[json!({"_id": "a", "n": 1, "tags": ["x", "y"]}), json!({"_id": "b", "n": "one"})]);
    let known = server.get("/known/_statistics").json();
    assert_eq!((&known["documents"]["live"], &known["durability"]), (&json!(2), &json!("none")));
    assert!(known["log"]["bytes"].as_u64() > Some(0) && known["index"]["paths"].as_u64() >= Some(2));
    let rows = server.get("/known/_paths").json()["rows"].as_array().unwrap().clone();
    let row = |path: &str| rows.iter().find(|row| row["path"] == path).unwrap().clone();
    assert_eq!(row("n"), json!({"path": "n", "documents": 2, "values": 2, "kinds": {"number": 1, "string": 1}}));
    assert_eq!(row("tags[]")["values"], 2);
    // These routes reveal nothing about users.
    server.database("_users", &[]);
    let user = json!({"name": "m", "type": "user", "roles": [], "password": "m's"});
    assert_eq!(server.put("/_users/org.couchdb.user:m", &user).status, 201);
    for path in ["_statistics", "_paths", "_history/org.couchdb.user:m", "_watch?selector=%7B%7D"] {
        let answer = server.ask_as(Some(("m", "m's")), "GET", &format!("/_users/{path}"), None);
        assert_eq!(answer.status, 403, "{path}");
    }
}
