//! The bytes themselves: everything decodes, every branch leads to an instruction, no instruction has a shorter
//! encoding, and code stays within its stated bound. Runs on any host.

use crate::support::Native;
use bpf_isa::Width;
use bpf_jit::{AllocOptions, BinOp, EmitOptions, Op, Val};
use bpf_jit_code::{Code, CpuFeatures, Hardening};
use bpf_jit_suite::{Bench, Build, Rng, random_program};
use iced_x86::{Code as Form, Decoder, DecoderOptions, Encoder, FlowControl, Instruction, Mnemonic, OpKind, Register};
use std::collections::{HashMap, HashSet};

fn decode(bytes: &[u8]) -> Vec<Instruction> {
    Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE).into_iter().collect()
}

/// All encodings of each mnemonic.
fn forms() -> HashMap<Mnemonic, Vec<Form>> {
    let mut forms: HashMap<Mnemonic, Vec<Form>> = HashMap::new();
    for form in Form::values() {
        forms.entry(form.mnemonic()).or_default().push(form);
    }
    forms
}

const IMMEDIATES: [OpKind; 8] = [
    OpKind::Immediate8,
    OpKind::Immediate16,
    OpKind::Immediate32,
    OpKind::Immediate64,
    OpKind::Immediate8to16,
    OpKind::Immediate8to32,
    OpKind::Immediate8to64,
    OpKind::Immediate32to64,
];

fn is_immediate(kind: OpKind) -> bool {
    IMMEDIATES.contains(&kind)
}

/// The operands, as values: equal for two encodings of the same instruction.
fn operands(i: &Instruction) -> (usize, Vec<(Register, u64)>) {
    let mask = match i.op0_kind() {
        OpKind::Register => i.op0_register().size(),
        _ => i.memory_size().size(),
    };
    let mask = if mask >= 8 { u64::MAX } else { (1 << (8 * mask)) - 1 };
    let values = (0..i.op_count())
        .map(|n| match i.op_kind(n) {
            OpKind::Register => (i.op_register(n), 0),
            OpKind::Memory => (i.memory_base(), i.memory_displacement64() ^ (i.memory_index() as u64) << 32),
            kind if is_immediate(kind) => (Register::None, i.immediate(n) & mask),
            _ => (Register::None, i.near_branch_target()),
        })
        .collect();
    let memory = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
    (if memory { i.memory_size().size() } else { 0 }, values)
}

/// The shortest encoding of the same instruction that iced knows.
fn shortest(i: &Instruction, forms: &HashMap<Mnemonic, Vec<Form>>) -> usize {
    let immediate = (0..i.op_count()).find(|n| is_immediate(i.op_kind(*n)));
    let kinds = if immediate.is_some() { &IMMEDIATES[..] } else { &[OpKind::Register] };
    let mut best = i.len();
    for form in &forms[&i.mnemonic()] {
        for kind in kinds {
            let mut other = *i;
            other.set_code(*form);
            // A size of 1 asks iced for the shortest displacement.
            other.set_memory_displ_size(u32::from(i.memory_displacement64() != 0));
            if let Some(n) = immediate {
                let value = i.immediate(n);
                other.set_op_kind(n, *kind);
                other.set_immediate64(value);
                match kind {
                    OpKind::Immediate8 => other.set_immediate8(value as u8),
                    OpKind::Immediate16 => other.set_immediate16(value as u16),
                    OpKind::Immediate32 => other.set_immediate32(value as u32),
                    OpKind::Immediate8to16 => other.set_immediate8to16(value as i16),
                    OpKind::Immediate8to32 => other.set_immediate8to32(value as i32),
                    OpKind::Immediate8to64 => other.set_immediate8to64(value as i64),
                    OpKind::Immediate32to64 => other.set_immediate32to64(value as i64),
                    _ => {}
                }
            }
            let mut encoder = Encoder::new(64);
            let Ok(len) = encoder.encode(&other, 0) else { continue };
            let back = decode(&encoder.take_buffer());
            if len < best && back.len() == 1 && operands(&back[0]) == operands(i) {
                best = len;
            }
        }
    }
    best
}

/// Whether an instruction is as long as it is on purpose: branches are the layout's business, no-operations are padding
/// and patch slots, and addresses are filled in later.
fn has_a_fixed_length(i: &Instruction) -> bool {
    i.flow_control() != FlowControl::Next && i.flow_control() != FlowControl::Return
        || i.mnemonic() == Mnemonic::Nop
        || i.is_ip_rel_memory_operand()
        || i.code() == Form::Mov_r64_imm64 && i.immediate64() == 0
}

#[test]
fn no_instruction_has_a_shorter_encoding() {
    let forms = forms();
    let mut seen = HashSet::new();
    let mut native = Native::default();
    let bench = &mut Bench::new(&mut native);
    for seed in 0..400 {
        let lir = random_program(&mut Rng(seed));
        for way in bench.some_ways(2, seed) {
            let code = bench.emit(&lir, &way);
            for i in decode(&code.bytes) {
                let bytes = &code.bytes[i.ip() as usize..i.next_ip() as usize];
                if !has_a_fixed_length(&i) && seen.insert(bytes.to_vec()) {
                    assert_eq!(i.len(), shortest(&i, &forms), "{i} is {bytes:x?}");
                }
            }
        }
    }
    assert!(seen.len() > 5000, "only {} different instructions", seen.len());
}

/// The comparison itself can fail.
#[test]
fn a_longer_encoding_is_noticed() {
    let forms = forms();
    for (bytes, best) in [
        (&[0x40, 0x01, 0xc8][..], 2),         // add eax, ecx with an empty REX
        (&[0x8b, 0x84, 0x21, 0, 0, 0, 0], 2), // mov eax, [rcx + 0] with SIB and disp32
        (&[0x48, 0x81, 0xc1, 5, 0, 0, 0], 4), // add rcx, 5 with imm32
        (&[0x81, 0xc0, 0, 1, 0, 0], 5),       // add eax, 256 with ModRM
        (&[0xc1, 0xe8, 1], 2),                // shr eax, 1 with imm8
    ] {
        let i = decode(bytes)[0];
        assert_eq!(shortest(&i, &forms), best, "{i}");
    }
}

/// Checks that all of `code` decodes, and that branches, operands relative to rip, entries and line entries lead to
/// instructions.
fn check_structure(code: &Code) {
    let insns = decode(&code.bytes);
    let starts: HashSet<u64> = insns.iter().map(Instruction::ip).collect();
    let field_ends: HashSet<u64> = code.relocs.iter().map(|r| u64::from(r.at) + 4).collect();
    for i in &insns {
        assert!(!i.is_invalid(), "undecodable at {:#x}", i.ip());
        let relocated = field_ends.contains(&i.next_ip());
        let named = match i.op0_kind() {
            OpKind::NearBranch64 if !relocated => Some(i.near_branch_target()),
            _ if i.is_ip_rel_memory_operand() => Some(i.ip_rel_memory_address()),
            _ => None,
        };
        if let Some(target) = named {
            assert!(starts.contains(&target), "{i} at {:#x} leads into an instruction", i.ip());
        }
    }
    for at in &code.entries {
        assert!(starts.contains(&u64::from(*at)));
    }
    for pair in code.pc_map.windows(2) {
        assert!(pair[0].code <= pair[1].code);
    }
    for e in &code.pc_map {
        assert!(starts.contains(&u64::from(e.code)), "a line entry at {:#x}", e.code);
    }
    assert_eq!(code.frames.len(), code.entries.len());
}

#[test]
fn everything_decodes_and_branches_to_instructions() {
    let mut native = Native::default();
    let bench = &mut Bench::new(&mut native);
    for seed in 0..1000 {
        let lir = random_program(&mut Rng(seed));
        for way in bench.some_ways(3, seed) {
            // `emit` compares with the size bound.
            check_structure(&bench.emit(&lir, &way));
        }
    }
}

/// Regressions: displacements around the reach of rel8, code beyond 32 KiB and 1 MiB, a million
/// operations, a jump to the next instruction, a jump to itself.
#[test]
fn jumps_of_every_distance() {
    let mut native = Native::default();
    let bench = &mut Bench::new(&mut native);
    let options = EmitOptions { features: CpuFeatures::BASELINE, ..EmitOptions::default() };
    for filler in (0..70).chain([8_000, 16_384, 1_000_000]) {
        let mut b = Build::new();
        let x = b.param(0);
        let add = Op::Bin { op: BinOp::Add, width: Width::W64, dst: x, a: x, b: Val::Imm(0x1234_5678) };
        let first = b.block();
        let end = bpf_jit::BlockId(2);
        b.op(Op::Branch { width: Width::W64, cond: bpf_isa::Cond::Eq, a: x, b: Val::Imm(3), target: end });
        b.block();
        for _ in 0..filler {
            b.op(add);
        }
        b.op(Op::Jump { target: first });
        assert_eq!(b.block(), end);
        b.exit(x);
        let lir = b.alone();
        check_structure(&bench.emit(&lir, &(AllocOptions::default(), options)));
    }

    let mut b = Build::new();
    let x = b.param(0);
    b.op(Op::Jump { target: bpf_jit::BlockId(1) });
    let itself = b.block();
    b.op(Op::Jump { target: itself });
    b.block();
    b.exit(x);
    let code = bench.emit(&b.alone(), &(AllocOptions::default(), options));
    assert_eq!(code.bytes, [0x48, 0x89, 0xf8, 0xeb, 0xfe, 0xc3]);
}

/// An empty program is three bytes; hardened, it begins with `endbr64`.
#[test]
fn the_empty_program() {
    let mut native = Native::default();
    let bench = &mut Bench::new(&mut native);
    let mut b = Build::new();
    let zero = b.imm(0);
    b.exit(zero);
    let lir = b.alone();
    let options = EmitOptions::default();
    let code = bench.emit(&lir, &(AllocOptions::default(), options));
    assert_eq!(code.bytes, [0x31, 0xc0, 0xc3]);
    assert_eq!(code.frames[0].bytes, 8);
    let hardening = Hardening::new().landing_pads(true);
    let code = bench.emit(&lir, &(AllocOptions::default(), EmitOptions { hardening, ..options }));
    assert_eq!(code.bytes, [0xf3, 0x0f, 0x1e, 0xfa, 0x31, 0xc0, 0xc3]);
}
