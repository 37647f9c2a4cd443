//! Stopping a run.
//!
//! A check that fails jumps to a stub after the function's code, so the path taken has no jump. Every stub says which
//! instruction stopped the run and calls one sequence a code and reason, which stores both, where it was called, and
//! the stack pointer, and leaves for where the runtime wants stopped runs.

use crate::asm::{asm, mem, reg};
use crate::emit::branch::Comparison;
use crate::jump::{Cc, Jump};
use crate::regs::Gpr::*;
use crate::regs::SCRATCH2;
use crate::tail_call::jump_indirect;
use crate::{Emitter, X64};
use bpf_isa::{Cond, Width};
use bpf_jit::{Check, EmitOptions, Stub, VReg, Val};
use bpf_jit_code::{RunCtx, StopCode};

impl Emitter<'_> {
    pub(crate) fn check(&mut self, check: Check, ctx: VReg) {
        let r = self.get(ctx, SCRATCH2);
        let (cc, code) = match check {
            Check::Budget(1) => {
                mem!(self.s.buf, r.at(RunCtx::BUDGET_OFFSET); dec QWORD [rax]);
                (Cc::S, StopCode::Budget)
            }
            Check::Budget(times) => {
                let at = r.at(RunCtx::BUDGET_OFFSET).into();
                let (short, times) = (times < 128, i32::from(times));
                if short {
                    asm!(self.s.buf, [shorten_imm, memory(at, 1)]; sub QWORD [rax], DWORD times);
                } else {
                    asm!(self.s.buf, [memory(at, 4)]; sub QWORD [rax], DWORD times);
                }
                (Cc::S, StopCode::Budget)
            }
            Check::Interrupt => {
                let flag = r.at(RunCtx::INTERRUPT_OFFSET).into();
                asm!(self.s.buf, [shorten_imm, memory(flag, 1), drop_rex]; cmp DWORD [rax], DWORD 0);
                (Cc::S, StopCode::Interrupted)
            }
        };
        let stub = self.s.stub(code, ctx);
        self.jump_if(cc, stub);
    }

    pub(crate) fn bound(&mut self, a: VReg, limit: Val, ctx: VReg) {
        self.compare::<false>(Comparison { width: Width::W64, cond: Cond::Ge, a, b: limit });
        let stub = self.s.stub(StopCode::Access, ctx);
        self.jump_if(Cc::from(Cond::Ge), stub);
    }

    pub(crate) fn stop(&mut self, code: StopCode, ctx: VReg) {
        self.load_into(Width::W64, SCRATCH2, ctx);
        self.load_imm(Rax, self.s.insn.into());
        let stop = self.s.stop(code);
        // By its return address the sequence knows the place: which function's frame is on the stack, and, after tail
        // calls, which program's.
        self.go(Jump::Call, stop);
    }

    /// Emits the stubs of the function's checks.
    pub(crate) fn stubs(&mut self) {
        let mut emitted = 0;
        while let Some(Stub { label, code, ctx, insn }) = self.s.next_stub(emitted) {
            emitted += 1;
            self.s.bind(label);
            self.mark(insn);
            self.stop(code, ctx);
        }
    }
}

impl X64 {
    /// The sequences that stop a run: hidden argument in [`SCRATCH2`], instruction in eax.
    pub(crate) fn stop_sequences(&mut self, options: &EmitOptions) {
        for (code, label) in self.s.stops() {
            self.s.bind(label);
            let ctx = SCRATCH2;
            mem!(self.s.buf, ctx.at(RunCtx::STOP_CODE_OFFSET), 4; mov DWORD [rax], DWORD code as i32);
            mem!(self.s.buf, ctx.at(RunCtx::STOP_INSN_OFFSET); mov [rax], eax);
            reg!(self.s.buf; pop rax);
            mem!(self.s.buf, ctx.at(RunCtx::STOP_PC_OFFSET); mov [rax], rax);
            mem!(self.s.buf, ctx.at(RunCtx::STOP_SP_OFFSET); mov [rax], rsp);
            reg!(self.s.buf; mov rdi, Rq(ctx));
            mem!(self.s.buf, ctx.at(RunCtx::STOP_TO_OFFSET); mov Rq(SCRATCH2), [rax]);
            jump_indirect(&mut self.s, &mut self.thunk, options);
        }
    }
}
