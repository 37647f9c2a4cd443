//! Loading objects and instructions.
//!
//! The order is: create maps, resolve each program's helpers, host functions and map references, validate, verify,
//! compile, place; then initialise prog arrays and maps of maps. Everything is built before any part of it becomes
//! visible, so a load that fails leaves nothing behind.

use crate::call::helpers::owned::{LocalType, declared_obj_new};
use crate::call::over::Over;
use crate::call::state::Host;
use crate::context::Context;
use crate::context::frags::XdpFrags;
use crate::engine::Engine;
use crate::engine::usage::{Account, Payer};
use crate::error::{LoadError, NotFound, PrototypeMismatch};
use crate::handle::instance::Instance;
use crate::handle::kept::Kept;
use crate::handle::prog_array::ProgArray;
use crate::handle::program::Program;
use crate::load::hints::{self, VerifyHint};
use crate::load::layout::OwnStruct;
use crate::load::linker::Linker;
use crate::load::map_set::{MapSet, Planned};
use crate::load::module::{Module, Origin, Part, may_load, open, own_maps, together};
use crate::load::owned::Local;
use crate::load::steps::{How, Loading, NO_PROOF, Trust};
use crate::load::verify::{Carried, Options, Proofs};
use crate::program::bindings::Pool;
use crate::program::loaded::{Loaded, Place};
use crate::program::map_ref::MapRef;
use crate::program::references::{Declared, References};
use crate::program::unit::{Ready, Unit};
use bpf_analysis::{Cfg, Constants};
use bpf_isa::{Callee, Imm64, Insn, InsnIdx};
use bpf_jit_code::OptLevel;
use bpf_maps::{CreateOptions, Map, MapDef, MapType};
use bpf_object::{InitialValue, LinkedCode, Object, Reference, ReferenceKind, Unresolved};
use bpf_verifier::{ProofError, ProofSection, Unproven};
use core::marker::PhantomData;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

impl<H: Host + ?Sized> Linker<H> {
    /// Loads all programs of an object, verified for context `C`, in the engine's mode.
    ///
    /// # Errors
    /// [`LoadError`]; nothing is loaded then.
    pub fn load<C: Context>(&self, object: &Object, maps: MapSet) -> Result<Instance<H>, LoadError> {
        self.loader::<C>().object(object, maps)
    }

    /// Verifies all programs of an object for context `C` and compiles them in the engine's mode, once for many
    /// instances: [`Loader::compile`].
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn compile<C: Context>(&self, object: &Object) -> Result<Module<C, H>, LoadError> {
        self.loader::<C>().compile(object)
    }

    /// Begins a load: the result sets its options.
    pub fn loader<C: Context>(&self) -> Loader<'_, C, H> {
        let config = self.engine.config();
        let (opt_level, interruptible, contained) = (config.opt_level, config.interruptible, config.contained);
        let trust = Trust::Verifier;
        let proofs = Proofs::default();
        let how = How {
            trust,
            privileged: false,
            opt_level,
            budget: None,
            interruptible,
            sleepable: false,
            yields: false,
            recordable: false,
            contained,
            proofs,
            interface: false,
        };
        Loader {
            linker: self,
            how,
            only: None,
            maps: Vec::new(),
            account: None,
            own_struct: Some(C::own_struct),
            open: Vec::new(),
            context: PhantomData,
        }
    }
}

/// The options of a load: which programs are loaded, and what their safety rests on. Made by [`Linker::loader`].
///
/// Each switch takes a `bool`, so that a value of the host's own configuration decides in one expression, and a load
/// can turn off what its engine turns on. Of [`hybrid`](Loader::hybrid), [`interpreted`](Loader::interpreted) and
/// [`unverified`](Loader::unverified), the one that was turned on last holds.
///
/// ```no_run
/// # use bpf_runtime::{*, isa::assemble};
/// # fn f(linker: &Linker<()>, object: &Object, maps: MapSet) -> Result<(), LoadError> {
/// let instance = linker.loader::<Raw>().only(&["filter"]).object(object, maps)?;
/// let program = linker.loader::<Raw>().insns("one", assemble("r0 = 1\nexit").unwrap())?;
/// # Ok(()) }
/// ```
pub struct Loader<'l, C, H: ?Sized = ()> {
    linker: &'l Linker<H>,
    how: How,
    only: Option<Vec<String>>,
    maps: Vec<MapRef>,
    account: Option<Account>,
    own_struct: Option<OwnStruct>,
    /// Names of maps whose constants the verification does not rely on.
    open: Vec<String>,
    context: Over<C>,
}

impl<C, H: ?Sized> fmt::Debug for Loader<'_, C, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader").field("how", &self.how).field("only", &self.only).finish_non_exhaustive()
    }
}

impl<C: Context, H: Host + ?Sized> Loader<'_, C, H> {
    /// Sets whether a program is checked at run time instead of refused where only an offset or the end of a loop is
    /// not proven: a load or store at an unproven offset into a region of the context or into global data is compared
    /// with the bounds of that region, and a program that is not proven to end runs with a budget
    /// ([`crate::Config::budget`], else [`crate::Config::hybrid_budget`]). Types, the stack and map elements are always
    /// proven. A check that fails ends the run with [`crate::RunError::Access`] or [`crate::RunError::Budget`], which
    /// name the instruction; earlier writes of the run stay.
    ///
    /// Safe for any program. Proven accesses have no check, and cost nothing.
    ///
    /// ```
    /// use bpf_runtime::{Config, Engine, Linker, Raw, RunError, isa::assemble};
    ///
    /// let linker = Linker::<()>::new(&Engine::new(Config::new())?);
    /// // The byte that the first byte names: nothing says that there is one.
    /// let insns = assemble("r2 = *(u8 *)(r1 + 0)\nr1 += r2\nr0 = *(u8 *)(r1 + 0)\nexit")?;
    /// assert!(linker.loader::<Raw>().insns("proven", insns.clone()).is_err());
    ///
    /// let checked = linker.loader::<Raw>().hybrid(true).insns("checked", insns)?;
    /// assert_eq!(checked.run_on(&mut [2, 0, 7])?, 7);
    /// assert!(matches!(checked.run_on(&mut [3, 0, 7]), Err(RunError::Access { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hybrid(self, hybrid: bool) -> Self {
        self.trust(Trust::Hybrid, hybrid)
    }

    /// Sets whether programs are verified as the kernel does for root: such a program may store pointers in maps, in
    /// the packet and in the context, subtract and compare any two, return them, and pass them to helpers as numbers;
    /// it may read stack that it has not written. A pointer that was stored outside of the stack is read back as an
    /// unknown number.
    ///
    /// Memory is as safe as without: every access is proven, and no number becomes a pointer. But the program can read
    /// addresses of the host, which address-space randomisation hides, and can pass them to readers of its maps. Use it
    /// only for programs that the host's own developers have written, never for those of strangers.
    ///
    /// ```
    /// use bpf_runtime::{Config, Engine, Linker, Raw, isa::assemble};
    ///
    /// let linker = Linker::<()>::new(&Engine::new(Config::new())?);
    /// let insns = assemble("r0 = r1\nexit")?;
    /// assert!(linker.loader::<Raw>().insns("own", insns.clone()).is_err());
    ///
    /// let own = linker.loader::<Raw>().privileged(true).insns("own", insns)?;
    /// let mut buffer = [0; 8];
    /// assert_eq!(own.run_on(&mut buffer)?, buffer.as_ptr() as u64);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn privileged(mut self, privileged: bool) -> Self {
        self.how.privileged = privileged;
        self
    }

    /// Sets whether the code bounds each access once more, beside its verification: for programs of strangers, where
    /// neither a mistake of the verifier nor a mispredicted branch may reach memory outside of the program's own.
    ///
    /// An access at an offset that is not a constant, or of memory whose length is known only when the program runs, is
    /// made at an address that a selection (never a branch) has put inside the object that its pointer names; an access
    /// outside of the object is redirected to memory of the program's own that nothing else uses. Loops and calls count
    /// a budget ([`crate::Config::budget`], else [`crate::Config::hybrid_budget`]), whatever was proven. The code is
    /// always compiled at [`OptLevel::Speed`]. [`crate::Config::contained`] by default; `false` is for programs of the
    /// host's own in a contained engine. A program with a pointer whose object is not known without the proofs, or a
    /// call that cannot be bounded, is refused ([`LoadError::Uncontained`]). The page "Tenants that do not trust each
    /// other" of the book lists these cases, and the threats that are covered. The interpreter checks that every
    /// access is in memory of the run; besides, only the refusals and the budget apply there.
    ///
    /// ```
    /// use bpf_runtime::{Config, Engine, Linker, Raw, isa::assemble};
    ///
    /// let linker = Linker::<()>::new(&Engine::new(Config::new())?);
    /// let insns = assemble("r0 = 0\nif r2 < 8 goto +1\nr0 = *(u64 *)(r1 + 0)\nexit")?;
    /// let program = linker.loader::<Raw>().contained(true).insns("stranger", insns)?;
    /// assert_eq!(program.run_on(&mut [1, 0, 0, 0, 0, 0, 0, 0])?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn contained(mut self, contained: bool) -> Self {
        self.how.contained = contained;
        self
    }

    /// Selects what to do with proofs that an object carries of its programs; [`Proofs::Ignore`] by default.
    ///
    /// ```no_run
    /// # use bpf_runtime::{*, net::Xdp, verify::Proofs};
    /// # fn f(linker: &Linker<()>, object: &Object, maps: MapSet) -> Result<(), LoadError> {
    /// // Programs without a proof that holds are refused, so no load searches.
    /// let instance = linker.loader::<Xdp>().proofs(Proofs::Require).object(object, maps)?;
    /// # Ok(()) }
    /// ```
    pub fn proofs(mut self, proofs: Proofs) -> Self {
        self.how.proofs = proofs;
        self
    }

    /// Loads methods of an interface, which ignores the results of methods that return nothing.
    pub(super) fn for_interface(mut self) -> Self {
        self.how.interface = true;
        self
    }

    /// Sets whether programs are loaded without verification and run in the interpreter, which checks every memory
    /// access. Safe for any program.
    pub fn interpreted(self, interpreted: bool) -> Self {
        self.trust(Trust::Interpreter, interpreted)
    }

    /// Sets whether programs are loaded without verification and run in the engine's mode.
    ///
    /// # Safety
    /// With [`Mode::Jit`](crate::Mode::Jit), every run of the programs must stay inside the memory it was given, end,
    /// and call helpers and host functions with valid arguments, as the verifier would have proven.
    pub unsafe fn unverified(self, unverified: bool) -> Self {
        self.trust(Trust::Caller, unverified)
    }

    /// Sets who answers for the safety of the programs, or leaves that to the verifier again.
    fn trust(mut self, trust: Trust, on: bool) -> Self {
        if on {
            self.how.trust = trust;
        } else if self.how.trust == trust {
            self.how.trust = Trust::Verifier;
        }
        self
    }

    /// Sets how much work the compiler puts into machine code. [`OptLevel::None`] compiles in one pass, several times
    /// faster, for programs that run only a few times. [`crate::Config::opt_level`] by default.
    ///
    /// ```
    /// use bpf_runtime::{Config, Engine, Linker, OptLevel, Raw, isa::assemble};
    ///
    /// let linker = Linker::<()>::new(&Engine::new(Config::new())?);
    /// let once = linker.loader::<Raw>().opt_level(OptLevel::None).insns("once", assemble("r0 = 42\nexit")?)?;
    /// assert_eq!(once.run_on(&mut [])?, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn opt_level(mut self, level: OptLevel) -> Self {
        self.how.opt_level = level;
        self
    }

    /// Stops a run that begins with one of these programs after this number of taken back-edges and calls together, at
    /// least 1, with [`crate::RunError::Budget`]. In a [`crate::Hook`], each program has its own budget. The target of
    /// a tail call gets the remainder of the budget. [`crate::Config::budget`] by default. With `u64::MAX` the code
    /// counts without a limit, so that [`crate::RunLimits::budget`] can limit single runs.
    ///
    /// ```
    /// use bpf_runtime::{Config, Engine, Linker, Raw, RunError, isa::assemble};
    ///
    /// let linker = Linker::<()>::new(&Engine::new(Config::new())?);
    /// // Goes round as often as the context is long.
    /// let insns = assemble("r0 = 0\nr0 += 1\nif r0 < r2 goto -2\nexit")?;
    /// let rounds = linker.loader::<Raw>().hybrid(true).budget(100).insns("rounds", insns)?;
    /// assert_eq!(rounds.run_on(&mut [0; 100])?, 100);
    /// assert!(matches!(rounds.run_on(&mut [0; 1000]), Err(RunError::Budget { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn budget(mut self, budget: u64) -> Self {
        self.how.budget = Some(budget);
        self
    }

    /// Sets whether runs of these programs can be ended by other threads and by deadlines.
    /// [`crate::Config::interruptible`] by default.
    pub fn interruptible(mut self, interruptible: bool) -> Self {
        self.how.interruptible = interruptible;
        self
    }

    /// Sets whether runs of these programs can be recorded ([`Program::recorder`]). Programs in machine code then keep
    /// their instructions, beside the same machine code as without. Interpreted programs can be recorded anyway;
    /// programs of a module that was saved as machine code ([`crate::Module::serialize`]) cannot.
    /// `false` by default.
    pub fn recordable(mut self, recordable: bool) -> Self {
        self.how.recordable = recordable;
        self
    }

    /// Sets whether these programs may sleep: call functions of [`Linker::func_async`], at which a run gives its thread
    /// away. They are run by [`Program::run_async`] and by nothing else: [`crate::RunError::Sleepable`]. In an object,
    /// programs that call such a function and lie in a section whose name, up to its first `/`, ends with `.s` are
    /// sleepable, too (`uprobe.s/...`, as libbpf has it).
    ///
    /// A sleepable program makes no tail calls. Across a call that may sleep it keeps its stack, its context, and
    /// values of arrays; elements of other maps, values of per-CPU maps, inner maps and whatever else may be freed must
    /// be looked up again. It may not sleep with a lock, a record, a reference or an iterator over bits, between
    /// `bpf_rcu_read_lock` and `bpf_rcu_read_unlock`, or in a callback. An iterator over numbers (`bpf_for`) stays.
    /// [`OptLevel::Tiered`] compiles it as [`OptLevel::Speed`] does.
    pub fn sleepable(mut self, sleepable: bool) -> Self {
        self.how.sleepable = sleepable || self.how.yields;
        self
    }

    /// Sets whether these programs may yield, which makes them sleepable, too: a run under [`RunLimits::yield_every`]
    /// that computes for long gives its thread to others, and goes on later. For the verifier such a program may sleep
    /// wherever one of its loops begins a round: pointers that do not outlast a call that may sleep end there. It does
    /// not yield while it holds a lock, a record, a reference or an iterator over bits, between `bpf_rcu_read_lock` and
    /// `bpf_rcu_read_unlock`, in a callback, or in a global function. Its work is counted, as with [`Loader::budget`].
    /// Programs that yield are compiled with [`OptLevel::Speed`].
    ///
    /// [`RunLimits::yield_every`]: crate::RunLimits::yield_every
    pub fn yields(mut self, yields: bool) -> Self {
        self.how.yields = yields;
        self.how.sleepable |= yields;
        self
    }

    /// Counts the maps, prog arrays and code of this load in an account of the engine. Maps and arrays that are taken
    /// over stay counted where they are. A load that exceeds the account is refused. In a map that allocates on demand,
    /// an update that exceeds it fails like an update of a full map.
    pub fn account(mut self, account: &Account) -> Self {
        self.account = Some(account.clone());
        self
    }

    /// Sets whether objects are taken to be compiled against the host's version of the context's structure. Needed for
    /// objects without type information (compiled without `-g`) that access the context
    /// ([`LoadError::ContextUntyped`]). No effect for the kernel's contexts, whose structures are fixed.
    pub fn assume_layout(mut self, assume: bool) -> Self {
        self.own_struct = if assume { None } else { Some(C::own_struct) };
        self
    }

    /// Verifies programs of an object for any constants in these maps (`.rodata`), so that each instance of a module
    /// may have other values ([`MapSet::global`], [`MapSet::contents`]). A program that bounds a loop or an index by
    /// such a constant must first compare it with a fixed limit. Constants in a section `.rodata.tenant`, or with a
    /// name that continues it after a dot, are always open. Loads, modules, [`Loader::verify`] and [`Loader::prove`]
    /// treat constants alike.
    pub fn open_constants(mut self, maps: &[&str]) -> Self {
        self.open.extend(maps.iter().map(|map| (*map).to_owned()));
        self
    }

    /// Loads only the named programs, the programs that their prog arrays hold initially, and the maps that these use.
    pub fn only(mut self, programs: &[&str]) -> Self {
        self.only = Some(programs.iter().map(|name| (*name).to_owned()).collect());
        self
    }

    /// Gives prog arrays to instructions without an object: `map[fd:i]` refers to the `i`th of the prog arrays and maps
    /// given, in the order of the calls.
    pub fn prog_arrays(mut self, arrays: &[&ProgArray<C, H>]) -> Self {
        self.maps.extend(arrays.iter().map(|array| MapRef::Progs(Arc::clone(array.table()))));
        self
    }

    /// Gives maps of data to instructions without an object, as [`Loader::prog_arrays`].
    ///
    /// ```
    /// use bpf_runtime::{Config, Engine, Linker, Raw, isa::assemble, maps::{Map, MapDef, MapType}};
    ///
    /// let engine = Engine::new(Config::new())?;
    /// let linker = Linker::<()>::new(&engine);
    /// let counter = engine.create_map(MapDef::new("counter", MapType::Array, 4, 8, 1))?;
    /// let insns = assemble("r1 = map[fd:0][0]+0\nr0 = *(u64 *)(r1 + 0)\nr0 += 1\n*(u64 *)(r1 + 0) = r0\nexit")?;
    /// let program = linker.loader::<Raw>().maps(&[&counter]).insns("count", insns)?;
    /// program.run_on(&mut [])?;
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
    /// let linker = Linker::<()>::new(&Engine::new(Config::new())?);
    /// // r0 = 7; exit
    /// let code = [0xb7, 0, 0, 0, 7, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
    /// assert_eq!(linker.loader::<Raw>().bytes("seven", &code)?.run_on(&mut [])?, 7);
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
        may_load(&self.linker.engine, self.account.as_ref())?;
        let mut program = program.map_err(LoadError::structure(name))?;
        if program.contents().indirect_calls {
            program = helpers_by_number(program).map_err(LoadError::structure(name))?;
        }
        self.maps.iter().try_for_each(|map| linker.engine.domain().owns(map))?;
        let contents = program.contents();
        let refers = contents.calls || contents.wide_loads || !self.maps.is_empty();
        let mut references = refers.then(Box::<References>::default);
        if let Some(references) = &mut references {
            references.maps = self.maps.iter().cloned().map(Declared::There).collect();
            #[cfg(feature = "oracle")]
            if contents.calls {
                let names = crate::oracle::host_functions();
                references.functions.host = names.map(|name| linker.named(name, C::layout())).collect();
                if let Some(types) = crate::load::owned::declared() {
                    declare_objects(references, types);
                }
            }
            if contents.calls {
                linker.bind_helpers(name, program.insns(), C::layout(), references)?;
            }
        }
        let proof = &NO_PROOF;
        let loading = Loading { linker, name, layout: C::layout(), code: None, own_struct: None, shared: false, proof };
        let mut place = self.place();
        let then = |unit: &Unit, ready: Ready<'_>| Loaded::new(unit, ready, self.maps.clone(), &mut place);
        let loaded = loading.load(self.how, program, references, then, |loaded| loaded.code_bytes())?;
        open(core::slice::from_ref(&loaded))?;
        // Only prog arrays need to be kept beside the program.
        let holds = self.maps.iter().any(|map| matches!(map, MapRef::Progs(_)));
        let kept = holds.then(|| Kept::new(&linker.engine, None, Vec::new(), self.maps, None));
        Ok(Program::new(loaded, kept))
    }

    /// Loads an object.
    ///
    /// # Errors
    /// [`LoadError`]; nothing is loaded then.
    pub fn object(self, object: &Object, maps: MapSet) -> Result<Instance<H>, LoadError> {
        let (linker, own_struct) = (self.linker, self.own_struct);
        let linked = self.link(object, &maps, Reach::TailCalls)?;
        let planned = Arc::clone(maps.planned());
        let origin = Arc::new(Origin::new(&maps, linked.wanted.as_slice().into()));
        let maps = maps.create(&linked.wanted, self.payer())?;
        let declared = self.declare(&planned, &linked.wanted, |at| Ok(maps[at].clone().map(Declared::There)))?;
        let mut place = self.place();
        let mut programs = Vec::with_capacity(linked.programs.len());
        let mut local = None;
        let section = proof_section(object);
        for (of, code) in linked.programs {
            let name = of.name();
            let (proof, layout) = (&carried(&section, name), C::layout());
            let loading = Loading { linker, name, layout, code: Some(code.code()), own_struct, shared: false, proof };
            let loaded = self
                .bind(object, &code, &declared, &mut local)
                .and_then(|(insns, references)| {
                    let own = own_maps(&code.maps(), &references, &maps)?;
                    let then = |unit: &Unit, ready: Ready<'_>| Loaded::new(unit, ready, own, &mut place);
                    let program = structure(name, insns)?;
                    let how = self.how.of(Some(of.section()), &references);
                    loading.load(how, program, Some(references), then, |loaded| loaded.code_bytes())
                })
                .map_err(|error| explain(error, &code))?;
            programs.push(loaded);
        }
        Ok(Instance::new(together(&linker.engine, None, programs, &origin, maps)?))
    }

    /// Verifies and compiles the programs of an object for any maps of its definitions; [`Module::instantiate`] then
    /// makes instances in microseconds. The verification relies on frozen constants (`.rodata`, `.kconfig`) as they are
    /// in the object, except those of [`Loader::open_constants`].
    ///
    /// # Errors
    /// [`LoadError`] of the first program that is refused.
    pub fn compile(self, object: &Object) -> Result<Module<C, H>, LoadError> {
        let (linker, own_struct) = (self.linker, self.own_struct);
        let maps = MapSet::for_object(&linker.engine, object)?;
        let planned = Arc::clone(maps.planned());
        let linked = self.link(object, &maps, Reach::TailCalls)?;
        let declared = self.declare(&planned, &linked.wanted, |at| maps.declared(at).map(Some))?;
        let relied = |at: &usize| linked.wanted[*at] && planned[*at].is_constant() && !self.leaves_open(&planned[*at]);
        let relied = (0..planned.len()).filter(relied).collect();
        let mut programs = Vec::with_capacity(linked.programs.len());
        let mut local = None;
        let section = proof_section(object);
        for (of, code) in linked.programs {
            let name = of.name();
            let (proof, layout) = (&carried(&section, name), C::layout());
            let loading = Loading { linker, name, layout, code: Some(code.code()), own_struct, shared: true, proof };
            let part = self
                .bind(object, &code, &declared, &mut local)
                .and_then(|(insns, references)| {
                    let then = |unit: &Unit, ready: Ready<'_>| Ok(Part::new(unit, ready, code.maps()));
                    let program = structure(name, insns)?;
                    let how = self.how.of(Some(of.section()), &references);
                    loading.load(how, program, Some(references), then, Part::code_bytes)
                })
                .map_err(|error| explain(error, &code))?;
            programs.push(part);
        }
        Ok(Module::new(&linker.engine, planned, linked.wanted, relied, programs))
    }

    /// Returns the declarations of the wanted maps, which programs are verified and compiled for. Maps of open
    /// constants are declared for any contents, and `known` returns the declarations of all others.
    fn declare(
        &self,
        planned: &[Planned],
        wanted: &[bool],
        known: impl Fn(usize) -> Result<Option<Declared>, LoadError>,
    ) -> Result<Vec<Option<Declared>>, LoadError> {
        for name in &self.open {
            if !planned.iter().any(|map| map.name() == name && map.is_constant()) {
                let have = planned.iter().filter(|map| map.is_constant()).map(Planned::name);
                return Err(NotFound::new("map of constants", name, have).into());
            }
        }
        let declared = planned.iter().zip(wanted).enumerate().map(|(at, (map, wanted))| match wanted {
            true if self.leaves_open(map) => map.declared_for_any().map(Some),
            true => known(at),
            false => Ok(None),
        });
        declared.collect()
    }

    /// Whether these are constants that programs are verified for any values of.
    fn leaves_open(&self, map: &Planned) -> bool {
        map.is_constant() && (opens(map.name()) || self.open.iter().any(|open| open == map.name()))
    }

    /// The instance that single programs are placed in.
    fn place(&self) -> Place<'_> {
        let (engine, payer) = (&self.linker.engine, self.payer());
        Place { engine, payer, pool: Pool::new(engine, payer), shared: false, budget: None }
    }

    fn payer(&self) -> Payer<'_> {
        Payer { account: self.account.as_ref(), instance: None }
    }

    /// Verifies the programs of an object and loads none. No map is made, so a verdict does not depend on memory
    /// limits. With `log`, the reports include the verifier's walk.
    ///
    /// # Errors
    /// [`LoadError`] of the first program that is refused.
    pub fn verify(self, object: &Object, maps: MapSet, log: bool) -> Result<Vec<VerifyReport>, LoadError> {
        let (linker, own_struct) = (self.linker, self.own_struct);
        let linked = self.link(object, &maps, Reach::Named)?;
        let declared = self.declare(maps.planned(), &linked.wanted, |at| maps.declared(at).map(Some))?;
        let mut reports = Vec::with_capacity(linked.programs.len());
        let mut local = None;
        let section = proof_section(object);
        for (of, code) in linked.programs {
            let name = of.name();
            let (insns, mut references) = self.bind(object, &code, &declared, &mut local)?;
            let program = structure(name, insns)?;
            let program = references.bind_places(name, program)?;
            let (proof, layout) = (&carried(&section, name), C::layout());
            let loading = Loading { linker, name, layout, code: Some(code.code()), own_struct, shared: true, proof };
            let how = self.how.of(Some(of.section()), &references);
            // A method of an interface is verified as the interface loads it.
            let options = Options { values: hints::wants_values(&program), interface: true, ..how.verify(log) };
            let checked = loading.verify(program, &references, options).map_err(|error| explain(error, &code))?;
            reports.push(VerifyReport {
                program: name.to_owned(),
                steps: checked.stats.steps,
                fuel: checked.stats.fuel,
                states: checked.stats.states,
                peak_bytes: checked.stats.peak_bytes,
                checks: checked.facts.checks.iter().map(|c| c.insn).collect(),
                needs_budget: checked.facts.needs_budget,
                hints: hints::of(&checked),
                proof: checked.proof,
                log: checked.log,
            });
        }
        Ok(reports)
    }

    /// Looks for proofs of the programs of an object, and loads none. [`ProofSection::to_bytes`] and
    /// [`Object::with_proofs`] put the proofs into the object's file. `fuel` limits each pass of the search, in units
    /// of the check, about one for each instruction walked; `bpf prove` uses [`PROVING_FUEL`].
    ///
    /// [`Loader::verify`] may accept a program for which no proof is found, since it knows more rules.
    ///
    /// # Errors
    /// [`LoadError`] if the object cannot be linked.
    pub fn prove(self, object: &Object, maps: MapSet, fuel: u64) -> Result<Vec<ProofReport>, LoadError> {
        let (linker, own_struct) = (self.linker, self.own_struct);
        let linked = self.link(object, &maps, Reach::Named)?;
        let declared = self.declare(maps.planned(), &linked.wanted, |at| maps.declared(at).map(Some))?;
        let mut reports = Vec::with_capacity(linked.programs.len());
        let mut local = None;
        for (of, code) in linked.programs {
            let name = of.name();
            let (insns, mut references) = self.bind(object, &code, &declared, &mut local)?;
            let program = structure(name, insns)?;
            let program = references.bind_places(name, program)?;
            let (code, layout, proof) = (Some(code.code()), C::layout(), &NO_PROOF);
            let loading = Loading { linker, name, layout, code, own_struct, shared: true, proof };
            let instructions = program.insns().len();
            let how = self.how.of(Some(of.section()), &references);
            let proof = loading.prove(how, program, &references, fuel).map(|proof| proof.to_bytes());
            reports.push(ProofReport { program: name.to_owned(), instructions, proof });
        }
        Ok(reports)
    }

    /// Links the chosen programs, and finds the maps that they refer to.
    fn link<'o>(&self, object: &'o Object, maps: &MapSet, reach: Reach) -> Result<Linked<'o>, LoadError> {
        let linker = self.linker;
        may_load(&self.linker.engine, self.account.as_ref())?;
        linker.engine.domain().owns(maps)?;
        maps.check(object)?;
        let by_name: HashMap<&str, &bpf_object::Program> =
            object.programs().iter().map(|program| (program.name(), program)).collect();
        let find = |name: &str| by_name.get(name).copied().map_or_else(|| object.program(name), Ok);
        let mut chosen: Vec<&bpf_object::Program> = match &self.only {
            None => object.programs().iter().collect(),
            Some(names) => names.iter().map(|name| find(name)).collect::<Result<_, _>>()?,
        };
        let mut names: HashSet<&str> = chosen.iter().map(|program| program.name()).collect();
        let types = linker.types::<C>();
        let mut programs: Vec<(&bpf_object::Program, LinkedCode)> = Vec::with_capacity(chosen.len());
        // Tables of `struct_ops` are filled by the host; no program refers to one.
        let is_map = |map: &bpf_object::MapDecl| map.map_type != MapType::StructOps;
        let mut wanted: Vec<bool> = object.maps().iter().map(|map| self.only.is_none() && is_map(map)).collect();
        let (mut used, mut size) = (vec![false; wanted.len()], 0);
        // `chosen` grows by the targets of tail calls of its programs.
        while let Some(&program) = chosen.get(programs.len()) {
            if core::ptr::eq(C::layout(), XdpFrags::layout()) && !takes_pieces(program) {
                let (program, section) = (program.name().to_owned(), program.section().to_owned());
                return Err(LoadError::OnePiece { program, section });
            }
            let code = object.link_for(program, &types, |function| {
                linker.expected(function, object.btf().map(|btf| &**btf), C::layout()).is_some()
            })?;
            size += code.code().size();
            if size > MAX_CODE {
                return Err(LoadError::TooMuchCode { max: MAX_CODE });
            }
            for map in code.maps() {
                wanted[map] = true;
                // Each array is followed once, however many programs jump through it.
                if std::mem::replace(&mut used[map], true) || reach == Reach::Named {
                    continue;
                }
                for (_, value) in &object.maps()[map].initial {
                    if let InitialValue::Program(name) = value
                        && names.insert(name)
                    {
                        chosen.push(find(name)?);
                    }
                }
            }
            programs.push((program, code));
        }
        // A map of maps needs its initial inner maps, too; these are no maps of maps.
        for (i, map) in object.maps().iter().enumerate() {
            if wanted[i] {
                for (_, value) in &map.initial {
                    if let InitialValue::Map(inner) = value {
                        wanted[*inner] = true;
                    }
                }
            }
        }
        Ok(Linked { programs, wanted })
    }

    /// Returns a program's instructions and their references. References are renumbered for the program, since the
    /// object may have many more.
    fn bind<'o>(
        &self,
        object: &'o Object,
        code: &LinkedCode,
        declared: &[Option<Declared>],
        local: &mut Option<Local<'o>>,
    ) -> Result<(Vec<Insn>, Box<References>), LoadError> {
        let (linker, name) = (self.linker, code.code().program());
        let mut insns = code.code().insns().to_vec();
        let used = code.maps();
        let unused = || LoadError::Internal("a map that is used is not declared".into());
        let mut references = Box::<References>::default();
        for map in &used {
            references.maps.push(declared[*map].clone().ok_or_else(unused)?);
        }
        let mut hosts: HashMap<usize, i32> = HashMap::new();
        for Reference { insn: at, kind } in code.code().references() {
            let Some(insn) = insns.get_mut(at.index()) else { continue };
            match *kind {
                ReferenceKind::Map(map) | ReferenceKind::MapValue { map, .. } => {
                    let own = used.binary_search(&map).ok().and_then(|own| i32::try_from(own).ok());
                    let own = own.ok_or_else(|| LoadError::Internal("a map that is not used is".into()))?;
                    if let Insn::LoadImm64 { imm: Imm64::MapIdx(map) | Imm64::MapIdxValue { map, .. }, .. } = insn {
                        *map = own;
                    }
                }
                ReferenceKind::HostCall(host) => {
                    let new = i32::try_from(hosts.len()).unwrap_or(i32::MAX);
                    let function = &object.host_functions()[host];
                    if !hosts.contains_key(&host) {
                        let types = object.btf().map(|btf| &**btf);
                        linker.check_prototype(function, types).map_err(|source| LoadError::HostPrototype {
                            program: name.to_owned(),
                            source: Box::new(PrototypeMismatch {
                                insn: Some(*at),
                                line: code
                                    .code()
                                    .line(*at)
                                    .map(|l| format!("{}:{}: `{}`", l.file, l.line, l.text.trim())),
                                ..source
                            }),
                        })?;
                    }
                    let own = *hosts.entry(host).or_insert_with(|| {
                        references.functions.host.push(linker.expected(
                            function,
                            object.btf().map(|btf| &**btf),
                            C::layout(),
                        ));
                        new
                    });
                    if let Insn::Call(Callee::Host(host)) = insn {
                        *host = own;
                    }
                }
                ReferenceKind::Table { table, .. } => {
                    if let Insn::LoadImm64 { imm: Imm64::MapIdxValue { map, .. }, .. } = insn {
                        *map = i32::try_from(used.len() + table).unwrap_or(i32::MAX);
                    }
                }
                ReferenceKind::HostAddress(_) | ReferenceKind::Extern(_) => {}
            }
        }
        // These functions have no state of an instance, so all instances share them.
        for table in code.code().jump_tables() {
            let map = jump_table(&linker.engine, self.account.as_ref(), &table.name, &table.targets)?;
            references.maps.push(Declared::There(MapRef::Data(map)));
        }
        if insns.iter().any(|insn| matches!(insn, Insn::Call(Callee::Reg(_)))) {
            insns = structure(name, insns)?.into_insns();
        }
        if references.functions.host.iter().flatten().any(|bound| declared_obj_new(bound.proto.id).is_some()) {
            let types = local.get_or_insert_with(|| Local::new(object)).types(&insns);
            declare_objects(&mut references, types);
        }
        linker.bind_helpers(name, &insns, C::layout(), &mut references)?;
        Ok((insns, references))
    }
}

/// Makes the jump table of a program as a map.
pub(super) fn jump_table(
    engine: &Engine,
    account: Option<&Account>,
    name: &str,
    targets: &[InsnIdx],
) -> Result<Map, LoadError> {
    let fail = |source| LoadError::Map { map: name.to_owned(), source };
    let entries = u32::try_from(targets.len()).unwrap_or(u32::MAX);
    let mut options = CreateOptions::default();
    options.memory_limit = engine.config().object_memory_limit;
    options.account = account.map(|account| Arc::clone(account.memory()));
    let def = MapDef::new(name, MapType::InsnArray, 4, 16, entries);
    let map = Map::create_with(def, engine.domain(), &options).map_err(fail)?;
    for (i, target) in (0u32..).zip(targets) {
        let mut value = [0; 16];
        value[..4].copy_from_slice(&target.0.to_ne_bytes());
        map.update(&i.to_ne_bytes(), &value, 0).map_err(fail)?;
    }
    map.freeze().map_err(fail)?;
    Ok(map)
}

/// Binds the functions that make objects of these types.
fn declare_objects(references: &mut References, types: Arc<[LocalType]>) {
    for bound in references.functions.host.iter_mut().flatten() {
        if let Some(func) = declared_obj_new(bound.proto.id) {
            bound.func = func;
        }
    }
    references.local_types = Some(types);
}

/// Upper bound on the instructions, source lines and relocations of all programs that are loaded together: four
/// programs of the greatest length. A function is copied into each program that calls it, so without a limit an object
/// of a megabyte could take gigabytes.
const MAX_CODE: usize = 1 << 22;

/// Whether constants in a section of this name may differ between instances.
fn opens(section: &str) -> bool {
    section == OPEN || section.strip_prefix(OPEN).is_some_and(|rest| rest.starts_with('.'))
}

/// The section of constants that may differ between instances: programs are verified for any values of them.
const OPEN: &str = ".rodata.tenant";

/// Returns whether the program's section name says that it takes packets in fragments.
fn takes_pieces(program: &bpf_object::Program) -> bool {
    let kind = program.section().trim_start_matches('?').split('/').next();
    kind == Some("xdp.frags")
}

/// Which other programs are loaded with a chosen one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// None: the programs are verified, and not run.
    Named,
    /// The programs in the prog arrays that it uses.
    TailCalls,
}

/// Adds to a refusal: code without source lines was compiled without `-g`, and the refusal of a call that stands for an
/// unresolved CO-RE relocation is replaced by the relocation's problem.
fn explain(mut error: LoadError, code: &LinkedCode) -> LoadError {
    if let LoadError::Verifier { source, .. } | LoadError::VerdictUnknown { source, .. } = &mut error {
        source.without_lines = code.code().line(InsnIdx(0)).is_none() && source.source_line.is_none();
    }
    let LoadError::Verifier { source, .. } = &error else { return error };
    match code.unresolved().iter().find(|u| u.insn == source.insn) {
        Some(Unresolved { insn, problem }) => LoadError::Object(code.code().refused(*insn, problem.clone())),
        None => error,
    }
}

/// Linked programs, and the maps that they need.
struct Linked<'o> {
    programs: Vec<(&'o bpf_object::Program, LinkedCode)>,
    /// Which of the object's maps the programs refer to, inner maps included.
    wanted: Vec<bool>,
}

/// The result of [`Loader::verify`] for an accepted program.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct VerifyReport {
    /// The program.
    pub program: String,
    /// Instructions walked, over all paths.
    pub steps: u64,
    /// Fuel spent ([`Limits::fuel`](crate::verify::Limits::fuel)).
    pub fuel: u64,
    /// States kept where paths meet.
    pub states: usize,
    /// Most bytes of states held at once.
    pub peak_bytes: usize,
    /// The instructions that are checked at run time ([`Loader::hybrid`]).
    pub checks: Vec<InsnIdx>,
    /// The program is not proven to end, so it runs with a budget.
    pub needs_budget: bool,
    /// Notes on accepted code that its author may not have intended.
    pub hints: Vec<VerifyHint>,
    /// Whether the proof that the object carries holds, or why not; `None` if it was not checked ([`Proofs::Ignore`]).
    /// The verifier does not walk a program that is accepted by its proof, so the figures above are then 0.
    pub proof: Option<Result<(), ProofError>>,
    /// The verifier's walk, one line for each step; empty unless requested.
    pub log: Vec<String>,
}

/// The result of [`Loader::prove`] for one program.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ProofReport {
    /// The program.
    pub program: String,
    /// Number of its instructions, with all functions that it calls.
    pub instructions: usize,
    /// The proof in its binary form, or the first step that could not be proven.
    pub proof: Result<Vec<u8>, Unproven>,
}

/// Fuel for [`Loader::prove`] that suffices for most programs for which a proof can be found.
pub const PROVING_FUEL: u64 = 1 << 20;

/// Reads the section of proofs of an object.
fn proof_section(object: &Object) -> Result<ProofSection<'_>, ProofError> {
    ProofSection::parse(object.proofs().ok_or(ProofError::Missing)?)
}

/// Returns the proof of one program, or why there is none.
fn carried<'a>(section: &Result<ProofSection<'a>, ProofError>, program: &str) -> Carried<'a> {
    section.as_ref().map_err(Clone::clone)?.of(program).ok_or(ProofError::Missing)
}

/// Puts calls of helpers in the place of calls through registers that hold a helper's id on every path: a pointer to a
/// helper is its id, and compilers that do not optimise load it before the call. Programs with indirect jumps are left
/// unchanged, since their paths are not known yet.
fn helpers_by_number(program: bpf_isa::Program) -> Result<bpf_isa::Program, bpf_isa::ValidateError> {
    let contents = program.contents();
    let calls = match contents.indirect_calls && !contents.indirect_jumps {
        true => Constants::default().helper_calls(&program, &Cfg::new(&program)),
        false => Vec::new(),
    };
    if calls.is_empty() {
        return Ok(program);
    }
    let mut insns = program.into_insns();
    for (at, id) in calls {
        insns[at.index()] = Insn::Call(Callee::Helper(id));
    }
    bpf_isa::Program::new(insns)
}

fn structure(name: &str, insns: Vec<Insn>) -> Result<bpf_isa::Program, LoadError> {
    bpf_isa::Program::new(insns).and_then(helpers_by_number).map_err(LoadError::structure(name))
}
