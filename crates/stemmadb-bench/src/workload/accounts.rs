//! User records of the BoltDB study: 15 fields of various numeric and text types.

use serde::{Deserialize, Serialize};

use crate::harness::Random;

/// A user record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Account {
    pub(crate) id: i64,
    pub(crate) username: String,
    pub(crate) email: String,
    pub(crate) first_name: String,
    pub(crate) last_name: String,
    pub(crate) age: i32,
    pub(crate) height: f32,
    pub(crate) weight: f32,
    pub(crate) balance: f64,
    pub(crate) is_active: bool,
    pub(crate) created_at: i64,
    pub(crate) updated_at: i64,
    pub(crate) login_count: i32,
    pub(crate) score: f64,
    pub(crate) description: String,
}

/// Fixed creation time in seconds, so that every run has the same records.
const NOW: i64 = 1_750_000_000;

impl Account {
    /// Generates user `number`.
    pub(crate) fn new(seed: u64, number: u64) -> Self {
        let mut random = Random::at(seed, number);
        let mut below = |bound: u64| random.below(bound);
        Account {
            id: number as i64,
            username: format!("user_{number}"),
            email: format!("user{number}@example.com"),
            first_name: format!("First_{number}"),
            last_name: format!("Last_{number}"),
            age: 18 + below(60) as i32,
            height: 150.0 + below(50) as f32,
            weight: 50.0 + below(100) as f32,
            // Whole cents: short decimals, which every encoding must preserve exactly.
            balance: below(1_000_000) as f64 / 100.0,
            is_active: below(2) == 1,
            created_at: NOW - below(365 * 24 * 3_600) as i64,
            updated_at: NOW,
            login_count: below(1_000) as i32,
            score: below(10_000) as f64 / 100.0,
            description: format!(
                "This is a description for user {number} with some random text to make it longer and more realistic."
            ),
        }
    }
}
