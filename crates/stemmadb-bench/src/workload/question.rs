//! Questions as data, and what is true: worked out from the documents themselves, so that no engine is believed.

use std::collections::HashSet;

use serde_json::Value;

use super::corpus::{Corpus, number_of};

/// What is asked of an engine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Question {
    pub(crate) field: &'static str,
    pub(crate) condition: Condition,
    /// At most so many rows, whichever: there is no order.
    pub(crate) limit: Option<usize>,
    pub(crate) wanted: Wanted,
}

/// Which documents.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Condition {
    /// The field is equal to this.
    Equal(Value),
    /// The field is a number from the first to below the second.
    Between(i64, i64),
    /// The field is a text that begins with this.
    Prefix(String),
}

/// What of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Ids,
    /// Documents as the engine hands them out: ours packed, with fields at hand; a text in SQLite.
    Documents,
    /// Documents as JSON text.
    Json,
    /// How many.
    Count,
}

/// What an engine answered, all of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) ids: Vec<String>,
    pub(crate) bodies: Vec<Value>,
    pub(crate) count: Option<u64>,
}

/// Which documents of a corpus meet a condition.
#[derive(Clone, Debug)]
pub(crate) struct Truth {
    matching: Vec<u64>,
}

impl Condition {
    /// Whether a field's value meets it.
    pub(crate) fn holds(&self, value: &Value) -> bool {
        match self {
            Condition::Equal(wanted) => value == wanted,
            Condition::Between(lower, upper) => value.as_i64().is_some_and(|number| (*lower..*upper).contains(&number)),
            Condition::Prefix(prefix) => value.as_str().is_some_and(|text| text.starts_with(prefix)),
        }
    }
}

impl Truth {
    /// For each question, the documents of `corpus` that meet it. One pass, at the price of parsing them all.
    pub(crate) fn of(corpus: &Corpus, questions: &[Question]) -> Vec<Truth> {
        let mut truths = vec![Truth { matching: Vec::new() }; questions.len()];
        for position in 0..corpus.len() {
            let document = parse(corpus.json(position));
            for (question, truth) in questions.iter().zip(&mut truths) {
                if question.condition.holds(&document[question.field]) {
                    truth.matching.push(position as u64);
                }
            }
        }
        truths
    }

    /// The numbers of the documents that match, in order.
    #[cfg(test)]
    pub(crate) fn numbers(&self) -> &[u64] {
        &self.matching
    }

    /// How many rows (or what count) the right answer has. Zero is a miss, which nobody may time.
    pub(crate) fn row_count(&self, limit: Option<usize>) -> u64 {
        let all = self.matching.len();
        limit.map_or(all, |limit| all.min(limit)) as u64
    }

    /// Whether `answer` is right: the right documents, each once, with the right bodies.
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
        let distinct: HashSet<&String> = answer.ids.iter().collect();
        if distinct.len() != answer.ids.len() {
            return Err("gave a document twice".to_owned());
        }
        for id in &answer.ids {
            if number_of(id).is_none_or(|number| self.matching.binary_search(&number).is_err()) {
                return Err(format!("gave {id}, which does not match"));
            }
        }
        if question.wanted == Wanted::Ids { Ok(()) } else { check_bodies(corpus, answer) }
    }
}

/// Whether each body is the document of its id.
pub(crate) fn check_bodies(corpus: &Corpus, answer: &Answer) -> Result<(), String> {
    if answer.bodies.len() != answer.ids.len() {
        return Err(format!("gave {} bodies for {} ids", answer.bodies.len(), answer.ids.len()));
    }
    for (id, body) in answer.ids.iter().zip(&answer.bodies) {
        let expected = number_of(id).map(|number| parse(corpus.json(number as usize)));
        if expected.as_ref() != Some(body) {
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
    use super::super::Records;
    use super::*;

    fn id_of(number: u64) -> String {
        format!("d{number:09}")
    }

    fn question(condition: Condition, limit: Option<usize>, wanted: Wanted) -> Question {
        Question { field: "priority", condition, limit, wanted }
    }

    fn ids(numbers: &[u64]) -> Answer {
        Answer { ids: numbers.iter().map(|number| id_of(*number)).collect(), ..Answer::default() }
    }

    #[test]
    fn truth_is_what_a_scan_finds() {
        let corpus = Corpus::generate(Records::new(1), 500);
        let scan: Vec<u64> =
            (0..500).filter(|number| corpus.json(*number as usize).contains(r#""priority":3"#)).collect();
        let equal = question(Condition::Equal(3.into()), None, Wanted::Ids);
        let same = question(Condition::Between(3, 4), None, Wanted::Ids);
        let truths = Truth::of(&corpus, &[equal.clone(), same]);
        assert_eq!(truths[0].matching, scan);
        assert_eq!(truths[1].matching, scan);
        assert_eq!(truths[0].check(&corpus, &equal, &ids(&scan)), Ok(()));
    }

    #[test]
    fn wrong_answers_are_caught() {
        let corpus = Corpus::generate(Records::new(1), 500);
        let all = question(Condition::Between(2, 4), None, Wanted::Ids);
        let truth = Truth::of(&corpus, std::slice::from_ref(&all)).remove(0);
        let right = truth.matching.clone();
        let stranger = (0..500).find(|number| !right.contains(number)).unwrap();
        let check = |answer: &Answer| truth.check(&corpus, &all, answer).unwrap_err();
        assert_eq!(check(&ids(&right[1..])), format!("gave {} rows, not {}", right.len() - 1, right.len()));
        let twice: Vec<u64> = right[1..].iter().chain(&right[1..2]).copied().collect();
        assert_eq!(check(&ids(&twice)), "gave a document twice");
        let strange: Vec<u64> = right[1..].iter().copied().chain([stranger]).collect();
        assert_eq!(check(&ids(&strange)), format!("gave {}, which does not match", id_of(stranger)));

        let counted = question(all.condition.clone(), None, Wanted::Count);
        let wrong = Answer { count: Some(right.len() as u64 + 1), ..Answer::default() };
        assert!(truth.check(&corpus, &counted, &wrong).is_err());
        assert!(truth.check(&corpus, &counted, &Answer::default()).is_err());
    }

    #[test]
    fn wrong_bodies_are_caught_and_any_rows_will_do_under_a_limit() {
        let corpus = Corpus::generate(Records::new(1), 500);
        let some = question(Condition::Between(2, 4), Some(2), Wanted::Documents);
        let truth = Truth::of(&corpus, std::slice::from_ref(&some)).remove(0);
        let last: Vec<u64> = truth.matching.iter().rev().take(2).copied().collect();
        let mut answer = ids(&last);
        assert!(truth.check(&corpus, &some, &answer).unwrap_err().contains("bodies"));
        answer.bodies = last.iter().map(|number| parse(corpus.json(*number as usize))).collect();
        assert_eq!(truth.check(&corpus, &some, &answer), Ok(()));
        answer.bodies.swap(0, 1);
        assert!(truth.check(&corpus, &some, &answer).unwrap_err().contains("another body"));
    }
}
