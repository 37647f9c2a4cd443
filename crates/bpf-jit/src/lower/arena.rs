//! Addresses in the program's arena, and accesses by them.
//!
//! Problem: a program may use any number as an address in its arena, and no access may leave the arena. Approach: an
//! access is made at `start + (base & (window - 1)) + off`, and memory is reserved on both sides of the window as far
//! as an offset and a size reach ([`ArenaFact`]). No comparison is needed and no access can fault. Nothing that the
//! optimiser finds out about the base matters: it treats the `&` like any other, and the address as a sum.
//!
//! Atomic accesses must be aligned, and nothing is known of their addresses' alignment. The address is therefore
//! checked by the op that hybrid verification's checks use.
//!
//! Invariant: an access that the verifier found to be in the arena ([`MemKind::Arena`]) uses no other form of address.

use super::func::FuncLowerer;
use super::func::Sink;
use bpf_analysis::{ArenaFact, MemKind};
use bpf_isa::{AddrSpace, Cond, Imm64, InsnIdx, Reg, Size, Width};
use bpf_lir::{Base, BinOp, Extern, Mem, Op, Region, VReg, Val};

/// Stands in if facts contradict each other. No code results, because there is no such map.
const NO_ARENA: ArenaFact = ArenaFact { map: Extern::MAX, window: 1, user: 0 };

impl<S: Sink> FuncLowerer<'_, S> {
    /// Returns the arena if the current instruction accesses it.
    #[inline(always)]
    fn accessed_arena(&self) -> Option<ArenaFact> {
        if self.facts.insn(InsnIdx(self.span.first)).memory != Some(MemKind::Arena) {
            return None;
        }
        Some(self.facts.arena.unwrap_or(NO_ARENA))
    }

    /// Returns the address of a load or store.
    #[inline(always)]
    pub(super) fn address(&mut self, size: Size, base: Reg, off: i16) -> Mem {
        if self.is_contained()
            && let Some(mem) = self.confined_mem(size, base, off, false)
        {
            return mem;
        }
        match self.accessed_arena() {
            None => self.mem(base, off),
            Some(arena) => {
                let (start, index) = self.in_window(arena, base);
                let base = Base::Indexed { base: start, index, shift: 0 };
                Mem { region: Region::Arena, ..Mem::new(base, off.into()) }
            }
        }
    }

    /// Returns the address of an atomic access of this size.
    pub(super) fn atomic_address(&mut self, size: Size, base: Reg, off: i16) -> Mem {
        if self.is_contained()
            && let Some(mem) = self.confined_mem(size, base, off, true)
        {
            return mem;
        }
        let Some(arena) = self.accessed_arena() else { return self.mem(base, off) };
        let (start, index) = self.in_window(arena, base);
        if size != Size::B {
            // The window starts at a multiple of 8, so the address is aligned if the index is.
            let ctx = self.ctx();
            let at = match off {
                0 => index,
                _ => self.bin_of(BinOp::Add, Width::W32, index, i64::from(off)),
            };
            let beyond = self.bin_of(BinOp::And, Width::W32, at, i64::from(size.bytes()) - 1);
            self.op(Op::Bound { a: beyond, limit: Val::Imm(1), ctx });
        }
        let at = self.fresh();
        self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: at, a: start, b: Val::Reg(index) });
        Mem { region: Region::Arena, ..Mem::new(Base::Reg(at), off.into()) }
    }

    /// Returns the start of the window, and the offset in the window that the register's value means.
    fn in_window(&mut self, arena: ArenaFact, base: Reg) -> (VReg, VReg) {
        let number = self.read(base);
        let index = self.fresh();
        if arena.window == 1 << 32 {
            self.op(Op::Mov { width: Width::W32, dst: index, src: Val::Reg(number) });
        } else {
            let mask = Val::Imm(arena.window as i64 - 1);
            self.op(Op::Bin { op: BinOp::And, width: Width::W32, dst: index, a: number, b: mask });
        }
        let start = self.fresh();
        self.op(Op::SymAddr { dst: start, symbol: Extern::ArrayBase(arena.map).symbol() });
        (start, index)
    }

    /// Converts an address: the kernel's form is the low half; the user's form has the arena's upper half, unless the
    /// low half is 0.
    pub(super) fn cast(&mut self, dst: Reg, src: Reg, to: AddrSpace) {
        let src = self.read(src);
        let half = match to {
            AddrSpace::Kernel => self.write(dst),
            AddrSpace::User => self.fresh(),
        };
        self.op(Op::Mov { width: Width::W32, dst: half, src: Val::Reg(src) });
        if to == AddrSpace::Kernel {
            return;
        }
        let user = self.facts.arena.unwrap_or(NO_ARENA).user;
        let upper = self.fresh();
        self.op(Op::Mov { width: Width::W64, dst: upper, src: Val::Imm((user >> 32 << 32) as i64) });
        let whole = self.fresh();
        self.op(Op::Bin { op: BinOp::Or, width: Width::W64, dst: whole, a: half, b: Val::Reg(upper) });
        let dst = self.write(dst);
        // Null has a low half of 0 and stays 0.
        let (width, cond, b) = (Width::W64, Cond::Eq, Val::Imm(0));
        self.op(Op::Select { width, cond, a: half, b, dst, yes: half, no: whole });
    }

    /// Returns the user address of a reference into the arena.
    pub(super) fn arena_value(&self, imm: Imm64) -> Option<u64> {
        let arena = self.facts.arena?;
        match imm {
            Imm64::MapValue { map, off } | Imm64::MapIdxValue { map, off } if map as u32 == arena.map => {
                Some(arena.user + u64::from(off))
            }
            Imm64::Const(_)
            | Imm64::Map(_)
            | Imm64::MapValue { .. }
            | Imm64::Var(_)
            | Imm64::Func(_)
            | Imm64::MapIdx(_)
            | Imm64::MapIdxValue { .. } => None,
        }
    }

    fn bin_of(&mut self, op: BinOp, width: Width, a: VReg, b: i64) -> VReg {
        let dst = self.fresh();
        self.op(Op::Bin { op, width, dst, a, b: Val::Imm(b) });
        dst
    }
}
