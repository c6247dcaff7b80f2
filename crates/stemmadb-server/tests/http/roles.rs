//! Roles with statements, and API tokens that are scoped by them.

use serde_json::{Value, json};

use crate::client::{Response, TestServer, basic};
use crate::watch::Events;

fn server() -> TestServer {
    let server = TestServer::new();
    server.database("_users", &[]);
    let user = json!({"name": "ada", "type": "user", "roles": ["picker"], "password": "ada's"});
    assert_eq!(server.put("/_users/org.couchdb.user:ada", &user).status, 201);
    server.database(
        "shop",
        &["orders/1", "orders/2", "orders/1/lines", "carts/7", "stock"].map(|id| json!({"_id": id, "n": 1})),
    );
    server.database("other", &[json!({"_id": "x"})]);
    server
}

fn define(server: &TestServer, statements: Value) {
    let defined = server.put("/_roles/picker", &json!({ "statements": statements }));
    assert_eq!(defined.status, 201, "{}", defined.text);
}

fn ada(server: &TestServer, method: &str, path: &str, body: Option<&Value>) -> Response {
    server.ask_as(Some(("ada", "ada's")), method, path, body)
}

#[test]
fn nobody_may_do_anything_by_default() {
    let server = server();
    for (method, path) in [("GET", "/shop"), ("GET", "/shop/stock"), ("GET", "/shop/_all_docs"), ("PUT", "/shop/new")] {
        assert_eq!(ada(&server, method, path, (method == "PUT").then_some(&json!({}))).status, 403, "{path}");
    }
    // Statements of a role that the user does not have change nothing.
    let statements = json!([{"database": "*", "actions": ["read", "write"]}]);
    assert_eq!(server.put("/_roles/packer", &json!({ "statements": statements })).status, 201);
    assert_eq!(ada(&server, "GET", "/shop/stock", None).status, 403);
    assert_eq!(server.get("/_roles").json()["roles"]["packer"]["statements"], statements);
}

#[test]
fn statements_allow_actions_on_databases_documents_and_keys() {
    let mut server = server();
    define(&server, json!([{"database": "shop", "actions": ["read"]}]));
    assert_eq!(ada(&server, "GET", "/shop/_all_docs", None).json()["total_rows"], 5);
    assert_eq!(ada(&server, "PUT", "/shop/new", Some(&json!({}))).status, 403);
    assert_eq!(ada(&server, "GET", "/other/x", None).status, 403);
    assert_eq!(ada(&server, "PUT", "/shop/_security", Some(&json!({}))).status, 403);
    define(
        &server,
        json!([
            {"database": "shop", "documents": ["orders/+", "stock"], "actions": ["read"]},
            {"database": "shop", "documents": ["orders/+"], "actions": ["write"]},
            {"database": "shop", "keys": ["carts/#"], "actions": ["read", "write"]},
        ]),
    );
    server.restart();
    let listed = ada(&server, "GET", "/shop/_all_docs", None).json();
    let ids: Vec<_> = listed["rows"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect();
    assert_eq!((&listed["total_rows"], &ids[..]), (&json!(3), &["orders/1", "orders/2", "stock"][..]));
    assert_eq!(ada(&server, "GET", "/shop/carts%2F7", None).status, 404);
    assert_eq!(ada(&server, "GET", "/shop/orders%2F1%2Flines", None).status, 404);
    assert_eq!(ada(&server, "PUT", "/shop/orders%2F3", Some(&json!({"n": 2}))).status, 201);
    assert_eq!(ada(&server, "PUT", "/shop/stock2", Some(&json!({}))).status, 403);
    let stock = server.get("/shop/stock").json()["_rev"].clone();
    assert_eq!(ada(&server, "PUT", "/shop/stock", Some(&json!({"_rev": stock, "n": 2}))).status, 403);
    let found = ada(&server, "POST", "/shop/_find", Some(&json!({"selector": {"n": {"$gt": 0}}}))).json();
    assert_eq!(found["docs"].as_array().unwrap().len(), 4);
    assert_eq!(ada(&server, "GET", "/shop/_paths", None).status, 403);
    assert_eq!(ada(&server, "PUT", "/shop/_keys/carts/7", Some(&json!(1))).status, 201);
    assert_eq!(ada(&server, "GET", "/shop/_keys/carts", None).status, 200);
    assert_eq!(ada(&server, "GET", "/shop/_keys/names", None).status, 403);
    assert_eq!(ada(&server, "PUT", "/shop/_keys/names/x", Some(&json!(1))).status, 403);
    // With an access rule, both have to allow a document.
    let nobody = json!({"names": ["nobody"], "roles": []});
    let security = json!({"members": nobody, "admins": nobody, "access_rule": {"selector": {"n": 2}}});
    assert_eq!(server.put("/shop/_security", &security).status, 200);
    assert_eq!(ada(&server, "GET", "/shop/_all_docs", None).json()["total_rows"], 1);
    assert_eq!(server.delete("/_roles/picker").status, 200);
    server.until_status(403, || ada(&server, "GET", "/shop/_all_docs", None));
}

#[test]
fn api_tokens_are_scoped_by_statements() {
    let server = server();
    define(&server, json!([{"database": "shop", "documents": ["orders/#"], "actions": ["read"]}]));
    let made = server.post("/_tokens", &json!({"name": "display", "roles": ["picker"]}));
    let bearer = format!("Bearer {}", made.json()["token"].as_str().unwrap());
    let get = |path: &str| server.send("GET", path, &[("Authorization", &bearer)], b"");
    assert_eq!(get("/shop/_all_docs").json()["total_rows"], 3);
    assert_eq!((get("/shop/stock").status, get("/other").status, get("/_all_dbs").status), (404, 403, 403));
    let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
    assert_eq!(server.send("PUT", "/shop/orders%2F9", &headers, b"{}").status, 403);
    // A live query of the token goes on, and ends when the role is gone.
    let mut events = Events::get(&server, &bearer, "/shop/_watch?selector=%7B%7D");
    let mut seen = Vec::new();
    while seen.last().is_none_or(|kind| kind != "state") {
        seen.push(events.next().unwrap().0);
    }
    assert_eq!(seen.iter().filter(|kind| *kind == "enter").count(), 3);
    assert_eq!(server.put("/shop/stock9", &json!({})).status, 201);
    assert_eq!(server.put("/shop/orders%2F9", &json!({})).status, 201);
    assert_eq!(events.next().unwrap().2["id"], "orders/9");
    assert_eq!(server.delete("/_roles/picker").status, 200);
    while let Some((kind, ..)) = events.next() {
        assert!(matches!(kind.as_str(), "state" | "failure"), "{kind}");
    }
}

#[test]
fn malformed_roles_are_refused() {
    let server = server();
    let role = json!({"statements": []});
    assert_eq!(server.put("/_roles/_admin", &role).status, 400);
    assert_eq!(server.put("/_roles/a%20b", &role).status, 400);
    assert_eq!(server.put("/_roles/a", &json!({"statements": [{"database": "x", "actions": ["own"]}]})).status, 400);
    assert_eq!(server.delete("/_roles/none").status, 404);
    let credentials = basic("ada", "ada's");
    assert_eq!(server.send("GET", "/_roles", &[("Authorization", &credentials)], b"").status, 403);
}
