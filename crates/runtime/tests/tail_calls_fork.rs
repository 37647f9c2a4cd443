//! A forked child runs no tail calls and changes no site, because the code is its parent's. Alone in its process.
#![cfg(unix)]

mod common;

use bpf_runtime::error::ProgArrayError;
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
    // SAFETY: no other thread of this process is doing anything; the child leaves through `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // Runs are refused (tests/fork.rs).
            assert!(matches!(array.set(0, &three), Err(ProgArrayError::Text(_))));
            assert!(matches!(array.clear(0), Err(ProgArrayError::Text(_))));
            assert_eq!(array.get(0).unwrap().name(), "two");
        }));
        // SAFETY: ends the child without running the parent's destructors twice.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    let mut status = 0;
    // SAFETY: waits for the child and writes its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child's assertions");
    assert_eq!(f.run(&program, [0; 4]).0, 2);
    array.set(0, &three).unwrap();
    assert_eq!(f.run(&program, [0; 4]).0, 3);
}
