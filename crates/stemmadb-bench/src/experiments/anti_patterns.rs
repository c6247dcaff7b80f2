//! Anti-patterns of document databases, each compared with an equality that returns as many rows from the same
//! database.

use super::Bench;
use super::query_row::{MeasurementBudget, QueryContender, QueryFamily, measure_queries};
use crate::Result;
use crate::engine::Stemma;
use crate::harness::{Heading, Unit};
use crate::workload::{Condition, Corpus, ExpectedRows, GROUPS, Pattern, People, Predicate, Projection, QuerySpec};

const EQUALITY: &str = "stemma-equality";
/// At most three times the equality's time.
const TARGET: f64 = 0.333;
/// The query without a limit returns all documents of a database up to this size, and a tenth of larger ones.
const UNBOUNDED_MAX: u64 = 100_000;

/// An anti-pattern, Barrel's advice about it, and the equality it is compared with.
struct AntiPattern {
    name: String,
    advice: &'static str,
    pattern: QuerySpec,
    equality: QuerySpec,
}

fn field(path: &'static str, predicate: Predicate) -> Condition {
    Condition::Field(path, predicate)
}

fn is(path: &'static str, value: impl Into<serde_json::Value>) -> Condition {
    field(path, Predicate::Equal(value.into()))
}

const MANY_TERMS: &str = "OR with many terms creates large unions: consider multiple queries";
const NOT: &str = "NOT on large sets scans exclusions: restructure the query";
const REGEX: &str = "Regex for prefix is a full scan: use prefix";
const SORT: &str = "Top-K queries are fast when limited: 12 ms with a filter on 5,000 documents";
const SORT_ALL: &str = "Sorting without limit sorts all results: add LIMIT";
const NO_LIMIT: &str = "No LIMIT fetches the entire database: always paginate";
const FIRST: &str = "Put selective conditions first";

fn rows(document_count: u64) -> Vec<AntiPattern> {
    let ids = |condition| QuerySpec::all(condition, Projection::Ids);
    let row = |name: &str, advice, pattern, equality| AntiPattern { name: name.to_owned(), advice, pattern, equality };
    let any_of_100 = || Condition::Any((0..100).map(|term| is("group", term * GROUPS / 100 + 3)).collect());
    let none = |condition| Condition::Not(Box::new(condition));
    let worst = || {
        Condition::All(vec![
            field("score", Predicate::Above(-1)),
            is("all", "yes"),
            is("kind", "common"),
            is("tenth", 3),
        ])
    };
    let best = || {
        Condition::All(vec![
            is("tenth", 3),
            is("kind", "common"),
            is("all", "yes"),
            field("score", Predicate::Above(-1)),
        ])
    };
    let is_large = document_count > UNBOUNDED_MAX;
    let unbounded = if is_large { document_count / 10 } else { document_count };
    let equal_to_unbounded = || if is_large { is("tenth", 4) } else { is("all", "yes") };
    let pattern = |path, pattern| field(path, Predicate::Regex(pattern));
    let hundredth = || ids(is("hundredth", 7));
    let mut rows = vec![
        row("OR of 100 terms, a tenth of all", MANY_TERMS, ids(any_of_100()), ids(is("tenth", 4))),
        row("OR of 100 terms, limit 10", MANY_TERMS, ids(any_of_100()).limit(10), ids(is("tenth", 4)).limit(10)),
        row("NOT, leaving 99 %", NOT, ids(none(is("kind", "rare"))), ids(is("visible", true))),
        row("NOT, leaving 1 %", NOT, ids(none(is("kind", "common"))), hundredth()),
        row("regex ^John.*, 1 %", REGEX, ids(pattern("name", Pattern::Begins("John"))), hundredth()),
        row(
            "regex unanchored, 1 %, of 1,000 values",
            REGEX,
            ids(pattern("surname", Pattern::Contains("77 S"))),
            hundredth(),
        ),
        row(
            "regex unanchored, 1 %, of 100,000 values",
            REGEX,
            ids(pattern("name", Pattern::Contains("ohn "))),
            hundredth(),
        ),
        row(
            "sort with a filter of a tenth, limit 10",
            SORT,
            ids(is("tenth", 3)).descending("created_at").limit(10),
            ids(is("tenth", 4)).limit(10),
        ),
        row(
            "sort with a filter of a tenth, all",
            SORT_ALL,
            ids(is("tenth", 3)).descending("created_at"),
            ids(is("tenth", 4)),
        ),
        row("sort with a filter of 1 %, all", SORT_ALL, ids(is("hundredth", 3)).descending("score"), hundredth()),
        row(
            "sort without a filter, all",
            SORT_ALL,
            ids(Condition::Everything).descending("created_at"),
            ids(is("all", "yes")),
        ),
        row(
            "sort without a filter, in another order than inserted, all",
            SORT_ALL,
            ids(Condition::Everything).descending("score"),
            ids(is("all", "yes")),
        ),
    ];
    for projection in [Projection::Ids, Projection::Documents] {
        let range = QuerySpec::all(field("created_at", Predicate::Between(0, unbounded as i64)), projection);
        let name = format!("range without a limit, at most 100,000 rows; {}", projection.name());
        rows.push(AntiPattern {
            name,
            advice: NO_LIMIT,
            pattern: range,
            equality: QuerySpec::all(equal_to_unbounded(), projection),
        });
    }
    rows.extend([
        row("four conditions, the selective one last", FIRST, ids(worst()), ids(best())),
        row("four conditions, the selective one last; limit 10", FIRST, ids(worst()).limit(10), ids(best()).limit(10)),
        row(
            "two conditions, the selective one last",
            FIRST,
            ids(Condition::All(vec![is("all", "yes"), is("hundredth", 3)])),
            hundredth(),
        ),
    ]);
    rows
}

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    for document_count in bench.scale.pattern_counts.to_vec() {
        let rows: Vec<AntiPattern> =
            rows(document_count).into_iter().filter(|row| bench.is_selected(&row.name)).collect();
        if rows.is_empty() {
            continue;
        }
        eprintln!("loading {document_count} people");
        let corpus = Corpus::generate(People::new(document_count), document_count);
        let stemma = super::load_stemma(&bench.scratch.fresh_path("people.stemma")?, &corpus)?;
        let specs: Vec<QuerySpec> = rows.iter().flat_map(|row| [row.pattern.clone(), row.equality.clone()]).collect();
        let expectations = ExpectedRows::compute(&corpus, &specs);
        for (position, one) in rows.iter().enumerate() {
            compare(bench, &corpus, &stemma, one, &expectations[2 * position..2 * position + 2])?;
        }
        stemma.close()?;
    }
    Ok(())
}

fn compare(
    bench: &mut Bench,
    corpus: &Corpus,
    stemma: &Stemma,
    one: &AntiPattern,
    expectations: &[ExpectedRows],
) -> Result<()> {
    let rows = expectations[0].row_count(one.pattern.limit);
    let equal = expectations[1].row_count(one.equality.limit);
    if rows != equal {
        return Err(format!("{} has {rows} rows, its equality {equal}", one.name).into());
    }
    let heading = Heading {
        experiment: "anti-patterns",
        row: one.name.clone(),
        documents: corpus.len() as u64,
        durability: "none",
        unit: Unit::Microseconds,
        rows: Some(rows),
        note: Some(one.advice.to_owned()),
        targets: vec![(EQUALITY, TARGET)],
    };
    let family = |spec, expected_rows| QueryFamily {
        specs: std::slice::from_ref(spec),
        expectations: std::slice::from_ref(expected_rows),
    };
    let pattern = QueryContender::new(stemma, family(&one.pattern, &expectations[0]));
    let equality =
        QueryContender { name: EQUALITY, ..QueryContender::new(stemma, family(&one.equality, &expectations[1])) };
    let budget = MeasurementBudget {
        repetition_count: bench.scale.repetition_count,
        clock: bench.clock,
        turn: std::time::Duration::from_millis(bench.scale.query_turn_ms),
    };
    let row = measure_queries(heading, corpus, &[pattern, equality], &budget)?;
    bench.push(row)
}
