//! Host functions: Rust closures that programs call.
//!
//! Problem: emitted code calls a C function with five integers and the hidden argument; users write closures with
//! types. Approach: one generic *shim* a closure type, `extern "C"`, which turns registers into arguments, calls the
//! closure and turns the result back. A closure without captures is conjured from its type alone; one with captures is
//! found through [`RunCtx::host_env`], which the call sequence fills in. An error or a panic becomes the run's error,
//! and the shim leaves the emitted code behind (`entry::stop`).
//!
//! The argument types *are* the prototype the verifier checks calls against ([`args`], [`ret`]); the interpreter checks
//! the same prototype at the call. So a shim may believe its registers.

mod args;
mod bytes;
pub(crate) mod described;
pub(crate) mod helpers;
pub(crate) mod known;
pub(crate) mod over;
mod ret;
pub(crate) mod sleeping;
pub(crate) mod spent;
pub(crate) mod state;
pub(crate) mod types;

pub use args::HostArg;
pub use bytes::{SharedBytes, SharedBytesMut};
pub use ret::{HostRet, Pinned, PinnedMap, PinnedValue};
pub use sleeping::{AsyncArg, AsyncCaller, IntoAsyncFn, OwnedBytes};

use crate::abi::critical::Critical;
use crate::abi::entry;
use crate::abi::run::Run;
use crate::call::over::Over;
use crate::call::state::Host;
use crate::context::int::IntType;
use crate::engine::usage::Account;
use crate::error::{HelperError, NotFound};
use bpf_jit_code::RunCtx;
use bpf_maps::Map;
use bpf_quiesce::{Domain, Foreign, drop_payload};
use bpf_verifier::{ArgKind, HelperProto, MemSet, Ret};
use core::marker::PhantomData;
use known::{Known, KnownEnv};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use types::IntTypes;

/// A host function as emitted code sees it.
pub(crate) type Shim = unsafe extern "C" fn(u64, u64, u64, u64, u64, *mut RunCtx) -> u64;

/// A host function: its shim, and the environment to be found in the hidden argument.
#[derive(Clone)]
pub(crate) struct HostFn {
    pub(crate) shim: Shim,
    pub(crate) env: Option<Arc<dyn Any + Send + Sync>>,
    pub(crate) needs_ctx: bool,
}

impl HostFn {
    /// Makes a function that needs neither the run nor an environment.
    pub(crate) const fn plain(shim: Shim) -> HostFn {
        HostFn { shim, env: None, needs_ctx: false }
    }
    /// Makes a function that needs the run.
    pub(crate) const fn with_run(shim: Shim) -> HostFn {
        HostFn { shim, env: None, needs_ctx: true }
    }
    /// The address to put into [`RunCtx::host_env`].
    pub(crate) fn env_address(&self) -> u64 {
        self.env.as_ref().map_or(0, |env| Arc::as_ptr(env).cast::<()>() as u64)
    }
}

/// The run from which a host function is called.
#[derive(Debug)]
pub struct Caller<'a, H: ?Sized = ()> {
    run: &'a mut Run,
    /// The program whose code makes the call, for functions that know it.
    by: Option<&'a Known>,
    /// The run's host state, an `H::State<'a>`: so this is invariant in `H` and in `'a`.
    host: Over<&'a H>,
}

impl<'a, H: Host + ?Sized> Caller<'a, H> {
    /// The host state that the run was given. If it borrows ([`crate::host::Borrowed`]), it does so for `'a`: the
    /// function takes its caller with any `'a`, so it can neither keep a part of the state nor store a reference in it.
    pub fn host(&mut self) -> &mut H::State<'a> {
        // SAFETY: `Program::<_, H>::run` stored a `&mut H::State<'_>` that lives as long as the run, and the linker
        // that accepted this function has the same `H`. The function is one for any `'a`, and nothing of a caller but
        // this is lent for `'a`, so none that lives shorter than the state's own lifetime is stored in it. The reborrow
        // ends with `self`'s.
        unsafe { &mut *self.run.host.cast::<H::State<'a>>() }
    }
}

impl<H: ?Sized> Caller<'_, H> {
    /// The run's execution slot: what `bpf_get_smp_processor_id` returns.
    pub fn slot(&self) -> u32 {
        self.run.ctx.slot
    }

    /// The name of the program whose code makes the call: behind a tail call, that of the program jumped to. `None`,
    /// as of the other three, for a function that was registered without [`crate::Linker::know_callers`].
    pub fn program(&self) -> Option<&str> {
        self.by.map(|by| &*by.program)
    }

    /// The name of that program's instance, if it has one ([`crate::instances::Instantiate::name`]).
    pub fn instance(&self) -> Option<&str> {
        self.by?.instance.as_deref()
    }

    /// The account that the program was loaded for ([`crate::Loader::account`]).
    pub fn account(&self) -> Option<&Account> {
        self.by?.account.as_ref()
    }

    /// Returns the data map of this name ([`Map::name`]), of the program's own instance. Only maps that the program
    /// refers to are found, and a reused map by its own name.
    ///
    /// # Errors
    /// [`NotFound`].
    pub fn map(&self, name: &str) -> Result<&Map, NotFound> {
        let maps = self.by.map_or(&[][..], |by| &by.maps);
        let found = maps.iter().find(|map| map.name() == name);
        found.ok_or_else(|| NotFound::new("map", name, maps.iter().map(Map::name)))
    }

    /// The domain whose guard the run is in.
    pub(crate) fn domain(&self) -> &Arc<Domain> {
        // SAFETY: the engine outlives its runs.
        &unsafe { &*self.run.config }.domain
    }
}

/// A closure that can be registered as a host function: after the [`Caller`], arguments of types that implement
/// [`HostArg`], which take at most five registers together; and a result that implements [`HostRet`].
///
/// # Safety
/// `ARGS` and `RET` are what the verifier proves and believes: `call` must be sound for registers of which `ARGS` hold,
/// and what it returns must be as `RET` says. The implementation for closures is all that is needed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a host function",
    label = "not a host function",
    note = "a host function is `Fn(&mut Caller<'_, H>, …) -> R + Send + Sync + 'static`",
    note = "arguments: integers, `&[u8]`, `&mut [u8]`, `SharedBytes<'_>`, `SharedBytesMut<'_>`, `&T` and `&mut T` of plain `T`, and `Option` of a reference",
    note = "results: `()`, `bool`, integers, `Option<Pinned<T>>`, `Option<PinnedValue<V>>`, and `Result<_, HelperError>` of these"
)]
pub unsafe trait IntoHostFn<H: ?Sized, Args>: Send + Sync + 'static {
    /// The facts that the verifier demands of the arguments.
    const ARGS: [ArgKind; 5];
    /// The facts that the verifier may assume about the result.
    const RET: Ret;
    /// The integer types of arguments, by register, and of the result; `None` where it is no integer.
    const INTS: IntTypes;

    /// Calls it with the values of r1 to r5.
    ///
    /// # Safety
    /// `ARGS` must hold of the registers, and of the memory that they point to while the call lasts; where a reference
    /// is made of one argument's memory, no other argument's overlaps it unless both only read.
    #[doc(hidden)]
    unsafe fn call(&self, caller: &mut Caller<'_, H>, regs: [u64; 5]) -> Result<u64, HelperError>;
}

/// The registers of all arguments, in order.
const fn registers(args: &[&[ArgKind]]) -> [ArgKind; 5] {
    let mut all = [ArgKind::None; 5];
    let (mut n, mut arg) = (0, 0);
    while arg < args.len() {
        let mut i = 0;
        while i < args[arg].len() {
            assert!(n < 5, "a host function's arguments take more than five registers (a byte slice takes two)");
            all[n] = args[arg][i];
            (n, i) = (n + 1, i + 1);
        }
        arg += 1;
    }
    all
}

/// The integer types by register, of arguments that each take so many registers.
const fn integers(args: &[(usize, Option<IntType>)]) -> [Option<IntType>; 5] {
    let mut all = [None; 5];
    let (mut n, mut arg) = (0, 0);
    while arg < args.len() {
        // More than five registers do not compile: `registers`.
        if n < 5 {
            all[n] = args[arg].1;
        }
        (n, arg) = (n + args[arg].0, arg + 1);
    }
    all
}

/// The prototype of a function with these arguments. Rust's rule for references becomes the verifier's: if one argument
/// is a reference and one is written, none may overlap.
pub(crate) fn prototype(id: u32, name: &str, args: [ArgKind; 5], ret: Ret) -> HelperProto {
    let memory = || {
        args.iter().filter_map(|arg| match arg {
            ArgKind::Mem(mem) | ArgKind::Fixed { mem, .. } => Some(mem),
            _ => None,
        })
    };
    let disjoint = memory().any(|mem| mem.from == MemSet::OWNED) && memory().any(|mem| mem.access.writes());
    HelperProto { disjoint, ..HelperProto::new(id, name.to_owned(), &args, ret) }
}

macro_rules! closures {
    ($($arg:ident $value:ident),*) => {
        // SAFETY: `ARGS` are the arguments' own demands, each argument is made of the registers that they are about,
        // and the result is what its type says.
        unsafe impl<H: ?Sized, F, R, $($arg),*> IntoHostFn<H, (R, $($arg,)*)> for F
        where
            // The first bound tells the compiler the argument types, the second that the closure takes them with any
            // lifetime.
            F: Fn(&mut Caller<'_, H> $(, $arg)*) -> R
                + for<'a> Fn(&mut Caller<'_, H> $(, $arg::Arg<'a>)*) -> R
                + Send
                + Sync
                + 'static,
            R: HostRet,
            $($arg: HostArg,)*
        {
            const ARGS: [ArgKind; 5] = registers(&[$($arg::KINDS),*]);
            const RET: Ret = R::RET;
            const INTS: IntTypes = IntTypes { args: integers(&[$(($arg::KINDS.len(), $arg::INT)),*]), ret: R::INT };

            #[inline]
            #[allow(unused_mut, unused_variables, unused_assignments, reason = "nothing follows the last argument")]
            unsafe fn call(&self, caller: &mut Caller<'_, H>, regs: [u64; 5]) -> Result<u64, HelperError> {
                // Selects the second of the two bounds by the closure's type.
                #[inline]
                fn apply<H: ?Sized, R, $($arg),*>(
                    f: impl Fn(&mut Caller<'_, H> $(, $arg)*) -> R,
                    caller: &mut Caller<'_, H>
                    $(, $value: $arg)*
                ) -> R {
                    f(caller $(, $value)*)
                }
                let mut regs = regs.as_slice();
                $(
                    let (own, rest) = regs.split_at($arg::KINDS.len());
                    regs = rest;
                    // SAFETY: the registers that `KINDS` are about, as `ARGS` says; the caller vouches for them and
                    // their memory.
                    let $value = unsafe { $arg::from_call(own, caller.domain().memory()) }?;
                )*
                apply(self, caller $(, $value)*).into_r0(caller)
            }
        }
    };
}
closures!();
closures!(A a);
closures!(A a, B b);
closures!(A a, B b, C c);
closures!(A a, B b, C c, D d);
closures!(A a, B b, C c, D d, E e);

/// The host function of a closure, which knows its callers if it shall.
pub(crate) fn host_fn<H: Host + ?Sized, Args: 'static, F: IntoHostFn<H, Args>>(f: F, knows: bool) -> HostFn {
    // The shim makes a value of no size from its type alone. A value with a destructor is kept nevertheless, to be
    // dropped.
    let env: Option<Arc<dyn Any + Send + Sync>> = match size_of::<F>() == 0 && !core::mem::needs_drop::<F>() {
        true => None,
        false => Some(Arc::new(Foreign::new(f))),
    };
    if knows {
        let env = KnownEnv { by: None, of: env };
        return HostFn { shim: shim::<H, Args, F, true>, env: Some(Arc::new(env)), needs_ctx: true };
    }
    HostFn { shim: shim::<H, Args, F, false>, env, needs_ctx: true }
}

/// The C function behind a closure of type `F`.
///
/// # Safety
/// `ctx` must be the [`RunCtx`] of a [`Run`] whose host is an `H`. `ctx.host_env` must point to a [`KnownEnv`] of an
/// `F` if `KNOWS`, and else to an `F` if that has a size. The registers must be as `F`'s prototype says.
unsafe extern "C" fn shim<H: Host + ?Sized, Args: 'static, F: IntoHostFn<H, Args>, const KNOWS: bool>(
    r1: u64,
    r2: u64,
    r3: u64,
    r4: u64,
    r5: u64,
    ctx: *mut RunCtx,
) -> u64 {
    let result = {
        // SAFETY: the linker binds this shim as a function with a run, so `ctx` is the first field of this thread's
        // `Run`, by a pointer to all of it; emitted code waits for the call.
        let run = unsafe { &mut *ctx.cast::<Run>() };
        let known = if KNOWS {
            // SAFETY: the contract: `host_env` is the address of the environment, which the program keeps.
            Some(unsafe { &*(run.ctx.host_env as *const KnownEnv) })
        } else {
            None
        };
        let env = if size_of::<F>() == 0 {
            core::ptr::NonNull::<F>::dangling().as_ptr().cast_const()
        } else {
            let of = known.and_then(|known| known.of.as_ref());
            of.map_or(run.ctx.host_env as *const F, |of| Arc::as_ptr(of).cast())
        };
        // SAFETY: a zero-sized value needs no memory, and the program keeps the one that `host_fn` was given if it has
        // a destructor; otherwise `host_env` is its address, or that of a `KnownEnv`, whose closure `host_fn` kept
        // because it has a size (contract). `Foreign` has the layout of its content.
        let f = unsafe { &*env };
        let by = known.and_then(|known| known.by.as_deref());
        guarded(run, |run| {
            let mut caller = Caller { run, by, host: PhantomData };
            // SAFETY: the verifier, or the interpreter, has held this call to the prototype that `F`'s `ARGS` made; the
            // run's host is an `H`.
            unsafe { f.call(&mut caller, [r1, r2, r3, r4, r5]) }
        })
    };
    match result {
        Some(r0) => r0,
        // SAFETY: `ctx` is the hidden argument, and this frame holds nothing that needs dropping.
        None => unsafe { leave(ctx) },
    }
}

/// An address in the instruction of emitted code that called the function which has a variable at `own`, and that
/// code's stack pointer; `None` if the process's unwinder does not find it. So what a call costs that succeeds is not a
/// store more.
#[cold]
#[inline(never)]
fn call_site(run: &Run, own: usize) -> Option<(u64, u64)> {
    // The unwinder reads emitted code, which is not mapped in a forked child.
    if run.is_forked() {
        return None;
    }
    #[cfg_attr(not(native), expect(unused_mut, reason = "the interpreter knows where it is"))]
    let mut found = None;
    #[cfg(not(native))]
    let _ = own;
    // The unwinder may allocate.
    let _critical = Critical::enter();
    #[cfg(native)]
    bpf_debug::walk(&mut |ip, sp| {
        // The first frame above the variable's is that of the caller.
        if sp > own {
            found = Some((ip as u64, sp as u64));
        }
        found.is_none()
    });
    found
}

/// Runs the body of a host function. An error or panic is left in the run, and `None` returned.
pub(crate) fn guarded(run: &mut Run, body: impl FnOnce(&mut Run) -> Result<u64, HelperError>) -> Option<u64> {
    match catch_unwind(AssertUnwindSafe(|| body(run))) {
        Ok(Ok(r0)) => Some(r0),
        Ok(Err(error)) => {
            fail_quietly(run, error);
            None
        }
        Err(panic) => {
            let text = panic
                .downcast_ref::<&str>()
                .map(|s| (*s).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "(no message)".to_owned());
            // Its own drop may panic, and nothing may unwind from here.
            drop_payload(panic);
            fail_quietly(run, HelperError::Panicked(text));
            None
        }
    }
}

/// Stores the error in the run, or drops it if the run is stopped already. The drop of a host's error may panic.
fn fail_quietly(run: &mut Run, error: HelperError) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run.fail(error))) {
        drop_payload(panic);
    }
}

/// Ends the call of a host function after [`guarded`] returned `None`: emitted code is left behind; the interpreter
/// looks at the stop code by itself.
///
/// Inlined, so that a variable of its is one of the function that emitted code has called.
///
/// # Safety
/// As for [`entry::stop`].
#[inline(always)]
pub(crate) unsafe fn leave(ctx: *mut RunCtx) -> u64 {
    // SAFETY: `ctx` is valid.
    if unsafe { (*ctx).exit_sp } == 0 {
        return 0;
    }
    let own = core::mem::MaybeUninit::<u8>::uninit();
    // SAFETY: the hidden argument is the first field of this thread's run, and the pointer is to all of it.
    let run = unsafe { &mut *ctx.cast::<Run>() };
    if let Some((pc, sp)) = call_site(run, (&raw const own).addr()) {
        if run.ctx.stop_pc == 0 {
            run.ctx.stop_pc = pc;
        }
        // SAFETY: `pc` and `sp` are those of the caller of the function that is being left, as the process's unwinder
        // reports.
        unsafe { run.keep_stack(pc, sp, 0) };
    }
    // SAFETY: the caller's contract.
    unsafe { entry::stop(ctx) }
}
