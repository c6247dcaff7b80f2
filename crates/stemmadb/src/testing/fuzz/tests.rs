//! Runs every fuzz target on its corpus and on random bytes.

use std::path::Path;

use super::TARGETS;
use crate::testing::{self, Random};

const RANDOM_COUNT: u64 = 300;

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
        for seed in 0..RANDOM_COUNT {
            println!("{name} {seed}");
            let mut random = Random::new(seed);
            let length = random.below(400);
            let bytes: Vec<u8> = (0..length).map(|_| random.number() as u8).collect();
            target(&bytes);
        }
    }
}
