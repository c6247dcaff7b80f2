//! Queries over the program views of several databases, compared with those of one database that has all documents.
//!
//! `STEMMA_MERGED_VIEW_CASES` sets the number of random cases.

use std::sync::Arc;

use serde_json::{Value as Json, json};
use stemmadb::testing::Random;
use stemmadb::views::{
    EmittedRows, MergedQuery, ProgramQuery, ProgramReducer, ProgramRow, RowBound, RowChoice, ViewProgram,
};
use stemmadb::{Database, Document, Reduction, Result, Value};

/// Emits the `rows` of each document: `[[key, value], …]`.
struct Rows {
    name: String,
    reducer: ProgramReducer,
}

fn rows_of(document: &Document) -> Result<EmittedRows> {
    let rows = document.get("rows")?.unwrap_or_default();
    let row = |row: &Value| {
        let row = row.as_array().unwrap();
        (row[0].clone(), row[1].clone())
    };
    Ok(rows.as_array().unwrap_or_default().iter().map(row).collect())
}

impl ViewProgram for Rows {
    fn name(&self) -> &str {
        &self.name
    }

    fn map(&self, documents: &[&Document]) -> Result<Vec<Result<EmittedRows>>> {
        Ok(documents.iter().map(|document| rows_of(document)).collect())
    }

    fn reducer(&self) -> ProgramReducer {
        self.reducer
    }

    /// Joins keys, ids and values, so that each row and the order are visible.
    fn reduce(&self, rows: &[ProgramRow]) -> Result<Value> {
        let joined = rows.iter().map(|row| format!("{}@{}={};", row.key.to_json(), row.id, row.value.to_json()));
        Ok(joined.collect::<String>().into())
    }

    fn rereduce(&self, parts: &[Value]) -> Result<Value> {
        Ok(parts.iter().map(|part| part.as_str().unwrap()).collect::<String>().into())
    }
}

const REDUCERS: [ProgramReducer; 15] = [
    ProgramReducer::None,
    ProgramReducer::Count,
    ProgramReducer::Sum,
    ProgramReducer::Stats,
    ProgramReducer::ApproxCountDistinct,
    ProgramReducer::First,
    ProgramReducer::Last,
    ProgramReducer::Top(3),
    ProgramReducer::Bottom(2),
    ProgramReducer::Typed(Reduction::Sum),
    ProgramReducer::Typed(Reduction::Stats),
    ProgramReducer::Typed(Reduction::Min),
    ProgramReducer::Typed(Reduction::Max),
    ProgramReducer::Typed(Reduction::Average),
    ProgramReducer::Custom,
];

fn value(json: &Json) -> Value {
    Value::parse(json.to_string().as_bytes()).unwrap()
}

fn random_key(random: &mut Random) -> Json {
    let number = random.below(6);
    let word = ["e", "f", "g"][number as usize % 3];
    match random.below(12) {
        0 => json!(null),
        1 => json!(number),
        2 => json!(["a", "A", "á", "aa", "b", ""][number as usize]),
        3 => json!({"a": number}),
        4 => json!([word.repeat(500 * (1 + number as usize)), random.below(2)]),
        5 => json!([]),
        6 => json!(["e"]),
        7..9 => json!([word, number]),
        _ => json!([word, number, random.below(3)]),
    }
}

fn random_rows(random: &mut Random) -> Json {
    let amount = |random: &mut Random| match random.below(4) {
        0 => json!(random.below(1_000) as f64 / 7.0),
        1 => json!(1e16),
        2 => json!(-1e16),
        _ => json!(random.below(100)),
    };
    let count = random.below(5);
    let mut rows: Vec<Json> = (0..count).map(|_| json!([random_key(random), amount(random)])).collect();
    if let Some(first) = rows.first().cloned().filter(|_| random.below(3) == 0) {
        // Several rows with one key, in an order of their own.
        rows.push(json!([first[0], amount(random)]));
        rows.push(json!([first[0], amount(random)]));
    }
    json!({ "rows": rows })
}

/// One database with all documents, and several with some of them each, and copies of others.
struct Databases {
    whole: Database,
    parts: Vec<Database>,
    has_copies: bool,
}

/// The database that a document belongs to.
fn owner(id: &str, count: usize) -> usize {
    id.bytes().fold(7_usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(usize::from(byte))) / 8 % count
}

impl Databases {
    fn random(random: &mut Random, has_copies: bool) -> Self {
        let parts = (0..1 + random.below(8)).map(|_| Database::in_memory()).collect();
        Databases { whole: Database::in_memory(), parts, has_copies }
    }

    fn write(&self, random: &mut Random) {
        for _ in 0..random.below(160) {
            let id =
                format!("{}{}", ["d", "é", "long-id-".repeat(40).as_str()][random.below(3) as usize], random.below(90));
            let own = owner(&id, self.parts.len());
            let other = random.below(self.parts.len() as u64) as usize;
            let targets = [Some(&self.whole), Some(&self.parts[own])];
            let copy = (self.has_copies && other != own).then(|| &self.parts[other]);
            if random.below(8) == 0 {
                for db in targets.into_iter().flatten() {
                    let revision = db.get(&id).unwrap().map(|document| *document.revision());
                    if let Some(revision) = revision {
                        db.delete(&id, &revision).unwrap();
                    }
                }
                continue;
            }
            let body = random_rows(random);
            for db in targets.into_iter().chain([copy]).flatten() {
                db.upsert(&id, &body).unwrap();
            }
        }
    }

    /// The same query of the whole and of the parts.
    fn queries(
        &self,
        reducer: ProgramReducer,
        change: impl Fn(ProgramQuery) -> ProgramQuery,
    ) -> (ProgramQuery, MergedQuery) {
        let query = |db: &Database| {
            let program = Rows { name: format!("{reducer:?}"), reducer };
            change(db.views().open_program(Arc::new(program)).unwrap().query())
        };
        let merged = MergedQuery::over(self.parts.iter().map(query).collect());
        let count = self.parts.len();
        let merged = match self.has_copies {
            true => merged.counting(move |part, id| owner(id, count) == part),
            false => merged,
        };
        (query(&self.whole), merged)
    }
}

fn random_bound(random: &mut Random) -> RowBound {
    let id = (random.below(3) == 0).then(|| format!("d{}", random.below(90)));
    RowBound { key: value(&random_key(random)), id, is_inclusive: random.below(2) == 0 }
}

fn random_choice(random: &mut Random) -> RowChoice {
    let choice = match random.below(5) {
        0 | 1 => RowChoice::All,
        2 => RowChoice::Keys((0..random.below(5)).map(|_| value(&random_key(random))).collect()),
        3 => RowChoice::Ranges((0..random.below(4)).map(|_| (random_bound(random), random_bound(random))).collect()),
        _ => {
            let bound = |random: &mut Random| (random.below(4) > 0).then(|| random_bound(random));
            RowChoice::Range(bound(random), bound(random))
        }
    };
    if choice.is_reversed() { RowChoice::All } else { choice }
}

/// A reduction as it is compared: a custom function gets the rows of each database at once, so only their set is equal
/// to that of one database, unless rows are folded one by one.
fn comparable(reducer: ProgramReducer, has_copies: bool, reduced: Value) -> Json {
    let reduced: Json = serde_json::from_str(&reduced.to_json()).unwrap();
    match reduced.as_str().filter(|_| reducer == ProgramReducer::Custom && !has_copies) {
        Some(text) => {
            let mut rows: Vec<&str> = text.split(';').collect();
            rows.sort_unstable();
            json!(rows)
        }
        None => reduced,
    }
}

fn compare(databases: &Databases, random: &mut Random) {
    let (choice, descending) = (random_choice(random), random.below(2) == 0);
    let (skip, limit) =
        ([0, 0, 1, 7, 500][random.below(5) as usize], [0, 1, 5, 40, u64::MAX][random.below(5) as usize]);
    let change = |query: ProgramQuery| query.among(choice.clone()).descending(descending).skip(skip).limit(limit);
    let reducer = REDUCERS[random.below(REDUCERS.len() as u64) as usize];
    let queries = || databases.queries(reducer, change);
    let case = format!("{reducer:?} {choice:?}, descending {descending}, skip {skip}, limit {limit}");

    let (whole, merged) = queries();
    let (expected, mut rows) = (whole.rows().unwrap(), merged.rows().unwrap());
    let counts = (!databases.has_copies).then(|| (expected.total(), expected.offset()));
    assert_eq!(rows.total().zip(rows.offset()), counts, "{case}");
    let expected: Vec<ProgramRow> = expected.collect::<Result<_>>().unwrap();
    let mut found = Vec::new();
    while let Some(row) = rows.next() {
        let (part, row) = row.unwrap();
        assert!(rows.snapshot(part).get(&row.id).unwrap().is_some(), "{case}: {row:?}");
        assert_eq!(rows.sequence(part), databases.parts[part].sequence());
        found.push(row);
    }
    assert_eq!(found, expected, "{case}");

    let reduced = |reduced: Value| comparable(reducer, databases.has_copies, reduced);
    let (whole, merged) = queries();
    assert_eq!(merged.reduce().unwrap().map(reduced), whole.reduce().unwrap().map(reduced), "{case}");

    let level = [None, Some(0), Some(1), Some(2), Some(9)][random.below(5) as usize];
    let (whole, merged) = queries();
    let shown = |(key, value): (Value, Value)| (key.to_json(), reduced(value));
    let expected: Vec<_> = whole.groups(level).unwrap().map(|group| shown(group.unwrap())).collect();
    let found: Vec<_> = merged.groups(level).unwrap().map(|group| shown(group.unwrap())).collect();
    assert_eq!(found, expected, "{case}, level {level:?}");
}

#[test]
fn results_equal_those_of_one_database() {
    let cases = std::env::var("STEMMA_MERGED_VIEW_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(15);
    for seed in 0..cases {
        let mut random = Random::new(seed);
        let has_copies = random.below(3) == 0;
        let databases = Databases::random(&mut random, has_copies);
        for _ in 0..2 {
            databases.write(&mut random);
            for _ in 0..30 {
                compare(&databases, &mut random);
            }
        }
    }
}

#[test]
fn copies_count_once_and_only_if_they_are_told_apart() {
    let databases = [Database::in_memory(), Database::in_memory()];
    for (db, ids) in databases.iter().zip([["a", "b"], ["b", "c"]]) {
        for id in ids {
            db.upsert(id, &json!({"rows": [[id, 1]]})).unwrap();
        }
    }
    let merged = || {
        let program = || Arc::new(Rows { name: "sum".into(), reducer: ProgramReducer::Sum });
        MergedQuery::over(databases.iter().map(|db| db.views().open_program(program()).unwrap().query()).collect())
    };
    assert_eq!(merged().reduce().unwrap(), Some(4.into()));
    assert_eq!(merged().rows().unwrap().total(), Some(4));
    let counted = || merged().counting(|part, id| (part == 0) == (id < "b"));
    assert_eq!(counted().reduce().unwrap(), Some(3.into()));
    let rows: Vec<_> = counted().rows().unwrap().map(|row| row.map(|(part, row)| (part, row.id)).unwrap()).collect();
    assert_eq!(rows, [(0, "a".to_owned()), (1, "b".to_owned()), (1, "c".to_owned())]);
    assert_eq!(counted().groups(None).unwrap().count(), 3);
}

#[test]
fn no_databases_have_no_rows() {
    let none = || MergedQuery::over(Vec::new());
    assert_eq!(none().rows().unwrap().count(), 0);
    assert_eq!(none().reduce().unwrap(), None);
    assert_eq!(none().groups(None).unwrap().count(), 0);
}
