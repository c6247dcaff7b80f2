//! Documents in which conditions of every kind have a twin: an equality that exactly as many documents meet, as randomly spread.
//!
//! Each field deals out its values in an order of its own, a permutation of the document numbers, so that shares are exact
//! and fields know nothing of each other.

use std::fmt::Write as _;

use super::corpus::Documents;
use crate::harness::Random;

/// People, of whom there are `count`: a multiple of 10,000.
#[derive(Clone, Copy)]
pub(crate) struct People {
    count: u64,
}

/// Values of `group`; each has a thousandth of the documents.
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
    /// So many; a multiple of 10,000.
    pub(crate) fn new(count: u64) -> Self {
        assert!(count.is_multiple_of(10_000), "shares are exact");
        People { count }
    }

    /// Where document `number` comes in the order of a field: a Feistel network over the least even number of bits, walked until it
    /// leads back below `count`.
    fn place(&self, field: u64, number: u64) -> u64 {
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
        let place = |field| self.place(field, number);
        let name = place(1);
        let kind = if place(2) % 100 == 0 { "rare" } else { "common" };
        let visible = place(3) % 100 != 0;
        write!(
            json,
            r#"{{"name":"{} {:03}","surname":"{:03} Smith","kind":"{kind}","visible":{visible},"group":{},"tenth":{},"hundredth":{},"thousandth":{},"score":{},"all":"yes","created_at":{number}}}"#,
            FIRST[(name % 100) as usize],
            name / 100 % 1_000,
            place(9) / 100 % 1_000,
            place(4) % GROUPS,
            place(5) % 10,
            place(6) % 100,
            place(7) % 1_000,
            place(8),
        )
        .expect("a string takes everything");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::question::{Condition, Question, Test, Wanted};
    use super::super::{Corpus, Truth};
    use super::*;

    #[test]
    fn every_field_deals_out_its_values_evenly() {
        let people = People::new(10_000);
        for field in 1..10 {
            let places: HashSet<u64> = (0..10_000).map(|number| people.place(field, number)).collect();
            assert_eq!(places.len(), 10_000);
        }
        let corpus = Corpus::generate(people, 10_000);
        let count = |path, test| {
            let question = Question::all(Condition::At(path, test), Wanted::Count);
            Truth::of(&corpus, &[question])[0].row_count(None)
        };
        assert_eq!(count("name", Test::Prefix("John ".to_owned())), 100);
        assert_eq!(count("kind", Test::Equal("common".into())), 9_900);
        assert_eq!(count("visible", Test::Equal(true.into())), 9_900);
        assert_eq!(count("group", Test::Equal(7.into())), 10);
        assert_eq!(count("hundredth", Test::Equal(7.into())), 100);
    }
}
