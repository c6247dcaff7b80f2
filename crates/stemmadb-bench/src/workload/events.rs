//! The `growth` workload: events of 15 fields, about 300 bytes of JSON. Every event is a function of the seed and its
//! number.

use std::fmt::Write as _;

use super::corpus::{Documents, push_characters};
use crate::harness::Random;

/// A workload of events.
#[derive(Clone, Copy)]
pub(crate) struct Events {
    seed: u64,
}

/// Exclusive upper bound of the field `amount`, whose values are uniformly distributed integers.
pub(crate) const AMOUNT_MAX: i64 = 1_000_000;

const KINDS: [&str; 10] =
    ["order", "payment", "refund", "login", "logout", "visit", "search", "review", "message", "shipment"];
const STATES: [&str; 10] =
    ["new", "open", "pending", "active", "blocked", "failed", "done", "closed", "expired", "archived"];
const COUNTRIES: [&str; 10] =
    ["poland", "france", "norway", "chile", "japan", "kenya", "canada", "iceland", "portugal", "vietnam"];
const WORDS: [&str; 32] = [
    "amber", "birch", "cedar", "coral", "cloud", "delta", "ember", "fjord", "glass", "grove", "harbor", "ivory",
    "jade", "lake", "lilac", "maple", "meadow", "mint", "moss", "north", "ocean", "olive", "pearl", "pine", "rain",
    "river", "sand", "slate", "stone", "storm", "tide", "willow",
];
/// The time of the first event, in milliseconds since 1970.
const FIRST_MS: u64 = 1_767_225_600_000;
/// Milliseconds between two events.
const INTERVAL_MS: u64 = 250;

impl Events {
    /// Creates the workload of `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Events { seed }
    }

    /// Returns the names of all fields: three unique, four with about 1,000 values, four with 10, three numbers with
    /// more values, and a text of three words.
    pub(crate) fn fields() -> [&'static str; 15] {
        [
            "code", "at", "updated", "device", "city", "quantity", "day", "kind", "state", "country", "priority",
            "amount", "price", "score", "title",
        ]
    }

    /// Returns a value of the field `device`, which has 1,000 values.
    pub(crate) fn device(random: &mut Random) -> String {
        format!("device-{:03}", random.below(1_000))
    }

    /// Returns a value of the field `city`, which has 1,000 values.
    pub(crate) fn city(random: &mut Random) -> String {
        format!("city-{:03}", random.below(1_000))
    }

    /// Returns a value of the field `kind`, which has 10 values.
    pub(crate) fn kind(random: &mut Random) -> &'static str {
        KINDS[random.below(10) as usize]
    }
}

impl Documents for Events {
    fn write_id(&self, number: u64, id: &mut String) {
        // Ascending, like time-based ids.
        write!(id, "e{number:09}").expect("a string takes everything");
    }

    fn write_json(&self, number: u64, json: &mut String) {
        let mut random = Random::at(self.seed, number);
        json.push_str(r#"{"code":""#);
        push_characters(random.next(), 12, json);
        let at = FIRST_MS + number * INTERVAL_MS + random.below(INTERVAL_MS);
        let (device, city) = (Self::device(&mut random), Self::city(&mut random));
        write!(json, r#"","at":{at},"device":"{device}","city":"{city}""#).expect("a string takes everything");
        let kind = Self::kind(&mut random);
        let mut below = |bound| random.below(bound);
        let (state, country) = (STATES[below(10) as usize], COUNTRIES[below(10) as usize]);
        write!(json, r#","kind":"{kind}","state":"{state}","country":"{country}""#).expect("a string takes everything");
        let (priority, quantity, amount) = (below(10), below(1_000), below(AMOUNT_MAX.unsigned_abs()));
        let (units, cents, score) = (below(1_000), below(100), below(10_000));
        write!(json, r#","priority":{priority},"quantity":{quantity},"amount":{amount},"price":{units}.{cents:02}"#)
            .expect("a string takes everything");
        let mut date = || (2024 + below(3), 1 + below(12), 1 + below(28));
        let ((day_year, day_month, day), (year, month, date)) = (date(), date());
        write!(json, r#","score":0.{score:04},"day":"{day_year}-{day_month:02}-{day:02}""#)
            .expect("a string takes everything");
        let (hour, minute, second) = (below(24), below(60), below(60));
        write!(json, r#","updated":"{year}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}Z""#)
            .expect("a string takes everything");
        let mut word = || WORDS[below(32) as usize];
        write!(json, r#","title":"{} {} {}"}}"#, word(), word(), word()).expect("a string takes everything");
    }
}

#[cfg(test)]
mod tests {
    use super::super::corpus::profile;
    use super::*;

    #[test]
    fn events_have_the_designed_size_and_cardinality() {
        let (counts, mean_bytes) = profile(&Events::new(1), &Events::fields());
        assert_eq!(counts.len(), 15);
        assert_eq!(counts[..2], [20_000; 2]);
        assert!(counts[2] > 19_900 && counts[11..].iter().all(|count| *count > 7_000), "{counts:?}");
        assert_eq!(counts[3..11], [1_000, 1_000, 1_000, 1_008, 10, 10, 10, 10]);
        assert!((285..315).contains(&mean_bytes), "{mean_bytes}");
    }
}
