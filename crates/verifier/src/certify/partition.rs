//! The partition of states: the criteria that keep states at one instruction apart.

use std::collections::BTreeSet;

use bpf_analysis::RegSet;
use bpf_isa::{InsnIdx, Reg};
use bpf_verifier_core::{Base, Form, Frame, Pointer, Sections, State, Value};

/// The criterion that keeps states at one instruction apart (trace partitioning: Rival and Mauborgne, TOPLAS 2007).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Partition {
    /// Nothing: one point for all.
    None,
    /// The kinds of values in live registers and slots.
    Kinds,
    /// The kinds, and whether a number is a constant that the program moves into registers.
    Constants,
    /// The kinds, and the constant places of pointers into constant maps: a text or a table that the program goes
    /// through is the control of an automaton, and each load from it is known.
    Positions,
}

/// The contents of a place, as far as states are kept apart by them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Tag {
    Unset,
    Number,
    Constant(i128),
    Pointer(BaseTag, bool),
    /// A place in a constant map.
    Position(u32, i128),
}

/// A [`Base`] without names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum BaseTag {
    Context,
    Stack(u8),
    Region(u8),
    Map(u32),
    MapValue(u32),
    Inner(u32),
    InnerValue(u32),
    Memory(u32, bool),
    Record(u32),
}

impl From<Base> for BaseTag {
    fn from(base: Base) -> BaseTag {
        match base {
            Base::Context => BaseTag::Context,
            Base::Stack(frame) => BaseTag::Stack(frame),
            Base::Region(region) => BaseTag::Region(region),
            Base::Map(map) => BaseTag::Map(map),
            Base::MapValue(map) => BaseTag::MapValue(map),
            Base::Inner(map) => BaseTag::Inner(map),
            Base::InnerValue(map) => BaseTag::InnerValue(map),
            Base::Memory { size, writable } => BaseTag::Memory(size, writable),
            Base::Record { owner: _, size } => BaseTag::Record(size),
        }
    }
}

/// The call chain: functions, each with the instruction to which it returns.
pub(super) type Chain = Vec<(u32, Option<InsnIdx>)>;

/// The instruction, the chain of calls, the open sections, and the partition's tags.
pub(super) type Key = (InsnIdx, Chain, Sections, Vec<Tag>);

pub(super) fn chain(frames: &[Frame]) -> Chain {
    frames.iter().map(|frame| (frame.subprog, frame.back)).collect()
}

/// The value, with its nullness decided where the state decides it.
pub(super) fn resolved(state: &State, value: &Value) -> Value {
    match value {
        Value::Pointer(Pointer { present: Some(n), base, offset }) => {
            match state.known().names().get(n.index()).and_then(|known| known.word.as_const()) {
                Some(0) => Value::Number(Form::constant(0)),
                Some(_) => Value::Pointer(Pointer { base: *base, offset: offset.clone(), present: None }),
                None => value.clone(),
            }
        }
        Value::Unset | Value::Number(_) | Value::Pointer(_) => value.clone(),
    }
}

/// Finds the keys of states.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) partition: Partition,
    /// Constants that the program moves into registers.
    pub(super) flags: BTreeSet<i128>,
    /// The constant maps.
    pub(super) frozen: BTreeSet<u32>,
}

impl Keys {
    /// The key of a state. `live`: the registers that are read from here on.
    pub(super) fn key(&self, at: InsnIdx, state: &State, live: RegSet) -> Key {
        let mut tags = Vec::new();
        if self.partition != Partition::None {
            let tag = |value: &Value| match resolved(state, value) {
                Value::Unset => Tag::Unset,
                Value::Number(form) => match form.as_const() {
                    Some(c) if self.partition == Partition::Constants && self.flags.contains(&c) => Tag::Constant(c),
                    Some(_) | None => Tag::Number,
                },
                Value::Pointer(Pointer { base, present, offset }) => match (base, offset.as_const()) {
                    (Base::MapValue(map), Some(at))
                        if self.partition == Partition::Positions && self.frozen.contains(&map) =>
                    {
                        Tag::Position(map, at)
                    }
                    (base, _) => Tag::Pointer(base.into(), present.is_some()),
                },
            };
            let top = state.frames().len().saturating_sub(1);
            for (f, frame) in state.frames().iter().enumerate() {
                let kept = |reg: &Reg| if f == top { live.contains(*reg) } else { (6..10).contains(&reg.index()) };
                tags.extend(Reg::ALL.into_iter().filter(kept).map(|reg| tag(&frame.regs[reg.index()])));
                let cells = frame.stack.cells().iter().map(|cell| tag(&cell.value));
                tags.extend(cells.filter(|tag| *tag != Tag::Number));
            }
        }
        (at, chain(state.frames()), state.sections(), tags)
    }
}
