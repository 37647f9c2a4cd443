//! Programs whose result has a type.
//!
//! Problem: a program returns the 64 bits of r0, and its C function an `int` or an enumeration: each caller would cut
//! the number off and match on constants, and one that forgets a value acts on it. Approach: [`FromR0`] is implemented
//! by the types that C functions return; `derive(FromR0)` implements it for enumerations. A value that the type does
//! not have ends the call with [`RunError::Result`].

use crate::abi::limits::RunLimits;
use crate::call::over::Over;
use crate::call::state::Host;
use crate::context::Context;
use crate::error::{LookupError, Origin, RunError};
use crate::handle::instance::Instance;
use crate::handle::program::Program;
use crate::handle::run_async::RunAsync;
use crate::program::loaded::Loaded;
use core::future::Future;
use core::marker::PhantomData;
use core::pin::Pin;
use core::task::{self, Poll};
use std::fmt;

/// The C type of a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Returns {
    /// Its size in bytes; 0: nothing.
    pub(crate) bytes: usize,
    pub(crate) signed: bool,
}

impl fmt::Display for Returns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.bytes, self.signed) {
            (0, _) => f.write_str("void"),
            (bytes, true) => write!(f, "a signed integer of {bytes} bytes"),
            (bytes, false) => write!(f, "an unsigned integer of {bytes} bytes"),
        }
    }
}

/// A type that a program's C function returns: an integer, `bool`, `()`, or a C enumeration, for which it is derived.
///
/// ```
/// # #[cfg(feature = "derive")] {
/// use bpf_runtime::{Config, Engine, FromR0, Linker, Raw, RunError, isa::assemble};
///
/// #[derive(FromR0, PartialEq, Debug)]
/// #[repr(u32)]
/// enum Verdict {
///     Pass,
///     Drop,
/// }
///
/// let linker: Linker = Linker::new(&Engine::new(Config::new())?);
/// let length = linker.loader::<Raw>().insns("length", assemble("r0 = r2\nexit")?)?.returning::<Verdict>();
/// assert_eq!(length.run_on(&mut [0; 1])?, Verdict::Drop);
/// assert!(matches!(length.run_on(&mut [0; 7]), Err(RunError::Result { value: 7, .. })));
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no result of a program",
    label = "not an integer, `bool`, `()` or a type that derives `FromR0`",
    note = "`#[derive(FromR0)]` makes a C enumeration one"
)]
pub trait FromR0: Sized {
    /// The C type.
    #[doc(hidden)]
    const RETURNS: Returns;

    /// Returns the value that r0 stands for, of which only the bytes of the C type count; `None` if the type has no
    /// such value.
    fn from_r0(r0: u64) -> Option<Self>;
}

macro_rules! from_r0 {
    ($($int:ident $signed:literal,)*) => {
        $(impl FromR0 for $int {
            const RETURNS: Returns = Returns { bytes: size_of::<$int>(), signed: $signed };

            #[allow(clippy::cast_possible_truncation, reason = "the rest of r0 is not the result")]
            fn from_r0(r0: u64) -> Option<Self> {
                Some(r0 as $int)
            }
        })*
    };
}

from_r0! {
    u8 false, u16 false, u32 false, u64 false, i8 true, i16 true, i32 true, i64 true,
}

impl FromR0 for bool {
    const RETURNS: Returns = Returns { bytes: 1, signed: false };

    fn from_r0(r0: u64) -> Option<Self> {
        Some(r0 & 0xff != 0)
    }
}

impl FromR0 for () {
    const RETURNS: Returns = Returns { bytes: 0, signed: false };

    fn from_r0(_: u64) -> Option<Self> {
        Some(())
    }
}

/// Converts the r0 that a program left. In one that returns nothing it may be an address, which nobody but the program
/// may see.
pub(crate) fn result<R: FromR0>(program: &Loaded, r0: u64) -> Result<R, RunError> {
    let value = if program.void { 0 } else { r0 };
    R::from_r0(value).ok_or_else(|| RunError::Result {
        value,
        wanted: core::any::type_name::<R>(),
        origin: Some(Box::new(Origin {
            instance: program.instance.as_deref().map(str::to_owned),
            program: program.name.to_string(),
            function: None,
            line: None,
            callers: Vec::new(),
        })),
    })
}

/// A program whose runs return an `R`: [`Program::returning`], [`Instance::program_returning`]. Cheap to clone.
pub struct TypedProgram<C, R, H: ?Sized = ()> {
    program: Program<C, H>,
    result: Over<R>,
}

impl<C, R, H: ?Sized> Clone for TypedProgram<C, R, H> {
    fn clone(&self) -> Self {
        TypedProgram { program: self.program.clone(), result: PhantomData }
    }
}

impl<C, R, H: ?Sized> fmt::Debug for TypedProgram<C, R, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.program.fmt(f)
    }
}

impl<C: Context, H: Host + ?Sized> Program<C, H> {
    /// Returns a handle whose runs return an `R` in place of the number in r0: an integer of the size that the C
    /// function returns, `bool`, or an enumeration ([`FromR0`]).
    #[must_use]
    pub fn returning<R: FromR0>(self) -> TypedProgram<C, R, H> {
        TypedProgram { program: self, result: PhantomData }
    }
}

impl<H: Host + ?Sized> Instance<H> {
    /// Returns the program of this name whose function returns an `R`, as [`Instance::program`] and
    /// [`Program::returning`].
    ///
    /// # Errors
    /// As [`Instance::program`].
    pub fn program_returning<C: Context, R: FromR0>(&self, name: &str) -> Result<TypedProgram<C, R, H>, LookupError> {
        self.program::<C>(name).map(Program::returning)
    }
}

impl<C: Context, R: FromR0, H: Host + ?Sized> TypedProgram<C, R, H> {
    /// Returns the program itself.
    #[must_use]
    pub fn program(&self) -> &Program<C, H> {
        &self.program
    }

    /// Runs it once, as [`Program::run`].
    ///
    /// # Errors
    /// As [`Program::run`], and [`RunError::Result`].
    #[inline]
    pub fn run(&self, host: &mut H::State<'_>, data: C::Data<'_, '_>) -> Result<R, RunError> {
        self.program.run(host, data).and_then(|r0| self.result(r0))
    }

    /// Runs it once, as [`Program::run_with`].
    ///
    /// # Errors
    /// As [`Program::run_with`], and [`RunError::Result`].
    #[inline]
    pub fn run_with(&self, host: &mut H::State<'_>, data: C::Data<'_, '_>, limits: &RunLimits) -> Result<R, RunError> {
        self.program.run_with(host, data, limits).and_then(|r0| self.result(r0))
    }

    /// Runs it once, as [`Program::run_async`].
    ///
    /// # Errors
    /// The future's: as [`Program::run_async`], and [`RunError::Result`].
    ///
    /// # Panics
    /// As [`Program::run_async`].
    pub fn run_async<'r, 'p>(
        &self,
        host: &'r mut H::State<'_>,
        data: C::Data<'r, 'p>,
    ) -> TypedRun<'r, C::Data<'r, 'p>, R, H> {
        TypedRun { run: self.program.run_async(host, data), convert: result }
    }

    /// Runs it once, as [`Program::run_async_with`].
    ///
    /// # Errors
    /// The future's: as [`Program::run_async_with`], and [`RunError::Result`].
    ///
    /// # Panics
    /// As [`Program::run_async_with`].
    pub fn run_async_with<'r, 'p>(
        &self,
        host: &'r mut H::State<'_>,
        data: C::Data<'r, 'p>,
        limits: &RunLimits,
    ) -> TypedRun<'r, C::Data<'r, 'p>, R, H> {
        TypedRun { run: self.program.run_async_with(host, data, limits), convert: result }
    }

    #[inline]
    fn result(&self, r0: u64) -> Result<R, RunError> {
        result(self.program.loaded(), r0)
    }
}

impl<C: Context, R: FromR0> TypedProgram<C, R> {
    /// Runs it once, as [`Program::run_on`].
    ///
    /// # Errors
    /// As [`Program::run`], and [`RunError::Result`].
    #[inline]
    pub fn run_on(&self, data: C::Data<'_, '_>) -> Result<R, RunError> {
        self.run(&mut (), data)
    }
}

/// A run ([`RunAsync`]) whose result has a type. It is `Send` if data and host state are.
#[must_use = "futures do nothing unless they are polled"]
pub struct TypedRun<'r, D, T, H: ?Sized> {
    pub(crate) run: RunAsync<'r, D, H>,
    pub(crate) convert: fn(&Loaded, u64) -> Result<T, RunError>,
}

impl<D, T, H: ?Sized> fmt::Debug for TypedRun<'_, D, T, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.run.fmt(f)
    }
}

impl<D, T, H: Host + ?Sized> Future for TypedRun<'_, D, T, H> {
    type Output = Result<T, RunError>;

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        let convert = self.convert;
        // SAFETY: the run is pinned with this, which has no `Drop`, and nothing is moved out of it.
        let mut run = unsafe { self.map_unchecked_mut(|this| &mut this.run) };
        run.as_mut().poll(cx).map(|r0| convert(run.program(), r0?))
    }
}
