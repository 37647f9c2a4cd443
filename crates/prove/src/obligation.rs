//! Obligations: statements to be shown, each by proof or by trying.

use crate::failure::Failure;
use crate::paths;
use crate::solver::Solver;
use std::time::{Duration, Instant};

/// How an obligation is shown.
pub(crate) enum How {
    /// By the solver, for all numbers of the real width.
    Proof(Box<dyn Fn()>),
    /// By trying: all numbers of few bits, or random ones of all bits. Says how many were tried.
    Tried(&'static str, Box<dyn Fn() -> Result<u64, String>>),
}

/// A statement to be proven or tried.
pub(crate) struct Obligation {
    pub(crate) name: String,
    pub(crate) how: How,
    /// Only with `--all`: takes minutes.
    pub(crate) slow: bool,
}

/// An obligation for the solver.
pub(crate) fn proof(name: impl Into<String>, code: impl Fn() + 'static) -> Obligation {
    Obligation { name: name.into(), how: How::Proof(Box::new(code)), slow: false }
}

/// An obligation that is tried.
pub(crate) fn tried(
    name: impl Into<String>,
    how: &'static str,
    code: impl Fn() -> Result<u64, String> + 'static,
) -> Obligation {
    Obligation { name: name.into(), how: How::Tried(how, Box::new(code)), slow: false }
}

impl Obligation {
    pub(crate) fn slow(mut self) -> Obligation {
        self.slow = true;
        self
    }

    /// Whether it holds, in a few words.
    pub(crate) fn check(&self, solver: &mut Option<Solver>) -> (Result<String, Failure>, Duration) {
        let start = Instant::now();
        let result = match &self.how {
            How::Proof(code) => paths::prove(solver, code)
                .map(|proven| format!("proven ({} ways, {} queries)", proven.ways, proven.queries)),
            How::Tried(how, code) => code().map(|tried| format!("{how} ({tried} tried)")).map_err(Failure::Refuted),
        };
        (result, start.elapsed())
    }
}
