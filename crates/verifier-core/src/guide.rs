//! The untrusted side of a check: who says what is kept, and by which multipliers a claim holds.
//!
//! Problem: finding invariants, renamings and multipliers takes heuristics. Approach: the check asks a [`Guide`], and
//! believes nothing that it answers: a covering point is checked by `entails`, multipliers by `Knowledge::proves`, and
//! the two sides of a split are both walked. As in proof-carrying code (Necula, POPL 1997) and BCF (SOSP 2025), the
//! search is outside. A [`Recording`] of the answers, with the kept points, is a certificate: replayed, it makes the
//! check one pass without any search.

use bpf_isa::InsnIdx;

use crate::domain::{Combination, Form};
use crate::state::{Invariant, State};

/// A point of the program at which something is claimed to hold whenever it is reached, and why it is not for ever.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kept {
    /// The instruction that is about to run.
    pub at: InsnIdx,
    /// What holds then.
    pub claim: Invariant,
    /// A lexicographic rank over the names of the claim: each way from one kept point to the next decreases it.
    pub rank: Vec<Form>,
}

/// Where the check is.
#[derive(Debug)]
pub struct Point<'a> {
    /// The instruction that is about to run.
    pub pc: InsnIdx,
    /// The kept point that the segment began at; `None` for the program's entry.
    pub from: Option<usize>,
    /// Whether that is here: nothing has run in between.
    pub starts: bool,
    /// The state.
    pub state: &'a State,
}

/// What to do at a point.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Run the instruction.
    Step,
    /// End the way here: the kept point of this number holds, its names being these forms.
    Cover {
        /// Which kept point.
        kept: usize,
        /// What each of its names is.
        renaming: Vec<Form>,
    },
    /// Walk on twice: where the form is not negative, and where it is.
    Split(Form),
    /// Give a name to the residue of the form modulo 2^64, and use it where the form is now.
    Name {
        /// The form, as it is in a register or a slot.
        form: Form,
        /// Whether the name stands for the signed value.
        signed: bool,
    },
    /// Give up.
    Stop,
}

/// Answers what the check asks. Nothing that it says can make an unsafe program accepted.
pub trait Guide {
    /// What to do at this point.
    fn advise(&mut self, point: &Point<'_>) -> Advice;
    /// Multipliers by which the form is not negative; `None` if there are none.
    fn prove(&mut self, point: &Point<'_>, claim: &Form) -> Option<Combination>;
}

/// An answer of a guide that is not the obvious one ([`Advice::Step`], or none).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// To [`Guide::advise`].
    Advice(Advice),
    /// To [`Guide::prove`].
    Proof(Combination),
}

/// Answers of a guide, each with how many obvious answers come before it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recording {
    /// In the order of the check.
    pub answers: Vec<(u64, Answer)>,
}

/// A guide that asks another and notes what that says.
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
    /// A recorder of what this guide answers.
    pub fn new(guide: &'a mut dyn Guide) -> Recorder<'a> {
        Recorder { guide, obvious: 0, recording: Recording::default() }
    }

    /// What was answered.
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

/// A guide that gives recorded answers. Whatever was recorded, it stops where a recorded answer does not fit.
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
