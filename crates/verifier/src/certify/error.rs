//! Why a proof is not accepted, and why none is found.

use std::fmt;

use bpf_verifier_core::Refusal;

use super::against::Part;

/// The version of the form of proofs that is read and written here.
pub(super) const VERSION: u32 = 3;

/// Why a program is not accepted by a proof.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProofError {
    /// The object carries no proof of this program.
    #[error("the object carries no proof of it; `bpf prove` makes one")]
    Missing,
    /// The bytes are no proof.
    #[error("the proof is malformed: {what} at byte {at}")]
    Malformed {
        /// The place, in bytes from the start of the section or of the proof.
        at: usize,
        /// The unexpected content there.
        what: &'static str,
    },
    /// The proofs are in a form of another version.
    #[error("the proofs have form {found}, and this verifier reads form {}", VERSION)]
    Version {
        /// The version that was found.
        found: u32,
    },
    /// The proof was made for another program or environment.
    #[error("the proof was made with other inputs ({part}); run `bpf prove` again")]
    Differs {
        /// The first part that differs.
        part: Part,
    },
    /// The check does not accept the proof.
    #[error("the proof does not hold {0}")]
    NotProven(Refusal),
}

impl From<Refusal> for ProofError {
    fn from(error: Refusal) -> ProofError {
        ProofError::NotProven(error)
    }
}

/// A strategy of the search for certificates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Strategy {
    /// An invariant for each loop head.
    Heads,
    /// An invariant for each loop head and the kinds of values there.
    HeadsByKind,
    /// An invariant for each loop head, the kinds of values there, and the constants among them.
    HeadsByConstant,
    /// An invariant for each loop head, the kinds of values there, and the places in constant maps.
    HeadsByPosition,
    /// Each path by itself, and each round of a loop.
    Unrolled,
    /// An invariant wherever paths join.
    Joins,
    /// An invariant wherever paths join, for the kinds of values there.
    JoinsByKind,
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Strategy::Heads => "with an invariant for each loop",
            Strategy::HeadsByKind => "with an invariant for each loop and kind of values",
            Strategy::HeadsByConstant => "with an invariant for each loop, kind of values and constant",
            Strategy::HeadsByPosition => "with an invariant for each loop, kind of values and place in constant data",
            Strategy::Unrolled => "path by path",
            Strategy::Joins => "with an invariant for each join",
            Strategy::JoinsByKind => "with an invariant for each join and kind of values",
        })
    }
}

/// A strategy, and the first step that it could not prove.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Tried {
    /// The strategy.
    pub strategy: Strategy,
    /// The first step that could not be proven.
    pub refusal: Refusal,
}

/// A program for which no certificate was found. The program may be safe nevertheless.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub struct Unproven {
    /// Each strategy that was tried, in order.
    pub tried: Vec<Tried>,
}

impl fmt::Display for Unproven {
    /// The first strategy's refusal, then those of others that stopped elsewhere or for other reasons.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.tried.first() else { return f.write_str("nothing was tried") };
        write!(f, "{}, {}", first.refusal, first.strategy)?;
        for (i, Tried { strategy, refusal }) in self.tried.iter().enumerate().skip(1) {
            if !self.tried[..i].iter().any(|other| other.refusal == *refusal) {
                write!(f, "; {refusal}, {strategy}")?;
            }
        }
        Ok(())
    }
}
