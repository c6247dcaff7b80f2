//! Asks questions: first verified against the truth, then timed.
//!
//! A row is a *family* of questions of one form with different values, so that no contender answers from what it answered a
//! moment ago. Nothing is timed unless every engine gave the right answer to every question of the family, and each timed
//! answer must have as many rows as it should. A question that nothing matches is refused: a miss is not a read.

use std::time::{Duration, Instant};

use crate::Result;
use crate::engine::{Asker, Engine, Tally, answer};
use crate::harness::{Clock, Contender, Heading, Row, Stopwatch, hold};
use crate::workload::{Corpus, Question, Truth};

/// Fewest and most questions in a turn, beside what the time allows.
const OPERATIONS: std::ops::RangeInclusive<usize> = 3..=20_000;

/// Questions of one form and what is true of them.
pub(super) struct Family<'a> {
    pub(super) questions: &'a [Question],
    pub(super) truths: &'a [Truth],
}

/// How much is asked.
pub(super) struct Effort {
    pub(super) repetition_count: usize,
    pub(super) clock: Clock,
    /// How long the slowest engine's turn should take.
    pub(super) turn: Duration,
}

/// Asks every engine the family's questions, ours first; the row, if all are right.
pub(super) fn row(
    heading: Heading,
    corpus: &Corpus,
    family: &Family<'_>,
    engines: &[&dyn Engine],
    effort: &Effort,
) -> Result<Row> {
    let form = refuse_misses(family)?;
    let mut askers = Vec::new();
    for engine in engines {
        let mut asker = engine.asker(form)?;
        verify(corpus, family, &mut asker).map_err(|error| format!("{}: {error}", engine.name()))?;
        askers.push(asker);
    }
    let slowest = askers
        .iter_mut()
        .map(|asker| time_once(family, asker))
        .try_fold(Duration::ZERO, |slowest, time| time.map(|time: Duration| slowest.max(time)))?;
    let each = slowest.as_secs_f64() / family.questions.len() as f64;
    let operation_count = ((effort.turn.as_secs_f64() / each) as usize).clamp(*OPERATIONS.start(), *OPERATIONS.end());
    let stopwatch = Stopwatch::new(effort.clock);
    let contenders = engines.iter().zip(askers).map(|(engine, mut asker)| {
        let stopwatch = &stopwatch;
        Contender::new(engine.name(), move |repetition, samples| {
            // Each turn begins with the next question, so that few operations come to all of them in time.
            let begin = repetition * operation_count;
            for position in begin..begin + operation_count {
                samples.push(ask(family, position % family.questions.len(), &mut asker, stopwatch)?);
            }
            Ok(())
        })
    });
    hold(heading, effort.repetition_count, contenders.collect())
}

fn refuse_misses<'a>(family: &Family<'a>) -> Result<&'a Question> {
    let form = family.questions.first().ok_or("a family without questions")?;
    for (question, truth) in family.questions.iter().zip(family.truths) {
        if truth.row_count(question.limit) == 0 {
            return Err(format!("nothing matches {question:?}: that would time a miss").into());
        }
    }
    Ok(form)
}

fn verify(corpus: &Corpus, family: &Family<'_>, asker: &mut Asker<'_>) -> Result<()> {
    for (question, truth) in family.questions.iter().zip(family.truths) {
        let answer = answer(asker, question)?;
        truth.check(corpus, question, &answer).map_err(|wrong| format!("asked {question:?}, it {wrong}"))?;
    }
    Ok(())
}

/// How long all questions take, once; a warm-up too.
fn time_once(family: &Family<'_>, asker: &mut Asker<'_>) -> Result<Duration> {
    let start = Instant::now();
    for question in family.questions {
        asker(question, &mut Tally::default())?;
    }
    Ok(start.elapsed().max(Duration::from_nanos(1)))
}

fn ask(family: &Family<'_>, position: usize, asker: &mut Asker<'_>, stopwatch: &Stopwatch) -> Result<f64> {
    let question = &family.questions[position];
    let mut tally = Tally::default();
    let cost = stopwatch.nanoseconds(1, || asker(question, &mut tally))?;
    let expected = family.truths[position].row_count(question.limit);
    if tally.row_count != expected {
        return Err(format!("timed {} rows, not {expected}, of {question:?}", tally.row_count).into());
    }
    Ok(cost)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::engine::{Body, Form, Getter, Sink};
    use crate::harness::Unit;
    use crate::workload::{Condition, Records, Wanted};

    /// Answers by a scan, and lies when it is told to.
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
        /// Right while it is verified, empty when it is timed.
        Later,
    }

    impl Engine for Scan<'_> {
        fn name(&self) -> &'static str {
            "scan"
        }

        fn asker(&self, _: &Question) -> Result<Asker<'_>> {
            Ok(Box::new(move |question, sink| {
                self.answer_count.set(self.answer_count.get() + 1);
                if self.lie.get() == Lie::Later && self.answer_count.get() > 3 {
                    return Ok(());
                }
                let all = Truth::of(self.corpus, std::slice::from_ref(question));
                let mut numbers = all[0].numbers().to_vec();
                if self.lie.get() == Lie::DropsARow {
                    numbers.pop();
                }
                self.hand_out(&numbers, sink)
            }))
        }

        fn getter(&self, _: Form) -> Result<Getter<'_>> {
            Err("not asked for".into())
        }
    }

    impl Scan<'_> {
        fn hand_out(&self, numbers: &[u64], sink: &mut dyn Sink) -> Result<()> {
            for number in numbers {
                let shown = if self.lie.get() == Lie::WrongBody { 0 } else { *number as usize };
                sink.document(self.corpus.id(*number as usize), Body::Text(self.corpus.json(shown)))?;
            }
            Ok(())
        }
    }

    fn run(lie: Lie, values: &[i64]) -> Result<Row> {
        let corpus = Corpus::generate(Records::new(1), 200);
        let question = |value: &i64| Question {
            field: "priority",
            condition: Condition::Equal((*value).into()),
            limit: None,
            wanted: Wanted::Documents,
        };
        let questions: Vec<Question> = values.iter().map(question).collect();
        let truths = Truth::of(&corpus, &questions);
        let engine = |lie| Scan { corpus: &corpus, lie: Cell::new(lie), answer_count: Cell::new(0) };
        let heading = Heading {
            experiment: "test",
            row: "row".to_owned(),
            documents: 200,
            durability: "none",
            unit: Unit::Microseconds,
            targets: vec![],
        };
        let effort = Effort { repetition_count: 2, clock: Clock::Wall, turn: Duration::from_millis(1) };
        let family = Family { questions: &questions, truths: &truths };
        row(heading, &corpus, &family, &[&engine(Lie::No), &engine(lie)], &effort)
    }

    #[test]
    fn right_answers_make_a_row() {
        assert_eq!(run(Lie::No, &[1, 2]).unwrap().peers.len(), 1);
    }

    #[test]
    fn a_peer_that_answers_wrongly_makes_none() {
        let error = |lie| run(lie, &[1, 2]).unwrap_err().to_string();
        assert!(error(Lie::DropsARow).contains("scan: asked"), "{}", error(Lie::DropsARow));
        assert!(error(Lie::WrongBody).contains("another body"), "{}", error(Lie::WrongBody));
        assert!(error(Lie::Later).contains("timed 0 rows"), "{}", error(Lie::Later));
    }

    #[test]
    fn a_miss_is_not_timed() {
        assert!(run(Lie::No, &[1, 10]).unwrap_err().to_string().contains("that would time a miss"));
    }
}
