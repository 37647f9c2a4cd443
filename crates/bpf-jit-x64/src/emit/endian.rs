//! Byte order.

use crate::Emitter;
use crate::asm::{byte, reg};
use crate::regs::{Gpr, SCRATCH};
use bpf_isa::{Size, Width};
use bpf_jit::VReg;

impl Emitter<'_> {
    pub(crate) fn bswap(&mut self, size: Size, dst: VReg, src: VReg) {
        let d = self.target(dst);
        let s = self.get(src, SCRATCH);
        match size {
            Size::B => byte!(self.s.buf, s; movzx Rd(d), Rb(s)),
            Size::H => {
                // The two bytes come out on top; shorter than rotating the low half and extending it.
                self.copy(Width::W32, d, s);
                self.bswap_reg(Width::W32, d);
                reg!(self.s.buf; shr Rd(d), 16);
            }
            Size::W => {
                self.copy(Width::W32, d, s);
                self.bswap_reg(Width::W32, d);
            }
            Size::DW => {
                self.copy(Width::W64, d, s);
                self.bswap_reg(Width::W64, d);
            }
        }
        self.put(dst, d);
    }

    pub(crate) fn bswap_reg(&mut self, width: Width, d: Gpr) {
        match width {
            Width::W32 => reg!(self.s.buf; bswap Rd(d)),
            Width::W64 => reg!(self.s.buf; bswap Rq(d)),
        }
    }
}
