//! The corpora, and bytes at random, through every target.

use std::path::{Path, PathBuf};

use super::TARGETS;
use crate::testing::Random;

const RANDOM_COUNT: u64 = 300;

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

#[test]
fn every_corpus_is_read_without_a_fault() {
    for (name, target) in TARGETS {
        let directory = corpora().join(name);
        let entries = directory.read_dir().unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        let inputs: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        assert!(inputs.len() > 3, "the corpus of {name} is gone");
        for input in inputs {
            println!("{}", input.display());
            target(&std::fs::read(&input).unwrap());
        }
    }
}

#[test]
fn bytes_at_random_are_read_without_a_fault() {
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
