//! Tail calls where `membarrier` is denied by a seccomp filter: from the start, or once sites are linked.
//!
//! The filter is per thread, so each test installs it on a thread of its own.
#![cfg(target_os = "linux")]

mod common;

use bpf_runtime::error::ProgArrayError;
use common::fixture;

/// Makes `membarrier` fail with EPERM on the calling thread; false where filters are not to be had (emulators).
fn deny_membarrier() -> bool {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let jump = statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_membarrier as u32);
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0), // seccomp_data.nr
        libc::sock_filter { jf: 1, ..jump },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: takes integers.
    let quiet = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: `program` describes `filter`, and both outlive the call.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    // SAFETY: takes integers.
    let query = unsafe { libc::syscall(libc::SYS_membarrier, 0, 0, 0) };
    let denied = quiet == 0 && set == 0 && query == -1;
    if !denied {
        bpf_testkit::skipped("tail calls without membarrier", &"this host has no seccomp filters");
    }
    denied
}

fn on_a_thread(f: impl FnOnce() + Send) {
    std::thread::scope(|scope| scope.spawn(f).join().unwrap());
}

const MAIN: &str = "r2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 1\nexit";

#[test]
fn denied_from_the_start_all_sites_are_indirect() {
    on_a_thread(|| {
        if bpf_runtime::code::Arch::HOST.is_none() || !deny_membarrier() {
            return;
        }
        let f = fixture("jit");
        let array = f.array(1);
        let program = f.load("main", MAIN, &[&array]);
        assert_eq!(array.tracked_sites(0), 0);
        for _ in 0..3 {
            assert_eq!(f.run(&program, [0; 4]).0, 1);
            array.set(0, &f.load("two", "r0 = 2\nexit", &[])).unwrap();
            assert_eq!(f.run(&program, [0; 4]).0, 2);
            array.clear(0).unwrap();
        }
    });
}

#[test]
fn an_update_whose_barrier_fails_changes_nothing_that_runs_see() {
    let f = fixture(if bpf_runtime::code::Arch::HOST.is_some() { "jit" } else { "interpreter" });
    let array = f.array(2);
    let program = f.load("main", MAIN, &[&array]);
    if array.tracked_sites(0) == 0 {
        bpf_testkit::skipped("failing barriers", &"no direct sites on this host");
        return;
    }
    let (two, three) = (f.load("two", "r0 = 2\nexit", &[]), f.load("three", "r0 = 3\nexit", &[]));
    let failed = |result: Result<(), ProgArrayError>| matches!(result, Err(ProgArrayError::Text(_)));
    let run = || f.run(&program, [0; 4]).0;
    // The site was not linked, and stays unlinked.
    let mut denied = true;
    on_a_thread(|| {
        denied = deny_membarrier();
        assert!(!denied || failed(array.set(0, &two)));
    });
    if !denied {
        return;
    }
    assert!(array.get(0).is_none());
    assert_eq!(run(), 1);
    // The thread without the filter makes good what was left half done.
    array.set(0, &two).unwrap();
    assert_eq!(run(), 2);
    // Linked: it goes on to jump where it did, together with a slot that has no site.
    on_a_thread(|| {
        assert!(deny_membarrier());
        assert!(failed(array.set(0, &three)));
        assert!(failed(array.update([(0, Some(&three)), (1, Some(&three))])));
    });
    assert_eq!(array.get(0).unwrap().name(), "two");
    assert!(array.get(1).is_none());
    assert_eq!(run(), 2);
    // A program that is loaded into a linked slot needs a barrier too; one that fails leaves no site behind.
    on_a_thread(|| {
        assert!(deny_membarrier());
        let insns = bpf_runtime::isa::assemble(MAIN).unwrap();
        // SAFETY: it stays inside its context and stack, and ends.
        let loader = unsafe { f.linker.loader().unverified(true) };
        assert!(loader.prog_arrays(&[&array]).insns("late", insns).is_err());
    });
    assert_eq!(array.tracked_sites(0), 1);
    array.set(0, &three).unwrap();
    assert_eq!(run(), 3);
    array.clear(0).unwrap();
    assert_eq!(run(), 1);
}
