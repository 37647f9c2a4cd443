//! An attempt to prove a loop: its initial state, its progress, and whether paths that join in it are merged.

use bpf_isa::InsnIdx;

use super::guess::{Guess, MAX_TABLE_TRIES, Shape};
use crate::notes::Notes;
use crate::state::State;
use crate::walk::memory::Size;
use crate::walk::trail;

/// Additional candidates where places are related to each other.
const MORE_TRIES: u32 = 5;
/// Additional candidates where rounds are partitioned.
const PARTED_TRIES: u32 = 4;

/// The phase of an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Sample iteration: one concrete round, to observe what changes.
    Watch,
    /// Havocked iteration: the body from a loose candidate, to see what comes back.
    Loose,
    /// The proof.
    Check,
}

/// Whether paths that join in the loop are merged. Otherwise each branch that decides nothing would double them.
#[derive(Debug)]
pub(super) enum Blends {
    /// Paths are kept apart, as long as there are few.
    NotYet,
    /// Paths are merged. If nothing is proven so, the attempt resumes from the saved progress.
    Since(Box<Progress>),
    /// Merging was tried and has proven nothing: paths are kept apart.
    NoMore,
    /// Paths are merged, since the loose walk without merging was too long.
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

/// How a failed attempt is repeated.
#[derive(Clone, Copy, Debug)]
pub(super) enum Again {
    /// Paths are kept apart. The attempt resumes from the saved progress, when `asked` questions had been asked.
    Apart { asked: u32 },
    /// Paths that join are merged.
    Blended,
}

/// A loop that is being proven.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) id: u32,
    /// The id of its round: names the attempt in states.
    pub(super) k: u32,
    /// The frame the loop is in.
    pub(super) frame: usize,
    pub(super) phase: Phase,
    /// The state that entered the loop, and its path.
    pub(super) entry: State,
    pub(super) size: Size,
    pub(super) at: InsnIdx,
    pub(super) path: u32,
    pub(super) epoch: u32,
    /// Marks of the walk when the attempt began: pending branches, the trail, states ever kept, states recorded.
    pub(super) pending: usize,
    pub(super) mark: trail::Mark,
    pub(super) kept: u32,
    pub(super) recorded: usize,
    pub(super) shape: Shape,
    pub(super) guess: Option<Guess>,
    pub(super) tries: u32,
    /// Whether simpler candidates have failed, and places are related to each other.
    pub(super) related: bool,
    /// Whether these have failed, too, and distances are derived from facts that are about to be forgotten.
    pub(super) distant: bool,
    /// Whether these have failed, too, loads are remembered, and the first rounds of inner loops are peeled.
    pub(super) peels: bool,
    pub(super) blends: Blends,
    /// The step at which a havocked iteration ends at the latest.
    pub(super) steps: u64,
    /// Whether numbers may wrap in a havocked iteration, because nothing came back from one in which they could not, or
    /// no candidate held that was found so. `assumed`: whether one of them assumed that a number fits a cast.
    pub(super) wraps: bool,
    pub(super) assumed: bool,
    /// Stores that each round moves by as much as they write: the frame, the distance moved, and the first place.
    pub(super) fills: Vec<(u8, i16, i64)>,
    pub(super) notes: Option<Notes>,
}

impl Attempt {
    /// Bytes of the candidate's states, of the saved notes, and of the attempt itself.
    pub(super) fn bytes(&self) -> usize {
        let states = self.guess.as_ref().map_or(0, |g| g.states().map(State::bytes).sum());
        states + self.notes.as_ref().map_or(0, Notes::bytes) + size_of::<Attempt>()
    }

    /// Enables merging of paths that join in the loop.
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

    /// Handles a failure that merging may have caused. If paths were merged, the attempt resumes its saved progress
    /// without merging; if it was then too long, another candidate of the same kind is tried with merging.
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

    /// The number of additional candidates: relations that do not hold are dropped one after the other, and places that
    /// hold none are found one by one.
    pub(super) fn extra_tries(&self) -> u32 {
        let related = if self.related { MORE_TRIES } else { 0 };
        let tables = if self.shape.has_tables() { MAX_TABLE_TRIES.into() } else { 0 };
        related + tables + if self.shape.is_parted() { PARTED_TRIES } else { 0 }
    }
}
