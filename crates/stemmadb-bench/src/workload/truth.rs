//! What is true of a question: worked out from the documents themselves, so that no engine is believed.

use serde_json::Value;

use super::corpus::Corpus;
use super::question::{Question, Wanted, find};

/// What an engine answered, all of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) ids: Vec<String>,
    /// As JSON text.
    pub(crate) bodies: Vec<String>,
    pub(crate) count: Option<u64>,
}

/// Which documents of a corpus meet a condition.
#[derive(Clone, Debug)]
pub(crate) struct Truth {
    /// By position, ascending.
    matching: Vec<u32>,
    /// What each is ordered by, if an order is asked for.
    keys: Vec<i64>,
}

impl Truth {
    /// For each question, the documents of `corpus` that meet it. One pass, at the price of parsing them all.
    pub(crate) fn of(corpus: &Corpus, questions: &[Question]) -> Vec<Truth> {
        let mut truths = vec![Truth { matching: Vec::new(), keys: Vec::new() }; questions.len()];
        for position in 0..corpus.len() {
            let document = parse(corpus.json(position));
            for (question, truth) in questions.iter().zip(&mut truths) {
                if !question.condition.holds(&document) {
                    continue;
                }
                truth.matching.push(position as u32);
                if let Some(order) = question.order {
                    let key = find(&document, order.field).and_then(Value::as_i64);
                    truth.keys.push(key.expect("documents are ordered by whole numbers that all of them have"));
                }
            }
        }
        truths
    }

    /// The positions of the documents that match, in order.
    #[cfg(test)]
    pub(crate) fn positions(&self) -> &[u32] {
        &self.matching
    }

    /// How many rows (or what count) the right answer has. Zero is a miss, which nobody may time.
    pub(crate) fn row_count(&self, limit: Option<usize>) -> u64 {
        let all = self.matching.len();
        limit.map_or(all, |limit| all.min(limit)) as u64
    }

    /// Whether `answer` is right: the right documents, each once, in the right order, with the right bodies.
    pub(crate) fn check(&self, corpus: &Corpus, question: &Question, answer: &Answer) -> Result<(), String> {
        let expected = self.row_count(question.limit);
        if question.wanted == Wanted::Count {
            return match answer.count {
                Some(count) if count == expected => Ok(()),
                count => Err(format!("counted {count:?}, not {expected}")),
            };
        }
        if answer.ids.len() as u64 != expected {
            return Err(format!("gave {} rows, not {expected}", answer.ids.len()));
        }
        let mut is_given = vec![false; corpus.len()];
        for id in &answer.ids {
            let position =
                corpus.position_of(id).filter(|position| self.matching.binary_search(&(*position as u32)).is_ok());
            let position = position.ok_or_else(|| format!("gave {id}, which does not match"))?;
            if std::mem::replace(&mut is_given[position], true) {
                return Err("gave a document twice".to_owned());
            }
        }
        self.check_order(corpus, question, answer)?;
        if question.wanted == Wanted::Ids { Ok(()) } else { check_bodies(corpus, answer) }
    }

    /// Whether the rows are the first of the order, in it. No two of our documents are equal in it.
    fn check_order(&self, corpus: &Corpus, question: &Question, answer: &Answer) -> Result<(), String> {
        let Some(order) = question.order else { return Ok(()) };
        let mut all: Vec<(i64, u32)> = self.keys.iter().copied().zip(self.matching.iter().copied()).collect();
        all.sort_unstable();
        if order.descending {
            all.reverse();
        }
        for (id, (_, position)) in answer.ids.iter().zip(&all) {
            let expected = corpus.id(*position as usize);
            if id != expected {
                return Err(format!("gave {id} where {expected} comes in the order"));
            }
        }
        Ok(())
    }
}

/// Whether each body is the document of its id.
pub(crate) fn check_bodies(corpus: &Corpus, answer: &Answer) -> Result<(), String> {
    if answer.bodies.len() != answer.ids.len() {
        return Err(format!("gave {} bodies for {} ids", answer.bodies.len(), answer.ids.len()));
    }
    for (id, body) in answer.ids.iter().zip(&answer.bodies) {
        let expected = corpus.position_of(id).map(|position| corpus.json(position));
        let is_same = |expected| {
            expected == body || serde_json::from_str::<Value>(body).is_ok_and(|body| body == parse(expected))
        };
        if !expected.is_some_and(is_same) {
            return Err(format!("gave {id} another body"));
        }
    }
    Ok(())
}

/// The document of a JSON text that we made ourselves.
pub(crate) fn parse(json: &str) -> Value {
    serde_json::from_str(json).expect("the corpus is JSON")
}

#[cfg(test)]
mod tests {
    use super::super::question::{Condition, Test};
    use super::super::{Records, Users};
    use super::*;

    fn question(test: Test, limit: Option<usize>, wanted: Wanted) -> Question {
        Question { limit, ..Question::all(Condition::At("priority", test), wanted) }
    }

    fn ids(corpus: &Corpus, positions: &[u32]) -> Answer {
        let id = |position: &u32| corpus.id(*position as usize).to_owned();
        Answer { ids: positions.iter().map(id).collect(), ..Answer::default() }
    }

    #[test]
    fn truth_is_what_a_scan_finds() {
        let corpus = Corpus::generate(Records::new(1), 500);
        let scan: Vec<u32> =
            (0..500).filter(|number| corpus.json(*number as usize).contains(r#""priority":3"#)).collect();
        let equal = question(Test::Equal(3.into()), None, Wanted::Ids);
        let same = question(Test::Between(3, 4), None, Wanted::Ids);
        let truths = Truth::of(&corpus, &[equal.clone(), same]);
        assert_eq!(truths[0].matching, scan);
        assert_eq!(truths[1].matching, scan);
        assert_eq!(truths[0].check(&corpus, &equal, &ids(&corpus, &scan)), Ok(()));
    }

    #[test]
    fn wrong_answers_are_caught() {
        let corpus = Corpus::generate(Records::new(1), 500);
        let all = question(Test::Between(2, 4), None, Wanted::Ids);
        let truth = Truth::of(&corpus, std::slice::from_ref(&all)).remove(0);
        let right = truth.matching.clone();
        let stranger = (0..500).find(|number| !right.contains(number)).unwrap();
        let check = |positions: &[u32]| truth.check(&corpus, &all, &ids(&corpus, positions)).unwrap_err();
        assert_eq!(check(&right[1..]), format!("gave {} rows, not {}", right.len() - 1, right.len()));
        let twice: Vec<u32> = right[1..].iter().chain(&right[1..2]).copied().collect();
        assert_eq!(check(&twice), "gave a document twice");
        let strange: Vec<u32> = right[1..].iter().copied().chain([stranger]).collect();
        assert_eq!(check(&strange), format!("gave {}, which does not match", corpus.id(stranger as usize)));

        let counted = Question { wanted: Wanted::Count, ..all.clone() };
        let wrong = Answer { count: Some(right.len() as u64 + 1), ..Answer::default() };
        assert!(truth.check(&corpus, &counted, &wrong).is_err());
        assert!(truth.check(&corpus, &counted, &Answer::default()).is_err());
    }

    #[test]
    fn wrong_bodies_are_caught_and_any_rows_will_do_under_a_limit() {
        let corpus = Corpus::generate(Records::new(1), 500);
        let some = question(Test::Between(2, 4), Some(2), Wanted::Documents);
        let truth = Truth::of(&corpus, std::slice::from_ref(&some)).remove(0);
        let last: Vec<u32> = truth.matching.iter().rev().take(2).copied().collect();
        let mut answer = ids(&corpus, &last);
        assert!(truth.check(&corpus, &some, &answer).unwrap_err().contains("bodies"));
        answer.bodies = last.iter().map(|position| corpus.json(*position as usize).replace(':', ": ")).collect();
        assert_eq!(truth.check(&corpus, &some, &answer), Ok(()));
        answer.bodies.swap(0, 1);
        assert!(truth.check(&corpus, &some, &answer).unwrap_err().contains("another body"));
    }

    #[test]
    fn a_wrong_order_is_caught() {
        let corpus = Corpus::generate(Users, 30);
        let newest = Question::all(Condition::Everything, Wanted::Ids).descending("created_at").limit(3);
        let truth = Truth::of(&corpus, std::slice::from_ref(&newest)).remove(0);
        let check = |positions: &[u32]| truth.check(&corpus, &newest, &ids(&corpus, positions));
        assert_eq!(check(&[29, 28, 27]), Ok(()));
        assert!(check(&[27, 28, 29]).unwrap_err().contains("in the order"));
        assert!(check(&[28, 27, 26]).unwrap_err().contains("in the order"));
    }
}
