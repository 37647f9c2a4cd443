//! Loops whose safety depends on relations between variables: `out <= in`, `i + j == n`, a pointer and the number of
//! bytes behind it, two pointers, a falling variable beside a rising one.
//!
//! A loop is made of *moves* of two numbers, a bound and two packet pointers, in registers and slots: steps, steps on
//! one of two ways, sums and differences behind a comparison, copies, multiples, halves, narrow ones; accesses at them,
//! in the loop and after it; exits in its middle; loops in it that move the same variables. The generator does not know
//! which such programs are safe, so offsets are the greatest that one of the variables' bounds would allow, and beside
//! that: the verifier's conclusions about the others decide. Only the number of rounds is small, by a count of its own.

use super::emit::{Builder, POINTERS, SIZES, WIDTHS, slot};
use super::{Context, GLOBAL_VALUE, MapId, Role};
use bpf_isa::{AluOp, Cond, Insn, Reg, Size, Src, Width};

/// The place of a variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Var {
    Reg(Reg),
    Slot(i16),
}

/// Moves that a loop surely contains, among its random moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Plot {
    Any,
    /// A pointer falls from where the bound is, while the count rises.
    Falls(i32),
    /// Both pointers are put at multiples of one number; one is checked, and another accessed.
    Multiples(i32, i32),
    /// A pointer is moved before the packet, and back.
    Before(i32),
}

/// Variables that a loop moves.
#[derive(Clone, Debug)]
struct Vars {
    /// Two that move, the bound, and a count.
    numbers: Vec<Var>,
    pointers: Vec<Var>,
    /// Slots of the packet's start and end.
    packet: Option<(i16, i16)>,
    /// The bound is this at most.
    most: u32,
    /// Counts of rounds: outer, inner.
    counts: [Var; 2],
    /// No variable is in a register that a statement may use.
    roomy: bool,
    plot: Plot,
    /// Jumps out of the loop around, to be resolved.
    exits: Vec<usize>,
}

const ORDERS: [Cond; 10] =
    [Cond::Gt, Cond::Ge, Cond::Lt, Cond::Le, Cond::Ge, Cond::Gt, Cond::Eq, Cond::Ne, Cond::SGt, Cond::SGe];

impl Builder<'_, '_> {
    /// A loop of this kind, and what follows from it.
    pub(super) fn related_loop(&mut self) {
        let free = self.busy.slots & 0xf == 0 && self.busy.numbers == [false; 2] && self.busy.pointers & 0b11 == 0;
        if !free || self.rounds >= 4 || self.depth >= 2 || self.busy.owes || self.busy.locked || *self.lures == 0 {
            return self.arithmetic();
        }
        *self.lures -= 1;
        let packet = self.has_ctx()
            && !(self.context == Context::Raw && matches!(self.role, Role::Global { .. }))
            && self.c.below(3) > 0;
        let outside = (self.busy, self.rounds);
        self.busy.slots |= 0xf;
        self.busy.pointers |= 0b11;
        self.busy.numbers = [true; 2];
        self.busy.packet = true;
        // A variable is in a register or on the stack, at random.
        let mut place = |reg: Reg, at: u32| if self.c.one_in(4) { Var::Slot(slot(at)) } else { Var::Reg(reg) };
        let numbers = vec![place(Reg::R1, 0), place(Reg::R2, 1), Var::Reg(Reg::R9)];
        let roomy = numbers[..2].iter().all(|v| matches!(v, Var::Slot(_))) && !packet;
        let mut vars = Vars {
            numbers,
            pointers: if packet { vec![Var::Reg(Reg::R3), Var::Reg(Reg::R4)] } else { Vec::new() },
            packet: packet.then_some((POINTERS[0], POINTERS[1])),
            most: 0,
            counts: [Var::Reg(Reg::R8), Var::Slot(slot(2))],
            roomy,
            plot: Plot::Any,
            exits: Vec::new(),
        };
        if packet {
            let by = self.c.pick(&[1, 1, 2, 3]);
            vars.plot = match self.c.below(8) {
                0 | 1 => Plot::Falls(-by),
                2 | 3 => {
                    let (a, b) = self.c.pick(&[(2, 1), (3, 1), (1, 2), (4, 2), (1, 1)]);
                    Plot::Multiples(a, b)
                }
                4 => Plot::Before(by * 8),
                _ => Plot::Any,
            };
        }
        if packet {
            self.packet_ends();
            self.store(Size::DW, Reg::R10, POINTERS[0], Src::Reg(Reg::R1));
            self.store(Size::DW, Reg::R10, POINTERS[1], Src::Reg(Reg::R2));
            self.lens.extend([4, 8, 32]);
        }
        self.begin(&mut vars);
        // Facts at the loop's beginning may follow from a comparison.
        if self.c.one_in(2) {
            let (dst, src, cond, width) = self.comparison(&vars);
            self.skip(|off| Insn::JumpIf { width, cond, dst, src, off }, |b| b.turn_and_use(&mut vars));
        } else {
            self.turn_and_use(&mut vars);
        }
        if packet {
            self.store(Size::DW, Reg::R10, POINTERS[0], Src::Imm(0));
            self.store(Size::DW, Reg::R10, POINTERS[1], Src::Imm(0));
        }
        self.imm(Reg::R0, 0);
        self.busy = outside.0;
        self.rounds = outside.1;
    }

    fn turn_and_use(&mut self, vars: &mut Vars) {
        self.turn(vars, 0);
        if matches!(vars.plot, Plot::Falls(_)) {
            self.access_at(vars.numbers[2], vars.most, 0);
        }
        let uses = if vars.plot == Plot::Any { 1 + self.c.below(2) } else { self.c.below(2) };
        for _ in 0..uses {
            self.use_one(vars);
        }
    }

    /// Emits the plot's moves at the beginning and at the end of a round.
    fn plot_begins(&mut self, vars: &Vars) {
        let Some((_, end)) = vars.packet else { return };
        match vars.plot {
            Plot::Any | Plot::Before(_) => {}
            Plot::Falls(_) => self.access_at(vars.counts[0], vars.most, 0),
            Plot::Multiples(a, b) => {
                // Mostly, that of the smaller multiple is checked.
                let pairs = [(Reg::R3, Reg::R4), (Reg::R4, Reg::R3)];
                let (checked, used) = pairs[usize::from((a > b) == (self.c.below(4) > 0))];
                self.load(Size::DW, Reg::R5, Reg::R10, end);
                self.address(Reg::R0, checked, 1);
                self.skip_if(Cond::Gt, Reg::R0, Src::Reg(Reg::R5), |b| b.touch_at(Size::B, used, 0));
            }
        }
    }

    fn plot_ends(&mut self, vars: &Vars) {
        let Some((start, _)) = vars.packet else { return };
        match vars.plot {
            Plot::Any => {}
            Plot::Falls(by) => self.alu(AluOp::Add, Reg::R3, Src::Imm(by)),
            Plot::Before(by) => {
                let v = vars.numbers[self.c.below(3) as usize];
                let r = self.get(v, Reg::R0);
                let p = self.c.pick(&[Reg::R3, Reg::R4]);
                self.alu(AluOp::Sub, p, Src::Imm(by));
                match self.c.below(3) {
                    0 => self.add(p, r),
                    1 => self.alu(AluOp::Sub, p, Src::Reg(r)),
                    _ => {}
                }
                self.alu(AluOp::Add, p, Src::Imm(by));
            }
            Plot::Multiples(a, b) => {
                self.unknown(Reg::R5);
                let mask = self.c.pick(&[3, 31, 63, 127]);
                self.alu(AluOp::And, Reg::R5, Src::Imm(mask));
                for (p, by) in [(Reg::R3, a), (Reg::R4, b)] {
                    self.load(Size::DW, p, Reg::R10, start);
                    self.mov(Reg::R0, Reg::R5);
                    if by > 1 {
                        self.alu(AluOp::Mul, Reg::R0, Src::Imm(by));
                    }
                    self.add(p, Reg::R0);
                }
            }
        }
    }

    /// An access at the variable that is inside if it is at most so much, and so far beside that.
    fn access_at(&mut self, v: Var, most: u32, beside: i16) {
        let size = self.c.pick(&SIZES);
        let off = (GLOBAL_VALUE - size.bytes()).saturating_sub(most) as i16 + beside;
        let r = self.get(v, Reg::R0);
        self.map_value(Reg::R5, MapId::Global, 0);
        self.add(Reg::R5, r);
        self.touch_at(size, Reg::R5, off);
    }

    /// Returns the variable's register; a variable in a slot is loaded to `temp`.
    fn get(&mut self, v: Var, temp: Reg) -> Reg {
        match v {
            Var::Reg(r) => r,
            Var::Slot(off) => {
                self.load(Size::DW, temp, Reg::R10, off);
                temp
            }
        }
    }

    fn put(&mut self, v: Var, r: Reg) {
        match v {
            Var::Reg(own) if own == r => {}
            Var::Reg(own) => self.mov(own, r),
            Var::Slot(off) => self.store(Size::DW, Reg::R10, off, Src::Reg(r)),
        }
    }

    /// Sets the variables' first values.
    fn begin(&mut self, vars: &mut Vars) {
        let mask = self.c.pick(&[3, 7, 15, 31, 63]);
        vars.most = mask;
        let bound = vars.numbers[2];
        match (vars.packet, self.c.below(5)) {
            (Some((start, end)), 0 | 1) => {
                // The packet's length, perhaps clamped.
                self.load(Size::DW, Reg::R9, Reg::R10, end);
                self.load(Size::DW, Reg::R0, Reg::R10, start);
                self.push(Insn::Alu { width: Width::W64, op: AluOp::Sub, dst: Reg::R9, src: Src::Reg(Reg::R0) });
                if self.c.one_in(3) {
                    self.alu(AluOp::And, Reg::R9, Src::Imm(mask as i32));
                }
            }
            (_, 2) => {
                self.imm(Reg::R0, mask as i32);
                self.put(bound, Reg::R0);
            }
            _ => {
                self.unknown(Reg::R0);
                self.alu(AluOp::And, Reg::R0, Src::Imm(mask as i32));
                self.put(bound, Reg::R0);
            }
        }
        for i in 0..2 {
            match self.c.below(6) {
                0 | 1 => self.imm(Reg::R0, 0),
                2 => {
                    let n = self.c.below(8) as i32;
                    self.imm(Reg::R0, n);
                }
                3 => {
                    let r = self.get(bound, Reg::R0);
                    self.mov(Reg::R0, r);
                }
                4 if i == 1 => {
                    let r = self.get(vars.numbers[0], Reg::R0);
                    self.mov(Reg::R0, r);
                }
                _ => {
                    self.unknown(Reg::R0);
                    let mask = self.c.pick(&[1, 3, 7, 15]);
                    self.alu(AluOp::And, Reg::R0, Src::Imm(mask));
                }
            }
            self.put(vars.numbers[i], Reg::R0);
        }
        for i in 0..vars.pointers.len() {
            self.place_pointer(vars, i);
        }
        if let (Plot::Falls(_), Some((start, _))) = (vars.plot, vars.packet) {
            self.load(Size::DW, Reg::R3, Reg::R10, start);
            self.add(Reg::R3, Reg::R9);
        }
    }

    /// A pointer at a place that the numbers say, or beside the other.
    fn place_pointer(&mut self, vars: &Vars, i: usize) {
        let (Some((start, _)), Var::Reg(p)) = (vars.packet, vars.pointers[i]) else { return };
        if self.c.one_in(6) {
            let Var::Reg(other) = vars.pointers[1 - i] else { return };
            if i == 1 {
                return self.mov(p, other);
            }
        }
        self.load(Size::DW, p, Reg::R10, start);
        match self.c.below(4) {
            0 => {}
            1 => {
                let c = self.c.pick(&[1, 2, 4, 8]);
                self.alu(AluOp::Add, p, Src::Imm(c));
            }
            n => {
                let v = vars.numbers[self.c.below(3) as usize];
                let r = self.get(v, Reg::R0);
                if n == 3 {
                    self.mov(Reg::R0, r);
                    let (op, by) = self.c.pick(&[(AluOp::Lsh, 1), (AluOp::Mul, 3), (AluOp::Rsh, 1), (AluOp::And, 7)]);
                    self.alu(op, Reg::R0, Src::Imm(by));
                    self.add(p, Reg::R0);
                } else {
                    self.add(p, r);
                }
            }
        }
    }

    /// A loop around some moves.
    fn turn(&mut self, vars: &mut Vars, level: usize) {
        let outside = std::mem::take(&mut vars.exits);
        let count = vars.counts[level];
        let rounds = if level == 0 { self.c.pick(&[4, 9, 20, 20]) } else { 2 + self.c.below(5) };
        self.rounds *= rounds;
        self.cost += 60 * self.rounds;
        self.imm(Reg::R0, 0);
        self.put(count, Reg::R0);
        let head = self.code.len();
        let moves = if level == 0 { 2 + self.c.below(5) } else { 1 + self.c.below(3) };
        let inner = level == 0 && self.c.one_in(4);
        let at = self.c.below(moves);
        // A plot needs little beside it.
        let moves = if level == 0 && vars.plot != Plot::Any && !inner { self.c.below(2) } else { moves };
        if level == 0 {
            self.plot_begins(vars);
        }
        for i in 0..moves {
            if inner && i == at {
                self.turn(vars, 1);
            } else if vars.roomy && self.c.one_in(8) {
                self.depth += 1;
                self.statement();
                self.depth -= 1;
            } else {
                self.move_one(vars);
            }
        }
        if vars.plot == Plot::Any && self.c.below(3) > 0 {
            self.use_one(vars);
        }
        if level == 0 {
            self.plot_ends(vars);
        }
        let r = self.get(count, Reg::R0);
        self.alu(AluOp::Add, r, Src::Imm(1));
        self.put(count, r);
        if self.c.one_in(2) {
            // The count only ends what the variables do not.
            self.exit_if(vars, Cond::Ge, r, Src::Imm(rounds as i32), Width::W64);
            let (dst, src, cond, width) = self.comparison(vars);
            let off = (head as i64 - self.code.len() as i64 - 1) as i16;
            self.push(Insn::JumpIf { width, cond, dst, src, off });
        } else {
            let cond = self.c.pick(&[Cond::Lt, Cond::Lt, Cond::Ne]);
            self.back(head, cond, r, Src::Imm(rounds as i32));
        }
        let out = self.code.len();
        for at in std::mem::replace(&mut vars.exits, outside) {
            if let Insn::JumpIf { off, .. } = &mut self.code[at] {
                *off = (out - at - 1) as i16;
            }
        }
        self.rounds /= rounds;
    }

    /// Leaves the loop around.
    fn exit_if(&mut self, vars: &mut Vars, cond: Cond, dst: Reg, src: Src, width: Width) {
        vars.exits.push(self.code.len());
        self.push(Insn::JumpIf { width, cond, dst, src, off: 0 });
    }

    /// Two of the variables, or one and a constant, and how to compare them.
    fn comparison(&mut self, vars: &Vars) -> (Reg, Src, Cond, Width) {
        let cond = self.c.pick(&ORDERS);
        if let (Some((start, end)), true) = (vars.packet, self.c.one_in(2)) {
            let cond = if matches!(cond, Cond::SGt | Cond::SGe) { Cond::Gt } else { cond };
            let Var::Reg(p) = vars.pointers[self.c.below(2) as usize] else {
                return (Reg::R0, Src::Imm(0), cond, Width::W64);
            };
            match self.c.below(4) {
                0 => {
                    self.load(Size::DW, Reg::R0, Reg::R10, start);
                    return (p, Src::Reg(Reg::R0), cond, Width::W64);
                }
                1 => return (Reg::R3, Src::Reg(Reg::R4), cond, Width::W64),
                _ => {
                    self.load(Size::DW, Reg::R5, Reg::R10, end);
                    let ahead = self.c.pick(&[0, 1, 1, 2, 4, 8]);
                    self.address(Reg::R0, p, ahead);
                    return (Reg::R0, Src::Reg(Reg::R5), cond, Width::W64);
                }
            }
        }
        let a = vars.numbers[self.c.below(3) as usize];
        let b = vars.numbers[self.c.below(3) as usize];
        let width = if self.c.one_in(4) { Width::W32 } else { Width::W64 };
        let dst = self.get(a, Reg::R0);
        if a == b || self.c.one_in(4) {
            let than = self.c.pick(&[0, 1, vars.most as i32, vars.most as i32 - 1, vars.most as i32 + 1, 8]);
            return (dst, Src::Imm(than), cond, width);
        }
        let src = self.get(b, Reg::R5);
        let ahead = self.c.pick(&[0, 0, 0, 1, -1, 2]);
        if ahead != 0 {
            self.mov(Reg::R5, src);
            self.alu(AluOp::Add, Reg::R5, Src::Imm(ahead));
            return (dst, Src::Reg(Reg::R5), cond, width);
        }
        (dst, Src::Reg(src), cond, width)
    }

    /// Moves one of the variables, or leaves.
    fn move_one(&mut self, vars: &mut Vars) {
        let i = self.c.below(2) as usize;
        let (v, other) = (vars.numbers[i], vars.numbers[self.c.pick(&[1 - i, 1 - i, 2])]);
        let step = self.c.pick(&[1, 1, 1, -1, -1, 2, -2, 3, 8]);
        let width = if self.c.one_in(5) { Width::W32 } else { Width::W64 };
        let change = |b: &mut Self, op: AluOp, src: Src| {
            let r = b.get(v, Reg::R0);
            b.push(Insn::Alu { width, op, dst: r, src });
            b.put(v, r);
        };
        match self.c.below(14) {
            0..=2 => change(self, AluOp::Add, Src::Imm(step)),
            3 => {
                self.unknown(Reg::R0);
                let (cond, than) = (self.c.pick(&Cond::ALL), self.small_imm());
                self.skip_if(cond, Reg::R0, Src::Imm(than), |b| change(b, AluOp::Add, Src::Imm(step)));
            }
            4 | 5 => {
                let (dst, src, cond, width) = self.comparison(vars);
                self.exit_if(vars, cond, dst, src, width);
            }
            6 => {
                let r = self.get(other, Reg::R0);
                self.put(v, r);
            }
            7 => {
                // The amount subtracted from one variable is added to the other.
                let mask = self.c.pick(&[1, 3, 7]);
                self.unknown(Reg::R5);
                self.alu(AluOp::And, Reg::R5, Src::Imm(mask));
                let r = self.get(v, Reg::R0);
                let cond = self.c.pick(&[Cond::Gt, Cond::Gt, Cond::Gt, Cond::Ge]);
                self.exit_if(vars, cond, Reg::R5, Src::Reg(r), Width::W64);
                self.push(Insn::Alu { width, op: AluOp::Sub, dst: r, src: Src::Reg(Reg::R5) });
                self.put(v, r);
                let r = self.get(vars.numbers[1 - i], Reg::R0);
                self.add(r, Reg::R5);
                self.put(vars.numbers[1 - i], r);
                if let (Some(Var::Reg(p)), true) = (vars.pointers.first().copied(), self.c.one_in(2)) {
                    self.add(p, Reg::R5);
                }
            }
            8 => {
                // A difference, behind a comparison or not.
                let (a, b) = (self.get(v, Reg::R0), self.get(other, Reg::R5));
                if self.c.below(4) > 0 {
                    self.exit_if(vars, Cond::Lt, a, Src::Reg(b), Width::W64);
                }
                self.push(Insn::Alu { width, op: AluOp::Sub, dst: a, src: Src::Reg(b) });
                self.put(v, a);
            }
            9 => {
                let (op, by) = self.c.pick(&[
                    (AluOp::Rsh, 1),
                    (AluOp::Lsh, 1),
                    (AluOp::Mul, 3),
                    (AluOp::And, 15),
                    (AluOp::And, -4),
                    (AluOp::Div, 3),
                    (AluOp::Mod, 5),
                ]);
                change(self, op, Src::Imm(by));
            }
            10 => {
                // A sum, or its half.
                let (a, b) = (self.get(v, Reg::R0), self.get(other, Reg::R5));
                self.push(Insn::Alu { width, op: AluOp::Add, dst: a, src: Src::Reg(b) });
                if self.c.one_in(2) {
                    self.alu(AluOp::Rsh, a, Src::Imm(1));
                }
                self.put(v, a);
            }
            11 if !vars.pointers.is_empty() => {
                let at = self.c.below(2) as usize;
                self.place_pointer(vars, at);
            }
            12 | 13 if !vars.pointers.is_empty() => {
                let Var::Reg(p) = vars.pointers[self.c.below(2) as usize] else { return };
                match self.c.below(4) {
                    0 => {
                        let r = self.get(v, Reg::R0);
                        let op = self.c.pick(&[AluOp::Add, AluOp::Add, AluOp::Sub]);
                        self.alu(op, p, Src::Reg(r));
                    }
                    _ => self.alu(AluOp::Add, p, Src::Imm(step)),
                }
            }
            _ => self.use_one(vars),
        }
    }

    /// An access at one of the variables, as far from the end of the memory as one of them, or its bound, would allow.
    fn use_one(&mut self, vars: &Vars) {
        let size = self.c.pick(&SIZES);
        if let (Some((_, end)), true) = (vars.packet, self.c.one_in(2)) {
            let Var::Reg(p) = vars.pointers[self.c.below(2) as usize] else { return };
            let off = self.c.pick(&[0, 0, 0, 1, -1, 2]);
            if self.c.one_in(3) {
                self.touch_at(size, p, off);
            } else {
                self.load(Size::DW, Reg::R5, Reg::R10, end);
                // The check may be of the other pointer.
                let Var::Reg(of) = vars.pointers[self.c.below(2) as usize] else { return };
                let ahead = i32::from(off) + size.bytes() as i32 + self.c.pick(&[0, 0, 0, -1]);
                self.address(Reg::R0, of, ahead);
                self.skip_if(Cond::Gt, Reg::R0, Src::Reg(Reg::R5), |b| b.touch_at(size, p, off));
            }
            return;
        }
        let which = self.c.below(4) as usize;
        let v = *vars.numbers.get(which).unwrap_or(&vars.counts[0]);
        let most = self.c.pick(&[vars.most, vars.most, vars.most, vars.most - 1, 2 * vars.most, 15, 19, 40]);
        let off = (GLOBAL_VALUE - size.bytes()).saturating_sub(most) as i16 + self.c.pick(&[0, 0, 0, 0, 1, -1]);
        let guard = self.c.one_in(3).then(|| (self.c.pick(&ORDERS), self.c.pick(&WIDTHS)));
        let r = self.get(v, Reg::R0);
        let touch = |b: &mut Self| {
            b.map_value(Reg::R5, MapId::Global, 0);
            b.add(Reg::R5, r);
            b.touch_at(size, Reg::R5, off);
        };
        match guard {
            Some((cond, width)) => {
                let imm = most as i32;
                self.skip(|off| Insn::JumpIf { width, cond, dst: r, src: Src::Imm(imm), off }, touch);
            }
            None => touch(self),
        }
    }

    /// Like [`Builder::touch`], but for registers in which variables are.
    fn touch_at(&mut self, size: Size, base: Reg, off: i16) {
        if self.c.one_in(4) {
            let imm = self.small_imm();
            self.store(size, base, off, Src::Imm(imm));
        } else {
            self.load(size, Reg::R0, base, off);
        }
    }
}
