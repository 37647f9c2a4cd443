//! Remembered loads: a second load of the same bytes of a region yields the same number.
//!
//! Problem: a parser tests a byte in its outer loop and again in an inner one (`if (is_digit(p[i])) while (i < len &&
//! is_digit(p[i])) i++;`). Termination of the outer loop depends on the inner loop's first test, whose outcome is known
//! only if the byte is. Approach: only if an outer loop has failed for lack of a rank, a load from a region is
//! remembered with the name of its number ([`crate::state::Seen`]); comparisons refine it like every value with that
//! name.
//!
//! Claim: a remembered number equals the bytes' content. Proof: no one else writes to a region while the program runs
//! ([`crate::env::Region`] promises it), and every store by the program other than to its own stack, and every call,
//! ends all memories ([`State::regions_written`]). The address is given by the pointer's name, scale and distance,
//! which denote the same address as long as the name denotes the same number. Names of a loop's round denote other
//! numbers in the next round, so the head of a loop's candidate invariant begins without memories.
//!
//! A range cannot express that a number differs from a constant in its middle (`c != ';'`). A few such constants are
//! remembered beside the number, so that a repeated comparison is decided. They hold for the number that the name
//! denotes, as long as that is remembered.
//!
//! Invariants: a state covers another only if the other remembers everything that it remembers ([`super::prune`]). As
//! long as no memory has been used, finished states forget them.

use bpf_isa::{Cond, Size, Width};

use super::Walk;
use crate::faults::planted;
use crate::scalar::Scalar;
use crate::state::{MAX_UNLIKE, Seen, State};
use crate::tnum::ones;
use crate::value::{Ty, Value};

/// The most loads that a state remembers; a new one replaces the oldest.
const MAX_SEEN: usize = 6;

impl State {
    /// Forgets all memories: a region may have been written.
    pub(super) fn regions_written(&mut self) {
        if !planted!(SeenSurvivesStores) {
            self.seen.clear();
        }
    }

    /// Remembers that the number of this name differs from `c`.
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

/// The name and the constant of a comparison for equality, both as whole numbers; `None` if the comparison is of
/// another form.
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
    /// Whether the number is remembered to differ from this constant.
    pub(super) fn known_unlike(&mut self, (id, c): (u32, u64)) -> bool {
        let same = |s: &Seen| (s.value.id, s.value.scale, s.value.delta) == (id, 1, 0);
        let unlike = |s: &Seen| s.is_not(c) || (planted!(UnlikeAnything) && s.unlike > 0);
        let known = self.state.seen.iter().any(|s| same(s) && unlike(s));
        // Later proofs may rest on it.
        self.scratch.prune.seen |= known;
        known
    }

    /// The number that a load from a region yields. The load is proven to be within bounds.
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
            // Later proofs may rest on it.
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
