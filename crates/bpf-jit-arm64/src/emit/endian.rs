//! Byte swaps.

use crate::Emitter;
use crate::asm::asm;
use crate::regs::{Gpr, TMP0};
use bpf_isa::Size;
use bpf_jit::VReg;

impl Emitter<'_> {
    /// `dst` = the low `size` bytes of `src` reversed, zero-extended.
    pub(crate) fn bswap(&mut self, size: Size, dst: VReg, src: VReg) {
        let (s, d) = (self.get(src, TMP0), self.target(dst));
        self.swap_bytes(size, d, s);
        if size == Size::H {
            asm!(&mut self.s.buf; uxth W(d), W(d));
        }
        self.put(dst, d);
    }

    /// Reverses the low `size` bytes. A reversed half-word leaves the bytes above it reversed, too: after a load these
    /// are zero.
    pub(crate) fn swap_bytes(&mut self, size: Size, d: Gpr, s: Gpr) {
        match size {
            // A byte is its own reverse.
            Size::B => asm!(&mut self.s.buf; uxtb W(d), W(s)),
            Size::H => asm!(&mut self.s.buf; rev16 W(d), W(s)),
            Size::W => asm!(&mut self.s.buf; rev W(d), W(s)),
            Size::DW => asm!(&mut self.s.buf; rev X(d), X(s)),
        }
    }
}
