//! Indirect jumps: their targets, and the origin of the loaded instructions.
//!
//! Approach: a map of instructions is not memory but a table. A pointer into it ([`Ty::Table`]) moves as a pointer to a
//! map's value does, and the only use of it is to load one whole entry. The loaded value ([`Ty::Insn`]) is not a
//! number: it is the entry at an offset whose range the walk knows. It may only be copied, spilled and jumped to. A
//! jump walks the target of each entry in the range, as a branch does.
//!
//! Invariants: the target of a jump lies in the running function, and is one of the targets with which the program was
//! made, so the control flow graph has its edge. The set of possible entries decides the path, so the register is
//! needed exactly, and so is the pointer from which the entry was loaded, like any address.

use bpf_isa::{InsnIdx, Reg, Size, SubprogId};
use bpf_uapi::MapType;

use super::{Flow, Res, Walk, refuse};
use crate::env::KnownMap;
use crate::error::Reason;
use crate::value::{Ty, Value, map_name};

/// Bytes of an entry as programs see it.
const ENTRY: u32 = 8;

/// Bytes of a map of instructions as programs see it.
pub(super) fn table_bytes(def: &KnownMap) -> u32 {
    def.max_entries.saturating_mul(ENTRY)
}

impl Walk<'_> {
    /// The value that a load of `size` bytes at `off` behind a pointer into a table yields.
    pub(super) fn load_entry(&mut self, b: &Value, map: u32, off: i16, size: Size) -> Res<Value> {
        if size != Size::DW {
            return refuse(Reason::PartOfInsn { map: map_name(self.env, map, false) });
        }
        let (what, limit) = (map_name(self.env, map, false), table_bytes(self.map(map, false)?));
        let (min, max) = (b.n.smin().saturating_add(off.into()), b.n.smax().saturating_add(off.into()));
        if min < 0 || max.saturating_add(ENTRY.into()) > i64::from(limit) {
            return refuse(Reason::Bounds { what, size: ENTRY.into(), min, max, limit: limit.into() });
        }
        let n =
            b.n.alu(bpf_isa::AluOp::Add, bpf_isa::Width::W64, &crate::scalar::Scalar::constant(i64::from(off) as u64));
        let bits = n.bits();
        if bits.max() & u64::from(ENTRY - 1) != 0 {
            return refuse(Reason::Alignment { align: ENTRY, off: b.n.to_string(), what });
        }
        Ok(Value { n, ..Value::pointer(Ty::Insn { map }) })
    }

    /// `gotox`: walks the target of each entry that the register may hold.
    pub(super) fn jump_register(&mut self, reg: Reg) -> Res<Flow> {
        self.decides();
        let v = self.read(reg)?;
        let Ty::Insn { map } = v.ty else { return refuse(Reason::NotAnInsn(reg, v.describe(self.env))) };
        let env = self.env;
        let def = &env.maps[map as usize];
        debug_assert_eq!(def.kind, MapType::InsnArray);
        let (first, last) = (v.n.umin() / u64::from(ENTRY), v.n.umax() / u64::from(ENTRY));
        let entries = usize::try_from(first).ok().zip(usize::try_from(last).ok());
        let Some(entries) = entries.and_then(|(first, last)| def.targets.get(first..=last)) else {
            return refuse(Reason::Environment(format!("map \"{}\" has fewer entries than it says", def.name)));
        };
        let function = self.state.top().subprog;
        let known = self.program.indirect_targets(SubprogId(function));
        let mut ways: Vec<InsnIdx> = Vec::new();
        for (i, &target) in (first..).zip(entries) {
            if !v.n.contains(i * u64::from(ENTRY)) {
                continue;
            }
            if self.program.subprog_of(target).0 != function {
                let map = map_name(env, map, false);
                return refuse(Reason::JumpToOther { map, entry: i, target, function });
            }
            if known.binary_search(&target).is_err() {
                let what = format!("entry {i} of map \"{}\" is no target of the program", def.name);
                return refuse(Reason::Environment(what));
            }
            ways.push(target);
        }
        ways.sort_unstable();
        ways.dedup();
        let Some((&now, later)) = ways.split_first() else {
            return refuse(Reason::Internal("an indirect jump to no entry"));
        };
        for &target in later.iter().rev() {
            let state = self.copy_state();
            self.push(target, state, None, self.epoch)?;
        }
        Ok(Flow::To(now))
    }
}
