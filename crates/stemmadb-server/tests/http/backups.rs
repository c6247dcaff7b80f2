//! Backups by HTTP.

use serde_json::json;
use stemmadb::Database;
use stemmadb::backup::{self, DirectoryTarget, RestoreOptions};
use stemmadb_server::Config;

use crate::client::TestServer;

#[test]
fn backups_are_made_below_the_configured_directory() {
    let directory = tempfile::tempdir().unwrap();
    let backups = directory.path().join("backups");
    let server = TestServer::with(|config| Config { backups: Some(backups.clone()), ..config });
    server.database("library", &[json!({"_id": "emma", "year": 1815})]);
    let first = server.post("/library/_backup", &json!({}));
    assert_eq!((first.status, &first.json()["backup"]), (201, &json!(1)), "{first:?}");
    server.put("/library/solaris", &json!({"year": 1961}));
    let second = server.post("/library/_backup", &json!({"keep": 1})).json();
    assert_eq!((&second["ok"], &second["backup"]), (&json!(true), &json!(2)));
    assert_eq!(server.post("/library/_backup", &json!({"target": "nightly"})).json()["backup"], 1);

    let target = DirectoryTarget::open(backups.join("library")).unwrap();
    assert_eq!(backup::list(&target).unwrap().len(), 1, "one is kept");
    backup::restore(&target, directory.path().join("restored"), RestoreOptions::new()).unwrap();
    let restored = Database::open(directory.path().join("restored")).unwrap();
    assert!(restored.get("emma").unwrap().is_some() && restored.get("solaris").unwrap().is_some());
    assert!(backup::verify(&DirectoryTarget::open(backups.join("nightly")).unwrap()).unwrap().is_sound());

    for target in ["", ".", "..", "../elsewhere", "/tmp/x", "a/b", ".hidden", "a\u{0}b"] {
        let answer = server.post("/library/_backup", &json!({"target": target}));
        assert_eq!(answer.status, 400, "{target:?}");
    }
    assert_eq!(server.post("/library/_backup", &json!({"keep": 0})).status, 400);
    assert_eq!(server.post("/nothing/_backup", &json!({})).status, 404);
    // The target has backups of another database.
    server.database("other", &[]);
    assert_eq!(server.post("/other/_backup", &json!({"target": "library"})).status, 400);
    let names = backups.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(names.into_iter().all(|name| ["library", "nightly"].contains(&&*name)));
}

#[test]
fn backups_need_a_configured_directory_and_an_administrator() {
    let server = TestServer::new();
    server.database("library", &[]);
    assert_eq!(server.post("/library/_backup", &json!({})).status, 403);
    assert_eq!(server.ask_as(None, "POST", "/library/_backup", Some(&json!({}))).status, 401);
}

fn wait_for(server: &TestServer, path: &str, is_expected: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
    for _ in 0..2000 {
        let found = server.get(path).json();
        if is_expected(&found) {
            return found;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("{path} is {}", server.get(path).json());
}

#[test]
fn continuous_backups_go_on_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let backups = directory.path().join("backups");
    let mut server = TestServer::with(|config| Config { backups: Some(backups.clone()), ..config });
    server.database("library", &[json!({"_id": "emma"})]);
    let follow = json!({"continuous": true, "interval": 0.01, "check": 0.05});
    assert_eq!(server.post("/library/_backup", &follow).status, 202);
    assert_eq!(server.post("/library/_backup", &follow).status, 202, "it runs already");
    let is_shipped = |count: u64| {
        move |info: &serde_json::Value| info["backup"]["sequence"] == count && info["backup"]["lag_sequences"] == 0
    };
    wait_for(&server, "/library", is_shipped(1));
    server.put("/library/solaris", &json!({}));
    let info = wait_for(&server, "/library", |info| is_shipped(2)(info) && info["backup"]["check"]["sequence"] == 2);
    assert_eq!((&info["backup"]["running"], &info["backup"]["check"]["ok"]), (&json!(true), &json!(true)), "{info}");
    let metrics = server.metrics();
    assert!(metrics.contains("stemma_backup_lag_sequences{database=\"library\"} 0\n"), "{metrics}");
    assert!(metrics.contains("stemma_backup_running{database=\"library\"} 1\n"), "{metrics}");
    // What was written last is shipped when the server stops.
    server.put("/library/eden", &json!({}));
    server.restart();
    let target = DirectoryTarget::open(backups.join("library")).unwrap();
    assert_eq!(backup::list(&target).unwrap().last().unwrap().sequence.get(), 3);
    wait_for(&server, "/library", is_shipped(3));
    server.put("/library/ulysses", &json!({}));
    wait_for(&server, "/library", is_shipped(4));
    // Another writer takes over: that is reported, not hidden.
    assert_eq!(server.post("/library/_backup", &json!({})).status, 201);
    server.put("/library/more", &json!({}));
    let info = wait_for(&server, "/library", |info| info["backup"]["running"] == false);
    assert!(info["backup"]["error"].as_str().unwrap().contains("another writer"), "{info}");
    assert!(server.metrics().contains("stemma_backup_running{database=\"library\"} 0\n"));

    assert_eq!(server.post("/library/_backup", &follow).status, 202);
    wait_for(&server, "/library", is_shipped(5));
    assert_eq!(server.post("/library/_backup", &json!({"cancel": true})).status, 400);
    assert_eq!(server.post("/library/_backup", &json!({"continuous": true, "cancel": true})).status, 200);
    assert_eq!(server.post("/library/_backup", &json!({"continuous": true, "cancel": true})).status, 404);
    assert!(server.get("/library").json().get("backup").is_none());
    for wrong in [json!({"interval": 0}), json!({"interval": "x"}), json!({"check": -1}), json!({"keep": "x"})] {
        let mut body = wrong;
        body["continuous"] = json!(true);
        assert_eq!(server.post("/library/_backup", &body).status, 400, "{body}");
    }
}

#[test]
fn target_that_fails_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let backups = directory.path().join("backups");
    let server = TestServer::with(|config| Config { backups: Some(backups.clone()), ..config });
    server.database("library", &[json!({"_id": "emma"})]);
    let follow = json!({"continuous": true, "interval": 0.01, "check": 0.02});
    assert_eq!(server.post("/library/_backup", &follow).status, 202);
    wait_for(&server, "/library", |info| info["backup"]["sequence"] == 1);
    // The target loses what it has, and then its directory is replaced by a file.
    std::fs::remove_dir_all(backups.join("library/files")).unwrap();
    let info = wait_for(&server, "/library", |info| info["backup"]["check"]["ok"] == false);
    assert!(info["backup"]["check"]["error"].as_str().unwrap().contains("missing"), "{info}");
    std::fs::remove_dir_all(backups.join("library")).unwrap();
    std::fs::write(backups.join("library"), "").unwrap();
    server.put("/library/solaris", &json!({}));
    let info = wait_for(&server, "/library", |info| info["backup"]["failures"].as_u64() >= Some(2));
    assert!(info["backup"]["lag_seconds"].as_f64().unwrap() > 0.0 && info["backup"]["lag_sequences"] == 1, "{info}");
    let metrics = server.metrics();
    assert!(!metrics.contains("stemma_backup_failures{database=\"library\"} 0\n"), "{metrics}");
    assert!(metrics.contains("stemma_backup_check_failed{database=\"library\"} 1\n"), "{metrics}");
}

#[test]
fn backups_are_restored_into_the_running_server() {
    let directory = tempfile::tempdir().unwrap();
    let backups = directory.path().join("backups");
    let server = TestServer::with(|config| Config { backups: Some(backups.clone()), ..config });
    server.database("library", &[json!({"_id": "emma", "year": 1815})]);
    server.put("/library/solaris", &json!({"year": 1961}));
    server.post("/library/_backup", &json!({}));
    server.put("/library/eden", &json!({"year": 1959}));
    server.post("/library/_backup", &json!({}));

    let answer = server.post("/copy/_restore", &json!({"target": "library", "at": 1}));
    assert_eq!((answer.status, &answer.json()["documents"]), (201, &json!(1)), "{answer:?}");
    assert_eq!(server.get("/copy/emma").json()["year"], 1815);
    assert_eq!(server.get("/copy/solaris").status, 404);
    assert_eq!(server.post("/copy/_restore", &json!({"target": "library"})).status, 412, "it exists");
    assert_eq!(server.post("/more/_restore", &json!({"target": "library", "backup": 1})).json()["documents"], 2);
    assert_eq!(server.post("/none/_restore", &json!({"target": "library", "backup": 9})).status, 404);
    assert_eq!(server.post("/none/_restore", &json!({"target": "nothing"})).status, 404);
    assert_eq!(server.post("/none/_restore", &json!({"target": "library", "at": 9})).status, 404);
    assert_eq!(server.post("/none/_restore", &json!({"target": "library", "at": true})).status, 400);
    assert_eq!(server.get("/none").status, 404, "a restore that fails creates nothing");

    // As new revisions: what changed is set back, what is new is deleted.
    let emma = server.get("/library/emma").json();
    server.put("/library/emma", &json!({"_rev": emma["_rev"], "year": 1816}));
    let answer = server.post("/library/_restore", &json!({"revert": true, "backup": 1}));
    assert_eq!((answer.status, &answer.json()["changed"]), (201, &json!(2)), "{answer:?}");
    let reverted = server.get("/library/emma").json();
    assert_eq!((&reverted["year"], &reverted["_rev"].as_str().unwrap()[..2]), (&json!(1815), "3-"));
    assert_eq!(server.get("/library/eden").status, 404);
    assert_eq!(server.get("/library").json()["doc_count"], 2);
    assert_eq!(server.post("/none/_restore", &json!({"revert": true, "target": "library"})).status, 404);
    assert_eq!(server.ask_as(None, "POST", "/x/_restore", Some(&json!({}))).status, 401);
}

#[test]
fn branches_are_databases_of_the_server() {
    let server = TestServer::new();
    server.database("library", &[json!({"_id": "emma"})]);
    server.put("/library/solaris", &json!({}));
    assert_eq!(server.put("/library/_local/place", &json!({"shelf": 3})).status, 201);
    assert_eq!(server.post("/library/_branch", &json!({"name": "trial"})).status, 201);
    assert_eq!(server.get("/trial/_local/place").json()["shelf"], 3);
    assert_eq!(server.post("/library/_branch", &json!({"name": "early", "at": 1})).status, 201);
    server.put("/trial/eden", &json!({}));
    let count = |name: &str| server.get(&format!("/{name}")).json()["doc_count"].clone();
    assert_eq!((count("library"), count("trial"), count("early")), (json!(2), json!(3), json!(1)));
    // It replicates back.
    let answer = server.post("/_replicate", &json!({"source": "trial", "target": "library"}));
    assert_eq!((answer.status, count("library")), (200, json!(3)), "{answer:?}");
    assert_eq!(server.post("/library/_branch", &json!({"name": "trial"})).status, 412);
    assert_eq!(server.post("/library/_branch", &json!({"name": "No"})).status, 400);
    assert_eq!(server.post("/library/_branch", &json!({})).status, 400);
    assert_eq!(server.post("/library/_branch", &json!({"name": "late", "at": 99})).status, 404);
    assert_eq!(server.get("/late").status, 404);
    assert_eq!(server.post("/nothing/_branch", &json!({"name": "x"})).status, 404);
    assert_eq!(server.ask_as(None, "POST", "/library/_branch", Some(&json!({"name": "x"}))).status, 401);
}
