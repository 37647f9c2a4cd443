//! Register allocation.
//!
//! Problem: give every virtual register a host register for its whole life, or a stack slot, so that (1) two that hold
//! different values at the same time do not share one, (2) what lives across a call or another op with fixed operands
//! is not where that op writes, (3) callee-saved registers, which cost a save, go only to values that live across
//! calls, and (4) values already are where calls, exits and fixed operands want them.
//!
//! Approach: one backward walk over the blocks gives exact interference, clobbers and preferences; then greedy
//! colouring, values with preferences first. An interference is written down once, with the value that comes into being
//! while the other lives: a copy of the live list, and no list is ever sorted, turned round or searched. BPF has ten
//! registers and a lowered program at most a few values more, fewer than either machine has registers, so greedy
//! colouring rarely needs a slot; where it does, a slot is always correct, and the values are coloured once more in a
//! better order (`simplify`), in which those of inner loops are not the ones that go without. Slots are shared as
//! registers are. Linear in ops times live values.
//!
//! Invariant: any outcome that respects (1) and (2) is correct. `AllocOptions` makes random ones, for tests.

use crate::machine::{FixedOperands, HostReg, HostRegSet, MachineDesc};
use crate::simplify::Simplify;
use crate::weights::Weights;
use bpf_isa::Width;
use bpf_lir::{Base, BinOp, Func, Liveness, Mem, Op, TailKey, VReg, Val};
use bpf_opt::{Takes, carried, held};
use core::ops::Range;

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
    /// By virtual register: nobody has it in a register. It is read once, by the op after the one that makes it, which
    /// takes it from memory or makes it on the way ([`bpf_opt::held`]); its location means nothing.
    pub held: Vec<bool>,
}

impl Alloc {
    /// Where `reg` lives.
    pub fn loc(&self, reg: VReg) -> Loc {
        self.locs[reg.index()]
    }

    /// Whether `reg` is in no register.
    #[inline(always)]
    pub fn is_held(&self, reg: VReg) -> bool {
        self.held.get(reg.index()) == Some(&true)
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
    /// Of functions with loops.
    liveness: Liveness,
    /// By block.
    targets: Vec<Target>,
    /// What is live into the blocks that jumps lead to, one list after another.
    live_in: Vec<VReg>,
    values: Vec<Value>,
    /// The values live after each definition, one list after another.
    conflicts: Vec<VReg>,
    definitions: Vec<Definition>,
    partners: Vec<Partner>,
    live: Vec<VReg>,
    order: Vec<VReg>,
    weights: Weights,
    simplify: Simplify,
    /// By value, where the machine has such operands: how often it is read and written, up to 3, and once it was found
    /// to be in no register, [`HELD`].
    named: Vec<u8>,
}

/// What is known of one virtual register.
#[derive(Clone, Debug)]
struct Value {
    /// Registers it must not be in: clobbered while it lives.
    forbidden: HostRegSet,
    /// Registers in which it would save a move.
    wanted: HostRegSet,
    /// Registers of values that got theirs already and were defined while this one was live.
    taken: HostRegSet,
    /// Its own register, once it has one.
    own: HostRegSet,
    /// The same of slots, by bit; those from the 64th on are not shared.
    taken_slots: u64,
    own_slots: u64,
    loc: Option<Loc>,
    /// Its place among the live values, or [`NONE`].
    live_at: u32,
    /// Head of the list of its definitions.
    definitions: u32,
    /// Head of the list of values that a move connects it with.
    partners: u32,
    /// It is a copy of another value, or was copied, somewhere.
    copied: bool,
}

/// Whether a jump leads to a block.
#[derive(Clone, Copy, Debug)]
enum Target {
    /// None so far.
    No,
    /// None from before it.
    Passed,
    /// Some, and it comes after them.
    Ahead,
    /// Some; once it was walked, what is live into it.
    Known {
        /// In `live_in`.
        start: u32,
        /// In `live_in`.
        end: u32,
    },
}

const NONE: u32 = u32::MAX;

/// Whether this fault of [`bpf_opt::faults`] is planted.
macro_rules! planted {
    ($fault:ident) => {
        bpf_isa::planted_in!(bpf_opt::faults, $fault)
    };
}

/// Of a value that is in no register.
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

/// A definition of a value conflicts with the values live after it: `conflicts[start .. end]`.
#[derive(Clone, Copy, Debug)]
struct Definition {
    start: u32,
    end: u32,
    /// The value's next definition.
    next: u32,
}

/// A value that a move connects with another one.
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

    /// Walks every block backward and records what constrains each value.
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
        // The entry was visited last: what is live now is live at entry, where the parameters come into being together.
        for (param, reg) in func.params.iter().zip(machine.args).chain([(&func.ctx, machine.ctx)]) {
            if let Some(v) = *param {
                self.define(v, None);
                self.read(v);
                self.want(v, Some(reg));
            }
        }
    }

    /// Finds which values are copied, and counts how often each is named.
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
                // What is in memory is found there after the other operand has come to the result's place.
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

    /// A value no longer lives, and conflicts with none.
    fn forget(&mut self, v: VReg) {
        let at = core::mem::replace(&mut self.value(v).live_at, NONE);
        if at != NONE {
            self.live.swap_remove(at as usize);
            if let Some(moved) = self.live.get(at as usize) {
                self.values[moved.index()].live_at = at;
            }
        }
    }

    /// Finds the blocks that some jump leads to; says whether one leads back.
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

    /// All blocks where no jump leads back: each block's successors are walked before it, so that its live-out values
    /// are known then.
    fn walk_forward(&mut self, func: &Func, machine: &MachineDesc, call_clobbers: HostRegSet) {
        self.live_in.clear();
        for (block, ops) in func.in_order().rev() {
            // What is live now is live into the next block of the order.
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

    /// All blocks of a function with loops.
    fn walk_loops(&mut self, func: &Func, machine: &MachineDesc, call_clobbers: HostRegSet) {
        // Taken out while it is read.
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

    /// A value is read, so it lives before.
    #[inline(always)]
    fn read(&mut self, v: VReg) {
        let live_at = crate::num::small(self.live.len());
        let value = self.value(v);
        if value.live_at == NONE {
            value.live_at = live_at;
            self.live.push(v);
        }
    }

    /// A value comes into being: it conflicts with all that live on, but for the one it is a copy of.
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

    /// `dst` = some function of `from`, best in the same register.
    ///
    /// Where they are one value, it lives on, and so do all others: each pair of them conflicts already where the later
    /// of the two came into being, unless as a copy of the other, which from here on it is no more.
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

    /// The operands with the one first in whose register the result is best: one that ends here, if the order does not
    /// matter.
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

    /// A move connects two values.
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

    /// What lives here lives across an op that overwrites these registers.
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

    /// One op, backward: its result ends, what it overwrites is forbidden to all that live across it, its operands
    /// begin; and where each would best be.
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

    /// Arithmetic that insists on registers.
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
        // Those with preferences first. Which is which cannot be foreseen, so they are sorted without a branch.
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

    /// Gives each value its place, in this order.
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
                // Any that is not saved: nobody looks.
                let nowhere =
                    machine.pool.iter().find(|reg| !callee_saved.contains(**reg)).copied().unwrap_or_default();
                self.values[v.index()].loc = Some(Loc::Reg(nowhere));
                continue;
            }
            let value = &self.values[v.index()];
            // Conflicts are recorded on one side: what was defined while this was live has left its register here, ...
            let mut allowed = pool.without(value.forbidden).without(value.taken);
            // ... what was live when this was defined must be asked.
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

    /// Each pair of values that live at once, perhaps several times.
    fn each_conflict(&self, pair: &mut dyn FnMut(VReg, VReg)) {
        for (v, value) in (0..).map(VReg).zip(&self.values) {
            for o in chain(value.definitions, &self.definitions, |d| d.next).flat_map(|d| self.live_after(d)) {
                if *o != v {
                    pair(v, *o);
                }
            }
        }
    }

    /// Tells all that live where a value is defined.
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

    /// A slot that no value is in which lives at the same time: that of one it is copied from or to, which saves the
    /// copy, or else the first one; a new one if there is none of the first 64.
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

    /// The best allowed register: one that saves a move and costs no save, else the cheapest.
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
        // A partner still to come has wishes of its own.
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

/// The op with `v`, which is in memory, on its right.
fn turned(op: &Op, v: VReg) -> Op {
    match *op {
        Op::Bin { op, width, dst, a, b: Val::Reg(b) } if a == v => Op::Bin { op, width, dst, a: b, b: Val::Reg(a) },
        // The result is the other side first.
        Op::Select { width, cond, a, b, dst, yes, no } if no == v => {
            Op::Select { width, cond, a, b, dst, yes: no, no: yes }
        }
        other => other,
    }
}

/// The elements of a list threaded through `all`, from `head` on.
fn chain<T>(head: u32, all: &[T], next: impl Fn(&T) -> u32) -> impl Iterator<Item = &T> {
    core::iter::successors(all.get(head as usize), move |element| all.get(next(element) as usize))
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
        #[expect(clippy::cast_possible_truncation, reason = "a machine has 64 registers at most")]
        let i = (self.next() % u64::from(allowed.len())) as usize;
        allowed.iter().nth(i)
    }
}
