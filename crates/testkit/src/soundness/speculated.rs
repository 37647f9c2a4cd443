//! Speculative execution without a clock: the addresses that a processor may access where it mispredicts a branch.
//!
//! Problem: whether a program leaks bytes that are not its own through a mispredicted bounds check (Spectre v1) is
//! measured by timing a cache, which not every machine allows, and which proves nothing where it finds nothing.
//! Approach: a model. A program's ops ([`Lir`], as the optimiser left them) are evaluated; at each conditional
//! branch, the wrong side is evaluated as well, up to a number of ops, with its stores kept apart, and branches in
//! it are mispredicted again up to a depth. The address of each access is recorded. Everything is done twice, with
//! other bytes outside of the program's objects.
//!
//! A program *leaks* if the two lists of addresses differ: an address depends on a byte outside. It *strays* if an
//! access lies outside of every object that it may name. A program that never strays leaks nothing.
//!
//! Limits of the model. Functions outside of the program are evaluated as they should be; their own branches are not
//! mispredicted. Selections ([`Op::Confine`], [`Op::Select`]) are not predicted. Loads see all older stores.

use bpf_isa::{Imm64, Insn, Program, Size, SubprogId, Width};
use bpf_jit::{AtomicOp, Base, CallTarget, Check, Extern, Func, Lir, Mem, Op, Region, TailKey, VReg, Val};
use bpf_jit_code::{RunCtx, Symbol};
use std::collections::HashMap;

/// Ops that are evaluated behind a mispredicted branch.
const WINDOW: u32 = 150;
/// Mispredicted branches one behind another.
const DEPTH: u32 = 2;
/// How often each branch of the program is mispredicted while the program runs as it should.
const TIMES: u32 = 3;
/// Ops that a run takes.
const FUEL: u32 = 4_000;

/// A map, as the model has it.
#[derive(Clone, Debug)]
pub struct ModelMap {
    /// Address of the first value.
    pub base: u64,
    /// Bytes of a value.
    pub value_size: u32,
    /// Number of values.
    pub entries: u32,
    /// For a map of maps: the index of the map in each of its entries.
    pub inner: Option<usize>,
}

impl ModelMap {
    fn stride(&self) -> u64 {
        u64::from(self.value_size).next_multiple_of(8)
    }

    /// Bytes of all values.
    fn bytes(&self) -> u64 {
        self.stride() * u64::from(self.entries)
    }
}

/// Memory of a run: its inputs, and the objects that the program may name.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The maps, by index.
    pub maps: Vec<ModelMap>,
    /// The packet, or the raw context.
    pub packet: Vec<u8>,
    /// Offsets of the context's pointers to the start and end of each of its regions; none: the packet is the
    /// context. The first region is the packet, and the others are empty.
    pub context: Vec<(u32, u32)>,
    /// Bytes of the sink.
    pub sink: u64,
    /// Functions that return the start of an object. All but look-ups return null here.
    pub objects: Vec<Symbol>,
}

const STACK: u64 = 0x1_0000_0000;
const STACK_BYTES: u64 = 1 << 16;
const RUN: u64 = 0x2_0000_0000;
const CONTEXT: u64 = 0x3_0000_0000;
const CONTEXT_BYTES: u64 = 1 << 12;
const PACKET: u64 = 0x4_0000_0000;
const SINK: u64 = 0x5_0000_0000;
/// Values of the map with index i begin at `MAPS + i * APART`.
const MAPS: u64 = 0x10_0000_0000;
const APART: u64 = 1 << 28;
/// The address of the map itself, which programs only pass on.
const HANDLES: u64 = 0x80_0000_0000;

impl Setting {
    /// A raw context of these bytes, and these maps: bytes of a value, number of values, and for a map of maps the
    /// index of the inner map. A key is found if its number is below the number of values.
    pub fn new(packet: Vec<u8>, maps: &[(u32, u32, Option<usize>)]) -> Setting {
        let map = |(i, (value_size, entries, inner)): (u64, &(u32, u32, Option<usize>))| ModelMap {
            base: MAPS + i * APART,
            value_size: *value_size,
            entries: *entries,
            inner: *inner,
        };
        Setting {
            maps: (0..).zip(maps).map(map).collect(),
            packet,
            context: Vec::new(),
            sink: 3 << 15,
            objects: Vec::new(),
        }
    }
}

/// The findings of two evaluations of a program.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Speculated {
    /// An access on a mispredicted path that lies outside of every object: its address.
    pub strays: Option<u64>,
    /// An access whose address depends on a byte outside: its place in the list.
    pub leaks: Option<usize>,
    /// An access outside on the path that the program takes.
    pub escapes: Option<u64>,
    /// Branches that were mispredicted.
    pub mispredicted: u64,
    /// Accesses on mispredicted paths.
    pub accesses: u64,
}

/// Evaluates the program with two fillings of the memory that is not its own.
pub fn speculate(lir: &Lir, program: &Program, setting: &Setting) -> Speculated {
    let model = |secret| {
        let mut model = Model::new(lir, program, setting, secret);
        model.run();
        model
    };
    let (one, other) = (model(0x9e37_79b9_7f4a_7c15), model(0xd1b5_4a32_d192_ed03));
    let differ = one.seen.iter().zip(&other.seen).position(|(a, b)| a != b);
    let shorter = one.seen.len().min(other.seen.len());
    Speculated {
        strays: one.strays,
        leaks: differ.or((one.seen.len() != other.seen.len()).then_some(shorter)),
        escapes: one.escapes,
        mispredicted: one.mispredicted,
        accesses: one.seen.len() as u64,
    }
}

/// A function being evaluated.
#[derive(Clone, Debug)]
struct Frame {
    func: usize,
    regs: Vec<u64>,
    /// One past the highest byte of its BPF stack.
    top: u64,
    /// The block's index in the order, and the op's in the block.
    place: usize,
    at: usize,
    /// Where the caller wants the result.
    ret: Option<VReg>,
}

/// The state of the processor; the stores of a mispredicted path are its own.
#[derive(Clone, Debug)]
struct Cpu {
    frames: Vec<Frame>,
    /// Bytes stored on a mispredicted path; `None` on the path that the program takes.
    stored: Option<HashMap<u64, u8>>,
}

/// The effect of an op on the path.
enum Flow {
    On,
    /// The program ends, or its next op is not known.
    End,
    /// The run is stopped; a processor may go on.
    Stop,
}

struct Model<'a> {
    lir: &'a Lir,
    program: &'a Program,
    setting: &'a Setting,
    secret: u64,
    /// Bytes of objects that were stored, on the path that the program takes. Other bytes follow from their address.
    memory: HashMap<u64, u8>,
    /// Addresses of accesses on mispredicted paths.
    seen: Vec<u64>,
    strays: Option<u64>,
    escapes: Option<u64>,
    /// How often the branch at this place was mispredicted, by the direction that it should take.
    sites: HashMap<((usize, usize), bool), u32>,
    mispredicted: u64,
}

/// A number made of two: noise that each evaluation repeats.
fn mix(a: u64, b: u64) -> u64 {
    let x = (a ^ b.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 7
}

fn access_size(width: Width) -> Size {
    match width {
        Width::W32 => Size::W,
        Width::W64 => Size::DW,
    }
}

impl<'a> Model<'a> {
    fn new(lir: &'a Lir, program: &'a Program, setting: &'a Setting, secret: u64) -> Model<'a> {
        let mut model = Model {
            lir,
            program,
            setting,
            secret,
            memory: HashMap::new(),
            seen: Vec::new(),
            strays: None,
            escapes: None,
            sites: HashMap::new(),
            mispredicted: 0,
        };
        for off in 0..size_of::<RunCtx>() as u64 {
            model.memory.insert(RUN + off, 0);
        }
        let field = |off: i32| RUN.wrapping_add_signed(off.into());
        let len = setting.packet.len() as u64;
        model.poke(field(RunCtx::PACKET_OFFSET), PACKET);
        model.poke(field(RunCtx::PACKET_LEN_OFFSET), len);
        model.poke(field(RunCtx::CONTEXT_OFFSET), CONTEXT);
        model.poke(field(RunCtx::BUDGET_OFFSET), 1 << 20);
        for (at, byte) in (PACKET..).zip(&setting.packet) {
            model.memory.insert(at, *byte);
        }
        for (i, (start, end)) in setting.context.iter().enumerate().rev() {
            model.poke(CONTEXT + u64::from(*end), PACKET + if i == 0 { len } else { 0 });
            model.poke(CONTEXT + u64::from(*start), PACKET);
        }
        for map in &setting.maps {
            for entry in 0..map.inner.map_or(0, |_| u64::from(map.entries)) {
                model.poke(map.base + 8 * entry, HANDLES + map.inner.unwrap_or(0) as u64);
            }
        }
        model
    }

    fn poke(&mut self, at: u64, value: u64) {
        for (at, byte) in (at..).zip(value.to_le_bytes()) {
            self.memory.insert(at, byte);
        }
    }

    /// Whether these bytes lie in an object that the program may name, or in the hidden argument, which only the
    /// compiler's own accesses name.
    fn is_inside(&self, cpu: &Cpu, at: u64, bytes: u64, region: Region) -> bool {
        let within = |base: u64, len: u64| at >= base && at - base < len && len - (at - base) >= bytes;
        let below = cpu.frames.last().map_or(0, |frame| u64::from(self.lir.funcs[frame.func].stack_bytes));
        let low = cpu.frames.last().map_or(STACK, |frame| frame.top - below);
        let maps = self.setting.maps.iter().any(|map| within(map.base, map.bytes()));
        within(low, STACK + STACK_BYTES - low)
            || within(PACKET, self.setting.packet.len() as u64)
            || within(SINK, self.setting.sink)
            || !self.setting.context.is_empty() && within(CONTEXT, CONTEXT_BYTES)
            || maps
            || region == Region::Run && within(RUN, size_of::<RunCtx>() as u64)
    }

    /// Notes an access.
    fn note(&mut self, cpu: &Cpu, at: u64, size: Size, region: Region) {
        let outside = !self.is_inside(cpu, at, size.bytes().into(), region);
        if cpu.stored.is_some() {
            self.seen.push(at);
            self.strays = self.strays.or(outside.then_some(at));
        } else {
            self.escapes = self.escapes.or(outside.then_some(at));
        }
    }

    fn byte(&self, cpu: &Cpu, at: u64) -> u8 {
        let stored = cpu.stored.as_ref().and_then(|stored| stored.get(&at));
        if let Some(byte) = stored.or_else(|| self.memory.get(&at)) {
            return *byte;
        }
        let secret = if self.is_inside(cpu, at, 1, Region::Unknown) { 0 } else { self.secret };
        let low = [STACK + STACK_BYTES, SINK + self.setting.sink];
        // Fresh frames and the sink are zero.
        let zero = secret == 0 && (STACK..low[0]).contains(&at) || (SINK..low[1]).contains(&at);
        if zero { 0 } else { mix(at, secret) as u8 }
    }

    fn load(&mut self, cpu: &Cpu, at: u64, size: Size, region: Region) -> u64 {
        self.note(cpu, at, size, region);
        let bytes = (0..u64::from(size.bytes())).rev();
        bytes.fold(0, |value, i| value << 8 | u64::from(self.byte(cpu, at.wrapping_add(i))))
    }

    fn store(&mut self, cpu: &mut Cpu, at: u64, size: Size, value: u64, region: Region) {
        self.note(cpu, at, size, region);
        for (i, byte) in (0..u64::from(size.bytes())).zip(value.to_le_bytes()) {
            let memory = cpu.stored.as_mut().unwrap_or(&mut self.memory);
            memory.insert(at.wrapping_add(i), byte);
        }
    }

    fn enter(&self, func: usize, args: [u64; 5], ctx: u64, top: u64, ret: Option<VReg>) -> Option<Frame> {
        let of: &Func = self.lir.funcs.get(func)?;
        let mut regs = vec![0; of.vregs as usize];
        for (param, value) in of.params.iter().zip(args).chain([(&of.ctx, ctx)]) {
            if let Some(v) = param {
                regs[v.index()] = value;
            }
        }
        (top - u64::from(of.stack_bytes) > STACK).then_some(Frame { func, regs, top, place: 0, at: 0, ret })
    }

    /// Runs the program as it should be run, and each branch in the other direction, too.
    fn run(&mut self) {
        let raw = self.setting.context.is_empty();
        let first = if raw { PACKET } else { CONTEXT };
        let args = [first, if raw { self.setting.packet.len() as u64 } else { 0 }, 0, 0, 0];
        let Some(frame) = self.enter(0, args, RUN, STACK + STACK_BYTES, None) else { return };
        let mut cpu = Cpu { frames: vec![frame], stored: None };
        for _ in 0..FUEL {
            let Some((site, op)) = self.next(&mut cpu) else { return };
            if let Op::Branch { .. } | Op::Check { .. } | Op::Bound { .. } = op {
                let taken = self.is_taken(&cpu, op);
                let times = self.sites.entry((site, taken)).or_default();
                *times += 1;
                if *times <= TIMES {
                    let wrong = Cpu { stored: Some(HashMap::new()), ..cpu.clone() };
                    self.mispredict(wrong, op, WINDOW, DEPTH);
                }
            }
            match self.step(&mut cpu, op) {
                Flow::On => {}
                Flow::End | Flow::Stop => return,
            }
        }
    }

    /// Goes on at the wrong side of a branch.
    fn mispredict(&mut self, mut cpu: Cpu, op: Op, window: u32, depth: u32) {
        self.mispredicted += 1;
        match op {
            Op::Branch { target, .. } => {
                if !self.is_taken(&cpu, op) {
                    self.jump(&mut cpu, target);
                }
            }
            // The run goes on where it should be stopped; the sequence that stops a run accesses the hidden argument
            // only.
            Op::Check { .. } | Op::Bound { .. } => {}
            _other => return,
        }
        self.wrong(cpu, window, depth - 1);
    }

    fn wrong(&mut self, mut cpu: Cpu, window: u32, depth: u32) {
        for left in (0..window).rev() {
            let Some((_, op)) = self.next(&mut cpu) else { return };
            if let Op::Branch { .. } | Op::Check { .. } | Op::Bound { .. } = op
                && depth > 0
            {
                self.mispredict(cpu.clone(), op, left, depth);
            }
            match self.step(&mut cpu, op) {
                Flow::On => {}
                Flow::End | Flow::Stop => return,
            }
        }
    }

    /// The next op, and its place. The place behind it becomes the next.
    fn next(&self, cpu: &mut Cpu) -> Option<((usize, usize), Op)> {
        let frame = cpu.frames.last_mut()?;
        let func = &self.lir.funcs[frame.func];
        loop {
            let range = func.range(*func.order.get(frame.place)?);
            if frame.at < range.len() {
                frame.at += 1;
                let at = range.start + frame.at - 1;
                return Some(((frame.func, at), func.ops[at]));
            }
            (frame.place, frame.at) = (frame.place + 1, 0);
        }
    }

    fn jump(&self, cpu: &mut Cpu, target: bpf_jit::BlockId) {
        let Some(frame) = cpu.frames.last_mut() else { return };
        let order = &self.lir.funcs[frame.func].order;
        frame.place = order.iter().position(|block| *block == target).unwrap_or(order.len());
        frame.at = 0;
    }

    /// Whether the op is a branch that should be taken.
    fn is_taken(&self, cpu: &Cpu, op: Op) -> bool {
        match (op, cpu.frames.last()) {
            (Op::Branch { width, cond, a, b, .. }, Some(frame)) => {
                cond.holds(width, frame.regs[a.index()], value(frame, b))
            }
            _other => false,
        }
    }

    fn step(&mut self, cpu: &mut Cpu, op: Op) -> Flow {
        let Some(frame) = cpu.frames.last() else { return Flow::End };
        let get = |v: VReg| frame.regs[v.index()];
        let val = |v: Val| value(frame, v);
        let address = |m: Mem| address(frame, m);
        let result = match op {
            Op::Mov { width, src, .. } => narrow(width, val(src)),
            Op::Ext { width, signed, from, src, .. } => narrow(width, extend(signed, from, get(src))),
            Op::Bin { op, width, a, b, .. } => op.apply(width, get(a), val(b)),
            Op::Neg { width, src, .. } => narrow(width, get(src).wrapping_neg()),
            Op::Bswap { size, src, .. } => swapped(size, get(src)),
            Op::AddShift { width, a, b, shift, .. } => narrow(width, get(a).wrapping_add(get(b) << shift)),
            Op::Select { width, cond, a, b, yes, no, .. } => {
                if cond.holds(width, get(a), val(b)) {
                    get(yes)
                } else {
                    get(no)
                }
            }
            Op::Confine { a, limit, yes, no, .. } => {
                if get(a) < val(limit) {
                    get(yes)
                } else {
                    get(no)
                }
            }
            Op::FrameAddr { off, .. } => frame.top.wrapping_add_signed(off.into()),
            Op::SymAddr { symbol, .. } => self.symbol(symbol),
            Op::SubprogAddr { subprog, .. } => HANDLES + (1 << 20) + u64::from(subprog.0),
            Op::Load { size, signed, swap, mem, .. } => {
                let at = address(mem);
                let loaded = self.load(cpu, at, size, mem.region);
                extend(signed, size, if swap { swapped(size, loaded) } else { loaded })
            }
            Op::LoadAcquire { size, mem, .. } => {
                let at = address(mem);
                self.load(cpu, at, size, mem.region)
            }
            Op::Store { size, mem, src } => {
                let (at, src) = (address(mem), val(src));
                self.store(cpu, at, size, src, mem.region);
                return Flow::On;
            }
            Op::StoreRelease { size, mem, src } => {
                let (at, src) = (address(mem), get(src));
                self.store(cpu, at, size, src, mem.region);
                return Flow::On;
            }
            Op::Atomic { op, width, mem, src, .. } => {
                let (at, src, size) = (address(mem), get(src), access_size(width));
                let old = self.load(cpu, at, size, mem.region);
                let new = match op {
                    AtomicOp::Add => old.wrapping_add(src),
                    AtomicOp::Or => old | src,
                    AtomicOp::And => old & src,
                    AtomicOp::Xor => old ^ src,
                    AtomicOp::Xchg => src,
                };
                self.store(cpu, at, size, new, mem.region);
                old
            }
            Op::CmpXchg { width, mem, expected, new, .. } => {
                let (at, size) = (address(mem), access_size(width));
                let (expected, new) = (narrow(width, get(expected)), get(new));
                let old = self.load(cpu, at, size, mem.region);
                if old == expected {
                    self.store(cpu, at, size, new, mem.region);
                }
                old
            }
            Op::Call { target: CallTarget::Subprog(SubprogId(id)), args, ctx, ret } => {
                let args = args.map(|arg| arg.map_or(0, get));
                let ctx = ctx.map_or(RUN, get);
                let top = frame.top - u64::from(self.lir.funcs[frame.func].stack_bytes);
                let Some(callee) = self.enter(id as usize, args, ctx, top, ret) else { return Flow::End };
                // A fresh frame is zero.
                let bytes = u64::from(self.lir.funcs[id as usize].stack_bytes);
                for at in top - bytes..top {
                    cpu.stored.as_mut().unwrap_or(&mut self.memory).insert(at, 0);
                }
                cpu.frames.push(callee);
                return Flow::On;
            }
            Op::Call { target: CallTarget::Extern(symbol), args, ret: _, ctx: _ } => {
                let args = args.map(|arg| arg.map_or(0, get));
                self.function(cpu, symbol, args)
            }
            Op::TailCall { key: TailKey::Const { .. } | TailKey::Dynamic { .. }, .. } => return Flow::End,
            Op::Check { check: Check::Budget(times), ctx } => {
                let at = get(ctx).wrapping_add_signed(RunCtx::BUDGET_OFFSET.into());
                let left = self.load(cpu, at, Size::DW, Region::Run).wrapping_sub(times.into());
                self.store(cpu, at, Size::DW, left, Region::Run);
                return if left.cast_signed() < 0 { Flow::Stop } else { Flow::On };
            }
            Op::Check { check: Check::Interrupt, .. } => return Flow::On,
            Op::Bound { a, limit, .. } => return if get(a) >= val(limit) { Flow::Stop } else { Flow::On },
            Op::Stop { .. } => return Flow::Stop,
            Op::Jump { target } => {
                self.jump(cpu, target);
                return Flow::On;
            }
            Op::Branch { target, .. } => {
                if self.is_taken(cpu, op) {
                    self.jump(cpu, target);
                }
                return Flow::On;
            }
            Op::Exit { value } => {
                let (result, ret) = (get(value), frame.ret);
                cpu.frames.pop();
                return match (cpu.frames.last_mut(), ret) {
                    (None, _) => Flow::End,
                    (Some(caller), Some(dst)) => {
                        caller.regs[dst.index()] = result;
                        Flow::On
                    }
                    (Some(_), None) => Flow::On,
                };
            }
        };
        if let (Some(dst), Some(frame)) = (op.def(), cpu.frames.last_mut()) {
            frame.regs[dst.index()] = result;
        }
        Flow::On
    }

    fn base(&self, map: u32) -> u64 {
        self.setting.maps.get(map as usize).map_or(0, |map| map.base)
    }

    fn symbol(&self, symbol: Symbol) -> u64 {
        match Extern::from_symbol(symbol) {
            Some(Extern::ArrayBase(map)) => self.base(map),
            Some(Extern::Map(map)) => HANDLES + u64::from(map),
            Some(Extern::Sink(_)) => SINK,
            Some(Extern::Imm64(at)) => match self.program.insns().get(at.index()) {
                Some(Insn::LoadImm64 {
                    imm: Imm64::MapValue { map, off } | Imm64::MapIdxValue { map, off }, ..
                }) => self.base(map.cast_unsigned()) + u64::from(*off),
                Some(_) | None => HANDLES,
            },
            Some(
                Extern::Helper(_)
                | Extern::Host(_)
                | Extern::HelperEnv(_)
                | Extern::HostEnv(_)
                | Extern::MapLookup(_)
                | Extern::Counters(_)
                | Extern::Spent(_),
            )
            | None => HANDLES + (2 << 20) + u64::from(symbol.index),
        }
    }

    /// The result of a function outside: a look-up in a map of the model, or a number.
    fn function(&self, cpu: &Cpu, symbol: Symbol, args: [u64; 5]) -> u64 {
        let map = match Extern::from_symbol(symbol) {
            Some(Extern::MapLookup(map)) => Some(map as usize),
            Some(Extern::Helper(1)) => args[0].checked_sub(HANDLES).and_then(|i| usize::try_from(i).ok()),
            _other if self.setting.objects.contains(&symbol) => return 0,
            _other => return mix(symbol.index.into(), symbol.kind.into()),
        };
        let Some(map) = map.and_then(|map| self.setting.maps.get(map)) else { return 0 };
        let key = (0..4).rev().fold(0, |key, i| key << 8 | u64::from(self.byte(cpu, args[1].wrapping_add(i))));
        if key >= map.entries.into() {
            return 0;
        }
        match map.inner {
            Some(inner) => HANDLES + inner as u64,
            None => map.base + key * map.stride(),
        }
    }
}

fn value(frame: &Frame, val: Val) -> u64 {
    match val {
        Val::Reg(v) => frame.regs[v.index()],
        Val::Imm(imm) => imm.cast_unsigned(),
    }
}

fn address(frame: &Frame, mem: Mem) -> u64 {
    let base = match mem.base {
        Base::Reg(v) => frame.regs[v.index()],
        Base::Frame => frame.top,
        Base::Indexed { base, index, shift } => {
            frame.regs[base.index()].wrapping_add(frame.regs[index.index()] << shift)
        }
    };
    base.wrapping_add_signed(mem.off.into())
}

fn narrow(width: Width, value: u64) -> u64 {
    match width {
        Width::W32 => value & 0xffff_ffff,
        Width::W64 => value,
    }
}

fn extend(signed: bool, from: Size, value: u64) -> u64 {
    let unused = 64 - from.bits();
    if signed { ((value << unused).cast_signed() >> unused).cast_unsigned() } else { value << unused >> unused }
}

fn swapped(size: Size, value: u64) -> u64 {
    value.swap_bytes() >> (64 - size.bits())
}
