//! Federations with members on a server.

mod cases;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cases::{Random, body, compare, fill};
use serde_json::json;
use stemmadb::{Database, DocumentId, Edit, ErrorKind, Selector};
use stemmadb_client::{AnyDatabase, Client, ClientOptions, Credentials};
use stemmadb_federation::{Federation, Grouping, Member, MissingMembers, MoveStep, ShardMove, VirtualDatabase};
use stemmadb_http::HttpPeer;
use stemmadb_server::{Administrator, Config, Server, Wire};

/// A server that ends with the test.
struct TestServer {
    runtime: tokio::runtime::Runtime,
    server: Option<Server>,
    client: Client,
    _directory: tempfile::TempDir,
}

impl TestServer {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let config = Config {
            address: loopback,
            administrator: Some(Administrator { name: "root".into(), password: "geheim".into() }),
            wire: Wire { address: Some(loopback), ..Wire::default() },
            ..Config::new(directory.path().join("databases"))
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let server = runtime.block_on(Server::builder(config).start()).unwrap();
        let url = format!("stemma://{}", server.wire_address().unwrap());
        let credentials = Credentials::Password { user: "root".into(), password: "geheim".into() };
        let options = ClientOptions::new().timeout(Duration::from_secs(120)).credentials(credentials);
        let client = Client::connect_with(&url, options).unwrap();
        TestServer { runtime, server: Some(server), client, _directory: directory }
    }

    fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server.stop());
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The newest revisions of a remote member, with their histories, in the database that has everything.
fn replicate(member: &AnyDatabase, copy: &Database, whole: &Database) {
    match member {
        AnyDatabase::Embedded(db) => drop(db.replicate_to(whole).unwrap()),
        AnyDatabase::Remote(_) => drop(copy.replicate_to(whole).unwrap()),
    }
}

#[test]
fn answers_equal_those_of_one_database() {
    let server = TestServer::start();
    for seed in 0..8 {
        let mut random = Random(seed);
        let is_disjoint = seed % 2 == 0;
        let mut members: Vec<AnyDatabase> = (0..2).map(|_| Database::in_memory().into()).collect();
        for at in 0..2 {
            members.push(server.client.create_database(&format!("member-{seed}-{at}")).unwrap().into());
        }
        // The same writes, to embedded copies: their histories, and so their revisions, are equal.
        let copies: Vec<Database> = (0..4).map(|_| Database::in_memory()).collect();
        let mirrored: Vec<AnyDatabase> = copies.iter().cloned().map(AnyDatabase::from).collect();
        let all = Federation::over(members.iter().cloned()).unwrap().disjoint(is_disjoint);
        let whole = Database::in_memory();
        for turn in 0..60 {
            if turn % 20 == 0 {
                let writes = if turn == 0 { 60 } else { 10 };
                let state = random.0;
                fill(&mut random, &members, is_disjoint, writes);
                fill(&mut Random(state), &mirrored, is_disjoint, writes);
                for (member, copy) in members.iter().zip(&copies) {
                    replicate(member, copy, &whole);
                }
            }
            compare(&mut random, &all, &whole);
        }
    }
}

#[test]
fn servers_that_stop_are_named() {
    let mut server = TestServer::start();
    let remote = server.client.create_database("shop").unwrap();
    remote.insert("a", &json!({"n": 1})).unwrap();
    let local = Database::in_memory();
    local.insert("b", &json!({"n": 2})).unwrap();
    let members = [Member::from(remote).named("far"), Member::from(local).named("near")];
    let all = Federation::over(members).unwrap().disjoint(true);
    assert_eq!(all.find(Selector::everything()).sort("n").documents().unwrap().len(), 2);
    server.stop();
    let find = || all.find(Selector::everything()).deadline(Duration::from_millis(300));
    for error in [find().count().unwrap_err(), find().sort("n").documents().unwrap_err()] {
        assert!(error.message().contains("member `far`"), "{error}");
        assert!(matches!(error.kind(), ErrorKind::Stopped | ErrorKind::Unavailable), "{error}");
    }
    let missing = MissingMembers::new();
    let rows = find().partial(&missing).sort("n").documents().unwrap();
    assert_eq!((rows.len(), missing.members()[0].name.as_str()), (1, "far"));
}

#[test]
fn shards_lie_on_servers() {
    let server = TestServer::start();
    for seed in 0..4 {
        let mut random = Random(seed);
        let (near, whole) = (Database::in_memory(), Database::in_memory());
        let far: Vec<_> =
            (0..2).map(|at| server.client.create_database(&format!("shard-{seed}-{at}")).unwrap()).collect();
        let shards = || {
            let far = far.iter().enumerate().map(|(at, far)| Member::from(far.clone()).named(format!("far-{at}")));
            far.chain([Member::from(near.clone()).named("near")]).collect::<Vec<_>>()
        };
        let mut db = VirtualDatabase::create(shards(), Grouping::ById).unwrap();
        for turn in 0..60 {
            if turn % 20 == 0 {
                for _ in 0..60 {
                    let (id, body) = (format!("d{:02}", random.below(90)), body(&mut random));
                    match whole.get(&id).unwrap() {
                        Some(document) if random.below(4) == 0 => {
                            let deleted = db.delete(&id, document.revision()).unwrap();
                            assert_eq!(whole.delete(&id, document.revision()).unwrap(), deleted);
                        }
                        _ => assert_eq!(db.upsert(&id, &body).unwrap(), whole.upsert(&id, &body).unwrap()),
                    }
                }
                db = VirtualDatabase::open(shards()).unwrap();
            }
            compare(&mut random, &db, &whole);
        }
        let ids: Vec<String> = (0..90).map(|n| format!("d{n:02}")).collect();
        let revision = |document: Option<stemmadb::Document>| document.map(|document| *document.revision());
        let expected: Vec<_> = ids.iter().map(|id| revision(whole.get(id).unwrap())).collect();
        assert_eq!(db.get_many(&ids).unwrap().into_iter().map(revision).collect::<Vec<_>>(), expected);
        let changed = db.changes().run().unwrap().map(|change| change.unwrap().id.to_string());
        let mut changed: Vec<String> = changed.collect();
        changed.sort();
        let listed =
            whole.changes(stemmadb::Sequence::ZERO).unwrap().run().map(|change| change.unwrap().id.to_string());
        let mut listed: Vec<String> = listed.collect();
        listed.sort();
        assert_eq!(changed, listed);

        // A transaction in a shard of the server.
        let id = (0..).map(|n| format!("new-{n}")).find(|id| db.shard_of(id) == "far-0").unwrap();
        let edit = || Edit::Insert { id: DocumentId::new(&id).unwrap(), body: "{}".parse().unwrap() };
        db.transact().check(&id, None).edit(edit()).commit().unwrap();
        assert_eq!(db.transact().check(&id, None).edit(edit()).commit().unwrap_err().kind(), ErrorKind::Conflict);
        let refused = db.merge("far-0", "near").unwrap_err();
        assert!(refused.message().contains("is on a server"), "{refused}");
        assert!(db.pending_move().unwrap().is_none());
    }
}

/// Buckets move between the program and a server, in all directions, while documents are written.
#[test]
fn buckets_move_to_servers_and_back() {
    let server = TestServer::start();
    let http = server.server.as_ref().unwrap().address();
    let member = |name: &str| {
        let database = server.client.create_database(name).unwrap();
        let peer = HttpPeer::new(&format!("http://root:geheim@{http}/{name}")).unwrap();
        Member::from(database).named(name).copied_by(Arc::new(peer))
    };
    for seed in 0..4 {
        let mut random = Random(seed);
        let whole = Database::in_memory();
        let db = VirtualDatabase::create([("near", Database::in_memory())], Grouping::ById).unwrap();
        let write = |random: &mut Random, count: u64| {
            for _ in 0..count {
                let (id, body) = (format!("d{:03}", random.below(400)), body(random));
                assert_eq!(db.upsert(&id, &body).unwrap(), whole.upsert(&id, &body).unwrap());
            }
        };
        write(&mut random, 600);
        let far = |at: u64| format!("far-{seed}-{at}");
        let run = |random: &mut Random, mut moving: ShardMove| {
            while moving.step().unwrap() != MoveStep::Done {
                write(random, 5);
                compare(random, &db, &whole);
            }
        };
        // To the server, divided there, half of it back, and then all of it.
        run(&mut random, db.split("near", member(&far(0))).unwrap());
        run(&mut random, db.split(&far(0), member(&far(1))).unwrap());
        db.add_shard(("home", Database::in_memory())).unwrap();
        run(&mut random, db.merge(&far(1), "home").unwrap());
        let mut canceled = db.split(&far(0), member(&far(2))).unwrap();
        canceled.step().unwrap();
        run(&mut random, canceled.cancel().unwrap());
        let token = db.changes().newest_token();
        run(&mut random, db.merge(&far(0), "home").unwrap());
        assert_eq!(db.shards().iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["near", "home"]);
        (0..30).for_each(|_| compare(&mut random, &db, &whole));
        let changed = |after: Option<&String>| {
            let changes = after.into_iter().fold(db.changes(), |changes, token| changes.after(token));
            changes.run().unwrap().map(|change| change.unwrap().id.to_string()).collect::<BTreeSet<_>>()
        };
        let listed = whole.snapshot().unwrap().list().run().map(|listed| listed.unwrap().id.to_string());
        assert_eq!(changed(None), listed.collect());
        db.upsert("d000", &json!({"last": seed})).unwrap();
        whole.upsert("d000", &json!({"last": seed})).unwrap();
        assert!(changed(Some(&token)).contains("d000"));
    }
}
