//! What took most of the work of a verification that reached a limit.

use std::fmt;

use bpf_isa::InsnIdx;

/// What took most of the work, when there was too much of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Effort {
    /// The head of the loop, or the first instruction of the function.
    pub at: InsnIdx,
    /// Which of them it is.
    pub place: EffortPlace,
    /// Its source: file, first and last line.
    pub source: Option<(String, u32, u32)>,
    /// Its share, in hundredths: of fuel, steps, states or bytes, whichever there was too much of.
    pub percent: u8,
}

/// A part of a program that took work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EffortPlace {
    /// A loop, with all that is called from it.
    Loop,
    /// A function that a helper calls again and again.
    Callback,
    /// A function, where no loop took any.
    Function,
}

impl fmt::Display for Effort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.place {
            EffortPlace::Loop => "the loop at",
            EffortPlace::Callback => "the callback at",
            EffortPlace::Function => "the function at",
        };
        write!(f, "  {what} {}", self.at)?;
        match &self.source {
            Some((file, from, to)) if from == to => write!(f, " ({file}:{from})")?,
            Some((file, from, to)) => write!(f, " ({file}:{from}-{to})")?,
            None => {}
        }
        writeln!(f, " took {} % of it", self.percent)
    }
}
