//! Queries through the public API: equal results from memtable, tree and both, before and after a restart.

use stemmadb::{Database, DocumentId, Durability, Edit, Options, Selector, Sequence, Value, field, not};

fn selector(json: &str) -> Selector {
    Selector::parse(&Value::parse(json.as_bytes()).unwrap()).unwrap()
}

fn fill(db: &Database, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let body = format!(
            r#"{{"number":{number},"parity":"{}","tags":["t{}","all"],"inner":{{"half":{}}}}}"#,
            if number % 2 == 0 { "even" } else { "odd" },
            number % 5,
            number as f64 / 2.0
        );
        db.insert(&format!("doc-{number:04}"), &Value::parse(body.as_bytes()).unwrap()).unwrap();
    }
}

fn ids(db: &Database, json: &str) -> Vec<String> {
    db.find(selector(json)).ids().unwrap().map(|id| id.unwrap().to_string()).collect()
}

fn assert_results(db: &Database) {
    assert_eq!(ids(db, r#"{"number":{"$gte":10,"$lt":13}}"#), ["doc-0010", "doc-0011", "doc-0012"]);
    assert_eq!(ids(db, r#"{"parity":"odd","inner.half":{"$lt":2}}"#), ["doc-0001", "doc-0003"]);
    assert_eq!(ids(db, r#"{"tags":{"$elemMatch":{"$eq":"t3"}},"number":{"$lt":10}}"#), ["doc-0003", "doc-0008"]);
    assert_eq!(ids(db, r#"{"_id":{"$beginsWith":"doc-003"},"parity":"even"}"#).len(), 5);
    assert_eq!(db.find(not(field("parity").eq("odd"))).count().unwrap(), 100);
    let newest = db.find(selector("{}")).sort_descending("number").limit(2).documents().unwrap();
    assert_eq!(newest.iter().map(|found| found.id().as_str()).collect::<Vec<_>>(), ["doc-0199", "doc-0198"]);
}

#[test]
fn results_do_not_depend_on_where_documents_are_stored() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("find.stemma");
    let db = Database::open_with(&path, Options::new().background(false)).unwrap();
    fill(&db, 0..200);
    assert_results(&db);
    db.maintenance().checkpoint().unwrap();
    assert_results(&db);
    for number in 200..220 {
        let revision = db.insert("passing", &Value::parse(format!(r#"{{"number":{number}}}"#).as_bytes()).unwrap());
        db.delete("passing", &revision.unwrap()).unwrap();
    }
    let ten = db.get("doc-0010").unwrap().unwrap();
    db.delete("doc-0010", ten.revision()).unwrap();
    db.insert("doc-0010", &ten.value().unwrap()).unwrap();
    assert_results(&db);
    drop(db);
    let db = Database::open(&path).unwrap();
    assert_results(&db);
    assert!(db.maintenance().check().unwrap().is_sound());
}

#[test]
fn pages_continue_after_a_restart_without_duplicates() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pages.stemma");
    let mut token = None;
    let mut seen = Vec::new();
    loop {
        let db = Database::open(&path).unwrap();
        if seen.is_empty() {
            fill(&db, 0..100);
        }
        let mut query = db.find(selector("{}")).sort_descending("parity").sort("number").limit(7);
        if let Some(token) = token {
            query = query.after(token);
        }
        let mut page = query.ids().unwrap();
        seen.extend(page.by_ref().map(|id| id.unwrap().to_string()));
        token = page.token().unwrap();
        if token.is_none() {
            break;
        }
    }
    let mut expected: Vec<String> = (0..100).map(|number| format!("doc-{number:04}")).collect();
    expected.sort_by_key(|id| id[4..].parse::<u64>().unwrap() % 2 == 0);
    assert_eq!(seen, expected);
}

#[test]
fn feed_can_be_filtered_by_a_selector() {
    let db = Database::in_memory();
    fill(&db, 0..50);
    let odd = selector(r#"{"parity":"odd"}"#);
    let changes = db.changes(Sequence::new(10)).unwrap().selector(&odd).unwrap().limit(3).run();
    let sequences: Vec<u64> = changes.map(|change| change.unwrap().sequence.get()).collect();
    assert_eq!(sequences, [12, 14, 16]);
}

#[test]
fn limit_spans_chunks() {
    let db = Database::in_memory_with(Options::new().background(false)).unwrap();
    // Document numbers are divided into chunks of 65,536; the requested documents are on both sides of one boundary.
    let edit = |number: u64| Edit::Insert {
        id: DocumentId::new(format!("doc-{number:05}")).unwrap(),
        body: Value::parse(format!(r#"{{"late":{}}}"#, number >= 65_500).as_bytes()).unwrap(),
    };
    for batch in 0..66 {
        for outcome in db.bulk((batch * 1_000..(batch + 1) * 1_000).map(edit).collect()).unwrap() {
            outcome.unwrap();
        }
    }
    db.maintenance().checkpoint().unwrap();
    let late = db.prepare(field("late").eq(true)).unwrap();
    let pages = |rows_per_page: u64| {
        let (mut found, mut token) = (Vec::new(), None::<String>);
        loop {
            let page = db.find(&late).limit(rows_per_page);
            let mut page = token.into_iter().fold(page, |page, token| page.after(token)).ids().unwrap();
            found.extend(page.by_ref().map(|id| id.unwrap().to_string()));
            token = page.token().unwrap();
            if token.is_none() {
                return found;
            }
        }
    };
    let all = |from: u64| (from..66_000).map(|number| format!("doc-{number:05}")).collect::<Vec<_>>();
    assert_eq!((pages(7), pages(1_000)), (all(65_500), all(65_500)));
    // All matches in the first chunk are removed, in memory only, and one is added again.
    for number in 65_500..65_536 {
        let found = db.get(&format!("doc-{number:05}")).unwrap().unwrap();
        db.delete(found.id().as_str(), found.revision()).unwrap();
    }
    assert_eq!((pages(7), pages(1_000)), (all(65_536), all(65_536)));
    let zero = db.get("doc-00000").unwrap().unwrap();
    db.replace("doc-00000", zero.revision(), &Value::parse(br#"{"late":true}"#).unwrap()).unwrap();
    let expected = [vec!["doc-00000".to_owned()], all(65_536)].concat();
    assert_eq!((pages(1), pages(7)), (expected.clone(), expected));
    assert_eq!(db.find(&late).count().unwrap(), 465);
}

#[test]
fn long_result_is_complete_and_in_order() {
    // Enough documents for batches that two threads read, with few and with many of them in the cache.
    const COUNT: u64 = 9_000;
    let options = Options::new().cache_bytes(0).memory_bytes(1 << 20).durability(Durability::None);
    let db = Database::in_memory_with(options).unwrap();
    let body =
        |number: u64| serde_json::json!({"number": number, "place": number * 7_919 % COUNT, "text": "x".repeat(100)});
    db.write(|transaction| {
        (0..COUNT).try_for_each(|number| transaction.insert(&format!("d{number:05}"), &body(number)).map(|_| ()))
    })
    .unwrap();
    db.maintenance().checkpoint().unwrap();
    let within = selector(r#"{"place":{"$gte":1000,"$lt":7000}}"#);
    for _ in 0..2 {
        let found = db.find(within.clone()).documents().unwrap();
        let is_expected = |number: &u64| (1_000..7_000).contains(&(number * 7_919 % COUNT));
        let expected: Vec<u64> = (0..COUNT).filter(is_expected).collect();
        let numbers = found.iter().map(|document| document.get("number").unwrap().unwrap().as_u64().unwrap());
        assert_eq!(numbers.collect::<Vec<_>>(), expected);
        assert!(
            found.iter().zip(&expected).all(|(document, number)| document.id().as_str() == format!("d{number:05}"))
        );
    }
}
