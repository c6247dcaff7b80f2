//! Queries by one field: equality, range and prefix; ten rows or all of them; ids, documents, counts.
//!
//! SQLite has the ideal expression index for each. Nobody is asked for an order.

use std::time::Duration;

use serde_json::Value;

use super::ask::{Effort, Entrant, Family, row};
use super::{Bench, all_indexed};
use crate::Result;
use crate::engine::{Caching, Engine, Sqlite, Stemma};
use crate::harness::{Random, Unit};
use crate::workload::{Condition, Corpus, OF_A_THOUSAND, OF_TEN, Question, Test, Truth, UNIQUE, Wanted, parse};

/// The rows of a short answer.
pub(super) const SHORT: usize = 10;

/// What is asked about one field.
struct Topic {
    name: &'static str,
    field: &'static str,
    /// Of so many documents, found at random, the field's value makes a condition each.
    value_count: usize,
    test: fn(Value) -> Test,
}

const TOPICS: [Topic; 5] = [
    Topic { name: "equality, unique", field: UNIQUE[0], value_count: 100, test: Test::Equal },
    Topic { name: "equality, 1 of 1,000", field: OF_A_THOUSAND[0], value_count: 50, test: Test::Equal },
    Topic { name: "equality, 1 of 10", field: OF_TEN[0], value_count: 10, test: Test::Equal },
    Topic { name: "range, 1 of 100", field: OF_A_THOUSAND[3], value_count: 20, test: ten_numbers_from },
    Topic { name: "prefix, 1 of 1,024", field: UNIQUE[1], value_count: 50, test: two_letters_of },
];

fn ten_numbers_from(value: Value) -> Test {
    let lower = value.as_i64().expect("the field holds whole numbers");
    Test::Between(lower, lower + 10)
}

fn two_letters_of(value: Value) -> Test {
    Test::Prefix(value.as_str().expect("the field holds texts")[..2].to_owned())
}

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    for topic in &TOPICS {
        if forms().any(|(limit, wanted)| bench.wants(&row_name(topic.name, limit, wanted))) {
            ask_topic(bench, topic)?;
        }
    }
    Ok(())
}

/// Every form in which a topic is asked about.
fn forms() -> impl Iterator<Item = (Option<usize>, Wanted)> {
    let rows = [Some(SHORT), None].into_iter();
    let wanted = [Wanted::Ids, Wanted::Documents, Wanted::Json];
    rows.flat_map(move |limit| wanted.map(|wanted| (limit, wanted))).chain([(None, Wanted::Count)])
}

fn row_name(topic: &str, limit: Option<usize>, wanted: Wanted) -> String {
    let limit = limit.map_or(String::new(), |limit| format!(", limit {limit}"));
    format!("{topic}{limit}, {}", wanted.name())
}

fn ask_topic(bench: &mut Bench, topic: &Topic) -> Result<()> {
    let loaded = bench.loaded()?;
    let stemma = Stemma::open(&loaded.stemma, false, Caching::Default)?;
    let sqlite = Sqlite::open(&loaded.sqlite, &all_indexed(false))?;
    let corpus = bench.corpus();
    let mut questions = questions(topic, corpus);
    let truths = Truth::of(corpus, &questions);
    let effort = Effort {
        repetition_count: bench.scale.repetition_count,
        clock: bench.clock,
        turn: Duration::from_millis(bench.scale.turn_ms),
    };
    for (limit, wanted) in forms() {
        let name = row_name(topic.name, limit, wanted);
        if !bench.wants(&name) {
            continue;
        }
        for question in &mut questions {
            (question.limit, question.wanted) = (limit, wanted);
        }
        let mut heading = bench.heading(&name, bench.scale.document_count, false, Unit::Microseconds);
        let row_count = truths.iter().map(|truth| truth.row_count(limit)).max().unwrap_or(0);
        heading.targets = vec![(sqlite.name(), target(row_count, wanted))];
        let family = Family { questions: &questions, truths: &truths };
        let corpus = bench.corpus.as_ref().expect("made before");
        let row = row(heading, corpus, &[Entrant::new(&stemma, family), Entrant::new(&sqlite, family)], &effort)?;
        bench.push(row)?;
    }
    stemma.close()?;
    sqlite.close()
}

fn questions(topic: &Topic, corpus: &Corpus) -> Vec<Question> {
    let mut random = Random::new(3);
    let mut test = || {
        let position = random.below(corpus.len() as u64) as usize;
        (topic.test)(parse(corpus.json(position))[topic.field].take())
    };
    (0..topic.value_count).map(|_| Question::all(Condition::At(topic.field, test()), Wanted::Ids)).collect()
}

/// What the project set itself: short answers at least as fast, long ones 5 times, counts 50 times.
pub(super) fn target(row_count: u64, wanted: Wanted) -> f64 {
    match (wanted, row_count) {
        (_, ..=10) => 1.0,
        (Wanted::Count, _) => 50.0,
        (_, _) => 5.0,
    }
}
