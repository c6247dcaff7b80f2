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
/// Turns of those who are slow.
const SLOW_TURNS: usize = 3;

/// Questions of one form and what is true of them.
#[derive(Clone, Copy)]
pub(super) struct Family<'a> {
    pub(super) questions: &'a [Question],
    pub(super) truths: &'a [Truth],
}

/// Who is asked what.
pub(super) struct Entrant<'a> {
    /// As it is called in results.
    pub(super) name: &'static str,
    pub(super) engine: &'a dyn Engine,
    pub(super) family: Family<'a>,
    /// A scan of everything: one question a turn is enough, and few turns.
    pub(super) is_slow: bool,
}

/// How much is asked.
pub(super) struct Effort {
    pub(super) repetition_count: usize,
    pub(super) clock: Clock,
    /// How long a contender's turn should take.
    pub(super) turn: Duration,
}

impl<'a> Entrant<'a> {
    pub(super) fn new(engine: &'a dyn Engine, family: Family<'a>) -> Self {
        Entrant { name: engine.name(), engine, family, is_slow: false }
    }
}

/// Asks everyone their questions, ours first; the row, if all are right.
pub(super) fn row(heading: Heading, corpus: &Corpus, entrants: &[Entrant<'_>], effort: &Effort) -> Result<Row> {
    let stopwatch = Stopwatch::new(effort.clock);
    let mut contenders = Vec::new();
    for entrant in entrants {
        let family = entrant.family;
        refuse_misses(&family)?;
        let fail = |error: crate::Failure| format!("{}: {error}", entrant.name);
        let mut asker = entrant.engine.asker(family.questions)?;
        verify(corpus, &family, &mut asker).map_err(fail)?;
        let each = time_once(&family, &mut asker)?.as_secs_f64() / family.questions.len() as f64;
        let (least, turns) = if entrant.is_slow { (1, SLOW_TURNS) } else { (*OPERATIONS.start(), usize::MAX) };
        let operation_count = ((effort.turn.as_secs_f64() / each) as usize).clamp(least, *OPERATIONS.end());
        let stopwatch = &stopwatch;
        contenders.push(Contender::new(entrant.name, move |repetition, samples| {
            if repetition >= turns {
                return Ok(());
            }
            // Each turn begins with the next question, so that few operations come to all of them in time.
            let begin = repetition * operation_count;
            for position in begin..begin + operation_count {
                samples.push(ask(&family, position % family.questions.len(), &mut asker, stopwatch)?);
            }
            Ok(())
        }));
    }
    hold(heading, effort.repetition_count, contenders)
}

fn refuse_misses(family: &Family<'_>) -> Result<()> {
    for (question, truth) in family.questions.iter().zip(family.truths) {
        if truth.row_count(question.limit) == 0 {
            return Err(format!("nothing matches {question:?}: that would time a miss").into());
        }
    }
    Ok(())
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
    use crate::engine::{Body, Form, Getter, Pager, Sink};
    use crate::harness::Unit;
    use crate::workload::{Condition, Records, Test, Wanted};

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

        fn asker(&self, _: &[Question]) -> Result<Asker<'_>> {
            Ok(Box::new(move |question, sink| {
                self.answer_count.set(self.answer_count.get() + 1);
                if self.lie.get() == Lie::Later && self.answer_count.get() > 3 {
                    return Ok(());
                }
                let all = Truth::of(self.corpus, std::slice::from_ref(question));
                let mut positions = all[0].positions().to_vec();
                if self.lie.get() == Lie::DropsARow {
                    positions.pop();
                }
                self.hand_out(&positions, sink)
            }))
        }

        fn pager(&self, _: &Question, _: usize) -> Result<Pager<'_>> {
            Err("not asked for".into())
        }

        fn getter(&self, _: Form) -> Result<Getter<'_>> {
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

    fn run(lie: Lie, values: &[i64]) -> Result<Row> {
        let corpus = Corpus::generate(Records::new(1), 200);
        let priority = |value: &i64| Condition::At("priority", Test::Equal((*value).into()));
        let question = |value| Question::all(priority(value), Wanted::Documents);
        let questions: Vec<Question> = values.iter().map(question).collect();
        let truths = Truth::of(&corpus, &questions);
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
        let effort = Effort { repetition_count: 2, clock: Clock::Wall, turn: Duration::from_millis(1) };
        let family = Family { questions: &questions, truths: &truths };
        let (ours, theirs) = (engine(Lie::No), engine(lie));
        row(heading, &corpus, &[Entrant::new(&ours, family), Entrant::new(&theirs, family)], &effort)
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
