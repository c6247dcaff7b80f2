//! What clients saw of one document, and whether one document that is changed by one at a time explains it.
//!
//! A document holds the number of the write that made it. The search is stateright's; an operation whose outcome nobody knows
//! is left open there: it may have happened at any time since it began, or never.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

/// What a client asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    Read,
    /// Write a number if the document holds `expected`, or is not there.
    Set {
        expected: Option<u64>,
        number: u64,
    },
    /// Delete the document if it holds this.
    Delete(u64),
}

/// What it was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    Holds(Option<u64>),
    Done,
    Conflict,
}

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) client: usize,
    pub(crate) asked: Asked,
    pub(crate) begun: Instant,
    /// None: nobody knows what became of it.
    pub(crate) ended: Option<(Instant, Told)>,
}

/// A document that is changed by one at a time.
#[derive(Debug, Clone, Default)]
struct Document(Option<u64>);

/// How long the search may take: an order that explains a history is found at once, to have tried all takes for ever if there are many.
const PATIENCE: Duration = Duration::from_secs(20);

impl SequentialSpec for Document {
    type Op = Asked;
    type Ret = Told;

    fn invoke(&mut self, asked: &Asked) -> Told {
        match *asked {
            Asked::Read => Told::Holds(self.0),
            Asked::Set { expected, number } if self.0 == expected => {
                self.0 = Some(number);
                Told::Done
            }
            Asked::Delete(expected) if self.0 == Some(expected) => {
                self.0 = None;
                Told::Done
            }
            Asked::Set { .. } | Asked::Delete(_) => Told::Conflict,
        }
    }
}

/// Whether the calls are those of a document that is changed by one at a time. The last of them is to be a read.
pub(crate) fn is_linearizable(calls: &[Call]) -> bool {
    let calls = without_what_nobody_saw(calls);
    let mut events = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        events.push((call.begun, index, None));
        if let Some((ended, told)) = call.ended {
            events.push((ended, index, Some(told)));
        }
    }
    // Of one moment, beginnings come first: that allows more, never less.
    events.sort_by_key(|(at, _, told)| (*at, told.is_some()));
    let mut tester = LinearizabilityTester::new(Document::default());
    // A client that does not know what became of its call goes on as another: that call stays open for ever.
    let mut lives = BTreeMap::<usize, usize>::new();
    let mut threads = vec![(0, 0); calls.len()];
    for (_, index, told) in events {
        let call = &calls[index];
        let result = match told {
            Some(told) => tester.on_return(threads[index], told),
            None => {
                let life = lives.entry(call.client).or_default();
                threads[index] = (call.client, *life);
                *life += usize::from(call.ended.is_none());
                tester.on_invoke(threads[index], call.asked)
            }
        };
        result.unwrap_or_else(|error| panic!("a client did two things at once: {error}"));
    }
    let (sender, decided) = mpsc::channel();
    std::thread::spawn(move || sender.send(tester.is_consistent()).ok());
    decided.recv_timeout(PATIENCE).unwrap_or(false)
}

/// Leaves out calls without an answer that changed nothing: reads, and writes whose number was never seen. Had such a write happened, the
/// document would hold its number until somebody who saw it replaced it, and at the last read.
fn without_what_nobody_saw(calls: &[Call]) -> Vec<Call> {
    let mut seen = BTreeSet::new();
    for call in calls {
        match (call.asked, call.ended) {
            (Asked::Read, Some((_, Told::Holds(Some(held))))) => seen.insert(held),
            (Asked::Set { expected: Some(held), .. } | Asked::Delete(held), _) => seen.insert(held),
            _ => false,
        };
    }
    let matters = |call: &&Call| match (call.asked, call.ended) {
        (_, Some(_)) | (Asked::Delete(_), None) => true,
        (Asked::Set { number, .. }, None) => seen.contains(&number),
        (Asked::Read, None) => false,
    };
    calls.iter().filter(matters).cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A call of a client from one moment to another; what it was told, or nothing.
    fn call(client: usize, asked: Asked, begun: u64, ended: Option<(u64, Told)>) -> Call {
        let zero = *ZERO.get_or_init(Instant::now);
        let at = |moment: u64| zero + Duration::from_millis(moment);
        Call { client, asked, begun: at(begun), ended: ended.map(|(moment, told)| (at(moment), told)) }
    }

    static ZERO: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();

    const FIRST: Asked = Asked::Set { expected: None, number: 1 };
    const SECOND: Asked = Asked::Set { expected: Some(1), number: 2 };

    #[test]
    fn what_one_document_explains_is_accepted() {
        assert!(is_linearizable(&[]));
        assert!(is_linearizable(&[
            call(1, FIRST, 0, Some((10, Told::Done))),
            // Both while the second write goes on: each of them may have been before or after it.
            call(2, Asked::Read, 12, Some((18, Told::Holds(Some(2))))),
            call(1, SECOND, 11, Some((30, Told::Done))),
            call(3, Asked::Read, 12, Some((17, Told::Holds(Some(1))))),
            call(3, Asked::Delete(1), 31, Some((32, Told::Conflict))),
            call(3, Asked::Delete(2), 33, Some((34, Told::Done))),
            call(2, Asked::Read, 35, Some((36, Told::Holds(None)))),
        ]));
    }

    #[test]
    fn a_stale_read_is_refused() {
        let calls = [
            call(1, FIRST, 0, Some((10, Told::Done))),
            call(1, SECOND, 20, Some((30, Told::Done))),
            call(2, Asked::Read, 31, Some((32, Told::Holds(Some(1))))),
        ];
        assert!(is_linearizable(&calls[..2]) && !is_linearizable(&calls));
    }

    #[test]
    fn an_acknowledged_write_that_is_lost_is_refused() {
        let lost = |read| [call(1, FIRST, 0, Some((10, Told::Done))), call(1, Asked::Read, 11, Some((12, read)))];
        assert!(is_linearizable(&lost(Told::Holds(Some(1)))) && !is_linearizable(&lost(Told::Holds(None))));
        // A deletion that was acknowledged, and is undone by a restart.
        let deleted = call(1, Asked::Delete(1), 11, Some((12, Told::Done)));
        let read = call(2, Asked::Read, 13, Some((14, Told::Holds(Some(1)))));
        assert!(!is_linearizable(&[call(1, FIRST, 0, Some((10, Told::Done))), deleted, read]));
    }

    #[test]
    fn two_who_both_replace_the_same_are_refused() {
        let other = Asked::Set { expected: Some(1), number: 3 };
        let calls = |told| {
            [
                call(1, FIRST, 0, Some((10, Told::Done))),
                call(1, SECOND, 20, Some((30, Told::Done))),
                call(2, other, 20, Some((30, told))),
            ]
        };
        assert!(is_linearizable(&calls(Told::Conflict)) && !is_linearizable(&calls(Told::Done)));
    }

    #[test]
    fn what_nobody_knows_may_have_happened_or_not_but_not_both() {
        let begun = [call(1, FIRST, 0, Some((10, Told::Done))), call(1, SECOND, 20, None)];
        let then = |reads: &[u64]| {
            let reads = reads.iter().zip(0..);
            let reads = reads
                .map(|(held, at)| call(1, Asked::Read, 40 + at * 2, Some((41 + at * 2, Told::Holds(Some(*held))))));
            [begun.to_vec(), reads.collect()].concat()
        };
        assert!(is_linearizable(&then(&[1, 1])) && is_linearizable(&then(&[2, 2])) && is_linearizable(&then(&[1, 2])));
        assert!(!is_linearizable(&then(&[2, 1])));
    }
}
