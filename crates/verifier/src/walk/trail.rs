//! What kept states are needed for: the trail of a path, read backwards.
//!
//! Problem: two paths that meet with different values cannot be merged by comparing states if the values matter, and
//! most do not. Which do is known only when all paths from the join have been walked. [`crate::need`] says it
//! beforehand for registers, as far as one pass over the program can; of the stack, which is reached through pointers,
//! and of branches, which are decided by some values and by others not, only the walk knows.
//!
//! Approach: the walk leaves a trail, one entry a step. When a path ends, the trail is read backwards to the branch
//! that is walked next, and yields what the path's beginning was needed for (its [`Demand`]); where two sides of a
//! branch come together, theirs are joined and read on. So each step is read once, and a kept state gets its demand
//! when all paths from it are finished. A place (register, or eight bytes of a frame's stack) is
//! * not *live*: no path reads it;
//! * live, not *exact*: paths read it, but as a number it flows into results, stores, and comparisons that go both
//!   ways;
//! * exact: it flows into an address, a size, a helper's constant, or a comparison that its value decides; or it was
//!   compared with what is exact afterwards, since that comparison bounded the other.
//!
//! This is what the kernel finds with `REG_LIVE_READ` and `mark_chain_precision`, in one pass of linear time.
//!
//! Why it is sound. *Liveness* is used to prune (`Pruner::close` forgets slots that no path read): a state that differs
//! from a finished one only there goes the same ways, reads the same places and passes the same checks, one by one. It
//! rests on each read of stack contents being on the trail, and on a write ending a slot's life only if it covers the
//! slot whole. *Exactness* is never used to prune. A state that is covered but for places that were not exact is made
//! to forget them, and walked on (`Walk::generalise`): it then stands for more than it did, which is always sound, and
//! it covers what differs from it there. Were an exact place taken for another, a safe program could be refused, no
//! unsafe one accepted; such a refusal is not final either: the program is walked again without generalising. So
//! everything recorded about an instruction holds for every execution.
//!
//! Invariants: the open kept states are the ancestors of the path, oldest first, and the trail reaches back to the
//! oldest. Slots beyond the first 512 bytes of a frame are always live and exact. A path that ends because an open
//! state covers it goes on as that one does, in ways not known yet: it demands everything.

use bpf_isa::{AtomicOp, Callee, Insn, MAX_CALL_DEPTH, Reg, Src};

use super::Walk;
use crate::env::Env;
use crate::faults::planted;
use crate::need::helper_needs;
use crate::state::{Byte, Frame, State};
use crate::value::FIRST_FREE_ID;

/// Bytes of a slot: that of a spilled pointer.
const SLOT: usize = 8;
/// Slots of a frame with a bit.
const TRACKED: usize = u64::BITS as usize;
/// Values tied to an operand of a comparison that are entered one by one.
const MAX_TIED: usize = 8;
const FRAMES: usize = MAX_CALL_DEPTH as usize;
/// r1 to r5, and with r0: what a call takes, and what it leaves nothing in.
const ARGS: u16 = 0b11_1110;
const CLOBBERED: u16 = 0b11_1111;

/// A set of places.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Places {
    /// A word a frame, a bit a register.
    pub(super) regs: [u16; FRAMES],
    /// A word a frame; bit i is the eight bytes that end at r10 - 8i.
    pub(super) slots: [u64; FRAMES],
}

/// What a point of a path is needed for. What is exact is live.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Demand {
    pub(super) live: Places,
    pub(super) exact: Places,
}

impl Places {
    const ALL: Places = Places { regs: [u16::MAX; FRAMES], slots: [u64::MAX; FRAMES] };

    fn join(&mut self, other: &Places) {
        for (a, b) in self.regs.iter_mut().zip(other.regs) {
            *a |= b;
        }
        for (a, b) in self.slots.iter_mut().zip(other.slots) {
            *a |= b;
        }
    }
}

impl Demand {
    pub(super) const ALL: Demand = Demand { live: Places::ALL, exact: Places::ALL };

    fn join(&mut self, other: &Demand) {
        self.live.join(&other.live);
        self.exact.join(&other.exact);
    }

    /// Whether the `size` bytes from r10 - depth are needed exactly.
    pub(super) fn exact_bytes(&self, frame: usize, depth: usize, size: usize) -> bool {
        depth > SLOT * TRACKED || self.exact.slots[frame] & touched(depth, size) != 0
    }

    pub(super) fn is_live(&self, frame: usize, reg: usize) -> bool {
        self.live.regs[frame] >> reg & 1 != 0
    }

    pub(super) fn is_exact(&self, frame: usize, reg: usize) -> bool {
        self.exact.regs[frame] >> reg & 1 != 0
    }

    fn read(&mut self, frame: usize, regs: u16, exact: bool) {
        self.live.regs[frame] |= regs;
        if exact {
            self.exact.regs[frame] |= regs;
        }
    }

    fn kill(&mut self, frame: usize, regs: u16) {
        self.live.regs[frame] &= !regs;
        self.exact.regs[frame] &= !regs;
    }

    /// A new frame: what an earlier one in its place held is nothing to it.
    fn clear(&mut self, frame: usize) {
        self.kill(frame, u16::MAX);
        self.live.slots[frame] = 0;
        self.exact.slots[frame] = 0;
    }
}

/// How a path ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Ending {
    /// Nothing comes after it.
    #[default]
    Done,
    /// It goes on as this finished kept state did.
    As(u32),
    /// It goes on as an open one does.
    Open,
    /// It goes on as an open round of a bounded construct does, whose number this is.
    Round(u32),
}

/// What a trail's entry says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Kind {
    /// The instruction at `at`. `exact`: its operands decided something.
    #[default]
    Insn,
    /// A subprogram's exit. `exact`: an early one, with a result that is none of its registers.
    Return,
    /// A callback's exit; the same.
    Round,
    /// A read of the slots `from .. to`, by the instruction of the next entry. `exact`: its value decided something.
    Read,
    /// A write of the slots `from .. to`, whole ones in `at`.
    Write,
    /// The instruction of the next entry, a comparison, bounded what is tied to an operand too: register `from`, or the
    /// slots `from - 16 .. to - 16`.
    Tied,
}

/// An entry of the trail. What an instruction reads and writes stands before it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Step {
    at: u32,
    frame: u8,
    kind: Kind,
    exact: bool,
    from: u8,
    to: u8,
}

/// A branch with one side walked: where the trail was then, and what that side demanded.
#[derive(Debug)]
struct Fork {
    at: usize,
    ancestors: usize,
    demand: Demand,
    /// The oldest open round that it rests on.
    rests: u32,
}

/// The trail of the current path, from its oldest open kept state.
#[derive(Debug, Default)]
pub(super) struct Trail {
    steps: Vec<Step>,
    forks: Vec<Fork>,
    /// The step that is being made; entered when it branches or keeps a state, or is over.
    now: Step,
    unentered: bool,
}

/// A place on the trail where a path branches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    at: usize,
    ancestors: usize,
    forks: usize,
}

/// The slots with a byte among the `size` bytes from r10 - depth.
fn touched(depth: usize, size: usize) -> u64 {
    range((depth - size) / SLOT, depth.div_ceil(SLOT))
}

/// Bits `from .. to`, of those that there are.
fn range(from: usize, to: usize) -> u64 {
    let below = |bit: usize| if bit >= TRACKED { u64::MAX } else { (1 << bit) - 1 };
    below(to) & !below(from)
}

/// The bounds of slots as an entry has them: those past the last are nobody's.
fn bound(slot: usize) -> u8 {
    slot.min(TRACKED) as u8
}

impl Trail {
    pub(super) fn clear(&mut self) {
        self.steps.clear();
        self.forks.clear();
        self.unentered = false;
    }

    pub(super) fn trim(&mut self, bytes: usize) {
        super::shrink(&mut self.steps, bytes);
        super::shrink(&mut self.forks, bytes);
    }

    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Takes back what was left since the mark: none of it has happened. The states that were open then.
    pub(super) fn rewind(&mut self, mark: &Mark) -> usize {
        self.steps.truncate(mark.at);
        self.forks.truncate(mark.forks);
        self.unentered = false;
        mark.ancestors
    }
}

impl Walk<'_> {
    /// A step begins at the program counter. Nothing is remembered before the first state is kept.
    #[inline]
    pub(super) fn trail_begin(&mut self) {
        if self.scratch.prune.open.is_empty() {
            return;
        }
        let frame = self.state.frames.len() as u8 - 1;
        let trail = &mut self.scratch.trail;
        trail.now = Step { at: self.pc.0, frame, ..Step::default() };
        trail.unentered = true;
    }

    /// Enters the step, if it is not yet.
    #[inline]
    pub(super) fn trail_enter(&mut self) {
        let trail = &mut self.scratch.trail;
        if trail.unentered {
            trail.unentered = false;
            trail.steps.push(trail.now);
        }
    }

    pub(super) fn trail_mark(&mut self) -> Mark {
        self.trail_enter();
        let trail = &self.scratch.trail;
        Mark { at: trail.steps.len(), ancestors: self.scratch.prune.open.len(), forks: trail.forks.len() }
    }

    /// The values of the step's operands decide what it does.
    pub(super) fn decides(&mut self) {
        self.scratch.trail.now.exact = true;
    }

    /// The step returns from a subprogram or a callback; `early`: with a result of its own.
    pub(super) fn trail_return(&mut self, callback: bool, early: bool) {
        let now = &mut self.scratch.trail.now;
        now.kind = if callback { Kind::Round } else { Kind::Return };
        now.exact = early;
    }

    fn effect(&mut self, step: Step) {
        if !self.scratch.prune.open.is_empty() {
            self.scratch.trail.steps.push(step);
        }
    }

    /// The path reads the `size` bytes from r10 - depth of a frame.
    pub(super) fn reads_stack(&mut self, frame: usize, depth: usize, size: usize) {
        self.reads(frame, depth, size, false);
    }

    /// And what they are decides something.
    pub(super) fn stack_decides(&mut self, frame: usize, depth: usize, size: usize) {
        self.reads(frame, depth, size, true);
    }

    fn reads(&mut self, frame: usize, depth: usize, size: usize, exact: bool) {
        if planted!(OtherFramesUnread) && frame + 1 != self.state.frames.len() {
            return;
        }
        let (from, to) = (bound((depth - size) / SLOT), bound(depth.div_ceil(SLOT)));
        self.effect(Step { at: 0, frame: frame as u8, kind: Kind::Read, exact, from, to });
    }

    /// The path writes them all: what was there is gone.
    pub(super) fn writes_stack(&mut self, frame: usize, depth: usize, size: usize) {
        self.writes(frame, depth, size, (depth - size).div_ceil(SLOT), depth / SLOT);
    }

    /// The path writes somewhere within them.
    pub(super) fn writes_within(&mut self, frame: usize, depth: usize, size: usize) {
        if planted!(SomeWriteEndsAll) {
            return self.writes_stack(frame, depth, size);
        }
        self.writes(frame, depth, size, 0, 0);
    }

    fn writes(&mut self, frame: usize, depth: usize, size: usize, from: usize, to: usize) {
        let at = u32::from(bound(from)) | u32::from(bound(to)) << 8;
        let (from, to) = (bound((depth - size) / SLOT), bound(depth.div_ceil(SLOT)));
        self.effect(Step { at, frame: frame as u8, kind: Kind::Write, exact: false, from, to });
    }

    /// A comparison of numbers that goes both ways: what is tied to its operands is bounded by it too.
    pub(super) fn compares(&mut self, dst: Reg, src: Option<Reg>) {
        if self.scratch.prune.open.is_empty() {
            return;
        }
        let top = self.state.frames.len() - 1;
        for r in [Some(dst), src].into_iter().flatten() {
            let id = self.state.reg(r).id;
            if id == 0 {
                continue;
            }
            if id < FIRST_FREE_ID {
                // The length of a region may be bounded.
                self.decides();
            }
            let steps = &mut self.scratch.trail.steps;
            let before = steps.len();
            for (k, frame) in self.state.frames.iter().enumerate() {
                let tied = Step { frame: k as u8, kind: Kind::Tied, ..Step::default() };
                for (i, v) in frame.regs.iter().enumerate() {
                    if v.id == id && v.is_scalar() && (k, i) != (top, r.index()) {
                        steps.push(Step { from: i as u8, ..tied });
                    }
                }
                for s in frame.spills.iter().filter(|s| s.value.id == id && s.value.is_scalar()) {
                    let (depth, size) = (usize::from(s.depth), usize::from(s.size));
                    let (from, to) = (bound((depth - size) / SLOT), bound(depth.div_ceil(SLOT)));
                    steps.push(Step { from: from + 16, to: to + 16, ..tied });
                }
            }
            if steps.len() - before > MAX_TIED {
                steps.truncate(before);
                self.decides();
            }
        }
    }

    /// The path has ended: reads the trail back to the branch that is walked next, and gives the kept states
    /// on the way what they are needed for.
    pub(super) fn trail_end(&mut self, ending: Ending) {
        self.trail_enter();
        let scratch = &mut *self.scratch;
        let (trail, prune) = (&mut scratch.trail, &mut scratch.prune);
        // Nothing is left to compare with these states.
        let Some(next) = scratch.pending.last() else { return };
        let mark = next.mark;
        if prune.open.is_empty() {
            return;
        }
        let mut demand = match ending {
            Ending::Done => Demand::default(),
            Ending::As(i) => prune.kept[i as usize].demand,
            Ending::Open | Ending::Round(_) => Demand::ALL,
        };
        let mut rests = match ending {
            Ending::Done | Ending::Open => u32::MAX,
            Ending::As(i) => prune.rests_on(prune.kept[i as usize].rests),
            Ending::Round(number) => number,
        };
        let mut reader = Reader { env: self.env, insns: self.insns, frame: 0, carries: false, operands: 0 };
        let mut read = |demand: &mut Demand, steps: &mut Vec<Step>, to: usize| {
            debug_assert!(to <= steps.len(), "the trail reaches back to every fork and kept state");
            for step in steps.drain(to..).rev() {
                reader.back(demand, step);
            }
        };
        loop {
            match trail.forks.last() {
                Some(fork) if trail.forks.len() > mark.forks && fork.ancestors >= prune.open.len() => {
                    debug_assert_eq!(fork.ancestors, prune.open.len(), "the open states are the path's ancestors");
                    read(&mut demand, &mut trail.steps, fork.at);
                    demand.join(&fork.demand);
                    rests = rests.min(prune.rests_on(fork.rests));
                    trail.forks.pop();
                }
                _ => {
                    if prune.open.len() <= mark.ancestors {
                        break;
                    }
                    let Some((i, _)) = prune.open.pop() else { break };
                    read(&mut demand, &mut trail.steps, prune.kept[i as usize].trail);
                    prune.close(i, &demand);
                    rests = prune.settle(i, rests);
                }
            }
        }
        debug_assert_eq!((prune.open.len(), trail.forks.len()), (mark.ancestors, mark.forks));
        if mark.ancestors == 0 {
            trail.clear();
        } else {
            read(&mut demand, &mut trail.steps, mark.at);
            trail.forks.push(Fork { at: mark.at, ancestors: mark.ancestors, demand, rests });
        }
    }
}

/// Reads a trail backwards.
struct Reader<'a> {
    env: &'a Env<'a>,
    insns: &'a [Insn],
    /// Of the instruction last read, whose reads and writes follow: its frame;
    frame: usize,
    /// whether what it loads is needed exactly;
    carries: bool,
    /// and the registers that flow into what it writes, or are compared.
    operands: u16,
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
    /// `d` after the step becomes what it is before it.
    fn back(&mut self, d: &mut Demand, step: Step) {
        let f = usize::from(step.frame);
        let slots = |lift: u8| range(usize::from(step.from - lift), usize::from(step.to - lift));
        match step.kind {
            Kind::Insn => self.insn(d, step, f),
            Kind::Return | Kind::Round => {
                let caller = f.saturating_sub(1);
                let (live, exact) = (d.live.regs[caller] & 1, d.exact.regs[caller] & 1);
                d.clear(f);
                if step.kind == Kind::Round {
                    // It decides whether there is another round, which gets its arguments from the caller's.
                    d.kill(caller, 1);
                    d.read(caller, ARGS, true);
                    d.read(f, 1, true);
                } else {
                    d.kill(caller, CLOBBERED);
                    d.live.regs[f] |= live;
                    d.exact.regs[f] |= exact;
                }
                if step.exact {
                    d.kill(f, 1);
                }
            }
            Kind::Read => {
                let slots = slots(0);
                // What an atomic operation writes flows from its operands, too.
                self.flow(d, d.exact.slots[f] & slots != 0);
                d.live.slots[f] |= slots;
                if step.exact || self.carries {
                    d.exact.slots[f] |= slots;
                }
            }
            Kind::Write => {
                self.flow(d, d.exact.slots[f] & slots(0) != 0);
                let whole = range((step.at & 0xff) as usize, (step.at >> 8) as usize);
                d.live.slots[f] &= !whole;
                d.exact.slots[f] &= !whole;
            }
            Kind::Tied if step.from < 16 => self.flow(d, d.is_exact(f, step.from.into())),
            Kind::Tied => self.flow(d, d.exact.slots[f] & slots(16) != 0),
        }
    }

    /// The instruction's operands flow into what is needed exactly, if `exact`.
    fn flow(&self, d: &mut Demand, exact: bool) {
        if exact {
            d.exact.regs[self.frame] |= self.operands;
        }
    }

    fn insn(&mut self, d: &mut Demand, step: Step, f: usize) {
        (self.frame, self.carries, self.operands) = (f, false, 0);
        let insn = &self.insns[step.at as usize];
        match *insn {
            Insn::Alu { dst, src, .. } => {
                let exact = step.exact || d.is_exact(f, dst.index());
                d.read(f, bit(dst) | src_bit(src), exact);
            }
            Insn::Mov { dst, src, .. } => self.moved(d, dst, src_bit(src)),
            Insn::MovSx { dst, src, .. } => self.moved(d, dst, bit(src)),
            Insn::Neg { dst, .. } | Insn::End { dst, .. } => d.live.regs[f] |= bit(dst),
            Insn::LoadImm64 { dst, .. } => d.kill(f, bit(dst)),
            Insn::SecondSlot | Insn::Jump { .. } | Insn::MayGoto { .. } => {}
            Insn::Load { dst, base, .. } | Insn::LoadAcquire { dst, base, .. } => {
                self.carries = d.is_exact(f, dst.index());
                d.kill(f, bit(dst));
                d.read(f, bit(base), true);
            }
            Insn::Store { base, src, .. } => {
                self.operands = src_bit(src);
                d.read(f, bit(base), true);
                d.live.regs[f] |= self.operands;
            }
            Insn::StoreRelease { base, src, .. } => {
                self.operands = bit(src);
                d.read(f, bit(base), true);
                d.live.regs[f] |= self.operands;
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
                self.carries = d.exact.regs[f] & result != 0;
                d.kill(f, result);
                d.read(f, bit(base), true);
                d.live.regs[f] |= self.operands;
            }
            Insn::LoadAbs { .. } => {
                d.kill(f, CLOBBERED);
                d.read(f, bit(Reg::R6), true);
            }
            Insn::LoadInd { src, .. } => {
                d.kill(f, CLOBBERED);
                d.read(f, bit(Reg::R6), true);
                d.live.regs[f] |= bit(src);
            }
            Insn::JumpIf { dst, src, .. } => {
                self.operands = bit(dst) | src_bit(src);
                let exact = step.exact || d.exact.regs[f] & self.operands != 0;
                d.read(f, self.operands, exact);
            }
            Insn::Call(callee) => self.call(d, callee, step, f),
            Insn::Exit => d.read(f, 1, self.env.context.returns.is_some()),
        }
    }

    fn moved(&self, d: &mut Demand, dst: Reg, src: u16) {
        let exact = d.is_exact(self.frame, dst.index());
        d.kill(self.frame, bit(dst));
        d.read(self.frame, src, exact);
    }

    fn call(&self, d: &mut Demand, callee: Callee, step: Step, f: usize) {
        let proto = match callee {
            Callee::Helper(id) => self.env.helpers.get(id),
            Callee::Host(i) => usize::try_from(i).ok().and_then(|i| self.env.host_functions.get(i)),
            // A global function, verified on its own.
            Callee::Subprog(_) if step.exact => None,
            Callee::Subprog(_) => {
                let callee = (f + 1).min(FRAMES - 1);
                let (live, exact) = (d.live.regs[callee] & ARGS, d.exact.regs[callee] & ARGS);
                d.clear(callee);
                d.kill(f, CLOBBERED);
                d.live.regs[f] |= live;
                d.exact.regs[f] |= exact;
                return;
            }
        };
        let need = helper_needs(proto);
        // Where a callback runs.
        if f + 1 < FRAMES {
            d.clear(f + 1);
        }
        d.kill(f, CLOBBERED);
        d.live.regs[f] |= need.live;
        d.exact.regs[f] |= need.exact;
    }
}

/// Forgets all slots but the live ones. Whether any value was among them.
pub(super) fn forget_slots(state: &mut State, live: &Places) -> bool {
    let mut any = false;
    for (frame, live) in state.frames.iter_mut().zip(live.slots) {
        if live == u64::MAX {
            continue;
        }
        let before = frame.spills.len();
        frame.spills.retain(|s| {
            let (depth, size) = (usize::from(s.depth), usize::from(s.size));
            depth > SLOT * TRACKED || touched(depth, size) & live != 0
        });
        any |= frame.spills.len() != before;
        for (slot, bytes) in frame.bytes.chunks_mut(SLOT).enumerate().take(TRACKED) {
            if live >> slot & 1 == 0 {
                bytes.fill(Byte::Uninit);
            }
        }
        // A spill over two slots lives if one of them does.
        for s in &frame.spills {
            frame.bytes[usize::from(s.depth) - usize::from(s.size)..usize::from(s.depth)].fill(Byte::Spill);
        }
    }
    any
}

/// Gives up the numbers of a frame's stack that are not needed exactly.
pub(super) fn loosen_slots(frame: &mut Frame, k: usize, demand: &Demand) {
    let bytes = &mut frame.bytes;
    frame.spills.retain(|s| {
        let (depth, size) = (usize::from(s.depth), usize::from(s.size));
        let loose = s.value.is_scalar() && !demand.exact_bytes(k, depth, size);
        if loose {
            bytes[depth - size..depth].fill(Byte::Misc);
        }
        !loose
    });
    for (slot, bytes) in bytes.chunks_mut(SLOT).enumerate().take(TRACKED) {
        if demand.exact.slots[k] >> slot & 1 == 0 {
            bytes.iter_mut().filter(|b| **b == Byte::Zero).for_each(|b| *b = Byte::Misc);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every access of the first slots, byte by byte.
    #[test]
    fn slots_of_an_access() {
        let whole = |depth: usize, size: usize| range((depth - size).div_ceil(SLOT), depth / SLOT);
        for depth in 1..=40 {
            for size in 1..=depth {
                let bytes: Vec<usize> = (depth - size..depth).collect();
                for slot in 0..6 {
                    let mine = |b: &&usize| **b / SLOT == slot;
                    let count = bytes.iter().filter(mine).count();
                    assert_eq!(touched(depth, size) >> slot & 1 == 1, count > 0, "{depth} {size} {slot}");
                    assert_eq!(whole(depth, size) >> slot & 1 == 1, count == SLOT, "{depth} {size} {slot}");
                }
            }
        }
        assert_eq!((touched(512, 8), whole(512, 8), touched(520, 8)), (1 << 63, 1 << 63, 0));
        assert_eq!((touched(1024, 1024), whole(1024, 1023)), (u64::MAX, u64::MAX - 1));
    }
}
