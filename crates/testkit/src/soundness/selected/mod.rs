//! A static check of a contained program's machine code: each access is at an address that is made of trusted
//! starts, constants and selections, and control goes only where the check has been.
//!
//! Problem: `bpf_jit::unconfined` checks ops, before registers are allocated and instructions emitted. A mistake of
//! allocation or emission (a selection on flags of another comparison, a spilled start that a later store changes)
//! would not show there, nor in results of correct programs. Approach: the bytes are disassembled by another library,
//! and a data flow over registers, spill slots and flags computes the class of each value, as a linear sum of named
//! values ([`value`]). The check fails closed: an allow-list decides, and anything else is an error.
//!
//! * Instructions: only the forms that the back end emits for contained code ([`x64`], [`arm64`]). Every path from
//!   every entry is followed. A branch leads to an instruction of the same function, a call to an entry, to a linked
//!   function, or to a sequence that ends the run. The only indirect branch is one to the function that ends stopped
//!   runs, taken from the hidden argument, with the hidden argument as argument. No instruction is left unvisited.
//! * Trusted starts: linked addresses of values, packet and `lent` starts of the hidden argument, and starts of regions
//!   in the context; of a call, only the result of a function that returns an object, if it was selected against null.
//! * Constants and trusted numbers that a loop or a recursion adds up are no trusted number, since the program decides
//!   the number of rounds.
//! * A conditional move is a selection if its condition is unsigned, the limit is a trusted number, and the selected
//!   value is exactly the compared one, or the compared one plus a trusted start. No branch makes a value trusted, so
//!   every address is trusted whatever the processor predicts. An access must be at a trusted start plus trusted
//!   numbers, inside the BPF stack by the bounds of numbers, in an exactly known spill slot, at a known field of the
//!   hidden argument, at a constant offset of the context, or in the first page group, where there is no memory.
//! * Stores to the hidden argument reach the fields that emitted code writes, with values that these fields may have;
//!   stores to the context no start, end or length of a region. Spill slots, saved registers and return addresses are
//!   written by exactly known accesses only. At each return and tail call, saved registers and the stack pointer are
//!   as they were at entry.
//!
//! Limits of the check. It does not know the sizes of objects: it finds missing selections and wrong operands, but no
//! limit that is too large or belongs to another object, and no missing selection of a constant offset. It does not
//! look at the arguments of calls, except for the hidden argument of the program's own functions, nor at whether the
//! start in `lent` is that of the present call. It trusts the prologue's split of a frame into BPF stack and spill
//! slots (both are the function's own memory), and does not check that the BPF stack is zeroed before it is read,
//! that budgets are counted, or that registers are written before they are read. Functions outside of the program are
//! trusted to keep the calling convention. Frames of a page and more (which are probed), jump tables, indirect tail
//! calls and arenas are refused, not understood.

mod arm64;
mod state;
mod value;
mod x64;

use arm64::Arm64;
use bpf_analysis::{BoundsPlace, RegionBounds};
use bpf_jit::Extern;
use bpf_jit_code::{Arch, Code, RunCtx, Symbol};
use state::{Flags, Rises, State};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use value::{Class, Name, Value};
use x64::X64;

/// The reason why code is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Why {
    /// Not an instruction, or not one of the forms that emitted code consists of.
    Instruction,
    /// A jump table.
    Table,
    /// A relocation or patch slot that does not belong to an instruction of its form.
    Relocation,
    /// A branch to a place that is no instruction of the function, or a call of a place that is none.
    Target,
    /// An indirect branch that does not end the run.
    IndirectBranch,
    /// Control runs past the end of the code.
    End,
    /// No path leads to the instruction, so it was not checked.
    Unreached,
    /// An access at an address that a number of the program decides, without a selection.
    Address,
    /// An access of the frame that may leave the BPF stack, and is not of an exactly known slot.
    Frame,
    /// An access of a field of the hidden argument that emitted code does not use in this way.
    Field,
    /// A store over the bounds of a region, or an atomic operation on memory of the emitter.
    Store,
    /// The stack pointer is unknown, above the return address, or not that of the entry where the function is left.
    StackPointer,
    /// A register that calls preserve does not have its value of the entry where the function is left.
    Saved,
    /// A call without the hidden argument, or a tail call without the hidden argument or the context.
    Argument,
    /// The states of a loop do not settle.
    Endless,
}

/// An instruction that was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unselected {
    /// Offset of the instruction in the code.
    pub at: u64,
    /// The instruction.
    pub text: String,
    /// The reason.
    pub why: Why,
}

impl fmt::Display for Unselected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: `{}` at offset {:#x}", self.why, self.text, self.at)
    }
}

/// Counts of checked instructions and accesses.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Selected {
    /// Instructions that were checked.
    pub instructions: u64,
    /// Instructions among these that access memory.
    pub accesses: u64,
    /// Accesses among these at trusted starts with trusted numbers, or at variable places of the BPF stack.
    pub selections: u64,
}

impl Selected {
    /// Adds the counts of another program.
    pub fn add(&mut self, other: Selected) {
        self.instructions += other.instructions;
        self.accesses += other.accesses;
        self.selections += other.selections;
    }
}

/// Checks all functions of a contained program's code. `regions` says where the bounds of the context's regions are;
/// the functions in `objects` return the start of an object, or null; `stacks` says how many bytes of BPF stack each
/// function has, which code for x86-64 shows by itself.
///
/// # Errors
/// The first instruction that is not allowed where it stands.
pub fn check(
    code: &Code,
    regions: &[RegionBounds],
    objects: &[Symbol],
    stacks: &[u32],
) -> Result<Selected, Unselected> {
    let fields = Fields { regions, objects };
    let unread = |(at, why)| Unselected { at, why, text: String::new() };
    match code.arch {
        Arch::X64 => check_on(&X64::new(code, fields).map_err(unread)?, code),
        Arch::Arm64 => check_on(&Arm64::new(code, fields, stacks).map_err(unread)?, code),
    }
}

/// The code of a program as the instructions of a machine.
trait Machine {
    /// The layout of a function's frame.
    type Frame: Copy;
    /// The text of an instruction.
    fn text(&self, at: u64) -> String;
    /// Instructions to which more than one path may lead.
    fn joins(&self) -> BTreeSet<u64>;
    /// An instruction that no path reaches, and that does something.
    fn unreached(&self, reached: &BTreeSet<u64>) -> Option<u64>;
    /// The state at the entry of a function.
    fn entry_state(&self, first: bool) -> State;
    /// The frame of the function with this entry.
    fn frame(&self, entry: u64) -> Self::Frame;
    /// Checks one instruction in this state, and changes the state by it; returns where control goes, and the place
    /// that it accesses.
    fn step(&self, at: u64, frame: Self::Frame, state: &mut State) -> Result<(Vec<u64>, Option<Spot>), Why>;
}

fn check_on(machine: &impl Machine, code: &Code) -> Result<Selected, Unselected> {
    let unselected = |at, why, text| Unselected { at, text, why };
    let joins = machine.joins();
    let (mut reached, mut accesses) = (BTreeSet::new(), BTreeMap::new());
    for (i, entry) in code.entries.iter().enumerate() {
        let walked = walk(machine, u64::from(*entry), i == 0, &joins, &mut accesses);
        reached.extend(walked.map_err(|(at, why)| unselected(at, why, machine.text(at)))?);
    }
    if let Some(at) = machine.unreached(&reached) {
        return Err(unselected(at, Why::Unreached, machine.text(at)));
    }
    let selections = accesses.values().filter(|selected| **selected).count();
    let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    Ok(Selected { instructions: count(reached.len()), accesses: count(accesses.len()), selections: count(selections) })
}

/// Instructions that the walk of one function carries out before the check gives up.
const MOST_STEPS: u32 = 1 << 20;

/// Follows all paths from an entry until the states before all instructions have settled. Each change of a state
/// checks its instruction again, so the last check of each is one in its final state. Returns the instructions.
///
/// When the state of a join changes after the walk went on from there, all states behind the join are made anew. The
/// old states come from a join state that did not hold for all paths. To join old states with new ones would lose
/// equalities that hold in each round of an outer loop.
fn walk(
    machine: &impl Machine,
    entry: u64,
    first: bool,
    joins: &BTreeSet<u64>,
    accesses: &mut BTreeMap<u64, bool>,
) -> Result<Vec<u64>, (u64, Why)> {
    let frame = machine.frame(entry);
    let mut states = BTreeMap::from([(entry, machine.entry_state(first))]);
    // Where control goes from the instructions that the walk has carried out.
    let mut flows: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut todo = BTreeSet::from([entry]);
    let mut rises = Rises::default();
    let mut steps = 0;
    while let Some(at) = todo.pop_first() {
        let Some(mut state) = states.get(&at).cloned() else { return Err((at, Why::End)) };
        steps += 1;
        if steps > MOST_STEPS {
            return Err((at, Why::Endless));
        }
        let (next, spot) = machine.step(at, frame, &mut state).map_err(|why| (at, why))?;
        if let Some(spot) = spot {
            let selected = matches!(spot, Spot::Object | Spot::Stack { exact: false });
            accesses.insert(at, selected);
        }
        flows.insert(at, next.clone());
        for next in next {
            let is_join = joins.contains(&next);
            match states.get_mut(&next) {
                None => {
                    let mut state = state.clone();
                    // Names that this join gave before its state was made anew.
                    state.forget(&|name| is_join && matches!(name, Name::Joined(of, _) if of == next));
                    states.insert(next, state);
                }
                // Only states of different paths are joined. A state that changes with its only predecessor is
                // replaced.
                Some(known) if !is_join => {
                    if *known == state {
                        continue;
                    }
                    *known = state.clone();
                }
                Some(known) => {
                    if !known.join(state.clone(), next, &mut rises) {
                        continue;
                    }
                    if flows.contains_key(&next) {
                        let kept = |of: &u64| *of <= next || *of == entry;
                        states.retain(|of, _| kept(of));
                        flows.retain(|of, _| kept(of));
                        todo.retain(kept);
                        rises.begin_anew_behind(next);
                        // The instruction at `at` may have further successors.
                        todo.extend([entry, next, at].into_iter().filter(kept));
                        let leads_behind = |to: &Vec<u64>| to.iter().any(|to| *to > next);
                        todo.extend(flows.iter().filter(|(_, to)| leads_behind(to)).map(|(of, _)| *of));
                        break;
                    }
                }
            }
            todo.insert(next);
        }
    }
    Ok(states.into_keys().collect())
}

/// The place of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Spot {
    /// The machine frame outside of the BPF stack, at this distance from the stack pointer at entry.
    Slot(i64),
    /// The BPF stack.
    Stack {
        /// Whether the place is always the same.
        exact: bool,
    },
    /// The hidden argument at this offset.
    Run(i64),
    /// The context at this offset.
    Context(i64),
    /// An object, at its start or at a trusted distance from it.
    Object,
    /// The lowest addresses, where there is no memory: a start that is null.
    Null,
}

/// Addresses below this one are no memory.
const NULL: u64 = 1 << 16;

impl Spot {
    /// The place of `bytes` bytes at `address` in a frame with this stack pointer and BPF stack. The `red_zone` bytes
    /// below the stack pointer are the function's, too.
    fn of(address: Value, bytes: i64, sp: i64, stack: (i64, i64), red_zone: i64) -> Result<Spot, Why> {
        if let Some((from, to)) = address.frame {
            let (low, high) = stack;
            let (end, exact) = (to.saturating_add(bytes), from == to);
            if from >= low && end <= high && from >= sp - red_zone {
                return Ok(Spot::Stack { exact });
            }
            let apart = end <= low || from >= high;
            return if exact && apart && from >= sp && end <= 0 { Ok(Spot::Slot(from)) } else { Err(Why::Frame) };
        }
        match (address.class, address.offset_in(address.class)) {
            (Class::Run, Some(off)) => Ok(Spot::Run(off)),
            (Class::Context, Some(off)) => Ok(Spot::Context(off)),
            (Class::Address, _) => Ok(Spot::Object),
            (Class::Number, _) if address.most.saturating_add(bytes.unsigned_abs()) <= NULL => Ok(Spot::Null),
            _ => Err(Why::Address),
        }
    }
}

/// The fields of the hidden argument and of the context, and the functions outside.
#[derive(Clone, Copy, Debug)]
struct Fields<'a> {
    regions: &'a [RegionBounds],
    objects: &'a [Symbol],
}

impl Fields<'_> {
    /// Whether the program's argument is the start of a region instead of a context.
    fn is_raw(&self) -> bool {
        self.regions.first().is_some_and(|region| region.place == BoundsPlace::Raw)
    }

    fn returns_object(&self, function: Extern) -> bool {
        self.objects.contains(&function.symbol())
    }

    fn lent(off: i64) -> bool {
        (0..5).any(|i| off == i64::from(RunCtx::lent_offset(i)))
    }

    /// The class of a value that emitted code loads from this field.
    fn load_run(&self, off: i64, bytes: i64) -> Result<Class, Why> {
        let is = |field: i32, size: i64| off == i64::from(field) && bytes == size;
        if is(RunCtx::CONTEXT_OFFSET, 8) {
            Ok(Class::Context)
        } else if is(RunCtx::STOP_TO_OFFSET, 8) {
            Ok(Class::StopTo)
        } else if is(RunCtx::PACKET_OFFSET, 8) || Fields::lent(off) && bytes == 8 {
            Ok(Class::Address)
        } else if is(RunCtx::PACKET_LEN_OFFSET, 8) || is(RunCtx::PACKET_LEN_OFFSET, 4) || is(RunCtx::SLOT_OFFSET, 4) {
            Ok(Class::Number)
        } else if is(RunCtx::INTERRUPT_OFFSET, 4) || is(RunCtx::TAIL_CALLS_OFFSET, 4) || is(RunCtx::THROWN_OFFSET, 8) {
            Ok(Class::Untrusted)
        } else if is(RunCtx::BUDGET_OFFSET, 8) {
            Ok(Class::Budget)
        } else {
            Err(Why::Field)
        }
    }

    /// Checks a store of this value to a field.
    fn store_run(&self, off: i64, bytes: i64, value: Option<Value>) -> Result<(), Why> {
        let is = |field: i32, size: i64| off == i64::from(field) && bytes == size;
        let value = value.ok_or(Why::Field)?;
        let start = value.class == Class::Address && !value.grown || value.frame.is_some_and(|(from, to)| from == to);
        let allowed = if Fields::lent(off) {
            bytes == 8 && (start || value.exactly() == Some(0))
        } else if is(RunCtx::COUNTERS_OFFSET, 8) {
            value.class == Class::Address
        } else if is(RunCtx::HOST_ENV_OFFSET, 8) {
            value.class == Class::Handle
        } else if is(RunCtx::THROWN_OFFSET, 8) {
            value.exactly() == Some(0)
        } else if is(RunCtx::BUDGET_OFFSET, 8) {
            value.offset_in(Class::Budget).is_some_and(|by| (-255..0).contains(&by))
        } else {
            // A stop writes no number that anything but its message depends on.
            is(RunCtx::STOP_CODE_OFFSET, 4)
                || is(RunCtx::STOP_INSN_OFFSET, 4)
                || is(RunCtx::STOP_PC_OFFSET, 8)
                || is(RunCtx::STOP_SP_OFFSET, 8)
                || is(RunCtx::STOP_LINK_OFFSET, 8)
        };
        if allowed { Ok(()) } else { Err(Why::Field) }
    }

    /// The fields of the context that bound regions: offset, bytes, and the class of a field.
    fn bounds(&self) -> impl Iterator<Item = (i64, i64, Class)> {
        let address = |off: u32| (i64::from(off), 8, Class::Address);
        self.regions
            .iter()
            .flat_map(move |region| match region.place {
                BoundsPlace::Nowhere | BoundsPlace::Raw => [None, None],
                BoundsPlace::Addresses { start, end } => [Some(address(start)), Some(address(end))],
                BoundsPlace::Length { start, len, len_size } => {
                    [Some(address(start)), Some((len.into(), len_size.into(), Class::Number))]
                }
            })
            .flatten()
    }

    fn load_context(&self, off: i64, bytes: i64) -> Class {
        let field = self.bounds().find(|(at, size, _)| (*at, *size) == (off, bytes));
        field.map_or(Class::Untrusted, |(.., class)| class)
    }

    fn store_context(&self, off: i64, bytes: i64) -> Result<(), Why> {
        let over = self.bounds().any(|(at, size, _)| off < at + size && at < off + bytes);
        if over { Err(Why::Store) } else { Ok(()) }
    }
}

/// The value that a conditional move selects: `yes` if the compared value is below the limit (or at most the limit),
/// `no` otherwise. `None` if that is no selection.
fn selected(Flags { a: compared, b: limit }: &Flags, below: bool, yes: Value, no: Value, here: Name) -> Option<Value> {
    let difference = yes.sum?.plus(&compared.sum?, -1)?;
    // Any number but one is below the greatest number: the result of a call, less 1, if the result is not null.
    if below && limit.exactly() == Some(-1) {
        let found = yes.class == Class::Found && Some(difference) == Value::constant(1).sum;
        return (found && no.is_address_or_null()).then(|| Value::named(here, Class::Address));
    }
    let most = match limit.exactly() {
        Some(limit @ 0..0x1_0000_0000) => limit.cast_unsigned().saturating_sub(u64::from(below)),
        None if limit.class == Class::Number => u64::MAX,
        Some(_) | None => return None,
    };
    if difference.is_zero() {
        return (no.class == Class::Number).then(|| Value::named(here, Class::Number).up_to(most.max(no.most)));
    }
    let (_, class, by) = difference.single()?;
    (class == Class::Address && by == 0 && no.is_address_or_null()).then(|| Value::named(here, Class::Address))
}
