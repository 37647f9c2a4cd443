//! From BPF to [`Lir`], nearly one to one.
//!
//! Problem: BPF has eleven registers, each used for many unrelated values; calls, exits and two-address arithmetic tie
//! values to particular ones. A fixed map from BPF to host registers would carry those ties over as moves. Approach:
//! each *web* (a set of definitions and uses of a register that must share a location) becomes a virtual register. Webs
//! are found while lowering, in one walk: a block's live-in registers take the web of the first predecessor walked;
//! where a later predecessor disagrees, the two webs are united, and the ops are renamed once at the end if any webs
//! were united.
//!
//! r10 needs no virtual register: stack accesses are frame-relative, and other uses compute the frame address. The
//! may_goto counter and the hidden argument are virtual registers like any other.
//!
//! Lowering fuses no ops; the pass `peephole` of `bpf-opt` does.

mod arena;
mod bound;
mod call;
mod contained;
mod direct;
mod func;
mod insn;
mod listed;
mod starts;
mod webs;

use crate::externs::{Hidden, Signatures};
use bpf_analysis::{CallArity, Cfg, Facts, Liveness, MemKind};
use bpf_isa::{Callee, Insn, InsnIdx, Program, Size, Subprog, SubprogId};
use bpf_jit_code::Needs;
use bpf_lir::{BlockId, Func, Lir, Span};
use bpf_uapi::helper_id;
pub(crate) use direct::{DirectOptions, Scratch};
use func::FuncLowerer;
use listed::Listed;
use webs::{EntryWebs, NO_WEB, NONE, REGS, Webs};

/// The code that lowering adds to a program, and its assumptions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LowerOptions {
    /// Count taken back-edges and calls against the run's budget.
    pub budget: bool,
    /// Check for an interruption at the same places.
    pub interrupt: bool,
    /// Where the budget is spent, call [`Extern::Spent`](bpf_lir::Extern::Spent) and go on, in place of stopping. Not
    /// for direct emission.
    pub yields: bool,
    /// Count entries of the program, in one counter per execution slot ([`COUNTER_STRIDE`]), and store the address of
    /// the counters in the run.
    pub count: bool,
    /// Only store that address in the run, at entries of the program. It tells other threads which program the run is
    /// in.
    pub note: bool,
    /// Stack bytes of a frame whose size is not known.
    pub max_stack: u32,
    /// The target of a tail call expects the raw context's length in r2.
    pub raw_context: bool,
    /// Emit tail calls with constant table and index as direct, patchable sites.
    pub direct_tail_calls: bool,
}

impl Default for LowerOptions {
    /// No budget, no interruption, neither counts nor notes, 512 bytes of stack, raw context, indirect tail calls.
    fn default() -> Self {
        LowerOptions {
            budget: false,
            interrupt: false,
            yields: false,
            count: false,
            note: false,
            max_stack: 512,
            raw_context: true,
            direct_tail_calls: false,
        }
    }
}

/// Bytes from the counter of one execution slot to that of the next, so that no two counters share a cache line.
pub const COUNTER_STRIDE: u64 = 64;

/// The lowering and its scratch memory.
#[derive(Debug, Default)]
pub struct Lowerer {
    cfg: Cfg,
    /// Whether some instructions of the program are known to be unreachable.
    some_dead: bool,
    liveness: Liveness,
    /// By subprogram: whether it needs the hidden argument.
    needs_ctx: Vec<bool>,
    /// Which parts of the hidden argument the main program lowered last needs.
    needs: Option<Needs>,
    webs: Webs,
    /// By block of the program: the webs at its start.
    entry_webs: Vec<EntryWebs>,
    /// By BPF block of the program: its block in the function.
    block_of: Vec<u32>,
    /// Backward edges that pass through a check, whose blocks are still to be filled.
    edges: Vec<Edge>,
    /// By extra block: its block in the function, see [`FuncLowerer::new_block`].
    extra: Vec<u32>,
}

/// A backward edge that passes through a check.
#[derive(Clone, Copy, Debug)]
struct Edge {
    /// The block with the check.
    block: BlockId,
    /// The block to which it jumps then.
    target: BlockId,
    /// The instruction that jumps.
    span: Span,
    /// The instruction that it jumps to.
    head: Option<InsnIdx>,
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
        self.find_blocks(program, facts);
        self.liveness.build(program, &self.cfg, &arity);
        self.find_needs_ctx(program, facts, signatures, options);
        self.entry_webs.clear();
        self.entry_webs.resize(self.cfg.blocks().len(), EntryWebs::UNKNOWN);
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
                sink: Listed,
                sub: SubprogId(crate::num::small(i)),
                cur: [NO_WEB; REGS],
                temporaries: 0,
                max_temporaries: 0,
                short_of_temporaries: false,
                some_dead: false,
                ctx: None,
                counter: None,
                starts: facts.contained.as_deref().map(starts::Starts::new),
                found: false,
                exit_zero: None,
                span: Span::default(),
                next: BlockId(0),
                open: 0,
            }
            .run();
        }
    }

    fn find_blocks(&mut self, program: &Program, facts: &Facts) {
        self.cfg.build(program);
        // In a contained program, code that was proven unreachable stops the run, because no proof is relied upon.
        self.some_dead = facts.contained.is_none() && facts.insns.iter().any(|fact| fact.dead);
        if self.some_dead {
            self.cfg.prune(program, |at| facts.insn(at).dead);
        }
    }

    /// Returns which parts of the hidden argument the main program lowered last needs.
    pub(crate) fn needs(&self) -> Needs {
        self.needs.unwrap_or(Needs::Run)
    }

    /// Finds which subprograms need the hidden argument: those with an op that reads it, and their callers.
    fn find_needs_ctx(
        &mut self,
        program: &Program,
        facts: &Facts,
        signatures: &dyn Signatures,
        options: &LowerOptions,
    ) {
        let n = program.subprogs().len();
        self.needs_ctx.clear();
        self.needs_ctx.resize(n, facts.contained.is_some());
        self.find_readers(program, facts, signatures, options);
        // No function calls the main program, so counting its entries makes no other function need the argument.
        let Some(main) = self.needs_ctx.first_mut() else { return };
        let needs = match *main {
            true => Needs::Run,
            false if options.count || options.note => Needs::Slot,
            false => Needs::Nothing,
        };
        *main = needs != Needs::Nothing;
        self.needs = Some(needs);
    }

    /// Finds which subprograms need the hidden argument for other reasons than counting runs.
    fn find_readers(&mut self, program: &Program, facts: &Facts, signatures: &dyn Signatures, options: &LowerOptions) {
        let n = program.subprogs().len();
        let checks = options.budget || options.interrupt;
        let contents = program.contents();
        let jumps = contents.indirect_jumps;
        let stops = jumps || contents.packet_loads || !facts.checks.is_empty() || facts.arena.is_some();
        if !checks && !contents.calls && !stops {
            return;
        }
        // The call graph has no cycle and is at most eight deep, so few rounds suffice.
        loop {
            let mut changed = false;
            for i in 0..n {
                if !self.needs_ctx[i] {
                    let Subprog { start, end } = program.subprogs()[i];
                    self.needs_ctx[i] = (start..end).any(|slot| {
                        !facts.insn(InsnIdx(slot)).dead
                            && self.insn_needs_ctx(program, facts, slot, signatures, options)
                    });
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
        facts: &Facts,
        slot: u32,
        signatures: &dyn Signatures,
        options: &LowerOptions,
    ) -> bool {
        if facts.contained.is_some() || facts.check(InsnIdx(slot)).is_some() {
            return true;
        }
        if facts.arena.is_some() && facts.insn(InsnIdx(slot)).memory == Some(MemKind::Arena) {
            // The alignment of an atomic access is checked.
            let access = program.insns()[slot as usize].memory_access();
            return access.is_some_and(|access| access.kind.is_atomic() && access.size != Size::B);
        }
        let checks = options.budget || options.interrupt;
        match program.insns()[slot as usize] {
            Insn::LoadAbs { .. } | Insn::LoadInd { .. } => true,
            Insn::Call(callee) => {
                checks
                    || facts.may_throw(InsnIdx(slot))
                    || match callee {
                        Callee::Helper(helper_id::TAIL_CALL) => true,
                        Callee::Helper(helper_id::MAP_LOOKUP_ELEM)
                            if facts.map_call(InsnIdx(slot)).is_some_and(|c| signatures.map(c.map).is_inline()) =>
                        {
                            false
                        }
                        Callee::Helper(id) => signatures.helper_hidden(id) != Hidden::Nothing,
                        Callee::Host(index) => signatures.host_hidden(index) != Hidden::Nothing,
                        // The call stops the run if no function has the address.
                        Callee::Reg(_) => true,
                        Callee::Subprog(off) => {
                            subprog_at(program, slot, off).is_some_and(|callee| self.needs_ctx[callee.0 as usize])
                        }
                    }
            }
            // The jump stops the run if the register holds the number of none of its targets.
            Insn::JumpReg { .. } => true,
            ref insn => checks && insn.jump_offset().is_some_and(|off| off < 0),
        }
    }
}

/// Returns the subprogram that a reference at `slot` with offset `off` names.
fn subprog_at(program: &Program, slot: u32, off: i32) -> Option<SubprogId> {
    program.subprog_starting_at(InsnIdx(slot).jump(off)?)
}

/// Adapts [`Signatures`] to the analyses. For liveness, a tail call reads three arguments.
struct Arity<'a>(&'a dyn Signatures);

impl CallArity for Arity<'_> {
    fn helper(&self, id: u32) -> u8 {
        if id == helper_id::TAIL_CALL { 3 } else { self.0.helper(id) }
    }
    fn host(&self, index: i32) -> u8 {
        self.0.host(index)
    }
}
