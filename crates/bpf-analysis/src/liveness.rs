//! Which registers are live where.
//!
//! A register is live at a point if some path from there reads it before writing it. Backward data flow over basic
//! blocks on eleven-bit sets, callees before callers, so that a call uses exactly the argument registers that its
//! subprogram reads. The naive twin in the tests iterates over single instructions.

use crate::{BlockId, Cfg, touched_below_r10};
use bpf_isa::{AtomicOp, Callee, Insn, Program, Reg, Src, SubprogId};
use core::fmt;

/// A set of BPF registers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct RegSet(u16);

impl RegSet {
    /// No register.
    pub const EMPTY: RegSet = RegSet(0);
    /// r1 to r5.
    pub const ARGS: RegSet = RegSet(0b11_1110);
    /// r6 to r9.
    pub const SAVED: RegSet = RegSet(0b11_1100_0000);
    /// r0 to r5: what a call clobbers.
    pub const CALLER_SAVED: RegSet = RegSet(0b11_1111);

    /// r1 up to the `n`th argument register.
    pub const fn args(n: u8) -> RegSet {
        RegSet(((1 << (if n > 5 { 5 } else { n })) - 1) << 1)
    }
    /// The set of one register.
    pub const fn of(reg: Reg) -> RegSet {
        RegSet(1 << reg as u16)
    }
    /// Whether `reg` is in it.
    pub const fn contains(self, reg: Reg) -> bool {
        self.0 & 1 << reg as u16 != 0
    }
    /// Both.
    #[must_use]
    pub const fn union(self, other: RegSet) -> RegSet {
        RegSet(self.0 | other.0)
    }
    /// Those in `self` and `other`.
    #[must_use]
    pub const fn intersection(self, other: RegSet) -> RegSet {
        RegSet(self.0 & other.0)
    }
    /// Those in `self` and not in `other`.
    #[must_use]
    pub const fn without(self, other: RegSet) -> RegSet {
        RegSet(self.0 & !other.0)
    }
    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// The registers, ascending.
    pub fn iter(self) -> impl Iterator<Item = Reg> {
        let mut bits = self.0;
        core::iter::from_fn(move || {
            let reg = Reg::new(bits.trailing_zeros() as u8)?;
            bits &= bits - 1;
            Some(reg)
        })
    }
}

impl fmt::Debug for RegSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

fn of_src(src: Src) -> RegSet {
    match src {
        Src::Reg(reg) => RegSet::of(reg),
        Src::Imm(_) => RegSet::EMPTY,
    }
}

/// The registers an instruction reads. A call is taken to read r1 to r5; [`Liveness`] knows better where it can.
pub fn uses(insn: &Insn) -> RegSet {
    effects(insn).0
}

/// The registers an instruction writes, those that a call or packet load clobbers included.
pub fn defs(insn: &Insn) -> RegSet {
    match insn {
        Insn::Call(_) | Insn::LoadAbs { .. } | Insn::LoadInd { .. } => RegSet::CALLER_SAVED,
        insn => results(insn),
    }
}

/// The registers an instruction gives a value: of those that a call or packet load clobbers, only its result.
///
/// For [`Liveness`], what is clobbered keeps its value. No verified program reads it; one that does, unverified, reads
/// something that exists.
pub fn results(insn: &Insn) -> RegSet {
    effects(insn).1
}

/// [`uses`] and [`results`].
#[inline]
fn effects(insn: &Insn) -> (RegSet, RegSet) {
    let none = RegSet::EMPTY;
    match *insn {
        Insn::Alu { dst, src, .. } => (RegSet::of(dst).union(of_src(src)), RegSet::of(dst)),
        Insn::JumpIf { dst, src, .. } => (RegSet::of(dst).union(of_src(src)), none),
        Insn::Mov { dst, src, .. } => (of_src(src), RegSet::of(dst)),
        Insn::MovSx { dst, src, .. } => (RegSet::of(src), RegSet::of(dst)),
        Insn::Neg { dst, .. } | Insn::End { dst, .. } => (RegSet::of(dst), RegSet::of(dst)),
        Insn::LoadImm64 { dst, .. } => (none, RegSet::of(dst)),
        Insn::Load { dst, base, .. } | Insn::LoadAcquire { dst, base, .. } => (RegSet::of(base), RegSet::of(dst)),
        Insn::Store { base, src, .. } => (RegSet::of(base).union(of_src(src)), none),
        Insn::StoreRelease { base, src, .. } => (RegSet::of(base).union(RegSet::of(src)), none),
        Insn::Atomic { op, base, src, .. } => {
            let regs = RegSet::of(base).union(RegSet::of(src));
            match op {
                AtomicOp::CmpXchg => (regs.union(RegSet::of(Reg::R0)), RegSet::of(Reg::R0)),
                AtomicOp::Xchg => (regs, RegSet::of(src)),
                AtomicOp::Add { fetch }
                | AtomicOp::Or { fetch }
                | AtomicOp::And { fetch }
                | AtomicOp::Xor { fetch } => (regs, if fetch { RegSet::of(src) } else { none }),
            }
        }
        // The packet is the run's, not what r6 points to, but the instruction demands a context there.
        Insn::LoadAbs { .. } => (none, RegSet::of(Reg::R0)),
        Insn::LoadInd { src, .. } => (RegSet::of(src), RegSet::of(Reg::R0)),
        Insn::Call(_) => (RegSet::ARGS, RegSet::of(Reg::R0)),
        Insn::Exit => (RegSet::of(Reg::R0), none),
        Insn::SecondSlot | Insn::Jump { .. } | Insn::MayGoto { .. } => (none, none),
    }
}

/// How many arguments the functions outside the program take.
pub trait CallArity {
    /// Arguments of the helper with this id, at most 5.
    fn helper(&self, id: u32) -> u8;
    /// Arguments of the host function with this index, at most 5.
    fn host(&self, index: i32) -> u8;
}

/// Nothing is known: every call reads r1 to r5.
impl CallArity for () {
    fn helper(&self, _: u32) -> u8 {
        5
    }
    fn host(&self, _: i32) -> u8 {
        5
    }
}

/// Live registers of a whole program.
#[derive(Debug, Default)]
pub struct Liveness {
    live_in: Vec<RegSet>,
    /// Argument registers each subprogram reads.
    args: Vec<RegSet>,
    gen_kill: Vec<(RegSet, RegSet)>,
    /// Bytes of stack each subprogram touches by constant offsets; `None` if its frame pointer is used otherwise.
    frames: Vec<Option<u32>>,
    order: Vec<SubprogId>,
    /// Some block of the program goes back to itself or an earlier one.
    has_back_edge: bool,
}

impl Liveness {
    /// The live registers of one program.
    pub fn new(program: &Program, cfg: &Cfg, arity: &dyn CallArity) -> Liveness {
        let mut liveness = Liveness::default();
        liveness.build(program, cfg, arity);
        liveness
    }

    /// Replaces the result by that of `program` and keeps the memory.
    pub fn build(&mut self, program: &Program, cfg: &Cfg, arity: &dyn CallArity) {
        self.live_in.clear();
        self.live_in.resize(cfg.blocks().len(), RegSet::EMPTY);
        self.gen_kill.clear();
        self.gen_kill.resize(cfg.blocks().len(), Default::default());
        self.args.clear();
        self.args.resize(program.subprogs().len(), RegSet::ARGS);
        self.frames.clear();
        self.frames.resize(program.subprogs().len(), Some(0));
        self.has_back_edge = program.flow().iter().any(|flow| flow.target.is_some_and(|target| target <= flow.at));
        self.order.clear();
        callees_first(program, &mut self.order);
        for i in 0..self.order.len() {
            let sub = self.order[i];
            self.solve(program, cfg, sub, arity);
            let entry = cfg.subprog_blocks(sub).start;
            self.args[sub.0 as usize] = self.live_in[entry as usize].intersection(RegSet::ARGS);
        }
    }

    /// Registers live at the start of a block.
    pub fn live_in(&self, block: BlockId) -> RegSet {
        self.live_in[block.index()]
    }

    /// Registers live at the end of a block: what its successors need.
    pub fn live_out(&self, cfg: &Cfg, block: BlockId) -> RegSet {
        cfg.block(block).succs().fold(RegSet::EMPTY, |set, s| set.union(self.live_in(s)))
    }

    /// The argument registers a subprogram reads.
    pub fn args(&self, sub: SubprogId) -> RegSet {
        self.args[sub.0 as usize]
    }

    /// Bytes of stack below r10 that a subprogram may touch, at most `max`: see [`crate::touched_below_r10`].
    pub fn frame_bytes(&self, sub: SubprogId, max: u32) -> u32 {
        self.frames[sub.0 as usize].map_or(max, |bytes| bytes.min(max))
    }

    /// The registers an instruction at slot `slot` reads, with calls resolved.
    pub fn uses(&self, program: &Program, slot: u32, arity: &dyn CallArity) -> RegSet {
        match &program.insns()[slot as usize] {
            Insn::Call(callee) => self.call_uses(program, slot, callee, arity),
            insn => uses(insn),
        }
    }

    fn call_uses(&self, program: &Program, slot: u32, callee: &Callee, arity: &dyn CallArity) -> RegSet {
        match *callee {
            Callee::Helper(id) => RegSet::args(arity.helper(id)),
            Callee::Host(index) => RegSet::args(arity.host(index)),
            Callee::Subprog(off) => bpf_isa::InsnIdx(slot)
                .jump(off)
                .and_then(|target| program.subprog_starting_at(target))
                .map_or(RegSet::ARGS, |sub| self.args(sub)),
        }
    }

    fn solve(&mut self, program: &Program, cfg: &Cfg, sub: SubprogId, arity: &dyn CallArity) {
        let blocks = cfg.subprog_blocks(sub);
        for b in blocks.clone() {
            let block = cfg.block(BlockId(b));
            let (mut need, mut kill) = (RegSet::EMPTY, RegSet::EMPTY);
            let insns = &program.insns()[block.start as usize..block.end as usize];
            for (slot, insn) in (block.start..block.end).zip(insns).rev() {
                let (mut used, defined) = effects(insn);
                if let Insn::Call(callee) = insn {
                    used = self.call_uses(program, slot, callee, arity);
                }
                if used.contains(Reg::R10) {
                    let frame = &mut self.frames[sub.0 as usize];
                    *frame = (*frame).and_then(|bytes| Some(bytes.max(touched_below_r10(insn)?)));
                }
                need = need.without(defined).union(used);
                kill = kill.union(defined);
            }
            self.gen_kill[b as usize] = (need, kill);
        }
        cfg.flow_back(blocks, |b| {
            let (need, kill) = self.gen_kill[b.index()];
            let live = need.union(self.live_out(cfg, b).without(kill));
            let before = std::mem::replace(&mut self.live_in[b.index()], live);
            // Only a jump back can have read this before it was known.
            before != live && self.has_back_edge
        });
    }
}

/// Subprograms in an order in which each comes after all it calls. The call graph has no cycle.
fn callees_first(program: &Program, order: &mut Vec<SubprogId>) {
    let n = program.subprogs().len();
    if n == 1 {
        order.push(SubprogId(0));
        return;
    }
    fn visit(program: &Program, sub: SubprogId, seen: &mut [bool], order: &mut Vec<SubprogId>) {
        if core::mem::replace(&mut seen[sub.0 as usize], true) {
            return;
        }
        for call in program.calls_of(sub) {
            visit(program, call.callee, seen, order);
        }
        order.push(sub);
    }
    let mut seen = vec![false; n];
    for i in 0..n {
        visit(program, SubprogId(i as u32), &mut seen, order);
    }
}
