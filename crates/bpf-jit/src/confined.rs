//! Checks that the code of a contained program accesses memory by starts, constants and selections only.
//!
//! Problem: if a pass removed a selection, or lowering forgot an access, results of correct programs would not show
//! it. Approach: a data flow over a function's ops, whose registers may have several definitions each. A value is
//! *known* if each op that defines it makes the start of an object (a linked address, a field of the hidden argument,
//! the context's pointer to a region), a constant, a confinement, or a sum or multiple of known values. A number or a
//! start that a loop adds up is not known, although each of its sums has known operands. Each access must be at a known
//! address, or at a distance from r10 that the limits of selections, masks and widths keep inside the function's frame.
//! Branches join values and decide none, so mispredicted ones change nothing.
//!
//! A register that one block defines has one value outside of that block: the one at the block's end. A register that
//! several blocks define (a join of paths, or a register that was given to another value later) has a value at the end
//! of each block where it is live ([`Flow`]). Where the lists of live registers lack one, its value is unknown, so
//! a mistake in liveness refuses a program and accepts none.
//!
//! For the frame, whose size is known here, the check proves each access inside. For other objects it proves that no
//! confinement of a number of the program is missing. It does not prove that the limits are right, nor that a constant
//! offset has the confinement that a region without a promised length needs; tests that run damaged programs look for
//! both.

use bpf_analysis::{BoundsPlace, RegionBounds};
use bpf_isa::{Size, Width};
use bpf_lir::{Base, BinOp, BlockId, Cfg, Func, Lir, Liveness, Op, Region, VReg, Val};

/// Returns an access whose address is not known to be confined: the index of the function, and the op.
pub fn unconfined(lir: &Lir, regions: &[RegionBounds]) -> Option<(usize, Op)> {
    lir.funcs.iter().enumerate().find_map(|(i, func)| Some((i, in_function(func, i == 0, regions)?)))
}

fn in_function(func: &Func, first: bool, regions: &[RegionBounds]) -> Option<Op> {
    let mut flow = Flow::new(func, first, regions);
    flow.settle();
    func.order.iter().find_map(|block| {
        let outside = flow.walk(*block, |op, values| !is_inside(func, op, values));
        flow.leave();
        outside
    })
}

/// The check's knowledge of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Value {
    made: Made,
    reach: Reach,
}

/// How a value is made of starts, constants and confinements.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Made {
    /// No op seen so far defines the value.
    Nothing,
    /// The value is made by at most this many sums and multiples, one after the other.
    Known(u32),
    /// An operand is something else, or a loop adds the value up.
    Unknown,
}

/// A value of which nothing is known.
const UNKNOWN: Value = Value { made: Made::Unknown, reach: ANY };
/// A value that no op seen so far defines.
const NOTHING: Value = Value { made: Made::Nothing, reach: Reach::Nothing };

/// A value at a block's end, joined over the visits of the block.
#[derive(Clone, Copy, Debug)]
struct End {
    v: VReg,
    value: Value,
    /// How often the value's bounds have changed.
    changes: u8,
}

impl End {
    fn new(v: VReg, value: Value) -> End {
        End { v, value, changes: 0 }
    }

    /// Joins the value with that of another visit; returns whether it changed. It is widened where loops would go on.
    fn join(&mut self, value: Value, round: u32) -> bool {
        /// How often a value's bounds may change before it is unbounded.
        const CHANGES: u8 = 4;
        /// After as many rounds, values are unknown whose sums still grow. Rounds visit each block behind its
        /// predecessors, so values outside of loops are settled after one, and each loop around a copy takes one more.
        const ROUNDS: u32 = 16;
        let known = self.value;
        let mut joined = Value { made: known.made.max(value.made), reach: known.reach.join(value.reach) };
        if joined.made != known.made && round >= ROUNDS {
            joined.made = Made::Unknown;
        }
        if joined.reach != known.reach {
            self.changes += 1;
            if self.changes > CHANGES {
                joined.reach = ANY;
            }
        }
        self.value = joined;
        joined != known
    }
}

/// The data flow of a function.
struct Flow<'a> {
    func: &'a Func,
    regions: &'a [RegionBounds],
    cfg: Cfg,
    /// By register: its value at the place that is visited. Between visits, a register that one block defines has its
    /// value of that block's end, and a register that several define is unknown.
    values: Vec<Value>,
    /// By register: the value at the end of the one block that defines it.
    single: Vec<End>,
    /// By register: whether several blocks define it. The function's entry counts as one.
    several: Vec<bool>,
    /// The registers among these that are arguments.
    given: Vec<End>,
    /// By block: the registers among these that are live at its end.
    ends: Vec<Vec<End>>,
    /// The values that the visit of a block has replaced, in order.
    replaced: Vec<(VReg, Value)>,
    /// By register: the edges into the visited block on which its value is known.
    edges: Vec<u32>,
}

impl<'a> Flow<'a> {
    fn new(func: &'a Func, first: bool, regions: &'a [RegionBounds]) -> Flow<'a> {
        let registers = func.vregs as usize;
        // By register: the last block seen that defines it.
        let mut definer: Vec<Option<BlockId>> = vec![None; registers];
        let mut several = vec![false; registers];
        let mut at_entry = vec![false; registers];
        func.entry_values().for_each(|v| at_entry[v.index()] = true);
        for (block, ops) in func.in_order() {
            for dst in ops.iter().filter_map(Op::def) {
                let before = definer[dst.index()].replace(block);
                several[dst.index()] |= at_entry[dst.index()] || before.is_some_and(|before| before != block);
            }
        }
        let mut single: Vec<_> = (0..func.vregs).map(|v| End::new(VReg(v), NOTHING)).collect();
        func.entry_values().for_each(|v| single[v.index()].value = Value { made: Made::Known(0), reach: ANY });
        // The first function's first argument is the context. All other arguments may be numbers of the program.
        let numbers = func.params.iter().skip(usize::from(first)).flatten();
        numbers.for_each(|param| single[param.index()].value = UNKNOWN);
        let given = func.entry_values().filter(|v| several[v.index()]).map(|v| single[v.index()]).collect();
        let mut ends = vec![Vec::new(); func.blocks.len()];
        if several.contains(&true) {
            let liveness = Liveness::of(func);
            for block in &func.order {
                let mut live: Vec<_> = liveness.live_out(*block).to_vec();
                live.sort_unstable();
                // A register that is listed twice would count for two edges.
                live.dedup();
                let live = live.into_iter().filter(|v| several[v.index()]);
                ends[block.index()] = live.map(|v| End::new(v, NOTHING)).collect();
            }
        }
        let value = |end: &End| if several[end.v.index()] { UNKNOWN } else { end.value };
        let values = single.iter().map(value).collect();
        let (cfg, edges) = (Cfg::of(func), vec![0; registers]);
        Flow { func, regions, cfg, values, single, several, given, ends, replaced: Vec::new(), edges }
    }

    /// Computes the values at the ends of all blocks: the least fixed point, widened where loops would go on.
    fn settle(&mut self) {
        // Blocks that no path reaches are compiled as well.
        let unreached = self.func.order.iter().filter(|block| !self.cfg.is_reachable(**block));
        let order: Vec<BlockId> = self.cfg.rpo().iter().chain(unreached).copied().collect();
        let mut defined = Vec::new();
        for round in 0.. {
            let mut changed = false;
            for block in &order {
                self.walk(*block, |_, _| false);
                for end in &mut self.ends[block.index()] {
                    changed |= end.join(self.values[end.v.index()], round);
                }
                let registers = self.replaced.iter().map(|(v, _)| *v).filter(|v| !self.several[v.index()]);
                defined.extend(registers.map(|v| (v, self.values[v.index()])));
                self.leave();
                for (v, value) in defined.drain(..) {
                    let end = &mut self.single[v.index()];
                    changed |= end.join(value, round);
                    self.values[v.index()] = end.value;
                }
            }
            if !changed {
                break;
            }
        }
    }

    /// Visits a block up to the first op for which `until` holds, and returns that op. The values are those behind it
    /// until [`Flow::leave`].
    fn walk(&mut self, block: BlockId, until: impl Fn(&Op, &[Value]) -> bool) -> Option<Op> {
        self.enter(block);
        // Inside a block, a value is that of its last definition before the use.
        for op in self.func.block_ops(block) {
            if until(op, &self.values) {
                return Some(*op);
            }
            if let Some(dst) = op.def() {
                let value = value(op, &self.values, self.regions);
                self.replace(dst, value);
            }
        }
        None
    }

    /// Joins the values of registers that several blocks define over the edges into a block.
    fn enter(&mut self, block: BlockId) {
        let preds = self.cfg.preds(block);
        let at_entry = self.func.order.first() == Some(&block);
        let all = preds.len() + usize::from(at_entry);
        let given = at_entry.then_some(&self.given);
        let lists = preds.iter().map(|pred| &self.ends[pred.index()]).chain(given);
        for End { v, value, .. } in lists.flatten() {
            let known = &mut self.values[v.index()];
            if self.edges[v.index()] == 0 {
                self.replaced.push((*v, core::mem::replace(known, *value)));
            } else {
                *known = Value { made: known.made.max(value.made), reach: known.reach.join(value.reach) };
            }
            self.edges[v.index()] += 1;
        }
        for (v, _) in &self.replaced {
            if core::mem::take(&mut self.edges[v.index()]) as usize != all {
                self.values[v.index()] = UNKNOWN;
            }
        }
    }

    fn replace(&mut self, v: VReg, value: Value) {
        self.replaced.push((v, core::mem::replace(&mut self.values[v.index()], value)));
    }

    /// Ends the visit of a block: the values are those between visits.
    fn leave(&mut self) {
        for (v, value) in self.replaced.drain(..).rev() {
            self.values[v.index()] = value;
        }
    }
}

fn value(op: &Op, values: &[Value], regions: &[RegionBounds]) -> Value {
    Value { made: made(op, values, regions), reach: reach(op, values) }
}

/// Whether an op accesses confined addresses only.
fn is_inside(func: &Func, op: &Op, values: &[Value]) -> bool {
    // An address in the arena is masked when it is made.
    let Some(mem) = op.mem().filter(|mem| mem.region != Region::Arena) else { return true };
    let Some(bytes) = accessed(op) else { return false };
    let of = |v: VReg| matches!(values[v.index()].made, Made::Known(_));
    let reach = |v: VReg| values[v.index()].reach;
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
        Base::Reg(v) => of(v) || in_frame(reach(v)),
        Base::Indexed { base, index, shift } => {
            of(base) && of(index) || in_frame(sum(reach(base), reach(index), 1 << shift))
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

/// Any number.
const ANY: Reach = Reach::Number(u64::MAX);

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

fn reach(op: &Op, values: &[Value]) -> Reach {
    let of = |v: VReg| values[v.index()].reach;
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

fn made(op: &Op, values: &[Value], regions: &[RegionBounds]) -> Made {
    let of = |v: VReg| values[v.index()].made;
    let val = |v: Val| match v {
        Val::Reg(v) => of(v),
        Val::Imm(_) => Made::Known(0),
    };
    let sum = |a: Made, b: Made| match (a, b) {
        (Made::Unknown, _) | (_, Made::Unknown) => Made::Unknown,
        (Made::Nothing, _) | (_, Made::Nothing) => Made::Nothing,
        (Made::Known(a), Made::Known(b)) => Made::Known(a.max(b).saturating_add(1)),
    };
    let known_if = |known: bool| if known { Made::Known(0) } else { Made::Unknown };
    match *op {
        Op::Confine { .. } | Op::SymAddr { .. } | Op::SubprogAddr { .. } => Made::Known(0),
        // Addresses in the frame are bounded by [`Reach`] instead.
        Op::FrameAddr { .. } => Made::Unknown,
        Op::Mov { src, .. } => val(src),
        Op::Bin { op: BinOp::Add | BinOp::Sub | BinOp::And | BinOp::Shl | BinOp::Mul, a, b, .. } => sum(of(a), val(b)),
        Op::AddShift { a, b, .. } => sum(of(a), of(b)),
        Op::Select { yes, no, .. } => of(yes).max(of(no)),
        // Fields of the hidden argument, and the starts of regions in the context.
        Op::Load { mem, size, .. } => match mem.region {
            Region::Run => Made::Known(0),
            Region::Context => known_if(size == Size::DW && regions.iter().any(|region| points_to(region, mem.off))),
            Region::Unknown | Region::Stack | Region::Packet | Region::MapValue | Region::Arena | Region::Mem => {
                Made::Unknown
            }
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
        | Op::Exit { .. } => Made::Unknown,
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

    #[test]
    fn sums_of_a_loop_are_not_confined() {
        let start = "    v4 = mov.64 0\n    v5 = load.dw [v2 + 72: run]\n    v6 = addr sink:0\n";
        for (yes, no) in [
            // A start that is moved once, and in each round.
            (
                "    v7 = add.64 v6, 8\n    jump b1\nb1:\n    v8 = load.b [v7: packet]\n    branch.64 v8 ne 0, b1\nb2:",
                "    v7 = mov.64 v6\n    jump b1\nb1:\n    v7 = add.64 v7, 8\n    v8 = load.b [v7: packet]\n    branch.64 v8 ne 0, b1\nb2:",
            ),
            // A counter that is confined in each round, and one that is not.
            (
                "    v7 = mov.64 0\n    jump b1\nb1:\n    v7 = add.64 v7, 1\n    v9 = confine v7, v5, v7, v4\n    v8 = load.b [v6 + v9 << 0: packet]\n    branch.64 v8 ne 0, b1\nb2:",
                "    v7 = mov.64 0\n    jump b1\nb1:\n    v7 = add.64 v7, 1\n    v9 = mov.64 v7\n    v8 = load.b [v6 + v9 << 0: packet]\n    branch.64 v8 ne 0, b1\nb2:",
            ),
            // A value that goes round through a copy, as it was and moved.
            (
                "    v7 = mov.64 v6\n    jump b1\nb1:\n    v8 = load.b [v7: packet]\n    v9 = mov.64 v7\n    v7 = mov.64 v9\n    branch.64 v8 ne 0, b1\nb2:",
                "    v7 = mov.64 v6\n    jump b1\nb1:\n    v8 = load.b [v7: packet]\n    v9 = add.64 v7, 8\n    v7 = mov.64 v9\n    branch.64 v8 ne 0, b1\nb2:",
            ),
        ] {
            assert!(is_confined(&format!("{start}{yes}")), "{yes}");
            assert!(!is_confined(&format!("{start}{no}")), "{no}");
        }
    }

    #[test]
    fn registers_with_several_definitions_have_the_value_that_reaches_the_access() {
        // v3 and v6 are starts, v4 is a number, and v1 one of the program.
        let start = "    v3 = addr array:3\n    v4 = mov.64 0\n    v6 = addr sink:0\n";
        for (yes, no) in [
            // A start whose register is given to a number behind the access, in another block and at a join.
            (
                "    branch.64 v1 eq 0, b2\nb1:\n    v7 = load.dw [v3 + 8]\n    v3 = mov.64 v7\nb2:\n    exit v3",
                "    branch.64 v1 eq 0, b2\nb1:\n    v7 = load.dw [v3 + 8]\n    v3 = mov.64 v7\nb2:\n    v7 = load.dw [v3]\n    exit v3",
            ),
            // One register for a number of the program and then for a start, and in the other order.
            (
                "    v7 = mov.64 v1\n    store.dw [v3], v7\n    jump b1\nb1:\n    v7 = mov.64 v6\n    jump b2\nb2:\n    v8 = load.b [v7]",
                "    v7 = mov.64 v6\n    store.dw [v3], v7\n    jump b1\nb1:\n    v7 = mov.64 v1\n    jump b2\nb2:\n    v8 = load.b [v7]",
            ),
            // A join of two starts, and one of a start and a number of the program on either side.
            (
                "    v7 = mov.64 v6\n    branch.64 v1 eq 0, b2\nb1:\n    v7 = mov.64 v3\nb2:\n    v8 = load.b [v7]",
                "    v7 = mov.64 v6\n    branch.64 v1 eq 0, b2\nb1:\n    v7 = mov.64 v1\nb2:\n    v8 = load.b [v7]",
            ),
            (
                "    v7 = mov.64 v1\n    branch.64 v1 eq 0, b2\nb1:\n    v7 = mov.64 v3\n    v8 = load.b [v7]\nb2:\n    exit v7",
                "    v7 = mov.64 v1\n    branch.64 v1 eq 0, b2\nb1:\n    v7 = mov.64 v3\nb2:\n    v8 = load.b [v7]",
            ),
            // A register that a loop's body gives to a number: the first round reads a start, the second would not.
            (
                "    v7 = mov.64 v6\nb1:\n    v8 = load.b [v7]\n    v7 = mov.64 v8\n    store.b [v6], v7\n    v7 = mov.64 v3\n    branch.64 v8 ne 0, b1\nb2:",
                "    v7 = mov.64 v6\nb1:\n    v8 = load.b [v7]\n    v7 = mov.64 v3\n    store.b [v7], v8\n    v7 = mov.64 v8\n    branch.64 v8 ne 0, b1\nb2:",
            ),
            // An argument's register: overwritten by a start on the only path, and on one of two.
            (
                "    v8 = mov.64 v1\nb1:\n    v1 = mov.64 v6\nb2:\n    v8 = load.b [v1]",
                "    v8 = mov.64 v1\n    branch.64 v8 eq 7, b2\nb1:\n    v1 = mov.64 v6\nb2:\n    v8 = load.b [v1]",
            ),
            // The context's register, before and behind its second definition.
            (
                "    v8 = load.dw [v0: context]\nb1:\n    v0 = mov.64 v1\nb2:\n    exit v0",
                "    v8 = mov.64 v1\nb1:\n    v0 = mov.64 v1\nb2:\n    v8 = load.dw [v0: context]\n    exit v0",
            ),
            // An index of the frame with a bound on each path, and with a larger one on one of them.
            (
                "    v5 = frame -64\n    v7 = and.64 v1, 15\n    branch.64 v1 eq 0, b2\nb1:\n    v7 = and.64 v1, 56\nb2:\n    v8 = load.dw [v5 + v7 << 0]",
                "    v5 = frame -64\n    v7 = and.64 v1, 15\n    branch.64 v1 eq 0, b2\nb1:\n    v7 = and.64 v1, 57\nb2:\n    v8 = load.dw [v5 + v7 << 0]",
            ),
            // A bound that is gone when the register is defined again behind it.
            (
                "    v5 = frame -64\n    v7 = mov.64 v1\nb1:\n    v7 = and.64 v7, 15\nb2:\n    v8 = load.dw [v5 + v7 << 0]",
                "    v5 = frame -64\n    v7 = and.64 v1, 15\nb1:\n    v7 = mov.64 v1\nb2:\n    v8 = load.dw [v5 + v7 << 0]",
            ),
            // A branch whose target is the next block: both edges have the value.
            (
                "    v7 = mov.64 v1\nb1:\n    v7 = mov.64 v6\n    branch.64 v1 eq 0, b2\nb2:\n    v8 = load.b [v7]",
                "    v7 = mov.64 v6\nb1:\n    v7 = mov.64 v1\n    branch.64 v1 eq 0, b2\nb2:\n    v8 = load.b [v7]",
            ),
            // A start that is moved once in each of two blocks, and in each round of a loop of two blocks.
            (
                "    v7 = add.64 v6, 8\nb1:\n    v7 = add.64 v7, 8\nb2:\n    v8 = load.b [v7]",
                "    v7 = add.64 v6, 8\nb1:\n    v7 = add.64 v7, 8\nb2:\n    v8 = load.b [v7]\n    branch.64 v8 ne 0, b1\nb3:",
            ),
            // Two registers that a loop exchanges: both starts, and one of them a number of the program.
            (
                "    v7 = mov.64 v6\n    v9 = mov.64 v3\nb1:\n    v8 = load.b [v7]\n    v10 = mov.64 v7\n    v7 = mov.64 v9\n    v9 = mov.64 v10\n    branch.64 v8 ne 0, b1\nb2:",
                "    v7 = mov.64 v6\n    v9 = mov.64 v1\nb1:\n    v8 = load.b [v7]\n    v10 = mov.64 v7\n    v7 = mov.64 v9\n    v9 = mov.64 v10\n    branch.64 v8 ne 0, b1\nb2:",
            ),
        ] {
            assert!(is_confined(&format!("{start}{yes}")), "{yes}");
            assert!(!is_confined(&format!("{start}{no}")), "{no}");
        }
    }
}
