//! The tests of every backend, for this one.

use crate::support;

bpf_jit_suite::suite!(support::Native::default());
