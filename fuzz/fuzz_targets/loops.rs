//! See `bpf_testkit::fuzz::loops`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bpf_testkit::fuzz::loops(data));
