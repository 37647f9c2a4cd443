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
//! Invariants: a state covers another only if that remembers all that it does ([`super::prune`]); as long as nothing
//! that was remembered has been used, finished states forget it.

use bpf_isa::Size;

use super::Walk;
use crate::faults::planted;
use crate::scalar::Scalar;
use crate::state::{Seen, State};
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
}

impl Walk<'_> {
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
        self.state.seen.push(Seen { region, id: b.id, scale: b.scale, at, size, value });
        value
    }
}
