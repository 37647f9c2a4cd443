//! Liveness: the registers whose value may still be read, at each instruction.
//!
//! A register is live at a point if some path from there reads it before writing it. Backward data flow over basic
//! blocks on eleven-bit sets, callees before callers, so that a call uses exactly the argument registers that its
//! subprogram reads. The naive twin in the tests iterates over single instructions.

use crate::regs::{RegSet, effects, uses};
use crate::{BlockId, Cfg, touched_below_r10};
use bpf_isa::{Callee, Insn, Program, Reg, SubprogId};

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
        let jumps_anywhere = program.contents().indirect_jumps;
        self.has_back_edge =
            jumps_anywhere || program.flow().iter().any(|flow| flow.target.is_some_and(|target| target <= flow.at));
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
        cfg.succs(block).fold(RegSet::EMPTY, |set, s| set.union(self.live_in(s)))
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
            Callee::Reg(reg) => {
                let caller = program.subprog_of(bpf_isa::InsnIdx(slot));
                let callees = program.indirect_callees(caller).iter();
                callees.fold(RegSet::of(reg), |set, pair| set.union(self.args(pair.callee)))
            }
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
        visit(program, SubprogId(crate::small(i)), &mut seen, order);
    }
}
