//! The log of an interpreted run's inputs: values that it loaded from memory that others share, addresses of maps, and
//! results and writes of host functions, programs that tail calls enter.
//!
//! Problem: a recorded run must be repeated exactly, in another process, though other threads may have changed maps
//! during the run. Approach: whatever does not follow from the context and the program is logged in the order in which
//! the run got it. A load is logged with the value that the program got, not with the content of a map, so other
//! threads do no harm. A function of the host is logged with its result and with the bytes of the run's own memory that
//! it changed, which are found by comparison, if its prototype lets it write there.
//!
//! Invariant: a run that begins with the same memory at the same addresses, and gets the values of the log in their
//! order, executes the same instructions with the same registers.

use crate::exec::listing::Listing;
use crate::exec::watch::{Place, Watch};
use crate::program::interpreted::Interpreted;
use crate::program::loaded::Loaded;
use bpf_interp::{Machine, Stop};
use bpf_isa::{Insn, InsnIdx, Reg};
use bpf_verifier::{ArgKind, DYNPTR, Effect, HelperProto, Ret};
use std::sync::Arc;

/// The kinds of events, each an event's first byte.
pub(crate) mod kind {
    /// The instruction (u32), the address (u64) and the value (u64) of a load.
    pub(crate) const LOAD: u8 = 1;
    /// The instruction (u32) and the value (u64) of a reference to a map or a map's value.
    pub(crate) const RESOLVE: u8 = 2;
    /// The call (u32), the writes before the call back, its function (u64) and its five arguments (u64).
    pub(crate) const CALL_BACK: u8 = 3;
    /// The call (u32), whether it has thrown (u8), r0 (u64), and the writes.
    pub(crate) const RETURN: u8 = 4;
    /// The call (u32), which ended the run, and the writes.
    pub(crate) const FAIL: u8 = 5;
    /// The tail call (u32), and the place (u32) of the entered program among the run's, from 1; 0 if none is entered.
    pub(crate) const TAIL_CALL: u8 = 6;
}

/// Programs that are kept when a log begins anew: a run enters fewer.
const KEPT_PROGRAMS: usize = 64;

/// A program that a tail call has entered.
#[derive(Clone, Debug)]
pub(crate) struct Entered {
    pub(crate) what: Arc<Interpreted>,
    pub(crate) listing: Listing,
    /// An effect of the program that is not recorded.
    unrecorded: Option<&'static str>,
}

/// Returns the first instruction of a program whose effect is not recorded, and what it is.
pub(crate) fn unrecorded(what: &Interpreted) -> Option<(InsnIdx, &'static str)> {
    if let Some((_, insns)) = &what.left.arena {
        return Some((insns.first().copied().unwrap_or(InsnIdx(0)), "an access to an arena"));
    }
    let packet = |insn: &Insn| matches!(insn, Insn::LoadAbs { .. } | Insn::LoadInd { .. });
    let at = what.program.insns().iter().position(packet)?;
    // Programs have fewer instructions than 2^32.
    Some((InsnIdx(crate::num::small(at)), "LD_ABS or LD_IND"))
}

/// Whether a function with this prototype may write the run's own memory: its stacks, the context, and the memory that
/// the context points to.
fn may_write(proto: &HelperProto) -> bool {
    let by_argument = |kind: &ArgKind| match kind {
        ArgKind::Mem(mem) | ArgKind::MemOfLength(mem) | ArgKind::Fixed { mem, .. } => mem.access.writes(),
        ArgKind::Ctx | ArgKind::CtxOrNull | ArgKind::ValueOut | ArgKind::SliceBuffer | ArgKind::Local(..) => true,
        // The call back may do anything.
        ArgKind::Callback(_) | ArgKind::CallbackCtx | ArgKind::Compare => true,
        ArgKind::Host { class, .. } => *class == DYNPTR,
        ArgKind::None
        | ArgKind::Scalar
        | ArgKind::Formatted
        | ArgKind::Values
        | ArgKind::Map(_)
        | ArgKind::Key
        | ArgKind::Value
        | ArgKind::ValueOrNull
        | ArgKind::Size { .. }
        | ArgKind::Length
        | ArgKind::Lock { .. }
        | ArgKind::Timer
        | ArgKind::Work
        | ArgKind::TimerMap
        | ArgKind::TimerCallback
        | ArgKind::RecordSize
        | ArgKind::Record
        | ArgKind::LocalType { .. }
        | ArgKind::Object(_)
        | ArgKind::Root(_)
        | ArgKind::Node(..)
        | ArgKind::Kptr
        | ArgKind::Exchanged
        | ArgKind::Unused
        | ArgKind::Peeked { .. }
        | ArgKind::Probed
        | ArgKind::ConstStr
        | ArgKind::Socket { .. } => false,
    };
    proto.effect == Effect::MovesPacket || proto.args.iter().any(by_argument)
}

/// The log of one run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    pub(crate) events: Vec<u8>,
    /// Upper bound on the bytes of `events`.
    limit: usize,
    /// Whether events are missing, because they did not fit.
    pub(crate) is_cut: bool,
    /// An effect of the run that is not recorded.
    pub(crate) lost: Option<&'static str>,
    /// Whether the run ended by a return of the program. The run may have failed even so: with a lock.
    pub(crate) returned: bool,
    /// The programs that tail calls have entered, in runs of this log and of former ones.
    pub(crate) entered: Vec<Entered>,
    /// Number of instructions that began.
    pub(crate) steps: u64,
    /// Addresses of the stacks of the frames, the outermost first.
    pub(crate) frames: Vec<u64>,
    /// The digest of the memory that the run was given, after the run: [`crate::exec::image::Image::digest_now`].
    pub(crate) after: u64,
    /// The instruction of the last step.
    at: InsnIdx,
    /// The register that gets the value which that instruction loads.
    loads: Option<Reg>,
    /// The address at which the last step left the run's own memory.
    foreign: Option<u64>,
    /// Address and length of each part of the run's own memory, besides its stacks, that functions may write.
    own: Vec<(u64, usize)>,
    /// The run's own memory, before a function of the host.
    before: Vec<u8>,
    /// A part of it after the function.
    now: Vec<u8>,
}

/// The register that gets a value from memory.
pub(crate) fn loaded(insn: &Insn) -> Option<Reg> {
    if let Insn::Load { dst, .. } | Insn::LoadAcquire { dst, .. } = *insn {
        return Some(dst);
    }
    if let Insn::Atomic { op, src, .. } = *insn { op.result(src) } else { None }
}

/// A hash that tells apart memory that differs by accident; it is not cryptographic.
pub(crate) fn digest<'b>(parts: impl Iterator<Item = &'b [u8]>) -> u64 {
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    parts.fold(MIX, |sum, bytes| {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let words = words.iter().chain([&last]).map(|word| u64::from_le_bytes(*word));
        words.fold(sum ^ bytes.len() as u64, |sum, word| (sum ^ word).wrapping_mul(MIX).rotate_left(29))
    })
}

impl Log {
    /// Begins the log of another run, of at most `limit` bytes. `own` are address and length of each part of the run's
    /// memory, besides its stacks, that functions of the host may write.
    pub(crate) fn begin(&mut self, limit: usize, own: impl Iterator<Item = (u64, usize)>) {
        self.events.clear();
        self.frames.clear();
        self.own.clear();
        self.own.extend(own);
        if self.entered.len() > KEPT_PROGRAMS {
            self.entered.clear();
        }
        (self.limit, self.is_cut, self.steps, self.after) = (limit, false, 0, 0);
        (self.lost, self.returned, self.at, self.loads, self.foreign) = (None, false, InsnIdx(0), None, None);
    }

    /// Adds an event of the last instruction.
    fn event(&mut self, kind: u8, add: impl FnOnce(&mut Log)) {
        let at = self.at;
        self.event_at(kind, at, add);
    }

    fn event_at(&mut self, kind: u8, at: InsnIdx, add: impl FnOnce(&mut Log)) {
        if self.is_cut {
            return;
        }
        let len = self.events.len();
        self.events.push(kind);
        self.u32(at.0);
        add(self);
        if self.events.len() > self.limit {
            self.events.truncate(len);
            self.is_cut = true;
        }
    }

    fn u32(&mut self, number: u32) {
        self.events.extend_from_slice(&number.to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.events.extend_from_slice(&number.to_le_bytes());
    }

    /// Copies the run's own memory.
    fn keep(&mut self, machine: &Machine<'_>) {
        self.before.clear();
        if self.is_cut {
            return;
        }
        for (at, len) in self.own.iter().copied().chain(machine.stacks()) {
            let from = self.before.len();
            self.before.resize(from + len, 0);
            // The memory is there: the run was given it.
            machine.peek(at, &mut self.before[from..]);
        }
    }

    /// Adds the changes since [`Log::keep`]: the number of writes, then address, length and bytes of each. Stops when
    /// the log is full.
    fn writes(&mut self, machine: &Machine<'_>, compares: bool) {
        let place = self.events.len();
        self.u32(0);
        if !compares {
            return;
        }
        let (mut count, mut from) = (0u32, 0);
        let (own, before) = (core::mem::take(&mut self.own), core::mem::take(&mut self.before));
        let mut now = core::mem::take(&mut self.now);
        'parts: for (start, len) in own.iter().copied().chain(machine.stacks()) {
            now.resize(len, 0);
            machine.peek(start, &mut now);
            let before = before.get(from..from + len).unwrap_or_default();
            from += len;
            if now == before {
                continue;
            }
            let mut at = 0;
            while let Some(same) = now[at..].iter().zip(&before[at.min(before.len())..]).position(|(a, b)| a != b) {
                at += same;
                let differ = now[at..].iter().zip(&before[at..]).take_while(|(a, b)| a != b).count();
                self.u64(start + at as u64);
                self.u32(crate::num::small(differ));
                self.events.extend_from_slice(&now[at..at + differ]);
                (at, count) = (at + differ, count + 1);
                if self.events.len() > self.limit {
                    break 'parts;
                }
            }
        }
        (self.own, self.before, self.now) = (own, before, now);
        self.events[place..place + 4].copy_from_slice(&count.to_le_bytes());
    }
}

impl Watch for Log {
    fn step(&mut self, place: &Place<'_>, regs: &[u64; 11], _: &Machine<'_>) {
        if let (Some(reg), Some(address)) = (self.loads, self.foreign) {
            self.event(kind::LOAD, |log| {
                log.u64(address);
                log.u64(regs[reg.index()]);
            });
        }
        self.foreign = None;
        self.at = place.at;
        self.loads = place.program.insns().get(place.at.index()).and_then(loaded);
        self.steps += 1;
    }

    fn foreign(&mut self, address: u64) {
        self.foreign = Some(address);
    }

    fn resolved(&mut self, value: Option<u64>) {
        let Some(value) = value else { return };
        self.event(kind::RESOLVE, |log| log.u64(value));
    }

    fn call_begins(&mut self, machine: &Machine<'_>, proto: &HelperProto) {
        if may_write(proto) {
            self.keep(machine);
        }
    }

    fn calls_back(&mut self, machine: &Machine<'_>, at: InsnIdx, callback: u64, args: [u64; 5]) {
        self.event_at(kind::CALL_BACK, at, |log| {
            log.writes(machine, true);
            log.u64(callback);
            args.into_iter().for_each(|arg| log.u64(arg));
        });
    }

    fn called_back(&mut self, machine: &Machine<'_>) {
        self.keep(machine);
    }

    fn call_ends(&mut self, machine: &Machine<'_>, at: InsnIdx, proto: &HelperProto, result: &Result<u64, Stop>) {
        let compares = may_write(proto);
        match *result {
            Ok(r0) => self.event_at(kind::RETURN, at, |log| {
                log.events.push((proto.ret == Ret::Thrown).into());
                log.u64(r0);
                log.writes(machine, compares);
            }),
            Err(_) => self.event_at(kind::FAIL, at, |log| log.writes(machine, compares)),
        }
    }

    fn tail_call(&mut self, at: InsnIdx, entered: Option<(&Loaded, &Arc<Interpreted>)>) {
        let place = entered.map_or(0, |(loaded, what)| {
            let known = self.entered.iter().position(|entered| Arc::ptr_eq(&entered.what, what));
            let place = known.unwrap_or_else(|| {
                let (what, listing) = (Arc::clone(what), Listing::of(loaded, what));
                let unrecorded = unrecorded(&what).map(|(_, what)| what);
                self.entered.push(Entered { what, listing, unrecorded });
                self.entered.len() - 1
            });
            self.lost = self.lost.or(self.entered[place].unrecorded);
            // A run enters fewer than 2^32 programs.
            crate::num::small(place + 1)
        });
        self.event_at(kind::TAIL_CALL, at, |log| log.u32(place));
    }

    fn ends(&mut self, machine: &Machine<'_>, returned: bool) {
        self.frames.extend(machine.frame_starts());
        self.returned = returned;
    }
}
