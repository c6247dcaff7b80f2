//! `_transact`: atomic writes that follow all rules of other writes.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::client::{ADMIN, Response, TestServer};

fn bank() -> TestServer {
    let server = TestServer::new();
    server.database("bank", &[json!({"_id": "ann", "balance": 100}), json!({"_id": "bob", "balance": 0})]);
    server
}

fn rev(server: &TestServer, id: &str) -> String {
    server.get(&format!("/bank/{id}")).json()["_rev"].as_str().unwrap().to_owned()
}

fn transact(server: &TestServer, body: &Value) -> Response {
    server.post("/bank/_transact", body)
}

#[test]
fn transaction_writes_and_deletes_atomically() {
    let server = bank();
    let (ann, bob) = (rev(&server, "ann"), rev(&server, "bob"));
    let body = json!({"docs": [
        {"_id": "ann", "_rev": ann, "balance": 30},
        {"_id": "bob", "_rev": bob, "_deleted": true},
        {"_id": "carl", "balance": 70, "_attachments": {"note": {"data": "aGk=", "content_type": "text/plain"}}},
        {"kind": "receipt"},
    ]});
    let done = transact(&server, &body);
    assert_eq!(done.status, 201, "{done:?}");
    let rows = done.json()["docs"].as_array().unwrap().clone();
    assert_eq!(rows.len(), 4);
    assert_eq!((&rows[0]["id"], rows[0]["rev"].as_str()), (&json!("ann"), Some(rev(&server, "ann").as_str())));
    assert_eq!(server.get("/bank/bob").status, 404);
    assert_eq!(server.get("/bank/carl/note").text, "hi");
    let receipt = rows[3]["id"].as_str().unwrap();
    assert_eq!(server.get(&format!("/bank/{receipt}")).json()["kind"], "receipt");
}

#[test]
fn conflict_is_resolved_in_one_transaction() {
    let server = bank();
    let own = rev(&server, "ann");
    let foreign = json!({"_id": "ann", "_rev": "1-foreign", "balance": 7});
    server.post("/bank/_bulk_docs", &json!({"docs": [foreign], "new_edits": false}));
    let leaves = |server: &TestServer| {
        let document = server.get("/bank/ann?conflicts=true").json();
        (document["balance"].clone(), document["_conflicts"].as_array().map_or(0, Vec::len))
    };
    assert_eq!(leaves(&server).1, 1);
    let (winner, loser) = match rev(&server, "ann") == own {
        true => (own.as_str(), "1-foreign"),
        false => ("1-foreign", own.as_str()),
    };
    let resolution = |loser: &str| {
        json!({"docs": [
            {"_id": "ann", "_rev": winner, "balance": 107},
            {"_id": "ann", "_rev": loser, "_deleted": true},
        ]})
    };
    // Nothing is written if one of the branches has changed.
    let before = leaves(&server);
    assert_eq!(transact(&server, &resolution("1-00000000000000000000000000000000")).status, 409);
    assert_eq!(leaves(&server), before);
    let resolved = transact(&server, &resolution(loser));
    assert_eq!(resolved.status, 201, "{resolved:?}");
    assert_eq!(leaves(&server), (json!(107), 0));
    let rows = resolved.json()["docs"].as_array().unwrap().clone();
    assert_eq!((rows.len(), rows[0]["rev"].as_str()), (2, Some(rev(&server, "ann").as_str())));
    // The same branch twice is a mistake.
    assert_eq!(transact(&server, &json!({"docs": [{"_id": "new"}, {"_id": "new", "n": 1}]})).status, 400);
}

#[test]
fn one_conflict_aborts_the_transaction_and_all_are_reported() {
    let server = bank();
    let (ann, bob) = (rev(&server, "ann"), rev(&server, "bob"));
    server.put("/bank/ann", &json!({"_rev": ann, "balance": 99}));
    let before = server.get("/bank").json()["update_seq"].clone();
    let refused = transact(
        &server,
        &json!({"docs": [
            {"_id": "new", "n": 1},
            {"_id": "ann", "_rev": ann, "balance": 0},
            {"_id": "bob", "_rev": bob, "balance": 100},
            {"_id": "nobody", "_rev": ann, "n": 1},
        ]}),
    );
    assert_eq!(refused.status, 409);
    let reported = refused.json();
    assert_eq!(reported["error"], "conflict");
    let rows: Vec<_> = reported["refused"].as_array().unwrap().iter().map(|row| (&row["id"], &row["rev"])).collect();
    assert_eq!(rows, [(&json!("ann"), &json!(rev(&server, "ann"))), (&json!("nobody"), &Value::Null)]);
    assert_eq!(server.get("/bank/new").status, 404);
    assert_eq!(server.get("/bank").json()["update_seq"], before, "nothing was written");
}

#[test]
fn failed_checks_abort_the_transaction() {
    let server = bank();
    let (ann, bob) = (rev(&server, "ann"), rev(&server, "bob"));
    let selector = json!({"balance": {"$gte": 0}});
    let good = json!([
        {"id": "ann", "rev": ann},
        {"id": "zoe", "if_absent": true},
        {"selector": selector, "count": 2},
        {"selector": selector, "rows": {"ann": ann, "bob": bob}},
    ]);
    let done = transact(&server, &json!({"docs": [{"_id": "zoe", "balance": 5}], "checks": good}));
    assert_eq!(done.status, 201, "{done:?}");
    // The previous transaction's writes invalidate every check but the first.
    let refused = transact(&server, &json!({"docs": [{"_id": "yan", "balance": 5}], "checks": good}));
    assert_eq!(refused.status, 409);
    let reported = refused.json();
    let failed: Vec<_> =
        reported["refused"].as_array().unwrap().iter().map(|row| row["check"].as_u64().unwrap()).collect();
    assert_eq!((&reported["error"], failed), (&json!("check_failed"), vec![1, 2, 3]));
    assert_eq!(reported["refused"][0]["rev"], rev(&server, "zoe").as_str());
    assert_eq!(server.get("/bank/yan").status, 404);
    // Without documents, only the checks are evaluated.
    assert_eq!(transact(&server, &json!({"docs": [], "checks": [{"id": "ann", "rev": ann}]})).status, 201);
}

#[test]
fn concurrent_transfers_preserve_the_total() {
    let server = bank();
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    loop {
                        let (ann, bob) = (server.get("/bank/ann").json(), server.get("/bank/bob").json());
                        let changed = |account: &Value, by: i64| {
                            let balance = account["balance"].as_i64().unwrap() + by;
                            json!({"_id": account["_id"], "_rev": account["_rev"], "balance": balance})
                        };
                        let answer = transact(&server, &json!({"docs": [changed(&ann, -1), changed(&bob, 1)]}));
                        match answer.status {
                            201 => break,
                            status => assert_eq!(status, 409, "{answer:?}"),
                        }
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(done.into_inner(), 20);
    let balance = |id: &str| server.get(&format!("/bank/{id}")).json()["balance"].as_i64().unwrap();
    assert_eq!((balance("ann"), balance("bob")), (80, 20));
}

#[test]
fn validations_and_rights_apply_to_transactions() {
    let server = bank();
    server.database("_users", &[]);
    let user = json!({"name": "m", "type": "user", "roles": [], "password": "m's"});
    assert_eq!(server.put("/_users/org.couchdb.user:m", &user).status, 201);
    server.put("/bank/_security", &json!({"members": {"names": ["m"], "roles": []}}));
    let validation = "function (doc, before) { if (doc.balance < 0) throw {forbidden: 'below zero'}; }";
    server.design("bank", "rules", json!({ "validate_doc_update": validation }));
    let member = Some(("m", "m's"));
    let ask = |user, body: &Value| server.ask_as(user, "POST", "/bank/_transact", Some(body));
    let refused = ask(member, &json!({"docs": [{"_id": "good", "balance": 1}, {"_id": "bad", "balance": -1}]}));
    assert_eq!(refused.status, 403);
    let reported = refused.json();
    assert_eq!((&reported["error"], &reported["refused"][0]["reason"]), (&json!("forbidden"), &json!("below zero")));
    assert_eq!(server.get("/bank/good").status, 404);
    let design = json!({"docs": [{"_id": "good", "balance": 1}, {"_id": "_design/x", "views": {}}]});
    assert_eq!(ask(member, &design).status, 403);
    assert_eq!(server.get("/bank/good").status, 404);
    assert_eq!(ask(ADMIN, &design).status, 201);
    // A design document written this way takes effect immediately.
    let design = json!({"_id": "_design/y", "validate_doc_update": "function () { throw {forbidden: 'closed'}; }"});
    assert_eq!(ask(ADMIN, &json!({"docs": [design]})).status, 201);
    assert_eq!(server.ask_as(member, "PUT", "/bank/more", Some(&json!({"balance": 1}))).status, 403);
    // In `_users`, only administrators read or write documents of other users.
    let raised = json!({"docs": [{"_id": "org.couchdb.user:m", "name": "m", "type": "user", "roles": ["boss"]}]});
    for route in ["_transact", "_aggregate", "_prepare"] {
        assert_eq!(server.ask_as(member, "POST", &format!("/_users/{route}"), Some(&raised)).status, 403);
    }
    let system = json!({"docs": [{"_id": "org.couchdb.user:z", "name": "z", "type": "user", "roles": ["_admin"]}]});
    assert_eq!(server.post("/_users/_transact", &system).status, 403);
}

#[test]
fn invalid_transactions_are_rejected_with_a_reason() {
    let server = bank();
    for body in [
        json!([]),
        json!({"docs": {}}),
        json!({"docs": [1]}),
        json!({"documents": []}),
        json!({"docs": [{"_id": "a"}, {"_id": "a"}]}),
        json!({"docs": [{"_id": "_local/a"}]}),
        json!({"checks": [{"id": "a"}]}),
        json!({"checks": vec![json!({"id": "a", "if_absent": true}); 1_001]}),
        json!({"checks": [{"id": "a", "rev": "x"}]}),
        json!({"checks": [{"id": "a", "if_absent": false}]}),
        json!({"checks": [{"selector": {"a": {"$huh": 1}}, "count": 1}]}),
        json!({"checks": [{"selector": {}, "count": -1}]}),
    ] {
        let answer = transact(&server, &body);
        assert_eq!(answer.status, 400, "{body}: {answer:?}");
    }
    assert_eq!(server.post("/bank/_transact?new_edits=false", &json!({"docs": []})).status, 400);
}
