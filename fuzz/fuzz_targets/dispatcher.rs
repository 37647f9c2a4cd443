//! See `bpf_testkit::fuzz::dispatcher`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bpf_testkit::fuzz::dispatcher(data));
