//! The interpreter as an engine: the same maps, helpers and host functions, every access checked.
//!
//! Helpers are the C functions that emitted code calls. Here their arguments come from an unverified program, so each
//! is checked against the helper's prototype before the call: maps must be the program's, memory must be the run's.

mod callbacks;
mod dynptrs;
pub(crate) mod given;

use crate::abi::limits::Checks;
use crate::abi::machine_stack::{NoRoom, Room};
use crate::abi::run::{Run, word};
use crate::abi::stop::OUT_OF_BOUNDS;
use crate::call::spent::{Renewed, renew};
use crate::context::Parts;
use crate::error::{HelperError, RunError};
use crate::exec::granted::Granted;
use crate::exec::interp::dynptrs::Dynptrs;
use crate::exec::watch::{Place, Watch};
use crate::program::bound::Bound;
use crate::program::interpreted::{Interpreted, Left};
use crate::program::loaded::Loaded;
use crate::program::map_ref::MapRef;
use crate::program::table::ProgTable;
use bpf_analysis::{AccessCheck, BoundsPlace, CheckRegion, HeaderPlaces};
use bpf_interp::{Caller, Env, HostMemory, Machine, Memory, Options, Step, Stop, StopKind};
use bpf_isa::{Imm64, Insn, InsnIdx, Program, Reg, Size, Src};
use bpf_jit_code::StopCode;
use bpf_maps::owned::{self, graph};
use bpf_maps::{MapDef, MapHeader, MapType};
use bpf_uapi::legacy_load::{LegacyBase, NO_HEADER};
use bpf_verifier::{
    Access, ArgKind, DYNPTR, Effect, Graph, HelperProto, Local, LocalUse, LockKind, MapTypes, MemArg, MemSet,
    ObjectFrom, Ret, Section, SocketPart, TASK,
};
use core::borrow::Borrow;
use core::sync::atomic::AtomicU8;
use std::sync::Arc;

/// The entry of a run.
#[derive(Clone, Copy)]
pub(crate) enum Start<'m> {
    /// The program, which is given its context.
    Program,
    /// A function that a timer calls with the map, a key of its size, and the value, of a map of this definition.
    Timer { callback: u64, args: [u64; 5], def: &'m MapDef },
}

/// Runs `program`, which is `what`, once.
///
/// # Safety
/// `run` is the run of this thread, which is inside its guard; `parts` are valid for it and agree with the program's
/// layout; the map and the value that `start` names live until the run ends.
pub(crate) unsafe fn run(
    program: &Loaded,
    what: &Arc<Interpreted>,
    run: *mut Run,
    parts: Parts,
    start: Start<'_>,
) -> Result<u64, RunError> {
    // SAFETY: the caller's contract.
    unsafe { run_watched(program, what, run, parts, start, ()) }
}

/// Runs `program` as [`run`] does, and tells `watch` of it.
///
/// # Safety
/// As for [`run`].
pub(crate) unsafe fn run_watched<W: Watch>(
    program: &Loaded,
    what: &Arc<Interpreted>,
    run: *mut Run,
    parts: Parts,
    start: Start<'_>,
    watch: W,
) -> Result<u64, RunError> {
    let mut memory = Memory::new();
    // SAFETY: the caller's contract.
    let r1 = unsafe { given::give(&mut memory, &what.places, parts) };
    memory.set_packet(parts.packet as u64, parts.packet_len as u64);

    #[cfg(feature = "oracle")]
    crate::oracle::begin(parts.memory as u64, parts.memory_len);

    let config = program.engine.config();
    // SAFETY: the run is this thread's.
    unsafe { program.count_run(run) };
    // The shims of host functions see by this that there is no emitted code to leave.
    // SAFETY: the caller's run is there.
    unsafe { (*run).ctx.exit_sp = 0 };
    // SAFETY: the caller's run is there for as long as the machine, and others change its word atomically.
    let interrupt = unsafe { word(run) };
    // SAFETY: this thread's run, which nobody else uses.
    let budget = unsafe { (*run).ctx.budget };
    let options = Options {
        stack_bytes: config.frame_bytes as usize,
        budget: program.checks.budget.then(|| budget.max(0).unsigned_abs()),
        interrupt: program.checks.interrupt.then_some(interrupt),
        #[cfg(feature = "oracle")]
        stack_fill: crate::oracle::stack_fill(),
        #[cfg(not(feature = "oracle"))]
        stack_fill: 0,
    };
    let mut granted = Granted::default();
    // SAFETY: the caller's contract: the parts agree with the layout.
    unsafe { given::sockets(program.layout, parts) }.for_each(|socket| granted.add_socket(socket, false));
    granted.keep();
    let (locks, stashed, room) = (Vec::new(), Default::default(), program.engine.0.runs.config.stack.room());
    let (entered, sections) = (Vec::new(), [0; 2]);
    let mut host = Host { run, entered, granted, locks, sections, callbacks: 0, stashed, room, watch };
    let (mut machine, code) = (Machine::new(memory, options), Running(program, what, 0));
    let result = match start {
        Start::Program => machine.run(&mut host, &code, [r1, parts.context_len as u64]),
        Start::Timer { callback, args, def } => {
            host.granted.add_key(args[1], def.key_size.into());
            host.granted.add_value(args[2], def.value_size.into(), def);
            machine.run_function(&mut host, &code, callback, args)
        }
    };
    host.watch.ends(&machine, result.is_ok());
    // SAFETY: the machine is done with the run.
    let run = unsafe { &mut *run };
    let kept = run.release();
    // A run that may wait was perhaps ended in a call that waited, and is then in the section of its end.
    let apart = !run.link.is_null();
    match result {
        Ok(_) if kept => {
            let what = "the program ended with a ring-buffer record that it had reserved, or with a lock".to_owned();
            Err(program.locate(RunError::Access { what, insn: None, origin: None }, 0, Vec::new(), apart))
        }
        Ok(r0) => Ok(r0),
        Err(stop) => {
            let entered = |hop: u32| match hop.checked_sub(1) {
                Some(hop) => host.entered.get(hop as usize).copied(),
                None => Some(program),
            };
            let within = entered(stop.program);
            let called = |&(hop, insn)| entered(hop).map(|program| program.called_at(Some(insn)));
            let callers = stop.callers.iter().filter_map(called).collect();
            let late = run.is_late();
            let error = run.stopped().unwrap_or_else(|| reason(stop, late));
            Err(match within {
                Some(within) => within.locate(error, 0, callers, apart),
                None => error,
            })
        }
    }
}

fn reason(stop: Stop, late: bool) -> RunError {
    let insn = Some(stop.at);
    match stop.kind {
        StopKind::Budget => RunError::Budget { insn, origin: None },
        StopKind::Interrupted if late => RunError::Deadline { insn, origin: None },
        StopKind::Interrupted => RunError::Interrupted { insn, origin: None },
        StopKind::Helper(error) => RunError::Host { source: HelperError::Failed(error), insn, origin: None },
        StopKind::Stack { needed, left } => RunError::Stack { needed, left },
        StopKind::NotAdmitted => RunError::Access { what: OUT_OF_BOUNDS.into(), insn, origin: None },
        kind => RunError::Access { what: kind.to_string(), insn, origin: None },
    }
}

/// A program the interpreter can hold on to, and its number in the run: 0 for the first, n for the one that the n-th
/// tail call has entered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running<'p>(&'p Loaded, &'p Arc<Interpreted>, usize);

impl Borrow<Program> for Running<'_> {
    fn borrow(&self) -> &Program {
        &self.1.program
    }
}

/// The host side of an interpreted run.
#[derive(Debug)]
struct Host<'p, W> {
    run: *mut Run,
    /// The programs that its tail calls entered, in order. They live as long as the outermost one's guard.
    entered: Vec<&'p Loaded>,
    granted: Granted<'p>,
    /// The locks that the program has, as it took them. Until it has released them, it may call few functions: neither
    /// a budget nor an interruption ends another run's wait for a spin lock.
    locks: Vec<(u64, LockKind)>,
    /// How many sections of each kind the program is in, and how many callbacks: there it may not sleep.
    sections: [u32; 2],
    callbacks: u32,
    /// The object, or 0, that a load from a map's value has found: others may have changed that since.
    stashed: [AtomicU8; 8],
    room: Room,
    watch: W,
}

/// The access to an iterator or a dynptr on the stack.
const OBJECT: MemArg = MemArg { access: Access::ReadWrite, align: 8, from: MemSet::STACK, ..MemArg::READ };

/// A data map that a program has given as an argument.
#[derive(Clone, Copy)]
struct MapArg<'p> {
    def: &'p MapDef,
    /// Whether the map is an array that the program refers to: its values live as long as the program.
    lasts: bool,
}

impl<'p, W: Watch> Host<'p, W> {
    /// The map of the calling program at this address.
    fn map(caller: &Caller<'_, '_, Running<'p>>, address: u64) -> Result<&'p MapRef, Stop> {
        let maps = &caller.code().0.bindings().maps;
        let found = maps.iter().find(|map| map.address() == address);
        found.ok_or_else(|| caller.fail(format!("{address:#x} is not a map of this program")))
    }

    /// A map argument: a map of the program, or one that it has found in a map of maps. The call must be one that works
    /// on it, and obey the program's rights to it.
    fn map_arg(
        &self,
        proto: &HelperProto,
        kinds: MapTypes,
        at: u64,
        caller: &Caller<'_, '_, Running<'p>>,
    ) -> Result<MapArg<'p>, Stop> {
        let inner = self.granted.inner(at);
        let def = match inner {
            Some(def) => def,
            None => match Self::map(caller, at)? {
                MapRef::Data(map) => map.def(),
                MapRef::Progs(table) => {
                    return Err(caller.fail(format!("{} does not work on map `{}`", proto.name, table.name())));
                }
            },
        };
        if !kinds.contains(def.map_type) {
            return Err(caller.fail(format!("{} does not work on map `{}`", proto.name, def.name)));
        }
        let (reads, writes) = proto.map_access(def.map_type);
        let (may_read, may_write) = def.program_rights();
        for (used, may, what) in [(reads, may_read, "read"), (writes, may_write, "write")] {
            if used && !may {
                return Err(caller.fail(format!("programs may not {what} map `{}`", def.name)));
            }
        }
        Ok(MapArg { def, lasts: inner.is_none() && def.map_type == MapType::Array })
    }

    /// Checks the arguments of a call against the prototype. Returns the data map among them.
    fn check(
        &mut self,
        bound: &Bound,
        args: [u64; 5],
        caller: &Caller<'_, '_, Running<'p>>,
    ) -> Result<Option<MapArg<'p>>, Stop> {
        let mut map: Option<MapArg<'p>> = None;
        // Memory arguments so far: address, length, written.
        let mut memory: [(u64, u64, bool); 5] = [(0, 0, false); 5];
        for (i, kind) in bound.proto.args.iter().enumerate() {
            let arg = args[i];
            let size = |of: fn(&MapDef) -> u32| match map {
                Some(map) => Ok(of(map.def) as usize),
                None => Err(caller.fail("a key or value without a map before it")),
            };
            match *kind {
                ArgKind::None | ArgKind::Scalar | ArgKind::Formatted | ArgKind::CallbackCtx => {}
                ArgKind::Size { .. } | ArgKind::Length => {}
                ArgKind::Callback(_) => {}
                // Functions dereference the argument.
                // SAFETY: the run is this thread's, and the machine does not touch it.
                ArgKind::Ctx | ArgKind::CtxOrNull if arg == unsafe { (*self.run).ctx.context } => {}
                ArgKind::CtxOrNull if arg == 0 => {}
                ArgKind::Ctx | ArgKind::CtxOrNull => return Err(caller.fail(format!("{arg:#x} is not the context"))),
                ArgKind::Map(kinds) => map = Some(self.map_arg(&bound.proto, kinds, arg, caller)?),
                ArgKind::Key => caller.check(self, arg, size(|m| m.key_size)?, false)?,
                ArgKind::Value => caller.check(self, arg, size(|m| m.value_size)?, false)?,
                ArgKind::ValueOrNull if arg == 0 => {}
                ArgKind::ValueOrNull => caller.check(self, arg, size(|m| m.value_size)?, false)?,
                ArgKind::ValueOut => caller.check(self, arg, size(|m| m.value_size)?, true)?,
                ArgKind::Values => {
                    let len = args.get(i + 1).copied().unwrap_or(0);
                    memory[i] = self.check_memory(arg, len, MemArg { null: len == 0, ..MemArg::READ }, caller)?;
                }
                ArgKind::Mem(mem) => {
                    let len = args.get(i + 1).copied().unwrap_or(0);
                    let half = matches!(bound.proto.args.get(i + 1), Some(ArgKind::Size { half: true, .. }));
                    let len = if half { len & u64::from(u32::MAX) } else { len };
                    let mem = MemArg { null: mem.null && len == 0, ..mem };
                    memory[i] = self.check_memory(arg, len, mem, caller)?;
                }
                ArgKind::MemOfLength(mem) => {
                    let length = bound.proto.args.iter().zip(args).find(|(kind, _)| **kind == ArgKind::Length);
                    memory[i] = self.check_memory(arg, length.map_or(0, |(_, length)| length), mem, caller)?;
                }
                ArgKind::Fixed { bytes, mem } => memory[i] = self.check_memory(arg, bytes.into(), mem, caller)?,
                ArgKind::Lock { resilient } => {
                    if !self.granted.is_lock(arg, resilient) {
                        return Err(caller.fail("not the lock of a map value, or not of this kind"));
                    }
                }
                // Only the verifier proves that the field is a timer of the engine, that the callback is a function of
                // the program with fitting arguments, who owns an object, and where one may be stored.
                ArgKind::Timer
                | ArgKind::Work
                | ArgKind::TimerMap
                | ArgKind::TimerCallback
                | ArgKind::LocalType { .. }
                | ArgKind::Object(_)
                | ArgKind::Root(_)
                | ArgKind::Node(..)
                | ArgKind::Compare
                | ArgKind::Kptr
                | ArgKind::Exchanged => Self::only_verified(bound, caller)?,
                ArgKind::RecordSize => {
                    // A ring answers any size, with null if no record is so long.
                    if bound.proto.ret != Ret::RecordOrNull && !(1..1 << 30).contains(&arg) {
                        return Err(caller.fail(format!("a record of {arg} bytes")));
                    }
                }
                ArgKind::Record => {
                    if !self.granted.take_record(arg) {
                        return Err(caller.fail(format!("{arg:#x} is no record that was reserved")));
                    }
                }
                ArgKind::Host { class: DYNPTR, null: false } if self.granted.is_dynptr(arg) => {}
                // This local is two numbers and has no pointer.
                ArgKind::Local(Local::Numbers, _) => {
                    memory[i] = self.check_memory(arg, Local::Numbers.size().into(), OBJECT, caller)?;
                }
                ArgKind::Local(Local::Dynptr(_), LocalUse::Read) if self.granted.is_dynptr(arg) => {}
                // The helper reads nothing unless the verifier has proven bytes readable at the call.
                ArgKind::Peeked { .. } | ArgKind::Probed => {}
                // The helper does not read this local.
                ArgKind::Local(kind @ Local::Interrupts { .. }, _) => {
                    memory[i] = self.check_memory(arg, kind.size().into(), OBJECT, caller)?;
                }
                // The local has a pointer. Of an iterator, only the verifier proves that the program has not
                // overwritten it: contained programs, of which that may be wrong, have none.
                ArgKind::Local(kind @ (Local::Dynptr(_) | Local::Bits | Local::Buffer), usage) => {
                    Self::only_verified(bound, caller)?;
                    memory[i] = self.check_memory(arg, kind.size().into(), OBJECT, caller)?;
                    if caller.code().0.is_sleepable() && kind == Local::Bits {
                        self.check_local(arg, usage, caller)?;
                    }
                }
                // Room where the dynptr is of a packet: `copy_dynptrs`.
                ArgKind::Unused | ArgKind::SliceBuffer => {}
                ArgKind::ConstStr => self.check_text(arg, caller)?,
                ArgKind::Socket { null: true, .. } if arg == 0 => {}
                ArgKind::Socket { release, .. } => {
                    if !self.granted.has_socket(arg, release) {
                        return Err(caller.fail(format!("{arg:#x} is no socket that this run has")));
                    }
                }
                // A number, which leads nowhere.
                ArgKind::Host { class: TASK, .. } => {}
                // Only the verifier can tell a live host object from any other number.
                ArgKind::Host { .. } => return Err(Self::unverified(bound, caller)),
            }
        }
        if bound.proto.disjoint && overlap(&memory) {
            return Err(caller.fail(format!("arguments of {} overlap, and one of them is written", bound.proto.name)));
        }
        Ok(map)
    }

    /// Checks that an iterator on the stack, which leads to other memory, was made since the run last slept.
    fn check_local(&mut self, at: u64, usage: LocalUse, caller: &Caller<'_, '_, Running<'p>>) -> Result<(), Stop> {
        match usage {
            LocalUse::Made => self.granted.add_local(at),
            LocalUse::Read | LocalUse::Used | LocalUse::Ended if self.granted.has_local(at) => {}
            LocalUse::Read | LocalUse::Used | LocalUse::Ended => {
                return Err(caller.fail(format!("the object at {at:#x} was not made since the run last slept")));
            }
        }
        Ok(())
    }

    /// Why the run may not sleep now. The verifier has proven that it may where it does.
    fn awake(&self) -> Option<&'static str> {
        let inside = self.sections != [0; 2];
        match (self.locks.is_empty(), inside, self.callbacks) {
            (true, false, 0) => None,
            (false, _, _) => Some("a run sleeps with a lock"),
            (true, true, _) => Some("a run sleeps in a section"),
            (true, false, _) => Some("a run sleeps in a callback"),
        }
    }

    /// Counts the sections of this kind that the program is in.
    fn section(&mut self, section: Section) -> &mut u32 {
        &mut self.sections[match section {
            Section::Rcu => 0,
            Section::Preempt => 1,
        }]
    }

    /// Refuses calls of unverified programs that only the verifier can check.
    fn only_verified(bound: &Bound, caller: &Caller<'_, '_, Running<'p>>) -> Result<(), Stop> {
        if caller.code().1.verified { Ok(()) } else { Err(Self::unverified(bound, caller)) }
    }

    fn unverified(bound: &Bound, caller: &Caller<'_, '_, Running<'p>>) -> Stop {
        caller.fail(format!("{} needs a verified program", bound.proto.name))
    }

    /// Checks a memory argument. Returns its address, its length, and whether the function writes it.
    fn check_memory(
        &mut self,
        at: u64,
        len: u64,
        mem: MemArg,
        caller: &Caller<'_, '_, Running<'p>>,
    ) -> Result<(u64, u64, bool), Stop> {
        if mem.null && at == 0 {
            return Ok((0, 0, false));
        }
        let writes = mem.access != Access::Read;
        // A function may keep a reference to memory that must not be the run's own, which lasts shorter.
        let others = !mem.from.contains(MemSet::STACK) && !mem.from.contains(MemSet::PACKET);
        if others && len != 0 && caller.check_own(at, crate::num::index(len), false).is_ok() {
            return Err(caller.fail(format!("memory at {at:#x} is the run's own")));
        }
        match crate::num::index(len) {
            // The address of no bytes may be anything, as for the verifier; a function reads and writes none.
            0 => {}
            // The function may make a reference to memory of `MemSet::OWNED`, so it must be the run's alone.
            len if MemSet::OWNED.contains(mem.from) => caller.check_own(at, len, writes)?,
            len => caller.check(self, at, len, writes)?,
        }
        if !at.is_multiple_of(mem.align.into()) {
            return Err(caller.fail(format!("memory at {at:#x} is not aligned to {} bytes", mem.align)));
        }
        Ok((at, len, writes))
    }

    /// Checks that bytes up to a zero byte are readable.
    fn check_text(&mut self, at: u64, caller: &Caller<'_, '_, Running<'p>>) -> Result<(), Stop> {
        for at in at.. {
            caller.check(self, at, 1, false)?;
            // SAFETY: the byte was checked to be memory of the run's; volatile, because others may write it.
            if unsafe { (at as *const u8).read_volatile() } == 0 {
                break;
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn watched_call(
        &mut self,
        bound: &Bound,
        args: [u64; 5],
        caller: &mut Caller<'_, '_, Running<'p>>,
    ) -> Result<u64, Stop> {
        self.watch.call_begins(caller.machine(), &bound.proto);
        let result = self.call(bound, args, caller);
        self.watch.call_ends(caller.machine(), caller.at(), &bound.proto, &result);
        result
    }

    fn call(&mut self, bound: &Bound, args: [u64; 5], caller: &mut Caller<'_, '_, Running<'p>>) -> Result<u64, Stop> {
        let map = self.check(bound, args, caller)?;
        let (mut given, copies) = (args, Dynptrs::default());
        self.copy_dynptrs(bound, &mut given, &copies, caller)?;
        let [r1, r2, r3, r4, r5] = given;
        if let Some(last) = self.locks.last() {
            match bound.proto.effect {
                Effect::Unlock(kind) if *last != (r1, kind) => {
                    return Err(caller.fail("the lock that was taken last is another one, or was taken otherwise"));
                }
                effect if !effect.is_fit_for_locked() => {
                    return Err(caller.fail(format!("{} is not allowed while a lock is held", bound.proto.name)));
                }
                _ => {}
            }
        } else if matches!(bound.proto.effect, Effect::Unlock(_)) {
            return Err(caller.fail(format!("{}: no lock is held", bound.proto.name)));
        }
        if let Some(why) = self.awake().filter(|_| bound.proto.effect == Effect::Sleeps) {
            return Err(caller.fail(why));
        }
        if bound.proto.args.contains(&ArgKind::Compare) {
            return self.add_to_tree(args, caller);
        }
        if let Some(kind) = bound.proto.callback() {
            return self.call_back(kind, args, map, caller);
        }
        // SAFETY: the run is this thread's, and the machine does not touch it.
        unsafe { (*self.run).ctx.host_env = bound.func.env_address() };
        // SAFETY: the arguments were checked against the prototype, the hidden argument is the run's, and its `exit_pc`
        // is 0, so that the shim returns after an error.
        let r0 = unsafe { (bound.func.shim)(r1, r2, r3, r4, r5, self.run.cast()) };
        self.stopped(caller)?;
        self.keep_dynptrs(bound, args, &copies, caller);
        if bound.proto.ret == Ret::Thrown {
            caller.throw();
            // Emitted code asks by it.
            // SAFETY: the run is this thread's, and the machine does not touch it.
            unsafe { (*self.run).ctx.thrown = 0 };
            return Ok(r0);
        }
        match bound.proto.effect {
            // The prototypes have the lock in r1.
            Effect::Lock(kind) if r0 == 0 => self.locks.push((r1, kind)),
            Effect::Lock(_) => {}
            Effect::Unlock(_) => drop(self.locks.pop()),
            Effect::MovesPacket => {
                // SAFETY: the run is this thread's; the helper has said there where the packet is now.
                let run = unsafe { &(*self.run).ctx };
                caller.set_packet(run.packet, run.packet_len);
            }
            Effect::Sleeps => self.granted.sleep(),
            Effect::Enter(section) => *self.section(section) = self.section(section).saturating_add(1),
            Effect::Leave(section) => *self.section(section) = self.section(section).saturating_sub(1),
            Effect::None | Effect::UnderLock | Effect::TailCall => {}
        }
        match (bound.proto.ret, map) {
            (_, _) if r0 == 0 => {}
            (Ret::MapValueOrNull, Some(map)) if map.def.map_type.is_map_of_maps() => {
                // SAFETY: the look-up has just found the map, which lives until a grace period after the run, whose
                // guard is held.
                let def = unsafe { bpf_maps::program::def(r0 as *const MapHeader) };
                self.granted.add_inner(r0, def);
            }
            (Ret::MapValueOrNull, Some(map)) if MapTypes::SOCKETS.contains(map.def.map_type) => {
                self.granted.add_socket(r0, true);
            }
            (Ret::MapValueOrNull, Some(map)) if map.lasts => {
                self.granted.add_lasting_value(r0, map.def.value_size.into(), map.def);
            }
            (Ret::MapValueOrNull, Some(map)) => self.granted.add_value(r0, map.def.value_size.into(), map.def),
            (Ret::RecordOrNull, _) => self.granted.add_record(r0, r2),
            (Ret::SliceOrNull { writable }, _) => {
                self.granted.add_slice(r0, slice_len(bound, args), writable, copies.word());
            }
            (Ret::SocketOrNull, _) => self.granted.add_socket(r0, true),
            (Ret::OfSocketOrNull(SocketPart::Itself), _) => {}
            (Ret::OfSocketOrNull(SocketPart::Other), _) => self.granted.add_socket(r0, false),
            (Ret::OfSocketOrNull(SocketPart::Fields(bytes)), _) => self.granted.add_returned(r0, bytes.into(), false),
            (Ret::ObjectOrNull(_), _) => self.grant_object(&bound.proto, r0),
            (Ret::Instance { .. }, _) => {
                // SAFETY: the program was verified to pass an object, whose memory the run's guard keeps.
                let size = unsafe { owned::size(args[0]) };
                self.granted.add_returned(r0, size.into(), true);
            }
            (Ret::MemOrNull { bytes, writable }, _) => self.granted.add_returned(r0, bytes.into(), writable),
            (_, _) => {}
        }
        Ok(r0)
    }

    /// The value of a reference of the program's.
    fn resolved(&mut self, code: &Running<'p>, imm: Imm64) -> Option<u64> {
        let bindings = code.0.bindings();
        match imm {
            Imm64::Map(map) | Imm64::MapIdx(map) => Some(bindings.map(map)?.address()),
            Imm64::MapValue { map, off } | Imm64::MapIdxValue { map, off } => match bindings.map(map)? {
                MapRef::Data(map) if map.map_type() == MapType::Arena => {
                    // The user address of the arena's memory, which is translated before an access.
                    map.def().arena().map(|shape| shape.user + u64::from(off))
                }
                MapRef::Data(map) => {
                    let header = map.header();
                    let base = header.base as u64;
                    let stride = u64::from(header.stride);
                    if base != 0 {
                        self.granted.add_array(base, stride * u64::from(header.max_entries), stride, map.def());
                    }
                    Some(base + u64::from(off))
                }
                MapRef::Progs(_) => None,
            },
            Imm64::Const(value) => Some(value),
            Imm64::Var(_) | Imm64::Func(_) => None,
        }
    }

    /// Handles a load of the pointer to an object that is stashed in a map's value. The object is granted before the
    /// load, so the loaded pointer must be compared with it.
    fn load_stashed(&mut self, field: u64) -> HostMemory<'_> {
        // SAFETY: of a value that the run was given, where its map's definition says that one is.
        let object = unsafe { owned::stashed(field) };
        if object != 0 {
            // SAFETY: an object that the field owned a moment ago: the run's guard keeps its memory to the end.
            unsafe { self.grant(object) };
        }
        self.stashed = object.to_ne_bytes().map(AtomicU8::new);
        HostMemory::instead(&self.stashed)
    }

    /// The program has got an object, or the node of one, from a call of this function.
    fn grant_object(&mut self, proto: &HelperProto, at: u64) {
        let object = match (proto.ret, proto.args[0]) {
            // SAFETY: the function has returned the node of an object in a list.
            (Ret::ObjectOrNull(ObjectFrom::Taken | ObjectFrom::Seen), ArgKind::Root(Graph::List)) => unsafe {
                graph::of_list_node(at)
            },
            // SAFETY: the function has returned the node of an object in a tree.
            (Ret::ObjectOrNull(ObjectFrom::Taken | ObjectFrom::Seen), _) => unsafe { graph::of_tree_node(at) },
            (_, _) => at,
        };
        // SAFETY: an object that the run owns or has borrowed; the run's guard keeps its memory to the end.
        unsafe { self.grant(object) };
    }

    /// The program may use the object, and take its lock.
    ///
    /// # Safety
    /// `object` must be an object whose memory stays to the run's end.
    unsafe fn grant(&mut self, object: u64) {
        // SAFETY: the contract.
        if unsafe { owned::is_per_cpu(object) } {
            return;
        }
        // SAFETY: the contract: the object's memory stays.
        let size = unsafe { owned::size(object) };
        // SAFETY: the contract: the object's memory stays.
        let lock = unsafe { owned::lock(object) };
        self.granted.add_object(object, size.into(), lock);
    }

    /// The first address and the length of a context region, as they are now.
    fn bounds(&self, place: BoundsPlace) -> Option<(u64, u64)> {
        // SAFETY: the run is this thread's, and the machine does not touch it.
        let run = unsafe { &*self.run };
        // SAFETY: the place belongs to the layout that the program was verified against, and the run's context has that
        // layout; no helper that writes to the context is running.
        unsafe { run.bounds(place) }
    }

    /// The program in a slot of a prog array, which a tail call enters; `None` if the slot is not set.
    fn target(
        &mut self,
        table: &ProgTable,
        index: u32,
        caller: &mut Caller<'_, '_, Running<'p>>,
    ) -> Result<Option<Running<'p>>, Stop> {
        let Some(at) = table.program_at(index) else { return Ok(None) };
        let at: *const Loaded = core::ptr::with_exposed_provenance(crate::num::index(at));
        // SAFETY: the address is that of a `Loaded` in the slot. A program taken out of a slot is dropped after a grace
        // period, and the guard of this run was there before: it lives as long as the outermost program's borrow, `'p`,
        // as far as this run is concerned.
        let program: &'p Loaded = unsafe { &*at };
        let Some(what) = program.instructions() else {
            let name = &*program.name;
            let why = format!("a tail call to `{name}`, which does not keep its instructions: `Loader::recordable`");
            return Err(caller.fail(why));
        };
        // The run's remaining budget, from the same field as emitted code reads.
        // SAFETY: the run is this thread's, and the machine does not touch it.
        let budget = unsafe { (*self.run).ctx.budget }.max(0).unsigned_abs();
        // SAFETY: the run is there for as long as the machine, and others change its word atomically.
        let interrupt = unsafe { word(self.run) };
        // Programs that yield make no tail calls.
        let Checks { budget: counts, interrupt: looks, yields: _ } = program.checks;
        caller.allow(counts.then_some(budget), looks.then_some(interrupt));
        // SAFETY: the run is this thread's, and the machine does not touch it.
        unsafe { program.count_run(self.run) };
        self.entered.push(program);
        Ok(Some(Running(program, what, self.entered.len())))
    }

    /// Whether the host function just called ended the run; the run keeps the reason.
    fn stopped(&self, caller: &Caller<'_, '_, Running<'p>>) -> Result<(), Stop> {
        // SAFETY: the run is this thread's.
        let run = unsafe { &mut *self.run };
        if run.ctx.stop_code == 0 {
            return Ok(());
        }
        run.ctx.stop_insn = caller.at().0;
        Err(caller.stop(StopKind::Interrupted))
    }
}

/// How long the slice of a dynptr is that a call returns.
fn slice_len(bound: &Bound, args: [u64; 5]) -> u64 {
    let size = bound.proto.args.iter().position(|arg| *arg == ArgKind::RecordSize);
    size.map_or(0, |i| args[i])
}

/// Whether memory that is written overlaps other memory among these ranges, which lie in the run's memory and so do not
/// wrap.
fn overlap(memory: &[(u64, u64, bool)]) -> bool {
    memory.iter().enumerate().any(|(i, a)| {
        memory[i + 1..].iter().any(|b| (a.2 || b.2) && a.1 != 0 && b.1 != 0 && a.0 < b.0 + b.1 && b.0 < a.0 + a.1)
    })
}

impl<'p, W: Watch> Env for Host<'p, W> {
    type Code = Running<'p>;

    fn header(&mut self, code: &Running<'p>, base: LegacyBase) -> Option<i64> {
        let place = match (base, code.0.layout.legacy_loads?) {
            (LegacyBase::Packet, _) | (LegacyBase::Link, HeaderPlaces::LinkFirst) => return Some(0),
            (LegacyBase::Network, HeaderPlaces::LinkFirst) => return None,
            (LegacyBase::Link, HeaderPlaces::Context { link, .. }) => link,
            (LegacyBase::Network, HeaderPlaces::Context { network, .. }) => network,
        };
        // SAFETY: the run is this thread's, and the machine does not touch it.
        let context = unsafe { (*self.run).ctx.context } as *const u8;
        // SAFETY: the layout says that the context has four bytes there, and the context that the run was given agrees
        // with it.
        let position = unsafe { context.add(place as usize) }.cast::<i32>();
        // SAFETY: these four bytes; the helpers that write to them are not running.
        let position = unsafe { position.read_unaligned() };
        (position != NO_HEADER).then_some(position.into())
    }

    fn spent(&mut self, head: Option<InsnIdx>, code: &Running<'p>) -> Result<u64, StopKind> {
        let Running(program, what, _) = code;
        if !program.checks.yields {
            return Err(StopKind::Budget);
        }
        let may = head.is_some_and(|head| what.left.may_yield(head));
        if let Some(why) = self.awake().filter(|_| may) {
            return Err(StopKind::Helper(why.into()));
        }
        // SAFETY: the run is this thread's, at an instruction.
        match unsafe { renew(self.run, may) } {
            Renewed::GoesOn => {}
            Renewed::Yielded => self.granted.sleep(),
            Renewed::Stops => {
                // SAFETY: the run is this thread's. The machine makes the error, which names the instruction.
                let code = core::mem::take(unsafe { &mut (*self.run).ctx.stop_code });
                let spent = code == StopCode::Budget as u32;
                return Err(if spent { StopKind::Budget } else { StopKind::Interrupted });
            }
            Renewed::GivenUp => return Err(StopKind::Interrupted),
        }
        // SAFETY: the run is this thread's. One tick more than emitted code, which has paid for this one.
        Ok(unsafe { (*self.run).ctx.budget }.max(0).unsigned_abs() + 1)
    }

    #[inline(always)]
    fn enters(&mut self, _: &Machine<'_>) -> Result<(), StopKind> {
        self.room.check().map_err(|NoRoom { needed, left }| StopKind::Stack { needed, left })
    }

    fn helper(&mut self, id: u32, args: [u64; 5], caller: &mut Caller<'_, '_, Running<'p>>) -> Result<u64, Stop> {
        match caller.code().0.bindings().helper(id) {
            Some(bound) => self.watched_call(bound, args, caller),
            None => Err(caller.stop(StopKind::UnknownHelper(id))),
        }
    }

    fn host_function(
        &mut self,
        index: i32,
        args: [u64; 5],
        caller: &mut Caller<'_, '_, Running<'p>>,
    ) -> Result<u64, Stop> {
        match caller.code().0.bindings().host(index) {
            Some(bound) => self.watched_call(bound, args, caller),
            None => Err(caller.fail("a weak host function that does not exist was called")),
        }
    }

    fn tail_call(
        &mut self,
        array: u64,
        index: u32,
        caller: &mut Caller<'_, '_, Running<'p>>,
    ) -> Result<Option<Running<'p>>, Stop> {
        if !self.locks.is_empty() {
            return Err(caller.fail("a tail call is not allowed while a lock is held"));
        }
        match Self::map(caller, array)? {
            MapRef::Progs(table) => {
                let entered = self.target(table, index, caller)?;
                self.watch.tail_call(caller.at(), entered.map(|Running(program, what, _)| (program, what)));
                Ok(entered)
            }
            map @ MapRef::Data(_) => Err(caller.fail(format!("map `{}` is not a prog array", map.name()))),
        }
    }

    #[cfg(feature = "oracle")]
    fn zeroed(&self, code: &Running<'p>, start: bpf_isa::InsnIdx) -> Option<(usize, usize)> {
        let Running(_, what, _) = code;
        let z = what.left.zeroed.iter().find(|z| what.program.subprogs()[z.subprog.index()].start == start.0)?;
        Some((z.depth as usize, z.bytes as usize))
    }

    #[inline(always)]
    fn observe(&mut self, step: &Step<'_, Running<'p>>, machine: &Machine<'_>) {
        step.code.1.count(step.at);
        let Running(program, what, number) = step.code;
        self.watch.step(
            &Place { at: step.at, program: &what.program, number: *number, name: &program.name },
            step.regs,
            machine,
        );
        #[cfg(feature = "oracle")]
        {
            let Running(loaded, what, _) = step.code;
            // SAFETY: the run is this thread's, and the machine does not touch it.
            let context = unsafe { (*self.run).ctx.context } as *const u8;
            let packet = || crate::oracle::window(loaded.layout, context);
            crate::oracle::step(step.at, step.regs, &what.program.insns()[step.at.index()], packet);
        }
    }

    /// The checks that the verifier left to run time.
    fn admits(&mut self, step: &Step<'_, Running<'p>>) -> bool {
        if !self.watch.goes_on() {
            return false;
        }
        let Left { accesses, regions, .. } = &step.code.1.left;
        if accesses.is_empty() {
            return true;
        }
        let Ok(i) = accesses.binary_search_by_key(&step.at, |c| c.insn) else { return true };
        let bounds = match accesses[i].region {
            CheckRegion::Packet(region) => regions.get(usize::from(region)).and_then(|r| self.bounds(r.place)),
            CheckRegion::MapValue { map, size } => match step.code.0.bindings().map(map as i32) {
                Some(MapRef::Data(map)) => Some((map.header().base as u64, size.into())),
                Some(MapRef::Progs(_)) | None => None,
            },
        };
        let Some((start, len)) = bounds else { return false };
        let reg = |r: Reg| step.regs[r.index()];
        let inside = |size: Size, base: Reg, off: i16| {
            let at = reg(base).wrapping_add(off as u64).wrapping_sub(start);
            at <= len && u64::from(size.bytes()) <= len - at
        };
        let near = |r: Reg| {
            let distance = reg(r).wrapping_sub(start).wrapping_add(AccessCheck::BEFORE);
            distance < AccessCheck::BEFORE + AccessCheck::NEAR
        };
        let insn = &step.code.1.program.insns()[step.at.index()];
        if let Some(access) = insn.memory_access() {
            return inside(access.size, access.base, access.off);
        }
        // The verifier leaves nothing else to be checked.
        let Insn::JumpIf { dst, src, .. } = *insn else { return false };
        let compared_with_near = match src {
            Src::Reg(src) => near(src),
            Src::Imm(_) => true,
        };
        near(dst) && compared_with_near
    }

    fn resolve(&mut self, code: &Running<'p>, imm: Imm64) -> Option<u64> {
        let value = self.resolved(code, imm);
        self.watch.resolved(value);
        value
    }

    /// The address of an access. An access to the arena is masked as in emitted code, so that it is inside for any
    /// base.
    fn address(&mut self, step: &Step<'_, Running<'p>>, base: u64, off: i16) -> u64 {
        let sum = base.wrapping_add(off as u64);
        let Some((arena, insns)) = &step.code.1.left.arena else { return sum };
        if insns.binary_search(&step.at).is_err() {
            return sum;
        }
        // No memory is there: the access is refused.
        let Some(MapRef::Data(map)) = step.code.0.bindings().map(arena.map as i32) else { return 0 };
        let window = map.header().base as u64;
        let guard = bpf_analysis::ArenaFact::GUARD;
        self.granted.add_array(window - guard, arena.window + 2 * guard, 1, map.def());
        (window + (base & (arena.window - 1))).wrapping_add(off as u64)
    }

    fn exception(&self, code: &Running<'p>) -> Option<bpf_isa::InsnIdx> {
        code.1.left.exception
    }

    fn user_half(&self, code: &Running<'p>) -> u64 {
        code.1.left.arena.as_ref().map_or(0, |(arena, _)| arena.user >> 32 << 32)
    }

    fn region(&mut self, addr: u64, len: u64, write: bool) -> Option<HostMemory<'_>> {
        self.watch.foreign(addr);
        if len == 8 && !write && self.granted.is_kptr(addr) {
            return Some(self.load_stashed(addr));
        }
        self.granted.covers(addr, len, write).then(|| {
            // SAFETY: the bytes belong to a value of a live map or to a record, which stay mapped for the run and are
            // only accessed by atomics, or to a key, which the helper keeps; the maps crate hands out
            // addresses with exposed provenance.
            unsafe { HostMemory::vouch() }
        })
    }
}
