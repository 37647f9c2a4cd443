//! From BPF to [`Lir`], nearly one to one.
//!
//! Problem: BPF has eleven registers, each used for many unrelated values; calls, exits and two-address arithmetic tie values
//! to particular ones. A fixed map from BPF to host registers would carry those ties over as moves. Approach: each *web* (a set of definitions and uses
//! of a register that must share a home) becomes a virtual register. Webs are found while lowering, in one walk: a block's live-in
//! registers take the web of the first predecessor walked; where a later predecessor disagrees, the two webs are united, and the ops are
//! renamed once at the end if that happened at all.
//!
//! r10 needs no register: stack accesses are frame-relative, other uses take the frame address. The may_goto counter and the hidden
//! argument are virtual registers like any other.
//!
//! What is fused here, because it costs a look at the previous op only: `a = b; a op= c` to one three-address op, and a constant added
//! to a frame address.

use crate::lir::{
    AtomicOp, Base, BinOp, Block, BlockId, CallTarget, Check, Func, Lir, Mem, Op, Span, TailKey, VReg, Val,
};
use bpf_analysis::{BlockId as BpfBlock, CallArity, Cfg, ConstMapCall, Facts, Liveness, RegSet, defs, frame_bytes};
use bpf_isa::{
    AluOp, AtomicOp as BpfAtomicOp, ByteOrder, Callee, Cond, EndWidth, Imm64, Insn, InsnIdx, MAY_GOTO_BUDGET, Program,
    Reg, Size, Src, SubprogId, SxWidth, Width,
};
use bpf_jit_code::{RunCtx, Symbol};
use core::ops::Range;

/// What the program refers to outside itself, as a [`Symbol`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Extern {
    /// The function behind a helper id.
    Helper(u32),
    /// A host function, by index.
    Host(u32),
    /// A map, by index: the value BPF sees as the map's pointer.
    Map(u32),
    /// What the two-slot load at this slot loads: a map value or a variable.
    Imm64(InsnIdx),
    /// The environment of the function behind a helper id.
    HelperEnv(u32),
    /// The environment of a host function, by index.
    HostEnv(u32),
    /// The first element of an array map, by index.
    ArrayBase(u32),
    /// The function that looks a key up in a map, by index.
    MapLookup(u32),
}

impl Extern {
    const TAG_SHIFT: u32 = 29;
    const MASK: u32 = (1 << Self::TAG_SHIFT) - 1;

    /// The largest index or id a symbol can carry.
    pub const MAX: u32 = Self::MASK;

    /// As a symbol.
    pub fn symbol(self) -> Symbol {
        let (tag, index) = match self {
            Extern::Helper(id) => (0, id),
            Extern::Host(index) => (1, index),
            Extern::Map(index) => (2, index),
            Extern::Imm64(slot) => (3, slot.0),
            Extern::HelperEnv(id) => (4, id),
            Extern::HostEnv(index) => (5, index),
            Extern::ArrayBase(index) => (6, index),
            Extern::MapLookup(index) => (7, index),
        };
        Symbol(tag << Self::TAG_SHIFT | index & Self::MASK)
    }

    /// What a symbol made by [`Extern::symbol`] stands for.
    pub fn from_symbol(symbol: Symbol) -> Extern {
        let index = symbol.0 & Self::MASK;
        match symbol.0 >> Self::TAG_SHIFT {
            0 => Extern::Helper(index),
            1 => Extern::Host(index),
            2 => Extern::Map(index),
            3 => Extern::Imm64(InsnIdx(index)),
            4 => Extern::HelperEnv(index),
            5 => Extern::HostEnv(index),
            6 => Extern::ArrayBase(index),
            _ => Extern::MapLookup(index),
        }
    }
}

/// What a function outside the program gets besides its arguments.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Hidden {
    /// Nothing.
    Nothing,
    /// The hidden argument.
    Ctx,
    /// The hidden argument, with the function's environment in [`RunCtx::host_env`].
    Env,
}

/// How a look-up in a map may be compiled, where the map is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapShape {
    /// As a call of the helper.
    Opaque,
    /// As a comparison and an address ([`Extern::ArrayBase`]).
    Array {
        /// Number of elements.
        max_entries: u32,
        /// Bytes from one to the next.
        stride: u32,
    },
    /// As a direct call of [`Extern::MapLookup`]`(map, key, slot)`.
    Keyed,
}

/// How the functions outside the program are called.
pub trait Signatures: CallArity {
    /// How a look-up in the map with this index may be compiled.
    fn map(&self, _index: u32) -> MapShape {
        MapShape::Opaque
    }
    /// What the helper with this id gets.
    fn helper_hidden(&self, id: u32) -> Hidden;
    /// What the host function with this index gets.
    fn host_hidden(&self, index: i32) -> Hidden;
}

/// Nothing is known: five arguments and the hidden one.
impl Signatures for () {
    fn helper_hidden(&self, _: u32) -> Hidden {
        Hidden::Ctx
    }
    fn host_hidden(&self, _: i32) -> Hidden {
        Hidden::Ctx
    }
}

/// The kernel's id of the helper that looks a key up in a map.
const MAP_LOOKUP_HELPER: u32 = 1;

/// The kernel's id of the tail-call helper.
pub const TAIL_CALL_HELPER: u32 = 12;

/// What lowering adds to the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LowerOptions {
    /// Count taken back-edges and calls against the run's budget.
    pub budget: bool,
    /// Look for an interruption at the same places.
    pub interrupt: bool,
    /// Stack bytes of a frame whose use is not known.
    pub max_stack: u32,
    /// The target of a tail call finds the raw context's length in r2.
    pub raw_context: bool,
    /// Emit tail calls with constant table and index as direct, patchable sites.
    pub direct_tail_calls: bool,
}

impl Default for LowerOptions {
    /// No budget, no interruption, 512 bytes of stack, raw context, indirect tail calls.
    fn default() -> Self {
        LowerOptions { budget: false, interrupt: false, max_stack: 512, raw_context: true, direct_tail_calls: false }
    }
}

/// The lowering and its scratch memory.
#[derive(Debug, Default)]
pub struct Lowerer {
    cfg: Cfg,
    liveness: Liveness,
    /// Whether each subprogram needs the hidden argument.
    needs_ctx: Vec<bool>,
    webs: Webs,
    /// Web of each register at the start of each block of the program: `block * 11 + register`.
    entry_web: Vec<u32>,
    /// Lir block of each BPF block of the program.
    block_of: Vec<u32>,
    /// Whether the hidden argument is live at the start of each block of the program.
    ctx_live: Vec<bool>,
    /// Whether the may_goto counter is.
    counter_live: Vec<bool>,
    /// Loop edges that need a check, still without a block.
    edges: Vec<Edge>,
}

/// A taken back-edge that passes through a check.
#[derive(Clone, Copy, Debug)]
struct Edge {
    /// The branch op to redirect.
    op: u32,
    target: BpfBlock,
}

const NONE: u32 = u32::MAX;
const NO_WEB: VReg = VReg(NONE);
const REGS: usize = 11;

/// Whether a copy of this width has all that an op of width `reads` reads.
fn covers(copied: Width, reads: Width) -> bool {
    copied == Width::W64 || reads == Width::W32
}

/// Where the web of `reg` at the start of `block` is kept.
fn web_index(block: BpfBlock, reg: Reg) -> usize {
    block.index() * REGS + reg.index()
}

/// Union-find over webs.
#[derive(Debug, Default)]
struct Webs {
    parent: Vec<u32>,
    united: bool,
}

impl Webs {
    fn clear(&mut self) {
        self.parent.clear();
        self.united = false;
    }
    fn fresh(&mut self) -> VReg {
        self.parent.push(self.parent.len() as u32);
        VReg(self.parent.len() as u32 - 1)
    }
    fn find(&mut self, mut w: u32) -> u32 {
        while self.parent[w as usize] != w {
            self.parent[w as usize] = self.parent[self.parent[w as usize] as usize];
            w = self.parent[w as usize];
        }
        w
    }
    fn unite(&mut self, a: u32, b: u32) {
        let (a, b) = (self.find(a), self.find(b));
        if a != b {
            self.parent[a.max(b) as usize] = a.min(b);
            self.united = true;
        }
    }

    /// Replaces every entry by the number of its class, counting classes in order of their first web; returns how many there are.
    fn number(&mut self) -> u32 {
        let mut next = 0;
        // A class is named after its smallest web, so a root is met before the rest of its class.
        for w in 0..self.parent.len() {
            let parent = self.parent[w] as usize;
            self.parent[w] = if parent == w {
                next += 1;
                next - 1
            } else {
                self.parent[parent]
            };
        }
        next
    }
}

impl Lowerer {
    /// Lowers `program` into `lir`, whose memory is reused.
    pub fn lower(
        &mut self,
        program: &Program,
        facts: &Facts,
        signatures: &dyn Signatures,
        options: &LowerOptions,
        lir: &mut Lir,
    ) {
        let arity = Arity(signatures);
        self.cfg.build(program);
        self.liveness.build(program, &self.cfg, &arity);
        self.find_needs_ctx(program, signatures, options);
        self.entry_web.clear();
        self.entry_web.resize(self.cfg.blocks().len() * REGS, NONE);
        self.block_of.clear();
        self.block_of.resize(self.cfg.blocks().len(), NONE);

        lir.funcs.resize_with(program.subprogs().len(), Func::default);
        for (i, func) in lir.funcs.iter_mut().enumerate() {
            func.clear();
            FuncLowerer {
                l: self,
                program,
                facts,
                signatures,
                arity: &arity,
                options,
                func,
                sub: SubprogId(i as u32),
                cur: [NO_WEB; REGS],
                ctx: None,
                counter: None,
                exit_zero: false,
                span: Span::default(),
                open: 0,
            }
            .run();
        }
    }

    /// Which subprograms need the hidden argument: those with an op that reads it, and their callers.
    fn find_needs_ctx(&mut self, program: &Program, signatures: &dyn Signatures, options: &LowerOptions) {
        let n = program.subprogs().len();
        self.needs_ctx.clear();
        self.needs_ctx.resize(n, false);
        // The call graph has no cycle and is at most eight deep, so this settles quickly.
        loop {
            let mut changed = false;
            for i in 0..n {
                if !self.needs_ctx[i] {
                    let sub = program.subprogs()[i];
                    self.needs_ctx[i] =
                        (sub.start..sub.end).any(|slot| self.insn_needs_ctx(program, slot, signatures, options));
                    changed |= self.needs_ctx[i];
                }
            }
            if !changed {
                return;
            }
        }
    }

    /// Whether the instruction at `slot` reads the hidden argument once lowered.
    fn insn_needs_ctx(
        &self,
        program: &Program,
        slot: u32,
        signatures: &dyn Signatures,
        options: &LowerOptions,
    ) -> bool {
        let checks = options.budget || options.interrupt;
        match program.insns()[slot as usize] {
            Insn::LoadAbs { .. } | Insn::LoadInd { .. } => true,
            Insn::Call(callee) => {
                checks
                    || match callee {
                        Callee::Helper(TAIL_CALL_HELPER) => true,
                        Callee::Helper(id) => signatures.helper_hidden(id) != Hidden::Nothing,
                        Callee::Host(index) => signatures.host_hidden(index) != Hidden::Nothing,
                        Callee::Subprog(off) => {
                            subprog_at(program, slot, off).is_some_and(|callee| self.needs_ctx[callee.0 as usize])
                        }
                    }
            }
            ref insn => checks && insn.jump_offset().is_some_and(|off| off < 0),
        }
    }
}

/// The subprogram that a reference at `slot` with offset `off` names.
fn subprog_at(program: &Program, slot: u32, off: i32) -> Option<SubprogId> {
    program.subprog_starting_at(InsnIdx(slot).jump(off)?)
}

/// [`Signatures`] as the analyses want them: the tail call takes the context only as far as liveness is concerned.
struct Arity<'a>(&'a dyn Signatures);

impl CallArity for Arity<'_> {
    fn helper(&self, id: u32) -> u8 {
        if id == TAIL_CALL_HELPER { 3 } else { self.0.helper(id) }
    }
    fn host(&self, index: i32) -> u8 {
        self.0.host(index)
    }
}

/// One function being lowered.
struct FuncLowerer<'a> {
    l: &'a mut Lowerer,
    program: &'a Program,
    facts: &'a Facts,
    signatures: &'a dyn Signatures,
    arity: &'a Arity<'a>,
    options: &'a LowerOptions,
    func: &'a mut Func,
    sub: SubprogId,
    /// Web that each BPF register holds now.
    cur: [VReg; REGS],
    ctx: Option<VReg>,
    counter: Option<VReg>,
    /// Whether some packet load may end the function with 0.
    exit_zero: bool,
    span: Span,
    /// First op of the block being filled.
    open: u32,
}

/// Marks the number of a block of the function among those of BPF blocks, until [`FuncLowerer::retarget`].
const DIRECT: u32 = 1 << 31;

/// Stands for the block that ends the function with 0, until its number is known.
const EXIT_ZERO: BlockId = BlockId(u32::MAX);

impl FuncLowerer<'_> {
    fn run(mut self) {
        let sub = self.program.subprogs()[self.sub.0 as usize];
        let known = self.facts.stack_bytes.get(self.sub.0 as usize).copied();
        let stack = known.unwrap_or_else(|| frame_bytes(self.program, &sub, self.options.max_stack));
        self.func.stack_bytes = stack.next_multiple_of(8);
        self.l.webs.clear();
        self.l.edges.clear();

        let blocks = self.l.cfg.subprog_blocks(self.sub);
        self.find_hidden_live();
        self.enter(BpfBlock(blocks.start));
        for b in blocks.map(BpfBlock) {
            if self.l.cfg.block(b).reachable {
                self.block(b);
            }
        }
        self.finish_edges();
        self.finish_exit_zero();
        self.retarget();
        self.rename();
    }

    /// Where the hidden argument and the may_goto counter are live: wherever an instruction that reads them can be reached.
    fn find_hidden_live(&mut self) {
        let blocks = self.l.cfg.subprog_blocks(self.sub);
        let n = self.l.cfg.blocks().len();
        self.l.ctx_live.resize(n, false);
        self.l.counter_live.resize(n, false);
        let mut counter = false;
        for b in blocks.clone() {
            let block = self.l.cfg.blocks()[b as usize];
            let needs = self.l.needs_ctx[self.sub.0 as usize]
                && (block.start..block.end)
                    .any(|slot| self.l.insn_needs_ctx(self.program, slot, self.signatures, self.options));
            self.l.ctx_live[b as usize] = needs;
            let counts = self.program.insns()[block.start as usize..block.end as usize]
                .iter()
                .any(|insn| matches!(insn, Insn::MayGoto { .. }));
            self.l.counter_live[b as usize] = counts;
            counter |= counts;
        }
        if self.l.needs_ctx[self.sub.0 as usize] {
            flow_back(&self.l.cfg, blocks.clone(), &mut self.l.ctx_live);
        }
        if counter {
            flow_back(&self.l.cfg, blocks, &mut self.l.counter_live);
            self.counter = Some(self.l.webs.fresh());
        }
    }

    /// Parameters, registers read before they are written (they hold zero), and the may_goto counter.
    fn enter(&mut self, entry: BpfBlock) {
        for reg in self.live_in(entry).iter() {
            let v = self.l.webs.fresh();
            self.l.entry_web[web_index(entry, reg)] = v.0;
            match Reg::ARGS.iter().position(|r| *r == reg) {
                Some(i) => self.func.params[i] = Some(v),
                None => self.op(Op::Mov { width: Width::W64, dst: v, src: Val::Imm(0) }),
            }
        }
        if self.l.ctx_live[entry.index()] {
            let v = self.l.webs.fresh();
            self.ctx = Some(v);
            self.func.ctx = Some(v);
        }
        if let Some(counter) = self.counter {
            self.op(Op::Mov { width: Width::W64, dst: counter, src: Val::Imm(MAY_GOTO_BUDGET as i64) });
        }
        // Where a loop leads back to the entry, what was just emitted must not be repeated.
        let blocks = self.l.cfg.subprog_blocks(self.sub);
        let is_loop = self.l.cfg.blocks()[blocks.start as usize..blocks.end as usize]
            .iter()
            .any(|block| block.reachable && block.taken == Some(entry));
        if is_loop && self.open < self.func.ops.len() as u32 {
            let live = self.func.live.len() as u32;
            self.push_live_at(entry);
            self.close(live, self.l.cfg.block(entry).start);
        }
    }

    /// The BPF registers live at the start of a block, without r10, which needs no home.
    fn live_in(&self, b: BpfBlock) -> RegSet {
        self.l.liveness.live_in(b).without(RegSet::of(Reg::R10))
    }

    fn block(&mut self, b: BpfBlock) {
        let block = *self.l.cfg.block(b);
        for reg in self.live_in(b).iter() {
            let web = &mut self.l.entry_web[web_index(b, reg)];
            // A register that only a back-edge brings here has no web yet.
            if *web == NONE {
                *web = self.l.webs.fresh().0;
            }
            self.cur[reg.index()] = VReg(*web);
        }
        self.l.block_of[b.index()] = self.func.blocks.len() as u32;

        let mut slot = block.start;
        while slot < block.end {
            let insn = self.program.insns()[slot as usize];
            self.span = Span { first: slot, len: insn.slots() };
            self.insn(&insn, b);
            slot += insn.slots();
        }

        for s in block.succs() {
            for reg in self.live_in(s).iter() {
                let web = self.cur[reg.index()].0;
                let entry = &mut self.l.entry_web[web_index(s, reg)];
                if *entry == NONE {
                    *entry = web;
                } else {
                    let entry = *entry;
                    self.l.webs.unite(entry, web);
                }
            }
        }
        let live = self.func.live.len() as u32;
        self.push_live_out(b);
        self.close(live, block.start);
    }

    /// Appends what is live at the start of block `b` to the function's live lists.
    fn push_live_at(&mut self, b: BpfBlock) {
        for reg in self.live_in(b).iter() {
            self.func.live.push(VReg(self.l.entry_web[web_index(b, reg)]));
        }
        self.push_hidden(self.l.ctx_live[b.index()], self.l.counter_live[b.index()]);
    }

    /// Appends what is live at the end of block `b`, which is being filled, to the function's live lists.
    fn push_live_out(&mut self, b: BpfBlock) {
        let live = self.l.liveness.live_out(&self.l.cfg, b).without(RegSet::of(Reg::R10));
        for reg in live.iter() {
            self.func.live.push(self.cur[reg.index()]);
        }
        let ctx = self.l.cfg.block(b).succs().any(|s| self.l.ctx_live[s.index()]);
        let counter = self.l.cfg.block(b).succs().any(|s| self.l.counter_live[s.index()]);
        self.push_hidden(ctx, counter);
    }

    fn push_hidden(&mut self, ctx: bool, counter: bool) {
        self.func.live.extend(self.ctx.filter(|_| ctx));
        self.func.live.extend(self.counter.filter(|_| counter));
    }

    /// Ends the block being filled; its live-out list is the function's live list from `live` on.
    fn close(&mut self, live: u32, slot: u32) {
        let end = self.func.ops.len() as u32;
        let live_out = live..self.func.live.len() as u32;
        self.func.blocks.push(Block { ops: self.open..end, live_out, slot, is_target: false });
        self.open = end;
    }

    /// Ends the block being filled in the middle of BPF block `b`: `extra` and all that the rest of `b` may read stay live.
    ///
    /// "All that the rest may read" is taken generously as every register that holds a value the block still knows; the packet
    /// loads that need this clobber r1 to r5, so it is r6 to r9.
    fn split(&mut self, b: BpfBlock, keep: RegSet, extra: &[VReg]) {
        let live = self.func.live.len() as u32;
        for reg in keep.iter() {
            self.func.live.push(self.cur[reg.index()]);
        }
        self.func.live.extend_from_slice(extra);
        self.push_hidden(true, true);
        self.close(live, self.l.cfg.block(b).start);
    }

    fn op(&mut self, op: Op) {
        self.func.ops.push(op);
        self.func.spans.push(self.span);
    }

    /// The op before the next one, if it is in the same block.
    fn last_op(&mut self) -> Option<&mut Op> {
        if self.func.ops.len() as u32 > self.open { self.func.ops.last_mut() } else { None }
    }

    /// Adds an op that changes `v` in place and reads `reads` bits of it; after a copy into `v` it reads the original.
    fn in_place(&mut self, reads: Width, v: VReg, op: impl FnOnce(VReg) -> Op) {
        if let Some(last) = self.last_op()
            && let Op::Mov { width, dst, src: Val::Reg(src) } = *last
            && dst == v
            && covers(width, reads)
        {
            *last = op(src);
            self.extend_last_span();
        } else {
            self.op(op(v));
        }
    }

    /// The span of a fused op reaches back to the instruction it absorbed.
    fn extend_last_span(&mut self) {
        if let Some(span) = self.func.spans.last_mut() {
            span.len = self.span.first + self.span.len - span.first;
        }
    }

    /// The value of a register. r10's is computed into a temporary.
    fn read(&mut self, reg: Reg) -> VReg {
        if reg == Reg::R10 {
            let dst = self.l.webs.fresh();
            self.op(Op::FrameAddr { dst, off: 0 });
            dst
        } else {
            self.cur[reg.index()]
        }
    }

    fn read_src(&mut self, src: Src) -> Val {
        match src {
            Src::Reg(reg) => Val::Reg(self.read(reg)),
            Src::Imm(imm) => Val::Imm(imm.into()),
        }
    }

    /// A new value for a register.
    fn write(&mut self, reg: Reg) -> VReg {
        let v = self.l.webs.fresh();
        self.cur[reg.index()] = v;
        v
    }

    fn mem(&self, base: Reg, off: i16) -> Mem {
        let base = if base == Reg::R10 { Base::Frame } else { Base::Reg(self.cur[base.index()]) };
        Mem { base, off: off.into() }
    }

    /// The hidden argument, in an op that `insn_needs_ctx` has announced.
    fn ctx(&mut self) -> VReg {
        match self.ctx {
            Some(ctx) => ctx,
            None => {
                debug_assert!(false, "an op reads the hidden argument that insn_needs_ctx did not announce");
                *self.ctx.insert(self.l.webs.fresh())
            }
        }
    }

    fn ctx_field(&mut self, offset: i32) -> VReg {
        let mem = Mem { base: Base::Reg(self.ctx()), off: offset };
        let dst = self.l.webs.fresh();
        self.op(Op::Load { size: Size::DW, signed: false, swap: false, dst, mem });
        dst
    }

    fn insn(&mut self, insn: &Insn, b: BpfBlock) {
        match *insn {
            Insn::Alu { width, op, dst, src } => self.alu(width, op, dst, src),
            Insn::Mov { width, dst, src } => match src {
                Src::Reg(Reg::R10) if width == Width::W64 => {
                    let dst = self.write(dst);
                    self.op(Op::FrameAddr { dst, off: 0 });
                }
                Src::Reg(_) | Src::Imm(_) => {
                    let src = self.read_src(src);
                    let dst = self.write(dst);
                    self.op(Op::Mov { width, dst, src });
                }
            },
            Insn::MovSx { width, dst, src, from } => {
                let from = match from {
                    SxWidth::S8 => Size::B,
                    SxWidth::S16 => Size::H,
                    SxWidth::S32 => Size::W,
                };
                let src = self.read(src);
                let dst = self.write(dst);
                self.op(Op::Ext { width, signed: true, from, dst, src });
            }
            Insn::Neg { width, dst } => {
                let v = self.cur[dst.index()];
                self.in_place(width, v, |src| Op::Neg { width, dst: v, src });
            }
            Insn::End { order, width, dst } => self.end(order, width, dst),
            Insn::LoadImm64 { dst, imm } => self.load_imm64(dst, imm),
            Insn::SecondSlot => {}
            Insn::Load { size, sign, dst, base, off } => {
                let mem = self.mem(base, off);
                let dst = self.write(dst);
                self.op(Op::Load { size, signed: sign, swap: false, dst, mem });
            }
            Insn::Store { size, base, off, src } => {
                let src = self.read_src(src);
                let mem = self.mem(base, off);
                self.op(Op::Store { size, mem, src });
            }
            Insn::Atomic { width, op, base, off, src } => self.atomic(width, op, base, off, src),
            Insn::LoadAcquire { size, dst, base, off } => {
                let mem = self.mem(base, off);
                let dst = self.write(dst);
                self.op(Op::LoadAcquire { size, dst, mem });
            }
            Insn::StoreRelease { size, base, off, src } => {
                let src = self.read(src);
                let mem = self.mem(base, off);
                self.op(Op::StoreRelease { size, mem, src });
            }
            Insn::LoadAbs { size, imm } => self.packet_load(b, size, Val::Imm(i64::from(imm as u32))),
            Insn::LoadInd { size, src, imm } => {
                let src = self.read(src);
                let at = self.l.webs.fresh();
                let imm = Val::Imm(imm.into());
                self.op(Op::Bin { op: BinOp::Add, width: Width::W32, dst: at, a: src, b: imm });
                self.packet_load(b, size, Val::Reg(at));
            }
            Insn::Jump { off, .. } => {
                let Some(target) = self.l.cfg.block(b).taken else { return };
                if off < 0 {
                    self.checks();
                }
                self.op(Op::Jump { target: BlockId(target.0) });
            }
            Insn::JumpIf { width, cond, dst, src, off } => {
                let src = self.read_src(src);
                let dst = self.read(dst);
                self.branch(b, width, cond, dst, src, off);
            }
            Insn::MayGoto { off } => {
                let Some(counter) = self.counter else { return };
                self.branch(b, Width::W64, Cond::Eq, counter, Val::Imm(0), off);
                // The counter goes down on the way that falls through: a block of its own.
                let live = self.func.live.len() as u32;
                self.push_live_out(b);
                self.push_hidden(false, true);
                self.close(live, self.l.cfg.block(b).start);
                self.op(Op::Bin { op: BinOp::Sub, width: Width::W64, dst: counter, a: counter, b: Val::Imm(1) });
            }
            Insn::Call(callee) => self.call(b, callee),
            Insn::Exit => {
                let value = self.cur[Reg::R0.index()];
                self.op(Op::Exit { value });
            }
        }
    }

    fn alu(&mut self, width: Width, op: AluOp, dst: Reg, src: Src) {
        let op = match op {
            AluOp::Add => BinOp::Add,
            AluOp::Sub => BinOp::Sub,
            AluOp::Mul => BinOp::Mul,
            AluOp::Div => BinOp::Div,
            AluOp::SDiv => BinOp::SDiv,
            AluOp::Mod => BinOp::Mod,
            AluOp::SMod => BinOp::SMod,
            AluOp::Or => BinOp::Or,
            AluOp::And => BinOp::And,
            AluOp::Xor => BinOp::Xor,
            AluOp::Lsh => BinOp::Shl,
            AluOp::Rsh => BinOp::Shr,
            AluOp::Arsh => BinOp::Sar,
        };
        let b = self.read_src(src);
        let dst = self.cur[dst.index()];
        // `a = b; a op= c` is one op, and a constant folds into a frame address.
        if let Some(last) = self.last_op() {
            let fused = match (*last, b) {
                (Op::Mov { width: copied, dst: d, src: Val::Reg(a) }, b) if d == dst && covers(copied, width) => {
                    let b = if b == Val::Reg(dst) { Val::Reg(a) } else { b };
                    Some(Op::Bin { op, width, dst, a, b })
                }
                (Op::FrameAddr { dst: d, off }, Val::Imm(imm))
                    if d == dst && op == BinOp::Add && width == Width::W64 =>
                {
                    i32::try_from(i64::from(off) + imm).ok().map(|off| Op::FrameAddr { dst, off })
                }
                _ => None,
            };
            if let Some(fused) = fused {
                *last = fused;
                self.extend_last_span();
                return;
            }
        }
        self.op(Op::Bin { op, width, dst, a: dst, b });
    }

    fn end(&mut self, order: ByteOrder, width: EndWidth, dst: Reg) {
        let size = match width {
            EndWidth::B16 => Size::H,
            EndWidth::B32 => Size::W,
            EndWidth::B64 => Size::DW,
        };
        let v = self.cur[dst.index()];
        match (order, size) {
            // Both architectures run little endian: to_le only truncates.
            (ByteOrder::ToLe, Size::DW) => {}
            (ByteOrder::ToLe, Size::B | Size::H | Size::W) => {
                let zext = |src| Op::Ext { width: Width::W64, signed: false, from: size, dst: v, src };
                self.in_place(Width::W32, v, zext);
            }
            (ByteOrder::ToBe | ByteOrder::Swap, _) => {
                let reads = if size == Size::DW { Width::W64 } else { Width::W32 };
                self.in_place(reads, v, |src| Op::Bswap { size, dst: v, src });
            }
        }
    }

    fn load_imm64(&mut self, dst: Reg, imm: Imm64) {
        let slot = self.span.first;
        let dst = self.write(dst);
        self.op(match imm {
            Imm64::Const(value) => Op::Mov { width: Width::W64, dst, src: Val::Imm(value as i64) },
            Imm64::Map(map) | Imm64::MapIdx(map) => Op::SymAddr { dst, symbol: Extern::Map(map as u32).symbol() },
            Imm64::MapValue { .. } | Imm64::MapIdxValue { .. } | Imm64::Var(_) => {
                Op::SymAddr { dst, symbol: Extern::Imm64(InsnIdx(slot)).symbol() }
            }
            Imm64::Func(off) => match subprog_at(self.program, slot, off) {
                Some(subprog) => Op::SubprogAddr { dst, subprog },
                None => Op::Mov { width: Width::W64, dst, src: Val::Imm(0) },
            },
        });
    }

    fn atomic(&mut self, width: Width, op: BpfAtomicOp, base: Reg, off: i16, src: Reg) {
        let mem = self.mem(base, off);
        let (op, fetch) = match op {
            BpfAtomicOp::Add { fetch } => (AtomicOp::Add, fetch),
            BpfAtomicOp::Or { fetch } => (AtomicOp::Or, fetch),
            BpfAtomicOp::And { fetch } => (AtomicOp::And, fetch),
            BpfAtomicOp::Xor { fetch } => (AtomicOp::Xor, fetch),
            BpfAtomicOp::Xchg => (AtomicOp::Xchg, true),
            BpfAtomicOp::CmpXchg => {
                let expected = self.cur[Reg::R0.index()];
                let new = self.read(src);
                let dst = self.write(Reg::R0);
                self.op(Op::CmpXchg { width, mem, expected, new, dst });
                return;
            }
        };
        let operand = self.read(src);
        let fetch = fetch.then(|| self.write(src));
        self.op(Op::Atomic { op, width, mem, src: operand, fetch });
    }

    /// LD_ABS and LD_IND: `at` is the offset into the packet, unsigned 32 bits.
    fn packet_load(&mut self, b: BpfBlock, size: Size, at: Val) {
        self.exit_zero = true;
        let bytes = i64::from(size.bytes());
        let len = self.ctx_field(RunCtx::PACKET_LEN_OFFSET);
        let keep = RegSet::SAVED.intersection(self.known());
        let (base, off) = match at {
            Val::Imm(off) => {
                self.op(Op::Branch {
                    width: Width::W64,
                    cond: Cond::Lt,
                    a: len,
                    b: Val::Imm(off + bytes),
                    target: EXIT_ZERO,
                });
                self.split(b, keep, &[]);
                let packet = self.ctx_field(RunCtx::PACKET_OFFSET);
                match i32::try_from(off) {
                    Ok(off) => (packet, off),
                    Err(_) => {
                        let at = self.l.webs.fresh();
                        self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: at, a: packet, b: Val::Imm(off) });
                        (at, 0)
                    }
                }
            }
            Val::Reg(at) => {
                let end = self.l.webs.fresh();
                self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: end, a: at, b: Val::Imm(bytes) });
                let b_len = Val::Reg(len);
                self.op(Op::Branch { width: Width::W64, cond: Cond::Gt, a: end, b: b_len, target: EXIT_ZERO });
                self.split(b, keep, &[at]);
                let packet = self.ctx_field(RunCtx::PACKET_OFFSET);
                let sum = self.l.webs.fresh();
                self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: sum, a: packet, b: Val::Reg(at) });
                (sum, 0)
            }
        };
        let dst = self.write(Reg::R0);
        let mem = Mem { base: Base::Reg(base), off };
        self.op(Op::Load { size, signed: false, swap: size != Size::B, dst, mem });
    }

    /// Registers that hold a value here.
    fn known(&self) -> RegSet {
        Reg::ALL
            .into_iter()
            .filter(|r| self.cur[r.index()] != NO_WEB)
            .fold(RegSet::EMPTY, |set, r| set.union(RegSet::of(r)))
    }

    /// A conditional jump to where BPF block `b` goes when its condition holds. A taken back-edge passes through the checks.
    fn branch(&mut self, b: BpfBlock, width: Width, cond: Cond, a: VReg, src: Val, off: i16) {
        let Some(target) = self.l.cfg.block(b).taken else { return };
        if off < 0 && (self.options.budget || self.options.interrupt) {
            self.l.edges.push(Edge { op: self.func.ops.len() as u32, target });
        }
        self.op(Op::Branch { width, cond, a, b: src, target: BlockId(target.0) });
    }

    fn checks(&mut self) {
        if self.options.budget {
            let ctx = self.ctx();
            self.op(Op::Check { check: Check::Budget, ctx });
        }
        if self.options.interrupt {
            let ctx = self.ctx();
            self.op(Op::Check { check: Check::Interrupt, ctx });
        }
    }

    fn call(&mut self, b: BpfBlock, callee: Callee) {
        self.checks();
        if callee == Callee::Helper(TAIL_CALL_HELPER) {
            self.tail_call(b);
            return;
        }
        let slot = self.span.first;
        if callee == Callee::Helper(MAP_LOOKUP_HELPER)
            && let Some(known) = self.facts.map_call(InsnIdx(slot)).copied()
        {
            match self.signatures.map(known.map) {
                MapShape::Opaque => {}
                MapShape::Array { max_entries, stride } => return self.array_lookup(b, &known, max_entries, stride),
                MapShape::Keyed => return self.keyed_lookup(known.map),
            }
        }
        let uses = self.l.liveness.uses(self.program, slot, self.arity);
        let mut args = [None; 5];
        for (arg, reg) in args.iter_mut().zip(Reg::ARGS) {
            if uses.contains(reg) {
                *arg = Some(self.cur[reg.index()]);
            }
        }
        let (target, hidden, env) = match callee {
            Callee::Helper(id) => (
                CallTarget::Extern(Extern::Helper(id).symbol()),
                self.signatures.helper_hidden(id),
                Extern::HelperEnv(id),
            ),
            Callee::Host(index) => {
                let env = Extern::HostEnv(index as u32);
                let target = CallTarget::Extern(Extern::Host(index as u32).symbol());
                (target, self.signatures.host_hidden(index), env)
            }
            Callee::Subprog(off) => {
                let Some(sub) = subprog_at(self.program, slot, off) else { return };
                let hidden = if self.l.needs_ctx[sub.index()] { Hidden::Ctx } else { Hidden::Nothing };
                (CallTarget::Subprog(sub), hidden, Extern::HostEnv(0))
            }
        };
        let ctx = if hidden == Hidden::Nothing { None } else { Some(self.ctx()) };
        if let (Hidden::Env, Some(ctx)) = (hidden, ctx) {
            let dst = self.l.webs.fresh();
            self.op(Op::SymAddr { dst, symbol: env.symbol() });
            let mem = Mem { base: Base::Reg(ctx), off: RunCtx::HOST_ENV_OFFSET };
            self.op(Op::Store { size: Size::DW, mem, src: Val::Reg(dst) });
        }
        let ret = Some(self.write(Reg::R0));
        self.op(Op::Call { target, args, ctx, ret });
    }

    /// A look-up in a known array: `key < max_entries ? base + key * stride : null`, without the comparison for a known key.
    fn array_lookup(&mut self, b: BpfBlock, known: &ConstMapCall, max_entries: u32, stride: u32) {
        let base = self.l.webs.fresh();
        let symbol = Extern::ArrayBase(known.map).symbol();
        match known.key {
            Some(key) if key < u64::from(max_entries) => {
                self.op(Op::SymAddr { dst: base, symbol });
                let dst = self.write(Reg::R0);
                let b = Val::Imm((key * u64::from(stride)) as i64);
                self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst, a: base, b });
            }
            Some(_) | None => {
                let key = self.l.webs.fresh();
                let mem = Mem { base: Base::Reg(self.cur[Reg::R2.index()]), off: 0 };
                self.op(Op::Load { size: Size::W, signed: false, swap: false, dst: key, mem });
                let dst = self.write(Reg::R0);
                self.op(Op::Mov { width: Width::W64, dst, src: Val::Imm(0) });
                // This block, then the one that computes the address, then the one where both ways meet.
                let join = BlockId(DIRECT | (self.func.blocks.len() as u32 + 2));
                let max = Val::Imm(max_entries.into());
                self.op(Op::Branch { width: Width::W64, cond: Cond::Ge, a: key, b: max, target: join });
                let keep = RegSet::SAVED.intersection(self.known());
                self.split(b, keep, &[dst, key]);
                self.op(Op::SymAddr { dst: base, symbol });
                if stride == 8 {
                    self.op(Op::AddShift { width: Width::W64, dst, a: base, b: key, shift: 3 });
                } else {
                    let offset = self.l.webs.fresh();
                    let (op, by) = match stride.is_power_of_two() {
                        true => (BinOp::Shl, stride.trailing_zeros()),
                        false => (BinOp::Mul, stride),
                    };
                    self.op(Op::Bin { op, width: Width::W64, dst: offset, a: key, b: Val::Imm(by.into()) });
                    self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst, a: base, b: Val::Reg(offset) });
                }
                self.split(b, keep, &[dst]);
            }
        }
    }

    /// A look-up in a known map of another type: its own function, without the helper between.
    fn keyed_lookup(&mut self, map: u32) {
        let slot = self.l.webs.fresh();
        let mem = Mem { base: Base::Reg(self.ctx()), off: RunCtx::SLOT_OFFSET };
        self.op(Op::Load { size: Size::W, signed: false, swap: false, dst: slot, mem });
        let args = [Some(self.cur[Reg::R1.index()]), Some(self.cur[Reg::R2.index()]), Some(slot), None, None];
        let target = CallTarget::Extern(Extern::MapLookup(map).symbol());
        let ret = Some(self.write(Reg::R0));
        self.op(Op::Call { target, args, ctx: None, ret });
    }

    /// Whether the value that the present instruction, in block `b`, leaves in `reg` may be read later.
    fn reads_next(&self, b: BpfBlock, reg: Reg) -> bool {
        let block = self.l.cfg.block(b);
        for slot in self.span.first + self.span.len..block.end {
            if self.l.liveness.uses(self.program, slot, self.arity).contains(reg) {
                return true;
            }
            if defs(&self.program.insns()[slot as usize]).contains(reg) {
                return false;
            }
        }
        self.l.liveness.live_out(&self.l.cfg, b).contains(reg)
    }

    fn tail_call(&mut self, b: BpfBlock) {
        let ctx = self.ctx();
        let arg = self.cur[Reg::R1.index()];
        let known = self.facts.tail_call(InsnIdx(self.span.first)).filter(|_| self.options.direct_tail_calls);
        let key = match known {
            Some(known) => TailKey::Const { table: Extern::Map(known.map).symbol(), index: known.index },
            None => TailKey::Dynamic { table: self.cur[Reg::R2.index()], index: self.cur[Reg::R3.index()] },
        };
        self.op(Op::TailCall { key, arg, ctx, reload_len: self.options.raw_context });
        // A tail call that falls through leaves an error in r0, for the rare program that looks (the kernel's verifier lets none).
        if self.reads_next(b, Reg::R0) {
            let dst = self.write(Reg::R0);
            self.op(Op::Mov { width: Width::W64, dst, src: Val::Imm(-1) });
        }
    }

    /// Gives each checked back-edge its block: the checks, then on to the target.
    fn finish_edges(&mut self) {
        for i in 0..self.l.edges.len() {
            let edge = self.l.edges[i];
            self.span = self.func.spans[edge.op as usize];
            self.checks();
            self.op(Op::Jump { target: BlockId(edge.target.0) });
            let live = self.func.live.len() as u32;
            self.push_live_at(edge.target);
            self.close(live, self.span.first);
        }
    }

    /// The block that packet loads out of range go to.
    fn finish_exit_zero(&mut self) {
        if self.exit_zero {
            let value = self.l.webs.fresh();
            self.op(Op::Mov { width: Width::W64, dst: value, src: Val::Imm(0) });
            self.op(Op::Exit { value });
            let live = self.func.live.len() as u32;
            self.close(live, self.span.first);
        }
    }

    /// Turns targets from BPF blocks into blocks of the function, and notes who is one.
    fn retarget(&mut self) {
        let blocks = self.func.blocks.len() as u32;
        let first_edge = blocks - u32::from(self.exit_zero) - self.l.edges.len() as u32;
        let mut edges = self.l.edges.iter().zip(first_edge..).peekable();
        for (i, op) in self.func.ops.iter_mut().enumerate() {
            let (Op::Jump { target } | Op::Branch { target, .. }) = op else { continue };
            *target = match edges.next_if(|(edge, _)| edge.op == i as u32) {
                Some((_, block)) => BlockId(block),
                None if *target == EXIT_ZERO => BlockId(blocks - 1),
                None if target.0 & DIRECT != 0 => BlockId(target.0 & !DIRECT),
                None => BlockId(self.l.block_of[target.index()]),
            };
            self.func.blocks[target.index()].is_target = true;
        }
    }

    /// Numbers the webs that are left after uniting, in order.
    fn rename(&mut self) {
        self.func.vregs = self.l.webs.parent.len() as u32;
        if !self.l.webs.united {
            return;
        }
        self.func.vregs = self.l.webs.number();
        let name = &self.l.webs.parent;
        let rename = |v: &mut VReg| *v = VReg(name[v.index()]);
        self.func.ops.iter_mut().for_each(|op| op.for_each_reg(rename));
        self.func.live.iter_mut().for_each(rename);
        self.func.params.iter_mut().flatten().for_each(rename);
        self.func.ctx.iter_mut().for_each(rename);
    }
}

/// Spreads a property of blocks backward: true where it is true or holds in a successor.
fn flow_back(cfg: &Cfg, blocks: Range<u32>, holds: &mut [bool]) {
    loop {
        let mut changed = false;
        for b in blocks.clone().rev() {
            if !holds[b as usize] && cfg.block(BpfBlock(b)).succs().any(|s| holds[s.index()]) {
                holds[b as usize] = true;
                changed = true;
            }
        }
        if !changed {
            return;
        }
    }
}
