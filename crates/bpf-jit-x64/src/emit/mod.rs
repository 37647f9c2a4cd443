//! One op, one emission: the only match over [`Op`] in this backend, and it is exhaustive.

pub(crate) mod alu;
mod atomic;
pub(crate) mod branch;
mod call;
mod endian;
pub(crate) mod mem;
mod muldiv;
mod stop;

use crate::Emitter;
use crate::emit::branch::Comparison;
use bpf_jit::{BlockId, Op};

impl Emitter<'_> {
    /// Emits `op`; `next` is the block that follows the op's own. Unless it `FUSES`, no op is held for the next one,
    /// and none asks what the last one left in the flags.
    #[inline(always)]
    pub(crate) fn emit<const FUSES: bool>(&mut self, op: &Op, next: BlockId) {
        match *op {
            Op::Mov { width, dst, src } => self.mov::<FUSES>(op, width, dst, src),
            Op::Ext { width, signed, from, dst, src } => self.ext::<FUSES>(op, width, signed, from, dst, src),
            Op::Bin { op: bin, width, dst, a, b } => self.bin::<FUSES>(op, bin, width, dst, a, b),
            Op::Neg { width, dst, src } => self.neg::<FUSES>(op, width, dst, src),
            Op::Bswap { size, dst, src } => self.bswap(size, dst, src),
            Op::AddShift { width, dst, a, b, shift } => self.add_shift(width, dst, a, b, shift),
            Op::Select { width, cond, a, b, dst, yes, no } => {
                self.select::<FUSES>(op, Comparison { width, cond, a, b }, dst, yes, no)
            }
            Op::Confine { a, limit, dst, yes, no } => self.confine(op, a, limit, dst, yes, no),
            Op::FrameAddr { dst, off } => self.frame_addr(dst, off),
            Op::SymAddr { dst, symbol } => self.sym_addr(dst, symbol),
            Op::SubprogAddr { dst, subprog } => self.subprog_addr(dst, subprog),
            Op::Load { size, signed, swap, dst, mem } => self.load::<FUSES>(op, size, signed, swap, dst, mem),
            Op::Store { size, mem, src } => self.store::<FUSES>(op, size, mem, src),
            Op::LoadAcquire { size, dst, mem } => self.load_acquire(size, dst, mem),
            Op::StoreRelease { size, mem, src } => self.store_release(size, mem, src),
            Op::Atomic { op, width, mem, src, fetch } => self.atomic(op, width, mem, src, fetch),
            Op::CmpXchg { width, mem, expected, new, dst } => self.cmp_xchg(width, mem, expected, new, dst),
            Op::Call { target, args, ctx, ret } => self.call(target, args, ctx, ret),
            Op::TailCall { key, arg, ctx, reload_len } => self.tail_call(key, arg, ctx, reload_len),
            Op::Check { check, ctx } => self.check(check, ctx),
            Op::Bound { a, limit, ctx } => self.bound(a, limit, ctx),
            Op::Stop { code, ctx } => self.stop(code, ctx),
            Op::Jump { target } => self.jump(target, next),
            Op::Branch { width, cond, a, b, target } => {
                self.branch::<FUSES>(Comparison { width, cond, a, b }, target, next)
            }
            Op::Exit { value } => self.exit(value),
        }
    }
}
