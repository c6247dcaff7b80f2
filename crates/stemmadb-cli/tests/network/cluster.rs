//! Servers of a cluster whose databases are in Cassandra: killed, paused until others have taken over, and stopped,
//! while clients write to all of them. The history of every document is linearizable, also in a virtual database with
//! shards on all servers.
//!
//! Needs a command with the feature `cluster`, and a cluster: `STEMMA_CASSANDRA` names a node. Without, nothing runs.
//! `STEMMA_CLUSTER_KILLS` sets how often a server is disturbed (default 4).

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::linear::{Totals, round_with};
use crate::random::{Random, env_u64, seed};
use crate::server::{Server, stemma, wait_until};

const SERVERS: usize = 3;
const CLIENTS: usize = 4;
const LEASE: Duration = Duration::from_secs(2);
/// How long clients wait: longer than it takes until another server has a database.
const PATIENCE: Duration = Duration::from_secs(20);
/// There is a new database after so many rounds; every second one is virtual.
const ROUNDS_PER_DATABASE: u64 = 10;
const SHARDS: usize = 4;

fn start(directory: &Path, node: &str, keyspace: &str) -> Server {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let lease = format!("{}ms", LEASE.as_millis());
    let arguments = ["--cluster", node, "--cluster-keyspace", keyspace, "--cluster-lease", &lease];
    Server::start_at(address, directory, &arguments)
}

/// Waits until a server knows this many.
fn wait_until_known(server: &Server, count: usize) {
    wait_until("the servers know each other", Duration::from_secs(120), || {
        let nodes = server.client().expect_success("GET", "/_membership", None)["all_nodes"].clone();
        nodes.as_array().is_some_and(|nodes| nodes.len() == count)
    });
}

#[test]
fn documents_are_linearizable_when_servers_are_killed_and_paused() {
    let Ok(node) = std::env::var("STEMMA_CASSANDRA") else { return };
    let mut random = Random::new(seed("cluster"));
    let (directory, keyspace) = (tempfile::tempdir().unwrap(), format!("stemma_{}", std::process::id()));
    let start = |number: usize| start(&directory.path().join(number.to_string()), &node, &keyspace);
    let mut servers: Vec<Server> = (0..SERVERS).map(start).collect();
    servers.iter().for_each(|server| wait_until_known(server, SERVERS));
    let addresses: Vec<SocketAddr> = servers.iter().map(Server::address).collect();
    let (mut totals, mut kinds) = (Totals::default(), [0; 3]);
    let round_count = env_u64("STEMMA_CLUSTER_KILLS", 4);
    let rounds_per_database = ROUNDS_PER_DATABASE.min(round_count.div_ceil(2));
    for number in 0..round_count {
        if number % rounds_per_database == 0 {
            let mut client = servers[0].client();
            let deleted = client.expect_response("DELETE", "/linear", None);
            assert!(matches!(deleted.status, 200 | 404), "{}", deleted.summary());
            match number / rounds_per_database % 2 {
                0 => client.expect_success("PUT", "/linear", None),
                _ => client.expect_success("PUT", &format!("/linear?shards={SHARDS}"), None),
            };
        }
        let (disturbed, kind) = (random.below(SERVERS as u64) as usize, number as usize % 3);
        let (before, pause) = (random.milliseconds(300, 1500), random.milliseconds(1, 2000));
        kinds[kind] += 1;
        let server = &mut servers[disturbed];
        let disturb = || {
            std::thread::sleep(before);
            match kind {
                0 => {
                    server.kill();
                    std::thread::sleep(pause);
                    server.restart();
                }
                1 => {
                    server.signal("-STOP");
                    std::thread::sleep(LEASE + pause);
                    server.signal("-CONT");
                }
                _ => {
                    server.stop();
                    server.restart();
                }
            }
            std::thread::sleep(before);
        };
        round_with(&addresses, (CLIENTS, PATIENCE), number, &mut random, &mut totals, disturb);
        assert!(totals.refused.is_empty(), "{}", totals.refused.join("\n"));
        println!("round {number}: {} calls, {} with an unknown end", totals.calls, totals.unknown);
    }
    println!(
        "cluster servers: {} killed, {} paused, {} stopped; {} calls, {} with an unknown end, {} histories: 0 refused",
        kinds[0], kinds[1], kinds[2], totals.calls, totals.unknown, totals.histories
    );
    assert!(totals.calls > 100, "the clients made too few calls: {}", totals.calls);
    // Whichever server is left serves everything.
    for mut server in servers.drain(1..) {
        server.assert_no_panic();
        server.stop();
    }
    let mut client = servers[0].client();
    client.expect_success("PUT", "/linear/last", Some(&json!({})));
    let listed = client.expect_success("GET", "/linear/_all_docs?limit=0", None);
    assert!(listed["total_rows"].as_u64().unwrap() > 1);
    servers[0].assert_no_panic();
}

fn free_ports() -> Vec<u16> {
    let listeners: Vec<_> = (0..SERVERS).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

/// The commands of the guide's section, with other ports, in a keyspace of their own.
#[test]
fn commands_of_the_guide_serve_a_cluster() {
    let Ok(node) = std::env::var("STEMMA_CASSANDRA") else { return };
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/scaling-out.md");
    let page = std::fs::read_to_string(page).unwrap();
    let sections = page.split("## Serve a cluster").nth(1).unwrap().split("\n## Move ").next().unwrap();
    let mut blocks = sections.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap().to_owned());
    let (mut starting, asking) = (blocks.next().unwrap(), blocks.collect::<Vec<_>>().concat());
    let build = starting.lines().next().unwrap().to_owned();
    assert!(build.starts_with("cargo build"), "{build}");
    starting = starting.replace(&build, "").replace("127.0.0.1:9042", &node);
    let mut asked = asking;
    for (documented, port) in [5984, 5985, 5986].into_iter().zip(free_ports()) {
        starting = starting.replace(&format!(":{documented}"), &format!(":{port}"));
        asked = asked.replace(&format!(":{documented}"), &format!(":{port}"));
    }
    let directory = tempfile::tempdir().unwrap();
    let path = PathBuf::from(stemma());
    let script = format!(
        "trap 'kill $(jobs -p)' EXIT\nPATH={}:$PATH STEMMA_CLUSTER_KEYSPACE=stemma_guide_{}\n\
         export STEMMA_CLUSTER_KEYSPACE\n{starting}\n\
         for port in $(echo '{asked}' | grep -o '127.0.0.1:[0-9]*' | sort -u); do\n\
         for attempt in $(seq 600); do curl -s $port/_up >/dev/null && break; sleep 0.2; done\ndone\nset -e\n{}",
        path.parent().unwrap().display(),
        std::process::id(),
        asked.replace("curl ", "curl -sS --fail-with-body ")
    );
    let ran = Command::new("bash").args(["-c", &script]).current_dir(directory.path()).output().unwrap();
    let (output, errors) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{output}{errors}");
    for expected in [r#""id":"lem-1961""#, "all_nodes", r#""total_rows":2"#, r#""name":"shard-6""#] {
        assert!(output.contains(expected), "{expected}: {output}");
    }
}
