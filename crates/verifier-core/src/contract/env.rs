//! What a program is verified against: its context, maps, helpers, signatures and limits, all as data.
//!
//! Problem: the verifier must know what the host offers without knowing the host. Approach: plain descriptions that
//! the embedder fills in (from BTF, from its map table, from Rust types). The verifier believes them: a description
//! that promises more than the host keeps breaks safety, so each item says what it promises.

mod check;

pub use check::EnvironmentError;

use std::borrow::Cow;
use std::time::Duration;

use bpf_analysis::{BoundsPlace, HeaderPlaces, RegionBounds};
use bpf_isa::{InsnIdx, SubprogId};
use bpf_uapi::{MapType, OwnedField, OwnedType};

use super::access::Access;
use super::helpers::Helpers;

/// What a load of a context field yields.
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
    /// A pointer to a socket, or null. Promised: it has [`crate::SOCKET_BYTES`] bytes, is 8-byte aligned, and is there
    /// to the end of the run.
    Socket,
}

/// A field of the context as the program sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    /// Its name, for messages.
    pub name: Cow<'static, str>,
    /// Byte offset in the program's view.
    pub offset: u32,
    /// Size in bytes in the program's view. Pointer and length fields are loaded whole.
    pub size: u32,
    /// What the program may do to it. Only scalars may be written.
    pub access: Access,
    /// What it holds.
    pub kind: FieldKind,
    /// Byte offset in the host's own structure, passed through to the facts.
    pub host_offset: u32,
    /// Size in bytes there: of a number the same, of a pointer 8, also behind a 4-byte `data` field, of a length 4 or
    /// 8.
    pub host_size: u32,
}

/// Memory of which the length is known only at run time: a packet, the metadata before it, a byte slice.
///
/// Promised: while the program runs, nobody else uses it if it is writable, and nobody else writes it if not; so it is
/// no part of another region, unless neither is writable, of the context's fields, of a map's value, or of what
/// functions return.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    /// Its name, for messages.
    pub name: Cow<'static, str>,
    /// Whether the program may write to it.
    pub writable: bool,
    /// Promised: never longer than this many bytes. At most [`Region::MAX_LEN`].
    pub max_len: u32,
    /// Promised: never shorter than this many bytes. A program may rely on them without a comparison.
    pub min_len: u32,
    /// Promised: it starts at a multiple of this power of two. 1 promises nothing. Atomics need it.
    pub align: u32,
    /// The region at whose start this one ends (metadata before a packet); `None` if it has an end of its own.
    pub ends_at_start_of: Option<u8>,
}

impl Region {
    /// The longest region: keeps address arithmetic far from wrapping.
    pub const MAX_LEN: u32 = 1 << 30;
    /// At most this many regions in a context.
    pub const MAX_REGIONS: usize = 8;
}

/// What r1 (and r2) hold when the program starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ContextLayout {
    /// Its name, for messages and for the compatibility of tail calls.
    pub name: Cow<'static, str>,
    /// r1 is the start and r2 the length of region 0; there are no fields. Otherwise r1 points to the fields.
    pub raw: bool,
    /// The fields, ascending by offset, disjoint.
    pub fields: Vec<Field>,
    /// The regions that fields refer to.
    pub regions: Vec<Region>,
    /// Where LD_ABS and LD_IND find the headers of region 0, which they read; `None` forbids both.
    pub legacy_loads: Option<HeaderPlaces>,
    /// The values the main program may return, signed; `None` allows all.
    pub returns: Option<(i64, i64)>,
}

impl ContextLayout {
    /// r1 = pointer to a buffer, r2 = its length.
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

    /// Whether it leads to other memory than its own, which only a verified program can be trusted with.
    pub fn points_elsewhere(&self) -> bool {
        !self.raw && (!self.regions.is_empty() || self.fields.iter().any(|field| field.kind != FieldKind::Scalar))
    }

    /// Where a run finds the bounds of a region, for checks made then: from the fields that point to it.
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

/// A map the program may refer to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownMap {
    /// Its name, for messages.
    pub name: Cow<'static, str>,
    /// Its type.
    pub kind: MapType,
    /// Bytes in a key.
    pub key_size: u32,
    /// Bytes in a value. Promised: a value found stays mapped, at this size and 8-byte aligned, while the program
    /// runs.
    pub value_size: u32,
    /// Number of elements. Promised, of an array: at least as many exist.
    pub max_entries: u32,
    /// What *programs* may do to it (BPF_F_RDONLY_PROG, BPF_F_WRONLY_PROG).
    pub access: Access,
    /// Byte offset of the lock in the value, a `struct bpf_spin_lock` or a `struct bpf_res_spin_lock`.
    pub spin_lock: Option<u32>,
    /// That lock is a `struct bpf_res_spin_lock`.
    pub resilient_lock: bool,
    /// Byte offset of a `struct bpf_timer` in the value.
    pub timer: Option<u32>,
    /// Byte offset of a `struct bpf_wq` in the value.
    pub work: Option<u32>,
    /// The fields in the value that own objects, ascending; what they lead to are indices of [`Env::types`]. Promised:
    /// each leads to an object of that type, or is null or empty, and only the functions over them change it.
    pub fields: Vec<OwnedField>,
    /// For maps of maps: the shape every inner map has.
    pub inner: Option<Box<KnownMap>>,
    /// Of an arena: its memory.
    pub arena: Option<KnownArena>,
    /// The value of a single-element array that can no longer change: loads from it yield constants.
    pub frozen: Option<Vec<u8>>,
    /// Of a map of instructions: what each of its entries names, which can no longer change.
    pub targets: Vec<InsnIdx>,
}

impl KnownMap {
    /// The first byte of a value from `from` on that programs may not read or write: the end, or a field's.
    #[doc(hidden)]
    pub fn plain_until(&self, from: i64) -> u32 {
        let fields =
            self.spin_lock.into_iter().chain(self.deferred()).chain(self.fields.iter().map(|field| field.offset));
        fields.filter(|at| i64::from(*at) > from).min().unwrap_or(self.value_size)
    }

    /// Where in a value are a timer and work for later.
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

/// The memory of an arena. Promised: the window lies at one place while programs run, with
/// [`bpf_analysis::ArenaFact::GUARD`] bytes before and behind it that programs may read and write as well, none of
/// which is used for anything else; it begins at a multiple of 8.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KnownArena {
    /// Bytes that programs may allocate of.
    pub bytes: u64,
    /// Bytes in the window: see [`bpf_analysis::ArenaFact::window`].
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
    /// A pointer to this many readable and writable bytes, or null.
    Mem(u32),
    /// The same, and not null (`__arg_nonnull`).
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

/// How much work a verification may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Instructions walked, over all paths (Linux: 1 million).
    pub steps: u64,
    /// States kept for pruning and branches not yet walked.
    pub states: usize,
    /// Bytes that a verification holds: those states, other lists that grow with the walk, and tables as long as the
    /// program.
    pub memory: usize,
    /// Work of all walks of a verification together, in units of about a nanosecond of a release build: steps, values
    /// of states that are copied and compared, and rows that the linear solver combines. Fuel depends on the program,
    /// its contract and the limits alone, and so the verdict does not depend on the machine or its load.
    pub fuel: u64,
    /// Wall-clock time after which a verification gives up, for a reason that is no verdict: the program may be safe.
    /// `None`, the default: never, and no clock is read.
    pub time: Option<Duration>,
    /// Lines of the log that are kept: half of them from the beginning, half from the end.
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

/// Everything a program is verified against.
#[derive(Clone, Copy, Debug)]
pub struct Env<'a> {
    /// What the program starts with.
    pub context: &'a ContextLayout,
    /// The maps that LD_IMM64 refers to by index.
    pub maps: &'a [KnownMap],
    /// The types of objects that programs own and that maps and programs name.
    pub types: &'a [OwnedType],
    /// By the program's number of a type: the index of those that it may make objects of; of one number there may be
    /// one that has an instance for each CPU and one that has not. Ascending.
    pub local_types: &'a [(u32, u32)],
    /// Functions called by id.
    pub helpers: &'a Helpers,
    /// Functions called by index (CALL src 2).
    pub host_functions: &'a [super::helpers::HelperProto],
    /// By subprogram; `None`, or beyond the end, is a static function, walked in the context of each call.
    pub global_functions: &'a [Option<GlobalFunc>],
    /// Where instructions came from, ascending by `insn`; may be empty.
    pub lines: &'a [SourceLine],
    /// Bytes of stack a frame has.
    pub frame_bytes: u32,
    /// Where only an offset into a context region or a global variable, or only termination, is not proven, accept the
    /// program with run-time checks ([`bpf_analysis::Facts::checks`], [`bpf_analysis::Facts::needs_budget`]) instead
    /// of refusing it. Types are always proven. The embedder must carry the checks out.
    pub hybrid: bool,
    /// Accept programs that show addresses, as the kernel does of root (`allow_ptr_leaks`, `allow_uninit_stack`): a
    /// pointer may be stored outside the stack, compared with anything, returned and passed as a number, and is an
    /// unknown number there; stack that was never written may be read. Every access is still proven.
    pub privileged: bool,
    /// The program is a function that returns nothing: what r0 holds at its end is nobody's. Only where
    /// [`ContextLayout::returns`] asks for nothing.
    pub void: bool,
    /// The program's exception callback, which the main program has a call of, be it one that is never reached: it is
    /// given what was thrown ([`crate::Ret::Thrown`]), and returns what the program does. Without one, what was thrown
    /// is that.
    pub exception: Option<SubprogId>,
    /// Limits on the work.
    pub limits: Limits,
    /// Record what is known of numbers, addresses and loops, for an optimiser ([`bpf_analysis::Facts::values`],
    /// [`bpf_analysis::Facts::loops`]). Of programs that take many steps nothing is: paths that differ in numbers could
    /// not be dropped.
    pub values: bool,
    /// Record a line of text per step.
    pub log: bool,
    /// Record the abstract state before each step, for `bpf_verifier::Verified::admits`.
    pub record_states: bool,
    /// Walk every path to its end, and loops round by round: what dropping paths and guessing about loops are tested
    /// against.
    pub exhaustive: bool,
    /// The steps after which the walk of a program without loops gives up numbers that alone keep paths apart, to walk
    /// what comes after them once. If it is refused then, it is repeated without.
    pub merge_after: u64,
}

impl<'a> Env<'a> {
    /// [`Env::merge_after`] by default.
    // Chosen by the steps of all sample programs: with less, one that takes ten thousand takes a hundred more; with
    // 16 384, one that takes 28 thousand takes four thousand more.
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

    /// What is promised of every region's length.
    #[doc(hidden)]
    pub fn min_lens(&self) -> [u32; Region::MAX_REGIONS] {
        let mut lens = [0; Region::MAX_REGIONS];
        for (len, r) in lens.iter_mut().zip(&self.context.regions) {
            *len = r.min_len;
        }
        lens
    }

    /// The type of an object.
    #[doc(hidden)]
    pub fn class(&self, class: u32) -> Option<&'a OwnedType> {
        self.types.get(class as usize)
    }

    /// The type that objects of the program's number have: with an instance for each CPU, or without.
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
