//! The machine stack frame of one function.
//!
//! ```text
//! sp + total      r10: one past the BPF stack
//!                 BPF stack
//!                 slots of the allocator
//! sp              saved registers, in pairs
//! ```
//!
//! Everything is addressed upward from sp, where loads and stores have twelve scaled offset bits. With the saved registers at the bottom,
//! one `stp` saves the first pair and makes the whole frame, and one `ldp` undoes both, as long as the frame has at most 504 bytes.
//!
//! A function saves what it uses: the callee-saved registers the allocator handed out, and the return address if it calls. One that needs
//! neither these nor memory has no frame, no prologue, and an epilogue of one `ret`.
//!
//! Invariant: `total` is a multiple of 16 (AAPCS64 6.4.5.1: sp is, at every access through it).

use crate::asm::asm;
use crate::lower::alu::add_imm;
use crate::regs::{CALLEE_SAVED, Gpr};
use bpf_isa::Width;
use bpf_jit::{Alloc, EmitError, EmitOptions, Func};

/// The callee-saved registers and the return address.
const MAX_SAVES: usize = CALLEE_SAVED.len() + 1;

/// Largest frame that a post-indexed `ldp` can remove (seven signed bits, scaled by eight).
const MAX_INDEXED: u32 = 504;

/// Shape of a function's frame.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Saved registers; an odd last one is paired with the zero register.
    saves: [Gpr; MAX_SAVES + 1],
    pairs: usize,
    /// Offset of slot 0 from sp.
    slots: u32,
    /// Size.
    total: u32,
    /// Whether the return address is signed.
    signs: bool,
    /// Whether the function starts with a landing pad.
    landing_pad: bool,
}

impl Frame {
    /// Most bytes that [`Frame::enter`] or [`Frame::leave`] emits: a landing pad or signature, a frame of arbitrary size, and the pairs.
    pub(crate) const MAX_CODE: usize = 4 + 12 + 4 * MAX_SAVES.div_ceil(2);

    /// The frame of `func`. `indirect`: it is entered by indirect branches.
    pub(crate) fn new(
        func: &Func,
        alloc: &Alloc,
        options: &EmitOptions,
        calls: bool,
        indirect: bool,
    ) -> Result<Frame, EmitError> {
        let mut saves = [Gpr::ZR; MAX_SAVES + 1];
        let wanted = if options.save_all { &CALLEE_SAVED[..] } else { &alloc.saves };
        let lr = (calls || options.save_all).then_some(Gpr::LR);
        let mut count = 0;
        for reg in wanted.iter().map(|r| Gpr::from(*r)).chain(lr) {
            if count == MAX_SAVES {
                return Err(EmitError::Internal("more saves than callee-saved registers"));
            }
            saves[count] = reg;
            count += 1;
        }
        // The zero register's half of an odd pair may overlap slot 0: it is stored before anything else, and loaded to nowhere.
        let slots = 8 * count as u32;
        let total = (u64::from(slots) + 8 * u64::from(alloc.slots) + u64::from(func.stack_bytes)).next_multiple_of(16);
        let total = i32::try_from(total).map_err(|_| EmitError::Internal("a frame of more than 2 GiB"))? as u32;
        let signs = options.hardening.return_signing && lr.is_some();
        let landing_pad = options.hardening.landing_pads && indirect;
        Ok(Frame { saves, pairs: count.div_ceil(2), slots, total, signs, landing_pad })
    }

    /// Size in bytes.
    pub(crate) fn total(&self) -> u32 {
        self.total
    }

    /// Offset of a slot from sp.
    pub(crate) fn slot(&self, index: u32) -> u32 {
        self.slots + 8 * index
    }

    /// Whether [`Frame::leave`] emits nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.total == 0 && !self.signs
    }

    fn pair(&self, i: usize) -> (Gpr, Gpr) {
        (self.saves[2 * i], self.saves[2 * i + 1])
    }

    /// Appends what comes before the parameters are moved.
    pub(crate) fn enter(&self, code: &mut Vec<u8>) {
        if self.signs {
            // Also a landing pad, for `blr` and for `br` through x16 or x17.
            asm!(code; paciasp);
        } else if self.landing_pad {
            asm!(code; hint 34); // bti c
        }
        let indexed = self.pairs > 0 && self.total <= MAX_INDEXED;
        if indexed {
            let (a, b) = self.pair(0);
            asm!(code; stp X(a), X(b), [sp, -(self.total as i32)]!);
        } else if self.total > 0 {
            add_imm(code, Width::W64, Gpr::SP, Gpr::SP, -i64::from(self.total));
        }
        for i in usize::from(indexed)..self.pairs {
            let (a, b) = self.pair(i);
            asm!(code; stp X(a), X(b), [sp, 16 * i as i32]);
        }
    }

    /// Appends what restores sp, the saved registers and the return address.
    pub(crate) fn leave(&self, code: &mut Vec<u8>) {
        let indexed = self.pairs > 0 && self.total <= MAX_INDEXED;
        for i in (usize::from(indexed)..self.pairs).rev() {
            let (a, b) = self.pair(i);
            asm!(code; ldp X(a), X(b), [sp, 16 * i as i32]);
        }
        if indexed {
            let (a, b) = self.pair(0);
            asm!(code; ldp X(a), X(b), [sp], self.total as i32);
        } else if self.total > 0 {
            add_imm(code, Width::W64, Gpr::SP, Gpr::SP, i64::from(self.total));
        }
        if self.signs {
            asm!(code; autiasp);
        }
    }
}
