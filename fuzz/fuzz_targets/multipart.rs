//! `stemmadb_server::fuzz::multipart` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stemmadb_server::fuzz::multipart(data));
