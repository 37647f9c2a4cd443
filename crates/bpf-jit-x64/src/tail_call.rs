//! Tail calls.
//!
//! A site unwinds its own function completely and jumps to the target's entry, so each function saves what it likes.
//! Everything that can make the call fall through is checked before anything is changed; the count is of jumps taken.
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
//! Invariant: every value is where it was when control reaches `out` from above the increment; below it, only r11 (the
//! target) survives.

use crate::asm::{Memory, asm, mem, reg};
use crate::jump::{Cc, Jump, nop5};
use crate::regs::{ARGS, Gpr, SCRATCH, SCRATCH2};
use crate::{Emitter, X64};
use bpf_isa::Width;
use bpf_jit::num::few;
use bpf_jit::{DirectSite, EmitOptions, Skeleton, TailKey, VReg};
use bpf_jit_code::layout::Label;
use bpf_jit_code::{RunCtx, TAIL_CALL_LIMIT, UnwindOp};

impl Emitter<'_> {
    pub(crate) fn tail_call(&mut self, key: TailKey, arg: VReg, ctx: VReg, reload_len: bool) {
        let out = self.s.layout.label();
        let direct = match key {
            TailKey::Dynamic { table, index } => {
                self.load_target(table, index, out);
                self.check_count(ctx, out);
                self.replace(arg, ctx, reload_len);
                jump_indirect(self.s, self.thunk, self.options);
                None
            }
            TailKey::Const { table, index } => {
                self.check_count(ctx, out);
                let bypass = self.s.patch_slot();
                self.go(Jump::Patchable, out);
                self.replace(arg, ctx, reload_len);
                let target = self.s.patch_slot();
                nop5(&mut self.s.buf);
                Some(DirectSite { table, index, bypass, target, out })
            }
        };
        self.unwind_note(UnwindOp::Recall);
        self.s.bind(out);
        self.s.tail_call(direct);
    }

    /// The entry in [`SCRATCH2`], or falls through to `out`.
    fn load_target(&mut self, table: VReg, index: VReg, out: Label) {
        let table = self.get(table, SCRATCH);
        let index = self.get(index, SCRATCH2);
        mem!(self.s.buf, table.at(0); cmp [rax], Rd(index));
        self.jump_if(Cc::Be, out);
        // The index is 32 bits wide; the register's upper half is not part of it.
        self.zero_extend(SCRATCH2, index);
        mem!(self.s.buf, Memory::at_index(table, SCRATCH2, 3, 8); mov Rq(SCRATCH2), [rax]);
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

    fn zero_extend(&mut self, dst: Gpr, src: Gpr) {
        self.mov_reg(Width::W32, dst, src);
    }
}

/// Jumps to the address in [`SCRATCH2`].
pub(crate) fn jump_indirect(s: &mut Skeleton<Jump>, thunk: &mut Option<Label>, options: &EmitOptions) {
    if options.hardening.retpolines {
        let thunk = *thunk.get_or_insert_with(|| s.layout.label());
        s.go(Jump::Always, thunk);
    } else {
        reg!(s.buf; jmp Rq(SCRATCH2));
        no_straight_line(s, options);
    }
}

/// Behind a return or an indirect jump: a barrier, if it is hardened.
pub(crate) fn no_straight_line(s: &mut Skeleton<Jump>, options: &EmitOptions) {
    if options.hardening.straight_line {
        reg!(s.buf; int3);
    }
}

impl X64 {
    /// The retpoline: speculation of the return is caught in a loop while the real one goes to the address in
    /// [`SCRATCH2`].
    pub(crate) fn retpoline(&mut self, options: &EmitOptions) {
        let Some(label) = self.thunk else { return };
        self.s.bind(label);
        reg!(self.s.buf; call DWORD 0);
        let start = self.s.buf.len();
        reg!(self.s.buf; pause);
        reg!(self.s.buf; lfence);
        // Back to the pause, over pause, lfence and itself.
        reg!(self.s.buf; jmp BYTE -7);
        let set = self.s.buf.len();
        if let Some(rel) = self.s.buf.get_mut(start - 4) {
            *rel = few(set - start);
        }
        mem!(self.s.buf, Gpr::Rsp.at(0); mov [rax], Rq(SCRATCH2));
        reg!(self.s.buf; ret);
        no_straight_line(&mut self.s, options);
    }
}
