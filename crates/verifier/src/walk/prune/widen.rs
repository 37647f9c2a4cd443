//! Widening for rounds of bounded constructs and of hybrid walks, and for paths that join in a loop: differences from
//! the last state are dropped, so that a few states cover all.

use crate::content::NO_GAP;
use crate::env::Env;
use crate::faults::planted;
use crate::scalar::Scalar;
use crate::state::{Byte, Frame, Spill, State};
use crate::value::{Ty, Value, offset_name};
use crate::walk::pointers::checkable;

/// For merged states: numbers of so many bits are distinguished from longer ones, since an index may be a sum of them.
const FEW_BITS: u32 = 6;

/// Widens the numbers of `new` that differ from the last round's, so that the next round is likely covered.
pub(super) fn widen(old: &State, new: &mut State) {
    for (o, n) in old.frames.iter().zip(&mut new.frames) {
        for (ov, nv) in o.regs.iter().zip(&mut n.regs) {
            if !ov.is_scalar() || !nv.is_scalar() {
                continue;
            }
            if !nv.n.subset(&ov.n) {
                let narrow = ov.n.high_half_is_zero() && nv.n.high_half_is_zero();
                *nv = Value::scalar(Scalar::low_bits(if narrow { 32 } else { 64 }));
            } else if (ov.id, ov.scale, ov.delta) != (nv.id, nv.scale, nv.delta) {
                *nv = nv.unlinked();
            }
        }
        n.contents.retain(|c| o.has_content(c, NO_GAP));
        let mut lost: Vec<(u16, u8)> = Vec::new();
        for ns in &mut n.spills {
            if !ns.value.is_scalar() {
                continue;
            }
            match o.spills.iter().find(|os| (os.depth, os.size) == (ns.depth, ns.size)) {
                Some(Spill { value, .. }) if value.is_scalar() && ns.value.n.subset(&value.n) => {}
                _ if o.check_readable(ns.depth.into(), ns.size.into()).is_ok() => lost.push((ns.depth, ns.size)),
                _ => {}
            }
        }
        for (depth, size) in lost {
            n.store_misc(depth.into(), size.into());
        }
        forget_bytes(o, n);
    }
}

/// Forgets that a byte is zero, or unwritten, where only `new` knows it.
fn forget_bytes(old: &Frame, new: &mut Frame) {
    for (ob, nb) in old.bytes.iter().zip(&mut new.bytes) {
        *nb = match (ob, *nb) {
            (Byte::Misc | Byte::Spill, Byte::Zero) => Byte::Misc,
            (Byte::Misc | Byte::Zero | Byte::Maybe | Byte::Spill, Byte::Fresh) => Byte::Maybe,
            (_, nb) => nb,
        };
    }
}

/// Merges paths that join repeatedly: widens the numbers of `new` that differ from `old`'s, and drops facts that only
/// `new` has, so that later arrivals are likely covered.
///
/// Claim: the new state covers the former one. Proof: ranges grow, names are removed, and facts are dropped. `old` only
/// decides which.
pub(super) fn blend(old: &State, new: &mut State) {
    for (o, n) in old.frames.iter().zip(&mut new.frames) {
        for (ov, nv) in o.regs.iter().zip(&mut n.regs) {
            blend_number(ov, nv);
        }
        for ns in &mut n.spills {
            match o.spills.iter().find(|os| (os.depth, os.size) == (ns.depth, ns.size)) {
                Some(os) => blend_number(&os.value, &mut ns.value),
                None => {
                    if let Ok(v) = o.load(ns.depth.into(), ns.size.into()) {
                        blend_number(&v, &mut ns.value);
                    }
                }
            }
        }
        n.contents.retain(|c| o.has_content(c, NO_GAP));
        forget_bytes(o, n);
    }
    new.room.retain(|f| old.room.contains(f));
    new.sums.retain(|t| old.sums.contains(t));
    new.products.retain(|t| old.products.contains(t));
}

/// Widens one number to cover both. A number below 2^32 stays below: the instruction that wrote it may have ended the
/// need of its operands ([`crate::walk::trail`]).
fn blend_number(old: &Value, new: &mut Value) {
    if !old.is_scalar() || !new.is_scalar() {
        return;
    }
    let tie = |v: &Value| (v.id, v.scale, v.delta);
    let tied = tie(old) == tie(new) && old.id != 0;
    if old == new {
        return;
    }
    let joined = new.n.join(&old.n);
    let n = if joined == old.n || tied { joined } else { Scalar::low_bits(bits_of(&joined, FEW_BITS)) };
    let n = if new.n.high_half_is_zero() && !n.high_half_is_zero() { Scalar::low_bits(32) } else { n };
    debug_assert!(new.n.subset(&n));
    new.n = if planted!(BlendedAsOther) { old.n } else { n };
    if !tied {
        *new = new.unlinked();
    }
}

/// The number of bits that the number may have. Above `few`, it is rounded up to a power of two, since repeated joins
/// would otherwise grow bit by bit.
pub(super) fn bits_of(n: &Scalar, few: u32) -> u32 {
    let bits = u64::BITS - n.umax().leading_zeros();
    if bits <= few { bits.max(1) } else { bits.next_power_of_two().max(8) }
}

/// For a hybrid walk: forgets the offsets of pointers that moved since the last round, if their accesses can be
/// checked. Each pointer gets an id of its own; the last one is returned.
pub(super) fn scatter(env: &Env<'_>, old: &State, new: &mut State, mut next_id: u32) -> u32 {
    let moved = |o: &Value, n: &Value| o.ty == n.ty && ((o.scale, o.delta) != (n.scale, n.delta) || !n.n.subset(&o.n));
    let mut give_up = |v: &mut Value| {
        if matches!(v.ty, Ty::Packet { .. }) {
            next_id += 1;
            v.id = offset_name(next_id);
        }
        (v.n, v.scale, v.delta, v.tie) = (Scalar::UNKNOWN, 1, 0, 0);
    };
    for (o, n) in old.frames.iter().zip(&mut new.frames) {
        for (ov, nv) in o.regs.iter().zip(&mut n.regs) {
            if !nv.null && checkable(env, nv).is_some() && moved(ov, nv) {
                give_up(nv);
            }
        }
        for ns in &mut n.spills {
            let last = o.spills.iter().find(|os| (os.depth, os.size) == (ns.depth, ns.size));
            if !ns.value.null
                && checkable(env, &ns.value).is_some()
                && last.is_some_and(|os| moved(&os.value, &ns.value))
            {
                give_up(&mut ns.value);
            }
        }
    }
    next_id
}
