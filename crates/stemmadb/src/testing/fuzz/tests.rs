//! Runs every fuzz target on its corpus and on random bytes.
//!
//! `STEMMA_FUZZ_INPUTS` sets the number of random inputs per target (default 300), `STEMMA_FUZZ_TARGET` tests only one.

use std::path::Path;

use super::TARGETS;
use crate::testing::{self, Random};

fn random_count() -> u64 {
    std::env::var("STEMMA_FUZZ_INPUTS").ok().and_then(|text| text.parse().ok()).unwrap_or(300)
}

#[test]
fn targets_accept_their_corpora() {
    for (name, target) in TARGETS {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
        testing::replay(&corpus, target).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn targets_accept_random_bytes() {
    for (name, target) in TARGETS {
        if std::env::var("STEMMA_FUZZ_TARGET").is_ok_and(|only| only != name) {
            continue;
        }
        for seed in 0..random_count() {
            println!("{name} {seed}");
            let mut random = Random::new(seed);
            let length = random.below(400);
            let bytes: Vec<u8> = (0..length).map(|_| random.number() as u8).collect();
            target(&bytes);
        }
    }
}
