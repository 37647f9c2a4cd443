//! One site: a private state, and views of the site whose types are the states.
//!
//! A transition consumes its view, pokes at most one instruction, and stores the new state only if the poke
//! succeeded. A failed transition returns the view ([`Failed`]). The poke compares the old instruction, so a
//! difference between text and state is detected.
//!
//! A displaced target, to which other CPUs may still jump, is returned as [`Displaced`] and is released only with an
//! [`Elapsed`] that covers it.

use crate::order::{Barrier, Clock, Elapsed, Fences, Stamp};

/// One of the two patchable instructions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Slot {
    /// Jumps over the unwinding of the frame, or is a nop.
    Bypass,
    /// A nop, or a jump to the program.
    Target,
}

/// The content of a patchable instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Insn {
    /// Does nothing.
    Nop,
    /// Jumps past the site: in [`Slot::Bypass`] only.
    Out,
    /// Jumps to this address: in [`Slot::Target`] only.
    Jump(usize),
}

/// The patchable instructions of a site.
pub trait Slots {
    /// The reason why an instruction was not replaced.
    type Error;

    /// Replaces `old` by `new`, atomically for threads that run the code, or changes nothing.
    ///
    /// # Errors
    /// If nothing was changed: the slot does not hold `old`, or it cannot be written.
    fn poke(&self, slot: Slot, old: Insn, new: Insn) -> Result<(), Self::Error>;
}

/// A program to jump to, which lives as long as this value.
pub trait Target: Clone {
    /// The address of the entry.
    fn address(&self) -> usize;
}

#[derive(Debug)]
enum State<T> {
    Unlinked,
    /// `written`: the time of the last write to TARGET.
    Armed {
        target: T,
        written: Stamp,
    },
    Linked {
        target: T,
    },
    /// `closed`: the time when BYPASS was closed, or when the site left [`State::Armed`].
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

/// A site that jumps past itself and has no jump to a target.
#[derive(Debug)]
pub struct Unlinked<'a, S, T>(&'a mut Site<S, T>);

/// A site that jumps past itself; the jump to the target is written.
#[derive(Debug)]
pub struct Armed<'a, S, T> {
    site: &'a mut Site<S, T>,
    target: T,
    written: Stamp,
}

/// A site that jumps to the target.
#[derive(Debug)]
pub struct Linked<'a, S, T> {
    site: &'a mut Site<S, T>,
    target: T,
}

/// A site that jumps past itself; CPUs that do not see that yet jump to the target.
#[derive(Debug)]
pub struct Draining<'a, S, T> {
    site: &'a mut Site<S, T>,
    target: T,
    closed: Stamp,
}

/// A transition that failed: text and state are unchanged.
#[derive(Debug)]
pub struct Failed<V, E> {
    /// The site, in its unchanged state.
    pub site: V,
    /// The reason.
    pub error: Failure<E>,
}

/// The reason why a transition failed.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure<E> {
    /// The token was stamped before the step that this transition depends on, or comes from another clock.
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
    /// Returns the target, once no CPU jumps to it any more.
    ///
    /// # Errors
    /// The displaced target itself, if `elapsed` does not cover the step that displaced it.
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

    /// The target that the site keeps alive, if there is one.
    pub fn target(&self) -> Option<&T> {
        match &self.state {
            State::Unlinked => None,
            State::Armed { target, .. } | State::Linked { target } | State::Draining { target, .. } => Some(target),
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
        // Addresses are compared: two handles of one program are the same jump.
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
    /// Writes the jump after the closed bypass.
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
    /// The target that it will jump to.
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

    /// Writes another jump. Threads that entered before the site was last closed may still take the old one.
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

    /// Gives up opening the site. Changes no instruction, but threads that entered before it was armed may be inside.
    pub fn abandon<F: Fences>(self, clock: &Clock<F>) -> Draining<'a, S, T> {
        let Armed { site, target, .. } = self;
        let closed = clock.tick();
        site.state = State::Draining { target: target.clone(), closed };
        Draining { site, target, closed }
    }
}

impl<'a, S: Slots, T: Target> Linked<'a, S, T> {
    /// The target that it jumps to.
    pub fn target(&self) -> &T {
        &self.target
    }

    /// Makes the site jump to another target: one poke, on which only the freeing of the old target depends.
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
    /// The target that the last threads may jump to.
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

    /// Writes another jump, so that the site can be opened again.
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
