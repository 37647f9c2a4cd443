//! Statements about objects that functions keep on the program's stack: iterators over numbers, and dynptrs.
//!
//! An object is made, used over gaps and, where it must be, ended; a loop over an iterator carries a number from round
//! to round, and is left in the middle at times. A lure makes one part of that wrong: the end forgotten or done twice,
//! a use after it, a result that may be null taken for an address, a slice kept while the packet moves, an object or
//! its element written.
//!
//! These objects lie below the values, an iterator in 8 bytes and a dynptr in 16, and nothing else is there.

use super::emit::{Builder, POINTERS, VALUES, VALUES_LEN, slot};
use super::statements::Place;
use super::{CTX, Context, GLOBAL_VALUE, MapId, Role};
use bpf_isa::{AluOp, Callee, Cond, Insn, Reg, Size, Src};
use bpf_uapi::Kfunc;

/// Offsets of the iterators.
const ITERATORS: [i16; 3] = [-208, -216, -224];
/// Offsets of the dynptrs.
const DYNPTRS: [i16; 2] = [-240, -256];
/// Bytes of a record behind a dynptr.
const RECORD: u32 = 24;

/// Planted error of a loop over an iterator.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WrongLoop {
    /// The element is used without a check that there is one.
    Unchecked,
    /// The element is written.
    Written,
    /// The element is read beyond its end.
    Beyond,
    /// The iterator is written.
    Overwritten,
    /// A variable that rounds change is an offset without a bound.
    Unbounded,
    /// The iterator is not ended, or not where the loop is left in the middle.
    Unended,
    /// The iterator is used after its end.
    Ended,
}

/// Planted error of a use of a dynptr.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WrongDynptr {
    /// The dynptr is made of more memory than there is.
    Larger,
    /// A slice is used after its memory is gone: the packet has moved, or the record was submitted or discarded.
    Stale,
    /// The record is not submitted, or is submitted twice.
    Unended,
    /// A slice is longer than was asked for.
    Beyond,
    /// A slice is used without a check that there is one.
    Unchecked,
}

/// Kind of memory that a dynptr leads to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memory,
    Record,
    Packet,
}

impl Builder<'_, '_> {
    /// A call of a function of the kernel's: the runtime's oracle gives each program all of them.
    pub(super) fn kfunc(&mut self, kfunc: Kfunc) {
        self.push(Insn::Call(Callee::Host(kfunc as i32)));
    }

    /// A loop over an iterator, or something with a dynptr.
    pub(super) fn local(&mut self) {
        match self.c.below(8) {
            0 => self.made_each_round(),
            1..=3 => self.iterated(),
            _ => self.dynptr(),
        }
    }

    /// A loop that ends one iterator and continues while a second iterator, made anew in each round, has an element.
    /// The second iterator bounds no rounds.
    fn made_each_round(&mut self) {
        let free: Vec<usize> = (0..ITERATORS.len()).filter(|i| self.busy.iterators >> i & 1 == 0).collect();
        let [outer, inner, ..] = free[..] else { return self.arithmetic() };
        if self.rounds >= 8 || self.depth >= 3 {
            return self.arithmetic();
        }
        let iterator = |b: &mut Self, i: usize, kfunc| {
            b.address(Reg::R1, Reg::R10, ITERATORS[i].into());
            b.kfunc(kfunc);
        };
        let new = |b: &mut Self, i: usize, most: i32| {
            b.imm(Reg::R2, 0);
            b.imm(Reg::R3, most);
            iterator(b, i, Kfunc::IterNumNew);
        };
        // Right: each new iterator may have an element, which ends the loop. Wrong: no iterator has one, and the loop
        // does not end.
        let wrong = self.lure(2);
        let (most, ends) = if wrong { (0, Cond::Ne) } else { (self.c.below(4) as i32, Cond::Eq) };
        new(self, outer, most);
        let head = self.code.len();
        iterator(self, outer, Kfunc::IterNumNext);
        self.mov(Reg::R1, Reg::R0);
        self.imm(Reg::R0, 7);
        self.skip_if(ends, Reg::R1, Src::Imm(0), |b| {
            new(b, inner, 10);
            iterator(b, inner, Kfunc::IterNumNext);
            b.imm(Reg::R8, 0);
            b.skip_if(Cond::Eq, Reg::R0, Src::Imm(0), |b| b.imm(Reg::R8, 1));
            iterator(b, inner, Kfunc::IterNumDestroy);
            b.imm(Reg::R0, 7);
            b.skip_if(Cond::Eq, Reg::R8, Src::Imm(0), |b| {
                let off = head as i32 - b.code.len() as i32 - 1;
                b.push(Insn::Jump { off, wide: false });
            });
        });
        iterator(self, outer, Kfunc::IterNumDestroy);
        self.imm(Reg::R0, 7);
    }

    fn iterated(&mut self) {
        let Some(i) = (0..ITERATORS.len()).find(|i| self.busy.iterators >> i & 1 == 0) else {
            return self.arithmetic();
        };
        if self.rounds >= 32 || self.depth >= 3 {
            return self.arithmetic();
        }
        use WrongLoop::{Beyond, Ended, Overwritten, Unbounded, Unchecked, Unended, Written};
        let wrong = match self.lure(2) {
            true => Some(self.c.pick(&[Unchecked, Written, Beyond, Overwritten, Unbounded, Unended, Ended])),
            false => None,
        };
        let at = ITERATORS[i];
        let carried = self.free_slot(0..4);
        if let Some(slot_of) = carried {
            let first = self.c.pick(&[0, 1, 7]);
            self.store(Size::DW, Reg::R10, slot(slot_of), Src::Imm(first));
        }
        self.range();
        self.address(Reg::R1, Reg::R10, at.into());
        self.kfunc(Kfunc::IterNumNew);

        let outside = (self.busy, self.rounds);
        self.busy.iterators |= 1 << i;
        self.busy.owes = true;
        if let Some(slot_of) = carried {
            self.busy.slots |= 1 << slot_of;
        }
        self.rounds *= 6;
        self.depth += 1;
        let head = self.code.len();
        if wrong == Some(Overwritten) {
            let at = at + self.c.pick(&[0, 4]);
            self.store(Size::W, Reg::R10, at, Src::Imm(0));
        }
        self.address(Reg::R1, Reg::R10, at.into());
        self.kfunc(Kfunc::IterNumNext);
        self.mov(Reg::R1, Reg::R0);
        self.imm(Reg::R0, 7);
        let mut left = None;
        if wrong == Some(Unchecked) {
            self.load(Size::W, Reg::R2, Reg::R1, 0);
        }
        self.skip_if(Cond::Eq, Reg::R1, Src::Imm(0), |b| {
            b.element(wrong);
            left = b.round(carried, wrong);
            let off = head as i32 - b.code.len() as i32 - 1;
            b.push(Insn::Jump { off, wide: false });
        });
        self.depth -= 1;
        (self.busy, self.rounds) = outside;

        let land = |b: &mut Self| {
            if let Some((at, cond, dst)) = left {
                let off = (b.code.len() - at - 1) as i16;
                b.code[at] = Insn::JumpIf { width: bpf_isa::Width::W64, cond, dst, src: Src::Imm(1), off };
            }
        };
        if wrong != Some(Unended) {
            land(self);
        }
        if wrong != Some(Unended) || left.is_some() {
            self.address(Reg::R1, Reg::R10, at.into());
            self.kfunc(Kfunc::IterNumDestroy);
        }
        if wrong == Some(Unended) {
            land(self);
        }
        if wrong == Some(Ended) {
            self.address(Reg::R1, Reg::R10, at.into());
            let what = self.c.pick(&[Kfunc::IterNumNext, Kfunc::IterNumDestroy]);
            self.kfunc(what);
            self.imm(Reg::R0, 7);
        }
        if let Some(slot_of) = carried {
            self.load(Size::DW, Reg::R2, Reg::R10, slot(slot_of));
            self.offset(wrong == Some(Unbounded));
        }
    }

    /// r2 and r3 = a range of five numbers at most, perhaps of none.
    fn range(&mut self) {
        let (number, from) = (self.number(), self.c.below(4) as i32 - 2);
        let known = self.c.below(3);
        if known == 0 {
            self.mov(Reg::R2, number);
            self.alu(AluOp::And, Reg::R2, Src::Imm(3));
            self.imm(Reg::R3, 4);
        } else {
            self.imm(Reg::R2, from);
            let most = self.c.below(4) as i32;
            self.imm(Reg::R3, from + 1 + most);
        }
        if known == 1 {
            self.mov(Reg::R3, number);
            self.alu(AluOp::And, Reg::R3, Src::Imm(3));
        }
    }

    /// The element at r1, kept over a gap at times.
    fn element(&mut self, wrong: Option<WrongLoop>) {
        if let Some(i) = self.free_pointer()
            && self.c.one_in(2)
        {
            self.store(Size::DW, Reg::R10, POINTERS[i], Src::Reg(Reg::R1));
            self.gap_with(|busy| busy.pointers |= 1 << i);
            self.load(Size::DW, Reg::R1, Reg::R10, POINTERS[i]);
            self.store(Size::DW, Reg::R10, POINTERS[i], Src::Imm(0));
        }
        if wrong == Some(WrongLoop::Written) {
            self.store(Size::W, Reg::R1, 0, Src::Imm(0));
        }
        if wrong == Some(WrongLoop::Beyond) {
            self.load(Size::DW, Reg::R2, Reg::R1, 0);
        } else if self.c.one_in(3) {
            // As an offset.
            self.load(Size::W, Reg::R2, Reg::R1, 0);
            self.offset(false);
        } else {
            let (dst, sign) = (self.target(), self.c.one_in(2));
            self.push(Insn::Load { size: Size::W, sign, dst, base: Reg::R1, off: 0 });
        }
    }

    /// A byte of the global variable at r2, which may be anything.
    fn offset(&mut self, wrong: bool) {
        self.map_value(Reg::R1, MapId::Global, 0);
        let by_mask = self.c.one_in(2);
        let access = |b: &mut Self| {
            b.add(Reg::R1, Reg::R2);
            b.touch(Size::B, Reg::R1, 0, true);
        };
        if wrong {
            access(self);
        } else if by_mask {
            self.alu(AluOp::And, Reg::R2, Src::Imm(63));
            access(self);
        } else {
            self.skip_if(Cond::Gt, Reg::R2, Src::Imm(GLOBAL_VALUE as i32 - 1), access);
        }
    }

    /// Emits the rest of a round. Returns the instruction that is to become the jump out of the loop, if there is one.
    fn round(&mut self, carried: Option<u32>, wrong: Option<WrongLoop>) -> Option<(usize, Cond, Reg)> {
        let leaves = self.c.one_in(3) || wrong == Some(WrongLoop::Unended);
        let mut left = None;
        for first in [true, false] {
            if self.c.one_in(2) {
                self.statement();
            }
            if first && leaves {
                let (cond, dst) = (self.c.pick(&Cond::ALL), self.number());
                left = Some((self.code.len(), cond, dst));
                self.push(Insn::Exit);
            }
        }
        if let Some(slot_of) = carried {
            let off = slot(slot_of);
            self.load(Size::DW, Reg::R2, Reg::R10, off);
            if self.c.one_in(2) {
                self.offset(wrong == Some(WrongLoop::Unbounded));
                self.load(Size::DW, Reg::R2, Reg::R10, off);
            }
            let by = self.c.pick(&[1, 3, 20]);
            self.alu(AluOp::Add, Reg::R2, Src::Imm(by));
            self.store(Size::DW, Reg::R10, off, Src::Reg(Reg::R2));
        }
        left
    }

    fn dynptr(&mut self) {
        let Some(i) = (0..DYNPTRS.len()).find(|i| self.busy.dynptrs >> i & 1 == 0) else {
            return self.arithmetic();
        };
        let packet = self.context != Context::Raw && self.has_ctx();
        let record = !self.busy.owes && !self.busy.scratch && !matches!(self.role, Role::Global { .. });
        let kind = match self.c.below(4) {
            0 if record => Kind::Record,
            1 | 2 if packet => Kind::Packet,
            _ => Kind::Memory,
        };
        use WrongDynptr::{Beyond, Larger, Stale, Unchecked, Unended};
        let wrong = match self.lure(2) {
            true => Some(self.c.pick(match kind {
                Kind::Memory => &[Larger, Beyond, Unchecked],
                Kind::Record => &[Unended, Stale, Beyond, Unchecked],
                Kind::Packet => &[Stale, Beyond, Unchecked],
            })),
            false => None,
        };
        let at = DYNPTRS[i];
        let outside = self.busy;
        self.make_dynptr(kind, at, wrong == Some(Larger));
        self.busy.dynptrs |= 1 << i;
        self.busy.owes |= kind == Kind::Record;
        self.depth += 1;
        self.gap();
        for _ in 0..self.c.below(3) {
            self.use_dynptr(kind, at);
        }
        let at = self.clone_of(kind, at);
        self.slice(kind, at, wrong);
        self.depth -= 1;
        self.busy = outside;
        if kind == Kind::Record {
            let id = self.c.pick(&[199, 200]);
            let times = match wrong {
                Some(Unended) => 2 * self.c.below(2),
                _ => 1,
            };
            for _ in 0..times {
                self.address(Reg::R1, Reg::R10, DYNPTRS[i].into());
                self.imm(Reg::R2, 0);
                self.helper(id);
            }
            self.imm(Reg::R0, 9);
            if wrong == Some(Stale) {
                self.load(Size::DW, Reg::R1, Reg::R10, POINTERS[0]);
                self.access(Place { size: 8, writable: true, atomic: false });
            }
        }
    }

    fn make_dynptr(&mut self, kind: Kind, at: i16, wrong: bool) {
        match kind {
            Kind::Memory => {
                let from = 8 * self.c.below(4);
                let most = GLOBAL_VALUE - from;
                if self.c.one_in(2) {
                    let number = self.number();
                    self.mov(Reg::R2, number);
                    self.alu(AluOp::And, Reg::R2, Src::Imm(if wrong { 127 } else { 31 }));
                } else {
                    let len = if wrong { most + 1 + self.c.below(32) } else { self.c.below(most + 1) };
                    self.imm(Reg::R2, len as i32);
                }
                self.map_value(Reg::R1, MapId::Global, from);
                self.imm(Reg::R3, 0);
                self.address(Reg::R4, Reg::R10, at.into());
                self.helper(197);
            }
            Kind::Record => {
                self.map(Reg::R1, MapId::Ring);
                self.imm(Reg::R2, RECORD as i32);
                self.imm(Reg::R3, 0);
                self.address(Reg::R4, Reg::R10, at.into());
                self.helper(198);
                // The whole record is written, since its former bytes differ from engine to engine.
                self.copy(at, (true, RECORD, 0));
            }
            Kind::Packet => {
                self.mov(Reg::R1, CTX);
                self.imm(Reg::R2, 0);
                self.address(Reg::R3, Reg::R10, at.into());
                self.kfunc(if self.context == Context::Xdp { Kfunc::DynptrFromXdp } else { Kfunc::DynptrFromSkb });
            }
        }
    }

    /// bpf_dynptr_write, or _read, of so many bytes from an offset, between the object and the values.
    fn copy(&mut self, at: i16, (write, len, offset): (bool, u32, i32)) {
        let values = if write || self.c.one_in(2) { i32::from(VALUES) } else { i32::from(VALUES) - 24 };
        let (object, memory) = (i32::from(at), values);
        if write {
            self.address(Reg::R1, Reg::R10, object);
            self.imm(Reg::R2, offset);
            self.address(Reg::R3, Reg::R10, memory);
            self.imm(Reg::R4, len as i32);
            self.imm(Reg::R5, 0);
            self.helper(202);
        } else {
            self.address(Reg::R1, Reg::R10, memory);
            self.imm(Reg::R2, len as i32);
            self.address(Reg::R3, Reg::R10, object);
            self.imm(Reg::R4, offset);
            self.imm(Reg::R5, 0);
            self.helper(201);
            let dst = self.target();
            self.load(Size::B, dst, Reg::R10, (memory + len as i32 - 1) as i16);
        }
    }

    /// Emits a call that changes or queries the dynptr.
    fn use_dynptr(&mut self, kind: Kind, at: i16) {
        let (number, offset) = (self.number(), self.c.below(20) as i32);
        match self.c.below(5) {
            0 if !self.busy.scratch => {
                let len = 1 + self.c.below(24);
                let write = self.c.one_in(2);
                self.lens.push(offset as u32 + len);
                self.copy(at, (write, len, offset));
            }
            1 => {
                // The start further on, the end nearer or, refused when it runs, before it.
                self.mov(Reg::R3, number);
                self.alu(AluOp::And, Reg::R3, Src::Imm(63));
                self.address(Reg::R1, Reg::R10, at.into());
                self.imm(Reg::R2, offset / 4);
                self.kfunc(Kfunc::DynptrAdjust);
            }
            2 if kind == Kind::Packet && !self.busy.packet => self.move_packet(),
            _ => {
                let ask = self.c.pick(&[Kfunc::DynptrSize, Kfunc::DynptrIsNull, Kfunc::DynptrIsRdonly]);
                self.address(Reg::R1, Reg::R10, at.into());
                self.kfunc(ask);
            }
        }
    }

    /// The object, or a second one of the same memory.
    fn clone_of(&mut self, kind: Kind, at: i16) -> i16 {
        let free = (0..DYNPTRS.len()).find(|i| self.busy.dynptrs >> i & 1 == 0);
        match free {
            Some(i) if kind != Kind::Record && self.c.one_in(3) => {
                self.address(Reg::R1, Reg::R10, at.into());
                self.address(Reg::R2, Reg::R10, DYNPTRS[i].into());
                self.kfunc(Kfunc::DynptrClone);
                DYNPTRS[i]
            }
            _ => at,
        }
    }

    /// Memory of the object, behind a null check, kept over a gap at times.
    fn slice(&mut self, kind: Kind, at: i16, wrong: Option<WrongDynptr>) {
        let stale = wrong == Some(WrongDynptr::Stale);
        let len = if stale { 8 } else { 1 + self.c.below(VALUES_LEN / 2) };
        let offset = if self.c.one_in(2) { self.c.below(8) } else { self.c.below(60) };
        self.lens.push(offset + len);
        let writable = if kind == Kind::Packet || self.c.one_in(3) {
            self.address(Reg::R1, Reg::R10, at.into());
            self.imm(Reg::R2, offset as i32);
            self.imm(Reg::R3, 0);
            self.imm(Reg::R4, len as i32);
            let writable = self.c.one_in(2);
            self.kfunc(if writable { Kfunc::DynptrSliceRdwr } else { Kfunc::DynptrSlice });
            writable
        } else {
            self.address(Reg::R1, Reg::R10, at.into());
            self.imm(Reg::R2, offset as i32);
            self.imm(Reg::R3, len as i32);
            self.helper(203);
            true
        };
        let size = if wrong == Some(WrongDynptr::Beyond) { len + 8 } else { len };
        let place = Place { size, writable, atomic: false };
        self.mov(Reg::R1, Reg::R0);
        self.imm(Reg::R0, 8);
        if wrong == Some(WrongDynptr::Unchecked) {
            return self.access(place);
        }
        // Where the record is given back, a pointer to it is looked for in the first slot.
        let kept = match stale {
            true => Some(0).filter(|i| self.busy.pointers >> i & 1 == 0),
            false => self.free_pointer().filter(|_| self.c.one_in(2)),
        };
        self.skip_if(Cond::Eq, Reg::R1, Src::Imm(0), |b| {
            if let Some(i) = kept {
                b.store(Size::DW, Reg::R10, POINTERS[i], Src::Reg(Reg::R1));
                b.gap_with(|busy| {
                    busy.pointers |= 1 << i;
                    busy.packet |= kind == Kind::Packet;
                });
                if stale && kind == Kind::Packet && !b.busy.packet {
                    b.call_mover();
                }
                b.load(Size::DW, Reg::R1, Reg::R10, POINTERS[i]);
            }
            b.access(place);
            if let Some(i) = kept
                && !(stale && kind == Kind::Record)
            {
                b.store(Size::DW, Reg::R10, POINTERS[i], Src::Imm(0));
            }
        });
    }
}
