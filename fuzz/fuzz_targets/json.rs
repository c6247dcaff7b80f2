//! `stemmadb::testing::fuzz::json` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stemmadb::testing::fuzz::json(data));
