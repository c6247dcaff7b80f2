//! Server-side replication between servers: once, continuously, and through restarts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use stemmadb_server::{Config, Replicator, Tls};

use crate::client::TestServer;

/// Every leaf of every document of a database, with history, body and files.
fn state(server: &TestServer, database: &str) -> BTreeMap<String, Value> {
    let changes = server.get(&format!("/{database}/_changes?style=all_docs")).json();
    let rows = changes["results"].as_array().unwrap().iter().map(|row| {
        let id = row["id"].as_str().unwrap().to_owned();
        let leaves = server.get(&format!("/{database}/{id}?open_revs=all&revs=true&attachments=true")).json();
        let mut leaves = leaves.as_array().unwrap().clone();
        leaves.sort_by_key(|leaf| leaf["ok"]["_rev"].to_string());
        (id, Value::Array(leaves))
    });
    rows.collect()
}

/// Waits for a condition.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(60), "timed out: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn fill(server: &TestServer, database: &str) {
    let docs: Vec<_> = (0..150).map(|n| json!({"_id": format!("d{n:03}"), "n": n, "text": "größe"})).collect();
    server.database(database, &docs);
    let revision = server.get(&format!("/{database}/d001")).json()["_rev"].as_str().unwrap().to_owned();
    server.delete(&format!("/{database}/d001?rev={revision}"));
    // A conflict, and files.
    let foreign = json!({"_id": "d002", "_rev": "1-other", "n": "other"});
    server.post(&format!("/{database}/_bulk_docs"), &json!({"docs": [foreign], "new_edits": false}));
    let files = json!({"a/b": {"data": "aGVsbG8=", "content_type": "text/plain"},
        "empty": {"data": "", "content_type": "x/y"}});
    assert_eq!(server.put(&format!("/{database}/files"), &json!({"n": 1, "_attachments": files})).status, 201);
    server.design(database, "d", json!({"filters": {"few": "function(doc, req) { return doc.n < req.query.most }"}}));
}

#[test]
fn push_and_pull_replication_resume_from_checkpoints() {
    needs_one_server!("each server has checkpoints of its own");
    let (one, two) = (TestServer::new(), TestServer::new());
    fill(&one, "db");
    let push = json!({"source": "db", "target": two.url("db"), "create_target": true});
    let first = one.post("/_replicate", &push);
    assert_eq!(first.status, 200, "{first:?}");
    assert_eq!(first.json()["history"][0]["docs_written"], 153, "{first:?}");
    assert_eq!(state(&one, "db"), state(&two, "db"));
    let again = one.post("/_replicate", &push).json();
    assert_eq!((&again["no_changes"], &again["history"][0]["docs_read"]), (&json!(true), &json!(0)));
    one.put("/db/late", &json!({"n": 1}));
    assert_eq!(one.post("/_replicate", &push).json()["history"][0]["docs_written"], 1);
    // And back into another database of the first server.
    let pull = json!({"source": two.url("db"), "target": "copy", "create_target": true});
    let pulled = one.post("/_replicate", &pull);
    assert_eq!(pulled.status, 200, "{pulled:?}");
    assert_eq!(state(&one, "copy"), state(&two, "db"));
}

#[test]
fn replication_can_be_filtered() {
    let server = TestServer::new();
    fill(&server, "db");
    let of = |name: &str, more: Value| {
        let mut body = json!({"source": "db", "target": name, "create_target": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let done = server.post("/_replicate", &body);
        assert_eq!(done.status, 200, "{done:?}");
        state(&server, name).into_keys().collect::<Vec<_>>()
    };
    assert_eq!(of("ids", json!({"doc_ids": ["d003", "files", "nothing"]})), ["d003", "files"]);
    assert_eq!(of("selected", json!({"selector": {"n": {"$in": [7, 8]}}})), ["d007", "d008"]);
    let filtered = json!({"source": server.url("db"), "filter": "d/few", "query_params": {"most": "2"}});
    // The deleted document has no number, and `undefined < 2` is false.
    assert_eq!(of("filtered", filtered), ["d000", "files"]);
}

#[test]
fn invalid_replications_are_rejected_with_a_reason() {
    let server = TestServer::new();
    server.database("db", &[]);
    for (body, status) in [
        (json!({"source": "db"}), 400),
        (json!({"source": "nothing", "target": "db"}), 500),
        (json!({"source": "http://127.0.0.1:1/x", "target": "db"}), 500),
        (json!({"source": server.url("db").replace("secret", "wrong"), "target": "db"}), 500),
        (json!({"source": "https://127.0.0.1:1/x", "target": "db"}), 500),
        (json!({"source": "ftp://127.0.0.1/x", "target": "db"}), 400),
        (json!({"source": "http://169.254.169.254/x", "target": "db"}), 403),
        (json!({"source": "db", "target": "http://[fe80::1]:5984/x"}), 403),
        (json!({"cancel": true, "source": "a", "target": "db"}), 404),
    ] {
        assert_eq!(server.post("/_replicate", &body).status, status, "{body}");
    }
}

#[test]
fn continuous_replication_runs_until_cancelled() {
    let server = TestServer::new();
    server.database("a", &[]);
    server.database("b", &[]);
    let wanted = json!({"source": "a", "target": "b", "continuous": true});
    let begun = server.post("/_replicate", &wanted);
    assert_eq!(begun.status, 202, "{begun:?}");
    for n in 0..3 {
        server.put(&format!("/a/{n}"), &json!({}));
        until("it arrives", || server.get(&format!("/b/{n}")).status == 200);
    }
    let jobs = server.get("/_scheduler/jobs").json();
    assert_eq!((&jobs["total_rows"], &jobs["jobs"][0]["id"]), (&json!(1), &begun.json()["_local_id"]));
    // The lag: everything was read.
    let pending = || server.get("/_scheduler/jobs").json()["jobs"][0]["info"]["changes_pending"].clone();
    until("nothing is pending", || pending() == 0);
    let line = format!("stemma_replication_changes_pending{{job={}}} 0\n", jobs["jobs"][0]["id"]);
    assert!(server.metrics().contains(&line), "{line}");
    let cancelled =
        server.post("/_replicate", &json!({"source": "a", "target": "b", "continuous": true, "cancel": true}));
    assert_eq!(cancelled.status, 200, "{cancelled:?}");
    assert_eq!(server.get("/_scheduler/jobs").json()["total_rows"], 0);
}

#[test]
fn servers_converge_through_restarts() {
    let (mut one, mut two) = (TestServer::new(), TestServer::new());
    fill(&one, "db");
    two.database("db", &[json!({"_id": "own", "n": 2})]);
    one.database("_replicator", &[]);
    let there = two.url("db");
    one.put("/_replicator/push", &json!({"source": one.url("db"), "target": there, "continuous": true}));
    one.put("/_replicator/pull", &json!({"source": there, "target": "db", "continuous": true}));
    let agree = |one: &TestServer, two: &TestServer| until("both agree", || state(one, "db") == state(two, "db"));
    agree(&one, &two);
    assert!(state(&one, "db").contains_key("own"));
    two.restart();
    two.put("/db/after", &json!({"restart": "of two"}));
    one.put("/db/during", &json!({"n": 3}));
    until("both documents arrive", || one.get("/db/after").status == 200 && two.get("/db/during").status == 200);
    one.restart();
    two.put("/db/later", &json!({"restart": "of one"}));
    one.put("/db/last", &json!({"n": 4}));
    until("both documents arrive", || one.get("/db/later").status == 200 && two.get("/db/last").status == 200);
    agree(&one, &two);
    let docs = one.get("/_scheduler/docs").json();
    let reported: Vec<_> = docs["docs"].as_array().unwrap().iter().map(|doc| (&doc["doc_id"], &doc["state"])).collect();
    assert_eq!(reported.len(), 2, "{docs}");
    // Deleting the document ends the replication.
    let revision = one.get("/_replicator/pull").json()["_rev"].as_str().unwrap().to_owned();
    one.delete(&format!("/_replicator/pull?rev={revision}"));
    until("the job is gone", || one.get("/_scheduler/jobs").json()["total_rows"] == 1);
}

#[test]
fn replicator_document_for_one_run_runs_once() {
    let mut server = TestServer::new();
    fill(&server, "db");
    server.database("_replicator", &[json!({"_id": "once", "source": "db", "target": "copy", "create_target": true})]);
    server.put("/_replicator/wrong", &json!({"source": "db"}));
    let state_of = |server: &TestServer, id: &str| {
        server.get(&format!("/_scheduler/docs/_replicator/{id}")).json()["state"].clone()
    };
    until("it is done", || state_of(&server, "once") == "completed");
    until("it is refused", || state_of(&server, "wrong") == "failed");
    assert_eq!(state(&server, "copy"), state(&server, "db"));
    server.delete("/copy");
    server.restart();
    until("it is known", || state_of(&server, "once") == "completed");
    assert_eq!(server.get("/copy").status, 404);
}

/// A TLS-only server with a self-signed certificate for `localhost`; returns its URLs and the certificate.
fn encrypted(place: &std::path::Path) -> (TestServer, impl Fn(&str) -> String, std::path::PathBuf) {
    encrypted_from(place, 4096)
}

/// The same, with a certificate that expires at the beginning of this year.
fn encrypted_from(place: &std::path::Path, end: i32) -> (TestServer, impl Fn(&str) -> String, std::path::PathBuf) {
    let (certificate, key) = (place.join("certificate.pem"), place.join("key.pem"));
    let mut wanted = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    wanted.not_after = rcgen::date_time_ymd(end, 1, 1);
    let pair = rcgen::KeyPair::generate().unwrap();
    std::fs::write(&key, pair.serialize_pem()).unwrap();
    std::fs::write(&certificate, wanted.self_signed(&pair).unwrap().pem()).unwrap();
    let tls = Tls { certificate: certificate.clone(), key };
    let server = TestServer::with(|config| Config { tls: Some(tls), ..config });
    let port = server.address().port();
    (server, move |host: &str| format!("https://admin:secret@{host}:{port}/db"), certificate)
}

#[test]
fn tls_replication_requires_a_trusted_certificate() {
    needs_one_server!("servers of the tests' clusters have no TLS");
    let place = tempfile::tempdir().unwrap();
    let (_other, url, certificate) = encrypted(place.path());
    let trusting = Replicator { ca: Some(certificate), ..Replicator::default() };
    let one = TestServer::with(|config| Config { replicator: trusting.clone(), ..config });
    fill(&one, "db");
    let push = json!({"source": "db", "target": url("localhost"), "create_target": true});
    let pushed = one.post("/_replicate", &push);
    assert_eq!((pushed.status, &pushed.json()["history"][0]["docs_written"]), (200, &json!(153)), "{pushed:?}");
    let pull = json!({"source": url("localhost"), "target": "copy", "create_target": true});
    assert_eq!(one.post("/_replicate", &pull).status, 200);
    assert_eq!(state(&one, "copy"), state(&one, "db"));
    // An untrusted certificate, and a certificate for another name.
    let wary = TestServer::new();
    wary.database("db", &[]);
    for (server, host) in [(&wary, "localhost"), (&one, "127.0.0.1")] {
        let refused = server.post("/_replicate", &json!({"source": url(host), "target": "db"}));
        assert_eq!((refused.status, &refused.json()["error"]), (500, &json!("replication_failed")), "{refused:?}");
        assert!(refused.json()["reason"].as_str().unwrap().contains("certificate"), "{refused:?}");
        assert!(!refused.text.contains("secret"), "{refused:?}");
    }
    assert_eq!(wary.get("/db").json()["doc_count"], 0);
}

#[test]
fn expired_certificate_is_rejected() {
    needs_one_server!("servers of the tests' clusters have no TLS");
    let place = tempfile::tempdir().unwrap();
    let (other, url, certificate) = encrypted_from(place.path(), 2001);
    let trusting = Replicator { ca: Some(certificate), ..Replicator::default() };
    let one = TestServer::with(|config| Config { replicator: trusting.clone(), ..config });
    one.database("db", &[json!({"_id": "a"})]);
    for job in [
        json!({"source": url("localhost"), "target": "db"}),
        json!({"source": "db", "target": url("localhost"), "create_target": true}),
    ] {
        let refused = one.post("/_replicate", &job);
        assert_eq!((refused.status, &refused.json()["error"]), (500, &json!("replication_failed")), "{refused:?}");
        assert!(refused.json()["reason"].as_str().unwrap().contains("expired"), "{refused:?}");
        assert!(!refused.text.contains("secret"), "{refused:?}");
    }
    drop(other);
}

/// In CouchDB, a validation that refused one revision (here of a document that was deleted and recreated) ended the
/// whole replication (CouchDB issue 1418).
#[test]
fn validation_failures_are_counted_and_others_replicated() {
    let (one, two) = (TestServer::new(), TestServer::new());
    one.database("db", &[json!({"_id": "recreated", "type": "x"}), json!({"_id": "before", "type": "x"})]);
    let revision = one.get("/db/recreated").json()["_rev"].as_str().unwrap().to_owned();
    one.delete(&format!("/db/recreated?rev={revision}"));
    assert_eq!(one.put("/db/recreated", &json!({"n": 2})).status, 201);
    assert_eq!(one.put("/db/after", &json!({"type": "x"})).status, 201);
    let guard = json!({
        "validate_doc_update": "function(doc) { if (!doc._deleted && !doc.type) throw({forbidden: 'no type'}) }",
    });
    for (at, job, target) in [
        (&one, json!({"source": "db", "target": two.url("pushed")}), "pushed"),
        (&two, json!({"source": one.url("db"), "target": "pulled"}), "pulled"),
    ] {
        two.database(target, &[]);
        two.design(target, "guard", guard.clone());
        let done = at.post("/_replicate", &job);
        let counts = &done.json()["history"][0];
        assert_eq!((done.status, &counts["docs_written"], &counts["doc_write_failures"]), (200, &json!(2), &json!(1)));
        let status = |id: &str| two.get(&format!("/{target}/{id}")).status;
        assert_eq!((status("before"), status("after"), status("recreated")), (200, 200, 404), "{target}");
        // The same again: there is nothing left to replicate.
        let again = at.post("/_replicate", &job).json();
        assert_eq!(again["history"][0]["docs_written"].as_u64().unwrap_or(0), 0, "{again}");
    }
}

/// Histories that were truncated in transfer have no common ancestor: the newer one wins everywhere, and the older one
/// is a conflict everywhere.
#[test]
fn truncated_histories_converge() {
    let (one, two) = (TestServer::new(), TestServer::new());
    one.database("db", &[json!({"_id": "d", "n": 1})]);
    two.database("db", &[]);
    for server in [&one, &two] {
        assert_eq!(
            server.send_as_admin("PUT", "/db/_revs_limit", &[("Content-Type", "application/json")], b"3").status,
            200
        );
    }
    let both_ways = || {
        for (source, target) in [(json!("db"), json!(two.url("db"))), (json!(two.url("db")), json!("db"))] {
            let done = one.post("/_replicate", &json!({"source": source, "target": target}));
            assert_eq!(done.status, 200, "{done:?}");
        }
    };
    both_ways();
    for n in 2..=9 {
        let revision = one.get("/db/d").json()["_rev"].clone();
        assert_eq!(one.put("/db/d", &json!({"_rev": revision, "n": n})).status, 201);
    }
    both_ways();
    assert_eq!(state(&one, "db"), state(&two, "db"));
    for server in [&one, &two] {
        let reported = server.get("/db/d?conflicts=true&revs=true").json();
        assert_eq!(
            (&reported["n"], reported["_conflicts"].as_array().map(Vec::len)),
            (&json!(9), Some(1)),
            "{reported}"
        );
        assert_eq!(reported["_revisions"]["ids"].as_array().unwrap().len(), 3, "{reported}");
    }
}

#[test]
fn unlisted_hosts_are_not_contacted() {
    let hosts = Replicator { hosts: vec!["db.example".to_owned()], ..Replicator::default() };
    let server = TestServer::with(|config| Config { replicator: hosts.clone(), ..config });
    server.database("db", &[json!({"_id": "a"})]);
    let refused =
        server.post("/_replicate", &json!({"source": server.url("db"), "target": "copy", "create_target": true}));
    assert_eq!(refused.status, 403, "{refused:?}");
    assert!(refused.json()["reason"].as_str().unwrap().contains("replicator.hosts"), "{refused:?}");
    // Local databases are not accessed by URL.
    let own = server.post("/_replicate", &json!({"source": "db", "target": "copy", "create_target": true}));
    assert_eq!((own.status, server.get("/copy/a").status), (200, 200), "{own:?}");
    // A document with a forbidden host reports it, and others continue.
    server.database("_replicator", &[json!({"_id": "far", "source": server.url("db"), "target": "x"})]);
    server.put("/_replicator/near", &json!({"source": "db", "target": "y", "create_target": true}));
    until("it is done", || server.get("/_replicator/near").json()["_replication_state"] == "completed");
    assert_eq!(server.get("/_replicator/far").json()["_replication_state"], "failed");
}

#[test]
fn replicator_document_shows_the_outcome() {
    let server = TestServer::new();
    fill(&server, "db");
    server.database("_replicator", &[json!({"_id": "once", "source": "db", "target": "copy", "create_target": true})]);
    server.put("/_replicator/wrong", &json!({"source": "nothing", "target": "copy"}));
    let doc = |id: &str| server.get(&format!("/_replicator/{id}")).json();
    until("it is done", || doc("once")["_replication_state"] == "completed");
    let once = doc("once");
    assert_eq!(once["_replication_stats"]["docs_written"], 153, "{once}");
    let job = server.get("/_scheduler/docs/_replicator/once").json();
    assert_eq!((&once["_replication_id"], &job["state"]), (&job["id"], &json!("completed")));
    let time = once["_replication_state_time"].as_str().unwrap();
    assert!(time.starts_with("20") && time.ends_with('Z') && time.len() == 20, "{time}");
    assert!(once["_rev"].as_str().unwrap().starts_with("1-"), "no revision is made by it: {once}");
    // The status is included wherever the document is read, and the ETag does not hide a change of it.
    let listed = server.get("/_replicator/_all_docs?include_docs=true&key=%22once%22").json();
    assert_eq!(listed["rows"][0]["doc"], once);
    let tag = server.get("/_replicator/once").header("etag").unwrap().to_owned();
    assert_eq!(tag, once["_rev"].to_string());
    assert_eq!(server.send_as_admin("GET", "/_replicator/once", &[("If-None-Match", &tag)], b"").status, 200);
    until("it fails", || doc("wrong")["_replication_state"] == "failed");
    assert!(doc("wrong")["_replication_state_reason"].as_str().unwrap().contains("not_found"), "{}", doc("wrong"));
    // Writing the document back unchanged starts the replication again.
    server.delete("/copy");
    assert_eq!(server.put("/_replicator/once", &once).status, 201);
    until("it is done again", || {
        let again = doc("once");
        again["_replication_state"] == "completed" && again["_rev"] != once["_rev"]
    });
    assert_eq!(state(&server, "copy"), state(&server, "db"));
}

#[test]
fn failed_replication_retries_with_backoff() {
    needs_one_server!("the servers of the tests' clusters choose their addresses");
    let gone = TestServer::new();
    let address = gone.address();
    let url = gone.url("db");
    drop(gone);
    let server = TestServer::new();
    server.database(
        "_replicator",
        &[json!({"_id": "pull", "source": url, "target": "db", "create_target": true, "continuous": true})],
    );
    let job = || server.get("/_scheduler/docs/_replicator/pull").json();
    until("it fails twice", || job()["error_count"].as_u64() >= Some(2) && job()["state"] == "crashing");
    let reported = job();
    assert!(reported["retry_at"].as_str() > reported["last_updated"].as_str(), "{reported}");
    assert!(reported["info"]["error"].as_str().unwrap().contains("refused"), "{reported}");
    let history: Vec<_> =
        reported["history"].as_array().unwrap().iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(history, ["crashed", "started", "crashed", "started", "added"]);
    let crashed: Vec<&str> = [0, 2].iter().map(|at| reported["history"][*at]["timestamp"].as_str().unwrap()).collect();
    assert!(crashed[0] > crashed[1], "{reported}");
    assert!(reported["history"][0]["reason"].as_str().unwrap().contains("refused"), "{reported}");
    assert_eq!(server.get("/_scheduler/jobs").json()["jobs"][0]["error_count"], reported["error_count"]);
    let back = TestServer::with(|config| Config { address, ..config });
    back.database("db", &[json!({"_id": "late"})]);
    until("it arrives", || server.get("/db/late").status == 200);
    until("all is well", || {
        job()["state"] == "running" && job()["retry_at"].is_null() && job()["info"]["error"].is_null()
    });
}

#[test]
fn large_batches_are_split() {
    let narrow = || {
        TestServer::with(|mut config| {
            config.limits.body_bytes = 20_000;
            config
        })
    };
    let (one, small) = (TestServer::new(), narrow());
    let docs: Vec<_> = (0..60).map(|n| json!({"_id": format!("d{n:02}"), "text": "x".repeat(1500 + n)})).collect();
    one.database("db", &docs);
    let push = json!({"source": "db", "target": small.url("db"), "create_target": true});
    let pushed = one.post("/_replicate", &push);
    assert_eq!((pushed.status, &pushed.json()["history"][0]["docs_written"]), (200, &json!(60)), "{pushed:?}");
    assert_eq!(state(&one, "db"), state(&small, "db"));
    let pull = json!({"source": one.url("db"), "target": "pulled", "create_target": true});
    let pulled = small.post("/_replicate", &pull);
    assert_eq!((pulled.status, &pulled.json()["history"][0]["docs_written"]), (200, &json!(60)), "{pulled:?}");
    assert_eq!(state(&small, "pulled"), state(&one, "db"));
    // A document that exceeds the limit by itself is counted as a failure, and the others are replicated.
    one.put("/db/huge", &json!({"text": "x".repeat(30_000)}));
    one.put("/db/next", &json!({"n": 1}));
    let counts = one.post("/_replicate", &push).json()["history"][0].clone();
    assert_eq!((&counts["docs_written"], &counts["doc_write_failures"]), (&json!(1), &json!(1)), "{counts}");
    assert_eq!((small.get("/db/next").status, small.get("/db/huge").status), (200, 404));
}

/// Regression test: the delay after a failure was never reset, so a replication that had failed ten times in a year
/// paused for ten minutes after the eleventh failure. Found by partitioning three servers repeatedly.
#[test]
fn success_resets_the_retry_delay() {
    needs_one_server!("the servers of the tests' clusters choose their addresses");
    let gone = TestServer::new();
    let (address, url) = (gone.address(), gone.url("db"));
    drop(gone);
    let waits = Replicator { retry_wait: Duration::from_millis(100), ..Replicator::default() };
    let server = TestServer::with(|config| Config { replicator: waits.clone(), ..config });
    server.database(
        "_replicator",
        &[json!({"_id": "pull", "source": url, "target": "db", "create_target": true, "continuous": true})],
    );
    let job = || server.get("/_scheduler/docs/_replicator/pull").json();
    let failures = |job: &Value| job["error_count"].as_u64().unwrap_or(0);
    until("it fails often", || failures(&job()) >= 6);
    let back = TestServer::with(|config| Config { address, ..config });
    back.database("db", &[json!({"_id": "a"})]);
    until("it is well", || {
        let job = job();
        server.get("/db/a").status == 200 && job["state"] == "running" && job["info"]["error"].is_null()
    });
    let before = failures(&job());
    drop(back);
    let mut reported = Value::Null;
    until("it fails again, and waits", || {
        reported = job();
        failures(&reported) > before && !reported["retry_at"].is_null()
    });
    // Checks the reported delay instead of waiting for it: a tenth of a second after the first failure, twice as long
    // after each further one, reported in whole seconds. Without the reset it would be at least six.
    let second = |time: &Value| {
        let fields: Vec<u64> = time.as_str().unwrap()[11..19].split(':').map(|field| field.parse().unwrap()).collect();
        (fields[0] * 60 + fields[1]) * 60 + fields[2]
    };
    let pause = (86_400 + second(&reported["retry_at"]) - second(&reported["history"][0]["timestamp"])) % 86_400;
    assert_eq!(pause, (100 << (failures(&reported) - before - 1)) / 1000, "{reported}");
}

#[test]
fn changed_filters_start_a_new_replication() {
    let server = TestServer::new();
    server.database("db", &[json!({"_id": "a", "n": 1}), json!({"_id": "b", "n": 2})]);
    let filter = |condition: &str| {
        let function = format!("function(doc) {{ return {condition} }}");
        server.design("db", "d", json!({"filters": {"f": function}}));
    };
    let replicate = |more: Value| {
        let mut body = json!({"source": server.url("db"), "target": "copy", "create_target": true, "filter": "d/f"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let done = server.post("/_replicate", &body);
        assert!(done.status < 300, "{done:?}");
        state(&server, "copy").into_keys().collect::<Vec<_>>()
    };
    filter("doc.n == 1");
    assert_eq!(replicate(json!({})), ["a"]);
    filter("doc.n > 0");
    assert_eq!(replicate(json!({})), ["a", "b"]);
    // Also while a continuous replication runs.
    filter("doc.n == 3");
    replicate(json!({"continuous": true}));
    server.put("/db/e", &json!({"n": 4}));
    server.put("/db/c", &json!({"n": 3}));
    until("the new document arrives", || server.get("/copy/c").status == 200);
    assert_eq!(server.get("/copy/e").status, 404);
    filter("doc.n > 2");
    until("the other document arrives", || server.get("/copy/e").status == 200);
}

#[test]
fn replication_states_are_kept() {
    let server = TestServer::new();
    server.database("db", &[]);
    server.database("_replicator", &[]);
    let fields = [
        "_replication_state",
        "_replication_state_time",
        "_replication_state_reason",
        "_replication_id",
        "_replication_stats",
    ];
    for field in fields {
        let id = format!("of{field}");
        assert_eq!(server.put(&format!("/db/{id}"), &json!({field: "x"})).status, 201, "{field}");
        assert_eq!(server.get(&format!("/db/{id}")).json()[field], "x");
        let rows = server.post("/db/_find", &json!({"selector": {field: "x"}, "fields": ["_id"]})).json();
        assert_eq!(rows["docs"], json!([{"_id": id}]), "{field}");
    }
    let refused = server.put("/db/b", &json!({"_replication_other": "x"}));
    assert_eq!((refused.status, &refused.json()["error"]), (400, &json!("doc_validation")));
    let body = json!({"source": "db", "target": "copy", "create_target": true, "_replication_state": "error"});
    let written = server.put("/_replicator/a", &body);
    assert_eq!(written.status, 201, "{written:?}");
    until("it is done", || server.get("/_replicator/a").json()["_replication_state"] == "completed");
    let read = server.get("/_replicator/a");
    assert_eq!(read.header("etag"), Some(format!("{}", written.json()["rev"]).as_str()));
    let tag = read.header("etag").unwrap();
    assert_eq!(server.send_as_admin("GET", "/_replicator/a", &[("If-None-Match", tag)], b"").status, 200);
    // A copy of `_replicator` keeps the states.
    let copy = json!({"source": server.url("_replicator"), "target": "backup", "create_target": true});
    let done = server.post("/_replicate", &copy).json();
    assert_eq!((&done["history"][0]["doc_write_failures"], &done["ok"]), (&json!(0), &json!(true)), "{done}");
    assert_eq!(server.get("/backup/a").json()["_replication_state"], "completed");
}

#[test]
fn replication_responses_describe_the_session() {
    let server = TestServer::new();
    server.database("db", &[json!({"_id": "a"})]);
    let body = json!({"source": "db", "target": "copy", "create_target": true});
    let first = server.post("/_replicate", &body).json();
    let entry = &first["history"][0];
    assert!(first["session_id"].as_str().is_some_and(|id| id.len() == 32), "{first}");
    assert_eq!((&entry["session_id"], &first["replication_id_version"]), (&first["session_id"], &json!(4)));
    for name in ["start_time", "end_time"] {
        let time = entry[name].as_str().unwrap();
        assert!(time.len() == 29 && time.ends_with(" GMT") && time[3..].starts_with(", "), "{entry}");
    }
    assert_eq!((&entry["start_last_seq"], &entry["end_last_seq"]), (&json!(0), &first["source_last_seq"]));
    let second = server.post("/_replicate", &body).json();
    assert_ne!(second["session_id"], first["session_id"]);
    // Clients read the counts before the rows.
    let text = server.get("/_scheduler/jobs").text;
    assert!(text.starts_with("{\"total_rows\":"), "{text}");
    let continuous = json!({"source": "db", "target": "copy", "continuous": true});
    assert_eq!(server.post("/_replicate", &continuous).status, 202);
    let text = server.get("/_scheduler/jobs").text;
    assert!(text.contains("\"jobs\":[{\"database\":null,\"id\":"), "{text}");
    server.database(
        "_replicator",
        &[json!({"_id": "r", "source": "db", "target": "copy2", "create_target": true,
        "continuous": true})],
    );
    until("the document's job runs", || server.get("/_scheduler/docs").text.contains("\"running\""));
    let text = server.get("/_scheduler/docs").text;
    assert!(
        text.starts_with("{\"total_rows\":1,\"offset\":0,\"docs\":[{\"database\":\"_replicator\",\"doc_id\":"),
        "{text}"
    );
}
