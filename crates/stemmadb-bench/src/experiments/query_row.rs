//! Measures query rows: verifies every answer, then times them.
//!
//! A row times a *family* of queries of one form with different values, so that no engine answers repeatedly from a
//! cached result. Timing starts only after every engine has answered every query of the family correctly, and each
//! timed answer must have the expected number of rows. Queries without matches are rejected, because they would time a
//! miss.

use std::time::{Duration, Instant};

use crate::Result;
use crate::engine::{Engine, QueryRunner, RowCounter, collect};
use crate::harness::{Clock, Contender, Heading, ResultRow, Stopwatch, measure_row};
use crate::workload::{Corpus, ExpectedRows, QuerySpec};

/// Minimum and maximum number of queries per turn.
const OPERATIONS: std::ops::RangeInclusive<usize> = 3..=20_000;
/// Number of turns for slow contenders.
const SLOW_TURNS: usize = 3;

/// Queries of one form with their expected rows.
#[derive(Clone, Copy)]
pub(super) struct QueryFamily<'a> {
    pub(super) specs: &'a [QuerySpec],
    pub(super) expectations: &'a [ExpectedRows],
}

/// An engine with the queries it answers.
pub(super) struct QueryContender<'a> {
    /// The contender's name in results.
    pub(super) name: &'static str,
    pub(super) engine: &'a dyn Engine,
    pub(super) family: QueryFamily<'a>,
    /// Whether this contender scans all rows: one query per turn and few turns are enough.
    pub(super) is_slow: bool,
}

/// How long to measure.
pub(super) struct MeasurementBudget {
    pub(super) repetition_count: usize,
    pub(super) clock: Clock,
    /// The intended duration of a contender's turn.
    pub(super) turn: Duration,
}

impl<'a> QueryContender<'a> {
    pub(super) fn new(engine: &'a dyn Engine, family: QueryFamily<'a>) -> Self {
        QueryContender { name: engine.name(), engine, family, is_slow: false }
    }
}

/// Verifies and times all contenders, Stemma first, and returns the row.
pub(super) fn measure_queries(
    heading: Heading,
    corpus: &Corpus,
    contenders: &[QueryContender<'_>],
    budget: &MeasurementBudget,
) -> Result<ResultRow> {
    let stopwatch = Stopwatch::new(budget.clock);
    let mut timed = Vec::new();
    for contender in contenders {
        let family = contender.family;
        refuse_misses(&family)?;
        let fail = |error: crate::Failure| format!("{}: {error}", contender.name);
        let mut query_runner = contender.engine.query_runner(family.specs)?;
        verify(corpus, &family, &mut query_runner).map_err(fail)?;
        let each = time_once(&family, &mut query_runner)?.as_secs_f64() / family.specs.len() as f64;
        let (least, turns) = if contender.is_slow { (1, SLOW_TURNS) } else { (*OPERATIONS.start(), usize::MAX) };
        let operation_count = ((budget.turn.as_secs_f64() / each) as usize).clamp(least, *OPERATIONS.end());
        let stopwatch = &stopwatch;
        timed.push(Contender::new(contender.name, move |repetition, samples| {
            if repetition >= turns {
                return Ok(());
            }
            // Each turn starts at another query, so that short turns still cover the whole family.
            let begin = repetition * operation_count;
            for position in begin..begin + operation_count {
                samples.push(time_query(&family, position % family.specs.len(), &mut query_runner, stopwatch)?);
            }
            Ok(())
        }));
    }
    measure_row(heading, budget.repetition_count, timed)
}

fn refuse_misses(family: &QueryFamily<'_>) -> Result<()> {
    for (spec, expected_rows) in family.specs.iter().zip(family.expectations) {
        if expected_rows.row_count(spec.limit) == 0 {
            return Err(format!("nothing matches {spec:?}: that would time a miss").into());
        }
    }
    Ok(())
}

fn verify(corpus: &Corpus, family: &QueryFamily<'_>, query_runner: &mut QueryRunner<'_>) -> Result<()> {
    for (spec, expected_rows) in family.specs.iter().zip(family.expectations) {
        let result = collect(query_runner, spec)?;
        expected_rows.check(corpus, spec, &result).map_err(|wrong| format!("asked {spec:?}, it {wrong}"))?;
    }
    Ok(())
}

/// Runs every query once, as a warm-up; returns the total time.
fn time_once(family: &QueryFamily<'_>, query_runner: &mut QueryRunner<'_>) -> Result<Duration> {
    let start = Instant::now();
    for spec in family.specs {
        query_runner(spec, &mut RowCounter::default())?;
    }
    Ok(start.elapsed().max(Duration::from_nanos(1)))
}

fn time_query(
    family: &QueryFamily<'_>,
    position: usize,
    query_runner: &mut QueryRunner<'_>,
    stopwatch: &Stopwatch,
) -> Result<f64> {
    let spec = &family.specs[position];
    let mut counter = RowCounter::default();
    let cost = stopwatch.nanoseconds(1, || query_runner(spec, &mut counter))?;
    let expected = family.expectations[position].row_count(spec.limit);
    if counter.row_count != expected {
        return Err(format!("timed {} rows, not {expected}, of {spec:?}", counter.row_count).into());
    }
    Ok(cost)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::engine::{Body, DocumentForm, DocumentReader, PageReader, Sink};
    use crate::harness::Unit;
    use crate::workload::{Condition, Predicate, Projection, Records};

    /// Answers by scanning the corpus, with an optional defect.
    struct Scan<'a> {
        corpus: &'a Corpus,
        lie: Cell<Lie>,
        answer_count: Cell<usize>,
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Lie {
        No,
        DropsARow,
        WrongBody,
        /// Correct during verification, empty while timed.
        Later,
    }

    impl Engine for Scan<'_> {
        fn name(&self) -> &'static str {
            "scan"
        }

        fn query_runner(&self, _: &[QuerySpec]) -> Result<QueryRunner<'_>> {
            Ok(Box::new(move |spec, sink| {
                self.answer_count.set(self.answer_count.get() + 1);
                if self.lie.get() == Lie::Later && self.answer_count.get() > 3 {
                    return Ok(());
                }
                let all = ExpectedRows::compute(self.corpus, std::slice::from_ref(spec));
                let mut positions = all[0].positions().to_vec();
                if self.lie.get() == Lie::DropsARow {
                    positions.pop();
                }
                self.hand_out(&positions, sink)
            }))
        }

        fn page_reader(&self, _: &QuerySpec, _: usize) -> Result<PageReader<'_>> {
            Err("not asked for".into())
        }

        fn document_reader(&self, _: DocumentForm) -> Result<DocumentReader<'_>> {
            Err("not asked for".into())
        }
    }

    impl Scan<'_> {
        fn hand_out(&self, positions: &[u32], sink: &mut dyn Sink) -> Result<()> {
            for position in positions {
                let shown = if self.lie.get() == Lie::WrongBody { 0 } else { *position as usize };
                sink.document(self.corpus.id(*position as usize), Body::Text(self.corpus.json(shown)))?;
            }
            Ok(())
        }
    }

    fn run(lie: Lie, values: &[i64]) -> Result<ResultRow> {
        let corpus = Corpus::generate(Records::new(1), 200);
        let priority = |value: &i64| Condition::Field("priority", Predicate::Equal((*value).into()));
        let spec = |value| QuerySpec::all(priority(value), Projection::Documents);
        let specs: Vec<QuerySpec> = values.iter().map(spec).collect();
        let expectations = ExpectedRows::compute(&corpus, &specs);
        let engine = |lie| Scan { corpus: &corpus, lie: Cell::new(lie), answer_count: Cell::new(0) };
        let heading = Heading {
            experiment: "test",
            row: "row".to_owned(),
            documents: 200,
            durability: "none",
            unit: Unit::Microseconds,
            rows: None,
            note: None,
            targets: vec![],
        };
        let budget = MeasurementBudget { repetition_count: 2, clock: Clock::Wall, turn: Duration::from_millis(1) };
        let family = QueryFamily { specs: &specs, expectations: &expectations };
        let (ours, theirs) = (engine(Lie::No), engine(lie));
        measure_queries(
            heading,
            &corpus,
            &[QueryContender::new(&ours, family), QueryContender::new(&theirs, family)],
            &budget,
        )
    }

    #[test]
    fn correct_answers_produce_a_row() {
        assert_eq!(run(Lie::No, &[1, 2]).unwrap().peers.len(), 1);
    }

    #[test]
    fn wrong_answers_are_rejected() {
        let error = |lie| run(lie, &[1, 2]).unwrap_err().to_string();
        assert!(error(Lie::DropsARow).contains("scan: asked"), "{}", error(Lie::DropsARow));
        assert!(error(Lie::WrongBody).contains("another body"), "{}", error(Lie::WrongBody));
        assert!(error(Lie::Later).contains("timed 0 rows"), "{}", error(Lie::Later));
    }

    #[test]
    fn queries_without_matches_are_rejected() {
        assert!(run(Lie::No, &[1, 10]).unwrap_err().to_string().contains("that would time a miss"));
    }
}
