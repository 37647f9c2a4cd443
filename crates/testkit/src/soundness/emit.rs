//! A function under construction: its frame, its registers' roles, and the small pieces that statements are made of.
//!
//! Roles, at the boundaries of statements: r0, r8 and r9 are numbers; r6 is the context and r7 the area, where the
//! function has them; r1 to r5 hold no value between statements. The frame, downwards from r10:
//!
//! ```text
//!   -8 .. -64    eight numbers; a callee that is given the area may change the last four
//!  -72           the context
//!  -80 .. -96    three pointers
//! -104           the length of a raw context
//! -128 .. -104   keys
//! -176 .. -128   values
//! -256 .. -200   iterators and dynptrs
//! -512 .. -264   arrays that loops fill
//! -840 .. -520   slots that nobody relies on over a gap but their own statement, and those at -200
//! ```
//!
//! The area is what lies from r10 - 104 up. A statement that relies on something over a gap *reserves* it: the numbers,
//! slots and registers in [`Builder::busy`] are not touched by others meanwhile.

use super::{AREA, CTX, Context, Kind, MapId, Role};
use crate::generate::Choices;
use bpf_isa::{AluOp, Callee, Cond, Imm64, Insn, Reg, Size, Src, Width};

pub(super) const SIZES: [Size; 4] = [Size::B, Size::H, Size::W, Size::DW];
pub(super) const WIDTHS: [Width; 2] = [Width::W64, Width::W32];
/// Numbers at the boundaries of statements.
pub(super) const NUMBERS: [Reg; 3] = [Reg::R8, Reg::R9, Reg::R0];
/// Slots of numbers.
pub(super) const SLOTS: u32 = 8;
/// Offset of the context's slot.
pub(super) const CTX_SLOT: i16 = -72;
/// Offsets of the slots of pointers.
pub(super) const POINTERS: [i16; 3] = [-80, -88, -96];
/// Offset of a raw context's length, and of the area.
pub(super) const LEN_SLOT: i16 = -104;
/// Offset of the keys.
pub(super) const KEY: i16 = -112;
/// Offset and size of the values.
pub(super) const VALUES: i16 = -176;
pub(super) const VALUES_LEN: u32 = 48;

/// The offset of a number's slot.
pub(super) fn slot(i: u32) -> i16 {
    -8 * (i as i16 + 1)
}

/// A finished function, its calls unresolved.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) role: Role,
    pub(crate) code: Vec<Insn>,
    /// Slots of calls and references, and the subprograms they refer to.
    pub(crate) calls: Vec<(usize, usize)>,
    pub(crate) maps: u16,
    pub(crate) ordered: bool,
    /// Lengths of packets that it tells apart.
    pub(crate) lens: Vec<u32>,
    /// Instructions a call takes, about and at most.
    pub(crate) cost: u32,
    /// Whether it, or what it calls, may move the packet.
    pub(crate) moves: bool,
}

/// Registers and places that statements in a gap leave alone.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Busy {
    /// Slots of numbers, a bit each.
    pub(super) slots: u8,
    /// Slots of pointers.
    pub(super) pointers: u8,
    /// r8, r9.
    pub(super) numbers: [bool; 2],
    /// The packet must not move.
    pub(super) packet: bool,
    /// Nothing may be called, and the function may not return: a lock is held.
    pub(super) locked: bool,
    /// The function may not return: a record is owed.
    pub(super) owes: bool,
    /// Keys and values.
    pub(super) scratch: bool,
    /// Iterators and dynptrs, a bit each.
    pub(super) iterators: u8,
    pub(super) dynptrs: u8,
    /// The pointer's slot of an object with a lock of its own that the program owns; whether that is a resilient one.
    pub(super) bin: Option<(usize, bool)>,
}

pub(super) struct Builder<'b, 'c> {
    pub(super) c: &'b mut Choices<'c>,
    pub(super) context: Context,
    pub(super) role: Role,
    /// Whether half of the statements are about objects.
    pub(super) owning: bool,
    pub(super) callees: &'b [Function],
    /// How many things may still be made wrong.
    pub(super) lures: &'b mut u32,
    pub(super) code: Vec<Insn>,
    pub(super) calls: Vec<(usize, usize)>,
    pub(super) maps: u16,
    pub(super) ordered: bool,
    pub(super) lens: Vec<u32>,
    pub(super) moves: bool,
    pub(super) busy: Busy,
    pub(super) depth: u32,
    /// How often the code being made runs in one call.
    pub(super) rounds: u32,
    pub(super) cost: u32,
}

impl Function {
    pub(super) fn generate(
        c: &mut Choices<'_>,
        context: Context,
        role: Role,
        callees: &[Function],
        (kind, lures): (Kind, &mut u32),
    ) -> Function {
        let mut b = Builder {
            c,
            context,
            role,
            owning: kind == Kind::Owning,
            callees,
            lures,
            code: Vec::new(),
            calls: Vec::new(),
            maps: 0,
            ordered: true,
            lens: Vec::new(),
            moves: false,
            busy: Busy::default(),
            depth: 0,
            rounds: 1,
            cost: 0,
        };
        b.entry();
        let moves = matches!(role, Role::Static | Role::Global { context: true, .. });
        if context == Context::Xdp && moves && b.c.one_in(2) {
            b.move_packet();
        }
        let related = kind == Kind::Related;
        if related {
            b.related_loop();
        }
        let statements = match (related, role) {
            (true, _) => b.c.below(2),
            (false, Role::Main) => 1 + b.c.below(7),
            (false, _) => b.c.below(5),
        };
        for _ in 0..statements {
            // Calls are what a random statement is too seldom.
            match b.c.below(8) {
                7 => b.callback(),
                6 => b.call(),
                5 if callees.iter().any(|f| f.moves) => b.stale_packet(),
                _ => b.statement(),
            }
        }
        b.leave();
        let Builder { code, calls, maps, ordered, lens, moves, mut cost, .. } = b;
        cost += code.len() as u32;
        Function { role, code, calls, maps, ordered, lens, cost, moves }
    }
}

impl Builder<'_, '_> {
    /// Whether r6 is the context.
    pub(super) fn has_ctx(&self) -> bool {
        !matches!(self.role, Role::Global { context: false, .. })
    }

    /// Whether r7 is an area of slots.
    pub(super) fn has_area(&self) -> bool {
        matches!(self.role, Role::Static | Role::Loop | Role::ForEach(_))
    }

    pub(super) fn push(&mut self, insn: Insn) {
        self.code.push(insn);
    }

    pub(super) fn mov(&mut self, dst: Reg, src: Reg) {
        self.push(Insn::Mov { width: Width::W64, dst, src: Src::Reg(src) });
    }

    pub(super) fn imm(&mut self, dst: Reg, imm: i32) {
        self.push(Insn::Mov { width: Width::W64, dst, src: Src::Imm(imm) });
    }

    pub(super) fn add(&mut self, dst: Reg, src: Reg) {
        self.alu(AluOp::Add, dst, Src::Reg(src));
    }

    pub(super) fn alu(&mut self, op: AluOp, dst: Reg, src: Src) {
        self.push(Insn::Alu { width: Width::W64, op, dst, src });
    }

    /// `dst = base + off`.
    pub(super) fn address(&mut self, dst: Reg, base: Reg, off: i32) {
        self.mov(dst, base);
        if off != 0 {
            self.alu(AluOp::Add, dst, Src::Imm(off));
        }
    }

    pub(super) fn load(&mut self, size: Size, dst: Reg, base: Reg, off: i16) {
        self.push(Insn::Load { size, sign: false, dst, base, off });
    }

    pub(super) fn store(&mut self, size: Size, base: Reg, off: i16, src: Src) {
        self.push(Insn::Store { size, base, off, src });
    }

    pub(super) fn wide(&mut self, dst: Reg, imm: Imm64) {
        self.push(Insn::LoadImm64 { dst, imm });
        self.push(Insn::SecondSlot);
    }

    pub(super) fn map(&mut self, dst: Reg, map: MapId) {
        self.maps |= 1 << map as u8;
        self.wide(dst, Imm64::Map(map as i32));
    }

    pub(super) fn map_value(&mut self, dst: Reg, map: MapId, off: u32) {
        self.maps |= 1 << map as u8;
        self.wide(dst, Imm64::MapValue { map: map as i32, off });
    }

    /// A call of a helper, after which r0 is what it returned.
    pub(super) fn helper(&mut self, id: u32) {
        self.push(Insn::Call(Callee::Helper(id)));
    }

    /// A jump over the instructions of `body`.
    pub(super) fn skip(&mut self, jump: impl FnOnce(i16) -> Insn, body: impl FnOnce(&mut Self)) {
        let at = self.code.len();
        self.push(Insn::Exit);
        body(self);
        let off = (self.code.len() - at - 1) as i16;
        self.code[at] = jump(off);
    }

    /// Skips `body` if the comparison holds.
    pub(super) fn skip_if(&mut self, cond: Cond, dst: Reg, src: Src, body: impl FnOnce(&mut Self)) {
        self.skip(|off| Insn::JumpIf { width: Width::W64, cond, dst, src, off }, body);
    }

    /// One of two bodies, by a comparison of a number.
    pub(super) fn either(&mut self, yes: impl FnOnce(&mut Self), no: impl FnOnce(&mut Self)) {
        let (width, cond, dst) = (self.c.pick(&WIDTHS), self.c.pick(&Cond::ALL), self.number());
        let src = if self.c.one_in(4) { Src::Reg(self.number()) } else { Src::Imm(self.small_imm()) };
        let at = self.code.len();
        self.push(Insn::Exit);
        no(self);
        let over = self.code.len();
        self.push(Insn::Exit);
        self.code[at] = Insn::JumpIf { width, cond, dst, src, off: (over - at) as i16 };
        yes(self);
        let off = (self.code.len() - over - 1) as i32;
        self.code[over] = Insn::Jump { off, wide: false };
    }

    /// A jump back to `head` while the comparison holds.
    pub(super) fn back(&mut self, head: usize, cond: Cond, dst: Reg, src: Src) {
        let off = (head as i64 - self.code.len() as i64 - 1) as i16;
        self.push(Insn::JumpIf { width: Width::W64, cond, dst, src, off });
    }

    pub(super) fn number(&mut self) -> Reg {
        self.c.pick(&NUMBERS)
    }

    /// A number's register that may be overwritten. r0 always may.
    pub(super) fn target(&mut self) -> Reg {
        match self.c.below(3) {
            0 if !self.busy.numbers[0] => Reg::R8,
            1 if !self.busy.numbers[1] => Reg::R9,
            _ => Reg::R0,
        }
    }

    pub(super) fn small_imm(&mut self) -> i32 {
        if self.c.one_in(4) { self.c.imm() } else { self.c.below(40) as i32 - 4 }
    }

    pub(super) fn src(&mut self) -> Src {
        if self.c.one_in(2) { Src::Reg(self.number()) } else { Src::Imm(self.small_imm()) }
    }

    /// Whether to make the next thing wrong.
    pub(super) fn lure(&mut self, one_in: u32) -> bool {
        let wrong = *self.lures > 0 && self.c.one_in(one_in);
        *self.lures -= u32::from(wrong);
        wrong
    }

    /// A free slot of a number among `range`.
    pub(super) fn free_slot(&mut self, range: std::ops::Range<u32>) -> Option<u32> {
        let free: Vec<u32> = range.filter(|i| self.busy.slots >> i & 1 == 0).collect();
        (!free.is_empty()).then(|| self.c.pick(&free))
    }

    /// A free slot of a pointer.
    pub(super) fn free_pointer(&mut self) -> Option<usize> {
        let free: Vec<usize> = (0..POINTERS.len()).filter(|i| self.busy.pointers >> i & 1 == 0).collect();
        (!free.is_empty()).then(|| self.c.pick(&free))
    }

    /// Up to two statements between what establishes something and what relies on it. A lure writes over it.
    pub(super) fn gap(&mut self) {
        let reserved: Vec<u32> = (0..SLOTS).filter(|i| self.busy.slots >> i & 1 != 0).collect();
        if !reserved.is_empty() && self.lure(24) {
            let (i, size, number) = (self.c.pick(&reserved), self.c.pick(&SIZES), self.number());
            let off = slot(i) + (self.c.below(8 / size.bytes()) * size.bytes()) as i16;
            self.store(size, Reg::R10, off, Src::Reg(number));
        }
        if self.depth >= 4 || self.code.len() > 220 {
            return;
        }
        self.depth += 1;
        for _ in 0..self.c.below(3) {
            self.statement();
        }
        self.depth -= 1;
    }

    /// Emits a gap with further registers or places reserved.
    pub(super) fn gap_with(&mut self, reserve: impl FnOnce(&mut Busy)) {
        let outside = self.busy;
        reserve(&mut self.busy);
        self.gap();
        self.busy = outside;
    }

    /// An unknown number, from the global variable.
    pub(super) fn unknown(&mut self, dst: Reg) {
        let size = self.c.pick(&SIZES);
        let off = self.c.below(super::GLOBAL_VALUE / size.bytes()) * size.bytes();
        self.map_value(dst, MapId::Global, off);
        self.load(size, dst, dst, 0);
    }

    /// Saves what the function is given, and gives all numbers and slots a value.
    fn entry(&mut self) {
        match self.role {
            Role::Main => {
                self.mov(CTX, Reg::R1);
                if self.context == Context::Raw {
                    self.store(Size::DW, Reg::R10, LEN_SLOT, Src::Reg(Reg::R2));
                } else {
                    self.store(Size::DW, Reg::R10, LEN_SLOT, Src::Imm(0));
                }
            }
            Role::Static | Role::Less => self.mov(AREA, Reg::R1),
            Role::Loop => self.mov(AREA, Reg::R2),
            Role::ForEach(_) => {
                self.mov(AREA, Reg::R4);
                // Key and value live in the last two pointers' slots.
                self.busy.pointers |= 0b110;
                self.store(Size::DW, Reg::R10, POINTERS[1], Src::Reg(Reg::R2));
                self.store(Size::DW, Reg::R10, POINTERS[2], Src::Reg(Reg::R3));
            }
            Role::Global { context, .. } => {
                self.mov(AREA, Reg::R1);
                self.store(Size::DW, Reg::R10, LEN_SLOT, Src::Imm(0));
                if context {
                    self.mov(CTX, Reg::R3);
                }
            }
        }
        let numbers = match self.role {
            Role::Static => [Some(Reg::R2), Some(Reg::R3)],
            Role::Loop => [Some(Reg::R1), None],
            Role::Global { .. } => [Some(Reg::R2), None],
            Role::Main | Role::ForEach(_) | Role::Less => [None, None],
        };
        for (dst, given) in [Reg::R8, Reg::R9].into_iter().zip(numbers) {
            match given {
                Some(given) => self.mov(dst, given),
                None => self.unknown(dst),
            }
        }
        if self.has_area() {
            // The caller's context, and the length beside it.
            self.load(Size::DW, CTX, AREA, CTX_SLOT - LEN_SLOT);
            self.load(Size::DW, Reg::R0, AREA, 0);
            self.store(Size::DW, Reg::R10, LEN_SLOT, Src::Reg(Reg::R0));
        }
        if self.has_ctx() {
            self.store(Size::DW, Reg::R10, CTX_SLOT, Src::Reg(CTX));
        }
        self.imm(Reg::R0, 0);
        for i in 0..SLOTS {
            let src = match self.c.below(4) {
                0 => Src::Reg(Reg::R8),
                1 => Src::Reg(Reg::R9),
                2 => Src::Imm(self.c.below(20) as i32),
                _ => Src::Imm(0),
            };
            self.store(Size::DW, Reg::R10, slot(i), src);
        }
        for (i, off) in POINTERS.into_iter().enumerate() {
            if self.busy.pointers >> i & 1 == 0 {
                self.store(Size::DW, Reg::R10, off, Src::Imm(0));
            }
        }
        for off in (VALUES..LEN_SLOT).step_by(8) {
            self.store(Size::DW, Reg::R10, off, Src::Imm(0));
        }
    }

    /// Returns a number; a callback 0 or 1.
    fn leave(&mut self) {
        match self.role {
            Role::Loop | Role::ForEach(_) => {
                if self.c.one_in(2) {
                    self.alu(AluOp::And, Reg::R0, Src::Imm(1));
                } else {
                    self.imm(Reg::R0, 0);
                }
            }
            Role::Main | Role::Static | Role::Global { .. } | Role::Less => {
                let r = self.number();
                if r != Reg::R0 {
                    self.add(Reg::R0, r);
                }
                if self.lure(60) {
                    self.address(Reg::R0, Reg::R10, -8);
                }
            }
        }
        self.push(Insn::Exit);
    }
}
