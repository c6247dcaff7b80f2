//! Documents for anti-patterns: every condition has an equality that exactly as many documents match, with the same
//! random distribution.
//!
//! Each field assigns its values by its own permutation of the document numbers, so that shares are exact and fields
//! are uncorrelated.

use std::fmt::Write as _;

use super::corpus::Documents;
use crate::harness::Random;

/// A workload of `count` people.
#[derive(Clone, Copy)]
pub(crate) struct People {
    count: u64,
}

/// Number of distinct values of `group`; each has 0.1 % of the documents.
pub(crate) const GROUPS: u64 = 1_000;

const FIRST: [&str; 100] = [
    "John", "Amara", "Bao", "Carmen", "Dmitri", "Elif", "Farid", "Greta", "Hana", "Ivan", "Jasmin", "Kofi", "Lena",
    "Mateo", "Nadia", "Olga", "Pedro", "Qiang", "Rosa", "Sven", "Tala", "Uma", "Viktor", "Wanda", "Ximena", "Yusuf",
    "Zofia", "Anton", "Bianca", "Chidi", "Daria", "Emre", "Fatima", "Goran", "Helga", "Ines", "Jurgen", "Kira", "Lars",
    "Maya", "Niko", "Oksana", "Paulo", "Rania", "Stefan", "Teresa", "Ulrich", "Vera", "Wojtek", "Yara", "Zane", "Aiko",
    "Bruno", "Celia", "Diego", "Edda", "Felix", "Gita", "Hugo", "Irma", "Jonas", "Katya", "Luca", "Mina", "Nils",
    "Odile", "Petra", "Quinn", "Ravi", "Sonia", "Tomas", "Ursula", "Vito", "Willa", "Xenia", "Yann", "Zara", "Abel",
    "Berta", "Cesar", "Dora", "Egon", "Flora", "Gustav", "Hedda", "Igor", "Judit", "Klaus", "Lidia", "Milan", "Nora",
    "Oskar", "Pia", "Rolf", "Selma", "Timo", "Ulla", "Vasil", "Wim", "Zelda",
];

impl People {
    /// Creates the workload; `count` must be a multiple of 10,000.
    pub(crate) fn new(count: u64) -> Self {
        assert!(count.is_multiple_of(10_000), "shares are exact");
        People { count }
    }

    /// Returns document `number`'s position in a field's permutation: a Feistel network over the smallest even number
    /// of bits, iterated until the result is below `count`.
    fn permuted_position(&self, field: u64, number: u64) -> u64 {
        let half = (64 - (self.count - 1).leading_zeros()).div_ceil(2);
        let mask = (1_u64 << half) - 1;
        let mut at = number;
        loop {
            for round in 0..4 {
                let (left, right) = (at >> half, at & mask);
                let mixed = Random::at(field << 8 | round, right).next() & mask;
                at = right << half | (left ^ mixed);
            }
            if at < self.count {
                return at;
            }
        }
    }
}

impl Documents for People {
    fn write_id(&self, number: u64, id: &mut String) {
        write!(id, "p{number:09}").expect("a string takes everything");
    }

    fn write_json(&self, number: u64, json: &mut String) {
        let position = |field| self.permuted_position(field, number);
        let name = position(1);
        let kind = if position(2) % 100 == 0 { "rare" } else { "common" };
        let visible = position(3) % 100 != 0;
        write!(
            json,
            r#"{{"name":"{} {:03}","surname":"{:03} Smith","kind":"{kind}","visible":{visible}"#,
            FIRST[(name % 100) as usize],
            name / 100 % 1_000,
            position(9) / 100 % 1_000,
        )
        .expect("a string takes everything");
        write!(
            json,
            r#","group":{},"tenth":{},"hundredth":{},"thousandth":{},"score":{},"all":"yes","created_at":{number}}}"#,
            position(4) % GROUPS,
            position(5) % 10,
            position(6) % 100,
            position(7) % 1_000,
            position(8),
        )
        .expect("a string takes everything");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::query_spec::{Condition, Predicate, Projection, QuerySpec};
    use super::super::{Corpus, ExpectedRows};
    use super::*;

    #[test]
    fn field_values_are_evenly_distributed() {
        let people = People::new(10_000);
        for field in 1..10 {
            let positions: HashSet<u64> = (0..10_000).map(|number| people.permuted_position(field, number)).collect();
            assert_eq!(positions.len(), 10_000);
        }
        let corpus = Corpus::generate(people, 10_000);
        let count = |path, predicate| {
            let spec = QuerySpec::all(Condition::Field(path, predicate), Projection::Count);
            ExpectedRows::compute(&corpus, &[spec])[0].row_count(None)
        };
        assert_eq!(count("name", Predicate::Prefix("John ".to_owned())), 100);
        assert_eq!(count("kind", Predicate::Equal("common".into())), 9_900);
        assert_eq!(count("visible", Predicate::Equal(true.into())), 9_900);
        assert_eq!(count("group", Predicate::Equal(7.into())), 10);
        assert_eq!(count("hundredth", Predicate::Equal(7.into())), 100);
    }
}
