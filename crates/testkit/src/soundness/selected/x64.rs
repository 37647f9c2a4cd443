//! The instructions of x86-64 that contained code consists of, and the effect of each on the abstract state.
//!
//! The match below is an allow-list: an instruction, an operand size, a prefix or a kind of operand that it does not
//! name is an error ([`Why::Instruction`]). A register that an allowed instruction writes gets the value that is
//! computed here, or becomes untrusted.

use super::state::{Flags, State};
use super::value::{Class, Name, Place, Value};
use super::{Fields, Machine, Spot, Why};
use bpf_jit::Extern;
use bpf_jit_code::{Code, RelocKind, RunCtx, TailTarget};
use iced_x86::{
    ConditionCode, Decoder, DecoderOptions, Instruction, InstructionInfoFactory, MemorySize, Mnemonic, OpAccess,
    OpKind, Register,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

const RAX: usize = 0;
const RDX: usize = 2;
const RSP: usize = 4;
const RBP: usize = 5;
const RDI: usize = 7;
const R9: usize = 9;
/// rax, rcx, rdx, rsi, rdi, r8 to r11.
const CLOBBERED: [u8; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];
/// rbx, rbp, r12 to r15.
const SAVED: [u8; 6] = [3, 5, 12, 13, 14, 15];
/// Bytes below rsp that nobody else writes.
const RED_ZONE: i64 = 128;
/// Bytes of machine stack that a function may use.
const STACK: i64 = 1 << 20;

/// The code of a program as instructions.
pub(super) struct X64<'a> {
    code: &'a Code,
    insns: BTreeMap<u64, Instruction>,
    /// Relocated instructions.
    externs: BTreeMap<u64, Extern>,
    entries: BTreeSet<u64>,
    /// Patch slots of tail calls that jump past the call or do nothing, and patch slots that jump to the program.
    bypasses: BTreeSet<u64>,
    targets: BTreeSet<u64>,
    fields: Fields<'a>,
    info: RefCell<InstructionInfoFactory>,
}

/// The parts of a function's frame, as distances from the stack pointer at entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    stack: (i64, i64),
    red_zone: i64,
}

/// The number of a general-purpose register of 64 bits.
fn whole(reg: Register) -> Option<usize> {
    reg.is_gpr64().then(|| reg.number())
}

fn short(reg: usize) -> u8 {
    u8::try_from(reg).unwrap_or(u8::MAX)
}

fn is_high_byte(reg: Register) -> bool {
    matches!(reg, Register::AH | Register::BH | Register::CH | Register::DH)
}

impl<'a> X64<'a> {
    /// Disassembles the code, and checks what needs no state: each byte is part of an instruction, and relocations,
    /// entries and patch slots belong to instructions of their form.
    pub(super) fn new(code: &'a Code, fields: Fields<'a>) -> Result<X64<'a>, (u64, Why)> {
        let insns: BTreeMap<u64, Instruction> =
            Decoder::new(64, &code.bytes, DecoderOptions::NONE).into_iter().map(|insn| (insn.ip(), insn)).collect();
        if let Some((at, _)) = insns.iter().find(|(_, insn)| insn.is_invalid()) {
            return Err((*at, Why::Instruction));
        }
        if let Some(table) = code.tables.first() {
            return Err((table.start.into(), Why::Table));
        }
        let mut externs = BTreeMap::new();
        for reloc in &code.relocs {
            let field = u64::from(reloc.at);
            let Some((at, insn)) = insns.range(..=field).next_back() else { return Err((field, Why::Relocation)) };
            let target = Extern::from_symbol(reloc.symbol).ok_or((field, Why::Relocation))?;
            let (len, callable) = match reloc.kind {
                RelocKind::X64Rel32 => (4, true),
                RelocKind::X64Abs64 => (8, false),
                RelocKind::Arm64Branch26 | RelocKind::Arm64Mov48 => return Err((field, Why::Relocation)),
            };
            let of_form = match callable {
                true => insn.mnemonic() == Mnemonic::Call && insn.op0_kind() == OpKind::NearBranch64,
                false => insn.mnemonic() == Mnemonic::Mov && insn.op1_kind() == OpKind::Immediate64,
            };
            let is_function =
                matches!(target, Extern::Helper(_) | Extern::Host(_) | Extern::MapLookup(_) | Extern::Spent(_));
            if !of_form || field + len != insn.next_ip() || is_function != callable {
                return Err((field, Why::Relocation));
            }
            externs.insert(*at, target);
        }
        let (mut bypasses, mut targets) = (BTreeSet::new(), BTreeSet::new());
        for site in &code.tail_calls {
            let TailTarget::Direct { bypass, target, out, .. } = site.target else {
                return Err((0, Why::IndirectBranch));
            };
            let is = |at: u32, mnemonic| {
                insns.get(&at.into()).is_some_and(|insn| insn.mnemonic() == mnemonic && insn.len() == 5)
            };
            if !is(bypass.at(), Mnemonic::Jmp) || !is(target.at(), Mnemonic::Nop) || !insns.contains_key(&out.into()) {
                return Err((bypass.at().into(), Why::Relocation));
            }
            bypasses.insert(bypass.at().into());
            targets.insert(target.at().into());
        }
        let entries: BTreeSet<u64> = code.entries.iter().copied().map(u64::from).collect();
        if let Some(entry) = entries.iter().find(|entry| !insns.contains_key(entry)) {
            return Err((*entry, Why::Target));
        }
        let info = InstructionInfoFactory::new().into();
        Ok(X64 { code, insns, externs, entries, bypasses, targets, fields, info })
    }

    /// The instructions from the entry of the function that contains `at` up to the next entry.
    fn function(&self, at: u64) -> Range<u64> {
        let start = self.entries.range(..=at).next_back().copied().unwrap_or(0);
        let end = self.entries.range(at + 1..).next().copied().unwrap_or(self.code.bytes.len() as u64);
        start..end
    }

    /// Refuses prefixes, segments and registers that emitted code does not use.
    fn is_plain(&self, insn: &Instruction) -> Result<(), Why> {
        let atomic = matches!(
            insn.mnemonic(),
            Mnemonic::Add | Mnemonic::And | Mnemonic::Or | Mnemonic::Xor | Mnemonic::Xadd | Mnemonic::Cmpxchg
        );
        let memory = |i| insn.op_kind(i) == OpKind::Memory;
        let locked = insn.has_lock_prefix();
        let prefixes = insn.has_rep_prefix() || insn.has_repne_prefix() || insn.has_xacquire_prefix();
        let lock = !locked || atomic && memory(0);
        let needs_lock = matches!(insn.mnemonic(), Mnemonic::Xadd | Mnemonic::Cmpxchg) && !locked;
        let segment = insn.segment_prefix() != Register::None;
        let high =
            (0..insn.op_count()).any(|i| insn.op_kind(i) == OpKind::Register && is_high_byte(insn.op_register(i)));
        if prefixes || !lock || needs_lock || segment || high { Err(Why::Instruction) } else { Ok(()) }
    }
}

impl Machine for X64<'_> {
    type Frame = Frame;

    fn text(&self, at: u64) -> String {
        self.insns.get(&at).map(ToString::to_string).unwrap_or_default()
    }

    /// Instructions to which more than one path may lead.
    fn joins(&self) -> BTreeSet<u64> {
        let near = |insn: &&Instruction| insn.op0_kind() == OpKind::NearBranch64;
        let targets = self.insns.values().filter(near).map(Instruction::near_branch_target);
        targets.chain(self.entries.iter().copied()).collect()
    }

    /// An instruction that is no padding and that no path reaches. Behind the call of a retpoline is a loop that only
    /// speculation enters.
    fn unreached(&self, reached: &BTreeSet<u64>) -> Option<u64> {
        let mut previous = [Mnemonic::Nop; 2];
        for (at, insn) in &self.insns {
            let (mnemonic, back) = (insn.mnemonic(), insn.near_branch_target());
            let caught = match mnemonic {
                Mnemonic::Nop | Mnemonic::Int3 | Mnemonic::Pause => true,
                Mnemonic::Lfence => previous[1] == Mnemonic::Pause,
                Mnemonic::Jmp => previous == [Mnemonic::Pause, Mnemonic::Lfence] && back == at - 5,
                _other => false,
            };
            if !caught && !reached.contains(at) {
                return Some(*at);
            }
            previous = [previous[1], mnemonic];
        }
        None
    }

    /// The state at the entry of a function.
    fn entry_state(&self, first: bool) -> State {
        let class = |reg| match usize::from(reg) {
            RSP => Class::Sp,
            R9 => Class::Run,
            RDI if first && self.fields.is_raw() => Class::Address,
            RDI if first => Class::Context,
            _ => Class::Untrusted,
        };
        let regs = (0..16u8).map(|reg| Value::named(Name::Entry(Place::Reg(reg)), class(reg))).collect();
        State { regs, slots: BTreeMap::new(), flags: None }
    }

    /// Finds the BPF stack by the prologue: below rbp (`push rbp; mov rbp, rsp; sub rsp, bytes`), or, in a function
    /// that calls nothing, the red zone.
    fn frame(&self, entry: u64) -> Frame {
        let calls = |insn: &Instruction| {
            insn.mnemonic() == Mnemonic::Call
                && (self.externs.contains_key(&insn.ip()) || self.entries.contains(&insn.near_branch_target()))
        };
        let red_zone = if self.insns.range(self.function(entry)).any(|(_, insn)| calls(insn)) { 0 } else { RED_ZONE };
        let (mut sp, mut framed) = (0i64, false);
        let below = |from: i64, to: i64, red_zone: i64| Frame { stack: (from, to), red_zone };
        for insn in self.insns.range(entry..).map(|(_, insn)| insn) {
            let to = if insn.op0_kind() == OpKind::Register { whole(insn.op0_register()) } else { None };
            let imm = || immediate(insn, 1).filter(|imm| imm.abs() < STACK).unwrap_or(0);
            match insn.mnemonic() {
                Mnemonic::Endbr64 | Mnemonic::Nop => {}
                Mnemonic::Mov if to == Some(RBP) && insn.op1_register() == Register::RSP => framed = true,
                // 128 bytes are subtracted by adding -128, which is shorter.
                Mnemonic::Sub if to == Some(RSP) && framed => return below(sp - imm(), sp, 0),
                Mnemonic::Add if to == Some(RSP) && framed => return below(sp + imm(), sp, 0),
                Mnemonic::Push if framed && to == Some(RAX) => return below(sp - 8, sp, 0),
                _ if framed => return below(sp, sp, 0),
                Mnemonic::Push => sp -= 8,
                Mnemonic::Sub if to == Some(RSP) => sp -= imm(),
                Mnemonic::Add if to == Some(RSP) => sp += imm(),
                _other => break,
            }
        }
        below(sp - red_zone, sp, red_zone)
    }

    /// Checks one instruction in this state, and changes the state by it; returns where control goes, and the place
    /// that it accesses.
    fn step(&self, at: u64, frame: Frame, state: &mut State) -> Result<(Vec<u64>, Option<Spot>), Why> {
        let insn = self.insns.get(&at).ok_or(Why::End)?;
        state.forget(&|name| matches!(name, Name::Made(of, _) if of == at));
        self.is_plain(insn)?;
        let mut one = One { x64: self, insn, at, frame, state, spot: None, set: 0, next: vec![insn.next_ip()] };
        one.step()?;
        let (next, spot) = (one.next, one.spot);
        let (from, to) = state.regs[RSP].frame.ok_or(Why::StackPointer)?;
        if from != to || !(-STACK..=0).contains(&from) {
            return Err(Why::StackPointer);
        }
        // Slots below the stack pointer are free memory.
        state.slots.retain(|slot, _| *slot >= from);
        // Control leaves the function's instructions by a call only.
        let inside = self.function(at);
        for to in &next {
            let called = insn.mnemonic() == Mnemonic::Call;
            if !self.insns.contains_key(to) || !called && !inside.contains(to) {
                return Err(Why::Target);
            }
        }
        Ok((next, spot))
    }
}

fn immediate(insn: &Instruction, operand: u32) -> Option<i64> {
    match insn.op_kind(operand) {
        OpKind::Immediate8
        | OpKind::Immediate16
        | OpKind::Immediate32
        | OpKind::Immediate64
        | OpKind::Immediate8to16
        | OpKind::Immediate8to32
        | OpKind::Immediate8to64
        | OpKind::Immediate32to64 => Some(insn.immediate(operand).cast_signed()),
        _ => None,
    }
}

/// One instruction being carried out.
struct One<'s, 'a> {
    x64: &'s X64<'a>,
    insn: &'s Instruction,
    at: u64,
    frame: Frame,
    state: &'s mut State,
    spot: Option<Spot>,
    /// Registers whose value after the instruction is known, each a bit.
    set: u16,
    next: Vec<u64>,
}

impl One<'_, '_> {
    fn made(&self, reg: usize) -> Name {
        Name::Made(self.at, Place::Reg(short(reg)))
    }

    fn set(&mut self, reg: usize, value: Value) {
        self.state.regs[reg] = value;
        self.set |= 1 << reg;
    }

    fn untrusted(&mut self, reg: usize) {
        self.set(reg, Value::untrusted(self.made(reg)));
    }

    fn sp(&self) -> Result<i64, Why> {
        self.state.regs[RSP].frame.filter(|(from, to)| from == to).map(|(sp, _)| sp).ok_or(Why::StackPointer)
    }

    fn step(&mut self) -> Result<(), Why> {
        let (insn, at) = (self.insn, self.at);
        let mut flags = None;
        match insn.mnemonic() {
            Mnemonic::Endbr64 => {}
            Mnemonic::Nop if self.x64.targets.contains(&at) => {
                self.leaves(true)?;
                self.next.clear();
            }
            Mnemonic::Nop => {}
            Mnemonic::Push => {
                let value = self.state.regs[self.whole(0)?];
                self.push(value)?;
            }
            Mnemonic::Pop => {
                let reg = self.whole(0)?;
                let value = self.pop()?;
                self.set(reg, value.unwrap_or(Value::untrusted(self.made(reg))));
            }
            Mnemonic::Leave => {
                let base = self.state.regs[RBP];
                self.set(RSP, base);
                let value = self.pop()?;
                self.set(RBP, value.unwrap_or(Value::untrusted(self.made(RBP))));
            }
            Mnemonic::Call => return self.call(),
            Mnemonic::Ret => return self.ret(),
            Mnemonic::Jmp => return self.jump(),
            Mnemonic::Cmp | Mnemonic::Test => flags = self.compare()?,
            Mnemonic::Mov => self.mov()?,
            Mnemonic::Xchg => self.xchg()?,
            Mnemonic::Xadd | Mnemonic::Cmpxchg => {
                self.atomic()?;
                let other = self.whole_or_half(1)?;
                let changed = if insn.mnemonic() == Mnemonic::Xadd { other } else { RAX };
                self.untrusted(changed);
            }
            Mnemonic::Mul | Mnemonic::Div | Mnemonic::Idiv => self.wide()?,
            Mnemonic::Imul if insn.op_count() == 1 => self.wide()?,
            Mnemonic::Cdq | Mnemonic::Cqo => self.untrusted(RDX),
            _ if insn.is_jcc_short_or_near() => {
                self.next.push(self.near()?);
            }
            _other => self.arithmetic()?,
        }
        if insn.rflags_modified() != 0 {
            self.state.flags = flags;
        }
        self.others()
    }

    /// Registers that the instruction writes, and that no rule has given a value, are untrusted; an access of memory
    /// without an operand is refused.
    fn others(&mut self) -> Result<(), Why> {
        let mut info = self.x64.info.borrow_mut();
        let info = info.info(self.insn);
        let written = |access: OpAccess| !matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess);
        for used in info.used_registers().iter().filter(|used| written(used.access())) {
            let reg = used.register();
            if !reg.is_gpr() {
                return Err(Why::Instruction);
            }
            let reg = reg.full_register().number();
            if self.set & 1 << reg == 0 {
                self.state.regs[reg] = Value::untrusted(self.made(reg));
            }
        }
        let stack = matches!(self.insn.mnemonic(), Mnemonic::Push | Mnemonic::Pop | Mnemonic::Leave);
        if !stack && !info.used_memory().is_empty() && self.spot.is_none() {
            return Err(Why::Instruction);
        }
        Ok(())
    }

    /// The register of 64 bits that is this operand.
    fn whole(&self, i: u32) -> Result<usize, Why> {
        let reg = Some(self.insn.op_register(i)).filter(|_| self.insn.op_kind(i) == OpKind::Register);
        reg.and_then(whole).ok_or(Why::Instruction)
    }

    /// The register of 32 or 64 bits that is this operand.
    fn whole_or_half(&self, i: u32) -> Result<usize, Why> {
        let reg = Some(self.insn.op_register(i)).filter(|_| self.insn.op_kind(i) == OpKind::Register);
        let reg = reg.filter(|reg| reg.is_gpr64() || reg.is_gpr32());
        reg.map(|reg| reg.full_register().number()).ok_or(Why::Instruction)
    }

    /// Bytes of the first operand.
    fn width(&self) -> usize {
        match self.insn.op0_kind() {
            OpKind::Register => self.insn.op0_register().size(),
            OpKind::Memory => self.insn.memory_size().size(),
            _ => 0,
        }
    }

    fn near(&self) -> Result<u64, Why> {
        let near = self.insn.op0_kind() == OpKind::NearBranch64 && !self.x64.externs.contains_key(&self.at);
        if near { Ok(self.insn.near_branch_target()) } else { Err(Why::IndirectBranch) }
    }

    fn push(&mut self, value: Value) -> Result<(), Why> {
        let sp = self.sp()? - 8;
        self.move_sp(-8);
        self.state.overwrite(sp, 8);
        if !self.in_stack(sp, sp + 8) {
            self.state.slots.insert(sp, value);
        }
        Ok(())
    }

    fn pop(&mut self) -> Result<Option<Value>, Why> {
        let sp = self.sp()?;
        let value = self.state.slots.get(&sp).copied();
        self.move_sp(8);
        Ok(value)
    }

    fn move_sp(&mut self, by: i64) {
        let sp = self.state.regs[RSP].plus(Value::constant(by.cast_unsigned()), self.made(RSP));
        self.set(RSP, sp);
    }

    fn in_stack(&self, from: i64, to: i64) -> bool {
        let (low, high) = self.frame.stack;
        from < high && to > low
    }

    /// Whether the function is left as its caller expects: registers and stack pointer as they were at entry. A tail
    /// call passes the hidden argument and the context.
    fn leaves(&self, tail: bool) -> Result<(), Why> {
        if self.sp()? != 0 {
            return Err(Why::StackPointer);
        }
        let kept = |reg: &u8| self.state.regs[usize::from(*reg)].is(Name::Entry(Place::Reg(*reg)));
        if !SAVED.iter().all(kept) {
            return Err(Why::Saved);
        }
        if tail && !(self.has_run(R9) && self.passes_context()) {
            return Err(Why::Argument);
        }
        Ok(())
    }

    fn passes_context(&self) -> bool {
        let class = if self.x64.fields.is_raw() { Class::Address } else { Class::Context };
        self.state.regs[RDI].offset_in(class) == Some(0)
    }

    fn has_run(&self, reg: usize) -> bool {
        self.state.regs[reg].offset_in(Class::Run) == Some(0)
    }

    fn call(&mut self) -> Result<(), Why> {
        let target = self.x64.externs.get(&self.at).copied();
        let result = match target {
            // The function takes the rest of the run's budget, or leaves the run.
            Some(Extern::Spent(_)) if !self.has_run(R9) => return Err(Why::Argument),
            Some(target) if self.x64.fields.returns_object(target) => Class::Found,
            Some(_) => Class::Untrusted,
            None => {
                let to = self.near()?;
                if !self.x64.entries.contains(&to) {
                    // A sequence that ends the run, and does not return.
                    self.next = vec![to];
                    return self.push(Value::untrusted(Name::Made(self.at, Place::Operand(0))));
                }
                // The main program takes its first argument for the context.
                let main = self.x64.code.entries.first().is_some_and(|main| u64::from(*main) == to);
                if !self.has_run(R9) || main && !self.passes_context() {
                    return Err(Why::Argument);
                }
                Class::Untrusted
            }
        };
        CLOBBERED.iter().for_each(|reg| self.untrusted((*reg).into()));
        self.set(RAX, Value::named(self.made(RAX), result));
        self.state.flags = None;
        // The callee's frame.
        let sp = self.sp()?;
        self.state.slots.retain(|slot, _| *slot >= sp);
        Ok(())
    }

    fn ret(&mut self) -> Result<(), Why> {
        self.next.clear();
        if self.insn.op_count() != 0 {
            return Err(Why::Instruction);
        }
        let sp = self.sp()?;
        if sp == 0 {
            return self.leaves(false);
        }
        // The end of a retpoline.
        let to = self.state.slots.get(&sp).copied();
        match to.and_then(|to| to.offset_in(Class::StopTo)) {
            Some(0) if self.has_run(RDI) => Ok(()),
            Some(_) | None => Err(Why::StackPointer),
        }
    }

    fn jump(&mut self) -> Result<(), Why> {
        if self.insn.op0_kind() == OpKind::Register {
            let to = self.state.regs[self.whole(0)?];
            self.next.clear();
            let stops = to.offset_in(Class::StopTo) == Some(0) && self.has_run(RDI);
            return if stops { Ok(()) } else { Err(Why::IndirectBranch) };
        }
        let to = self.near()?;
        match self.x64.bypasses.contains(&self.at) {
            true => self.next.push(to),
            false => self.next = vec![to],
        }
        Ok(())
    }

    /// The address of the memory operand.
    fn address(&self) -> Result<Value, Why> {
        let insn = self.insn;
        if insn.is_ip_rel_memory_operand()
            || insn.memory_segment() == Register::FS
            || insn.memory_segment() == Register::GS
        {
            return Err(Why::Instruction);
        }
        let here = Name::Made(self.at, Place::Operand(7));
        let of = |reg: Register| match reg {
            Register::None => Ok(None),
            reg => whole(reg).map(|reg| Some(self.state.regs[reg])).ok_or(Why::Instruction),
        };
        let disp = Value::constant(insn.memory_displacement64());
        let base = of(insn.memory_base())?.map_or(disp, |base| base.plus(disp, Name::Made(self.at, Place::Operand(6))));
        Ok(match of(insn.memory_index())? {
            Some(index) => {
                let scale = i64::from(insn.memory_index_scale());
                base.plus(index.times(scale, Name::Made(self.at, Place::Operand(5))), here)
            }
            None => base,
        })
    }

    /// Finds the place of the memory operand, which must be inside of something.
    fn access(&mut self) -> Result<Spot, Why> {
        let bytes = self.bytes()?;
        let (sp, Frame { stack, red_zone }) = (self.sp()?, self.frame);
        let spot = Spot::of(self.address()?, bytes, sp, stack, red_zone)?;
        self.spot = Some(spot);
        Ok(spot)
    }

    fn bytes(&self) -> Result<i64, Why> {
        match self.insn.memory_size() {
            MemorySize::UInt8 | MemorySize::Int8 => Ok(1),
            MemorySize::UInt16 | MemorySize::Int16 => Ok(2),
            MemorySize::UInt32 | MemorySize::Int32 => Ok(4),
            MemorySize::UInt64 | MemorySize::Int64 => Ok(8),
            _ => Err(Why::Instruction),
        }
    }

    /// Loads from memory operand `i`.
    fn load(&mut self, i: u32) -> Result<Value, Why> {
        let here = Name::Made(self.at, Place::Operand(i as u8));
        let spot = self.access()?;
        let bytes = self.bytes()?;
        let size = usize::try_from(bytes).map_err(|_| Why::Instruction)?;
        if let Spot::Slot(slot) = spot
            && let Some(value) = self.state.slots.get(&slot)
        {
            return Ok(value.narrow(size, here));
        }
        let class = match spot {
            Spot::Run(off) => self.x64.fields.load_run(off, bytes)?,
            Spot::Context(off) => self.x64.fields.load_context(off, bytes),
            Spot::Slot(_) | Spot::Stack { .. } | Spot::Object | Spot::Null => Class::Untrusted,
        };
        let most = if size < 8 { (1 << (8 * size)) - 1 } else { u64::MAX };
        // A start that the caller passed may be one that this function passed to itself.
        let carried = matches!(spot, Spot::Run(off) if Fields::lent(off));
        Ok(Value { carried, ..Value::named(here, class).up_to(most) })
    }

    /// Stores this value, or an unknown one, through memory operand 0.
    fn store(&mut self, value: Option<Value>) -> Result<(), Why> {
        let spot = self.access()?;
        let bytes = self.bytes()?;
        match spot {
            Spot::Slot(slot) => {
                self.state.overwrite(slot, bytes);
                if let (Some(value), 8) = (value, bytes) {
                    self.state.slots.insert(slot, value);
                }
                Ok(())
            }
            Spot::Run(off) => self.x64.fields.store_run(off, bytes, value),
            Spot::Context(off) => self.x64.fields.store_context(off, bytes),
            Spot::Stack { .. } | Spot::Object | Spot::Null => Ok(()),
        }
    }

    /// Reads an operand.
    fn read(&mut self, i: u32) -> Result<Value, Why> {
        let here = Name::Made(self.at, Place::Operand(i as u8));
        match self.insn.op_kind(i) {
            OpKind::Register => {
                let reg = self.insn.op_register(i);
                if !reg.is_gpr() {
                    return Err(Why::Instruction);
                }
                Ok(self.state.regs[reg.full_register().number()].narrow(reg.size(), here))
            }
            OpKind::Memory => self.load(i),
            _ => {
                let number = immediate(self.insn, i).ok_or(Why::Instruction)?;
                Ok(Value::constant(number.cast_unsigned()).narrow(self.width(), here))
            }
        }
    }

    /// Sets the register that is operand 0, of 32 or 64 bits.
    fn write(&mut self, value: Value) -> Result<(), Why> {
        let reg = self.whole_or_half(0)?;
        let value = value.narrow(self.width(), self.made(reg));
        self.set(reg, value);
        Ok(())
    }

    /// The operands of a comparison, as the flags keep them.
    fn compare(&mut self) -> Result<Option<Flags>, Why> {
        let same = self.insn.op0_kind() == OpKind::Register && self.insn.op0_register() == self.insn.op1_register();
        let (a, b) = (self.read(0)?, self.read(1)?);
        let test = self.insn.mnemonic() == Mnemonic::Test;
        // `test a, a` is a comparison with 0.
        Ok(match (test, same) {
            (true, true) => Some(Flags { a, b: Value::constant(0) }),
            (true, false) => None,
            (false, _) => Some(Flags { a, b }),
        })
    }

    fn mov(&mut self) -> Result<(), Why> {
        if let Some(target) = self.x64.externs.get(&self.at) {
            let class = match target {
                Extern::Imm64(_) | Extern::ArrayBase(_) | Extern::Counters(_) | Extern::Sink(_) => Class::Address,
                Extern::Map(_) | Extern::HelperEnv(_) | Extern::HostEnv(_) => Class::Handle,
                Extern::Helper(_) | Extern::Host(_) | Extern::MapLookup(_) | Extern::Spent(_) => {
                    return Err(Why::Relocation);
                }
            };
            let reg = self.whole(0)?;
            self.set(reg, Value::named(self.made(reg), class));
            return Ok(());
        }
        let value = self.read(1)?;
        match self.insn.op0_kind() {
            OpKind::Memory => self.store(Some(value)),
            _ => self.write(value),
        }
    }

    fn xchg(&mut self) -> Result<(), Why> {
        if self.insn.op0_kind() == OpKind::Memory {
            self.atomic()?;
            let reg = self.whole_or_half(1)?;
            self.untrusted(reg);
            return Ok(());
        }
        let (a, b) = (self.whole(0)?, self.whole(1)?);
        let (first, second) = (self.state.regs[a], self.state.regs[b]);
        self.set(a, second);
        self.set(b, first);
        Ok(())
    }

    /// An atomic operation, which is never one on a spill slot or on the hidden argument.
    fn atomic(&mut self) -> Result<(), Why> {
        if !matches!(self.bytes()?, 4 | 8) {
            return Err(Why::Instruction);
        }
        self.store(None)?;
        match self.spot {
            Some(Spot::Slot(_) | Spot::Run(_)) | None => Err(Why::Store),
            Some(Spot::Stack { .. } | Spot::Context(_) | Spot::Object | Spot::Null) => Ok(()),
        }
    }

    /// rdx:rax from rax, rdx and an operand.
    fn wide(&mut self) -> Result<(), Why> {
        self.whole_or_half(0)?;
        self.untrusted(RAX);
        self.untrusted(RDX);
        Ok(())
    }

    /// An instruction with a destination.
    fn arithmetic(&mut self) -> Result<(), Why> {
        let insn = self.insn;
        if insn.op0_kind() == OpKind::Memory {
            return self.in_memory();
        }
        // The bytes of a 16-bit number change places.
        if insn.mnemonic() == Mnemonic::Rol && insn.op0_register().is_gpr16() {
            self.untrusted(insn.op0_register().full_register().number());
            return Ok(());
        }
        let reg = self.whole_or_half(0)?;
        let here = self.made(reg);
        let same = insn.op1_kind() == OpKind::Register && insn.op0_register() == insn.op1_register();
        let value = match insn.mnemonic() {
            Mnemonic::Movzx => {
                let bytes = match insn.op1_kind() {
                    OpKind::Register => insn.op1_register().size(),
                    _ => insn.memory_size().size(),
                };
                self.read(1)?.narrow(bytes, here)
            }
            Mnemonic::Movsx | Mnemonic::Movsxd => self.read(1)?.mixed(here),
            Mnemonic::Movbe => {
                self.load(1)?;
                Value::untrusted(here)
            }
            Mnemonic::Bswap => Value::untrusted(here),
            Mnemonic::Lea if insn.is_ip_rel_memory_operand() => {
                if !self.x64.entries.contains(&insn.ip_rel_memory_address()) {
                    return Err(Why::Target);
                }
                Value::named(here, Class::Handle)
            }
            Mnemonic::Lea => self.address()?,
            Mnemonic::Xor | Mnemonic::Sub if same => Value::constant(0),
            Mnemonic::Inc => self.read(0)?.plus(Value::constant(1), here),
            Mnemonic::Dec => self.read(0)?.plus(Value::constant(u64::MAX), here),
            Mnemonic::Neg => self.read(0)?.times(-1, here),
            Mnemonic::Not => match self.read(0)? {
                value if value.exactly().is_some() => Value::constant(!value.exactly().unwrap_or(0).cast_unsigned()),
                value => value.mixed(here),
            },
            Mnemonic::Add | Mnemonic::Sub | Mnemonic::And | Mnemonic::Or | Mnemonic::Xor => {
                let (a, b) = (self.read(0)?, self.read(1)?);
                self.binary(a, b, here)?
            }
            Mnemonic::Adc | Mnemonic::Sbb => {
                let (a, b) = (self.read(0)?, self.read(1)?);
                a.mixed_with(b, here)
            }
            Mnemonic::Imul => {
                let first = insn.op_count() - 2;
                let (a, b) = (self.read(first)?, self.read(first + 1)?);
                match (a.exactly(), b.exactly()) {
                    (_, Some(times)) => a.times(times, here),
                    (Some(times), _) => b.times(times, here),
                    (None, None) => a.mixed_with(b, here).up_to(a.most.saturating_mul(b.most)),
                }
            }
            Mnemonic::Shl | Mnemonic::Shr | Mnemonic::Sar | Mnemonic::Rol => {
                let (value, count) = (self.read(0)?, immediate(insn, 1));
                // The processor would take such a count modulo the width.
                let bits = i64::try_from(8 * self.width()).unwrap_or(0);
                if count.is_some_and(|count| !(0..bits).contains(&count)) {
                    return Err(Why::Instruction);
                }
                match (insn.mnemonic(), count) {
                    (Mnemonic::Shl, Some(count @ ..63)) => value.times(1 << count, here),
                    (Mnemonic::Shr, Some(count)) => value.mixed(here).up_to(value.most >> count),
                    (Mnemonic::Sar | Mnemonic::Rol, Some(_)) => value.mixed(here),
                    (_, _) => Value::untrusted(here),
                }
            }
            Mnemonic::Shlx | Mnemonic::Shrx | Mnemonic::Sarx | Mnemonic::Rorx => {
                self.read(1)?;
                Value::untrusted(here)
            }
            Mnemonic::Cmovb
            | Mnemonic::Cmovae
            | Mnemonic::Cmove
            | Mnemonic::Cmovne
            | Mnemonic::Cmovbe
            | Mnemonic::Cmova
            | Mnemonic::Cmovs
            | Mnemonic::Cmovns
            | Mnemonic::Cmovl
            | Mnemonic::Cmovge
            | Mnemonic::Cmovle
            | Mnemonic::Cmovg => self.selection(here)?,
            _other => return Err(Why::Instruction),
        };
        self.write(value)
    }

    fn binary(&self, a: Value, b: Value, here: Name) -> Result<Value, Why> {
        let exact = a.exactly().zip(b.exactly());
        Ok(match (self.insn.mnemonic(), exact) {
            (Mnemonic::Add, _) => a.plus(b, here),
            (Mnemonic::Sub, _) => a.minus(b, here),
            (Mnemonic::And, _) => a.and(b, here),
            (Mnemonic::Or, Some((a, b))) => Value::constant((a | b).cast_unsigned()),
            (Mnemonic::Xor, Some((a, b))) => Value::constant((a ^ b).cast_unsigned()),
            (Mnemonic::Or | Mnemonic::Xor, None) => a.mixed_with(b, here),
            (_, _) => return Err(Why::Instruction),
        })
    }

    /// Arithmetic on memory: atomic, on a spill slot, or on counters of the hidden argument.
    fn in_memory(&mut self) -> Result<(), Why> {
        let insn = self.insn;
        if insn.has_lock_prefix() {
            self.whole_or_half(1)?;
            return self.atomic();
        }
        let (spot, bytes) = (self.access()?, self.bytes()?);
        let is = |off: i32, wanted: i64| spot == Spot::Run(off.into()) && bytes == wanted;
        let counts = match insn.mnemonic() {
            Mnemonic::Inc => is(RunCtx::TAIL_CALLS_OFFSET, 4),
            Mnemonic::Dec => is(RunCtx::BUDGET_OFFSET, 8),
            Mnemonic::Sub => is(RunCtx::BUDGET_OFFSET, 8) && immediate(insn, 1).is_some_and(|by| by > 0),
            _other => false,
        };
        if counts {
            return Ok(());
        }
        let (Spot::Slot(_), 8) = (spot, bytes) else { return Err(Why::Store) };
        let here = Name::Made(self.at, Place::Operand(0));
        let (a, b) = (self.read(0)?, self.read(1)?);
        let value = self.binary(a, b, here)?;
        self.store(Some(value))
    }

    /// The value that a conditional move selects.
    fn selection(&mut self, here: Name) -> Result<Value, Why> {
        // With the condition, without it.
        let (moved, kept) = (self.read(1)?, self.read(0)?);
        let plain = moved.or(kept, here);
        let Some(Flags { a: compared, b: limit }) = self.state.flags.filter(|_| self.width() == 8) else {
            return Ok(plain);
        };
        let is_zero = limit.exactly() == Some(0);
        // Whether the compared value is below its limit, or at most the limit, and whether that is so if the condition
        // holds, or if it does not hold.
        let (below, holds) = match self.insn.condition_code() {
            ConditionCode::b => (true, true),
            ConditionCode::ae => (true, false),
            ConditionCode::be => (false, true),
            ConditionCode::a => (false, false),
            // The only number that is at most 0.
            ConditionCode::e if is_zero => (false, true),
            ConditionCode::ne if is_zero => (false, false),
            _other => return Ok(plain),
        };
        let (yes, no) = if holds { (moved, kept) } else { (kept, moved) };
        Ok(super::selected(&Flags { a: compared, b: limit }, below, yes, no, here).unwrap_or(plain))
    }
}
