//! `stemmadb_server::fuzz::requests` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stemmadb_server::fuzz::requests(data));
