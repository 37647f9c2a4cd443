//! Linking: resolves programs' references to helpers, host functions and types.

use crate::call::helpers::builtins::builtin;
use crate::call::helpers::kfuncs::kfunc;
use crate::call::helpers::packet::{is_packet_helper, own_prototype, packet_helper};
use crate::call::helpers::print;
use crate::call::helpers::table::shipped;
use crate::call::helpers::timers::own_set_callback;
use crate::call::over::Over;
use crate::call::state::Host;
use crate::call::types::{Declaration, IntTypes, declared, may_be};
use crate::call::{Caller, HostFn, IntoAsyncFn, IntoHostFn, SharedBytes, host_fn, prototype, sleeping};
use crate::context::{Context, ContextLayout};
use crate::engine::{Engine, trace};
use crate::error::{LinkError, LoadError, PrototypeMismatch};
use crate::program::bound::{Bound, TRAP, trap, unresolved};
use crate::program::references::{Functions, References};
use bpf_isa::{Callee, Insn, InsnIdx};
use bpf_object::btf::Btf;
use bpf_object::{CoreType, HostFunction, HostTypes, UNRESOLVED_CALL};
use bpf_quiesce::Finish;
use bpf_uapi::{Builtin, ENUMERATIONS, Helper, Kfunc, MapType, helper_id};
use bpf_verifier::{ArgKind, Effect, HelperProto, Helpers, Ret};
use core::marker::PhantomData;
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::fmt;

/// Returns the kernel's name of a helper, whether it is shipped here or not.
pub fn helper_name(id: u32) -> Option<String> {
    Helper::name_of(id).map(str::to_owned)
}

/// Registers host functions and loads objects, for programs with host state `H`.
///
/// ```
/// use bpf_runtime::{Caller, Config, Engine, HelperError, Linker};
///
/// let engine = Engine::new(Config::new())?;
/// let mut linker = Linker::<Vec<u64>>::new(&engine);
/// linker.func_named("emit", |c: &mut Caller<'_, Vec<u64>>, value: u64| -> Result<(), HelperError> {
///     c.host().push(value);
///     Ok(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Linker<H: ?Sized = ()> {
    pub(super) engine: Engine,
    /// Prototypes by id: the shipped helpers and the registered functions.
    pub(super) protos: Helpers,
    /// The registered functions.
    pub(super) funcs: Vec<Registered>,
    /// Ids of the shipped helpers that were removed.
    pub(super) removed: BTreeSet<u32>,
    /// Places of the registered functions in `funcs`, by id.
    ids: HashMap<u32, usize>,
    /// Places of the registered functions in `funcs`, by name.
    names: HashMap<String, usize>,
    /// Whether functions that are registered from now on know their callers.
    knows: bool,
    host: Over<H>,
}

/// A function of the host.
pub(super) struct Registered {
    /// Its prototype; id 0 for a function without a number.
    pub(super) proto: HelperProto,
    pub(super) ints: IntTypes,
    func: HostFn,
}

impl Registered {
    fn bound(&self) -> Bound {
        Bound { proto: self.proto.clone(), func: self.func.clone() }
    }
}

impl<H: ?Sized> Drop for Linker<H> {
    fn drop(&mut self) {
        // Dropped one by one: the drops of the others run if that of one panics.
        let mut finish = Finish::default();
        for function in self.funcs.drain(..) {
            finish.step(|| drop(function));
        }
    }
}

impl<H: ?Sized> fmt::Debug for Linker<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let functions: Vec<&HelperProto> = self.funcs.iter().map(|function| &function.proto).collect();
        f.debug_struct("Linker").field("functions", &functions).finish_non_exhaustive()
    }
}

/// A closure's prototype by its type: its arguments, its result, and which of them are integers.
pub(super) type Types = ([ArgKind; 5], Ret, IntTypes);

fn types<H: ?Sized, Args, F: IntoHostFn<H, Args>>(_: &F) -> Types {
    (F::ARGS, F::RET, F::INTS)
}

impl<H: Host + ?Sized> Linker<H> {
    /// A linker with the shipped helpers.
    pub fn new(engine: &Engine) -> Self {
        let mut protos = Helpers::shipped();
        // The tail call is not a function: the JIT and the interpreter know it.
        protos.retain(|p| {
            let exists = |helper| helper == Helper::TailCall || shipped(helper).is_some() || is_packet_helper(helper);
            p.helper().is_some_and(exists)
        });
        Linker {
            engine: engine.clone(),
            protos,
            funcs: Vec::new(),
            removed: BTreeSet::new(),
            ids: HashMap::new(),
            names: HashMap::new(),
            knows: false,
            host: PhantomData,
        }
    }

    /// Removes a shipped helper, so that its id is free for a function of the host. Programs that call the helper are
    /// then refused. The ids of helpers that engines implement themselves stay reserved ([`LinkError::Reserved`]).
    pub fn remove_helper(&mut self, id: u32) -> &mut Self {
        self.protos.retain(|p| p.id != id);
        self.removed.insert(id);
        self
    }

    /// Sets whether functions that are registered after this call ([`Linker::func_named`], [`Linker::func`]) know the
    /// program that calls them: [`Caller::program`](crate::Caller::program), `instance`, `account` and `map`. A call
    /// costs one store and one load more, as of a closure with captures, and an instance an allocation for each such
    /// function and program. Off by default.
    ///
    /// ```
    /// use bpf_runtime::{Caller, Config, Engine, Linker, Raw, isa::assemble};
    ///
    /// let mut linker = Linker::<Vec<String>>::new(&Engine::new(Config::new())?);
    /// linker.know_callers(true).func(1001, "sign", |c: &mut Caller<'_, Vec<String>>| {
    ///     let name = c.program().map(str::to_owned);
    ///     c.host().extend(name);
    /// })?;
    /// let program = linker.loader::<Raw>().insns("guard", assemble("call 1001\nexit")?)?;
    /// let mut signed = Vec::new();
    /// program.run(&mut signed, &mut [])?;
    /// assert_eq!(signed, ["guard"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn know_callers(&mut self, know: bool) -> &mut Self {
        self.knows = know;
        self
    }

    /// Registers a host function by name: plug-ins declare it (`extern __u64 emit(__u64) __ksym;`) and call it. Its
    /// types are the prototype that calls are verified against. The prototype that an object declares is compared with
    /// it by BTF ([`LoadError::HostPrototype`]): the number of arguments, numbers and pointers, and the sizes of
    /// integers. Two parameters declare a byte slice, a pointer and a length. A function that returns
    /// `Result<Infallible, HelperError>` always ends the run.
    ///
    /// ```
    /// # use bpf_runtime::{Caller, Config, Engine, Linker};
    /// # let engine = Engine::new(Config::new())?;
    /// let mut linker = Linker::<Vec<u64>>::new(&engine);
    /// linker.func_named("emit", |caller: &mut Caller<'_, Vec<u64>>, value: u64| -> u64 {
    ///     caller.host().push(value);
    ///     caller.host().len() as u64
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`LinkError::DuplicateName`] if the name is taken; nothing is registered then.
    pub fn func_named<Args: 'static>(
        &mut self,
        name: &str,
        f: impl IntoHostFn<H, Args>,
    ) -> Result<&mut Self, LinkError> {
        let (args, ret, ints) = types(&f);
        let knows = self.knows;
        self.register(None, prototype(0, name, args, ret), ints, || host_fn(f, knows))
    }

    /// Registers a host function as [`Linker::func_named`] does, and under a helper id too, for objects that call it by
    /// number: they carry no prototype, so nothing compares their arguments with the function's parameters.
    ///
    /// # Errors
    /// [`LinkError`] if the id or the name is taken or reserved; nothing is registered then.
    pub fn func<Args: 'static>(
        &mut self,
        id: u32,
        name: &str,
        f: impl IntoHostFn<H, Args>,
    ) -> Result<&mut Self, LinkError> {
        let (args, ret, ints) = types(&f);
        let knows = self.knows;
        self.register(Some(id), prototype(id, name, args, ret), ints, || host_fn(f, knows))
    }

    /// Registers the host's log as a function of this name. Plug-ins declare it and give a level of the system's log, 0
    /// (emergency) to 7 (debug), and a text, of which 1,024 bytes at most are taken, up to its first zero byte:
    /// `extern void log(__u32 level, const void *text, __u64 length) __ksym;`.
    ///
    /// [`crate::Config::print`] receives the line with the names of the program, its instance and its account; with the
    /// feature `tracing` it is an event of that level. [`crate::Config::print_limit`] bounds the lines of a program.
    ///
    /// # Errors
    /// [`LinkError::DuplicateName`] if the name is taken; nothing is registered then.
    pub fn log(&mut self, name: &str) -> Result<&mut Self, LinkError> {
        let (args, ret, ints) = types::<H, _, _>(&|_: &mut Caller<'_, H>, _: u32, _: SharedBytes<'_>| ());
        self.register(None, prototype(0, name, args, ret), ints, print::log)
    }

    /// Registers a host function that may wait, by name, for sleepable programs ([`crate::Loader::sleepable`]).
    /// Plug-ins declare it, and the declaration is compared with it, as for [`Linker::func_named`]. While its future is
    /// not ready, the run holds neither a thread nor an execution slot; it goes on wherever its own future
    /// ([`crate::Program::run_async`]) is polled. A future that is ready at once costs about as much as a function that
    /// does not wait.
    ///
    /// The closure is given an [`AsyncCaller`](crate::AsyncCaller), and arguments as for [`Linker::func_named`], but
    /// with [`OwnedBytes`](crate::OwnedBytes) in place of `SharedBytes`. Its future is `Send`. If it panics, the run
    /// ends and the panic goes on where the run was polled.
    ///
    /// ```
    /// use bpf_runtime::{AsyncCaller, Config, Engine, Linker, OwnedBytes, Raw, isa::assemble};
    ///
    /// let mut linker = Linker::<Vec<u8>>::new(&Engine::new(Config::new())?);
    /// linker.func_named_async("fetch", async |mut c: AsyncCaller<'_, Vec<u8>>, key: OwnedBytes| -> u64 {
    ///     std::future::ready(()).await;
    ///     c.host().extend_from_slice(&key);
    ///     key.len() as u64
    /// })?;
    /// // extern __u64 fetch(const void *key, __u64 len) __ksym;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`LinkError::DuplicateName`] if the name is taken; nothing is registered then.
    pub fn func_named_async<Args: 'static, F>(&mut self, name: &str, f: F) -> Result<&mut Self, LinkError>
    where
        F: for<'a> IntoAsyncFn<'a, H, Args>,
    {
        self.register_async::<Args, F>(None, name, f)
    }

    /// Registers a host function that may wait, as [`Linker::func_named_async`] does, and under a helper id too, for
    /// objects that call it by number.
    ///
    /// ```
    /// use bpf_runtime::{AsyncCaller, Config, Engine, Linker, OwnedBytes, Raw, isa::assemble};
    ///
    /// let mut linker = Linker::<Vec<u8>>::new(&Engine::new(Config::new())?);
    /// linker.func_async(1001, "fetch", async |mut c: AsyncCaller<'_, Vec<u8>>, key: OwnedBytes| -> u64 {
    ///     std::future::ready(()).await;
    ///     c.host().extend_from_slice(&key);
    ///     key.len() as u64
    /// })?;
    /// let insns = assemble("call 1001\nexit")?;
    /// let length = linker.loader::<Raw>().sleepable(true).insns("length", insns)?;
    /// let (mut host, mut key) = (Vec::new(), *b"key");
    /// let run = std::pin::pin!(length.run_async(&mut host, &mut key));
    /// # let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    /// # let std::task::Poll::Ready(length) = std::future::Future::poll(run, &mut cx) else { unreachable!() };
    /// # assert_eq!(length?, 3);
    /// // run.await
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`LinkError`] if the id or the name is taken or reserved; nothing is registered then.
    pub fn func_async<Args: 'static, F>(&mut self, id: u32, name: &str, f: F) -> Result<&mut Self, LinkError>
    where
        F: for<'a> IntoAsyncFn<'a, H, Args>,
    {
        self.register_async::<Args, F>(Some(id), name, f)
    }

    fn register_async<Args: 'static, F>(&mut self, id: Option<u32>, name: &str, f: F) -> Result<&mut Self, LinkError>
    where
        F: for<'a> IntoAsyncFn<'a, H, Args>,
    {
        let (args, ret, ints) = sleeping::types::<H, Args, F>(&f);
        let proto = HelperProto { effect: Effect::Sleeps, ..prototype(id.unwrap_or_default(), name, args, ret) };
        self.register(id, proto, ints, || sleeping::async_fn::<H, Args, F>(f))
    }

    /// Registers a function, under an id if it has one. The prototype of a function without a number has the id 0.
    pub(super) fn register(
        &mut self,
        id: Option<u32>,
        proto: HelperProto,
        ints: IntTypes,
        func: impl FnOnce() -> HostFn,
    ) -> Result<&mut Self, LinkError> {
        let name = proto.name.to_string();
        // The next id, `UNRESOLVED_CALL`, stands for functions that cannot be called.
        const MAX: u32 = UNRESOLVED_CALL - 1;
        if let Some(id) = id.filter(|id| *id > MAX) {
            return Err(LinkError::IdTooLarge { id, max: MAX });
        }
        if let Some(id) = id.filter(|id| helper_id::SPECIAL.contains(id)) {
            return Err(LinkError::Reserved { id });
        }
        if self.names.contains_key(&name) {
            return Err(LinkError::DuplicateName { name });
        }
        let place = self.funcs.len();
        if let Some(id) = id {
            self.protos.add(proto.clone())?;
            self.ids.insert(id, place);
        }
        self.names.insert(name, place);
        self.funcs.push(Registered { proto, ints, func: func() });
        Ok(self)
    }

    /// Returns the registered function of this id.
    fn by_id(&self, id: u32) -> Option<&Registered> {
        self.funcs.get(*self.ids.get(&id)?)
    }

    /// Returns whether objects may call the registered function at this place by its id: not if it has none, and not
    /// if the id was removed after that ([`Linker::remove_helper`]).
    pub(super) fn is_numbered(&self, place: usize) -> bool {
        let id = self.funcs.get(place).map(|function| function.proto.id);
        id.is_some_and(|id| self.ids.get(&id) == Some(&place) && self.protos.get(id).is_some())
    }

    /// Returns the registered function of this name.
    fn by_name(&self, name: &str) -> Option<&Registered> {
        self.funcs.get(*self.names.get(name)?)
    }

    /// Compares the prototype that an object declares of a function of the host with the registered one.
    pub(super) fn check_prototype(
        &self,
        function: &HostFunction,
        types: Option<&Btf>,
    ) -> Result<(), PrototypeMismatch> {
        let Some(registered) = self.by_name(&function.name) else { return Ok(()) };
        let (Some(btf), Some(ty)) = (types, function.ty) else { return Ok(()) };
        let declaration = Declaration { proto: &registered.proto, ints: &registered.ints };
        if declaration.is_declared_as(btf, ty) {
            return Ok(());
        }
        Err(PrototypeMismatch {
            function: function.name.clone(),
            insn: None,
            line: None,
            declared: declared(btf, &function.name, ty),
            host: declaration.to_string(),
        })
    }

    /// Returns the function of this name: a registered one, one that every linker has, one that compilers call by
    /// themselves, or a kfunc of the kernel for programs on this context.
    pub(super) fn named(&self, name: &str, layout: &'static ContextLayout) -> Option<Bound> {
        if let Some(registered) = self.by_name(name) {
            return Some(registered.bound());
        }
        if name == TRAP {
            return Some(trap());
        }
        if let Some(of_compilers) = Builtin::from_name(name) {
            return Some(Bound { proto: bpf_verifier::builtin(of_compilers), func: builtin(of_compilers) });
        }
        let known = Kfunc::from_name(name)?;
        Some(Bound { proto: bpf_verifier::kfunc(known), func: kfunc(known, layout)? })
    }

    /// Returns the function that an object expects: the one of its name; or, of a flavour (`name___old`), that of the
    /// name before it, if the object declares it with the prototype that it has here.
    pub(super) fn expected(
        &self,
        function: &HostFunction,
        types: Option<&Btf>,
        layout: &'static ContextLayout,
    ) -> Option<Bound> {
        if let Some(bound) = self.named(&function.name, layout) {
            return Some(bound);
        }
        let name = Some(function.essential_name()).filter(|name| *name != function.name)?;
        if let Some(registered) = self.by_name(name) {
            let declaration = Declaration { proto: &registered.proto, ints: &registered.ints };
            return declaration.is_declared_as(types?, function.ty?).then(|| registered.bound());
        }
        let bound = self.named(name, layout)?;
        let (_, params) = types?.prototype(function.ty?)?;
        let args: Vec<ArgKind> = bound.proto.args.into_iter().take_while(|arg| *arg != ArgKind::None).collect();
        let alike = params.len() == args.len() && args.iter().zip(&params).all(|(arg, param)| may_be(*arg, *param));
        alike.then_some(bound)
    }

    /// Returns the function of a helper id: registered functions first, so that they replace shipped ones; then those
    /// of the context.
    pub(super) fn helper(&self, id: u32, layout: &'static ContextLayout) -> Option<Bound> {
        let of_kernel = || {
            let helper = Helper::from_id(id)?;
            packet_helper(helper, layout).or_else(|| shipped(helper))
        };
        let func = match self.by_id(id) {
            Some(registered) => registered.func.clone(),
            None if id == Helper::TimerSetCallback.id() => own_set_callback(),
            None => of_kernel()?.clone(),
        };
        Some(Bound { proto: self.prototypes(layout).get(id)?.clone(), func })
    }

    /// Returns the types to which CO-RE relocations of programs on a context are resolved: the context's own, and the
    /// enumerations of the kernel's interface, of which those of helpers and map types have what exists here.
    pub(super) fn types<C: Context>(&self) -> HostTypes {
        let enumeration = |name: &'static str, values: Vec<(Cow<'static, str>, i64)>| CoreType::Enum {
            name: name.into(),
            size: 4,
            values,
        };
        let exists =
            |helper: &&Helper| helper.id() == helper_id::TAIL_CALL || self.helper(helper.id(), C::layout()).is_some();
        let function = |helper: &Helper| {
            let name = helper.name().trim_start_matches("bpf_");
            (format!("BPF_FUNC_{name}").into(), helper.id().into())
        };
        let functions = Helper::ALL.iter().filter(exists).map(function).collect();
        let map_type = |map_type: MapType| {
            (format!("BPF_MAP_TYPE_{}", map_type.name().to_uppercase()).into(), map_type.number().into())
        };
        let maps = bpf_maps::implemented_types().chain([MapType::ProgArray]).map(map_type).collect();
        let mut types = C::types();
        types.extend([enumeration("bpf_func_id", functions), enumeration("bpf_map_type", maps)]);
        types.extend(ENUMERATIONS.iter().map(|of| {
            let values = of.values.iter().map(|(name, value)| (Cow::Borrowed(*name), *value)).collect();
            enumeration(of.name, values)
        }));
        HostTypes::new(&types)
    }

    /// Returns the prototypes of all functions that programs on this context may call.
    pub(super) fn prototypes(&self, layout: &'static ContextLayout) -> Cow<'_, Helpers> {
        let shipped = self.protos.iter().filter(|proto| !self.ids.contains_key(&proto.id));
        let own: Vec<_> = shipped.filter_map(|proto| own_prototype(proto, layout)).collect();
        let mut protos = Cow::Borrowed(&self.protos);
        for proto in own {
            protos.to_mut().replace(proto);
        }
        protos
    }

    /// Resolves the helpers that the instructions call.
    pub(super) fn bind_helpers(
        &self,
        name: &str,
        insns: &[Insn],
        layout: &'static ContextLayout,
        references: &mut References,
    ) -> Result<(), LoadError> {
        for (slot, insn) in (0u32..).zip(insns) {
            let Insn::Call(callee) = *insn else { continue };
            let insn = InsnIdx(slot);
            match callee {
                Callee::Helper(helper_id::TAIL_CALL) | Callee::Subprog(_) | Callee::Reg(_) => {}
                Callee::Helper(UNRESOLVED_CALL) => {
                    if references.helper(UNRESOLVED_CALL).is_none() {
                        // The id is above all others, so the list stays sorted.
                        references.functions.helpers.push((UNRESOLVED_CALL, unresolved()));
                    }
                }
                Callee::Helper(id) => {
                    if let Err(at) = references.functions.helpers.binary_search_by_key(&id, |h| h.0) {
                        match self.helper(id, layout) {
                            Some(helper) => references.functions.helpers.insert(at, (id, helper)),
                            None => references.missing.push((insn, id)),
                        }
                    }
                }
                Callee::Host(index) => {
                    if usize::try_from(index).map_or(true, |i| i >= references.functions.host.len()) {
                        let what = format!("there is no host function with index {index}");
                        return Err(LoadError::Unresolved { program: name.to_owned(), insn, what });
                    }
                }
            }
        }
        self.bind_printers(name, &mut references.functions);
        Ok(())
    }

    /// Binds functions that print to the program, if somebody receives what it prints.
    pub(super) fn bind_printers(&self, name: &str, functions: &mut Functions) {
        let config = self.engine.config();
        if config.print.is_none() && !trace::PRINTS {
            return;
        }
        let own = |id: u32| self.ids.contains_key(&id);
        let helper = |id: u32| Helper::from_id(id).filter(|helper| print::is_printing(*helper) && !own(id));
        let shipped = functions.helpers.iter().any(|(id, _)| helper(*id).is_some());
        if !shipped && functions.all().all(|bound| print::printer_of(&bound.func).is_none()) {
            return;
        }
        let printer = print::Printer::new(name, config.print_limit);
        for (id, bound) in &mut functions.helpers {
            if let Some(func) = helper(*id).and_then(|helper| print::helper_printing(helper, &printer)) {
                bound.func = func;
            }
        }
        for bound in functions.all_mut() {
            if let Some(func) = print::printing(&bound.func, &printer) {
                bound.func = func;
            }
        }
    }
}
