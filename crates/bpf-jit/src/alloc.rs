//! Register allocation.
//!
//! Problem: give every virtual register a host register for its whole life, or a stack slot, so that (1) two values
//! that differ and live at the same time do not share one, (2) a value that lives across a call or another op with
//! fixed operands is not in a register that the op overwrites, (3) callee-saved registers, which cost a save, go only
//! to values that live across calls, and (4) values are in the registers where calls, exits and fixed operands want
//! them.
//!
//! Approach: one backward walk over the blocks finds exact interference, clobbers and preferences. Greedy colouring
//! follows, values with preferences first. An interference is recorded once, with the value that is defined while the
//! other lives: recording copies the list of live values, and no list is sorted, reversed or searched. BPF has ten
//! registers and a lowered program at most a few values more at a time, fewer than either machine has registers, so
//! greedy colouring rarely needs a slot. A slot is always correct. If one is needed, the values are coloured once more
//! in a better order (`simplify`), in which values of inner loops get registers first. Values share slots under the
//! same conditions as registers. The cost is linear in ops times live values.
//!
//! Invariant: any outcome that respects (1) and (2) is correct. `AllocOptions` produces random outcomes, for tests.

use crate::machine::{FixedOperands, HostReg, HostRegSet, MachineDesc};
use crate::simplify::Simplify;
use crate::weights::Weights;
use bpf_isa::Width;
use bpf_lir::{Base, BinOp, Func, Liveness, Mem, Op, TailKey, VReg, Val};
use bpf_opt::{Takes, carried, held};
use core::ops::Range;

/// The location of a virtual register.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Loc {
    /// A host register.
    Reg(HostReg),
    /// The eight-byte stack slot with this index.
    Slot(u32),
}

/// The allocation of one function.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Alloc {
    /// By virtual register: its location.
    pub locs: Vec<Loc>,
    /// Callee-saved registers that the function must save, in save order.
    pub saves: Vec<HostReg>,
    /// Number of stack slots.
    pub slots: u32,
    /// By virtual register: whether it has no location, and its entry in `locs` means nothing. The value is read once,
    /// by the op after the one that defines it, which takes it from memory or computes it ([`bpf_opt::held`]).
    pub held: Vec<bool>,
}

impl Alloc {
    /// Returns the location of `reg`.
    pub fn loc(&self, reg: VReg) -> Loc {
        self.locs[reg.index()]
    }

    /// Whether `reg` has no location.
    #[inline(always)]
    pub fn is_held(&self, reg: VReg) -> bool {
        self.held.get(reg.index()) == Some(&true)
    }
}

/// Options of allocation. Production uses the default. Everything else exists to test that any allocation works.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct AllocOptions {
    /// Use only these registers of the machine's pool. With the empty set, every value is in a slot.
    pub only: Option<HostRegSet>,
    /// Ignore preferences: pick among the allowed registers at random from this seed, and one time in eight a slot.
    pub seed: Option<u64>,
}

/// The allocator and its scratch memory.
#[derive(Debug, Default)]
pub struct Allocator {
    /// Liveness of a function with loops.
    liveness: Liveness,
    /// By block: whether a jump leads to it.
    targets: Vec<Target>,
    /// The values live into each block that a jump leads to, one list after another.
    live_in: Vec<VReg>,
    values: Vec<Value>,
    /// The values live behind each definition, one list after another.
    conflicts: Vec<VReg>,
    definitions: Vec<Definition>,
    partners: Vec<Partner>,
    live: Vec<VReg>,
    order: Vec<VReg>,
    weights: Weights,
    simplify: Simplify,
    /// By value: how often it is read and written, counted up to 3; [`HELD`] once it was found to need no location.
    named: Vec<u8>,
}

/// The constraints and the location of one virtual register.
#[derive(Clone, Debug)]
struct Value {
    /// Registers it must not be in, because they are overwritten while it lives.
    forbidden: HostRegSet,
    /// Registers in which it would save a move.
    wanted: HostRegSet,
    /// Registers of values that were coloured before and are defined while this value lives.
    taken: HostRegSet,
    /// Its own register as a set, once it has one.
    own: HostRegSet,
    /// Slots taken by such values, and its own slot, by bit. Slots from number 64 on are not shared and have no bit.
    taken_slots: u64,
    own_slots: u64,
    loc: Option<Loc>,
    /// Its index in the list of live values, or [`NONE`].
    live_at: u32,
    /// Head of the list of its definitions.
    definitions: u32,
    /// Head of the list of values that a move connects it with.
    partners: u32,
    /// Whether it is a copy of another value, or was copied, somewhere.
    copied: bool,
}

/// Whether jumps lead to a block, as known during a walk.
#[derive(Clone, Copy, Debug)]
enum Target {
    /// No jump was found yet, and the walk has not passed the block.
    No,
    /// No jump from before the block leads to it.
    Passed,
    /// A jump leads to the block, which comes later in the order.
    Ahead,
    /// A jump leads to the block. Once the block was walked: the part of `live_in` with the values live into it.
    Known {
        /// Index of the first value in `live_in`.
        start: u32,
        /// Index behind the last value in `live_in`.
        end: u32,
    },
}

const NONE: u32 = u32::MAX;

/// Whether this fault of [`bpf_opt::faults`] is planted on this thread.
macro_rules! planted {
    ($fault:ident) => {
        bpf_isa::planted_in!(bpf_opt::faults, $fault)
    };
}

/// Stands for the count of a value that needs no location.
const HELD: u8 = 4;

const FRESH: Value = Value {
    forbidden: HostRegSet::EMPTY,
    wanted: HostRegSet::EMPTY,
    taken: HostRegSet::EMPTY,
    own: HostRegSet::EMPTY,
    taken_slots: 0,
    own_slots: 0,
    loc: None,
    live_at: NONE,
    definitions: NONE,
    partners: NONE,
    copied: false,
};

/// A definition of a value, which conflicts with the values live behind it: `conflicts[start .. end]`.
#[derive(Clone, Copy, Debug)]
struct Definition {
    start: u32,
    end: u32,
    /// Index of the value's next definition in the list.
    next: u32,
}

/// An element of a list of values that a move connects with another value.
#[derive(Clone, Copy, Debug)]
struct Partner {
    value: VReg,
    next: u32,
}

impl Allocator {
    /// Allocates one function into `out`.
    pub fn allocate(&mut self, func: &Func, machine: &MachineDesc, options: &AllocOptions, out: &mut Alloc) {
        self.collect(func, machine);
        self.colour(func, machine, options, out);
    }

    /// Walks every block backward and records the constraints of each value.
    fn collect(&mut self, func: &Func, machine: &MachineDesc) {
        self.values.clear();
        self.values.resize(func.vregs as usize, FRESH);
        self.conflicts.clear();
        self.definitions.clear();
        self.partners.clear();
        self.live.clear();
        self.count(func);
        let call_clobbers = machine.call_clobbers();
        if self.find_targets(func) {
            self.walk_loops(func, machine, call_clobbers);
        } else {
            self.walk_forward(func, machine, call_clobbers);
        }
        // The entry was walked last, so the values live now are live at entry, where the parameters are defined
        // together.
        for (param, reg) in func.params.iter().zip(machine.args).chain([(&func.ctx, machine.ctx)]) {
            if let Some(v) = *param {
                self.define(v, None);
                self.read(v);
                self.want(v, Some(reg));
            }
        }
    }

    /// Finds which values are copied, and counts how often each is read and written.
    fn count(&mut self, func: &Func) {
        self.named.clear();
        self.named.resize(func.vregs as usize, 0);
        let named = &mut self.named;
        let mut name = |v: VReg| {
            if let Some(count) = named.get_mut(v.index()) {
                *count = (*count + 1).min(3);
            }
        };
        func.entry_values().for_each(&mut name);
        for op in func.all_ops() {
            if let Op::Mov { width, dst, src: Val::Reg(src) } = *op {
                let copied = width == Width::W64;
                self.values[dst.index()].copied |= copied;
                self.values[src.index()].copied |= copied;
                name(src);
                name(dst);
            } else {
                op.for_each_use(&mut name);
                op.def().into_iter().for_each(&mut name);
            }
        }
    }

    /// Walks the ops of a block backward.
    fn visit_block(&mut self, ops: &[Op], machine: &MachineDesc, call_clobbers: HostRegSet) {
        let mut left = ops;
        while let Some((op, before)) = left.split_last() {
            left = before;
            if let Some(maker) = before.last()
                && let Some(v) = held(machine.addresses.operands, maker, op)
                // Written once and read once.
                && self.named[v.index()] == 2
            {
                self.named[v.index()] = HELD;
                // An operand from memory is loaded after the other operand was moved to the result's place, so the
                // address must live on there.
                if machine.addresses.operands == Takes::Memory && carried(maker, op).is_none() {
                    maker.for_each_use(|v| self.read(v));
                }
                self.visit(&turned(op, v), machine, call_clobbers);
                self.forget(v);
                maker.for_each_use(|v| self.read(v));
                if let Some((_, before)) = left.split_last() {
                    left = before;
                }
            } else {
                self.visit(op, machine, call_clobbers);
            }
        }
    }

    /// Ends the life of a value without recording conflicts.
    fn forget(&mut self, v: VReg) {
        let at = core::mem::replace(&mut self.value(v).live_at, NONE);
        if at != NONE {
            self.live.swap_remove(at as usize);
            if let Some(moved) = self.live.get(at as usize) {
                self.values[moved.index()].live_at = at;
            }
        }
    }

    /// Finds the blocks that jumps lead to; returns whether a jump leads backward.
    fn find_targets(&mut self, func: &Func) -> bool {
        self.targets.clear();
        self.targets.resize(func.blocks.len(), Target::No);
        let mut back = false;
        for (block, _) in func.in_order() {
            self.targets[block.index()] = match self.targets[block.index()] {
                Target::No | Target::Passed => Target::Passed,
                Target::Ahead | Target::Known { .. } => Target::Known { start: 0, end: 0 },
            };
            if let Some(taken) = func.ends(block).taken {
                match &mut self.targets[taken.index()] {
                    Target::Passed | Target::Known { .. } => back = true,
                    target => *target = Target::Ahead,
                }
            }
        }
        back
    }

    /// Walks a function without backward jumps: each block's successors are walked before it, so its live-out values
    /// are known.
    fn walk_forward(&mut self, func: &Func, machine: &MachineDesc, call_clobbers: HostRegSet) {
        self.live_in.clear();
        for (block, ops) in func.in_order().rev() {
            // The values live now are live into the next block of the order.
            let ends = func.ends(block);
            if !ends.falls {
                self.forget_live();
            }
            if let Some(Target::Known { start, end }) = ends.taken.map(|b| self.targets[b.index()]) {
                for i in start..end {
                    self.read(self.live_in[i as usize]);
                }
            }
            self.visit_block(ops, machine, call_clobbers);
            if let Target::Known { .. } = self.targets[block.index()] {
                let start = crate::num::small(self.live_in.len());
                self.live_in.extend_from_slice(&self.live);
                self.targets[block.index()] = Target::Known { start, end: crate::num::small(self.live_in.len()) };
            }
        }
    }

    /// Walks a function with loops, whose liveness is computed first.
    fn walk_loops(&mut self, func: &Func, machine: &MachineDesc, call_clobbers: HostRegSet) {
        // Taken out of `self` while it is read.
        let mut liveness = core::mem::take(&mut self.liveness);
        liveness.build(func);
        for (block, ops) in func.in_order().rev() {
            self.forget_live();
            for v in liveness.live_out(block) {
                self.read(*v);
            }
            self.visit_block(ops, machine, call_clobbers);
        }
        self.liveness = liveness;
    }

    fn forget_live(&mut self) {
        for v in self.live.drain(..) {
            self.values[v.index()].live_at = NONE;
        }
    }

    #[inline(always)]
    fn value(&mut self, v: VReg) -> &mut Value {
        &mut self.values[v.index()]
    }

    /// Records that a value is read, so it lives before this point.
    #[inline(always)]
    fn read(&mut self, v: VReg) {
        let live_at = crate::num::small(self.live.len());
        let value = self.value(v);
        if value.live_at == NONE {
            value.live_at = live_at;
            self.live.push(v);
        }
    }

    /// Records that a value is defined: it conflicts with all values that live on, except the value that it is a copy
    /// of.
    #[inline(always)]
    fn define(&mut self, v: VReg, copy_of: Option<VReg>) {
        self.forget(v);
        let start = crate::num::small(self.conflicts.len());
        match copy_of {
            None => self.conflicts.extend_from_slice(&self.live),
            Some(copied) => self.conflicts.extend(self.live.iter().filter(|o| **o != copied)),
        }
        let end = crate::num::small(self.conflicts.len());
        if start < end {
            let next =
                core::mem::replace(&mut self.values[v.index()].definitions, crate::num::small(self.definitions.len()));
            self.definitions.push(Definition { start, end, next });
        }
    }

    /// Records that `dst` is computed from `from`, best in the same register.
    ///
    /// If both are one value, it lives on, as all others do. Each pair of them already conflicts, recorded at the later
    /// of their two definitions, except where that was a copy of the other. From here on a copy differs from its
    /// original, so the conflicts of a copied value are recorded here.
    #[inline(always)]
    fn change(&mut self, dst: VReg, from: VReg) {
        if dst != from {
            self.define(dst, None);
            self.connect(dst, from);
        } else if self.values[dst.index()].copied {
            self.define(dst, None);
        }
        self.read(from);
    }

    /// Returns the operands with the one first in whose register the result is best: for a commutative op, the operand
    /// that ends here.
    #[inline(always)]
    fn in_place(&self, op: &Op, dst: VReg, a: VReg, b: Val) -> (VReg, Val) {
        let lives = |v: VReg| self.values[v.index()].live_at != NONE;
        match (op, b) {
            (Op::Bin { op: BinOp::Add | BinOp::Mul | BinOp::And | BinOp::Or | BinOp::Xor, .. }, Val::Reg(second))
                if dst != a && (dst == second || (lives(a) && !lives(second))) =>
            {
                (second, Val::Reg(a))
            }
            (_, Val::Reg(_) | Val::Imm(_)) => (a, b),
        }
    }

    /// Records that a move connects two values.
    #[inline(always)]
    fn connect(&mut self, a: VReg, b: VReg) {
        if a != b {
            for (v, value) in [(a, b), (b, a)] {
                let next =
                    core::mem::replace(&mut self.values[v.index()].partners, crate::num::small(self.partners.len()));
                self.partners.push(Partner { value, next });
            }
        }
    }

    #[inline(always)]
    fn want(&mut self, v: VReg, reg: Option<HostReg>) {
        if let Some(reg) = reg {
            self.value(v).wanted.insert(reg);
        }
    }

    fn avoid(&mut self, v: VReg, regs: HostRegSet) {
        let value = self.value(v);
        value.forbidden = value.forbidden.union(regs);
    }

    /// Forbids registers to all values that live here: an op that they live across overwrites the registers.
    fn clobber(&mut self, regs: HostRegSet) {
        if planted!(ClobbersIgnored) {
            return;
        }
        for v in &self.live {
            let forbidden = &mut self.values[v.index()].forbidden;
            *forbidden = forbidden.union(regs);
        }
    }

    #[inline(always)]
    fn read_val(&mut self, v: Val) {
        if let Val::Reg(v) = v {
            self.read(v);
        }
    }

    #[inline(always)]
    fn read_mem(&mut self, mem: Mem) {
        match mem.base {
            Base::Reg(base) => self.read(base),
            Base::Frame => {}
            Base::Indexed { base, index, .. } => {
                self.read(base);
                self.read(index);
            }
        }
    }

    /// Walks one op backward: its result ends, the registers that it overwrites are forbidden to all values that live
    /// across it, its operands begin to live, and preferences are recorded.
    #[inline(always)]
    fn visit(&mut self, op: &Op, machine: &MachineDesc, call_clobbers: HostRegSet) {
        match *op {
            Op::Mov { dst, src: Val::Imm(_), .. }
            | Op::FrameAddr { dst, .. }
            | Op::SymAddr { dst, .. }
            | Op::SubprogAddr { dst, .. } => self.define(dst, None),
            Op::Mov { width, dst, src: Val::Reg(src) } => {
                self.define(dst, if width == Width::W64 { Some(src) } else { None });
                self.connect(dst, src);
                self.read(src);
            }
            Op::Ext { dst, src, .. } | Op::Neg { dst, src, .. } | Op::Bswap { dst, src, .. } => self.change(dst, src),
            Op::Bin { dst, a, b, .. } => {
                let fixed = machine.fixed(op);
                if fixed.is_plain() {
                    let (a, b) = self.in_place(op, dst, a, b);
                    self.change(dst, a);
                    self.read_val(b);
                } else {
                    self.bin(dst, a, b, fixed);
                }
            }
            Op::AddShift { dst, a, b, .. } => {
                self.change(dst, a);
                self.read(b);
            }
            Op::Select { dst, a, b, yes, no, .. } | Op::Confine { dst, a, limit: b, yes, no } => {
                self.change(dst, no);
                self.read(yes);
                self.read(a);
                self.read_val(b);
            }
            Op::Load { dst, mem, .. } | Op::LoadAcquire { dst, mem, .. } => {
                self.define(dst, None);
                self.read_mem(mem);
            }
            Op::Store { mem, src, .. } => {
                self.read_mem(mem);
                self.read_val(src);
            }
            Op::StoreRelease { mem, src, .. } => {
                self.read_mem(mem);
                self.read(src);
            }
            Op::Atomic { mem, src, fetch, .. } => {
                let fixed = machine.fixed(op);
                if let Some(dst) = fetch {
                    self.define(dst, None);
                }
                self.clobber(fixed.clobbers);
                if let Some(dst) = fetch {
                    self.want(dst, fixed.result);
                    self.connect(dst, src);
                    self.avoid(src, fixed.avoid);
                    if let Base::Reg(base) = mem.base {
                        self.avoid(base, fixed.avoid);
                    }
                }
                self.read_mem(mem);
                self.read(src);
            }
            Op::CmpXchg { mem, expected, new, dst, .. } => {
                let fixed = machine.fixed(op);
                self.define(dst, None);
                self.clobber(fixed.clobbers);
                self.want(expected, fixed.first);
                self.want(dst, fixed.result);
                let base = if let Base::Reg(base) = mem.base { Some(base) } else { None };
                for v in [Some(new), base].into_iter().flatten().filter(|v| *v != expected) {
                    self.avoid(v, fixed.avoid);
                }
                self.read_mem(mem);
                self.read(expected);
                self.read(new);
            }
            Op::Call { args, ctx, ret, .. } => {
                if let Some(ret) = ret {
                    self.define(ret, None);
                    self.want(ret, Some(machine.ret));
                }
                self.clobber(call_clobbers);
                for (arg, reg) in args.into_iter().zip(machine.args).chain([(ctx, machine.ctx)]) {
                    if let Some(arg) = arg {
                        self.want(arg, Some(reg));
                        self.read(arg);
                    }
                }
            }
            Op::TailCall { key, arg, ctx, .. } => {
                self.clobber(machine.fixed(op).clobbers);
                self.want(arg, Some(machine.args[0]));
                self.want(ctx, Some(machine.ctx));
                if let TailKey::Dynamic { table, index } = key {
                    self.read(table);
                    self.read(index);
                }
                self.read(arg);
                self.read(ctx);
            }
            Op::Check { ctx, .. } | Op::Stop { ctx, .. } => self.read(ctx),
            Op::Bound { a, limit, ctx } => {
                self.read(a);
                self.read_val(limit);
                self.read(ctx);
            }
            Op::Jump { .. } => {}
            Op::Branch { a, b, .. } => {
                self.read(a);
                self.read_val(b);
            }
            Op::Exit { value } => {
                self.want(value, Some(machine.ret));
                self.read(value);
            }
        }
    }

    /// Walks an arithmetic op with fixed operands backward.
    fn bin(&mut self, dst: VReg, a: VReg, b: Val, fixed: &FixedOperands) {
        self.define(dst, None);
        self.clobber(fixed.clobbers);
        self.want(a, fixed.first);
        self.want(dst, fixed.result);
        if let Val::Reg(b) = b
            && b != a
        {
            self.want(b, fixed.second);
            self.avoid(b, fixed.avoid);
        }
        self.connect(dst, a);
        self.read(a);
        self.read_val(b);
    }

    fn colour(&mut self, func: &Func, machine: &MachineDesc, options: &AllocOptions, out: &mut Alloc) {
        let mut pool = machine.pool_set;
        if func.stack_bytes > 0
            && let Some(frame) = machine.frame
        {
            pool = pool.without(HostRegSet::of(&[frame]));
        }
        if let Some(only) = options.only {
            pool = pool.intersection(only);
        }
        // Values with preferences first. Whether a value has one is unpredictable, so the values are divided without a
        // branch.
        let vregs = func.vregs as usize;
        self.order.clear();
        self.order.resize(2 * vregs, VReg(0));
        let (wishing, plain) = self.order.split_at_mut(vregs);
        let mut wishes = 0;
        for (v, value) in self.values.iter().enumerate() {
            wishing[wishes] = VReg(crate::num::small(v));
            plain[v - wishes] = VReg(crate::num::small(v));
            wishes += usize::from(!value.wanted.is_empty());
        }
        self.colour_in_order((0..wishes, vregs..2 * vregs - wishes), pool, machine, options, out);
        if out.slots > 0 && options.seed.is_none() {
            let mut simplify = core::mem::take(&mut self.simplify);
            let (mut order, mut weights) = (core::mem::take(&mut self.order), core::mem::take(&mut self.weights));
            let registers = self.values.iter().map(|value| pool.without(value.forbidden).len());
            let conflicts = (self.conflicts.len(), |pair: &mut dyn FnMut(VReg, VReg)| self.each_conflict(pair));
            simplify.order(weights.of(func), registers, conflicts, &mut order);
            (self.simplify, self.order, self.weights) = (simplify, order, weights);
            for value in &mut self.values {
                (value.loc, value.own, value.taken) = (None, HostRegSet::EMPTY, HostRegSet::EMPTY);
                (value.own_slots, value.taken_slots) = (0, 0);
            }
            self.colour_in_order((0..vregs, 0..0), pool, machine, options, out);
        }
    }

    /// Gives each value its location, in this order.
    fn colour_in_order(
        &mut self,
        (first, second): (Range<usize>, Range<usize>),
        pool: HostRegSet,
        machine: &MachineDesc,
        options: &AllocOptions,
        out: &mut Alloc,
    ) {
        let callee_saved = machine.saved_set;
        let mut random = options.seed.map(Random);
        let mut saved = HostRegSet::EMPTY;
        out.slots = 0;
        for i in first.chain(second) {
            let v = self.order[i];
            if self.named.get(v.index()) == Some(&HELD) {
                // The location of a value without one is never read; a register that needs no save is entered.
                let nowhere =
                    machine.pool.iter().find(|reg| !callee_saved.contains(**reg)).copied().unwrap_or_default();
                self.values[v.index()].loc = Some(Loc::Reg(nowhere));
                continue;
            }
            let value = &self.values[v.index()];
            // Conflicts are recorded on one side. `taken` has the registers of values that were defined while this
            // value lived.
            let mut allowed = pool.without(value.forbidden).without(value.taken);
            // The registers of values that lived when this value was defined are looked up here.
            for o in chain(value.definitions, &self.definitions, |d| d.next).flat_map(|d| self.live_after(d)) {
                if !planted!(ConflictsIgnored) {
                    allowed = allowed.without(self.values[o.index()].own);
                }
            }
            let reg = match &mut random {
                Some(random) => random.pick(allowed),
                None => self.choose(v, allowed, callee_saved, saved, machine),
            };
            let Some(reg) = reg else {
                let slot = self.choose_slot(v, out.slots);
                out.slots = out.slots.max(slot + 1);
                self.values[v.index()].loc = Some(Loc::Slot(slot));
                let own = 1u64.checked_shl(slot).unwrap_or(0);
                self.values[v.index()].own_slots = own;
                self.tell(v, |value| value.taken_slots |= own);
                continue;
            };
            let own = HostRegSet::of(&[reg]);
            saved = saved.union(own.intersection(callee_saved));
            let value = &mut self.values[v.index()];
            (value.loc, value.own) = (Some(Loc::Reg(reg)), own);
            self.tell(v, |value| value.taken = value.taken.union(own));
        }
        out.locs.clear();
        // Every value got a location above.
        out.locs.extend(self.values.iter().map(|value| value.loc.unwrap_or(Loc::Slot(0))));
        out.held.clear();
        out.held.extend(self.named.iter().map(|named| *named == HELD));
        out.saves.clear();
        out.saves.extend(machine.callee_saved.iter().filter(|r| saved.contains(**r)));
    }

    /// Calls `pair` with each pair of values that live at the same time, possibly several times.
    fn each_conflict(&self, pair: &mut dyn FnMut(VReg, VReg)) {
        for (v, value) in (0..).map(VReg).zip(&self.values) {
            for o in chain(value.definitions, &self.definitions, |d| d.next).flat_map(|d| self.live_after(d)) {
                if *o != v {
                    pair(v, *o);
                }
            }
        }
    }

    /// Calls `what` with each value that lives where `v` is defined.
    #[inline(always)]
    fn tell(&mut self, v: VReg, mut what: impl FnMut(&mut Value)) {
        let mut definition = self.values[v.index()].definitions;
        while let Some(d) = self.definitions.get(definition as usize) {
            for o in &self.conflicts[d.start as usize..d.end as usize] {
                what(&mut self.values[o.index()]);
            }
            definition = d.next;
        }
    }

    /// Chooses a slot in which no value is that lives at the same time: that of a value that a copy connects with this
    /// one, which saves the copy, or else the lowest. Returns a new slot if none of the first 64 is free.
    fn choose_slot(&self, v: VReg, slots: u32) -> u32 {
        let value = &self.values[v.index()];
        let mut free = !value.taken_slots;
        for o in chain(value.definitions, &self.definitions, |d| d.next).flat_map(|d| self.live_after(d)) {
            if planted!(ConflictsIgnored) {
                continue;
            }
            if planted!(SlotsIgnored) {
                continue;
            }
            free &= !self.values[o.index()].own_slots;
        }
        let mut partners = chain(value.partners, &self.partners, |p| p.next).map(|p| &self.values[p.value.index()]);
        let shared = partners.find(|partner| partner.own_slots & free != 0).map(|partner| partner.own_slots);
        match shared.unwrap_or(free & 1u64.checked_shl(slots).map_or(u64::MAX, |above| above - 1)).trailing_zeros() {
            64 => slots,
            slot => slot,
        }
    }

    fn live_after(&self, definition: &Definition) -> &[VReg] {
        &self.conflicts[definition.start as usize..definition.end as usize]
    }

    /// Chooses the best of the allowed registers: one that saves a move and costs no save, or else the cheapest.
    fn choose(
        &self,
        v: VReg,
        allowed: HostRegSet,
        callee_saved: HostRegSet,
        saved: HostRegSet,
        machine: &MachineDesc,
    ) -> Option<HostReg> {
        let value = &self.values[v.index()];
        let partners = || chain(value.partners, &self.partners, |p| p.next).map(|p| &self.values[p.value.index()]);
        let free = allowed.without(callee_saved.without(saved));
        if let Some(reg) = machine.cheapest(value.wanted.intersection(free)) {
            return Some(reg);
        }
        for partner in partners() {
            match partner.loc {
                Some(Loc::Reg(reg)) if free.contains(reg) => return Some(reg),
                Some(Loc::Reg(_) | Loc::Slot(_)) | None => {}
            }
        }
        // Partners that have no register yet have preferences of their own.
        for partner in partners().filter(|partner| partner.loc.is_none()) {
            let wanted = partner.wanted.without(partner.forbidden).intersection(free);
            if let Some(reg) = machine.cheapest(wanted) {
                return Some(reg);
            }
        }
        let first = |of: &[HostReg], set: HostRegSet| of.iter().copied().find(|r| set.contains(*r));
        first(machine.pool, free.without(callee_saved))
            .or_else(|| first(machine.callee_saved, free))
            .or_else(|| first(machine.callee_saved, allowed))
    }
}

/// Returns the op with `v`, which is an operand in memory or one computed by the op, as its second operand.
fn turned(op: &Op, v: VReg) -> Op {
    match *op {
        Op::Bin { op, width, dst, a, b: Val::Reg(b) } if a == v => Op::Bin { op, width, dst, a: b, b: Val::Reg(a) },
        // The other operand is put into the result's register first.
        Op::Select { width, cond, a, b, dst, yes, no } if no == v => {
            Op::Select { width, cond, a, b, dst, yes: no, no: yes }
        }
        other => other,
    }
}

/// Returns the elements of a linked list in `all`, beginning with element `head`.
fn chain<T>(head: u32, all: &[T], next: impl Fn(&T) -> u32) -> impl Iterator<Item = &T> {
    core::iter::successors(all.get(head as usize), move |element| all.get(next(element) as usize))
}

/// splitmix64. Random allocations must be repeatable from their seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Returns one of `allowed`, or one time in eight none.
    fn pick(&mut self, allowed: HostRegSet) -> Option<HostReg> {
        if allowed.is_empty() || self.next().is_multiple_of(8) {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "a machine has 64 registers at most")]
        let i = (self.next() % u64::from(allowed.len())) as usize;
        allowed.iter().nth(i)
    }
}
