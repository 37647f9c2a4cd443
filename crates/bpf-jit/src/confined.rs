//! Checks that the code of a contained program accesses memory by starts, constants and selections only.
//!
//! Problem: if a pass removed a selection, or lowering forgot an access, results of correct programs would not show it.
//! Approach: an analysis of a function's ops that ignores their order. A value is *known* if each op that defines it
//! makes the start of an object (a linked address, a field of the hidden argument, the context's pointer to a region),
//! a constant, a confinement, or a sum or multiple of known values. Each access must be at a known address, or at a
//! distance from r10 that the limits of selections, masks and widths keep inside the function's frame.
//!
//! For the frame, whose size is known here, the check proves each access inside. For other objects it proves that no
//! confinement is missing, but not that the limits are right; tests that run damaged programs look for that.

use bpf_analysis::{BoundsPlace, RegionBounds};
use bpf_isa::{Size, Width};
use bpf_lir::{Base, BinOp, Func, Lir, Op, Region, VReg, Val};

/// Returns an access whose address is not known to be confined: the index of the function, and the op.
pub fn unconfined(lir: &Lir, regions: &[RegionBounds]) -> Option<(usize, Op)> {
    lir.funcs.iter().enumerate().find_map(|(i, func)| Some((i, in_function(func, i == 0, regions)?)))
}

fn in_function(func: &Func, first: bool, regions: &[RegionBounds]) -> Option<Op> {
    // All values count as known until an op says otherwise.
    let mut known = vec![true; func.vregs as usize];
    // The first function's first argument is the context. All other arguments may be numbers of the program.
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
    let mut reaches = reaches(func);
    for (_, ops) in func.in_order() {
        // Inside a block, a value's reach is that of its last definition before the use.
        let mut before = Vec::new();
        for op in ops {
            if !is_inside(func, op, &known, &reaches) {
                return Some(*op);
            }
            if let Some(dst) = op.def() {
                let reach = reach(op, &reaches);
                before.push((dst, core::mem::replace(&mut reaches[dst.index()], reach)));
            }
        }
        before.into_iter().rev().for_each(|(v, reach)| reaches[v.index()] = reach);
    }
    None
}

/// Whether an op accesses confined addresses only.
fn is_inside(func: &Func, op: &Op, known: &[bool], reaches: &[Reach]) -> bool {
    // An address in the arena is masked when it is made.
    let Some(mem) = op.mem().filter(|mem| mem.region != Region::Arena) else { return true };
    let Some(bytes) = accessed(op) else { return false };
    let of = |v: VReg| known[v.index()];
    let in_frame = |reach: Reach| match reach {
        Reach::Frame(from, to) => {
            let off = i64::from(mem.off);
            from.saturating_add(off) >= -i64::from(func.stack_bytes)
                && to.saturating_add(off).saturating_add(bytes.into()) <= 0
        }
        Reach::Nothing | Reach::Exactly(_) | Reach::Number(_) => false,
    };
    match mem.base {
        Base::Frame => in_frame(Reach::Frame(0, 0)),
        Base::Reg(v) => of(v) || in_frame(reaches[v.index()]),
        Base::Indexed { base, index, shift } => {
            of(base) && of(index) || in_frame(sum(reaches[base.index()], reaches[index.index()], 1 << shift))
        }
    }
}

/// Bounds of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reach {
    /// No op seen so far defines the value.
    Nothing,
    /// Exactly this number. A blinded constant is made of two exact numbers.
    Exactly(u64),
    /// A number from 0 to this one, inclusive.
    Number(u64),
    /// The address in r10 plus a number between these two, inclusive.
    Frame(i64, i64),
}

impl Reach {
    fn join(self, other: Reach) -> Reach {
        if self == other {
            return self;
        }
        match (self.up_to(), other.up_to()) {
            (Reach::Nothing, _) => other,
            (_, Reach::Nothing) => self,
            (Reach::Frame(from, to), Reach::Frame(a, b)) => Reach::Frame(from.min(a), to.max(b)),
            (a, b) => Reach::Number(a.most().max(b.most())),
        }
    }

    /// Drops the lower end of an exactly known number.
    fn up_to(self) -> Reach {
        match self {
            Reach::Exactly(number) => Reach::Number(number),
            Reach::Nothing | Reach::Number(_) | Reach::Frame(..) => self,
        }
    }

    /// Returns the greatest number that the value may be.
    fn most(self) -> u64 {
        match self {
            Reach::Exactly(most) | Reach::Number(most) => most,
            Reach::Nothing | Reach::Frame(..) => u64::MAX,
        }
    }
}

/// Returns how many bytes an op accesses; `None` if it accesses no memory.
fn accessed(op: &Op) -> Option<u32> {
    match op {
        Op::Load { size, .. }
        | Op::Store { size, .. }
        | Op::LoadAcquire { size, .. }
        | Op::StoreRelease { size, .. } => Some(size.bytes()),
        Op::Atomic { width, .. } | Op::CmpXchg { width, .. } => Some(Size::from(*width).bytes()),
        Op::Mov { .. }
        | Op::Ext { .. }
        | Op::Bin { .. }
        | Op::Neg { .. }
        | Op::Bswap { .. }
        | Op::AddShift { .. }
        | Op::Select { .. }
        | Op::Confine { .. }
        | Op::FrameAddr { .. }
        | Op::SymAddr { .. }
        | Op::SubprogAddr { .. }
        | Op::Call { .. }
        | Op::TailCall { .. }
        | Op::Check { .. }
        | Op::Bound { .. }
        | Op::Stop { .. }
        | Op::Jump { .. }
        | Op::Branch { .. }
        | Op::Exit { .. } => None,
    }
}

/// Computes bounds of each value over all ops that define it: the least fixed point, except that a value whose bounds
/// change more than `CHANGES` times is unbounded.
fn reaches(func: &Func) -> Vec<Reach> {
    /// How often a value's bounds may change.
    const CHANGES: u8 = 4;
    let mut reaches = vec![Reach::Nothing; func.vregs as usize];
    let mut changes = vec![0u8; func.vregs as usize];
    func.entry_values().for_each(|v| reaches[v.index()] = Reach::Number(u64::MAX));
    loop {
        let mut changed = false;
        for op in func.all_ops() {
            let Some(dst) = op.def() else { continue };
            let known = reaches[dst.index()];
            let joined = known.join(reach(op, &reaches));
            if joined != known {
                let changes = &mut changes[dst.index()];
                *changes += 1;
                reaches[dst.index()] = if *changes > CHANGES { Reach::Number(u64::MAX) } else { joined };
                changed = true;
            }
        }
        if !changed {
            return reaches;
        }
    }
}

/// Bounds `a + b * times`, if both are less than 2^32 away from 0 or from r10.
fn sum(a: Reach, b: Reach, times: u32) -> Reach {
    const FAR: u64 = 1 << 32;
    match (a.up_to(), b.up_to()) {
        (Reach::Frame(from, to), Reach::Number(most)) if most < FAR && to.unsigned_abs() < FAR => {
            Reach::Frame(from, to.saturating_add((most * u64::from(times)) as i64))
        }
        (Reach::Number(a), Reach::Number(b)) if a < FAR && b < FAR => Reach::Number(a + b * u64::from(times)),
        (Reach::Nothing, _) | (_, Reach::Nothing) => Reach::Nothing,
        (
            Reach::Frame(..) | Reach::Exactly(_) | Reach::Number(_),
            Reach::Frame(..) | Reach::Exactly(_) | Reach::Number(_),
        ) => Reach::Number(u64::MAX),
    }
}

/// The address in r10 plus a number between these two, moved by a constant. Addresses wrap, so ends that were cut off
/// would come back as others: bounds that are far from the frame are none.
fn moved(from: i64, to: i64, by: i64) -> Reach {
    const FAR: u64 = 1 << 40;
    match (from.checked_add(by), to.checked_add(by)) {
        (Some(from), Some(to)) if from.unsigned_abs() < FAR && to.unsigned_abs() < FAR => Reach::Frame(from, to),
        (Some(_) | None, Some(_) | None) => Reach::Number(u64::MAX),
    }
}

fn reach(op: &Op, reaches: &[Reach]) -> Reach {
    const ANY: Reach = Reach::Number(u64::MAX);
    let of = |v: VReg| reaches[v.index()];
    let mut unseen = false;
    op.for_each_use(|v| unseen |= of(v) == Reach::Nothing);
    if unseen {
        return Reach::Nothing;
    }
    let val = |v: Val| match v {
        Val::Reg(v) => of(v),
        Val::Imm(imm) => Reach::Exactly(imm as u64),
    };
    let number = Reach::most;
    // The limit of a selection.
    let limit_of = |limit: Val| match val(limit) {
        Reach::Exactly(limit) => Some(limit),
        Reach::Nothing | Reach::Number(_) | Reach::Frame(..) => None,
    };
    let (width, span) = match *op {
        Op::FrameAddr { off, .. } => return Reach::Frame(off.into(), off.into()),
        Op::Mov { width, src, .. } => (width, val(src)),
        Op::Ext { signed: false, from, .. } => return Reach::Number(narrow_to(from)),
        Op::Load { size, signed: false, .. } => return Reach::Number(narrow_to(size)),
        Op::Bin { op: BinOp::And, width, a, b, .. } => (width, Reach::Number(number(of(a)).min(number(val(b))))),
        Op::Bin { op: BinOp::Shl, width, a, b: Val::Imm(count @ 0..=16), .. } => {
            (width, sum(Reach::Number(0), of(a), 1 << count))
        }
        Op::Bin { op: BinOp::Shr, width: width @ Width::W64, a, b: Val::Imm(count @ 0..=63), .. } => {
            (width, Reach::Number(number(of(a)) >> count))
        }
        Op::Bin { op: BinOp::Shr, width: width @ Width::W32, a, b: Val::Imm(count @ 0..=31), .. } => {
            (width, Reach::Number(number(of(a)).min(u32::MAX.into()) >> count))
        }
        Op::Bin { op: BinOp::Add, width: width @ Width::W64, a, b: Val::Imm(imm), .. } => match of(a) {
            Reach::Frame(from, to) => (width, moved(from, to, imm)),
            span @ (Reach::Nothing | Reach::Exactly(_) | Reach::Number(_)) => {
                (width, sum(span, Reach::Number(imm as u64), 1))
            }
        },
        Op::Bin { op: BinOp::Add, width: width @ Width::W64, a, b: Val::Reg(b), .. } => match (of(a), of(b)) {
            (a @ (Reach::Exactly(_) | Reach::Number(_)), b @ Reach::Frame(..)) => (width, sum(b, a, 1)),
            (a, b) => (width, sum(a, b, 1)),
        },
        Op::AddShift { width: width @ Width::W64, a, b, shift, .. } => (width, sum(of(a), of(b), 1 << shift)),
        Op::Bin { op: BinOp::Xor, width, a, b, .. } => match (of(a), val(b)) {
            (Reach::Exactly(a), Reach::Exactly(b)) => (width, Reach::Exactly(a ^ b)),
            _numbers => (width, ANY),
        },
        Op::Confine { a, limit, yes, no, .. } if a == yes => match limit_of(limit) {
            Some(limit) => (Width::W64, Reach::Number(limit.saturating_sub(1).max(number(of(no))))),
            None => (Width::W64, ANY),
        },
        Op::Select { yes, no, .. } => (Width::W64, of(yes).join(of(no))),
        Op::Bin { width, .. } | Op::Neg { width, .. } | Op::AddShift { width, .. } => (width, ANY),
        Op::Ext { .. }
        | Op::Bswap { .. }
        | Op::Confine { .. }
        | Op::SymAddr { .. }
        | Op::SubprogAddr { .. }
        | Op::Load { .. }
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
        | Op::Exit { .. } => (Width::W64, ANY),
    };
    match (width, span) {
        (Width::W64, span) => span,
        (Width::W32, Reach::Exactly(number)) => Reach::Exactly(bpf_lir::narrow(Width::W32, number)),
        (Width::W32, span) => Reach::Number(number(span).min(u32::MAX.into())),
    }
}

/// Returns the greatest unsigned number of a size.
fn narrow_to(size: Size) -> u64 {
    u64::MAX >> (64 - size.bits())
}

fn is_known(op: &Op, known: &[bool], regions: &[RegionBounds]) -> bool {
    let of = |v: VReg| known[v.index()];
    let val = |v: Val| match v {
        Val::Reg(v) => of(v),
        Val::Imm(_) => true,
    };
    match *op {
        Op::Confine { .. } | Op::SymAddr { .. } | Op::SubprogAddr { .. } => true,
        // Addresses in the frame are bounded by [`Reach`] instead.
        Op::FrameAddr { .. } => false,
        Op::Mov { src, .. } => val(src),
        Op::Bin { op: BinOp::Add | BinOp::Sub | BinOp::And | BinOp::Shl | BinOp::Mul, a, b, .. } => of(a) && val(b),
        Op::AddShift { a, b, .. } => of(a) && of(b),
        Op::Select { yes, no, .. } => of(yes) && of(no),
        // Fields of the hidden argument, and the starts of regions in the context.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether this body of a function with 64 bytes of frame is confined. v0 is the context, v1 a number of the
    /// program.
    fn is_confined(body: &str) -> bool {
        let text = format!("func 0 (v0, v1, -, -, -) ctx v2 stack 64 {{\nb0:\n{body}\n    exit v1\n}}\n");
        let lir: Lir = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
        unconfined(&lir, &[]).is_none()
    }

    #[test]
    fn the_check_tells_what_is_confined_from_what_is_not() {
        let start = "    v3 = frame -64\n    v4 = mov.64 0\n    v5 = load.dw [v2 + 72: run]\n    v6 = addr sink:0\n";
        for (yes, no) in [
            // Inside the frame, and beyond either end.
            ("    v7 = load.w [frame - 4]", "    v7 = load.w [frame - 2]"),
            ("    v7 = load.b [frame - 64]", "    v7 = load.b [frame - 65]"),
            // An index that a mask keeps inside, and one that it does not.
            (
                "    v7 = and.64 v1, 60\n    v8 = load.w [v3 + v7 << 0]",
                "    v7 = and.64 v1, 61\n    v8 = load.w [v3 + v7 << 0]",
            ),
            (
                "    v7 = and.64 v1, 15\n    v8 = load.w [v3 + v7 << 2]",
                "    v7 = and.64 v1, 31\n    v8 = load.w [v3 + v7 << 2]",
            ),
            // A selection with the frame's size as limit, and with another limit.
            (
                "    v7 = confine v1, 61, v1, v4\n    v8 = load.w [v3 + v7 << 0]",
                "    v7 = confine v1, 62, v1, v4\n    v8 = load.w [v3 + v7 << 0]",
            ),
            (
                "    v7 = confine v1, 61, v1, v4\n    v8 = load.w [v3 + v7 << 0]",
                "    v7 = confine v1, 61, v5, v4\n    v8 = load.w [v3 + v7 << 0]",
            ),
            // A limit, and a mask, that are made of two exact numbers.
            (
                "    v7 = mov.32 100\n    v7 = xor.32 v7, 89\n    v7 = confine v1, v7, v1, v4\n    v8 = load.w [v3 + v7 << 0]",
                "    v7 = mov.32 100\n    v7 = xor.32 v7, 90\n    v7 = confine v1, v7, v1, v4\n    v8 = load.w [v3 + v7 << 0]",
            ),
            (
                "    v7 = mov.32 100\n    v7 = xor.32 v7, 88\n    v7 = and.64 v1, v7\n    v8 = load.w [v3 + v7 << 0]",
                "    v7 = mov.32 100\n    v7 = xor.32 v7, v1\n    v7 = and.64 v1, v7\n    v8 = load.w [v3 + v7 << 0]",
            ),
            // A constant beyond the frame is treated as a number of the program.
            ("    v7 = add.64 v3, 60\n    v8 = load.w [v7]", "    v7 = add.64 v3, 64\n    v8 = load.w [v7]"),
            // There and back, by constants that sum up to less than one of them or wrap.
            (
                "    v7 = add.64 v3, 1000\n    v7 = add.64 v7, -1000\n    v8 = load.w [v7]",
                "    v7 = add.64 v3, 9223372036854775807\n    v9 = add.64 v7, 9223372036854775807\n    v10 = add.64 v9, -9223372036854775807\n    v8 = load.w [v10 - 4]",
            ),
            (
                "    v7 = mov.64 40\n    v7 = add.64 v3, 8\n    v8 = load.w [v7]",
                "    v7 = mov.64 4096\n    v8 = load.w [v3 + v7 << 0]",
            ),
            // An address in a region with a confinement, and without.
            ("    v7 = confine v1, v5, v1, v6\n    v8 = load.b [v7: packet]", "    v8 = load.b [v1: packet]"),
            (
                "    v7 = confine v1, v5, v1, v6\n    v8 = load.b [v7 + 1: packet]",
                "    v7 = confine v1, v5, v1, v6\n    v7 = add.64 v7, v1\n    v8 = load.b [v7: packet]",
            ),
        ] {
            assert!(is_confined(&format!("{start}{yes}")), "{yes}");
            assert!(!is_confined(&format!("{start}{no}")), "{no}");
        }
    }
}
