//! Why runs cannot be recorded, read or repeated.

use bpf_isa::InsnIdx;

/// Why the runs of a program cannot be recorded ([`Program::recorder`](crate::Program::recorder)).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The program is machine code and does not keep its instructions.
    #[error("program `{program}` does not keep its instructions: load it with `Loader::recordable`")]
    NotKept {
        /// The program.
        program: String,
    },
    /// The program is machine code that was not verified.
    #[error("program `{program}` is machine code without a proof, which may do what the interpreter does not repeat")]
    Unverified {
        /// The program.
        program: String,
    },
    /// The program may wait.
    #[error("program `{program}` may wait, and runs that wait are not recorded")]
    Sleepable {
        /// The program.
        program: String,
    },
    /// The program has an instruction whose effect is not recorded.
    #[error("program `{program}`, instruction {insn}: {what} is not recorded")]
    Unsupported {
        /// The program.
        program: String,
        /// The instruction.
        insn: InsnIdx,
        /// The effect of the instruction.
        what: &'static str,
    },
    /// The context has more fields, or more parts, than a recording may have.
    #[error("the context of program `{program}` has {found} {what}, and a recording has at most {max}")]
    Context {
        /// The program.
        program: String,
        /// Their number.
        found: usize,
        /// The kind of these parts.
        what: &'static str,
        /// The largest number.
        max: usize,
    },
    /// The options keep no run.
    #[error("a recorder keeps at least one run")]
    NoRuns,
}

/// Why bytes are no recording ([`Recording::parse`](crate::observe::Recording::parse)).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("recording, byte {at}: {what}")]
#[non_exhaustive]
pub struct RecordingError {
    /// The place, in bytes from the start.
    pub at: usize,
    /// The problem.
    pub what: String,
}

/// Why a recorded run cannot be repeated ([`Recording::replay`](crate::observe::Recording::replay)).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// There is no run of this number.
    #[error("the recording has {runs} runs, numbered from 0; there is no run {run}")]
    NoRun {
        /// The number asked for.
        run: usize,
        /// Number of runs in the recording.
        runs: usize,
    },
    /// A function of the host has unwound the run.
    #[error("the run did not end: a function of the host has panicked")]
    Unfinished,
    /// The run got more from outside than the recorder keeps.
    #[error("the run got more from outside than was recorded: raise `RecorderOptions::run_bytes`")]
    Cut,
    /// The run entered a program with an effect that is not recorded.
    #[error("the run made a tail call to a program with {what}, which is not recorded")]
    Lost {
        /// The effect.
        what: String,
    },
    /// The run was stopped in machine code, which does not say after how many instructions.
    #[error("the run was stopped in machine code, and where is not recorded: {error}")]
    Stopped {
        /// The error with which it was stopped.
        error: String,
    },
    /// The run does other things than the recorded one.
    #[error("instruction {insn}, step {step}: the run differs from the recorded one: {what}")]
    Differs {
        /// The instruction.
        insn: InsnIdx,
        /// Number of instructions before it.
        step: u64,
        /// The difference.
        what: &'static str,
    },
    /// The run is longer than the replay may be.
    #[error("the run has more than {limit} instructions: raise the limit of `Recording::replay_within`")]
    TooLong {
        /// The limit.
        limit: u64,
    },
    /// More functions have begun and not returned than a replay has stack for.
    #[error("the run has more than {limit} functions that have not returned; a replay has at most {limit}")]
    TooDeep {
        /// The limit.
        limit: usize,
    },
    /// The observer has ended the replay.
    #[error("the replay was ended")]
    Ended,
}

/// How a recording differs from a loaded program ([`Recording::check`](crate::observe::Recording::check)).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingMismatch {
    /// The recording is of another program.
    #[error("the recording is of program `{recorded}`, not of `{given}`")]
    Name {
        /// The recorded program.
        recorded: String,
        /// The given program.
        given: String,
    },
    /// The instructions differ: the recording is of another version of the plug-in.
    #[error(
        "the recording is of another version of program `{program}`: instruction {insn} was `{recorded}`, and is `{given}`"
    )]
    Instructions {
        /// The program.
        program: String,
        /// The first instruction that differs.
        insn: InsnIdx,
        /// The recorded instruction.
        recorded: String,
        /// The given instruction.
        given: String,
    },
    /// The contexts differ: the recording is of another host.
    #[error("the recording is of another host: its context has {recorded}, where the given one has {given}")]
    Context {
        /// The recorded field.
        recorded: String,
        /// The given field.
        given: String,
    },
}
