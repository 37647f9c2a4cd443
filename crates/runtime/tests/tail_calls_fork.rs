//! A forked child runs no tail calls and changes no site, because the code is its parent's. Alone in its process.
#![cfg(unix)]

mod common;

use bpf_runtime::error::ProgArrayError;
use bpf_testkit::forked::{Ended, forked};
use common::fixture;

#[test]
fn the_child_neither_runs_nor_links() {
    let f = fixture(if bpf_runtime::code::Arch::HOST.is_some() { "jit" } else { "interpreter" });
    let array = f.array(1);
    let program = f.load("main", "r2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 1\nexit", &[&array]);
    let (two, three) = (f.load("two", "r0 = 2\nexit", &[]), f.load("three", "r0 = 3\nexit", &[]));
    if array.tracked_sites(0) == 0 {
        bpf_testkit::skipped("forked updates", &"no direct sites on this host");
        return;
    }
    array.set(0, &two).unwrap();
    assert_eq!(f.run(&program, [0; 4]).0, 2);
    let child = || {
        // Runs are refused (tests/fork.rs).
        assert!(matches!(array.set(0, &three), Err(ProgArrayError::Text(_))));
        assert!(matches!(array.clear(0), Err(ProgArrayError::Text(_))));
        assert_eq!(array.get(0).unwrap().name(), "two");
    };
    // SAFETY: no other thread of this process is doing anything.
    assert_eq!(unsafe { forked(60, child) }, Ended::Well);
    assert_eq!(f.run(&program, [0; 4]).0, 2);
    array.set(0, &three).unwrap();
    assert_eq!(f.run(&program, [0; 4]).0, 3);
}
