//! Expected query results, computed from the documents themselves, so that no engine is trusted.

use serde_json::Value;

use super::corpus::Corpus;
use super::query_spec::{Projection, QuerySpec, find};

/// An engine's complete result.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct QueryResult {
    pub(crate) ids: Vec<String>,
    /// JSON texts.
    pub(crate) bodies: Vec<String>,
    pub(crate) count: Option<u64>,
}

/// The documents of a corpus that match a condition.
#[derive(Clone, Debug)]
pub(crate) struct ExpectedRows {
    /// Positions in ascending order.
    matching: Vec<u32>,
    /// Sort keys, if the query has an order.
    keys: Vec<i64>,
}

impl ExpectedRows {
    /// Computes the expected rows of each query in one pass over the parsed corpus.
    pub(crate) fn compute(corpus: &Corpus, specs: &[QuerySpec]) -> Vec<ExpectedRows> {
        let mut expectations = vec![ExpectedRows { matching: Vec::new(), keys: Vec::new() }; specs.len()];
        for position in 0..corpus.len() {
            let document = parse(corpus.json(position));
            for (spec, expected_rows) in specs.iter().zip(&mut expectations) {
                if !spec.condition.matches(&document) {
                    continue;
                }
                expected_rows.matching.push(position as u32);
                if let Some(order) = spec.order {
                    let key = find(&document, order.field).and_then(Value::as_i64);
                    expected_rows.keys.push(key.expect("documents are ordered by whole numbers that all of them have"));
                }
            }
        }
        expectations
    }

    /// Returns the positions of the matching documents, in ascending order.
    #[cfg(test)]
    pub(crate) fn positions(&self) -> &[u32] {
        &self.matching
    }

    /// Returns the number of rows (or the count) of a correct result. Queries with zero rows are never timed.
    pub(crate) fn row_count(&self, limit: Option<usize>) -> u64 {
        let all = self.matching.len();
        limit.map_or(all, |limit| all.min(limit)) as u64
    }

    /// Checks a result: the right documents, each once, in the right order, with the right bodies.
    pub(crate) fn check(&self, corpus: &Corpus, spec: &QuerySpec, result: &QueryResult) -> Result<(), String> {
        let expected = self.row_count(spec.limit);
        if spec.projection == Projection::Count {
            return match result.count {
                Some(count) if count == expected => Ok(()),
                count => Err(format!("counted {count:?}, not {expected}")),
            };
        }
        if result.ids.len() as u64 != expected {
            return Err(format!("gave {} rows, not {expected}", result.ids.len()));
        }
        let mut is_given = vec![false; corpus.len()];
        for id in &result.ids {
            let position =
                corpus.position_of(id).filter(|position| self.matching.binary_search(&(*position as u32)).is_ok());
            let position = position.ok_or_else(|| format!("gave {id}, which does not match"))?;
            if std::mem::replace(&mut is_given[position], true) {
                return Err("gave a document twice".to_owned());
            }
        }
        self.check_order(corpus, spec, result)?;
        if spec.projection == Projection::Ids { Ok(()) } else { check_bodies(corpus, result) }
    }

    /// Checks that the rows are the first ones of the order. Sort keys are unique.
    fn check_order(&self, corpus: &Corpus, spec: &QuerySpec, result: &QueryResult) -> Result<(), String> {
        let Some(order) = spec.order else { return Ok(()) };
        let mut all: Vec<(i64, u32)> = self.keys.iter().copied().zip(self.matching.iter().copied()).collect();
        all.sort_unstable();
        if order.descending {
            all.reverse();
        }
        for (id, (_, position)) in result.ids.iter().zip(&all) {
            let expected = corpus.id(*position as usize);
            if id != expected {
                return Err(format!("gave {id} where {expected} comes in the order"));
            }
        }
        Ok(())
    }
}

/// Checks that each body is the document with its id.
pub(crate) fn check_bodies(corpus: &Corpus, result: &QueryResult) -> Result<(), String> {
    if result.bodies.len() != result.ids.len() {
        return Err(format!("gave {} bodies for {} ids", result.bodies.len(), result.ids.len()));
    }
    for (id, body) in result.ids.iter().zip(&result.bodies) {
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

/// Parses a JSON text of the corpus.
pub(crate) fn parse(json: &str) -> Value {
    serde_json::from_str(json).expect("the corpus is JSON")
}

#[cfg(test)]
mod tests {
    use super::super::query_spec::{Condition, Predicate};
    use super::super::{Records, Users};
    use super::*;

    fn spec(predicate: Predicate, limit: Option<usize>, projection: Projection) -> QuerySpec {
        QuerySpec { limit, ..QuerySpec::all(Condition::Field("priority", predicate), projection) }
    }

    fn ids(corpus: &Corpus, positions: &[u32]) -> QueryResult {
        let id = |position: &u32| corpus.id(*position as usize).to_owned();
        QueryResult { ids: positions.iter().map(id).collect(), ..QueryResult::default() }
    }

    #[test]
    fn expected_rows_match_a_scan() {
        let corpus = Corpus::generate(Records::new(1), 500);
        let scan: Vec<u32> =
            (0..500).filter(|number| corpus.json(*number as usize).contains(r#""priority":3"#)).collect();
        let equal = spec(Predicate::Equal(3.into()), None, Projection::Ids);
        let same = spec(Predicate::Between(3, 4), None, Projection::Ids);
        let expectations = ExpectedRows::compute(&corpus, &[equal.clone(), same]);
        assert_eq!(expectations[0].matching, scan);
        assert_eq!(expectations[1].matching, scan);
        assert_eq!(expectations[0].check(&corpus, &equal, &ids(&corpus, &scan)), Ok(()));
    }

    #[test]
    fn wrong_rows_are_detected() {
        let corpus = Corpus::generate(Records::new(1), 500);
        let all = spec(Predicate::Between(2, 4), None, Projection::Ids);
        let expected_rows = ExpectedRows::compute(&corpus, std::slice::from_ref(&all)).remove(0);
        let right = expected_rows.matching.clone();
        let stranger = (0..500).find(|number| !right.contains(number)).unwrap();
        let check = |positions: &[u32]| expected_rows.check(&corpus, &all, &ids(&corpus, positions)).unwrap_err();
        assert_eq!(check(&right[1..]), format!("gave {} rows, not {}", right.len() - 1, right.len()));
        let twice: Vec<u32> = right[1..].iter().chain(&right[1..2]).copied().collect();
        assert_eq!(check(&twice), "gave a document twice");
        let strange: Vec<u32> = right[1..].iter().copied().chain([stranger]).collect();
        assert_eq!(check(&strange), format!("gave {}, which does not match", corpus.id(stranger as usize)));

        let counted = QuerySpec { projection: Projection::Count, ..all.clone() };
        let wrong = QueryResult { count: Some(right.len() as u64 + 1), ..QueryResult::default() };
        assert!(expected_rows.check(&corpus, &counted, &wrong).is_err());
        assert!(expected_rows.check(&corpus, &counted, &QueryResult::default()).is_err());
    }

    #[test]
    fn wrong_bodies_are_detected_and_limits_accept_any_rows() {
        let corpus = Corpus::generate(Records::new(1), 500);
        let some = spec(Predicate::Between(2, 4), Some(2), Projection::Documents);
        let expected_rows = ExpectedRows::compute(&corpus, std::slice::from_ref(&some)).remove(0);
        let last: Vec<u32> = expected_rows.matching.iter().rev().take(2).copied().collect();
        let mut result = ids(&corpus, &last);
        assert!(expected_rows.check(&corpus, &some, &result).unwrap_err().contains("bodies"));
        result.bodies = last.iter().map(|position| corpus.json(*position as usize).replace(':', ": ")).collect();
        assert_eq!(expected_rows.check(&corpus, &some, &result), Ok(()));
        result.bodies.swap(0, 1);
        assert!(expected_rows.check(&corpus, &some, &result).unwrap_err().contains("another body"));
    }

    #[test]
    fn wrong_order_is_detected() {
        let corpus = Corpus::generate(Users, 30);
        let newest = QuerySpec::all(Condition::Everything, Projection::Ids).descending("created_at").limit(3);
        let expected_rows = ExpectedRows::compute(&corpus, std::slice::from_ref(&newest)).remove(0);
        let check = |positions: &[u32]| expected_rows.check(&corpus, &newest, &ids(&corpus, positions));
        assert_eq!(check(&[29, 28, 27]), Ok(()));
        assert!(check(&[27, 28, 29]).unwrap_err().contains("in the order"));
        assert!(check(&[28, 27, 26]).unwrap_err().contains("in the order"));
    }
}
