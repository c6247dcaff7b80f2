//! kill -9 of a server while clients of the wire protocol go on: nothing acknowledged is lost, nothing is applied
//! twice.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use stemmadb::{Patch, Selector, Sequence};
use stemmadb_client::{Client, ClientOptions, Credentials};

use crate::client::PASSWORD;
use crate::server::{Server, stemma, wait_until};

const WRITERS: u64 = 3;
/// Calls are repeated for so long; far longer than a restart takes.
const TIMEOUT: Duration = Duration::from_secs(600);

/// The processor time that a process has used, in ticks of 10 ms.
#[cfg(target_os = "linux")]
fn used_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Threads poll only for a moment: a server with idle connections and a subscription soon uses no processor.
#[cfg(target_os = "linux")]
#[test]
fn idle_connections_use_no_processor() {
    let directory = tempfile::tempdir().unwrap();
    let address = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let server = Server::start(directory.path(), &["--wire-listen", &address.to_string()]);
    let connect = || {
        let credentials = Credentials::Password { user: "admin".into(), password: PASSWORD.into() };
        let options = ClientOptions::new().credentials(credentials).timeout(TIMEOUT);
        Client::connect_with(&format!("stemma://{address}"), options).unwrap()
    };
    let clients: Vec<Client> = (0..50).map(|_| connect()).collect();
    let db = clients[0].create_database("shop").unwrap();
    let mut feed = db.subscribe(Sequence::ZERO);
    db.insert("a", &json!({})).unwrap();
    assert!(feed.next_within(TIMEOUT).unwrap().is_some());
    wait_until("a second without work", TIMEOUT, || {
        let before = used_ticks(server.pid());
        std::thread::sleep(Duration::from_secs(1));
        used_ticks(server.pid()) <= before + 1
    });
    // The connections still work.
    clients.iter().for_each(|client| client.ping().unwrap());
    server.assert_no_panic();
}

/// Commands open a virtual database by its URL, as any other.
#[test]
fn commands_open_virtual_databases() {
    let directory = tempfile::tempdir().unwrap();
    let address = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let server = Server::start(directory.path(), &["--wire-listen", &address.to_string()]);
    server.client().expect_success("PUT", "/shelf?shards=3", None);
    let url = format!("stemma://admin:{PASSWORD}@{address}/shelf");
    let run = |arguments: &[&str]| {
        let run = std::process::Command::new(stemma()).args(arguments).output().unwrap();
        let [out, error] = [run.stdout, run.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(run.status.success(), "{arguments:?}: {out} {error}");
        out
    };
    for (id, year) in [("solaris", 1961), ("dune", 1965), ("ubik", 1969)] {
        run(&["put", &url, id, &json!({ "year": year }).to_string()]);
    }
    let found = run(&["find", &url, r#"{"year": {"$gt": 1961}}"#]);
    assert!(found.contains("dune") && found.contains("ubik") && !found.contains("solaris"), "{found}");
    assert!(run(&["get", &url, "ubik"]).contains("1969"));
    assert_eq!(run(&["changes", &url]).lines().count(), 3);
    server.assert_no_panic();
}

#[test]
fn clients_survive_kills_of_their_server() {
    let kills: u64 = std::env::var("STEMMA_KILLS").map_or(4, |text| text.parse().expect("STEMMA_KILLS is a number"));
    let directory = tempfile::tempdir().unwrap();
    // The port is free again once the listener is dropped, and the server keeps it over its restarts.
    let address = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let mut server = Server::start(directory.path(), &["--wire-listen", &address.to_string()]);
    let credentials = Credentials::Password { user: "admin".into(), password: PASSWORD.into() };
    let options = ClientOptions::new().credentials(credentials).timeout(TIMEOUT);
    let client = Client::connect_with(&format!("stemma://{address}"), options).unwrap();
    let db = client.create_database("shop").unwrap();
    for writer in 0..WRITERS {
        db.insert(&format!("counter-{writer}"), &json!({"n": 0})).unwrap();
    }
    let (is_over, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let counts: Vec<u64> = std::thread::scope(|scope| {
        let write = |writer: u64| {
            let (db, mut count) = (db.clone(), 0);
            while !is_over.load(Ordering::SeqCst) {
                db.update(&format!("counter-{writer}"), &Patch::new().increment("n", 1)).unwrap();
                count += 1;
                db.insert(&format!("w{writer}-{count}"), &json!({"writer": writer})).unwrap();
                let counter = db.get(&format!("counter-{writer}")).unwrap().unwrap();
                assert_eq!(counter.get("n").unwrap(), Some(count.into()), "an increment was lost or applied twice");
                written.fetch_add(1, Ordering::SeqCst);
            }
            count
        };
        let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || write(writer))).collect();
        for _ in 0..kills {
            let before = written.load(Ordering::SeqCst);
            wait_until("the clients go on", TIMEOUT, || written.load(Ordering::SeqCst) > before + 20);
            server.kill();
            server.restart();
        }
        let before = written.load(Ordering::SeqCst);
        wait_until("the clients go on", TIMEOUT, || written.load(Ordering::SeqCst) > before);
        is_over.store(true, Ordering::SeqCst);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    let total: u64 = counts.iter().sum();
    assert_eq!(db.find(Selector::everything()).count().unwrap(), total + WRITERS);
    for (writer, count) in counts.iter().enumerate() {
        let counter = db.get(&format!("counter-{writer}")).unwrap().unwrap();
        // Each increment made one revision.
        assert_eq!(u64::from(counter.revision().generation()), count + 1);
    }
    let feed = db.changes(Sequence::ZERO).run().unwrap();
    assert_eq!(feed.count() as u64, total + WRITERS);
    server.assert_no_panic();
    println!("kill -9 by the wire protocol: {kills} kills, {total} increments and inserts: 0 lost, 0 applied twice");
}
