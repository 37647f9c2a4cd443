//! Prototypes of the functions over memory that compilers call by themselves.
//!
//! Called by index, like a host's functions, and like those without a number of their own. What they are given is
//! proven as for the kernel's helpers (`ARG_CONST_SIZE_OR_ZERO`): a length that is bounded, and memory of that many
//! bytes, whatever it is. Unlike in C, `memcpy` may be given what overlaps, since nothing proves that it does not.

use bpf_uapi::Builtin;

use super::helpers::{ArgKind, Effect, HelperProto, MemArg, Ret};

/// The prototype of a function that compilers call.
pub fn builtin(builtin: Builtin) -> HelperProto {
    const READ: ArgKind = ArgKind::MemOfLength(MemArg::READ);
    const WRITE: ArgKind = ArgKind::MemOfLength(MemArg::WRITE);
    let (args, ret): (&[ArgKind], Ret) = match builtin {
        Builtin::Memcpy | Builtin::Memmove => (&[WRITE, READ, ArgKind::Length], Ret::First),
        Builtin::Memset => (&[WRITE, ArgKind::Scalar, ArgKind::Length], Ret::First),
        Builtin::Memcmp => (&[READ, READ, ArgKind::Length], Ret::Between(-1, 1)),
    };
    // They wait for nobody; and where the compiler has unrolled them, they are allowed under a lock as well.
    HelperProto { effect: Effect::UnderLock, ..HelperProto::new(0, builtin.name(), args, ret) }
}
