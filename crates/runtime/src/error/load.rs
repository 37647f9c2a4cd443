//! Why an object or a program was not loaded.

use super::link::{LayoutMismatch, PrototypeMismatch, at, helper};
use super::lookup::{LookupError, NotFound, ProgArrayError};
use bpf_isa::InsnIdx;
use bpf_quiesce::OtherDomain;

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
        r#source: bpf_isa::ValidateError,
    },
    /// The bytes are not instructions.
    #[error("program `{program}`: {source}")]
    Decode {
        /// The program.
        program: String,
        /// The place of the bytes that are no instruction, and the reason.
        r#source: bpf_isa::DecodeError,
    },
    /// The verifier refused it.
    #[error("program `{program}` was refused by the verifier:\n{source}")]
    Verifier {
        /// The program.
        program: String,
        /// The place, the reason and the remedy.
        r#source: Box<bpf_verifier::VerifyError>,
    },
    /// The object carries no proof of the program, or one that does not hold, and the loader does not search
    /// ([`crate::verify::Proofs::Require`]).
    #[error("program `{program}`: {source}")]
    Proof {
        /// The program.
        program: String,
        /// The part that is missing, differs or does not hold.
        r#source: bpf_verifier::ProofError,
    },
    /// The verifier gave up at [`Limits::time`](crate::verify::Limits::time), or where the system refused memory,
    /// before there was a verdict: the program may be safe.
    #[error("program `{program}` was not verified in time; whether it is safe is not known:\n{source}")]
    VerdictUnknown {
        /// The program.
        program: String,
        /// The place where most of the work was done.
        r#source: Box<bpf_verifier::VerifyError>,
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
        r#source: Box<LayoutMismatch>,
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
        r#source: Box<PrototypeMismatch>,
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
    /// The program was loaded for packets in fragments ([`crate::net::XdpFrags`]), and its section does not say that it
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
        r#source: bpf_maps::MapError,
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
        r#source: Box<bpf_verifier::Uncontained>,
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
    /// [`crate::instances::Instantiate::budget`] for a program that was compiled without counting.
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
        r#source: bpf_jit::CompileError,
    },
    /// The machine code could not be placed.
    #[error("program `{program}`: executable memory: {source}")]
    Place {
        /// The program.
        program: String,
        /// The error of the allocator of executable memory.
        r#source: bpf_prog_pack::Error,
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
        r#source: ProgArrayError,
    },
    /// A bug in this library.
    #[error("internal error: {0}")]
    Internal(String),
}

impl LoadError {
    /// The program of this name is not structurally valid.
    pub(crate) fn structure(program: &str) -> impl FnOnce(bpf_isa::ValidateError) -> LoadError {
        move |source| LoadError::Structure { program: program.to_owned(), source }
    }
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

/// A map's name, if there is one.
fn quoted(name: &Option<String>) -> String {
    name.as_ref().map_or_else(String::new, |name| format!(" (`{name}`)"))
}

/// The source line of a call.
fn in_line(line: &Option<String>) -> String {
    line.as_ref().map_or_else(String::new, |line| format!(", called in {line},"))
}
