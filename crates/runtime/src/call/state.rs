//! Host state: the types that `H` of [`Program`](crate::Program) may be, and what a run is given for each.
//!
//! Problem: a run is given a `&mut` of its host state, and a service wants that state to borrow from its request
//! (`Request<'a> { conn: &'a mut Conn, … }`). A handle lives longer than any request, so `H` cannot be the type of the
//! state of one run. Approach: `H` names a family of types, one for each lifetime ([`Host::State`]). A type that
//! borrows nothing is its own family; [`Borrowed`] is the family that the host names by a [`HostState`]. A marker with
//! a size would be covered by the implementation for all types, so `Borrowed` has none: that keeps the two apart.
//!
//! Invariants: a run's state is a `State<'r>` for the `'r` of the caller of the run, and is erased to a pointer. It is
//! only given to functions that take it with any lifetime in place of `'r`: a host function (`Caller<'a, H>`, for all
//! `'a`) and [`Loan::with`]. Nothing else
//! that lives for that lifetime is given to the function, so it can neither keep a part of the state nor store a
//! reference in it.

use crate::call::over::Over;
use core::fmt;
use core::marker::PhantomData;

/// Names the host state of runs that borrows, for each lifetime: implemented by a type of the host's that stands for
/// them, and used as [`Borrowed`].
///
/// ```
/// use bpf_runtime::host::{Borrowed, HostState};
/// use bpf_runtime::{Caller, Config, Engine, Linker, Raw, isa::assemble};
///
/// /// What a run sees of its request.
/// struct Request<'a> {
///     reply: &'a mut Vec<u8>,
///     user: &'a str,
/// }
///
/// struct Requests;
/// impl HostState for Requests {
///     type State<'a> = Request<'a>;
/// }
///
/// let mut linker = Linker::<Borrowed<Requests>>::new(&Engine::new(Config::new())?);
/// linker.func(1001, "greet", |c: &mut Caller<'_, Borrowed<Requests>>| {
///     let Request { reply, user } = c.host();
///     reply.extend_from_slice(user.as_bytes());
/// })?;
/// let greet = linker.loader::<Raw>().insns("greet", assemble("call 1001\nexit")?)?;
///
/// let (mut reply, user) = (Vec::new(), String::from("ada"));
/// greet.run(&mut Request { reply: &mut reply, user: &user }, &mut [])?;
/// assert_eq!(reply, b"ada");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait HostState: 'static {
    /// The state of a run.
    type State<'a>;
}

/// The host type of runs whose state borrows: `Program<C, Borrowed<F>>` is run with a `&mut F::State<'_>`. There are no
/// values of it.
pub struct Borrowed<F: HostState> {
    /// Makes the type invariant in `F`, as all handles are.
    family: Over<F>,
    /// Without a size: see the module.
    _unsized: [core::convert::Infallible],
}

impl<F: HostState> fmt::Debug for Borrowed<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Borrowed").field("family", &self.family).finish_non_exhaustive()
    }
}

mod sealed {
    /// Implemented here only.
    pub trait Sealed {}
}

/// A host type: a type that borrows nothing, which is the state of runs itself, or [`Borrowed`]. Implemented for all of
/// these, and by nothing else.
pub trait Host: sealed::Sealed + 'static {
    /// The state of a run that borrows for `'a`.
    type State<'a>;
}

impl<T: 'static> sealed::Sealed for T {}

impl<T: 'static> Host for T {
    type State<'a> = T;
}

impl<F: HostState> sealed::Sealed for Borrowed<F> {}

impl<F: HostState> Host for Borrowed<F> {
    type State<'a> = F::State<'a>;
}

/// The host state that a run, or several, were lent for `'r`.
pub struct Loan<'r, H: ?Sized> {
    /// A pointer to an `H::State`, which the run has while a call of it waits.
    state: *mut (),
    /// Invariant in `H`, because the state is written and read through it.
    borrow: PhantomData<&'r mut H>,
}

// SAFETY: the pointer stands for a `&mut` of the state, which is an `H` or is `Send` if `Borrowed` is.
unsafe impl<H: Send + ?Sized> Send for Loan<'_, H> {}
// SAFETY: a shared loan gives no access to the state.
unsafe impl<H: Sync + ?Sized> Sync for Loan<'_, H> {}
// SAFETY: there are no values. The bound says of which families loans are sent.
unsafe impl<F: HostState> Send for Borrowed<F> where for<'a> F::State<'a>: Send {}
// SAFETY: there are no values. The bound says of which families loans are shared.
unsafe impl<F: HostState> Sync for Borrowed<F> where for<'a> F::State<'a>: Sync {}

impl<H: ?Sized> fmt::Debug for Loan<'_, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan").finish_non_exhaustive()
    }
}

impl<'r, H: Host + ?Sized> Loan<'r, H> {
    /// Borrows a state for runs.
    pub fn new(state: &'r mut H::State<'_>) -> Self {
        Loan { state: core::ptr::from_mut(state).cast(), borrow: PhantomData }
    }

    /// Lends the state on.
    pub fn again(&mut self) -> Loan<'_, H> {
        Loan { state: self.state, borrow: PhantomData }
    }

    /// The state as a run is given it.
    pub(crate) fn pointer(&mut self) -> *mut () {
        self.state
    }

    /// Takes the state of a run.
    ///
    /// # Safety
    /// `state` must be the pointer of a loan of an `H`, and nobody may use it otherwise while this is there.
    pub(crate) unsafe fn of(state: *mut ()) -> Self {
        Loan { state, borrow: PhantomData }
    }

    /// Calls `f` with the state.
    pub(crate) fn with<R>(&mut self, f: impl for<'s, 'a> FnOnce(&'s mut H::State<'a>) -> R) -> R {
        // SAFETY: `new` was given a `&mut` of the state, which this borrows for `'r`. `f` takes it with any lifetime.
        f(unsafe { &mut *self.state.cast::<H::State<'_>>() })
    }
}

impl<H: 'static> Loan<'_, H> {
    /// The state, which borrows nothing.
    pub(crate) fn get(&mut self) -> &mut H {
        // SAFETY: `new` was given a `&mut H`, which this borrows for `'r`.
        unsafe { &mut *self.state.cast::<H>() }
    }
}
