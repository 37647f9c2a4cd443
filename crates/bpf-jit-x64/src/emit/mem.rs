//! Loads and stores.
//!
//! A load of at most four bytes zero-extends by itself. Swapped loads use `movbe` where the CPU has it.

use crate::Emitter;
use crate::asm::{Memory, asm, mem, reg};
use crate::regs::{Gpr, SCRATCH, SCRATCH2};
use bpf_isa::{Size, Width};
use bpf_jit::num::{low_byte, low_half, low_word};
use bpf_jit::{Mem, Op, VReg, Val};

impl Emitter<'_> {
    #[inline(always)]
    pub(crate) fn load<const FUSES: bool>(
        &mut self,
        op: &Op,
        size: Size,
        signed: bool,
        swap: bool,
        dst: VReg,
        mem: Mem,
    ) {
        if FUSES && self.alloc.is_held(dst) {
            self.held = Some(*op);
            return;
        }
        let d = self.target(dst);
        let m = self.operand(mem, SCRATCH2);
        match (signed, swap) {
            (true, _) => self.load_signed(size, d, m),
            (false, true) => self.load_swapped(size, d, m),
            (false, false) => self.load_reg(size, d, m),
        }
        self.put(dst, d);
    }

    pub(crate) fn load_reg(&mut self, size: Size, d: Gpr, m: Memory) {
        match size {
            Size::B => mem!(self.s.buf, m; movzx Rd(d), BYTE [rax]),
            Size::H => mem!(self.s.buf, m; movzx Rd(d), WORD [rax]),
            Size::W => mem!(self.s.buf, m; mov Rd(d), [rax]),
            Size::DW => mem!(self.s.buf, m; mov Rq(d), [rax]),
        }
    }

    fn load_signed(&mut self, size: Size, d: Gpr, m: Memory) {
        match size {
            Size::B => mem!(self.s.buf, m; movsx Rq(d), BYTE [rax]),
            Size::H => mem!(self.s.buf, m; movsx Rq(d), WORD [rax]),
            Size::W => mem!(self.s.buf, m; movsxd Rq(d), DWORD [rax]),
            Size::DW => self.load_reg(size, d, m),
        }
    }

    fn load_swapped(&mut self, size: Size, d: Gpr, m: Memory) {
        let movbe = self.options.features.movbe;
        match size {
            Size::B => self.load_reg(size, d, m),
            Size::H => {
                self.load_reg(size, d, m);
                // Bits 16 and up are zero already.
                reg!(self.s.buf; rol Rw(d), 8);
            }
            Size::W if movbe => mem!(self.s.buf, m; movbe Rd(d), [rax]),
            Size::DW if movbe => mem!(self.s.buf, m; movbe Rq(d), [rax]),
            Size::W => {
                self.load_reg(size, d, m);
                self.bswap_reg(Width::W32, d);
            }
            Size::DW => {
                self.load_reg(size, d, m);
                self.bswap_reg(Width::W64, d);
            }
        }
    }

    #[inline(always)]
    pub(crate) fn store<const FUSES: bool>(&mut self, _: &Op, size: Size, mem: Mem, src: Val) {
        match src {
            Val::Reg(src) => self.store_reg(size, mem, src),
            Val::Imm(imm) => {
                let m = self.operand(mem, SCRATCH2);
                match (size, i32::try_from(imm)) {
                    (Size::B, _) => mem!(self.s.buf, m, 1; mov BYTE [rax], BYTE low_byte(imm)),
                    (Size::H, _) => mem!(self.s.buf, m, 2; mov WORD [rax], WORD low_half(imm)),
                    (Size::W, _) => mem!(self.s.buf, m, 4; mov DWORD [rax], DWORD low_word(imm)),
                    (Size::DW, Ok(imm)) => mem!(self.s.buf, m, 4; mov QWORD [rax], DWORD imm),
                    (Size::DW, Err(_)) => {
                        self.load_imm(SCRATCH, imm as u64);
                        mem!(self.s.buf, m; mov [rax], Rq(SCRATCH));
                    }
                }
            }
        }
    }

    pub(crate) fn store_reg(&mut self, size: Size, mem: Mem, src: VReg) {
        let m = self.operand(mem, SCRATCH2);
        let s = self.get(src, SCRATCH);
        match size {
            Size::B => {
                asm!(self.s.buf, [memory(m, 0), drop_rex_unless(s)]; mov [rax], Rb(s))
            }
            Size::H => mem!(self.s.buf, m; mov [rax], Rw(s)),
            Size::W => mem!(self.s.buf, m; mov [rax], Rd(s)),
            Size::DW => mem!(self.s.buf, m; mov [rax], Rq(s)),
        }
    }
}
