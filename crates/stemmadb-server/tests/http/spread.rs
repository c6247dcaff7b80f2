//! Virtual databases with shards on several servers.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{ADMIN, TestServer};
use crate::virtual_database::{
    Ending, check_replication_by_name, check_transactions, compare_answers, create, numbered, start_move, until,
    until_moved, write, write_twins,
};

/// Three servers; the first one knows the others as `b` and `c`.
pub(crate) struct Servers {
    pub(crate) home: TestServer,
    pub(crate) b: TestServer,
    c: TestServer,
}

impl Servers {
    pub(crate) fn start() -> Self {
        Self::start_with(TestServer::new)
    }

    pub(crate) fn start_with(new: impl Fn() -> TestServer) -> Self {
        let servers = Servers { home: new(), b: new(), c: new() };
        for (name, server) in [("b", &servers.b), ("c", &servers.c)] {
            let url = format!("http://admin:secret@{}", server.address());
            let added = servers.home.put(&format!("/_servers/{name}"), &json!({"url": url, "zone": name}));
            assert_eq!(added.status, 201, "{added:?}");
        }
        servers
    }

    /// The servers of the shards.
    fn placed(&self) -> Vec<String> {
        let shards = self.home.get("/v/_shards").json();
        let server = |shard: &Value| shard["server"].as_str().unwrap().to_owned();
        shards["shards"].as_array().unwrap_or_else(|| panic!("{shards}")).iter().map(server).collect()
    }

    /// An id of a document whose shard is on a server.
    pub(crate) fn id_on(&self, server: &str) -> String {
        let shards = self.home.get("/v/_shards").json();
        let of = |shard: &Value| {
            let listed = shards["shards"].as_array().unwrap().iter().find(|listed| listed["name"] == *shard);
            listed.unwrap()["server"].clone()
        };
        let is_on = |id: &String| of(&self.home.get(&format!("/v/_shards/{id}")).json()["shard"]) == *server;
        (0..).map(|n| format!("on-{server}-{n}")).find(is_on).unwrap()
    }
}

#[test]
fn databases_replicate_by_their_names() {
    check_replication_by_name(&Servers::start().home, "shards=4&servers=here,b,c");
}

#[test]
fn answers_equal_those_of_one_database() {
    needs_one_server!("the shards of a cluster are on its servers by their URLs, not `here`");
    let mut servers = Servers::start();
    create(&servers.home, "/v?shards=5&servers=here,b,c");
    assert_eq!(servers.placed(), ["here", "b", "c", "here", "b"]);
    write_twins(&servers.home);
    assert!(servers.b.get("/v%2Fshard-2").json()["doc_count"].as_u64().unwrap() > 5);
    assert_eq!(servers.b.ask_as(None, "GET", "/v%2Fshard-2", None).status, 401);
    for turn in 0..4 {
        compare_answers(&servers.home);
        let info = servers.home.get("/v").json();
        assert_eq!(
            (&info["doc_count"], &info["cluster"]["q"]),
            (&json!(101), &json!(info["shards"].as_object().unwrap().len()))
        );
        assert!(info["sizes"]["file"].as_u64().unwrap() > 1_000, "{info}");
        match turn {
            0 => servers.home.restart(),
            1 => {
                // To another server, divided between servers, and back.
                for request in [
                    json!({"merge": "shard-1", "server": "c"}),
                    json!({"split": "shard-2", "server": "c"}),
                    json!({"merge": "shard-3", "into": "shard-4"}),
                ] {
                    start_move(&servers.home, "v", &request);
                    until_moved(&servers.home, "v");
                }
            }
            2 => {
                let shards = servers.home.get("/v/_shards").json();
                let elsewhere = shards["shards"].as_array().unwrap().iter().filter(|shard| shard["server"] != "here");
                for shard in elsewhere.map(|shard| &shard["name"]) {
                    start_move(&servers.home, "v", &json!({"merge": shard, "server": "here"}));
                    until_moved(&servers.home, "v");
                }
                assert!(servers.placed().iter().all(|server| server == "here"), "{:?}", servers.placed());
                until("the databases of former shards are deleted", || {
                    let left = |server: &TestServer| server.get("/_all_dbs").json().as_array().unwrap().len();
                    left(&servers.b) + left(&servers.c) == 0
                });
            }
            _ => {}
        }
    }
}

#[test]
fn documents_are_read_and_written_on_their_servers() {
    needs_one_server!("the shards of a cluster are on its servers by their URLs, not `here`");
    let servers = Servers::start();
    create(&servers.home, "/v?shards=3&servers=here,b,c");
    let home = &servers.home;
    for server in ["here", "b", "c"] {
        let id = servers.id_on(server);
        let path = format!("/v/{id}");
        let written = home.put(&path, &json!({"n": 1}));
        assert_eq!(written.status, 201, "{written:?}");
        assert!(written.header("location").unwrap().ends_with(&path), "{written:?}");
        assert_eq!(home.put(&path, &json!({"n": 2})).status, 409);
        let rev = written.json()["rev"].as_str().unwrap().to_owned();
        let patched = home.ask_as(ADMIN, "PATCH", &format!("{path}?rev={rev}"), Some(&json!({"$set": {"m": 7}})));
        assert_eq!(patched.status, 201, "{patched:?}");
        let rev = patched.json()["rev"].as_str().unwrap().to_owned();
        let content = vec![b'x'; 3 << 20];
        let stored =
            home.send_as_admin("PUT", &format!("{path}/f.txt?rev={rev}"), &[("Content-Type", "text/plain")], &content);
        assert_eq!(stored.status, 201, "{stored:?}");
        let read = home.get(&format!("{path}/f.txt"));
        assert_eq!((read.status, read.text.len(), read.header("content-type")), (200, 3 << 20, Some("text/plain")));
        let part = home.send_as_admin("GET", &format!("{path}/f.txt"), &[("Range", "bytes=1-4")], b"");
        assert_eq!((part.status, part.text.as_str()), (206, "xxxx"));
        let document = home.get(&path);
        assert_eq!(document.json()["_attachments"]["f.txt"]["length"], 3 << 20);
        let tag = document.header("etag").unwrap().to_owned();
        assert_eq!(home.send_as_admin("GET", &path, &[("If-None-Match", &tag)], b"").status, 304);
        let rev = document.json()["_rev"].as_str().unwrap().to_owned();
        assert_eq!(home.delete(&format!("{path}?rev={rev}")).status, 200);
        assert_eq!(home.get(&path).json()["reason"], "deleted");
    }
    let made = home.post("/v", &json!({"n": 1})).json();
    assert_eq!(home.get(&format!("/v/{}", made["id"].as_str().unwrap())).json()["n"], 1);
    assert_eq!(home.put("/v/_local/checkpoint", &json!({"at": 5})).status, 201);
    assert_eq!(home.get("/v/_local/checkpoint").json()["at"], 5);
    let bulk = json!({"docs": [{"_id": "_local/other", "at": 6}, {"_id": "b"}, {"n": 3}, {"_id": "b"}]});
    let rows = home.post("/v/_bulk_docs", &bulk).json();
    assert_eq!((&rows[1]["id"], &rows[3]["error"]), (&json!("b"), &json!("conflict")), "{rows}");
    assert_eq!(home.get("/v/_local/other").json()["at"], 6);
    let replicated = json!({"new_edits": false, "docs": [{"_id": "r1", "_rev": "2-b0"}, {"_id": "r2", "_rev": "x"}]});
    let rows = home.post("/v/_bulk_docs", &replicated).json();
    assert!(rows.as_array().unwrap().iter().all(|row| row["id"] != "r1"), "{rows}");
    for path in ["_ensure_full_commit", "_compact", "_view_cleanup"] {
        let answered = home.post(&format!("/v/{path}"), &json!({}));
        assert!(matches!(answered.status, 201 | 202), "{path}: {answered:?}");
    }
}

#[test]
fn transactions_are_within_one_bucket() {
    needs_one_server!("the shards of a cluster are on its servers by their URLs, not `here`");
    let servers = Servers::start();
    create(&servers.home, "/v?shards=3&servers=here,b,c&prefix=:");
    check_transactions(&servers.home, &["here", "b", "c"].map(|server| servers.id_on(server)));
}

#[test]
fn feeds_report_changes_of_all_servers() {
    needs_one_server!("the shards of a cluster are on its servers by their URLs, not `here`");
    let servers = Servers::start();
    create(&servers.home, "/v?shards=3&servers=here,b,c");
    let home = &servers.home;
    write(home, "v", &numbered(0..30));
    let all = home.get("/v/_changes?include_docs=true").json();
    let ids = |changes: &Value| {
        let rows = changes["results"].as_array().unwrap_or_else(|| panic!("{changes}")).iter();
        rows.map(|row| row["id"].as_str().unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    assert_eq!(ids(&all).len(), 30);
    assert!(all["results"].as_array().unwrap().iter().all(|row| row["doc"]["n"].is_u64()), "{all}");
    assert_eq!(ids(&home.get("/v/_changes?since=now").json()).len(), 0);
    let mut since = all["last_seq"].as_str().unwrap().to_owned();
    for server in ["here", "b", "c"] {
        let id = servers.id_on(server);
        let path = format!("/v/_changes?feed=longpoll&timeout=60000&since={since}");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| home.get(&path).json());
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(home.put(&format!("/v/{id}"), &json!({})).status, 201);
            let answer = waiting.join().unwrap();
            assert_eq!(ids(&answer), [id.clone()].into(), "{answer}");
            since = answer["last_seq"].as_str().unwrap().to_owned();
        });
    }
    // A position is still right after documents have moved to other servers.
    start_move(home, "v", &json!({"merge": "shard-2", "server": "c"}));
    until_moved(home, "v");
    let id = servers.id_on("c");
    let rev = home.get(&format!("/v/{id}")).json()["_rev"].as_str().unwrap_or_default().to_owned();
    let written = home.put(&format!("/v/{id}"), &json!({"_rev": rev, "again": true}));
    assert_eq!(written.status, 201, "{written:?}");
    assert!(ids(&home.get(&format!("/v/_changes?since={since}")).json()).contains(&id));
    assert_eq!(ids(&home.get("/v/_changes").json()).len(), 33);
}

#[test]
fn shards_move_between_servers_while_clients_write() {
    needs_one_server!("the shards of a cluster are on its servers by their URLs, not `here`");
    let servers = Servers::start();
    create(&servers.home, "/v?shards=2&servers=here,b");
    let home = &servers.home;
    let (stops, written, failed) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let _ending = Ending(&stops);
        for writer in 0..2 {
            let (stops, written, failed) = (&stops, &written, &failed);
            scope.spawn(move || {
                for n in 0.. {
                    if stops.load(Ordering::Relaxed) {
                        break;
                    }
                    let path = format!("/v/w{writer}-{n:05}");
                    let answered = home.put(&path, &json!({"n": n}));
                    let read = home.get(&path);
                    match (answered.status, read.status) {
                        (201, 200) => written.fetch_add(1, Ordering::Relaxed),
                        _ => failed.fetch_add(1, Ordering::Relaxed),
                    };
                }
            });
        }
        for request in [
            json!({"split": "shard-1", "server": "c"}),
            json!({"merge": "shard-2", "server": "c"}),
            json!({"split": "shard-1", "server": "b"}),
            json!({"merge": "shard-1", "into": "shard-3"}),
        ] {
            let before = written.load(Ordering::Relaxed);
            until("documents are written", || written.load(Ordering::Relaxed) > before + 50);
            start_move(home, "v", &request);
            until_moved(home, "v");
            let count = home.post("/v/_find", &json!({"selector": {}, "limit": 100_000, "fields": ["_id"]})).json();
            let ids: Vec<&str> =
                count["docs"].as_array().unwrap().iter().map(|doc| doc["_id"].as_str().unwrap()).collect();
            assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "a document is found twice");
        }
    });
    assert_eq!(failed.load(Ordering::Relaxed), 0);
    assert_eq!(home.get("/v").json()["doc_count"], written.load(Ordering::Relaxed));
    let listed = home.get("/v/_all_docs").json();
    assert_eq!(listed["rows"].as_array().unwrap().len(), written.load(Ordering::Relaxed));
}

/// The replicas of each shard, once all have everything.
fn caught_up(home: &TestServer) -> Vec<(String, Vec<String>)> {
    let mut shards = Value::Null;
    until("replicas have everything", || {
        shards = home.get("/v/_shards").json()["shards"].clone();
        let listed = shards.as_array().unwrap().iter().flat_map(|shard| shard["replicas"].as_array().unwrap());
        let listed: Vec<_> = listed.collect();
        !listed.is_empty() && listed.iter().all(|replica| replica["caught_up"] == true)
    });
    let of = |shard: &Value| {
        let server = |replica: &Value| replica["server"].as_str().unwrap().to_owned();
        let replicas = shard["replicas"].as_array().unwrap().iter().map(server).collect();
        (shard["server"].as_str().unwrap().to_owned(), replicas)
    };
    shards.as_array().unwrap().iter().map(of).collect()
}

#[test]
fn replicas_take_the_places_of_shards() {
    needs_one_server!("the shards of a cluster are on its servers by their URLs, not `here`");
    let mut servers = Servers::start();
    create(&servers.home, "/v?shards=3&servers=here,b,c&replicas=1");
    write_twins(&servers.home);
    for (server, replicas) in caught_up(&servers.home) {
        assert!(replicas.len() == 1 && replicas[0] != server, "{server} {replicas:?}");
    }
    let home = &servers.home;
    let since = home.get("/v/_changes").json()["last_seq"].as_str().unwrap().to_owned();
    // While the shard answers, nothing is lost, and its database is deleted.
    let promoted = home.post("/v/_shards", &json!({"promote": "shard-3"})).json();
    assert_eq!(promoted["promoted"]["complete"], true, "{promoted}");
    assert_eq!(home.get("/v/_shards").json()["shards"][2]["name"], promoted["promoted"]["shard"]);
    assert_eq!(servers.c.get("/v%2Fshard-3").status, 404);
    compare_answers(home);
    caught_up(home);
    assert_eq!(home.post("/v/_shards", &json!({"promote": "shard-3"})).status, 404);
    assert_eq!(home.post("/v/_shards", &json!({"promote": "shard-1", "server": "here"})).status, 404);
    for request in [json!({"promote": 1}), json!({"promote": "shard-1", "x": 1}), json!({"replicas": "1"})] {
        assert_eq!(home.post("/v/_shards", &request).status, 400, "{request}");
    }
    assert_eq!(home.post("/v/_shards", &json!({"replicas": 3})).status, 400);
    servers.home.restart();
    caught_up(&servers.home);
    // A server is lost.
    let Servers { home, b, c } = servers;
    drop(b);
    let lost = home.get("/v/_shards").json()["shards"].clone();
    for shard in lost.as_array().unwrap().iter().filter(|shard| shard["server"] == "b") {
        let refused = home.post("/v/_shards", &json!({"promote": shard["name"]}));
        assert_eq!(refused.status, 503, "{refused:?}");
        let promoted = home.post("/v/_shards", &json!({"promote": shard["name"], "incomplete": true})).json();
        assert_eq!(promoted["promoted"]["complete"], false, "{promoted}");
    }
    compare_answers(&home);
    let changed = home.get(&format!("/v/_changes?since={since}")).json();
    assert!(!changed["results"].as_array().unwrap().is_empty(), "changes of a replica are new");
    assert_eq!(home.put("/v/after", &json!({})).status, 201);
    assert_eq!(home.put("/plain/after", &json!({})).status, 201);
    assert_eq!(home.get("/v").json()["doc_count"], 102);
    // No replicas any more.
    assert_eq!(home.post("/v/_shards", &json!({"replicas": 0})).status, 202);
    let shards = home.get("/v/_shards").json()["shards"].clone();
    assert!(shards.as_array().unwrap().iter().all(|shard| shard["replicas"] == json!([])), "{shards}");
    assert_eq!(home.delete("/v").status, 200);
    assert_eq!(c.get("/_all_dbs").json(), json!([]));
    assert_eq!(home.get("/_all_dbs").json(), json!(["plain"]));
}

#[test]
fn another_server_takes_over_when_the_first_one_is_lost() {
    needs_one_server!("the shards of a cluster are on its servers by their URLs, not `here`");
    let servers = Servers::start();
    create(&servers.home, "/v?shards=3&servers=here,b,c&replicas=1");
    write_twins(&servers.home);
    caught_up(&servers.home);
    let listed = servers.home.get("/v/_shards").json()["shards"].clone();
    let Servers { home, b, c } = servers;
    drop(home);
    // The replica of the shard that was on the lost server takes its place.
    for (name, server) in [("b", &b), ("c", &c)] {
        let url = format!("http://admin:secret@{}", server.address());
        assert_eq!(c.put(&format!("/_servers/{name}"), &json!({"url": url})).status, 201);
    }
    let mut shards = serde_json::Map::new();
    for shard in listed.as_array().unwrap() {
        let place = match shard["server"].as_str() {
            Some("here") => &shard["replicas"][0],
            _ => shard,
        };
        let database = format!("v/{}", place["name"].as_str().unwrap());
        shards.insert(
            shard["name"].as_str().unwrap().to_owned(),
            json!({"server": place["server"], "database": database}),
        );
    }
    for wrong in
        [json!({}), json!({"shards": {}}), json!({"shards": {"shard-1": {"server": "b"}}}), json!({"shards": {"x": 1}})]
    {
        assert_eq!(c.put("/v?adopt=true", &wrong).status, 400, "{wrong}");
    }
    let mut incomplete = shards.clone();
    incomplete.remove("shard-2");
    assert_eq!(c.put("/v?adopt=true", &json!({"shards": incomplete})).status, 400);
    assert_eq!(c.get("/v").status, 404);
    let adopted = c.put("/v?adopt=true", &json!({"shards": shards}));
    assert_eq!(adopted.status, 201, "{adopted:?}");
    create(&c, "/plain");
    let mut docs = numbered(0..100);
    docs.push(json!({"_id": "_design/x", "language": "query"}));
    write(&c, "plain", &docs);
    compare_answers(&c);
    start_move(&c, "v", &json!({"merge": "shard-2", "server": "here"}));
    until_moved(&c, "v");
    compare_answers(&c);
    assert_eq!(c.put("/v?adopt=true", &json!({"shards": shards})).status, 412);
}

#[test]
fn server_that_does_not_answer_is_named() {
    needs_one_server!("the shards of a cluster are on its servers by their URLs, not `here`");
    let Servers { home, b, c } = Servers::start();
    let servers = Servers { home, b, c };
    create(&servers.home, "/v?shards=3&servers=here,b,c");
    let (near, far) = (servers.id_on("here"), servers.id_on("b"));
    write(&servers.home, "v", &[json!({"_id": near}), json!({"_id": far})]);
    let Servers { mut home, b, c: _c } = servers;
    drop(b);
    for turn in 0..2 {
        assert_eq!(home.get(&format!("/v/{near}")).status, 200);
        let failed = home.get(&format!("/v/{far}"));
        assert_eq!(failed.status, 503, "{failed:?}");
        assert!(failed.text.contains("server `b`"), "{failed:?}");
        let failed = home.get("/v/_all_docs");
        assert_eq!(failed.status, 503, "{failed:?}");
        if turn == 0 {
            home.restart();
        }
    }
}

#[test]
fn servers_are_kept_and_checked() {
    let mut servers = Servers::start();
    servers.home.restart();
    let home = &servers.home;
    let listed = home.get("/_servers").json();
    let url = format!("http://{}", servers.b.address());
    assert_eq!(listed["servers"]["b"], json!({"url": url, "zone": "b"}));
    assert_eq!(home.get("/_servers/b").json(), listed["servers"]["b"]);
    assert_eq!(home.get("/_servers/x").status, 404);
    for (name, body) in [
        ("x", json!({})),
        ("x", json!({"url": "db.example"})),
        ("x", json!({"url": "http://db.example/orders"})),
        ("x", json!({"url": "http://db.example", "other": 1})),
        ("here", json!({"url": "http://db.example"})),
    ] {
        assert_eq!(home.put(&format!("/_servers/{name}"), &body).status, 400, "{body}");
    }
    assert_eq!(home.ask_as(ADMIN, "PUT", "/v?shards=2&servers=here,x", None).status, 404);
    assert_eq!(home.get("/_all_dbs").json(), json!([]));
    create(home, "/v?shards=2&servers=here,b");
    assert_eq!(home.delete("/_servers/b").status, 409);
    assert_eq!(home.delete("/_servers/c").status, 200);
    assert_eq!(home.get("/_servers/c").status, 404);
    // A database of another server that has documents is no shard.
    let url = format!("http://admin:secret@{}", servers.c.address());
    home.put("/_servers/c", &json!({"url": url}));
    create(&servers.c, "/w%2Fshard-1");
    write(&servers.c, "w%2Fshard-1", &[json!({"_id": "a"})]);
    let refused = home.ask_as(ADMIN, "PUT", "/w?shards=1&servers=c", None);
    assert_eq!(refused.status, 400, "{refused:?}");
    assert_eq!(home.delete("/v").status, 200);
    assert_eq!(servers.b.get("/_all_dbs").json(), json!([]));
}
