//! The tests of every backend, for this one.

use crate::support;

bpf_jit_suite::suite!(support::Native::default());

/// Reports on hosts of another architecture that the code is only decoded.
#[test]
fn the_code_runs() {
    if bpf_jit_suite::Target::host(&support::Native::default()).is_none() {
        support::skipped("the execution of arm64 code", "the host is not arm64");
    }
}
