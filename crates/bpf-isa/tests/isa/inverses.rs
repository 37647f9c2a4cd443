//! Properties: encode undoes decode, decode undoes encode, the assembler undoes the printer, and nothing panics.

use bpf_isa::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

fn reg() -> impl Strategy<Value = Reg> {
    select(&Reg::ALL[..])
}

fn width() -> impl Strategy<Value = Width> {
    select(&[Width::W32, Width::W64][..])
}

fn size() -> impl Strategy<Value = Size> {
    select(&[Size::B, Size::H, Size::W, Size::DW][..])
}

fn narrow() -> impl Strategy<Value = Size> {
    select(&[Size::B, Size::H, Size::W][..])
}

fn src() -> impl Strategy<Value = Src> {
    prop_oneof![reg().prop_map(Src::Reg), any::<i32>().prop_map(Src::Imm)]
}

fn mov_sx() -> impl Strategy<Value = Insn> {
    let widths = select(
        &[
            (Width::W32, SxWidth::S8),
            (Width::W32, SxWidth::S16),
            (Width::W64, SxWidth::S8),
            (Width::W64, SxWidth::S16),
            (Width::W64, SxWidth::S32),
        ][..],
    );
    (widths, reg(), reg()).prop_map(|((width, from), dst, src)| Insn::MovSx { width, dst, src, from })
}

fn imm64() -> impl Strategy<Value = Imm64> {
    prop_oneof![
        any::<u64>().prop_map(Imm64::Const),
        any::<i32>().prop_map(Imm64::Map),
        any::<(i32, u32)>().prop_map(|(map, off)| Imm64::MapValue { map, off }),
        any::<i32>().prop_map(Imm64::Var),
        any::<i32>().prop_map(Imm64::Func),
        any::<i32>().prop_map(Imm64::MapIdx),
        any::<(i32, u32)>().prop_map(|(map, off)| Imm64::MapIdxValue { map, off }),
    ]
}

fn atomic_op() -> impl Strategy<Value = AtomicOp> {
    let plain = any::<bool>().prop_flat_map(|fetch| {
        select(vec![AtomicOp::Add { fetch }, AtomicOp::Or { fetch }, AtomicOp::And { fetch }, AtomicOp::Xor { fetch }])
    });
    prop_oneof![plain, Just(AtomicOp::Xchg), Just(AtomicOp::CmpXchg)]
}

fn end() -> impl Strategy<Value = Insn> {
    let order = select(&[ByteOrder::ToLe, ByteOrder::ToBe, ByteOrder::Swap][..]);
    let width = select(&[EndWidth::B16, EndWidth::B32, EndWidth::B64][..]);
    (order, width, reg()).prop_map(|(order, width, dst)| Insn::End { order, width, dst })
}

fn callee() -> impl Strategy<Value = Callee> {
    prop_oneof![
        any::<u32>().prop_map(Callee::Helper),
        any::<i32>().prop_map(Callee::Subprog),
        any::<i32>().prop_map(Callee::Host),
        reg().prop_map(Callee::Reg),
    ]
}

/// Every instruction except the second slot.
fn insn() -> impl Strategy<Value = Insn> {
    prop_oneof![
        (width(), select(&AluOp::ALL[..]), reg(), src()).prop_map(|(width, op, dst, src)| Insn::Alu {
            width,
            op,
            dst,
            src
        }),
        (width(), reg(), src()).prop_map(|(width, dst, src)| Insn::Mov { width, dst, src }),
        mov_sx(),
        (reg(), reg(), select(&[AddrSpace::Kernel, AddrSpace::User][..])).prop_map(|(dst, src, to)| Insn::Cast {
            dst,
            src,
            to
        }),
        (width(), reg()).prop_map(|(width, dst)| Insn::Neg { width, dst }),
        end(),
        reg().prop_map(|target| Insn::JumpReg { target }),
        (reg(), imm64()).prop_map(|(dst, imm)| Insn::LoadImm64 { dst, imm }),
        (size(), reg(), reg(), any::<i16>()).prop_map(|(size, dst, base, off)| Insn::Load {
            size,
            sign: false,
            dst,
            base,
            off
        }),
        (narrow(), reg(), reg(), any::<i16>()).prop_map(|(size, dst, base, off)| Insn::Load {
            size,
            sign: true,
            dst,
            base,
            off
        }),
        (size(), reg(), any::<i16>(), src()).prop_map(|(size, base, off, src)| Insn::Store { size, base, off, src }),
        (width(), atomic_op(), reg(), any::<i16>(), reg()).prop_map(|(width, op, base, off, src)| Insn::Atomic {
            width,
            op,
            base,
            off,
            src
        }),
        (size(), reg(), reg(), any::<i16>()).prop_map(|(size, dst, base, off)| Insn::LoadAcquire {
            size,
            dst,
            base,
            off
        }),
        (size(), reg(), any::<i16>(), reg()).prop_map(|(size, base, off, src)| Insn::StoreRelease {
            size,
            base,
            off,
            src
        }),
        (narrow(), any::<i32>()).prop_map(|(size, imm)| Insn::LoadAbs { size, imm }),
        (narrow(), reg(), any::<i32>()).prop_map(|(size, src, imm)| Insn::LoadInd { size, src, imm }),
        any::<i16>().prop_map(|off| Insn::Jump { off: off.into(), wide: false }),
        any::<i32>().prop_map(|off| Insn::Jump { off, wide: true }),
        (width(), select(&Cond::ALL[..]), reg(), src(), any::<i16>())
            .prop_map(|(width, cond, dst, src, off)| Insn::JumpIf { width, cond, dst, src, off }),
        any::<i16>().prop_map(|off| Insn::MayGoto { off }),
        callee().prop_map(Insn::Call),
        Just(Insn::Exit),
    ]
}

/// A sequence with second slots inserted.
fn insns() -> impl Strategy<Value = Vec<Insn>> {
    vec(insn(), 0..64).prop_map(|insns| {
        let slots = |insn: Insn| [Some(insn), (insn.slots() == 2).then_some(Insn::SecondSlot)];
        insns.into_iter().flat_map(slots).flatten().collect()
    })
}

proptest! {
    #[test]
    fn decode_undoes_encode(insns in insns()) {
        let bytes = encode(&insns).expect("the generator makes encodable instructions");
        prop_assert_eq!(decode(&bytes), Ok(insns));
    }

    #[test]
    fn assemble_undoes_disassemble(insns in insns()) {
        prop_assert_eq!(assemble(&Listing(&insns).to_string()), assemble(&disassemble(&insns)));
        prop_assert_eq!(assemble(&disassemble(&insns)), Ok(insns));
    }

    #[test]
    fn a_program_keeps_its_instructions(insns in insns()) {
        if let Ok(program) = Program::new(insns.clone()) {
            prop_assert_eq!(program.insns(), &insns[..]);
            prop_assert_eq!(Program::from_bytes(&program.to_bytes()), Ok(program));
        }
    }

    #[test]
    fn any_text_is_an_error_or_a_program(text in "([rwif0-9 =+*()skb\\[\\]:,;#/\n<>&-]|goto|u32|exit|lock|call|ll){0,40}") {
        if let Ok(insns) = assemble(&text) {
            prop_assert!(encode(&insns).is_ok());
        }
    }

    #[test]
    fn any_bytes_are_an_error_or_a_program(bytes in vec(any::<u8>(), 0..128)) {
        if let Ok(insns) = decode(&bytes) {
            prop_assert_eq!(encode(&insns), Ok(bytes));
        }
    }
}

/// Every opcode with every register pair and all values of `off` and `imm` that have a meaning in some instruction:
/// accepted slots encode back to themselves, so no accepted slot has a bit that its instruction does not express.
#[test]
fn every_opcode_encodes_back() {
    let offs = [0, 1, -1, 2, 8, 16, 32, 64, i16::MIN, i16::MAX];
    let imms =
        [0, 1, -1, 8, 16, 32, 64, 0x40, 0x41, 0x50, 0x51, 0xa0, 0xa1, 0xe0, 0xe1, 0xf0, 0xf1, 0x100, 0x101, 0x110];
    let mut accepted = std::collections::BTreeSet::new();
    for code in 0..=255 {
        for regs in 0..=255u8 {
            for off in offs {
                for imm in imms {
                    let raw = RawInsn { code, dst: regs & 15, src: regs >> 4, off, imm };
                    let mut bytes = raw.to_bytes().to_vec();
                    assert_eq!(RawInsn::from_bytes(raw.to_bytes()), raw);
                    if matches!(decode(&bytes), Err(DecodeError { kind: DecodeErrorKind::MissingSecondSlot, .. })) {
                        bytes.extend([0; 8]);
                    }
                    if let Ok(insns) = decode(&bytes) {
                        assert_eq!(encode(&insns), Ok(bytes), "{raw:?}");
                        accepted.insert(code);
                    }
                }
            }
        }
    }
    // 2 classes x (12 two-operand ALU operations and MOV, in two forms, and NEG), 3 END, 2 x 11 jumps in two forms,
    // JA, gotol, gotox, may_goto, call, callx, exit, LD_IMM64, 3 LD_ABS, 3 LD_IND, 4 + 3 LDX, 4 ST, 4 STX, 4 ATOMIC.
    assert_eq!(accepted.len(), 2 * (12 * 2 + 1) + 3 + 2 * 11 * 2 + 7 + 1 + 6 + 7 + 4 + 4 + 4);
}
