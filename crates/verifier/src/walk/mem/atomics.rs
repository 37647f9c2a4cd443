//! Atomic accesses, and alignment proofs.

use bpf_isa::{AtomicOp, AtomicWidth, Reg, Size};

use super::Place;
use crate::access::Access;
use crate::error::Reason;
use crate::faults::planted;
use crate::notes::Kind;
use crate::scalar::Scalar;
use crate::tnum::Tnum;
use crate::value::{Origin, Ty, Value};
use crate::walk::{Res, Walk, refuse};

impl Walk<'_> {
    /// Proves an access that must be atomic: it is aligned, and the memory is not such that the host makes promises
    /// about its use.
    pub(in crate::walk) fn atomic_place(&mut self, base: Reg, off: i16, bytes: u32, access: Access) -> Res<Place> {
        let b = self.read(base)?;
        let forbidden = match b.ty {
            Ty::Ctx => Some("the context"),
            Ty::Packet { region } if self.env.region(region).align >= bytes => None,
            Ty::Packet { .. } | Ty::PacketEnd { .. } | Ty::Half { .. } => Some("a packet"),
            Ty::Uninit(_)
            | Ty::Scalar
            | Ty::Stack { .. }
            | Ty::Map { .. }
            | Ty::MapValue { .. }
            | Ty::Mem { .. }
            | Ty::Biased { .. }
            | Ty::Signed
            | Ty::Stale { .. }
            | Ty::Host { .. }
            | Ty::Func { .. }
            | Ty::Arena
            | Ty::Table { .. }
            | Ty::Insn { .. }
            | Ty::Local(_) => None,
        };
        if let Some(what) = forbidden {
            return refuse(Reason::AtomicMemory(what));
        }
        if b.is_arena() {
            // Its alignment is checked at run time.
            let place = Place::Untracked(Kind::Arena);
            self.note_access(place)?;
            return Ok(place);
        }
        let place = self.place(base, &b, off.into(), bytes.into(), access)?;
        if !self.aligned(&b, off.into(), bytes) && !planted!(AtomicUnaligned) {
            let off = b.n.alu(bpf_isa::AluOp::Add, bpf_isa::Width::W64, &Scalar::constant(off as i64 as u64));
            return refuse(Reason::Unaligned { size: bytes.into(), off: off.to_string() });
        }
        self.note_access(place)?;
        Ok(place)
    }

    /// Whether `v + off` is proven to be a multiple of this power of two. For a global function's argument this is
    /// assumed, and each call has to prove it.
    pub(in crate::walk) fn aligned(&mut self, v: &Value, off: i64, align: u32) -> bool {
        let start = match v.ty {
            Ty::Packet { region } => self.env.region(region).align,
            Ty::Mem { from: Origin::Lent { .. } | Origin::Element, .. } => 4,
            Ty::Mem { from: Origin::Argument { arg }, .. } => {
                self.argument_aligned(arg, align.min(8));
                8
            }
            Ty::Mem { from: Origin::Slice { .. }, .. } => 1,
            // Frames, map values, records, sockets, objects and results of functions.
            _ => 8,
        };
        let at = v.n.bits().add(Tnum::constant(off as u64));
        align <= start && at.max() & u64::from(align - 1) == 0
    }

    /// Proves the alignment of memory that is passed on to a function.
    pub(in crate::walk) fn prove_alignment(&mut self, v: &Value, align: u32) -> Res<()> {
        if self.aligned(v, 0, align) {
            return Ok(());
        }
        let what = Value { n: Scalar::constant(0), ..*v }.describe(self.env);
        refuse(Reason::Alignment { align, off: v.n.to_string(), what })
    }

    pub(in crate::walk) fn atomic(
        &mut self,
        width: AtomicWidth,
        op: AtomicOp,
        base: Reg,
        off: i16,
        src: Reg,
    ) -> Res<()> {
        let bits = crate::walk::bits_of(width);
        for r in [Some(src), (op == AtomicOp::CmpXchg).then_some(Reg::R0)].into_iter().flatten() {
            let v = self.shown(self.read(r)?).as_number();
            if !v.is_scalar() {
                return refuse(Reason::Leak(r, v.describe(self.env), "an atomic operation"));
            }
        }
        let place = self.atomic_place(base, off, bits / 8, Access::ReadWrite)?;
        self.state.regions_written();
        let mut old = Value::scalar(Scalar::low_bits(bits));
        match place {
            Place::Stack { frame, depth, size } => {
                self.readable_stack(frame, depth, size)?;
                let frame = &mut self.state.frames[usize::from(frame)];
                // No other thread writes the stack: the fetched value is the stored one.
                old = frame.load(depth, size).ok().filter(Value::is_scalar).unwrap_or(old);
                frame.store_misc(depth, size);
            }
            Place::StackWithin { frame, depth, span } => {
                self.readable_stack(frame, depth, span)?;
                self.state.frames[usize::from(frame)].store_somewhere(depth, span);
            }
            Place::Field { .. } | Place::Untracked(_) => {}
        }
        match op {
            AtomicOp::Add { fetch } | AtomicOp::Or { fetch } | AtomicOp::And { fetch } | AtomicOp::Xor { fetch } => {
                if fetch && !planted!(FetchForgotten) {
                    self.state.set(src, old);
                }
            }
            AtomicOp::Xchg => self.state.set(src, old),
            AtomicOp::CmpXchg => self.state.set(Reg::R0, old),
        }
        Ok(())
    }

    pub(in crate::walk) fn load_acquire(&mut self, size: Size, dst: Reg, base: Reg, off: i16) -> Res<()> {
        self.atomic_place(base, off, size.bytes(), Access::Read)?;
        let v = self.loaded(size, base, off)?;
        self.state.set(dst, v);
        Ok(())
    }

    pub(in crate::walk) fn store_release(&mut self, size: Size, base: Reg, off: i16, src: Reg) -> Res<()> {
        let v = self.read(src)?;
        self.atomic_place(base, off, size.bytes(), Access::Write)?;
        self.store_value(size, base, off, src, v)
    }
}
