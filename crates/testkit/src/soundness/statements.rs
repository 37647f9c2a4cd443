//! Statements about numbers, slots, memory and loops.

use super::emit::{Builder, CTX_SLOT, KEY, LEN_SLOT, POINTERS, SIZES, SLOTS, VALUES, VALUES_LEN, WIDTHS, slot};
use super::{AREA, ARRAY_VALUE, CONSTANTS, CTX, Context, GLOBAL_VALUE, MapId, Role};
use bpf_isa::{AluOp, AtomicOp, ByteOrder, Cond, EndWidth, Insn, Reg, Size, Src, SxWidth, Width};

/// Memory that a statement is about: its address is in r1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Bytes of it.
    pub(super) size: u32,
    pub(super) writable: bool,
    /// Aligned to 8 bytes, and open to atomics.
    pub(super) atomic: bool,
}

impl Place {
    pub(super) fn memory(size: u32) -> Place {
        Place { size, writable: true, atomic: true }
    }
}

impl Builder<'_, '_> {
    pub(super) fn statement(&mut self) {
        // A function gets too long, or a run: only what is short.
        if self.code.len() > 260 || self.depth >= 5 {
            return self.arithmetic();
        }
        if self.owning && self.c.one_in(2) {
            return self.owning();
        }
        let call_free = self.busy.locked;
        if self.role != Role::Main && self.c.one_in(6) {
            return self.given();
        }
        match self.c.below(36) {
            0..=2 => self.arithmetic(),
            3 | 4 => self.slots(),
            5 | 6 => self.branch(),
            7..=10 => self.carried(),
            11 => self.own_memory(),
            12 => self.pointer(),
            13 if self.c.one_in(3) => self.half_fresh(),
            13 => self.half_written(),
            14 => self.counted_loop(),
            15 => self.guessed_loop(),
            _ if call_free => self.arithmetic(),
            16 => self.legacy_load(),
            17 | 18 => self.packet(),
            19 => self.looked_up(),
            20 => self.nested_map(),
            21 => self.callback(),
            22 => self.call(),
            23 => self.update(),
            24 => self.move_packet(),
            25 => self.may_goto_loop(),
            26 => self.given(),
            27 => self.tied(),
            29 => self.window(),
            30 | 31 => self.needing(),
            32..=34 => self.local(),
            28 if self.context == Context::Xdp => self.stale_packet(),
            28 => self.guessed_loop(),
            _ => self.rare(),
        }
    }

    pub(super) fn arithmetic(&mut self) {
        let (width, dst, src) = (self.c.pick(&WIDTHS), self.target(), self.number());
        let insn = match self.c.below(8) {
            0..=3 => {
                let op = self.c.pick(&AluOp::ALL);
                let bits = if width == Width::W32 { 32 } else { 64 };
                let src = match (op, self.src()) {
                    (AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, Src::Imm(i)) => Src::Imm(i.rem_euclid(bits)),
                    (AluOp::Div | AluOp::SDiv | AluOp::Mod | AluOp::SMod, Src::Imm(0)) => Src::Imm(3),
                    (_, src) => src,
                };
                Insn::Alu { width, op, dst, src }
            }
            4 | 5 => Insn::Mov { width, dst, src: self.src() },
            6 => {
                let from = self.c.pick(&[SxWidth::S8, SxWidth::S16, SxWidth::S32]);
                let width = if from == SxWidth::S32 { Width::W64 } else { width };
                Insn::MovSx { width, dst, src, from }
            }
            _ => {
                let width = self.c.pick(&[EndWidth::B16, EndWidth::B32, EndWidth::B64]);
                Insn::End { order: self.c.pick(&[ByteOrder::ToLe, ByteOrder::ToBe, ByteOrder::Swap]), width, dst }
            }
        };
        self.push(insn);
        if self.c.one_in(6) {
            let dst = self.target();
            self.unknown(dst);
        }
    }

    /// A number into a slot, or out of one; atomically at times.
    fn slots(&mut self) {
        let (size, number, dst) = (self.c.pick(&SIZES), self.number(), self.target());
        let Some(i) = self.free_slot(0..SLOTS) else { return self.arithmetic() };
        let within = self.c.below(8 / size.bytes()) * size.bytes();
        let off = slot(i) + within as i16;
        match self.c.below(6) {
            0 | 1 => self.store(size, Reg::R10, off, Src::Reg(number)),
            2 => {
                let imm = self.small_imm();
                self.store(size, Reg::R10, off, Src::Imm(imm));
            }
            3 | 4 => {
                let sign = size != Size::DW && self.c.one_in(3);
                self.push(Insn::Load { size, sign, dst, base: Reg::R10, off });
            }
            _ => self.atomic(Reg::R10, slot(i)),
        }
    }

    /// An atomic operation on the 8 bytes at `base + off`.
    fn atomic(&mut self, base: Reg, off: i16) {
        let (width, dst) = (self.c.pick(&WIDTHS), self.target());
        let fetch = self.c.one_in(2);
        let off = if self.lure(12) { off + 1 + self.c.below(3) as i16 } else { off };
        match self.c.below(8) {
            0 => self.push(Insn::LoadAcquire { size: Size::DW, dst, base, off }),
            1 => {
                let src = self.number();
                self.push(Insn::StoreRelease { size: Size::DW, base, off, src });
            }
            n => {
                let op = match n {
                    2 => AtomicOp::Add { fetch },
                    3 => AtomicOp::Or { fetch },
                    4 => AtomicOp::And { fetch },
                    5 => AtomicOp::Xor { fetch },
                    6 => AtomicOp::Xchg,
                    _ => AtomicOp::CmpXchg,
                };
                self.push(Insn::Atomic { width, op, base, off, src: dst });
            }
        }
    }

    fn branch(&mut self) {
        self.depth += 1;
        if self.c.one_in(2) {
            self.either(Self::statement, Self::statement);
        } else {
            let (width, cond, dst, src) = (self.c.pick(&WIDTHS), self.c.pick(&Cond::ALL), self.number(), self.src());
            self.skip(
                |off| Insn::JumpIf { width, cond, dst, src, off },
                |b| {
                    for _ in 0..1 + b.c.below(2) {
                        b.statement();
                    }
                },
            );
        }
        self.depth -= 1;
    }

    /// Bounds the number in r2 so that r2 + size of an access lies within `size` bytes, and calls `body` where it does.
    fn bounded(&mut self, limit: u32, body: impl FnOnce(&mut Self)) {
        let wrong = self.lure(8);
        let limit = limit as i32;
        let width = if self.c.one_in(4) { Width::W32 } else { Width::W64 };
        match self.c.below(6) {
            0 | 1 => {
                // The greatest mask within; a wrong one has a bit more.
                let ones = 31 - ((limit + 1) as u32).leading_zeros() + u32::from(wrong);
                self.push(Insn::Alu {
                    width,
                    op: AluOp::And,
                    dst: Reg::R2,
                    src: Src::Imm(((1u32 << ones) - 1) as i32),
                });
                body(self);
            }
            2 => {
                let by = Src::Imm(limit + 1 + i32::from(wrong));
                self.push(Insn::Alu { width, op: AluOp::Mod, dst: Reg::R2, src: by });
                body(self);
            }
            3 => {
                // Signed, from both sides, or only from one.
                let limit = Src::Imm(limit);
                self.skip_if(Cond::SGt, Reg::R2, limit, |b| {
                    if wrong { body(b) } else { b.skip_if(Cond::SLt, Reg::R2, Src::Imm(0), body) }
                });
            }
            4 if wrong => {
                // The lower half only.
                let src = Src::Imm(limit);
                self.skip(|off| Insn::JumpIf { width: Width::W32, cond: Cond::Gt, dst: Reg::R2, src, off }, body);
            }
            _ => {
                let cond = if self.c.one_in(2) { (Cond::Gt, 0) } else { (Cond::Ge, 1) };
                let src = Src::Imm(limit + cond.1 + i32::from(wrong));
                self.skip_if(cond.0, Reg::R2, src, body);
            }
        }
    }

    /// Uses the memory at r1.
    pub(super) fn access(&mut self, place: Place) {
        let Place { size: room, writable, atomic } = place;
        if atomic && writable && room >= 8 && self.c.one_in(6) {
            let off = self.c.below(room / 8) * 8;
            return self.atomic(Reg::R1, off as i16);
        }
        let fits: Vec<Size> = SIZES.into_iter().filter(|s| s.bytes() <= room).collect();
        let size = self.c.pick(&fits);
        let limit = room - size.bytes();
        if limit == 0 || self.c.one_in(2) {
            let off = match self.lure(8) {
                true => self.c.pick(&[limit as i16 + 1, limit as i16 + 8, -1, -8]),
                false => self.c.below(limit + 1) as i16,
            };
            return self.touch(size, Reg::R1, off, writable);
        }
        let number = self.number();
        self.mov(Reg::R2, number);
        let ahead = self.c.below(limit.min(4));
        self.bounded(limit - ahead, |b| {
            b.add(Reg::R1, Reg::R2);
            b.touch(size, Reg::R1, ahead as i16, writable);
        });
    }

    /// A load or a store.
    pub(super) fn touch(&mut self, size: Size, base: Reg, off: i16, writable: bool) {
        let (number, dst) = (self.number(), self.target());
        if writable && self.c.one_in(3) {
            let src = if self.c.one_in(2) { Src::Reg(number) } else { Src::Imm(self.small_imm()) };
            self.store(size, base, off, src);
        } else {
            let sign = size != Size::DW && self.c.one_in(4);
            self.push(Insn::Load { size, sign, dst, base, off });
        }
    }

    /// r1 = memory of this function or of its caller that holds numbers.
    fn numbers(&mut self) -> Place {
        // Stores at unknown offsets would take from a statement around this one what it relies on.
        let caller = self.has_area() && self.c.one_in(2);
        let writable = caller || self.busy.slots == 0;
        if caller {
            // The last four numbers.
            self.address(Reg::R1, AREA, i32::from(slot(SLOTS - 1) - LEN_SLOT));
            return Place { size: 32, writable, atomic: true };
        }
        match self.c.below(3) {
            0 if !self.busy.scratch => {
                self.address(Reg::R1, Reg::R10, VALUES.into());
                Place::memory(VALUES_LEN)
            }
            _ => {
                self.address(Reg::R1, Reg::R10, slot(SLOTS - 1).into());
                Place { size: 8 * SLOTS, writable, atomic: true }
            }
        }
    }

    /// Slots, or a global variable, at an offset.
    fn own_memory(&mut self) {
        let place = match self.c.below(4) {
            0 => {
                self.map_value(Reg::R1, MapId::Global, 0);
                Place::memory(GLOBAL_VALUE)
            }
            1 => {
                self.map_value(Reg::R1, MapId::Constants, 0);
                Place { size: CONSTANTS, writable: self.lure(10), atomic: false }
            }
            2 if self.context == Context::Skb && self.has_ctx() => return self.fields(),
            _ => self.numbers(),
        };
        self.access(place);
    }

    /// A field of `struct __sk_buff`.
    fn fields(&mut self) {
        // len, mark, priority, cb[0] .. cb[4], hash; the pointers at 76 and 80 are a lure as numbers.
        let off = if self.lure(20) { 76 } else { self.c.pick(&[0, 8, 32, 48, 52, 56, 60, 64, 68]) };
        let writable = matches!(off, 8 | 32 | 48..=64) || self.lure(20);
        self.touch(Size::W, CTX, off, writable);
    }

    /// A number in a slot or a register, another on each of two ways, used as an offset after a gap: the paths may not
    /// be merged while it is to be used.
    fn carried(&mut self) {
        let wrong = self.lure(3);
        let place = self.c.below(4);
        let (size, limit) = (self.c.pick(&SIZES), if place == 0 { GLOBAL_VALUE } else { 8 * SLOTS });
        let most = limit - size.bytes();
        let (good, other) = (self.c.below(most + 1), self.c.below(most + 1));
        let bad = self.c.pick(&[most + 1, most + 8, most + 128, 4096, 1 << 16]);
        let other = if wrong { bad } else { other };
        let (a, b) = if self.c.one_in(2) { (good, other) } else { (other, good) };
        let (a, b) = (a as i32, b as i32);
        let own = self.free_slot(0..4);
        let theirs = if self.has_area() { self.free_slot(4..SLOTS) } else { None };
        enum Carrier {
            Own(u32),
            Theirs(u32),
            Register(usize),
        }
        let carrier = match (self.c.below(4), own, theirs) {
            (0, _, Some(i)) => Carrier::Theirs(i),
            (1, _, _) if !self.busy.numbers[0] => Carrier::Register(0),
            (2, _, _) if !self.busy.numbers[1] => Carrier::Register(1),
            (_, Some(i), _) => Carrier::Own(i),
            (_, None, _) => return self.arithmetic(),
        };
        // A caller's slots are the other way round.
        let at = |c: &Carrier| match *c {
            Carrier::Own(i) => (Reg::R10, slot(i)),
            Carrier::Theirs(i) => (AREA, slot(i) - LEN_SLOT),
            Carrier::Register(_) => (Reg::R10, 0),
        };
        let (base, off) = at(&carrier);
        // The carrier is a byte at times, if all numbers fit: stores beside it must not change it.
        let width = match self.c.below(4) {
            0 => Size::W,
            1 if good < 256 && (!wrong || bad < 256) => Size::B,
            _ => Size::DW,
        };
        let register = match carrier {
            Carrier::Register(0) => Some(Reg::R8),
            Carrier::Register(_) => Some(Reg::R9),
            Carrier::Own(_) | Carrier::Theirs(_) => None,
        };
        let put = |b: &mut Self, n: i32| match register {
            Some(r) => b.imm(r, n),
            None => b.store(width, base, off, Src::Imm(n)),
        };
        if register.is_some() || self.c.one_in(3) {
            // Written first, and again on one of the ways.
            put(self, a);
            let (cond, dst, src) = (self.c.pick(&Cond::ALL), self.number(), self.src());
            self.skip_if(cond, dst, src, |g| {
                put(g, b);
                if g.c.one_in(3) {
                    g.gap_in_branch();
                }
            });
        } else {
            self.either(|g| put(g, a), |g| put(g, b));
        }
        self.gap_with(|busy| match carrier {
            Carrier::Own(i) | Carrier::Theirs(i) => busy.slots |= 1 << i,
            Carrier::Register(n) => busy.numbers[n] = true,
        });
        if let Carrier::Own(i) = carrier
            && i + 1 < SLOTS
            && self.busy.slots >> (i + 1) & 1 == 0
            && self.c.one_in(2)
        {
            let src = self.src();
            self.store(Size::DW, Reg::R10, slot(i + 1), src);
        }
        match register {
            Some(r) => self.mov(Reg::R2, r),
            None => self.load(width, Reg::R2, base, off),
        }
        if place == 0 {
            self.map_value(Reg::R1, MapId::Global, 0);
        } else {
            self.address(Reg::R1, Reg::R10, slot(SLOTS - 1).into());
        }
        self.add(Reg::R1, Reg::R2);
        let writable = place == 0 || self.busy.slots == 0;
        self.touch(size, Reg::R1, 0, writable);
    }

    /// A statement on one of two ways only.
    fn gap_in_branch(&mut self) {
        if self.depth < 3 {
            let outside = self.busy;
            // Registers and slots that the enclosing statement relies on are not known here, so all are left alone.
            self.busy.slots = 0xff;
            self.busy.numbers = [true; 2];
            self.depth += 1;
            self.statement();
            self.depth -= 1;
            self.busy = outside;
        }
    }

    /// A pointer in a slot, which one on each of two ways at times, used after a gap as far as both allow.
    fn pointer(&mut self) {
        let Some(i) = self.free_pointer() else { return self.arithmetic() };
        let off = POINTERS[i];
        let (first, second) = (self.c.below(4), self.c.below(4));
        let wrong = self.lure(4);
        let a = self.pointer_to(first, off);
        let b = if self.c.one_in(2) {
            let (cond, dst, src) = (self.c.pick(&Cond::ALL), self.number(), self.src());
            let mut b = a;
            self.skip_if(cond, dst, src, |g| b = g.pointer_to(second, off));
            b
        } else {
            a
        };
        self.gap_with(|busy| busy.pointers |= 1 << i);
        let size = if wrong { a.size.max(b.size) + 8 } else { a.size.min(b.size) };
        if wrong && self.c.one_in(3) {
            // Part of the pointer is overwritten.
            let at = self.c.below(8);
            self.store(Size::B, Reg::R10, off + at as i16, Src::Imm(0));
        }
        self.load(Size::DW, Reg::R1, Reg::R10, off);
        self.access(Place { size, writable: a.writable && b.writable, atomic: a.atomic && b.atomic });
        // A number again, for the others.
        self.store(Size::DW, Reg::R10, off, Src::Imm(0));
    }

    /// Stores a pointer, of a kind, in the slot.
    fn pointer_to(&mut self, kind: u32, off: i16) -> Place {
        let place = match kind {
            0 => {
                self.map_value(Reg::R1, MapId::Global, 0);
                Place::memory(GLOBAL_VALUE)
            }
            1 if self.has_area() => {
                self.address(Reg::R1, AREA, i32::from(slot(SLOTS - 1) - LEN_SLOT));
                Place::memory(32)
            }
            2 => {
                self.address(Reg::R1, Reg::R10, slot(SLOTS - 1).into());
                Place { size: 8 * SLOTS, writable: self.busy.slots == 0, atomic: true }
            }
            _ => {
                self.map_value(Reg::R1, MapId::Constants, 0);
                Place { size: CONSTANTS, writable: false, atomic: false }
            }
        };
        self.store(Size::DW, Reg::R10, off, Src::Reg(Reg::R1));
        place
    }

    /// A byte of two slots beyond all others, of which one is written; the other may have been, or hold a pointer.
    fn half_fresh(&mut self) {
        let wrong = self.lure(2);
        let off = VALUES - 8 * (2 + self.c.below(2) as i16);
        let number = self.number();
        let store = |b: &mut Self| {
            if wrong {
                b.address(Reg::R1, Reg::R10, 0);
            }
            b.store(Size::DW, Reg::R10, off, Src::Reg(if wrong { Reg::R1 } else { number }));
        };
        // The verifier walks one of them first.
        match self.c.one_in(2) {
            true => self.either(store, |_| {}),
            false => self.either(|_| {}, store),
        }
        self.depth += 2;
        self.gap();
        self.depth -= 2;
        self.store(Size::DW, Reg::R10, off + 8, Src::Imm(5));
        self.unknown(Reg::R2);
        self.alu(AluOp::And, Reg::R2, Src::Imm(15));
        self.address(Reg::R1, Reg::R10, off.into());
        self.add(Reg::R1, Reg::R2);
        self.load(Size::B, Reg::R2, Reg::R1, 0);
        self.map_value(Reg::R1, MapId::Global, 0);
        self.store(Size::DW, Reg::R1, 0, Src::Reg(Reg::R2));
    }

    /// A slot beyond all others, written on both ways, or only on one.
    fn half_written(&mut self) {
        let wrong = self.lure(2);
        let deep = self.c.one_in(3);
        let off = if deep { self.deep_slot() } else { VALUES - 8 * (1 + self.c.below(3) as i16) };
        let number = self.number();
        if wrong {
            let (cond, dst, src) = (self.c.pick(&Cond::ALL), self.number(), self.src());
            self.skip_if(cond, dst, src, |b| b.store(Size::DW, Reg::R10, off, Src::Reg(number)));
        } else {
            self.either(
                |b| b.store(Size::DW, Reg::R10, off, Src::Reg(number)),
                |b| b.store(Size::DW, Reg::R10, off, Src::Imm(5)),
            );
        }
        self.depth += 2;
        self.gap();
        self.depth -= 2;
        if self.c.one_in(3) {
            // A store somewhere in the three slots; bytes that it misses keep their value.
            self.unknown(Reg::R2);
            self.alu(AluOp::And, Reg::R2, Src::Imm(15));
            self.address(Reg::R1, Reg::R10, if deep { off.into() } else { i32::from(VALUES) - 24 });
            self.add(Reg::R1, Reg::R2);
            let at = self.c.below(9) as i16;
            self.store(Size::B, Reg::R1, at, Src::Imm(9));
        }
        let (dst, size) = (self.target(), self.c.pick(&SIZES));
        self.load(size, dst, Reg::R10, off);
        // The loaded number is stored to a map, so that the engines' results differ if it does.
        self.map_value(Reg::R1, MapId::Global, 0);
        self.store(Size::DW, Reg::R1, 0, Src::Reg(dst));
    }

    /// Two numbers a distance apart, of which one is compared and the other used.
    fn tied(&mut self) {
        let (wrong, size) = (self.lure(2), self.c.pick(&SIZES));
        let (most, apart) = ((GLOBAL_VALUE - size.bytes()) as i32, 1 + self.c.below(9) as i32);
        let number = self.number();
        self.mov(Reg::R2, number);
        self.alu(AluOp::And, Reg::R2, Src::Imm(255));
        self.address(Reg::R3, Reg::R2, apart);
        let (compared, used, limit) = match self.c.one_in(2) {
            true => (Reg::R2, Reg::R3, most - apart),
            false => (Reg::R3, Reg::R2, most + apart),
        };
        self.skip_if(Cond::Gt, compared, Src::Imm(limit + i32::from(wrong)), |b| {
            b.map_value(Reg::R1, MapId::Global, 0);
            b.add(Reg::R1, used);
            b.touch(size, Reg::R1, 0, true);
        });
    }

    /// A number in a slot of the caller that each call changes, used as an offset: the number of the first call implies
    /// nothing about the next.
    fn accumulated(&mut self) {
        let Some(i) = self.free_slot(4..SLOTS) else { return self.arithmetic() };
        let (off, wrong) = (slot(i) - LEN_SLOT, self.lure(2));
        let (by, late) = (self.c.pick(&[1, 3, 8, 60]), self.c.one_in(2));
        self.load(Size::DW, Reg::R2, AREA, off);
        if !wrong && !late {
            self.alu(AluOp::And, Reg::R2, Src::Imm(31));
        } else {
            // Only what the caller put there is in range.
            let limit = Src::Imm(if wrong { 63 + 60 } else { 56 });
            self.skip_if(Cond::Le, Reg::R2, limit, |b| b.imm(Reg::R2, 0));
        }
        self.map_value(Reg::R1, MapId::Global, 0);
        self.add(Reg::R1, Reg::R2);
        self.touch(Size::B, Reg::R1, 0, true);
        self.alu(AluOp::Add, Reg::R2, Src::Imm(by));
        self.store(Size::DW, AREA, off, Src::Reg(Reg::R2));
    }

    /// Accesses the function's arguments: the element of a for_each, the memory of a global function, slots of the
    /// caller.
    fn given(&mut self) {
        match self.role {
            Role::Main | Role::Less => self.own_memory(),
            Role::Static | Role::Loop | Role::ForEach(_) if self.c.one_in(2) => self.accumulated(),
            Role::Static | Role::Loop => {
                let place = self.numbers();
                self.access(place);
            }
            Role::ForEach(map) => {
                if self.c.one_in(3) {
                    self.load(Size::DW, Reg::R1, Reg::R10, POINTERS[1]);
                    let size = if map == MapId::Hash { 8 } else { 4 };
                    let writable = self.lure(6);
                    self.access(Place { size, writable, atomic: false });
                } else {
                    self.load(Size::DW, Reg::R1, Reg::R10, POINTERS[2]);
                    let size = match map {
                        MapId::Hash => super::HASH_VALUE,
                        MapId::Array => ARRAY_VALUE,
                        _ => 16,
                    };
                    self.access(Place::memory(size));
                }
            }
            Role::Global { bytes, .. } => {
                self.mov(Reg::R1, AREA);
                let place = Place { atomic: bytes.is_multiple_of(8), ..Place::memory(bytes) };
                if self.lure(6) {
                    self.access(place);
                } else {
                    self.skip_if(Cond::Eq, Reg::R1, Src::Imm(0), |b| b.access(place));
                }
            }
        }
    }

    /// The key of an array in its slot: known, or not.
    pub(super) fn index(&mut self, entries: u32) {
        match self.c.below(3) {
            0 => {
                let number = self.number();
                self.mov(Reg::R1, number);
                self.alu(AluOp::And, Reg::R1, Src::Imm(7));
                self.store(Size::W, Reg::R10, KEY, Src::Reg(Reg::R1));
            }
            _ => {
                let key = self.c.below(entries + 1);
                self.store(Size::W, Reg::R10, KEY, Src::Imm(key as i32));
            }
        }
    }

    /// Loads the context from its slot, which no statement changes.
    pub(super) fn reload_ctx(&mut self) {
        if self.has_ctx() && !self.busy.packet {
            self.load(Size::DW, CTX, Reg::R10, CTX_SLOT);
        }
    }
}
