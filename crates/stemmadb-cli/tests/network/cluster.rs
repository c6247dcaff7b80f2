//! Servers of a cluster whose databases are in Cassandra: killed, paused until others have taken over, stopped, and cut
//! off from Cassandra, while clients write to all of them. The history of every document is linearizable, also in a
//! virtual database with shards on all servers.
//!
//! Needs a command with the feature `cluster`, and a cluster: `STEMMA_CASSANDRA` names a node. Without, nothing runs.
//! `STEMMA_CLUSTER_KILLS` sets how often a server is disturbed (default 4).

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// The way from one server to the nodes of Cassandra, which can be cut. Its connection for news of the nodes goes to
/// the first one itself, because the driver expects all nodes at the port of that.
struct Link {
    node: String,
    /// For each node, its own address and that of its proxy.
    nodes: Vec<(SocketAddr, SocketAddr)>,
    is_cut: Arc<AtomicBool>,
}

impl Link {
    fn open(node: &str) -> Self {
        let node: SocketAddr = node.parse().unwrap();
        let is_cut = Arc::new(AtomicBool::new(false));
        let proxied = |last: u8| {
            let known = SocketAddr::new([127, 0, 0, last].into(), node.port());
            (known, pass_to(known, is_cut.clone()))
        };
        Link { node: node.to_string(), nodes: (1..=3).map(proxied).collect(), is_cut }
    }

    fn start(&self, directory: &Path, keyspace: &str) -> Server {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let lease = format!("{}ms", LEASE.as_millis());
        let translated = self.nodes.iter().map(|(known, reached)| format!("{known}={reached}"));
        let mut arguments = vec!["--cluster", &self.node, "--cluster-keyspace", keyspace, "--cluster-lease", &lease];
        let translated: Vec<String> = translated.collect();
        translated.iter().for_each(|pair| arguments.extend(["--cluster-translate", pair]));
        Server::start_at(address, directory, &arguments)
    }
}

/// Starts a proxy of a node. What is sent while it is cut is lost, and so are the connections afterwards.
fn pass_to(node: SocketAddr, is_cut: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(client), Ok(server)) = (client, TcpStream::connect(node)) else { continue };
            for (from, to) in [(&client, &server), (&server, &client)] {
                let (from, to, is_cut) = (from.try_clone().unwrap(), to.try_clone().unwrap(), is_cut.clone());
                std::thread::spawn(move || pass(&from, &to, &is_cut));
            }
        }
    });
    address
}

fn pass(mut from: &TcpStream, mut to: &TcpStream, is_cut: &AtomicBool) {
    to.set_nodelay(true).ok();
    from.set_read_timeout(Some(Duration::from_millis(100))).ok();
    let (mut buffer, mut has_lost) = (vec![0; 64 * 1024], false);
    loop {
        has_lost |= is_cut.load(Ordering::SeqCst);
        if has_lost && !is_cut.load(Ordering::SeqCst) {
            break;
        }
        let count = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => 0,
            Err(_) => break,
        };
        if !has_lost && !is_cut.load(Ordering::SeqCst) && to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    from.shutdown(Shutdown::Both).ok();
    to.shutdown(Shutdown::Both).ok();
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
    let links: Vec<Link> = (0..SERVERS).map(|_| Link::open(&node)).collect();
    let start = |(number, link): (usize, &Link)| link.start(&directory.path().join(number.to_string()), &keyspace);
    let mut servers: Vec<Server> = links.iter().enumerate().map(start).collect();
    servers.iter().for_each(|server| wait_until_known(server, SERVERS));
    let addresses: Vec<SocketAddr> = servers.iter().map(Server::address).collect();
    let (mut totals, mut kinds) = (Totals::default(), [0; 4]);
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
        let (disturbed, kind) = (random.below(SERVERS as u64) as usize, number as usize % 4);
        let (before, pause) = (random.milliseconds(300, 1500), random.milliseconds(1, 2000));
        kinds[kind] += 1;
        let (server, link) = (&mut servers[disturbed], &links[disturbed]);
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
                2 => {
                    server.stop();
                    server.restart();
                }
                _ => {
                    link.is_cut.store(true, Ordering::SeqCst);
                    std::thread::sleep(LEASE + pause);
                    link.is_cut.store(false, Ordering::SeqCst);
                }
            }
            std::thread::sleep(before);
        };
        round_with(&addresses, (CLIENTS, PATIENCE), number, &mut random, &mut totals, disturb);
        assert!(totals.refused.is_empty(), "{}", totals.refused.join("\n"));
        println!("round {number}: {} calls, {} with an unknown end", totals.calls, totals.unknown);
    }
    println!(
        "cluster servers: {} killed, {} paused, {} stopped, {} cut off; {} calls, {} with an unknown end, \
         {} histories: 0 refused",
        kinds[0], kinds[1], kinds[2], kinds[3], totals.calls, totals.unknown, totals.histories
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
