//! Chains of programs, and the effects of their verdicts.

use bpf_jit_code::Needs;
use core::ops::ControlFlow;

/// The effect of the verdicts of a chain's programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HookPolicy {
    /// The first verdict on which the chain does not continue is its result; `pass` if there is none. The chain
    /// continues on `pass`, unless a program has its own verdicts for that ([`Link::continue_on`]). With `pass` = 2
    /// this is libxdp's dispatcher (`XDP_PASS`), with 0xffffffff (-1 in 32 bits) tc's (`TC_ACT_UNSPEC`, `TCX_NEXT`).
    /// Verdicts are compared in all 64 bits.
    FirstVerdict {
        /// The verdict that leaves the decision to the next program.
        pass: u64,
    },
    /// All programs run; the last one's verdict is the result.
    LastWins {
        /// The result of an empty chain.
        empty: u64,
    },
    /// All programs run as observers; their verdicts are ignored.
    RunAll {
        /// The result.
        result: u64,
    },
}

impl HookPolicy {
    /// The result of a chain without programs.
    pub fn of_empty(self) -> u64 {
        match self {
            HookPolicy::FirstVerdict { pass: value }
            | HookPolicy::LastWins { empty: value }
            | HookPolicy::RunAll { result: value } => value,
        }
    }

    /// Combines a program's verdict with the result so far, for callers that call the programs one by one. Returns
    /// whether the chain continues or ends. `continue_on` as in [`Link`].
    pub fn after(self, result: u64, verdict: u64, continue_on: Option<Verdicts>) -> ControlFlow<u64, u64> {
        match self {
            HookPolicy::FirstVerdict { pass } if !continue_on.unwrap_or(Verdicts::One(pass)).contains(verdict) => {
                ControlFlow::Break(verdict)
            }
            HookPolicy::FirstVerdict { .. } | HookPolicy::RunAll { .. } => ControlFlow::Continue(result),
            HookPolicy::LastWins { .. } => ControlFlow::Continue(verdict),
        }
    }
}

/// Verdicts on which a chain continues.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Verdicts {
    /// This verdict.
    One(u64),
    /// The verdicts below 64 whose bit is set: libxdp's `chain_call_actions`.
    Set(u64),
}

impl Verdicts {
    /// Whether the set has this verdict.
    #[inline]
    pub fn contains(self, verdict: u64) -> bool {
        match self {
            Verdicts::One(one) => verdict == one,
            Verdicts::Set(set) => verdict < 64 && set >> verdict & 1 == 1,
        }
    }

    /// An equal set of verdicts; a set with one element becomes [`Verdicts::One`], whose test is shorter.
    fn simple(self) -> Verdicts {
        match self {
            Verdicts::Set(set) if set.is_power_of_two() => Verdicts::One(set.trailing_zeros().into()),
            other => other,
        }
    }
}

/// A program of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// The address of its first instruction.
    pub address: usize,
    /// The verdicts on which a chain with [`HookPolicy::FirstVerdict`] continues after this program; `None`: that
    /// policy's `pass`.
    pub continue_on: Option<Verdicts>,
    /// The needs of its code. A chain has the needs of its most demanding program.
    pub needs: Needs,
    /// The program's budget, if it or a program that it jumps to counts. Each program of a chain has its own.
    pub budget: Option<i64>,
}

impl Link {
    /// A program that follows the policy.
    pub fn new(address: usize) -> Link {
        Link { address, continue_on: None, needs: Needs::Run, budget: None }
    }
}

/// The verdict tests of a chain, in the order of its programs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Tests {
    /// No verdict is tested: all programs run.
    None,
    /// A verdict ends the chain unless it is one of these.
    ContinueOn(Vec<Verdicts>),
}

/// A chain in the form that the backends use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Chain {
    pub(crate) programs: usize,
    pub(crate) tests: Tests,
    /// The result at the end of the chain; `None`: the last program's verdict, so the chain ends in a jump to that
    /// program.
    pub(crate) end: Option<u64>,
    /// The needs of its programs.
    pub(crate) needs: Needs,
    /// The budget of each program, if it or a program that it jumps to may count.
    pub(crate) budgets: Vec<Option<i64>>,
}

impl Chain {
    pub(crate) fn new(links: &[Link], policy: HookPolicy) -> Chain {
        let programs = links.len();
        let value = policy.of_empty();
        let (tests, end) = match policy {
            HookPolicy::LastWins { .. } => (Tests::None, (programs == 0).then_some(value)),
            HookPolicy::RunAll { .. } => (Tests::None, Some(value)),
            HookPolicy::FirstVerdict { pass } => {
                let tests: Vec<Verdicts> =
                    links.iter().map(|link| link.continue_on.unwrap_or(Verdicts::One(pass)).simple()).collect();
                // The last verdict is the result whether the chain continues on it or not, provided that it continues
                // on `pass` only.
                let end = tests.last().is_none_or(|last| *last != Verdicts::One(pass)).then_some(pass);
                (Tests::ContinueOn(tests), end)
            }
        };
        // A program that needs no run has no counter.
        let budgets = links.iter().map(|link| link.budget.filter(|_| link.needs == Needs::Run)).collect();
        let needs = links.iter().map(|link| link.needs).max().unwrap_or(Needs::Nothing);
        Chain { programs, tests, end, needs, budgets }
    }

    /// The verdicts of a program after which the next one runs; `None`: all.
    pub(crate) fn test(&self, program: usize) -> Option<Verdicts> {
        match &self.tests {
            Tests::None => None,
            Tests::ContinueOn(tests) => tests.get(program).copied(),
        }
    }
}
