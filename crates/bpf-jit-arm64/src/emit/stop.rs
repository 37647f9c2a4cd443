//! Stopping a run.
//!
//! A check that fails branches to a stub behind the function. The stub records the place of the check and branches to
//! the stop sequence of its reason; a program has at most one sequence for each reason. The sequence stores the stack
//! pointer, the link register and the stop code for the runtime, and leaves to the runtime's exit for stopped runs.

use crate::asm::asm;
use crate::emit::alu::mov_imm;
use crate::emit::branch::{Comparison, constant_outcome};
use crate::jump::{Cc, Jump};
use crate::regs::{AUX, CTX, TMP0, TMP1, TMP2};
use crate::tail_call::no_straight_line;
use crate::{Arm64, Emitter};
use bpf_isa::Width;
use bpf_jit::{Check, Cond, EmitOptions, Stub, VReg, Val};
use bpf_jit_code::{RunCtx, StopCode};

impl Emitter<'_> {
    pub(crate) fn check(&mut self, check: Check, ctx: VReg) {
        let at = self.get(ctx, TMP1);
        let (jump, code) = match check {
            Check::Budget(times) => {
                let offset = RunCtx::BUDGET_OFFSET as u32;
                asm!(&mut self.s.buf;
                    ldr X(TMP2), [XSP(at), offset];
                    subs X(TMP2), XSP(TMP2), u32::from(times);
                    str X(TMP2), [XSP(at), offset]);
                // The sign of the remaining budget decides, as on every machine: a budget that wraps around goes on.
                (Jump::If(Cc::Mi), StopCode::Budget)
            }
            Check::Interrupt => {
                // Not by `tbnz`, which reaches 32 KiB only.
                asm!(&mut self.s.buf;
                    ldr W(TMP2), [XSP(at), RunCtx::INTERRUPT_OFFSET as u32];
                    cmp WSP(TMP2), 0);
                (Jump::If(Cc::Mi), StopCode::Interrupted)
            }
        };
        let stub = self.s.stub(code, ctx);
        self.go(jump, stub);
    }

    pub(crate) fn bound(&mut self, a: VReg, limit: Val, ctx: VReg) {
        let comparison = Comparison { width: Width::W64, cond: Cond::Ge, a, b: limit };
        let at = self.get(a, TMP0);
        let jump = match constant_outcome(comparison) {
            Some(false) => return,
            Some(true) => Jump::Always,
            None => Jump::If(self.flags(comparison, at)),
        };
        let stub = self.s.stub(StopCode::Access, ctx);
        self.go(jump, stub);
    }

    pub(crate) fn stop(&mut self, code: StopCode, ctx: VReg) {
        let at = self.get(ctx, CTX);
        if at != CTX {
            asm!(&mut self.s.buf; mov X(CTX), X(at));
        }
        mov_imm(&mut self.s.buf, AUX, self.s.insn.into());
        // By this the place is known: which function's frame is on the stack, and, after tail calls, which program's.
        asm!(&mut self.s.buf; adr X(TMP2), 0);
        let stop = self.s.stop(code);
        self.go(Jump::Always, stop);
    }

    /// Emits the stubs of the function's checks.
    pub(crate) fn stubs(&mut self) {
        let mut emitted = 0;
        while let Some(Stub { label, code, ctx, insn }) = self.s.next_stub(emitted) {
            emitted += 1;
            self.mark(insn);
            self.s.bind(label);
            self.stop(code, ctx);
        }
    }
}

impl Arm64 {
    /// The sequences that stop a run: `CTX` is the `RunCtx`, `AUX` the instruction and `TMP2` the place.
    pub(crate) fn stop_sequences(&mut self, options: &EmitOptions) {
        for (code, label) in self.s.stops() {
            self.s.bind(label);
            asm!(&mut self.s.buf; str X(TMP2), [XSP(CTX), RunCtx::STOP_PC_OFFSET as u32]);
            mov_imm(&mut self.s.buf, TMP2, code as u64);
            asm!(&mut self.s.buf;
                str W(TMP2), [XSP(CTX), RunCtx::STOP_CODE_OFFSET as u32];
                str W(AUX), [XSP(CTX), RunCtx::STOP_INSN_OFFSET as u32];
                mov XSP(TMP2), sp;
                str X(TMP2), [XSP(CTX), RunCtx::STOP_SP_OFFSET as u32];
                str x30, [XSP(CTX), RunCtx::STOP_LINK_OFFSET as u32];
                mov x0, X(CTX);
                ldr X(AUX), [XSP(CTX), RunCtx::STOP_TO_OFFSET as u32];
                // Unlike `br`, a `ret` needs no landing pad.
                ret X(AUX));
            no_straight_line(&mut self.s, options);
        }
    }
}
