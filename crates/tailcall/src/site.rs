//! One site: a private state, and views of it whose types are the states.
//!
//! A transition consumes its view, pokes at most one instruction, and stores the new state only if that worked; a
//! failed one gives the view back ([`Failed`]). The poke compares the old instruction, so text and state cannot drift
//! apart unnoticed.
//!
//! What is displaced (a target that other CPUs may still jump to) comes back as [`Displaced`] and is released only with
//! an [`Elapsed`] that covers it.

use crate::order::{Barrier, Clock, Elapsed, Fences, Stamp};

/// One of the two patchable instructions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Slot {
    /// Jumps over the unwinding, or is a nop.
    Bypass,
    /// A nop, or jumps to the program.
    Target,
}

/// What a patchable instruction does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Insn {
    /// Nothing.
    Nop,
    /// Jumps behind the site: in [`Slot::Bypass`] only.
    Out,
    /// Jumps to this address: in [`Slot::Target`] only.
    Jump(usize),
}

/// The text of a site.
pub trait Slots {
    /// Why an instruction was not replaced.
    type Error;

    /// Replaces `old` by `new`, atomically for threads that run the code, or changes nothing.
    ///
    /// # Errors
    /// If nothing was changed: `old` is not what is there, or it cannot be written.
    fn poke(&self, slot: Slot, old: Insn, new: Insn) -> Result<(), Self::Error>;
}

/// A program to jump to, which lives as long as this value.
pub trait Target: Clone {
    /// Where it is entered.
    fn address(&self) -> usize;
}

#[derive(Debug)]
enum State<T> {
    Unlinked,
    /// `written`: when TARGET was written last.
    Armed {
        target: T,
        written: Stamp,
    },
    Linked {
        target: T,
    },
    /// `closed`: when BYPASS was closed, or the site left [`State::Armed`].
    Draining {
        target: T,
        closed: Stamp,
    },
}

/// A direct tail-call site.
#[derive(Debug)]
pub struct Site<S, T> {
    slots: S,
    state: State<T>,
}

/// A site in the state that is its type.
#[derive(Debug)]
pub enum View<'a, S, T> {
    /// See [`Unlinked`].
    Unlinked(Unlinked<'a, S, T>),
    /// See [`Armed`].
    Armed(Armed<'a, S, T>),
    /// See [`Linked`].
    Linked(Linked<'a, S, T>),
    /// See [`Draining`].
    Draining(Draining<'a, S, T>),
}

/// Jumps over, and to nothing.
#[derive(Debug)]
pub struct Unlinked<'a, S, T>(&'a mut Site<S, T>);

/// Jumps over; the jump to the target is written.
#[derive(Debug)]
pub struct Armed<'a, S, T> {
    site: &'a mut Site<S, T>,
    target: T,
    written: Stamp,
}

/// Jumps to the target.
#[derive(Debug)]
pub struct Linked<'a, S, T> {
    site: &'a mut Site<S, T>,
    target: T,
}

/// Jumps over; some threads may not see that yet, and jump to the target.
#[derive(Debug)]
pub struct Draining<'a, S, T> {
    site: &'a mut Site<S, T>,
    target: T,
    closed: Stamp,
}

/// A transition that did not happen: text and state are as before.
#[derive(Debug)]
pub struct Failed<V, E> {
    /// The site, in the state it was in.
    pub site: V,
    /// Why.
    pub error: Failure<E>,
}

/// Why a transition did not happen.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure<E> {
    /// The token stands for a time before the step that this one depends on, or comes from another clock.
    Early,
    /// The instruction was not replaced.
    Poke(E),
}

/// A target that CPUs may still jump to.
#[derive(Debug)]
#[must_use = "dropping it frees a program that CPUs may still jump to"]
pub struct Displaced<T> {
    target: T,
    at: Stamp,
}

impl<T> Displaced<T> {
    /// The target, once nothing jumps to it any more.
    ///
    /// # Errors
    /// Itself, if `elapsed` does not cover the step that displaced it.
    pub fn release(self, elapsed: &Elapsed) -> Result<T, Displaced<T>> {
        if elapsed.covers(self.at) { Ok(self.target) } else { Err(self) }
    }
}

impl<S: Slots, T: Target> Site<S, T> {
    /// A site as the compiler emits it: unlinked.
    pub fn new(slots: S) -> Site<S, T> {
        Site { slots, state: State::Unlinked }
    }

    /// The instructions that the text holds in this state: BYPASS and TARGET.
    pub fn instructions(&self) -> (Insn, Insn) {
        match &self.state {
            State::Unlinked => (Insn::Out, Insn::Nop),
            State::Armed { target, .. } | State::Draining { target, .. } => (Insn::Out, Insn::Jump(target.address())),
            State::Linked { target } => (Insn::Nop, Insn::Jump(target.address())),
        }
    }

    /// The site in its state.
    pub fn view(&mut self) -> View<'_, S, T> {
        match &self.state {
            State::Unlinked => View::Unlinked(Unlinked(self)),
            State::Armed { target, written } => {
                let (target, written) = (target.clone(), *written);
                View::Armed(Armed { site: self, target, written })
            }
            State::Linked { target } => {
                let target = target.clone();
                View::Linked(Linked { site: self, target })
            }
            State::Draining { target, closed } => {
                let (target, closed) = (target.clone(), *closed);
                View::Draining(Draining { site: self, target, closed })
            }
        }
    }

    fn poke_target(&self, old: Insn, new: &T) -> Result<(), S::Error> {
        let new = Insn::Jump(new.address());
        // The compare is of addresses: two handles of one program are the same jump.
        if old == new { Ok(()) } else { self.slots.poke(Slot::Target, old, new) }
    }
}

/// Pokes, and gives the view back if that failed.
macro_rules! attempt {
    ($view:expr, $poke:expr) => {
        if let Err(error) = $poke {
            return Err(Failed { site: $view, error: Failure::Poke(error) });
        }
    };
}

impl<'a, S: Slots, T: Target> Unlinked<'a, S, T> {
    /// Writes the jump behind the closed bypass.
    ///
    /// # Errors
    /// [`Failure::Poke`].
    pub fn arm<F: Fences>(self, target: T, clock: &Clock<F>) -> Result<Armed<'a, S, T>, Failed<Self, S::Error>> {
        attempt!(self, self.0.poke_target(Insn::Nop, &target));
        let written = clock.tick();
        self.0.state = State::Armed { target: target.clone(), written };
        Ok(Armed { site: self.0, target, written })
    }
}

impl<'a, S: Slots, T: Target> Armed<'a, S, T> {
    /// Where it will jump.
    pub fn target(&self) -> &T {
        &self.target
    }

    /// Opens the bypass.
    ///
    /// # Errors
    /// [`Failure::Early`] unless the barrier began after the jump was written; [`Failure::Poke`].
    pub fn open(self, barrier: &Barrier) -> Result<Linked<'a, S, T>, Failed<Self, S::Error>> {
        if !barrier.covers(self.written) {
            return Err(Failed { site: self, error: Failure::Early });
        }
        attempt!(self, self.site.slots.poke(Slot::Bypass, Insn::Out, Insn::Nop));
        let Armed { site, target, .. } = self;
        site.state = State::Linked { target: target.clone() };
        Ok(Linked { site, target })
    }

    /// Writes another jump. Threads that came in before the site was closed last may still take the old one.
    ///
    /// # Errors
    /// [`Failure::Poke`].
    pub fn retarget<F: Fences>(
        self,
        target: T,
        clock: &Clock<F>,
    ) -> Result<(Self, Displaced<T>), Failed<Self, S::Error>> {
        attempt!(self, self.site.poke_target(Insn::Jump(self.target.address()), &target));
        let at = clock.tick();
        let Armed { site, target: old, .. } = self;
        site.state = State::Armed { target: target.clone(), written: at };
        Ok((Armed { site, target, written: at }, Displaced { target: old, at }))
    }

    /// Gives up opening it. Changes no instruction; but from before it was armed there may be threads inside.
    pub fn abandon<F: Fences>(self, clock: &Clock<F>) -> Draining<'a, S, T> {
        let Armed { site, target, .. } = self;
        let closed = clock.tick();
        site.state = State::Draining { target: target.clone(), closed };
        Draining { site, target, closed }
    }
}

impl<'a, S: Slots, T: Target> Linked<'a, S, T> {
    /// Where it jumps.
    pub fn target(&self) -> &T {
        &self.target
    }

    /// Jumps elsewhere from now on: one poke, on which nothing depends but the freeing of the old target.
    ///
    /// # Errors
    /// [`Failure::Poke`].
    pub fn retarget<F: Fences>(
        self,
        target: T,
        clock: &Clock<F>,
    ) -> Result<(Self, Displaced<T>), Failed<Self, S::Error>> {
        attempt!(self, self.site.poke_target(Insn::Jump(self.target.address()), &target));
        let at = clock.tick();
        let Linked { site, target: old } = self;
        site.state = State::Linked { target: target.clone() };
        Ok((Linked { site, target }, Displaced { target: old, at }))
    }

    /// Closes the bypass.
    ///
    /// # Errors
    /// [`Failure::Poke`].
    pub fn close<F: Fences>(self, clock: &Clock<F>) -> Result<Draining<'a, S, T>, Failed<Self, S::Error>> {
        attempt!(self, self.site.slots.poke(Slot::Bypass, Insn::Nop, Insn::Out));
        let closed = clock.tick();
        let Linked { site, target } = self;
        site.state = State::Draining { target: target.clone(), closed };
        Ok(Draining { site, target, closed })
    }
}

impl<'a, S: Slots, T: Target> Draining<'a, S, T> {
    /// Where the last threads jump.
    pub fn target(&self) -> &T {
        &self.target
    }

    /// Removes the jump.
    ///
    /// # Errors
    /// [`Failure::Early`] unless the grace period began after a barrier that began after the bypass was closed;
    /// [`Failure::Poke`].
    #[allow(
        clippy::type_complexity,
        reason = "the result spells out the transition: the next state and what it released"
    )]
    pub fn unlink(self, elapsed: &Elapsed) -> Result<(Unlinked<'a, S, T>, T), Failed<Self, S::Error>> {
        if !elapsed.covers(self.closed) {
            return Err(Failed { site: self, error: Failure::Early });
        }
        attempt!(self, self.site.slots.poke(Slot::Target, Insn::Jump(self.target.address()), Insn::Nop));
        let Draining { site, target, .. } = self;
        site.state = State::Unlinked;
        Ok((Unlinked(site), target))
    }

    /// Writes another jump, to be opened again.
    ///
    /// # Errors
    /// [`Failure::Poke`].
    #[allow(clippy::type_complexity, reason = "as above")]
    pub fn arm<F: Fences>(
        self,
        target: T,
        clock: &Clock<F>,
    ) -> Result<(Armed<'a, S, T>, Displaced<T>), Failed<Self, S::Error>> {
        attempt!(self, self.site.poke_target(Insn::Jump(self.target.address()), &target));
        let written = clock.tick();
        let Draining { site, target: old, .. } = self;
        site.state = State::Armed { target: target.clone(), written };
        Ok((Armed { site, target, written }, Displaced { target: old, at: written }))
    }
}
