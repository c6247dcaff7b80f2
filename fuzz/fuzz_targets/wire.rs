//! `stemmadb_server::fuzz::wire` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stemmadb_server::fuzz::wire(data));
