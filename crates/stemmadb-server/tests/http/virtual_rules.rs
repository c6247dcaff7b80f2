//! Functions of the design documents of virtual databases, wherever these lie: validation of all writes, and filters.

use serde_json::{Value, json};

use crate::access_rules::users;
use crate::client::{ADMIN, Response, TestServer, basic};
use crate::spread::Servers;
use crate::virtual_database::{create, start_move, until_moved, write_twins};

const ALICE: Option<(&str, &str)> = Some(("alice", "alice's"));

/// Each rule is in a design document of its own, which lie in different shards.
const RULES: [(&str, &str); 5] = [
    ("typed", "if (!newDoc._deleted && !newDoc.type) throw({forbidden: 'no type'});"),
    ("kept", "if (newDoc._deleted && oldDoc.keep) throw({forbidden: 'it is kept'});"),
    ("owned", "if (oldDoc && !newDoc._deleted && oldDoc.owner != newDoc.owner) throw({forbidden: 'the owner stays'});"),
    ("secret", "if (newDoc.type == 'secret') throw({unauthorized: 'not you, ' + userCtx.name + ' of ' + userCtx.db});"),
    (
        "bosses",
        "if (newDoc.type == 'note' && secObj.admins.names.indexOf(userCtx.name) < 0) throw({forbidden: 'no boss'});",
    ),
];

/// Creates the virtual database `v` with these parameters, and the ordinary one `plain`, with the same rules.
fn twins(server: &TestServer, parameters: &str) {
    create(server, &format!("/v?{parameters}"));
    create(server, "/plain");
    for database in ["v", "plain"] {
        let members = json!({"names": ["alice", "boss"], "roles": []});
        let security = json!({"admins": {"names": ["boss"], "roles": []}, "members": members});
        assert_eq!(server.put(&format!("/{database}/_security"), &security).status, 200);
        for (name, rule) in RULES {
            let function = format!("function (newDoc, oldDoc, userCtx, secObj) {{ {rule} }}");
            server.design(database, name, json!({ "validate_doc_update": function }));
        }
    }
}

/// What a client sees of an answer: the status, and the reason of a refusal.
fn shown(answer: &Response) -> (u16, Value) {
    let reason = answer.json().get("reason").cloned().unwrap_or_default();
    (answer.status, json!(reason.as_str().unwrap_or_default().replace(" of plain", " of v")))
}

/// Sends writes to both databases, and compares what happens.
fn compare_writes(server: &TestServer, prefix: &str, ids: &[String]) {
    let both = |ask: &dyn Fn(&str) -> Response| {
        let (ours, theirs) = (ask("v"), ask("plain"));
        assert_eq!(shown(&ours), shown(&theirs), "{ours:?} {theirs:?}");
        ours
    };
    let rev = |database: &str, id: &str| {
        server.get(&format!("/{database}/{id}")).json()["_rev"].as_str().unwrap_or_default().to_owned()
    };
    for id in ids {
        let id = &format!("{prefix}{id}");
        let put = |user: Option<(&'static str, &'static str)>, body: Value| {
            both(&|database| {
                let mut body = body.clone();
                let rev = rev(database, id);
                if !rev.is_empty() {
                    body["_rev"] = json!(rev);
                }
                server.ask_as(user, "PUT", &format!("/{database}/{id}"), Some(&body))
            })
        };
        assert_eq!(put(ALICE, json!({})).status, 403);
        assert_eq!(put(ALICE, json!({"type": "secret"})).json()["reason"], "not you, alice of v");
        assert_eq!(put(ALICE, json!({"type": "note"})).json()["reason"], "no boss");
        assert_eq!(put(Some(("boss", "boss's")), json!({"type": "note", "owner": "ann"})).status, 201);
        assert_eq!(put(ALICE, json!({"type": "book", "owner": "eve"})).json()["reason"], "the owner stays");
        assert_eq!(put(ALICE, json!({"type": "book", "owner": "ann", "keep": true})).status, 201);
        let patched = both(&|database| {
            let path = format!("/{database}/{id}");
            server.ask_as(ALICE, "PATCH", &path, Some(&json!({"$set": {"owner": "eve"}})))
        });
        assert_eq!(patched.status, 403);
        let attached = both(&|database| {
            let path = format!("/{database}/{prefix}new-of-{id}/file.txt");
            server.send("PUT", &path, &[("Authorization", &basic("alice", "alice's"))], b"x")
        });
        assert_eq!(attached.status, 403);
        let deleted = both(&|database| {
            server.ask_as(ALICE, "DELETE", &format!("/{database}/{id}?rev={}", rev(database, id)), None)
        });
        assert_eq!(deleted.json()["reason"], "it is kept");
        let refused = both(&|database| {
            let docs =
                json!([{"_id": format!("{id}:x"), "type": "book"}, {"_id": format!("{id}:x2"), "type": "secret"}]);
            server.ask_as(ALICE, "POST", &format!("/{database}/_transact"), Some(&json!({"docs": [docs[1]]})))
        });
        assert!(refused.status >= 400);
    }
    let docs = |valid: bool| {
        let body = if valid { json!({"type": "book"}) } else { json!({}) };
        let doc = |(n, id): (usize, &String)| {
            let mut doc = body.clone();
            doc["_id"] = json!(format!("{prefix}bulk-{id}-{n}-{valid}"));
            doc
        };
        ids.iter().enumerate().map(doc).collect::<Vec<_>>()
    };
    let bulk = |replicated: bool| {
        let mut docs = [docs(true), docs(false)].concat();
        if replicated {
            for doc in &mut docs {
                doc["_id"] = json!(format!("{}-r", doc["_id"].as_str().unwrap()));
                doc["_rev"] = json!("1-00000000000000000000000000000001");
            }
        }
        both(&|database| {
            let body = json!({"docs": docs, "new_edits": !replicated});
            let answer = server.ask_as(ALICE, "POST", &format!("/{database}/_bulk_docs"), Some(&body));
            let rows = answer.json();
            let refused = rows.as_array().unwrap().iter().filter(|row| row["reason"] == "no type").count();
            assert_eq!(refused, ids.len(), "{rows}");
            answer
        });
    };
    bulk(false);
    bulk(true);
    // Local documents and design documents are not validated.
    both(&|database| server.ask_as(ALICE, "PUT", &format!("/{database}/_local/x"), Some(&json!({}))));
}

fn some_ids() -> Vec<String> {
    (0..6).map(|n| format!("x{n}")).collect()
}

#[test]
fn every_write_is_validated_by_all_design_documents() {
    let mut server = TestServer::new();
    users(&server);
    twins(&server, "shards=3");
    compare_writes(&server, "a", &some_ids());
    server.restart();
    compare_writes(&server, "b", &some_ids());
    start_move(&server, "v", &json!({"split": "shard-1"}));
    until_moved(&server, "v");
    start_move(&server, "v", &json!({"merge": "shard-2", "into": "shard-3"}));
    until_moved(&server, "v");
    compare_writes(&server, "c", &some_ids());
    rules_end_with_their_design_document(&server);
}

/// A rule holds from the write of its design document until its deletion.
fn rules_end_with_their_design_document(server: &TestServer) {
    for (n, (name, _)) in RULES.iter().enumerate() {
        let path = format!("/v/_design/{name}");
        let rev = server.get(&path).json()["_rev"].as_str().unwrap().to_owned();
        assert_eq!(server.delete(&format!("{path}?rev={rev}")).status, 200);
        let written = server.put(&format!("/v/free-{n}"), &json!({"type": "note"}));
        assert_eq!(written.status == 201, n + 1 == RULES.len(), "{name}: {written:?}");
    }
    for name in ["p", "q", "r", "s"] {
        let closed = json!({"_id": format!("_design/{name}"),
            "validate_doc_update": "function () { throw {forbidden: 'closed'} }"});
        let rows = server.post("/v/_bulk_docs", &json!({"docs": [closed]})).json();
        assert_eq!(server.put("/v/closed", &json!({})).status, 403, "{name}");
        let open = json!({"docs": [{"_id": rows[0]["id"], "_rev": rows[0]["rev"], "_deleted": true}]});
        assert_eq!(server.post("/v/_bulk_docs", &open).status, 201);
        assert_eq!(server.put(&format!("/v/open-{name}"), &json!({})).status, 201, "{name}");
    }
}

#[test]
fn writes_on_other_servers_are_validated() {
    needs_one_server!("the shards of a cluster are on its servers by their URLs, not `here`");
    let mut servers = Servers::start();
    users(&servers.home);
    twins(&servers.home, "shards=5&servers=here,b,c");
    let ids: Vec<String> = ["here", "b", "c"].iter().map(|server| servers.id_on(server)).collect();
    compare_writes(&servers.home, "", &ids);
    servers.home.restart();
    servers.b.restart();
    let url = format!("http://admin:secret@{}", servers.b.address());
    assert_eq!(servers.home.put("/_servers/b", &json!({"url": url})).status, 201);
    servers.home.restart();
    compare_writes(&servers.home, "again-", &ids);
    // Documents that were written by others are moved without being validated.
    for request in [json!({"merge": "shard-1", "server": "c"}), json!({"merge": "shard-2", "server": "here"})] {
        start_move(&servers.home, "v", &request);
        until_moved(&servers.home, "v");
    }
    assert_eq!(servers.home.get("/v").json()["doc_count"], servers.home.get("/plain").json()["doc_count"]);
    compare_writes(&servers.home, "moved-", &ids);
    rules_end_with_their_design_document(&servers.home);
    let spoofed = servers.home.send(
        "PUT",
        "/plain/y",
        &[("Authorization", &basic("alice", "alice's")), ("X-Stemma-On-Behalf", "e30=")],
        b"{}",
    );
    assert_eq!(spoofed.status, 403, "{spoofed:?}");
    assert_eq!(servers.b.ask_as(ADMIN, "GET", "/_all_dbs", None).status, 200);
}

#[test]
fn known_rules_hold_while_a_server_does_not_answer() {
    needs_one_server!("the shards of a cluster are on its servers by their URLs, not `here`");
    let servers = Servers::start();
    users(&servers.home);
    twins(&servers.home, "shards=2&servers=here,b");
    let near = servers.id_on("here");
    let Servers { mut home, b, .. } = servers;
    assert_eq!(home.put(&format!("/v/{near}"), &json!({})).status, 403);
    drop(b);
    for _ in 0..2 {
        for body in [json!({}), json!({"type": "secret"}), json!({"type": "note"})] {
            let refused = home.ask_as(ALICE, "PUT", &format!("/v/{near}"), Some(&body));
            assert!(matches!(refused.status, 401 | 403), "{refused:?}");
        }
        home.restart();
    }
    assert_eq!(home.put(&format!("/v/{near}"), &json!({"type": "book"})).status, 201);
}

/// The ids of all rows of a feed, read in pages of this size.
fn pages(server: &TestServer, database: &str, parameters: &str, body: Option<&Value>, limit: usize) -> Vec<String> {
    let (mut since, mut found) = ("0".to_owned(), Vec::new());
    loop {
        let path = format!("/{database}/_changes?{parameters}&limit={limit}&since={since}");
        let method = if body.is_some() { "POST" } else { "GET" };
        let page = server.ask_as(ADMIN, method, &path, body);
        assert_eq!(page.status, 200, "{page:?}");
        let page = page.json();
        let rows = page["results"].as_array().unwrap().clone();
        found.extend(rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()));
        if rows.len() < limit {
            return found;
        }
        since = page["last_seq"].as_str().unwrap().to_owned();
    }
}

/// Each id once: a document that has moved may be reported again.
fn sorted(mut ids: Vec<String>) -> Vec<String> {
    ids.sort();
    ids.dedup();
    ids
}

/// Compares filtered feeds of `v` and `plain`.
fn compare_feeds(server: &TestServer) {
    let selector = json!({"selector": {"even": true, "n": {"$lt": 30}}});
    let ids = json!({"doc_ids": ["d003", "d050"]});
    let paths = json!({"paths": ["n"]});
    for (parameters, body, count) in [
        ("filter=f/even", None, 50),
        ("filter=f/below&max=7", None, 7),
        ("filter=_view&view=f/odd", None, 50),
        ("filter=_selector", Some(&selector), 15),
        ("filter=_doc_ids", Some(&ids), 2),
        ("filter=_design", None, 2),
        ("filter=f/asked&include_docs=true", None, 101),
        ("path=even", None, 100),
        ("path=missing", Some(&paths), 100),
        ("path=missing/%23", None, 0),
        ("path=even&filter=f/below&max=7", None, 7),
        ("path=filters/%2B&include_docs=true", None, 1),
    ] {
        let whole = sorted(pages(server, "v", parameters, body, 1_000));
        assert_eq!(whole, sorted(pages(server, "plain", parameters, body, 1_000)), "{parameters}");
        assert_eq!(whole.len(), count, "{parameters}");
        assert_eq!(whole, sorted(pages(server, "v", parameters, body, 4)), "{parameters}");
        let descending = pages(server, "v", &format!("{parameters}&descending=true"), body, 1_000);
        assert_eq!(whole, sorted(descending), "{parameters}");
    }
    for (parameters, status) in [
        ("filter=f/missing", 404),
        ("filter=missing/even", 404),
        ("filter=f", 400),
        ("filter=f/broken", 500),
        ("filter=_selector", 400),
        ("filter=_view", 400),
        ("path=a/", 400),
        ("path=%23/a", 400),
    ] {
        let refused = server.get(&format!("/v/_changes?{parameters}"));
        assert_eq!(refused.status, status, "{parameters}: {refused:?}");
        assert_eq!(server.get(&format!("/plain/_changes?{parameters}")).status, status, "{parameters}");
    }
    let newest = server.get("/v/_changes?descending=true&limit=1").json();
    assert_eq!(newest["results"].as_array().unwrap().len(), 1, "{newest}");
    // A row of a descending feed is before those that were returned.
    let all = server.get("/v/_changes?descending=true").json();
    let row = &all["results"][9];
    let later = pages(server, "v", &format!("x=1&since={}", row["seq"].as_str().unwrap()), None, 1_000);
    assert!(later.len() >= 9, "{later:?}");
}

fn write_filters(server: &TestServer) {
    for database in ["v", "plain"] {
        server.design(
            database,
            "f",
            json!({
                "filters": {
                    "even": "function (doc, req) { return doc.even === true; }",
                    "below": "function (doc, req) { return doc.n < Number(req.query.max); }",
                    "asked": "function (doc, req) { return doc._id[0] != '_' || (req.userCtx.name == 'admin' && \
                        req.info.db_name.length > 0 && doc._id == '_design/f'); }",
                    "broken": "function (",
                },
                "views": {"odd": {"map": "function (doc) { if (doc.even === false) emit(doc.n, null); }"}},
            }),
        );
    }
}

#[test]
fn feeds_are_filtered() {
    let server = TestServer::new();
    create(&server, "/v?shards=3");
    write_twins(&server);
    write_filters(&server);
    compare_feeds(&server);
    start_move(&server, "v", &json!({"split": "shard-1"}));
    until_moved(&server, "v");
    compare_feeds(&server);
    waiting_feeds_are_filtered(&server, &["x1".to_owned(), "x2".to_owned(), "x3".to_owned()]);
}

#[test]
fn feeds_of_other_servers_are_filtered() {
    needs_one_server!("the shards of a cluster are on its servers by their URLs, not `here`");
    let servers = Servers::start();
    create(&servers.home, "/v?shards=4&servers=here,b,c");
    write_twins(&servers.home);
    write_filters(&servers.home);
    compare_feeds(&servers.home);
    start_move(&servers.home, "v", &json!({"merge": "shard-2", "server": "c"}));
    until_moved(&servers.home, "v");
    compare_feeds(&servers.home);
    let ids: Vec<String> = ["here", "c"].iter().map(|server| servers.id_on(server)).collect();
    waiting_feeds_are_filtered(&servers.home, &ids);
}

/// A feed that waits, and one that is resumed by the header `Last-Event-ID`.
fn waiting_feeds_are_filtered(server: &TestServer, ids: &[String]) {
    for id in ids {
        let since = server.get("/v").json()["update_seq"].as_str().unwrap().to_owned();
        let path = format!("/v/_changes?filter=f/even&feed=longpoll&timeout=60000&since={since}");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| server.get(&path).json());
            std::thread::sleep(std::time::Duration::from_millis(300));
            assert_eq!(server.put(&format!("/v/{id}-odd"), &json!({"even": false})).status, 201);
            assert_eq!(server.put(&format!("/v/{id}"), &json!({"even": true})).status, 201);
            let answer = waiting.join().unwrap();
            assert_eq!(answer["results"][0]["id"], *id, "{answer}");
        });
        let resumed = server.send_as_admin(
            "GET",
            "/v/_changes?feed=eventsource&filter=f/even&timeout=500",
            &[("Last-Event-ID", &since)],
            b"",
        );
        assert!(resumed.text.contains(id) && !resumed.text.contains("-odd"), "{resumed:?}");
    }
    let continuous = server.get("/v/_changes?feed=continuous&descending=true&timeout=300&limit=3");
    assert_eq!(continuous.text.lines().count(), 4, "{continuous:?}");
}
