//! A thread's registration in a domain, and how it ends.

use crate::core::Desk;
use crate::fork::Generation;
use crate::record::Record;
use crossbeam_utils::CachePadded;
use std::sync::{Arc, Weak};

/// A thread's record in a domain.
pub(crate) struct Registration {
    pub(crate) domain: u64,
    pub(crate) record: Arc<CachePadded<Record>>,
    /// Weak: the desk is dropped with the domain.
    pub(crate) desk: Weak<Desk>,
    pub(crate) generation: Generation,
}

impl Registration {
    /// Gives back the record of a thread that has ended.
    pub(crate) fn end(&self) {
        // In a forked child the lock may be held by a thread that does not exist there, and no thread waits.
        match self.desk.upgrade() {
            Some(desk) if self.record.inside() && self.generation.is_current() => desk.abandon(&self.record),
            Some(_) | None => self.record.vacate(),
        }
    }
}
