//! What there is to choose about an engine.

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

/// How programs are executed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Mode {
    /// As machine code.
    #[default]
    Jit,
    /// By the interpreter, which checks every memory access.
    Interpreter,
}

/// How an [`Engine`](crate::Engine) behaves. `Config::default()` is meant for production.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// How programs are executed.
    pub mode: Mode,
    /// How much work to put into machine code; [`crate::Loader::opt_level`] decides for one load. With
    /// [`OptLevel::Tiered`] a thread wakes up each `tick` while programs wait to be found running often. Without cross-
    /// core barriers, or `direct_tail_calls`, no code is exchanged, and it is the same as [`OptLevel::Speed`].
    pub opt_level: OptLevel,
    /// Stop a run after so many taken back-edges and calls together, at least 1; `None` emits no check.
    /// [`crate::Loader::budget`] decides for one load, [`crate::RunLimits::budget`] for one run; `Some(u64::MAX)`
    /// limits nothing by itself.
    pub budget: Option<u64>,
    /// The budget of programs that are not proven to end ([`crate::Loader::hybrid`]), where `budget` is `None`: at
    /// least 1.
    pub hybrid_budget: u64,
    /// Whether runs can be ended: by [`Engine::interrupt`](crate::Engine::interrupt) and those of programs and hooks,
    /// by deadlines and interrupters. `false` emits no check. [`crate::Loader::interruptible`] decides for one load.
    pub interruptible: bool,
    /// Bound each access of every program once more in the code ([`crate::Loader::contained`]).
    pub contained: bool,
    /// Whether runs of programs are counted and sampled: [`Engine::snapshot`](crate::Engine::snapshot). On, each entry
    /// of a program is eight instructions longer, a program of its name takes 64 bytes for each of `max_slots`, and a
    /// thread wakes up each `tick`. Off, nothing is there that would count.
    pub metrics: bool,
    /// How often deadlines are looked at, between 50 µs and 1 s ([`crate::Engine::deadline`]).
    pub tick: Duration,
    /// Hardening of emitted code.
    pub hardening: Hardening,
    /// Patch tail calls with constant table and index into direct jumps, and exchange code for faster code
    /// ([`OptLevel::Tiered`]), where the process has cross-core barriers.
    pub direct_tail_calls: bool,
    /// Instructions emitted code may use; the host's by default. [`Engine::new`](crate::Engine::new) refuses those that
    /// it does not have.
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
    /// Bytes that all maps, prog arrays, lists of hooks and dispatchers, and memory for code of the engine may take
    /// together, also maps made by hand: at their largest, whether it is used yet or not, but for maps that allocate on
    /// demand (`NO_PREALLOC`, tries), which count what they have handed out.
    /// [`Engine::account`](crate::Engine::account) limits a part. Code lies in packs of 64 KiB and more, of which some
    /// stay when they are empty ([`bpf_prog_pack::Options`]).
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
    #[cfg(native)]
    pub debug: DebugOptions,
    /// Receives the text of `bpf_trace_printk`, which is dropped by default. [`crate::Printed`] also names the program,
    /// its account and its execution slot.
    ///
    /// ```
    /// let mut config = bpf_runtime::Config::default();
    /// config.print = Some(std::sync::Arc::new(|printed| eprintln!("{}: {}", printed.program, printed.text)));
    /// ```
    pub print: Option<PrintSink>,
    /// Interfaces and routes that programs ask about (`bpf_fib_lookup`, `bpf_check_mtu`); by default there is a
    /// loopback device alone ([`crate::network::Unconfigured`]).
    pub network: Option<Arc<dyn Network>>,
    /// Save every callee-saved register in every function: what saving by need is measured against. For benches.
    pub save_all: bool,
    /// How registers are allocated. For tests: any allocation gives the same results.
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
            metrics: false,
            tick: Duration::from_millis(1),
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
            #[cfg(native)]
            debug: DebugOptions::default(),
            print: None,
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
    /// What a service of strangers' plug-ins begins with; docs/tenants.md says what each setting answers, and what is
    /// left:
    ///
    /// * `contained`: each access is bounded once more in the code, so that neither a wrong proof nor a mispredicted
    ///   branch leads out of a program's own memory;
    /// * `budget` of 2^20 taken back-edges and calls, and `interruptible`: no run lasts, and the host may end one
    ///   sooner;
    /// * `Hardening::blind_constants`: a program's constants do not appear in its machine code, so that a stranger does
    ///   not choose the bytes of executable memory;
    /// * `packs.random_offset`: the place of a program's code within a pack is random;
    /// * `memory_limit` of 256 MiB for the engine and `object_memory_limit` of 16 MiB for one map: a tenant each gets
    ///   an [`Engine::account`](crate::Engine::account) below these;
    /// * `max_nested_runs` of 4.
    ///
    /// [`Config::default`] is for programs that the host trusts not to attack it, and that it has verified so as not to
    /// have to trust them with their mistakes.
    pub fn untrusted() -> Config {
        let mut packs = bpf_prog_pack::Options::default();
        packs.random_offset = true;
        Config {
            contained: true,
            budget: Some(1 << 20),
            interruptible: true,
            hardening: Hardening { blind_constants: true, ..Hardening::default() },
            packs,
            memory_limit: 256 << 20,
            object_memory_limit: 16 << 20,
            max_nested_runs: 4,
            ..Config::default()
        }
    }

    /// Two settings that cannot both be meant.
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

    /// The shortest and the longest tick.
    pub(crate) const TICKS: (Duration, Duration) = (Duration::from_micros(50), Duration::from_secs(1));

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
            .field("contained", &self.contained)
            .field("hardening", &self.hardening)
            .field("features", &self.features)
            .field("max_slots", &self.max_slots)
            .finish_non_exhaustive()
    }
}
