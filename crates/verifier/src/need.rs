//! Liveness of registers, on which pruning rests.
//!
//! Problem: two paths that meet with different values cannot be merged by subsumption if the values matter, and most do
//! not: they are dead, or are only carried to a map or a result. The kernel finds the ones that matter by backtracking
//! each time a value is used. Here, one backward data-flow pass determines them in advance, for every instruction.
//!
//! Approach: three levels. *Dead*: no path reads it. *Carried*: it is read, but only flows into results, stores or
//! other carried values; that it is a number matters, which number does not. *Exact*: it may flow into a condition, an
//! address, a size, a function argument. At a join the walk forgets dead registers, and the values of carried ones.
//! Forgetting (rather than comparing loosely) keeps one invariant simple: the notes about an instruction cover every
//! concrete execution of it.
//!
//! Invariant: a carried number never decides whether a later check passes. One exception: a carried number may be added
//! to a pointer whose distance from another pointer is a result (`return p + len - q`), and pointers move by bounded
//! numbers only. This pass does not know which registers are pointers. Where such a step is refused, the program is
//! walked again, and the number that moves the pointer is needed exactly there ([`Needs::see_move`]).

use bpf_isa::{AtomicOp, Callee, Insn, InsnIdx, Program, Reg, Src};

use crate::env::{Env, GlobalArg, GlobalFunc};
use crate::helpers::{ArgKind, Effect, HelperProto, Ret};
use crate::kept::shrink;

const fn bit(r: Reg) -> u16 {
    1 << r as u16
}
const ARGS: u16 = 0b11_1110;
const CLOBBERED: u16 = 0b11_1111;

/// Registers needed at a point. `exact` is a subset of `live`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Need {
    pub live: u16,
    pub exact: u16,
}

impl Need {
    const ALL: Need = Need { live: 0x7ff, exact: 0x7ff };

    fn join(self, other: Need) -> Need {
        Need { live: self.live | other.live, exact: self.exact | other.exact }
    }
    fn kill(&mut self, set: u16) {
        self.live &= !set;
        self.exact &= !set;
    }
    fn exact(&mut self, set: u16) {
        self.live |= set;
        self.exact |= set;
    }
    /// `r` flows into a value with the need that `dst` had before it was killed.
    fn flow(&mut self, r: Reg, dst_exact: bool) {
        self.live |= bit(r);
        if dst_exact {
            self.exact |= bit(r);
        }
    }
    fn flow_src(&mut self, src: Src, dst_exact: bool) {
        if let Src::Reg(r) = src {
            self.flow(r, dst_exact);
        }
    }
    fn exact_src(&mut self, src: Src) {
        if let Src::Reg(r) = src {
            self.exact(bit(r));
        }
    }
    pub(crate) fn is_live(self, r: usize) -> bool {
        self.live >> r & 1 != 0
    }
    pub(crate) fn is_exact(self, r: usize) -> bool {
        self.exact >> r & 1 != 0
    }
}

/// The need before each instruction.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    at: Vec<Need>,
    /// Instructions of this program at which a pointer moves by a number that was taken to be carried only. Found when
    /// the walk refuses one; the number is exact from then on.
    moves: Vec<InsnIdx>,
    work: Work,
}

/// The most such instructions of a program.
const MAX_MOVES: usize = 8;

/// The work list after the first sweep, and the reverse references. Scratch memory.
#[derive(Debug, Default)]
struct Work {
    /// Instructions whose need may still grow.
    list: Vec<u32>,
    listed: Vec<bool>,
    /// The instructions that refer to instruction i: `sources[starts[i]..starts[i + 1]]`.
    starts: Vec<u32>,
    sources: Vec<u32>,
}

impl Needs {
    /// The need before the instruction; everything if the instruction is unknown.
    pub(crate) fn at(&self, i: InsnIdx) -> Need {
        self.at.get(i.index()).copied().unwrap_or(Need::ALL)
    }

    /// Resets before the first walk of a program.
    pub(crate) fn begin(&mut self) {
        self.moves.clear();
    }

    /// Notes a refused move of a pointer by the unbounded number in this register. Returns whether the number may be
    /// unbounded because it was taken to be carried only; it is then exact when needs are built again.
    pub(crate) fn see_move(&mut self, at: InsnIdx, by: Reg) -> bool {
        let new = !self.at(at).is_exact(by.index()) && self.moves.len() < MAX_MOVES && !self.moves.contains(&at);
        if new {
            self.moves.push(at);
        }
        new
    }

    /// Frees memory beyond so many bytes of each kind.
    pub(crate) fn trim(&mut self, bytes: usize) {
        shrink(&mut self.at, bytes);
        shrink(&mut self.work.list, bytes);
        shrink(&mut self.work.listed, bytes);
        shrink(&mut self.work.starts, bytes);
        shrink(&mut self.work.sources, bytes);
    }

    /// Computes the needs of `program`, in the memory of the last result.
    ///
    /// The whole program is one flow: a call needs what its subprogram needs of r1 to r5. One backward sweep covers
    /// everything except backward jumps and calls; a work list settles these. Needs only grow, by 22 bits at most, so
    /// the work is linear in the program, whatever its shape.
    pub(crate) fn build(&mut self, program: &Program, env: &Env<'_>) {
        let insns = program.insns();
        self.at.clear();
        self.at.resize(insns.len(), Need::default());
        let mut work = std::mem::take(&mut self.work);
        work.list.clear();
        let mut next = Need::default();
        for (i, insn) in insns.iter().enumerate().rev() {
            let here = InsnIdx(crate::num::small(i));
            next = self.before(here, insn, next, env, program);
            self.at[i] = next;
            if refers_to(here, insn).is_some_and(|target| target <= here) {
                work.list.push(crate::num::small(i));
            }
        }
        if !work.list.is_empty() {
            self.settle(program, env, &mut work);
        }
        self.work = work;
    }

    /// Processes the work list until no need changes.
    fn settle(&mut self, program: &Program, env: &Env<'_>, work: &mut Work) {
        let insns = program.insns();
        let Work { list, listed, starts, sources } = work;
        let references = || {
            let of = |(i, insn): (usize, &Insn)| {
                Some((refers_to(InsnIdx(crate::num::small(i)), insn)?, crate::num::small(i)))
            };
            insns.iter().enumerate().filter_map(of)
        };
        starts.clear();
        starts.resize(insns.len() + 1, 0);
        for (target, _) in references() {
            starts[target.index()] += 1;
        }
        let mut total = 0;
        for s in starts.iter_mut() {
            total += *s;
            *s = total;
        }
        sources.clear();
        sources.resize(total as usize, 0);
        // Filled from the back, so that each start ends up at its first source.
        for (target, source) in references() {
            let s = &mut starts[target.index()];
            *s -= 1;
            sources[*s as usize] = source;
        }
        listed.clear();
        listed.resize(insns.len(), false);
        for i in &*list {
            listed[*i as usize] = true;
        }
        while let Some(i) = list.pop() {
            let at = i as usize;
            listed[at] = false;
            let next = self.at.get(at + 1).copied().unwrap_or_default();
            let need = self.before(InsnIdx(i), &insns[at], next, env, program);
            if need == self.at[at] {
                continue;
            }
            self.at[at] = need;
            let readers = &sources[starts[at] as usize..starts[at + 1] as usize];
            for reader in readers.iter().copied().chain(i.checked_sub(1)) {
                if !std::mem::replace(&mut listed[reader as usize], true) {
                    list.push(reader);
                }
            }
        }
    }

    fn before(&self, at: InsnIdx, insn: &Insn, next: Need, env: &Env<'_>, program: &Program) -> Need {
        let target = |off: i32| at.jump(off).map_or(Need::ALL, |t| self.at(t));
        let mut n = next;
        match *insn {
            Insn::Alu { dst, src, .. } => {
                // An address that is not used later must still be moved by a bounded number.
                let exact = next.is_exact(dst.index()) || !next.is_live(dst.index()) || self.moves.contains(&at);
                n.flow(dst, exact);
                n.flow_src(src, exact);
            }
            Insn::Mov { dst, src, .. } => {
                let exact = next.is_exact(dst.index());
                n.kill(bit(dst));
                n.flow_src(src, exact);
            }
            // The address that the cast yields does not depend on which number it is.
            Insn::Cast { dst, src, .. } => {
                n.kill(bit(dst));
                n.flow(src, false);
            }
            Insn::MovSx { dst, src, .. } => {
                let exact = next.is_exact(dst.index());
                n.kill(bit(dst));
                n.flow(src, exact);
            }
            Insn::Neg { dst, .. } | Insn::End { dst, .. } => n.flow(dst, next.is_exact(dst.index())),
            Insn::LoadImm64 { dst, .. } => n.kill(bit(dst)),
            // The instruction is in the first slot.
            Insn::SecondSlot => {}
            Insn::Load { dst, base, .. } | Insn::LoadAcquire { dst, base, .. } => {
                n.kill(bit(dst));
                n.exact(bit(base));
            }
            // The stored value may be a spill that a later load uses as an address.
            Insn::Store { base, src, .. } => {
                n.exact(bit(base));
                n.flow_src(src, true);
            }
            Insn::StoreRelease { base, src, .. } => n.exact(bit(base) | bit(src)),
            Insn::Atomic { op, base, src, .. } => {
                n.exact(bit(base) | bit(src));
                if op == AtomicOp::CmpXchg {
                    n.exact(bit(Reg::R0));
                }
            }
            Insn::LoadAbs { .. } => {
                n.kill(CLOBBERED);
                n.exact(bit(Reg::R6));
            }
            Insn::LoadInd { src, .. } => {
                n.kill(CLOBBERED);
                n.exact(bit(Reg::R6) | bit(src));
            }
            Insn::Jump { off, .. } => n = target(off),
            // The target is unknown.
            Insn::JumpReg { .. } => n = Need::ALL,
            Insn::JumpIf { dst, src, off, .. } => {
                n = n.join(target(off.into()));
                n.exact(bit(dst));
                n.exact_src(src);
            }
            Insn::MayGoto { off } => n = n.join(target(off.into())),
            Insn::Call(callee) => {
                n.kill(CLOBBERED);
                match callee {
                    Callee::Helper(id) => n = n.join(helper_needs(env.helpers.get(id))),
                    Callee::Host(i) => {
                        let proto = usize::try_from(i).ok().and_then(|i| env.host_functions.get(i));
                        n = n.join(helper_needs(proto));
                    }
                    // The callee is unknown.
                    Callee::Reg(reg) => n.exact(ARGS | bit(reg)),
                    Callee::Subprog(off) => {
                        let entry = target(off);
                        n = n.join(match at.jump(off).and_then(|to| global_at(program, env, to)) {
                            // A call proves its arguments by the signature, whatever the function does with them.
                            Some(func) => global_needs(func),
                            None => Need { live: entry.live & ARGS, exact: entry.exact & ARGS },
                        });
                    }
                }
            }
            // The caller of a function may use its result in any way. The host accepts any number as the program's
            // result, unless the context restricts it.
            Insn::Exit => {
                n = Need::default();
                n.flow(Reg::R0, at.0 >= program.subprogs()[0].end || env.context.returns.is_some());
            }
        }
        n
    }
}

/// The target of a jump or of a subprogram call.
fn refers_to(at: InsnIdx, insn: &Insn) -> Option<InsnIdx> {
    match *insn {
        Insn::Call(Callee::Subprog(off)) => at.jump(off),
        _ => insn.jump_offset().and_then(|off| at.jump(off)),
    }
}

/// The global function that starts here.
fn global_at<'a>(program: &Program, env: &Env<'a>, to: InsnIdx) -> Option<&'a GlobalFunc> {
    if env.global_functions.is_empty() {
        return None;
    }
    env.global_functions.get(program.subprog_starting_at(to)?.index())?.as_ref()
}

/// The argument registers that a call of a global function needs. The function accepts any number, but memory only of
/// the stated size.
fn global_needs(func: &GlobalFunc) -> Need {
    let mut n = Need::default();
    for (arg, r) in func.args.iter().zip(Reg::ARGS) {
        n.flow(r, !matches!(arg, GlobalArg::Scalar));
    }
    n
}

/// The argument registers that a call needs, and those needed exactly.
pub(crate) fn helper_needs(proto: Option<&HelperProto>) -> Need {
    let mut n = Need::default();
    let Some(proto) = proto else {
        n.exact(ARGS);
        return n;
    };
    // Exact are: the number of iterations, which bounds a callback's index; a tail call's index, which may select a
    // direct jump; a thrown number, which may be the program's result; and a CPU number, since the first CPU always has
    // an instance.
    let exact = proto.effect == Effect::TailCall
        || proto.ret == Ret::Thrown
        || matches!(proto.ret, Ret::Instance { .. })
        || proto.args.iter().any(|a| matches!(a, ArgKind::Callback(_)));
    for (arg, r) in proto.args.iter().zip(Reg::ARGS) {
        match arg {
            ArgKind::None => {}
            ArgKind::Unused => n.flow(r, false),
            ArgKind::Scalar | ArgKind::Formatted => n.flow(r, exact),
            ArgKind::Ctx
            | ArgKind::CtxOrNull
            | ArgKind::Map(_)
            | ArgKind::Key
            | ArgKind::Value
            | ArgKind::ValueOrNull
            | ArgKind::ValueOut
            | ArgKind::Mem(_)
            | ArgKind::Values
            | ArgKind::Size { .. }
            | ArgKind::MemOfLength(_)
            | ArgKind::Length
            | ArgKind::Fixed { .. }
            | ArgKind::Lock { .. }
            | ArgKind::Timer
            | ArgKind::Work
            | ArgKind::TimerMap
            | ArgKind::TimerCallback
            | ArgKind::RecordSize
            | ArgKind::Record
            | ArgKind::Peeked { .. }
            | ArgKind::Probed
            | ArgKind::SliceBuffer
            | ArgKind::Local(..)
            | ArgKind::LocalType { .. }
            | ArgKind::Object(_)
            | ArgKind::Root(_)
            | ArgKind::Node(..)
            | ArgKind::Compare
            | ArgKind::Kptr
            | ArgKind::Exchanged
            | ArgKind::ConstStr
            | ArgKind::Socket { .. }
            | ArgKind::Callback(_)
            | ArgKind::CallbackCtx
            | ArgKind::Host { .. } => n.exact(bit(r)),
        }
    }
    n
}
