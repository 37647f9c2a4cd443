//! Statements in which a value is bounded indirectly: by a comparison of another number that it is tied to, by a shift
//! there and back, by a difference of two pointers, or through a slot far down.
//!
//! Whether two paths may be merged before the use depends on how the use needs each of these. Between them therefore
//! lie joins whose paths agree in every number, and differ in the facts that tie the numbers.

use super::emit::{Builder, SIZES, slot};
use super::statements::Place;
use super::{Context, GLOBAL_VALUE, MapId};
use bpf_isa::{AluOp, Cond, Insn, Reg, Size, Src, Width};

/// Slots below this offset are deeper than the kernel's frames go.
const DEEP: i16 = -512;

impl Builder<'_, '_> {
    /// Emits one of the statements about needs.
    pub(super) fn needing(&mut self) {
        match self.c.below(6) {
            0..=2 => self.bounded_by_another(),
            3 => self.halves(),
            _ => self.remaining(),
        }
    }

    /// A slot deeper than others.
    pub(super) fn deep_slot(&mut self) -> i16 {
        DEEP - 8 * (1 + self.c.below(40) as i16)
    }

    /// A number that is bounded by a comparison of another, which is the same or a distance apart; on one of two ways,
    /// if it is wrong, it is any other.
    fn bounded_by_another(&mut self) {
        if self.busy.numbers != [false; 2] {
            return self.arithmetic();
        }
        let (used, compared) = if self.c.one_in(2) { (Reg::R8, Reg::R9) } else { (Reg::R9, Reg::R8) };
        let size = self.c.pick(&SIZES);
        let most = (GLOBAL_VALUE - size.bytes()) as i32;
        let apart = self.c.pick(&[0, 0, 0, 1, 7]);
        // In its register, or in a slot: of this function's numbers, or far down.
        let own = if self.c.one_in(2) { self.free_slot(0..4) } else { None };
        let at = match own {
            Some(i) => Some(slot(i)),
            None => self.c.one_in(3).then(|| self.deep_slot()),
        };
        let wrong = self.lure(2);
        self.unknown(used);
        if apart > 0 {
            // Or the sum may wrap.
            self.alu(AluOp::And, used, Src::Imm(0xffff));
        }
        if let Some(at) = at {
            self.store(Size::DW, Reg::R10, at, Src::Reg(used));
        }
        let tie = |b: &mut Self| {
            match at {
                Some(at) if b.c.one_in(2) => b.load(Size::DW, compared, Reg::R10, at),
                Some(_) | None => b.mov(compared, used),
            }
            b.alu(AluOp::Add, compared, Src::Imm(apart));
        };
        let other = |b: &mut Self| {
            b.unknown(compared);
            if apart > 0 {
                b.alu(AluOp::And, compared, Src::Imm(0xffff));
                b.alu(AluOp::Add, compared, Src::Imm(apart));
            }
        };
        match (wrong, self.c.one_in(2)) {
            (false, _) => self.either(tie, tie),
            (true, false) => self.either(tie, other),
            (true, true) => self.either(other, tie),
        }
        if at.is_some() && self.c.one_in(2) {
            // Only the slot has it.
            self.unknown(used);
        }
        self.gap_with(|busy| {
            busy.numbers = [true; 2];
            busy.slots |= own.map_or(0, |i| 1 << i);
        });
        self.skip_if(Cond::Gt, compared, Src::Imm(most + apart), |b| {
            match at {
                Some(at) => b.load(Size::DW, Reg::R2, Reg::R10, at),
                None => b.mov(Reg::R2, used),
            }
            b.map_value(Reg::R1, MapId::Global, 0);
            b.add(Reg::R1, Reg::R2);
            b.touch(size, Reg::R1, 0, true);
        });
    }

    /// A cast to 32 bits by shifts, with a join between them; if it is wrong, a comparison of the lower half without
    /// one.
    fn halves(&mut self) {
        let (n, reg) = if self.c.one_in(2) { (0, Reg::R8) } else { (1, Reg::R9) };
        if self.busy.numbers[n] {
            return self.arithmetic();
        }
        let size = self.c.pick(&SIZES);
        let most = (GLOBAL_VALUE - size.bytes()) as i32;
        let wrong = self.lure(2);
        let small = self.c.below(40) as i32;
        self.unknown(reg);
        let (shift, back) = self.c.pick(&[(32, AluOp::Rsh), (32, AluOp::Rsh), (32, AluOp::Arsh), (48, AluOp::Rsh)]);
        let up = |b: &mut Self| b.alu(AluOp::Lsh, reg, Src::Imm(shift));
        let high = |b: &mut Self| {
            // Nothing of it is left by the shifts.
            b.alu(AluOp::Lsh, reg, Src::Imm(shift));
            b.alu(AluOp::Add, reg, Src::Imm(small));
        };
        match (wrong, self.c.one_in(2)) {
            (false, _) => up(self),
            (true, false) => self.either(up, high),
            (true, true) => self.either(high, up),
        }
        self.gap_with(|busy| busy.numbers[n] = true);
        let (cond, dst, src) = (self.c.pick(&Cond::ALL), self.number(), self.src());
        self.skip_if(cond, dst, src, |b| b.unknown(Reg::R3));
        self.alu(back, reg, Src::Imm(shift));
        let access = |b: &mut Self| {
            b.map_value(Reg::R1, MapId::Global, 0);
            b.add(Reg::R1, reg);
            b.touch(size, Reg::R1, 0, true);
        };
        let src = Src::Imm(most);
        if wrong && self.c.one_in(2) {
            self.skip(|off| Insn::JumpIf { width: Width::W32, cond: Cond::Gt, dst: reg, src, off }, access);
        } else {
            self.skip_if(Cond::Gt, reg, src, access);
        }
    }

    /// Bytes of the packet from an unknown offset on, behind a comparison of how many are left: a difference of two
    /// pointers, which is negative where the offset is beyond the end.
    fn remaining(&mut self) {
        if !self.has_ctx() || self.context == Context::Raw {
            return self.arithmetic();
        }
        let (room, mask) = (1 + self.c.below(24), self.c.pick(&[3, 15, 63, 255]));
        self.lens.push(room + self.c.below(4));
        let (number, wrong) = (self.number(), self.lure(2));
        let one_more = u32::from(wrong && self.c.one_in(2));
        let access = |b: &mut Self| b.access(Place { size: room + one_more, writable: true, atomic: false });
        self.packet_ends();
        self.mov(Reg::R3, number);
        self.alu(AluOp::And, Reg::R3, Src::Imm(mask));
        if self.c.one_in(2) {
            // An offset, compared with the length.
            self.mov(Reg::R4, Reg::R2);
            self.alu(AluOp::Sub, Reg::R4, Src::Reg(Reg::R1));
            let room = (room - u32::from(wrong && one_more == 0)) as i32;
            self.alu(AluOp::Add, Reg::R3, Src::Imm(room));
            return self.skip_if(Cond::Gt, Reg::R3, Src::Reg(Reg::R4), |b| {
                b.alu(AluOp::Sub, Reg::R3, Src::Imm(room));
                b.add(Reg::R1, Reg::R3);
                access(b);
            });
        }
        self.add(Reg::R1, Reg::R3);
        let left = |b: &mut Self| {
            b.mov(Reg::R4, Reg::R2);
            b.alu(AluOp::Sub, Reg::R4, Src::Reg(Reg::R1));
            let (cond, least) = b.c.pick(&[(Cond::Lt, 0), (Cond::SLt, 0), (Cond::Le, 1)]);
            b.skip_if(cond, Reg::R4, Src::Imm(room as i32 - least), access);
        };
        if wrong && one_more == 0 {
            // Negative is much, as a number without a sign.
            left(self);
        } else {
            self.skip_if(Cond::Gt, Reg::R1, Src::Reg(Reg::R2), left);
        }
    }
}
