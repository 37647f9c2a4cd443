//! Properties of single pointers.

use bpf_analysis::{BoundsPlace, CheckRegion};

use crate::env::{Env, Region};
use crate::scalar::Scalar;
use crate::value::{Ty, Value};

/// Offsets stay this small, so that adding a few of them, and an access size, never wraps a 64-bit address.
pub(super) const MAX_OFFSET: i64 = i32::MAX as i64;

/// How far a pointer may lie before its memory without having wrapped round: all memory of programs begins above this
/// address ([`Region::MIN_START`]).
pub(super) const LOWEST_ADDRESS: i64 = Region::MIN_START.cast_signed() - 1;

/// The region of the pointer, if its bounds are known at run time.
pub(super) fn checkable(env: &Env<'_>, p: &Value) -> Option<CheckRegion> {
    match p.ty {
        Ty::Packet { region } => {
            (env.context.bounds(region).place != BoundsPlace::Nowhere).then_some(CheckRegion::Packet(region))
        }
        // Only pointers to global data: elements of other maps are found at run time. A value with a lock, a timer or a
        // field that owns objects is excluded, since a check against the whole value would not protect these.
        Ty::MapValue { map, inner: false } if p.id == 0 => {
            let def = &env.maps[map as usize];
            (def.spin_lock.is_none() && def.deferred().next().is_none() && def.fields.is_empty())
                .then_some(CheckRegion::MapValue { map, size: def.value_size })
        }
        _ => None,
    }
}

/// Whether the offset is small enough for arithmetic and comparisons of the address to be exact. All offsets are,
/// except offsets that a hybrid walk leaves to run-time checks.
pub(super) fn bounded(n: &Scalar) -> bool {
    n.smin() >= -MAX_OFFSET && n.smax() <= MAX_OFFSET
}

/// Whether the pointer may lie so far before the start of its memory that its address has wrapped round.
pub(super) fn lies_far_before(v: &Value) -> bool {
    v.n.smin() < -LOWEST_ADDRESS
}

/// The low half of a pointer, where it is useful: for a context region, whose length is often a 32-bit difference.
pub(super) fn low_half(v: &Value) -> Option<Value> {
    match v.ty {
        Ty::Packet { region } => Some(Value { ty: Ty::Half { region, end: false }, ..*v }),
        Ty::PacketEnd { region } => Some(Value { ty: Ty::Half { region, end: true }, ..*v }),
        Ty::Half { .. } => Some(*v),
        Ty::Biased { region, minus, .. } => Some(Value { ty: Ty::Biased { region, minus, half: true }, ..*v }),
        Ty::Stale { region: Some(region), why, .. } => {
            Some(Value { ty: Ty::Stale { region: Some(region), half: true, why }, ..*v })
        }
        Ty::Stale { region: None, .. } => None,
        Ty::Uninit(_)
        | Ty::Scalar
        | Ty::Signed
        | Ty::Ctx
        | Ty::Stack { .. }
        | Ty::Map { .. }
        | Ty::MapValue { .. }
        | Ty::Mem { .. }
        | Ty::Host { .. }
        | Ty::Func { .. }
        | Ty::Arena
        | Ty::Table { .. }
        | Ty::Insn { .. }
        | Ty::Local(_) => None,
    }
}

/// The size of the pointer's object in bytes.
pub(super) fn size_of(v: &Value, env: &Env<'_>) -> u32 {
    match v.ty {
        Ty::Packet { region } | Ty::PacketEnd { region } => env.region(region).max_len,
        Ty::Stack { .. } => env.frame_bytes,
        Ty::MapValue { map, inner } => {
            let def = &env.maps[map as usize];
            let def = if inner { def.inner.as_deref().unwrap_or(def) } else { def };
            def.value_size
        }
        Ty::Mem { size, .. } => size,
        Ty::Signed => i32::MAX.unsigned_abs(),
        _ => 0,
    }
}
