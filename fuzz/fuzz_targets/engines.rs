//! See `bpf_testkit::fuzz::engines`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bpf_testkit::fuzz::engines(data));
