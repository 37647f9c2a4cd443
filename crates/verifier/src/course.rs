//! What a walk is told of its way: by [`crate::ways`], which decides, to [`crate::walk`], which goes it.

use crate::env::{Env, Limits};

/// How programs are walked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// Loops from guesses, as far as these are proven.
    Accelerated,
    /// Loops round by round.
    Plain,
    /// The same, with checks left for run time where there is no proof.
    Hybrid,
}

/// What a walk is told of its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Course {
    /// What it makes of loops and of accesses.
    pub(crate) mode: Mode,
    /// Whether the program may have loops: if not, nothing is looked for or guessed.
    pub(crate) loops: bool,
    /// Whether it may give up numbers that keep paths apart.
    pub(crate) merges: bool,
    /// Whether it notes what is known of numbers.
    pub(crate) values: bool,
    /// Whether its guesses assume that what is accessed lies inside its memory.
    pub(crate) assumes: bool,
    /// Whether it knows of arrays on the stack what is true of every element.
    pub(crate) elements: bool,
    /// And what these numbers are no more than.
    pub(crate) orders: bool,
    /// Whether it tries what few loops need, and what costs others more than it gains.
    pub(crate) further: bool,
    /// Whether relations of numbers are kept and asked for everywhere, and not only in and before loops of programs
    /// that are not long.
    pub(crate) related: bool,
    /// Whether rounds in which a place holds none are told apart from others.
    pub(crate) parts: bool,
    /// Whether it gives up as soon as its guesses fail again and again: other ways are tried first.
    pub(crate) hasty: bool,
    /// Whether a walk before it has given up so: what is accepted after that fails less often.
    pub(crate) hurried: bool,
    /// How often a loop may come round at most.
    pub(crate) rounds: usize,
    /// After how many steps it gives up.
    pub(crate) steps: u64,
    /// It gives up when so much fuel was spent since the program's first walk began ([`crate::fuel`]).
    pub(crate) fuel: u64,
}

impl Course {
    /// Straight to the end: all that the limits allow.
    pub(crate) fn new(mode: Mode, env: &Env<'_>) -> Course {
        let Limits { steps, fuel, .. } = env.limits;
        Course {
            mode,
            loops: true,
            merges: true,
            values: env.values,
            assumes: true,
            elements: false,
            orders: false,
            further: false,
            related: false,
            parts: false,
            hasty: false,
            hurried: false,
            rounds: usize::MAX,
            steps,
            fuel,
        }
    }
}
