//! Parameters of a walk, which [`crate::ways`] chooses and [`crate::walk`] follows.

use crate::env::{Env, Limits};

/// The way in which a walk treats loops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// Loops from candidate invariants, as far as these can be proven.
    Accelerated,
    /// Loops round by round.
    Plain,
    /// Loops round by round, with run-time checks where there is no proof.
    Hybrid,
}

/// The parameters of a walk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Course {
    /// The treatment of loops and unproven accesses.
    pub(crate) mode: Mode,
    /// Whether the program may have loops. If not, no invariants are searched.
    pub(crate) loops: bool,
    /// Whether the walk may widen numbers that keep paths apart.
    pub(crate) merges: bool,
    /// Whether it notes facts about numbers.
    pub(crate) values: bool,
    /// Whether its candidate invariants assume that accesses are within bounds (until the check proves it).
    pub(crate) assumes: bool,
    /// Whether it keeps bounds of all elements of an array on the stack (`crate::content`).
    pub(crate) elements: bool,
    /// Whether it keeps symbolic upper bounds of these elements.
    pub(crate) orders: bool,
    /// Whether it tries techniques that few loops need, and that cost others more than they gain.
    pub(crate) further: bool,
    /// Whether relations between numbers are kept and used everywhere, not just in and before loops of short programs.
    pub(crate) related: bool,
    /// Whether loops are partitioned by rounds in which a place holds no value.
    pub(crate) parts: bool,
    /// Whether it gives up as soon as its candidates fail repeatedly, because other strategies are tried first.
    pub(crate) hasty: bool,
    /// Whether an earlier walk of this program has given up so. The walk then allows fewer failures.
    pub(crate) hurried: bool,
    /// The most rounds of a loop.
    pub(crate) rounds: usize,
    /// The number of steps after which it gives up.
    pub(crate) steps: u64,
    /// The fuel, counted from the program's first walk, after which it gives up ([`crate::fuel`]).
    pub(crate) fuel: u64,
}

impl Course {
    /// A single walk that uses all that the limits allow.
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
