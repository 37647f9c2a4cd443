//! The generator's promises: programs are valid, and every kind of instruction occurs. Tests with an interpreter check
//! that programs end and stay inside their memory.

use super::*;
use std::collections::BTreeSet;

/// The kind of an instruction, as the text of its variant and of the fields that distinguish opcodes.
fn kind(insn: &Insn) -> String {
    let operand = |src: &bpf_isa::Src| match src {
        bpf_isa::Src::Reg(_) => "X",
        bpf_isa::Src::Imm(_) => "K",
    };
    match insn {
        Insn::Alu { width, op, src, .. } => format!("{op:?} {width:?} {}", operand(src)),
        Insn::Mov { width, src, .. } => format!("mov {width:?} {}", operand(src)),
        Insn::MovSx { width, from, .. } => format!("movsx {width:?} {from:?}"),
        // Not generated: programs here have no arena.
        Insn::Cast { to, .. } => format!("cast {to:?}"),
        Insn::Neg { width, .. } => format!("neg {width:?}"),
        Insn::End { order, width, .. } => format!("{order:?} {width:?}"),
        Insn::LoadImm64 { .. } => "ld_imm64".into(),
        Insn::SecondSlot => "second slot".into(),
        Insn::Load { size, sign, .. } => format!("load {size:?} {sign}"),
        Insn::Store { size, src, .. } => format!("store {size:?} {}", operand(src)),
        Insn::Atomic { width, op, .. } => format!("{op:?} {width:?}"),
        Insn::LoadAcquire { size, .. } => format!("acquire {size:?}"),
        Insn::StoreRelease { size, .. } => format!("release {size:?}"),
        Insn::LoadAbs { size, .. } => format!("abs {size:?}"),
        Insn::LoadInd { size, .. } => format!("ind {size:?}"),
        Insn::Jump { wide, .. } => format!("goto {wide}"),
        Insn::JumpIf { width, cond, src, .. } => format!("if {width:?} {cond:?} {}", operand(src)),
        Insn::MayGoto { .. } => "may_goto".into(),
        Insn::JumpReg { .. } => "gotox".into(),
        Insn::Call(callee) => match callee {
            bpf_isa::Callee::Helper(_) => "call helper".into(),
            bpf_isa::Callee::Subprog(_) => "call subprogram".into(),
            bpf_isa::Callee::Host(_) => "call host".into(),
            bpf_isa::Callee::Reg(_) => "call register".into(),
        },
        Insn::Exit => "exit".into(),
    }
}

#[test]
fn every_kind_of_instruction_occurs() {
    let shape = Shape { packet_loads: true, ..Shape::default() };
    let kinds: BTreeSet<String> = (0..400)
        .flat_map(|seed| from_seed(seed, &shape).program.insns().iter().map(kind).collect::<Vec<_>>())
        .collect();
    // ALU 13 x 2 x 2, mov 2 x 2, movsx 5, neg 2, END 9, ld_imm64 2, loads 7, stores 8, atomics 20, acquire and
    // release 8, packet loads 6, goto 2, conditional jumps 11 x 2 x 2, may_goto, calls 2, exit.
    let expected = 52 + 4 + 5 + 2 + 9 + 2 + 7 + 8 + 20 + 8 + 6 + 2 + 44 + 1 + 2 + 1;
    assert_eq!(kinds.len(), expected, "{kinds:#?}");
}

#[test]
fn no_choices_give_a_small_program() {
    let program = generate(&mut Choices::from_bytes(&[]), &Shape::default()).program;
    assert!(program.insns().len() < 40, "{}", bpf_isa::disassemble(program.insns()));
}

#[test]
fn a_seed_is_a_program() {
    let text = |seed| bpf_isa::disassemble(from_seed(seed, &Shape::default()).program.insns());
    assert_eq!(text(7), text(7));
    assert_ne!(text(7), text(8));
}

#[test]
fn fuzz_bytes_give_valid_programs() {
    let mut seed = Choices::from_seed(1);
    for length in 0..300 {
        let bytes: Vec<u8> = (0..length).map(|_| seed.byte()).collect();
        generate(&mut Choices::from_bytes(&bytes), &Shape::default());
        wild(&mut Choices::from_bytes(&bytes));
    }
}

#[test]
fn minimising_keeps_what_fails_and_little_else() {
    let divides = |program: &Program| {
        let divides =
            |insn: &Insn| matches!(insn, Insn::Alu { op: bpf_isa::AluOp::SMod, width: bpf_isa::Width::W32, .. });
        program.insns().iter().any(divides)
    };
    let found = (0..).map(|seed| from_seed(seed, &Shape::default()).program).find(divides).unwrap();
    let small = minimise(&found, &mut |candidate| divides(candidate));
    assert!(divides(&small));
    assert!(small.insns().len() <= 3, "{}", bpf_isa::disassemble(small.insns()));
}

/// Where bpf(2) is permitted, its verifier checks the promises: definedness, bounds, alignment, termination.
#[cfg(target_os = "linux")]
#[test]
fn the_kernel_takes_most_of_its_programs() {
    if let Err(why) = crate::kernel::available() {
        return crate::skipped("the_kernel_takes_most_of_its_programs", &why);
    }
    let shape = Shape::kernel();
    let mut taken = 0;
    for seed in 0..200 {
        let generated = from_seed(seed, &shape);
        match crate::kernel::RawProgram::load(&generated.program.to_bytes(), shape.memory) {
            Ok(_) => taken += 1,
            // Walking every path may take too long; anything else is a broken promise.
            Err(refusal) => assert!(
                refusal.log.contains("BPF program is too large") || refusal.log.contains("too complex"),
                "seed {seed}: {refusal}\n{}",
                bpf_isa::disassemble(generated.program.insns()),
            ),
        }
    }
    assert!(taken > 180, "{taken} of 200");
}
