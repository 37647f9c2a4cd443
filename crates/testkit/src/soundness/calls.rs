//! Statements about maps, helpers, callbacks and functions.

use super::emit::{Builder, KEY, LEN_SLOT, POINTERS, SLOTS, VALUES, VALUES_LEN, slot};
use super::statements::Place;
use super::{AREA, ARRAY_VALUE, CTX, Context, GLOBAL_VALUE, HASH_VALUE, INNER_VALUE, MapId, Role};
use bpf_isa::{AluOp, Callee, Cond, Imm64, Insn, Reg, Size, Src, Width};

/// Instructions that a run may take, about.
const COST: u32 = super::STEPS / 4;

impl Builder<'_, '_> {
    /// Whether code of this cost may be called so many times from here; if so, the cost is counted.
    pub(super) fn affordable(&mut self, cost: u32, times: u32) -> bool {
        let total = cost.saturating_mul(times).saturating_mul(self.rounds);
        let fits = self.cost.saturating_add(total) <= COST;
        if fits {
            self.cost += total;
        }
        fits
    }

    /// r0 = the element, or null, of a map; the key is written first. The bytes of the value.
    fn lookup(&mut self) -> Place {
        let (map, size) = match self.c.below(5) {
            0 | 1 => (MapId::Array, ARRAY_VALUE),
            2 | 3 => (MapId::Hash, HASH_VALUE),
            _ => (MapId::PerCpu, 16),
        };
        match map {
            MapId::Hash => {
                let number = self.number();
                self.mov(Reg::R1, number);
                self.alu(AluOp::And, Reg::R1, Src::Imm(3));
                self.store(Size::DW, Reg::R10, KEY, Src::Reg(Reg::R1));
            }
            MapId::Array => self.index(4),
            _ => self.index(2),
        }
        self.map(Reg::R1, map);
        self.address(Reg::R2, Reg::R10, KEY.into());
        self.helper(1);
        Place::memory(size)
    }

    /// An element behind a null check, kept in a slot meanwhile or checked through a copy.
    pub(super) fn looked_up(&mut self) {
        if self.busy.scratch {
            return self.arithmetic();
        }
        let place = self.lookup();
        self.or_null(place);
    }

    /// Uses the memory at r0, if it is there.
    fn or_null(&mut self, place: Place) {
        let wrong = self.lure(3);
        match (self.c.below(4), self.free_pointer()) {
            (0, Some(i)) => {
                // The pointer is spilled unchecked; a check of its copy holds for the spilled one, if it was not
                // overwritten in between.
                let off = POINTERS[i];
                self.store(Size::DW, Reg::R10, off, Src::Reg(Reg::R0));
                if self.c.one_in(2) {
                    self.imm(Reg::R0, 0);
                    self.gap_with(|busy| busy.pointers |= 1 << i);
                    self.load(Size::DW, Reg::R0, Reg::R10, off);
                }
                let cond = if wrong { self.c.pick(&[Cond::Ne, Cond::Eq]) } else { Cond::Eq };
                self.mov(Reg::R1, Reg::R0);
                self.imm(Reg::R0, 1);
                self.skip_if(cond, Reg::R1, Src::Imm(0), |b| {
                    if wrong && cond == Cond::Eq {
                        b.store(Size::B, Reg::R10, off + 3, Src::Imm(0));
                    } else {
                        b.gap_with(|busy| busy.pointers |= 1 << i);
                    }
                    b.load(Size::DW, Reg::R1, Reg::R10, off);
                    b.access(place);
                });
                self.store(Size::DW, Reg::R10, off, Src::Imm(0));
            }
            (3, _) if wrong => {
                // Checked on one of two ways only.
                self.mov(Reg::R1, Reg::R0);
                self.imm(Reg::R0, 1);
                let (cond, number, src) = (self.c.pick(&Cond::ALL), self.number(), self.src());
                self.push(Insn::JumpIf { width: Width::W64, cond, dst: number, src, off: 1 });
                self.skip_if(Cond::Eq, Reg::R1, Src::Imm(0), |b| b.access(place));
            }
            (1, _) if wrong => {
                self.mov(Reg::R1, Reg::R0);
                self.imm(Reg::R0, 1);
                self.access(place);
            }
            (1, _) => {
                // Checked the other way round.
                self.mov(Reg::R1, Reg::R0);
                self.imm(Reg::R0, 1);
                self.skip(
                    |off| Insn::JumpIf {
                        width: Width::W64,
                        cond: Cond::Ne,
                        dst: Reg::R1,
                        src: Src::Imm(0),
                        off: off + 1,
                    },
                    |_| {},
                );
                let at = self.code.len();
                self.push(Insn::Exit);
                self.access(place);
                let off = (self.code.len() - at - 1) as i32;
                self.code[at] = Insn::Jump { off, wide: false };
            }
            _ => {
                self.mov(Reg::R1, Reg::R0);
                self.imm(Reg::R0, 1);
                let before = if wrong { self.c.pick(&[1, 8]) } else { 0 };
                if before != 0 {
                    // An or-null pointer that moves before it is checked.
                    self.alu(AluOp::Add, Reg::R1, Src::Imm(before));
                }
                self.skip_if(Cond::Eq, Reg::R1, Src::Imm(0), |b| b.access(place));
            }
        }
    }

    /// A map in a map, and an element of it.
    pub(super) fn nested_map(&mut self) {
        if self.busy.scratch {
            return self.arithmetic();
        }
        let wrong = self.lure(4);
        let outer = self.c.pick(&[MapId::Outer, MapId::Outer, MapId::OuterHash]);
        self.index(1);
        self.map(Reg::R1, outer);
        self.address(Reg::R2, Reg::R10, KEY.into());
        self.helper(1);
        self.mov(Reg::R1, Reg::R0);
        self.imm(Reg::R0, 2);
        let inner = |b: &mut Self| {
            let key = b.c.below(4) as i32;
            b.store(Size::W, Reg::R10, KEY, Src::Imm(key));
            b.address(Reg::R2, Reg::R10, KEY.into());
            b.helper(1);
            let place = Place::memory(if wrong && b.c.one_in(2) { INNER_VALUE + 8 } else { INNER_VALUE });
            b.or_null(place);
        };
        if wrong && self.c.one_in(2) {
            inner(self);
        } else {
            self.skip_if(Cond::Eq, Reg::R1, Src::Imm(0), inner);
        }
    }

    /// bpf_map_update_elem, delete_elem, push, pop, peek.
    pub(super) fn update(&mut self) {
        if self.busy.scratch {
            return self.arithmetic();
        }
        self.address(Reg::R2, Reg::R10, KEY.into());
        match self.c.below(5) {
            0 => {
                self.index(4);
                self.address(Reg::R2, Reg::R10, KEY.into());
                self.map(Reg::R1, MapId::Array);
                self.values(3);
                self.imm(Reg::R4, 0);
                self.helper(2);
            }
            1 | 2 => {
                let number = self.number();
                self.mov(Reg::R1, number);
                self.alu(AluOp::And, Reg::R1, Src::Imm(3));
                self.store(Size::DW, Reg::R10, KEY, Src::Reg(Reg::R1));
                self.map(Reg::R1, MapId::Hash);
                if self.c.one_in(3) {
                    self.helper(3);
                } else {
                    self.values(3);
                    let flags = self.c.below(3) as i32;
                    self.imm(Reg::R4, flags);
                    self.helper(2);
                }
            }
            n => {
                self.map(Reg::R1, MapId::Queue);
                self.values(2);
                if n == 3 {
                    self.imm(Reg::R3, 0);
                    self.helper(87);
                } else {
                    let id = self.c.pick(&[88, 89]);
                    self.helper(id);
                }
            }
        }
    }

    /// The register = a value of up to 48 bytes: on the stack, or a map's.
    fn values(&mut self, arg: usize) {
        let r = Reg::ARGS[arg - 1];
        let wrong = self.lure(10);
        // All values fit into 48 bytes: the greatest is the array's.
        let off = if wrong { -24 } else { VALUES.into() };
        match self.c.below(3) {
            0 if !wrong => self.map_value(r, MapId::Global, 0),
            _ => self.address(r, Reg::R10, off),
        }
    }

    /// r3 (or the argument) = the area of this function's slots, at times that of its caller.
    pub(super) fn area(&mut self, arg: Reg) {
        if self.has_area() && self.busy.slots & 0xf0 == 0 && self.c.one_in(3) {
            self.mov(arg, AREA);
        } else {
            self.address(arg, Reg::R10, LEN_SLOT.into());
        }
    }

    /// The callees of some roles that may be called here.
    pub(super) fn callees(&self, wanted: impl Fn(Role) -> bool) -> Vec<usize> {
        let fits = |i: &usize| {
            let f = &self.callees[*i];
            // A callee changes the numbers it is given, and may move the packet.
            wanted(f.role) && !(f.moves && self.busy.packet)
        };
        (0..self.callees.len()).filter(fits).collect()
    }

    /// bpf_loop or bpf_for_each_map_elem.
    pub(super) fn callback(&mut self) {
        let found = self.callees(|role| matches!(role, Role::Loop | Role::ForEach(_)));
        if found.is_empty() || !self.has_ctx() || self.busy.slots & 0xf0 != 0 || self.busy.owes {
            return self.arithmetic();
        }
        let i = self.c.pick(&found);
        let (role, cost) = (self.callees[i].role, self.callees[i].cost);
        let times = match role {
            Role::Loop => 8,
            _ => 4,
        };
        if !self.affordable(cost, times) {
            return self.arithmetic();
        }
        self.take_over(i);
        // Out of range unless the callback changes it, which it need not be called to do.
        let unchanged = self.lure(6).then(|| 4 + self.c.below(SLOTS - 4));
        if let Some(slot_of) = unchanged {
            self.store(Size::DW, Reg::R10, slot(slot_of), Src::Imm(4096));
        }
        match role {
            Role::ForEach(map) => {
                // The order of a hash's elements is its own affair.
                self.ordered &= map != MapId::Hash;
                self.map(Reg::R1, map);
            }
            _ => {
                let number = self.number();
                self.mov(Reg::R1, number);
                if self.c.one_in(2) {
                    self.alu(AluOp::And, Reg::R1, Src::Imm(7));
                } else {
                    let n = self.c.below(5) as i32;
                    self.imm(Reg::R1, n);
                }
            }
        }
        self.calls.push((self.code.len(), i));
        self.wide(Reg::R2, Imm64::Func(0));
        self.area(Reg::R3);
        self.imm(Reg::R4, 0);
        self.helper(if matches!(role, Role::Loop) { 181 } else { 164 });
        if let Some(slot_of) = unchanged {
            self.load(Size::DW, Reg::R2, Reg::R10, slot(slot_of));
            self.map_value(Reg::R1, MapId::Global, 0);
            self.add(Reg::R1, Reg::R2);
            self.touch(Size::B, Reg::R1, 0, true);
        }
        // The callback may have changed the last four numbers, not the context.
        if self.c.one_in(4) {
            self.reload_ctx();
        }
    }

    /// Applies the effects of a call of callee `i` to this function.
    pub(super) fn take_over(&mut self, i: usize) {
        let f = &self.callees[i];
        self.moves |= f.moves;
        self.maps |= f.maps;
        self.ordered &= f.ordered;
    }

    /// A call that moves the packet: of a function, or of a helper.
    pub(super) fn call_mover(&mut self) {
        let found = self.callees(|role| matches!(role, Role::Static | Role::Global { .. }));
        let movers: Vec<usize> = found.into_iter().filter(|i| self.callees[*i].moves).collect();
        if movers.is_empty() || self.c.one_in(3) {
            return self.move_packet();
        }
        self.call_one_of(&movers);
    }

    /// A static or a global function.
    pub(super) fn call(&mut self) {
        let found = self.callees(|role| matches!(role, Role::Static | Role::Global { .. }));
        self.call_one_of(&found);
    }

    fn call_one_of(&mut self, found: &[usize]) {
        if found.is_empty() || self.busy.slots & 0xf0 != 0 || self.busy.owes {
            return self.arithmetic();
        }
        let i = self.c.pick(found);
        let (role, cost) = (self.callees[i].role, self.callees[i].cost);
        let needs_ctx = matches!(role, Role::Static | Role::Global { context: true, .. });
        if (needs_ctx && !self.has_ctx()) || !self.affordable(cost, 1) {
            return self.arithmetic();
        }
        self.take_over(i);
        let (second, third) = (self.number(), self.number());
        match role {
            Role::Global { bytes, context } => {
                let from = if self.lure(4) { None } else { Some(()) };
                let some = self.c.below(4) as i32;
                match (self.c.below(4), from) {
                    (0, Some(())) => self.map_value(Reg::R1, MapId::Global, 8 * (some as u32 & 1)),
                    (1, Some(())) => self.imm(Reg::R1, 0),
                    (_, Some(())) if bytes <= 32 => {
                        self.address(Reg::R1, Reg::R10, i32::from(slot(SLOTS - 1)));
                    }
                    (_, Some(())) => self.address(Reg::R1, Reg::R10, VALUES.into()),
                    // Over what a statement around relies on; too short, misaligned, or the packet.
                    (3, None) if bytes <= 32 && some & 1 == 0 => self.address(Reg::R1, Reg::R10, slot(3).into()),
                    (0, None) => self.address(Reg::R1, Reg::R10, 4 - bytes as i32),
                    (1, None) => self.address(Reg::R1, Reg::R10, i32::from(VALUES) + 1 + some),
                    (2, None) if self.has_ctx() && self.role == Role::Main => {
                        self.packet_ends();
                        self.address(Reg::R3, Reg::R1, bytes as i32);
                        // Too short a packet: null.
                        self.mov(Reg::R4, Reg::R1);
                        self.imm(Reg::R1, 0);
                        self.skip_if(Cond::Gt, Reg::R3, Src::Reg(Reg::R2), |b| b.mov(Reg::R1, Reg::R4));
                    }
                    (_, None) => self.map_value(Reg::R1, MapId::Global, GLOBAL_VALUE - bytes + 4),
                }
                self.mov(Reg::R2, second);
                if context {
                    self.mov(Reg::R3, CTX);
                }
            }
            _ => {
                self.area(Reg::R1);
                self.mov(Reg::R2, second);
                self.mov(Reg::R3, third);
            }
        }
        self.calls.push((self.code.len(), i));
        self.push(Insn::Call(Callee::Subprog(0)));
    }

    /// Emits a rare statement: records, locks, skb bytes, checksums.
    pub(super) fn rare(&mut self) {
        match self.c.below(5) {
            0 | 1 => self.record(),
            2 => self.locked(),
            3 if self.context == Context::Skb && self.has_ctx() => self.skb_bytes(),
            3 => self.checksum(),
            _ => self.packet_bytes_for_a_helper(),
        }
    }

    /// A ring-buffer record: written whole, used, given back.
    fn record(&mut self) {
        let Some(i) = self.free_pointer() else { return self.arithmetic() };
        if self.busy.owes || matches!(self.role, Role::Global { .. }) {
            return self.arithmetic();
        }
        let wrong = self.lure(2);
        self.map(Reg::R1, MapId::Ring);
        self.imm(Reg::R2, 24);
        self.imm(Reg::R3, 0);
        self.helper(131);
        self.mov(Reg::R1, Reg::R0);
        self.imm(Reg::R0, 3);
        let how = if wrong { 1 + self.c.below(3) } else { 0 };
        self.skip_if(Cond::Eq, Reg::R1, Src::Imm(0), |b| {
            for off in [0, 8, 16] {
                b.store(Size::DW, Reg::R1, off, Src::Imm(7));
            }
            b.store(Size::DW, Reg::R10, POINTERS[i], Src::Reg(Reg::R1));
            b.gap_with(|busy| {
                busy.pointers |= 1 << i;
                busy.owes = true;
            });
            b.load(Size::DW, Reg::R1, Reg::R10, POINTERS[i]);
            b.access(Place::memory(24));
            b.load(Size::DW, Reg::R1, Reg::R10, POINTERS[i]);
            b.imm(Reg::R2, 0);
            let id = b.c.pick(&[132, 133]);
            if how != 1 {
                b.helper(id);
            }
            if how == 2 {
                // Used after it was given back.
                b.load(Size::DW, Reg::R1, Reg::R10, POINTERS[i]);
                b.access(Place::memory(24));
            }
            if how == 3 {
                b.load(Size::DW, Reg::R1, Reg::R10, POINTERS[i]);
                b.imm(Reg::R2, 0);
                b.helper(id);
            }
            b.store(Size::DW, Reg::R10, POINTERS[i], Src::Imm(0));
            b.imm(Reg::R0, 4);
        });
    }

    /// An element's numbers under its lock.
    fn locked(&mut self) {
        if self.busy.scratch || self.busy.owes {
            return self.arithmetic();
        }
        let Some(i) = self.free_pointer() else { return self.arithmetic() };
        let wrong = self.lure(2);
        let how = if wrong { 1 + self.c.below(3) } else { 0 };
        self.index(1);
        self.map(Reg::R1, MapId::Locked);
        self.address(Reg::R2, Reg::R10, KEY.into());
        self.helper(1);
        self.mov(Reg::R1, Reg::R0);
        self.imm(Reg::R0, 5);
        self.skip_if(Cond::Eq, Reg::R1, Src::Imm(0), |b| {
            b.store(Size::DW, Reg::R10, POINTERS[i], Src::Reg(Reg::R1));
            b.alu(AluOp::Add, Reg::R1, Src::Imm(8));
            b.helper(93);
            let outside = b.busy;
            b.busy.locked = true;
            b.busy.pointers |= 1 << i;
            b.gap();
            b.load(Size::DW, Reg::R1, Reg::R10, POINTERS[i]);
            if how == 1 {
                // The lock itself.
                b.store(Size::W, Reg::R1, 8, Src::Imm(0));
            } else {
                let off = b.c.pick(&[0, 16]);
                b.touch(Size::DW, Reg::R1, off, true);
            }
            b.busy = outside;
            b.load(Size::DW, Reg::R1, Reg::R10, POINTERS[i]);
            b.alu(AluOp::Add, Reg::R1, Src::Imm(8));
            if how != 2 {
                b.helper(94);
            }
            if how == 3 {
                b.load(Size::DW, Reg::R1, Reg::R10, POINTERS[i]);
                b.alu(AluOp::Add, Reg::R1, Src::Imm(8));
                b.helper(94);
            }
            b.store(Size::DW, Reg::R10, POINTERS[i], Src::Imm(0));
            b.imm(Reg::R0, 6);
        });
    }

    /// bpf_skb_load_bytes, of a length that may be known, into the values.
    fn skb_bytes(&mut self) {
        if self.busy.scratch {
            return self.arithmetic();
        }
        let wrong = self.lure(2);
        let offset = self.number();
        let length = self.number();
        let store = self.c.one_in(3) && !self.busy.packet;
        self.mov(Reg::R4, length);
        let (mask, add) = if wrong { (63, 1) } else { (31, self.c.below(17) as i32) };
        // Beyond all others nothing is written yet: of a length that varies, only the least is.
        let fresh = !store && self.c.one_in(2);
        let (mask, add, to) = if fresh { (15, 8, VALUES - 24) } else { (mask, add, VALUES) };
        self.alu(AluOp::And, Reg::R4, Src::Imm(mask));
        // At least 1, unless wrong in that.
        self.alu(AluOp::Add, Reg::R4, Src::Imm(if wrong { add } else { add.max(1) }));
        self.address(Reg::R3, Reg::R10, to.into());
        self.mov(Reg::R1, CTX);
        self.mov(Reg::R2, offset);
        if self.c.one_in(2) {
            let n = self.c.below(8) as i32;
            self.imm(Reg::R2, n);
        }
        if store {
            self.imm(Reg::R5, 0);
            self.helper(9);
        } else {
            self.helper(26);
        }
        let dst = self.target();
        let at = if fresh && wrong { 12 } else { 4 };
        self.load(Size::W, dst, Reg::R10, to + at);
    }

    /// bpf_csum_diff over slots; it exists for packet contexts.
    fn checksum(&mut self) {
        if self.context == Context::Raw {
            return self.arithmetic();
        }
        let wrong = self.lure(3);
        let seed = self.number();
        self.address(Reg::R1, Reg::R10, VALUES.into());
        let n = if wrong { 13 * 16 } else { 4 * self.c.below(VALUES_LEN / 4) };
        self.imm(Reg::R2, n as i32);
        self.address(Reg::R3, Reg::R10, i32::from(slot(SLOTS - 1)));
        self.imm(Reg::R4, 32);
        self.mov(Reg::R5, seed);
        self.helper(28);
    }

    /// The packet as a key or a value.
    fn packet_bytes_for_a_helper(&mut self) {
        if !self.has_ctx() || self.role != Role::Main {
            return self.arithmetic();
        }
        let room: u32 = self.c.pick(&[8, 24, 48]);
        let wrong = self.lure(2);
        self.packet_ends();
        self.address(Reg::R4, Reg::R1, (if wrong { room - 1 } else { room }) as i32);
        self.skip_if(Cond::Gt, Reg::R4, Src::Reg(Reg::R2), |b| {
            if room == 8 {
                b.mov(Reg::R2, Reg::R1);
                b.map(Reg::R1, MapId::Hash);
                b.helper(3);
            } else {
                let (map, key) = if room == 24 { (MapId::Hash, 8) } else { (MapId::Array, 4) };
                b.mov(Reg::R3, Reg::R1);
                let size = if key == 8 { Size::DW } else { Size::W };
                let number = b.c.below(4) as i32;
                b.store(size, Reg::R10, KEY, Src::Imm(number));
                b.address(Reg::R2, Reg::R10, KEY.into());
                b.map(Reg::R1, map);
                b.imm(Reg::R4, 0);
                b.helper(2);
            }
        });
    }
}
