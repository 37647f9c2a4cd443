//! The machine stack frame of one function.
//!
//! ```text
//! sp + total      r10: one past the BPF stack
//!                 BPF stack
//!                 slots of the allocator
//! sp              saved registers, in pairs
//! ```
//!
//! Everything is addressed upward from sp, where loads and stores have twelve scaled offset bits. With the saved
//! registers at the bottom, one `stp` saves the first pair and makes the whole frame, and one `ldp` undoes both, as
//! long as the frame has at most 504 bytes.
//!
//! A function saves what it uses: the callee-saved registers the allocator handed out, and the return address if it
//! calls. A function that needs neither these nor memory has no frame, no prologue, and an epilogue of one `ret`.
//!
//! A frame larger than a page could step over the page that guards the end of a thread's stack, so its prologue reads
//! from it page by page, from the top down: an overflow then faults in the guard instead of writing to whatever lies
//! behind it. Smaller ones of functions that call touch their lowest bytes anyway: the first pair of saves is there.
//!
//! Invariant: `total` is a multiple of 16 (AAPCS64 6.4.5.1: sp is, at every access through it).

use crate::Emitter;
use crate::asm::asm;
use crate::emit::alu::{add_imm, mov_imm};
use crate::emit::mem::{Address, Extend, Index, load, store};
use crate::jump::Jump;
use crate::regs::{ARGS, CALLEE_SAVED, CTX, Gpr, RET, TMP0, TMP1, TMP2};
use crate::tail_call::no_straight_line;
use bpf_isa::{Size, Width};
use bpf_jit::num::{few, small};
use bpf_jit::{Alloc, Base, EmitError, EmitOptions, Loc, Mem, Move, MoveSrc, Shape, VReg, parallel_moves};
use bpf_jit_code::{FrameShape, UnwindOp};

/// The callee-saved registers and the return address.
const MAX_SAVES: usize = CALLEE_SAVED.len() + 1;

/// Largest frame that a post-indexed `ldp` can remove (seven signed bits, scaled by eight).
const MAX_INDEXED: u32 = 504;

/// The least size of a guard page, and so the distance of probes: pages are no smaller on any host.
const PROBE_STEP: u32 = 4096;

/// Shape of a function's frame.
#[derive(Clone, Copy, Debug)]
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
    /// Most bytes that [`Frame::probe`] emits: an address, a loop, and the rest.
    pub(crate) const MAX_PROBES: usize = 4 * (5 + 1 + 4 + 2);

    /// Most bytes that [`Emitter::enter`] (without probes) or [`Emitter::leave`] emits: a landing pad or signature, a
    /// frame of arbitrary size, and the pairs.
    pub(crate) const MAX_CODE: usize = 4 + 12 + 4 * MAX_SAVES.div_ceil(2);

    /// The frame of a function.
    pub(crate) fn new(shape: &Shape, alloc: &Alloc, options: &EmitOptions) -> Result<Frame, EmitError> {
        let mut saves = [Gpr::ZR; MAX_SAVES + 1];
        let wanted = if options.save_all { &CALLEE_SAVED[..] } else { &alloc.saves };
        let lr = (shape.calls || options.save_all).then_some(Gpr::LR);
        let mut count = 0;
        for reg in wanted.iter().map(|r| Gpr::from(*r)).chain(lr) {
            if count == MAX_SAVES {
                return Err(EmitError::Internal("more saves than callee-saved registers"));
            }
            saves[count] = reg;
            count += 1;
        }
        // The zero register's half of an odd pair may overlap slot 0: it is stored before anything else, and loaded to
        // nowhere.
        let slots = 8 * small(count);
        let total = (u64::from(slots) + 8 * u64::from(alloc.slots) + u64::from(shape.stack_bytes)).next_multiple_of(16);
        let total = i32::try_from(total).map_err(|_| EmitError::Internal("a frame of more than 2 GiB"))? as u32;
        let signs = options.hardening.return_signing && lr.is_some();
        let indirect = shape.id.0 == 0 || shape.address_taken;
        let landing_pad = options.hardening.landing_pads && indirect;
        Ok(Frame { saves, pairs: count.div_ceil(2), slots, total, signs, landing_pad })
    }

    /// Reads from every page below sp that the frame will take, the highest first. sp moves afterwards, so that the
    /// CFA's distance from it needs no description in here.
    fn probe(&self, code: &mut Vec<u8>) {
        let whole = self.total - self.total % PROBE_STEP;
        if whole == 0 {
            return;
        }
        // No value is in a scratch register at entry.
        let (at, end) = (Gpr::X14, Gpr::X15);
        add_imm(code, Width::W64, end, Gpr::SP, -i64::from(whole));
        add_imm(code, Width::W64, at, Gpr::SP, 0);
        add_imm(code, Width::W64, at, at, -i64::from(PROBE_STEP));
        asm!(code; ldr xzr, [X(at)]);
        asm!(code; cmp X(at), X(end));
        // Back to the subtraction.
        asm!(code; b.ne -12);
        if whole != self.total {
            add_imm(code, Width::W64, at, at, -i64::from(self.total - whole));
            asm!(code; ldr xzr, [X(at)]);
        }
    }

    /// Size in bytes.
    pub(crate) fn total(&self) -> u32 {
        self.total
    }

    pub(crate) fn shape(&self) -> FrameShape {
        let stored = self.saves.iter().take(2 * self.pairs).position(|r| *r == Gpr::LR);
        FrameShape::new(self.total, stored.map(|at| 8 * small(at)))
    }

    /// Offset of a slot from sp.
    pub(crate) fn slot(&self, index: u32) -> u32 {
        self.slots + 8 * index
    }

    /// Whether [`Emitter::leave`] emits nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.total == 0 && !self.signs
    }

    /// Whether the first pair is saved and restored together with sp.
    fn indexed(&self) -> bool {
        self.pairs > 0 && self.total <= MAX_INDEXED
    }

    fn pair(&self, i: usize) -> (Gpr, Gpr) {
        (self.saves[2 * i], self.saves[2 * i + 1])
    }

    /// Bytes from the CFA down to the first register of a pair; the second is eight bytes nearer.
    fn depth(&self, i: usize) -> u32 {
        self.total - 16 * small(i)
    }
}

impl Emitter<'_> {
    /// Emits what comes before the parameters are moved.
    pub(crate) fn prologue(&mut self) {
        let frame = self.frame;
        if frame.signs {
            // Also a landing pad, for `blr` and for `br` through x16 or x17.
            asm!(&mut self.s.buf; paciasp);
            self.unwind_note(UnwindOp::SignToggled);
        } else if frame.landing_pad {
            asm!(&mut self.s.buf; hint 34); // bti c
        }
        let indexed = frame.indexed();
        if indexed {
            let (a, b) = frame.pair(0);
            asm!(&mut self.s.buf; stp X(a), X(b), [sp, -(frame.total as i32)]!);
        } else if frame.total > 0 {
            frame.probe(&mut self.s.buf);
            add_imm(&mut self.s.buf, Width::W64, Gpr::SP, Gpr::SP, -i64::from(frame.total));
        }
        if frame.total > 0 {
            self.unwind_note(UnwindOp::Cfa { base: Gpr::SP.into(), offset: frame.total });
        }
        for i in 0..frame.pairs {
            let (a, b) = frame.pair(i);
            if i > 0 || !indexed {
                asm!(&mut self.s.buf; stp X(a), X(b), [sp, 16 * i32::from(few(i))]);
            }
            self.unwind_note(UnwindOp::Saved { reg: a.into(), offset: frame.depth(i) });
            if b != Gpr::ZR {
                self.unwind_note(UnwindOp::Saved { reg: b.into(), offset: frame.depth(i) - 8 });
            }
        }
    }

    /// Emits what restores sp, the saved registers and the return address. Code emitted behind it that runs
    /// inside the frame begins with [`UnwindOp::Recall`].
    pub(crate) fn unwind(&mut self) {
        let frame = self.frame;
        self.unwind_note(UnwindOp::Remember);
        let indexed = frame.indexed();
        for i in (0..frame.pairs).rev() {
            let (a, b) = frame.pair(i);
            if i == 0 && indexed {
                asm!(&mut self.s.buf; ldp X(a), X(b), [sp], frame.total as i32);
            } else {
                asm!(&mut self.s.buf; ldp X(a), X(b), [sp, 16 * i32::from(few(i))]);
            }
            self.unwind_note(UnwindOp::Restored { reg: a.into() });
            if b != Gpr::ZR {
                self.unwind_note(UnwindOp::Restored { reg: b.into() });
            }
        }
        if frame.total > 0 {
            if !indexed {
                add_imm(&mut self.s.buf, Width::W64, Gpr::SP, Gpr::SP, i64::from(frame.total));
            }
            self.unwind_note(UnwindOp::Cfa { base: Gpr::SP.into(), offset: 0 });
        }
        if frame.signs {
            asm!(&mut self.s.buf; autiasp);
            self.unwind_note(UnwindOp::SignToggled);
        }
    }

    /// Moves the parameters to where they live: first those whose home is a slot, since that overwrites no register.
    pub(crate) fn parameters(&mut self, shape: &Shape) {
        let params = shape.params.into_iter().zip(ARGS).chain([(shape.ctx, CTX)]);
        for (v, reg) in params {
            let Some(v) = v else { continue };
            match self.loc(v) {
                Loc::Slot(_) => self.put(v, reg),
                Loc::Reg(home) => self.s.moves.push(Move { dst: home, src: MoveSrc::Loc(Loc::Reg(reg.into())) }),
            }
        }
        self.queued_moves();
    }

    pub(crate) fn loc(&self, v: VReg) -> Loc {
        self.alloc.loc(v)
    }

    /// Queues the move of a value to a register.
    pub(crate) fn queue_move(&mut self, dst: Gpr, src: VReg) {
        let src = MoveSrc::Loc(self.loc(src));
        self.s.moves.push(Move { dst: dst.into(), src });
    }

    /// Emits the queued moves as one parallel move. Overwrites `TMP0`.
    pub(crate) fn queued_moves(&mut self) {
        let mut moves = core::mem::take(&mut self.s.moves);
        parallel_moves(&mut moves, TMP0.into(), |Move { dst, src }| {
            let d = Gpr::from(dst);
            match src {
                MoveSrc::Loc(Loc::Reg(s)) => asm!(&mut self.s.buf; mov X(d), X(Gpr::from(s))),
                MoveSrc::Loc(Loc::Slot(index)) => {
                    let at = Address { base: Gpr::SP, off: self.frame.slot(index).into() };
                    load(&mut self.s.buf, Size::DW, false, d, at);
                }
                MoveSrc::Imm(imm) => mov_imm(&mut self.s.buf, d, imm as u64),
            }
        });
        self.s.moves = moves;
    }

    pub(crate) fn exit(&mut self, value: VReg) {
        let v = self.get(value, RET);
        if v != RET {
            asm!(&mut self.s.buf; mov X(RET), X(v));
        }
        if self.frame.is_empty() {
            asm!(&mut self.s.buf; ret);
            no_straight_line(self.s, self.options);
        } else if let Some(shared) = self.epilogue {
            self.go(Jump::Always, shared);
        } else {
            let label = self.s.here();
            self.unwind();
            asm!(&mut self.s.buf; ret);
            no_straight_line(self.s, self.options);
            self.unwind_note(UnwindOp::Recall);
            self.epilogue = Some(label);
        }
    }

    /// Offset from sp of the byte at r10 + `off`.
    pub(crate) fn frame_offset(&self, off: i32) -> i64 {
        i64::from(self.frame.total()) + i64::from(off)
    }

    fn slot(&self, index: u32) -> Address {
        Address { base: Gpr::SP, off: self.frame.slot(index).into() }
    }

    /// The register that holds `v`: its own, or `tmp`, loaded from the slot.
    pub(crate) fn get(&mut self, v: VReg, tmp: Gpr) -> Gpr {
        match self.loc(v) {
            Loc::Reg(reg) => reg.into(),
            Loc::Slot(index) => {
                let at = self.slot(index);
                load(&mut self.s.buf, Size::DW, false, tmp, at);
                tmp
            }
        }
    }

    /// Where to compute `v`; [`Emitter::put`] comes after.
    pub(crate) fn target(&self, v: VReg) -> Gpr {
        match self.loc(v) {
            Loc::Reg(reg) => reg.into(),
            Loc::Slot(_) => TMP0,
        }
    }

    /// Stores `v` from `reg`, which is not `AUX`, if it lives in a slot.
    pub(crate) fn put(&mut self, v: VReg, reg: Gpr) {
        if let Loc::Slot(index) = self.loc(v) {
            let at = self.slot(index);
            store(&mut self.s.buf, Size::DW, reg, at);
        }
    }

    /// `dst = reg`, wherever `dst` lives.
    pub(crate) fn set(&mut self, dst: VReg, reg: Gpr) {
        match self.loc(dst) {
            Loc::Reg(d) if Gpr::from(d) == reg => {}
            Loc::Reg(d) => asm!(&mut self.s.buf; mov X(Gpr::from(d)), X(reg)),
            Loc::Slot(_) => self.put(dst, reg),
        }
    }

    /// The address of an operand, its base in a register (`TMP1` if it comes from a slot); `extended` is the value from
    /// which the index is extended, if it is.
    pub(crate) fn address(&mut self, mem: Mem, extended: Option<(VReg, bool)>) -> Address {
        match mem.base {
            Base::Reg(v) => Address { base: self.get(v, TMP1), off: mem.off.into() },
            Base::Frame => Address { base: Gpr::SP, off: self.frame_offset(mem.off) },
            Base::Indexed { base, index, shift } => {
                let (base, Index { reg, extend, .. }) = (self.get(base, TMP1), self.index(index, extended, false));
                let shift = u32::from(shift & 3);
                match extend {
                    Extend::Whole => asm!(&mut self.s.buf; add X(TMP1), X(base), X(reg), lsl shift),
                    Extend::Zero => asm!(&mut self.s.buf; add XSP(TMP1), XSP(base), W(reg), uxtw shift),
                    Extend::Sign => asm!(&mut self.s.buf; add XSP(TMP1), XSP(base), W(reg), sxtw shift),
                }
                Address { base: TMP1, off: mem.off.into() }
            }
        }
    }

    /// The index in a register (`TMP2` if it comes from a slot).
    fn index(&mut self, index: VReg, extended: Option<(VReg, bool)>, scaled: bool) -> Index {
        let (of, extend) = match extended {
            None => (index, Extend::Whole),
            Some((of, false)) => (of, Extend::Zero),
            Some((of, true)) => (of, Extend::Sign),
        };
        Index { reg: self.get(of, TMP2), extend, scaled }
    }

    /// Base and index of an operand whose address this machine's loads and stores of so many bytes take as it is: an
    /// index times one or the access's own size, and no offset beside it.
    pub(crate) fn indexed(&mut self, size: Size, mem: Mem, extended: Option<(VReg, bool)>) -> Option<(Gpr, Index)> {
        match mem.base {
            Base::Indexed { base, index, shift } if mem.off == 0 && (shift == 0 || 1 << shift == size.bytes()) => {
                Some((self.get(base, TMP1), self.index(index, extended, shift > 0)))
            }
            Base::Indexed { .. } | Base::Reg(_) | Base::Frame => None,
        }
    }
}
