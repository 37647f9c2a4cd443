//! A loaded program: its code or instructions, and everything they refer to.

use crate::abi::run::{self, Run};
use crate::call::HostFn;
use crate::call::helpers::{SHIPPED, calling_back};
use crate::context::Parts;
use crate::engine::debug;
use crate::engine::{Engine, Mode};
use crate::error::{LoadError, Origin, RunError};
use crate::exec::interp;
use crate::load::map_set::MapRef;
use crate::program::name::Name;
use crate::program::sites::{Tracked, constant_tail_calls};
use crate::program::table::{Kind, ProgTable};
use bpf_analysis::{AccessCheck, CallArity, Facts, RegionBounds};
use bpf_debug::Registered;
use bpf_isa::{Callee, Imm64, Insn, InsnIdx, Program};
use bpf_jit::{Extern, Hidden, LowerOptions, MapShape, OptLevel, Signatures};
use bpf_jit_code::{Code, RunCtx, Symbol, TAIL_CALL_LIMIT};
use bpf_maps::{Map, MapType};
use bpf_prog_pack::Text;
use bpf_quiesce::{Domain, Guard, Owned};
use bpf_uapi::{Helper, MapTypes, helper_id};
use bpf_verifier::{ContextLayout, HelperProto, SourceLine};
use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A function a program may call, with its prototype.
#[derive(Clone)]
pub(crate) struct Bound {
    pub(crate) proto: HelperProto,
    pub(crate) func: HostFn,
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.proto.fmt(f)
    }
}

impl Bound {
    fn hidden(&self) -> Hidden {
        match (&self.func.env, self.func.needs_ctx) {
            (Some(_), _) => Hidden::Env,
            (None, true) => Hidden::Ctx,
            (None, false) => Hidden::Nothing,
        }
    }
}

/// What the instructions of a program refer to.
#[derive(Debug, Default)]
pub(crate) struct Bindings {
    /// By map index; `None` where the program does not refer to it.
    pub(crate) maps: Vec<Option<MapRef>>,
    /// The helpers it calls, ascending by id.
    pub(crate) helpers: Vec<(u32, Bound)>,
    /// Calls of helpers that there are not, ascending: fine where no run reaches them.
    pub(crate) missing: Vec<(InsnIdx, u32)>,
    /// The host functions it calls, by index; `None`: weak and missing.
    pub(crate) host: Vec<Option<Bound>>,
    /// Addresses loaded by two-slot instructions other than plain maps, ascending.
    pub(crate) addresses: Vec<(InsnIdx, u64)>,
}

/// Those of a program that refers to nothing.
pub(crate) static NO_BINDINGS: Bindings =
    Bindings { maps: Vec::new(), helpers: Vec::new(), missing: Vec::new(), host: Vec::new(), addresses: Vec::new() };

impl Bindings {
    /// Whether there is nothing that the code could use.
    pub(crate) fn is_empty(&self) -> bool {
        let Bindings { maps, helpers, missing, host, addresses } = self;
        maps.is_empty() && helpers.is_empty() && missing.is_empty() && host.is_empty() && addresses.is_empty()
    }

    pub(crate) fn helper(&self, id: u32) -> Option<&Bound> {
        self.helpers.binary_search_by_key(&id, |h| h.0).ok().map(|i| &self.helpers[i].1)
    }

    pub(crate) fn host(&self, index: i32) -> Option<&Bound> {
        self.host.get(usize::try_from(index).ok()?)?.as_ref()
    }

    pub(crate) fn map(&self, index: i32) -> Option<&MapRef> {
        self.maps.get(usize::try_from(index).ok()?)?.as_ref()
    }

    fn data_map(&self, index: u32) -> Option<&Map> {
        match self.map(index as i32)? {
            MapRef::Data(map) => Some(map),
            MapRef::Progs(_) => None,
        }
    }

    pub(crate) fn address(&self, at: InsnIdx) -> Option<u64> {
        self.addresses.binary_search_by_key(&at, |a| a.0).ok().map(|i| self.addresses[i].1)
    }

    /// The address of a symbol of code that was compiled like this.
    fn resolve(&self, symbol: Symbol, compiled: &LowerOptions) -> Option<usize> {
        let missing = missing_host_function as *const () as usize;
        Some(match Extern::from_symbol(symbol)? {
            Extern::Helper(id) => {
                let Bound { proto, func } = self.helper(id)?;
                proto.callback().map_or(func.shim, |kind| calling_back(kind, compiled)) as usize
            }
            Extern::Host(index) => self.host(index as i32).map_or(missing, |b| b.func.shim as usize),
            Extern::Map(index) => crate::num::index(self.map(index as i32)?.address()),
            Extern::Imm64(at) => crate::num::index(self.address(at)?),
            Extern::HelperEnv(id) => crate::num::index(self.helper(id)?.func.env_address()),
            Extern::HostEnv(index) => crate::num::index(self.host(index as i32)?.func.env_address()),
            Extern::ArrayBase(index) => match self.data_map(index)? {
                map if map.map_type() == MapType::ArrayOfMaps => map.inner_base() as usize,
                map => map.header().base as usize,
            },
            Extern::MapLookup(index) => self.data_map(index)?.lookup_fn() as usize,
        })
    }

    /// Computes [`Bindings::addresses`]: everything a two-slot instruction loads that is not a constant, a map or a
    /// function.
    pub(crate) fn bind_addresses(&mut self, name: &str, program: &Program) -> Result<(), LoadError> {
        if !program.contents().wide_loads {
            return Ok(());
        }
        for (slot, insn) in (0u32..).zip(program.insns()) {
            let Insn::LoadImm64 { imm, .. } = insn else { continue };
            let insn = InsnIdx(slot);
            let fail = |what: String| LoadError::Unresolved { program: name.to_owned(), insn, what };
            match *imm {
                Imm64::Const(_) | Imm64::Func(_) => {}
                Imm64::Map(map) | Imm64::MapIdx(map) => {
                    self.map(map).ok_or_else(|| fail(format!("there is no map with index {map}")))?;
                }
                Imm64::MapValue { map, off } | Imm64::MapIdxValue { map, off } => {
                    let address = match self.map(map) {
                        Some(MapRef::Data(map)) if !map.header().base.is_null() && off < map.header().value_size => {
                            map.header().base as u64 + u64::from(off)
                        }
                        Some(map) => {
                            let name = map.name();
                            return Err(fail(format!("offset {off} is not in the first value of array `{name}`")));
                        }
                        None => return Err(fail(format!("there is no map with index {map}"))),
                    };
                    self.addresses.push((insn, address));
                }
                Imm64::Var(id) => return Err(fail(format!("kernel variable {id} does not exist in user space"))),
            }
        }
        Ok(())
    }
}

impl CallArity for Bindings {
    fn helper(&self, id: u32) -> u8 {
        Bindings::helper(self, id).map_or(5, |b| b.proto.arity())
    }
    fn host(&self, index: i32) -> u8 {
        Bindings::host(self, index).map_or(5, |b| b.proto.arity())
    }
}

impl Signatures for Bindings {
    fn map(&self, index: u32) -> MapShape {
        match self.data_map(index) {
            Some(map) => {
                let header = map.header();
                let (max_entries, stride) = (header.max_entries, header.stride);
                match map.map_type() {
                    MapType::Array => MapShape::Array { max_entries, stride },
                    MapType::PerCpuArray => {
                        MapShape::PerCpuArray { max_entries, stride, slot_stride: header.slot_stride }
                    }
                    MapType::ArrayOfMaps => MapShape::ArrayOfMaps { max_entries },
                    keyed if MapTypes::KEYED.contains(keyed) => MapShape::Keyed,
                    // The verifier lets no look-up near these; unverified code calls the helper, which refuses.
                    _other => MapShape::Opaque,
                }
            }
            None => MapShape::Opaque,
        }
    }
    fn helper_hidden(&self, id: u32) -> Hidden {
        Bindings::helper(self, id).map_or(Hidden::Ctx, Bound::hidden)
    }
    fn host_hidden(&self, index: i32) -> Hidden {
        Bindings::host(self, index).map_or(Hidden::Ctx, Bound::hidden)
    }
}

/// Stands in for a weak host function that does not exist: calling it ends the run.
///
/// # Safety
/// `ctx` must be the hidden argument of emitted code.
pub(crate) unsafe extern "C" fn missing_host_function(_: u64, _: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    // SAFETY: the caller's contract.
    unsafe { never(ctx, "a weak host function that does not exist was called") }
}

/// Stands in for an instruction whose CO-RE relocation is unresolved: executing it ends the run.
///
/// # Safety
/// As for [`missing_host_function`].
unsafe extern "C" fn unresolved_relocation(_: u64, _: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    // SAFETY: the caller's contract.
    unsafe { never(ctx, "an instruction whose CO-RE relocation leads nowhere was executed") }
}

/// What calls [`bpf_object::UNRESOLVED_CALL`] are bound to. The verifier knows no such helper, so no verified program
/// calls it.
pub(crate) fn unresolved() -> Bound {
    let proto = HelperProto::new(bpf_object::UNRESOLVED_CALL, "unresolved", &[], bpf_verifier::Ret::Scalar);
    Bound { proto, func: HostFn::with_run(unresolved_relocation) }
}

/// Ends the run with this message.
///
/// # Safety
/// As for [`missing_host_function`]; the caller's frame must have nothing left to drop.
unsafe fn never(ctx: *mut RunCtx, message: &'static str) -> u64 {
    {
        // SAFETY: the hidden argument is the first field of a `Run`.
        let run = unsafe { &mut *ctx.cast::<Run>() };
        run.fail(crate::HelperError::new(message));
    }
    // SAFETY: neither this frame nor the caller's holds anything that needs dropping.
    unsafe { crate::call::leave(ctx) }
}

/// The function of a helper that works on any context, if there is one.
pub(crate) fn shipped(helper: Helper) -> Option<&'static HostFn> {
    SHIPPED.binary_search_by_key(&helper, |h| h.0).ok().map(|i| &SHIPPED[i].1)
}

/// Machine code and where it is.
struct Native {
    text: Placed,
    entry: run::Entry,
    /// What unwinders and debuggers know of it.
    registered: Option<Box<Registered>>,
    machine_stack: u64,
}

/// Code in executable memory.
enum Placed {
    /// As it was emitted, for good.
    Fixed(Text),
    /// With sites that tables patch, and so share.
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
            Placed::Patched { text, .. } => text,
        }
    }
}

/// What the interpreter executes.
#[derive(Debug)]
pub(crate) struct Interpreted {
    pub(crate) program: Program,
    /// What the verifier left to run time.
    pub(crate) checks: Checks,
}

/// How a program is executed. Machine code does not keep the instructions that it was made from.
enum Form {
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
    bindings: Option<Box<Bindings>>,
    /// Where its instructions came from, for messages.
    lines: Vec<SourceLine>,
    form: Form,
}

/// What a program is whichever way it is executed.
pub(crate) struct Draft<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) name: &'a str,
    pub(crate) layout: &'static ContextLayout,
    pub(crate) facts: &'a Facts,
    /// Where its instructions came from, for messages.
    pub(crate) lines: Vec<SourceLine>,
}

impl Draft<'_> {
    #[inline(always)]
    fn finish(self, form: Form, bindings: Option<Box<Bindings>>) -> Arc<Loaded> {
        Arc::new(Loaded {
            form,
            lines: self.lines,
            name: Name::new(self.name),
            engine: self.engine.clone(),
            layout: self.layout,
            bindings,
        })
    }
}

/// What a hybrid verification left to run time.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    /// Ascending by instruction.
    pub(crate) accesses: Vec<AccessCheck>,
    /// The bounds of the context's regions.
    pub(crate) regions: Vec<RegionBounds>,
    /// The program is not proven to end.
    pub(crate) needs_budget: bool,
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
    pub(crate) fn interpret(draft: Draft<'_>, program: Program, bindings: Option<Box<Bindings>>) -> Arc<Loaded> {
        let Draft { facts, .. } = draft;
        let (accesses, regions) = (facts.checks.clone(), facts.regions.clone());
        let checks = Checks { accesses, regions, needs_budget: facts.needs_budget };
        draft.finish(Form::Interpreted(Box::new(Interpreted { program, checks })), bindings)
    }

    /// Loads a program whose references are bound, as machine code.
    pub(crate) fn compile(
        draft: Draft<'_>,
        program: &Program,
        references: Option<Box<Bindings>>,
        opt_level: OptLevel,
        source: Option<&bpf_object::Code>,
    ) -> Result<Arc<Loaded>, LoadError> {
        let Draft { engine, name, layout, facts, .. } = draft;
        // The program is put together in here, and not carried about in parts.
        engine.0.compilers.lend(|host| {
            let bindings = references.as_deref().unwrap_or(&NO_BINDINGS);
            let options = engine.compile_options(opt_level, layout.raw, facts.needs_budget);
            let facts = constant_tail_calls(program, bindings, facts);
            host.compiler
                .compile(program, &facts, bindings, &options, &mut host.code)
                .map_err(|source| LoadError::Compile { program: name.to_owned(), source })?;
            let machine_stack = worst_stack(program, &host.code);
            let limit = engine.config().max_machine_stack;
            if machine_stack > limit {
                return Err(LoadError::Stack { program: name.to_owned(), needed: machine_stack, limit });
            }
            let place = |source| LoadError::Place { program: name.to_owned(), source };
            let staged =
                engine.0.packs.stage(&host.code, |symbol| bindings.resolve(symbol, &options.lower)).map_err(place)?;
            let text = staged.finalize().map_err(place)?;
            let entry = text.entry(0).ok_or_else(|| LoadError::Internal("code without an entry".into()))?;
            let entry = run::Entry { code: entry, callee: entry, reads_hidden: host.code.reads_hidden };
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
            Ok(draft.finish(Form::Native(Native { text, entry, registered, machine_stack }), references))
        })
    }

    /// What its instructions refer to.
    pub(crate) fn bindings(&self) -> &Bindings {
        // Programs that refer to nothing have none; and `drop` takes them.
        self.bindings.as_deref().unwrap_or(&NO_BINDINGS)
    }

    /// What it has in common with programs it may tail-call.
    pub(crate) fn kind(&self) -> Kind {
        let mode = if self.native().is_some() { Mode::Jit } else { Mode::Interpreter };
        Kind { layout: self.layout, mode }
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

    /// What a prog array's slot holds for it.
    pub(crate) fn slot_word(&self) -> u64 {
        match &self.form {
            Form::Native(native) => native.entry.code as u64,
            Form::Interpreted(_) => core::ptr::from_ref(self) as u64,
        }
    }

    /// Where its machine code is entered; `None` when interpreted.
    #[inline]
    pub(crate) fn entry(&self) -> Option<run::Entry> {
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

    /// Says of an error in which program, and at which source line, the run ended.
    #[cold]
    pub(crate) fn locate(&self, mut error: RunError) -> RunError {
        if let Some((insn, origin)) = error.origin_mut() {
            let line = insn.and_then(|insn| {
                let i = self.lines.partition_point(|l| l.insn <= insn.0).checked_sub(1)?;
                let SourceLine { file, line, text, .. } = &self.lines[i];
                Some(format!("{file}:{line}: {}", text.trim()))
            });
            *origin = Some(Box::new(Origin { program: self.name.to_string(), line }));
        }
        error
    }

    /// Its machine code as placed, and the address of its first byte; `None` when interpreted, and in a forked child.
    pub(crate) fn text(&self) -> Option<(Vec<u8>, u64)> {
        self.native().filter(|_| !self.engine.domain().is_forked()).map(|n| (n.text.to_vec(), n.text.base() as u64))
    }

    /// Worst machine stack of one run, in bytes; 0 when interpreted.
    pub(crate) fn machine_stack(&self) -> u64 {
        self.native().map_or(0, |native| native.machine_stack)
    }

    /// The same with the programs that it may jump to, now or later.
    pub(crate) fn code_stack(&self) -> u64 {
        let jumps = self.native().is_some() && self.tables().next().is_some();
        if jumps { self.engine.0.stack.jumping() } else { self.machine_stack() }
    }

    /// Runs it once.
    ///
    /// # Safety
    /// `parts` must be valid for the run and agree with the program's layout; `host` must be a `&mut H` for the `H` of
    /// the linker that loaded the program.
    #[inline(always)]
    pub(crate) unsafe fn run(&self, host: *mut (), parts: Parts) -> Result<u64, RunError> {
        let guard = self.engine.0.domain.enter()?;
        // SAFETY: the caller's contract.
        unsafe { self.run_under(guard, host, parts) }
    }

    /// Runs it once under a guard of its engine's domain, or a borrow of one.
    ///
    /// # Safety
    /// As for [`Loaded::run`].
    #[inline(always)]
    pub(crate) unsafe fn run_under<'e>(
        &'e self,
        guard: impl Borrow<Guard<'e>>,
        host: *mut (),
        parts: Parts,
    ) -> Result<u64, RunError> {
        let engine = &*self.engine.0;
        match &self.form {
            // SAFETY: the entry is that of code compiled for this host, kept by `self`; the caller vouches for the
            // rest.
            Form::Native(native) => unsafe { run::run_code(engine, guard, native.entry, host, parts, self) },
            Form::Interpreted(what) => run::begin(engine, guard, host, parts, self, |run, parts| {
                // SAFETY: the caller vouches for the parts; the run is one of this thread.
                unsafe { interp::run(self, what, run, parts) }
            }),
        }
    }

    /// Runs it as a part of `run`.
    ///
    /// # Safety
    /// As for [`Loaded::run`], with the host that `run` was begun with. The program must be kept for the call.
    pub(crate) unsafe fn run_in(&self, run: *mut Run, parts: Parts) -> Result<u64, RunError> {
        match &self.form {
            // SAFETY: the entry is that of code compiled for this host, kept by `self`; the caller vouches for the
            // rest.
            Form::Native(native) => unsafe { run::call(native.entry, run, parts, self) },
            // SAFETY: the caller vouches for the parts; `run` is the run of this thread.
            Form::Interpreted(what) => unsafe { interp::run(self, what, run, parts) },
        }
    }
}

/// Worst machine stack of a run in bytes: the deepest chain of calls; and for tail calls out of subprograms, where the
/// callers' frames stay, that chain once more for every tail call a run may take.
fn worst_stack(program: &Program, code: &Code) -> u64 {
    let n = program.subprogs().len();
    if n == 1 {
        return u64::from(code.frame_bytes.first().copied().unwrap_or(0));
    }
    let mut depth = vec![0u64; n];
    // The call graph has no cycle and at most MAX_CALL_DEPTH levels, so as many rounds settle it.
    for _ in 0..bpf_isa::MAX_CALL_DEPTH {
        for sub in (0..crate::num::small(n)).map(bpf_isa::SubprogId) {
            let callees = program.calls_of(sub).iter().map(|call| {
                // A callback comes back through a helper and the entry sequence.
                depth[call.callee.index()] + if call.callback { CALLBACK_BYTES } else { 0 }
            });
            let below = callees.max().unwrap_or(0);
            depth[sub.index()] = u64::from(code.frame_bytes.get(sub.index()).copied().unwrap_or(0)) + below;
        }
    }
    let tail_calls = |sub: bpf_isa::SubprogId| {
        let range = program.subprogs()[sub.index()];
        program.insns()[range.start as usize..range.end as usize]
            .contains(&Insn::Call(Callee::Helper(helper_id::TAIL_CALL)))
    };
    let nested = (1..crate::num::small(n)).any(|i| tail_calls(bpf_isa::SubprogId(i)));
    depth[0] * if nested { 1 + u64::from(TAIL_CALL_LIMIT) } else { 1 }
}

/// Machine stack of a helper that calls back, generously.
const CALLBACK_BYTES: u64 = 2048;
