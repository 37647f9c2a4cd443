//! The untrusted side of a check: a [`Guide`] proposes covering points, renamings and multipliers.
//!
//! Problem: finding invariants, renamings and multipliers takes heuristics. Approach: the check asks a [`Guide`], and
//! trusts none of its answers: a covering point is checked by `entails`, multipliers by `Knowledge::proves`, and
//! the two sides of a split are both walked. As in proof-carrying code (Necula, POPL 1997) and BCF (SOSP 2025), the
//! search is outside. A [`Recording`] of the answers, with the kept points, is a certificate: replayed, it makes the
//! check one pass without any search.

use bpf_isa::InsnIdx;

use crate::domain::{Combination, Form};
use crate::state::{Invariant, State};

/// A point of the program with an invariant that is claimed to hold whenever the point is reached, and a rank that
/// shows that the point is reached finitely often.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kept {
    /// The instruction that is about to run.
    pub at: InsnIdx,
    /// The invariant before that instruction.
    pub claim: Invariant,
    /// A lexicographic rank over the names of the claim: each way from one kept point to the next decreases it.
    pub rank: Vec<Form>,
}

/// The position of the check, for a question to the guide.
#[derive(Debug)]
pub struct Point<'a> {
    /// The instruction that is about to run.
    pub pc: InsnIdx,
    /// The kept point that the segment began at; `None` for the program's entry.
    pub from: Option<usize>,
    /// Whether the segment begins here: no instruction has run since it began.
    pub starts: bool,
    /// The abstract state before that instruction.
    pub state: &'a State,
}

/// The action to take at a point.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Run the instruction.
    Step,
    /// End the path here: this kept point covers the state under the renaming.
    Cover {
        /// Index of the kept point.
        kept: usize,
        /// For each name of the claim, its value as a form over the names of the state.
        renaming: Vec<Form>,
    },
    /// Continue with two states: one in which the form is not negative, one in which the form is negative.
    Split(Form),
    /// Give a name to the residue of the form modulo 2^64, and replace the form by that name.
    Name {
        /// The form, as it is in a register or a slot.
        form: Form,
        /// Whether the name stands for the signed value.
        signed: bool,
    },
    /// Give up.
    Stop,
}

/// Answers questions of the check. No answer can make the check accept an unsafe program.
pub trait Guide {
    /// Returns what to do at this point.
    fn advise(&mut self, point: &Point<'_>) -> Advice;
    /// Returns multipliers that prove that the form is not negative; `None` if the guide finds none.
    fn prove(&mut self, point: &Point<'_>, claim: &Form) -> Option<Combination>;
}

/// An answer of a guide other than the default ([`Advice::Step`], or no multipliers).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// An answer to [`Guide::advise`].
    Advice(Advice),
    /// An answer to [`Guide::prove`].
    Proof(Combination),
}

/// The answers of a guide. Each stands with the number of default answers between it and its predecessor.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recording {
    /// The answers in the order in which the check asked.
    pub answers: Vec<(u64, Answer)>,
}

/// A guide that asks another guide and records its answers.
pub struct Recorder<'a> {
    guide: &'a mut dyn Guide,
    obvious: u64,
    recording: Recording,
}

impl std::fmt::Debug for Recorder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("recording", &self.recording).finish_non_exhaustive()
    }
}

impl<'a> Recorder<'a> {
    /// A recorder of the answers of `guide`.
    pub fn new(guide: &'a mut dyn Guide) -> Recorder<'a> {
        Recorder { guide, obvious: 0, recording: Recording::default() }
    }

    /// The recorded answers.
    pub fn finish(self) -> Recording {
        self.recording
    }

    fn note(&mut self, answer: Option<Answer>) {
        match answer {
            Some(answer) => self.recording.answers.push((std::mem::take(&mut self.obvious), answer)),
            None => self.obvious += 1,
        }
    }
}

impl Guide for Recorder<'_> {
    fn advise(&mut self, point: &Point<'_>) -> Advice {
        let advice = self.guide.advise(point);
        self.note((advice != Advice::Step).then(|| Answer::Advice(advice.clone())));
        advice
    }

    fn prove(&mut self, point: &Point<'_>, claim: &Form) -> Option<Combination> {
        let proof = self.guide.prove(point, claim);
        self.note(proof.clone().map(Answer::Proof));
        proof
    }
}

/// A guide that replays recorded answers. Where the kind of the recorded answer does not fit the question, `advise`
/// stops and `prove` has no multipliers.
#[derive(Debug)]
pub struct Replay<'a> {
    answers: std::slice::Iter<'a, (u64, Answer)>,
    next: Option<&'a (u64, Answer)>,
    obvious: u64,
}

impl<'a> Replay<'a> {
    /// A guide that gives these answers.
    pub fn new(recording: &'a Recording) -> Replay<'a> {
        let mut answers = recording.answers.iter();
        let next = answers.next();
        Replay { answers, next, obvious: 0 }
    }

    /// The recorded answer, if it is due.
    fn answer(&mut self) -> Option<&'a Answer> {
        match self.next {
            Some((after, answer)) if *after == self.obvious => {
                self.next = self.answers.next();
                self.obvious = 0;
                Some(answer)
            }
            Some(_) | None => {
                self.obvious = self.obvious.saturating_add(1);
                None
            }
        }
    }
}

impl Guide for Replay<'_> {
    fn advise(&mut self, _: &Point<'_>) -> Advice {
        match self.answer() {
            Some(Answer::Advice(advice)) => advice.clone(),
            Some(Answer::Proof(_)) => Advice::Stop,
            None => Advice::Step,
        }
    }

    fn prove(&mut self, _: &Point<'_>, _: &Form) -> Option<Combination> {
        match self.answer() {
            Some(Answer::Proof(proof)) => Some(proof.clone()),
            Some(Answer::Advice(_)) | None => None,
        }
    }
}
