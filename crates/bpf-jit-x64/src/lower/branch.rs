//! Comparisons, jumps, and stopping a run.
//!
//! A check that fails jumps to a stub after the function's code, so the path taken has no jump. Every stub says which instruction stopped the run and goes on
//! to one sequence a code and reason, which stores both and leaves through the exit frame.

use crate::asm::{asm, byte, mem, reg};
use crate::jump::{Cc, Jump, cmov, jcc_short};
use crate::lower::alu::{Alu, at_width};
use crate::regs::Gpr::{self, *};
use crate::regs::{SCRATCH, SCRATCH2};
use crate::{Emitter, X64};
use bpf_isa::{Cond, Width};
use bpf_jit::{BlockId, Check, EmitOptions, VReg, Val};
use bpf_jit_code::layout::Label;
use bpf_jit_code::{RunCtx, StopCode};

/// `a cond b` at a width.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Comparison {
    pub(crate) width: Width,
    pub(crate) cond: Cond,
    pub(crate) a: VReg,
    pub(crate) b: Val,
}

/// Where a failed check goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stub {
    label: Label,
    code: StopCode,
    ctx: VReg,
    insn: u32,
}

impl Emitter<'_> {
    pub(crate) fn jump(&mut self, target: Label) {
        self.s.layout.branch(&mut self.s.buf, Jump::Always, target);
    }

    pub(crate) fn jump_if(&mut self, cc: Cc, target: Label) {
        self.s.layout.branch(&mut self.s.buf, Jump::If(cc), target);
    }

    /// Begins a short conditional jump within the op; [`Emitter::land`] ends it.
    pub(crate) fn skip_if(&mut self, cc: Cc) -> usize {
        jcc_short(&mut self.s.buf, cc, 0);
        self.s.buf.len()
    }

    /// Begins a short jump within the op.
    pub(crate) fn skip(&mut self) -> usize {
        reg!(self.s.buf; jmp BYTE 0);
        self.s.buf.len()
    }

    /// Ends a short jump that began at `from`: it leads here. No [`Jump`] may lie between.
    pub(crate) fn land(&mut self, from: usize) {
        let here = self.s.buf.len();
        if let Some(rel) = self.s.buf.get_mut(from - 1) {
            *rel = (here - from) as u8;
        }
    }

    pub(crate) fn jump_block(&mut self, target: BlockId, next: BlockId) {
        if target != next {
            let target = self.block_label(target);
            self.jump(target);
        }
    }

    #[inline(always)]
    pub(crate) fn branch(&mut self, comparison: Comparison, target: BlockId, next: BlockId) {
        if target != next {
            self.compare(comparison);
            let target = self.block_label(target);
            self.jump_if(comparison.cond.into(), target);
        }
    }

    /// Sets the flags so that the [`Cc`] of the condition tells whether it holds.
    #[inline(always)]
    fn compare(&mut self, Comparison { width, cond, a, b }: Comparison) {
        let a = self.get(a, SCRATCH);
        let test = cond == Cond::Set;
        match b {
            Val::Reg(b) => {
                let b = self.get(b, SCRATCH2);
                if test { self.test(width, a, b) } else { self.alu(Alu::Cmp, width, a, b) }
            }
            Val::Imm(imm) => {
                let imm = at_width(width, imm);
                if test {
                    self.test_imm(width, a, imm);
                } else if imm == 0 {
                    // Carry and overflow come out clear, as after a comparison with 0.
                    self.test(width, a, a);
                } else {
                    self.alu_imm(Alu::Cmp, width, a, imm);
                }
            }
        }
    }

    /// `test a, imm`, of which only the zero flag matters: a mask that is zero above is tested in as little as it needs.
    fn test_imm(&mut self, width: Width, a: Gpr, imm: i64) {
        let bits = match width {
            Width::W32 => u64::from(imm as u32),
            Width::W64 => imm as u64,
        };
        match (u8::try_from(bits), u32::try_from(bits), i32::try_from(imm)) {
            (Ok(bits), _, _) if a == Rax => reg!(self.s.buf; test al, bits as i8),
            (Ok(bits), _, _) => byte!(self.s.buf, a; test Rb(a), BYTE bits as i8),
            (_, Ok(bits), _) if a == Rax => reg!(self.s.buf; test eax, DWORD bits as i32),
            (_, Ok(bits), _) => reg!(self.s.buf; test Rd(a), DWORD bits as i32),
            (_, _, Ok(imm)) if a == Rax => reg!(self.s.buf; test rax, DWORD imm),
            (_, _, Ok(imm)) => reg!(self.s.buf; test Rq(a), DWORD imm),
            (Err(_), Err(_), Err(_)) => {
                self.load_imm(SCRATCH2, bits);
                self.test(width, a, SCRATCH2);
            }
        }
    }

    pub(crate) fn select(&mut self, comparison: Comparison, dst: VReg, yes: VReg, no: VReg) {
        self.compare(comparison);
        // From here to the cmov only moves: they leave the flags alone.
        let d = self.target(dst);
        let yes = self.get(yes, SCRATCH2);
        let cc = Cc::from(comparison.cond);
        if d == yes {
            let no = self.get(no, SCRATCH);
            cmov(&mut self.s.buf, cc.not(), d, no);
        } else {
            self.load_into(Width::W64, d, no);
            cmov(&mut self.s.buf, cc, d, yes);
        }
        self.put(dst, d);
    }

    pub(crate) fn check(&mut self, check: Check, ctx: VReg) {
        let r = self.get(ctx, SCRATCH2);
        let (cc, code) = match check {
            Check::Budget => {
                mem!(self.s.buf, r.at(RunCtx::BUDGET_OFFSET); dec QWORD [rax]);
                (Cc::S, StopCode::Budget)
            }
            Check::Interrupt => {
                let flag = r.at(RunCtx::INTERRUPT_OFFSET).into();
                asm!(self.s.buf, [shorten_imm, memory(flag, 1), drop_rex]; cmp DWORD [rax], DWORD 0);
                (Cc::Ne, StopCode::Interrupted)
            }
        };
        let label = self.s.layout.label();
        self.jump_if(cc, label);
        self.s.stubs.push(Stub { label, code, ctx, insn: self.insn });
    }

    pub(crate) fn bound(&mut self, a: VReg, limit: Val, ctx: VReg) {
        self.compare(Comparison { width: Width::W64, cond: Cond::Ge, a, b: limit });
        let label = self.s.layout.label();
        self.jump_if(Cc::from(Cond::Ge), label);
        self.s.stubs.push(Stub { label, code: StopCode::Access, ctx, insn: self.insn });
    }

    pub(crate) fn stop(&mut self, code: StopCode, ctx: VReg) {
        self.load_into(Width::W64, SCRATCH2, ctx);
        self.load_imm(Rax, self.insn.into());
        let stop = self.s.stop_label(code);
        self.jump(stop);
    }

    /// Emits the stubs of the function's checks.
    pub(crate) fn stubs(&mut self) {
        for i in 0..self.s.stubs.len() {
            let Stub { label, code, ctx, insn } = self.s.stubs[i];
            self.s.layout.bind(&self.s.buf, label);
            self.mark(insn);
            self.stop(code, ctx);
        }
        self.s.stubs.clear();
    }
}

impl X64 {
    /// The sequences that stop a run: hidden argument in [`SCRATCH2`], instruction in eax.
    pub(crate) fn stop_sequences(&mut self, options: &EmitOptions) {
        for code in [StopCode::Budget, StopCode::Interrupted, StopCode::Access, StopCode::Host] {
            let Some(label) = self.stops[code as usize - 1] else { continue };
            self.layout.bind(&self.buf, label);
            let ctx = SCRATCH2;
            mem!(self.buf, ctx.at(RunCtx::STOP_CODE_OFFSET), 4; mov DWORD [rax], DWORD code as i32);
            mem!(self.buf, ctx.at(RunCtx::STOP_INSN_OFFSET); mov [rax], eax);
            // Which program this is: after tail calls, nobody else knows.
            reg!(self.buf; lea rax, [rip + 0]);
            mem!(self.buf, ctx.at(RunCtx::STOP_PC_OFFSET); mov [rax], rax);
            mem!(self.buf, ctx.at(RunCtx::EXIT_SP_OFFSET); mov rsp, [rax]);
            mem!(self.buf, ctx.at(RunCtx::EXIT_SAVED_OFFSET); mov rbx, [rax]);
            mem!(self.buf, ctx.at(RunCtx::EXIT_SAVED_OFFSET + 8); mov rbp, [rax]);
            mem!(self.buf, ctx.at(RunCtx::EXIT_PC_OFFSET); mov Rq(SCRATCH2), [rax]);
            self.jump_indirect(options);
        }
    }

    /// Where a run stops for this reason.
    fn stop_label(&mut self, code: StopCode) -> Label {
        *self.stops[code as usize - 1].get_or_insert_with(|| self.layout.label())
    }
}
