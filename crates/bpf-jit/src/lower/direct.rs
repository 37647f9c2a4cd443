//! Lowering straight into an emitter, without a list of ops.
//!
//! Problem: every pass over a program costs at least one mispredicted jump per instruction, since the kind of the next
//! instruction is unpredictable. Approach: without optimisation there is one pass. Each instruction is lowered as with
//! optimisation, but to the fixed locations of [`crate::fixed`], and its ops go straight into the backend. The
//! emitter's match over ops is resolved at compile time, because each op is known where it is made. Before its first
//! instruction, nothing is known of the function but [`bpf_isa::Contents`] of the program.
//!
//! Invariants: no op depends on liveness, webs, or the op before it. Block boundaries therefore do not matter: each
//! instruction is a block with its own slot as number, and no analysis finds jump targets.

use super::func::{FuncLowerer, Sink};
use super::webs::{NO_WEB, REGS};
use super::{Arity, LowerOptions, Lowerer};
use crate::alloc::{Alloc, AllocOptions, Loc};
use crate::backend::{Backend, EmitError, EmitOptions, Emitter, Shape};
use crate::externs::Signatures;
use crate::fixed::{self, Needs};
use crate::machine::MachineDesc;
use bpf_analysis::{BlockId as BpfBlock, CallArity as _, Facts, RegSet};
use bpf_isa::{Callee, Contents, InsnIdx, MAY_GOTO_BUDGET, Program, Reg, StackUse, Subprog, SubprogId, Width};
use bpf_jit_code::{Code, Home, Homes};
use bpf_lir::{BlockId, Func, Op, Region, Span, VReg, Val};
use core::ops::Range;

/// Sends ops into an emitter.
struct Direct<E>(E);

impl<E: Emitter> Sink for &mut Direct<E> {
    #[inline(always)]
    fn op(f: &mut FuncLowerer<'_, Self>, op: Op) {
        f.sink.0.op_alone(&op, f.span.first, f.next);
    }

    #[inline(always)]
    fn fresh(f: &mut FuncLowerer<'_, Self>) -> VReg {
        if f.temporaries >= f.max_temporaries {
            f.short_of_temporaries = true;
            return fixed::temporary(0);
        }
        f.temporaries += 1;
        fixed::temporary(f.temporaries - 1)
    }

    #[inline(always)]
    fn write(_: &mut FuncLowerer<'_, Self>, reg: Reg) -> VReg {
        fixed::home(reg)
    }

    fn new_block(f: &mut FuncLowerer<'_, Self>) -> BlockId {
        f.sink.0.new_block()
    }

    fn begin_block(f: &mut FuncLowerer<'_, Self>, block: BlockId) {
        f.sink.0.begin_alone(block);
    }

    /// The emitter does not need the ends of blocks.
    #[inline(always)]
    fn end_block(_: &mut FuncLowerer<'_, Self>) {}

    #[inline(always)]
    fn ways(f: &FuncLowerer<'_, Self>, _: BpfBlock, off: i32) -> (Option<BlockId>, bool) {
        f.ways_of(off)
    }

    fn block_at(_: &FuncLowerer<'_, Self>, at: InsnIdx) -> BlockId {
        BlockId(at.0)
    }

    fn call_uses(f: &FuncLowerer<'_, Self>, _: u32, callee: Callee) -> RegSet {
        match callee {
            Callee::Helper(id) => RegSet::args(f.arity.helper(id)),
            Callee::Host(index) => RegSet::args(f.arity.host(index)),
            // Without liveness, the callee may read every argument.
            Callee::Subprog(_) | Callee::Reg(_) => RegSet::ARGS,
        }
    }

    /// Emitters do not depend on regions.
    #[inline(always)]
    fn region(_: &FuncLowerer<'_, Self>) -> Region {
        Region::Unknown
    }

    /// Without liveness, any register may be read.
    fn reads_next(_: &FuncLowerer<'_, Self>, _: BpfBlock, _: Reg) -> bool {
        true
    }
}

/// Options, and scratch memory.
pub(crate) struct DirectOptions<'a> {
    pub(crate) lower: &'a LowerOptions,
    pub(crate) alloc: &'a AllocOptions,
    pub(crate) emit: &'a EmitOptions,
    pub(crate) scratch: &'a mut Scratch,
}

/// Scratch memory of direct emission beside that of the lowerer. Reused from program to program.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    homes: fixed::Last,
    /// An empty function: no op is listed.
    no_list: Func,
}

impl Lowerer {
    /// Lowers `program` straight into `backend`.
    pub(crate) fn emit<B: Backend>(
        &mut self,
        program: &Program,
        facts: &Facts,
        signatures: &dyn Signatures,
        options: DirectOptions<'_>,
        backend: &mut B,
        code: &mut Code,
    ) -> Result<(), EmitError> {
        let arity = Arity(signatures);
        self.find_needs_ctx(program, facts, signatures, options.lower);
        let machine = backend.machine(options.emit);
        let contents = program.contents();
        backend.begin(program.subprogs().len());
        let mut homes = Vec::new();
        let some_dead = facts.insns.iter().any(|fact| fact.dead);
        let mut address_taken = Vec::new();
        if options.emit.hardening.landing_pads {
            address_taken.resize(program.subprogs().len(), false);
            program
                .calls()
                .iter()
                .filter(|call| call.callback)
                .for_each(|call| address_taken[call.callee.index()] = true);
        }
        for (i, subprog) in program.subprogs().iter().enumerate() {
            let sub = SubprogId(crate::num::small(i));
            let known = facts.stack_bytes.get(i).copied();
            let stack_bytes = known.unwrap_or(contents.stack.bytes(options.lower.max_stack)).next_multiple_of(8);
            let needs = Needs {
                contents: Contents { read_early: 0, stack: StackUse::default(), ..contents },
                stack: stack_bytes > 0,
                ctx: self.needs_ctx[i],
                temporaries: contents.calls
                    || options.lower.count
                    || options.lower.note
                    || contents.packet_loads
                    || contents.stack.escapes
                    || !facts.checks.is_empty()
                    || facts.arena.is_some()
                    || contents.casts,
            };
            let alloc = options.scratch.homes.allocate(&needs, machine, options.alloc);
            let used = |reg: Reg| contents.registers & 1 << reg as u16 != 0;
            let shape = Shape {
                id: sub,
                params: Reg::ARGS.map(|reg| used(reg).then_some(fixed::home(reg))),
                ctx: needs.ctx.then_some(fixed::CTX),
                stack_bytes,
                stack_accesses: contents.stack.accesses as usize,
                first_block: subprog.start,
                blocks: subprog.end - subprog.start,
                calls: contents.calls,
                address_taken: address_taken.get(i) == Some(&true),
            };
            let emitter = backend.function(&shape, alloc, options.emit, code)?;
            if options.emit.unwind {
                homes.push(places(contents, alloc, machine, emitter.below_cfa()));
            }
            let mut sink = Direct(emitter);
            let mut cur = [NO_WEB; REGS];
            for (web, reg) in cur.iter_mut().zip(Reg::ALL).filter(|(_, reg)| *reg != Reg::R10) {
                *web = fixed::home(reg);
            }
            let lowerer = FuncLowerer {
                l: self,
                program,
                facts,
                signatures,
                arity: &arity,
                options: options.lower,
                func: &mut options.scratch.no_list,
                sink: &mut sink,
                sub,
                cur,
                temporaries: 0,
                max_temporaries: if needs.temporaries { fixed::TEMPORARIES } else { 0 },
                short_of_temporaries: false,
                some_dead,
                ctx: shape.ctx,
                counter: contents.may_gotos.then_some(fixed::COUNTER),
                starts: None,
                found: false,
                exit_zero: None,
                span: Span { first: subprog.start, len: 1 },
                next: NOWHERE,
                open: 0,
            };
            lowerer.emit()?;
            sink.0.finish()?;
        }
        code.homes = homes;
        code.needs = self.needs();
        backend.finish(options.emit, code)
    }
}

/// Returns the places of the BPF registers in a function whose slots and r10 are at these distances below the CFA.
fn places(contents: Contents, alloc: &Alloc, machine: &MachineDesc, (slots, frame): (u32, u32)) -> Homes {
    let mut regs = [None; 10];
    for (place, reg) in regs.iter_mut().zip(Reg::ALL) {
        if contents.registers & 1 << reg as u16 != 0 {
            *place = alloc.locs.get(fixed::home(reg).index()).map(|loc| match *loc {
                Loc::Reg(reg) => Home::Reg(reg.0),
                Loc::Slot(slot) => Home::Memory(slots.saturating_sub(8 * slot)),
            });
        }
    }
    Homes { regs, args: machine.args.map(|reg| reg.0), frame }
}

/// Stands for no block.
const NOWHERE: BlockId = BlockId(u32::MAX);

impl<E: Emitter> FuncLowerer<'_, &mut Direct<E>> {
    fn emit(mut self) -> Result<(), EmitError> {
        self.l.edges.clear();
        let Subprog { start, end } = self.program.subprogs()[self.sub.index()];
        if self.dead(InsnIdx(start)) {
            // A function that only unreachable code calls.
            self.return_zero();
        } else {
            self.initialise();
            self.insns(start..end);
            self.finish_edges();
            self.finish_exit_zero();
        }
        if self.short_of_temporaries {
            return Err(EmitError::Internal("an instruction needs more temporaries than there are"));
        }
        Ok(())
    }

    /// Initialises registers and stack that may be read before they are written: an unverified program reads zeros, not
    /// values of the host.
    fn initialise(&mut self) {
        if self.counts_runs() {
            self.count_run();
        }
        let contents = self.program.contents();
        // The contents say which registers may be read early in the main program only.
        let early = if self.sub.0 == 0 { contents.read_early } else { contents.registers };
        for reg in [Reg::R0].into_iter().chain(Reg::SAVED).filter(|reg| early & 1 << *reg as u16 != 0) {
            self.op(Op::Mov { width: Width::W64, dst: fixed::home(reg), src: Val::Imm(0) });
        }
        if let Some(counter) = self.counter {
            self.op(Op::Mov { width: Width::W64, dst: counter, src: Val::Imm(MAY_GOTO_BUDGET as i64) });
        }
        self.zero_frame();
    }

    fn insns(&mut self, slots: Range<u32>) {
        let insns = &self.program.insns()[slots.start as usize..slots.end as usize];
        for (slot, insn) in slots.zip(insns) {
            self.sink.0.begin_alone(BlockId(slot));
            if self.dead(InsnIdx(slot)) {
                continue;
            }
            self.next = BlockId(slot + 1);
            self.temporaries = 0;
            self.span = Span { first: slot, len: 1 };
            self.insn(insn, BpfBlock(slot));
        }
        self.next = NOWHERE;
    }
}

impl<E: Emitter> FuncLowerer<'_, &mut Direct<E>> {
    /// Whether the verifier has proven an instruction unreachable.
    #[inline(always)]
    fn dead(&self, at: InsnIdx) -> bool {
        self.some_dead && self.facts.insn(at).dead
    }

    /// Returns [`Sink::ways`] of the current instruction.
    #[inline(always)]
    fn ways_of(&self, off: i32) -> (Option<BlockId>, bool) {
        let slot = self.span.first;
        let Some(target) = InsnIdx(slot).jump(off) else { return (None, true) };
        let to = Some(BlockId(target.0));
        match self.some_dead.then(|| (self.dead(target), self.dead(InsnIdx(slot + 1)))) {
            Some((true, false)) => (None, true),
            Some((false, true)) => (to, false),
            Some((true, true) | (false, false)) | None => (to, true),
        }
    }
}
