//! Runs every target with its corpus and with random bytes.

use std::path::Path;

use stemmadb::testing::{self, Random};

use super::TARGETS;

#[test]
fn corpora_cause_no_fault() {
    for &(name, target) in TARGETS {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
        testing::replay(&corpus, target).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn random_bytes_cause_no_fault() {
    for &(name, target) in TARGETS {
        for run in 0..60 {
            println!("{name} {run}");
            let mut random = Random::new(run);
            let length = random.below(300);
            // Every second input is a request of some route.
            let bytes: Vec<u8> = std::iter::once(run as u8).chain((0..length).map(|_| random.number() as u8)).collect();
            target(&bytes);
        }
    }
}
