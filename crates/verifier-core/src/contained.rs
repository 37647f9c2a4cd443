//! Determines the object to which each access of a program is confined, so that a wrong proof does not lead outside
//! it.
//!
//! Problem: the walk's proofs about numbers are many and subtle, and one wrong proof lets a program reach any memory.
//! Approach: a second analysis, small and apart from the walk, that follows pointers only. One forward data flow
//! determines the object of each pointer, and the offset into it where that is constant. The analysis uses no
//! result of the walk about values. The compiler then confines every access to that object, whatever number the
//! register holds ([`bpf_analysis::Contained`]). Dead code is determined by the walk; reaching it stops the run.
//!
//! Invariants: an object is one that the program was given (its frame, the context, a region, a map's value, or
//! memory that a function returned). The start of a held object is stored in its home on every path. An object that
//! others may free while the run sleeps is not accessed after a sleep, whether the walk let the program sleep there
//! or not. A dynptr lies in the frame, where the program may overwrite it: its words are kept as the function that
//! made it wrote them, and restored before each call that uses it. A program that the analysis cannot follow is
//! refused with the instruction ([`Uncontained`]).

use bpf_analysis::{
    BlockId, Cfg, Confined, Contained, ContextAccess, Extent, Facts, Hold, Home, MemKind, Object, Passed, Place,
};
use bpf_isa::{AccessKind, AluOp, Callee, Imm64, Insn, InsnIdx, Program, Reg, Size, Src, SubprogId, Width};

use crate::contract::{
    Access, ArgKind, Dynptr, Effect, Env, FieldKind, HelperProto, KnownMap, Local, LocalUse, MemArg, MemSet, Ret,
};
use crate::faults::planted;
use bpf_uapi::{Helper, MapType, MapTypes};

/// The reason why a program cannot be contained.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("instruction {insn}: {why}")]
pub struct Uncontained {
    /// The instruction.
    pub insn: InsnIdx,
    /// The reason why it has no bound.
    pub why: Escape,
}

/// An operation that a contained program may not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Escape {
    /// An access through a pointer whose object is not known.
    #[error(
        "the object that {0} points to is not the same one on every path, may have been freed while the run slept, or is none that a contained program may use"
    )]
    Pointer(Reg),
    /// A write to read-only memory.
    #[error("it writes to memory that the program may only read")]
    ReadOnly,
    /// An access of the context at a variable offset, or at an offset that is no field's.
    #[error("it accesses the context at no field's offset")]
    Field,
    /// An atomic operation on memory whose alignment is not known.
    #[error("an atomic operation on memory whose alignment is not known")]
    Atomic,
    /// An access of more bytes than the object has.
    #[error("it uses {bytes} bytes of an object of {of}")]
    Size {
        /// Bytes of the access.
        bytes: u32,
        /// Bytes of the object.
        of: u32,
    },
    /// A call of a function whose arguments cannot be confined.
    #[error(
        "it calls `{name}`, and argument {arg} cannot be confined; load the program without `contained`, or do without the call"
    )]
    Argument {
        /// The function.
        name: String,
        /// The number of the argument, from 1.
        arg: usize,
    },
    /// A call of a function that contained programs cannot use.
    #[error(
        "it calls `{0}`, whose effect cannot be confined; load the program without `contained`, or do without the call"
    )]
    Function(String),
    /// A look-up in a map whose values have fields that only functions may change.
    #[error("it looks up values of map `{0}`, which have a lock, a timer or objects that a wrong access would destroy")]
    Fields(String),
    /// A tail call by an index that is not constant.
    #[error("a tail call by an index that is not a constant is an indirect jump")]
    TailCall,
    /// A legacy packet load, whose bounds are branches.
    #[error("a legacy packet load, whose bounds check is a branch: use a pointer into the packet")]
    PacketLoad,
    /// A call through a register.
    #[error("a call through a register")]
    IndirectCall,
    /// The program throws, or has an exception callback.
    #[error("the program throws, or has an exception callback")]
    Throws,
    /// The program has too many basic blocks for the analysis.
    #[error("the program has more than {} basic blocks", MAX_BLOCKS)]
    TooLarge,
}

/// The most bytes of an object that a call returns, if it does not return null. For null, the run provides as many
/// bytes, to which accesses are redirected.
const MAX_RESULT: u32 = 1 << 20;

/// The functions to which a program may pass an inner map.
const ELEMENTS: [Helper; 3] = [Helper::MapLookupElem, Helper::MapUpdateElem, Helper::MapDeleteElem];

/// The most basic blocks of a program; the analysis takes two kilobytes for each.
const MAX_BLOCKS: usize = 1 << 15;

/// The origin of a held object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    /// A map's value.
    Map {
        /// Whether the value exists as long as the map, and is the same one in every execution slot.
        lasts: bool,
    },
    /// Memory that a function returned, valid for the run.
    Mem,
    /// A record of a ring buffer, until it is given back.
    Record,
    /// Memory that a dynptr leads to, until a packet moves or a record is given back; or the buffer in the program's
    /// memory to which its bytes were copied.
    Slice,
    /// The frame of a caller.
    Caller,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    Frame,
    Context,
    Region(u8),
    Held { bytes: u32, writable: bool, class: Class },
}

impl Target {
    /// The one target that stands for both, if there is one.
    fn join(self, other: Target) -> Option<Target> {
        match (self, other) {
            (a, b) if a == b => Some(a),
            (
                Target::Held { bytes, writable, class: Class::Map { .. } },
                Target::Held { bytes: of, writable: too, class: Class::Map { .. } },
            ) if (bytes, writable) == (of, too) => {
                Some(Target::Held { bytes, writable, class: Class::Map { lasts: false } })
            }
            (Target::Frame | Target::Context | Target::Region(_) | Target::Held { .. }, _) => None,
        }
    }

    /// Whether nobody may free the object, or give it to others, while the run sleeps: the run keeps its frames, its
    /// context with the regions, and the maps that the program refers to.
    fn outlasts_sleep(self) -> bool {
        match self {
            Target::Frame | Target::Context | Target::Region(_) => true,
            Target::Held { class: Class::Map { lasts }, .. } => lasts || planted!(StartOutlastsSleep),
            Target::Held { class: Class::Caller, .. } => true,
            Target::Held { class: Class::Mem | Class::Record | Class::Slice, .. } => false,
        }
    }
}

/// A word of a dynptr.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Word {
    First,
    Second,
}

/// The abstract value of a register or of a slot of the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Val {
    /// Anything.
    Unknown,
    /// A number, provided that the walk's proof is right.
    Number,
    /// This number.
    Const(i64),
    /// The map with this index.
    Map(u32),
    /// An inner map of the map with this index, or null.
    Inner(u32),
    /// In a slot: the first word, or the second, of a dynptr to memory of this kind.
    Dynptr(Dynptr, Word),
    /// A pointer into this object, or null, with the offset from its start where it is constant. Offsets into the
    /// frame are relative to r10.
    Ptr(Target, Option<i64>),
}

impl Val {
    fn join(self, other: Val) -> Val {
        match (self, other) {
            (a, b) if a == b => a,
            (Val::Ptr(a, at), Val::Ptr(b, to)) => match a.join(b) {
                Some(target) => Val::Ptr(target, at.filter(|_| at == to)),
                None => Val::Unknown,
            },
            (Val::Number | Val::Const(_), Val::Number | Val::Const(_)) => Val::Number,
            (
                Val::Unknown
                | Val::Number
                | Val::Const(_)
                | Val::Map(_)
                | Val::Inner(_)
                | Val::Dynptr(..)
                | Val::Ptr(..),
                _,
            ) => Val::Unknown,
        }
    }

    fn is_number(self) -> bool {
        matches!(self, Val::Number | Val::Const(_))
    }

    /// Whether the code keeps an address beside the value.
    fn is_held(self) -> bool {
        matches!(self, Val::Ptr(Target::Held { .. }, _) | Val::Inner(_))
    }

    /// The pointer plus a number; the offset becomes unknown where the sum is unknown or too large.
    fn moved(self, by: Option<i64>) -> Val {
        /// Bound of the tracked offsets. An offset outside `-FAR..FAR` is treated as unknown.
        const FAR: i64 = 1 << 31;
        match self {
            Val::Ptr(target, off) => {
                let sum = off.zip(by).and_then(|(off, by)| off.checked_add(by));
                Val::Ptr(target, sum.filter(|sum| (-FAR..FAR).contains(sum)))
            }
            Val::Unknown | Val::Number | Val::Const(_) | Val::Map(_) | Val::Inner(_) | Val::Dynptr(..) => Val::Unknown,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct State {
    regs: [Val; 11],
    slots: [Val; Home::SLOTS],
}

impl State {
    fn new() -> State {
        let mut state = State { regs: [Val::Unknown; 11], slots: [Val::Number; Home::SLOTS] };
        state.regs[Reg::R10.index()] = Val::Ptr(Target::Frame, Some(0));
        state
    }

    /// Joins `other` into the state. Returns whether the state changed.
    fn join(&mut self, other: &State) -> bool {
        let mut changed = false;
        let pairs = self.regs.iter_mut().chain(&mut self.slots).zip(other.regs.iter().chain(&other.slots));
        for (a, b) in pairs {
            let both = a.join(*b);
            changed |= both != *a;
            *a = both;
        }
        changed
    }

    fn reg(&self, reg: Reg) -> Val {
        self.regs[reg.index()]
    }

    fn set(&mut self, reg: Reg, val: Val) {
        if reg != Reg::R10 {
            self.regs[reg.index()] = val;
        }
    }

    /// Notes that a number is written to these bytes of the frame. `off` is relative to r10.
    fn overwrite(&mut self, off: i64, bytes: i64) {
        for (slot, n) in self.slots.iter_mut().zip(1i64..) {
            if off < -8 * n + 8 && off + bytes > -8 * n {
                *slot = Val::Number;
            }
        }
    }

    /// Forgets, where the run may have slept, the pointers to objects that do not outlast a sleep. The host may
    /// replace an inner map meanwhile.
    fn sleep(&mut self) {
        self.forget(|val| match val {
            Val::Ptr(target, _) => !target.outlasts_sleep(),
            Val::Inner(_) => !planted!(StartOutlastsSleep),
            // A dynptr of a packet finds the packet by the context, which the run keeps.
            Val::Dynptr(kind, _) => kind != Dynptr::Packet,
            Val::Unknown | Val::Number | Val::Const(_) | Val::Map(_) => false,
        });
    }

    /// Forgets, where a record may have been given back, the pointers to records, and the dynptrs that lead to one.
    fn give_back(&mut self) {
        self.drop_slices();
        self.forget(|val| match val {
            Val::Ptr(Target::Held { class: Class::Record, .. }, _) => true,
            Val::Dynptr(kind, _) => kind == Dynptr::Record,
            Val::Unknown | Val::Number | Val::Const(_) | Val::Map(_) | Val::Inner(_) | Val::Ptr(..) => false,
        });
    }

    /// Forgets, where a packet may have moved, or the record of a dynptr may have been given back, what dynptrs
    /// have led to.
    fn drop_slices(&mut self) {
        if !planted!(SliceSurvives) {
            self.forget(|val| matches!(val, Val::Ptr(Target::Held { class: Class::Slice, .. }, _)));
        }
    }

    /// Returns the kind of the dynptr at this offset from r10, if there is one.
    fn dynptr(&self, off: i64) -> Option<Dynptr> {
        let first = usize::from(slot_at(off)?) - 1;
        match (self.slots[first], self.slots[first.checked_sub(1)?]) {
            (Val::Dynptr(kind, Word::First), Val::Dynptr(of, Word::Second)) if kind == of => Some(kind),
            (Val::Unknown | Val::Number | Val::Const(_) | Val::Map(_) | Val::Inner(_) | Val::Ptr(..), _)
            | (Val::Dynptr(..), _) => None,
        }
    }

    /// Forgets the values for which `which` holds.
    fn forget(&mut self, which: impl Fn(Val) -> bool) {
        for val in self.regs[..10].iter_mut().chain(&mut self.slots).filter(|val| which(**val)) {
            *val = Val::Unknown;
        }
    }
}

/// The slot of a frame that begins at this offset from r10, if it has a home.
fn slot_at(off: i64) -> Option<u8> {
    let n = u8::try_from(off.checked_neg()? / 8).ok()?;
    (off % 8 == 0 && (1..=Home::SLOTS).contains(&usize::from(n))).then_some(n)
}

/// The analysis's summary of one function.
#[derive(Clone, Debug, Default)]
struct Function {
    /// The join of its arguments over all calls; `None` before the first call.
    args: Option<[Val; 5]>,
    /// The deepest byte of its frame that is accessed at a constant offset.
    deepest: u32,
    /// Whether it accesses its frame at a variable offset.
    variable: bool,
    /// Whether it passes pointers to its frame to other functions.
    passed: bool,
    /// Whether it stores a value that may be a pointer in its frame at a variable offset.
    scattered: bool,
    homes: u128,
    /// Whether a run may sleep in it, or in a function that it calls.
    sleeps: bool,
    /// Whether a record may be given back in it, or in a function that it calls: any, its caller's, too, since
    /// nothing is known of values that the caller passes.
    gives_back: bool,
}

/// Memory that a call gets.
struct Lent {
    target: Target,
    /// The first byte and the byte behind the last, if these are constants that no check at run time moves.
    bytes: Option<(i64, i64)>,
    writes: bool,
}

impl Lent {
    /// Whether no byte is in both, whatever was proven. A function's own frame is younger than all other memory,
    /// and no access of it is redirected.
    fn is_apart(&self, other: &Lent) -> bool {
        match (self.target, other.target) {
            // A slice may be a buffer in any memory.
            (Target::Held { class: Class::Slice, .. }, _) | (_, Target::Held { class: Class::Slice, .. }) => false,
            (Target::Frame, Target::Frame) => match (self.bytes, other.bytes) {
                (Some(a), Some(b)) => a.1 <= b.0 || b.1 <= a.0,
                (Some(_) | None, _) => false,
            },
            (Target::Frame, Target::Region(_) | Target::Held { .. })
            | (Target::Region(_) | Target::Held { .. }, Target::Frame) => true,
            (Target::Region(a), Target::Region(b)) => a != b,
            (Target::Context | Target::Held { .. }, _) | (_, Target::Context | Target::Held { .. }) => false,
        }
    }
}

struct Analysis<'a> {
    program: &'a Program,
    env: &'a Env<'a>,
    facts: &'a Facts,
    functions: Vec<Function>,
    /// The function that is being analysed.
    sub: SubprogId,
    /// Functions whose arguments have changed.
    changed: Vec<SubprogId>,
    out: Contained,
    accesses: Vec<ContextAccess>,
    /// Whether a finding invalidates earlier results, so that the data flow must run again.
    again: bool,
    /// Whether results are recorded: only after the data flow has reached its fixpoint.
    noting: bool,
}

/// Determines to which object each access of a verified program is confined ([`Facts::contained`]).
///
/// The first instruction that cannot be confined.
pub fn contain(program: &Program, env: &Env<'_>, facts: &mut Facts) -> Result<(), Box<Uncontained>> {
    let cfg = Cfg::new(program);
    let first = |why| Box::new(Uncontained { insn: InsnIdx(0), why });
    if cfg.blocks().len() > MAX_BLOCKS {
        return Err(first(Escape::TooLarge));
    }
    if facts.exception.is_some() || !facts.throws.is_empty() {
        return Err(first(Escape::Throws));
    }
    let mut analysis = Analysis {
        program,
        env,
        facts,
        functions: functions(program, env, facts),
        sub: SubprogId(0),
        changed: Vec::new(),
        out: Contained { insns: vec![Confined::default(); program.insns().len()], ..Contained::default() },
        accesses: Vec::new(),
        again: false,
        noting: false,
    };
    let states = loop {
        let states = analysis.flow(&cfg).map_err(Box::new)?;
        // The flow runs again at most once for each function, since `scattered` is set only once for each.
        if !core::mem::take(&mut analysis.again) {
            break states;
        }
    };
    analysis.note(&cfg, &states).map_err(Box::new)?;
    let Analysis { mut out, accesses, functions, .. } = analysis;
    for (i, function) in functions.iter().enumerate() {
        let args = function.args.unwrap_or([Val::Unknown; 5]);
        out.received.push(args.map(|arg| i > 0 && arg.is_held()));
        let homes = out.received[i].iter().zip(Reg::ARGS).filter(|(received, _)| **received);
        out.homes.push(homes.fold(function.homes, |homes, (_, reg)| homes | 1 << Home::Reg(reg).index()));
        let bytes = match (function.passed, function.variable) {
            (true, _) => env.frame_bytes,
            (false, true) => facts.stack_bytes.get(i).copied().unwrap_or(env.frame_bytes).max(8),
            (false, false) => 0,
        };
        out.frames.push(bytes.max(function.deepest).next_multiple_of(8));
    }
    out.regions = (0u8..).zip(&env.context.regions).map(|(region, _)| env.context.bounds(region)).collect();
    facts.context_accesses = accesses;
    facts.contained = Some(Box::new(out));
    Ok(())
}

/// Makes a summary of each function, without its arguments, that says whether a run may sleep in it, or give a
/// record back.
fn functions(program: &Program, env: &Env<'_>, facts: &Facts) -> Vec<Function> {
    let mut functions = vec![Function::default(); program.subprogs().len()];
    let mut calls = Vec::new();
    // Reaching dead code ends the run, so the calls in it are never made.
    let reached = (0..).zip(program.insns()).filter(|(slot, _)| !facts.insn(InsnIdx(*slot)).dead);
    for (slot, insn) in reached {
        let caller = program.subprog_of(InsnIdx(slot));
        let proto = match *insn {
            Insn::Call(Callee::Subprog(off)) => {
                let callee = InsnIdx(slot).jump(off).and_then(|at| program.subprog_starting_at(at));
                calls.extend(callee.map(|callee| (caller, callee)));
                None
            }
            Insn::Call(Callee::Helper(id)) => env.helpers.get(id),
            Insn::Call(Callee::Host(index)) => usize::try_from(index).ok().and_then(|i| env.host_functions.get(i)),
            _other => None,
        };
        let sleeps = proto.is_some_and(|proto| proto.effect == Effect::Sleeps) || facts.may_yield(InsnIdx(slot));
        functions[caller.index()].sleeps |= sleeps;
        functions[caller.index()].gives_back |= proto.is_some_and(|proto| proto.args.contains(&ArgKind::Record));
    }
    // A chain of calls has at most so many functions.
    for _ in 0..bpf_isa::MAX_CALL_DEPTH {
        for (caller, callee) in &calls {
            functions[caller.index()].sleeps |= functions[callee.index()].sleeps;
            functions[caller.index()].gives_back |= functions[callee.index()].gives_back;
        }
    }
    functions
}

impl Analysis<'_> {
    /// Computes the fixpoint: the state at the start of each reachable block.
    fn flow(&mut self, cfg: &Cfg) -> Result<Vec<Option<State>>, Uncontained> {
        let mut states: Vec<Option<State>> = vec![None; cfg.blocks().len()];
        let raw = self.env.context.raw;
        let context = Val::Ptr(if raw { Target::Region(0) } else { Target::Context }, Some(0));
        let mut args = [Val::Unknown; 5];
        args[0] = context;
        if let Some(main) = self.functions.first_mut() {
            main.args = Some(args);
        }
        let called = self.functions.iter().zip(0..).filter(|(function, _)| function.args.is_some());
        self.changed = called.map(|(_, i)| SubprogId(i)).collect();
        let mut work: Vec<(SubprogId, BlockId)> = Vec::new();
        loop {
            if let Some((sub, block)) = work.pop() {
                let Some(mut state) = states[block.index()].clone() else { continue };
                self.sub = sub;
                if !self.block(cfg, block, &mut state)? {
                    continue;
                }
                for next in cfg.succs(block) {
                    if merge(&mut states[next.index()], &state) {
                        work.push((sub, next));
                    }
                }
            } else if let Some(sub) = self.changed.pop() {
                let Some(args) = self.functions[sub.index()].args else { continue };
                let mut state = State::new();
                for (reg, arg) in Reg::ARGS.into_iter().zip(args) {
                    state.set(reg, arg);
                }
                let entry = BlockId(cfg.subprog_blocks(sub).start);
                if merge(&mut states[entry.index()], &state) {
                    work.push((sub, entry));
                }
            } else {
                return Ok(states);
            }
        }
    }

    /// Records the results, with the states of the fixpoint.
    fn note(&mut self, cfg: &Cfg, states: &[Option<State>]) -> Result<(), Uncontained> {
        self.noting = true;
        for i in 0..self.program.subprogs().len() {
            self.sub = SubprogId(small(i));
            for block in cfg.subprog_blocks(self.sub).map(BlockId) {
                if let Some(mut state) = states[block.index()].clone() {
                    self.block(cfg, block, &mut state)?;
                }
            }
        }
        Ok(())
    }

    /// Runs a block on the state. Returns whether control may reach its end.
    fn block(&mut self, cfg: &Cfg, block: BlockId, state: &mut State) -> Result<bool, Uncontained> {
        let block = cfg.block(block);
        let mut slot = block.start;
        while slot < block.end {
            if self.facts.insn(InsnIdx(slot)).dead {
                return Ok(false);
            }
            if self.facts.may_yield(InsnIdx(slot)) {
                state.sleep();
            }
            let insn = self.program.insns()[slot as usize];
            if let Some(confined) = self.confined(slot) {
                confined.reached = true;
            }
            self.step(slot, &insn, state).map_err(|why| Uncontained { insn: InsnIdx(slot), why })?;
            slot += insn.slots();
        }
        Ok(true)
    }

    fn confined(&mut self, slot: u32) -> Option<&mut Confined> {
        if self.noting { self.out.insns.get_mut(slot as usize) } else { None }
    }

    fn hold(&mut self, slot: u32, hold: Hold) {
        let home = match hold {
            Hold::Nothing => return,
            Hold::Copy(from, to) => 1u128 << from.index() | 1 << to.index(),
            Hold::MapValue(reg, _) => 1 << Home::Reg(reg).index(),
            Hold::Result | Hold::Inner => 1 << Home::Reg(Reg::R0).index(),
            Hold::Dynptr(off) => Home::of_dynptr(off).into_iter().fold(0, |homes, home| homes | 1 << home.index()),
        };
        self.functions[self.sub.index()].homes |= home;
        if let Some(confined) = self.confined(slot) {
            confined.hold = hold;
        }
    }

    fn step(&mut self, slot: u32, insn: &Insn, state: &mut State) -> Result<(), Escape> {
        if let Some(access) = insn.memory_access() {
            return self.access(slot, insn, access.base, access.off.into(), access.size, access.kind, state);
        }
        match *insn {
            Insn::Mov { width, dst, src } => {
                let val = match src {
                    Src::Reg(src) => state.reg(src),
                    Src::Imm(imm) => Val::Const(imm.into()),
                };
                let val = match (width, val) {
                    (Width::W64, val) => val,
                    (Width::W32, Val::Const(c)) => Val::Const(c & 0xffff_ffff),
                    (
                        Width::W32,
                        Val::Unknown | Val::Number | Val::Map(_) | Val::Inner(_) | Val::Dynptr(..) | Val::Ptr(..),
                    ) => Val::Number,
                };
                if let (true, Src::Reg(src)) = (val.is_held(), src) {
                    self.hold(slot, Hold::Copy(Home::Reg(src), Home::Reg(dst)));
                }
                state.set(dst, val);
            }
            Insn::Alu { width, op, dst, src } => {
                let (a, from) = (state.reg(dst), src);
                let b = match src {
                    Src::Reg(src) => state.reg(src),
                    Src::Imm(imm) => Val::Const(imm.into()),
                };
                let val = match (width, op, a, b) {
                    (Width::W64, AluOp::Add, Val::Const(a), Val::Const(b)) => Val::Const(a.wrapping_add(b)),
                    (Width::W64, AluOp::Sub, Val::Const(a), Val::Const(b)) => Val::Const(a.wrapping_sub(b)),
                    (Width::W64, AluOp::Add, Val::Ptr(..), Val::Const(b)) => a.moved(Some(b)),
                    (Width::W64, AluOp::Sub, Val::Ptr(..), Val::Const(b)) => a.moved(b.checked_neg()),
                    (Width::W64, AluOp::Add | AluOp::Sub, Val::Ptr(..), Val::Unknown | Val::Number) => a.moved(None),
                    (Width::W64, AluOp::Add, Val::Const(a), Val::Ptr(..)) => b.moved(Some(a)),
                    (Width::W64, AluOp::Add, Val::Unknown | Val::Number, Val::Ptr(..)) => b.moved(None),
                    // The sum of a value that may be a pointer and anything else may be a pointer.
                    (Width::W64, AluOp::Add | AluOp::Sub, a, b) if !(a.is_number() && b.is_number()) => Val::Unknown,
                    _numbers => Val::Number,
                };
                if let (true, false, Src::Reg(src)) = (val.is_held(), a.is_held(), from) {
                    self.hold(slot, Hold::Copy(Home::Reg(src), Home::Reg(dst)));
                }
                state.set(dst, val);
            }
            Insn::MovSx { dst, .. } | Insn::Neg { dst, .. } | Insn::End { dst, .. } | Insn::Cast { dst, .. } => {
                state.set(dst, Val::Number);
            }
            Insn::LoadImm64 { dst, imm } => {
                let val = self.immediate(imm);
                if let (true, Imm64::MapValue { map, .. } | Imm64::MapIdxValue { map, .. }) = (val.is_held(), imm) {
                    self.hold(slot, Hold::MapValue(dst, map as u32));
                }
                state.set(dst, val);
            }
            Insn::LoadAbs { .. } | Insn::LoadInd { .. } => return Err(Escape::PacketLoad),
            Insn::Call(callee) => self.call(slot, callee, state)?,
            Insn::SecondSlot
            | Insn::Jump { .. }
            | Insn::JumpReg { .. }
            | Insn::JumpIf { .. }
            | Insn::MayGoto { .. }
            | Insn::Exit
            | Insn::Load { .. }
            | Insn::Store { .. }
            | Insn::Atomic { .. }
            | Insn::LoadAcquire { .. }
            | Insn::StoreRelease { .. } => {}
        }
        Ok(())
    }

    fn map(&self, index: u32) -> Option<&KnownMap> {
        self.env.maps.get(index as usize)
    }

    /// Returns the definition of the map that a value is.
    fn map_of(&self, val: Val) -> Option<&KnownMap> {
        match val {
            Val::Map(map) => self.map(map),
            Val::Inner(outer) => self.map(outer)?.inner.as_deref(),
            Val::Unknown | Val::Number | Val::Const(_) | Val::Dynptr(..) | Val::Ptr(..) => None,
        }
    }

    fn immediate(&self, imm: Imm64) -> Val {
        match imm {
            Imm64::Const(value) => Val::Const(value as i64),
            Imm64::Map(map) | Imm64::MapIdx(map) => Val::Map(map as u32),
            Imm64::MapValue { map, off } | Imm64::MapIdxValue { map, off } => match self.map(map as u32) {
                Some(known) if known.kind == MapType::Array && !has_fields(known) => {
                    let (bytes, writable, class) =
                        (known.value_size, known.access.writes(), Class::Map { lasts: true });
                    Val::Ptr(Target::Held { bytes, writable, class }, Some(off.into()))
                }
                // Addresses in an arena are numbers. Values of other maps are not accessed by constant address.
                Some(_) | None => Val::Unknown,
            },
            Imm64::Var(_) | Imm64::Func(_) => Val::Unknown,
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what a memory access is")]
    fn access(
        &mut self,
        slot: u32,
        insn: &Insn,
        base: Reg,
        off: i64,
        size: Size,
        kind: AccessKind,
        state: &mut State,
    ) -> Result<(), Escape> {
        let loaded = self.loaded(slot, base, off, size, kind, state)?;
        let bytes = i64::from(size.bytes());
        let frame = match state.reg(base) {
            Val::Ptr(Target::Frame, at) => Some(at.map(|at| at + off)),
            Val::Unknown
            | Val::Number
            | Val::Const(_)
            | Val::Map(_)
            | Val::Inner(_)
            | Val::Dynptr(..)
            | Val::Ptr(..) => None,
        };
        match (kind, *insn) {
            (AccessKind::Load, Insn::Load { dst, .. }) => {
                let whole = frame.filter(|_| size == Size::DW);
                let spilled = whole.flatten().and_then(slot_at);
                let scattered = self.functions[self.sub.index()].scattered;
                let val = match spilled.map(|n| (n, state.slots[usize::from(n) - 1])) {
                    // A wrong access may have changed a constant in memory, so constants are not kept. The object
                    // of a pointer is: accesses are confined to it whatever the slot holds.
                    Some((n, val @ (Val::Ptr(..) | Val::Map(_) | Val::Inner(_)))) => {
                        if val.is_held() {
                            self.hold(slot, Hold::Copy(Home::Slot(n), Home::Reg(dst)));
                        }
                        val
                    }
                    Some((_, Val::Number | Val::Const(_) | Val::Dynptr(..))) => Val::Number,
                    Some((_, Val::Unknown)) => Val::Unknown,
                    None if whole.is_some() && scattered => Val::Unknown,
                    // The verifier lets no program load a pointer as a number.
                    None => loaded,
                };
                state.set(dst, val);
                return Ok(());
            }
            (AccessKind::Store(src), _) => {
                let val = match src {
                    Src::Reg(src) => state.reg(src),
                    Src::Imm(_) => Val::Number,
                };
                match frame {
                    Some(Some(at)) => {
                        state.overwrite(at, bytes);
                        if let (Size::DW, Some(n), false) = (size, slot_at(at), val.is_number()) {
                            state.slots[usize::from(n) - 1] = val;
                            if let (true, Src::Reg(src)) = (val.is_held(), src) {
                                self.hold(slot, Hold::Copy(Home::Reg(src), Home::Slot(n)));
                            }
                        }
                    }
                    // A number that overwrites a pointer does not change the object of the slot: a later load
                    // yields a number, and accesses through it stay confined to that object.
                    Some(None) if size != Size::DW || val.is_number() => {}
                    Some(None) => {
                        let function = &mut self.functions[self.sub.index()];
                        self.again |= !core::mem::replace(&mut function.scattered, true);
                        state.slots = [Val::Unknown; Home::SLOTS];
                    }
                    None => {}
                }
            }
            (AccessKind::Load | AccessKind::Update(_) | AccessKind::LoadAcquire | AccessKind::StoreRelease(_), _) => {
                if let Some(Some(at)) = frame {
                    state.overwrite(at, bytes);
                }
            }
        }
        bpf_analysis::results(insn).iter().for_each(|reg| state.set(reg, Val::Unknown));
        Ok(())
    }

    /// Records the object to which an access is confined. Returns the value that a load of a context field yields.
    fn loaded(
        &mut self,
        slot: u32,
        base: Reg,
        off: i64,
        size: Size,
        kind: AccessKind,
        state: &State,
    ) -> Result<Val, Escape> {
        // An access in the arena is masked, so the walk's word that it is one suffices.
        if self.facts.insn(InsnIdx(slot)).memory == Some(MemKind::Arena) && self.facts.arena.is_some() {
            return Ok(Val::Number);
        }
        let Val::Ptr(target, at) = state.reg(base) else { return Err(Escape::Pointer(base)) };
        let access = match kind {
            AccessKind::Load | AccessKind::LoadAcquire => Access::Read,
            AccessKind::Store(_) | AccessKind::StoreRelease(_) => Access::Write,
            AccessKind::Update(_) => Access::ReadWrite,
        };
        if target == Target::Context {
            if kind.is_atomic() {
                return Err(Escape::Atomic);
            }
            let at = at.ok_or(Escape::Field)?;
            let val = self.field(slot, at, off, size, access)?;
            if let Some(confined) = self.confined(slot) {
                confined.place = Some(Place { object: Object::Context, off: Some(at) });
            }
            return Ok(val);
        }
        if access.writes() && !self.writable(target) {
            return Err(Escape::ReadOnly);
        }
        let align = if kind.is_atomic() { size.bytes() } else { 1 };
        let place = self.place(target, at, off, size.bytes(), align)?;
        if let Some(confined) = self.confined(slot) {
            confined.place = Some(place);
        }
        // A caller's frame may contain pointers.
        let caller = matches!(target, Target::Held { class: Class::Caller, .. });
        Ok(if caller && size == Size::DW { Val::Unknown } else { Val::Number })
    }

    fn writable(&self, target: Target) -> bool {
        match target {
            Target::Frame => true,
            Target::Context => false,
            Target::Region(region) => self.env.region(region).writable,
            Target::Held { writable, .. } => writable,
        }
    }

    /// The place of an access to `bytes` bytes at the pointer plus `off`. It is constant if the offset is, and the
    /// bytes lie within the object.
    fn place(&mut self, target: Target, at: Option<i64>, off: i64, bytes: u32, align: u32) -> Result<Place, Escape> {
        let first = at.and_then(|at| at.checked_add(off));
        let within = |from: i64, to: i64| {
            first.filter(|at| *at >= from && at.saturating_add(bytes.into()) <= to && at % i64::from(align) == 0)
        };
        let too_large = |of: u32| if bytes > of { Err(Escape::Size { bytes, of }) } else { Ok(()) };
        let (object, constant) = match target {
            Target::Context => return Err(Escape::Field),
            Target::Frame => {
                let of = self.env.frame_bytes;
                too_large(of)?;
                let constant = within(-i64::from(of), 0);
                let function = &mut self.functions[self.sub.index()];
                match constant.and_then(|at| u32::try_from(-at).ok()) {
                    Some(depth) => function.deepest = function.deepest.max(depth),
                    None => {
                        function.variable = true;
                        // Room for the bytes at the start of the frame, whatever depth was proven.
                        function.deepest = function.deepest.max(bytes);
                    }
                }
                (Object::Frame, constant)
            }
            Target::Region(region) => {
                if align > self.env.region(region).align {
                    return Err(Escape::Atomic);
                }
                too_large(Contained::MAX_ACCESS)?;
                (Object::Region(region), within(0, Contained::MAX_CONSTANT.into()))
            }
            // A slice begins at any byte.
            Target::Held { class: Class::Slice, .. } if align > 1 => return Err(Escape::Atomic),
            Target::Held { bytes: of, .. } => {
                too_large(of)?;
                (Object::Held { bytes: of }, within(0, of.into()))
            }
        };
        Ok(Place { object, off: constant.and(at) })
    }

    /// Records the access to a context field, in the host's layout. Returns the value that a load of the field
    /// yields.
    fn field(&mut self, slot: u32, base: i64, off: i64, size: Size, access: Access) -> Result<Val, Escape> {
        let layout = self.env.context;
        let at = u32::try_from(base + off).map_err(|_| Escape::Field)?;
        let field = &layout.fields[layout.field_at(at).ok_or(Escape::Field)?];
        let (inside, bytes) = (at - field.offset, size.bytes());
        let whole = bytes == field.size && inside == 0;
        let part = field.kind == FieldKind::Scalar && inside % bytes == 0 && inside + bytes <= field.size;
        let allowed = (!access.writes() || field.access.writes() && field.kind == FieldKind::Scalar)
            && (!access.reads() || field.access.reads());
        if !(whole || part) {
            return Err(Escape::Field);
        }
        if !allowed {
            return Err(Escape::ReadOnly);
        }
        if self.noting {
            let size = if whole { field.host_size } else { bytes };
            let host = i64::from(field.host_offset) + i64::from(inside) - base;
            let host = i32::try_from(host).map_err(|_| Escape::Field)?;
            self.accesses.push(ContextAccess { insn: InsnIdx(slot), off: host, size, place: at, seen: bytes });
        }
        Ok(match field.kind {
            FieldKind::Data(region) => Val::Ptr(Target::Region(region), Some(0)),
            FieldKind::DataEnd(region) => Val::Ptr(Target::Region(region), None),
            FieldKind::Scalar | FieldKind::Len(_) => Val::Number,
            FieldKind::Socket => Val::Unknown,
        })
    }

    fn call(&mut self, slot: u32, callee: Callee, state: &mut State) -> Result<(), Escape> {
        let (passed, result, sleeps) = match callee {
            Callee::Reg(_) => return Err(Escape::IndirectCall),
            Callee::Subprog(off) => {
                let callee = InsnIdx(slot).jump(off).and_then(|at| self.program.subprog_starting_at(at));
                let callee = callee.unwrap_or(SubprogId(0));
                let sleeps = self.functions[callee.index()].sleeps && !planted!(CalleeNeverSleeps);
                let passed = self.subprogram(callee, state);
                if self.functions[callee.index()].gives_back {
                    state.give_back();
                }
                // The callee may move the packet.
                state.drop_slices();
                (passed, Val::Unknown, sleeps)
            }
            Callee::Helper(id) => {
                let env = self.env;
                let proto = env.helpers.get(id).ok_or_else(|| Escape::Function(format!("helper {id}")))?;
                let (passed, result) = self.function(slot, proto, state)?;
                (passed, result, proto.effect == Effect::Sleeps)
            }
            Callee::Host(index) => {
                let env = self.env;
                let proto = usize::try_from(index).ok().and_then(|index| env.host_functions.get(index));
                let proto = proto.ok_or_else(|| Escape::Function(format!("function {index}")))?;
                let (passed, result) = self.function(slot, proto, state)?;
                (passed, result, proto.effect == Effect::Sleeps)
            }
        };
        // The call has its arguments before the run sleeps, and the result is made after.
        if sleeps {
            state.sleep();
        }
        Reg::ARGS.into_iter().for_each(|reg| state.set(reg, Val::Unknown));
        state.set(Reg::R0, result);
        match result {
            Val::Ptr(Target::Held { bytes, .. }, _) => {
                self.out.sink = self.out.sink.max(bytes);
                self.hold(slot, Hold::Result);
            }
            Val::Inner(_) => self.hold(slot, Hold::Inner),
            Val::Unknown | Val::Number | Val::Const(_) | Val::Map(_) | Val::Dynptr(..) | Val::Ptr(..) => {}
        }
        if self.noting {
            let call = small(self.out.calls.len());
            self.out.calls.push(passed);
            if let Some(confined) = self.confined(slot) {
                confined.call = Some(call);
            }
        }
        Ok(())
    }

    /// Joins the arguments of a call into the callee's, and returns how each argument is passed.
    fn subprogram(&mut self, callee: SubprogId, state: &mut State) -> [Passed; 5] {
        let frame_bytes = self.env.frame_bytes;
        let given = Reg::ARGS.map(|reg| match state.reg(reg) {
            Val::Ptr(Target::Frame, at) => {
                let target = Target::Held { bytes: frame_bytes, writable: true, class: Class::Caller };
                Val::Ptr(target, at.map(|at| at + i64::from(frame_bytes)))
            }
            // The callee may give the record back, which the caller could not see.
            Val::Ptr(Target::Held { class: Class::Record | Class::Slice, .. }, _) | Val::Dynptr(..) | Val::Unknown => {
                Val::Unknown
            }
            Val::Number | Val::Const(_) => Val::Number,
            other @ (Val::Map(_) | Val::Inner(_) | Val::Ptr(..)) => other,
        });
        let function = &mut self.functions[callee.index()];
        let args = match function.args {
            None => given,
            Some(args) => core::array::from_fn(|i| args[i].join(given[i])),
        };
        if function.args != Some(args) {
            function.args = Some(args);
            self.changed.push(callee);
        }
        let is_frame = |reg: Reg| matches!(state.reg(reg), Val::Ptr(Target::Frame, _));
        let mut passed = [Passed::AsIs; 5];
        let mut lent = false;
        for (i, reg) in Reg::ARGS.into_iter().enumerate() {
            lent |= is_frame(reg);
            if args[i].is_held() && given[i].is_held() {
                passed[i] = Passed::Held { frame: is_frame(reg) };
                self.functions[self.sub.index()].homes |= 1 << Home::Reg(reg).index();
            }
        }
        if lent {
            self.functions[self.sub.index()].passed = true;
            // The callee may store another pointer in the frame.
            state.slots = [Val::Unknown; Home::SLOTS];
        }
        passed
    }

    /// Determines how each argument of a host function is passed, and the function's result.
    fn function(&mut self, slot: u32, proto: &HelperProto, state: &mut State) -> Result<([Passed; 5], Val), Escape> {
        let unknown = || Escape::Function(proto.name.to_string());
        match proto.effect {
            // A program that may sleep is never entered by one that may not, or the other way round: such a run would
            // wait without keeping the other program.
            Effect::Sleeps if !self.env.sleepable => return Err(unknown()),
            Effect::TailCall if self.env.sleepable => return Err(unknown()),
            // Whether a sleepable program may sleep just here is not asked: it holds no lock, what it may not access
            // after a sleep is forgotten at each, and a record is given back by those functions that look for it in
            // the run's list.
            Effect::None | Effect::UnderLock | Effect::Enter(_) | Effect::Leave(_) | Effect::Sleeps => {}
            Effect::MovesPacket => {
                self.out.moves = true;
                state.drop_slices();
            }
            Effect::TailCall => return self.tail_call(slot, state),
            Effect::Lock(_) | Effect::Unlock(_) => return Err(unknown()),
        }
        // Memory that the function reads behind formatted values is bounded by the walk's proofs only.
        let peeks = self.facts.formats.iter().any(|call| call.insn.0 == slot && call.known.iter().any(Option::is_some));
        if peeks || proto.ret == Ret::Thrown {
            return Err(unknown());
        }
        let map = Reg::ARGS.into_iter().zip(proto.args).find_map(|(reg, arg)| match arg {
            ArgKind::Map(_) => Some(state.reg(reg)),
            _else => None,
        });
        let known = map.and_then(|map| self.map_of(map)).cloned();
        let mut passed = [Passed::AsIs; 5];
        let mut memory: Vec<Lent> = Vec::new();
        let mut records = false;
        // The dynptr that the call makes or changes, with its kind, and that of which it makes another.
        let (mut written, mut of) = (None, None);
        for i in 0..proto.args.len() {
            let (arg, reg) = (proto.args[i], Reg::ARGS[i]);
            let refused = || Escape::Argument { name: proto.name.to_string(), arg: i + 1 };
            let next = |i: usize| Extent::Next {
                half: matches!(proto.args.get(i + 1), Some(ArgKind::Size { half: true, .. })),
            };
            let (mem, extent) = match arg {
                ArgKind::None => break,
                ArgKind::Scalar | ArgKind::Size { .. } | ArgKind::RecordSize | ArgKind::Unused | ArgKind::Formatted => {
                    continue;
                }
                ArgKind::Record => {
                    records = true;
                    continue;
                }
                ArgKind::Local(Local::Dynptr(wanted), how) => {
                    let Val::Ptr(Target::Frame, Some(off)) = state.reg(reg) else { return Err(refused()) };
                    let at = i16::try_from(off).map_err(|_| refused())?;
                    // Both words have homes.
                    slot_at(off).filter(|n| *n >= 2).ok_or_else(refused)?;
                    let place = self.place(Target::Frame, Some(off), 0, Local::Dynptr(wanted).size(), 8);
                    place.ok().and_then(|place| place.off).ok_or_else(refused)?;
                    let made = how == LocalUse::Made;
                    passed[i] = Passed::Dynptr { off: at, made };
                    let known = if made { Some(wanted) } else { state.dynptr(off) };
                    let known = known.filter(|known| wanted == Dynptr::Any || wanted == *known).ok_or_else(refused)?;
                    match how {
                        LocalUse::Made => written = Some((off, known)),
                        LocalUse::Used => {
                            of = of.or(Some(known));
                            written = written.or(Some((off, known)));
                        }
                        LocalUse::Read => of = of.or(Some(known)),
                        LocalUse::Ended => records = true,
                    }
                    self.uses_dynptr(at);
                    continue;
                }
                ArgKind::SliceBuffer => match Reg::ARGS.get(i + 1).map(|next| state.reg(*next)) {
                    Some(Val::Const(bytes)) => {
                        (MemArg::WRITE.or_null(), Extent::Bytes(u32::try_from(bytes).map_err(|_| refused())?))
                    }
                    Some(Val::Unknown | Val::Number | Val::Map(_) | Val::Inner(_) | Val::Dynptr(..) | Val::Ptr(..))
                    | None => return Err(refused()),
                },
                ArgKind::Ctx | ArgKind::CtxOrNull => {
                    passed[i] = match (state.reg(reg), self.env.context.raw) {
                        (Val::Const(0), _) if arg == ArgKind::CtxOrNull => Passed::Null,
                        (Val::Ptr(Target::Context, Some(0)), false) => Passed::Context,
                        (Val::Ptr(Target::Region(0), Some(0)), true) => Passed::Context,
                        (
                            Val::Unknown
                            | Val::Number
                            | Val::Const(_)
                            | Val::Map(_)
                            | Val::Inner(_)
                            | Val::Dynptr(..)
                            | Val::Ptr(..),
                            _,
                        ) => return Err(refused()),
                    };
                    continue;
                }
                ArgKind::Map(kinds) => {
                    let map = state.reg(reg);
                    if !self.map_of(map).is_some_and(|known| kinds.contains(known.kind)) {
                        return Err(refused());
                    }
                    passed[i] = match map {
                        Val::Map(map) => Passed::Map(map),
                        // These functions take null, which a wrong proof may pass, for a map without elements.
                        Val::Inner(_) if proto.helper().is_some_and(|helper| ELEMENTS.contains(&helper)) => {
                            Passed::Inner
                        }
                        Val::Inner(_) | Val::Unknown | Val::Number | Val::Const(_) | Val::Dynptr(..) | Val::Ptr(..) => {
                            return Err(refused());
                        }
                    };
                    continue;
                }
                ArgKind::Key | ArgKind::Value | ArgKind::ValueOrNull | ArgKind::ValueOut => {
                    let (mem, bytes) = known.as_ref().and_then(|map| map.memory_of(arg)).ok_or_else(refused)?;
                    (mem, Extent::Bytes(bytes))
                }
                ArgKind::Fixed { bytes, mem } => (mem, Extent::Bytes(bytes)),
                // A pointer that is null at run time has length 0.
                ArgKind::Mem(mem) if mem.null => (mem, next(i)),
                ArgKind::Mem(mem) => match Reg::ARGS.get(i + 1).map(|next| state.reg(*next)) {
                    Some(Val::Const(bytes)) => (mem, Extent::Bytes(u32::try_from(bytes).map_err(|_| refused())?)),
                    Some(Val::Unknown | Val::Number | Val::Map(_) | Val::Inner(_) | Val::Dynptr(..) | Val::Ptr(..))
                    | None => (mem, next(i)),
                },
                ArgKind::Values
                | ArgKind::MemOfLength(_)
                | ArgKind::Length
                | ArgKind::Lock { .. }
                | ArgKind::Timer
                | ArgKind::Work
                | ArgKind::TimerMap
                | ArgKind::TimerCallback
                | ArgKind::Local(..)
                | ArgKind::LocalType { .. }
                | ArgKind::Object(_)
                | ArgKind::Root(_)
                | ArgKind::Node(..)
                | ArgKind::Compare
                | ArgKind::Kptr
                | ArgKind::Exchanged
                | ArgKind::Peeked { .. }
                | ArgKind::Probed
                | ArgKind::ConstStr
                | ArgKind::Socket { .. }
                | ArgKind::Callback(_)
                | ArgKind::CallbackCtx
                | ArgKind::Host { .. } => return Err(refused()),
            };
            let (target, at) = match state.reg(reg) {
                Val::Const(0) if mem.null => {
                    passed[i] = Passed::Null;
                    if let (Extent::Next { .. }, Some(next)) = (extent, passed.get_mut(i + 1)) {
                        *next = Passed::Null;
                    }
                    continue;
                }
                Val::Ptr(target, at) => (target, at),
                Val::Unknown | Val::Number | Val::Const(_) | Val::Map(_) | Val::Inner(_) | Val::Dynptr(..) => {
                    return Err(refused());
                }
            };
            let from = match target {
                Target::Frame | Target::Held { class: Class::Caller, .. } => MemSet::STACK,
                Target::Region(_) => MemSet::PACKET,
                Target::Held { class: Class::Map { .. }, .. } => MemSet::MAP,
                Target::Held { class: Class::Mem | Class::Record | Class::Slice, .. } => MemSet::MEM,
                Target::Context => return Err(refused()),
            };
            if !mem.from.contains(from) || mem.access.writes() && !self.writable(target) || mem.align > 8 {
                return Err(refused());
            }
            let place = match extent {
                Extent::Bytes(bytes) => self.place(target, at, 0, bytes, mem.align).map_err(|_| refused())?,
                // At run time the length is bounded to the end of the object, so the offset must lie within the
                // object.
                Extent::Next { .. } => match target {
                    Target::Held {
                        class: Class::Caller | Class::Map { .. } | Class::Mem | Class::Record | Class::Slice,
                        ..
                    }
                    | Target::Frame
                    | Target::Region(_) => self.place(target, at, 0, 0, mem.align).map_err(|_| refused())?,
                    Target::Context => return Err(refused()),
                },
            };
            let bytes = match extent {
                Extent::Bytes(bytes) => place.off.map(|off| (off, off + i64::from(bytes))),
                Extent::Next { .. } => None,
            };
            memory.push(Lent { target, bytes, writes: mem.access.writes() });
            let align = u8::try_from(mem.align).map_err(|_| refused())?;
            passed[i] = Passed::Pointer { place, extent, align, null: mem.null };
        }
        // Rust's `&mut` must be the only reference to its memory.
        let pairs = memory.iter().enumerate().flat_map(|(i, a)| memory[..i].iter().map(move |b| (a, b)));
        if proto.disjoint && pairs.into_iter().any(|(a, b)| (a.writes || b.writes) && !a.is_apart(b)) {
            return Err(unknown());
        }
        if records {
            state.give_back();
        }
        self.dynptr_written(slot, proto, written, of, state)?;
        let held = |bytes, writable, class| Val::Ptr(Target::Held { bytes, writable, class }, Some(0));
        let result = match proto.ret {
            Ret::MapValueOrNull => match known {
                Some(known) if has_fields(&known) => return Err(Escape::Fields(known.name.to_string())),
                // In other look-ups, a branch inside the function decides which value is found.
                Some(known)
                    if MapTypes::KEYED.contains(known.kind) && proto.helper() == Some(Helper::MapLookupElem) =>
                {
                    match map {
                        Some(Val::Map(outer)) if known.inner.is_some() => Val::Inner(outer),
                        // All execution slots share the values of an array, which exist as long as it does. An inner
                        // map may be replaced while the run sleeps.
                        map => {
                            let lasts = known.kind == MapType::Array && !matches!(map, Some(Val::Inner(_)));
                            held(known.value_size, known.access.writes(), Class::Map { lasts })
                        }
                    }
                }
                Some(_) | None => Val::Unknown,
            },
            Ret::RecordOrNull => {
                let size = proto.args.iter().position(|arg| *arg == ArgKind::RecordSize);
                match size.map(|i| state.reg(Reg::ARGS[i])) {
                    Some(Val::Const(bytes)) => match u32::try_from(bytes) {
                        Ok(bytes) => held(bytes, true, Class::Record),
                        Err(_) => return Err(unknown()),
                    },
                    Some(Val::Unknown | Val::Number | Val::Map(_) | Val::Inner(_) | Val::Dynptr(..) | Val::Ptr(..))
                    | None => return Err(unknown()),
                }
            }
            Ret::SliceOrNull { writable } => {
                let size = proto.args.iter().position(|arg| *arg == ArgKind::RecordSize);
                match size.map(|i| state.reg(Reg::ARGS[i])) {
                    Some(Val::Const(bytes)) => match u32::try_from(bytes) {
                        Ok(bytes) => held(bytes, writable, Class::Slice),
                        Err(_) => return Err(unknown()),
                    },
                    Some(Val::Unknown | Val::Number | Val::Map(_) | Val::Inner(_) | Val::Dynptr(..) | Val::Ptr(..))
                    | None => return Err(unknown()),
                }
            }
            Ret::MemOrNull { bytes, writable } => held(bytes, writable, Class::Mem),
            Ret::Scalar | Ret::Between(..) | Ret::ErrorOrLength => Val::Number,
            Ret::First
            | Ret::HostOrNull(_)
            | Ret::Host(_)
            | Ret::Never
            | Ret::Thrown
            | Ret::ElementOrNull(_)
            | Ret::SocketOrNull
            | Ret::OfSocketOrNull(_)
            | Ret::ObjectOrNull(_)
            | Ret::Instance { .. } => Val::Unknown,
        };
        if let Val::Ptr(Target::Held { bytes, .. }, _) = result
            && bytes > MAX_RESULT
        {
            return Err(Escape::Size { bytes, of: MAX_RESULT });
        }
        Ok((passed, result))
    }

    /// Notes that the function keeps the words of a dynptr at this offset from r10, and lends its frame to a call.
    fn uses_dynptr(&mut self, off: i16) {
        let homes = Home::of_dynptr(off).into_iter().fold(0, |homes, home| homes | 1 << home.index());
        self.functions[self.sub.index()].homes |= homes;
    }

    /// Records that a call has made or changed a dynptr at this offset from r10. `of` is the kind of the dynptr of
    /// which it made another.
    fn dynptr_written(
        &mut self,
        slot: u32,
        proto: &HelperProto,
        written: Option<(i64, Dynptr)>,
        of: Option<Dynptr>,
        state: &mut State,
    ) -> Result<(), Escape> {
        let Some((off, kind)) = written else { return Ok(()) };
        let unknown = || Escape::Function(proto.name.to_string());
        // Functions that return a slice leave the dynptr as it is.
        if matches!(proto.ret, Ret::SliceOrNull { .. }) {
            return Ok(());
        }
        let kind = if kind == Dynptr::Any { of.ok_or_else(unknown)? } else { kind };
        let n = usize::from(slot_at(off).filter(|n| *n >= 2).ok_or_else(unknown)?);
        state.overwrite(off, Local::Dynptr(kind).size().into());
        (state.slots[n - 1], state.slots[n - 2]) = (Val::Dynptr(kind, Word::First), Val::Dynptr(kind, Word::Second));
        self.hold(slot, Hold::Dynptr(i16::try_from(off).map_err(|_| unknown())?));
        Ok(())
    }

    /// A tail call with a constant table and a constant index is a jump to a patched target.
    fn tail_call(&mut self, slot: u32, state: &State) -> Result<([Passed; 5], Val), Escape> {
        let known = self.facts.tail_call(InsnIdx(slot)).ok_or(Escape::TailCall)?;
        let context = match state.reg(Reg::R1) {
            Val::Ptr(Target::Context, Some(0)) => !self.env.context.raw,
            Val::Ptr(Target::Region(0), Some(0)) => self.env.context.raw,
            Val::Unknown
            | Val::Number
            | Val::Const(_)
            | Val::Map(_)
            | Val::Inner(_)
            | Val::Dynptr(..)
            | Val::Ptr(..) => false,
        };
        let table = state.reg(Reg::R2) == Val::Map(known.map)
            && self.map(known.map).is_some_and(|map| map.kind == MapType::ProgArray);
        if !context || !table {
            return Err(Escape::TailCall);
        }
        let passed = [Passed::Context, Passed::Map(known.map), Passed::AsIs, Passed::AsIs, Passed::AsIs];
        Ok((passed, Val::Unknown))
    }
}

/// Whether values have fields that only functions may access.
fn has_fields(map: &KnownMap) -> bool {
    map.spin_lock.is_some() || map.deferred().next().is_some() || !map.fields.is_empty()
}

/// Joins a state into the state at a place. Returns whether that changed.
fn merge(at: &mut Option<State>, state: &State) -> bool {
    match at {
        Some(known) => known.join(state),
        None => {
            *at = Some(state.clone());
            true
        }
    }
}

/// The number of functions or calls as `u32`. It fits, since a program has at most a million slots.
fn small(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
