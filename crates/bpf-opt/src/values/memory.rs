//! What memory holds, within a block: what was stored there or loaded from there, until something may have written it.
//!
//! Two loads of one address in straight code may be one whoever else writes there: that both read at the same moment is
//! one of the things that can happen. Calls, atomics and whatever orders memory forget everything.

use super::{NEW, Pass};
use crate::faults::planted;
use bpf_isa::{Size, Width};
use bpf_lir::{Mem, Op, VReg, Val};

/// How many places are known at a time.
const MAX_KNOWN: usize = 16;

/// A place whose content is known.
#[derive(Clone, Copy, Debug)]
struct Place {
    mem: Mem,
    size: Size,
    /// How the value was extended and swapped; a stored one is neither.
    signed: bool,
    swap: bool,
    stored: bool,
    value: Val,
}

/// What is known at a point of a block.
#[derive(Debug, Default)]
pub(super) struct Known {
    places: Vec<Place>,
    /// The writes of this block, each with its place among the ops; only the last ones.
    writes: Vec<(Mem, Size, u32)>,
    /// No load from before this op may be moved behind it.
    barrier: u32,
}

/// Whether two accesses may touch one byte.
fn may_meet(a: Mem, a_size: Size, b: Mem, b_size: Size) -> bool {
    if a.base == b.base {
        let (a_off, b_off) = (i64::from(a.off), i64::from(b.off));
        return a_off < b_off + i64::from(b_size.bytes()) && b_off < a_off + i64::from(a_size.bytes());
    }
    !planted!(BasesApart) && a.region.may_meet(b.region)
}

impl Known {
    pub(super) fn clear(&mut self) {
        self.places.clear();
        self.writes.clear();
        self.barrier = 0;
    }

    fn add(&mut self, place: Place) {
        if self.places.len() == MAX_KNOWN {
            self.places.remove(0);
        }
        self.places.push(place);
    }

    /// The op that is emitted next, with this place among the ops, is this one.
    pub(super) fn after(&mut self, op: &Op, at: u32) {
        match *op {
            Op::Store { size, mem, src } => {
                self.places.retain(|place| !may_meet(place.mem, place.size, mem, size));
                self.add(Place { mem, size, signed: false, swap: false, stored: true, value: src });
                if self.writes.len() == MAX_KNOWN {
                    self.barrier = self.writes.remove(0).2;
                }
                self.writes.push((mem, size, at));
            }
            Op::LoadAcquire { .. }
            | Op::StoreRelease { .. }
            | Op::Atomic { .. }
            | Op::CmpXchg { .. }
            | Op::Call { .. }
            | Op::TailCall { .. } => {
                if !planted!(CallsForgetNothing) {
                    self.clear();
                    self.barrier = at;
                }
            }
            // Writes only fields of the run that no program reads.
            Op::Check { .. } | Op::Bound { .. } => {}
            Op::Mov { .. }
            | Op::Ext { .. }
            | Op::Bin { .. }
            | Op::Neg { .. }
            | Op::Bswap { .. }
            | Op::AddShift { .. }
            | Op::Select { .. }
            | Op::Confine { .. }
            | Op::FrameAddr { .. }
            | Op::SymAddr { .. }
            | Op::SubprogAddr { .. }
            | Op::Load { .. }
            | Op::Stop { .. }
            | Op::Jump { .. }
            | Op::Branch { .. }
            | Op::Exit { .. } => {}
        }
    }

    /// Whether a load that was op `from` may as well be made now.
    pub(super) fn may_sink(&self, mem: Mem, size: Size, from: u32) -> bool {
        planted!(LoadsSinkAnywhere)
            || from >= self.barrier
                && !self.writes.iter().any(|(write, bytes, at)| *at >= from && may_meet(*write, *bytes, mem, size))
    }
}

impl Pass<'_> {
    /// A load: what is known to be there, or the load itself.
    pub(super) fn load(
        &mut self,
        size: Size,
        signed: bool,
        swap: bool,
        mem: Mem,
        dst: VReg,
        depth: u32,
    ) -> Result<VReg, Op> {
        let same = |place: &&Place| place.mem.base == mem.base && place.mem.off == mem.off && place.size == size;
        if let Some(place) = self.s.memory.places.iter().rev().find(same).copied() {
            match place.value {
                Val::Reg(v) if place.stored && !swap => {
                    let op = match size {
                        Size::DW => Op::Mov { width: Width::W64, dst: NEW, src: Val::Reg(v) },
                        Size::B | Size::H | Size::W => {
                            Op::Ext { width: Width::W64, signed, from: size, dst: NEW, src: v }
                        }
                    };
                    return Ok(self.value(op, dst, depth + 1));
                }
                Val::Imm(imm) if place.stored && !swap => {
                    let imm = bpf_lir::extend(signed, size, imm as u64) as i64;
                    return Ok(self.mov(Width::W64, Val::Imm(imm), dst));
                }
                Val::Reg(v) if !place.stored && (place.signed, place.swap) == (signed, swap) => return Ok(v),
                Val::Reg(_) | Val::Imm(_) => {}
            }
        }
        // The value is known once it is emitted: it is the next to be defined.
        let value = if dst == NEW { self.fresh() } else { dst };
        self.s.memory.add(Place { mem, size, signed, swap, stored: false, value: Val::Reg(value) });
        let op = Op::Load { size, signed, swap, dst: value, mem };
        if value == dst { Err(op) } else { Ok(self.push(op, value)) }
    }

    /// The load that defines a value, if nobody else reads it and it stands in this block.
    fn own_load(&mut self, v: VReg, size: Size) -> Option<&mut Op> {
        let at = self.s.defs[v.index()];
        if self.s.uses[v.index()] != 0 || at < self.start {
            return None;
        }
        let op = self.s.ops.get_mut(at as usize)?;
        matches!(op, Op::Load { signed: false, swap: false, size: found, .. } if *found == size).then_some(op)
    }

    /// The bytes of a load that only this reads are reversed: the load does it.
    pub(super) fn swap(&mut self, size: Size, v: VReg) -> Option<VReg> {
        if size == Size::B {
            return None;
        }
        if let Some(Op::Load { swap, .. }) = self.own_load(v, size) {
            *swap = true;
            self.s.memory.forget(v);
            return Some(v);
        }
        None
    }

    /// The same of a sign extension.
    pub(super) fn sign_load(&mut self, size: Size, v: VReg) -> Option<VReg> {
        if let Some(Op::Load { signed, .. }) = self.own_load(v, size) {
            *signed = true;
            self.s.memory.forget(v);
            self.s.bits[v.index()] = 64;
            return Some(v);
        }
        None
    }
}

impl Known {
    /// The value is no longer what was loaded.
    fn forget(&mut self, v: VReg) {
        self.places.retain(|place| place.value != Val::Reg(v));
    }
}
