//! Programs with more values alive than a machine has registers, in loops and around calls.
//!
//! Most programs do not exercise the register allocator and the promotion of stack slots: they have few values, and
//! write and read a place in the stack with one size. The programs generated here keep up to 24 pieces of stack alive
//! beside all registers, write them with several sizes, read them whole or in part, count up to limits that are
//! constants, registers or both at once, shift by counts near the width, and ask the same comparison twice.
//!
//! Invariants: a program stays inside its stack and the 64 bytes at r1; all of the stack that it reads was written
//! before; it ends within some tens of thousands of instructions; no address is in its result.

use super::{Choices, HELPER_ID};
use bpf_isa::{AluOp, Callee, Cond, Insn, Reg, Size, Src, Width};

const SIZES: [Size; 4] = [Size::B, Size::H, Size::W, Size::DW];
const WIDTHS: [Width; 2] = [Width::W64, Width::W32];
/// Registers that may hold any number; r6 is the memory, the last two count.
const SCALARS: [Reg; 7] = [Reg::R0, Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5, Reg::R7];
const COUNTERS: [Reg; 2] = [Reg::R8, Reg::R9];
/// Offsets of calls until where the functions are is known.
const WRITER: i32 = i32::MAX;
const READER: i32 = i32::MAX - 1;

/// Use of a piece of the stack.
#[derive(Clone, Copy)]
enum Use {
    /// Stored whole.
    Whole,
    /// Stored with at least this size, loaded with at most this size.
    Tidy(Size),
    /// Anything.
    Wild,
}

struct Maker<'a, 'b> {
    choices: &'a mut Choices<'b>,
    insns: Vec<Insn>,
    /// The use of each piece of eight bytes.
    uses: Vec<Use>,
    /// Number of enclosing loops.
    depth: usize,
    /// Whether the stack's address is given to functions.
    lends: bool,
    /// Whether an enclosing loop ends at the number in r7, which its body must not write.
    limited: bool,
}

/// A program over 64 bytes at r1.
pub fn pressure(choices: &mut Choices<'_>) -> Vec<Insn> {
    let pieces = choices.pick(&[2, 8, 16, 24]);
    let uses = (0..pieces)
        .map(|_| match choices.below(5) {
            0 | 1 => Use::Whole,
            2 | 3 => Use::Tidy(choices.pick(&SIZES)),
            _ => Use::Wild,
        })
        .collect();
    let lends = choices.one_in(8);
    let mut maker = Maker { choices, insns: Vec::new(), uses, depth: 0, lends, limited: false };
    maker.begin();
    let statements = 4 + maker.choices.below(24);
    maker.statements(statements);
    maker.end();
    maker.link()
}

fn alu(width: Width, op: AluOp, dst: Reg, src: Src) -> Insn {
    Insn::Alu { width, op, dst, src }
}

fn mov(dst: Reg, src: Src) -> Insn {
    Insn::Mov { width: Width::W64, dst, src }
}

fn load(size: Size, dst: Reg, base: Reg, off: i16) -> Insn {
    Insn::Load { size, sign: false, dst, base, off }
}

impl Maker<'_, '_> {
    fn scalar(&mut self) -> Reg {
        self.choices.pick(if self.limited { &SCALARS[..6] } else { &SCALARS })
    }

    /// A counter of a loop around is as good as a scalar, but is not written.
    fn read(&mut self) -> Reg {
        match self.choices.below(8) {
            7 if self.depth > 0 => COUNTERS[self.choices.below(self.depth as u32) as usize],
            6 if self.limited => Reg::R7,
            _ => self.scalar(),
        }
    }

    fn src(&mut self) -> Src {
        if self.choices.one_in(3) { Src::Imm(self.choices.imm()) } else { Src::Reg(self.read()) }
    }

    fn width(&mut self) -> Width {
        self.choices.pick(&WIDTHS)
    }

    fn off(piece: usize) -> i16 {
        -8 * (piece as i16 + 1)
    }

    fn begin(&mut self) {
        self.insns.push(mov(Reg::R6, Src::Reg(Reg::R1)));
        for (i, reg) in SCALARS.into_iter().chain(COUNTERS).enumerate() {
            if reg != Reg::R1 && !self.choices.one_in(4) {
                self.insns.push(load(Size::DW, reg, Reg::R6, 8 * (i as i16 % 8)));
            } else {
                let imm = self.choices.imm();
                self.insns.push(mov(reg, Src::Imm(imm)));
            }
        }
        for piece in 0..self.uses.len() {
            let mut src = self.src();
            if !self.choices.one_in(3) {
                // Each piece gets a value of its own: constants and copies would need no place.
                let factor = 2 * piece as i32 + 3;
                self.insns.push(load(Size::DW, Reg::R0, Reg::R6, 8 * (piece as i16 % 8)));
                self.insns.push(alu(Width::W64, AluOp::Mul, Reg::R0, Src::Imm(factor)));
                src = Src::Reg(Reg::R0);
            }
            self.insns.push(Insn::Store { size: Size::DW, base: Reg::R10, off: Self::off(piece), src });
        }
    }

    /// Makes live registers part of the result, and half of the stack, so that some places become free before.
    fn end(&mut self) {
        for reg in SCALARS.into_iter().skip(1).chain(COUNTERS) {
            self.insns.push(alu(Width::W64, AluOp::Mul, Reg::R0, Src::Imm(31)));
            self.insns.push(alu(Width::W64, AluOp::Xor, Reg::R0, Src::Reg(reg)));
        }
        for piece in 0..self.uses.len() {
            if self.choices.one_in(2) {
                continue;
            }
            let size = match self.uses[piece] {
                Use::Tidy(size) => size,
                Use::Whole | Use::Wild => Size::DW,
            };
            self.insns.push(load(size, Reg::R1, Reg::R10, Self::off(piece)));
            self.insns.push(alu(Width::W64, AluOp::Mul, Reg::R0, Src::Imm(31)));
            self.insns.push(alu(Width::W64, AluOp::Add, Reg::R0, Src::Reg(Reg::R1)));
        }
        self.insns.push(Insn::Exit);
    }

    /// Appends the functions that are called.
    fn link(mut self) -> Vec<Insn> {
        for (mark, body) in [
            (
                WRITER,
                [
                    load(Size::DW, Reg::R0, Reg::R1, 0),
                    Insn::Store { size: Size::W, base: Reg::R1, off: 4, src: Src::Reg(Reg::R2) },
                ],
            ),
            (READER, [load(Size::H, Reg::R0, Reg::R1, 6), alu(Width::W64, AluOp::Sub, Reg::R0, Src::Reg(Reg::R3))]),
        ] {
            let callee = self.insns.len() as i32;
            let mut called = false;
            for (at, insn) in (0..).zip(&mut self.insns) {
                if *insn == Insn::Call(Callee::Subprog(mark)) {
                    (*insn, called) = (Insn::Call(Callee::Subprog(callee - at - 1)), true);
                }
            }
            if called {
                self.insns.extend(body);
                self.insns.push(Insn::Exit);
            }
        }
        self.insns
    }

    fn statements(&mut self, count: u32) {
        for _ in 0..count {
            self.statement();
        }
    }

    fn statement(&mut self) {
        match self.choices.below(16) {
            0 | 1 => self.arithmetic(),
            2 | 3 => self.store(),
            4 | 5 => self.load(),
            6 => self.shift(),
            7 => self.rotated(),
            8 | 9 => self.skip(),
            10 => self.asked_twice(),
            11 => self.indexed(),
            12 => self.call(),
            _ if self.depth < COUNTERS.len() => self.counted(),
            _ => self.arithmetic(),
        }
    }

    fn arithmetic(&mut self) {
        use AluOp::{Add, And, Div, Mod, Mul, Or, Sub, Xor};
        let op = self.choices.pick(&[Add, Xor, Sub, Add, And, Or, Mul, Add, Xor, Div, Mod]);
        let (width, dst, src) = (self.width(), self.scalar(), self.src());
        let of = self.read();
        self.insns.push(match self.choices.below(8) {
            6 => Insn::Mov { width, dst, src },
            7 => Insn::MovSx { width: Width::W64, dst, src: of, from: bpf_isa::SxWidth::S32 },
            _ => alu(width, op, dst, src),
        });
    }

    fn piece(&mut self) -> usize {
        self.choices.below(self.uses.len() as u32) as usize
    }

    fn sizes(low: Size, high: Size) -> &'static [Size] {
        let at = |size| SIZES.iter().position(|other| *other == size).unwrap_or(0);
        &SIZES[at(low)..=at(high)]
    }

    fn store(&mut self) {
        let piece = self.piece();
        let (size, inside) = match self.uses[piece] {
            Use::Whole => (Size::DW, 0),
            Use::Tidy(size) => (self.choices.pick(Self::sizes(size, Size::DW)), 0),
            Use::Wild => (self.choices.pick(&SIZES), self.choices.pick(&[0, 0, 0, 4])),
        };
        let inside = if size == Size::DW { 0 } else { inside };
        let src = self.src();
        self.insns.push(Insn::Store { size, base: Reg::R10, off: Self::off(piece) + inside, src });
    }

    fn load(&mut self) {
        let piece = self.piece();
        let (size, inside) = match self.uses[piece] {
            Use::Whole => (self.choices.pick(&SIZES), 0),
            Use::Tidy(size) => (self.choices.pick(Self::sizes(Size::B, size)), 0),
            Use::Wild => (self.choices.pick(&SIZES), self.choices.pick(&[0, 0, 0, 4])),
        };
        let inside = if size == Size::DW { 0 } else { inside };
        let sign = size != Size::DW && self.choices.one_in(4);
        let dst = self.scalar();
        self.insns.push(Insn::Load { size, sign, dst, base: Reg::R10, off: Self::off(piece) + inside });
    }

    /// A shift whose count was masked, with the machine's mask or a narrower or wider one, or changed by multiples of
    /// the width.
    fn shift(&mut self) {
        let (width, dst, count, of) = (self.width(), self.scalar(), self.scalar(), self.read());
        self.insns.push(mov(count, Src::Reg(of)));
        if self.choices.one_in(3) {
            let add = self.choices.pick(&[32, 64, -32, 1, -1, 96]);
            self.insns.push(alu(self.choices.pick(&WIDTHS), AluOp::Add, count, Src::Imm(add)));
        }
        if !self.choices.one_in(4) {
            let mask = self.choices.pick(&[31, 63, 64, 62, 95, 127, 15, 255, 32, -1]);
            self.insns.push(alu(self.choices.pick(&WIDTHS), AluOp::And, count, Src::Imm(mask)));
        }
        if self.choices.one_in(4) {
            self.insns.push(alu(width, AluOp::Xor, count, Src::Imm(self.choices.pick(&[31, 63, 64, 32]))));
        }
        let op = self.choices.pick(&[AluOp::Lsh, AluOp::Rsh, AluOp::Arsh]);
        self.insns.push(alu(width, op, dst, Src::Reg(count)));
        // And the other way, as rotations are written.
        if dst != count && self.choices.one_in(3) {
            let other = self.scalar();
            self.insns.push(Insn::Neg { width: self.choices.pick(&WIDTHS), dst: count });
            if self.choices.one_in(2) {
                self.insns.push(alu(width, AluOp::And, count, Src::Imm(self.choices.pick(&[31, 63]))));
            }
            self.insns.push(alu(width, AluOp::Rsh, other, Src::Reg(count)));
            self.insns.push(alu(width, AluOp::Or, dst, Src::Reg(other)));
        }
    }

    /// A product that is rotated, as compilers write it; or nearly.
    fn rotated(&mut self) {
        let (width, high, low, of) = (self.width(), self.scalar(), self.scalar(), self.read());
        let bits = if width == Width::W32 { 32 } else { 64 };
        let factor = self.choices.pick(&[0x1b87_3593_u32 as i32, 5, -7, 0x7fff_fff1, 3]);
        let left = 1 + self.choices.below(if width == Width::W32 { 31 } else { 20 });
        let multiplied = if width == Width::W32 { factor.wrapping_shl(left) } else { factor << left.min(4) };
        let right = bits - if width == Width::W32 { left as i32 } else { left.min(4) as i32 };
        let near = i32::from(self.choices.one_in(4));
        self.insns.extend([
            mov(high, Src::Reg(of)),
            mov(low, Src::Reg(high)),
            alu(width, AluOp::Mul, high, Src::Imm(multiplied.wrapping_add(near))),
            alu(width, AluOp::Mul, low, Src::Imm(factor)),
            alu(self.choices.pick(&[width, width, Width::W64]), AluOp::Rsh, low, Src::Imm(right)),
            alu(self.choices.pick(&[width, Width::W64]), AluOp::Or, high, Src::Reg(low)),
        ]);
    }

    fn condition(&mut self) -> (Width, Cond, Reg, Src) {
        let src = if self.choices.one_in(2) { Src::Imm(self.choices.imm()) } else { Src::Reg(self.read()) };
        (self.width(), self.choices.pick(&Cond::ALL), self.read(), src)
    }

    /// Returns the instructions that `body` makes, and their length in slots.
    fn nested(&mut self, body: impl FnOnce(&mut Self)) -> (Vec<Insn>, i16) {
        let outer = std::mem::take(&mut self.insns);
        body(self);
        let inner = std::mem::replace(&mut self.insns, outer);
        let length = inner.len() as i16;
        (inner, length)
    }

    fn jump_if(&mut self, (width, cond, dst, src): (Width, Cond, Reg, Src), off: i16) {
        self.insns.push(Insn::JumpIf { width, cond, dst, src, off });
    }

    fn little(&mut self) {
        for _ in 0..1 + self.choices.below(2) {
            let at = self.insns.len();
            self.arithmetic();
            if let Insn::Alu { op: op @ (AluOp::Div | AluOp::Mod | AluOp::Mul), .. } = &mut self.insns[at] {
                *op = AluOp::Xor;
            }
        }
    }

    /// A branch over a little or over anything, perhaps with another way.
    fn skip(&mut self) {
        let condition = self.condition();
        let (body, length) = self.nested(|maker| match maker.choices.below(4) {
            0 => maker.statements(2),
            _ => maker.little(),
        });
        if self.choices.one_in(3) {
            let (other, over) = self.nested(Self::little);
            self.jump_if(condition, length + 1);
            self.insns.extend(body);
            self.insns.push(Insn::Jump { off: over.into(), wide: false });
            self.insns.extend(other);
        } else {
            self.jump_if(condition, length);
            self.insns.extend(body);
        }
    }

    /// Emits one comparison, or its opposite, two or three times, with other statements between.
    fn asked_twice(&mut self) {
        let condition = self.condition();
        for _ in 0..2 + self.choices.below(2) {
            let again = match condition.1.negate() {
                Some(cond) if self.choices.one_in(3) => (condition.0, cond, condition.2, condition.3),
                _ => condition,
            };
            let (body, length) = self.nested(Self::little);
            let (other, over) = self.nested(|maker| {
                if maker.choices.one_in(2) {
                    maker.little()
                }
            });
            if over > 0 {
                self.jump_if(again, length + 1);
                self.insns.extend(body);
                self.insns.push(Insn::Jump { off: over.into(), wide: false });
                self.insns.extend(other);
            } else {
                self.jump_if(again, length);
                self.insns.extend(body);
            }
            if self.choices.one_in(3) {
                self.little();
            }
        }
    }

    /// An access of the memory by an index.
    fn indexed(&mut self) {
        let (at, of, value) = (self.scalar(), self.read(), self.scalar());
        let size = self.choices.pick(&SIZES);
        self.insns.push(mov(at, Src::Reg(of)));
        let shift = self.choices.below(4);
        self.insns.push(alu(self.choices.pick(&WIDTHS), AluOp::And, at, Src::Imm(0x38 >> shift)));
        if shift > 0 {
            self.insns.push(alu(self.choices.pick(&WIDTHS), AluOp::Lsh, at, Src::Imm(shift as i32)));
        }
        // Up to 56 now, and 8 bytes fit.
        let lower = self.choices.pick(&[0, 0, 16, 24]);
        self.insns.push(alu(Width::W64, AluOp::Add, at, Src::Imm(lower)));
        self.insns.push(alu(Width::W64, AluOp::Add, at, Src::Reg(Reg::R6)));
        let off = -lower as i16;
        if self.choices.one_in(2) && value != at {
            self.insns.push(Insn::Store { size, base: at, off, src: Src::Reg(value) });
            if self.choices.one_in(2) {
                self.insns.push(load(size, value, at, off));
            }
        } else {
            self.insns.push(load(size, value, at, off));
        }
        // No address is left.
        if value != at {
            let src = self.src_but(at);
            self.insns.push(mov(at, src));
        }
    }

    fn src_but(&mut self, reg: Reg) -> Src {
        match self.src() {
            Src::Reg(other) if other == reg => Src::Imm(3),
            other => other,
        }
    }

    /// A call, after which the registers that it takes come from the stack.
    fn call(&mut self) {
        if self.choices.one_in(2) {
            self.insns.push(Insn::Call(Callee::Helper(HELPER_ID)));
        } else {
            let base = if self.lends && self.choices.one_in(2) { Reg::R10 } else { Reg::R6 };
            self.insns.push(mov(Reg::R1, Src::Reg(base)));
            let off = if base == Reg::R10 { Self::off(self.piece()).into() } else { 8 * self.choices.below(8) as i32 };
            self.insns.push(alu(Width::W64, AluOp::Add, Reg::R1, Src::Imm(off)));
            self.insns.push(Insn::Call(Callee::Subprog(self.choices.pick(&[WRITER, READER]))));
        }
        for reg in Reg::ARGS {
            let piece = self.piece();
            let most = if let Use::Tidy(size) = self.uses[piece] { size } else { Size::DW };
            let size = self.choices.pick(Self::sizes(Size::B, most));
            self.insns.push(load(size, reg, Reg::R10, Self::off(piece)));
        }
    }

    /// A round that is short, in straight code.
    fn round(&mut self) {
        for _ in 0..1 + self.choices.below(3) {
            match self.choices.below(4) {
                0 => self.load(),
                1 => self.store(),
                _ => self.little(),
            }
        }
    }

    /// A loop: with one way out, at its end or at its beginning, by a constant or a value, or with two.
    fn counted(&mut self) {
        let counter = COUNTERS[self.depth];
        let step = self.choices.pick(&[1, 1, 1, 2, 3, 4, -1]);
        let width = self.width();
        let most = 1 + self.choices.below(if self.depth == 0 { 40 } else { 12 }) as i32;
        let start = self.choices.pick(&[0, 0, 0, 1, 5, -3]);
        let ends = self.choices.below(4);
        let kept = !self.limited && self.choices.one_in(2);
        let limit = if kept { Src::Reg(Reg::R7) } else { Src::Imm(most) };
        let statements = 1 + self.choices.below(4);
        if kept {
            let of = self.read();
            self.insns.push(mov(Reg::R7, Src::Reg(of)));
            self.insns.push(alu(Width::W64, AluOp::And, Reg::R7, Src::Imm(self.choices.pick(&[15, 31, 7]))));
            if self.choices.one_in(3) {
                self.insns.push(alu(Width::W64, AluOp::Sub, Reg::R7, Src::Imm(2)));
            }
        }
        self.depth += 1;
        self.limited |= kept;
        let (body, length) = self.nested(|maker| match maker.choices.below(2) {
            0 => maker.statements(statements),
            _ => maker.round(),
        });
        let (between, apart) = self.nested(|maker| {
            if ends == 3 {
                maker.little()
            }
        });
        self.depth -= 1;
        self.limited &= !kept;
        let down = step < 0;
        self.insns.push(mov(counter, Src::Imm(if down { most } else { start })));
        let add = alu(self.choices.pick(&[Width::W64, width]), AluOp::Add, counter, Src::Imm(step));
        let up = |maker: &mut Self| {
            let signed = [Cond::SLt, Cond::SLe];
            // A limit below zero is a large one without a sign.
            if kept || start < 0 {
                maker.choices.pick(&signed)
            } else {
                maker.choices.pick(&[Cond::Lt, Cond::Le, Cond::SLt, Cond::SLe])
            }
        };
        if down {
            let cond = self.choices.pick(&[Cond::SGt, Cond::SGe, Cond::Ne]);
            self.insns.extend(body);
            self.insns.push(add);
            self.jump_if((width, cond, counter, Src::Imm(0)), -length - 2);
        } else if ends == 0 {
            // The test is at the end of the loop.
            let cond = if step == 1 && !kept && start >= 0 && start < most && self.choices.one_in(3) {
                Cond::Ne
            } else {
                up(self)
            };
            self.insns.extend(body);
            self.insns.push(add);
            self.jump_if((width, cond, counter, limit), -length - 2);
        } else if ends == 1 {
            // The test is at the beginning of the loop.
            let cond = up(self).negate().unwrap_or(Cond::SGe);
            self.jump_if((width, cond, counter, limit), length + 2);
            self.insns.extend(body);
            self.insns.push(add);
            self.insns.push(Insn::Jump { off: i32::from(-length) - 3, wide: false });
        } else {
            // By the limit and by a constant, one after the other, at the beginning or at the end.
            let first = up(self).negate().unwrap_or(Cond::SGe);
            let second = if self.choices.one_in(2) { first } else { up(self).negate().unwrap_or(Cond::SGe) };
            let other = Src::Imm(self.choices.pick(&[16, 8, 33, 1, 0]));
            self.jump_if((width, first, counter, limit), apart + 1 + length + 2);
            self.insns.extend(between);
            self.jump_if((width, second, counter, other), length + 2);
            self.insns.extend(body);
            self.insns.push(add);
            self.insns.push(Insn::Jump { off: i32::from(-length) - 4 - i32::from(apart), wide: false });
        }
    }
}
