//! Hybrid verification: only offsets and termination may be left to run time, and only where they are not proven.

use crate::common;

use bpf_analysis::{AccessCheck, CheckRegion, Facts};
use bpf_isa::InsnIdx;
use bpf_verifier::{Reason, Verifier};

fn hybrid(text: &str) -> Result<Facts, Reason> {
    common::with_env(text, |env| {
        let mut env = *env;
        env.hybrid = true;
        env.limits.steps = 100_000;
        Verifier::new().verify(common::program(text), &env).map(|v| v.into_parts().1).map_err(|e| e.reason)
    })
}

fn check(insn: u32, region: CheckRegion) -> AccessCheck {
    AccessCheck { insn: InsnIdx(insn), region }
}

#[test]
fn what_is_proven_needs_no_check() {
    let facts =
        hybrid("r2 = map[fd:0][0]+0\nr0 = *(u64 *)(r2 + 8)\nr3 = 0\na: r3 += 1\nif r3 < 9 goto a\nexit").expect("safe");
    assert!(facts.checks.is_empty() && !facts.needs_budget, "{facts:?}");
}

#[test]
fn unproven_offsets_into_packet_and_globals_are_checked() {
    let facts = hybrid(
        "r6 = *(u32 *)(r1 + 12)
         r2 = *(u32 *)(r1 + 0)
         r0 = *(u8 *)(r2 + 9)
         r2 += r6
         *(u16 *)(r2 + 4) = r6
         r3 = map[fd:0][0]+4
         r0 = *(u32 *)(r3 + 0)
         r6 <<= 7
         r3 += r6
         r0 = *(u32 *)(r3 + 0)
         exit",
    )
    .expect("checked");
    let (packet, global) = (CheckRegion::Packet(0), CheckRegion::MapValue { map: 0, size: 16 });
    assert_eq!(facts.checks, [check(2, packet), check(4, packet), check(10, global)]);
    assert!(!facts.needs_budget);
}

#[test]
fn unproven_termination_is_left_to_a_budget() {
    for text in [
        "a: goto a",
        "a: call 7\nif r0 != 5 goto a\nr0 = 0\nexit",
        "r6 = 0\na: r6 += 1\ncall 7\nif r6 != r0 goto a\nr0 = 0\nexit",
        "r6 = 0\na: r6 += 1\nif r6 != 0 goto a\nr0 = 0\nexit",
    ] {
        let facts = hybrid(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert!(facts.needs_budget && facts.checks.is_empty(), "{text}: {facts:?}");
    }
}

/// A loop over a buffer of any length, by index or by a moving pointer, is proven; a loop whose next offset is loaded
/// from the buffer needs a check and a budget.
#[test]
fn loops_over_a_buffer_settle() {
    for text in [
        ";raw
         r0 = 0
         a: if r2 < 4 goto out
         r3 = *(u32 *)(r1 + 0)
         r0 += r3
         r1 += 4
         r2 -= 4
         goto a
         out: exit",
        ";raw
         r0 = 0
         r3 = 0
         a: if r3 >= r2 goto out
         r4 = r1
         r4 += r3
         r4 = *(u8 *)(r4 + 0)
         r0 += r4
         r3 += 1
         goto a
         out: exit",
    ] {
        let facts = hybrid(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert!(!facts.needs_budget && facts.checks.is_empty(), "{text}: {facts:?}");
    }
    // Each offset is loaded from the buffer at the offset before.
    let text = ";raw
        r0 = 0
        r3 = 0
        a: r4 = r1
        r4 += r3
        r3 = *(u32 *)(r4 + 0)
        if r3 != 0 goto a
        exit";
    let facts = hybrid(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    assert!(facts.needs_budget && facts.checks.len() == 1, "{text}: {facts:?}");
}

/// Types, the stack, elements found at run time, locks and leaks are never left to a check.
#[test]
fn everything_else_is_still_refused() {
    for text in [
        // A number as an address.
        "r0 = *(u32 *)(r1 + 12)\nr0 = *(u8 *)(r0 + 0)\nexit",
        // The stack.
        "r2 = *(u32 *)(r1 + 12)\nr3 = r10\nr3 += r2\nr0 = *(u8 *)(r3 + 0)\nexit",
        "r0 = *(u8 *)(r10 - 600)\nexit",
        // An element of a hash.
        "*(u64 *)(r10 - 8) = 0\nr1 = map[fd:1]\nr2 = r10\nr2 += -8\ncall 1\nif r0 == 0 goto +1\nr0 = *(u64 *)(r0 + 64)\nexit",
        // A helper's memory.
        "r1 = map[fd:0][0]+8\nr2 = 16\ncall 16\nr0 = 0\nexit",
        // A read-only global.
        "r6 = *(u32 *)(r1 + 12)\nr3 = map[fd:5][0]+0\nr3 += r6\n*(u8 *)(r3 + 0) = 0\nr0 = 0\nexit",
        // An address stored into the packet.
        "r2 = *(u32 *)(r1 + 0)\n*(u64 *)(r2 + 0) = r10\nr0 = 0\nexit",
        // One instruction, two regions, one of them unproven.
        "r2 = *(u32 *)(r1 + 0)
         r3 = *(u32 *)(r1 + 12)
         if r3 == 0 goto +2
         r2 = map[fd:0][0]+0
         r0 = *(u8 *)(r2 + 0)
         exit",
    ] {
        assert!(hybrid(text).is_err(), "{text}");
    }
}

/// A comparison of a pointer far outside of its region would reveal the region's address: such a pointer is checked at
/// run time, or the program is refused.
#[test]
fn comparisons_of_unknown_addresses() {
    let text = "r6 = *(u32 *)(r1 + 12)
        r6 <<= 20
        r2 = *(u32 *)(r1 + 0)
        r3 = *(u32 *)(r1 + 4)
        r2 += r6
        if r2 > r3 goto +1
        r0 = *(u8 *)(r2 + 0)
        r0 = 0
        exit";
    let facts = hybrid(text).expect("checked");
    assert_eq!(facts.checks, [check(5, CheckRegion::Packet(0)), check(6, CheckRegion::Packet(0))]);
    // The sum may be null where the base is not.
    for text in [
        "r6 = *(u32 *)(r1 + 12)\nr6 <<= 20\nr2 = map[fd:0][0]+0\nr2 += r6\nif r2 == 0 goto +0\nr0 = 0\nexit",
        "r6 = *(u32 *)(r1 + 12)\nr6 <<= 20\nr2 = *(u32 *)(r1 + 0)\nr2 += r6\nif r2 != 0 goto +0\nr0 = 0\nexit",
        "r2 = map[fd:0][0]+0\nr2 += -65537\nif r2 == 0 goto +0\nr0 = 0\nexit",
    ] {
        assert!(matches!(hybrid(text), Err(Reason::PointerCompare(..))), "{text}");
    }
    // An offset that is proven to be within 2 GiB may lead below the region's first possible address, 64 KiB.
    let before = |least: &str, compared: &str| {
        let text = format!(
            "r6 = *(u32 *)(r1 + 12)
            r2 = *(u32 *)(r1 + 0)
            r3 = *(u32 *)(r1 + 4)
            r0 = *(u8 *)(r2 + 0)
            r6 &= {least}
            r4 = r2
            r4 -= r6
            if {compared} goto +0
            r0 = 0
            exit"
        );
        hybrid(&text).expect("checked").checks
    };
    for compared in ["r4 > r3", "r3 s<= r4", "r2 > r4", "r4 s< r2"] {
        let region = CheckRegion::Packet(0);
        assert_eq!(before("0x1ffff", compared), [check(3, region), check(7, region)], "{compared}");
        assert_eq!(before("0xffff", compared), [check(3, region)], "{compared}");
    }
    // One comparison, of addresses on one path and of numbers on another.
    let mixed = "r6 = *(u32 *)(r1 + 12)
        r7 = r6
        r6 <<= 20
        r2 = *(u32 *)(r1 + 0)
        r3 = r2
        r2 += r6
        if r7 > 9 goto +2
        r2 = 1
        r3 = 2
        if r2 > r3 goto +0
        r0 = 0
        exit";
    assert!(matches!(hybrid(mixed), Err(Reason::MixedContext { .. })));
}

/// An entry of a table is loaded from no region, so a check against one would stop the path that has the table.
#[test]
fn a_load_that_needs_a_check_loads_no_entry_of_a_table() {
    let text = "r2 = *(u32 *)(r1 + 0)
        r3 = *(u32 *)(r1 + 12)
        r1 = map[fd:19][0]+0
        if r3 == 0 goto load
        r1 = r2
        load: r0 = *(u64 *)(r1 + 0)
        if r3 != 0 goto b
        gotox r0
        a: r0 = 1
        exit
        b: r0 = 2
        exit
        ;targets a b";
    assert!(matches!(hybrid(text), Err(Reason::MixedContext { .. })));
    assert!(hybrid(&text.replace("r1 = r2", "r1 += 8")).is_ok());
}

/// No run-time check knows where the packet was before it moved, and ordering a pointer far from it would reveal its
/// former address.
#[test]
fn stale_pointers_far_from_their_region_are_not_ordered() {
    let text = "r6 = r1
        r7 = *(u32 *)(r6 + 0)
        call 7
        r8 = r0
        r8 <<= 32
        r9 = r7
        r9 += r8
        r1 = r6
        r2 = 0
        call 44
        if r9 > r7 goto +0
        r0 = 0
        exit";
    for text in [text, &text.replace("r9 > r7", "r7 s>= r9"), &text.replace("r9 > r7", "r9 == 0")] {
        assert!(matches!(hybrid(text), Err(Reason::Uninit(..))), "{text}");
    }
    // Distances do not depend on the address, and the two pointers are equal exactly if the number is 0.
    assert!(hybrid(&text.replace("r9 > r7", "r9 == r7")).is_ok());
    assert!(hybrid(&text.replace("if r9 > r7", "r9 -= r7\nif r9 > 5")).is_ok());
    assert!(hybrid(&text.replace("r8 <<= 32", "r8 &= 0xffff")).is_ok());
}

/// Without the option nothing is left to run time.
#[test]
fn the_default_is_proof() {
    let text = "r2 = *(u32 *)(r1 + 0)\nr0 = *(u8 *)(r2 + 9)\nexit";
    assert!(hybrid(text).is_ok_and(|f| f.checks.len() == 1));
    assert!(matches!(common::verify(text).expect_err("not proven").reason, Reason::PacketBounds { .. }));
}
