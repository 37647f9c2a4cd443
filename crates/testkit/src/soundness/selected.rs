//! A static check of a contained program's machine code (x86-64): each address that depends on a number which the
//! program controls has passed a selection.
//!
//! Problem: `bpf_jit::unconfined` checks ops, before registers are allocated and instructions emitted. A mistake of
//! allocation or emission (a selection on flags of another comparison, a spilled start that a later store changes)
//! would not show there, nor in results of correct programs. Approach: the bytes are disassembled by another library,
//! and a data flow over registers, spill slots and flags computes of each value
//!
//! * whether it is *safe*: made of linked addresses, constants, fields of the hidden argument, starts of regions in the
//!   context, and results of selections;
//! * bounds, if it is a number, or its distance from the stack pointer at entry, if it is an address in the frame;
//! * its *root*: the instruction that made the unsafe part of it. A comparison says something about another register
//!   only if both have one root.
//!
//! A conditional move is a selection if its condition is unsigned, if the compared limit is safe, and if the selected
//! value has the root of the compared one. No branch makes a value safe, so every address is safe whatever the
//! processor predicts. An access must be at a safe address, or at bounds inside the BPF stack.
//!
//! Limits of the check: it does not know the sizes of objects, so it finds missing selections and wrong operands, but
//! no limit that is too large, and no missing selection of a constant offset; it does not look at arguments of calls.

use bpf_analysis::{BoundsPlace, RegionBounds};
use bpf_jit_code::{Code, RunCtx};
use iced_x86::{
    ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};
use std::collections::{BTreeMap, BTreeSet};

/// The instruction, or the join and the place, that made the unsafe part of a value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Root {
    /// None: a constant.
    None,
    /// The instruction at this offset.
    Made(u64),
    /// The result of the call at this offset.
    Called(u64),
    /// The value that this place had when the instruction at this offset was reached.
    Joined(u64, Place),
}

/// A register, or eight bytes of the machine frame at this distance from the stack pointer at entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Place {
    Reg(u8),
    Slot(i64),
}

/// Structures of the host whose fields are trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Given {
    Run,
    Context,
}

/// An abstract value: provenance, bounds and root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Value {
    safe: bool,
    /// Greatest unsigned number.
    most: u64,
    /// Least and greatest distance from the stack pointer at entry, if it is an address there.
    frame: Option<(i64, i64)>,
    root: Root,
    /// The constant that was added to the root, if only constants were.
    by: Option<i64>,
    /// The instruction or join that made the value itself: values with one are equal.
    made: Root,
    given: Option<Given>,
}

impl Value {
    fn any(root: Root) -> Value {
        Value { safe: false, most: u64::MAX, frame: None, root, by: Some(0), made: root, given: None }
    }

    fn constant(number: u64) -> Value {
        Value { safe: true, most: number, by: Some(number.cast_signed()), ..Value::any(Root::None) }
    }

    /// A linked address, or a field of the hidden argument.
    fn start(root: Root) -> Value {
        Value { safe: true, ..Value::any(root) }
    }

    /// `root` is made anew: a value that has it gets another.
    fn renew(&mut self, root: Root, other: Root) {
        if self.root == root {
            (self.root, self.by) = (other, Some(0));
        }
        if self.made == root {
            self.made = other;
        }
    }

    fn exactly(&self) -> Option<i64> {
        self.by.filter(|_| self.root == Root::None)
    }

    fn up_to(self, most: u64) -> Value {
        Value { most: self.most.min(most), ..self }
    }

    fn join(self, other: Value, joined: Root, widen: bool) -> Value {
        if self == other {
            return self;
        }
        let frame = match (self.frame, other.frame) {
            (Some((a, b)), Some((c, d))) if !widen => Some((a.min(c), b.max(d))),
            _ => None,
        };
        let same = self.root == other.root && self.root != Root::None;
        Value {
            // An address in the frame that is none on another path is not safe there.
            safe: self.safe && other.safe,
            most: if widen && self.most < other.most { u64::MAX } else { self.most.max(other.most) },
            frame,
            root: if same { self.root } else { joined },
            by: if same { self.by.filter(|by| other.by == Some(*by)) } else { Some(0) },
            made: if self.made == other.made { self.made } else { joined },
            given: self.given.filter(|given| other.given == Some(*given)),
        }
    }
}

/// The operands of the comparison that set the flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Flags {
    a: Value,
    b: Value,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct State {
    regs: [Value; 16],
    slots: BTreeMap<i64, Value>,
    flags: Option<Flags>,
}

impl State {
    fn values(&mut self) -> impl Iterator<Item = (Place, &mut Value)> {
        let regs = (0u8..).zip(&mut self.regs).map(|(i, v)| (Place::Reg(i), v));
        regs.chain(self.slots.iter_mut().map(|(at, v)| (Place::Slot(*at), v)))
    }

    /// The root is made anew: values that hold the old one get roots of their own.
    fn renew(&mut self, root: Root, at: u64) {
        for (place, value) in self.values() {
            value.renew(root, Root::Joined(at, place));
        }
        let of = |v: Value| v.root == root || v.made == root;
        if self.flags.is_some_and(|f| of(f.a) || of(f.b)) {
            self.flags = None;
        }
    }

    /// Joins the state of another path into this one; whether that changed it.
    fn join(&mut self, mut other: State, at: u64, widen: bool) -> bool {
        let before = self.clone();
        // Where a place has another value than it had at the last visit, the value of the last visit has no name.
        let renewed: Vec<Root> = other
            .values()
            .map(|(place, value)| (Root::Joined(at, place), value.root, value.made))
            .filter(|(joined, root, made)| joined != root || joined != made)
            .map(|(joined, ..)| joined)
            .collect();
        for root in renewed {
            for (place, value) in other.values().filter(|(place, _)| Root::Joined(at, *place) != root) {
                value.renew(root, Root::Joined(at, place));
            }
        }
        for (i, (mine, theirs)) in (0u8..).zip(self.regs.iter_mut().zip(other.regs)) {
            *mine = mine.join(theirs, Root::Joined(at, Place::Reg(i)), widen);
        }
        self.slots.retain(|slot, _| other.slots.contains_key(slot));
        for (slot, mine) in &mut self.slots {
            *mine = mine.join(other.slots[slot], Root::Joined(at, Place::Slot(*slot)), widen);
        }
        if self.flags != other.flags {
            self.flags = None;
        }
        *self != before
    }
}

/// An access whose address was not selected: the function, the offset in the code, and the instruction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unselected {
    /// Offset of the instruction in the code.
    pub at: u64,
    /// The instruction.
    pub text: String,
}

/// Counts of checked programs and accesses.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Selected {
    /// Instructions that access memory.
    pub accesses: u64,
    /// Accesses among these at a safe address that is not a field of a trusted structure.
    pub selections: u64,
}

impl Selected {
    /// Adds the counts of another program.
    pub fn add(&mut self, other: Selected) {
        self.accesses += other.accesses;
        self.selections += other.selections;
    }
}

/// Checks all functions of a contained program's code.
///
/// # Errors
/// The first access at an address that a number of the program's decides and no selection bounds.
pub fn check(code: &Code, regions: &[RegionBounds]) -> Result<Selected, Unselected> {
    let insns: BTreeMap<u64, Instruction> =
        Decoder::new(64, &code.bytes, DecoderOptions::NONE).into_iter().map(|insn| (insn.ip(), insn)).collect();
    let entries = code.entries.iter().copied().map(u64::from).collect();
    let relocated = code.relocs.iter().map(|reloc| reloc.at.into()).collect();
    let mut counts = Selected::default();
    for (i, entry) in code.entries.iter().enumerate() {
        let function = Function {
            entries: &entries,
            insns: &insns,
            relocated: &relocated,
            regions,
            stack: None,
            info: InstructionInfoFactory::new().into(),
        };
        let found = function.check(u64::from(*entry), i == 0)?;
        counts.accesses += found.accesses;
        counts.selections += found.selections;
    }
    Ok(counts)
}

struct Function<'a> {
    insns: &'a BTreeMap<u64, Instruction>,
    relocated: &'a BTreeSet<u64>,
    entries: &'a BTreeSet<u64>,
    regions: &'a [RegionBounds],
    /// The BPF stack, as distances from the stack pointer at entry: it begins below rbp, or is the red zone.
    stack: Option<(i64, i64)>,
    info: std::cell::RefCell<InstructionInfoFactory>,
}

const RAX: usize = 0;
const RSP: usize = 4;
const RBP: usize = 5;
const RDI: usize = 7;
const R9: usize = 9;
/// rax, rcx, rdx, rsi, rdi, r8 to r11.
const CLOBBERED: [u8; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];
/// Visits of an instruction after which bounds are given up.
const VISITS: u32 = 4;

/// The number of a general-purpose register, whatever its width.
fn number(reg: Register) -> Option<usize> {
    reg.is_gpr().then(|| reg.full_register().number())
}

impl Function<'_> {
    fn check(mut self, entry: u64, first: bool) -> Result<Selected, Unselected> {
        self.stack = Some(self.bpf_stack(entry));
        let mut regs: [Value; 16] =
            std::array::from_fn(|i| Value::any(Root::Joined(entry, Place::Reg(u8::try_from(i).unwrap_or(0)))));
        regs[RSP] = Value { frame: Some((0, 0)), ..regs[RSP] };
        regs[R9] = Value { given: Some(Given::Run), ..Value::start(regs[R9].root) };
        if first {
            regs[RDI] = Value { given: Some(Given::Context), ..Value::start(regs[RDI].root) };
        }
        let joins: BTreeSet<u64> = self.insns.values().filter_map(|insn| self.target(insn)).collect();
        let mut states: BTreeMap<u64, (State, u32)> = BTreeMap::new();
        states.insert(entry, (State { regs, slots: BTreeMap::new(), flags: None }, 0));
        let mut todo = BTreeSet::from([entry]);
        while let Some(at) = todo.pop_first() {
            let Some(insn) = self.insns.get(&at) else { continue };
            let mut state = states[&at].0.clone();
            self.step(insn, &mut state);
            for next in self.successors(insn) {
                match states.get_mut(&next) {
                    None => drop(states.insert(next, (state.clone(), 0))),
                    // Only states of different paths are joined. A state that changes with its only predecessor is
                    // replaced.
                    Some((known, _)) if !joins.contains(&next) => {
                        if *known == state {
                            continue;
                        }
                        *known = state.clone();
                    }
                    Some((known, visits)) => {
                        *visits += 1;
                        if !known.join(state.clone(), next, *visits > VISITS) {
                            continue;
                        }
                    }
                }
                todo.insert(next);
            }
        }
        let mut counts = Selected::default();
        for (at, (state, _)) in &states {
            let Some(insn) = self.insns.get(at) else { continue };
            let Some(safe) = self.access(insn, state) else { continue };
            let Ok(selected) = safe else { return Err(Unselected { at: *at, text: insn.to_string() }) };
            counts.accesses += 1;
            counts.selections += u64::from(selected);
        }
        Ok(counts)
    }

    /// Finds the BPF stack by the prologue: below rbp (`push rbp; mov rbp, rsp; sub rsp, bytes`), or the red zone below
    /// the lowest rsp.
    fn bpf_stack(&self, entry: u64) -> (i64, i64) {
        let (mut sp, mut framed) = (0i64, false);
        for insn in self.insns.range(entry..).map(|(_, insn)| insn) {
            let to = (insn.op0_kind() == OpKind::Register).then(|| number(insn.op0_register())).flatten();
            let imm = || self.immediate(insn, 1).unwrap_or(0);
            match insn.mnemonic() {
                Mnemonic::Endbr64 | Mnemonic::Nop => {}
                Mnemonic::Mov if to == Some(RBP) && insn.op1_register() == Register::RSP => framed = true,
                // 128 bytes are subtracted by adding -128, which is shorter.
                Mnemonic::Sub if to == Some(RSP) && framed => return (sp - imm(), sp),
                Mnemonic::Add if to == Some(RSP) && framed => return (sp + imm(), sp),
                Mnemonic::Push if framed && to == Some(RAX) => return (sp - 8, sp),
                _ if framed => return (sp, sp),
                Mnemonic::Push => sp -= 8,
                Mnemonic::Sub if to == Some(RSP) => sp -= imm(),
                Mnemonic::Add if to == Some(RSP) => sp += imm(),
                _other => break,
            }
        }
        (sp - 128, sp)
    }

    fn immediate(&self, insn: &Instruction, operand: u32) -> Option<i64> {
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

    fn successors(&self, insn: &Instruction) -> Vec<u64> {
        let target = self.target(insn);
        match insn.flow_control() {
            FlowControl::Call if target.is_some() => target.into_iter().collect(),
            FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => vec![insn.next_ip()],
            FlowControl::UnconditionalBranch => target.into_iter().collect(),
            FlowControl::ConditionalBranch => target.into_iter().chain([insn.next_ip()]).collect(),
            FlowControl::IndirectBranch
            | FlowControl::Return
            | FlowControl::Interrupt
            | FlowControl::Exception
            | FlowControl::XbeginXabortXend => Vec::new(),
        }
    }

    /// The target of a branch inside the function. One with a relocation leaves the program; another function begins at
    /// an entry. A call inside the function is that of a sequence which stops the run and notes where.
    fn target(&self, insn: &Instruction) -> Option<u64> {
        let relocated = self.relocated.range(insn.ip()..insn.next_ip()).next().is_some();
        let target = Some(insn.near_branch_target()).filter(|_| insn.op0_kind() == OpKind::NearBranch64 && !relocated);
        target.filter(|target| !self.entries.contains(target))
    }

    /// The address of the memory operand.
    fn address(&self, insn: &Instruction, state: &State) -> Value {
        let of = |reg: Register| number(reg).map(|i| state.regs[i]);
        let here = Root::Made(insn.ip());
        if insn.is_ip_rel_memory_operand() {
            return Value::start(here);
        }
        let disp = Value::constant(insn.memory_displacement64());
        let base = of(insn.memory_base()).map_or(disp, |base| sum(base, disp, here));
        match of(insn.memory_index()) {
            Some(index) => sum(base, scaled(index, u64::from(insn.memory_index_scale()), here), here),
            None => base,
        }
    }

    /// Whether the instruction accesses memory, at an address that is inside (whether by a selection) or not.
    fn access(&self, insn: &Instruction, state: &State) -> Option<Result<bool, ()>> {
        let mut info = self.info.borrow_mut();
        let used = info.info(insn).used_memory();
        let explicit = (0..insn.op_count()).any(|i| insn.op_kind(i) == OpKind::Memory);
        if !explicit || used.is_empty() {
            return None;
        }
        let bytes = used.iter().map(|memory| memory.memory_size().size()).max().unwrap_or(0);
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let address = self.address(insn, state);
        if let Some((from, to)) = address.frame {
            let (low, high) = self.stack.unwrap_or((0, 0));
            let in_stack = from >= low && to.saturating_add(bytes) <= high;
            // Spill slots are at constant places, below the return address.
            let slot = from == to && to.saturating_add(bytes) <= 0;
            return Some(if in_stack || slot { Ok(false) } else { Err(()) });
        }
        let constant = insn.memory_index() == Register::None && address.given.is_some();
        Some(if address.safe { Ok(!constant && address.root != Root::None) } else { Err(()) })
    }

    fn load(&self, insn: &Instruction, state: &State) -> Value {
        let here = Root::Made(insn.ip());
        let address = self.address(insn, state);
        let bytes = insn.memory_size().size();
        if let (Some((at, end)), 8) = (address.frame, bytes)
            && at == end
            && !self.in_stack(at)
        {
            return state.slots.get(&at).copied().unwrap_or(Value::any(here));
        }
        let most = match bytes {
            1 | 2 | 4 => (1 << (8 * bytes)) - 1,
            _ => u64::MAX,
        };
        let offset = address.by.filter(|_| insn.memory_index() == Register::None);
        match (address.given, offset) {
            (Some(Given::Run), Some(off)) if off == i64::from(RunCtx::CONTEXT_OFFSET) => {
                Value { given: Some(Given::Context), ..Value::start(here) }
            }
            (Some(Given::Run), Some(_)) => Value::start(here).up_to(most),
            (Some(Given::Context), Some(off)) if self.bounds_region(off, bytes) => Value::start(here).up_to(most),
            // Constants of the code.
            _ if insn.is_ip_rel_memory_operand() => Value::start(here).up_to(most),
            _ => Value::any(here).up_to(most),
        }
    }

    fn in_stack(&self, at: i64) -> bool {
        self.stack.is_some_and(|(low, high)| (low..high).contains(&at))
    }

    /// Whether the start, the end or the length of a region lies at this offset of the context.
    fn bounds_region(&self, off: i64, bytes: usize) -> bool {
        self.regions.iter().any(|region| match region.place {
            BoundsPlace::Nowhere | BoundsPlace::Raw => false,
            BoundsPlace::Addresses { start, end } => bytes == 8 && [start, end].map(i64::from).contains(&off),
            BoundsPlace::Length { start, len, len_size } => {
                bytes == 8 && off == i64::from(start)
                    || u32::try_from(bytes).ok() == Some(len_size) && off == i64::from(len)
            }
        })
    }

    fn operand(&self, insn: &Instruction, i: u32, state: &State) -> Value {
        let here = Root::Made(insn.ip());
        match insn.op_kind(i) {
            OpKind::Register => match number(insn.op_register(i)) {
                Some(reg) => narrow(state.regs[reg], insn.op_register(i).size(), here),
                None => Value::any(here),
            },
            OpKind::Memory => self.load(insn, state),
            _ => match self.immediate(insn, i) {
                // A linked address is written there when the code is placed.
                Some(_) if self.relocated.range(insn.ip()..insn.next_ip()).next().is_some() => Value::start(here),
                Some(number) => Value::constant(number.cast_unsigned()),
                None => Value::any(here),
            },
        }
    }

    /// Carries out one instruction.
    fn step(&self, insn: &Instruction, state: &mut State) {
        let here = Root::Made(insn.ip());
        match insn.mnemonic() {
            Mnemonic::Push | Mnemonic::Pop => return self.push_or_pop(insn, state),
            Mnemonic::Call if self.target(insn).is_some() => return self.push(Value::any(here), state),
            Mnemonic::Call => {
                let result = Root::Called(insn.ip());
                state.renew(result, insn.ip());
                for reg in CLOBBERED {
                    state.regs[usize::from(reg)] = Value::any(Root::Joined(insn.ip(), Place::Reg(reg)));
                }
                state.regs[0] = Value::any(result);
                state.flags = None;
                return;
            }
            Mnemonic::Cmp | Mnemonic::Test => {
                let (a, b) = (self.operand(insn, 0, state), self.operand(insn, 1, state));
                let whole = insn.op0_kind() == OpKind::Register && insn.op0_register() == insn.op1_register();
                // `test a, a` is a comparison with 0. A narrow comparison is of the lowest bits, which have a root of
                // their own unless the others are 0.
                state.flags = match insn.mnemonic() {
                    Mnemonic::Test if !whole => None,
                    Mnemonic::Test => Some(Flags { a, b: Value::constant(0) }),
                    _ => Some(Flags { a, b }),
                };
                return;
            }
            _ => {}
        }
        let value = self.result(insn, state, here);
        let (to, stored) = match (insn.op_count(), insn.op0_kind()) {
            (1.., OpKind::Register) => (number(insn.op0_register()), None),
            (1.., OpKind::Memory) => (None, Some(self.address(insn, state))),
            _ => (None, None),
        };
        if insn.rflags_modified() != 0 {
            state.flags = None;
        }
        state.renew(here, insn.ip());
        // An instruction may write registers besides its first operand.
        let mut info = self.info.borrow_mut();
        let written = |access: OpAccess| !matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess);
        for used in info.info(insn).used_registers().iter().filter(|used| written(used.access())) {
            if let Some(reg) = number(used.register()).filter(|reg| Some(*reg) != to) {
                state.regs[reg] = Value::any(Root::Joined(insn.ip(), Place::Reg(u8::try_from(reg).unwrap_or(0))));
            }
        }
        if let Some(to) = to {
            state.regs[to] = value;
        }
        if let Some((from, until)) = stored.and_then(|address| address.frame) {
            let whole = from == until && insn.memory_size().size() == 8 && insn.mnemonic() == Mnemonic::Mov;
            let bytes = i64::try_from(insn.memory_size().size()).unwrap_or(i64::MAX);
            state.slots.retain(|slot, _| *slot + 8 <= from || *slot >= until.saturating_add(bytes));
            if whole && !self.in_stack(from) {
                state.slots.insert(from, value);
            }
        }
    }

    fn push(&self, value: Value, state: &mut State) {
        let Some((sp, _)) = state.regs[RSP].frame else { return };
        state.regs[RSP].frame = Some((sp - 8, sp - 8));
        state.slots.insert(sp - 8, value);
    }

    fn push_or_pop(&self, insn: &Instruction, state: &mut State) {
        if insn.mnemonic() == Mnemonic::Push {
            return self.push(self.operand(insn, 0, state), state);
        }
        let (Some((sp, _)), Some(reg)) = (state.regs[RSP].frame, number(insn.op0_register())) else { return };
        let here = Root::Made(insn.ip());
        let value = state.slots.get(&sp).copied();
        state.regs[RSP].frame = Some((sp + 8, sp + 8));
        state.renew(here, insn.ip());
        state.regs[reg] = value.unwrap_or(Value::any(here));
    }

    /// The value of the first operand after the instruction.
    fn result(&self, insn: &Instruction, state: &State, here: Root) -> Value {
        let of = |i| self.operand(insn, i, state);
        let width = if insn.op0_kind() == OpKind::Register { insn.op0_register().size() } else { 8 };
        let same = insn.op0_kind() == OpKind::Register && insn.op0_register() == insn.op1_register();
        let value = match insn.mnemonic() {
            Mnemonic::Mov => of(1),
            Mnemonic::Movzx => narrow(of(1), operand_bytes(insn), here),
            Mnemonic::Lea => self.address(insn, state),
            Mnemonic::Xor | Mnemonic::Sub if same => Value::constant(0),
            Mnemonic::Add => sum(of(0), of(1), here),
            Mnemonic::Inc => sum(of(0), Value::constant(1), here),
            Mnemonic::Dec => sum(of(0), Value::constant(u64::MAX), here),
            Mnemonic::Sub => difference(of(0), of(1), here),
            // 0 minus a number has no root that another number is compared by.
            Mnemonic::Neg => Value { safe: of(0).safe, ..Value::any(here) },
            Mnemonic::And => {
                let (a, b) = (of(0), of(1));
                Value { safe: a.safe && b.safe, ..Value::any(here) }.up_to(a.most.min(b.most))
            }
            Mnemonic::Shl => match of(1).exactly() {
                Some(count @ 0..=62) => scaled(of(0), 1 << count, here),
                _ => Value::any(here),
            },
            Mnemonic::Shr => match of(1).exactly() {
                Some(count @ 0..=63) => Value::any(here).up_to(of(0).most >> count),
                _ => Value::any(here),
            },
            Mnemonic::Imul if insn.op_count() == 3 => {
                let (a, b) = (of(1), of(2));
                Value { safe: a.safe && b.safe, ..Value::any(here) }.up_to(a.most.saturating_mul(b.most))
            }
            Mnemonic::Imul if insn.op_count() == 2 => Value { safe: of(0).safe && of(1).safe, ..Value::any(here) },
            _ if insn.condition_code() != ConditionCode::None && insn.mnemonic() != Mnemonic::Jmp => {
                self.selection(insn, state, here)
            }
            _ => Value::any(here),
        };
        // An instruction of 8 or 16 bits leaves the others of its register.
        let value = if width < 4 { Value::any(here) } else { narrow(value, width, here) };
        let copied = insn.mnemonic() == Mnemonic::Mov && width == 8;
        Value { made: if copied { value.made } else { here }, ..value }
    }

    /// The value that a conditional move selects.
    fn selection(&self, insn: &Instruction, state: &State, here: Root) -> Value {
        if insn.op_count() != 2 {
            return Value::any(here);
        }
        // With the condition, without it.
        let (moved, kept) = (self.operand(insn, 1, state), self.operand(insn, 0, state));
        let plain = moved.join(kept, here, false);
        let Some(Flags { a, b }) = state.flags else { return plain };
        // The compared value and its limit: the first is at most the second, or below it, if the condition holds (or
        // does not hold).
        let (compared, limit, below, holds) = match insn.condition_code() {
            ConditionCode::b => (a, b, true, true),
            ConditionCode::ae => (a, b, true, false),
            ConditionCode::be => (a, b, false, true),
            ConditionCode::a => (a, b, false, false),
            // `test a, a`: the only number below 1.
            ConditionCode::e if b.exactly() == Some(0) => (a, b, false, true),
            ConditionCode::ne if b.exactly() == Some(0) => (a, b, false, false),
            _ => return plain,
        };
        let (yes, no) = if holds { (moved, kept) } else { (kept, moved) };
        // Any number but one is below the greatest number, which only the result of a call is compared with: not null.
        let means = match limit.exactly() {
            Some(limit) => (0..1 << 32).contains(&limit) || limit == -1 && matches!(compared.root, Root::Called(_)),
            None => limit.safe,
        };
        if !means || yes.root != compared.root || yes.root == Root::None && !yes.safe || !no.safe {
            return plain;
        }
        let equal = yes.by.is_some() && yes.by == compared.by || yes.made == compared.made && yes.made != Root::None;
        let selected = match (limit.exactly(), equal) {
            (Some(limit @ 0..), true) => limit.cast_unsigned().saturating_sub(u64::from(below)),
            _ => u64::MAX,
        };
        Value { safe: true, ..Value::any(here) }.up_to(selected.max(no.most))
    }
}

/// Bytes of the source of a `movzx`.
fn operand_bytes(insn: &Instruction) -> usize {
    if insn.op1_kind() == OpKind::Register { insn.op1_register().size() } else { insn.memory_size().size() }
}

/// The lowest bytes of a value.
fn narrow(value: Value, bytes: usize, here: Root) -> Value {
    let most = match bytes {
        8.. => return value,
        _ => (1u64 << (8 * bytes)) - 1,
    };
    if value.frame.is_none() && value.most <= most {
        return value;
    }
    if let Some(number) = value.exactly() {
        return Value::constant(number.cast_unsigned() & most);
    }
    Value { safe: value.safe && value.frame.is_none(), ..Value::any(here) }.up_to(most)
}

/// a + b.
fn sum(a: Value, b: Value, here: Root) -> Value {
    if let (Some(x), Some(y)) = (a.exactly(), b.exactly()) {
        return Value::constant(x.wrapping_add(y).cast_unsigned());
    }
    let (a, b) = if b.frame.is_some() { (b, a) } else { (a, b) };
    let constant = b.exactly();
    let frame = match (a.frame, constant) {
        (Some((from, to)), Some(by)) => from.checked_add(by).zip(to.checked_add(by)),
        (Some((from, to)), None) if b.frame.is_none() => {
            i64::try_from(b.most).ok().and_then(|most| Some((from, to.checked_add(most)?)))
        }
        _ => None,
    };
    let in_frame = a.frame.is_some() || b.frame.is_some();
    // The part that the program decides is that of the one which is not safe.
    let (root, by) = match (a.exactly(), constant) {
        (_, Some(by)) => (a.root, a.by.and_then(|known| known.checked_add(by))),
        (Some(by), _) => (b.root, b.by.and_then(|known| known.checked_add(by))),
        (None, None) if a.safe && !b.safe => (b.root, None),
        (None, None) if b.safe && !a.safe => (a.root, None),
        (None, None) => (here, Some(0)),
    };
    Value {
        safe: a.safe && b.safe && !in_frame,
        most: a.most.checked_add(b.most).filter(|_| !in_frame).unwrap_or(u64::MAX),
        frame,
        root,
        by,
        made: here,
        given: a.given.filter(|_| constant.is_some()),
    }
}

/// a - b.
fn difference(a: Value, b: Value, here: Root) -> Value {
    if let Some(number) = b.exactly() {
        return sum(a, Value::constant(number.wrapping_neg().cast_unsigned()), here);
    }
    // The distance from an address in the frame is a number; the frame's address is no secret of others.
    let safe = b.safe || b.frame.is_some_and(|(from, to)| from == to);
    let root = if safe { a.root } else { here };
    Value { safe: a.safe && b.safe, root, by: if safe { None } else { Some(0) }, ..Value::any(here) }
}

/// value * times.
fn scaled(value: Value, times: u64, here: Root) -> Value {
    if times == 1 {
        return value;
    }
    if let Some(number) = value.exactly() {
        return Value::constant(number.cast_unsigned().wrapping_mul(times));
    }
    Value { safe: value.safe && value.frame.is_none(), ..Value::any(here) }.up_to(value.most.saturating_mul(times))
}
