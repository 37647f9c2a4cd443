//! The configuration of an engine.

use crate::abi::machine_stack::RESERVE;
use crate::abi::run::{PrintSink, Printed};
use crate::context::network::Network;
use crate::engine::BACKEND;
use bpf_jit_code::{CpuFeatures, Hardening, OptLevel};
use bpf_quiesce::WhenFull;
use bpf_verifier::Limits;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
#[cfg(native)]
use {
    bpf_debug::Options as DebugOptions,
    bpf_jit::{AllocOptions, PassSet},
};

/// The engine that executes programs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Mode {
    /// As machine code.
    #[default]
    Jit,
    /// By the interpreter, which checks every memory access.
    Interpreter,
}

/// The settings of an [`Engine`](crate::Engine). `Config::new()` is meant for production, and [`Config::untrusted`] for
/// plug-ins of untrusted authors.
///
/// Each setting has a method of its name, which takes the configuration and returns it changed. A group of settings
/// (`hardening`, `limits`, `packs`, `debug`) is changed by a function, so that the rest of the group stays as it was:
///
/// ```
/// use bpf_runtime::{Config, Engine, OptLevel};
///
/// let config = Config::untrusted()
///     .opt_level(OptLevel::Speed)
///     .budget(1_000_000)
///     .hardening(|hardening| hardening.retpolines(true))
///     .limits(|limits| limits.steps(100_000));
/// let engine = Engine::new(config)?;
/// # Ok::<(), bpf_runtime::EngineError>(())
/// ```
#[derive(Clone)]
#[must_use = "a setter returns the changed configuration"]
pub struct Config {
    pub(crate) mode: Mode,
    pub(crate) opt_level: OptLevel,
    pub(crate) budget: Option<u64>,
    pub(crate) hybrid_budget: u64,
    pub(crate) interruptible: bool,
    pub(crate) contained: bool,
    pub(crate) coverage: bool,
    pub(crate) metrics: bool,
    pub(crate) tick: Duration,
    pub(crate) hardening: Hardening,
    pub(crate) direct_tail_calls: bool,
    pub(crate) features: CpuFeatures,
    pub(crate) max_slots: u32,
    pub(crate) when_full: WhenFull,
    pub(crate) max_nested_runs: u32,
    pub(crate) max_async_runs: usize,
    pub(crate) frame_bytes: u32,
    pub(crate) max_machine_stack: u64,
    pub(crate) memory_limit: u64,
    pub(crate) object_memory_limit: u64,
    pub(crate) stack_reserve: u64,
    pub(crate) packs: bpf_prog_pack::Options,
    pub(crate) limits: Limits,
    #[cfg(native)]
    pub(crate) debug: DebugOptions,
    pub(crate) print: Option<PrintSink>,
    pub(crate) print_limit: Option<u32>,
    pub(crate) network: Option<Arc<dyn Network>>,
    pub(crate) save_all: bool,
    #[cfg(native)]
    pub(crate) alloc: AllocOptions,
    #[cfg(native)]
    pub(crate) skip_passes: PassSet,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            mode: if BACKEND.is_some() { Mode::Jit } else { Mode::Interpreter },
            opt_level: OptLevel::default(),
            budget: None,
            hybrid_budget: 1 << 20,
            interruptible: false,
            contained: false,
            coverage: false,
            metrics: false,
            tick: Duration::from_millis(1),
            hardening: Hardening::default(),
            direct_tail_calls: true,
            features: CpuFeatures::host(),
            max_slots: 64,
            when_full: WhenFull::Wait,
            max_nested_runs: 16,
            max_async_runs: 1 << 20,
            frame_bytes: 512,
            max_machine_stack: 256 * 1024,
            memory_limit: 64 << 30,
            object_memory_limit: 4 << 30,
            stack_reserve: RESERVE,
            packs: bpf_prog_pack::Options::default(),
            limits: Limits::default(),
            #[cfg(native)]
            debug: DebugOptions::default(),
            print: None,
            print_limit: None,
            network: None,
            save_all: false,
            #[cfg(native)]
            alloc: AllocOptions::default(),
            #[cfg(native)]
            skip_passes: PassSet::default(),
        }
    }
}

impl Config {
    /// Returns the default configuration, for production and for programs whose authors do not attack the host.
    pub fn new() -> Config {
        Config::default()
    }

    /// Returns a configuration for services that run plug-ins of untrusted authors. The page "Tenants that do not trust
    /// each other" of the book lists the threat that each setting answers, and the threats that remain:
    ///
    /// * `contained`: each access is bounded once more in the code, so that neither a wrong proof nor a mispredicted
    ///   branch reaches memory outside of the program's own;
    /// * `budget` of 2^20 taken back-edges and calls, and `interruptible`: every run ends, and the host may end one
    ///   sooner;
    /// * `Hardening::blind_constants`: a program's constants do not appear in its machine code, so that its author
    ///   cannot choose the bytes of executable memory;
    /// * `Hardening::straight_line`: a barrier follows each return and indirect jump;
    /// * `packs.random_offset` and `packs.guards`: the place of a program's code within a pack is random, and
    ///   inaccessible memory lies between packs;
    /// * `memory_limit` of 256 MiB for the engine and `object_memory_limit` of 16 MiB for one map: give each tenant an
    ///   [`Engine::account`](crate::Engine::account) with a lower limit;
    /// * `max_nested_runs` of 4;
    /// * `print_limit` of 100 lines a second: a program does not fill the log.
    ///
    /// [`Config::new`] is for programs whose authors do not attack the host. The verifier finds their mistakes.
    pub fn untrusted() -> Config {
        Config::new()
            .contained(true)
            .budget(1 << 20)
            .interruptible(true)
            .hardening(|hardening| hardening.straight_line(true).blind_constants(true))
            .packs(|packs| packs.random_offset(true).guards(true))
            .memory_limit(256 << 20)
            .object_memory_limit(16 << 20)
            .max_nested_runs(4)
            .print_limit(100)
    }

    /// Sets whether programs run as machine code or in the interpreter.
    pub fn mode(mut self, mode: Mode) -> Config {
        self.mode = mode;
        self
    }

    /// Sets how much work the compiler puts into machine code; [`crate::Loader::opt_level`] decides for one load. With
    /// [`OptLevel::Tiered`] a thread wakes up each `tick` while programs of the first tier are loaded. Without
    /// cross-core barriers, or with `direct_tail_calls` off, code cannot be replaced, and `Tiered` means
    /// [`OptLevel::Speed`].
    pub fn opt_level(mut self, opt_level: OptLevel) -> Config {
        self.opt_level = opt_level;
        self
    }

    /// Stops a run after this number of taken back-edges and calls together, at least 1: `budget(100_000)`.
    /// `budget(None)`, the default, emits no check. [`crate::Loader::budget`] decides for one load,
    /// [`crate::RunLimits::budget`] for one run; `u64::MAX` limits nothing by itself.
    pub fn budget(mut self, budget: impl Into<Option<u64>>) -> Config {
        self.budget = budget.into();
        self
    }

    /// Sets the budget of programs that are not proven to end ([`crate::Loader::hybrid`]), where `budget` is `None`: at
    /// least 1.
    pub fn hybrid_budget(mut self, hybrid_budget: u64) -> Config {
        self.hybrid_budget = hybrid_budget;
        self
    }

    /// Sets whether runs can be ended by [`Engine::interrupt`](crate::Engine::interrupt), by `interrupt` of programs
    /// and hooks, by deadlines and by interrupters. `false` emits no check. [`crate::Loader::interruptible`] decides
    /// for one load.
    pub fn interruptible(mut self, interruptible: bool) -> Config {
        self.interruptible = interruptible;
        self
    }

    /// Sets whether the code of every program bounds each access once more, at run time. [`crate::Loader::contained`]
    /// describes it and decides for one load.
    pub fn contained(mut self, contained: bool) -> Config {
        self.contained = contained;
        self
    }

    /// Sets whether the interpreter counts the executions of each instruction: [`crate::Program::coverage`]. Machine
    /// code counts nothing.
    pub fn coverage(mut self, coverage: bool) -> Config {
        self.coverage = coverage;
        self
    }

    /// Sets whether runs of programs are counted and sampled: [`Engine::snapshot`](crate::Engine::snapshot). If `true`,
    /// the entry of each program is eight instructions longer, each program name takes 64 bytes for each of
    /// `max_slots`, and a thread wakes up each `tick`. If `false`, no code counts.
    pub fn metrics(mut self, metrics: bool) -> Config {
        self.metrics = metrics;
        self
    }

    /// Sets the interval at which deadlines are checked ([`crate::Engine::deadline`]) and runs are sampled, from 50 µs
    /// to 1 s inclusive.
    pub fn tick(mut self, tick: Duration) -> Config {
        self.tick = tick;
        self
    }

    /// Changes the hardening of emitted code: `hardening(|hardening| hardening.retpolines(true))` sets one switch and
    /// leaves the others, `hardening(|_| mine)` sets all.
    pub fn hardening(mut self, change: impl FnOnce(Hardening) -> Hardening) -> Config {
        self.hardening = change(self.hardening);
        self
    }

    /// Sets whether tail calls with a constant table and index are patched into direct jumps, and code is replaced by
    /// faster code ([`OptLevel::Tiered`]). Both need cross-core barriers in the process.
    pub fn direct_tail_calls(mut self, direct_tail_calls: bool) -> Config {
        self.direct_tail_calls = direct_tail_calls;
        self
    }

    /// Sets the instruction set extensions that emitted code may use; those of the host by default.
    /// [`Engine::new`](crate::Engine::new) refuses extensions that the host does not have.
    pub fn features(mut self, features: CpuFeatures) -> Config {
        self.features = features;
        self
    }

    /// Sets how many threads may run programs at the same time, at most [`bpf_quiesce::MAX_SLOTS`]. Each takes 384
    /// bytes, and as much again for each depth to which its runs were ever nested.
    pub fn max_slots(mut self, max_slots: u32) -> Config {
        self.max_slots = max_slots;
        self
    }

    /// Sets whether a thread that finds all slots taken waits or gets an error.
    pub fn when_full(mut self, when_full: WhenFull) -> Config {
        self.when_full = when_full;
        self
    }

    /// Sets how deep runs may be nested in one thread (a host function, or its future, that runs a program), the
    /// outermost included. A plain run does not count if a future begins it that is polled after its run has waited.
    /// Programs that cannot be stopped (neither loop nor call under a budget or interruption, no host function, no
    /// check) do not count: they run nothing themselves.
    pub fn max_nested_runs(mut self, max_nested_runs: u32) -> Config {
        self.max_nested_runs = max_nested_runs;
        self
    }

    /// Sets the upper bound on the runs of sleepable programs that are going on at the same time, including runs that
    /// wait. Where threads end and begin runs at this bound, one may be refused while one run less is going on. Each
    /// has a stack of its own: address space for the largest program, and memory for the pages that it uses.
    pub fn max_async_runs(mut self, max_async_runs: usize) -> Config {
        self.max_async_runs = max_async_runs;
        self
    }

    /// Sets the bytes of BPF stack that a frame may use (512 as in the kernel): a multiple of 8, below 64 KiB.
    pub fn frame_bytes(mut self, frame_bytes: u32) -> Config {
        self.frame_bytes = frame_bytes;
        self
    }

    /// Sets the upper bound on the machine stack that one program may take, in bytes. A run of machine code that
    /// tail-calls needs twice as much on its thread, since its targets may be replaced at any time.
    pub fn max_machine_stack(mut self, max_machine_stack: u64) -> Config {
        self.max_machine_stack = max_machine_stack;
        self
    }

    /// Sets the bytes that all maps, prog arrays, lists of hooks and dispatchers, memory for code, and stacks of
    /// sleepable runs of the engine may take together, also maps made by hand. A map counts with its largest size from
    /// the start; a map that allocates on demand (`NO_PREALLOC`, tries) counts with the bytes that are allocated.
    /// [`Engine::account`](crate::Engine::account) limits a part. Code lies in packs of 64 KiB and more, of which some
    /// stay when they are empty ([`bpf_prog_pack::Options`]).
    pub fn memory_limit(mut self, memory_limit: u64) -> Config {
        self.memory_limit = memory_limit;
        self
    }

    /// Sets the bytes that one map or prog array of an object may take.
    pub fn object_memory_limit(mut self, object_memory_limit: u64) -> Config {
        self.object_memory_limit = object_memory_limit;
        self
    }

    /// Sets the bytes of the thread's stack that must be left for helpers and host functions beyond what a program
    /// takes, or its run is refused ([`crate::RunError::Stack`]). A host function that needs more must check for it
    /// itself.
    pub fn stack_reserve(mut self, stack_reserve: u64) -> Config {
        self.stack_reserve = stack_reserve;
        self
    }

    /// Changes the settings of executable memory, as [`Config::hardening`] does with its switches.
    pub fn packs(mut self, change: impl FnOnce(bpf_prog_pack::Options) -> bpf_prog_pack::Options) -> Config {
        self.packs = change(self.packs);
        self
    }

    /// Changes how much work verifying one program may take, as [`Config::hardening`] does with its switches.
    pub fn limits(mut self, change: impl FnOnce(Limits) -> Limits) -> Config {
        self.limits = change(self.limits);
        self
    }

    /// Changes which unwinders, profilers and debuggers are notified of loaded programs; none by default. See "Profile
    /// and debug" in the book.
    #[cfg(native)]
    pub fn debug(mut self, change: impl FnOnce(DebugOptions) -> DebugOptions) -> Config {
        self.debug = change(self.debug);
        self
    }

    /// Sets the function that receives the lines of programs (`bpf_trace_printk`, [`crate::Linker::log`]), which are
    /// dropped by default. [`crate::run::Printed`] also names the program, its account and its execution slot. With the
    /// feature `tracing`, each line is an event as well.
    ///
    /// ```
    /// use bpf_runtime::Config;
    ///
    /// let config = Config::new().print(|printed| eprintln!("{}: {}", printed.program, printed.text));
    /// ```
    pub fn print(mut self, sink: impl Fn(&Printed<'_>) + Send + Sync + 'static) -> Config {
        self.print = Some(Arc::new(sink));
        self
    }

    /// Sets how many lines one program may print in a second; `None`, the default, for no limit. Further lines are
    /// dropped: they cost the program as much, and the next line says how many there were
    /// ([`crate::run::Printed::dropped`]), as do the metrics ([`crate::metrics::ProgramMetrics::dropped_lines`]).
    pub fn print_limit(mut self, print_limit: impl Into<Option<u32>>) -> Config {
        self.print_limit = print_limit.into();
        self
    }

    /// Sets the interfaces and routes that programs ask about (`bpf_fib_lookup`, `bpf_check_mtu`); by default there is
    /// a loopback device alone ([`crate::net::Unconfigured`]).
    pub fn network(mut self, network: Arc<dyn Network>) -> Config {
        self.network = Some(network);
        self
    }

    /// Sets whether every function saves every callee-saved register. For benches: the baseline of saving by need.
    pub fn save_all(mut self, save_all: bool) -> Config {
        self.save_all = save_all;
        self
    }

    /// Sets options of register allocation. For tests: any allocation gives the same results.
    #[cfg(native)]
    #[doc(hidden)]
    pub fn alloc(mut self, alloc: AllocOptions) -> Config {
        self.alloc = alloc;
        self
    }

    /// Sets which of the optimiser's passes are left out. For tests: any of them gives the same results.
    #[cfg(native)]
    #[doc(hidden)]
    pub fn skip_passes(mut self, skip_passes: PassSet) -> Config {
        self.skip_passes = skip_passes;
        self
    }

    /// Returns whether programs run as machine code or in the interpreter.
    #[must_use]
    pub fn get_mode(&self) -> Mode {
        self.mode
    }

    /// Returns how much work the compiler puts into machine code.
    #[must_use]
    pub fn get_opt_level(&self) -> OptLevel {
        self.opt_level
    }

    /// Returns the hardening of emitted code.
    #[must_use]
    pub fn get_hardening(&self) -> Hardening {
        self.hardening
    }

    /// Returns how many threads may run programs at the same time.
    #[must_use]
    pub fn get_max_slots(&self) -> u32 {
        self.max_slots
    }

    /// Returns the bytes that everything in the engine may take together.
    #[must_use]
    pub fn get_memory_limit(&self) -> u64 {
        self.memory_limit
    }

    /// Returns a message about two settings that exclude each other, if there are any.
    pub(crate) fn contradiction(&self) -> Option<&'static str> {
        if self.contained && self.opt_level == OptLevel::None {
            return Some(
                "`contained` needs the optimising compiler, and `opt_level` is `OptLevel::None`: leave one of them out",
            );
        }
        #[cfg(native)]
        if self.contained && self.debug.gdb {
            return Some(
                "`contained` is for programs of strangers, and `debug.gdb` maps code writable and executable at once: \
                 leave one of them out",
            );
        }
        None
    }

    /// Bounds of `tick`, both inclusive.
    pub(crate) const TICKS: (Duration, Duration) = (Duration::from_micros(50), Duration::from_secs(1));

    /// Returns the budget of one run, in taken back-edges and calls, for programs whose code counts them.
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
            .field("contained", &self.contained)
            .field("hardening", &self.hardening)
            .field("features", &self.features)
            .field("max_slots", &self.max_slots)
            .finish_non_exhaustive()
    }
}
