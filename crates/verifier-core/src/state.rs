//! An abstract state: what registers, stack and regions hold, in terms of names, and what is known of those.
//!
//! Problem: a fact that is kept beside the state outlives the path that it was learnt on. Approach: everything that is
//! known is in the [`State`]: there is no other place that a rule reads facts from. An [`Invariant`] is the same as
//! plain data: a claim that anyone may write down, which becomes a state only as the assumption of a segment whose
//! every entry has proven it (`entails`).
//!
//! Invariants: a state stands for the runs for which its names have values such that every register, stack byte, length
//! and held record is as said, and the facts of [`Knowledge`] hold.

mod stack;
mod value;

pub use stack::{Byte, Cell, Loaded, Stack};
pub use value::{Base, Pointer, Value};

use bpf_isa::{InsnIdx, MAX_CALL_DEPTH, Program, Reg};

use crate::contract::Env;
use crate::domain::{Form, Knowledge, Known, Name};

/// A function that is being run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Which function.
    pub subprog: u32,
    /// Where the caller goes on; `None` of the main program.
    pub back: Option<InsnIdx>,
    /// What the registers hold, r0 to r10.
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

/// What is claimed to hold whenever a point of the program is reached: a state as plain data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Invariant {
    /// What is known of each name.
    pub names: Vec<Known>,
    /// Forms that are not negative.
    pub rows: Vec<Form>,
    /// The length of each region of the context.
    pub lengths: Vec<Form>,
    /// The functions that are being run, the main program first.
    pub frames: Vec<Frame>,
    /// Records that must be given back, each by the name that is 1 where it was reserved, and 0 where that failed.
    pub held: Vec<Name>,
}

/// See the head of the module.
#[derive(Clone, Debug)]
pub struct State {
    pub(crate) known: Knowledge,
    pub(crate) lengths: Vec<Form>,
    pub(crate) frames: Vec<Frame>,
    pub(crate) held: Vec<Name>,
}

/// Whether names below `count` are distinct.
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
        Some(State { known, lengths, frames: vec![frame], held: Vec::new() })
    }

    /// The state that assumes an invariant; `None` if the invariant refers to something that does not exist.
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
        // The bottom frame, and no other, has nowhere to go back to.
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
        })
    }

    /// What is known of the names.
    pub fn known(&self) -> &Knowledge {
        &self.known
    }

    /// The length of each region.
    pub fn lengths(&self) -> &[Form] {
        &self.lengths
    }

    /// The functions that are being run, the main program first. There is one at least.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// The records that are held.
    pub fn held(&self) -> &[Name] {
        &self.held
    }

    /// The state as plain data.
    pub fn to_invariant(&self) -> Invariant {
        Invariant {
            names: self.known.names().to_vec(),
            rows: self.known.rows().to_vec(),
            lengths: self.lengths.clone(),
            frames: self.frames.clone(),
            held: self.held.clone(),
        }
    }

    /// Size in names, rows, definitions and slots, by which memory is bounded. There are no more held records than
    /// names.
    pub(crate) fn size(&self) -> usize {
        let frames = self.frames.iter().map(|frame| 11 + frame.stack.cells().len() + frame.stack.bytes().len() / 64);
        self.known.names().len() + 2 * self.known.rows().len() + self.known.definitions() + frames.sum::<usize>()
    }

    /// The frame that runs.
    pub fn top(&self) -> Option<&Frame> {
        self.frames.last()
    }

    /// What a register holds: a pointer that is known to be null is the number 0, and one that is known not to be is
    /// no longer one that may be.
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

    /// The records that may be held still.
    pub(crate) fn owed(&self) -> impl Iterator<Item = Name> {
        let absent = |n: &Name| self.known.names().get(n.index()).and_then(|k| k.word.as_const()) == Some(0);
        self.held.iter().copied().filter(move |n| !absent(n))
    }

    /// Every value for which this says so is gone: its register is unset, and its bytes cannot be read.
    pub(crate) fn forget(&mut self, gone: impl Fn(&Value) -> bool) {
        for frame in &mut self.frames {
            for value in frame.regs.iter_mut().filter(|v| gone(v)) {
                *value = Value::Unset;
            }
            frame.stack.forget(&gone);
        }
    }

    /// Puts a name in the place of a form that it is the residue of modulo 2^64, in every register and on the stack.
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
