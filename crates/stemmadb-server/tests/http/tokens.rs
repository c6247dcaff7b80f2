//! API tokens: creation, listing, use within their scope, and revocation. The matrix tests them at every route.

use serde_json::{Value, json};

use crate::auth::prepare;
use crate::client::{Response, TestServer};

/// Creates a token; returns its text.
fn token(server: &TestServer, wanted: &Value) -> String {
    let made = server.post("/_tokens", wanted);
    assert_eq!(made.status, 201, "{made:?}");
    made.json()["token"].as_str().unwrap().to_owned()
}

fn ask(server: &TestServer, token: &str, method: &str, path: &str, body: &str) -> Response {
    let bearer = format!("Bearer {token}");
    server.send(method, path, &[("Authorization", &bearer), ("Content-Type", "application/json")], body.as_bytes())
}

#[test]
fn token_is_shown_once_and_stored_as_a_hash() {
    let mut server = TestServer::new();
    prepare(&server);
    let text = token(&server, &json!({"name": "backup", "user": "ann", "read_only": true, "databases": ["db"]}));
    assert!(text.starts_with("stemma_") && text.len() > 70, "{text}");
    let listed = server.get("/_tokens");
    let info = &listed.json()["tokens"][0];
    assert_eq!(
        (&info["name"], &info["user"], &info["read_only"], &info["databases"], &info["expires"]),
        (&json!("backup"), &json!("ann"), &json!(true), &json!(["db"]), &Value::Null)
    );
    let secret = text.rsplit('_').next().unwrap();
    assert!(!listed.text.contains(secret) && info.get("hash").is_none(), "{listed:?}");
    assert_eq!(ask(&server, &text, "GET", "/db/d", "").status, 200);
    server.restart();
    assert_eq!(ask(&server, &text, "GET", "/db/d", "").status, 200);
    let session = ask(&server, &text, "GET", "/_session", "").json();
    assert_eq!((&session["userCtx"]["name"], &session["info"]["authenticated"]), (&json!("ann"), &json!("token")));
    assert_eq!(ask(&server, &text, "PUT", "/db/x", "{}").json()["reason"], "This token is for reading.");
    assert_eq!(server.delete("/_tokens/backup").status, 200);
    assert_eq!(server.delete("/_tokens/backup").status, 404);
    server.until_status(401, || ask(&server, &text, "GET", "/db/d", ""));
    server.restart();
    assert_eq!(ask(&server, &text, "GET", "/db/d", "").status, 401);
}

#[test]
fn token_has_its_users_current_rights_or_its_own() {
    let server = TestServer::new();
    prepare(&server);
    let anns = token(&server, &json!({"name": "a", "user": "ann"}));
    let staff = token(&server, &json!({"name": "ann", "roles": ["staff"]}));
    let nobody = token(&server, &json!({"name": "n", "roles": []}));
    assert_eq!(ask(&server, &staff, "GET", "/db/d", "").status, 200);
    let session = ask(&server, &staff, "GET", "/_session", "").json();
    assert_eq!(session["userCtx"], json!({"name": "token:ann", "roles": ["staff"]}));
    // A token with the name of a user is not that user.
    let security = json!({"members": {"names": ["ann"], "roles": []}, "admins": {"names": [], "roles": []}});
    assert_eq!(server.put("/db/_security", &security).status, 200);
    assert_eq!(
        (ask(&server, &anns, "GET", "/db/d", "").status, ask(&server, &staff, "GET", "/db/d", "").status),
        (200, 403)
    );
    assert_eq!(ask(&server, &nobody, "GET", "/db/d", "").status, 403);
    let revision = server.get("/_users/org.couchdb.user:ann").json()["_rev"].as_str().unwrap().to_owned();
    assert_eq!(server.delete(&format!("/_users/org.couchdb.user:ann?rev={revision}")).status, 200);
    // The user was deleted.
    server.until_status(401, || ask(&server, &anns, "GET", "/db/d", ""));
}

#[test]
fn token_is_limited_to_its_databases() {
    let server = TestServer::new();
    prepare(&server);
    server.database("other", &[]);
    let bound = token(&server, &json!({"name": "b", "roles": ["_admin"], "databases": ["db", "new"]}));
    let status = |method: &str, path: &str, body: &str| ask(&server, &bound, method, path, body).status;
    assert_eq!((status("GET", "/db/d", ""), status("PUT", "/db/x", "{}"), status("PUT", "/new", "")), (200, 201, 201));
    for (method, path) in [
        ("GET", "/other"),
        ("PUT", "/third"),
        ("DELETE", "/other"),
        ("GET", "/_all_dbs"),
        ("GET", "/_tokens"),
        ("POST", "/_tokens"),
        ("POST", "/_replicate"),
        ("GET", "/_users/org.couchdb.user:ann"),
        ("POST", "/_dbs_info"),
    ] {
        assert_eq!(status(method, path, "{}"), 403, "{method} {path}");
    }
    assert_eq!(status("GET", "/_up", ""), 200);
    let reading = token(&server, &json!({"name": "r", "roles": ["_admin"], "read_only": true}));
    let status = |method: &str, path: &str, body: &str| ask(&server, &reading, method, path, body).status;
    assert_eq!(status("POST", "/db/_find", "{\"selector\": {}}"), 200);
    assert_eq!(status("GET", "/_all_dbs", ""), 200);
    for (method, path) in [
        ("POST", "/db"),
        ("POST", "/db/_bulk_docs"),
        ("PUT", "/db/d"),
        ("DELETE", "/db"),
        ("PUT", "/db/_local/x"),
        ("PUT", "/db/_security"),
        ("POST", "/_tokens"),
        ("POST", "/_replicate"),
        ("COPY", "/db/d"),
        ("POST", "/db/_compact"),
    ] {
        assert_eq!(status(method, path, "{}"), 403, "{method} {path}");
    }
}

#[test]
fn invalid_tokens_are_rejected() {
    let server = TestServer::new();
    for wanted in [
        json!({}),
        json!({"name": "x"}),
        json!({"name": "", "roles": []}),
        json!({"name": "a b", "roles": []}),
        json!({"name": "x", "roles": [], "user": "ann"}),
        json!({"name": "x", "roles": "staff"}),
        json!({"name": "x", "roles": [], "expires": 1}),
        json!({"name": "x", "roles": [], "expires_in_seconds": -1}),
    ] {
        assert_eq!(server.post("/_tokens", &wanted).status, 400, "{wanted}");
    }
    token(&server, &json!({"name": "x", "roles": []}));
    assert_eq!(server.post("/_tokens", &json!({"name": "x", "roles": []})).status, 409);
    assert_eq!(server.get("/_tokens").json()["tokens"].as_array().unwrap().len(), 1);
}
