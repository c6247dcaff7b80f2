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
