//! The corpora, and bytes at random, through every target.

use std::path::Path;

use stemmadb::testing::{self, Random};

use super::TARGETS;

#[test]
fn every_corpus_is_read_without_a_fault() {
    for (name, target) in TARGETS {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
        testing::replay(&corpus, target).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn bytes_at_random_are_read_without_a_fault() {
    for (name, target) in TARGETS {
        for run in 0..60 {
            println!("{name} {run}");
            let mut random = Random::new(run);
            let length = random.below(300);
            // Every other one is a request of some route.
            let bytes: Vec<u8> = std::iter::once(run as u8).chain((0..length).map(|_| random.number() as u8)).collect();
            target(&bytes);
        }
    }
}
