//! Reads a trail backwards: computes the demand before each step from the demand after it.

use bpf_isa::{AluOp, AtomicOp, Callee, Insn, Reg, Size, Src, Width};

use super::demand::{Demand, FRAMES};
use crate::env::Env;
use crate::faults::planted;
use crate::lens::Since;
use crate::need::helper_needs;

/// r1 to r5, the arguments of a call; and with r0, the registers that it clobbers.
const ARGS: u16 = 0b11_1110;
const CLOBBERED: u16 = 0b11_1111;

/// The kind of a trail entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Kind {
    /// The instruction at `at`. `exact`: its operands decided something.
    #[default]
    Insn,
    /// A subprogram's exit. `exact`: an early one, with a result that is none of its registers.
    Return,
    /// A callback's exit; `exact` as for `Return`.
    Round,
    /// A read of the bytes `from .. to`, by the instruction of the next entry. `exact`: its value decided something.
    Read,
    /// A write of all of them.
    Write,
    /// A write of some of them.
    Within,
    /// The instruction of the next entry, a comparison, also bounded a value tied to an operand: register `from`.
    TiedReg,
    /// The bytes `from .. to` are tied to an operand of the comparison.
    TiedBytes,
    /// Asked for `from` bytes of the region `frame`, and learnt since of `to` ([`Since`]).
    Lengths,
    /// On this side of the branch before it, the register `from` has turned out to be a constant. `exact`: its lower
    /// half has, and the upper one was known to be 0.
    Equal,
    /// The instruction of the next entry writes a number to a register that the length of the region `frame` bounds.
    LengthFlows,
    /// A candidate begins here, of which facts come from any part of the state.
    All,
}

/// An entry of the trail. The reads and writes of an instruction's memory precede its entry.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Step {
    pub(super) at: u32,
    pub(super) frame: u8,
    pub(super) kind: Kind,
    pub(super) exact: bool,
    pub(super) from: u16,
    pub(super) to: u16,
}

/// Reads a trail backwards.
pub(super) struct Reader<'a> {
    pub(super) env: &'a Env<'a>,
    pub(super) insns: &'a [Insn],
    /// The frame of the instruction last read, whose memory reads and writes follow;
    pub(super) frame: usize,
    /// whether its result is needed exactly;
    pub(super) carries: bool,
    /// and the registers that flow into its result, or are compared.
    pub(super) operands: u16,
    /// Whether some path has known a sum: bounds are then looked for in all numbers, read or not
    /// ([`super::demand::forget_unneeded`]).
    pub(super) sums: bool,
}

const fn bit(r: Reg) -> u16 {
    1 << r as u16
}

fn src_bit(src: Src) -> u16 {
    match src {
        Src::Reg(r) => bit(r),
        Src::Imm(_) => 0,
    }
}

impl Reader<'_> {
    /// Turns the demand after the step into the demand before it.
    pub(super) fn back(&mut self, d: &mut Demand, step: Step) {
        let f = usize::from(step.frame);
        let (from, to) = (usize::from(step.from), usize::from(step.to));
        match step.kind {
            Kind::Insn => self.insn(d, step, f),
            Kind::Return | Kind::Round => {
                let caller = f.saturating_sub(1);
                d.truncate(f);
                let c = d.frame(caller);
                let (live, exact) = (c.live & 1, if planted!(ResultsUnmarked) { 0 } else { (c.exact | c.half) & 1 });
                if step.kind == Kind::Round {
                    // The result decides whether there is another round, which gets its arguments from the caller's.
                    c.kill(1);
                    c.read(ARGS, true);
                    d.frame(f).read(1, true);
                } else {
                    c.kill(CLOBBERED);
                    d.frame(f).live = live;
                    d.frame(f).exact = exact;
                    d.frame(f).half = 0;
                }
                if step.exact {
                    d.frame(f).kill(1);
                }
            }
            Kind::Read => {
                let n = d.frame(f);
                // The value that an atomic operation writes depends on its operands, too.
                let flows = n.exact_bytes.any(from, to);
                n.live_bytes.add(from, to);
                if step.exact || (self.carries && !planted!(LoadsUnmarked)) {
                    n.exact_bytes.add(from, to);
                }
                self.flow(d, flows);
            }
            Kind::Write => {
                let n = d.frame(f);
                let flows = n.exact_bytes.any(from, to);
                let from = if planted!(NeighbourOverwritten) { from.saturating_sub(1) } else { from };
                n.live_bytes.remove(from, to);
                n.exact_bytes.remove(from, to);
                self.flow(d, flows && !planted!(StoresUnmarked));
            }
            Kind::Within => {
                let flows = d.frame(f).exact_bytes.any(from, to);
                self.flow(d, flows);
            }
            Kind::TiedReg => {
                let flows = d.frame(f).is_exact(1 << from);
                self.flow(d, flows);
            }
            Kind::Lengths => {
                let need = &mut d.frame(0).lengths[f];
                *need = Since { asked: step.from, learnt: step.to }.before(*need);
            }
            Kind::Equal => d.frame(f).equal(1 << step.from, step.exact),
            Kind::LengthFlows => {
                if (self.carries || self.sums) && !planted!(LengthFlowsUnmarked) {
                    d.frame(0).lengths[f] = crate::lens::ALL;
                }
            }
            Kind::TiedBytes => {
                let flows = d.frame(f).exact_bytes.any(from, to);
                self.flow(d, flows);
            }
            Kind::All => d.set_all(f + 1),
        }
    }

    /// Marks the instruction's operands as needed exactly, if `exact`.
    fn flow(&self, d: &mut Demand, exact: bool) {
        if exact {
            d.frame(self.frame).read(self.operands, true);
        }
    }

    fn insn(&mut self, d: &mut Demand, step: Step, f: usize) {
        (self.frame, self.carries, self.operands) = (f, false, 0);
        let insn = &self.insns[step.at as usize];
        let n = d.frame(f);
        match *insn {
            Insn::Alu { width, op, dst, src } => {
                if width == Width::W32 || (op == AluOp::And && matches!(src, Src::Imm(0..))) {
                    n.is_half(bit(dst));
                }
                self.carries = n.is_exact(bit(dst));
                n.read(bit(dst) | src_bit(src), step.exact || self.carries);
            }
            Insn::Mov { width, dst, src } => {
                if width == Width::W32 {
                    n.is_half(bit(dst));
                }
                n.moved(bit(dst), src_bit(src));
            }
            Insn::MovSx { dst, src, .. } => {
                let exact = n.is_exact(bit(dst));
                n.kill(bit(dst));
                n.read(bit(src), exact);
            }
            Insn::Cast { dst, src, .. } => {
                n.kill(bit(dst));
                n.read(bit(src), false);
            }
            Insn::Neg { dst, .. } | Insn::End { dst, .. } => {
                let exact = n.is_exact(bit(dst));
                n.read(bit(dst), exact);
            }
            Insn::LoadImm64 { dst, .. } => n.kill(bit(dst)),
            Insn::SecondSlot | Insn::Jump { .. } | Insn::MayGoto { .. } => {}
            Insn::Load { size, sign, dst, base, .. } => {
                if size != Size::DW && !sign {
                    n.is_half(bit(dst));
                }
                self.carries = n.is_exact(bit(dst));
                n.kill(bit(dst));
                n.read(bit(base), true);
            }
            Insn::LoadAcquire { dst, base, .. } => {
                self.carries = n.is_exact(bit(dst));
                n.kill(bit(dst));
                n.read(bit(base), true);
            }
            Insn::Store { base, src, .. } => {
                self.operands = src_bit(src);
                n.read(bit(base), true);
                n.read(self.operands, step.exact);
            }
            Insn::StoreRelease { base, src, .. } => {
                self.operands = bit(src);
                n.read(bit(base), true);
                n.read(self.operands, step.exact);
            }
            Insn::Atomic { op, base, src, .. } => {
                self.operands = bit(src);
                let result = match op {
                    AtomicOp::CmpXchg => {
                        self.operands |= bit(Reg::R0);
                        bit(Reg::R0)
                    }
                    AtomicOp::Xchg => bit(src),
                    AtomicOp::Add { fetch }
                    | AtomicOp::Or { fetch }
                    | AtomicOp::And { fetch }
                    | AtomicOp::Xor { fetch } => {
                        if fetch {
                            bit(src)
                        } else {
                            0
                        }
                    }
                };
                self.carries = n.is_exact(result);
                n.kill(result);
                n.read(bit(base), true);
                n.read(self.operands, step.exact);
            }
            Insn::LoadAbs { .. } => {
                n.kill(CLOBBERED);
                n.read(bit(Reg::R6), true);
            }
            Insn::LoadInd { src, .. } => {
                n.kill(CLOBBERED);
                n.read(bit(Reg::R6), true);
                n.live |= bit(src);
            }
            Insn::JumpReg { target } => n.read(bit(target), true),
            Insn::JumpIf { width, dst, src, .. } => {
                self.operands = bit(dst) | src_bit(src);
                let needed = match width {
                    // A comparison of low halves says nothing about upper halves that are 0.
                    Width::W32 if step.from == 0 => n.exact & self.operands != 0,
                    Width::W32 | Width::W64 => n.is_exact(self.operands),
                };
                let exact = step.exact || (needed && !planted!(BoundsUnmarked));
                n.read(self.operands, exact);
            }
            Insn::Call(callee) => self.call(d, callee, step, f),
            Insn::Exit => n.read(1, step.exact || self.env.context.returns.is_some()),
        }
    }

    fn call(&self, d: &mut Demand, callee: Callee, step: Step, f: usize) {
        let proto = match callee {
            Callee::Helper(id) => self.env.helpers.get(id),
            Callee::Host(i) => usize::try_from(i).ok().and_then(|i| self.env.host_functions.get(i)),
            // A global function, which is verified on its own.
            Callee::Subprog(_) | Callee::Reg(_) if step.exact => None,
            Callee::Subprog(_) | Callee::Reg(_) => {
                let of = d.frame((f + 1).min(FRAMES - 1));
                let (live, exact) = (of.live & ARGS, (of.exact | of.half) & ARGS);
                d.truncate(f + 1);
                let n = d.frame(f);
                n.kill(CLOBBERED);
                n.live |= live;
                n.exact |= if planted!(ArgumentsUnmarked) { 0 } else { exact };
                n.read(called(callee), true);
                return;
            }
        };
        let need = helper_needs(proto);
        let through = called(callee);
        // The frame of a callback.
        d.truncate(f + 1);
        let n = d.frame(f);
        n.kill(CLOBBERED);
        n.live |= need.live;
        // If the call depended on its arguments beyond their kinds, all of them are needed exactly.
        n.exact |= if step.exact { need.live } else { need.exact };
        n.read(through, true);
    }
}

/// The register with the address of the called function.
fn called(callee: Callee) -> u16 {
    match callee {
        Callee::Reg(reg) => bit(reg),
        Callee::Helper(_) | Callee::Subprog(_) | Callee::Host(_) => 0,
    }
}
