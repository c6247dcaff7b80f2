//! `_active_tasks`: work that runs, from its start to its end.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stemmadb::Index;
use stemmadb::backup::{BackupOptions, DirectoryTarget};

use crate::client::TestServer;

/// The tasks of a type.
fn tasks(server: &TestServer, of_type: &str) -> Vec<Value> {
    let listed = server.get("/_active_tasks").json();
    listed.as_array().unwrap().iter().filter(|task| task["type"] == of_type).cloned().collect()
}

/// Waits for a task of a type.
fn wait_for_task(server: &TestServer, of_type: &str, is_expected: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(60) {
        if let Some(task) = tasks(server, of_type).into_iter().find(&is_expected) {
            return task;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("no {of_type} in {}", server.get("/_active_tasks").text);
}

fn wait_until_none_is_left(server: &TestServer) {
    let begun = Instant::now();
    while server.get("/_active_tasks").json() != json!([]) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", server.get("/_active_tasks").text);
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

/// Whether the times and figures of a task of `library` agree with each other.
fn assert_sound(task: &Value, [done, total]: [&str; 2]) {
    let [started, updated] = ["started_on", "updated_on"].map(|name| task[name].as_u64().unwrap());
    assert!(started > 1_700_000_000 && started <= updated && updated <= now() + 1, "{task}");
    let figure = |name: &str| task[name].as_u64().unwrap_or_else(|| panic!("{name} of {task}"));
    assert_eq!(figure("progress"), (figure(done) * 100).checked_div(figure(total)).unwrap_or(0), "{task}");
    assert_eq!(task["database"], "library", "{task}");
    let is_in_cluster = std::env::var_os("STEMMA_TEST_CLUSTER").is_some();
    let node = task["node"].as_str().unwrap();
    assert_eq!(node.starts_with("http://127.0.0.1:"), is_in_cluster, "{task}");
    assert_eq!(node == "nonode@nohost", !is_in_cluster, "{task}");
    assert!(task["pid"].is_string(), "{task}");
}

#[test]
fn maintenance_of_a_database_is_listed_while_it_runs() {
    needs_one_server!("a program opens a database of its own server");
    let server = TestServer::new();
    let docs: Vec<_> = (0..3000).map(|n| json!({"_id": format!("{n:04}"), "n": n, "text": "x".repeat(200)})).collect();
    server.database("library", &docs);
    assert_eq!(server.get("/_active_tasks").json(), json!([]));
    let db = server.opened("library");
    let bytes = ["bytes_done", "total_bytes"];

    let mut seen = Vec::new();
    (0..3000).for_each(|n| _ = db.upsert(&format!("{n:04}"), &json!({"n": n, "text": "y".repeat(200)})).unwrap());
    db.maintenance().compact_with_progress(|_| seen = tasks(&server, "database_compaction")).unwrap();
    assert_eq!(seen.len(), 1);
    assert_sound(&seen[0], bytes);
    assert!(seen[0]["total_bytes"].as_u64() > Some(0), "{seen:?}");

    db.maintenance().check_with_progress(|_| seen = tasks(&server, "check")).unwrap();
    assert_eq!((seen.len(), &seen[0]["progress"]), (1, &json!(100)));
    assert_sound(&seen[0], bytes);

    let index = Index::on("n").then("text").named("both");
    let mut progress = Vec::new();
    db.indexes()
        .create_with_progress(index, |_| {
            seen = tasks(&server, "indexer");
            progress.push(seen[0]["progress"].as_u64().unwrap());
        })
        .unwrap();
    assert_eq!((&seen[0]["index"], &seen[0]["design_document"]), (&json!("both"), &json!(null)));
    assert_eq!((&seen[0]["changes_done"], &seen[0]["total_changes"]), (&json!(3000), &json!(3000)));
    assert_sound(&seen[0], ["changes_done", "total_changes"]);
    assert!(progress.len() > 2 && progress.is_sorted() && progress[0] == 0, "{progress:?}");

    let directory = tempfile::tempdir().unwrap();
    let target = DirectoryTarget::create(directory.path().join("backups")).unwrap();
    let list = |_| seen = tasks(&server, "backup");
    db.maintenance().backup_with(&target, &BackupOptions::new(), list).unwrap();
    assert_sound(&seen[0], bytes);
    assert!(seen[0]["target"].as_str().unwrap().contains("backups"), "{seen:?}");
    wait_until_none_is_left(&server);
}

#[test]
fn index_builds_name_their_design_document() {
    let server = TestServer::new();
    let docs: Vec<_> = (0..100).map(|n| json!({"_id": format!("{n:04}"), "n": n})).collect();
    server.database("library", &docs);
    let slow = "function (doc) { var end = Date.now() + 20; while (Date.now() < end); emit(doc.n) }";
    server.design("library", "slow", json!({"views": {"by_n": {"map": slow}}}));
    let seen = std::thread::scope(|scope| {
        let queried = scope.spawn(|| server.get("/library/_design/slow/_view/by_n?limit=0"));
        let seen = wait_for_task(&server, "indexer", |_| true);
        let info = server.get("/library/_design/slow/_info").json();
        assert_eq!(info["view_index"]["updater_running"], true, "{info}");
        assert_eq!(queried.join().unwrap().status, 200);
        seen
    });
    assert_eq!((&seen["design_document"], &seen["view"]), (&json!("_design/slow"), &json!("by_n")), "{seen}");
    assert_eq!(seen["total_changes"], 101, "{seen}");
    assert_sound(&seen, ["changes_done", "total_changes"]);
    wait_until_none_is_left(&server);
    let info = server.get("/library/_design/slow/_info").json();
    assert_eq!(info["view_index"]["updater_running"], false, "{info}");
}

#[test]
fn running_replications_are_listed_without_passwords() {
    let (server, other) = (TestServer::new(), TestServer::new());
    server.database("library", &[json!({"_id": "solaris"}), json!({"_id": "eden"})]);
    other.database("copy", &[]);
    let replication = json!({"_id": "push", "source": "library", "target": other.url("copy"), "continuous": true});
    server.database("_replicator", &[replication]);
    let seen = wait_for_task(&server, "replication", |task| task["docs_written"] == 2);
    assert_eq!((&seen["database"], &seen["doc_id"]), (&json!("_replicator"), &json!("push")), "{seen}");
    assert_eq!((&seen["source"], &seen["continuous"]), (&json!("library"), &json!(true)), "{seen}");
    let port = other.address().port().to_string();
    assert!(seen["target"].as_str().unwrap().contains(&port) && !seen.to_string().contains("secret"), "{seen}");
    let [started, updated] = ["started_on", "updated_on"].map(|name| seen[name].as_u64().unwrap());
    assert!(started > 1_700_000_000 && started <= updated && updated <= now() + 1, "{seen}");
    assert_eq!(seen["revisions_checked"], 2, "{seen}");

    let revision = server.get("/_replicator/push").json()["_rev"].as_str().unwrap().to_owned();
    server.delete(&format!("/_replicator/push?rev={revision}"));
    wait_until_none_is_left(&server);
}
