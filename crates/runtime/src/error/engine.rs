//! Why an engine, or what it makes, was not made.

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
    Memory(bpf_prog_pack::Error),
    /// The thread that samples for [`crate::Config::metrics`] could not be started.
    #[error("the thread that samples runs (`Config::metrics`): {0}")]
    Thread(std::io::Error),
    /// A file or a registration of [`crate::Config::debug`] could not be set up.
    #[error("debugging: {0}")]
    #[cfg(native)]
    Debug(bpf_debug::Error),
}

impl From<bpf_prog_pack::Error> for EngineError {
    fn from(error: bpf_prog_pack::Error) -> EngineError {
        EngineError::Memory(error)
    }
}

#[cfg(native)]
impl From<bpf_debug::Error> for EngineError {
    fn from(error: bpf_debug::Error) -> EngineError {
        EngineError::Debug(error)
    }
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
