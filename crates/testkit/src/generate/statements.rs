//! The statements of a generated function: what kinds of code there are.
//!
//! Choice 0 of every `match` is the simplest, so that a shorter input gives a smaller program. Every statement leaves
//! the bookkeeping of [`super::function`] right; none knows its surroundings.

use super::{
    HELPER_ID,
    function::{Builder, COUNTER_SLOTS, DATA_END, HOME_SLOT, Home, RegSet},
};
use bpf_isa::{AluOp, AtomicOp, ByteOrder, Callee, Cond, EndWidth, Insn, Reg, Size, Src, SxWidth, Width};
use bpf_uapi::legacy_load::{SKF_LL_OFF, SKF_NET_OFF};

const WIDTHS: [Width; 2] = [Width::W64, Width::W32];
const SIZES: [Size; 4] = [Size::DW, Size::W, Size::H, Size::B];
/// Constructs inside constructs, at most.
const MAX_DEPTH: u32 = 4;
/// A straight run of this many ALU instructions is longer than any short jump reaches, on any backend.
const LONG_RUN: u32 = 60;

const ATOMICS: [AtomicOp; 10] = [
    AtomicOp::Add { fetch: false },
    AtomicOp::Or { fetch: false },
    AtomicOp::And { fetch: false },
    AtomicOp::Xor { fetch: false },
    AtomicOp::Add { fetch: true },
    AtomicOp::Or { fetch: true },
    AtomicOp::And { fetch: true },
    AtomicOp::Xor { fetch: true },
    AtomicOp::Xchg,
    AtomicOp::CmpXchg,
];

impl Builder<'_, '_> {
    /// This many statements.
    pub(super) fn block(&mut self, statements: u32, depth: u32) {
        for _ in 0..statements {
            if !self.affordable(32) {
                return;
            }
            self.statement(depth);
        }
    }

    fn statement(&mut self, depth: u32) {
        let nested = depth < MAX_DEPTH;
        match self.choices.below(24) {
            0..=4 => self.arithmetic(),
            5 => self.unary(),
            6 => {
                let reg = self.writable();
                self.define(reg);
            }
            7 => self.mov(),
            8..=10 => self.memory_access(),
            11 => self.atomic(),
            12 if nested => self.skip(depth),
            13 if nested => self.if_else(depth),
            14 | 15 if nested => self.counted_loop(depth),
            16 if nested => self.while_loop(depth),
            17 => self.jump_out(),
            18 if !self.leaf && self.shape.helper => self.call_helper(),
            19 if !self.leaf => self.call_subprogram(),
            20 if self.shape.packet_loads && !self.leaf => self.packet_load(),
            21 => self.early_exit(),
            22 => self.straight_jump(),
            23 if self.affordable(LONG_RUN.into()) && self.choices.one_in(4) => {
                for _ in 0..LONG_RUN {
                    self.arithmetic();
                }
            }
            _ => self.arithmetic(),
        }
    }

    pub(super) fn arithmetic(&mut self) {
        let width = self.choices.pick(&WIDTHS);
        let op = self.choices.pick(&AluOp::ALL);
        let dst = self.scalar_destination();
        let mut src = self.operand();
        if let (true, Src::Imm(imm)) = (self.shape.kernel, src) {
            src = Src::Imm(kernel_imm(width, op, imm));
        }
        self.alu(width, op, dst, src);
    }

    fn unary(&mut self) {
        let dst = self.scalar_destination();
        if self.choices.one_in(2) {
            let width = self.choices.pick(&WIDTHS);
            self.emit(Insn::Neg { width, dst });
        } else {
            let order = self.choices.pick(&[ByteOrder::Swap, ByteOrder::ToBe, ByteOrder::ToLe]);
            let width = self.choices.pick(&[EndWidth::B64, EndWidth::B32, EndWidth::B16]);
            self.emit(Insn::End { order, width, dst });
        }
    }

    fn mov(&mut self) {
        let src = self.scalar();
        let dst = self.writable();
        let width = self.choices.pick(&WIDTHS);
        let insn = match self.choices.below(4) {
            0 => Insn::Mov { width, dst, src: Src::Reg(src) },
            1 => Insn::MovSx { width, dst, src, from: SxWidth::S8 },
            2 => Insn::MovSx { width, dst, src, from: SxWidth::S16 },
            _ => Insn::MovSx { width: Width::W64, dst, src, from: SxWidth::S32 },
        };
        self.emit(insn);
        self.scalars.insert(dst);
    }

    /// A base register and offset of `size` accessible bytes, aligned to their size if `aligned`. The base may be a
    /// register that no longer is a scalar: it holds an address.
    fn place(&mut self, size: Size, aligned: bool) -> (Reg, i16) {
        let bytes = size.bytes();
        if self.frame >= 8 && self.choices.one_in(3) {
            let lowest = -((DATA_END + self.frame) as i16);
            let mut within = self.choices.below(self.frame - bytes + 1);
            // The kernel tracks spills by slot, so it wants every stack access aligned.
            if aligned || self.shape.kernel {
                within -= within % bytes;
            }
            let off = lowest + within as i16;
            if !self.choices.one_in(4) {
                return (Reg::R10, off);
            }
            let base = self.address(Reg::R10);
            self.alu(Width::W64, AluOp::Add, base, Src::Imm(off.into()));
            return (base, 0);
        }
        let context = self.context();
        if self.choices.one_in(3) && self.scalars.iter().any(|reg| reg != context) {
            return self.indexed(context, bytes, aligned);
        }
        let mut off = self.choices.below(self.shape.memory - bytes + 1);
        if aligned {
            off -= off % bytes;
        }
        (context, off as i16)
    }

    /// `context + (scalar & mask)`, the mask chosen so that the access stays inside.
    fn indexed(&mut self, context: Reg, bytes: u32, aligned: bool) -> (Reg, i16) {
        let mut except = RegSet::default();
        except.insert(context);
        let scalar = self.scalar();
        let index = self.writable_except(except);
        let mut mask = self.shape.memory / 2 - 1;
        if aligned {
            mask &= !(bytes - 1);
        }
        self.emit(Insn::Mov { width: Width::W64, dst: index, src: Src::Reg(scalar) });
        self.alu(Width::W32, AluOp::And, index, Src::Imm(mask as i32));
        self.alu(Width::W64, AluOp::Add, index, Src::Reg(context));
        self.scalars.remove(index);
        let mut off = self.choices.below(self.shape.memory / 2 - bytes + 1);
        if aligned {
            off -= off % bytes;
        }
        (index, off as i16)
    }

    /// The register that holds the address of the memory: its home, or a register it is loaded into.
    fn context(&mut self) -> Reg {
        match self.home {
            Home::Reg(reg) => reg,
            Home::Stack => {
                let dst = self.writable();
                self.emit(Insn::Load { size: Size::DW, sign: false, dst, base: Reg::R10, off: HOME_SLOT });
                self.scalars.remove(dst);
                dst
            }
        }
    }

    /// A copy of an address in a register that may be written.
    fn address(&mut self, of: Reg) -> Reg {
        let dst = self.writable();
        self.emit(Insn::Mov { width: Width::W64, dst, src: Src::Reg(of) });
        self.scalars.remove(dst);
        dst
    }

    pub(super) fn load_memory(&mut self, dst: Reg) {
        let size = self.choices.pick(&SIZES);
        let (base, off) = self.place(size, false);
        let sign = size != Size::DW && self.choices.one_in(3);
        self.emit(Insn::Load { size, sign, dst, base, off });
        self.scalars.insert(dst);
    }

    fn memory_access(&mut self) {
        let size = self.choices.pick(&SIZES);
        match self.choices.below(8) {
            0..=2 => {
                let dst = self.writable();
                self.load_memory(dst);
            }
            3..=5 => {
                let (base, off) = self.place(size, false);
                let src = self.stored(base);
                self.emit(Insn::Store { size, base, off, src });
            }
            6 => {
                let (base, off) = self.place(size, true);
                let dst = self.writable();
                self.emit(Insn::LoadAcquire { size, dst, base, off });
                self.scalars.insert(dst);
            }
            _ => {
                let (base, off) = self.place(size, true);
                let src = self.scalar_beside(base);
                self.emit(Insn::StoreRelease { size, base, off, src });
            }
        }
    }

    /// A value to store through `base`.
    fn stored(&mut self, base: Reg) -> Src {
        if self.choices.one_in(3) { Src::Imm(self.choices.imm()) } else { Src::Reg(self.scalar_beside(base)) }
    }

    /// A scalar while `base` holds an address, so that a definition does not overwrite it.
    fn scalar_beside(&mut self, base: Reg) -> Reg {
        let was_pinned = self.pinned.contains(base);
        self.pinned.insert(base);
        let reg = self.scalar();
        if !was_pinned {
            self.pinned.remove(base);
        }
        reg
    }

    fn atomic(&mut self) {
        let width = self.choices.pick(&WIDTHS);
        let size = match width {
            Width::W64 => Size::DW,
            Width::W32 => Size::W,
        };
        let op = self.choices.pick(&ATOMICS);
        let (base, off) = self.place(size, true);
        let src = self.scalar_beside(base);
        if op == AtomicOp::CmpXchg && !self.scalars.contains(Reg::R0) {
            if base == Reg::R0 {
                // r0 is an address: comparing it would let it into the result.
                return;
            }
            self.mov_imm(Reg::R0);
        }
        self.emit(Insn::Atomic { width, op, base, off, src });
    }

    fn skip(&mut self, depth: u32) {
        let end = self.label();
        self.goto_if(end);
        self.nested_block(&[end], depth);
        self.bind(end);
    }

    fn if_else(&mut self, depth: u32) {
        let (otherwise, end) = (self.label(), self.label());
        self.goto_if(otherwise);
        self.nested_block(&[end], depth);
        let wide = self.choices.one_in(4);
        self.goto(end, wide);
        self.bind_only(otherwise);
        self.nested_block(&[end], depth);
        self.bind(end);
    }

    fn nested_block(&mut self, ends: &[super::function::Label], depth: u32) {
        self.enclosing.extend(ends);
        let statements = 1 + self.choices.below(5);
        self.block(statements, depth + 1);
        self.enclosing.truncate(self.enclosing.len() - ends.len());
    }

    /// A jump out of any number of enclosing constructs.
    fn jump_out(&mut self) {
        if self.enclosing.is_empty() {
            return self.arithmetic();
        }
        let enclosing = self.enclosing.clone();
        let label = self.choices.pick(&enclosing);
        self.goto_if(label);
    }

    fn early_exit(&mut self) {
        let go_on = self.label();
        self.goto_if(go_on);
        let scalars = self.scalars;
        self.exit();
        self.scalars = scalars;
        self.bind_only(go_on);
    }

    /// `goto` over code that never runs, or to the very next instruction.
    fn straight_jump(&mut self) {
        let next = self.label();
        let wide = self.choices.one_in(2);
        let scalars = self.scalars;
        self.goto(next, wide);
        if !self.shape.kernel && self.choices.one_in(2) {
            self.arithmetic();
        }
        self.scalars = scalars;
        self.bind_only(next);
    }

    /// `do { … } while (--counter)`, the counter in a callee-saved register or on the stack.
    fn counted_loop(&mut self, depth: u32) {
        let trips = 1 + self.choices.below(7);
        if !self.affordable(u64::from(trips) * 64) {
            return self.arithmetic();
        }
        let free: Vec<Reg> = Reg::SAVED.into_iter().filter(|&reg| !self.pinned.contains(reg)).collect();
        // Two callee-saved registers stay unpinned, so that values can live across calls.
        let register = (free.len() > 2 && !self.choices.one_in(3)).then(|| self.choices.pick(&free));
        let slot = COUNTER_SLOTS.get(self.stack_counters).copied();
        let trips = trips as i32;
        match (register, slot) {
            (Some(counter), _) => {
                self.emit(Insn::Mov { width: Width::W64, dst: counter, src: Src::Imm(trips) });
                self.scalars.remove(counter);
                self.pinned.insert(counter);
                let head = self.loop_body(trips, depth);
                self.alu(Width::W64, AluOp::Add, counter, Src::Imm(-1));
                let (width, cond, bound) = self.counter_test();
                self.jump_if(width, cond, counter, Src::Imm(bound), head);
                self.pinned.remove(counter);
                // The counter holds a number: zero.
                self.scalars.insert(counter);
            }
            (None, Some(off)) => {
                self.emit(Insn::Store { size: Size::DW, base: Reg::R10, off, src: Src::Imm(trips) });
                self.stack_counters += 1;
                let head = self.loop_body(trips, depth);
                self.stack_counters -= 1;
                let counter = self.writable();
                let in_body = self.scalars;
                self.emit(Insn::Load { size: Size::DW, sign: false, dst: counter, base: Reg::R10, off });
                self.alu(Width::W64, AluOp::Sub, counter, Src::Imm(1));
                self.emit(Insn::Store { size: Size::DW, base: Reg::R10, off, src: Src::Reg(counter) });
                // A scalar like any other from here on, whether or not it was one at the head.
                self.scalars = in_body;
                self.scalars.insert(counter);
                let (width, cond, bound) = self.counter_test();
                self.jump_if(width, cond, counter, Src::Imm(bound), head);
            }
            (None, None) => self.arithmetic(),
        }
    }

    /// One of the ways to ask whether a small counter is above zero.
    fn counter_test(&mut self) -> (Width, Cond, i32) {
        let width = self.choices.pick(&WIDTHS);
        let (cond, bound) = self.choices.pick(&[
            (Cond::Ne, 0),
            (Cond::Gt, 0),
            (Cond::Ge, 1),
            (Cond::SGt, 0),
            (Cond::SGe, 1),
            (Cond::Set, 0xff),
        ]);
        (width, cond, bound)
    }

    /// Binds the head, makes the body, and restores what were scalars at the head.
    fn loop_body(&mut self, trips: i32, depth: u32) -> super::function::Label {
        let head = self.bind_head();
        let at_head = self.scalars;
        let outside = self.multiplier;
        self.multiplier *= trips as u64;
        let end = self.label();
        self.nested_block(&[end], depth);
        self.bind(end);
        for reg in at_head.without(self.scalars).iter() {
            self.mov_imm(reg);
        }
        self.multiplier = outside;
        head
    }

    /// `while (counter != 0) { counter -= 1; … }`, with a jump back at its end, and perhaps a may_goto.
    fn while_loop(&mut self, depth: u32) {
        let trips = 1 + self.choices.below(4);
        let free: Vec<Reg> = Reg::SAVED.into_iter().filter(|&reg| !self.pinned.contains(reg)).collect();
        if !self.affordable(u64::from(trips) * 64) || free.len() < 3 {
            return self.arithmetic();
        }
        let counter = self.choices.pick(&free);
        let trips = trips as i32;
        self.emit(Insn::Mov { width: Width::W32, dst: counter, src: Src::Imm(trips) });
        self.scalars.remove(counter);
        self.pinned.insert(counter);
        let (head, end) = (self.bind_head(), self.label());
        let at_head = self.scalars;
        let outside = self.multiplier;
        self.multiplier *= trips as u64 + 1;
        if self.choices.one_in(3) {
            self.may_goto(end);
        }
        self.jump_if(Width::W64, Cond::Eq, counter, Src::Imm(0), end);
        self.alu(Width::W32, AluOp::Sub, counter, Src::Imm(1));
        self.nested_block(&[end], depth);
        for reg in at_head.without(self.scalars).iter() {
            self.mov_imm(reg);
        }
        let wide = self.choices.one_in(4);
        self.goto(head, wide);
        self.multiplier = outside;
        self.bind_only(end);
        self.pinned.remove(counter);
    }

    /// Makes r1 to r5 scalars where they are not: a helper reads all five.
    fn arguments(&mut self, from: usize) {
        for reg in Reg::ARGS.into_iter().skip(from) {
            if !self.scalars.contains(reg) {
                self.mov_imm(reg);
            }
        }
    }

    fn after_call(&mut self) {
        for reg in Reg::ARGS {
            self.scalars.remove(reg);
        }
        self.scalars.insert(Reg::R0);
    }

    fn call_helper(&mut self) {
        self.arguments(0);
        self.emit(Insn::Call(Callee::Helper(HELPER_ID)));
        self.after_call();
    }

    /// A subprogram gets the memory in r1 and scalars in r2 to r5.
    fn call_subprogram(&mut self) {
        if self.callees.is_empty() {
            return self.arithmetic();
        }
        let callee = self.choices.below(self.callees.len() as u32) as usize;
        if !self.affordable(self.callees[callee].cost()) {
            return self.arithmetic();
        }
        self.arguments(1);
        match self.home {
            Home::Reg(reg) => self.emit(Insn::Mov { width: Width::W64, dst: Reg::R1, src: Src::Reg(reg) }),
            Home::Stack => {
                self.emit(Insn::Load { size: Size::DW, sign: false, dst: Reg::R1, base: Reg::R10, off: HOME_SLOT });
            }
        }
        self.call(callee);
        self.after_call();
    }

    /// LD_ABS and LD_IND want the context in r6; one access in eight is out of range, which ends the function.
    fn packet_load(&mut self) {
        if self.home != Home::Reg(Reg::R6) {
            return self.arithmetic();
        }
        let size = self.choices.pick(&[Size::W, Size::H, Size::B]);
        let range = if self.choices.one_in(8) { self.shape.memory * 2 } else { self.shape.memory - size.bytes() + 1 };
        let at = self.choices.below(range) as i32;
        let base = if self.choices.one_in(4) { self.choices.pick(&[SKF_LL_OFF, SKF_NET_OFF]) } else { 0 };
        let imm = base + at;
        if self.choices.one_in(2) {
            let src = self.scalar_destination();
            self.alu(Width::W32, AluOp::And, src, Src::Imm(7));
            self.emit(Insn::LoadInd { size, src, imm: imm - 7 });
        } else {
            self.emit(Insn::LoadAbs { size, imm });
        }
        self.after_call();
    }
}

/// The immediate, or the nearest one that the kernel's verifier takes.
fn kernel_imm(width: Width, op: AluOp, imm: i32) -> i32 {
    let bits = match width {
        Width::W64 => 64,
        Width::W32 => 32,
    };
    match op {
        AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => imm.rem_euclid(bits),
        AluOp::Div | AluOp::SDiv | AluOp::Mod | AluOp::SMod => {
            if imm == 0 {
                1
            } else {
                imm
            }
        }
        AluOp::Add | AluOp::Sub | AluOp::Mul | AluOp::Or | AluOp::And | AluOp::Xor => imm,
    }
}
