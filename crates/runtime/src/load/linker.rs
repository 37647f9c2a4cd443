//! Linking: what an object refers to meets what the host offers.
//!
//! The order is: create maps, resolve each program's helpers, host functions and map references, validate, verify,
//! compile, place; then initialise prog arrays and maps of maps. Everything is built aside and handed out at the end,
//! so a load that fails leaves nothing behind.

use crate::call::helpers::packet::{is_packet_helper, packet_helper};
use crate::call::helpers::table::shipped;
use crate::call::{HostFn, IntoHostFn, host_fn, prototype};
use crate::context::{Context, ContextLayout};
use crate::engine::Engine;
use crate::engine::config::Mode;
use crate::error::{LinkError, LoadError};
use crate::handle::instance::Instance;
use crate::handle::kept::Kept;
use crate::handle::over::Over;
use crate::handle::prog_array::ProgArray;
use crate::handle::program::Program;
use crate::load::map_set::{MapSet, initialise};
use crate::load::verify::{self, Checked, Subject, verify};
use crate::program::bindings::{Bindings, NO_BINDINGS};
use crate::program::bound::{Bound, unresolved};
use crate::program::loaded::{Draft, Loaded};
use crate::program::map_ref::MapRef;
use crate::program::table::{Kind, bind_all};
use bpf_analysis::Facts;
use bpf_isa::{Callee, Insn, InsnIdx};
use bpf_jit::{Extern, OptLevel};
use bpf_maps::Map;
use bpf_object::{InitialValue, Object, ReferenceKind, UNRESOLVED_CALL, Unresolved};
use bpf_uapi::{Helper, helper_id};
use bpf_verifier::{ArgKind, Helpers};
use core::marker::PhantomData;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Registers host functions and loads objects, for programs with host state `H`.
///
/// ```
/// use bpf_runtime::{Caller, Config, Engine, HelperError, Linker};
///
/// let engine = Engine::new(Config::default())?;
/// let mut linker = Linker::<Vec<u64>>::new(&engine);
/// linker.func(1001, "emit", |c: &mut Caller<'_, Vec<u64>>, value: u64| -> Result<(), HelperError> {
///     c.host().push(value);
///     Ok(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Linker<H> {
    engine: Engine,
    /// Prototypes by id: the shipped helpers and the registered functions.
    protos: Helpers,
    /// The registered functions by id.
    funcs: HashMap<u32, HostFn>,
    /// Ids of the registered functions by name, for `.ksyms`.
    names: HashMap<String, u32>,
    host: Over<H>,
}

impl<H> fmt::Debug for Linker<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Linker").field("functions", &self.names).finish_non_exhaustive()
    }
}

/// How to load.
#[derive(Clone, Copy, Debug)]
struct How {
    trust: Trust,
    opt_level: OptLevel,
}

/// Who says that a program is harmless.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trust {
    /// The verifier.
    Verifier,
    /// The verifier, with checks at run time where it has no proof.
    Hybrid,
    /// The interpreter checks every access.
    Interpreter,
    /// The caller.
    Caller,
}

impl<H: 'static> Linker<H> {
    /// A linker with the shipped helpers.
    pub fn new(engine: &Engine) -> Self {
        let mut protos = Helpers::shipped();
        // The tail call is not a function: the JIT and the interpreter know it.
        protos.retain(|p| {
            let exists = |helper| helper == Helper::TailCall || shipped(helper).is_some() || is_packet_helper(helper);
            p.helper().is_some_and(exists)
        });
        Linker { engine: engine.clone(), protos, funcs: HashMap::new(), names: HashMap::new(), host: PhantomData }
    }

    /// Gives up a shipped helper, so that its id is free for a function of the host's own. Programs that call it are
    /// refused then; the ids of those that engines know by themselves stay reserved ([`LinkError::Reserved`]).
    pub fn remove_helper(&mut self, id: u32) -> &mut Self {
        self.protos.retain(|p| p.id != id);
        self
    }

    /// Registers a host function under a helper id and a name; programs call it by either (`.ksyms`). Its types are the
    /// prototype that calls are verified against.
    ///
    /// # Errors
    /// [`LinkError`] if the id or the name is taken or reserved; nothing is registered then.
    pub fn func<Args: 'static>(
        &mut self,
        id: u32,
        name: &str,
        f: impl IntoHostFn<H, Args>,
    ) -> Result<&mut Self, LinkError> {
        fn types<H, Args, F: IntoHostFn<H, Args>>(_: &F) -> ([ArgKind; 5], bpf_verifier::Ret) {
            (F::ARGS, F::RET)
        }
        // The largest id a symbol can carry is taken: by what cannot be called.
        const MAX: u32 = if UNRESOLVED_CALL < Extern::MAX { UNRESOLVED_CALL } else { Extern::MAX } - 1;
        if id > MAX {
            return Err(LinkError::IdTooLarge { id, max: MAX });
        }
        if helper_id::SPECIAL.contains(&id) {
            return Err(LinkError::Reserved { id });
        }
        if self.names.contains_key(name) {
            return Err(LinkError::DuplicateName { name: name.to_owned() });
        }
        let (args, ret) = types(&f);
        self.protos.add(prototype(id, name, args, ret))?;
        self.funcs.insert(id, host_fn(f));
        self.names.insert(name.to_owned(), id);
        Ok(self)
    }

    /// Loads all programs of an object, verified for context `C`, in the engine's mode.
    ///
    /// # Errors
    /// [`LoadError`]; nothing is loaded then.
    pub fn load<C: Context>(&self, object: &Object, maps: MapSet) -> Result<Instance<H>, LoadError> {
        self.loader::<C>().object(object, maps)
    }

    /// What there is to choose about loading.
    pub fn loader<C: Context>(&self) -> Loader<'_, C, H> {
        let how = How { trust: Trust::Verifier, opt_level: self.engine.config().opt_level };
        Loader { linker: self, how, only: None, maps: Vec::new(), context: PhantomData }
    }

    /// The registered function of this name.
    fn named(&self, name: &str) -> Option<Bound> {
        let id = *self.names.get(name)?;
        Some(Bound { proto: self.protos.get(id)?.clone(), func: self.funcs.get(&id)?.clone() })
    }

    /// The function behind a helper id: registered ones first, so that nothing shipped can be in the way; then what is
    /// special to the context.
    fn helper(&self, id: u32, layout: &'static ContextLayout) -> Option<Bound> {
        let of_kernel = || {
            let helper = Helper::from_id(id)?;
            packet_helper(helper, layout).or_else(|| shipped(helper))
        };
        let func = self.funcs.get(&id).or_else(of_kernel)?.clone();
        Some(Bound { proto: self.protos.get(id)?.clone(), func })
    }

    /// Resolves the helpers that the instructions call.
    fn bind_helpers(
        &self,
        name: &str,
        insns: &[Insn],
        layout: &'static ContextLayout,
        bindings: &mut Bindings,
    ) -> Result<(), LoadError> {
        for (slot, insn) in (0u32..).zip(insns) {
            let Insn::Call(callee) = *insn else { continue };
            let insn = InsnIdx(slot);
            match callee {
                Callee::Helper(helper_id::TAIL_CALL) | Callee::Subprog(_) => {}
                Callee::Helper(UNRESOLVED_CALL) => {
                    if bindings.helper(UNRESOLVED_CALL).is_none() {
                        // Above all other ids, so the order stays.
                        bindings.helpers.push((UNRESOLVED_CALL, unresolved()));
                    }
                }
                Callee::Helper(id) => {
                    if let Err(at) = bindings.helpers.binary_search_by_key(&id, |h| h.0) {
                        match self.helper(id, layout) {
                            Some(helper) => bindings.helpers.insert(at, (id, helper)),
                            None => bindings.missing.push((insn, id)),
                        }
                    }
                }
                Callee::Host(index) => {
                    if usize::try_from(index).map_or(true, |i| i >= bindings.host.len()) {
                        let what = format!("there is no host function with index {index}");
                        return Err(LoadError::Unresolved { program: name.to_owned(), insn, what });
                    }
                }
            }
        }
        Ok(())
    }

    /// Verifies a program. A helper that there is not may only be called where no run comes to.
    fn verify(
        &self,
        subject: &Subject<'_>,
        program: bpf_isa::Program,
        options: verify::Options,
    ) -> Result<Checked, LoadError> {
        let missing = &subject.bindings.missing;
        let unknown = |call| unknown_helper(subject.name, call, subject.code);
        let checked = verify(&self.engine, subject, program, options).map_err(|error| match &error {
            LoadError::Verifier { source, .. } => {
                missing.iter().find(|call| call.0 == source.insn).map_or(error, unknown)
            }
            _ => error,
        })?;
        match missing.iter().find(|call| !checked.facts.insn(call.0).dead) {
            Some(call) => Err(unknown(call)),
            None => Ok(checked),
        }
    }

    fn finish(
        &self,
        name: &str,
        program: bpf_isa::Program,
        mut references: Option<Box<Bindings>>,
        layout: &'static ContextLayout,
        code: Option<&bpf_object::Code>,
        How { trust, opt_level }: How,
    ) -> Result<Arc<Loaded>, LoadError> {
        if let Some(bindings) = &mut references {
            bindings.bind_addresses(name, &program)?;
            if bindings.is_empty() {
                references = None;
            }
        }
        let bindings = references.as_deref().unwrap_or(&NO_BINDINGS);
        let mode = match trust {
            Trust::Interpreter => Mode::Interpreter,
            Trust::Verifier | Trust::Hybrid | Trust::Caller => self.engine.config().mode,
        };
        let kind = Kind { layout, mode };
        let engine = &self.engine;
        let load = |program: bpf_isa::Program, facts: &Facts, lines, references| {
            let draft = Draft { engine, name, layout, facts, lines };
            let loaded = match mode {
                Mode::Interpreter => Loaded::interpret(draft, program, references),
                Mode::Jit => Loaded::compile(draft, &program, references, opt_level, code)?,
            };
            // The last step, so that a refused load leaves arrays as they were; and before anybody can run it.
            bind_all(loaded.tables(), kind)?;
            Ok(loaded)
        };
        match trust {
            Trust::Verifier | Trust::Hybrid => {
                let subject = Subject { name, bindings, layout, helpers: &self.protos, code };
                let options = verify::Options { log: false, hybrid: trust == Trust::Hybrid };
                let Checked { program, facts, lines, .. } = self.verify(&subject, program, options)?;
                load(program, &facts, lines, references)
            }
            Trust::Interpreter | Trust::Caller if !bindings.missing.is_empty() => {
                Err(unknown_helper(name, &bindings.missing[0], code))
            }
            Trust::Interpreter | Trust::Caller if !layout.regions.is_empty() && !layout.raw => {
                let (program, context) = (name.to_owned(), layout.name.to_string());
                Err(LoadError::NeedsVerifier { program, context })
            }
            Trust::Interpreter | Trust::Caller => load(program, &Facts::default(), Vec::new(), references),
        }
    }
}

/// One way of loading: which programs, and who says that they are harmless. Made by [`Linker::loader`].
///
/// ```no_run
/// # use bpf_runtime::*;
/// # fn f(linker: &Linker<()>, object: &Object, maps: MapSet) -> Result<(), LoadError> {
/// let instance = linker.loader::<Raw>().only(&["filter"]).object(object, maps)?;
/// let program = linker.loader::<Raw>().insns("one", assemble("r0 = 1\nexit").unwrap())?;
/// # Ok(()) }
/// ```
pub struct Loader<'l, C, H> {
    linker: &'l Linker<H>,
    how: How,
    only: Option<Vec<String>>,
    maps: Vec<MapRef>,
    context: Over<C>,
}

impl<C, H> fmt::Debug for Loader<'_, C, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader").field("how", &self.how).field("only", &self.only).finish_non_exhaustive()
    }
}

impl<C: Context, H: 'static> Loader<'_, C, H> {
    /// Verify, but where only an offset or the end of a loop is not proven, check that at run time instead of refusing
    /// the program: a load or store at an unproven offset into a region of the context or into global data is
    /// compared with the bounds of that region, and a program that is not proven to end runs with a budget
    /// ([`crate::Config::budget`], else [`crate::Config::hybrid_budget`]). Types, the stack and map elements are
    /// proven always. A check that fails ends the run with [`crate::RunError::Access`] or
    /// [`crate::RunError::Budget`], which name the instruction; what the run wrote before stays.
    ///
    /// Safe for any program. What is proven needs no check and costs nothing.
    ///
    /// ```
    /// use bpf_runtime::{Config, Engine, Linker, Raw, RunError, assemble};
    ///
    /// let linker = Linker::<()>::new(&Engine::new(Config::default())?);
    /// // The byte that the first byte names: nothing says that there is one.
    /// let insns = assemble("r2 = *(u8 *)(r1 + 0)\nr1 += r2\nr0 = *(u8 *)(r1 + 0)\nexit")?;
    /// assert!(linker.loader::<Raw>().insns("proven", insns.clone()).is_err());
    ///
    /// let checked = linker.loader::<Raw>().hybrid().insns("checked", insns)?;
    /// assert_eq!(checked.run(&mut (), &mut [2, 0, 7])?, 7);
    /// assert!(matches!(checked.run(&mut (), &mut [3, 0, 7]), Err(RunError::Access { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hybrid(mut self) -> Self {
        self.how.trust = Trust::Hybrid;
        self
    }

    /// Do not verify; run in the interpreter, which checks every memory access. Safe for any program.
    pub fn interpreted(mut self) -> Self {
        self.how.trust = Trust::Interpreter;
        self
    }

    /// Do not verify; run in the engine's mode.
    ///
    /// # Safety
    /// With [`Mode::Jit`], every run of the programs must stay inside the memory it was given, end, and call helpers
    /// and host functions with valid arguments, as the verifier would have proven.
    pub unsafe fn unverified(mut self) -> Self {
        self.how.trust = Trust::Caller;
        self
    }

    /// How much work to put into machine code: [`OptLevel::None`] compiles in one pass, several times faster, what runs
    /// once or a few times. [`crate::Config::opt_level`] by default.
    ///
    /// ```
    /// use bpf_runtime::{Config, Engine, Linker, OptLevel, Raw, assemble};
    ///
    /// let linker = Linker::<()>::new(&Engine::new(Config::default())?);
    /// let once = linker.loader::<Raw>().opt_level(OptLevel::None).insns("once", assemble("r0 = 42\nexit")?)?;
    /// assert_eq!(once.run(&mut (), &mut [])?, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn opt_level(mut self, level: OptLevel) -> Self {
        self.how.opt_level = level;
        self
    }

    /// Load the named programs and those that their prog arrays start with, and only the maps that these use.
    pub fn only(mut self, programs: &[&str]) -> Self {
        self.only = Some(programs.iter().map(|name| (*name).to_owned()).collect());
        self
    }

    /// For instructions without an object: `map[fd:i]` in them is the `i`th of the prog arrays and maps given, in the
    /// order of the calls.
    pub fn prog_arrays(mut self, arrays: &[&ProgArray<C, H>]) -> Self {
        self.maps.extend(arrays.iter().map(|array| MapRef::Progs(Arc::clone(array.table()))));
        self
    }

    /// The same for maps of data.
    ///
    /// ```
    /// use bpf_runtime::{Config, Engine, Linker, Map, MapDef, MapType, Raw, assemble};
    ///
    /// let engine = Engine::new(Config::default())?;
    /// let linker = Linker::<()>::new(&engine);
    /// let counter = Map::create(MapDef::new("counter", MapType::Array, 4, 8, 1), engine.domain())?;
    /// let insns = assemble("r1 = map[fd:0][0]+0\nr0 = *(u64 *)(r1 + 0)\nr0 += 1\n*(u64 *)(r1 + 0) = r0\nexit")?;
    /// let program = linker.loader::<Raw>().maps(&[&counter]).insns("count", insns)?;
    /// program.run(&mut (), &mut [])?;
    /// assert_eq!(counter.get(&[0; 4])?, Some(1u64.to_ne_bytes().to_vec()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn maps(mut self, maps: &[&Map]) -> Self {
        self.maps.extend(maps.iter().map(|map| MapRef::Data((*map).clone())));
        self
    }

    /// Loads one program from its instructions.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn insns(self, name: &str, insns: Vec<Insn>) -> Result<Program<C, H>, LoadError> {
        self.program(name, bpf_isa::Program::new(insns))
    }

    /// Loads one program from its wire format: eight bytes a slot (RFC 9669, 3), little endian.
    ///
    /// ```
    /// use bpf_runtime::{Config, Engine, Linker, Raw};
    ///
    /// let linker = Linker::<()>::new(&Engine::new(Config::default())?);
    /// // r0 = 7; exit
    /// let code = [0xb7, 0, 0, 0, 7, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
    /// assert_eq!(linker.loader::<Raw>().bytes("seven", &code)?.run(&mut (), &mut [])?, 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn bytes(self, name: &str, code: &[u8]) -> Result<Program<C, H>, LoadError> {
        self.program(name, bpf_isa::Program::from_bytes(code))
    }

    fn program(
        self,
        name: &str,
        program: Result<bpf_isa::Program, bpf_isa::ValidateError>,
    ) -> Result<Program<C, H>, LoadError> {
        let linker = self.linker;
        let program = program.map_err(|source| LoadError::Structure { program: name.to_owned(), source })?;
        self.maps.iter().try_for_each(|map| linker.engine.domain().owns(map))?;
        let contents = program.contents();
        let refers = contents.calls || contents.wide_loads || !self.maps.is_empty();
        let mut bindings = refers.then(Box::<Bindings>::default);
        if let Some(bindings) = &mut bindings {
            bindings.maps = self.maps.iter().cloned().map(Some).collect();
            if contents.calls {
                linker.bind_helpers(name, program.insns(), C::layout(), bindings)?;
            }
        }
        let loaded = linker.finish(name, program, bindings, C::layout(), None, self.how)?;
        // What it holds beside the program itself is there for prog arrays only.
        let holds = self.maps.iter().any(|map| matches!(map, MapRef::Progs(_)));
        let kept = holds.then(|| Kept::new(&linker.engine, Vec::new(), self.maps));
        Ok(Program::new(loaded, kept))
    }

    /// Loads an object.
    ///
    /// # Errors
    /// [`LoadError`]; nothing is loaded then.
    pub fn object(self, object: &Object, maps: MapSet) -> Result<Instance<H>, LoadError> {
        let linker = self.linker;
        let linked = self.link(object, maps, Reach::TailCalls)?;
        let mut programs = Vec::with_capacity(linked.programs.len());
        for p in linked.programs {
            let (name, code) = (&p.name, Some(p.code.code()));
            let program = structure(name, p.insns).and_then(|program| {
                linker.finish(name, program, Some(Box::new(p.bindings)), C::layout(), code, self.how)
            });
            programs.push(program.map_err(|error| explain(error, &p.code))?);
        }
        let maps = linked.maps;
        // The instance's hold comes first: if a slot cannot be set, it empties the arrays, which may hold each other's
        // programs.
        let kept = Kept::new(&linker.engine, programs.clone(), maps.iter().flatten().cloned().collect());
        initialise(object, &maps, &linked.taken, &|name| programs.iter().find(|p| *p.name == *name).cloned())?;
        Ok(Instance::new(kept))
    }

    /// Verifies the programs of an object and loads none. The walk is in the reports if `log` asks for it.
    ///
    /// # Errors
    /// [`LoadError`] of the first program that is refused.
    pub fn verify(self, object: &Object, maps: MapSet, log: bool) -> Result<Vec<VerifyReport>, LoadError> {
        let linker = self.linker;
        let linked = self.link(object, maps, Reach::Named)?;
        let mut reports = Vec::with_capacity(linked.programs.len());
        for mut p in linked.programs {
            let program = structure(&p.name, p.insns)?;
            p.bindings.bind_addresses(&p.name, &program)?;
            let (name, bindings, layout) = (&p.name, &p.bindings, C::layout());
            let subject = Subject { name, bindings, layout, helpers: &linker.protos, code: Some(p.code.code()) };
            let options = verify::Options { log, hybrid: self.how.trust == Trust::Hybrid };
            let checked = linker.verify(&subject, program, options).map_err(|error| explain(error, &p.code))?;
            reports.push(VerifyReport {
                program: p.name,
                steps: checked.stats.steps,
                states: checked.stats.states,
                peak_bytes: checked.stats.peak_bytes,
                checks: checked.facts.checks.iter().map(|c| c.insn).collect(),
                needs_budget: checked.facts.needs_budget,
                log: checked.log,
            });
        }
        Ok(reports)
    }

    /// Puts the chosen programs together and resolves what they refer to.
    fn link(&self, object: &Object, maps: MapSet, reach: Reach) -> Result<Linked, LoadError> {
        let linker = self.linker;
        linker.engine.domain().owns(&maps)?;
        maps.check(object)?;
        let mut chosen: Vec<&bpf_object::Program> = match &self.only {
            None => object.programs().iter().collect(),
            Some(names) => names.iter().map(|name| object.program(name)).collect::<Result<_, _>>()?,
        };
        let types = C::types();
        let mut codes = Vec::with_capacity(chosen.len());
        let mut wanted = vec![self.only.is_none(); object.maps().len()];
        // `chosen` grows by what the programs in it can jump to.
        while let Some(program) = chosen.get(codes.len()) {
            let code = object.link_for(program, &types, |name| linker.names.contains_key(name))?;
            for map in code.maps() {
                wanted[map] = true;
                for (_, value) in object.maps()[map].initial.iter().filter(|_| reach == Reach::TailCalls) {
                    if let InitialValue::Program(name) = value
                        && chosen.iter().all(|program| program.name() != name)
                    {
                        chosen.push(object.program(name)?);
                    }
                }
            }
            codes.push(code);
        }
        let taken = maps.taken();
        let maps = maps.create(object, &wanted)?;

        let mut programs = Vec::with_capacity(chosen.len());
        for (program, code) in chosen.iter().zip(codes) {
            let insns = code.code().insns().to_vec();
            let mut bindings = Bindings { maps: vec![None; maps.len()], ..Bindings::default() };
            for reference in code.code().references() {
                if let ReferenceKind::Map(map) | ReferenceKind::MapValue { map, .. } = reference.kind {
                    bindings.maps[map].clone_from(&maps[map]);
                }
            }
            bindings.host = object.host_functions().iter().map(|f| linker.named(&f.name)).collect();
            linker.bind_helpers(program.name(), &insns, C::layout(), &mut bindings)?;
            programs.push(LinkedProgram { name: program.name().to_owned(), insns, bindings, code });
        }
        Ok(Linked { programs, maps, taken })
    }
}

/// Which programs the choice of one brings along.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// None.
    Named,
    /// Those in the prog arrays that it uses.
    TailCalls,
}

/// A call of a helper that there is not.
fn unknown_helper(name: &str, &(insn, id): &(InsnIdx, u32), code: Option<&bpf_object::Code>) -> LoadError {
    let line = code.and_then(|code| code.line(insn));
    let line = line.map(|line| format!("{}:{}: `{}`", line.file, line.line, line.text.trim()));
    LoadError::UnknownHelper { program: name.to_owned(), insn, id, line }
}

/// The verifier met a call that stands for an unresolved CO-RE relocation: what that is about says more.
fn explain(error: LoadError, code: &bpf_object::LinkedCode) -> LoadError {
    let LoadError::Verifier { program, source } = &error else { return error };
    match code.unresolved().iter().find(|u| u.insn == source.insn) {
        Some(Unresolved { insn, problem }) => {
            let (program, problem) = (program.clone(), problem.clone());
            LoadError::Object(bpf_object::ObjectError::Link { program, insn: *insn, problem })
        }
        None => error,
    }
}

/// Programs whose references are resolved, and the maps of their object.
struct Linked {
    programs: Vec<LinkedProgram>,
    maps: Vec<Option<MapRef>>,
    /// Which of the maps are taken over from elsewhere.
    taken: Vec<bool>,
}

struct LinkedProgram {
    name: String,
    insns: Vec<Insn>,
    bindings: Bindings,
    code: bpf_object::LinkedCode,
}

/// What [`Loader::verify`] says of an accepted program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerifyReport {
    /// The program.
    pub program: String,
    /// Instructions walked, over all paths.
    pub steps: u64,
    /// States kept where paths meet.
    pub states: usize,
    /// Most bytes of states held at once.
    pub peak_bytes: usize,
    /// The instructions that are checked at run time ([`Loader::hybrid`]).
    pub checks: Vec<InsnIdx>,
    /// The program is not proven to end, so it runs with a budget.
    pub needs_budget: bool,
    /// The walk, if it was asked for, a line a step.
    pub log: Vec<String>,
}

fn structure(name: &str, insns: Vec<Insn>) -> Result<bpf_isa::Program, LoadError> {
    bpf_isa::Program::new(insns).map_err(|source| LoadError::Structure { program: name.to_owned(), source })
}
