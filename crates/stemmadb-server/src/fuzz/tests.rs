//! The corpora, and bytes at random, through every target.

use std::path::Path;

use super::TARGETS;

#[test]
fn every_corpus_is_read_without_a_fault() {
    for (name, target) in TARGETS {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
        let entries = directory.read_dir().unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        let inputs: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        assert!(inputs.len() > 3, "the corpus of {name} is gone");
        for input in inputs {
            println!("{}", input.display());
            target(&std::fs::read(&input).unwrap());
        }
    }
}

#[test]
fn bytes_at_random_are_read_without_a_fault() {
    let mut state = 1u64;
    let mut next = || {
        // Knuth's generator: the bytes are the same in every run.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    for (name, target) in TARGETS {
        for run in 0..60 {
            let length = next() % 300;
            // Every other one is a request of some route.
            let bytes: Vec<u8> = std::iter::once(run as u8).chain((0..length).map(|_| next() as u8)).collect();
            println!("{name} {run}");
            target(&bytes);
        }
    }
}
