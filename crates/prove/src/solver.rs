//! The solver: a process that is asked, over a pipe, whether there are numbers for which terms are true.

use crate::term::{self, Term};
use anyhow::{Context, bail};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Answer of the solver.
#[derive(Debug)]
pub(crate) enum Answer {
    /// No numbers satisfy the terms.
    Unsat,
    /// These numbers satisfy the terms.
    Sat(String),
    /// The solver found no answer within its time.
    Unknown,
}

/// Debian's package `z3`.
pub(crate) struct Solver {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// How long one obligation may take, and until when this one may.
    pub(crate) limit: Duration,
    pub(crate) until: Instant,
    pub(crate) queries: u64,
}

impl Solver {
    pub(crate) fn start(limit: Duration) -> anyhow::Result<Solver> {
        let mut child = Command::new("z3")
            .args(["-smt2", "-in"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run `z3`")?;
        let to = child.stdin.take().context("no pipe to z3")?;
        let from = BufReader::new(child.stdout.take().context("no pipe from z3")?);
        Ok(Solver { child, to, from, limit, until: Instant::now() + limit, queries: 0 })
    }

    /// Begins another obligation, with all the time it has.
    pub(crate) fn begin(&mut self) {
        self.until = Instant::now() + self.limit;
    }

    /// Whether all of these can be true at once. `numbers`: whether to return a model, which is needed only where it
    /// refutes a proof.
    pub(crate) fn ask(&mut self, asserted: &[Term], timeout: Duration, numbers: bool) -> anyhow::Result<Answer> {
        if asserted.iter().any(|term| term.known() == Some(0)) {
            return Ok(Answer::Unsat);
        }
        self.queries += 1;
        let timeout = timeout.min(self.until.saturating_duration_since(Instant::now()));
        if timeout.is_zero() {
            return Ok(Answer::Unknown);
        }
        let (text, variables) = term::query(asserted);
        let timeout = timeout.as_millis();
        // Left alone, z3 makes bits of integers that are between two constants, and does not come to an end.
        let (logic, check) = match variables.iter().any(|term| term.bits() == term::INTEGER) {
            true => ("QF_NIA", "(check-sat-using smt)"),
            false => ("QF_BV", "(check-sat)"),
        };
        write!(self.to, "(reset)(set-option :timeout {timeout})(set-logic {logic})\n{text}{check}\n")?;
        self.to.flush()?;
        match self.line()?.as_str() {
            "unsat" => Ok(Answer::Unsat),
            "unknown" | "timeout" => Ok(Answer::Unknown),
            "sat" if numbers => {
                let mut found = Vec::new();
                for term in variables {
                    writeln!(self.to, "(get-value ({term}))")?;
                    self.to.flush()?;
                    found.push(self.line()?);
                }
                Ok(Answer::Sat(found.join(" ")))
            }
            "sat" => Ok(Answer::Sat(String::new())),
            other => bail!("z3 says {other}"),
        }
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            bail!("z3 has ended");
        }
        Ok(line.trim().to_owned())
    }
}

impl Drop for Solver {
    fn drop(&mut self) {
        // The child belongs to this solver, and no caller waits for its answer.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
