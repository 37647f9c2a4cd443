//! Notes: what the walk records about each instruction, joined over all states in which it was reached.
//!
//! Notes become the facts for the JIT. A note starts as true of no state, and each further state can only weaken it, so
//! at the end it holds in every state, and hence in every run.

mod values;

use bpf_analysis::{
    AccessCheck, CheckRegion, ConstMapCall, ConstTailCall, ContextAccess, FORMAT_VALUES, Facts, FormatCall, FrameUse,
    InsnFact, Loops, MemKind, Zeroed,
};
use bpf_isa::{Insn, InsnIdx, Program, Reg, SubprogId};

use crate::env::Env;
use crate::error::{Reason, Res, refuse};
use crate::faults::planted;
use crate::kept::shrink;
use crate::state::State;

/// Kind of memory an instruction accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    None,
    Stack,
    Context,
    Packet,
    MapValue,
    Mem,
    Arena,
    /// Different kinds on different paths, or memory whose kind is not described.
    Mixed,
}

/// The join of a value over all paths so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Same<T> {
    Unseen,
    Always(T),
    Differs,
}

impl<T: PartialEq + Copy> Same<T> {
    fn join(&mut self, v: Option<T>) {
        *self = match (*self, v) {
            (Same::Unseen, Some(v)) => Same::Always(v),
            (Same::Always(old), Some(v)) if old == v => Same::Always(old),
            (Same::Unseen | Same::Always(_) | Same::Differs, _) => Same::Differs,
        };
    }
    pub(crate) fn get(self) -> Option<T> {
        match self {
            Same::Always(v) => Some(v),
            Same::Unseen | Same::Differs => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Note {
    reached: bool,
    kind: Kind,
    /// Context field and offset in it.
    field: (u16, u16),
    /// For a hybrid walk: the region that the instruction accesses, and whether the access needs a run-time check.
    region: Same<Option<CheckRegion>>,
    checked: bool,
    /// At the head of a loop: whether a run may yield there.
    head: Head,
}

/// Whether a run may yield at an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Head {
    /// No head of a loop, or no path arrives there.
    Unseen,
    /// On all paths so far.
    Yields,
    /// On some path it may not.
    Stays,
}

/// A call's constant map and key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallNote {
    pub at: InsnIdx,
    pub map: Same<u32>,
    pub key: Same<u64>,
    pub tail_call: bool,
}

/// Notes on a whole program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes {
    notes: Vec<Note>,
    calls: Vec<CallNote>,
    formats: Vec<FormatCall>,
    frames: FrameUse,
    /// The least and greatest depth of bytes that must be zero when each subprogram is entered; (0, 0) for none.
    zeroed: Vec<(u32, u32)>,
    /// Whether some loop is not proven to end.
    pub(crate) needs_budget: bool,
    /// Whether nothing is noted, because the current part of the walk will be discarded.
    pub(crate) muted: bool,
    values: values::ValueNotes,
}

impl Notes {
    /// Begins the notes of a program. Keeps the memory.
    pub(crate) fn start(&mut self, program: &Program, values: bool) {
        let (kind, region, head) = (Kind::None, Same::Unseen, Head::Unseen);
        let note = Note { reached: false, kind, field: (0, 0), region, checked: false, head };
        self.notes.clear();
        self.notes.resize(program.insns().len(), note);
        self.calls.clear();
        self.formats.clear();
        self.frames.start(program.subprogs().len());
        self.zeroed.clear();
        self.zeroed.resize(program.subprogs().len(), (0, 0));
        self.needs_budget = false;
        self.muted = false;
        self.values.start(program.insns().len(), values);
    }

    /// Whether facts about numbers are recorded at present.
    pub(crate) fn wants_values(&self) -> bool {
        self.values.is_on() && !self.muted
    }

    /// Notes the state in which the instruction is about to run.
    pub(crate) fn before(&mut self, at: InsnIdx, insn: &Insn, state: &State, env: &Env<'_>) {
        self.values.before(at, insn, state, env);
    }

    /// Notes the state after the instruction has run. For a conditional jump, `ways` says whether it may be taken, and
    /// whether it may fall through.
    pub(crate) fn after(&mut self, at: InsnIdx, insn: &Insn, state: &State, ways: [bool; 2]) {
        self.values.after(at, insn, state);
        if matches!(insn, Insn::JumpIf { .. }) {
            ways.into_iter().zip([true, false]).filter(|(can, _)| *can).for_each(|(_, w)| self.values.way(at, w));
        }
    }

    /// Notes an upper bound of the rounds of a loop that has been entered. `count`: the number of loops.
    pub(crate) fn rounds(&mut self, id: u32, count: usize, rounds: Option<u64>) {
        if self.wants_values() {
            self.values.rounds(id, count, rounds);
        }
    }

    /// The size of a copy in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let calls = self.calls.len() * size_of::<CallNote>() + self.formats.len() * size_of::<FormatCall>();
        let subprogs = self.frames.memory() + self.zeroed.len() * 8;
        self.notes.len() * size_of::<Note>() + calls + subprogs + self.values.bytes()
    }

    /// Frees memory beyond so many bytes of each kind.
    pub(crate) fn trim(&mut self, bytes: usize) {
        shrink(&mut self.notes, bytes);
        shrink(&mut self.calls, bytes);
        shrink(&mut self.formats, bytes);
        self.frames.trim(bytes);
        shrink(&mut self.zeroed, bytes);
        self.values.trim(bytes);
    }

    /// Notes that a path arrives at the head of a loop, and whether its run may not yield there.
    pub(crate) fn head(&mut self, at: InsnIdx, stays: bool) {
        if self.muted {
            return;
        }
        let head = &mut self.notes[at.index()].head;
        if stays && !planted!(YieldsOnOnePath) || *head == Head::Unseen {
            *head = if stays { Head::Stays } else { Head::Yields };
        }
    }

    /// Notes that the instruction is about to run.
    pub(crate) fn visit(&mut self, at: InsnIdx) {
        self.notes[at.index()].reached |= !self.muted;
    }

    /// Notes the kind of memory that the instruction accesses. `Err` if the JIT cannot compile it together with the
    /// kind of an earlier path.
    pub(crate) fn access(&mut self, at: InsnIdx, kind: Kind, field: Option<(usize, u32)>) -> Result<(), (Kind, Kind)> {
        if self.muted {
            return Ok(());
        }
        let note = &mut self.notes[at.index()];
        let field = field.map_or((0, 0), |(i, o)| (crate::num::half(i), crate::num::half(o as usize)));
        if note.kind == Kind::None {
            note.kind = kind;
            note.field = field;
        } else if note.kind != kind {
            // The context and the arena are addressed in ways of their own.
            let apart = |kind| matches!(kind, Kind::Context | Kind::Arena);
            if apart(note.kind) || apart(kind) {
                return Err((note.kind, kind));
            }
            note.kind = Kind::Mixed;
        } else if note.field != field {
            return Err((kind, kind));
        }
        Ok(())
    }

    /// For a hybrid walk: notes that the instruction accesses this region (`None`: memory against which no check is
    /// made), and whether the access is proven to be inside. `false` if it needs a check on some path and accesses two
    /// regions.
    pub(crate) fn region(&mut self, at: InsnIdx, region: Option<CheckRegion>, proven: bool) -> bool {
        let note = &mut self.notes[at.index()];
        note.region.join(Some(region));
        note.checked |= !proven;
        !note.checked || note.region != Same::Differs
    }

    /// Notes a call with this map and key, where they are constant.
    pub(crate) fn call(&mut self, at: InsnIdx, map: Option<u32>, key: Option<u64>, tail_call: bool) {
        if self.muted {
            return;
        }
        let i = self.calls.partition_point(|c| c.at < at);
        if self.calls.get(i).is_none_or(|c| c.at != at) {
            self.calls.insert(i, CallNote { at, map: Same::Unseen, key: Same::Unseen, tail_call });
        }
        self.calls[i].map.join(map);
        self.calls[i].key.join(key);
    }

    /// Notes what is known of the values of a formatting call. If a value is a number on one path, nothing may be read
    /// behind it on any path. A region that differs between paths is dropped.
    pub(crate) fn format(
        &mut self,
        at: InsnIdx,
        known: [Option<u32>; FORMAT_VALUES],
        regions: [Option<u8>; FORMAT_VALUES],
    ) {
        if self.muted {
            return;
        }
        match self.formats.binary_search_by_key(&at, |f| f.insn) {
            Ok(i) => {
                let noted = &mut self.formats[i];
                for (old, new) in noted.known.iter_mut().zip(known) {
                    *old = match (*old, new) {
                        (None, None) => None,
                        (old, new) => Some(old.unwrap_or(0).min(new.unwrap_or(0))),
                    }
                }
                for (old, new) in noted.regions.iter_mut().zip(regions) {
                    *old = old.filter(|old| Some(*old) == new);
                }
            }
            Err(i) => self.formats.insert(i, FormatCall { insn: at, known, regions }),
        }
    }

    /// Notes that an access through `reg` reaches at most `bytes` bytes of the subprogram's frame, from `depth`
    /// upwards.
    pub(crate) fn stack(&mut self, subprog: u32, (depth, bytes): (usize, usize), reg: Reg) {
        if !self.muted {
            self.frames.note(subprog, crate::num::small(depth), crate::num::small(bytes), reg);
        }
    }

    /// Notes a read of bytes of the subprogram's frame that may be unwritten: from `least` to `greatest` below r10.
    pub(crate) fn zeroed(&mut self, subprog: u32, (least, greatest): (usize, usize)) {
        if self.muted || planted!(ZeroesForgotten) {
            return;
        }
        let z = &mut self.zeroed[subprog as usize];
        let least = if z.0 == 0 { crate::num::small(least) } else { z.0.min(crate::num::small(least)) };
        *z = (least, z.1.max(crate::num::small(greatest)));
    }

    /// Checks the stack depth of chains that end in a tail call: a tail call out of a subprogram leaves the frames of
    /// its callers behind. The depth is limited as in the kernel (`check_max_stack_depth`), because each of 33 tail
    /// calls may leave such a chain.
    pub(crate) fn check_stack(&self, program: &Program, env: &Env<'_>) -> Res<()> {
        if self.calls.iter().all(|c| !c.tail_call) || program.subprogs().len() == 1 {
            return Ok(());
        }
        let limit = env.frame_bytes / 2;
        let tail_calls = |sub: usize| {
            let s = program.subprogs()[sub];
            self.calls.iter().any(|c| c.tail_call && (s.start..s.end).contains(&c.at.0))
        };
        // The call graph has no cycle and is at most 8 frames deep, but it may have many paths, so only the greatest
        // depth of each callee is kept.
        let depths: Vec<u32> = self.frames.depths().collect();
        let mut above = vec![0u32; program.subprogs().len()];
        let mut changed = true;
        while changed {
            changed = false;
            for c in program.calls() {
                let caller = program.subprog_of(c.at).index();
                let depth = above[caller] + depths[caller].next_multiple_of(8);
                if depth > above[c.callee.index()] {
                    above[c.callee.index()] = depth;
                    changed = true;
                }
            }
        }
        match (1..above.len()).filter(|&s| tail_calls(s)).map(|s| above[s]).max() {
            Some(depth) if depth > limit => refuse(Reason::TailCallDepth { depth, limit }),
            _ => Ok(()),
        }
    }

    pub(crate) fn collect_facts(&mut self, program: &Program, env: &Env<'_>, loops: &Loops) -> Facts {
        let zeroed = |(subprog, &(least, greatest)): (u32, &(u32, u32))| {
            let (depth, end) = (greatest.next_multiple_of(8), (least - 1) / 8 * 8);
            Zeroed { subprog: SubprogId(subprog), depth, bytes: depth - end }
        };
        let mut facts = Facts {
            private: self.frames.private(),
            stack_bytes: self.frames.depths().collect(),
            zeroed: (0..).zip(&self.zeroed).filter(|(_, z)| z.1 > 0).map(zeroed).collect(),
            needs_budget: self.needs_budget,
            values: self.values.take(),
            loops: self.values.loop_facts(loops),
            headers: env.context.legacy_loads.unwrap_or_default(),
            ..Facts::default()
        };
        for c in &self.calls {
            let Some(map) = c.map.get() else { continue };
            match (c.tail_call, c.key.get()) {
                (true, Some(key)) => {
                    facts.tail_calls.push(ConstTailCall { insn: c.at, map, index: crate::num::low(key) })
                }
                (true, None) => {}
                (false, key) => facts.map_calls.push(ConstMapCall { insn: c.at, map, key }),
            }
        }
        let pointers = |f: &&FormatCall| f.known.iter().any(Option::is_some);
        facts.formats = self.formats.iter().filter(pointers).copied().collect();
        if self.notes.iter().any(|n| n.checked) {
            facts.regions = (0..env.context.regions.len()).map(|r| env.context.bounds(crate::num::few(r))).collect();
        }
        facts.insns.reserve_exact(self.notes.len());
        for (i, (note, insn)) in self.notes.iter().zip(program.insns()).enumerate() {
            facts.insns.push(InsnFact {
                // The second slot of a reached instruction is not reached itself, but belongs to it.
                dead: !note.reached && *insn != Insn::SecondSlot,
                memory: match note.kind {
                    Kind::None | Kind::Mixed => None,
                    Kind::Stack => Some(MemKind::Stack),
                    Kind::Context => Some(MemKind::Context),
                    Kind::Packet => Some(MemKind::Packet),
                    Kind::MapValue => Some(MemKind::MapValue),
                    Kind::Mem => Some(MemKind::Mem),
                    Kind::Arena => Some(MemKind::Arena),
                },
            });
            if note.head == Head::Yields {
                facts.yields.push(InsnIdx(crate::num::small(i)));
            }
            if let (true, Some(Some(region))) = (note.checked, note.region.get()) {
                facts.checks.push(AccessCheck { insn: InsnIdx(crate::num::small(i)), region });
            }
            if note.kind == Kind::Context {
                let (field, offset) = note.field;
                let field = &env.context.fields[usize::from(field)];
                let Some(access) = insn.memory_access() else { continue };
                let (bytes, off) = (access.size.bytes(), access.off);
                // The base register holds the context's address plus what of the field's place the instruction's offset
                // leaves.
                let base = i64::from(field.offset) + i64::from(offset) - i64::from(off);
                #[expect(clippy::cast_possible_truncation, reason = "no context is longer than MAX_CONTEXT")]
                facts.context_accesses.push(ContextAccess {
                    insn: InsnIdx(crate::num::small(i)),
                    off: (i64::from(field.host_offset) + i64::from(offset) - base) as i32,
                    size: if bytes == field.size { field.host_size } else { bytes },
                    place: field.offset + u32::from(offset),
                    seen: bytes,
                });
            }
        }
        facts
    }
}
