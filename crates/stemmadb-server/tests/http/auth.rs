//! Sessions, passwords, tokens, users, and cross-site requests.

use serde_json::{Value, json};
use stemmadb_server::{Config, Cors, Lockout, ProxySecret};

use crate::client::{ADMIN, Response, TestServer, basic};

fn with_users() -> TestServer {
    let server = TestServer::new();
    prepare(&server);
    server
}

pub(crate) fn prepare(server: &TestServer) {
    server.database("_users", &[]);
    server.database("db", &[json!({"_id": "d"})]);
    for (name, roles) in [("ann", json!(["staff"])), ("eve", json!([]))] {
        let user = json!({"name": name, "type": "user", "roles": roles, "password": format!("{name}'s")});
        assert_eq!(server.put(&format!("/_users/org.couchdb.user:{name}"), &user).status, 201);
    }
    let security = json!({"members": {"names": ["ann"], "roles": []}, "admins": {"names": [], "roles": ["staff"]}});
    assert_eq!(server.put("/db/_security", &security).status, 200);
}

fn log_in(server: &TestServer, name: &str, password: &str) -> Response {
    let body = json!({"name": name, "password": password}).to_string();
    server.send("POST", "/_session", &[("Content-Type", "application/json")], body.as_bytes())
}

/// The cookie that a response sets, in the form in which it is sent back.
fn cookie(answer: &Response) -> String {
    answer.header("set-cookie").unwrap_or_else(|| panic!("{answer:?}")).split(';').next().unwrap().to_owned()
}

#[test]
fn local_documents_of_the_server_are_changed_by_administrators_only() {
    let server = with_users();
    let security = json!({"members": {"names": ["eve"], "roles": []}, "admins": {"names": [], "roles": ["staff"]}});
    assert_eq!(server.put("/db/_security", &security).status, 200);
    for (name, id, status) in [
        ("eve", "_local/trigger-mail", 403),
        ("eve", "_local/wire/1", 403),
        ("eve", "_local/checkpoint", 201),
        ("ann", "_local/trigger-mail", 201),
    ] {
        let authorization = basic(name, &format!("{name}'s"));
        let headers = [("Authorization", authorization.as_str()), ("Content-Type", "application/json")];
        let answer = server.send("PUT", &format!("/db/{id}"), &headers, br#"{"sequence": 0}"#);
        assert_eq!(answer.status, status, "{name} {id}: {}", answer.text);
        let bulk = json!({"docs": [{"_id": id, "sequence": 0}]}).to_string();
        let row = server.send("POST", "/db/_bulk_docs", &headers, bulk.as_bytes()).json()[0].clone();
        assert_eq!(row["error"] == "forbidden", status == 403, "{name} {id}: {row}");
        let deleted = server.send("DELETE", &format!("/db/{id}"), &headers, b"");
        assert_eq!(deleted.status == 403, status == 403, "{name} {id}: {}", deleted.text);
    }
}

#[test]
fn session_begins_continues_and_ends() {
    let server = with_users();
    let answer = log_in(&server, "ann", "ann's");
    assert_eq!((answer.status, answer.json()), (200, json!({"ok": true, "name": "ann", "roles": ["staff"]})));
    let set = answer.header("set-cookie").unwrap();
    assert!(
        set.contains("Max-Age=600")
            && set.contains("Path=/")
            && set.contains("HttpOnly")
            && set.contains("SameSite=Lax"),
        "{set}"
    );
    let cookie = cookie(&answer);
    let session = server.send("GET", "/_session", &[("Cookie", &cookie)], b"").json();
    assert_eq!(session["userCtx"], json!({"name": "ann", "roles": ["staff"]}));
    assert_eq!((&session["info"]["authenticated"], &session["ok"]), (&json!("cookie"), &json!(true)));
    assert_eq!(server.send("GET", "/db/d", &[("Cookie", &format!("other=1; {cookie}"))], b"").status, 200);
    let ended = server.send("DELETE", "/_session", &[("Cookie", &cookie)], b"");
    assert!(ended.header("set-cookie").unwrap().starts_with("AuthSession=; "), "{ended:?}");
    // As in CouchDB, the server does not remember sessions: the cookie stays valid until it expires.
    assert_eq!(server.send("GET", "/db/d", &[("Cookie", &cookie)], b"").status, 200);
    assert_eq!(server.send("GET", "/db/d", &[], b"").status, 401);
    let nobody = server.send("GET", "/_session", &[], b"").json();
    assert_eq!((&nobody["userCtx"]["name"], &nobody["info"]["authenticated"]), (&Value::Null, &Value::Null));
    // A form, as CouchDB's replicator sends it, and the administrator.
    let form = server.send(
        "POST",
        "/_session",
        &[("Content-Type", "application/x-www-form-urlencoded")],
        b"name=admin&password=secret",
    );
    assert_eq!((form.status, &form.json()["roles"]), (200, &json!(["_admin"])));
    assert_eq!(server.send("GET", "/_all_dbs", &[("Cookie", &self::cookie(&form))], b"").status, 200);
    for (name, password) in [("ann", "eve's"), ("ann", ""), ("nobody", "x"), ("admin", "x"), ("", "")] {
        let refused = log_in(&server, name, password);
        assert_eq!(
            (refused.status, refused.json()["reason"].as_str()),
            (401, Some("Name or password is incorrect.")),
            "{name}"
        );
    }
    assert_eq!(server.send("POST", "/_session", &[("Content-Type", "application/json")], b"{}").status, 400);
}

#[test]
fn session_ends_on_timeout_password_change_and_user_deletion() {
    let server = TestServer::with(|config| stemmadb_server::Config {
        session_timeout: std::time::Duration::from_secs(1),
        ..config
    });
    prepare(&server);
    let short = cookie(&log_in(&server, "ann", "ann's"));
    let status = |cookie: &str| server.send("GET", "/db/d", &[("Cookie", cookie)], b"").status;
    let started = std::time::Instant::now();
    while status(&short) == 200 {
        assert!(started.elapsed().as_secs() < 60, "the session does not expire");
        std::thread::yield_now();
    }
    assert_eq!(status(&short), 401);

    let server = with_users();
    let status = |cookie: &str| server.send("GET", "/db/d", &[("Cookie", cookie)], b"").status;
    let before = cookie(&log_in(&server, "ann", "ann's"));
    assert_eq!(status(&before), 200);
    let mut user = server.get("/_users/org.couchdb.user:ann").json();
    user["password"] = json!("another");
    assert_eq!(server.put("/_users/org.couchdb.user:ann", &user).status, 201);
    // The password was changed.
    server.until_status(401, || server.send("GET", "/db/d", &[("Cookie", &before)], b""));
    assert_eq!(log_in(&server, "ann", "ann's").status, 401);
    let after = cookie(&log_in(&server, "ann", "another"));
    assert_eq!(status(&after), 200);
    let mut tampered = after.clone().into_bytes();
    let last = tampered.len() - 4;
    tampered[last] = if tampered[last] == b'A' { b'B' } else { b'A' };
    assert_eq!(status(std::str::from_utf8(&tampered).unwrap()), 401);
    let revision = server.get("/_users/org.couchdb.user:ann").json()["_rev"].as_str().unwrap().to_owned();
    server.ask_as(ADMIN, "DELETE", &format!("/_users/org.couchdb.user:ann?rev={revision}"), None);
    // The user was deleted.
    server.until_status(401, || server.send("GET", "/db/d", &[("Cookie", &after)], b""));
}

#[test]
fn login_redirects_only_to_this_server() {
    let server = with_users();
    let body = json!({"name": "ann", "password": "ann's"}).to_string();
    let led = |next: &str| {
        let answer = server.send(
            "POST",
            &format!("/_session?next={next}"),
            &[("Content-Type", "application/json")],
            body.as_bytes(),
        );
        (answer.status, answer.header("location").map(str::to_owned))
    };
    assert_eq!(led("/db/_all_docs"), (302, Some("http://localhost/db/_all_docs".to_owned())));
    for elsewhere in [
        "https://evil.example",
        "//evil.example",
        "/%5Cevil.example",
        "%5C%5Cevil.example",
        "/x%0D%0ASet-Cookie:a",
        "javascript:alert(1)",
    ] {
        assert_eq!(led(elsewhere), (400, None), "{elsewhere}");
    }
}

#[test]
fn users_read_and_change_only_their_own_document() {
    let server = with_users();
    let (ann, eve) = (Some(("ann", "ann's")), Some(("eve", "eve's")));
    let own = server.ask_as(ann, "GET", "/_users/org.couchdb.user:ann", None);
    assert_eq!(
        (own.status, &own.json()["password_scheme"], &own.json()["password"]),
        (200, &json!("argon2id"), &Value::Null)
    );
    assert!(!own.text.contains("ann's"));
    assert_eq!(server.ask_as(ann, "GET", "/_users/org.couchdb.user:eve", None).status, 404);
    assert_eq!(server.ask_as(None, "GET", "/_users/org.couchdb.user:eve", None).status, 401);
    for path in
        ["/_users", "/_users/_all_docs", "/_users/_changes", "/_users/_design_docs", "/_users/org.couchdb.user:ann/x"]
    {
        assert_eq!(server.ask_as(ann, "GET", path, None).status, 403, "{path}");
    }
    for path in ["/_users/_bulk_docs", "/_users/_bulk_get", "/_users/_find", "/_users", "/_users/_all_docs"] {
        assert_eq!(server.ask_as(ann, "POST", path, Some(&json!({"docs": []}))).status, 403, "{path}");
    }
    let mut user = own.json();
    user["colour"] = json!("red");
    assert_eq!(server.ask_as(ann, "PUT", "/_users/org.couchdb.user:ann", Some(&user)).status, 201);
    assert_eq!(server.ask_as(eve, "PUT", "/_users/org.couchdb.user:ann", Some(&user)).status, 404);
    let mut user = server.ask_as(ann, "GET", "/_users/org.couchdb.user:ann", None).json();
    user["roles"] = json!(["staff", "boss"]);
    let refused = server.ask_as(ann, "PUT", "/_users/org.couchdb.user:ann", Some(&user));
    assert_eq!((refused.status, refused.json()["reason"].as_str()), (403, Some("Only _admin may edit roles")));
    let mut user = server.ask_as(eve, "GET", "/_users/org.couchdb.user:eve", None).json();
    user["password"] = json!("new");
    assert_eq!(server.ask_as(eve, "PUT", "/_users/org.couchdb.user:eve", Some(&user)).status, 201);
    assert_eq!(
        (server.ask_as(eve, "GET", "/", None).status, server.ask_as(Some(("eve", "new")), "GET", "/", None).status),
        (401, 200)
    );
    // This does not make anybody an administrator, and incomplete user documents are rejected.
    for (id, user) in [
        ("x", json!({"name": "x", "type": "user", "roles": ["_admin"], "password": "x"})),
        ("x", json!({"name": "y", "type": "user", "roles": [], "password": "x"})),
        ("x", json!({"name": "x", "type": "robot", "roles": []})),
        ("x", json!({"name": "x", "type": "user", "roles": "staff"})),
        ("a%3Ab", json!({"name": "a:b", "type": "user", "roles": []})),
        (
            "x",
            json!({"name": "x", "type": "user", "roles": [], "password_scheme": "pbkdf2",
                "iterations": 1_000_000_000, "derived_key": "00", "salt": ""}),
        ),
    ] {
        assert_eq!(server.put(&format!("/_users/org.couchdb.user:{id}"), &user).status, 403, "{user}");
    }
}

#[test]
fn couchdb_user_documents_keep_their_passwords() {
    let server = with_users();
    // A user document as CouchDB 3.5 stores it, with few iterations; computed according to RFC 2898.
    let user = json!({"_id": "org.couchdb.user:old", "name": "old", "type": "user", "roles": ["staff"],
        "password_scheme": "pbkdf2",
        "pbkdf2_prf": "sha256", "iterations": 2, "salt": "salt",
        "derived_key": "ae4d0c95af6b46d32d0adff928f06dd02a303f8ef3c251dfd6e2d85a95474c43"});
    let replicated = json!({"new_edits": false, "docs": [user.clone().as_object_mut().map(|user| {
        user.insert("_rev".to_owned(), json!("1-00000000000000000000000000000001"));
        Value::Object(user.clone())
    }).unwrap()]});
    assert_eq!(server.post("/_users/_bulk_docs", &replicated).json(), json!([]));
    assert_eq!(server.ask_as(Some(("old", "password")), "GET", "/db/d", None).status, 200);
    assert_eq!(server.ask_as(Some(("old", "passwort")), "GET", "/db/d", None).status, 401);
}

#[test]
fn foreign_host_names_are_rejected() {
    let server = with_users();
    let status = |server: &TestServer, host: &str| server.send("GET", "/", &[("Host", host)], b"").status;
    for host in ["localhost", "localhost:5984", "127.0.0.1", "127.0.0.1:80", "[::1]:5984", "LOCALHOST"] {
        assert_eq!(status(&server, host), 200, "{host}");
    }
    for host in [
        "evil.example",
        "evil.example:5984",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example:localhost",
    ] {
        assert_eq!(status(&server, host), 403, "{host}");
    }
    let named = TestServer::with(|config| stemmadb_server::Config { hosts: vec!["db.example".to_owned()], ..config });
    assert_eq!((status(&named, "db.example:80"), status(&named, "other.example")), (200, 403));
}

#[test]
fn cross_site_requests_with_a_session_are_rejected() {
    let server = with_users();
    let cookie = cookie(&log_in(&server, "ann", "ann's"));
    let put = |headers: &[(&str, &str)]| {
        let mut all = vec![("Cookie", cookie.as_str()), ("Content-Type", "application/json")];
        all.extend_from_slice(headers);
        server.send("PUT", &format!("/db/{}", uuid_like()), &all, b"{}").status
    };
    assert_eq!(put(&[]), 201);
    assert_eq!(put(&[("Origin", "http://localhost")]), 201);
    assert_eq!(put(&[("Sec-Fetch-Site", "same-origin")]), 201);
    for headers in [
        ("Origin", "https://evil.example"),
        ("Origin", "null"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
    ] {
        assert_eq!(put(&[headers]), 403, "{headers:?}");
    }
    let evil = [("Cookie", cookie.as_str()), ("Origin", "https://evil.example")];
    assert_eq!(server.send("DELETE", "/db/d?rev=1-x", &evil, b"").status, 403);
    // A content type that an HTML form can send is not accepted as JSON.
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""] {
        let answer = server.send("POST", "/db", &[("Cookie", &cookie), ("Content-Type", kind)], b"{}");
        assert_eq!(answer.status, 415, "{kind}: {answer:?}");
    }
}

fn uuid_like() -> String {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("n{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

#[test]
fn configured_cors_origins_may_use_the_server() {
    let ask = |cors: Cors, method: &str, origin: &str| {
        let server = TestServer::with(|config| stemmadb_server::Config { cors, ..config });
        let credentials = basic("admin", "secret");
        let mut headers = vec![("Origin", origin), ("Access-Control-Request-Method", "PUT")];
        if method != "OPTIONS" {
            headers.push(("Authorization", &credentials));
        }
        let answer = server.send(method, "/_all_dbs", &headers, b"");
        let allowed = answer.header("access-control-allow-origin").map(str::to_owned);
        (answer.status, allowed, answer.header("access-control-allow-credentials").is_some())
    };
    let site = "https://app.example";
    let cors = |origins: &[&str], credentials| {
        let origins = origins.iter().map(|origin| (*origin).to_owned()).collect();
        Cors { origins, credentials, ..Cors::default() }
    };
    assert_eq!(ask(Cors::default(), "GET", site), (200, None, false));
    assert_eq!(ask(Cors::default(), "OPTIONS", site).1, None);
    assert_eq!(ask(cors(&[site], true), "GET", site), (200, Some(site.to_owned()), true));
    assert_eq!(ask(cors(&[site], true), "OPTIONS", site), (204, Some(site.to_owned()), true));
    assert_eq!(ask(cors(&[site], true), "GET", "https://evil.example"), (200, None, false));
    assert_eq!(ask(Cors { enabled: false, ..cors(&[site], true) }, "GET", site), (200, None, false));
    assert_eq!(ask(cors(&["*"], false), "GET", site), (200, Some("*".to_owned()), false));
    assert_eq!(ask(cors(&["*"], true), "GET", site), (200, None, false), "not for every origin with credentials");
}

#[test]
fn authentication_can_be_required_for_every_route() {
    let server = TestServer::with(|config| stemmadb_server::Config { require_valid_user: true, ..config });
    prepare(&server);
    for (path, status) in
        [("/", 401), ("/_up", 200), ("/_session", 200), ("/_uuids", 401), ("/nothing/x", 401), ("/db", 401)]
    {
        assert_eq!(server.ask_as(None, "GET", path, None).status, status, "{path}");
    }
    assert_eq!(server.ask_as(Some(("eve", "eve's")), "GET", "/", None).status, 200);
}

#[test]
fn generated_password_is_printed_once_and_kept() {
    let place = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let start = || {
        let config = stemmadb_server::Config {
            address: ([127, 0, 0, 1], 0).into(),
            ..stemmadb_server::Config::new(place.path())
        };
        runtime.block_on(stemmadb_server::Server::start(config)).unwrap()
    };
    let first = start();
    let password = first.generated_password().unwrap().to_owned();
    let kept = password.clone();
    assert!(password.len() >= 32);
    runtime.block_on(first.stop());
    let second = start();
    assert_eq!(second.generated_password(), None);
    let address = second.address();
    let asked = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let credentials = basic("admin", &password);
        write!(
            stream,
            "GET /_all_dbs HTTP/1.1\r\nHost: localhost\r\nAuthorization: {credentials}\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    assert!(asked.join().unwrap().starts_with("HTTP/1.1 200"));
    runtime.block_on(second.stop());
    let mut files = vec![place.path().to_owned()];
    let mut read_count = 0;
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(path.read_dir().unwrap().flatten().map(|entry| entry.path()));
        } else {
            let bytes = std::fs::read(&path).unwrap();
            let is_in_it = bytes.windows(kept.len()).any(|window| window == kept.as_bytes());
            assert!(!is_in_it, "{} has the password", path.display());
            read_count += 1;
        }
    }
    assert!(read_count > 1);
}

#[test]
fn basic_challenge_is_sent_to_navigations_only() {
    let server = TestServer::new();
    let challenge = |headers: &[(&str, &str)]| {
        let refused = server.send("GET", "/_all_dbs", headers, b"");
        assert_eq!(refused.status, 401, "{refused:?}");
        refused.header("www-authenticate").map(str::to_owned)
    };
    let asked = Some("Basic realm=\"server\"".to_owned());
    assert_eq!(challenge(&[]), asked);
    assert_eq!(challenge(&[("Sec-Fetch-Mode", "navigate")]), asked);
    assert_eq!(challenge(&[("Sec-Fetch-Mode", "cors")]), None);
    assert_eq!(challenge(&[("Origin", "http://localhost:1")]), None);
}

/// Sends a request with a password; returns the status and whether the response asks the client to wait.
fn try_login(server: &TestServer, name: &str, password: &str) -> (u16, bool) {
    let answer = server.ask_as(Some((name, password)), "GET", "/_session", None);
    (answer.status, answer.header("retry-after").is_some_and(|seconds| seconds.parse::<u64>().unwrap() > 0))
}

#[test]
fn failed_logins_delay_only_that_name() {
    let lockout = Lockout { tries: 3, wait_max: std::time::Duration::from_secs(3600) };
    let server = TestServer::with(|config| Config { lockout, ..config });
    prepare(&server);
    let session = cookie(&log_in(&server, "ann", "ann's"));
    let made = server.post("/_tokens", &json!({"name": "t", "user": "ann"})).json();
    let bearer = format!("Bearer {}", made["token"].as_str().unwrap());
    // Existing and unknown users get the same responses.
    for name in ["ann", "nobody"] {
        let mut answers: Vec<_> = (0..3).map(|_| try_login(&server, name, "wrong")).collect();
        assert_eq!(answers, [(401, false); 3], "{name}");
        // Each delay is twice as long as the previous one: after several, no test is slow enough to outlast it.
        let started = std::time::Instant::now();
        let mut count = 3;
        while count < 10 {
            assert!(started.elapsed().as_secs() < 200, "{answers:?}");
            let answer = try_login(&server, name, "wrong");
            count += usize::from(answer.0 == 401);
            answers.push(answer);
            if answer == (429, true) && count >= 6 {
                break;
            }
        }
        // Even the correct password is refused if it is sent during the delay.
        let refused = log_in(&server, name, &format!("{name}'s"));
        assert_eq!((refused.status, refused.json()["error"].as_str()), (429, Some("too_many_requests")), "{name}");
        assert!(answers.iter().all(|answer| matches!(answer, (401, false) | (429, true))), "{answers:?}");
    }
    assert_eq!(server.send("GET", "/db/d", &[("Cookie", &session)], b"").status, 200, "sessions remain valid");
    assert_eq!(server.send("GET", "/db/d", &[("Authorization", &bearer)], b"").status, 200, "tokens remain valid");
    assert_eq!(try_login(&server, "eve", "eve's"), (200, false));
    assert_eq!(try_login(&server, "admin", "secret"), (200, false));
}

#[test]
fn concurrent_password_guesses_are_rate_limited() {
    needs_one_server!("wrong passwords are counted by each server");
    let lockout = Lockout { tries: 3, wait_max: std::time::Duration::from_secs(3600) };
    let server = TestServer::with(|config| Config { lockout, ..config });
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let ask = |at: usize| {
            let server = &server;
            scope.spawn(move || try_login(server, "admin", &format!("guess {at}")).0)
        };
        let asking: Vec<_> = (0..40).map(ask).collect();
        asking.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    let verified = statuses.iter().filter(|status| **status == 401).count();
    assert!((3..=8).contains(&verified), "{verified} of 40 guesses were looked at: {statuses:?}");
    assert!(statuses.iter().all(|status| matches!(status, 401 | 429)), "{statuses:?}");
}

#[test]
fn unknown_authorization_schemes_are_ignored() {
    let server = with_users();
    for scheme in ["Digest username=\"ann\"", "Negotiate", "AWS4-HMAC-SHA256 x"] {
        let get = |path: &str| server.send("GET", path, &[("Authorization", scheme)], b"").status;
        assert_eq!((get("/"), get("/db/d")), (200, 401), "{scheme}");
    }
    let wrong = basic("ann", "wrong");
    assert_eq!(server.send("GET", "/", &[("Authorization", &wrong)], b"").status, 401);
    // A session is used beside it.
    let cookie = cookie(&log_in(&server, "ann", "ann's"));
    let headers = [("Authorization", "Digest x"), ("Cookie", cookie.as_str())];
    assert_eq!(server.send("GET", "/db/d", &headers, b"").status, 200);
}

#[test]
fn login_requires_a_form_or_json() {
    let server = with_users();
    for (kind, status) in [
        ("application/x-www-form-urlencoded; charset=utf-8", 200),
        ("text/plain", 400),
        ("multipart/form-data", 400),
        ("", 400),
    ] {
        let answer = server.send("POST", "/_session", &[("Content-Type", kind)], b"name=ann&password=ann%27s");
        assert_eq!(answer.status, status, "{kind}: {answer:?}");
    }
}

#[test]
fn trusted_proxy_names_the_user() {
    use hmac::{Hmac, KeyInit, Mac};
    let secret = b"the secret of the proxy";
    let server = TestServer::with(|config| Config { proxy_secret: Some(ProxySecret(secret.to_vec())), ..config });
    prepare(&server);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut sha1 = Hmac::<sha1::Sha1>::new_from_slice(secret).unwrap();
    let mut sha256 = Hmac::<sha2::Sha256>::new_from_slice(secret).unwrap();
    sha1.update(b"bob");
    sha256.update(b"bob");
    let tokens = [hex(&sha1.finalize().into_bytes()), hex(&sha256.finalize().into_bytes())];
    let ask = |name: &str, token: &str, path: &str| {
        let headers = [
            ("X-Auth-CouchDB-UserName", name),
            ("X-Auth-CouchDB-Roles", "staff, _admin, x"),
            ("X-Auth-CouchDB-Token", token),
        ];
        server.send("GET", path, &headers, b"")
    };
    for token in &tokens {
        let session = ask("bob", token, "/_session").json();
        assert_eq!(session["userCtx"], json!({"name": "bob", "roles": ["staff", "x"]}));
        assert_eq!((&session["info"]["authenticated"], ask("bob", token, "/db/d").status), (&json!("proxy"), 200));
        assert_eq!(ask("bob", token, "/_all_dbs").status, 403);
        for (name, token) in [("ann", token.as_str()), ("bob", ""), ("bob", &token[1..]), ("", token)] {
            assert_eq!(ask(name, token, "/db/d").status, 401, "{name} {token}");
        }
    }
    // Without a configured secret, the headers are ignored.
    let other = with_users();
    let headers = [
        ("X-Auth-CouchDB-UserName", "bob"),
        ("X-Auth-CouchDB-Roles", "staff"),
        ("X-Auth-CouchDB-Token", tokens[0].as_str()),
    ];
    assert_eq!(other.send("GET", "/db/d", &headers, b"").status, 401);
}
