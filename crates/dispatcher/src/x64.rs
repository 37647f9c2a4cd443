//! Images for x86-64.
//!
//! A tree gets the program's address in rax and keeps `address - base` in r10. It overwrites flags, r10 and (in a
//! veneer) r11. [`Layout`] decides which inner branches are short.

use crate::chain::{Chain, Verdicts};
use crate::finish::laid_out;
use crate::options::Options;
use crate::plan::Plan;
use crate::tree::Tree;
use bpf_jit_code::layout::{Branch, Label, Layout};
use bpf_jit_code::{Arch, Code, FrameShape, Needs, Reloc, RelocKind, RunCtx, Symbol, Unwind, UnwindOp};

/// Appends one or more instructions.
macro_rules! asm {
    ($e:expr; $($insn:tt)*) => { ::dynasmrt::dynasm!(Sink(&mut $e.buf) ; .arch x64 ; $($insn)*) };
}

/// The target of `dynasm!`: the methods of its `DynasmApi` that write.
struct Sink<'a>(&'a mut Vec<u8>);

impl Sink<'_> {
    fn push(&mut self, byte: u8) {
        self.0.push(byte);
    }
    fn extend<const N: usize>(&mut self, bytes: &[u8; N]) {
        self.0.extend_from_slice(bytes);
    }
    fn push_i8(&mut self, value: i8) {
        self.push(value as u8);
    }
    fn push_i32(&mut self, value: i32) {
        self.extend(&value.to_le_bytes());
    }
    fn push_i64(&mut self, value: i64) {
        self.extend(&value.to_le_bytes());
    }
}

/// An inner branch.
#[derive(Clone, Copy, Debug)]
enum Jump {
    Always,
    Greater,
    NotEqual,
    /// Unsigned.
    Above,
    NotCarry,
}

impl Branch for Jump {
    const ARCH: Arch = Arch::X64;
    fn lengths(self) -> (u8, u8) {
        match self {
            Jump::Always => (2, 5),
            Jump::Greater | Jump::NotEqual | Jump::Above | Jump::NotCarry => (2, 6),
        }
    }
    fn short_reaches(self, distance: i64) -> bool {
        i8::try_from(distance - 2).is_ok()
    }
    fn long_reaches(self, distance: i64) -> bool {
        i32::try_from(distance - i64::from(self.lengths().1)).is_ok()
    }
    #[expect(clippy::cast_possible_truncation, reason = "the one that is written has been asked whether it reaches")]
    fn write(self, long: bool, distance: i64, out: &mut Vec<u8>) {
        let (short, near) = ((distance - 2) as i8, (distance - i64::from(self.lengths().1)) as i32);
        match (self, long) {
            (Jump::Always, false) => ::dynasmrt::dynasm!(Sink(out) ; .arch x64 ; jmp BYTE short),
            (Jump::Always, true) => ::dynasmrt::dynasm!(Sink(out) ; .arch x64 ; jmp DWORD near),
            (Jump::Greater, false) => ::dynasmrt::dynasm!(Sink(out) ; .arch x64 ; jg BYTE short),
            (Jump::Greater, true) => ::dynasmrt::dynasm!(Sink(out) ; .arch x64 ; jg DWORD near),
            (Jump::NotEqual, false) => ::dynasmrt::dynasm!(Sink(out) ; .arch x64 ; jne BYTE short),
            (Jump::NotEqual, true) => ::dynasmrt::dynasm!(Sink(out) ; .arch x64 ; jne DWORD near),
            (Jump::Above, false) => ::dynasmrt::dynasm!(Sink(out) ; .arch x64 ; ja BYTE short),
            (Jump::Above, true) => ::dynasmrt::dynasm!(Sink(out) ; .arch x64 ; ja DWORD near),
            (Jump::NotCarry, false) => ::dynasmrt::dynasm!(Sink(out) ; .arch x64 ; jnc BYTE short),
            (Jump::NotCarry, true) => ::dynasmrt::dynasm!(Sink(out) ; .arch x64 ; jnc DWORD near),
        }
    }
    fn pad(len: usize, out: &mut Vec<u8>) {
        out.resize(out.len() + len, NOP);
    }
}

struct Emitter<'a> {
    /// The code with every inner branch in its long form.
    buf: Vec<u8>,
    layout: Layout<Jump>,
    code: Code,
    options: &'a Options,
    thunk: Option<Label>,
}

pub(crate) fn tree(plan: &Plan, options: &Options) -> Code {
    let mut e = Emitter::new(options);
    if plan.base != 0 {
        // The addition sets the flags of a compare with the base.
        asm!(e; mov r10, QWORD plan.base.wrapping_neg() as i64 ; add r10, rax);
    }
    e.node(plan, &plan.tree);
    e.retpoline();
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
        let mut code = Code::new(Arch::X64);
        code.entries.push(0);
        let mut e = Emitter { buf: Vec::new(), layout: Layout::default(), code, options, thunk: None };
        e.note(UnwindOp::Function);
        if options.hardening.landing_pads {
            // endbr64, which dynasm does not know.
            e.buf.extend_from_slice(&[0xf3, 0x0f, 0x1e, 0xfa]);
        }
        e
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

    fn finish(mut self) -> Code {
        // Veneers.
        self.note(UnwindOp::Outside);
        laid_out(self.code, &self.buf, self.layout, INT3)
    }

    /// Records a change of the frame, for unwinders.
    fn note(&mut self, op: UnwindOp) {
        self.code.unwind.push(Unwind { at: crate::small(self.buf.len()), op });
    }

    /// Records that the last four bytes written are the distance to the program.
    fn name_program(&mut self, program: usize) {
        let at = crate::small(self.buf.len()) - 4;
        self.code.relocs.push(Reloc { at, kind: RelocKind::X64Rel32, symbol: Symbol::new(crate::small(program)) });
    }

    fn node(&mut self, plan: &Plan, tree: &Tree) {
        match tree {
            Tree::Miss => self.miss(),
            Tree::Split { pivot, lower, upper } => {
                self.compare(plan, *pivot);
                self.sides(plan, lower, upper);
            }
            Tree::Test { entry, lower, upper } => {
                self.compare(plan, *entry);
                asm!(self; je DWORD 0);
                self.name_program(*entry);
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
            // Never executed, because the code before ends in a jump.
            self.layout.align(&mut self.buf, 16, [INT3; 4]);
        }
        self.bind(above);
        self.node(plan, upper);
    }

    fn compare(&mut self, plan: &Plan, entry: usize) {
        let immediate = plan.immediate(entry);
        match (plan.base, i8::try_from(immediate)) {
            (0, Err(_)) => asm!(self; cmp rax, DWORD immediate),
            (_, Ok(0)) if plan.base != 0 && self.buf.len() == self.root() => {}
            (_, Err(_)) => asm!(self; cmp r10, DWORD immediate),
            // `cmp rax, imm8` and `cmp r10, imm8`: dynasm writes 32 bits.
            (0, Ok(immediate)) => self.buf.extend_from_slice(&[0x48, 0x83, 0xf8, immediate as u8]),
            (_, Ok(immediate)) => self.buf.extend_from_slice(&[0x49, 0x83, 0xfa, immediate as u8]),
        }
    }

    /// The end of the subtraction of the base, up to which its flags are valid.
    fn root(&self) -> usize {
        const SUBTRACTION: usize = 13;
        SUBTRACTION + if self.options.hardening.landing_pads { 4 } else { 0 }
    }

    fn miss(&mut self) {
        if self.options.hardening.retpolines {
            let thunk = match self.thunk {
                Some(thunk) => thunk,
                None => self.label(),
            };
            self.thunk = Some(thunk);
            self.branch(Jump::Always, thunk);
        } else {
            asm!(self; jmp rax);
            self.no_straight_line();
        }
    }

    /// Behind a return or an indirect jump: a barrier, if it is hardened.
    fn no_straight_line(&mut self) {
        if self.options.hardening.straight_line {
            asm!(self; int3);
        }
    }

    /// Emits a retpoline: speculation of the return is caught in a loop while the return itself goes to the address
    /// in rax.
    fn retpoline(&mut self) {
        let Some(thunk) = self.thunk else { return };
        // The last miss comes immediately before and may fall through.
        self.layout.bind_behind(&mut self.buf, thunk);
        self.note(UnwindOp::Outside);
        asm!(self; call DWORD 7);
        // The jump goes back to the pause, over pause, lfence and itself.
        asm!(self; pause ; lfence ; jmp BYTE -7);
        asm!(self; mov [rsp], rax ; ret);
        self.no_straight_line();
    }

    fn chain(&mut self, chain: &Chain) {
        match (chain.programs, chain.end) {
            (0, end) => {
                self.code.frames.push(FrameShape::new(8, Some(0)));
                self.constant(end.unwrap_or(0));
                asm!(self; ret);
                self.no_straight_line();
                return;
            }
            (1, None) => {
                self.code.frames.push(FrameShape::new(0, None));
                self.budget(chain, 0);
                asm!(self; jmp DWORD 0);
                self.name_program(0);
                return;
            }
            (1, Some(_)) => self.code.frames.push(FrameShape::new(16, Some(8))),
            _ => self.code.frames.push(FrameShape::new(32, Some(24))),
        }
        let out = self.label();
        // One or three saved registers align the stack for the calls.
        asm!(self; push rbx);
        self.saved(RBX, 16);
        if chain.programs > 1 {
            asm!(self; push rbp);
            self.saved(RBP, 24);
            asm!(self; push r14);
            self.saved(R14, 32);
            asm!(self; mov rbx, rdi ; mov rbp, rsi);
            if chain.needs != Needs::Nothing {
                asm!(self; mov r14, r9);
            }
        }
        for program in 0..chain.programs {
            if program > 0 {
                asm!(self; mov rdi, rbx ; mov rsi, rbp);
                if chain.needs != Needs::Nothing {
                    asm!(self; mov r9, r14);
                }
                if chain.needs == Needs::Run {
                    asm!(self; mov DWORD [r9 + RunCtx::TAIL_CALLS_OFFSET], 0);
                }
            }
            self.budget(chain, program);
            if program + 1 == chain.programs && chain.end.is_none() {
                self.restore(chain);
                asm!(self; jmp DWORD 0);
                self.name_program(program);
                break;
            }
            asm!(self; call DWORD 0);
            self.name_program(program);
            if let Some(verdicts) = chain.test(program) {
                self.leave_unless(verdicts, out);
            }
        }
        if let Some(value) = chain.end {
            self.constant(value);
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

    /// Sets the budget of the program: its own, or the run's allowance if that is less.
    fn budget(&mut self, chain: &Chain, program: usize) {
        let Some(budget) = chain.budgets[program] else { return };
        asm!(self; mov rax, [r9 + RunCtx::ALLOWANCE_OFFSET]);
        match i32::try_from(budget) {
            Ok(budget) => asm!(self; mov r10, DWORD budget),
            Err(_) => asm!(self; mov r10, QWORD budget),
        }
        asm!(self; cmp rax, r10 ; cmovg rax, r10 ; mov [r9 + RunCtx::BUDGET_OFFSET], rax);
    }

    /// Goes to `out` if the verdict in rax is none of these.
    fn leave_unless(&mut self, verdicts: Verdicts, out: Label) {
        match verdicts {
            Verdicts::One(one) => {
                match i32::try_from(one as i64) {
                    Ok(0) => asm!(self; test rax, rax),
                    Ok(one) => asm!(self; cmp rax, DWORD one),
                    Err(_) => asm!(self; mov r10, QWORD one as i64 ; cmp rax, r10),
                }
                self.branch(Jump::NotEqual, out);
            }
            Verdicts::Set(set) => {
                asm!(self; cmp rax, DWORD 63);
                self.branch(Jump::Above, out);
                match i32::try_from(set as i64) {
                    Ok(small) => asm!(self; mov r10, DWORD small),
                    Err(_) => asm!(self; mov r10, QWORD set as i64),
                }
                asm!(self; bt r10, rax);
                self.branch(Jump::NotCarry, out);
            }
        }
    }

    fn restore(&mut self, chain: &Chain) {
        self.note(UnwindOp::Remember);
        if chain.programs > 1 {
            asm!(self; pop r14);
            self.restored(R14, 24);
            asm!(self; pop rbp);
            self.restored(RBP, 16);
        }
        asm!(self; pop rbx);
        self.restored(RBX, 8);
    }

    /// Records that a register was pushed; the frame has `bytes` bytes afterwards.
    fn saved(&mut self, reg: u8, bytes: u32) {
        self.note(UnwindOp::Cfa { base: RSP, offset: bytes });
        self.note(UnwindOp::Saved { reg, offset: bytes });
    }

    /// Records that a register was popped.
    fn restored(&mut self, reg: u8, bytes: u32) {
        self.note(UnwindOp::Restored { reg });
        self.note(UnwindOp::Cfa { base: RSP, offset: bytes });
    }

    /// rax = value.
    fn constant(&mut self, value: u64) {
        match u32::try_from(value) {
            Ok(0) => asm!(self; xor eax, eax),
            Ok(value) => asm!(self; mov eax, DWORD value as i32),
            Err(_) => asm!(self; mov rax, QWORD value as i64),
        }
    }
}

const INT3: u8 = 0xcc;
const NOP: u8 = 0x90;

/// Registers as unwind notes name them.
const RBX: u8 = 3;
const RSP: u8 = 4;
const RBP: u8 = 5;
const R14: u8 = 14;
