//! The engine: executable memory, execution slots, compiler scratch memory. Programs hold their engine; the engine
//! holds no programs.

#[cfg(native)]
pub(crate) mod compiler;
pub(crate) mod config;
#[cfg(native)]
pub(crate) mod debug;
#[cfg(not(native))]
pub(crate) mod debug {
    //! Without machine code, no debugger needs to be notified.

    pub(crate) fn observer(_: &super::Engine, _: &str) -> Option<bpf_dispatcher::Observer> {
        None
    }
}
pub(crate) mod metrics;
pub(crate) mod pool;
pub(crate) mod tiers;
pub(crate) mod trace;
pub(crate) mod usage;

use crate::abi::fiber::Fibers;
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
use bpf_maps::{Map, MapDef, MapError};
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

/// The architecture of emitted code; `None` where all programs are interpreted: on systems and architectures without a
/// backend, and in builds without the feature `jit`.
pub(crate) const BACKEND: Option<Arch> = if cfg!(native) { Arch::HOST } else { None };

/// Owns the resources that loaded programs share: executable memory, execution slots, limits. Cheap to clone; clones
/// are the same engine.
///
/// ```
/// use bpf_runtime::{Config, Engine};
/// let engine = Engine::new(Config::new())?;
/// assert_eq!(engine.config().get_max_slots(), 64);
/// # Ok::<(), bpf_runtime::EngineError>(())
/// ```
#[derive(Clone)]
pub struct Engine(pub(crate) Arc<EngineInner>);

pub(crate) struct EngineInner {
    pub(crate) config: Config,
    pub(crate) packs: bpf_prog_pack::Packs,
    /// Notifies unwinders, profilers and debuggers of loaded programs.
    #[cfg(native)]
    pub(crate) debug: Option<Registry>,
    /// Each load takes a compiler and gives it back, so loads run in parallel and reuse memory.
    #[cfg(native)]
    pub(crate) compilers: Pool<HostCompiler>,
    /// Each load takes a verifier and gives it back.
    pub(crate) verifiers: Pool<Verifier>,
    /// The runs in progress, by execution slot.
    pub(crate) runs: Runs,
    pub(crate) metrics: Metrics,
    pub(crate) tiers: Tiers,
    /// The last field, so that it is dropped last: objects that dropped programs referred to wait in the domain by
    /// then. Maps among them own the domain.
    pub(crate) domain: Settles,
}

impl Interruptible for EngineInner {
    fn runs(&self) -> &Runs {
        &self.runs
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Every handle does this, not only the last one. Deferred objects may own handles of the engine (programs that
        // hooks and prog arrays let go, captures of closures), and the engine's domain owns the deferred objects: a
        // cycle. If only handles in deferred objects are left, the drop of the last other handle breaks it here.
        self.settle();
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("config", &self.0.config).finish_non_exhaustive()
    }
}

impl Engine {
    /// Makes an engine, which shares programs, slots and executable memory with no other.
    ///
    /// # Errors
    /// [`EngineError::NoBackend`] for [`Mode::Jit`] on an architecture without one; [`EngineError::Features`] for
    /// instructions that this CPU does not have; [`EngineError::Slots`] for more than [`bpf_quiesce::MAX_SLOTS`] slots;
    /// [`EngineError::Tick`] for a tick outside of the range of [`Config::tick`]; [`EngineError::NoBudget`] for a
    /// budget of 0; [`EngineError::Contradiction`] for settings that exclude each other; [`EngineError::Memory`] if no
    /// executable memory can be mapped; [`EngineError::Debug`] if a file of [`Config::debug`] cannot be created.
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
            bpf_quiesce::Options::new()
                .max_slots(config.max_slots)
                .when_full(config.when_full)
                .memory_limit(config.memory_limit),
        );
        let packs = config.packs.clone();
        #[cfg(native)]
        // perf reads perf maps only for anonymous memory, and debuggers set breakpoints only in private memory.
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
        let mut awaited = Vec::new();
        awaited.try_reserve_exact(domain.max_slots() as usize).map_err(|_| no_slots())?;
        awaited.extend((0..domain.max_slots()).map(|_| AtomicU64::new(0)));
        let run_config = RunConfig {
            awaited,
            max_nested: config.max_nested_runs,
            stack: StackNeed::new(config.max_machine_stack, config.stack_reserve),
            print: config.print.clone().map(Foreign::new),
            network: config.network.clone().map(Foreign::new),
            timers: Timers::default(),
            domain: Arc::clone(&domain),
        };
        let fibers = Fibers::new(&domain, config.max_async_runs, run_config.stack.plain()).ok_or_else(no_slots)?;
        let runs = Runs::new(domain.max_slots(), run_config, fibers, config.tick).ok_or_else(no_slots)?;
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

    /// Drops deferred objects (objects that dropped programs and maps referred to) that no run can use any more. The
    /// drop of each handle calls it. Costs one relaxed load if nothing is deferred.
    #[inline]
    pub(crate) fn settle(&self) {
        self.0.domain.settle();
    }

    /// Returns the configuration that the engine was made with.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// Returns the number of runs of sleepable programs that are going on or wait ([`crate::Program::run_async`]). A
    /// run whose future was forgotten waits without end, and counts.
    pub fn async_runs(&self) -> usize {
        self.0.runs.fibers.in_use()
    }

    /// For tests: how often runs that wait are in lists of deadlines and of nested runs.
    #[cfg(feature = "oracle")]
    #[doc(hidden)]
    pub fn listed_runs(&self) -> usize {
        self.0.runs.fibers.listed()
    }

    /// Returns the domain of execution slots and grace periods. It also counts the bytes taken
    /// of [`Config::memory_limit`].
    pub fn domain(&self) -> &Arc<Domain> {
        &self.0.domain
    }

    /// Makes a map that no object defines, for programs loaded from instructions, or to hand to several instances
    /// ([`crate::MapSet::reuse`]). Its memory counts against [`Config::memory_limit`].
    ///
    /// ```
    /// use bpf_runtime::{Config, Engine, maps::{MapDef, MapType}};
    ///
    /// let engine = Engine::new(Config::new())?;
    /// let limits = engine.create_map(MapDef::new("limits", MapType::Hash, 4, 8, 1024))?;
    /// limits.update(&7u32.to_ne_bytes(), &100u64.to_ne_bytes(), 0)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Map::create`].
    pub fn create_map(&self, def: MapDef) -> Result<Map, MapError> {
        Map::create(def, self.domain())
    }

    /// Returns statistics of the engine's executable memory; all are 0 in a forked child.
    pub fn code_stats(&self) -> bpf_prog_pack::Stats {
        self.0.packs.stats()
    }

    /// Counts the programs loaded with [`crate::OptLevel::Tiered`] that were recompiled, and the programs that could
    /// not be.
    pub fn tier_stats(&self) -> TierStats {
        self.0.tiers.stats()
    }

    /// Ends all runs in progress: each stops at its next taken back-edge or call, with
    /// [`crate::RunError::Interrupted`]. Runs nested in them stop, too, also nested runs that begin later. Only
    /// programs loaded as interruptible stop ([`Config::interruptible`], [`crate::Loader::interruptible`]).
    pub fn interrupt(&self) {
        self.0.runs.interrupt();
    }

    /// Makes a deadline: runs that are given it ([`crate::RunLimits::deadline`]) end at this time. It is rounded up to
    /// the engine's next tick ([`Config::tick`]), and a run ends at most one tick later if the system schedules the
    /// clock thread. The first deadline starts the clock thread, which sleeps while no deadline is pending.
    ///
    /// # Errors
    /// [`DeadlineError::Past`] if `at` has passed; [`DeadlineError::Thread`]; [`DeadlineError::Forked`].
    pub fn deadline(&self, at: Instant) -> Result<Deadline, DeadlineError> {
        Ok(Deadline::new(self.0.runs.deadline(Instant::now(), at)?, &self.0.runs))
    }

    /// Makes a deadline `time` from the present ([`Engine::deadline`]).
    ///
    /// # Errors
    /// [`DeadlineError::Thread`]; [`DeadlineError::Forked`].
    pub fn deadline_in(&self, time: Duration) -> Result<Deadline, DeadlineError> {
        // A time that `Instant` cannot represent becomes one 136 years (2^32 seconds) ahead.
        let now = Instant::now();
        let at = now.checked_add(time).unwrap_or(now + Duration::from_secs(u32::MAX.into()));
        Ok(Deadline::new(self.0.runs.deadline(now, at)?, &self.0.runs))
    }

    /// Makes an interrupter, which ends the runs that are given it ([`crate::RunLimits::interrupter`]), and no others.
    pub fn interrupter(&self) -> Interrupter {
        Interrupter::new(Arc::clone(&self.0) as Arc<dyn Interruptible>)
    }

    /// Frees memory of dropped programs and maps that no run can use any more, and of idle stacks of sleepable runs.
    /// Loads and drops, or later runs, do this, too; a service that is idle for long may call it.
    pub fn reclaim(&self) {
        let mut finish = Finish::default();
        finish.step(|| self.settle());
        // Frees the code of the programs dropped above, and of programs dropped by threads that have ended.
        finish.step(|| self.0.packs.reclaim());
        self.0.runs.fibers.trim();
    }

    /// Returns the program, function and source line of the machine instruction at `ip`, if a loaded program of this
    /// engine contains it. For the return address of a call, pass the address minus 1. `None` if [`Config::debug`] is
    /// all off.
    ///
    /// ```
    /// use bpf_runtime::{Config, Engine, Linker, Raw, isa::assemble};
    ///
    /// let config = Config::new().debug(|debug| debug.symbols(true));
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

    /// Returns the frames of emitted code on this thread's stack, innermost first. In a host function, the first is the
    /// instruction that called it. Empty unless `unwind` of [`Config::debug`] is on.
    #[cfg(native)]
    pub fn backtrace(&self) -> Vec<Location> {
        if !self.0.config.debug.unwind {
            return Vec::new();
        }
        self.0.debug.as_ref().map_or_else(Vec::new, Registry::backtrace)
    }

    /// Returns the error of the first failed write to a file of [`Config::debug`]. Loads succeed without it.
    #[cfg(native)]
    pub fn debug_failure(&self) -> Option<&std::io::Error> {
        self.0.debug.as_ref()?.failure()
    }

    /// Whether code can be replaced while it runs: the process has cross-core barriers, and `direct_tail_calls` allows
    /// patching.
    #[cfg(native)]
    pub(crate) fn has_tiers(&self) -> bool {
        self.0.config.direct_tail_calls && self.0.domain.has_core_barrier()
    }

    /// Returns the compiler's options. `note`: for the code of a first tier; `calls`: for programs that call host
    /// functions.
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
                yields: checks.yields,
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
                // The map gives the instruction of a call whose host function fails. Only debuggers need other
                // instructions.
                pc_map: calls || checks.yields || self.0.debug.is_some(),
                unwind: self.0.debug.is_some(),
                jump_tables: true,
                unwind_room: config.debug.jitdump.is_some(),
            },
        }
    }
}
