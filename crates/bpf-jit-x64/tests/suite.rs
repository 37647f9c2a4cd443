//! The tests of every backend, for this one.

mod support;

bpf_jit_suite::suite!(support::Native::default());
