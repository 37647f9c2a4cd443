//! Each line of the instruction set's semantics, as a small program and the r0 it must return.
//!
//! r1 points to 16 bytes, 0x00 to 0x0f, at an address that is a multiple of 16; r2 is 16.

use bpf_interp::{Machine, Memory, NoHost, Options, Stop};
use bpf_isa::{Program, assemble};

#[repr(align(16))]
struct Data([u8; 16]);

/// Runs the text and returns r0 and the memory afterwards.
fn run_on(text: &str) -> (Result<u64, Stop>, [u8; 16]) {
    let insns = assemble(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let program = Program::new(insns).unwrap_or_else(|error| panic!("{text}: {error}"));
    let mut data = Data(std::array::from_fn(|i| i as u8));
    let mut memory = Memory::new();
    let r1 = memory.add_writable(&mut data.0);
    memory.set_packet(r1, 16);
    let result = Machine::new(memory, Options::default()).run(&mut NoHost::new(), &&program, [r1, 16]);
    (result, data.0)
}

fn check(cases: &[(&str, u64)]) {
    for &(text, expected) in cases {
        match run_on(&format!("{text}\nexit")).0 {
            Ok(r0) => assert_eq!(r0, expected, "{text}: got {r0:#x}, expected {expected:#x}"),
            Err(stop) => panic!("{text}: {stop}"),
        }
    }
}

const HIGH: u64 = 0xffff_ffff_0000_0000;

#[test]
fn arithmetic() {
    check(&[
        ("r0 = -1\nr0 += 2", 1),
        ("r0 = -1\nw0 += 2", 1),
        ("r0 = -1 ll\nw0 += 0", 0xffff_ffff),
        ("r0 = 5\nr0 -= 7", -2i64 as u64),
        ("r0 = 5\nw0 -= 7", -2i32 as u32 as u64),
        ("r0 = 0x100000001 ll\nr0 *= 3", 0x3_0000_0003),
        ("r0 = 0x100000001 ll\nw0 *= 3", 3),
        ("r0 = 0x8000000000000000 ll\nr0 *= -1", 1 << 63),
        // An immediate is sign-extended in 64-bit operations.
        ("r0 = 0\nr0 |= -1", u64::MAX),
        ("r0 = -1\nr0 &= -2", -2i64 as u64),
        ("r0 = 0\nr0 ^= -1", u64::MAX),
        ("r0 = 0\nw0 ^= -1", 0xffff_ffff),
        ("r0 = 0xf0f0f0f0f0 ll\nr3 = 0xff00ff00ff ll\nr0 &= r3", 0xf0_00f0_00f0),
        ("r0 = 0xf0 ll\nr3 = 0xff0000000f ll\nw0 |= w3", 0xff),
        ("r0 = 7\nr0 = -r0", -7i64 as u64),
        ("r0 = 7\nw0 = -w0", -7i32 as u32 as u64),
        ("r0 = 0x8000000000000000 ll\nr0 = -r0", 1 << 63),
    ]);
}

#[test]
fn division() {
    check(&[
        ("r0 = 7\nr0 /= 2", 3),
        ("r0 = 7\nr0 /= 0", 0),
        ("r0 = 7\nr3 = 0\nr0 /= r3", 0),
        ("r0 = 7\nr3 = 0\nw0 /= w3", 0),
        // The upper half of a 32-bit divisor is ignored.
        ("r0 = 7\nr3 = 0x100000000 ll\nw0 /= w3", 0),
        // 64-bit by an immediate: sign-extended, then unsigned.
        ("r0 = -1\nr0 /= -2", 1),
        ("r0 = 5\nr0 /= -1", 0),
        ("r0 = -1\nw0 /= 2", 0x7fff_ffff),
        ("r0 = 7\nr0 %= 4", 3),
        ("r0 = -1\nr0 %= 0", u64::MAX),
        ("r0 = -1\nr3 = 0\nr0 %= r3", u64::MAX),
        // 32-bit remainder by zero: the low half, zero-extended.
        ("r0 = -1\nr3 = 0\nw0 %= w3", 0xffff_ffff),
        ("r0 = -1\nw0 %= 0", 0xffff_ffff),
        ("r0 = 10\nr0 %= -1", 10),
        // dst and src are one register.
        ("r0 = 10\nr0 /= r0", 1),
        ("r0 = 10\nr0 %= r0", 0),
    ]);
}

#[test]
fn signed_division() {
    check(&[
        ("r0 = -13\nr0 s/= 3", -4i64 as u64),
        ("r0 = -13\nr0 s%= 3", -1i64 as u64),
        ("r0 = 13\nr0 s%= -3", 1),
        ("r0 = 13\nr0 s/= -3", -4i64 as u64),
        ("r0 = -13\nw0 s/= 3", -4i32 as u32 as u64),
        ("r0 = -13\nw0 s%= 3", -1i32 as u32 as u64),
        ("r0 = 13\nr0 s/= 0", 0),
        ("r0 = -13\nr0 s%= 0", -13i64 as u64),
        ("r0 = -13\nr3 = 0\nw0 s%= w3", -13i32 as u32 as u64),
        ("r0 = 13\nr3 = 0\nw0 s/= w3", 0),
        ("r0 = 0x8000000000000000 ll\nr0 s/= -1", 1 << 63),
        ("r0 = 0x8000000000000000 ll\nr0 s%= -1", 0),
        ("r0 = 0x8000000000000000 ll\nr3 = -1\nr0 s/= r3", 1 << 63),
        ("w0 = 0x80000000\nw0 s/= -1", 1 << 31),
        ("w0 = 0x80000000\nr3 = -1\nw0 s/= w3", 1 << 31),
        ("w0 = 0x80000000\nw0 s%= -1", 0),
        // The upper half does not make a 32-bit operand positive.
        ("w0 = -13\nr3 = 0x100000003 ll\nw0 s/= w3", -4i32 as u32 as u64),
    ]);
}

#[test]
fn shifts() {
    check(&[
        ("r0 = 1\nr0 <<= 63", 1 << 63),
        ("r0 = 1\nr0 <<= 64", 1),
        ("r0 = 1\nr3 = 65\nr0 <<= r3", 2),
        ("r0 = 1\nw0 <<= 31", 1 << 31),
        ("r0 = 1\nw0 <<= 32", 1),
        ("r0 = 1\nr3 = 33\nw0 <<= w3", 2),
        ("r0 = -1\nr0 >>= 60", 15),
        ("r0 = -1\nw0 >>= 28", 15),
        ("r0 = -1\nw0 >>= 32", 0xffff_ffff),
        ("r0 = -16\nr0 s>>= 2", -4i64 as u64),
        ("r0 = -16\nw0 s>>= 2", -4i32 as u32 as u64),
        ("r0 = -16\nr0 s>>= 66", -4i64 as u64),
        ("r0 = -16\nr3 = -1\nr0 s>>= r3", u64::MAX),
        ("w0 = 0x7fffffff\nr3 = 34\nw0 s>>= w3", 0x1fff_ffff),
        // The count is in the shifted register.
        ("r0 = 3\nr0 <<= r0", 24),
    ]);
}

#[test]
fn moves() {
    check(&[
        ("r0 = -1", u64::MAX),
        ("w0 = -1", 0xffff_ffff),
        ("r3 = -1\nr0 = r3", u64::MAX),
        ("r3 = -1\nw0 = w3", 0xffff_ffff),
        ("r3 = 0x180 ll\nr0 = (s8)r3", -128i64 as u64),
        ("r3 = 0x180 ll\nw0 = (s8)w3", -128i32 as u32 as u64),
        ("r3 = 0x18000 ll\nr0 = (s16)r3", -32768i64 as u64),
        ("r3 = 0x18000 ll\nw0 = (s16)w3", -32768i32 as u32 as u64),
        ("r3 = 0x180000000 ll\nr0 = (s32)r3", 0xffff_ffff_8000_0000),
        ("r3 = 0x7f ll\nr0 = (s8)r3", 0x7f),
        ("r0 = 0x1122334455667788 ll", 0x1122_3344_5566_7788),
    ]);
}

#[test]
fn byte_order() {
    let load = "r0 = 0x1122334455667788 ll\n";
    for (op, expected) in [
        ("le16", 0x7788),
        ("le32", 0x5566_7788),
        ("le64", 0x1122_3344_5566_7788),
        ("be16", 0x8877),
        ("be32", 0x8877_6655),
        ("be64", 0x8877_6655_4433_2211),
        ("bswap16", 0x8877),
        ("bswap32", 0x8877_6655),
        ("bswap64", 0x8877_6655_4433_2211),
    ] {
        check(&[(&format!("{load}r0 = {op} r0"), expected)]);
    }
}

#[test]
fn loads() {
    check(&[
        ("r0 = *(u8 *)(r1 + 3)", 3),
        ("r0 = *(u16 *)(r1 + 2)", 0x0302),
        ("r0 = *(u32 *)(r1 + 4)", 0x0706_0504),
        ("r0 = *(u64 *)(r1 + 8)", 0x0f0e_0d0c_0b0a_0908),
        // Unaligned.
        ("r0 = *(u16 *)(r1 + 1)", 0x0201),
        ("r0 = *(u32 *)(r1 + 5)", 0x0807_0605),
        ("r0 = *(u64 *)(r1 + 3)", 0x0a09_0807_0605_0403),
        // A negative offset; the base may lie outside.
        ("r1 += 16\nr0 = *(u8 *)(r1 - 1)", 15),
        ("r1 += 32\nr0 = *(u8 *)(r1 - 32)", 0),
        ("w3 = -128\n*(u64 *)(r1 + 0) = r3\nr0 = *(s8 *)(r1 + 0)", -128i64 as u64),
        ("w3 = -128\n*(u64 *)(r1 + 0) = r3\nr0 = *(s16 *)(r1 + 0)", -128i64 as u64),
        ("w3 = -128\n*(u64 *)(r1 + 0) = r3\nr0 = *(s32 *)(r1 + 0)", -128i64 as u64),
        ("r0 = *(s8 *)(r1 + 15)", 15),
        ("r0 = load_acquire((u8 *)(r1 + 3))", 3),
        ("r0 = load_acquire((u16 *)(r1 + 2))", 0x0302),
        ("r0 = load_acquire((u32 *)(r1 + 4))", 0x0706_0504),
        ("r0 = load_acquire((u64 *)(r1 + 8))", 0x0f0e_0d0c_0b0a_0908),
    ]);
}

#[test]
fn stores() {
    let read = "r0 = *(u64 *)(r10 - 8)";
    for (store, expected) in [
        ("*(u8 *)(r10 - 8) = r3", 0x88u64),
        ("*(u16 *)(r10 - 8) = r3", 0x7788),
        ("*(u32 *)(r10 - 8) = r3", 0x5566_7788),
        ("*(u64 *)(r10 - 8) = r3", 0x1122_3344_5566_7788),
        ("*(u32 *)(r10 - 7) = r3", 0x55_6677_8800),
        ("*(u8 *)(r10 - 8) = -1", 0xff),
        ("*(u16 *)(r10 - 8) = -1", 0xffff),
        ("*(u32 *)(r10 - 8) = -1", 0xffff_ffff),
        ("*(u64 *)(r10 - 8) = -2", -2i64 as u64),
        ("*(u64 *)(r10 - 8) = 2147483647", 0x7fff_ffff),
        ("store_release((u8 *)(r10 - 8), r3)", 0x88),
        ("store_release((u16 *)(r10 - 8), r3)", 0x7788),
        ("store_release((u32 *)(r10 - 8), r3)", 0x5566_7788),
        ("store_release((u64 *)(r10 - 8), r3)", 0x1122_3344_5566_7788),
    ] {
        check(&[(&format!("r3 = 0x1122334455667788 ll\n{store}\n{read}"), expected)]);
    }
    let (result, data) = run_on("w3 = 0x04030201\n*(u32 *)(r1 + 13) = r3\nexit");
    assert!(result.is_err(), "one byte too far");
    assert_eq!(data[12..], [12, 13, 14, 15], "a refused store writes nothing");
}

/// Each case: memory before, the instruction, then memory, r3 and r0 afterwards. r3 is the operand, r0 the expected
/// value of a compare-and-exchange.
#[test]
fn atomics() {
    let set =
        "r4 = 0x1111111180000001 ll\n*(u64 *)(r10 - 8) = r4\nr3 = 0x2222222200000003 ll\nr0 = 0x3333333380000001 ll\n";
    let (memory, r3, r0) = (0x1111_1111_8000_0001u64, 0x2222_2222_0000_0003u64, 0x3333_3333_8000_0001u64);
    // In the 32-bit forms, the upper half of memory does not change.
    let low = |value: u32| 0x1111_1111_0000_0000 | u64::from(value);
    for (op, after, r3_after, r0_after) in [
        ("lock *(u64 *)(r10 - 8) += r3", memory.wrapping_add(r3), r3, r0),
        ("lock *(u64 *)(r10 - 8) |= r3", memory | r3, r3, r0),
        ("lock *(u64 *)(r10 - 8) &= r3", memory & r3, r3, r0),
        ("lock *(u64 *)(r10 - 8) ^= r3", memory ^ r3, r3, r0),
        ("lock *(u32 *)(r10 - 8) += w3", low(0x8000_0004), r3, r0),
        ("lock *(u32 *)(r10 - 8) |= w3", low(0x8000_0003), r3, r0),
        ("lock *(u32 *)(r10 - 8) &= w3", low(1), r3, r0),
        ("lock *(u32 *)(r10 - 8) ^= w3", low(0x8000_0002), r3, r0),
        ("r3 = atomic_fetch_add((u64 *)(r10 - 8), r3)", memory.wrapping_add(r3), memory, r0),
        ("r3 = atomic_fetch_or((u64 *)(r10 - 8), r3)", memory | r3, memory, r0),
        ("r3 = atomic_fetch_and((u64 *)(r10 - 8), r3)", memory & r3, memory, r0),
        ("r3 = atomic_fetch_xor((u64 *)(r10 - 8), r3)", memory ^ r3, memory, r0),
        // The old value is zero-extended.
        ("w3 = atomic_fetch_add((u32 *)(r10 - 8), w3)", low(0x8000_0004), 0x8000_0001, r0),
        ("w3 = atomic_fetch_or((u32 *)(r10 - 8), w3)", low(0x8000_0003), 0x8000_0001, r0),
        ("w3 = atomic_fetch_and((u32 *)(r10 - 8), w3)", low(1), 0x8000_0001, r0),
        ("w3 = atomic_fetch_xor((u32 *)(r10 - 8), w3)", low(0x8000_0002), 0x8000_0001, r0),
        ("r3 = xchg_64(r10 - 8, r3)", r3, memory, r0),
        ("w3 = xchg32_32(r10 - 8, w3)", low(3), 0x8000_0001, r0),
        // r0 differs in 64 bits: no exchange. It agrees in 32 bits: exchange, and r0's upper half is zero.
        ("r0 = cmpxchg_64(r10 - 8, r0, r3)", memory, r3, memory),
        ("w0 = cmpxchg32_32(r10 - 8, w0, w3)", low(3), r3, 0x8000_0001),
        ("r0 = r4\nr0 = cmpxchg_64(r10 - 8, r0, r3)", r3, r3, memory),
        ("r0 = 5\nw0 = cmpxchg32_32(r10 - 8, w0, w3)", memory, r3, 0x8000_0001),
        // r0 as operand and as destination.
        ("r0 = atomic_fetch_and((u64 *)(r10 - 8), r0)", memory & r0, r3, memory),
        ("r0 = atomic_fetch_or((u64 *)(r10 - 8), r0)", memory | r0, r3, memory),
        ("w0 = atomic_fetch_xor((u32 *)(r10 - 8), w0)", low(0), r3, 0x8000_0001),
        ("r3 = r10\nr0 = atomic_fetch_add((u64 *)(r3 - 8), r0)\nr3 = 7", memory.wrapping_add(r0), 7, memory),
        ("r0 = r10\nr3 = 1\nr0 = atomic_fetch_add((u64 *)(r10 - 8), r0)\n*(u64 *)(r10 - 8) = 9", 9, 1, memory),
        ("r0 = r4\nr0 = cmpxchg_64(r10 - 8, r0, r0)", memory, r3, memory),
    ] {
        check(&[
            (&format!("{set}{op}\nr0 = *(u64 *)(r10 - 8)"), after),
            (&format!("{set}{op}\nr0 = r3"), r3_after),
            (&format!("{set}{op}"), r0_after),
        ]);
    }
}

#[test]
fn conditions() {
    // (operator, holds for: equal, less, greater, less as signed and greater as unsigned)
    for (op, eq, lt, gt, signed_lt) in [
        ("==", 1, 0, 0, 0),
        ("!=", 0, 1, 1, 1),
        (">", 0, 0, 1, 1),
        (">=", 1, 0, 1, 1),
        ("<", 0, 1, 0, 0),
        ("<=", 1, 1, 0, 0),
        ("s>", 0, 0, 1, 0),
        ("s>=", 1, 0, 1, 0),
        ("s<", 0, 1, 0, 1),
        ("s<=", 1, 1, 0, 1),
    ] {
        for (a, b, expected) in [(5, 5, eq), (4, 5, lt), (6, 5, gt), (-1, 5, signed_lt)] {
            let jump = |test: &str| format!("r0 = 1\nif {test} goto +1\nr0 = 0");
            check(&[
                (&format!("r3 = {a}\n{}", jump(&format!("r3 {op} {b}"))), expected),
                (&format!("r3 = {a}\nr4 = {b}\n{}", jump(&format!("r3 {op} r4"))), expected),
                (&format!("r3 = {a}\n{}", jump(&format!("w3 {op} {b}"))), expected),
                // The upper halves differ, and are ignored.
                (
                    &format!("w3 = {a}\nr5 = {HIGH:#x} ll\nr3 |= r5\nw4 = {b}\n{}", jump(&format!("w3 {op} w4"))),
                    expected,
                ),
            ]);
        }
    }
    check(&[
        ("r0 = 1\nr3 = 6\nif r3 & 2 goto +1\nr0 = 0", 1),
        ("r0 = 1\nr3 = 6\nif r3 & 9 goto +1\nr0 = 0", 0),
        ("r0 = 1\nr3 = 0x100000000 ll\nif r3 & -1 goto +1\nr0 = 0", 1),
        ("r0 = 1\nr3 = 0x100000000 ll\nif w3 & -1 goto +1\nr0 = 0", 0),
        // A 64-bit comparison sign-extends the immediate.
        ("r0 = 1\nr3 = 0xffffffff ll\nif r3 == -1 goto +1\nr0 = 0", 0),
        ("r0 = 1\nr3 = 0xffffffff ll\nif w3 == -1 goto +1\nr0 = 0", 1),
        ("r0 = 1\nr3 = -2\nif r3 < -1 goto +1\nr0 = 0", 1),
    ]);
}

#[test]
fn jumps() {
    check(&[
        ("r0 = 1\ngoto +1\nr0 = 2", 1),
        ("r0 = 1\ngotol +1\nr0 = 2", 1),
        ("r0 = 1\ngoto +0\nr0 = 2", 2),
        ("r0 = 1\ngoto +2\nr0 = 2 ll", 1),
        // Back over a two-slot instruction, to instruction 0.
        ("r0 += 1\nr3 = 5 ll\nif r0 < 3 goto -4", 3),
        ("r0 = 0\na: r0 += 1\nif r0 != 100 goto a", 100),
        ("goto b\na: r0 += 7\ngoto c\nb: gotol a\nc:", 7),
    ]);
}

#[test]
fn may_goto() {
    const BUDGET: u64 = 8 * 1024 * 1024;
    check(&[
        // Falls through 8 Mi times, then jumps every time.
        ("a: may_goto b\nr0 += 1\ngoto a\nb: may_goto +1\nr0 = 0", BUDGET),
        // All may_goto of a frame share one counter.
        ("a: may_goto b\nr0 += 1\nmay_goto b\nr0 += 1\ngoto a\nb:", BUDGET),
        // Each frame has its own.
        ("a: may_goto b\ngoto a\nb: call f\nexit\nf: may_goto +1\nr0 = 1", 1),
    ]);
}

#[test]
fn calls() {
    check(&[
        // Arguments and result; r6 to r9 and r10 are the caller's.
        (
            "r6 = 6\nr7 = 7\nr8 = 8\nr9 = 9\nr3 = r10\nr1 = 1\nr2 = 2\ncall f\nr0 += r6\nr0 += r7\nr0 += r8\nr0 += r9\nexit
             f: r6 = 100\nr7 = 100\nr8 = 100\nr9 = 100\nr0 = r1\nr0 += r2",
            33,
        ),
        // A frame of its own, zero at each entry; the caller's frame is accessible.
        (
            "*(u64 *)(r10 - 8) = 5\nr1 = r10\ncall f\nr1 = r10\ncall f\nexit
             f: r0 = *(u64 *)(r1 - 8)\nr3 = *(u64 *)(r10 - 8)\nr0 += r3\n*(u64 *)(r10 - 8) = 77",
            5,
        ),
        ("*(u64 *)(r10 - 8) = 5\nr1 = r10\ncall f\nr0 = *(u64 *)(r10 - 8)\nexit\nf: *(u64 *)(r1 - 8) = 6", 6),
        // Registers that were not set are zero, in every frame.
        ("r6 = 1\ncall f\nexit\nf: r0 = r6\nr0 += r7\nr0 += r8\nr0 += r9", 0),
        ("r0 += r3\nr0 += r4\nr0 += r5\nr0 += r6\nr0 += r7\nr0 += r8\nr0 += r9", 0),
        ("r0 = r2", 16),
        // Eight frames.
        (
            "call a\nexit\na: r0 += 1\ncall b\nr0 += 1\nexit\nb: call c\nr0 += 1\nexit\nc: call d\nr0 += 1\nexit
             d: call e\nr0 += 1\nexit\ne: call f\nr0 += 1\nexit\nf: call g\nr0 += 1\nexit\ng: r0 = 1",
            7,
        ),
    ]);
}

#[test]
fn packet_loads() {
    check(&[
        ("r0 = *(u8 *)skb[3]", 3),
        ("r0 = *(u16 *)skb[2]", 0x0203),
        ("r0 = *(u32 *)skb[4]", 0x0405_0607),
        ("r0 = *(u32 *)skb[12]", 0x0c0d_0e0f),
        ("r3 = 2\nr0 = *(u16 *)skb[r3]", 0x0203),
        ("r3 = 3\nr0 = *(u16 *)skb[r3 - 1]", 0x0203),
        // The sum is 32 bits wide.
        ("r3 = 0x100000002 ll\nr0 = *(u16 *)skb[r3]", 0x0203),
        ("r3 = -1\nr0 = *(u16 *)skb[r3 + 3]", 0x0203),
        // Out of range: the function returns 0.
        ("r0 = *(u32 *)skb[13]\nr0 = 1", 0),
        ("r0 = *(u8 *)skb[16]\nr0 = 1", 0),
        ("r0 = *(u8 *)skb[-1]\nr0 = 1", 0),
        ("r0 = *(u8 *)skb[-2147483648]\nr0 = 1", 0),
        ("r3 = -1\nr0 = *(u8 *)skb[r3]\nr0 = 1", 0),
        // The *current* function returns: its caller continues.
        ("r0 = 5\ncall f\nr0 += 1\nexit\nf: r0 = 9\nr0 = *(u8 *)skb[16]\nr0 = 7", 1),
    ]);
}
