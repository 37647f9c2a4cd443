//! Facts for a compiler: what the check observed of each instruction, over all states in which it ran.
//!
//! Invariant: a fact holds in every abstract state in which the instruction was walked, and so in every run.

use std::collections::BTreeMap;

use bpf_analysis::{ConstMapCall, ConstTailCall, ContextAccess, Facts, FrameUse, InsnFact, MemKind, Zeroed};
use bpf_isa::{Insn, InsnIdx, Program, SubprogId};

use crate::contract::Env;
use crate::faults::planted;
use crate::refusal::{Res, Why};

/// Kind of memory that an instruction accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Stack,
    Context,
    Packet,
    MapValue,
    Mem,
    /// Different kinds, or memory whose kind is not described.
    Mixed,
}

/// The join of the values seen: a single value, or the mark of different values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Same<T> {
    Always(T),
    Differs,
}

impl<T: PartialEq + Copy> Same<T> {
    fn of(v: Option<T>) -> Same<T> {
        v.map_or(Same::Differs, Same::Always)
    }
    fn join(&mut self, v: Option<T>) {
        if *self != Same::of(v) {
            *self = Same::Differs;
        }
    }
    fn get(self) -> Option<T> {
        match self {
            Same::Always(v) => Some(v),
            Same::Differs => None,
        }
    }
}

/// The behaviour of runs at an instruction that a jump leads back to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Head {
    /// No path has come here.
    #[default]
    Unseen,
    /// Each path that came may sleep.
    Yields,
    /// Some path may not sleep.
    Stays,
}

#[derive(Clone, Copy, Debug, Default)]
struct Note {
    reached: bool,
    head: Head,
    /// The kind of memory. For the context also the index of the field and the offset within it.
    access: Option<(Kind, (usize, u32))>,
}

/// A call with a map.
#[derive(Clone, Copy, Debug)]
struct CallNote {
    map: Same<u32>,
    key: Same<u64>,
    tail_call: bool,
}

#[derive(Debug)]
pub(crate) struct Notes {
    insns: Vec<Note>,
    calls: BTreeMap<u32, CallNote>,
    /// The bytes of frames that are accessed.
    pub(crate) frames: FrameUse,
    /// The least and the greatest depth of stack bytes that must be cleared, of each subprogram that needs it.
    cleared: Vec<Option<(u32, u32)>>,
}

impl Notes {
    pub(crate) fn new(program: &Program) -> Notes {
        let mut frames = FrameUse::default();
        frames.start(program.subprogs().len());
        Notes {
            insns: vec![Note::default(); program.insns().len()],
            calls: BTreeMap::new(),
            frames,
            cleared: vec![None; program.subprogs().len()],
        }
    }

    /// Notes that the instruction runs in some state.
    pub(crate) fn reached(&mut self, at: InsnIdx) {
        if let Some(note) = self.insns.get_mut(at.index()) {
            note.reached = true;
        }
    }

    /// Notes that a path has come to the head of a loop, and whether it may not sleep there.
    pub(crate) fn head(&mut self, at: InsnIdx, stays: bool) {
        if let Some(note) = self.insns.get_mut(at.index())
            && (stays && !planted!(YieldsOnOneWay) || note.head == Head::Unseen)
        {
            note.head = if stays { Head::Stays } else { Head::Yields };
        }
    }

    /// Notes the memory that the instruction accesses. `false` if one path accesses a field of the context, and another
    /// path accesses other memory or another field: such an access cannot be compiled.
    pub(crate) fn access(&mut self, at: InsnIdx, kind: Kind, field: Option<(usize, u32)>) -> bool {
        let Some(note) = self.insns.get_mut(at.index()) else { return false };
        let new = (kind, field.unwrap_or_default());
        match note.access {
            None => note.access = Some(new),
            Some(old) if old == new => {}
            Some((Kind::Context, _)) => return false,
            Some(_) if kind == Kind::Context => return false,
            Some(_) => note.access = Some((Kind::Mixed, (0, 0))),
        }
        true
    }

    /// Notes a call with a map, and the key where it is constant.
    pub(crate) fn call(&mut self, at: InsnIdx, map: Option<u32>, key: Option<u64>, tail_call: bool) {
        let new = CallNote { map: Same::of(map), key: Same::of(key), tail_call };
        let note = self.calls.entry(at.0).or_insert(new);
        note.map.join(map);
        note.key.join(key);
    }

    /// Notes that bytes of the subprogram's frame must be cleared when the subprogram is entered.
    pub(crate) fn cleared(&mut self, subprog: u32, depth: u32, size: u32) {
        let least = depth.saturating_sub(size) + 1;
        if let Some(cleared) = self.cleared.get_mut(subprog as usize) {
            *cleared = Some(cleared.map_or((least, depth), |(from, to)| (from.min(least), to.max(depth))));
        }
    }

    /// Refuses tail calls outside of the main program: a tail call would leave the frames of the callers behind.
    pub(crate) fn tail_call(&self, frames: usize) -> Res<()> {
        if frames == 1 { Ok(()) } else { Err(Why::Unsupported("tail calls of other functions than the main one")) }
    }

    pub(crate) fn into_facts(self, program: &Program, env: &Env<'_>) -> Facts {
        let zeroed = |(subprog, range): (u32, &Option<(u32, u32)>)| {
            let (least, greatest) = (*range)?;
            let (depth, end) = (greatest.next_multiple_of(8), (least - 1) / 8 * 8);
            Some(Zeroed { subprog: SubprogId(subprog), depth, bytes: depth - end })
        };
        let mut facts = Facts {
            private: self.frames.private(),
            zeroed: (0..).zip(&self.cleared).filter_map(zeroed).collect(),
            stack_bytes: self.frames.depths().collect(),
            headers: env.context.legacy_loads.unwrap_or_default(),
            ..Facts::default()
        };
        for (at, call) in &self.calls {
            let (Some(map), insn) = (call.map.get(), InsnIdx(*at)) else { continue };
            match (call.tail_call, call.key.get()) {
                (true, Some(key)) => {
                    if let Ok(index) = u32::try_from(key) {
                        facts.tail_calls.push(ConstTailCall { insn, map, index });
                    }
                }
                (true, None) => {}
                (false, key) => facts.map_calls.push(ConstMapCall { insn, map, key }),
            }
        }
        for (at, (note, insn)) in (0..).map(InsnIdx).zip(self.insns.iter().zip(program.insns())) {
            let kind = note.access.and_then(|(kind, _)| match kind {
                Kind::Stack => Some(MemKind::Stack),
                Kind::Context => Some(MemKind::Context),
                Kind::Packet => Some(MemKind::Packet),
                Kind::MapValue => Some(MemKind::MapValue),
                Kind::Mem => Some(MemKind::Mem),
                Kind::Mixed => None,
            });
            if note.head == Head::Yields {
                facts.yields.push(at);
            }
            // The second slot of a two-slot instruction never runs by itself: it is not dead, but part of the
            // instruction.
            facts.insns.push(InsnFact { dead: !note.reached && *insn != Insn::SecondSlot, memory: kind });
            if let Some((Kind::Context, (index, offset))) = note.access
                && let (Some(field), Some(access)) = (env.context.fields.get(index), insn.memory_access())
            {
                let bytes = access.size.bytes();
                // The base register holds the context's address plus what of the field's place the instruction's offset
                // leaves.
                let base = i64::from(field.offset) + i64::from(offset) - i64::from(access.off);
                let off = i64::from(field.host_offset) + i64::from(offset) - base;
                facts.context_accesses.push(ContextAccess {
                    insn: at,
                    off: i32::try_from(off).unwrap_or(i32::MAX),
                    size: if bytes == field.size { field.host_size } else { bytes },
                    place: field.offset + offset,
                    seen: bytes,
                });
            }
        }
        facts
    }
}
