//! Statements about objects that the program owns, locks that guard lists and trees of them, and what leaves a function
//! otherwise than by its end: exceptions, and calls by a register.
//!
//! An object lies in a pointer's slot from where it is got to where it is given up, with gaps between; a new object may
//! be null, and lists and trees are accessed under their lock only. Lists, trees and kptrs lie in the values of two
//! arrays with addresses of their own, one with each kind of lock, so that one statement finds the objects that another
//! one has put there; and in objects with locks of their own, which statements in their gaps use.

use super::emit::{Builder, Busy, Function, POINTERS};
use super::{MapId, Role};
use bpf_isa::{AluOp, Callee, Cond, Imm64, Insn, Reg, Size, Src};
use bpf_uapi::Kfunc;

/// Types of objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    /// With a node of each kind, a count of owners and a kptr.
    Node,
    /// Numbers.
    Plain,
    /// With a kptr to another one.
    Chain,
    /// With a list and a tree of nodes, and a spin lock.
    Bin,
    /// A crate: a home with a resilient lock.
    Crate,
}

/// The owner of a lock, a list and a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Home {
    /// A value of this map.
    Value(MapId),
    /// The object whose pointer is in this slot, and its class.
    Object(usize, Class),
}

/// Part of a home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Lock,
    List,
    Tree,
}

impl Part {
    fn offset(self, home: Home) -> u32 {
        match (home, self) {
            (Home::Value(_), Part::Lock) => 0,
            (Home::Value(_), Part::List) => LIST,
            (Home::Value(_), Part::Tree) => TREE,
            (Home::Object(..), Part::Lock) => BIN_LOCK,
            (Home::Object(..), Part::List) => BIN_LIST,
            (Home::Object(..), Part::Tree) => BIN_TREE,
        }
    }
}

/// Offsets in a map's value of its list, its tree, and its pointers to a plain object, a node, and the two objects with
/// locks.
pub(super) const LIST: u32 = 8;
pub(super) const TREE: u32 = 24;
pub(super) const PLAIN: u32 = 40;
pub(super) const NODE: u32 = 48;
pub(super) const BIN: u32 = 56;
pub(super) const CRATE: u32 = 64;
/// Offsets in an object with a lock of the lock, the list and the tree.
pub(super) const BIN_LOCK: u32 = 8;
pub(super) const BIN_LIST: u32 = 16;
pub(super) const BIN_TREE: u32 = 40;
/// Offsets in an object of its nodes.
pub(super) const LIST_NODE: i32 = 8;
pub(super) const TREE_NODE: i32 = 32;

impl Class {
    /// The program's number of the type.
    fn number(self) -> i32 {
        match self {
            Class::Node => 1,
            Class::Plain => 2,
            Class::Chain => 3,
            Class::Bin => 4,
            Class::Crate => 5,
        }
    }

    /// Offsets of its numbers, of 8 bytes each.
    fn numbers(self) -> &'static [i16] {
        match self {
            Class::Node | Class::Chain => &[0],
            Class::Plain => &[0, 8],
            Class::Bin | Class::Crate => &[0, 32, 56],
        }
    }

    /// Offsets at which there is no number.
    fn fields(self) -> &'static [i16] {
        match self {
            Class::Node => &[8, 24, 32, 60, 64, 72, 80],
            Class::Plain => &[16, -8],
            Class::Chain => &[8, 16],
            Class::Bin | Class::Crate => &[8, 16, 24, 40, 48, 64, 12, -8],
        }
    }

    /// The offset of its kptr, and the class that the kptr refers to.
    fn kptr(self) -> Option<(i32, Class)> {
        match self {
            Class::Node => Some((72, Class::Plain)),
            Class::Plain | Class::Bin | Class::Crate => None,
            Class::Chain => Some((8, Class::Chain)),
        }
    }

    /// The one that has this kind of lock.
    fn with_lock(resilient: bool) -> Class {
        if resilient { Class::Crate } else { Class::Bin }
    }

    /// The offset in a map's value of a kptr to the class.
    fn stash(self) -> Option<u32> {
        match self {
            Class::Node => Some(NODE),
            Class::Plain => Some(PLAIN),
            Class::Chain => None,
            Class::Bin => Some(BIN),
            Class::Crate => Some(CRATE),
        }
    }
}

/// Callback that compares the nodes of a tree.
fn less() -> Vec<Insn> {
    let load = |dst| Insn::Load { size: Size::DW, sign: false, dst, base: dst, off: -TREE_NODE as i16 };
    let imm = |imm| Insn::Mov { width: bpf_isa::Width::W64, dst: Reg::R0, src: Src::Imm(imm) };
    let (width, dst, src) = (bpf_isa::Width::W64, Reg::R1, Src::Reg(Reg::R2));
    let less = Insn::JumpIf { width, cond: Cond::Lt, dst, src, off: 1 };
    vec![load(Reg::R1), load(Reg::R2), imm(1), less, imm(0), Insn::Exit]
}

impl Function {
    /// Function that orders trees of objects.
    pub(super) fn less() -> Function {
        let code = less();
        let cost = code.len() as u32;
        let (calls, lens) = (Vec::new(), Vec::new());
        Function { role: Role::Less, code, calls, maps: 0, ordered: true, lens, cost, moves: false }
    }
}

impl Builder<'_, '_> {
    /// Emits one of the statements about owned objects.
    pub(super) fn owning(&mut self) {
        if self.busy.locked {
            return self.arithmetic();
        }
        match self.c.below(10) {
            0..=3 => self.made(),
            4 => self.listed(),
            5 => self.ordered_ones(),
            6 | 7 => self.loaded(),
            8 => self.throws(),
            _ => self.by_register(),
        }
    }

    fn holding(&mut self) -> MapId {
        self.c.pick(&[MapId::Holding, MapId::HoldingResilient])
    }

    /// Lists and trees: those of an object with a lock, where the program owns one, or of a value.
    fn home(&mut self) -> Home {
        match self.busy.bin {
            Some((slot, resilient)) if self.c.one_in(2) => Home::Object(slot, Class::with_lock(resilient)),
            Some(_) | None => Home::Value(self.holding()),
        }
    }

    /// The address of a home's part.
    fn part(&mut self, dst: Reg, home: Home, part: Part) {
        let offset = part.offset(home);
        match home {
            Home::Value(map) => self.map_value(dst, map, offset),
            Home::Object(slot, _) => {
                self.load(Size::DW, dst, Reg::R10, POINTERS[slot]);
                self.alu(AluOp::Add, dst, Src::Imm(offset as i32));
            }
        }
    }

    /// The home whose list or tree is used under the lock of this one: the same, unless it is wrong.
    fn home_under(&mut self, home: Home) -> Home {
        if !self.lure(16) {
            return home;
        }
        match (home, self.busy.bin) {
            (Home::Value(_), Some((slot, resilient))) => Home::Object(slot, Class::with_lock(resilient)),
            (Home::Value(MapId::Holding), None) => Home::Value(MapId::HoldingResilient),
            (Home::Value(_), None) | (Home::Object(..), _) => Home::Value(MapId::Holding),
        }
    }

    /// Drops the object in the slot, or in r0.
    fn drop_object(&mut self, from: Option<usize>) {
        match from {
            Some(i) => self.load(Size::DW, Reg::R1, Reg::R10, POINTERS[i]),
            None => self.mov(Reg::R1, Reg::R0),
        }
        self.imm(Reg::R2, 0);
        self.kfunc(Kfunc::ObjDrop);
    }

    /// A new object, which may be null, into r0.
    fn make(&mut self, class: Class) {
        self.imm(Reg::R1, class.number());
        self.imm(Reg::R2, 0);
        self.kfunc(Kfunc::ObjNew);
    }

    /// If r0 is not null, it is an object that the program owns: uses it, and gives it up.
    fn own(&mut self, i: usize, class: Class, offset: i32) {
        let unchecked = self.lure(12);
        let cond = if unchecked { Cond::Ne } else { Cond::Eq };
        self.mov(Reg::R1, Reg::R0);
        self.imm(Reg::R0, 3);
        self.skip_if(cond, Reg::R1, Src::Imm(0), |b| {
            if offset != 0 {
                b.alu(AluOp::Sub, Reg::R1, Src::Imm(offset));
            }
            b.store(Size::DW, Reg::R10, POINTERS[i], Src::Reg(Reg::R1));
            b.owned(i, class, 0);
            b.imm(Reg::R0, 4);
        });
    }

    /// The program owns what is in the slot, and nothing else of this statement: uses it, and gives it up.
    fn owned(&mut self, i: usize, class: Class, depth: u32) {
        let own = |busy: &mut Busy| {
            busy.pointers |= 1 << i;
            busy.owes = true;
        };
        let outside = self.busy;
        own(&mut self.busy);
        if matches!(class, Class::Bin | Class::Crate) {
            self.busy.bin = Some((i, class == Class::Crate));
        }
        if self.c.one_in(2) {
            self.store_number(i, class);
        }
        self.gap();
        self.use_object(i, class);
        if self.c.one_in(3) {
            self.exchange_inside(i, class);
        }
        if self.c.one_in(3) {
            self.gap();
        }
        self.give_up(i, class, depth);
        self.busy = outside;
        self.store(Size::DW, Reg::R10, POINTERS[i], Src::Imm(0));
    }

    fn store_number(&mut self, i: usize, class: Class) {
        let (off, number) = (self.c.pick(class.numbers()), self.number());
        self.load(Size::DW, Reg::R1, Reg::R10, POINTERS[i]);
        self.store(Size::DW, Reg::R1, off, Src::Reg(number));
    }

    /// A number of the object in the slot.
    fn use_object(&mut self, i: usize, class: Class) {
        let wrong = self.lure(12);
        let off = if wrong { self.c.pick(class.fields()) } else { self.c.pick(class.numbers()) };
        self.load(Size::DW, Reg::R1, Reg::R10, POINTERS[i]);
        self.touch(Size::DW, Reg::R1, off, true);
    }

    /// Puts a new object, or nothing, into the one in the slot, and drops what was there.
    fn exchange_inside(&mut self, i: usize, class: Class) {
        let Some((at, to)) = class.kptr() else { return };
        let exchange = |b: &mut Self| {
            b.load(Size::DW, Reg::R1, Reg::R10, POINTERS[i]);
            b.alu(AluOp::Add, Reg::R1, Src::Imm(at));
            b.helper(194);
            b.skip_if(Cond::Eq, Reg::R0, Src::Imm(0), |b| {
                if !b.lure(12) {
                    b.drop_object(None);
                }
            });
        };
        if self.c.one_in(3) {
            self.imm(Reg::R2, 0);
            exchange(self);
        } else {
            self.make(to);
            self.skip_if(Cond::Eq, Reg::R0, Src::Imm(0), |b| {
                if b.c.one_in(2) {
                    b.store(Size::DW, Reg::R0, 0, Src::Imm(9));
                }
                b.mov(Reg::R2, Reg::R0);
                exchange(b);
            });
        }
        self.imm(Reg::R0, 5);
    }

    /// Takes this lock, does the one thing with it, and releases it; the other where it is not to be had.
    fn with_lock(&mut self, home: Home, inside: impl FnOnce(&mut Self), without: impl FnOnce(&mut Self)) {
        if self.lure(16) {
            return inside(self);
        }
        if matches!(home, Home::Value(MapId::Holding) | Home::Object(_, Class::Bin)) {
            self.part(Reg::R1, home, Part::Lock);
            self.helper(93);
            inside(self);
            if !self.lure(16) {
                self.part(Reg::R1, home, Part::Lock);
                self.helper(94);
            }
            return;
        }
        let saved = if self.c.one_in(2) { self.free_pointer() } else { None };
        let call = |b: &mut Self, plain, saving| {
            b.part(Reg::R1, home, Part::Lock);
            match saved {
                Some(i) => {
                    b.address(Reg::R2, Reg::R10, POINTERS[i].into());
                    b.kfunc(saving);
                }
                None => b.kfunc(plain),
            }
        };
        let outside = self.busy;
        self.busy.pointers |= saved.map_or(0, |i| 1 << i);
        call(self, Kfunc::ResSpinLock, Kfunc::ResSpinLockIrqsave);
        let at = self.code.len();
        self.push(Insn::Exit);
        inside(self);
        if !self.lure(16) {
            call(self, Kfunc::ResSpinUnlock, Kfunc::ResSpinUnlockIrqrestore);
        }
        if let Some(i) = saved {
            self.store(Size::DW, Reg::R10, POINTERS[i], Src::Imm(0));
        }
        let over = self.code.len();
        self.push(Insn::Exit);
        let (width, cond, dst, src) = (bpf_isa::Width::W64, Cond::Ne, Reg::R0, Src::Imm(0));
        self.code[at] = Insn::JumpIf { width, cond, dst, src, off: (over - at) as i16 };
        without(self);
        let off = (self.code.len() - over - 1) as i32;
        self.code[over] = Insn::Jump { off, wide: false };
        self.busy = outside;
    }

    /// Gives up the object in the slot: it is moved to another owner or freed.
    fn give_up(&mut self, i: usize, class: Class, depth: u32) {
        let how = if self.lure(4) { 1 + self.c.below(3) } else { 0 };
        let after = |b: &mut Self| match how {
            // Used, or dropped again.
            1 => b.use_object(i, class),
            2 => b.drop_object(Some(i)),
            _ => {}
        };
        match (self.c.below(6), class) {
            // The object is not given up.
            _ if how == 3 => {}
            (0 | 1, Class::Node) => self.link(i),
            (2, Class::Node) if depth < 2 && self.free_pointer().is_some() => {
                let Some(other) = self.free_pointer() else { return };
                self.load(Size::DW, Reg::R1, Reg::R10, POINTERS[i]);
                self.imm(Reg::R2, 0);
                self.kfunc(Kfunc::RefcountAcquire);
                self.store(Size::DW, Reg::R10, POINTERS[other], Src::Reg(Reg::R0));
                self.imm(Reg::R0, 6);
                self.busy.pointers |= 1 << other;
                if self.c.one_in(2) {
                    self.give_up(i, class, depth + 1);
                    self.owned(other, class, depth + 1);
                } else {
                    self.owned(other, class, depth + 1);
                    self.give_up(i, class, depth + 1);
                }
            }
            (3 | 4, Class::Node | Class::Plain | Class::Bin | Class::Crate) => {
                let (map, right) = (self.holding(), class.stash().unwrap_or(PLAIN));
                let at = if self.lure(12) { self.c.pick(&[PLAIN, NODE, BIN, CRATE, LIST]) } else { right };
                self.map_value(Reg::R1, map, at);
                self.load(Size::DW, Reg::R2, Reg::R10, POINTERS[i]);
                self.helper(194);
                self.skip_if(Cond::Eq, Reg::R0, Src::Imm(0), |b| b.drop_object(None));
                after(self);
            }
            _ => {
                self.drop_object(Some(i));
                after(self);
            }
        }
        self.imm(Reg::R0, 7);
    }

    /// Puts the object in the slot into a list or a tree, looks at it while it may, and forgets it.
    fn link(&mut self, i: usize) {
        let home = self.home();
        let under = self.home_under(home);
        let later = self.lure(8);
        let less = self.callees.iter().position(|f| f.role == Role::Less);
        let inside = |b: &mut Self| {
            let tree = less.filter(|_| b.c.one_in(2));
            b.part(Reg::R1, under, if tree.is_some() { Part::Tree } else { Part::List });
            b.load(Size::DW, Reg::R2, Reg::R10, POINTERS[i]);
            b.alu(AluOp::Add, Reg::R2, Src::Imm(if tree.is_some() { TREE_NODE } else { LIST_NODE }));
            match tree {
                Some(less) => {
                    b.calls.push((b.code.len(), less));
                    b.wide(Reg::R3, Imm64::Func(0));
                    b.imm(Reg::R4, 0);
                    b.imm(Reg::R5, 0);
                    b.kfunc(Kfunc::RbtreeAdd);
                }
                None => {
                    b.imm(Reg::R3, 0);
                    b.imm(Reg::R4, 0);
                    let push = b.c.pick(&[Kfunc::ListPushFront, Kfunc::ListPushBack]);
                    b.kfunc(push);
                }
            }
            if b.c.one_in(2) {
                let outside = b.busy;
                b.busy.locked = true;
                b.gap();
                b.busy = outside;
                b.use_object(i, Class::Node);
            }
        };
        self.with_lock(home, inside, |b| b.drop_object(Some(i)));
        if later {
            self.use_object(i, Class::Node);
        }
    }

    /// A new object.
    fn made(&mut self) {
        let Some(i) = self.free_pointer() else { return self.arithmetic() };
        let class = self.c.pick(&[Class::Node, Class::Node, Class::Plain, Class::Chain, Class::Bin, Class::Crate]);
        self.make(class);
        self.own(i, class, 0);
    }

    /// Looks an object up under a lock and stores the pointer, or null, in a slot.
    fn found(&mut self, offset: i32, find: impl FnOnce(&mut Self, Home)) {
        let Some(i) = self.free_pointer() else { return self.arithmetic() };
        let home = self.home();
        let under = self.home_under(home);
        let outside = self.busy;
        self.busy.pointers |= 1 << i;
        self.with_lock(
            home,
            |b| {
                find(b, under);
                b.store(Size::DW, Reg::R10, POINTERS[i], Src::Reg(Reg::R0));
            },
            |b| b.store(Size::DW, Reg::R10, POINTERS[i], Src::Imm(0)),
        );
        self.load(Size::DW, Reg::R0, Reg::R10, POINTERS[i]);
        self.own(i, Class::Node, offset);
        self.busy = outside;
    }

    /// The first or the last object of a list, which is looked at before at times.
    fn listed(&mut self) {
        self.found(LIST_NODE, |b, home| {
            if b.c.one_in(3) {
                b.part(Reg::R1, home, Part::List);
                let peek = b.c.pick(&[Kfunc::ListFront, Kfunc::ListBack]);
                b.kfunc(peek);
                b.skip_if(Cond::Eq, Reg::R0, Src::Imm(0), |b| {
                    b.mov(Reg::R1, Reg::R0);
                    b.imm(Reg::R0, 0);
                    b.touch(Size::DW, Reg::R1, -LIST_NODE as i16, true);
                });
            }
            b.part(Reg::R1, home, Part::List);
            let pop = b.c.pick(&[Kfunc::ListPopFront, Kfunc::ListPopBack]);
            b.kfunc(pop);
        });
    }

    /// The first object of a tree, or one near its root.
    fn ordered_ones(&mut self) {
        self.found(TREE_NODE, |b, home| {
            let (from_root, down) = (b.c.one_in(2), b.c.pick(&[Kfunc::RbtreeLeft, Kfunc::RbtreeRight]));
            b.part(Reg::R1, home, Part::Tree);
            b.kfunc(if from_root { Kfunc::RbtreeRoot } else { Kfunc::RbtreeFirst });
            let with = |b: &mut Self, function| {
                b.skip_if(Cond::Eq, Reg::R0, Src::Imm(0), |b| {
                    b.mov(Reg::R2, Reg::R0);
                    b.part(Reg::R1, home, Part::Tree);
                    b.kfunc(function);
                });
            };
            if from_root && b.c.one_in(2) {
                with(b, down);
            }
            with(b, Kfunc::RbtreeRemove);
        });
    }

    /// An object that is looked at where it is stashed; of a node, the program may become another owner.
    fn loaded(&mut self) {
        let Some(i) = self.free_pointer() else { return self.arithmetic() };
        let (map, class) = (self.holding(), self.c.pick(&[Class::Node, Class::Plain, Class::Bin, Class::Crate]));
        let at = class.stash().unwrap_or(PLAIN);
        let wrong = self.lure(3);
        let how = if wrong { 1 + self.c.below(5) } else { 0 };
        let size = if how == 1 { self.c.pick(&[Size::W, Size::B]) } else { Size::DW };
        self.map_value(Reg::R1, map, at);
        self.load(size, Reg::R1, Reg::R1, 0);
        let cond = if how == 2 { Cond::Ne } else { Cond::Eq };
        self.skip_if(cond, Reg::R1, Src::Imm(0), |b| {
            b.store(Size::DW, Reg::R10, POINTERS[i], Src::Reg(Reg::R1));
            let outside = b.busy;
            b.busy.pointers |= 1 << i;
            if how == 5 && matches!(class, Class::Bin | Class::Crate) {
                // Its lock is not for who has only loaded it.
                b.busy.bin = Some((i, class == Class::Crate));
            }
            b.gap();
            b.use_object(i, class);
            if how == 3 {
                b.drop_object(Some(i));
            }
            if how == 4 {
                b.exchange_inside(i, class);
            }
            if let (Class::Node, Some(other), true) = (class, b.free_pointer(), b.c.one_in(2)) {
                b.load(Size::DW, Reg::R1, Reg::R10, POINTERS[i]);
                b.imm(Reg::R2, 0);
                b.kfunc(Kfunc::RefcountAcquire);
                b.own(other, Class::Node, 0);
                b.use_object(i, class);
            }
            b.busy = outside;
            b.store(Size::DW, Reg::R10, POINTERS[i], Src::Imm(0));
        });
        self.imm(Reg::R0, 8);
    }

    /// An exception, where nothing is owed and no helper waits for the function.
    fn throws(&mut self) {
        let fit = matches!(self.role, Role::Main | Role::Static) && !self.busy.owes;
        if !fit && !self.lure(4) {
            return self.arithmetic();
        }
        let (cond, dst, number, imm) = (self.c.pick(&Cond::ALL), self.number(), self.number(), self.small_imm());
        self.skip_if(cond, dst, Src::Imm(imm), |b| {
            b.mov(Reg::R1, number);
            b.kfunc(Kfunc::Throw);
        });
        self.imm(Reg::R0, 9);
    }

    /// A call of one of two functions, by its address.
    fn by_register(&mut self) {
        let found = self.callees(|role| role == Role::Static);
        if found.is_empty() || self.busy.slots & 0xf0 != 0 || self.busy.owes || !self.has_ctx() {
            return self.arithmetic();
        }
        let (one, other) = (self.c.pick(&found), self.c.pick(&found));
        let cost = self.callees[one].cost.max(self.callees[other].cost);
        if !self.affordable(cost, 1) {
            return self.arithmetic();
        }
        self.take_over(one);
        self.take_over(other);
        let (second, third) = (self.number(), self.number());
        let address = |b: &mut Self, of: usize| {
            b.calls.push((b.code.len(), of));
            b.wide(Reg::R4, Imm64::Func(0));
        };
        self.either(|b| address(b, one), |b| address(b, other));
        self.area(Reg::R1);
        self.mov(Reg::R2, second);
        self.mov(Reg::R3, third);
        if self.lure(8) {
            // A number beside that of the instruction.
            self.alu(AluOp::Add, Reg::R4, Src::Imm(1));
        }
        self.push(Insn::Call(Callee::Reg(Reg::R4)));
    }
}
