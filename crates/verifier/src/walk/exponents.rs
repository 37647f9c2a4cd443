//! Shifts by one of a few numbers: `1 << (byte >> 6)`, the length of a QUIC variable-length integer.
//!
//! Problem: the result is one of a few numbers, each of which belongs to one exponent. A fact about the exponent (it is
//! not 0, as the byte was 64 or more) does not bound the range of the result. Approach: in a walk that goes further
//! than others, each exponent is walked on its own (value partitioning); then both numbers are constants.
//!
//! Invariant: every possible exponent is walked, as if the program had compared the number with each of them before.

use bpf_isa::Reg;

use super::Walk;
use super::branch::refine_linked;
use crate::error::Res;
use crate::faults::planted;
use crate::scalar::Scalar;
use crate::state::State;

/// The most exponents that are walked separately.
const MOST_APART: u64 = 4;

impl Walk<'_> {
    /// Splits the state before a constant is shifted to the left by a number with few possible values: all values but
    /// one are queued. Their walks begin at this instruction, where the number is a constant then.
    pub(super) fn part_exponents(&mut self, dst: Reg, by: Reg) -> Res<()> {
        let (d, x) = (self.state.reg(dst), *self.state.reg(by));
        let few = x.is_scalar() && x.n.umax() - x.n.umin() < MOST_APART;
        let unknown = d.as_const().is_some() && x.n.as_const().is_none();
        // At a join, the state is compared with earlier ones, of which one was split already.
        let join = self.scratch.prune.is_point(self.pc);
        if !self.loops.further || self.hybrid || !few || !unknown || join || !self.retests.may_split() {
            return Ok(());
        }
        self.decides();
        let mut all = (x.n.umin()..=x.n.umax()).filter(|v| x.n.meet(&Scalar::constant(*v)).is_some());
        let Some(first) = all.next() else { return Ok(()) };
        for v in all {
            let mut state = self.copy_state();
            self.becomes(&mut state, by, v);
            if !planted!(ExponentUnwalked) {
                self.push(self.pc, state, None, self.epoch)?;
            }
        }
        let mut state = std::mem::take(&mut self.state);
        self.becomes(&mut state, by, first);
        self.state = state;
        Ok(())
    }

    /// Sets the number in the register to `v` in `state`.
    fn becomes(&self, state: &mut State, r: Reg, v: u64) {
        let known = *state.reg(r);
        refine_linked(state, r, &Scalar::constant(v));
        if self.relates() {
            self.see_bits(state, &known, &Scalar::constant(v));
        }
    }
}
