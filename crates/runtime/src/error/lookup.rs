//! Errors of handles: names that an instance does not have, and slots of prog arrays.

use bpf_quiesce::OtherDomain;

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
        r#source: ProgArrayError,
    },
}

fn one_of(have: &[String]) -> String {
    if have.is_empty() { String::new() } else { format!("; there is {}", have.join(", ")) }
}
