//! `stemmadb::testing::fuzz::revisions` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stemmadb::testing::fuzz::revisions(data));
