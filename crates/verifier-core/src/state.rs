//! An abstract state: what registers, stack and regions hold in terms of names, and the facts known about the names.
//!
//! Problem: a fact that is kept beside the state outlives the path that it was learnt on. Approach: every known fact is
//! in the [`State`], and no rule reads facts from anywhere else. An [`Invariant`] is a state as plain data: a claim
//! that anyone may write down. An invariant becomes a state only as the assumption of a segment, and every path that
//! enters the segment must prove the invariant first (`entails`).
//!
//! Invariant (concretisation): a state stands for every run in which the names can be given values such that each
//! register, stack byte, length and held record is as the state says, and all facts of [`Knowledge`] hold.

mod stack;
mod value;

pub use stack::{Byte, Cell, Loaded, Stack};
pub use value::{Base, Pointer, Value};

use bpf_isa::{InsnIdx, MAX_CALL_DEPTH, Program, Reg};

use crate::contract::{Env, Section};
use crate::domain::{Form, Knowledge, Known, Name};

/// An active function of the call chain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The number of the function's subprogram.
    pub subprog: u32,
    /// The instruction at which the caller continues; `None` for the main program.
    pub back: Option<InsnIdx>,
    /// The values of the registers r0 to r10.
    pub regs: [Value; 11],
    /// Its stack.
    pub stack: Stack,
}

impl Frame {
    /// A frame at its entry: r10 is the top of a stack that nothing was written to.
    pub(crate) fn new(index: u8, subprog: u32, back: Option<InsnIdx>, bytes: u32) -> Frame {
        let mut regs = std::array::from_fn(|_| Value::Unset);
        regs[Reg::R10.index()] = Value::Pointer(Pointer::start(Base::Stack(index)));
        Frame { subprog, back, regs, stack: Stack::new(bytes) }
    }
}

/// The sections that a sleepable program is in: for each kind, at least as many as are open. Other programs count none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Sections {
    /// RCU read-side critical sections.
    pub rcu: u32,
    /// Non-preemptible regions.
    pub preempt: u32,
}

impl Sections {
    /// Returns the number of open sections of this kind.
    pub(crate) fn of(&mut self, kind: Section) -> &mut u32 {
        match kind {
            Section::Rcu => &mut self.rcu,
            Section::Preempt => &mut self.preempt,
        }
    }
}

/// A claim about every run that reaches a point of the program: a state as plain data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Invariant {
    /// The fact about each name.
    pub names: Vec<Known>,
    /// Forms that are not negative.
    pub rows: Vec<Form>,
    /// The length of each region of the context.
    pub lengths: Vec<Form>,
    /// The active functions, the main program first.
    pub frames: Vec<Frame>,
    /// The records that must be given back. Each is identified by a name that is 1 if the reservation succeeded and 0
    /// if it failed.
    pub held: Vec<Name>,
    /// The open sections.
    pub sections: Sections,
}

/// An abstract state; the head of the module says for which runs it stands.
#[derive(Clone, Debug)]
pub struct State {
    pub(crate) known: Knowledge,
    pub(crate) lengths: Vec<Form>,
    pub(crate) frames: Vec<Frame>,
    pub(crate) held: Vec<Name>,
    pub(crate) sections: Sections,
}

/// Whether all names are below `count` and pairwise distinct.
fn are_distinct(names: &[Name], count: usize) -> bool {
    let mut seen = vec![false; if names.is_empty() { 0 } else { count }];
    names.iter().all(|n| seen.get_mut(n.index()).is_some_and(|seen| !std::mem::replace(seen, true)))
}

impl State {
    /// The state at the entry of the program; `None` if there are more regions than names.
    pub(crate) fn entry(env: &Env<'_>) -> Option<State> {
        let mut known = Knowledge::default();
        let mut lengths = Vec::new();
        for region in &env.context.regions {
            let range = Known::range(region.min_len.into(), region.max_len.into(), false)?;
            lengths.push(Form::name(known.name(range)?));
        }
        let mut frame = Frame::new(0, 0, None, env.frame_bytes);
        if env.context.raw {
            frame.regs[1] = Value::Pointer(Pointer::start(Base::Region(0)));
            frame.regs[2] = Value::Number(lengths.first()?.clone());
        } else {
            frame.regs[1] = Value::Pointer(Pointer::start(Base::Context));
        }
        Some(State { known, lengths, frames: vec![frame], held: Vec::new(), sections: Sections::default() })
    }

    /// The state that assumes an invariant; `None` if the invariant refers to a name, frame, region, map or instruction
    /// that does not exist.
    pub(crate) fn assume(claim: &Invariant, program: &Program, env: &Env<'_>) -> Option<State> {
        let names = claim.names.len();
        let depth = claim.frames.len();
        let over = |form: &Form| form.is_over(names);
        let sound = |frame: &Frame| {
            frame.regs.iter().all(|v| v.is_sound(names, depth, env))
                && frame.stack.is_sound(env.frame_bytes, |v| v.is_sound(names, depth, env))
                && (frame.subprog as usize) < program.subprogs().len()
                && frame.back.is_none_or(|back| back.index() < program.insns().len())
        };
        // Only the bottom frame has no return address.
        let chain = claim.frames.iter().enumerate().all(|(i, frame)| (i == 0) == frame.back.is_none());
        let sound = (1..=MAX_CALL_DEPTH as usize).contains(&depth)
            && chain
            && claim.frames.iter().all(sound)
            && claim.lengths.len() == env.context.regions.len()
            && claim.lengths.iter().all(over)
            && claim.held.iter().all(|n| n.index() < names)
            // Each reservation has its own name, so a name cannot be held twice.
            && are_distinct(&claim.held, names);
        let known = Knowledge::assume(claim.names.clone(), claim.rows.clone())?;
        sound.then(|| State {
            known,
            lengths: claim.lengths.clone(),
            frames: claim.frames.clone(),
            held: claim.held.clone(),
            sections: claim.sections,
        })
    }

    /// The facts about the names.
    pub fn known(&self) -> &Knowledge {
        &self.known
    }

    /// The length of each region.
    pub fn lengths(&self) -> &[Form] {
        &self.lengths
    }

    /// The active functions, the main program first; at least one.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// The records that are held.
    pub fn held(&self) -> &[Name] {
        &self.held
    }

    /// The open sections.
    pub fn sections(&self) -> Sections {
        self.sections
    }

    /// The state as plain data.
    pub fn to_invariant(&self) -> Invariant {
        Invariant {
            names: self.known.names().to_vec(),
            rows: self.known.rows().to_vec(),
            lengths: self.lengths.clone(),
            frames: self.frames.clone(),
            held: self.held.clone(),
            sections: self.sections,
        }
    }

    /// Size in names, rows, definitions and slots; bounds memory. Held records are not counted, since they are at most
    /// as many as names.
    pub(crate) fn size(&self) -> usize {
        let frames = self.frames.iter().map(|frame| 11 + frame.stack.cells().len() + frame.stack.bytes().len() / 64);
        self.known.names().len() + 2 * self.known.rows().len() + self.known.definitions() + frames.sum::<usize>()
    }

    /// The frame that runs.
    pub fn top(&self) -> Option<&Frame> {
        self.frames.last()
    }

    /// Returns the value of a register. A pointer that is known to be null is returned as the number 0, and a pointer
    /// that is known not to be null is returned without its `present` name.
    pub fn reg(&self, reg: Reg) -> Value {
        let value = self.frames.last().map_or(Value::Unset, |frame| frame.regs[reg.index()].clone());
        self.resolved(value)
    }

    pub(crate) fn resolved(&self, value: Value) -> Value {
        let Value::Pointer(pointer) = value else { return value };
        let presence = pointer.present.and_then(|n| self.known.names().get(n.index())?.word.as_const());
        match presence {
            Some(0) => Value::Number(Form::constant(0)),
            Some(_) => Value::Pointer(Pointer { present: None, ..pointer }),
            None => Value::Pointer(pointer),
        }
    }

    pub(crate) fn set(&mut self, reg: Reg, value: Value) {
        if let Some(frame) = self.frames.last_mut() {
            frame.regs[reg.index()] = value;
        }
    }

    /// The records that may still be held: all but those whose name is known to be 0.
    pub(crate) fn owed(&self) -> impl Iterator<Item = Name> {
        let absent = |n: &Name| self.known.names().get(n.index()).and_then(|k| k.word.as_const()) == Some(0);
        self.held.iter().copied().filter(move |n| !absent(n))
    }

    /// Removes every value for which `gone` answers true: a register becomes unset, a stack cell is dropped.
    pub(crate) fn forget(&mut self, gone: impl Fn(&Value) -> bool) {
        forget_in(&mut self.frames, gone);
    }

    /// Forgets, where the run may have slept, every pointer that does not outlast a sleep.
    ///
    /// Claim: the remaining pointers lead to memory that the run keeps while it sleeps. Proof: the run keeps its stack,
    /// its context with the regions, and the maps that the program refers to ([`Env::sleepable`]); these are all that
    /// [`Base::outlasts_sleep`] lets remain. A pointer that is known to be null is a number.
    pub(crate) fn sleep(&mut self, env: &Env<'_>) {
        let State { known, frames, .. } = self;
        let is_null = |n: Name| known.names().get(n.index()).and_then(|k| k.word.as_const()) == Some(0);
        let gone = |value: &Value| match value {
            Value::Pointer(pointer) => !pointer.base.outlasts_sleep(env) && !pointer.present.is_some_and(is_null),
            Value::Unset | Value::Number(_) => false,
        };
        forget_in(frames, gone);
    }

    /// Replaces a form by a name in every register and stack cell. The name is congruent to the form modulo 2^64.
    pub(crate) fn rename(&mut self, form: &Form, name: Name) {
        let rename = |value: &mut Value| {
            if matches!(value, Value::Number(f) if *f == *form) {
                *value = Value::Number(Form::name(name));
            }
        };
        for frame in &mut self.frames {
            frame.regs.iter_mut().for_each(rename);
            frame.stack.values_mut().for_each(rename);
        }
    }
}

/// Removes every value of the frames for which `gone` answers true.
fn forget_in(frames: &mut [Frame], gone: impl Fn(&Value) -> bool) {
    for frame in frames {
        for value in frame.regs.iter_mut().filter(|v| gone(v)) {
            *value = Value::Unset;
        }
        frame.stack.forget(&gone);
    }
}
