//! Comparisons and jumps.

use crate::asm::{Memory, asm, byte, mem, reg};
use crate::emit::alu::{Alu, at_width};
use crate::jump::{Cc, Jump, cmov, jcc_short};
use crate::regs::Gpr::{self, *};
use crate::regs::{SCRATCH, SCRATCH2};
use crate::tail_call::no_straight_line;
use crate::{Emitter, Flags};
use bpf_isa::{Cond, Size, Width};
use bpf_jit::num::{few, low_byte, low_half, low_word};
use bpf_jit::{BlockId, Carried, Compared, Loc, Op, Others, Switch, VReg, Val, carried, compared};
use bpf_jit_code::layout::Label;

/// `a cond b` at a width.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Comparison {
    pub(crate) width: Width,
    pub(crate) cond: Cond,
    pub(crate) a: VReg,
    pub(crate) b: Val,
}

/// Whether the flags of one comparison decide the other, too: both subtract the same operands. A comparison with 0 may
/// have been omitted because the flags of an op showed the result, and decides no other.
fn same_flags(one: Comparison, other: Comparison) -> bool {
    let zero = matches!(one.b, Val::Imm(imm) if at_width(one.width, imm) == 0);
    let test = one.cond == Cond::Set || other.cond == Cond::Set;
    !zero && !test && Comparison { cond: other.cond, ..one } == other
}

impl Emitter<'_> {
    pub(crate) fn jump_if(&mut self, cc: Cc, target: Label) {
        self.go(Jump::If(cc), target);
    }

    /// Begins a short conditional jump within the op; [`Emitter::land`] ends it.
    pub(crate) fn skip_if(&mut self, cc: Cc) -> usize {
        jcc_short(&mut self.s.buf, cc, 0);
        self.s.buf.len()
    }

    /// Begins a short jump within the op.
    pub(crate) fn skip(&mut self) -> usize {
        reg!(self.s.buf; jmp BYTE 0);
        self.s.buf.len()
    }

    /// Ends a short jump that began at `from`: it leads here. No [`Jump`] may lie between.
    pub(crate) fn land(&mut self, from: usize) {
        let here = self.s.buf.len();
        self.flags = None;
        if let Some(rel) = self.s.buf.get_mut(from - 1) {
            *rel = few(here - from);
        }
    }

    pub(crate) fn jump(&mut self, target: BlockId, next: BlockId) {
        if target != next {
            self.go(Jump::Always, self.s.block(target));
        }
    }

    #[inline(always)]
    pub(crate) fn branch<const FUSES: bool>(&mut self, comparison: Comparison, target: BlockId, next: BlockId) {
        // The comparison is emitted even if both outcomes lead on: a load that is fused with it may trap.
        if target != next || FUSES && self.held.is_some() {
            let cc = self.compare::<FUSES>(comparison);
            let target_label = self.s.block(target);
            if target != next {
                self.jump_if(cc, target_label);
            }
        }
    }

    /// Jumps to the target of the value in a table. The tree stands behind the jump.
    pub(crate) fn switch_by_table(&mut self, Switch { width, value, low, targets, others, .. }: &Switch) {
        debug_assert!(self.held.is_none(), "a value that several comparisons read has a location");
        let value = self.get(*value, SCRATCH);
        self.add_imm(*width, SCRATCH, value, low.cast_signed().wrapping_neg());
        let tree = self.s.layout.label();
        let others = match *others {
            Others::None => None,
            Others::To(block) => Some(self.s.block(block)),
            Others::Tree => Some(tree),
        };
        if let Some(others) = others {
            self.alu_imm(Alu::Cmp, *width, SCRATCH, targets.len() as i64 - 1);
            self.jump_if(Cc::A, others);
        }
        let table = self.s.table(targets);
        self.go(Jump::Address(SCRATCH2), table);
        reg!(self.s.buf; lea r11, [r11 + r10 * 4]);
        reg!(self.s.buf; movsxd r10, DWORD [r11]);
        reg!(self.s.buf; add r10, r11);
        reg!(self.s.buf; jmp r10);
        no_straight_line(self.s, self.options);
        self.s.bind(tree);
        (self.flags, self.selected, self.kept) = (None, None, None);
    }

    /// Sets the flags; says which [`Cc`] tells whether the condition holds.
    #[inline(always)]
    pub(super) fn compare<const FUSES: bool>(&mut self, comparison: Comparison) -> Cc {
        if FUSES && let Some(maker) = self.held.take() {
            return self.compare_held(comparison, maker);
        }
        if FUSES
            && let Some((last, at)) = self.selected
            && at == self.s.buf.len()
            && (last == comparison || same_flags(last, comparison))
        {
            return comparison.cond.into();
        }
        if FUSES && self.compare_slots(comparison) {
            return comparison.cond.into();
        }
        let Comparison { width, cond, a, b } = comparison;
        let a = self.get(a, SCRATCH);
        let test = cond == Cond::Set;
        match b {
            Val::Reg(b) => {
                let b = self.get(b, SCRATCH2);
                if test { self.test(width, a, b) } else { self.alu(Alu::Cmp, width, a, b) }
            }
            Val::Imm(imm) => {
                let imm = at_width(width, imm);
                if test {
                    self.test_imm(width, a, imm);
                } else if imm != 0 {
                    self.alu_imm(Alu::Cmp, width, a, imm);
                } else if !(FUSES && matches!(cond, Cond::Eq | Cond::Ne) && self.flags_say(width, a)) {
                    // Carry and overflow come out clear, as after a comparison with 0.
                    self.test(width, a, a);
                }
            }
        }
        cond.into()
    }

    /// Compares with a spill slot in place. Returns false if no operand is in a slot, or if it must be loaded to a
    /// register.
    fn compare_slots(&mut self, Comparison { width, cond, a, b }: Comparison) -> bool {
        let test = cond == Cond::Set;
        let size = match width {
            Width::W32 => Size::W,
            Width::W64 => Size::DW,
        };
        match (self.alloc.loc(a), b) {
            (Loc::Slot(slot), Val::Imm(imm)) => {
                let Ok(imm) = i32::try_from(at_width(width, imm)) else { return false };
                self.compare_memory(size, Self::slot(slot).into(), test, imm);
                true
            }
            (Loc::Reg(a), Val::Reg(b)) if !test => {
                let Loc::Slot(slot) = self.alloc.loc(b) else { return false };
                self.alu_mem(Alu::Cmp, width, a.into(), Self::slot(slot).into());
                true
            }
            (Loc::Slot(slot), Val::Reg(b)) if !test => {
                let (b, cmp, m) = (self.get(b, SCRATCH), Alu::Cmp as u8, Self::slot(slot).into());
                asm!(self.s.buf, [memory(m, 0), opcode_number(cmp), at_width(width)]; add [rax], Rq(b));
                true
            }
            (Loc::Reg(_), Val::Imm(_)) | (_, Val::Reg(_)) => false,
        }
    }

    /// Whether the zero flag tells already whether this much of a register is zero.
    fn flags_say(&self, width: Width, of: Gpr) -> bool {
        let wide = |flags: &Flags| flags.width == width || flags.width == Width::W32;
        self.flags.as_ref().is_some_and(|flags| flags.of == of && flags.at == self.s.buf.len() && wide(flags))
    }

    /// A comparison with the held op before as one operand, for example a load that was left in memory.
    fn compare_held(&mut self, Comparison { width, cond, a, b }: Comparison, maker: Op) -> Cc {
        if let Op::Bin { width, a, b, .. } = maker {
            let a = self.get(a, SCRATCH);
            match b {
                Val::Reg(b) => {
                    let b = self.get(b, SCRATCH2);
                    self.test(width, a, b);
                }
                Val::Imm(imm) => self.test_imm(width, a, at_width(width, imm)),
            }
            return cond.into();
        }
        let Op::Load { size, dst: v, mem, .. } = maker else {
            debug_assert!(false, "{maker:?} is held");
            return cond.into();
        };
        let m = self.operand(mem, SCRATCH2);
        let test = cond == Cond::Set;
        match (compared(size, v, width, cond, a, b), b) {
            (Some(Compared::WithMemory), _) => {
                let a = self.get(a, SCRATCH);
                match test {
                    true => asm!(self.s.buf, [memory(m, 0), at_width(width)]; test [rax], Rq(a)),
                    false => self.alu_mem(Alu::Cmp, width, a, m),
                }
            }
            (Some(Compared::Bits), Val::Reg(b)) => {
                let s = self.get(if b == v { a } else { b }, SCRATCH);
                asm!(self.s.buf, [memory(m, 0), drop_rex_unless(s)]; test [rax], Rb(s))
            }
            (Some(Compared::Memory), Val::Reg(b)) => {
                let b = self.get(b, SCRATCH);
                match test {
                    true => asm!(self.s.buf, [memory(m, 0), at_width(width)]; test [rax], Rq(b)),
                    false => {
                        let cmp = Alu::Cmp as u8;
                        asm!(self.s.buf, [memory(m, 0), opcode_number(cmp), at_width(width)]; add [rax], Rq(b))
                    }
                }
            }
            (Some(Compared::Constant { cond, imm }), _) => {
                self.compare_memory(size, m, test, imm);
                return cond.into();
            }
            (Some(Compared::Memory | Compared::Bits) | None, _) => {
                debug_assert!(false, "{maker:?} is held for another comparison")
            }
        }
        cond.into()
    }

    /// Selects `of`, or `of` plus or minus one, depending on the carry of a comparison.
    fn select_carried(&mut self, width: Width, Carried { of, less, on_carry, a, b }: Carried, dst: VReg) {
        let a = self.get(a, SCRATCH);
        match b {
            Val::Reg(b) => {
                let b = self.get(b, SCRATCH2);
                self.alu(Alu::Cmp, width, a, b);
            }
            Val::Imm(imm) => self.alu_imm(Alu::Cmp, width, a, at_width(width, imm)),
        }
        // Moves leave the flags alone.
        let d = self.target(dst);
        self.load_into(Width::W64, d, of);
        // `adc d, 0` adds the carry, and `sbb d, -1` adds 1 less the carry; `sbb d, 0` and `adc d, -1` subtract
        // likewise.
        let (op, imm) = match (less, on_carry) {
            (false, true) => (Alu::Adc, 0),
            (false, false) => (Alu::Sbb, -1),
            (true, true) => (Alu::Sbb, 0),
            (true, false) => (Alu::Adc, -1),
        };
        asm!(self.s.buf, [modrm_number(op as u8), shorten_imm, at_width(Width::W64)]; add Rq(d), DWORD imm);
        self.put(dst, d);
    }

    /// `cmp [m], imm`, or `test`, in the size of the memory operand.
    fn compare_memory(&mut self, size: Size, m: Memory, test: bool, imm: i32) {
        let cmp = Alu::Cmp as u8;
        match (size, test) {
            (Size::B, false) => mem!(self.s.buf, m, 1; cmp BYTE [rax], BYTE low_byte(imm.into())),
            (Size::B | Size::H, true) => mem!(self.s.buf, m, 1; test BYTE [rax], BYTE low_byte(imm.into())),
            (Size::H, false) => mem!(self.s.buf, m, 2; cmp WORD [rax], WORD low_half(imm.into())),
            (Size::W, false) => asm!(
                self.s.buf, [memory(m, 4), modrm_number(cmp), shorten_imm, at_width(Width::W32)]; add QWORD [rax], DWORD imm
            ),
            (Size::DW, false) => asm!(
                self.s.buf, [memory(m, 4), modrm_number(cmp), shorten_imm, at_width(Width::W64)]; add QWORD [rax], DWORD imm
            ),
            (Size::W, true) => asm!(self.s.buf, [memory(m, 4), at_width(Width::W32)]; test QWORD [rax], DWORD imm),
            (Size::DW, true) => asm!(self.s.buf, [memory(m, 4), at_width(Width::W64)]; test QWORD [rax], DWORD imm),
        }
    }

    /// `test a, imm` for its zero flag only, at the smallest width that covers the mask.
    fn test_imm(&mut self, width: Width, a: Gpr, imm: i64) {
        let bits = match width {
            Width::W32 => u64::from(low_word(imm) as u32),
            Width::W64 => imm as u64,
        };
        match (u8::try_from(bits), u32::try_from(bits), i32::try_from(imm)) {
            (Ok(bits), _, _) if a == Rax => reg!(self.s.buf; test al, bits as i8),
            (Ok(bits), _, _) => byte!(self.s.buf, a; test Rb(a), BYTE bits as i8),
            (_, Ok(bits), _) if a == Rax => reg!(self.s.buf; test eax, DWORD bits as i32),
            (_, Ok(bits), _) => reg!(self.s.buf; test Rd(a), DWORD bits as i32),
            (_, _, Ok(imm)) if a == Rax => reg!(self.s.buf; test rax, DWORD imm),
            (_, _, Ok(imm)) => reg!(self.s.buf; test Rq(a), DWORD imm),
            (Err(_), Err(_), Err(_)) => {
                self.load_imm(SCRATCH2, bits);
                self.test(width, a, SCRATCH2);
            }
        }
    }

    /// A selection that is always made: a comparison and a `cmov`, which no predictor decides.
    pub(crate) fn confine(&mut self, op: &Op, a: VReg, limit: Val, dst: VReg, yes: VReg, no: VReg) {
        let comparison = Comparison { width: Width::W64, cond: Cond::Lt, a, b: limit };
        self.select::<false>(op, comparison, dst, yes, no);
    }

    pub(crate) fn select<const FUSES: bool>(
        &mut self,
        op: &Op,
        comparison: Comparison,
        dst: VReg,
        yes: VReg,
        no: VReg,
    ) {
        if FUSES && let Some(carried) = self.held.and_then(|maker| carried(&maker, op)) {
            self.held = None;
            return self.select_carried(comparison.width, carried, dst);
        }
        let plain = self.held.is_none();
        let cc = self.compare::<true>(comparison);
        // From here to the cmov only moves: they leave the flags alone.
        let d = self.target(dst);
        let yes = self.get(yes, SCRATCH2);
        if d == yes {
            let no = self.get(no, SCRATCH);
            cmov(&mut self.s.buf, cc.not(), d, no);
        } else {
            self.load_into(Width::W64, d, no);
            cmov(&mut self.s.buf, cc, d, yes);
        }
        self.put(dst, d);
        // The next selection may make the same comparison, if its operands are unchanged.
        let changed = comparison.a == dst || comparison.b == Val::Reg(dst);
        self.selected = (plain && !changed).then_some((comparison, self.s.buf.len()));
    }
}
