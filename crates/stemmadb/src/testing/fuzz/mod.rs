//! Fuzz targets: functions of arbitrary bytes that must neither panic nor hang and that verify their results by a
//! second method.
//!
//! libFuzzer runs them from `fuzz/` (`just nightly-fuzz`). The ordinary tests run them on the corpora kept there and on
//! random bytes, so that neither goes stale.

mod generate;
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

/// A fuzz target, called with a fuzzer's bytes.
pub type Target = fn(&[u8]);

/// Every target with the name of its corpus.
pub const TARGETS: [(&str, Target); 8] = [
    ("json", json),
    ("keys", keys),
    ("log", log),
    ("manifest", manifest),
    ("packed", packed),
    ("revisions", revisions),
    ("runs", runs),
    ("selectors", selectors),
];

/// Opening a tree with a damaged manifest reports the damage or finds a list that was written. One with a malformed
/// list whose checksum is right is refused, or can be read.
pub fn manifest(data: &[u8]) {
    crate::tree::fuzz::manifest(data);
}

/// Reading a damaged run file reports the damage or gives the rows that were written. Reading, verifying and merging a
/// malformed one whose checksums are right neither panics nor takes memory out of proportion.
pub fn runs(data: &[u8]) {
    crate::tree::fuzz::runs(data);
}
