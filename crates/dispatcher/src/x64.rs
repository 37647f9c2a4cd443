//! Images for x86-64.
//!
//! A tree finds the program's address in rax and keeps `address - base` in r10; flags, r10 and (in a veneer) r11 are overwritten. Inner branches
//! take their short form where it reaches: emission starts with all of them short and is repeated with those long that do not reach.
//! Lengths only grow, so that ends.

use crate::image::{Chain, Options, Verdicts};
use crate::plan::Plan;
use crate::tree::Tree;
use bpf_jit_code::{Arch, Code, Reloc, RelocKind, RunCtx, Symbol, Unwind, UnwindOp};

/// Appends one or more instructions.
macro_rules! asm {
    ($e:expr; $($insn:tt)*) => { ::dynasmrt::dynasm!(Sink(&mut $e.code.bytes) ; .arch x64 ; $($insn)*) };
}

/// What `dynasm!` calls: the methods of its `DynasmApi` that write.
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

#[derive(Clone, Copy)]
struct Label(usize);

#[derive(Clone, Copy)]
enum Jump {
    Always,
    Greater,
    NotEqual,
    /// Unsigned.
    Above,
    NotCarry,
}

struct Branch {
    /// Offset of the instruction after it.
    end: usize,
    target: Label,
}

struct Emitter<'a> {
    code: Code,
    options: &'a Options,
    /// Which branches are long, in code order; the rest are short.
    long: Vec<bool>,
    branches: Vec<Branch>,
    labels: Vec<usize>,
    thunk: Option<Label>,
}

pub(crate) fn tree(plan: &Plan, options: &Options) -> Code {
    relaxed(options, |e| {
        if plan.base != 0 {
            // Its flags are those of a compare with the base.
            asm!(e; mov r10, QWORD plan.base.wrapping_neg() as i64 ; add r10, rax);
        }
        e.node(plan, &plan.tree);
        e.retpoline();
        e.code.frame_bytes.push(0);
    })
}

pub(crate) fn chain(chain: &Chain, options: &Options) -> Code {
    relaxed(options, |e| e.chain(chain))
}

fn relaxed(options: &Options, emit: impl Fn(&mut Emitter<'_>)) -> Code {
    let mut long = Vec::new();
    loop {
        let code = Code::new(Arch::X64);
        let mut e = Emitter { code, options, long, branches: Vec::new(), labels: Vec::new(), thunk: None };
        e.code.entries.push(0);
        e.note(UnwindOp::Function);
        if options.hardening.landing_pads {
            // endbr64, which dynasm does not know.
            e.code.bytes.extend_from_slice(&[0xf3, 0x0f, 0x1e, 0xfa]);
        }
        emit(&mut e);
        // Veneers.
        e.note(UnwindOp::Outside);
        if e.resolve() {
            return e.code;
        }
        long = e.long;
    }
}

impl Emitter<'_> {
    fn label(&mut self) -> Label {
        self.labels.push(0);
        Label(self.labels.len() - 1)
    }

    fn bind(&mut self, label: Label) {
        self.labels[label.0] = self.code.bytes.len();
    }

    fn branch(&mut self, jump: Jump, target: Label) {
        if self.branches.len() == self.long.len() {
            self.long.push(false);
        }
        match (jump, self.long[self.branches.len()]) {
            (Jump::Always, false) => asm!(self; jmp BYTE 0),
            (Jump::Always, true) => asm!(self; jmp DWORD 0),
            (Jump::Greater, false) => asm!(self; jg BYTE 0),
            (Jump::Greater, true) => asm!(self; jg DWORD 0),
            (Jump::NotEqual, false) => asm!(self; jne BYTE 0),
            (Jump::NotEqual, true) => asm!(self; jne DWORD 0),
            (Jump::Above, false) => asm!(self; ja BYTE 0),
            (Jump::Above, true) => asm!(self; ja DWORD 0),
            (Jump::NotCarry, false) => asm!(self; jnc BYTE 0),
            (Jump::NotCarry, true) => asm!(self; jnc DWORD 0),
        }
        self.branches.push(Branch { end: self.code.bytes.len(), target });
    }

    /// Writes the distances. False: some branch must become long first.
    fn resolve(&mut self) -> bool {
        let mut reach = true;
        for (branch, long) in self.branches.iter().zip(&mut self.long) {
            let distance = (self.labels[branch.target.0] as i64 - branch.end as i64) as i32;
            if *long {
                self.code.bytes[branch.end - 4..branch.end].copy_from_slice(&distance.to_le_bytes());
            } else if let Ok(distance) = i8::try_from(distance) {
                self.code.bytes[branch.end - 1] = distance as u8;
            } else {
                *long = true;
                reach = false;
            }
        }
        reach
    }

    /// What unwinders are to know from here on.
    fn note(&mut self, op: UnwindOp) {
        self.code.unwind.push(Unwind { at: self.code.bytes.len() as u32, op });
    }

    /// The operand that was just written is the distance to the program.
    fn name_program(&mut self, program: usize) {
        let at = self.code.bytes.len() as u32 - 4;
        self.code.relocs.push(Reloc { at, kind: RelocKind::X64Rel32, symbol: Symbol::new(program as u32) });
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
            // Never executed: what is before ends in a jump.
            let len = self.code.bytes.len().next_multiple_of(16);
            self.code.bytes.resize(len, INT3);
        }
        self.bind(above);
        self.node(plan, upper);
    }

    fn compare(&mut self, plan: &Plan, entry: usize) {
        let immediate = plan.immediate(entry);
        match (plan.base, i8::try_from(immediate)) {
            (0, Err(_)) => asm!(self; cmp rax, DWORD immediate),
            (_, Ok(0)) if plan.base != 0 && self.code.bytes.len() == self.root() => {}
            (_, Err(_)) => asm!(self; cmp r10, DWORD immediate),
            // `cmp rax, imm8` and `cmp r10, imm8`: dynasm writes 32 bits.
            (0, Ok(immediate)) => self.code.bytes.extend_from_slice(&[0x48, 0x83, 0xf8, immediate as u8]),
            (_, Ok(immediate)) => self.code.bytes.extend_from_slice(&[0x49, 0x83, 0xfa, immediate as u8]),
        }
    }

    /// Where the subtraction of the base ends, whose flags are still there.
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
        }
    }

    /// Speculation of the return is caught in a loop while the real one goes to the address in rax.
    fn retpoline(&mut self) {
        let Some(thunk) = self.thunk else { return };
        // The last miss is right before and may fall through.
        if self.branches.last().is_some_and(|last| last.end == self.code.bytes.len()) {
            let len = if self.long[self.branches.len() - 1] { 5 } else { 2 };
            self.code.bytes.truncate(self.code.bytes.len() - len);
            self.branches.pop();
        }
        self.bind(thunk);
        self.note(UnwindOp::Outside);
        asm!(self; call DWORD 7);
        // Back to the pause, over pause, lfence and itself.
        asm!(self; pause ; lfence ; jmp BYTE -7);
        asm!(self; mov [rsp], rax ; ret);
    }

    fn chain(&mut self, chain: &Chain) {
        match (chain.programs, chain.end) {
            (0, end) => {
                self.code.frame_bytes.push(8);
                self.constant(end.unwrap_or(0));
                asm!(self; ret);
                return;
            }
            (1, None) => {
                self.code.frame_bytes.push(0);
                asm!(self; jmp DWORD 0);
                self.name_program(0);
                return;
            }
            (1, Some(_)) => self.code.frame_bytes.push(16),
            _ => self.code.frame_bytes.push(32),
        }
        let out = self.label();
        // One save or three align the stack for the calls.
        asm!(self; push rbx);
        self.saved(RBX, 16);
        if chain.programs > 1 {
            asm!(self; push rbp);
            self.saved(RBP, 24);
            asm!(self; push r14);
            self.saved(R14, 32);
            asm!(self; mov rbx, rdi ; mov rbp, rsi);
            if chain.reads_hidden {
                asm!(self; mov r14, r9);
            }
        }
        for program in 0..chain.programs {
            if program > 0 {
                asm!(self; mov rdi, rbx ; mov rsi, rbp);
                if chain.reads_hidden {
                    asm!(self; mov r9, r14 ; mov DWORD [r9 + RunCtx::TAIL_CALLS_OFFSET], 0);
                }
            }
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
                // Behind the jump to the last program.
                self.note(UnwindOp::Recall);
            }
            self.bind(out);
            self.restore(chain);
            asm!(self; ret);
        }
    }

    /// Goes to `out` with a verdict in rax that is none of these.
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

    /// A register was pushed; the frame has so many bytes now.
    fn saved(&mut self, reg: u8, bytes: u32) {
        self.note(UnwindOp::Cfa { base: RSP, offset: bytes });
        self.note(UnwindOp::Saved { reg, offset: bytes });
    }

    /// A register was popped.
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

/// Registers as unwind notes name them.
const RBX: u8 = 3;
const RSP: u8 = 4;
const RBP: u8 = 5;
const R14: u8 = 14;
