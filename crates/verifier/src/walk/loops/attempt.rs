//! An attempt to prove a loop: what it began with, how far it has got, and whether paths that meet in it become one.

use bpf_isa::InsnIdx;

use super::guess::{Guess, MAX_TABLE_TRIES, Shape};
use crate::notes::Notes;
use crate::state::State;
use crate::walk::memory::Size;
use crate::walk::trail;

/// Guesses that are tried besides, where places are related to each other.
const MORE_TRIES: u32 = 5;
/// And where rounds are told apart.
const PARTED_TRIES: u32 = 4;

/// What an attempt is about to find out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// One round as it is, to see what changes.
    Watch,
    /// The body from a loose guess, to see what comes back.
    Loose,
    /// The proof.
    Check,
}

/// Whether paths that meet in the loop become one: each branch that decides nothing would double them.
#[derive(Debug)]
pub(super) enum Blends {
    /// Not as long as there are few.
    NotYet,
    /// They do. If that proves nothing, the attempt goes on from where it was.
    Since(Box<Progress>),
    /// That has proven nothing.
    NoMore,
    /// Without, the loose walk was too long.
    AtLast,
}

/// How far an attempt has got.
#[derive(Debug)]
pub(super) struct Progress {
    shape: Shape,
    tries: u32,
    related: bool,
    distant: bool,
    peels: bool,
    wraps: bool,
    fills: usize,
    asked: u32,
}

/// How an attempt that has failed is made once more.
#[derive(Clone, Copy, Debug)]
pub(super) enum Again {
    /// Paths that meet do not become one any more: from where it was, when so many questions had been asked.
    Apart { asked: u32 },
    /// They do.
    Blended,
}

/// A loop that is being guessed about.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) id: u32,
    /// The id of its round: names the attempt in states.
    pub(super) k: u32,
    /// The frame the loop is in.
    pub(super) frame: usize,
    pub(super) phase: Phase,
    /// What entered the loop, and how it got there.
    pub(super) entry: State,
    pub(super) size: Size,
    pub(super) at: InsnIdx,
    pub(super) path: u32,
    pub(super) epoch: u32,
    /// Branches left for later, the trail and open states, states ever kept, states recorded: when it began.
    pub(super) pending: usize,
    pub(super) mark: trail::Mark,
    pub(super) kept: u32,
    pub(super) recorded: usize,
    pub(super) shape: Shape,
    pub(super) guess: Option<Guess>,
    pub(super) tries: u32,
    /// Simpler guesses have failed: places are related to each other.
    pub(super) related: bool,
    /// That has failed, too: what is about to be forgotten is asked how far what stays is apart.
    pub(super) distant: bool,
    /// These have failed, too: what is loaded is remembered, and the first rounds of inner loops are walked by
    /// themselves.
    pub(super) peels: bool,
    pub(super) blends: Blends,
    /// Of a loose walk: where it ends at the latest.
    pub(super) steps: u64,
    /// In a loose walk, numbers may wrap: nothing came back from one in which they did not.
    pub(super) wraps: bool,
    /// Stores in it that each round moves by what they write: the frame, how far they move, and where the first is.
    pub(super) fills: Vec<(u8, i16, i64)>,
    pub(super) notes: Option<Notes>,
}

impl Attempt {
    /// Bytes of the guess's states, of the notes to which it may have to return, and of the attempt itself.
    pub(super) fn bytes(&self) -> usize {
        let states = self.guess.as_ref().map_or(0, |g| g.states().map(State::bytes).sum());
        states + self.notes.as_ref().map_or(0, Notes::bytes) + size_of::<Attempt>()
    }

    /// From now on, paths that meet in it become one.
    pub(super) fn blend(&mut self, asked: u32) {
        if let Blends::NotYet = self.blends {
            self.blends = Blends::Since(Box::new(Progress {
                shape: self.shape.clone(),
                tries: self.tries.saturating_sub(1),
                related: self.related,
                distant: self.distant,
                peels: self.peels,
                wraps: self.wraps,
                fills: self.fills.len(),
                asked,
            }));
        }
    }

    /// Has failed. If paths that meet in it became one, they do not any more, and it is as far as it was before; if
    /// they did not any more, and it was too long, they do again in another guess of the same kind.
    pub(super) fn unblend(&mut self, too_long: bool) -> Option<Again> {
        match std::mem::replace(&mut self.blends, Blends::NoMore) {
            Blends::Since(before) => {
                let Progress { shape, tries, related, distant, peels, wraps, fills, asked } = *before;
                (self.shape, self.tries, self.wraps) = (shape, tries, wraps);
                (self.related, self.distant, self.peels) = (related, distant, peels);
                self.fills.truncate(fills);
                Some(Again::Apart { asked })
            }
            Blends::NoMore if too_long => {
                self.blends = Blends::AtLast;
                Some(Again::Blended)
            }
            Blends::NotYet => {
                self.blends = Blends::NotYet;
                None
            }
            Blends::NoMore | Blends::AtLast => None,
        }
    }

    /// Relations that do not hold are dropped one after the other, and places that hold none are found so.
    pub(super) fn extra_tries(&self) -> u32 {
        let related = if self.related { MORE_TRIES } else { 0 };
        let tables = if self.shape.has_tables() { MAX_TABLE_TRIES.into() } else { 0 };
        related + tables + if self.shape.is_parted() { PARTED_TRIES } else { 0 }
    }
}
