//! Why a run ended without a result, and where.

use super::call::HelperError;
use bpf_isa::InsnIdx;
use std::fmt;

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
        r#source: HelperError,
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
    /// The stack of the calling thread, of the signal handler, or of the run may not suffice. The program did not
    /// begin, or an interpreted run ended at a call.
    #[error("the run may need {needed} bytes of machine stack, and {left} are left")]
    Stack {
        /// The worst case, with [`crate::Config::stack_reserve`]: of the program with its subprograms, callbacks and
        /// tail calls, or of the function that an interpreted program calls.
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
    /// A run of machine code was to be observed, and the program does not keep its instructions.
    #[error("program `{program}` {why}")]
    NotObserved {
        /// The program.
        program: String,
        /// The reason.
        why: String,
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
        r#source: bpf_os::SysError,
    },
    /// The stack of one more run of a sleepable program does not fit the memory that the engine, or the account that
    /// the program was loaded for, may take.
    #[error("the stack of a sleepable run: {full}")]
    MemoryFull {
        /// The bytes needed and the bytes left.
        full: bpf_quiesce::MemoryFull,
    },
    /// The program returned a value that the type of its result does not have ([`crate::FromR0`]).
    #[error("the program returned {value}, which is no `{wanted}`{}", place(&None, .origin))]
    Result {
        /// The value of r0.
        value: u64,
        /// The type.
        wanted: &'static str,
        /// The program.
        origin: Option<Box<Origin>>,
    },
    /// The future of a run that is over was polled.
    #[error("the run is over: its future has been ready before")]
    Over,
    /// The caller is a signal handler that is on a signal stack (`SA_ONSTACK`), or that interrupted its thread while
    /// that thread had a lock for sleepable runs, allocated for one, or was taking or giving up an execution slot. A
    /// run that waits goes on when it is polled later, elsewhere.
    #[error(
        "the caller is a signal handler on a signal stack, or its thread was at work for a sleepable run or for an \
         execution slot"
    )]
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
    /// The name of the instance that the program belongs to, if it has one ([`crate::instances::Instantiate::name`]).
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
    /// The name of the instance that the program belongs to, if it has one ([`crate::instances::Instantiate::name`]).
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
    /// The program returned a value that its type does not have. Its author has a mistake to mend.
    Result,
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
    /// use bpf_runtime::{Config, Engine, Linker, Raw, error::RunErrorKind, isa::assemble};
    ///
    /// let config = Config::new().budget(100);
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
            RunError::Result { .. } => RunErrorKind::Result,
            RunError::Host { .. } => RunErrorKind::Host,
            RunError::Enter(bpf_quiesce::EnterError::Forked)
            | RunError::Unlimited { .. }
            | RunError::NoBudget
            | RunError::OtherEngine
            | RunError::TooLong { .. }
            | RunError::LowAddress { .. }
            | RunError::Sleepable { .. }
            | RunError::NotObserved { .. }
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
            RunError::Result { origin, .. } => Some((&None, origin)),
            RunError::Unlimited { .. }
            | RunError::NoBudget
            | RunError::OtherEngine
            | RunError::Enter(_)
            | RunError::TooLong { .. }
            | RunError::LowAddress { .. }
            | RunError::Stack { .. }
            | RunError::Sleepable { .. }
            | RunError::NotObserved { .. }
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
            RunError::Result { .. }
            | RunError::Unlimited { .. }
            | RunError::NoBudget
            | RunError::OtherEngine
            | RunError::Enter(_)
            | RunError::TooLong { .. }
            | RunError::LowAddress { .. }
            | RunError::Stack { .. }
            | RunError::Sleepable { .. }
            | RunError::NotObserved { .. }
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
