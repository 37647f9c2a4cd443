//! Images for arm64.
//!
//! A tree gets the program's address in x16 (an indirect jump through x16 may land on `bti c` and `paciasp`) and
//! keeps `address - base` in x17; x14 holds constants. A conditional branch reaches 1 MiB only, so a program is
//! reached by `b`, which placement can lead through a veneer, with a conditional branch around it.

use crate::chain::{Chain, Verdicts};
use crate::finish::laid_out;
use crate::options::Options;
use crate::plan::Plan;
use crate::tree::Tree;
use bpf_jit_code::layout::{Branch, Label, Layout};
use bpf_jit_code::{Arch, Code, FrameShape, Needs, Reloc, RelocKind, RunCtx, Symbol, Unwind, UnwindOp};

/// Appends one or more instructions.
macro_rules! asm {
    ($e:expr; $($insn:tt)*) => { ::dynasmrt::dynasm!(Sink(&mut $e.buf) ; .arch aarch64 ; $($insn)*) };
}

/// The target of `dynasm!`: the methods of its `DynasmApi` that write.
struct Sink<'a>(&'a mut Vec<u8>);

impl Sink<'_> {
    fn push_u32(&mut self, word: u32) {
        self.0.extend_from_slice(&word.to_le_bytes());
    }
    fn extend<const N: usize>(&mut self, bytes: &[u8; N]) {
        self.0.extend_from_slice(bytes);
    }
}

/// A register that can be loaded with a constant.
#[derive(Clone, Copy)]
enum Reg {
    X0 = 0,
    X14 = 14,
}

impl From<Reg> for u8 {
    fn from(register: Reg) -> u8 {
        register as u8
    }
}

/// A conditional branch. Its long form is an inverted branch around a `b`.
#[derive(Clone, Copy, Debug)]
enum Jump {
    Greater,
    NotEqual,
    /// Unsigned.
    Higher,
    Equal,
}

impl Branch for Jump {
    const ARCH: Arch = Arch::Arm64;
    fn lengths(self) -> (u8, u8) {
        (4, 8)
    }
    fn short_reaches(self, distance: i64) -> bool {
        (-(1 << 20)..1 << 20).contains(&distance)
    }
    fn long_reaches(self, distance: i64) -> bool {
        (-(1 << 27)..1 << 27).contains(&(distance - 4))
    }
    #[expect(clippy::cast_possible_truncation, reason = "what reaches has its high bits in the low ones' sign")]
    fn write(self, long: bool, distance: i64, out: &mut Vec<u8>) {
        let condition = match self {
            Jump::Equal => 0,
            Jump::NotEqual => 1,
            Jump::Higher => 8,
            Jump::Greater => 12,
        };
        // `b.cond`: nineteen bits of words from bit 5 on. The last bit of a condition inverts it.
        let conditional = |condition: u32, bytes: i64| 0x5400_0000 | ((bytes >> 2) as u32 & 0x7_ffff) << 5 | condition;
        if long {
            out.extend_from_slice(&conditional(condition ^ 1, 8).to_le_bytes());
            let words = (distance - 4) >> 2;
            out.extend_from_slice(&(0x1400_0000 | words as u32 & 0x3ff_ffff).to_le_bytes());
        } else {
            out.extend_from_slice(&conditional(condition, distance).to_le_bytes());
        }
    }
    fn pad(len: usize, out: &mut Vec<u8>) {
        for _ in 0..len / 4 {
            ::dynasmrt::dynasm!(Sink(out) ; .arch aarch64 ; nop);
        }
    }
}

struct Emitter<'a> {
    /// The code with every inner branch in its long form.
    buf: Vec<u8>,
    layout: Layout<Jump>,
    code: Code,
    options: &'a Options,
}

pub(crate) fn tree(plan: &Plan, options: &Options) -> Code {
    let mut e = Emitter::new(options);
    e.landing_pad();
    if plan.base != 0 {
        e.constant(plan.base);
        asm!(e; sub x17, x16, x14);
    }
    e.node(plan, &plan.tree);
    e.code.frames.push(FrameShape::new(0, None));
    e.finish()
}

pub(crate) fn chain(chain: &Chain, options: &Options) -> Code {
    let mut e = Emitter::new(options);
    e.chain(chain);
    e.finish()
}

impl<'a> Emitter<'a> {
    fn new(options: &'a Options) -> Self {
        let mut code = Code::new(Arch::Arm64);
        code.entries.push(0);
        code.unwind.push(Unwind { at: 0, op: UnwindOp::Function });
        Emitter { buf: Vec::new(), layout: Layout::default(), code, options }
    }

    fn label(&mut self) -> Label {
        self.layout.label()
    }

    fn bind(&mut self, label: Label) {
        self.layout.bind(&self.buf, label);
    }

    fn branch(&mut self, jump: Jump, target: Label) {
        self.layout.branch(&mut self.buf, jump, target);
    }

    /// Records a change of the frame, for unwinders.
    fn note(&mut self, op: UnwindOp) {
        self.code.unwind.push(Unwind { at: crate::small(self.buf.len()), op });
    }

    fn finish(mut self) -> Code {
        // Veneers.
        self.note(UnwindOp::Outside);
        laid_out(self.code, &self.buf, self.layout, 0)
    }

    /// Records that the next instruction is a `b` or `bl` to the program.
    fn name_program(&mut self, program: usize) {
        let at = crate::small(self.buf.len());
        self.code.relocs.push(Reloc { at, kind: RelocKind::Arm64Branch26, symbol: Symbol::new(crate::small(program)) });
    }

    fn node(&mut self, plan: &Plan, tree: &Tree) {
        match tree {
            Tree::Miss => {
                asm!(self; br x16);
                self.no_straight_line();
            }
            Tree::Split { pivot, lower, upper } => {
                self.compare(plan, *pivot);
                self.sides(plan, lower, upper);
            }
            Tree::Test { entry, lower, upper } => {
                self.compare(plan, *entry);
                let other = self.label();
                self.branch(Jump::NotEqual, other);
                self.name_program(*entry);
                asm!(self; b 0);
                self.bind(other);
                match (&**lower, &**upper) {
                    (Tree::Miss, only) | (only, Tree::Miss) => self.node(plan, only),
                    (lower, upper) => self.sides(plan, lower, upper),
                }
            }
        }
    }

    fn sides(&mut self, plan: &Plan, lower: &Tree, upper: &Tree) {
        let above = self.label();
        self.branch(Jump::Greater, above);
        self.node(plan, lower);
        if self.options.align {
            // Never executed, because the code before ends in a jump. The four bytes are `brk 1`.
            self.layout.align(&mut self.buf, 16, 0xd420_0020u32.to_le_bytes());
        }
        self.bind(above);
        self.node(plan, upper);
    }

    fn compare(&mut self, plan: &Plan, entry: usize) {
        let immediate = plan.immediate(entry);
        let small = immediate.unsigned_abs();
        match (plan.base == 0, small < 4096, immediate < 0) {
            (true, true, false) => asm!(self; cmp x16, small),
            (true, true, true) => asm!(self; cmn x16, small),
            (false, true, false) => asm!(self; cmp x17, small),
            (false, true, true) => asm!(self; cmn x17, small),
            (true, false, _) => {
                self.constant(i64::from(immediate) as u64);
                asm!(self; cmp x16, x14);
            }
            (false, false, _) => {
                self.constant(i64::from(immediate) as u64);
                asm!(self; cmp x17, x14);
            }
        }
    }

    /// x14 = value.
    fn constant(&mut self, value: u64) {
        self.load(Reg::X14, value);
    }

    /// Register = value, in as few instructions as `movz`/`movn` and `movk` allow.
    #[expect(clippy::cast_possible_truncation, reason = "four parts of 16 bits, and shifts by 48 at most")]
    fn load(&mut self, register: Reg, value: u64) {
        let part = |i: u32| (value >> (16 * i)) as u16;
        let parts_other_than = |skip: u16| (0..4).filter(move |i| part(*i) != skip);
        let negative = parts_other_than(0xffff).count() < parts_other_than(0).count();
        let skip = if negative { 0xffff } else { 0 };
        let mut others = parts_other_than(skip);
        let first = others.next().unwrap_or(0);
        if negative {
            asm!(self; movn X(register), u32::from(!part(first)), lsl 16 * first);
        } else {
            asm!(self; movz X(register), u32::from(part(first)), lsl 16 * first);
        }
        for i in others {
            asm!(self; movk X(register), u32::from(part(i)), lsl 16 * i);
        }
    }

    fn chain(&mut self, chain: &Chain) {
        match (chain.programs, chain.end) {
            (0, end) => {
                self.code.frames.push(FrameShape::new(0, None));
                self.landing_pad();
                self.load(Reg::X0, end.unwrap_or(0));
                asm!(self; ret);
                self.no_straight_line();
                return;
            }
            (1, None) => {
                self.code.frames.push(FrameShape::new(0, None));
                self.landing_pad();
                self.budget(chain, 0);
                self.name_program(0);
                asm!(self; b 0);
                return;
            }
            (1, Some(_)) => self.code.frames.push(FrameShape::new(16, Some(0))),
            _ => self.code.frames.push(FrameShape::new(32, Some(24))),
        }
        if self.options.hardening.return_signing {
            asm!(self; hint 25); // paciasp, a landing pad as well
            self.note(UnwindOp::SignToggled);
        } else {
            self.landing_pad();
        }
        let out = self.label();
        if chain.programs == 1 {
            asm!(self; str x30, [sp, #-16]!);
            self.note(UnwindOp::Cfa { base: SP, offset: 16 });
            self.note(UnwindOp::Saved { reg: 30, offset: 16 });
        } else {
            asm!(self; stp x19, x20, [sp, #-32]!);
            self.note(UnwindOp::Cfa { base: SP, offset: 32 });
            self.note(UnwindOp::Saved { reg: 19, offset: 32 });
            self.note(UnwindOp::Saved { reg: 20, offset: 24 });
            asm!(self; stp x21, x30, [sp, #16]);
            self.note(UnwindOp::Saved { reg: 21, offset: 16 });
            self.note(UnwindOp::Saved { reg: 30, offset: 8 });
            asm!(self; mov x19, x0 ; mov x20, x1);
            if chain.needs != Needs::Nothing {
                asm!(self; mov x21, x5);
            }
        }
        for program in 0..chain.programs {
            if program > 0 {
                asm!(self; mov x0, x19 ; mov x1, x20);
                if chain.needs != Needs::Nothing {
                    asm!(self; mov x5, x21);
                }
                if chain.needs == Needs::Run {
                    asm!(self; str wzr, [x5, RunCtx::TAIL_CALLS_OFFSET as u32]);
                }
            }
            self.budget(chain, program);
            if program + 1 == chain.programs && chain.end.is_none() {
                self.restore(chain);
                self.name_program(program);
                asm!(self; b 0);
                break;
            }
            self.name_program(program);
            asm!(self; bl 0);
            if let Some(verdicts) = chain.test(program) {
                self.leave_unless(verdicts, out);
            }
        }
        if let Some(value) = chain.end {
            self.load(Reg::X0, value);
        }
        if chain.end.is_some() || chain.test(0).is_some() {
            if chain.end.is_none() {
                // After the jump to the last program.
                self.note(UnwindOp::Recall);
            }
            self.bind(out);
            self.restore(chain);
            asm!(self; ret);
            self.no_straight_line();
        }
    }

    /// Behind a return or an indirect jump: a barrier, if it is hardened.
    fn no_straight_line(&mut self) {
        if self.options.hardening.straight_line {
            asm!(self; dsb sy; isb);
        }
    }

    fn landing_pad(&mut self) {
        if self.options.hardening.landing_pads {
            asm!(self; hint 34); // bti c
        }
    }

    /// Sets the budget of the program: its own, or the run's allowance if that is less.
    fn budget(&mut self, chain: &Chain, program: usize) {
        let Some(budget) = chain.budgets[program] else { return };
        self.constant(budget as u64);
        asm!(self;
            ldr x17, [x5, RunCtx::ALLOWANCE_OFFSET as u32];
            cmp x17, x14;
            csel x17, x17, x14, lt;
            str x17, [x5, RunCtx::BUDGET_OFFSET as u32]);
    }

    /// Goes to `out` if the verdict in x0 is none of these.
    fn leave_unless(&mut self, verdicts: Verdicts, out: Label) {
        match verdicts {
            Verdicts::One(one) => {
                match u32::try_from(one) {
                    Ok(small) if small < 4096 => asm!(self; cmp x0, small),
                    _ => {
                        self.constant(one);
                        asm!(self; cmp x0, x14);
                    }
                }
                self.branch(Jump::NotEqual, out);
            }
            Verdicts::Set(set) => {
                asm!(self; cmp x0, 63);
                self.branch(Jump::Higher, out);
                self.constant(set);
                asm!(self; lsr x14, x14, x0 ; tst x14, 1);
                self.branch(Jump::Equal, out);
            }
        }
    }

    fn restore(&mut self, chain: &Chain) {
        self.note(UnwindOp::Remember);
        if chain.programs == 1 {
            asm!(self; ldr x30, [sp], #16);
            self.note(UnwindOp::Restored { reg: 30 });
        } else {
            asm!(self; ldp x21, x30, [sp, #16]);
            self.note(UnwindOp::Restored { reg: 21 });
            self.note(UnwindOp::Restored { reg: 30 });
            asm!(self; ldp x19, x20, [sp], #32);
            self.note(UnwindOp::Restored { reg: 19 });
            self.note(UnwindOp::Restored { reg: 20 });
        }
        self.note(UnwindOp::Cfa { base: SP, offset: 0 });
        if self.options.hardening.return_signing {
            asm!(self; hint 29); // autiasp
            self.note(UnwindOp::SignToggled);
        }
    }
}

/// The stack pointer as unwind notes name it.
const SP: u8 = 31;
