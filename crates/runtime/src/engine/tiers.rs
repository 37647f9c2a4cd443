//! Programs in their first tier, and the thread that finds those that run often.
//!
//! Problem: code that runs often should be optimised, which takes ten times as long as to compile it in one pass, and
//! nobody knows beforehand what runs often. Approach: [`bpf_jit_code::OptLevel::Tiered`]. The code of the first tier
//! notes in its run which program it is (`RunCtx::counters`: two instructions, and no memory that threads share). A
//! thread looks once a tick at the runs that are going on, and forgets what they have noted. A program of which it has
//! seen [`OFTEN`] runs takes so much time that making it fast pays, and that thread makes it fast
//! ([`Slow::make_fast`]). So no run counts or compares anything, and what is found is what takes time: by its runs'
//! number, or by their length.
//!
//! Invariants: the thread keeps neither engine nor program but while it compiles one. It ends when the engine goes,
//! which does not wait for it, since the last handle may be the thread's own. Nothing else ends it: not what fails as
//! it makes a program fast, nor what the host's closures do when they are dropped here. A forked child has no such
//! thread, and no code either; what is dropped there takes no lock.

use crate::engine::{Engine, EngineInner};
use bpf_quiesce::{Domain, caught};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::Thread;
use std::time::Duration;

/// How many of its runs are found before a program is made fast: one may be chance.
const OFTEN: u32 = 3;

/// A program in its first tier.
pub(crate) trait Slow: Send + Sync {
    /// Its engine.
    fn engine(&self) -> &Engine;

    /// Compiles it anew and lets all that enter it enter that, from the next run on. `false` if it stays as it is, and
    /// why has been told.
    fn make_fast(&self) -> bool;

    /// Tells that it stays as it is for another reason.
    fn tell_slow(&self, why: &str);
}

/// What the thread shares with the engine.
#[derive(Default)]
struct Shared {
    /// By what their runs note: a number of their own, or counters that versions of one name share.
    slow: Mutex<BTreeMap<u64, Noted>>,
    closed: AtomicBool,
    thread: Mutex<Option<Thread>>,
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

/// What became of programs that were loaded with [`crate::OptLevel::Tiered`]: [`Engine::tier_stats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct TierStats {
    /// How many were made fast.
    pub fast: u64,
    /// How many ran often and were left as they were: no room for their code in executable memory or in their account,
    /// code that does not compile within the limits, a thread that could not be started, a panic. Each is told to
    /// `tracing` (the feature).
    pub refused: u64,
}

/// Nothing under these locks panics, so poison means nothing.
fn with<T, R>(mutex: &Mutex<T>, change: impl FnOnce(&mut T) -> R) -> R {
    change(&mut mutex.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Tiers {
    /// Looks for runs of this program, which note this, from now on.
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
        // Not under the lock: a listener may load programs.
        if let Some(error) = failed {
            program.tell_slow(&format!("the thread that makes programs fast cannot be started: {error}"));
        }
    }

    pub(crate) fn stats(&self) -> TierStats {
        // Relaxed: statistics.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TierStats { fast: read(&self.0.fast), refused: read(&self.0.refused) }
    }
}

impl Drop for Tiers {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::SeqCst);
        // Not waited for: this may be that thread, and in a forked child there is none.
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
        // Whether code that was replaced waits for a grace period, and nobody else may come by.
        let mut owing = false;
        while !self.closed.load(Ordering::SeqCst) {
            if with(&self.slow, |slow| slow.is_empty()) && !owing {
                // A wake-up that came before is not lost: the token of `unpark` is kept.
                std::thread::park();
            } else {
                std::thread::park_timeout(tick);
            }
            rounds = rounds.wrapping_add(1);
            if rounds.is_multiple_of(256) {
                // Those that were dropped and never ran.
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

    /// Those that were seen often enough, which are looked for no more.
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
        // It may be dropped by now but for here; whoever leaves last runs what that defers (`Engine`'s drop).
        let engine = program.engine().clone();
        let fast = caught(|| program.make_fast()).unwrap_or_else(|| {
            // A fault of ours, or of whoever listens to what is told; its hook has told it. The program goes on as it
            // is.
            caught(|| program.tell_slow("compiling it panicked"));
            false
        });
        let counter = if fast { &self.fast } else { &self.refused };
        // Relaxed: a statistic.
        counter.fetch_add(1, Ordering::Relaxed);
        // Each by itself: what the one owns may panic, and then the other goes no less.
        caught(|| drop(program));
        caught(|| drop(engine));
    }
}
