//! Errors of the runtime and their parts. The errors most used ([`RunError`], [`LoadError`], [`EngineError`],
//! [`HelperError`]) are in the crate's root; errors of hooks, maps, objects and the verifier are in those modules.

pub(crate) mod call;
pub(crate) mod engine;
mod link;
pub(crate) mod load;
mod lookup;
mod module;
pub(crate) mod record;
pub(crate) mod run;

pub use bpf_os::{Call as SysCall, Membarrier, SysError};
pub use bpf_quiesce::EnterError;
pub use bpf_uapi::Errno;
pub use engine::DeadlineError;
pub use link::{LayoutMismatch, LinkError, PrototypeMismatch};
pub use lookup::{LookupError, NotFound, ProgArrayError};
pub use module::{DeserializeError, PoolError, ResetError, SerializeError};
pub use run::{CalledAt, Origin, RunErrorKind, SourceLine};

pub(crate) use call::HelperError;
pub(crate) use engine::EngineError;
pub(crate) use load::LoadError;
pub(crate) use run::RunError;
