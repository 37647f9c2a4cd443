//! Tail calls.
//!
//! A site unwinds its own function completely and jumps to the target's entry, so each function saves what it likes. Everything that can
//! make the call fall through is checked before anything is changed; the count is of jumps taken.
//!
//! ```text
//! dynamic                              constant: a direct, patchable site
//!   cmp  [table], index                  cmp [ctx.tail_calls], 33
//!   jbe  out                             jae out
//!   target = [table + 8 * index + 8]     BYPASS: jmp out             (nop: open)
//!   test target, target                  inc [ctx.tail_calls]
//!   jz   out                             arguments, unwind
//!   cmp  [ctx.tail_calls], 33            TARGET: nop                 (jmp program)
//!   jae  out                           out:
//!   inc  [ctx.tail_calls]
//!   arguments, unwind
//!   jmp  target
//! out:
//! ```
//! Invariant: every value is where it was when control reaches `out` from above the increment; below it, only r11 (the target)
//! survives.

use crate::asm::{Memory, asm, mem, reg};
use crate::jump::{Cc, Jump, nop5};
use crate::regs::{ARGS, Gpr, SCRATCH, SCRATCH2};
use crate::{Emitter, X64};
use bpf_isa::Width;
use bpf_jit::{EmitError, EmitOptions, TailKey, VReg};
use bpf_jit_code::layout::{Label, Layout};
use bpf_jit_code::{Arch, PatchSlot, RunCtx, Symbol, TAIL_CALL_LIMIT, TailCallSite, TailTarget, UnwindOp};

/// A site whose offsets are not final yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingTailCall {
    insn: u32,
    direct: Option<Direct>,
}

#[derive(Clone, Copy, Debug)]
struct Direct {
    table: Symbol,
    index: u32,
    bypass: Label,
    target: Label,
    out: Label,
}

impl PendingTailCall {
    /// The site, once the layout is final.
    pub(crate) fn resolve(&self, layout: &Layout<Jump>) -> Result<TailCallSite, EmitError> {
        let target = match self.direct {
            None => TailTarget::Indirect,
            Some(site) => {
                let offset = |label| layout.offset(label).ok_or(EmitError::Internal("a tail call's label is unbound"));
                let slot = |label| {
                    PatchSlot::new(Arch::X64, offset(label)?)
                        .map_err(|_| EmitError::Internal("a patch slot crosses a word"))
                };
                TailTarget::Direct {
                    table: site.table,
                    index: site.index,
                    bypass: slot(site.bypass)?,
                    target: slot(site.target)?,
                    out: offset(site.out)?,
                }
            }
        };
        Ok(TailCallSite { insn: self.insn, target })
    }
}

impl Emitter<'_> {
    pub(crate) fn tail_call(&mut self, key: TailKey, arg: VReg, ctx: VReg, reload_len: bool) {
        let out = self.s.layout.label();
        let direct = match key {
            TailKey::Dynamic { table, index } => {
                self.load_target(table, index, out);
                self.check_count(ctx, out);
                self.replace(arg, ctx, reload_len);
                self.s.jump_indirect(self.options);
                None
            }
            TailKey::Const { table, index } => {
                self.check_count(ctx, out);
                let bypass = self.patch_slot();
                self.s.layout.branch(&mut self.s.buf, Jump::Patchable, out);
                self.replace(arg, ctx, reload_len);
                let target = self.patch_slot();
                nop5(&mut self.s.buf);
                Some(Direct { table, index, bypass, target, out })
            }
        };
        self.unwind_note(UnwindOp::Recall);
        self.s.layout.bind(&self.s.buf, out);
        self.s.tail_calls.push(PendingTailCall { insn: self.insn, direct });
    }

    /// The entry in [`SCRATCH2`], or falls through to `out`.
    fn load_target(&mut self, table: VReg, index: VReg, out: Label) {
        let table = self.get(table, SCRATCH);
        let index = self.get(index, SCRATCH2);
        mem!(self.s.buf, table.at(0); cmp [rax], Rd(index));
        self.jump_if(Cc::Be, out);
        // The index is 32 bits wide; what is above them is not part of it.
        self.zero_extend(SCRATCH2, index);
        mem!(self.s.buf, Memory::indexed(table, SCRATCH2, 3, 8); mov Rq(SCRATCH2), [rax]);
        reg!(self.s.buf; test Rq(SCRATCH2), Rq(SCRATCH2));
        self.jump_if(Cc::E, out);
    }

    fn check_count(&mut self, ctx: VReg, out: Label) {
        let ctx = self.get(ctx, SCRATCH);
        const { assert!(TAIL_CALL_LIMIT <= i8::MAX as u32) };
        let count = ctx.at(RunCtx::TAIL_CALLS_OFFSET).into();
        asm!(self.s.buf, [shorten_imm, memory(count, 1), drop_rex]; cmp DWORD [rax], TAIL_CALL_LIMIT as i32);
        self.jump_if(Cc::Ae, out);
    }

    /// The point of no return: counts, passes the arguments, and unwinds.
    fn replace(&mut self, arg: VReg, ctx: VReg, reload_len: bool) {
        let counter = self.get(ctx, SCRATCH);
        mem!(self.s.buf, counter.at(RunCtx::TAIL_CALLS_OFFSET); inc DWORD [rax]);
        self.queue_move(self.machine.args[0], arg);
        self.queue_move(self.machine.ctx, ctx);
        self.queued_moves();
        if reload_len {
            let ctx = Gpr::from(self.machine.ctx);
            mem!(self.s.buf, ctx.at(RunCtx::PACKET_LEN_OFFSET); mov Rq(ARGS[1]), [rax]);
        }
        self.unwind();
    }

    fn patch_slot(&mut self) -> Label {
        self.s.layout.align_patch_slot(&mut self.s.buf);
        let label = self.s.layout.label();
        self.s.layout.bind(&self.s.buf, label);
        label
    }

    fn zero_extend(&mut self, dst: Gpr, src: Gpr) {
        self.mov(Width::W32, dst, src);
    }
}

impl X64 {
    /// Jumps to the address in [`SCRATCH2`].
    pub(crate) fn jump_indirect(&mut self, options: &EmitOptions) {
        if options.hardening.retpolines {
            let thunk = *self.thunk.get_or_insert_with(|| self.layout.label());
            self.layout.branch(&mut self.buf, Jump::Always, thunk);
        } else {
            reg!(self.buf; jmp Rq(SCRATCH2));
        }
    }

    /// The retpoline: speculation of the return is caught in a loop while the real one goes to the address in [`SCRATCH2`].
    pub(crate) fn retpoline(&mut self) {
        let Some(label) = self.thunk else { return };
        self.layout.bind(&self.buf, label);
        reg!(self.buf; call DWORD 0);
        let start = self.buf.len();
        reg!(self.buf; pause);
        reg!(self.buf; lfence);
        // Back to the pause, over pause, lfence and itself.
        reg!(self.buf; jmp BYTE -7);
        let set = self.buf.len();
        if let Some(rel) = self.buf.get_mut(start - 4) {
            *rel = (set - start) as u8;
        }
        mem!(self.buf, Gpr::Rsp.at(0); mov [rax], Rq(SCRATCH2));
        reg!(self.buf; ret);
    }
}
