//! Statements about loops that the verifier proves from a candidate invariant, and about their ends: numbers that move
//! by a step, or by another on one of the ways; ends that are numbers or the packet's; counts that wrap; rounds around
//! rounds.
//!
//! Their numbers are offsets that reach just as far as the memory does, so a bound that is wrong by one shows. Most of
//! them run often, and cost the verifier no more for it.

use super::GLOBAL_VALUE;
use super::emit::{Builder, SIZES, WIDTHS, slot};
use super::{Context, MapId, Role};
use bpf_isa::{AluOp, Cond, Insn, Reg, Size, Src, Width};

impl Builder<'_, '_> {
    /// A loop of one of these kinds.
    pub(super) fn guessed_loop(&mut self) {
        match self.c.below(7) {
            0 => self.moving_loop(),
            1 => self.measured_loop(),
            2 => self.packet_walk(),
            3 => self.around(),
            4 => self.shaped_loop(),
            5 => self.filled(),
            _ => self.related_loop(),
        }
    }

    /// A loop of any shape: up or down, by any step, in either width, compared in any way at its end, left early at
    /// times. Its number is an offset that reaches just as far as the memory does, unless it wraps.
    pub(super) fn shaped_loop(&mut self) {
        if self.busy.numbers[0] || self.rounds >= 8 || self.depth >= 3 {
            return self.arithmetic();
        }
        let start = self.c.below(70) as i32 - 4;
        let end = self.c.below(70) as i32 - 4;
        let step = self.c.pick(&[1, 1, 2, 3, 8, -1, -1, -2]);
        let (width, counts, cond) = (self.c.pick(&WIDTHS), self.c.pick(&WIDTHS), self.c.pick(&Cond::ALL));
        let size = self.c.pick(&SIZES);
        // Simulates the loop.
        let cut = |n: i64| if counts == Width::W32 { i64::from(n as u32) } else { n };
        let (mut n, mut least, mut most, mut rounds) = (cut(start.into()), i64::MAX, i64::MIN, 0);
        loop {
            (least, most, rounds) = (least.min(n), most.max(n), rounds + 1);
            if rounds > 70 {
                return self.arithmetic();
            }
            n = cut(n + i64::from(step));
            if !cond.holds(width, n as u64, i64::from(end) as u64) {
                break;
            }
        }
        let free = i64::from(GLOBAL_VALUE - size.bytes()) - (most - least);
        if free < 0 && counts == Width::W64 {
            return self.arithmetic();
        }
        let wrong = free >= 0 && self.lure(3);
        let off = match wrong {
            true => self.c.pick(&[free + 1, -1]),
            false => i64::from(self.c.below(free.max(0) as u32 + 1)),
        };
        // Only on one of two ways, which never changes: for ever.
        let sometimes = self.lure(6).then(|| self.c.pick(&Cond::ALL));
        let outside = (self.busy, self.rounds);
        self.rounds *= rounds;
        self.cost += 8 * self.rounds;
        self.busy.numbers[0] = true;
        self.push(Insn::Mov { width: counts, dst: Reg::R8, src: Src::Imm(start) });
        let head = self.code.len();
        if rounds < 8 && self.c.one_in(2) {
            self.depth += 1;
            self.statement();
            self.depth -= 1;
        }
        let leave = self.c.one_in(4).then(|| self.number());
        if free >= 0 {
            self.map_value(Reg::R1, MapId::Global, 0);
            self.add(Reg::R1, Reg::R8);
            self.touch(size, Reg::R1, (off - least) as i16, true);
        }
        let add = |b: &mut Self| b.push(Insn::Alu { width: counts, op: AluOp::Add, dst: Reg::R8, src: Src::Imm(step) });
        let rest = |b: &mut Self| {
            match sometimes {
                Some(cond) => b.skip_if(cond, Reg::R9, Src::Imm(7), add),
                None => add(b),
            }
            let off = (head as i64 - b.code.len() as i64 - 1) as i16;
            b.push(Insn::JumpIf { width, cond, dst: Reg::R8, src: Src::Imm(end), off });
        };
        match leave {
            Some(number) => {
                let cond = self.c.pick(&Cond::ALL);
                self.skip_if(cond, number, Src::Imm(7), rest);
            }
            None => rest(self),
        }
        (self.busy, self.rounds) = outside;
    }

    /// A loop with an offset that moves by a step in each round, and by more on one of two paths; another variable
    /// counts the rounds.
    fn moving_loop(&mut self) {
        let Some(i) = self.free_slot(0..4) else { return self.arithmetic() };
        if self.busy.numbers[0] || self.rounds >= 8 || self.depth >= 3 {
            return self.arithmetic();
        }
        let (step, size) = (self.c.pick(&[1, 1, 2, 3, 4, 8]), self.c.pick(&SIZES));
        let extra = self.c.pick(&[0, 1, 4, 7]);
        let wrong = self.lure(3);
        // Bytes that the accesses reach in a safe program, additions on the other path included.
        let reach = |rounds: u32, extra: u32| (rounds - 1) * (step + extra) + size.bytes();
        let counted = if wrong { 0 } else { extra };
        let most = (GLOBAL_VALUE - size.bytes()) / (step + counted) + 1;
        let rounds = 1 + self.c.below(most);
        let free = GLOBAL_VALUE - reach(rounds, counted);
        let off = if wrong && extra == 0 { free + 1 } else { self.c.below(free + 1) };
        let outside = (self.busy, self.rounds);
        self.rounds *= rounds;
        self.cost += 14 * self.rounds;
        self.busy.numbers[0] = true;
        self.busy.slots |= 1 << i;
        self.imm(Reg::R8, 0);
        self.store(Size::DW, Reg::R10, slot(i), Src::Imm(0));
        let head = self.code.len();
        self.map_value(Reg::R1, MapId::Global, 0);
        self.add(Reg::R1, Reg::R8);
        self.touch(size, Reg::R1, off as i16, true);
        self.alu(AluOp::Add, Reg::R8, Src::Imm(step as i32));
        if extra > 0 {
            let number = if self.c.one_in(2) { Reg::R9 } else { Reg::R0 };
            if number == Reg::R0 {
                self.unknown(Reg::R0);
            }
            let (cond, than) = (self.c.pick(&Cond::ALL), self.small_imm());
            self.skip_if(cond, number, Src::Imm(than), |b| b.alu(AluOp::Add, Reg::R8, Src::Imm(extra as i32)));
        }
        self.load(Size::DW, Reg::R2, Reg::R10, slot(i));
        self.alu(AluOp::Add, Reg::R2, Src::Imm(1));
        self.store(Size::DW, Reg::R10, slot(i), Src::Reg(Reg::R2));
        let cond = self.c.pick(&[Cond::Lt, Cond::Ne, Cond::SLt]);
        self.back(head, cond, Reg::R2, Src::Imm(rounds as i32));
        (self.busy, self.rounds) = outside;
    }

    /// A loop up to an unknown number, compared at its top: a counter below the number is below its greatest value.
    fn measured_loop(&mut self) {
        if self.busy.numbers != [false; 2] || self.rounds >= 8 || self.depth >= 3 {
            return self.arithmetic();
        }
        let (mask, size) = (self.c.pick(&[1, 3, 7, 15, 31]), self.c.pick(&SIZES));
        // To leave: with the number in hand, or one later.
        let (cond, most) =
            self.c.pick(&[(Cond::Ge, mask - 1), (Cond::Gt, mask), (Cond::SGe, mask - 1), (Cond::SGt, mask)]);
        let step = self.c.pick(&[1, 1, 1, 2]);
        let free = GLOBAL_VALUE - size.bytes() - most;
        let off = if self.lure(3) { free + 1 } else { self.c.pick(&[free, 0]) };
        let outside = (self.busy, self.rounds);
        self.rounds *= mask + 1;
        self.cost += 10 * self.rounds;
        self.busy.numbers = [true; 2];
        self.alu(AluOp::And, Reg::R9, Src::Imm(mask as i32));
        self.imm(Reg::R8, 0);
        let head = self.code.len();
        self.skip_if(cond, Reg::R8, Src::Reg(Reg::R9), |b| {
            b.map_value(Reg::R1, MapId::Global, 0);
            b.add(Reg::R1, Reg::R8);
            b.touch(size, Reg::R1, off as i16, true);
            b.alu(AluOp::Add, Reg::R8, Src::Imm(step));
            let off = (head as i64 - b.code.len() as i64 - 1) as i32;
            b.push(Insn::Jump { off, wide: false });
        });
        (self.busy, self.rounds) = outside;
    }

    /// A pointer that walks over the packet until the end is near.
    fn packet_walk(&mut self) {
        if !self.has_ctx() || (self.context == Context::Raw && matches!(self.role, Role::Global { .. })) {
            return self.arithmetic();
        }
        if self.rounds >= 4 || self.depth >= 3 {
            return self.arithmetic();
        }
        let (step, size) = (self.c.pick(&[1, 1, 2, 4]), self.c.pick(&SIZES));
        let wrong = self.lure(3);
        let ahead = size.bytes() as i32 - i32::from(wrong);
        self.cost += 8 * 100 * self.rounds;
        self.packet_ends();
        self.mov(Reg::R3, Reg::R1);
        let head = self.code.len();
        self.address(Reg::R4, Reg::R3, ahead);
        let cond = self.c.pick(&[Cond::Gt, Cond::Gt, Cond::Ge]);
        self.skip_if(cond, Reg::R4, Src::Reg(Reg::R2), |b| {
            b.touch(size, Reg::R3, 0, true);
            b.alu(AluOp::Add, Reg::R3, Src::Imm(step));
            let off = (head as i64 - b.code.len() as i64 - 1) as i32;
            b.push(Insn::Jump { off, wide: false });
        });
    }

    /// A counted loop around something that is bounded by itself: it ends only if its own number moves.
    fn around(&mut self) {
        let Some(i) = self.free_slot(0..4) else { return self.arithmetic() };
        if self.rounds >= 8 || self.depth >= 2 || self.busy.owes || self.busy.locked {
            return self.arithmetic();
        }
        let most = 2 + self.c.below(3);
        let wrong = self.lure(2);
        let outside = (self.busy, self.rounds);
        self.rounds *= most + 1;
        self.busy.slots |= 1 << i;
        self.store(Size::DW, Reg::R10, slot(i), Src::Imm(0));
        let head = self.code.len();
        self.depth += 1;
        match self.c.below(5) {
            0 | 1 => self.may_goto_loop(),
            2 => self.callback(),
            3 => self.call(),
            _ => self.guessed_loop(),
        }
        self.depth -= 1;
        self.load(Size::DW, Reg::R2, Reg::R10, slot(i));
        let add = |b: &mut Self| b.alu(AluOp::Add, Reg::R2, Src::Imm(1));
        match self.c.below(3) {
            _ if !wrong => add(self),
            0 => {}
            1 => self.imm(Reg::R2, 1),
            _ => {
                let (cond, number) = (self.c.pick(&Cond::ALL), self.number());
                self.skip_if(cond, number, Src::Imm(7), add);
            }
        }
        self.store(Size::DW, Reg::R10, slot(i), Src::Reg(Reg::R2));
        self.back(head, Cond::Lt, Reg::R2, Src::Imm(most as i32));
        (self.busy, self.rounds) = outside;
    }
}
