//! `stemmadb::testing::fuzz::manifest` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stemmadb::testing::fuzz::manifest(data));
