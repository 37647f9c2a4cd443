//! A loaded program: its code or instructions, and everything they refer to.

use crate::abi::begin::Entry;
use crate::abi::limits::{Checks, Terms};
use crate::abi::run::{Run, counters};
use crate::abi::watch::word_of;
use crate::engine::Engine;
use crate::engine::config::Mode;
use crate::engine::metrics::Counted;
use crate::engine::trace;
use crate::engine::usage::Account;
use crate::error::{CalledAt, LoadError, Origin, RunError};
#[cfg(native)]
use crate::program::bindings::Sink;
use crate::program::bindings::{Bindings, NO_BINDINGS};
use crate::program::code::{Compiled, take};
use crate::program::map_ref::MapRef;
use crate::program::name::Name;
use crate::program::source::Source;
use crate::program::table::{HostType, Kind, Member, ProgTable};
use bpf_analysis::{AccessCheck, ArenaFact, Facts, MemKind, RegionBounds};
use bpf_isa::{InsnIdx, Program};
use bpf_jit_code::FrameShape;
use bpf_quiesce::{Domain, Owned};
use bpf_verifier::ContextLayout;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
#[cfg(native)]
use {
    crate::engine::tiers::Slow,
    crate::program::code::{Made, Subject},
    crate::program::tiered::Tiered,
    bpf_jit_code::OptLevel,
};

/// Machine code and where it is.
pub(crate) struct Native {
    pub(crate) entry: Entry,
    code: Coded,
    machine_stack: u64,
}

/// Which code the entry leads to.
enum Coded {
    /// This, for good.
    Once(Compiled),
    /// First one and then another.
    #[cfg(native)]
    Tiered(Box<Tiered>),
}

impl Coded {
    /// What it leads to now.
    fn now<R>(&self, look: impl FnOnce(&Compiled) -> R) -> Option<R> {
        match self {
            Coded::Once(compiled) => Some(look(compiled)),
            #[cfg(native)]
            Coded::Tiered(tiered) => tiered.now(look),
        }
    }

    /// The code, of those that a run may be in, that this address lies in.
    fn at<R>(&self, pc: u64, look: impl FnOnce(&Compiled) -> R) -> Option<R> {
        match self {
            Coded::Once(compiled) => compiled.has(pc).then(|| look(compiled)),
            #[cfg(native)]
            Coded::Tiered(tiered) => tiered.at(pc, look),
        }
    }
}

/// What the interpreter executes.
#[derive(Debug)]
pub(crate) struct Interpreted {
    pub(crate) program: Program,
    /// What the verifier left to run time.
    pub(crate) left: Left,
    /// Whether it was verified.
    pub(crate) verified: bool,
}

/// How a program is executed. Machine code does not keep the instructions that it was made from.
pub(crate) enum Form {
    Native(Native),
    Interpreted(Box<Interpreted>),
}

// SAFETY: the entry is an address inside the code's text, which is shared freely.
unsafe impl Send for Native {}
// SAFETY: nothing behind a shared one is written: the entry is an address, and code is changed by its pack only, under
// that one's lock.
unsafe impl Sync for Native {}

/// A loaded program. Handles, prog arrays and hooks share it; when the last one goes, code, closures and maps are let
/// go after a grace period. One that refers to nothing is one block of memory, beside its code (tests/memory.rs
/// counts).
pub(crate) struct Loaded {
    pub(crate) name: Name,
    pub(crate) engine: Engine,
    pub(crate) layout: &'static ContextLayout,
    host: HostType,
    bindings: Option<Box<Bindings>>,
    /// Where its instructions came from, for messages.
    source: Source,
    /// What a run that begins with it may spend.
    pub(crate) budget: i64,
    /// What it is checked for as it runs.
    pub(crate) checks: Checks,
    pub(crate) form: Form,
}

/// What a program is whichever way it is executed.
pub(crate) struct Draft<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) name: &'a str,
    pub(crate) layout: &'static ContextLayout,
    pub(crate) host: HostType,
    pub(crate) facts: &'a Facts,
    /// Where its instructions came from, for messages.
    pub(crate) source: Source,
    pub(crate) budget: i64,
    pub(crate) checks: Checks,
    /// What its memory is counted in.
    pub(crate) account: Option<&'a Account>,
}

impl Draft<'_> {
    #[inline(always)]
    fn finish(self, form: Form, bindings: Option<Box<Bindings>>) -> Arc<Loaded> {
        Arc::new(Loaded {
            form,
            source: self.source,
            budget: self.budget,
            checks: self.checks,
            name: Name::new(self.name),
            engine: self.engine.clone(),
            layout: self.layout,
            host: self.host,
            bindings,
        })
    }
}

/// What a hybrid verification left to run time.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// Ascending by instruction.
    pub(crate) accesses: Vec<AccessCheck>,
    /// The bounds of the context's regions.
    pub(crate) regions: Vec<RegionBounds>,
    /// The program's arena, and the instructions that access it, ascending.
    pub(crate) arena: Option<(ArenaFact, Vec<InsnIdx>)>,
    /// What is called with what the program throws.
    pub(crate) exception: Option<InsnIdx>,
    /// What must be zero in frames. The interpreter's always are, unless a test fills them.
    #[cfg(feature = "oracle")]
    pub(crate) zeroed: Vec<bpf_analysis::Zeroed>,
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
        Kind { layout: self.layout, host: self.host, mode }
    }

    /// The entry of machine code; the address of an interpreted program itself.
    fn slot_word(&self) -> u64 {
        match &self.form {
            Form::Native(native) => native.entry.code as u64,
            Form::Interpreted(_) => core::ptr::from_ref(self) as u64,
        }
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // `Text` waits for the grace period by itself; the closures and maps that the code uses must outlive it as
        // well. Nobody interprets the program any more, but its closures may own other programs, and so on:
        // each goes after the one before, and not inside its drop.
        let registered = match &mut self.form {
            Form::Native(native) => match &mut native.code {
                Coded::Once(compiled) => compiled.registered.take(),
                #[cfg(native)]
                Coded::Tiered(tiered) => {
                    let kept = tiered.let_go();
                    self.engine.domain().enqueue(move || drop(kept));
                    None
                }
            },
            Form::Interpreted(_) => None,
        };
        let bindings = self.bindings.take();
        // Most small programs have neither.
        if registered.is_some() || bindings.is_some() {
            self.engine.domain().enqueue(move || drop((registered, bindings)));
        }
    }
}

impl Loaded {
    /// Loads a program whose references are bound, for the interpreter.
    pub(crate) fn interpret(
        draft: Draft<'_>,
        program: Program,
        mut bindings: Option<Box<Bindings>>,
    ) -> Result<Arc<Loaded>, LoadError> {
        if let Some(memory) = take(draft.engine, draft.name, draft.account, size_of_val(program.insns()))? {
            bindings.get_or_insert_default().memory = Some(memory);
        }
        let Draft { facts, .. } = draft;
        let (accesses, regions) = (facts.checks.clone(), facts.regions.clone());
        let accesses_arena = |at: &InsnIdx| facts.insn(*at).memory == Some(MemKind::Arena);
        let arena = facts.arena.map(|arena| {
            let insns = (0..crate::num::small(program.insns().len())).map(InsnIdx).filter(accesses_arena);
            (arena, insns.collect())
        });
        let left = Left {
            accesses,
            regions,
            arena,
            exception: facts.exception.map(|sub| InsnIdx(program.subprogs()[sub.index()].start)),
            #[cfg(feature = "oracle")]
            zeroed: facts.zeroed.clone(),
        };
        // Facts say something of every instruction, or nobody has found out any.
        let verified = !facts.insns.is_empty();
        Ok(draft.finish(Form::Interpreted(Box::new(Interpreted { program, left, verified })), bindings))
    }

    /// Loads a program whose references are bound, as machine code.
    #[cfg(native)]
    pub(crate) fn compile(
        draft: Draft<'_>,
        program: &Program,
        mut references: Option<Box<Bindings>>,
        opt_level: OptLevel,
        source: Option<&bpf_object::Code>,
    ) -> Result<Arc<Loaded>, LoadError> {
        let Draft { engine, name, layout, facts, checks, account, .. } = draft;
        let bindings = references.as_deref().unwrap_or(&NO_BINDINGS);
        let subject = Subject { engine, name, layout, checks, program, facts, bindings, source };
        // A timer keeps an address of the code, which must be the same for good.
        if opt_level == OptLevel::Tiered && engine.has_tiers() && bindings.timer_program().is_none() {
            let (tiered, entry, machine_stack) = Tiered::load(&subject, account)?;
            if let Some(counted) = &bindings.counted {
                counted.set_code(tiered.now(|code| code.text.len()).unwrap_or(0));
            }
            let code = Coded::Tiered(Box::new(tiered));
            return Ok(draft.finish(Form::Native(Native { code, entry, machine_stack }), references));
        }
        // Nothing of a contained program's own is left uncounted.
        let sink = bindings.sink.as_ref().map_or(0, Sink::bytes);
        // The program is put together in here, and not carried about in parts.
        let limit = engine.config().max_machine_stack;
        let Made { compiled, entry, machine_stack, memory } =
            subject.compile(opt_level, None, limit, |bytes| take(engine, name, account, bytes + sink))?;
        if let Some(counted) = &bindings.counted {
            counted.set_code(compiled.text.len());
        }
        if memory.is_some() {
            references.get_or_insert_default().memory = memory;
        }
        Ok(draft.finish(Form::Native(Native { code: Coded::Once(compiled), entry, machine_stack }), references))
    }

    /// What its instructions refer to.
    pub(crate) fn bindings(&self) -> &Bindings {
        // Programs that refer to nothing have none; and `drop` takes them.
        self.bindings.as_deref().unwrap_or(&NO_BINDINGS)
    }

    #[inline]
    fn native(&self) -> Option<&Native> {
        match &self.form {
            Form::Native(native) => Some(native),
            Form::Interpreted(_) => None,
        }
    }

    /// What the interpreter executes; `None` for machine code.
    pub(crate) fn interpreted(&self) -> Option<&Interpreted> {
        match &self.form {
            Form::Native(_) => None,
            Form::Interpreted(interpreted) => Some(interpreted),
        }
    }

    /// The program that a prog array holds.
    pub(crate) fn of_member(member: Arc<dyn Member>) -> Option<Arc<Loaded>> {
        let any: Arc<dyn Any + Send + Sync> = member;
        any.downcast().ok()
    }

    /// What a run of it alone begins with.
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
        self.native().map(|native| native.entry)
    }

    /// Whether the address is one of its machine code. The caller is inside a guard, in a run that was there.
    pub(crate) fn has_code_at(&self, pc: u64) -> bool {
        self.native().is_some_and(|native| native.code.at(pc, |_| ()).is_some())
    }

    /// The prog arrays that it jumps through.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &Arc<ProgTable>> {
        let maps = self.bindings.iter().flat_map(|bindings| bindings.maps.iter().flatten());
        maps.filter_map(|map| match map {
            MapRef::Progs(table) => Some(table),
            MapRef::Data(_) | MapRef::Declared(_) => None,
        })
    }

    /// Counts that a run enters it, as machine code does itself.
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

    /// Says of an error in which program, and at which source line, the run ended: if that is not known by its number,
    /// at the instruction that has this address in its code.
    #[cold]
    pub(crate) fn locate(&self, mut error: RunError, pc: u64, callers: Vec<CalledAt>) -> RunError {
        if let Some((insn, origin)) = error.origin_mut() {
            *insn = insn.or_else(|| self.call_at(pc));
            let CalledAt { program, function, line, .. } = self.called_at(*insn);
            *origin = Some(Box::new(Origin { program, function, line, callers }));
        }
        if let Some(counted) = &self.bindings().counted {
            counted.counters.count_stop(&error);
        }
        trace::stopped(&self.name, &error);
        error
    }

    /// A call of this program's, as errors name it.
    pub(crate) fn called_at(&self, insn: Option<InsnIdx>) -> CalledAt {
        let (function, line) = insn.map_or((None, None), |insn| (self.source.function(insn), self.source.line(insn)));
        CalledAt { program: self.name.to_string(), function, insn, line }
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

    /// Has it made fast when it is found to run often, if it is in its first tier.
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

    /// The same with the programs that it may jump to, now or later.
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
        // What it jumps to may be exchanged as well: then a run is held to the bound of all programs.
        let limit = self.engine.config().max_machine_stack;
        let stack = if self.tables().next().is_some() { limit } else { *machine_stack };
        let program = (&*self.name, self.layout, self.checks, self.bindings());
        match tiered.make_fast(&self.engine, program, stack) {
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
