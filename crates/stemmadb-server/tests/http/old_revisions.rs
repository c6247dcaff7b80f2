//! Replaced revisions: clients read them until the database is compacted, as from CouchDB.

use serde_json::{Value, json};

use crate::client::TestServer;

fn put(server: &TestServer, body: &Value) -> String {
    let written = server.put("/db/d", body).json();
    written["rev"].as_str().unwrap_or_else(|| panic!("{written}")).to_owned()
}

fn statuses(document: &Value) -> Vec<String> {
    let infos = document["_revs_info"].as_array().unwrap();
    infos.iter().map(|info| info["status"].as_str().unwrap().to_owned()).collect()
}

fn compact(server: &TestServer) {
    assert_eq!(server.post("/db/_compact", &json!({})).status, 202);
    while server.get("/db").json()["compact_running"] == json!(true) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn replaced_revisions_are_read_until_the_database_is_compacted() {
    let server = TestServer::new();
    server.database("db", &[]);
    let first = put(&server, &json!({"n": 1}));
    let second = put(&server, &json!({"n": 2, "_rev": first}));
    let third = put(&server, &json!({"n": 3, "_rev": second}));

    let old = server.get(&format!("/db/d?rev={first}")).json();
    assert_eq!((&old["_rev"], &old["n"]), (&json!(first), &json!(1)));
    let old = server.get(&format!("/db/d?rev={second}&revs=true")).json();
    assert_eq!(old["_revisions"]["start"], 2);
    assert_eq!(old["_revisions"]["ids"].as_array().unwrap().len(), 2, "{old}");
    let opened = server.get(&format!("/db/d?open_revs=[\"{first}\",\"{third}\"]")).json();
    assert_eq!((&opened[0]["ok"]["n"], &opened[1]["ok"]["n"]), (&json!(1), &json!(3)));
    let latest = server.get(&format!("/db/d?open_revs=[\"{first}\"]&latest=true")).json();
    assert_eq!(latest[0]["ok"]["n"], 3);
    let bulk = server.post("/db/_bulk_get", &json!({"docs": [{"id": "d", "rev": second}]})).json();
    assert_eq!(bulk["results"][0]["docs"][0]["ok"]["n"], 2);
    let winner = server.get("/db/d?revs_info=true").json();
    assert_eq!(statuses(&winner), ["available", "available", "available"]);
    let of_old = server.get(&format!("/db/d?rev={second}&revs_info=true")).json();
    assert_eq!(statuses(&of_old), ["available", "available"]);

    // They can't be replaced.
    for request in [json!({"n": 4, "_rev": second}), json!({"n": 1, "_rev": first})] {
        assert_eq!(server.put("/db/d", &request).status, 409, "{request}");
    }
    let patch = json!({"n": 1});
    let merge = [("content-type", "application/json")];
    let path = format!("/db/d?rev={first}");
    assert_eq!(server.send_as_admin("PATCH", &path, &merge, patch.to_string().as_bytes()).status, 409);
    assert_eq!(server.delete(&path).status, 409);

    compact(&server);
    let gone = server.get(&format!("/db/d?rev={first}"));
    assert_eq!((gone.status, &gone.json()["reason"]), (404, &json!("missing")));
    let opened = server.get(&format!("/db/d?open_revs=[\"{second}\"]")).json();
    assert_eq!(opened, json!([{"missing": second}]));
    assert_eq!(statuses(&server.get("/db/d?revs_info=true").json()), ["available", "missing", "missing"]);
    assert_eq!(server.get("/db/d").json()["_rev"], json!(third));
}

#[test]
fn attachments_of_replaced_revisions_are_read() {
    let server = TestServer::new();
    server.database("db", &[]);
    let data = json!({"_attachments": {"file": {"content_type": "text/plain", "data": "b2xk"}}});
    let first = put(&server, &data);
    let replaced = json!({"_rev": first, "_attachments": {"file": {"content_type": "text/plain", "data": "bmV3"}}});
    put(&server, &replaced);
    // The content is swept in the background. Until then the revision has it, after that the revision is missing.
    let old = server.get(&format!("/db/d/file?rev={first}"));
    assert!(old.status == 200 && old.text == "old" || old.status == 404, "{old:?}");
    assert_eq!(server.get("/db/d/file").text, "new");
    compact(&server);
    assert_eq!(server.get(&format!("/db/d/file?rev={first}")).status, 404);
    assert_eq!(server.get("/db/d/file").text, "new");
}

#[test]
fn the_limit_of_revisions_applies_to_the_next_write() {
    let server = TestServer::new();
    server.database("db", &[]);
    let mut revision = put(&server, &json!({}));
    for number in 0..5 {
        revision = put(&server, &json!({"n": number, "_rev": revision}));
    }
    assert_eq!(server.put("/db/_revs_limit", &json!(2)).status, 200);
    let known = || server.get("/db/d?revs=true").json()["_revisions"]["ids"].as_array().unwrap().len();
    assert_eq!(known(), 6);
    put(&server, &json!({"_rev": revision}));
    assert_eq!(known(), 2);
}
