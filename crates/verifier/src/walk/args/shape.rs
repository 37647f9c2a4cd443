//! Prototypes that contradict themselves are refused, before an argument is looked at.

use crate::error::Reason;
use crate::helpers::{ArgKind, CallbackKind, Effect, HelperProto, LOCK_RESULT, Local, LocalUse, ObjectUse, Ret};
use crate::walk::{Res, refuse};

/// Refuses a prototype that contradicts itself. The parts of a single argument are checked with the argument.
pub(super) fn check_shape(proto: &HelperProto) -> Res<()> {
    let wrong = |what: &str| refuse(Reason::Environment(format!("{}: {what}", proto.name)));
    let arity = usize::from(proto.arity());
    if proto.args[arity..].iter().any(|a| *a != ArgKind::None) {
        return wrong("an argument after its last");
    }
    match proto.ret {
        Ret::Between(min, max) if min > max => return wrong("it returns no number at all"),
        Ret::RecordOrNull if !proto.args.contains(&ArgKind::RecordSize) => return wrong("a record of no size"),
        // Any other effect of a call is sound only if the code behind the call is walked.
        _ if matches!(proto.effect, Effect::Lock(kind) if kind.is_resilient()) && proto.ret != LOCK_RESULT => {
            return wrong("it takes a lock that may fail, and does not say so");
        }
        Ret::Never if proto.effect != Effect::None || proto.args.iter().any(|arg| arg.outlasts_the_call()) => {
            return wrong("it does not return, but has an effect on the code behind it");
        }
        Ret::Thrown if proto.effect != Effect::None || proto.args[0] != ArgKind::Scalar || proto.arity() != 1 => {
            return wrong("it throws something else than one number");
        }
        Ret::ElementOrNull(bytes) if !proto.args.iter().any(|arg| arg.is_iterator(bytes)) => {
            return wrong("an element of no iterator");
        }
        Ret::SliceOrNull { .. }
            if !proto.args.contains(&ArgKind::RecordSize)
                || !proto.args.iter().any(|arg| matches!(arg, ArgKind::Local(Local::Dynptr(_), LocalUse::Used))) =>
        {
            return wrong("a slice of no dynptr, or of no size");
        }
        Ret::OfSocketOrNull(_)
            if !proto.args.iter().any(|a| matches!(a, ArgKind::Socket { null: false, release: false })) =>
        {
            return wrong("a part of no socket");
        }
        Ret::ErrorOrLength if !proto.args.iter().any(|arg| matches!(arg, ArgKind::Size { .. })) => {
            return wrong("it returns a length, and no argument is one");
        }
        Ret::First if !matches!(proto.args[0], ArgKind::MemOfLength(_)) => return wrong("it returns no memory"),
        Ret::Scalar
        | Ret::First
        | Ret::Never
        | Ret::Thrown
        | Ret::Between(..)
        | Ret::ErrorOrLength
        | Ret::MapValueOrNull
        | Ret::RecordOrNull
        | Ret::MemOrNull { .. }
        | Ret::HostOrNull(_)
        | Ret::Host(_)
        | Ret::ElementOrNull(_)
        | Ret::SliceOrNull { .. }
        | Ret::SocketOrNull
        | Ret::ObjectOrNull(_)
        | Ret::OfSocketOrNull(_) => {}
        Ret::Instance { .. } if proto.args[0] == ArgKind::Object(ObjectUse::Instance) => {}
        Ret::Instance { .. } => return wrong("an instance of no object"),
    }
    // The callback's arguments are made of these registers.
    for (i, arg) in proto.args.iter().enumerate() {
        let ArgKind::Callback(kind) = arg else { continue };
        let first = match kind {
            CallbackKind::Loop => proto.args[0] == ArgKind::Scalar,
            CallbackKind::ForEach | CallbackKind::Drain => matches!(proto.args[0], ArgKind::Map(_)),
        };
        if i != 1 || !first || proto.args[2] != ArgKind::CallbackCtx {
            return wrong("a callback stands between what it is called for and what it is given");
        }
    }
    Ok(())
}
