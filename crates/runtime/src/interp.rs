//! The interpreter as an engine: the same maps, helpers and host functions, every access checked.
//!
//! Helpers are the C functions that emitted code calls. Here their arguments come from a program nobody has verified, so each is
//! checked against the helper's prototype before the call: maps must be the program's, memory must be the run's.

use crate::context::Parts;
use crate::error::{HelperError, RunError};
use crate::helpers;
use crate::loaded::{Bound, Checks, Loaded};
use crate::map_set::MapRef;
use crate::run::{OUT_OF_BOUNDS, Run};
use bpf_analysis::{AccessCheck, BoundsPlace, CheckRegion};
use bpf_interp::{Caller, Env, HostMemory, Machine, Memory, Options, Step, Stop, StopKind};
use bpf_isa::{Imm64, Insn, Program, Reg, Size, Src};
use bpf_maps::{Map, MapType};
use bpf_verifier::{Access, ArgKind};
use core::borrow::Borrow;
use core::sync::atomic::AtomicBool;

/// Runs `program` once.
///
/// # Safety
/// `run` is the run of this thread, which is inside its guard; `parts` are valid for it and agree with the program's layout.
pub(crate) unsafe fn run(program: &Loaded, run: *mut Run, parts: Parts) -> Result<u64, RunError> {
    let mut memory = Memory::new();
    // SAFETY: the caller vouches for the parts, which were borrowed mutably for the run.
    let context = unsafe { slice(parts.context, parts.context_len) };
    let writable = program.layout.raw || program.layout.fields.iter().any(|f| f.access.writes());
    let r1 = if writable { memory.add_writable(context) } else { memory.add_read_only(context) };
    if parts.packet != parts.context {
        // SAFETY: as above; a packet that is not the context is other memory.
        memory.add_read_only(unsafe { slice(parts.packet, parts.packet_len) });
    }
    if !parts.memory.is_null() {
        // SAFETY: as for the context, of which it is no part.
        memory.add_writable(unsafe { slice(parts.memory, parts.memory_len) });
    }
    memory.set_packet(parts.packet as u64, parts.packet_len as u64);

    let config = program.engine.config();
    // SAFETY: the caller's run is there.
    let interrupt = unsafe { &raw mut (*run).ctx.interrupt };
    // SAFETY: the flag lives in the run; its low byte is the first one on our little-endian hosts, and it holds 0 or 1.
    let interrupt = unsafe { AtomicBool::from_ptr(interrupt.cast()) };
    let options = Options {
        stack_bytes: config.frame_bytes as usize,
        budget: if program.checks.needs_budget { Some(config.run_budget()) } else { config.budget },
        interrupt: config.interruptible.then_some(interrupt),
    };
    let mut host = Host { run, entered: Vec::new(), values: Vec::new() };
    let result = Machine::new(memory, options).run(&mut host, &Running(program), [r1, parts.context_len as u64]);
    // SAFETY: the machine is done with the run.
    let run = unsafe { &mut *run };
    match result {
        Ok(r0) => Ok(r0),
        Err(stop) => {
            let within = match stop.program.checked_sub(1) {
                Some(hop) => host.entered.get(hop as usize).copied(),
                None => Some(program),
            };
            let error = run.stopped().unwrap_or_else(|| reason(stop));
            Err(match within {
                Some(within) => within.locate(error),
                None => error,
            })
        }
    }
}

/// A slice for the interpreter; an empty one where there is no memory.
///
/// # Safety
/// `len` bytes at `at` must be valid for reads and writes for `'a`, and not used otherwise.
unsafe fn slice<'a>(at: *mut u8, len: usize) -> &'a mut [u8] {
    if at.is_null() || len == 0 {
        return &mut [];
    }
    // SAFETY: by contract.
    unsafe { core::slice::from_raw_parts_mut(at, len) }
}

fn reason(stop: Stop) -> RunError {
    let insn = Some(stop.at);
    match stop.kind {
        StopKind::Budget => RunError::Budget { insn, origin: None },
        StopKind::Interrupted => RunError::Interrupted { insn, origin: None },
        StopKind::Helper(error) => RunError::Host { source: HelperError::Failed(error), insn, origin: None },
        StopKind::NotAdmitted => RunError::Access { what: OUT_OF_BOUNDS.into(), insn, origin: None },
        kind => RunError::Access { what: kind.to_string(), insn, origin: None },
    }
}

/// A program the interpreter can hold on to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running<'p>(&'p Loaded);

impl Borrow<Program> for Running<'_> {
    fn borrow(&self) -> &Program {
        &self.0.program
    }
}

/// The host side of an interpreted run.
#[derive(Debug)]
struct Host<'p> {
    run: *mut Run,
    /// The programs that its tail calls entered, in order. They live as long as the outermost one's guard.
    entered: Vec<&'p Loaded>,
    /// Map values that the run has looked up: address and length. They stay mapped for the run.
    values: Vec<(u64, u64)>,
}

impl<'p> Host<'p> {
    /// The map of the calling program at this address.
    fn map(caller: &Caller<'_, '_, Running<'p>>, address: u64) -> Result<&'p MapRef, Stop> {
        let maps = &caller.code().0.bindings().maps;
        let found = maps.iter().flatten().find(|map| map.address() == address);
        found.ok_or_else(|| caller.fail(format!("{address:#x} is not a map of this program")))
    }

    /// Checks the arguments of a call against the prototype. Returns the data map among them.
    fn check(
        &mut self,
        bound: &Bound,
        args: [u64; 5],
        caller: &Caller<'_, '_, Running<'p>>,
    ) -> Result<Option<&'p Map>, Stop> {
        let mut map: Option<&'p Map> = None;
        for (i, kind) in bound.proto.args.iter().enumerate() {
            let arg = args[i];
            let size = |of: fn(&Map) -> u32| match map {
                Some(map) => Ok(of(map) as usize),
                None => Err(caller.fail("a key or value without a map before it")),
            };
            match *kind {
                ArgKind::None | ArgKind::Scalar | ArgKind::Size { .. } | ArgKind::CallbackCtx => {}
                ArgKind::Ctx | ArgKind::Callback(_) => {}
                ArgKind::Map(kinds) => match Self::map(caller, arg)? {
                    MapRef::Data(data) if accepts(kinds, data.map_type()) => map = Some(data),
                    other => {
                        let (name, map) = (&bound.proto.name, other.name());
                        return Err(caller.fail(format!("{name} does not work on map `{map}`")));
                    }
                },
                ArgKind::Key => caller.check(self, arg, size(|m| m.def().key_size)?, false)?,
                ArgKind::Value => caller.check(self, arg, size(|m| m.def().value_size)?, false)?,
                ArgKind::ValueOut => caller.check(self, arg, size(|m| m.def().value_size)?, true)?,
                ArgKind::Mem(mem) => {
                    let len = args.get(i + 1).copied().unwrap_or(0) as usize;
                    if !(mem.null && arg == 0) {
                        caller.check(self, arg, len, mem.access != Access::Read)?;
                    }
                }
                ArgKind::Fixed { bytes, mem } => {
                    if !(mem.null && arg == 0) {
                        caller.check(self, arg, bytes as usize, mem.access != Access::Read)?;
                    }
                }
                ArgKind::SpinLock => {
                    if !arg.is_multiple_of(4) {
                        return Err(caller.fail("a spin lock that is not aligned"));
                    }
                    caller.check(self, arg, 4, true)?;
                }
                // Only the verifier can tell a live record or host object from any other number.
                ArgKind::RecordSize | ArgKind::Record | ArgKind::Host { .. } => {
                    let name = &bound.proto.name;
                    return Err(caller.fail(format!("{name} needs a verified program")));
                }
            }
        }
        Ok(map)
    }

    fn call(&mut self, bound: &Bound, args: [u64; 5], caller: &mut Caller<'_, '_, Running<'p>>) -> Result<u64, Stop> {
        let map = self.check(bound, args, caller)?;
        let [r1, r2, r3, r4, r5] = args;
        if bound.proto.id == helpers::LOOP || bound.proto.id == helpers::FOR_EACH_MAP_ELEM {
            return self.call_back(args, map, caller);
        }
        // SAFETY: the run is this thread's, and the machine does not touch it.
        unsafe { (*self.run).ctx.host_env = bound.func.env_address() };
        // SAFETY: the arguments were checked against the prototype, the hidden argument is the run's, and its `exit_pc` is 0, so
        // that the shim returns after an error.
        let r0 = unsafe { (bound.func.shim)(r1, r2, r3, r4, r5, self.run.cast()) };
        self.stopped(caller)?;
        if let (bpf_verifier::Ret::MapValueOrNull, Some(map)) = (bound.proto.ret, map)
            && r0 != 0
            && !self.values.iter().any(|v| v.0 == r0)
        {
            self.values.push((r0, map.def().value_size.into()));
        }
        Ok(r0)
    }

    /// The helpers that call a function of the program.
    fn call_back(
        &mut self,
        [r1, r2, r3, r4, _]: [u64; 5],
        map: Option<&Map>,
        caller: &mut Caller<'_, '_, Running<'p>>,
    ) -> Result<u64, Stop> {
        let run = self.run;
        let mut stop = None;
        let mut call = |_: &mut Run, args: [u64; 5]| {
            if let Some(map) = map {
                self.values.push((args[2], map.def().value_size.into()));
                self.values.push((args[1], map.def().key_size.into()));
            }
            caller.call(self, r2, args).map_err(|error| {
                stop = Some(error);
                HelperError::Stopped
            })
        };
        // A run of its own for the helper, because callbacks use the real one: the helpers only look at slot and engine.
        // SAFETY: the run is this thread's.
        let mut view = unsafe { (*run).view() };
        let result = match map {
            None => helpers::run_loop(&mut view, r1, r3, r4, &mut call),
            // SAFETY: the map is the program's and lives.
            Some(_) => unsafe { helpers::run_for_each(&mut view, r1, r3, r4, &mut call) },
        };
        match (result, stop) {
            (_, Some(stop)) => Err(stop),
            (Ok(r0), None) => Ok(r0),
            (Err(error), None) => Err(caller.fail(error)),
        }
    }

    /// The first address and the length of a context region, as they are now.
    fn bounds(&self, place: BoundsPlace) -> Option<(u64, u64)> {
        // SAFETY: the run is this thread's, and the machine does not touch it.
        let run = unsafe { &*self.run };
        let field = |off: u32, size: u32| {
            // SAFETY: the layout that the program was verified against has a field of this size there, and the context that the run
            // was given agrees with it.
            let field = unsafe { run.context.add(off as usize) };
            match size {
                // SAFETY: as above; the helpers that write to it are not running.
                8 => unsafe { field.cast::<u64>().read_unaligned() },
                // SAFETY: as above.
                _ => unsafe { field.cast::<u32>().read_unaligned() }.into(),
            }
        };
        match place {
            BoundsPlace::Nowhere => None,
            BoundsPlace::Raw => Some((run.ctx.packet, run.ctx.packet_len)),
            BoundsPlace::Addresses { start, end } => {
                let start = field(start, 8);
                Some((start, field(end, 8).saturating_sub(start)))
            }
            BoundsPlace::Length { start, len, len_size } => Some((field(start, 8), field(len, len_size))),
        }
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

/// Whether a map of this type is among `kinds`.
fn accepts(kinds: bpf_verifier::MapSet, map_type: MapType) -> bool {
    bpf_verifier::MapKind::from_raw(map_type as u32).is_some_and(|kind| kinds.contains(kind))
}

impl<'p> Env for Host<'p> {
    type Code = Running<'p>;

    fn helper(&mut self, id: u32, args: [u64; 5], caller: &mut Caller<'_, '_, Running<'p>>) -> Result<u64, Stop> {
        match caller.code().0.bindings().helper(id) {
            Some(bound) => self.call(bound, args, caller),
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
            Some(bound) => self.call(bound, args, caller),
            None => Err(caller.fail("a weak host function that does not exist was called")),
        }
    }

    fn tail_call(
        &mut self,
        array: u64,
        index: u32,
        caller: &mut Caller<'_, '_, Running<'p>>,
    ) -> Result<Option<Running<'p>>, Stop> {
        match Self::map(caller, array)? {
            MapRef::Progs(table) => Ok(table.interpreted(index).map(|program| {
                // SAFETY: a program taken out of a slot is dropped after a grace period, and the guard of this run was there
                // before: it lives as long as the outermost program's borrow, `'p`, as far as this run is concerned.
                let program = unsafe { &*program };
                if program.checks.needs_budget {
                    caller.limit(program.engine.config().run_budget());
                }
                self.entered.push(program);
                Running(program)
            })),
            MapRef::Data(map) => Err(caller.fail(format!("map `{}` is not a prog array", map.name()))),
        }
    }

    /// The checks that the verifier left to run time.
    fn admits(&mut self, step: &Step<'_, Running<'p>>) -> bool {
        let Checks { accesses, regions, .. } = &step.code.0.checks;
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
        let near = |r: Reg| reg(r).wrapping_sub(start).wrapping_add(AccessCheck::NEAR) < 2 * AccessCheck::NEAR;
        match step.code.0.program.insns()[step.at.index()] {
            Insn::Load { size, base, off, .. } | Insn::Store { size, base, off, .. } => inside(size, base, off),
            Insn::JumpIf { dst, src: Src::Reg(src), .. } => near(dst) && near(src),
            Insn::JumpIf { dst, src: Src::Imm(_), .. } => near(dst),
            // The verifier leaves nothing else to be checked.
            _ => false,
        }
    }

    fn resolve(&mut self, code: &Running<'p>, imm: Imm64) -> Option<u64> {
        let bindings = code.0.bindings();
        match imm {
            Imm64::Map(map) | Imm64::MapIdx(map) => Some(bindings.map(map)?.address()),
            Imm64::MapValue { map, off } | Imm64::MapIdxValue { map, off } => match bindings.map(map)? {
                MapRef::Data(map) => {
                    let header = map.header();
                    let base = header.base as u64;
                    let whole = u64::from(header.stride) * u64::from(header.max_entries);
                    if base != 0 && !self.values.contains(&(base, whole)) {
                        self.values.push((base, whole));
                    }
                    Some(base + u64::from(off))
                }
                MapRef::Progs(_) => None,
            },
            Imm64::Const(value) => Some(value),
            Imm64::Var(_) | Imm64::Func(_) => None,
        }
    }

    fn region(&mut self, addr: u64, len: u64, _write: bool) -> Option<HostMemory<'_>> {
        let inside = |&(start, size): &(u64, u64)| addr >= start && len <= size && addr - start <= size - len;
        self.values.iter().any(inside).then(|| {
            // SAFETY: the bytes belong to a value of a live map, which stays mapped for the run and is only accessed by
            // atomics; the maps crate hands out addresses with exposed provenance.
            unsafe { HostMemory::vouch() }
        })
    }
}
