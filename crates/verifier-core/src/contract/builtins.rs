//! Prototypes of the memory functions to which compilers emit calls (`memcpy`, `memset`, ...).
//!
//! Programs call these functions by index, like a host's functions. Their arguments are proven as for the kernel's
//! helpers (`ARG_CONST_SIZE_OR_ZERO`): a bounded length, and memory of any kind with that many bytes. Unlike in C, the
//! arguments of `memcpy` may overlap, since nothing proves that they do not.

use bpf_uapi::Builtin;

use super::helpers::{ArgKind, Effect, HelperProto, MemArg, Ret};

/// The prototype of a function to which compilers emit calls.
pub fn builtin(builtin: Builtin) -> HelperProto {
    const READ: ArgKind = ArgKind::MemOfLength(MemArg::READ);
    const WRITE: ArgKind = ArgKind::MemOfLength(MemArg::WRITE);
    let (args, ret): (&[ArgKind], Ret) = match builtin {
        Builtin::Memcpy | Builtin::Memmove => (&[WRITE, READ, ArgKind::Length], Ret::First),
        Builtin::Memset => (&[WRITE, ArgKind::Scalar, ArgKind::Length], Ret::First),
        Builtin::Memcmp => (&[READ, READ, ArgKind::Length], Ret::Between(-1, 1)),
    };
    // These functions never wait. They are allowed under a lock, as the loops that compilers unroll them into are.
    HelperProto { effect: Effect::UnderLock, ..HelperProto::new(0, builtin.name(), args, ret) }
}
