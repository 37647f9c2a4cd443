//! A function that a program calls, bound to the call, or a stand-in for a missing function.

use crate::abi::run::Run;
use crate::call::{HostFn, leave};
use crate::error::HelperError;
#[cfg(native)]
use bpf_jit::Hidden;
use bpf_jit_code::RunCtx;
use bpf_verifier::{HelperProto, Ret};
use std::fmt;

/// A function a program may call, with its prototype.
#[derive(Clone)]
pub(crate) struct Bound {
    pub(crate) proto: HelperProto,
    pub(crate) func: HostFn,
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.proto.fmt(f)
    }
}

impl Bound {
    /// Returns the hidden argument that a call of it passes.
    #[cfg(native)]
    pub(crate) fn hidden(&self) -> Hidden {
        match (&self.func.env, self.func.needs_ctx) {
            (Some(_), _) => Hidden::Env,
            (None, true) => Hidden::Ctx,
            (None, false) => Hidden::Nothing,
        }
    }
}

/// Stands in for a weak host function that does not exist: calling it ends the run.
///
/// # Safety
/// `ctx` must be the hidden argument of emitted code.
pub(crate) unsafe extern "C" fn missing_host_function(_: u64, _: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    // SAFETY: the caller's contract.
    unsafe { never(ctx, "a weak host function that does not exist was called") }
}

/// Stands in for an instruction whose CO-RE relocation is unresolved: executing it ends the run.
///
/// # Safety
/// As for [`missing_host_function`].
unsafe extern "C" fn unresolved_relocation(_: u64, _: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    // SAFETY: the caller's contract.
    unsafe { never(ctx, "an instruction whose CO-RE relocation leads nowhere was executed") }
}

/// Returns the function for calls of [`bpf_object::UNRESOLVED_CALL`]. The verifier knows no such helper, so no verified
/// program calls it.
pub(crate) fn unresolved() -> Bound {
    let proto = HelperProto::new(bpf_object::UNRESOLVED_CALL, "unresolved", &[], Ret::Scalar);
    Bound { proto, func: HostFn::with_run(unresolved_relocation) }
}

/// The function that compilers call in unreachable code: a panic in Rust, `__builtin_unreachable` in C.
pub(crate) const TRAP: &str = "__bpf_trap";

/// Returns the function for calls of [`TRAP`], which ends the run. A host function of this name takes precedence.
pub(crate) fn trap() -> Bound {
    /// # Safety
    /// As for [`missing_host_function`].
    unsafe extern "C" fn trapped(_: u64, _: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
        // SAFETY: the caller's contract.
        unsafe { never(ctx, "the program has ended itself: a panic, or code that its compiler took to be unreachable") }
    }
    Bound { proto: HelperProto::new(0, TRAP, &[], Ret::Never), func: HostFn::with_run(trapped) }
}

/// Ends the run with this message.
///
/// # Safety
/// As for [`missing_host_function`]; the caller's frame must have nothing left to drop.
#[inline(always)]
unsafe fn never(ctx: *mut RunCtx, message: &'static str) -> u64 {
    {
        // SAFETY: the hidden argument is the first field of a `Run`.
        let run = unsafe { &mut *ctx.cast::<Run>() };
        run.fail(HelperError::new(message));
    }
    // SAFETY: neither this frame nor the caller's holds anything that needs dropping.
    unsafe { leave(ctx) }
}
