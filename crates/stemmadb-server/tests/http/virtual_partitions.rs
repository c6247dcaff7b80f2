//! Partitions of virtual databases whose prefix is `:`: answers are those of a partitioned database.

use serde_json::{Value, json};

use crate::client::{Response, TestServer};
use crate::spread::Servers;
use crate::virtual_database::{create, start_move, until_moved, write};

/// Documents of twelve partitions.
fn docs() -> Vec<Value> {
    let doc =
        |n: u64| json!({"_id": format!("p{}:d{n:03}", n % 12), "n": n, "kind": n % 3, "even": n.is_multiple_of(2)});
    (0..180).map(doc).collect()
}

/// Answers with `total_rows` and `offset` only where the virtual database has them.
fn comparable(answer: &Response, names: &[&str]) -> (u16, Value) {
    let mut value = answer.json();
    if let Some(value) = value.as_object_mut() {
        names.iter().for_each(|name| drop(value.remove(*name)));
        if value.get("db_name").is_some() {
            value.insert("db_name".to_owned(), json!(null));
        }
    }
    (answer.status, value)
}

fn compare(server: &TestServer) {
    for partition in ["p0", "p3", "p11", "nothing"] {
        for (path, ignored) in [
            ("", &[][..]),
            ("/_all_docs?include_docs=true", &[]),
            ("/_all_docs?descending=true&limit=3&skip=1", &[]),
            ("/_all_docs?startkey=%22p3:d01%22&limit=5", &[]),
            ("/_design/d/_view/n?reduce=false&include_docs=true", &["total_rows", "offset"]),
            ("/_design/d/_view/n?reduce=false&descending=true&limit=4&skip=2", &["total_rows", "offset"]),
            ("/_design/d/_view/n?reduce=false&key=1", &["total_rows", "offset"]),
            ("/_design/d/_view/n", &[]),
            ("/_design/d/_view/n?group=true", &[]),
            ("/_design/d/_view/last?group_level=1", &[]),
            ("/_design/d/_view/missing", &[]),
            ("/_other", &[]),
            ("/_all_docs?partition=p5", &[]),
        ] {
            let path = format!("_partition/{partition}{path}");
            let [ours, theirs] = ["v", "plain"].map(|database| server.get(&format!("/{database}/{path}")));
            assert_eq!(comparable(&ours, ignored), comparable(&theirs, ignored), "{path}");
        }
        for (route, body) in [
            ("_find", json!({"selector": {"even": true}, "sort": ["n"], "fields": ["_id", "n"]})),
            ("_find", json!({"selector": {"n": {"$lt": 100}}, "limit": 3, "skip": 1, "sort": [{"n": "desc"}]})),
            ("_find", json!({"selector": {"unknown": {"$x": 1}}})),
            ("_find", json!({"selector": {}, "partition": "p5"})),
            ("_all_docs", json!({"keys": ["p3:d003", "p4:d004", "p0:d000"]})),
        ] {
            let path = format!("_partition/{partition}/{route}");
            let answers = ["v", "plain"].map(|database| server.post(&format!("/{database}/{path}"), &body));
            let [ours, theirs] = answers.map(|answer| comparable(&answer, &["bookmark", "warning"]));
            assert_eq!(ours, theirs, "{path} {body}");
        }
    }
    let explained = server.post("/v/_partition/p3/_explain", &json!({"selector": {"n": 3}})).json();
    assert_eq!((&explained["dbname"], &explained["partitioned"]), (&json!("v"), &json!(true)), "{explained}");
    assert_eq!(server.get("/v/_partition/_p").status, 400);
    assert_eq!(server.get("/other/_partition/p").status, 400);
    assert_eq!(server.get("/other/_partition/p/_all_docs").status, 400);
}

fn check_partitions(server: &TestServer, parameters: &str, moves: &[Value]) {
    create(server, &format!("/v?{parameters}&prefix=:"));
    create(server, "/other?shards=2");
    create(server, "/plain?partitioned=true");
    let map = |reduce: &str| json!({"map": "function (doc) { emit(doc.kind, doc.n) }", "reduce": reduce});
    for database in ["v", "plain"] {
        write(server, database, &docs());
        server.design(database, "d", json!({"views": {"n": map("_sum"), "last": map("_last")}}));
        let rev = server.get(&format!("/{database}/p3:d015")).json()["_rev"].as_str().unwrap().to_owned();
        assert_eq!(server.delete(&format!("/{database}/p3:d015?rev={rev}")).status, 200);
    }
    compare(server);
    for request in moves {
        start_move(server, "v", request);
        compare(server);
        until_moved(server, "v");
        compare(server);
    }
}

#[test]
fn partitions_are_in_one_shard() {
    let server = TestServer::new();
    check_partitions(
        &server,
        "shards=3",
        &[json!({"split": "shard-1"}), json!({"merge": "shard-2", "into": "shard-3"})],
    );
}

#[test]
fn partitions_are_on_one_server() {
    let servers = Servers::start();
    check_partitions(&servers.home, "shards=4&servers=here,b,c", &[json!({"merge": "shard-2", "server": "c"})]);
}
