//! How large emitted code can get.
//!
//! The fuzz target and the tests hold every emission against these bounds; a caller can size memory by them. They count
//! every operand in a slot, every displacement and constant at its longest, every branch in its long form,
//! and the padding before each loop.

use bpf_jit::{BinOp, Func, Lir, Op, TailKey, Val, innermost_loops, switches};
use bpf_jit_code::layout::LOOP_PADDING;

/// A load or store of a slot: REX, opcode, ModRM, SIB, disp32.
const SLOT: usize = 8;
/// A register move, or any operation on two 64-bit registers.
const REG: usize = 3;
/// The longest instruction with a register operand and a 32-bit constant.
const REG_IMM: usize = 7;
/// `movabs`.
const IMM: usize = 10;
/// The longest instruction with a memory operand: `mov qword [base + disp32], imm32`.
const MEM: usize = 12;
/// `jcc rel32`.
const JCC: usize = 6;
/// `jmp rel32`, `call rel32`, or a patch slot.
const JMP: usize = 5;
/// Slots, six saved registers and rbp taken down.
const UNWIND: usize = REG_IMM + 6 * 2 + 1;
/// Page by page through BPF stack or slots: `lea`, a loop, and the rest.
const PROBE: usize = 2 * MEM + 3 * REG + REG_IMM + 2;
/// Set up: `endbr64`, frame, slots, parameters.
const PROLOGUE: usize = 4 + 1 + REG + 2 * (PROBE + REG_IMM) + 6 * 2 + 6 * SLOT + 3 * REG;
/// Four stop sequences and the retpoline.
const SHARED: usize = 4 * (MEM + 3 * SLOT + JMP) + 32;

/// The jump through a table: the value from a slot, the comparison, the table's address and entry, and the jump.
const SWITCH: usize = SLOT + IMM + REG + REG_IMM + JCC + REG_IMM + 4 + 3 * REG + 1;

/// Upper bound of the bytes one op takes, out-of-line parts included.
pub fn size_bound(op: &Op) -> usize {
    match *op {
        Op::Mov { .. } | Op::SymAddr { .. } => IMM + SLOT + REG,
        Op::Ext { .. } | Op::Neg { .. } | Op::Bswap { .. } => 2 * SLOT + 3 * REG,
        Op::Bin { op, b, .. } => {
            let operands = 3 * SLOT + if let Val::Imm(_) = b { IMM } else { 0 };
            operands
                + match op {
                    BinOp::Add | BinOp::Sub | BinOp::Mul | BinOp::And | BinOp::Or | BinOp::Xor => REG + REG_IMM,
                    BinOp::Shl | BinOp::Shr | BinOp::Sar | BinOp::Rotl => 6 * REG,
                    BinOp::MulHighU | BinOp::MulHighS => 4 * REG,
                    BinOp::Div | BinOp::SDiv | BinOp::Mod | BinOp::SMod => 6 * REG + REG_IMM + 2 * 2 + 2 * 4,
                }
        }
        Op::AddShift { .. } => 3 * SLOT + 5,
        Op::Select { .. } | Op::Confine { .. } => 5 * SLOT + IMM + 2 * REG + 4,
        Op::FrameAddr { .. } | Op::SubprogAddr { .. } => SLOT + SLOT,
        // An index in a slot is loaded, shifted and added to.
        Op::Load { .. } | Op::LoadAcquire { .. } => 3 * SLOT + 4 + MEM + 5,
        Op::Store { .. } => 3 * SLOT + 4 + IMM + MEM,
        Op::StoreRelease { .. } => 2 * SLOT + MEM,
        Op::Atomic { .. } => 3 * SLOT + 2 * MEM + 4 * REG + 2,
        Op::CmpXchg { .. } => 4 * SLOT + MEM + 2 * REG,
        Op::Call { .. } => 7 * SLOT + 3 * REG + JMP,
        Op::TailCall { key, .. } => {
            let common = 2 * SLOT + (MEM + JCC) + MEM + (2 * SLOT + REG) + MEM + UNWIND;
            common
                + match key {
                    TailKey::Dynamic { .. } => 2 * SLOT + (MEM + JCC) + REG + MEM + (REG + JCC) + JMP,
                    TailKey::Const { .. } => 2 * (4 + JMP),
                }
        }
        Op::Check { .. } => SLOT + MEM + JCC + SLOT + 5 + JMP,
        Op::Bound { .. } => 2 * SLOT + IMM + REG_IMM + JCC + SLOT + 5 + JMP,
        Op::Stop { .. } => SLOT + 5 + JMP,
        Op::Jump { .. } => JMP,
        Op::Branch { .. } => 2 * SLOT + IMM + REG_IMM + JCC,
        Op::Exit { .. } => SLOT + UNWIND + JMP,
    }
}

/// Upper bound of the bytes a function takes.
pub fn func_size_bound(func: &Func) -> usize {
    let padding = usize::from(LOOP_PADDING) * innermost_loops(func).len();
    let tables = switches(func).iter().map(|switch| SWITCH + 4 * switch.targets.len()).sum::<usize>();
    PROLOGUE + func.all_ops().map(size_bound).sum::<usize>() + padding + tables
}

/// Upper bound of the bytes a program takes.
pub fn program_size_bound(lir: &Lir) -> usize {
    SHARED + lir.funcs.iter().map(func_size_bound).sum::<usize>()
}
