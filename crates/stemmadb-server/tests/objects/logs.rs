//! Databases of a server whose log is in a bucket.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use stemmadb::Durability;
use stemmadb_server::Config;

use crate::client::TestServer;
use crate::gateway::{Gateway, Metadata, variables};

const LOG: &str = "s3://backups/cold";

/// The files below a directory.
fn files_below(directory: &Path) -> Vec<PathBuf> {
    let entries = directory.read_dir().into_iter().flatten().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// Servers read from the environment how the bucket is reached, so they run in another process.
#[test]
fn tiers_of_a_server_are_in_a_bucket() {
    let Some(gateway) = Gateway::start(Metadata::Kept) else { return };
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "logs::servers_with_a_log_in_a_bucket", "--ignored", "--nocapture"]);
    let output = command.envs(variables(gateway.port)).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    let left = files_below(&gateway.directory.path().join("objects/backups/cold"));
    let bytes: Vec<u64> = left.iter().map(|file| file.metadata().unwrap().len()).collect();
    assert!(bytes.iter().all(|&bytes| bytes < 200), "nothing of a deleted database is left but fences: {bytes:?}");
}

#[test]
#[ignore = "a child process of another test"]
fn servers_with_a_log_in_a_bucket() {
    let mut server = TestServer::with(|config| Config { durability: Durability::Sync, ..config });
    let created = |server: &TestServer, query: &str| server.put(&format!("/cold?{query}"), &json!({}));
    for query in ["log=ftp://backups/cold", "log=s3://", "log=s3://backups/cold&memory=true", "log=s3://b/c&shards=2"] {
        let refused = created(&server, query);
        assert_eq!(refused.status, 400, "{query}: {refused:?}");
    }
    let created_in_log = created(&server, &format!("log={LOG}"));
    assert_eq!(created_in_log.status, 201, "{created_in_log:?}");
    assert_eq!(server.get("/cold").json()["log"], LOG);
    let again = server.put(&format!("/other?log={LOG}"), &json!({}));
    assert!(again.status == 400 && again.text.contains("cold"), "{again:?}");

    let invoice = |n: u64| json!({"_id": format!("i-{n}"), "n": n, "day": "2020-01-01", "text": "x".repeat(500)});
    let mut docs: Vec<Value> = (0..300).map(invoice).collect();
    docs.push(json!({"_id": "new", "n": 300, "day": "2999-01-01"}));
    server.database("invoices", &docs);
    let revision = server.get("/invoices/i-7").json()["_rev"].as_str().unwrap().to_owned();
    let file = vec![b'7'; 100_000];
    let attached = server.send_as_admin("PUT", &format!("/invoices/i-7/file?rev={revision}"), &[], &file);
    assert_eq!(attached.status, 201);
    let policy = json!({"older_than": "365d", "date_field": "day"});
    let tiers = json!({"paused": true, "tiers": [{"name": "cold", "database": "cold", "policy": policy}]});
    assert_eq!(server.put("/invoices/_tiers", &tiers).status, 201);
    let run = server.post("/invoices/_tiers", &json!({"run": true})).json();
    assert_eq!(run["result"]["moved"], 300, "{run}");

    let is_whole = |server: &TestServer, database: &str| {
        let found = server.get(&format!("/{database}/i-299")).json();
        assert_eq!(found["text"].as_str().map(str::len), Some(500), "{found}");
        assert_eq!(server.get(&format!("/{database}/i-7/file")).text.len(), 100_000);
    };
    is_whole(&server, "invoices");
    server.restart();
    is_whole(&server, "invoices");
    assert_eq!(server.get("/cold").json()["log"], LOG);
    let sum = json!({"figures": {"sum": {"sum": "n"}}});
    let sum = server.post("/invoices/_tiers/_aggregate", &sum).text;
    assert!(sum.contains("45150"), "{sum}");

    // Another server in place of one that is lost.
    let other = TestServer::new();
    assert_eq!(created(&other, &format!("log={LOG}")).status, 201);
    is_whole(&other, "cold");
    assert_eq!(other.put("/cold/more", &json!({})).status, 201);
    assert!(server.put("/cold/late", &json!({})).status >= 500, "the log belongs to the other server");
    assert_eq!(other.delete("/cold").status, 200);
    assert_eq!(other.get("/cold").status, 404);
}
