//! The state of one run.
//!
//! Invariants: the [`RunCtx`] that emitted code sees is the first field of a [`Run`], so that a host function gets from
//! the hidden argument back to the run. Its word ([`crate::abi::watch`]) is 0 exactly while no run is using it;
//! [`Run::set`] resets every other field that the last run may have changed.

use crate::abi::critical::Critical;
use crate::abi::held::Held;
use crate::abi::link::Link;
use crate::abi::machine_stack::StackNeed;
use crate::abi::stack::Stack;
use crate::abi::timers::Timers;
use crate::context::Parts;
use crate::context::network::Network;
use crate::error::HelperError;
use bpf_analysis::BoundsPlace;
use bpf_jit_code::{RunCtx, StopCode};
use bpf_quiesce::{Domain, Foreign};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The host's function that receives the lines of programs: of `bpf_trace_printk` and of [`crate::Linker::log`].
pub(crate) type PrintSink = Arc<dyn Fn(&Printed<'_>) + Send + Sync>;

/// One line of a program, as [`crate::Config::print`] receives it: a call of `bpf_trace_printk`, of `bpf_trace_vprintk`
/// or of a function of [`crate::Linker::log`]. Its `Display` is the text.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Printed<'a> {
    /// The text, without a newline of its own unless the format ends with one.
    pub text: &'a str,
    /// The name of the program whose code made the call: behind a tail call, that of the program jumped to.
    pub program: &'a str,
    /// The name of the account that the program was loaded for ([`Loader::account`](crate::Loader::account)).
    pub account: Option<&'a str>,
    /// The name of the instance that the program belongs to, if it has one ([`crate::instances::Instantiate::name`]).
    pub instance: Option<&'a str>,
    /// The execution slot of the run.
    pub slot: u32,
    /// How many lines of the program were dropped since the last one, for [`crate::Config::print_limit`].
    pub dropped: u64,
    /// The level that the program gave apart from the text.
    pub(crate) level: Option<u8>,
}

impl<'a> Printed<'a> {
    /// Returns the level, 0 (emergency) to 7 (debug), and the text without it: the level given to a function of
    /// [`crate::Linker::log`], or the one that the text begins with as the system's log has it
    /// (`bpf_printk("<3>no route")`). BPF itself has no levels; the prefix is a convention of programs.
    ///
    /// Source: syslog(2), sd-daemon(3).
    pub fn level(&self) -> (Option<u8>, &'a str) {
        if self.level.is_some() {
            return (self.level, self.text);
        }
        match self.text.as_bytes() {
            [b'<', level @ b'0'..=b'7', b'>', ..] => (Some(level - b'0'), &self.text[3..]),
            _ => (None, self.text),
        }
    }
}

impl fmt::Display for Printed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }
}

/// The parts of an engine that its runs read.
pub(crate) struct RunConfig {
    /// How deep runs may be nested, the outermost included.
    pub(crate) max_nested: u32,
    /// The stack that runs may need.
    pub(crate) stack: StackNeed,
    /// The host's function that receives the output of `bpf_trace_printk`.
    pub(crate) print: Option<Foreign<PrintSink>>,
    /// The host's answers about interfaces and routes, for helpers.
    pub(crate) network: Option<Foreign<Arc<dyn Network>>>,
    /// The timers in values of its maps.
    pub(crate) timers: Timers,
    /// By slot: the lock that its run waits for, or 0.
    pub(crate) awaited: Vec<AtomicU64>,
    /// The domain of the runs' guards.
    pub(crate) domain: Arc<Domain>,
}

impl fmt::Debug for RunConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunConfig").field("max_nested", &self.max_nested).finish_non_exhaustive()
    }
}

/// One run. `repr(C)`: the hidden argument of emitted code is the address of the first field.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Run {
    pub(crate) ctx: RunCtx,
    /// The `&mut H::State` that the run was given.
    pub(crate) host: *mut (),
    /// The engine's, which outlives the run.
    pub(crate) config: *const RunConfig,
    /// Its fiber's, if it has a stack of its own: [`crate::abi::fiber`].
    pub(crate) link: *const Link,
    /// The part of the budget after which the run of a program that yields gives its thread away, and the rest of the
    /// budget behind the part that is being spent.
    pub(crate) slice: i64,
    pub(crate) left: i64,
    /// The error of the first host function that failed.
    pub(crate) error: Option<Box<HelperError>>,
    /// The resources to release if the run is stopped.
    pub(crate) held: Held,
    /// The frames of a stopped run, innermost first; empty while the run goes on.
    pub(crate) stopped: Vec<Stack>,
}

impl Run {
    /// Makes an idle run. `stop_to`: see [`RunCtx::stop_to`].
    pub(super) fn new(slot: u32, stop_to: u64) -> Run {
        let ctx = RunCtx {
            tail_calls: 0,
            stop_code: 0,
            stop_insn: 0,
            interrupt: 0,
            budget: i64::MAX,
            stop_to,
            exit_sp: 0,
            exit_pc: 0,
            exit_saved: [0; 2],
            packet: 0,
            packet_len: 0,
            host_env: 0,
            slot,
            context: 0,
            stop_pc: 0,
            stop_sp: 0,
            stop_link: 0,
            thrown: 0,
            lent: [0; 5],
            allowance: i64::MAX,
            counters: 0,
        };
        Run {
            ctx,
            host: core::ptr::null_mut(),
            config: core::ptr::null(),
            link: core::ptr::null(),
            slice: i64::MAX,
            left: 0,
            error: None,
            held: Held::NOTHING,
            stopped: Vec::new(),
        }
    }

    /// Returns the link to its fiber; `None` for a run that is on its thread's stack.
    ///
    /// # Safety
    /// `run` must be going on, on this thread.
    pub(crate) unsafe fn link<'a>(run: *mut Run) -> Option<&'a Link> {
        // SAFETY: the caller's run.
        let link = unsafe { (*run).link };
        // SAFETY: null or its fiber's, which is there until the run is over.
        unsafe { link.as_ref() }
    }

    /// Returns a run that shares slot, host and engine with this one, for a helper that calls back through the
    /// interpreter.
    pub(crate) fn view(&self) -> Run {
        let mut view = Run { host: self.host, config: self.config, ..Run::new(self.ctx.slot, self.ctx.stop_to) };
        view.ctx.context = self.ctx.context;
        view
    }

    /// Begins a new run: resets the fields that the last run may have changed.
    ///
    /// # Safety
    /// `run` must be this thread's alone, but for its word, which must be that of the new run already.
    #[inline]
    pub(super) unsafe fn set(run: *mut Run, config: &RunConfig, host: *mut (), parts: Parts, budget: i64) {
        // SAFETY: `run` is this thread's alone; the reference covers the word as well, which nobody reads or writes
        // through it.
        let run = unsafe { &mut *run };
        run.host = host;
        run.ctx.tail_calls = 0;
        run.ctx.stop_code = 0;
        run.ctx.budget = budget;
        run.ctx.packet = parts.packet as u64;
        run.ctx.packet_len = parts.packet_len as u64;
        run.ctx.context = parts.context as u64;
        run.config = config;
        run.held.forget();
    }

    /// Returns the first address and the length of a context region as they are at this moment.
    ///
    /// # Safety
    /// The run must have been given a context, and `place` be of the layout that this context agrees with; no function
    /// that writes to it may be running.
    pub(crate) unsafe fn bounds(&self, place: BoundsPlace) -> Option<(u64, u64)> {
        let field = |off: u32, size: u32| {
            // SAFETY: the layout has a field of this size there, and the context agrees with it: the caller's promise.
            let field = unsafe { (self.ctx.context as *const u8).add(off as usize) };
            match size {
                // SAFETY: the field has the eight bytes that the layout says, and nobody writes to it.
                8 => unsafe { field.cast::<u64>().read_unaligned() },
                // SAFETY: a field that is not eight bytes wide has four, and nobody writes to it.
                _ => unsafe { field.cast::<u32>().read_unaligned() }.into(),
            }
        };
        match place {
            BoundsPlace::Nowhere => None,
            BoundsPlace::Raw => Some((self.ctx.packet, self.ctx.packet_len)),
            BoundsPlace::Addresses { start, end } => {
                let start = field(start, 8);
                Some((start, field(end, 8).saturating_sub(start)))
            }
            BoundsPlace::Length { start, len, len_size } => Some((field(start, 8), field(len, len_size))),
        }
    }

    /// Records the error of a host function, which ends the run. The first error is kept.
    pub(crate) fn fail(&mut self, error: HelperError) {
        if self.ctx.stop_code == 0 {
            self.ctx.stop_code = StopCode::Host as u32;
            self.ctx.stop_insn = u32::MAX;
            self.ctx.stop_pc = 0;
            let _critical = Critical::enter();
            self.error = Some(Box::new(error));
        }
    }

    /// Keeps the frames of an emitted function, to the entry sequence, for the error.
    ///
    /// # Safety
    /// As for [`Stack::copy`].
    pub(crate) unsafe fn keep_stack(&mut self, pc: u64, sp: u64, link: u64) {
        let _critical = Critical::enter();
        // SAFETY: the caller's contract.
        let stack = unsafe { Stack::copy(pc, sp, link, self.ctx.exit_sp) };
        if self.stopped.try_reserve(1).is_ok() {
            self.stopped.extend(stack);
        }
    }

    /// Releases the records, sockets, objects and locks that the run holds. Returns whether it held any.
    #[cold]
    #[inline(never)]
    pub(crate) fn release(&mut self) -> bool {
        // Destructors of others. A run on its thread's stack is in no section, or in a handler that interrupted one.
        let _left = (!self.link.is_null()).then(Critical::leave);
        // SAFETY: the run's guard keeps the maps, and only the helpers change the list.
        unsafe { self.held.release(self.ctx.slot) }
    }
}

/// Returns the field for the counters that `run` has noted, which other threads read.
///
/// # Safety
/// As for [`word`].
pub(crate) unsafe fn counters<'a>(run: *mut Run) -> &'a AtomicU64 {
    // SAFETY: a place in a `Run` that the caller keeps valid; nothing is read.
    let counters = unsafe { &raw mut (*run).ctx.counters };
    // SAFETY: aligned, as the field of an aligned structure; the rest is the contract.
    unsafe { AtomicU64::from_ptr(counters) }
}

/// Returns the word of `run`, by which other threads identify and interrupt it ([`crate::abi::watch`]).
///
/// # Safety
/// `run` must stay valid for the result's use, and the field must be accessed atomically meanwhile; emitted code does
/// so with plain aligned loads.
#[inline]
pub(crate) unsafe fn word<'a>(run: *mut Run) -> &'a AtomicU64 {
    // SAFETY: a place in a `Run` that the caller keeps valid; nothing is read.
    let word = unsafe { &raw mut (*run).ctx.interrupt };
    // SAFETY: aligned, as the field of an aligned structure; the rest is the contract.
    unsafe { AtomicU64::from_ptr(word) }
}
