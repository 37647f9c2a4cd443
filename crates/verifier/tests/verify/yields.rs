//! Where a run may yield: at the heads of loops at which every path may sleep.

use crate::common;
use bpf_isa::InsnIdx;

/// The heads at which the program may yield.
fn heads(text: &str) -> Vec<u32> {
    let verified = common::verify(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    verified.facts().yields.iter().map(|&InsnIdx(head)| head).collect()
}

const NONE: [u32; 0] = [];
const LOOP: &str = "r6 = 0\nagain:\nr6 += 1\nif r6 != 9 goto again\n";

/// A loop with a lock; the second instruction of the loop is at slot 13.
fn locked() -> String {
    format!(
        ";sleepable ;yields\n*(u32 *)(r10 - 4) = 0\nr1 = map[fd:2]\nr2 = r10\nr2 += -4\ncall 1\nif r0 == 0 goto out\n\
         r7 = r0\nr1 = r0\nr1 += 4\ncall 93\n{LOOP}r1 = r7\nr1 += 4\ncall 94\nout:\nr0 = 0\nexit"
    )
}

/// A loop that one path, the second that is walked, enters in a section.
fn on_one_path() -> String {
    format!(
        ";sleepable ;yields\ncall 7\nr8 = 0\nif r0 > 5 goto enter\non:\n{LOOP}if r8 == 0 goto out\n\
         call bpf_rcu_read_unlock\nout:\nr0 = 0\nexit\nenter:\nr8 = 1\ncall bpf_rcu_read_lock\ngoto on"
    )
}

/// A loop in a function that is verified on its own.
fn alone() -> String {
    format!(";sleepable ;yields\n;global scalar\nr1 = 1\ncall global\nr0 = 0\nexit\nglobal:\n{LOOP}r0 = 0\nexit")
}

#[test]
fn a_run_yields_where_every_path_may_sleep() {
    assert_eq!(heads(&format!(";sleepable ;yields\n{LOOP}r0 = 0\nexit")), [1]);
    // Nobody has asked for it, or the program may not sleep at all.
    assert_eq!(heads(&format!(";sleepable\n{LOOP}r0 = 0\nexit")), NONE);
    assert_eq!(heads(&format!(";yields\n{LOOP}r0 = 0\nexit")), NONE);
    // Two loops, of which one is in a section.
    let two = format!(
        ";sleepable ;yields\ncall bpf_rcu_read_lock\n{LOOP}call bpf_rcu_read_unlock\nr7 = 0\nonce:\nr7 += 1\n\
         if r7 != 9 goto once\nr0 = 0\nexit"
    );
    assert_eq!(heads(&two), [6]);
    // An iterator over numbers is nothing that others could free.
    let iterator = ";sleepable ;yields\nr1 = r10\nr1 += -16\nr2 = 0\nr3 = 4\ncall bpf_iter_num_new\nagain:\nr1 = r10\n\
                    r1 += -16\ncall bpf_iter_num_next\nif r0 == 0 goto out\ngoto again\nout:\nr1 = r10\nr1 += -16\n\
                    call bpf_iter_num_destroy\nr0 = 0\nexit";
    assert_eq!(heads(iterator), [5]);
    // A record that is reserved, a lock, a section on one of two paths, a function that others call.
    let record = format!(
        ";sleepable ;yields\nr1 = map[fd:3]\nr2 = 8\nr3 = 0\ncall 131\nif r0 == 0 goto out\nr7 = r0\n\
         *(u64 *)(r7 + 0) = 0\n{LOOP}r1 = r7\nr2 = 0\ncall 132\nout:\nr0 = 0\nexit"
    );
    for text in [record, locked(), on_one_path(), alone()] {
        assert_eq!(heads(&text), NONE, "{text}");
    }
}

#[cfg(feature = "faults")]
#[test]
fn faults_in_yielding_let_a_run_yield() {
    use bpf_verifier::faults::{Fault, plant};
    let programs =
        [(Fault::YieldsLocked, locked()), (Fault::YieldsOnOnePath, on_one_path()), (Fault::YieldsAlone, alone())];
    assert_eq!(programs.each_ref().map(|(fault, _)| *fault), Fault::OF_YIELDING);
    for (fault, text) in programs {
        plant(Some(fault));
        // The lock's own pointer ends where the run yields, so that program is refused.
        let found = common::verify(&text).map_or(1, |verified| verified.facts().yields.len());
        plant(None);
        assert!(found > 0, "{fault:?} changes nothing");
    }
}
