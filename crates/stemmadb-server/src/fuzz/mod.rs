//! What the fuzzers run of the server: functions of bytes that must neither panic nor answer 500, whatever they are.
//!
//! libFuzzer calls them from `fuzz/` (`just nightly-fuzz`); the ordinary tests call them with the corpora kept there, and with bytes at
//! random.

mod multipart;
mod requests;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use multipart::Slowly;
pub use multipart::multipart;
pub use requests::requests;

/// A target: what it is given are a fuzzer's bytes.
pub type Target = fn(&[u8]);

/// Every target, by the name of its corpus.
pub const TARGETS: [(&str, Target); 2] = [("multipart", multipart), ("requests", requests)];
