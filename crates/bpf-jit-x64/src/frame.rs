//! Function frames.
//!
//! ```text
//! high  return address
//!       saved rbp           \  functions whose BPF stack is addressed from rbp
//!       BPF stack           /  r10 = rbp
//!       saved registers        those the allocation uses, no others
//! rsp-> slots                  values the allocation found no register for
//! ```
//! A leaf function with a small BPF stack that it touches rarely keeps it in the red zone, the 128 bytes below rsp that
//! nobody else writes: r10 = rsp, and there is no frame at all. A frame has no unneeded part: a function
//! without stack, slots and saved registers has no prologue.
//!
//! A frame larger than a page could step over the page that guards the end of a thread's stack, so its prologue reads
//! from it page by page, from the top down: an overflow then faults in the guard instead of writing to whatever lies
//! behind it.
//!
//! Invariants: with calls, rsp is 16-byte aligned at each of them. In any 4096 consecutive bytes of machine stack
//! between an entry sequence and the present rsp, at least one byte has been accessed: the return address that a call
//! pushes, a saved register, or a probe.

use crate::Emitter;
use crate::asm::{Addr, Memory, asm, mem, reg};
use crate::jump::Jump;
use crate::regs::Gpr::{self, *};
use crate::regs::{CALLEE_SAVED, SCRATCH, SCRATCH2};
use crate::tail_call::no_straight_line;
use bpf_isa::Width;
use bpf_jit::num::few;
use bpf_jit::{Alloc, Base, HostReg, HostRegSet, Loc, Mem, Move, MoveSrc, Shape, VReg, parallel_moves};
use bpf_jit_code::{FrameShape, UnwindOp};

/// Bytes below rsp that signal handlers and the kernel leave alone (System V ABI, 3.2.2).
const RED_ZONE: u32 = 128;

/// An access relative to rsp takes a byte more than one relative to rbp; setting rbp up and down takes at least these
/// many.
const RED_ZONE_MAX_ACCESSES: usize = 9;

/// The least size of a guard page, and so the distance of probes: pages are no smaller on any host.
pub(crate) const PROBE_STEP: u32 = 4096;

/// How long an epilogue is repeated at every exit rather than jumped to: the length of a long jump.
const MAX_INLINE_EPILOGUE: usize = 5;

/// The frame of one function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// r10: rbp, or rsp where the stack is in the red zone or there is none.
    pub(crate) base: Gpr,
    /// Bytes between rbp and the saved registers.
    stack: u32,
    /// Registers saved by pushing them.
    saves: HostRegSet,
    /// Bytes of slots.
    slots: u32,
    /// Bytes of the red zone that are used.
    red_zone: u32,
    /// Bytes of the whole frame, with the return address.
    bytes: u32,
}

impl Gpr {
    /// The memory operand `disp` bytes after the address in the register.
    pub(crate) fn at(self, disp: i32) -> Addr {
        Addr { base: self, disp }
    }
}

impl Frame {
    pub(crate) fn plan(shape: &Shape, alloc: &Alloc, save_all: bool) -> Frame {
        let Shape { calls, stack_bytes, stack_accesses, .. } = *shape;
        let rarely = stack_accesses <= RED_ZONE_MAX_ACCESSES;
        let red_zone = !calls && (1..=RED_ZONE).contains(&stack_bytes) && rarely;
        let framed = stack_bytes > 0 && !red_zone;
        let mut saves = if save_all {
            CALLEE_SAVED.iter().fold(HostRegSet::EMPTY, |set, r| set.union(HostRegSet::of(&[r.host()])))
        } else {
            HostRegSet::of(&alloc.saves)
        };
        if framed {
            saves = saves.without(HostRegSet::of(&[Rbp.host()]));
        }
        let mut stack = if framed { stack_bytes } else { 0 };
        let mut slots = 8 * alloc.slots;
        let mut bytes = 8 + 8 * u32::from(framed) + stack + 8 * saves.len() + slots;
        let pad = if calls { bytes.wrapping_neg() % 16 } else { 0 };
        if framed {
            stack += pad;
        } else {
            slots += pad;
        }
        bytes += pad;
        // Not reserved, but used.
        let red_zone = if red_zone { stack_bytes } else { 0 };
        bytes += red_zone;
        Frame { base: if framed { Rbp } else { Rsp }, stack, saves, slots, red_zone, bytes }
    }

    pub(crate) fn shape(&self) -> FrameShape {
        let below_caller = self.bytes - self.red_zone;
        FrameShape { bytes: self.bytes, below_caller, return_address: Some(below_caller - 8) }
    }

    /// The distances of slot 0 and of r10 below the CFA.
    pub(crate) fn below_cfa(&self) -> (u32, u32) {
        let rsp = self.bytes - self.red_zone;
        (rsp, if self.framed() { 16 } else { rsp })
    }

    fn framed(&self) -> bool {
        self.base == Rbp
    }

    /// Bytes between the CFA and the saved registers: return address, saved rbp, BPF stack.
    fn above_saves(&self) -> u32 {
        8 + if self.framed() { 8 + self.stack } else { 0 }
    }

    fn saves(self) -> impl DoubleEndedIterator<Item = Gpr> {
        CALLEE_SAVED.into_iter().filter(move |r| self.saves.contains(r.host()))
    }
}

impl Emitter<'_> {
    /// Enters the function: frame, then parameters to where the allocation wants them.
    pub(crate) fn prologue(&mut self, shape: &Shape) {
        let frame = self.frame;
        if frame.framed() {
            reg!(self.s.buf; push Rq(Rbp));
            self.unwind_note(UnwindOp::Cfa { base: Rsp.into(), offset: 16 });
            self.unwind_note(UnwindOp::Saved { reg: Rbp.into(), offset: 16 });
            self.copy(Width::W64, Rbp, Rsp);
            self.unwind_note(UnwindOp::Cfa { base: Rbp.into(), offset: 16 });
            self.probe_stack(frame.stack);
            self.lower_stack(frame.stack);
        }
        let mut depth = frame.above_saves();
        for r in frame.saves() {
            reg!(self.s.buf; push Rq(r));
            depth += 8;
            self.cfa_from_rsp(depth);
            self.unwind_note(UnwindOp::Saved { reg: r.into(), offset: depth });
        }
        self.probe_stack(frame.slots);
        self.lower_stack(frame.slots);
        if frame.slots > 0 {
            self.cfa_from_rsp(depth + frame.slots);
        }
        self.parameters(shape);
    }

    /// Notes that rsp has moved to `offset` below the CFA; in a frame with rbp, no code finds it from rsp.
    fn cfa_from_rsp(&mut self, offset: u32) {
        if !self.frame.framed() {
            self.unwind_note(UnwindOp::Cfa { base: Rsp.into(), offset });
        }
    }

    fn parameters(&mut self, shape: &Shape) {
        let params = shape.params.into_iter().zip(self.machine.args);
        for (v, reg) in params.chain([(shape.ctx, self.machine.ctx)]) {
            let Some(v) = v else { continue };
            match self.alloc.loc(v) {
                Loc::Reg(dst) if dst == reg => {}
                Loc::Reg(dst) => self.s.moves.push(Move { dst, src: MoveSrc::Loc(Loc::Reg(reg)) }),
                // Before any register is overwritten.
                Loc::Slot(slot) => self.store_slot(slot, reg.into()),
            }
        }
        self.queued_moves();
    }

    /// Leaves the function, up to the return: the machine is as it was at entry but for scratch, rcx and the result.
    /// Code emitted behind it that runs inside the frame begins with [`UnwindOp::Recall`].
    pub(crate) fn unwind(&mut self) {
        let frame = self.frame;
        self.unwind_note(UnwindOp::Remember);
        if !(frame.framed() && frame.saves.is_empty()) {
            let mut depth = frame.above_saves() + 8 * frame.saves.len();
            self.raise_stack(frame.slots);
            if frame.slots > 0 {
                self.cfa_from_rsp(depth);
            }
            for r in frame.saves().rev() {
                reg!(self.s.buf; pop Rq(r));
                depth -= 8;
                self.unwind_note(UnwindOp::Restored { reg: r.into() });
                self.cfa_from_rsp(depth);
            }
        }
        if frame.framed() {
            reg!(self.s.buf; leave);
            self.unwind_note(UnwindOp::Restored { reg: Rbp.into() });
            self.unwind_note(UnwindOp::Cfa { base: Rsp.into(), offset: 8 });
        }
    }

    /// Returns `value`.
    pub(crate) fn exit(&mut self, value: VReg) {
        self.load_into(Width::W64, Rax, value);
        match self.epilogue {
            Some(shared) => self.go(Jump::Always, shared),
            None => {
                let label = self.s.here();
                let start = self.s.buf.len();
                self.unwind();
                reg!(self.s.buf; ret);
                no_straight_line(self.s, self.options);
                self.unwind_note(UnwindOp::Recall);
                if self.s.buf.len() - start > MAX_INLINE_EPILOGUE {
                    self.epilogue = Some(label);
                }
            }
        }
    }

    /// Reads from every page of the `bytes` below rsp, the highest first, and from the lowest of them; nothing in a
    /// frame of less than a page. rsp moves afterwards, so that the CFA's distance from it needs no description in
    /// here.
    fn probe_stack(&mut self, bytes: u32) {
        if self.frame.bytes < PROBE_STEP || bytes == 0 {
            return;
        }
        // Nothing is in the scratch registers at entry.
        let (at, end) = (SCRATCH, SCRATCH2);
        let steps = bytes / PROBE_STEP;
        if steps > 0 {
            let whole = Rsp.at(-((steps * PROBE_STEP) as i32));
            mem!(self.s.buf, whole; lea Rq(end), [rax]);
            self.copy(Width::W64, at, Rsp);
            let start = self.s.buf.len();
            self.add_imm(Width::W64, at, at, -i64::from(PROBE_STEP));
            mem!(self.s.buf, at.at(0); test [rax], Rd(at));
            reg!(self.s.buf; cmp Rq(at), Rq(end));
            // Back to the start, over itself.
            reg!(self.s.buf; jnz BYTE 0);
            let len = self.s.buf.len() - start;
            if let Some(rel) = self.s.buf.last_mut() {
                *rel = few(len).wrapping_neg();
            }
        }
        if !bytes.is_multiple_of(PROBE_STEP) {
            mem!(self.s.buf, Rsp.at(-(bytes as i32)); test [rax], Rd(at));
        }
    }

    fn lower_stack(&mut self, bytes: u32) {
        match bytes {
            0 => {}
            8 => reg!(self.s.buf; push rax),
            // Frames are far below 2 GiB: 512 bytes of BPF stack by default, eight a value.
            _ => self.add_imm(Width::W64, Rsp, Rsp, -i64::from(bytes)),
        }
    }

    fn raise_stack(&mut self, bytes: u32) {
        match bytes {
            0 => {}
            // rcx is dead: neither a return nor a tail call passes anything in it.
            8 => reg!(self.s.buf; pop rcx),
            _ => self.add_imm(Width::W64, Rsp, Rsp, i64::from(bytes)),
        }
    }

    /// Performs the queued moves, all at once.
    pub(crate) fn queued_moves(&mut self) {
        let mut moves = core::mem::take(&mut self.s.moves);
        parallel_moves(&mut moves, SCRATCH.host(), |m| match m.src {
            MoveSrc::Loc(Loc::Reg(src)) => self.copy(Width::W64, m.dst.into(), src.into()),
            MoveSrc::Loc(Loc::Slot(slot)) => self.load_slot(m.dst.into(), slot),
            MoveSrc::Imm(value) => self.load_imm(m.dst.into(), value as u64),
        });
        // Used up; the memory is reused.
        self.s.moves = moves;
    }

    /// Queues the move of `v` to `dst`.
    pub(crate) fn queue_move(&mut self, dst: HostReg, v: VReg) {
        self.s.moves.push(Move { dst, src: MoveSrc::Loc(self.alloc.loc(v)) });
    }

    pub(crate) fn slot(slot: u32) -> Addr {
        Addr { base: Rsp, disp: 8 * slot as i32 }
    }

    pub(crate) fn load_slot(&mut self, dst: Gpr, slot: u32) {
        if self.is_kept(Loc::Slot(slot)) {
            return self.copy(Width::W64, dst, SCRATCH);
        }
        let m = Self::slot(slot);
        mem!(self.s.buf, m; mov Rq(dst), [rax]);
    }

    pub(crate) fn store_slot(&mut self, slot: u32, src: Gpr) {
        let m = Self::slot(slot);
        mem!(self.s.buf, m; mov [rax], Rq(src));
        if src == SCRATCH {
            self.kept = Some((slot, self.s.buf.len()));
        }
    }

    /// Whether it is what [`SCRATCH`] still has, because the instruction before stored it there: nobody need wait for
    /// memory.
    #[inline(always)]
    pub(crate) fn is_kept(&self, loc: Loc) -> bool {
        matches!((self.kept, loc), (Some((kept, at)), Loc::Slot(slot)) if kept == slot && at == self.s.buf.len())
    }

    /// A constant, sign-extended, into a slot.
    pub(crate) fn store_imm_slot(&mut self, slot: u32, imm: i32) {
        let m = Self::slot(slot);
        mem!(self.s.buf, m, 4; mov QWORD [rax], DWORD imm);
    }

    /// The register that holds `v`: its own, or `scratch`, loaded from its slot.
    #[inline(always)]
    pub(crate) fn get(&mut self, v: VReg, scratch: Gpr) -> Gpr {
        match self.alloc.loc(v) {
            Loc::Reg(reg) => reg.into(),
            Loc::Slot(slot) => {
                self.load_slot(scratch, slot);
                scratch
            }
        }
    }

    /// Puts the value of `v` into `dst`, as far as an op of this width reads it.
    pub(crate) fn load_into(&mut self, width: Width, dst: Gpr, v: VReg) {
        match self.alloc.loc(v) {
            Loc::Reg(reg) => self.copy(width, dst, reg.into()),
            Loc::Slot(slot) => self.load_slot(dst, slot),
        }
    }

    /// The register in which to compute `v`: its own, or scratch.
    #[inline(always)]
    pub(crate) fn target(&self, v: VReg) -> Gpr {
        match self.alloc.loc(v) {
            Loc::Reg(reg) => reg.into(),
            Loc::Slot(_) => SCRATCH,
        }
    }

    /// `v` has been computed in `target`, which [`Emitter::target`] named.
    #[inline(always)]
    pub(crate) fn put(&mut self, v: VReg, target: Gpr) {
        if target == SCRATCH {
            self.set(v, target);
        }
    }

    /// Gives `v` the value in `src`.
    pub(crate) fn set(&mut self, v: VReg, src: Gpr) {
        match self.alloc.loc(v) {
            Loc::Reg(reg) if reg == src.host() => {}
            Loc::Reg(reg) => self.mov_reg(Width::W64, reg.into(), src),
            Loc::Slot(slot) => self.store_slot(slot, src),
        }
    }

    /// The address `mem`, its base in a register; an index is added to it in `scratch`, which changes flags.
    #[inline(always)]
    pub(crate) fn address(&mut self, mem: Mem, scratch: Gpr) -> Addr {
        let base = match mem.base {
            Base::Reg(v) => self.get(v, scratch),
            Base::Frame => self.frame.base,
            Base::Indexed { base, index, shift } => self.sum(base, index, shift, scratch),
        };
        Addr { base, disp: mem.off }
    }

    /// The memory operand of a plain load or store; `scratch` is used for operands in slots. Changes flags.
    #[inline(always)]
    pub(crate) fn operand(&mut self, mem: Mem, scratch: Gpr) -> Memory {
        if let Base::Indexed { base, index, shift } = mem.base {
            self.indexed(base, index, shift & 3, mem.off, scratch)
        } else {
            self.address(mem, scratch).into()
        }
    }

    /// `[base + (index << shift) + disp]`.
    fn indexed(&mut self, base: VReg, index: VReg, shift: u8, disp: i32, scratch: Gpr) -> Memory {
        match (self.alloc.loc(base), self.alloc.loc(index)) {
            (Loc::Slot(_), Loc::Slot(_)) => Addr { base: self.sum(base, index, shift, scratch), disp }.into(),
            (Loc::Reg(_), _) | (_, Loc::Reg(_)) => {
                let (base, index) = (self.get(base, scratch), self.get(index, scratch));
                // rbp and r13 as base take a displacement; unscaled, the two change places.
                let turn = shift == 0 && disp == 0 && matches!(base, Rbp | R13);
                let (base, index) = if turn { (index, base) } else { (base, index) };
                Memory::at_index(base, index, shift, disp)
            }
        }
    }

    /// `base + (index << shift)` in `scratch`.
    fn sum(&mut self, base: VReg, index: VReg, shift: u8, scratch: Gpr) -> Gpr {
        self.load_into(Width::W64, scratch, index);
        if shift > 0 {
            asm!(self.s.buf, [shift_count(shift.into())]; shl Rq(scratch), shift as i8);
        }
        match self.alloc.loc(base) {
            Loc::Reg(base) => reg!(self.s.buf; add Rq(scratch), Rq(Gpr::from(base))),
            Loc::Slot(slot) => mem!(self.s.buf, Self::slot(slot); add Rq(scratch), [rax]),
        }
        scratch
    }
}
