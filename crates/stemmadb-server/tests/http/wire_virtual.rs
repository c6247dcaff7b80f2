//! Virtual databases over the wire protocol: what is divided by shards, writes that are repeated while documents move,
//! and what is refused.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde_json::{Value, json};
use stemmadb_server::{Config, Wire};
use stemmadb_wire::{Operation, WriteKey};

use crate::access_rules::{security, users};
use crate::client::TestServer;
use crate::spread::Servers;
use crate::virtual_database::{create, start_move, until_moved};
use crate::wire::WireClient;

const ALL: [&str; 2] = ["v", "plain"];

/// A server with the virtual database `v` and the ordinary one `plain`, both with numbered documents, `n` of which
/// is 0.
fn server(parameters: &str) -> TestServer {
    let address = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let server = TestServer::with(|config| Config { wire: Wire { address, ..Wire::default() }, ..config });
    create(&server, &format!("/v?{parameters}"));
    create(&server, "/plain");
    let docs: Vec<Value> = ids().iter().map(|id| json!({"_id": id, "n": 0, "at": id})).collect();
    for database in ALL {
        assert_eq!(server.post(&format!("/{database}/_bulk_docs"), &json!({ "docs": docs })).status, 201);
    }
    server
}

fn ids() -> Vec<String> {
    (0..40).map(|n| format!("d{n:02}")).collect()
}

fn key(lane: u8, number: u64) -> Option<WriteKey> {
    Some(WriteKey { lane: [lane; 16], number })
}

fn increments() -> Vec<Value> {
    ids().iter().map(|id| json!({"op": "update", "id": id, "patch": {"$inc": {"n": 1}}})).collect()
}

/// The values of `n` of all documents.
fn values(client: &mut WireClient, database: &str) -> BTreeSet<u64> {
    let answer = client.ask(Operation::Distinct, database, &json!({"query": {"selector": {}}, "path": "n"}));
    answer.value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
}

fn split(server: &TestServer, shard: &str) {
    start_move(server, "v", &json!({ "split": shard }));
    until_moved(server, "v");
}

/// Each answer of the virtual database is that of the ordinary one.
#[test]
fn answers_equal_those_of_one_database() {
    needs_one_server!("these connections do not follow a database to its server");
    let server = server("shards=3");
    let mut admin = server.wire("admin");
    let all = json!({"selector": {}});
    let late = json!({"selector": {"at": {"$gte": "d30"}}, "sort": [{"at": "desc"}], "fields": ["at", "_id"]});
    let edits = json!([
        {"op": "upsert", "id": "d01", "body": {"n": 5, "at": "d01"}},
        {"op": "insert", "id": "d02", "body": {}},
        {"op": "insert", "id": "new", "body": {"n": 7, "tags": ["x", "y"]}},
        {"op": "update", "id": "d03", "patch": {"$set": {"tags": ["x"]}}},
        {"op": "update", "id": "none", "patch": {"$set": {"n": 1}}},
    ]);
    let asked = [
        (Operation::Bulk, json!({ "edits": edits })),
        (Operation::Get, json!({"id": "d01"})),
        (Operation::GetMany, json!({"ids": ["d01", "none", "new", "d02"]})),
        (Operation::Count, json!({"query": {"selector": {"n": 0}}})),
        (Operation::Find, json!({"query": late, "shape": "values"})),
        (Operation::Find, json!({"query": late, "shape": "ids"})),
        (Operation::Find, json!({"query": {"selector": {"n": {"$gt": 0}}, "sort": ["n"]}})),
        (Operation::Distinct, json!({"query": all, "path": "tags[]"})),
        (Operation::Summary, json!({"query": all, "path": "n"})),
        (Operation::Extreme, json!({"query": all, "path": "n", "largest": true})),
        (Operation::GroupBy, json!({"query": all, "paths": ["n"]})),
        (Operation::GroupBy, json!({"query": all, "paths": ["tags[]"], "summary": "n"})),
        (Operation::Aggregate, json!({"aggregation": {"group_by": "n", "figures": {"count": "count"}}})),
        (Operation::Batch, json!({"steps": [{"op": "get", "id": "d01"}, {"op": "count", "query": all}]})),
        (
            Operation::Batch,
            json!({"steps": [{"op": "find", "query": late}, {"op": "get_many", "ids": ["d01", "d05"]}]}),
        ),
        (Operation::Transact, json!({"checks": [], "edits": [{"op": "upsert", "id": "d09", "body": {"n": 9}}]})),
        (
            Operation::Batch,
            json!({"steps": [{"op": "get", "id": "d10"}, {"op": "require", "of": 0, "selector": {"n": 0}},
            {"op": "update", "id": "d10", "patch": {"$inc": {"n": 3}}}]}),
        ),
        (Operation::UpdateWhere, json!({"query": {"selector": {"n": 0}}, "merge": {"seen": true}})),
        (Operation::UpdateWhere, json!({"query": {"selector": {"n": 0}, "sort": ["at"], "limit": 3}, "delete": true})),
        (Operation::Count, json!({"query": all})),
        (Operation::ViewDefine, json!({"name": "by_n", "definition": {"key": "n", "value": "n", "reduce": "_sum"}})),
        (Operation::ViewList, json!({})),
        (Operation::ViewQuery, json!({"name": "by_n", "start": 3, "end": 9})),
        (Operation::ViewQuery, json!({"name": "by_n", "keys": [5, 7], "descending": true, "documents": true})),
        (Operation::ViewQuery, json!({"name": "by_n", "shape": "count"})),
        (Operation::ViewQuery, json!({"name": "by_n", "shape": "reduce"})),
        (Operation::ViewQuery, json!({"name": "by_n", "shape": "groups", "limit": 2})),
        (Operation::ViewRemove, json!({"name": "by_n"})),
        (Operation::KeySet, json!({"namespace": "k", "key": "a", "value": 1})),
        (Operation::KeyIncrement, json!({"namespace": "k", "key": "a", "by": 2})),
        (Operation::KeyList, json!({"namespace": "k"})),
        (Operation::Publish, json!({"topic": "t", "payload": 1})),
        (Operation::Keep, json!({"retention": {"everything": true}})),
        (Operation::Flush, json!({})),
    ];
    for (operation, arguments) in asked {
        let [ours, theirs] = ALL.map(|database| admin.ask(operation, database, &arguments));
        let shown = |mut answer: crate::wire::Answer| {
            // Sequences and the documents read are those of shards.
            let without = |value: &mut Value| strip(value);
            answer.rows.iter_mut().for_each(without);
            without(&mut answer.value);
            (answer.error, answer.rows, answer.value)
        };
        assert_eq!(shown(ours), shown(theirs), "{operation:?} {arguments}");
    }
}

/// Removes what differs between the shards and one database.
fn strip(value: &mut Value) {
    match value {
        Value::Object(object) => {
            for name in ["seq", "read", "token"] {
                object.remove(name);
            }
            object.values_mut().for_each(strip);
        }
        Value::Array(elements) => elements.iter_mut().for_each(strip),
        _ => {}
    }
}

/// A write that is repeated with its key is applied once, also if documents have moved meanwhile, shards were removed,
/// and the server was restarted.
#[test]
fn repeated_writes_are_applied_once_whatever_moves() {
    needs_one_server!("these connections do not follow a database to its server");
    let mut server = server("shards=2");
    let bulk = json!({"edits": increments()});
    let edit = json!({"op": "update", "id": "d00", "patch": {"$inc": {"m": 1}}});
    let update = json!({"query": {"selector": {}}, "patch": {"$inc": {"k": 1}}});
    let writes = [(Operation::Bulk, &bulk, 1), (Operation::Edit, &edit, 2), (Operation::UpdateWhere, &update, 3)];
    let ask = |server: &TestServer| {
        let mut admin = server.wire("admin");
        writes.map(|(operation, arguments, lane)| {
            let answer = admin.ask_with(key(lane, 7), operation, "v", arguments);
            assert_eq!(answer.error, None, "{operation:?}: {answer:?}");
            answer.value
        })
    };
    let first = ask(&server);
    assert_eq!(first[0].as_array().unwrap().len(), 40);
    assert!(first[0].as_array().unwrap().iter().all(|rev| rev.as_str().is_some_and(|rev| rev.starts_with("2-"))));
    assert_eq!(first[2], 40);
    assert_eq!(ask(&server), first);
    let check = |server: &TestServer| {
        assert_eq!(ask(server), first);
        let mut admin = server.wire("admin");
        assert_eq!(values(&mut admin, "v"), BTreeSet::from([1]));
        let document = admin.ask(Operation::Get, "v", &json!({"id": "d00"})).value;
        assert_eq!((&document["body"]["m"], &document["body"]["k"]), (&json!(1), &json!(1)));
    };
    split(&server, "shard-1");
    check(&server);
    server.restart();
    check(&server);
    start_move(&server, "v", &json!({"merge": "shard-2", "into": "shard-1"}));
    until_moved(&server, "v");
    server.restart();
    check(&server);
    // The next write of a lane is a new one, and the one before it is not known any more.
    let mut admin = server.wire("admin");
    assert_eq!(admin.ask_with(key(1, 8), Operation::Bulk, "v", &bulk).error, None);
    assert_eq!(values(&mut admin, "v"), BTreeSet::from([2]));
    let late = admin.ask_with(key(1, 7), Operation::Bulk, "v", &bulk);
    assert_eq!(late.error.as_deref(), Some("invalid"), "{late:?}");
}

/// Of a bulk that was interrupted, the rest is applied, wherever its documents are by then.
#[test]
fn interrupted_bulk_is_completed() {
    needs_one_server!("these connections do not follow a database to its server");
    let mut server = server("shards=2");
    let part = json!({"edits": increments()[..25]});
    let first = server.wire("admin").ask_with(key(1, 1), Operation::Bulk, "v", &part).value;
    split(&server, "shard-2");
    server.restart();
    let mut admin = server.wire("admin");
    for _ in 0..2 {
        let whole = admin.ask_with(key(1, 1), Operation::Bulk, "v", &json!({"edits": increments()})).value;
        let whole = whole.as_array().unwrap();
        assert_eq!((whole.len(), &whole[..25]), (40, &first.as_array().unwrap()[..]));
        assert_eq!(values(&mut admin, "v"), BTreeSet::from([1]));
    }
}

/// An update of all that match, which was interrupted before documents moved, is not applied twice.
#[test]
fn interrupted_update_is_reported() {
    needs_one_server!("these connections do not follow a database to its server");
    let mut server = server("shards=2");
    // One shard refuses.
    let of_second = ids().into_iter().find(|id| server.get(&format!("/v/_shards/{id}")).json()["shard"] == "shard-2");
    let refusing = json!({"op": "upsert", "id": of_second.unwrap(), "body": {"n": "x"}});
    assert_eq!(server.wire("admin").ask(Operation::Edit, "v", &refusing).error, None);
    let update = json!({"query": {"selector": {}}, "patch": {"$inc": {"n": 1}}});
    let partly = server.wire("admin").ask_with(key(1, 1), Operation::UpdateWhere, "v", &update);
    assert_eq!(partly.error.as_deref(), Some("invalid"));
    assert!(partly.text.contains("documents were changed in other shards"), "{partly:?}");
    let again = server.wire("admin").ask_with(key(1, 1), Operation::UpdateWhere, "v", &update);
    assert_eq!(again.error.as_deref(), Some("invalid"), "{again:?}");
    split(&server, "shard-1");
    server.restart();
    let mut admin = server.wire("admin");
    let moved = admin.ask_with(key(1, 1), Operation::UpdateWhere, "v", &update);
    assert_eq!(moved.error.as_deref(), Some("conflict"), "{moved:?}");
    let changed = json!({"query": {"selector": {"n": {"$gt": 1, "$lt": 9}}}});
    assert_eq!(admin.ask(Operation::Count, "v", &changed).value, 0);
}

/// A transaction is within one bucket; documents with a common prefix are in one.
#[test]
fn transactions_are_within_a_bucket() {
    needs_one_server!("these connections do not follow a database to its server");
    let server = server("shards=3&prefix=:");
    let mut admin = server.wire("admin");
    let insert = |id: &str| json!({"op": "insert", "id": id, "body": {}});
    let both = json!({"checks": [{"id": "o:0"}], "edits": [insert("o:1"), insert("o:2")]});
    assert_eq!(admin.ask(Operation::Transact, "v", &both).value.as_array().unwrap().len(), 2);
    assert_eq!(admin.ask(Operation::Transact, "v", &both).error.as_deref(), Some("conflict"));
    let steps = json!({"steps": [{"op": "get", "id": "o:1"}, insert("o:3")]});
    assert_eq!(admin.ask(Operation::Batch, "v", &steps).error, None);
    let refused = [
        (Operation::Transact, json!({"edits": [insert("o:4"), insert("p:1")]}), "different buckets"),
        (Operation::Transact, json!({"checks": [{"id": "p:1"}], "edits": [insert("o:4")]}), "different buckets"),
        (
            Operation::Transact,
            json!({"checks": [{"query": {"selector": {}}, "count": 1}], "edits": [insert("o:4")]}),
            "no checks of queries",
        ),
        (Operation::Batch, json!({"steps": [insert("o:4"), insert("p:1")]}), "different buckets"),
        (Operation::Batch, json!({"steps": [{"op": "get", "id": "p:1"}, insert("o:4")]}), "different buckets"),
        (
            Operation::Batch,
            json!({"steps": [insert("o:4"), {"op": "count", "query": {"selector": {}}}]}),
            "reads documents of one bucket",
        ),
    ];
    for (operation, arguments, reason) in refused {
        let answer = admin.ask(operation, "v", &arguments);
        assert_eq!(answer.error.as_deref(), Some("invalid"), "{arguments}: {answer:?}");
        assert!(answer.text.contains(reason), "{arguments}: {answer:?}");
        assert_eq!(server.get("/v/o:4").status, 404, "{arguments}");
    }
}

/// Design documents of one shard validate the writes of all.
#[test]
fn writes_are_validated_in_every_shard() {
    needs_one_server!("these connections do not follow a database to its server");
    let server = server("shards=3");
    let rule = "function (doc) { if (doc.n < 0) throw({forbidden: 'negative'}); }";
    server.design("v", "rule", json!({ "validate_doc_update": rule }));
    let mut admin = server.wire("admin");
    for id in ids() {
        let edit = json!({"op": "update", "id": id, "patch": {"$set": {"n": -1}}});
        for (operation, arguments) in [
            (Operation::Edit, edit.clone()),
            (Operation::Transact, json!({"edits": [edit]})),
            (Operation::Batch, json!({"steps": [edit]})),
        ] {
            let answer = admin.ask(operation, "v", &arguments);
            assert_eq!(answer.error.as_deref(), Some("forbidden"), "{operation:?} {id}: {answer:?}");
        }
    }
    let edits: Vec<_> = ids().iter().map(|id| json!({"op": "upsert", "id": id, "body": {"n": -1}})).collect();
    let answer = admin.ask(Operation::Bulk, "v", &json!({ "edits": edits })).value;
    assert!(answer.as_array().unwrap().iter().all(|result| result["error"] == "forbidden"), "{answer}");
    let update = json!({"query": {"selector": {}}, "patch": {"$set": {"n": -1}}});
    assert_eq!(admin.ask(Operation::UpdateWhere, "v", &update).error.as_deref(), Some("forbidden"));
    assert_eq!(values(&mut admin, "v"), BTreeSet::from([0]));
}

/// A feed continues after its token, also if shards were split and removed; a sequence is no position.
#[test]
fn feeds_continue_after_moves() {
    needs_one_server!("these connections do not follow a database to its server");
    let mut server = server("shards=2");
    let seen = |rows: &[Value]| -> BTreeSet<String> {
        rows.iter().filter_map(|row| Some(row.get("id")?.as_str()?.to_owned())).collect()
    };
    let token = |rows: &[Value]| rows.iter().rev().find_map(|row| row.get("token").cloned()).unwrap();
    let mut admin = server.wire("admin");
    let begun = admin.ask(Operation::Subscribe, "v", &json!({"since": 0}));
    assert_eq!(seen(&begun.rows), ids().into_iter().collect());
    let mut position = token(&begun.rows);
    let read = admin.ask(Operation::Changes, "v", &json!({"after": position}));
    assert!(read.rows.is_empty(), "{read:?}");
    for step in 0..3 {
        let written = format!("after-{step}");
        match step {
            0 => {}
            1 => split(&server, "shard-1"),
            _ => {
                start_move(&server, "v", &json!({"merge": "shard-2", "into": "shard-1"}));
                until_moved(&server, "v");
                server.restart();
            }
        }
        let mut admin = server.wire("admin");
        let insert = json!({"op": "insert", "id": written, "body": {}});
        assert_eq!(admin.ask(Operation::Edit, "v", &insert).error, None);
        let changes = admin.ask(Operation::Changes, "v", &json!({"after": position}));
        assert!(seen(&changes.rows).contains(&written), "{changes:?}");
        let news = admin.ask(Operation::Subscribe, "v", &json!({"after": position}));
        assert!(seen(&news.rows).contains(&written), "{news:?}");
        position = token(&news.rows);
        assert_eq!(admin.ask(Operation::Changes, "v", &json!({"after": position})).error, None);
    }
    let mut admin = server.wire("admin");
    for operation in [Operation::Changes, Operation::Subscribe] {
        let refused = admin.ask(operation, "v", &json!({"since": 3}));
        assert_eq!(refused.error.as_deref(), Some("invalid"), "{refused:?}");
        assert!(refused.text.contains("no common sequence"));
        assert_eq!(admin.ask(operation, "v", &json!({"after": "x"})).error.as_deref(), Some("invalid"));
    }
}

/// Documents and queries are read as of a time, whatever has moved since; never as of a sequence.
#[test]
fn past_is_read_as_of_a_time() {
    needs_one_server!("these connections do not follow a database to its server");
    let server = server("shards=2");
    let mut admin = server.wire("admin");
    assert_eq!(admin.ask(Operation::Keep, "v", &json!({"retention": {"everything": true}})).error, None);
    assert_eq!(admin.ask(Operation::Bulk, "v", &json!({"edits": increments()})).error, None);
    std::thread::sleep(std::time::Duration::from_millis(5));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros() as u64;
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert_eq!(admin.ask(Operation::Bulk, "v", &json!({"edits": increments()})).error, None);
    split(&server, "shard-1");
    let query = json!({"selector": {"n": 1}});
    for (name, then) in [("as_of", json!({"time_us": now})), ("as_of", json!(3))] {
        let of_time = then.is_object();
        let asked = [
            (Operation::Get, json!({"id": "d05", name: then})),
            (Operation::GetMany, json!({"ids": ["d05"], name: then})),
            (Operation::Count, json!({"query": query, name: then})),
            (Operation::Find, json!({"query": query, "shape": "ids", name: then})),
            (Operation::Aggregate, json!({"aggregation": {"figures": {"n": {"max": "n"}}}, name: then})),
            (Operation::DocumentAt, json!({"id": "d05", "at": then})),
        ];
        for (operation, arguments) in asked {
            let answer = admin.ask(operation, "v", &arguments);
            if !of_time {
                assert_eq!(answer.error.as_deref(), Some("invalid"), "{operation:?}: {answer:?}");
                assert!(answer.text.contains("no common sequence"), "{answer:?}");
                continue;
            }
            assert_eq!(answer.error, None, "{operation:?}: {answer:?}");
            match operation {
                Operation::Get | Operation::DocumentAt => assert_eq!(answer.value["body"]["n"], 1),
                Operation::GetMany => assert_eq!(answer.rows[0]["body"]["n"], 1),
                Operation::Count => assert_eq!(answer.value, 40),
                Operation::Find => assert_eq!(answer.rows.len(), 40),
                _ => assert_eq!(answer.rows[0]["figures"]["n"], 1),
            }
        }
    }
}

/// An index is one of all shards, also of those that are added later.
#[test]
fn indexes_are_those_of_all_shards() {
    needs_one_server!("these connections do not follow a database to its server");
    let server = server("shards=2");
    let mut admin = server.wire("admin");
    let index = json!({"index": {"name": "both", "on": ["at", {"path": "n", "descending": true}]}});
    let declared = admin.ask(Operation::IndexCreate, "plain", &index);
    assert_eq!(declared.error, None, "{declared:?}");
    assert_eq!(admin.ask(Operation::IndexCreate, "v", &index).error, None);
    split(&server, "shard-1");
    let listed = admin.ask(Operation::IndexList, "v", &json!({})).rows;
    assert_eq!((listed.len(), &listed[0]["name"]), (1, &json!("both")));
    let query = json!({"selector": {"at": {"$gt": "d"}}, "sort": ["at", {"n": "desc"}]});
    crate::virtual_database::until("the index is used in all shards", || {
        let plans = server.wire("admin").ask(Operation::Explain, "v", &json!({"query": query})).value;
        let plans = plans.as_str().unwrap().to_owned();
        ["shard-1:", "shard-2:", "shard-3:"].iter().all(|shard| plans.contains(shard))
    });
    let unique = json!({"index": {"name": "u", "on": ["at"], "unique": true}});
    let refused = admin.ask(Operation::IndexCreate, "v", &unique);
    assert_eq!(refused.error.as_deref(), Some("invalid"), "{refused:?}");
    assert_eq!(admin.ask(Operation::IndexRemove, "v", &json!({"name": "both"})).error, None);
    let none = admin.ask(Operation::IndexRemove, "v", &json!({"name": "both"}));
    assert_eq!(none.error.as_deref(), Some("not_found"), "{none:?}");
}

/// What virtual databases don't have is refused, with what to do instead; they are deleted as others are.
#[test]
fn unsupported_operations_are_refused() {
    needs_one_server!("these connections do not follow a database to its server");
    let server = server("shards=2");
    let mut admin = server.wire("admin");
    for (operation, arguments) in [
        (Operation::OpenSnapshot, json!({})),
        (Operation::SubscribePaths, json!({"patterns": ["#"]})),
        (Operation::SchemaRequire, json!({"collection": "c", "schema": {}})),
        (Operation::SchemaList, json!({})),
        (Operation::Differences, json!({"start": 0, "end": 1})),
        (Operation::Revert, json!({"query": {"selector": {}}, "to": 0})),
        (Operation::Pin, json!({"name": "p", "at": {"ago_us": 0}})),
        (Operation::SequenceAt, json!({"at": {"ago_us": 0}})),
        (Operation::CallFunction, json!({"name": "f"})),
        (Operation::Find, json!({"query": {"selector": {}, "sort": ["n"]}, "shape": "keys"})),
        (Operation::Aggregate, json!({"aggregation": {"figures": {"n": "count"}}, "partial": true})),
        (Operation::Watch, json!({"query": {"selector": {}, "limit": 3}})),
    ] {
        let answer = admin.ask(operation, "v", &arguments);
        assert_eq!(answer.error.as_deref(), Some("invalid"), "{operation:?}: {answer:?}");
    }
    assert_eq!(admin.ask(Operation::DeleteDatabase, "v", &json!({})).error, None);
    assert_eq!(server.get("/v").status, 404);
    assert_eq!(admin.ask(Operation::Get, "v", &json!({"id": "d00"})).error.as_deref(), Some("not_found"));
}

/// Documents on other servers are read and written in the name of the user, who is limited there as here.
#[test]
fn shards_on_other_servers_are_read_and_written() {
    needs_one_server!("the shards of a cluster are on its servers by their URLs, not `here`");
    let servers = spread_servers();
    let server = &servers.home;
    users(server);
    let rule = "function (doc) { if (doc.n < 0) throw({forbidden: 'negative'}); }";
    server.design("v", "rule", json!({ "validate_doc_update": rule }));
    let access = json!({"selector": {"owner": {"$user": "name"}}});
    assert_eq!(server.put("/v/_security", &security(access)).status, 200);
    let mut admin = server.wire("admin");
    let insert = |id: &String| json!({"op": "insert", "id": id, "body": {"n": 1, "owner": "bob", "text": "HIDDEN"}});
    let edits: Vec<_> = ids().iter().map(insert).collect();
    let written = admin.ask(Operation::Bulk, "v", &json!({ "edits": edits })).value;
    assert!(written.as_array().unwrap().iter().all(Value::is_string), "{written}");
    let mut alice = server.wire("alice");
    for (id, rev) in ids().iter().zip(written.as_array().unwrap()) {
        let read = admin.ask(Operation::Get, "v", &json!({ "id": id })).value;
        assert_eq!((&read["id"], &read["rev"], &read["body"]["n"]), (&json!(id), rev, &json!(1)));
        let old = admin.ask(Operation::GetRevision, "v", &json!({"id": id, "rev": rev})).value;
        assert_eq!(old["rev"], *rev);
        for hidden in [json!({ "id": id }), json!({"id": id, "rev": rev})] {
            let operation = if hidden.get("rev").is_some() { Operation::GetRevision } else { Operation::Get };
            let answer = alice.ask(operation, "v", &hidden);
            assert_eq!((&answer.value, answer.error.as_deref()), (&Value::Null, None), "{answer:?}");
        }
        let merge = |n: i64| json!({"op": "update", "id": id, "merge": {"n": n}});
        for (operation, arguments) in [
            (Operation::Edit, merge(-1)),
            (Operation::Transact, json!({"edits": [merge(-1)]})),
            (Operation::Batch, json!({"steps": [merge(-1)]})),
        ] {
            let refused = admin.ask(operation, "v", &arguments);
            assert_eq!(refused.error.as_deref(), Some("forbidden"), "{operation:?} {id}: {refused:?}");
            let of_alice = alice.ask(operation, "v", &arguments);
            assert_eq!(of_alice.error.as_deref(), Some("not_found"), "{operation:?} {id}: {of_alice:?}");
        }
        let checked = json!({"checks": [{"id": id, "rev": rev}], "edits": [merge(2)]});
        assert_eq!(admin.ask(Operation::Transact, "v", &checked).error, None);
        assert_eq!(admin.ask(Operation::Transact, "v", &checked).error.as_deref(), Some("conflict"));
        let own = json!({"op": "insert", "id": format!("own-{id}"), "body": {"n": 3, "owner": "alice"}});
        assert_eq!(alice.ask(Operation::Edit, "v", &own).error, None);
        let stolen = json!({"op": "insert", "id": format!("stolen-{id}"), "body": {"n": 3, "owner": "bob"}});
        assert_eq!(alice.ask(Operation::Edit, "v", &stolen).error.as_deref(), Some("forbidden"));
    }
    let mine = |id: &String| json!({"op": "update", "id": format!("own-{id}"), "merge": {"n": 4}});
    let edits: Vec<_> = ids().iter().map(mine).chain(ids().iter().map(insert)).collect();
    let results = alice.ask(Operation::Bulk, "v", &json!({ "edits": edits })).value;
    let results = results.as_array().unwrap();
    assert!(results[..40].iter().all(Value::is_string) && results[40..].iter().all(Value::is_object), "{results:?}");
    let all = json!({"selector": {}});
    assert_eq!(alice.ask(Operation::Count, "v", &json!({ "query": all })).value, 40);
    assert_eq!(alice.ask(Operation::Distinct, "v", &json!({"query": all, "path": "n"})).value, json!([4]));
    let changes = alice.ask(Operation::Changes, "v", &json!({"documents": true}));
    assert!(changes.rows.len() == 40 && !changes.text.contains("HIDDEN"));
    let many = alice.ask(Operation::GetMany, "v", &json!({"ids": ["d00", "own-d00", "own-d01", "own-d02"]})).rows;
    assert_eq!(many.iter().map(Value::is_null).collect::<Vec<_>>(), [true, false, false, false]);
    assert_eq!(admin.ask(Operation::Flush, "v", &json!({})).error, None);
    // Only the server of the virtual database speaks in the name of a user.
    let forged = json!({"id": "d00", "on_behalf": "e30="});
    let refused = alice.ask(Operation::Get, "v", &forged);
    assert_eq!(refused.error.as_deref(), Some("forbidden"), "{refused:?}");
    // A design document may be written to any shard.
    let second = json!({"op": "insert", "id": "_design/second", "body": {"validate_doc_update":
        "function (doc) { if (doc.n > 9) throw({forbidden: 'much'}); }"}});
    assert_eq!(admin.ask(Operation::Edit, "v", &second).error, None);
    for id in ids() {
        let much = json!({"op": "update", "id": id, "merge": {"n": 10}});
        assert_eq!(admin.ask(Operation::Edit, "v", &much).error.as_deref(), Some("forbidden"), "{id}");
    }
}

/// Three servers, of which the first one has the virtual database `v`.
fn spread_servers() -> Servers {
    let address = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let with_wire = |config| Config { wire: Wire { address, ..Wire::default() }, ..config };
    let servers = Servers::start_with(|| TestServer::with(with_wire));
    create(&servers.home, "/v?shards=4&servers=here,b,c");
    servers
}

/// Repeated writes are applied once, also if documents move between servers and shards there are removed.
#[test]
fn repeated_writes_to_other_servers_are_applied_once() {
    needs_one_server!("the shards of a cluster are on its servers by their URLs, not `here`");
    let mut servers = spread_servers();
    let docs: Vec<Value> = ids().iter().map(|id| json!({"_id": id, "n": 0})).collect();
    assert_eq!(servers.home.post("/v/_bulk_docs", &json!({ "docs": docs })).status, 201);
    let bulk = json!({"edits": increments()});
    let edits: Vec<Value> =
        ids().iter().map(|id| json!({"op": "update", "id": id, "patch": {"$inc": {"m": 1}}})).collect();
    let ask = |server: &TestServer| {
        let mut admin = server.wire("admin");
        let mut answers = vec![admin.ask_with(key(1, 7), Operation::Bulk, "v", &bulk)];
        for (lane, edit) in (2..).zip(&edits) {
            answers.push(admin.ask_with(key(lane, 3), Operation::Edit, "v", edit));
        }
        assert!(answers.iter().all(|answer| answer.error.is_none()), "{answers:?}");
        answers.into_iter().map(|answer| answer.value).collect::<Vec<_>>()
    };
    let first = ask(&servers.home);
    assert_eq!(ask(&servers.home), first);
    for step in [json!({"merge": "shard-2", "into": "shard-1"}), json!({"split": "shard-3", "server": "b"})] {
        start_move(&servers.home, "v", &step);
        until_moved(&servers.home, "v");
        servers.home.restart();
        assert_eq!(ask(&servers.home), first, "{step}");
        let mut admin = servers.home.wire("admin");
        assert_eq!(values(&mut admin, "v"), BTreeSet::from([1]), "{step}");
        let twice = json!({"query": {"selector": {"m": {"$gt": 1}}}});
        assert_eq!(admin.ask(Operation::Count, "v", &twice).value, 0, "{step}");
    }
}
