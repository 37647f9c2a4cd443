//! Register allocation.
//!
//! Problem: give every virtual register a host register for its whole life, or a stack slot, so that (1) two that hold different
//! values at the same time do not share one, (2) what lives across a call or another op with fixed operands is not where that op
//! writes, (3) callee-saved registers, which cost a save, go only to values that live across calls, and (4) values already are
//! where calls, exits and fixed operands want them.
//!
//! Approach: one backward walk over each block with its live-out list gives exact interference, clobbers and preferences; then
//! greedy colouring, values with preferences first. BPF has ten registers and a lowered program at most a few values more, fewer than
//! either machine has registers, so greedy colouring practically never needs a slot; where it does, a slot is always correct.
//! Linear in ops times live values.
//!
//! Invariant: any outcome that respects (1) and (2) is correct. `AllocOptions` makes random ones, for tests.

use crate::lir::{Base, Func, Op, VReg, Val};
use crate::machine::{FixedOperands, HostReg, HostRegSet, MachineDesc};
use bpf_isa::Width;

/// Where a virtual register lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Loc {
    /// In a host register.
    Reg(HostReg),
    /// In the eight-byte stack slot with this index.
    Slot(u32),
}

/// The allocation of one function.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Alloc {
    /// Location of each virtual register.
    pub locs: Vec<Loc>,
    /// Callee-saved registers the function must save, in save order.
    pub saves: Vec<HostReg>,
    /// Number of stack slots.
    pub slots: u32,
}

impl Alloc {
    /// Where `reg` lives.
    pub fn loc(&self, reg: VReg) -> Loc {
        self.locs[reg.index()]
    }
}

/// How to allocate. The default is what production uses; everything else exists to prove that any allocation works.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct AllocOptions {
    /// Use only these registers of the machine's pool (the empty set: every value in a slot).
    pub only: Option<HostRegSet>,
    /// Ignore preferences; pick among the allowed registers at random, and sometimes a slot, from this seed.
    pub seed: Option<u64>,
}

/// The allocator and its scratch memory.
#[derive(Debug, Default)]
pub struct Allocator {
    /// Registers a value must not be in: clobbered while it lives.
    forbidden: Vec<HostRegSet>,
    /// Registers in which a value would save a move.
    wanted: Vec<HostRegSet>,
    /// Pairs of values that hold different things at the same time.
    conflicts: Vec<(VReg, VReg)>,
    /// Pairs of values that a move connects.
    moves: Vec<(VReg, VReg)>,
    /// `neighbours[first[v] .. first[v + 1]]`: values in conflict with `v`.
    first: Vec<u32>,
    neighbours: Vec<VReg>,
    partner_first: Vec<u32>,
    partners: Vec<VReg>,
    colour: Vec<Option<Loc>>,
    live: LiveSet,
}

/// A set of virtual registers with O(1) insertion, removal and membership, and fast iteration.
#[derive(Debug, Default)]
struct LiveSet {
    members: Vec<VReg>,
    position: Vec<u32>,
}

const ABSENT: u32 = u32::MAX;

impl LiveSet {
    fn reset(&mut self, vregs: u32) {
        self.members.clear();
        self.position.clear();
        self.position.resize(vregs as usize, ABSENT);
    }
    fn clear(&mut self) {
        for v in self.members.drain(..) {
            self.position[v.index()] = ABSENT;
        }
    }
    fn insert(&mut self, v: VReg) {
        if self.position[v.index()] == ABSENT {
            self.position[v.index()] = self.members.len() as u32;
            self.members.push(v);
        }
    }
    fn remove(&mut self, v: VReg) {
        let at = core::mem::replace(&mut self.position[v.index()], ABSENT);
        if at != ABSENT {
            self.members.swap_remove(at as usize);
            if let Some(moved) = self.members.get(at as usize) {
                self.position[moved.index()] = at;
            }
        }
    }
}

impl Allocator {
    /// Allocates one function into `out`.
    pub fn allocate(&mut self, func: &Func, machine: &MachineDesc, options: &AllocOptions, out: &mut Alloc) {
        self.collect(func, machine);
        index_pairs(func.vregs, &self.conflicts, &mut self.first, &mut self.neighbours);
        index_pairs(func.vregs, &self.moves, &mut self.partner_first, &mut self.partners);
        self.colour(func, machine, options, out);
    }

    /// Walks every block backward and records what constrains each value.
    fn collect(&mut self, func: &Func, machine: &MachineDesc) {
        let n = func.vregs as usize;
        self.forbidden.clear();
        self.forbidden.resize(n, HostRegSet::EMPTY);
        self.wanted.clear();
        self.wanted.resize(n, HostRegSet::EMPTY);
        self.conflicts.clear();
        self.moves.clear();
        self.live.reset(func.vregs);

        let call = FixedOperands { clobbers: machine.call_clobbers(), ..FixedOperands::default() };
        for block in func.blocks.iter().rev() {
            self.live.clear();
            for v in func.live_out(block) {
                self.live.insert(*v);
            }
            for op in func.block_ops(block).iter().rev() {
                self.visit(op, machine, &call);
            }
        }
        // Block 0 was visited last: what is live now is live at entry, where the parameters come into being together.
        for (param, reg) in func.params.iter().zip(machine.args).chain([(&func.ctx, machine.ctx)]) {
            if let Some(v) = *param {
                self.define(v, None);
                self.live.insert(v);
                self.wanted[v.index()].insert(reg);
            }
        }
    }

    /// A value comes into being: it conflicts with all that live on, but for the one it is a copy of.
    fn define(&mut self, v: VReg, copy_of: Option<VReg>) {
        self.live.remove(v);
        let conflicts = self.live.members.iter().filter(|o| Some(**o) != copy_of).map(|o| (v, *o));
        self.conflicts.extend(conflicts);
    }

    fn visit(&mut self, op: &Op, machine: &MachineDesc, call: &FixedOperands) {
        let fixed = if let Op::Call { .. } = op { call } else { machine.fixed(op) };
        if let Some(dst) = op.def() {
            let copy_of = match *op {
                Op::Mov { width: Width::W64, src: Val::Reg(src), .. } => Some(src),
                _ => None,
            };
            self.define(dst, copy_of);
        }
        if !fixed.clobbers.is_empty() {
            for v in &self.live.members {
                self.forbidden[v.index()] = self.forbidden[v.index()].union(fixed.clobbers);
            }
        }
        self.prefer(op, machine, fixed);
        op.for_each_use(|v| self.live.insert(v));
    }

    /// Notes where the operands of `op` are best.
    fn prefer(&mut self, op: &Op, machine: &MachineDesc, fixed: &FixedOperands) {
        let mut want = |v: VReg, reg: Option<HostReg>| {
            if let Some(reg) = reg {
                self.wanted[v.index()].insert(reg);
            }
        };
        match *op {
            Op::Mov { dst, src: Val::Reg(src), .. } => self.moves.push((dst, src)),
            Op::Bin { dst, a, b, .. } => {
                want(a, fixed.first);
                want(dst, fixed.result);
                if let Val::Reg(b) = b
                    && b != a
                {
                    want(b, fixed.second);
                    self.forbidden[b.index()] = self.forbidden[b.index()].union(fixed.avoid);
                }
                if dst != a {
                    self.moves.push((dst, a));
                }
            }
            Op::CmpXchg { mem, expected, new, dst, .. } => {
                want(expected, fixed.first);
                want(dst, fixed.result);
                let base = if let Base::Reg(base) = mem.base { Some(base) } else { None };
                for v in [Some(new), base].into_iter().flatten().filter(|v| *v != expected) {
                    self.forbidden[v.index()] = self.forbidden[v.index()].union(fixed.avoid);
                }
            }
            Op::Atomic { mem, src, fetch: Some(dst), .. } => {
                want(dst, fixed.result);
                if dst != src {
                    self.moves.push((dst, src));
                }
                let base = if let Base::Reg(base) = mem.base { Some(base) } else { None };
                for v in [Some(src), base].into_iter().flatten() {
                    self.forbidden[v.index()] = self.forbidden[v.index()].union(fixed.avoid);
                }
            }
            Op::Call { args, ctx, ret, .. } => {
                for (arg, reg) in args.into_iter().zip(machine.args) {
                    if let Some(arg) = arg {
                        want(arg, Some(reg));
                    }
                }
                if let Some(ctx) = ctx {
                    want(ctx, Some(machine.ctx));
                }
                if let Some(ret) = ret {
                    want(ret, Some(machine.ret));
                }
            }
            Op::TailCall { arg, ctx, .. } => {
                want(arg, Some(machine.args[0]));
                want(ctx, Some(machine.ctx));
            }
            Op::Exit { value } => want(value, Some(machine.ret)),
            Op::Ext { dst, src, .. }
            | Op::Neg { dst, src, .. }
            | Op::Bswap { dst, src, .. }
            | Op::AddShift { dst, a: src, .. }
            | Op::Select { dst, no: src, .. } => {
                if dst != src {
                    self.moves.push((dst, src));
                }
            }
            Op::Mov { src: Val::Imm(_), .. }
            | Op::FrameAddr { .. }
            | Op::SymAddr { .. }
            | Op::SubprogAddr { .. }
            | Op::Load { .. }
            | Op::Store { .. }
            | Op::LoadAcquire { .. }
            | Op::StoreRelease { .. }
            | Op::Atomic { fetch: None, .. }
            | Op::Check { .. }
            | Op::Bound { .. }
            | Op::Stop { .. }
            | Op::Jump { .. }
            | Op::Branch { .. } => {}
        }
    }

    fn colour(&mut self, func: &Func, machine: &MachineDesc, options: &AllocOptions, out: &mut Alloc) {
        let mut pool = HostRegSet::of(machine.pool);
        if func.stack_bytes > 0
            && let Some(frame) = machine.frame
        {
            pool = pool.without(HostRegSet::of(&[frame]));
        }
        if let Some(only) = options.only {
            pool = pool.intersection(only);
        }
        let callee_saved = HostRegSet::of(machine.callee_saved);
        let mut random = options.seed.map(Random);
        let mut saved = HostRegSet::EMPTY;
        out.slots = 0;
        self.colour.clear();
        self.colour.resize(func.vregs as usize, None);

        for with_preference in [true, false] {
            for v in (0..func.vregs).map(VReg) {
                if self.wanted[v.index()].is_empty() == with_preference {
                    continue;
                }
                let mut allowed = pool.without(self.forbidden[v.index()]);
                for n in range(&self.first, &self.neighbours, v) {
                    if let Some(Loc::Reg(reg)) = self.colour[n.index()] {
                        allowed = allowed.without(HostRegSet::of(&[reg]));
                    }
                }
                let reg = match &mut random {
                    Some(random) => random.pick(allowed),
                    None => self.choose(v, allowed, callee_saved, saved, machine),
                };
                self.colour[v.index()] = Some(match reg {
                    Some(reg) => {
                        if callee_saved.contains(reg) {
                            saved.insert(reg);
                        }
                        Loc::Reg(reg)
                    }
                    None => {
                        out.slots += 1;
                        Loc::Slot(out.slots - 1)
                    }
                });
            }
        }
        out.locs.clear();
        // Every value got a location above.
        out.locs.extend(self.colour.iter().map(|c| c.unwrap_or(Loc::Slot(0))));
        out.saves.clear();
        out.saves.extend(machine.callee_saved.iter().filter(|r| saved.contains(**r)));
    }

    /// The best allowed register: one that saves a move and costs no save, else the cheapest.
    fn choose(
        &self,
        v: VReg,
        allowed: HostRegSet,
        callee_saved: HostRegSet,
        saved: HostRegSet,
        machine: &MachineDesc,
    ) -> Option<HostReg> {
        let free = allowed.without(callee_saved.without(saved));
        let wanted = self.wanted[v.index()].intersection(free);
        if let Some(reg) = machine.pool.iter().find(|r| wanted.contains(**r)) {
            return Some(*reg);
        }
        for partner in range(&self.partner_first, &self.partners, v) {
            match self.colour[partner.index()] {
                Some(Loc::Reg(reg)) if free.contains(reg) => return Some(reg),
                Some(Loc::Reg(_) | Loc::Slot(_)) | None => {}
            }
        }
        // A partner still to come has wishes of its own.
        for partner in range(&self.partner_first, &self.partners, v) {
            let wanted = self.wanted[partner.index()].without(self.forbidden[partner.index()]).intersection(free);
            if self.colour[partner.index()].is_none()
                && let Some(reg) = machine.pool.iter().find(|r| wanted.contains(**r))
            {
                return Some(*reg);
            }
        }
        machine
            .pool
            .iter()
            .find(|r| free.without(callee_saved).contains(**r))
            .or_else(|| machine.callee_saved.iter().find(|r| free.contains(**r)))
            .or_else(|| machine.callee_saved.iter().find(|r| allowed.contains(**r)))
            .copied()
    }
}

fn range<'a>(first: &[u32], of: &'a [VReg], v: VReg) -> &'a [VReg] {
    &of[first[v.index()] as usize..first[v.index() + 1] as usize]
}

/// Turns a list of unordered pairs into, for each member, the list of its others (counting sort).
fn index_pairs(n: u32, pairs: &[(VReg, VReg)], first: &mut Vec<u32>, others: &mut Vec<VReg>) {
    first.clear();
    first.resize(n as usize + 1, 0);
    for (a, b) in pairs {
        first[a.index()] += 1;
        first[b.index()] += 1;
    }
    let mut sum = 0;
    for f in first.iter_mut() {
        sum += *f;
        *f = sum;
    }
    others.clear();
    others.resize(pairs.len() * 2, VReg(0));
    for (a, b) in pairs {
        for (x, y) in [(a, b), (b, a)] {
            first[x.index()] -= 1;
            others[first[x.index()] as usize] = *y;
        }
    }
}

/// splitmix64: random allocations must be repeatable from their seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// One of `allowed`, or one time in eight none.
    fn pick(&mut self, allowed: HostRegSet) -> Option<HostReg> {
        if allowed.is_empty() || self.next().is_multiple_of(8) {
            return None;
        }
        let i = self.next() % u64::from(allowed.len());
        allowed.iter().nth(i as usize)
    }
}
