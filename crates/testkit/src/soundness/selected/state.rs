//! The abstract state before an instruction, and the join of the states of several paths.

use super::value::{Name, Place, Value};
use std::collections::BTreeMap;

/// The operands of the comparison that set the flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Flags {
    pub(super) a: Value,
    pub(super) b: Value,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct State {
    pub(super) regs: Vec<Value>,
    /// Spill slots and saved registers, by distance from the stack pointer at entry. A slot that is not listed holds a
    /// number of the program.
    pub(super) slots: BTreeMap<i64, Value>,
    pub(super) flags: Option<Flags>,
}

/// Rises of the bounds of one value at one join after which its bounds are given up.
const WIDEN: u32 = 4;

/// Counts how often the bounds of each value have risen at each join, since bounds were last given up there.
///
/// Bounds that rise in each round of a loop never settle, so they must be given up. Bounds that rise with them (a mask
/// of a loop's counter, or a value that an outer loop changes before an inner loop runs) do settle. Counts are kept by
/// value and not by visits of the join, so that another value's rises do not cost a value its bounds. The counts of a
/// join and of those behind it begin anew when bounds are given up there, so that values that depend on the given-up
/// value can settle. Counts of joins before it go on, so that bounds of outer loops settle.
#[derive(Default, Debug)]
pub(super) struct Rises(BTreeMap<(u64, Place), u32>);

impl Rises {
    /// Joins the values that a place has on two paths to the instruction at `at`.
    fn join(&mut self, mine: Value, theirs: Value, at: u64, place: Place) -> Value {
        let count = self.0.get(&(at, place)).copied().unwrap_or(0);
        let widen = count >= WIDEN;
        let joined = mine.join(theirs, Name::Joined(at, place), widen);
        if (joined.most, joined.frame) != (mine.most, mine.frame) {
            match widen {
                true => self.0.retain(|(of, _), _| *of < at),
                false => drop(self.0.insert((at, place), count + 1)),
            }
        }
        joined
    }

    /// Begins to count anew at the joins behind the instruction at `at`, whose states are made anew.
    pub(super) fn begin_anew_behind(&mut self, at: u64) {
        self.0.retain(|(of, _), _| *of <= at);
    }
}

impl State {
    fn value(&self, place: Place) -> Option<&Value> {
        match place {
            Place::Reg(reg) => self.regs.get(usize::from(reg)),
            Place::Slot(slot) => self.slots.get(&slot),
            Place::Operand(_) => None,
        }
    }

    /// Names for which `bound` holds are bound again.
    pub(super) fn forget(&mut self, bound: &dyn Fn(Name) -> bool) {
        self.regs.iter_mut().chain(self.slots.values_mut()).for_each(|value| value.forget(bound));
        if self.flags.is_some_and(|flags| flags.a.mentions(bound) || flags.b.mentions(bound)) {
            self.flags = None;
        }
    }

    /// Removes what a store to these bytes of the frame overwrites.
    pub(super) fn overwrite(&mut self, from: i64, bytes: i64) {
        self.slots.retain(|slot, _| *slot + 8 <= from || *slot >= from.saturating_add(bytes));
    }

    /// Joins the state of another path into this one; whether that changed it.
    pub(super) fn join(&mut self, mut other: State, at: u64, rises: &mut Rises) -> bool {
        let before = self.clone();
        // A name of this join that its place does not hold on this path is bound to another value from here on.
        let held: Vec<Name> = (0u8..)
            .zip(&other.regs)
            .map(|(reg, value)| (Place::Reg(reg), value))
            .chain(other.slots.iter().map(|(slot, value)| (Place::Slot(*slot), value)))
            .map(|(place, value)| (Name::Joined(at, place), value))
            .filter(|(name, value)| value.is(*name))
            .map(|(name, _)| name)
            .collect();
        other.forget(&|name| matches!(name, Name::Joined(of, _) if of == at) && !held.contains(&name));
        for (reg, (mine, theirs)) in (0u8..).zip(self.regs.iter_mut().zip(&other.regs)) {
            *mine = rises.join(*mine, *theirs, at, Place::Reg(reg));
        }
        self.slots.retain(|slot, _| other.value(Place::Slot(*slot)).is_some());
        for (slot, mine) in &mut self.slots {
            *mine = rises.join(*mine, other.slots[slot], at, Place::Slot(*slot));
        }
        if self.flags != other.flags {
            self.flags = None;
        }
        *self != before
    }
}
