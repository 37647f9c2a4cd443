//! Comparisons and jumps.

use crate::Emitter;
use crate::asm::{byte, reg};
use crate::jump::{Cc, Jump, cmov, jcc_short};
use crate::lower::alu::{Alu, at_width};
use crate::regs::Gpr::{self, *};
use crate::regs::{SCRATCH, SCRATCH2};
use bpf_isa::{Cond, Width};
use bpf_jit::{BlockId, VReg, Val};
use bpf_jit_code::layout::Label;

/// `a cond b` at a width.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Comparison {
    pub(crate) width: Width,
    pub(crate) cond: Cond,
    pub(crate) a: VReg,
    pub(crate) b: Val,
}

impl Emitter<'_> {
    pub(crate) fn jump_if(&mut self, cc: Cc, target: Label) {
        self.go(Jump::If(cc), target);
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

    pub(crate) fn jump(&mut self, target: BlockId, next: BlockId) {
        if target != next {
            self.go(Jump::Always, self.s.block(target));
        }
    }

    #[inline(always)]
    pub(crate) fn branch(&mut self, comparison: Comparison, target: BlockId, next: BlockId) {
        if target != next {
            self.compare(comparison);
            let target = self.s.block(target);
            self.jump_if(comparison.cond.into(), target);
        }
    }

    /// Sets the flags so that the [`Cc`] of the condition tells whether it holds.
    #[inline(always)]
    pub(super) fn compare(&mut self, Comparison { width, cond, a, b }: Comparison) {
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

    /// `test a, imm`, of which only the zero flag matters: a mask that is zero above is tested in as little as it
    /// needs.
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
}
