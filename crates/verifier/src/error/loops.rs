//! Loops in errors: which loop was not proven by an invariant, the candidate invariant, and the reason.

use std::borrow::Cow;
use std::fmt;

use bpf_isa::InsnIdx;

use super::Reason;

/// A loop without a proven invariant, which was therefore walked round by round.
#[derive(Clone, Debug, PartialEq)]
pub struct UnprovenLoop {
    /// The first instruction of its head.
    pub head: InsnIdx,
    /// Its source: file, first and last line.
    pub source: Option<(String, u32, u32)>,
    /// The candidate invariant: registers, each with a description of its value in every round.
    pub guess: Vec<(String, String)>,
    /// The reason why it was not proven.
    pub why: LoopFailure,
}

/// The reason why a loop was not proven.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message says what it and its fields are")]
pub enum LoopFailure {
    #[error("control enters it elsewhere than at its head")]
    Irreducible,
    #[error(
        "nothing is known to end it: no test is known to bound a variable that each round moves by the same step, and no variable is known to strictly grow or shrink"
    )]
    Endless,
    #[error("{what} was {guessed} in the rounds before, and is {came_back} after the next")]
    Changes { what: String, guessed: String, came_back: String },
    #[error("the candidate invariant is too weak at {at}: {reason}")]
    Refused { at: InsnIdx, reason: Box<Reason> },
    #[error("its body is too long for a candidate invariant")]
    TooLong,
    #[error("a callback or a may_goto begins or ends in it")]
    Bounded,
    #[error("states of its rounds differ in more than numbers and offsets")]
    Unlike,
}

impl LoopFailure {
    /// The usual remedy, if there is one.
    pub fn hint(&self) -> Option<Cow<'static, str>> {
        Some(Cow::Borrowed(match self {
            LoopFailure::Irreducible => "jump into the loop only at its start",
            LoopFailure::Endless => {
                "count the rounds up to a bound (`for (i = 0; i < n; i++)`), or use may_goto or bpf_loop"
            }
            LoopFailure::Changes { .. } => {
                "keep it within a mask or a clamp in every round (`x &= 63`, `if (x > max) break`)"
            }
            LoopFailure::Refused { reason, .. } => return reason.hint(),
            LoopFailure::TooLong => "split the loop's body, or move parts of it into global functions",
            LoopFailure::Bounded | LoopFailure::Unlike => return None,
        }))
    }
}

impl fmt::Display for UnprovenLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  loop at {}", self.head)?;
        match &self.source {
            Some((file, from, to)) if from == to => write!(f, " ({file}:{from})")?,
            Some((file, from, to)) => write!(f, " ({file}:{from}-{to})")?,
            None => {}
        }
        writeln!(f, " was walked round by round: {}", self.why)?;
        if !self.guess.is_empty() {
            f.write_str("    candidate invariant:")?;
            for (i, (what, value)) in self.guess.iter().enumerate() {
                write!(f, "{} {what} = {value}", if i == 0 { "" } else { "," })?;
            }
            writeln!(f)?;
        }
        match self.why.hint() {
            Some(hint) => writeln!(f, "    hint: {hint}"),
            None => Ok(()),
        }
    }
}
