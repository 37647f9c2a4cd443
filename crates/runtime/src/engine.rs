//! The engine: configuration, executable memory, execution slots, compiler scratch.

use crate::compile::HostCompiler;
use crate::error::EngineError;
use crate::run::Run;
use bpf_debug::{Location, Options as DebugOptions, Registry};
use bpf_jit::{AllocOptions, CompileOptions, EmitOptions, LowerOptions};
use bpf_jit_code::{Arch, CpuFeatures, Hardening};
use bpf_quiesce::Domain;
use bpf_verifier::{Limits, Verifier};
use std::fmt;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

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
    /// Instructions emitted code may use; the host's by default.
    pub features: CpuFeatures,
    /// How many threads may run programs at the same time.
    pub max_slots: u32,
    /// What a thread does that finds all slots taken.
    pub when_full: WhenFull,
    /// How deep runs may be nested in one thread (a host function that runs a program).
    pub max_nested_runs: u32,
    /// Bytes of BPF stack a frame may use (512 as in the kernel).
    pub frame_bytes: u32,
    /// Worst machine stack one run may take, in bytes.
    pub max_machine_stack: u64,
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
    /// Compilers not in use: each load takes one and gives it back, so loads run in parallel and reuse memory.
    #[allow(clippy::vec_box, reason = "one is taken out and put back at each load: a pointer, not a kilobyte")]
    compilers: Mutex<Vec<Box<HostCompiler>>>,
    /// Verifiers not in use, likewise.
    verifiers: Mutex<Vec<Verifier>>,
    /// Interruptible runs, by execution slot.
    runs: Box<[RunSlot]>,
}

/// The outermost interruptible run of an execution slot.
#[derive(Default)]
struct RunSlot {
    /// Null, the run, or [`BUSY`] while another thread looks at it.
    run: AtomicPtr<Run>,
}

/// Marks a [`RunSlot`] that another thread looks at; never a run's address, which is aligned.
const BUSY: *mut Run = core::ptr::without_provenance_mut(1);

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("config", &self.0.config).finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine of its own: its programs, slots and executable memory are shared with no other.
    ///
    /// # Errors
    /// [`EngineError::NoBackend`] for [`Mode::Jit`] on an architecture without one; [`EngineError::Memory`] if executable memory
    /// is not to be had; [`EngineError::Debug`] if a file of [`Config::debug`] cannot be created.
    pub fn new(config: Config) -> Result<Engine, EngineError> {
        if config.mode == Mode::Jit && Arch::HOST.is_none() {
            return Err(EngineError::NoBackend);
        }
        let domain = Domain::new(bpf_quiesce::Options {
            max_slots: config.max_slots,
            when_full: config.when_full,
            ..bpf_quiesce::Options::default()
        });
        let mut packs = config.packs.clone();
        // A perf map is for anonymous memory.
        packs.anonymous |= config.debug.perf_map.is_some();
        let packs = bpf_prog_pack::Packs::new(Arc::clone(&domain), packs)?;
        let debug = config.debug.any().then(|| Registry::new(&config.debug)).transpose()?;
        let slots = if config.interruptible { config.max_slots } else { 0 };
        let runs = (0..slots).map(|_| RunSlot::default()).collect();
        Ok(Engine(Arc::new(EngineInner {
            config,
            domain,
            packs,
            debug,
            compilers: Mutex::default(),
            verifiers: Mutex::default(),
            runs,
        })))
    }

    /// The configuration it was made with.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// Its execution slots and grace periods, for maps made by hand.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.0.domain
    }

    /// Statistics of its executable memory.
    pub fn code_stats(&self) -> bpf_prog_pack::Stats {
        self.0.packs.stats()
    }

    /// Ends all runs that are going on: each stops at its next taken back-edge or call, with [`crate::RunError::Interrupted`].
    /// Nested runs of a thread end with its outermost. Does nothing unless [`Config::interruptible`].
    pub fn interrupt(&self) {
        for slot in &self.0.runs {
            slot.interrupt();
        }
    }

    /// Frees what dropped programs and maps left behind, as far as no run can still use it. Loads and drops do so too; a service
    /// that is idle for long may want to.
    pub fn reclaim(&self) {
        // A program that is let go lets go of its code and closures, again by a deferred callback: until nothing is left that can go.
        while self.0.domain.reclaim() > 0 {}
    }

    /// What the machine instruction at `ip` is, if it belongs to a program of this engine that is loaded. For the return address of a
    /// call, ask for the byte before it. `None` unless [`Config::debug`] asks for anything.
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

    /// The frames of emitted code on this thread's stack, innermost first: from a host function, which instruction called it, and which
    /// programs are behind that one. Empty unless `unwind` of [`Config::debug`] is on.
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

    pub(crate) fn same_as(&self, other: &Engine) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// How programs are compiled; `count`: against the budget, whatever the configuration says.
    pub(crate) fn compile_options(&self, raw_context: bool, count: bool) -> CompileOptions {
        let config = &self.0.config;
        CompileOptions {
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
                unwind: self.0.debug.is_some(),
            },
        }
    }
}

impl EngineInner {
    /// Lends a compiler to `f`.
    pub(crate) fn with_compiler<T>(&self, f: impl FnOnce(&mut HostCompiler) -> T) -> T {
        lend(&self.compilers, |compiler: &mut Box<HostCompiler>| f(compiler))
    }

    /// Lends a verifier to `f`.
    pub(crate) fn with_verifier<T>(&self, f: impl FnOnce(&mut Verifier) -> T) -> T {
        lend(&self.verifiers, f)
    }

    /// Makes `run` known to [`Engine::interrupt`] until the result is dropped. Nested runs are covered by their outermost.
    #[inline]
    pub(crate) fn register(&self, run: *mut Run, slot: u32) -> Registered<'_> {
        let Some(slot) = self.runs.get(slot as usize) else { return Registered { slot: None, run } };
        loop {
            // Release: the run's initialisation is visible to whoever finds the pointer (acquire in `interrupt`).
            match slot.run.compare_exchange(core::ptr::null_mut(), run, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return Registered { slot: Some(slot), run },
                // For two stores of another thread.
                Err(BUSY) => std::thread::yield_now(),
                Err(_) => return Registered { slot: None, run },
            }
        }
    }
}

/// Takes an idle item, or makes one, and puts it back after `f`.
fn lend<I: Default, T>(idle: &Mutex<Vec<I>>, f: impl FnOnce(&mut I) -> T) -> T {
    let lock = || idle.lock().unwrap_or_else(PoisonError::into_inner);
    // A statement of its own: the lock must not be held during `f`.
    let taken = lock().pop();
    let mut item = taken.unwrap_or_default();
    let result = f(&mut item);
    lock().push(item);
    result
}

impl RunSlot {
    fn interrupt(&self) {
        // Acquire pairs with the release in `register`; BUSY keeps the run from ending while we hold its address.
        let run = self.run.swap(BUSY, Ordering::Acquire);
        if run == BUSY {
            return; // Somebody else is interrupting it.
        }
        if !run.is_null() {
            // SAFETY: the run waits in `Registered::drop` until BUSY is gone, so its memory is there.
            let flag = unsafe { &raw mut (*run).ctx.interrupt };
            // SAFETY: it is there, as above; while the run is registered the field is only accessed atomically, by emitted code with
            // plain aligned loads.
            let flag = unsafe { AtomicU32::from_ptr(flag) };
            // Relaxed: a flag that orders nothing else.
            flag.store(1, Ordering::Relaxed);
        }
        // Release pairs with the acquire in `Registered::drop`: our store to the run comes before its end.
        self.run.store(run, Ordering::Release);
    }
}

/// A run that [`Engine::interrupt`] can find.
pub(crate) struct Registered<'a> {
    slot: Option<&'a RunSlot>,
    run: *mut Run,
}

impl Drop for Registered<'_> {
    #[inline]
    fn drop(&mut self) {
        let Some(slot) = self.slot else { return };
        // Acquire pairs with the release in `interrupt`. The other thread holds BUSY for two stores; yield in case it was preempted.
        while slot.run.compare_exchange(self.run, core::ptr::null_mut(), Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            std::thread::yield_now();
        }
    }
}
