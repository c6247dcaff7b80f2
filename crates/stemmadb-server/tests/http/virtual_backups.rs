//! Backups of virtual databases: all shards, what the virtual database stores itself, and the placement.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stemmadb_server::Config;

use crate::client::TestServer;
use crate::spread::Servers;
use crate::virtual_database::{create, numbered, start_move, until_moved, write};

fn with_backups(directory: &Path) -> TestServer {
    TestServer::with(|config| Config { backups: Some(directory.to_owned()), ..config })
}

/// What must be the same after a restore.
fn state(server: &TestServer, database: &str) -> Value {
    let shards = server.get(&format!("/{database}/_shards")).json();
    let mut placed = shards["shards"].clone();
    for shard in placed.as_array_mut().unwrap_or_else(|| panic!("{shards}")) {
        let shard = shard.as_object_mut().unwrap();
        shard.remove("database");
        if std::env::var_os("STEMMA_TEST_CLUSTER").is_some() {
            // Shards move between the servers of a cluster.
            shard.remove("server");
        }
    }
    let rows = server.get(&format!("/{database}/_all_docs?include_docs=true")).json();
    let view = server.get(&format!("/{database}/_design/d/_view/n?group_level=1")).json()["rows"].clone();
    let local = server.get(&format!("/{database}/_local/l")).json()["kept"].clone();
    json!([placed, rows, view, local])
}

fn check_backups(server: &TestServer, parameters: &str, split: &Value) {
    create(server, &format!("/v?{parameters}"));
    write(server, "v", &numbered(0..60));
    server.design(
        "v",
        "d",
        json!({"views": {"n": {"map": "function (doc) { emit([doc.even], doc.n) }", "reduce": "_sum"}}}),
    );
    assert_eq!(server.put("/v/_local/l", &json!({"kept": true})).status, 201);
    start_move(server, "v", split);
    until_moved(server, "v");
    let first = server.post("/v/_backup", &json!({}));
    assert_eq!((first.status, &first.json()["backup"]), (201, &json!(1)), "{first:?}");
    assert!(first.json()["total_bytes"].as_u64() > Some(0), "{first:?}");
    let before = state(server, "v");

    write(server, "v", &numbered(60..90));
    let second = server.post("/v/_backup", &json!({"target": "v"}));
    assert_eq!((second.status, &second.json()["backup"]), (201, &json!(2)), "{second:?}");
    let after = state(server, "v");
    assert_eq!(server.post("/v/_restore", &json!({"revert": true})).status, 501);

    for (name, body, expected) in
        [("newest", json!({"target": "v"}), &after), ("oldest", json!({"target": "v", "backup": 1}), &before)]
    {
        let restored = server.post(&format!("/{name}/_restore"), &body);
        assert_eq!((restored.status, &restored.json()["ok"]), (201, &json!(true)), "{restored:?}");
        assert_eq!(&state(server, name), expected, "{name}");
        // It is written and moved as any other, and independent of the first one.
        write(server, name, &numbered(200..230));
        start_move(server, name, &json!({"split": "shard-1"}));
        until_moved(server, name);
        let count = expected[1]["total_rows"].as_u64().unwrap() + 30;
        assert_eq!(server.get(&format!("/{name}/_all_docs?limit=0")).json()["total_rows"], count);
    }
    assert_eq!(state(server, "v"), after);
    for (body, status) in [
        (json!({"target": "v"}), 412),
        (json!({"target": "v", "backup": 9}), 404),
        (json!({"target": "v", "at": "-1s"}), 400),
        (json!({"target": "nothing"}), 404),
    ] {
        let name = if status == 412 { "newest" } else { "other" };
        let refused = server.post(&format!("/{name}/_restore"), &body);
        assert_eq!(refused.status, status, "{body}: {refused:?}");
    }
    assert_eq!(server.get("/other").status, 404);
}

#[test]
fn shards_are_backed_up_and_restored_together() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = with_backups(directory.path());
    check_backups(&server, "shards=3", &json!({"split": "shard-1"}));
    let restored = state(&server, "oldest");
    server.restart();
    assert_eq!(state(&server, "oldest"), restored);
    // A backup that lacks a part leaves nothing behind.
    std::fs::remove_dir_all(directory.path().join("v.shard-2")).unwrap();
    assert_eq!(server.post("/broken/_restore", &json!({"target": "v"})).status, 404);
    assert_eq!(server.get("/broken").status, 404);
    assert!(server.post("/v/_shards", &json!({"split": "shard-3"})).status == 202);
    let mut refused = server.post("/v/_backup", &json!({"target": "w"}));
    while refused.status == 201 && !server.get("/v/_shards").json()["move"].is_null() {
        refused = server.post("/v/_backup", &json!({"target": "w"}));
    }
    assert!(matches!(refused.status, 201 | 409), "{refused:?}");
    until_moved(&server, "v");
}

#[test]
fn shards_of_other_servers_are_backed_up_and_restored() {
    needs_one_server!("the shards of a cluster are wherever it has them");
    let directory = tempfile::tempdir().unwrap();
    let servers = Servers::start_with(|| with_backups(&tempfile::tempdir_in(directory.path()).unwrap().keep()));
    check_backups(&servers.home, "shards=3&servers=here,b,c", &json!({"split": "shard-1", "server": "b"}));
}

#[test]
fn complete_backups_stay() {
    let directory = tempfile::tempdir().unwrap();
    let server = with_backups(directory.path());
    create(&server, "/v?shards=2");
    let back_up = |keep: Value| server.post("/v/_backup", &json!({"keep": keep}));
    for round in 0..4 {
        write(&server, "v", &numbered(round * 10..round * 10 + 10));
        assert_eq!(back_up(json!(2)).status, 201);
    }
    // With one shard that can't be backed up, the attempts delete nothing of the backups that are complete.
    let (target, aside) = (directory.path().join("v.shard-2"), directory.path().join("aside"));
    std::fs::rename(&target, &aside).unwrap();
    std::fs::write(&target, "").unwrap();
    for _ in 0..3 {
        let refused = back_up(json!(2));
        assert!(refused.status >= 400, "{refused:?}");
    }
    std::fs::remove_file(&target).unwrap();
    std::fs::rename(&aside, &target).unwrap();
    let restore = |name: &str, backup: u64| {
        let restored = server.post(&format!("/{name}/_restore"), &json!({"target": "v", "backup": backup})).status;
        (restored, server.get(&format!("/{name}/_all_docs?limit=0")).json()["total_rows"].clone())
    };
    assert_eq!(restore("fourth", 4), (201, json!(40)));
    assert_eq!(restore("third", 3), (201, json!(30)));
    assert_eq!(restore("second", 2).0, 404);
    // What only deleted manifests named is deleted, too.
    let last = back_up(json!(1)).json()["backup"].as_u64().unwrap();
    assert_eq!(back_up(json!(1)).json()["backup"], last + 1);
    assert_eq!(restore("last", last).0, 404);
    assert_eq!(restore("newest", last + 1), (201, json!(40)));
    let files = std::fs::read_dir(directory.path().join("v.shard-2")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| name.starts_with("manifest-")).count(), 2);
    for wrong in [json!(0), json!("x"), json!([1])] {
        assert_eq!(back_up(wrong.clone()).status, 400, "{wrong}");
    }
}

#[test]
fn backups_of_virtual_databases_are_repeated() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = with_backups(directory.path());
    create(&server, "/v?shards=2");
    write(&server, "v", &numbered(0..20));
    let follow = json!({"continuous": true, "interval": 0.05, "keep": 3});
    assert_eq!(server.post("/v/_backup", &follow).status, 202);
    let mut number = 0;
    // Restores the newest backup until it has this many documents.
    let mut wait_for = |server: &TestServer, count: u64| {
        let until = Instant::now() + Duration::from_secs(120);
        loop {
            number += 1;
            let restored = server.post(&format!("/restored-{number}/_restore"), &json!({"target": "v"}));
            let found = server.get(&format!("/restored-{number}/_all_docs?limit=0")).json()["total_rows"].clone();
            if restored.status == 201 {
                server.delete(&format!("/restored-{number}"));
            }
            if found == count {
                break;
            }
            assert!(Instant::now() < until, "{found} of {count}: {restored:?}; {:?}", server.get("/v"));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait_for(&server, 20);
    let status = server.get("/v").json()["backup"].clone();
    assert!(status["backup"].as_u64() >= Some(1) && status["running"] == true, "{status}");
    server.restart();
    write(&server, "v", &numbered(20..30));
    wait_for(&server, 30);
    start_move(&server, "v", &json!({"split": "shard-1"}));
    until_moved(&server, "v");
    write(&server, "v", &numbered(30..40));
    wait_for(&server, 40);
    // The end has everything.
    write(&server, "v", &numbered(40..50));
    let end = json!({"continuous": true, "cancel": true});
    assert_eq!(server.post("/v/_backup", &end).status, 200);
    wait_for(&server, 50);
    assert!(server.get("/v").json().get("backup").is_none());
    assert_eq!(server.post("/v/_backup", &end).status, 404);
    assert_eq!(server.post("/v/_backup", &json!({"continuous": true, "check": 60})).status, 501);
}

#[test]
fn backups_of_virtual_databases_need_a_directory() {
    let server = TestServer::new();
    create(&server, "/v?shards=2");
    assert_eq!(server.post("/v/_backup", &json!({})).status, 403);
    assert_eq!(server.ask_as(None, "POST", "/v/_backup", Some(&json!({}))).status, 401);
}
