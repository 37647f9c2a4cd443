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
use bpf_isa::{Callee, Insn, InsnIdx, Reg};
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

/// Upper bound on the programs that the runs of one recorder have entered, and so on those of a recording besides the
/// recorded one.
pub(crate) const MAX_ENTERED: usize = 4095;

/// Programs that are kept before those of overwritten runs are looked for.
const FEW_PROGRAMS: usize = 32;

/// A program that a tail call has entered.
#[derive(Clone, Debug)]
pub(crate) struct Entered {
    pub(crate) what: Arc<Interpreted>,
    pub(crate) listing: Listing,
    /// An effect of the program that is not recorded.
    unrecorded: Option<&'static str>,
}

impl Entered {
    fn of(loaded: &Loaded, what: &Arc<Interpreted>) -> Entered {
        let unverified = loaded.interpreted().is_none() && !what.verified;
        let unrecorded = match unrecorded(what) {
            Some((_, what)) => Some(what),
            // The interpreter may refuse what the code does.
            None => unverified.then_some("machine code that was not verified"),
        };
        Entered { what: Arc::clone(what), listing: Listing::of(loaded, what), unrecorded }
    }

    /// Bytes of the instructions, of their calls, jumps and functions, and of the listing.
    fn bytes(&self) -> usize {
        let (program, Listing { name, insns, lines, functions, fields }) = (&self.what.program, &self.listing);
        let lines = lines.iter().map(|line| size_of_val(line) + line.file.len() + line.text.len());
        let functions = functions.iter().map(|function| size_of_val(function) + function.name.len());
        let fields = fields.iter().map(|field| size_of_val(field) + field.name.len());
        let listed = lines.sum::<usize>() + functions.sum::<usize>() + fields.sum::<usize>();
        let known = size_of_val(program.calls()) + size_of_val(program.flow()) + size_of_val(program.subprogs());
        name.len() + size_of_val(program.insns()) + size_of_val(&**insns) + known + listed
    }
}

/// Returns the first instruction of a program whose effect is not recorded, and what it is.
pub(crate) fn unrecorded(what: &Interpreted) -> Option<(InsnIdx, &'static str)> {
    if let Some((_, insns)) = &what.left.arena {
        return Some((insns.first().copied().unwrap_or(InsnIdx(0)), "an access to an arena"));
    }
    if !edges_fit(&what.program) {
        let through = |insn: &Insn| matches!(insn, Insn::Call(Callee::Reg(_)));
        let at = what.program.insns().iter().position(through).unwrap_or(0);
        return Some((InsnIdx(crate::num::small(at)), "a call through a register that may reach very many functions"));
    }
    let packet = |insn: &Insn| matches!(insn, Insn::LoadAbs { .. } | Insn::LoadInd { .. });
    let at = what.program.insns().iter().position(packet)?;
    // Programs have fewer instructions than 2^32.
    Some((InsnIdx(crate::num::small(at)), "LD_ABS or LD_IND"))
}

/// Whether the calls of a program, each with all that it may call, take no more than a few times the bytes of its
/// instructions. Calls through registers may have 65,536 in a program of 12 KiB, and a recording thousands of programs.
pub(crate) fn edges_fit(program: &bpf_isa::Program) -> bool {
    program.calls().len() <= 4 * program.insns().len() + 256
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
    /// Whether events are missing, because they did not fit.
    pub(crate) is_cut: bool,
    /// An effect of the run that is not recorded.
    pub(crate) lost: Option<&'static str>,
    /// Whether the run ended by a return of the program. The run may have failed even so: with a lock.
    pub(crate) returned: bool,
    /// The programs that tail calls have entered, each once: places in [`Logger::programs`].
    pub(crate) entered: Vec<usize>,
    /// Number of instructions that began.
    pub(crate) steps: u64,
    /// Addresses of the stacks of the frames, the outermost first.
    pub(crate) frames: Vec<u64>,
    /// The digest of the memory that the run was given, after the run: [`crate::exec::image::Image::digest_now`].
    pub(crate) after: u64,
}

/// The memory that the logs of one recorder share.
#[derive(Debug, Default)]
pub(crate) struct Logger {
    /// The programs that tail calls have entered.
    pub(crate) programs: Vec<Entered>,
    /// The number of programs before those of overwritten runs are looked for.
    enough: usize,
    /// Address and length of each part of the run's own memory, besides its stacks, that functions may write.
    own: Vec<(u64, usize)>,
    /// The run's own memory, before a function of the host.
    before: Vec<u8>,
    /// A part of it after the function.
    now: Vec<u8>,
}

/// One run that is logged.
#[derive(Debug)]
pub(crate) struct Logging<'l> {
    log: &'l mut Log,
    logger: &'l mut Logger,
    /// Upper bound on the bytes of the events.
    limit: usize,
    /// The instruction of the last step.
    at: InsnIdx,
    /// The register that gets the value which that instruction loads.
    loads: Option<Reg>,
    /// The address at which the last step left the run's own memory.
    foreign: Option<u64>,
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

impl Logger {
    /// Removes the programs that only overwritten runs have entered, if there are many. `logs` are those of all kept
    /// runs.
    pub(crate) fn prune<'a>(&mut self, logs: impl Iterator<Item = &'a mut Log>) {
        if self.programs.len() < self.enough.max(FEW_PROGRAMS) {
            return;
        }
        let mut places = vec![None; self.programs.len()];
        let mut kept = 0;
        for place in logs.flat_map(|log| &mut log.entered) {
            *place = *places[*place].get_or_insert_with(|| {
                kept += 1;
                kept - 1
            });
        }
        let mut programs: Vec<_> = core::mem::take(&mut self.programs).into_iter().zip(places).collect();
        programs.retain(|(_, place)| place.is_some());
        programs.sort_by_key(|(_, place)| *place);
        self.programs = programs.into_iter().map(|(program, _)| program).collect();
        self.enough = (2 * kept).min(MAX_ENTERED);
    }

    /// Bytes of the shared memory.
    pub(crate) fn bytes(&self) -> usize {
        self.before.capacity() + self.now.capacity() + self.programs.iter().map(Entered::bytes).sum::<usize>()
    }
}

impl Log {
    /// Bytes of its memory.
    pub(crate) fn memory(&self) -> usize {
        self.events.capacity()
            + size_of::<usize>() * self.entered.capacity()
            + size_of::<u64>() * self.frames.capacity()
    }

    /// Forgets the run of this log.
    pub(crate) fn clear(&mut self) {
        self.events.clear();
        self.frames.clear();
        self.entered.clear();
        (self.is_cut, self.steps, self.after, self.lost, self.returned) = (false, 0, 0, None, false);
    }
}

impl<'l> Logging<'l> {
    /// Begins the log of a run, of at most `limit` bytes. `own` are address and length of each part of the run's
    /// memory, besides its stacks, that functions of the host may write.
    pub(crate) fn begin(
        log: &'l mut Log,
        logger: &'l mut Logger,
        limit: usize,
        own: impl Iterator<Item = (u64, usize)>,
    ) -> Logging<'l> {
        log.clear();
        logger.own.clear();
        logger.own.extend(own);
        Logging { log, logger, limit, at: InsnIdx(0), loads: None, foreign: None }
    }

    /// Adds an event of the last instruction.
    fn event(&mut self, kind: u8, add: impl FnOnce(&mut Self)) {
        let at = self.at;
        self.event_at(kind, at, add);
    }

    fn event_at(&mut self, kind: u8, at: InsnIdx, add: impl FnOnce(&mut Self)) {
        if self.log.is_cut {
            return;
        }
        let len = self.log.events.len();
        self.log.events.push(kind);
        self.u32(at.0);
        add(self);
        if self.log.events.len() > self.limit {
            self.log.events.truncate(len);
            self.log.is_cut = true;
        }
    }

    fn u32(&mut self, number: u32) {
        self.log.events.extend_from_slice(&number.to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.log.events.extend_from_slice(&number.to_le_bytes());
    }

    /// Copies the run's own memory.
    fn keep(&mut self, machine: &Machine<'_>) {
        let Logger { own, before, .. } = &mut *self.logger;
        before.clear();
        if self.log.is_cut {
            return;
        }
        let parts = || own.iter().copied().chain(machine.stacks());
        before.reserve_exact(parts().map(|(_, len)| len).sum());
        for (at, len) in parts() {
            let from = before.len();
            before.resize(from + len, 0);
            // The memory is there: the run was given it.
            machine.peek(at, &mut before[from..]);
        }
    }

    /// Adds the changes since [`Logging::keep`]: the number of writes, then address, length and bytes of each. Stops
    /// when the log is full.
    fn writes(&mut self, machine: &Machine<'_>, compares: bool) {
        let place = self.log.events.len();
        self.u32(0);
        if !compares {
            return;
        }
        let (mut count, mut from) = (0u32, 0);
        let Logger { own, before, now, .. } = &mut *self.logger;
        let events = &mut self.log.events;
        'parts: for (start, len) in own.iter().copied().chain(machine.stacks()) {
            now.clear();
            now.reserve_exact(len);
            now.resize(len, 0);
            machine.peek(start, now);
            let before = before.get(from..from + len).unwrap_or_default();
            from += len;
            if now == before {
                continue;
            }
            let mut at = 0;
            while let Some(same) = now[at..].iter().zip(&before[at.min(before.len())..]).position(|(a, b)| a != b) {
                at += same;
                let differ = now[at..].iter().zip(&before[at..]).take_while(|(a, b)| a != b).count();
                events.extend_from_slice(&(start + at as u64).to_le_bytes());
                events.extend_from_slice(&crate::num::small(differ).to_le_bytes());
                // One byte above the limit says that the event does not fit.
                let room = (self.limit + 1).saturating_sub(events.len());
                events.extend_from_slice(&now[at..at + differ.min(room)]);
                (at, count) = (at + differ, count + 1);
                if events.len() > self.limit {
                    break 'parts;
                }
            }
        }
        events[place..place + 4].copy_from_slice(&count.to_le_bytes());
    }
}

impl Watch for Logging<'_> {
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
        self.log.steps += 1;
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
                log.log.events.push((proto.ret == Ret::Thrown).into());
                log.u64(r0);
                log.writes(machine, compares);
            }),
            Err(_) => self.event_at(kind::FAIL, at, |log| log.writes(machine, compares)),
        }
    }

    fn tail_call(&mut self, at: InsnIdx, entered: Option<(&Loaded, &Arc<Interpreted>)>) {
        let Logging { log, logger, .. } = self;
        let place = entered.map_or(0, |(loaded, what)| {
            let is = |entered: &Entered| Arc::ptr_eq(&entered.what, what);
            let known = logger.programs.iter().position(is);
            if known.is_none() && logger.programs.len() >= MAX_ENTERED {
                log.lost = log.lost.or(Some("the 4,096th program that the recorder has seen"));
                return 0;
            }
            let known = known.unwrap_or_else(|| {
                logger.programs.push(Entered::of(loaded, what));
                logger.programs.len() - 1
            });
            log.lost = log.lost.or(logger.programs[known].unrecorded);
            let place = log.entered.iter().position(|place| *place == known).unwrap_or_else(|| {
                log.entered.push(known);
                log.entered.len() - 1
            });
            // A run enters fewer than 2^32 programs.
            crate::num::small(place + 1)
        });
        self.event_at(kind::TAIL_CALL, at, |log| log.u32(place));
    }

    fn ends(&mut self, machine: &Machine<'_>, returned: bool) {
        self.log.frames.extend(machine.frame_starts());
        self.log.returned = returned;
    }
}
