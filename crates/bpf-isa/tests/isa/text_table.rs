//! Text and bytes of one instruction of every kind.
//!
//! The bytes of the first table are the output of `llvm-mc-19 -triple bpfel -mcpu=v4` for the text, and the text is
//! the output of `llvm-objdump-19 -d --mcpu=v4 --no-print-imm-hex` for the bytes: an independent check of both. (Two
//! differences: with that option LLVM prints the constant of LD_IMM64 in decimal, and it prints narrow loads and
//! stores with `w` names.) The second table holds instructions that LLVM 19 does not know or writes differently; its
//! bytes follow RFC 9669 and Linux 6.18, field by field.

use bpf_isa::{assemble, decode, disassemble, encode};

const LLVM: &[(&str, &str)] = &[
    ("0f10000000000000", "r0 += r1"),
    ("0c10000000000000", "w0 += w1"),
    ("1703000007000000", "r3 -= 7"),
    ("2f10000000000000", "r0 *= r1"),
    ("3402000003000000", "w2 /= 3"),
    ("3f32010000000000", "r2 s/= r3"),
    ("9c32010000000000", "w2 s%= w3"),
    ("9702000009000000", "r2 %= 9"),
    ("4f21000000000000", "r1 |= r2"),
    ("57010000f0ffffff", "r1 &= -16"),
    ("a401000005000000", "w1 ^= 5"),
    ("6701000005000000", "r1 <<= 5"),
    ("7c21000000000000", "w1 >>= w2"),
    ("c70100003f000000", "r1 s>>= 63"),
    ("8704000000000000", "r4 = -r4"),
    ("8404000000000000", "w4 = -w4"),
    ("bf10000000000000", "r0 = r1"),
    ("bc10000000000000", "w0 = w1"),
    ("b700000005000000", "r0 = 5"),
    ("b4000000ffffffff", "w0 = -1"),
    ("bf21080000000000", "r1 = (s8)r2"),
    ("bf21100000000000", "r1 = (s16)r2"),
    ("bf21200000000000", "r1 = (s32)r2"),
    ("bc21080000000000", "w1 = (s8)w2"),
    ("bc21100000000000", "w1 = (s16)w2"),
    ("bf21010001000000", "r1 = addr_space_cast(r2, 0, 1)"),
    ("bf21010000000100", "r1 = addr_space_cast(r2, 1, 0)"),
    ("d400000010000000", "r0 = le16 r0"),
    ("dc00000020000000", "r0 = be32 r0"),
    ("dc00000040000000", "r0 = be64 r0"),
    ("d700000010000000", "r0 = bswap16 r0"),
    ("d700000040000000", "r0 = bswap64 r0"),
    ("18010000887766550000000044332211", "r1 = 0x1122334455667788 ll"),
    ("7110040000000000", "r0 = *(u8 *)(r1 + 4)"),
    ("6910fcff00000000", "r0 = *(u16 *)(r1 - 4)"),
    ("6110000000000000", "r0 = *(u32 *)(r1 + 0)"),
    ("7910040000000000", "r0 = *(u64 *)(r1 + 4)"),
    ("9110040000000000", "r0 = *(s8 *)(r1 + 4)"),
    ("8910040000000000", "r0 = *(s16 *)(r1 + 4)"),
    ("8110040000000000", "r0 = *(s32 *)(r1 + 4)"),
    ("731af8ff00000000", "*(u8 *)(r10 - 8) = r1"),
    ("7b1af8ff00000000", "*(u64 *)(r10 - 8) = r1"),
    ("620af8ff07000000", "*(u32 *)(r10 - 8) = 7"),
    ("7a0af8ffffffffff", "*(u64 *)(r10 - 8) = -1"),
    ("db1af8ff00000000", "lock *(u64 *)(r10 - 8) += r1"),
    ("c31af8ff00000000", "lock *(u32 *)(r10 - 8) += w1"),
    ("db1af8ff40000000", "lock *(u64 *)(r10 - 8) |= r1"),
    ("db1af8ff50000000", "lock *(u64 *)(r10 - 8) &= r1"),
    ("c31af8ffa0000000", "lock *(u32 *)(r10 - 8) ^= w1"),
    ("db1af8ff01000000", "r1 = atomic_fetch_add((u64 *)(r10 - 8), r1)"),
    ("c31af8ff41000000", "w1 = atomic_fetch_or((u32 *)(r10 - 8), w1)"),
    ("db1af8ff51000000", "r1 = atomic_fetch_and((u64 *)(r10 - 8), r1)"),
    ("db1af8ffa1000000", "r1 = atomic_fetch_xor((u64 *)(r10 - 8), r1)"),
    ("db1af8ffe1000000", "r1 = xchg_64(r10 - 8, r1)"),
    ("c31af8ffe1000000", "w1 = xchg32_32(r10 - 8, w1)"),
    ("db1af8fff1000000", "r0 = cmpxchg_64(r10 - 8, r0, r1)"),
    ("c31af8fff1000000", "w0 = cmpxchg32_32(r10 - 8, w0, w1)"),
    ("3000000014000000", "r0 = *(u8 *)skb[20]"),
    ("2800000014000000", "r0 = *(u16 *)skb[20]"),
    ("4030000000000000", "r0 = *(u32 *)skb[r3]"),
    ("1d21030000000000", "if r1 == r2 goto +3"),
    ("5501030005000000", "if r1 != 5 goto +3"),
    ("2d21030000000000", "if r1 > r2 goto +3"),
    ("6601030005000000", "if w1 s> 5 goto +3"),
    ("7e21fdff00000000", "if w1 s>= w2 goto -3"),
    ("4501030007000000", "if r1 & 7 goto +3"),
    ("4d21030000000000", "if r1 & r2 goto +3"),
    ("c5010300ffffffff", "if r1 s< -1 goto +3"),
    ("dd21030000000000", "if r1 s<= r2 goto +3"),
    ("ad21030000000000", "if r1 < r2 goto +3"),
    ("bd21030000000000", "if r1 <= r2 goto +3"),
    ("3d21030000000000", "if r1 >= r2 goto +3"),
    ("0500030000000000", "goto +3"),
    ("06000000e8030000", "gotol +1000"),
    ("e500020000000000", "may_goto +2"),
    ("850000000c000000", "call 12"),
    ("9500000000000000", "exit"),
];

const OURS: &[(&str, &str)] = &[
    ("d321000000010000", "r1 = load_acquire((u8 *)(r2 + 0))"),
    ("cb21040000010000", "r1 = load_acquire((u16 *)(r2 + 4))"),
    ("c321000000010000", "r1 = load_acquire((u32 *)(r2 + 0))"),
    ("db21f8ff00010000", "r1 = load_acquire((u64 *)(r2 - 8))"),
    ("d321000010010000", "store_release((u8 *)(r1 + 0), r2)"),
    ("cb21000010010000", "store_release((u16 *)(r1 + 0), r2)"),
    ("c321000010010000", "store_release((u32 *)(r1 + 0), r2)"),
    ("db21f8ff10010000", "store_release((u64 *)(r1 - 8), r2)"),
    ("c31af8ffa0000000", "lock *(u32 *)(r10 - 8) ^= w1"),
    ("d700000020000000", "r0 = bswap32 r0"),
    ("40300000fcffffff", "r0 = *(u32 *)skb[r3 - 4]"),
    ("5030000004000000", "r0 = *(u8 *)skb[r3 + 4]"),
    ("8510000004000000", "call pc+4"),
    ("85100000ffffffff", "call pc-1"),
    ("8520000007000000", "call kfunc#7"),
    ("18110000050000000000000000000000", "r1 = map[fd:5]"),
    ("18210000050000000000000010000000", "r1 = map[fd:5][0]+16"),
    ("18310000070000000000000000000000", "r1 = var[id:7]"),
    ("18410000030000000000000000000000", "r1 = subprog[+3]"),
    ("18510000020000000000000000000000", "r1 = map[idx:2]"),
    ("18610000020000000000000008000000", "r1 = map[idx:2][0]+8"),
];

#[test]
fn bytes_and_text_agree() {
    for (bytes, text) in LLVM.iter().chain(OURS) {
        let bytes = hex::decode(bytes).expect("hex");
        let insns = decode(&bytes).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(disassemble(&insns).trim_end(), *text);
        assert_eq!(assemble(text).as_ref(), Ok(&insns), "{text}");
        assert_eq!(encode(&insns), Ok(bytes), "{text}");
    }
}

/// Spellings that are read but never printed: variants of LLVM and the kernel.
#[test]
fn variants_are_read() {
    for (variant, printed) in [
        ("r0 = *(u32 *)(r1 +4)", "r0 = *(u32 *)(r1 + 4)"),
        ("w0 = *(u32 *)(r1 + 0x4)", "r0 = *(u32 *)(r1 + 4)"),
        ("*(u32 *)(r10 -8) = w1", "*(u32 *)(r10 - 8) = r1"),
        ("w1 = load_acquire((u32 *)(r2 + 0x0))", "r1 = load_acquire((u32 *)(r2 + 0))"),
        ("if r1 == 0x5 goto pc+3", "if r1 == 5 goto +3"),
        ("goto pc-1", "goto -1"),
        ("call 0xc", "call 12"),
        ("w0 = 0xffffffff", "w0 = -1"),
        ("r1 = -1 ll", "r1 = 0xffffffffffffffff ll"),
        ("r1=5 # five", "r1 = 5"),
        ("r1+=5 // five", "r1 += 5"),
        ("  r1 += 5 ; five", "r1 += 5"),
        ("12: r1 += 5", "r1 += 5"),
    ] {
        let insns = assemble(variant).unwrap_or_else(|error| panic!("{variant}: {error}"));
        assert_eq!(disassemble(&insns).trim_end(), printed, "{variant}");
    }
}

#[test]
fn labels() {
    let insns = assemble(
        "start: r1 = subprog[f]
            call f
         a: b:
            if r0 != 0 goto a
            gotol start
            may_goto end
            goto end
         end:
            exit
         f: r0 = 0
            exit",
    );
    let expected =
        "r1 = subprog[+7]\ncall pc+5\nif r0 != 0 goto -1\ngotol -5\nmay_goto +1\ngoto +0\nexit\nr0 = 0\nexit\n";
    assert_eq!(insns.map(|insns| disassemble(&insns)).as_deref(), Ok(expected));
}

#[test]
fn errors_name_the_place() {
    let far = format!("goto far\n{}far: exit", "exit\n".repeat(40_000));
    for (text, message) in [
        ("r0 = 1\nr11 = 2", "line 2, column 1: expected an instruction, found 'r11'"),
        ("r0 = ", "line 1, column 5: expected an operand, found the end"),
        ("r0 += w1", "line 1, column 7: the registers of this instruction must agree"),
        ("r0 = 0xffffffff", "line 1, column 6: 4294967295 does not fit a 32-bit immediate"),
        ("r0 = -0x8000000000000001 ll", "line 1, column 6: -9223372036854775809 does not fit 64 bits"),
        ("if r1 = 5 goto +3", "line 1, column 7: expected a condition, found '='"),
        ("goto +32768", "line 1, column 6: 32768 does not fit a jump offset"),
        ("goto 3", "line 1, column 6: no label '3'"),
        ("a: exit\na: exit", "line 2, column 1: label 'a' is defined twice"),
        ("exit exit", "line 1, column 6: expected the end of the line, found 'exit'"),
        ("r0 = be16 r1", "line 1, column 11: the registers of this instruction must agree"),
        ("r0 = be17 r0", "line 1, column 6: expected a width of 16, 32 or 64, found 'be17'"),
        ("w1 = (s32)w2", "line 1, column 7: expected s8 or s16, found 's32'"),
        ("r1 = *(s64 *)(r2 + 0)", "line 1, column 8: expected a type: u8 to u64, s8 to s32, found 's64'"),
        ("r1 = *(u8 *)(r2 + 32768)", "line 1, column 17: 32768 does not fit an address offset"),
        ("lock *(u8 *)(r2 + 0) += r1", "line 1, column 7: expected u32 or u64, found 'u8'"),
        ("r1 = *(u8 *)skb[0]", "line 1, column 8: the registers of this instruction must agree"),
        ("r0 = *(u64 *)skb[0]", "line 1, column 8: expected u8, u16 or u32, found 'u64'"),
        ("call 4294967296", "line 1, column 6: 4294967296 does not fit a helper id"),
        ("r1 = 99999999999999999999 ll", "line 1, column 6: expected an operand, found '99999999999999999999'"),
        ("é", "line 1, column 1: expected an instruction, found 'é'"),
        (&far, "line 1, column 6: 40000 does not fit the jump offset"),
    ] {
        assert_eq!(assemble(text).map_err(|error| error.to_string()), Err(message.to_owned()));
    }
}
