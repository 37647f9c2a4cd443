//! Host functions: Rust closures that programs call.
//!
//! Problem: emitted code calls a C function with five integers and the hidden argument; users write closures with types. Approach: one
//! generic *shim* a closure type, `extern "C"`, which turns registers into arguments, calls the closure and turns the result back.
//! A closure without captures is conjured from its type alone; one with captures is found through [`RunCtx::host_env`], which the call
//! sequence fills in. An error or a panic becomes the run's error, and the shim leaves the emitted code behind (`entry::stop`).
//!
//! The argument types *are* the prototype the verifier checks calls against.

use crate::entry;
use crate::error::HelperError;
use crate::run::Run;
use bpf_jit_code::RunCtx;
use bpf_verifier::{ArgKind, Ret};
use core::marker::PhantomData;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

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
    /// A function that needs neither the run nor an environment.
    pub(crate) const fn plain(shim: Shim) -> HostFn {
        HostFn { shim, env: None, needs_ctx: false }
    }
    /// A function that needs the run.
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
pub struct Caller<'a, H> {
    run: &'a mut Run,
    host: PhantomData<&'a mut H>,
}

impl<H> Caller<'_, H> {
    /// The host state that the run was given.
    pub fn host(&mut self) -> &mut H {
        // SAFETY: `Program::<_, H>::run` stored a `&mut H` that lives as long as the run, and the linker that accepted this
        // function has the same `H`. The reborrow ends with `self`'s.
        unsafe { &mut *self.run.host.cast::<H>() }
    }

    /// The run's execution slot: what `bpf_get_smp_processor_id` returns.
    pub fn slot(&self) -> u32 {
        self.run.ctx.slot
    }
}

/// A type a host function may take.
pub trait HostArg: Sized {
    /// What the verifier demands of the register.
    const KIND: ArgKind;
    /// From the register.
    fn from_reg(reg: u64) -> Self;
}

/// A type a host function may return.
pub trait HostRet {
    /// What the verifier may assume of r0.
    const RET: Ret;
    /// Into r0, or the error that ends the run.
    fn into_r0(self) -> Result<u64, HelperError>;
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl HostArg for $int {
            const KIND: ArgKind = ArgKind::Scalar;
            fn from_reg(reg: u64) -> Self {
                // The low bits, as a C callee takes a narrow argument.
                reg as $int
            }
        }
        impl HostRet for $int {
            const RET: Ret = Ret::Scalar;
            fn into_r0(self) -> Result<u64, HelperError> {
                // Signed types are sign-extended, unsigned ones zero-extended.
                Ok(self as u64)
            }
        }
    )*};
}
integers!(u8, u16, u32, u64, i8, i16, i32, i64);

impl HostRet for () {
    const RET: Ret = Ret::Scalar;
    fn into_r0(self) -> Result<u64, HelperError> {
        Ok(0)
    }
}

impl<T: HostRet> HostRet for Result<T, HelperError> {
    const RET: Ret = T::RET;
    fn into_r0(self) -> Result<u64, HelperError> {
        self.and_then(T::into_r0)
    }
}

/// A closure that can be registered as a host function: up to five arguments of types that implement [`HostArg`], after the
/// [`Caller`], and a result that implements [`HostRet`].
pub trait IntoHostFn<H, Args>: Send + Sync + 'static {
    /// What the verifier demands of the arguments.
    const ARGS: &'static [ArgKind];
    /// What it may assume of the result.
    const RET: Ret;

    /// Calls it with the values of r1 to r5.
    #[doc(hidden)]
    fn call(&self, caller: &mut Caller<'_, H>, regs: [u64; 5]) -> Result<u64, HelperError>;
}

macro_rules! closures {
    ($($arg:ident = $reg:literal),*) => {
        impl<H, F, R, $($arg),*> IntoHostFn<H, (R, $($arg,)*)> for F
        where
            F: Fn(&mut Caller<'_, H> $(, $arg)*) -> R + Send + Sync + 'static,
            R: HostRet,
            $($arg: HostArg,)*
        {
            const ARGS: &'static [ArgKind] = &[$($arg::KIND),*];
            const RET: Ret = R::RET;

            fn call(&self, caller: &mut Caller<'_, H>, _regs: [u64; 5]) -> Result<u64, HelperError> {
                self(caller $(, $arg::from_reg(_regs[$reg]))*).into_r0()
            }
        }
    };
}
closures!();
closures!(A = 0);
closures!(A = 0, B = 1);
closures!(A = 0, B = 1, C = 2);
closures!(A = 0, B = 1, C = 2, D = 3);
closures!(A = 0, B = 1, C = 2, D = 3, E = 4);

/// The host function of a closure.
pub(crate) fn host_fn<H: 'static, Args: 'static, F: IntoHostFn<H, Args>>(f: F) -> HostFn {
    let env: Option<Arc<dyn Any + Send + Sync>> = if size_of::<F>() == 0 {
        // Conjured in the shim; its destructor, if it has one, is the shim type's and never runs.
        core::mem::forget(f);
        None
    } else {
        Some(Arc::new(f))
    };
    HostFn { shim: shim::<H, Args, F>, env, needs_ctx: true }
}

/// The C function behind a closure of type `F`.
///
/// # Safety
/// `ctx` must be the [`RunCtx`] of a [`Run`] whose host is an `H`. If `F` has a size, `ctx.host_env` must point to one.
unsafe extern "C" fn shim<H: 'static, Args: 'static, F: IntoHostFn<H, Args>>(
    r1: u64,
    r2: u64,
    r3: u64,
    r4: u64,
    r5: u64,
    ctx: *mut RunCtx,
) -> u64 {
    let result = {
        // SAFETY: by contract `ctx` is the first field of a `Run`, which emitted code does not touch during the call.
        let run = unsafe { &mut *ctx.cast::<Run>() };
        let env = if size_of::<F>() == 0 {
            core::ptr::NonNull::<F>::dangling().as_ptr().cast_const()
        } else {
            run.ctx.host_env as *const F
        };
        // SAFETY: a zero-sized value needs no memory, and one was forgotten in `host_fn`; otherwise the contract says it is there.
        let f = unsafe { &*env };
        guarded(run, |run| f.call(&mut Caller { run, host: PhantomData }, [r1, r2, r3, r4, r5]))
    };
    match result {
        Some(r0) => r0,
        // SAFETY: `ctx` is the hidden argument, and this frame holds nothing that needs dropping.
        None => unsafe { leave(ctx) },
    }
}

/// Runs the body of a host function. An error or panic is left in the run, and `None` returned.
pub(crate) fn guarded(run: &mut Run, body: impl FnOnce(&mut Run) -> Result<u64, HelperError>) -> Option<u64> {
    match catch_unwind(AssertUnwindSafe(|| body(run))) {
        Ok(Ok(r0)) => Some(r0),
        Ok(Err(error)) => {
            run.fail(error);
            None
        }
        Err(panic) => {
            let text = panic
                .downcast_ref::<&str>()
                .map(|s| (*s).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "(no message)".to_owned());
            run.fail(HelperError::Panicked(text));
            None
        }
    }
}

/// Ends the call of a host function after [`guarded`] returned `None`: emitted code is left behind; the interpreter looks at the
/// stop code by itself.
///
/// # Safety
/// As for [`entry::stop`].
pub(crate) unsafe fn leave(ctx: *mut RunCtx) -> u64 {
    // SAFETY: `ctx` is valid.
    if unsafe { (*ctx).exit_sp } == 0 {
        return 0;
    }
    // SAFETY: the caller's contract.
    unsafe { entry::stop(ctx) }
}
