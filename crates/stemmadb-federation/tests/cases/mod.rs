//! Random documents in random members, and questions about them whose answers are compared with those of one database
//! into which all members were replicated.

use serde_json::json;
use stemmadb::{Database, Object, Query, Selector, Sort, Value};
use stemmadb_client::AnyDatabase;
use stemmadb_federation::{FederatedFind, Federation, TieredDatabase, VirtualDatabase};

/// What is compared with one database.
pub(crate) trait Whole {
    fn find(&self, query: Query) -> FederatedFind;
    fn get(&self, id: &str) -> stemmadb::Result<Option<stemmadb::Document>>;
    fn aggregate(&self, aggregation: &Value) -> stemmadb::Result<Vec<(Value, Object)>>;
}

macro_rules! whole {
    ($($type:ty),+) => {
        $(impl Whole for $type {
            fn find(&self, query: Query) -> FederatedFind {
                <$type>::find(self, query)
            }

            fn get(&self, id: &str) -> stemmadb::Result<Option<stemmadb::Document>> {
                <$type>::get(self, id)
            }

            fn aggregate(&self, aggregation: &Value) -> stemmadb::Result<Vec<(Value, Object)>> {
                <$type>::aggregate(self, aggregation)
            }
        })+
    };
}

whole!(Federation, TieredDatabase, VirtualDatabase);

/// The seeds of rounds of questions, `round` for each seed. `STEMMA_FEDERATION_CASES` replaces the number of questions,
/// `STEMMA_FEDERATION_SEED` the first seed.
#[allow(dead_code, reason = "not every test has rounds")]
pub(crate) fn seeds(cases: u64, round: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let cases = number("STEMMA_FEDERATION_CASES").unwrap_or(cases);
    let first = number("STEMMA_FEDERATION_SEED").unwrap_or(0);
    first..first + cases.div_ceil(round)
}

/// A reproducible sequence of numbers.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    pub(crate) fn one_of<T: Clone>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize].clone()
    }
}

pub(crate) fn body(random: &mut Random) -> serde_json::Map<String, serde_json::Value> {
    let mut body = serde_json::Map::new();
    match random.below(8) {
        0 => {}
        1 => drop(body.insert("n".into(), json!(random.one_of(&["x", "y", "zebra"])))),
        2 => drop(body.insert("n".into(), json!(null))),
        3 => drop(body.insert("n".into(), json!(random.below(40) as f64 / 4.0))),
        4 => drop(body.insert("n".into(), json!([random.below(3)]))),
        _ => drop(body.insert("n".into(), json!(random.below(12) as i64 - 4))),
    }
    if random.below(5) > 0 {
        body.insert("kind".into(), json!(random.one_of(&["novel", "essay", "poem"])));
    }
    let tags: Vec<_> = (0..random.below(3)).map(|_| random.one_of(&["red", "blue", "green"])).collect();
    body.insert("tags".into(), json!(tags));
    body.insert("price".into(), json!(random.one_of(&[0.1, 0.2, 1e15, -1e15, 7.0, 0.3])));
    body
}

/// Writes a document with a history of its own into a member.
#[allow(dead_code, reason = "not every test writes into members")]
fn write(random: &mut Random, db: &AnyDatabase, member: usize, id: &str) {
    let is_deleted = random.below(5) == 0;
    let mut first = body(random);
    if is_deleted {
        // Its deletion is not that of an equal document elsewhere.
        first.insert("of".into(), json!(member));
    }
    let Ok(mut revision) = db.insert(id, &first) else { return };
    for _ in 0..random.below(3) {
        let mut next = body(random);
        if is_deleted {
            next.insert("of".into(), json!(member));
        }
        revision = db.replace(id, &revision, &next).unwrap();
    }
    if is_deleted {
        db.delete(id, &revision).unwrap();
    }
}

/// Writes random documents; each into one member if they are disjoint.
#[allow(dead_code, reason = "not every test writes into members")]
pub(crate) fn fill(random: &mut Random, members: &[AnyDatabase], is_disjoint: bool, count: u64) {
    for _ in 0..count {
        let id = format!("d{:02}", random.below(90));
        let copies = if is_disjoint { 1 } else { 1 + random.below(3) };
        for _ in 0..copies {
            let member = match is_disjoint {
                true => id[1..].parse::<usize>().unwrap() * 7 % members.len(),
                false => random.below(members.len() as u64) as usize,
            };
            write(random, &members[member], member, &id);
        }
    }
}

fn selector(random: &mut Random) -> Selector {
    let number = random.below(10) as i64 - 4;
    let text = match random.below(7) {
        0 => "{}".to_owned(),
        1 => r#"{"kind": "novel"}"#.to_owned(),
        2 => format!(r#"{{"n": {{"$gte": {number}}}}}"#),
        3 => format!(r#"{{"n": {{"$lt": {number}}}, "kind": {{"$in": ["novel", "essay"]}}}}"#),
        4 => r#"{"tags": {"$elemMatch": {"$eq": "red"}}}"#.to_owned(),
        5 => r#"{"$or": [{"kind": "poem"}, {"n": {"$exists": false}}]}"#.to_owned(),
        _ => r#"{"kind": {"$ne": "novel"}}"#.to_owned(),
    };
    Selector::parse_text(&text).unwrap()
}

fn sort(random: &mut Random) -> Option<Sort> {
    let text = match random.below(7) {
        0 => return None,
        1 => r#"["n"]"#,
        2 => r#"[{"n": "desc"}]"#,
        3 => r#"["kind", {"n": "desc"}]"#,
        4 => r#"["_id"]"#,
        5 => r#"[{"_id": "desc"}]"#,
        _ => r#"[{"price": "desc"}, "tags"]"#,
    };
    Some(Sort::parse(&text.parse().unwrap()).unwrap())
}

fn rows(documents: impl IntoIterator<Item = stemmadb::Result<stemmadb::Document>>) -> Vec<(String, String)> {
    let row = |document: stemmadb::Document| (document.id().to_string(), document.revision().to_string());
    documents.into_iter().map(|document| row(document.unwrap())).collect()
}

/// Compares the answers to one random question.
pub(crate) fn compare(random: &mut Random, all: &impl Whole, whole: &Database) {
    let selector = selector(random);
    let description = selector.to_value().unwrap().to_json();
    let find = || all.find(selector.clone().into());
    let expected = || whole.find(selector.clone());
    match random.below(8) {
        0 => {
            let id = format!("d{:02}", random.below(90));
            let revision = |document: Option<stemmadb::Document>| document.map(|document| *document.revision());
            assert_eq!(revision(all.get(&id).unwrap()), revision(whole.get(&id).unwrap()), "{id}");
        }
        1 => assert_eq!(find().count().unwrap(), expected().count().unwrap(), "{description}"),
        2 => {
            let path = random.one_of(&["n", "kind", "price", "tags[]", "none"]);
            assert_eq!(find().distinct(path).unwrap(), expected().distinct(path).unwrap(), "{description} {path}");
            assert_eq!(find().min(path).unwrap(), expected().min(path).unwrap(), "{description} {path}");
            assert_eq!(find().max(path).unwrap(), expected().max(path).unwrap(), "{description} {path}");
            assert_eq!(find().summary(path).unwrap(), expected().summary(path).unwrap(), "{description} {path}");
        }
        3 => {
            let paths = random.one_of(&[vec!["kind"], vec!["n"], vec!["tags[]"], vec!["kind", "tags[]"]]);
            let groups = find().group_by(paths.as_slice());
            let expected_groups = || expected().group_by(paths.as_slice());
            assert_eq!(groups.clone().counts().unwrap(), expected_groups().counts().unwrap(), "{description}");
            let summaries = expected_groups().summaries("price").unwrap();
            assert_eq!(groups.summaries("price").unwrap(), summaries, "{description}");
        }
        4 => {
            let text = r#"{"group_by": "kind", "order_by": "n", "descending": true, "limit": 2, "figures": {
                "n": "count", "mean": {"average": "price"}, "tags": {"count_distinct": "tags[]"}}}"#;
            let mut request: Object = text.parse::<Value>().unwrap().as_object().unwrap().clone();
            request.insert("selector", selector.to_value().unwrap());
            let request = Value::Object(request);
            let parsed = stemmadb::Aggregation::parse(&request).unwrap();
            let expected = parsed.rows(&whole.snapshot().unwrap()).unwrap();
            assert_eq!(all.aggregate(&request).unwrap(), expected, "{description}");
        }
        _ => compare_rows(random, all, whole, selector.clone()),
    }
}

fn compare_rows(random: &mut Random, all: &impl Whole, whole: &Database, selector: Selector) {
    let sort = sort(random);
    let description = format!("{} {:?}", selector.to_value().unwrap().to_json(), sort);
    let mut query = Query::new(selector);
    if let Some(sort) = &sort {
        query = query.order(sort.clone());
    }
    let expected = rows(whole.find(&query).run().unwrap());
    let (limit, skip) = (1 + random.below(9), random.below(4));
    match (random.below(3), &sort) {
        (0, Some(_)) => {
            let some = query.clone().limit(limit).skip(skip);
            let expected = rows(whole.find(&some).run().unwrap());
            assert_eq!(rows(all.find(some).run().unwrap()), expected, "{description} {limit} {skip}");
        }
        (0, None) => {
            let found = rows(all.find(query.limit(limit).skip(skip)).run().unwrap());
            let count = (expected.len() as u64).saturating_sub(skip).min(limit);
            assert_eq!(found.len() as u64, count, "{description}");
            assert!(found.iter().all(|row| expected.contains(row)), "{description}");
        }
        (1, _) => {
            let mut found = Vec::new();
            let mut token = None::<String>;
            loop {
                let mut page = all.find(query.clone()).limit(limit);
                if let Some(token) = &token {
                    page = page.after(token.as_str());
                }
                let mut page = page.run().unwrap();
                found.extend(rows(page.by_ref()));
                token = page.token().unwrap();
                if token.is_none() {
                    break;
                }
            }
            assert_same(found, expected, sort.is_some(), &description);
        }
        _ => assert_same(rows(all.find(query.clone()).run().unwrap()), expected, sort.is_some(), &description),
    }
}

fn assert_same(mut found: Vec<(String, String)>, mut expected: Vec<(String, String)>, is_sorted: bool, query: &str) {
    if !is_sorted {
        found.sort();
        expected.sort();
    }
    assert_eq!(found, expected, "{query}");
}
