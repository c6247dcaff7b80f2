//! The `core` workload: documents of 15 values, with 5 fields of 10 distinct values, 5 of 1,000, and 5 unique.
//!
//! About 382 bytes of JSON per document. Every document is a function of the seed and its number.

use std::fmt::Write as _;

use super::corpus::{Documents, push_characters};
use crate::harness::Random;

/// A workload of 15-field documents.
#[derive(Clone, Copy)]
pub(crate) struct Records {
    seed: u64,
}

/// Fields with 10 distinct values; the last is a number.
pub(crate) const OF_TEN: [&str; 5] = ["order_status", "ship_country", "sales_channel", "user_language", "priority"];
/// Fields with 1,000 distinct values: strings, integers, and decimal prices.
pub(crate) const OF_A_THOUSAND: [&str; 5] = ["ship_city", "category", "created_day", "risk_score", "unit_price"];
/// Fields with 16 random characters.
pub(crate) const UNIQUE: [&str; 5] = ["session_id", "access_token", "reference", "signature", "customer_id"];

const STATUS: [&str; 10] =
    ["active", "pending", "suspended", "closed", "deleted", "archived", "review", "blocked", "draft", "expired"];
const COUNTRY: [&str; 10] =
    ["poland", "france", "norway", "chile", "japan", "kenya", "canada", "iceland", "portugal", "vietnam"];
const CHANNEL: [&str; 10] =
    ["website", "letter", "telephone", "partner", "market", "fair", "mobile", "kiosk", "agent", "referral"];
const LANGUAGE: [&str; 10] =
    ["polish", "french", "norwegian", "spanish", "japanese", "swahili", "english", "icelandic", "latin", "esperanto"];

impl Records {
    /// Creates the workload of `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Records { seed }
    }

    /// Returns the names of all fields.
    pub(crate) fn fields() -> impl Iterator<Item = &'static str> {
        OF_TEN.into_iter().chain(OF_A_THOUSAND).chain(UNIQUE)
    }
}

impl Documents for Records {
    fn write_id(&self, number: u64, id: &mut String) {
        // A letter and nine digits: ascending, like time-based ids.
        write!(id, "d{number:09}").expect("a string takes everything");
    }

    fn write_json(&self, number: u64, json: &mut String) {
        let mut random = Random::at(self.seed, number);
        let mut ten = |words: &[&'static str; 10]| words[random.below(10) as usize];
        let (status, country, channel, language) = (ten(&STATUS), ten(&COUNTRY), ten(&CHANNEL), ten(&LANGUAGE));
        let priority = random.below(10);
        let mut thousand = || random.below(1_000);
        let (city, category, day, score, price) = (thousand(), thousand(), thousand(), thousand(), thousand());
        write!(json, r#"{{"order_status":"{status}","ship_country":"{country}","sales_channel":"{channel}""#)
            .expect("a string takes everything");
        write!(json, r#","user_language":"{language}","priority":{priority},"ship_city":"city-{city:03}""#)
            .expect("a string takes everything");
        write!(
            json,
            r#","category":"category-{category:03}","created_day":{},"risk_score":{score},"unit_price":{}.{}5"#,
            20_000 + day,
            price / 10,
            price % 10,
        )
        .expect("a string takes everything");
        for field in UNIQUE {
            write!(json, r#","{field}":""#).expect("a string takes everything");
            push_unique(&mut random, json);
            json.push('"');
        }
        json.push('}');
    }
}

fn push_unique(random: &mut Random, json: &mut String) {
    (0..2).for_each(|_| push_characters(random.next(), 8, json));
}

#[cfg(test)]
mod tests {
    use super::super::corpus::profile;
    use super::*;

    #[test]
    fn documents_have_the_designed_size_and_cardinality() {
        let (counts, mean_bytes) = profile(&Records::new(1), &Records::fields().collect::<Vec<_>>());
        assert_eq!(counts.len(), 15);
        assert_eq!(counts[..5], [10; 5]);
        assert_eq!(counts[5..10], [1_000; 5]);
        assert_eq!(counts[10..], [20_000; 5]);
        assert!((377..388).contains(&mean_bytes), "{mean_bytes}");
    }

    #[test]
    fn documents_depend_only_on_seed_and_number() {
        let json = |seed, number| {
            let mut json = String::new();
            Records::new(seed).write_json(number, &mut json);
            json
        };
        assert_eq!(json(7, 3), json(7, 3));
        assert_ne!(json(7, 3), json(7, 4));
        assert_ne!(json(7, 3), json(8, 3));
    }
}
