//! What the fuzzers run: each target is a function of bytes that must neither panic nor hang, whatever they are, and that
//! looks at its answers by another way of getting them.
//!
//! libFuzzer calls them from `fuzz/` (`just nightly-fuzz`); the ordinary tests call them with the corpora kept there, and
//! with bytes at random, so that neither can rot.

mod given;
mod json;
mod keys;
mod log;
mod packed;
mod revisions;
mod selectors;
#[cfg(test)]
mod tests;

pub use json::json;
pub use keys::keys;
pub use log::log;
pub use packed::packed;
pub use revisions::revisions;
pub use selectors::selectors;

/// A target: what it is given are a fuzzer's bytes.
pub type Target = fn(&[u8]);

/// Every target, by the name of its corpus.
pub const TARGETS: [(&str, Target); 6] = [
    ("json", json),
    ("keys", keys),
    ("log", log),
    ("packed", packed),
    ("revisions", revisions),
    ("selectors", selectors),
];
