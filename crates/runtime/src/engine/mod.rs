//! The engine: executable memory, execution slots, compiler scratch. What programs are loaded into, and knows none.

#[cfg(native)]
pub(crate) mod compiler;
pub(crate) mod config;
#[cfg(native)]
pub(crate) mod debug;
#[cfg(not(native))]
pub(crate) mod debug {
    //! Nobody is told of code that there is none of.

    pub(crate) fn observer(_: &super::Engine, _: &str) -> Option<bpf_dispatcher::Observer> {
        None
    }
}
pub(crate) mod metrics;
pub(crate) mod pool;
pub(crate) mod tiers;
pub(crate) mod trace;
pub(crate) mod usage;

#[cfg(native)]
use crate::abi::limits::Checks;
use crate::abi::limits::{Deadline, Interrupter, Interruptible};
use crate::abi::machine_stack::StackNeed;
use crate::abi::run::RunConfig;
use crate::abi::slots::Runs;
use crate::abi::timers::Timers;
#[cfg(native)]
use crate::engine::compiler::HostCompiler;
use crate::engine::config::{Config, Mode};
use crate::engine::metrics::Metrics;
use crate::engine::pool::Pool;
use crate::engine::tiers::{TierStats, Tiers};
use crate::error::{DeadlineError, EngineError};
use bpf_jit_code::Arch;
#[cfg(native)]
use bpf_jit_code::OptLevel;
use bpf_quiesce::{Domain, Finish, Foreign, Settles};
use bpf_verifier::Verifier;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
#[cfg(native)]
use {
    bpf_debug::{Location, Registry},
    bpf_jit::{CompileOptions, EmitOptions, LowerOptions},
};

/// What machine code of this process is for; `None` where everything is interpreted: on systems and architectures that
/// there is no backend for, and in builds without the feature `jit`.
pub(crate) const BACKEND: Option<Arch> = if cfg!(native) { Arch::HOST } else { None };

/// Loads programs and owns what they share. Cheap to clone; clones are the same engine.
///
/// ```
/// use bpf_runtime::{Config, Engine};
/// let engine = Engine::new(Config::default())?;
/// assert_eq!(engine.config().frame_bytes, 512);
/// # Ok::<(), bpf_runtime::EngineError>(())
/// ```
#[derive(Clone)]
pub struct Engine(pub(crate) Arc<EngineInner>);

pub(crate) struct EngineInner {
    pub(crate) config: Config,
    pub(crate) packs: bpf_prog_pack::Packs,
    /// Whoever is told of loaded programs.
    #[cfg(native)]
    pub(crate) debug: Option<Registry>,
    /// Each load takes one and gives it back, so loads run in parallel and reuse memory.
    #[cfg(native)]
    pub(crate) compilers: Pool<HostCompiler>,
    /// Likewise.
    pub(crate) verifiers: Pool<Verifier>,
    /// By execution slot.
    pub(crate) runs: Runs,
    pub(crate) metrics: Metrics,
    pub(crate) tiers: Tiers,
    /// Last: its programs are gone then, and what they referred to waits in the domain. Maps among that own the domain.
    pub(crate) domain: Settles,
}

impl Interruptible for EngineInner {
    fn runs(&self) -> &Runs {
        &self.runs
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Not only the last handle: what is deferred may own others of them (programs that hooks and prog arrays let
        // go, what closures captured), and the domain, which the engine owns, owns what is deferred. Whoever
        // leaves last finds nobody left but those.
        self.settle();
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("config", &self.0.config).finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine of its own: its programs, slots and executable memory are shared with no other.
    ///
    /// # Errors
    /// [`EngineError::NoBackend`] for [`Mode::Jit`] on an architecture without one; [`EngineError::Features`] for
    /// instructions that this CPU does not have; [`EngineError::Slots`] for more slots than there can be;
    /// [`EngineError::Tick`] for ticks that no thread can keep; [`EngineError::NoBudget`] for a budget of 0;
    /// [`EngineError::Contradiction`] for settings that cannot both be meant;
    /// [`EngineError::Memory`] if executable memory is not to be had; [`EngineError::Debug`] if a file of
    /// [`Config::debug`] cannot be created.
    pub fn new(config: Config) -> Result<Engine, EngineError> {
        if config.mode == Mode::Jit && BACKEND.is_none() {
            return Err(EngineError::NoBackend);
        }
        let missing = config.features.missing();
        if !missing.is_empty() {
            return Err(EngineError::Features { missing });
        }
        let no_slots = || EngineError::Slots { asked: config.max_slots, max: bpf_quiesce::MAX_SLOTS };
        if config.max_slots > bpf_quiesce::MAX_SLOTS {
            return Err(no_slots());
        }
        let (min, max) = Config::TICKS;
        if config.tick < min || config.tick > max {
            return Err(EngineError::Tick { tick: config.tick, min, max });
        }
        if config.budget == Some(0) || config.hybrid_budget == 0 {
            return Err(EngineError::NoBudget);
        }
        if let Some(what) = config.contradiction() {
            return Err(EngineError::Contradiction { what });
        }
        let domain = Domain::new(
            bpf_quiesce::Options::default()
                .with_max_slots(config.max_slots)
                .with_when_full(config.when_full)
                .with_memory_limit(config.memory_limit),
        );
        let packs = config.packs.clone();
        #[cfg(native)]
        // A perf map is for anonymous memory, and breakpoints are for private memory.
        let packs = {
            let mut packs = packs;
            packs.anonymous |= config.debug.perf_map.is_some();
            packs.debuggable |= config.debug.gdb;
            packs
        };
        let packs = match BACKEND {
            Some(_) => bpf_prog_pack::Packs::new(Arc::clone(&domain), packs)?,
            None => bpf_prog_pack::Packs::without_code(Arc::clone(&domain)),
        };
        #[cfg(native)]
        let debug = config.debug.any().then(|| Registry::new(&config.debug)).transpose()?;
        let run_config = RunConfig {
            awaited: (0..domain.max_slots()).map(|_| AtomicU64::new(0)).collect(),
            max_nested: config.max_nested_runs,
            stack: StackNeed::new(config.max_machine_stack, config.stack_reserve),
            print: config.print.clone().map(Foreign::new),
            network: config.network.clone().map(Foreign::new),
            timers: Timers::default(),
            domain: Arc::clone(&domain),
        };
        let runs = Runs::new(domain.max_slots(), run_config, config.tick).ok_or_else(no_slots)?;
        let metrics =
            Metrics::new(config.metrics, &runs, domain.max_slots(), config.tick).map_err(EngineError::Thread)?;
        Ok(Engine(Arc::new(EngineInner {
            config,
            packs,
            #[cfg(native)]
            debug,
            #[cfg(native)]
            compilers: Pool::default(),
            verifiers: Pool::default(),
            runs,
            metrics,
            tiers: Tiers::default(),
            domain: Settles(domain),
        })))
    }

    /// Drops what programs and maps that were dropped referred to, and leaves the rest to the runs that may still use
    /// it. For whoever drops a handle: one relaxed load if there is nothing.
    #[inline]
    pub(crate) fn settle(&self) {
        self.0.domain.settle();
    }

    /// The configuration it was made with.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// Its execution slots and grace periods, for maps made by hand; and how much of [`Config::memory_limit`] is taken.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.0.domain
    }

    /// Statistics of its executable memory; none in a forked child.
    pub fn code_stats(&self) -> bpf_prog_pack::Stats {
        self.0.packs.stats()
    }

    /// What became of programs that were loaded with [`crate::OptLevel::Tiered`].
    pub fn tier_stats(&self) -> TierStats {
        self.0.tiers.stats()
    }

    /// Ends all runs that are going on: each stops at its next taken back-edge or call, with
    /// [`crate::RunError::Interrupted`]. So do the runs inside them, and those that their host functions begin from
    /// now on. Concerns programs that were loaded so: [`Config::interruptible`], [`crate::Loader::interruptible`].
    pub fn interrupt(&self) {
        self.0.runs.interrupt();
    }

    /// A point in time at which runs end that are given it ([`crate::RunLimits::deadline`]). It is rounded up to the
    /// next of the engine's ticks ([`Config::tick`]), and a run ends a tick later at most, if the system has a core for
    /// the thread that looks at the clock. That thread is started with the first deadline, and sleeps while none is
    /// ahead.
    ///
    /// # Errors
    /// [`DeadlineError::Past`] if `at` is over; [`DeadlineError::Thread`]; [`DeadlineError::Forked`].
    pub fn deadline(&self, at: Instant) -> Result<Deadline, DeadlineError> {
        Ok(Deadline::new(self.0.runs.deadline(Instant::now(), at)?, &self.0.runs))
    }

    /// The same, so long from now.
    ///
    /// # Errors
    /// [`DeadlineError::Thread`]; [`DeadlineError::Forked`].
    pub fn deadline_in(&self, time: Duration) -> Result<Deadline, DeadlineError> {
        // What is too far ahead to be said is further than any run goes.
        let now = Instant::now();
        let at = now.checked_add(time).unwrap_or(now + Duration::from_secs(u32::MAX.into()));
        Ok(Deadline::new(self.0.runs.deadline(now, at)?, &self.0.runs))
    }

    /// Something that ends the runs that are given it ([`crate::RunLimits::interrupter`]), and no others.
    pub fn interrupter(&self) -> Interrupter {
        Interrupter::new(Arc::clone(&self.0) as Arc<dyn Interruptible>)
    }

    /// Frees what dropped programs and maps left behind, as far as no run can still use it. Loads and drops do so too;
    /// a service that is idle for long may want to.
    pub fn reclaim(&self) {
        let mut finish = Finish::default();
        finish.step(|| self.settle());
        // The code of all those, and of what threads dropped that are gone.
        finish.step(|| self.0.packs.reclaim());
    }

    /// What the machine instruction at `ip` is, if it belongs to a program of this engine that is loaded. For the
    /// return address of a call, ask for the byte before it. `None` unless [`Config::debug`] asks for anything.
    ///
    /// ```
    /// use bpf_runtime::{Config, Engine, Linker, Raw, assemble};
    ///
    /// let mut config = Config::default();
    /// config.debug.symbols = true;
    /// let engine = Engine::new(config)?;
    /// let program = Linker::<()>::new(&engine).loader::<Raw>().insns("answer", assemble("r0 = 42\nexit")?)?;
    /// if let Some((_, address)) = program.machine_code() {
    ///     assert_eq!(engine.symbolize(address as usize).expect("loaded").program, "answer");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(native)]
    pub fn symbolize(&self, ip: usize) -> Option<Location> {
        self.0.debug.as_ref()?.symbolize(ip)
    }

    /// The frames of emitted code on this thread's stack, innermost first: from a host function, which instruction
    /// called it, and which programs are behind that one. Empty unless `unwind` of [`Config::debug`] is on.
    #[cfg(native)]
    pub fn backtrace(&self) -> Vec<Location> {
        if !self.0.config.debug.unwind {
            return Vec::new();
        }
        self.0.debug.as_ref().map_or_else(Vec::new, Registry::backtrace)
    }

    /// The first write to a file of [`Config::debug`] that failed. Loads went on without it.
    #[cfg(native)]
    pub fn debug_failure(&self) -> Option<&std::io::Error> {
        self.0.debug.as_ref()?.failure()
    }

    /// Whether code can be exchanged while it runs: where other cores can be told, and patching code is allowed.
    #[cfg(native)]
    pub(crate) fn has_tiers(&self) -> bool {
        self.0.config.direct_tail_calls && self.0.domain.has_core_barrier()
    }

    /// How programs are compiled; `note` those of a first tier, `calls` those that call.
    #[cfg(native)]
    pub(crate) fn compile_options(
        &self,
        opt_level: OptLevel,
        raw_context: bool,
        checks: Checks,
        note: bool,
        calls: bool,
    ) -> CompileOptions {
        let config = &self.0.config;
        CompileOptions {
            opt_level,
            plain: false,
            skip: config.skip_passes,
            lower: LowerOptions {
                budget: checks.budget,
                interrupt: checks.interrupt,
                count: config.metrics,
                note,
                max_stack: config.frame_bytes,
                raw_context,
                direct_tail_calls: config.direct_tail_calls && self.0.domain.has_core_barrier(),
            },
            alloc: config.alloc,
            emit: EmitOptions {
                features: config.features,
                hardening: config.hardening,
                save_all: config.save_all,
                // Where a host function was called, if it fails. Only debuggers ask where anything else is.
                pc_map: calls || self.0.debug.is_some(),
                unwind: self.0.debug.is_some(),
                unwind_room: config.debug.jitdump.is_some(),
            },
        }
    }
}
