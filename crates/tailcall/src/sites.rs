//! All sites that jump through one table, updated together.
//!
//! Problem: a slot of a table may be the target of thousands of sites, and a barrier costs microseconds. Approach: an
//! update changes any number of slots in two phases with one barrier between them. The first writes all jumps and
//! closes all bypasses; the second opens the armed sites. Removing the jumps of closed sites and releasing displaced
//! targets waits for one grace period begun after that barrier. The next call of [`Sites::settle`] after its end
//! completes it.
//!
//! Invariant: an update that fails restores the previous targets of the sites. If that fails too, a site may stay
//! closed (its tail call falls through) or jump to the new target, which it keeps alive. Text and state still agree,
//! nothing is freed early, and the next update tries again.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use crate::order::{Barrier, Clock, Elapsed, Fences, Grace};
use crate::site::{Displaced, Failed, Failure, Site, Slots, Target, View};

/// Slot of the table, owner of the code, number of the site within both.
type Key = (u32, u64, u32);

/// The sites of one table.
#[derive(Debug)]
pub struct Sites<S, T, P> {
    sites: BTreeMap<Key, Site<S, T>>,
    /// Targets displaced by steps that no barrier has followed yet.
    displaced: Vec<Displaced<T>>,
    /// Oldest first.
    pending: Vec<Pending<T, P>>,
}

/// Work that waits for a grace period.
#[derive(Debug)]
struct Pending<T, P> {
    grace: Grace<P>,
    /// Slots with sites to unlink.
    slots: Vec<u32>,
    displaced: Vec<Displaced<T>>,
}

/// A new target for a slot of the table.
#[derive(Clone, Debug)]
pub struct Change<T> {
    /// The slot.
    pub index: u32,
    /// The target that the slot holds.
    pub old: Option<T>,
    /// The target that the slot will hold.
    pub new: Option<T>,
}

/// The reason why an update was undone.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UpdateError<E, B> {
    /// An instruction was not replaced.
    Poke(E),
    /// The barrier was not executed.
    Barrier(B),
    /// A bug in this crate: a token did not cover the step that it was made for.
    Internal,
}

impl<E: fmt::Display, B: fmt::Display> fmt::Display for UpdateError<E, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UpdateError::Poke(error) => error.fmt(f),
            UpdateError::Barrier(error) => error.fmt(f),
            UpdateError::Internal => f.write_str("internal error: a barrier came too early"),
        }
    }
}

impl<E: fmt::Debug + fmt::Display, B: fmt::Debug + fmt::Display> core::error::Error for UpdateError<E, B> {}

impl<E, B> From<Failure<E>> for UpdateError<E, B> {
    fn from(failure: Failure<E>) -> Self {
        match failure {
            Failure::Early => UpdateError::Internal,
            Failure::Poke(error) => UpdateError::Poke(error),
        }
    }
}

impl<S, T, P> Default for Sites<S, T, P> {
    fn default() -> Self {
        Sites { sites: BTreeMap::new(), displaced: Vec::new(), pending: Vec::new() }
    }
}

fn of_slot(index: u32) -> RangeInclusive<Key> {
    (index, 0, 0)..=(index, u64::MAX, u32::MAX)
}

fn of_owner(index: u32, owner: u64) -> RangeInclusive<Key> {
    (index, owner, 0)..=(index, owner, u32::MAX)
}

impl<S: Slots, T: Target, P> Sites<S, T, P> {
    /// Number of sites that jump through slot `index`.
    pub fn tracked(&self, index: u32) -> usize {
        self.sites.range(of_slot(index)).count()
    }

    /// All sites, with their slots.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Site<S, T>)> {
        self.sites.iter().map(|(key, site)| (key.0, site))
    }

    /// Whether no work waits for [`Sites::settle`].
    pub fn is_settled(&self) -> bool {
        self.pending.is_empty()
    }

    /// Adds the sites of one owner's code, which no thread runs yet, and links those whose slot holds a target.
    ///
    /// # Errors
    /// [`UpdateError`]; none of the sites is tracked then.
    pub fn track<F: Fences<Period = P>>(
        &mut self,
        clock: &Clock<F>,
        owner: u64,
        sites: impl IntoIterator<Item = (u32, S)>,
        current: impl Fn(u32) -> Option<T>,
    ) -> Result<(), UpdateError<S::Error, F::Error>> {
        let mut slots = Vec::new();
        for (number, (index, site)) in (0u32..).zip(sites) {
            self.sites.insert((index, owner, number), Site::new(site));
            slots.push(index);
        }
        slots.sort_unstable();
        slots.dedup();
        let wanted: Vec<_> = slots.iter().map(|index| (of_owner(*index, owner), current(*index))).collect();
        self.link(clock, &wanted).inspect_err(|_| {
            for index in slots {
                self.untrack(index, owner);
            }
        })
    }

    /// Removes an owner's sites in slot `index`. No new run of its code begins, so the text may stay as it is. Drop
    /// the result without holding a lock that dropping a target could take.
    pub fn untrack(&mut self, index: u32, owner: u64) -> Vec<Site<S, T>> {
        let keys: Vec<Key> = self.sites.range(of_owner(index, owner)).map(|(key, _)| *key).collect();
        keys.iter().filter_map(|key| self.sites.remove(key)).collect()
    }

    /// Makes the sites of all changed slots jump to their new targets, with one barrier for all of them, and none if
    /// there is no site.
    ///
    /// [`UpdateError`]; the sites jump to their previous targets.
    /// [`UpdateError`]; the sites jump where they did.
    pub fn update<F: Fences<Period = P>>(
        &mut self,
        clock: &Clock<F>,
        changes: &[Change<T>],
    ) -> Result<(), UpdateError<S::Error, F::Error>> {
        let ranges = |target: fn(&Change<T>) -> &Option<T>| -> Vec<_> {
            changes.iter().map(|change| (of_slot(change.index), target(change).clone())).collect()
        };
        self.link(clock, &ranges(|change| &change.new)).inspect_err(|_| {
            // The first error is reported; for a second one see the invariant above.
            let _ = self.link(clock, &ranges(|change| &change.old));
        })
    }

    /// Both phases, for any ranges of sites.
    fn link<F: Fences<Period = P>>(
        &mut self,
        clock: &Clock<F>,
        wanted: &[(RangeInclusive<Key>, Option<T>)],
    ) -> Result<(), UpdateError<S::Error, F::Error>> {
        let mut armed = false;
        let mut closed = Vec::new();
        for (range, target) in wanted {
            for (key, site) in self.sites.range_mut(range.clone()) {
                match target {
                    Some(target) => self.displaced.extend(toward(site, target, clock, &mut armed)?),
                    None => {
                        if away(site, clock)? && closed.last() != Some(&key.0) {
                            closed.push(key.0);
                        }
                    }
                }
            }
        }
        if !armed && closed.is_empty() && self.displaced.is_empty() {
            return Ok(());
        }
        let barrier = clock.barrier().map_err(UpdateError::Barrier)?;
        if !closed.is_empty() || !self.displaced.is_empty() {
            let displaced = std::mem::take(&mut self.displaced);
            self.pending.push(Pending { grace: clock.grace(&barrier), slots: closed, displaced });
        }
        for (range, _) in wanted.iter().filter(|(_, target)| target.is_some()) {
            for site in self.sites.range_mut(range.clone()).map(|(_, site)| site) {
                open(site, &barrier)?;
            }
        }
        Ok(())
    }

    /// Completes the work that can be done without waiting, and returns targets that no site jumps to any more. Drop
    /// them without holding a lock that dropping a target could take.
    pub fn settle<F: Fences<Period = P>>(&mut self, clock: &Clock<F>) -> Vec<T> {
        let mut free = Vec::new();
        while let Some(elapsed) = self.pending.first().and_then(|oldest| clock.elapsed(&oldest.grace)) {
            let Pending { slots, displaced, .. } = self.pending.remove(0);
            for index in slots {
                for site in self.sites.range_mut(of_slot(index)).map(|(_, site)| site) {
                    free.extend(unlink(site, &elapsed));
                }
            }
            for displaced in displaced {
                match displaced.release(&elapsed) {
                    Ok(target) => free.push(target),
                    Err(early) => self.displaced.push(early),
                }
            }
        }
        free
    }
}

/// The first phase of setting a target. Returns the target it displaced, and sets `armed` if the second phase must
/// open the site.
fn toward<S: Slots, T: Target, F: Fences>(
    site: &mut Site<S, T>,
    target: &T,
    clock: &Clock<F>,
    armed: &mut bool,
) -> Result<Option<Displaced<T>>, Failure<S::Error>> {
    let displaced = match site.view() {
        View::Unlinked(site) => {
            site.arm(target.clone(), clock).map_err(reason)?;
            *armed = true;
            None
        }
        View::Armed(site) => {
            *armed = true;
            Some(site.retarget(target.clone(), clock).map_err(reason)?.1)
        }
        View::Linked(site) if site.target().address() == target.address() => None,
        View::Linked(site) => Some(site.retarget(target.clone(), clock).map_err(reason)?.1),
        View::Draining(site) => {
            *armed = true;
            Some(site.arm(target.clone(), clock).map_err(reason)?.1)
        }
    };
    Ok(displaced)
}

/// The first phase of removing a target. Returns whether the site must be unlinked later.
fn away<S: Slots, T: Target, F: Fences>(site: &mut Site<S, T>, clock: &Clock<F>) -> Result<bool, Failure<S::Error>> {
    match site.view() {
        View::Unlinked(_) => return Ok(false),
        View::Armed(site) => drop(site.abandon(clock)),
        View::Linked(site) => drop(site.close(clock).map_err(reason)?),
        View::Draining(_) => {}
    }
    Ok(true)
}

/// The second phase: opens a site.
fn open<S: Slots, T: Target>(site: &mut Site<S, T>, barrier: &Barrier) -> Result<(), Failure<S::Error>> {
    match site.view() {
        View::Armed(site) => site.open(barrier).map(drop).map_err(reason),
        View::Unlinked(_) | View::Linked(_) | View::Draining(_) => Ok(()),
    }
}

/// Unlinks a closed site, if it was closed before `elapsed` began; one closed later has its own grace period.
fn unlink<S: Slots, T: Target>(site: &mut Site<S, T>, elapsed: &Elapsed) -> Option<T> {
    match site.view() {
        View::Draining(site) => site.unlink(elapsed).ok().map(|(_, target)| target),
        View::Unlinked(_) | View::Armed(_) | View::Linked(_) => None,
    }
}

fn reason<V, E>(failed: Failed<V, E>) -> Failure<E> {
    failed.error
}
