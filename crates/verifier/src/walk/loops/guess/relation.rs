//! A relation between places or names: whether it holds in a state, and how it is entered in one.
//!
//! Invariants: the entered facts imply no more than the relation. A sum that may be negative, or has parts that may be
//! negative, does not hold.

use std::fmt;

use super::place::{Place, value};
use crate::faults::planted;
use crate::state::{Frame, Room, State, Sum};
use crate::value::{FIRST_FREE_ID, Ty, Value};
use crate::walk::linear::Form;

/// An operand of a relation: the value at a place, or a name that stays unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Of {
    Place(Place),
    Name(u32),
    /// 0, as the end of a sum: its distance is a constant bound.
    Zero,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Relation {
    /// `scale * lo + bytes <= hi`.
    Below { lo: Of, scale: i16, bytes: i64, hi: Of },
    /// `s = a + scale * b + delta`.
    Sum { s: Of, a: Of, b: Of, scale: i64, delta: i64 },
    /// `a + scale * b + bytes <= end`.
    SumBelow { a: Of, b: Of, scale: i16, bytes: i64, end: Of },
    /// `low + bytes <= a + b`.
    BelowSum { low: Of, bytes: i64, a: Of, b: Of },
    /// `a + b = c + d + delta`.
    Balance { a: Of, b: Of, c: Of, d: Option<Of>, delta: i64 },
}

impl fmt::Display for Of {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Of::Place(p) => p.fmt(f),
            Of::Name(id) => write!(f, "#{id}"),
            Of::Zero => f.write_str("0"),
        }
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Relation::Below { lo, scale, bytes, hi } => write!(f, "{scale} * {lo} + {bytes} <= {hi}"),
            Relation::Sum { s, a, b, scale, delta } => write!(f, "{s} = {a} + {scale} * {b} + {delta}"),
            Relation::SumBelow { a, b, scale: 1, bytes, end } => write!(f, "{a} + {b} + {bytes} <= {end}"),
            Relation::SumBelow { a, b, scale, bytes, end } => write!(f, "{a} + {scale} * {b} + {bytes} <= {end}"),
            Relation::BelowSum { low, bytes, a, b } => write!(f, "{low} + {bytes} <= {a} + {b}"),
            Relation::Balance { a, b, c, d: None, delta } => write!(f, "{a} + {b} = {c} + {delta}"),
            Relation::Balance { a, b, c, d: Some(d), delta } => write!(f, "{a} + {b} = {c} + {d} + {delta}"),
        }
    }
}

impl Of {
    pub(super) fn form(self, state: &State) -> Option<Form> {
        match self {
            Of::Place(p) => Form::of(&value(state, p)?),
            Of::Name(id) => Some(Form::name(id)),
            Of::Zero => Some(Form::constant(0)),
        }
    }

    /// The operand as a name, its scale and a distance.
    pub(super) fn named(self, state: &State) -> Option<(u32, i16, i64)> {
        match self {
            Of::Name(id) => Some((id, 1, 0)),
            Of::Zero => None,
            Of::Place(p) => {
                let v = value(state, p)?;
                (v.line_id() != 0).then_some((v.line_id(), v.scale, v.delta.into()))
            }
        }
    }

    /// Whether the operand's V is not negative: the operand is a number, or an offset that is at least its distance
    /// from the name. `names`: the state that gives the names of the places.
    fn is_in_sums(self, state: &State, names: &State) -> bool {
        match self {
            Of::Name(id) if id < FIRST_FREE_ID => state.min_len.get(id as usize - 1).is_some(),
            // A pointer's name may denote a value before its region; whether it does so is fixed before the relation is
            // added.
            Of::Name(id) => {
                let mut named = state.frames.iter().flat_map(Frame::values).filter(|v| v.line_id() == id);
                named.any(Value::is_of_no_negative) || names.sums.iter().any(|t| t.a == id || t.b == id)
            }
            Of::Zero => false,
            Of::Place(p) => value(state, p).zip(value(names, p)).is_some_and(|(v, named)| {
                matches!(v.ty, Ty::Scalar | Ty::Packet { .. })
                    && (v.is_scalar() || v.n.smin() >= i64::from(named.delta.max(v.delta)).max(0))
            }),
        }
    }
}

impl Relation {
    /// Whether the relation holds of the state's values in its places, and their names can express it.
    pub(super) fn holds(self, state: &State, names: &State) -> bool {
        match self {
            Relation::Below { lo, scale, bytes, hi } => {
                let form = || {
                    let form = Form::constant(bytes.into()).plus(&lo.form(state)?, scale.into())?;
                    form.plus(&hi.form(state)?, -1)
                };
                form().is_some_and(|f| state.proves_by_all(&f))
            }
            Relation::SumBelow { a, b, scale, bytes, end } => {
                let form = || {
                    let form =
                        Form::constant(bytes.into()).plus(&a.form(state)?, 1)?.plus(&b.form(state)?, scale.into())?;
                    form.plus(&end.form(state)?, -1)
                };
                [a, b].into_iter().all(|p| p.is_in_sums(state, names))
                    && form().is_some_and(|f| state.proves_by_all(&f))
            }
            Relation::BelowSum { low, bytes, a, b } => {
                let form = || {
                    let form = Form::constant(bytes.into()).plus(&low.form(state)?, 1)?;
                    form.plus(&a.form(state)?, -1)?.plus(&b.form(state)?, -1)
                };
                [a, b].into_iter().all(|p| p.is_in_sums(state, names))
                    && form().is_some_and(|f| state.proves_by_all(&f))
            }
            Relation::Balance { a, b, c, d, delta } => {
                let left = || a.form(state)?.plus(&b.form(state)?, 1);
                let right = || {
                    let form = Form::constant(delta.into()).plus(&c.form(state)?, 1)?;
                    match d {
                        Some(d) => form.plus(&d.form(state)?, 1),
                        None => Some(form),
                    }
                };
                [Some(a), Some(b), Some(c), d].into_iter().flatten().all(|p| p.is_in_sums(state, names))
                    && left().zip(right()).is_some_and(|(l, r)| state.proves_equal(&l, &r))
            }
            Relation::Sum { s, a, b, scale, delta } => {
                let parts =
                    || a.form(state)?.plus(&b.form(state)?, scale.into())?.plus(&Form::constant(delta.into()), 1);
                [s, a, b].into_iter().all(|p| p.is_in_sums(state, names))
                    && parts().zip(s.form(state)).is_some_and(|(p, s)| state.proves_equal(&p, &s))
            }
        }
    }

    /// The bound that remains of a sum whose parts may decrease: the sum is at most its former value.
    pub(super) fn as_bound(self) -> Option<Relation> {
        match self {
            Relation::Sum { s, a, b, scale: 1, delta } => {
                Some(Relation::SumBelow { a, b, scale: 1, bytes: delta, end: s })
            }
            _ => None,
        }
    }

    /// Whether the relation needs a name for a sum that is in no place.
    pub(super) fn names_sum(self) -> bool {
        matches!(self, Relation::SumBelow { .. } | Relation::BelowSum { .. } | Relation::Balance { .. })
    }

    /// Enters the relation in a state, with the places' names from `names`. A sum that it needs gets the name `name`.
    pub(super) fn enter(self, names: &State, state: &mut State, name: u32) {
        // The sum `a + scale * b` as a distance from the name; `most` is an upper bound.
        let bounded = |a: Of, (b, scale): (Of, i16), most: i64, state: &mut State| {
            let [(a, 1, x), (b, 1, y)] = [a.named(names)?, b.named(names)?] else { return None };
            let scale = i64::from(scale);
            let apart = x.checked_add(y.checked_mul(scale)?)?;
            let max = if most == i64::MAX { most } else { most.checked_sub(apart)? };
            state.push_sum(Sum { s: name, a, b, scale, delta: 0, max, split: false });
            state.sums.iter().any(|t| t.s == name).then_some(apart)
        };
        let named = |a: Of, b: (Of, i16), state: &mut State| bounded(a, b, i64::MAX, state);
        match self {
            // `a + scale * b <= -bytes`.
            Relation::SumBelow { a, b, scale, bytes, end: Of::Zero } => {
                if let Some(most) = bytes.checked_neg().and_then(|m| m.checked_sub(planted!(BoundedSumsLess).into())) {
                    bounded(a, (b, scale), most, state);
                }
            }
            Relation::SumBelow { a, b, scale, bytes, end } => {
                let Some((hi, 1, above)) = end.named(names) else { return };
                let Some(at) = named(a, (b, scale), state) else { return };
                if let Some(bytes) = bytes.checked_add(at).and_then(|bytes| bytes.checked_sub(above)) {
                    state.learn_below(Room { id: name, scale: 1, bytes, hi });
                }
            }
            Relation::BelowSum { low, bytes, a, b } => {
                let Some((id, 1, at)) = low.named(names) else { return };
                let Some(above) = named(a, (b, 1), state) else { return };
                if let Some(bytes) = bytes.checked_add(at).and_then(|bytes| bytes.checked_sub(above)) {
                    state.learn_below(Room { id, scale: 1, bytes, hi: name });
                }
            }
            // One name stands for both sides.
            Relation::Balance { a, b, c, d, delta } => {
                let Some((c, 1, z)) = c.named(names) else { return };
                let Some(at) = named(a, (b, 1), state) else { return };
                // The left side is V(name) + at.
                let Some(apart) = z.checked_add(delta).and_then(|x| x.checked_sub(at)) else { return };
                match d.map(|d| d.named(names)) {
                    None => {
                        let Some(back) = apart.checked_neg() else { return };
                        state.learn_below(Room { id: c, scale: 1, bytes: apart, hi: name });
                        state.learn_below(Room { id: name, scale: 1, bytes: back, hi: c });
                    }
                    Some(Some((d, 1, w))) => {
                        let Some(delta) = apart.checked_add(w) else { return };
                        state.push_sum(Sum { s: name, a: c, b: d, scale: 1, delta, max: i64::MAX, split: false });
                    }
                    Some(_) => {}
                }
            }
            Relation::Below { lo, scale, bytes, hi } => {
                let fact = || {
                    let ((id, times, at), (hi, one, above)) = (lo.named(names)?, hi.named(names)?);
                    let bytes = at.checked_mul(scale.into())?.checked_add(bytes)?.checked_sub(above)?;
                    (one == 1 && times > 0).then_some(Room { id, scale: scale.checked_mul(times)?, bytes, hi })
                };
                if let Some(fact) = fact() {
                    state.learn_below(fact);
                }
            }
            Relation::Sum { s, a, b, scale, delta } => {
                let sum = || {
                    let [(s, 1, above), (a, 1, x), (b, 1, y)] = [s.named(names)?, a.named(names)?, b.named(names)?]
                    else {
                        return None;
                    };
                    let delta = delta.checked_add(x)?.checked_add(y.checked_mul(scale)?)?.checked_sub(above)?;
                    Some(Sum { s, a, b, scale, delta, max: i64::MAX, split: false })
                };
                if let Some(sum) = sum()
                    && !state.sums.contains(&sum)
                {
                    state.push_sum(sum);
                }
            }
        }
    }

    /// The operands.
    pub(super) fn about(self) -> impl Iterator<Item = Of> {
        match self {
            Relation::Below { lo, hi, .. } => [Some(lo), Some(hi), None, None],
            Relation::Sum { s, a, b, .. } => [Some(s), Some(a), Some(b), None],
            Relation::SumBelow { a, b, end, .. } => [Some(a), Some(b), Some(end), None],
            Relation::BelowSum { low, a, b, .. } => [Some(low), Some(a), Some(b), None],
            Relation::Balance { a, b, c, d, .. } => [Some(a), Some(b), Some(c), d],
        }
        .into_iter()
        .flatten()
    }
}
