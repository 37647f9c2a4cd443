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
use crate::error::{LoadError, Origin, RunError};
use crate::program::bindings::{Bindings, NO_BINDINGS};
use crate::program::map_ref::MapRef;
use crate::program::name::Name;
use crate::program::source::Source;
use crate::program::table::{HostType, Kind, Member, ProgTable};
use bpf_analysis::{AccessCheck, Facts, RegionBounds};
use bpf_isa::{InsnIdx, Program};
use bpf_jit_code::PcEntry;
use bpf_prog_pack::Text;
use bpf_quiesce::{Domain, Holder, Owned, Reservation};
use bpf_verifier::ContextLayout;
use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
#[cfg(native)]
use {
    crate::engine::debug,
    crate::program::sites::{Tracked, constant_tail_calls},
    crate::program::stack::worst_stack,
    bpf_debug::Registered,
    bpf_isa::Insn,
    bpf_jit_code::OptLevel,
};

/// Nothing is told of code that there is none of.
#[cfg(not(native))]
type Registered = ();

/// Machine code and where it is.
pub(crate) struct Native {
    text: Placed,
    pub(crate) entry: Entry,
    /// What unwinders and debuggers know of it.
    registered: Option<Box<Registered>>,
    machine_stack: u64,
    /// Where the code of each call begins.
    calls: Box<[PcEntry]>,
}

/// Code in executable memory.
enum Placed {
    /// As it was emitted, for good.
    Fixed(Text),
    /// With sites that tables patch, and so share.
    #[cfg(native)]
    Patched {
        /// Out of its tables before anything else of it goes.
        _sites: Tracked,
        text: Arc<Text>,
    },
}

impl Deref for Placed {
    type Target = Text;

    fn deref(&self) -> &Text {
        match self {
            Placed::Fixed(text) => text,
            #[cfg(native)]
            Placed::Patched { text, .. } => text,
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

// SAFETY: the entry is an address inside `text`, which is shared freely.
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
    /// Takes so much of its account.
    fn take(&self, bytes: usize) -> Result<Option<Reservation>, LoadError> {
        let bytes = bytes as u64;
        let take = |account: &Account| match self.engine.domain().is_forked() {
            // The list may be locked for ever in a child, by a thread that it does not have.
            true => account.memory().reserve(bytes),
            false => account.memory().note(Holder::Program, self.name, bytes),
        };
        let full = |full| LoadError::MemoryFull { program: self.name.to_owned(), full };
        self.account.map(take).transpose().map_err(full)
    }

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
            Form::Native(native) => native.registered.take(),
            Form::Interpreted(_) => None,
        };
        let bindings = self.bindings.take();
        // Most small programs have neither.
        if registered.is_some() || bindings.is_some() {
            self.engine.domain().defer(move || drop((registered, bindings)));
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
        if let Some(memory) = draft.take(size_of_val(program.insns()))? {
            bindings.get_or_insert_default().memory = Some(memory);
        }
        let Draft { facts, .. } = draft;
        let (accesses, regions) = (facts.checks.clone(), facts.regions.clone());
        let left = Left { accesses, regions };
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
        let Draft { engine, name, layout, facts, checks, .. } = draft;
        // The program is put together in here, and not carried about in parts.
        engine.0.compilers.lend(|host| {
            let bindings = references.as_deref().unwrap_or(&NO_BINDINGS);
            let options = engine.compile_options(opt_level, layout.raw, checks);
            let facts = constant_tail_calls(program, bindings, facts);
            host.compiler
                .compile(program, &facts, bindings, &options, &mut host.code)
                .map_err(|source| LoadError::Compile { program: name.to_owned(), source })?;
            let machine_stack = worst_stack(program, &host.code);
            let limit = engine.config().max_machine_stack;
            if machine_stack > limit {
                return Err(LoadError::Stack { program: name.to_owned(), needed: machine_stack, limit });
            }
            let memory = draft.take(host.code.bytes.len())?;
            let place = |source| LoadError::Place { program: name.to_owned(), source };
            let staged =
                engine.0.packs.stage(&host.code, |symbol| bindings.resolve(symbol, &options.lower)).map_err(place)?;
            let text = staged.finalize().map_err(place)?;
            let entry = text.entry(0).ok_or_else(|| LoadError::Internal("code without an entry".into()))?;
            let entry = Entry { code: entry, callee: entry, reads_hidden: host.code.reads_hidden };
            let text = if host.code.tail_calls.is_empty() {
                Placed::Fixed(text)
            } else {
                let text = Arc::new(text);
                Placed::Patched { _sites: Tracked::new(&text, &host.code.tail_calls, bindings)?, text }
            };
            let registered = engine.0.debug.as_ref().map(|registry| {
                // SAFETY: `Loaded::drop` takes it back when no run can be in the code any more.
                unsafe { debug::register(registry, name, program, source, &host.code, &text) }
            });
            let is_call = |entry: &&PcEntry| matches!(program.insns().get(entry.insn as usize), Some(Insn::Call(_)));
            let calls = host.code.pc_map.iter().filter(is_call).copied().collect();
            if let Some(counted) = references.as_mut().and_then(|references| references.counted.as_mut()) {
                counted.set_code(host.code.bytes.len());
            }
            if memory.is_some() {
                references.get_or_insert_default().memory = memory;
            }
            Ok(draft.finish(Form::Native(Native { text, entry, registered, machine_stack, calls }), references))
        })
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

    /// Its name and what it is checked for.
    pub(crate) fn limited(&self) -> (&str, Checks) {
        (&self.name, self.checks)
    }

    /// Where its machine code is entered; `None` when interpreted.
    #[inline]
    pub(crate) fn entry(&self) -> Option<Entry> {
        self.native().map(|native| native.entry)
    }

    /// Whether the address is one of its machine code.
    pub(crate) fn has_code_at(&self, pc: u64) -> bool {
        let native = self.native();
        native.is_some_and(|n| pc.checked_sub(n.text.base() as u64).is_some_and(|at| at < n.text.len() as u64))
    }

    /// The prog arrays that it jumps through.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &Arc<ProgTable>> {
        let maps = self.bindings.iter().flat_map(|bindings| bindings.maps.iter().flatten());
        maps.filter_map(|map| match map {
            MapRef::Progs(table) => Some(table),
            MapRef::Data(_) => None,
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
    pub(crate) fn locate(&self, mut error: RunError, pc: u64) -> RunError {
        if let Some((insn, origin)) = error.origin_mut() {
            *insn = insn.or_else(|| self.call_at(pc));
            let (function, line) =
                insn.map_or((None, None), |insn| (self.source.function(insn), self.source.line(insn)));
            *origin = Some(Box::new(Origin { program: self.name.to_string(), function, line }));
        }
        if let Some(counted) = &self.bindings().counted {
            counted.counters.count_stop(&error);
        }
        trace::stopped(&self.name, &error);
        error
    }

    /// The call whose code has this address.
    fn call_at(&self, pc: u64) -> Option<InsnIdx> {
        let native = self.native()?;
        let at = u32::try_from(pc.checked_sub(native.text.base() as u64)?).ok()?;
        let before = native.calls.partition_point(|call| call.code <= at).checked_sub(1)?;
        Some(InsnIdx(native.calls[before].insn))
    }

    /// Its machine code as placed, and the address of its first byte; `None` when interpreted, and in a forked child.
    pub(crate) fn text(&self) -> Option<(Vec<u8>, u64)> {
        self.native().filter(|_| !self.engine.domain().is_forked()).map(|n| (n.text.to_vec(), n.text.base() as u64))
    }

    /// Bytes of its machine code; 0 when interpreted.
    pub(crate) fn code_bytes(&self) -> usize {
        self.native().map_or(0, |native| native.text.len())
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
