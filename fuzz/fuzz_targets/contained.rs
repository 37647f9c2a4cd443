//! See `bpf_testkit::fuzz::contained`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bpf_testkit::fuzz::contained(data));
