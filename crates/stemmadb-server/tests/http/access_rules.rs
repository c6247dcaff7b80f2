//! Access rules: what a user who may read some documents gets from each route.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stemmadb_server::{Access, route_descriptions};

use crate::client::{Response, TestServer, basic};
use crate::watch::Events;

const ALICE: Option<(&str, &str)> = Some(("alice", "alice's"));
pub(crate) const BOB: Option<(&str, &str)> = Some(("bob", "bob's"));
/// What only documents of others contain.
pub(crate) const MARK: &str = "HIDDEN";

pub(crate) fn rule() -> Value {
    json!({"selector": {"$or": [
        {"owner": {"$user": "name"}}, {"team": {"$in": {"$user": "roles"}}}, {"public": true},
    ]}})
}

pub(crate) fn security(rule: Value) -> Value {
    let members = json!({"names": ["alice", "bob", "carol"], "roles": []});
    json!({"admins": {"names": ["boss"], "roles": []}, "members": members, "access_rule": rule})
}

pub(crate) fn users(server: &TestServer) {
    server.database("_users", &[]);
    for (name, roles) in
        [("alice", json!([])), ("bob", json!(["legal"])), ("carol", json!(["staff"])), ("boss", json!([]))]
    {
        let user = json!({"name": name, "type": "user", "roles": roles, "password": format!("{name}'s")});
        assert_eq!(server.put(&format!("/_users/org.couchdb.user:{name}"), &user).status, 201);
    }
}

/// A server with documents of alice (`a1` to `a3`), of bob, of a team, and one for all.
pub(crate) fn server() -> TestServer {
    let server = TestServer::new();
    users(&server);
    fill(&server);
    assert_eq!(server.put("/notes/_security", &security(rule())).status, 200);
    server
}

/// Creates the database `notes`, before it has a rule.
pub(crate) fn fill(server: &TestServer) {
    fill_new(server, "");
}

/// As [`fill`], with parameters of the creation.
pub(crate) fn fill_new(server: &TestServer, parameters: &str) {
    assert_eq!(server.put(&format!("/notes{parameters}"), &json!({})).status, 201);
    let hidden = |id: &str, owner: &str| json!({"_id": id, "owner": owner, "text": MARK, "n": 100});
    let docs = [
        json!({"_id": "a1", "owner": "alice", "n": 1, "ref": "hidden-1"}),
        hidden("hidden-1", "bob"),
        json!({"_id": "a2", "owner": "alice", "n": 2}),
        hidden("hidden-2", "bob"),
        json!({"_id": "hidden-3", "team": "legal", "text": MARK, "n": 100}),
        json!({"_id": "public", "public": true, "n": 4}),
        json!({"_id": "hidden-4", "text": MARK, "HIDDENpath": [{"x": 1}], "n": 100}),
        json!({"_id": "a3", "owner": "alice", "n": 3}),
    ];
    assert_eq!(server.post("/notes/_bulk_docs", &json!({ "docs": docs })).status, 201);
    let file = server.get("/notes/hidden-1").json()["_rev"].as_str().unwrap().to_owned();
    let put = server.send_as_admin(
        "PUT",
        &format!("/notes/hidden-1/file?rev={file}"),
        &[("Content-Type", "text/plain")],
        MARK.as_bytes(),
    );
    assert_eq!(put.status, 201);
    server.design(
        "notes",
        "views",
        json!({
            "views": {"all": {"map": "function (doc) { emit(doc._id, doc); }", "reduce": "_count"}},
            "filters": {"all": "function () { return true; }"},
            "shows": {"one": "function (doc) { return JSON.stringify(doc); }"},
        }),
    );
    let key = server.put("/notes/_keys/names/k", &json!(MARK));
    assert_eq!(key.status, 201);
    assert_eq!(server.put("/notes/_local/shared", &json!({"text": MARK})).status, 201);
}

impl TestServer {
    pub(crate) fn alice(&self, method: &str, path: &str, body: Option<Value>) -> Response {
        self.ask_as(ALICE, method, path, body.as_ref())
    }
}

pub(crate) fn ids(rows: &Value, name: &str) -> Vec<String> {
    rows.as_array().unwrap().iter().map(|row| row[name].as_str().unwrap().to_owned()).collect()
}

pub(crate) fn revision(server: &TestServer, id: &str) -> String {
    server.get(&format!("/notes/{id}")).json()["_rev"].as_str().unwrap().to_owned()
}

#[test]
fn reads_answer_from_the_visible_documents() {
    let server = server();
    let own = ["a1", "a2", "a3", "public"];
    assert_eq!(server.alice("GET", "/notes/a1", None).json()["n"], 1);
    // A hidden document looks like one that does not exist, also by its revision.
    let hidden = revision(&server, "hidden-1");
    let missing = server.alice("GET", "/notes/none", None);
    for query in [
        "",
        "?conflicts=true&revs=true&meta=true",
        "?attachments=true",
        &format!("?rev={hidden}"),
        &format!("?rev={hidden}&latest=true"),
    ] {
        let answer = server.alice("GET", &format!("/notes/hidden-1{query}"), None);
        assert_eq!((answer.status, &answer.text), (404, &missing.text), "{query}");
    }
    assert_eq!(server.alice("GET", "/notes/hidden-1?open_revs=all", None).status, 404);
    let missing = server.alice("GET", &format!("/notes/hidden-1?open_revs=%5B%22{hidden}%22%5D"), None);
    assert_eq!(missing.json(), json!([{"missing": hidden}]));
    assert_eq!(server.alice("GET", "/notes/hidden-1/file", None).status, 404);
    let headers = [("Authorization", &*basic("alice", "alice's")), ("If-None-Match", &*format!("\"{hidden}\""))];
    assert_eq!(server.send("GET", "/notes/hidden-1", &headers, b"").status, 404);

    // Totals, offsets and pages are those of the visible documents.
    let listed = server.alice("GET", "/notes/_all_docs", None).json();
    assert_eq!(
        (&listed["total_rows"], &listed["offset"], ids(&listed["rows"], "id")),
        (&json!(4), &json!(0), own.map(str::to_owned).to_vec())
    );
    let page = server.alice("GET", "/notes/_all_docs?limit=2&skip=1&include_docs=true", None).json();
    assert_eq!((&page["offset"], ids(&page["rows"], "id")), (&json!(1), vec!["a2".to_owned(), "a3".to_owned()]));
    assert_eq!(page["rows"][0]["doc"]["n"], 2);
    let page = server.alice("GET", "/notes/_all_docs?startkey=%22b%22&descending=true", None).json();
    assert_eq!(
        (&page["offset"], ids(&page["rows"], "id")),
        (&json!(1), vec!["a3".to_owned(), "a2".to_owned(), "a1".to_owned()])
    );
    let page =
        server.alice("GET", "/notes/_all_docs?startkey=%22a2%22&endkey=%22public%22&inclusive_end=false", None).json();
    assert_eq!((&page["offset"], ids(&page["rows"], "id")), (&json!(1), vec!["a2".to_owned(), "a3".to_owned()]));
    let keys = server.alice("POST", "/notes/_all_docs", Some(json!({"keys": ["a1", "hidden-1", "none"]}))).json();
    assert_eq!(keys["rows"][0]["id"], "a1");
    assert_eq!(keys["rows"][1], json!({"key": "hidden-1", "error": "not_found"}));
    assert_eq!(keys["rows"][2], json!({"key": "none", "error": "not_found"}));
    let both = server.alice("POST", "/notes/_all_docs/queries", Some(json!({"queries": [{}, {"limit": 1}]}))).json();
    assert_eq!(
        (&both["results"][0]["total_rows"], both["results"][1]["rows"].as_array().unwrap().len()),
        (&json!(4), 1)
    );
    assert_eq!(server.alice("GET", "/notes", None).json()["doc_count"], 4);

    let found = server
        .alice(
            "POST",
            "/notes/_find",
            Some(json!({"selector": {"n": {"$gt": 1}}, "sort": ["n"], "execution_stats": true})),
        )
        .json();
    assert_eq!(ids(&found["docs"], "_id"), ["a2", "a3", "public"]);
    assert_eq!(found.get("execution_stats"), None);
    // Pages by bookmark have all visible documents, each once.
    let (mut bookmark, mut paged) = (json!(null), Vec::new());
    loop {
        let page = server
            .alice("POST", "/notes/_find", Some(json!({"selector": {}, "limit": 3, "bookmark": bookmark})))
            .json();
        paged.extend(ids(&page["docs"], "_id"));
        bookmark = page["bookmark"].clone();
        if page["docs"].as_array().unwrap().len() < 3 {
            break;
        }
    }
    assert_eq!(paged.iter().map(String::as_str).collect::<BTreeSet<_>>(), BTreeSet::from(own));
    assert_eq!(paged.len(), own.len());
    let sums = json!({"figures": {"count": "count", "sum": {"sum": "n"}, "most": {"max": "n"}}});
    let sums = server.alice("POST", "/notes/_aggregate", Some(sums));
    assert_eq!(sums.json()["rows"][0]["value"], json!({"count": 4, "sum": 10, "most": 4}), "{}", sums.text);
    let pipeline = json!({"pipeline": [
        {"$match": {"_id": "a1"}}, {"$lookup": {"localField": "ref", "foreignField": "_id", "as": "found"}},
    ]});
    let joined = server.alice("POST", "/notes/_aggregate", Some(pipeline));
    assert_eq!(joined.status, 200, "{}", joined.text);
    assert_eq!(joined.json()["rows"][0]["found"], json!([]), "{}", joined.text);

    let got = json!({"docs": [{"id": "a1"}, {"id": "hidden-1"}, {"id": "hidden-1", "rev": hidden}, {"id": "none"}]});
    let got = server.alice("POST", "/notes/_bulk_get", Some(got)).json();
    let first = |at: usize| got["results"][at]["docs"][0].clone();
    assert_eq!(first(0)["ok"]["n"], 1);
    assert_eq!(first(1)["error"]["error"], "not_found");
    assert_eq!(first(1)["error"]["reason"], first(3)["error"]["reason"]);
    assert_eq!(first(2)["error"]["error"], "not_found");
    let unknown =
        server.alice("POST", "/notes/_revs_diff", Some(json!({"hidden-1": [hidden], "a1": [revision(&server, "a1")]})));
    assert_eq!(unknown.json(), json!({"hidden-1": {"missing": [hidden]}}));

    let changes = server.alice("GET", "/notes/_changes?include_docs=true", None).json();
    assert_eq!(ids(&changes["results"], "id").into_iter().collect::<BTreeSet<_>>(), own.map(str::to_owned).into());
    let first = server.alice("GET", "/notes/_changes?limit=1", None).json();
    assert_eq!((first["results"].as_array().unwrap().len(), &first["pending"]), (1, &json!(3)));
    let filtered =
        server.alice("POST", "/notes/_changes?filter=_selector", Some(json!({"selector": {"n": 100}}))).json();
    assert_eq!(filtered["results"], json!([]));
    let by_ids =
        server.alice("POST", "/notes/_changes?filter=_doc_ids", Some(json!({"doc_ids": ["a1", "hidden-1"]}))).json();
    assert_eq!(ids(&by_ids["results"], "id"), ["a1"]);
    // Others see theirs.
    let count = |user| server.ask_as(user, "GET", "/notes/_all_docs", None).json()["total_rows"].clone();
    assert_eq!(
        (count(BOB), count(Some(("carol", "carol's"))), count(Some(("boss", "boss's")))),
        (json!(4), json!(1), json!(9))
    );
    assert_eq!(server.get("/notes/_all_docs").json()["total_rows"], 9);
}

#[test]
fn writes_need_a_document_that_is_visible_before_and_after() {
    let server = server();
    let status = |method: &str, path: &str, body: Value| server.alice(method, path, Some(body)).status;
    assert_eq!(status("PUT", "/notes/new", json!({"owner": "alice"})), 201);
    for (id, body) in [
        ("x1", json!({})),
        ("x2", json!({"owner": "bob"})),
        ("x3", json!({"team": "staff"})),
        ("x4", json!({"owner": ["alice"]})),
    ] {
        assert_eq!(status("PUT", &format!("/notes/{id}"), body), 403, "{id}");
        assert_eq!(server.get(&format!("/notes/{id}")).status, 404, "{id}");
    }
    // A document is neither taken over nor given away.
    let (hidden, own) = (revision(&server, "hidden-1"), revision(&server, "a1"));
    assert_eq!(status("PUT", "/notes/hidden-1", json!({"_rev": hidden, "owner": "alice"})), 403);
    assert_eq!(status("PUT", "/notes/hidden-1", json!({"owner": "alice"})), 403);
    assert_eq!(status("PUT", "/notes/a1", json!({"_rev": own, "owner": "bob"})), 403);
    assert_eq!(status("PUT", "/notes/a1", json!({"_rev": own, "owner": "alice", "n": 5})), 201);
    assert_eq!(status("PATCH", "/notes/a1", json!({"$inc": {"n": 1}})), 201);
    assert_eq!(status("PATCH", "/notes/a1", json!({"owner": "bob"})), 403);
    assert_eq!(status("PATCH", "/notes/hidden-1", json!({"$inc": {"text": 1}})), 404, "the error would tell the type");
    assert_eq!(server.alice("DELETE", &format!("/notes/hidden-1?rev={hidden}"), None).status, 404);
    let copy = |from: &str, to: &str| {
        let credentials = basic("alice", "alice's");
        server
            .send("COPY", &format!("/notes/{from}"), &[("Authorization", &credentials), ("Destination", to)], b"")
            .status
    };
    assert_eq!((copy("hidden-1", "copied"), copy("a1", "copied"), copy("a1", "hidden-2")), (404, 201, 403));
    let put_file = |id: &str, rev: &str| {
        let credentials = basic("alice", "alice's");
        let headers = [("Authorization", credentials.as_str()), ("Content-Type", "text/plain")];
        server.send("PUT", &format!("/notes/{id}/f?rev={rev}"), &headers, b"x").status
    };
    assert_eq!((put_file("hidden-1", &hidden), put_file("a2", &revision(&server, "a2"))), (404, 201));
    assert_eq!(server.alice("DELETE", &format!("/notes/hidden-1/file?rev={hidden}"), None).status, 404);
    // Each document of a bulk is checked by itself; replicated revisions as well.
    let bulk = json!({"docs": [{"_id": "b1", "owner": "alice"}, {"_id": "b2", "owner": "bob"},
        {"_id": "hidden-2", "_rev": revision(&server, "hidden-2"), "_deleted": true}]});
    let written = server.alice("POST", "/notes/_bulk_docs", Some(bulk)).json();
    assert_eq!(
        (&written[0]["ok"], &written[1]["error"], &written[2]["error"]),
        (&json!(true), &json!("forbidden"), &json!("forbidden"))
    );
    let foreign =
        |id: &str, owner: &str| json!({"_id": id, "_rev": "9-0123456789abcdef0123456789abcdef", "owner": owner});
    let documents = [foreign("f1", "alice"), foreign("f2", "bob"), foreign("hidden-1", "alice")];
    let bulk = json!({"new_edits": false, "docs": documents});
    let refused = server.alice("POST", "/notes/_bulk_docs", Some(bulk)).json();
    assert_eq!(ids(&refused, "id"), ["f2", "hidden-1"]);
    assert_eq!((server.get("/notes/f1").status, server.get("/notes/f2").status), (200, 404));
    assert_eq!(server.get("/notes/hidden-1").json()["owner"], "bob");
    assert_eq!(server.get("/notes/hidden-1").json()["_rev"], hidden.as_str());
    let updated = json!({"selector": {"n": {"$gte": 0}}, "patch": {"$set": {"seen": true}}});
    let updated = server.alice("POST", "/notes/_update_where", Some(updated));
    assert_eq!(updated.status, 200, "{}", updated.text);
    assert!(
        server.get("/notes/hidden-2").json().get("seen").is_none() && server.get("/notes/a3").json()["seen"] == true
    );
    assert_eq!(status("PUT", "/notes/_design/x", json!({"owner": "alice"})), 403);
}

#[test]
fn deletions_reach_those_who_could_read_the_document() {
    let server = server();
    let since = server.get("/notes/_changes").json()["last_seq"].as_str().unwrap().to_owned();
    let deleted = |user| {
        let changes = server.ask_as(user, "GET", &format!("/notes/_changes?since={since}"), None).json();
        let deleted = changes["results"].as_array().unwrap().iter().filter(|row| row["deleted"] == true);
        deleted.map(|row| row["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let revision_of = |id: &str| revision(&server, id);
    assert_eq!(server.alice("DELETE", &format!("/notes/a1?rev={}", revision_of("a1")), None).status, 200);
    let bulk = json!({"docs": [{"_id": "a2", "_rev": revision_of("a2"), "_deleted": true}]});
    assert_eq!(server.alice("POST", "/notes/_bulk_docs", Some(bulk)).json()[0]["ok"], true);
    let parent = revision_of("a3");
    let ids = ["0123456789abcdef0123456789abcdef", parent.split_once('-').unwrap().1];
    let next = json!({
        "_id": "a3", "_rev": format!("2-{}", ids[0]), "_deleted": true, "_revisions": {"start": 2, "ids": ids},
    });
    let replicated = server.alice("POST", "/notes/_bulk_docs", Some(json!({"new_edits": false, "docs": [next]})));
    assert_eq!(replicated.json(), json!([]), "{}", replicated.text);
    let path = format!("/notes/hidden-1?rev={}", revision_of("hidden-1"));
    assert_eq!(server.ask_as(BOB, "DELETE", &path, None).status, 200);
    // Also those of an administrator.
    assert_eq!(server.delete(&format!("/notes/hidden-2?rev={}", revision_of("hidden-2"))).status, 200);
    assert_eq!(deleted(ALICE), ["a1", "a2", "a3"]);
    assert_eq!(deleted(BOB), ["hidden-1", "hidden-2"]);
    // The id can be used again, by anybody.
    assert_eq!(server.alice("PUT", "/notes/hidden-1", Some(json!({"owner": "alice"}))).status, 201);
}

/// A document that leaves those that a user may read is deleted in the user's feed and copies, and there only.
#[test]
fn feeds_tell_that_a_document_is_gone() {
    let server = server();
    let position = || server.get("/notes/_changes").json()["last_seq"].as_str().unwrap().to_owned();
    let changes = |user, since: &str| {
        let path = format!("/notes/_changes?since={since}&include_docs=true&style=all_docs&conflicts=true");
        let changes = server.ask_as(user, "GET", &path, None);
        assert!(user != ALICE || !changes.text.contains(MARK), "{}", changes.text);
        changes.json()["results"].as_array().unwrap().clone()
    };
    let write = |id: &str, mut body: Value| {
        body["_rev"] = server.get(&format!("/notes/{id}")).json()["_rev"].clone();
        let written = server.put(&format!("/notes/{id}"), &body);
        assert_eq!(written.status, 201, "{}", written.text);
        written.json()["rev"].as_str().unwrap().to_owned()
    };
    // Copies of alice: of a server with another one, and of a program.
    server.database("copy", &[]);
    let replicate = || {
        let source = format!("http://alice:alice's@{}/notes", server.address());
        let done = server.post("/_replicate", &json!({"source": source, "target": "copy"}));
        assert_eq!(done.status, 200, "{}", done.text);
    };
    replicate();
    assert_eq!(server.get("/copy/a1").json()["n"], 1);

    let (since, known) = (position(), revision(&server, "a1"));
    let taken = write("a1", json!({"owner": "bob", "text": MARK, "n": 1}));
    write("hidden-2", json!({"team": "legal", "text": MARK}));
    let reported = changes(ALICE, &since);
    assert_eq!(reported.len(), 1, "{reported:?}");
    let gone = reported[0]["changes"][0]["rev"].as_str().unwrap().to_owned();
    assert_eq!((&reported[0]["id"], &reported[0]["deleted"]), (&json!("a1"), &json!(true)));
    assert_eq!(reported[0]["doc"], json!({"_id": "a1", "_rev": gone, "_deleted": true, "owner": "alice"}));
    assert!(gone != taken && gone.starts_with("2-"));
    // Who may read it now sees the new revision; who never could, nothing.
    let of_bob = changes(BOB, &since);
    assert!(of_bob.iter().all(|row| row.get("deleted").is_none()), "{of_bob:?}");
    assert_eq!(ids(&json!(of_bob), "id"), ["a1", "hidden-2"]);
    assert!(changes(Some(("carol", "carol's")), &since).is_empty());
    // A replicator asks for the deletion next; nothing else about the document is revealed.
    let open = |revision: &str| {
        let path = format!("/notes/a1?rev={revision}&revs=true&conflicts=true&deleted_conflicts=true&meta=true");
        server.alice("GET", &path, None)
    };
    assert_eq!(open(&gone).json()["_deleted"], true);
    assert!(!open(&gone).text.contains(&taken), "{}", open(&gone).text);
    assert_eq!((open(&taken).status, open(&known).status), (404, 404));
    assert_eq!(server.alice("GET", "/notes/a1", None).status, 404);
    let got = json!({"docs": [{"id": "a1", "rev": gone}, {"id": "a1", "rev": known}, {"id": "a1", "rev": taken}]});
    let got = server.alice("POST", "/notes/_bulk_get?revs=true&latest=true", Some(got)).json();
    let of = |at: usize| got["results"][at]["docs"][0].clone();
    let path = [&gone, &known].map(|revision| revision.split_once('-').unwrap().1);
    assert_eq!(of(0)["ok"]["_revisions"], json!({"start": 2, "ids": path}));
    assert_eq!(of(1)["ok"]["_rev"], gone.as_str(), "the leaf of the revision that alice has");
    assert_eq!(of(2)["error"]["error"], "not_found");
    let unknown = server.alice("POST", "/notes/_revs_diff", Some(json!({"a1": [gone, known, taken]}))).json();
    assert_eq!(unknown, json!({"a1": {"missing": [taken]}}));
    replicate();
    assert_eq!(server.get("/copy/a1").json()["reason"], "deleted");

    // Further changes are not reported.
    let since = position();
    write("a1", json!({"owner": "bob", "text": MARK, "n": 2}));
    let secret = write("a1", json!({"team": "legal", "text": MARK, "n": 3}));
    assert!(changes(ALICE, &since).is_empty());
    assert_eq!(server.alice("GET", &format!("/notes/a1?rev={secret}"), None).status, 404);
    // An edit of what is gone is refused.
    let edit = json!({"_rev": gone, "owner": "alice"});
    assert_eq!(server.alice("PUT", "/notes/a1", Some(edit)).status, 403);
    // The document comes back, with what was written in between.
    write("a1", json!({"owner": "alice", "n": 4}));
    let reported = changes(ALICE, &since);
    assert_eq!((reported.len(), &reported[0]["doc"]["n"]), (1, &json!(4)));
    // Of the branches, those that alice may read: the document, and the deletion of what she had.
    assert_eq!(reported[0]["changes"].as_array().unwrap().len(), 2, "{reported:?}");
    replicate();
    assert_eq!(server.get("/copy/a1").json()["n"], 4);

    // By every way to write.
    let since = position();
    let bulk = json!({"docs": [{"_id": "a1", "_rev": revision(&server, "a1"), "owner": "bob"}]});
    assert_eq!(server.post("/notes/_bulk_docs", &bulk).json()[0]["ok"], true);
    let transaction = json!({"docs": [{"_id": "a2", "_rev": revision(&server, "a2"), "owner": "bob"}]});
    assert_eq!(server.post("/notes/_transact", &transaction).status, 201);
    let patched = server.ask_as(crate::client::ADMIN, "PATCH", "/notes/public", Some(&json!({"public": false})));
    assert_eq!(patched.status, 201);
    let old = revision(&server, "a3");
    let hashes = ["0123456789abcdef0123456789abcdef", old.split_once('-').unwrap().1];
    let next = json!({"_id": "a3", "_rev": format!("2-{}", hashes[0]), "owner": "bob",
        "_revisions": {"start": 2, "ids": hashes}});
    assert_eq!(server.post("/notes/_bulk_docs", &json!({"new_edits": false, "docs": [next]})).json(), json!([]));
    let reported = changes(ALICE, &since);
    assert_eq!(ids(&json!(reported), "id"), ["a1", "a2", "public", "a3"]);
    assert!(reported.iter().all(|row| row["deleted"] == true));
    replicate();
    assert_eq!(server.get("/copy").json()["doc_count"], 0);
    // The deletions are no conflicts of the documents.
    assert_eq!(server.get("/notes/a2?conflicts=true").json().get("_conflicts"), None);
    assert_eq!(server.alice("GET", "/notes", None).json()["doc_count"], 0);
    // One that was not applied takes nothing away.
    let stale = json!({"_id": "hidden-3", "_rev": "1-00000000000000000000000000000000", "owner": "bob"});
    assert_eq!(server.put("/notes/hidden-3", &stale).status, 409);
    assert_eq!(server.get("/notes/hidden-3?deleted_conflicts=true").json().get("_deleted_conflicts"), None);
}

#[test]
fn live_queries_and_waiting_feeds_obey_the_rule() {
    let server = server();
    let credentials = basic("alice", "alice's");
    let mut events = Events::get(&server, &credentials, "/notes/_watch?selector=%7B%7D");
    let mut sorted = Events::get(&server, &credentials, "/notes/_watch?selector=%7B%7D&sort=%5B%22n%22%5D&limit=10");
    let mut feed = Events::get(&server, &credentials, "/notes/_changes?feed=eventsource&since=now&heartbeat=1000");
    let mut paths = Events::get(&server, &credentials, "/notes/_watch?path=text&path=owner");
    let step = |events: &mut Events| {
        let mut seen = Vec::new();
        loop {
            let (kind, _, data) = events.next().unwrap();
            assert!(!data.to_string().contains(MARK), "{data}");
            match kind.as_str() {
                "state" => return seen,
                _ => seen.push(format!("{kind} {}", data["id"].as_str().unwrap_or_default())),
            }
        }
    };
    let mut first = step(&mut events);
    first.sort();
    assert_eq!(first, ["enter a1", "enter a2", "enter a3", "enter public", "reset "]);
    assert_eq!(step(&mut sorted).len(), 5);
    assert_eq!(step(&mut paths), [""; 0]);
    // Of hidden documents nothing is reported, not even that they change.
    let put = |id: &str, mut body: Value| {
        if let Some(known) = server.get(&format!("/notes/{id}")).json().get("_rev") {
            body["_rev"] = known.clone();
        }
        assert_eq!(server.put(&format!("/notes/{id}"), &body).status, 201);
    };
    put("hidden-1", json!({"owner": "bob", "text": MARK, "n": 7}));
    put("hidden-9", json!({"owner": "bob", "text": MARK}));
    put("a1", json!({"owner": "bob", "text": MARK, "n": 1}));
    assert_eq!(step(&mut events), ["leave a1"]);
    put("hidden-1", json!({"owner": "alice", "n": 8}));
    assert_eq!(step(&mut events), ["enter hidden-1"]);
    let mut seen = Vec::new();
    while !seen.contains(&"enter hidden-1".to_owned()) {
        seen.extend(step(&mut sorted));
    }
    assert!(seen.contains(&"leave a1".to_owned()), "{seen:?}");
    // At the paths, hidden documents are absent.
    assert_eq!(step(&mut paths), ["change a1"]);
    assert_eq!(step(&mut paths), ["change hidden-1"]);
    // A feed reports the document as deleted, once.
    let next = feed.next_data();
    assert_eq!((&next["id"], &next["deleted"]), (&json!("a1"), &json!(true)));
    let next = feed.next_data();
    assert_eq!((&next["id"], next.to_string().contains(MARK)), (&json!("hidden-1"), false));
    // A client that resumes gets the whole result, because changes would name documents that it never saw.
    let since = server.get("/notes").json()["update_seq"].as_str().unwrap().to_owned();
    put("hidden-2", json!({"owner": "bob", "text": MARK, "n": 1}));
    let mut resumed = Events::get(&server, &credentials, &format!("/notes/_watch?selector=%7B%7D&since={since}"));
    let mut first = step(&mut resumed);
    first.sort();
    assert_eq!(first, ["enter a2", "enter a3", "enter hidden-1", "enter public", "reset "]);
    // Changing the rule ends what applies the old one.
    let narrower = json!({"selector": {"owner": {"$user": "name"}}});
    assert_eq!(server.put("/notes/_security", &security(narrower)).status, 200);
    let begun = Instant::now();
    while let Some((kind, _, data)) = events.next() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it continues");
        if kind == "failure" {
            assert_eq!(data["error"], "forbidden");
        }
    }
    assert_eq!(server.alice("GET", "/notes/_all_docs", None).json()["total_rows"], 3);
}

/// All routes, with parameters that ask for as much as possible, tell a restricted user nothing about other documents.
#[test]
fn no_route_leaks_hidden_documents() {
    let server = server();
    // Conflicts: hidden branches of a visible document.
    let branch = |rev: &str, owner: &str, text: &str| json!({"_id": "a2", "_rev": rev, "owner": owner, "text": text});
    let hidden = branch("1-00000000000000000000000000000001", "bob", MARK);
    let branches = [hidden, branch("3-00000000000000000000000000000002", "alice", "winner")];
    let branches = json!({"new_edits": false, "docs": branches});
    assert_eq!(server.post("/notes/_bulk_docs", &branches).json(), json!([]));
    let queries = [
        "",
        "?include_docs=true&conflicts=true&meta=true&attachments=true&style=all_docs",
        "?as_of=1",
        "?open_revs=all&revs=true",
        "?rev=1-00000000000000000000000000000001",
        "?filter=views/all&include_docs=true",
        "?reduce=false&include_docs=true",
        "?path=text",
        "?topic=%23",
        "?selector=%7B%7D&heartbeat=100",
    ];
    let bodies = [
        json!({"selector": {}, "conflicts": true, "limit": 100}),
        json!({"docs": [{"id": "hidden-1"}, {"id": "a2"}, {"id": "a2", "rev": "1-00000000000000000000000000000001"}]}),
        json!({"keys": ["hidden-1", "_design/views"]}),
        json!({"queries": [{"include_docs": true}]}),
        json!({"pipeline": [{"$match": {}}]}),
        json!({"pipeline": [{"$match": {}}], "explain": true}),
        json!({"hidden-1": ["1-00000000000000000000000000000009"]}),
    ];
    let mut counts = [0, 0];
    for route in route_descriptions().into_iter().filter(|route| route.access == Access::Member) {
        let documents: &[&str] = if route.path.contains("{doc") { &["hidden-1", "a2", "hidden-3"] } else { &["a2"] };
        for document in documents {
            let path = route.path.replace("{db}", "notes").replace("{doc}", document).replace("{doc*}", document);
            let path = path.replace("{ddoc}", "views").replace("{view}", "all").replace("{file*}", "file");
            let path = path.replace("{namespace}", "names").replace("{key*}", "k").replace("{local*}", "shared");
            let path = path.replace("{function}", "one").replace(['{', '}', '*'], "");
            for query in queries {
                let bodies = if matches!(route.method, "POST" | "PUT" | "PATCH") { &bodies[..] } else { &bodies[..1] };
                for body in bodies {
                    let body = matches!(route.method, "POST" | "PUT" | "PATCH").then_some(body);
                    // Streams are tested on their own.
                    let is_stream = path.ends_with("_watch") && !query.contains("as_of")
                        || path.ends_with("_subscribe") && query.contains("topic");
                    if is_stream {
                        continue;
                    }
                    let answer = server.ask_as(ALICE, route.method, &format!("{path}{query}"), body);
                    let shown = format!("{} {path}{query} {body:?}: {} {}", route.method, answer.status, answer.text);
                    assert!(!answer.text.contains(MARK) && answer.status < 500, "{shown}");
                    if query.contains("as_of") && answer.status < 300 {
                        assert!(matches!(route.method, "PUT" | "POST" | "DELETE" | "PATCH" | "COPY"), "{shown}");
                    }
                    counts[usize::from(answer.status == 403)] += 1;
                }
            }
        }
    }
    assert!(counts[0] > 200 && counts[1] > 200, "{counts:?}");
    // Nothing hidden was changed either.
    assert_eq!(server.get("/notes/hidden-3").json()["text"], MARK);
}

#[test]
fn routes_that_have_no_restricted_form_are_refused() {
    let server = server();
    for (method, path) in [
        ("GET", "/notes/_design/views/_view/all"),
        ("GET", "/notes/_design/views/_view/all?group=true"),
        ("GET", "/notes/_design/views/_view/all?reduce=false&update=false"),
        ("GET", "/notes/_design/views/_list/l/all"),
        ("GET", "/notes/_design/views"),
        ("POST", "/notes/_explain"),
        ("GET", "/notes/_paths"),
        ("GET", "/notes/_statistics"),
        ("GET", "/notes/_keys/names"),
        ("GET", "/notes/_local_docs"),
        ("GET", "/notes/_subscribe?topic=a"),
        ("GET", "/notes/a1?as_of=1"),
    ] {
        let answer = server.alice(method, path, (method == "POST").then(|| json!({"selector": {}})));
        assert_eq!(answer.status, 403, "{method} {path}: {}", answer.text);
        assert!(answer.json()["reason"].as_str().unwrap().contains("access rule limits you"), "{}", answer.text);
        // Streams of an administrator would not end.
        if !path.contains("_watch") && !path.contains("_subscribe") {
            assert_ne!(server.ask_as(Some(("boss", "boss's")), method, path, None).status, 403, "{method} {path}");
        }
    }
    // Local documents of restricted users are their own.
    assert_eq!(server.alice("GET", "/notes/_local/shared", None).status, 404);
    assert_eq!(server.alice("PUT", "/notes/_local/shared", Some(json!({"a": 1}))).status, 201);
    assert_eq!(server.alice("GET", "/notes/_local/shared", None).json()["a"], 1);
    assert_eq!(server.ask_as(BOB, "GET", "/notes/_local/shared", None).status, 404);
    assert_eq!(server.get("/notes/_local/shared").json()["text"], MARK);
    assert_eq!(server.alice("DELETE", "/notes/_local/shared", None).status, 200);
    let malformed = server.put("/notes/_security", &security(json!({"selector": {"a": {"$user": "age"}}})));
    assert_eq!(malformed.status, 400, "{}", malformed.text);
}

/// Random documents and users: each answer is that of a database which contains only the visible documents.
#[test]
fn answers_equal_those_of_a_database_of_the_visible_documents() {
    let server = TestServer::new();
    users(&server);
    let mut state = 7_u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let owners = ["alice", "bob", "carol"];
    let documents: Vec<Value> = (0..400)
        .map(|number| {
            let mut document = json!({"_id": format!("d{:03}", random(100_000)), "n": random(20), "number": number});
            if random(4) > 0 {
                document["owner"] = owners[random(3) as usize].into();
            }
            if random(5) == 0 {
                document["team"] = ["legal", "staff"][random(2) as usize].into();
            }
            if random(20) == 0 {
                document["public"] = true.into();
            }
            document
        })
        .collect();
    let mut unique = BTreeSet::new();
    let documents: Vec<Value> =
        documents.into_iter().filter(|document| unique.insert(document["_id"].to_string())).collect();
    server.database("all", &documents);
    assert_eq!(server.put("/all/_security", &security(rule())).status, 200);
    for (name, roles) in [("alice", vec![]), ("bob", vec!["legal"]), ("carol", vec!["staff"])] {
        let is_visible = |document: &&Value| {
            document["owner"] == name
                || document["team"].as_str().is_some_and(|team| roles.contains(&team))
                || document["public"] == true
        };
        let visible: Vec<Value> = documents.iter().filter(is_visible).cloned().collect();
        assert!(visible.len() > 20 && visible.len() < documents.len());
        server.database(name, &visible);
        let password = format!("{name}'s");
        let user = Some((name, password.as_str()));
        let without_sequence = |mut answer: Value| {
            for row in answer["results"].as_array_mut().into_iter().flatten() {
                row["seq"] = json!(0);
            }
            for name in ["last_seq", "bookmark", "update_seq", "warning"] {
                answer.as_object_mut().unwrap().remove(name);
            }
            answer
        };
        let same = |method: &str, path: &str, body: Option<Value>| {
            let restricted = server.ask_as(user, method, &format!("/all/{path}"), body.as_ref());
            let expected = server.ask_as(crate::client::ADMIN, method, &format!("/{name}/{path}"), body.as_ref());
            assert_eq!(
                (restricted.status, expected.status),
                (200, 200),
                "{path} {body:?}: {} {}",
                restricted.text,
                expected.text
            );
            assert_eq!(
                without_sequence(restricted.json()),
                without_sequence(expected.json()),
                "{name}: {path} {body:?}"
            );
        };
        for query in [
            "",
            "?descending=true",
            "?skip=3&limit=7",
            "?startkey=%22d4%22&limit=5&include_docs=true",
            "?startkey=%22d7%22&descending=true&skip=2&limit=4",
            "?limit=0",
            "?startkey=%22d2%22&endkey=%22d3%22",
        ] {
            same("GET", &format!("_all_docs{query}"), None);
        }
        for query in ["", "?include_docs=true", "?limit=5", "?descending=true&limit=3"] {
            same("GET", &format!("_changes{query}"), None);
        }
        for n in [0, 5, 19] {
            for selector in [
                json!({"n": n}),
                json!({"n": {"$gt": n}}),
                json!({"$or": [{"n": n}, {"team": "staff"}]}),
                json!({"owner": "bob"}),
            ] {
                same("POST", "_find", Some(json!({"selector": selector, "sort": ["_id"], "limit": 50})));
                let (sort, fields) = (json!([{"number": "desc"}]), json!(["n"]));
                let page = json!({"selector": selector, "sort": sort, "skip": 2, "limit": 5, "fields": fields});
                same("POST", "_find", Some(page));
                let group = json!({"_id": "$owner", "count": {"$sum": 1}, "n": {"$sum": "$n"}});
                let pipeline = json!([{"$match": selector}, {"$group": group}, {"$sort": {"_id": 1}}]);
                same("POST", "_aggregate", Some(json!({ "pipeline": pipeline })));
            }
        }
    }
}
