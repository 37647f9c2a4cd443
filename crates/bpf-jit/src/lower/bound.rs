//! The run-time checks that hybrid verification asks for: an address against the one region that it may be in.
//!
//! Problem: an access of `size` bytes must stop the run unless all of the bytes are in the region, and an access in
//! bounds should cost little. Approach: the distance `t` from the region's start, as an unsigned number, is compared
//! once with the limit `length - size + 1`. For a region shorter than `size - 1` bytes the limit is negative. Its sign,
//! copied to all bits and combined with `t` by `or`, then makes `t` the greatest number, so that the comparison fails
//! without a second branch. Where the facts promise a sufficient length, this step is omitted.
//!
//! Invariant: only [`Op::Bound`] decides. `t` and the limit are computed from the run's own context, which no program
//! can write.

use super::func::FuncLowerer;
use super::func::Sink;
use bpf_analysis::{AccessCheck, BoundsPlace, CheckRegion};
use bpf_isa::{InsnIdx, Reg, Size, Src, Width};
use bpf_jit_code::RunCtx;
use bpf_lir::Extern;
use bpf_lir::{Base, BinOp, Mem, Op, Region, VReg, Val};

impl<S: Sink> FuncLowerer<'_, S> {
    /// Checks the current load or store, if it was not proven to be in bounds.
    #[inline(always)]
    pub(super) fn check_access(&mut self, size: Size, base: Reg, off: i16) {
        if let Some(region) = self.facts.check(InsnIdx(self.span.first)) {
            self.emit_check(region, size, base, off);
        }
    }

    fn emit_check(&mut self, region: CheckRegion, size: Size, base: Reg, off: i16) {
        let last = i64::from(size.bytes()) - 1;
        let base = self.read(base);
        let ctx = self.ctx();
        match region {
            CheckRegion::Packet(region) => {
                let bounds = self.facts.region(region);
                let (start, len) = self.bounds(bounds.place);
                let at = self.distance(base, start, off.into());
                let limit = if last == 0 { len } else { self.bin(BinOp::Sub, len, Val::Imm(last)) };
                let at = if i64::from(bounds.min_len) >= last {
                    at
                } else {
                    let short = self.bin(BinOp::Sar, limit, Val::Imm(63));
                    self.bin(BinOp::Or, at, Val::Reg(short))
                };
                self.op(Op::Bound { a: at, limit: Val::Reg(limit), ctx });
            }
            CheckRegion::MapValue { map, size } => {
                let start = self.fresh();
                self.op(Op::SymAddr { dst: start, symbol: Extern::ArrayBase(map).symbol() });
                let at = self.distance(base, start, off.into());
                let limit = Val::Imm((i64::from(size) - last).max(0));
                self.op(Op::Bound { a: at, limit, ctx });
            }
        }
    }

    /// Checks that the pointers which the current jump compares are near their region, if that was not proven.
    pub(super) fn check_operands(&mut self, dst: Reg, src: Src) {
        let Some(region) = self.facts.check(InsnIdx(self.span.first)) else { return };
        let ctx = self.ctx();
        let start = match region {
            CheckRegion::Packet(region) => self.bounds(self.facts.region(region).place).0,
            CheckRegion::MapValue { map, .. } => {
                let start = self.fresh();
                self.op(Op::SymAddr { dst: start, symbol: Extern::ArrayBase(map).symbol() });
                start
            }
        };
        let src = match src {
            Src::Reg(src) => Some(src),
            Src::Imm(_) => None,
        };
        for reg in [Some(dst), src].into_iter().flatten() {
            let at = self.read(reg);
            let at = self.distance(at, start, AccessCheck::BEFORE as i64);
            let limit = Val::Imm((AccessCheck::BEFORE + AccessCheck::NEAR) as i64);
            self.op(Op::Bound { a: at, limit, ctx });
        }
    }

    /// Returns a region's first address and its length in bytes.
    pub(super) fn bounds(&mut self, place: BoundsPlace) -> (VReg, VReg) {
        match place {
            BoundsPlace::Nowhere => {
                // A region without bytes.
                let none = self.fresh();
                self.op(Op::Mov { width: Width::W64, dst: none, src: Val::Imm(0) });
                (none, none)
            }
            BoundsPlace::Raw => (self.ctx_field(RunCtx::PACKET_OFFSET), self.ctx_field(RunCtx::PACKET_LEN_OFFSET)),
            BoundsPlace::Addresses { start, end } => {
                let context = self.ctx_field(RunCtx::CONTEXT_OFFSET);
                let start = self.context_field(context, start, Size::DW);
                let end = self.context_field(context, end, Size::DW);
                let len = self.bin(BinOp::Sub, end, Val::Reg(start));
                (start, len)
            }
            BoundsPlace::Length { start, len, len_size } => {
                let context = self.ctx_field(RunCtx::CONTEXT_OFFSET);
                let start = self.context_field(context, start, Size::DW);
                let size = if len_size == 8 { Size::DW } else { Size::W };
                (start, self.context_field(context, len, size))
            }
        }
    }

    fn context_field(&mut self, context: VReg, off: u32, size: Size) -> VReg {
        let dst = self.fresh();
        let mem = Mem { region: Region::Context, ..Mem::new(Base::Reg(context), off as i32) };
        self.op(Op::Load { size, signed: false, swap: false, dst, mem });
        dst
    }

    /// Computes `base - start + off`.
    fn distance(&mut self, base: VReg, start: VReg, off: i64) -> VReg {
        let at = self.bin(BinOp::Sub, base, Val::Reg(start));
        if off == 0 { at } else { self.bin(BinOp::Add, at, Val::Imm(off)) }
    }

    pub(super) fn bin(&mut self, op: BinOp, a: VReg, b: Val) -> VReg {
        let dst = self.fresh();
        self.op(Op::Bin { op, width: Width::W64, dst, a, b });
        dst
    }
}
