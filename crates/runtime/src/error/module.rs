//! Errors of modules and their instances: serialised forms, pools, resets.

use super::load::LoadError;

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
    Load(Box<LoadError>),
}
