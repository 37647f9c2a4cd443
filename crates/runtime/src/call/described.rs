//! Host functions whose types are known as data: what a tool registers for a function of a described host.
//!
//! Problem: a closure's types are its prototype, and a tool that reads a host's description has no such closure.
//! Approach: the body is given the arguments as [`HostValue`]s, by the kinds of the prototype that calls are verified
//! against.
//!
//! Invariant: no reference is made of a program's memory, so the kinds that a closure's references need are more than
//! is relied on here.

use super::types::IntTypes;
use super::{Caller, HostArg, HostFn, SharedBytes, SharedBytesMut, guarded, leave};
use crate::abi::run::Run;
use crate::call::state::Host;
use crate::context::int::IntType;
use crate::error::HelperError;
use bpf_jit_code::RunCtx;
use bpf_quiesce::Foreign;
use bpf_verifier::{ArgKind, MemArg, Ret};
use core::marker::PhantomData;
use std::sync::Arc;

/// An argument of a host function that was registered by its description ([`Linker::func_described`]).
///
/// [`Linker::func_described`]: crate::Linker::func_described
#[derive(Debug)]
#[non_exhaustive]
pub enum HostValue<'a> {
    /// A number, extended from its type to 64 bits.
    Int(u64),
    /// Memory that the function reads: a byte slice or a structure.
    Bytes(SharedBytes<'a>),
    /// Memory that the function reads and writes.
    BytesMut(SharedBytesMut<'a>),
    /// No memory: a null pointer.
    Null,
}

type Body<H> = dyn Fn(&mut Caller<'_, H>, &[HostValue<'_>]) -> Result<u64, HelperError> + Send + Sync;

struct Described<H: ?Sized> {
    args: [ArgKind; 5],
    ret: Ret,
    ints: IntTypes,
    body: Box<Body<H>>,
}

/// The host function with this prototype and body. `args` and `ret` may only be kinds that
/// [`IntoHostFn`](super::IntoHostFn) closures can have.
pub(crate) fn described_fn<H: Host + ?Sized>(
    (args, ret, ints): ([ArgKind; 5], Ret, IntTypes),
    body: impl Fn(&mut Caller<'_, H>, &[HostValue<'_>]) -> Result<u64, HelperError> + Send + Sync + 'static,
) -> HostFn {
    let described = Described { args, ret, ints, body: Box::new(body) };
    HostFn { shim: shim::<H>, env: Some(Arc::new(Foreign::new(described))), needs_ctx: true }
}

impl<H: ?Sized> Described<H> {
    /// Calls it.
    ///
    /// # Safety
    /// The kinds must hold of the registers, while the call lasts.
    unsafe fn call(&self, caller: &mut Caller<'_, H>, regs: [u64; 5]) -> Result<u64, HelperError> {
        let mut values = Vec::with_capacity(5);
        let memory = |mem: MemArg, at: u64, len: u64| {
            if at == 0 && mem.null {
                return HostValue::Null;
            }
            let regs = [at, len];
            match mem.access.writes() {
                // SAFETY: the caller vouches for so many bytes that may be read and written.
                true => HostValue::BytesMut(unsafe { SharedBytesMut::from_regs(&regs) }),
                // SAFETY: the caller vouches for so many bytes that may be read.
                false => HostValue::Bytes(unsafe { SharedBytes::from_regs(&regs) }),
            }
        };
        for (at, kind) in self.args.iter().enumerate() {
            // All else is the length of the memory before it, or no argument.
            if *kind == ArgKind::Scalar {
                values.push(HostValue::Int(self.ints.args[at].unwrap_or(IntType::U64).extend(regs[at])));
            } else if let ArgKind::Mem(mem) = kind {
                values.push(memory(*mem, regs[at], regs.get(at + 1).copied().unwrap_or(0)));
            } else if let ArgKind::Fixed { bytes, mem } = kind {
                values.push(memory(*mem, regs[at], u64::from(*bytes)));
            }
        }
        let result = (self.body)(caller, &values)?;
        match (self.ret, self.ints.ret) {
            (_, Some(int)) => Ok(int.extend(result)),
            (Ret::Never, None) => Err(HelperError::new("the function always ends the run")),
            // The function has no result, or returns null.
            (_, None) => Ok(0),
        }
    }
}

/// The C function of a described function.
///
/// # Safety
/// `ctx` must be the [`RunCtx`] of a [`Run`] whose host is an `H`, and `ctx.host_env` point to a `Described<H>`, of
/// whose kinds the registers must be.
unsafe extern "C" fn shim<H: Host + ?Sized>(r1: u64, r2: u64, r3: u64, r4: u64, r5: u64, ctx: *mut RunCtx) -> u64 {
    let result = {
        // SAFETY: the linker binds this shim as a function with a run, so `ctx` is the first field of this thread's
        // `Run`, by a pointer to all of it; emitted code waits for the call.
        let run = unsafe { &mut *ctx.cast::<Run>() };
        let described = run.ctx.host_env as *const Described<H>;
        // SAFETY: `host_env` is the address of the `Described` that the program keeps (contract); `Foreign` has the
        // layout of its content.
        let described = unsafe { &*described };
        guarded(run, |run| {
            let mut caller = Caller { run, by: None, host: PhantomData };
            // SAFETY: the verifier, or the interpreter, has held this call to the prototype; the run's host is an `H`.
            unsafe { described.call(&mut caller, [r1, r2, r3, r4, r5]) }
        })
    };
    match result {
        Some(r0) => r0,
        // SAFETY: `ctx` is the hidden argument, and this frame holds nothing that needs dropping.
        None => unsafe { leave(ctx) },
    }
}
