//! Views of virtual databases: rows, groups and reductions are those of one database, also while shards split and
//! merge.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{ADMIN, TestServer};
use crate::spread::Servers;
use crate::virtual_database::{Ending, create, start_move, until_moved, write};

const KEY: &str = "[doc.genre, doc.year]";

fn designs() -> [Value; 3] {
    let map = format!("function (doc) {{ if (doc.genre) emit({KEY}, doc.sold) }}");
    let view = |reduce: &str| json!({"map": map, "reduce": reduce});
    let largest = "function (keys, values, rereduce) { return Math.max.apply(null, values) }";
    let functions = json!({"_id": "_design/books", "views": {
        "sold": view("_sum"),
        "stats": view("_stats"),
        "count": view("_count"),
        "distinct": view("_approx_count_distinct"),
        "first": view("_first"),
        "last": view("_last"),
        "top": view("_top_3"),
        "largest": view(largest),
        "twice": {"map": "function (doc) { emit(doc.year, 2); emit(doc.year, 1) }"},
        "links": {"map": "function (doc) { emit(doc._id, {_id: doc.next}) }"},
        "nothing": {"map": "function (doc) {}", "reduce": "_sum"},
    }});
    let paths = json!({"_id": "_design/paths", "language": "stemma", "views": {
        "sold": {"key": ["genre", "year"], "value": "sold", "reduce": "_sum"},
        "average": {"key": "genre", "value": "sold", "reduce": "_avg"},
        "years": {"key": "year"},
        "tags": {"key": "tags"},
    }});
    let with_designs = json!({"_id": "_design/all", "options": {"include_design": true}, "views": {
        "ids": {"map": "function (doc) { emit(doc._id, null) }"},
    }});
    [functions, paths, with_designs]
}

fn book(n: u64) -> Value {
    let genre = ["crime", "Crime", "poetry", "sf", "é"][(n % 5) as usize];
    let next = format!("b{:03}", (n * 37 + 11) % 120);
    json!({"_id": format!("b{n:03}"), "genre": genre, "year": 1900 + n * 7 % 23, "sold": n * n % 41, "next": next})
}

fn books(range: std::ops::Range<u64>) -> Vec<Value> {
    range.map(book).collect()
}

/// Paths of queries below `_design`.
fn paths() -> Vec<String> {
    let mut paths = Vec::new();
    for view in ["sold", "stats", "count", "distinct", "first", "last", "top", "largest"] {
        for query in ["", "group=true", "group_level=1", "group_level=1&descending=true&skip=1&limit=2"] {
            paths.push(format!("books/_view/{view}?{query}"));
        }
        for query in [
            "startkey=[%22crime%22]&endkey=[%22crime%22,{}]&group=true",
            "startkey=[%22sf%22,1910]&endkey=[%22poetry%22]&descending=true",
            "keys=[[%22sf%22,1903],[%22missing%22],[%22crime%22,1900]]&group=true",
            "limit=0",
            "skip=1",
        ] {
            paths.push(format!("books/_view/{view}?{query}"));
        }
    }
    for query in [
        "",
        "descending=true",
        "limit=7&skip=5",
        "descending=true&limit=7&skip=50",
        "skip=1000",
        "startkey=[%22poetry%22]",
        "startkey=[%22poetry%22]&endkey=[%22poetry%22,1910]&include_docs=true",
        "key=[%22sf%22,1903]",
        "keys=[[%22sf%22,1903],[%22crime%22,1900],[%22sf%22,1903]]&limit=5&skip=1",
        "endkey=[%22poetry%22,1910]&inclusive_end=false&descending=true",
        "sorted=false",
        "limit=0",
    ] {
        paths.push(format!("books/_view/sold?reduce=false&{query}"));
        paths.push(format!("paths/_view/sold?reduce=false&{query}"));
    }
    for path in [
        "books/_view/twice",
        "books/_view/twice?descending=true&limit=9",
        "books/_view/links?include_docs=true",
        "books/_view/links?include_docs=true&conflicts=true&startkey=%22b050%22&limit=9",
        "books/_view/nothing",
        "books/_view/nothing?group=true",
        "books/_view/nothing?reduce=false",
        "paths/_view/sold?group_level=1",
        "paths/_view/average?group=true",
        "paths/_view/average",
        "paths/_view/years?startkey=1910&endkey=1915",
        "paths/_view/tags",
        "all/_view/ids?startkey=%22_%22&endkey=%22b003%22",
        // Errors.
        "missing/_view/x",
        "books/_view/missing",
        "books/_view/twice?group=true",
        "books/_view/sold?include_docs=true",
        "books/_view/sold?partition=p",
        "books/_view/sold?startkey=2&endkey=1",
    ] {
        paths.push(path.to_owned());
    }
    paths
}

fn assert_equal(server: &TestServer, path: &str) {
    let (ours, theirs) = (server.get(&format!("/v/_design/{path}")), server.get(&format!("/plain/_design/{path}")));
    assert_eq!((ours.status, ours.json()), (theirs.status, theirs.json()), "{path}");
}

/// The answers of the virtual database and of one database.
fn both(server: &TestServer, path: &str) -> (Value, Value) {
    let answer = |database: &str| server.get(&format!("/{database}/_design/{path}")).json();
    (answer("v"), answer("plain"))
}

fn twins() -> TestServer {
    let server = TestServer::new();
    create(&server, "/v?shards=3");
    fill(&server);
    server
}

/// Writes the same documents to the virtual database `v` and to `plain`.
fn fill(server: &TestServer) {
    create(server, "/plain");
    for database in ["v", "plain"] {
        write(server, database, &designs());
        write(server, database, &books(0..100));
    }
}

/// Compares results of queries that give a body, one or several, with those of one database.
fn compare_posted(server: &TestServer) {
    let queries = json!({"queries": [
        {"group_level": 1},
        {"reduce": false, "limit": 3, "descending": true},
        {"key": ["sf", 1903], "reduce": false},
    ]});
    let many = |database: &str| {
        let answer = server.post(&format!("/{database}/_design/books/_view/sold/queries"), &queries);
        (answer.status, answer.json())
    };
    assert_eq!(many("v"), many("plain"));
    let keys = json!({"keys": [["sf", 1903], ["crime", 1900]], "reduce": false});
    let post = |database: &str| server.post(&format!("/{database}/_design/books/_view/sold"), &keys).json();
    assert_eq!(post("v"), post("plain"));
}

/// Writes and deletes documents of both databases, so that their views have to be updated.
fn change(server: &TestServer) {
    for database in ["v", "plain"] {
        write(server, database, &books(100..120));
        let rev = server.get(&format!("/{database}/b007")).json()["_rev"].as_str().unwrap().to_owned();
        assert_eq!(server.delete(&format!("/{database}/b007?rev={rev}")).status, 200);
    }
}

/// Compares the states of the views of all design documents, after all views were updated.
fn compare_states(server: &TestServer) {
    for design in ["books", "paths", "all"] {
        let [ours, theirs] = ["v", "plain"]
            .map(|database| server.get(&format!("/{database}/_design/{design}/_info")).json()["view_index"].clone());
        for member in ["rows", "signature", "updates_pending", "updater_running", "language"] {
            assert_eq!(ours[member], theirs[member], "{design}: {ours} {theirs}");
        }
        assert!(ours["update_seq"].as_u64() > Some(0), "{ours}");
    }
}

/// Views of a virtual database whose shards are on several servers.
#[test]
fn results_of_views_on_several_servers_equal_those_of_one_database() {
    let servers = Servers::start();
    let server = &servers.home;
    create(server, "/v?shards=4&servers=here,b,c");
    fill(server);
    for turn in 0..4 {
        paths().iter().for_each(|path| assert_equal(server, path));
        compare_posted(server);
        compare_states(server);
        match turn {
            // What is written afterwards is in the next results.
            0 => change(server),
            1 => {
                start_move(server, "v", &json!({"split": "shard-1", "server": "c"}));
                // While documents move.
                paths().iter().take(60).for_each(|path| {
                    let (ours, theirs) = both(server, path);
                    assert_eq!(ours["rows"], theirs["rows"], "{path}");
                });
                until_moved(server, "v");
            }
            2 => {
                start_move(server, "v", &json!({"merge": "shard-2", "into": "shard-3"}));
                until_moved(server, "v");
            }
            _ => {}
        }
    }
    let counted = server.get("/v/_design/books/_view/count?update_seq=true").json();
    assert!(counted["update_seq"].is_string(), "{counted}");
}

#[test]
fn results_of_views_equal_those_of_one_database() {
    let mut server = twins();
    for turn in 0..4 {
        for path in paths() {
            assert_equal(&server, &path);
        }
        compare_posted(&server);
        compare_states(&server);
        match turn {
            0 => {
                // What is written afterwards is in the next results.
                change(&server);
            }
            1 => {
                start_move(&server, "v", &json!({"split": "shard-1"}));
                until_moved(&server, "v");
            }
            2 => {
                start_move(&server, "v", &json!({"merge": "shard-2", "into": "shard-3"}));
                until_moved(&server, "v");
                server.restart();
            }
            _ => {}
        }
    }
}

#[test]
fn results_of_views_do_not_change_while_documents_move() {
    let server = twins();
    create(&server, "/w?shards=1");
    let expected: Vec<(String, Value)> = [
        "books/_view/sold",
        "books/_view/largest?group_level=1",
        "books/_view/last?group=true",
        "books/_view/stats?group_level=1&descending=true",
        "books/_view/count?keys=[[%22sf%22,1903],[%22crime%22,1900]]&group=true",
        "books/_view/sold?reduce=false&descending=true&skip=20&limit=50",
        "books/_view/links?include_docs=true&skip=30&limit=40",
        "paths/_view/average?group=true",
    ]
    .map(|path| (path.to_owned(), server.get(&format!("/plain/_design/{path}")).json()["rows"].clone()))
    .into();
    write(&server, "w", &designs());
    write(&server, "w", &books(0..100));
    let (is_done, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let _ending = Ending(&is_done);
        let readers: Vec<_> = (0..2)
            .map(|reader| {
                let (server, is_done, count, expected) = (&server, &is_done, &count, &expected);
                scope.spawn(move || {
                    for (path, rows) in expected.iter().cycle().skip(reader * 3) {
                        if is_done.load(Ordering::Relaxed) {
                            break;
                        }
                        let answer = server.get(&format!("/w/_design/{path}"));
                        assert_eq!((answer.status, &answer.json()["rows"]), (200, rows), "{path}");
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        // Documents without rows in these results, so that the views are always behind.
        let (server, is_done) = (&server, &is_done);
        let writer = scope.spawn(move || {
            for n in 0.. {
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
                write(server, "w", &[json!({"_id": format!("z{n}"), "n": n})]);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        for request in
            [json!({"split": "shard-1"}), json!({"split": "shard-2"}), json!({"merge": "shard-1", "into": "shard-3"})]
        {
            start_move(server, "w", &request);
            until_moved(server, "w");
            let before = count.load(Ordering::Relaxed);
            while count.load(Ordering::Relaxed) < before + 4 {
                assert!(readers.iter().all(|reader| !reader.is_finished()), "a reader failed");
                assert!(!writer.is_finished(), "the writer failed");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    });
}

#[test]
fn stale_results_have_no_row_twice() {
    needs_one_server!("a virtual database of a cluster has the limits of one with shards on other servers");
    let server = twins();
    let path = "/v/_design/books/_view/sold?reduce=false&update=false";
    assert_eq!(server.get(path).json()["rows"], json!([]));
    assert_eq!(server.get(&path.replace("false&update=false", "false")).json()["total_rows"], 100);
    start_move(&server, "v", &json!({"split": "shard-1"}));
    until_moved(&server, "v");
    // The new shard's view is not built yet, and the former one has rows of documents that moved.
    let stale = server.get(path).json();
    let rows = stale["rows"].as_array().unwrap().len();
    assert!((50..100).contains(&rows) && stale["total_rows"].is_null(), "{rows}");
    assert_eq!(server.get(&path.replace("=false&update=false", "=true")).json()["rows"][0]["value"], {
        let plain = server.get("/plain/_design/books/_view/sold").json();
        plain["rows"][0]["value"].clone()
    });
    let (ours, theirs) =
        (server.get(path).json(), server.get(&path.replace("/v/", "/plain/").replace("update=", "x=")));
    assert_eq!(ours, theirs.json());
}

#[test]
fn results_of_views_have_tags_and_sequences() {
    needs_one_server!("a virtual database of a cluster has the limits of one with shards on other servers");
    let server = twins();
    let path = "/v/_design/books/_view/sold?group_level=1";
    let tag = server.get(path).header("etag").unwrap().to_owned();
    let again = |tag: &str| server.send_as_admin("GET", path, &[("If-None-Match", tag)], b"").status;
    assert_eq!(again(&tag), 304);
    write(&server, "v", &books(100..101));
    assert_eq!(again(&tag), 200);
    let answer = server.get(&format!("{path}&update_seq=true")).json();
    let since = answer["update_seq"].as_str().unwrap();
    assert_eq!(server.get(&format!("/v/_changes?since={since}")).json()["results"], json!([]));
}

#[test]
fn cleanup_keeps_the_views_of_all_shards() {
    needs_one_server!("a virtual database of a cluster has the limits of one with shards on other servers");
    let server = twins();
    let info = || server.get("/v/_design/books/_info").json()["view_index"].clone();
    for view in ["sold", "links"] {
        server.get(&format!("/v/_design/books/_view/{view}"));
    }
    assert_eq!(info()["rows"], 200);
    let clean = || server.ask_as(ADMIN, "POST", "/v/_view_cleanup", Some(&json!({}))).status;
    assert_eq!(clean(), 202);
    assert_eq!(info()["rows"], 200);
    let mut design = server.get("/v/_design/books").json();
    let links = design["views"].as_object_mut().unwrap().remove("links").unwrap();
    server.design("v", "books", design.clone());
    assert_eq!(clean(), 202);
    assert_eq!(info()["rows"], 100);
    // It was removed in every shard: without an update it has no rows.
    design["views"]["links"] = links;
    server.design("v", "books", design);
    assert_eq!(server.get("/v/_design/books/_view/links?update=false").json()["total_rows"], 0);
    assert_eq!(server.get("/v/_design/books/_view/links").json()["total_rows"], 100);
    assert_eq!(server.ask_as(ADMIN, "POST", "/v/_compact/books", Some(&json!({}))).status, 202);
}

#[test]
fn what_views_of_virtual_databases_lack_is_refused() {
    let server = TestServer::with(|mut config| {
        config.script_limits.time = Duration::from_secs(1);
        config
    });
    create(&server, "/v?shards=3");
    fill(&server);
    for path in ["books/_view/sold?as_of=-0s&update_seq=true", "books/_view/sold?update=false&update_seq=true"] {
        let refused = server.get(&format!("/v/_design/{path}"));
        assert_eq!(refused.status, 501, "{path}: {refused:?}");
    }
    // A failing function is reported, from whichever shard it comes.
    let failing = json!({"views": {"x": {"map": "function (doc) { while (doc._id === 'b042') {} emit(1, 1) }"}}});
    server.design("v", "failing", failing);
    let failed = server.get("/v/_design/failing/_view/x");
    assert_eq!((failed.status, &failed.json()["error"]), (500, &json!("os_process_timeout")), "{failed:?}");
}
