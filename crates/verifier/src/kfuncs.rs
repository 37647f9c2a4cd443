//! Prototypes of the kernel's functions that programs call by name.
//!
//! They are called by index, like a host's functions: whoever links a program puts the prototypes of those that it
//! names into [`crate::Env::host_functions`].

use bpf_uapi::Kfunc;

use crate::helpers::{ArgKind, HelperProto, Local, LocalUse, Ret};

/// The prototype of a kfunc.
pub fn kfunc(kfunc: Kfunc) -> HelperProto {
    use ArgKind::Scalar;
    const fn numbers(how: LocalUse) -> ArgKind {
        ArgKind::Local(Local::Numbers, how)
    }
    let (args, ret): (&[ArgKind], Ret) = match kfunc {
        Kfunc::IterNumNew => (&[numbers(LocalUse::Made), Scalar, Scalar], Ret::Scalar),
        Kfunc::IterNumNext => (&[numbers(LocalUse::Used)], Ret::ElementOrNull(4)),
        Kfunc::IterNumDestroy => (&[numbers(LocalUse::Ended)], Ret::Scalar),
        Kfunc::RcuReadLock | Kfunc::RcuReadUnlock | Kfunc::PreemptDisable | Kfunc::PreemptEnable => (&[], Ret::Scalar),
    };
    HelperProto::new(kfunc.id(), kfunc.name(), args, ret)
}
