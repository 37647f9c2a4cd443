//! See `bpf_testkit::fuzz::optimise`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bpf_testkit::fuzz::optimise(data));
