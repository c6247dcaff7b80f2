//! Authorization matrix: every route and every operation of the wire protocol, requested by every kind of client. One
//! without a row in `matrix.txt` fails the test.

use std::collections::BTreeMap;

use serde_json::json;
use stemmadb_server::{Access, Config, Lockout, route_descriptions};

use crate::client::{ADMIN, TestServer, basic};

/// What a user gets whom an access rule restricts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Restricted {
    /// An answer from the documents that the user may read.
    ByRule,
    Refused,
    /// There is no access, or nothing depends on documents.
    NotApplicable,
}

/// The method of rows about operations of the wire protocol.
pub(crate) const WIRE: &str = "WIRE";

/// Reads the expected access to every route and operation from `matrix.txt`, which is maintained separately from the
/// route table.
pub(crate) fn expected() -> BTreeMap<(&'static str, &'static str), (Access, Restricted)> {
    use Access::{Anonymous, DatabaseAdmin, Member, Metrics, ServerAdmin, User};
    let rows = include_str!("matrix.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let row = |line: &'static str| {
        let mut words = line.split_whitespace();
        let [access, restricted, method, path] = std::array::from_fn(|_| words.next().unwrap());
        let access = match access {
            "anonymous" => Anonymous,
            "user" => User,
            "member" => Member,
            "db-admin" => DatabaseAdmin,
            "metrics" => Metrics,
            "server-admin" => ServerAdmin,
            other => panic!("nobody is {other}"),
        };
        let restricted = match restricted {
            "rule" => Restricted::ByRule,
            "refused" => Restricted::Refused,
            "-" => Restricted::NotApplicable,
            other => panic!("{other} is nothing that restricted users get"),
        };
        assert_eq!(access == Member, restricted != Restricted::NotApplicable, "{line}");
        ((method, path), (access, restricted))
    };
    rows.map(row).collect()
}

#[test]
fn every_route_has_a_row() {
    let expected = expected();
    let found: BTreeMap<_, _> =
        route_descriptions().into_iter().map(|route| ((route.method, route.path), route.access)).collect();
    for (route, access) in &found {
        let written = expected.get(route).map(|(access, _)| access);
        assert_eq!(written, Some(access), "{route:?}: write it into matrix.txt, if that is meant");
    }
    for route in expected.keys().filter(|(method, _)| *method != WIRE) {
        assert!(found.contains_key(route), "{route:?} is in matrix.txt and not in the table");
    }
}

/// A client: its name, the headers it sends, and its access.
struct TestClient {
    name: &'static str,
    headers: Vec<(&'static str, String)>,
    /// `None`: authentication fails.
    rank: Option<u8>,
}

/// A client that may only read metrics.
const METRICS_READER: &str = "API token that may only read metrics";

/// The access level that a route requires.
fn required_level(access: Access) -> u8 {
    match access {
        Access::Anonymous => 0,
        Access::User => 1,
        Access::Member => 2,
        Access::DatabaseAdmin => 3,
        Access::Metrics | Access::ServerAdmin => 4,
    }
}

fn all_clients(server: &TestServer) -> Vec<TestClient> {
    let by_password = |name: &'static str, user: &str, password: &str, rank| TestClient {
        name,
        headers: vec![("Authorization", basic(user, password))],
        rank,
    };
    let session = |user: &str, password: &str| {
        let body = json!({"name": user, "password": password}).to_string();
        let answer = server.send("POST", "/_session", &[("Content-Type", "application/json")], body.as_bytes());
        answer.header("set-cookie").unwrap().split(';').next().unwrap().to_owned()
    };
    let by_cookie = |name, cookie: String, rank| TestClient { name, headers: vec![("Cookie", cookie)], rank };
    let bearer = |name, token: &str| TestClient {
        name,
        headers: vec![("Authorization", format!("Bearer {token}"))],
        rank: None,
    };
    let token = |name: &str, asked: serde_json::Value| {
        let mut asked = asked;
        asked["name"] = json!(name);
        let made = server.post("/_tokens", &asked);
        assert_eq!(made.status, 201, "{made:?}");
        made.json()["token"].as_str().unwrap().to_owned()
    };
    let admin_token = token("root", json!({"roles": ["_admin"]}));
    let revoked = token("revoked", json!({"roles": ["_admin"]}));
    assert_eq!(server.delete("/_tokens/revoked").status, 200);
    let mut forged_token = admin_token.clone();
    let last = forged_token.pop().unwrap();
    forged_token.push(if last == '0' { '1' } else { '0' });
    let by_token = |name, token: &str, rank| TestClient { rank: Some(rank), ..bearer(name, token) };
    let mut forged = session("root-like", "root's").into_bytes();
    let at = forged.len() - 8;
    forged[at] = if forged[at] == b'x' { b'y' } else { b'x' };
    vec![
        TestClient { name: "anonymous", headers: Vec::new(), rank: Some(0) },
        by_password("wrong password", "member", "wrong", None),
        by_password("wrong password of the administrator", "admin", "wrong", None),
        by_password("unknown user", "nobody", "x", None),
        bearer(
            "forged token",
            "eyJhbGciOiJIUzI1NiJ9.\
            eyJzdWIiOiJhZG1pbiIsImV4cCI6NDAwMDAwMDAwMCwiX2NvdWNoZGIucm9sZXMiOlsiX2FkbWluIl19.AAAA",
        ),
        bearer(
            "token without algorithm",
            "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiIsImV4cCI6NDAwMDAwMDAwMCwiX2NvdWNoZGIucm9sZXMiOlsiX2FkbWluIl19.",
        ),
        bearer("forged API token", &forged_token),
        bearer("expired API token", &token("expired", json!({"roles": ["_admin"], "expires_in_seconds": 0}))),
        bearer("revoked API token", &revoked),
        bearer("API token of nobody", &token("nobody", json!({"user": "nobody"}))),
        by_token("API token of a stranger", &token("stranger", json!({"roles": ["staff"]})), 1),
        by_token(METRICS_READER, &token("watcher", json!({"roles": ["_metrics"]})), 1),
        by_token("API token of a member", &token("member", json!({"user": "member"})), 2),
        by_token("API token of the server's administrator", &admin_token, 4),
        // An invalid or expired session counts as anonymous.
        by_cookie("forged cookie", String::from_utf8(forged).unwrap(), Some(0)),
        by_cookie(
            "expired cookie",
            "AuthSession=YWRtaW46NUMwMDAwMDA6AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA".to_owned(),
            Some(0),
        ),
        TestClient {
            name: "headers of a proxy",
            headers: vec![
                ("X-Auth-CouchDB-UserName", "admin".to_owned()),
                ("X-Auth-CouchDB-Roles", "_admin".to_owned()),
            ],
            rank: Some(0),
        },
        by_password("not a member", "stranger", "stranger's", Some(1)),
        by_cookie("not a member, by cookie", session("stranger", "stranger's"), Some(1)),
        by_password("member", "member", "member's", Some(2)),
        by_cookie("member, by cookie", session("member", "member's"), Some(2)),
        by_password("database administrator", "boss", "boss's", Some(3)),
        by_password("server administrator", "admin", "secret", Some(4)),
    ]
}

fn prepare(server: &TestServer) {
    server.database("_users", &[]);
    for name in ["stranger", "member", "boss", "root-like"] {
        let password = format!("{}'s", name.trim_end_matches("-like"));
        let user = json!({"name": name, "type": "user", "roles": [], "password": password});
        assert_eq!(server.put(&format!("/_users/org.couchdb.user:{name}"), &user).status, 201);
    }
}

fn make_database(server: &TestServer) {
    if server.get("/matrix").status == 200 {
        return;
    }
    server.database("matrix", &[json!({"_id": "doc"})]);
    let security = json!({"members": {"names": ["member"], "roles": []}, "admins": {"names": ["boss"], "roles": []}});
    assert_eq!(server.put("/matrix/_security", &security).status, 200);
}

#[test]
fn access_matrix_holds_for_every_client_and_route() {
    // Incorrect passwords are tried at every route.
    let lockout = Lockout { tries: usize::MAX, ..Lockout::default() };
    let server = TestServer::with(|config| Config { lockout, ..config });
    prepare(&server);
    let all_clients = all_clients(&server);
    let mut count = 0;
    for route in route_descriptions() {
        let path = route
            .path
            .replace("{db}", "matrix")
            .replace("{doc}", "doc")
            .replace("{node}", "_local")
            .replace(['{', '}', '*'], "");
        // This feed would wait for the next change of the server's databases.
        let path = if path.ends_with("_updates") { format!("{path}?feed=normal") } else { path };
        for somebody in &all_clients {
            make_database(&server);
            let mut methods = vec![route.method];
            methods.extend((route.method == "GET").then_some("HEAD"));
            for method in methods {
                let mut headers: Vec<(&str, &str)> =
                    somebody.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
                // The body is not JSON: an authorized client gets an error, and nothing is changed.
                headers.push(("Content-Type", "application/json"));
                let answer = server.send(method, &path, &headers, b"[");
                let is_refused = matches!(answer.status, 401 | 403);
                let reported = format!("{} at {method} {path}: {}", somebody.name, answer.status);
                match somebody.rank {
                    // Login and logout do not require authentication.
                    None if route.path == "/_session" && method != "GET" && method != "HEAD" => {
                        assert!(!is_refused, "{reported}")
                    }
                    None => assert_eq!(answer.status, 401, "{reported}"),
                    Some(_) if somebody.name == METRICS_READER && route.access == Access::Metrics => {
                        assert!(!is_refused, "{reported}: {}", answer.text)
                    }
                    Some(rank) if rank >= required_level(route.access) => {
                        assert!(!is_refused, "{reported}: {}", answer.text)
                    }
                    Some(0) => assert_eq!(answer.status, 401, "{reported}"),
                    Some(_) => assert_eq!(answer.status, 403, "{reported}"),
                }
                count += 1;
            }
        }
    }
    assert!(count >= route_descriptions().len() * all_clients.len());
    assert_eq!(server.ask_as(ADMIN, "GET", "/_up", None).status, 200);
}

/// A user whom an access rule restricts may use the routes with `rule`, and no other ones of a database.
#[test]
fn access_matrix_holds_for_restricted_users() {
    let server = TestServer::new();
    prepare(&server);
    server.database("matrix", &[json!({"_id": "doc", "owner": "member"})]);
    let security = json!({
        "members": {"names": ["member"], "roles": []}, "admins": {"names": ["boss"], "roles": []},
        "access_rule": {"selector": {"owner": {"$user": "name"}}},
    });
    assert_eq!(server.put("/matrix/_security", &security).status, 200);
    let credentials = basic("member", "member's");
    let mut counts = [0, 0];
    for ((method, path), (_, restricted)) in expected() {
        let is_refused = match restricted {
            Restricted::ByRule => false,
            Restricted::Refused => true,
            Restricted::NotApplicable => continue,
        };
        if method == WIRE {
            continue;
        }
        let path = path.replace("{db}", "matrix").replace("{doc}", "doc").replace(['{', '}', '*'], "");
        let headers = [("Authorization", credentials.as_str()), ("Content-Type", "application/json")];
        let answer = server.send(method, &path, &headers, b"[");
        assert_eq!(
            matches!(answer.status, 401 | 403),
            is_refused,
            "{method} {path}: {} {}",
            answer.status,
            answer.text
        );
        if is_refused {
            assert!(answer.text.contains("access rule limits you"), "{method} {path}: {}", answer.text);
        }
        counts[usize::from(is_refused)] += 1;
    }
    assert!(counts[0] > 20 && counts[1] > 20, "{counts:?}");
}

#[test]
fn alternative_path_spellings_get_the_same_access() {
    let server = TestServer::new();
    prepare(&server);
    make_database(&server);
    for path in [
        "/matrix/",
        "/matrix/doc",
        "/matrix/_all_docs/",
        "/matrix/_all_docs",
        "/%6Datrix/doc",
        "/matrix/%5Fall_docs",
        "/matrix/_design%2Fx",
        "/matrix/_changes",
        "/matrix/_local%2Fx",
    ] {
        for method in ["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "COPY"] {
            let status = server.send(method, path, &[], b"").status;
            assert!(matches!(status, 401 | 405), "{method} {path}: {status}");
        }
    }
    for path in [
        "//matrix/doc",
        "/matrix//doc",
        "/./matrix/doc",
        "/x/../matrix/doc",
        "/MATRIX/doc",
        "/matrix/doc/../doc",
        "/_UP/../matrix",
    ] {
        let status = server.send("GET", path, &[], b"").status;
        assert!(matches!(status, 400 | 401 | 404 | 405), "{path}: {status}");
    }
    // A method override header is ignored.
    let answer = server.send(
        "GET",
        "/matrix/doc",
        &[("X-HTTP-Method-Override", "DELETE"), ("Authorization", &basic("member", "member's"))],
        b"",
    );
    assert_eq!(answer.status, 200);
}
