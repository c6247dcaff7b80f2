//! Nodes that are killed and started again while a database is written.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use stemmadb::testing::Random;
use stemmadb::{Database, Options};
use stemmadb_cassandra::Cluster;
use tempfile::TempDir;
use uuid::Uuid;

use super::{node, number_from, options};

/// How long a node is down.
const DOWN: Duration = Duration::from_secs(3);

fn cluster_command(command: &str, node: u64) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster");
    let done = Command::new(script).args([command, &node.to_string()]).status().unwrap();
    assert!(done.success(), "cluster {command} {node}");
}

#[test]
fn nodes_that_are_killed_lose_nothing() {
    let (Some(node), seconds) = (node(), number_from("STEMMA_CLUSTER_SECONDS", 0)) else { return };
    if seconds == 0 {
        return;
    }
    let cluster = Cluster::connect(options(&node).patience(Duration::from_secs(120))).unwrap();
    let log = Uuid::new_v4().simple().to_string();
    let open = |directory: &TempDir| {
        Database::open_with(directory.path(), Options::new().log_storage(cluster.log(&log)).segment_bytes(256 << 10))
    };
    let (directory, ended) = (TempDir::new().unwrap(), AtomicBool::new(false));
    let db = open(&directory).unwrap();
    let (kills, written) = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|thread| {
                let (db, ended) = (&db, &ended);
                scope.spawn(move || {
                    let mut count = 0_u64;
                    while !ended.load(Ordering::Relaxed) {
                        let body = json!({"thread": thread, "n": count, "fill": "x".repeat(count as usize % 900)});
                        db.insert(&format!("{thread}-{count}"), &body).unwrap();
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        let (mut random, begun, mut kills) = (Random::new(seconds), Instant::now(), 0);
        while begun.elapsed() < Duration::from_secs(seconds) {
            let node = 1 + random.below(3);
            cluster_command("stop", node);
            kills += 1;
            std::thread::sleep(DOWN);
            cluster_command("start", node);
            // The others notice that it is back.
            std::thread::sleep(Duration::from_millis(random.below(4_000)));
        }
        ended.store(true, Ordering::Relaxed);
        (kills, writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<u64>>())
    });
    drop(db);
    let directory = TempDir::new().unwrap();
    let db = open(&directory).unwrap();
    for (thread, count) in written.iter().enumerate() {
        assert_eq!(db.find(stemmadb::field("thread").eq(thread as u64)).count().unwrap(), *count);
    }
    assert!(db.maintenance().check().unwrap().is_sound());
    println!("cluster nodes: {kills} nodes killed; {} documents, none lost", written.iter().sum::<u64>());
}
