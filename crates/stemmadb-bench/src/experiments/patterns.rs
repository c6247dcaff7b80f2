//! What document databases advise against, each beside an equality that gives as many rows in the same database.

use super::Bench;
use super::ask::{Effort, Entrant, Family, row};
use crate::Result;
use crate::engine::Stemma;
use crate::harness::{Heading, Unit};
use crate::workload::{Condition, Corpus, GROUPS, Pattern, People, Question, Test, Truth, Wanted};

const EQUALITY: &str = "stemma-equality";
/// Within three times what the equality takes.
const TARGET: f64 = 0.333;
/// The rows of an answer without bounds.
const UNBOUNDED: i64 = 100_000;

/// A pattern, what Barrel's page says of it, and its twin.
struct Row {
    name: String,
    advice: &'static str,
    pattern: Question,
    equality: Question,
}

fn at(path: &'static str, test: Test) -> Condition {
    Condition::At(path, test)
}

fn is(path: &'static str, value: impl Into<serde_json::Value>) -> Condition {
    at(path, Test::Equal(value.into()))
}

const MANY_TERMS: &str = "OR with many terms creates large unions: consider multiple queries";
const NOT: &str = "NOT on large sets scans exclusions: restructure the query";
const REGEX: &str = "Regex for prefix is a full scan: use prefix";
const SORT: &str = "Top-K queries are fast when limited: 12 ms with a filter on 5,000 documents";
const SORT_ALL: &str = "Sorting without limit sorts all results: add LIMIT";
const NO_LIMIT: &str = "No LIMIT fetches the entire database: always paginate";
const FIRST: &str = "Put selective conditions first";

fn rows(document_count: u64) -> Vec<Row> {
    let ids = |condition| Question::all(condition, Wanted::Ids);
    let row = |name: &str, advice, pattern, equality| Row { name: name.to_owned(), advice, pattern, equality };
    let any_of_100 = || Condition::Any((0..100).map(|term| is("group", term * GROUPS / 100 + 3)).collect());
    let none = |condition| Condition::Not(Box::new(condition));
    let worst =
        || Condition::All(vec![at("score", Test::Above(-1)), is("all", "yes"), is("kind", "common"), is("tenth", 3)]);
    let best =
        || Condition::All(vec![is("tenth", 3), is("kind", "common"), is("all", "yes"), at("score", Test::Above(-1))]);
    let unbounded = if document_count > UNBOUNDED as u64 { UNBOUNDED } else { document_count as i64 };
    let equal_to_unbounded = || if document_count == 10 * unbounded as u64 { is("tenth", 4) } else { is("all", "yes") };
    let pattern = |field, pattern| at(field, Test::Regex(pattern));
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
    ];
    for wanted in [Wanted::Ids, Wanted::Documents] {
        let range = Question::all(at("created_at", Test::Between(0, unbounded)), wanted);
        let name = format!("range without a limit, at most 100,000 rows; {}", wanted.name());
        rows.push(Row {
            name,
            advice: NO_LIMIT,
            pattern: range,
            equality: Question::all(equal_to_unbounded(), wanted),
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
    for document_count in bench.scale.pattern_counts {
        let rows: Vec<Row> = rows(*document_count).into_iter().filter(|row| bench.wants(&row.name)).collect();
        if rows.is_empty() {
            continue;
        }
        eprintln!("loading {document_count} people");
        let corpus = Corpus::generate(People::new(*document_count), *document_count);
        let stemma = super::load_stemma(&bench.place.fresh("people.stemma")?, &corpus)?;
        let questions: Vec<Question> =
            rows.iter().flat_map(|row| [row.pattern.clone(), row.equality.clone()]).collect();
        let truths = Truth::of(&corpus, &questions);
        for (position, one) in rows.iter().enumerate() {
            compare(bench, &corpus, &stemma, one, &truths[2 * position..2 * position + 2])?;
        }
        stemma.close()?;
    }
    Ok(())
}

fn compare(bench: &mut Bench, corpus: &Corpus, stemma: &Stemma, one: &Row, truths: &[Truth]) -> Result<()> {
    let rows = truths[0].row_count(one.pattern.limit);
    let equal = truths[1].row_count(one.equality.limit);
    if rows != equal {
        return Err(format!("{} has {rows} rows, its equality {equal}", one.name).into());
    }
    let heading = Heading {
        experiment: "what not to do",
        row: one.name.clone(),
        documents: corpus.len() as u64,
        durability: "none",
        unit: Unit::Microseconds,
        rows: Some(rows),
        note: Some(one.advice.to_owned()),
        targets: vec![(EQUALITY, TARGET)],
    };
    let family =
        |question, truth| Family { questions: std::slice::from_ref(question), truths: std::slice::from_ref(truth) };
    let pattern = Entrant::new(stemma, family(&one.pattern, &truths[0]));
    let equality = Entrant { name: EQUALITY, ..Entrant::new(stemma, family(&one.equality, &truths[1])) };
    let effort = Effort {
        repetition_count: bench.scale.repetition_count,
        clock: bench.clock,
        turn: std::time::Duration::from_millis(bench.scale.query_turn_ms),
    };
    let row = row(heading, corpus, &[pattern, equality], &effort)?;
    bench.push(row)
}
