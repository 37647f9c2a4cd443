//! Tracks the contents of memory within a block: the value stored or loaded last, until something may have overwritten
//! it.
//!
//! Two loads of one address in straight code may become one even if other threads write there: both loads reading at
//! the same moment is a permitted execution. Calls, atomic operations and ops that order memory make all contents
//! unknown.

use super::{NEW, Pass};
use crate::faults::planted;
use bpf_isa::{Size, Width};
use bpf_lir::{Mem, Op, VReg, Val};

/// How many places are tracked at a time.
const MAX_KNOWN: usize = 16;

/// A place in memory whose content is known.
#[derive(Clone, Copy, Debug)]
struct Place {
    mem: Mem,
    size: Size,
    /// Whether the load that found the value sign-extended it and reversed its bytes; false for a stored value.
    signed: bool,
    swap: bool,
    stored: bool,
    value: Val,
}

/// The known contents at a point of a block.
#[derive(Debug, Default)]
pub(super) struct Known {
    places: Vec<Place>,
    /// The last [`MAX_KNOWN`] stores of this block, each with its index among the ops.
    writes: Vec<(Mem, Size, u32)>,
    /// No load with a smaller op index may be moved to here.
    barrier: u32,
}

/// Whether two accesses may touch a common byte.
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

    /// Updates the contents for `op`, which is emitted next with op index `at`.
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
            // These ops write only fields of the run, which no program reads.
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

    /// Whether the load at op index `from` may be moved to here: nothing in between may have written its bytes or
    /// ordered memory.
    pub(super) fn may_sink(&self, mem: Mem, size: Size, from: u32) -> bool {
        planted!(LoadsSinkAnywhere)
            || from >= self.barrier
                && !self.writes.iter().any(|(write, bytes, at)| *at >= from && may_meet(*write, *bytes, mem, size))
    }
}

impl Pass<'_> {
    /// Rewrites a load: returns the value known to be in memory, or the load itself as `Err`.
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
        // The load is emitted next and defines `value`.
        let value = if dst == NEW { self.fresh() } else { dst };
        self.s.memory.add(Place { mem, size, signed, swap, stored: false, value: Val::Reg(value) });
        let op = Op::Load { size, signed, swap, dst: value, mem };
        if value == dst { Err(op) } else { Ok(self.push(op, value)) }
    }

    /// Returns the load of this size that defines a value, if nothing else reads the value and the load is in this
    /// block.
    fn own_load(&mut self, v: VReg, size: Size) -> Option<&mut Op> {
        let at = self.s.defs[v.index()];
        if self.s.uses[v.index()] != 0 || at < self.start {
            return None;
        }
        let op = self.s.ops.get_mut(at as usize)?;
        matches!(op, Op::Load { signed: false, swap: false, size: found, .. } if *found == size).then_some(op)
    }

    /// Lets the load of `v` reverse its bytes in place of a byte swap, if the swap is the only reader of `v`.
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

    /// Lets the load of `v` sign-extend in place of an extension, if the extension is the only reader of `v`.
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
    /// Forgets that memory holds `v`, because the load of `v` was changed.
    fn forget(&mut self, v: VReg) {
        self.places.retain(|place| place.value != Val::Reg(v));
    }
}
