//! Queries on one field: equality, range and prefix; with and without a limit; ids, documents and counts.
//!
//! SQLite has the ideal expression index for each. No query has an order.

use std::time::Duration;

use serde_json::Value;

use super::query_row::{MeasurementBudget, QueryContender, QueryFamily, measure_queries};
use super::{Bench, all_indexed};
use crate::Result;
use crate::engine::{Caching, Engine, Sqlite, Stemma};
use crate::harness::{Random, Unit};
use crate::workload::{
    Condition, Corpus, ExpectedRows, OF_A_THOUSAND, OF_TEN, Predicate, Projection, QuerySpec, UNIQUE, parse,
};

/// The limit of short queries.
pub(super) const SHORT: usize = 10;

/// A kind of predicate on one field.
struct Topic {
    name: &'static str,
    field: &'static str,
    /// Number of queries, each with a value taken from a random document.
    value_count: usize,
    predicate: fn(Value) -> Predicate,
}

const TOPICS: [Topic; 5] = [
    Topic { name: "equality, unique", field: UNIQUE[0], value_count: 100, predicate: Predicate::Equal },
    Topic { name: "equality, 1 of 1,000", field: OF_A_THOUSAND[0], value_count: 50, predicate: Predicate::Equal },
    Topic { name: "equality, 1 of 10", field: OF_TEN[0], value_count: 10, predicate: Predicate::Equal },
    Topic { name: "range, 1 of 100", field: OF_A_THOUSAND[3], value_count: 20, predicate: ten_numbers_from },
    Topic { name: "prefix, 1 of 1,024", field: UNIQUE[1], value_count: 50, predicate: two_letters_of },
];

fn ten_numbers_from(value: Value) -> Predicate {
    let lower = value.as_i64().expect("the field holds whole numbers");
    Predicate::Between(lower, lower + 10)
}

fn two_letters_of(value: Value) -> Predicate {
    Predicate::Prefix(value.as_str().expect("the field holds texts")[..2].to_owned())
}

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    for topic in &TOPICS {
        if forms().any(|(limit, projection)| bench.is_selected(&row_name(topic.name, limit, projection))) {
            measure_topic(bench, topic)?;
        }
    }
    Ok(())
}

/// Returns every combination of limit and projection.
fn forms() -> impl Iterator<Item = (Option<usize>, Projection)> {
    let rows = [Some(SHORT), None].into_iter();
    let projection = [Projection::Ids, Projection::Documents, Projection::Json];
    rows.flat_map(move |limit| projection.map(|projection| (limit, projection))).chain([(None, Projection::Count)])
}

fn row_name(topic: &str, limit: Option<usize>, projection: Projection) -> String {
    let limit = limit.map_or(String::new(), |limit| format!(", limit {limit}"));
    format!("{topic}{limit}, {}", projection.name())
}

fn measure_topic(bench: &mut Bench, topic: &Topic) -> Result<()> {
    let loaded = bench.loaded()?;
    let stemma = Stemma::open(&loaded.stemma, false, Caching::Default)?;
    let sqlite = Sqlite::open(&loaded.sqlite, &all_indexed(false))?;
    let corpus = bench.corpus();
    let mut specs = topic_queries(topic, corpus);
    let expectations = ExpectedRows::compute(corpus, &specs);
    let budget = MeasurementBudget {
        repetition_count: bench.scale.repetition_count,
        clock: bench.clock,
        turn: Duration::from_millis(bench.scale.turn_ms),
    };
    for (limit, projection) in forms() {
        let name = row_name(topic.name, limit, projection);
        if !bench.is_selected(&name) {
            continue;
        }
        for spec in &mut specs {
            (spec.limit, spec.projection) = (limit, projection);
        }
        let mut heading = bench.heading(&name, bench.scale.document_count, false, Unit::Microseconds);
        let row_count = expectations.iter().map(|expected_rows| expected_rows.row_count(limit)).max().unwrap_or(0);
        heading.targets = vec![(sqlite.name(), target(row_count, projection))];
        let family = QueryFamily { specs: &specs, expectations: &expectations };
        let corpus = bench.corpus.as_ref().expect("made before");
        let row = measure_queries(
            heading,
            corpus,
            &[QueryContender::new(&stemma, family), QueryContender::new(&sqlite, family)],
            &budget,
        )?;
        bench.push(row)?;
    }
    stemma.close()?;
    sqlite.close()
}

fn topic_queries(topic: &Topic, corpus: &Corpus) -> Vec<QuerySpec> {
    let mut random = Random::new(3);
    let mut predicate = || {
        let position = random.below(corpus.len() as u64) as usize;
        (topic.predicate)(parse(corpus.json(position))[topic.field].take())
    };
    (0..topic.value_count)
        .map(|_| QuerySpec::all(Condition::Field(topic.field, predicate()), Projection::Ids))
        .collect()
}

/// Returns the target ratio: short answers 1, long answers 5, counts 50.
pub(super) fn target(row_count: u64, projection: Projection) -> f64 {
    match (projection, row_count) {
        (_, ..=10) => 1.0,
        (Projection::Count, _) => 50.0,
        (_, _) => 5.0,
    }
}
