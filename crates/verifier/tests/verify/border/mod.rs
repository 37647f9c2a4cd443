//! Programs close to the border between provable and not, and the oracle that runs them.
//!
//! A random program computes on numbers it loads from a buffer, compares them, spills them, loops a little, calls
//! a subprogram, and uses them, bounded in one of many ways or not at all, as offsets into the buffer and the stack.
//! About half are refused. An accepted one is run by the checking interpreter on several buffers: it must never make a
//! bad access, and before each instruction the registers must lie in an abstract state recorded for it.
#![allow(dead_code, reason = "the test and the example use different parts")]

pub(crate) mod assumed;
pub(crate) mod backwards;
pub(crate) mod begins;
pub(crate) mod blends;
pub(crate) mod elements;
mod facts;
pub(crate) mod far;
pub(crate) mod folds;
pub(crate) mod grids;
pub(crate) mod halves;
pub(crate) mod links;
pub(crate) mod loops;
pub(crate) mod modulo;
pub(crate) mod none;
pub(crate) mod orders;
pub(crate) mod pincers;
pub(crate) mod products;
pub(crate) mod quotients;
pub(crate) mod siblings;
pub(crate) mod straight;
pub(crate) mod sums;

use bpf_analysis::Loops;
use bpf_interp::{Caller, Env as Host, Machine, Memory, Options, Step, Stop, StopKind};
use bpf_isa::{
    AluOp, AtomicOp, ByteOrder, Callee, Cond, EndWidth, Imm64, Insn, InsnIdx, Program, Reg, Size, Src, SxWidth, Width,
};
use bpf_testkit::generate::Choices;
use bpf_verifier::{
    ArgKind, CallbackKind, ContextLayout, Env, HelperProto, Helpers, MemArg, Reason, Region, Ret, Verified, Verifier,
    VerifyError,
};

/// Registers that hold numbers; r1 is an address within one statement.
const NUMBERS: [Reg; 5] = [Reg::R0, Reg::R2, Reg::R3, Reg::R6, Reg::R7];
const LEN: Reg = Reg::R8;
const BUFFER: Reg = Reg::R9;
/// Least length of the buffer.
pub(crate) const MIN_LEN: u32 = 32;
/// Greatest length of the buffer in a run.
const MAX_RUN_LEN: u32 = 96;
/// Bytes of the stack that are initialised.
const STACK: i16 = 64;
const SIZES: [Size; 4] = [Size::B, Size::H, Size::W, Size::DW];
const WIDTHS: [Width; 2] = [Width::W32, Width::W64];
const IMMS: [i32; 20] = [0, 1, 2, 3, 5, 7, 8, 15, 16, 24, 31, 32, 63, 64, 255, -1, -2, -8, i32::MIN, i32::MAX];

struct Gen<'c, 'b> {
    c: &'c mut Choices<'b>,
    /// Whether programs may call bpf_loop.
    looping: bool,
    out: Vec<Insn>,
    /// Calls of the subprogram, to patch.
    calls: Vec<usize>,
    /// Callback references, to patch.
    callbacks: Vec<usize>,
    depth: u32,
}

impl Gen<'_, '_> {
    fn number(&mut self) -> Reg {
        self.c.pick(&NUMBERS)
    }

    fn imm(&mut self) -> i32 {
        if self.c.one_in(3) { self.c.imm() } else { self.c.pick(&IMMS) }
    }

    fn src(&mut self) -> Src {
        if self.c.one_in(2) { Src::Reg(self.number()) } else { Src::Imm(self.imm()) }
    }

    fn alu(&mut self) {
        let (width, op, dst) = (self.c.pick(&WIDTHS), self.c.pick(&AluOp::ALL), self.number());
        let bits = if width == Width::W32 { 32 } else { 64 };
        let src = match (op, self.src()) {
            (AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, Src::Imm(i)) => Src::Imm(i.rem_euclid(bits)),
            (AluOp::Div | AluOp::SDiv | AluOp::Mod | AluOp::SMod, Src::Imm(0)) => Src::Imm(3),
            (_, src) => src,
        };
        self.out.push(Insn::Alu { width, op, dst, src });
    }

    fn other(&mut self) {
        let (width, dst, src) = (self.c.pick(&WIDTHS), self.number(), self.number());
        let insn = match self.c.below(6) {
            0 | 1 => Insn::Mov { width, dst, src: self.src() },
            2 => {
                let from = self.c.pick(&[SxWidth::S8, SxWidth::S16, SxWidth::S32]);
                let width = if from == SxWidth::S32 { Width::W64 } else { width };
                Insn::MovSx { width, dst, src, from }
            }
            3 => Insn::Neg { width, dst },
            4 => {
                let width = self.c.pick(&[EndWidth::B16, EndWidth::B32, EndWidth::B64]);
                Insn::End { order: self.c.pick(&[ByteOrder::ToLe, ByteOrder::ToBe, ByteOrder::Swap]), width, dst }
            }
            _ => Insn::Load { size: Size::W, sign: self.c.one_in(2), dst, base: BUFFER, off: self.c.below(29) as i16 },
        };
        self.out.push(insn);
    }

    /// A stack slot, at times unaligned.
    fn slot(&mut self, size: Size) -> i16 {
        let n = size.bytes() as i16;
        let at = self.c.below((STACK / n) as u32) as i16 * n - STACK;
        if self.c.one_in(8) && at + n < 0 { at + 1 } else { at }
    }

    fn stack(&mut self) {
        let (size, r) = (self.c.pick(&SIZES), self.number());
        let off = self.slot(size);
        let insn = match self.c.below(6) {
            0 | 1 => Insn::Store { size, base: Reg::R10, off, src: Src::Reg(r) },
            2 => Insn::Store { size, base: Reg::R10, off, src: Src::Imm(self.imm()) },
            3 | 4 => Insn::Load { size, sign: size != Size::DW && self.c.one_in(3), dst: r, base: Reg::R10, off },
            _ => {
                let width = self.c.pick(&WIDTHS);
                let off = self.slot(if width == Width::W32 { Size::W } else { Size::DW }) & !7;
                let fetch = self.c.one_in(2);
                let ops = [
                    AtomicOp::Add { fetch },
                    AtomicOp::Or { fetch },
                    AtomicOp::And { fetch },
                    AtomicOp::Xor { fetch },
                    AtomicOp::Xchg,
                    AtomicOp::CmpXchg,
                ];
                Insn::Atomic { width, op: self.c.pick(&ops), base: Reg::R10, off, src: r }
            }
        };
        self.out.push(insn);
    }

    /// A comparison that skips the instructions of `body`.
    fn branch(&mut self, body: impl FnOnce(&mut Self)) {
        let (width, cond, dst) = (self.c.pick(&WIDTHS), self.c.pick(&Cond::ALL), self.number());
        let src = if self.c.one_in(6) { Src::Reg(LEN) } else { self.src() };
        self.skip(|off| Insn::JumpIf { width, cond, dst, src, off }, body);
    }

    fn skip(&mut self, jump: impl FnOnce(i16) -> Insn, body: impl FnOnce(&mut Self)) {
        let at = self.out.len();
        self.out.push(Insn::Exit);
        body(self);
        let off = (self.out.len() - at - 1) as i16;
        self.out[at] = jump(off);
    }

    /// An access to the buffer or the stack at a number, bounded in one of many ways, not all of which suffice.
    fn access(&mut self) {
        let (r, size) = (self.number(), self.c.pick(&SIZES));
        let dst = self.number();
        let store = self.c.one_in(3);
        let off = self.c.pick(&[0i16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 4, 7, 1, 4, 7, -1]);
        let on_stack = self.c.one_in(3);
        let limit = if on_stack { STACK as i32 } else { MIN_LEN as i32 } - size.bytes() as i32 - i32::from(off.max(0));
        // Mostly just inside, at times just outside.
        let limit = limit + self.c.pick(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1, -8, 1]);
        let width = self.c.pick(&WIDTHS);
        let emit = move |g: &mut Self| {
            let base = if on_stack { Reg::R10 } else { BUFFER };
            g.out.push(Insn::Mov { width: Width::W64, dst: Reg::R1, src: Src::Reg(base) });
            if on_stack {
                g.out.push(Insn::Alu {
                    width: Width::W64,
                    op: AluOp::Add,
                    dst: Reg::R1,
                    src: Src::Imm(-i32::from(STACK)),
                });
            }
            let op = if g.c.one_in(40) { AluOp::Sub } else { AluOp::Add };
            g.out.push(Insn::Alu { width: Width::W64, op, dst: Reg::R1, src: Src::Reg(r) });
            g.out.push(if store {
                Insn::Store { size, base: Reg::R1, off, src: Src::Reg(dst) }
            } else {
                Insn::Load { size, sign: false, dst, base: Reg::R1, off }
            });
        };
        match self.c.below(7) {
            0 => {
                self.out.push(Insn::Alu {
                    width,
                    op: AluOp::And,
                    dst: r,
                    src: Src::Imm(self.c.pick(&[7, 15, 16, 24, 31])),
                });
                emit(self);
            }
            1 => {
                let op = self.c.pick(&[AluOp::Mod, AluOp::Rsh]);
                let by = if op == AluOp::Mod { limit.max(1) } else { if width == Width::W32 { 27 } else { 59 } };
                self.out.push(Insn::Alu { width, op, dst: r, src: Src::Imm(by) });
                emit(self);
            }
            2 | 3 => {
                let cond = self.c.pick(&[Cond::Gt, Cond::Gt, Cond::Gt, Cond::Gt, Cond::Gt, Cond::Ge, Cond::SGt]);
                let width = if self.c.one_in(6) { width } else { Width::W64 };
                self.skip(|off| Insn::JumpIf { width, cond, dst: r, src: Src::Imm(limit), off }, emit);
            }
            4 => {
                // Signed bounds, from both sides.
                self.skip(
                    |off| Insn::JumpIf { width, cond: Cond::SGt, dst: r, src: Src::Imm(limit), off },
                    |g| g.skip(|off| Insn::JumpIf { width, cond: Cond::SLt, dst: r, src: Src::Imm(0), off }, emit),
                );
            }
            5 => {
                // A comparison with the length itself, less the access's size.
                let room = Insn::Alu {
                    width,
                    op: AluOp::Add,
                    dst: Reg::R1,
                    src: Src::Imm(size.bytes() as i32 + self.c.pick(&[0, 0, -1, 7])),
                };
                self.out.push(Insn::Mov { width, dst: Reg::R1, src: Src::Reg(r) });
                self.out.push(room);
                let cond = self.c.pick(&[Cond::Gt, Cond::Ge]);
                self.skip(|off| Insn::JumpIf { width, cond, dst: Reg::R1, src: Src::Reg(LEN), off }, emit);
            }
            _ if self.c.one_in(8) => emit(self),
            _ => {
                self.out.push(Insn::Alu { width: Width::W64, op: AluOp::And, dst: r, src: Src::Imm(15) });
                emit(self);
            }
        }
    }

    /// An access beyond the least length, behind a comparison of the length or, rarely, without one.
    fn beyond(&mut self) {
        let (dst, size, width) = (self.number(), self.c.pick(&SIZES), self.c.pick(&WIDTHS));
        let len = MIN_LEN as i32 + 1 + self.c.below(40) as i32;
        let short = self.c.one_in(12);
        let at = (len - size.bytes() as i32 + i32::from(short)) as i16;
        let load = Insn::Load { size, sign: false, dst, base: BUFFER, off: at };
        if self.c.one_in(16) {
            self.out.push(load);
            return;
        }
        let cond = self.c.pick(&[Cond::Lt, Cond::Lt, Cond::Lt, Cond::SLt, Cond::Le]);
        self.skip(|off| Insn::JumpIf { width, cond, dst: LEN, src: Src::Imm(len), off }, |g| g.out.push(load));
    }

    /// A loop of a known number of rounds.
    fn rounds(&mut self) {
        let n = 1 + self.c.below(6) as i32;
        let counter = Reg::R4;
        self.out.push(Insn::Mov { width: Width::W64, dst: counter, src: Src::Imm(n) });
        let start = self.out.len();
        for _ in 0..1 + self.c.below(3) {
            match self.c.below(3) {
                0 => self.alu(),
                1 => self.stack(),
                _ => self.access(),
            }
        }
        self.out.push(Insn::Alu { width: Width::W32, op: AluOp::Sub, dst: counter, src: Src::Imm(1) });
        let off = start as i64 - self.out.len() as i64 - 1;
        self.out.push(Insn::JumpIf {
            width: Width::W64,
            cond: Cond::Ne,
            dst: counter,
            src: Src::Imm(0),
            off: off as i16,
        });
    }

    /// A call of the subprogram, with the address of a stack slot and a number; or of bpf_loop with the callback.
    fn call(&mut self) {
        let r = self.number();
        let mov = |dst, src| Insn::Mov { width: Width::W64, dst, src };
        let looped = self.looping && self.c.one_in(3);
        if looped {
            let n = self.c.below(9) as i32;
            self.out.push(mov(Reg::R1, Src::Imm(n)));
            self.callbacks.push(self.out.len());
            self.out.push(Insn::LoadImm64 { dst: Reg::R2, imm: Imm64::Func(0) });
            self.out.push(Insn::SecondSlot);
            self.out.push(mov(Reg::R3, Src::Reg(Reg::R10)));
            self.out.push(Insn::Alu {
                width: Width::W64,
                op: AluOp::Add,
                dst: Reg::R3,
                src: Src::Imm(-i32::from(STACK)),
            });
            self.out.push(mov(Reg::R4, Src::Imm(0)));
            self.out.push(Insn::Call(Callee::Helper(181)));
        } else {
            self.out.push(mov(Reg::R1, Src::Reg(r)));
            self.out.push(mov(Reg::R2, Src::Reg(Reg::R10)));
            self.out.push(Insn::Alu {
                width: Width::W64,
                op: AluOp::Add,
                dst: Reg::R2,
                src: Src::Imm(-i32::from(STACK)),
            });
            self.calls.push(self.out.len());
            self.out.push(Insn::Call(Callee::Subprog(0)));
        }
        // r2 and r3 are numbers again.
        for dst in [Reg::R2, Reg::R3] {
            self.out.push(Insn::Load { size: Size::W, sign: false, dst, base: BUFFER, off: self.c.below(29) as i16 });
        }
    }

    /// Two pointers into the buffer or the stack, at numbers that are bounded somehow or not at all: compared, and then
    /// used, or subtracted.
    fn two_pointers(&mut self) {
        let (a, b, dst, size) = (self.number(), self.number(), self.number(), self.c.pick(&SIZES));
        let (first, second) = (Reg::R1, Reg::R4);
        let on_stack = self.c.one_in(2);
        let (base, start) = if on_stack { (Reg::R10, -i32::from(STACK)) } else { (BUFFER, 0) };
        for r in [a, b] {
            let mask = self.c.pick(&[7, 15, 31, 63, 127, 0x7fff]);
            if !self.c.one_in(20) {
                self.out.push(Insn::Alu { width: Width::W64, op: AluOp::And, dst: r, src: Src::Imm(mask) });
            }
        }
        for (to, by) in [(first, Src::Reg(a)), (second, Src::Imm(self.c.below(MIN_LEN) as i32))] {
            let by = if self.c.one_in(4) { Src::Reg(b) } else { by };
            self.out.push(Insn::Mov { width: Width::W64, dst: to, src: Src::Reg(base) });
            self.out.push(Insn::Alu { width: Width::W64, op: AluOp::Add, dst: to, src: Src::Imm(start) });
            self.out.push(Insn::Alu { width: Width::W64, op: AluOp::Add, dst: to, src: by });
        }
        let cond = self.c.pick(&[Cond::Gt, Cond::Ge, Cond::Lt, Cond::Le, Cond::Eq, Cond::Ne, Cond::SGt, Cond::Set]);
        if self.c.one_in(3) {
            let width = self.c.pick(&WIDTHS);
            if width == Width::W32 && self.c.one_in(2) && !on_stack {
                self.out.push(Insn::Mov { width, dst: first, src: Src::Reg(first) });
            }
            self.out.push(Insn::Alu { width, op: AluOp::Sub, dst: first, src: Src::Reg(second) });
            self.out.push(Insn::Mov { width: Width::W64, dst, src: Src::Reg(first) });
            return;
        }
        let off = self.c.pick(&[0i16, 0, 0, 1, -1, 8]);
        let used = self.c.pick(&[first, first, second]);
        self.skip(
            |off| Insn::JumpIf { width: Width::W64, cond, dst: first, src: Src::Reg(second), off },
            |g| g.out.push(Insn::Load { size, sign: false, dst, base: used, off }),
        );
        if self.c.one_in(3) {
            // A second comparison, which the first one may decide.
            let cond = self.c.pick(&[Cond::Gt, Cond::Ge, Cond::Lt, Cond::Le, Cond::Eq, Cond::Ne]);
            self.skip(
                |off| Insn::JumpIf { width: Width::W64, cond, dst: first, src: Src::Reg(second), off },
                |g| g.out.push(Insn::Mov { width: Width::W64, dst, src: Src::Imm(1) }),
            );
        }
    }

    /// Compares a pointer with the buffer's end more than once: earlier tests may decide later ones.
    fn end_tests(&mut self) {
        let (r, dst) = (self.number(), self.number());
        let (p, end) = (Reg::R1, Reg::R4);
        let mask = self.c.pick(&[0, 7, 31, 63, 127]);
        self.out.push(Insn::Alu { width: Width::W64, op: AluOp::And, dst: r, src: Src::Imm(mask) });
        self.out.push(Insn::Mov { width: Width::W64, dst: end, src: Src::Reg(BUFFER) });
        self.out.push(Insn::Alu { width: Width::W64, op: AluOp::Add, dst: end, src: Src::Reg(LEN) });
        self.out.push(Insn::Mov { width: Width::W64, dst: p, src: Src::Reg(BUFFER) });
        self.out.push(Insn::Alu { width: Width::W64, op: AluOp::Add, dst: p, src: Src::Reg(r) });
        let mut at = 0i16;
        for _ in 0..2 + self.c.below(2) {
            let by = self.c.below(20) as i32 - 6;
            self.out.push(Insn::Alu { width: Width::W64, op: AluOp::Add, dst: p, src: Src::Imm(by) });
            at += by as i16;
            let cond = self.c.pick(&[Cond::Gt, Cond::Gt, Cond::Ge, Cond::Lt, Cond::Le, Cond::Eq, Cond::Ne]);
            let (dst2, src) = if self.c.one_in(4) { (end, p) } else { (p, end) };
            let off = -at.clamp(0, 8) - i16::from(self.c.one_in(8));
            self.skip(
                |off| Insn::JumpIf { width: Width::W64, cond, dst: dst2, src: Src::Reg(src), off },
                |g| {
                    let load = g.c.one_in(2) && off < 0;
                    g.out.push(match load {
                        true => Insn::Load { size: Size::B, sign: false, dst, base: p, off },
                        false => Insn::Mov { width: Width::W64, dst, src: Src::Imm(i32::from(off)) },
                    });
                },
            );
        }
        if self.c.one_in(2) {
            let width = self.c.pick(&WIDTHS);
            if width == Width::W32 {
                self.out.push(Insn::Mov { width, dst: end, src: Src::Reg(end) });
            }
            self.out.push(Insn::Alu { width, op: AluOp::Sub, dst: end, src: Src::Reg(p) });
            self.out.push(Insn::Mov { width: Width::W64, dst, src: Src::Reg(end) });
        }
    }

    fn statement(&mut self) {
        match self.c.below(18) {
            16 => self.two_pointers(),
            17 => self.end_tests(),
            0..=3 => self.alu(),
            4 | 5 => self.other(),
            6 | 7 => self.stack(),
            8 | 9 if self.depth < 2 => {
                self.depth += 1;
                self.branch(|g| {
                    for _ in 0..1 + g.c.below(3) {
                        g.statement();
                    }
                });
                self.depth -= 1;
            }
            10..=12 => self.access(),
            13 => self.beyond(),
            14 => self.rounds(),
            _ => self.call(),
        }
    }
}

/// Makes a program.
pub(crate) fn generate(c: &mut Choices<'_>) -> Program {
    generate_with(c, true)
}

/// Makes a program, with calls of bpf_loop or without.
pub(crate) fn generate_with(c: &mut Choices<'_>, looping: bool) -> Program {
    let mut g = Gen { c, looping, out: Vec::new(), calls: Vec::new(), callbacks: Vec::new(), depth: 0 };
    g.out.push(Insn::Mov { width: Width::W64, dst: BUFFER, src: Src::Reg(Reg::R1) });
    g.out.push(Insn::Mov { width: Width::W64, dst: LEN, src: Src::Reg(Reg::R2) });
    for dst in NUMBERS {
        let size = g.c.pick(&SIZES);
        let off = g.c.below(MIN_LEN - size.bytes() + 1) as i16;
        let sign = size != Size::DW && g.c.one_in(3);
        let insn = match g.c.below(5) {
            0 => Insn::Mov { width: Width::W64, dst, src: Src::Imm(g.imm()) },
            _ => Insn::Load { size, sign, dst, base: BUFFER, off },
        };
        g.out.push(insn);
    }
    for off in (-STACK..0).step_by(8) {
        let src = if g.c.one_in(2) { Src::Imm(g.imm()) } else { Src::Reg(g.number()) };
        g.out.push(Insn::Store { size: Size::DW, base: Reg::R10, off, src });
    }
    for _ in 0..4 + g.c.below(14) {
        g.statement();
    }
    let r = g.number();
    g.out.push(Insn::Mov { width: Width::W64, dst: Reg::R0, src: Src::Reg(r) });
    g.out.push(Insn::Exit);

    // f(number, pointer to STACK bytes): changes a word there, and returns a number.
    let subprog = g.out.len();
    if !g.calls.is_empty() {
        let op = g.c.pick(&AluOp::ALL);
        let imm = if matches!(op, AluOp::Lsh | AluOp::Rsh | AluOp::Arsh) { 3 } else { g.c.pick(&[1, 7, 63, -1]) };
        g.out.push(Insn::Load { size: Size::W, sign: false, dst: Reg::R0, base: Reg::R2, off: 8 });
        g.skip(
            |off| Insn::JumpIf {
                width: Width::W64,
                cond: Cond::Gt,
                dst: Reg::R1,
                src: Src::Imm(STACK as i32 - 8),
                off,
            },
            |g| {
                g.out.push(Insn::Alu { width: Width::W64, op: AluOp::Add, dst: Reg::R2, src: Src::Reg(Reg::R1) });
                g.out.push(Insn::Store { size: Size::DW, base: Reg::R2, off: 0, src: Src::Reg(Reg::R0) });
            },
        );
        g.out.push(Insn::Alu { width: Width::W32, op, dst: Reg::R0, src: Src::Imm(imm) });
        g.out.push(Insn::Exit);
    }
    // callback(index, pointer to STACK bytes): counts in a word there, and stops at times.
    let callback = g.out.len();
    if !g.callbacks.is_empty() {
        let at = g.c.pick(&[0i16, 8, 16]);
        let add = if g.c.one_in(2) { Src::Reg(Reg::R1) } else { Src::Imm(3) };
        g.out.push(Insn::Load { size: Size::DW, sign: false, dst: Reg::R3, base: Reg::R2, off: at });
        g.out.push(Insn::Alu { width: Width::W64, op: g.c.pick(&[AluOp::Add, AluOp::Xor]), dst: Reg::R3, src: add });
        if g.c.one_in(2) {
            g.out.push(Insn::Alu { width: Width::W64, op: AluOp::And, dst: Reg::R3, src: Src::Imm(31) });
        }
        g.out.push(Insn::Store { size: Size::DW, base: Reg::R2, off: at, src: Src::Reg(Reg::R3) });
        g.out.push(Insn::Mov { width: Width::W64, dst: Reg::R0, src: Src::Imm(0) });
        g.skip(
            |off| Insn::JumpIf { width: Width::W64, cond: Cond::Ne, dst: Reg::R3, src: Src::Imm(9), off },
            |g| g.out.push(Insn::Mov { width: Width::W64, dst: Reg::R0, src: Src::Imm(1) }),
        );
        g.out.push(Insn::Exit);
    }
    for at in g.calls {
        g.out[at] = Insn::Call(Callee::Subprog((subprog - at - 1) as i32));
    }
    for at in g.callbacks {
        g.out[at] = Insn::LoadImm64 { dst: Reg::R2, imm: Imm64::Func((callback - at - 1) as i32) };
    }
    Program::new(g.out).expect("the generator makes valid programs")
}

/// The oracle's result for one program.
pub(crate) enum Outcome {
    /// Refused, and why.
    Refused(Box<VerifyError>),
    /// Accepted, and run without a fault; the instructions executed.
    Ran(u64),
    /// Accepted, but wrong: a soundness bug of the verifier.
    Violation(String),
}

/// Verifies programs and watches the accepted ones run.
pub(crate) struct Oracle {
    pub(crate) context: ContextLayout,
    pub(crate) helpers: Helpers,
    pub(crate) verifier: Verifier,
    /// Verify with checks left to run time; the interpreter, which checks everything, carries them out.
    hybrid: bool,
    /// Programs may show addresses.
    pub(crate) privileged: bool,
    /// Verify by this way of the portfolio alone.
    pub(crate) way: Option<String>,
    /// Fill buffers with the constants that the program compares bytes with, too.
    words: bool,
    /// The limit on steps. Most of the time goes into programs that are refused after many.
    pub(crate) steps: u64,
    /// Instructions after which a run is over.
    pub(crate) budget: u64,
    /// Facts that were compared with a run.
    pub(crate) compared: u64,
    /// Number of accepted programs in which a number was merged.
    pub(crate) merged: u64,
}

/// Further buffers for each program, filled with one byte, of the greatest length (true) or the least: random bytes
/// hardly ever make a number of 64 bits that wraps round.
const EXTREMES: [(u8, bool); 3] = [(0xff, true), (0xff, false), (0, true)];

/// A function of the host that writes as many bytes as its second argument says.
const WRITES: u32 = 182;

/// A function of the host that reads behind its second argument as many bytes as the verifier has recorded for the
/// call.
const PROBES: u32 = 183;

/// The interpreter's host: calls bpf_loop, [`WRITES`] and [`PROBES`], and compares each step with the abstract states.
struct Watch<'v> {
    verified: &'v Verified,
    steps: u64,
    outside: Option<(InsnIdx, [u64; 11])>,
    facts: facts::FactWatch<'v>,
    wrong: Option<String>,
    cycle: Cycle,
}

/// Finds a run that repeats itself: every register at every instruction the same, three times in a row.
#[derive(Default)]
struct Cycle {
    seen: Option<(InsnIdx, [u64; 11])>,
    hash: u64,
    last: u64,
    same: u32,
}

impl Cycle {
    fn observe(&mut self, steps: u64, at: InsnIdx, regs: &[u64; 11]) {
        for v in regs.iter().chain([&u64::from(at.0)]) {
            self.hash = (self.hash ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        }
        if self.same >= 3 {
        } else if self.seen == Some((at, *regs)) {
            self.same = if self.hash == self.last { self.same + 1 } else { 0 };
            (self.last, self.hash) = (self.hash, 0);
        } else if steps.is_power_of_two() {
            (self.seen, self.hash, self.last, self.same) = (Some((at, *regs)), 0, 0, 0);
        }
    }
}

impl Host for Watch<'_> {
    type Code = std::rc::Rc<Program>;

    fn helper(&mut self, id: u32, args: [u64; 5], caller: &mut Caller<'_, '_, Self::Code>) -> Result<u64, Stop> {
        if id == WRITES {
            let len = usize::try_from(args[1]).unwrap_or(usize::MAX).min(512);
            return caller.write(self, args[0], &[0xfe; 512][..len]).map(|()| 0);
        }
        if id == PROBES {
            let (at, formats) = (caller.at(), &self.verified.facts().formats);
            let call = formats.iter().find(|call| call.insn == at);
            // Facts that name a region give no number of bytes.
            let told = call.filter(|call| call.regions[1].is_none()).and_then(|call| call.known[1]);
            let bytes = told.filter(|_| args[1] != 0).map_or(0, |told| told.min(512) as usize);
            return caller.read(self, args[1], &mut [0; 512][..bytes]).map(|()| 0);
        }
        if id != 181 {
            return Err(caller.stop(StopKind::UnknownHelper(id)));
        }
        let mut done = 0;
        while done < args[0] {
            let stop = caller.call(self, args[1], [done, args[2], 0, 0, 0])?;
            done += 1;
            if stop != 0 {
                break;
            }
        }
        Ok(done)
    }

    fn observe(&mut self, step: &Step<'_, Self::Code>, _: &Machine<'_>) {
        self.steps += 1;
        self.cycle.observe(self.steps, step.at, step.regs);
        if self.outside.is_none() && !self.verified.admits(step.at, step.regs) {
            self.outside = Some((step.at, *step.regs));
        }
        if self.wrong.is_none() {
            self.wrong = self.facts.observe(step.at, step.regs);
        }
    }
}

impl Oracle {
    pub(crate) fn new(hybrid: bool) -> Oracle {
        Oracle::with_least(hybrid, MIN_LEN)
    }

    /// An oracle with buffers that may have as few as `least` bytes.
    pub(crate) fn with_least(hybrid: bool, least: u32) -> Oracle {
        let mut context = ContextLayout::raw(true);
        context.regions[0] = Region { min_len: least, ..context.regions[0].clone() };
        let mut helpers = Helpers::none();
        let args = [ArgKind::Scalar, ArgKind::Callback(CallbackKind::Loop), ArgKind::CallbackCtx, ArgKind::Scalar];
        helpers.add(HelperProto::new(181, "bpf_loop", &args, Ret::Scalar)).expect("the id is free");
        let args = [ArgKind::Mem(MemArg::WRITE), ArgKind::Size { zero: true, half: false }];
        helpers.add(HelperProto::new(WRITES, "writes", &args, Ret::Scalar)).expect("the id is free");
        let args = [ArgKind::Scalar, ArgKind::Probed];
        helpers.add(HelperProto::new(PROBES, "probes", &args, Ret::Scalar)).expect("the id is free");
        Oracle {
            context,
            helpers,
            verifier: Verifier::new(),
            hybrid,
            privileged: false,
            way: None,
            words: false,
            steps: 20_000,
            budget: 1_000_000,
            compared: 0,
            merged: 0,
        }
    }

    /// An oracle for everyday programs: buffers may be empty, and hold the constants that the program compares bytes
    /// with.
    pub(crate) fn of_texts(hybrid: bool) -> Oracle {
        Oracle { words: true, steps: 2_000, ..Oracle::with_least(hybrid, 0) }
    }

    /// Verifies the program, and runs it if it is accepted, on `runs` buffers and the extreme ones.
    pub(crate) fn check(&mut self, program: &Program, runs: u32, c: &mut Choices<'_>) -> Outcome {
        let mut env = Env::new(&self.context, &self.helpers);
        env.record_states = true;
        // Without facts about values, more paths are pruned.
        env.values = c.one_in(2);
        (env.hybrid, env.privileged) = (self.hybrid, self.privileged);
        // These programs are too short for merging by default, so half of them begin it at once.
        if program.insns().len().is_multiple_of(2) {
            env.merge_after = 0;
        }
        env.limits.steps = self.steps;
        let verified = match &self.way {
            Some(way) => self.verifier.verify_by(program.clone(), &env, way).expect("a way of this name"),
            None => self.verifier.verify(program.clone(), &env),
        };
        let verified = match verified {
            Ok(v) => v,
            Err(e) if matches!(e.reason, Reason::Internal(_)) => return Outcome::Violation(e.to_string()),
            Err(e) => return Outcome::Refused(e),
        };
        self.merged += u64::from(verified.stats().merged > 0);
        let code = std::rc::Rc::new(program.clone());
        let loops = Loops::new(program);
        let words = if self.words { words(program) } else { Vec::new() };
        let mut steps = 0;
        let least = self.context.regions[0].min_len;
        let random = (0..runs).map(|_| None);
        for all in random.chain(EXTREMES.map(Some)) {
            let len = match all {
                Some((_, longest)) => {
                    if longest {
                        MAX_RUN_LEN
                    } else {
                        least
                    }
                }
                None => least + c.below(MAX_RUN_LEN - least + 1),
            };
            let mut buffer: Vec<u8> = Vec::with_capacity(len as usize);
            if let Some((byte, _)) = all {
                buffer.resize(len as usize, byte);
            }
            while buffer.len() < len as usize {
                if !words.is_empty() && !c.one_in(3) {
                    let byte = c.pick(&words).wrapping_add(c.pick(&[0, 0, 0, 0, 1, 255]));
                    buffer.push(byte);
                    continue;
                }
                // Whole values near the ends of their ranges, and small random numbers.
                let v = if c.one_in(2) { c.value() } else { c.below(64).into() };
                buffer.extend(v.to_le_bytes().iter().take(len as usize - buffer.len()));
            }
            let mut memory = Memory::new();
            let r1 = memory.add_writable(&mut buffer);
            memory.set_packet(r1, len.into());
            let mut machine = Machine::new(memory, Options { budget: Some(self.budget), ..Options::default() });
            let facts = facts::FactWatch::new(verified.facts(), program, &loops, r1);
            let cycle = Cycle::default();
            let mut watch = Watch { verified: &verified, steps: 0, outside: None, facts, wrong: None, cycle };
            let end = machine.run(&mut watch, &code, [r1, len.into()]);
            steps += watch.steps;
            self.compared += watch.facts.compared;
            if let Some(wrong) = watch.wrong {
                return Outcome::Violation(format!("{wrong}\n{program}"));
            }
            if let Some((at, regs)) = watch.outside {
                return Outcome::Violation(format!(
                    "registers outside every abstract state at {at}: {regs:x?}\n{program}"
                ));
            }
            if let Err(stop) = end {
                let facts = verified.facts();
                let checked = match stop.kind {
                    StopKind::BadAccess { .. } => facts.check(stop.at).is_some(),
                    // A run over its budget is a violation only if it repeats itself.
                    StopKind::Budget => facts.needs_budget || watch.cycle.same < 3,
                    _ => false,
                };
                if checked {
                    continue;
                }
                return Outcome::Violation(format!("{stop}\n{program}"));
            }
        }
        Outcome::Ran(steps)
    }
}

/// Returns the bytes that a program compares with, from which its input is likely to be made.
fn words(program: &Program) -> Vec<u8> {
    let byte = |insn: &Insn| match *insn {
        Insn::JumpIf { src: Src::Imm(i), .. } => u8::try_from(i).ok(),
        _ => None,
    };
    let mut out: Vec<u8> = program.insns().iter().filter_map(byte).collect();
    out.sort_unstable();
    out.dedup();
    out
}
