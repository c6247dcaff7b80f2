//! `stemmadb::testing::fuzz::runs` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stemmadb::testing::fuzz::runs(data));
