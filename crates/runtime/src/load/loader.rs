//! Loading objects and instructions.
//!
//! The order is: create maps, resolve each program's helpers, host functions and map references, validate, verify,
//! compile, place; then initialise prog arrays and maps of maps. Everything is built aside and handed out at the end,
//! so a load that fails leaves nothing behind.

use crate::context::Context;
use crate::engine::usage::Account;
use crate::error::LoadError;
use crate::handle::instance::Instance;
use crate::handle::kept::Kept;
use crate::handle::over::Over;
use crate::handle::prog_array::ProgArray;
use crate::handle::program::Program;
use crate::load::linker::Linker;
use crate::load::map_set::{MapSet, initialise};
use crate::load::steps::{How, Loading, Trust};
use crate::load::verify;
use crate::program::bindings::Bindings;
use crate::program::map_ref::MapRef;
use bpf_isa::{Insn, InsnIdx};
use bpf_jit_code::OptLevel;
use bpf_maps::{Map, MapType};
use bpf_object::{InitialValue, Object, ReferenceKind, Unresolved};
use core::marker::PhantomData;
use std::fmt;
use std::sync::Arc;

impl<H: 'static> Linker<H> {
    /// Loads all programs of an object, verified for context `C`, in the engine's mode.
    ///
    /// # Errors
    /// [`LoadError`]; nothing is loaded then.
    pub fn load<C: Context>(&self, object: &Object, maps: MapSet) -> Result<Instance<H>, LoadError> {
        self.loader::<C>().object(object, maps)
    }

    /// What there is to choose about loading.
    pub fn loader<C: Context>(&self) -> Loader<'_, C, H> {
        let config = self.engine.config();
        let (opt_level, interruptible) = (config.opt_level, config.interruptible);
        let how = How { trust: Trust::Verifier, opt_level, budget: None, interruptible };
        Loader { linker: self, how, only: None, maps: Vec::new(), account: None, context: PhantomData }
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
    account: Option<Account>,
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
    /// With [`Mode::Jit`](crate::Mode::Jit), every run of the programs must stay inside the memory it was given, end,
    /// and call helpers and host functions with valid arguments, as the verifier would have proven.
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

    /// Stop a run that begins with one of these programs after so many taken back-edges and calls together, at least 1:
    /// [`crate::RunError::Budget`]. In a [`crate::Hook`], each program has its budget to itself. A tail call goes on
    /// with what is left. [`crate::Config::budget`] by default; a budget of `u64::MAX` only has code count, so that
    /// [`crate::RunLimits::budget`] can say for each run.
    ///
    /// ```
    /// use bpf_runtime::{Config, Engine, Linker, Raw, RunError, assemble};
    ///
    /// let linker = Linker::<()>::new(&Engine::new(Config::default())?);
    /// // Goes round as often as the context is long.
    /// let insns = assemble("r0 = 0\nr0 += 1\nif r0 < r2 goto -2\nexit")?;
    /// let rounds = linker.loader::<Raw>().hybrid().budget(100).insns("rounds", insns)?;
    /// assert_eq!(rounds.run(&mut (), &mut [0; 100])?, 100);
    /// assert!(matches!(rounds.run(&mut (), &mut [0; 1000]), Err(RunError::Budget { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn budget(mut self, budget: u64) -> Self {
        self.how.budget = Some(budget);
        self
    }

    /// Whether runs of these programs can be ended by others, and by deadlines. [`crate::Config::interruptible`] by
    /// default.
    pub fn interruptible(mut self, interruptible: bool) -> Self {
        self.how.interruptible = interruptible;
        self
    }

    /// Count what this load makes in an account of the engine: its maps and prog arrays (not those that are taken
    /// over, which stay counted where they are) and its code. A load that does not fit is refused. In a map that
    /// allocates on demand, an update that does not fit fails as one of a full map does.
    pub fn account(mut self, account: &Account) -> Self {
        self.account = Some(account.clone());
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
            #[cfg(feature = "oracle")]
            if contents.calls {
                let names = crate::oracle::host_functions();
                bindings.host = names.map(|name| linker.named(name, C::layout())).collect();
            }
            if contents.calls {
                linker.bind_helpers(name, program.insns(), C::layout(), bindings)?;
            }
        }
        self.check_account()?;
        let account = self.account.as_ref();
        let loaded =
            Loading { linker, name, layout: C::layout(), code: None, account }.load(self.how, program, bindings)?;
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
                let account = self.account.as_ref();
                Loading { linker, name, layout: C::layout(), code, account }.load(
                    self.how,
                    program,
                    Some(Box::new(p.bindings)),
                )
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
            let code = Some(p.code.code());
            let loading = Loading { linker, name: &p.name, layout: C::layout(), code, account: None };
            let options = verify::Options { log, hybrid: self.how.trust == Trust::Hybrid };
            let checked = loading.verify(program, &p.bindings, options).map_err(|error| explain(error, &p.code))?;
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

    fn check_account(&self) -> Result<(), LoadError> {
        let engine = &self.linker.engine;
        match &self.account {
            Some(account) if !account.memory().is_of(engine.domain().memory()) => {
                Err(LoadError::OtherAccount { account: account.name().to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// Puts the chosen programs together and resolves what they refer to.
    fn link(&self, object: &Object, maps: MapSet, reach: Reach) -> Result<Linked, LoadError> {
        let linker = self.linker;
        self.check_account()?;
        linker.engine.domain().owns(&maps)?;
        maps.check(object)?;
        let mut chosen: Vec<&bpf_object::Program> = match &self.only {
            None => object.programs().iter().collect(),
            Some(names) => names.iter().map(|name| object.program(name)).collect::<Result<_, _>>()?,
        };
        let types = C::types();
        let mut codes = Vec::with_capacity(chosen.len());
        // Tables of `struct_ops` are the host's to fill; no program refers to one.
        let is_map = |map: &bpf_object::MapDecl| map.map_type != MapType::StructOps;
        let mut wanted: Vec<bool> = object.maps().iter().map(|map| self.only.is_none() && is_map(map)).collect();
        // `chosen` grows by what the programs in it can jump to.
        while let Some(program) = chosen.get(codes.len()) {
            let code = object.link_for(program, &types, |name| linker.named(name, C::layout()).is_some())?;
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
        let maps = maps.create(object, &wanted, self.account.as_ref())?;

        let mut programs = Vec::with_capacity(chosen.len());
        for (program, code) in chosen.iter().zip(codes) {
            let insns = code.code().insns().to_vec();
            let mut bindings = Bindings { maps: vec![None; maps.len()], ..Bindings::default() };
            for reference in code.code().references() {
                if let ReferenceKind::Map(map) | ReferenceKind::MapValue { map, .. } = reference.kind {
                    bindings.maps[map].clone_from(&maps[map]);
                }
            }
            bindings.host = object.host_functions().iter().map(|f| linker.named(&f.name, C::layout())).collect();
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
