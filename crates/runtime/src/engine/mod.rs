//! The engine: configuration, executable memory, execution slots, compiler scratch.

pub(crate) mod compile;
pub(crate) mod debug;
pub(crate) mod pool;

use crate::abi::machine_stack::StackNeed;
use crate::abi::run::Runs;
use crate::engine::compile::HostCompiler;
use crate::engine::pool::Pool;
use crate::error::EngineError;
use bpf_debug::{Location, Options as DebugOptions, Registry};
use bpf_jit::{AllocOptions, CompileOptions, EmitOptions, LowerOptions, OptLevel};
use bpf_jit_code::{Arch, CpuFeatures, Hardening};
use bpf_quiesce::Domain;
use bpf_verifier::{Limits, Verifier};
use std::fmt;
use std::sync::Arc;

pub use bpf_quiesce::WhenFull;

/// How programs are executed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mode {
    /// As machine code.
    #[default]
    Jit,
    /// By the interpreter, which checks every memory access.
    Interpreter,
}

/// Where `bpf_trace_printk` writes.
pub type PrintSink = Arc<dyn Fn(&str) + Send + Sync>;

/// How an [`Engine`] behaves. `Config::default()` is meant for production.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// How programs are executed.
    pub mode: Mode,
    /// How much work to put into machine code; [`crate::Loader::opt_level`] decides for one load.
    pub opt_level: OptLevel,
    /// Stop a run after so many taken back-edges and calls together; `None` emits no check.
    pub budget: Option<u64>,
    /// The budget of programs that are not proven to end ([`crate::Loader::hybrid`]), where `budget` is `None`.
    pub hybrid_budget: u64,
    /// Whether [`Engine::interrupt`] ends runs; `false` emits no check.
    pub interruptible: bool,
    /// Hardening of emitted code.
    pub hardening: Hardening,
    /// Patch tail calls with constant table and index into direct jumps, where the process has cross-core barriers.
    pub direct_tail_calls: bool,
    /// Instructions emitted code may use; the host's by default. [`Engine::new`] refuses those that it does not have.
    pub features: CpuFeatures,
    /// How many threads may run programs at the same time, at most [`bpf_quiesce::MAX_SLOTS`]. Each takes 384 bytes,
    /// and as much again for each depth to which its runs were ever nested.
    pub max_slots: u32,
    /// What a thread does that finds all slots taken.
    pub when_full: WhenFull,
    /// How deep runs may be nested in one thread (a host function that runs a program), the outermost included.
    /// Programs that cannot be stopped (neither loop nor call under a budget or interruption, no host function, no
    /// check) do not count: they run nothing themselves.
    pub max_nested_runs: u32,
    /// Bytes of BPF stack a frame may use (512 as in the kernel): a multiple of 8, below 64 KiB.
    pub frame_bytes: u32,
    /// Worst machine stack that one program may take, in bytes. A run that tail-calls on machine code needs twice as
    /// much on its thread: other programs may be put where it jumps to at any time.
    pub max_machine_stack: u64,
    /// Bytes that all maps and prog arrays of the engine may take together, also those made by hand: at their largest,
    /// whether it is used yet or not.
    pub memory_limit: u64,
    /// Bytes that one map or prog array of an object may take.
    pub object_memory_limit: u64,
    /// Bytes of the thread's stack that must be left for helpers and host functions beyond what a program takes, or
    /// its run is refused ([`crate::RunError::Stack`]). Host functions that need more see to it themselves.
    pub stack_reserve: u64,
    /// Executable memory.
    pub packs: bpf_prog_pack::Options,
    /// How much work verifying one program may take.
    pub limits: Limits,
    /// Which unwinders, profilers and debuggers are told of loaded programs; none by default. See docs/debugging.md.
    pub debug: DebugOptions,
    /// Where `bpf_trace_printk` writes; nowhere by default.
    pub print: Option<PrintSink>,
    /// Save every callee-saved register in every function: what saving by need is measured against. For benches.
    pub save_all: bool,
    /// How registers are allocated. For tests: any allocation gives the same results.
    #[doc(hidden)]
    pub alloc: AllocOptions,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            mode: if Arch::HOST.is_some() { Mode::Jit } else { Mode::Interpreter },
            opt_level: OptLevel::default(),
            budget: None,
            hybrid_budget: 1 << 20,
            interruptible: false,
            hardening: Hardening::default(),
            direct_tail_calls: true,
            features: CpuFeatures::host(),
            max_slots: 64,
            when_full: WhenFull::Wait,
            max_nested_runs: 16,
            frame_bytes: 512,
            max_machine_stack: 256 * 1024,
            memory_limit: 64 << 30,
            object_memory_limit: 4 << 30,
            stack_reserve: 16 * 1024,
            packs: bpf_prog_pack::Options::default(),
            limits: Limits::default(),
            debug: DebugOptions::default(),
            print: None,
            save_all: false,
            alloc: AllocOptions::default(),
        }
    }
}

impl Config {
    /// What the runs of programs that count may count to.
    pub(crate) fn run_budget(&self) -> u64 {
        self.budget.unwrap_or(self.hybrid_budget)
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("mode", &self.mode)
            .field("opt_level", &self.opt_level)
            .field("budget", &self.budget)
            .field("interruptible", &self.interruptible)
            .field("hardening", &self.hardening)
            .field("features", &self.features)
            .field("max_slots", &self.max_slots)
            .finish_non_exhaustive()
    }
}

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
    pub(crate) domain: Arc<Domain>,
    pub(crate) packs: bpf_prog_pack::Packs,
    /// Whoever is told of loaded programs.
    pub(crate) debug: Option<Registry>,
    /// Each load takes one and gives it back, so loads run in parallel and reuse memory.
    pub(crate) compilers: Pool<HostCompiler>,
    /// Likewise.
    pub(crate) verifiers: Pool<Verifier>,
    /// By execution slot.
    pub(crate) runs: Runs,
    /// What a run may spend: [`Config::run_budget`].
    pub(crate) budget: i64,
    /// What its runs may take of a thread's stack.
    pub(crate) stack: StackNeed,
}

impl EngineInner {
    fn run_deferred(&self) {
        // A program that is let go lets go of its code and closures, again by a deferred callback: until nothing is
        // left that can go.
        while self.domain.reclaim() > 0 {}
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Not only the last handle: what is deferred may own others of them (programs that hooks and prog arrays let
        // go, what closures captured), and the domain, which the engine owns, owns what is deferred. Whoever
        // leaves last finds nobody left but those.
        self.reclaim_if_any();
    }
}

impl Drop for EngineInner {
    fn drop(&mut self) {
        // Its programs are gone, and what they referred to waits in the domain. Maps among that own the domain: if
        // nobody came by to run the deferred drops, neither would ever go.
        self.run_deferred();
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
    /// [`EngineError::Memory`] if executable memory is not to be had; [`EngineError::Debug`] if a file of
    /// [`Config::debug`] cannot be created.
    pub fn new(config: Config) -> Result<Engine, EngineError> {
        if config.mode == Mode::Jit && Arch::HOST.is_none() {
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
        let domain = Domain::new(bpf_quiesce::Options {
            max_slots: config.max_slots,
            when_full: config.when_full,
            memory_limit: config.memory_limit,
            ..bpf_quiesce::Options::default()
        });
        let mut packs = config.packs.clone();
        // A perf map is for anonymous memory.
        packs.anonymous |= config.debug.perf_map.is_some();
        let packs = bpf_prog_pack::Packs::new(Arc::clone(&domain), packs)?;
        let debug = config.debug.any().then(|| Registry::new(&config.debug)).transpose()?;
        let runs = Runs::new(domain.max_slots()).ok_or_else(no_slots)?;
        let budget = i64::try_from(config.run_budget()).unwrap_or(i64::MAX);
        let stack = StackNeed::new(&config);
        Ok(Engine(Arc::new(EngineInner {
            config,
            domain,
            packs,
            debug,
            compilers: Pool::default(),
            verifiers: Pool::default(),
            runs,
            budget,
            stack,
        })))
    }

    /// Drops what waits for a grace period that is over, if anything waits. For whoever drops a handle: one relaxed
    /// load otherwise.
    #[inline]
    pub(crate) fn reclaim_if_any(&self) {
        if self.0.domain.deferred() > 0 {
            self.0.run_deferred();
        }
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

    /// Ends all runs that are going on: each stops at its next taken back-edge or call, with
    /// [`crate::RunError::Interrupted`]. So do the runs inside them, and those that their host functions begin from
    /// now on. Does nothing unless [`Config::interruptible`].
    pub fn interrupt(&self) {
        self.0.runs.interrupt();
    }

    /// Frees what dropped programs and maps left behind, as far as no run can still use it. Loads and drops do so too;
    /// a service that is idle for long may want to.
    pub fn reclaim(&self) {
        self.run_deferred();
        // The code of all those, and of what threads dropped that are gone.
        self.0.packs.reclaim();
    }

    /// Drops what programs and maps that were dropped referred to, as far as no run can still use it.
    pub(crate) fn run_deferred(&self) {
        self.0.run_deferred();
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
    pub fn symbolize(&self, ip: usize) -> Option<Location> {
        self.0.debug.as_ref()?.symbolize(ip)
    }

    /// The frames of emitted code on this thread's stack, innermost first: from a host function, which instruction
    /// called it, and which programs are behind that one. Empty unless `unwind` of [`Config::debug`] is on.
    pub fn backtrace(&self) -> Vec<Location> {
        if !self.0.config.debug.unwind {
            return Vec::new();
        }
        self.0.debug.as_ref().map_or_else(Vec::new, Registry::backtrace)
    }

    /// The first write to a file of [`Config::debug`] that failed. Loads went on without it.
    pub fn debug_failure(&self) -> Option<&std::io::Error> {
        self.0.debug.as_ref()?.failure()
    }

    /// How programs are compiled; `count`: against the budget, whatever the configuration says.
    pub(crate) fn compile_options(&self, opt_level: OptLevel, raw_context: bool, count: bool) -> CompileOptions {
        let config = &self.0.config;
        CompileOptions {
            opt_level,
            lower: LowerOptions {
                budget: config.budget.is_some() || count,
                interrupt: config.interruptible,
                max_stack: config.frame_bytes,
                raw_context,
                direct_tail_calls: config.direct_tail_calls && self.0.domain.has_core_barrier(),
            },
            alloc: config.alloc,
            emit: EmitOptions {
                features: config.features,
                hardening: config.hardening,
                save_all: config.save_all,
                pc_map: self.0.debug.is_some(),
                unwind: self.0.debug.is_some(),
                unwind_room: config.debug.jitdump.is_some(),
            },
        }
    }
}
