//! How much code there can be.
//!
//! Upper bounds for fuzzing and for reserving memory: an op with every operand in a far slot, every constant at its
//! worst, every branch in its long form. The emitter asserts them (in debug builds) for every op it emits, so every
//! test of this crate tests them.

use crate::frame::Frame;
use bpf_isa::Size;
use bpf_jit::{Base, Func, Lir, Mem, Op, TailKey, Val, switches};

const INSN: usize = 4;
/// `movz` and three `movk`.
const CONST: usize = 4 * INSN;
/// A slot, or any address below 2 GiB: its offset as a constant, and the access.
const SLOT: usize = 3 * INSN;
/// Four stop sequences.
const SHARED: usize = 4 * 12 * INSN;
/// A branch in its long form.
const BRANCH: usize = 2 * INSN;

fn val(v: Val) -> usize {
    match v {
        Val::Reg(_) => SLOT,
        Val::Imm(_) => CONST,
    }
}

/// A base from a slot, and an offset of any size.
fn mem(m: Mem) -> usize {
    match m.base {
        Base::Reg(_) => SLOT + CONST,
        Base::Frame => CONST,
        Base::Indexed { .. } => 2 * SLOT + INSN + CONST,
    }
}

/// The most bytes of code that `op` can take, wherever its operands are.
pub fn size_bound(op: &Op) -> usize {
    match *op {
        Op::Mov { src, .. } => val(src) + INSN + SLOT,
        Op::Ext { .. } | Op::Neg { .. } => SLOT + INSN + SLOT,
        Op::Bin { b, .. } => SLOT + val(b) + 2 * INSN + SLOT,
        Op::Bswap { .. } => SLOT + 2 * INSN + SLOT,
        Op::AddShift { .. } => 2 * SLOT + INSN + SLOT,
        Op::Select { b, .. } => SLOT + val(b) + INSN + 2 * SLOT + INSN + SLOT,
        Op::Confine { limit, .. } => SLOT + val(limit) + INSN + 2 * SLOT + 2 * INSN + SLOT,
        Op::FrameAddr { .. } => CONST + INSN + SLOT,
        Op::SymAddr { .. } => 3 * INSN + SLOT,
        Op::SubprogAddr { .. } => 4 * INSN + SLOT,
        Op::Load { mem: m, swap, size, .. } => {
            let swap = if swap && size != Size::B { INSN } else { 0 };
            mem(m) + INSN + swap + SLOT
        }
        Op::Store { mem: m, src, .. } => mem(m) + val(src) + INSN,
        Op::LoadAcquire { mem: m, .. } => mem(m) + 2 * INSN + SLOT,
        Op::StoreRelease { mem: m, .. } => mem(m) + SLOT + 2 * INSN,
        // An addition for the address; load, operation, store, retry, barrier.
        Op::Atomic { mem: m, .. } => mem(m) + INSN + SLOT + 5 * INSN + SLOT,
        // An exchange with a comparison and a branch in its loop.
        Op::CmpXchg { mem: m, .. } => mem(m) + INSN + 2 * SLOT + 6 * INSN + SLOT,
        Op::Call { args, .. } => {
            // Each cycle of moves, of at least two, needs one move more.
            let moves = args.len() + 1;
            moves * SLOT + moves / 2 * INSN + INSN + SLOT
        }
        Op::TailCall { key, .. } => {
            let find = match key {
                TailKey::Const { .. } => INSN,
                // Two loads and a comparison, the address, two branches.
                TailKey::Dynamic { .. } => 2 * SLOT + 6 * INSN + 2 * BRANCH,
            };
            let count = SLOT + 4 * INSN + BRANCH;
            let leave = 2 * SLOT + INSN + INSN + Frame::MAX_CODE + INSN;
            find + count + leave
        }
        // The access, and the stub: which instruction, and a jump.
        Op::Check { .. } => SLOT + 3 * INSN + BRANCH + STOP,
        Op::Bound { limit, .. } => SLOT + val(limit) + INSN + BRANCH + STOP,
        Op::Stop { .. } => STOP,
        Op::Jump { .. } => INSN,
        Op::Branch { b, .. } => SLOT + val(b) + INSN + BRANCH,
        Op::Exit { .. } => SLOT + Frame::MAX_CODE + 3 * INSN,
    }
}

/// The hidden argument, the instruction's number, the place, a jump.
const STOP: usize = SLOT + 2 * INSN + INSN + INSN;

/// The jump through a table: the value from a slot, the comparison, and the table's address and entry.
const SWITCH: usize = SLOT + 2 * (CONST + INSN) + BRANCH + 10 * INSN;

/// The most bytes of code that a function can take.
pub fn func_size_bound(func: &Func) -> usize {
    // A landing pad or signature, probes, the frame; six parameters.
    let prologue = Frame::MAX_CODE + Frame::MAX_PROBES + 6 * SLOT + 3 * INSN;
    let tables = switches(func).iter().map(|switch| SWITCH + 4 * switch.targets.len()).sum::<usize>();
    prologue + func.all_ops().map(size_bound).sum::<usize>() + tables
}

/// The most bytes of code that a program can take: its functions, and a stop sequence for each reason.
pub fn program_size_bound(lir: &Lir) -> usize {
    lir.funcs.iter().map(func_size_bound).sum::<usize>() + SHARED
}
