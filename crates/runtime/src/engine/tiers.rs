//! Programs in their first tier, and the thread that finds the programs that run often.
//!
//! Problem: code that runs often should be optimised. Optimisation takes about ten times as long as compiling in one
//! pass, and which programs run often is not known at load. Approach: [`bpf_jit_code::OptLevel::Tiered`]. The code of
//! the first tier notes in its run which program it is (`RunCtx::counters`: two instructions, and no memory that
//! threads share). A thread reads these notes of the runs in progress once a tick, and clears them. A program that was
//! seen [`OFTEN`] times takes enough time to be worth optimising, and that thread recompiles it ([`Slow::make_fast`]).
//! No run counts or compares anything, and the thread finds the programs that take time, by many runs or by long ones.
//!
//! Invariants: the thread holds an engine and a program only while it compiles that program. It ends when the engine is
//! dropped. The drop does not join it, since the thread itself may hold the last handle. Nothing else ends it: neither
//! a failed compilation nor a panic of the host's closures that are dropped on it. A forked child has neither the
//! thread nor the code; drops there take no lock.

use crate::engine::{Engine, EngineInner};
use bpf_quiesce::{Domain, caught};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::Thread;
use std::time::Duration;

/// How often a program is seen running before it is recompiled: once may be chance.
const OFTEN: u32 = 3;

/// A program in its first tier.
pub(crate) trait Slow: Send + Sync {
    /// Returns the program's engine.
    fn engine(&self) -> &Engine;

    /// Recompiles the program and redirects all its entries to the new code, from the next run on. Returns `false` if
    /// the program keeps its code; the reason has been reported.
    fn make_fast(&self) -> bool;

    /// Reports that the program keeps its code because of `why`.
    fn tell_slow(&self, why: &str);
}

/// State that the thread shares with the engine.
#[derive(Default)]
struct Shared {
    /// Programs of the first tier, by the word that their runs note: a number of the program's own, or the address of
    /// counters that versions of one name share.
    slow: Mutex<BTreeMap<u64, Noted>>,
    closed: AtomicBool,
    thread: Mutex<Option<Thread>>,
    compiled: AtomicU64,
    fast: AtomicU64,
    refused: AtomicU64,
}

#[derive(Default)]
struct Noted {
    seen: u32,
    programs: Vec<Weak<dyn Slow>>,
}

/// The programs of an engine in their first tier.
#[derive(Default)]
pub(crate) struct Tiers(Arc<Shared>);

impl fmt::Debug for Tiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tiers").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// Counts of programs loaded with [`crate::OptLevel::Tiered`], by outcome: [`Engine::tier_stats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct TierStats {
    /// Compilations of programs with optimisation. The instances of a module share one.
    pub compiled: u64,
    /// Programs that got optimised code. Each instance of a module has programs of its own.
    pub fast: u64,
    /// Programs that ran often and kept their code of the first tier. Reasons: no room for the new code in executable
    /// memory or in the account, limits of the compiler, a thread that could not be started, a panic. Each is reported
    /// to `tracing` (the feature).
    pub refused: u64,
}

/// Nothing under these locks panics, so poison means nothing.
fn with<T, R>(mutex: &Mutex<T>, change: impl FnOnce(&mut T) -> R) -> R {
    change(&mut mutex.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Tiers {
    /// Adds a program whose runs note `note`, for the thread to look for.
    pub(crate) fn add(&self, note: u64, program: &Arc<dyn Slow>) {
        let EngineInner { runs, domain, config, .. } = &*program.engine().0;
        let (weak, tick) = (Arc::downgrade(program), config.tick);
        with(&self.0.slow, |slow| slow.entry(note).or_default().programs.push(weak));
        let failed = with(&self.0.thread, |thread| {
            match thread {
                Some(thread) => thread.unpark(),
                None => {
                    let (shared, running, domain) =
                        (Arc::clone(&self.0), runs.each_running(!config.metrics), Arc::clone(domain));
                    let spawned = std::thread::Builder::new()
                        .name("bpf-tiers".into())
                        .spawn(move || shared.look(running, &domain, tick));
                    match spawned {
                        Ok(spawned) => *thread = Some(spawned.thread().clone()),
                        Err(error) => {
                            with(&self.0.slow, |slow| slow.remove(&note));
                            // Relaxed: a statistic.
                            self.0.refused.fetch_add(1, Ordering::Relaxed);
                            return Some(error);
                        }
                    }
                }
            }
            None
        });
        // Reported without the lock: a subscriber may load programs.
        if let Some(error) = failed {
            program.tell_slow(&format!("the thread that makes programs fast cannot be started: {error}"));
        }
    }

    pub(crate) fn stats(&self) -> TierStats {
        // Relaxed: statistics.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Shared { compiled, fast, refused, .. } = &*self.0;
        TierStats { compiled: read(compiled), fast: read(fast), refused: read(refused) }
    }

    /// Counts a compilation with optimisation.
    pub(crate) fn count_compiled(&self) {
        // Relaxed: a statistic.
        self.0.compiled.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Tiers {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::SeqCst);
        // The thread is not joined: the calling thread may be it, and a forked child does not have it.
        if let Ok(thread) = self.0.thread.try_lock()
            && let Some(thread) = &*thread
        {
            thread.unpark();
        }
    }
}

impl Shared {
    fn look(&self, each_running: impl Fn(&mut dyn FnMut(u64)), domain: &Domain, tick: Duration) {
        let mut rounds = 0u32;
        // Whether replaced code waits for a grace period. No other thread is sure to free it.
        let mut owing = false;
        while !self.closed.load(Ordering::SeqCst) {
            if with(&self.slow, |slow| slow.is_empty()) && !owing {
                // A wake-up before this call is not lost: `unpark` leaves a token.
                std::thread::park();
            } else {
                std::thread::park_timeout(tick);
            }
            rounds = rounds.wrapping_add(1);
            if rounds.is_multiple_of(256) {
                // Removes programs that were dropped before they ran often.
                with(&self.slow, |slow| {
                    slow.retain(|_, noted| {
                        noted.programs.retain(|program| program.strong_count() > 0);
                        !noted.programs.is_empty()
                    });
                });
            }
            for program in self.found(&each_running) {
                if self.closed.load(Ordering::SeqCst) {
                    return;
                }
                if let Some(program) = program.upgrade() {
                    self.make_fast(program);
                    owing = true;
                }
            }
            if owing {
                caught(|| domain.reclaim());
                owing = domain.deferred() > 0;
            }
        }
    }

    /// Removes and returns the programs that were seen [`OFTEN`] times.
    fn found(&self, each_running: impl Fn(&mut dyn FnMut(u64))) -> Vec<Weak<dyn Slow>> {
        let mut running = Vec::new();
        each_running(&mut |note| {
            if note != 0 && !running.contains(&note) {
                running.push(note);
            }
        });
        let mut found = Vec::new();
        with(&self.slow, |slow| {
            for note in running {
                let Some(noted) = slow.get_mut(&note) else { continue };
                noted.seen += 1;
                if noted.seen >= OFTEN {
                    found.extend(slow.remove(&note).into_iter().flat_map(|noted| noted.programs));
                }
            }
        });
        found
    }

    fn make_fast(&self, program: Arc<dyn Slow>) {
        // This may be the last reference to the program. Its drop defers other drops, which the drop of this engine
        // handle runs.
        let engine = program.engine().clone();
        let fast = caught(|| program.make_fast()).unwrap_or_else(|| {
            // A bug of ours, or a panic of a `tracing` subscriber. The panic hook has reported it. The program keeps
            // its code.
            caught(|| program.tell_slow("compiling it panicked"));
            false
        });
        let counter = if fast { &self.fast } else { &self.refused };
        // Relaxed: a statistic.
        counter.fetch_add(1, Ordering::Relaxed);
        // Caught separately: if one drop panics, the other is done nevertheless.
        caught(|| drop(program));
        caught(|| drop(engine));
    }
}
