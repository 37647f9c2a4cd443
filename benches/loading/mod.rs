//! The tables of the load benchmark that have a module of their own.

pub(crate) mod cold;
pub(crate) mod instances;
pub(crate) mod memory;
pub(crate) mod phases;
pub(crate) mod tag;
pub(crate) mod threads;
pub(crate) mod verified;

use bpf_benches::measure::{Contender, nanoseconds};

/// Makes a contender that calls `work` on the items in turn.
pub(crate) fn each<'a, T>(items: &'a [T], mut work: impl FnMut(&'a T) + 'a) -> Contender<'a> {
    let mut next = items.iter().cycle();
    Box::new(move |repeat| nanoseconds(repeat, |repeat| next.by_ref().take(repeat as usize).for_each(&mut work)))
}
