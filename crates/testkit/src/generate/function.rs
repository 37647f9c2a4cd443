//! One generated function: the bookkeeping that keeps it well-defined.
//!
//! `scalars` is the set of registers that hold a defined scalar on every path to here; only those are read. At a label
//! the sets of all jumps to it are intersected. At the end of a loop the registers that were scalars at its head
//! are made scalars again. `pinned` registers (the context's address, loop counters) are neither read as data nor
//! written.
//!
//! The frame: r10-8 may hold the context's address, r10-16 and r10-24 loop counters; the data that statements read and
//! write lies below and is initialised at entry. So an address is never read as data.

use super::{Choices, Shape};
use bpf_isa::{AluOp, Callee, Cond, Imm64, Insn, Reg, Size, Src, Width};

/// A set of registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct RegSet(u16);

impl RegSet {
    pub(super) fn insert(&mut self, reg: Reg) {
        self.0 |= 1 << reg.index();
    }
    pub(super) fn remove(&mut self, reg: Reg) {
        self.0 &= !(1 << reg.index());
    }
    pub(super) fn contains(self, reg: Reg) -> bool {
        self.0 & 1 << reg.index() != 0
    }
    pub(super) fn and(self, other: RegSet) -> RegSet {
        RegSet(self.0 & other.0)
    }
    pub(super) fn without(self, other: RegSet) -> RegSet {
        RegSet(self.0 & !other.0)
    }
    pub(super) fn iter(self) -> impl Iterator<Item = Reg> {
        Reg::ALL.into_iter().filter(move |reg| self.contains(*reg))
    }
}

/// Where the function keeps the address of the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Home {
    Reg(Reg),
    Stack,
}

/// Offset of [`Home::Stack`] from r10.
pub(super) const HOME_SLOT: i16 = -8;
/// Offsets of the loop counters that live on the stack.
pub(super) const COUNTER_SLOTS: [i16; 2] = [-16, -24];
/// The data lies in `r10 - DATA_END - frame .. r10 - DATA_END`.
pub(super) const DATA_END: u32 = 24;

/// A forward label.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label(usize);

#[derive(Debug, Default)]
struct LabelState {
    at: Option<usize>,
    /// Registers that are scalars on every jump to it; `None` before the first.
    scalars: Option<RegSet>,
}

/// A generated function, its calls unresolved.
#[derive(Debug)]
pub(super) struct Function {
    code: Vec<Insn>,
    /// Slots of calls, and their callees.
    calls: Vec<(usize, usize)>,
    /// Instructions one call may take.
    cost: u64,
}

impl Function {
    pub(super) fn generate(choices: &mut Choices<'_>, shape: &Shape, callees: &[Function], main: bool) -> Function {
        let mut builder = Builder::new(choices, shape, callees, main);
        builder.entry(main);
        let statements = builder.choices.below(shape.statements + 1);
        builder.block(statements, 0);
        builder.exit();
        if !shape.kernel && builder.choices.one_in(8) {
            // Unreachable, so it may end in anything.
            builder.arithmetic();
        }
        builder.finish()
    }

    pub(super) fn len(&self) -> usize {
        self.code.len()
    }

    pub(super) fn callees(&self) -> impl Iterator<Item = usize> {
        self.calls.iter().map(|&(_, callee)| callee)
    }

    pub(super) fn cost(&self) -> u64 {
        self.cost
    }

    /// Appends the code, with calls to the functions that start at `starts`.
    pub(super) fn place(mut self, insns: &mut Vec<Insn>, starts: &[usize]) {
        for (at, callee) in self.calls {
            let next = (insns.len() + at + 1) as i64;
            let off = i32::try_from(starts[callee] as i64 - next).expect("generated programs are small");
            self.code[at] = Insn::Call(Callee::Subprog(off));
        }
        insns.append(&mut self.code);
    }
}

/// A function under construction.
pub(super) struct Builder<'b, 'c> {
    pub(super) choices: &'b mut Choices<'c>,
    pub(super) shape: Shape,
    pub(super) callees: &'b [Function],
    pub(super) scalars: RegSet,
    pub(super) pinned: RegSet,
    pub(super) home: Home,
    /// Whether it makes no calls, so that caller-saved registers may be pinned.
    pub(super) leaf: bool,
    /// Bytes of stack data, a multiple of 8.
    pub(super) frame: u32,
    /// How often the code being generated runs in one call, at most.
    pub(super) multiplier: u64,
    /// Ends of the enclosing constructs, for jumps out of several at once.
    pub(super) enclosing: Vec<Label>,
    /// How many counters on the stack are in use.
    pub(super) stack_counters: usize,
    code: Vec<Insn>,
    labels: Vec<LabelState>,
    jumps: Vec<(usize, Label)>,
    calls: Vec<(usize, usize)>,
    cost: u64,
}

impl<'b, 'c> Builder<'b, 'c> {
    fn new(choices: &'b mut Choices<'c>, shape: &Shape, callees: &'b [Function], main: bool) -> Self {
        let leaf = choices.one_in(3);
        let home = match choices.below(if leaf { 6 } else { 5 }) {
            0 => Home::Reg(Reg::R6),
            1 => Home::Reg(Reg::R7),
            2 => Home::Reg(Reg::R8),
            3 => Home::Reg(Reg::R9),
            4 => Home::Stack,
            _ => Home::Reg(Reg::R1),
        };
        // The kernel allows 512 bytes for all frames of a call chain together.
        let frame = 8 * choices.below(if main { 16 } else { 8 });
        let mut pinned = RegSet::default();
        if let Home::Reg(reg) = home {
            pinned.insert(reg);
        }
        Builder {
            choices,
            shape: *shape,
            callees,
            scalars: RegSet::default(),
            pinned,
            home,
            leaf,
            frame,
            multiplier: 1,
            enclosing: Vec::new(),
            stack_counters: 0,
            code: Vec::new(),
            labels: Vec::new(),
            jumps: Vec::new(),
            calls: Vec::new(),
            cost: 0,
        }
    }

    /// Saves the context, defines registers and stack data. Main gets r2 = length; a subprogram r2 to r5.
    fn entry(&mut self, main: bool) {
        match self.home {
            Home::Reg(Reg::R1) => {}
            Home::Reg(reg) => self.emit(Insn::Mov { width: Width::W64, dst: reg, src: Src::Reg(Reg::R1) }),
            Home::Stack => {
                self.emit(Insn::Store { size: Size::DW, base: Reg::R10, off: HOME_SLOT, src: Src::Reg(Reg::R1) })
            }
        }
        self.scalars.insert(Reg::R2);
        if !main {
            for reg in [Reg::R3, Reg::R4, Reg::R5] {
                self.scalars.insert(reg);
            }
        }
        // Before the registers: they may be defined by loads from these slots.
        for slot in 0..self.frame / 8 {
            let off = -((DATA_END + 8 * (slot + 1)) as i16);
            let src = match self.choices.below(3) {
                0 => Src::Imm(self.choices.imm()),
                _ => Src::Reg(self.scalar()),
            };
            self.emit(Insn::Store { size: Size::DW, base: Reg::R10, off, src });
        }
        for reg in Reg::ALL.into_iter().filter(|&reg| reg != Reg::R10) {
            if !self.pinned.contains(reg) && !self.scalars.contains(reg) && !self.choices.one_in(4) {
                self.define(reg);
            }
        }
    }

    /// Folds some of the scalars into r0 and ends the function.
    pub(super) fn exit(&mut self) {
        if !self.scalars.contains(Reg::R0) {
            self.mov_imm(Reg::R0);
        }
        for reg in self.scalars.iter().filter(|&reg| reg != Reg::R0) {
            if !self.choices.one_in(3) {
                self.alu(Width::W64, AluOp::Mul, Reg::R0, Src::Imm(31));
                self.alu(Width::W64, AluOp::Add, Reg::R0, Src::Reg(reg));
            }
        }
        self.emit(Insn::Exit);
    }

    fn finish(mut self) -> Function {
        for (at, label) in self.jumps {
            let target = self.labels[label.0].at.expect("every label is bound");
            let off = target as i64 - (at as i64 + 1);
            set_offset(&mut self.code[at], off);
        }
        Function { code: self.code, calls: self.calls, cost: self.cost }
    }

    pub(super) fn emit(&mut self, insn: Insn) {
        self.code.push(insn);
        self.cost += self.multiplier;
    }

    /// Whether code that costs this much a pass still fits into the step budget.
    pub(super) fn affordable(&self, cost: u64) -> bool {
        self.cost + self.multiplier.saturating_mul(cost) <= self.shape.steps
    }

    pub(super) fn call(&mut self, callee: usize) {
        self.calls.push((self.code.len(), callee));
        self.emit(Insn::Call(Callee::Subprog(0)));
        self.cost += self.multiplier * self.callees[callee].cost();
    }

    pub(super) fn alu(&mut self, width: Width, op: AluOp, dst: Reg, src: Src) {
        self.emit(Insn::Alu { width, op, dst, src });
    }

    /// `reg = immediate`.
    pub(super) fn mov_imm(&mut self, reg: Reg) {
        let imm = self.choices.imm();
        let width = self.choices.pick(&[Width::W64, Width::W32]);
        self.emit(Insn::Mov { width, dst: reg, src: Src::Imm(imm) });
        self.scalars.insert(reg);
    }

    /// Makes `reg` a scalar, one way or another.
    pub(super) fn define(&mut self, reg: Reg) {
        match self.choices.below(4) {
            0 => self.mov_imm(reg),
            1 => {
                let value = self.choices.value();
                self.emit(Insn::LoadImm64 { dst: reg, imm: Imm64::Const(value) });
                self.emit(Insn::SecondSlot);
            }
            2 => self.load_memory(reg),
            _ => {
                let src = self.scalar();
                self.emit(Insn::Mov { width: Width::W64, dst: reg, src: Src::Reg(src) });
            }
        }
        self.scalars.insert(reg);
    }

    /// Returns a register with a defined number; defines one if there is none.
    pub(super) fn scalar(&mut self) -> Reg {
        let options: Vec<Reg> = self.scalars.iter().collect();
        if options.is_empty() {
            let reg = self.writable();
            self.mov_imm(reg);
            return reg;
        }
        self.choices.pick(&options)
    }

    /// A defined scalar that may be written.
    pub(super) fn scalar_destination(&mut self) -> Reg {
        let reg = self.scalar();
        debug_assert!(!self.pinned.contains(reg), "{reg} is pinned and a scalar");
        reg
    }

    /// Any register that may be written.
    pub(super) fn writable(&mut self) -> Reg {
        self.writable_except(RegSet::default())
    }

    pub(super) fn writable_except(&mut self, except: RegSet) -> Reg {
        let options: Vec<Reg> = Reg::ALL
            .into_iter()
            .filter(|&reg| reg != Reg::R10 && !self.pinned.contains(reg) && !except.contains(reg))
            .collect();
        self.choices.pick(&options)
    }

    /// An operand of an ALU instruction or a comparison.
    pub(super) fn operand(&mut self) -> Src {
        if self.choices.one_in(2) { Src::Imm(self.choices.imm()) } else { Src::Reg(self.scalar()) }
    }

    pub(super) fn label(&mut self) -> Label {
        self.labels.push(LabelState::default());
        Label(self.labels.len() - 1)
    }

    fn reaches(&mut self, label: Label) {
        let scalars = self.scalars;
        let state = &mut self.labels[label.0].scalars;
        *state = Some(state.map_or(scalars, |known| known.and(scalars)));
    }

    pub(super) fn goto(&mut self, label: Label, wide: bool) {
        self.reaches(label);
        self.jumps.push((self.code.len(), label));
        self.emit(Insn::Jump { off: 0, wide });
    }

    pub(super) fn may_goto(&mut self, label: Label) {
        self.reaches(label);
        self.jumps.push((self.code.len(), label));
        self.emit(Insn::MayGoto { off: 0 });
    }

    /// A random condition on defined scalars.
    pub(super) fn goto_if(&mut self, label: Label) {
        let dst = self.scalar();
        let src = self.operand();
        let cond = self.choices.pick(&Cond::ALL);
        let width = self.choices.pick(&[Width::W64, Width::W32]);
        self.jump_if(width, cond, dst, src, label);
    }

    pub(super) fn jump_if(&mut self, width: Width, cond: Cond, dst: Reg, src: Src, label: Label) {
        self.reaches(label);
        self.jumps.push((self.code.len(), label));
        self.emit(Insn::JumpIf { width, cond, dst, src, off: 0 });
    }

    /// Binds a label that the code before also falls into.
    pub(super) fn bind(&mut self, label: Label) {
        self.reaches(label);
        self.bind_only(label);
    }

    /// Binds a label after code that does not fall through.
    pub(super) fn bind_only(&mut self, label: Label) {
        self.labels[label.0].at = Some(self.code.len());
        // A label nobody jumps to, after a jump: the code behind it is unreachable, and may assume any state.
        if let Some(scalars) = self.labels[label.0].scalars {
            self.scalars = scalars;
        }
    }

    /// Binds the head of a loop here; the caller makes sure that every jump back has at least these scalars.
    pub(super) fn bind_head(&mut self) -> Label {
        let label = self.label();
        self.labels[label.0].at = Some(self.code.len());
        label
    }
}

/// Sets the offset of a jump that [`Builder`] emitted.
fn set_offset(insn: &mut Insn, offset: i64) {
    if let Insn::Jump { off, .. } = insn {
        *off = offset as i32;
    }
    if let Insn::JumpIf { off, .. } | Insn::MayGoto { off } = insn {
        *off = i16::try_from(offset).expect("a function has fewer than 32768 slots");
    }
}
