//! The part of a program that took most of the work of a verification which reached a limit.

use std::fmt;

use bpf_isa::InsnIdx;

/// The part of a program that took most of the work, if a limit was reached.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Effort {
    /// The head of the loop, or the first instruction of the function.
    pub at: InsnIdx,
    /// The kind of that part.
    pub place: EffortPlace,
    /// Its source: file, first and last line.
    pub source: Option<(String, u32, u32)>,
    /// Its share of the exhausted resource (fuel, steps, states or bytes), in percent.
    pub percent: u8,
}

/// A part of a program that took work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EffortPlace {
    /// A loop, with everything that is called from it.
    Loop,
    /// A function that a helper calls repeatedly.
    Callback,
    /// A function in which no loop took most of the work.
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
