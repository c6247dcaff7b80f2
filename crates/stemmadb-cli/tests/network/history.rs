//! Histories of the requests to one document, and a linearizability check for them.
//!
//! A document contains the number of the write that created its revision. The search is stateright's. An operation with
//! an unknown outcome is left open there: it may have happened at any time after its start, or never.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

/// A requested operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    /// Write a number if the document contains `expected`, or does not exist for `None`.
    Set {
        expected: Option<u64>,
        number: u64,
    },
    /// Delete the document if it contains this number.
    Delete(u64),
}

/// The response to an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Holds(Option<u64>),
    Done,
    Conflict,
}

/// One request of a client.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) client: usize,
    pub(crate) operation: Operation,
    pub(crate) started: Instant,
    /// `None` if the outcome is unknown.
    pub(crate) finished: Option<(Instant, Outcome)>,
}

/// The sequential specification of a document.
#[derive(Debug, Clone, Default)]
struct Document(Option<u64>);

/// Time limit of the search. A valid order is found quickly if one exists; trying all orders of a long history takes
/// too long.
const TIMEOUT: Duration = Duration::from_secs(20);

impl SequentialSpec for Document {
    type Op = Operation;
    type Ret = Outcome;

    fn invoke(&mut self, operation: &Operation) -> Outcome {
        match *operation {
            Operation::Read => Outcome::Holds(self.0),
            Operation::Set { expected, number } if self.0 == expected => {
                self.0 = Some(number);
                Outcome::Done
            }
            Operation::Delete(expected) if self.0 == Some(expected) => {
                self.0 = None;
                Outcome::Done
            }
            Operation::Set { .. } | Operation::Delete(_) => Outcome::Conflict,
        }
    }
}

/// Whether the calls are linearizable. The last one must be a read.
pub(crate) fn is_linearizable(calls: &[Call]) -> bool {
    let calls = without_unobserved_calls(calls);
    let mut events = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        events.push((call.started, index, None));
        if let Some((finished, outcome)) = call.finished {
            events.push((finished, index, Some(outcome)));
        }
    }
    // At equal times, starts come first: this permits more orders, never fewer.
    events.sort_by_key(|(at, _, outcome)| (*at, outcome.is_some()));
    let mut tester = LinearizabilityTester::new(Document::default());
    // After a call with an unknown outcome, the client continues as another thread: that call stays open.
    let mut incarnations = BTreeMap::<usize, usize>::new();
    let mut threads = vec![(0, 0); calls.len()];
    for (_, index, outcome) in events {
        let call = &calls[index];
        let result = match outcome {
            Some(outcome) => tester.on_return(threads[index], outcome),
            None => {
                let incarnation = incarnations.entry(call.client).or_default();
                threads[index] = (call.client, *incarnation);
                *incarnation += usize::from(call.finished.is_none());
                tester.on_invoke(threads[index], call.operation)
            }
        };
        result.unwrap_or_else(|error| panic!("invalid history: {error}"));
    }
    let (sender, decided) = mpsc::channel();
    std::thread::spawn(move || sender.send(tester.is_consistent()).ok());
    decided.recv_timeout(TIMEOUT).unwrap_or(false)
}

/// Removes calls without a response that had no effect: reads, and writes whose number was never observed. If such a
/// write had happened, a later call would have observed its number: the one that replaced it, or the last read.
fn without_unobserved_calls(calls: &[Call]) -> Vec<Call> {
    let mut observed = BTreeSet::new();
    for call in calls {
        match (call.operation, call.finished) {
            (Operation::Read, Some((_, Outcome::Holds(Some(held))))) => observed.insert(held),
            (Operation::Set { expected: Some(held), .. } | Operation::Delete(held), _) => observed.insert(held),
            _ => false,
        };
    }
    let matters = |call: &&Call| match (call.operation, call.finished) {
        (_, Some(_)) | (Operation::Delete(_), None) => true,
        (Operation::Set { number, .. }, None) => observed.contains(&number),
        (Operation::Read, None) => false,
    };
    calls.iter().filter(matters).cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A call with its start and finish in milliseconds, and its outcome if known.
    fn call(client: usize, operation: Operation, started: u64, finished: Option<(u64, Outcome)>) -> Call {
        let zero = *ZERO.get_or_init(Instant::now);
        let at = |milliseconds: u64| zero + Duration::from_millis(milliseconds);
        Call {
            client,
            operation,
            started: at(started),
            finished: finished.map(|(finished, outcome)| (at(finished), outcome)),
        }
    }

    static ZERO: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();

    const FIRST: Operation = Operation::Set { expected: None, number: 1 };
    const SECOND: Operation = Operation::Set { expected: Some(1), number: 2 };

    #[test]
    fn linearizable_history_is_accepted() {
        assert!(is_linearizable(&[]));
        assert!(is_linearizable(&[
            call(1, FIRST, 0, Some((10, Outcome::Done))),
            // Both reads overlap the second write: each may come before or after it.
            call(2, Operation::Read, 12, Some((18, Outcome::Holds(Some(2))))),
            call(1, SECOND, 11, Some((30, Outcome::Done))),
            call(3, Operation::Read, 12, Some((17, Outcome::Holds(Some(1))))),
            call(3, Operation::Delete(1), 31, Some((32, Outcome::Conflict))),
            call(3, Operation::Delete(2), 33, Some((34, Outcome::Done))),
            call(2, Operation::Read, 35, Some((36, Outcome::Holds(None)))),
        ]));
    }

    #[test]
    fn stale_read_is_refused() {
        let calls = [
            call(1, FIRST, 0, Some((10, Outcome::Done))),
            call(1, SECOND, 20, Some((30, Outcome::Done))),
            call(2, Operation::Read, 31, Some((32, Outcome::Holds(Some(1))))),
        ];
        assert!(is_linearizable(&calls[..2]) && !is_linearizable(&calls));
    }

    #[test]
    fn lost_acknowledged_write_is_refused() {
        let lost =
            |read| [call(1, FIRST, 0, Some((10, Outcome::Done))), call(1, Operation::Read, 11, Some((12, read)))];
        assert!(is_linearizable(&lost(Outcome::Holds(Some(1)))) && !is_linearizable(&lost(Outcome::Holds(None))));
        // An acknowledged deletion that a restart undoes.
        let deleted = call(1, Operation::Delete(1), 11, Some((12, Outcome::Done)));
        let read = call(2, Operation::Read, 13, Some((14, Outcome::Holds(Some(1)))));
        assert!(!is_linearizable(&[call(1, FIRST, 0, Some((10, Outcome::Done))), deleted, read]));
    }

    #[test]
    fn two_replacements_of_the_same_revision_are_refused() {
        let other = Operation::Set { expected: Some(1), number: 3 };
        let calls = |outcome| {
            [
                call(1, FIRST, 0, Some((10, Outcome::Done))),
                call(1, SECOND, 20, Some((30, Outcome::Done))),
                call(2, other, 20, Some((30, outcome))),
            ]
        };
        assert!(is_linearizable(&calls(Outcome::Conflict)) && !is_linearizable(&calls(Outcome::Done)));
    }

    #[test]
    fn unknown_write_happened_or_not_but_not_both() {
        let prefix = [call(1, FIRST, 0, Some((10, Outcome::Done))), call(1, SECOND, 20, None)];
        let then = |reads: &[u64]| {
            let reads = reads.iter().zip(0..);
            let reads = reads.map(|(held, at)| {
                call(1, Operation::Read, 40 + at * 2, Some((41 + at * 2, Outcome::Holds(Some(*held)))))
            });
            [prefix.to_vec(), reads.collect()].concat()
        };
        assert!(is_linearizable(&then(&[1, 1])) && is_linearizable(&then(&[2, 2])) && is_linearizable(&then(&[1, 2])));
        assert!(!is_linearizable(&then(&[2, 1])));
    }
}
