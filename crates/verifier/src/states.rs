//! Recorded bounds of registers, for tests of the verifier's soundness.
//!
//! A value takes more than a hundred bytes, but only the bounds of numbers and the possible nullness of pointers are
//! ever queried. So a state keeps the bounds of those numbers that have any, and two sets of registers. This keeps
//! recording cheap, so that the oracle can run more programs.

use bpf_isa::{InsnIdx, Reg};
use bpf_verifier_core::{Base, State as Proven, Value as ProvenValue};

use crate::scalar::Scalar;
use crate::value::{Ty, Value};

/// The recorded abstract states of a program ([`crate::Env::record_states`]): the possible register values before each
/// instruction.
#[derive(Debug, Default)]
pub struct States {
    /// The states in the order of the walk.
    states: Vec<State>,
    /// The bounded numbers of all states.
    numbers: Vec<(u8, Scalar)>,
    /// Indices into `states`, ascending by instruction.
    order: Vec<u32>,
    /// The start of each instruction's states in `order`, and one entry for the end.
    starts: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    at: InsnIdx,
    /// The index of its first number. Its numbers end where those of the next state begin.
    numbers: usize,
    /// Registers with a pointer that is not null, as a bit set.
    not_null: u16,
    /// Registers with a number of at most 32 bits, as a bit set.
    halves: u16,
}

impl States {
    pub(crate) fn push(&mut self, at: InsnIdx, regs: &[Value; 11]) {
        let numbers = self.numbers.len();
        let (mut not_null, mut halves) = (0, 0);
        for (r, v) in (0u8..).zip(regs) {
            match v.ty {
                Ty::Uninit(_) => {}
                Ty::Scalar if v.n == Scalar::UNKNOWN => {}
                Ty::Scalar => self.numbers.push((r, v.n)),
                // An empty region may be at any address, also null, and an arena address is any number.
                Ty::Packet { .. } | Ty::PacketEnd { .. } | Ty::Biased { .. } | Ty::Stale { .. } | Ty::Arena => {}
                Ty::Signed => self.numbers.push((r, v.n)),
                Ty::Half { .. } => halves |= 1 << r,
                Ty::Ctx
                | Ty::Stack { .. }
                | Ty::Map { .. }
                | Ty::MapValue { .. }
                | Ty::Mem { .. }
                | Ty::Host { .. }
                | Ty::Func { .. }
                | Ty::Table { .. }
                | Ty::Insn { .. }
                | Ty::Local(_) => not_null |= u16::from(!v.null) << r,
            }
        }
        self.states.push(State { at, numbers, not_null, halves });
    }

    /// Records a state of the trusted core.
    pub(crate) fn push_proven(&mut self, at: InsnIdx, state: &Proven) {
        let numbers = self.numbers.len();
        let mut not_null = 0;
        for (r, reg) in (0u8..).zip(Reg::ALL) {
            match state.reg(reg) {
                ProvenValue::Unset => {}
                ProvenValue::Number(form) => {
                    let word = state.known().word(&form);
                    self.numbers.extend((word != Scalar::UNKNOWN).then_some((r, word)));
                }
                ProvenValue::Pointer(pointer) => match pointer.base {
                    // An empty region may be at any address, also null.
                    Base::Region(_) => {}
                    Base::Context
                    | Base::Stack(_)
                    | Base::Map(_)
                    | Base::MapValue(_)
                    | Base::Inner(_)
                    | Base::InnerValue(_)
                    | Base::Memory { .. }
                    | Base::Record { .. } => not_null |= u16::from(pointer.present.is_none()) << r,
                },
            }
        }
        self.states.push(State { at, numbers, not_null, halves: 0 });
    }

    /// Forgets in this state everything except the bounds of `exact` numbers and the type of `live` pointers.
    pub(crate) fn loosen(&mut self, i: usize, live: u16, exact: u16) {
        let end = self.states.get(i + 1).map_or(self.numbers.len(), |next| next.numbers);
        let state = &mut self.states[i];
        state.not_null &= live;
        state.halves &= live;
        let loose = |(r, _): &&mut (u8, Scalar)| exact >> *r & 1 == 0;
        self.numbers[state.numbers..end].iter_mut().filter(loose).for_each(|(_, n)| *n = Scalar::UNKNOWN);
    }

    /// The bytes held, including the bytes that sorting will take.
    pub(crate) fn bytes(&self) -> usize {
        self.states.capacity() * (size_of::<State>() + 4) + self.numbers.capacity() * size_of::<(u8, Scalar)>()
    }

    pub(crate) fn len(&self) -> usize {
        self.states.len()
    }

    /// Drops all states but the first `len`.
    pub(crate) fn truncate(&mut self, len: usize) {
        if let Some(first) = self.states.get(len) {
            self.numbers.truncate(first.numbers);
            self.states.truncate(len);
        }
    }

    /// Sorts the states by instruction, for a program of `insns` instructions.
    pub(crate) fn sorted(mut self, insns: usize) -> States {
        if self.states.is_empty() {
            return self;
        }
        let mut starts = vec![0u32; insns + 1];
        for state in &self.states {
            starts[state.at.index() + 1] += 1;
        }
        let mut total = 0;
        for start in &mut starts {
            total += *start;
            *start = total;
        }
        let (mut order, mut next) = (vec![0; self.states.len()], starts.clone());
        for (i, state) in (0u32..).zip(&self.states) {
            let next = &mut next[state.at.index()];
            order[*next as usize] = i;
            *next += 1;
        }
        (self.order, self.starts) = (order, starts);
        self
    }

    /// Whether some recorded state admits the values; see [`crate::Verified::admits`].
    pub fn admit(&self, at: InsnIdx, regs: &[u64; 11]) -> bool {
        let (Some(&from), Some(&to)) = (self.starts.get(at.index()), self.starts.get(at.index() + 1)) else {
            return false;
        };
        let (mut null, mut large) = (0u16, 0u16);
        for (r, value) in regs.iter().enumerate() {
            null |= u16::from(*value == 0) << r;
            large |= u16::from(*value > u64::from(u32::MAX)) << r;
        }
        self.order[from as usize..to as usize].iter().any(|&i| {
            let state = &self.states[i as usize];
            let end = self.states.get(i as usize + 1).map_or(self.numbers.len(), |next| next.numbers);
            let numbers = &self.numbers[state.numbers..end];
            state.not_null & null == 0
                && state.halves & large == 0
                && numbers.iter().all(|(r, n)| n.contains(regs[usize::from(*r)]))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_admit_what_they_were_made_of() {
        let mut states = States::default();
        let mut regs = [Value::constant(0); 11];
        regs[1] = Value::constant(7);
        states.push(InsnIdx(1), &regs);
        regs[1] = Value { n: Scalar::unsigned(10, 20), ..Value::constant(0) };
        states.push(InsnIdx(0), &regs);
        regs[1] = Value { n: Scalar::UNKNOWN, ..Value::constant(0) };
        regs[2] = Value { ty: Ty::Ctx, ..Value::constant(0) };
        states.push(InsnIdx(1), &regs);
        states.push(InsnIdx(0), &regs);
        states.truncate(3);
        states.push(InsnIdx(0), &[Value::constant(9); 11]);
        states.loosen(3, 0b11, 0b01);
        let states = states.sorted(2);
        let admit = |at, r1, r2| {
            let mut regs = [0; 11];
            (regs[1], regs[2]) = (r1, r2);
            states.admit(InsnIdx(at), &regs)
        };
        let mut nines = [8; 11];
        nines[0] = 9;
        assert!(states.admit(InsnIdx(0), &nines) && !states.admit(InsnIdx(0), &[8; 11]));
        assert!(admit(0, 10, 0) && admit(0, 20, 0) && !admit(0, 21, 0) && !admit(0, 7, 0) && !admit(0, 10, 1));
        assert!(admit(1, 7, 0) && !admit(1, 8, 0) && admit(1, 8, 4096) && !admit(2, 7, 0));
    }
}
