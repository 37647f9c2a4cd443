//! Atomic read-modify-write.
//!
//! `xadd` and `xchg` fetch by themselves; and, or and xor with fetch are a loop of `cmpxchg` through rax, with the new
//! value made in r10. A 32-bit `cmpxchg` that succeeds does not write eax, so the old value is zero-extended by a move
//! of its own.

use crate::Emitter;
use crate::asm::Addr;
use crate::asm::{mem, reg};
use crate::jump::{Cc, jcc_short};
use crate::regs::Gpr::{self, *};
use crate::regs::{SCRATCH, SCRATCH2};
use bpf_isa::{Size, Width};
use bpf_jit::num::few;
use bpf_jit::{AtomicOp, Loc, Mem, VReg};

/// The logical operations of the cmpxchg loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Logic {
    Or,
    And,
    Xor,
}

impl Emitter<'_> {
    /// Every x86-64 load acquires (Intel SDM vol. 3A, 9.2.2).
    #[inline(always)]
    pub(crate) fn load_acquire(&mut self, size: Size, dst: VReg, mem: Mem) {
        let load = bpf_jit::Op::Load { size, signed: false, swap: false, dst, mem };
        self.load::<false>(&load, size, false, false, dst, mem);
    }

    /// And every store releases.
    #[inline(always)]
    pub(crate) fn store_release(&mut self, size: Size, mem: Mem, src: VReg) {
        self.store_reg(size, mem, src);
    }

    pub(crate) fn atomic(&mut self, op: AtomicOp, width: Width, mem: Mem, src: VReg, fetch: Option<VReg>) {
        match (op, fetch) {
            (AtomicOp::Add, Some(dst)) => self.exchange(true, width, mem, src, Some(dst)),
            (AtomicOp::Xchg, dst) => self.exchange(false, width, mem, src, dst),
            (AtomicOp::Or, Some(dst)) => self.fetch_logic(Logic::Or, width, mem, src, dst),
            (AtomicOp::And, Some(dst)) => self.fetch_logic(Logic::And, width, mem, src, dst),
            (AtomicOp::Xor, Some(dst)) => self.fetch_logic(Logic::Xor, width, mem, src, dst),
            (AtomicOp::Add | AtomicOp::Or | AtomicOp::And | AtomicOp::Xor, None) => {
                let m = self.address(mem, SCRATCH2);
                let s = self.get(src, SCRATCH);
                match (op, width) {
                    (AtomicOp::Or, Width::W32) => mem!(self.s.buf, m; lock or [rax], Rd(s)),
                    (AtomicOp::Or, Width::W64) => mem!(self.s.buf, m; lock or [rax], Rq(s)),
                    (AtomicOp::And, Width::W32) => mem!(self.s.buf, m; lock and [rax], Rd(s)),
                    (AtomicOp::And, Width::W64) => mem!(self.s.buf, m; lock and [rax], Rq(s)),
                    (AtomicOp::Xor, Width::W32) => mem!(self.s.buf, m; lock xor [rax], Rd(s)),
                    (AtomicOp::Xor, Width::W64) => mem!(self.s.buf, m; lock xor [rax], Rq(s)),
                    (AtomicOp::Add | AtomicOp::Xchg, Width::W32) => {
                        mem!(self.s.buf, m; lock add [rax], Rd(s))
                    }
                    (AtomicOp::Add | AtomicOp::Xchg, Width::W64) => {
                        mem!(self.s.buf, m; lock add [rax], Rq(s))
                    }
                }
            }
        }
    }

    /// `xadd` or `xchg`: one register is operand and result.
    fn exchange(&mut self, add: bool, width: Width, mem: Mem, src: VReg, dst: Option<VReg>) {
        let m = self.address(mem, SCRATCH2);
        let d = dst.map_or(SCRATCH, |dst| self.target(dst));
        // The operand must not take the address's place.
        let r = if d == m.base { SCRATCH } else { d };
        self.load_into(width, r, src);
        match (add, width) {
            (true, Width::W32) => mem!(self.s.buf, m; lock xadd [rax], Rd(r)),
            (true, Width::W64) => mem!(self.s.buf, m; lock xadd [rax], Rq(r)),
            (false, Width::W32) => mem!(self.s.buf, m; xchg [rax], Rd(r)),
            (false, Width::W64) => mem!(self.s.buf, m; xchg [rax], Rq(r)),
        }
        if let Some(dst) = dst {
            self.set(dst, r);
        }
    }

    fn fetch_logic(&mut self, op: Logic, width: Width, mem: Mem, src: VReg, dst: VReg) {
        let m = self.addr_outside_rax(mem);
        // Operand: a register that is neither rax nor taken. The allocator knows that rdx is overwritten; an operand in
        // rdx stays there.
        let s = match self.alloc.loc(src) {
            Loc::Reg(reg) if Gpr::from(reg) != Rax => Gpr::from(reg),
            Loc::Reg(_) | Loc::Slot(_) => {
                let free = if m.base == SCRATCH2 { Rdx } else { SCRATCH2 };
                self.load_into(width, free, src);
                free
            }
        };
        self.load_reg(size_of(width), Rax, m.into());
        let again = self.s.buf.len();
        self.mov_reg(width, SCRATCH, Rax);
        match (op, width) {
            (Logic::Or, Width::W32) => reg!(self.s.buf; or Rd(SCRATCH), Rd(s)),
            (Logic::Or, Width::W64) => reg!(self.s.buf; or Rq(SCRATCH), Rq(s)),
            (Logic::And, Width::W32) => reg!(self.s.buf; and Rd(SCRATCH), Rd(s)),
            (Logic::And, Width::W64) => reg!(self.s.buf; and Rq(SCRATCH), Rq(s)),
            (Logic::Xor, Width::W32) => reg!(self.s.buf; xor Rd(SCRATCH), Rd(s)),
            (Logic::Xor, Width::W64) => reg!(self.s.buf; xor Rq(SCRATCH), Rq(s)),
        }
        self.cmpxchg_insn(width, m, SCRATCH);
        // At most 3 + 3 + 10 + 2 bytes back.
        let back = few(self.s.buf.len() + 2 - again);
        jcc_short(&mut self.s.buf, Cc::Ne, -(back as i8));
        self.set(dst, Rax);
    }

    pub(crate) fn cmp_xchg(&mut self, width: Width, mem: Mem, expected: VReg, new: VReg, dst: VReg) {
        let m = self.addr_outside_rax(mem);
        let new = match self.alloc.loc(new) {
            Loc::Reg(reg) if Gpr::from(reg) != Rax => Gpr::from(reg),
            Loc::Reg(_) | Loc::Slot(_) => {
                self.load_into(width, SCRATCH, new);
                SCRATCH
            }
        };
        self.load_into(width, Rax, expected);
        self.cmpxchg_insn(width, m, new);
        let d = self.target(dst);
        match width {
            Width::W32 => self.mov_reg(width, d, Rax),
            Width::W64 => self.copy(width, d, Rax),
        }
        self.put(dst, d);
    }

    fn cmpxchg_insn(&mut self, width: Width, m: Addr, new: Gpr) {
        match width {
            Width::W32 => mem!(self.s.buf, m; lock cmpxchg [rax], Rd(new)),
            Width::W64 => mem!(self.s.buf, m; lock cmpxchg [rax], Rq(new)),
        }
    }

    /// The address `mem`; a base in rax or in a slot goes to [`SCRATCH2`].
    fn addr_outside_rax(&mut self, mem: Mem) -> Addr {
        let m = self.address(mem, SCRATCH2);
        if m.base != Rax {
            return m;
        }
        self.copy(Width::W64, SCRATCH2, Rax);
        Addr { base: SCRATCH2, disp: m.disp }
    }
}

fn size_of(width: Width) -> Size {
    match width {
        Width::W32 => Size::W,
        Width::W64 => Size::DW,
    }
}
