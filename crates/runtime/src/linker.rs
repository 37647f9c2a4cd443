//! Linking: what an object refers to meets what the host offers.
//!
//! The order is: create maps, resolve each program's helpers, host functions and map references, validate, verify, compile, place; then
//! initialise prog arrays and maps of maps. Everything is built aside and handed out at the end, so a load that fails leaves
//! nothing behind.

use crate::context::{Context, ContextLayout};
use crate::engine::{Engine, Mode};
use crate::error::{LinkError, LoadError};
use crate::func::{HostFn, IntoHostFn, host_fn};
use crate::instance::Instance;
use crate::loaded::{Bindings, Bound, Loaded, shipped};
use crate::map_set::{MapSet, initialise};
use crate::program::Program;
use bpf_isa::{Callee, Insn, InsnIdx};
use bpf_jit::{Extern, TAIL_CALL_HELPER};
use bpf_object::{Object, ReferenceKind};
use bpf_verifier::{ArgKind, HelperProto, Helpers};
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
    host: PhantomData<fn(H)>,
}

impl<H> fmt::Debug for Linker<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Linker").field("functions", &self.names).finish_non_exhaustive()
    }
}

/// Who says that a program is harmless.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trust {
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
        protos.retain(|p| p.id == TAIL_CALL_HELPER || shipped(p.id).is_some());
        Linker { engine: engine.clone(), protos, funcs: HashMap::new(), names: HashMap::new(), host: PhantomData }
    }

    /// A linker with nothing but the tail call: every helper id is free.
    pub fn without_helpers(engine: &Engine) -> Self {
        let mut linker = Linker::new(engine);
        linker.protos.retain(|p| p.id == TAIL_CALL_HELPER);
        linker
    }

    /// Registers a host function under a helper id and a name; programs call it by either (`.ksyms`). Its types are the prototype
    /// that calls are verified against.
    ///
    /// # Errors
    /// [`LinkError`] if the id or the name is taken; nothing is registered then.
    pub fn func<Args: 'static>(
        &mut self,
        id: u32,
        name: &str,
        f: impl IntoHostFn<H, Args>,
    ) -> Result<&mut Self, LinkError> {
        fn proto<H, Args, F: IntoHostFn<H, Args>>(_: &F) -> (&'static [ArgKind], bpf_verifier::Ret) {
            (F::ARGS, F::RET)
        }
        if id > Extern::MAX {
            return Err(LinkError::IdTooLarge { id, max: Extern::MAX });
        }
        if self.names.contains_key(name) {
            return Err(LinkError::DuplicateName { name: name.to_owned() });
        }
        let (args, ret) = proto(&f);
        self.protos.add(HelperProto::new(id, name.to_owned(), args, ret))?;
        self.funcs.insert(id, host_fn(f));
        self.names.insert(name.to_owned(), id);
        Ok(self)
    }

    /// Loads all programs of an object for the interpreter, which checks every memory access: safe for any program.
    ///
    /// # Errors
    /// [`LoadError`]; nothing is loaded then.
    pub fn load_interpreted<C: Context>(&self, object: &Object, maps: MapSet) -> Result<Instance<H>, LoadError> {
        self.load_object(object, maps, None, C::layout(), Trust::Interpreter)
    }

    /// Like [`Linker::load_interpreted`], only the named programs and the maps they use.
    ///
    /// # Errors
    /// [`LoadError`]; nothing is loaded then.
    pub fn load_some_interpreted<C: Context>(
        &self,
        object: &Object,
        maps: MapSet,
        programs: &[&str],
    ) -> Result<Instance<H>, LoadError> {
        self.load_object(object, maps, Some(programs), C::layout(), Trust::Interpreter)
    }

    /// Loads all programs of an object without verifying them, in the engine's mode.
    ///
    /// # Safety
    /// With [`Mode::Jit`], every run of the programs must stay inside the memory it was given, end, and call helpers and host
    /// functions with valid arguments, as the verifier would have proven.
    ///
    /// # Errors
    /// [`LoadError`]; nothing is loaded then.
    pub unsafe fn load_unverified<C: Context>(&self, object: &Object, maps: MapSet) -> Result<Instance<H>, LoadError> {
        self.load_object(object, maps, None, C::layout(), Trust::Caller)
    }

    /// Like [`Linker::load_unverified`], only the named programs and the maps they use.
    ///
    /// # Safety
    /// As [`Linker::load_unverified`].
    ///
    /// # Errors
    /// [`LoadError`]; nothing is loaded then.
    pub unsafe fn load_some_unverified<C: Context>(
        &self,
        object: &Object,
        maps: MapSet,
        programs: &[&str],
    ) -> Result<Instance<H>, LoadError> {
        self.load_object(object, maps, Some(programs), C::layout(), Trust::Caller)
    }

    /// Loads one program from its instructions, without maps, for the interpreter.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn load_insns_interpreted<C: Context>(&self, name: &str, insns: Vec<Insn>) -> Result<Program<C, H>, LoadError> {
        self.load_insns(name, insns, Trust::Interpreter)
    }

    /// Loads one program from its instructions, without maps and without verifying it, in the engine's mode.
    ///
    /// # Safety
    /// As [`Linker::load_unverified`].
    ///
    /// # Errors
    /// [`LoadError`].
    pub unsafe fn load_insns_unverified<C: Context>(
        &self,
        name: &str,
        insns: Vec<Insn>,
    ) -> Result<Program<C, H>, LoadError> {
        self.load_insns(name, insns, Trust::Caller)
    }

    fn load_insns<C: Context>(&self, name: &str, insns: Vec<Insn>, trust: Trust) -> Result<Program<C, H>, LoadError> {
        let mut bindings = Bindings::default();
        self.bind_helpers(name, &insns, &mut bindings)?;
        let loaded = self.finish(name, insns, bindings, C::layout(), trust)?;
        let instance = Instance::new(&self.engine, vec![Arc::clone(&loaded)], Vec::new());
        Ok(Program::new(loaded, instance))
    }

    fn load_object(
        &self,
        object: &Object,
        maps: MapSet,
        only: Option<&[&str]>,
        layout: &'static ContextLayout,
        trust: Trust,
    ) -> Result<Instance<H>, LoadError> {
        let chosen: Vec<&bpf_object::Program> = match only {
            None => object.programs().iter().collect(),
            Some(names) => names.iter().map(|name| object.program(name)).collect::<Result<_, _>>()?,
        };
        let linked = chosen
            .iter()
            .map(|program| object.link(program, |name| self.names.contains_key(name)))
            .collect::<Result<Vec<_>, _>>()?;
        let mut wanted = vec![only.is_none(); object.maps().len()];
        for map in linked.iter().flat_map(|code| code.maps()) {
            wanted[map] = true;
        }
        let maps = maps.create(object, &wanted)?;

        let mut programs = Vec::with_capacity(chosen.len());
        for (program, code) in chosen.iter().zip(&linked) {
            let code = code.code();
            let insns = code.insns().to_vec();
            let mut bindings = Bindings { maps: vec![None; maps.len()], ..Bindings::default() };
            for reference in code.references() {
                if let ReferenceKind::Map(map) | ReferenceKind::MapValue { map, .. } = reference.kind {
                    bindings.maps[map].clone_from(&maps[map]);
                }
            }
            bindings.host = object.host_functions().iter().map(|f| self.named(&f.name)).collect();
            self.bind_helpers(program.name(), &insns, &mut bindings)?;
            programs.push(self.finish(program.name(), insns, bindings, layout, trust)?);
        }
        initialise(object, &maps, &|name| programs.iter().find(|p| p.name == name).cloned())?;
        Ok(Instance::new(&self.engine, programs, maps.into_iter().flatten().collect()))
    }

    /// The registered function of this name.
    fn named(&self, name: &str) -> Option<Bound> {
        let id = *self.names.get(name)?;
        Some(Bound { proto: self.protos.get(id)?.clone(), func: self.funcs.get(&id)?.clone() })
    }

    /// The function behind a helper id: registered ones first, so that nothing shipped can be in the way.
    fn helper(&self, id: u32) -> Option<Bound> {
        let func = self.funcs.get(&id).or_else(|| shipped(id))?.clone();
        Some(Bound { proto: self.protos.get(id)?.clone(), func })
    }

    /// Resolves the helpers that the instructions call.
    fn bind_helpers(&self, name: &str, insns: &[Insn], bindings: &mut Bindings) -> Result<(), LoadError> {
        for (slot, insn) in insns.iter().enumerate() {
            let Insn::Call(callee) = *insn else { continue };
            let insn = InsnIdx(slot as u32);
            match callee {
                Callee::Helper(TAIL_CALL_HELPER) | Callee::Subprog(_) => {}
                Callee::Helper(id) => {
                    if let Err(at) = bindings.helpers.binary_search_by_key(&id, |h| h.0) {
                        let unknown = LoadError::UnknownHelper { program: name.to_owned(), insn, id };
                        bindings.helpers.insert(at, (id, self.helper(id).ok_or(unknown)?));
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

    fn finish(
        &self,
        name: &str,
        insns: Vec<Insn>,
        mut bindings: Bindings,
        layout: &'static ContextLayout,
        trust: Trust,
    ) -> Result<Arc<Loaded>, LoadError> {
        let program =
            bpf_isa::Program::new(insns).map_err(|source| LoadError::Structure { program: name.to_owned(), source })?;
        bindings.bind_addresses(name, &program)?;
        for map in bindings.maps.iter().flatten() {
            if let crate::map_set::MapRef::Progs(table) = map {
                let fail = |source| LoadError::ProgArray { array: table.name().to_owned(), source };
                table.bind_layout(layout).map_err(fail)?;
            }
        }
        let mode = match trust {
            Trust::Interpreter => Mode::Interpreter,
            Trust::Caller => self.engine.config().mode,
        };
        let facts = bpf_analysis::Facts::default();
        Loaded::new(&self.engine, name.to_owned(), program, bindings, layout, &facts, mode)
    }
}
