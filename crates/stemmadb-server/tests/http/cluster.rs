//! Servers of a cluster: any of them answers every request, and databases move when servers come and go.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use stemmadb::log_storage::ClusterStore;
use stemmadb::testing::{MemoryCluster, MemoryMember};
use stemmadb::{DocumentId, Edit, Patch, Sequence, field};
use stemmadb_cassandra::{Cluster, ClusterOptions};
use stemmadb_client::Client;

use crate::client::{ADMIN, TestServer, cassandra, free_address, until_known, uuid};
use crate::virtual_database::{
    Ending, compare_answers, create, numbered, start_move, until, until_moved, write, write_twins,
};

const LEASE: Duration = Duration::from_millis(1500);

/// What servers are members of.
enum TestCluster {
    Memory(MemoryCluster),
    Cassandra(Cluster),
}

impl TestCluster {
    fn new() -> Self {
        match cassandra() {
            None => TestCluster::Memory(MemoryCluster::new(LEASE)),
            Some(node) => {
                let keyspace = format!("stemma_http_{}", &uuid()[..8]);
                let options = ClusterOptions::new([node], keyspace);
                TestCluster::Cassandra(Cluster::connect(options).expect("a cluster"))
            }
        }
    }

    fn start_server(&self) -> (TestServer, Arc<dyn ClusterStore>) {
        let address = free_address();
        let url = format!("http://{address}");
        let member: Arc<dyn ClusterStore> = match self {
            TestCluster::Memory(cluster) => cluster.join(&url),
            TestCluster::Cassandra(cluster) => Arc::new(cluster.join(&url, Duration::from_secs(5)).expect("a member")),
        };
        (TestServer::in_cluster(address, member.clone()), member)
    }

    fn logs(&self) -> Vec<String> {
        match self {
            TestCluster::Memory(cluster) => cluster.logs(),
            TestCluster::Cassandra(cluster) => cluster.logs().expect("the logs"),
        }
    }
}

/// Servers, and the members of the cluster that they are.
struct Servers {
    cluster: TestCluster,
    servers: Vec<(TestServer, Arc<dyn ClusterStore>)>,
}

impl Servers {
    fn start(count: usize) -> Self {
        let cluster = TestCluster::new();
        let servers = Servers { servers: (0..count).map(|_| cluster.start_server()).collect(), cluster };
        until_known(&servers.servers.iter().map(|(server, _)| server).collect::<Vec<_>>());
        servers
    }

    /// Servers whose members of a cluster in memory can fall silent.
    fn start_in_memory(count: usize) -> (Self, Vec<Arc<MemoryMember>>) {
        let (cluster, mut members) = (MemoryCluster::new(LEASE), Vec::new());
        let mut start = |_| {
            let address = free_address();
            let member = cluster.join(&format!("http://{address}"));
            members.push(member.clone());
            (TestServer::in_cluster(address, member.clone()), member as Arc<dyn ClusterStore>)
        };
        let started = (0..count).map(&mut start).collect();
        let servers = Servers { servers: started, cluster: TestCluster::Memory(cluster.clone()) };
        until_known(&servers.servers.iter().map(|(server, _)| server).collect::<Vec<_>>());
        (servers, members)
    }

    fn get(&self, number: usize) -> &TestServer {
        &self.servers[number % self.servers.len()].0
    }

    /// The number of the server that owns a database.
    fn owner_of(&self, database: &str) -> Option<usize> {
        let owner = owner_of(&*self.servers[0].1, database)?;
        self.servers.iter().position(|(_, member)| member.address() == owner)
    }
}

/// The URL of the server that owns a database.
fn owner_of(member: &dyn ClusterStore, database: &str) -> Option<String> {
    let records = member.records(None).unwrap().unwrap();
    let record: Value = serde_json::from_slice(records.values.get(&format!("database:{database}"))?).unwrap();
    member.owner(&format!("{database}/{}", record["instance_id"].as_str().unwrap())).unwrap()
}

#[test]
fn every_server_answers_for_every_database() {
    let servers = Servers::start(3);
    for number in 0..12 {
        let name = format!("db{number}");
        assert_eq!(servers.get(number).ask_as(ADMIN, "PUT", &format!("/{name}"), None).status, 201);
        assert_eq!(servers.get(number + 1).ask_as(ADMIN, "PUT", &format!("/{name}"), None).status, 412);
        for turn in 0..3 {
            let server = servers.get(number + turn);
            let written = server.put(&format!("/{name}/doc-{turn}"), &json!({"turn": turn}));
            assert_eq!(written.status, 201, "{written:?}");
            assert_eq!(server.put(&format!("/{name}/doc-{turn}"), &json!({})).status, 409);
        }
        let docs = json!({"docs": [{"_id": "a", "n": 1}, {"_id": "b", "n": 2}]});
        assert_eq!(servers.get(number).post(&format!("/{name}/_bulk_docs"), &docs).status, 201);
    }
    let owners: BTreeSet<_> = (0..12).map(|number| servers.owner_of(&format!("db{number}")).unwrap()).collect();
    assert!(owners.len() > 1, "several servers own databases");
    for server in 0..3 {
        let server = servers.get(server);
        let names = server.get("/_all_dbs").json();
        assert_eq!(names.as_array().unwrap().len(), 12, "{names}");
        for number in 0..12 {
            let name = format!("db{number}");
            assert_eq!(server.get(&format!("/{name}")).json()["doc_count"], 5);
            let found = server.post(&format!("/{name}/_find"), &json!({"selector": {"n": {"$gt": 1}}})).json();
            assert_eq!(found["docs"][0]["_id"], "b");
            let changes = server.get(&format!("/{name}/_changes")).json();
            assert_eq!(changes["results"].as_array().unwrap().len(), 5);
            let head = server.ask_as(ADMIN, "HEAD", &format!("/{name}/a"), None);
            assert_eq!((head.status, head.text.as_str()), (200, ""));
        }
        let infos = server.post("/_dbs_info", &json!({"keys": ["db0", "db1", "db2", "none"]})).json();
        assert!((0..3).all(|row| infos[row]["info"]["doc_count"] == 5), "{infos}");
        assert_eq!(infos[3]["error"], "not_found");
        assert_eq!(server.get("/db0/none").status, 404);
        assert_eq!(server.get("/none/a").status, 404);
    }
    // A long body is sent while it arrives; the answer, too.
    let content = vec![7_u8; 3 << 20];
    for server in 0..3 {
        let server = servers.get(server);
        let path = format!("/db0/long-{}/file", server.address().port());
        let stored = server.send_as_admin("PUT", &path, &[("Content-Type", "application/octet-stream")], &content);
        assert_eq!(stored.status, 201, "{stored:?}");
        assert_eq!(server.get(&path).header("content-length"), Some("3145728"));
    }
    // Deleted by one server, created again by another.
    assert_eq!(servers.get(0).delete("/db0").status, 200);
    assert_eq!(servers.get(1).get("/db0").status, 404);
    assert_eq!(servers.get(2).ask_as(ADMIN, "PUT", "/db0", None).status, 201);
    assert_eq!(servers.get(1).get("/db0").json()["doc_count"], 0);
    assert_eq!(servers.cluster.logs().iter().filter(|log| log.starts_with("db0/")).count(), 1);
}

#[test]
fn users_rights_and_sessions_are_those_of_the_cluster() {
    let servers = Servers::start(3);
    let made = servers.get(0).put("/_node/_local/_config/admins/eve", &json!("geheim"));
    assert_eq!(made.status, 200, "{made:?}");
    until("all servers know the administrator", || {
        (0..3).all(|server| servers.get(server).ask_as(Some(("eve", "geheim")), "GET", "/_all_dbs", None).status == 200)
    });
    let token = servers.get(1).post("/_tokens", &json!({"name": "job", "roles": ["writers"]})).json();
    let bearer = format!("Bearer {}", token["token"].as_str().unwrap_or_else(|| panic!("{token}")));
    servers.get(0).database("notes", &[json!({"_id": "a"})]);
    let members = json!({"members": {"roles": ["writers"], "names": ["ann"]}, "admins": {"roles": ["_admin"]}});
    assert_eq!(servers.get(1).put("/notes/_security", &members).status, 200);
    servers.get(2).ask_as(ADMIN, "PUT", "/_users", None);
    let ann = json!({"_id": "org.couchdb.user:ann", "name": "ann", "type": "user", "roles": [], "password": "pw"});
    assert_eq!(servers.get(0).put("/_users/org.couchdb.user:ann", &ann).status, 201);
    until("all servers accept the token", || {
        (0..3).all(|server| {
            servers.get(server).send("GET", "/notes/a", &[("Authorization", bearer.as_str())], b"").status == 200
        })
    });
    for server in 0..3 {
        let server = servers.get(server);
        assert_eq!(server.ask_as(None, "GET", "/notes/a", None).status, 401);
        assert_eq!(server.ask_as(Some(("eve", "wrong")), "GET", "/notes/a", None).status, 401);
        assert_eq!(server.get("/notes/_security").json(), members);
        let read = server.ask_as(Some(("ann", "pw")), "GET", "/notes/a", None);
        assert_eq!(read.status, 200, "{read:?}");
        assert_eq!(server.ask_as(Some(("ann", "wrong")), "GET", "/notes/a", None).status, 401);
        let found = server.post("/_replicate", &json!({"source": "notes", "target": "copy", "create_target": true}));
        assert_eq!(found.status, 200, "{found:?}");
        assert_eq!(server.get("/copy/a").status, 200);
    }
    // A session of one server is one of all.
    let login = servers.get(0).send(
        "POST",
        "/_session",
        &[("Content-Type", "application/json")],
        br#"{"name": "eve", "password": "geheim"}"#,
    );
    let cookie = login.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    for server in 0..3 {
        let session = servers.get(server).send("GET", "/_session", &[("Cookie", cookie.as_str())], b"").json();
        assert_eq!(session["userCtx"]["name"], "eve", "{session}");
        let read = servers.get(server).send("GET", "/notes/a", &[("Cookie", cookie.as_str())], b"");
        assert_eq!(read.status, 200);
    }
}

/// Accounts that one server has stored are known to all servers, without waiting.
#[test]
fn accounts_of_one_server_are_used_at_once_on_others() {
    let servers = Servers::start(2);
    let (first, second) = (servers.get(0), servers.get(1));
    first.database("notes", &[json!({"_id": "a"})]);
    let security = json!({"members": {"names": ["ann"], "roles": ["writers"]}});
    assert_eq!(first.put("/notes/_security", &security).status, 200);
    first.ask_as(ADMIN, "PUT", "/_users", None);
    let mut ann = json!({"name": "ann", "type": "user", "roles": [], "password": "pw"});
    for turn in 0..5 {
        let name = format!("job{turn}");
        let token = first.post("/_tokens", &json!({"name": name, "roles": ["writers"]})).json()["token"].clone();
        let bearer = format!("Bearer {}", token.as_str().unwrap());
        let read = second.send("GET", "/notes/a", &[("Authorization", &bearer)], b"");
        assert_eq!(read.status, 200, "{read:?}");
        let listed = second.get("/_tokens").json()["tokens"].clone();
        assert!(listed.as_array().unwrap().iter().any(|token| token["name"] == name.as_str()), "{listed}");
        assert_eq!(second.post("/_tokens", &json!({"name": name, "roles": []})).status, 409);
        assert_eq!(second.delete(&format!("/_tokens/{name}")).status, 200);

        let admin = format!("eve{turn}");
        let path = format!("/_node/_local/_config/admins/{admin}");
        assert_eq!(first.put(&path, &json!("geheim")).status, 200);
        let asked = second.ask_as(Some((&admin, "geheim")), "GET", "/_all_dbs", None);
        assert_eq!(asked.status, 200, "{asked:?}");
        assert_eq!(second.get(&path).status, 200);
        assert_eq!(second.delete(&path).status, 200);
        assert_eq!(first.get(&path).status, 404);

        ann["password"] = json!(format!("pw{turn}"));
        let written = first.put("/_users/org.couchdb.user:ann", &ann);
        assert_eq!(written.status, 201, "{written:?}");
        ann["_rev"] = written.json()["rev"].clone();
        let password = format!("pw{turn}");
        for server in [second, first] {
            let asked = server.ask_as(Some(("ann", &password)), "GET", "/_session", None);
            assert_eq!(asked.json()["userCtx"]["name"], "ann", "turn {turn}: {asked:?}");
        }

        let role = format!("readers{turn}");
        let bob = json!({"name": format!("bob{turn}"), "type": "user", "roles": [role], "password": "pw"});
        assert_eq!(first.put(&format!("/_users/org.couchdb.user:bob{turn}"), &bob).status, 201);
        let user = Some((bob["name"].as_str().unwrap(), "pw"));
        assert_eq!(second.ask_as(user, "GET", "/notes/a", None).status, 403);
        let statements = json!({"statements": [{"database": "notes", "actions": ["read"]}]});
        assert_eq!(first.put(&format!("/_roles/{role}"), &statements).status, 201);
        let read = second.ask_as(user, "GET", "/notes/a", None);
        assert_eq!(read.status, 200, "{read:?}");
        assert_eq!(second.delete(&format!("/_roles/{role}")).status, 200);
    }
}

#[test]
fn definitions_are_those_of_the_cluster_and_outlive_servers() {
    let mut servers = Servers::start(3);
    for (number, name) in ["orders", "one", "two", "three", "four"].iter().enumerate() {
        let first = number as u64 * 10;
        servers.get(number).database(name, &numbered(first..first + 10));
    }
    servers.get(0).database("orders-cold", &[]);
    // Each is defined on one server, and asked of another one.
    let policy = json!({"older_than": "1d", "date_field": "day"});
    servers.get(0).put("/orders/old", &json!({"day": "2020-01-01"}));
    let tiers = json!({"paused": true, "tiers": [{"name": "cold", "database": "orders-cold", "policy": policy}]});
    let defined = servers.get(0).put("/orders/_tiers", &tiers);
    assert_eq!(defined.status, 201, "{defined:?}");
    let run = servers.get(1).post("/orders/_tiers", &json!({"run": true})).json();
    assert_eq!(run["result"]["moved"], 1, "{run}");
    assert_eq!(servers.owner_of("orders"), servers.owner_of("orders-cold"));
    let members = ["one", "two", "three", "four"].map(|name| json!({"name": name, "database": name}));
    assert_eq!(servers.get(1).put("/_federation/all", &json!({"members": members})).status, 201);
    let chain = json!({"nodes": members, "shape": "chain"});
    assert_eq!(servers.get(2).put("/_topology/chain", &chain).status, 201);
    let states = |server: &TestServer| {
        let topology = server.get("/_topology/chain").json();
        let states = topology["replications"].as_array().unwrap_or_else(|| panic!("{topology}")).iter();
        states.map(|replication| replication["state"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let is_known = |servers: &Servers| {
        for (server, _) in &servers.servers {
            assert!(server.get("/orders/old").text.contains("2020"), "a document of a lower tier is read");
            let count = json!({"selector": {"n": {"$lt": 20}}});
            assert_eq!(server.post("/_federation/all/_count", &count).json()["count"], 10);
            until("all replications run", || states(server).iter().all(|state| state == "caught_up"));
            assert_eq!(server.get("/_scheduler/jobs").json()["total_rows"], 3);
        }
    };
    is_known(&servers);

    let owner = servers.owner_of("orders").unwrap();
    drop(servers.servers.remove(owner));
    is_known(&servers);
    servers.get(0).put("/one/late", &json!({}));
    until("it is replicated", || servers.get(1).get("/four/late").status == 200);
    assert_eq!(servers.get(1).delete("/_topology/chain").status, 200);
    assert_eq!(servers.get(0).get("/_scheduler/jobs").json()["total_rows"], 0);
    assert_eq!(servers.get(0).get("/_topology").json(), json!({"topologies": {}}));
    assert_eq!(servers.get(0).delete("/_federation/all").status, 200);
    assert_eq!(servers.get(1).get("/_federation/all").status, 404);
}

#[test]
fn nobody_pretends_to_be_a_server() {
    let servers = Servers::start(1);
    servers.get(0).database("notes", &[]);
    for forged in ["127.0.0.1;abc", "127.0.0.1", "", "x;y;z"] {
        let refused = servers.get(0).send("GET", "/notes", &[("X-Stemma-Passed-On", forged)], b"");
        assert_eq!(refused.status, 403, "{refused:?}");
    }
    let alone = TestServer::new();
    assert_eq!(alone.send("GET", "/", &[("X-Stemma-Passed-On", "127.0.0.1;abc")], b"").status, 403);
}

#[test]
fn databases_of_a_silent_server_go_to_others_and_lose_nothing() {
    let (servers, members) = Servers::start_in_memory(3);
    for number in 0..9 {
        servers.get(0).database(&format!("db{number}"), &[json!({"_id": "before"})]);
    }
    let silent = servers.owner_of("db0").unwrap();
    let lost: Vec<_> = (0..9).filter(|number| servers.owner_of(&format!("db{number}")) == Some(silent)).collect();
    // A client of another server, which has a connection to the one that falls silent.
    let client = Client::connect(&format!("http://admin:secret@{}", servers.get(silent + 1).address())).unwrap();
    let followed = client.database("db0");
    followed.insert("by-wire-before", &json!({})).unwrap();
    members[silent].fall_silent();
    assert!(followed.get("by-wire-before").unwrap().is_some());
    followed.insert("by-wire-after", &json!({})).unwrap();
    // It neither reads nor writes what may belong to another one.
    let (path, alive) = ("/db0/zombie", servers.get(silent + 1));
    assert_eq!(alive.get("/db0/by-wire-after").status, 200);
    let refused = servers.get(silent).put(path, &json!({}));
    assert!(refused.status >= 500, "{refused:?}");
    assert!(servers.get(silent).get("/db0/before").status >= 500);
    for number in lost {
        let name = format!("db{number}");
        let written = alive.put(&format!("/{name}/after"), &json!({}));
        assert_eq!(written.status, 201, "{written:?}");
        assert_eq!(alive.get(&format!("/{name}/before")).status, 200);
        assert_ne!(owner_of(&*servers.servers[(silent + 1) % 3].1, &name), Some(members[silent].address().to_owned()));
    }
    assert_eq!(alive.get(path).status, 404);
}

/// Writes through one server after the other until told to stop; returns the ids that were acknowledged.
fn write_until(servers: &[&TestServer], database: &str, stop: &AtomicBool) -> Vec<String> {
    let mut written = Vec::new();
    for number in 0.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let id = format!("doc-{number:06}");
        let answer = servers[number % servers.len()].put(&format!("/{database}/{id}"), &json!({"n": number}));
        assert_eq!(answer.status, 201, "{answer:?}");
        written.push(id);
    }
    written
}

#[test]
fn databases_move_while_they_are_written_when_servers_come_and_go() {
    let mut servers = Servers::start(2);
    // So many that each server is to have some, of which eight are written.
    for number in 0..24 {
        servers.get(0).database(&format!("db{number}"), &[]);
    }
    let stop = AtomicBool::new(false);
    let (first, second) = (servers.servers.remove(0), servers.servers.remove(0));
    std::thread::scope(|scope| {
        let _ending = Ending(&stop);
        let writers: Vec<_> = (0..8)
            .map(|number| {
                let (stop, through) = (&stop, [&first.0, &second.0]);
                scope.spawn(move || write_until(&through, &format!("db{number}"), stop))
            })
            .collect();
        let third = servers.cluster.start_server();
        let third_address = third.1.address().to_owned();
        let owned_by_third = || {
            let owner = |number: usize| {
                let name = format!("db{number}");
                assert_eq!(first.0.get(&format!("/{name}")).status, 200);
                owner_of(&*first.1, &name)
            };
            (0..24).filter(|number| owner(*number).as_ref() == Some(&third_address)).count()
        };
        until("the new server owns databases", || owned_by_third() > 0);
        drop(third);
        until("the server that left owns none", || owned_by_third() == 0);
        stop.store(true, Ordering::SeqCst);
        for (number, writer) in writers.into_iter().enumerate() {
            let written = writer.join().unwrap();
            let listed = first.0.get(&format!("/db{number}/_all_docs")).json();
            let listed: Vec<_> =
                listed["rows"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect();
            assert_eq!(listed, written);
        }
    });
}

#[test]
fn server_that_stops_says_so_before_it_closes() {
    let mut servers = Servers::start(2);
    let (stopping, _member) = servers.servers.remove(1);
    let address = stopping.address();
    let up = || {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.write_all(b"GET /_up HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    };
    assert!(up().unwrap().starts_with("HTTP/1.1 200"));
    std::thread::scope(|scope| {
        scope.spawn(move || drop(stopping));
        until("the server says that it stops", || {
            let answer = up().expect("it takes connections until it has said that it stops");
            answer.starts_with("HTTP/1.1 404") && answer.contains("maintenance_mode")
        });
    });
}

/// A server that has not seen the deletion yet, and should own the database, is asked to create it again.
#[test]
fn databases_are_deleted_and_created_again_through_any_server() {
    let cluster = TestCluster::new();
    let first = cluster.start_server().0;
    let names = || (0..30).map(|number| format!("again{number}"));
    names().for_each(|name| first.database(&name, &[json!({"_id": "old"})]));
    let second = cluster.start_server().0;
    for name in names() {
        assert_eq!(first.delete(&format!("/{name}")).status, 200);
        let created = second.ask_as(ADMIN, "PUT", &format!("/{name}"), None);
        assert_eq!(created.status, 201, "{name}: {created:?}");
        for server in [&first, &second] {
            assert_eq!(server.get(&format!("/{name}/old")).status, 404);
        }
    }
    assert_eq!(cluster.logs().iter().filter(|log| log.starts_with("again")).count(), 30);
}

#[test]
fn directories_of_servers_can_be_lost() {
    let cluster = TestCluster::new();
    let start = || cluster.start_server().0;
    let server = start();
    server.database("notes", &[json!({"_id": "a", "n": 1})]);
    server.put("/notes/_security", &json!({"members": {"names": ["ann"]}}));
    server.put("/notes/_revs_limit", &json!(7));
    drop(server);
    let server = start();
    assert_eq!(server.get("/notes/a").json()["n"], 1);
    assert_eq!(server.get("/notes/_security").json()["members"]["names"], json!(["ann"]));
    assert_eq!(server.get("/notes/_revs_limit").json(), 7);
    assert_eq!(server.put("/temporary?memory=true", &json!({})).status, 501);
}

#[test]
fn databases_are_branched_and_restored_in_a_cluster() {
    let servers = Servers::start(2);
    let docs: Vec<_> = (0..500).map(|n| json!({"_id": format!("d{n}"), "n": n})).collect();
    servers.get(0).database("notes", &docs);
    let revision = servers.get(0).get("/notes/d7").json()["_rev"].clone();
    let branched = servers.get(1).post("/notes/_branch", &json!({"name": "trial"}));
    assert_eq!(branched.status, 201, "{branched:?}");
    assert_eq!(servers.get(1).post("/notes/_branch", &json!({"name": "trial"})).status, 412);
    for number in 0..2 {
        let server = servers.get(number);
        assert_eq!(server.get("/trial").json()["doc_count"], 500 + number);
        assert_eq!(server.get("/trial/d7").json()["_rev"], revision);
        assert_eq!(server.put(&format!("/trial/new-{}", server.address().port()), &json!({})).status, 201);
    }
    assert_eq!(servers.get(0).get("/notes").json()["doc_count"], 500);
    assert_eq!(servers.cluster.logs().iter().filter(|log| log.starts_with("trial/")).count(), 1);
    let owner = servers.get(servers.owner_of("notes").unwrap());
    assert_eq!(owner.post("/notes/_backup", &json!({"target": "saved"})).status, 201);
    // The backup is in the directory of one server.
    let restored = (0..40).map(|number| {
        let name = format!("again{number}");
        (owner.post(&format!("/{name}/_restore"), &json!({"target": "saved"})).status, name)
    });
    let restored: Vec<_> = restored.filter(|(status, _)| *status == 201).map(|(_, name)| name).take(2).collect();
    assert_eq!(restored.len(), 2);
    for name in restored {
        assert_eq!(servers.get(0).get(&format!("/{name}/d7")).json()["n"], 7);
        assert_eq!(servers.get(1).get(&format!("/{name}")).json()["doc_count"], 500);
    }
}

#[test]
fn feeds_and_sockets_reach_the_owner() {
    let servers = Servers::start(2);
    servers.get(0).database("notes", &[json!({"_id": "a"})]);
    let other = servers.get(servers.owner_of("notes").unwrap() + 1);
    let feed = std::thread::scope(|scope| {
        let reading = scope.spawn(|| other.get("/notes/_changes?feed=continuous&timeout=1500"));
        until("a write during the feed", || other.put("/notes/b", &json!({})).status == 201);
        reading.join().unwrap()
    });
    let ids: Vec<Value> = feed.text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert!(ids.iter().any(|line: &Value| line["id"] == "b"), "{feed:?}");
    let handshake = format!(
        "GET /notes/_watch?selector=%7B%7D HTTP/1.1\r\nHost: localhost\r\nAuthorization: {}\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        crate::client::basic("admin", "secret")
    );
    let answer = other.first_bytes(handshake.as_bytes(), b"\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
}

/// Its clients go to another server; nobody waits until they have read all.
#[test]
fn feeds_of_other_servers_end_when_a_server_stops() {
    let mut servers = Servers::start(2);
    servers.get(0).database("live", &[json!({"_id": "a"})]);
    let other = (servers.owner_of("live").unwrap() + 1) % 2;
    let credentials = crate::client::basic("admin", "secret");
    let opened = |path: &str| {
        let head = format!("GET {path} HTTP/1.1\r\nAuthorization: {credentials}");
        crate::watch::opened(servers.get(other), &head, "").0
    };
    let feeds = [opened("/live/_watch?selector=%7B%7D&heartbeat=20"), opened("/live/_changes?feed=continuous")];
    drop(servers.servers.remove(other));
    for mut feed in feeds {
        let mut rest = String::new();
        feed.read_to_string(&mut rest).unwrap();
        assert!(rest.ends_with("0\r\n\r\n"), "{rest}");
    }
}

/// The owners of the shards of `v`.
fn shard_owners(server: &TestServer) -> Vec<String> {
    let shards = server.get("/v/_shards").json();
    let owner = |shard: &Value| shard["server"].as_str().unwrap().to_owned();
    shards["shards"].as_array().unwrap_or_else(|| panic!("{shards}")).iter().map(owner).collect()
}

/// Whether each of some servers has as many shards as the others, or one more.
fn are_even(owners: &[String], server_count: usize) -> bool {
    let distinct: BTreeSet<_> = owners.iter().collect();
    let counts = distinct.iter().map(|server| owners.iter().filter(|owner| *owner == *server).count());
    let (least, most) = (counts.clone().min(), counts.max());
    distinct.len() == server_count && least.zip(most).is_some_and(|(least, most)| most - least <= 1)
}

#[test]
fn shards_are_on_all_servers_and_answer_as_one_database() {
    let servers = Servers::start(3);
    create(servers.get(0), "/v?shards=6");
    write_twins(servers.get(1));
    until("each server has two shards", || are_even(&shard_owners(servers.get(2)), 3));
    for turn in 0..3 {
        compare_answers(servers.get(turn));
        match turn {
            0 => start_move(servers.get(0), "v", &json!({"split": "shard-2"})),
            1 => start_move(servers.get(0), "v", &json!({"merge": "shard-1", "into": "shard-4"})),
            _ => {}
        }
        until_moved(servers.get(turn), "v");
    }
    assert_eq!(servers.get(0).get("/_all_dbs").json(), json!(["plain", "v"]));
    for server in 0..3 {
        let server = servers.get(server);
        for path in ["/v%2Fshard-2", "/v%2Fshard-2/_all_docs", "/v%2Fshard-2/x"] {
            let refused = server.get(path);
            assert_eq!(refused.status, 403, "{refused:?}");
        }
        assert_eq!(server.ask_as(None, "GET", "/v%2Fshard-2/_all_docs", None).status, 401);
        assert_eq!(server.delete("/v%2Fshard-2").status, 403);
    }
    assert_eq!(servers.get(0).put("/w?shards=2&replicas=1", &json!({})).status, 400);
    assert_eq!(servers.get(1).delete("/v").status, 200);
    until("the logs of the shards are deleted", || {
        let logs = servers.cluster.logs();
        logs.iter().all(|log| !log.starts_with("v/"))
    });
    assert_eq!(servers.get(2).get("/v").status, 404);
    create(servers.get(2), "/v?shards=2");
    assert_eq!(servers.get(0).get("/v").json()["doc_count"], 0);
}

#[test]
fn shards_and_their_move_survive_the_server_of_the_virtual_database() {
    let (servers, members) = Servers::start_in_memory(3);
    create(servers.get(0), "/v?shards=4");
    write(servers.get(0), "v", &numbered(0..300));
    until("the shards are divided", || are_even(&shard_owners(servers.get(0)), 3));
    let silent = servers.owner_of("v").unwrap();
    let alive = [servers.get(silent + 1), servers.get(silent + 2)];
    start_move(alive[0], "v", &json!({"split": "shard-3"}));
    members[silent].fall_silent();
    assert!(servers.get(silent).get("/v/_all_docs").status >= 500);
    let written: Vec<String> = (0..20).map(|number| format!("after-{number}")).collect();
    for (number, id) in written.iter().enumerate() {
        let answer = alive[number % 2].put(&format!("/v/{id}"), &json!({}));
        assert_eq!(answer.status, 201, "{answer:?}");
    }
    until_moved(alive[1], "v");
    assert_eq!(shard_owners(alive[0]).len(), 5);
    let listed = alive[1].get("/v/_all_docs");
    assert_eq!(listed.json()["rows"].as_array().map(Vec::len), Some(320), "{listed:?}");
    assert!(servers.get(silent).put("/v/zombie", &json!({})).status >= 500);
    assert_eq!(alive[0].get("/v/zombie").status, 404);
}

#[test]
fn clients_of_the_wire_protocol_follow_databases() {
    let mut servers = Servers::start(3);
    for number in 0..6 {
        servers.get(0).database(&format!("db{number}"), &[]);
    }
    let url = format!("http://admin:secret@{}", servers.get(0).address());
    let client = Client::connect(&url).unwrap();
    let databases: Vec<_> = (0..6).map(|number| client.database(&format!("db{number}"))).collect();
    let mut feeds: Vec<_> = databases.iter().map(|database| database.subscribe(Sequence::ZERO)).collect();
    for database in &databases {
        let revision = database.insert("a", &json!({"n": 1})).unwrap();
        for number in 0..20 {
            database.upsert(&format!("b{number:03}"), &json!({"n": number})).unwrap();
        }
        assert_eq!(database.find(field("n").ge(10)).count().unwrap(), 10);
        assert_eq!(database.find(field("n").ge(10)).documents().unwrap().len(), 10);
        assert_eq!(database.get_many(["a", "b000", "none"]).unwrap().len(), 3);
        assert_eq!(database.get_pipelined(["a", "b000", "none"]).unwrap().len(), 3);
        assert_eq!(database.update_where(field("n").ge(15), &Patch::new().set("old", true)).unwrap(), 5);
        let content = vec![7; 300_000];
        database.files().attach("a", &revision, "f", "image/png", &content[..]).unwrap();
        let mut read = Vec::new();
        database.files().open("a", "f").unwrap().unwrap().read_to_end(&mut read).unwrap();
        assert_eq!(read, content);
    }
    assert_eq!(client.create_database("made-by-wire").unwrap().insert("a", &json!({})).unwrap().generation(), 1);
    client.delete_database("made-by-wire").unwrap();
    // The server that has most of them leaves: its databases are on others then.
    let counts: Vec<_> =
        (1..3).map(|server| (0..6).filter(|n| servers.owner_of(&format!("db{n}")) == Some(server)).count()).collect();
    drop(servers.servers.remove(if counts[0] >= counts[1] { 1 } else { 2 }));
    for (database, feed) in databases.iter().zip(&mut feeds) {
        database.insert("after", &json!({})).unwrap();
        assert_eq!(database.find(field("n").ge(10)).count().unwrap(), 10);
        let last = std::iter::from_fn(|| feed.next_within(Duration::from_secs(60)).unwrap());
        assert!(last.into_iter().any(|change| change.id.as_str() == "after"), "{}", database.name());
    }
}

#[test]
fn virtual_databases_are_served_to_clients_of_the_wire_protocol() {
    let servers = Servers::start(2);
    create(servers.get(0), "/v?shards=4");
    let edit = |n: usize| Edit::Insert {
        id: DocumentId::new(format!("d{n:02}")).unwrap(),
        body: stemmadb::Value::from_serialize(&json!({ "n": n })).unwrap(),
    };
    for (server, first) in [(0, 0), (1, 30)] {
        let url = format!("http://admin:secret@{}", servers.get(server).address());
        let database = Client::connect(&url).unwrap().database("v");
        let written = database.bulk((first..first + 30).map(edit).collect()).unwrap();
        assert!(written.iter().all(Result::is_ok), "{written:?}");
        for n in first..first + 30 {
            let id = format!("d{n:02}");
            let revision = *database.get(&id).unwrap().unwrap().revision();
            database.replace(&id, &revision, &json!({"n": n, "seen": true})).unwrap();
        }
        let seen = database.find(field("seen").eq(true));
        assert_eq!(seen.count().unwrap(), first as u64 + 30);
        let changes = database.subscribe(Sequence::ZERO);
        assert_eq!(changes.take(first + 30).filter(Result::is_ok).count(), first + 30);
    }
}

#[test]
fn large_shards_are_split_and_divided_among_the_servers() {
    let servers = Servers::start(2);
    create(servers.get(0), "/v?shards=2&shard_bytes_max=1048576");
    assert_eq!(servers.get(1).get("/v/_shards").json()["shard_bytes_max"], 1_048_576);
    let text = "x".repeat(10_000);
    for batch in 0..6 {
        let docs: Vec<_> = (0..50).map(|n| json!({"_id": format!("d{batch}-{n}"), "text": text})).collect();
        write(servers.get(batch), "v", &docs);
    }
    until("the shards are split", || {
        let shards = servers.get(0).get("/v/_shards").json();
        shards["shards"].as_array().is_some_and(|shards| shards.len() >= 4) && shards["move"].is_null()
    });
    assert_eq!(servers.get(1).get("/v").json()["doc_count"], 300);
    until("they are divided", || are_even(&shard_owners(servers.get(1)), 2));
    assert_eq!(servers.get(0).get("/v/_all_docs").json()["rows"].as_array().unwrap().len(), 300);
    assert_eq!(servers.get(0).post("/v/_shards", &json!({"shard_bytes_max": null})).status, 202);
    assert!(servers.get(1).get("/v/_shards").json().get("shard_bytes_max").is_none());
    assert_eq!(servers.get(0).post("/v/_shards", &json!({"shard_bytes_max": 5})).status, 400);
    assert_eq!(servers.get(0).put("/w?shards=1&shard_bytes_max=5", &json!({})).status, 400);
}
