//! Seeded pseudorandom numbers, identical on every machine and in every version.

use std::time::Duration;

/// SplitMix64.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5DEE_CE66_D1CE_4E5B)
    }

    /// Returns an independent generator.
    pub(crate) fn fork(&mut self) -> Self {
        Random(self.next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns true with a probability of `percent` in 100.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns a duration of at least `min` and less than `max` milliseconds.
    pub(crate) fn milliseconds(&mut self, min: u64, max: u64) -> Duration {
        Duration::from_millis(min + self.below(max - min))
    }
}

/// Reads a number from an environment variable.
pub(crate) fn env_u64(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Returns the seed of a test and prints it, so that a failure can be reproduced.
pub(crate) fn seed(test: &str) -> u64 {
    let seed = env_u64("STEMMA_NETWORK_SEED", 1);
    println!("{test}: STEMMA_NETWORK_SEED={seed}");
    seed
}
