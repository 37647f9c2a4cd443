//! The environment of a verification: context, maps, helpers, signatures and limits, all as data.
//!
//! Problem: the verifier must know what the host offers without knowing the host. Approach: plain descriptions that
//! the embedder fills in (from BTF, from its map table, from Rust types). The verifier believes them: a description
//! that promises more than the host keeps breaks safety, so each item says what it promises.

mod check;

pub use check::EnvironmentError;

use std::borrow::Cow;
use std::time::Duration;

use bpf_analysis::{AccessCheck, BoundsPlace, HeaderPlaces, RegionBounds};
use bpf_isa::{InsnIdx, SubprogId};
use bpf_uapi::{MapType, OwnedField, OwnedType};

use super::access::Access;
use super::helpers::{ArgKind, Helpers, MemArg};

/// The result of loading a context field.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum FieldKind {
    /// A number.
    Scalar,
    /// A pointer to the start of the region with this index.
    Data(u8),
    /// A pointer one past the end of the region with this index.
    DataEnd(u8),
    /// The length in bytes of the region with this index.
    Len(u8),
    /// A pointer to a socket, or null. Promised: the socket has [`crate::SOCKET_BYTES`] bytes, is 8-byte aligned, and
    /// stays valid to the end of the run.
    Socket,
}

/// A field of the context as the program sees it.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Field {
    /// Its name, for messages.
    pub name: Cow<'static, str>,
    /// Byte offset in the program's view.
    pub offset: u32,
    /// Size in bytes in the program's view. Pointer and length fields are loaded whole.
    pub size: u32,
    /// The accesses that the program may make. Only scalars may be written.
    pub access: Access,
    /// The content of the field.
    pub kind: FieldKind,
    /// Byte offset in the host's own structure, passed through to the facts.
    pub host_offset: u32,
    /// Size in bytes in the host's structure. For a number: the same as `size`. For a pointer: 8, also where the
    /// program's `data` field has 4 bytes. For a length: 4 or 8.
    /// 8.
    pub host_size: u32,
}

/// Memory whose length is known only at run time: a packet, the metadata before it, a byte slice.
///
/// Promised while the program runs: nobody else accesses the region if it is writable, and nobody else writes to it if
/// it is not. Therefore it does not overlap the context's fields, a map's value, memory that functions return, or
/// another region (except that two regions which are both read-only may overlap).
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Region {
    /// Its name, for messages.
    pub name: Cow<'static, str>,
    /// Whether the program may write to it.
    pub writable: bool,
    /// Upper bound of the length in bytes, promised by the host. The bound must be at most [`Region::MAX_LEN`].
    pub max_len: u32,
    /// Lower bound of the length in bytes, promised by the host. A program may access so many bytes without a
    /// comparison.
    pub min_len: u32,
    /// Alignment of the region's start, promised by the host: a power of two, in bytes. Atomics need it.
    pub align: u32,
    /// The region at whose start this one ends (metadata before a packet); `None` if it has an end of its own.
    pub ends_at_start_of: Option<u8>,
}

impl Region {
    /// The longest region in bytes: keeps address arithmetic far from wrapping.
    pub const MAX_LEN: u32 = 1 << 30;
    /// The least address of a region's first byte. A pointer up to 64 KiB before its region is therefore not null and
    /// has not wrapped round, and the order of two pointers is that of their offsets. The host promises it of each
    /// region that has bytes and of memory for the context itself; an empty region may also be at address 0.
    pub const MIN_START: u64 = AccessCheck::BEFORE + 1;
    /// The most regions in a context.
    pub const MAX_REGIONS: usize = 8;
}

/// The contents of r1 (and r2) when the program starts.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct ContextLayout {
    /// Its name, for messages and for the compatibility of tail calls.
    pub name: Cow<'static, str>,
    /// If true, r1 is the start and r2 the length of region 0, and there are no fields. Otherwise r1 points to the
    /// fields.
    pub raw: bool,
    /// The fields, disjoint and ascending by offset.
    pub fields: Vec<Field>,
    /// The regions to which fields refer.
    pub regions: Vec<Region>,
    /// The source of the header positions that LD_ABS and LD_IND need. Both read region 0. `None` forbids both.
    pub legacy_loads: Option<HeaderPlaces>,
    /// The range of values that the main program may return, as signed numbers, both ends included; `None` allows all.
    pub returns: Option<(i64, i64)>,
}

impl ContextLayout {
    /// The layout of a program over a buffer: r1 points to the buffer, and r2 is its length.
    pub fn raw(writable: bool) -> ContextLayout {
        let region = Region {
            name: "memory".into(),
            writable,
            max_len: Region::MAX_LEN,
            min_len: 0,
            align: 1,
            ends_at_start_of: None,
        };
        ContextLayout {
            name: "raw".into(),
            raw: true,
            fields: Vec::new(),
            regions: vec![region],
            legacy_loads: Some(HeaderPlaces::LinkFirst),
            returns: None,
        }
    }

    /// Whether the context leads to memory other than its own, which only a verified program can be trusted with.
    pub fn points_elsewhere(&self) -> bool {
        !self.raw && (!self.regions.is_empty() || self.fields.iter().any(|field| field.kind != FieldKind::Scalar))
    }

    /// The fields in which a run-time check finds a region's bounds.
    #[doc(hidden)]
    pub fn bounds(&self, region: u8) -> RegionBounds {
        let min_len = self.regions.get(usize::from(region)).map_or(0, |r| r.min_len);
        let address = |kind: FieldKind| {
            let field = self.fields.iter().find(|f| f.kind == kind && f.host_size == 8)?;
            Some(field.host_offset)
        };
        let length = || self.fields.iter().find(|f| f.kind == FieldKind::Len(region) && matches!(f.host_size, 4 | 8));
        let follows = || address(FieldKind::Data(self.regions.get(usize::from(region))?.ends_at_start_of?));
        let place = if self.raw {
            if region == 0 { BoundsPlace::Raw } else { BoundsPlace::Nowhere }
        } else if let Some(start) = address(FieldKind::Data(region)) {
            match (address(FieldKind::DataEnd(region)).or_else(follows), length()) {
                (Some(end), _) => BoundsPlace::Addresses { start, end },
                (None, Some(len)) => BoundsPlace::Length { start, len: len.host_offset, len_size: len.host_size },
                (None, None) => BoundsPlace::Nowhere,
            }
        } else {
            BoundsPlace::Nowhere
        };
        RegionBounds { min_len, place }
    }

    /// The index of the field that contains `offset`.
    #[doc(hidden)]
    pub fn field_at(&self, offset: u32) -> Option<usize> {
        let i = self.fields.partition_point(|f| f.offset <= offset).checked_sub(1)?;
        let f = &self.fields[i];
        (offset - f.offset < f.size).then_some(i)
    }
}

/// A map to which the program may refer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownMap {
    /// Its name, for messages.
    pub name: Cow<'static, str>,
    /// Its type.
    pub kind: MapType,
    /// Bytes in a key.
    pub key_size: u32,
    /// Bytes in a value. Promised: a value that was found stays mapped at this size, 8-byte aligned, while the program
    /// runs.
    pub value_size: u32,
    /// Number of elements. Promised for an array: at least as many exist.
    pub max_entries: u32,
    /// The accesses that *programs* may make (BPF_F_RDONLY_PROG, BPF_F_WRONLY_PROG).
    pub access: Access,
    /// Byte offset of the lock in the value, a `struct bpf_spin_lock` or a `struct bpf_res_spin_lock`.
    pub spin_lock: Option<u32>,
    /// Whether that lock is a `struct bpf_res_spin_lock`.
    pub resilient_lock: bool,
    /// Byte offset of a `struct bpf_timer` in the value.
    pub timer: Option<u32>,
    /// Byte offset of a `struct bpf_wq` in the value.
    pub work: Option<u32>,
    /// The fields of the value that own objects, ascending by offset; their types are indices of [`Env::types`].
    /// Promised: each field leads to an object of its type, or is null or empty, and only the functions for such fields
    /// change it.
    pub fields: Vec<OwnedField>,
    /// For maps of maps: the definition that every inner map has.
    pub inner: Option<Box<KnownMap>>,
    /// For an arena: its memory.
    pub arena: Option<KnownArena>,
    /// The value of a single-element array that can no longer change: loads from it yield constants.
    pub frozen: Option<Vec<u8>>,
    /// For a map of instructions: the target of each entry, which can no longer change.
    pub targets: Vec<InsnIdx>,
}

impl KnownMap {
    /// Returns the requirements on the memory of an argument that points to a key or value of the map, and the memory's
    /// bytes; `None` for other arguments.
    #[doc(hidden)]
    pub fn memory_of(&self, arg: ArgKind) -> Option<(MemArg, u32)> {
        match arg {
            ArgKind::Key => Some((MemArg::READ, self.key_size)),
            ArgKind::Value => Some((MemArg::READ, self.value_size)),
            ArgKind::ValueOrNull => Some((MemArg::READ.or_null(), self.value_size)),
            // A Bloom filter's "peek" reads the value and asks whether it is in the filter.
            ArgKind::ValueOut if self.kind == MapType::BloomFilter => Some((MemArg::READ, self.value_size)),
            ArgKind::ValueOut => Some((MemArg::WRITE, self.value_size)),
            ArgKind::None
            | ArgKind::Unused
            | ArgKind::Scalar
            | ArgKind::Formatted
            | ArgKind::Ctx
            | ArgKind::CtxOrNull
            | ArgKind::Map(_)
            | ArgKind::Mem(_)
            | ArgKind::Size { .. }
            | ArgKind::MemOfLength(_)
            | ArgKind::Length
            | ArgKind::Values
            | ArgKind::Fixed { .. }
            | ArgKind::Lock { .. }
            | ArgKind::Timer
            | ArgKind::Work
            | ArgKind::TimerMap
            | ArgKind::TimerCallback
            | ArgKind::Local(..)
            | ArgKind::LocalType { .. }
            | ArgKind::Object(_)
            | ArgKind::Root(_)
            | ArgKind::Node(..)
            | ArgKind::Compare
            | ArgKind::Kptr
            | ArgKind::Exchanged
            | ArgKind::Peeked { .. }
            | ArgKind::Probed
            | ArgKind::SliceBuffer
            | ArgKind::ConstStr
            | ArgKind::Socket { .. }
            | ArgKind::Callback(_)
            | ArgKind::CallbackCtx
            | ArgKind::RecordSize
            | ArgKind::Record
            | ArgKind::Host { .. } => None,
        }
    }

    /// The first byte of a value behind `from` that programs may not access: the value's end, or the start of a field
    /// for functions.
    #[doc(hidden)]
    pub fn plain_until(&self, from: i64) -> u32 {
        let fields =
            self.spin_lock.into_iter().chain(self.deferred()).chain(self.fields.iter().map(|field| field.offset));
        fields.filter(|at| i64::from(*at) > from).min().unwrap_or(self.value_size)
    }

    /// The offsets of the timer and the work queue in a value.
    #[doc(hidden)]
    pub fn deferred(&self) -> impl Iterator<Item = u32> {
        self.timer.into_iter().chain(self.work)
    }

    /// A map that programs may read and write, without extras.
    pub fn new(name: &str, kind: MapType, key_size: u32, value_size: u32, max_entries: u32) -> KnownMap {
        KnownMap {
            name: name.to_owned().into(),
            kind,
            key_size,
            value_size,
            max_entries,
            access: Access::ReadWrite,
            spin_lock: None,
            resilient_lock: false,
            timer: None,
            work: None,
            fields: Vec::new(),
            inner: None,
            arena: None,
            frozen: None,
            targets: Vec::new(),
        }
    }
}

/// The memory of an arena. Promised while programs run: the window stays in place and begins at a multiple of 8. Before
/// and behind it lie [`bpf_analysis::ArenaFact::GUARD`] bytes that programs may access as well. Nothing else uses any
/// of this memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KnownArena {
    /// Bytes that programs may allocate.
    pub bytes: u64,
    /// Bytes in the window; see [`bpf_analysis::ArenaFact::window`].
    pub window: u64,
    /// See [`bpf_analysis::ArenaFact::user`].
    pub user: u64,
}

/// An argument of a global function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GlobalArg {
    /// A number.
    Scalar,
    /// The context.
    Ctx,
    /// A pointer to memory of so many bytes, readable and writable, or null.
    Mem(u32),
    /// A pointer as for [`GlobalArg::Mem`] that is not null (`__arg_nonnull`).
    NonNull(u32),
}

/// The signature of a global function (a subprogram that is verified on its own), from BTF.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GlobalFunc {
    /// Its name, for messages.
    pub name: String,
    /// Its arguments, at most five.
    pub args: Vec<GlobalArg>,
}

/// The source line an instruction came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceLine {
    /// The first instruction slot of the line.
    pub insn: u32,
    /// File name.
    pub file: String,
    /// Line number, from 1.
    pub line: u32,
    /// The text of the line; may be empty.
    pub text: String,
}

/// Limits on the work of one verification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Instructions walked, summed over all paths (Linux: 1 million).
    pub steps: u64,
    /// States held at one time: those kept for pruning, and branches not yet walked.
    pub states: usize,
    /// Bytes held at one time: states, other lists that grow with the walk, and tables as long as the program.
    pub memory: usize,
    /// Work of all walks of a verification together, in units of about a nanosecond of a release build: steps, values
    /// of states that are copied and compared, and rows that the linear solver combines. The fuel that a verification
    /// takes depends on the program, its contract and the limits only, so the verdict does not depend on the machine or
    /// its load.
    pub fuel: u64,
    /// Wall-clock time after which a verification gives up. Giving up is not a verdict: the program may be safe.
    /// `None`, the default, sets no limit, and reads no clock.
    pub time: Option<Duration>,
    /// Lines of the log that are kept, one half from the beginning and one half from the end.
    pub log_lines: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            steps: 1_000_000,
            states: 100_000,
            memory: 256 << 20,
            fuel: 8_000_000_000,
            time: None,
            log_lines: 20_000,
        }
    }
}

impl Limits {
    /// Returns the default limits.
    #[must_use]
    pub fn new() -> Self {
        Limits::default()
    }

    /// Sets [`Limits::steps`].
    #[must_use]
    pub const fn steps(mut self, steps: u64) -> Self {
        self.steps = steps;
        self
    }

    /// Sets [`Limits::states`].
    #[must_use]
    pub const fn states(mut self, states: usize) -> Self {
        self.states = states;
        self
    }

    /// Sets [`Limits::memory`].
    #[must_use]
    pub const fn memory(mut self, memory: usize) -> Self {
        self.memory = memory;
        self
    }

    /// Sets [`Limits::fuel`].
    #[must_use]
    pub const fn fuel(mut self, fuel: u64) -> Self {
        self.fuel = fuel;
        self
    }

    /// Sets [`Limits::time`].
    #[must_use]
    pub fn time(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.time = time.into();
        self
    }

    /// Sets [`Limits::log_lines`].
    #[must_use]
    pub const fn log_lines(mut self, log_lines: usize) -> Self {
        self.log_lines = log_lines;
        self
    }
}

/// The environment that a program is verified against.
#[derive(Clone, Copy, Debug)]
pub struct Env<'a> {
    /// The layout of the program's context.
    pub context: &'a ContextLayout,
    /// The maps that LD_IMM64 refers to by index.
    pub maps: &'a [KnownMap],
    /// The types of objects that programs own, and to which maps and programs refer.
    pub types: &'a [OwnedType],
    /// The types that the program may make objects of: the program's number of the type, and an index of
    /// [`Env::types`]. Ascending. A number may occur twice, with a type that has an instance for each CPU and a type
    /// that has not.
    pub local_types: &'a [(u32, u32)],
    /// Helpers, called by id.
    pub helpers: &'a Helpers,
    /// Functions of the host, called by index (CALL src 2).
    pub host_functions: &'a [super::helpers::HelperProto],
    /// The signature of each subprogram that is verified on its own. A subprogram with `None`, or beyond the end, is a
    /// static function, which is walked in the context of each call.
    pub global_functions: &'a [Option<GlobalFunc>],
    /// The source lines of instructions, ascending by `insn`; may be empty.
    pub lines: &'a [SourceLine],
    /// Bytes of stack in each frame.
    pub frame_bytes: u32,
    /// Accepts a program with run-time checks ([`bpf_analysis::Facts::checks`], [`bpf_analysis::Facts::needs_budget`])
    /// if only offsets into a context region or a global variable, or only termination, cannot be proven. Types are
    /// always proven. The embedder must carry the checks out.
    pub hybrid: bool,
    /// Accepts programs that reveal addresses, as the kernel does for root (`allow_ptr_leaks`, `allow_uninit_stack`). A
    /// pointer may be stored outside the stack, compared with anything, returned, and passed as a number; it is an
    /// unknown number there. Stack that was never written may be read. Every access is still proven.
    pub privileged: bool,
    /// Accepts calls of functions with [`crate::Effect::Sleeps`]. The program may make no tail calls, since their
    /// targets are not kept while it sleeps. The embedder promises that, while the program sleeps, its maps, its
    /// context with all regions, and its code stay as they are, and nobody else uses the regions.
    pub sleepable: bool,
    /// The run of a sleepable program may yield at the heads of loops ([`bpf_analysis::Facts::yields`]): it sleeps
    /// there, as in a call with [`crate::Effect::Sleeps`]. No effect on programs that are not sleepable.
    pub yields: bool,
    /// Whether the program returns nothing, so that r0 is not checked at its end. Has an effect only where
    /// [`ContextLayout::returns`] is `None`.
    pub void: bool,
    /// The program's exception callback. The main program contains a call of it, possibly one that is never reached.
    /// The callback receives the thrown number ([`crate::Ret::Thrown`]), and its result is the program's result.
    /// Without a callback, the thrown number is the result.
    pub exception: Option<SubprogId>,
    /// Limits on the work.
    pub limits: Limits,
    /// Records what is known of numbers, addresses and loops, for an optimiser ([`bpf_analysis::Facts::values`],
    /// [`bpf_analysis::Facts::loops`]). A program that takes many steps gets no such facts, since recording them
    /// prevents pruning of paths that differ in numbers only.
    pub values: bool,
    /// Records a line of text for each step.
    pub log: bool,
    /// Records the abstract state before each step, for `bpf_verifier::Verified::admits`.
    pub record_states: bool,
    /// Walks every path to its end and every loop round by round, without pruning and loop invariants. Tests compare
    /// both of these with the exhaustive walk.
    pub exhaustive: bool,
    /// The number of steps after which the walk of a program without loops widens numbers in which paths differ, so
    /// that code after a join is walked once. If the program is then refused, it is walked again without widening.
    pub merge_after: u64,
}

impl<'a> Env<'a> {
    /// The default of [`Env::merge_after`].
    // Chosen by the steps of all sample programs. With a lower bound, a program of 10,000 steps takes a hundred more;
    // with 16,384, a program of 28,000 steps takes 4,000 more.
    pub const MERGE_AFTER: u64 = 12 * 1024;

    /// Defaults: no maps, no host functions, 512 bytes of stack a frame (as Linux), default limits.
    pub fn new(context: &'a ContextLayout, helpers: &'a Helpers) -> Env<'a> {
        Env {
            context,
            maps: &[],
            types: &[],
            local_types: &[],
            helpers,
            host_functions: &[],
            global_functions: &[],
            lines: &[],
            frame_bytes: 512,
            hybrid: false,
            privileged: false,
            sleepable: false,
            yields: false,
            void: false,
            exception: None,
            limits: Limits::default(),
            values: false,
            log: false,
            record_states: false,
            exhaustive: false,
            merge_after: Self::MERGE_AFTER,
        }
    }

    /// The promised minimum length of each region; 0 beyond the last one.
    #[doc(hidden)]
    pub fn min_lens(&self) -> [u32; Region::MAX_REGIONS] {
        let mut lens = [0; Region::MAX_REGIONS];
        for (len, r) in lens.iter_mut().zip(&self.context.regions) {
            *len = r.min_len;
        }
        lens
    }

    /// The type of an object, by index.
    #[doc(hidden)]
    pub fn class(&self, class: u32) -> Option<&'a OwnedType> {
        self.types.get(class as usize)
    }

    /// The type of objects with the program's number, with an instance for each CPU or without.
    #[doc(hidden)]
    pub fn local_type(&self, number: u32, per_cpu: bool) -> Option<u32> {
        let first = self.local_types.partition_point(|ty| ty.0 < number);
        let of_number = self.local_types[first..].iter().take_while(|ty| ty.0 == number);
        of_number.map(|ty| ty.1).find(|class| self.class(*class).is_some_and(|ty| ty.per_cpu == per_cpu))
    }

    #[doc(hidden)]
    pub fn region(&self, r: u8) -> &'a Region {
        &self.context.regions[usize::from(r)]
    }
}
