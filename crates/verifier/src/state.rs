//! The abstract machine state: frames of registers and stack, and what is known across them.
//!
//! Problem: a state is copied at each undecided branch and compared at each join, so it must be small and cheap in
//! both. Approach: one record a frame; stack contents as one byte of kind per byte plus a short sorted list of values
//! that are known better ([`Spill`]); vectors grow only as deep as the program writes. States are recycled, so a copy
//! allocates nothing in the steady state.
//!
//! Invariants: spills of a frame are sorted by `depth`, do not overlap, and cover exactly the bytes of kind `Spill`.
//! Stack byte i of `bytes` is the byte at r10 - 1 - i.

use bpf_isa::{InsnIdx, Reg};

use crate::env::Region;
use crate::faults::planted;
use crate::helpers::CallbackKind;
use crate::scalar::Scalar;
use crate::value::{FIRST_FREE_ID, Ty, Value, Why, len_id};

/// What a stack byte holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Byte {
    /// Nothing that may be read.
    Uninit,
    /// Some number.
    Misc,
    /// Zero.
    Zero,
    /// Part of a [`Spill`].
    Spill,
}

/// A value on the stack.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Spill {
    /// It starts at r10 - depth.
    pub depth: u16,
    /// Bytes it takes.
    pub size: u8,
    pub value: Value,
}

/// How a frame was entered, and so how it is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// The main program, or a global function on its own.
    Root,
    /// A call; the caller continues here.
    Call { back: InsnIdx },
    /// A callback; the caller continues here when the helper returns.
    Callback { kind: CallbackKind, back: InsnIdx, call: InsnIdx },
}

/// One function's registers and stack.
#[derive(Debug)]
pub(crate) struct Frame {
    pub regs: [Value; 11],
    pub bytes: Vec<Byte>,
    pub spills: Vec<Spill>,
    pub entry: Entry,
    pub subprog: u32,
    /// The epoch outside (see `walk::prune`). No part of the state proper.
    pub outer_epoch: u32,
}

impl Clone for Frame {
    fn clone(&self) -> Frame {
        Frame {
            regs: self.regs,
            bytes: self.bytes.clone(),
            spills: self.spills.clone(),
            entry: self.entry,
            subprog: self.subprog,
            outer_epoch: self.outer_epoch,
        }
    }
    /// Keeps the vectors' memory, which `derive` would not.
    fn clone_from(&mut self, other: &Frame) {
        self.regs = other.regs;
        self.bytes.clone_from(&other.bytes);
        self.spills.clone_from(&other.spills);
        self.entry = other.entry;
        self.subprog = other.subprog;
        self.outer_epoch = other.outer_epoch;
    }
}

impl Frame {
    pub(crate) fn new(index: u8, subprog: u32, entry: Entry) -> Frame {
        let mut regs = [Value::uninit(Why::Never); 11];
        regs[Reg::R10.index()] = Value::pointer(Ty::Stack { frame: index });
        Frame { regs, bytes: Vec::new(), spills: Vec::new(), entry, subprog, outer_epoch: 0 }
    }

    /// The kind of the byte at r10 - depth.
    fn byte(&self, depth: usize) -> Byte {
        self.bytes.get(depth - 1).copied().unwrap_or(Byte::Uninit)
    }

    /// The spill that covers the byte at r10 - depth.
    fn spill_at(&self, depth: usize) -> Option<&Spill> {
        self.spills.iter().find(|s| depth <= usize::from(s.depth) && depth + usize::from(s.size) > usize::from(s.depth))
    }

    /// The byte's value, if it is known.
    fn known_byte(&self, depth: usize) -> Option<u8> {
        match self.byte(depth) {
            Byte::Zero => Some(0),
            Byte::Uninit | Byte::Misc => None,
            Byte::Spill => {
                let spill = self.spill_at(depth)?;
                let v = spill.value.as_const()?;
                Some((v >> (8 * (usize::from(spill.depth) - depth))) as u8)
            }
        }
    }

    /// The `size` bytes from r10 - depth as one little-endian number, if all are known.
    pub(crate) fn known_number(&self, depth: usize, size: usize) -> Option<u64> {
        (0..size).try_fold(0, |v, i| Some(v | u64::from(self.known_byte(depth - i)?) << (8 * i)))
    }

    /// The spill of exactly these bytes.
    pub(crate) fn spilled(&self, depth: usize, size: usize) -> Option<&Spill> {
        self.spills.iter().find(|s| (usize::from(s.depth), usize::from(s.size)) == (depth, size))
    }

    /// What a load of `size` bytes at r10 - depth yields; `Err` names the depth of a byte that cannot be read.
    pub(crate) fn load(&self, depth: usize, size: usize) -> Result<Value, usize> {
        if let Some(s) = self.spill_at(depth)
            && usize::from(s.depth) == depth
        {
            if usize::from(s.size) == size {
                return Ok(s.value);
            }
            if size < usize::from(s.size) && s.value.is_scalar() {
                return Ok(Value::scalar(s.value.n.truncate(8 * size as u32)));
            }
        }
        self.check_readable(depth, size)?;
        if let Some(v) = self.known_number(depth, size) {
            return Ok(Value::constant(v));
        }
        Ok(Value::scalar(Scalar::low_bits(8 * size as u32)))
    }

    /// Whether the `size` bytes from r10 - depth are initialised and hold no part of a pointer.
    pub(crate) fn check_readable(&self, depth: usize, size: usize) -> Result<(), usize> {
        for d in (depth + 1 - size..=depth).rev() {
            match self.byte(d) {
                Byte::Misc | Byte::Zero => {}
                Byte::Uninit if planted!(UninitReadable) => {}
                Byte::Uninit => return Err(d),
                Byte::Spill => {
                    if !self.spill_at(d).is_some_and(|s| s.value.is_scalar()) {
                        return Err(d);
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes the bytes from r10 - depth hold no spill. Bytes of a spill outside the range stay readable if they were
    /// part of a number, and become unreadable if they were part of a pointer (reading them would leak half of it).
    fn clear_spills(&mut self, depth: usize, size: usize) {
        if planted!(SpillSurvives) && size < 8 {
            return;
        }
        let low = depth - size;
        let bytes = &mut self.bytes;
        self.spills.retain(|s| {
            let (top, end) = (usize::from(s.depth), usize::from(s.depth) - usize::from(s.size));
            if top <= low || end >= depth {
                return true;
            }
            let rest = if s.value.is_scalar() { Byte::Misc } else { Byte::Uninit };
            bytes[end..top].fill(rest);
            false
        });
    }

    /// Stores `value` at r10 - depth. A number must already be truncated to `size` bytes; pointers take 8.
    pub(crate) fn store(&mut self, depth: usize, size: usize, value: &Value) {
        let kind = match value.as_const() {
            Some(0) => Byte::Zero,
            None if value.is_any(8 * size as u32) => Byte::Misc,
            _ => Byte::Spill,
        };
        if kind == Byte::Spill
            && let Some(spill) =
                self.spills.iter_mut().find(|s| (usize::from(s.depth), usize::from(s.size)) == (depth, size))
        {
            spill.value = *value;
            return;
        }
        self.grow(depth);
        self.clear_spills(depth, size);
        self.bytes[depth - size..depth].fill(kind);
        if kind == Byte::Spill {
            let at = self.spills.partition_point(|s| usize::from(s.depth) < depth);
            // A frame has at most u16::MAX bytes, checked when the walk starts.
            self.spills.insert(at, Spill { depth: depth as u16, size: size as u8, value: *value });
        }
    }

    /// Makes `size` bytes at r10 - depth some number each.
    pub(crate) fn store_misc(&mut self, depth: usize, size: usize) {
        self.grow(depth);
        self.clear_spills(depth, size);
        self.bytes[depth - size..depth].fill(Byte::Misc);
    }

    /// A store somewhere within the `size` bytes from r10 - depth: what was there may be overwritten, and what was
    /// not written may still be uninitialised.
    pub(crate) fn store_somewhere(&mut self, depth: usize, size: usize) {
        self.grow(depth);
        self.clear_spills(depth, size);
        for b in &mut self.bytes[depth - size..depth] {
            if *b == Byte::Zero {
                *b = Byte::Misc;
            }
        }
    }

    fn grow(&mut self, depth: usize) {
        if self.bytes.len() < depth {
            self.bytes.resize(depth.next_multiple_of(8), Byte::Uninit);
        }
    }

    /// Every value of the frame, to change in place.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        self.regs.iter_mut().chain(self.spills.iter_mut().map(|s| &mut s.value))
    }

    /// Every value of the frame.
    pub(crate) fn values(&self) -> impl Iterator<Item = &Value> {
        self.regs.iter().chain(self.spills.iter().map(|s| &s.value))
    }

    /// Removes spills that can no longer be read; their bytes go with them.
    pub(crate) fn drop_uninit_spills(&mut self) {
        let bytes = &mut self.bytes;
        self.spills.retain(|s| {
            if s.value.is_uninit() {
                bytes[usize::from(s.depth) - usize::from(s.size)..usize::from(s.depth)].fill(Byte::Uninit);
            }
            !s.value.is_uninit()
        });
    }
}

/// The spin lock that is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lock {
    /// Map, and the id of the element.
    pub map: u32,
    pub inner: bool,
    pub id: u32,
    /// Where it was taken.
    pub at: InsnIdx,
}

/// A proven fact: `start of region + V(id) + bytes <= end of region`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    pub region: u8,
    pub id: u32,
    pub bytes: u32,
}

/// A record that must be consumed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owed {
    pub id: u32,
    /// Where it was reserved.
    pub at: InsnIdx,
    /// The frame that reserved it.
    pub frame: u8,
}

/// The whole abstract machine at one instruction.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub frames: Vec<Frame>,
    pub owed: Vec<Owed>,
    pub lock: Option<Lock>,
    /// Proven least length of each region.
    pub min_len: [u32; Region::MAX_REGIONS],
    pub room: Vec<Room>,
}

impl Clone for State {
    fn clone(&self) -> State {
        let mut s = State::default();
        s.clone_from(self);
        s
    }
    fn clone_from(&mut self, other: &State) {
        self.frames.clone_from(&other.frames);
        self.owed.clone_from(&other.owed);
        self.lock = other.lock;
        self.min_len = other.min_len;
        self.room.clone_from(&other.room);
    }
}

impl State {
    /// The frame that runs. There always is one while the walk does.
    pub(crate) fn top(&self) -> &Frame {
        &self.frames[self.frames.len() - 1]
    }
    pub(crate) fn top_mut(&mut self) -> &mut Frame {
        let last = self.frames.len() - 1;
        &mut self.frames[last]
    }
    pub(crate) fn reg(&self, r: Reg) -> &Value {
        &self.top().regs[r.index()]
    }
    pub(crate) fn set(&mut self, r: Reg, v: Value) {
        self.top_mut().regs[r.index()] = v;
    }
    /// Every value of every frame, to change in place.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        self.frames.iter_mut().flat_map(Frame::values_mut)
    }

    /// Bytes proven to follow `start + V(id)` in a region. `None`: not even that address is known to be in it, so that
    /// nothing is proven of the bytes just before it either.
    pub(crate) fn room(&self, region: u8, id: u32) -> Option<u32> {
        if id == 0 {
            return self.min_len.get(usize::from(region)).copied();
        }
        let learnt = self.room.iter().find(|r| (r.region, r.id) == (region, id)).map(|r| r.bytes);
        // V = the length: the end itself.
        learnt.or((id == len_id(region)).then_some(0))
    }

    /// Learns that at least `bytes` bytes follow `start + V(id)`.
    pub(crate) fn learn_room(&mut self, region: u8, id: u32, bytes: u32) {
        if id == 0 {
            let len = &mut self.min_len[usize::from(region)];
            *len = (*len).max(bytes);
        } else if let Some(r) = self.room.iter_mut().find(|r| (r.region, r.id) == (region, id)) {
            r.bytes = r.bytes.max(bytes);
        } else {
            self.room.push(Room { region, id, bytes });
        }
    }

    /// Invalidates every pointer into a region, and every number that is a region's length.
    pub(crate) fn packet_moved(&mut self, at: InsnIdx, min_lens: [u32; Region::MAX_REGIONS]) {
        for frame in &mut self.frames {
            let registers = if planted!(SpilledPacketSurvives) { 11 } else { usize::MAX };
            for v in frame.values_mut().take(registers) {
                match v.ty {
                    Ty::Packet { .. } | Ty::PacketEnd { .. } | Ty::Half { .. } => *v = Value::uninit(Why::Moved(at)),
                    // Still a number, but no longer *the* length.
                    Ty::Scalar if v.id < FIRST_FREE_ID => *v = v.unlinked(),
                    _ => {}
                }
            }
            frame.drop_uninit_spills();
        }
        if planted!(PacketLengthSurvives) || planted!(SpilledPacketSurvives) {
            return;
        }
        self.room.clear();
        self.min_len = min_lens;
    }

    /// An estimate of the memory it takes.
    pub(crate) fn bytes(&self) -> usize {
        let frame = |f: &Frame| size_of::<Frame>() + f.bytes.capacity() + f.spills.capacity() * size_of::<Spill>();
        self.frames.iter().map(frame).sum::<usize>() + size_of::<State>()
    }
}
