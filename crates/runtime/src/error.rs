//! Errors, by their place: the object, the link, the program's structure, the verifier's verdict, the compiler, the
//! run.

use bpf_isa::InsnIdx;
use bpf_quiesce::OtherDomain;
use std::error::Error;
use std::fmt;

/// Why an engine could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// This host has no JIT backend; choose [`crate::Mode::Interpreter`].
    #[error("no JIT backend for this architecture: use the interpreter")]
    NoBackend,
    /// [`crate::Config::features`] names instructions that this CPU does not have.
    #[error("this CPU does not have {}: leave it out of `Config::features`", .missing.join(", "))]
    Features {
        /// The missing extensions.
        missing: Vec<&'static str>,
    },
    /// More execution slots than [`bpf_quiesce::MAX_SLOTS`], or than there is memory for.
    #[error("{asked} execution slots cannot be had; at most {max} are possible")]
    Slots {
        /// [`crate::Config::max_slots`].
        asked: u32,
        /// The upper limit.
        max: u32,
    },
    /// [`crate::Config::tick`] is outside of its range.
    #[error("deadlines by ticks of {tick:?}: they must be between {min:?} and {max:?} (`Config::tick`)")]
    Tick {
        /// [`crate::Config::tick`].
        tick: std::time::Duration,
        /// The lower bound, inclusive.
        min: std::time::Duration,
        /// The upper bound, inclusive.
        max: std::time::Duration,
    },
    /// [`crate::Config::budget`] or [`crate::Config::hybrid_budget`] is 0: no run could take a loop or make a call.
    #[error("`Config::budget` and `Config::hybrid_budget` must be at least 1")]
    NoBudget,
    /// Two settings of [`crate::Config`] that exclude each other.
    #[error("contradictory settings: {what}")]
    Contradiction {
        /// The settings, and the remedy.
        what: &'static str,
    },
    /// No executable memory could be mapped.
    #[error("executable memory: {0}")]
    Memory(#[from] bpf_prog_pack::Error),
    /// The thread that samples for [`crate::Config::metrics`] could not be started.
    #[error("the thread that samples runs (`Config::metrics`): {0}")]
    Thread(#[source] std::io::Error),
    /// A file or a registration of [`crate::Config::debug`] could not be set up.
    #[error("debugging: {0}")]
    #[cfg(native)]
    Debug(#[from] bpf_debug::Error),
}

/// Why a deadline was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeadlineError {
    /// The deadline has passed.
    #[error("the deadline passed {by:?} ago")]
    Past {
        /// The time since then.
        by: std::time::Duration,
    },
    /// The clock thread could not be started.
    #[error("no thread for deadlines: {0}")]
    Thread(std::io::Error),
    /// The calling process is a forked child, where nothing runs.
    #[error("an engine runs nothing in a forked child")]
    Forked,
}

/// Why an object or program was not loaded. Nothing of it stays behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The program's code needs more than is left to its account ([`crate::Loader::account`]).
    #[error("program `{program}`: {full}")]
    MemoryFull {
        /// The program.
        program: String,
        /// The bytes needed and the bytes left.
        full: bpf_quiesce::MemoryFull,
    },
    /// The operating system gave no memory for the program's counters ([`crate::Config::metrics`]).
    #[error("program `{program}`: the system has no {needed} bytes for its counters")]
    NoMemory {
        /// The program.
        program: String,
        /// Bytes needed: 64 for each execution slot ([`crate::Config::max_slots`]).
        needed: u64,
    },
    /// The account belongs to another engine.
    #[error("account `{account}` is another engine's: make it with `Engine::account` of the linker's engine")]
    OtherAccount {
        /// Its name.
        account: String,
    },
    /// The calling process is a forked child of the one that made the engine, whose code and maps are its parent's.
    #[error("a forked child loads nothing into an engine of its parent's: make an engine in the child")]
    Forked,
    /// The object file.
    #[error(transparent)]
    Object(#[from] bpf_object::ObjectError),
    /// The program is not structurally valid.
    #[error("program `{program}`: {source}")]
    Structure {
        /// The program.
        program: String,
        /// The instruction that is not valid, and the reason.
        source: bpf_isa::ValidateError,
    },
    /// The bytes are not instructions.
    #[error("program `{program}`: {source}")]
    Decode {
        /// The program.
        program: String,
        /// The place of the bytes that are no instruction, and the reason.
        source: bpf_isa::DecodeError,
    },
    /// The verifier refused it.
    #[error("program `{program}` was refused by the verifier:\n{source}")]
    Verifier {
        /// The program.
        program: String,
        /// The place, the reason and the remedy.
        source: Box<bpf_verifier::VerifyError>,
    },
    /// The object carries no proof of the program, or one that does not hold, and the loader does not search
    /// ([`crate::Proofs::Require`]).
    #[error("program `{program}`: {source}")]
    Proof {
        /// The program.
        program: String,
        /// The part that is missing, differs or does not hold.
        source: bpf_verifier::ProofError,
    },
    /// The verifier gave up at [`Limits::time`](crate::Limits::time), or where the system refused memory, before there
    /// was a verdict: the program may be safe.
    #[error("program `{program}` was not verified in time; whether it is safe is not known:\n{source}")]
    VerdictUnknown {
        /// The program.
        program: String,
        /// The place where most of the work was done.
        source: Box<bpf_verifier::VerifyError>,
    },
    /// A context with pointers needs the verifier to tell which access reads one.
    #[error("program `{program}`: programs on {context} cannot be loaded without verifying them")]
    NeedsVerifier {
        /// The program.
        program: String,
        /// The context.
        context: String,
    },
    /// The object was compiled against another version of the context's structure, and accesses a field at whose offset
    /// the host has another field. Compile it with the host's header
    /// ([`BpfContext::c_struct`](crate::BpfContext::c_struct)). Where the header has the attribute
    /// `preserve_access_index`, as the host's has, the object is adapted to the host as it is loaded, and this error
    /// does not occur.
    #[error("program `{program}`{source}")]
    ContextLayout {
        /// The program.
        program: String,
        /// The place, and the fields of both structures there.
        source: Box<LayoutMismatch>,
    },
    /// The object accesses the context but has no type information of the context's structure, so the version that it
    /// was compiled against is unknown.
    #[error(
        "program `{program}`{}: the object does not describe `struct {context}`, which may be another one than the host's: compile it with -g, or load it with `Loader::assume_layout`",
        at(.insn, .line)
    )]
    ContextUntyped {
        /// The program.
        program: String,
        /// The structure.
        context: String,
        /// The first load or store of the context; `None` for a program that is not verified, whose accesses are
        /// unknown.
        insn: Option<bpf_isa::InsnIdx>,
        /// Its source line.
        line: Option<String>,
    },
    /// The object declares a function of the host with another prototype than the host's. Compile it with the host's
    /// header.
    #[error("program `{program}`{source}")]
    HostPrototype {
        /// The program.
        program: String,
        /// The call, and the prototypes of both sides.
        source: Box<PrototypeMismatch>,
    },
    /// An arena needs the verifier to tell which accesses are made in it.
    #[error("program `{program}`: programs with an arena{} cannot be loaded without verifying them", quoted(.arena))]
    ArenaNeedsVerifier {
        /// The program.
        program: String,
        /// The arena's map; `None` if it casts addresses without referring to one.
        arena: Option<String>,
    },
    /// An exception needs the verifier to tell which calls may throw it.
    #[error("program `{program}`: programs that throw (`bpf_throw`) cannot be loaded without verifying them")]
    ThrowNeedsVerifier {
        /// The program.
        program: String,
    },
    /// The program was loaded for packets in fragments ([`crate::XdpFrags`]), and its section does not say that it
    /// supports them (`xdp.frags`).
    #[error(
        "program `{program}` is in section `{section}`, so it knows packets in one piece only: load it for `Xdp`, or put it into a section `xdp.frags`"
    )]
    OnePiece {
        /// The program.
        program: String,
        /// Its section.
        section: String,
    },
    /// The program calls a helper that is not registered.
    #[error("program `{program}`, instruction {insn}: helper {id}{}{} is not supported here; register one with `Linker::func`", helper(*.id), in_line(.line))]
    UnknownHelper {
        /// The program.
        program: String,
        /// The call.
        insn: InsnIdx,
        /// The id.
        id: u32,
        /// File, line and text of the call, if the object has them.
        line: Option<String>,
    },
    /// The program calls a host function that is not registered.
    #[error("program `{program}` calls host function `{name}`; register it with `Linker::func_named`")]
    UnknownHostFunction {
        /// The program.
        program: String,
        /// The name in `.ksyms`.
        name: String,
    },
    /// The program refers to something that a program without an object cannot refer to.
    #[error("program `{program}`, instruction {insn}: {what}")]
    Unresolved {
        /// The program.
        program: String,
        /// The instruction.
        insn: InsnIdx,
        /// The unresolved reference.
        what: String,
    },
    /// A map could not be created, or a given one does not fit.
    #[error("{}", named(.map, .source))]
    Map {
        /// The map.
        map: String,
        /// The map's error.
        source: bpf_maps::MapError,
    },
    /// The programs that are loaded together exceed the limit of code. A function counts once for each program that
    /// calls it.
    #[error(
        "the programs have more than {max} instructions, source lines and relocations together: load fewer at once"
    )]
    TooMuchCode {
        /// The limit.
        max: usize,
    },
    /// The program cannot be contained ([`crate::Loader::contained`]).
    #[error("program `{program}` cannot be contained: {source}{}", .line.as_ref().map_or_else(String::new, |line| format!(" ({line})")))]
    Uncontained {
        /// The program.
        program: String,
        /// The instruction that cannot be confined, and the reason.
        source: Box<bpf_verifier::Uncontained>,
        /// The source line.
        line: Option<String>,
    },
    /// [`crate::Loader::contained`] with [`crate::Loader::unverified`]: without the verifier, the objects of its
    /// pointers are unknown.
    #[error("program `{program}` is to be contained and not verified: leave out `Loader::unverified` or `contained`")]
    UnverifiedContained {
        /// The program.
        program: String,
    },
    /// [`crate::Loader::contained`] with [`crate::Loader::privileged`]: the first is for programs of strangers, the
    /// second for programs of the host's own developers.
    #[error("program `{program}` is to be contained and privileged: leave out `Loader::privileged` or `contained`")]
    PrivilegedContained {
        /// The program.
        program: String,
    },
    /// A contained program makes tail calls, which only patched jumps make without an indirect branch.
    #[error(
        "program `{program}` is to be contained and makes tail calls, which needs `Config::direct_tail_calls` and \
         cross-core barriers (membarrier)"
    )]
    ContainedTailCalls {
        /// The program.
        program: String,
    },
    /// [`crate::Loader::budget`] was 0: no run could take a loop or make a call.
    #[error("a budget must be at least 1")]
    NoBudget,
    /// [`crate::Instantiate::budget`] for a program that was compiled without counting.
    #[error("program `{program}` does not count its work: compile it with `Loader::budget`, or set `Config::budget`")]
    Uncounted {
        /// The program.
        program: String,
    },
    /// A method of an interface that returns nothing ([`crate::interfaces`]) was loaded without its interface and does
    /// not set r0 to a number.
    #[error("program `{program}` returns nothing: load and call it by its interface (`#[interface]`)")]
    NoResult {
        /// The program.
        program: String,
    },
    /// A map, prog array or [`crate::MapSet`] of another engine.
    #[error(transparent)]
    OtherDomain(#[from] OtherDomain),
    /// The [`crate::MapSet`] was made for another object than the one that is loaded.
    #[error("the map set was made for another object: {problem}; make one with `MapSet::for_object`")]
    MapSet {
        /// The difference between the two objects.
        problem: String,
    },
    /// Initial contents of another length ([`crate::MapSet::contents`], [`crate::MapSet::global`]).
    #[error("the contents of {map} have {expected} bytes; {given} were given")]
    Contents {
        /// The map, and the variable.
        map: String,
        /// Bytes of the map or variable.
        expected: usize,
        /// Bytes that were given.
        given: usize,
    },
    /// An instance was given other constants than its module's programs were verified with.
    #[error(
        "map `{map}` has other constants than the module was compiled with: compile a module with \
         these values (`Object::set_global`), or one for any values (`Loader::open_constants`)"
    )]
    Constants {
        /// The map.
        map: String,
    },
    /// A setting of the load names a map, prog array or global variable that the object does not have.
    #[error(transparent)]
    NotFound(#[from] NotFound),
    /// A program or prog array of the new instance is not of the type that it was asked for with.
    #[error(transparent)]
    Lookup(LookupError),
    /// The machine code could not be made.
    #[cfg(any(native, feature = "cross"))]
    #[error("program `{program}`: {source}")]
    Compile {
        /// The program.
        program: String,
        /// The compiler's error.
        source: bpf_jit::CompileError,
    },
    /// The machine code could not be placed.
    #[error("program `{program}`: executable memory: {source}")]
    Place {
        /// The program.
        program: String,
        /// The error of the allocator of executable memory.
        source: bpf_prog_pack::Error,
    },
    /// The program may sleep, and is not verified.
    #[error("program `{program}` {what}: only a verified program may sleep")]
    SleepNeedsVerifier {
        /// The program.
        program: String,
        /// "is sleepable", or "calls `f`, which may sleep".
        what: String,
    },
    /// A run of it could take more machine stack than allowed.
    #[error("program `{program}` may take {needed} bytes of machine stack; at most {limit} are allowed")]
    Stack {
        /// The program.
        program: String,
        /// Upper bound on the stack of a run, in bytes.
        needed: u64,
        /// The limit.
        limit: u64,
    },
    /// A prog array's slot could not be set.
    #[error("prog array `{array}`: {source}")]
    ProgArray {
        /// The array.
        array: String,
        /// The prog array's error.
        source: ProgArrayError,
    },
    /// A bug in this library.
    #[error("internal error: {0}")]
    Internal(String),
}

/// A part of a module has no serialised form ([`crate::Module::serialize`]).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}there is no serialised form of {what}", .program.as_ref().map_or_else(String::new, |name| format!("program `{name}`: ")))]
#[non_exhaustive]
pub struct SerializeError {
    /// The program that the part belongs to; `None`: the module.
    pub program: Option<String>,
    /// The part without a serialised form.
    pub what: String,
}

/// Why bytes are no module for this linker ([`crate::Module::deserialize`]). The remedy is to compile the object again
/// and to serialise the new module.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeserializeError {
    /// The bytes do not begin as a serialised module does.
    #[error("the bytes are no serialised module")]
    NoModule,
    /// Another version of this library wrote them, or another build of the executable or shared library that it is in.
    #[error("the module was serialised by another version or build of this library: compile it again")]
    Version,
    /// The code is for another processor, or uses instructions that this one does not have.
    #[error("the module was compiled for another processor, or with other `Config::features`: compile it again")]
    Cpu,
    /// The engine's configuration differs from that of the engine that compiled the module.
    #[error("the module was compiled in an engine with another configuration: compile it again")]
    Config,
    /// The programs are for another context, or for another version of it.
    #[error("the module was compiled for another context: compile it again")]
    Context,
    /// The checksum does not match.
    #[error("the bytes of the module have changed since they were written")]
    Changed,
    /// The bytes behind the header are no module, although their checksum matches.
    #[error("the bytes of the module are malformed: compile the object again")]
    Malformed,
    /// A map that the module's instances share cannot be made.
    #[error("map `{map}` of the module: {problem}")]
    Map {
        /// Its name.
        map: String,
        /// The reason, for a reader.
        problem: String,
    },
    /// The linker has no such function, or one with another prototype.
    #[error(
        "the module calls `{function}`, which the linker does not have with the prototype that it was compiled for"
    )]
    Function {
        /// Its name.
        function: String,
    },
}

/// Why an instance was not reset ([`crate::Instance::reset`]).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResetError {
    /// A run is in one of the instance's programs.
    #[error(
        "a run of program `{program}` is going on: reset the instance when it is over, or end it (`Program::interrupt`)"
    )]
    Running {
        /// The program.
        program: String,
    },
    /// The calling thread is in a run, possibly of one of the instance's programs.
    #[error("an instance is not reset from within a run: a host function cannot know which programs it is in")]
    InRun,
    /// Runs that began before the reset did not end in time, and may be in one of the instance's programs.
    #[error(
        "runs that may be in the instance did not end within {waited:?}: drop other handles of its programs, or try again"
    )]
    Busy {
        /// How long the reset waited for the runs.
        waited: std::time::Duration,
    },
    /// Another thread is resetting the instance.
    #[error("another thread is resetting the instance")]
    Resetting,
    /// The calling process is a forked child of the one that made the engine.
    #[error("a forked child cannot reset an instance of its parent")]
    Forked,
    /// The initial contents of a map could not be restored.
    #[error(transparent)]
    Map(Box<LoadError>),
}

/// Why a pool has no instance to lend ([`crate::InstancePool::take`]).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// All instances are in use.
    #[error("all {size} instances of the pool are in use: drop one, or make a larger pool (`Module::pool`)")]
    Empty {
        /// How many instances the pool has.
        size: usize,
    },
    /// The pool has given up an instance of which others have handles, and another one cannot be made.
    #[error("an instance for the pool: {0}")]
    Load(#[source] Box<LoadError>),
}

impl LoadError {
    /// The program of this name is not structurally valid.
    pub(crate) fn structure(program: &str) -> impl FnOnce(bpf_isa::ValidateError) -> LoadError {
        move |source| LoadError::Structure { program: program.to_owned(), source }
    }
}

/// Returns the message of a map's error with the map's name once, since most errors begin with it. Adds a remedy for a
/// size that is left to the loader, and for a memory limit.
fn named(map: &str, source: &bpf_maps::MapError) -> String {
    let mut text = source.to_string();
    if !text.contains(&format!("{map:?}")) {
        text = format!("map {map:?}: {text}");
    }
    if text.ends_with("max_entries 0") {
        text += ", which is for who loads the object to set (`Object::set_max_entries`, `bpf --max-entries`)";
    }
    if let bpf_maps::MapError::MemoryLimit { .. } = source {
        text += "; if fewer entries will do, say so (`Object::set_max_entries`, `bpf --max-entries MAP=N`)";
    }
    text
}

fn one_of(have: &[String]) -> String {
    if have.is_empty() { String::new() } else { format!("; there is {}", have.join(", ")) }
}

/// Why a helper id or name could not be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The id is taken.
    #[error(transparent)]
    DuplicateId(#[from] bpf_verifier::DuplicateHelper),
    /// The name is taken.
    #[error("a host function named `{name}` is registered already")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// Engines implement the helper of this id themselves ([`crate::SPECIAL_HELPERS`]), so a function under it would
    /// never be called.
    #[error("helper id {id}{} is reserved: engines do not call a function for it; use another id", helper(*.id))]
    Reserved {
        /// The id.
        id: u32,
    },
    /// A description cannot say what this function takes ([`crate::Linker::describe`]), or says what no function takes
    /// ([`crate::Linker::func_described`]).
    #[error(
        "function `{name}` has no description: its parameters are not integers, byte slices and plain structures, or its \
         name is none in C"
    )]
    Undescribed {
        /// The function.
        name: String,
    },
    /// The id is too large for the JIT's symbols.
    #[error("helper id {id} is above {max}")]
    IdTooLarge {
        /// The id.
        id: u32,
        /// The largest id.
        max: u32,
    },
}

/// Why a prog array's slot was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProgArrayError {
    /// The array's size is not possible.
    #[error("max_entries is {entries}; it must be between 1 and {max}")]
    Entries {
        /// The size asked for.
        entries: u32,
        /// The largest size.
        max: u32,
    },
    /// An array that is to be taken over has another size ([`crate::MapSet::reuse_array`]).
    #[error("it has {given} slots where the object declares {declared}; copy it (`MapSet::copy_array`)")]
    Size {
        /// Slots that the object declares.
        declared: u32,
        /// Slots of the array.
        given: u32,
    },
    /// The array needs more memory than one object may take; nothing was allocated.
    #[error("{needed} bytes are needed; the limit is {limit}")]
    TooLarge {
        /// Bytes needed.
        needed: u64,
        /// [`crate::Config::object_memory_limit`].
        limit: u64,
    },
    /// The array needs more memory than is left to the engine's maps and prog arrays; nothing was allocated.
    #[error(transparent)]
    MemoryFull(#[from] bpf_quiesce::MemoryFull),
    /// The operating system gave no memory.
    #[error("the system has no {needed} bytes")]
    NoMemory {
        /// Bytes needed.
        needed: u64,
    },
    /// The index is not below the array's size.
    #[error("index {index} is out of range; the array has {entries} entries")]
    OutOfRange {
        /// The index.
        index: u32,
        /// The array's size.
        entries: u32,
    },
    /// The slot is empty already (the kernel's ENOENT).
    #[error("slot {index} is empty")]
    Empty {
        /// The index.
        index: u32,
    },
    /// The context of the program differs from that of programs that jump through this array.
    #[error("a program on a {program} context cannot be called from programs on {array}")]
    Context {
        /// The program's context.
        program: String,
        /// The array's.
        array: String,
    },
    /// The host type of the program differs from that of programs that jump through this array.
    #[error("a program for the host type `{program}` cannot be called from programs for `{array}`")]
    Host {
        /// The program's.
        program: String,
        /// The array's.
        array: String,
    },
    /// The program is interpreted, and programs that jump through this array are machine code, or the other way round.
    #[error("machine code and interpreted programs cannot call each other")]
    Mode,
    /// The program is a method of an interface that returns nothing, and a tail call needs a result.
    #[error("program `{program}` returns nothing, so no tail call can end in it")]
    NoResult {
        /// The program.
        program: String,
    },
    /// The program is sleepable: no program jumps to one.
    #[error("program `{program}` is sleepable and cannot be in a prog array: run it by `run_async`")]
    Sleepable {
        /// The program.
        program: String,
    },
    /// The program belongs to another engine.
    #[error(transparent)]
    OtherDomain(#[from] OtherDomain),
    /// Executable memory could not be changed.
    #[error("{0}")]
    Text(String),
}

/// No program, map, prog array or global variable has the requested name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no {what} named `{name}`{}", one_of(.have))]
#[non_exhaustive]
pub struct NotFound {
    /// The kind of thing, such as "program", "map" or "prog array".
    pub what: &'static str,
    /// The name that was asked for.
    pub name: String,
    /// The names there are.
    pub have: Vec<String>,
}

impl NotFound {
    pub(crate) fn new<N: Into<String>>(what: &'static str, name: &str, have: impl IntoIterator<Item = N>) -> NotFound {
        NotFound { what, name: name.to_owned(), have: have.into_iter().map(Into::into).collect() }
    }
}

/// Why an instance does not give out a program or a prog array ([`crate::Instance::program`],
/// [`crate::Instance::prog_array`]).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// The instance has none of this name.
    #[error(transparent)]
    NotFound(#[from] NotFound),
    /// The program was loaded for another context than the handle asked for.
    #[error("program `{program}` runs on a {loaded} context, not on {wanted}")]
    ContextMismatch {
        /// The program.
        program: String,
        /// The context it was loaded for.
        loaded: String,
        /// The context asked for.
        wanted: String,
    },
    /// The program is a method of an interface that returns nothing ([`crate::interfaces`]): its r0 may be an address.
    #[error("program `{program}` returns nothing: call it by its interface (`#[interface]`)")]
    NoResult {
        /// The program.
        program: String,
    },
    /// Programs on another context, or for another host type, jump through the prog array.
    #[error("prog array `{array}`: {source}")]
    ProgArray {
        /// The prog array.
        array: String,
        /// The difference.
        source: ProgArrayError,
    },
}

impl From<LookupError> for LoadError {
    fn from(error: LookupError) -> LoadError {
        match error {
            LookupError::NotFound(not_found) => LoadError::NotFound(not_found),
            other @ (LookupError::ContextMismatch { .. }
            | LookupError::NoResult { .. }
            | LookupError::ProgArray { .. }) => LoadError::Lookup(other),
        }
    }
}

/// Why a run ended without a result. [`RunError::kind`] groups the variants, [`RunError::origin`] names the place.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The budget is used up: that of the program ([`crate::Loader::budget`], [`crate::Config::budget`]) or the run's
    /// ([`crate::RunLimits::budget`]).
    #[error("the run's budget is spent{}", place(.insn, .origin))]
    Budget {
        /// The instruction, if known.
        insn: Option<InsnIdx>,
        /// In which program, if known.
        origin: Option<Box<Origin>>,
    },
    /// The run was interrupted: by `interrupt` of the engine, a program, a hook or an interrupter.
    #[error("the run was interrupted{}", place(.insn, .origin))]
    Interrupted {
        /// The instruction, if known.
        insn: Option<InsnIdx>,
        /// In which program, if known.
        origin: Option<Box<Origin>>,
    },
    /// The deadline has passed ([`crate::RunLimits::deadline`]). Without an instruction: before the run began.
    #[error("the run's deadline has passed{}", place(.insn, .origin))]
    Deadline {
        /// The instruction, if known.
        insn: Option<InsnIdx>,
        /// In which program, if known.
        origin: Option<Box<Origin>>,
    },
    /// [`crate::RunLimits`] were given to a program without the check that they need. The run did not begin.
    #[error("program `{program}` cannot be limited so: it does not {lacks}")]
    Unlimited {
        /// The program.
        program: String,
        /// The missing check, and the setting that adds it.
        lacks: &'static str,
    },
    /// A budget of 0: no run could take a loop or make a call.
    #[error("a budget must be at least 1")]
    NoBudget,
    /// A deadline or an interrupter of another engine.
    #[error("the deadline or interrupter is of another engine: ask the one that the program was loaded into")]
    OtherEngine,
    /// A checked memory access failed.
    #[error("{what}{}", place(.insn, .origin))]
    Access {
        /// The access and why it is not allowed.
        what: String,
        /// The instruction, if known.
        insn: Option<InsnIdx>,
        /// In which program, if known.
        origin: Option<Box<Origin>>,
    },
    /// A host function failed.
    #[error("host function failed{}: {source}", place(.insn, .origin))]
    Host {
        /// The error of the function.
        source: HelperError,
        /// The instruction, if known.
        insn: Option<InsnIdx>,
        /// In which program, if known.
        origin: Option<Box<Origin>>,
    },
    /// The run could not begin.
    #[error(transparent)]
    Enter(#[from] bpf_quiesce::EnterError),
    /// The context's memory is longer than the verifier assumes.
    #[error("the context is {len} bytes long; at most {max} are possible")]
    TooLong {
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The context, or memory that it leads to, begins at an address so low that a pointer in front of it would wrap
    /// round. Only a host that maps memory at or below 64 KiB itself has such memory.
    #[error("the context's memory begins at address {address:#x}; addresses below {least:#x} are not possible")]
    LowAddress {
        /// The address.
        address: usize,
        /// The least address of memory for programs.
        least: usize,
    },
    /// The stack of the calling thread, or of the signal handler, may not suffice. The program did not begin.
    #[error("the run may need {needed} bytes of machine stack, and {left} are left")]
    Stack {
        /// The worst case: the program with its subprograms, callbacks and tail calls, and
        /// [`crate::Config::stack_reserve`].
        needed: u64,
        /// Bytes of stack that are left.
        left: u64,
    },
    /// A sleepable program was run by something that cannot wait.
    #[error("program `{program}` is sleepable: run it by `run_async`")]
    Sleepable {
        /// The program.
        program: String,
    },
    /// As many runs of sleepable programs are going on as there may be.
    #[error("{limit} runs of sleepable programs are going on already (`Config::max_async_runs`)")]
    TooManyAsleep {
        /// The limit.
        limit: usize,
    },
    /// The system has no stack for one more run of a sleepable program.
    #[error("there is no stack for a sleepable run: {source}")]
    NoStack {
        /// The error of the system.
        source: bpf_os::SysError,
    },
    /// The stack of one more run of a sleepable program does not fit the memory that the engine, or the account that
    /// the program was loaded for, may take.
    #[error("the stack of a sleepable run: {full}")]
    MemoryFull {
        /// The bytes needed and the bytes left.
        full: bpf_quiesce::MemoryFull,
    },
    /// The future of a run that is over was polled.
    #[error("the run is over: its future has been ready before")]
    Over,
    /// The caller is a signal handler that interrupted its thread while that thread had a lock for sleepable runs, or
    /// allocated for one. A run that waits was not polled: it goes on when it is polled later, elsewhere.
    #[error("the caller is a signal handler, and its thread was beginning, ending or interrupting a sleepable run")]
    Signal,
    /// Runs are nested (a host function runs a program) beyond the limit.
    #[error("runs are nested more than {limit} deep")]
    TooDeep {
        /// The limit.
        limit: u32,
    },
    /// A bug in this library.
    #[error("internal error: {0}")]
    Internal(String),
}

/// The program that a run ended in, and the line of its source.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Origin {
    /// The name of the instance that the program belongs to, if it has one ([`crate::Instantiate::name`]).
    pub instance: Option<String>,
    /// The program's name.
    pub program: String,
    /// The function, where the object names several.
    pub function: Option<String>,
    /// The source line, if the object has it.
    pub line: Option<SourceLine>,
    /// The calls that led to that place, innermost first: of subprograms, and of callbacks by helpers. Inlined calls
    /// are not listed.
    pub callers: Vec<CalledAt>,
}

/// A call that a run was in when it ended.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CalledAt {
    /// The name of the instance that the program belongs to, if it has one ([`crate::Instantiate::name`]).
    pub instance: Option<String>,
    /// The program's name.
    pub program: String,
    /// The calling function, if the object names several.
    pub function: Option<String>,
    /// The call instruction, if known.
    pub insn: Option<InsnIdx>,
    /// The source line of the call, if the object has it.
    pub line: Option<SourceLine>,
}

/// A line of a program's source. Its `Display` is `file:line: text`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct SourceLine {
    /// The file, as the compiler was given it.
    pub file: String,
    /// The line's number, from 1.
    pub line: u32,
    /// The line's text without the spaces around it; empty if the object does not have it.
    pub text: String,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.text)
    }
}

/// The kind of a [`RunError`], by the reaction of the service that ran the program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum RunErrorKind {
    /// A limit ended the run, or the host did: budget, deadline, interruption.
    Limit,
    /// The program made an access that a check refuses. Its author has a mistake to mend.
    Access,
    /// A host function returned an error or panicked.
    Host,
    /// The run did not begin for want of something that other runs have at this moment: a slot, stack, memory. A later
    /// run may succeed.
    Resources,
    /// The run did not begin, because the host asked for something impossible: it will fail again.
    Misuse,
    /// A bug in this library.
    Internal,
}

impl RunError {
    /// Returns the kind of this error, on which a service may decide: count it, end the plug-in, try again, report it.
    ///
    /// ```
    /// use bpf_runtime::{Config, Engine, Linker, Raw, RunErrorKind, assemble};
    ///
    /// let mut config = Config::default();
    /// config.budget = Some(100);
    /// let linker = Linker::<()>::new(&Engine::new(config)?);
    /// let insns = assemble("r0 = 0\nr0 += 1\nif r0 < 1000 goto -2\nexit")?;
    /// let error = linker.loader::<Raw>().insns("count", insns)?.run_on(&mut []).unwrap_err();
    /// assert_eq!(error.kind(), RunErrorKind::Limit);
    /// assert_eq!(error.origin().unwrap().program, "count");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn kind(&self) -> RunErrorKind {
        match self {
            RunError::Budget { .. } | RunError::Interrupted { .. } | RunError::Deadline { .. } => RunErrorKind::Limit,
            RunError::Access { .. } => RunErrorKind::Access,
            RunError::Host { .. } => RunErrorKind::Host,
            RunError::Enter(bpf_quiesce::EnterError::Forked)
            | RunError::Unlimited { .. }
            | RunError::NoBudget
            | RunError::OtherEngine
            | RunError::TooLong { .. }
            | RunError::LowAddress { .. }
            | RunError::Sleepable { .. }
            | RunError::Over => RunErrorKind::Misuse,
            RunError::Enter(_)
            | RunError::Signal
            | RunError::Stack { .. }
            | RunError::TooManyAsleep { .. }
            | RunError::NoStack { .. }
            | RunError::MemoryFull { .. }
            | RunError::TooDeep { .. } => RunErrorKind::Resources,
            RunError::Internal(_) => RunErrorKind::Internal,
        }
    }

    /// Returns the program that the run ended in, with its source line and the calls that led there; `None` if it did
    /// not begin, or if the place is not known.
    pub fn origin(&self) -> Option<&Origin> {
        self.place()?.1.as_deref()
    }

    /// Returns the instruction that the run ended at; `None` if it did not begin, or if the place is not known.
    pub fn insn(&self) -> Option<InsnIdx> {
        *self.place()?.0
    }

    /// Returns the instruction and the program of an error, for kinds that have them.
    fn place(&self) -> Option<(&Option<InsnIdx>, &Option<Box<Origin>>)> {
        match self {
            RunError::Budget { insn, origin }
            | RunError::Interrupted { insn, origin }
            | RunError::Deadline { insn, origin }
            | RunError::Access { insn, origin, .. }
            | RunError::Host { insn, origin, .. } => Some((insn, origin)),
            RunError::Unlimited { .. }
            | RunError::NoBudget
            | RunError::OtherEngine
            | RunError::Enter(_)
            | RunError::TooLong { .. }
            | RunError::LowAddress { .. }
            | RunError::Stack { .. }
            | RunError::Sleepable { .. }
            | RunError::TooManyAsleep { .. }
            | RunError::NoStack { .. }
            | RunError::MemoryFull { .. }
            | RunError::Over
            | RunError::Signal
            | RunError::TooDeep { .. }
            | RunError::Internal(_) => None,
        }
    }

    /// Returns the instruction and the program of an error, for kinds that have them.
    pub(crate) fn origin_mut(&mut self) -> Option<(&mut Option<InsnIdx>, &mut Option<Box<Origin>>)> {
        match self {
            RunError::Budget { insn, origin }
            | RunError::Interrupted { insn, origin }
            | RunError::Deadline { insn, origin }
            | RunError::Access { insn, origin, .. }
            | RunError::Host { insn, origin, .. } => Some((insn, origin)),
            RunError::Unlimited { .. }
            | RunError::NoBudget
            | RunError::OtherEngine
            | RunError::Enter(_)
            | RunError::TooLong { .. }
            | RunError::LowAddress { .. }
            | RunError::Stack { .. }
            | RunError::Sleepable { .. }
            | RunError::TooManyAsleep { .. }
            | RunError::NoStack { .. }
            | RunError::MemoryFull { .. }
            | RunError::Over
            | RunError::Signal
            | RunError::TooDeep { .. }
            | RunError::Internal(_) => None,
        }
    }
}

fn place(insn: &Option<InsnIdx>, origin: &Option<Box<Origin>>) -> String {
    use std::fmt::Write;
    // Writing to a string cannot fail.
    let at = |text: &mut String, insn: &Option<InsnIdx>| {
        if let Some(insn) = insn {
            let _ = write!(text, " at instruction {insn}");
        }
    };
    let of =
        |text: &mut String, named: (&str, &Option<String>), function: &Option<String>, line: &Option<SourceLine>| {
            let (program, instance) = named;
            let _ = write!(text, " of `{program}`");
            if let Some(instance) = instance {
                let _ = write!(text, " in instance `{instance}`");
            }
            if let Some(function) = function.as_ref().filter(|function| **function != *program) {
                let _ = write!(text, ", in `{function}`");
            }
            if let Some(line) = line {
                let _ = write!(text, " ({line})");
            }
        };
    let mut text = String::new();
    at(&mut text, insn);
    if let Some(Origin { instance, program, function, line, callers }) = origin.as_deref() {
        of(&mut text, (program, instance), function, line);
        for CalledAt { instance, program, function, insn, line } in callers {
            text.push_str(", called");
            at(&mut text, insn);
            of(&mut text, (program, instance), function, line);
        }
    }
    text
}

/// An offset in the context's structure at which object and host have different fields.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{}: compiled against another `struct {context}`: there {compiled}, here {host}; compile it with the host's header, or declare the struct with `__attribute__((preserve_access_index))`",
    at(.insn, .line)
)]
#[non_exhaustive]
pub struct LayoutMismatch {
    /// The structure.
    pub context: String,
    /// The load or store; `None` for a program that is not verified, whose accesses are unknown.
    pub insn: Option<bpf_isa::InsnIdx>,
    /// Its source line.
    pub line: Option<String>,
    /// The object's field at that offset.
    pub compiled: String,
    /// The host's field at that offset.
    pub host: String,
}

/// A function of the host that the object declares with another prototype than the host has for it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{}: it declares `{declared}`, and the host's function is `{host}`; compile it with the host's header",
    at(.insn, .line)
)]
#[non_exhaustive]
pub struct PrototypeMismatch {
    /// The function.
    pub function: String,
    /// The first call of it.
    pub insn: Option<bpf_isa::InsnIdx>,
    /// The source line of the call.
    pub line: Option<String>,
    /// The object's prototype, in C.
    pub declared: String,
    /// The host's prototype, in C.
    pub host: String,
}

/// Text that names an instruction and its source line, as far as they are known.
fn at(insn: &Option<bpf_isa::InsnIdx>, line: &Option<String>) -> String {
    match (insn, line) {
        (Some(insn), Some(line)) => format!(", instruction {insn} ({line})"),
        (Some(insn), None) => format!(", instruction {insn}"),
        (None, _) => String::new(),
    }
}

/// A map's name, if there is one.
fn quoted(name: &Option<String>) -> String {
    name.as_ref().map_or_else(String::new, |name| format!(" (`{name}`)"))
}

/// The source line of a call.
fn in_line(line: &Option<String>) -> String {
    line.as_ref().map_or_else(String::new, |line| format!(", called in {line},"))
}

/// The kernel's name of a helper, in brackets.
fn helper(id: u32) -> String {
    bpf_uapi::Helper::name_of(id).map_or_else(String::new, |name| format!(" ({name})"))
}

/// Why a host function ends the run.
#[derive(Debug)]
#[non_exhaustive]
pub enum HelperError {
    /// The function returned this error.
    Failed(Box<dyn Error + Send + Sync>),
    /// The function panicked, with this message.
    Panicked(String),
    /// A callback into the program was stopped; the run's stop code says why.
    Stopped,
    /// An argument ([`crate::OwnedBytes`]) does not fit the memory that the engine, or the account that the program was
    /// loaded for, may take. The function was not called.
    MemoryFull {
        /// The bytes needed and the bytes left.
        full: bpf_quiesce::MemoryFull,
    },
    /// The operating system gave no memory for an argument ([`crate::OwnedBytes`]). The function was not called.
    NoMemory {
        /// Bytes needed.
        needed: u64,
    },
}

impl HelperError {
    /// An error of the host function's own.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> HelperError {
        HelperError::Failed(error.into())
    }
}

impl fmt::Display for HelperError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HelperError::Failed(error) => error.fmt(f),
            HelperError::Panicked(text) => write!(f, "panicked: {text}"),
            HelperError::Stopped => f.write_str("stopped in a callback"),
            HelperError::MemoryFull { full } => write!(f, "an argument: {full}"),
            HelperError::NoMemory { needed } => write!(f, "an argument: the system has no {needed} bytes"),
        }
    }
}

impl Error for HelperError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            HelperError::Failed(error) => Some(error.as_ref()),
            HelperError::Panicked(_)
            | HelperError::Stopped
            | HelperError::MemoryFull { .. }
            | HelperError::NoMemory { .. } => None,
        }
    }
}
