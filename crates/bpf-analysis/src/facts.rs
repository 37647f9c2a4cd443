//! Facts that a verifier, or a cheaper analysis, has proven: the only data that passes from it to the JIT.

use bpf_isa::{InsnIdx, SubprogId};

use crate::bounds::{BoundsPlace, RegionBounds};
use crate::contained::Contained;
use crate::values::{LoopFact, ValueFacts};

/// A tail call whose table and index are the same constants on every path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConstTailCall {
    /// The call.
    pub insn: InsnIdx,
    /// The table's index in the program's map list.
    pub map: u32,
    /// The index into the table.
    pub index: u32,
}

/// A call whose map argument is the same on every path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConstMapCall {
    /// The call.
    pub insn: InsnIdx,
    /// The map's index in the program's map list.
    pub map: u32,
    /// The key, as a little-endian number, if it is the same on every path too (keys of up to 8 bytes).
    pub key: Option<u64>,
}

/// An access to the context, resolved to the host's own structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContextAccess {
    /// The load or store.
    pub insn: InsnIdx,
    /// Byte offset from the base register's value to the field in the host's structure: it replaces the instruction's
    /// offset.
    pub off: i32,
    /// Bytes to load (zero-extended) or store there: 1, 2, 4 or 8. It may be wider than the instruction's own size.
    pub size: u32,
    /// Byte offset of the accessed bytes from the start of the context, in the program's view of it.
    pub place: u32,
    /// Bytes that the instruction accesses in the program's view: 1, 2, 4 or 8.
    pub seen: u32,
}

/// The kind of memory an instruction accesses, on every path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemKind {
    /// The program's stack.
    Stack,
    /// The context: see [`Facts::context_accesses`].
    Context,
    /// A context region, such as the packet.
    Packet,
    /// A map value.
    MapValue,
    /// Memory that a helper gave to this run alone: a record, a key. An access that may be to other memory has no such
    /// fact.
    Mem,
    /// The program's arena, at whatever number the base register holds: see [`ArenaFact`].
    Arena,
}

/// The arena of a program: memory that it may access with any 64-bit number as the base.
///
/// An access with [`MemKind::Arena`] is made at `start + (base & (window - 1)) + off`, where `base` is the whole base
/// register and `off` the instruction's offset. The window, and [`ArenaFact::GUARD`] bytes before and behind it, are
/// memory that programs may read and write, so no such access leaves it. This bound holds for the sum in this form
/// only: a compiler must not move an addition to `base` behind the `&`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArenaFact {
    /// The map's index in the program's map list.
    pub map: u32,
    /// Bytes in the window: a power of two, 4 GiB at most.
    pub window: u64,
    /// The address by which programs and the host know its first byte. The upper half is that of every user address.
    pub user: u64,
}

impl ArenaFact {
    /// Bytes of memory before and behind the window. An instruction's offset and size reach at most 2^15 bytes before
    /// the window, and 2^15 + 7 bytes behind its last byte.
    pub const GUARD: u64 = bpf_uapi::ARENA_GUARD;
}

/// Memory of known bounds that an access must be checked against before it is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckRegion {
    /// The context region with this index; 0 is the packet.
    Packet(u8),
    /// The first value of an array map.
    MapValue {
        /// The map's index in the program's map list.
        map: u32,
        /// Bytes in the value.
        size: u32,
    },
}

/// Where legacy packet loads find the headers that `SKF_LL_OFF` and `SKF_NET_OFF` name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum HeaderPlaces {
    /// The packet begins with its link header, and no network header is known.
    #[default]
    LinkFirst,
    /// The host's context structure has two positions at these byte offsets, each an `i32`: bytes from the packet's
    /// start to the header, at least 0 bytes behind the start of the buffer that the packet lies in.
    /// [`NO_HEADER`](bpf_uapi::legacy_load::NO_HEADER) if the packet has no such header.
    Context {
        /// Offset of the link header's position.
        link: u32,
        /// Offset of the network header's position.
        network: u32,
    },
}

/// An instruction that must be checked at run time, because its address was not proven to be in bounds.
///
/// For a load or store, all bytes must be in the region. For a conditional jump, which compares a pointer into the
/// region, both operands must be at most [`AccessCheck::BEFORE`] bytes before the region's start and less than
/// [`AccessCheck::NEAR`] bytes behind it. Addresses further away may wrap round, so that the outcome of a comparison
/// would tell where in memory the region is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessCheck {
    /// The load, store or jump.
    pub insn: InsnIdx,
    /// The one region its pointer can belong to.
    pub region: CheckRegion,
}

impl AccessCheck {
    /// Addresses that are compared are below `start + NEAR`. No region begins so close to the end of the address space.
    pub const NEAR: u64 = 1 << 31;

    /// Addresses that are compared are at or above `start - BEFORE`. Each region that has bytes begins above this
    /// address (the runtime refuses others), so the difference does not wrap.
    pub const BEFORE: u64 = 1 << 16;
}

/// Values that a format can have.
pub const FORMAT_VALUES: usize = 12;

/// A call that reads through pointers whose length no argument gives: formats, texts, probes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FormatCall {
    /// The call.
    pub insn: InsnIdx,
    /// By value: a number on every path, or else null or as many readable bytes.
    pub known: [Option<u32>; FORMAT_VALUES],
    /// By value: the context region that a pointer leads to on every path. The function may read up to the region's
    /// bounds at the time of the call.
    pub regions: [Option<u8>; FORMAT_VALUES],
}

/// Facts about one instruction slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InsnFact {
    /// No run reaches it.
    pub dead: bool,
    /// The memory it accesses.
    pub memory: Option<MemKind>,
}

/// Facts about one program. The default knows nothing, and everything is correct with it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// Bytes of stack each subprogram uses at most, by subprogram; empty when not known.
    pub stack_bytes: Vec<u32>,
    /// Tail calls with constant table and index, ascending by instruction.
    pub tail_calls: Vec<ConstTailCall>,
    /// By instruction slot; empty when not known.
    pub insns: Vec<InsnFact>,
    /// Calls with a constant map, ascending by instruction.
    pub map_calls: Vec<ConstMapCall>,
    /// Calls that read through pointers without a length argument, ascending by instruction. No other call of such a
    /// function reads through its values.
    pub formats: Vec<FormatCall>,
    /// All context accesses, ascending by instruction. A program with fields in its context needs them to be compiled.
    pub context_accesses: Vec<ContextAccess>,
    /// Accesses that need a check, ascending by instruction. Only a hybrid verification leaves any; a program with
    /// some is not safe without them.
    pub checks: Vec<AccessCheck>,
    /// Where the bounds of each context region are; filled in if there are checks.
    pub regions: Vec<RegionBounds>,
    /// Ranges of frames that must be zero when their function is entered, ascending by function, at most one for each.
    /// A program with such ranges is not safe without them: it may read what the host left on the stack.
    pub zeroed: Vec<Zeroed>,
    /// Ranges of frames that are accessed only by instructions with r10 as their base, ascending by function and then
    /// by depth, without overlaps.
    pub private: Vec<Private>,
    /// A hybrid verification has not proven that the program ends: it must run with a budget.
    pub needs_budget: bool,
    /// Facts about numbers and addresses, by instruction slot; empty if they were not requested.
    pub values: Vec<ValueFacts>,
    /// Facts about the requested loops, ascending by head.
    pub loops: Vec<LoopFact>,
    /// The program's arena, if it refers to one.
    pub arena: Option<ArenaFact>,
    /// Where legacy packet loads find the packet's headers.
    pub headers: HeaderPlaces,
    /// Calls that may throw, ascending: calls of functions that throw, and of functions that call those.
    pub throws: Vec<InsnIdx>,
    /// Exception callback: called with the thrown number, its result is the program's. Without one, the program returns
    /// the thrown number. The main program contains a call of the callback.
    pub exception: Option<SubprogId>,
    /// Heads of loops at which a run may yield, ascending: every value that the run has there outlasts a sleep.
    pub yields: Vec<InsnIdx>,
    /// How the program's accesses are confined, if the program is to be contained. Compilers then use no other fact:
    /// code is made as if the program were not verified, and dead instructions stop the run.
    pub contained: Option<Box<Contained>>,
}

/// Bytes of a function's frame that the program may read where it has not written them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zeroed {
    /// The function.
    pub subprog: SubprogId,
    /// Distance of the first byte below r10: a multiple of 8.
    pub depth: u32,
    /// Number of bytes: a multiple of 8, not 0.
    pub bytes: u32,
}

/// Bytes of a function's frame that no access reaches other than by an instruction with r10 as its base: no other
/// pointer into the frame leads there, in the function or in functions that it calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Private {
    /// The function.
    pub subprog: SubprogId,
    /// Distance of the first byte below r10.
    pub depth: u32,
    /// Number of bytes, not 0.
    pub bytes: u32,
}

impl Facts {
    /// Returns the ranges of the function's frame that only instructions with r10 as their base access.
    pub fn private(&self, subprog: SubprogId) -> &[Private] {
        let from = self.private.partition_point(|range| range.subprog < subprog);
        let len = self.private[from..].partition_point(|range| range.subprog == subprog);
        &self.private[from..from + len]
    }

    /// Returns the range of the function's frame that must be zero when the function is entered.
    pub fn zeroed(&self, subprog: SubprogId) -> Option<Zeroed> {
        self.zeroed.binary_search_by_key(&subprog, |z| z.subprog).ok().map(|i| self.zeroed[i])
    }

    /// The constant table and index of the tail call at `insn`, if known.
    pub fn tail_call(&self, insn: InsnIdx) -> Option<&ConstTailCall> {
        self.tail_calls.binary_search_by_key(&insn, |t| t.insn).ok().map(|i| &self.tail_calls[i])
    }

    /// Returns the facts about the instruction at `insn`; the default if there are none.
    pub fn insn(&self, insn: InsnIdx) -> InsnFact {
        self.insns.get(insn.index()).copied().unwrap_or_default()
    }

    /// Returns the facts about the numbers at `insn`; the default if there are none.
    pub fn values(&self, insn: InsnIdx) -> ValueFacts {
        self.values.get(insn.index()).copied().unwrap_or_default()
    }

    /// Whether a run may yield where it comes back to the head of a loop at `insn`.
    pub fn may_yield(&self, insn: InsnIdx) -> bool {
        self.yields.binary_search(&insn).is_ok()
    }

    /// Whether the call at `insn` may throw.
    pub fn may_throw(&self, insn: InsnIdx) -> bool {
        self.throws.binary_search(&insn).is_ok()
    }

    /// Returns the facts about the loop with this head.
    pub fn loop_at(&self, head: InsnIdx) -> Option<&LoopFact> {
        self.loops.binary_search_by_key(&head, |l| l.head).ok().map(|i| &self.loops[i])
    }

    /// The constant map (and key) of the call at `insn`, if known.
    pub fn map_call(&self, insn: InsnIdx) -> Option<&ConstMapCall> {
        self.map_calls.binary_search_by_key(&insn, |t| t.insn).ok().map(|i| &self.map_calls[i])
    }

    /// The check that the access at `insn` needs, if any.
    #[inline]
    pub fn check(&self, insn: InsnIdx) -> Option<CheckRegion> {
        if self.checks.is_empty() {
            return None;
        }
        self.checks.binary_search_by_key(&insn, |c| c.insn).ok().map(|i| self.checks[i].region)
    }

    /// Where the bounds of the context region `region` are.
    pub fn region(&self, region: u8) -> RegionBounds {
        let unknown = RegionBounds { min_len: 0, place: BoundsPlace::Nowhere };
        self.regions.get(usize::from(region)).copied().unwrap_or(unknown)
    }
}
