//! Registers and stack slots: the places of a loop's candidate.

use std::borrow::Cow;
use std::fmt;

use bpf_isa::Reg;

use crate::state::{Frame, Spill, State};
use crate::value::Value;

/// A register or slot, with its frame counted upwards from the running one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::walk::loops) struct Place {
    pub(super) above: u8,
    pub(super) what: What,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    Reg(u8),
    Slot { depth: u16, size: u8 },
}

impl Place {
    pub(super) fn is_register(self) -> bool {
        matches!(self.what, What::Reg(_))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            What::Reg(r) => write!(f, "r{r}")?,
            What::Slot { depth, .. } => write!(f, "[r10 - {depth}]")?,
        }
        match self.above {
            0 => Ok(()),
            n => write!(f, " of the frame {n} above"),
        }
    }
}

fn frame(state: &State, place: Place) -> Option<&Frame> {
    state.frames.len().checked_sub(1 + usize::from(place.above)).and_then(|i| state.frames.get(i))
}

/// The value there; `None` if it cannot be read.
pub(super) fn value(state: &State, place: Place) -> Option<Value> {
    look(state, place).map(Cow::into_owned)
}

/// Returns the value there without a copy.
pub(super) fn look(state: &State, place: Place) -> Option<Cow<'_, Value>> {
    let f = frame(state, place)?;
    let v = match place.what {
        What::Reg(r) => Cow::Borrowed(f.regs.get(usize::from(r))?),
        What::Slot { depth, size } => match f.spilled(depth.into(), size.into()) {
            Some(s) => Cow::Borrowed(&s.value),
            None => Cow::Owned(f.load(depth.into(), size.into()).ok()?),
        },
    };
    (!v.is_uninit()).then_some(v)
}

pub(super) fn put(state: &mut State, place: Place, v: Value) {
    let Some(i) = state.frames.len().checked_sub(1 + usize::from(place.above)) else { return };
    let f = &mut state.frames[i];
    match place.what {
        What::Reg(r) => f.regs[usize::from(r)] = v,
        What::Slot { depth, size } => f.store_spill(depth.into(), size.into(), &v),
    }
}

/// Every register of the running frame, and every slot of any.
pub(super) fn places(state: &State) -> impl Iterator<Item = Place> {
    let regs = (0..crate::num::few(Reg::R10.index())).map(|r| Place { above: 0, what: What::Reg(r) });
    regs.chain(slots(state).map(|(place, _)| place))
}

fn slots(state: &State) -> impl Iterator<Item = (Place, &Spill)> {
    let count = state.frames.len();
    state.frames.iter().enumerate().flat_map(move |(k, f)| {
        let above = crate::num::few(count - 1 - k);
        f.spills.iter().map(move |s| (Place { above, what: What::Slot { depth: s.depth, size: s.size } }, s))
    })
}

/// Returns the places of both states.
pub(super) fn places_of_both(a: &State, b: &State) -> impl Iterator<Item = Place> {
    let new = |(place, s): &(Place, &Spill)| {
        frame(a, *place).is_none_or(|f| f.spilled(s.depth.into(), s.size.into()).is_none())
    };
    places(a).chain(slots(b).filter(new).map(|(place, _)| place))
}
