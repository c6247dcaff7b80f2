//! `_node/…` and `_metrics`: settings that clients change, and metrics for monitoring.

use serde_json::{Value, json};
use stemmadb_server::Config;

use crate::client::{ADMIN, TestServer, basic};

fn ask(server: &TestServer, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
    let answer = server.ask_as(ADMIN, method, path, body.as_ref());
    (answer.status, answer.json())
}

/// The allowed origin in the CORS response headers for a page of this site.
fn allowed(server: &TestServer, site: &str) -> Option<String> {
    let answer = server.send("GET", "/_up", &[("Origin", site)], b"");
    answer.header("access-control-allow-origin").map(str::to_owned)
}

#[test]
fn settings_are_read_and_changed_through_the_node_api() {
    needs_one_server!("settings belong to one process");
    let mut server = TestServer::new();
    assert_eq!(ask(&server, "GET", "/_node/_local", None), (200, json!({"name": "nonode@nohost"})));
    let (status, all) = ask(&server, "GET", "/_node/nonode@nohost/_config", None);
    assert_eq!((status, &all["couchdb"]["uuid"]), (200, &server.get("/").json()["uuid"]));
    assert_eq!((&all["cors"]["credentials"], &all["chttpd_auth"]["timeout"]), (&json!("false"), &json!("600")));
    assert_eq!(ask(&server, "GET", "/_node/_local/_config/cors", None).1["origins"], json!(""));
    let port = json!(server.address().port().to_string());
    assert_eq!(ask(&server, "GET", "/_node/_local/_config/chttpd/port", None), (200, port));
    let missing = ask(&server, "GET", "/_node/_local/_config/cors/nothing", None);
    assert_eq!((missing.0, &missing.1["reason"]), (404, &json!("unknown_config_value")));
    assert_eq!(ask(&server, "GET", "/_node/elsewhere/_config", None).0, 404);
    // What add-cors-to-couchdb and Fauxton send, with a specific site instead of all.
    let site = "https://app.example";
    assert_eq!(allowed(&server, site), None);
    for (path, value, before) in [
        ("httpd/enable_cors", "true", "true"),
        ("cors/origins", "https://app.example, https://b.example", ""),
        ("cors/credentials", "true", "false"),
        ("cors/methods", "GET, PUT, POST, HEAD, DELETE", "GET, HEAD, PUT, POST, DELETE, PATCH, COPY, OPTIONS"),
        ("couch_httpd_auth/timeout", "1200", "600"),
        ("chttpd/max_http_request_size", "2000", "67108864"),
        ("couchdb/max_attachment_size", "1000", "4294967296"),
    ] {
        let path = format!("/_node/_local/_config/{path}");
        assert_eq!(ask(&server, "PUT", &path, Some(json!(value))), (200, json!(before)), "{path}");
    }
    assert_eq!(allowed(&server, site).as_deref(), Some(site));
    let cookie = |server: &TestServer| {
        let body = json!({"name": "admin", "password": "secret"}).to_string();
        let answer = server.send("POST", "/_session", &[("Content-Type", "application/json")], body.as_bytes());
        answer.header("set-cookie").unwrap().to_owned()
    };
    assert!(cookie(&server).contains("Max-Age=1200"));
    server.database("sizes", &[]);
    let document = |bytes: usize| server.put("/sizes/a", &json!({"text": "x".repeat(bytes)})).status;
    assert_eq!((document(2000), document(1500)), (413, 201));
    let file = |bytes: usize| server.send_as_admin("PUT", "/sizes/b/f", &[], &vec![b'x'; bytes]).status;
    assert_eq!((file(1001), file(1000)), (413, 201));
    for path in ["chttpd/max_http_request_size", "couchdb/max_attachment_size"] {
        assert_eq!(ask(&server, "DELETE", &format!("/_node/_local/_config/{path}"), None).0, 200);
    }
    assert_eq!(server.put("/sizes/c", &json!({"text": "x".repeat(2000)})).status, 201);
    server.restart();
    assert_eq!(allowed(&server, "https://b.example").as_deref(), Some("https://b.example"), "the change is persistent");
    assert!(cookie(&server).contains("Max-Age=1200"));
    assert_eq!(
        ask(&server, "PUT", "/_node/_local/_config/chttpd/enable_cors", Some(json!("false"))),
        (200, json!("true"))
    );
    assert_eq!(allowed(&server, site), None);
    let before = (200, json!("https://app.example,https://b.example"));
    assert_eq!(ask(&server, "DELETE", "/_node/_local/_config/cors/origins", None), before);
    assert_eq!(ask(&server, "GET", "/_node/_local/_config/cors/origins", None), (200, json!("")));
    let path = "/_node/_local/_config/chttpd/require_valid_user";
    assert_eq!(ask(&server, "PUT", path, Some(json!(true))), (200, json!("false")));
    assert_eq!(server.ask_as(None, "GET", "/", None).status, 401);
}

#[test]
fn unchangeable_settings_are_rejected_with_a_reason() {
    needs_one_server!("settings belong to one process");
    let given = [("session_timeout", "--session-timeout".to_owned())].into_iter().collect();
    let server = TestServer::with(|config| Config { setting_sources: given, ..config });
    let put = |path: &str, value: Value| ask(&server, "PUT", &format!("/_node/_local/_config/{path}"), Some(value));
    for (path, value, reported) in [
        ("chttpd/port", json!("1234"), "can't be changed while the server runs"),
        ("couchdb/max_dbs_open", json!("1"), "can't be changed while the server runs"),
        ("cors/methods", json!("GET, BREW"), "can't be changed while the server runs"),
        ("couch_httpd_auth/timeout", json!("1"), "session_timeout is set by --session-timeout"),
        ("admins/admin", json!("other"), "The configuration names this administrator"),
    ] {
        let (status, answer) = put(path, value);
        assert_eq!(status, 403, "{path}: {answer}");
        assert!(answer["reason"].as_str().unwrap().contains(reported), "{path}: {answer}");
    }
    for (path, value) in [
        ("chttpd/require_valid_user", json!("maybe")),
        ("chttpd/require_valid_user", json!(["true"])),
        ("admins/x", json!("")),
        ("admins/x", json!("-pbkdf2-abc,def,10")),
        ("admins/a%3Ab", json!("x")),
    ] {
        assert_eq!(put(path, value.clone()).0, 400, "{path} {value}");
    }
    // Any site could act with its visitor's credentials.
    assert_eq!(put("cors/origins", json!("*")).0, 200);
    let (status, answer) = put("cors/credentials", json!("true"));
    assert_eq!(status, 400, "{answer}");
    assert_eq!(ask(&server, "GET", "/_node/_local/_config/cors/credentials", None).1, json!("false"));
    assert_eq!(ask(&server, "DELETE", "/_node/_local/_config/admins/nobody", None).0, 404);
    assert_eq!(ask(&server, "POST", "/_node/_local/_restart", None).0, 501);
}

#[test]
fn administrators_are_added_and_removed() {
    needs_one_server!("other servers accept a former password for up to a second");
    let mut server = TestServer::new();
    let path = "/_node/_local/_config/admins/ada";
    let as_ada =
        |server: &TestServer, password: &str| server.ask_as(Some(("ada", password)), "GET", "/_all_dbs", None).status;
    assert_eq!(ask(&server, "PUT", path, Some(json!("first"))), (200, json!("")));
    assert_eq!(as_ada(&server, "first"), 200);
    let shown = ask(&server, "GET", "/_node/_local/_config/admins", None).1;
    assert_eq!(shown, json!({"ada": "-hidden-", "admin": "-hidden-"}));
    let body = json!({"name": "ada", "password": "first"}).to_string();
    let session = server.send("POST", "/_session", &[("Content-Type", "application/json")], body.as_bytes());
    let cookie = session.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    server.restart();
    assert_eq!(as_ada(&server, "first"), 200, "the change is persistent");
    assert_eq!(ask(&server, "PUT", path, Some(json!("second"))).0, 200);
    assert_eq!((as_ada(&server, "first"), as_ada(&server, "second")), (401, 200));
    assert_eq!(server.send("GET", "/_all_dbs", &[("Cookie", &cookie)], b"").status, 401, "the password changed");
    assert_eq!(ask(&server, "DELETE", path, None).0, 200);
    assert_eq!(as_ada(&server, "second"), 401);
}

#[test]
fn last_administrator_cannot_be_removed() {
    needs_one_server!("servers of a cluster have a configured administrator");
    let server = TestServer::with(|config| Config { administrator: None, ..config });
    let password = server.generated_password().unwrap();
    let me = Some(("admin", password.as_str()));
    assert_eq!(server.ask_as(me, "DELETE", "/_node/_local/_config/admins/admin", None).status, 403);
    let changed = server.ask_as(me, "PUT", "/_node/_local/_config/admins/admin", Some(&json!("chosen")));
    assert_eq!(changed.status, 200, "{changed:?}");
    assert_eq!(server.ask_as(Some(("admin", "chosen")), "GET", "/_all_dbs", None).status, 200);
}

/// The value of a metrics sample, by the beginning of its line.
fn sample(page: &str, beginning: &str) -> Option<f64> {
    let line = page.lines().find(|line| line.strip_prefix(beginning).is_some_and(|rest| rest.starts_with(' ')));
    line.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

#[test]
fn metrics_count_requests() {
    needs_one_server!("metrics are those of one process");
    let server = TestServer::new();
    server.database("db", &[json!({"_id": "a"}), json!({"_id": "b"})]);
    assert_eq!(server.get("/db/a").status, 200);
    assert_eq!(server.get("/db/a").status, 200);
    assert_eq!(server.get("/db/secret-name").status, 404);
    assert_eq!(server.get("/no/such/route/at/all").status, 404);
    let answer = server.get("/_metrics");
    assert!(answer.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"), "{answer:?}");
    let page = answer.text;
    for (beginning, value) in [
        ("stemma_requests_total{route=\"/{db}/{doc}\",method=\"GET\",status=\"200\"}", 2.0),
        ("stemma_requests_total{route=\"/{db}/{doc}\",method=\"GET\",status=\"404\"}", 1.0),
        ("stemma_request_seconds_count{route=\"/{db}/{doc}\",method=\"GET\"}", 3.0),
        ("stemma_databases", 1.0),
        ("stemma_databases_open", 1.0),
        ("stemma_script_workers", 0.0),
        ("stemma_changes_total", 2.0),
    ] {
        assert_eq!(sample(&page, beginning), Some(value), "{beginning} in\n{page}");
    }
    assert!(sample(&page, "stemma_log_writes_total").unwrap() >= 1.0, "{page}");
    assert!(sample(&page, "stemma_connections").unwrap() >= 1.0, "{page}");
    assert!(!page.contains("secret-name"), "client input is not used as a label");
    // Every line is a comment, or a sample of a declared metric family.
    let mut families = Vec::new();
    for line in page.lines() {
        match line.strip_prefix("# TYPE ") {
            Some(family) => families.push(family.split(' ').next().unwrap()),
            None if line.starts_with("# HELP ") => {}
            None => {
                let name = line.split(['{', ' ']).next().unwrap();
                assert!(families.iter().any(|family| name.starts_with(family)), "{line}");
                assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
            }
        }
    }
    let by_node = server.get("/_node/_local/_prometheus");
    assert!(sample(&by_node.text, "stemma_databases") == Some(1.0), "{by_node:?}");
    let stats = server.get("/_node/_local/_stats").json();
    assert_eq!(stats["couchdb"]["httpd_status_codes"]["404"]["value"], json!(2));
    assert_eq!(server.get("/_node/_local/_stats/couchdb/open_databases").json()["value"], json!(1));
    assert_eq!(server.get("/_node/_local/_stats/couchdb/nothing").status, 404);
    assert!(server.get("/_node/_local/_system").json()["uptime"].is_u64());
}

#[test]
fn metrics_role_grants_metrics_only() {
    let server = TestServer::new();
    server.database("db", &[]);
    let made = server.post("/_tokens", &json!({"name": "prometheus", "roles": ["_metrics"], "read_only": true}));
    let bearer = format!("Bearer {}", made.json()["token"].as_str().unwrap());
    let status = |path: &str| server.send("GET", path, &[("Authorization", &bearer)], b"").status;
    for path in ["/_metrics", "/_node/_local/_prometheus", "/_node/_local/_stats", "/_node/_local/_system"] {
        assert_eq!(status(path), 200, "{path}");
    }
    for path in ["/_all_dbs", "/db", "/_node/_local/_config", "/_tokens"] {
        assert_eq!(status(path), 403, "{path}");
    }
    // A user document can't grant that role.
    server.database("_users", &[]);
    let user = json!({"name": "eve", "type": "user", "roles": ["_metrics"], "password": "x"});
    assert_eq!(server.put("/_users/org.couchdb.user:eve", &user).status, 403);
    let user = json!({"name": "eve", "type": "user", "roles": ["staff"], "password": "x"});
    assert_eq!(server.put("/_users/org.couchdb.user:eve", &user).status, 201);
    assert_eq!(server.send("GET", "/_metrics", &[("Authorization", &basic("eve", "x"))], b"").status, 403);
}
