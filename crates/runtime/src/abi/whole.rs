//! Ends a run of several programs (an async run of a hook) between two of its programs.
//!
//! Problem: threads that end runs mark the words of runs in progress ([`crate::abi::watch`]). In a hook that may wait,
//! each program has a run and a word of its own. A mark is lost if it comes between two programs, where there is no
//! word, or after a program's last check, because the word ends with the program. Approach: a hook, an interrupter and
//! the engine each count how often they have ended runs, before they mark words. A run of several programs notes the
//! counts when it begins. Each of its programs compares them when its own word is stored, and ends if one has changed.
//!
//! Invariant: a program of such a run has stored its word before it compares, and a thread that ends runs has counted
//! before it looks at words, with a fence between the two on either side: so one of them sees the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// How often runs were ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ends(Arc<AtomicU64>);

impl Ends {
    /// Counts one more, before words are marked.
    pub(crate) fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        // With the fence in `Whole::is_ended`: see the module.
        fence(Ordering::SeqCst);
    }

    /// A value whose address identifies this count.
    pub(crate) fn identity(&self) -> *const AtomicU64 {
        Arc::as_ptr(&self.0)
    }
}

/// A run of several programs: the counts of its hook, its engine and its interrupter when the run began.
#[derive(Debug)]
pub(crate) struct Whole([Option<(Ends, u64)>; 3]);

impl Whole {
    /// A run that begins now.
    pub(crate) fn begin(by: [Option<&Ends>; 3]) -> Whole {
        // Relaxed: an interruption at this moment may count as before the run or as during it; both are correct.
        Whole(by.map(|ends| ends.map(|ends| (ends.clone(), ends.0.load(Ordering::Relaxed)))))
    }

    /// Returns whether the run was ended. For a program of it, whose word is stored.
    pub(super) fn is_ended(&self) -> bool {
        // With the fence in `Ends::count`: see the module.
        fence(Ordering::SeqCst);
        self.0.iter().flatten().any(|(ends, before)| ends.0.load(Ordering::Relaxed) != *before)
    }
}
