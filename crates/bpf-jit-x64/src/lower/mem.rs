//! Loads and stores.
//!
//! A load of at most four bytes zero-extends by itself. Swapped loads use `movbe` where the CPU has it.

use crate::Emitter;
use crate::asm::{asm, mem, reg};
use crate::frame::Addr;
use crate::regs::{Gpr, SCRATCH, SCRATCH2};
use bpf_isa::{Size, Width};
use bpf_jit::{Mem, VReg, Val};

impl Emitter<'_> {
    pub(crate) fn load(&mut self, size: Size, signed: bool, swap: bool, dst: VReg, mem: Mem) {
        let d = self.target(dst);
        let m = self.addr(mem, SCRATCH2);
        match (signed, swap) {
            (true, _) => self.load_signed(size, d, m),
            (false, true) => self.load_swapped(size, d, m),
            (false, false) => self.load_reg(size, d, m),
        }
        self.put(dst, d);
    }

    pub(crate) fn load_reg(&mut self, size: Size, d: Gpr, m: Addr) {
        match size {
            Size::B => mem!(self.s.buf; movzx Rd(d), BYTE [Rq(m.base) + m.disp]),
            Size::H => mem!(self.s.buf; movzx Rd(d), WORD [Rq(m.base) + m.disp]),
            Size::W => mem!(self.s.buf; mov Rd(d), [Rq(m.base) + m.disp]),
            Size::DW => mem!(self.s.buf; mov Rq(d), [Rq(m.base) + m.disp]),
        }
    }

    fn load_signed(&mut self, size: Size, d: Gpr, m: Addr) {
        match size {
            Size::B => mem!(self.s.buf; movsx Rq(d), BYTE [Rq(m.base) + m.disp]),
            Size::H => mem!(self.s.buf; movsx Rq(d), WORD [Rq(m.base) + m.disp]),
            Size::W => mem!(self.s.buf; movsxd Rq(d), DWORD [Rq(m.base) + m.disp]),
            Size::DW => self.load_reg(size, d, m),
        }
    }

    fn load_swapped(&mut self, size: Size, d: Gpr, m: Addr) {
        let movbe = self.options.features.movbe;
        match size {
            Size::B => self.load_reg(size, d, m),
            Size::H => {
                self.load_reg(size, d, m);
                // Bits 16 and up are zero already.
                reg!(self.s.buf; rol Rw(d), 8);
            }
            Size::W if movbe => mem!(self.s.buf; movbe Rd(d), [Rq(m.base) + m.disp]),
            Size::DW if movbe => mem!(self.s.buf; movbe Rq(d), [Rq(m.base) + m.disp]),
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

    pub(crate) fn store(&mut self, size: Size, mem: Mem, src: Val) {
        match src {
            Val::Reg(src) => self.store_reg(size, mem, src),
            Val::Imm(imm) => {
                let m = self.addr(mem, SCRATCH2);
                match (size, i32::try_from(imm)) {
                    (Size::B, _) => mem!(self.s.buf; mov BYTE [Rq(m.base) + m.disp], BYTE imm as i8),
                    (Size::H, _) => mem!(self.s.buf; mov WORD [Rq(m.base) + m.disp], WORD imm as i16),
                    (Size::W, _) => mem!(self.s.buf; mov DWORD [Rq(m.base) + m.disp], DWORD imm as i32),
                    (Size::DW, Ok(imm)) => mem!(self.s.buf; mov QWORD [Rq(m.base) + m.disp], DWORD imm),
                    (Size::DW, Err(_)) => {
                        self.load_imm(SCRATCH, imm as u64);
                        mem!(self.s.buf; mov [Rq(m.base) + m.disp], Rq(SCRATCH));
                    }
                }
            }
        }
    }

    pub(crate) fn store_reg(&mut self, size: Size, mem: Mem, src: VReg) {
        let m = self.addr(mem, SCRATCH2);
        let s = self.get(src, SCRATCH);
        match size {
            Size::B => {
                asm!(self.s.buf, [shorten_address, drop_rex_unless(s)]; mov [Rq(m.base) + m.disp], Rb(s))
            }
            Size::H => mem!(self.s.buf; mov [Rq(m.base) + m.disp], Rw(s)),
            Size::W => mem!(self.s.buf; mov [Rq(m.base) + m.disp], Rd(s)),
            Size::DW => mem!(self.s.buf; mov [Rq(m.base) + m.disp], Rq(s)),
        }
    }
}
