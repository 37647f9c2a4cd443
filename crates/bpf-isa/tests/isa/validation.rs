//! Tests of structural validation: refused programs, with the error and its instruction, and accepted ones.

use bpf_isa::*;

fn program(text: &str) -> Result<Program, ValidateError> {
    Program::new(assemble(text).unwrap_or_else(|error| panic!("{text}: {error}")))
}

#[test]
fn refused() {
    for (text, message) in [
        ("", "the program has no instruction"),
        ("r0 = 0", "instruction 0: control falls off the end of the subprogram 0..1"),
        ("goto +1\nexit", "instruction 0: leads to instruction 2, outside the program"),
        ("goto -2\nexit", "instruction 0: leads to instruction -1, outside the program"),
        ("gotol +2147483647\nexit", "instruction 0: leads to instruction 2147483648, outside the program"),
        ("call pc+5\nexit", "instruction 0: leads to instruction 6, outside the program"),
        (
            "if r0 == 0 goto +1\nr1 = 5 ll\nexit",
            "instruction 0: leads to instruction 2, the second slot of a two-slot instruction",
        ),
        (
            "may_goto +1\nr1 = 5 ll\nexit",
            "instruction 0: leads to instruction 2, the second slot of a two-slot instruction",
        ),
        (
            "call pc+1\nr1 = 5 ll\nexit",
            "instruction 0: leads to instruction 2, the second slot of a two-slot instruction",
        ),
        ("r1 = subprog[+0]\nexit", "instruction 0: leads to instruction 1, the second slot of a two-slot instruction"),
        ("r10 = 0\nexit", "instruction 0: writes r10, the frame pointer"),
        ("r10 += 8\nexit", "instruction 0: writes r10, the frame pointer"),
        ("r10 = -r10\nexit", "instruction 0: writes r10, the frame pointer"),
        ("r10 = be64 r10\nexit", "instruction 0: writes r10, the frame pointer"),
        ("r10 = (s8)r1\nexit", "instruction 0: writes r10, the frame pointer"),
        ("r10 = 1 ll\nexit", "instruction 0: writes r10, the frame pointer"),
        ("r10 = *(u64 *)(r1 + 0)\nexit", "instruction 0: writes r10, the frame pointer"),
        ("r10 = load_acquire((u64 *)(r1 + 0))\nexit", "instruction 0: writes r10, the frame pointer"),
        ("r10 = xchg_64(r1 + 0, r10)\nexit", "instruction 0: writes r10, the frame pointer"),
        ("r10 = atomic_fetch_add((u64 *)(r1 + 0), r10)\nexit", "instruction 0: writes r10, the frame pointer"),
        ("call f\ngoto f\nf: exit", "instruction 1: jumps to instruction 2, out of its subprogram 0..2"),
        ("call f\na: exit\nf: goto a", "instruction 2: jumps to instruction 1, out of its subprogram 2..3"),
        ("exit\nf: call f\nexit", "instruction 1: calls subprogram 1 recursively"),
        ("call pc-1\nexit", "instruction 0: calls subprogram 0 recursively"),
        (
            "call f\nexit\nf: r0 = 0\ng: exit\ncall g\nexit",
            "instruction 2: control falls off the end of the subprogram 2..3",
        ),
        ("call f\nexit\nf: call g\nexit\ng: r1 = subprog[f]\nexit", "instruction 4: calls subprogram 1 recursively"),
        ("if r0 == 0 goto a\nexit\na: r0 = 0", "instruction 2: control falls off the end of the subprogram 0..3"),
        ("goto a\na: call 1", "instruction 1: control falls off the end of the subprogram 0..2"),
        ("r0 = 1 ll", "instruction 1: control falls off the end of the subprogram 0..2"),
    ] {
        assert_eq!(program(text).map_err(|error| error.to_string()), Err(message.to_owned()), "{text}");
    }
}

/// Instructions that the enum can express and the wire format cannot.
#[test]
fn refused_by_hand() {
    let (dst, base, off) = (Reg::R1, Reg::R2, 0);
    for (insn, kind) in [
        (Insn::Load { size: Size::DW, sign: true, dst, base, off }, Malformed::SignedLoad64),
        (Insn::MovSx { width: Width::W32, dst, src: base, from: SxWidth::S32 }, Malformed::MovSx32To32),
        (Insn::LoadAbs { size: Size::DW, imm: 0 }, Malformed::PacketLoad64),
        (Insn::LoadInd { size: Size::DW, src: base, imm: 0 }, Malformed::PacketLoad64),
        (Insn::Jump { off: 32768, wide: false }, Malformed::JumpOffset(32768)),
        (Insn::LoadImm64 { dst, imm: Imm64::Const(0) }, Malformed::MissingSecondSlot),
        (Insn::SecondSlot, Malformed::StraySecondSlot),
    ] {
        let insns = vec![Insn::Exit, insn, Insn::Exit];
        let slot = InsnIdx(1);
        assert_eq!(encode(&insns), Err(EncodeError { slot, kind }));
        assert_eq!(Program::new(insns), Err(ValidateError { slot, kind: ValidateErrorKind::Malformed(kind) }));
    }
    let double = vec![Insn::LoadImm64 { dst, imm: Imm64::Const(0) }, Insn::SecondSlot, Insn::SecondSlot, Insn::Exit];
    assert_eq!(encode(&double), Err(EncodeError { slot: InsnIdx(2), kind: Malformed::StraySecondSlot }));
}

#[test]
fn refused_bytes() {
    for (hex, message) in [
        ("", "the program has no instruction"),
        ("95000000000000", "instruction 0: 7 bytes left, a slot has 8"),
        ("950000000000000095", "instruction 1: 1 bytes left, a slot has 8"),
        ("ff00000000000000", "instruction 0: unknown opcode 0xff"),
        ("8d00000002000000", "instruction 0: imm is 2, which opcode 0x8d does not define"),
        ("8d20000000000000", "instruction 0: src is 2, which opcode 0x8d does not define"),
        (
            "b70b000000000000",
            "instruction 0: dst is r11: no such register; newer compilers pass a sixth argument by it: pass a struct",
        ),
        ("bff0000000000000", "instruction 0: src is r15: no such register"),
        ("bf21010000000000", "instruction 0: imm is 0, which opcode 0xbf does not define"),
        ("bf21010001000100", "instruction 0: imm is 65537, which opcode 0xbf does not define"),
        ("bf21010002000000", "instruction 0: imm is 2, which opcode 0xbf does not define"),
        ("bf21000001000000", "instruction 0: imm is 1, which opcode 0xbf does not define"),
        ("bf21080001000000", "instruction 0: imm is 1, which opcode 0xbf does not define"),
        ("bc21010001000000", "instruction 0: imm is 1, which opcode 0xbc does not define"),
        ("b701010001000000", "instruction 0: off is 1, which opcode 0xb7 does not define"),
        (
            "bf2b010001000000",
            "instruction 0: dst is r11: no such register; newer compilers pass a sixth argument by it: pass a struct",
        ),
        ("b710000000000000", "instruction 0: src is 1, which opcode 0xb7 does not define"),
        ("9500000001000000", "instruction 0: imm is 1, which opcode 0x95 does not define"),
        ("9501000000000000", "instruction 0: dst is 1, which opcode 0x95 does not define"),
        ("07000100010000009500000000000000", "instruction 0: off is 1, which opcode 0x07 does not define"),
        ("bc10200000000000", "instruction 0: off is 32, which opcode 0xbc does not define"),
        ("dc00000011000000", "instruction 0: imm is 17, which opcode 0xdc does not define"),
        ("d301000000000000", "instruction 0: imm is 0, which opcode 0xd3 does not define"),
        ("db010000e0000000", "instruction 0: imm is 224, which opcode 0xdb does not define"),
        ("8530000000000000", "instruction 0: src is 3, which opcode 0x85 does not define"),
        ("1870000000000000", "instruction 0: the second slot of a two-slot instruction is missing"),
        ("18700000000000000000000000000000", "instruction 0: src is 7, which opcode 0x18 does not define"),
        ("18100000000000000000000001000000", "instruction 1: imm of a second slot is 1, not 0"),
        ("18000000000000009500000000000000", "instruction 1: opcode of a second slot is 149, not 0"),
        ("18000000000000000001000000000000", "instruction 1: dst of a second slot is 1, not 0"),
        ("0000000000000000", "instruction 0: unknown opcode 0x00"),
    ] {
        let bytes = hex::decode(hex).expect("hex");
        assert_eq!(Program::from_bytes(&bytes).map_err(|error| error.to_string()), Err(message.to_owned()), "{hex}");
    }
}

#[test]
fn allowed() {
    for text in [
        "exit",
        "a: goto a",     // JA -1
        "goto +0\nexit", // a jump to the very next instruction
        "exit\nr0 = 1",  // unreachable code may end with any instruction
        "exit\nr0 = 1 ll",
        "exit\nif r0 == 0 goto -1",
        "r0 = 5 ll\nif r0 == 0 goto -3\nexit", // back over a two-slot instruction, to instruction 0
        "call f\nexit\nf: exit\nr0 = 1",
        "may_goto +0\nexit",
        "r1 = 1 ll\n*(u64 *)(r10 - 8) = r1\nlock *(u64 *)(r10 - 8) += r10\n*(u64 *)(r10 - 8) = r10\nexit",
    ] {
        assert!(program(text).is_ok(), "{text}: {:?}", program(text));
    }
}

/// main -> f1 -> ... -> fN.
fn chain(frames: usize) -> String {
    let call = |i: usize| format!("f{i}: call f{}\nexit\n", i + 1);
    (0..frames - 1).map(call).collect::<String>() + &format!("f{}: r0 = 0\nexit\n", frames - 1)
}

#[test]
fn call_depth() {
    for frames in 1..=8 {
        let program = program(&chain(frames)).expect("at most eight frames");
        assert_eq!(program.max_call_depth(), frames as u32);
        assert_eq!(program.subprogs().len(), frames);
    }
    let error = program(&chain(9)).expect_err("nine frames");
    assert_eq!(error.slot, InsnIdx(14));
    assert_eq!(error.kind, ValidateErrorKind::CallsTooDeep { callee: SubprogId(8) });
    // The height of a finished subprogram counts when it is met again below a longer path.
    let text = "call f\ncall g\nexit\nf: call a\nexit\na: call b\nexit\nb: call c\nexit\nc: call d\nexit\nd: exit
                g: call h\nexit\nh: call i\nexit\ni: call f\nexit";
    let error = program(text).expect_err("main, g, h, i, f, a, b, c, d");
    assert_eq!(error.slot, InsnIdx(16));
    assert_eq!(error.kind, ValidateErrorKind::CallsTooDeep { callee: SubprogId(1) });
}

#[test]
fn call_graph() {
    let program = program(
        "   call f
            r1 = subprog[g]
            call g
            exit
         f: call g
            exit
         g: r0 = 0
            exit",
    )
    .expect("valid");
    let spans: Vec<_> = program.subprogs().iter().map(|s| (s.start, s.end)).collect();
    assert_eq!(spans, [(0, 5), (5, 7), (7, 9)]);
    let calls =
        |id| program.calls_of(SubprogId(id)).iter().map(|c| (c.at.0, c.callee.0, c.callback)).collect::<Vec<_>>();
    assert_eq!(calls(0), [(0, 1, false), (1, 2, true), (3, 2, false)]);
    assert_eq!(calls(1), [(5, 2, false)]);
    assert_eq!(calls(2), []);
    assert_eq!(calls(3), []);
    assert_eq!(program.max_call_depth(), 3);
    assert_eq!(program.subprog_starting_at(InsnIdx(5)), Some(SubprogId(1)));
    assert_eq!(program.subprog_starting_at(InsnIdx(6)), None);
    assert_eq!((0..9).map(|i| program.subprog_of(InsnIdx(i)).0).collect::<Vec<_>>(), [0, 0, 0, 0, 0, 1, 1, 2, 2]);
}

/// Calls through registers have edges to the leaves whose address is taken anywhere, and to all functions whose
/// address their own function takes; not to others, which would create cycles.
#[test]
fn calls_through_registers_are_edges() {
    let program = program(
        "   r1 = subprog[g]
            r2 = subprog[h]
            call f
            exit
         f: callx r1
            exit
         g: r0 = 0
            exit
         h: call g
            exit",
    )
    .expect("valid");
    let callees = |id| program.indirect_callees(SubprogId(id)).iter().map(|p| p.callee.0).collect::<Vec<_>>();
    assert_eq!([callees(0), callees(1), callees(2), callees(3)], [vec![], vec![2], vec![], vec![]]);
    let calls = program.calls_of(SubprogId(1)).iter().map(|c| (c.at.0, c.callee.0, c.callback)).collect::<Vec<_>>();
    assert_eq!(calls, [(6, 2, true)]);
    assert_eq!(program.max_call_depth(), 3);
}

/// Targets of indirect jumps are instructions of the program. Each jump has the targets in its function, and control
/// that reaches them must not fall off the function's end.
#[test]
fn targets_of_indirect_jumps_are_checked() {
    let insns = assemble("call f\nr0 = 0\nexit\nf: gotox r1\nr0 = 1 ll\nexit\nr0 = 2").expect("text");
    let targets = |list: &[u32]| {
        let targets = list.iter().map(|slot| InsnIdx(*slot)).collect();
        Program::with_targets(insns.clone(), targets).map_err(|error| error.kind)
    };
    let program = targets(&[6, 4, 1, 4]).expect("valid");
    let of = |id| program.indirect_targets(SubprogId(id)).iter().map(|target| target.0).collect::<Vec<_>>();
    assert_eq!([of(0), of(1), of(2)], [vec![1], vec![4, 6], vec![]]);
    assert!(program.contents().indirect_jumps && targets(&[]).is_ok());
    for bad in [5, 8, u32::MAX] {
        let target = InsnIdx(bad);
        assert_eq!(targets(&[4, bad]), Err(ValidateErrorKind::BadIndirectTarget { target }));
    }
    // The last instruction falls off the end as soon as a jump leads to it.
    assert!(matches!(targets(&[7]), Err(ValidateErrorKind::FallsThrough { .. })));
    let many = |jumps: usize, targets: u32| {
        let mut insns = vec![Insn::JumpReg { target: Reg::R1 }; jumps];
        insns.extend(vec![Insn::Exit; targets as usize]);
        let first = jumps as u32;
        Program::with_targets(insns, (first..first + targets).map(InsnIdx).collect()).map_err(|error| error.kind)
    };
    assert!(many(512, 512).is_ok());
    assert_eq!(many(513, 512), Err(ValidateErrorKind::IndirectEdges));
}

/// Many calls through registers of many functions: bounded, and refused beyond the bound.
#[test]
fn calls_through_registers_are_bounded() {
    for (functions, calls, refused) in [(256, 256, false), (256, 257, true), (1, 65_536, false), (1, 65_537, true)] {
        let mut insns = Vec::new();
        let end = 2 * functions + calls + 1;
        for i in 0..functions {
            let off = end + 2 * i - (2 * i + 1);
            insns.extend([Insn::LoadImm64 { dst: Reg::R1, imm: Imm64::Func(off) }, Insn::SecondSlot]);
        }
        insns.extend(vec![Insn::Call(Callee::Reg(Reg::R1)); calls as usize]);
        insns.push(Insn::Exit);
        for _ in 0..functions {
            insns.extend([Insn::Mov { width: Width::W64, dst: Reg::R0, src: Src::Imm(0) }, Insn::Exit]);
        }
        let error = Program::new(insns).err().map(|error| error.kind);
        assert_eq!(error, refused.then_some(ValidateErrorKind::IndirectCallees), "{functions} {calls}");
    }
}

#[test]
fn a_million_instructions_and_one_more() {
    let mut bytes = [0x95, 0, 0, 0, 0, 0, 0, 0].repeat(MAX_INSNS);
    assert_eq!(Program::from_bytes(&bytes).map(|p| p.insns().len()), Ok(MAX_INSNS));
    bytes.extend([0x95, 0, 0, 0, 0, 0, 0, 0]);
    let error = Program::from_bytes(&bytes).expect_err("one too many");
    assert_eq!(error.kind, ValidateErrorKind::TooLong { slots: 1_000_001 });
    let error = Program::new(vec![Insn::Exit; 1_000_001]).expect_err("one too many");
    assert_eq!(error.kind, ValidateErrorKind::TooLong { slots: 1_000_001 });
}

/// Shapes for which naive validation would be quadratic, and take minutes: 300,000 subprograms, each called once, and
/// a program whose end is checked for reachability through 999,999 jumps.
#[test]
fn validation_is_linear() {
    let n = 300_000;
    let mut insns = vec![Insn::Call(Callee::Subprog(n)); n as usize];
    insns.extend(vec![Insn::Exit; n as usize + 1]);
    let program = Program::new(insns).expect("valid");
    assert_eq!((program.subprogs().len(), program.max_call_depth()), (n as usize + 1, 2));

    let jump = |off| Insn::JumpIf { width: Width::W64, cond: Cond::Eq, dst: Reg::R0, src: Src::Imm(0), off };
    let mut insns = vec![jump(0); 999_999];
    insns.push(jump(-1));
    let error = Program::new(insns.clone()).expect_err("the last one falls off");
    assert!(matches!(error.kind, ValidateErrorKind::FallsThrough { .. }));
    insns[999_998] = Insn::Jump { off: -2, wide: false };
    assert!(Program::new(insns).is_ok(), "the last one is unreachable");
}
