//! Numbers that were loaded from regions, so that a second load of the same bytes yields the same number.
//!
//! Problem: a parser tests a byte in its outer loop and again in an inner one (`if (is_digit(p[i])) while (i < len &&
//! is_digit(p[i])) i++;`). That the outer loop ends hangs on the inner one's first test, whose outcome is known only if
//! the byte is. Approach: only where an outer loop has failed because no end of it was seen, a load from a region is
//! remembered with the name of its number ([`crate::state::Seen`]); comparisons refine it like all that has that name.
//!
//! Claim: what is remembered is what the bytes hold. Proof: nobody else writes to a region while the program runs
//! ([`crate::env::Region`] promises it); whatever the program writes other than to its own stack, and whatever it
//! calls, ends all that is remembered ([`State::regions_written`]). Where the bytes are is said by the name, scale and
//! distance of the pointer, which name the same address as long as the name is of the same number: so the head of a
//! loop's guess begins with nothing, as in the next round names of the round are of something else.
//!
//! What a number is not in the middle of its range (`c != ';'`), no range says: a few such constants are remembered
//! beside it, so that the same comparison is decided when it is made again. They are said of the number that the name
//! is of, and hold as long as that is remembered.
//!
//! Invariants: a state covers another only if that remembers all that it does ([`super::prune`]); as long as nothing
//! that was remembered has been used, finished states forget it.

use bpf_isa::{Cond, Size, Width};

use super::Walk;
use crate::faults::planted;
use crate::scalar::Scalar;
use crate::state::{MAX_UNLIKE, Seen, State};
use crate::tnum::ones;
use crate::value::{Ty, Value};

/// Loads that a state remembers; the oldest is forgotten for a new one.
const MAX_SEEN: usize = 6;

impl State {
    /// Something may have been written to a region.
    pub(super) fn regions_written(&mut self) {
        if !planted!(SeenSurvivesStores) {
            self.seen.clear();
        }
    }

    /// The number of this name is not that one.
    pub(super) fn is_unlike(&mut self, id: u32, c: u64) {
        let named = |s: &&mut Seen| (s.value.id, s.value.scale, s.value.delta) == (id, 1, 0) && id != 0;
        for s in self.seen.iter_mut().filter(named) {
            if !s.is_not(c)
                && let Some(free) = s.not.get_mut(usize::from(s.unlike))
            {
                *free = c;
                s.unlike += 1;
            }
        }
    }
}

/// A comparison for equality of a number that may have been loaded, and a constant: its name and the constant, both as
/// whole numbers.
pub(super) fn compared_for_equality(width: Width, cond: Cond, d: &Value, s: &Value) -> Option<(u32, u64)> {
    let c = s.n.as_const()?;
    let c = match width {
        Width::W32 if d.is_short() => c & ones::<u64>(32),
        Width::W32 => return None,
        Width::W64 => c,
    };
    let plain = d.id != 0 && (d.scale, d.delta) == (1, 0);
    (plain && matches!(cond, Cond::Eq | Cond::Ne)).then_some((d.id, c))
}

impl Walk<'_> {
    /// Whether the number is remembered not to be this constant.
    pub(super) fn known_unlike(&mut self, (id, c): (u32, u64)) -> bool {
        let same = |s: &Seen| (s.value.id, s.value.scale, s.value.delta) == (id, 1, 0);
        let unlike = |s: &Seen| s.is_not(c) || (planted!(UnlikeAnything) && s.unlike > 0);
        let known = self.state.seen.iter().any(|s| same(s) && unlike(s));
        // Others may rest on it.
        self.scratch.prune.seen |= known;
        known
    }

    /// The number that a load from a region yields, which is proven to be inside it.
    pub(super) fn load_region(&mut self, b: &Value, off: i16, size: Size) -> Value {
        let any = Value::scalar(Scalar::low_bits(size.bits()));
        let Ty::Packet { region } = b.ty else { return any };
        if !self.loops.remembers() || self.hybrid || !self.state.in_guessed_loop() {
            return any;
        }
        let at = i64::from(b.delta) + i64::from(off);
        let size = crate::num::few(size.bytes() as usize);
        let same = |s: &&Seen| (s.region, s.id, s.scale, s.at, s.size) == (region, b.id, b.scale, at, size);
        self.decides();
        if let Some(s) = self.state.seen.iter().find(same) {
            // Others may rest on it.
            self.scratch.prune.seen = true;
            return s.value;
        }
        let value = Value { id: self.new_id(), ..any };
        if self.state.seen.len() >= MAX_SEEN {
            self.state.seen.remove(0);
        }
        let not = [0; MAX_UNLIKE];
        self.state.seen.push(Seen { region, id: b.id, scale: b.scale, at, size, value, not, unlike: 0 });
        value
    }
}
