//! Alternating measurement: contenders run in turns (A B B A) within one process, so that disturbances, and being the
//! first or the second of a pair, affect all of them.

use super::row::{Heading, ResultRow};
use super::summary::Samples;
use crate::Result;

/// A measured engine, Stemma or a peer.
pub(crate) struct Contender<'a> {
    pub(crate) name: &'static str,
    /// Runs one repetition and adds its samples; receives the repetition number.
    pub(crate) turn: Turn<'a>,
}

/// One repetition of a contender.
pub(crate) type Turn<'a> = Box<dyn FnMut(usize, &mut Samples) -> Result<()> + 'a>;

impl<'a> Contender<'a> {
    /// Creates a contender.
    pub(crate) fn new(name: &'static str, turn: impl FnMut(usize, &mut Samples) -> Result<()> + 'a) -> Self {
        Contender { name, turn: Box::new(turn) }
    }
}

/// Runs `repetition_count` alternating turns per contender; returns their samples in the given order.
pub(crate) fn alternate(repetition_count: usize, contenders: &mut [Contender<'_>]) -> Result<Vec<Samples>> {
    let mut samples = vec![Samples::default(); contenders.len()];
    for repetition in 0..repetition_count {
        let mut turns: Vec<_> = contenders.iter_mut().zip(&mut samples).collect();
        if repetition % 2 == 1 {
            turns.reverse();
        }
        for (contender, samples) in turns {
            samples.begin_repetition();
            (contender.turn)(repetition, samples).map_err(|error| format!("{}: {error}", contender.name))?;
        }
    }
    Ok(samples)
}

/// Measures all contenders and returns the row; the first contender is Stemma.
pub(crate) fn measure_row(
    heading: Heading,
    repetition_count: usize,
    mut contenders: Vec<Contender<'_>>,
) -> Result<ResultRow> {
    let samples = alternate(repetition_count, &mut contenders)?;
    let (ours, theirs) = samples.split_first().expect("we take part ourselves");
    let peers: Vec<_> = contenders[1..].iter().map(|contender| contender.name).zip(theirs).collect();
    Ok(ResultRow::new(heading, ours, &peers))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::super::summary::Unit;
    use super::*;

    fn heading() -> Heading {
        Heading {
            experiment: "test",
            row: "row".to_owned(),
            documents: 1,
            durability: "none",
            unit: Unit::Nanoseconds,
            rows: None,
            note: None,
            targets: vec![],
        }
    }

    #[test]
    fn contenders_alternate() {
        let order = RefCell::new(String::new());
        let contender = |name: &'static str, cost: f64| {
            let order = &order;
            Contender::new(name, move |repetition, samples| {
                order.borrow_mut().push_str(&format!("{name}{repetition} "));
                samples.push(cost);
                Ok(())
            })
        };
        let row = measure_row(heading(), 3, vec![contender("a", 10.0), contender("b", 30.0)]).unwrap();
        assert_eq!(*order.borrow(), "a0 b0 b1 a1 a2 b2 ");
        assert_eq!(row.ratio["b"], 3.0);
    }

    #[test]
    fn failures_name_the_contender() {
        let fails = Contender::new("peer", |_, _| Err("database is locked".into()));
        assert_eq!(measure_row(heading(), 1, vec![fails]).unwrap_err().to_string(), "peer: database is locked");
    }
}
