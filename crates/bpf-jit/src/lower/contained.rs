//! Confines the accesses of a contained program to its objects ([`bpf_analysis::Contained`]).
//!
//! Problem: neither a wrong proof nor a mispredicted branch may lead an access out of the object that its pointer
//! names. Approach: an access at a constant offset uses the object's own start as base, whatever the pointer holds. Any
//! other access uses the pointer's distance from that start, which [`Op::Confine`] replaces by 0 unless all the bytes
//! are inside. If an object's length is known only during the run, an access outside of it goes to memory of the
//! program that nothing else uses ([`Extern::Sink`]).
//!
//! The start of an object is taken from where no program can write: the frame address is the machine's, the context and
//! its regions are in the hidden argument and the context, and the address of a map's first value is linked. The start
//! of an object that a call returned is kept in a virtual register of its own, one for each BPF register and stack slot
//! that may hold such a pointer ([`Home`]). The optimiser removes starts that are not read.
//!
//! Invariants: each access of an instruction that the analysis has reached takes one of these forms; any other
//! instruction stops the run. The comparison of a branch is never relied upon.

use super::func::{FuncLowerer, Sink};
use super::webs::NO_WEB;
use bpf_analysis::{
    BoundsPlace, Confined, ConstMapCall, Contained, Extent, Hold, Home, Object, Passed, Place, RegionBounds,
};
use bpf_isa::{InsnIdx, Reg, Size, Width};
use bpf_jit_code::RunCtx;
use bpf_lir::{Base, BinOp, Extern, Mem, Op, Region, VReg, Val};

impl<S: Sink> FuncLowerer<'_, S> {
    fn confined(&self) -> Confined {
        self.starts.as_ref().map_or(Confined::default(), |starts| starts.facts.at(self.span.first))
    }

    /// Whether the analysis has found that a contained program does not reach the instruction at this slot.
    pub(super) fn is_beyond(&self, slot: u32) -> bool {
        self.starts.as_ref().is_some_and(|starts| !starts.facts.at(slot).reached)
    }

    /// Zeroes the parts of its frame that the function may read, whatever was proven to be written first. If the frame
    /// is accessed at variable offsets, or its address is passed to a function, the whole frame is zeroed. Otherwise
    /// only the accessed pieces are zeroed, each at its own size, so that the optimiser can turn pieces into values.
    pub(super) fn zero_contained(&mut self) {
        let Some(starts) = &self.starts else { return };
        let bpf_isa::Subprog { start, end } = self.program.subprogs()[self.sub.index()];
        let mut pieces: Vec<(i32, Size)> = Vec::new();
        let mut whole = false;
        for slot in start..end {
            let given = starts.facts.passed(slot).into_iter().flatten();
            whole |= given.into_iter().any(|passed| match passed {
                Passed::Pointer { place, .. } => place.object == Object::Frame,
                Passed::Held { frame } => frame,
                Passed::Dynptr { .. } => true,
                Passed::AsIs | Passed::Map(_) | Passed::Inner | Passed::Context | Passed::Null => false,
            });
            let Some(Place { object: Object::Frame, off }) = starts.facts.at(slot).place else { continue };
            match (off, self.program.insns()[slot as usize].memory_access()) {
                (Some(off), Some(access)) => pieces.push((small(off + i64::from(access.off)), access.size)),
                (None, _) | (_, None) => whole = true,
            }
        }
        if whole {
            pieces.clear();
            pieces.extend((1..=self.frame_bytes() / 8).map(|n| (small(-8 * n), Size::DW)));
        }
        // The largest store at an offset comes last, so that loads of all sizes read it.
        pieces.sort_unstable_by_key(|(off, size)| (*off, size.bytes()));
        pieces.dedup();
        for (off, size) in pieces {
            self.op(Op::Store { size, mem: Mem::new(Base::Frame, off), src: Val::Imm(0) });
        }
    }

    /// Computes the starts that do not change, and makes registers for the others.
    pub(super) fn find_starts(&mut self) {
        let Some(starts) = &self.starts else { return };
        let facts = starts.facts;
        let bpf_isa::Subprog { start, end } = self.program.subprogs()[self.sub.index()];
        let (mut regions, mut context) = (0u8, false);
        // By region: the sizes of its accesses in bytes, each a bit.
        let mut sizes = [0u32; 8];
        let mut see = |object: Object| match object {
            Object::Region(region) => regions |= 1 << region,
            Object::Context => context = true,
            Object::Frame | Object::Held { .. } => {}
        };
        for slot in start..end {
            if let Some(place) = facts.at(slot).place {
                see(place.object);
                if let Object::Region(region) = place.object
                    && let Some(access) = self.program.insns()[slot as usize].memory_access()
                {
                    sizes[usize::from(region)] |= access.size.bytes();
                }
            }
            for passed in facts.passed(slot).into_iter().flatten() {
                match passed {
                    Passed::Pointer { place, .. } => see(place.object),
                    Passed::Context if self.is_raw(facts) => see(Object::Region(0)),
                    Passed::Context => see(Object::Context),
                    Passed::AsIs
                    | Passed::Map(_)
                    | Passed::Inner
                    | Passed::Dynptr { .. }
                    | Passed::Null
                    | Passed::Held { .. } => {}
                }
            }
        }
        let used = facts.homes.get(self.sub.index()).copied().unwrap_or_default();
        let received = facts.received.get(self.sub.index()).copied().unwrap_or_default();
        for home in (0..Home::COUNT).filter(|home| used & 1 << home != 0) {
            let argument = Reg::ARGS.iter().position(|reg| Home::Reg(*reg).index() == home);
            let start = match argument.filter(|i| received[*i]) {
                Some(i) => self.ctx_field(RunCtx::lent_offset(i)),
                None => {
                    let start = self.fresh();
                    self.op(Op::Mov { width: Width::W64, dst: start, src: Val::Imm(0) });
                    start
                }
            };
            // The start gets a register of its own, since the register of a load's result may be shared.
            let own = self.fresh();
            self.op(Op::Mov { width: Width::W64, dst: own, src: Val::Reg(start) });
            self.set_home(home, own);
        }
        if context {
            let at = self.ctx_field(RunCtx::CONTEXT_OFFSET);
            if let Some(starts) = &mut self.starts {
                starts.context = Some(at);
            }
        }
        for region in (0..8u8).filter(|region| regions & 1 << region != 0) {
            let bounds = bounds_of(facts, region);
            if facts.moves && bounds.place != BoundsPlace::Raw {
                continue;
            }
            let (mut start, len) = self.bounds(bounds.place);
            // The first argument holds the region's start too. Computing from that register lets the optimiser relate
            // the start to pointers that the program computes from the argument.
            if let (BoundsPlace::Raw, 0, Some(given)) = (bounds.place, self.sub.0, self.func.params[0]) {
                let own = self.fresh();
                self.op(Op::Mov { width: Width::W64, dst: own, src: Val::Reg(given) });
                start = own;
            }
            let mut limits = [NO_WEB; 4];
            for (limit, log) in limits.iter_mut().zip(0u32..) {
                if sizes[usize::from(region)] & 1 << log != 0 {
                    *limit = self.limit(len, bounds.min_len.into(), 1 << log);
                }
            }
            if let Some(starts) = &mut self.starts {
                starts.regions[usize::from(region)] = Some((start, len));
                starts.limits[usize::from(region)] = limits;
            }
        }
        if regions != 0 {
            let sink = self.sink();
            if let Some(starts) = &mut self.starts {
                starts.sink = Some(sink);
            }
        }
    }

    fn is_raw(&self, facts: &Contained) -> bool {
        bounds_of(facts, 0).place == BoundsPlace::Raw
    }

    fn set_home(&mut self, home: usize, start: VReg) {
        if let Some(starts) = &mut self.starts {
            starts.homes[home] = start;
        }
    }

    fn home(&mut self, home: Home) -> VReg {
        match self.starts.as_ref().map(|starts| starts.homes[home.index()]) {
            Some(start) if start != NO_WEB => start,
            Some(_) | None => {
                debug_assert!(false, "{home:?} has no start");
                self.sink()
            }
        }
    }

    /// Returns the limit below which an access of `bytes` bytes may begin, as a distance in bytes from the start of a
    /// region with this length. The limit is 0 if the region is shorter than the access.
    fn limit(&mut self, len: VReg, min_len: i64, bytes: i64) -> VReg {
        if bytes <= 1 {
            return len;
        }
        let limit = self.bin(BinOp::Sub, len, Val::Imm(bytes - 1));
        if min_len >= bytes - 1 {
            return limit;
        }
        let (less, none) = (self.number(bytes - 1), self.number(0));
        self.confine(less, Val::Reg(len), limit, none)
    }

    /// Returns the limit below which an access of `bytes` bytes may begin, as a distance in bytes from the region's
    /// start.
    fn limit_of(&mut self, region: u8, bytes: i64) -> VReg {
        let known = self.starts.as_ref().map(|starts| starts.limits[usize::from(region)]);
        let known = known.and_then(|limits| limits.get(bytes.trailing_zeros() as usize).copied());
        match known.filter(|limit| *limit != NO_WEB && bytes.count_ones() == 1) {
            Some(limit) => limit,
            None => {
                let (_, len, min_len) = self.region_bounds(region);
                self.limit(len, min_len, bytes)
            }
        }
    }

    /// Returns the address of the sink: memory of the program that nothing else uses.
    fn sink(&mut self) -> VReg {
        if let Some(sink) = self.starts.as_ref().and_then(|starts| starts.sink) {
            return sink;
        }
        let dst = self.fresh();
        self.op(Op::SymAddr { dst, symbol: Extern::Sink(0).symbol() });
        dst
    }

    /// Returns the address of the part of the sink that argument `i` of a call gets: no two arguments share a byte.
    fn sink_of(&mut self, i: usize) -> VReg {
        let sink = self.sink();
        self.sum(sink, Contained::sink_part(i))
    }

    fn number(&mut self, imm: i64) -> VReg {
        let dst = self.fresh();
        self.op(Op::Mov { width: Width::W64, dst, src: Val::Imm(imm) });
        dst
    }

    fn sum(&mut self, a: VReg, by: i64) -> VReg {
        if by == 0 { a } else { self.bin(BinOp::Add, a, Val::Imm(by)) }
    }

    fn confine(&mut self, a: VReg, limit: Val, yes: VReg, no: VReg) -> VReg {
        let anywhere = bpf_isa::planted_in!(bpf_opt::faults, ConfinedAnywhere);
        let limit = if anywhere { Val::Imm(-1) } else { limit };
        let dst = self.fresh();
        self.op(Op::Confine { a, limit, dst, yes, no });
        dst
    }

    /// Returns the size of the function's frame in bytes.
    fn frame_bytes(&self) -> i64 {
        self.func.stack_bytes.into()
    }

    /// Returns the start and the size of an object of known size.
    fn object(&mut self, object: Object, home: Reg) -> Option<(VReg, i64)> {
        match object {
            Object::Frame => {
                let bytes = self.frame_bytes();
                let dst = self.fresh();
                self.op(Op::FrameAddr { dst, off: -i32::try_from(bytes).unwrap_or(0) });
                Some((dst, bytes))
            }
            Object::Held { bytes } => Some((self.home(Home::Reg(home)), bytes.into())),
            Object::Context | Object::Region(_) => None,
        }
    }

    fn region_bounds(&mut self, region: u8) -> (VReg, VReg, i64) {
        let Some(starts) = &self.starts else { return (NO_WEB, NO_WEB, 0) };
        let bounds = bounds_of(starts.facts, region);
        let (start, len) = match starts.regions.get(usize::from(region)).copied().flatten() {
            Some(found) => found,
            None => self.bounds(bounds.place),
        };
        (start, len, bounds.min_len.into())
    }

    /// Returns the address of an access of a contained program; `None` for instructions without a confined place, and
    /// for accesses of the arena.
    pub(super) fn confined_mem(&mut self, size: Size, base: Reg, off: i16, atomic: bool) -> Option<Mem> {
        let place = self.confined().place?;
        let (bytes, off) = (i64::from(size.bytes()), i64::from(off));
        let region = match place.object {
            Object::Frame => Region::Stack,
            Object::Context => Region::Context,
            Object::Region(_) => Region::Packet,
            Object::Held { .. } => S::region(self),
        };
        let mem = match (place.object, place.off) {
            (Object::Frame, Some(at)) => Mem::new(Base::Frame, small(at + off)),
            (Object::Context, at) => {
                let context = self.starts.as_ref().and_then(|starts| starts.context).unwrap_or(NO_WEB);
                Mem::new(Base::Reg(context), small(at.unwrap_or(0) + off))
            }
            (Object::Held { .. }, Some(at)) => Mem::new(Base::Reg(self.home(Home::Reg(base))), small(at + off)),
            (Object::Frame | Object::Held { .. }, None) => {
                let pointer = self.read(base);
                let (start, of) = self.object(place.object, base)?;
                let index = self.index(pointer, off, (start, of), bytes);
                if atomic {
                    let index = self.bin(BinOp::And, index, Val::Imm(-bytes));
                    let address = self.bin(BinOp::Add, start, Val::Reg(index));
                    Mem::new(Base::Reg(address), 0)
                } else {
                    Mem::new(Base::Indexed { base: start, index, shift: 0 }, 0)
                }
            }
            (Object::Region(region), Some(at)) => {
                let (start, _, min_len) = self.region_bounds(region);
                let last = at + off + bytes - 1;
                let start = if last < min_len {
                    start
                } else {
                    let limit = self.limit_of(region, bytes);
                    let (at, sink) = (self.number(at + off), self.sink());
                    self.confine(at, Val::Reg(limit), start, sink)
                };
                Mem::new(Base::Reg(start), small(at + off))
            }
            (Object::Region(region), None) => {
                let pointer = self.read(base);
                let sink = self.sink();
                let address = self.in_region(pointer, off, (region, sink), bytes);
                if atomic {
                    let address = self.bin(BinOp::And, address, Val::Imm(-bytes));
                    Mem::new(Base::Reg(address), 0)
                } else {
                    Mem::new(Base::Reg(address), 0)
                }
            }
        };
        Some(Mem { region, ..mem })
    }

    /// Computes how far into the object the pointer moved by `off` leads, or 0 if the `bytes` bytes there are not all
    /// in the object.
    fn index(&mut self, pointer: VReg, off: i64, (start, of): (VReg, i64), bytes: i64) -> VReg {
        let at = self.bin(BinOp::Sub, pointer, Val::Reg(start));
        let at = self.sum(at, off);
        // The analysis accepts no access that is larger than its object.
        debug_assert!(bytes <= of, "{bytes} bytes of {of}");
        let none = self.number(0);
        self.confine(at, Val::Imm((of - bytes + 1).max(0)), at, none)
    }

    /// Computes the pointer moved by `off` if the `bytes` bytes there are in the region, or else the address of the
    /// sink.
    fn in_region(&mut self, pointer: VReg, off: i64, (region, sink): (u8, VReg), bytes: i64) -> VReg {
        let (start, _, _) = self.region_bounds(region);
        let address = self.sum(pointer, off);
        let at = self.bin(BinOp::Sub, address, Val::Reg(start));
        let limit = self.limit_of(region, bytes);
        self.confine(at, Val::Reg(limit), address, sink)
    }

    /// Emits, behind an instruction, its effect on the starts of objects.
    pub(super) fn hold(&mut self) {
        let (from, to) = match self.confined().hold {
            Hold::Nothing => return,
            Hold::Copy(from, to) => (self.home(from), to),
            Hold::MapValue(reg, map) => {
                let dst = self.fresh();
                self.op(Op::SymAddr { dst, symbol: Extern::ArrayBase(map).symbol() });
                (dst, Home::Reg(reg))
            }
            Hold::Result => {
                // The start of an inlined look-up's element is known already.
                if core::mem::take(&mut self.found) {
                    return;
                }
                let result = self.read(Reg::R0);
                let before = self.bin(BinOp::Sub, result, Val::Imm(1));
                let sink = self.sink();
                (self.confine(before, Val::Imm(-1), result, sink), Home::Reg(Reg::R0))
            }
            Hold::Dynptr(off) => {
                // Nothing of the program has run since the function wrote the words.
                for (home, off) in Home::of_dynptr(off).into_iter().zip([i32::from(off), i32::from(off) + 8]) {
                    let dst = self.home(home);
                    let mem = Mem { region: Region::Stack, ..Mem::new(Base::Frame, off) };
                    self.op(Op::Load { size: Size::DW, signed: false, swap: false, dst, mem });
                }
                return;
            }
            Hold::Inner => {
                if core::mem::take(&mut self.found) {
                    return;
                }
                (self.read(Reg::R0), Home::Reg(Reg::R0))
            }
        };
        let dst = self.home(to);
        self.op(Op::Mov { width: Width::W64, dst, src: Val::Reg(from) });
    }

    /// Confines the index of a look-up to the elements of an array, which has at least one; an index outside becomes 0.
    pub(super) fn confined_index(&mut self, key: VReg, max_entries: u32) -> VReg {
        let none = self.number(0);
        self.confine(key, Val::Imm(max_entries.into()), key, none)
    }

    /// Records the start of the element, or the inner map, that a look-up has found.
    pub(super) fn found_at(&mut self, start: VReg) {
        if matches!(self.confined().hold, Hold::Result | Hold::Inner) {
            let dst = self.home(Home::Reg(Reg::R0));
            self.op(Op::Mov { width: Width::W64, dst, src: Val::Reg(start) });
            self.found = true;
        }
    }

    /// Returns the map, and the key if it is constant, of the current look-up. In a contained program, the map that is
    /// passed decides.
    pub(super) fn known_map(&self, insn: InsnIdx) -> Option<ConstMapCall> {
        let known = self.facts.map_call(insn).copied();
        let Some(starts) = &self.starts else { return known };
        match starts.facts.passed(insn.0)?[0] {
            Passed::Map(map) => {
                let key = known.filter(|known| known.map == map).and_then(|known| known.key);
                Some(ConstMapCall { insn, map, key })
            }
            Passed::AsIs
            | Passed::Inner
            | Passed::Dynptr { .. }
            | Passed::Context
            | Passed::Null
            | Passed::Pointer { .. }
            | Passed::Held { .. } => None,
        }
    }

    /// Confines the arguments of the current call.
    pub(super) fn confine_args(&mut self) {
        let passed = self.starts.as_ref().and_then(|starts| starts.facts.passed(self.span.first));
        for (i, passed) in passed.into_iter().flatten().enumerate() {
            let reg = Reg::ARGS[i];
            let value = match passed {
                Passed::AsIs => continue,
                Passed::Map(map) => {
                    let dst = self.fresh();
                    self.op(Op::SymAddr { dst, symbol: Extern::Map(map).symbol() });
                    dst
                }
                Passed::Inner => self.home(Home::Reg(reg)),
                Passed::Dynptr { off, made } => self.dynptr(off, made),
                Passed::Context => match self.starts.as_ref().and_then(|starts| starts.context) {
                    Some(context) => context,
                    None => self.region_bounds(0).0,
                },
                Passed::Null => self.number(0),
                Passed::Pointer { place, extent, align, null } => {
                    let pointer = self.read(reg);
                    let confined = self.argument(i, place, extent, align);
                    match null {
                        false => confined,
                        true => {
                            let none = self.number(0);
                            if let (Extent::Next { .. }, Some(next)) = (extent, Reg::ARGS.get(i + 1).copied()) {
                                let size = self.read(next);
                                let size = self.confine(pointer, Val::Imm(1), none, size);
                                let dst = self.write(next);
                                self.op(Op::Mov { width: Width::W64, dst, src: Val::Reg(size) });
                            }
                            self.confine(pointer, Val::Imm(1), none, confined)
                        }
                    }
                }
                Passed::Held { frame } => {
                    let start = match frame {
                        true => self.object(Object::Frame, reg).map_or(NO_WEB, |(start, _)| start),
                        false => self.home(Home::Reg(reg)),
                    };
                    let mem = self.run_field(RunCtx::lent_offset(i));
                    self.op(Op::Store { size: Size::DW, mem, src: Val::Reg(start) });
                    continue;
                }
            };
            let dst = self.write(reg);
            self.op(Op::Mov { width: Width::W64, dst, src: Val::Reg(value) });
        }
    }

    /// Returns the address of a dynptr in the frame. Unless the call makes the dynptr, its words are restored from
    /// where the program cannot write.
    fn dynptr(&mut self, off: i16, made: bool) -> VReg {
        let at = i32::from(off);
        if !made && !bpf_isa::planted_in!(bpf_opt::faults, DynptrUnrestored) {
            for (home, off) in Home::of_dynptr(off).into_iter().zip([at, at + 8]) {
                let src = Val::Reg(self.home(home));
                self.op(Op::Store {
                    size: Size::DW,
                    mem: Mem { region: Region::Stack, ..Mem::new(Base::Frame, off) },
                    src,
                });
            }
        }
        let dst = self.fresh();
        self.op(Op::FrameAddr { dst, off: at });
        dst
    }

    /// Confines the memory of length `extent` that argument `i` points to, to its object; returns its address. A length
    /// in the next argument register is confined as well.
    fn argument(&mut self, i: usize, place: Place, extent: Extent, align: u8) -> VReg {
        let reg = Reg::ARGS[i];
        let aligned = |f: &mut Self, v: VReg| match align {
            0 | 1 => v,
            _ => f.bin(BinOp::And, v, Val::Imm(-i64::from(align))),
        };
        if let Extent::Bytes(bytes) = extent {
            let bytes = i64::from(bytes);
            return match (place.object, place.off) {
                (Object::Region(region), Some(at)) => {
                    let (start, len, min_len) = self.region_bounds(region);
                    let last = at + bytes - 1;
                    if last < min_len {
                        return self.sum(start, at);
                    }
                    let (yes, no, last) = (self.sum(start, at), self.sink_of(i), self.number(last.max(0)));
                    self.confine(last, Val::Reg(len), yes, no)
                }
                (Object::Region(region), None) => {
                    let pointer = self.read(reg);
                    let sink = self.sink_of(i);
                    let address = self.in_region(pointer, 0, (region, sink), bytes);
                    aligned(self, address)
                }
                (Object::Frame | Object::Held { .. } | Object::Context, at) => {
                    let Some((start, of)) = self.object(place.object, reg) else { return self.sink() };
                    match at {
                        Some(at) if place.object == Object::Frame => self.sum(start, of + at),
                        Some(at) => self.sum(start, at),
                        None => {
                            let pointer = self.read(reg);
                            let index = self.index(pointer, 0, (start, of), bytes);
                            let index = aligned(self, index);
                            self.bin(BinOp::Add, start, Val::Reg(index))
                        }
                    }
                }
            };
        }
        // The length is confined first, so that the room left for the address is known. Then the address is confined,
        // and the length becomes 0 if the address is outside.
        let Some(next) = Reg::ARGS.get(i + 1).copied() else { return self.sink() };
        let pointer = self.read(reg);
        let (start, len) = match place.object {
            Object::Region(region) => {
                let (start, len, _) = self.region_bounds(region);
                (start, len)
            }
            Object::Frame | Object::Held { .. } | Object::Context => match self.object(place.object, reg) {
                Some((start, of)) => (start, self.number(of)),
                None => return self.sink(),
            },
        };
        let none = self.number(0);
        let asked = match extent {
            Extent::Next { half: true } => {
                let (whole, dst) = (self.read(next), self.fresh());
                self.op(Op::Mov { width: Width::W32, dst, src: Val::Reg(whole) });
                dst
            }
            Extent::Next { half: false } | Extent::Bytes(_) => self.read(next),
        };
        let beyond = self.sum(len, 1);
        let size = self.confine(asked, Val::Reg(beyond), asked, none);
        let limit = self.bin(BinOp::Sub, beyond, Val::Reg(size));
        let at = match (place.off, place.object) {
            (Some(at), Object::Frame) => self.number(at + self.frame_bytes()),
            (Some(at), Object::Held { .. } | Object::Region(_) | Object::Context) => self.number(at),
            (None, _) => self.bin(BinOp::Sub, pointer, Val::Reg(start)),
        };
        let size = self.confine(at, Val::Reg(limit), size, none);
        let index = self.confine(at, Val::Reg(limit), at, none);
        let dst = self.write(next);
        self.op(Op::Mov { width: Width::W64, dst, src: Val::Reg(size) });
        let index = aligned(self, index);
        self.bin(BinOp::Add, start, Val::Reg(index))
    }

    /// Whether the program is contained.
    pub(super) fn is_contained(&self) -> bool {
        self.starts.is_some()
    }
}

/// Returns the bounds of a region.
fn bounds_of(facts: &Contained, region: u8) -> RegionBounds {
    let nowhere = RegionBounds { min_len: 0, place: BoundsPlace::Nowhere };
    facts.regions.get(usize::from(region)).copied().unwrap_or(nowhere)
}

/// Narrows an offset to that of an address. The analysis makes no larger offset.
fn small(off: i64) -> i32 {
    debug_assert!(i32::try_from(off).is_ok());
    i32::try_from(off).unwrap_or(0)
}
