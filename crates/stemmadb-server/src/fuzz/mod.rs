//! Fuzz targets of the server: functions of bytes that must neither panic nor respond with status 500.
//!
//! libFuzzer calls them from `fuzz/` (`just nightly-fuzz`); the ordinary tests run them with the corpora there and with
//! random bytes.

mod multipart;
mod requests;
#[cfg(test)]
mod tests;
#[cfg(unix)]
mod wire;

#[cfg(test)]
pub(crate) use multipart::SlowReader;
pub use multipart::multipart;
pub use requests::requests;
#[cfg(unix)]
pub use wire::wire;

/// A fuzz target; its argument is the fuzzer's input.
pub type Target = fn(&[u8]);

/// All targets, by the name of their corpus.
pub const TARGETS: &[(&str, Target)] = &[
    ("multipart", multipart),
    ("requests", requests),
    #[cfg(unix)]
    ("wire", wire),
];
