//! Statements about loops and about the packet.

use super::emit::{Builder, LEN_SLOT, POINTERS, SIZES, SLOTS, slot};
use super::statements::Place;
use super::{CTX, Context, GLOBAL_VALUE, MapId, Role};
use bpf_isa::{AluOp, Cond, Insn, Reg, Size, Src};

use bpf_uapi::legacy_load::{SKF_LL_OFF, SKF_NET_OFF};
impl Builder<'_, '_> {
    /// A number that is compared by its distance from a constant, which wraps below that: an access within the window,
    /// or one below it where the window reaches up to the number's greatest value.
    pub(super) fn window(&mut self) {
        // Outside of programs with loops, what is right in it may be refused, too.
        if self.busy.numbers[0] || !self.lure(1) {
            return self.arithmetic();
        }
        let (mask, size) = (self.c.pick(&[7, 15, 31, 63]), self.c.pick(&SIZES));
        let first = 1 + self.c.below(mask);
        let (above, room) = (mask - first + 1, GLOBAL_VALUE - size.bytes());
        let wrong = self.c.one_in(2);
        self.alu(AluOp::And, Reg::R8, Src::Imm(mask as i32));
        self.address(Reg::R2, Reg::R8, -(first as i32));
        let access = |b: &mut Self, off: i32| {
            b.map_value(Reg::R1, MapId::Global, 0);
            b.add(Reg::R1, Reg::R8);
            b.touch(size, Reg::R1, off as i16, true);
        };
        if self.c.one_in(2) {
            let off = room.saturating_sub(first - 1) as i32;
            self.skip_if(Cond::Lt, Reg::R2, Src::Imm((above - u32::from(wrong)) as i32), |b| access(b, off));
        } else {
            let most = 1 + self.c.below(above);
            let off = room as i32 - (most - 1).min(room) as i32 + i32::from(wrong) - first as i32;
            self.skip_if(Cond::Ge, Reg::R2, Src::Imm(most as i32), |b| access(b, off));
        }
    }

    /// A loop over a number in a slot or a register, its bound known or not, whose body may use the number as an
    /// offset.
    pub(super) fn counted_loop(&mut self) {
        if self.rounds >= 32 || self.depth >= 3 {
            return self.arithmetic();
        }
        let most = 2 + self.c.below(4) as i32;
        let in_slot = self.free_slot(0..4).filter(|_| self.c.one_in(2) || self.busy.numbers[0]);
        if in_slot.is_none() && self.busy.numbers[0] {
            return self.arithmetic();
        }
        let unknown = self.c.one_in(3) && !self.busy.numbers[1];
        let outside = (self.busy, self.rounds);
        if unknown {
            let number = self.number();
            if number != Reg::R9 {
                self.mov(Reg::R9, number);
            }
            self.alu(AluOp::And, Reg::R9, Src::Imm(3));
            self.busy.numbers[1] = true;
        }
        match in_slot {
            Some(i) => {
                self.store(Size::DW, Reg::R10, slot(i), Src::Imm(0));
                self.busy.slots |= 1 << i;
            }
            None => {
                self.imm(Reg::R8, 0);
                self.busy.numbers[0] = true;
            }
        }
        self.rounds *= most as u32 + 1;
        let head = self.code.len();
        self.depth += 1;
        for _ in 0..self.c.below(3) {
            self.statement();
        }
        self.depth -= 1;
        let count = |b: &mut Self| match in_slot {
            Some(i) => {
                b.load(Size::DW, Reg::R2, Reg::R10, slot(i));
                Reg::R2
            }
            None => Reg::R8,
        };
        // A walk over the slots, an element a round.
        if self.c.one_in(2) && self.busy.slots & 0xf0 == 0 {
            let r = count(self);
            let (number, wrong) = (self.number(), self.lure(4));
            self.mov(Reg::R3, r);
            let step = if wrong { 5 } else { 3 };
            self.alu(AluOp::Lsh, Reg::R3, Src::Imm(step));
            self.address(Reg::R1, Reg::R10, slot(SLOTS - 1).into());
            self.add(Reg::R1, Reg::R3);
            // At most 4 below: the last four numbers, or all eight.
            if most <= 4 && self.busy.slots & 0xf0 == 0 {
                self.store(Size::DW, Reg::R1, 0, Src::Reg(number));
            } else {
                let dst = self.target();
                self.load(Size::DW, dst, Reg::R1, 0);
            }
        }
        let r = count(self);
        let step = i32::from(!self.lure(12));
        self.alu(AluOp::Add, r, Src::Imm(step));
        if let Some(i) = in_slot {
            self.store(Size::DW, Reg::R10, slot(i), Src::Reg(r));
        }
        let end = if unknown { Src::Reg(Reg::R9) } else { Src::Imm(most) };
        let cond = self.c.pick(&[Cond::Lt, Cond::Lt, Cond::SLt]);
        self.back(head, cond, r, end);
        (self.busy, self.rounds) = outside;
    }

    /// A loop that only may_goto bounds for the verifier; a number ends it soon.
    pub(super) fn may_goto_loop(&mut self) {
        let Some(i) = self.free_slot(0..4) else { return self.arithmetic() };
        if self.rounds >= 32 || self.depth >= 3 || self.busy.numbers[1] {
            return self.arithmetic();
        }
        self.store(Size::DW, Reg::R10, slot(i), Src::Imm(0));
        let number = self.number();
        self.mov(Reg::R9, number);
        self.alu(AluOp::And, Reg::R9, Src::Imm(3));
        let outside = (self.busy, self.rounds);
        self.rounds *= 5;
        self.busy.slots |= 1 << i;
        self.busy.numbers[1] = true;
        let head = self.code.len();
        self.skip(
            |off| Insn::MayGoto { off },
            |b| {
                b.depth += 1;
                for _ in 0..1 + b.c.below(2) {
                    b.statement();
                }
                b.depth -= 1;
                // A variable that rounds change is an offset only after it was bounded.
                b.load(Size::DW, Reg::R2, Reg::R10, slot(i));
                if b.c.one_in(2) {
                    let wrong = b.lure(2);
                    b.map_value(Reg::R1, MapId::Global, 0);
                    if !wrong {
                        b.alu(AluOp::And, Reg::R2, Src::Imm(31));
                    }
                    b.add(Reg::R1, Reg::R2);
                    b.touch(Size::B, Reg::R1, 0, true);
                    b.load(Size::DW, Reg::R2, Reg::R10, slot(i));
                }
                b.alu(AluOp::Add, Reg::R2, Src::Imm(1));
                b.store(Size::DW, Reg::R10, slot(i), Src::Reg(Reg::R2));
                b.back(head, Cond::Le, Reg::R2, Src::Reg(Reg::R9));
            },
        );
        (self.busy, self.rounds) = outside;
    }

    /// LD_ABS or LD_IND: out of range it returns from the function.
    pub(super) fn legacy_load(&mut self) {
        if self.context == Context::Xdp || !self.has_ctx() || self.busy.owes {
            return self.arithmetic();
        }
        let size = self.c.pick(&[Size::B, Size::H, Size::W]);
        let at = if self.c.one_in(4) { self.c.below(80) } else { self.c.below(4) } as i32;
        // Behind a header, or where offsets go from one base to the next.
        let header = self.c.one_in(4);
        let imm =
            if header { at - 4 + self.c.pick(&[SKF_LL_OFF, SKF_LL_OFF + 4, SKF_NET_OFF, SKF_NET_OFF + 4]) } else { at };
        if self.c.one_in(3) {
            let src = self.number();
            self.push(Insn::LoadInd { size, src, imm });
        } else {
            self.lens.push(at as u32 + size.bytes());
            self.push(Insn::LoadAbs { size, imm });
        }
    }

    /// The packet's start in r1 and its end in r2.
    pub(super) fn packet_ends(&mut self) {
        match self.context {
            Context::Raw => {
                self.mov(Reg::R1, CTX);
                self.mov(Reg::R2, CTX);
                self.load(Size::DW, Reg::R3, Reg::R10, LEN_SLOT);
                self.add(Reg::R2, Reg::R3);
            }
            Context::Xdp => {
                self.load(Size::W, Reg::R1, CTX, 0);
                self.load(Size::W, Reg::R2, CTX, 4);
            }
            Context::Skb => {
                self.load(Size::W, Reg::R1, CTX, 76);
                self.load(Size::W, Reg::R2, CTX, 80);
            }
        }
    }

    /// Bytes of the packet, behind a comparison with its end.
    pub(super) fn packet(&mut self) {
        // A raw buffer's length is the second argument of the program: global functions do not have it.
        if !self.has_ctx() || (self.context == Context::Raw && matches!(self.role, Role::Global { .. })) {
            return self.arithmetic();
        }
        let most = if self.c.one_in(3) { 60 } else { 16 };
        let room = 1 + self.c.below(most);
        self.lens.push(room);
        let pointer = if self.c.one_in(2) { self.free_pointer() } else { None };
        let number = self.number();
        let variable = self.c.one_in(3).then(|| self.c.pick(&[3, 15, 63, 255]));
        let meta = self.context != Context::Raw && self.c.one_in(8);
        if meta {
            // The metadata end where the packet starts.
            self.load(Size::W, Reg::R2, CTX, if self.context == Context::Xdp { 0 } else { 76 });
            self.load(Size::W, Reg::R1, CTX, if self.context == Context::Xdp { 8 } else { 140 });
        } else {
            self.packet_ends();
        }
        if let Some(mask) = variable {
            self.mov(Reg::R3, number);
            self.alu(AluOp::And, Reg::R3, Src::Imm(mask));
            self.add(Reg::R1, Reg::R3);
        }
        self.address(Reg::R4, Reg::R1, room as i32);
        let (cond, a, b) = match self.c.below(4) {
            0 | 1 => (Cond::Gt, Reg::R4, Reg::R2),
            2 => (Cond::Lt, Reg::R2, Reg::R4),
            _ => (Cond::Ge, Reg::R4, Reg::R2),
        };
        if self.lure(12) {
            // An access without the comparison: to be refused.
            let size = 1 + self.c.below(2);
            return self.access(Place { size, writable: true, atomic: false });
        }
        let wrong = self.lure(4);
        let (a, b) = if wrong && self.c.one_in(3) { (b, a) } else { (a, b) };
        let one_more = if wrong { 1 + u32::from(self.c.one_in(2)) } else { 0 };
        self.skip_if(cond, a, Src::Reg(b), |g| {
            if let Some(i) = pointer {
                g.store(Size::DW, Reg::R10, POINTERS[i], Src::Reg(Reg::R1));
                let stale = g.lure(2);
                g.gap_with(|busy| {
                    busy.pointers |= 1 << i;
                    busy.packet = !stale;
                });
                if stale && !g.busy.packet {
                    // The packet is moved by a subprogram that calls a helper for it, if the program has such a one.
                    g.call_mover();
                }
                g.load(Size::DW, Reg::R1, Reg::R10, POINTERS[i]);
                if stale && !meta && variable.is_none() && g.c.one_in(2) {
                    // Compared anew with the end that the packet has after the move.
                    g.packet_ends();
                }
            }
            g.access(Place { size: room + one_more, writable: true, atomic: false });
            if let Some(i) = pointer {
                g.store(Size::DW, Reg::R10, POINTERS[i], Src::Imm(0));
            }
        });
        // The slot holds a pointer on one way and a number on the other, unless it was given back.
    }

    /// A packet of a length that was compared, moved by a helper or a function: the facts about its length are gone.
    pub(super) fn stale_packet(&mut self) {
        let Some(i) = self.free_pointer() else { return self.arithmetic() };
        let busy = self.busy;
        if self.context != Context::Xdp || !self.has_ctx() || busy.packet || busy.locked || busy.owes {
            return self.arithmetic();
        }
        // A packet may not get shorter than 14 bytes.
        let room = 15 + self.c.below(40);
        let meant = self.lure(2).then(|| self.c.below(3));
        self.lens.push(room + self.c.below(3));
        self.packet_ends();
        self.address(Reg::R4, Reg::R1, room as i32);
        self.skip_if(Cond::Gt, Reg::R4, Src::Reg(Reg::R2), |b| {
            b.store(Size::DW, Reg::R10, POINTERS[i], Src::Reg(Reg::R1));
            b.busy.pointers |= 1 << i;
            b.call_mover();
            b.busy = busy;
            b.packet_ends();
            let access = |b: &mut Self| b.access(Place { size: room, writable: true, atomic: false });
            match meant {
                // The length from before the move, on the new start: to be refused.
                Some(0) => access(b),
                // The pointer from before the move: to be refused.
                Some(_) => {
                    b.load(Size::DW, Reg::R1, Reg::R10, POINTERS[i]);
                    access(b);
                }
                None => {
                    b.address(Reg::R4, Reg::R1, room as i32);
                    b.skip_if(Cond::Gt, Reg::R4, Src::Reg(Reg::R2), access);
                }
            }
            b.store(Size::DW, Reg::R10, POINTERS[i], Src::Imm(0));
        });
    }

    /// xdp_adjust_head, _meta or _tail.
    pub(super) fn move_packet(&mut self) {
        if self.context != Context::Xdp || !self.has_ctx() || self.busy.packet || self.busy.locked {
            return self.arithmetic();
        }
        self.moves = true;
        let (id, delta) = match self.c.below(3) {
            0 => (44, self.c.below(25) as i32 - 12),
            1 => (54, 4 * (self.c.below(5) as i32 - 2)),
            _ => (65, self.c.below(41) as i32 - 20),
        };
        self.mov(Reg::R1, CTX);
        if self.c.one_in(3) {
            let number = self.number();
            self.mov(Reg::R2, number);
        } else {
            self.imm(Reg::R2, delta);
        }
        self.helper(id);
    }
}
