//! Atomics.
//!
//! With LSE each is one instruction: the `st` form, relaxed, where the old value is not fetched; the `al` form where it
//! is. There is no atomic `and`, only "clear these bits".
//!
//! Without LSE, a loop of load-exclusive and store-exclusive. A fetching one is a full barrier, as the kernel's are:
//! the releasing store keeps what comes before it before it, and the `dmb` after the loop keeps what comes after it
//! after it. An acquiring load would not do: a later access could still pass the store. Between the exclusives there is
//! no access to memory, lest it takes the reservation away for ever; an operand that lives in a slot is loaded anew at
//! the head of the loop, and its register then serves for the status.

use crate::Emitter;
use crate::asm::{asm, asm_w};
use crate::regs::{AUX, Gpr, TMP0, TMP2};
use bpf_isa::{Size, Width};
use bpf_jit::num::few;
use bpf_jit::{AtomicOp, Loc, Mem, VReg};

impl Emitter<'_> {
    pub(crate) fn load_acquire(&mut self, size: Size, dst: VReg, mem: Mem) {
        let (at, d) = (self.exact_address(mem), self.target(dst));
        match size {
            Size::B => asm!(&mut self.s.buf; ldarb W(d), [XSP(at)]),
            Size::H => asm!(&mut self.s.buf; ldarh W(d), [XSP(at)]),
            Size::W => asm!(&mut self.s.buf; ldar W(d), [XSP(at)]),
            Size::DW => asm!(&mut self.s.buf; ldar X(d), [XSP(at)]),
        }
        self.put(dst, d);
    }

    pub(crate) fn store_release(&mut self, size: Size, mem: Mem, src: VReg) {
        let (at, s) = (self.exact_address(mem), self.get(src, TMP0));
        match size {
            Size::B => asm!(&mut self.s.buf; stlrb W(s), [XSP(at)]),
            Size::H => asm!(&mut self.s.buf; stlrh W(s), [XSP(at)]),
            Size::W => asm!(&mut self.s.buf; stlr W(s), [XSP(at)]),
            Size::DW => asm!(&mut self.s.buf; stlr X(s), [XSP(at)]),
        }
    }

    pub(crate) fn atomic(&mut self, op: AtomicOp, width: Width, mem: Mem, src: VReg, fetch: Option<VReg>) {
        let at = self.exact_address(mem);
        match fetch {
            _ if !self.options.features.lse => self.atomic_loop(op, width, at, src, fetch),
            Some(dst) => self.atomic_fetch(op, width, at, src, dst),
            None => self.atomic_store(op, width, at, src),
        }
    }

    /// The register of a result that is written while the registers in `busy` are still needed.
    fn early_dst(&self, dst: VReg, busy: &[Gpr]) -> Gpr {
        match self.loc(dst) {
            Loc::Reg(reg) if !busy.contains(&reg.into()) => reg.into(),
            Loc::Reg(_) | Loc::Slot(_) => TMP2,
        }
    }

    fn atomic_store(&mut self, op: AtomicOp, width: Width, at: Gpr, src: VReg) {
        let s = self.get(src, TMP0);
        match op {
            AtomicOp::Add => asm_w!(&mut self.s.buf, width; stadd R(s), [XSP(at)]),
            AtomicOp::Or => asm_w!(&mut self.s.buf, width; stset R(s), [XSP(at)]),
            AtomicOp::And => asm_w!(&mut self.s.buf, width; mvn R(TMP2), R(s); stclr R(TMP2), [XSP(at)]),
            AtomicOp::Xor => asm_w!(&mut self.s.buf, width; steor R(s), [XSP(at)]),
            // Ordered whether or not its result is wanted, so not to the zero register: that would give up the acquire
            // half.
            AtomicOp::Xchg => asm_w!(&mut self.s.buf, width; swpal R(s), R(TMP2), [XSP(at)]),
        }
    }

    fn atomic_fetch(&mut self, op: AtomicOp, width: Width, at: Gpr, src: VReg, dst: VReg) {
        let (s, d) = (self.get(src, TMP0), self.target(dst));
        match op {
            AtomicOp::Add => asm_w!(&mut self.s.buf, width; ldaddal R(s), R(d), [XSP(at)]),
            AtomicOp::Or => asm_w!(&mut self.s.buf, width; ldsetal R(s), R(d), [XSP(at)]),
            AtomicOp::And => asm_w!(&mut self.s.buf, width; mvn R(TMP2), R(s); ldclral R(TMP2), R(d), [XSP(at)]),
            AtomicOp::Xor => asm_w!(&mut self.s.buf, width; ldeoral R(s), R(d), [XSP(at)]),
            AtomicOp::Xchg => asm_w!(&mut self.s.buf, width; swpal R(s), R(d), [XSP(at)]),
        }
        self.put(dst, d);
    }

    fn atomic_loop(&mut self, op: AtomicOp, width: Width, at: Gpr, src: VReg, fetch: Option<VReg>) {
        let exchange = op == AtomicOp::Xchg;
        let head = self.s.buf.len();
        let s = self.get(src, TMP0);
        let old = fetch.map_or(TMP2, |dst| self.early_dst(dst, &[s, at]));
        let (new, status) = if exchange { (s, AUX) } else { (AUX, TMP0) };
        asm_w!(&mut self.s.buf, width; ldxr R(old), [XSP(at)]);
        match op {
            AtomicOp::Add => asm_w!(&mut self.s.buf, width; add R(new), R(old), R(s)),
            AtomicOp::Or => asm_w!(&mut self.s.buf, width; orr R(new), R(old), R(s)),
            AtomicOp::And => asm_w!(&mut self.s.buf, width; and R(new), R(old), R(s)),
            AtomicOp::Xor => asm_w!(&mut self.s.buf, width; eor R(new), R(old), R(s)),
            AtomicOp::Xchg => {}
        }
        // An exchange is ordered whether or not its result is wanted.
        if fetch.is_some() || exchange {
            asm_w!(&mut self.s.buf, width; stlxr W(status), R(new), [XSP(at)]);
            self.retry(status, head);
            asm!(&mut self.s.buf; dmb ish);
        } else {
            asm_w!(&mut self.s.buf, width; stxr W(status), R(new), [XSP(at)]);
            self.retry(status, head);
        }
        if let Some(dst) = fetch {
            self.set(dst, old);
        }
    }

    /// Goes back to `head` unless the store-exclusive stored. The loop is a few instructions of fixed size.
    fn retry(&mut self, status: Gpr, head: usize) {
        let distance = -i32::from(few(self.s.buf.len() - head));
        asm!(&mut self.s.buf; cbnz W(status), distance);
    }

    pub(crate) fn cmp_xchg(&mut self, width: Width, mem: Mem, expected: VReg, new: VReg, dst: VReg) {
        let at = self.exact_address(mem);
        let new = self.get(new, TMP0);
        if self.options.features.lse {
            // The old value replaces the expected one. Both halves are written in both outcomes.
            let old = self.early_dst(dst, &[new, at]);
            let e = self.get(expected, old);
            if e != old {
                asm!(&mut self.s.buf; mov X(old), X(e));
            }
            asm_w!(&mut self.s.buf, width; casal R(old), R(new), [XSP(at)]);
            return self.set(dst, old);
        }
        let head = self.s.buf.len();
        let e = self.get(expected, AUX);
        let status = AUX;
        let old = self.early_dst(dst, &[new, at, e]);
        asm_w!(&mut self.s.buf, width;
            ldxr R(old), [XSP(at)];
            cmp R(old), R(e);
            b.ne 12;
            stlxr W(status), R(new), [XSP(at)]);
        self.retry(status, head);
        asm!(&mut self.s.buf; dmb ish);
        self.set(dst, old);
    }
}
