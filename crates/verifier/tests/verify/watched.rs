//! Runs programs that some certificate proves, and looks for an unsafe action.
//!
//! Problem: a refused program of `pairs.txt` may be safe all the same, so a wrong certificate that proves it is no
//! finding by itself, and whether the program is safe is not for the tests to believe. Approach: a host made of
//! prototypes, which gives memory of exactly the promised size and answers that the prototype allows. Each run is made
//! twice; the two differ in nothing but the addresses of all memory and the bytes of an older stack, of which a safe
//! program shows neither (noninterference: Goguen and Meseguer, 1982).

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use bpf_analysis::Facts;
use bpf_interp::{Caller, Env as Host, HostMemory, Machine, Memory, Options, Step, Stop, StopKind};
use bpf_isa::{Imm64, Insn, InsnIdx, Program, Reg, Size, SubprogId};
use bpf_verifier::{Access, ArgKind, ContextLayout, Effect, Env, FieldKind, HelperProto, KnownMap, MapType, Ret};

use crate::Random;

/// Back-edges and calls of a run: a proven program that needs more does not end for all that this host can see.
const BUDGET: u64 = 1 << 18;
/// Bytes around each object that belong to no object.
const MARGIN: usize = 64;
/// Map references, which are no addresses on any supported machine.
const MAP_TAG: u64 = 0x00de_0000_0000_0000;
/// Set in the reference of a map that was found in the map of that number.
const INNER: u64 = 1 << 15;
/// The bit from which the reference of such a map has the number of sleeps before it was found.
const SLEEPS: u32 = 24;
/// Most bytes that a function reads or writes.
const MOST: u64 = 1 << 16;

/// Memory that the host gives to a program.
struct Object {
    /// Adjacent objects share one.
    buffer: Rc<[AtomicU8]>,
    start: usize,
    end: usize,
    access: Access,
    /// Whether the program may still use it.
    lives: bool,
    /// Bytes that only functions use: first, and behind the last.
    hidden: Vec<(u64, u64)>,
    /// Bytes of it that hold no address, to be compared at the end.
    plain: Vec<(usize, usize)>,
}

impl Object {
    fn bytes(&self) -> &[AtomicU8] {
        &self.buffer[self.start..self.end]
    }
    fn address(&self) -> u64 {
        self.bytes().as_ptr().expose_provenance() as u64
    }
}

/// The host, and what it sees of a run.
struct World<'e> {
    env: &'e Env<'e>,
    facts: &'e Facts,
    starts: Vec<InsnIdx>,
    random: Random,
    /// Number of this run of the two, from which addresses and old stack bytes are made.
    salt: u64,
    objects: Vec<Object>,
    /// Values of maps, by the map's reference and the key.
    values: BTreeMap<(u64, Vec<u8>), usize>,
    context: Option<usize>,
    regions: Vec<usize>,
    records: BTreeSet<usize>,
    /// Memory that functions returned.
    returned: Vec<usize>,
    /// How often the run has slept.
    sleeps: u64,
    /// How many sections of each kind are open.
    sections: [u32; 2],
    /// Branches back and calls of a run that yields.
    ticks: u64,
    /// The reason why a sleep was wrong.
    wrong: Option<&'static str>,
    /// Numbers and bytes given to functions: both runs give the same.
    seen: Vec<u64>,
    hash: u64,
    ended: bool,
    /// The program.
    program: Rc<Program>,
    /// The value of r10 and the function of each frame.
    frames: Vec<(u64, SubprogId)>,
}

/// The observable effects of a run. Both runs of a safe program have equal ones.
#[derive(PartialEq, Eq, Debug)]
struct Outcome {
    result: Option<u64>,
    seen: Vec<u64>,
    hash: u64,
    memory: Vec<Vec<u8>>,
}

impl<'e> World<'e> {
    fn new(program: &Rc<Program>, env: &'e Env<'e>, facts: &'e Facts, seed: u64, salt: u64) -> World<'e> {
        let mut world = World {
            env,
            facts,
            starts: program.subprogs().iter().map(|sub| InsnIdx(sub.start)).collect(),
            random: Random(seed | 1),
            salt,
            objects: Vec::new(),
            values: BTreeMap::new(),
            context: None,
            regions: Vec::new(),
            records: BTreeSet::new(),
            returned: Vec::new(),
            sleeps: 0,
            sections: [0; 2],
            ticks: 0,
            wrong: None,
            seen: Vec::new(),
            hash: 0,
            ended: false,
            program: Rc::clone(program),
            frames: Vec::new(),
        };
        world.place_regions();
        world
    }

    fn object(&mut self, size: usize, access: Access) -> usize {
        let room = size + 2 * MARGIN + 8 * self.salt as usize + 16;
        let buffer: Rc<[AtomicU8]> = (0..room).map(|_| AtomicU8::new(0)).collect();
        let base = buffer.as_ptr().addr();
        let start = (base + MARGIN).next_multiple_of(16) - base + 8 * self.salt as usize % 64;
        let fill = self.random.below(4);
        for byte in &buffer[start..start + size] {
            let value = match fill {
                0 => 0,
                1 => 255,
                2 => self.random.below(9) as u8,
                _ => self.random.below(256) as u8,
            };
            byte.store(value, Relaxed);
        }
        let (end, plain) = (start + size, vec![(0, size)]);
        self.objects.push(Object { buffer, start, end, access, lives: true, hidden: Vec::new(), plain });
        self.objects.len() - 1
    }

    /// New regions of the context, and the context that tells where they are.
    fn place_regions(&mut self) {
        let layout: &ContextLayout = self.env.context;
        for old in std::mem::take(&mut self.regions) {
            self.objects[old].lives = false;
        }
        for region in &layout.regions {
            let near = [0, 1, 2, 3, 4, 7, 8, 15, 16, 20, 33, 54, 64, 255, 300][self.random.below(15)];
            let length = (region.min_len + near).min(region.max_len);
            let access = if region.writable { Access::ReadWrite } else { Access::Read };
            let object = self.object(length as usize, access);
            self.regions.push(object);
        }
        for (i, region) in layout.regions.iter().enumerate() {
            let Some(next) = region.ends_at_start_of else { continue };
            let [one, two] = [i, usize::from(next)].map(|r| self.regions[r]);
            let [before, behind] = [one, two].map(|object| self.objects[object].bytes().len());
            let both = self.object(before + behind, Access::Read);
            let (buffer, start) = (Rc::clone(&self.objects[both].buffer), self.objects[both].start);
            self.objects[both].lives = false;
            for (object, start, size) in [(one, start, before), (two, start + before, behind)] {
                let object = &mut self.objects[object];
                (object.buffer, object.start, object.end) = (Rc::clone(&buffer), start, start + size);
            }
        }
        if layout.raw {
            return;
        }
        let size = layout.fields.iter().map(|f| f.host_offset + f.host_size).max().unwrap_or(0) as usize;
        let context = match self.context {
            Some(context) => context,
            None => {
                let context = self.object(size, Access::ReadWrite);
                self.objects[context].plain.clear();
                context
            }
        };
        for field in &layout.fields {
            let region = |r: u8| &self.objects[self.regions[usize::from(r)]];
            let length = |r: u8| region(r).bytes().len() as u64;
            let value = match field.kind {
                FieldKind::Data(r) => Some(region(r).address()),
                FieldKind::DataEnd(r) => Some(region(r).address() + length(r)),
                FieldKind::Len(r) => Some(length(r)),
                FieldKind::Scalar | FieldKind::Socket => None,
            };
            let (at, bytes) = (field.host_offset as usize, field.host_size as usize);
            match value {
                Some(value) => {
                    for (i, byte) in value.to_le_bytes().into_iter().take(bytes).enumerate() {
                        self.objects[context].bytes()[at + i].store(byte, Relaxed);
                    }
                }
                None if self.context.is_none() => self.objects[context].plain.push((at, at + bytes)),
                None => {}
            }
        }
        self.context = Some(context);
    }

    /// Notes an access through another register than r10.
    fn reach(&mut self, at: u64, bytes: u64) {
        for (top, function) in &self.frames {
            for range in self.facts.private(*function) {
                let start = top - u64::from(range.depth);
                if at < start + u64::from(range.bytes) && start < at.saturating_add(bytes) {
                    self.wrong = Some("a pointer leads to a private byte of a frame");
                }
            }
        }
    }

    fn number(&mut self) -> u64 {
        let small = self.random.below(17) as u64;
        match self.random.below(7) {
            0 | 1 => small,
            2 | 3 => small.wrapping_neg(),
            4 => (1u64 << self.random.below(64)).wrapping_add(small),
            5 => (1u64 << self.random.below(64)).wrapping_sub(small),
            _ => self.random.below(usize::MAX) as u64,
        }
    }

    fn map(&self, reference: u64) -> Option<&'e KnownMap> {
        let env = self.env;
        let number = (reference & !(0xff << 16)).checked_sub(MAP_TAG)?;
        let (sleeps, number) = (number >> SLEEPS, number & ((1 << SLEEPS) - 1));
        let map = env.maps.get(usize::try_from(number & !INNER).ok()?)?;
        match number & INNER {
            0 => Some(map),
            _inner => map.inner.as_deref().filter(|_| sleeps == self.sleeps),
        }
    }

    /// Takes away all memory that others may free while the run sleeps.
    fn sleep(&mut self) -> Result<(), &'static str> {
        if !self.env.sleepable {
            return Err("it sleeps, and is not sleepable");
        }
        if self.sections != [0; 2] {
            return Err("it sleeps in a section");
        }
        if !self.records.is_empty() {
            return Err("it sleeps with a record");
        }
        self.sleeps += 1;
        let maps = self.env.maps;
        let lasts = |reference: u64| {
            let map = maps.get((reference & (INNER - 1)) as usize);
            reference & INNER == 0 && map.is_some_and(|map| map.kind == MapType::Array)
        };
        let ended = |(reference, _): &(u64, Vec<u8>)| !lasts(*reference);
        let elements: Vec<usize> = self.values.iter().filter(|(key, _)| ended(key)).map(|(_, at)| *at).collect();
        self.values.retain(|key, _| !ended(key));
        for object in elements.into_iter().chain(std::mem::take(&mut self.returned)) {
            self.objects[object].lives = false;
        }
        Ok(())
    }

    fn reference(&self, map: i32, inner: u64) -> u64 {
        MAP_TAG | self.salt << 16 | inner | map as u64
    }

    /// The value of a map by its key.
    fn value(&mut self, reference: u64, map: &KnownMap, key: Vec<u8>) -> u64 {
        let found = match self.values.get(&(reference, key.clone())) {
            Some(found) => *found,
            None => {
                let object = self.object(map.value_size as usize, map.access);
                let special = map.spin_lock.into_iter().chain(map.timer).chain(map.work).map(|at| (at, at + 4));
                let fields = map.fields.iter().map(|field| (field.offset, field.offset + 1));
                self.objects[object].hidden = special.chain(fields).map(|(a, b)| (a.into(), b.into())).collect();
                for (i, byte) in map.frozen.iter().flatten().take(map.value_size as usize).enumerate() {
                    self.objects[object].bytes()[i].store(*byte, Relaxed);
                }
                self.values.insert((reference, key), object);
                object
            }
        };
        self.objects[found].address()
    }

    fn call(
        &mut self,
        proto: &HelperProto,
        args: [u64; 5],
        caller: &mut Caller<'_, '_, Rc<Program>>,
    ) -> Result<u64, Stop> {
        let wrong =
            |caller: &Caller<'_, '_, Rc<Program>>, what: &str| Err(caller.fail(format!("{}: {what}", proto.name)));
        let (mut map, mut key, mut record) = (None, Vec::new(), 0);
        let mut lent: Vec<(u64, u64, bool)> = Vec::new();
        for (i, kind) in proto.args.iter().enumerate().take(proto.arity().into()) {
            let given = args[i];
            let memory = match *kind {
                ArgKind::None | ArgKind::Unused => None,
                // Numbers passed to functions must not depend on addresses.
                ArgKind::Scalar | ArgKind::Formatted | ArgKind::Size { .. } | ArgKind::Length => {
                    self.seen.push(given);
                    None
                }
                ArgKind::RecordSize => {
                    record = given;
                    None
                }
                ArgKind::Ctx | ArgKind::CtxOrNull => {
                    let context = self.context.or_else(|| self.regions.first().copied());
                    let is = context.is_some_and(|context| self.objects[context].address() == given);
                    if !is && (given != 0 || *kind == ArgKind::Ctx) {
                        return wrong(caller, "not the context");
                    }
                    None
                }
                ArgKind::Map(_) => {
                    map = Some((given, self.map(given).ok_or_else(|| caller.fail("not a map"))?));
                    None
                }
                ArgKind::Key | ArgKind::Value | ArgKind::ValueOrNull | ArgKind::ValueOut => {
                    map.and_then(|(_, map)| map.memory_of(*kind)).map(|(mem, bytes)| (bytes.into(), mem))
                }
                ArgKind::Fixed { bytes, mem } => Some((bytes.into(), mem)),
                ArgKind::Mem(mem) => Some((args[i + 1], mem)),
                ArgKind::MemOfLength(mem) => {
                    let at = proto.args.iter().position(|arg| *arg == ArgKind::Length);
                    Some((args[at.expect("a length")], mem))
                }
                ArgKind::Record => {
                    let found = self.records.iter().copied().find(|r| self.objects[*r].address() == given);
                    let Some(found) = found else { return wrong(caller, "not a record that is held") };
                    self.records.remove(&found);
                    self.objects[found].lives = false;
                    None
                }
                ArgKind::Values
                | ArgKind::Lock { .. }
                | ArgKind::Timer
                | ArgKind::Work
                | ArgKind::TimerMap
                | ArgKind::TimerCallback
                | ArgKind::Local(..)
                | ArgKind::LocalType { .. }
                | ArgKind::Object(_)
                | ArgKind::Root(_)
                | ArgKind::Node(..)
                | ArgKind::Compare
                | ArgKind::Kptr
                | ArgKind::Exchanged
                | ArgKind::Peeked { .. }
                | ArgKind::Probed
                | ArgKind::SliceBuffer
                | ArgKind::ConstStr
                | ArgKind::Socket { .. }
                | ArgKind::Callback(_)
                | ArgKind::CallbackCtx
                | ArgKind::Host { .. } => return wrong(caller, "the core proves no such argument"),
            };
            let Some((bytes, mem)) = memory else { continue };
            if given == 0 && mem.null || bytes == 0 {
                continue;
            }
            if bytes > MOST {
                return wrong(caller, "more bytes than an object has");
            }
            self.reach(given, bytes);
            let mut contents = vec![0; bytes as usize];
            let overlaps = |(at, size, writes): &(u64, u64, bool)| {
                (*writes || mem.access.writes()) && given < at + size && *at < given + bytes
            };
            if proto.disjoint && lent.iter().any(overlaps) {
                return wrong(caller, "arguments overlap");
            }
            lent.push((given, bytes, mem.access.writes()));
            if mem.access.reads() {
                caller.read(self, given, &mut contents)?;
                contents.iter().for_each(|byte| self.seen.push((*byte).into()));
            }
            if *kind == ArgKind::Key {
                key.clone_from(&contents);
            }
            if mem.access.writes() {
                contents.iter_mut().for_each(|byte| *byte = self.random.below(256) as u8);
                caller.write(self, given, &contents)?;
            }
        }
        match proto.effect {
            Effect::None | Effect::UnderLock | Effect::TailCall => {}
            Effect::Enter(section) => self.sections[section as usize] += 1,
            Effect::Leave(section) => {
                self.sections[section as usize] = self.sections[section as usize].saturating_sub(1);
            }
            Effect::MovesPacket => {
                self.place_regions();
                self.tell_packet(caller);
            }
            Effect::Lock(_) | Effect::Unlock(_) => return wrong(caller, "the core proves no locks"),
            Effect::Sleeps => {
                if let Err(what) = self.sleep() {
                    return wrong(caller, what);
                }
            }
        }
        let missing = self.random.below(4) == 0;
        match proto.ret {
            Ret::Scalar => Ok(self.number()),
            Ret::Between(min, max) => {
                let within = (min..=max).contains(&(self.number() as i64));
                let span = max.abs_diff(min);
                let by = self.number() % span.saturating_add(1).max(1);
                let ends = [min, max][self.random.below(2)];
                Ok(if within { ends } else { min.wrapping_add_unsigned(by) } as u64)
            }
            Ret::First => Ok(args[0]),
            Ret::MapValueOrNull => {
                let Some((reference, def)) = map else { return wrong(caller, "no map") };
                let index = key.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b));
                let array = def.kind.is_array();
                if array && index >= def.max_entries.into() || missing && (!array || def.kind.is_map_of_maps()) {
                    return Ok(0);
                }
                if def.kind.is_map_of_maps() {
                    return Ok(reference | INNER | self.sleeps << SLEEPS);
                }
                Ok(self.value(reference, def, key))
            }
            Ret::MemOrNull { .. } | Ret::RecordOrNull if missing => Ok(0),
            Ret::MemOrNull { bytes, writable } => {
                let access = if writable { Access::ReadWrite } else { Access::Read };
                let object = self.object(bytes as usize, access);
                self.returned.push(object);
                Ok(self.objects[object].address())
            }
            Ret::RecordOrNull => {
                let object = self.object(record.min(MOST) as usize, Access::ReadWrite);
                self.records.insert(object);
                Ok(self.objects[object].address())
            }
            Ret::Never => {
                self.ended = true;
                wrong(caller, "it does not return")
            }
            Ret::ErrorOrLength
            | Ret::Thrown
            | Ret::HostOrNull(_)
            | Ret::Host(_)
            | Ret::ElementOrNull(_)
            | Ret::SliceOrNull { .. }
            | Ret::SocketOrNull
            | Ret::OfSocketOrNull(_)
            | Ret::ObjectOrNull(_)
            | Ret::Instance { .. } => wrong(caller, "the core proves no such result"),
        }
    }

    fn packet(&self) -> Option<(u64, u64)> {
        let packet = &self.objects[*self.regions.first()?];
        Some((packet.address(), packet.bytes().len() as u64))
    }

    fn tell_packet(&self, caller: &mut Caller<'_, '_, Rc<Program>>) {
        if let Some((at, length)) = self.packet() {
            caller.set_packet(at, length);
        }
    }
}

impl Host for World<'_> {
    type Code = Rc<Program>;

    fn helper(&mut self, id: u32, args: [u64; 5], caller: &mut Caller<'_, '_, Self::Code>) -> Result<u64, Stop> {
        let env = self.env;
        match env.helpers.get(id) {
            Some(proto) => self.call(proto, args, caller),
            None => Err(caller.stop(StopKind::UnknownHelper(id))),
        }
    }

    fn host_function(&mut self, id: i32, args: [u64; 5], caller: &mut Caller<'_, '_, Self::Code>) -> Result<u64, Stop> {
        let env = self.env;
        match usize::try_from(id).ok().and_then(|i| env.host_functions.get(i)) {
            Some(proto) => self.call(proto, args, caller),
            None => Err(caller.stop(StopKind::UnknownHostFunction(id))),
        }
    }

    fn resolve(&mut self, _: &Self::Code, imm: Imm64) -> Option<u64> {
        match imm {
            Imm64::Map(map) | Imm64::MapIdx(map) => Some(self.reference(map, 0)),
            Imm64::MapValue { map, off } | Imm64::MapIdxValue { map, off } => {
                let reference = self.reference(map, 0);
                let def = self.map(reference)?;
                Some(self.value(reference, def, vec![0; def.key_size as usize]) + u64::from(off))
            }
            Imm64::Const(_) | Imm64::Var(_) | Imm64::Func(_) => None,
        }
    }

    fn region(&mut self, addr: u64, len: u64, write: bool) -> Option<HostMemory<'_>> {
        let object = self.objects.iter().find(|object| {
            let from = addr.wrapping_sub(object.address());
            let inside = from <= object.bytes().len() as u64 && len <= object.bytes().len() as u64 - from;
            let allowed = if write { object.access.writes() } else { object.access.reads() };
            let plain = || object.hidden.iter().all(|(start, end)| from + len <= *start || *end <= from);
            object.lives && inside && allowed && plain()
        })?;
        HostMemory::within(object.bytes(), addr, len)
    }

    fn zeroed(&self, _: &Self::Code, start: InsnIdx) -> Option<(usize, usize)> {
        let zeroed = self.facts.zeroed.iter().find(|z| self.starts[z.subprog.index()] == start)?;
        Some((zeroed.depth as usize, zeroed.bytes as usize))
    }

    /// Sleeps now and then where the facts say that the run may yield.
    fn spent(&mut self, head: Option<InsnIdx>, _: &Self::Code) -> Result<u64, StopKind> {
        self.ticks += 1;
        if self.ticks > BUDGET {
            return Err(StopKind::Budget);
        }
        if head.is_some_and(|head| self.facts.may_yield(head)) && self.random.below(2) == 0 {
            self.wrong = self.sleep().err();
        }
        if self.wrong.is_some() { Err(StopKind::Budget) } else { Ok(1) }
    }

    fn observe(&mut self, step: &Step<'_, Self::Code>, machine: &Machine<'_>) {
        self.frames.truncate(machine.frames() - 1);
        self.frames.push((step.regs[Reg::R10.index()], self.program.subprog_of(step.at)));
        if let Some(access) = self.program.insns()[step.at.index()].memory_access()
            && access.base != Reg::R10
        {
            let at = step.regs[access.base.index()].wrapping_add_signed(access.off.into());
            self.reach(at, access.size.bytes().into());
        }
        self.hash = (self.hash ^ u64::from(step.at.0)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }
}

/// The program with the host's places of the context's fields, as facts say.
fn rewritten(program: &Program, facts: &Facts) -> Option<Program> {
    let (mut insns, targets) = program.clone().into_parts();
    for access in &facts.context_accesses {
        let new = match access.size {
            1 => Size::B,
            2 => Size::H,
            4 => Size::W,
            _ => Size::DW,
        };
        match insns.get_mut(access.insn.index())? {
            Insn::Load { size, off, .. } | Insn::Store { size, off, .. } => {
                (*size, *off) = (new, i16::try_from(access.off).ok()?);
            }
            _no_access => return None,
        }
    }
    Program::with_targets(insns, targets).ok()
}

fn run<'e>(
    program: &Rc<Program>,
    env: &'e Env<'e>,
    facts: &'e Facts,
    seed: u64,
    salt: u64,
) -> Result<(Outcome, World<'e>), String> {
    let mut world = World::new(program, env, facts, seed, salt);
    let mut memory = Memory::new();
    let packet = world.packet();
    if let Some((at, length)) = packet {
        memory.set_packet(at, length);
    }
    let args = match (env.context.raw, packet, world.context) {
        (true, Some((at, length)), _) => [at, length],
        (_, _, Some(context)) => [world.objects[context].address(), 0],
        (_, _, None) => [0, 0],
    };
    let stack_fill = if salt == 1 { 0xa5 } else { 0x3c };
    // A run that yields is asked at each tick.
    let budget = if facts.yields.is_empty() { BUDGET } else { 1 };
    let options =
        Options { budget: Some(budget), stack_fill, stack_bytes: env.frame_bytes as usize, ..Options::default() };
    let end = Machine::new(memory, options).run(&mut world, program, args);
    if let Some(wrong) = world.wrong {
        return Err(wrong.to_owned());
    }
    let result = match end {
        Ok(result) => Some(result),
        Err(_) if world.ended => None,
        Err(stop) => return Err(stop.to_string()),
    };
    if result.is_some() && !world.records.is_empty() {
        return Err("a record is held at the end".to_owned());
    }
    if let (Some(result), Some((min, max))) = (result, env.context.returns)
        && !(min..=max).contains(&(result as i64))
    {
        return Err(format!("it returns {result:#x}"));
    }
    // r0 is compared only if the program returns a result.
    let result = result.filter(|_| !env.void || env.context.returns.is_some());
    let byte = |b: &AtomicU8| b.load(Relaxed);
    let contents = |object: &Object| {
        let ranges = object.plain.iter().flat_map(|(from, to)| &object.bytes()[*from..*to]);
        ranges.map(byte).collect()
    };
    let memory = world.objects.iter().map(contents).collect();
    let (seen, hash) = (std::mem::take(&mut world.seen), world.hash);
    Ok((Outcome { result, seen, hash, memory }, world))
}

/// Runs a program that was proven with these facts, so many times, and returns an unsafe action if there is one.
pub(crate) fn violation(program: &Program, env: &Env<'_>, facts: &Facts, runs: u64) -> Option<String> {
    let Some(program) = rewritten(program, facts).map(Rc::new) else { return Some("facts of no access".to_owned()) };
    (1..=runs).find_map(|i| {
        let seed = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The first world stays until the second has been made, so that no address is the same.
        let first = run(&program, env, facts, seed, 1);
        let second = run(&program, env, facts, seed, 2);
        match (first, second) {
            (Ok((one, _first)), Ok((two, _second))) => (one != two)
                .then(|| format!("run {i} shows an address or an old stack: {:?}, {:?}", one.result, two.result)),
            (Err(what), _) | (_, Err(what)) => Some(format!("run {i}: {what}")),
        }
    })
}
