//! Functions and structures of the host that do not fit: at their registration, or what an object was compiled against.

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
    /// Engines implement the helper of this id themselves ([`crate::host::SPECIAL_HELPERS`]), so a function under it
    /// would never be called.
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
pub(super) fn at(insn: &Option<bpf_isa::InsnIdx>, line: &Option<String>) -> String {
    match (insn, line) {
        (Some(insn), Some(line)) => format!(", instruction {insn} ({line})"),
        (Some(insn), None) => format!(", instruction {insn}"),
        (None, _) => String::new(),
    }
}

/// The kernel's name of a helper, in brackets.
pub(super) fn helper(id: u32) -> String {
    bpf_uapi::Helper::name_of(id).map_or_else(String::new, |name| format!(" ({name})"))
}
