//! Typed tables of programs: what [`interface`](macro@crate::interface) generates calls into.
//!
//! Problem: a plug-in offers several functions that belong together, some of them optional, and the host wants to call
//! them as the methods of a trait and to replace them as a whole. Approach: the kernel's `struct_ops`. The plug-in
//! fills a C structure of function pointers in `.struct_ops`; the host declares a trait. Members are matched by name,
//! and their prototypes in BTF are compared with the methods', so a method's arguments and result agree with the
//! compiled function. The programs are loaded together and published as one list: a replacement is one store, and a
//! call enters a guard before it reads the list.
//!
//! A table may also be compiled once for many instances ([`TableModule`]): tenants then share the check and the code.
//!
//! Methods may return nothing. The program of such a method leaves anything in r0, also an address. Only this file
//! runs it, and replaces the result by 0: an instance does not give the program to others ([`Instance::program`]), and
//! a method that returns a number cannot have it, whatever the type of the table's member is.
//!
//! Invariant: a version is dropped a grace period after it was replaced, so a call that has found its program keeps
//! running it.

use crate::abi::limits::RunLimits;
use crate::attach::published::{Published, ReclaimOnDrop};
use crate::call::state::Host;
pub use crate::call::state::Loan;
use crate::context::Context;
use crate::error::{LoadError, RunError};
use crate::handle::instance::Instance;
use crate::handle::program::Program;
use crate::handle::typed::{self, FromR0, TypedRun};
use crate::load::loader::Loader;
use crate::load::map_set::MapSet;
use crate::load::module::{Instantiate, Module};
use bpf_maps::MapType;
use bpf_object::btf::{Btf, Member, Type, TypeId};
use bpf_object::{InitialValue, MapDecl, Object};
use bpf_quiesce::{Domain, OtherDomain, Owned};
use core::future::{Future, ready};
use core::pin::Pin;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A method of an interface.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// Its name, and that of the structure's member.
    pub name: &'static str,
    /// Whether a table may leave it out.
    pub optional: bool,
    /// The type of its result.
    pub returns: Returns,
    /// Whether its calls are awaited, so that its program may be sleepable.
    pub waits: bool,
}

pub use crate::handle::typed::Returns;

/// Why a table of programs does not implement an interface.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InterfaceError {
    /// The object has no table of this name.
    #[error("no table `{table}` in `.struct_ops` or `.struct_ops.link`; there are: {}", .have.join(", "))]
    NoTable {
        /// The name.
        table: String,
        /// The names of the tables in the object.
        have: Vec<String>,
    },
    /// A method that is not optional has no member, or no program in it.
    #[error("table `{table}` has no program for `{method}`, which is not optional")]
    Missing {
        /// The table.
        table: String,
        /// The method.
        method: &'static str,
    },
    /// A program in a member that is no method.
    #[error("table `{table}` has a program in `{member}`, which the host does not know")]
    Unknown {
        /// The table.
        table: String,
        /// The member.
        member: String,
    },
    /// A member's type is not that of its method.
    #[error("`{member}` of table `{table}` is {found}; the host calls {wanted}")]
    Signature {
        /// The table.
        table: String,
        /// The member.
        member: String,
        /// The member's type in the object.
        found: String,
        /// The type that the host's method asks for.
        wanted: String,
    },
    /// A method's program is sleepable, and its caller cannot wait.
    #[error(
        "program `{program}` of table `{table}` is sleepable, and its method `{method}` cannot wait: declare it as \
         `async fn`"
    )]
    Sleepable {
        /// The table.
        table: String,
        /// The program.
        program: String,
        /// The method, which is no `async fn`.
        method: &'static str,
    },
    /// The programs were not loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A replacement of another engine.
    #[error(transparent)]
    OtherEngine(#[from] OtherDomain),
    /// The calling process is a forked child, where nothing is replaced.
    #[error("a table is not replaced in a forked child")]
    Forked,
}

/// A table of programs that implements an interface. Clones share the programs, and a replacement is seen through all
/// of them. The types that the macro generates hold one.
pub struct Table<C, H: ?Sized>(Arc<Shared<C, H>>);

struct Shared<C, H: ?Sized> {
    version: Published<Arc<Version<C, H>>>,
    /// The current version, for callers without a guard; changes lock it.
    latest: Mutex<Arc<Version<C, H>>>,
    reclaim: ReclaimOnDrop,
}

struct Version<C, H: ?Sized> {
    plan: Arc<Plan>,
    /// Programs, by the method's index.
    programs: Vec<Option<Program<C, H>>>,
    /// Keeps the maps of the programs, too.
    instance: Instance<H>,
}

/// A table of an object, checked against an interface.
struct Plan {
    /// The table's name.
    name: String,
    /// The names of programs, by method.
    programs: Vec<Option<String>>,
    /// The names of methods, and whether calls of each are awaited.
    methods: Vec<(&'static str, bool)>,
    /// The structure's other members, by name: as compiled.
    settings: Vec<(String, Vec<u8>)>,
}

impl Plan {
    /// Finds the table of this name and checks its members.
    fn new(object: &Object, table: &str, context: &str, methods: &[Method]) -> Result<Plan, InterfaceError> {
        let tables = || object.maps().iter().filter(|map| map.map_type == MapType::StructOps);
        let Some(decl) = tables().find(|map| map.name == table) else {
            let have = tables().map(|map| map.name.clone()).collect();
            return Err(InterfaceError::NoTable { table: table.to_owned(), have });
        };
        let Some((btf, members)) = structure(object, decl) else {
            return Err(LoadError::Internal(format!("table `{table}` has no structure")).into());
        };
        let programs = Checks { btf, table, context }.programs(decl, members, methods)?;
        let methods = methods.iter().map(|method| (method.name, method.waits)).collect();
        Ok(Plan { name: table.to_owned(), programs, methods, settings: settings(btf, decl, members) })
    }

    fn names(&self) -> Vec<&str> {
        self.programs.iter().flatten().map(String::as_str).collect()
    }

    /// Checks that each method with a result has a program with one. A cast in the object's source makes a table
    /// whose member and program differ in type.
    fn have_results(&self, methods: &[Method], is_void: impl Fn(&str) -> bool) -> Result<(), InterfaceError> {
        for (method, program) in methods.iter().zip(&self.programs) {
            if let Some(program) = program.as_ref().filter(|program| method.returns.bytes != 0 && is_void(program)) {
                return Err(InterfaceError::Signature {
                    table: self.name.clone(),
                    member: method.name.to_owned(),
                    found: format!("the program `{program}`, which returns nothing"),
                    wanted: format!("a function that returns {}", method.returns),
                });
            }
        }
        Ok(())
    }
}

impl<C, H: Host + ?Sized> Owned for Version<C, H> {
    fn domain(&self) -> &Arc<Domain> {
        self.instance.engine().domain()
    }

    fn named(&self) -> (&'static str, &str) {
        ("table", &self.plan.name)
    }
}

impl<C, H: ?Sized> Clone for Table<C, H> {
    fn clone(&self) -> Self {
        Table(Arc::clone(&self.0))
    }
}

impl<C, H: ?Sized> fmt::Debug for Table<C, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").finish_non_exhaustive()
    }
}

impl<C: Context, H: Host + ?Sized> Table<C, H> {
    /// Loads the programs of the table of this name.
    ///
    /// # Errors
    /// [`InterfaceError`]; nothing is loaded then.
    pub fn load(
        loader: Loader<'_, C, H>,
        object: &Object,
        table: &str,
        maps: MapSet,
        methods: &[Method],
    ) -> Result<Self, InterfaceError> {
        let plan = Plan::new(object, table, &C::layout().name, methods)?;
        let instance = loader.for_interface().only(&plan.names()).object(object, maps)?;
        plan.have_results(methods, |name| instance.is_void(name))?;
        Table::of(Arc::new(plan), instance)
    }

    /// A table of the programs of an instance.
    fn of(plan: Arc<Plan>, instance: Instance<H>) -> Result<Self, InterfaceError> {
        let loaded = |name: &Option<String>| name.as_ref().map(|name| instance.method(name)).transpose();
        let programs: Result<Vec<Option<Program<C, H>>>, _> = plan.programs.iter().map(loaded).collect();
        let programs = programs.map_err(LoadError::from)?;
        for (&(method, waits), program) in plan.methods.iter().zip(&programs) {
            if let Some(program) = program.as_ref().filter(|program| !waits && program.loaded().is_sleepable()) {
                let (table, program) = (plan.name.clone(), program.name().to_owned());
                return Err(InterfaceError::Sleepable { table, program, method });
            }
        }
        let reclaim = ReclaimOnDrop(instance.engine().clone());
        let version = Arc::new(Version { plan, programs, instance });
        let latest = Mutex::new(Arc::clone(&version));
        Ok(Table(Arc::new(Shared { version: Published::new(version), latest, reclaim })))
    }

    /// Runs the program of a method, under limits if there are any, and returns its result. `None` if the table has no
    /// program for it.
    ///
    /// # Errors
    /// [`RunError`] of the run; [`RunError::Result`] if the result's type does not have what the program returned.
    pub fn call<R: FromR0>(
        &self,
        method: usize,
        host: &mut Loan<'_, H>,
        mut data: C::Data<'_, '_>,
        limits: Option<&RunLimits>,
    ) -> Result<Option<R>, RunError> {
        let guard = self.0.reclaim.0.domain().enter_run()?;
        // SAFETY: inside the guard, of the domain that versions are retired to.
        let version = unsafe { self.0.version.get() };
        let Some(program) = version.programs.get(method).and_then(Option::as_ref) else { return Ok(None) };
        let (parts, host) = (C::parts(&mut data), host.pointer());
        let r0 = match limits {
            // SAFETY: `data` is borrowed to the end of this call and agrees with `C`, for which the program was loaded,
            // and `H` is its linker's; the guard keeps the version and is of its engine's domain.
            None => unsafe { program.loaded().run_under(&*guard, host, parts) },
            // SAFETY: `data` is borrowed to the end of this call and agrees with `C`, for which the program was loaded,
            // and `H` is its linker's; the guard keeps the version and is of its engine's domain.
            Some(limits) => unsafe { program.loaded().run_limited(&*guard, host, parts, limits) },
        }?;
        // The guard, which was lent to the run, still keeps the program.
        typed::result(program.loaded(), r0).map(Some)
    }

    /// Runs the program of a method that may wait, as [`Table::call`] runs one that does not. The run has the table's
    /// version at this call.
    ///
    /// # Errors
    /// The future's: as those of [`Table::call`].
    pub fn call_async<'r, 'p, R: FromR0 + Send + 'r>(
        &self,
        method: usize,
        host: &'r mut Loan<'_, H>,
        data: C::Data<'r, 'p>,
        limits: Option<&RunLimits>,
    ) -> CallAsync<'r, R>
    where
        C::Data<'r, 'p>: Send + 'r,
        H: Send,
    {
        let guard = match self.0.reclaim.0.domain().enter_run() {
            Ok(guard) => guard,
            Err(error) => return Box::pin(ready(Err(error.into()))),
        };
        // SAFETY: inside the guard, of the domain that versions are retired to.
        let version = unsafe { self.0.version.get() };
        let Some(program) = version.programs.get(method).and_then(Option::as_ref) else {
            return Box::pin(ready(Ok(None)));
        };
        let run = match limits {
            None => program.run_lent(host.again(), data, None),
            Some(limits) => program.run_lent(host.again(), data, Some(limits)),
        };
        // The run keeps its program.
        drop(guard);
        Box::pin(TypedRun { run, convert: |program, r0| typed::result(program, r0).map(Some) })
    }

    /// Replaces the programs of this table by the current programs of `new`, in one step: each call runs the old
    /// version or the new one. `new` stays as it is.
    ///
    /// # Errors
    /// [`InterfaceError::OtherEngine`], [`InterfaceError::Forked`].
    pub fn replace(&self, new: &Table<C, H>) -> Result<(), InterfaceError> {
        let domain = self.0.reclaim.0.domain();
        let version = new.version();
        domain.owns(&*version)?;
        if domain.is_forked() {
            return Err(InterfaceError::Forked);
        }
        let mut latest = self.latest();
        self.0.version.replace(Arc::clone(&version), domain);
        // This drops a reference that is not the last: the replaced `Published` value has one until its grace period
        // ends.
        *latest = version;
        drop(latest);
        domain.tend();
        Ok(())
    }

    /// Returns the instance of the current programs, with their maps.
    pub fn instance(&self) -> Instance<H> {
        self.version().instance.clone()
    }

    /// The bytes of a member of the structure that is no function, as compiled.
    pub fn setting(&self, member: &str) -> Option<Vec<u8>> {
        let version = self.version();
        version.plan.settings.iter().find(|(name, _)| name == member).map(|(_, bytes)| bytes.clone())
    }

    fn version(&self) -> Arc<Version<C, H>> {
        match self.0.reclaim.0.domain().lock_to_read(&self.0.latest) {
            Some(latest) => Arc::clone(&latest),
            // SAFETY: in a forked child nobody replaces the version (`replace` refuses), so it is not retired. A
            // version that another thread of the parent was publishing at the fork either is not published in the
            // child, or is this one.
            None => Arc::clone(unsafe { self.0.version.get() }),
        }
    }

    /// Nothing under the lock panics, so poison means nothing.
    fn latest(&self) -> MutexGuard<'_, Arc<Version<C, H>>> {
        self.0.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call of a method that may wait: [`Table::call_async`].
pub type CallAsync<'r, R> = Pin<Box<dyn Future<Output = Result<Option<R>, RunError>> + Send + 'r>>;

/// The programs of a table, verified and compiled once for many instances. Generated types of
/// [`interface`](macro@crate::interface) hold one.
pub struct TableModule<C, H: ?Sized> {
    module: Module<C, H>,
    plan: Arc<Plan>,
}

impl<C, H: ?Sized> Clone for TableModule<C, H> {
    fn clone(&self) -> Self {
        TableModule { module: self.module.clone(), plan: Arc::clone(&self.plan) }
    }
}

impl<C, H: ?Sized> fmt::Debug for TableModule<C, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableModule").field("table", &self.plan.name).finish_non_exhaustive()
    }
}

impl<C: Context, H: Host + ?Sized> TableModule<C, H> {
    /// Verifies and compiles the programs of the table of this name.
    ///
    /// # Errors
    /// [`InterfaceError`].
    pub fn compile(
        loader: Loader<'_, C, H>,
        object: &Object,
        table: &str,
        methods: &[Method],
    ) -> Result<Self, InterfaceError> {
        let plan = Plan::new(object, table, &C::layout().name, methods)?;
        let module = loader.for_interface().only(&plan.names()).compile(object)?;
        plan.have_results(methods, |name| module.is_void(name))?;
        Ok(TableModule { module, plan: Arc::new(plan) })
    }

    /// The programs as a module, say for [`Module::maps`]. Instances that it makes itself do not give out methods that
    /// return nothing.
    pub fn module(&self) -> &Module<C, H> {
        &self.module
    }

    /// Makes an instance with the options that `options` adds, as a table.
    ///
    /// # Errors
    /// [`InterfaceError::Load`] with an error of [`Instantiate::make`].
    pub fn make<'m>(
        &'m self,
        options: impl FnOnce(Instantiate<'m, C, H>) -> Instantiate<'m, C, H>,
    ) -> Result<Table<C, H>, InterfaceError> {
        let instance = options(self.module.instance()).of(&self.module).make()?;
        Table::of(Arc::clone(&self.plan), instance)
    }
}

/// The members of the table's structure.
fn structure<'o>(object: &'o Object, decl: &MapDecl) -> Option<(&'o Btf, &'o [Member])> {
    let btf = object.btf()?;
    match btf.get(btf.resolve(decl.value_type?)) {
        Type::Composite { members, .. } => Some((btf, members)),
        _ => None,
    }
}

/// The prototype that a member points to.
fn prototype(btf: &Btf, member: &Member) -> Option<TypeId> {
    let Type::Ptr { to } = *btf.get(btf.resolve(member.ty)) else { return None };
    let to = btf.resolve(to);
    matches!(btf.get(to), Type::FuncProto { .. }).then_some(to)
}

fn settings(btf: &Btf, decl: &MapDecl, members: &[Member]) -> Vec<(String, Vec<u8>)> {
    let bytes = decl.table.as_deref().unwrap_or(&[]);
    let plain = members.iter().filter(|member| member.bit_size == 0 && prototype(btf, member).is_none());
    plain
        .filter_map(|member| {
            let start = member.bit_offset as usize / 8;
            let end = start.checked_add(btf.size_of(member.ty)? as usize)?;
            Some((btf.name(member.name).to_owned(), bytes.get(start..end)?.to_vec()))
        })
        .collect()
}

/// A table that is checked against an interface.
struct Checks<'a> {
    btf: &'a Btf,
    table: &'a str,
    context: &'a str,
}

impl Checks<'_> {
    /// The program of each method.
    fn programs(
        &self,
        decl: &MapDecl,
        members: &[Member],
        methods: &[Method],
    ) -> Result<Vec<Option<String>>, InterfaceError> {
        let mut programs = vec![None; methods.len()];
        let initial: HashMap<u64, &String> = decl
            .initial
            .iter()
            .filter_map(|(word, value)| match value {
                InitialValue::Program(program) => Some((u64::from(*word) * 64, program)),
                InitialValue::Map(_) => None,
            })
            .collect();
        for member in members {
            let name = self.btf.name(member.name);
            let program = initial.get(&u64::from(member.bit_offset)).copied();
            match (methods.iter().position(|method| method.name == name), program) {
                (Some(at), program) => {
                    self.signature(name, member, methods[at].returns)?;
                    programs[at] = program.cloned();
                }
                (None, Some(_)) => {
                    let (table, member) = (self.table.to_owned(), name.to_owned());
                    return Err(InterfaceError::Unknown { table, member });
                }
                (None, None) => {}
            }
        }
        for (method, program) in methods.iter().zip(&programs) {
            if program.is_none() && !method.optional {
                return Err(InterfaceError::Missing { table: self.table.to_owned(), method: method.name });
            }
        }
        Ok(programs)
    }

    /// Checks that a member points to a function of the context with this result type.
    fn signature(&self, name: &str, member: &Member, returns: Returns) -> Result<(), InterfaceError> {
        let btf = self.btf;
        let wanted = format!("a function of one pointer to `struct {}` that returns {returns}", self.context);
        let fail = |found: String| {
            let (table, member, wanted) = (self.table.to_owned(), name.to_owned(), wanted.clone());
            Err(InterfaceError::Signature { table, member, found, wanted })
        };
        let Some(proto) = prototype(btf, member) else {
            return fail(format!("`{}`", btf.display(member.ty)));
        };
        let Type::FuncProto { ret, params } = btf.get(proto) else { return Ok(()) };
        let found = match *btf.get(btf.resolve(*ret)) {
            Type::Void => Some(Returns { bytes: 0, signed: false }),
            Type::Int { size, signed, .. } => Some(Returns { bytes: size as usize, signed }),
            // An enumeration without negative values passes for either sign: the bytes agree.
            Type::Enum { size, ref values, .. } => {
                let signed = returns.signed || values.iter().any(|(_, value)| *value < 0);
                Some(Returns { bytes: size as usize, signed })
            }
            _ => None,
        };
        if found != Some(returns) {
            return fail(format!("a function that returns `{}`", btf.display(*ret)));
        }
        let [param] = &params[..] else {
            return fail(format!("a function of {} arguments", params.len()));
        };
        let structure = match *btf.get(btf.resolve(param.ty)) {
            Type::Ptr { to } => btf.resolve(to),
            _ => TypeId(0),
        };
        match btf.get(structure) {
            // Only the name is compared here. The load of the program compares the structure with the host's.
            Type::Composite { name, union: false, .. } if btf.name(*name) == self.context => Ok(()),
            _ => fail(format!("a function of `{}`", btf.display(param.ty))),
        }
    }
}

/// The declared return type of a method: `Result<T, RunError>`.
#[diagnostic::on_unimplemented(
    message = "a method of an interface returns `Result<T, RunError>`, not `{Self}`",
    label = "a run may be stopped: return `Result<T, RunError>`"
)]
pub trait Returned {
    /// The result type of the C function.
    type Value;
}

impl<T> Returned for Result<T, RunError> {
    type Value = T;
}
