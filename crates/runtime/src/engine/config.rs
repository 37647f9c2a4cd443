//! The configuration of an engine.

use crate::abi::run::PrintSink;
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

/// The settings of an [`Engine`](crate::Engine). `Config::default()` is meant for production.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// The engine that executes programs.
    pub mode: Mode,
    /// How much work the compiler puts into machine code; [`crate::Loader::opt_level`] decides for one load. With
    /// [`OptLevel::Tiered`] a thread wakes up each `tick` while programs of the first tier are loaded. Without
    /// cross-core barriers, or with `direct_tail_calls` off, code cannot be replaced, and `Tiered` means
    /// [`OptLevel::Speed`].
    pub opt_level: OptLevel,
    /// Stops a run after this number of taken back-edges and calls together, at least 1; `None` emits no check.
    /// [`crate::Loader::budget`] decides for one load, [`crate::RunLimits::budget`] for one run; `Some(u64::MAX)`
    /// limits nothing by itself.
    pub budget: Option<u64>,
    /// The budget of programs that are not proven to end ([`crate::Loader::hybrid`]), where `budget` is `None`: at
    /// least 1.
    pub hybrid_budget: u64,
    /// Whether runs can be ended by [`Engine::interrupt`](crate::Engine::interrupt), by `interrupt` of programs and
    /// hooks, by deadlines and by interrupters. `false` emits no check. [`crate::Loader::interruptible`] decides for
    /// one load.
    pub interruptible: bool,
    /// Whether the code of every program bounds each access once more, at run time ([`crate::Loader::contained`]).
    pub contained: bool,
    /// Whether the interpreter counts the executions of each instruction: [`crate::Program::coverage`]. Machine code
    /// counts nothing.
    pub coverage: bool,
    /// Whether runs of programs are counted and sampled: [`Engine::snapshot`](crate::Engine::snapshot). If `true`, the
    /// entry of each program is eight instructions longer, each program name takes 64 bytes for each of `max_slots`,
    /// and a thread wakes up each `tick`. If `false`, no code counts.
    pub metrics: bool,
    /// Interval at which deadlines are checked ([`crate::Engine::deadline`]) and runs are sampled, from 50 µs to 1 s
    /// inclusive.
    pub tick: Duration,
    /// Hardening of emitted code.
    pub hardening: Hardening,
    /// Whether tail calls with a constant table and index are patched into direct jumps, and code is replaced by faster
    /// code ([`OptLevel::Tiered`]). Both need cross-core barriers in the process.
    pub direct_tail_calls: bool,
    /// Instruction set extensions that emitted code may use; those of the host by default.
    /// [`Engine::new`](crate::Engine::new) refuses extensions that the host does not have.
    pub features: CpuFeatures,
    /// How many threads may run programs at the same time, at most [`bpf_quiesce::MAX_SLOTS`]. Each takes 384 bytes,
    /// and as much again for each depth to which its runs were ever nested.
    pub max_slots: u32,
    /// Whether a thread that finds all slots taken waits or gets an error.
    pub when_full: WhenFull,
    /// How deep runs may be nested in one thread (a host function that runs a program), the outermost included.
    /// Programs that cannot be stopped (neither loop nor call under a budget or interruption, no host function, no
    /// check) do not count: they run nothing themselves.
    pub max_nested_runs: u32,
    /// Upper bound on the runs of sleepable programs that are going on at the same time, including runs that wait. Each
    /// has a stack of its own: address space for the largest program, and memory for the pages that it uses.
    pub max_async_runs: usize,
    /// Bytes of BPF stack a frame may use (512 as in the kernel): a multiple of 8, below 64 KiB.
    pub frame_bytes: u32,
    /// Upper bound on the machine stack that one program may take, in bytes. A run of machine code that tail-calls
    /// needs twice as much on its thread, since its targets may be replaced at any time.
    pub max_machine_stack: u64,
    /// Bytes that all maps, prog arrays, lists of hooks and dispatchers, memory for code, and stacks of sleepable runs
    /// of the engine may take together, also maps made by hand. A map counts with its largest size from the start; a
    /// map that allocates on demand (`NO_PREALLOC`, tries) counts with the bytes that are allocated.
    /// [`Engine::account`](crate::Engine::account) limits a part. Code lies in packs of 64 KiB and more, of which some
    /// stay when they are empty ([`bpf_prog_pack::Options`]).
    pub memory_limit: u64,
    /// Bytes that one map or prog array of an object may take.
    pub object_memory_limit: u64,
    /// Bytes of the thread's stack that must be left for helpers and host functions beyond what a program takes, or its
    /// run is refused ([`crate::RunError::Stack`]). A host function that needs more must check for it itself.
    pub stack_reserve: u64,
    /// Executable memory.
    pub packs: bpf_prog_pack::Options,
    /// How much work verifying one program may take.
    pub limits: Limits,
    /// The unwinders, profilers and debuggers that are notified of loaded programs; none by default. See "Profile and
    /// debug" in the book.
    #[cfg(native)]
    pub debug: DebugOptions,
    /// Receives the lines of programs (`bpf_trace_printk`, [`crate::Linker::log`]), which are dropped by default.
    /// [`crate::run::Printed`] also names the program, its account and its execution slot. With the feature `tracing`,
    /// each line is an event as well.
    ///
    /// ```
    /// let mut config = bpf_runtime::Config::default();
    /// config.print = Some(std::sync::Arc::new(|printed| eprintln!("{}: {}", printed.program, printed.text)));
    /// ```
    pub print: Option<PrintSink>,
    /// How many lines one program may print in a second; `None` for no limit. Further lines are dropped: they cost the
    /// program as much, and the next line says how many there were ([`crate::run::Printed::dropped`]), as do the
    /// metrics ([`crate::metrics::ProgramMetrics::dropped_lines`]).
    pub print_limit: Option<u32>,
    /// Interfaces and routes that programs ask about (`bpf_fib_lookup`, `bpf_check_mtu`); by default there is a
    /// loopback device alone ([`crate::net::Unconfigured`]).
    pub network: Option<Arc<dyn Network>>,
    /// Whether every function saves every callee-saved register. For benches: the baseline of saving by need.
    pub save_all: bool,
    /// Options of register allocation. For tests: any allocation gives the same results.
    #[cfg(native)]
    #[doc(hidden)]
    pub alloc: AllocOptions,
    /// Which of the optimiser's passes are left out. For tests: any of them gives the same results.
    #[cfg(native)]
    #[doc(hidden)]
    pub skip_passes: PassSet,
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
            stack_reserve: 16 * 1024,
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
    /// Returns a configuration for services that run plug-ins of untrusted authors. The page "Tenants that do not trust
    /// each other" of the book lists the threat that each setting answers, and the threats that remain:
    ///
    /// * `contained`: each access is bounded once more in the code, so that neither a wrong proof nor a mispredicted
    ///   branch reaches memory outside of the program's own;
    /// * `budget` of 2^20 taken back-edges and calls, and `interruptible`: every run ends, and the host may end one
    ///   sooner;
    /// * `Hardening::blind_constants`: a program's constants do not appear in its machine code, so that its author
    ///   cannot choose the bytes of executable memory;
    /// * `packs.random_offset` and `packs.guards`: the place of a program's code within a pack is random, and
    ///   inaccessible memory lies between packs;
    /// * `memory_limit` of 256 MiB for the engine and `object_memory_limit` of 16 MiB for one map: give each tenant an
    ///   [`Engine::account`](crate::Engine::account) with a lower limit;
    /// * `max_nested_runs` of 4;
    /// * `print_limit` of 100 lines a second: a program does not fill the log.
    ///
    /// [`Config::default`] is for programs whose authors do not attack the host. The verifier finds their mistakes.
    pub fn untrusted() -> Config {
        let mut packs = bpf_prog_pack::Options::default();
        (packs.random_offset, packs.guards) = (true, true);
        Config {
            contained: true,
            budget: Some(1 << 20),
            interruptible: true,
            hardening: Hardening { straight_line: true, blind_constants: true, ..Hardening::default() },
            packs,
            memory_limit: 256 << 20,
            object_memory_limit: 16 << 20,
            max_nested_runs: 4,
            print_limit: Some(100),
            ..Config::default()
        }
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
