//! Comparisons: for jumps and for selections.
//!
//! A comparison with a constant is often no comparison: with zero it is a `cbz`, of the sign or one bit a `tbz`, and at
//! the end of the range its outcome is known. Otherwise the constant goes into `cmp`, negated into `cmn`, or moved by
//! one together with the condition (`a > 0xffff` is `a >= 0x10000`), or is taken off in two parts (for equality), and
//! only then goes into a register.

use crate::Emitter;
use crate::asm::{asm, asm_w};
use crate::emit::alu::{AddImm, add_imm, is_logical, low_bits, mov_cost, mov_imm};
use crate::jump::{Cc, Jump};
use crate::regs::{AUX, Gpr, TMP0, TMP1};
use crate::tail_call::no_straight_line;
use bpf_isa::Width;
use bpf_jit::num::{few, low_word};
use bpf_jit::{BinOp, BlockId, Cond, Op, Others, Side, SideAs, Switch, VReg, Val, side};

/// `a cond b` at a width.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Comparison {
    pub(crate) width: Width,
    pub(crate) cond: Cond,
    pub(crate) a: VReg,
    pub(crate) b: Val,
}

/// A constant as a signed number of the width.
fn signed(width: Width, imm: i64) -> i64 {
    match width {
        Width::W32 => i64::from(low_word(imm)),
        Width::W64 => imm,
    }
}

/// The least and the greatest signed number of the width.
fn limits(width: Width) -> (i64, i64) {
    match width {
        Width::W32 => (i32::MIN.into(), i32::MAX.into()),
        Width::W64 => (i64::MIN, i64::MAX),
    }
}

/// Whether the flags of one comparison tell another: they are those of the same instruction.
fn same_flags(one: Comparison, other: Comparison) -> bool {
    let plain = match one.b {
        Val::Reg(_) => true,
        // Else the constant was moved by one together with the condition, or taken off in two parts.
        Val::Imm(imm) => AddImm::of(signed(one.width, imm).unsigned_abs()).is_some(),
    };
    let test = one.cond == Cond::Set || other.cond == Cond::Set;
    one == other || plain && !test && Comparison { cond: other.cond, ..one } == other
}

/// Returns the outcome of a comparison that is the same for every first operand.
pub(crate) fn constant_outcome(comparison: Comparison) -> Option<bool> {
    let Comparison { width, cond, b: Val::Imm(imm), .. } = comparison else { return None };
    let (imm, (min, max)) = (signed(width, imm), limits(width));
    match cond {
        Cond::Lt | Cond::Set => (imm == 0).then_some(false),
        Cond::Ge => (imm == 0).then_some(true),
        Cond::Gt => (imm == -1).then_some(false),
        Cond::Le => (imm == -1).then_some(true),
        Cond::SLt => (imm == min).then_some(false),
        Cond::SGe => (imm == min).then_some(true),
        Cond::SGt => (imm == max).then_some(false),
        Cond::SLe => (imm == max).then_some(true),
        Cond::Eq | Cond::Ne => None,
    }
}

/// The branch that needs no flags, if there is one.
fn fused(width: Width, cond: Cond, reg: Gpr, imm: i64) -> Option<Jump> {
    use Cond::*;
    let sign = match width {
        Width::W32 => 31,
        Width::W64 => 63,
    };
    let bits = low_bits(width, imm);
    let case = (cond, signed(width, imm));
    if matches!(case, (Eq | Le, 0) | (Lt, 1)) {
        Some(Jump::Zero { nonzero: false, width, reg })
    } else if matches!(case, (Ne | Gt, 0) | (Ge, 1) | (Set, -1)) {
        Some(Jump::Zero { nonzero: true, width, reg })
    } else if matches!(case, (SLt, 0) | (SLe, -1)) {
        Some(Jump::Bit { set: true, bit: sign, reg })
    } else if matches!(case, (SGe, 0) | (SGt, -1)) {
        Some(Jump::Bit { set: false, bit: sign, reg })
    } else if cond == Set && bits.is_power_of_two() {
        Some(Jump::Bit { set: true, bit: few(bits.trailing_zeros() as usize), reg })
    } else {
        None
    }
}

/// Returns the equivalent comparison with a constant one higher or lower. No constant wraps, because comparisons whose
/// outcome is known are not passed to this function.
fn neighbour(cond: Cond, imm: i64) -> Option<(Cond, i64)> {
    match cond {
        Cond::Gt => Some((Cond::Ge, imm.wrapping_add(1))),
        Cond::Ge => Some((Cond::Gt, imm.wrapping_sub(1))),
        Cond::Lt => Some((Cond::Le, imm.wrapping_sub(1))),
        Cond::Le => Some((Cond::Lt, imm.wrapping_add(1))),
        Cond::SGt => Some((Cond::SGe, imm.wrapping_add(1))),
        Cond::SGe => Some((Cond::SGt, imm.wrapping_sub(1))),
        Cond::SLt => Some((Cond::SLe, imm.wrapping_sub(1))),
        Cond::SLe => Some((Cond::SLt, imm.wrapping_add(1))),
        Cond::Eq | Cond::Ne | Cond::Set => None,
    }
}

/// The flags condition after `cmp a, b`, or after `tst a, b`.
fn cc(cond: Cond) -> Cc {
    match cond {
        Cond::Eq => Cc::Eq,
        Cond::Ne | Cond::Set => Cc::Ne,
        Cond::Gt => Cc::Hi,
        Cond::Ge => Cc::Hs,
        Cond::Lt => Cc::Lo,
        Cond::Le => Cc::Ls,
        Cond::SGt => Cc::Gt,
        Cond::SGe => Cc::Ge,
        Cond::SLt => Cc::Lt,
        Cond::SLe => Cc::Le,
    }
}

impl Emitter<'_> {
    /// Appends the comparison, its first operand in `a`; the condition holds if the returned one does.
    pub(crate) fn flags(&mut self, Comparison { width, cond, b, .. }: Comparison, a: Gpr) -> Cc {
        match b {
            Val::Reg(b) => {
                let b = self.get(b, TMP1);
                self.compare(width, cond, a, b)
            }
            Val::Imm(imm) => self.flags_imm(width, cond, a, signed(width, imm)),
        }
    }

    fn compare(&mut self, width: Width, cond: Cond, a: Gpr, b: Gpr) -> Cc {
        if cond == Cond::Set {
            asm_w!(&mut self.s.buf, width; tst R(a), R(b));
        } else {
            asm_w!(&mut self.s.buf, width; cmp R(a), R(b));
        }
        cc(cond)
    }

    fn flags_imm(&mut self, width: Width, cond: Cond, a: Gpr, imm: i64) -> Cc {
        let bits = low_bits(width, imm);
        if cond == Cond::Set && is_logical(width, bits) {
            match width {
                Width::W32 => asm!(&mut self.s.buf; tst W(a), low_word(imm) as u32),
                Width::W64 => asm!(&mut self.s.buf; tst X(a), bits),
            }
            return cc(cond);
        }
        if cond != Cond::Set {
            for (cond, imm) in [Some((cond, imm)), neighbour(cond, imm)].into_iter().flatten() {
                if let Some(encoded) = AddImm::of(imm.unsigned_abs()) {
                    self.compare_imm(width, a, imm < 0, encoded);
                    return cc(cond);
                }
            }
        }
        let magnitude = imm.unsigned_abs();
        if matches!(cond, Cond::Eq | Cond::Ne) && magnitude < 1 << 24 && mov_cost(bits) > 1 {
            // Equality survives taking the constant off in two parts.
            let high = magnitude as i64 & !0xfff;
            add_imm(&mut self.s.buf, width, AUX, a, if imm < 0 { high } else { -high });
            self.compare_imm(width, AUX, imm < 0, AddImm::Low(low_word(magnitude as i64) as u32 & 0xfff));
            return cc(cond);
        }
        mov_imm(&mut self.s.buf, AUX, bits);
        self.compare(width, cond, a, AUX)
    }

    /// `cmp a, imm`, or of a negative constant `cmn a, -imm`: the same addition, hence the same flags (but for zero).
    fn compare_imm(&mut self, width: Width, a: Gpr, negative: bool, magnitude: AddImm) {
        match (negative, magnitude) {
            (false, AddImm::Low(i)) => asm_w!(&mut self.s.buf, width; cmp RSP(a), i),
            (false, AddImm::High(i)) => asm_w!(&mut self.s.buf, width; cmp RSP(a), i, lsl 12),
            (true, AddImm::Low(i)) => asm_w!(&mut self.s.buf, width; cmn RSP(a), i),
            (true, AddImm::High(i)) => asm_w!(&mut self.s.buf, width; cmn RSP(a), i, lsl 12),
        }
    }

    /// Appends the comparison, unless the flags tell it already.
    fn flags_or_told<const FUSES: bool>(&mut self, comparison: Comparison) -> Cc {
        if FUSES
            && let Some((told, told_cc)) = self.told
            && same_flags(told, comparison)
        {
            return if told == comparison { told_cc } else { cc(comparison.cond) };
        }
        let a = self.get(comparison.a, TMP0);
        self.flags(comparison, a)
    }

    /// Whether the value that the op before made is only compared with zero: then the `and` that made it.
    fn take_tested(&mut self, a: VReg) -> Option<(Width, VReg, Val)> {
        let Some(Op::Bin { op: BinOp::And, width, dst, a: x, b }) = self.held else { return None };
        (a == dst).then(|| {
            self.held = None;
            (width, x, b)
        })
    }

    /// Tells whether two values have bits in common; the condition is one for equality with zero.
    fn test(&mut self, width: Width, a: VReg, b: Val, cond: Cond) -> Cc {
        let a = self.get(a, TMP0);
        self.flags(Comparison { width, cond: Cond::Set, a: VReg(0), b }, a);
        cc(cond)
    }

    pub(crate) fn branch<const FUSES: bool>(&mut self, comparison: Comparison, target: BlockId, next: BlockId) {
        let tested = if FUSES { self.take_tested(comparison.a) } else { None };
        if target == next {
            return;
        }
        if let Some((width, a, b)) = tested {
            let set = comparison.cond == Cond::Ne;
            let jump = match b {
                Val::Imm(imm) if low_bits(width, imm).is_power_of_two() => {
                    let bit = few(low_bits(width, imm).trailing_zeros() as usize);
                    Jump::Bit { set, bit, reg: self.get(a, TMP0) }
                }
                Val::Reg(_) | Val::Imm(_) => Jump::If(self.test(width, a, b, comparison.cond)),
            };
            return self.go(jump, self.s.block(target));
        }
        match constant_outcome(comparison) {
            Some(true) => return self.jump(target, next),
            Some(false) => return,
            None => {}
        }
        let Comparison { width, cond, a, b } = comparison;
        let jump = match b {
            Val::Imm(imm) if fused(width, cond, Gpr::ZR, imm).is_some() => {
                let a = self.get(a, TMP0);
                fused(width, cond, a, imm)
            }
            Val::Imm(_) | Val::Reg(_) => None,
        };
        let jump = jump.unwrap_or_else(|| Jump::If(self.flags_or_told::<FUSES>(comparison)));
        self.go(jump, self.s.block(target));
    }

    /// Jumps to the target of the value in a table. The tree stands behind the jump.
    pub(crate) fn switch_by_table(&mut self, Switch { width, value, low, targets, others, .. }: &Switch) {
        debug_assert!(self.held.is_none(), "a value that several comparisons read has a location");
        let a = self.get(*value, TMP0);
        add_imm(&mut self.s.buf, *width, TMP0, a, low.cast_signed().wrapping_neg());
        let tree = self.s.layout.label();
        let others = match *others {
            Others::None => None,
            Others::To(block) => Some(self.s.block(block)),
            Others::Tree => Some(tree),
        };
        if let Some(others) = others {
            let last = Val::Imm(targets.len() as i64 - 1);
            let above = self.flags(Comparison { width: *width, cond: Cond::Gt, a: *value, b: last }, TMP0);
            self.go(Jump::If(above), others);
        }
        let table = self.s.table(targets);
        self.go(Jump::Address { dst: TMP1 }, table);
        asm!(&mut self.s.buf; add XSP(TMP1), XSP(TMP1), W(TMP0), uxtw 2);
        asm!(&mut self.s.buf; ldrsw X(TMP0), [XSP(TMP1)]);
        asm!(&mut self.s.buf; add X(TMP0), X(TMP0), X(TMP1));
        asm!(&mut self.s.buf; br X(TMP0));
        no_straight_line(self.s, self.options);
        self.s.bind(tree);
        self.told = None;
    }

    /// A selection that is always made: `cmp`, `csel`, and `csdb`, behind which no instruction uses a predicted outcome
    /// of the selection.
    pub(crate) fn confine(&mut self, op: &Op, a: VReg, limit: Val, dst: VReg, yes: VReg, no: VReg) {
        let comparison = Comparison { width: Width::W64, cond: Cond::Lt, a, b: limit };
        self.select::<false>(op, comparison, dst, yes, no);
        asm!(&mut self.s.buf; hint 20); // csdb
    }

    pub(crate) fn select<const FUSES: bool>(
        &mut self,
        op: &Op,
        comparison: Comparison,
        dst: VReg,
        yes: VReg,
        no: VReg,
    ) {
        let side = if FUSES {
            self.held.and_then(|maker| side(&maker, op)).map(|side| (side, self.held.take()))
        } else {
            None
        };
        if let Some(outcome) = constant_outcome(comparison) {
            return match side {
                Some((side, Some(maker))) if side.yes == outcome => {
                    self.side_alone(dst, maker);
                }
                Some(_) | None => self.mov::<false>(op, Width::W64, dst, Val::Reg(if outcome { yes } else { no })),
            };
        }
        let tested = if FUSES { self.take_tested(comparison.a) } else { None };
        let mut cc = match tested {
            Some((width, a, b)) => self.test(width, a, b, comparison.cond),
            None => self.flags_or_told::<FUSES>(comparison),
        };
        let told = cc;
        // Loads leave the flags alone.
        let mut side_as = SideAs::Same;
        let (y, n) = match side {
            None => (self.get(yes, TMP0), self.get(no, TMP1)),
            Some((Side { yes: is_yes, of, as_ }, _)) => {
                // The instructions make the other side: the one that is taken where their condition does not hold.
                if is_yes && !bpf_isa::planted_in!(bpf_jit::faults, SidesSwapped) {
                    cc = cc.inverted();
                }
                side_as = as_;
                let other = self.get(if is_yes { no } else { yes }, TMP0);
                (other, of.map_or(Gpr::ZR, |of| self.get(of, TMP1)))
            }
        };
        let d = self.target(dst);
        macro_rules! choose {
            ($name:ident) => {
                match cc {
                    Cc::Eq => asm!(&mut self.s.buf; $name X(d), X(y), X(n), eq),
                    Cc::Ne => asm!(&mut self.s.buf; $name X(d), X(y), X(n), ne),
                    Cc::Hs => asm!(&mut self.s.buf; $name X(d), X(y), X(n), hs),
                    Cc::Lo => asm!(&mut self.s.buf; $name X(d), X(y), X(n), lo),
                    Cc::Hi => asm!(&mut self.s.buf; $name X(d), X(y), X(n), hi),
                    Cc::Ls => asm!(&mut self.s.buf; $name X(d), X(y), X(n), ls),
                    Cc::Ge => asm!(&mut self.s.buf; $name X(d), X(y), X(n), ge),
                    Cc::Lt => asm!(&mut self.s.buf; $name X(d), X(y), X(n), lt),
                    Cc::Gt => asm!(&mut self.s.buf; $name X(d), X(y), X(n), gt),
                    Cc::Le => asm!(&mut self.s.buf; $name X(d), X(y), X(n), le),
                    Cc::Mi => asm!(&mut self.s.buf; $name X(d), X(y), X(n), mi),
                    Cc::Pl => asm!(&mut self.s.buf; $name X(d), X(y), X(n), pl),
                }
            };
        }
        match side_as {
            SideAs::Same => choose!(csel),
            SideAs::Next => choose!(csinc),
            SideAs::Inverted => choose!(csinv),
            SideAs::Negated => choose!(csneg),
        }
        self.put(dst, d);
        if FUSES {
            let changed = comparison.a == dst || comparison.b == Val::Reg(dst);
            self.told = (tested.is_none() && !changed).then_some((comparison, told));
        }
    }

    /// Emits one side of a selection that is always taken.
    fn side_alone(&mut self, dst: VReg, maker: Op) {
        match maker {
            Op::Mov { width, src, .. } => self.mov::<false>(&maker, width, dst, src),
            Op::Neg { width, src, .. } => self.neg::<false>(&maker, width, dst, src),
            Op::Bin { op, width, a, b, .. } => self.bin::<false>(&maker, op, width, dst, a, b),
            Op::Ext { .. }
            | Op::Bswap { .. }
            | Op::AddShift { .. }
            | Op::Select { .. }
            | Op::Confine { .. }
            | Op::FrameAddr { .. }
            | Op::SymAddr { .. }
            | Op::SubprogAddr { .. }
            | Op::Load { .. }
            | Op::Store { .. }
            | Op::LoadAcquire { .. }
            | Op::StoreRelease { .. }
            | Op::Atomic { .. }
            | Op::CmpXchg { .. }
            | Op::Call { .. }
            | Op::TailCall { .. }
            | Op::Check { .. }
            | Op::Bound { .. }
            | Op::Stop { .. }
            | Op::Jump { .. }
            | Op::Branch { .. }
            | Op::Exit { .. } => {
                debug_assert!(false, "{maker:?} is held for a selection");
            }
        }
    }

    pub(crate) fn jump(&mut self, target: BlockId, next: BlockId) {
        if target != next {
            self.go(Jump::Always, self.s.block(target));
        }
    }
}
