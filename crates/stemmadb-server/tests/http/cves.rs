//! CouchDB's security advisories, one test each: the vulnerability does not exist here.
//!
//! | CVE | vulnerability in CouchDB | why it does not apply here |
//! |---|---|---|
//! | 2010-0009 | password comparison leaked timing | hashes are compared in constant time; unknown names take as long |
//! | 2010-2234 | cross-site requests wrote as the administrator | the origin is checked for cookies and passwords |
//! | 2010-3854 | database names ran as scripts in Futon | responses are JSON; the dashboard has a policy |
//! | 2012-5641 | `..\` in a path read any file | files of the dashboard are looked up by name |
//! | 2012-5649 | JSONP ran in other pages | there is no `callback` parameter |
//! | 2012-5650 | Futon's tests ran scripts from a link | only configured pages are served |
//! | 2014-2668 | `_uuids?count=` exhausted memory | at most 1,000 |
//! | 2017-12635 | duplicate `roles` made administrators | duplicate names are rejected |
//! | 2017-12636 | settings named commands to run | no setting over HTTP names a program or a file |
//! | 2018-8007 | line breaks in settings added settings | values are stored as values, never as lines of a file |
//! | 2018-11769 | more settings that named files and programs | only known settings can be changed |
//! | 2018-17188 | the general case of the previous three | programs are configured only at startup, by the operator |
//! | 2020-1955 | an option for `_up` disabled authentication | routes without authentication are a fixed table |
//! | 2021-38295 | attached pages ran with the reader's rights | they are served with a sandbox policy |
//! | 2022-24706 | a known cookie opened a second port | there is no second port; each server has its own secret |
//! | 2023-26268 | design documents with the same name shared state | a context belongs to one database and revision |
//! | 2023-45725 | functions saw cookies and passwords | headers with credentials are not passed to functions |

use serde_json::{Value, json};
use stemmadb_server::script::ScriptLimits;
use stemmadb_server::{Config, Cors, Lockout, route_descriptions};

use crate::auth::prepare;
use crate::client::{Response, TestServer, basic};

fn send_json(server: &TestServer, method: &str, path: &str, body: &str) -> Response {
    server.send_as_admin(method, path, &[("Content-Type", "application/json")], body.as_bytes())
}

#[test]
fn cve_2010_0009_time_of_comparison() {
    let lockout = Lockout { tries: 1_000_000, ..Lockout::default() };
    let server = TestServer::with(|config| Config { lockout, ..config });
    prepare(&server);
    // Existing and unknown users get the same response. That both take the same time follows from what is hashed, not
    // from a clock: see `accounts::password_verifier`.
    let answer = |name: &str| server.ask_as(Some((name, "wrong")), "GET", "/db/d", None);
    let (known, unknown) = (answer("ann"), answer("nobody"));
    assert_eq!((known.status, &known.text), (401, &unknown.text));
    assert_eq!(known.status, unknown.status);
    // Secrets are compared by constant-time functions.
    for (name, source) in [
        ("password", include_str!("../../src/auth/password.rs")),
        ("token", include_str!("../../src/accounts/token.rs")),
        ("cookie", include_str!("../../src/accounts/cookie.rs")),
    ] {
        assert!(source.contains(".ct_eq(") || source.contains(".verify_slice("), "{name}");
    }
}

#[test]
fn cve_2010_2234_pages_of_other_sites() {
    let server = TestServer::new();
    prepare(&server);
    let functions = json!({"updates": {"u": "function(doc, req) { return [{_id: 'evil'}, 'done'] }"}});
    server.design("db", "d", functions);
    let log_in = json!({"name": "ann", "password": "ann's"}).to_string();
    let session = server.send("POST", "/_session", &[("Content-Type", "application/json")], log_in.as_bytes());
    let cookie = session.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    // Credentials that a browser sends without asking: cookies, and a password entered earlier.
    for credentials in [("Cookie", cookie), ("Authorization", basic("admin", "secret"))] {
        for (method, path, body) in [
            ("POST", "/db/_design/d/_update/u", "a=b"),
            ("POST", "/db/_compact", ""),
            ("POST", "/db", "{\"_id\": \"evil\"}"),
            ("POST", "/db/_bulk_docs", "{\"docs\": [{\"_id\": \"evil\"}]}"),
            ("PUT", "/evil", ""),
            ("DELETE", "/db", ""),
        ] {
            for page in [("Origin", "https://evil.example"), ("Origin", "null"), ("Sec-Fetch-Site", "cross-site")] {
                for kind in ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=b"] {
                    let headers = [(credentials.0, credentials.1.as_str()), page, ("Content-Type", kind)];
                    let answer = server.send(method, path, &headers, body.as_bytes());
                    assert_eq!(answer.status, 403, "{method} {path} {page:?} {kind}: {answer:?}");
                }
            }
        }
    }
    assert_eq!(server.get("/db/evil").status, 404);
    assert_eq!(server.get("/evil").status, 404);
    wildcard_cors_origin_does_not_allow_cookies();
    // The same request without a foreign origin is accepted.
    let credentials = basic("admin", "secret");
    let own = [("Authorization", credentials.as_str()), ("Origin", "http://localhost"), ("Content-Type", "text/plain")];
    assert_eq!(server.send("POST", "/db/_design/d/_update/u", &own, b"a=b").status, 201);
}

/// The origin `*` is for requests that carry explicit credentials, not for cookies that a browser sends automatically.
fn wildcard_cors_origin_does_not_allow_cookies() {
    let cors = Cors { origins: vec!["*".to_owned()], ..Cors::default() };
    let server = TestServer::with(|config| Config { cors, ..config });
    prepare(&server);
    let log_in = json!({"name": "ann", "password": "ann's"}).to_string();
    let session = server.send("POST", "/_session", &[("Content-Type", "application/json")], log_in.as_bytes());
    let cookie = session.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let password = basic("ann", "ann's");
    for (credentials, status) in [(("Cookie", cookie.as_str()), 403), (("Authorization", password.as_str()), 201)] {
        let headers = [credentials, ("Origin", "https://evil.example"), ("Content-Type", "application/json")];
        assert_eq!(server.send("POST", "/db", &headers, b"{}").status, status, "{credentials:?}");
    }
}

const ENCODED_SCRIPT: &str = "%3Cscript%3Ealert(1)%3C%2Fscript%3E";

#[test]
fn cve_2010_3854_names_as_scripts() {
    let server = TestServer::new();
    server.database("db", &[json!({"_id": "<script>alert(1)</script>"})]);
    for path in [
        format!("/{ENCODED_SCRIPT}"),
        format!("/db/{ENCODED_SCRIPT}"),
        format!("/db/_design/{ENCODED_SCRIPT}/_view/{ENCODED_SCRIPT}"),
        format!("/db/_all_docs?startkey={ENCODED_SCRIPT}"),
        format!("/db/_all_docs?limit={ENCODED_SCRIPT}"),
        format!("/_utils/{ENCODED_SCRIPT}"),
        format!("/_uuids?count={ENCODED_SCRIPT}"),
        format!("/_session?next={ENCODED_SCRIPT}"),
    ] {
        let answer = server.send_as_admin("GET", &path, &[("Accept", "text/html")], b"");
        assert_eq!(answer.header("content-type"), Some("application/json"), "{path}: {answer:?}");
    }
    let page = server.ask_as(None, "GET", "/_utils/", None);
    let policy = page.header("content-security-policy").unwrap_or_default();
    assert!(policy.contains("default-src 'self'") && !policy.contains("script-src 'self' 'unsafe-inline'"), "{policy}");
}

/// A server with a dashboard directory, beside a file that is not part of it.
fn with_dashboard(directory: &std::path::Path) -> TestServer {
    let dashboard = directory.join("dashboard");
    std::fs::create_dir_all(dashboard.join("js")).unwrap();
    std::fs::write(dashboard.join("index.html"), "a page").unwrap();
    std::fs::write(dashboard.join("js/a.js"), "a script").unwrap();
    std::fs::write(directory.join("secret"), "hush").unwrap();
    TestServer::with(|config| Config { dashboard: Some(dashboard), ..config })
}

#[test]
fn cve_2012_5641_paths_upwards() {
    let directory = tempfile::tempdir().unwrap();
    let server = with_dashboard(directory.path());
    assert_eq!(server.ask_as(None, "GET", "/_utils/js/a.js", None).text, "a script");
    for up in ["..", "%2e%2e", "..%5c", "..%2f", "%2e%2e%2f", "..%5c..%5c", "%252e%252e", "..%c0%af", "%5c..", "js/.."]
    {
        for path in
            [format!("/_utils/{up}/secret"), format!("/_utils/{up}secret"), format!("/_utils/js/{up}/{up}/secret")]
        {
            let answer = server.ask_as(None, "GET", &path, None);
            assert!(matches!(answer.status, 400 | 404), "{path}: {answer:?}");
            assert!(!answer.text.contains("hush"), "{path}");
        }
    }
    let absolute = format!("/_utils/{}", directory.path().join("secret").display().to_string().replace('/', "%2f"));
    assert_eq!(server.ask_as(None, "GET", &absolute, None).status, 404);
}

#[test]
fn cve_2012_5649_jsonp() {
    let server = TestServer::new();
    server.database("db", &[json!({"_id": "a"})]);
    for path in [
        "/?callback=evil",
        "/db/a?callback=evil",
        "/db/_all_docs?callback=evil",
        "/db/_changes?callback=evil&jsonp=evil",
    ] {
        let answer = server.get(path);
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")), "{path}");
        assert!(answer.json().is_object() && !answer.text.contains("evil"), "{path}: {answer:?}");
    }
}

#[test]
fn cve_2012_5650_pages_of_tests() {
    let directory = tempfile::tempdir().unwrap();
    for server in [TestServer::new(), with_dashboard(directory.path())] {
        for path in
            ["couch_tests.html", "couch_tests.html?evil", "script/couch_tests.js", "verify_install.html", "js/..", "js"]
        {
            let answer = server.ask_as(None, "GET", &format!("/_utils/{path}"), None);
            assert_eq!((answer.status, answer.header("content-type")), (404, Some("application/json")), "{path}");
        }
    }
}

#[test]
fn cve_2014_2668_count_of_uuids() {
    let server = TestServer::new();
    for count in ["1001", "1000000000", "9999999999999999999", "18446744073709551616", "-1", "1e3", "", "%31%30%30%31"]
    {
        let answer = server.ask_as(None, "GET", &format!("/_uuids?count={count}"), None);
        assert_eq!(answer.status, 400, "{count}: {}", answer.text.len());
    }
    let most = server.ask_as(None, "GET", "/_uuids?count=1000", None).json();
    assert_eq!(most["uuids"].as_array().unwrap().len(), 1000);
}

#[test]
fn cve_2017_12635_duplicate_roles() {
    let server = TestServer::new();
    prepare(&server);
    let credentials = basic("ann", "ann's");
    let write = |method: &str, path: &str, body: &str| {
        let headers = [("Authorization", credentials.as_str()), ("Content-Type", "application/json")];
        server.send(method, path, &headers, body.as_bytes())
    };
    let revision = server.get("/_users/org.couchdb.user:ann").json()["_rev"].as_str().unwrap().to_owned();
    for twice in [
        r#""roles":["_admin"],"roles":["staff"]"#,
        r#""roles":["staff"],"roles":["_admin"]"#,
        r#""ro\u006ces":["_admin"],"roles":["staff"]"#,
        r#""roles":["staff"],"\u0072oles":["_admin"]"#,
    ] {
        let user = format!(
            r#"{{"_id":"org.couchdb.user:ann","_rev":"{revision}","name":"ann","type":"user","password":"x",{twice}}}"#
        );
        for (method, path, body) in [
            ("PUT", "/_users/org.couchdb.user:ann", user.clone()),
            ("POST", "/_users", user.clone()),
            ("POST", "/_users/_bulk_docs", format!(r#"{{"docs":[{user}]}}"#)),
            ("POST", "/_users/_bulk_docs", format!(r#"{{"docs":[{user}],"new_edits":false}}"#)),
        ] {
            // A client that is not an administrator may be refused before the body is read.
            assert!(matches!(write(method, path, &body).status, 400 | 403), "{path} {twice}");
            assert_eq!(send_json(&server, method, path, &body).status, 400, "{path} {twice}");
        }
    }
    // Even a single role is refused from a client that is not an administrator, and no role in a user document makes a
    // server administrator.
    let once = format!(r#"{{"_rev":"{revision}","name":"ann","type":"user","roles":["_admin"],"password":"x"}}"#);
    assert_eq!(write("PUT", "/_users/org.couchdb.user:ann", &once).status, 403);
    assert_eq!(send_json(&server, "PUT", "/_users/org.couchdb.user:ann", &once).status, 403);
    let session = server.ask_as(Some(("ann", "ann's")), "GET", "/_session", None).json();
    assert_eq!(session["userCtx"]["roles"], json!(["staff"]));
}

/// Checks that a setting can't be changed over HTTP.
fn assert_setting_rejected(server: &TestServer, section: &str, key: &str, value: &str) {
    for node in ["_local", "nonode@nohost"] {
        let path = format!("/_node/{node}/_config/{section}/{key}");
        let answer = send_json(server, "PUT", &path, &json!(value).to_string());
        assert!(matches!(answer.status, 400 | 403 | 404), "{path} {value}: {answer:?}");
        assert!(server.get(&path).status == 404 || !server.get(&path).text.contains(value), "{path}");
    }
    let path = format!("/_config/{section}/{key}");
    assert!(matches!(send_json(server, "PUT", &path, &json!(value).to_string()).status, 400 | 404 | 405), "{path}");
}

#[test]
fn cve_2017_12636_settings_that_run_commands() {
    let server = TestServer::new();
    for section in ["query_servers", "native_query_servers", "os_daemons", "external", "update_notification"] {
        assert_setting_rejected(&server, section, "cmd", "/bin/sh -c id");
    }
}

#[test]
fn cve_2018_8007_settings_within_settings() {
    let mut server = TestServer::new();
    for lines in ["true\n[os_daemons]\nx = /bin/id", "true\r\n[query_servers]\r\ncmd=/bin/id", "600\n[admins]\neve = x"]
    {
        for (section, key) in [("cors", "credentials"), ("chttpd", "require_valid_user"), ("chttpd_auth", "timeout")] {
            let path = format!("/_node/_local/_config/{section}/{key}");
            let answer = send_json(&server, "PUT", &path, &json!(lines).to_string());
            assert_eq!(answer.status, 400, "{path} {lines:?}: {answer:?}");
        }
    }
    // A list accepts any text as an element.
    let origins = "https://a.example\n[admins]\neve = x";
    send_json(&server, "PUT", "/_node/_local/_config/cors/origins", &json!(origins).to_string());
    server.restart();
    let admins = server.get("/_node/_local/_config/admins").json();
    assert_eq!(admins.as_object().unwrap().keys().collect::<Vec<_>>(), ["admin"]);
    assert_eq!(server.get("/_node/_local/_config/os_daemons").json(), json!({}));
}

#[test]
fn cve_2018_11769_settings_that_name_files() {
    let server = TestServer::new();
    for (section, key) in [
        ("couchdb", "database_dir"),
        ("couchdb", "view_index_dir"),
        ("couchdb", "util_driver_dir"),
        ("couchdb", "uri_file"),
        ("log", "file"),
        ("log", "writer"),
        ("vm", "args"),
        ("httpd_global_handlers", "_x"),
        ("httpd", "secure_rewrites"),
        ("ssl", "key_file"),
        ("chttpd", "authentication_handlers"),
        ("couch_httpd_auth", "authentication_db"),
    ] {
        assert_setting_rejected(&server, section, key, "/etc/passwd");
    }
}

#[test]
fn cve_2018_17188_settings_of_what_runs() {
    let server = TestServer::new();
    let settings = server.get("/_node/_local/_config").json();
    let mut count = 0;
    for (section, keys) in settings.as_object().unwrap() {
        for (key, value) in keys.as_object().unwrap().iter().filter(|_| section != "admins") {
            count += 1;
            assert!(!value.as_str().unwrap().contains('/'), "{section}/{key} names a file: {value}");
            let path = format!("/_node/_local/_config/{section}/{key}");
            let answer = send_json(&server, "PUT", &path, "\"/bin/sh\"");
            let is_list = (section.as_str(), key.as_str()) == ("cors", "origins");
            assert!(matches!(answer.status, 400 | 403) || is_list, "{path}: {answer:?}");
        }
    }
    assert!(count > 10, "the settings were not found");
    // The program that runs scripts is not a setting either.
    for key in ["scripts", "script_worker", "scripts.program"] {
        assert_setting_rejected(&server, "stemma", key, "/bin/sh");
    }
}

#[test]
fn cve_2020_1955_required_authentication() {
    let server = TestServer::with(|config| Config { require_valid_user: true, ..config });
    prepare(&server);
    for name in ["require_valid_user_except_for_up", "require_valid_user_except_for__up"] {
        assert_setting_rejected(&server, "chttpd", name, "true");
    }
    for route in route_descriptions() {
        let path = route.path.replace("{db}", "db").replace(['{', '}', '*'], "");
        let is_free = matches!(route.path, "/_up" | "/_session" | "/_wire");
        let answer = server.send(route.method, &path, &[], b"");
        assert_eq!(answer.status != 401, is_free, "{} {path}: {answer:?}", route.method);
        for around in
            [format!("/_up/..{path}"), format!("//{}", path.trim_start_matches('/')), format!("/_up%2f..{path}")]
        {
            let answer = server.send(route.method, &around, &[], b"");
            assert!(answer.status != 200 || is_free, "{} {around}: {answer:?}", route.method);
        }
    }
}

#[test]
fn cve_2021_38295_pages_as_files() {
    let server = TestServer::new();
    server.database("db", &[json!({"_id": "d"})]);
    for (name, kind) in
        [("page", "text/html"), ("picture", "image/svg+xml"), ("x", "application/xhtml+xml"), ("y", "text/xml")]
    {
        let page = b"<script xmlns='http://www.w3.org/1999/xhtml'>fetch('/_users')</script>";
        let written = server.send_as_admin("PUT", &format!("/db/{name}/f"), &[("Content-Type", kind)], page);
        assert_eq!(written.status, 201);
        for range in ["bytes=0-", "bytes=1-5"] {
            let answer = server.send_as_admin("GET", &format!("/db/{name}/f"), &[("Range", range)], b"");
            assert_eq!(answer.header("content-security-policy"), Some("sandbox"), "{kind}: {answer:?}");
            assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{kind}: {answer:?}");
        }
    }
    // An attachment of a design document, which CouchApps consist of, is no exception, and neither is the response of a
    // function.
    server.design("db", "d", json!({"updates": {"u": "function(doc, req) { return [null, '<script>1</script>'] }"}}));
    let revision = server.get("/db/_design/d").json()["_rev"].as_str().unwrap().to_owned();
    let path = format!("/db/_design/d/index.html?rev={revision}");
    assert_eq!(server.send_as_admin("PUT", &path, &[("Content-Type", "text/html")], b"<script>1</script>").status, 201);
    for answer in
        [server.get("/db/_design/d/index.html"), server.send_as_admin("POST", "/db/_design/d/_update/u", &[], b"")]
    {
        assert_eq!(answer.header("content-security-policy"), Some("sandbox"), "{answer:?}");
    }
}

/// The TCP ports that this process listens on.
fn listening() -> Vec<u16> {
    let own: std::collections::BTreeSet<String> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok()?.to_str().map(str::to_owned))
        .filter_map(|link| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let tables =
        ["/proc/self/net/tcp", "/proc/self/net/tcp6"].map(|table| std::fs::read_to_string(table).unwrap_or_default());
    let rows = tables.iter().flat_map(|table| table.lines().skip(1));
    let ports =
        rows.map(|row| row.split_whitespace().collect::<Vec<_>>()).filter(|row| row[3] == "0A" && own.contains(row[9]));
    ports.map(|row| u16::from_str_radix(row[1].rsplit(':').next().unwrap(), 16).unwrap()).collect()
}

#[test]
fn cve_2022_24706_known_secret() {
    needs_one_server!("it counts the listening sockets of one server");
    let (one, other) = (TestServer::new(), TestServer::new());
    let log_in = |server: &TestServer| {
        let body = json!({"name": "admin", "password": "secret"}).to_string();
        let answer = server.send("POST", "/_session", &[("Content-Type", "application/json")], body.as_bytes());
        answer.header("set-cookie").unwrap().split(';').next().unwrap().to_owned()
    };
    let name = |server: &TestServer, cookie: &str| {
        server.send("GET", "/_session", &[("Cookie", cookie)], b"").json()["userCtx"]["name"].clone()
    };
    let cookie = log_in(&one);
    assert_eq!(name(&one, &cookie), "admin");
    assert_eq!(name(&other, &cookie), Value::Null, "a different server with the same name and password");
    // Servers of other tests may start and stop; any other port would be a second port of this server.
    let known = [one.address().port(), other.address().port()];
    assert!(known.iter().all(|port| listening().contains(port)));
    if let Ok(text) = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cves::single_server_process", "--ignored", "--nocapture"])
        .output()
    {
        let said = String::from_utf8_lossy(&text.stdout).into_owned();
        assert!(said.contains("ports: 1\n"), "{said}");
    }
}

/// Runs one server alone in a process, for the test above.
#[test]
#[ignore = "it is run by cve_2022_24706_known_secret"]
fn single_server_process() {
    let server = TestServer::new();
    server.database("db", &[]);
    println!("ports: {}", listening().len());
}

#[test]
fn cve_2023_26268_contexts_of_one_name() {
    needs_one_server!("the databases share a worker");
    let bounds = ScriptLimits { worker_count: 1, ..ScriptLimits::default() };
    let server = TestServer::with(|config| Config { script_limits: bounds, ..config });
    let design = json!({
        "views": {
            "lib": {"kept": "exports.kept = []"},
            "v": {"map": "function(doc) { var kept = require('views/lib/kept').kept; emit(kept.length); \
            kept.push(doc.secret) }"},
        },
        "filters": {"f": "function(doc, req) { var kept = require('views/lib/kept').kept; kept.push(1); return \
        kept.length == 1 }"},
    });
    for name in ["one", "two"] {
        server.database(name, &[json!({"_id": "a", "secret": name})]);
        server.design(name, "same", design.clone());
    }
    for _ in 0..2 {
        for name in ["one", "two"] {
            let rows = server.get(&format!("/{name}/_design/same/_view/v")).json();
            assert_eq!(rows["rows"][0]["key"], 0, "{name} sees what another left");
            let feed = server.get(&format!("/{name}/_changes?filter=same/f")).json();
            assert!(!feed["results"].as_array().unwrap().is_empty(), "{name} sees what another left: {feed}");
        }
    }
}

#[test]
fn cve_2023_45725_headers_with_secrets() {
    let server = TestServer::new();
    prepare(&server);
    let tell = "function(doc, req) { return [null, {json: {headers: req.headers, cookie: req.cookie, all: \
    JSON.stringify(req)}}] }";
    let filter = "function(doc, req) { throw {forbidden: JSON.stringify(req)} }";
    let render = "function(given, req) { return JSON.stringify(req) }";
    let rewrite = "function(req) { return {code: 200, body: JSON.stringify(req)} }";
    let rendering = json!({"shows": {"s": render}, "lists": {"l": render}, "rewrites": rewrite});
    let mut design = json!({"updates": {"u": tell}, "filters": {"f": filter}});
    design.as_object_mut().unwrap().extend(rendering.as_object().unwrap().clone());
    server.design("db", "d", design);
    let log_in = json!({"name": "ann", "password": "ann's"}).to_string();
    let session = server.send("POST", "/_session", &[("Content-Type", "application/json")], log_in.as_bytes());
    let cookie = session.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let secret = cookie.split('=').nth(1).unwrap().to_owned();
    let password = basic("ann", "ann's");
    for headers in [
        vec![("Cookie", cookie.as_str())],
        vec![("Authorization", password.as_str()), ("X-Api-Key", "kept")],
        vec![("Authorization", password.as_str()), ("Proxy-Authorization", "Basic hush"), ("Cookie", "other=hush")],
    ] {
        let answer = server.send("POST", "/db/_design/d/_update/u", &headers, b"");
        assert_eq!(answer.status, 200, "{answer:?}");
        for hidden in [secret.as_str(), &password["Basic ".len()..], "hush"] {
            assert!(!answer.text.contains(hidden), "{hidden}: {}", answer.text);
        }
        for path in ["/db/_design/d/_show/s", "/db/_design/d/_list/l/_all_docs", "/db/_design/d/_rewrite/x"] {
            let answer = server.send("GET", path, &headers, b"");
            assert_eq!(answer.status, 200, "{path}: {answer:?}");
            for hidden in [secret.as_str(), &password["Basic ".len()..], "hush"] {
                assert!(!answer.text.contains(hidden), "{path}: {hidden}: {}", answer.text);
            }
        }
        let feed = server.send("GET", "/db/_changes?filter=d/f", &headers, b"");
        for hidden in [secret.as_str(), &password["Basic ".len()..], "hush"] {
            assert!(!feed.text.contains(hidden), "{hidden}: {}", feed.text);
        }
    }
}
