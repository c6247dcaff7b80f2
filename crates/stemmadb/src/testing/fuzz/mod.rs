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
pub const TARGETS: [(&str, Target); 6] = [
    ("json", json),
    ("keys", keys),
    ("log", log),
    ("packed", packed),
    ("revisions", revisions),
    ("selectors", selectors),
];
