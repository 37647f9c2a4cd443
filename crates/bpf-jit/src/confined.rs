//! Checks that the code of a contained program accesses memory by starts, constants and selections only.
//!
//! Problem: a pass that decided a selection, or an access that lowering forgot, would show in no result. Approach: by
//! what the ops of a function are, without their order: a value is *known* if all that define it are starts of objects
//! (linked addresses, fields of the hidden argument, the context's pointers to its regions), constants, selections that
//! must be made, or sums and multiples of known ones. Each access must be at a known address.
//!
//! That the selections have the right limits is what runs show; this shows that none is missing.

use bpf_analysis::{BoundsPlace, RegionBounds};
use bpf_isa::Size;
use bpf_lir::{Base, BinOp, Func, Lir, Op, Region, VReg, Val};

/// An access whose address is made of what a program computed without a selection between: the function and the op.
pub fn unconfined(lir: &Lir, regions: &[RegionBounds]) -> Option<(usize, Op)> {
    lir.funcs.iter().enumerate().find_map(|(i, func)| Some((i, in_function(func, i == 0, regions)?)))
}

fn in_function(func: &Func, first: bool, regions: &[RegionBounds]) -> Option<Op> {
    // All are taken to be known until an op says otherwise.
    let mut known = vec![true; func.vregs as usize];
    // The first function's first argument is the context; others may be the program's.
    let given = if first { 1 } else { 0 };
    func.params.iter().skip(given).flatten().for_each(|param| known[param.index()] = false);
    loop {
        let mut changed = false;
        for op in func.all_ops() {
            let Some(dst) = op.def() else { continue };
            if known[dst.index()] && !is_known(op, &known, regions) {
                known[dst.index()] = false;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    let of = |v: VReg| known[v.index()];
    func.all_ops()
        .find(|op| {
            // An address in the arena is masked when it is made.
            let Some(mem) = op.mem().filter(|mem| mem.region != Region::Arena) else { return false };
            !match mem.base {
                Base::Frame => (-i64::from(func.stack_bytes)..0).contains(&mem.off.into()),
                Base::Reg(v) => of(v),
                Base::Indexed { base, index, .. } => of(base) && of(index),
            }
        })
        .copied()
}

fn is_known(op: &Op, known: &[bool], regions: &[RegionBounds]) -> bool {
    let of = |v: VReg| known[v.index()];
    let val = |v: Val| match v {
        Val::Reg(v) => of(v),
        Val::Imm(_) => true,
    };
    match *op {
        Op::Confine { .. } | Op::FrameAddr { .. } | Op::SymAddr { .. } | Op::SubprogAddr { .. } => true,
        Op::Mov { src, .. } => val(src),
        Op::Bin { op: BinOp::Add | BinOp::Sub | BinOp::And | BinOp::Shl | BinOp::Mul, a, b, .. } => of(a) && val(b),
        Op::AddShift { a, b, .. } => of(a) && of(b),
        Op::Select { yes, no, .. } => of(yes) && of(no),
        // Of the hidden argument, and what the context says of its regions.
        Op::Load { mem, size, .. } => match mem.region {
            Region::Run => true,
            Region::Context => size == Size::DW && regions.iter().any(|region| points_to(region, mem.off)),
            Region::Unknown | Region::Stack | Region::Packet | Region::MapValue | Region::Arena | Region::Mem => false,
        },
        Op::Bin { .. }
        | Op::Ext { .. }
        | Op::Neg { .. }
        | Op::Bswap { .. }
        | Op::Store { .. }
        | Op::LoadAcquire { .. }
        | Op::StoreRelease { .. }
        | Op::Atomic { .. }
        | Op::CmpXchg { .. }
        | Op::Call { .. }
        | Op::TailCall { .. }
        | Op::Check { .. }
        | Op::Bound { .. }
        | Op::Stop { .. }
        | Op::Jump { .. }
        | Op::Branch { .. }
        | Op::Exit { .. } => false,
    }
}

/// Whether a region's start is at this offset of the context.
fn points_to(region: &RegionBounds, off: i32) -> bool {
    match region.place {
        BoundsPlace::Nowhere | BoundsPlace::Raw => false,
        BoundsPlace::Addresses { start, .. } | BoundsPlace::Length { start, .. } => i64::from(start) == i64::from(off),
    }
}
