//! Tail calls on every engine: one text of instructions, one result.
//!
//! The kinds follow the kernel's own tests: chains, loads and stores across calls, the limit, the count through
//! subprograms and helpers, calls that fall through, large stacks, and callers whose registers must be preserved.
//! Dynamic indices make indirect sites, constant ones direct sites where the engine has them.

use crate::common::{Array, Fixture, fixtures};
use bpf_runtime::error::ProgArrayError;

/// Counts itself in the first word of the context, then tail-calls slot `slot` of the array.
fn counting(slot: u32) -> String {
    format!(
        "r6 = r1\nr2 = *(u32 *)(r1 + 0)\nr2 += 1\n*(u32 *)(r1 + 0) = r2\n{}r0 = *(u32 *)(r6 + 0)\nexit",
        call("r6", "map[fd:0]", slot)
    )
}

/// A tail call with a constant slot.
fn call(ctx: &str, array: &str, slot: u32) -> String {
    format!("r1 = {ctx}\nr2 = {array}\nr3 = {slot}\ncall 12\n")
}

/// A tail call whose slot the analysis cannot know: it comes from the context.
fn call_dynamic(ctx: &str, at: u32) -> String {
    format!("r1 = {ctx}\nr2 = map[fd:0]\nr3 = *(u64 *)({ctx} + {at})\ncall 12\n")
}

/// Runs `text` on a context of 32 bytes whose words are `words`; returns r0 and the words.
fn run(f: &Fixture, array: &Array, text: &str, words: [u64; 4]) -> (u64, [u64; 4]) {
    let program = f.load("main", text, &[array]);
    f.run(&program, words)
}

#[test]
fn a_leaf_and_chains_of_two_to_four() {
    for f in &fixtures() {
        for length in 1..=4u32 {
            let array = f.array(8);
            for i in 0..length {
                // Each adds its number to a sum in the context.
                let add = format!("r2 = *(u64 *)(r1 + 8)\nr2 += {}\n*(u64 *)(r1 + 8) = r2\n", i + 1);
                let next = if i + 1 < length { call("r6", "map[fd:0]", i + 1) } else { String::new() };
                let text = format!("r6 = r1\n{add}{next}r0 = *(u64 *)(r6 + 8)\nexit");
                array.set(i, &f.load(&format!("link{i}"), &text, &[&array])).unwrap();
            }
            let sum = u64::from(length * (length + 1) / 2);
            let main = format!("r6 = r1\n{}r0 = 99\nexit", call("r6", "map[fd:0]", 0));
            assert_eq!(run(f, &array, &main, [0; 4]), (sum, [0, sum, 0, 0]), "{} {length}", f.name);
            let main = format!("r6 = r1\n{}r0 = 99\nexit", call_dynamic("r6", 16));
            assert_eq!(run(f, &array, &main, [0; 4]).0, sum, "{} {length}, dynamic", f.name);
        }
    }
}

#[test]
fn exactly_33_are_taken() {
    for f in &fixtures() {
        let array = f.array(1);
        let program = f.load("again", &counting(0), &[&array]);
        array.set(0, &program).unwrap();
        for _ in 0..2 {
            assert_eq!(f.run(&program, [0; 4]).0, 34, "{}: the first run and 33 more", f.name);
        }
        array.clear(0).unwrap();
        assert_eq!(f.run(&program, [0; 4]).0, 1, "{}", f.name);
    }
}

#[test]
fn failed_ones_do_not_count() {
    for f in &fixtures() {
        let array = f.array(2);
        // 40 that fail: slot 1 is empty. Then slot 0, which counts itself to 34 all the same.
        let failing = call("r6", "map[fd:0]", 1).repeat(40);
        let again = f.load("again", &counting(0), &[&array]);
        array.set(0, &again).unwrap();
        let main = format!("r6 = r1\n{failing}{}r0 = 99\nexit", call("r6", "map[fd:0]", 0));
        assert_eq!(run(f, &array, &main, [0; 4]).0, 33, "{}: 33 taken, each counts itself", f.name);
    }
}

#[test]
fn an_empty_slot_and_an_index_out_of_range_fall_through() {
    for f in &fixtures() {
        let array = f.array(4);
        array.set(0, &f.load("seven", "r0 = 7\nexit", &[])).unwrap();
        for slot in [1, 3, 4, 5, 0x7fff_ffff, 0xffff_ffff] {
            let main = format!("r6 = r1\n{}r0 = 99\nexit", call_dynamic("r6", 0));
            assert_eq!(run(f, &array, &main, [slot, 0, 0, 0]).0, 99, "{}: {slot:#x}", f.name);
            let main = format!("r6 = r1\nr1 = r6\nr2 = map[fd:0]\nr3 = {slot} ll\ncall 12\nr0 = 99\nexit");
            assert_eq!(run(f, &array, &main, [0; 4]).0, 99, "{}: constant {slot:#x}", f.name);
        }
    }
}

#[test]
fn only_the_low_half_of_the_index_counts() {
    for f in &fixtures() {
        let array = f.array(4);
        array.set(2, &f.load("seven", "r0 = 7\nexit", &[])).unwrap();
        let dirty = 0xdead_beef_0000_0002u64;
        let main = format!("r6 = r1\n{}r0 = 99\nexit", call_dynamic("r6", 0));
        assert_eq!(run(f, &array, &main, [dirty, 0, 0, 0]).0, 7, "{}", f.name);
        let main = format!("r6 = r1\nr1 = r6\nr2 = map[fd:0]\nr3 = {dirty:#x} ll\ncall 12\nr0 = 99\nexit");
        assert_eq!(run(f, &array, &main, [0; 4]).0, 7, "{}, constant", f.name);
    }
}

#[test]
fn what_falls_through_keeps_its_registers() {
    for f in &fixtures() {
        let array = f.array(2);
        for tail_call in [call("r6", "map[fd:0]", 1), call_dynamic("r6", 8)] {
            let main = format!(
                "r6 = r1\nr7 = 7\nr8 = 80\nr9 = 900\n*(u64 *)(r10 - 8) = 6000\n{tail_call}\
                 r0 = r7\nr0 += r8\nr0 += r9\nr1 = *(u64 *)(r10 - 8)\nr0 += r1\nr1 = *(u64 *)(r6 + 0)\nr0 += r1\nexit"
            );
            assert_eq!(run(f, &array, &main, [50_000, 1, 0, 0]).0, 56_987, "{}", f.name);
        }
    }
}

/// A function that fills r6 to r9, or `used` of them, and `stack` bytes of its stack with `fill`.
fn occupant(used: u32, stack: u32, fill: u32) -> String {
    let regs: String = (6..6 + used).map(|r| format!("r{r} = {fill}\n")).collect();
    let stack: String = (1..=stack).map(|at| format!("*(u8 *)(r10 - {at}) = {}\n", fill & 0xff)).collect();
    regs + &stack
}

#[test]
fn a_subprograms_tail_call_returns_to_its_caller_with_everything_in_place() {
    for f in &fixtures() {
        // All pairs of saved registers of site and target, and stack depths that are no multiples of 8 or 16.
        for (site, target) in (0..16).map(|i| (i / 4, i % 4)) {
            for (site_stack, target_stack) in [(0, 0), (1, 256), (256, 3), (8, 17), (52, 100)] {
                let array = f.array(1);
                let body = occupant(target, target_stack, 0x77);
                array.set(0, &f.load("target", &format!("{body}r0 = 5\nexit"), &[])).unwrap();
                // The caller has all four saved registers and 256 bytes of stack to lose.
                let main = format!(
                    "*(u64 *)(r10 - 8) = 1000\n*(u64 *)(r10 - 256) = 10000\nr6 = r1\nr7 = 20\nr8 = 300\nr9 = 0\n\
                     call sub\nr0 += r7\nr0 += r8\nr0 += r9\nr1 = *(u64 *)(r10 - 8)\nr0 += r1\n\
                     r1 = *(u64 *)(r10 - 256)\nr0 += r1\nr1 = *(u64 *)(r6 + 0)\nr0 += r1\nexit\n\
                     sub:\n*(u64 *)(r10 - 264) = r1\n{}r1 = *(u64 *)(r10 - 264)\nr2 = map[fd:0]\nr3 = 0\ncall 12\n\
                     r0 = 99\nexit",
                    occupant(site, site_stack, 0x55),
                );
                let (r0, _) = run(f, &array, &main, [600_000, 0, 0, 0]);
                assert_eq!(r0, 611_325, "{}: {site}/{site_stack} to {target}/{target_stack}", f.name);
            }
        }
    }
}

#[test]
fn the_hierarchy_ends_after_33_in_all() {
    for f in &fixtures() {
        // Two subprograms that both tail-call back: 2^33 runs if each frame had a counter of its own.
        let array = f.array(1);
        let sub = |name: &str| format!("{name}:\nr6 = r1\n{}r0 = 1\nexit\n", call("r6", "map[fd:0]", 0));
        let main = format!(
            "r6 = r1\nr2 = *(u32 *)(r1 + 0)\nr2 += 1\n*(u32 *)(r1 + 0) = r2\ncall a\nr1 = r6\ncall b\n\
             r0 = *(u32 *)(r6 + 0)\nexit\n{}{}",
            sub("a"),
            sub("b")
        );
        let program = f.load("main", &main, &[&array]);
        array.set(0, &program).unwrap();
        assert_eq!(f.run(&program, [0; 4]), (34, [34, 0, 0, 0]), "{}", f.name);
    }
}

#[test]
fn the_count_survives_helpers_and_nested_calls() {
    for f in &fixtures() {
        let array = f.array(1);
        // r0 of a helper, a call two deep, and only then the tail call.
        let main = format!(
            "r6 = r1\nr2 = *(u32 *)(r1 + 0)\nr2 += 1\n*(u32 *)(r1 + 0) = r2\nr1 = 1\nr2 = 2\nr3 = 3\nr4 = 4\nr5 = 5\ncall 1001\n\
             r1 = r6\ncall outer\nr1 = r6\ncall 1001\nr0 = *(u32 *)(r6 + 0)\nexit\n\
             outer:\nr6 = r1\ncall 1001\nr1 = r6\ncall inner\nexit\n\
             inner:\nr6 = r1\nr1 = 9\ncall 1001\n{}r0 = 0\nexit",
            call("r6", "map[fd:0]", 0)
        );
        let program = f.load("main", &main, &[&array]);
        array.set(0, &program).unwrap();
        assert_eq!(f.run(&program, [0; 4]).0, 34, "{}", f.name);
    }
}

#[test]
fn frames_of_256_bytes_of_stack_all_the_way() {
    for f in &fixtures() {
        let array = f.array(1);
        let main = format!(
            "r6 = r1\n{}r2 = *(u32 *)(r6 + 0)\nr2 += 1\n*(u32 *)(r6 + 0) = r2\nr1 = r6\ncall sub\n\
             r2 = *(u8 *)(r10 - 200)\nr1 = *(u64 *)(r6 + 8)\nr1 += r2\n*(u64 *)(r6 + 8) = r1\nr0 = *(u64 *)(r6 + 8)\nexit\n\
             sub:\nr6 = r1\n{}{}r0 = 0\nexit",
            occupant(0, 256, 3).replace("r6", "r7"),
            occupant(0, 256, 9),
            call("r6", "map[fd:0]", 0)
        );
        let program = f.load("main", &main, &[&array]);
        array.set(0, &program).unwrap();
        // 34 frames return one after the other, each finds its own 3.
        assert_eq!(f.run(&program, [0; 4]), (34 * 3, [34, 34 * 3, 0, 0]), "{}", f.name);
    }
}

#[test]
fn a_program_in_its_own_array_is_freed_with_its_last_user() {
    for f in &fixtures() {
        let before = f.engine.code_stats().programs;
        let array = f.array(1);
        let program = f.load("again", &counting(0), &[&array]);
        array.set(0, &program).unwrap();
        assert_eq!(f.run(&program, [0; 4]).0, 34);
        drop(program);
        // The array's slot still holds it.
        assert_eq!(f.run(&array.get(0).unwrap(), [0; 4]).0, 34);
        drop(array);
        f.engine.domain().drain().unwrap();
        f.engine.domain().drain().unwrap();
        assert_eq!(f.engine.code_stats().programs, before, "{}", f.name);
    }
}

#[test]
fn slots_are_set_cleared_and_listed() {
    for f in &fixtures() {
        let array = f.array(3);
        let (one, two) = (f.load("one", "r0 = 1\nexit", &[]), f.load("two", "r0 = 2\nexit", &[]));
        assert_eq!(array.entries(), 3);
        assert_eq!(array.clear(1), Err(ProgArrayError::Empty { index: 1 }));
        assert_eq!(array.set(3, &one), Err(ProgArrayError::OutOfRange { index: 3, entries: 3 }));
        assert_eq!(array.clear(3), Err(ProgArrayError::OutOfRange { index: 3, entries: 3 }));
        array.set(0, &one).unwrap();
        array.set(2, &one).unwrap();
        array.set(2, &two).unwrap();
        let listed: Vec<_> = array.iter().map(|(i, p)| (i, p.name().to_owned())).collect();
        assert_eq!(listed, [(0, "one".to_owned()), (2, "two".to_owned())]);
        assert_eq!(f.run(&array.get(2).unwrap(), [0; 4]).0, 2);
        array.clear(2).unwrap();
        assert!(array.get(2).is_none());
        assert!(array.get(3).is_none());
    }
}

#[test]
fn only_programs_of_a_kind_meet_in_an_array() {
    let all = fixtures();
    for f in all {
        let array = f.array(1);
        let _jumper = f.load("jumper", &counting(0), &[&array]);
        let foreign = crate::common::fixture(f.name);
        let refused = array.set(0, &foreign.load("other", "r0 = 0\nexit", &[]));
        assert!(matches!(refused, Err(ProgArrayError::OtherDomain(_))), "{}", f.name);
        if f.is_jit() {
            let insns = bpf_runtime::isa::assemble("r0 = 0\nexit").unwrap();
            let interpreted =
                f.linker.loader::<crate::common::Words>().interpreted(true).insns("interpreted", insns).unwrap();
            assert_eq!(array.set(0, &interpreted), Err(ProgArrayError::Mode), "{}", f.name);
        }
    }
}
