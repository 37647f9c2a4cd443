//! Blinds constants: a program's constants do not appear in its machine code.
//!
//! Problem: the author of a program's constants chooses bytes of executable memory, and a jump into the middle of an
//! instruction runs these bytes (JIT spraying). Approach: a constant outside of -128 to 127 is computed from two
//! numbers, one of them random: `t = c ^ key; t = t ^ key`. The op then reads the register in place of the constant.
//! The pass runs after all passes that fold constants, since a folded constant depends on the program's choice, too;
//! the ops that make the register may still move out of a loop.
//!
//! Not blinded: constants from -128 to 127, counts of shifts, offsets of accesses from -32768 to 32767, all offsets
//! from the frame, and indices of tail calls.
//!
//! Invariants: results do not depend on the keys. No op is left with a larger constant of the program. The pass works
//! in SSA form and outside of it, since it looks at single ops only.

use bpf_isa::{Size, Width};
use bpf_lir::{Base, BinOp, Func, Op, Span, VReg, Val};

/// Keys from a secret random seed (SplitMix64 of Steele, Lea and Flood). The generator is not cryptographic: a known
/// 64-bit key would reveal the following ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys(pub(crate) u64);

impl Keys {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

/// Runs the pass; returns the number of ops that were changed.
pub(crate) fn run(func: &mut Func, keys: &mut Keys) -> u32 {
    let mut done = 0;
    let mut ops: Vec<(Op, Span)> = Vec::new();
    for i in 0..func.order.len() {
        let block = func.order[i];
        ops.clear();
        let before = done;
        for at in func.range(block) {
            let mut op = func.ops[at];
            let mut writer = Writer { vregs: &mut func.vregs, ops: &mut ops, span: func.spans[at], keys };
            done += u32::from(writer.blind(&mut op));
            ops.push((op, func.spans[at]));
        }
        if done > before {
            func.set_ops(block, ops.iter().copied());
        }
    }
    done
}

/// Whether a constant may appear in the machine code: it is from -128 to 127.
fn is_plain(imm: i64) -> bool {
    i8::try_from(imm).is_ok()
}

struct Writer<'a> {
    vregs: &'a mut u32,
    ops: &'a mut Vec<(Op, Span)>,
    span: Span,
    keys: &'a mut Keys,
}

impl Writer<'_> {
    fn fresh(&mut self) -> VReg {
        *self.vregs += 1;
        VReg(*self.vregs - 1)
    }

    fn op(&mut self, op: Op) {
        self.ops.push((op, self.span));
    }

    /// Emits ops that compute the constant `imm` in `dst`.
    fn make(&mut self, dst: VReg, imm: i64) {
        let (masked, key) = (self.fresh(), self.keys.next());
        let (width, key) = match (u32::try_from(imm), i32::try_from(imm)) {
            (Ok(_), _) => (Width::W32, i64::from(low(key))),
            (Err(_), Ok(_)) => (Width::W64, i64::from(low(key))),
            (Err(_), Err(_)) => (Width::W64, key as i64),
        };
        self.op(Op::Mov { width, dst: masked, src: Val::Imm(imm ^ key) });
        let b = match i32::try_from(key) {
            Ok(_) => Val::Imm(key),
            Err(_) => {
                let other = self.fresh();
                self.op(Op::Mov { width, dst: other, src: Val::Imm(key) });
                Val::Reg(other)
            }
        };
        self.op(Op::Bin { op: BinOp::Xor, width, dst, a: masked, b });
    }

    fn register(&mut self, imm: i64) -> Val {
        let dst = self.fresh();
        self.make(dst, imm);
        Val::Reg(dst)
    }

    /// Replaces the constants of an op by registers; returns whether it had any.
    fn blind(&mut self, op: &mut Op) -> bool {
        let mut done = self.blind_offset(op);
        match op {
            Op::Mov { width, dst, src: Val::Imm(imm) } => {
                let imm = bpf_lir::narrow(*width, *imm as u64) as i64;
                if is_plain(imm) {
                    return done;
                }
                let masked = self.fresh();
                self.make(masked, imm);
                *op = Op::Mov { width: Width::W64, dst: *dst, src: Val::Reg(masked) };
                done = true;
            }
            Op::Bin { op: BinOp::Shl | BinOp::Shr | BinOp::Sar | BinOp::Rotl, .. } => {}
            Op::Bin { width, b: b @ Val::Imm(_), .. }
            | Op::Branch { width, b: b @ Val::Imm(_), .. }
            | Op::Select { width, b: b @ Val::Imm(_), .. } => {
                done |= self.blind_operand(b, *width);
            }
            Op::Confine { limit: b @ Val::Imm(_), .. } | Op::Bound { limit: b @ Val::Imm(_), .. } => {
                done |= self.blind_operand(b, Width::W64);
            }
            Op::Store { size, src: b @ Val::Imm(_), .. } => {
                done |= self.blind_operand(b, if *size == Size::DW { Width::W64 } else { Width::W32 });
            }
            Op::Mov { .. }
            | Op::Bin { .. }
            | Op::Branch { .. }
            | Op::Select { .. }
            | Op::Confine { .. }
            | Op::Bound { .. }
            | Op::Store { .. }
            | Op::Ext { .. }
            | Op::Neg { .. }
            | Op::Bswap { .. }
            | Op::AddShift { .. }
            | Op::FrameAddr { .. }
            | Op::SymAddr { .. }
            | Op::SubprogAddr { .. }
            | Op::Load { .. }
            | Op::LoadAcquire { .. }
            | Op::StoreRelease { .. }
            | Op::Atomic { .. }
            | Op::CmpXchg { .. }
            | Op::Call { .. }
            | Op::TailCall { .. }
            | Op::Check { .. }
            | Op::Stop { .. }
            | Op::Jump { .. }
            | Op::Exit { .. } => {}
        }
        done
    }

    fn blind_operand(&mut self, operand: &mut Val, width: Width) -> bool {
        let Val::Imm(imm) = *operand else { return false };
        // The constant as an instruction encodes it, sign-extended.
        let signed = match width {
            Width::W32 => i64::from(low(imm as u64)),
            Width::W64 => imm,
        };
        if is_plain(signed) {
            return false;
        }
        *operand = self.register(bpf_lir::narrow(width, imm as u64) as i64);
        true
    }

    /// Blinds an offset that no single BPF instruction can encode; returns whether there was one.
    fn blind_offset(&mut self, op: &mut Op) -> bool {
        let (Op::Load { mem, .. }
        | Op::Store { mem, .. }
        | Op::LoadAcquire { mem, .. }
        | Op::StoreRelease { mem, .. }
        | Op::Atomic { mem, .. }
        | Op::CmpXchg { mem, .. }) = op
        else {
            return false;
        };
        if i16::try_from(mem.off).is_ok() {
            return false;
        }
        let base = match &mut mem.base {
            Base::Frame => return false,
            Base::Reg(base) | Base::Indexed { base, .. } => base,
        };
        let by = self.register(mem.off.into());
        let dst = self.fresh();
        self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst, a: *base, b: by });
        (*base, mem.off) = (dst, 0);
        true
    }
}

/// Returns the low half of a number, as a signed number.
fn low(number: u64) -> i32 {
    crate::num::low(number as i64)
}
