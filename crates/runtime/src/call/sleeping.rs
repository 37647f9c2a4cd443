//! Host functions that wait: async closures that sleepable programs call.
//!
//! Problem: the future that a closure returns may not be ready, and emitted code, or the interpreter, is in the middle
//! of a call. Approach: the run is on a stack of its own ([`crate::abi::fiber`]). The shim keeps the future in its
//! frame there and polls it once, where the program runs: one that is ready costs no switch. Else it leaves that stack
//! to wait ([`Link::wait`]), and the run's poller polls the future where it lies, on the poller's own stack. When it is
//! ready, the run goes on in a guard.
//!
//! Invariants: the frame of [`shim`], which lives across a wait, holds one future and refers to no thread: functions
//! that may do so are called and not inlined. Arguments are numbers, copies, or memory that the run alone has (its
//! stack, its context's regions), which stays where it is while it waits. The closure must accept its caller with any
//! lifetime, so nothing of the caller leaves the call.

use crate::abi::critical::{self, Critical};
use crate::abi::entry;
use crate::abi::link::{Resume, Sleeping, Waiting};
use crate::abi::run::Run;
use crate::call::state::{Host, Loan};
use crate::call::types::IntTypes;
use crate::call::{Caller, HostArg, HostFn, HostRet, Shim, guarded, integers, leave, registers};
use crate::context::int::IntType;
use crate::error::HelperError;
use crate::faults::planted;
use bpf_jit_code::RunCtx;
use bpf_quiesce::{Foreign, Memory, Reservation};
use bpf_verifier::{ArgKind, MemArg, Ret};
use core::fmt;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::pin::Pin;
use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};

/// The run from which a host function is called that may wait.
#[derive(Debug)]
pub struct AsyncCaller<'a, H: ?Sized = ()> {
    host: Loan<'a, H>,
}

impl<H: 'static> AsyncCaller<'_, H> {
    /// The host state that the run was given.
    pub fn host(&mut self) -> &mut H {
        self.host.get()
    }
}

impl<H: Host + ?Sized> AsyncCaller<'_, H> {
    /// Calls a function with the host state that the run was given, also if it borrows ([`crate::host::Borrowed`]). It
    /// takes the state with any lifetime, so it can neither keep a part of it nor store a reference in it.
    pub fn with_host<R>(&mut self, f: impl for<'s, 'a> FnOnce(&'s mut H::State<'a>) -> R) -> R {
        self.host.with(f)
    }
}

/// A copy of bytes that a program passes, of any memory. As an argument it takes two registers: address and length.
///
/// Until it is dropped, its bytes count against [`Config::memory_limit`](crate::Config::memory_limit) and the account
/// of the program whose run waits ([`Loader::account`](crate::Loader::account)); a call whose bytes do not fit ends the
/// run ([`HelperError::MemoryFull`]). Of a function that does not wait, they count against the engine's limit alone.
/// Clones are not counted.
#[derive(Default)]
pub struct OwnedBytes {
    bytes: Vec<u8>,
    /// Given back when this is dropped.
    reserved: Option<Reservation>,
}

impl OwnedBytes {
    /// Returns the bytes, which are not counted from then on.
    pub fn into_vec(self) -> Vec<u8> {
        self.bytes
    }
}

impl Clone for OwnedBytes {
    fn clone(&self) -> OwnedBytes {
        OwnedBytes { bytes: self.bytes.clone(), reserved: None }
    }
}

impl PartialEq for OwnedBytes {
    fn eq(&self, other: &OwnedBytes) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for OwnedBytes {}

impl fmt::Debug for OwnedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = self.reserved.as_ref().map_or(0, Reservation::bytes);
        f.debug_struct("OwnedBytes").field("bytes", &self.bytes).field("counted", &counted).finish()
    }
}

impl core::ops::Deref for OwnedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for OwnedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

// SAFETY: a copy is made; the kinds say that so many bytes are readable and initialised.
unsafe impl HostArg for OwnedBytes {
    type Arg<'a> = OwnedBytes;
    const KINDS: &'static [ArgKind] = &[ArgKind::Mem(MemArg::READ), ArgKind::Size { zero: true, half: false }];
    #[inline]
    unsafe fn from_regs<'a>(regs: &[u64]) -> Self::Arg<'a> {
        // SAFETY: the same kinds, of which the caller vouches.
        OwnedBytes { bytes: unsafe { super::SharedBytes::from_regs(regs) }.to_vec(), reserved: None }
    }
    #[inline]
    unsafe fn from_call<'a>(regs: &[u64], memory: &Arc<Memory>) -> Result<Self::Arg<'a>, HelperError> {
        // SAFETY: the same kinds, of which the caller vouches.
        let from = unsafe { super::SharedBytes::from_regs(regs) };
        if from.is_empty() {
            return Ok(OwnedBytes::default());
        }
        let _critical = Critical::enter();
        let needed = from.len() as u64;
        let reserved = memory.reserve(needed).map_err(|full| HelperError::MemoryFull { full })?;
        let bytes = from.try_to_vec().ok_or(HelperError::NoMemory { needed })?;
        Ok(OwnedBytes { bytes, reserved: Some(reserved) })
    }
}

/// A type that a host function may take which waits: [`OwnedBytes`], a number, or a reference to memory that the run
/// alone has. Not [`SharedBytes`](crate::SharedBytes): memory that is shared may be freed meanwhile.
///
/// # Safety
/// The argument must stay valid while the run waits, which keeps its stack and its context.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a host function that waits",
    note = "arguments: integers, `OwnedBytes`, `&[u8]`, `&mut [u8]`, `&T` and `&mut T` of plain `T`, and `Option` of a reference"
)]
pub unsafe trait AsyncArg: HostArg {}

macro_rules! stay {
    ($([$($param:tt)*] $ty:ty;)*) => {$(
        // SAFETY: a number, a copy, or made of `MemSet::OWNED` memory.
        unsafe impl<$($param)*> AsyncArg for $ty {}
    )*};
}
stay! {
    [] u8; [] u16; [] u32; [] u64; [] i8; [] i16; [] i32; [] i64;
    [] OwnedBytes;
    [] &'static [u8]; [] &'static mut [u8];
    [] Option<&'static [u8]>; [] Option<&'static mut [u8]>;
    [T: zerocopy::FromBytes + zerocopy::Immutable + 'static] &'static T;
    [T: zerocopy::FromBytes + zerocopy::IntoBytes + 'static] &'static mut T;
    [T: zerocopy::FromBytes + zerocopy::Immutable + 'static] Option<&'static T>;
    [T: zerocopy::FromBytes + zerocopy::IntoBytes + 'static] Option<&'static mut T>;
}

/// A closure that can be registered as a host function that waits ([`crate::Linker::func_async`]): after the
/// [`AsyncCaller`], arguments of types that implement [`AsyncArg`]; its future is `Send` and gives a result that
/// implements [`HostRet`].
///
/// # Safety
/// As for [`crate::host::IntoHostFn`]; and the future must stay valid while the run waits. The implementation for
/// closures is all that is needed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a host function that waits",
    label = "not an async host function",
    note = "one is `async |caller: AsyncCaller<'_, H>, …| -> R`, which captures nothing that its future borrows, or `move |caller: AsyncCaller<'_, H>, …|` that returns an `async move` block; its future is `Send`"
)]
pub unsafe trait IntoAsyncFn<'a, H: ?Sized, Args>: Send + Sync + 'static {
    /// The demands of the verifier on the arguments.
    const ARGS: [ArgKind; 5];
    /// The integer types of the arguments, by register; `None` where an argument is no integer.
    const INTS: [Option<IntType>; 5];
    /// The type of the result.
    type Output: HostRet + Send;
    /// The type of the future.
    type Future: Future<Output = Self::Output> + Send + 'a;

    /// Calls it with the values of r1 to r5. The memory of arguments is reserved from `memory`.
    ///
    /// # Safety
    /// As for [`crate::host::IntoHostFn`], as long as the future is there.
    #[doc(hidden)]
    unsafe fn call(
        &self,
        caller: AsyncCaller<'a, H>,
        regs: [u64; 5],
        memory: &Arc<Memory>,
    ) -> Result<Self::Future, HelperError>;
}

// SAFETY: there are no arguments.
unsafe impl<'a, H: ?Sized + 'a, F, Fut> IntoAsyncFn<'a, H, ()> for F
where
    F: Fn(AsyncCaller<'a, H>) -> Fut + Send + Sync + 'static,
    Fut: Future + Send + 'a,
    Fut::Output: HostRet + Send,
{
    const ARGS: [ArgKind; 5] = registers(&[]);
    const INTS: [Option<IntType>; 5] = [None; 5];
    type Output = Fut::Output;
    type Future = Fut;

    #[inline]
    unsafe fn call(&self, caller: AsyncCaller<'a, H>, _: [u64; 5], _: &Arc<Memory>) -> Result<Fut, HelperError> {
        Ok(self(caller))
    }
}

/// A function that takes these arguments, with any result. As a bound of its own it tells the compiler the argument
/// types of a closure. (Two bounds by `Fn` with different results would do so too, but rustdoc 1.95 panics on them.)
pub trait Takes<Args> {}

macro_rules! closures {
    ($($arg:ident $value:ident),*) => {
        impl<F, Caller, Any, $($arg),*> Takes<(Caller, $($arg,)*)> for F where F: Fn(Caller $(, $arg)*) -> Any {}

        // SAFETY: `ARGS` are the arguments' own demands, each argument is made of the registers that they are about.
        unsafe impl<'a, H: ?Sized + 'a, F, Fut, $($arg),*> IntoAsyncFn<'a, H, ($($arg,)*)> for F
        where
            // The first bound tells the compiler the argument types, the second that the closure takes them with any
            // lifetime.
            F: Takes<(AsyncCaller<'a, H>, $($arg,)*)>
                + Fn(AsyncCaller<'a, H> $(, $arg::Arg<'a>)*) -> Fut
                + Send
                + Sync
                + 'static,
            Fut: Future + Send + 'a,
            Fut::Output: HostRet + Send,
            $($arg: AsyncArg,)*
        {
            const ARGS: [ArgKind; 5] = registers(&[$($arg::KINDS),*]);
            const INTS: [Option<IntType>; 5] = integers(&[$(($arg::KINDS.len(), $arg::INT)),*]);
            type Output = Fut::Output;
            type Future = Fut;

            #[inline]
            #[allow(unused_mut, unused_variables, unused_assignments, reason = "nothing follows the last argument")]
            unsafe fn call(
                &self,
                caller: AsyncCaller<'a, H>,
                regs: [u64; 5],
                memory: &Arc<Memory>,
            ) -> Result<Fut, HelperError> {
                // Its type picks the second of the two bounds.
                #[inline]
                fn apply<Caller, R, $($arg),*>(
                    f: impl Fn(Caller $(, $arg)*) -> R,
                    caller: Caller
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
                    let $value = unsafe { $arg::from_call(own, memory) }?;
                )*
                Ok(apply(self, caller $(, $value)*))
            }
        }
    };
}
closures!(A a);
closures!(A a, B b);
closures!(A a, B b, C c);
closures!(A a, B b, C c, D d);
closures!(A a, B b, C c, D d, E e);

/// Returns the argument kinds and the result kind of a function that waits, and its integers.
pub(crate) fn types<H: ?Sized + 'static, Args, F: for<'a> IntoAsyncFn<'a, H, Args>>(
    _: &F,
) -> ([ArgKind; 5], Ret, IntTypes) {
    let args = <F as IntoAsyncFn<'static, H, Args>>::INTS;
    let ints = IntTypes { args, ret: <<F as IntoAsyncFn<'static, H, Args>>::Output as HostRet>::INT };
    let ret = <<F as IntoAsyncFn<'static, H, Args>>::Output as HostRet>::RET;
    (<F as IntoAsyncFn<'static, H, Args>>::ARGS, ret, ints)
}

/// The host function of a closure that waits.
pub(crate) fn async_fn<H: Host + ?Sized, Args: 'static, F: for<'a> IntoAsyncFn<'a, H, Args>>(f: F) -> HostFn {
    // As for functions that do not wait.
    let env: Option<Arc<dyn Any + Send + Sync>> = match size_of::<F>() == 0 && !core::mem::needs_drop::<F>() {
        true => None,
        false => Some(Arc::new(Foreign::new(f))),
    };
    let shim: Shim = shim::<H, Args, F>;
    HostFn { shim, env, needs_ctx: true }
}

/// A call, in the frame of its shim.
enum Call<Fut: Future> {
    /// Its future, pinned: the frame of a run that waits stays where it is.
    Waits(Fut),
    Done(Fut::Output),
    /// Not begun, or over.
    Empty,
}

impl<Fut: Future> Sleeping for Call<Fut> {
    unsafe fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Call::Waits(future) = self else { return Poll::Ready(()) };
        // SAFETY: the call stays where it is until it is dropped (contract), and the future in it until then.
        let future = unsafe { Pin::new_unchecked(future) };
        let Poll::Ready(output) = future.poll(cx) else { return Poll::Pending };
        *self = Call::Done(output);
        Poll::Ready(())
    }

    fn lose(&mut self) {
        // In place, since a polled future must not be moved.
        *self = Call::Empty;
    }
}

type FutureOf<F, H, Args> = <F as IntoAsyncFn<'static, H, Args>>::Future;

/// The state of a call after its future was polled once.
enum Begun {
    Ready,
    Waits,
    /// There is no memory for an argument: the run ends with an error that names the call.
    Refused,
    /// The closure was not called, or the closure or its future has panicked: the run is stopped.
    Failed,
}

/// The C function behind a closure of type `F`.
///
/// # Safety
/// As for the shim of a function that does not wait.
unsafe extern "C" fn shim<H: Host + ?Sized, Args: 'static, F: for<'a> IntoAsyncFn<'a, H, Args>>(
    r1: u64,
    r2: u64,
    r3: u64,
    r4: u64,
    r5: u64,
    ctx: *mut RunCtx,
) -> u64 {
    // Without a destructor, so that nothing is left to drop in this frame.
    let mut call = MaybeUninit::<Call<FutureOf<F, H, Args>>>::uninit();
    let (run, call) = (ctx.cast::<Run>(), call.as_mut_ptr());
    // SAFETY: the linker binds this shim as a function with a run, so `ctx` is the first field of the run that is on
    // this stack, by a pointer to all of it; the rest is the contract.
    let begun = unsafe { begin::<H, Args, F>(run, [r1, r2, r3, r4, r5], call) };
    let with = match begun {
        // A call that was refused is no result: `finish` ends the run.
        Begun::Ready | Begun::Refused => Resume::Go,
        Begun::Failed => Resume::Cancel,
        // SAFETY: `begin` has found a link. The call stays here, on the run's stack, and its poller has it alone.
        Begun::Waits => unsafe { wait(run, call) },
    };
    // SAFETY: `begin` has made the call, and its poller is done with it.
    match unsafe { finish::<H, _>(run, call, with) } {
        Ok(r0) => r0,
        // SAFETY: `ctx` is the hidden argument, and this frame holds nothing that needs dropping.
        Err(Left::Here) => unsafe { leave(ctx) },
        // SAFETY: the run is there.
        Err(Left::GivenUp) if unsafe { (*ctx).exit_sp } == 0 => 0,
        // SAFETY: `ctx` is the hidden argument, and this frame holds nothing that needs dropping.
        Err(Left::GivenUp) => unsafe { entry::stop(ctx) },
    }
}

/// Why a run is left at a call.
enum Left {
    /// The run ends with an error that names the call.
    Here,
    /// The run's future is dropped, and nobody sees its error.
    GivenUp,
}

/// Begins the call at `place`, and a section if the run may wait.
///
/// # Safety
/// As for [`shim`]; `place` must be writable and stay where it is until [`finish`].
#[inline(never)]
unsafe fn begin<H: Host + ?Sized, Args: 'static, F: for<'a> IntoAsyncFn<'a, H, Args>>(
    run: *mut Run,
    regs: [u64; 5],
    place: *mut Call<FutureOf<F, H, Args>>,
) -> Begun {
    // SAFETY: the caller's contract.
    unsafe { place.write(Call::Empty) };
    // SAFETY: the run is on this thread.
    let Some(link) = (unsafe { Run::link(run) }) else {
        let error = HelperError::new("a function that waits was called by a run that cannot: run it by `run_async`");
        // SAFETY: emitted code, or the interpreter, waits for the call.
        unsafe { &mut *run }.fail(error);
        return Begun::Failed;
    };
    critical::inside();
    // SAFETY: emitted code, or the interpreter, waits for the call, and nobody else uses the run.
    let own = unsafe { &*run };
    let (host, env) = (own.host, own.ctx.host_env);
    let f = match size_of::<F>() {
        0 => core::ptr::NonNull::<F>::dangling().as_ptr().cast_const(),
        _ => env as *const F,
    };
    // SAFETY: a zero-sized value needs no memory, and the program keeps the one that `async_fn` was given if it has a
    // destructor; otherwise `host_env` is its address (contract), and `Foreign` has the layout of its content.
    let f = unsafe { &*f };
    let polled = catch_unwind(AssertUnwindSafe(|| {
        let _left = Critical::leave();
        // SAFETY: the run's `&mut H::State` (`Caller::host`), which nobody else uses until the call is over: with its
        // future, it is gone when the run goes on. The closure takes it with any lifetime, so it relies on none.
        let caller = AsyncCaller { host: unsafe { Loan::of(host) } };
        // SAFETY: the run is on this thread's fiber, and so is not over.
        let memory = unsafe { link.memory() };
        // SAFETY: the verifier, or the interpreter, has held this call to the prototype that `F`'s `ARGS` made.
        let future = unsafe { f.call(caller, regs, memory) }?;
        // SAFETY: the caller's contract.
        unsafe { place.write(Call::Waits(future)) };
        // SAFETY: the call was just made, and stays there.
        let call = unsafe { &mut *place };
        // SAFETY: the call was just made, and stays there; this is the run's stack.
        Ok(unsafe { link.poll(call) })
    }));
    // In a forked child, the emitted code that called is not mapped: the poller gives the run up.
    // SAFETY: emitted code, or the interpreter, waits for the call, and nobody else uses the run.
    if unsafe { &*run }.is_forked() {
        match polled {
            Ok(_) => {}
            Err(panic) => link.throw(panic),
        }
        return Begun::Waits;
    }
    match polled {
        Ok(Ok(Poll::Ready(()))) => Begun::Ready,
        Ok(Ok(Poll::Pending)) => Begun::Waits,
        Ok(Err(error)) => {
            // SAFETY: emitted code, or the interpreter, waits for the call, and nobody else uses the run.
            unsafe { &mut *run }.fail(error);
            Begun::Refused
        }
        Err(panic) => {
            link.throw(panic);
            Begun::Failed
        }
    }
}

/// Waits for the call.
///
/// # Safety
/// The run must be on this thread, with a link; the call must have begun, and be nobody else's.
#[inline(never)]
unsafe fn wait(run: *mut Run, call: Waiting) -> Resume {
    // SAFETY: the caller's contract.
    let link = unsafe { Run::link(run) };
    match link {
        // SAFETY: the caller's contract.
        Some(link) => unsafe { link.wait(call) },
        None => Resume::Cancel,
    }
}

/// Ends a call, and the section if the run goes on. Returns its result, or why the run is to be left.
///
/// # Safety
/// The run must be on this thread; in its slot, by a guard, if it goes on. `begin` must have made the call at `place`.
#[inline(never)]
unsafe fn finish<H: Host + ?Sized, Fut: Future>(run: *mut Run, place: *mut Call<Fut>, with: Resume) -> Result<u64, Left>
where
    Fut::Output: HostRet,
{
    // SAFETY: emitted code, or the interpreter, waits for the call, and nobody else uses the run.
    let run = unsafe { &mut *run };
    // SAFETY: the caller's contract.
    let call = unsafe { &mut *place };
    if with == Resume::Go
        && let Call::Done(_) = call
        && let Call::Done(output) = core::mem::replace(call, Call::Empty)
    {
        critical::outside();
        let r0 = guarded(run, |run| output.into_r0(&mut Caller::<H> { run, by: None, host: PhantomData }));
        return r0.ok_or_else(|| {
            critical::inside();
            Left::Here
        });
    }
    // The future is dropped in place, since a polled future must not be moved.
    if planted!(FutureKept) {
        run.fail(HelperError::new("the run was given up while it waited"));
        return Err(Left::GivenUp);
    }
    let dropped = catch_unwind(AssertUnwindSafe(|| {
        let _left = Critical::leave();
        *call = Call::Empty;
    }));
    if let Err(panic) = dropped {
        // SAFETY: the run is on this thread.
        match unsafe { Run::link(run) } {
            Some(link) => link.throw(panic),
            None => bpf_quiesce::drop_payload(panic),
        }
    }
    // In a forked child nobody looks at emitted code, also if the future has forked as it was dropped.
    if with == Resume::Cancel && run.ctx.stop_code == 0 && !run.is_forked() && run.is_asked() {
        run.stop_asked();
        return Err(Left::Here);
    }
    run.fail(HelperError::new("the run was given up while it waited"));
    Err(if with == Resume::Go { Left::Here } else { Left::GivenUp })
}
