//! Refusals, in a form that the program's author can act on.
//!
//! Approach: the walk returns a small [`Reason`]; only the failing program pays for the rest (disassembly, source line,
//! registers, path). Each reason has a sentence and, where there is a usual remedy, a hint. One error: the first.

mod effort;
mod loops;

use std::borrow::Cow;
use std::fmt;

use bpf_isa::{InsnIdx, Reg};

use crate::helpers::{Local, Section};
use crate::value::Debt;

pub use effort::{Effort, EffortPlace};
pub use loops::{LoopFailure, UnprovenLoop};

/// A program that was not proven safe.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct VerifyError {
    /// The instruction that is refused.
    pub insn: InsnIdx,
    /// Its text.
    pub disassembly: String,
    /// The source line it came from: file, line, text.
    pub source_line: Option<(String, u32, String)>,
    /// The reason of the refusal.
    pub reason: Reason,
    /// The relevant registers, each with a description of its value.
    pub registers: Vec<(Reg, String)>,
    /// The calls that led into the current frame, outermost first.
    pub calls: Vec<InsnIdx>,
    /// The branch decisions that led to the instruction, first to last. Long paths keep their last
    /// [`VerifyError::MAX_PATH`].
    pub path: Vec<Decision>,
    /// Decisions left out before those in `path`.
    pub path_omitted: usize,
    /// For a limit on the work: the part of the program that took most of it. `insn`, its text and its source line are
    /// those of that part.
    pub effort: Option<Effort>,
    /// The loops around the instruction that were not proven by an invariant, innermost first. For a limit on the work:
    /// all such loops.
    pub loops: Vec<UnprovenLoop>,
    /// Whether a hybrid verification ([`crate::Env::hybrid`]) accepts the program, with a run-time check in the place
    /// of this proof. Also `false` if finding that out takes much work.
    pub checkable: bool,
    /// Whether the message advises `-g`. The loader sets it for a program from an object without source lines.
    pub without_lines: bool,
    /// The walk so far, if logging was on.
    pub log: Vec<String>,
}

/// A branch decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// The conditional jump.
    pub insn: InsnIdx,
    /// Whether it was taken.
    pub taken: bool,
}

impl VerifyError {
    /// The most decisions that are kept.
    pub const MAX_PATH: usize = 16;

    /// Whether the verification ended without a verdict ([`crate::Limits::time`], or out of memory): the program may be
    /// safe. All other errors are refusals, and do not depend on the machine.
    pub fn verdict_is_unknown(&self) -> bool {
        matches!(self.reason, Reason::Time(_) | Reason::OutOfMemory)
    }
}

/// The reason why a program is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message says what it and its fields are")]
pub enum Reason {
    #[error("{0} is read but {1}")]
    Uninit(Reg, String),
    #[error("stack byte at r10{off} is read but was never written, or holds part of a pointer")]
    StackUninit { off: i64 },
    #[error("stack access at r10{min:+}..r10{max:+} is outside the frame's {frame_bytes} bytes")]
    StackBounds { min: i64, max: i64, frame_bytes: u32 },
    #[error("access of {size} bytes at offset {min}..={max} is outside {what}, which has {limit} bytes")]
    Bounds { what: String, size: u64, min: i64, max: i64, limit: u64 },
    #[error("access of {size} bytes at offset {offset} of {region}, of which only {proven} bytes are proven to exist")]
    PacketBounds { region: String, size: u64, offset: i64, proven: u32 },
    #[error("access at offset {min} before the start of {region}")]
    PacketBefore { region: String, min: i64 },
    #[error("{what} may not be written")]
    ReadOnly { what: String },
    #[error("{what} may not be read")]
    WriteOnly { what: String },
    #[error("the lock in {map} may only be used through {}", lock_functions(*resilient))]
    LockAccess { map: String, resilient: bool },
    #[error(
        "the timer or bpf_wq in {map} may only be used through bpf_timer_init, bpf_wq_init and the other functions over it"
    )]
    TimerAccess { map: String },
    #[error("{field} at offset {offset} of {what} may only be used through the functions over objects")]
    ObjectField { what: String, field: &'static str, offset: u32 },
    #[error("{what} is used by {func} without the lock beside it")]
    RootUnlocked { func: String, what: String },
    #[error("context {context} has no field at offset {off} with {size} bytes")]
    NoField { context: String, off: i64, size: u64 },
    #[error("context field {field} must be {expected}")]
    FieldUse { field: String, expected: &'static str },
    #[error("context access at an offset that is not a constant")]
    CtxOffset,
    #[error("instruction accesses {first} on one path and {second} on another")]
    MixedContext { first: String, second: String },
    #[error("{0} is used as an address but is {1}")]
    NotAPointer(Reg, String),
    #[error("{0} may be null here")]
    MaybeNull(Reg),
    #[error("{0}, {1}, may not be accessed as memory")]
    NotMemory(Reg, String),
    #[error("{0}, {1}, is behind the last byte: nothing there may be accessed")]
    BehindEnd(Reg, String),
    #[error("{0}, {1}, is shared with other threads, and the function asks for memory of this run alone")]
    Shared(Reg, String),
    #[error("operation is not allowed on {0}, {1}")]
    PointerOp(Reg, String),
    #[error("{0} is moved by an offset that is not bounded: {1}")]
    OffsetUnbounded(Reg, String),
    #[error("operation on two pointers, {0} and {1}")]
    TwoPointers(Reg, String),
    #[error("comparison of {0}, {1}, with {2} would leak an address")]
    PointerCompare(Reg, String, String),
    #[error("comparison of the lower halves of {0}, {1}, and {2} does not tell which is first")]
    HalfCompare(Reg, String, String),
    #[error("{0}, {1}, would leak an address to {2}")]
    Leak(Reg, String, &'static str),
    #[error("pointer to the callee's own stack may not outlive it")]
    DanglingStack,
    #[error("division by the constant 0")]
    DivByZero,
    #[error("shift by {count}, but the operand has {bits} bits")]
    ShiftTooWide { count: i32, bits: u32 },
    #[error("atomic access to {0} is not allowed")]
    AtomicMemory(&'static str),
    #[error("atomic access of {size} bytes is not proven to be aligned (offset {off})")]
    Unaligned { size: u64, off: String },
    #[error("address is not proven to be aligned to {align} bytes (offset {off} of {what})")]
    Alignment { align: u32, off: String, what: String },
    #[error("{what} {index}{} does not exist", helper_in_brackets(what, *index))]
    NoSuch { what: &'static str, index: i64 },
    #[error("{0}")]
    Unsupported(&'static str),
    #[error("argument {arg} ({reg}) of {func} must be {expected}, but is {got}")]
    Arg { func: String, arg: usize, reg: Reg, expected: String, got: String },
    #[error("argument {arg} ({reg}) of {func}: {why}")]
    ArgMem { func: String, arg: usize, reg: Reg, why: Box<Reason> },
    #[error("arguments {a} and {b} of {func} may overlap, and one of them is written")]
    Overlap { func: String, a: usize, b: usize },
    #[error("{func} is not allowed while the lock taken at {at} is held")]
    LockHeld { func: String, at: InsnIdx },
    #[error("no lock is held")]
    NoLock,
    #[error("the lock that was taken last, at {at}, is another one, or was taken by another function")]
    OtherLock { at: InsnIdx },
    #[error("the same lock is held since {at}")]
    LockTwice { at: InsnIdx },
    #[error("{}", unpaid(*debt, *at))]
    Owed { at: InsnIdx, debt: Debt },
    #[error("{func} might sleep, but {why}")]
    Sleeps { func: String, why: Awake },
    #[error("{} entered at {at} is not left before the global function returns", section.name())]
    SectionOpen { section: Section, at: InsnIdx },
    #[error("tail call in a sleepable program")]
    SleepableTailCall,
    #[error("tail call inside a callback")]
    TailCallInCallback,
    #[error("exception is thrown inside a callback")]
    ThrowInCallback,
    #[error("function {function} is called back by a function that does not take its address itself")]
    ForeignCallback { function: u32 },
    #[error("{0} must be an instruction loaded from a map of instructions (BPF_MAP_TYPE_INSN_ARRAY), but is {1}")]
    NotAnInsn(Reg, String),
    #[error("entry of {map} is loaded in part: instructions are whole, of eight bytes")]
    PartOfInsn { map: String },
    #[error("entry {entry} of {map} is instruction {target}, outside of function {function}, which jumps to it")]
    JumpToOther { map: String, entry: u64, target: InsnIdx, function: u32 },
    #[error("{0} must be the address of a function of this program other than its entry, but is {1}")]
    NotAFunction(Reg, String),
    #[error(
        "function {function}, which calls others, is called by its address in a function that does not take it itself"
    )]
    ForeignCall { function: u32 },
    #[error("tail call with {depth} bytes of stack in its callers; at most {limit} are allowed")]
    TailCallDepth { depth: u32, limit: u32 },
    #[error("return value r0 is {got}, but must be {expected}")]
    Return { got: String, expected: String },
    #[error("loop never ends: every run that enters it comes back to where it was, in the same state")]
    InfiniteLoop,
    #[error("loop is not proven to end: nothing that is known changes from one round to the next")]
    EndUnproven,
    #[error("walk takes more than {0} steps (Limits::steps)")]
    Steps(u64),
    #[error("walk needs more than {0} states (Limits::states)")]
    States(usize),
    #[error("walk needs more than {0} bytes of memory (Limits::memory)")]
    Memory(usize),
    #[error("proof takes more than {0} units of fuel (Limits::fuel)")]
    Fuel(u64),
    #[error("gave up after {0:?} (Limits::time); verdict unknown")]
    Time(std::time::Duration),
    #[error("the system refused memory, before Limits::memory was reached; verdict unknown")]
    OutOfMemory,
    #[error("environment is inconsistent: {0}")]
    Environment(String),
    #[error("internal error of the verifier: {0}")]
    Internal(&'static str),
}

/// Why a program may not sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Awake {
    /// The program is not sleepable.
    Program,
    /// A callback, which a function of the runtime waits for.
    Callback,
    /// The program is inside a section that was entered at this instruction.
    Section(Section, InsnIdx),
    /// The program holds an obligation from this instruction.
    Holds(Debt, InsnIdx),
}

impl fmt::Display for Awake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Awake::Program => f.write_str("the program is not sleepable"),
            Awake::Callback => f.write_str("this is a callback"),
            Awake::Section(section, at) => write!(f, "is inside the {} entered at {at}", section.name()),
            Awake::Holds(debt, at) => write!(f, "the {}", unpaid(*debt, *at)),
        }
    }
}

/// The functions that use a lock, for messages.
fn lock_functions(resilient: bool) -> &'static str {
    if resilient {
        "bpf_res_spin_lock, bpf_res_spin_unlock and their like"
    } else {
        "bpf_spin_lock and bpf_spin_unlock"
    }
}

/// The obligation that is not met at the end of a run, for messages.
fn unpaid(debt: Debt, at: InsnIdx) -> String {
    match debt {
        Debt::Record => format!("record reserved at {at} is neither submitted nor discarded"),
        Debt::Socket => format!("socket looked up at {at} is not released"),
        Debt::Object => format!("object acquired at {at} is neither dropped nor given to a list, a tree or a kptr"),
        Debt::Local(kind) => format!("{} made at {at} is not ended", kind.name()),
    }
}

impl Reason {
    /// Whether a run-time check may stand in for the missing proof.
    pub(crate) fn may_be_checked(&self) -> bool {
        matches!(
            self,
            Reason::Bounds { .. }
                | Reason::PacketBounds { .. }
                | Reason::PacketBefore { .. }
                | Reason::BehindEnd(..)
                | Reason::OffsetUnbounded(..)
                | Reason::InfiniteLoop
                | Reason::EndUnproven
                | Reason::Steps(_)
                | Reason::States(_)
                | Reason::Memory(_)
                | Reason::Fuel(_)
        )
    }

    /// Whether the trusted core may prove what this refusal could not, by a certificate: bounds of numbers, the end of
    /// a loop, or anything that a limit on the work has ended. The core knows fewer types of values and functions than
    /// the walk, so it is not asked about these.
    pub(crate) fn may_be_certified(&self) -> bool {
        if let Reason::ArgMem { why, .. } = self {
            return why.may_be_certified();
        }
        let of_numbers =
            matches!(self, Reason::StackBounds { .. } | Reason::StackUninit { .. } | Reason::Return { .. });
        of_numbers || self.may_be_checked() && *self != Reason::InfiniteLoop
    }

    /// Whether it is a limit on the work.
    pub(crate) fn is_work(&self) -> bool {
        matches!(
            self,
            Reason::Steps(_)
                | Reason::States(_)
                | Reason::Memory(_)
                | Reason::Fuel(_)
                | Reason::Time(_)
                | Reason::OutOfMemory
        )
    }

    /// Whether it is a limit on the work, or a reason that a walk from a candidate invariant can cause although the
    /// program is safe.
    pub(crate) fn is_limit(&self) -> bool {
        matches!(
            self,
            Reason::Steps(_)
                | Reason::States(_)
                | Reason::Memory(_)
                | Reason::MixedContext { .. }
                | Reason::InfiniteLoop
                | Reason::EndUnproven
        )
    }

    /// Whether it is an access that is not proven to be inside its memory.
    pub(crate) fn is_out_of_bounds(&self) -> bool {
        matches!(
            self,
            Reason::StackBounds { .. }
                | Reason::Bounds { .. }
                | Reason::PacketBounds { .. }
                | Reason::PacketBefore { .. }
        )
    }

    /// The usual remedy, if there is one.
    pub fn hint(&self) -> Option<Cow<'static, str>> {
        // Regions other than the packet: programs compare with the region's end, or with its length.
        if let Reason::PacketBounds { region, .. } | Reason::PacketBefore { region, .. } = self {
            let hint = match region.as_str() {
                "packet" => None,
                "memory" => Some(
                    "compare the offset plus the access size with the length, which the program begins with in r2, on every path to the access".into(),
                ),
                _ => Some(
                    format!("compare the pointer plus the access size with `{region}_end` on every path to the access")
                        .into(),
                ),
            };
            if hint.is_some() {
                return hint;
            }
        }
        Some(Cow::Borrowed(match self {
            Reason::Uninit(_, why) if why.contains("may move the packet") => {
                "load data and data_end from the context again, and check the bounds again"
            }
            Reason::Uninit(_, why) if why.contains("iterator that has ended") => {
                "keep an iterator as it is, and in a function that has not returned, while its elements are read"
            }
            Reason::Uninit(_, why) if why.contains("buffer that was written") => {
                "give each slice a buffer of its own, in a function that has not returned, and write to the slice instead"
            }
            Reason::Uninit(_, why) if why.contains("released the lock") => {
                "an object in a list or a tree is another's once the lock is released: take what is needed before"
            }
            Reason::Uninit(_, why) if why.contains("where the program may sleep") => {
                "look it up again in each round: a program that yields may sleep wherever a loop begins a round"
            }
            Reason::Uninit(_, why) if why.contains("may sleep") => {
                "look it up again after the call: it may be freed while the program sleeps"
            }
            Reason::Uninit(_, why) if why.contains("took the object") => {
                "do not use an object after it was dropped or given away"
            }
            Reason::Uninit(_, why) if why.contains("consumed") => "do not use a record after submit or discard",
            Reason::Uninit(_, why) if why.contains("since the call") => {
                "calls clobber r0 to r5: keep the value in r6 to r9 or on the stack"
            }
            Reason::Uninit(..) => "give the register a value on every path that leads here",
            Reason::StackUninit { .. } => "initialise the whole variable, padding included, for example with memset",
            Reason::StackBounds { .. } => {
                "keep the index within the variable; for large buffers, use a map instead of the stack"
            }
            Reason::Bounds { .. } => "check the index against the size before the access, or mask it",
            Reason::PacketBounds { .. } | Reason::PacketBefore { .. } => {
                "compare the pointer plus the access size with the end (`if (p + n > data_end) return`) on every path to the access"
            }
            Reason::NoField { .. } => "use a field the context declares, whole and at its own offset",
            Reason::MixedContext { first, second } if [first, second].iter().any(|what| *what == "the arena") => {
                "access the arena and other memory by different instructions"
            }
            Reason::CtxOffset | Reason::MixedContext { .. } => "access each context field by its own name",
            Reason::Shared(..) => {
                "have the host's function take `SharedBytes` or `SharedBytesMut` in place of a reference, or copy the bytes to the stack first"
            }
            Reason::NotAPointer(_, got) if got.contains("number 0") => "the pointer is null here: test it before use",
            Reason::NotAPointer(..) => "a number cannot become a pointer; keep pointers whole, 64 bits wide",
            Reason::MaybeNull(_) => "test the pointer for null first (`if (!p) return 0;`)",
            Reason::PointerOp(_, what) if what.contains("or null") => {
                "test the pointer for null before calculating with it"
            }
            Reason::PointerOp(..) => {
                "only 64-bit additions and subtractions of bounded numbers are allowed on pointers"
            }
            Reason::OffsetUnbounded(..) => "bound the number first: compare it with a maximum, or mask it",
            Reason::TwoPointers(..) => {
                "only pointers into the same object (packet, map value, variable) may be subtracted"
            }
            Reason::PointerCompare(..) => {
                "compare pointers into one object with each other or its end, and others only with null"
            }
            Reason::HalfCompare(..) => {
                "compare whole pointers; newer compilers (clang 22) compare pointers that were loaded as 32 bits so, unless by `-mcpu=v2` or behind `asm volatile(\"\" : \"+r\"(p))`"
            }
            Reason::Leak(..) => "addresses must stay inside the program: copy the data, not the pointer",
            Reason::Unaligned { .. } | Reason::Alignment { .. } => "align the address to the size of the access",
            Reason::ForeignCallback { .. } => "name the callback in the function that calls the helper",
            Reason::NotAnInsn(..) => {
                "load an entry of the jump table, 8 bytes at a multiple of 8, and jump to it as it is"
            }
            Reason::JumpToOther { .. } => "give each function a table of its own instructions",
            Reason::NotAFunction(..) => {
                "give the register the address of a function (`ld_imm64` of a subprogram) on every path to the call"
            }
            Reason::ForeignCall { .. } => {
                "take the function's address in the function that calls it, or let it call no subprogram"
            }
            Reason::ThrowInCallback => "return from the callback, and throw where the helper was called",
            Reason::NoSuch { what: "helper", .. } => "this host does not offer the helper to this kind of program",
            Reason::LockHeld { .. } => "release the lock first (bpf_spin_unlock, bpf_res_spin_unlock)",
            Reason::RootUnlocked { .. } => "take the bpf_spin_lock or bpf_res_spin_lock of the same value before",
            Reason::NoLock | Reason::OtherLock { .. } => {
                "release locks in the reverse order, each on its element, by the function that goes with the one that took it"
            }
            Reason::Sleeps { why: Awake::Program, .. } => {
                "load it with `Loader::sleepable`, or put it into a section that ends with `.s`"
            }
            Reason::Sleeps { why: Awake::Callback, .. } => {
                "write a loop (`for`, `bpf_for`) in place of the callback, and call the function there"
            }
            Reason::Sleeps { why: Awake::Section(Section::Rcu, _), .. } => "call bpf_rcu_read_unlock before",
            Reason::Sleeps { why: Awake::Section(Section::Preempt, _), .. } => "call bpf_preempt_enable before",
            Reason::Sleeps { why: Awake::Holds(..), .. } => "give it back before the call",
            Reason::SectionOpen { section: Section::Rcu, .. } => "call bpf_rcu_read_unlock on every path",
            Reason::SectionOpen { section: Section::Preempt, .. } => "call bpf_preempt_enable on every path",
            Reason::SleepableTailCall => "call a function in place of the tail call, or load the program not sleepable",
            Reason::LockTwice { .. } => "take each lock once; it would fail with -EDEADLK",
            Reason::Owed { debt: Debt::Record, .. } => "call bpf_ringbuf_submit or bpf_ringbuf_discard on every path",
            Reason::Owed { debt: Debt::Socket, .. } => "call bpf_sk_release on every path where the socket is not null",
            Reason::Owed { debt: Debt::Object, .. } => {
                "call bpf_obj_drop on every path where the object is not null, or give it away"
            }
            Reason::Owed { debt: Debt::Local(Local::Numbers), .. } => "call bpf_iter_num_destroy on every path",
            Reason::Owed { debt: Debt::Local(Local::Bits), .. } => "call bpf_iter_bits_destroy on every path",
            Reason::Owed { debt: Debt::Local(Local::Interrupts { lock: false }), .. } => {
                "call bpf_local_irq_restore on every path"
            }
            Reason::Owed { debt: Debt::Local(Local::Interrupts { lock: true }), .. } => {
                "call bpf_res_spin_unlock_irqrestore on every path where the lock was taken"
            }
            Reason::Owed { debt: Debt::Local(Local::Dynptr(_) | Local::Buffer), .. } => {
                "call bpf_ringbuf_submit_dynptr or bpf_ringbuf_discard_dynptr on every path"
            }
            Reason::InfiniteLoop => "make each round change what the loop's condition tests",
            Reason::EndUnproven => {
                "count the rounds up to a bound (`for (i = 0; i < n; i++)`), or use may_goto or bpf_loop"
            }
            Reason::Time(_) => {
                "verify it again on a machine with less load, raise `Limits::time`, or leave it at `None`: `Limits::fuel` bounds the work"
            }
            Reason::OutOfMemory => {
                "verify it where more memory is free, or lower `Limits::memory` to the memory that there is"
            }
            Reason::Steps(_) | Reason::States(_) | Reason::Memory(_) | Reason::Fuel(_) => {
                "bound loops by small constants, use bpf_loop for long ones, split the program, or raise the limit (`Config::limits`)"
            }
            Reason::Overlap { .. } => "pass buffers that do not overlap",
            Reason::ArgMem { why, .. } => return why.hint(),
            Reason::DanglingStack
            | Reason::ReadOnly { .. }
            | Reason::WriteOnly { .. }
            | Reason::LockAccess { .. }
            | Reason::TimerAccess { .. }
            | Reason::ObjectField { .. }
            | Reason::FieldUse { .. }
            | Reason::NotMemory(..)
            | Reason::BehindEnd(..)
            | Reason::PartOfInsn { .. }
            | Reason::DivByZero
            | Reason::ShiftTooWide { .. }
            | Reason::AtomicMemory(_)
            | Reason::NoSuch { .. }
            | Reason::Unsupported(_)
            | Reason::Arg { .. }
            | Reason::TailCallInCallback
            | Reason::TailCallDepth { .. }
            | Reason::Return { .. }
            | Reason::Environment(_)
            | Reason::Internal(_) => return None,
        }))
    }
}

/// The kernel's name of a helper that is unknown here.
fn helper_in_brackets(what: &str, index: i64) -> String {
    let id = u32::try_from(index).ok().filter(|_| what == "helper");
    id.and_then(bpf_uapi::Helper::name_of).map_or_else(String::new, |name| format!(" ({name})"))
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "error: {}", self.reason)?;
        writeln!(f, "  at {}: {}", self.insn, self.disassembly)?;
        if let Some((file, line, text)) = &self.source_line {
            writeln!(f, "  in {file}:{line}: {}", text.trim())?;
        }
        for (reg, what) in &self.registers {
            writeln!(f, "  {reg} = {what}")?;
        }
        if !self.calls.is_empty() {
            f.write_str("  called from")?;
            for call in &self.calls {
                write!(f, " {call}")?;
            }
            writeln!(f)?;
        }
        if !self.path.is_empty() {
            f.write_str("  path:")?;
            if self.path_omitted > 0 {
                write!(f, " ({} earlier)", self.path_omitted)?;
            }
            for d in &self.path {
                write!(f, " {}{}", d.insn, if d.taken { " taken" } else { " not taken" })?;
                if d != &self.path[self.path.len() - 1] {
                    f.write_str(",")?;
                }
            }
            writeln!(f)?;
        }
        if let Some(effort) = &self.effort {
            write!(f, "{effort}")?;
        }
        for l in &self.loops {
            write!(f, "{l}")?;
        }
        if let Some(hint) = self.reason.hint() {
            writeln!(f, "  hint: {hint}")?;
        }
        if self.without_lines {
            f.write_str("  hint: compile with -g, so that messages name source lines and variables\n")?;
        }
        if self.checkable {
            f.write_str(
                "  hint: with `Loader::hybrid` (`bpf verify --hybrid`) it is accepted, and checked at run time\n",
            )?;
        }
        Ok(())
    }
}

impl std::error::Error for VerifyError {}

/// The result of a step of the walk.
pub(crate) type Res<T> = Result<T, Box<Reason>>;

/// `Err` of a reason.
pub(crate) fn refuse<T>(reason: Reason) -> Res<T> {
    Err(Box::new(reason))
}
