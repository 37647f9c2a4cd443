//! A loaded program: its code or instructions, and everything they refer to.

use crate::abi::begin::Entry;
use crate::abi::limits::{Checks, Terms};
use crate::abi::run::{Run, counters};
use crate::abi::stop::dropped_outside;
use crate::abi::watch::word_of;
use crate::engine::Engine;
use crate::engine::config::Mode;
use crate::engine::metrics::{Counted, NoMemory};
use crate::engine::trace;
use crate::engine::usage::{Account, Payer};
use crate::error::{CalledAt, LoadError, Origin, RunError};
#[cfg(native)]
use crate::program::bindings::Sink;
use crate::program::bindings::{Bindings, NO_BINDINGS, Pool, Recordable};
use crate::program::code::{Compiled, take};
use crate::program::interpreted::Interpreted;
use crate::program::map_ref::MapRef;
use crate::program::name::Name;
use crate::program::source::Source;
use crate::program::table::{self, HostType, Kind, Member, ProgTable};
use crate::program::unit::{Ready, Unit};
use bpf_isa::InsnIdx;
use bpf_jit_code::FrameShape;
use bpf_quiesce::{Domain, Owned, caught};
use bpf_verifier::ContextLayout;
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
#[cfg(native)]
use {
    crate::engine::tiers::Slow,
    crate::program::again::Again,
    crate::program::code::{Emitted, Made},
    crate::program::tiered::Tiered,
};

/// Machine code and where it is.
pub(crate) struct Native {
    pub(crate) entry: Entry,
    code: Coded,
    machine_stack: u64,
}

/// Which code the entry leads to.
enum Coded {
    /// Code that is never replaced.
    Once(Compiled),
    /// Code of the first tier that is replaced once.
    #[cfg(native)]
    Tiered(Box<Tiered>),
}

impl Coded {
    /// Calls `look` with the current code.
    fn now<R>(&self, look: impl FnOnce(&Compiled) -> R) -> Option<R> {
        match self {
            Coded::Once(compiled) => Some(look(compiled)),
            #[cfg(native)]
            Coded::Tiered(tiered) => tiered.now(look),
        }
    }

    /// Calls `look` with the code that contains this address, among the current and the replaced one.
    fn at<R>(&self, pc: u64, look: impl FnOnce(&Compiled) -> R) -> Option<R> {
        match self {
            Coded::Once(compiled) => compiled.has(pc).then(|| look(compiled)),
            #[cfg(native)]
            Coded::Tiered(tiered) => tiered.at(pc, look),
        }
    }
}

/// How a program is executed. Machine code does not keep the instructions that it was made from.
pub(crate) enum Form {
    Native(Native),
    Interpreted(Arc<Interpreted>),
    /// A sleepable program: one of the others, and nothing that cannot wait runs it.
    Sleepable(Box<Form>),
}

impl Form {
    /// Returns the form that an engine executes.
    #[inline]
    pub(crate) fn executed(&self) -> &Form {
        match self {
            Form::Native(_) | Form::Interpreted(_) => self,
            // A sleepable form never contains another sleepable form.
            Form::Sleepable(form) => form,
        }
    }
}

// SAFETY: the entry is an address inside the code's text, which is shared freely.
unsafe impl Send for Native {}
// SAFETY: nothing behind a shared one is written: the entry is an address, and code is changed by its pack only, under
// that one's lock.
unsafe impl Sync for Native {}

#[cfg(native)]
impl Native {
    /// Places code. Code of a first tier is placed so that faster code can replace it.
    fn place(
        engine: &Engine,
        name: &str,
        payer: Payer<'_>,
        emitted: Emitted<'_>,
        again: Option<&Arc<Again>>,
        bindings: &mut Option<Box<Bindings>>,
    ) -> Result<Native, LoadError> {
        let machine_stack = emitted.shape.machine_stack;
        let bound = bindings.as_deref().unwrap_or(&NO_BINDINGS);
        if let Some(again) = again
            && again.fast(engine).is_none()
        {
            let (tiered, entry) = Tiered::place(engine, name, emitted, again, bound, payer)?;
            if let Some(counted) = &bound.counted {
                counted.set_code(tiered.now(|code| code.text.len()).unwrap_or(0));
            }
            let machine_stack = Tiered::machine_stack(engine, machine_stack);
            return Ok(Native { code: Coded::Tiered(Box::new(tiered)), entry, machine_stack });
        }
        // The fast code exists if another instance was found to run often.
        let fast = again.and_then(|again| again.fast(engine));
        let machine_stack = if fast.is_some() { Tiered::machine_stack(engine, machine_stack) } else { machine_stack };
        // The sink of a contained program is counted, too.
        let sink = bound.sink.as_ref().map_or(0, Sink::bytes);
        let take = |bytes| take(engine, name, payer, bytes + sink);
        let Made { compiled, entry, memory } = fast.unwrap_or(emitted).place(engine, name, bound, take)?;
        if let Some(counted) = &bound.counted {
            counted.set_code(compiled.text.len());
        }
        if memory.is_some() {
            bindings.get_or_insert_default().memory = memory;
        }
        Ok(Native { code: Coded::Once(compiled), entry, machine_stack })
    }
}

/// A loaded program. Handles, prog arrays and hooks share it; when the last one is dropped, code, closures and maps are
/// dropped after a grace period. A program without references takes one allocation beside its code (tests/memory.rs
/// counts them).
pub(crate) struct Loaded {
    pub(crate) name: Name,
    /// The name of the instance that it belongs to, if it has one.
    pub(crate) instance: Option<Arc<str>>,
    pub(crate) engine: Engine,
    pub(crate) layout: &'static ContextLayout,
    host: HostType,
    bindings: Option<Box<Bindings>>,
    /// Where its instructions came from, for messages.
    source: Option<Arc<Source>>,
    /// The budget of a run that begins with it, in taken back-edges and calls.
    pub(crate) budget: i64,
    /// The checks in its code.
    pub(crate) checks: Checks,
    /// Whether the result of a run may be anything: only an interface runs the program.
    pub(crate) void: bool,
    pub(crate) form: Form,
}

/// The instance that a program becomes a part of.
pub(crate) struct Place<'a> {
    pub(crate) engine: &'a Engine,
    /// The account and the instance that its memory is counted for.
    pub(crate) payer: Payer<'a>,
    /// The allocator of its objects.
    pub(crate) pool: Pool<'a>,
    /// Whether instructions and other parts that are not placed belong to a module, which they are counted with.
    pub(crate) shared: bool,
    /// The budget of its runs, if it differs from the module's.
    pub(crate) budget: Option<u64>,
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").field("name", &&*self.name).finish_non_exhaustive()
    }
}

impl Owned for Loaded {
    fn domain(&self) -> &Arc<Domain> {
        self.engine.domain()
    }

    fn named(&self) -> (&'static str, &str) {
        ("program", &self.name)
    }
}

impl Member for Loaded {
    fn kind(&self) -> Kind {
        let mode = if self.native().is_some() { Mode::Jit } else { Mode::Interpreter };
        Kind { layout: self.layout, host: self.host, mode, sleepable: self.is_sleepable(), void: self.void }
    }

    fn path(&self) -> String {
        Loaded::path(self)
    }

    fn slot_word(&self) -> u64 {
        match self.native() {
            Some(native) => native.entry.code as u64,
            None => table::interpreted(self),
        }
    }

    fn program_address(&self) -> u64 {
        core::ptr::from_ref(self).expose_provenance() as u64
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // `Text` waits for the grace period by itself; the closures and maps that the code uses must outlive it as
        // well. An interpreted program has no runs any more, but its closures may own other programs, which may own
        // others. Each drop is deferred, so that drops are not nested.
        let form = match &mut self.form {
            Form::Sleepable(form) => &mut **form,
            form => form,
        };
        let registered = match form {
            Form::Native(native) => match &mut native.code {
                Coded::Once(compiled) => compiled.registered.take(),
                #[cfg(native)]
                Coded::Tiered(tiered) => {
                    let kept = tiered.let_go();
                    self.engine.domain().enqueue(move || drop(kept));
                    None
                }
            },
            Form::Interpreted(_) | Form::Sleepable(_) => None,
        };
        let bindings = self.bindings.take();
        // Most small programs need no deferred drop.
        if registered.is_some() || bindings.is_some() {
            self.engine.domain().enqueue(move || drop((registered, bindings)));
        }
    }
}

impl Loaded {
    /// Makes a loaded program from a compiled one, bound to these maps.
    pub(crate) fn new(
        unit: &Unit,
        ready: Ready<'_>,
        maps: Vec<MapRef>,
        place: &mut Place<'_>,
    ) -> Result<Arc<Loaded>, LoadError> {
        let Place { engine, payer, ref mut pool, shared, budget } = *place;
        let Payer { account, instance } = payer;
        let Unit { name, layout, host, references, source, .. } = unit;
        let mut bindings = match references {
            Some(references) => Some(Box::new(Bindings::new(name, references, maps, pool)?)),
            None => None,
        };
        let memory = account.map(Account::memory);
        let counted = engine.0.metrics.program(memory, instance, name);
        let refused = |NoMemory { needed }| LoadError::NoMemory { program: name.to_string(), needed };
        if let Some(counted) = counted.map_err(refused)? {
            bindings.get_or_insert_default().count_in(counted);
        }
        let insns = |what: &Interpreted| if shared { 0 } else { size_of_val(what.program.insns()) };
        if let Some(what) = &unit.recordable {
            for map in &bindings.get_or_insert_default().maps {
                let MapRef::Progs(table) = map else { continue };
                let array = || table.name().to_owned();
                table.observe(engine, payer).map_err(|source| LoadError::ProgArray { array: array(), source })?;
            }
            let _memory = take(engine, name, payer, insns(what))?;
            bindings.get_or_insert_default().recordable = Some(Recordable { what: Arc::clone(what), _memory });
        }
        let form = match ready {
            Ready::Interpreted(what) => {
                if let Some(memory) = take(engine, name, payer, insns(what))? {
                    bindings.get_or_insert_default().memory = Some(memory);
                }
                Form::Interpreted(Arc::clone(what))
            }
            #[cfg(native)]
            Ready::Native(emitted, again) => {
                if let Some(bytes) = unit.sink {
                    bindings.get_or_insert_default().sink = Some(Sink::new(bytes));
                }
                Form::Native(Native::place(engine, name, payer, emitted, again, &mut bindings)?)
            }
        };
        let form = if unit.sleepable { Form::Sleepable(Box::new(form)) } else { form };
        Ok(Arc::new(Loaded {
            form,
            source: source.clone(),
            budget: budget.map_or(unit.budget, |budget| i64::try_from(budget).unwrap_or(i64::MAX)),
            checks: unit.checks,
            void: unit.void,
            name: name.clone(),
            instance: instance.cloned(),
            engine: engine.clone(),
            layout,
            host: *host,
            bindings,
        }))
    }

    /// Returns the objects that its instructions refer to.
    pub(crate) fn bindings(&self) -> &Bindings {
        // Programs that refer to nothing have none; and `drop` takes them.
        self.bindings.as_deref().unwrap_or(&NO_BINDINGS)
    }

    #[inline]
    fn native(&self) -> Option<&Native> {
        match self.form.executed() {
            Form::Native(native) => Some(native),
            Form::Interpreted(_) | Form::Sleepable(_) => None,
        }
    }

    /// Whether it may wait, so that only [`crate::Program::run_async`] runs it.
    pub(crate) fn is_sleepable(&self) -> bool {
        matches!(self.form, Form::Sleepable(_))
    }

    /// The error of whatever cannot wait.
    #[cold]
    #[inline(never)]
    pub(crate) fn cannot_wait(&self) -> RunError {
        RunError::Sleepable { program: self.name.to_string() }
    }

    /// Its functions and source lines, if known.
    pub(crate) fn source(&self) -> Option<&Source> {
        self.source.as_deref()
    }

    /// Returns the form that the interpreter executes; `None` for machine code.
    pub(crate) fn interpreted(&self) -> Option<&Arc<Interpreted>> {
        match self.form.executed() {
            Form::Native(_) | Form::Sleepable(_) => None,
            Form::Interpreted(interpreted) => Some(interpreted),
        }
    }

    /// Returns the instructions, where they are kept: of an interpreted program, and of one whose runs may be recorded.
    pub(crate) fn instructions(&self) -> Option<&Arc<Interpreted>> {
        self.interpreted().or_else(|| self.bindings().recordable.as_ref().map(|kept| &kept.what))
    }

    /// The program that a prog array holds.
    pub(crate) fn of_member(member: Arc<dyn Member>) -> Option<Arc<Loaded>> {
        let any: Arc<dyn Any + Send + Sync> = member;
        any.downcast().ok()
    }

    /// Its name for listings: `INSTANCE/PROGRAM` if the instance has a name.
    pub(crate) fn path(&self) -> String {
        match &self.instance {
            Some(instance) => format!("{instance}/{}", &*self.name),
            None => self.name.to_string(),
        }
    }

    /// Returns the terms of a run that begins with it.
    #[inline]
    pub(crate) fn terms(&self) -> Terms {
        Terms { of: word_of(self), budget: self.budget }
    }

    /// The number by which timers know it, if it sets their callbacks.
    pub(crate) fn timer_program(&self) -> Option<u64> {
        self.bindings().timer_program()
    }

    /// Its name and what it is checked for.
    pub(crate) fn limited(&self) -> (&str, Checks) {
        (&self.name, self.checks)
    }

    /// Where its machine code is entered; `None` when interpreted.
    #[inline]
    pub(crate) fn entry(&self) -> Option<Entry> {
        match &self.form {
            Form::Native(native) => Some(native.entry),
            // Only `run_async` begins one of these.
            Form::Interpreted(_) | Form::Sleepable(_) => None,
        }
    }

    /// Whether the address is one of its machine code. The caller is inside a guard, in a run that was there.
    pub(crate) fn has_code_at(&self, pc: u64) -> bool {
        self.native().is_some_and(|native| native.code.at(pc, |_| ()).is_some())
    }

    /// The prog arrays that it jumps through.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &Arc<ProgTable>> {
        let maps = self.bindings.iter().flat_map(|bindings| &bindings.maps);
        maps.filter_map(|map| match map {
            MapRef::Progs(table) => Some(table),
            MapRef::Data(_) => None,
        })
    }

    /// How many references to this table the program keeps.
    pub(crate) fn holds_of(&self, table: &Arc<ProgTable>) -> usize {
        let code = self.native().map_or(0, |native| match &native.code {
            Coded::Once(compiled) => usize::from(compiled.jumps_through(table)),
            #[cfg(native)]
            Coded::Tiered(tiered) => tiered.jump_through(table),
        });
        self.tables().filter(|known| Arc::ptr_eq(known, table)).count() + code
    }

    /// Counts an entry into the program, which machine code counts itself.
    ///
    /// # Safety
    /// `run` must be this thread's.
    pub(crate) unsafe fn count_run(&self, run: *mut Run) {
        if let Some(Counted { counters: counted, .. }) = &self.bindings().counted {
            // SAFETY: the caller's contract; the run is there for all of this.
            unsafe { counters(run) }.store(counted.address(), Ordering::Relaxed);
            // SAFETY: the caller's contract.
            counted.count_run(unsafe { (*run).ctx.slot });
        }
    }

    /// Adds to an error the program and the source line at which the run ended. If the error has no instruction, it is
    /// found by the address `pc` in the code. `apart`: the run's stack is its own, and the thread in the section of the
    /// run's end.
    #[cold]
    pub(crate) fn locate(&self, mut error: RunError, pc: u64, callers: Vec<CalledAt>, apart: bool) -> RunError {
        if let Some((insn, origin)) = error.origin_mut() {
            *insn = insn.or_else(|| self.call_at(pc));
            let CalledAt { instance, program, function, line, .. } = self.called_at(*insn);
            *origin = Some(Box::new(Origin { instance, program, function, line, callers }));
        }
        if let Some(counted) = &self.bindings().counted {
            counted.counters.count_stop(&error);
        }
        // A subscriber is code of a host.
        match catch_unwind(AssertUnwindSafe(|| trace::stopped(&self.name, &error, apart))) {
            Ok(()) => error,
            Err(panic) => {
                if apart {
                    dropped_outside(error);
                } else {
                    // Only who has entered a section leaves it, and a handler may be here.
                    let _ = caught(|| drop(error));
                }
                resume_unwind(panic)
            }
        }
    }

    /// A call of this program's, as errors name it.
    pub(crate) fn called_at(&self, insn: Option<InsnIdx>) -> CalledAt {
        let instance = self.instance.as_deref().map(str::to_owned);
        let source = self.source.as_deref().zip(insn);
        let (function, line) = source.map_or((None, None), |(source, insn)| (source.function(insn), source.line(insn)));
        CalledAt { instance, program: self.name.to_string(), function, insn, line }
    }

    /// The function whose code has this address, as a caller, and its frame. The caller is inside a guard, in a run
    /// that was there.
    pub(crate) fn frame_at(&self, pc: u64) -> Option<(CalledAt, FrameShape)> {
        let frame = self.native()?.code.at(pc, |compiled| compiled.frame_at(pc))??;
        Some((self.called_at(self.call_at(pc)), frame))
    }

    /// The call whose code has this address.
    fn call_at(&self, pc: u64) -> Option<InsnIdx> {
        self.native()?.code.at(pc, |compiled| compiled.call_at(pc))?
    }

    /// Its machine code as placed, and the address of its first byte; `None` when interpreted, and in a forked child.
    pub(crate) fn text(&self) -> Option<(Vec<u8>, u64)> {
        let native = self.native().filter(|_| !self.engine.domain().is_forked())?;
        native.code.now(|compiled| (compiled.text.to_vec(), compiled.text.base() as u64))
    }

    /// Bytes of its machine code; 0 when interpreted.
    pub(crate) fn code_bytes(&self) -> usize {
        self.native().and_then(|native| native.code.now(|compiled| compiled.text.len())).unwrap_or(0)
    }

    /// Whether its code is that of a first tier, which may become faster.
    pub(crate) fn is_slow(&self) -> bool {
        match self.native().map(|native| &native.code) {
            #[cfg(native)]
            Some(Coded::Tiered(tiered)) => tiered.is_slow(),
            Some(Coded::Once(_)) | None => false,
        }
    }

    /// Registers a program of the first tier for recompilation when it runs often.
    #[cfg(native)]
    pub(crate) fn watch(self: &Arc<Self>) {
        if let Some(Coded::Tiered(tiered)) = self.native().map(|native| &native.code) {
            let slow: Arc<dyn Slow> = Arc::clone(self) as _;
            self.engine.0.tiers.add(tiered.note(self.bindings()), &slow);
        }
    }

    /// Worst machine stack of one run, in bytes; 0 when interpreted.
    pub(crate) fn machine_stack(&self) -> u64 {
        self.native().map_or(0, |native| native.machine_stack)
    }

    /// Returns an upper bound on the machine stack of a run in bytes, including all programs that it may jump to at any
    /// time.
    pub(crate) fn code_stack(&self) -> u64 {
        let jumps = self.native().is_some() && self.tables().next().is_some();
        if jumps { self.engine.0.runs.config.stack.jumping() } else { self.machine_stack() }
    }
}

#[cfg(native)]
impl Slow for Loaded {
    fn engine(&self) -> &Engine {
        &self.engine
    }

    fn make_fast(&self) -> bool {
        let Some(Native { code: Coded::Tiered(tiered), machine_stack, .. }) = self.native() else { return false };
        // The targets of tail calls may be replaced, so a run with tail calls is held to the bound of all programs.
        let limit = self.engine.config().max_machine_stack;
        let stack = if self.tables().next().is_some() { limit } else { *machine_stack };
        match tiered.make_fast(&self.engine, &self.name, self.bindings(), stack) {
            Ok(bytes) => {
                if let Some(counted) = &self.bindings().counted {
                    counted.set_code(bytes);
                }
                true
            }
            Err(error) => {
                trace::stays_slow(&self.name, &error);
                false
            }
        }
    }

    fn tell_slow(&self, why: &str) {
        trace::stays_slow(&self.name, &why);
    }
}
